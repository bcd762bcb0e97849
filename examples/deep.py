"""Depth: the word "it" asks 32 times, each time with what it has heard before.

"it" asks "which thing am I, and in which state?". In layer 1 the two things, animal and street, answer
about alike. But tired tells "it" of something alive, so layer 2 asks a little more for what is alive, and
so on. One layer hears what the words are, the next what they have become: that is what depth is for.

A residual connection adds what a word hears to what it was: x + layer(x). Without it a word is replaced
by a mean of words, and means of means are soon all alike. Then "it" is close to animal, but so is every
other word; all keys are equal, so all weights are, and no later layer can tell the words apart again.
Normalization, to length 1 here, is in both: it keeps numbers in range, and does not stop the blur.

The columns are cosines of "it" with words as they were at the start; "alike" is the mean cosine of any two
words after that layer.

                  with residuals                            without
    layer       it animal street  tired  alike       it animal street  tired  alike
        0     1.00  -0.01   0.01   0.03   0.04     1.00  -0.01   0.01   0.03   0.04
        1     1.00   0.03   0.04   0.06   0.04     0.81   0.49   0.45   0.34   0.08
        2     1.00   0.06   0.08   0.08   0.05     0.65   0.67   0.55   0.43   0.11
        4     0.99   0.13   0.14   0.12   0.05     0.29   0.89   0.50   0.62   0.19
        8     0.95   0.27   0.24   0.20   0.07     0.17   0.88   0.39   0.76   0.58
       16     0.82   0.52   0.37   0.35   0.10     0.16   0.85   0.44   0.69   1.00
       32     0.45   0.82   0.40   0.65   0.17     0.16   0.85   0.44   0.69   1.00

    in layer 1 "it" listens to it 0.49, street 0.20, animal 0.18, tired 0.12
    in layer 32 "it" listens to animal 0.38, it 0.37, tired 0.24, street 0.00
    with residuals "it" has come nearest to: animal
    and with "wide" in place of "tired" to: street
    least cosine of two words in the end: -0.06 with residuals, 1.00 without
    layers until any two words are 0.99 alike: 103 with residuals, 11 without

Nothing here is trained: the matrices are set by hand, where training would have to find them, and one
layer is asked 32 times. Residuals slow the blur and do not forbid it, says the last line; in real
models each layer has matrices of its own, and a feed-forward layer beside it. On the blur: Dong et al.,
"Attention is not all you need: pure attention loses rank doubly exponentially with depth", 2021.

"python deep.py --plot deep.png" draws the columns, and needs matplotlib.
"""

import argparse

import numpy as np

from softdict import SelfAttention

LAYERS, SHOWN, WIDTH = 32, (0, 1, 2, 4, 8, 16, 32), 256
FEATURES = ["pronoun", "thing", "state", "alive", "extent"]
MEANS = {
    "animal": ["thing", "alive"],
    "street": ["thing", "extent"],
    "it": ["pronoun"],
    "tired": ["state", "alive"],  # only what is alive gets tired ...
    "wide": ["state", "extent"],  # ... and only what has extent is wide
}
ASKS = {("pronoun", "thing"): 1.5, ("pronoun", "state"): 1.25, ("alive", "alive"): 2, ("extent", "extent"): 2}


def sentence(last="tired"):
    """Return the words; the last one tells what "it" is."""
    return f"the animal didn't cross the street because it was too {last}".split()


