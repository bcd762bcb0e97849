"""The heart: lookup = score -> weigh -> blend, first plainly, then the same by tiles.

A partial answer is itself an entry: it has a score (its peak), a weight (its mass) and a value. So
to merge partial answers is to look up once more, softly, among a handful of entries.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from softdict._backend import MELTED, SORTED, fits, tile_columns, tile_shape
from softdict._checks import Array, Call, Floats, Masks, arrange, check_settings
from softdict.scores import as_similarity, score_pairs, widths
from softdict.weights import Entmax, as_weighting, log_sum_exp, logits, ranking, share, weigh

# ---- plainly ---------------------------------------------------------------------------------


def plain(query: Array, keys: Array, values: Array, masks: Masks, settings: Any) -> tuple[Floats, Any]:
    """Return the answers (m, e), and which queries reached something (m,). The definition."""
    scores = score(query, keys, masks, settings)  # (m, n)
    shares = weigh(scores, masks.bias, settings)
    value = mix(shares.weights, values, settings["temperature"] == 0)  # (m, e)
    return value, shares.reached


def score(query: Array, keys: Array, masks: Masks, settings: Any, rescore: Any = None) -> Floats:
    """Score every pair, (m, n). What step (1) takes out scores -inf.

    `rescore` finds the pairs whose scores have to be canonical, where a user's similarity may round.
    """
    similarity = as_similarity(settings["similarity"])
    q = np.ascontiguousarray(query, dtype=np.float64)
    k = np.ascontiguousarray(keys, dtype=np.float64)
    scores = score_pairs(similarity, q, k)
    where, bias, skip, span = masks
    if where is not None:
        scores[~np.broadcast_to(where, scores.shape)] = -math.inf
    if bias is not None:
        scores[np.broadcast_to(bias, scores.shape) == -math.inf] = -math.inf
    if skip is not None:
        rows = np.nonzero((skip >= 0) & (skip < len(k)))[0]
        scores[rows, skip[rows]] = -math.inf
    if span is not None:
        place = np.arange(len(k))
        scores[(place < span[:, :1]) | (place >= span[:, 1:])] = -math.inf
    if not similarity.canonical:
        close = (rescore or _undecided)(scores, bias, settings)
        for i, j in zip(*np.nonzero(close), strict=True):
            scores[i, j] = similarity.score(q[i : i + 1], k[j : j + 1])[0, 0]
    return scores if similarity.bounded else _only_infinite(scores)


def _only_infinite(scores: Floats) -> Floats:
    """Take out, in place, whatever stands beside an infinite score, which leaves only its like."""
    if np.count_nonzero(infinite := scores == math.inf):
        scores[infinite.any(axis=1, keepdims=True) & ~infinite] = -math.inf
    return scores


def _undecided(scores: Floats, bias: Any, settings: Any, part: bool = False) -> Any:
    """Find the scores (m, n) so close to a decision that their rounding could decide it.

    Of a part of the entries, all may be decided upon where they are fewer than `top_k`.
    """
    temperature, top_k, low = (settings[s] for s in ("temperature", "top_k", "min_score"))
    finite = np.isfinite(scores)
    slack = np.abs(np.where(finite, scores, 0)).max(axis=1, keepdims=True, initial=0) * 2.0**-30
    close = np.zeros(scores.shape, dtype=bool)
    if low is not None:
        close = np.abs(scores - low) <= slack
        scores = np.where(scores < low - slack, -math.inf, scores)
    order = scores
    if bias is not None and temperature > 0:
        order = np.where(finite, scores / temperature + bias, -math.inf)
        slack = slack / temperature
    # min_score may yet take out what is close to it; then the next ones move up
    sure = np.where(close, -math.inf, order)
    for count in ([1] if temperature == 0 else []) + ([top_k] if top_k is not None else []):
        if count <= scores.shape[1]:
            close |= order >= np.partition(sure, -count, axis=1)[:, [-count]] - 2 * slack
        elif part:
            close |= True
    return close & finite


def mix(weights: Floats, values: Array, hard: bool) -> Floats:
    """Blend weights (m, n) and values (n, e) to (m, e). A value of weight 0 is not touched."""
    values = np.asarray(values, dtype=np.float64)
    out = weights @ values
    if not math.isfinite(np.vdot(out, out)):
        odd = ~np.isfinite(values)  # 0 * NaN would spread; rows that do not touch it stay as they were
        out = weights @ np.where(odd, 0, values)
        for c in np.nonzero(odd.any(axis=0))[0]:
            touched = odd[:, c] & (weights != 0)
            out[:, c] += np.where(touched, weights * values[:, c], 0).sum(axis=1)
    if hard and len(values):  # a single winner to the last bit, the sign of a zero included
        alone = weights.max(axis=1) == 1
        out[alone] = values[weights[alone].argmax(axis=1)]
    return out


def mix_each(weights: Floats, values: Array) -> Floats:
    """Blend weights (m, s) and each query's own values (m, s, e) to (m, e)."""
    terms = np.where(weights[:, :, None] == 0, -0.0, weights[:, :, None] * values)
    return np.asarray(terms.sum(axis=1, initial=-0.0))  # -0.0 is what adds nothing, even to -0.0


