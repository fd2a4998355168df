#!/usr/bin/env python3
"""Every public header compiles alone and twice in a row, and all of them work in two linked translation units (C69, C71).

Alone with the first compiler given, together with every one; warnings as errors, -fno-exceptions -fno-rtti (but for device/xrt: XRT throws).
N12: nor do they mind the macros of Qt, windows.h and others (macros.hpp), defined before or after the standard headers.
"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

NO_RUNTIME = ["-fno-exceptions", "-fno-rtti"]
NEEDS_RUNTIME = "device/xrt/"
MACROS = pathlib.Path(__file__).resolve().with_name("macros.hpp")


def available(compiler, flags, header):
    """Whether the system headers that this header needs beyond the standard library exist here."""
    probes = {"eigen": "Eigen/Core", "cuda": "cuda_runtime.h", "device/cuda/cublas": "cublasLt.h", "device/xrt/": "xrt/xrt_device.h"}
    for part, needed in probes.items():
        if part in header and checks.compile_text(compiler, f"#include <{needed}>\n", flags + ["-w"]).returncode != 0:
            return False
    return True


def with_macros(include, compiler, flags, usable, jobs):
    """All headers behind the macros of others: with those defined before the standard library's headers, and after them."""
    outer = checks.outer_headers(include, usable)
    # Other libraries than the system's may mind the macros: what needs one takes part only behind it.
    plain = [name for name in usable if all(checks.SYSTEM.match(other) for other in outer[name])]
    others = sorted(set().union(*outer.values()))
    macros = f'#include "{MACROS}"\n'
    def includes(names):
        return "".join(f'#include "{name}"\n' for name in names)
    tasks = {
        "before": (macros + includes(plain), []),
        # Of some libraries other versions have other headers.
        "after": ("".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in others) + macros + includes(usable),
                  ["-DFUNCTION_LIKE", "-DPCRE2_CODE_UNIT_WIDTH=8", "-std=gnu++20"]),  # there linux and unix are macros too
    }
    done = checks.fan_out(lambda task: checks.compile_text(compiler, task[0], [*flags, *task[1]]), tasks.values(), jobs)
    return len(tasks), [f"macros of others defined {name} the standard headers, {compiler}:\n{outcome.stdout}"
                        for name, outcome in zip(tasks, done) if outcome.returncode != 0]


def check(include, compiler_list, base_flags, jobs, build):
    failures, checked = [], 0
    flags = ["-I", str(include), *base_flags]
    all_headers = checks.headers(include)
    usable = {}
    for compiler in compiler_list:
        usable[compiler] = [h for h in all_headers if available(compiler, flags, h)]
        for header in sorted(set(all_headers) - set(usable[compiler])):
            print(f"skipped {header} ({compiler}): its vendor headers are not installed")

    # Alone: nothing was included before. Twice: the second time must add nothing. With the first compiler only, since this takes
    # minutes and the others have the same standard library; what they alone warn of and refuse shows below, where they compile all
    # headers at once.
    compiler = compiler_list[0]
    def alone(header):
        extra = [] if NEEDS_RUNTIME in header else NO_RUNTIME
        return checks.compile_text(compiler, f'#include "{header}"\n#include "{header}"\nint main() {{}}\n', extra + flags)
    for header, done in zip(usable[compiler], checks.fan_out(alone, usable[compiler], jobs)):
        checked += 1
        if done.returncode != 0:
            failures.append(f"{header} alone with {compiler}:\n{done.stdout}")
    if failures:
        return checked, failures
    count, found = with_macros(include, compiler, flags, usable[compiler], jobs)
    checked += count
    if found:
        return checked, found

    # All of them in two objects; each compiler's own pair and, where there are two, one of each.
    def both(task):
        compiler, name, text = task
        output = pathlib.Path(build) / f"{name}.o"
        runtime = [] if NEEDS_RUNTIME in text else NO_RUNTIME
        return output, checks.compile_text(compiler, text, runtime + flags, output)
    tasks = []
    for index, compiler in enumerate(compiler_list):
        includes = "".join(f'#include "{header}"\n' for header in usable[compiler])
        tasks.append((compiler, f"{index}_main", includes + "int other();\nint main() { return other(); }\n"))
        tasks.append((compiler, f"{index}_other", "".join(reversed(includes.splitlines(True))) +
                      "int other();\nint other() { return 0; }\n"))
    objects = {}
    for (compiler, name, _), (output, done) in zip(tasks, checks.fan_out(both, tasks, jobs)):
        checked += 1
        objects[name] = output
        if done.returncode != 0:
            failures.append(f"all headers in one translation unit with {compiler}:\n{done.stdout}")
    if failures:
        return checked, failures
    pairs = [(i, i) for i in range(len(compiler_list))] + ([(0, 1)] if len(compiler_list) > 1 else [])
    for main, other in pairs:
        done = checks.run([compiler_list[main], objects[f"{main}_main"], objects[f"{other}_other"], "-o",
                           pathlib.Path(build) / "two_units"])
        checked += 1
        # Libraries that only a used function would need may be missing; a symbol defined twice may not be.
        if done.returncode != 0 and ("multiple definition" in done.stdout or "undefined reference" not in done.stdout):
            failures.append(f"two translation units, {compiler_list[main]} and {compiler_list[other]}:\n{done.stdout}")
    return checked, failures


def self_test(options):
    good = "#pragma once\nnamespace frugal {\ninline int f() { return 1; }\n}\n"
    faults = {
        "a parameter that is another's macro": "#pragma once\nnamespace frugal {\ninline int f(int slots) { return slots; }\n}\n",
        "a call of min": "#pragma once\n#include <algorithm>\nnamespace frugal {\ninline int f() { return std::min(1, 2); }\n}\n",
        "not self-contained": "#pragma once\nnamespace frugal {\ninline std::size_t f() { return 1; }\n}\n",
        "no include guard": "namespace frugal {\ninline int f() { return 1; }\n}\n",
        "a warning": "#pragma once\nnamespace frugal {\ninline int f(double x) { return x; }\n}\n",
        "throws": "#pragma once\nnamespace frugal {\ninline int f() { throw 1; }\n}\n",
        "uses RTTI": "#pragma once\n#include <typeinfo>\nnamespace frugal {\ninline bool f(int x) { return typeid(x) == typeid(int); }\n}\n",
        "not inline": "#pragma once\nnamespace frugal {\nint f();\nint f() { return 1; }\n}\n",
    }
    failures = []
    for name, text in {"nothing": good, **faults}.items():
        with tempfile.TemporaryDirectory() as folder:
            include = pathlib.Path(folder) / "include"
            (include / "frugal").mkdir(parents=True)
            (include / "frugal" / "one.hpp").write_text(text)
            (include / "frugal" / "two.hpp").write_text(good.replace("f()", "g()"))
            for compiler in checks.compilers(options.compiler):
                _, found = check(include, [compiler], options.flags.split(), options.jobs, folder)
                if bool(found) != (name != "nothing"):
                    failures.append(f"planted fault `{name}` with {compiler}: found {found}")
    checks.finish("headers self-test", len(faults) + 1, failures)


def main():
    options = checks.arguments(__doc__).parse_args()
    if options.self_test:
        self_test(options)
    with tempfile.TemporaryDirectory() as build:
        checked, failures = check(checks.INCLUDE, checks.compilers(options.compiler), options.flags.split(), options.jobs, build)
    checks.finish("headers", checked, failures)


main()
