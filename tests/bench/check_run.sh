#!/bin/sh
# What bench/run.sh does without a compiler: its groups are those that exist, an unknown one is an error, what it prints and where.
set -eu
bench=$1 tools=$2
cd /
listed=$(sh "$bench/run.sh" | sed -n 's/^groups: //p' | tr ' ' '\n' | grep -vx compile | sort)
present=$(for file in "$bench"/*/*.cpp; do case $file in */support/* | */cuda/*) ;; *) basename "$file" .cpp ;; esac; done | sort)
[ "$listed" = "$present" ] || {
    echo "groups listed: $listed; files: $present" >&2
    exit 1
}
code=0
said=$(sh "$bench/run.sh" no_such_group 2>&1) || code=$?
[ "$code" = 2 ] || {
    echo "an unknown group ends with $code" >&2
    exit 1
}
case $said in
    *no_such_group*matmul*) ;;
    *)
        echo "an unknown group says: $said" >&2
        exit 1
        ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# run OPTION…: one group, with programs that say how they were called; standard output and error go to files.
run() {
    code=0
    FAKE_LOG=$folder/log FRUGAL_BENCH_BUILD=$folder/build PATH=$tools:$PATH sh "$bench/run.sh" "$@" \
        >"$folder/out" 2>"$folder/err" || code=$?
}
# holds FILE TEXT: whether a line of the file has the text.
holds() {
    grep -qF -- "$2" "$folder/$1" || {
        echo "run.sh: no '$2' in its $1: $(cat "$folder/$1")" >&2
        exit 1
    }
}
run matmul --benchmark_filter=q4_k
holds err 'building matmul, once'
holds out '--benchmark_filter=q4_k'
[ "$(tail -n 1 "$folder/out")" = 'figure fake.number 7' ]
run matmul --benchmark_format=json --benchmark_filter=q4_k
if grep 'building' "$folder/err"; then exit 1; fi
[ "$(cat "$folder/out")" = '{"benchmarks": []}' ]
holds build/figures.txt 'figure fake.number 7'
holds build/matmul.txt '--benchmark_filter=q4_k'
if grep 'benchmark_format' "$folder/build/matmul.txt"; then exit 1; fi
run matmul --benchmark_format=xml
[ "$code" = 2 ]
holds err 'console or json'

# What the compiler takes, with one that takes twice as long for one program as for the others; the cache before it is left out.
cat >"$folder/compiler" <<'COMPILER'
#!/bin/sh
case "$*" in
    --version) echo "fake 1.0" && exit 0 ;;
    *-fsyntax-only*) exit 0 ;;
    */gdn_layer.cpp*) left=400000 ;;
    *) left=200000 ;;
esac
while [ "$left" -gt 0 ]; do left=$((left - 1)); done
COMPILER
chmod +x "$folder/compiler"
CXX="ccache $folder/compiler"
export CXX
run compile
[ "$code" = 0 ]
holds out 'fake 1.0'
for name in $(cd "$bench/compile/programs" && ls); do
    [ "$name" = eigen.cpp ] || holds out "figure compile.${name%.cpp}.vs_eigen "
done
awk '$2 == "compile.gdn_layer.vs_eigen" { slow = $3 } $2 == "compile.matmul.vs_eigen" { fast = $3 }
    END { exit !(slow > 1.4 * fast) }' "$folder/build/figures.txt"

# Without its packages a Python has no matplotlib.
code=0
said=$(python3 -S "$bench/plot.py" a.json b.svg 2>&1) || code=$?
case $code$said in
    1*'has no matplotlib'*python3-matplotlib*) ;;
    *)
        echo "without matplotlib plot.py ends with $code and says: $said" >&2
        exit 1
        ;;
esac
echo "run.sh: passed"
