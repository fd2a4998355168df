#!/usr/bin/env python3
"""No function of ours is common to two files of one program that were compiled with different -march.

The linker keeps one of all functions of a name: a baseline file would get AVX2 code, and die on a machine without. What a consumer's
flags compile carries them in its name (core/flags.hpp) or is forced inline. Two files are compiled for two machines each: all headers,
with every inline function kept (templates show only where they are used), and a program that loads and runs a model, with compiled
kernels and without. What they call elsewhere (kernels) has the same name in both.

Beyond us: functions of the standard library for types that are not ours, std::vector<float>'s say.
"""
import pathlib
import re
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

MACHINES = ["x86-64", "x86-64-v3"]
OURS = re.compile(r"_Z(TW|GV|Z)*N[KVrRO]*6frugal")
# Constructors that a plain struct has by itself, which are stores of constants: only builds that inline nothing have them apart.
IMPLICIT = re.compile(r"\b(\w+)(<[^()]*>)?::\1\(\)$")
INLINE = "[[gnu::always_inline]] inline"


def prepare(source, target):
    """A copy of the headers whose functions that are forced inline are not emitted besides, as -fkeep-inline-functions asks."""
    shutil.copytree(source, target)
    config = target / "frugal" / "core" / "config.hpp"
    text = config.read_text()
    if INLINE not in text:
        sys.exit(f"{config} defines FRUGAL_ALWAYS_INLINE otherwise than this check knows")
    config.write_text(text.replace(INLINE, "[[gnu::always_inline, gnu::gnu_inline]] inline"))


def symbols(nm, compiler, text, flags, machine, build):
    """Names of ours in an object: weak functions, mangled -> readable, and those that it leaves to others."""
    output = pathlib.Path(build) / f"{machine}.o"
    done = checks.compile_text(compiler, text, ["-O0", f"-march={machine}", *flags], output)
    if done.returncode != 0:
        sys.exit(done.stdout)
    listed = [checks.run([nm, "--no-sort", *how, output]).stdout.splitlines() for how in ([], ["--demangle"])]
    weak, undefined = {}, set()
    for line, readable in zip(*listed):
        kind, name = line.split()[-2:]
        if OURS.match(name) and kind == "W":
            weak[name] = readable.split(f" {kind} ", 1)[1]
        elif OURS.match(name) and kind == "U":
            undefined.add(name)
    return weak, undefined


def check(nm, compiler, include, sources, jobs, build):
    """sources: name -> (text, flags)."""
    failures, checked = [], 0
    tasks = [(name, machine) for name in sources for machine in MACHINES]
    def one(task):
        text, flags = sources[task[0]]
        folder = pathlib.Path(build) / f"{task[0]} {task[1]}"
        folder.mkdir()
        return symbols(nm, compiler, text, ["-I", include, *flags], task[1], folder)
    found = dict(zip(tasks, checks.fan_out(one, tasks, jobs)))
    for name in sources:
        (weak, undefined), (other_weak, other_undefined) = (found[name, machine] for machine in MACHINES)
        checked += len(weak)
        failures += [f"{name}: in both: {weak[mangled]}" for mangled in sorted(set(weak) & set(other_weak))
                     if not IMPLICIT.search(weak[mangled])]
        failures += [f"{name}: called elsewhere by one name only: {symbol}" for symbol in sorted(undefined ^ other_undefined)]
    return checked, failures


def self_test(options, compiler):
    flags = (checks.INCLUDE / "frugal/core/flags.hpp").read_text().replace("#pragma once", "")
    head = f"#pragma once\n#define FRUGAL_ALWAYS_INLINE {INLINE}\n{flags}"
    body = "namespace frugal {\n%s\n}\n"
    variants = {
        "nothing": "struct FRUGAL_FLAGGED a { int x = 1; int f() { return x; } }; inline a g() { return {}; }\n"
                   "FRUGAL_FLAGGED inline int h() { auto l = [](int x) { return x; }; return l(2); }\n"
                   "FRUGAL_ALWAYS_INLINE int i() { return 3; }",
        "a function": "inline int h() { return 2; }",
        "a member": "struct a { int x; int f() { return x; } };",
        "a lambda": "struct a { int x; }; inline int h(a) { auto l = [](int x) { return x; }; return l(2); }",
    }
    failures = []
    for name, text in variants.items():
        with tempfile.TemporaryDirectory() as folder:
            include = pathlib.Path(folder) / "include"
            (include / "frugal/core").mkdir(parents=True)
            (include / "frugal/core/config.hpp").write_text(head + body % text)
            prepare(include, pathlib.Path(folder) / "copy")
            sources = {"all": ('#include "frugal/core/config.hpp"\n', ["-fkeep-inline-functions"])}
            checked, found = check(options.nm, compiler, pathlib.Path(folder) / "copy", sources, options.jobs, folder)
            if bool(found) != (name != "nothing") or checked == 0:
                failures.append(f"planted fault `{name}`: {found}, {checked} symbols")
    checks.finish("odr flags self-test", len(variants), failures)


def main():
    parser = checks.arguments(__doc__)
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()
    compilers = [name for name in checks.compilers(options.compiler) if "clang" not in pathlib.Path(name).name]
    if not compilers:
        print("skipped: only gcc keeps all inline functions")
        return
    if options.self_test:
        self_test(options, compilers[0])
    with tempfile.TemporaryDirectory() as build:
        include = pathlib.Path(build) / "include"
        prepare(checks.INCLUDE, include)
        plain = [name for name in checks.headers() if not re.search(r"cuda|xrt|eigen|pre_tokenizer|nfc", name)]
        everything = "".join(f'#include "{name}"\n' for name in plain)
        user = pathlib.Path(__file__).with_name("user.cpp").read_text()
        sources = {
            "all headers": (everything, ["-fkeep-inline-functions", "-DFRUGAL_EXTERN_KERNELS"]),
            "a program with compiled kernels": (user, ["-DUSER=user", "-DFRUGAL_EXTERN_KERNELS"]),
            "a header-only program": (user, ["-DUSER=user"]),
        }
        checks.finish("odr flags", *check(options.nm, compilers[0], include, sources, options.jobs, build))


main()
