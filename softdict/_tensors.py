"""The same lookup for tensors: arrays of another library, in that library's own operations.

So answers stay on the tensors' device, and gradients are that library's own automatic differentiation.
What has a gradient is computed here, densely, O(m n) memory, in float64 where the device has that. What only
*chooses* has none (the hard limit, `top_k`, `min_score`, who is in the support of a sparse weighting), so
NumPy's `scores` and `weights` choose, and equal keys tie here too. Where torch's fused kernel means the same,
it answers, in the dtype of the tensors.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softdict._backend import host, library, like
from softdict._checks import Call, arrange, brief, check_result
from softdict.scores import Bilinear, InverseDistance, as_similarity, score_pairs, widths
from softdict.weights import Entmax, as_weighting, weigh

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


def _sum(x: Tensor) -> Tensor:
    return library(x).sum(x, axis=-1, keepdims=True)


def _told(flag: Tensor) -> bool | None:
    """Return a flag as a bool; None where nobody knows: on torch's device meta, while jax traces."""
    try:
        return bool(flag)
    except (RuntimeError, TypeError):
        return None


# ---- the door ------------------------------------------------------------------------------------


def look_up(given: tuple[Any, ...], settings: dict[str, Any]) -> Tensor:
    """Answer `soft_lookup`, or `lookup_weights` where values are `...`; `given` as in `answer`."""
    return answer(given, arrange(*stand_ins(given), widths(settings["similarity"])), settings)


def as_tensor(x: Any, name: str, xp: Any) -> Tensor:
    """Return a tensor, refused where it is none of the library xp, or of another kind of numbers."""
    if library(x) is not xp:
        raise TypeError(
            f"{name} is {brief(x)} (a {type(x).__name__}), but a tensor of {xp.__name__} was expected, "
            "as other arguments are: a lookup keeps to one library. Convert it, or all the others."
        )
    kind = _kind(x)
    if kind == "bool" if name == "where" else "float" in kind or "int" in kind:
        return x
    wanted = "booleans were expected: True takes part" if name == "where" else "real numbers were expected"
    raise TypeError(f"{name} has dtype {kind}, but {wanted}. Convert it first.")


