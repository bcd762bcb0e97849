"""A soft lookup in the words of the Transformer: query, key, value, heads, causal, window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np

from softdict._backend import host, library
from softdict._checks import (
    Array,
    Call,
    arrange,
    as_generator,
    brief,
    check_bias,
    check_count,
    check_flag,
    check_number,
    check_where,
    numbers,
    store_dtype,
)
from softdict._tensors import answer, as_tensor, stand_ins, together
from softdict.blend import checked, values_of, weights_of
from softdict.gradients import Gradients, as_given, check_cotangent, check_smooth, gradients_of, shapes_of
from softdict.mapping import Lookup, SoftDict
from softdict.scores import widths

# ---- attention -----------------------------------------------------------------------------------


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
    hint = "in attention. Say how many entries come before the first query with offset="
    check_flag("causal", causal, hint)
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


def _call(
    query: Any, key: Any, value: Any, where: Any, bias: Any, settings: dict[str, Any], sight: Any
) -> tuple[Call, Any, tuple[int, ...], Any]:
    """Return a checked call and its span, its leading axes as the caller sees them, and its own arrays.

    `sight` are causal, window and offset. Masks meet the heads that the query has. The arrays are query, key,
    value and bias; grouped heads have two axes.
    """
    q, k, v = _grouped(query, key, value)
    call = arrange(q, k, v, None, None, widths(settings["similarity"]))
    m, n = call.query.shape[-2], call.keys.shape[-2]
    split = q is not query
    lead = (*call.lead[:-2], math.prod(call.lead[-2:])) if split else call.lead  # as the caller sees it
    masks = (check(x, (*lead, m, n), call.single) for check, x in ((check_where, where), (check_bias, bias)))
    where, whole = (None if x is None else x.reshape(*call.lead, m, n) for x in masks)
    if split and np.ndim(bias) > 2:
        own = np.asarray(bias)
        bias = own.reshape(
            *own.shape[:-3], *(call.lead[-2:] if own.shape[-3] > 1 else (1, 1)), *own.shape[-2:]
        )
    return call._replace(where=where, bias=whole), _span(m, n, *sight), lead, (q, k, v, bias)


def _ask(
    engine: Callable[..., Any], query: Any, key: Any, value: Any, where: Any, bias: Any, sight: Any,
    **settings: Any,
) -> Any:  # fmt: skip
    """Ask the engine; takes what `_call` takes."""
    settings = checked(**settings, min_score=None)
    if library(query, key, value, where, bias) is not None:
        given = [query, key, ... if engine is weights_of else value, where, bias]
        call, span, lead, shapes = _call(*stand_ins(given), settings, sight)
        return answer(given, call, settings, span, lead, shapes[:3])
    call, span, lead, _ = _call(query, key, value, where, bias, settings, sight)
    out = engine(call, settings, span)
    return out.reshape(lead + out.shape[len(call.lead) :]) if lead != call.lead else out


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
    value = numbers(value, "value") if value is None else value  # which refuses it
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


def attention_vjp(
    query: Any, key: Any, value: Any, cotangent: Any, *, temperature: float = 1.0, where: Any = None,
    bias: Any = None, causal: bool = False, window: tuple[int | None, int | None] | None = None,
    offset: int | None = None, similarity: Any = "scaled_dot", weighting: Any = "softmax",
    top_k: int | None = None, null_score: float | None = None,
) -> Gradients:  # fmt: skip
    """Return the gradients of ``(cotangent * attention(...)).sum()`` with respect to its inputs.

    Scaled_dot by default; `similarity="gaussian"` makes it `soft_lookup_vjp`, by whose notes on ends, corners
    and masks it goes.

    **Equivalent to:** ``dw = cotangent @ np.swapaxes(value, -1, -2)``,
    ``dz = w * (dw - (w * dw).sum(-1, keepdims=True))``, ``d_value = np.swapaxes(w, -1, -2) @ cotangent`` and
    ``d_query = dz @ key / np.sqrt(d) / temperature``, with the weights ``w = attention_weights(...)``.

    Parameters
    ----------
    query, key, value, similarity, weighting, **settings
        As in `attention`; similarity and weighting are named ones, or classes of this library.
    cotangent : array, broadcast to the shape of the answer
        What each number of the answer is multiplied by.

    Returns
    -------
    Gradients
        A named tuple (query, keys, values, temperature, bias): arrays in the shape of the inputs and the
        dtype of the answer, temperature a float, and None for the bias where none was given. What serves
        several heads of the query gets the sum of what they ask of it.

    Raises
    ------
    TypeError, ValueError
        As `attention` does; for a cotangent that does not fit, and for functions as settings.

    Notes
    -----
    Time O(h m n (d + e)), some four times that of `attention`; memory as in `soft_lookup_vjp`.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import attention_vjp
    >>> x, value = np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 3.0, 8.0])
    >>> slopes = attention_vjp(x, x, value, [0.0, 1.0, 0.0], causal=True)  # the second word's answer
    >>> slopes.values.round(3)  # which does not see the third word
    array([0.269, 0.731, 0.   ])
    >>> slopes.query[:, 0].round(3)
    array([0.   , 0.393, 0.   ])
    >>> attention_vjp(x, x, value, np.ones((3, 1)))
    Traceback (most recent call last):
    ...
    ValueError: cotangent has shape (3, 1), but a shape that broadcasts to that of the answer, (3,), was ...
    """
    value = numbers(value, "value") if value is None else value  # which refuses it
    settings = check_smooth(checked(
        temperature=temperature, similarity=similarity, weighting=weighting, top_k=top_k, min_score=None,
        null_score=null_score,
    ))  # fmt: skip
    call, span, lead, arrays = _call(query, key, value, where, bias, settings, (causal, window, offset))
    g = check_cotangent(cotangent, call, lead)
    found = gradients_of(call, shapes_of(call, *arrays), g, settings, span)
    return as_given(found, (query, key, value, bias), call.dtype)


# ---- self-attention ------------------------------------------------------------------------------


def _own(name: str, given: Any, *shape: Any) -> Array:
    """Return a read-only copy of a matrix or a bias, and a tensor itself, which may be learned.

    (2, "d") in its shape stands for 2 * d, of any d.
    """
    tensor = (xp := library(given)) is not None
    array = as_tensor(given, name, xp) if tensor else np.array(numbers(given, name), order="C")
    sizes = [size if isinstance(size, tuple) else (size, "") for size in shape]
    pairs = zip(array.shape, sizes, strict=False)
    if array.ndim != len(shape) or any(x % size if letter else x != size for x, (size, letter) in pairs):
        text = ", ".join(f"{x} * {letter}" if x > 1 and letter else letter or str(x) for x, letter in sizes)
        text += "," * (len(shape) == 1)
        raise ValueError(
            f"{name} has shape {(*array.shape,)}, but ({text}) was expected in SelfAttention, to fit its "
            "heads and its other arrays. Words are rows, x @ w: transpose what was made for columns."
        )
    if tensor:
        return array
    if not (finite := np.isfinite(array)).all():
        raise ValueError(
            f"{name} holds {array[~finite][0]}, but finite numbers were expected in SelfAttention. Look for "
            "where it came from, such as a step too large."
        )
    array.flags.writeable = False
    return array


def _affine(x: Array, matrix: Any, bias: Any) -> Array:
    """Multiply rows by a matrix and add a bias, where there are any."""
    if library(x) is not None:
        x, matrix, bias = together(x, matrix, bias)
    with np.errstate(all="ignore"):  # NaN and infinity stay in their row, which a mask may leave out
        x = x if matrix is None else x @ matrix
        return x if bias is None else x + bias


def _split(rows: Any, h: int) -> Any:
    """Turn rows (..., n, h * d) to heads (..., h, n, d)."""
    shape = (*rows.shape[:-1], h, rows.shape[-1] // h)
    if (xp := library(rows)) is not None:
        return xp.moveaxis(xp.reshape(rows, shape), -3, -2)
    return rows.reshape(shape).swapaxes(-3, -2)


def _side_by_side(heads: Any) -> Any:
    """Turn heads (..., h, n, e) to rows (..., n, h * e)."""
    xp = library(heads)
    rows = heads.swapaxes(-3, -2) if xp is None else xp.moveaxis(heads, -3, -2)  # (..., n, h, e)
    shape = (*rows.shape[:-2], rows.shape[-2] * rows.shape[-1])
    return rows.reshape(shape) if xp is None else xp.reshape(rows, shape)


class Lookups(Sequence[Lookup]):
    """What each head of a layer looked up: a sequence of one `Lookup` a head, made by `SelfAttention.lookup`.

    **Equivalent to:** ``[sd.lookup(query) for sd, query in zip(heads, queries)]``

    `value` (n, d_out) is what the layer returns, to the last bit; `weights` are (h, n, n), of head, query and
    entry, and each row sums to one as in `Lookup`; `queries` and `keys` are the words.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import SelfAttention
    >>> look = SelfAttention(np.eye(2), np.eye(2), np.eye(2), heads=2).lookup([[9, 0], [0, 1]], ["a", "b"])
    >>> look.weights.round(2).tolist(), look[0].winner  # "b" asks head 0 for nothing, and all share
    ([[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.27, 0.73]]], ['a', 'a'])
    >>> look[2]
    Traceback (most recent call last):
    ...
    IndexError: tuple index out of range
    """

    def __init__(self, heads: Iterable[Lookup], value: Array) -> None:
        self._heads, self.value = tuple(heads), value
        self.weights = np.stack([look.weights for look in self._heads])
        self.queries, self.keys = self._heads[0].queries, self._heads[0].keys

    def __getitem__(self, head: Any) -> Any:
        return self._heads[head]

    def __len__(self) -> int:
        return len(self._heads)

    def __repr__(self) -> str:
        return "\n\n".join(f"head {i} of {len(self)}\n{look!r}" for i, look in enumerate(self))

    def _repr_html_(self) -> str:
        heads = (f"<div>head {i} of {len(self)}</div>{look._repr_html_()}" for i, look in enumerate(self))
        return f"<div>{''.join(heads)}</div>"


@dataclass(frozen=True, eq=False, repr=False)
class SelfAttention:
    """A layer in which every word asks every word, itself included: attention with matrices of its own.

    Scaled_dot by default; `similarity="gaussian"` makes each head a SoftDict as it is by default. Words are
    rows throughout, ``x @ w``: with words as columns everything is transposed.

    **Equivalent to:** ``sd = SoftDict.from_arrays(x @ w_k, x @ w_v, labels, similarity="scaled_dot")``, and
    ``sd[x @ w_q]``. Each of several heads is one such SoftDict, with its own columns of the matrices; their
    answers stand side by side, and are multiplied by `w_o`.

    Parameters
    ----------
    w_q, w_k, w_v : array of shape (d_model, heads * d), (d_model, key_heads * d), (d_model, key_heads * e)
        What a word looks for, what it offers, what it contributes if asked. They are copied.
    w_o : array of shape (heads * e, d_out), optional
        What becomes of the heads' answers; without it d_out is heads * e.
    heads, key_heads : int
        How many share the columns. Each key head serves heads / key_heads consecutive heads, by default one.
    biases : (b_q, b_k, b_v) or (b_q, b_k, b_v, b_o), optional
        What is added after each product, each an array as long as that has columns, or None.
    causal, window, temperature, similarity, weighting, top_k, null_score
        As in `attention`.

    Raises
    ------
    TypeError, ValueError
        For wrong settings, and for matrices that are not finite or fit neither the heads nor each other.

    Notes
    -----
    Parameters are read-only attributes; `dataclasses.replace(layer, temperature=0)` changes one. float16 is
    kept as float32. Time O(n (d_model + n) h (d + e)). To a word that sees nothing a head answers 0. NaN and
    infinity reach only those who see them. Weights say what was mixed, not why a model does what it does.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import SelfAttention, SoftDict
    >>> x = np.array([[1.0, 0], [0, 1], [1, 1], [1, 0]])  # words may be equal: each counts
    >>> w_q, w_k, w_v = np.array([[0.0, 2], [0, 1]]), np.eye(2), np.array([[10.0], [20]])
    >>> SelfAttention(w_q, w_k, w_v)(x)[:, 0].round(2)
    array([22.07, 20.05, 23.39, 22.07])
    >>> sd = SoftDict.from_arrays(x @ w_k, x @ w_v, ["0", "1", "2", "3"], similarity="scaled_dot")
    >>> sd[x @ w_q][:, 0].round(2)  # the same
    array([22.07, 20.05, 23.39, 22.07])
    >>> SelfAttention(w_k, w_q, w_v)(x)[:, 0].round(2)  # query and key are not interchangeable
    array([17.5 , 20.06, 20.06, 17.5 ])
    >>> SelfAttention(w_q, w_k, w_v, heads=2)
    Traceback (most recent call last):
    ...
    ValueError: w_v has shape (2, 1), but (2, 2 * e) was expected in SelfAttention, ...
    """

    w_q: Any
    w_k: Any
    w_v: Any
    w_o: Any = None
    _: KW_ONLY
    heads: int = 1
    key_heads: Any = None
    biases: Any = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    temperature: float = 1.0
    similarity: Any = "scaled_dot"
    weighting: Any = "softmax"
    top_k: int | None = None
    null_score: float | None = None

    def __post_init__(self) -> None:
        h = check_count("heads", self.heads, "in SelfAttention. One is plain attention")
        groups = h if self.key_heads is None else self.key_heads
        groups = check_count("key_heads", groups, "in SelfAttention. None has one for each head")
        if h % groups:
            raise ValueError(
                f"heads is {h}, but a multiple of key_heads = {groups} was expected in SelfAttention, since "
                "each key head serves as many heads as the next. Change one of them."
            )
        settings = checked(**self._settings())
        _span(0, 0, self.causal, self.window, None)
        w_q = _own("w_q", self.w_q, (1, "d_model"), (h, "d"))
        w_k = _own("w_k", self.w_k, w_q.shape[0], (groups, "d"))
        w_v = _own("w_v", self.w_v, w_q.shape[0], (groups, "e"))
        d_q, d_k, e = w_q.shape[1] // h, w_k.shape[1] // groups, w_v.shape[1] // groups
        if (d_q, d_k) != (wanted := widths(self.similarity) or (d_k, d_k)):
            raise ValueError(
                f"w_q makes queries of width {d_q} and w_k keys of width {d_k}, but widths {wanted[0]} and "
                f"{wanted[1]} were expected in SelfAttention with {h} heads and {groups} key heads. Give w_q "
                "heads * d columns, and w_k key_heads * d."
            )
        w_o = None if self.w_o is None else _own("w_o", self.w_o, h * e, (1, "d_out"))
        biases = (None,) * 3 if self.biases is None else self.biases
        if not isinstance(biases, (tuple, list)) or len(biases) not in (3, 4):
            raise (ValueError if isinstance(biases, (tuple, list)) else TypeError)(
                f"biases is {brief(biases)}, but (b_q, b_k, b_v), (b_q, b_k, b_v, b_o) or None was expected "
                "in SelfAttention. Put None in the place of one that is not there."
            )
        lengths = *(w.shape[1] for w in (w_q, w_k, w_v)), h * e if w_o is None else w_o.shape[1]
        named = zip(("b_q", "b_k", "b_v", "b_o"), (*biases, None), lengths, strict=False)
        own = tuple(None if b is None else _own(name, b, length) for name, b, length in named)
        self.__dict__.update(
            settings, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, heads=h, biases=own,
            key_heads=None if self.key_heads is None else groups,
            window=None if self.window is None else tuple(self.window),
        )  # fmt: skip

    def __reduce__(self) -> Any:
        return partial(type(self), **vars(self)), ()  # so that the matrices of a copy are read-only too

    @classmethod
    def random(
        cls, d_model: int, heads: int = 1, *, key_heads: int | None = None, width: int | None = None,
        value_width: int | None = None, d_out: int | None = None, rng: Any = None, dtype: Any = None,
        **settings: Any,
    ) -> SelfAttention:  # fmt: skip
        """Return a layer with random matrices, `w_o` too, to start learning from.

        **Equivalent to:** ``rng.normal(size=(rows, columns)) / np.sqrt(rows)`` for each matrix in turn.

        `d_out` is d_model by default; `width` and `value_width` are d and e of each head, by default
        d_model / heads, and d. `rng` is a seed or a Generator; dtype is float32 or float64.

        Examples
        --------
        >>> from softdict import SelfAttention
        >>> SelfAttention.random(6, heads=2, rng=0, causal=True).w_o.shape
        (6, 6)
        >>> SelfAttention.random(6, heads=4)
        Traceback (most recent call last):
        ...
        ValueError: d_model is 6, but a multiple of heads = 4 was expected in SelfAttention.random. ...
        """

        def count(name: str, given: Any, default: Any = None) -> int:
            given = default if given is None else given
            return check_count(
                name, given, "in SelfAttention.random. It is how many columns or heads there are"
            )

        d_model, heads = count("d_model", d_model), count("heads", heads)
        if width is None and d_model % heads:
            raise ValueError(
                f"d_model is {d_model}, but a multiple of heads = {heads} was expected in "
                "SelfAttention.random. Say how wide each head is with width=."
            )
        d, groups = count("width", width, d_model // heads), count("key_heads", key_heads, heads)
        e, d_out = count("value_width", value_width, d), count("d_out", d_out, d_model)
        rng, dtype = as_generator(rng, "in SelfAttention.random. Matrices come from it"), store_dtype(dtype)
        shapes = (d_model, heads * d), (d_model, groups * d), (d_model, groups * e), (heads * e, d_out)
        matrices = [(rng.normal(size=shape) / math.sqrt(shape[0])).astype(dtype) for shape in shapes]
        return cls(*matrices, heads=heads, key_heads=key_heads, **settings)

    def _settings(self) -> dict[str, Any]:
        names = "temperature", "similarity", "weighting", "top_k", "null_score"
        return {name: getattr(self, name) for name in names}

    def project(self, x: Any) -> tuple[Array, Array, Array]:
        """Return what words ask, offer and contribute: (..., h, n, d), (..., h, n, d) and (..., h, n, e).

        **Equivalent to:** ``np.swapaxes((x @ w + b).reshape(..., n, h, -1), -3, -2)`` with `w_q`, `w_k` and
        `w_v`. Keys and values have `key_heads` heads.
        """
        xp = library(self.w_q, self.w_k, self.w_v, self.w_o, *self.biases, x)
        x = numbers(x, "x") if xp is None else as_tensor(x, "x", xp)
        d_model = self.w_q.shape[0]
        if x.ndim < 2 or x.shape[-1] != d_model:
            raise ValueError(
                f"x has shape {(*x.shape,)}, but (..., n, {d_model}) was expected in SelfAttention, "
                f"whose matrices have {d_model} rows. Give each word a row; a single word is x[None]."
            )
        (b_q, b_k, b_v, _), groups = self.biases, self.key_heads or self.heads
        each = (self.w_q, b_q, self.heads), (self.w_k, b_k, groups), (self.w_v, b_v, groups)
        q, k, v = (_split(_affine(x, matrix, bias), h) for matrix, bias, h in each)
        return q, k, v

    def __call__(self, x: Any, *, where: Any = None, bias: Any = None) -> Array:
        """Return what words (..., n, d_model) become when each has heard the others, (..., n, d_out).

        `where` and `bias` are those of `attention`, and broadcast to (..., h, n, n): in a batch of sequences
        ``where=real[:, None, None, :]`` leaves out the padding of each.
        """
        q, k, v = self.project(x)
        sight = {"where": where, "bias": bias, "causal": self.causal, "window": self.window}
        answers = attention(q, k, v, **sight, **self._settings())
        return _affine(_side_by_side(answers), self.w_o, self.biases[3])

    def lookup(self, x: Any, labels: Any = None, *, where: Any = None, bias: Any = None) -> Lookups:
        """Return the same answer as ``layer(x)`` for one sequence (n, d_model), and why.

        `labels` are the n words, which may repeat; by default their places. Each head's `Lookup` comes from a
        SoftDict of its own, which wants keys and values that are finite, and not huge, and at least one word.

        Examples
        --------
        >>> import numpy as np
        >>> from softdict import SelfAttention
        >>> layer = SelfAttention(np.eye(2), np.eye(2), np.eye(2), causal=True)
        >>> layer.lookup([[2, 0], [2, 0], [0, 2]], labels=["very", "very", "tired"])
        head 0 of 1
        query asks (down), entry answers (across)
                very   very  tired  sum
        very       1      0      0    1
        very   0.500  0.500      0    1
        tired  0.053  0.053  0.894    1
        sum     1.55  0.553  0.894    3
        """
        q, k, v = map(host, self.project(x))
        if q.ndim != 3:
            raise ValueError(
                f"x has shape {np.shape(x)}, but one sequence (n, {self.w_q.shape[0]}) was expected in "
                "lookup. Ask for each sequence of a batch by itself: layer.lookup(x[0])."
            )
        h, n = q.shape[:2]
        labels = map(str, range(n)) if labels is None else labels
        words = list(labels) if isinstance(labels, Iterable) else [labels]
        if len(words) != n or not n:
            raise ValueError(
                f"there are {len(words)} labels for {n} rows of x, but one for each, and at least one, was "
                "expected in lookup. Give the words in their order; those that repeat may stay as they are."
            )
        named = {f"word {i}, {word!r}": word for i, word in enumerate(words)}
        value = host(self(x, where=where, bias=bias))
        where, bias = (None if mask is None else host(mask) for mask in (where, bias))
        masks: Any = check_where(where, (h, n, n), False), check_bias(bias, (h, n, n), False)
        wheres, biases = ([None] * h if mask is None else mask for mask in masks)
        if (span := _span(n, n, self.causal, self.window, None)) is not None:
            seen = (span[:, :1] <= np.arange(n)) & (np.arange(n) < span[:, 1:])
            wheres = [seen if where is None else where & seen for where in wheres]
        looks = []
        for i in range(h):
            own = i * len(k) // h
            sd = SoftDict.from_arrays(k[own], v[own], labels=list(named), **self._settings())
            look = sd.lookup(q[i], where=wheres[i], bias=biases[i])
            look.queries = look.keys = words
            look.winner = [named.get(name) for name in look.winner]
            looks.append(look)
        return Lookups(looks, value)

    def __repr__(self) -> str:
        shown = [f"{name} {tuple(w.shape)}" for name, w in vars(self).items() if hasattr(w, "shape")]
        groups = self.key_heads and self.heads
        usual = {"heads": None, "key_heads": groups, "causal": False, "window": None, "weighting": "softmax",
                 "top_k": None, "null_score": None}  # fmt: skip
        shown += [
            f"{name} {tuple(b.shape)}"
            for name, b in zip(("b_q", "b_k", "b_v", "b_o"), self.biases, strict=True)
            if b is not None
        ]
        shown += [f"{name}={x!r}" for name, plain in usual.items() if (x := getattr(self, name)) != plain]
        return f"SelfAttention({', '.join(shown)}, similarity={self.similarity!r}, T={self.temperature:g})"


# ---- a real head ---------------------------------------------------------------------------------


def real_head() -> tuple[SelfAttention, dict[str, tuple[list[str], Array]]]:
    """Return a head of a pretrained sentence encoder that often finds what a pronoun stands for.

    With it come two sentences, in one of which it does. Scaled_dot, T = 1, as it was trained. It is head 1 of
    layer 3 (counted from 0) of all-MiniLM-L6-v2.

    **Equivalent to:** ``SelfAttention(w_q, w_k, w_v, biases=(b_q, b_k, b_v))`` with ``np.load`` of the file
    ``data/real_head.npz`` in the package.

    Returns
    -------
    layer : SelfAttention
        One head, d_model 384, d and e 32.
    sentences : dict of (tokens, x)
        By the word that they differ in: "tired" and "wide". `tokens` is a list of n strings between [CLS]
        and [SEP], `x` what comes into the layer, (n, 384), float32.

    Notes
    -----
    Numbers were rounded to float16, which moves weights by less than 0.002. Each call reads 93 kB and returns
    arrays of its own. Apache License 2.0: see ``data/LICENSE.md`` in the package.

    Examples
    --------
    >>> from softdict import real_head
    >>> layer, sentences = real_head()
    >>> tokens, x = sentences["tired"]
    >>> found = layer.lookup(x, labels=tokens)[0]
    >>> it = tokens.index("it")
    >>> found.winner[it], round(float(found.weights[it].max()), 2)
    ('animal', 0.68)
    >>> tokens, x = sentences["wide"]  # one word changed, and the hard answer is a mark without meaning
    >>> layer.lookup(x, labels=tokens)[0].winner[it]
    '[CLS]'
    >>> sentences["warm"]
    Traceback (most recent call last):
    ...
    KeyError: 'warm'
    """
    asset = files("softdict").joinpath("data", "real_head.npz")
    with asset.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        matrices = (arrays[name] for name in ("w_q", "w_k", "w_v"))
        layer = SelfAttention(*matrices, biases=tuple(arrays[name] for name in ("b_q", "b_k", "b_v")))
        sentences = {
            name: (arrays[f"tokens_{name}"].tolist(), arrays[f"x_{name}"].astype(np.float32))
            for name in ("tired", "wide")
        }
    return layer, sentences
