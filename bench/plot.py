#!/usr/bin/env python3
"""Draws the JSON of Google Benchmark as an SVG: for every benchmark the share of the machine's limits that it reaches.

    python3 bench/plot.py build/bench/matmul.json matmul.svg [--filter REGEX] [--title TEXT]

A bar is the median over the repetitions, a whisker the range. Benchmarks are named op/format/isa/shape; one panel for each
op and shape. Several files are drawn together.
"""
import argparse
import collections
import json
import re
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend must be chosen first

LIMITS = {"of_bandwidth": "of the read bandwidth", "of_peak": "of the arithmetic peak"}


def read(paths, pattern):
    """{(op, shape): {(format, isa): {limit: [values]}}}, in the order of the files."""
    panels = collections.OrderedDict()
    for path in paths:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        for run in content["benchmarks"]:
            # The library appends how it measured.
            name = re.sub(r"/(real_time|[a-z_]+:[^/]*)(?=/|$)", "", run.get("run_name", run["name"]))
            if run.get("run_type") == "aggregate" or run.get("error_occurred") or not re.search(pattern, name):
                continue
            parts = name.split("/")
            if len(parts) != 4:
                raise ValueError(f"{path}: the name {name} is not op/format/isa/shape")
            op, kind, isa, shape = parts
            bar = panels.setdefault((op, shape), collections.OrderedDict()).setdefault((kind, isa), {})
            for limit in LIMITS:
                if limit in run:
                    bar.setdefault(limit, []).append(run[limit])
    return panels


def draw(panels, title, path):
    heights = [len(bars) * 0.28 * len(LIMITS) + 1.0 for bars in panels.values()]
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, sum(heights)), squeeze=False,
                                gridspec_kw={"height_ratios": heights}, constrained_layout=True)
    for axis, ((op, shape), bars) in zip(axes[:, 0], panels.items()):
        labels = [f"{kind} {isa}" for kind, isa in bars]
        for offset, (limit, words) in enumerate(LIMITS.items()):
            at, middle, low, high = [], [], [], []
            for row, values in enumerate(bars.values()):
                if limit not in values:
                    continue
                median = statistics.median(values[limit])
                at.append(row + 0.36 * offset - 0.18)
                middle.append(median)
                low.append(median - min(values[limit]))
                high.append(max(values[limit]) - median)
            axis.barh(at, middle, height=0.34, xerr=(low, high), label=words, error_kw={"elinewidth": 0.8})
        axis.set_yticks(range(len(labels)), labels, fontsize=8)
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.set_title(f"{op}  {shape}", fontsize=10, loc="left")
        axis.grid(axis="x", alpha=0.3)
    axes[0, 0].legend(fontsize=8, loc="lower right")
    axes[-1, 0].set_xlabel("share of what this machine can do")
    if title:
        figure.suptitle(title)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON files, then the SVG to write")
    parser.add_argument("--filter", default="", help="only benchmarks whose name matches")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    *sources, target = arguments.files
    if not sources or not target.endswith(".svg"):
        parser.error("give one or more JSON files, then the SVG to write")
    # Text stays text, and the same data gives the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "frugal"})
    try:
        panels = read(sources, arguments.filter)
        if not panels:
            raise ValueError("no benchmark to draw")
        draw(panels, arguments.title, target)
    except (OSError, ValueError, KeyError, re.error) as problem:
        sys.exit(f"plot.py: {problem}")


if __name__ == "__main__":
    main()
