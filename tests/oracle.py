"""The slow, obvious twin of every lookup: one query at a time, one entry at a time, exactly.

Scores are exact fractions (correct to 60 digits where a root or a logarithm enters), so that order
and equality are never a matter of rounding. The six steps stand in the order of the design.
`tolerance` is the only tolerance that any test may use.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from softdict import Bilinear, Entmax, InverseDistance

LARGEST = np.finfo(np.float64).max
Number = Fraction | float  # a float only where it is infinite

# ---- how well two answers must agree ------------------------------------------------------------


def tolerance(dtype: Any, largest_logit: Any = 0.0, largest_value: Any = 1.0) -> Any:
    """Return the distance within which two right answers of this dtype agree.

    `largest_logit` is the largest ``|score| / T + |bias|`` among entries with a share above eps,
    `largest_value` the largest ``|v|`` among entries that take part (1 for weights).
    """
    return 16 * float(np.finfo(dtype).eps) * (1 + largest_logit) * largest_value


def named(case: Any) -> str:
    """Return the name of a case, the same in every process: without the address of a function."""
    return re.sub(r" at 0x\w+", "", str(case))


#: The worst ratio of error to tolerance seen so far, by what was compared.
worst: dict[str, float] = {}


def ratio(got: Any, want: Any, tol: Any) -> float:
    """Return the largest error as a multiple of the tolerance; NaN is infinitely wrong."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape} in place of {want.shape}"
    tol = np.broadcast_to(np.asarray(tol, np.float64), got.shape)
    largest = 0.0
    for g, w, t in zip(got.flat, want.flat, tol.flat, strict=True):
        if g != w:
            error = abs(g - w)
            largest = max(largest, error / t if t > 0 and error < math.inf else math.inf)
    return largest


def agree(got: Any, want: Any, tol: Any, what: str, context: Any = "") -> None:
    """Assert that two answers agree, and remember how nearly they did not."""
    found = ratio(got, want, tol)
    worst[what] = max(worst.get(what, 0.0), float(found))
    assert found <= 1, (
        f"{what}: error is {found:.4g} times the tolerance\n"
        f"got  {np.asarray(got)!r}\nwant {np.asarray(want)!r}\n{context}"
    )


# ---- scores -------------------------------------------------------------------------------------


def exact(x: Any) -> Fraction:
    """Return a float, an integer or an mpmath number as a fraction."""
    if isinstance(x, mpmath.mpf):
        return Fraction(*mpmath.libmp.to_rational(x._mpf_))
    return Fraction(x)


def score(similarity: Any, query: Sequence[float], key: Sequence[float]) -> Number:
    """Return the score of one query (d,) and one key (d,)."""
    if callable(similarity):
        return in_range(float(similarity(np.array([query]), np.array([key]))[0, 0]))
    if not all(map(math.isfinite, [*query, *key])):
        return score_of_infinities(similarity, query, key)
    q, k = [Fraction(x) for x in query], [Fraction(x) for x in key]
    if isinstance(similarity, Bilinear):
        k = [sum((exact(w) * x for w, x in zip(row, k, strict=True)), Fraction()) for row in similarity.W]
        return in_range(dot(q, k))
    if similarity == "dot":
        return in_range(dot(q, k))
    if similarity == "laplacian":
        return -in_range(sum((abs(a - b) for a, b in zip(q, k, strict=True)), Fraction()))
    square = sum(((a - b) ** 2 for a, b in zip(q, k, strict=True)), Fraction())
    if similarity == "gaussian":
        return -in_range(square) / 2
    with mpmath.workdps(60):
        if similarity == "scaled_dot":
            return in_range(exact(real(dot(q, k)) / mpmath.sqrt(max(len(q), 1))))
        if similarity == "cosine":
            lengths = real(dot(q, q)) * real(dot(k, k))
            if lengths == 0:
                return Fraction(0)
            return Fraction(1) if q == k else exact(real(dot(q, k)) / mpmath.sqrt(lengths))
        assert isinstance(similarity, InverseDistance), similarity
        square += Fraction(similarity.delta)
        if square == 0:
            return math.inf
        return -math.inf if in_range(square) == math.inf else exact(-mpmath.log(real(square)))


