"""Pictures: what is drawn are the numbers of the lookup, and nothing else changes."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from softdict import SelfAttention, SoftDict, fit, fit_temperature, plot, real_head
from softdict.encoders import CharNgrams

ROOT = Path(__file__).parents[1]

matplotlib.use("Agg")  # no window

HOSTILE = ["$x^2", "_hidden", "a\nb\x1b[2J", "$\\frac$", "", "x" * 300, "%s", "{}"]


def axes(count=1):
    return Figure(layout="constrained").subplots(1, count)


@pytest.fixture
def numbers_dict():
    return SoftDict({0: 10.0, 1: 20.0, 2: 40.0})


@pytest.fixture
def spots():
    return SoftDict.from_arrays([[1, 0], [0, 1], [3, 3]], [0, 1, 2], ["a", "b", "c"], temperature=0)


def every_picture(numbers_dict, spots):
    """Yield a call for each function, and how many axes it wants."""
    yield 1, lambda ax: plot.lookup(numbers_dict.lookup(0.9), ax)
    yield 1, lambda ax: plot.temperature(numbers_dict, 0.9, ax)
    yield 1, lambda ax: plot.attention(numbers_dict.self_attention(), ax)
    yield 2, lambda ax: plot.attention(np.full((2, 3, 4), 0.25), ax)
    yield 1, lambda ax: plot.regression(numbers_dict, ax, points=50)
    yield 3, lambda ax: plot.plane(spots, ax, points=11)
    yield 1, lambda ax: plot.training({"loss": [3.0, 2.0, 1.0], "temperature": [1.0, 0.5, 0.2]}, ax)


# ---- manners ---------------------------------------------------------------------------------------


def test_nothing_global_changes(numbers_dict, spots):
    with matplotlib.rc_context():
        matplotlib.rcParams["lines.linewidth"] = 7  # the user's own setting stays too
        before = dict(matplotlib.rcParams)
        figures, cycle = pyplot.get_fignums(), copy.copy(matplotlib.rcParams["axes.prop_cycle"])
        for count, draw in every_picture(numbers_dict, spots):
            given = axes(count)
            drawn = draw(given)
            figure = np.ravel(given)[0].figure
            assert all(artist.figure is figure for artist in drawn)
            figure.canvas.draw()
        assert pyplot.get_fignums() == figures, "axes were given, so pyplot has no part in it"
        assert dict(matplotlib.rcParams) == before
        assert matplotlib.rcParams["axes.prop_cycle"] == cycle


def test_without_axes_there_is_one_new_figure_of_pyplots(numbers_dict, spots):
    own = pyplot.figure()
    before = set(pyplot.get_fignums())  # pages that were run before have left some
    try:
        for count, draw in every_picture(numbers_dict, spots):
            drawn = draw(None)
            (new,) = set(pyplot.get_fignums()) - before
            assert drawn[0].figure is pyplot.figure(new)
            assert len([ax for ax in drawn[0].figure.axes if ax.get_xlabel() or ax.images]) == count
            assert not own.axes
            pyplot.close(new)
    finally:
        pyplot.close("all")


def test_wrong_axes_are_told(numbers_dict, spots):
    with pytest.raises(ValueError, match=r"a sequence of 3 axes, one for each picture, or None was expected"):
        plot.plane(spots, axes())
    with pytest.raises(ValueError, match=r"the axes of a figure or None was expected in plot.lookup"):
        plot.lookup(numbers_dict.lookup(1), axes(2))
    with pytest.raises(TypeError, match=r"ax is 3, but the axes of a figure or None"):
        plot.regression(numbers_dict, 3)


def test_without_matplotlib_it_says_what_to_install(numbers_dict, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'matplotlib is missing.* Run pip install "softdict\[plot\]"'):
        plot.regression(numbers_dict)


def test_hostile_names_are_drawn_as_they_are():
    sd = SoftDict.from_arrays(np.random.default_rng(0).normal(size=(8, 2)), np.arange(8), HOSTILE)
    ax = axes()
    plot.lookup(sd.lookup("$\\frac$"), ax)
    ax.figure.canvas.draw()  # nothing is set as mathematics
    shown = {text.get_text() for text in ax.get_yticklabels()}
    assert {r"\$x^2", " _hidden", r"a\nb\x1b[2J", r"\$\frac\$", "%s", "{}"} <= shown
    for draw in (
        lambda: plot.temperature(sd, "_hidden", axes(), limit=20),
        lambda: plot.attention(sd.self_attention(), axes()),
        lambda: plot.plane(sd, axes(3), points=5),
    ):
        drawn = draw()
        drawn[0].figure.canvas.draw()
    ax = axes()
    plot.temperature(sd, "_hidden", ax, limit=20)
    assert len(ax.get_legend().get_texts()) == 8 + 1, "names with an underscore are in the legend"


def test_colors_can_be_told_apart_without_color():
    """Neighbors in the order of use differ in lightness, or in their line."""
    rgb = np.array([matplotlib.colors.to_rgb(color) for color in plot.COLORS])
    assert len({*zip(plot.COLORS, plot.STYLES * 2, strict=True)}) == 6
    # Machado, Oliveira, Fernandes, 2009: deuteranopia, the most common
    deutan = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    seen = rgb @ np.transpose(deutan)
    gaps = np.linalg.norm(seen[:, None] - seen[None], axis=-1)[~np.eye(6, dtype=bool)]
    assert gaps.min() > 0.1


# ---- room ------------------------------------------------------------------------------------------

SETTINGS = {"new": None, "plain": {}, "constrained": {"layout": "constrained"}, "tight": {"layout": "tight"}}


def named(shortest, longest, n=30, **settings):
    rng = np.random.default_rng(0)
    words = "the library opens every morning at nine and members borrow books from its shelves".split()
    names = [" ".join(rng.permutation(words))[: rng.integers(shortest, longest + 1)] for _ in range(n)]
    settings = {"encoder": CharNgrams(), "similarity": "cosine", "temperature": 0.1, **settings}
    return SoftDict({name: float(i) for i, name in enumerate(names)}, **settings)


def drawn(draw, setting="plain"):
    """Draw on axes of this setting and return them; all that is written must be in the figure."""
    ax = None if SETTINGS[setting] is None else pyplot.subplots(**SETTINGS[setting])[1]
    first = draw(ax)[0]
    figure = first.figure
    figure.canvas.draw()
    pyplot.close(figure)
    box, page = figure.get_tightbbox(), figure.bbox_inches
    assert min(box.x0, box.y0) >= 0, box
    assert box.x1 <= page.x1, box
    assert box.y1 <= page.y1, box
    for each in figure.axes:
        assert each.get_window_extent().width >= page.width * figure.dpi / (2 * len(figure.axes))
    return first.axes


def legend_of(ax, count):
    """Return the box of the legend; it has all names, is inside the axes, and covers no line of theirs."""
    legend = ax.get_legend()
    box, frame = legend.get_window_extent(), ax.get_window_extent()
    assert len(legend.get_texts()) == count
    assert frame.x0 <= box.x0 < box.x1 <= frame.x1
    assert box.y1 <= frame.y1
    curves = [line for each in ax.figure.axes for line in each.lines]
    tops = [np.nanmax(line.get_transform().transform(line.get_xydata())[:, 1]) for line in curves]
    assert max(tops) < box.y0, "above all lines"
    assert max(tops) - frame.y0 > 0.3 * frame.height, "lines have room too"
    return box


@pytest.mark.parametrize(
    ("setting", "letters", "limit", "count"),
    [
        (setting, *case)
        for setting in SETTINGS
        for case in [((20, 60), 6, 8), ((20, 60), 2, 4), ((14, 14), 6, 8)]
    ]
    + [("new", (20, 60), 30, 31)],  # more than fits on axes of the usual size
)
def test_thirty_long_names_leave_the_dial_its_room(setting, letters, limit, count):
    sd = named(*letters)
    ax = drawn(lambda ax: plot.temperature(sd, "when does the library open?", ax, limit=limit), setting)
    assert ax.get_window_extent().width > 0.75 * ax.figure.bbox.width
    legend_of(ax, count)
    shown = [[float(tick) for tick in each.get_yticks()] for each in ax.figure.axes]
    assert [ticks[0] for ticks in shown] == [0, 0]
    assert [ticks[-1] for ticks in shown] == pytest.approx([1, 30]), "no tick above all"


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_dial_of_three_numbers_has_its_legend_in_one_row(setting, numbers_dict):
    ax = drawn(lambda ax: plot.temperature(numbers_dict, 0.9, ax), setting)
    assert legend_of(ax, 4).height < 0.08 * ax.get_window_extent().height
    words = {text.get_text(): text.get_window_extent() for text in ax.get_xticklabels()}
    label = ax.xaxis.label.get_window_extent()
    assert words["0\nhard"].x1 < label.x0 < label.x1 < words["∞\naverage"].x0
    assert not any(box.overlaps(label) for box in words.values())


def test_the_dial_beside_another_picture():
    sd = named(20, 60)
    figure, (other, ax) = pyplot.subplots(1, 2, figsize=(10, 4))
    plot.temperature(sd, "when does the library open?", ax)
    pyplot.close(figure)
    figure.canvas.draw()
    assert legend_of(ax, 8).height < 0.4 * ax.get_window_extent().height, "two names fit beside each other"
    assert ax.get_tightbbox().x0 > other.get_window_extent().x1
    assert figure.bbox.y0 <= ax.get_tightbbox().y0


@pytest.mark.parametrize("setting", ["new", "constrained"])
@pytest.mark.parametrize(
    "change", [{"temperature": 9.0}, {"temperature": 1e-4}, {"temperature": 0}, {"null_score": 0.9}]
)
def test_what_is_said_below_the_bars_is_wrapped(setting, change):
    why = named(20, 60, **change).lookup("when does the library open?")
    ax = drawn(lambda ax: plot.lookup(why, ax), setting)
    assert "calibrate" in ax.get_xlabel()


# ---- one lookup --------------------------------------------------------------------------------------


def test_bars_are_the_weights_best_first_and_the_winner_is_outlined(numbers_dict):
    ax, why = axes(), numbers_dict.lookup(0.9)
    bars = plot.lookup(why, ax)
    assert [bar.get_width() for bar in bars] == [match.weight for match in why.top(3)]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["1", "0", "2"]
    assert [text.get_text() for text in ax.texts] == ["45.1%", "30.2%", "24.7%"]
    outline = matplotlib.colors.to_rgba(matplotlib.rcParams["text.color"])
    assert [bar.get_edgecolor() == outline for bar in bars] == [True, False, False]
    assert bars[0].get_linewidth() == 2
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "best first is at the top"
    assert ax.get_xlim()[0] == 0
    assert ax.get_title() == "0.9 asks 3 entries"
    said = ax.get_xlabel().split("\n")
    assert said[1:] == ["hard: 20   soft: 21.93", "rests on 2.905 of 3 entries"] == repr(why).split("\n")[-2:]


def test_others_share_a_bar_and_so_does_the_silent_entry():
    sd, ax = SoftDict({i: float(i) for i in range(20)}, temperature=9, null_score=-3), axes()
    why = sd.lookup(3)
    bars = plot.lookup(why, ax, limit=4)
    widths = [bar.get_width() for bar in bars]
    assert widths[:4] == [match.weight for match in why.top(4)]
    assert sum(widths) == pytest.approx(1, abs=1e-15)
    assert widths[-1] == why.null_weight
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names[4:] == ["16 more", "(nothing matches)"]
    assert bars[-1].get_hatch()
    assert len(plot.lookup(why, axes(), limit=19)) == 21, "a bar for '1 more' is a bar for the entry"


@pytest.mark.parametrize(
    ("null_score", "temperature", "silent"),
    [
        (-0.001, 0.1, True),
        (-0.001, 0, True),
        (-0.2, 0.1, False),
        (-0.001, np.inf, False),
        (-0.0051, 0, False),
    ],
)
def test_the_bar_of_what_a_hard_lookup_finds_is_outlined(numbers_dict, null_score, temperature, silent):
    """At T = inf all have the same share, and a hard lookup finds the best entry."""
    ax, sd = axes(), numbers_dict.at(null_score=null_score, temperature=temperature)
    bars = plot.lookup(sd.lookup(0.9), ax)
    outlined = [bar.get_linewidth() == 2 for bar in bars]
    assert outlined == ([False] * 3 + [True] if silent else [True] + [False] * (len(bars) - 1))
    said = ax.get_xlabel().split("\n")
    assert said[0] == f"share of the answer (hard winner outlined{': nothing' if silent else ''})"
    assert said[1].startswith(f"hard: {'(nothing matches)' if silent else 20} ")
    assert said[1] in repr(sd.lookup(0.9)), "as the print says"
    bars = plot.lookup(sd.lookup(0.9, where=np.zeros(3, bool)), axes())
    assert [bar.get_linewidth() == 2 for bar in bars] == [True], "nothing to be seen, so nothing is found"


@pytest.mark.parametrize("temperature", [0, 0.01, 100, np.inf])
def test_advice_is_that_of_the_print(temperature, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ax, why = axes(), SoftDict({i: float(i) for i in range(10)}, temperature=temperature).lookup(3)
    plot.lookup(why, ax)
    advice = ax.get_xlabel().split("\n")[-1]
    assert advice == repr(why).split("\n")[-1]
    assert "calibrate()" in advice


def test_a_lookup_that_reached_nothing_is_empty(numbers_dict):
    ax = axes()
    assert plot.lookup(numbers_dict.lookup(0.9, where=np.zeros(3, bool)), ax) == []
    assert "hard: (no entry)   soft: (no entry)" in ax.get_xlabel()


def test_batches_and_arrays_are_no_single_lookup(numbers_dict):
    with pytest.raises(
        ValueError, match=r"a batch of 2, but that of a single query was expected in plot.lookup"
    ):
        plot.lookup(numbers_dict.lookup([0, 1]))
    with pytest.raises(TypeError, match=r"is None, but that of a single query was expected"):
        plot.lookup(None)


# ---- temperature -------------------------------------------------------------------------------------


def test_lines_are_weights_from_the_real_zero_to_the_real_infinity(numbers_dict):
    ax = axes()
    *lines, effective = plot.temperature(numbers_dict, 0.9, ax)
    x = lines[0].get_xdata()
    assert ax.get_xscale() == "log"
    assert (np.diff(x) > 0).all()
    for k, T in [(0, 0.0), (17, x[17]), (40, x[40]), (-1, np.inf)]:
        look = numbers_dict.at(temperature=T).lookup(0.9)
        assert [line.get_ydata()[k] for line in lines] == look.weights[[1, 0, 2]].tolist()
        assert effective.get_ydata()[k] == look.effective
    assert [line.get_label() for line in lines] == ["1", "0", "2"]
    ticks = dict(zip(ax.get_xticks(), [text.get_text() for text in ax.get_xticklabels()], strict=True))
    assert (ticks[x[0]], ticks[x[-1]], ticks[1.0]) == ("0\nhard", "∞\naverage", "1")
    assert ax.get_title() == "0.9 asks 3 entries (gaussian)"
    # the right axis has n where the left has all
    twin = effective.axes
    assert np.allclose(np.array(twin.get_ylim()) / 3, ax.get_ylim())
    assert "T = 1" in ax.texts[0].get_text()
    assert effective.get_linestyle() == ":" not in [line.get_linestyle() for line in lines]


@pytest.mark.parametrize(
    ("sd", "query"),
    [
        (SoftDict({0: 1.0}), 0),
        (SoftDict({0: 1.0, 2: 3.0}), 1),  # all tie
        (SoftDict({0: 1.0, 1e-120: 3.0, 1e120: 5.0}), 0),
        (SoftDict({0: 1.0, 1e-150: 3.0}), 0),
        (SoftDict({0: 1.0, 1: 3.0}, temperature=0), 0.2),
        (SoftDict({0: 1.0, 1: 3.0}, temperature=np.inf), 0.2),
        (SoftDict({0: 1.0, 1: 3.0}, temperature=5e-324), 0.2),
        (SoftDict({0: 1.0, 5: 3.0}, min_score=-1), 3),  # nothing is reached
        (SoftDict({0: "a", 5: "b"}), 3),
    ],
)
def test_any_scores_have_a_range(sd, query):
    ax = axes()
    lines = plot.temperature(sd, query, ax)
    ax.figure.canvas.draw()
    for line in lines:
        assert np.isfinite(line.get_xdata()).all()
        assert np.isfinite(line.get_ydata()).all()


def test_lines_of_the_others_and_the_silent_entry():
    sd = SoftDict({i: float(i) for i in range(20)}, null_score=-2)
    *lines, _ = plot.temperature(sd, 3.1, axes(), limit=3)
    assert [line.get_label() for line in lines] == ["3", "4", "2", "17 more, together", "(nothing matches)"]
    assert np.allclose(sum(line.get_ydata() for line in lines), 1)


# ---- attention ---------------------------------------------------------------------------------------


def sums(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() == "sum"]


def test_the_real_head_has_its_names_numbers_and_sums():
    layer, sentences = real_head()
    tokens, x = sentences["tired"]
    found, ax = layer.lookup(x, tokens), axes()
    (image,) = plot.attention(found, ax)
    assert (image.get_array() == found.weights[0]).all()
    assert image.get_clim() == (0, 1)
    assert [text.get_text() for text in ax.get_xticklabels()] == tokens
    assert [text.get_text() for text in ax.get_yticklabels()] == tokens
    n, it, animal = len(tokens), tokens.index("it"), tokens.index("animal")
    written = {text.get_position(): text.get_text() for text in ax.texts if not text.get_gid()}
    assert written[animal, it] == "0.677"
    assert len(written) == (found.weights >= 0.05).sum()
    assert sums(ax)[:n] == ["1"] * n
    assert sums(ax)[n] == "8.28"
    assert "rows sum to 1, columns to 0.051 ... 8.28" in ax.get_title()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("entry answers", "query asks")
    assert ax.xaxis.get_label_position() == "top"


def test_each_head_has_a_map_and_a_single_one_can_be_drawn():
    layer = SelfAttention.random(6, heads=3, rng=0, causal=True)
    found = layer.lookup(np.random.default_rng(0).normal(size=(4, 6)), "abcd")
    given = axes(3)
    images = plot.attention(found, given)
    assert [image.axes for image in images] == list(given)
    for i, image in enumerate(images):
        assert (image.get_array() == found.weights[i]).all()
        assert given[i].get_title().startswith(f"head {i}\n")
        assert sums(given[i])[:4] == ["1"] * 4
    assert (plot.attention(found[1], axes())[0].get_array() == found.weights[1]).all()
    named = plot.attention(found.weights[2], axes(), queries="wxyz", keys="abcd")[0].axes
    assert [text.get_text() for text in named.get_yticklabels()] == list("wxyz")


def test_the_silent_entry_has_a_column_that_rows_count():
    sd, ax = SoftDict({0: 1.0, 1: 2.0}, null_score=-1), axes()
    (image,) = plot.attention(sd.lookup([0.5, 3]), ax)
    assert image.get_array().shape == (2, 3)
    assert ax.get_xticklabels()[-1].get_text() == "(nothing)"
    assert sums(ax)[:2] == ["1", "1"]
    empty = axes()
    plot.attention(np.array([[0.5, 0.5], [0, 0]]), empty)
    assert sums(empty)[:2] == ["1", "0"]
    assert "rows sum to 0 ... 1" in empty.get_title()


def test_a_large_map_says_its_sums_and_its_scale():
    weights, ax = np.random.default_rng(0).dirichlet(np.ones(60), 50), axes()
    (image,) = plot.attention(weights, ax)
    assert not ax.texts
    assert not len(ax.get_xticks())
    assert image.get_clim() == (0, weights.max())
    assert "rows sum to 1, columns to" in ax.get_title()
    assert f"darkest: {weights.max():.3f}" in ax.get_title()


@pytest.mark.parametrize(
    ("weights", "names", "message"),
    [
        (np.ones(3), {}, r"shape \(3,\)"),
        (np.ones((0, 3)), {}, r"shape \(0, 3\)"),
        (np.array([[np.nan]]), {}, "NaN or negative"),
        (np.array([[-1.0]]), {}, "NaN or negative"),
        (np.ones((1, 2)), {"keys": "abc"}, "there are 3 keys, but 2 were expected"),
        (np.ones((1, 2)), {"queries": "ab"}, "there are 2 queries, but 1 were expected"),
    ],
)
def test_wrong_weights_are_told(weights, names, message):
    with pytest.raises(ValueError, match=message):
        plot.attention(weights, **names)


# ---- regression --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_staircase_a_curve_and_a_line(shape):
    x, y = np.array([0.0, 1.0, 2.0]), np.array([10.0, 20.0, 40.0])
    sd = SoftDict.from_arrays(x.reshape(3, *shape), y.reshape(3, *shape))
    ax = axes()
    stairs, curve, flat, entries = plot.regression(sd, ax, points=301)
    grid = stairs.get_xdata()
    assert grid[0] < 0
    assert grid[-1] > 2
    nearest = np.where(grid < 0.5, 10.0, np.where(grid < 1.5, 20.0, 40.0))
    assert (stairs.get_ydata() == nearest)[np.abs(grid % 1 - 0.5) > 1e-9].all()
    assert curve.get_ydata() == pytest.approx(np.ravel(sd[grid.reshape(-1, *shape)]), abs=1e-12)
    assert flat.get_ydata() == pytest.approx(np.full(301, 70 / 3), rel=1e-14)
    assert entries.get_xdata().tolist() == x.tolist()
    assert entries.get_ydata().tolist() == y.tolist()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["T = 0: the nearest entry", "T = 1: a blend", "T = inf: the mean of all", "entries"]


def test_chosen_temperatures_and_gaps():
    sd = SoftDict({0: 1.0, 10: 2.0}, min_score=-2)
    lines = plot.regression(sd, axes(), temperatures=[0.5, 2.0, 0.5], points=101)
    assert len(lines) == 3, "a temperature given twice is drawn once"
    far = np.minimum(abs(lines[0].get_xdata()), abs(lines[0].get_xdata() - 10)) > 2
    assert (np.isnan(lines[0].get_ydata()) == far).all()


def test_other_keys_and_values_are_no_regression():
    for sd in (SoftDict({(0, 1): 1.0}), SoftDict({0: [1.0, 2.0]}), SoftDict()):
        with pytest.raises(ValueError, match=r"plain numbers as both, and at least one entry, were expected"):
            plot.regression(sd)
    with pytest.raises(TypeError):
        plot.regression(SoftDict({0: "text"}))


# ---- the plane ---------------------------------------------------------------------------------------


def test_who_wins_where(spots):
    """The story's keys: asked [1, .1], the dot product picks the long key, and a distance the near one."""
    given = axes(3)
    images = plot.plane(spots, given, points=41)
    colors = [matplotlib.colors.to_rgb(color) for color in plot.COLORS[:3]]
    left, right, bottom, top = images[0].get_extent()
    assert right - left == pytest.approx(top - bottom), "a square"
    assert left < 0 < right
    x, y = np.linspace(left, right, 41), np.linspace(bottom, top, 41)
    for image, similarity, winner in zip(images, ["gaussian", "dot", "cosine"], [0, 2, 0], strict=True):
        picture = np.asarray(image.get_array())
        column, row = np.abs(x - 1).argmin(), np.abs(y - 0.1).argmin()
        assert tuple(picture[row, column, :3]) == colors[winner]
        for i, j in [(0, 0), (5, 33), (40, 2), (row, column)]:
            key = spots.at(similarity=similarity).lookup([x[j], y[i]]).winner
            assert tuple(picture[i, j, :3]) == colors["abc".index(key)]
        assert image.axes.get_title() == f"{similarity}, T = 0"
        assert image.origin == "lower"
        assert [text.get_text() for text in image.axes.texts] == ["a", "b", "c"]
        points = image.axes.collections[0].get_offsets()
        assert (points == spots.key_vectors).all()


