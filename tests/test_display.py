"""What a terminal shows: it fits, it stays true, and no key can move the cursor."""

import io
import re
import unicodedata
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softdict import SelfAttention, SoftDict, display

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


# ---- HTML ------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Reads a table: its caption, its rows of texts, the ink of its cells, and what stands below."""

    ALLOWED = ("div", "table", "caption", "tr", "th", "td")

    def __init__(self, source):
        super().__init__()
        self.rows, self.inks, self.caption, self.notes, self.open = [], [], "", [], []
        self.feed(source)
        assert self.open == [], "every tag is closed"
        assert "\n" not in source

    def handle_starttag(self, tag, attributes):
        assert tag in self.ALLOWED
        attributes = dict(attributes)
        assert set(attributes) <= {"style", "scope"}
        style = attributes.get("style", "")
        assert not re.search(r"url|@|expression|nan|inf|var\(", style.replace("inherit", ""))
        assert not re.search("[<>]", style)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.inks.append([])
        if tag in ("th", "td"):
            assert ("scope" in attributes) == (tag == "th")
            self.rows[-1].append("")
            self.inks[-1].append(float((re.findall(r"rgba\(255,150,0,([\d.]+)\)", style) or [0])[0]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open:
            raise AssertionError(f"{data!r} stands outside")
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        elif self.open[-1] == "caption":
            self.caption += data
        else:
            self.notes.append(data)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n": 30, "effective": 29},
        {"n": 9, "order": [0, 1], "null_weight": 0.25, "soft": None},
        {"n": 3, "values": None},
        {"n": 4, "order": [], "weights": np.zeros(4), "hard": None, "effective": 0},
        {"n": 1, "weights": np.ones(1)},
    ],
)
def test_html_says_what_the_print_says(changes):
    page, lines = Page(lookup(**changes, as_html=True)), lookup(**changes, width=120).split("\n")
    assert page.caption == lines[0]
    assert page.notes == lines[1 + len(page.rows) :]
    printed = [re.sub("[█-▏]", "", line).split() for line in lines[1 : 1 + len(page.rows)]]
    assert [re.sub("[█-▏]", "", " ".join(row)).split() for row in page.rows] == printed


def test_ink_goes_by_weight_and_the_number_stands_beside_it():
    weights = np.array([0.6, 0.3, 0.0999, 0.0001, 0.0])
    page = Page(lookup(5, weights=weights, null_weight=0.5, as_html=True))
    assert [row[3] for row in page.rows] == ["share", "60.0%", "30.0%", "10.0%", "<0.1%", "0%", "50.0%"]
    assert [row[0] for row in page.inks[1:]] == [0.3, 0.15, 0.05, 0.01, 0, 0.25]
    assert page.inks[0] == [0] * 4, "headers have no ink"
    assert all(row[2:] == [0, 0, 0] for row in page.inks[1:])


@pytest.mark.parametrize("hostile", [*HOSTILE, "<script>alert(1)</script>", "&amp;", "\"'><b onclick=x>"])
def test_no_name_or_value_becomes_markup(hostile):
    class Named:
        def __repr__(self):
            return "<img src=x>"

    names = [hostile, Named()] * 10
    page = Page(lookup(20, query=hostile, keys=names, values=names, hard=hostile, soft=None, as_html=True))
    assert page.rows[1][0] == display.label(hostile, 60)
    assert page.rows[2][1] == display.short(Named(), 60)
    page = Page(display.matrix(names, names, np.eye(20), as_html=True))
    assert page.rows[1][0] == display.label(hostile, 30)
    assert page.rows[0][1] == display.label(hostile, 16)
    page = Page(display.contents(zip(names, names, strict=True), 20, lambda: 0, 1.0))
    assert page.rows[2] == [display.label(Named(), 60), display.short(Named(), 60)]


