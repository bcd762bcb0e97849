"""How alike are query and key? The named similarities, each scoring one pair from that pair alone.

BLAS gives equal keys unequal scores, because it sums in an order that depends on where a key stands
in the matrix. A lookup that must find ties and winners cannot live with that. So every score here
is *canonical*: a fixed sequence of float64 operations on one query and one key.

Distances take differences first. The expansion ``|q|^2 - 2 q.k + |k|^2`` would lose all digits of
two close points that are far from the origin.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend
from softdict._checks import Floats, Source, Tile, brief, check_number, check_result, numbers

#: Up to this width a sum runs coordinate by coordinate over whole tiles; above, along each pair.
FEW = 6
#: einsum sums longer rows in an order that depends on how many there are.
WIDE = 4096

Backward = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]


class Similarity(NamedTuple):
    """One way to score."""

    #: The canonical score: maps (..., d) and (..., d), which broadcast, to (...).
    score: Callable[[Floats, Floats], Floats]
    bounded: bool = False  # True where no score is infinity
    #: False where `score` may round differently from pair to pair; it then maps (m, d), (b, d) to (m, b).
    canonical: bool = True
    #: Where a matrix product gives the score up to rounding: turns queries (m, d) into its left factor.
    factor: Callable[[Floats], Floats] | None = None
    #: The derivative: maps the gradient of the scores (m, b), queries (m, d) and keys (b, d) to the gradients
    #: of the queries (m, d) and of the keys (b, d).
    backward: Backward | None = None
    #: The same by matrix products, where `backward` takes differences; queries and keys are about a center.
    quick_backward: Backward | None = None


# ---- sums over coordinates, in an order that depends on the width alone ----------------------


def _dot(q: Floats, k: Floats) -> Floats:
    """Return the inner products of q (..., d) and k (..., d)."""
    if q.shape[-1] > FEW:
        out = _pairs(q, k)
    else:
        out = np.zeros(np.broadcast_shapes(q.shape, k.shape)[:-1])
        for c in range(q.shape[-1]):
            out += q[..., c] * k[..., c]
    if np.count_nonzero(np.isnan(out)):  # two infinite products of finite numbers: once more, scaled down
        odd = np.nonzero(np.isnan(out))
        q, k = (np.broadcast_to(x, (*out.shape, x.shape[-1]))[odd] for x in (q, k))
        out[odd] = np.ldexp((_near_one(q) * _near_one(k)).sum(axis=1), _exponents(q) + _exponents(k))
    return out


def _sum_of_differences(q: Floats, k: Floats, power: int, out: Any = None) -> Floats:
    """Return the sums of ``|q - k| ** power`` over the last axis (in `out` if d is small)."""
    d = q.shape[-1]
    if 0 < d <= FEW:
        out = _power(np.subtract(q[..., 0], k[..., 0], out=out), power)
        for c in range(1, d):
            out += _power(q[..., c] - k[..., c], power)
        return out
    if q.ndim == 3 and len(q) > 1 < k.shape[1]:  # one (b, d) of differences at a time stays in the cache
        if len(q) > k.shape[1]:
            return _sum_of_differences(k.swapaxes(0, 1), q.swapaxes(0, 1), power).T
        return np.concatenate([_sum_of_differences(row, k[0], power)[None] for row in q])
    difference = k - q
    return _pairs(difference, difference) if power == 2 else np.abs(difference).sum(axis=-1)


def _power(x: Floats, power: int) -> Floats:
    return np.multiply(x, x, out=x) if power == 2 else np.abs(x, out=x)


def _pairs(a: Floats, b: Floats) -> Floats:
    """Return the sums of products over the last axis, in blocks as wide as einsum's own buffer.

    So the order of a sum depends on d alone. It is einsum's own loop, not BLAS: each pair by itself.
    """
    if a.shape[-1] <= WIDE:
        return np.einsum("...d,...d->...", a, b)
    blocks = (slice(start, start + WIDE) for start in range(0, a.shape[-1], WIDE))
    return sum(_pairs(np.ascontiguousarray(a[..., c]), np.ascontiguousarray(b[..., c])) for c in blocks)


def _behind_hits(scores: Floats, hit: float, q: Floats, k: Floats) -> Floats:
    """Put every pair that is no exact hit behind the exact hits, whatever underflowed."""
    below = math.nextafter(hit, -math.inf)
    near = math.nextafter(below, -math.inf)  # a logarithm may be off by its last bit
    if scores.size and not scores.item(scores.argmax()) < near:  # NaN is the largest
        at = np.nonzero(scores >= near)
        one, other = (np.broadcast_to(x, (*scores.shape, x.shape[-1]))[at] for x in (q, k))
        missed = (one != other).any(axis=-1)
        scores[at] = np.where(missed, np.minimum(scores[at], below), hit)
    return scores


# ---- derivatives, from the gradient of the scores to those of queries and keys -------------------


def _by_differences(ds: Floats, q: Floats, k: Floats, rule: Any = None) -> tuple[Floats, Floats]:
    """Go back through what has the derivative `rule` of ``k - q``, one coordinate at a time."""
    dq, dk = np.empty(q.shape), np.empty(k.shape)
    for c in range(q.shape[1]):
        steps = k[:, c] - q[:, c, None]
        steps = np.where(ds == 0, 0, ds * (rule(steps) if rule else steps))  # a far key may be at infinity
        dq[:, c], dk[:, c] = steps.sum(axis=1), -steps.sum(axis=0)
    return dq, dk


def _gaussian_products(ds: Floats, q: Floats, k: Floats) -> tuple[Floats, Floats]:
    one_q, one_k = (np.ones((len(x), 1), dtype=ds.dtype) for x in (q, k))  # which sum up ds on the way
    to_q, to_k = ds @ np.hstack([k, one_k]), _crossed(ds, np.hstack([q, one_q]))
    return to_q[:, :-1] - to_q[:, -1:] * q, to_k[:, :-1] - to_k[:, -1:] * k


def _crossed(ds: Floats, x: Floats) -> Floats:
    return (x.T @ ds).T  # ds.T @ x, in half the time


def _dot_backward(ds: Floats, q: Floats, k: Floats) -> tuple[Floats, Floats]:
    return _product(np.matmul, ds, k), _product(_crossed, ds, q)


def _scaled_dot_backward(ds: Floats, q: Floats, k: Floats) -> tuple[Floats, Floats]:
    to_q, to_k = _dot_backward(ds, q, k)
    return to_q / _root_width(q), to_k / _root_width(q)


def _product(multiply: Any, ds: Floats, x: Floats) -> Floats:
    """Return a product with x, where no term overflows before the sum does."""
    power = 0 if np.vdot(x, x) < 1e30 else np.frexp(np.abs(x).max())[1]
    return np.ldexp(multiply(ds, np.ldexp(x, -power)), power) if power else multiply(ds, x)


def _cosine_backward(ds: Floats, q: Floats, k: Floats) -> tuple[Floats, Floats]:
    unit_q, unit_k = (_unit(x).astype(ds.dtype, copy=False) for x in (q, k))
    to_q, to_k = _dot_backward(ds, unit_q, unit_k)
    return _across(to_q, q, unit_q), _across(to_k, k, unit_k)


def _across(gradient: Floats, x: Floats, unit: Floats) -> Floats:
    """Return what of the gradient of unit vectors turns x (m, d); nothing turns a zero vector."""
    turn = gradient - (gradient * unit).sum(axis=1, keepdims=True) * unit
    length = np.sqrt(_squares(_near_one(x)))[:, None]
    turn = np.divide(turn, length, out=np.zeros_like(turn), where=length > 0)
    return np.ldexp(turn, -_exponents(x)[:, None])


# ---- the similarities --------------------------------------------------------------------------


def _gaussian(q: Floats, k: Floats) -> Floats:
    return _behind_hits(_sum_of_differences(q, k, 2) * -0.5, 0.0, q, k)


def _laplacian(q: Floats, k: Floats) -> Floats:
    return 0.0 - _sum_of_differences(q, k, 1)  # an exact hit scores 0.0, not -0.0


def _root_width(q: Floats) -> float:
    return math.sqrt(max(q.shape[-1], 1))  # width 0: all keys alike


def _scaled_dot(q: Floats, k: Floats) -> Floats:
    return _dot(q, k) / _root_width(q)


def _cosine(q: Floats, k: Floats) -> Floats:
    # Powers of two bring every vector to a length near one, exactly, so that no square overflows
    # or underflows. For equal vectors sqrt(x * x) is x again: the ratio is exactly 1.
    q, k = _near_one(q), _near_one(k)
    squares = _squares(q) * _squares(k)
    cosine = _dot(q, k) / np.sqrt(np.where(squares == 0, 1, squares))
    return np.clip(cosine, -1, 1)


def _near_one(x: Floats) -> Floats:
    return np.ldexp(x, -_exponents(x)[..., None])


def _exponents(x: Floats) -> Any:
    """Return the power of two just above each vector's largest component."""
    return np.frexp(np.abs(x).max(axis=-1, initial=0))[1]


