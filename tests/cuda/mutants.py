#!/usr/bin/env python3
"""Arithmetic faults planted into kernels: a test of each kernel must notice every one.

    mutants.py --list                   the tests
    mutants.py --write FOLDER TEST      copies of the kernels' headers with all faults of this test, each asleep
    mutants.py --run PROGRAM TEST       runs the test compiled with these: it passes, and fails with each fault awake
    mutants.py --self-test

All faults of a test are compiled at once; FRUGAL_MUTANT=n wakes the n-th. In a fault `AWAKE` stands for "this one is awake".
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

# test: [(header under frugal, what stands there once, what the fault makes of it)]
MUTANTS = {
    "gated_delta_rule": [
        ("ops/gated_delta_rule/gated_delta_rule_cuda.cuh", "s[i] *= decay;", "s[i] *= AWAKE ? 1.0f : decay;"),
        ("ops/gated_delta_rule/gated_delta_rule_cuda.cuh", "= read * a.scale;", "= AWAKE ? read : read * a.scale;"),
        ("ops/gated_delta_rule/gated_delta_rule_cuda.cuh", "delta = (v - predicted) * beta;", "delta = (v - predicted) * (AWAKE ? 1.0f : beta);"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "if (lane > s) delta[j]", "if (AWAKE ? lane != s : lane > s) delta[j]"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "if (s + i <= t) read[j]", "if (s + i < (AWAKE ? t : t + 1)) read[j]"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "read[j] *= from_start;", "read[j] *= AWAKE ? 1.0f : from_start;"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "correction = room.to_end[t] *", "correction = (AWAKE ? 1.0f : room.to_end[t]) *"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "beta * since * keys[j]", "(AWAKE ? 1.0f : beta) * since * keys[j]"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "const int n = (min)(delta_chunk, a.tokens - begin);",
         "const int n = (min)(AWAKE ? delta_chunk - 1 : delta_chunk, a.tokens - begin);"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "feature >= features) return", "feature >= features - (AWAKE ? 4 : 0)) return"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "inside(i) ? decay * room.state", "inside(i) ? (AWAKE ? 1.0f : decay) * room.state"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "split_bf16(room.to_end[t] * delta[0]", "split_bf16((AWAKE ? 1.0f : room.to_end[t]) * delta[0]"),
        ("ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh", "begin + pair + x / 2 * 8)", "begin + pair + (AWAKE ? 0 : x / 2 * 8))"),
    ],
    "attention": [
        ("ops/attention/attention_cuda.cuh", "transpose_sum(dots) * a.scale;", "transpose_sum(dots) * (AWAKE ? 1.0f : a.scale);"),
        ("ops/attention/attention_cuda.cuh", "visible - begin));", "visible - begin)) - (AWAKE && visible - begin > 1 ? 1 : 0);"),
        ("ops/attention/attention_cuda.cuh", "seen_by_all = (min)(seen_by_all, own);", "seen_by_all = AWAKE ? keys : (min)(seen_by_all, own);"),
        ("ops/attention/attention_cuda.cuh", "together && k >= shared.of[i].keys", "together && k >= shared.of[i].keys + (AWAKE ? 1 : 0)"),
        ("ops/attention/attention_cuda.cuh", "sums[i][j] = fmaf(weight.w, value[3][j], sums[i][j]);", "sums[i][j] = fmaf(weight.w, value[AWAKE ? 2 : 3][j], sums[i][j]);"),
        ("ops/attention/attention_cuda.cuh", "together ? number / a.group", "together ? (AWAKE ? 0 : number / a.group)"),
        ("ops/attention/attention_cuda.cuh", "[buffer][thread] = expf(greatest - most);", "[buffer][thread] = AWAKE ? 1.0f : expf(greatest - most);"),
        ("ops/attention/attention_cuda.cuh", "fetch(first + merge_threads, buffer ^ 1)", "fetch(first + merge_threads, AWAKE ? buffer : buffer ^ 1)"),
        ("ops/attention/attention_tiles_cuda.cuh", "+ pair + i < limit[h] ?", "+ pair + i < limit[h] + (AWAKE ? 1 : 0) ?"),
        ("ops/attention/attention_tiles_cuda.cuh", "? s * a.scale : -INFINITY;", "? s * (AWAKE ? 1.0f : a.scale) : -INFINITY;"),
        ("ops/attention/attention_tiles_cuda.cuh", "out[c].x[x] *= shrink[x / 2];", "out[c].x[x] *= AWAKE ? 1.0f : shrink[x / 2];"),
        ("ops/attention/attention_tiles_cuda.cuh", "if (partly) add", "if (partly && !AWAKE) add"),
        ("ops/attention/attention_tiles_cuda.cuh", "if (count.x[x] != 0.0f)", "if (!AWAKE && count.x[x] != 0.0f)"),
        ("ops/attention/attention_tiles_cuda.cuh", "(t + 1) * tile_keys > least;", "(AWAKE ? t : t + 1) * tile_keys > least;"),
    ],
    "block_select": [
        ("ops/block_select/block_select_cuda.cuh", "sum += dot < 0.0f ? 0.0f : dot;", "sum += !AWAKE && dot < 0.0f ? 0.0f : dot;"),
        ("ops/block_select/best_scores_cuda.cuh", "key > threshold, equal", "(AWAKE ? key >= threshold : key > threshold), equal"),
        ("ops/block_select/best_scores_cuda.cuh", "prefix | digit << shift;", "prefix | digit << (AWAKE && shift == 8 ? 0 : shift);"),
        ("ops/block_select/block_select_cuda.cuh", "+ (min)(wanted, n % length)", "+ (AWAKE ? 0 : (min)(wanted, n % length))"),
        ("ops/block_select/block_select_cuda.cuh", "return begin + i;", "return (AWAKE ? 0 : begin) + i;"),
        ("ops/block_select/block_select_cuda.cuh", "= complete[row] * ratio + (i - blocks * ratio);", "= complete[row] * ratio + (i - blocks * ratio) + (AWAKE ? 1 : 0);"),
    ],
    "sampling": [
        ("ops/sampling/sampling_cuda.cuh", "bad || !(logit < INFINITY);", "bad || (!AWAKE && !(logit < INFINITY));"),
        ("ops/sampling/sampling_cuda.cuh", "(other == mine && j < i)", "(other == mine && (AWAKE ? j > i : j < i))"),
        ("ops/sampling/sampling_cuda.cuh", "- greatest) / temperature);", "- greatest) / (AWAKE ? 1.0 : temperature));"),
        ("ops/sampling/sampling_cuda.cuh", "static_cast<double>(draw.top_p) * total", "(AWAKE ? 1.0 : static_cast<double>(draw.top_p)) * total"),
        ("ops/sampling/sampling_cuda.cuh", "= draw.uniform * total;", "= (AWAKE ? 1.0 - draw.uniform : draw.uniform) * total;"),
        ("ops/sampling/sampling_cuda.cuh", "possible = i;", "possible = AWAKE ? 0 : i;"),
    ],
    "experts": [
        ("ops/moe/group_cuda.cuh", "+ before] = base + lane;", "+ (AWAKE ? 0 : before)] = base + lane;"),
        ("ops/moe/group_cuda.cuh", "count += own;", "count += AWAKE && w == 3 ? 0 : own;"),
        ("ops/moe/group_cuda.cuh", "if (w < warp) first[i]", "if (AWAKE ? w <= warp : w < warp) first[i]"),
        ("ops/moe/group_cuda.cuh", "(min)(size, count - i * size)}", "AWAKE ? size : (min)(size, count - i * size)}"),
        ("ops/moe/group_cuda.cuh", "i < few_tiles;", "i < few_tiles - (AWAKE ? 1 : 0);"),
        ("device/cuda/panels/arguments.cuh", "grouped ? a.order[at] : at;", "grouped && !AWAKE ? a.order[at] : at;"),
        ("device/cuda/panels/arguments.cuh", "Experts ? y(a, t) / a.share", "Experts && !AWAKE ? y(a, t) / a.share"),
        ("device/cuda/panels/arguments.cuh", "!grouped || t < count;", "!grouped || t < count - (AWAKE ? 1 : 0);"),
        ("device/cuda/panels/arguments.cuh", "(tile.expert) * a.expert_bytes", "(AWAKE ? 0 : tile.expert) * a.expert_bytes"),
    ],
    "matmul_tiles": [
        ("device/cuda/panels/reader.cuh", "(above >> (part + 4) & 0x01010101u) << 4;", "(above >> (part + (AWAKE ? 3 : 4)) & 0x01010101u) << 4;"),
        ("device/cuda/panels/reader.cuh", "const int shift = part / 2 * 2;", "const int shift = AWAKE ? part / 2 : part / 2 * 2;"),
        ("device/cuda/panels/reader.cuh", "out[c] = has_offsets ? fmaf(scale, level, by.offset)", "out[c] = has_offsets ? fmaf(scale, level, AWAKE ? 0.0f : by.offset)"),
        ("device/cuda/panels/reader.cuh", "code_reader<Codes>::load_row(group_of(panel, group)", "code_reader<Codes>::load_row(group_of(panel, AWAKE ? 0 : group)"),
        ("device/cuda/panels/tiles.cuh", "rows.x(a, 8 * n + across)", "rows.x(a, (AWAKE ? 4 : 8) * n + across)"),
    ],
}

SWITCH = """#pragma once
#include <cstdlib>
inline const int frugal_mutant = std::getenv("FRUGAL_MUTANT") != nullptr ? std::atoi(std::getenv("FRUGAL_MUTANT")) : 0;
"""


def planted(text, number, old, new):
    """`text` with a fault asleep, or None where its place is not there exactly once."""
    return text.replace(old, new.replace("AWAKE", f"(frugal_mutant == {number})")) if text.count(old) == 1 else None


def write(folder, mutants, include):
    """Headers with all faults below `folder`. Returns what could not be planted."""
    headers = {}
    missing = []
    for number, (header, old, new) in enumerate(mutants, 1):
        name = f"frugal/{header}"
        text = headers.get(name) or (include / name).read_text(encoding="utf-8")
        text = planted(text, number, old, new)
        if text is None:
            missing.append(f"{name} does not have once: {old}")
            continue
        headers[name] = text
    for name, text in {**headers, "frugal_mutant.hpp": SWITCH}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".cuh"):
            text = text.replace("#pragma once\n", '#pragma once\n#include "frugal_mutant.hpp"\n', 1)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return missing


def passes(program, number):
    try:
        done = subprocess.run([program, "--abort-after=1"], env={**os.environ, "FRUGAL_MUTANT": str(number)}, timeout=120,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def run(program, mutants):
    if not passes(program, 0):
        return ["the test fails without any fault"]
    return [f"not noticed in {header}: {new}" for number, (header, _, new) in enumerate(mutants, 1) if passes(program, number)]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        header = folder / "frugal" / "ops" / "x.cuh"
        header.parent.mkdir(parents=True)
        header.write_text("#pragma once\nint a = b * 2;\nint c = 1;\nint d = 1;\n", encoding="utf-8")
        out = folder / "out"
        if write(out, [("ops/x.cuh", "b * 2", "b * (AWAKE ? 3 : 2)")], folder):
            failures.append("a fault is not planted")
        if "b * ((frugal_mutant == 1) ? 3 : 2)" not in (out / "frugal/ops/x.cuh").read_text(encoding="utf-8"):
            failures.append("a planted fault is not there")
        for old in ("b * 4", "= 1;"):
            if not write(out, [("ops/x.cuh", old, "AWAKE")], folder):
                failures.append(f"a fault whose place is not there once passes: {old}")
        program = folder / "program"
        for body, wanted in (('[ "$FRUGAL_MUTANT" = 0 ]', 0), ('[ "$FRUGAL_MUTANT" != 2 ]', 1), ("true", 2), ("false", 1)):
            program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            program.chmod(0o755)
            found = run(str(program), [("x.cuh", "", ""), ("x.cuh", "", "")])
            if len(found) != wanted:
                failures.append(f"of a program that does `{body}`: {found}")
    checks.finish("mutants self-test", 8, failures)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--run", metavar="PROGRAM")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("test", nargs="?", choices=MUTANTS)
    options = parser.parse_args()
    if options.self_test:
        self_test()
    if options.list:
        print(";".join(MUTANTS), end="")
        return
    mutants = MUTANTS[options.test]
    if options.write:
        missing = write(options.write, mutants, pathlib.Path(checks.INCLUDE))
        if missing:
            sys.exit("\n".join(missing))
    if options.run:
        checks.finish(f"mutants of {options.test}", len(mutants), run(options.run, mutants))


main()
