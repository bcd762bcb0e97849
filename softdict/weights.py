"""Scores to shares: softmax, the hard limit, sparsemax, entmax and top-k."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from softdict._checks import Floats, numbers, shape_text


class Entmax:
    """Weigh by alpha-entmax, which takes in softmax (alpha 1) and sparsemax (alpha 2).

    A larger alpha gives more entries a weight of exactly zero.

    **Equivalent to:** ``np.maximum((alpha - 1) * z - tau, 0) ** (1 / (alpha - 1))``, with the one
    threshold ``tau`` at which the weights of a row sum to one.

    Parameters
    ----------
    alpha : float
        From 1 up; finite.

    Notes
    -----
    Peters, Niculae, Martins, "Sparse sequence-to-sequence models", 2019; sparsemax: Martins,
    Astudillo, 2016. Solved by Newton's method, which for alpha <= 2 climbs to the threshold from
    below and for sparsemax ends after finitely many steps. Cost O(m n) per step, about ten steps.

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

    def __init__(self, alpha: float) -> None:
        if not (1 <= alpha < math.inf):
            raise ValueError(
                f"alpha is {alpha!r}, but a finite number of at least 1 was expected in Entmax. "
                "Use 1 for softmax, 1.5 for a few zeros, 2 for sparsemax."
            )
        self.alpha = float(alpha)

    def __repr__(self) -> str:
        return f"Entmax({self.alpha!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entmax) and self.alpha == other.alpha

    def __hash__(self) -> int:
        return hash(self.alpha)


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


def tempered(scores: Floats, best: Floats, temperature: float) -> Floats:
    """Return ``(scores - best) / temperature``: 0 for the best, -inf for what is out.

    Centered first and divided then, no temperature makes it overflow to NaN. At 0 the division
    leaves 0 for the best and -inf for the rest, the hard limit; at infinity it leaves 0 for all.
    """
    if temperature > 1:  # of two halves the difference cannot overflow
        z = (scores * 0.5 - best * 0.5) / (temperature * 0.5)
    else:
        z = (scores - best) / temperature
    z[scores == best] = 0
    z[scores == -np.inf] = -np.inf
    return z


def logits(scores: Floats, bias: Floats | None, temperature: float) -> tuple[Floats, Floats, Floats]:
    """Return ``score / T + bias`` less its largest in the row, and that largest as (score, bias).

    The largest stays in two parts because ``score / T`` may overflow where T is tiny.
    """
    best = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    z = tempered(scores, best, temperature)
    if bias is None:
        return z, best, np.zeros_like(best)
    z += bias
    lift = z.max(axis=-1, keepdims=True, initial=-np.inf)
    lift[lift == -np.inf] = 0  # a row with nothing
    return z - lift, best, lift


# ---- which entries stay --------------------------------------------------------------------------


def _order(scores: Floats, bias: Floats | None, temperature: float) -> tuple[Floats, Floats]:
    """Return the two numbers, first and second, by which step (3) ranks entries."""
    if bias is None:
        return scores, scores
    bias = np.where(scores == -np.inf, -np.inf, bias)
    if temperature == 0:
        return scores, bias
    if temperature == math.inf:
        return bias, scores
    return scores / temperature + bias, scores


def ranking(scores: Floats, bias: Floats | None, temperature: float, place: Any = None) -> Any:
    """Return the entries' places (m, n), best first; the earlier first among equals."""
    first, second = _order(scores, bias, temperature)
    place = np.broadcast_to(np.arange(scores.shape[-1]) if place is None else place, scores.shape)
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
    else:
        w = _threshold(z, alpha - 1)
    mass = w.sum(axis=-1, keepdims=True)
    return w / np.where(mass == 0, 1, mass)


def _threshold(z: Floats, beta: float) -> Floats:
    # With z at most 0 the weights are [1 + beta (z - t)]_+ ** (1 / beta), and the t at which they
    # sum to one lies between 0 and the t that gives the best of n entries only 1/n.
    n = max(z.shape[-1], 1)
    low = np.zeros_like(z[..., :1])
    high = np.full_like(low, -math.expm1(-beta * math.log(n)) / beta)
    t = low
    for _ in range(200):
        w = _power(beta * (z - t), beta)
        excess = w.sum(axis=-1, keepdims=True) - 1
        low, high = np.where(excess >= 0, t, low), np.where(excess >= 0, high, t)
        slope = np.where(w > 0, w, 1) ** (1 - beta) * (w > 0)
        newton = t + excess / np.maximum(slope.sum(axis=-1, keepdims=True), 1e-300)
        t_next = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if not (np.abs(t_next - t) > 2e-16 * (1 + t)).any():
            break
        t = t_next
    return w


def _power(x: Floats, beta: float) -> Floats:
    """Return ``(1 + x)_+ ** (1 / beta)``."""
    if beta >= 0.5:
        return np.maximum(1 + x, 0) ** (1 / beta)
    return np.exp(np.log1p(np.maximum(x, -1)) / beta)  # near softmax 1 + x would lose x


class Weights(NamedTuple):
    """What steps (2) to (5) make of the scores (m, n) of step (1)."""

    scores: Floats  # as they came, -inf for what steps (2) and (3) took out
    weights: Floats  # (m, n)
    null_weight: Floats  # (m,)


