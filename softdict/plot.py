"""Pictures with matplotlib: who answers, from hard to average, who wins where, and how it was learned.

Import it as ``from softdict import plot`` (``pip install "softdict[plot]"``). Every function draws on the
axes `ax`, on new ones of pyplot's where none are given, and returns a list of what it drew, whose first has
the figure: ``plot.lookup(why)[0].figure.savefig("why.png")``. Axes of your own have room for long names in
a figure of ``layout="constrained"``. It takes a SoftDict or an answer as it is, and
changes no setting of matplotlib. The color-blind can tell its colors apart; what matters is outlined, dashed
or written too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from softdict import display
from softdict._checks import Floats, brief, check_count, numbers

#: Okabe and Ito, 2008, without the yellow, which a white page swallows.
COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GRAY = "#888888"
STYLES = "-", "--", "-."  # dotted are effective entries

#: Where more rows or columns than this are drawn, names and numbers would cover each other.
MOST_NAMES, MOST_NUMBERS = 40, 20


def _axes(ax: Any, count: int, size: tuple[float, float], caller: str) -> list[Any]:
    """Return `count` axes: those given, or new ones, each of `size` inches."""
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError(
                f"the package matplotlib is missing, but it was expected by {caller}. Run pip install "
                '"softdict[plot]".'
            ) from None
        inches = count * size[0], size[1]
        return list(pyplot.subplots(1, count, figsize=inches, layout="constrained", squeeze=False)[1][0])
    axes = list(np.ravel(np.array(ax, dtype=object)))
    usable = all(hasattr(each, "imshow") for each in axes)
    if len(axes) != count or not usable:
        wanted = (
            "the axes of a figure" if count == 1 else f"a sequence of {count} axes, one for each picture,"
        )
        raise (ValueError if usable else TypeError)(
            f"ax is {brief(ax)}, but {wanted} or None was expected in {caller}. Make them with "
            f"matplotlib.pyplot.subplots(1, {count})."
        )
    return axes


def _escaped(line: str) -> str:
    """Keep matplotlib from setting a text as mathematics."""
    return line.replace("$", r"\$")


def _text(name: Any, width: int = 24) -> str:
    """Write a name; one that begins with an underscore would be left out of a legend."""
    text = _escaped(display.label(name, width))
    return f" {text}" if text.startswith("_") else text


def _ink() -> str:
    """Return the color of text, which is legible on the background that the user has chosen."""
    from matplotlib import rcParams

    return str(rcParams["text.color"])


def _legend(ax: Any, lines: Sequence[Any], *axes: Any) -> None:
    """Put a legend inside `ax`, above all lines of it and its twins `axes`.

    Outside, long names would squeeze the axes, and leave the figure where no layout engine makes room.
    """
    frame = ax.get_window_extent()
    for columns in (4, 3, 2, 1):
        legend = ax.legend(handles=lines, loc="upper center", ncols=columns, fontsize="small", frameon=False)
        box = legend.get_window_extent()
        if box.width < frame.width:
            break
    legend.set_in_layout(False)
    share = min((frame.y1 - box.y0) / frame.height + 0.02, 0.7)
    for each in (ax, *axes):
        scale = each.yaxis.get_transform()
        low, high = scale.transform(each.get_ylim())
        each.set_ylim(top=scale.inverted().transform(low + (high - low) / (1 - share)))


def _one(look: Any, caller: str) -> Any:
    """Return the answer to a single query."""
    weights: Any = getattr(look, "weights", None)
    if np.ndim(weights) != 1:
        batch = weights is not None
        what = f"a batch of {len(weights)}" if batch else brief(look)
        raise (ValueError if batch else TypeError)(
            f"the lookup is {what}, but that of a single query was expected in {caller}. Ask with "
            "sd.lookup(query), or draw a batch with plot.attention."
        )
    return look


# ---- one lookup ------------------------------------------------------------------------------------


def lookup(look: Any, ax: Any = None, *, limit: int = 12) -> list[Any]:
    """Draw one lookup as bars, best first, with the hard winner outlined and both answers below.

    **Equivalent to:** ``ax.barh([m.key for m in look.top(limit)], [m.weight for m in look.top(limit)])``

    Parameters
    ----------
    look : Lookup
        What ``sd.lookup(query)`` returns for one query.
    ax : matplotlib axes, optional
        Where to draw.
    limit : int
        How many entries get a bar of their own; the others share a gray one.

    Returns
    -------
    list of matplotlib rectangles
        The bars, from the top: entries, the others together, the silent entry (hatched), which is outlined
        where its share is the largest.

    Raises
    ------
    TypeError, ValueError
        For anything but the lookup of one query.
    ImportError
        Without matplotlib.

    Notes
    -----
    O(n) time. All bars together are 100%, or nothing where the query reached no entry.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from softdict import SoftDict, plot
    >>> why = SoftDict({0: 10.0, 1: 20.0, 3: 40.0}).lookup(0.9)
    >>> bars = plot.lookup(why, ax=Figure().subplots())
    >>> [round(float(bar.get_width()), 3) for bar in bars]
    [0.561, 0.376, 0.062]
    >>> plot.lookup(why.weights)
    Traceback (most recent call last):
    ...
    TypeError: the lookup is array([0.37..., but that of a single query was expected in plot.lookup. ...
    """
    n = len(_one(look, "plot.lookup").keys)
    limit = check_count("limit", limit, "in plot.lookup. It is how many bars to draw")
    best = look.top(n)
    shown = best[: display.own_lines(len(best), limit)]
    rows = [(_text(match.key), match.weight, COLORS[0]) for match in shown]
    if rest := best[len(shown) :]:
        rows.append((f"{len(rest)} more", math.fsum(match.weight for match in rest), GRAY))
    if look.null_weight > 0:
        rows.append((display.NOTHING, float(look.null_weight), "none"))
    names, shares, colors = zip(*rows, strict=True) if rows else ((), (), ())

    (ax,) = _axes(ax, 1, (6, 1.6 + 0.3 * len(rows)), "plot.lookup")
    bars = ax.barh(range(len(rows)), shares, color=colors)
    if look.null_weight > 0:
        bars[-1].set(hatch="///", edgecolor=GRAY)
    silent = bool(look.null_weight > max((match.weight for match in best), default=0))
    if rows:
        bars[-1 if silent else 0].set(edgecolor=_ink(), linewidth=2)
    ax.bar_label(bars, [display.percent(share) for share in shares], padding=4)
    ax.set_yticks(range(len(rows)), names)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, 1.2 * max(shares, default=1) or 1))
    ax.set_title(f"{_text(look.queries, 40)} asks {display.counted(n)}", wrap=True)
    hard, soft = (best[0].value if best else display.NO_ENTRY), (look.value if rows else display.NO_ENTRY)
    answers = display.side_by_side(display.NOTHING if silent else hard, soft, 70)
    answers.append(display.resting(float(look.effective), n))
    said = f"share of the answer (hard winner outlined{': nothing' * silent})"
    ax.set_xlabel("\n".join([said, *map(_escaped, answers)]), wrap=True)
    return list(bars)


# ---- from hard to average --------------------------------------------------------------------------


def temperature(sd: Any, query: Any, ax: Any = None, *, limit: int = 6) -> list[Any]:
    """Draw the shares of the entries, and on how many the answer rests, from T = 0 to infinity.

    **Equivalent to:** ``ax.semilogx(T, [sd.at(temperature=t).lookup(query).weights for t in T])``

    Parameters
    ----------
    sd : SoftDict
        Its own temperature is marked by a vertical line.
    query : object
        One query.
    ax : matplotlib axes, optional
        Where to draw; the axis at the right is a twin of it.
    limit : int
        How many entries get a line of their own; the others share a gray one.

    Returns
    -------
    list of matplotlib lines
        One for each entry, best first, the others together, the silent entry; the last one is that of the
        effective entries (dotted, axis at the right).

    Raises
    ------
    KeyError
        As ``sd.lookup(query)`` does.
    TypeError, ValueError
        For a batch of queries.
    ImportError
        Without matplotlib.

    Notes
    -----
    Time of 60 lookups. The ends of the axis are no limits but the real 0 and infinity. Between them T goes
    from a tenth of the gap between best and second best score to thirty times the spread of all, over at most
    8 decades.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from softdict import SoftDict, plot
    >>> sd = SoftDict({0: 10.0, 1: 20.0, 3: 40.0})
    >>> *entries, effective = plot.temperature(sd, 0.9, ax=Figure().subplots())
    >>> [line.get_label() for line in entries]
    ['1', '0', '3']
    >>> [float(line.get_ydata()[0]) for line in entries], round(float(effective.get_ydata()[-1]), 9)
    ([1.0, 0.0, 0.0], 3.0)
    >>> plot.temperature(sd, [0.9, 1.1])
    Traceback (most recent call last):
    ...
    ValueError: the lookup is a batch of 2, but that of a single query was expected in plot.temperature. ...
    """
    look = _one(sd.lookup(query), "plot.temperature")
    limit = check_count("limit", limit, "in plot.temperature. It is how many lines to draw")
    n, best = len(look.keys), look.top(len(look.keys))
    low, high = _range(np.array([match.score for match in best]), sd.temperature)
    inner = np.geomspace(low, high, 58)
    step = (high / low) ** 0.08
    x = np.concatenate([[low / step], inner, [high * step]])
    looks = [sd.at(temperature=T).lookup(query) for T in (0.0, *inner.tolist(), math.inf)]
    weights = np.array([each.weights for each in looks])

    (ax,) = _axes(ax, 1, (6.4, 4.2 + 0.1 * min(limit, n)), "plot.temperature")
    place = {key: j for j, key in enumerate(look.keys)}
    rows = [place[match.key] for match in best]
    shown = rows[: display.own_lines(len(rows), limit)]
    letters = min(24, int(ax.get_window_extent().width / ax.figure.dpi * 5.5))
    curves = [
        (_text(look.keys[j], letters), weights[:, j], COLORS[i % len(COLORS)]) for i, j in enumerate(shown)
    ]
    if rest := rows[len(shown) :]:
        curves.append((f"{len(rest)} more, together", weights[:, rest].sum(axis=1), GRAY))
    if any(each.null_weight > 0 for each in looks):
        curves.append((display.NOTHING, np.array([each.null_weight for each in looks]), _ink()))

    lines = [
        ax.plot(x, y, style, color=color, label=name, linewidth=2, markevery=[0, -1], marker="o")[0]
        for style, (name, y, color) in zip(itertools.cycle(STYLES), curves, strict=False)
    ]
    decades = np.arange(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = [10.0**k for k in decades[:: max(1, len(decades) // 5)].tolist()]
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks([x[0], *ticks, x[-1]], ["0\nhard", *map(display.number, ticks), "∞\naverage"])
    own = {0: x[0], math.inf: x[-1]}.get(sd.temperature, sd.temperature)
    if x[0] <= own <= x[-1]:
        ax.vlines(own, -0.03, 1.08, color=GRAY, linewidth=1, zorder=0)
        mark, side = f" T = {display.number(sd.temperature)} ", own < math.sqrt(low * high)
        ax.text(own, 1.08, mark, color=GRAY, va="top", ha="left" if side else "right")
    ax.set(ylabel="share of the answer")
    ax.set_xlabel("temperature T", labelpad=-ax.get_xticklabels()[0].get_size())  # between the words
    asked = f"{_text(query, 40)} asks {display.counted(n)}"
    ax.set_title(f"{asked} ({_escaped(display.named(sd.similarity))})", wrap=True)

    twin = ax.twinx()
    effective = [each.effective for each in looks]
    lines += twin.plot(x, effective, ":", color=_ink(), linewidth=2.5, label="effective entries")
    twin.set(ylabel="rests on ... entries (dotted)")
    for each, most in ((ax, 1), (twin, n)):
        each.set_ylim(-0.03 * most, 1.08 * most)
        each.set_yticks([tick for tick in each.get_yticks() if 0 <= tick <= 1.01 * most])
    _legend(ax, lines, twin)
    return lines


def _range(scores: Floats, own: float) -> tuple[float, float]:
    """Return the temperatures between which something happens."""
    levels = np.unique(scores[np.isfinite(scores)])
    if len(levels) < 2:
        middle = min(max(own, 1e-100), 1e100)
        return middle / 10, middle * 10
    high = min(max(30 * float(levels[-1] - levels[0]), 1e-290), 1e300)
    return min(max(float(levels[-1] - levels[-2]) / 10, high * 1e-8), high / 10), high


# ---- everyone asks everyone ------------------------------------------------------------------------


def attention(weights: Any, ax: Any = None, *, queries: Any = None, keys: Any = None) -> list[Any]:
    """Draw weights as a heat map for each head: the query asks (down), the entry answers (across).

    At the right of each row stands what it sums to, and below each column how much is heard of that entry.

    **Equivalent to:** ``[ax.imshow(w, cmap="Blues", vmin=0, vmax=1) for ax, w in zip(axes, weights)]``

    Parameters
    ----------
    weights : array of shape (m, n) or (h, m, n), Lookup of a batch, or Lookups
        The shares, each in [0, 1]: what `attention_weights`, ``sd.self_attention()`` and ``layer.lookup(x)``
        return. ``layer.lookup(x)[3]`` is one head of it.
    ax : matplotlib axes, or sequence of h of them, optional
        Where to draw each head.
    queries, keys : sequence of m and of n objects, optional
        What stands at the rows and columns; by default the names that `weights` has, or their places.

    Returns
    -------
    list of h matplotlib images

    Raises
    ------
    TypeError, ValueError
        For other shapes and NaN, and for names and axes that do not fit.
    ImportError
        Without matplotlib.

    Notes
    -----
    O(h m n) time. The palest blue is 0, the darkest is 1, and shares of at least 5% are written; with more
    than 20 columns the darkest is the largest share, as the title says. Names and sums are written up to 40.
    Where there is a silent entry it has a column, which the sum of a row counts.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from softdict import plot
    >>> ax = Figure().subplots()
    >>> image, = plot.attention(np.array([[0.1, 0.9], [0.25, 0.75]]), ax=ax, keys=["it", "animal"])
    >>> [text.get_text() for text in ax.texts if text.get_gid() == "sum"]
    ['1', '1', '0.350', '1.65']
    >>> plot.attention(np.zeros(3))
    Traceback (most recent call last):
    ...
    ValueError: weights has shape (3,), but (m, n) or (h, m, n), of at least one share, was expected ...
    """
    own: Any = getattr(weights, "weights", None)
    array = numbers(weights if own is None else own, "weights").astype(np.float64)
    wrong = "" if (array >= 0).all() and np.isfinite(array).all() else " and NaN or negative numbers in it"
    if array.ndim not in (2, 3) or not array.size or wrong:
        raise ValueError(
            f"weights has shape {array.shape}{wrong}, but (m, n) or (h, m, n), of at least one share, was "
            "expected in plot.attention. Draw a single query with plot.lookup."
        )
    array = array.reshape(-1, *array.shape[-2:])
    h, m, n = array.shape
    looks = weights if np.ndim(own) == 3 else [weights]  # of a layer, one for each head
    nulls = np.zeros((h, m)) if own is None else np.stack([look.null_weight for look in looks])
    rows = _names(queries, getattr(weights, "queries", None), m, "queries")
    columns = _names(keys, getattr(weights, "keys", None), n, "keys")
    size = min(max(3, 0.42 * n + 1.6), 9), min(max(2.6, 0.3 * m + 1.6), 9)
    axes = _axes(ax, h, size, "plot.attention")
    top = 1.0 if n <= MOST_NUMBERS else float(array.max()) or 1.0
    titles = [f"head {i}" for i in range(h)] if h > 1 else [""]
    heads = zip(axes, array, nulls, titles, strict=True)
    return [_heat_map(ax, w, null, rows, columns, title, top) for ax, w, null, title in heads]


def _names(given: Any, own: Any, count: int, what: str) -> list[str]:
    chosen = own if given is None else given
    found = [_text(name, 14) for name in (range(count) if chosen is None else chosen)]
    if len(found) != count:
        raise ValueError(
            f"there are {len(found)} {what}, but {count} were expected in plot.attention, one for each "
            f"{'row' if what == 'queries' else 'column'} of the weights. Give as many names."
        )
    return found


def _heat_map(
    ax: Any, weights: Floats, null: Floats, queries: list[str], keys: list[str], title: str, top: float
) -> Any:
    numbered = weights.shape[1] <= MOST_NUMBERS
    if (null > 0).any():
        weights, keys = np.column_stack([weights, null]), [*keys, "(nothing)"]
    m, n = weights.shape
    image = ax.imshow(weights, cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    if numbered and m <= MOST_NAMES:
        for i, j in np.argwhere(weights >= 0.05):
            ink = "white" if weights[i, j] > 0.55 else "black"
            ax.text(j, i, display.decimal(weights[i, j]), color=ink, ha="center", va="center", fontsize=7)
    ax.set_xticks(range(n), keys, rotation=90) if n <= MOST_NAMES else ax.set_xticks([])
    ax.set_yticks(range(m), queries) if m <= MOST_NAMES else ax.set_yticks([])
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.xaxis.set_label_position("top")

    rows, columns = weights.sum(axis=1).round(6), weights.sum(axis=0).round(6)
    small: Any = {"fontsize": 7, "color": _ink(), "gid": "sum"}
    for i, total in enumerate(rows if m <= MOST_NAMES else []):
        place = {"transform": ax.get_yaxis_transform(), "va": "center"}
        ax.text(1.01, i, display.decimal(total), **place, **small)
    for j, total in enumerate(columns if n <= MOST_NAMES else []):
        place = {"transform": ax.get_xaxis_transform(), "va": "top", "ha": "center"}
        ax.text(j, -0.01, display.decimal(total), rotation=90 if n > 8 else 0, **place, **small)
    sums = f"rows sum to {_between(rows)}, columns to {_between(columns)}"
    scale = "" if numbered else f"darkest: {display.decimal(top)}"
    ax.set(xlabel="entry answers", ylabel="query asks")
    ax.set_title("\n".join(filter(None, [title, sums, scale])), fontsize="medium")
    return image


def _between(sums: Floats) -> str:
    low, high = display.decimal(sums.min()), display.decimal(sums.max())
    return low if low == high else f"{low} ... {high}"


# ---- numbers ---------------------------------------------------------------------------------------


def regression(sd: Any, ax: Any = None, *, temperatures: Any = None, points: int = 1000) -> list[Any]:
    """Draw the answers over all queries: a staircase at T = 0, a curve, a flat line at infinity.

    **Equivalent to:** ``[ax.plot(x, sd.at(temperature=T)[x]) for T in (0, sd.temperature, math.inf)]``

    Parameters
    ----------
    sd : SoftDict
        With plain numbers as keys (or vectors of width 1) and as values.
    ax : matplotlib axes, optional
        Where to draw.
    temperatures : sequence of float, optional
        By default 0, that of `sd`, and infinity.
    points : int
        How many queries to ask, evenly from a little before the first key to a little after the last.

    Returns
    -------
    list of matplotlib lines
        One for each temperature, then the entries as points.

    Raises
    ------
    ValueError
        For other keys and values, and for an empty dict.
    ImportError
        Without matplotlib.

    Notes
    -----
    Time of as many lookups as there are points, for each temperature. A line has a gap where a query reaches
    no entry. This is the kernel regression of Nadaraya and Watson, 1964; at T = 0, the nearest neighbor.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from softdict import SoftDict, plot
    >>> sd = SoftDict({0: 10.0, 1: 20.0, 2: 40.0})
    >>> stairs, curve, flat, entries = plot.regression(sd, ax=Figure().subplots())
    >>> sorted(set(stairs.get_ydata().tolist())), flat.get_ydata()[0].round(2).item()
    ([10.0, 20.0, 40.0], 23.33)
    >>> plot.regression(SoftDict({(0, 1): 1.0}))
    Traceback (most recent call last):
    ...
    ValueError: the SoftDict has 1 keys of shape (2,) and values of shape (), but plain numbers ...
    """
    keys, values = sd.key_vectors, sd.value_vectors
    if keys.shape[1:] not in ((), (1,)) or values.shape[1:] not in ((), (1,)) or not len(keys):
        raise ValueError(
            f"the SoftDict has {len(keys)} keys of shape {keys.shape[1:]} and values of shape "
            f"{values.shape[1:]}, but plain numbers as both, and at least one entry, were expected in "
            "plot.regression. Draw keys of width 2 with plot.plane."
        )
    points = check_count("points", points, "in plot.regression. It is how many queries to ask")
    temperatures = (0.0, sd.temperature, math.inf) if temperatures is None else temperatures
    x = np.linspace(*_margin(keys), points)
    (ax,) = _axes(ax, 1, (6.4, 4), "plot.regression")
    lines = []
    for i, T in enumerate(dict.fromkeys(temperatures)):
        y = np.reshape(sd.at(temperature=T).get(x.reshape(-1, *keys.shape[1:]), math.nan), -1)
        name = {0: "T = 0: the nearest entry", math.inf: "T = inf: the mean of all"}.get(T)
        name = name or f"T = {display.number(T)}: a blend"
        style = {"linestyle": STYLES[i % len(STYLES)], "color": COLORS[i % len(COLORS)], "linewidth": 2}
        lines += ax.plot(x, y, label=name, **style)
    dots = {"color": _ink(), "markersize": 6 if len(keys) <= MOST_NAMES else 2, "zorder": 3}
    lines += ax.plot(np.ravel(keys), np.ravel(values), "o", label="entries", **dots)
    ax.set(xlabel="query (entries: key)", ylabel="answer (entries: value)")
    ax.set_title(f"{display.counted(len(keys))} ({_escaped(display.named(sd.similarity))})")
    ax.legend()
    return lines


def _margin(x: Any) -> tuple[float, float]:
    """Return the range of some numbers and a little on both sides."""
    low, high = float(np.min(x)), float(np.max(x))
    margin = (high - low) * 0.12 or abs(low) * 0.12 or 1.0
    return low - margin, high + margin


# ---- the plane -------------------------------------------------------------------------------------


def plane(
    sd: Any, ax: Any = None, *, similarities: Sequence[Any] = ("gaussian", "dot", "cosine"), points: int = 101
) -> list[Any]:
    """Draw who wins where, for one similarity beside the other; the paler, the smaller the winner's share.

    **Equivalent to:** ``ax.imshow(sd.at(similarity=s).lookup(grid).weights.argmax(axis=1))`` for each.

    Parameters
    ----------
    sd : SoftDict
        With key vectors of width 2. At its temperature 0 the winner's share is 1.
    ax : matplotlib axes, or sequence of as many as there are similarities, optional
        Where to draw each.
    similarities : sequence
        As in `soft_lookup`. One alone is ``["dot"]``.
    points : int
        How many queries to ask in each direction.

    Returns
    -------
    list of matplotlib images
        One for each similarity, (points, points, 4): color by winner, opacity by its share.

    Raises
    ------
    ValueError
        For other keys, and for an empty dict.
    ImportError
        Without matplotlib.

    Notes
    -----
    O(points^2 n) time and memory for each similarity, refused like any lookup too large. The origin, where
    dot and cosine begin, is always in the picture, as a cross. Where no entry is reached it stays empty. Up
    to 40 entries are named, where their names are not just their places, as far as there is room for a name
    that covers no other; there are six colors, so that of many entries some share one.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from softdict import SoftDict, plot
    >>> sd = SoftDict.from_arrays([[1, 0], [0, 1], [3, 3]], [0, 1, 2], ["a", "b", "c"], temperature=0)
    >>> near, dot = plot.plane(sd, ax=Figure().subplots(1, 2), similarities=["gaussian", "dot"], points=25)
    >>> blue, green = (0.0, 0.447, 0.698), (0.0, 0.62, 0.451)  # those of "a" and "c"
    >>> [tuple(image.get_array()[8, 12][:3].round(3).tolist()) in (blue, green) for image in (near, dot)]
    [True, True]
    >>> plot.plane(SoftDict({0: 1.0}))
    Traceback (most recent call last):
    ...
    ValueError: there are 1 keys of shape (), but (2,) was expected in plot.plane, and at least one. ...
    """
    keys = sd.key_vectors
    if keys.shape[1:] != (2,) or not len(keys):
        raise ValueError(
            f"there are {len(keys)} keys of shape {keys.shape[1:]}, but (2,) was expected in plot.plane, and "
            "at least one. Draw plain numbers with plot.regression, or project the keys on two coordinates."
        )
    points = check_count("points", points, "in plot.plane. It is how many queries to ask in each direction")
    similarities = list(similarities)
    axes = _axes(ax, len(similarities), (3.6, 4), "plot.plane")
    ranges = np.array([_margin([0.0, *coordinates.tolist()]) for coordinates in keys.T])
    middle, half = ranges.mean(axis=1), np.ptp(ranges, axis=1).max() / 2  # a square
    (left, bottom), (right, top) = (middle - half).tolist(), (middle + half).tolist()
    x, y = np.meshgrid(np.linspace(left, right, points), np.linspace(bottom, top, points))
    grid = np.column_stack([x.ravel(), y.ravel()]).astype(keys.dtype)
    return [_regions(ax, sd.at(similarity=s), grid, (left, right, bottom, top)) for ax, s in
            zip(axes, similarities, strict=True)]  # fmt: skip


def _regions(ax: Any, sd: Any, grid: Any, extent: tuple[float, float, float, float]) -> Any:
    from matplotlib.colors import to_rgb

    look, points = sd.lookup(grid), math.isqrt(len(grid))
    place = {key: j for j, key in enumerate(look.keys)}
    won = np.array([-1 if key is None else place[key] for key in look.winner])
    shares = np.where(won < 0, 0.0, look.weights[np.arange(len(won)), won])
    colors = np.array([to_rgb(color) for color in COLORS])
    picture = np.column_stack([colors[won % len(colors)], 0.75 * shares])
    image = ax.imshow(
        picture.reshape(points, points, 4), extent=extent, origin="lower", interpolation="nearest"
    )
    keys = sd.key_vectors
    ax.scatter(
        *keys.T, s=24, c=[COLORS[j % len(COLORS)] for j in range(len(keys))], edgecolors=_ink(), zorder=3
    )
    if len(keys) <= MOST_NAMES:
        _name(ax, look.keys, keys)
    ax.plot(0, 0, "+", color=_ink(), markersize=9)
    ax.set_title(f"{_escaped(display.named(sd.similarity))}, T = {display.number(sd.temperature)}")
    return image


def _name(ax: Any, names: Sequence[Any], spots: Any) -> None:
    """Name each spot beside it, inside the axes, where no other name and no spot is covered."""
    from matplotlib.transforms import Bbox

    ax.apply_aspect()  # else a square would not yet be one
    frame, taken = ax.get_window_extent(), [Bbox([at, at]).padded(1) for at in ax.transData.transform(spots)]
    across, along = ((5, "left"), (-5, "right"), (0, "center")), ((5, "bottom"), (-5, "top"), (0, "center"))
    for name, spot in zip(names, spots.tolist(), strict=True):
        if name == tuple(spot):
            continue
        text = ax.annotate(
            _text(name, 14), spot, (5, 5), textcoords="offset points", fontsize="small", color=_ink()
        )
        for (x, ha), (y, va) in itertools.product(across, along):
            text.set(position=(x, y), ha=ha, va=va)
            box = text.get_window_extent()
            if frame.count_contains(box.corners()) == 4 and not box.count_overlaps(taken):
                taken.append(box.padded(3))
                break
        else:
            text.remove()


# ---- learning --------------------------------------------------------------------------------------


def training(result: Any, ax: Any = None) -> list[Any]:
    """Draw how a loss went down, step by step; for one temperature alone, the loss of each that was tried.

    **Equivalent to:** ``ax.plot(result.history["loss"])``

    Parameters
    ----------
    result : OptimizeResult, mapping, or array of losses
        What `fit`, `fit_temperature` and `fit_attention` return second, its `history`, or losses of your own.
    ax : matplotlib axes, optional
        Where to draw; learned temperatures have a twin of it, with an axis at the right.

    Returns
    -------
    list of matplotlib lines
        That of the losses, the best of them as a ring, and that of the temperatures where there are any. Of
        `fit_temperature`'s result: losses by temperature, and the best.

    Raises
    ------
    ValueError
        For what has no losses.
    ImportError
        Without matplotlib.

    Notes
    -----
    O(steps) time. Losses and temperatures that are all above 0 have a logarithmic axis where the largest is
    over a hundred times the least. Steps whose loss is not finite leave a gap.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from softdict import SoftDict, fit, plot
    >>> sd = SoftDict.from_arrays(np.linspace(0, 6, 30), np.sin(np.linspace(0, 6, 30)))
    >>> new, result = fit(sd, learn=["temperature", "values"])
    >>> losses, best, temperatures = plot.training(result, ax=Figure().subplots())
    >>> bool(losses.get_ydata()[-1] == best.get_ydata()[0] < losses.get_ydata()[0])
    True
    >>> plot.training([])
    Traceback (most recent call last):
    ...
    ValueError: there are no losses in [], but at least one was expected in plot.training. ...
    """
    history = getattr(result, "history", result)
    history = history if isinstance(history, Mapping) else {"loss": history}
    losses = np.asarray(numbers(history.get("loss", []), "the losses"), dtype=np.float64)
    if losses.ndim != 1 or not np.isfinite(losses).any():
        raise ValueError(
            f"there are no losses in {brief(result)}, but at least one was expected in plot.training. Give "
            "it what fit returns second, or a list of numbers."
        )
    warmth = np.asarray(history.get("temperature", []), dtype=np.float64)
    searched = np.shape(getattr(result, "x", [])) == () and len(warmth) > 0  # what fit_temperature tried
    order = np.argsort(warmth) if searched else np.arange(len(losses))
    x, y = warmth[order] if searched else order + 1, losses[order]
    (ax,) = _axes(ax, 1, (6.4, 4), "plot.training")
    lines: list[Any] = ax.plot(
        x, y, "o-" if searched else "-", color=COLORS[0], linewidth=2, markersize=4, label="loss"
    )
    i = int(np.argmin(np.where(np.isfinite(y), y, math.inf)))
    best = f"best: {display.number(y[i])}" + f" at T = {display.number(x[i])}" * searched
    ring = {"markersize": 12, "markerfacecolor": "none", "markeredgewidth": 2, "color": COLORS[1]}
    lines += ax.plot(x[i : i + 1], y[i : i + 1], "o", label=best, **ring)
    ax.set(xlabel="temperature T" if searched else "step", ylabel="loss", yscale=_scale(y))
    ax.set_xscale(_scale(x) if searched else "linear")
    if not searched:
        ax.locator_params("x", integer=True)
    twins = [ax.twinx()] if len(warmth) and not searched else []
    for twin in twins:
        lines += twin.plot(x, warmth, "--", color=COLORS[2], linewidth=2, label="temperature")
        twin.set(ylabel="temperature T (dashed)", yscale=_scale(warmth))
    _legend(ax, lines, *twins)
    return lines


def _scale(x: Floats) -> str:
    """Choose the axis of some numbers; a logarithmic one of less than two decades has hardly a number."""
    x = x[np.isfinite(x)]
    return "log" if 0 < 100 * x.min(initial=math.inf) < x.max(initial=0) else "linear"
