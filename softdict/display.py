"""Text and HTML from plain arrays: the highlighter of one lookup, the matrix of many, the entries.

What is shown is what was returned, rounded so that it stays true: 100% only where it is all, <0.1%
where it is little but not nothing. What a key or a value holds can never move the cursor, or become markup.
"""

from __future__ import annotations

import html
import math
import os
import reprlib
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

BOLD, DIM, INK = "1", "2", "33"

#: What the silent entry is called where its share is told.
NOTHING = "(nothing matches)"

#: What stands for both answers where no entry takes part.
NO_ENTRY = "(no entry)"

#: How columns of HTML look: text, and bars in a color that can be seen on white and on black.
COLUMNS = {"t": "text-align:left", "b": "text-align:left;color:#b87000"}

#: The text of a cell, and how much ink it gets, in [0, 1].
Cell = tuple[str, float]

# ---- text that fits ----------------------------------------------------------------------------


def encodable(text: str) -> bool:
    """Tell whether standard output can show a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True


def columns(text: str) -> int:
    """Count the terminal columns that a text takes."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def printable(text: str) -> str:
    r"""Escape what would move the cursor, hide, or fail to print.

    >>> print(printable("a\nb\x1b[2J"))
    a\nb\x1b[2J
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c.isprintable() and encodable(c) else c.encode("unicode_escape").decode() for c in text
    )


def clip(text: str, width: int) -> str:
    """Shorten a text to a number of columns.

    >>> clip("attention", 7), clip("attention", 2)
    ('atte...', '..')
    """
    if columns(text) <= width:
        return text
    dots = "..."[: max(width, 0)]
    room, kept = width - len(dots), []
    for c in text:
        room -= _columns(c)
        if room < 0:
            break
        kept.append(c)
    return "".join(kept) + dots


def pad(text: str, width: int, right: bool = False) -> str:
    """Clip a text or fill it up with spaces, at its left where it shall stand at the right."""
    text = clip(text, width)
    space = " " * (width - columns(text))
    return space + text if right else text + space


def terminal(width: int | None = None, color: bool | None = None) -> tuple[int, bool]:
    """Return the width of the terminal and whether it shows color, where they are not given."""
    if width is None:
        width = shutil.get_terminal_size().columns
    if color is None:
        tty = getattr(sys.stdout, "isatty", lambda: False)
        color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(tty())
    return max(width, 1), color


def paint(text: str, style: str, color: bool) -> str:
    """Give a text a style: its columns stay as they are."""
    return f"\x1b[{style}m{text}\x1b[0m" if color and text else text


# ---- numbers that stay true ----------------------------------------------------------------------


def number(x: float) -> str:
    """Write a number with four significant digits, whole numbers whole.

    >>> number(2.0), number(-1.23456), number(1e-300), number(12345.678), number(-float("inf"))
    ('2', '-1.235', '1e-300', '12345.7', '-inf')
    """
    x = float(x)
    if not math.isfinite(x) or abs(x) >= 1e10:
        return f"{x:.4g}"
    if x == int(x):
        return str(int(x))
    return f"{x:.1f}" if abs(x) >= 1e4 else f"{x:.4g}"


def percent(share: float) -> str:
    """Write a share as a percentage that claims neither all nor nothing where that is not so.

    >>> [percent(share) for share in (1, 1 - 1e-9, 0.677, 1e-9, 0)]
    ['100%', '99.9%', '67.7%', '<0.1%', '0%']
    """
    if share in (0, 1):
        return f"{share * 100:.0f}%"
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return "99.9%"
    return f"{100 * share:.1f}%"


def decimal(share: float) -> str:
    """Write a share of a matrix, or a sum of them."""
    if share == int(share):
        return str(int(share))
    if 0 < share < 0.001:
        return "<.001"
    if 0.999 < share < 1:
        return "0.999"
    return f"{share:.3f}" if share < 1 else f"{share:.2f}" if share < 100 else f"{share:.0f}"


def _sum(shares: Any, digits: int = 12) -> float:
    """Add shares, without the rounding errors that would show as 99.9%."""
    return round(float(np.sum(shares)), digits) or float(np.max(shares, initial=0.0))


# ---- values --------------------------------------------------------------------------------------


def short(value: Any, width: int = 40) -> str:
    r"""Write any value in one line of at most `width` columns.

    **Equivalent to:** ``repr(value)`` without line ends, its numbers rounded, its middle left out.

    Parameters
    ----------
    value : object
        A number, a vector, a string, anything.
    width : int
        The largest number of terminal columns.

    Returns
    -------
    str
        Without control characters, whatever the value's own `repr` holds.

    Raises
    ------
    TypeError
        If `width` is not a number. A `repr` that fails does not make this one fail.

    Notes
    -----
    Of a long vector only the first components are read. NaN and infinity show as they are.

    Examples
    --------
    >>> import numpy as np
    >>> short(2 / 3), short("two\nlines"), short((1.0, 0.0)), short(None)
    ('0.6667', "'two\\nlines'", '(1, 0)', 'None')
    >>> short(np.linspace(0, 1, 384))
    '[0, 0.002611, 0.005222, ...] of 384'
    >>> short("much longer than that", 10)
    "'much l..."
    """
    return clip(printable(_text(value, width)), width)


def _text(value: Any, width: int) -> str:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (float, np.floating)):
        return number(float(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        return _vector(value, width)
    if type(value) is tuple and value and all(isinstance(x, float) for x in value):
        comma = "," if len(value) == 1 else ""
        return f"({_vector(np.asarray(value), width)[1:]}".replace("]", f"{comma})")
    if type(value) is str:
        return repr(value[: 2 * width + 8])
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = max(width, 8) + 8
    return brief.repr(value)


def _vector(array: Any, width: int) -> str:
    """Write an array: the first components, and how many there are."""
    whole = array.size <= 16
    if array.ndim == 1:
        text = ", ".join(number(x) for x in array[:16])
        if whole and len(text) + 2 <= width:
            return f"[{text}]"
        first = ", ".join(number(x) for x in array[:3])
        return f"[{first}, ...] of {len(array)}" if len(array) > 3 else f"[{text}]"
    if whole:
        return f"[{', '.join(_vector(row, width) for row in array)}]"
    return f"array of {' x '.join(map(str, array.shape))}"


def label(name: Any, width: int = 40) -> str:
    """Write the name of an entry or a query: a text without its quotes."""
    if isinstance(name, str) and name.strip() == name != "":
        return clip(printable(name[: 4 * width + 4]), width)
    return short(name, width)


def named(function: Any) -> str:
    """Write the name of a similarity: its word, its record, or the function's own name."""
    return label(getattr(function, "__name__", function))