def _squares(x: Floats) -> Floats:
    # Summed in the same order as _dot sums, so that equal vectors agree to the last bit.
    if x.shape[-1] > FEW:
        return _pairs(x, x)
    return sum((x[..., c] * x[..., c] for c in range(x.shape[-1])), np.zeros(x.shape[:-1]))


def _unit(x: Floats) -> Floats:
    x = _near_one(x)
    return x / np.sqrt(np.maximum(_squares(x), 0.1))[..., None]  # a square is at least 1/4, or 0


@dataclass(frozen=True)
class InverseDistance:
    """Score by inverse squared distance: ``-log(|q - k|^2 + delta)``.

    With softmax and temperature 1 the weights are proportional to ``1 / (|q - k|^2 + delta)``.

    **Equivalent to:** ``-np.log(((q - k) ** 2).sum(-1) + delta)``, with `delta` at least 0, in
    squared key units. At 0 an exact hit scores infinity and answers alone.

    Notes
    -----
    Inverse distance weighting: Shepard, "A two-dimensional interpolation function for
    irregularly-spaced data", 1968. Cost O(m n d).

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import InverseDistance, lookup_weights
    >>> lookup_weights(0.0, np.array([1.0, 2.0]), similarity=InverseDistance(0.0)).round(3)
    array([0.8, 0.2])
    >>> InverseDistance(-1)
    Traceback (most recent call last):
    ...
    ValueError: delta is -1, but a finite number of at least 0 was expected in InverseDistance. ...
    """

    delta: float = 1e-6

    def __post_init__(self) -> None:
        finite = "a finite number of at least 0"
        hint = "in InverseDistance. A small positive one rounds off the peak at each key"
        valid = check_number("delta", self.delta, lambda x: 0 <= x < math.inf, finite, hint)
        object.__setattr__(self, "delta", valid)

    def _score(self, q: Floats, k: Floats) -> Floats:
        scores = 0.0 - np.log(_sum_of_differences(q, k, 2) + self.delta)
        hit = -math.log(self.delta) if self.delta else math.inf
        return _behind_hits(scores, hit, q, k)

    def _backward(self, ds: Floats, q: Floats, k: Floats) -> tuple[Floats, Floats]:
        squares = _sum_of_differences(q[:, None], k[None], 2) + self.delta
        squares = np.maximum(squares, np.finfo(np.float64).tiny)  # which vanish where steps do not
        return _by_differences(ds, q, k, lambda steps: 2 * steps / squares)


