"""Draws how a cost grows with the context: lines over the number of tokens, one for each way to do the work."""
import matplotlib.pyplot as plt


def lines_of_qsa(growth):
    """{name: [(tokens, ms)]} of a decoded token, from bench/run.sh qsa."""
    lines = {"frugal, one QSA layer": [(p["length"], p["ours_ms"]) for p in growth["decode"]],
             "ggml's operators, one QSA layer": [(p["length"], p["ggml_ms"]) for p in growth["decode"] if p["ggml_ms"] > 0],
             "frugal, 48 layers": [(p["length"], p["ours_ms"]) for p in growth["token"]]}
    return {name: points for name, points in lines.items() if points}


def lines_of_inputs(records):
    """{new tokens: {policy: [(tokens, ms)]}} from bench/run.sh shared_inputs."""
    panels = {}
    for record in records:
        name = record["policy"] + (", bias a block" if record["bias"] == "bias_block" else ", no bias")
        panels.setdefault(record["tokens"], {}).setdefault(name, []).append((record["length"], record["ms"]))
    return panels


def name_lengths(axis, lengths):
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{n // 1024}k" if n < 1 << 20 else f"{n >> 20}M" for n in lengths], fontsize=8)
    axis.minorticks_off()
    axis.set_xlabel("tokens in the context", fontsize=8)
    axis.grid(alpha=0.3)


def plot(axis, points, label):
    axis.plot([n for n, _ in points], [value for _, value in points], marker="o", markersize=4, label=label)


def draw_retention(growth, title, subtitle, path):
    """Speed at n tokens over speed at the fewest, and the time itself."""
    lines = lines_of_qsa(growth)
    figure, (speed, time) = plt.subplots(1, 2, figsize=(11, 4.6))
    for name, points in lines.items():
        first = points[0][1]
        plot(speed, [(n, first / ms) for n, ms in points], name)
        plot(time, points, name)
    lengths = sorted({n for points in lines.values() for n, _ in points})
    for axis in (speed, time):
        name_lengths(axis, lengths)
    speed.set_ylim(0, 1.08)
    speed.set_title(f"speed over speed at {lengths[0] // 1024}k", fontsize=9, loc="left")
    speed.legend(fontsize=8, frameon=False, loc="lower left")
    time.set_yscale("log")
    time.set_title("milliseconds a token", fontsize=9, loc="left")
    finish(figure, title, subtitle, path)


def draw_inputs(records, title, subtitle, path):
    panels = lines_of_inputs(records)
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.6), squeeze=False)
    for axis, (tokens, lines) in zip(axes[0], sorted(panels.items())):
        for name, points in lines.items():
            plot(axis, points, name)
        name_lengths(axis, sorted({n for points in lines.values() for n, _ in points}))
        axis.set_yscale("log")
        axis.set_title("milliseconds a decoded token" if tokens == 1 else f"milliseconds a batch of {tokens} tokens", fontsize=9,
                       loc="left")
    axes[0][0].legend(fontsize=8, frameon=False)
    finish(figure, title, subtitle, path)


def finish(figure, title, subtitle, path):
    figure.suptitle(title, fontsize=12, x=0.02, ha="left")
    figure.text(0.02, 0.01, subtitle, fontsize=7, color="dimgray")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, format="svg", metadata={"Date": None})
