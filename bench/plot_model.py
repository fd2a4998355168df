"""Draws how the speed of whole models grows or shrinks: tokens a second against the depth of the context, the sequences decoded at
once, and threads. One drawing each; a line for each model and side."""
import os

import matplotlib.pyplot as plt

import plot_growth

COLOURS = ("tab:blue", "tab:red", "tab:green", "tab:purple")
# The key of the points, its phases, the words under the axis.
CURVES = {"context": (("decode", "prefill"), "tokens in the context"),
          "batch": (("decode",), "sequences decoded at once"),
          "threads": (("decode", "prefill"), "threads")}
SIDES = (("ours", "-", "frugal"), ("llamacpp", "--", "llama.cpp"))


def name_of(point):
    return f"{point['model']}, {point['layers']} layers"


def lines(points, phase):
    """{(model, side): [(at, tokens a second)]}; a side that did not run has none."""
    out = {}
    for point in points:
        for side, _, _ in SIDES:
            if point["phase"] == phase and point[side] > 0:
                out.setdefault((name_of(point), side), []).append((point["at"], point[side]))
    return out


def in_words(at):
    return f"{at // 1024}k" if at >= 1024 and at % 1024 == 0 else f"{at:g}"


def draw_curve(curve, points, title, subtitle, path):
    phases, words = CURVES[curve]
    phases = [phase for phase in phases if lines(points, phase)]
    models = list(dict.fromkeys(map(name_of, points)))
    figure, axes = plt.subplots(1, len(phases), figsize=(5.5 * len(phases) + 1, 4.6), squeeze=False)
    for axis, phase in zip(axes[0], phases):
        for (model, side), line in lines(points, phase).items():
            style, name = next((style, name) for key, style, name in SIDES if key == side)
            axis.plot(*zip(*line), style, marker="o", markersize=4, color=COLOURS[models.index(model) % len(COLOURS)],
                      label=f"{name}, {model}")
            if curve == "threads" and side == "ours":
                first, speed = line[0]
                axis.plot([at for at, _ in line], [speed * at / first for at, _ in line], ":", color="gray", linewidth=1)
        places = sorted({at for line in lines(points, phase).values() for at, _ in line})
        if curve == "batch":
            axis.set_xscale("log", base=2)
        axis.set_xticks(places, [in_words(at) for at in places], fontsize=8)
        axis.minorticks_off()
        axis.set_ylim(0, None)
        axis.tick_params(axis="y", labelsize=8)
        axis.set_xlabel(words, fontsize=8)
        note = " (dotted: in proportion)" if curve == "threads" else ""
        axis.set_title(f"{phase}, tokens a second{note}", fontsize=9, loc="left")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8, frameon=False)
    plot_growth.finish(figure, title, subtitle, path)


def draw(model, title, subtitle, path):
    """model: {"context": [{"model": name, "layers": 24, "phase": "decode", "at": 8192, "ours": …, "llamacpp": …}, …], "batch": …,
    "threads": …}. Draws each curve that has points into a file named after it, beside `path`, and gives their names."""
    drawn = []
    stem = os.path.splitext(path)[0]
    for curve in CURVES:
        if model.get(curve):
            drawn.append(f"{stem}_{curve}.svg")
            draw_curve(curve, model[curve], title, subtitle, drawn[-1])
    if not drawn:
        raise ValueError("no model was measured")
    return drawn