# ---- the same by tiles -----------------------------------------------------------------------


class Part(NamedTuple):
    """A partial answer: the s entries a query that may still count.

    For softmax, the plain mean and the hard limit s is 1: one entry stands for all, with the best
    score, the blend as its value, and the logarithm of the mass of all in its bias. For top-k and the
    sparse weightings they are the entries themselves.
    """

    score: Floats  # (m, s), -inf where there is none
    bias: Floats  # (m, s)
    place: Any  # (m, s)
    value: Any  # (m, s, e); None where the values are at hand


def _melts(settings: Any) -> bool:
    """Tell whether one entry a query can stand for all seen so far."""
    return settings["top_k"] is None and getattr(as_weighting(settings["weighting"]), "alpha", None) == 1


def _melted(score: Floats, bias: Any, settings: Any, blend: Any) -> Part:
    """Melt entries (m, s) to one; `blend` turns shares (m, s) to values (m, e)."""
    z, best, lift = logits(score, bias, settings["temperature"])
    weights = np.exp(z)
    mass = weights.sum(axis=1, keepdims=True)
    value = blend(share(weights, mass))
    return Part(best, lift + np.log(mass), np.zeros(best.shape, dtype=np.intp), value[:, None])


def _tile(query: Array, keys: Array, values: Array, masks: Masks, settings: Any) -> Part:
    """Return the partial answer of one tile."""
    scores = score(
        query, keys, masks, settings, lambda scores, bias, rules: _undecided(scores, bias, rules, part=True)
    )
    if settings["min_score"] is not None:
        scores[scores < settings["min_score"]] = -math.inf
    if _melts(settings):
        hard = settings["temperature"] == 0
        return _melted(scores, masks.bias, settings, lambda shares: mix(shares, values, hard))
    bias = np.zeros_like(scores) if masks.bias is None else masks.bias
    return _pruned(Part(scores, bias, np.broadcast_to(np.arange(len(keys)), scores.shape), None), settings)


def _pruned(part: Part, settings: Any) -> Part:
    """Drop what cannot count any more: what is not among the k best, or has left the support."""
    top_k, score = settings["top_k"], part.score
    if top_k is not None:
        order = ranking(score, part.bias, settings["temperature"], part.place)[:, :top_k]
    else:
        alive = weigh(score, part.bias, {**settings, "null_score": None}).weights != 0
        score = np.where(alive, score, -math.inf)
        order = np.argsort(~alive, axis=1, kind="stable")[:, : alive.sum(axis=1).max(initial=0)]
    score, bias, place = (np.take_along_axis(x, order, axis=1) for x in (score, part.bias, part.place))
    value = None if part.value is None else np.take_along_axis(part.value, order[:, :, None], axis=1)
    return Part(score, bias, place, value)