class Bilinear:
    """Score by a learned inner product: ``q @ W @ k``.

    **Equivalent to:** ``q @ W @ k.T``, for queries of width d_q, keys of width d_k and a matrix W
    (d_q, d_k) of finite numbers.

    Notes
    -----
    Luong, Pham, Manning, "Effective approaches to attention-based neural machine translation",
    2015 ("general" score). Cost O(m d_q d_k + m n d_k).

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import Bilinear, soft_lookup
    >>> swap = Bilinear([[0, 1], [1, 0]])
    >>> float(soft_lookup([9, 0], np.eye(2), np.array([1.0, 2.0]), similarity=swap).round(3))
    2.0
    """

    def __init__(self, W: Any) -> None:
        matrix = np.array(numbers(W, "W of Bilinear"), dtype=np.float64)
        if matrix.ndim != 2 or not np.isfinite(matrix).all():
            raise ValueError(
                f"W has shape {matrix.shape} and holds {brief(matrix)}, but a finite matrix "
                "(d_q, d_k) was expected in Bilinear. Pass one row per query component, one column per key's."
            )
        matrix.flags.writeable = False
        self.W = matrix

    def __repr__(self) -> str:
        return f"Bilinear(W of shape {self.W.shape})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bilinear) and np.array_equal(self.W, other.W)

    __hash__ = None  # type: ignore[assignment]  # 0.0 and -0.0 are equal

    def _score(self, q: Floats, k: Floats) -> Floats:
        asked, power = np.zeros((*q.shape[:-1], self.W.shape[1])), np.frexp(np.abs(self.W).max(initial=0))[1]
        for column, row in zip(np.moveaxis(_near_one(q), -1, 0), np.ldexp(self.W, -power), strict=True):
            asked += column[..., None] * row  # BLAS would sum by place, not by pair
        return np.ldexp(_dot(asked, k), _exponents(q) + power)

    def _backward(self, ds: Floats, q: Floats, k: Floats) -> tuple[Floats, Floats]:
        dq, dk = _dot_backward(ds, q, k)
        return _product(np.matmul, dq, self.W.T), _product(np.matmul, dk, self.W)