def test_the_winner_pales_with_its_share(spots):
    (hard,) = plot.plane(spots, axes(), similarities=["dot"], points=11)
    (warm,) = plot.plane(spots.at(temperature=4), axes(), similarities=["dot"], points=11)
    left, right, bottom, top = warm.get_extent()
    grid = np.array([[x, y] for y in np.linspace(bottom, top, 11) for x in np.linspace(left, right, 11)])
    shares = spots.at(temperature=4, similarity="dot").lookup(grid).weights.max(axis=1)
    assert np.asarray(warm.get_array())[:, :, 3].ravel() == pytest.approx(0.75 * shares)
    assert (np.asarray(hard.get_array())[:, :, :3] == np.asarray(warm.get_array())[:, :, :3]).all()
    assert np.asarray(hard.get_array())[:, :, 3].max() == 0.75


def test_where_nothing_is_reached_the_plane_is_empty():
    sd = SoftDict({(0, 0): 1.0, (9, 9): 2.0}, min_score=-1)
    (image,) = plot.plane(sd, axes(), similarities=["gaussian"], points=21)
    opacity = np.asarray(image.get_array())[:, :, 3]
    assert 0 < (opacity == 0).sum() < opacity.size
    assert not image.axes.texts, "the names of vectors are their places"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("spread", "n", "least"), [(1, 30, 8), (0.02, 3, 2), (1, 8, 6)])