def _merge(parts: list[Part], settings: Any) -> Part:
    """Merge partial answers of the same queries."""
    if len(parts) == 1:
        return parts[0]
    fields = zip(*parts, strict=True)
    whole = Part(*(None if x[0] is None else np.concatenate(x, axis=1) for x in fields))
    _only_infinite(whole.score)
    if _melts(settings):
        return _melted(whole.score, whole.bias, settings, lambda shares: mix_each(shares, whole.value))
    return _pruned(whole, settings)


def _finish(part: Part, settings: Any, values: Any = None) -> tuple[Floats, Any]:
    """Let the silent entry in and end: the answers (m, e), and who reached something (m,)."""
    _, weights, _, reached = weigh(part.score, part.bias, {**settings, "top_k": None, "min_score": None})
    if part.value is not None:
        out = mix_each(weights, part.value)
    else:
        out = np.full((len(weights), values.shape[1]), -0.0)  # which adds nothing, even to -0.0
        step = 1 + tile_columns(len(weights), weights.shape[1], 0, MELTED) // max(1, values.shape[1])
        for start in range(0, weights.shape[1], step):
            some = slice(start, start + step)
            out += mix_each(weights[:, some], values[part.place[:, some]].astype(np.float64))
    out[~weights.any(axis=1)] = 0.0  # where there is nothing, not even a sign
    return out, reached


def _by_tiles(query: Array, keys: Array, values: Array, masks: Masks, columns: int, settings: Any) -> Part:
    """Merge the partial answers of all tiles of entries, sixteen at a time."""
    parts: list[Part] = []
    for j in range(0, max(len(keys), 1), columns):
        c = slice(j, j + columns)
        part = _tile(query, keys[c], values[c], masks.tile(slice(None), c, (len(query), len(keys))), settings)
        parts.append(part._replace(place=part.place + j))
        if len(parts) == 16:
            parts = [_merge(parts, settings)]
    return _merge(parts, settings)


def by_parts(bias: Any, settings: Any) -> Any:
    """Return the settings by which parts of rows are weighed: where all logits are equal, softmax does."""
    even = bias is None and settings["temperature"] in (0, math.inf) and not callable(settings["weighting"])
    return {**settings, "weighting": "softmax"} if even else settings


