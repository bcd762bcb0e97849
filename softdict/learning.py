"""Learn what a lookup is made of, from queries and targets: pack, `scipy.optimize`, unpack."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from softdict._backend import library
from softdict._checks import (
    Array,
    Call,
    Floats,
    Masks,
    Source,
    as_generator,
    brief,
    check_count,
    check_number,
    check_rows,
    is_array,
    is_value,
    numbers,
    row_names,
    same,
)
from softdict._store import Entries
from softdict.blend import answer, score
from softdict.encoders import Asked, own_rows
from softdict.gradients import check_smooth, gradients_of
from softdict.mapping import SoftDict
from softdict.scores import Bilinear, as_similarity, score_pairs
from softdict.transformer import SelfAttention, _affine, _side_by_side, attention, attention_vjp

LEARN = "temperature", "keys", "values", "similarity"
MATRICES = "w_q", "w_k", "w_v", "w_o"

#: What is added to shares under a logarithm, so that a class that nobody stands for costs 28, not infinity.
LEAST_SHARE = 1e-12

#: How far apart temperatures are tried first, in log T: each bandwidth is 2.4 times the one before.
STEP = 1.75

Arrays = dict[str, Floats]
Loss = Callable[[Floats], tuple[float, Floats]]
#: From what is learned to the loss and its slopes, none of which are wanted where the second is False.
Objective = Callable[[Arrays, bool], tuple[float, Arrays]]


class Mapped:
    """Score by a similarity after a linear map: ``similarity(q @ matrix, k @ matrix)``.

    What `fit` makes of a distance or a cosine when it learns the similarity; under gaussian, the metric of
    Mahalanobis, 1936. What it makes of a dot product is `Bilinear`.

    **Equivalent to:** ``-(((q - k) @ matrix) ** 2).sum() / 2`` under gaussian.

    Parameters
    ----------
    matrix : array of shape (d, r)
        What queries and keys are multiplied by. A diagonal one says how much each coordinate matters.
    similarity : str or InverseDistance
        How what comes out is compared.

    Examples
    --------
    >>> from softdict import Mapped, SoftDict
    >>> sd = SoftDict({(0, 0): 1.0, (9, 1): 2.0}, similarity=Mapped([[0], [1]]))  # only the second counts
    >>> sd.at(temperature=0)[0, 0.9]
    2.0
    >>> sd.at(similarity="gaussian", temperature=0)[0, 0.9]
    1.0
    >>> Mapped([0, 1])
    Traceback (most recent call last):
    ...
    ValueError: matrix has shape (2,), but finite numbers (d, r) were expected in Mapped. ...
    """

    def __init__(self, matrix: Any, similarity: Any = "gaussian") -> None:
        self.matrix = np.array(numbers(matrix, "matrix"), dtype=np.float64) + 0.0  # 0.0 of -0.0
        if self.matrix.ndim != 2 or not np.isfinite(self.matrix).all():
            nan = "" if np.isfinite(self.matrix).all() else " and NaN or infinity in it"
            raise ValueError(
                f"matrix has shape {self.matrix.shape}{nan}, but finite numbers (d, r) were expected in "
                "Mapped. Give it a row for each coordinate of the keys; np.diag(scales) weighs them."
            )
        if as_similarity(similarity).backward is None or isinstance(similarity, Bilinear):
            raise TypeError(
                f"similarity is {brief(similarity)}, but a name or InverseDistance(delta) was expected in "
                "Mapped. Multiply the W of a Bilinear by the matrix on both sides instead."
            )
        self.matrix.flags.writeable = False
        self.similarity = similarity

    def __call__(self, queries: Array, keys: Array) -> Floats:
        """Return the scores (m, b) of queries (m, d) and keys (b, d)."""
        if (d := keys.shape[1]) != len(self.matrix):
            raise ValueError(
                f"the keys have width {d}, but width {len(self.matrix)} was expected by {self!r}, whose "
                "matrix has a row for each coordinate. Give it another matrix, or set another similarity."
            )
        # einsum goes row by row, so that equal vectors stay equal in every batch.
        q, k = (np.einsum("md,dr->mr", x, self.matrix) for x in (queries, keys))
        return score_pairs(as_similarity(self.similarity), q, k)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapped) and (
            same(self.matrix, other.matrix) and self.similarity == other.similarity
        )

    def __reduce__(self) -> Any:
        return Mapped, (self.matrix, self.similarity)  # so that the matrix of a copy is read-only too

    def __hash__(self) -> int:
        return hash((self.matrix.tobytes(), self.similarity))

    def __repr__(self) -> str:
        return f"Mapped({self.matrix.shape[0]} x {self.matrix.shape[1]}, {self.similarity!r})"


# ---- losses --------------------------------------------------------------------------------------


def _as_loss(loss: Any, targets: Any, shares: bool, weight: Any, caller: str) -> Loss:
    """Return what maps answers (m, ...) to their loss and its gradient.

    `targets` are numbers (m, ...), or classes (m,) for cross-entropy, of which answers are shares or logits.
    """
    if callable(loss):
        targets = targets.view()
        targets.flags.writeable = False

        def called(answers: Floats) -> tuple[float, Floats]:
            found = loss(answers, targets)
            if isinstance(found, tuple) and len(found) == 2:
                value, slopes = (numbers(x, "the result of the loss") for x in found)
                if value.shape == () and slopes.shape == answers.shape:
                    return float(value), slopes.astype(np.float64)
            raise ValueError(
                f"the loss returned {brief(found)}, but a pair of a number and its gradient with respect "
                f"to the answers, of shape {answers.shape}, was expected in {caller}. Return both."
            )

        return called
    if loss == "squared":
        share = np.broadcast_to(_to_mean(weight, targets), targets.shape) / max(1, targets[:1].size)

        def squared(answers: Floats) -> tuple[float, Floats]:
            off = answers - targets
            return float((share * off * off).sum()), 2 * share * off

        return squared
    one_hot_weight = _to_mean(weight, targets)

    def cross_entropy(answers: Floats) -> tuple[float, Floats]:
        if shares:
            safe = np.maximum(answers, 0) + LEAST_SHARE
            log = np.log(np.minimum(safe, 1))
            return -float((one_hot_weight * targets * log).sum()), -one_hot_weight * targets / safe
        z = answers - answers.max(axis=1, keepdims=True)
        log = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return -float((one_hot_weight * targets * log).sum()), one_hot_weight * (
            np.exp(log) * targets.sum(axis=1, keepdims=True) - targets
        )

    return cross_entropy


def _to_mean(weight: Any, targets: Array) -> Floats:
    """Return the share of each row in a weighted mean, broadcastable to targets (m, ...)."""
    weight = np.ones(len(targets)) if weight is None else weight
    return (weight / weight.sum()).reshape(-1, *[1] * (targets.ndim - 1))


def _check_loss(loss: Any, caller: str) -> None:
    if not callable(loss) and loss not in ("squared", "cross_entropy"):
        raise (ValueError if isinstance(loss, str) else TypeError)(
            f"loss is {brief(loss)}, but 'squared', 'cross_entropy' or a function was expected in {caller}. "
            "A function takes answers and targets, and returns a number and its gradient."
        )


def _check_weight(weight: Any, count: int, caller: str) -> Any:
    if weight is None:
        return None
    array = np.asarray(numbers(weight, "sample_weight"), dtype=np.float64)
    if array.shape != (count,) or not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise ValueError(
            f"sample_weight is {brief(weight)}, but {count} numbers from 0 to infinity, not all 0, were "
            f"expected in {caller}: one for each target. Give 0 to what shall not count."
        )
    return array / array.max()  # whose sum cannot overflow


def _check_targets(targets: Any, shape: tuple[int, ...], caller: str, single: bool = False) -> Floats:
    """Return targets (m, ...); that of a single query comes without the first axis."""
    array = np.asarray(numbers(targets, "targets"), dtype=np.float64)
    if array.shape != (wanted := shape[1:] if single else shape):
        raise ValueError(
            f"targets have shape {array.shape}, but {wanted} was expected in {caller}: one answer for each "
            "query. Reshape them, or give as many targets as queries."
        )
    array = array.reshape(shape)
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0, 0])
        raise ValueError(
            f"target {row} holds NaN or infinity, but finite numbers were expected in {caller}. Leave such "
            "rows out of queries and targets."
        )
    return array


# ---- the search ----------------------------------------------------------------------------------


class _Search:
    """Keeps the best of what was tried, and shows how far the search has come."""

    def __init__(self, progress: bool, total: int, caller: str) -> None:
        self.best: tuple[float, Any] = (math.inf, None)
        self.history: dict[str, list[float]] = {}
        self.caller, self.bar, self.tried = caller, None, 0
        if progress:
            try:
                from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
            except ImportError:
                return
            self.bar = tqdm(total=total, desc=caller, leave=False, file=sys.stderr)

    def see(self, loss: float, x: Any, slopes: Any = 0.0) -> None:
        """Remember what was tried, if it is the best."""
        self.tried += 1
        if not (math.isfinite(loss) and np.isfinite(slopes).all()):
            wrong = "its gradient holds NaN or infinity" if math.isfinite(loss) else "no finite number"
            if self.best[1] is None:
                raise ValueError(
                    f"the loss is {loss} before anything was learned, but a finite number was expected in "
                    f"{self.caller}. Look at the targets, and at what the loss makes of the first answers."
                )
            raise FloatingPointError(f"the loss became {loss}, {wrong}: this is the best before that")
        if loss < self.best[0]:
            self.best = loss, np.array(x)

    def step(self, **seen: float) -> None:
        """Add a step to the history."""
        for name, value in seen.items():
            self.history.setdefault(name, []).append(value)
        if self.bar is not None:
            self.bar.set_postfix(seen)
            self.bar.update()

    def run(self, search: Callable[[], Any]) -> Any:
        """Return the optimizer's result; the best so far where the search was stopped."""
        try:
            with np.errstate(all="ignore"):  # what is not finite is told
                result = search()
        except KeyboardInterrupt:
            if self.best[1] is None:
                raise
            result = _result(status=99, message="interrupted: this is the best so far", nfev=self.tried)
        except FloatingPointError as reason:
            result = _result(status=99, message=str(reason), nfev=self.tried)
        finally:
            if self.bar is not None:
                self.bar.close()
        result.fun, result.x = self.best
        result.history = {name: np.array(seen) for name, seen in self.history.items()}
        return result


