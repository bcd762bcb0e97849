"""Inputs to arrays, and the checks of shape and range that more than one module needs."""

from __future__ import annotations

import math
import mmap
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Floats = Any  # an array of float64, which NumPy's own types often cannot tell

# ---- numbers ----------------------------------------------------------------------------------


def is_number(x: object) -> bool:
    """Tell whether `x` is a plain number: a Python or NumPy real scalar, never a bool."""
    return type(x) is float or (isinstance(x, Real) and not isinstance(x, (bool, np.timedelta64)))


def is_numeric(x: object) -> bool:
    """Tell whether `x` is a plain number, or a list or tuple of such things to any depth.

    An empty list or tuple holds no number, so it is not numeric.
    """
    if isinstance(x, (list, tuple)):
        return len(x) > 0 and all(map(is_numeric, x))
    return is_number(x)


def is_array(x: object) -> bool:
    """Tell whether `x` is an array, of NumPy or of another library."""
    return isinstance(x, np.ndarray) or (hasattr(type(x), "__array__") and not isinstance(x, np.generic))


def is_value(x: Any) -> bool:
    """Tell whether a value is numbers, which blend."""
    return np.asarray(x).dtype.kind in "fiu" if is_array(x) else is_numeric(x)


def is_label_number(name: object) -> bool:
    """Tell whether a label is a number or a tuple of numbers."""
    return is_number(name) or (isinstance(name, tuple) and is_numeric(name))


def numbers(x: object, what: str, dtype: DTypeLike | None = None) -> Array:
    """Return `x` as a float array: float16 as float32, integers as float64, or all as `dtype`."""
    if type(x) is np.ndarray and x.dtype in _MAX and (dtype is None or dtype == x.dtype):
        return x
    refuse_masked(x, what)
    array = (
        np.asarray(x) if isinstance(x, np.ndarray) else _from_python(x, what, np.dtype(dtype or np.float64))
    )
    if array.dtype.kind not in "fiu":
        kind = {"b": "booleans", "c": "complex numbers"}.get(array.dtype.kind, "no numbers")
        raise TypeError(
            f"{what} holds {kind} (dtype {array.dtype}), but real numbers were expected. "
            "Convert it first, for example with array.astype(float)."
        )
    if dtype is None:
        dtype = float_dtype(array)
    return _exact(array, what, np.dtype(dtype))