def _tile_shape(m: int, n: int, width: int, settings: Any) -> tuple[int, int]:
    held, pair = (0, MELTED) if _melts(settings) else (8 * min(n, settings["top_k"] or n), SORTED)
    rows, columns = tile_shape(m, n, width, pair, held)
    if isinstance(as_weighting(settings["weighting"]), Entmax):
        return rows, columns
    return max(1, rows * columns // max(n, 1)), max(n, 1)  # a callable weighs whole rows


def answer(query: Array, keys: Array, values: Array, masks: Masks, settings: Any) -> tuple[Floats, Any]:
    """Return the answers (m, e) in float64, and which queries reached something (m,).

    The input is checked already: query (m, d), keys (n, d), values (n, e).
    """
    m, n, e = len(query), len(keys), values.shape[1]
    width = 2 * keys.shape[1] + e
    with np.errstate(all="ignore"):
        if fits(m, n, width):
            return plain(query, keys, values, masks, settings)
        rules = by_parts(masks.bias, settings)
        rows, columns = _tile_shape(m, n, width, rules)
        out, reached = np.empty((m, e)), np.empty(m, dtype=bool)
        for i in range(0, m, rows):
            r = slice(i, i + rows)
            some = masks.tile(r, slice(None), (m, n))
            if columns >= n:
                out[r], reached[r] = plain(query[r], keys, values, some, settings)
            else:
                part = _by_tiles(query[r], keys, values, some, columns, rules)
                out[r], reached[r] = _finish(part, rules, values)
        return out, reached


class Explained(NamedTuple):
    """Everything about a lookup but its value."""

    scores: Floats  # (m, n) canonical, -inf for what step (1) took out
    weights: Floats  # (m, n)
    null_weight: Floats  # (m,)
    logsumexp: Floats  # (m,)
    order: list[Any]  # of each query, the places that steps (1) to (3) left, best first


def explain(query: Array, keys: Array, masks: Masks, settings: Any) -> Explained:
    """Say why: takes what `answer` takes, and O(m n) memory."""
    with np.errstate(all="ignore"):
        scores = score(query, keys, masks, settings, lambda scores, *_: np.isfinite(scores))
        kept, weights, null_weight, _ = weigh(scores, masks.bias, settings)
        total = log_sum_exp(kept, masks.bias, settings["temperature"])
        if settings["temperature"] == 0 and settings["null_score"] is not None:
            total[kept.max(axis=1, initial=-math.inf) < settings["null_score"]] = -math.inf
        ranked, left = ranking(kept, masks.bias, settings["temperature"]), (kept > -math.inf).sum(axis=1)
        order = [row[:count] for row, count in zip(ranked, left, strict=True)]
        return Explained(scores, weights, null_weight, total, order)


# ---- partial answers ---------------------------------------------------------------------------


class Partial:
    """A part of an answer, over some of the entries; parts merge by ``+``, in any order.

    Made by `SoftDict.partial`. It pickles, and it is small: the blend and a few numbers a query, or the
    entries that may still count where `top_k` or a sparse weighting asks for them.

    **Equivalent to:** ``peak = z.max(); mass = exp(z - peak).sum(); total = exp(z - peak) @ values``
    for the logits ``z`` of the entries seen so far; ``finish`` returns ``total / mass``.

    Notes
    -----
    The merge is that of Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    ``+`` costs O(m e), or O(m s e) where s entries a query are kept.

    Examples
    --------
    >>> from softdict import SoftDict
    >>> low, high = SoftDict({0: 10.0, 1: 20.0}), SoftDict({2: 30.0, 3: 40.0})
    >>> both = low.partial(1.5) + high.partial(1.5, offset=2)
    >>> both.finish(), (low | high)[1.5]
    (25.0, 25.0)
    >>> low.partial(1.5) + low.at(temperature=2).partial(1.5)
    Traceback (most recent call last):
    ...
    ValueError: temperature is 1.0 in one partial answer and 2.0 in the other, but ...
    """

    def __init__(self, state: Any, settings: dict[str, Any], shape: Any) -> None:
        self._state, self._settings, self._shape = state, settings, shape

    def __add__(self, other: object) -> Partial:
        """Merge two partial answers of the same queries over different entries."""
        if not isinstance(other, Partial):
            return NotImplemented
        ours, theirs = ({**p._settings, "shape": p._shape} for p in (self, other))
        if self._state is None or other._state is None:  # over no entries at all: the identity
            theirs["shape"] = ours["shape"]
        for name, value in ours.items():
            if value != theirs[name]:
                raise ValueError(
                    f"{name} is {value} in one partial answer and {theirs[name]} in the other, but "
                    "one and the same was expected in a merge of partial answers. Ask all parts "
                    "with the same queries and settings."
                )
        if self._state is None or other._state is None:
            return self if other._state is None else other
        with np.errstate(all="ignore"):
            state = _merge([self._state, other._state], self._settings)
        return Partial(state, self._settings, self._shape)

    def finish(self) -> Any:
        """Return the answer over all merged entries: zeros for a query that reached none."""
        return self.end()[0]

    def end(self) -> tuple[Any, Any]:
        """Return the answer, and which queries reached something (m,)."""
        if self._state is None:
            raise KeyError("no part of this answer holds an entry; merge it with one that does")
        with np.errstate(all="ignore"):
            value, reached = _finish(self._state, self._settings)
        return shaped(value, *self._shape[1:]), reached


def shaped(value: Floats, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an answer (m, e) in the shape and dtype of the values, one number as a float."""
    if value.dtype != dtype:
        with np.errstate(all="ignore"):
            value = value.astype(dtype)
    return value.item() if shape == () else value.reshape(shape)


def partial(
    query: Array, keys: Array, values: Array, masks: Masks, settings: Any, offset: int, shape: Any
) -> Partial:
    """Return the partial answer over these entries; takes what `answer` takes.

    `offset` is how many entries come before these, `shape` what to make of the answer (m, e) at the
    end: its shape and dtype.
    """
    if not isinstance(as_weighting(settings["weighting"]), Entmax):
        raise TypeError(
            f"weighting is {settings['weighting']!r}, a function of whole rows, but a named one was "
            "expected in a partial answer, which sees a part of each row. Use a name or Entmax(alpha)."
        )
    m, n, e = len(query), len(keys), values.shape[1]
    settings = by_parts(masks.bias, settings)
    with np.errstate(all="ignore"):
        columns = tile_columns(m, n, 2 * keys.shape[1] + e, SORTED)
        state = _by_tiles(query, keys, values, masks, columns, settings)
    if state.value is None:
        state = state._replace(value=values[state.place].astype(np.float64))
    state = state._replace(place=state.place + offset)
    return Partial(state, settings, (f"d = {keys.shape[1]}, e = {e}, m = {m}", *shape))


# ---- the public functions ------------------------------------------------------------------------


def checked(**settings: Any) -> dict[str, Any]:
    """Return the settings given, checked, numbers as float or int."""
    return check_settings({"similarity": as_similarity, "weighting": as_weighting}, settings)


def values_of(call: Call, settings: Any, span: Any = None) -> Any:
    """Return the answers to a checked call, in the shape and dtype in which the caller asked.

    `span` (m, 2) is the first entry that each query sees, and the first after the last one.
    """
    out = np.empty((*call.lead, call.query.shape[-2], call.values.shape[-1]))
    for at, q, k, masks in call.each():
        out[at] = answer(q, k, call.values[at], masks._replace(span=span), settings)[0]
    return call.result(out[..., 0] if call.scalar else out)


def weights_of(call: Call, settings: Any, span: Any = None) -> Any:
    """Return the weights of a checked call; takes what `values_of` takes."""
    out = np.empty((*call.lead, call.query.shape[-2], call.keys.shape[-2]))
    with np.errstate(all="ignore"):
        for at, q, k, masks in call.each():
            scores = score(q, k, masks._replace(span=span), settings)
            out[at] = weigh(scores, masks.bias, settings).weights
    return call.result(out)


def soft_lookup(
    query: Any, keys: Any, values: Any, *, similarity: Any = "gaussian", temperature: float = 1.0,
    weighting: Any = "softmax", where: Any = None, bias: Any = None, top_k: int | None = None,
    min_score: float | None = None, null_score: float | None = None,
) -> Any:  # fmt: skip
    """Blend the values in the shares that the query gives their keys.

    Gaussian by default; `similarity="scaled_dot"` makes it the attention of the Transformer.

    **Equivalent to:** ``scores = -((query - keys) ** 2).sum(-1) / 2; w = np.exp(scores / temperature);
    value = (w / w.sum()) @ values``

    Parameters
    ----------
    query : array of shape (..., m, d) or (d,)
        What is asked: m queries, or one. With plain numbers as keys, (m,) or ().
    keys : array of shape (..., n, d) or (n,)
        What the entries answer to. Leading axes broadcast.
    values : array of shape (..., n, e) or (n,)
        What the entries hold.
    similarity : str, InverseDistance, Bilinear or callable
        "gaussian" ``-|q-k|^2/2``, "laplacian" ``-|q-k|_1``, "cosine", "dot", "scaled_dot"
        ``q.k/sqrt(d)``, or a function of (m, d) and (b, d) to (m, b) that treats each pair alone.
    temperature : float
        From 0 (the best entries alone, exactly) to infinity (the plain mean), in score units.
    weighting : str, Entmax or callable
        "softmax", "sparsemax", "entmax15", or a function of logits (m, n), -inf for what is out.
    where : array of bool, broadcast to (..., m, n)
        True takes part. A single query takes (n,).
    bias : array, broadcast to (..., m, n)
        Added to the logits: the logarithm of a prior weight, finite or -inf.
    top_k : int, optional
        Only so many entries share, the earlier first among equals.
    min_score, null_score : float, optional
        Entries that score lower than the first take no part; the second is the score of a silent entry
        that is worth zero: "nothing here matches".

    Returns
    -------
    array of shape (..., m, e)
        Without m for a single query, without e for values (n,). The dtype of query, keys and values
        together. Zeros where a query has no entry to look at.

    Raises
    ------
    TypeError, ValueError
        For wrong kinds, shapes and ranges.

    Notes
    -----
    Kernel regression: Nadaraya, "On estimating regression", 1964; attention: Vaswani et al., "Attention is
    all you need", 2017. Time O(m n (d + e)), memory within the budget of `softdict._backend`. Ties share.
    What is masked is never touched; unmasked NaN passes through; a score of infinity leaves only its like.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import soft_lookup
    >>> keys, values = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    >>> float(soft_lookup(0.9, keys, values).round(3))
    1.945
    >>> float(soft_lookup(0.9, keys, values, temperature=0))  # hard: the nearest
    2.0
    >>> float(soft_lookup(50.0, keys, values, temperature=0.01))  # far away: still the nearest
    3.0
    >>> soft_lookup(0.9, keys, values, temperature=-1)
    Traceback (most recent call last):
    ...
    ValueError: temperature is -1, but one number of at least 0 was expected among the settings. ...
    """
    settings = checked(similarity=similarity, temperature=temperature, weighting=weighting, top_k=top_k,
                       min_score=min_score, null_score=null_score)  # fmt: skip
    return values_of(arrange(query, keys, values, where, bias, widths(similarity)), settings)


def lookup_weights(
    query: Any, keys: Any, *, similarity: Any = "gaussian", temperature: float = 1.0,
    weighting: Any = "softmax", where: Any = None, bias: Any = None, top_k: int | None = None,
    min_score: float | None = None, null_score: float | None = None,
) -> Any:  # fmt: skip
    """Return the shares in which `soft_lookup` blends the values, (..., m, n); each row sums to one.

    Gaussian by default. It takes what `soft_lookup` takes, and raises what that raises. With a
    `null_score` the rest to one is the silent entry's share; a query with no entry to look at gets zeros.

    **Equivalent to:** ``soft_lookup(query, keys, np.eye(n), ...)``, in O(m n (d + 1)) time, O(m n) memory.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import lookup_weights
    >>> w = lookup_weights([1.0, 0.1], np.array([[1, 0], [0, 1], [3, 3]]))
    >>> w.round(3), float(w.sum().round(12))
    (array([0.71 , 0.289, 0.001]), 1.0)
    >>> lookup_weights([1.0, 0.1], np.array([[1, 0], [0, 1], [3, 3]]), similarity="dot").round(3)
    array([0.088, 0.036, 0.876])
    >>> lookup_weights([1.0], np.eye(2))
    Traceback (most recent call last):
    ...
    ValueError: query has width 1 and keys have width 2, but widths 2 and 2 were expected in ...
    """
    settings = checked(similarity=similarity, temperature=temperature, weighting=weighting, top_k=top_k,
                       min_score=min_score, null_score=null_score)  # fmt: skip
    return weights_of(arrange(query, keys, None, where, bias, widths(similarity)), settings)
