"""Draws operators beside ggml's, and writes them as a table: the ratio of times, and the share of the machine's limit. How speed
grows with the batch is a drawing of its own."""
import os

import matplotlib.pyplot as plt
import matplotlib.ticker

COLOURS = ("tab:gray", "tab:blue", "tab:green", "tab:purple")


def merged(rows):
    """{(operator, format, shape, threads): {isa: row}}, in the order of measuring."""
    out = {}
    for row in rows:
        out.setdefault((row["operator"], row["format"], row["shape"], row["threads"]), {})[row["isa"]] = row
    return out


def share(row):
    return row["limit_us"] / row["ours_us"] if row["limit_us"] > 0 else None


def ratio(row):
    return row["ggml_us"] / row["ours_us"] if row["ggml_us"] > 0 else None


def label(key):
    operator, kind, shape, threads = key
    return f"{operator} {kind} {shape}" + ("" if threads == 1 else f", {threads} threads")


def time_in_words(us):
    if us <= 0:
        return "–"
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} µs"


# Of each limit: what is counted, its unit, and whether the data come from memory.
LIMITS = {"reading memory": ("bytes", "GB/s", True), "updating memory": ("bytes", "GB/s", True),
          "f32 peak": ("flops", "Gop/s", False), "int8 peak": ("flops", "Gop/s", False)}


def limit_in_words(row):
    """The limit and how fast it is, of all threads."""
    if row["limit"] not in LIMITS:
        return "–"
    counted, unit, _ = LIMITS[row["limit"]]
    return f"{row['limit']}, {row[counted] / row['limit_us'] * 1e-3:.3g} {unit}"


def data_in_words(row):
    """Where weights, caches or states come from."""
    if row["limit"] not in LIMITS:
        return "cache"
    return "memory" if LIMITS[row["limit"]][2] else "–"


EXPLANATION = """
Medians of interleaved rounds in one process on the same data; results were compared before. {subtitle}

* **ours**: one call, by kernels of this ISA alone. **ggml**: its fastest way, built for this machine; it has no other ISA, so the
  same time stands beside each of ours.
* **ggml by**: the type of buffer in which its weights lay, where it has several (CPU: as in the file; CPU_REPACK, AMX: in another
  order), or the operators of its graph. `–`: ggml is not here, has no such operator, or its result was wrong.
* **data**: `memory`: weights, caches or states are others in each call and exceed the last-level cache (cold). `cache`: the same in
  every call (warm). `–`: arithmetic decides.
* **limit**: the fastest way to read (or to change in place) as many bytes as the file's format has, in the same rounds with as many
  threads; or the peak of multiplications and additions in registers in this ISA. **of it**: ours, then ggml's.
* **of a token**: the share of a decoded token's time that all calls of the operator take, where that is known, and of which model.
* **error**: of ours, then ggml's: root mean square of the difference from the definition in double, relative.
"""


