"""A soft lookup in the words of the Transformer: query, key, value, heads, causal, window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from softdict._checks import arrange, brief, check_bias, check_count, check_number, check_where, numbers
from softdict.blend import checked, values_of, weights_of
from softdict.scores import widths


def _grouped(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Give grouped heads two axes, (key heads, group), without a copy; leave other arrays as they are."""
    arrays = {"query": query, "key": key, **({} if value is None else {"value": value})}
    heads, *served = (math.prod(numbers(x, name).shape[-3:-2]) for name, x in arrays.items())
    if len({*served, 1}) == 3:
        raise ValueError(
            f"key has {served[0]} heads and value has {served[1]}, but equal numbers, or a single head, were "
            "expected on axis -3. Give each head of key its own head of value."
        )
    groups = max(served)
    if groups <= 1 or heads in (1, groups):
        return query, key, value  # leading axes that broadcast
    if heads % groups:
        raise ValueError(
            f"query has {heads} heads, but a multiple of the {groups} heads of key and value was expected on "
            "axis -3, since each of those serves as many query heads as the next. Put heads on axis -3, with "
            "np.swapaxes(array, -2, -3) where they lie on axis -2."
        )
    q = np.asarray(query)
    q = q.reshape(*q.shape[:-3], groups, heads // groups, *q.shape[-2:])
    key, value = (x if np.ndim(x) < 3 else np.asarray(x)[..., None, :, :] for x in (key, value))
    return q, key, value


def _span(m: int, n: int, causal: Any, window: Any, offset: Any) -> Any:
    """Return the first entry that each query sees, and the first after the last one, (m, 2); None for all."""
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(
            f"causal is {brief(causal)}, but True or False was expected in attention. Say how many entries "
            "come before the first query with offset=."
        )
    if window is not None and (not isinstance(window, (tuple, list)) or len(window) != 2):
        raise (ValueError if isinstance(window, (tuple, list)) else TypeError)(
            f"window is {brief(window)}, but a pair (left, right) or None was expected in attention. Say how "
            "many entries a query sees before and after its own place, None for all: window=(128, 0)."
        )
    left, right = (
        None if x is None else check_count(f"window[{i}]", x, "in attention. None leaves that side open", 0)
        for i, x in enumerate(window or (None, None))
    )
    hint = "in attention. It is how many entries come before the first query"
    offset = n - m if offset is None else check_number("offset", offset, _is_whole, "one whole number", hint)
    place = np.arange(m) + int(offset)  # (m,) the entry that each query meets
    right = 0 if causal else right
    if left is None and right is None:
        return None
    first = np.zeros_like(place) if left is None else place - left
    end = np.full_like(place, n) if right is None else place + right + 1
    return np.stack([first, end], axis=1).clip(0, n)


def _is_whole(x: Any) -> bool:
    return bool(-(2**53) <= x <= 2**53 and x % 1 == 0)


def _ask(
    engine: Callable[..., Any], query: Any, key: Any, value: Any, where: Any, bias: Any, rows: Any,
    **settings: Any,
) -> Any:  # fmt: skip
    """Ask the engine; `rows` are causal, window and offset. Masks meet the heads that the query has."""
    settings = checked(**settings, min_score=None)
    q, k, v = _grouped(query, key, value)
    call = arrange(q, k, v, None, None, widths(settings["similarity"]))
    m, n = call.query.shape[-2], call.keys.shape[-2]
    split = q is not query
    lead = (*call.lead[:-2], math.prod(call.lead[-2:])) if split else call.lead  # as the caller sees it
    masks = (check(x, (*lead, m, n), call.single) for check, x in ((check_where, where), (check_bias, bias)))
    where, bias = (None if x is None else x.reshape(*call.lead, m, n) for x in masks)
    out = engine(call._replace(where=where, bias=bias), settings, _span(m, n, *rows))
    return out.reshape(lead + out.shape[len(call.lead) :]) if split else out


def attention(
    query: Any, key: Any, value: Any, *, temperature: float = 1.0, where: Any = None, bias: Any = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, offset: int | None = None,
    similarity: Any = "scaled_dot", weighting: Any = "softmax", top_k: int | None = None,
    null_score: float | None = None,
) -> Any:  # fmt: skip
    """Blend the values in the shares that each query gives their keys, as the Transformer does.

    Scaled_dot by default; `similarity="gaussian"` makes it `soft_lookup`.

    **Equivalent to:** ``z = query @ np.swapaxes(key, -1, -2) / np.sqrt(d) / temperature``,
    ``w = np.exp(z) * np.tri(m, n, n - m)``, ``value = (w / w.sum(-1, keepdims=True)) @ value`` with
    `causal=True`, key and value of few heads being ``np.repeat(key, heads // key_heads, axis=-3)``.

    Parameters
    ----------
    query : array of shape (..., h, m, d), (m, d) or (d,)
        What is asked: m queries in each of h heads, or one query.
    key : array of shape (..., h, n, d) or (n, d)
        What the entries answer to. Leading axes broadcast. Where it has fewer heads than the query, each
        serves h / key heads consecutive heads of the query, without a copy.
    value : array of shape (..., h, n, e), (n, e) or (n,)
        What the entries hold, in one head or in as many as key has.
    temperature : float
        From 0 (the best entries alone, exactly) to infinity (the plain mean), in score units.
    where : array of bool, broadcast to (..., h, m, n)
        True takes part. The heads are those of the query; a single query takes (n,).
    bias : array, broadcast to (..., h, m, n)
        Added to the logits: the logarithm of a prior weight, finite or -inf.
    causal : bool
        Query i sees entries j <= i + offset.
    window : (left, right), optional
        Query i sees entries i + offset - left <= j <= i + offset + right. Whole numbers of at least 0;
        None leaves a side open.
    offset : int, optional
        How many entries come before the first query; it may be negative. By default n - m, so that the
        last query meets the last entry. Without `causal` and `window` nothing depends on it.
    similarity, weighting, top_k, null_score
        As in `soft_lookup`.

    Returns
    -------
    array of shape (..., h, m, e)
        Without m for a single query, without e for values (n,). The dtype of query, key and value
        together. Zeros where a query has no entry to look at.

    Raises
    ------
    TypeError, ValueError
        For wrong kinds, shapes and ranges.

    Notes
    -----
    Vaswani et al., "Attention is all you need", 2017; grouped heads: Ainslie et al., "GQA", 2023; window:
    Beltagy et al., "Longformer", 2020. Time O(h m n (d + e)), memory as in `soft_lookup`. `causal`, `window`
    and `where` combine: all of them must let an entry pass. Ties share. What is not seen is never
    touched: a later key or value, even NaN, changes no bit of an earlier row under `causal`.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import attention
    >>> x, value = np.zeros((3, 2)), np.array([1.0, 3.0, 8.0])
    >>> attention(x, x, value), attention(x, x, value, causal=True)
    (array([4., 4., 4.]), array([1., 2., 4.]))
    >>> attention(x[:2], x, value, causal=True)  # fewer queries: the last one meets the last entry
    array([2., 4.])
    >>> attention(np.zeros((6, 3, 2)), np.zeros((4, 3, 2)), np.zeros((4, 3, 2)))
    Traceback (most recent call last):
    ...
    ValueError: query has 6 heads, but a multiple of the 4 heads of key and value was expected on axis -3, ...
    """
    return _ask(values_of, query, key, value, where, bias, (causal, window, offset), temperature=temperature,
                similarity=similarity, weighting=weighting, top_k=top_k, null_score=null_score)  # fmt: skip


def attention_weights(
    query: Any, key: Any, *, temperature: float = 1.0, where: Any = None, bias: Any = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, offset: int | None = None,
    similarity: Any = "scaled_dot", weighting: Any = "softmax", top_k: int | None = None,
    null_score: float | None = None,
) -> Any:  # fmt: skip
    """Return the shares in which `attention` blends the values, (..., h, m, n); each row sums to one.

    Scaled_dot by default; `similarity="gaussian"` makes it `lookup_weights`. It takes what `attention` takes,
    and raises what that raises. With a `null_score` the rest to one is the silent entry's share; a query
    with no entry to look at gets zeros.

    **Equivalent to:** ``attention(query, key, np.eye(n), ...)``, in O(h m n (d + 1)) time, O(h m n) memory.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import attention_weights
    >>> x = np.zeros((3, 2))
    >>> attention_weights(x, x, window=(1, 0))  # each sees itself and the one before
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    >>> attention_weights(x, x[:2], causal=True)  # more queries than entries: the first sees nothing
    array([[0. , 0. ],
           [1. , 0. ],
           [0.5, 0.5]])
    >>> attention_weights(x, x, window=1)
    Traceback (most recent call last):
    ...
    TypeError: window is 1, but a pair (left, right) or None was expected in attention. ...
    """
    return _ask(weights_of, query, key, None, where, bias, (causal, window, offset), temperature=temperature,
                similarity=similarity, weighting=weighting, top_k=top_k, null_score=null_score)  # fmt: skip