# ---- the highlighter -----------------------------------------------------------------------------


def ink(share: float, width: int, color: bool = False) -> str:
    """Draw a share of 1 as a bar of a share of `width` columns; not nothing where it is not 0.

    >>> len(ink(0.5, 10)), ink(0, 10)
    (5, '')
    """
    if not share > 0 or width < 1:
        return ""
    eighths = max(1, round(min(share, 1) * width * 8))
    if encodable("█▏"):
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    else:
        bar = "#" * max(1, round(eighths / 8))
    return paint(bar, INK, color)


#: What to do where too many entries answer, or one.
ADVICE = "calibrate() finds a {} temperature"


def highlighter(
    query: Any,
    keys: Sequence[Any],
    scores: Any,
    weights: Any,
    values: Any,
    *,
    order: Sequence[int],
    similarity: Any,
    temperature: float,
    hard: Any,
    soft: Any,
    effective: float,
    null_weight: float = 0.0,
    count: int | None = None,
    width: int | None = None,
    color: bool | None = None,
    limit: int = 12,
    as_html: bool = False,
    advice: str = ADVICE,
) -> str:
    """Show one lookup as a highlighter would: much ink on what answers much.

    **Equivalent to:** ``for j in order: print(keys[j], scores[j], weights[j], "#" * round(30 *
    weights[j]))``, then the hard answer beside the soft one.

    Parameters
    ----------
    query : object
        What was asked.
    keys, values : sequence of n objects
        The entries; `values` may be None, and is shown where the terminal is wide enough.
    scores, weights : array of n numbers
        How well each entry matches, and its share in [0, 1].
    order : sequence of int
        The entries that take part, best first.
    similarity, temperature : object, float
        The settings that the first line names.
    hard, soft : object
        The best entry's value and the blend; `soft` is None where values cannot blend.
    effective : float
        On how many entries the answer rests, in [0, n].
    null_weight : float
        The share of the silent entry, in [0, 1].
    count : int, optional
        How many entries there are, by default all in `keys`.
    width : int, optional
        Terminal columns, by default those of the terminal, or 80. No line is wider.
    color : bool, optional
        By default where standard output is a terminal, NO_COLOR is not set and TERM is not "dumb".
    limit : int
        How many entries get a line of their own.
    as_html : bool
        Whether to return a table for a notebook, which says the same, instead of lines.
    advice : str
        What makes an answer "sharper" or "softer", which stands in place of {}; "" for none.

    Returns
    -------
    str
        Lines without a line end at the last, or HTML as `markup` returns it. Percentages say 100% and 0%
        only where that is exact.

    Raises
    ------
    IndexError
        If `order` names an entry that `keys` does not have.

    Notes
    -----
    Time O(limit + n). NaN and infinite scores are shown as they are; with nothing in `order` it
    says so. Where an answer rests on more than half, or on fewer than 1.01, of 8 entries or more
    it says that too, and what to do.

    Examples
    --------
    >>> print(highlighter("kitten", ["cat", "dog"], [-0.1, -1.2], [0.75, 0.25], [4.0, 8.0],
    ...                   order=[0, 1], similarity="gaussian", temperature=1.0, hard=4.0, soft=5.0,
    ...                   effective=1.75, width=60, color=False))
    kitten asks 2 entries (gaussian, T = 1)
    entry  value  score  share
    cat    4       -0.1  75.0%  ███████████▎
    dog    8       -1.2  25.0%  ███▊
    hard: 4   soft: 5
    rests on 1.75 of 2 entries
    """
    n = len(keys) if count is None else count
    shown = order[: own_lines(len(order), limit)]
    rows = [(label(keys[j], 60), values, number(scores[j]), float(weights[j]), j) for j in shown]
    if null_weight > 0:
        rows.append((NOTHING, None, "", null_weight, -1))

    null_wins = null_weight > max((float(weights[j]) for j in order[:1]), default=0.0)
    if null_wins:
        hard = NOTHING
    elif not len(order):
        hard = soft = NO_ENTRY
    rests = resting(effective, n, advice)
    notes, rest, out = [], order[len(shown) :], n - len(order)
    if len(rest):
        share = percent(_sum(np.asarray(weights)[np.asarray(rest)]))
        notes.append(f"... and {counted(len(rest), 'more ')} share {share}")
    if out > 0:
        notes.append(f"{counted(out)} take{'s' if out == 1 else ''} no part")
    ask = f"asks {counted(n)} ({named(similarity)}, T = {number(temperature)})"
    if as_html:
        valued = values is not None
        table: list[list[Cell]] = [[(x, 0) for x in ("entry", *["value"] * valued, "score", "share")]]
        for key, held, score, weight, j in rows:
            value = [(short(held[j], 60) if held is not None else "", weight)] * valued
            table.append(
                [(key, weight), *value, *((text, 0) for text in (score, percent(weight), ink(weight, 12)))]
            )
        answers = [*side_by_side(hard, soft, 120), rests]
        return markup(
            f"{label(query, 120)} {ask}",
            table if rows else [],
            [*notes, *answers],
            "t" + "t" * valued + "nnb",
        )

    width, color = terminal(width, color)
    asker = label(query, width)
    whole = f"{asker} {ask}"
    title = [whole] if columns(whole) <= width else [asker, *wrap(ask, width)]
    lines = [paint(line, BOLD, color) for line in title]
    lines += _rows(rows, width, color) if rows else []
    lines += notes
    lines += [paint(line, BOLD, color) for line in side_by_side(hard, soft, width)]
    lines += wrap(rests, width)
    return "\n".join(line if "\x1b" in line else clip(line, width) for line in lines)


