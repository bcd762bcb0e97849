"""The heart: lookup = score -> weigh -> blend, first plainly, then the same by tiles.

A partial answer is itself an entry: it has a score (its peak), a weight (its mass) and a value. So
to merge partial answers is to look up once more, softly, among a handful of entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend, _tensors
from softdict._checks import Array, Call, Floats, Masks, Source, Tile, arrange, check_settings, check_size
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
    similarity, (m, d), n = as_similarity(settings["similarity"]), query.shape, max(len(keys), 1)
    q = np.ascontiguousarray(query, dtype=np.float64)
    step = _backend.tile_columns(m, n, d) if similarity.canonical else n  # room for few keys at a time
    parts = (np.ascontiguousarray(keys[j : j + step], dtype=np.float64) for j in range(0, n, step))
    scores = np.concatenate([score_pairs(similarity, q, k) for k in parts], axis=1)
    if scores.size and any(mask is not None for mask in masks):
        some, each = masks.seen(*scores.shape)
        seen = np.zeros(scores.shape, dtype=bool)
        seen[:, slice(None) if some is None else some] = True if each is None else each
        scores[~seen] = -math.inf
    if not similarity.canonical:
        close = (rescore or _undecided)(scores, masks.bias, settings)
        for i, j in zip(*np.nonzero(close), strict=True):
            scores[i, j] = similarity.score(q[i : i + 1], keys[j : j + 1].astype(np.float64))[0, 0]
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


# ---- the same by tiles -----------------------------------------------------------------------


class Part(NamedTuple):
    """A partial answer: the s entries a query that may still count.

    For softmax, the plain mean and the hard limit s is 1: one entry stands for all, with the best
    score, the blend as its value, and the logarithm of the mass of all in its bias. For top-k and the
    sparse weightings they are the entries themselves.
    """

    score: Floats  # (m, s), -inf where there is none
    bias: Any  # (m, s)
    place: Any  # (m, s)
    value: Floats  # (m, s, e); e = 0 where the values are at hand


def _nothing(m: int, s: int, e: int = 0) -> Part:
    """Return the partial answer of queries that have seen nothing."""
    size = (m, s)
    return Part(np.full(size, -math.inf), np.zeros(size), np.zeros(size, dtype=np.intp), np.zeros((m, s, e)))


def _joined(parts: Iterable[Part], axis: int) -> Part:
    """Join partial answers of some queries each (axis 0), or over some entries each (axis 1)."""
    return Part(*(np.concatenate(x, axis=axis) for x in zip(*parts, strict=True)))


def _stacked(parts: list[Part]) -> Part:
    """Return the partial answers of all queries, of some each; what is missing scores -inf."""
    width = max(part.score.shape[1] for part in parts)
    missing = (_nothing(len(p.score), width - p.score.shape[1], p.value.shape[2]) for p in parts)
    return _joined([_joined(pair, 1) for pair in zip(parts, missing, strict=True)], 0)


def _melts(settings: Any) -> bool:
    """Tell whether one entry a query can stand for all seen so far."""
    return settings["top_k"] is None and getattr(as_weighting(settings["weighting"]), "alpha", None) == 1


def _condensed(part: Part, settings: Any, blend: Callable[[Floats], Floats]) -> Part:
    """Melt entries to one, or drop what cannot count: what is not among the k best, or has no weight.

    `blend` turns shares (m, s) to values (m, e).
    """
    score, bias, place, value = part
    _only_infinite(score)
    if _melts(settings):
        z, best, lift = logits(score, bias, settings["temperature"])
        weights = np.exp(z)
        mass = weights.sum(axis=1, keepdims=True)
        value = blend(share(weights, mass))[:, None]
        return Part(best.copy(), lift + np.log(mass), np.zeros(best.shape, dtype=np.intp), value)
    bias = np.zeros_like(score) if bias is None else bias
    if (top_k := settings["top_k"]) is not None:
        order = ranking(score, bias, settings["temperature"], place)[:, :top_k]
    else:
        alive = weigh(score, bias, {**settings, "null_score": None}).weights != 0
        score = np.where(alive, score, -math.inf)
        order = np.argsort(~alive, axis=1, kind="stable")[:, : alive.sum(axis=1).max(initial=0)]
    rows = np.arange(len(score))[:, None]
    return Part(*(x[rows, order] for x in (score, bias, place, value)))


def _merge(parts: list[Part], settings: Any) -> Part:
    """Merge partial answers of the same queries."""
    if len(parts) == 1:
        return parts[0]
    whole = _joined(parts, 1)
    return _condensed(whole, settings, functools.partial(_kept, part=whole, values=None))


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
    """Blend weights (m, s) and the values of the entries that are kept to (m, e), from left to right."""
    at_hand = values is not None and not part.value.shape[2]
    e = (values if at_hand else part.value).shape[-1]
    out = np.full((len(weights), e), -0.0, dtype=np.longdouble)  # which adds nothing, even to -0.0
    step = 1 + _backend.tile_columns(len(weights), weights.shape[1], 0) // max(1, e)
    for start in range(0, weights.shape[1], step):
        some = slice(start, start + step)
        own = values[part.place[:, some]].astype(np.float64) if at_hand else part.value[:, some]
        weight = weights[:, some, None]
        terms = np.where(weight == 0, -0.0, weight * own)
        out = np.add.accumulate(np.concatenate([out[:, None], terms], axis=1), axis=1)[:, -1]
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


def careful_tiles(source: Source, settings: Any) -> Iterator[tuple[slice, Any, Floats]]:
    """Go through all entries: yield places, biases and canonical scores (m, b), -inf for what is out."""
    (m, d), (n, e) = source.query.shape, source.values.shape
    columns = _backend.tile_columns(m, n, 2 * d + e, _backend.SORTED)
    for j in range(0, max(n, 1), columns):
        c = slice(j, min(j + columns, n))
        masks, rescore = source.seen(c), functools.partial(_undecided, part=True)
        scores = score(source.query, source.keys[c], masks, settings, rescore)
        if settings["min_score"] is not None:
            scores[scores < settings["min_score"]] = -math.inf
        yield c, masks.bias, scores


def _by_tiles(source: Source, settings: Any) -> Part:
    """Merge the partial answers of all tiles of entries, sixteen at a time: the careful way."""
    parts: list[Part] = []
    for c, bias, scores in careful_tiles(source, settings):
        blend = functools.partial(mix, values=source.values[c], hard=settings["temperature"] == 0)
        place = np.broadcast_to(np.arange(c.start, c.stop), scores.shape)
        part = Part(scores, bias, place, np.empty((*scores.shape, 0)))
        parts.append(_condensed(part, settings, blend))
        if len(parts) == 16:
            parts = [_merge(parts, settings)]
    return _merge(parts, settings)


# ---- the same quickly: by matrix products --------------------------------------------------------


def _fill(block: Block, tile: Tile, z: Floats, reach: Floats, good: Any) -> Any:
    """Put a tile's scores into z (m, b), -inf for what a query does not see; return the keys' lengths (b,).

    `reach` (m,) grows to the longest key that each query sees. No longer `good` (m,) is whose score of
    something seen is -inf, perhaps since it has overflowed.
    """
    norms, each = block.fill(tile, z), tile.each
    if norms is not None:
        np.maximum(reach, norms.max() if each is None else np.where(each, norms, 0).max(axis=1), out=reach)
    canonical = block.exact and block.scale == 1
    if block.direct and not canonical and not z.min(initial=0) > -math.inf:
        lost = z == -math.inf
        good &= ~(lost if each is None else lost & each).any(axis=1)
    if each is not None:
        np.copyto(z, -math.inf, where=~each)
    return norms


class _Sums(NamedTuple):
    """What `_stream` knows of each query so far: sums of exponentials of logits less `shift`."""

    shift: Floats  # (m,) -inf where nothing was seen
    first: Floats  # (m,) the best logit of the tile that `shift` comes from
    reach: Floats  # (m,) the length of the longest key seen
    good: Any  # (m,) False where the quick way is known to fail
    mass: Floats  # (m,) the sum
    total: Floats  # (m, e) the sum times values, for a distance (m, e + 1) with squares of lengths of keys

    def rebase(self, z: Floats, fresh: Any) -> None:
        """Take the best of the logits z (m, b) as what the `fresh` rows are taken less from now on."""
        peak = np.where(fresh, np.fmax(self.shift, z.max(axis=1)), self.shift)
        self.first[:] = np.where(fresh, peak, self.first)
        peak[np.abs(peak) < 8] = 0  # as good, and there is nothing to take off
        fade = np.exp(np.where(peak > self.shift, self.shift - peak, 0))
        self.mass[:] *= fade
        self.total[:] *= fade[:, None]
        self.shift[:] = peak

    def coarseness(self, block: Block, squares: Any) -> Any:
        """Return how large the terms of a score are beside the logits that matter, (m,).

        `squares` is the mean square of the keys' lengths that is blended with the values.
        """
        matters = np.exp(self.first - self.shift) > self.mass * 2.0**-22
        # The largest logit that matters is at least that one, if it does, and what the sum tells.
        largest = np.where(matters, np.abs(self.first + block.constant), 0)
        largest = np.fmax(largest, -(self.shift + block.constant + np.log(self.mass)))
        return (block.size_of_mean(squares) if block.centered else block.size(self.reach)) / (1 + largest)


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
    finest = 24 * eps / (max(1.5, math.sqrt(d) / 8) * float(np.finfo(block.dtype).eps))
    columns = _backend.stream_columns(m, len(source.keys), d + e, block.dtype.itemsize)
    if source.masks.span is not None or low is not None:  # to leave out more; since all may be near it
        columns = min(columns, 256)
    exp_rows, room = _backend.exponential(m * len(source.keys)), np.empty(m * columns, dtype=block.dtype)
    (shift, first), (reach, mass) = np.full((2, m), -math.inf), np.zeros((2, m))
    good, total = np.ones(m, dtype=bool), np.zeros((m, e + block.centered))
    whole = _Sums(shift, first, reach, good, mass, total)
    right, product = (np.empty((rows, total.shape[1]), dtype=block.dtype) for rows in (columns, m))
    for turn, tile in enumerate(source.tiles(columns)):
        sums = _Sums(*(x[tile.rows] for x in whole))  # views
        fresh, rows = sums.shift == -math.inf, len(sums.shift)
        z = room[: rows * len(tile.keys)].reshape(rows, -1)
        for again in (False, True):
            sizes = _fill(block, tile, z, sums.reach, sums.good)
            if low is not None:
                _cut(block, z, reach, source, tile, settings)
            if tile.bias is not None:
                z += tile.bias
            if again or fresh.any():
                every = again or tile.each is not None or low is not None
                sums.rebase(z if every else z[:, : max(32, 2**14 // m)], fresh)
            added = exp_rows(z, np.where(sums.shift == -math.inf, 0, sums.shift).astype(z.dtype))
            if not np.fmax.reduce(added) > _backend.HUGE:
                break
            fresh = added > _backend.HUGE
        beside = _beside(right, tile.values, middle, sizes)
        if tile.each is not None and not math.isfinite(beside.sum()):
            odd: Any = ~np.isfinite(beside).all(axis=1)
            sums.good[:] &= ~(tile.each & odd).any(axis=1)
            beside = np.where(odd[:, None], 0, beside)  # 0 * NaN would spread to those who do not see it
        sums.mass[:] += added
        sums.total[:] += _backend.product(z, beside, product[:rows], few=m < _backend.FEW_ROWS)
        # More entries add to the squares, and take from the largest logit: no row would be better at the end.
        if turn == 0 and block.centered and (whole.coarseness(block, 0) > finest).all():
            break
    level, log, nobody = shift + block.constant, np.log(mass), mass == 0
    fine = whole.coarseness(block, total[:, e:].sum(axis=1) / mass) <= finest
    value = total[:, :e]
    value /= np.where(nobody, 1, mass)[:, None]
    good &= np.isfinite(value.sum(axis=1) + mass) & (fine | nobody)
    good &= (nobody == (shift == -math.inf)) & (block.size(reach) < _backend.SAFE)
    if middle is not None:
        value += np.where(nobody[:, None], 0, middle) if nobody.any() else middle
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


def _cut(block: Block, z: Floats, reach: Floats, source: Source, tile: Tile, settings: Any) -> None:
    """Take out, in place, the scores below `min_score`; those near it are scored again."""
    low = settings["min_score"]
    cut = low * block.scale - np.broadcast_to(block.constant, len(reach))
    cut, slack = (x[tile.rows, None] for x in (cut, block.slack(np.abs(cut), reach)))
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
    part, found, count, most = None, [], 0, _backend.pairs_at_once(2 * _backend.SORTED)

    def lowered(score: Floats) -> Any:
        """Return (m,) what has a canonical score of at least that scores here, whatever the rounding."""
        size = np.where(np.isfinite(score), np.abs(score), 0) + prior
        return score - 2 * block.slack(size, reach) - 8 * eps * (size + margin)

    for turn, tile in enumerate(source.tiles(columns, whole=True)):
        z = room[:, : len(tile.keys)]
        _fill(block, tile, z, reach, good)
        if biased:
            z += tile.bias
            seen = True if tile.each is None else tile.each
            np.maximum(prior, np.where(seen, np.abs(tile.bias), 0).max(axis=1), out=prior)
        room[:, len(tile.keys) :] = -math.inf
        top = room.reshape(m, -1, groups).max(axis=1)
        np.maximum(best, top, out=best)
        if not turn & (turn + 1):  # after 1, 2, 4, 8, ... tiles; the later, the less it changes
            kth = np.partition(best, groups - k, axis=1)[:, groups - k].astype(np.float64) - margin
        least = lowered(kth)
        if low is not None:
            least = np.fmax(least, lowered(low - np.broadcast_to(block.constant, m)))
        limit = np.fmax(np.nextafter(least.astype(z.dtype), -math.inf), np.finfo(z.dtype).min)
        for i, j in _above(room, top, limit, most):
            found.append((i, tile.places(j), room[i, j]))
            count += len(i)
            if count > most:
                part, found, count = _settled(source, settings, found, least, part), [], 0
    good &= (block.size(reach) < _backend.SAFE) & (prior < _backend.SAFE) & ~np.isnan(best).any(axis=1)
    if count:
        part = _settled(source, settings, found, least, part)
    return part or _nothing(m, 1, e if _melts(settings) else 0), good


def _above(scores: Floats, top: Floats, limit: Floats, most: int) -> Iterator[tuple[Any, Any]]:
    """Find the scores (m, b) of at least `limit` (m,): yield their rows and columns, about `most` at a time.

    `top` (m, g) is the best of each group; of g columns that follow each other, each is in another group.
    """
    hits, groups = top >= limit[:, None], top.shape[1]
    share = np.count_nonzero(hits) / hits.size
    step = max(1, int(most / max(share * scores.shape[1], 1)))  # all queries at once, but where many tie
    for first in range(0, len(scores), step):
        rows = slice(first, first + step)
        if share > 0.25:  # so many that it is quicker to look at all, and in order
            i, j = np.nonzero(scores[rows] >= limit[rows, None])
        else:
            i, g = np.nonzero(hits[rows])
            in_group = scores[rows].reshape(-1, scores.shape[1] // groups, groups)[i, :, g]
            at, h = np.nonzero(in_group >= limit[rows][i, None])
            i, j = i[at], h * groups + g[at]
        yield i + first, j


def _settled(source: Source, settings: Any, found: Any, least: Floats, part: Part | None) -> Part:
    """Score what was found canonically, and merge it into the partial answer."""
    i, place, z = (np.concatenate(x) for x in zip(*found, strict=True))
    kept = np.nonzero(z >= least[i])[0]
    kept = kept[np.argsort(i[kept], kind="stable")]
    i, place = i[kept], place[kept]
    score, bias, m = _canonical(source, i, place, settings), source.seen().bias, len(least)
    if settings["min_score"] is not None:
        score[score < settings["min_score"]] = -math.inf
    counts = np.bincount(i, minlength=m)
    column, width, parts = np.arange(len(i)) - (np.cumsum(counts) - counts)[i], max(counts.max(), 1), []
    step = max(1, _backend.pairs_at_once(_backend.SORTED) // width)
    for start in range(0, m, step):
        some = slice(*np.searchsorted(i, (start, start + step)))
        at = i[some] - start, column[some]
        new = _nothing(min(step, m - start), width)
        new.score[at], new.place[at] = score[some], place[some]
        if bias is not None:
            new.bias[at] = bias[i[some], place[some]]
        new = _condensed(new, settings, functools.partial(_kept, part=new, values=source.values))
        old = [] if part is None else [Part(*(x[start : start + step] for x in part))]
        parts.append(_merge([*old, new], settings))
    return _stacked(parts)


def _ways(source: Source, settings: Any, dtype: Any) -> list[Callable[[Source, Any], tuple[Part, Any]]]:
    """Return the quick ways to a partial answer, the quickest first."""
    similarity, temperature = as_similarity(settings["similarity"]), settings["temperature"]
    dtype = min(np.dtype(dtype), np.dtype(np.float64))  # not by long doubles, of which there are no products
    eps, dtype = float(np.finfo(dtype).eps), np.result_type(dtype, np.float32)
    low, biased = settings["min_score"] is not None, source.masks.bias is not None
    melts, width = _melts(settings) and temperature > 0, source.keys.shape[1] + source.values.shape[1]
    slow = not similarity.canonical or _backend.fits(len(source.query), len(source.keys), width)
    # At T = inf, bias and min_score compare different things.
    if slow or ((low if melts else biased) and temperature == math.inf) or (low and biased and not melts):
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
    return part if len(parts) == 1 else Part(*(x[row] for x in _stacked(parts)))


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
                part = _by_ways(some, rules, _ways(some, rules, dtype))
                out[r], reached[r] = _finish(part, rules, source.values)

    return [functools.partial(block, r) for r in _backend.blocks(m, n, d + e, whole)]


@np.errstate(all="ignore")
def explain(query: Array, keys: Array, masks: Masks, settings: Any) -> tuple[Any, ...]:
    """Say why: scores (m, n), weights (m, n), the silent entry's (m,), logsumexp (m,), and the order.

    Scores are canonical, -inf for what step (1) took out. The order is, of each query, the places of what
    steps (1) to (3) left, best first. Takes what `answer` takes, and O(m n) memory.
    """
    check_size(len(query), len(keys))
    scores = score(query, keys, masks, settings, lambda scores, *_: np.isfinite(scores))
    kept, weights, null_weight, _ = weigh(scores, masks.bias, settings)
    total = log_sum_exp(kept, masks.bias, settings["temperature"])
    if settings["temperature"] == 0 and settings["null_score"] is not None:
        total[kept.max(axis=1, initial=-math.inf) < settings["null_score"]] = -math.inf
    ranked, left = ranking(kept, masks.bias, settings["temperature"]), (kept > -math.inf).sum(axis=1)
    return scores, weights, null_weight, total, [row[:count] for row, count in zip(ranked, left, strict=True)]


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

    def __init__(self, state: Part | None, settings: dict[str, Any]) -> None:
        self._state, self._settings = state, settings

    def __add__(self, other: object) -> Partial:
        """Merge two partial answers of the same queries over different entries."""
        if not isinstance(other, Partial):
            return NotImplemented
        for name, value in self._settings.items():
            if value != (theirs := other._settings.get(name, value)):
                raise ValueError(
                    f"{name} is {value} in one partial answer and {theirs} in the other, but "
                    "one and the same was expected in a merge of partial answers. Ask all parts "
                    "with the same queries and settings, from dicts of one dtype."
                )
        if self._state is None or other._state is None:  # over no entries at all: the identity
            return self if other._state is None else other
        with np.errstate(all="ignore"):
            state = _merge([self._state, other._state], self._settings)
        return Partial(state, self._settings)

    def finish(self) -> Any:
        """Return the answer over all merged entries: zeros for a query that reached none."""
        return self.end()[0]

    def end(self) -> tuple[Any, Any]:
        """Return the answer, and which queries reached something (m,)."""
        if self._state is None:
            raise KeyError("no part of this answer holds an entry; merge it with one that does")
        with np.errstate(all="ignore"):
            value, reached = _finish(self._state, self._settings)
        return shaped(value, *self._settings["shape"][1:]), reached


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
    value = state.value if _melts(settings) else source.values[state.place].astype(np.float64)
    state = state._replace(value=value, place=state.place + offset)
    return Partial(state, {**settings, "shape": (f"d = {d}, e = {e}, m = {m}", *shape)})


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
    if _backend.library(query, keys, values, where, bias) is not None:
        return _tensors.look_up((query, keys, values, where, bias), settings)
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
    if _backend.library(query, keys, where, bias) is not None:
        return _tensors.look_up((query, keys, ..., where, bias), settings)
    return weights_of(arrange(query, keys, None, where, bias, widths(similarity)), settings)
