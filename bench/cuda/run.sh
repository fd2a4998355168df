#!/bin/sh
# On a machine with an NVIDIA GPU and the CUDA toolkit: builds, runs the tests of the kernels natively, some of them under
# compute-sanitizer, then the benchmarks, and draws them.
#   sh bench/cuda/run.sh
# FRUGAL_CUDA_ARCHITECTURES names the architecture (that of the machine's first GPU), FRUGAL_BENCH_BUILD the build folder (build/cuda).
# There lie cuda.json, cuda.svg and the logs. Prints lines `figure NAME VALUE`; ends with 1 where a test fails or a result is wrong,
# with 2 where there is no GPU or no toolkit.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
. "$root/cmake/packages.sh"
if ! command -v nvcc >/dev/null 2>&1; then PATH="$PATH:/usr/local/cuda/bin"; fi
# Installs nothing before it knows that there is something to run on.
if ! { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }; then
    echo "no NVIDIA GPU that this user may use: nvidia-smi lists none; nothing was built or run" >&2
    exit 2
fi
if ! command -v nvcc >/dev/null 2>&1; then
    echo "no nvcc: install the CUDA toolkit, or put nvcc on PATH; nothing was built or run" >&2
    exit 2
fi
# The package names are words.
# shellcheck disable=SC2086
need $packages_test
check_tools
arch=${FRUGAL_CUDA_ARCHITECTURES:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')}
build=${FRUGAL_BENCH_BUILD:-$root/build/cuda}
mkdir -p "$build"
build=$(CDPATH='' cd -- "$build" && pwd)
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
begin=$(date +%s)
{
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFRUGAL_CUDA_KERNELS=ON "-DFRUGAL_CUDA_ARCHITECTURES=$arch" \
        -DFRUGAL_FEW_ISAS=ON -DFRUGAL_BUILD_EXAMPLES=OFF -DFRUGAL_BUILD_BENCH=OFF &&
        cmake --build "$build" --target cuda_native bench_cuda --parallel "$(jobs)"
} </dev/null >"$build/build.log" 2>&1 || {
    tail -n 100 "$build/build.log" >&2
    echo "could not build; the whole log is $build/build.log" >&2
    exit 1
}
echo "built for sm_$arch in $(($(date +%s) - begin)) s"

failed=
ctest --test-dir "$build" -L '^gpu$' --no-tests=error --output-on-failure || failed="$failed tests"
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck; do
        for name in gated_delta_rule block_select; do
            # A launch that a test wants refused is an error of the runtime, but none of memory.
            if compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 1 "$build/tests/cuda/cuda_native_$name" \
                --test-case='*order of threads*,*every*' >"$build/$tool.$name.log" 2>&1; then
                echo "compute-sanitizer $tool: $name passed"
            else
                tail -n 40 "$build/$tool.$name.log"
                echo "compute-sanitizer $tool: $name FAILED"
                failed="$failed $tool.$name"
            fi
        done
    done
else
    echo "no compute-sanitizer in PATH: not run"
fi
"$build/bench/cuda/bench_cuda" "$build/cuda.json" || failed="$failed bench_cuda"
if [ -s "$build/cuda.json" ]; then
    python3 -B "$root/bench/cuda/peers.py" "$build/cuda.json" || failed="$failed peers"
    # Distributions install matplotlib for their own Python, which need not be the first in the path.
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import matplotlib' 2>/dev/null; then
            "$python" -B "$root/bench/plot.py" "$build/cuda.json" "$build/cuda.svg" || failed="$failed plot"
            break
        fi
    done
fi
echo "all of it took $(($(date +%s) - begin)) s"
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