def table(rows, subtitle, notes):
    lines = ["| operator | shape | threads | ISA | data | ours | ggml | ggml by | ggml/ours | limit | of it | of a token | error |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        of_limit, of_ggml = share(row), ratio(row)
        shares = "–" if of_limit is None else f"{100 * of_limit:.3g} %"
        if of_limit is not None and of_ggml:
            shares += f", {100 * row['limit_us'] / row['ggml_us']:.3g} %"
        token = f"{100 * row['token_share']:.2g} %, {row['token']}" if row.get("token_share", 0) > 0 else "–"
        error = f"{row['error']:.1e}" + (f", {row['ggml_error']:.1e}" if of_ggml else "")
        cells = (f"{row['operator']} {row['format']}", row["shape"], row["threads"], row["isa"], data_in_words(row),
                 time_in_words(row["ours_us"]), time_in_words(row["ggml_us"]), row["ggml_by"] or "–",
                 f"{of_ggml:.3g}" if of_ggml else "–", limit_in_words(row), shares, token, error)
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += [EXPLANATION.format(subtitle=subtitle).rstrip()]
    lines += ["", *(f"Left out, its result is wrong: {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def draw_batch(rows, subtitle, path):
    """Tokens a second through one product, against the tokens that share a pass over its weights."""
    last = {key: list(by_isa.values())[-1] for key, by_isa in merged(rows).items()}  # of the most able instruction set
    figure, axis = plt.subplots(figsize=(7.5, 4.6))
    for threads in sorted({key[3] for key in last}):
        points = [(int(key[2].rsplit("x", 1)[1]), row) for key, row in last.items() if key[3] == threads]
        words = f"{threads} thread" + ("" if threads == 1 else "s")
        for side, style, name in (("ours_us", "-", f"frugal, {points[0][1]['isa']}"), ("ggml_us", "--", "ggml's best")):
            line = [(tokens, tokens * 1e6 / row[side]) for tokens, row in points if row[side] > 0]
            if line:
                axis.plot(*zip(*line), style, marker="o", markersize=4, color=COLOURS[threads % len(COLOURS)],
                          label=f"{name}, {words}")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("tokens in the batch", fontsize=8)
    axis.set_ylabel("tokens a second", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    row = rows[0]
    axis.set_title(f"A product {row['shape'].rsplit('x', 1)[0]} in {row['format']}, weights not in the cache", fontsize=10, loc="left")
    figure.text(0.02, 0.01, subtitle, fontsize=6, color="dimgray")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, format="svg", metadata={"Date": None})


def draw(ops, title, subtitle, path):
    """ops: {"rows": […], "notes": […]}. Writes `path`, beside it the table with the ending .md, and …_batch.svg; gives their
    names."""
    rows = ops["rows"]
    if not rows:
        raise ValueError("no operator was measured")
    stem = os.path.splitext(path)[0]
    written = [path, stem + ".md"]
    with open(stem + ".md", "w", encoding="utf-8") as file:
        file.write(table(rows, subtitle, ops["notes"]))
    batch = [row for row in rows if row["operator"] == "batch"]
    if batch:
        written.append(stem + "_batch.svg")
        draw_batch(batch, subtitle, written[-1])
    rows = [row for row in rows if row["operator"] != "batch"] or rows
    contests = {key: by_isa for key, by_isa in merged(rows).items()
                if any(ratio(row) or share(row) for row in by_isa.values())} or merged(rows)
    isas = list(dict.fromkeys(row["isa"] for row in rows))
    colours = dict(zip(isas, COLOURS))
    step = 0.14 * len(isas) + 0.1  # inches
    height = step * len(contests) + 1.5
    figure, (speed, limit) = plt.subplots(1, 2, figsize=(12, height), sharey=True)
    thickness = 0.8 / len(isas)
    for at, (key, by_isa) in enumerate(contests.items()):
        for isa, row in by_isa.items():
            y = at + (isas.index(isa) - (len(isas) - 1) / 2) * thickness
            # Of speeds the distance from 1 is drawn: beyond it to the right, short of it to the left.
            for axis, value, origin, words in ((speed, ratio(row), 1, "{:.3g}"), (limit, share(row), 0, "{:.0%}")):
                if value is None:
                    continue
                axis.barh(y, value - origin, left=origin, height=thickness * 0.92, color=colours[isa])
                right = value >= origin
                axis.annotate(words.format(value), (value, y), (3 if right else -3, 0), textcoords="offset points", fontsize=6,
                              va="center", ha="left" if right else "right")
        last = list(by_isa.values())[-1]
        if last["ggml_us"] > 0 and last["limit_us"] > 0:
            limit.plot([last["limit_us"] / last["ggml_us"]] * 2, (at - 0.42, at + 0.42), color="black", linewidth=1.5)
    speed.set_yticks(range(len(contests)), [label(key) for key in contests], fontsize=7)
    speed.set_ylim(len(contests) - 0.4, -0.6)
    speed.set_xscale("log")
    low, high = speed.get_xlim()
    speed.set_xlim(min(low, 0.5) / 1.3, max(high, 2) * 1.4)
    speed.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}×"))
    speed.axvline(1, color="black", linewidth=1, linestyle="--")
    speed.set_title("speed relative to ggml's best", fontsize=9, loc="left")
    limit.axvline(1, color="black", linewidth=1, linestyle="--")
    limit.set_xlim(0, max(1.1, limit.get_xlim()[1] * 1.06))
    limit.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
    limit.set_title("share of the machine's limit (black: ggml's best)", fontsize=9, loc="left")
    for axis in (speed, limit):
        axis.tick_params(axis="x", labelsize=7)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[isa], label=isa) for isa in isas]
    figure.legend(handles=handles, fontsize=8, loc="upper right", ncol=len(isas), frameon=False)
    figure.suptitle(title, fontsize=12, x=0.01, y=1 - 0.1 / height, ha="left", va="top")
    figure.text(0.01, 1 - 0.38 / height, subtitle, fontsize=7, color="dimgray", va="top")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.5 / height))
    figure.savefig(path, format="svg", metadata={"Date": None})
    return written