def test_names_in_the_plane_cover_nothing_and_stay_inside(setting, spread, n, least):
    spots = np.array([3.0, -1.0]) + spread * np.random.default_rng(0).normal(size=(n, 2))
    sd = SoftDict.from_arrays(spots, np.arange(n), [f"a name such as {i}" for i in range(n)])
    ax = drawn(lambda ax: plot.plane(sd, ax, similarities=["gaussian"], points=5), setting)
    boxes, frame = [text.get_window_extent() for text in ax.texts], ax.get_window_extent()
    assert len(boxes) >= least
    assert not sum(box.count_overlaps(boxes) - 1 for box in boxes)
    assert all(frame.count_contains(box.corners()) == 4 for box in boxes)
    assert not any(box.count_contains(ax.transData.transform(spots)) for box in boxes)
    for text in ax.texts:
        left, bottom = text.get_position()
        assert max(abs(left), abs(bottom)) <= 5, "near its spot"


# ---- training ----------------------------------------------------------------------------------------


def test_losses_by_step_and_the_best():
    x = np.linspace(0, 6, 30)
    _, result = fit(SoftDict.from_arrays(x, np.sin(x)), learn=["temperature", "values"], progress=False)
    ax = axes()
    losses, best, warmth = plot.training(result, ax)
    assert losses.get_ydata().tolist() == result.history["loss"].tolist()
    assert losses.get_xdata().tolist() == list(range(1, len(result.history["loss"]) + 1))
    assert best.get_ydata()[0] == result.history["loss"].min()
    assert warmth.get_ydata().tolist() == result.history["temperature"].tolist()
    assert warmth.axes is not ax
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("step", "loss", "log")
    assert plot.training(result.history, axes())[0].get_ydata().tolist() == losses.get_ydata().tolist()
    ax = axes()
    plain = plot.training([2.0, np.nan, 1.0, -1.0], ax)
    assert len(plain) == 2
    assert plain[1].get_xdata().tolist() == [4]
    assert ax.get_yscale() == "linear"