def unit(x):
    """Normalize each row to length 1, so that products are cosines."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def embed(words, seed=0):
    """Give each word its features, and noise that is its own (n, d); the two "the" are one word."""
    rng = np.random.default_rng(seed)
    rows = {word: 0.04 * rng.normal(size=WIDTH) for word in dict.fromkeys(words)}
    for word, row in rows.items():
        row[: len(FEATURES)] = [feature in MEANS.get(word, []) for feature in FEATURES]
    return unit(np.array([rows[word] for word in words]))


def by_hand():
    """Return the layer: every word asks for its like, and a pronoun for a thing and a state too."""
    w_q = np.eye(WIDTH)
    for (has, wants), strength in ASKS.items():
        w_q[FEATURES.index(has), FEATURES.index(wants)] = strength
    # An eighth, since 32 layers add up. Without residuals it makes no difference: unit() takes it out.
    return SelfAttention(w_q, np.eye(WIDTH), np.eye(WIDTH) / 8, similarity="dot", temperature=0.2)


def deepen(x, layer, residual, layers=LAYERS):
    """Return the words at the start and after each layer, (layers + 1, n, d)."""
    steps = [x]
    for _ in range(layers):
        x = unit(x + layer(x)) if residual else unit(layer(x))
        steps.append(x)
    return np.array(steps)


def alike(steps):
    """Return the mean cosine of two different words, and the least, after each layer."""
    cosines = (steps @ steps.swapaxes(-1, -2))[:, *np.triu_indices(steps.shape[1], 1)]
    return cosines.mean(axis=1), cosines.min(axis=1)


def story(words, steps):
    """Return the columns of the table, which are the lines of the picture."""
    heard = steps[:, words.index("it")] @ steps[0].T  # cosines with what the words were at the start
    shown = {word: heard[:, words.index(word)] for word in ("it", "animal", "street", words[-1])}
    return {**shown, "alike": alike(steps)[0]}


def draw(panels):
    """Return a matplotlib figure with two panels, the stories with residuals and without."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(
            "matplotlib is not installed, but --plot needs it in deep.py. The numbers above are complete. "
            'For the picture: pip install "softdict[plot]"'
        ) from None
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    # Okabe and Ito's colors, which the color-blind can tell apart.
    colors = "#000000", "#D55E00", "#0072B2", "#CC79A7", "#009E73"
    styles = "-", "-", "--", "-.", ":"
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, panel in zip((left, right), panels, strict=True):
        for (name, line), color, style in zip(panel.items(), colors, styles, strict=True):
            label = "any two words, with each other" if name == "alike" else name
            ax.plot(line, style, color=color, label=label, linewidth=2)
        ax.set(xlabel="layer", xlim=(0, len(line) - 1), ylim=(-0.05, 1.05), xticks=range(0, len(line), 8))
        ax.grid(alpha=0.3)
    left.set(title="with residuals: x + layer(x)", ylabel='cosine of "it" with words at the start')
    right.set(title="without: layer(x)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def nearest(words, steps):
    """Return the word to whose start "it" has come nearest, perhaps its own."""
    return words[np.argmax(steps[-1, words.index("it")] @ steps[0].T)]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Ask 32 layers deep, with residual connections and without.")
    parser.add_argument("--plot", metavar="OUT.png", help="draw the picture into this file")
    plot = parser.parse_args(arguments).plot

    words, layer = sentence(), by_hand()
    it = words.index("it")
    kept, lost = (deepen(embed(words), layer, residual) for residual in (True, False))
    panels = story(words, kept), story(words, lost)
    print(f"{'with residuals':>28}{'without':>35}")
    print("layer       it animal street  tired  alike       it animal street  tired  alike")
    for i in SHOWN:
        rows = ["".join(f"{line[i]:7.2f}" for line in panel.values()) for panel in panels]
        print(f"{i:5}", *rows, sep="  ")

    for i in (1, LAYERS):
        heard = layer.lookup(kept[i - 1], words)[0].top(4)[it]
        shares = ", ".join(f"{entry.key} {entry.weight:.2f}" for entry in heard)
        print(f'in layer {i} "it" listens to {shares}')
    print('with residuals "it" has come nearest to:', nearest(words, kept))
    wide = sentence("wide")
    print('and with "wide" in place of "tired" to:', nearest(wide, deepen(embed(wide), layer, True)))
    least = [alike(deepen(embed(words), layer, residual, layers=200))[1] for residual in (True, False)]
    with_, without = (line[LAYERS] for line in least)
    print(f"least cosine of two words in the end: {with_:.2f} with residuals, {without:.2f} without")
    with_, without = (np.flatnonzero(line > 0.99)[0] for line in least)
    print(f"layers until any two words are 0.99 alike: {with_} with residuals, {without} without")
    if plot:
        draw(panels).savefig(plot, dpi=150)


if __name__ == "__main__":
    main()
