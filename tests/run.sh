#!/bin/sh
# Installs what is missing, builds and runs the tests, and says what took longest.
#   sh tests/run.sh                 the whole suite
#   sh tests/run.sh quant ops       tests of these labels, and builds no more than they need (`sh tests/run.sh --labels` lists them)
# FRUGAL_PRESET chooses another preset of CMakePresets.json (dev, clang, asan, tsan).
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/cmake/packages.sh"
preset=${FRUGAL_PRESET:-release}

case "${1:-}" in
    -h | --help)
        sed -n '2,5s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
esac

# The package names are words.
# shellcheck disable=SC2086
need $packages_test
case $preset in
    clang | asan | tsan) need $packages_clang ;;
esac
check_tools
cd "$root"
if [ "${1:-}" = --labels ]; then
    cmake --preset "$preset" >/dev/null
    exec ctest --preset "$preset" --print-labels
fi
cmake --preset "$preset"

# Labels are whole words; one that no test has is an error, not an empty success. Only what they need is built.
known=$(ctest --preset "$preset" --print-labels | sed -n 's/^  *//p')
chosen=
targets=
for label in "$@"; do
    printf '%s\n' "$known" | grep -qxF -- "$label" || {
        printf 'no test has the label %s; labels are:\n%s\n' "$label" "$known" >&2
        exit 2
    }
    chosen="${chosen:+$chosen|}$label"
    targets="$targets tests_$label"
done

began=$(date +%s)
# The targets are words.
# shellcheck disable=SC2086
cmake --build --preset "$preset" --parallel "$(jobs)" ${targets:+--target} $targets
built=$(date +%s)
set -- --preset "$preset" --parallel "$(jobs)" --no-tests=error
if [ -n "$chosen" ]; then
    set -- "$@" --label-regex "^($chosen)\$"
fi
code=0
ctest "$@" || code=$?
python3 -B tests/support/slowest.py "build/$preset" "$began"
echo "$preset: $((built - began)) s of building, $(($(date +%s) - built)) s of tests"
exit $code
