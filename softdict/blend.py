"""The heart: lookup = score -> weigh -> blend, first plainly, then the same by tiles.

A partial answer is itself an entry: it has a score (its peak), a weight (its mass) and a value. So
to merge partial answers is to look up once more, softly, among a handful of entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend
from softdict._checks import Array, Call, Floats, Masks, Source, Tile, arrange, check_settings
from softdict.scores import Block, as_similarity, score_pairs, widths
from softdict.weights import Entmax, all_finite, as_weighting, log_sum_exp, logits, ranking, share, weigh

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
    out = weights.dot(values)  # for a few numbers in half the time of @
    if not all_finite(out):
        odd = ~np.isfinite(values)  # 0 * NaN would spread; rows that do not touch it stay as they were
        out = np.nan_to_num(weights @ np.where(odd, 0, values), nan=math.nan)  # rounded over the largest
        for c in np.nonzero(odd.any(axis=0))[0]:
            touched = odd[:, c] & (weights != 0)
            out[:, c] += np.where(touched, weights * values[:, c], 0).sum(axis=1)
    if hard and len(values):  # a single winner to the last bit, the sign of a zero included
        alone = weights.max(axis=1) == 1
        out[alone] = values[weights[alone].argmax(axis=1)]
    return out


def mix_each(weights: Floats, values: Array, start: Floats) -> Floats:
    """Blend weights (m, s) and each query's own values (m, s, e) to (m, e), from `start` on, in order."""
    terms = np.where(weights[:, :, None] == 0, -0.0, weights[:, :, None] * values)
    return np.add.accumulate(np.concatenate([start[:, None], terms], axis=1), axis=1)[:, -1]


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
    return Part(best.copy(), lift + np.log(mass), np.zeros(best.shape, dtype=np.intp), value[:, None])


def _tile(query: Array, keys: Array, values: Array, masks: Masks, settings: Any) -> Part:
    """Return the partial answer of one tile."""
    scores = score(query, keys, masks, settings, functools.partial(_undecided, part=True))
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
        return _melted(whole.score, whole.bias, settings, functools.partial(_kept, part=whole, values=None))
    return _pruned(whole, settings)


def _finish(part: Part, settings: Any, values: Any = None) -> tuple[Floats, Any]:
    """Let the silent entry in and end: the answers (m, e), and who reached something (m,)."""
    if _melts(settings) and settings["null_score"] is None:
        value, reached = part.value[:, 0].copy(), part.score[:, 0] != -math.inf
        value[~reached] = 0.0
        return value, reached
    _, weights, _, reached = weigh(part.score, part.bias, {**settings, "top_k": None, "min_score": None})
    out = _kept(weights, part, values)
    out[~weights.any(axis=1)] = 0.0  # where there is nothing, not even a sign
    return out, reached


def _kept(weights: Floats, part: Part, values: Any) -> Floats:
    """Blend weights (m, s) and the values of the entries that are kept to (m, e)."""
    e = (values if part.value is None else part.value).shape[-1]
    out = np.full((len(weights), e), -0.0, dtype=np.longdouble)  # which adds nothing, even to -0.0
    step = 1 + _backend.tile_columns(len(weights), weights.shape[1], 0) // max(1, e)
    for start in range(0, weights.shape[1], step):
        some = slice(start, start + step)
        own = values[part.place[:, some]].astype(np.float64) if part.value is None else part.value[:, some]
        out = mix_each(weights[:, some], own, out)
    # Shares of finite values may round over the largest number, which is then the answer.
    return np.where(np.isinf(out), out, np.nan_to_num(out.astype(float), nan=math.nan)).astype(float)


def by_parts(bias: Any, settings: Any) -> Any:
    """Return the settings by which parts of rows are weighed: where all logits are equal, softmax does."""
    even = bias is None and settings["temperature"] in (0, math.inf) and not callable(settings["weighting"])
    return {**settings, "weighting": "softmax"} if even else settings


