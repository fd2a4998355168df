#!/usr/bin/env python3
"""The parts of bench/cuda that need no GPU: without one run.sh says so and fails, plot.py draws what bench_cuda writes, peers.py keeps
what is there.

    check_cuda.py PROGRAM     a program that writes a JSON file as bench_cuda does
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def run(*command, **more):
    return subprocess.run([str(each) for each in command], capture_output=True, text=True, **more)


def without_a_gpu(folder):
    """run.sh on a machine whose nvidia-smi lists no GPU, and on one that has none."""
    smi = folder / "nvidia-smi"
    for text in ("#!/bin/sh\necho 'No devices were found'\nexit 6\n", "#!/bin/sh\necho 'No devices found.'\n"):
        smi.write_text(text)
        smi.chmod(0o755)
        build = folder / "build"
        done = run("sh", BENCH / "cuda" / "run.sh", cwd="/",
                   env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FRUGAL_BENCH_BUILD": str(build)})
        assert done.returncode == 2, done.returncode
        assert done.stderr.startswith("no NVIDIA GPU that this user may use"), done.stderr
        assert done.stdout == "" and not build.exists(), "something was done without a GPU"


def drawn(folder, program):
    made = folder / "cuda.json"
    done = run(program, made)
    assert done.returncode == 0, done.returncode
    before = json.loads(made.read_text())
    fractions = [(row.get("of_bandwidth"), row.get("of_peak")) for row in before["benchmarks"]]
    assert fractions == [(0.9, None), (None, 0.5), (0.25, None)], fractions
    # A PyTorch without CUDA is as good as none.
    done = run(sys.executable, "-B", BENCH / "cuda" / "peers.py", made, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0 and "PyTorch" in done.stdout, (done.stdout, done.stderr)
    assert json.loads(made.read_text()) == before
    done = run(sys.executable, "-B", BENCH / "plot.py", made, folder / "cuda.svg")
    if "No module named 'matplotlib'" in done.stderr:
        return "not drawn: no matplotlib"
    assert done.returncode == 0, done.stderr
    drawing = (folder / "cuda.svg").read_text()
    for wanted in ("matmul  4096x4096x1", "q4_k bf16_tiles", "qsa  32768", ">90%<", ">50%<", ">25%<",
                   "A GPU, compute capability 9.0, limits: reads 4e+03 GB/s, cublas_bf16 8e+05 Gflop/s"):
        assert wanted in drawing, wanted
    return "drawn"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        without_a_gpu(folder)
        print("bench/cuda: passed,", drawn(folder, sys.argv[1]))


main()