def _result(**fields: Any) -> Any:
    """Return the result of a search that did not come to its end."""
    from scipy.optimize import OptimizeResult

    result: Any = OptimizeResult()
    result.update(success=False, **fields)
    return result


def _alike(one: float, other: float, noise: float) -> bool:
    """Tell whether two losses differ by rounding alone."""
    return abs(one - other) <= max(1e-12 * max(abs(one), abs(other)), noise)


def _spread(x: Floats) -> float:
    """Return how widely the numbers of an array are spread, by which the optimizer measures its steps."""
    top = float(np.abs(x).max(initial=0)) or 1.0
    return float((x / top).std()) * top or top if x.size > 1 else 1.0


def _minimize(
    objective: Objective, starts: list[Arrays], limits: dict[str, Any], max_iter: int, progress: bool,
    caller: str, heat: Any = (), noise: float = 0.0,
) -> tuple[Arrays, Any]:  # fmt: skip
    """Return what makes the objective least, from the best of some starts, and the optimizer's result.

    All starts take the best log T of `heat`, if any: its first, unless another is better by more than
    rounding, by which a loss near 0 is off by at most `noise`.
    """
    from scipy.optimize import minimize

    shapes = {name: x.shape for name, x in starts[0].items()}
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])

    def unpack(x: Floats) -> Arrays:
        pieces = np.split(x, ends[:-1])
        return {name: piece.reshape(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}

    def pack(arrays: Arrays) -> Floats:
        return np.concatenate([np.ravel(arrays[name]) for name in shapes])

    search = _Search(progress, max_iter * len(starts), caller)
    scale = 1.0  # the optimizer's tolerances are for losses near one
    unit = pack({name: np.full(x.shape, _spread(x)) for name, x in starts[0].items()})

    def loss_at(start: Arrays) -> float:
        loss, _ = objective(start, False)
        search.see(loss, pack(start))
        return loss

    def tried(x: Floats) -> tuple[float, Floats]:
        loss, found = objective(unpack(x * unit), True)
        slopes = pack(found)
        search.see(loss, x * unit, slopes)
        return loss / scale, slopes * unit / scale

    def step(intermediate_result: Any) -> None:
        x = unpack(intermediate_result.x)
        warmth = {"temperature": float(np.exp(x["temperature"]))} if "temperature" in x else {}
        search.step(loss=float(intermediate_result.fun) * scale, **warmth)

    free: Any = (-math.inf, math.inf)
    bounds = [limits.get(name, free) for name, shape in shapes.items() for _ in range(math.prod(shape))]

    def all_starts() -> Any:
        nonlocal scale
        results, warm = [], {}
        if len(heat):
            trials = [{**starts[0], "temperature": np.array(x)} for x in heat]
            losses = np.array([loss_at(trial) for trial in trials])
            best = 0 if _alike(losses[0], losses.min(), noise) else int(losses.argmin())
            search.best = losses[best], pack(trials[best])
            warm = {"temperature": trials[best]["temperature"]}
        for start in ({**start, **warm} for start in starts):
            scale = max(abs(loss_at(start)), 1e8 * noise) or 1.0
            options: Any = {"maxiter": max_iter, "ftol": 1e-10, "gtol": 1e-7}
            result: Any = minimize(tried, pack(start) / unit, jac=True, method="L-BFGS-B", bounds=bounds,
                                   callback=step, options=options)  # fmt: skip
            result.fun, result.jac = result.fun * scale, result.jac * scale / unit
            results.append(result)
        least = min(results, key=lambda result: float(result.fun))
        least.nfev, least.nit = (sum(r[name] for r in results) for name in ("nfev", "nit"))
        return least

    result = search.run(all_starts)
    return unpack(result.x), result


# ---- what is learned of a SoftDict ---------------------------------------------------------------


class _Task:
    """Queries, targets and a SoftDict whose parts are on trial."""

    def __init__(
        self, sd: SoftDict, queries: Any, targets: Any, loss: Any, exclude_self: Any, weight: Any, caller: str
    ) -> None:
        if not isinstance(sd, SoftDict):
            raise TypeError(
                f"what learns is {brief(sd)}, but a SoftDict was expected in {caller}. Make one: "
                "SoftDict(entries), or SoftDict.from_arrays(keys, values)."
            )
        _check_loss(loss, caller)
        if not (exclude_self is None or isinstance(exclude_self, (bool, np.bool_))):
            raise TypeError(
                f"exclude_self is {brief(exclude_self)}, but True, False or None was expected in {caller}. "
                "None leaves each query that names an entry out of its own answer."
            )
        self.tied = queries is None  # every entry asks
        asked = sd._everyone() if self.tied else sd._read(queries)
        keys = sd._store.arrays()[0]
        rows = _rows(sd, asked, keys, bool(exclude_self))
        leave = exclude_self is None or exclude_self
        self.settings, self.skip = dict(sd._settings), rows if leave else None
        if len(sd) == 1 and self.skip is not None and (self.skip == 0).any():
            raise ValueError(
                f"there is one entry, but at least two were expected in {caller}, which leaves each entry "
                "out of its own answer. Add entries, or ask with other queries."
            )
        if not len(asked.vectors):
            raise ValueError(f"there is no query, but at least one was expected in {caller}. Give some.")
        self.query, self.keys = asked.vectors.astype(np.float64), keys.astype(np.float64)
        self.values: Any  # (n, e)
        self.classes, self.values, wanted = _sides(sd, rows, targets, loss, asked, caller)
        weight = _check_weight(weight, len(self.query), caller)
        shape = sd._store.value_shape or ()
        self.shape = (len(self.query), *(shape if self.classes is None else self.values.shape[1:]))
        self.loss = _as_loss(loss, wanted, True, weight, caller)
        with np.errstate(all="ignore"):
            nothing, _ = self.loss(np.zeros(self.shape))
        self.noise = 1e-28 * abs(nothing) if math.isfinite(nothing) else 0.0  # of a loss near 0
        if isinstance(sd.similarity, Mapped):
            sd.similarity(self.query[:1], self.keys[:1])  # complains of a wrong width
        self.rules, self.matrix, self.both = _base(sd.similarity)
        self.settings["similarity"] = self.rules

    def _mapped(self, learned: Arrays) -> tuple[Floats, Floats]:
        """Return queries and keys as the engine compares them."""
        keys, matrix = learned.get("keys", self.keys), learned.get("similarity", self.matrix)
        query = keys if self.tied else self.query
        if matrix is None:
            return query, keys
        return query @ matrix, keys @ matrix if self.both else keys

    def __call__(self, learned: Arrays, slopes: bool = True) -> tuple[float, Arrays]:
        """Return the loss, and its gradient with respect to what is learned."""
        (query, keys), values, settings = (
            self._mapped(learned),
            learned.get("values", self.values),
            self.settings,
        )
        if "temperature" in learned:
            settings = {**settings, "temperature": math.exp(learned["temperature"])}
        answers, _ = answer(Source(query, keys, values, Masks(None, None, self.skip)), settings)
        loss, g = self.loss(answers.reshape(self.shape))
        if not slopes:
            return loss, {}
        call = Call((), query, keys, values, None, None, False, False, np.float64)
        shapes = [query.shape, keys.shape, values.shape, ()]
        dq, dk, dv, dt = gradients_of(call, shapes, g.reshape(answers.shape), settings, skip=self.skip)
        found = {"values": dv, "temperature": dt * min(settings["temperature"], 1e308)}  # inf: nothing but 0
        own, matrix = learned.get("keys", self.keys), learned.get("similarity", self.matrix)
        if matrix is not None:
            found["similarity"] = (own if self.tied else self.query).T @ dq + (own.T @ dk if self.both else 0)
            dq, dk = dq @ matrix.T, dk @ matrix.T if self.both else dk
        found["keys"] = dk + (dq if self.tied else 0)
        return loss, {name: found[name] for name in learned}

    def start(self, names: list[str]) -> Arrays:
        """Return where the search starts."""
        if "similarity" in names and self.matrix is None:
            self.matrix = np.eye(self.keys.shape[1])
            if self.rules in ("dot", "scaled_dot"):
                self.matrix /= math.sqrt(len(self.matrix)) if self.rules == "scaled_dot" else 1
                self.rules, self.both = "dot", False
                self.settings["similarity"] = "dot"
        first = {
            "temperature": np.zeros(()),
            "keys": self.keys,
            "values": self.values,
            "similarity": self.matrix,
        }
        return {name: first[name] for name in names}

    def limits(self) -> Any:
        """Return the bounds of log T that the data set: where the best answers alone, and where all do.

        None where no temperature makes a difference.
        """
        query, keys = self._mapped({})
        some = slice(None, None, -(-len(query) // 100))  # a hundred show the spread
        with np.errstate(all="ignore"):
            skip = None if self.skip is None else self.skip[some]
            scores = score(query[some], keys, Masks(None, None, skip), self.settings)
            seen = np.isfinite(scores)
            best = scores.max(axis=1, keepdims=True, initial=-math.inf, where=seen)
            spread = np.where(seen, best - scores, 0)
            if not spread.any():
                return None
            gaps = np.where(spread > 0, spread, math.inf).min(axis=1)
            low = float(np.median(gaps[gaps < math.inf])) / 10
            low, high = np.log([max(low, spread.max() * 1e-12), spread.max()])
        return tuple(np.clip([low, high + math.log(30)], -744, 709).tolist())  # what T can be


def _rows(sd: SoftDict, asked: Asked, keys: Array, strict: bool) -> Any:
    """Return the entry that each query names, -1 for none (m,)."""
    if asked.rows is None and np.array_equal(asked.vectors, keys):
        return np.arange(len(keys))
    return own_rows(sd._store, asked, strict)


def _sides(
    sd: SoftDict, rows: Any, targets: Any, loss: Any, asked: Asked, caller: str
) -> tuple[Any, Floats, Any]:
    """Return the classes, if any, the values (n, e) that blend, and the targets (m, ...)."""
    store, m = sd._store, len(asked.vectors)
    values = None if store.value_shape is None else store.arrays()[1].astype(np.float64)
    if targets is None and (rows < 0).any():
        raise ValueError(
            f"query {int(np.argmax(rows < 0))} names no entry, but queries that are stored keys were "
            f"expected in {caller} without targets, since their own values are the targets then. Give "
            "targets."
        )
    shape, one = store.value_shape or (), asked.single
    if loss != "cross_entropy":
        if values is None:
            raise TypeError(sd._cannot_blend())
        if targets is None:
            return None, values, values[rows].reshape(m, *shape)
        return None, values, _check_targets(targets, (m, *shape), caller, one)
    if values is not None and len(shape) == 1 and (values >= 0).all() and np.allclose(values.sum(axis=1), 1):
        classes: list[Any] = list(range(values.shape[1]))  # values are shares of classes already
        if is_value(targets) and numbers(targets, "targets").ndim == 2 - one:
            wanted = _check_targets(targets, (m, len(classes)), caller, one)
            if (wanted < 0).any() or not np.allclose(wanted.sum(axis=1), 1):
                raise ValueError(
                    f"targets are {brief(targets)}, but shares of classes, from 0 and summing to one, or the "
                    f"classes themselves, were expected in {caller} with loss='cross_entropy'. Divide each "
                    "row by its sum."
                )
            return classes, values, wanted
    else:
        own: Any = store.objects if values is None else values.reshape(len(values), *shape).tolist()
        try:
            classes = list(dict.fromkeys(own))
        except TypeError:
            raise TypeError(
                f"the values are {brief(own[0])} and the like, which cannot be classes, but objects or "
                f"numbers, or vectors of shares that sum to one, were expected in {caller} with "
                "loss='cross_entropy'. Use loss='squared'."
            ) from None
        values = _one_hot(own, classes, caller)
    if targets is None:
        return classes, values, values[rows]
    given = [targets] if one else _listed(targets, "targets", caller)
    if len(given) != m:
        raise ValueError(
            f"there are {len(given)} targets for {m} queries, but one for each was expected in {caller}. "
            "Give each query the class that it should find."
        )
    return classes, values, _one_hot(given, classes, caller)


def _listed(given: Any, name: str, caller: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise TypeError(
            f"{name} is {brief(given)}, but a list or an array was expected in {caller}. Put a single one "
            "into a list."
        ) from None


def _one_hot(things: Iterable[Any], classes: list[Any], caller: str) -> Floats:
    """Return a one in the place of each thing among the classes (m, number of classes)."""
    places, codes = {name: place for place, name in enumerate(classes)}, []
    for thing in things:
        name = thing.item() if isinstance(thing, np.generic) else thing
        try:
            codes.append(places[name])
        except (KeyError, TypeError):
            raise ValueError(
                f"the target {brief(name)} is no class, but one of {brief(classes)} was expected in "
                f"{caller}, as the values are. Leave out what no entry can answer."
            ) from None
    return np.equal.outer(codes, np.arange(len(classes))).astype(np.float64)


def _base(similarity: Any) -> tuple[Any, Any, bool]:
    """Return what the engine compares by, the matrix before it, and whether keys meet the matrix too."""
    if isinstance(similarity, Mapped):
        return similarity.similarity, similarity.matrix, True
    if isinstance(similarity, Bilinear):
        return "dot", similarity.W, False
    return similarity, None, True


def _renewed(sd: SoftDict, task: _Task, learned: Arrays) -> SoftDict:
    """Return a new SoftDict in which what was learned stands in its place."""
    new, store = sd.copy(), sd._store
    if "temperature" in learned:
        new.temperature = float(np.exp(learned["temperature"]))
    if "similarity" in learned:
        matrix = learned["similarity"]
        new.similarity = Mapped(matrix, task.rules) if task.both else Bilinear(matrix)
    if learned.keys() & {"keys", "values"}:
        with np.errstate(over="ignore"):  # what becomes infinite in float32 is refused
            keys, values = (
                learned.get(name, old).astype(old.dtype)
                for name, old in zip(("keys", "values"), store.arrays(), strict=True)
            )
        names, taken = list(store.names), set()
        check_rows(keys, values, lambda row: brief(names[row]))
        for i in (i for i, name in enumerate(names) if store.is_own(name)):
            while (name := row_names(keys[i : i + 1], store.key_shape)[0]) in taken:
                keys[i, 0] = np.nextafter(keys[i, 0], math.inf)  # two that became equal stay two
            taken.add(name)
            names[i] = name
        new._store.clear()
        shapes = store.key_shape, store.value_shape
        new._store.adopt(Entries(names, store.own, keys, values, store.objects and [*store.objects], *shapes))
    return new


#: What is said where there is nothing to choose by.
ALIKE = "every temperature answers alike: it is left as it was"


def _tell_bound(result: Any, x: float, limits: Any) -> None:
    """Say so where log T lies at one of the bounds that the data set."""
    low, high = (limits is not None and abs(x - limits[side]) < 0.02 for side in (0, 1))
    result.at_bound = "lower" if low else "upper" if high else None
    if result.at_bound:
        best = (
            "the hardest lookup is best, so that T is as low"
            if low
            else "the plain mean is best, so that T is as high"
        )
        result.message = f"{best} as the data let it be: {result.message}"


def _check_learn(learn: Any, known: tuple[str, ...], caller: str) -> list[str]:
    names = [learn] if isinstance(learn, str) else _listed(learn, "learn", caller)
    if not names or (unknown := [name for name in names if name not in known]):
        raise ValueError(
            f"learn is {brief(learn)}, but some of {', '.join(map(repr, known))} were expected in {caller}"
            f"{f', and {brief(unknown[0])} is none of them' if names else ''}. Name what shall change."
        )
    return list(dict.fromkeys(names))


def _starts(first: Arrays, restarts: Any, rng: Any, caller: str) -> list[Arrays]:
    """Return the first start, and others around it."""
    count = check_count("restarts", restarts, f"in {caller}. It is how many more starts to try", 0)
    rng = as_generator(rng, f"in {caller}. Restarts come from it")

    def moved(name: str, x: Floats) -> Floats:
        return x if name == "temperature" else x + rng.normal(size=x.shape) * _spread(x)

    return [first, *({name: moved(name, x) for name, x in first.items()} for _ in range(count))]


def _decayed(objective: Objective, weight_decay: Any, caller: str) -> Objective:
    """Return the objective plus `weight_decay` times the squares of all but the temperature."""
    decay = check_number("weight_decay", weight_decay, lambda x: 0 <= x < math.inf, "a number from 0",
                         f"in {caller}. Give 0 to let what is learned grow freely")  # fmt: skip

    def whole(learned: Arrays, slopes: bool) -> tuple[float, Arrays]:
        loss, found = objective(learned, slopes)
        for name in learned.keys() - {"temperature"} if decay else ():
            loss += decay * float((learned[name] ** 2).sum())
            if slopes:
                found[name] = found[name] + 2 * decay * learned[name]
        return loss, found

    return whole


def _examples(
    layer: SelfAttention, d_out: int, sequences: Any, targets: Any, loss: Any, weight: Any
) -> tuple[list[Floats], Any, Any, list[int]]:
    """Return words (n, d_model) of each sequence, targets and weights of all words, and their numbers."""
    words = []
    for i, given in enumerate(_listed(sequences, "sequences", "fit_attention")):
        x = np.asarray(numbers(given, f"sequence {i}"), dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != len(layer.w_q) or not np.isfinite(x).all():
            raise ValueError(
                f"sequence {i} has shape "
                f"{x.shape}{'' if np.isfinite(x).all() else ' and NaN or infinity in it'}, but finite "
                f"numbers (n, {len(layer.w_q)}) were expected in fit_attention. Give each word a row; "
                "sequences of several lengths are a list of arrays, without padding."
            )
        words.append(x)
    lengths = [len(x) for x in words]
    if not sum(lengths):
        raise ValueError(
            "sequences hold no word, but at least one was expected in fit_attention. Give arrays (n, "
            "d_model)."
        )
    together = {"targets": targets, **({} if weight is None else {"sample_weight": weight})}
    for name, given in together.items():
        given = _listed(given, name, "fit_attention")
        own = [len(x) if hasattr(x, "__len__") and getattr(x, "shape", None) != () else -1 for x in given]
        if own != lengths:
            raise ValueError(
                f"{name} have the lengths {brief(own)} and sequences {brief(lengths)}, but equal ones were "
                "expected in fit_attention: one for each word. Give them in the form of sequences."
            )
        free = callable(loss) and name == "targets"  # arrays of anything
        rows = [
            x if free and is_array(x) else numbers(x, f"item {i} of {name}")
            for i, x in enumerate(given)
            if len(x)
        ]
        if len(shapes := {x.shape[1:] for x in rows}) > 1:
            raise ValueError(
                f"{name} of words have the shapes {brief(sorted(shapes))}, but one shape was expected in "
                "fit_attention. Give every word as many numbers."
            )
        together[name] = np.concatenate(rows)
    count = sum(lengths)
    found = together["targets"]
    if loss == "cross_entropy":
        if found.ndim != 1 or not np.isin(found, np.arange(d_out)).all():
            raise ValueError(
                f"targets are {brief(found)}, but whole numbers from 0 to {d_out - 1}, one for each word, "
                "were expected in fit_attention with loss='cross_entropy', since answers have d_out "
                "numbers. Give the place of the right class."
            )
        found = np.equal.outer(found, np.arange(d_out)).astype(np.float64)
    elif not callable(loss):
        found = _check_targets(found, (count, d_out), "fit_attention")
    return words, found, _check_weight(together.get("sample_weight"), count, "fit_attention"), lengths


# ---- the public functions ------------------------------------------------------------------------


def fit(
    sd: SoftDict, queries: Any = None, targets: Any = None, *, learn: Any = ("temperature",),
    loss: Any = "squared", exclude_self: bool | None = None, sample_weight: Any = None,
    weight_decay: float = 0.0, restarts: int = 0, rng: Any = None, max_iter: int = 200, progress: bool = True,
) -> tuple[SoftDict, Any]:  # fmt: skip
    """Learn temperature, keys, values or the similarity of a SoftDict from queries and their targets.

    The SoftDict's own similarity is kept, gaussian by default, and its settings all apply.

    **Equivalent to:** ``scipy.optimize.minimize(lambda x: np.mean((made_of(x)[queries] - targets) ** 2), x0,
    method="L-BFGS-B", jac=...)``, where x holds log T, keys, values or matrix.

    Parameters
    ----------
    sd : SoftDict
        Where to start. It is left alone.
    queries : as for ``sd[queries]``, optional
        m queries; without them every entry asks, and asks with its new key where keys are learned.
    targets : array of shape `(m, *value_shape)`, or m classes, optional
        What should be answered; without them the stored values of the entries that ask.
    learn : str or sequence of str
        Any of "temperature", "keys", "values" and "similarity": a linear map before the similarity, which
        becomes `Mapped`, or `Bilinear` where it is a dot product.
    loss : {"squared", "cross_entropy"} or callable
        The mean of squares; the mean of ``-log(share of the right class)``, where distinct values are the
        classes, or values are themselves shares (n, classes); or ``loss(answers, targets) -> (number,
        gradient)``, both with the shape of the answers.
    exclude_self : bool, optional
        Whether each query leaves the entry that it names, or whose row it is, out of its own answer; by
        default those that name one do. Otherwise T shrinks to 0 and every entry finds itself.
    sample_weight : array of shape (m,), optional
        How much each target counts in a named loss.
    weight_decay : float
        What the sum of squares of keys, values and map, as far as they are learned, is multiplied by.
    restarts : int
        How many more starts to try, around the first; the best is taken.
    rng : numpy.random.Generator or int, optional
        Where the restarts come from.
    max_iter : int
        How many steps at most, from each start.
    progress : bool
        Whether to show a bar, where tqdm is installed.

    Returns
    -------
    new : SoftDict
        With what was learned. In a dict without labels, learned keys are the new names.
    result : scipy.optimize.OptimizeResult
        The optimizer's own, for the best start, with `fun`, the least loss, and `history`: a dict of arrays
        "loss" and, where it is learned, "temperature", by step; and then `at_bound`, as in `fit_temperature`.

    Raises
    ------
    KeyError
        For an empty SoftDict, and for unknown names among the queries.
    TypeError, ValueError
        For targets that do not fit or are not finite, a single entry that is left out of its own answer,
        settings without a derivative, and a loss that is not finite at the start.

    Notes
    -----
    L-BFGS-B on log T and the rest at once: Byrd, Lu, Nocedal, Zhu, 1995. T starts at the best of some
    values between bounds that the data set, those of `fit_temperature`. Each step costs some five lookups.
    Ctrl-C returns the best so far, with `result.success` False. Other starts may find other minima. Where
    all temperatures answer alike T stays as it was. Names of learned keys that became equal differ by their
    last bit.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import SoftDict, fit
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=(100, 2))
    >>> sd = SoftDict.from_arrays(x, np.sin(9 * x[:, 0]))  # the second coordinate says nothing
    >>> new, result = fit(sd, learn=["temperature", "similarity"])  # each entry asks, itself left out
    >>> first, second = np.linalg.norm(new.similarity.matrix, axis=1)
    >>> bool(result.fun < 0.01), bool(first > 20 * second), sd.temperature
    (True, True, 1.0)
    >>> fit(sd, [[0.1, 0.2], [0.3, 0.4]], [0.5])
    Traceback (most recent call last):
    ...
    ValueError: targets have shape (1,), but (2,) was expected in fit: one answer for each query. ...
    """
    names = _check_learn(learn, LEARN, "fit")
    task = _Task(sd, queries, targets, loss, exclude_self, sample_weight, "fit")
    check_smooth(task.settings)
    if "values" in names and (task.classes is not None or sd._store.objects is not None):
        raise TypeError(
            "learn names the values, but values that are numbers, and loss='squared' or a function, were "
            "expected in fit, since learned values are no classes and no objects. Learn keys, similarity "
            "and temperature."
        )
    limits, start, heat = None, task.start(names), []
    if "temperature" in names:
        limits, own = task.limits(), math.log(min(max(sd.temperature, 1e-300), 1e300))
        heat = [own] if limits is None else [np.clip(own, *limits), *np.linspace(limits[0], limits[1], 16)]
    elif sd.temperature in (0, math.inf) and names != ["values"]:
        raise ValueError(
            f"temperature is {sd.temperature:g}, but a number between 0 and infinity was expected in fit, "
            "since at the ends of the dial nothing but the values has a slope. Learn the temperature too, "
            "or set one."
        )
    count = check_count("max_iter", max_iter, "in fit. It is how many steps to take at most")
    learned, result = _minimize(
        _decayed(task, weight_decay, "fit"), _starts(start, restarts, rng, "fit"),
        {"temperature": limits or (None, None)}, count, progress, "fit", heat, task.noise,
    )  # fmt: skip
    if "temperature" in names:
        _tell_bound(result, float(learned["temperature"]), limits)
    return _renewed(sd, task, learned), result


def fit_temperature(
    sd: SoftDict, queries: Any = None, targets: Any = None, *, loss: Any = "squared",
    exclude_self: bool | None = None, sample_weight: Any = None, progress: bool = True,
) -> tuple[SoftDict, Any]:  # fmt: skip
    """Choose the temperature with which the entries, each left out of its own answer, answer best.

    Under the default, gaussian, T is the bandwidth squared of a kernel regression.

    **Equivalent to:** ``min(grid, key=lambda T: np.mean((sd.at(temperature=T).self_attention(
    exclude_self=True).value - sd.value_vectors) ** 2))``, over a grid from hard to average, refined.

    Parameters
    ----------
    sd, queries, targets, loss, exclude_self, sample_weight, progress
        As in `fit`. No derivative is needed: similarity and weighting may be functions.

    Returns
    -------
    new : SoftDict
        The same entries, at the temperature found.
    result : scipy.optimize.OptimizeResult
        The optimizer's own, with `fun`, the least loss; `at_bound`, "lower" where the hardest lookup is best,
        "upper" where the plain mean is, else None; and `history`, arrays "temperature" and "loss" of all
        that was tried.

    Raises
    ------
    KeyError, TypeError, ValueError
        As `fit` does.

    Notes
    -----
    Leave-one-out cross-validation for the bandwidth of Nadaraya and Watson, 1964. T lies between a tenth of
    the median gap between best and second best scores, where the best answer nearly alone, and thirty times
    the widest spread of scores, where all answer nearly alike. So it is never 0 or negative, also where keys
    repeat or a coordinate is constant. Where no temperature makes a difference it is left as it was, and
    `result.success` is False. Time of some 20 lookups of all queries.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import SoftDict, fit_temperature
    >>> x = np.linspace(0, 6, 40)
    >>> noisy = np.sin(x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    >>> new, result = fit_temperature(SoftDict.from_arrays(x, noisy))
    >>> round(new.temperature, 2), result.at_bound
    (0.03, None)
    >>> new, result = fit_temperature(SoftDict({0: 5.0, 1: 5.0, 2: 5.0}))  # nothing to learn from
    >>> new.temperature, result.message
    (1.0, 'every temperature answers alike: it is left as it was')
    >>> fit_temperature(SoftDict({0: 5.0}))
    Traceback (most recent call last):
    ...
    ValueError: there is one entry, but at least two were expected in fit_temperature, ...
    """
    from scipy.optimize import minimize_scalar

    task = _Task(sd, queries, targets, loss, exclude_self, sample_weight, "fit_temperature")
    limits = task.limits()
    low, high = limits or (0.0, 0.0)
    grid = np.linspace(low, high, math.ceil((high - low) / STEP) + 1)
    search = _Search(progress, len(grid) + 12, "fit_temperature")

    @functools.cache  # Brent's method begins with what the grid knows
    def tried(x: float) -> float:
        loss, _ = task({"temperature": np.array(x)}, False)
        search.see(loss, x)
        search.step(temperature=math.exp(x), loss=loss)
        return loss

    def all_tried() -> Any:
        losses = np.array([tried(x) for x in grid])
        if _alike(losses.min(), losses.max(), task.noise):
            return _result(status=1, message=ALIKE, nfev=len(grid))
        i = min(max(int(losses.argmin()), 1), len(grid) - 2)
        around = grid[i - 1 : i + 2].tolist()
        how: Any = {"bounds": (around[0], around[2]), "options": {"xatol": 0.01}}
        if losses[i] < min(losses[i - 1], losses[i + 1]):
            how = {"bracket": around, "tol": 0.003 / max(1, abs(around[1]))}
        result: Any = minimize_scalar(tried, **how)
        result.nfev = search.tried
        return result

    result, new = search.run(all_tried), sd.copy()
    if result.message == ALIKE:
        result.at_bound = None
        return new, result
    _tell_bound(result, float(result.x), limits)
    new.temperature = math.exp(result.x)
    return new, result


def fit_attention(
    layer: SelfAttention, sequences: Any, targets: Any, *, learn: Any = None, loss: Any = "squared",
    sample_weight: Any = None, weight_decay: float = 0.0, restarts: int = 0, rng: Any = None,
    max_iter: int = 200, progress: bool = True,
) -> tuple[SelfAttention, Any]:  # fmt: skip
    """Learn the matrices of a layer from sequences and what their words should become.

    Nobody says whom a word should ask: that is found out because it pays.

    **Equivalent to:** ``scipy.optimize.minimize(lambda w: np.mean((SelfAttention(*w)(x) - targets) ** 2), w0,
    method="L-BFGS-B", jac=...)``.

    Parameters
    ----------
    layer : SelfAttention
        Where to start, for example `SelfAttention.random(d_model, rng=0)`. It is left alone.
    sequences : array of shape (s, n, d_model), or list of arrays (n, d_model) of any lengths
        The words of each sequence.
    targets : array of shape (s, n, d_out), or (s, n) of classes from 0 to d_out - 1, or lists like sequences
        What each word should become; for cross-entropy the class of each, of which the answers are logits.
    learn : str or sequence of str, optional
        Any of "w_q", "w_k", "w_v" and "w_o"; by default those that the layer has. Its biases stay.
    loss : {"squared", "cross_entropy"} or callable
        As in `fit`, over all words of all sequences, one after the other.
    sample_weight : array of shape (s, n), or list like sequences, optional
        How much each word counts in a named loss; 0 for words whose answer does not matter.
    weight_decay, restarts, rng, max_iter, progress
        As in `fit`.

    Returns
    -------
    new : SelfAttention
        The layer with the matrices learned.
    result : scipy.optimize.OptimizeResult
        As in `fit`.

    Raises
    ------
    TypeError, ValueError
        For sequences and targets that do not fit each other or the layer, or are not finite, for settings
        without a derivative, and for a loss that is not finite at the start.

    Notes
    -----
    Each step costs some five calls of the layer. Sequences of one length are asked together.

    Examples
    --------
    >>> import numpy as np
    >>> from softdict import SelfAttention, fit_attention
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(20, 5, 3))
    >>> teacher = SelfAttention.random(3, rng=1)
    >>> student, result = fit_attention(SelfAttention.random(3, rng=2), x, teacher(x))
    >>> bool(result.history["loss"][0] > 0.01), bool(result.fun < 1e-5)
    (True, True)
    >>> fit_attention(teacher, x, x[:, :, 0])
    Traceback (most recent call last):
    ...
    ValueError: targets have shape (100,), but (100, 3) was expected in fit_attention: ...
    """
    if not isinstance(layer, SelfAttention):
        raise TypeError(
            f"layer is {brief(layer)}, but a SelfAttention was expected in fit_attention. Make one with "
            "SelfAttention.random(d_model), or learn a SoftDict with fit."
        )
    if (xp := library(*vars(layer).values(), *layer.biases)) is not None:
        raise TypeError(
            f"layer holds tensors of {xp.__name__}, but NumPy's arrays were expected in fit_attention, since "
            "scipy.optimize learns them. Learn tensors by an optimizer of their own library, or hand in "
            "arrays: layer.w_q.detach().numpy()."
        )
    has = tuple(name for name in MATRICES if getattr(layer, name) is not None)
    names = _check_learn(has if learn is None else learn, has, "fit_attention")
    _check_loss(loss, "fit_attention")
    check_smooth({**layer._settings(), "min_score": None})
    if layer.temperature in (0, math.inf):
        raise ValueError(
            f"temperature is {layer.temperature:g}, but a number between 0 and infinity was expected in "
            "fit_attention, since at the ends of the dial nothing depends smoothly on whom a word asks. "
            "Replace it first."
        )
    heads_out = layer.w_v.shape[1] * layer.heads // (layer.key_heads or layer.heads)
    d_out = heads_out if layer.w_o is None else layer.w_o.shape[1]
    words, wanted, weight, lengths = _examples(layer, d_out, sequences, targets, loss, sample_weight)
    measure = _as_loss(loss, wanted, False, weight, "fit_attention")
    ends = np.cumsum([0, *lengths])
    groups = [np.flatnonzero(np.equal(lengths, n)) for n in sorted(set(lengths) - {0})]
    batches = [
        (np.stack([words[i] for i in some]), ends[some, None] + np.arange(lengths[some[0]]))
        for some in groups
    ]
    sight = {"causal": layer.causal, "window": layer.window, **layer._settings()}

    def objective(learned: Arrays, needed: bool) -> tuple[float, Arrays]:
        trial = replace(layer, **learned)
        out, seen = np.empty((ends[-1], d_out)), []
        for x, rows in batches:
            q, k, v = trial.project(x)
            heads = _side_by_side(attention(q, k, v, **sight))
            out[rows] = _affine(heads, trial.w_o, trial.biases[3])
            seen.append((q, k, v, heads))
        value, slopes = measure(out)
        if not needed:
            return value, {}
        found = {name: np.zeros(w.shape) for name, w in learned.items()}
        for (x, rows), (q, k, v, heads) in zip(batches, seen, strict=True):
            g = slopes[rows]
            if "w_o" in found:
                found["w_o"] += np.einsum("snr,sno->ro", heads, g, optimize=True)
            g = g if trial.w_o is None else g @ trial.w_o.T
            g = g.reshape(*g.shape[:2], layer.heads, -1).swapaxes(1, 2)
            for name, dx in zip(MATRICES, attention_vjp(q, k, v, g, **sight)[:3], strict=False):
                if name in found:
                    found[name] += np.einsum("snd,snr->dr", x, _side_by_side(dx), optimize=True)
        return value, found

    count = check_count("max_iter", max_iter, "in fit_attention. It is how many steps to take at most")
    start = {name: getattr(layer, name).astype(np.float64) for name in names}
    starts = _starts(start, restarts, rng, "fit_attention")
    whole = _decayed(objective, weight_decay, "fit_attention")
    learned, result = _minimize(whole, starts, {}, count, progress, "fit_attention")
    matrices = {name: w.astype(getattr(layer, name).dtype) for name, w in learned.items()}
    return replace(layer, **matrices), result
