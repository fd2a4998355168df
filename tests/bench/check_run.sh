#!/bin/sh
# What bench/run.sh says without building anything: its groups are those that exist, an unknown one is an error.
set -eu
bench=$1
cd /
listed=$(sh "$bench/run.sh" | sed -n 's/^groups: //p' | tr ' ' '\n' | sort)
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
echo "run.sh: passed"
