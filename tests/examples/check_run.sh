#!/bin/sh
# What examples/run.sh does without a compiler: help, which example it builds and with which words it runs it.
set -eu
examples=$1 tools=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
FAKE_LOG=$folder/log
FRUGAL_EXAMPLE_BUILD="$folder/a build"
PATH=$tools:$PATH
export FAKE_LOG FRUGAL_EXAMPLE_BUILD PATH
cd /

# expect CODE PATTERN WORD…: the script's exit status, and what it prints.
expect() {
    wanted=$1 pattern=$2 code=0
    shift 2
    said=$(sh "$examples/run.sh" "$@" 2>&1) || code=$?
    [ "$code" = "$wanted" ] || {
        echo "run.sh $*: ends with $code, not $wanted: $said" >&2
        exit 1
    }
    # The pattern is one.
    # shellcheck disable=SC2254
    case $said in
        $pattern) ;;
        *)
            echo "run.sh $*: says: $said" >&2
            exit 1
            ;;
    esac
}

expect 0 '*run.sh NAME*examples:*flash_serve*npu_generate*' --help
expect 2 '*no_such_example*generate*' no_such_example
[ ! -e "$FAKE_LOG" ] || {
    echo "help has built: $(cat "$FAKE_LOG")" >&2
    exit 1
}
expect 0 '*building generate, once*generate:7:--prompt In the beginning --n-predict*'
expect 0 'generate:2:--prompt two words
*' --prompt 'two words'
expect 0 '*building perplexity, once*perplexity:1:--help
*' perplexity --help
expect 0 '*building npu_generate*npu_generate:0:
*' npu_generate
expect 0 '*building matmul*matmul:0:
*' matmul
FAKE_CODE=2
export FAKE_CODE
expect 2 'matmul:*' matmul
echo "run.sh: passed"