def refuse_masked(x: object, what: str) -> None:
    """Refuse an array whose mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a masked array, but an array without a mask, which would be lost, was expected. "
            "Fill what is masked, array.filled(0), and leave it out with where=."
        )


def float_dtype(array: Any) -> np.dtype[Any]:
    """Return in which dtype an array is stored: float32 or float64."""
    return np.dtype(np.float32 if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else np.float64)


def _from_python(x: object, what: str, dtype: np.dtype[Any]) -> Array:
    """Return lists, tuples, numbers and array-likes as an array; refuse bools and ragged lists."""
    leaves = list(_leaves(x))
    if not isinstance(x, (list, tuple)) and not is_number(x):
        try:
            return np.asarray(x)  # an array of another library
        except (TypeError, RuntimeError) as error:  # one that asks for gradients, or is on another device
            raise TypeError(
                f"{what} is {brief(x)} (a {type(x).__name__}), but what NumPy can read was expected, "
                f"and it says: {error} Convert it first, for example with tensor.detach().cpu().float()."
            ) from None
    if wrong := [leaf for leaf in leaves if not is_number(leaf) and not (is_array(leaf) and is_value(leaf))]:
        raise TypeError(
            f"{what} holds {brief(wrong[0])}, but real numbers were expected. "
            "Pass an array, or a list or tuple of numbers."
        )
    for leaf in leaves:  # NumPy would round an integer silently where a float stands beside it
        if isinstance(leaf, Integral):
            _held(int(leaf), what, dtype)
        elif is_array(leaf):
            numbers(leaf, what, None if np.asarray(leaf).dtype.kind == "f" else dtype)
    try:
        array = np.asarray(x)
        return array.astype(np.float64) if array.dtype == object else array
    except OverflowError:
        raise ValueError(
            f"{what} holds a number that {dtype} cannot hold, but at most {_MAX[dtype]:.3g} was expected. "
            "Rescale what you store or ask."
        ) from None
    except ValueError:
        raise ValueError(
            f"{what} is ragged: its rows have unequal lengths, but one shape was expected. "
            "Give every row the same number of components."
        ) from None


def _leaves(x: object) -> Iterator[object]:
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from _leaves(item)
    else:
        yield x


def _exact(array: Array, what: str, dtype: np.dtype[Any]) -> Array:
    """Cast to the float `dtype`; an integer that it cannot hold exactly is refused."""
    if array.dtype.kind in "iu" and array.size:
        if max(abs(int(array.max())), abs(int(array.min()))) > 2 ** (np.finfo(dtype).nmant + 1):
            for integer in array.ravel().tolist():
                _held(integer, what, dtype)
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):  # what becomes infinite is refused where that matters
        return array.astype(dtype)


def _held(integer: int, what: str, dtype: np.dtype[Any]) -> None:
    try:
        with np.errstate(over="ignore"):
            if int(dtype.type(integer)) == integer:
                return
    except OverflowError:
        pass
    raise ValueError(
        f"{what} holds the integer {brief(integer)}, which {dtype} cannot hold exactly, but exact numbers "
        "were expected. Use text for ids: str(id) as the entry's name, with a key vector."
    )


_MAX = {np.dtype(kind): float(np.finfo(kind).max) for kind in (np.float32, np.float64)}


def largest(array: Array) -> float:
    """Return how large a component may be, so that no squared distance overflows."""
    return _largest(array.dtype, array.shape[-1] if array.ndim > 1 else 1)


@cache
def _largest(dtype: np.dtype[Any], d: int) -> float:
    rounding = 1 if d < 2 else 1 - 2.0**-40  # of a sum
    return math.sqrt(_MAX[dtype] / max(d, 1)) / 2 * rounding


def within(array: Array, limit: float, what: str, owner: Callable[[int], str]) -> None:
    """Refuse NaN, infinity and components above `limit`, naming the owner of the first such row."""
    if np.vdot(array, array) < limit * limit / 2:  # one number for all: most are far below
        return
    good = np.abs(array) < limit if limit == math.inf else np.abs(array) <= limit
    if not good.all():
        row = int(np.argmin(good.reshape(len(array), -1).all(axis=1)))
        bad = float(np.ravel(array[row])[np.argmin(np.ravel(good[row]))])
        size = "" if limit == math.inf else f" of at most {limit:.3g}"
        raise ValueError(
            f"{what} of {owner(row)} holds {bad}, but finite numbers{size} were expected. "
            "Leave the entry out, mend the number, or rescale."
        )


def check_rows(keys: Array, values: Array, owner: Callable[[int], str]) -> None:
    """Refuse entries whose numbers are not finite, or whose keys are too large."""
    within(keys, largest(keys), "the key vector", owner)
    within(values, math.inf, "the value", owner)


def row_names(keys: Array, key_shape: tuple[int, ...]) -> list[Hashable]:
    """Return what rows (n, d) are called that are their own names: floats, or tuples of them."""
    rows = (keys + 0.0).tolist()  # + 0.0 makes 0.0 of -0.0
    return [row[0] if key_shape == () else tuple(row) for row in rows]


def refuse_equal_rows(keys: Array) -> None:
    """Refuse equal rows (n, d), which would be one name; O(n d) but for rows that look alike."""
    if not len(keys):
        return
    bits = (keys + 0.0).view(np.uint32 if keys.dtype.itemsize == 4 else np.uint64)
    odd = np.random.default_rng(0).integers(2**63, size=max(keys.shape[1], 1), dtype=np.uint64) | 1
    marks = bits.astype(np.uint64) @ odd[: keys.shape[1]]  # equal rows have equal marks
    _, inverse, counts = np.unique(marks, return_inverse=True, return_counts=True)
    seen: dict[bytes, int] = {}
    for row in np.nonzero(counts[inverse] > 1)[0].tolist():
        if (first := seen.setdefault(bits[row].tobytes(), row)) != row:
            raise ValueError(equal_rows_text(first, row, len(keys)))


def equal_rows_text(first: int, second: int, n: int) -> str:
    """Return the complaint about equal vectors without labels."""
    return (
        f"rows {first} and {second} of the keys are equal, but each vector that names its entry was "
        f"expected once in from_arrays(keys of {n} rows). To count each of them, give them names: "
        'labels=[f"row {i}" for i in range(n)].'
    )


def brief(x: object) -> str:
    """Return a repr of at most some forty characters."""
    try:
        return reprlib.repr(x)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"a huge {type(x).__name__}"


def check_number(name: str, value: Any, valid: Callable[[Any], Any], expected: str, hint: str) -> float:
    """Return a plain number as a float, refused where it is not `valid`."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    try:
        if is_number(value) and valid(value):
            return float(value) + 0.0  # 0.0 of -0.0
    except OverflowError:  # too large an integer
        pass
    error = ValueError if is_number(value) else TypeError
    raise error(f"{name} is {brief(value)}, but {expected} was expected {hint}.")


