"""The same lookup for tensors: arrays of another library, in that library's own operations.

So answers stay on the tensors' device, and gradients are that library's own automatic differentiation.
Everything is dense, O(m n) memory, in float64 where the device has that. Canonical scores decide here too
(the hard limit, `top_k`, `min_score`), without a gradient. Where torch's fused kernel means the same, it
answers, in the dtype of the tensors.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from softdict._backend import host, library, like
from softdict._checks import Call, arrange, brief, check_result, check_settings
from softdict.scores import Bilinear, InverseDistance, as_similarity, widths
from softdict.weights import Entmax, as_weighting

Tensor = Any  # an array of any library but NumPy

# ---- what libraries call differently -------------------------------------------------------------


def _kind(x: Tensor) -> str:
    """Return the name of a dtype, which libraries agree on: float32."""
    return str(x.dtype).rpartition(".")[2]


def _cast(x: Tensor, dtype: Any) -> Tensor:
    if x.dtype == dtype:
        return x
    return x.to(dtype) if hasattr(x, "to") else library(x).astype(x, dtype)


def _stop(x: Tensor) -> Tensor:
    """Return a tensor as a constant, through which no gradient goes."""
    if hasattr(x, "detach"):
        return x.detach()
    jax = sys.modules.get("jax")
    return jax.lax.stop_gradient(x) if jax is not None and isinstance(x, jax.Array) else x


def _top(x: Tensor) -> Tensor:
    """Return the largest number of each row, as a column; NaN counts as the largest."""
    xp = library(x)
    return (xp.amax if hasattr(xp, "amax") else xp.max)(x, axis=-1, keepdims=True)


def _sum(x: Tensor) -> Tensor:
    return library(x).sum(x, axis=-1, keepdims=True)


def _along(x: Tensor, places: Tensor) -> Tensor:
    xp = library(x)
    return (
        xp.take_along_dim(x, places, -1)
        if hasattr(xp, "take_along_dim")
        else xp.take_along_axis(x, places, axis=-1)
    )


def _order(x: Tensor) -> Tensor:
    """Return the places of each row, the smallest first, the earlier first among equals."""
    return library(x).argsort(x, axis=-1, stable=True)


def _told(flag: Tensor) -> bool | None:
    """Return a flag as a bool; None where nobody knows: on torch's device meta, while jax traces."""
    try:
        return bool(flag)
    except (RuntimeError, TypeError):
        return None


# ---- the door ------------------------------------------------------------------------------------