def stand_ins(given: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
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
    xp = library(given[0])
    tensors = [like(x, given[0]) if x is not None and library(x) is None else x for x in given]
    tensors = [x if x is None else as_tensor(x, "a matrix or bias of the layer", xp) for x in tensors]
    dtype = _common(xp, tensors)
    return [x if x is None else _cast(x, dtype) for x in tensors]


def _common(xp: Any, tensors: list[Any]) -> Any:
    """Return the dtype of all of them together, integers counting as float64."""
    floats = [x.dtype if "float" in _kind(x) else xp.float64 for x in tensors if x is not None]
    return functools.reduce(xp.promote_types if hasattr(xp, "promote_types") else xp.result_type, floats)


def answer(
    given: Sequence[Any], call: Call, settings: Any, span: Any = None, lead: Any = None, shapes: Any = None
) -> Tensor:
    """Return the answers to a call whose arrays are stand-ins, or the weights where values are `...`.

    `given` are query, keys, values, where and bias, and `shapes` those of grouped heads, of which `lead` are
    the leading axes as the caller sees them. `span` is that of `blend.values_of`.
    """
    q, k, v, where, bias = given
    xp, lead = library(q), call.lead if lead is None else lead
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

    def fitted(mask: Any) -> Any:
        mask = mask[..., None, :] if call.single and mask.ndim else mask
        if lead == call.lead or mask.ndim < 3:
            return mask
        return xp.reshape(xp.broadcast_to(mask, (*lead, *mask.shape[-2:])), (*call.lead, *mask.shape[-2:]))

    where, bias = (None if x is None else fitted(x) for x in (where, bias))
    out = _fused(xp, q, k, v, where, bias, span, call, settings, dtype)
    if out is None:
        out = _plain(xp, q, k, v, where, bias, span, settings, dtype)
    rest = out.shape[-2:]
    out = xp.reshape(xp.broadcast_to(out, (*call.lead, *rest)), (*lead, *rest))
    out = out[..., 0, :] if call.single else out
    return _cast(out[..., 0] if call.scalar else out, dtype)


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


# ---- plainly: score, weigh, blend -----------------------------------------------------------------


def _plain(
    xp: Any, q: Tensor, k: Tensor, v: Any, where: Any, bias: Any, span: Any, settings: Any, dtype: Any
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
    """Score every pair: (..., m, n)."""
    if isinstance(similarity, Bilinear):
        return (q @ like(similarity.W, q, q.dtype)) @ k.mT
    if similarity == "cosine":
        return _unit(xp, q) @ _unit(xp, k).mT
    if similarity in ("dot", "scaled_dot"):
        return q @ k.mT / (_root(q) if similarity == "scaled_dot" else 1)
    if similarity == "laplacian":
        return -_distances(xp, q, k, 1)
    if similarity == "gaussian":
        return _distances(xp, q, k, 2) * -0.5
    if isinstance(similarity, InverseDistance):
        squares = _distances(xp, q, k, 2) + similarity.delta
        hit = squares == 0
        return xp.where(hit, math.inf, -xp.log(xp.where(hit, 1.0, squares)))
    (m, d), (n, width) = q.shape[-2:], k.shape[-2:]  # a user's function takes one place after the other
    lead = np.broadcast_shapes(tuple(q.shape[:-2]), tuple(k.shape[:-2]))
    q, k = xp.broadcast_to(q, (*lead, m, d)), xp.broadcast_to(k, (*lead, n, width))
    places = [(*at, ...) for at in np.ndindex(*lead)]
    found = [_fitting(similarity, (m, n), "one score per pair", q[at], k[at]) for at in places]
    return xp.reshape(xp.stack(found), (*lead, m, n)) if found else xp.zeros((*lead, m, n), dtype=q.dtype)


def _distances(xp: Any, q: Tensor, k: Tensor, power: int) -> Tensor:
    """Return the sums of ``|q - k| ** power``: from differences, as nothing else survives cancellation."""
    if hasattr(xp, "cdist"):  # without the memory for them
        return xp.cdist(q, k, p=float(power), compute_mode="donot_use_mm_for_euclid_dist") ** power
    return xp.sum(xp.abs(q[..., :, None, :] - k[..., None, :, :]) ** power, axis=-1)


def _root(q: Tensor) -> float:
    return math.sqrt(max(q.shape[-1], 1))


def _unit(xp: Any, x: Tensor) -> Tensor:
    """Return vectors of length one, and zero for zero, which has no slope."""
    size = _sum(xp.abs(_stop(x)))  # first of about that length, lest squares overflow or vanish
    x = x / xp.where(size == 0, 1.0, size)
    squares = _sum(x * x)
    return xp.where(squares == 0, 0.0, x / xp.sqrt(xp.where(squares == 0, 1.0, squares)))


def _fitting(function: Any, shape: tuple[int, ...], meaning: str, *rows: Tensor) -> Tensor:
    """Ask a user's function, and refuse what it answers where that is no such tensor, or of another shape."""
    if 0 in shape:
        return library(*rows).zeros(shape, dtype=rows[0].dtype)
    found, name = function(*rows), getattr(function, "__name__", type(function).__name__)
    found = as_tensor(found, f"the result of {name}", library(*rows))
    check_result(np.broadcast_to(0.0, tuple(found.shape)), name, shape, meaning)
    return _cast(found, rows[0].dtype)


def _tame(xp: Any, similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """Score with a gradient only where that is finite: what NaN or huge numbers are in has none.

    A mask may leave those out, but 0 * NaN is NaN on the way back.
    """
    scores = _scores(xp, similarity, q, k)
    if 0 not in scores.shape and _told(xp.all(xp.isfinite(scores))):
        return scores
    product = isinstance(similarity, Bilinear) or similarity in ("dot", "scaled_dot")
    if product and q.shape[-1] and k.shape[-1]:  # in which inf may have met -inf
        a, b = (_best(xp, xp.abs(x), xp.isfinite(x)) for x in (q, k))
        a, b = (xp.where(x == 0, 1.0, x) for x in (a, b))
        scores = _scores(xp, similarity, _stop(q) / a, _stop(k) / b) * a * b.mT
    limit = float(xp.finfo(q.dtype).max) ** 0.49
    tame = [xp.abs(_stop(x)) < limit for x in (q, k)]
    a, b = (xp.where(good, x, 0.0) for good, x in zip(tame, (q, k), strict=True))
    left, right = (xp.all(good, axis=-1) for good in tame)
    good = left[..., :, None] & right[..., None, :]
    return xp.where(good, _scores(xp, similarity, a, b), _stop(scores))


def _weights(xp: Any, q: Tensor, k: Tensor, seen: Any, bias: Any, settings: Any) -> Tensor:
    """Return the weights (..., m, n), by the steps that `soft_lookup` goes by."""
    similarity, temperature, null = (settings[name] for name in ("similarity", "temperature", "null_score"))
    rule, within = as_weighting(settings["weighting"]), 0 < temperature < math.inf
    alpha = rule.alpha if isinstance(rule, Entmax) else None
    scores = _tame(xp, similarity, q, k)
    *lead, n = scores.shape
    if not n:
        return scores if bias is None else scores + bias
    seen = xp.ones_like(scores) > 0 if seen is None else xp.broadcast_to(seen, scores.shape)
    if (
        not within or alpha not in (None, 1) or getattr(similarity, "delta", 1) == 0
        or settings["top_k"] is not None or settings["min_score"] is not None
    ):  # fmt: skip
        given = [scores, q, k, seen, *([] if bias is None else [bias])]
        chosen = _by_numpy(functools.partial(_choice, settings), (*lead, n + 1), *given)
    else:  # (1), and the silent entry as a last column
        seen = seen & (scores != -math.inf)
        infinite = seen & (scores == math.inf)
        none = ~xp.any(infinite, axis=-1, keepdims=True)
        chosen = _cast(xp.concat([seen & (infinite | none), none], axis=-1), scores.dtype)
    if null is None:
        chosen = chosen[..., :-1]
    else:
        silent = xp.zeros_like(scores[..., :1])
        scores = xp.concat([scores, silent + null], axis=-1)
        bias = None if bias is None else xp.concat([xp.broadcast_to(bias, (*lead, n)), silent], axis=-1)
    # (5): centered first and divided then, no temperature makes it overflow
    keep, most, unit = chosen != 0, float(xp.finfo(scores.dtype).max), max(temperature, 1.0)
    scores = xp.clip(scores, -most, most) / unit if within else xp.clip(scores, -most, most) * 0.0
    rest = temperature / unit if within else 1.0
    peak = _best(xp, scores, keep)
    rest = max(rest, 4 / most) if scores.dtype == xp.float32 else rest  # less would be 0 there
    z, lift, least = (scores - peak) / rest, 0.0, most**-0.5
    if rest < least:  # by which gradients would be divided, and NaN where two infinite ones meet
        z = _stop(z) + (scores - _stop(scores)) / least
    if bias is not None:
        z = z + xp.where(keep, bias, 0.0)
        lift = _best(xp, z, keep)
    z = xp.where(keep, z - lift, -math.inf)
    if alpha is None:
        z = z + (xp.clip(peak / rest, -most, most) + lift)
        rows = xp.reshape(z, (-1, z.shape[-1]))
        w = _fitting(rule, tuple(rows.shape), "one weight per logit", rows)
        w = xp.where(keep, xp.reshape(w, z.shape), 0.0)
    elif alpha == 1:
        w = xp.exp(z)
        w = _share(xp, w, _sum(w))
    else:
        w = _sparse(xp, z, chosen, alpha - 1)
    return w[..., :n]


def _best(xp: Any, x: Tensor, keep: Tensor) -> Tensor:
    """Return the largest of what is kept in each row, as a column: 0 for nothing."""
    best = (xp.amax if hasattr(xp, "amax") else xp.max)(
        xp.where(keep, _stop(x), -math.inf), axis=-1, keepdims=True
    )
    return xp.where(best == -math.inf, 0.0, best)


def _share(xp: Any, w: Tensor, mass: Tensor) -> Tensor:
    return w / xp.where(mass == 0, 1.0, mass)


def _sparse(xp: Any, z: Tensor, chosen: Tensor, beta: float) -> Tensor:
    """Give the weights that NumPy found for the logits z their derivatives.

    On the support they are ``[beta (z - t)] ** (1 / beta)``, for the threshold t at which they sum to one.
    Newton's method stays at that t, but by two of its steps the first three derivatives follow z.
    """
    keep = chosen > 0
    start = xp.clip(xp.where(keep, chosen, 1.0) ** beta, 1e-100, 1.0)
    step, sink, whole = xp.where(keep, z - _stop(z), 0.0), 0.0, None
    for _ in range(2):
        x = start + beta * (step - sink)
        moves = xp.where(keep, x ** (1 / beta - 1), 0.0)
        mass = _sum(moves * x)
        whole = _stop(mass) if whole is None else whole
        sink = sink + _share(xp, mass - whole, _sum(moves))
    w = xp.where(keep, (start + beta * (step - sink)) ** (1 / beta), 0.0)
    return chosen + (w - _stop(w))


# ---- what chooses ----------------------------------------------------------------------------------


def _by_numpy(function: Callable[..., Any], shape: tuple[int, ...], *tensors: Tensor) -> Tensor:
    """Return what a function of NumPy's arrays answers, in the dtype of the first, without a gradient."""
    first, *_ = tensors = tuple(map(_stop, tensors))
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(first, jax.Array):  # which may only be tracing
        answer = jax.ShapeDtypeStruct(shape, first.dtype)
        return jax.pure_callback(function, answer, *tensors, vmap_method="sequential")
    if getattr(first.device, "type", None) == "meta":  # no numbers, but shapes
        return first.new_empty(shape)

    def ask(*given: Tensor) -> Tensor:
        return like(function(*map(host, given)), first, first.dtype)

    torch = library(first)
    if not hasattr(torch, "Tensor"):
        return ask(*tensors)

    # A node of torch's own: inside of torch.func's transforms tensors show their numbers to no one else.
    class Choice(torch.autograd.Function):  # type: ignore[misc,name-defined]
        forward = staticmethod(ask)
        setup_context = staticmethod(lambda *_: None)

        @staticmethod
        def vmap(info: Any, places: Any, *given: Tensor) -> Any:
            pairs = list(zip(given, places, strict=True))
            rows = ([x if at is None else x.select(at, i) for x, at in pairs] for i in range(info.batch_size))
            return torch.stack([apart(*row) for row in rows]), 0

    apart = torch.compiler.disable(Choice.apply)  # it would compile its own idea of NumPy
    return apart(*tensors)


def _choice(settings: Any, scores: Any, q: Any, k: Any, seen: Any, bias: Any = None) -> Any:
    """Return sparse weights, or 1 for what steps (1) to (4) leave in: (..., m, n + 1).

    The silent entry comes last. A user's similarity takes tensors, so its scores are taken as they are.
    """
    similarity, rule, lead = settings["similarity"], as_weighting(settings["weighting"]), scores.shape[:-2]
    rule = rule if getattr(rule, "alpha", 1) != 1 else lambda z: 1.0 * (z != -math.inf)
    settings = {**settings, "weighting": rule}
    q, k = (np.broadcast_to(np.asarray(x, np.float64), (*lead, *x.shape[-2:])) for x in (q, k))
    bias = None if bias is None else np.broadcast_to(np.asarray(bias, np.float64), scores.shape)
    out = np.zeros((*lead, scores.shape[-2], scores.shape[-1] + 1), scores.dtype)
    with np.errstate(all="ignore"):
        for at in np.ndindex(*lead):
            own = scores[at] if callable(similarity) else score_pairs(as_similarity(similarity), q[at], k[at])
            own = np.where(seen[at], own, -math.inf)
            infinite = own == math.inf
            own[infinite.any(axis=1, keepdims=True) & ~infinite] = -math.inf
            found = weigh(own, None if bias is None else np.where(seen[at], bias[at], 0), settings)
            out[at] = np.column_stack([found.weights, found.null_weight])
    return out


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
    torch: Any, q: Tensor, k: Tensor, v: Any, where: Any, bias: Any, span: Any, call: Call, settings: Any,
    dtype: Any,
) -> Any:  # fmt: skip
    """Return what scaled_dot_product_attention answers, where it means the same; else None."""
    rule, similarity, temperature = (settings[s] for s in ("weighting", "similarity", "temperature"))
    extra = any(settings[name] is not None for name in ("top_k", "min_score", "null_score"))
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
    is_causal = where is None and bias is None and span is not None and not span[:, 0].any()
    is_causal = bool(is_causal and (span[:, 1] == np.arange(1, m + 1).clip(max=n)).all())
    seen = None if is_causal else _seen(torch, where, bias, span, q, n)
    # These are NaN in the answer before torch 2.5, and in what goes back.
    empty = None if seen is None else ~seen.any(-1, keepdim=True)
    if seen is not None:
        if bias is None:
            seen = seen | empty
        elif _told((torch.where(bias > -math.inf, bias, 0.0).abs() < limit).all()):
            seen = torch.where(seen, bias, torch.where(empty, 0.0, -math.inf)).to(dtype)
        else:
            return None
        seen = seen.expand(*seen.shape[:-2], m, n)

    def four(x: Tensor) -> Tensor:  # axes: with three the kernel is slower
        lead = call.lead
        return x.expand(*lead, *x.shape[-2:]).reshape(-1, *(lead[-1:] or (1,)), *x.shape[-2:])

    seen = seen if seen is None or seen.ndim == 2 else four(seen)
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(four(q), four(k), four(v), attn_mask=seen, is_causal=is_causal, scale=scale)
    out = out.reshape(*call.lead, *out.shape[-2:])
    return out if empty is None else torch.where(empty, 0.0, out)


# ---- an answer of NumPy's, with its gradient -------------------------------------------------------


def attached(value: Any, query: Tensor, back: Callable[[Any], Any]) -> Tensor:
    """Return a NumPy array as torch's tensor; `back` turns the gradient of it to that of the query."""
    torch = library(query)
    once = torch.autograd.function.once_differentiable

    class Blend(torch.autograd.Function):  # type: ignore[misc,name-defined]
        forward = staticmethod(lambda ctx, query: like(value, query))
        backward = staticmethod(once(lambda ctx, g: like(back(host(g)), query, query.dtype)))

    return Blend.apply(query)
