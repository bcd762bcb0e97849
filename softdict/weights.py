"""Scores to shares: softmax, the hard limit, sparsemax, entmax and top-k."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softdict._checks import Floats, check_number, check_result, check_settings, numbers


@dataclass(frozen=True)
class Entmax:
    """Weigh by alpha-entmax, which takes in softmax (alpha 1) and sparsemax (alpha 2).

    A larger alpha gives more entries a weight of exactly zero.

    **Equivalent to:** ``np.maximum((alpha - 1) * z - tau, 0) ** (1 / (alpha - 1))``, with the one
    threshold ``tau`` at which the weights of a row sum to one. `alpha` is finite, from
    1 up.

    Notes
    -----
    Peters, Niculae, Martins, "Sparse sequence-to-sequence models", 2019; sparsemax: Martins,
    Astudillo, 2016. Newton's method, safeguarded, about ten steps of O(m n); above 2 by bisection.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import Entmax, lookup_weights
    >>> def weights(alpha):
    ...     return lookup_weights(1.0, np.array([-2.0, 0.0, 0.5]), similarity="dot",
    ...                           weighting=Entmax(alpha)).round(4)
    >>> weights(1)
    array([0.0486, 0.3592, 0.5922])
    >>> weights(2)
    array([0.  , 0.25, 0.75])
    >>> Entmax(0.5)
    Traceback (most recent call last):
    ...
    ValueError: alpha is 0.5, but a finite number of at least 1 was expected in Entmax. ...
    """

    alpha: float

    def __post_init__(self) -> None:
        finite = "a finite number of at least 1"
        hint = "in Entmax. Use 1 for softmax, 1.5 for a few zeros, 2 for sparsemax"
        valid = check_number("alpha", self.alpha, lambda a: 1 <= a < math.inf, finite, hint)
        object.__setattr__(self, "alpha", valid)


#: Every named weighting is an entmax.
NAMED = {"softmax": Entmax(1.0), "sparsemax": Entmax(2.0), "entmax15": Entmax(1.5)}


def as_weighting(weighting: Any) -> Any:
    """Return the Entmax of a weighting's name; pass an Entmax or a callable through."""
    if isinstance(weighting, str) and weighting in NAMED:
        return NAMED[weighting]
    if isinstance(weighting, Entmax) or (callable(weighting) and not isinstance(weighting, type)):
        return weighting
    raise (ValueError if isinstance(weighting, str) else TypeError)(
        f"weighting is {weighting!r}, but a name ({', '.join(NAMED)}), Entmax(alpha) or a function "
        "of logits (m, n) was expected. Check the spelling."
    )


# ---- score / T, at every T from 0 to infinity --------------------------------------------------


_NOTHING = np.array(-math.inf)  # NumPy compares arrays in half the time that it takes for a float


def all_finite(x: Floats) -> bool:
    """Tell whether all numbers are finite, in the time of one call: where they are huge, perhaps not."""
    return math.isfinite(x.item() if x.size == 1 else np.vdot(x, x))


def _one(column: Floats) -> Any:
    """Return the number of one row as such, which broadcasts in half the time; a column (m, 1) as it is."""
    return column.item() if column.size == 1 else column


def tempered(scores: Floats, best: Floats, temperature: float) -> Floats:
    """Return ``(scores - best) / temperature``: 0 for the best, -inf for what is out.

    Centered first and divided then, no temperature makes it overflow to NaN. At 0 the division
    leaves 0 for the best and -inf for the rest, the hard limit; at infinity it leaves 0 for all.
    """
    if temperature > 1e290:  # of two halves the difference cannot overflow
        z = (scores / 2 - best / 2) / (temperature / 2)
    else:
        z = scores - _one(best)
        if temperature != 1:
            z /= temperature
    if not (0 < temperature < math.inf and all_finite(best)):
        z[scores == best if temperature < math.inf else scores > -math.inf] = 0
        z[scores == -math.inf] = -math.inf
    return z