def test_a_search_for_one_temperature_is_drawn_by_temperature():
    x = np.linspace(0, 6, 30)
    noisy = np.sin(x) + np.random.default_rng(0).normal(scale=0.3, size=30)
    new, result = fit_temperature(SoftDict.from_arrays(x, noisy), progress=False)
    ax = axes()
    losses, best = plot.training(result, ax)
    assert (np.diff(losses.get_xdata()) >= 0).all()
    assert sorted(losses.get_ydata()) == sorted(result.history["loss"])
    assert best.get_xdata()[0] == pytest.approx(new.temperature)
    assert (ax.get_xlabel(), ax.get_xscale()) == ("temperature T", "log")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("losses", "warmth", "scale"),
    [
        ([62.0, 55.0, 51.0, 48.0], [1.0, 0.8, 0.7, 0.6], "linear"),
        ([48.0, 62.0, 55.0, 51.0], [0.6, 0.7, 0.8, 1.0], "linear"),
        ([90.0, 1.0], [0.9, 0.01], "linear"),
        ([900.0, 1.0, 2.0], [9.0, 0.05, 0.01], "log"),
        ([0.0, np.nan, -1.0], [0.1, 0.2, 0.4], "linear"),
    ],
)
def test_the_legend_of_losses_covers_none_and_ticks_are_plain(setting, losses, warmth, scale):
    ax = drawn(lambda ax: plot.training({"loss": losses, "temperature": warmth}, ax), setting)
    legend_of(ax, 3)
    assert all(tick == int(tick) for tick in ax.get_xticks()), "there is no half of a step"
    for each in ax.figure.axes:
        assert each.get_yscale() == scale
        (low, high), written = each.get_ylim(), each.get_yticklabels()
        shown = [text.get_text() for text in written if low <= text.get_position()[1] <= high]
        assert len(shown) >= 2
        assert "times" not in "".join(shown)
        assert ("10^" in "".join(shown)) == (scale == "log")


