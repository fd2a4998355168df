"""Draws a comparison of policies: for every arm, in the order in which they ran, where the time of a warm token went."""
import matplotlib.pyplot as plt

PARTS = {"load_ms": ("loading host weights", "tab:red"), "device_ms": ("products on the device", "tab:blue"),
         "rest_ms": ("the rest of the host's work", "tab:gray")}


def draw(arms, title, subtitle, path):
    """arms: [{"arm": name, "load_ms": …, "device_ms": …, "rest_ms": …}, …]"""
    figure, axis = plt.subplots(figsize=(10, 1.6 + 0.45 * len(arms)))
    left = [0.0] * len(arms)
    for part, (words, colour) in PARTS.items():
        widths = [arm[part] for arm in arms]
        axis.barh(range(len(arms)), widths, left=left, height=0.6, color=colour, label=words)
        left = [a + b for a, b in zip(left, widths)]
    for row, (arm, total) in enumerate(zip(arms, left)):
        axis.annotate(f"{total:.4g} ms, {arm['load_ms']:.3g} of them loading", (total, row), (4, 0), textcoords="offset points",
                      fontsize=8, va="center")
    axis.set_yticks(range(len(arms)), [arm["arm"] for arm in arms], fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(0, max(left) * 1.35)
    axis.set_xlabel(f"milliseconds per warm token ({subtitle})" if subtitle else "milliseconds per warm token", fontsize=8)
    axis.set_title(title, fontsize=12, loc="left")
    axis.legend(fontsize=8, loc="center right", frameon=False)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