def logits(scores: Floats, bias: Any, temperature: float) -> tuple[Floats, Floats, Any]:
    """Return ``score / T + bias`` less its largest in the row, and that largest as (score, bias).

    The largest stays in two parts because ``score / T`` may overflow where T is tiny.
    """
    if len(scores) == 1 and scores.size:  # of one row, in half the time; a view
        best = scores[:, (at := scores.argmax()) : at + 1]
    else:
        best = np.maximum.reduce(scores, axis=-1, keepdims=True, initial=-math.inf)
    z = tempered(scores, best, temperature)
    if bias is None:
        return z, best, 0.0
    z += bias
    lift = z.max(axis=-1, keepdims=True, initial=-math.inf)
    lift[lift == -math.inf] = 0  # a row with nothing
    return z - lift, best, lift


# ---- which entries stay --------------------------------------------------------------------------


def ranking(scores: Floats, bias: Floats | None, temperature: float, place: Any = None) -> Any:
    """Return the entries' places (m, n), best first; the earlier first among equals."""
    first = second = scores
    if bias is not None:
        bias = np.where(scores == -math.inf, -math.inf, bias)
        if temperature == 0:
            second = bias
        else:
            first = bias if temperature == math.inf else scores / temperature + bias
    place = np.broadcast_to(np.arange(scores.shape[-1]) if place is None else place, scores.shape)
    first, second = (np.where(np.isnan(x), math.inf, x) for x in (first, second))  # NaN passes, first
    return np.lexsort((place, -second, -first), axis=-1)


def keep_best(scores: Floats, bias: Floats | None, temperature: float, k: int) -> Floats:
    """Take out, as -inf, all but the k best entries of each row."""
    if k >= scores.shape[-1]:
        return scores
    keep = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(keep, ranking(scores, bias, temperature)[..., :k], True, axis=-1)
    return np.where(keep | np.isnan(scores), scores, -np.inf)


# ---- logits to weights -----------------------------------------------------------------------------


def _entmax(z: Floats, alpha: float) -> Floats:
    """Return weights for logits whose largest is 0 in each row; zeros for a row with nothing."""
    if alpha == 1:
        w = np.exp(z)
        return share(w, np.add.reduce(w, axis=-1, keepdims=True))
    w = _threshold(z, alpha - 1) if alpha <= 2 else _steep(z, alpha - 1)
    return share(w, total(w))


def total(w: Floats) -> Floats:
    """Sum rows from left to right, so that a row's sum has the same bits beside longer rows, among zeros."""
    return np.add.accumulate(w, axis=-1, dtype=np.longdouble)[..., -1:].sum(-1, np.float64, keepdims=True)


def share(w: Floats, mass: Floats) -> Floats:
    """Return ``w / mass``, and 0 where there is no mass."""
    return w / (_one(mass) if np.count_nonzero(mass) == mass.size else np.where(mass == 0, 1, mass))


def _threshold(z: Floats, beta: float) -> Floats:
    # With z at most 0 the weights are [1 + beta (z - t)]_+ ** (1 / beta), and the t at which they
    # sum to one lies between 0 and the t that gives the best of n entries only 1/n.
    low = np.zeros_like(z[..., :1])
    high = -np.expm1(-beta * np.log(np.maximum((z > -math.inf).sum(axis=-1, keepdims=True), 1))) / beta
    t, live = low, np.True_
    for _ in range(200):
        w = _power(beta * (z - t), beta)
        excess = total(w) - 1
        low, high = np.where(excess >= 0, t, low), np.where(excess >= 0, high, t)
        slope = np.where(w > 0, w, 1) ** (1 - beta) * (w > 0)
        newton = t + excess / np.maximum(total(slope), 1e-300)
        t_next = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        live = live & (np.abs(t_next - t) > 2e-16 * (1 + t))
        if not live.any():
            break
        t = np.where(live, t_next, t)  # a row that is done stays, however long others take
    return w