@pytest.mark.parametrize("losses", [[], [np.nan], {"temperature": [1.0]}, [[1.0], [2.0]]])
def test_no_losses_are_told(losses):
    with pytest.raises(ValueError, match=r"there are no losses in .*, but at least one was expected"):
        plot.training(losses)


# ---- the pictures of README and docs -------------------------------------------------------------------


def test_the_script_draws_the_pictures_that_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import pictures

    before = pyplot.get_fignums()
    pictures.main(tmp_path)
    assert pyplot.get_fignums() == before
    drawn = {path.name: path for path in tmp_path.iterdir()}
    kept = {path.name: path for path in (ROOT / "docs" / "how-to" / "pictures").iterdir()}
    assert set(drawn) == set(kept) == set(re.findall(r"^(\S+):", capsys.readouterr().out, re.M))
    for name, path in drawn.items():
        assert pyplot.imread(path).shape == pyplot.imread(kept[name]).shape
        assert kept[name].stat().st_size < 100_000
        assert pyplot.imread(kept[name]).std() > 0.05, "it is not blank"


def test_every_picture_is_shown_with_words_for_those_who_do_not_see_it():
    shown = {}
    for page in (ROOT / "README.md", ROOT / "docs" / "how-to" / "pictures.md"):
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            shown.setdefault(Path(target).name, []).append(words)
    assert set(shown) == {path.name for path in (ROOT / "docs" / "how-to" / "pictures").iterdir()}
    assert all(len(words.split()) > 10 for found in shown.values() for words in found)
