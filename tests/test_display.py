"""What a terminal shows: it fits, it stays true, and no key can move the cursor."""

import io
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softdict import display

HOSTILE = [
    "evil\x1b[2J\nkey",
    "a\tb\r",
    "\u202eright to left",
    "日本語の長いキー" * 9,
    "e\u0301" * 50,
    "👩\u200d🚀" * 20,
    "\ud800",
    "",
    "  ",
    "x" * 500,
    (1.0, -0.0, 3.5e300),
    None,
    b"\x00\xff",
]


def screen_columns(line):
    """Count terminal columns, independently of display."""
    wide = {"W": 2, "F": 2}
    return sum(0 if unicodedata.combining(c) else wide.get(unicodedata.east_asian_width(c), 1) for c in line)


def lookup(n=20, **changes):
    scores = -np.arange(n) / 2.0
    weights = np.exp(scores) / np.exp(scores).sum()
    settings = {
        "query": "what?",
        "keys": [f"key {j}" for j in range(n)],
        "scores": scores,
        "weights": weights,
        "values": list(range(n)),
        "order": list(range(n)),
        "similarity": "gaussian",
        "temperature": 1.0,
        "hard": 0.0,
        "soft": 1.5,
        "effective": 4.0,
        "width": 80,
        "color": False,
    } | changes
    return display.highlighter(**settings)


# ---- the width -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [200, 80, 60, 59, 40, 32, 31, 24, 23, 20, 10, 5, 2, 1])
@pytest.mark.parametrize("null", [0.0, 0.25])
def test_no_line_is_wider_than_the_width(width, null):
    for hostile in HOSTILE:
        n = 20
        text = lookup(
            n,
            query=hostile,
            keys=[hostile] * n,
            values=[hostile] * n,
            hard=hostile,
            soft=None,
            null_weight=null,
            width=width,
        )
        table = display.matrix([hostile] * 30, [hostile] * n, np.full((30, n), 1 / n), width=width)
        for line in [*text.split("\n"), *table.split("\n")]:
            assert screen_columns(line) <= width, (line, hostile)
            assert line.isprintable(), (line, hostile)


@given(st.text(max_size=30), st.integers(0, 40))
def test_clip_pad_and_wrap_fit(text, width):
    text = display.printable(text)
    assert text.isprintable()
    assert display.columns(display.clip(text, width)) <= width
    assert display.columns(display.pad(text, width)) == width
    lines = display.wrap(text, width + 2)
    assert all(display.columns(line) <= width + 2 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.one_of(st.floats(), st.text(), st.lists(st.floats()), st.binary()), st.integers(1, 60))
def test_short_is_one_printable_line(value, width):
    text = display.short(value, width)
    assert text.isprintable()
    assert display.columns(text) <= width


def test_the_width_is_that_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "37")
    assert max(map(screen_columns, lookup(width=None).split("\n"))) <= 37
    monkeypatch.setenv("COLUMNS", "0")
    assert display.terminal()[0] >= 1


def test_short_survives_a_broken_repr():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert "Broken" in display.short(Broken())


def test_short_values():
    assert display.short(np.float32(0.1)) == "0.1"
    assert display.short(np.array(2.0)) == "2"
    assert display.short(np.int64(7)) == "7"
    assert display.short((1.0,)) == "(1,)"
    assert display.short(np.ones((2, 2))) == "[[1, 1], [1, 1]]"
    assert display.short(np.ones((30, 4))) == "array of 30 x 4"
    assert display.short(np.zeros(0)) == "[]"
    assert display.short("a") == "'a'"
    assert display.short(True) == "True"
    assert display.short(float("nan")) == "nan"


# ---- numbers ------------------------------------------------------------------------------------


@given(st.floats(0, 1))
def test_percentages_stay_true(share):
    text = display.percent(share)
    if text == "100%":
        assert share == 1
    elif text == "0%":
        assert share == 0
    elif text == "<0.1%":
        assert 0 < share < 0.001
    else:
        assert abs(float(text[:-1]) / 100 - share) <= 0.00100001
        assert 0 < float(text[:-1]) < 100


