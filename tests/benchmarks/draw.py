"""Draw what `measure.py` found: a bar for each ratio, from 1 to where it is, or a table for the docs."""

import argparse
import json
from pathlib import Path
from typing import Any

#: Okabe and Ito's blue and orange, which differ to all eyes, and in grey too.
COLORS = {"core": "#E69F00", "fast": "#0072B2"}
TARGET: Any = {"marker": "D", "markerfacecolor": "white", "markersize": 5, "zorder": 3}


def draw(results: list[dict[str, Any]], out: Path) -> None:
    """Draw results of the modes core and fast beside each other."""
    import matplotlib

    matplotlib.use("Agg")  # a file, no window
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [{"mode": x["mode"], **row} for x in results for row in x["figures"]]
    rows = [row for row in rows if "ratio" in row and "wrong" not in row]
    modes = [mode for mode in COLORS if any(row["mode"] == mode for row in rows)]
    labels = list(dict.fromkeys(f"{row['name']}: {row['peer']}" for row in rows))
    if not labels:
        raise SystemExit("no ratio in these files: nothing to draw")
    tall = 1.6 + 0.22 * len(labels) * (len(modes) + 0.5)
    figure, axes = pyplot.subplots(figsize=(8, tall), layout="constrained")
    height = 0.8 / len(modes)
    for row in rows:
        y = labels.index(f"{row['name']}: {row['peer']}")
        y += (modes.index(row["mode"]) - (len(modes) - 1) / 2) * height
        # A logarithmic axis has no zero: bars grow from 1, to the left where softdict is faster.
        axes.barh(y, row["ratio"] - 1, left=1, height=0.9 * height, color=COLORS[row["mode"]])
        axes.hlines(y, row["min"], row["max"], color="black", linewidth=1)
        axes.plot(row["target"], y, color="black", **TARGET)
        text, right = f"{row['ratio']:.2f}", max(1, row["max"], row["target"])
        axes.annotate(text, (right, y), (6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)

    ends = [0.5, 2, *(row[end] for row in rows for end in ("min", "max", "target"))]
    left, right = min(ends) / 1.3, max(ends) * 1.8
    ticks = [x * 10.0**power for power in range(-4, 5) for x in (1, 2, 5)]
    ticks = [x for x in ticks if left < x < right]
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)  # the first on top
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("time of softdict / time of the peer   (left of 1: softdict is faster)")

    legend: list[Any] = [Patch(color=COLORS[mode], label=mode) for mode in modes]
    legend.append(Line2D([], [], color="black", linewidth=1, label="least to most of all rounds"))
    legend.append(Line2D([], [], linestyle="", color="black", label="target", **TARGET))
    figure.legend(handles=legend, loc="outside upper center", ncols=len(legend), frameon=False, fontsize=8)
    note = results[0]["machine"]
    parts = [note["cpu"], f"{note['cores']} cores", f"Python {note['python']}", note["blas"], note["date"]]
    axes.set_title(", ".join(parts), fontsize=8, color="0.3")
    figure.savefig(out, dpi=150)


def table(results: list[dict[str, Any]]) -> str:
    """Return the figures of core and fast as a table in Markdown; what misses its target is bold."""
    heads = [f" {result['mode']} (target) | sizes beside |" for result in results]
    lines = ["| | peer |" + "".join(heads)]
    lines.append("|---|---|" + "---|" * 2 * len(results))
    rows: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for row in result["figures"]:
            cells = rows.setdefault((row["name"], row["peer"]), [])
            if "ratio" in row:
                shown = f"{row['ratio']:.2f}"
                shown = shown if row["ratio"] <= row["target"] else f"**{shown}**"
                cells += [
                    f"{shown} ({row['target']:g})",
                    f"{row['one_off_over_base']:.2f}" if "one_off_over_base" in row else "",
                ]
    lines += [f"| {name} | {peer} | {' | '.join(cells)} |" for (name, peer), cells in rows.items() if cells]
    note = results[0]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(note["versions"].items()))
    lines += ["", f"{note['cpu']}, {note['cores']} cores, Python {note['python']}, {note['blas']},"]
    return "\n".join([*lines, f"{versions}; {note['date']}."])


def main() -> None:
    """Read the files that are named, write a picture or print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="what measure.py wrote")
    parser.add_argument("--out", type=Path, default="results.svg", help="a .png or .svg (%(default)s)")
    parser.add_argument("--table", action="store_true", help="print a table in Markdown, and draw nothing")
    args = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in args.results]
    print(table(results)) if args.table else draw(results, args.out)


if __name__ == "__main__":
    main()