def _canonical(source: Source, rows: Any, places: Any, settings: Any) -> Floats:
    """Score single pairs, canonically."""
    similarity, out = as_similarity(settings["similarity"]), np.empty(len(rows))
    step, one = _backend.pairs_at_once(source.query.shape[1] + source.keys.shape[1]), len(source.query) == 1
    for start in range(0, len(rows), step):
        i, j = rows[start : start + step], places[start : start + step]
        neighbors = one and np.array_equal(j, np.arange(j[0], j[0] + len(j)))  # no need to pick them
        k = source.keys[j[0] : j[-1] + 1] if neighbors else source.keys[j]
        q = source.query if one else source.query[i]
        out[start : start + step] = similarity.score(q.astype(np.float64), k.astype(np.float64))
    return out


def _by_tiles(source: Source, settings: Any) -> Part:
    """Merge the partial answers of all tiles of entries, sixteen at a time: the careful way."""
    query, keys, values, parts = *source[:3], []
    width = 2 * keys.shape[1] + values.shape[1]
    columns = _backend.tile_columns(len(query), len(keys), width, _backend.SORTED)
    for j in range(0, max(len(keys), 1), columns):
        c = slice(j, j + columns)
        part = _tile(query, keys[c], values[c], source.seen(c), settings)
        parts.append(part._replace(place=part.place + j))
        if len(parts) == 16:
            parts = [_merge(parts, settings)]
    return _merge(parts, settings)


# ---- the same quickly: by matrix products --------------------------------------------------------


def _held(z: Floats, each: Any) -> Any:
    """Tell which rows hold no score that is seen and -infinity, perhaps since it has overflowed (m,)."""
    if z.min(initial=0) > -math.inf:
        return True
    lost = z == -math.inf
    return ~(lost if each is None else lost & each).any(axis=1)


def _reach(longest: Any, norms: Any, each: Any) -> Any:
    """Return the length of the longest key that each query has seen, (m,) or one for all."""
    most = 0 if norms is None else norms.max() if each is None else np.where(each, norms, 0).max(axis=1)
    return np.maximum(longest, most)