def check_flag(name: str, value: Any, hint: str) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {brief(value)}, but True or False was expected {hint}.")


def as_generator(rng: Any, hint: str) -> np.random.Generator:
    """Return where chance comes from: a Generator, from a seed where that was given."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError):
        raise TypeError(
            f"rng is {brief(rng)}, but a Generator, a whole number from 0 or None was expected {hint}."
        ) from None


def check_width(similarity: Any, wanted: int, d: int) -> None:
    """Refuse a similarity that is for keys of another width than d."""
    if wanted != d:
        raise ValueError(
            f"similarity {similarity!r} is for keys of width {wanted}, but width {d} was "
            "expected, as the keys of this SoftDict have. Transpose W, or set another similarity."
        )


def cannot_blend(value: Any) -> str:
    """Return what a TypeError says where values, of which the first is shown, are objects."""
    return (
        f"the values are objects (the first is {brief(value)}), but numbers were expected in a blend. Give a "
        "value_encoder=, pick the best with at(temperature=0), or rank and vote with lookup(query).top(k) "
        "and .vote()."
    )


def check_count(name: str, value: Any, hint: str, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    whole = f"a whole number from {least} to 2**53"
    return int(check_number(name, value, lambda k: least <= k <= 2**53 and k % 1 == 0, whole, hint))


def check_result(result: Any, name: str, shape: tuple[int, ...], meaning: str) -> Floats:
    """Return what a user's function answered, in float64, refused where it has another shape."""
    array = np.array(numbers(result, f"the result of {name}"), dtype=np.float64)
    if array.shape != shape:
        raise ValueError(
            f"{name} returned shape {array.shape}, but {shape} was expected, "
            f"{meaning}. Treat each row by itself, and sum nothing away."
        )
    return array


def hashable(key: Any) -> Any:
    """Return a name, refused with what a name is where it is unhashable."""
    try:
        hash(key)
    except (TypeError, ValueError):  # a memoryview says ValueError
        raise TypeError(
            f"{brief(key)} is unhashable (a {type(key).__name__}), but a name is hashable, and what is no "
            "name is a number or an array of numbers: that was expected here. Use a tuple or text."
        ) from None
    return key


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are equal, as one bool."""
    if is_array(a) or is_array(b) or (isinstance(a, float) and isinstance(b, (list, tuple))):
        return bool(np.array_equal(a, b))
    return bool(a is b or a == b)


def snapshot(x: Any) -> Any:
    """Return a copy of arrays and lists, and of arrays in lists; anything else as it is."""
    if isinstance(x, list):
        return [snapshot(item) for item in x]
    return x.copy() if isinstance(x, np.ndarray) else x


def as_name(value: Any) -> Any:
    """Return arrays and lists as tuples, which a dict can hold."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(map(as_name, value)) if isinstance(value, list) else value