def door(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `soft_lookup` or `lookup_weights` take tensors too."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def either(*args: Any, **named: Any) -> Any:
        if library(*args, *named.values()) is None:
            return function(*args, **named)
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        settings = bound.arguments
        values = settings.pop("values", ...)
        given = [settings.pop(name) for name in ("query", "keys", "where", "bias")]
        given.insert(2, values)
        check_settings({"similarity": as_similarity, "weighting": as_weighting}, settings)
        call = arrange(*stand_ins(given), widths(settings["similarity"]))
        return answer(given, call, settings)

    return either


def as_tensor(x: Any, name: str, xp: Any) -> Tensor:
    """Return a tensor, refused where it is none of the library xp, or of another kind of numbers."""
    if library(x) is not xp:
        raise TypeError(
            f"{name} is {brief(x)} (a {type(x).__name__}), but a tensor of {xp.__name__} was expected, "
            "as other arguments are: a lookup keeps to one library. Convert it, or all the others."
        )
    kind, wanted = _kind(x), "booleans" if name == "where" else "real numbers"
    if kind == "bool" if name == "where" else "float" in kind or "int" in kind:
        return x
    hint = "after looking which of 0 and 1 takes part" if name == "where" else "to floats"
    raise TypeError(f"{name} has dtype {kind}, but {wanted} were expected. Convert it, {hint}.")


def stand_ins(given: list[Any]) -> tuple[Any, Any, Any, Any, Any]:
    """Return NumPy arrays in the shapes of query, keys, values, where and bias, for the checks of shapes.

    They take no memory. `...` stands for values that nobody asks for.
    """
    xp, found = library(*given), list[Any]()
    for name, x in zip(("query", "keys", "values", "where", "bias"), given, strict=True):
        if x is ... or (x is None and name in ("where", "bias")):
            found.append(None)
        else:
            shape = tuple(as_tensor(x, name, xp).shape)
            found.append(np.broadcast_to(np.False_ if name == "where" else np.float64(0), shape))
    bias = given[4]
    if bias is not None and _told(library(bias).all(bias < math.inf)) is False:
        raise ValueError(
            "bias holds NaN or inf, but finite numbers, or -inf to take an entry out, were expected. A bias "
            "is the logarithm of a prior weight."
        )
    query, keys, values, where, prior = found
    return query, keys, values, where, prior


def together(*given: Any) -> list[Any]:
    """Return arrays, of which the first is a tensor, as tensors of its library, in one dtype."""
    xp: Any = library(given[0])
    tensors = [x if x is None or library(x) is xp else like(x, given[0]) for x in given]
    dtype = _common(xp, tensors)
    return [x if x is None else _cast(x, dtype) for x in tensors]


def _common(xp: Any, tensors: list[Any]) -> Any:
    """Return the dtype of all of them together, integers counting as float64."""
    floats = [x.dtype if "float" in _kind(x) else xp.float64 for x in tensors if x is not None]
    return functools.reduce(xp.promote_types if hasattr(xp, "promote_types") else xp.result_type, floats)


def answer(
    given: list[Any], call: Call, settings: Any, span: Any = None, lead: Any = None, shapes: Any = None
) -> Tensor:
    """Return the answers to a call whose arrays are stand-ins, or the weights where values are `...`.

    `given` are query, keys, values, where and bias, and `shapes` those of grouped heads, of which `lead` are
    the leading axes as the caller sees them. `span` is that of `blend.values_of`.
    """
    q, k, v, where, bias = given
    lead, split = call.lead if lead is None else lead, lead is not None and lead != call.lead
    xp = library(q)
    dtype = _common(xp, [x for x in (q, k, v) if x is not ...])
    if shapes is not None:
        q, k, v = (
            x if x is ... else xp.reshape(x, np.shape(shape))
            for x, shape in zip((q, k, v), shapes, strict=True)
        )
    if k.ndim == 1:
        q, k = q[..., None], k[:, None]
    q = q[None, :] if call.single else q
    v = v[:, None] if call.scalar else v
    groups = call.lead[-2:]

    def fitted(mask: Any) -> Any:
        if call.single and mask.ndim:
            mask = mask[..., None, :]
        if split and mask.ndim > 2:
            own = groups if mask.shape[-3] > 1 else (1, 1)
            mask = xp.reshape(mask, (*mask.shape[:-3], *own, *mask.shape[-2:]))
        return mask

    where, bias = (None if x is None else fitted(x) for x in (where, bias))
    out = _fused(xp, q, k, v, where, bias, span, call, settings, dtype)
    if out is None:
        out = _plain(xp, q, k, v, where, bias, span, call, settings, dtype)
    rest = out.shape[-2:]
    out = xp.reshape(xp.broadcast_to(out, (*call.lead, *rest)), (*lead, *rest))
    out = out[..., 0] if call.scalar else out
    if call.single:
        out = out[..., 0, :] if not call.scalar else out[..., 0]
    return _cast(out, dtype)


def _seen(xp: Any, where: Any, bias: Any, span: Any, q: Tensor, n: int) -> Any:
    """Return which query sees which entry, (..., m, n); None for all."""
    seen = where
    if span is not None and not ((span[:, 0] <= 0).all() and (span[:, 1] >= n).all()):
        place, first, end = (like(x, q) for x in (np.arange(n), span[:, :1], span[:, 1:]))
        inside = (place >= first) & (place < end)
        seen = inside if seen is None else seen & inside
    if bias is not None:
        possible = bias > -math.inf
        seen = possible if seen is None else seen & possible
    return seen


# ---- plainly: score, weigh, blend -------------------------------------------------------------------


def _plain(
    xp: Any,
    q: Tensor,
    k: Tensor,
    v: Any,
    where: Any,
    bias: Any,
    span: Any,
    call: Call,
    settings: Any,
    dtype: Any,
) -> Tensor:
    """Return the answers (..., m, e), or the weights."""
    wide = _widest(xp, q, dtype)
    q, k = _cast(q, wide), _cast(k, wide)
    seen = _seen(xp, where, bias, span, q, k.shape[-2])
    w = _weights(xp, q, k, seen, None if bias is None else _cast(bias, wide), settings)
    return w if v is ... else _blend(xp, w, _cast(v, wide))


def _widest(xp: Any, x: Tensor, dtype: Any) -> Any:
    """Return float64 where there is such numbers; jax has them when asked to, Apple's GPUs never."""
    if hasattr(xp, "Tensor"):
        return xp.float32 if x.device.type == "mps" else xp.float64
    return xp.result_type(dtype, xp.asarray(0.0).dtype)


def _scores(xp: Any, similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """Score every pair, with a gradient: (..., m, n)."""
    if isinstance(similarity, Bilinear):
        return (q @ like(similarity.W, q, q.dtype)) @ k.mT
    if similarity == "cosine":
        return _unit(xp, q) @ _unit(xp, k).mT
    if similarity in ("dot", "scaled_dot"):
        z = q @ k.mT
        return z / _root(q) if similarity == "scaled_dot" else z
    if similarity == "laplacian":
        return -(xp.cdist(q, k, p=1.0) if hasattr(xp, "cdist") else _pairs_sum(xp, q, k, xp.abs))
    if similarity == "gaussian" or isinstance(similarity, InverseDistance):
        if hasattr(xp, "cdist"):  # differences without the memory for them
            squares = xp.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        else:
            squares = _pairs_sum(xp, q, k, xp.square)
        if similarity == "gaussian":
            return squares * -0.5
        squares = squares + similarity.delta
        hit = squares == 0
        return xp.where(hit, math.inf, -xp.log(xp.where(hit, 1.0, squares)))
    return _asked(xp, similarity, q, k)


def _pairs_sum(xp: Any, q: Tensor, k: Tensor, rule: Any) -> Tensor:
    return xp.sum(rule(q[..., :, None, :] - k[..., None, :, :]), axis=-1)


def _root(q: Tensor) -> float:
    return math.sqrt(max(q.shape[-1], 1))


def _asked(xp: Any, similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """Ask a user's function, one place of the leading axes after the other."""
    (m, d), (n, width) = q.shape[-2:], k.shape[-2:]
    lead = np.broadcast_shapes(tuple(q.shape[:-2]), tuple(k.shape[:-2]))
    q, k = xp.broadcast_to(q, (*lead, m, d)), xp.broadcast_to(k, (*lead, n, width))
    found = [similarity(q[at], k[at]) for at in np.ndindex(*lead) if m and n]
    for x in found:
        _fits(x, similarity, (m, n), "one score per pair")
    return xp.reshape(xp.stack(found), (*lead, m, n)) if found else xp.zeros((*lead, m, n), dtype=q.dtype)


def _fits(x: Any, function: Any, shape: tuple[int, ...], meaning: str) -> None:
    """Refuse what a user's function answered where it has another shape."""
    name = getattr(function, "__name__", type(function).__name__)
    check_result(np.broadcast_to(0.0, tuple(np.shape(x))), name, shape, meaning)


def _scale(xp: Any, x: Tensor) -> Tensor:
    """Return the power of two below each vector's largest component, as a column: to divide by exactly."""
    if not x.shape[-1]:
        return xp.ones_like(xp.sum(x, axis=-1, keepdims=True))
    size = _top(xp.abs(_stop(x)))
    size = xp.where((size > 0) & (size < math.inf), size, 1.0)
    return 2.0 ** xp.floor(xp.log2(size))


def _unit(xp: Any, x: Tensor) -> Tensor:
    """Return vectors of length one, and zero for zero."""
    x = x / _scale(xp, x)
    squares = _sum(x * x)
    zero = squares == 0
    return xp.where(zero, 0.0, x / xp.sqrt(xp.where(zero, 1.0, squares)))


def _exact(xp: Any, similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """Score every pair from that pair alone, coordinate by coordinate, without a gradient: (..., m, n).

    So equal keys have equal scores, which matrix products do not give, and an exact hit is the best.
    """
    q, k = _stop(q), _stop(k)
    zero = xp.zeros_like(q[..., :, None, 0] if q.shape[-1] else xp.sum(q, axis=-1)[..., None])

    def columns(a: Tensor, b: Tensor) -> Any:
        return ((a[..., :, None, c], b[..., None, :, c]) for c in range(a.shape[-1]))

    if callable(similarity):
        return _stop(_asked(xp, similarity, q, k))
    if isinstance(similarity, Bilinear):
        asked, rows = 0.0, like(similarity.W, q, q.dtype)
        for c in range(q.shape[-1]):
            asked = asked + q[..., c : c + 1] * rows[c, :]
        q, similarity = asked, "dot"
    if similarity in ("dot", "scaled_dot", "cosine"):
        sizes = _scale(xp, q), _scale(xp, k)  # so that nothing overflows before the sum does
        a, b = q / sizes[0], k / sizes[1]
        z = sum((x * y for x, y in columns(a, b)), zero)
        if similarity == "cosine":
            left, right = (
                sum((x[..., c] * x[..., c] for c in range(x.shape[-1])), 0.0 * x[..., 0]) for x in (a, b)
            )
            squares = left[..., :, None] * right[..., None, :]
            return xp.clip(z / xp.sqrt(xp.where(squares == 0, 1.0, squares)), -1.0, 1.0)
        z = z * sizes[0] * sizes[1].mT
        return z / _root(q) if similarity == "scaled_dot" else z
    power = 1 if similarity == "laplacian" else 2
    z, missed = zero, zero != zero
    for x, y in columns(q, k):
        step = xp.abs(x - y)
        z, missed = z + step**power, missed | (x != y)
    if isinstance(similarity, InverseDistance):
        hit = -math.log(similarity.delta) if similarity.delta else math.inf
        z = 0.0 - xp.log(z + similarity.delta)
    else:
        hit, z = 0.0, 0.0 - z if power == 1 else z * -0.5
    below = xp.where(z < hit, z, xp.where(z >= hit, math.nextafter(hit, -math.inf), z))
    return xp.where(missed, below, hit)


def _weights(xp: Any, q: Tensor, k: Tensor, seen: Any, bias: Any, settings: Any) -> Tensor:
    """Return the weights (..., m, n), by the steps that `soft_lookup` goes by."""
    similarity, temperature, null = (settings[name] for name in ("similarity", "temperature", "null_score"))
    top_k, low, within = settings.get("top_k"), settings.get("min_score"), 0 < temperature < math.inf
    decided = not within or top_k is not None or low is not None
    decided = decided or (isinstance(similarity, InverseDistance) and not similarity.delta)
    exact = _exact(xp, similarity, q, k) if decided else None  # no gradient here, so that it may choose
    scores = _tame(xp, similarity, q, k, exact) if within else exact + _idle(xp, q) + _idle(xp, k).mT
    ref: Any = _stop(scores) if exact is None else exact
    seen = ref != -math.inf if seen is None else seen & (ref != -math.inf)  # (1)
    infinite = seen & (ref == math.inf)
    seen = seen & (infinite | ~xp.any(infinite, axis=-1, keepdims=True))
    if low is not None:  # (2)
        seen = seen & ~(ref < low)
    if top_k is not None and top_k < ref.shape[-1]:  # (3)
        seen = seen & ((_rank(xp, ref, bias, seen, temperature) < top_k) | xp.isnan(ref))
    if null is not None:  # (4)
        best = _best(xp, ref, seen)
        out = ((best == math.inf) & (temperature < math.inf)) | ((best >= null) & (temperature == 0))
        seen, silent = xp.concat([seen, ~out], axis=-1), xp.zeros_like(best) + null
        ref, scores = (_wider(xp, x, silent) for x in (ref, scores))
        bias = None if bias is None else _wider(xp, bias, xp.zeros_like(best), ref.shape[-1] - 1)
    # (5): centered first and divided then, no temperature makes it overflow
    peak = _best(xp, _stop(scores), seen)
    if temperature == 0:
        seen = seen & ((ref == peak) | xp.isnan(peak))
    finite = xp.where(abs(peak) == math.inf, 0.0, peak)
    half = 0.5 if temperature > 1e290 else 1.0  # the difference of two halves cannot overflow
    z = xp.where(seen & (ref != math.inf), scores, finite)
    z = (z * half - finite * half) / (temperature * half or 1.0)
    lift = 0.0
    if bias is not None:
        z = z + xp.where(seen, bias, 0.0)
        lift = _best(xp, _stop(z), seen)
        lift = xp.where(lift == -math.inf, 0.0, lift)
    z = xp.where(seen, z - lift, -math.inf)
    rule = as_weighting(settings["weighting"])
    if not isinstance(rule, Entmax):
        most = float(np.finfo(np.float64).max)
        offset = xp.clip(finite / temperature, -most, most) if within else xp.zeros_like(finite)
        w = _by_rule(xp, rule, z + (offset + lift), seen)
    elif rule.alpha == 1:
        w = xp.exp(z)
        mass = _sum(w)
        w = w / xp.where(mass == 0, 1.0, mass)
    else:
        w = _entmax(xp, z, rule.alpha)
    return w if null is None else w[..., :-1]


def _wider(xp: Any, x: Tensor, column: Tensor, n: int | None = None) -> Tensor:
    """Add a column (..., m, 1) to x, broadcast to (..., m, n)."""
    x = xp.broadcast_to(x, (*column.shape[:-1], x.shape[-1] if n is None else n))
    return xp.concat([x, column], axis=-1)


def _best(xp: Any, x: Tensor, seen: Tensor) -> Tensor:
    """Return the best of what is seen in each row, as a column: -inf for nothing."""
    x = xp.where(seen, x, -math.inf)
    return _top(x) if x.shape[-1] else xp.sum(x, axis=-1, keepdims=True) - math.inf


def _tame(xp: Any, similarity: Any, q: Tensor, k: Tensor, ref: Any) -> Tensor:
    """Score with a gradient only where that is finite: what NaN or huge numbers are in has none.

    A mask may leave those out, but 0 * NaN is NaN on the way back.
    """
    limit = float(np.finfo(np.float32 if "32" in str(q.dtype) else np.float64).max) ** 0.49
    tame = [abs(_stop(x)) < limit for x in (q, k)]
    if all(_told(xp.all(x)) for x in tame):
        return _scores(xp, similarity, q, k)
    a, b = (xp.where(good, x, 0.0) for good, x in zip(tame, (q, k), strict=True))
    left, right = (xp.all(good, axis=-1) for good in tame)
    raw = _exact(xp, similarity, q, k) if ref is None else ref
    return xp.where(left[..., :, None] & right[..., None, :], _scores(xp, similarity, a, b), raw)


def _idle(xp: Any, x: Tensor) -> Tensor:
    """Return zeros (..., m, 1) that hand x a gradient of zero, which at the ends nothing else does."""
    return _sum(xp.where(xp.isfinite(x), x, 0.0) * 0.0)


def _rank(xp: Any, scores: Tensor, bias: Any, seen: Tensor, temperature: float) -> Tensor:
    """Return each entry's rank in its row, 0 for the best, by the order of `weights.ranking`."""
    second = xp.where(seen, scores, -math.inf)  # beside NaN no rank matters
    if bias is None:
        return _order(_order(-second))
    prior = xp.where(seen, _stop(bias), -math.inf)
    first = prior if temperature == math.inf else second if temperature == 0 else second / temperature + prior
    order = _order(-(prior if temperature == 0 else second))
    return _order(_along(order, _order(-_along(first, order))))


def _by_rule(xp: Any, rule: Any, z: Tensor, seen: Tensor) -> Tensor:
    """Ask a user's weighting, which takes rows."""
    rows = xp.reshape(z, (-1, z.shape[-1])) if z.shape[-1] else z
    w = rule(rows) if 0 not in z.shape else rows
    _fits(w, rule, tuple(rows.shape), "one weight per logit")
    return xp.where(seen, xp.reshape(w, z.shape), 0.0)


def _entmax(xp: Any, z: Tensor, alpha: float) -> Tensor:
    """Return the weights of logits whose largest is 0 in each row; their gradient is written beside them."""
    if not z.shape[-1]:
        return z
    beta, fixed = alpha - 1, _stop(z)
    w = _threshold(xp, fixed, beta) if beta <= 1 else _steep(xp, fixed, beta)
    mass = _sum(w)
    w = w / xp.where(mass == 0, 1.0, mass)
    # What follows adds 0, and its derivative is that of the weights.
    step = xp.where(fixed > -math.inf, z, 0.0) - xp.where(fixed > -math.inf, fixed, 0.0)
    moves = xp.where(w > 0, xp.where(w > 0, w, 1.0) ** (2 - alpha), 0.0)
    moves = xp.where(moves > 1e100, 1e100, moves)
    mass = _sum(moves)
    return w + moves * (step - _sum(moves * step) / xp.where(mass == 0, 1.0, mass))


def _threshold(xp: Any, z: Tensor, beta: float) -> Tensor:
    """Bisect for the threshold t at which ``[1 + beta (z - t)]_+ ** (1 / beta)`` sum to one."""
    count = _sum(_cast(z > -math.inf, z.dtype))
    low, high = xp.zeros_like(count), (1 - xp.where(count < 1, 1.0, count) ** -beta) / beta
    for _ in range(64):
        t = (low + high) / 2
        enough = _sum(_power(xp, beta * (z - t), beta)) >= 1
        low, high = xp.where(enough, t, low), xp.where(enough, high, t)
    return _power(xp, beta * (z - low), beta)


def _power(xp: Any, x: Tensor, beta: float) -> Tensor:
    """Return ``(1 + x)_+ ** (1 / beta)``."""
    x = xp.where(x < -1, -1.0, x)
    return (1 + x) ** (1 / beta) if beta >= 0.5 else xp.exp(xp.log1p(x) / beta)


def _steep(xp: Any, z: Tensor, beta: float) -> Tensor:
    """Return the weights for beta > 1, by the two searches of `weights._steep`."""
    y = beta * z
    sorted_y = -xp.sort(-y, axis=-1) if not hasattr(xp, "take_along_dim") else -xp.sort(-y, dim=-1).values
    low = xp.zeros_like(_order(y[..., :1]))  # the lowest logit known to be in the support
    high = low + (y.shape[-1] - 1)
    for _ in range(y.shape[-1].bit_length()):
        middle = (low + high + 1) // 2
        base = _along(sorted_y, middle)
        above = y - base
        inside = (_sum(xp.where(above > 0, above, 0.0) ** (1 / beta)) < 1) & (base > -math.inf)
        low, high = (
            xp.where(inside, middle, low),
            xp.where(inside, high, xp.where(low < high, middle - 1, high)),
        )
    base = _along(sorted_y, low)
    base = xp.where(base == -math.inf, 0.0, base)
    support = y >= base
    gap = xp.log2(xp.where(support, y - base, 1.0))
    small, large = xp.zeros_like(base) - 1000 * beta, xp.zeros_like(base)
    for _ in range(66):
        middle = (small + large) / 2
        w = xp.where(support, 2.0 ** (_add_logs(xp, gap, middle) / beta), 0.0)
        enough = _sum(w) >= 1
        small, large = xp.where(enough, small, middle), xp.where(enough, middle, large)
    return xp.where(support, w, xp.where(xp.isnan(z), z, 0.0))


def _add_logs(xp: Any, a: Tensor, b: Tensor) -> Tensor:
    """Return ``log2(2**a + 2**b)``, for a finite b."""
    most = xp.maximum(a, b)
    return most + xp.log1p(2.0 ** (xp.minimum(a, b) - most)) / math.log(2)


def _blend(xp: Any, w: Tensor, v: Tensor) -> Tensor:
    """Blend weights (..., m, n) and values (..., n, e); a value of weight 0 is not touched."""
    good = xp.isfinite(_stop(v))
    if _told(xp.all(good)):
        return w @ v
    out, odd = w @ xp.where(good, v, 0.0), xp.where(good, 0.0, _stop(v))
    touched = (_stop(w) != 0)[..., :, :, None]
    return out + xp.sum(xp.where(touched, odd[..., None, :, :], 0.0), axis=-2)


# ---- by torch's fused kernel ---------------------------------------------------------------------


def _fused(
    torch: Any,
    q: Tensor,
    k: Tensor,
    v: Any,
    where: Any,
    bias: Any,
    span: Any,
    call: Call,
    settings: Any,
    dtype: Any,
) -> Any:
    """Return what scaled_dot_product_attention answers, where it means the same; else None."""
    rule, similarity, temperature = (settings[s] for s in ("weighting", "similarity", "temperature"))
    extra = any(settings.get(name) is not None for name in ("top_k", "min_score", "null_score"))
    m, n = call.query.shape[-2], call.keys.shape[-2]
    if (
        not hasattr(torch, "Tensor") or v is ... or extra or similarity not in ("dot", "scaled_dot")
        or getattr(as_weighting(rule), "alpha", None) != 1 or not 0 < temperature < math.inf
        or 0 in (*call.values.shape, *call.query.shape)
    ):  # fmt: skip
        return None
    scale = 1 / (temperature * (_root(q) if similarity == "scaled_dot" else 1))
    q, k, v = (x.to(dtype) for x in (q, k, v))
    # It would answer NaN where a score overflows, and where NaN is masked. The longest rows are a bound, and
    # so is the length of all together, which takes a fraction of the time; float16 has no room for that.
    limit, rows = math.sqrt(torch.finfo(dtype).max), -1 if dtype == torch.float16 else None
    with torch.no_grad():
        sizes = (torch.linalg.vector_norm(x, dim=rows).amax() for x in (q, k, v))
        a, b, c = (x.to(torch.float32 if dtype == torch.float16 else dtype) for x in sizes)
        if not _told((a * b * scale < limit) & (a < limit) & (b < limit) & (c < limit)) or not scale < limit:
            return None
    ordered = (
        span is not None and not span[:, 0].any() and (span[:, 1] == np.arange(1, m + 1).clip(max=n)).all()
    )
    is_causal = bool(ordered and where is None and bias is None)
    seen = None if is_causal else _seen(torch, where, bias, span, q, n)
    empty = None
    if seen is not None:
        empty = ~seen.any(-1, keepdim=True)  # NaN in the answer before torch 2.5, and in what goes back
        seen = seen | empty
        if bias is not None:
            if not _told((torch.where(bias > -math.inf, bias, 0.0).abs() < limit).all()):
                return None
            seen = torch.where(seen & (bias > -math.inf), bias, torch.where(empty, 0.0, -math.inf))
            seen = seen.to(dtype)
    lead = call.lead
    heads = (math.prod(lead[:-1]), *(lead[-1:] or (1,)))

    def four(x: Tensor) -> Tensor:
        return x.expand(*lead, *x.shape[-2:]).reshape(*heads, *x.shape[-2:])

    if seen is not None:
        seen = seen.expand(*seen.shape[:-2], m, n) if seen.ndim > 1 else seen.expand(m, n)
        seen = seen if seen.ndim == 2 else four(seen)
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(four(q), four(k), four(v), attn_mask=seen, is_causal=is_causal, scale=scale)
    out = out.reshape(*lead, *out.shape[-2:])
    return out if empty is None else torch.where(empty, 0.0, out)


# ---- an answer of NumPy's, with its gradient -------------------------------------------------------


def attached(value: Any, query: Tensor, back: Callable[[Any], Any]) -> Tensor:
    """Return a NumPy array as torch's tensor; `back` turns the gradient of it to that of the query."""

    def forward(ctx: Any, query: Tensor) -> Tensor:
        return like(value, query)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return like(back(host(g)), query, query.dtype)

    torch = library(query)
    once = torch.autograd.function.once_differentiable(backward)
    methods = {"forward": staticmethod(forward), "backward": staticmethod(once)}
    node: Any = type("Blend", (torch.autograd.Function,), methods)
    return node.apply(query)