def score_of_infinities(similarity: Any, query: Sequence[float], key: Sequence[float]) -> float:
    """Return what floating-point arithmetic says where a component is infinite."""
    if similarity == "dot":
        return sum(a * b for a, b in zip(query, key, strict=True))
    assert similarity in ("gaussian", "laplacian"), similarity
    return -sum(abs(a - b) for a, b in zip(query, key, strict=True))


def in_range(x: Any) -> Number:
    """Return an exact number, as infinity where a float64 cannot hold it."""
    return exact(x) if abs(x) <= LARGEST else math.inf if x > 0 else -math.inf


def dot(a: Iterable[Fraction], b: Iterable[Fraction]) -> Fraction:
    """Return the inner product."""
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction())


def real(x: Fraction) -> Any:
    """Return a fraction as an mpmath number of the current precision."""
    return mpmath.mpf(x.numerator) / x.denominator


# ---- weights ------------------------------------------------------------------------------------


def exp(x: Fraction) -> float:
    """Return e to the power of an exact number that is not above 0."""
    return math.exp(float(x)) if x > -1000 else 0.0


def softmax(z: Sequence[Fraction]) -> list[float]:
    """Return shares proportional to ``exp(z)``."""
    exponentials = [exp(x - max(z)) for x in z]
    return [e / math.fsum(exponentials) for e in exponentials]


def sparsemax(z: Sequence[Fraction]) -> list[float]:
    """Return ``max(z - threshold, 0)``, the threshold found by sorting."""
    threshold = Fraction()
    descending = sorted(z, reverse=True)
    for k in range(1, len(z) + 1):
        candidate = (sum(descending[:k]) - 1) / k
        if descending[k - 1] > candidate:
            threshold = candidate
    return [float(max(x - threshold, Fraction())) for x in z]


def entmax(z: Sequence[Fraction], alpha: float) -> list[float]:
    """Return ``max((alpha - 1) z - threshold, 0) ** (1 / (alpha - 1))``, by bisection."""
    if alpha == 1:
        return softmax(z)
    slope = Fraction(alpha) - 1
    # An error of e in the threshold is one of e ** (1 / slope) in a share: digits in proportion.
    effort = math.ceil(max(slope, 1))
    with mpmath.workdps(40 * effort):
        # With the best entry at 1 and a threshold of 0, its share alone is 1: the threshold is above.
        # At 1 all shares are 0: the threshold is below. Whoever is below 0 has no share.
        lifted = [slope * (x - max(z)) + 1 for x in z]
        positive = [real(x) for x in lifted if x > 0]
        power = real(1 / slope)

        def shares(threshold: Any) -> list[Any]:
            return [max(x - threshold, mpmath.mpf(0)) ** power for x in positive]

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        for _ in range(64 * effort):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(shares(middle)) > 1 else (low, middle)
        found = shares(low)
        total = sum(found)
        remaining = iter(found)
        return [float(next(remaining) / total) if x > 0 else 0.0 for x in lifted]


def weigh(weighting: Any, z: Sequence[Fraction]) -> list[float]:
    """Return the shares of exact logits."""
    if isinstance(weighting, Entmax):
        return entmax(z, weighting.alpha)
    if callable(weighting):
        # The callables of the tests do not mind a shift, which keeps their logits in range.
        row = [float(max(x - max(z), Fraction(-LARGEST))) for x in z]
        return [float(w) for w in weighting(np.array([row]))[0]]
    named: dict[Any, Callable[[Sequence[Fraction]], list[float]]] = {
        "softmax": softmax,
        "sparsemax": sparsemax,
        "entmax15": lambda z: entmax(z, 1.5),
    }
    return named[weighting](z)


# ---- one query ----------------------------------------------------------------------------------


