"""Inputs to arrays, and the checks of shape and range that more than one module needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Floats = Any  # an array of float64, which NumPy's own types often cannot tell

# ---- numbers ----------------------------------------------------------------------------------


def is_number(x: object) -> bool:
    """Tell whether `x` is a plain number: a Python or NumPy real scalar, never a bool."""
    return isinstance(x, Real) and not isinstance(x, bool)


def is_numeric(x: object) -> bool:
    """Tell whether `x` is a plain number, or a list or tuple of such things to any depth.

    An empty list or tuple holds no number, so it is not numeric.
    """
    if isinstance(x, (list, tuple)):
        return len(x) > 0 and all(map(is_numeric, x))
    return is_number(x)


def numbers(x: object, what: str, dtype: DTypeLike | None = None) -> Array:
    """Return `x` as a float array: float16 as float32, integers as float64, or all as `dtype`."""
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
        dtype = np.result_type(array, np.float32) if array.dtype.kind == "f" else np.float64
        dtype = min(np.dtype(dtype), np.dtype(np.float64), key=lambda t: t.itemsize)
    return _exact(array, what, np.dtype(dtype))


def _from_python(x: object, what: str, dtype: np.dtype[Any]) -> Array:
    """Return lists, tuples, numbers and array-likes as an array; refuse bools and ragged lists."""
    leaves = list(_leaves(x))
    if not isinstance(x, (list, tuple)) and not is_number(x):
        return np.asarray(x)  # an array of another library
    if wrong := [leaf for leaf in leaves if not is_number(leaf) and not _is_array(leaf)]:
        raise TypeError(
            f"{what} holds {wrong[0]!r}, but real numbers were expected. "
            "Pass an array, or a list or tuple of numbers."
        )
    for leaf in leaves:  # NumPy would round an integer silently where a float stands beside it
        if isinstance(leaf, Integral):
            _held(int(leaf), what, dtype)
    try:
        array = np.asarray(x)
        return array.astype(np.float64) if array.dtype == object else array
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


def _is_array(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "fiu"


def _exact(array: Array, what: str, dtype: np.dtype[Any]) -> Array:
    """Cast to the float `dtype`; an integer that it cannot hold exactly is refused."""
    if array.dtype.kind in "iu" and array.size:
        if max(abs(int(array.max())), abs(int(array.min()))) > 2 ** (np.finfo(dtype).nmant + 1):
            for integer in array.ravel().tolist():
                _held(integer, what, dtype)
    with np.errstate(over="ignore"):  # what becomes infinite is refused where that matters
        return array.astype(dtype, copy=False)


def _held(integer: int, what: str, dtype: np.dtype[Any]) -> None:
    try:
        if int(dtype.type(integer)) == integer:
            return
    except OverflowError:
        pass
    raise ValueError(
        f"{what} holds the integer {integer}, which {dtype} cannot hold exactly, but exact numbers "
        "were expected. Use text for ids: str(id) as the entry's name, with a key vector."
    )


def largest(array: Array) -> float:
    """Return how large a component may be, so that no squared distance overflows."""
    d = max(array.shape[-1], 1) if array.ndim > 1 else 1
    return math.sqrt(float(np.finfo(array.dtype).max) / d) / 2


def within(array: Array, limit: float, what: str, owner: Callable[[int], str]) -> None:
    """Refuse NaN, infinity and components above `limit`, naming the owner of the first such row."""
    good = np.abs(array) < limit if limit == math.inf else np.abs(array) <= limit
    if not good.all():
        row = int(np.argmin(good.reshape(len(array), -1).all(axis=1)))
        bad = float(np.ravel(array[row])[np.argmin(np.ravel(good[row]))])
        size = "" if limit == math.inf else f" of at most {limit:.3g}"
        raise ValueError(
            f"{what} of {owner(row)} holds {bad}, but finite numbers{size} were expected. "
            "Leave the entry out, mend the number, or rescale."
        )


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


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as the reader writes it."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


# ---- whole calls: query, keys, values, where, bias ---------------------------------------------


class Call(NamedTuple):
    """A call of a public function as arrays whose leading axes are broadcast."""

    lead: tuple[int, ...]
    query: Array  # (*lead, m, d)
    keys: Array  # (*lead, n, d)
    values: Array | None  # (*lead, n, e)
    where: Any  # (*lead, m, n)
    bias: Any  # (*lead, m, n)
    single: bool  # one query: no axis m in the answer
    scalar: bool  # values without a width: no axis e in the answer
    dtype: Any


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
            f"query has shape {shape_text(q.shape)} and keys {shape_text(k.shape)}, but query "
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
                f"values have shape {shape_text(given[-1].shape)}, but (..., n, e) or (n,) was "
                f"expected with n = {n}, since keys have shape {shape_text(k.shape)}. "
                "Give every key one value."
            )
    axes = [a.shape[:-2] for a in (q, k, v) if a is not None]
    try:
        lead = np.broadcast_shapes(*axes)
    except ValueError:
        raise ValueError(
            f"the leading axes {', '.join(map(shape_text, axes))} of query, keys and values do not "
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
    where = np.asarray(where)
    if where.dtype.kind != "b" and where.size:
        raise TypeError(
            f"where has dtype {where.dtype}, but booleans were expected: True takes part. "
            "Write where=mask.astype(bool), after looking which of 0 and 1 takes part."
        )
    return _fit(where.astype(bool), "where", full, single)


def check_bias(bias: Any, full: tuple[int, ...], single: bool) -> Any:
    """Return a bias broadcast to (..., m, n); a single query's comes as (..., n)."""
    if bias is None:
        return None
    bias = numbers(bias, "bias").astype(np.float64)
    if (np.isnan(bias) | (bias == np.inf)).any():
        raise ValueError(
            f"bias holds {'NaN' if np.isnan(bias).any() else 'inf'}, but finite numbers, or -inf to "
            "take an entry out, were expected. bias is the logarithm of a prior weight."
        )
    return _fit(bias, "bias", full, single)


def _fit(array: Array, name: str, full: tuple[int, ...], single: bool) -> Array:
    shape = full[:-2] + full[-1:] if single else full
    try:
        fitted = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {shape_text(array.shape)}, but a shape that broadcasts to "
            f"{'(..., n)' if single else '(..., m, n)'} = {shape_text(shape)} was expected. "
            "Rows are queries, columns are entries."
        ) from None
    return fitted[..., None, :] if single else fitted
