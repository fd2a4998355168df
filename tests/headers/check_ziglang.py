#!/usr/bin/env python3
"""N05: clang of today, with libc++ and as C++23, compiles all headers that need no other library, for x86-64 with AVX2 and AVX-512 and
for 64-bit ARM with musl; and a program that runs a model, for the first.

The compiler is that of Python's package ziglang; --python names an interpreter that has it. Without one the check is skipped.
"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

TARGETS = ["x86_64-linux-musl -mcpu=x86_64_v3", "x86_64-linux-musl -mcpu=x86_64_v4+avx512vnni", "aarch64-linux-musl"]


def check(python, include, sources, flags, jobs):
    """sources: name -> (text, targets)."""
    with tempfile.TemporaryDirectory() as build:
        def one(task):
            name, target = task
            source = pathlib.Path(build) / f"{abs(hash(task))}.cpp"
            source.write_text(sources[name][0])
            # Not -fsyntax-only: with it this compiler builds its own libraries first, for a minute.
            return checks.run([python, "-m", "ziglang", "c++", "-std=c++23", "-target", *target.split(), *flags, "-I", include,
                               "-c", source, "-o", source.with_suffix(".o")])
        tasks = [(name, target) for name in sources for target in sources[name][1]]
        outcomes = checks.fan_out(one, tasks, jobs)
    return len(tasks), [f"{name} for {target}:\n{done.stdout[:4000]}" for (name, target), done in zip(tasks, outcomes)
                        if done.returncode != 0]


def main():
    parser = checks.arguments(__doc__)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    found = checks.run([options.python, "-m", "ziglang", "c++", "--version"]) if options.python else None
    if found is None or found.returncode != 0:
        print("skipped: no ziglang; python3 -m venv build/ziglang && build/ziglang/bin/pip install ziglang")
        return
    print(found.stdout.splitlines()[0])
    # What this compiler adds by itself, debug information and checks at run time, is twice the work of the rest.
    flags = [flag for flag in options.flags.split() if flag.startswith("-W")] + ["-g0", "-fno-sanitize=undefined"]
    if options.self_test:
        with tempfile.TemporaryDirectory() as folder:
            text = "typedef short s __attribute__((vector_size(16)));\nauto f(s x) { return __builtin_ia32_vcvtph2ps256(x); }\n"
            fault = {"gone": (text, TARGETS[:1])}
            _, failures = check(options.python, folder, fault, flags, options.jobs)
        checks.finish("ziglang self-test", 1, [] if failures else ["a builtin that is gone was not noticed"])
    outer = checks.outer_headers(checks.INCLUDE, checks.headers())
    plain = [name for name in outer if all(checks.SYSTEM.match(other) for other in outer[name])]
    user = '#define USER user\n' + (pathlib.Path(__file__).resolve().parents[1] / "odr" / "user.cpp").read_text()
    sources = {"all headers": ("".join(f'#include "{name}"\n' for name in plain), TARGETS), "a program": (user, TARGETS[:1])}
    checks.finish("ziglang", *check(options.python, checks.INCLUDE, sources, flags, options.jobs))


main()