def test_html_is_capped():
    names = ["<" * 500] * 400
    assert len(lookup(400, keys=names, values=names, query=names[0], as_html=True)) < 25_000
    assert len(display.matrix(names, names, np.full((400, 400), 0.1), as_html=True)) < 60_000
    page = Page(display.matrix(names, range(400), np.full((400, 400), 1 / 400), as_html=True))
    assert [len(row) for row in page.rows] == [1 + 16 + 1 + 1] * (1 + 16 + 1 + 1)
    assert page.notes == ["400 queries, 400 entries"]


@pytest.mark.parametrize("m", [0, 1, 17, 18])
@pytest.mark.parametrize("n", [0, 1, 17, 18])
def test_the_matrix_in_html_is_that_of_the_print(m, n):
    weights = np.random.default_rng(m + n).dirichlet(np.ones(n), m) if n else np.zeros((m, 0))
    null = np.linspace(0, 0.5, m)
    weights = weights * (1 - null[:, None])
    page = Page(display.matrix(range(m), range(n), weights, null_weight=null, as_html=True))
    lines = display.matrix(range(m), range(n), weights, null_weight=null, limit=16, width=400).split("\n")
    assert page.caption == lines[0] == "query asks (down), entry answers (across)"
    assert [row[1:] for row in page.rows] == [
        lines[1].split(),
        *(x.split()[1:] for x in lines[2 : 1 + len(page.rows)]),
    ]
    assert page.notes == lines[1 + len(page.rows) :]
    assert ("..." in page.rows[0]) == (n == 18)
    for row, shares in zip(page.rows[1 : 1 + min(m, 16)], weights, strict=False):
        assert row[-1] == ("1" if n else row[-1])
        assert [float(x.replace("<", "")) for x in row[1 : 1 + min(n, 16)]] == pytest.approx(
            shares[:16], abs=1e-3
        )


def test_the_entries_in_html_are_counted():
    page = Page(display.contents([("cat", 1.0)], 3, "gaussian", 0.5))
    assert (page.caption, page.notes) == (
        "SoftDict of 3 entries (gaussian, T = 0.5)",
        ["... and 2 more entries"],
    )
    assert page.rows == [["entry", "value"], ["cat", "1"]]
    assert Page(display.contents([], 0, "gaussian", 1)).rows == []


def test_notebooks_show_what_is_printed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    sd = SoftDict({0: 10.0, 1: 20.0, 3: 40.0}, null_score=-1)
    shown = Page(sd._repr_html_())
    assert shown.rows[1:] == [["0", "10"], ["1", "20"], ["3", "40"]]
    assert (
        Page(sd.at(temperature=2).copy()._repr_html_()).caption == "SoftDict of 3 entries (gaussian, T = 2)"
    )
    for look in (sd.lookup(0.9), sd.lookup([0.9, 7]), sd.self_attention()):
        page, printed = Page(look._repr_html_()), repr(look).split("\n")
        assert [page.caption, *page.notes] == [printed[0], *printed[1 + len(page.rows) :]]
        rows = [" ".join(row).split() for row in page.rows]
        assert [row[:3] for row in rows] == [line.split()[:3] for line in printed[1 : 1 + len(rows)]]
    words = Page(SelfAttention(*[np.eye(2)] * 3, heads=2).lookup(np.eye(2), ["a", "b"])._repr_html_())
    assert [words.notes, [row[0] for row in words.rows]] == [
        ["head 0 of 2", "head 1 of 2"],
        ["", "a", "b", "sum"] * 2,
    ]


def test_a_few_of_many_are_shown_without_reading_a_map(tmp_path):
    np.save(tmp_path / "keys.npy", np.arange(300.0)[:, None])
    keys = np.load(tmp_path / "keys.npy", mmap_mode="r")
    page = Page(SoftDict.from_arrays(keys, keys)._repr_html_())
    assert len(page.rows) == 13
    assert page.notes == ["... and 288 more entries"]