@given(st.floats() | st.floats(-1e12, 1e12) | st.integers(-(10**12), 10**12))
def test_numbers_stay_true(x):
    text = display.number(x)
    if not 1.7e308 < abs(x) < np.inf:
        assert float(text) == pytest.approx(x, rel=1e-3, nan_ok=True)
    assert len(text) <= 13


def test_shown_numbers_are_the_numbers_returned():
    rng = np.random.default_rng(0)
    weights, scores = rng.dirichlet(np.full(9, 5.0)), rng.normal(size=9)
    order = np.argsort(-weights)
    lines = lookup(9, weights=weights, scores=scores, order=order).split("\n")[2:11]
    for line, j in zip(lines, order, strict=True):
        key, value, score, share = re.match(r"(key \d) +(\d+) +(\S+) +(\S+)%", line).groups()
        assert key == f"key {j}"
        assert int(value) == j
        assert float(score) == pytest.approx(scores[j], rel=1e-3)
        assert float(share) / 100 == pytest.approx(weights[j], abs=0.00051)


def test_extreme_scores_are_shown():
    text = lookup(3, scores=np.array([-1e300, 1e-300, -np.inf]), weights=np.array([1.0, 0.0, 0.0]), width=60)
    assert "-1e+300" in text
    assert "1e-300" in text
    assert "-inf" in text
    assert "100%" in text


# ---- what is said --------------------------------------------------------------------------------


def test_the_rest_is_summed():
    text = lookup(105, weights=np.array([0.08] * 12 + [0.04 / 93] * 93))
    assert "... and 93 more entries share 4.0%" in text
    assert text.count("key ") == 12
    assert "more" not in lookup(13)  # a line for '1 more entry' is a line for the entry


def test_what_takes_no_part_is_counted():
    assert "1 entry takes no part" in lookup(4, order=[0, 1, 2])
    assert "4 entries take no part" in lookup(4, order=[])
    assert "97 entries take no part" in lookup(4, order=[0, 1, 2], count=100)


def test_hard_and_soft_stand_side_by_side():
    assert "hard: 20   soft: 15.88" in lookup(hard=20.0, soft=15.8812)
    assert "hard: a pet   soft: no blend" in lookup(hard="a pet", soft=None)
    narrow = lookup(hard="a loyal pet", soft=0.5, width=16).split("\n")
    assert "hard: a loyal pet"[:13] + "..." in narrow
    assert "soft: 0.5" in narrow


def test_the_null_entry_has_a_line():
    assert re.search(r"\(nothing matches\) .* 25.0%", lookup(null_weight=0.25))
    assert "nothing" not in lookup()


@pytest.mark.parametrize(
    ("n", "effective", "said"),
    [(8, 4.01, True), (8, 4.0, False), (8, 1.0, True), (8, 1.01, False), (7, 7.0, False)],
)
def test_answers_on_too_much_or_too_little_name_calibrate(n, effective, said):
    assert ("calibrate" in lookup(n, effective=effective)) is said


def test_similarities_are_named():
    assert "(gaussian, T = 1)" in lookup()
    assert "(dist, T = inf)" in lookup(similarity=lambda: 0, temperature=np.inf).replace("<lambda>", "dist")


# ---- color and encoding ---------------------------------------------------------------------------


class Screen(io.StringIO):
    def __init__(self, encoding, tty=True):
        super().__init__()
        self.kind, self.tty = encoding, tty

    encoding = property(lambda self: self.kind)

    def isatty(self):
        return self.tty


