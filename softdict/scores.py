"""How alike are query and key? The named similarities, each scoring one pair from that pair alone.

BLAS gives equal keys unequal scores, because it sums in an order that depends on where a key stands
in the matrix. A lookup that must find ties and winners cannot live with that. So every score here
is *canonical*: a fixed sequence of float64 operations on one query and one key.

Distances take differences first. The expansion ``|q|^2 - 2 q.k + |k|^2`` would lose all digits of
two close points that are far from the origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softdict._checks import Floats, brief, check_number, check_result, numbers

#: Up to this width a sum runs coordinate by coordinate over whole tiles; above, along each pair.
FEW = 6
#: einsum sums longer rows in an order that depends on how many there are.
WIDE = 4096


class Similarity(NamedTuple):
    """One way to score: `score` maps (m, d) and (b, d) to (m, b)."""

    score: Callable[[Floats, Floats], Floats]
    bounded: bool = False  # True where no score is infinity
    #: False where `score` may round differently from pair to pair (a user's callable).
    canonical: bool = True


# ---- sums over coordinates, in an order that depends on the width alone ----------------------


def _dot(q: Floats, k: Floats) -> Floats:
    """Return the inner products of q (m, d) and k (b, d), (m, b)."""
    if q.shape[1] > FEW:
        out = _pairs("md,bd->mb", q, k)
    else:
        out = np.zeros((len(q), len(k)))
        for a, b in zip(q.T, k.T, strict=True):
            out += a[:, None] * b
    if np.count_nonzero(np.isnan(out)):  # two infinite products of finite numbers: once more, scaled down
        i, j = np.nonzero(np.isnan(out))
        products = _near_one(q)[i] * _near_one(k)[j]
        out[i, j] = np.ldexp(products.sum(axis=1), _exponents(q)[i] + _exponents(k)[j])
    return out


def _sum_of_differences(q: Floats, k: Floats, power: int) -> Floats:
    """Return the sums of ``|q - k| ** power``, (m, b), for the power 1 or 2."""
    if q.shape[1] > FEW:
        if len(q) > len(k):
            return _sum_of_differences(k, q, power).T
        if len(q) == 1:
            return _sum_of_powers(k - q, power)[None]
        out = np.empty((len(q), len(k)))
        for i, query in enumerate(q):  # one (b, d) of differences at a time stays in the cache
            out[i] = _sum_of_powers(k - query, power)
        return out
    out = np.zeros((len(q), len(k)))
    for a, b in zip(q.T, k.T, strict=True):
        difference = a[:, None] - b
        out += np.abs(difference) if power == 1 else difference * difference
    return out


def _sum_of_powers(difference: Floats, power: int) -> Floats:
    if power == 2:
        return _pairs("bd,bd->b", difference, difference)
    return np.abs(difference).sum(axis=1)


def _pairs(axes: str, a: Floats, b: Floats) -> Floats:
    """Return the sums of products over the last axis, in blocks as wide as einsum's own buffer.

    So the order of a sum depends on d alone. It is einsum's own loop, not BLAS: each pair by itself.
    """
    if a.shape[1] <= WIDE:
        return np.einsum(axes, a, b)
    blocks = (slice(start, start + WIDE) for start in range(0, a.shape[1], WIDE))
    return sum(np.einsum(axes, np.ascontiguousarray(a[:, c]), np.ascontiguousarray(b[:, c])) for c in blocks)


def _behind_hits(scores: Floats, hit: float, q: Floats, k: Floats) -> Floats:
    """Put every pair that is no exact hit behind the exact hits, whatever underflowed."""
    below = math.nextafter(hit, -math.inf)
    near = scores >= math.nextafter(below, -math.inf)  # a logarithm may be off by its last bit
    if np.count_nonzero(near):
        i, j = np.nonzero(near)
        missed = (q[i] != k[j]).any(axis=1)
        scores[i, j] = np.where(missed, np.minimum(scores[i, j], below), hit)
    return scores


# ---- the similarities --------------------------------------------------------------------------


def _gaussian(q: Floats, k: Floats) -> Floats:
    return _behind_hits(_sum_of_differences(q, k, 2) * -0.5, 0.0, q, k)


def _laplacian(q: Floats, k: Floats) -> Floats:
    return 0.0 - _sum_of_differences(q, k, 1)  # an exact hit scores 0.0, not -0.0


def _scaled_dot(q: Floats, k: Floats) -> Floats:
    return _dot(q, k) / math.sqrt(max(q.shape[1], 1))  # width 0: all keys alike


def _cosine(q: Floats, k: Floats) -> Floats:
    # Powers of two bring every vector to a length near one, exactly, so that no square overflows
    # or underflows. For equal vectors sqrt(x * x) is x again: the ratio is exactly 1.
    q, k = _near_one(q), _near_one(k)
    squares = _squares(q)[:, None] * _squares(k)
    cosine = _dot(q, k) / np.sqrt(np.where(squares == 0, 1, squares))
    return np.clip(cosine, -1, 1)


def _near_one(x: Floats) -> Floats:
    return np.ldexp(x, -_exponents(x)[:, None])


def _exponents(x: Floats) -> Any:
    """Return the power of two just above each vector's largest component."""
    return np.frexp(np.abs(x).max(axis=1, initial=0))[1]


