"""Draw the pictures of the README and the docs.

"python pictures.py FOLDER" writes them there, by default into "pictures"; it needs matplotlib. It prints:

    dial.png: T = 0 takes 3 values, T = 1 every value between, T = infinity 1
    lookup.png: colour is answered by color, with 89.4%
    attention.png: it asks animal, with 67.7%
    plane.png: [1, 0.1] finds a by gaussian, c by dot, a by cosine
    training.png: the loss falls from 0.07 to 0.03
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from softdict import SoftDict, fit, fit_temperature, plot, real_head
from softdict.display import percent
from softdict.encoders import CharNgrams


def save(folder, name, figure, fact):
    figure.savefig(folder / name, dpi=100, metadata={"Software": None})
    print(f"{name}: {fact}")


def figure_of(width, height, columns=1):
    """Return a figure that pyplot does not know, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def main(folder="pictures"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    # The table of the README, over all queries and over all temperatures.
    table = SoftDict({0: 10.0, 1: 20.0, 2: 40.0})
    figure, (left, right) = figure_of(10, 3.9, 2)
    stairs, *_, flat, _ = plot.regression(table, left)
    plot.temperature(table, 0.9, right)
    steps = len(set(stairs.get_ydata()))
    level = len(set(flat.get_ydata().round(9)))
    fact = f"T = 0 takes {steps} values, T = 1 every value between, T = infinity {level}"
    save(folder, "dial.png", figure, fact)

    # One lookup.
    words = {"color": 1.0, "size": 2.0, "weight": 3.0, "height": 4.0, "collar": 5.0}
    sizes = SoftDict(words, encoder=CharNgrams(), similarity="cosine", temperature=0.1)
    figure, ax = figure_of(6, 3)
    bars = plot.lookup(why := sizes.lookup("colour"), ax)
    save(
        folder,
        "lookup.png",
        figure,
        f"colour is answered by {why.winner}, with {percent(bars[0].get_width())}",
    )

    # A head of a real Transformer.
    layer, sentences = real_head()
    tokens, x = sentences["tired"]
    figure, ax = figure_of(8, 6)
    (image,) = plot.attention(layer.lookup(x, tokens), ax)
    row = image.get_array()[tokens.index("it")]
    save(folder, "attention.png", figure, f"it asks {tokens[row.argmax()]}, with {percent(row.max())}")

    # Three keys, one of them long.
    spots = SoftDict.from_arrays([[1, 0], [0, 1], [3, 3]], [1, 2, 3], ["a", "b", "c"])
    figure, axes = figure_of(9.6, 3.6, 3)
    plot.plane(spots, axes)
    names = ["gaussian", "dot", "cosine"]
    found = (f"{spots.at(similarity=name).lookup([1, 0.1]).winner} by {name}" for name in names)
    save(folder, "plane.png", figure, f"[1, 0.1] finds {', '.join(found)}")

    # A bandwidth, and then the values too.
    x = np.linspace(0, 6, 40)
    noisy = np.sin(x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    curve, search = fit_temperature(SoftDict.from_arrays(x, noisy, temperature=9), progress=False)
    start = curve.at(temperature=9).copy()
    learn = ["temperature", "values"]
    _, steps = fit(start, learn=learn, targets=noisy, weight_decay=1e-3, progress=False)
    figure, (left, right) = figure_of(10, 3.6, 2)
    plot.training(search, left)
    plot.training(steps, right)
    losses = steps.history["loss"]
    save(folder, "training.png", figure, f"the loss falls from {losses[0]:.2f} to {losses[-1]:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
