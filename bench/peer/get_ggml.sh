#!/bin/sh
# Fetches ggml (as the vendored source of the PyPI package llama-cpp-python) and builds its CPU backend for this machine.
#   sh bench/peer/get_ggml.sh FOLDER
# Prints the list of libraries for FRUGAL_PEER. What is there already is kept. FRUGAL_PEER_VERSION chooses another version.
# Threads are ggml's own, not OpenMP's: those can be told to pause while the other side is timed.
set -eu
version=${FRUGAL_PEER_VERSION:-0.3.36}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "${1:?the folder to put it in}"
folder=$(CDPATH='' cd -- "$1" && pwd)
libraries="$folder/build/bin/libggml-base.so:$folder/build/bin/libggml-cpu.so:$folder/build/bin/libggml.so"
built="$folder/built-$version-own-threads"
if [ ! -e "$built" ]; then
    source="$folder/llama_cpp_python-$version/vendor/llama.cpp"
    log="$folder/log.txt"
    if [ ! -d "$source" ]; then
        python3 -m pip download -q --no-deps --no-binary llama-cpp-python -d "$folder" "llama-cpp-python==$version" \
            >"$log" 2>&1 || {
            cat "$log" >&2
            exit 1
        }
        tar -C "$folder" -xzf "$folder/llama_cpp_python-$version.tar.gz"
        rm -f "$folder/llama_cpp_python-$version.tar.gz"
    fi
    # g++ 12 and older move stores past the tile configuration that ggml loads: its AMX products then fault.
    flags=
    if [ "$(g++ -dumpversion | cut -d. -f1)" -le 12 ] && grep -qw amx_tile /proc/cpuinfo; then
        flags="-include $here/tile_configuration.h"
    fi
    {
        cmake -S "$source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_OPENMP=OFF \
            -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF \
            -DCMAKE_CXX_FLAGS="$flags" && cmake --build "$folder/build" --target ggml ggml-cpu
    } >>"$log" 2>&1 || {
        tail -20 "$log" >&2
        exit 1
    }
    touch "$built"
fi
echo "$libraries"