def _squares(x: Floats) -> Floats:
    # Summed in the same order as _dot sums, so that equal vectors agree to the last bit.
    if x.shape[1] > FEW:
        return _pairs("md,md->m", x, x)
    return sum((column * column for column in x.T), np.zeros(len(x)))


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
        hint = "in InverseDistance. A small positive one rounds off the peak at each key"
        valid = check_number(
            "delta", self.delta, lambda x: 0 <= x < math.inf, "a finite number of at least 0", hint
        )
        object.__setattr__(self, "delta", valid)

    def _score(self, q: Floats, k: Floats) -> Floats:
        scores = 0.0 - np.log(_sum_of_differences(q, k, 2) + self.delta)
        hit = -math.log(self.delta) if self.delta else math.inf
        return _behind_hits(scores, hit, q, k)


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
        asked, power = np.zeros((len(q), self.W.shape[1])), np.frexp(np.abs(self.W).max(initial=0))[1]
        for column, row in zip(_near_one(q).T, np.ldexp(self.W, -power), strict=True):
            asked += column[:, None] * row  # BLAS would sum by place, not by pair
        return np.ldexp(_dot(asked, k), (_exponents(q) + power)[:, None])


NAMED = {
    "gaussian": Similarity(_gaussian, bounded=True),
    "laplacian": Similarity(_laplacian, bounded=True),
    "cosine": Similarity(_cosine, bounded=True),
    "dot": Similarity(_dot),
    "scaled_dot": Similarity(_scaled_dot),
}


def as_similarity(similarity: Any) -> Similarity:
    """Return the record of a similarity's name, of an InverseDistance or Bilinear, or a callable."""
    if isinstance(similarity, str) and similarity in NAMED:
        return NAMED[similarity]
    if isinstance(similarity, (InverseDistance, Bilinear)):
        return Similarity(similarity._score)
    if callable(similarity) and not isinstance(similarity, type):
        return Similarity(_checked(similarity), canonical=False)
    raise (ValueError if isinstance(similarity, str) else TypeError)(
        f"similarity is {similarity!r}, but a name ({', '.join(NAMED)}), InverseDistance(delta), "
        "Bilinear(W) or a function of (m, d) and (b, d) was expected. Check the spelling."
    )


def widths(similarity: Any) -> tuple[int, int] | None:
    """Return the widths of query and key where a similarity fixes them."""
    return similarity.W.shape if isinstance(similarity, Bilinear) else None


def _checked(function: Callable[[Any, Any], Any]) -> Callable[[Floats, Floats], Floats]:
    name = f"similarity {getattr(function, '__name__', type(function).__name__)}"

    def score(q: Floats, k: Floats) -> Floats:
        q, k = q.view(), k.view()
        q.flags.writeable = k.flags.writeable = False
        shape = (len(q), len(k))
        return check_result(
            function(q, k) if all(shape) else np.zeros(shape), name, shape, "one score per pair"
        )

    return score
