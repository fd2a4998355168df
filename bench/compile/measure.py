#!/usr/bin/env python3
"""What including frugal costs: the compiler's own time for each of programs/, over that for `#include <Eigen/Core>`.

    sh bench/run.sh compile        CXX names the compiler (g++)

Parsing, compiling and writing an object with -O2, for the plain instruction set: processor time, so that other load disturbs little.
All programs take turns; the figures are ratios of medians over the rounds.
"""
import os
import pathlib
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 3
FLAGS = ["-std=c++20", "-O2", "-c"]
HERE = pathlib.Path(__file__).resolve().parent


def eigen_flags():
    """Where Eigen is: as pkg-config says, else where Debian has it."""
    if shutil.which("pkg-config"):
        said = subprocess.run(["pkg-config", "--cflags-only-I", "eigen3"], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            return said.stdout.split()
    return ["-I/usr/include/eigen3"]


def seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if os.path.basename(compiler[0]) == "ccache":  # what came from a cache cost nothing
        compiler = compiler[1:]
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    programs = sorted((HERE / "programs").glob("*.cpp"))
    times = {program.stem: {"compile": [], "parse": []} for program in programs}
    with tempfile.TemporaryDirectory() as folder:
        common = [*compiler, "-I", str(HERE.parent.parent / "include"), *eigen_flags(), *FLAGS, "-o", os.path.join(folder, "out.o")]
        for _ in range(ROUNDS):
            for program in programs:
                of = times[program.stem]
                of["compile"].append(seconds([*common, str(program)]))
                of["parse"].append(seconds([*common, "-fsyntax-only", str(program)]))
    medians = {name: {what: statistics.median(each) for what, each in of.items()} for name, of in times.items()}
    unit = medians["eigen"]["compile"]
    print(f"{version}, {' '.join(FLAGS)}; seconds of processor time")
    print(f"{'program':12}{'compile':>9}{'parse':>9}{'over Eigen':>12}{'range':>8}")
    for name, of in medians.items():
        spread = (max(times[name]["compile"]) - min(times[name]["compile"])) / of["compile"]
        print(f"{name:12}{of['compile']:9.2f}{of['parse']:9.2f}{of['compile'] / unit:12.2f}{spread:8.0%}")
    for name, of in medians.items():
        if name != "eigen":
            print(f"figure compile.{name}.vs_eigen {of['compile'] / unit:.3g}")


if __name__ == "__main__":
    sys.exit(main())
