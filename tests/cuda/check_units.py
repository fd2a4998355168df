#!/usr/bin/env python3
"""A unit of kernels/cuda compiles with nvcc for every architecture without a warning, and no kernel keeps registers in memory.

What ptxas says of each kernel is read: a stack frame or spilled registers in a kernel that computes are failures. Trigonometric functions
reduce large arguments in a table on the stack; the kernels that call them are named in MAY_HAVE_A_STACK.
"""
import argparse
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

HOST_WARNINGS = "-Wall,-Wextra,-Wconversion,-Wshadow,-Werror"  # not -Wpedantic: nvcc's own output is not pedantic
MAY_HAVE_A_STACK = ("make_rope_angles",)
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+\w*)'")
REGISTERS = re.compile(r"Used (\d+) registers")


def readable(kernel):
    """The longest names within a mangled one: enough to know the kernel by."""
    names, at = [], 0
    while match := re.compile(r"\d+").search(kernel, at):
        end = match.end() + int(match.group())
        name = kernel[match.end():end]
        if len(name) == int(match.group()) and re.fullmatch(r"[A-Za-z_]\w+", name):
            names.append(name)
            at = end
        else:
            at = match.end()
    return "::".join(names[2:8]) if len(names) > 2 else kernel


def read(report):
    """(architecture, kernel, registers, stack, spilled) of every kernel in what ptxas wrote."""
    found, kernel = [], None
    for line in report.splitlines():
        if match := KERNEL.search(line):
            kernel = [match.group(2), match.group(1), 0, 0, 0]
            found.append(kernel)
        elif kernel and (match := FRAME.search(line)):
            kernel[3] = max(kernel[3], int(match.group(1)))
            kernel[4] = max(kernel[4], int(match.group(2)) + int(match.group(3)))
        elif kernel and (match := REGISTERS.search(line)):
            kernel[2] = int(match.group(1))
    return found


def judge(kernels):
    failures = []
    for arch, kernel, _, stack, spilled in kernels:
        if spilled or (stack and not any(name in kernel for name in MAY_HAVE_A_STACK)):
            failures.append(f"{arch} {readable(kernel)}: {stack} bytes of stack, {spilled} bytes spilled")
    return failures


def check(nvcc, unit, architectures):
    command = [nvcc, "-std=c++20", "-O3", "-I", checks.INCLUDE, "-Werror", "all-warnings", "-Xcompiler",
               HOST_WARNINGS, "-Xptxas", "-v", "-c", unit]
    for arch in architectures:
        command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    with tempfile.TemporaryDirectory() as folder:
        done = checks.run([*command, "-o", pathlib.Path(folder) / "unit.o"])
    if done.returncode != 0:
        return 1, [f"{unit}:\n{done.stdout}"]
    kernels = read(done.stdout)
    missing = [arch for arch in architectures if not any(k[0] == f"sm_{arch}" for k in kernels)]
    most = max((k[2] for k in kernels), default=0)
    print(f"{pathlib.Path(unit).name}: {len(kernels)} kernels for {' '.join(architectures)}, at most {most} registers")
    return len(kernels), judge(kernels) + [f"{unit}: no kernel for sm_{arch}" for arch in missing]


SAMPLE = """ptxas info    : Compiling entry function '_ZN6frugal4v0_13ops4cuda11norm_groupsILi32EEEvPKf' for 'sm_90'
ptxas info    : Function properties for _ZN6frugal4v0_13ops4cuda11norm_groupsILi32EEEvPKf
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


def self_test():
    failures = []
    clean = read(SAMPLE.format(stack=0, stores=0, loads=0))
    if clean != [["sm_90", "_ZN6frugal4v0_13ops4cuda11norm_groupsILi32EEEvPKf", 40, 0, 0]] or judge(clean):
        failures.append(f"a clean kernel is read as {clean}")
    for planted in ({"stack": 8, "stores": 0, "loads": 0}, {"stack": 0, "stores": 4, "loads": 0}, {"stack": 0, "stores": 0, "loads": 4}):
        if not judge(read(SAMPLE.format(**planted))):
            failures.append(f"planted fault not found: {planted}")
    if judge(read(SAMPLE.replace("11norm_groups", "16make_rope_angles").format(stack=32, stores=0, loads=0))):
        failures.append("a stack that is allowed is reported")
    if "norm_groups" not in readable(clean[0][1]):
        failures.append(f"unreadable: {readable(clean[0][1])}")
    checks.finish("units self-test", 5, failures)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc")
    parser.add_argument("--architectures", default="80;90;120")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("unit", nargs="?")
    options = parser.parse_args()
    if options.self_test:
        self_test()
    checks.finish("units", *check(options.nvcc, options.unit, options.architectures.split(";")))


main()