def as_vote(value: Any) -> Any:
    """Return a value as what votes are counted by."""
    name = as_name(value)
    try:
        hash(name)
    except (TypeError, ValueError):
        raise TypeError(
            f"the value {brief(value)} is unhashable (a {type(value).__name__}), but values that a dict can "
            "hold were expected in vote(), which adds up the weights of equal ones. Use top(k), or tuples."
        ) from None
    return name


def pairs(entries: Any, named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the keys and the values of a mapping or of pairs, and of names, as dict.update reads them."""
    if isinstance(entries, Mapping):
        entries = entries.items()
    elif hasattr(entries, "keys"):
        entries = [(key, entries[key]) for key in entries.keys()]
    if not isinstance(entries, Iterable):
        raise TypeError(
            f"the entries are {brief(entries)}, but a mapping or pairs (key, value) were expected. "
            "Write SoftDict({key: value}) or SoftDict([(key, value)])."
        )
    keys, values = [], []
    for i, pair in enumerate(entries):
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"item {i} of the entries is {brief(pair)}, but a pair (key, value) was expected. "
                "Write SoftDict({key: value}) or SoftDict([(key, value)])."
            ) from None
        keys.append(key)
        values.append(value)
    return [*keys, *named], [*values, *named.values()]


def stack(items: list[Any], owner: Callable[[int], str], dtype: Any) -> Array:
    """Return values of one shape as an array; where they are not, say which one differs."""
    try:
        return numbers(items, "the array of values", dtype)
    except (TypeError, ValueError):
        shapes: dict[Any, str] = {}
        for label, item in zip(map(owner, range(len(items))), items, strict=True):
            shapes.setdefault(numbers(item, f"the value of {label}", dtype).shape, label)
        if len(shapes) < 2:
            raise
        (shape, first), (other, second) = list(shapes.items())[:2]
        raise ValueError(
            f"the value of {second} has shape {other} and that of {first} has shape "
            f"{shape}, but one shape was expected in one SoftDict. Reshape one of them."
        ) from None


def is_mapped(array: Any) -> bool:
    """Tell whether an array reads from a memory-mapped file."""
    while array is not None:
        if isinstance(array, (np.memmap, mmap.mmap)):
            return True
        array = getattr(array, "base", None)
    return False


def is_shared(array: Any) -> bool:
    """Tell whether nobody can write to an array: neither it nor anything below it is writable."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    try:
        return array is None or memoryview(array).readonly
    except TypeError:  # no buffer: nobody can tell
        return False


def own_array(array: Any, what: str, dtype: Any, copy: bool | None) -> tuple[Any, bool]:
    """Return an array for a SoftDict to keep, and whether it is a memory map, not yet read.

    Shared where nobody can write to it or where `copy` is False, copied elsewhere.
    """
    if not is_array(array):
        return numbers(array, what, dtype), False
    array = np.asarray(array) if not isinstance(array, np.ndarray) else array
    shared = copy is False or (copy is None and is_shared(array))
    if shared and is_mapped(array) and array.dtype.kind in "fiu":
        return array, True
    exact = numbers(array, what, dtype)
    return (exact if shared or not np.may_share_memory(exact, array) else exact.copy()), False


def check_labels(labels: Any, n: int) -> list[Hashable]:
    """Return n distinct labels as a list."""
    if not isinstance(labels, Iterable):
        raise TypeError(
            f"labels are {brief(labels)}, but {n} names were expected in from_arrays. Pass them as a list."
        )
    names = list(map(hashable, labels))
    if len(names) != n or len(set(names)) != n:
        twice = [f" ({brief(name)} twice)" for name, times in Counter(names).items() if times > 1]
        raise ValueError(
            f"there are {len(names)} labels, {len(set(names))} of them distinct{''.join(twice[:1])}, but {n} "
            "distinct labels were expected in from_arrays. Give one to each row; number those that repeat."
        )
    return names


def store_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the explicit dtype of a SoftDict."""
    if dtype is None:
        return None
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind not in _MAX:
        raise ValueError(
            f"dtype is {dtype!r}, but float32, float64 or None was expected in SoftDict. "
            "float16 is stored as float32."
        )
    return kind


#: A Lookup holds at most so many weights, m times n.
LARGEST_LOOKUP = 2**26


def check_size(m: int, n: int) -> None:
    """Refuse to hold more than `LARGEST_LOOKUP` weights."""
    if m * n > LARGEST_LOOKUP:
        raise ValueError(
            f"{m} queries to {n} entries give {m * n} weights, but at most {LARGEST_LOOKUP} were expected in "
            "one Lookup or calibration. Ask in smaller batches, or for the value alone with sd[queries]."
        )


def unreached(query: Any, reached: Any, single: bool) -> str:
    """Return what a KeyError says where queries reach no entry."""
    bad = np.nonzero(~np.asarray(reached))[0].tolist()
    if single:
        return f"{brief(query)} reaches no entry; use get(query, default) for what may be missing"
    rows = ", ".join(map(str, bad[:3])) + (", ..." if len(bad) > 3 else "")
    return (
        f"{len(bad)} of {len(reached)} queries reach no entry (rows {rows}); use get(queries, default) to "
        "fill them"
    )


def check_attribute(own: Any, kind: type, name: str, known: tuple[str, ...]) -> None:
    """Refuse to set an attribute that a class does not have: a misspelt setting would change nothing."""
    if type(own) is kind and not (name.startswith("_") or name in known or hasattr(kind, name)):
        settings = [each for each, x in vars(kind).items() if isinstance(x, property) and x.fset]
        raise AttributeError(
            f"{name!r} is no attribute of a {kind.__name__}, but one of {', '.join([*settings, *known])} was "
            "expected. Check the spelling. Subclasses may have more."
        )


def filled(value: Any, reached: Any, default: Any) -> Any:
    """Return the answers of a batch, with `default` for those that have none."""
    if isinstance(value, list):
        return [v if r else default for v, r in zip(value, reached, strict=True)]
    try:
        filler = np.broadcast_to(numbers(default, "default"), value.shape[1:])
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"default is {brief(default)}, of shape {np.shape(default)}, but a number or a value "
            f"of shape {value.shape[1:]} was expected in get(batch), to fill row "
            f"{int(np.argmin(reached))}, which reaches no entry. Pass one, or ask one query at a time."
        ) from None
    with np.errstate(over="ignore"):
        return np.where(reached.reshape(-1, *[1] * (value.ndim - 1)), value, filler).astype(value.dtype)


#: The settings of a lookup that are numbers: what they have to be, and what to do where they are not.
_SHOWN = "It is measured in scores, which sd.lookup(query).scores shows"
_NUMBERS: dict[str, Any] = {
    "temperature": (lambda t: t >= 0, "one number of at least 0",
                    "Small temperatures give hard answers, large ones the plain mean"),
    "top_k": (lambda k: k >= 1 and k % 1 == 0, "a whole number of at least 1, or None,",
              "Say how many entries may share the answer"),
    "min_score": (lambda s: s == s, "a number or None", _SHOWN),
    "null_score": (math.isfinite, "a finite number or None", _SHOWN),
}  # fmt: skip


def check_settings(named: dict[str, Callable[[Any], Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, numbers as float or int; `named` checks those that are names or functions."""
    for name, value in settings.items():
        if name in named:
            named[name](value)
        elif name not in _NUMBERS:
            raise TypeError(
                f"{name!r} is no setting, but one of {', '.join([*named, *_NUMBERS])} was expected. "
                f"Check the spelling{'; T is temperature' * (name == 'T')}."
            )
        elif value is not None or name == "temperature":
            valid, expected, hint = _NUMBERS[name]
            number = check_number(name, value, valid, expected, f"among the settings. {hint}")
            settings[name] = int(number) if name == "top_k" else number
    return settings


# ---- whole calls: query, keys, values, where, bias ---------------------------------------------


class Masks(NamedTuple):
    """Who takes part: (m, n), or None for all."""

    where: Any = None
    bias: Any = None
    skip: Any = None  # (m,) the entry that each query leaves out, negative for none
    span: Any = None  # (m, 2) the first entry that each query sees, and the first after the last one

    def tile(self, rows: Any, columns: slice) -> Masks:
        """Return the part for some of the queries and entries."""
        where, bias = (None if x is None else x[rows, columns] for x in (self.where, self.bias))
        skip, span = (None if x is None else x[rows] - (columns.start or 0) for x in (self.skip, self.span))
        return Masks(where, bias, skip, span)

    def seen(self, m: int, n: int) -> tuple[Any, Any]:
        """Return which entries any query may see (n,), and of those, which each may see (m, n).

        None stands for all.
        """
        where, bias, skip, span = self
        some, each = None, None
        if where is not None:
            if m == 1 or where.strides[0] == 0:  # one row for all
                some = None if where[0].all() else where[0]
            else:
                each = where
        if bias is not None:
            possible = bias > -math.inf
            if not possible.all():
                each = possible if each is None else possible & each
        if span is not None:
            place, span = np.arange(n, dtype=np.int32), np.minimum(span, n).astype(np.int32)
            for inside in (
                None if (span[:, 0] <= 0).all() else place >= span[:, :1],
                None if (span[:, 1] == n).all() else place < span[:, 1:],
            ):
                each = inside if each is None else each if inside is None else inside & each
        if skip is not None and len(rows := np.nonzero((skip >= 0) & (skip < n))[0]):
            each = np.ones((m, n), dtype=bool) if each is None else each.copy()
            each[rows, skip[rows]] = False
        return some, each if each is None or some is None else each[:, some]


class Tile(NamedTuple):
    """Some entries, and the queries that see any of them."""

    rows: slice  # of queries
    start: int  # the place of the first entry
    some: Any  # which of the entries from there on these are, or None
    keys: Array  # (b, d)
    values: Array  # (b, e)
    norms: Any  # (b,) or None
    bias: Any  # (m, b) or None
    each: Any  # (m, b) which query sees which entry; None for all

    def places(self, columns: Any) -> Any:
        """Return the places of some of the entries."""
        return self.start + (columns if self.some is None else np.nonzero(self.some)[0][columns])


class Source(NamedTuple):
    """Some queries, and what they are asked about."""

    query: Array  # (m, d)
    keys: Array  # (n, d)
    values: Array  # (n, e)
    masks: Masks  # of all queries of a call
    norms: Any = None  # (n,) the lengths of the keys, where they are kept
    at: Any = slice(None)  # which of all queries these are

    def rows(self, rows: slice) -> Source:
        """Return the part for some of the queries."""
        start = self.at.start or 0
        return self._replace(query=self.query[rows], at=slice(start + rows.start, start + rows.stop))

    def seen(self, columns: slice = slice(None)) -> Masks:
        """Return the masks of these queries, for some of the entries."""
        return self.masks.tile(self.at, columns)

    def tiles(self, columns: int, whole: bool = False) -> Iterator[Tile]:
        """Go through the entries that any query sees, and the queries that see them (all if `whole`)."""
        m, n, span = len(self.query), len(self.keys), self.masks.span
        span = None if span is None else span[self.at]
        start, stop = (0, n) if span is None else (max(span[:, 0].min(), 0), min(span[:, 1].max(), n))
        for j in range(start, stop, columns):
            c, edges = slice(j, min(j + columns, stop)), [0, m]
            if span is not None and not whole:  # some rows see all of these, those around them a part
                some, full = (
                    np.nonzero((span[:, 0] < before) & (span[:, 1] > after))[0]
                    for before, after in ((c.stop, j), (j + 1, c.stop - 1))
                )
                edges = [*some[:1], *full[:1], *(full[-1:] + 1), *(some[-1:] + 1)]
            for first, last in pairwise(edges):
                rows = slice(first, last)
                clear = span is not None and not whole and len(full) > 0 and first == full[0]
                if first < last and len((tile := self.rows(rows).tile(c, clear)).keys):
                    yield tile._replace(rows=rows)

    def tile(self, c: slice, clear: bool = False) -> Tile:
        """Return some entries as these queries see them; `clear` where their span takes in all."""
        keys, values, norms = self.keys[c], self.values[c], None if self.norms is None else self.norms[c]
        masks = self.masks._replace(span=None) if clear else self.masks
        if all(mask is None for mask in masks):
            return Tile(slice(0, len(self.query)), c.start, None, keys, values, norms, None, None)
        masks = masks.tile(self.at, c)
        (some, each), bias = masks.seen(len(self.query), c.stop - c.start), masks.bias
        if some is not None:
            keys, values = keys[some], values[some]
            norms, bias = (None if x is None else x[..., some] for x in (norms, bias))
        return Tile(slice(0, len(self.query)), c.start, some, keys, values, norms, bias, each)

    def middle(self) -> tuple[Floats, Floats]:
        """Return the mean key and value of some entries that all these queries see, to compute about."""
        where, bias, skip, span = self.masks
        start, stop = 0, len(self.keys)
        if span is not None:
            span = span[self.at]
            start, stop = max(span[:, 0].max(), 0), min(span[:, 1].min(), stop)
        some: Any = slice(start, stop, max(1, (stop - start) // 64) | 1)
        if any(mask is not None for mask in (where, bias, skip)):
            some = np.arange(start, stop, some.step)
            if where is not None:
                some = some[where[self.at][:, some].all(axis=0)]
            if bias is not None:
                some = some[(bias[self.at][:, some] > -math.inf).all(axis=0)]
            if skip is not None:
                some = some[~np.isin(some, skip[self.at])]
        keys, values = self.keys[some], self.values[some]
        return tuple(x.sum(axis=0, dtype=np.float64) / max(len(x), 1) for x in (keys, values))


class Call(NamedTuple):
    """A call of a public function as arrays whose leading axes are broadcast."""

    lead: tuple[int, ...]
    query: Array  # (*lead, m, d)
    keys: Array  # (*lead, n, d)
    values: Any  # (*lead, n, e) or None
    where: Any  # (*lead, m, n) or None
    bias: Any  # (*lead, m, n) or None
    single: bool  # one query: no axis m in the answer
    scalar: bool  # values without a width: no axis e in the answer
    dtype: Any

    def each(self) -> Iterator[tuple[Any, Array, Array, Masks]]:
        """Go through the leading axes: the place, and the query, the keys and the masks there."""
        for at in np.ndindex(self.lead):
            masks = (None if x is None else x[at] for x in (self.where, self.bias))
            yield at, self.query[at], self.keys[at], Masks(*masks)

    def result(self, out: Array) -> Any:
        """Return (*lead, m, ...) in the shape and dtype in which the caller asked."""
        out = out.take(0, axis=len(self.lead)) if self.single else out
        with np.errstate(all="ignore"):
            return out.astype(self.dtype, copy=False)[()]


def arrange(query: Any, keys: Any, values: Any, where: Any, bias: Any, widths: Any = None) -> Call:
    """Check the shapes of a call and bring them to one form.

    `widths` are those of query and keys where they may differ.
    """
    q, k = numbers(query, "query"), numbers(keys, "keys")
    v = None if values is None else numbers(values, "values")
    given = [np.asarray(x) for x in (query, keys, values) if x is not None]
    floats = [a.dtype if a.dtype.kind == "f" else np.dtype(np.float64) for a in given]
    if k.ndim == 0 or (k.ndim == 1 and q.ndim > 1) or (k.ndim > 1 and q.ndim == 0):
        raise ValueError(
            f"query has shape {q.shape} and keys {k.shape}, but query "
            "(..., m, d) or (d,) with keys (..., n, d), or query () or (m,) with plain numbers (n,) "
            "as keys, was expected. One query of width d against one key is query (d,), keys (1, d)."
        )
    single = q.ndim == k.ndim - 1 == 0 or (k.ndim > 1 and q.ndim == 1)
    if k.ndim == 1:
        q, k = q[..., None], k[:, None]
    q = q[None] if single else q
    wanted = widths or (k.shape[-1], k.shape[-1])
    if (q.shape[-1], k.shape[-1]) != wanted:
        raise ValueError(
            f"query has width {q.shape[-1]} and keys have width {k.shape[-1]}, but widths "
            f"{wanted[0]} and {wanted[1]} were expected in query (..., m, d) and keys (..., n, d). "
            "The last axis of both is d; transpose what lies the other way."
        )
    n, scalar = k.shape[-2], v is not None and v.ndim == 1
    if v is not None:
        v = v[:, None] if scalar else v
        if v.ndim < 2 or v.shape[-2] != n:
            raise ValueError(
                f"values have shape {given[-1].shape}, but (..., n, e) or (n,) was "
                f"expected with n = {n}, since keys have shape {k.shape}. "
                "Give every key one value."
            )
    axes = [a.shape[:-2] for a in (q, k, v) if a is not None]
    try:
        lead = np.broadcast_shapes(*axes)
    except ValueError:
        raise ValueError(
            f"the leading axes {', '.join(map(str, axes))} of query, keys and values do not "
            "broadcast, but equal axes, or axes of size 1, were expected before the last two. "
            "Add axes of size 1 with array[:, None]."
        ) from None
    q, k = (np.broadcast_to(a, lead + a.shape[-2:]) for a in (q, k))
    v = None if v is None else np.broadcast_to(v, lead + v.shape[-2:])
    full = (*lead, q.shape[-2], n)
    where, bias = check_where(where, full, single), check_bias(bias, full, single)
    return Call(lead, q, k, v, where, bias, single, scalar, np.result_type(*floats))


def check_where(where: Any, full: tuple[int, ...], single: bool) -> Any:
    """Return a mask broadcast to (..., m, n); a single query's comes as (..., n)."""
    if where is None:
        return None
    refuse_masked(where, "where")
    try:
        where = np.asarray(where)
    except ValueError:
        raise ValueError(
            "where is ragged: its rows have unequal lengths, but one shape was expected. Give every row one "
            "boolean for each entry."
        ) from None
    if where.dtype.kind != "b" and where.size:
        raise TypeError(
            f"where has dtype {where.dtype}, but booleans were expected: True takes part. "
            "Write where=mask.astype(bool), after looking which of 0 and 1 takes part."
        )
    return fit_mask(where.astype(bool, copy=False), "where", full, single)


def chosen(where: Callable[[Any, Any], Any], entries: Iterable[tuple[Any, Any]]) -> Array:
    """Return which entries (n,) a predicate of key and value lets take part; it is asked once for each."""
    found = [where(key, value) for key, value in entries]
    for (key, _), taken in zip(entries, found, strict=True):
        if not isinstance(taken, (bool, np.bool_)):
            raise TypeError(
                f"where({brief(key)}, ...) returned {brief(taken)}, but True or False was expected of a "
                "function that chooses entries by key and value. Wrap what it returns in bool(...)."
            )
    return np.array(found, dtype=bool)


def check_bias(bias: Any, full: tuple[int, ...], single: bool) -> Any:
    """Return a bias broadcast to (..., m, n); a single query's comes as (..., n)."""
    if bias is None:
        return None
    bias = numbers(bias, "bias").astype(np.float64, copy=False)
    if not bias.max(initial=-math.inf) < math.inf:
        raise ValueError(
            f"bias holds {'NaN' if np.isnan(bias).any() else 'inf'}, but finite numbers, or -inf to "
            "take an entry out, were expected. A bias is the logarithm of a prior weight: np.log(prior)."
        )
    return fit_mask(bias, "bias", full, single)


def fit_mask(array: Array, name: str, full: tuple[int, ...], single: bool) -> Array:
    """Return an array broadcast to (..., m, n); a single query's comes as (..., n)."""
    shape = full[:-2] + full[-1:] if single else full
    try:
        fitted = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {array.shape}, but a shape that broadcasts to "
            f"{'(..., n)' if single else '(..., m, n)'} = {shape} was expected. "
            "Rows are queries, columns are entries."
        ) from None
    return fitted[..., None, :] if single else fitted
