#!/bin/sh
# Installs what is missing, builds the `generate` example and runs it. Without arguments it continues a text with the model
# that comes with the sources; arguments go through: sh examples/run.sh --prompt "Once upon a time" --n-predict 40
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/cmake/packages.sh"
build="$root/build/examples"

# Standard output belongs to the text that is generated: everything else goes to standard error, and a build that succeeds
# is silent after the first time.
# shellcheck disable=SC2086
need $packages_example
check_tools
log="$build/run.log"
mkdir -p "$build"
if [ ! -f "$build/build.ninja" ]; then
    echo "building the example, once" >&2
fi
{
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFRUGAL_BUILD_TESTS=OFF &&
        cmake --build "$build" --target generate --parallel "$(jobs)"
} </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    echo "could not build the example" >&2
    exit 1
}
[ $# -gt 0 ] || set -- --prompt "In the beginning" --n-predict 96 --seed 7 --stats
exec "$build/examples/generate/generate" "$@"
