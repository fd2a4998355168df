#!/usr/bin/env python3
"""Options of clang that let it reorder sums, and that no macro shows, change no bit of what the headers compute.

gcc's have macros, and core/config.hpp refuses them: tests/compile_fail.
"""
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

OPTIONS = ["-funsafe-math-optimizations", "-fassociative-math -fno-signed-zeros -fno-trapping-math -freciprocal-math"]
PROGRAM = """
#include <cstdint>
#include <cstdio>
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
int main() {
    float x[16], ones[16], y[16];
    for (int i = 0; i < 16; ++i) x[i] = 1.1f * static_cast<float>(i - 11), ones[i] = 1;
    frugal::ops::cpu::swiglu<frugal::isa::native>(x, ones, y, 16);
    for (const float value : y) std::printf("%a ", double(value));
    std::int8_t codes[16];
    std::printf("%a ", double(frugal::ops::encode_block_key(x, 16, codes)));
    for (const int code : codes) std::printf("%d ", code);
}
"""


def check(include, compilers, build):
    failures, checked = [], 0
    for compiler in compilers:
        for isa in ["", "-mavx2 -mfma -mf16c"]:
            printed = {}
            for options in ["", *OPTIONS]:
                program = pathlib.Path(build) / "program"
                done = checks.compile_text(compiler, PROGRAM, ["-O2", "-I", include, *options.split(), *isa.split()],
                                           program.with_suffix(".o"))
                if done.returncode == 0:
                    done = checks.run([compiler, program.with_suffix(".o"), "-o", program])
                if done.returncode != 0:
                    sys.exit(done.stdout)
                printed[options] = checks.run([program]).stdout
            checked += len(OPTIONS)
            failures += [f"{compiler} {isa} {options}:\n{printed[options]}\n{printed['']}"
                         for options in OPTIONS if printed[options] != printed[""] or not printed[""]]
    return checked, failures


def main():
    options = checks.arguments(__doc__).parse_args()
    compilers = [name for name in checks.compilers(options.compiler) if "clang" in pathlib.Path(name).name]
    if not compilers:
        print("skipped: there is no clang here")
        return
    with tempfile.TemporaryDirectory() as build:
        if not options.self_test:
            checks.finish("unsafe math", *check(checks.INCLUDE, compilers, build))
        # Without what turns the reordering off, the check must fail.
        include = pathlib.Path(build) / "include"
        shutil.copytree(checks.INCLUDE, include)
        config = include / "frugal" / "core" / "config.hpp"
        config.write_text(config.read_text().replace('_Pragma("clang fp reassociate(off)")', ""))
        _, found = check(include, compilers, build)
        checks.finish("unsafe math self-test", 1, [] if found else ["reordered sums were not noticed"])


main()