NAMED = {
    "gaussian": Similarity(_gaussian, True, True, lambda q: q, _by_differences, _gaussian_products),
    "laplacian": Similarity(_laplacian, True, backward=functools.partial(_by_differences, rule=np.sign)),
    "cosine": Similarity(_cosine, True, True, _unit, _cosine_backward),
    "dot": Similarity(_dot, False, True, lambda q: q, _dot_backward),
    "scaled_dot": Similarity(_scaled_dot, False, True, lambda q: q / _root_width(q), _scaled_dot_backward),
}


def as_similarity(similarity: Any) -> Similarity:
    """Return the record of a similarity's name, of an InverseDistance or Bilinear, or a callable."""
    if isinstance(similarity, str) and similarity in NAMED:
        return NAMED[similarity]
    if isinstance(similarity, InverseDistance):
        return Similarity(similarity._score, backward=similarity._backward)
    if isinstance(similarity, Bilinear):
        return Similarity(similarity._score, False, True, lambda q: q @ similarity.W, similarity._backward)
    if callable(similarity) and not isinstance(similarity, type):
        return Similarity(_checked(similarity), canonical=False)
    raise (ValueError if isinstance(similarity, str) else TypeError)(
        f"similarity is {similarity!r}, but a name ({', '.join(NAMED)}), InverseDistance(delta), "
        "Bilinear(W) or a function of (m, d) and (b, d) was expected. Check the spelling."
    )


def score_pairs(similarity: Similarity, q: Floats, k: Floats) -> Floats:
    """Score every query (m, d) against every key (b, d), both float64: (m, b)."""
    return similarity.score(q[:, None], k[None]) if similarity.canonical else similarity.score(q, k)


