"""What the script-driven tests share: compiling many small sources at once, and reporting."""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = SOURCE / "include"
VENDOR = ("cuda_runtime.h", "cuda.h", "cublasLt.h", "xrt/")
VENDOR_DIRECTORIES = ("device/cuda/", "device/xrt/")
# Headers of the standard library and of the system.
SYSTEM = re.compile(r"\w+$|sys/|(cpuid|fcntl|immintrin|math|sched|unistd)\.h$")


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--compiler", action="append", default=[], help="C++ compiler; may be given more than once")
    parser.add_argument("--flags", default="", help="flags for every compilation, separated by blanks")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--self-test", action="store_true", help="prove that the check finds planted faults")
    return parser


def compilers(wanted):
    """The existing ones among `wanted`, or else gcc 12 and clang 14 by their usual names."""
    names = wanted or [("g++-12", "g++"), ("clang++-14", "clang++")]
    found = []
    for name in names:
        for candidate in (name,) if isinstance(name, str) else name:
            path = shutil.which(candidate)
            if path:
                found.append(path)
                break
    if not found:
        sys.exit("no C++ compiler found")
    return found


def run(command, **options):
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, **options)


def compile_text(compiler, text, flags, output=None):
    """Compiles source text from standard input; syntax only unless `output` names an object."""
    command = [compiler, "-std=c++20", "-x", "c++", *flags]
    command += ["-c", "-o", output] if output else ["-fsyntax-only"]
    return subprocess.run([str(part) for part in command] + ["-"], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")


def prepare_standard(include, compiler, flags, build):
    """Flags that bring in the standard headers that the library uses, precompiled with these flags; none if that fails."""
    used = set()
    for header in headers(include):
        used.update(re.findall(r"^#include <(\w+)>$", (pathlib.Path(include) / header).read_text(), re.MULTILINE))
    clang = "clang" in pathlib.Path(compiler).name
    source = pathlib.Path(build) / f"standard_{pathlib.Path(compiler).name}.hpp"
    target = source.with_suffix(".hpp.pch" if clang else ".hpp.gch")
    source.write_text("".join(f"#include <{header}>\n" for header in sorted(used)))
    done = run([compiler, "-std=c++20", *flags, "-x", "c++-header", source, "-o", target])
    if done.returncode != 0:
        return []
    return ["-include-pch", target] if clang else ["-include", source]


def fan_out(work, items, jobs):
    """work(item) for all items, `jobs` at a time; results in the order of the items."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(work, items))


def headers(include=INCLUDE):
    """Paths of all public headers, relative to `include`."""
    return sorted(str(path.relative_to(include)) for path in pathlib.Path(include).rglob("*.hpp"))


def outer_headers(include, names):
    """Headers of others that these and what they include name in angle brackets; name of a header -> set."""
    def of(name, seen):
        seen.add(name)
        text = (pathlib.Path(include) / name).read_text()
        found = set(re.findall(r"^#include <([^>]+)>", text, re.MULTILINE))
        for inner in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            if inner not in seen and (pathlib.Path(include) / inner).is_file():
                found |= of(inner, seen)
        return found
    return {name: of(name, set()) for name in names}


def finish(name, checked, failures):
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{name}: {checked} checked, {len(failures)} failed")
    if checked == 0:
        sys.exit(f"{name}: nothing was checked")
    sys.exit(1 if failures else 0)
