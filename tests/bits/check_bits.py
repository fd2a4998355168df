#!/usr/bin/env python3
"""The bits of results depend on the instruction set alone: not on the compiler, its tuning, optimisation or contraction, nor on
flags beyond what the set needs.

bits.cpp prints a hash of every operator's results, and fails where a row's bits depend on the rest of its call. It is compiled
in the ways below; what is printed must be the same for all ways of one instruction set.
"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = ["-march=x86-64-v4", "-mavx512vnni"]
# Instruction set -> compiler -> flags of each way.
WAYS = {
    "baseline": {
        "g++": [["-O2"], ["-O3", "-march=x86-64-v3"]],
        "clang++": [["-O3", "-march=x86-64-v3", "-ffp-contract=fast"]],
    },
    "avx2": {
        "g++": [AVX2 + ["-O3", "-mtune=znver3"], AVX2 + ["-O1", "-mtune=intel"], AVX2 + ["-O2", "-ffp-contract=off"]],
        "clang++": [AVX2 + ["-O3", "-ffp-contract=fast"], AVX2 + ["-O1", "-ffp-contract=off"]],
    },
    "avx512": {
        "g++": [AVX512 + ["-O3", "-mtune=znver3"]],
        "clang++": [AVX512 + ["-O2", "-ffp-contract=off"]],
    },
}


def family(compiler):
    return "clang++" if "clang" in pathlib.Path(compiler).name else "g++"


def ways_of(compilers, isas):
    """(instruction set, compiler, flags) of every way that can be tried here."""
    return [(isa, compiler, flags) for isa in isas for compiler in compilers for flags in WAYS[isa].get(family(compiler), [])]


def look(source, ways, flags, jobs, folder):
    """Compiles and runs each way. Returns the number of programs and what is wrong."""
    def one(item):
        index, (isa, compiler, own) = item
        name = f"{isa}, {pathlib.Path(compiler).name} {' '.join(own)}"
        program = pathlib.Path(folder) / f"bits_{index}"
        done = checks.run([compiler, "-std=c++20", *flags, *own, f"-DFRUGAL_BITS_ISA={isa}", source, "-o", program])
        if done.returncode != 0:
            return isa, name, None, f"{name}: {done.stdout[-2000:]}"
        done = checks.run([program])
        return isa, name, done.stdout, None if done.returncode == 0 else f"{name}: {done.stdout}"

    failures, first = [], {}
    for isa, name, printed, wrong in checks.fan_out(one, list(enumerate(ways)), jobs):
        if wrong:
            failures.append(wrong)
            continue
        print(name)
        other, expected = first.setdefault(isa, (name, printed))
        if printed != expected:
            lines = [line for line in printed.splitlines() if line not in expected.splitlines()]
            failures.append(f"{name}: other bits than by {other}: {'; '.join(lines)}")
    return len(ways), failures


def self_test(options):
    """A sum of products left to the compiler is found, one that says how it is rounded passes."""
    text = """#include <cstdio>
float table[3] = {0.1f, 0.1f, -0.01f};
int main() { std::printf("%a\\n", double(SUM)); }
"""
    failures = []
    compilers = [c for c in checks.compilers(options.compiler) if family(c) == "g++"]
    ways = [("avx2", c, AVX2 + ["-O2", f"-ffp-contract={way}"]) for c in compilers for way in ("off", "fast")]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "planted.cpp"
        for expression, wrong in (("table[0] * table[1] + table[2]", True),
                                  ("__builtin_fmaf(table[0], table[1], table[2])", False)):
            source.write_text(text.replace("SUM", expression))
            _, found = look(source, ways, [], options.jobs, folder)
            if bool(found) != wrong:
                failures.append(f"{expression}: {found}")
    checks.finish("bits self-test", len(ways), failures)


def main():
    parser = checks.arguments(__doc__)
    parser.add_argument("--isas", default="baseline", help="instruction sets of this machine, separated by commas")
    options = parser.parse_args()
    if options.self_test:
        self_test(options)
    ways = ways_of(checks.compilers(options.compiler), [isa for isa in options.isas.split(",") if isa in WAYS])
    source = pathlib.Path(__file__).resolve().parent / "bits.cpp"
    with tempfile.TemporaryDirectory() as folder:
        checks.finish("bits", *look(source, ways, [*options.flags.split(), f"-I{checks.INCLUDE}"], options.jobs, folder))


main()