@dataclass
class Answer:
    """What one query gets, and why."""

    scores: list[Number]  # of every entry, -inf where step (1) took it out
    kept: list[bool]  # after step (3)
    weights: list[float]
    null_weight: float
    logsumexp: float
    value: list[float]
    sizes: list[Number]  # |score| / T + |bias| of every kept entry, then of the null
    largest_value: float

    def tolerance(self, dtype: Any, largest_value: float | None = None) -> float:
        """Return the tolerance of this answer's value; with ``largest_value=1`` of its weights."""
        shares = [*self.weights, self.null_weight]
        eps = float(np.finfo(dtype).eps)
        size = max((s for s, share in zip(self.sizes, shares, strict=True) if share > eps), default=0)
        size = float(size) if size < LARGEST else math.inf
        largest_value = self.largest_value if largest_value is None else largest_value
        return 0.0 if largest_value == 0 else float(tolerance(dtype, size, largest_value))


def ask(
    query: Sequence[float],
    keys: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]],
    *,
    similarity: Any = "gaussian",
    temperature: float = 1.0,
    weighting: Any = "softmax",
    where: Sequence[bool] | None = None,
    bias: Sequence[float] | None = None,
    top_k: int | None = None,
    min_score: float | None = None,
    null_score: float | None = None,
    skip: int = -1,
) -> Answer:
    """Answer one query (d,) over keys (n, d) and values (n, e), leaving out the entry `skip`."""
    n = len(keys)
    seen = [where is None or bool(where[j]) for j in range(n)]
    prior = [0.0 if bias is None else float(bias[j]) for j in range(n)]

    # (1) where, exclude_self, a bias of -inf and scores of -inf take entries out
    scores: list[Number] = [-math.inf] * n
    for j in range(n):
        if seen[j] and prior[j] != -math.inf and j != skip:
            scores[j] = score(similarity, query, keys[j])
    if math.inf in scores:
        scores = [s if s == math.inf else -math.inf for s in scores]
    kept = [j for j in range(n) if scores[j] != -math.inf]

    # (2) min_score
    if min_score is not None:
        kept = [j for j in kept if scores[j] >= min_score]

    # (3) top_k, an exact hit first, the earlier first among equals
    hits_first = similarity in ("gaussian", "laplacian") or isinstance(similarity, InverseDistance)

    def canonical(j: int) -> tuple[Any, ...]:
        return (scores[j], hits_first and list(query) == list(keys[j]))

    def rank(j: int) -> tuple[Any, ...]:
        if bias is None:
            return canonical(j)
        if temperature == 0:
            return (*canonical(j), prior[j])
        if temperature == math.inf:
            return (prior[j], *canonical(j))
        return (float(scores[j]) / temperature + prior[j], *canonical(j))

    if top_k is not None:
        kept = sorted(sorted(kept, key=rank, reverse=True)[:top_k])

    # (4) the silent entry joins, (5) scores to shares
    logits = {j: Fraction(prior[j]) for j in kept}
    null = None if null_score is None else Fraction(0)
    if temperature == 0:
        best = max(map(canonical, kept), default=(-math.inf,))
        if null_score is not None and null_score > best[0]:
            best = (math.inf, "nobody")
        else:
            null = null if not kept else None
        logits = {j: z for j, z in logits.items() if canonical(j) == best}
    elif math.inf in scores:
        null = None if temperature < math.inf else null
    elif temperature < math.inf:
        logits = {j: scores[j] / Fraction(temperature) + z for j, z in logits.items()}
        null = None if null_score is None else Fraction(null_score) / Fraction(temperature)

    weights, null_weight, logsumexp = [0.0] * n, 0.0, -math.inf
    if logits or null is not None:
        shares = weigh(weighting, [*logits.values(), *([] if null is None else [null])])
        for j, share in zip(logits, shares, strict=False):
            weights[j] = share
        null_weight = 0.0 if null is None else shares[-1]
    if logits:
        peak = max(logits.values())
        logsumexp = float(in_range(peak)) + math.log(math.fsum(exp(z - peak) for z in logits.values()))
        if math.inf in scores and 0 < temperature < math.inf:
            logsumexp = math.inf

    # (6) blend; a value whose weight is 0 is not touched
    width = len(values[0]) if n else 0
    value = [math.fsum(weights[j] * values[j][c] for j in range(n) if weights[j]) for c in range(width)]

    ends = temperature in (0, math.inf) or math.inf in scores
    sizes: list[Number] = [
        abs(prior[j]) if ends else abs(scores[j]) / Fraction(temperature) + abs(Fraction(prior[j]))
        for j in kept
    ]
    by_entry = dict(zip(kept, sizes, strict=True))
    return Answer(
        scores=scores,
        kept=[j in by_entry for j in range(n)],
        weights=weights,
        null_weight=null_weight,
        logsumexp=logsumexp,
        value=value,
        sizes=[*(by_entry.get(j, 0) for j in range(n)), abs(null or Fraction(0))],
        largest_value=max((abs(float(x)) for j in kept for x in values[j]), default=0.0),
    )


