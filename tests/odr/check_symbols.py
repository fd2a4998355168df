#!/usr/bin/env python3
"""No symbol that the linker may merge is common to kernel objects of different instruction sets.

A template or inline function that stays out of line in two objects built with different flags is merged into one of them,
and a machine without the higher instruction set may run it. So: the weak functions of the baseline objects and those of every
other set must have nothing in common. Constants (tables of a format) are the same whatever the flags, so data may be shared.
"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

def weak_symbols(nm, objects):
    """Demangled names of the weak functions that these objects define, and the number of all symbols."""
    done = checks.run([nm, "--defined-only", "--demangle", *objects])
    if done.returncode != 0:
        sys.exit("\n".join(line for line in done.stdout.splitlines() if line.startswith(nm)))
    symbols, seen = set(), 0
    for line in done.stdout.splitlines():
        fields = line.split(maxsplit=2)
        if len(fields) != 3:
            continue
        seen += 1
        if fields[1] in "Ww":
            symbols.add(fields[2])
    return symbols, seen


def check(nm, groups):
    """groups: name of the instruction set -> its objects."""
    failures, checked = [], 0
    weak = {}
    for isa, objects in groups.items():
        weak[isa], seen = weak_symbols(nm, objects)
        checked += seen
        print(f"{isa}: {len(objects)} objects, {seen} symbols, {len(weak[isa])} weak functions")
    names = list(groups)
    for i, first in enumerate(names):
        for second in names[i + 1:]:
            failures += [f"in {first} and {second}: {symbol}" for symbol in sorted(weak[first] & weak[second])]
    return checked, failures


def self_test(options):
    text = {
        "shared": "template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }\n"
                  "float USER(float x) { return twice(x); }\n",
        "data": "template <class T> struct table { static constexpr int values[4] = {1, 2, 3, 4}; };\n"
                "int USER(int i) { return table<int>::values[i]; }\n",
        "tagged": "struct ISA {}; template <class I, class T> __attribute__((noinline)) T twice(T x) { return x + x; }\n"
                  "template float twice<ISA, float>(float);\n",
    }
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for compiler in checks.compilers(options.compiler):
            for name, source in text.items():
                groups = {}
                for isa, flags in {"baseline": [], "avx2": ["-mavx2"]}.items():
                    output = pathlib.Path(folder) / f"{isa}.o"
                    done = checks.compile_text(compiler, source, ["-O2", f"-DUSER=user_{isa}", f"-DISA={isa}", *flags], output)
                    if done.returncode != 0:
                        sys.exit(done.stdout)
                    groups[isa] = [output]
                _, found = check(options.nm, groups)
                if bool(found) != (name == "shared"):
                    failures.append(f"{name} template with {compiler}: {found}")
    checks.finish("odr self-test", len(text), failures)


def main():
    parser = checks.arguments(__doc__)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objects", action="append", default=[], help="ISA=object|object|…")
    options = parser.parse_args()
    if options.self_test:
        self_test(options)
    groups = {isa: objects.split("|") for isa, objects in (entry.split("=", 1) for entry in options.objects)}
    if len(groups) < 2:
        sys.exit("objects of at least two instruction sets are needed")
    checks.finish("odr", *check(options.nm, groups))


main()