def own_lines(count: int, limit: int) -> int:
    """Return how many get a line of their own: "1 more" would take the line of that one."""
    return count if count <= limit + 1 else limit


def counted(n: int, more: str = "") -> str:
    """Write how many entries there are."""
    return f"{n} {more}{'entry' if n == 1 else 'entries'}"


def _rows(rows: list[tuple[str, Any, str, float, int]], width: int, color: bool) -> list[str]:
    """Lay out the lines of the entries: key, value, score, percentage, bar, as they fit."""
    scored, valued = width >= 24, width >= 60 and rows[0][1] is not None
    shares = [percent(row[3]) for row in rows]
    share_width = max(map(len, [*shares, "share" * scored]))
    score_width = max(len("score"), *(len(row[2]) for row in rows)) if scored else -2
    room = width - share_width - score_width - 4
    bar_width = min(24, room // 3) if width >= 32 else 0
    room -= bar_width + 2 * (bar_width > 0)
    key_width = max(map(columns, ["entry" * scored, *(row[0] for row in rows)]))
    key_width = max(1, min(key_width, room * 3 // 5 if valued else room))
    room -= key_width + 2
    held = [short(row[1][row[4]], room) if valued and row[1] is not None else "" for row in rows]
    value_width = min(max(map(columns, ["value", *held])), room)

    def line(key: str, value: str, score: str, share: str) -> str:
        cells = [pad(key, key_width)]
        if valued:
            cells.append(pad(value, value_width))
        if scored:
            cells.append(pad(score, score_width, right=True))
        return clip("  ".join([*cells, pad(share, share_width, right=True)]), width)

    lines = [paint(line("entry", "value", "score", "share"), DIM, color)] if scored else []
    for (key, _, score, weight, _), value, share in zip(rows, held, shares, strict=True):
        bar = ink(weight, bar_width, color)
        lines.append(line(key, value, score, share) + (bar and f"  {bar}"))
    return lines


def side_by_side(hard: Any, soft: Any, width: int) -> list[str]:
    """Put the hard answer beside the soft one, or below each other where that is too narrow."""
    blend = "no blend" if soft is None else soft
    left, right = label(hard, width), label(blend, width)
    if columns(left) + columns(right) + 15 > width:
        if width < 40:
            return [clip(f"hard: {left}", width), clip(f"soft: {right}", width)]
        half = (width - 15) // 2
        left = label(hard, max(half, width - 15 - columns(right)))
        right = label(blend, width - 15 - columns(left))
    return [f"hard: {left}   soft: {right}"]


def resting(effective: float, n: int, advice: str = ADVICE) -> str:
    """Say on how many entries an answer rests, and what to do where that is too many or one."""
    said = f"rests on {number(effective)} of {counted(n)}"
    if n < 8 or not effective or not advice:
        return said
    if effective > n / 2:
        return f"{said}: over half of them; {advice.format('sharper')}"
    if effective < 1.01:
        return f"{said}: on one alone; {advice.format('softer')}"
    return said


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, at spaces where there are any.

    >>> wrap("a few words", 7), wrap("unbreakable", 7), wrap("", 7)
    (['a few', 'words'], ['unbreak', 'able'], [''])
    """
    if columns(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        if lines[-1] and columns(lines[-1]) + 1 + columns(word) <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for c in word:
            if lines[-1] and columns(lines[-1]) + _columns(c) > width:
                lines.append("")
            lines[-1] += c
    return lines[1:]


# ---- the matrix ----------------------------------------------------------------------------------


def matrix(
    queries: Iterable[Any],
    keys: Sequence[Any],
    weights: Any,
    *,
    null_weight: Any = None,
    width: int | None = None,
    limit: int | None = None,
    as_html: bool = False,
) -> str:
    """Show a batch of lookups: the query asks (down), the entry answers (across).

    **Equivalent to:** ``print(weights.round(3), weights.sum(axis=1), weights.sum(axis=0))``

    Parameters
    ----------
    queries : iterable of m objects
        What was asked, one a row.
    keys : sequence of n objects
        Who answers, one a column.
    weights : array of shape (m, n)
        The shares, each in [0, 1].
    null_weight : array of shape (m,), optional
        The shares of the silent entry; a column of their own where any is above 0.
    width : int, optional
        Terminal columns, by default those of the terminal, or 80. No line is wider.
    limit : int, optional
        How many rows, and at most how many columns, are shown; by default 12, in HTML 16.
    as_html : bool
        Whether to return a table for a notebook instead of lines.

    Returns
    -------
    str
        Lines, or HTML as `markup` returns it. Sums are over all rows and columns, those left out ('...')
        too; a row's sum counts the silent entry, so it is 1, or 0 for a query that reached nothing.

    Raises
    ------
    ValueError
        If `weights` has not two axes.

    Notes
    -----
    Time O(m n). Rows sum to 1, columns need not: a column's sum is how much is heard of an entry.

    Examples
    --------
    >>> import numpy as np
    >>> print(matrix(["it", "animal"], ["it", "animal"], np.array([[0.1, 0.9], [0.25, 0.75]])))
    query asks (down), entry answers (across)
               it  animal  sum
    it      0.100   0.900    1
    animal  0.250   0.750    1
    sum     0.350    1.65    2
    """
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 2:
        raise ValueError(
            f"weights has {weights.ndim} axes, but (m, n) was expected in a matrix of lookups. "
            "Give one row a query."
        )
    width, limit = terminal(width)[0], limit or (16 if as_html else 12)
    m, n = weights.shape
    null = np.zeros(m) if null_weight is None else np.asarray(null_weight)
    queries = list(queries)
    rows = range(own_lines(m, limit))
    name_width, key_width = (30, 16) if as_html else (max(6, width // 4), 8)
    dots: list[Cell] = [("...", 0)]

    def column(head: str, cells: Iterable[Cell], total: str) -> list[Cell]:
        return [(head, 0), *cells, *dots * (m > len(rows)), (total, 0)]

    def shares(head: str, given: Any) -> list[Cell]:
        return column(head, [(decimal(given[i]), given[i]) for i in rows], decimal(_sum(given, 6)))

    def size(cells: list[Cell]) -> int:
        return max(columns(text) for text, _ in cells)

    left = column("", [(label(queries[i], name_width), 0) for i in rows], "sum")
    names_width = min(size(left), max(width // 4, 3))
    sums = np.array([_sum([*weights[i], null[i]], 6) for i in range(m)])
    right = [column("sum", [(decimal(sums[i]), 0) for i in rows], decimal(_sum(sums, 6)))]
    if (null > 0).any():
        right.insert(0, shares("(nothing)", null))
    others = column("...", dots * len(rows), "...")

    middle: list[list[Cell]] = []
    room = width - names_width - sum(2 + size(c) for c in right)
    for j in range(own_lines(n, limit)):
        new = shares(label(keys[j], key_width), weights[:, j])
        taken = sum(2 + size(c) for c in [*middle, new, *[others] * (j < n - 1)])
        if taken > room and not as_html:
            break
        middle.append(new)
    cut = [f"{m} queries, {counted(n)}"] if m > len(rows) or n > len(middle) else []
    middle += [others] * (n > len(middle))
    table = list(zip(left, *middle, *right, strict=True))
    axes = "query asks (down), entry answers (across)"
    if as_html:
        return markup(axes, table, cut)
    sizes = [names_width, *map(size, [*middle, *right])]
    lines = [
        "  ".join(pad(text, sizes[i], right=i > 0) for i, (text, _) in enumerate(cells)).rstrip()
        for cells in table
    ]
    return "\n".join(clip(line, width) for line in [*wrap(axes, width), *lines, *cut])


# ---- the entries -----------------------------------------------------------------------------------


def contents(entries: Iterable[tuple[Any, Any]], count: int, similarity: Any, temperature: float) -> str:
    """Show entries as HTML, for a notebook.

    **Equivalent to:** ``[(key, value) for key, value in entries]``, and how many more there are.

    Parameters
    ----------
    entries : iterable of (key, value)
        Those to show.
    count : int
        How many there are.
    similarity, temperature : object, float
        The settings that the first line names.

    Returns
    -------
    str
        HTML as `markup` returns it.

    Raises
    ------
    TypeError
        If `entries` are no pairs.

    Notes
    -----
    Time and length O(entries given), however long their names and values are.

    Examples
    --------
    >>> contents([("cat", 4.0)], 3, "gaussian", 1.0).count("... and 2 more entries")
    1
    """
    table: list[list[Cell]] = [[("entry", 0), ("value", 0)]]
    table += [[(label(key, 60), 0), (short(value, 60), 0)] for key, value in entries]
    more = count - len(table) + 1
    notes = [f"... and {counted(more, 'more ')}"] if more > 0 else []
    title = f"SoftDict of {counted(count)} ({named(similarity)}, T = {number(temperature)})"
    return markup(title, table if count else [], notes, "tt")


# ---- HTML ------------------------------------------------------------------------------------------


def markup(title: str, table: Sequence[Sequence[Cell]], notes: Sequence[str], kinds: str = "t") -> str:
    """Write a table as HTML, inked by a highlighter.

    **Equivalent to:** one ``<table>`` with `title` as its caption, and a line for each of the notes.

    Parameters
    ----------
    title : str
        What the table shows.
    table : sequence of rows of (str, float)
        Texts, and their ink in [0, 1]. The first row and the first column are headers.
    notes : sequence of str
        What stands below.
    kinds : str
        What the columns hold: "t" for text, "b" for bars; others, and those beyond, numbers.

    Returns
    -------
    str
        One line without scripts, classes or addresses. Text has the color that the page gives it and ink
        lets the page shine through, so that it can be read on dark and on light, and without any style.

    Raises
    ------
    TypeError
        If a text is none.

    Notes
    -----
    Time O(cells). Whatever a text holds is shown and cannot become markup.

    Examples
    --------
    >>> "&lt;b&gt;" in markup("shares", [[("<b>", 0.5)]], []), "<b>" in markup("<b>", [], ["<b>"])
    (True, False)
    """

    def cell(kind: str, style: str, text: str, share: float = 0) -> str:
        # At most half covered: text stays legible on the ink in black and in white.
        ink = f";background:rgba(255,150,0,{max(share / 2, 0.01):.3f})" if share > 0 else ""
        return f'<{kind} style="padding:.2em .5em;{style}{ink}">{html.escape(text)}</{kind.split()[0]}>'

    rows = ""
    for i, cells in enumerate(table):
        row = ""
        for j, each in enumerate(cells):
            kind = "td" if i and j else f'th scope="{"row" if i else "col"}"'
            style = COLUMNS.get(kinds[j : j + 1], "text-align:right")
            style += ";font-weight:normal" if i else ";border-bottom:1px solid"
            row += cell(kind, style, *each)
        rows += f"<tr>{row}</tr>"
    caption = cell("caption", "text-align:left;caption-side:top;font-weight:bold", title)
    shown = f'<table style="border-collapse:collapse;white-space:pre">{caption}{rows}</table>'
    below = "".join(cell("div", "white-space:pre-wrap", note) for note in notes)
    return f'<div style="overflow-x:auto">{shown}{below}</div>'
