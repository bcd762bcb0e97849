"""Because the blend is smooth it can be learned: the chain rule over a whole lookup, by tiles.

With logits ``z = score / T + bias``, weights w of z, ``answer = w @ v`` and g the gradient of whatever is
made of the answers, the gradient of v is ``w.T @ g`` and that of w is ``dw = g @ v.T``. Through softmax it
becomes ``dz = w * (dw - g . answer)``: once the answers are known, no entry needs to see another one. So tile
after tile is enough here too: through ``score = dz / T`` to query and keys, by each similarity's derivative.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend, _tensors, blend
from softdict._checks import (
    Array,
    Call,
    Floats,
    Source,
    arrange,
    as_generator,
    brief,
    check_number,
    is_value,
    numbers,
)
from softdict.scores import NAMED, Block, as_similarity, score_pairs, widths
from softdict.weights import NAMED as WEIGHTINGS
from softdict.weights import Entmax, as_weighting, backward, tempered, weigh


class Gradients(NamedTuple):
    """The gradients that `soft_lookup_vjp` returns, each in the shape of its input."""

    query: Array
    keys: Array
    values: Array
    temperature: float
    bias: Any  # None where none was given


# ---- one block of queries ------------------------------------------------------------------------


class _Block:
    """What one block of queries adds to all gradients, tile by tile; to those of query and keys times T."""

    def __init__(self, source: Source, cotangent: Array, settings: Any, dtype: Any, bias: Any) -> None:
        self.rules = blend.by_parts(source.masks.bias, settings)
        self.whole = {**self.rules, "top_k": None, "min_score": None}  # for what these have left
        self.similarity, self.temperature = as_similarity(settings["similarity"]), settings["temperature"]
        # Divided by powers of two above the largest, no product of cotangents and values overflows.
        self.powers = powers = _power(source.values), _power(cotangent)
        if powers[0]:
            source = source._replace(values=np.ldexp(source.values.astype(np.float64), -powers[0]))
        self.source, self.cotangent = source, np.ldexp(cotangent.astype(np.float64), -powers[1])  # (m, e)
        self.dtype = dtype if max(map(abs, powers)) < 60 else np.dtype(np.float64)
        self.query, self.heat, self.bias = np.zeros(source.query.shape), np.zeros(()), bias
        # In the order in which `_back` finds them, column by column, they are added to in half the time.
        self.keys, self.values = (np.zeros(x.shape, self.dtype, "F") for x in (source.keys, source.values))

    def run(self) -> list[Floats]:
        """Return what is added to the gradients of query, keys, values, temperature and bias."""
        everyone, ways = np.ones(len(self.cotangent), bool), blend._ways(self.source, self.rules, self.dtype)
        if blend._melts(self.rules) and self.temperature > 0:
            self._all(self.source, 0, ways, everyone)
        else:
            part = blend._by_ways(self.source, self.rules, ways)
            if blend._melts(self.rules):
                self._carefully(self.source, 0, part, everyone)
            else:
                self._few(part)
        found = [self.query, self.keys, self.values, self.heat, *([] if self.bias is None else [self.bias])]
        power, own = self.powers
        for x in found if power or own else []:
            np.ldexp(x, own if x is self.values else power + own, out=x)  # in place, since they are large
        return found

    def _back(self, rows: Any, columns: Any, dz: Floats, q: Array, k: Array, z: Any, rule: Any) -> None:
        """Go back from the gradient of logits z (m, b) to those of bias, query, keys and temperature.

        Without z Euler's theorem sums it up: products are of degree one in queries, squared distances of
        degree two in queries and keys together.
        """
        if self.bias is not None and self.temperature > 0:
            places, piece = [rows, columns], dz
            for axis, size in enumerate(self.bias.shape):
                if size == 1:
                    places[axis], piece = slice(0, 1), piece.sum(axis=axis, keepdims=True)
            self.bias[tuple(places)] += piece
        if 0 < self.temperature < math.inf:
            dq, dk = rule(dz, q, k)
            self.query[rows] += dq
            self.keys[columns] += dk
            if z is not None:
                self.heat -= np.einsum("mb,mb->m", dz, z).sum(dtype=np.float64)
            else:
                parts = ((dq, q), (dk, k))[: 1 if rule is self.similarity.backward else 2]
                heat = sum(np.einsum("id,id->i", *part).sum(dtype=np.float64) for part in parts)
                self.heat -= heat / len(parts) / self.temperature

    def _silent(self, dz: Floats, best: Floats) -> None:
        """Go back from the gradient of the silent entry's logits (m,), less the best (m, 1), to that of T."""
        if self.rules["null_score"] is not None and 0 < self.temperature < math.inf:
            z = tempered(np.full_like(best, self.rules["null_score"]), best, self.temperature)[:, 0]
            self.heat -= np.where(dz == 0, 0, dz * z).sum()

    # ---- softmax: all entries count ----

    def _all(self, source: Source, first: int, ways: Any, use: Any) -> None:
        """Take each row in use by the first way that can be trusted, as the lookup does."""
        if not ways or not len(use):
            self._carefully(source, first, blend._by_tiles(source, self.rules), use)
            return
        part, good = ways[0](source, self.rules)
        self._quickly(source, first, part, use & good, ways[0].keywords["dtype"])
        for start in range(0, len(use), _backend.ROWS // 8):
            c = slice(start, min(start + _backend.ROWS // 8, len(use)))
            if (again := use[c] & ~good[c]).any():
                self._all(source.rows(c), first + start, ways[1:], again)

    def _known(self, part: blend.Part, g: Floats, use: Any) -> tuple[Floats, Floats, Floats]:
        """Return the logs of the entries' shares, g . answer, and the silent entry's dz: (m,) each."""
        _, share, silent, _ = weigh(part.score, part.bias, self.whole)
        mean = NAMED["dot"].score(g, np.where(share == 0, 0, share * part.value[:, 0]))
        log = np.where(use, np.log(share[:, 0]), -math.inf)
        return log, np.where(use, mean, 0), np.where(use & (silent > 0), -silent * mean, 0)

    def _carefully(self, source: Source, first: int, part: blend.Part, use: Any) -> None:
        """Go back by canonical scores and sums, in float64."""
        rows, best = slice(first, first + len(use)), part.score
        g, q = self.cotangent[rows], _finite(source.query)
        log, mean, silent = self._known(part, g, use)
        for c, bias, scores in blend.careful_tiles(source, self.rules):
            scores[(best == math.inf) & (scores < best)] = -math.inf  # infinity may stand in another tile
            z = tempered(scores, best, self.temperature)
            w = np.exp((z if bias is None else z + bias) - part.bias + log[:, None])
            w[log == -math.inf] = 0
            self.values[c] += w.T @ g
            dw = score_pairs(NAMED["dot"], g, source.values[c].astype(np.float64))  # summed as `mean` is
            dz = np.where(w == 0, 0, w * (dw - mean[:, None]))
            k, z = _finite(source.keys[c]), np.where(dz == 0, 0, z)
            self._back(rows, c, dz, q, k, z, self.similarity.backward)
        self._silent(silent, best)

    def _quickly(self, source: Source, first: int, part: blend.Part, use: Any, dtype: Any) -> None:
        """Go back by matrix products, in rows whose rounding is known to be small."""
        (m, d), (n, e) = source.query.shape, source.values.shape
        g = self.cotangent[first : first + m]
        log, mean, silent = self._known(part, g, use)
        center, middle = source.middle()  # of values that are all equal no rounding is left
        block = Block(self.similarity, source, 1 / self.temperature, dtype, center)
        center, middle = (x.astype(block.dtype) for x in (center if block.centered else np.zeros(1), middle))
        rule = self.similarity.quick_backward if block.centered else self.similarity.backward
        total = part.score[:, 0] / self.temperature + part.bias[:, 0] - log - block.constant
        total = np.where(log > -math.inf, total, math.inf).astype(block.dtype)
        q = _finite(source.query, block.dtype) - center
        left = np.column_stack([g, g @ middle - mean]).astype(block.dtype)
        columns = _backend.stream_columns(m, n, d + e, block.dtype.itemsize)
        rooms, right = np.empty((3, m * columns), block.dtype), np.ones((columns, e + 1), block.dtype)
        exp_rows, reach, good = _backend.exponential(m * n), np.zeros(m), np.ones(m, dtype=bool)
        for tile in source.tiles(columns):
            r, b = tile.rows, len(tile.keys)
            w, dw, z = (room[: (r.stop - r.start) * b].reshape(-1, b) for room in rooms)
            blend._fill(block, tile, w, reach[r], good[r])
            if self.rules["min_score"] is not None:
                blend._cut(block, w, reach, source, tile, self.rules)
            w[~use[r]] = -math.inf
            known = block.direct or block.unit
            if known:
                np.maximum(w, np.finfo(w.dtype).min, out=z)  # so that nothing times it is nothing
            if tile.bias is not None:
                w += tile.bias
            exp_rows(w, total[r])
            places = slice(tile.start, tile.start + b) if tile.some is None else tile.places(slice(None))
            np.subtract(_finite(tile.values, block.dtype), middle, out=right[:b, :e])
            self.values[places] += (left[r, :e].T @ w).T  # w.T @ left, in half the time
            w *= np.matmul(left[r], right[:b].T, out=dw)
            k = _finite(tile.keys, block.dtype) - center
            self._back(slice(first + r.start, first + r.stop), places, w, q[r], k, z if known else None, rule)
        self._silent(silent, np.zeros((m, 1)))

    # ---- top-k and the sparse weightings: few entries count ----

    def _few(self, part: blend.Part) -> None:
        """Go back through the entries (m, s) that are left: for some rows at once, all of theirs."""
        _, weights, silent, _ = weigh(part.score, part.bias, self.whole)
        best = part.score.max(axis=1, keepdims=True, initial=-math.inf)
        logits = tempered(part.score, best, self.temperature)
        (m, s), n = weights.shape, len(self.source.keys)
        step = max(1, int(max(math.sqrt(_backend.CELLS / (s + 1)), _backend.CELLS / (n + 1)) / 4))
        for start in range(0, m, step):
            r = slice(start, min(start + step, m))
            i, j = np.nonzero(weights[r])
            places, at = np.unique(part.place[r][i, j], return_inverse=True)
            w, z = np.zeros((2, r.stop - r.start, len(places)))
            w[i, at], z[i, at] = weights[r][i, j], logits[r][i, j]
            g, q, k = self.cotangent[r], _finite(self.source.query[r]), _finite(self.source.keys[places])
            self.values[places] += w.T @ g
            dw = g @ self.source.values[places].astype(np.float64).T
            dz, dnull = backward(w, dw, silent[r], as_weighting(self.rules["weighting"]).alpha)
            self._back(r, places, dz, q, k, z, self.similarity.backward)
            self._silent(dnull, best[r])


def _finite(x: Array, dtype: Any = np.float64) -> Floats:
    """Return an array, 0 where it is not finite: whoever sees that has a weight of NaN, or 0."""
    good = np.isfinite(x)
    return (x if good.all() else np.where(good, x, 0)).astype(dtype, copy=False)


def _power(x: Array) -> int:
    """Return the power of two just above the largest finite number, 0 for an ordinary one."""
    power = int(np.frexp(np.abs(x).max(where=np.isfinite(x), initial=0))[1])
    return power if abs(power) > 25 else 0


# ---- whole calls ---------------------------------------------------------------------------------


def shapes_of(call: Call, query: Any, keys: Any, values: Any, bias: Any) -> list[tuple[int, ...]]:
    """Return the shapes of all gradients of a call: (*own leading axes, rows, columns), () for T."""
    full = zip((query, keys, values), (call.query, call.keys, call.values), strict=True)
    shapes = [(*np.shape(x)[:-2], *whole.shape[-2:]) for x, whole in full]
    if bias is None:
        return [*shapes, ()]
    own = np.shape(bias)
    own = (*own[:-1], 1, *own[-1:]) if call.single else own
    return [*shapes, (), (1,) * (2 - len(own)) + own]


def gradients_of(
    call: Call, shapes: Any, cotangent: Any, settings: Any, span: Any = None, skip: Any = None
) -> list[Any]:
    """Return the gradients of query, keys, values, temperature and, where there is one, bias, in float64.

    `shapes` are those of `shapes_of`, in which they are returned; `span` is that of `blend.values_of`, and
    `skip` the entry that each query leaves out (m,).
    """
    (m, d), (n, e) = call.query.shape[-2:], call.values.shape[-2:]
    cotangent = cotangent.reshape(*call.lead, m, e)
    sums, found, added, lock = [np.zeros(shape) for shape in shapes], {}, 0, threading.Lock()

    def task(turn: int, places: list[Any], source: Source, g: Array, r: slice) -> None:
        nonlocal added
        places, bias = [(*places[0], r), *places[1:]], None
        if len(shapes) > 4:
            rows = r if shapes[4][-2] > 1 else slice(0, 1)
            places[4] += (rows,)
            bias = np.zeros((rows.stop - rows.start, shapes[4][-1]), call.dtype)
        with np.errstate(all="ignore"):
            pieces = _Block(source.rows(r), g[r], settings, call.dtype, bias).run()
        with lock:  # added in the order of the blocks, whatever order they end in
            found[turn] = places, pieces
            while added in found:
                for total, place, piece in zip(sums, *found.pop(added), strict=True):
                    total[place] += piece
                added += 1

    tasks: list[Any] = []
    for at, q, k, masks in call.each():
        source = Source(q, k, call.values[at], masks._replace(span=span, skip=skip))
        places = [_own(shape, at) for shape in shapes]
        for r in _backend.blocks(m, n, d + e, False):
            tasks.append(functools.partial(task, len(tasks), places, source, cotangent[at], r))
    _backend.run(tasks, len(tasks) * m * n * (d + e))
    with np.errstate(all="ignore"):
        for i in (0, 1, 3):
            sums[i] /= settings["temperature"] or 1  # nothing was added at 0
    return sums


def _own(shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leading place in an array of this shape that the place `at` of broadcast axes reads."""
    lead = shape[:-2]
    return tuple(0 if size == 1 else i for size, i in zip(lead, at[len(at) - len(lead) :], strict=True))


# ---- the public functions ------------------------------------------------------------------------


def check_cotangent(cotangent: Any, call: Call, lead: tuple[int, ...]) -> Array:
    """Return a cotangent broadcast to the shape of the answer, whose leading axes are `lead`."""
    g, m = numbers(cotangent, "cotangent"), () if call.single else call.query.shape[-2:-1]
    shape = (*lead, *m, *(() if call.scalar else call.values.shape[-1:]))
    try:
        return np.broadcast_to(g, shape)
    except ValueError:
        raise ValueError(
            f"cotangent has shape {g.shape}, but a shape that broadcasts to that of the answer, {shape}, was "
            "expected. It is the gradient of your loss with respect to the answer, number by number."
        ) from None


def check_smooth(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse settings without a derivative."""
    known: dict[str, tuple[Any, ...]] = {
        "similarity": (as_similarity(settings["similarity"]).backward, *NAMED, "InverseDistance or Bilinear"),
        "weighting": (isinstance(as_weighting(settings["weighting"]), Entmax), *WEIGHTINGS, "or Entmax"),
    }
    for name, (smooth, *ways) in known.items():
        if not smooth:
            raise TypeError(
                f"{name} is {brief(settings[name])}, a function whose derivative is not known, but one of "
                f"{', '.join(ways)} was expected for gradients. Use these, or differentiate elsewhere."
            )
    return settings


def soft_lookup_vjp(
    query: Any, keys: Any, values: Any, cotangent: Any, *, similarity: Any = "gaussian",
    temperature: float = 1.0, weighting: Any = "softmax", where: Any = None, bias: Any = None,
    top_k: int | None = None, min_score: float | None = None, null_score: float | None = None,
) -> Gradients:  # fmt: skip
    """Return the gradients of ``(cotangent * soft_lookup(...)).sum()`` with respect to its inputs.

    Gaussian by default, as in `soft_lookup`, and it takes what that takes. Given the gradient of a loss
    with respect to the answer as `cotangent`, these are the gradients of the loss with respect to the inputs.

    **Equivalent to:** ``dw = cotangent @ values.T; dz = w * (dw - (w * dw).sum(-1, keepdims=True))``,
    ``d_values = w.T @ cotangent; d_query = (dz @ keys - dz.sum(-1, keepdims=True) * query) / temperature``,
    with the weights ``w = lookup_weights(query, keys, temperature=temperature)``.

    Parameters
    ----------
    query, keys, values, similarity, temperature, weighting, where, bias, top_k, min_score, null_score
        As in `soft_lookup`; similarity and weighting are named ones, or classes of this library, since of
        a function no derivative is known.
    cotangent : array, broadcast to the shape of the answer
        What each number of the answer is multiplied by.

    Returns
    -------
    Gradients
        A named tuple (query, keys, values, temperature, bias): arrays in the shape of the inputs and the
        dtype of the answer, temperature a float, and None for the bias where none was given.

    Raises
    ------
    TypeError, ValueError
        As `soft_lookup` does; for a cotangent that does not fit, and for functions as settings.

    Notes
    -----
    A vector-Jacobian product, by tiles: Dao et al., "FlashAttention", 2022; entmax: Peters, Niculae, Martins,
    2019. Time O(m n (d + e)), some four lookups; memory O(m + n) beside the budget of `softdict._backend`.

    `top_k` and `min_score` choose entries, and the choice counts as fixed. At T = 0 the values' gradient is
    exact and the others are zero, since a winner stays the winner under small changes; at T = inf those of
    query, keys and temperature are zero. Laplacian has corners, where components are equal: 0 there. A query
    with nothing to look at has no part in any gradient. What is masked is never touched; NaN passes through.
    To learn the W of `Bilinear(W)`, ask ``query @ W`` with "dot", and multiply its gradient by ``query.T``.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import soft_lookup, soft_lookup_vjp
    >>> keys, values = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    >>> slopes = soft_lookup_vjp(0.9, keys, values, 1.0)
    >>> float(slopes.query.round(3)), slopes.values.round(3), round(slopes.temperature, 3)
    (0.546, array([0.302, 0.451, 0.247]), 0.042)
    >>> float((soft_lookup(1.0, keys, values) - soft_lookup(0.9, keys, values)).round(3))  # a tenth of it
    0.055
    >>> far = soft_lookup_vjp(50.0, keys, values, 1.0, temperature=0.1)  # one entry has all the weight:
    >>> float(far.query.round(3)), far.values.round(3)  # nothing to learn from
    (0.0, array([0., 0., 1.]))
    >>> soft_lookup_vjp(0.9, keys, values, [1.0, 2.0])
    Traceback (most recent call last):
    ...
    ValueError: cotangent has shape (2,), but a shape that broadcasts to that of the answer, (), was ...
    """
    settings = check_smooth(blend.checked(
        similarity=similarity, temperature=temperature, weighting=weighting, top_k=top_k, min_score=min_score,
        null_score=null_score,
    ))  # fmt: skip
    call = arrange(query, keys, values, where, bias, widths(similarity))
    g, shapes = check_cotangent(cotangent, call, call.lead), shapes_of(call, query, keys, values, bias)
    found = gradients_of(call, shapes, g, settings)
    return as_given(found, (query, keys, values, bias), call.dtype)


def as_given(found: list[Any], given: Any, dtype: Any) -> Gradients:
    """Return gradients in the shapes of what was given (query, keys, values and bias), as `dtype`."""
    heat = float(found.pop(3))
    with np.errstate(all="ignore"):  # what a narrow dtype cannot hold is infinity
        arrays: Any = [
            None if x is None else found.pop(0).reshape(np.shape(x)).astype(dtype)[()] for x in given
        ]
    query, keys, values, bias = arrays
    return Gradients(query, keys, values, heat, bias)


def in_kind(value: Any, sd: Any, query: Any) -> Any:
    """Return what a SoftDict has answered in the library of the query, and on its device.

    In torch `soft_lookup_vjp` carries gradients to the query. What is no tensor, or no number, stays.
    """
    if _backend.library(query) is None or sd._store.value_shape is None or not is_value(value):
        return value
    if not getattr(query, "requires_grad", False):
        return _backend.like(np.asarray(value), query)
    (keys, values), settings, width = sd._store.lend(), dict(sd._settings), sd._width()

    def back(g: Array) -> Array:
        rows = _backend.host(query).reshape(-1, width)
        g = g.reshape(len(rows), -1)
        return soft_lookup_vjp(rows, keys, values, g, **settings).query.reshape(query.shape)

    return _tensors.attached(np.asarray(value), query, back)


def check_vjp(
    query: Any, keys: Any, values: Any, *, rng: Any = None, step: float = 1e-5, **settings: Any
) -> dict[str, float]:
    """Compare `soft_lookup_vjp` with finite differences, along random directions, in float64.

    Gaussian by default, as in `soft_lookup`. It takes what that takes, and raises what that raises.

    **Equivalent to:** ``(f(x + step * u) - f(x - step * u)) / (2 * step)`` beside ``(gradient * u).sum()``,
    for random u and ``f(x) = (cotangent * soft_lookup(...)).sum()`` with a random cotangent.

    Parameters
    ----------
    query, keys, values, **settings
        As in `soft_lookup`.
    rng : numpy.random.Generator or int, optional
        Where chance comes from; by default a fixed seed.
    step : float
        How far to go, in units of the input, and of log T.

    Returns
    -------
    dict of str to float
        For each input ("query", "keys", "values", "temperature", "bias" where there is one) the largest
        error along four directions, relative to the largest difference quotient.

    Raises
    ------
    TypeError, ValueError
        As `soft_lookup_vjp` does, and for a `step` that is not positive.

    Notes
    -----
    About 40 lookups, and four gradients. In float64 and with scores of moderate size errors are below 1e-6.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import check_vjp
    >>> rng = np.random.default_rng(0)
    >>> query, keys, values = rng.normal(size=(3, 2)), rng.normal(size=(5, 2)), rng.normal(size=(5, 4))
    >>> errors = check_vjp(query, keys, values, similarity="cosine", weighting="sparsemax")
    >>> list(errors), max(errors.values()) < 1e-6
    (['query', 'keys', 'values', 'temperature'], True)
    >>> check_vjp(0.0, [-1.0, 1.0], [1.0, 2.0], top_k=1)["query"] > 0.1  # a tie: the answer jumps
    True
    >>> check_vjp(query, keys, values, step=0)
    Traceback (most recent call last):
    ...
    ValueError: step is 0, but a number above 0 was expected in check_vjp. Take 1e-5, ...
    """
    step = check_number("step", step, lambda x: 0 < x < math.inf, "a number above 0",
                        "in check_vjp. Take 1e-5, where both rounding and curvature are small")  # fmt: skip
    rng = as_generator(0 if rng is None else rng, "in check_vjp. Directions come from it")
    temperature = blend.checked(temperature=settings.pop("temperature", 1.0))["temperature"]
    inputs = {"query": query, "keys": keys, "values": values, "bias": settings.pop("bias", None)}
    inputs = {name: numbers(x, name, np.float64) for name, x in inputs.items() if x is not None}
    inputs["temperature"] = np.float64(temperature)

    def answer(**changed: Any) -> Any:
        return blend.soft_lookup(**{**inputs, **changed}, **settings)

    names = ["query", "keys", "values", "temperature", "bias"][: len(inputs)]
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    shape = np.shape(answer())
    for _ in range(4):
        g = rng.normal(size=shape)
        gradients = soft_lookup_vjp(**inputs, **settings, cotangent=g)._asdict()
        for name in names:
            x = inputs[name]
            u = rng.normal(size=x.shape) * (x if name == "temperature" and x < math.inf else 1)
            up, down = (np.sum(g * answer(**{name: x + way * step * u})) for way in (1, -1))
            pairs[name].append(((up - down) / (2 * step), np.sum(gradients[name] * u)))
    found = {name: np.array(both) for name, both in pairs.items()}
    return {
        name: float(np.abs(both[:, 0] - both[:, 1]).max() / (np.abs(both).max() or 1))
        for name, both in found.items()
    }
