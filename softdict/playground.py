"""The interactive page: one HTML file that holds a SoftDict, the arithmetic of a lookup, and six panels."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from softdict import display
from softdict._checks import Array, brief
from softdict.encoders import CharNgrams
from softdict.mapping import SoftDict
from softdict.transformer import real_head

#: What the page shows beside the user's own: the code that makes it, and what is asked.
STORY: dict[str, tuple[str, list[Any]]] = {
    "hours": ("SoftDict({6: 8.0, 12: 20.0, 18: 14.0}, temperature=9)", [10]),
    "corners": ('SoftDict({(1, 0): 1, (0, 1): 2, (3, 3): 3}, temperature=0.5, similarity="dot")', [[1, 0.1]]),
    "notes": (
        """SoftDict({
    "feeding a cat": "Small meals, two or three a day, and fresh water at all times.",
    "training a dog": "Short lessons, one word for each thing, a reward at once when it goes well.",
    "watering plants": "Push a finger into the soil: water when it is dry, not by the calendar.",
    "catching a train": "Trains leave on the minute, and the doors close half a minute before.",
    "a cat that will not eat": "A day without food is a reason to call the vet.",
}, encoder=CharNgrams(512), similarity="cosine", temperature=0.05)""",
        ["how often do I feed my cats?", "when do trains leave?", "my dog will not eat", "what is a dict?"],
    ),
}

#: The page's own similarities: those that need no array or function of the user's.
SIMILARITIES = "gaussian", "laplacian", "cosine", "dot", "scaled_dot"

LARGEST = 400_000  # bytes of a page
TYPED = 8  # numbers that one might type as a key
DRAWN = 40  # points that one might tell apart in the plane


def play(sd: SoftDict | None, path: Any, queries: Iterable[Any] = ()) -> None:
    """Write an interactive page that looks up in a SoftDict, into one HTML file.

    Six panels: a dict beside a SoftDict, the plane, the highlighter, the roles of query and key, a real head,
    why scores are divided by sqrt(d). Each asks for a guess first and shows the Python that does the same.

    **Equivalent to:** ``Path(path).write_text(page)``, where the page computes ``sd.lookup(query).weights``.

    Parameters
    ----------
    sd : SoftDict or None
        What the first three panels show, beside examples of their own; None shows those alone. It has one of
        the named similarities, ``weighting="softmax"``, and neither `top_k` nor `min_score`.
    path : path
        The file; one that is there is replaced.
    queries : iterable of single queries
        What can be asked beside the stored keys, such as questions: the page has no encoder of its own.

    Raises
    ------
    TypeError, ValueError, KeyError
        For what is no SoftDict, is empty or has other settings; for queries that `sd` refuses, that are
        batches, or one text in place of a list; for a page of over 400 kB.
    OSError
        As `open` does.

    Notes
    -----
    The page asks nothing of a server or the network, so it opens from a folder. It holds all keys, values and
    queries as numbers and text, O((n + m) d) bytes; a 0 takes one bit, and none where all of them have it, a
    count of `CharNgrams` one byte. Keys of more than two numbers are drawn in their two main directions, the
    first 40 of them. Objects are shown as text.

    Examples
    --------
    >>> import os, tempfile
    >>> from softdict import SoftDict, play
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "page.html")
    >>> play(SoftDict({6: 8.0, 12: 20.0, 18: 14.0}, temperature=9), path, queries=[10])
    >>> os.path.getsize(path) < 400_000
    True
    >>> play(SoftDict({6: 8.0}, top_k=1), path)
    Traceback (most recent call last):
    ...
    ValueError: top_k is 1, but None was expected in play, whose page weighs by softmax alone. ...
    >>> folder.cleanup()
    """
    if isinstance(queries, str):  # whose letters are texts too
        raise TypeError(
            f"queries is {brief(queries)}, one text, but a list of queries was expected in play. Put it "
            f"into a list: queries=[{brief(queries)}]."
        )
    queries = list(queries)
    if sd is None and queries:
        raise ValueError(
            f"queries hold {brief(queries[0])} and sd is None, but a SoftDict to ask was expected in play. "
            "The examples have their own queries."
        )
    own = {} if sd is None else {"yours": packed(sd, queries)}
    page = written(own)
    if len(page) > LARGEST:
        raise ValueError(
            f"the page would have {len(page):,} bytes, but at most {LARGEST:,} were expected in play, so "
            "that it opens anywhere. Hand in fewer entries or queries, on the command line an index of fewer "
            "or shorter files, or narrower vectors, such as those of CharNgrams(d=512)."
        )
    Path(path).write_bytes(page)


def written(sets: dict[str, Any]) -> bytes:
    """Return the page with the user's own data set, if any, beside those of the story."""
    for name, (source, queries) in STORY.items():
        sets[name] = packed(eval(source, {"SoftDict": SoftDict, "CharNgrams": CharNgrams}), queries, source)
    folder = files("softdict").joinpath("data")
    page = folder.joinpath("playground.html").read_text(encoding="utf-8")
    for part in ("playground.css", "playground.js", "panels.js"):
        page = page.replace(f"{{{{ {part} }}}}", folder.joinpath(part).read_text(encoding="utf-8"))
    text = json.dumps({"sets": sets, "head": head()}, allow_nan=False)
    return page.replace("{{ data }}", text.replace("<", "\\u003c")).encode()  # which no tag can end