def _stream(source: Source, settings: Any, dtype: Any, eps: float) -> tuple[Part, Any]:
    """Return the melted partial answer, and in which rows its rounding is small beside 16 `eps` (m,).

    For softmax above T = 0. A row's logits are taken less the best of the first few that it sees. That is
    no maximum, nor need it be: only where later ones are so much larger that exponentials grow huge, the
    tile is done again, less its own best.
    """
    temperature, low = settings["temperature"], settings["min_score"]
    (m, d), e = source.query.shape, source.values.shape[1]
    center, middle = source.middle()
    block = Block(as_similarity(settings["similarity"]), source, 1 / temperature, dtype, center)
    middle = middle.astype(block.dtype) if m >= _backend.FEW_ROWS else None
    columns = _backend.stream_columns(m, len(source.keys), d + e, block.dtype.itemsize)
    if source.masks.span is not None or low is not None:  # to leave out more; since all may be near it
        columns = min(columns, 256)
    exp_rows, room = _backend.exponential(m * len(source.keys)), np.empty(m * columns, dtype=block.dtype)
    shift, best, reach, mass = np.full(m, -math.inf), np.full(m, -math.inf), np.zeros(m), np.zeros(m)
    total, good = np.zeros((m, e + block.centered)), np.ones(m, dtype=bool)
    right, product = (np.empty((rows, total.shape[1]), dtype=block.dtype) for rows in (columns, m))
    for tile in source.tiles(columns):
        r, count = tile.rows, tile.rows.stop - tile.rows.start
        z, fresh = room[: count * len(tile.keys)].reshape(count, -1), shift[r] == -math.inf
        for again in (False, True):
            sizes = block.fill(tile, z)
            reach[r] = _reach(reach[r], sizes, tile.each)
            if block.direct:
                good[r] &= _held(z, tile.each)
            if low is not None:
                _cut(block, z, low, reach, source, tile, settings)
            if tile.bias is not None:
                z += tile.bias
            if tile.each is not None:
                np.copyto(z, -math.inf, where=~tile.each)
            if again or fresh.any():
                whole = again or tile.each is not None or low is not None
                first = z if whole else z[:, : max(32, 2**14 // m)]
                peak = np.where(fresh, np.fmax(shift[r], first.max(axis=1)), shift[r])
                best[r] = np.where(fresh, peak, best[r])
                peak[np.abs(peak) < 8] = 0  # as good, and there is nothing to take off
                if mass.any():
                    fade = np.exp(np.where(peak > shift[r], shift[r] - peak, 0))
                    mass[r], total[r] = mass[r] * fade, total[r] * fade[:, None]
                shift[r] = peak
            sums = exp_rows(z, np.where(shift[r] == -math.inf, 0, shift[r]).astype(z.dtype))
            if not np.fmax.reduce(sums) > _backend.HUGE:
                break
            fresh = sums > _backend.HUGE
        beside = _beside(right, tile.values, middle, sizes)
        if tile.each is not None and not math.isfinite(beside.sum()):
            odd: Any = ~np.isfinite(beside).all(axis=1)
            good[r] &= ~(tile.each & odd).any(axis=1)
            beside = np.where(odd[:, None], 0, beside)  # 0 * NaN would spread to those who do not see it
        mass[r] += sums
        total[r] += _backend.product(z, beside, product[:count], few=m < _backend.FEW_ROWS)
    level, log, nobody = shift + block.constant, np.log(mass), mass == 0
    matters = np.exp(best - shift) > mass * 2.0**-22
    size = block.size_of_mean(total[:, e] / mass) if block.centered else block.size(reach)
    value = total[:, :e]
    value /= np.where(nobody, 1, mass)[:, None]
    good &= np.isfinite(value.sum(axis=1) + mass)
    if middle is not None:
        value += np.where(nobody[:, None], 0, middle) if nobody.any() else middle
    # The largest logit that matters is at least that one, if it does, and what the sum tells.
    largest = np.fmax(np.where(matters, np.abs(best + block.constant), 0), -(level + log))
    rounding = max(1.5, math.sqrt(d) / 8) * size * float(np.finfo(block.dtype).eps)
    good &= (rounding <= 24 * eps * (1 + largest)) | nobody
    good &= (nobody == (shift == -math.inf)) & (block.size(reach) < _backend.SAFE)
    score = np.where(nobody, -math.inf, level * temperature if temperature < math.inf else 0)
    bias = log if temperature < math.inf else level + log
    return Part(score[:, None], bias[:, None], np.zeros((m, 1), dtype=np.intp), value[:, None]), good


def _beside(room: Floats, values: Array, middle: Any, sizes: Any) -> Floats:
    """Return the values (b, e) less their middle in `room`, and beside them the squares of `sizes` (b,).

    A long sum of equal terms rounds always in one direction; less their middle they are zero.
    """
    (b, e), wide = values.shape, room.shape[1] > values.shape[1]
    if middle is None and not wide:
        return values.astype(room.dtype, copy=False)
    np.subtract(values, 0 if middle is None else middle, out=room[:b, :e], casting="same_kind")
    if wide:
        np.multiply(sizes, sizes, out=room[:b, e])
    return room[:b]


def _cut(
    block: Block, z: Floats, low: float, reach: Floats, source: Source, tile: Tile, settings: Any
) -> None:
    """Take out, in place, the scores below `min_score`; those near it are scored again."""
    cut = low * block.scale - np.broadcast_to(block.constant, len(reach))
    slack = block.slack(np.abs(cut), reach)[tile.rows, None]
    cut = cut[tile.rows, None]
    below: Any = z < cut
    i, j = np.nonzero(np.abs(z - cut) <= slack)
    below[i, j] = _canonical(source, tile.rows.start + i, tile.places(j), settings) < low
    z[below] = -math.inf


def _sift(source: Source, settings: Any, dtype: Any) -> tuple[Part, Any]:
    """Return the partial answer, and in which rows it can be trusted (m,): where only few entries count.

    For the hard limit, top-k and the sparse weightings. Who scores lower than k others that a row has
    seen, by more than rounding, cannot count. The others are scored canonically.
    """
    temperature, top_k, low = (settings[name] for name in ("temperature", "top_k", "min_score"))
    m, (n, d), e = len(source.query), source.keys.shape, source.values.shape[1]
    biased = source.masks.bias is not None and temperature > 0
    scale = 1 / temperature if biased else 1.0
    k, margin = top_k or 1, 0.0
    if top_k is None and temperature > 0:  # a weight is 0 where its logit is 1 / (alpha - 1) below the best
        margin = scale * temperature / (as_weighting(settings["weighting"]).alpha - 1)
    block = Block(as_similarity(settings["similarity"]), source, scale, dtype, source.middle()[0])
    columns, groups = _backend.sift_shape(m, n, d + e, k, block.dtype.itemsize)
    eps, room = float(np.finfo(block.dtype).eps), np.empty((m, columns), dtype=block.dtype)
    best = np.full((m, groups), -math.inf, dtype=block.dtype)  # of each of so many groups of entries
    reach, prior, good = np.zeros(m), np.zeros(m), np.ones(m, dtype=bool)
    part, found, count = None, [], 0
    for turn, tile in enumerate(source.tiles(columns, whole=True)):
        bias, each, b = tile.bias, tile.each, len(tile.keys)
        z = room[:, :b]
        reach = _reach(reach, block.fill(tile, z), each)
        if block.direct and not (block.exact and scale == 1):
            good &= _held(z, each)
        if biased:
            z += bias
            seen = bias > -math.inf if each is None else each
            prior = np.maximum(prior, np.where(seen, np.abs(bias), 0).max(axis=1))
        if each is not None:
            np.copyto(z, -math.inf, where=~each)
        room[:, b:] = -math.inf
        by_group = room.reshape(m, -1, groups)
        top = by_group.max(axis=1)
        np.maximum(best, top, out=best)
        if not turn & (turn + 1):  # after 1, 2, 4, 8, ... tiles; the later, the less it changes
            kth = np.partition(best, groups - k, axis=1)[:, groups - k].astype(np.float64) - margin
        size = np.where(np.isfinite(kth), np.abs(kth), 0) + prior
        least = kth - 2 * block.slack(size, reach) - 8 * eps * (size + margin)
        if low is not None and not biased:
            edge = low - np.broadcast_to(block.constant, m)
            least = np.fmax(least, edge - 2 * block.slack(np.abs(edge), reach) - 8 * eps * np.abs(edge))
        limit = np.fmax(np.nextafter(least.astype(z.dtype), -math.inf), np.finfo(z.dtype).min)
        hits = top >= limit[:, None]
        share = np.count_nonzero(hits) / hits.size
        most = _backend.pairs_at_once(2 * _backend.SORTED)
        step = max(1, int(most / max(share * columns, 1)))  # all queries at once, but where many tie
        for first in range(0, m, step):
            rows = slice(first, first + step)
            if share > 0.25:  # so many that it is quicker to look at all, and in order
                i, j = np.nonzero(room[rows] >= limit[rows, None])
            else:
                i, g = np.nonzero(hits[rows])
                at, h = np.nonzero(by_group[rows][i, :, g] >= limit[rows][i, None])
                i, j = i[at], h * groups + g[at]
            i += first
            found.append((i, tile.places(j), room[i, j], np.zeros(len(i)) if bias is None else bias[i, j]))
            count += len(i)
            if count > most:
                part, found, count = _settled(source, settings, found, least, part), [], 0
    good &= (block.size(reach) < _backend.SAFE) & (prior < _backend.SAFE) & ~np.isnan(best).any(axis=1)
    if count:
        part = _settled(source, settings, found, least, part)
    return part or _nothing(m, 1, np.zeros((m, 1, e)) if _melts(settings) else None), good


def _settled(source: Source, settings: Any, found: Any, least: Floats, part: Part | None) -> Part:
    """Score what was found canonically, and merge it into the partial answer."""
    i, place, z, bias = (np.concatenate(x) for x in zip(*found, strict=True))
    kept = np.nonzero(z >= least[i])[0]
    kept = kept[np.argsort(i[kept], kind="stable")]
    i, place, bias = i[kept], place[kept], bias[kept]
    score, m = _canonical(source, i, place, settings), len(least)
    if settings["min_score"] is not None:
        score[score < settings["min_score"]] = -math.inf
    counts = np.bincount(i, minlength=m)
    width, ends, parts = max(counts.max(), 1), np.cumsum(counts), []
    step = max(1, _backend.pairs_at_once(_backend.SORTED) // width)
    for start in range(0, m, step):
        rows = min(step, m - start)
        pick = slice(ends[start] - counts[start], ends[start + rows - 1])
        at = (i[pick] - start, np.arange(pick.start, pick.stop) - (ends - counts)[i[pick]])
        new = _nothing(rows, width)
        new.score[at], new.bias[at], new.place[at] = score[pick], bias[pick], place[pick]
        _only_infinite(new.score)
        if _melts(settings):
            blend = functools.partial(_kept, part=new, values=source.values)
            new = _melted(new.score, new.bias, settings, blend)
        else:
            new = _pruned(new, settings)
        old = [] if part is None else [Part(*(None if x is None else x[start : start + rows] for x in part))]
        parts.append(_merge([*old, new], settings))
    return _stacked(parts)


def _nothing(m: int, s: int, value: Any = None) -> Part:
    """Return the partial answer of queries that have seen nothing."""
    return Part(np.full((m, s), -math.inf), np.zeros((m, s)), np.zeros((m, s), dtype=np.intp), value)


def _stacked(parts: list[Part]) -> Part:
    """Return the partial answers of all queries, of some each; what is missing scores -inf."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.score.shape[1] for part in parts)

    def padded(x: Any, filler: float) -> Any:
        return np.pad(x, [(0, 0), (0, width - x.shape[1])], constant_values=filler)

    fillers = enumerate((-math.inf, 0, 0))
    score, bias, place = (np.concatenate([padded(part[i], x) for part in parts]) for i, x in fillers)
    value = None if parts[0].value is None else np.concatenate([p.value for p in parts])
    return Part(score, bias, place, value)


def _ways(source: Source, settings: Any, dtype: Any) -> list[Callable[[Source, Any], tuple[Part, Any]]]:
    """Return the quick ways to a partial answer, the quickest first."""
    similarity, temperature = as_similarity(settings["similarity"]), settings["temperature"]
    eps, dtype = float(np.finfo(dtype).eps), np.result_type(dtype, np.float32)
    low, biased = settings["min_score"] is not None, source.masks.bias is not None
    melts, width = _melts(settings) and temperature > 0, source.keys.shape[1] + source.values.shape[1]
    awkward = low if melts else biased  # at T = inf; bias and min_score compare different things
    slow = not similarity.canonical or _backend.fits(len(source.query), len(source.keys), width)
    if slow or (awkward and temperature == math.inf) or (low and biased and not melts):
        return []
    if melts:
        kinds = dict.fromkeys((dtype, np.dtype(np.float64)))
        return [functools.partial(_stream, dtype=kind, eps=eps) for kind in kinds]
    most = _backend.most_kept(len(source.query), len(source.keys), width, dtype.itemsize)
    return [functools.partial(_sift, dtype=dtype)] if (settings["top_k"] or 1) <= most else []


def _by_ways(source: Source, settings: Any, ways: list[Any]) -> Part:
    """Return the partial answer by the first way that can be trusted, in each row.

    Rows that cannot are asked again in blocks that stand where they stand, whatever becomes of the others:
    BLAS rounds by place and shape.
    """
    if not ways or not len(source.query):
        return _by_tiles(source, settings)
    part, good = ways[0](source, settings)
    parts, row = [part], np.arange(m := len(source.query))
    for start in range(0, m, _backend.ROWS // 8):
        c = slice(start, min(start + _backend.ROWS // 8, m))
        if not good[c].all():
            again = np.nonzero(~good[c])[0]
            row[start + again] = sum(len(p.score) for p in parts) + again
            parts.append(_by_ways(source.rows(c), settings, ways[1:]))
    return part if len(parts) == 1 else Part(*(None if x is None else x[row] for x in _stacked(parts)))


# ---- whole lookups -------------------------------------------------------------------------------


def answer(source: Source, settings: Any, dtype: Any = np.float64) -> tuple[Floats, Any]:
    """Return the answers (m, e) in float64, and which queries reached something (m,).

    The input is checked already. `dtype` is in which the caller gets the answer.
    """
    (m, d), (n, e) = source.query.shape, source.values.shape
    if _backend.fits(m, n, d + e):
        with np.errstate(all="ignore"):
            return plain(*source[:4], settings)
    out, reached = np.empty((m, e)), np.empty(m, dtype=bool)
    _backend.run(tasks(source, settings, dtype, out, reached), m * n * (d + e))
    return out, reached


def tasks(source: Source, settings: Any, dtype: Any, out: Floats, reached: Any) -> list[Callable[[], None]]:
    """Return functions that each put a block of the answers into `out` (m, e) and `reached` (m,)."""
    (m, d), (n, e) = source.query.shape, source.values.shape
    rules, whole = by_parts(source.masks.bias, settings), callable(settings["weighting"])

    def block(r: slice) -> None:
        with np.errstate(all="ignore"):
            some = source.rows(r)
            if whole:  # a callable weighs whole rows
                out[r], reached[r] = plain(*some[:3], some.seen(), settings)
            else:
                out[r], reached[r] = _finish(
                    _by_ways(some, rules, _ways(some, rules, dtype)), rules, source.values
                )

    return [functools.partial(block, r) for r in _backend.blocks(m, n, d + e, whole)]


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


def partial(source: Source, settings: Any, offset: int, shape: Any) -> Partial:
    """Return the partial answer over these entries.

    `offset` is how many entries come before these, `shape` what to make of the answer (m, e) at the
    end: its shape and dtype.
    """
    if not isinstance(as_weighting(settings["weighting"]), Entmax):
        raise TypeError(
            f"weighting is {settings['weighting']!r}, a function of whole rows, but a named one was "
            "expected in a partial answer, which sees a part of each row. Use a name or Entmax(alpha)."
        )
    (m, d), (n, e) = source.query.shape, source.values.shape
    settings, states = by_parts(source.masks.bias, settings), {}

    def block(r: slice) -> None:
        with np.errstate(all="ignore"):
            some = source.rows(r)
            states[r.start] = _by_ways(some, settings, _ways(some, settings, shape[1]))

    _backend.run([functools.partial(block, r) for r in _backend.blocks(m, n, d + e, False)], m * n * (d + e))
    state = _stacked([states[start] for start in sorted(states)])
    value = source.values[state.place].astype(np.float64) if state.value is None else state.value
    state = state._replace(value=value, place=state.place + offset)
    return Partial(state, settings, (f"d = {d}, e = {e}, m = {m}", *shape))


# ---- the public functions ------------------------------------------------------------------------


def checked(**settings: Any) -> dict[str, Any]:
    """Return the settings given, checked, numbers as float or int."""
    return check_settings({"similarity": as_similarity, "weighting": as_weighting}, settings)


def values_of(call: Call, settings: Any, span: Any = None) -> Any:
    """Return the answers to a checked call, in the shape and dtype in which the caller asked.

    `span` (m, 2) is the first entry that each query sees, and the first after the last one.
    """
    (m, d), (n, e) = call.query.shape[-2:], call.values.shape[-2:]
    out, reached, todo = np.empty((*call.lead, m, e), call.dtype), np.empty((*call.lead, m), dtype=bool), []
    for at, q, k, masks in call.each():
        source = Source(q, k, call.values[at], masks._replace(span=span))
        if _backend.fits(m, n, d + e):
            out[at] = answer(source, settings)[0]
        else:
            todo += tasks(source, settings, call.dtype, out[at], reached[at])
    _backend.run(todo, reached.size * n * (d + e))
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