def _steep(z: Floats, beta: float) -> Floats:
    """Return the weights for beta > 1, which rise so steeply that the threshold has to be found relatively.

    It lies between two logits. From the lower end of the support on, what is left to find is one
    positive number, in the logarithm of which the weights are smooth.
    """
    if not z.shape[-1]:
        return z
    y = beta * z
    descending = -np.sort(-y, axis=-1)
    low = np.zeros((*y.shape[:-1], 1), dtype=np.intp)  # the lowest logit known to be in the support
    high = np.full_like(low, y.shape[-1] - 1)
    while (low < high).any():
        middle = (low + high + 1) // 2
        base = np.take_along_axis(descending, middle, axis=-1)
        inside = total(np.maximum(y - base, 0) ** (1 / beta)) < 1
        inside &= base > -math.inf
        low, high = np.where(inside, middle, low), np.where(inside, high, middle - 1)
    base = np.take_along_axis(descending, low, axis=-1)
    base[base == -math.inf] = 0  # a row with nothing
    gap = np.log2(np.where(y >= base, y - base, -1))  # NaN outside of the support
    small, large = np.full(low.shape, -1000 * beta), np.zeros(low.shape)  # at first a weight of 2**-1000
    for _ in range(66):
        middle = (small + large) / 2
        w = np.exp2(np.logaddexp2(gap, middle) / beta)
        enough = total(np.where(y >= base, w, 0)) >= 1
        small, large = np.where(enough, small, middle), np.where(enough, middle, large)
    return np.where(y >= base, w, np.where(np.isnan(z), z, 0))


def _power(x: Floats, beta: float) -> Floats:
    """Return ``(1 + x)_+ ** (1 / beta)``."""
    if beta >= 0.5:
        return np.maximum(1 + x, 0) ** (1 / beta)
    return np.exp(np.log1p(np.maximum(x, -1)) / beta)  # near softmax 1 + x would lose x


def backward(w: Floats, dw: Floats, null_weight: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return the gradient of the logits (m, n) and of the silent entry's (m,), from that of the weights.

    The silent entry is worth nothing, but it is one of those that share.
    """
    moves, silent = (np.where(x == 0, 0, _moves(x, alpha)) for x in (w, null_weight))
    terms, mass = np.where(moves == 0, 0, moves * dw), moves.sum(axis=1) + silent
    mean = terms.sum(axis=1) / np.where(mass == 0, 1, mass)
    return np.where(moves == 0, 0, moves * (dw - mean[:, None])), -silent * mean


def _moves(w: Floats, alpha: float) -> Floats:
    """Return how quickly weights move with their logits; above alpha 2 small ones would without bound."""
    return w if alpha == 1 else np.minimum(w ** (2 - alpha), 1e100)


class Weights(NamedTuple):
    """What steps (2) to (5) make of the scores (m, n) of step (1)."""

    scores: Floats  # as they came, -inf for what steps (2) and (3) took out
    weights: Floats  # (m, n)
    null_weight: Floats  # (m,)
    reached: Any  # (m,) of bool: whether anything is left, be it the silent entry


def weigh(scores: Floats, bias: Any, settings: Any) -> Weights:
    """Turn scores into shares that sum to one, the silent entry's share included."""
    temperature, null_score = settings["temperature"], settings["null_score"]
    if settings["min_score"] is not None:
        scores = np.where(scores < settings["min_score"], -math.inf, scores)
    if settings["top_k"] is not None:
        scores = keep_best(scores, bias, temperature, settings["top_k"])
    kept = scores
    if null_score is not None:
        scores, bias = _with_null(scores, bias, temperature, null_score)
    rule = as_weighting(settings["weighting"])
    z, best, lift = logits(scores, bias, temperature)
    if isinstance(rule, Entmax):
        w = _entmax(z, rule.alpha)
    else:
        offset = np.nan_to_num(_offset(best, lift, temperature), nan=math.nan)  # which a tiny T overflows
        w = _called(rule, z + np.where(best == math.inf, lift, offset))
    reached = np.not_equal(best, _NOTHING)[:, 0]
    if null_score is None:
        return Weights(kept, w, np.zeros(len(w)), reached)
    return Weights(kept, w[:, :-1], w[:, -1], reached)


def _with_null(scores: Floats, bias: Any, temperature: float, null_score: float) -> tuple[Floats, Any]:
    """Add the silent entry as a last column, without bias."""
    best = scores.max(axis=1, keepdims=True, initial=-math.inf)
    out = ((best == math.inf) & (temperature < math.inf)) | ((best >= null_score) & (temperature == 0))
    if bias is not None:
        bias = np.concatenate([np.broadcast_to(bias, scores.shape), np.zeros_like(best)], axis=1)
    return np.concatenate([scores, np.where(out, -math.inf, null_score)], axis=1), bias


def _offset(best: Floats, lift: Any, temperature: float) -> Floats:
    """Return the largest ``score / T + bias``; at T = 0 and T = inf the score has no part in it."""
    within = 0 < temperature < math.inf
    return np.where((best == -math.inf) | (not within), 0, best / (temperature if within else 1)) + lift


def log_sum_exp(scores: Floats, bias: Any, temperature: float) -> Floats:
    """Return ``log(sum(exp(score / T + bias)))`` of each row, -inf for a row with nothing."""
    z, best, lift = logits(scores, bias, temperature)
    return np.log(np.exp(z).sum(axis=1)) + _offset(best, lift, temperature)[:, 0]


def _called(rule: Any, z: Floats) -> Floats:
    """Ask a user's weighting, and check what it answers."""
    name = f"weighting {getattr(rule, '__name__', type(rule).__name__)}"
    w = check_result(rule(z.copy()) if z.size else z, name, z.shape, "one weight per logit")
    return np.where(z == -math.inf, 0, w)


# ---- how many entries an answer rests on -----------------------------------------------------------


def entropy(weights: Floats) -> Floats:
    """Return the entropy (nats) of each row's shares, rescaled to sum to one; 0 for no shares."""
    p = share(weights, weights.sum(axis=-1, keepdims=True))
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1) + 0.0


