"""The door to Dask: `lookup` over arrays in chunks, on one machine or on many.

It needs Dask, the extra `dask`; ``import softdict`` leaves this module out.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection

from softdict._checks import Array, Masks, Source, arrange, brief, check_bias, check_where, fit_mask, numbers
from softdict.blend import Partial, checked, partial
from softdict.scores import widths

_HERE = "in softdict.dask.lookup"
_MAKE = "Make one of a dataframe by to_dask_array(lengths=True), of a delayed value by da.from_delayed"


def lookup(
    keys: Any, values: Any, queries: Any, *, similarity: Any = "gaussian", temperature: float = 1.0,
    weighting: Any = "softmax", where: Any = None, bias: Any = None, top_k: int | None = None,
    min_score: float | None = None, null_score: float | None = None,
) -> Any:  # fmt: skip
    """Blend values in chunks in the shares that queries give their keys, lazily.

    Gaussian by default. Each chunk of entries gives a partial answer, and a tree of merges makes them one.

    **Equivalent to:** ``da.from_array(soft_lookup(queries, keys.compute(), values.compute(), ...))``

    Parameters
    ----------
    keys, values : dask arrays of shape (n, d) or (n,), and `(n, *value_shape)`
        The entries, both in the same chunks of rows, and in one chunk along every other axis.
    queries : array or dask array of shape (m, d) or (d,)
        What is asked; a dask array is in chunks of rows. With plain numbers as keys, (m,) or ().
    where, bias : array or dask array, broadcast to (m, n)
        As in `soft_lookup`, in any chunks.
    similarity, temperature, weighting, top_k, min_score, null_score
        As in `soft_lookup`, but that a weighting has a name: a function asks for whole rows.

    Returns
    -------
    dask array of shape `(m, *value_shape)`
        Without m for a single query. ``.compute()`` gives what `soft_lookup` gives, up to rounding.

    Raises
    ------
    TypeError, ValueError
        For wrong kinds, shapes, chunks and settings, at once; for what is in the chunks, when computed.

    Notes
    -----
    Nothing is loaded here. Computing loads each chunk of keys and values once and costs O(m n (d + e)) time;
    a task holds one chunk of each and what `soft_lookup` takes. What travels is small: O(m e) a merge, or
    O(m s e) where the s entries a query that may still count are kept, for `top_k` and sparse weightings.

    Examples
    --------
    >>> import dask.array as da
    >>> import softdict.dask
    >>> keys = da.arange(1_000_000.0, chunks=100_000)
    >>> answer = softdict.dask.lookup(keys, 10 * keys, [500.0, 500.25], temperature=0.1)
    >>> answer
    dask.array<..., shape=(2,), dtype=float64, chunksize=(2,), chunktype=numpy.ndarray>
    >>> answer.compute().round(3)
    array([5000.   , 5000.753])
    >>> softdict.dask.lookup(keys, keys.rechunk(200_000), 0.0)
    Traceback (most recent call last):
    ...
    ValueError: keys have chunks of (100000, 100000, 100000, ...) rows and values of (200000, ...
    """
    settings = checked(similarity=similarity, temperature=temperature, weighting=weighting, top_k=top_k,
                       min_score=min_score, null_score=null_score)  # fmt: skip
    for name, x in (("queries", queries), ("where", where), ("bias", bias)):
        if not isinstance(x, da.Array) and _is_lazy(x):  # NumPy would load it, here and now
            raise TypeError(
                f"{name}: it is {brief(x)}, but one dask array, or an array, was expected {_HERE}. "
                f"{_MAKE}, or of a list by da.stack."
            )
    if not isinstance(queries, da.Array):
        exact, queries = numbers(queries, "query"), np.asarray(queries)
        # NumPy makes objects of large integers. Else the answer takes the dtype that was given.
        queries = da.from_array(exact if queries.dtype == object else queries, chunks=-1)
    _check(keys, values, queries)
    # Axes by name, for blockwise: m and n as everywhere, d along a key, and those of a value.
    batch, wide = queries.ndim == keys.ndim, [f"e{axis}" for axis in range(1, values.ndim)]
    chunks = {"m": queries.chunks[0], "n": keys.chunks[0]} if batch else {"n": keys.chunks[0]}
    given = [
        (keys, ["n", "d"][: keys.ndim]),
        (values, ["n", *wide]),
        (queries, ["m", "d"][not batch :][: queries.ndim]),
        (da.arange(len(keys), chunks=keys.chunks[:1]), ["n"]),
        _mask("where", where, chunks),
        _mask("bias", bias, chunks),
    ]
    # Wrong kinds, widths and settings show in the answer over one entry of zeros, and so does the dtype.
    one = [x if x is None else _one(x, axes, chunks) for x, axes in given]
    shape = values.shape[1:]
    dtype = _ended([_part(*one, settings=settings, shape=shape)]).dtype
    parts = da.blockwise(
        _part, [*chunks, *wide], *(x for pair in given for x in pair), settings=settings, shape=shape,
        align_arrays=False, dtype=object, meta=np.empty([0] * len([*chunks, *wide]), dtype=object),
    )  # fmt: skip
    return da.reduction(
        parts, _partial_answer, combine=_merged, aggregate=_ended, axis=int(batch), concatenate=False,
        dtype=dtype, meta=np.empty([0] * (batch + len(wide)), dtype=dtype),
    )  # fmt: skip


def _is_lazy(x: Any) -> bool:
    """Tell whether something is of Dask, or a list of such things."""
    return is_dask_collection(x) or (isinstance(x, (list, tuple)) and any(map(_is_lazy, x)))


def _check(keys: Any, values: Any, queries: Any) -> None:
    """Refuse what is not in chunks of whole rows, the same for keys and values."""
    for name, x in (("keys", keys), ("values", values)):
        if not isinstance(x, da.Array):
            raise TypeError(
                f"{name} are {brief(x)}, but a dask array was expected {_HERE}. {_MAKE}, of an array by "
                f"da.from_array({name}, chunks=...). Or ask softdict.soft_lookup."
            )
    if keys.ndim not in (1, 2) or keys.ndim - queries.ndim not in (0, 1) or not values.ndim:
        raise ValueError(
            f"keys have shape {keys.shape}, values {values.shape} and queries {queries.shape}, but keys "
            "(n, d), values (n, ...) and queries (m, d) or (d,), or keys (n,) and queries (m,) or (), were "
            f"expected {_HERE}. Ask for each place of leading axes by itself."
        )
    batch = queries.ndim == keys.ndim
    for name, x, first in (("keys", keys, 1), ("values", values, 1), ("queries", queries, int(batch))):
        _known(name, x)
        if cut := {axis: -1 for axis in range(first, x.ndim) if x.numblocks[axis] > 1}:
            raise ValueError(
                f"{name} have {x.numblocks} chunks along their axes, but chunks of whole rows were expected "
                f"{_HERE}. Pass {name}.rechunk({cut})."
            )
    if len(keys) != len(values):
        raise ValueError(
            f"keys have shape {keys.shape} and values {values.shape}, but as many of one as of the other "
            f"were expected {_HERE}. Give every key one value."
        )
    if keys.chunks[0] != values.chunks[0]:
        raise ValueError(
            f"keys have chunks of {brief(keys.chunks[0])} rows and values of {brief(values.chunks[0])}, but "
            f"the same chunks were expected {_HERE}. Pass values.rechunk({{0: keys.chunks[0]}})."
        )


def _known(name: str, x: Any) -> None:
    if math.isnan(sum(x.shape)):
        raise ValueError(
            f"{name}: the shape is {x.shape}, but chunks of known sizes were expected {_HERE}, since they "
            f"tell the place of each entry. Call {name}.compute_chunk_sizes() first."
        )


def _mask(name: str, mask: Any, chunks: dict[str, Any]) -> tuple[Any, Any]:
    """Return a mask in the chunks of queries and entries, and its axes."""
    if mask is None:
        return None, None
    sizes = {axis: sum(rows) for axis, rows in chunks.items()}
    full, single = (1, *sizes.values())[-2:], len(sizes) == 1
    if isinstance(mask, da.Array):
        _known(name, mask)
        fit_mask(np.broadcast_to(False, mask.shape), name, full, single)
    else:
        (check_where if name == "where" else check_bias)(mask, full, single)
        mask = da.from_array(np.asarray(mask, dtype=bool if name == "where" else float), chunks=-1)
    axes = [*chunks][len(chunks) - mask.ndim :]
    cuts = tuple(chunks[x] if size == sizes[x] else -1 for size, x in zip(mask.shape, axes, strict=True))
    # Where every axis is of size 0, rechunk leaves it as it is.
    return mask.rechunk(cuts) if mask.size else da.empty_like(mask, chunks=cuts), axes


def _one(x: Any, axes: list[str], chunks: dict[str, Any]) -> Any:
    """Return zeros for one query's or entry's part of an array, masked or whatever else its chunks are."""
    shape = [1 if axis in chunks else size for axis, size in zip(axes, x.shape, strict=True)]
    return np.zeros_like(x._meta, dtype=x.dtype, shape=shape)


def _part(
    keys: Any, values: Any, query: Any, places: Any, where: Any, bias: Any, *, settings: Any, shape: Any
) -> Partial:
    """Return the partial answer over a chunk of entries, which have these places and values of this shape."""
    keys, query = (x[0] if isinstance(x, list) else x for x in (keys, query))  # the one chunk along d
    values = np.asanyarray(values)  # a mask stays, and is refused
    if (*np.shape(keys)[:1], *values.shape) != (len(places), len(places), *shape):
        raise ValueError(
            f"a chunk holds keys of shape {np.shape(keys)} and values of shape {values.shape}, but "
            f"{len(places)} keys and values of shape {(len(places), *shape)} were expected {_HERE}, as the "
            "dask arrays say. Tell from_delayed, or what else made them, the shapes that it loads."
        )
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    call = arrange(query, keys, flat, where, bias, widths(settings["similarity"]))
    source = Source(call.query, call.keys, call.values, Masks(call.where, call.bias))
    shape = (*[len(call.query)][call.single :], *shape)
    return partial(source, settings, int(places[:1].sum()), (shape, call.dtype))


def _partial_answer(part: Any, axis: Any, keepdims: Any) -> Any:
    """Pass a partial answer on. The task that makes it, too, bears this name on Dask's dashboard."""
    return part


def _merged(parts: list[Partial], axis: Any = None, keepdims: Any = None) -> Partial:
    # All are of one call. But a function that has travelled twice would not be equal to itself.
    settings = parts[0]._settings
    return functools.reduce(operator.add, (Partial(part._state, settings) for part in parts))


def _ended(parts: list[Partial], axis: Any = None, keepdims: Any = None) -> Array:
    merged = _merged(parts)
    return np.asarray(merged.finish(), dtype=merged._settings["shape"][2])
