#!/bin/sh
# Installs what is missing, builds one group of benchmarks and runs it; ends with lines `figure NAME VALUE`.
#   sh bench/run.sh                     the groups
#   sh bench/run.sh matmul              a group; `all` runs every group
#   sh bench/run.sh matmul --benchmark_filter='q4_k/avx2'    Google Benchmark's options go through; with --benchmark_format=json
#                                       standard output is that alone, and the figures are in build/bench/figures.txt
# FRUGAL_BENCH_THREADS sets the number of threads (1), FRUGAL_ISA the instruction set (all of the machine),
# FRUGAL_BENCH_BUILD the build folder (build/bench). There lie, named after the group, the JSON and what bench/plot.py draws of it.
# Groups with a peer (ops, qsa) fetch and build ggml there, minutes the first time; FRUGAL_PEER names its libraries yourself, or none.
# The group model does the same with all of llama.cpp (FRUGAL_PEER_LLAMA), and writes its model files there (FRUGAL_BENCH_FOLDER).
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
groups=$(sed -n '/^set(groups/,/^)/{/^ /s/^ *//p;}' "$root/bench/CMakeLists.txt")
groups="compile
$groups" # compile is no program, but how long the compiler takes for some

case "${1:-}" in
    '' | -h | --help)
        sed -n '2,11s/^# \{0,1\}//p' "$0"
        echo "groups:" $groups
        exit 0
        ;;
esac
chosen=$1
shift
if [ "$chosen" = all ]; then
    chosen=$groups
elif ! printf '%s\n' "$groups" | grep -qxF -- "$chosen"; then
    echo "no group is called $chosen; groups:" $groups >&2
    exit 2
fi

# Every group writes JSON to a file; with --benchmark_format=json that is what is printed.
format=console
for word in "$@"; do
    shift
    case $word in
        --benchmark_format=*) format=${word#*=} ;;
        *) set -- "$@" "$word" ;;
    esac
done
case $format in
    console | json) ;;
    *)
        echo "no benchmark prints $format; --benchmark_format is console or json" >&2
        exit 2
        ;;
esac

. "$root/cmake/packages.sh"
# The package names are words.
# shellcheck disable=SC2086
need $packages_bench
check_tools
build=${FRUGAL_BENCH_BUILD:-$root/build/bench}
mkdir -p "$build"
build=$(CDPATH='' cd -- "$build" && pwd)
log="$build/run.log"
targets=
new=
for group in $chosen; do
    [ "$group" != compile ] || continue
    targets="$targets bench_$group"
    [ -f "$build/bench/bench_$group" ] || new="$new $group"
done
[ -z "$new" ] || echo "building$new, once; this takes minutes" >&2
[ -z "$targets" ] || {
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFRUGAL_BUILD_BENCH=ON -DFRUGAL_BUILD_TESTS=OFF \
        -DFRUGAL_BUILD_EXAMPLES=OFF &&
        cmake --build "$build" --target $targets --parallel "$(jobs)"
} </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    echo "could not build the benchmarks" >&2
    exit 1
}

# fetched_peer SCRIPT NAME: prints the libraries of a peer that the script fetches and builds, or none.
fetched_peer() {
    # shellcheck disable=SC2086
    need $packages_peer >&2
    sh "$root/bench/peer/$1" "$build/peer" || {
        echo "$2 could not be built; going on without it" >&2
        echo none
    }
}
case " $(echo $chosen) " in
    *" ops "* | *" qsa "*)
        FRUGAL_PEER=${FRUGAL_PEER:-$(fetched_peer get_ggml.sh ggml)}
        export FRUGAL_PEER
        ;;
esac
case " $(echo $chosen) " in
    *" model "*)
        FRUGAL_BENCH_FOLDER=${FRUGAL_BENCH_FOLDER:-$build}
        FRUGAL_PEER_LLAMA=${FRUGAL_PEER_LLAMA:-$(fetched_peer get_llama.sh llama.cpp)}
        export FRUGAL_BENCH_FOLDER FRUGAL_PEER_LLAMA
        ;;
esac

# Distributions install matplotlib for their own Python, which need not be the first in the path.
python=
for each in python3 /usr/bin/python3; do
    if [ -z "$python" ] && "$each" -c 'import matplotlib' 2>/dev/null; then python=$each; fi
done
[ -n "$python" ] || echo "nothing is drawn: no python3 here has matplotlib (package python3-matplotlib)" >&2

# All figures come last, also where several groups run.
result=0
: >"$build/figures.txt"
for group in $chosen; do
    code=0
    rm -f "$build/$group.json"
    if [ "$group" = compile ]; then
        python3 -B "$root/bench/compile/measure.py" >"$build/$group.txt" 2>"$build/$group.err" || code=$?
    else
        "$build/bench/bench_$group" --benchmark_out="$build/$group.json" --benchmark_out_format=json "$@" \
            >"$build/$group.txt" 2>"$build/$group.err" || code=$?
    fi
    if [ "$format" = json ]; then
        if [ -f "$build/$group.json" ]; then cat "$build/$group.json"; fi
    else
        grep -v '^figure ' "$build/$group.txt" || :
    fi
    # The library of Debian and Ubuntu calls itself a debug build; what is measured is not.
    grep -v 'Library was built as DEBUG' "$build/$group.err" >&2 || :
    grep '^figure ' "$build/$group.txt" >>"$build/figures.txt" || :
    [ "$code" = 0 ] || result=$code
    if [ -n "$python" ] && [ -s "$build/$group.json" ]; then
        "$python" -B "$root/bench/plot.py" "$build/$group.json" "$build/$group.svg" >&2 || :
    fi
done
if [ "$format" = console ]; then cat "$build/figures.txt"; else echo "figures: $build/figures.txt" >&2; fi
exit "$result"