def weigh(
    scores: Floats,
    bias: Floats | None,
    *,
    temperature: float,
    weighting: Any,
    top_k: int | None,
    min_score: float | None,
    null_score: float | None,
    similarity: Any = None,
) -> Weights:
    """Turn scores into shares that sum to one, the silent entry's share included."""
    if min_score is not None:
        scores = np.where(scores < min_score, -np.inf, scores)
    if top_k is not None:
        scores = keep_best(scores, bias, temperature, top_k)
    kept = scores
    if null_score is not None:
        scores, bias = _with_null(scores, bias, temperature, null_score)
    rule = as_weighting(weighting)
    z, best, lift = logits(scores, bias, temperature)
    if isinstance(rule, Entmax):
        w = _entmax(z, rule.alpha)
    else:
        w = _called(rule, z + _offset(best, lift, temperature))
    if null_score is None:
        return Weights(kept, w, np.zeros(w.shape[:-1]))
    return Weights(kept, w[..., :-1], w[..., -1])


def _with_null(
    scores: Floats, bias: Floats | None, temperature: float, null_score: float
) -> tuple[Floats, Floats | None]:
    """Add the silent entry as a last column, without bias."""
    best = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    out = (best == np.inf) | ((best >= null_score) & (temperature == 0))
    scores = np.concatenate([scores, np.where(out, -np.inf, null_score)], axis=-1)
    if bias is not None:
        bias = np.broadcast_to(bias, (*scores.shape[:-1], scores.shape[-1] - 1))
        bias = np.concatenate([bias, np.zeros_like(scores[..., -1:])], axis=-1)
    return scores, bias


def _offset(best: Floats, lift: Floats, temperature: float) -> Floats:
    """Return the largest ``score / T + bias``; at T = 0 and T = inf the score has no part in it."""
    if temperature in (0, math.inf):
        return lift
    return np.where(best == -np.inf, 0, best / temperature) + lift


def log_sum_exp(scores: Floats, bias: Floats | None, temperature: float) -> Floats:
    """Return ``log(sum(exp(score / T + bias)))`` of each row, -inf for a row with nothing."""
    z, best, lift = logits(scores, bias, temperature)
    return np.log(np.exp(z).sum(axis=-1)) + _offset(best, lift, temperature)[..., 0]


def _called(rule: Any, z: Floats) -> Floats:
    """Ask a user's weighting, and check what it answers."""
    name = getattr(rule, "__name__", type(rule).__name__)
    w = np.array(numbers(rule(z.copy()), f"the result of weighting {name}"), dtype=np.float64)
    if w.shape != z.shape:
        raise ValueError(
            f"weighting {name} returned shape {shape_text(w.shape)} for logits "
            f"{shape_text(z.shape)}, but the same shape was expected. Return one weight per logit."
        )
    return np.where(z == -np.inf, 0, w)


# ---- how many entries an answer rests on -----------------------------------------------------------


def entropy(weights: Floats) -> Floats:
    """Return the entropy (nats) of each row's shares, rescaled to sum to one; 0 for no shares."""
    mass = weights.sum(axis=-1, keepdims=True)
    p = weights / np.where(mass == 0, 1, mass)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1) + 0.0


def calibrate(scores: Any, effective: float, **settings: Any) -> float:
    """Find the temperature at which the median row rests on `effective` entries.

    "Rests on" is the exponential of the entropy of the row's weights.

    Parameters
    ----------
    scores : array of shape (n,) or (m, n)
        Scores, -inf for entries that take no part.
    effective : float
        From the number of entries that tie for the best up to the number that take part.
    **settings
        The settings of `softdict.SoftDict` other than similarity and temperature.

    Returns
    -------
    float
        The temperature, in score units; 0 or infinity at the two ends.

    Raises
    ------
    ValueError
        Where no temperature reaches `effective`.

    Notes
    -----
    Brent's method in log T, about fifteen evaluations of O(m n) each.

    Examples
    --------
    >>> from softdict.weights import calibrate
    >>> round(calibrate([3, 2, 1, 0], 2), 6)
    0.69163
    >>> calibrate([1, 1, 0, 0], 1.5)
    Traceback (most recent call last):
    ...
    ValueError: effective is 1.5, but 2 entries tie for the best in the median row of calibrate, ...
    """
    rows = np.atleast_2d(np.array(numbers(scores, "scores"), dtype=np.float64))
    options = {"weighting": "softmax", "top_k": None, "min_score": None, **settings}
    options["null_score"] = None

    def reached(temperature: float) -> float:
        with np.errstate(all="ignore"):
            shares = weigh(rows, None, temperature=temperature, **options).weights
            return float(np.median(np.exp(entropy(shares)) * (shares.sum(axis=-1) > 0)))

    ties, most = reached(0.0), reached(math.inf)
    hint = "Ask for a number between the two, or change the settings or the entries."
    where = "in the median row of calibrate"
    if not ties <= effective <= most * (1 + 1e-12) or ties == most:
        raise ValueError(
            f"effective is {effective!r}, but {ties:.6g} entr{'y is' if ties == 1 else 'ies tie for'}"
            f" the best {where}, and {most:.6g} take part at most: fewer than {ties:.6g} and more "
            f"than {most:.6g} cannot be reached. {hint}"
        )
    if effective == ties:
        return 0.0
    if effective >= most:
        return math.inf
    low = high = float(np.median(np.ptp(np.where(np.isfinite(rows), rows, 0), axis=-1))) or 1.0
    while reached(high) < effective:
        if (high := high * 8) == math.inf:
            return high
    while reached(low) > effective:
        if (low := low / 8) == 0:
            return low
    from scipy.optimize import brentq  # late: the import takes longer than most lookups

    root = brentq(lambda t: reached(math.exp(t)) - effective, math.log(low), math.log(high),
                  xtol=1e-14, rtol=1e-14)  # fmt: skip
    return math.exp(root)