@pytest.mark.parametrize(
    ("tty", "no_color", "term", "colored"),
    [
        (True, None, "xterm", True),
        (True, "", "xterm", True),
        (True, "1", "xterm", False),
        (True, None, "dumb", False),
        (False, None, "xterm", False),
    ],
)
def test_color_is_for_terminals_that_want_it(monkeypatch, tty, no_color, term, colored):
    monkeypatch.setattr("sys.stdout", Screen("utf-8", tty))
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[" in lookup(color=None)) is colored


@pytest.mark.parametrize("width", [80, 40, 20, 3])
def test_color_changes_nothing_else(width):
    colored = lookup(width=width, color=True, null_weight=0.2)
    assert re.sub(r"\x1b\[\d+m", "", colored) == lookup(width=width, null_weight=0.2)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_what_is_shown_can_be_printed(monkeypatch, encoding):
    monkeypatch.setattr("sys.stdout", Screen(encoding))
    for hostile in HOSTILE:
        text = lookup(keys=[hostile] * 20, query=hostile, hard=hostile)
        text.encode(encoding)
        assert ("█" in text) == (encoding == "utf-8")
        assert ("#" in text) == (encoding != "utf-8")
        display.matrix([hostile], [hostile], np.ones((1, 1))).encode(encoding)


def test_ink_is_in_proportion():
    lengths = [len(display.ink(share, 24)) for share in (1e-9, 0.25, 0.5, 1)]
    assert lengths == [1, 6, 12, 24]
    assert display.ink(0, 24) == display.ink(0.5, 0) == ""


# ---- the matrix ------------------------------------------------------------------------------------


def test_the_matrix_names_its_axes_and_shows_its_sums():
    weights = np.array([[0.75, 0.25, 0.0], [0.125, 0.375, 0.5]])
    lines = display.matrix(["q0", "q1"], ["a", "b", "c"], weights, width=80).split("\n")
    assert lines[0] == "query asks (down), entry answers (across)"
    assert lines[1].split() == ["a", "b", "c", "sum"]
    assert lines[2].split() == ["q0", "0.750", "0.250", "0", "1"]
    assert lines[3].split() == ["q1", "0.125", "0.375", "0.500", "1"]
    assert lines[4].split() == ["sum", "0.875", "0.625", "0.500", "2"]


def test_rounding_does_not_show_in_the_sums():
    weights = np.random.default_rng(1).dirichlet(np.ones(7), 7)
    for dtype in (np.float64, np.float32):
        lines = display.matrix(range(7), range(7), weights.astype(dtype), width=80).split("\n")
        assert [line.split()[-1] for line in lines[2:]] == ["1"] * 7 + ["7"]


def test_sums_count_what_is_not_shown():
    weights = np.full((50, 40), 1 / 40)
    text = display.matrix(range(50), range(40), weights, width=80)
    lines = text.split("\n")
    assert len(lines) == 2 + 12 + 2 + 1
    assert lines[-2].split()[:2] == ["sum", "1.25"]
    assert lines[-2].split()[-1] == "50"
    assert lines[-1] == "50 queries, 40 entries"


def test_the_silent_entry_has_a_column():
    text = display.matrix(["q"], ["a"], [[0.25]], null_weight=np.array([0.75]), width=60)
    assert text.split("\n")[1].split() == ["a", "(nothing)", "sum"]
    assert text.split("\n")[2].split() == ["q", "0.250", "0.750", "1"]
    assert "nothing" not in display.matrix(["q"], ["a"], [[1.0]], null_weight=np.zeros(1))


@pytest.mark.parametrize("m", [0, 1, 13, 14])
@pytest.mark.parametrize("n", [0, 1, 13, 14])
def test_matrices_of_any_size(m, n):
    text = display.matrix(range(m), range(n), np.zeros((m, n)), width=50)
    assert text.split("\n")[0] == "query asks (down), entry answers (across)"
    assert text.split("\n")[-1].startswith(("sum", f"{m} queries"))


def test_a_matrix_has_two_axes():
    with pytest.raises(ValueError, match=r"weights has 1 axes, but \(m, n\) was expected"):
        display.matrix(["q"], ["a"], [1.0])
