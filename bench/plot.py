#!/usr/bin/env python3
"""Draws the JSON of Google Benchmark as an SVG: for every benchmark the share of the machine's limits that it reaches.

    python3 bench/plot.py build/bench/matmul.json matmul.svg [--filter REGEX] [--title TEXT]
    python3 bench/plot.py build/bench/load_skip.json load_skip.svg       the arms of a comparison
    python3 bench/plot.py build/bench/qsa.json qsa.svg                   how a cost grows with the context; shared_inputs too
    python3 bench/plot.py build/bench/ops.json ops.svg                   operators beside ggml's; writes ops.md too, a table
    python3 bench/plot.py build/bench/model.json model.svg               whole models: model_context.svg, _batch.svg, _threads.svg

A bar is the median over the repetitions, a whisker the range; beyond 100% of the bandwidth, data came from a cache. Benchmarks
are named op/format/isa/shape; one panel for each op and shape. Several files are drawn together.
"""
import argparse
import collections
import json
import re
import statistics
import sys

try:
    import matplotlib
except ImportError:
    sys.exit(f"plot.py: {sys.executable} has no matplotlib, which draws: install the package python3-matplotlib, or pip's matplotlib")

matplotlib.use("Agg")
import matplotlib.lines  # noqa: E402  the backend must be chosen first
import matplotlib.patches  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402
import matplotlib.ticker  # noqa: E402

import plot_arms  # noqa: E402
import plot_growth  # noqa: E402
import plot_model  # noqa: E402
import plot_ops  # noqa: E402

LIMITS = {"of_bandwidth": "of the read bandwidth", "of_peak": "of the arithmetic peak"}
COLOURS = {"of_bandwidth": "tab:blue", "of_peak": "tab:orange"}


def read(paths, pattern):
    """{(op, shape): {(format, isa): {limit: [values]}}}, in the order in which the benchmarks are registered."""
    found = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        for run in content["benchmarks"]:
            # The library appends how it measured.
            name = re.sub(r"/(real_time|[a-z_]+:[^/]*)(?=/|$)", "", run.get("run_name", run["name"]))
            if run.get("run_type") == "aggregate" or run.get("error_occurred") or not re.search(pattern, name):
                continue
            if name.count("/") != 3:
                raise ValueError(f"{path}: the name {name} is not op/format/isa/shape")
            found.append((paths.index(path), run.get("family_index", 0), name, run))
    # Repetitions run in no order.
    found.sort(key=lambda each: each[:2])
    panels = collections.OrderedDict()
    for _, _, name, run in found:
        op, kind, isa, shape = name.split("/")
        bar = panels.setdefault((op, shape), collections.OrderedDict()).setdefault((kind, isa), {})
        for limit in LIMITS:
            if limit in run:
                bar.setdefault(limit, []).append(run[limit])
    return panels


# Programs that compare whole runs: the key of their records, who draws these, and the title.
COMPARISONS = {
    "load_skip": (plot_arms.draw, "Host weights prepared in every step, or only where somebody reads them"),
    "growth": (plot_growth.draw_retention, "QSA: what a longer context costs a decoded token"),
    "model": (plot_model.draw, "Whole models beside llama.cpp, on the same file"),
    "ops": (plot_ops.draw, "Operators beside ggml's, in one process on the same data"),
    "shared_inputs": (plot_growth.draw_inputs, "QSA inputs of twelve layers: what they cost the host, by policy"),
}


def read_comparison(paths):
    """(records, draw, title) of the first file if it holds a comparison."""
    with open(paths[0], encoding="utf-8") as file:
        content = json.load(file)
    for key, (draw_it, title) in COMPARISONS.items():
        if content.get(key):
            return content[key], draw_it, title
    return None


def describe(paths):
    """What was measured where, in a line for each machine."""
    lines = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            context = json.load(file).get("context", {})
        words = []
        if "processor" in context:
            words.append(context["processor"])
        if "threads" in context:
            words.append(f"{context['threads']} thread" + ("" if context["threads"] == "1" else "s"))
        if "read_gigabytes_per_second" in context:
            words.append(f"limits: reads {float(context['read_gigabytes_per_second']):.3g} GB/s")
        if "read_gigabytes_per_second_2" in context:
            words[-1] += f", {float(context['read_gigabytes_per_second_2']):.3g} with two threads"
        words += [f"{key.removesuffix('_peak_gigaflops')} {float(value):.3g} Gflop/s"
                  for key, value in context.items() if key.endswith("_peak_gigaflops")]
        words += [f"{name} {context[name]}" for name in ("ggml", "commit") if name in context]
        line = ", ".join(words)
        if line and line not in lines:
            lines.append(line)
    return "\n".join(lines)


