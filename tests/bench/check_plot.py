#!/usr/bin/env python3
"""plot.py draws a small JSON: the right bars with the right lengths, the same bytes every time, errors for bad input."""
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

here = os.path.dirname(os.path.abspath(__file__))
plot = os.path.join(here, "..", "..", "bench", "plot.py")


def run(*arguments):
    return subprocess.run([sys.executable, plot, *arguments], capture_output=True, text=True)


def main():
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("matplotlib is not installed: skipped")
        sys.exit(77)
    source = os.path.join(here, "small.json")
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "out.svg")
        done = run(source, target)
        assert done.returncode == 0, done.stderr
        with open(target, encoding="utf-8") as file:
            drawing = file.read()
        root = xml.etree.ElementTree.fromstring(drawing)
        assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
        texts = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
        for wanted in ("q4_k avx2", "f32 baseline", "q6_k avx2", "matmul  64x64x1", "embedding  1000x64x8",
                       "of the read bandwidth", "of the arithmetic peak", "limit", "30%", "50%", "15%", "75%"):
            assert wanted in texts, (wanted, sorted(texts))
        assert "wrong avx2" not in texts

        # The lengths of the bars of one panel are as their medians (0.3 and 0.5; 0.15 and 0.2).
        sys.path.insert(0, os.path.dirname(plot))
        import plot as module
        panels = module.read([source], "")
        assert panels[("matmul", "64x64x1")][("q4_k", "avx2")]["of_bandwidth"] == [0.25, 0.35]
        # Bars stand in the order of registration, whatever order the benchmarks ran in.
        mixed = os.path.join(folder, "mixed.json")
        with open(mixed, "w", encoding="utf-8") as file:
            json.dump({"context": {"threads": "2", "avx2_peak_gigaflops": "90.5"}, "benchmarks": [
                {"name": f"op/f{i}/avx2/1", "family_index": i, "of_peak": 0.1} for i in (2, 0, 1)]}, file)
        assert [kind for kind, _ in module.read([mixed], "")[("op", "1")]] == ["f0", "f1", "f2"]
        assert module.describe([mixed, source]) == "2 threads, avx2 90.5 Gflop/s"
        widths = []
        for path in re.findall(r'<path d="(M [^"]*?) ?z', drawing.replace("\n", " ")):
            numbers = [float(x) for x in re.findall(r"[-0-9.]+", path)]
            if len(numbers) == 8:
                widths.append(max(numbers[0::2]) - min(numbers[0::2]))
        expected = [0.3, 0.5, 0.15, 0.2]
        assert any(all(abs(widths[i + k] / widths[i] - expected[k] / expected[0]) < 1e-3 for k in range(4))
                   for i in range(len(widths) - 3) if widths[i] > 0), widths

        again = os.path.join(folder, "again.svg")
        assert run(source, again).returncode == 0
        with open(again, encoding="utf-8") as file:
            assert file.read() == drawing

        # The arms of a comparison: a bar of three parts for each, in order.
        arms = os.path.join(folder, "arms.json")
        with open(arms, "w", encoding="utf-8") as file:
            json.dump({"context": {"threads": "1"}, "load_skip": [
                {"arm": name, "load_ms": load, "device_ms": 4.0, "rest_ms": 1.0} for name, load in
                (("reload_always", 8.0), ("skip_resident", 0.5))]}, file)
        assert run(arms, target).returncode == 0
        with open(target, encoding="utf-8") as file:
            arms_drawing = file.read()
        for wanted in ("reload_always", "skip_resident", "13 ms, 8 of them loading", "5.5 ms, 0.5 of them loading"):
            assert wanted in arms_drawing, wanted

        # Growth with the context: the lines that have points, and the lengths under them.
        growth = os.path.join(folder, "growth.json")
        point = {"tokens": 1, "ours_ms": 2.0, "ggml_ms": 0.0}
        with open(growth, "w", encoding="utf-8") as file:
            json.dump({"growth": {"decode": [{"length": 32768, **point}, {"length": 1 << 20, **point}], "token": []}}, file)
        assert run(growth, target).returncode == 0
        with open(target, encoding="utf-8") as file:
            drawing = file.read()
        assert "frugal, one QSA layer" in drawing and "ggml's operators" not in drawing and "48 layers" not in drawing
        assert ">32k<" in drawing and ">1M<" in drawing
        with open(growth, "w", encoding="utf-8") as file:
            json.dump({"shared_inputs": [{"policy": policy, "bias": bias, "length": 32768, "tokens": tokens, "ms": 1.0}
                                         for policy, bias in (("shared", "bias_block"), ("incremental", "bias_none"))
                                         for tokens in (1, 512)]}, file)
        assert run(growth, target).returncode == 0
        with open(target, encoding="utf-8") as file:
            drawing = file.read()
        for wanted in ("shared, bias a block", "incremental, no bias", "a decoded token", "a batch of 512 tokens"):
            assert wanted in drawing, wanted

        # Operators beside a peer: a drawing, and a table beside it.
        ops = os.path.join(folder, "ops.json")
        row = {"operator": "matvec", "format": "q4_k", "shape": "64x32", "isa": "avx2", "threads": 1, "ours_us": 50.0,
               "ggml_us": 100.0, "ggml_by": "CPU_REPACK", "limit": "reading memory", "limit_us": 40.0, "error": 0.001,
               "ggml_error": 0.002, "bytes": 400e3, "flops": 0.0}
        alone = {**row, "operator": "norm", "threads": 2, "ggml_us": 0, "ggml_by": "", "limit": "", "limit_us": 0,
                 "token_share": 0.012, "token": "Qwen3.5"}
        with open(ops, "w", encoding="utf-8") as file:
            batch = [{**row, "operator": "batch", "shape": f"64x32x{tokens}", "ours_us": us}
                     for tokens, us in ((1, 50.0), (16, 100.0))]
            json.dump({"context": {"read_gigabytes_per_second": "9", "read_gigabytes_per_second_2": "15"},
                       "ops": {"rows": [row, alone, *batch], "notes": ["something"]}}, file)
        assert run(ops, target).returncode == 0
        with open(target, encoding="utf-8") as file:
            drawing = file.read()
        for wanted in (">2<", ">80%<", "matvec q4_k 64x32", "reads 9 GB/s, 15 with two threads"):
            assert wanted in drawing, wanted
        assert "norm" not in drawing  # neither a peer nor a limit to draw
        with open(os.path.join(folder, "out.md"), encoding="utf-8") as file:
            table = file.read().splitlines()
        assert table[2] == ("| matvec q4_k | 64x32 | 1 | avx2 | memory | 50 µs | 100 µs | CPU_REPACK | 2 | reading memory, 10 GB/s | "
                            "80 %, 40 % | – | 1.0e-03, 2.0e-03 |"), table[2]
        assert table[3] == "| norm q4_k | 64x32 | 2 | avx2 | cache | 50 µs | – | – | – | – | – | 1.2 %, Qwen3.5 | 1.0e-03 |", table[3]
        assert table[2].count("|") == table[0].count("|") == table[1].count("|")
        assert table[-1] == "Left out, its result is wrong: something"
        assert "batch" not in drawing
        with open(os.path.join(folder, "out_batch.svg"), encoding="utf-8") as file:
            drawing = file.read()
        for wanted in ("frugal, avx2, 1 thread", "ggml's best, 1 thread", "A product 64x32 in q4_k", "tokens in the batch"):
            assert wanted in drawing, wanted

        # Whole models: a drawing for each curve that has points, and no other.
        model = os.path.join(folder, "model.json")
        point = {"model": "small", "layers": 4}
        places = {"context": (0, 8192), "batch": (1, 16), "threads": ()}
        with open(model, "w", encoding="utf-8") as file:
            json.dump({"model": {curve: [{**point, "phase": phase, "at": at, "ours": 20.0 + at, "llamacpp": theirs}
                                         for at in ats for phase, theirs in (("decode", 10.0), ("prefill", 0))]
                                 for curve, ats in places.items()}}, file)
        done = run(model, target)
        assert done.stdout.splitlines() == [f"drawn: {os.path.join(folder, name)}" for name in ("out_context.svg", "out_batch.svg")]
        assert not os.path.exists(os.path.join(folder, "out_threads.svg"))
        with open(os.path.join(folder, "out_context.svg"), encoding="utf-8") as file:
            drawing = file.read()
        for wanted in ("decode, tokens a second", "prefill, tokens a second", "frugal, small, 4 layers",
                       "llama.cpp, small, 4 layers", ">0<", ">8k<"):
            assert wanted in drawing, wanted
        with open(os.path.join(folder, "out_batch.svg"), encoding="utf-8") as file:
            drawing = file.read()
        assert "prefill" not in drawing and ">16<" in drawing and "sequences decoded at once" in drawing
        import plot_model
        points = [{**point, "phase": "decode", "at": 2, "ours": 3.0, "llamacpp": 0}]
        assert plot_model.lines(points, "decode") == {("small, 4 layers", "ours"): [(2, 3.0)]}

        assert run(source, target, "--filter", "embedding").returncode == 0
        with open(target, encoding="utf-8") as file:
            assert "q4_k" not in file.read()
        broken = os.path.join(folder, "broken.json")
        with open(broken, "w", encoding="utf-8") as file:
            file.write('{"benchmarks": [{"name": "no_slashes"}]}')
        for bad in ((source, target, "--filter", "nothing"), (os.path.join(folder, "absent.json"), target), (broken, target),
                    (source,), (source, target, "--filter", "(")):
            done = run(*bad)
            assert done.returncode != 0 and "Traceback" not in done.stderr, (bad, done.stderr)
    print("plot.py: passed")


main()
