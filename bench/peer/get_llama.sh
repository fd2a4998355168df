#!/bin/sh
# As get_ggml.sh, with llama.cpp's own library besides, for whole models.
#   sh bench/peer/get_llama.sh FOLDER
# Prints the list of libraries for FRUGAL_PEER_LLAMA.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
libraries=$(sh "$here/get_ggml.sh" "$1")
folder=$(CDPATH='' cd -- "$1" && pwd)
cmake --build "$folder/build" --target llama >>"$folder/log.txt" 2>&1 || {
    tail -20 "$folder/log.txt" >&2
    exit 1
}
echo "$libraries:$folder/build/bin/libllama.so"