class Block:
    """The scores of some queries in a working precision, multiplied by `scale`: quick, and nearly right.

    Inner products and cosines are one matrix product. A distance is expanded about a center,
    ``-|q-k|^2/2 = (q-c).(k-c) - |k-c|^2/2 - |q-c|^2/2``: the first two terms are one product of rows
    that are one longer, the third is the same for all keys and kept as `constant`. In few dimensions,
    and for few queries, the differences themselves cost no more and lose nothing.
    """

    def __init__(
        self, similarity: Similarity, source: Source, scale: float, dtype: Any, center: Floats
    ) -> None:
        query, keys = source.query, source.keys[:0]
        self.similarity, self.scale, self.constant, self.left = similarity, scale, 0.0, query
        self.distance, self.unit = (similarity is NAMED[name] for name in ("gaussian", "cosine"))
        few = min(query.shape) <= FEW
        self.direct = similarity.factor is None or (self.distance and few)
        self.exact = self.direct and not self.distance  # its scores are the canonical ones
        self.centered = self.distance and not self.direct
        self.dtype = np.dtype(np.float64 if self.exact else dtype)
        if self.direct:
            self.dtype = np.result_type(self.dtype, query, keys)
            self.left = query.astype(self.dtype)[:, None]
            return
        factor: Any = similarity.factor
        left = factor(query.astype(np.result_type(query, self.dtype), copy=False))
        if self.distance:
            self.center = center.astype(self.dtype)
            left = left - self.center
        self.norm = np.sqrt(np.einsum("md,md->m", left, left)).astype(np.float64) * scale
        if not (scale == 0 or 1e-30 < scale < 1e30):
            self.norm += math.inf  # nothing that follows can be trusted
        if self.distance:
            self.constant = self.norm**2 / (-2 * scale or 1)
            left = np.column_stack([left, np.ones(len(left))])
            self.room = left[:0]
        self.left = (left * scale).astype(self.dtype, copy=False)

    def fill(self, tile: Tile, out: Floats) -> Any:
        """Put the scores of a tile, less `constant`, into `out` (m, b); return its keys' lengths (b,)."""
        left, keys, norms = self.left[tile.rows], tile.keys, tile.norms
        if self.direct:
            keys = keys.astype(self.dtype, copy=False)[None]
            if self.distance:
                np.multiply(_sum_of_differences(left, keys, 2, out), -0.5 * self.scale, out=out)
            else:
                np.multiply(self.similarity.score(left, keys), self.scale, out=out)
            return None
        if self.distance:
            if len(self.room) < len(keys):
                self.room = np.empty((len(keys), keys.shape[1] + 1), dtype=self.dtype)
            right = self.room[: len(keys)]
            right[:, -1] = -0.5
            centered = np.subtract(keys, self.center, out=right[:, :-1], casting="same_kind")
            norms = np.einsum("bd,bd->b", centered, centered)
            right[:, -1] *= norms
            norms = np.sqrt(norms)
        else:
            right = keys.astype(self.dtype, copy=False)
            norms = np.sqrt(np.einsum("bd,bd->b", right, right)) if norms is None else norms
        _backend.inner_products(left, right, out)
        lowest = math.sqrt(float(np.finfo(self.dtype).tiny))  # below, squares vanish
        if self.unit:
            out /= np.where(norms == 0, 1, norms).astype(self.dtype, copy=False)
            poor = ~((norms > 1e4 * lowest) & (norms < 1e-3 / lowest))
            poor[poor] = right[poor].any(axis=1)  # but for zero vectors
            return np.where(poor, math.inf, 1)
        return np.maximum(norms, lowest)

    def size(self, reach: Floats) -> Any:
        """Return how large the terms are that make up the scores of keys of at most this length, (m,)."""
        if self.direct:
            return 0.0
        return self.norm * reach + (reach * reach / 2 * self.scale if self.distance else 0)

    def size_of_mean(self, squares: Floats) -> Any:
        """Return at most how large the terms of a distance are, on the average of keys of such squares."""
        return self.norm**2 / (2 * self.scale or 1) + squares * self.scale

    def slack(self, cut: Floats, reach: Floats) -> Any:
        """Return how far a score near `cut` may be from the canonical one, (m,): a bound.

        The sum of d products, each factor rounded once, is off by at most (d + a few) u times its size;
        what underflows adds its own. A distance from differences is off in proportion.
        """
        if self.exact:
            return np.zeros(len(cut))
        info, d = np.finfo(self.dtype), self.left.shape[-1]
        size = np.where(np.isfinite(cut), np.abs(cut), 0)
        canonical = 2.0**-52 * (size + np.abs(self.constant))  # which is rounded too
        size = size if self.direct else self.size(reach)
        return (d + 20) * (float(info.eps) * size + float(info.tiny) * (1 + self.scale) + canonical)


def by_length(similarity: Any) -> bool:
    """Tell whether a `Block` asks for the lengths of the keys."""
    return similarity in ("dot", "scaled_dot", "cosine") or isinstance(similarity, Bilinear)


def widths(similarity: Any) -> tuple[int, int] | None:
    """Return the widths of query and key where a similarity fixes them."""
    return similarity.W.shape if isinstance(similarity, Bilinear) else None


def _checked(function: Callable[[Any, Any], Any]) -> Callable[[Floats, Floats], Floats]:
    name = f"similarity {getattr(function, '__name__', type(function).__name__)}"

    def score(q: Floats, k: Floats) -> Floats:
        q, k = q.view(), k.view()
        q.flags.writeable = k.flags.writeable = False
        shape = (len(q), len(k))
        scores = function(q, k) if all(shape) else np.zeros(shape)
        return check_result(scores, name, shape, "one score per pair")

    return score