def calibrate(scores: Any, effective: float, **settings: Any) -> float:
    """Find the temperature, in score units, at which the median row rests on `effective` entries.

    Parameters
    ----------
    scores : array of shape (n,) or (m, n)
        Scores, -inf for entries that take no part.
    effective : float
        exp(entropy in nats) of a row's weights: from the number of entries that tie for the best (T = 0)
        to the number that take part (T = inf). The settings are weighting, top_k and min_score.

    Raises
    ------
    ValueError
        Where no temperature reaches `effective`.

    Notes
    -----
    Brent's method in log T, some twenty-five evaluations of O(m n) each.

    Examples
    --------
    >>> from softdict.weights import calibrate
    >>> round(calibrate([3, 2, 1, 0], 2), 6)
    0.69163
    >>> calibrate([1, 1, 0, 0], 1.5)
    Traceback (most recent call last):
    ...
    ValueError: effective is 1.5, but a number from 2 to 4 was expected in calibrate: ...
    """
    rows = np.atleast_2d(numbers(scores, "scores").astype(np.float64))
    if not rows.size or rows.ndim > 2 or np.isnan(rows).any():
        raise ValueError(
            f"scores have shape {rows.shape}{' and hold NaN' if np.isnan(rows).any() else ''}, but numbers "
            "for at least one query and one entry, (n,) or (m, n), were expected in calibrate. Leave queries "
            "out to let the stored keys ask."
        )
    infinite = rows == math.inf
    rows[infinite.any(axis=1, keepdims=True) & ~infinite] = -math.inf
    options = {"weighting": "softmax", "top_k": None, "min_score": None, "null_score": None}
    options |= check_settings({"weighting": as_weighting}, settings)

    def reached(temperature: float) -> float:
        with np.errstate(all="ignore"):
            w = weigh(rows, None, {**options, "temperature": temperature}).weights
            return float(np.median(np.exp(entropy(w)) * w.any(axis=1)))

    ties, most = reached(0.0), reached(math.inf)
    check_number(
        "effective", effective, lambda x: ties <= x <= most * (1 + 1e-12) and ties < most,
        f"a number from {ties:.6g} to {most:.6g}",
        f"in calibrate: in the median row {ties:.6g} {'entry is' if ties == 1 else 'entries tie for'} the "
        f"best, and {most:.6g} take part, so that fewer or more cannot be reached. Change the number, the "
        "settings or the entries",
    )  # fmt: skip
    coldest, hottest = 5e-324, 1e308
    if effective <= reached(coldest):
        return 0.0
    if effective >= reached(hottest):
        return math.inf
    low, high = math.log(coldest), math.log(hottest)
    for _ in range(12):  # halve the range of log T until the rest of it is short
        middle = (low + high) / 2
        low, high = (middle, high) if reached(math.exp(middle)) < effective else (low, middle)
    from scipy.optimize import brentq  # late: the import takes longer than most lookups

    near = math.exp(low)  # log T itself may be so large that its last bit counts; log(T / near) is not
    if reached(hot := near * math.exp(high - low)) < effective:  # by its last bit, on a plateau
        return hot
    rest = brentq(lambda x: reached(near * math.exp(x)) - effective, 0, high - low, xtol=1e-14)
    return near * math.exp(rest)
