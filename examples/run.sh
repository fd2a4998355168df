#!/bin/sh
# Installs what is missing, builds an example and runs it. Arguments go through.
#   sh examples/run.sh                                           generates a text with the model that comes with the sources
#   sh examples/run.sh --prompt "Once upon a time" -n 40         the same with options of `generate`
#   sh examples/run.sh --chat -m model.gguf                      a conversation
#   sh examples/run.sh NAME [option…]                            any example, by the name of its folder
#   sh examples/run.sh NAME --help                               its options
# FRUGAL_EXAMPLE_BUILD names another build folder (build/examples), FRUGAL_EXAMPLE_ISAS the instruction sets to build for, `baseline;avx2`
# say (best: this machine's most able one).
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
examples=$(cd "$root/examples" && for each in */main.cpp; do echo "${each%/main.cpp}"; done)

case "${1:-}" in
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        # The names are words.
        # shellcheck disable=SC2086
        echo "examples:" $examples
        exit 0
        ;;
esac
name=generate
if [ $# -gt 0 ] && printf '%s\n' "$examples" | grep -qxF -- "$1"; then
    name=$1
    shift
else
    case "${1:-}" in
        '' | -*) ;;
        *)
            # shellcheck disable=SC2086
            echo "no example is called $1; examples:" $examples >&2
            exit 2
            ;;
    esac
    [ $# -gt 0 ] || set -- --prompt "In the beginning" --n-predict 96 --seed 7 --stats
fi

. "$root/cmake/packages.sh"
build=${FRUGAL_EXAMPLE_BUILD:-$root/build/examples}
isas=${FRUGAL_EXAMPLE_ISAS:-best}
# Standard output belongs to the text that is generated: everything else goes to standard error, and a build that succeeds
# is silent after the first time.
# shellcheck disable=SC2086
need $packages_example
if [ "$name" = npu_generate ]; then
    # shellcheck disable=SC2086
    need $packages_npu
fi
check_tools
log="$build/run.log"
program="$build/examples/$name/$name"
mkdir -p "$build"
if [ ! -f "$program" ]; then
    echo "building $name, once" >&2
fi
{
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFRUGAL_BUILD_TESTS=OFF "-DFRUGAL_ONLY_ISAS=$isas" &&
        cmake --build "$build" --target "$name" --parallel "$(jobs)"
} </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    echo "could not build $name" >&2
    exit 1
}
exec "$program" "$@"