# ---- many queries -------------------------------------------------------------------------------


class Lookup:
    """The answers to queries (..., m, d) or (d,), asked one by one."""

    def __init__(
        self, query: Any, keys: Any, values: Any = None, *, where: Any = None, bias: Any = None,
        skip: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        query, keys = np.asarray(query), np.asarray(keys)
        if keys.ndim == 1:  # plain numbers
            query, keys = query[..., None], keys[:, None]
        values = np.zeros(keys.shape[-2]) if values is None else np.asarray(values)
        self.scalar, self.single = values.ndim == 1, query.ndim == 1
        values = values[:, None] if self.scalar else values
        query = query[None] if self.single else query
        m, n = query.shape[-2], keys.shape[-2]
        lead = np.broadcast_shapes(query.shape[:-2], keys.shape[:-2], values.shape[:-2])
        query = np.broadcast_to(query, (*lead, *query.shape[-2:]))
        keys = np.broadcast_to(keys, (*lead, *keys.shape[-2:]))
        values = np.broadcast_to(values, (*lead, *values.shape[-2:]))
        where = None if where is None else np.broadcast_to(where, (*lead, m, n))
        bias = None if bias is None else np.broadcast_to(bias, (*lead, m, n))
        self.shape, self.n, self.e = (*lead, m), n, values.shape[-1]
        self.answers = [
            ask(
                query[at].astype(float).tolist(),
                keys[at[:-1]].astype(float).tolist(),
                values[at[:-1]].astype(float).tolist(),
                where=None if where is None else where[at].tolist(),
                bias=None if bias is None else bias[at].astype(float).tolist(),
                skip=-1 if skip is None else int(skip[at[-1]]),
                **settings,
            )
            for at in np.ndindex(*self.shape)
        ]

    def _array(self, field: Callable[[Answer], Any], *last: int) -> Any:
        array = np.array([field(a) for a in self.answers], dtype=float).reshape(*self.shape, *last)
        return array[..., 0, :] if self.single and last else array[..., 0] if self.single else array

    @property
    def value(self) -> Any:
        """The blends, (..., m, e)."""
        array = self._array(lambda a: a.value or [0.0] * self.e, self.e)
        return array[..., 0] if self.scalar else array

    @property
    def weights(self) -> Any:
        """The weights, (..., m, n)."""
        return self._array(lambda a: a.weights, self.n)

    @property
    def scores(self) -> Any:
        """The scores, (..., m, n), rounded to float64."""
        return self._array(lambda a: [float(s) for s in a.scores], self.n)

    @property
    def kept(self) -> Any:
        """Which entries steps (1) to (3) left, (..., m, n)."""
        return self._array(lambda a: a.kept, self.n) != 0

    @property
    def null_weight(self) -> Any:
        """The share of the silent entry, (..., m)."""
        return self._array(lambda a: a.null_weight)

    @property
    def logsumexp(self) -> Any:
        """The log of the sum of the exponentials of the logits, (..., m)."""
        return self._array(lambda a: a.logsumexp)

    def tolerance(self, dtype: Any) -> Any:
        """Return the tolerance of every number in `value`."""
        tol = self._array(lambda a: [a.tolerance(dtype)] * self.e, self.e)
        return tol[..., 0] if self.scalar else tol

    def weights_tolerance(self, dtype: Any) -> Any:
        """Return the tolerance of every number in `weights`."""
        return self._array(lambda a: [a.tolerance(dtype, largest_value=1.0)] * self.n, self.n)

    def row_tolerance(self, dtype: Any) -> Any:
        """Return the tolerance of one weight, or one logit, per query."""
        return self._array(lambda a: a.tolerance(dtype, largest_value=1.0))


# ---- temperature --------------------------------------------------------------------------------


def effective(logits: Sequence[float]) -> float:
    """Return on how many entries softmax rests: e to the power of the entropy."""
    shares = softmax([Fraction(z) for z in logits])
    return math.exp(-math.fsum(p * math.log(p) for p in shares if p > 0))


def calibrate(logits: Sequence[Sequence[float]], wanted: float) -> float:
    """Return the temperature at which the median row rests on `wanted` entries, by bisection."""

    def median(temperature: float) -> float:
        return statistics.median(
            effective([Fraction(z) / Fraction(temperature) for z in row if z != -math.inf])  # type: ignore[misc]
            for row in logits
        )

    low, high = 1e-300, 1e300  # temperatures too cold and too hot
    for _ in range(80):
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if median(middle) < wanted else (low, middle)
    return math.sqrt(low) * math.sqrt(high)


# ---- gradients ----------------------------------------------------------------------------------


def score_gradients(similarity: Any, query: Any, keys: Any) -> tuple[Any, Any, Any]:
    """Return the scores (n,) of one query (d,), and their gradients in query and keys, (n, d) each."""
    step = keys - query
    squares = (step**2).sum(axis=1)
    if similarity == "gaussian":
        return -squares / 2, step, -step
    if similarity == "laplacian":
        return -np.abs(step).sum(axis=1), np.sign(step), -np.sign(step)
    if isinstance(similarity, InverseDistance):
        squares = squares + similarity.delta
        toward = 2 * step / np.where(squares == 0, 1, squares)[:, None]
        return -np.log(squares), toward, -toward
    if similarity == "cosine":
        one, others = np.linalg.norm(query) or 1.0, np.linalg.norm(keys, axis=1, keepdims=True)
        q, k = query / one, keys / np.where(others == 0, 1, others)
        cosine = k @ q
        return (
            cosine,
            (k - cosine[:, None] * q) / one,
            (q - cosine[:, None] * k) / np.where(others, others, np.inf),
        )
    matrix = similarity.W if isinstance(similarity, Bilinear) else np.eye(len(query))
    if similarity == "scaled_dot":
        matrix = matrix / math.sqrt(len(query))
    return query @ matrix @ keys.T, keys @ matrix.T, np.tile(query @ matrix, (len(keys), 1))


def gradients(
    query: Any, keys: Any, values: Any, cotangent: Any, weights: Any, *, similarity: Any = "gaussian",
    temperature: float = 1.0, weighting: Any = "softmax", null_score: float | None = None, **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of query (m, d), keys (n, d), values (n, e), temperature and bias (m, n).

    One query at a time, by the whole Jacobian (n, n) of its `weights` (m, n), in which the other settings,
    and a bias, have had their say.
    """
    alpha = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}.get(weighting) or weighting.alpha
    dq, dk, dv, dt = np.zeros(query.shape), np.zeros(keys.shape), np.zeros(values.shape), 0.0
    db = np.zeros(weights.shape)
    for i, w in enumerate(weights):
        live = np.nonzero(w)[0]
        scores, to_query, to_keys = score_gradients(similarity, query[i], keys[live])
        dv[live] += np.outer(w[live], cotangent[i])
        share = np.append(w[live], 0 if null_score is None else max(0, 1 - w.sum()))  # the silent entry last
        moves = np.where(share > 1e-15, np.where(share > 0, share, 1) ** (2 - alpha), 0)
        jacobian = np.diag(moves) - np.outer(moves, moves) / (moves.sum() or 1)
        dz = jacobian @ np.append(values[live] @ cotangent[i], 0)
        if temperature > 0:
            db[i, live] = dz[:-1]
        if 0 < temperature < math.inf:
            ds = dz / temperature
            dq[i] = ds[:-1] @ to_query
            dk[live] += ds[:-1, None] * to_keys
            dt -= ds @ np.append(scores, null_score or 0) / temperature
    return dq, dk, dv, dt, db