def packed(sd: SoftDict, queries: Iterable[Any], source: str = "") -> dict[str, Any]:
    """Return entries, queries and settings as JSON has them."""
    check(sd)
    store, rows, asked = sd._store, sd.key_vectors, [sd._read(query) for query in queries]
    if any(not one.single for one in asked):
        raise ValueError(
            f"queries hold {brief(next(one.what for one in asked if not one.single))}, a batch, but single "
            "queries were expected in play. Hand them in one by one: queries=[first, second]."
        )
    keys = rows.reshape(len(rows), -1).astype(np.float64)
    vectors = np.concatenate([np.empty((0, keys.shape[1])), *(one.vectors for one in asked)])
    typed = keys.shape[1] <= TYPED
    used = typed | (keys != 0).any(axis=0) | (vectors != 0).any(axis=0)
    names = [  # None where the page shows, and says in Python, the numbers of the key
        (None if typed else f"row {i}") if store.is_own(name)
        else name if isinstance(name, str) else display.label(name)
        for i, name in enumerate(sd)
    ]  # fmt: skip
    codes = [None if store.is_own(name) and typed else repr(name) for name in sd]
    objects = store.objects is not None
    values = list(sd.values()) if objects else sd.value_vectors
    return {
        "source": source,
        "width": keys.shape[1],
        "plain": store.key_shape == (),
        "measures": typed and not store.numbers_name(),
        "encodes": sd.encoder is not None,
        "names": names,
        "codes": codes,
        "keys": numbers(keys[:, used]),
        "objects": objects,
        "values": [x if isinstance(x, str) else display.short(x, 99) for x in values] if objects
        else numbers(np.asarray(values, dtype=np.float64)),
        "similarity": sd.similarity,
        "temperature": "Infinity" if sd.temperature == math.inf else sd.temperature,
        "null_score": sd.null_score,
        "queries": [
            {"name": display.label(one.what, 200), "code": code(one.what), "key": numbers(vector[used])}
            for one, vector in zip(asked, vectors, strict=True)
        ],
        "plane": plane(keys[:DRAWN]).tolist(),
    }  # fmt: skip


def check(sd: Any) -> None:
    """Refuse what the page cannot look up in."""
    if not isinstance(sd, SoftDict):
        raise TypeError(
            f"sd is {brief(sd)}, but a SoftDict (or None) was expected in play. Make one: SoftDict(table)."
        )
    if not len(sd):
        raise ValueError(
            "the SoftDict is empty, but at least one entry was expected in play. Add entries, or pass None "
            "for the examples alone."
        )
    if not isinstance(sd.similarity, str):
        raise ValueError(
            f"similarity is {brief(sd.similarity)}, but one of {', '.join(SIMILARITIES)} was expected in "
            'play, whose page computes these. Choose one: play(sd.at(similarity="gaussian"), path).'
        )
    for name, plain in (("weighting", "softmax"), ("top_k", None), ("min_score", None)):
        if (given := getattr(sd, name)) != plain:
            raise ValueError(
                f"{name} is {brief(given)}, but {plain!r} was expected in play, whose page weighs by softmax "
                f"alone. Show another view: play(sd.at({name}={plain!r}), path)."
            )


def code(query: Any) -> str:
    """Return Python that says a query, an array as one: beside labels that are numbers a list would name."""
    return f"np.array({query.tolist()})" if isinstance(query, np.ndarray) else repr(query)


def numbers(array: Array) -> Any:
    """Return an array as JSON has it, to the last bit: whole or, where that is shorter, a list of rows."""
    if array.ndim < 2:
        return sparse(array)
    choices = sparse(array), [sparse(row) for row in array.reshape(len(array), -1)]
    return min(choices, key=lambda choice: len(json.dumps(choice)))


def sparse(array: Array) -> dict[str, Any]:
    """Return shape, a bit for each number that is not 0, and those, as places among a few or one by one."""
    short = array.astype("<f4")
    exact = (short if np.array_equal(short, array) else array.astype("<f8")).ravel()
    some = exact.view(f"<u{exact.itemsize}") != 0  # -0.0 has a bit
    found, places = exact[some], np.empty(0, np.uint8)
    few, which = np.unique(found, return_inverse=True)  # such as counts over one length
    if len(few) <= 256 and few.nbytes + len(which) < found.nbytes:
        found, places = few, which.astype(np.uint8)
    parts = {"bits": np.packbits(some), "numbers": found, "places": places}
    coded = {name: base64.b64encode(part.tobytes()).decode() for name, part in parts.items()}
    return {"shape": array.shape, "kind": exact.dtype.str[1:], **coded}


def plane(keys: Array) -> Array:
    """Return where keys (n, d) are drawn, (n, 2): wide ones in their two main directions, to four digits."""
    n, d = keys.shape
    if d <= 2:
        return np.hstack([keys, np.zeros((n, 2 - d))])
    spread = keys - keys.mean(axis=0)
    *_, directions = np.linalg.svd(spread, full_matrices=False)
    spots = np.zeros((n, 2))
    for i, direction in enumerate(directions[:2]):
        spots[:, i] = spread @ direction * (np.sign(direction[np.abs(direction).argmax()]) or 1)
    largest = np.abs(spots).max()
    return np.round(spots, 3 - math.floor(math.log10(largest))) if largest else spots


def head() -> dict[str, Any]:
    """Return what each word of the shipped head's sentences asks and offers."""
    layer, sentences = real_head()
    found = {}
    for name, (tokens, x) in sentences.items():
        q, k, _ = layer.project(x.astype(float))
        found[name] = {"tokens": tokens, "q": numbers(q[0]), "k": numbers(k[0])}
    return found