def draw(panels, title, subtitle, path):
    bar, edge, head = 0.18, 0.75, 0.95  # inches: the height of a bar, round each panel, for the title
    heights = [len(bars) * bar * (len(LIMITS) + 0.6) for bars in panels.values()]
    total = sum(heights) + edge * len(panels) + head
    widest = max(len(f"{kind} {isa}") for bars in panels.values() for kind, isa in bars)
    width = 10
    left = (0.085 * widest + 0.35) / width
    figure = plt.figure(figsize=(width, total))
    top = total - head
    for index, (((op, shape), bars), height) in enumerate(zip(panels.items(), heights)):
        axis = figure.add_axes((left, (top - height) / total, 0.97 - left, height / total))
        top -= height + edge
        present = [limit for limit in LIMITS if any(limit in values for values in bars.values())]
        most = 1.0
        for limit in present:
            offset = present.index(limit) - (len(present) - 1) / 2
            at, middle, low, high = [], [], [], []
            for row, values in enumerate(bars.values()):
                if limit not in values:
                    continue
                median = statistics.median(values[limit])
                at.append(row + 0.38 * offset)
                middle.append(median)
                low.append(median - min(values[limit]))
                high.append(max(values[limit]) - median)
                most = max(most, max(values[limit]))
            axis.barh(at, middle, height=0.36, xerr=(low, high), color=COLOURS[limit], error_kw={"elinewidth": 0.8})
            for y, value, more in zip(at, middle, high):
                axis.annotate(f"{100 * value:.3g}%", (value + more, y), (3, 0), textcoords="offset points", fontsize=7,
                              va="center")
        axis.axvline(1, color="black", linewidth=1, linestyle="--")
        axis.set_yticks(range(len(bars)), [f"{kind} {isa}" for kind, isa in bars], fontsize=8)
        axis.set_ylim(len(bars) - 0.4, -0.6)
        # Room for the number at the end of the longest bar.
        axis.set_xlim(0, most * 1.12)
        axis.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
        axis.tick_params(axis="x", labelsize=8)
        axis.set_title(f"{op}  {shape}", fontsize=10, loc="left", fontweight="bold")
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    handles = [matplotlib.patches.Patch(color=COLOURS[limit], label=words) for limit, words in LIMITS.items()]
    handles.append(matplotlib.lines.Line2D([], [], color="black", linewidth=1, linestyle="--", label="limit"))
    figure.text(0.35 / width, 1 - 0.15 / total, title, fontsize=12, va="top")
    figure.text(0.35 / width, 1 - 0.38 / total, subtitle, fontsize=8, va="top", color="dimgray")
    figure.legend(handles=handles, fontsize=8, loc="upper right", bbox_to_anchor=(0.98, 1 - 0.1 / total), ncol=1,
                  frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON files, then the SVG to write")
    parser.add_argument("--filter", default="", help="only benchmarks whose name matches")
    parser.add_argument("--title", help="above the drawing")
    arguments = parser.parse_args()
    *sources, target = arguments.files
    if not sources or not target.endswith(".svg"):
        parser.error("give one or more JSON files, then the SVG to write")
    # Text stays text, and the same data gives the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "frugal"})
    try:
        comparison = read_comparison(sources)
        if comparison:
            records, draw_it, title = comparison
            for path in draw_it(records, arguments.title or title, describe(sources), target) or [target]:
                print(f"drawn: {path}")
            return
        panels = read(sources, arguments.filter)
        if not panels:
            raise ValueError("no benchmark to draw")
        draw(panels, arguments.title or "Share of the machine's limits that each operator reaches", describe(sources), target)
        print(f"drawn: {target}")
    except (OSError, ValueError, KeyError, re.error) as problem:
        print(f"drawn: {target}")
        sys.exit(f"plot.py: {problem}")


if __name__ == "__main__":
    main()
