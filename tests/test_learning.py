"""Learning: gradients of every objective, leave-one-out against a loop, odd input, what is found."""

import copy
import itertools
import math
import pickle
import re
import sys
import types
from functools import partial

import numpy as np
import oracle
import pytest
import scipy.special

from softdict import (
    Bilinear,
    Entmax,
    InverseDistance,
    Mapped,
    SelfAttention,
    SoftDict,
    fit,
    fit_attention,
    fit_temperature,
    learning,
)
from softdict.encoders import CharNgrams

INF, NAN = math.inf, math.nan
ALL = "temperature", "keys", "values", "similarity"
SIMILARITIES = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5),
    Bilinear(np.diag([1.0, -1.0, 0.5]) + 0.3), Mapped([[1, 0], [2, 1], [0, 0.5]]),
    Mapped(np.eye(3) + 0.2, "cosine"),
]  # fmt: skip
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2)]


def rows(n=7, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def line(n=25, **settings):
    x = np.linspace(0, 6, n)
    return SoftDict.from_arrays(x, np.sin(x), **settings)


def plane(**settings):
    return SoftDict.from_arrays(rows(20, 2), rows(20, 2)[:, 0], **settings)


def quadratic(answers, targets):
    return float(((answers - targets) ** 2).mean()), 2 * (answers - targets) / answers.size


def everything(thing):
    """Return all that a SoftDict or a layer is, as bytes and text."""
    if isinstance(thing, SoftDict):
        store, settings = thing._store, thing._settings
        arrays = [store.keys, store.values]
        return [x.tobytes() for x in arrays], list(thing), repr(settings), repr(store.objects), thing.encoder
    return [x.tobytes() if isinstance(x, np.ndarray) else repr(x) for x in vars(thing).values()]


def learned(function, thing, *given, **options):
    """Learn quietly; what was learned is finite, and what it came from is as it was."""
    arrays = [x for x in (*given, *options.values()) if isinstance(x, np.ndarray)]
    before = everything(thing), [x.tobytes() for x in arrays]
    new, result = function(thing, *given, progress=False, **options)
    assert (everything(thing), [x.tobytes() for x in arrays]) == before
    assert math.isfinite(result.fun) and np.isfinite(result.x).all()
    assert all(np.isfinite(seen).all() for seen in result.history.values())
    if isinstance(new, SoftDict):
        new._store._check()
        assert 0 <= new.temperature <= INF and new is not thing and new._store is not thing._store
        assert all(np.isfinite(x).all() for x in new._store.arrays())
        assert len(new) == len(thing) and new.encoder is thing.encoder
    return new, result


# ---- gradients -----------------------------------------------------------------------------------


def check_slopes(objective, start, tol=1e-6):
    """Compare an objective's slopes with finite differences along random directions."""
    loss, slopes = objective(start, True)
    assert objective(start, False)[0] == loss
    rng = np.random.default_rng(1)
    for name, x in start.items():
        assert slopes[name].shape == np.shape(x)
        for _ in range(2):
            way = rng.normal(size=np.shape(x))
            ahead, behind = (objective({**start, name: x + h * way}, False)[0] for h in (1e-6, -1e-6))
            found, wanted = float((slopes[name] * way).sum()), (ahead - behind) / 2e-6
            assert abs(found - wanted) <= tol * max(abs(wanted), loss, 1e-3), (name, found, wanted)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_slopes_of_every_part_are_those_of_finite_differences(similarity, weighting):
    for settings in ({}, {"null_score": -0.4}, {"top_k": 3}, {"min_score": -2.5, "temperature": 0.7}):
        sd = SoftDict.from_arrays(
            rows(), rows(7, 2, 1), similarity=similarity, weighting=weighting, **settings
        )
        for queries, targets in ((None, None), (rows(5, seed=2), rows(5, 2, 3)), (sd.key_vectors[:4], None)):
            task = learning._Task(sd, queries, targets, "squared", None, None, "fit")
            start = {**task.start(list(ALL)), "temperature": np.array(-0.3)}
            check_slopes(learning._decayed(task, 0.1, "fit"), start)


@pytest.mark.parametrize("loss", ["cross_entropy", quadratic], ids=["cross_entropy", "function"])
@pytest.mark.parametrize("exclude_self", [None, False])
def test_slopes_of_every_loss_are_those_of_finite_differences(loss, exclude_self):
    shares = np.random.default_rng(3).dirichlet([1, 1, 1], size=7)
    of_shares = SoftDict.from_arrays(rows(), shares)
    of_words = SoftDict.from_arrays(rows(), list("abcabca"), labels=list("tuvwxyz"))
    for sd in (of_shares, of_words) if loss == "cross_entropy" else (of_shares,):
        weight = np.arange(7.0)
        task = learning._Task(sd, None, None, loss, exclude_self, weight, "fit")
        check_slopes(task, {**task.start(["keys", "similarity"]), "temperature": np.array(0.2)})


def objective_of(monkeypatch, *given, **options):
    """Return what `fit_attention` minimizes, and from where."""
    caught = []
    with monkeypatch.context() as patch:
        patch.setattr(learning, "_minimize", lambda *args: caught.append(args[:2]) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit_attention(*given, progress=False, **options)
    return caught[0][0], caught[0][1][0]


LAYERS = {
    "plain": {},
    "heads": {"heads": 3},
    "narrow": {"heads": 2, "width": 2, "value_width": 1, "d_out": 4},
    "gaussian": {"similarity": "gaussian", "temperature": 0.5},
    "sparse": {"weighting": "entmax15", "null_score": 0.1},
    "few": {"top_k": 2},
    "biases": {"heads": 3, "biases": ([1, 0, 2], None, [0, 1, 0], [1, 1, 0])},
    "causal": {"causal": True},
    "window": {"window": (1, 0)},
    "grouped": {"heads": 4, "key_heads": 2, "width": 2},
    "one key head": {"heads": 3, "key_heads": 1, "width": 2, "causal": True},
}  # fmt: skip


def layer_of(settings, seed=0, dtype=None):
    own = dict(settings)
    biases = own.pop("biases", None)
    layer = SelfAttention.random(3, rng=seed, dtype=dtype, **own)
    if biases is None:
        return layer
    matrices = [getattr(layer, name) for name in learning.MATRICES]
    return SelfAttention(*matrices, heads=layer.heads, biases=biases)


@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS)
def test_slopes_of_a_layer_are_those_of_finite_differences(settings, monkeypatch):
    x = rows(12).reshape(3, 4, 3)
    layer, teacher = layer_of(settings), layer_of(settings, 1)
    for sequences in (x, [x[0], x[1, :2], x[2, :0], x[2, :1]]):
        targets = [teacher(some) for some in sequences]
        check_slopes(*objective_of(monkeypatch, layer, sequences, targets, weight_decay=0.01))
        classes = [np.arange(len(some)) % 3 for some in sequences]
        check_slopes(*objective_of(monkeypatch, layer, sequences, classes, loss="cross_entropy"))


def test_a_layer_without_w_o_and_a_part_of_it_have_their_slopes(monkeypatch):
    x = rows(12).reshape(3, 4, 3)
    layer = SelfAttention(rows(3, 4), rows(3, 4, 1), rows(3, 6, 2), heads=2)
    check_slopes(*objective_of(monkeypatch, layer, x, layer(x) + rows(4, 6)))
    objective, start = objective_of(monkeypatch, layer_of({}), x, x, learn=("w_k", "w_o"))
    assert list(start) == ["w_k", "w_o"]
    check_slopes(objective, start)


# ---- leaving one out -----------------------------------------------------------------------------


def without_each(sd, temperature):
    """Answer each entry from all the others, slowly."""
    answers = []
    for key, vector in zip(list(sd), sd.key_vectors, strict=True):
        others = sd.copy()
        del others[key]
        answers.append(others.at(temperature=temperature).lookup(vector).value)
    return np.array(answers)


@pytest.mark.parametrize(
    "settings",
    [{}, {"similarity": "cosine"}, {"weighting": "sparsemax"}, {"top_k": 2}, {"null_score": -1.0},
     {"similarity": lambda q, k: -np.abs(q[:, None] - k).sum(axis=-1)}],
    ids=oracle.named,
)  # fmt: skip
def test_leaving_one_out_is_deleting_it_and_asking(settings):
    keys = np.vstack([rows(6, 2), rows(2, 2)])  # two vectors stand there twice
    sd = SoftDict.from_arrays(keys, np.arange(8.0) ** 2, labels=list("abcdefgh"), **settings)
    _, result = learned(fit_temperature, sd)
    for temperature, loss in itertools.islice(zip(*result.history.values(), strict=True), 0, None, 4):
        wanted = np.mean((without_each(sd, temperature) - sd.value_vectors) ** 2)
        assert loss == pytest.approx(wanted, rel=1e-10)


def test_the_hardest_bandwidth_of_three_points_is_not_free():
    sd = SoftDict({0: 0.0, 1: 1.0, 3: 3.0})
    task = learning._Task(sd, None, None, "squared", None, None, "fit")
    assert task({"temperature": np.array(-700.0)}, False)[0] == 2.0
    new, result = learned(fit_temperature, sd)
    assert 0 < new.temperature and result.fun < 2


def test_who_is_left_out():
    sd = line(labels=[f"point {i}" for i in range(25)])
    x = np.linspace(0, 6, 25)
    everyone, _ = learned(fit_temperature, sd)
    for queries in (x, x[:, None], list(sd), sd.key_vectors):
        assert learned(fit_temperature, sd, queries)[0].temperature == everyone.temperature
    assert learned(fit_temperature, sd, exclude_self=False)[1].fun < 1e-9
    assert learned(fit_temperature, sd, list(sd)[::-1])[0].temperature == pytest.approx(everyone.temperature)
    for part in (x[3:9], x + 0.01):  # in a dict with labels, these name nothing
        with pytest.raises(ValueError, match="names no entry"):
            fit_temperature(sd, part, np.sin(part), exclude_self=True)
    own = line()
    half, _ = learned(fit_temperature, own, x[::2])
    for exclude_self in (True, np.True_):
        assert learned(fit_temperature, own, x[::2], exclude_self=exclude_self)[0] == half
    mixed, _ = learned(fit_temperature, own, [0.0, 0.1], [5.0, 5.0])  # the second names none
    assert mixed == own


def test_names_lead_to_their_own_rows_where_all_keys_are_at_one_point():
    sd = SoftDict.from_arrays(np.ones((3, 2)), [1.0, 2.0, 4.0], labels=list("abc"))
    _, result = learned(fit_temperature, sd, ["c", "a", "b"], [4.0, 1.0, 2.0])
    assert result.fun == pytest.approx(np.mean([2.5**2, 2.0**2, 0.5**2]))
    _, own = learned(fit_temperature, sd, ["c", "a", "b"])
    assert own.fun == result.fun


# ---- temperature ---------------------------------------------------------------------------------


def test_a_temperature_at_its_bound_says_so():
    rng = np.random.default_rng(0)
    zigzag = SoftDict.from_arrays(np.arange(50.0), np.resize([1.0, -1.0], 50))
    new, result = learned(fit_temperature, zigzag)
    assert result.at_bound == "upper" and "plain mean" in result.message and new.temperature > 1000
    twice = SoftDict.from_arrays(
        np.repeat(np.arange(9.0), 2), np.repeat(rng.normal(size=9), 2), [*map(str, range(18))]
    )
    for function in (fit, fit_temperature):
        new, result = learned(function, twice)
        assert result.at_bound == "lower" and "hardest" in result.message and 0 < new.temperature < 1
        assert result.fun < 1e-6
        assert learned(function, line(temperature=0), exclude_self=False)[1].at_bound == "lower"
        alone = learned(function, line(), [1.0, 2.0], [9.0, -9.0])[1]
        assert set(alone.history) == {"loss", "temperature"} and (alone.history["temperature"] > 0).all()


@pytest.mark.parametrize("function", [fit, fit_temperature])
@pytest.mark.parametrize(
    "sd",
    [SoftDict({0: 5.0, 1: 5.0, 2: 5.0}), SoftDict({0: 5.1, 1: 5.1, 2: 5.1}, temperature=0.3),
     SoftDict.from_arrays(np.ones((5, 2)), np.arange(5.0), list("abcde")), plane(min_score=5.0),
     plane(null_score=1e9), plane(top_k=1), SoftDict.from_arrays(np.zeros((4, 0)), np.arange(4.0), range(4))],
    ids=["constant", "constant, rounded", "one point", "nobody", "silent", "one each", "no width"],
)  # fmt: skip
def test_where_nothing_depends_on_it_the_temperature_stays(function, sd):
    new, result = learned(function, sd)
    assert new.temperature == sd.temperature and result.at_bound is None
    assert function is fit or (not result.success and "alike" in result.message)


@pytest.mark.parametrize("scale", [1e-160, 1e-150, 1e-8, 1e8, 1e100, 1e150])
def test_units_do_not_matter(scale):
    x = rows(20, 2)
    for keys, values in ((x * scale, x[:, 0]), (x, x[:, 0] * scale)):
        new, result = learned(fit_temperature, SoftDict.from_arrays(keys, values))
        if scale == 1e-160:  # whose squares underflow
            continue
        of_keys, of_values = (1, scale) if keys is x else (scale, 1)
        assert new.temperature / of_keys / of_keys == pytest.approx(0.0644, rel=0.02)
        assert result.fun / of_values / of_values == pytest.approx(0.1137, rel=1e-3)
        if 1e-150 < scale < 1e100:
            _, result = learned(fit, SoftDict.from_arrays(keys, values), learn=ALL, max_iter=60)
            assert result.fun / of_values / of_values < 1e-4


def test_far_from_the_origin_and_in_float32_it_finds_the_same():
    x = rows(20, 2)
    far = SoftDict.from_arrays(x + 1e8, x[:, 0])
    assert learned(fit_temperature, far)[0].temperature == pytest.approx(0.0644, rel=0.01)
    small = SoftDict.from_arrays(x.astype("f"), x[:, 0].astype("f"))
    new, _ = learned(fit, small, learn=ALL, max_iter=5)
    assert new.key_vectors.dtype == new.value_vectors.dtype == np.float32
    assert learned(fit_temperature, small)[0].temperature == pytest.approx(0.0644, rel=0.01)
    for start in (0, 5e-324, 1e-300, 1e300, INF):
        for function in (fit, fit_temperature):
            new, _ = learned(function, plane(temperature=start))
            assert new.temperature == pytest.approx(0.0644, rel=0.01)


@pytest.mark.parametrize("weighting", [*WEIGHTINGS, partial(scipy.special.softmax, axis=1)])
@pytest.mark.parametrize("similarity", [*SIMILARITIES[:6], lambda q, k: -((q[:, None] - k) ** 2).sum(-1)])
def test_a_temperature_fits_every_setting(similarity, weighting):
    for settings in ({}, {"top_k": 4}, {"min_score": -9.0}, {"null_score": -2.0}):
        sd = plane(similarity=similarity, weighting=weighting, **settings)
        new, result = learned(fit_temperature, sd)
        others = [0.5 * new.temperature, 2 * new.temperature, sd.temperature]
        for temperature in [] if result.at_bound else others:
            answers = sd.at(temperature=temperature).self_attention(exclude_self=True).value
            assert result.fun <= np.mean((answers - sd.value_vectors) ** 2) * (1 + 1e-9)
    if callable(similarity) and not isinstance(similarity, InverseDistance):
        with pytest.raises(TypeError, match="derivative is not known"):
            fit(sd)


@pytest.mark.parametrize("function", [fit, fit_temperature])
def test_infinite_scores_of_exact_hits_and_a_callable_loss_below_zero(function):
    learned(function, plane(similarity=InverseDistance(0.0)))
    new, result = learned(function, line(), loss=lambda a, t: (quadratic(a, t)[0] - 5, quadratic(a, t)[1]))
    want, _ = learned(function, line())
    assert result.fun < -4.9 and new.temperature == pytest.approx(want.temperature, rel=0.05)


# ---- odd input -----------------------------------------------------------------------------------

NAMED = plane(labels=[f"r{i}" for i in range(20)])
WORDS = SoftDict({1: "a", 2: "b", 4: "a", 3: "b"})
SHARES = SoftDict.from_arrays(np.arange(6.0), np.eye(3)[[0, 1, 2, 0, 1, 2]])
RIGHT = {
    "one entry, another query": (SoftDict({0: 5.0}), [1.0], [3.0], {}),
    "one entry, in": (SoftDict({0: 5.0}), [0.0], [3.0], {"exclude_self": False}),
    "a constant column": (SoftDict({(0, 1): 5.0, (1, 1): 6.0, (2, 1): 7.0}), None, None, {}),
    "a single query": (line(), 1.3, 0.5, {}),
    "a single vector": (plane(), (1.3, 0.5), 0.5, {}),
    "a single name": (NAMED, "r3", None, {}),
    "names": (NAMED, ["r3", "r5", "r3"], [1, 2, 3], {}),
    "labels that are numbers": (plane(labels=range(20)), [1, 2, 3], None, {}),
    "an encoder": (SoftDict({"cat": 1, "cats": 2, "dog": 5}, encoder=CharNgrams(8)), ["caat"], [1], {}),
    "an encoder of numbers": (SoftDict({1: 1, 2: 1}, encoder=lambda o: [[v, v] for v in o]), None, None, {}),
    "a value_encoder": (SoftDict({1: "a", 2: "bb"}, value_encoder=lambda o: [*map(len, o)]), None, None, {}),
    "matrices": (SoftDict.from_arrays(rows(6), rows(36, 1).reshape(6, 2, 3)), None, None, {}),
    "values without width": (SoftDict.from_arrays(rows(6), np.zeros((6, 0))), None, None, {}),
    "weights": (line(), None, None, {"sample_weight": np.arange(25)}),
    "huge weights": (line(), None, None, {"sample_weight": [1e308] * 25}),
    "classes": (WORDS, None, None, {"loss": "cross_entropy"}),
    "other classes": (WORDS, [1.5, 3.5], np.array(["a", "b"]), {"loss": "cross_entropy"}),
    "a single class": (WORDS, 1.5, "a", {"loss": "cross_entropy"}),
    "all of one class": (SoftDict({1: "a", 2: "a", 4: "a"}), None, None, {"loss": "cross_entropy"}),
    "numbers as classes": (SoftDict({1: 0, 2: 1, 3: 0}), None, [0, 1, 1], {"loss": "cross_entropy"}),
    "shares": (SHARES, None, np.eye(3)[[0, 1, 2, 2, 1, 0]], {"loss": "cross_entropy"}),
    "places of shares": (SHARES, None, [0, 1, 2, 2, 1, 0], {"loss": "cross_entropy"}),
    "shares of one": (SHARES, 1.5, [0.5, 0.5, 0], {"loss": "cross_entropy"}),
    "a function": (line(), None, None, {"loss": quadratic}),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_what_is_odd_but_right_is_learned(case):
    sd, queries, targets, options = case
    for function in (fit, fit_temperature):
        _, result = learned(function, sd, queries, targets, **options)
        assert result.fun >= (-INF if "loss" in options and callable(options["loss"]) else 0)
    if sd._store.objects is None and options.get("loss") != "cross_entropy":
        learned(fit, sd, queries, targets, learn=ALL, max_iter=5, **options)


WRONG_TARGETS = {
    "a number": 1.0, "too few": [1.0], "a column": np.zeros((25, 1)), "NaN": [NAN] * 25, "inf": [INF] * 25,
    "None": [None] * 25, "text": ["a"] * 25, "bools": [True] * 25, "an array of bools": np.zeros(25, bool),
    "complex": np.zeros(25, complex), "objects": np.array([None] * 25), "ragged": [[1, 2], [3]],
    "a word": "abc",
    "a mask": np.ma.array(np.zeros(25), mask=np.arange(25) > 3), "an object": object(), "a set": {1, 2},
    "huge": np.full(25, 1e308), "a generator": (x for x in range(25)),
}  # fmt: skip
WRONG_CLASSES = {
    "a number": 1.0, "too few": ["a"], "unknown": list("abaz"), "lists": [[1]] * 4, "dicts": [{}] * 4,
    "None": [None] * 4, "NaN": [NAN] * 4, "an array of rows": np.zeros((4, 1)), "a boolean": True,
    "a mask": np.ma.array(np.zeros(4), mask=[1, 0, 0, 0]), "ragged": [[1, 2], [3]],
}  # fmt: skip


def returning(found, after=0):
    """Return a loss that goes wrong after some calls."""
    calls = itertools.count()

    def loss(answers, targets):
        if next(calls) < after:
            return quadratic(answers, targets)
        if isinstance(found, type):
            raise found
        return found

    return loss


LOSSES = {
    "nothing": None, "a number": 1.0, "a list": [1.0, np.zeros(25)], "a short gradient": (1.0, np.zeros(3)),
    "text": ("a", np.zeros(25)), "texts": (1.0, ["a"] * 25), "many": (np.zeros(25), np.zeros(25)),
    "complex": (1j, np.zeros(25)), "complex slopes": (1.0, np.zeros(25) * 1j), "no slopes": (1.0, None),
    "NaN": (NAN, np.zeros(25)), "inf": (INF, np.zeros(25)), "three": (1, 2, 3),
    "ragged": (1.0, [[1, 2], [3]]),
}  # fmt: skip
T = TypeError
WRONG = {
    "one entry": (SoftDict({0: 5.0}), {}, ValueError),
    "no dict": ({1: 2.0}, {}, T),
    "None": (None, {}, T),
    "an array": (np.ones(3), {}, T),
    "objects": (WORDS, {}, T),
    "no query": (line(), {"queries": [], "targets": []}, ValueError),
    "no row": (plane(), {"queries": np.zeros((0, 2)), "targets": []}, ValueError),
    "a query of NaN": (line(), {"queries": [NAN], "targets": [1.0]}, ValueError),
    "a wide query": (plane(), {"queries": [[1, 2, 3]], "targets": [1.0]}, ValueError),
    "a stranger": (line(), {"queries": [0.123]}, ValueError),
    "a stranger, left out": (line(), {"queries": [0.123], "targets": [1], "exclude_self": True}, ValueError),
    "one target in a list": (line(), {"queries": 1.3, "targets": [0.5]}, ValueError),
    "a single NaN": (line(), {"queries": 1.3, "targets": NAN}, ValueError),
    "exclude_self of one": (line(), {"exclude_self": 1}, T),
    "exclude_self of many": (line(), {"exclude_self": np.array([True, False])}, T),
    "an unknown loss": (line(), {"loss": "mse"}, ValueError),
    "no loss": (line(), {"loss": None}, T),
    "lists as classes": (SoftDict({1: ["a"], 2: ["b"]}), {"loss": "cross_entropy"}, T),
    "matrices as classes": (SoftDict.from_arrays([1, 2], np.ones((2, 2, 2))), {"loss": "cross_entropy"}, T),
    "negative shares": (SHARES, {"targets": -np.eye(3)[[0, 1, 2] * 2], "loss": "cross_entropy"}, ValueError),
    "more than shares": (SHARES, {"targets": np.ones((6, 3)), "loss": "cross_entropy"}, ValueError),
    "weights of 0": (line(), {"sample_weight": np.zeros(25)}, ValueError),
    "negative weights": (line(), {"sample_weight": -np.ones(25)}, ValueError),
    "NaN as weights": (line(), {"sample_weight": np.full(25, NAN)}, ValueError),
    "few weights": (line(), {"sample_weight": np.ones(3)}, ValueError),
    "one weight": (line(), {"sample_weight": 1.0}, ValueError),
    "bools as weights": (line(), {"sample_weight": [True] * 25}, T),
    "huge values": (SoftDict.from_arrays(rows(5), rows(5)[:, 0] * 1e200), {}, ValueError),
    "keys of another width": (plane(similarity=Mapped(np.eye(3))), {}, ValueError),
    **{f"targets: {name}": (line(), {"targets": x}, (T, ValueError)) for name, x in WRONG_TARGETS.items()},
    **{
        f"classes: {name}": (WORDS, {"targets": x, "loss": "cross_entropy"}, (T, ValueError))
        for name, x in WRONG_CLASSES.items()
    },
    **{f"loss: {name}": (line(), {"loss": returning(x)}, (T, ValueError)) for name, x in LOSSES.items()},
}  # fmt: skip
FOUR_BEATS = re.compile(r".+expected.*[.:] .*[A-Z]", re.DOTALL)


def refused(error, function, *given, **options):
    """Demand an error that says what is wrong, what was expected, and what to do."""
    with pytest.raises(error, match=FOUR_BEATS) as caught:
        function(*given, **options)
    assert caught.type in (TypeError, ValueError, KeyError)
    return str(caught.value)


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("function", [fit, fit_temperature])
def test_what_is_wrong_is_refused_in_full(function, case):
    sd, options, error = case
    before = everything(sd) if isinstance(sd, SoftDict) else None
    refused(error, function, sd, **options, progress=False)
    assert before is None or everything(sd) == before


def test_an_empty_dict_and_an_unknown_name_are_key_errors():
    for function in (fit, fit_temperature):
        with pytest.raises(KeyError, match="empty"):
            function(SoftDict())
        with pytest.raises(KeyError, match="names no entry"):
            function(NAMED, ["nobody"], [1.0])


OPTIONS = [
    {"learn": x} for x in ("temprature", "", (), [], None, 3, ("keys", "foo"), [3], "keys,values", [[]])
] + [
    {"weight_decay": x} for x in (-1, NAN, INF, "a", None, True)
] + [
    {"restarts": x} for x in (-1, 2.5, None, "a")
] + [
    {"max_iter": x} for x in (0, -1, 2.5, None, "a", True)
] + [
    {"rng": x} for x in ("a", -1, 2.5)
] + [
    {"weight_decay": 1e300, "learn": "values"}, {"learn": "keys", "loss": returning((1.0, np.full(20, "a")))},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=oracle.named)
def test_wrong_options_are_refused_in_full(options):
    if options.get("weight_decay") == 1e300:
        learned(fit, plane(), **options)  # that is a right one: what is learned becomes 0
        return
    refused((TypeError, ValueError), fit, plane(), **options)
    if "learn" not in options:
        x = rows(8).reshape(2, 4, 3)
        refused((TypeError, ValueError), fit_attention, layer_of({}), x, x, **options)


def test_settings_without_a_slope_are_refused_in_full():
    for settings in (
        {"similarity": lambda q, k: q @ k.T}, {"weighting": lambda z: np.exp(z)},
        {"temperature": 0}, {"temperature": INF},
    ):  # fmt: skip
        refused((TypeError, ValueError), fit, plane(**settings), learn="keys")
    for temperature in (0, INF):
        _, result = learned(fit, plane(temperature=temperature), learn="values")
        assert result.fun <= learned(fit_temperature, plane(top_k=1))[1].fun + 1
    refused(TypeError, fit, SoftDict({1: "a", 2: "b"}), learn="values", loss="cross_entropy")
    refused(ValueError, fit, plane(similarity=Bilinear(np.ones((3, 2)))))


def test_learn_takes_a_word_or_any_sequence():
    want = learned(fit, plane(), learn=["keys"], max_iter=3)[0]
    for learn in ("keys", ("keys", "keys"), {"keys"}, iter(["keys"]), np.array(["keys"])):
        assert learned(fit, plane(), learn=learn, max_iter=3)[0] == want


def test_what_a_function_is_shown_it_cannot_change():
    targets = np.zeros(25)

    def spoil(answers, seen):
        seen[:] = 1

    for given in (targets, None):
        with pytest.raises(ValueError, match="read-only"):
            fit(line(), None, given, loss=spoil)
    assert not targets.any()


# ---- the dict that comes back --------------------------------------------------------------------


def test_learned_keys_are_the_new_names():
    sd = plane()
    new, _ = learned(fit, sd, learn="keys", max_iter=5)
    assert list(new) == list(map(tuple, new.key_vectors.tolist())) and list(new) != list(sd)
    assert (new.value_vectors == sd.value_vectors).all()
    new, _ = learned(fit, NAMED, learn=("keys", "values"), max_iter=5)
    assert list(new) == list(NAMED) and (new.key_vectors != NAMED.key_vectors).all()
    new["r3"] = 7.0  # it is a dict like any other
    assert new.hard["r3"] == 7 and NAMED.hard["r3"] != 7


def test_labels_and_own_vectors_in_one_dict_keep_their_kinds():
    sd = SoftDict()
    sd.add("a", (0.0, 1.0), 1.0)
    sd[2.0, 3.0], sd[2.0, 4.0] = 2.0, 2.5
    sd.add("b", (2.0, 3.0), 7.0)
    for queries in (None, ["a", (2.0, 3.0)]):
        new, _ = learned(fit, sd, queries, learn=ALL, max_iter=5)
        names = list(new)
        assert [names[0], names[3]] == ["a", "b"]
        assert names[1:3] == list(map(tuple, new.key_vectors[1:3].tolist()))


def test_own_vectors_that_become_equal_stay_two_entries():
    for keys, labels in ((rows(6, 2), None), (rows(6, 2).astype("f"), None), (rows(6, 2), list("abcdef"))):
        sd = SoftDict.from_arrays(keys, np.arange(6.0), labels=labels, temperature=1e300)
        new, _ = learned(fit, sd, learn="keys", weight_decay=1.0)
        assert len(set(new)) == 6 and np.abs(new.key_vectors).max() < 1e-3


def test_keys_without_width_and_objects_come_back():
    sd = SoftDict.from_arrays(np.zeros((4, 0)), np.arange(4.0), list("abcd"))
    new, _ = learned(fit, sd, learn=("keys", "values", "temperature"))
    assert new.key_vectors.shape == (4, 0) and new.value_vectors.shape == (4,)
    new, _ = learned(fit, WORDS, loss="cross_entropy", learn=("keys", "temperature"), max_iter=5)
    assert list(new.values()) == list("abab")


def test_settings_and_dtype_come_back():
    sd = SoftDict({"cat": 1.0, "cats": 2.0, "dog": 5.0}, encoder=CharNgrams(8), top_k=2, dtype=np.float32)
    new, _ = learned(fit, sd, learn=("keys", "values"), max_iter=3)
    assert (new.top_k, new.key_vectors.dtype, new._store.dtype) == (2, np.float32, np.float32)
    assert new._settings == sd._settings


def test_a_memory_map_is_left_as_it_is(tmp_path):
    x = rows(20, 2)
    np.save(tmp_path / "keys.npy", x)
    keys = np.load(tmp_path / "keys.npy", mmap_mode="r")
    values = np.arange(20.0)
    values.flags.writeable = False
    sd = SoftDict.from_arrays(keys, values)
    for function, learn in ((fit_temperature, {}), (fit, {"learn": ALL, "max_iter": 3})):
        new, _ = function(sd, progress=False, **learn)
        assert sd._store.mapped and not new._store.mapped
        new.clear()
    assert (np.load(tmp_path / "keys.npy") == x).all() and len(sd) == 20


# ---- what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", ["gaussian", "laplacian", InverseDistance(0.01)], ids=str)
def test_a_learned_map_finds_which_coordinate_matters(similarity):
    x = np.random.default_rng(0).uniform(size=(80, 3))
    sd = SoftDict.from_arrays(x, np.sin(9 * x[:, 1]), similarity=similarity)
    new, result = learned(fit, sd, learn=("temperature", "similarity"))
    strength = np.linalg.norm(new.similarity.matrix, axis=1)
    assert isinstance(new.similarity, Mapped) and new.similarity.similarity == similarity
    assert strength[1] > 8 * max(strength[0], strength[2])
    assert result.fun < learned(fit_temperature, sd)[1].fun / 5
    answers = new.self_attention(exclude_self=True).value
    assert np.mean((answers - sd.value_vectors) ** 2) == pytest.approx(result.fun, rel=1e-6)


@pytest.mark.parametrize("similarity", ["dot", "scaled_dot", Bilinear(np.eye(6))], ids=str)
def test_a_learned_bilinear_finds_who_follows_whom(similarity):
    sd = SoftDict.from_arrays(np.eye(6), list("abcdef"), labels=list("abcdef"), similarity=similarity)
    new, result = learned(
        fit, sd, np.eye(6), list("bcdefa"), learn="similarity", loss="cross_entropy", exclude_self=False
    )
    assert isinstance(new.similarity, Bilinear) and result.fun < 0.01
    W = new.similarity.W
    assert W.argmax(axis=1).tolist() == [1, 2, 3, 4, 5, 0] and not np.allclose(W, W.T)
    assert new.at(temperature=0)[np.eye(6)] == list("bcdefa")


def test_values_are_learned_to_the_least_squares():
    sd, x = line(), np.linspace(0.1, 5.9, 60)
    weights = sd.lookup(x).weights
    y = weights @ np.random.default_rng(0).normal(size=25)
    _, result = learned(fit, sd, x, y, learn="values")
    assert result.fun < 1e-4
    _, decayed = learned(fit, sd, x, y, learn="values", weight_decay=0.01)
    want = np.linalg.solve(weights.T @ weights / 60 + 0.01 * np.eye(25), weights.T @ y / 60)
    np.testing.assert_allclose(decayed.x, want, atol=1e-3)


def test_a_weight_counts_as_often_as_its_target_is_given():
    x, y = np.array([0.3, 1.7, 4.0]), np.array([1.0, -1.0, 0.2])
    for function in (fit, fit_temperature):
        weighed, one = learned(function, line(), x, y, sample_weight=np.array([2.0, 1.0, 0.0]))
        given, other = learned(function, line(), x[[0, 0, 1]], y[[0, 0, 1]])
        assert weighed.temperature == pytest.approx(given.temperature, rel=1e-3)
        assert one.fun == pytest.approx(other.fun)


def test_more_starts_find_no_worse_and_the_seed_decides():
    sd = SoftDict.from_arrays(rows(15, 2), np.sign(rows(15, 2)[:, 0] * rows(15, 2)[:, 1]))
    options = {"learn": ("similarity", "temperature"), "max_iter": 15}
    once = learned(fit, sd, **options)[1]
    more, again = (learned(fit, sd, restarts=2, rng=7, **options)[1] for _ in range(2))
    assert more.fun <= once.fun and (more.x == again.x).all() and more.nfev > once.nfev


@pytest.mark.parametrize(
    "settings", [LAYERS[name] for name in ("plain", "heads", "biases", "causal", "grouped")],
    ids=["plain", "heads", "biases", "causal", "grouped"],
)  # fmt: skip
def test_a_layer_learns_what_its_teacher_does(settings):
    x = rows(40).reshape(10, 4, 3)
    teacher, start = layer_of(settings, 1), layer_of(settings, 2)
    student, result = learned(fit_attention, start, x, teacher(x), max_iter=60)
    before = np.mean((start(x) - teacher(x)) ** 2)
    assert np.mean((student(x) - teacher(x)) ** 2) == pytest.approx(result.fun)
    assert result.fun < before / 20
    fresh = rows(20, seed=9).reshape(5, 4, 3)
    assert np.mean((student(fresh) - teacher(fresh)) ** 2) < before / 2
    assert repr(student) == repr(start)


def test_a_layer_learns_a_part_keeps_its_dtype_and_takes_weights():
    x = rows(40).reshape(10, 4, 3).astype("f")
    start = layer_of({}, dtype=np.float32)
    new, _ = learned(fit_attention, start, x, x, learn="w_v", max_iter=5)
    assert (new.w_q == start.w_q).all() and (new.w_v != start.w_v).any() and new.w_v.dtype == np.float32
    weight = np.zeros((10, 4))
    weight[:, 0] = 1
    new, result = learned(fit_attention, start, x, x, sample_weight=weight, max_iter=30)
    assert np.mean((new(x) - x)[:, 0] ** 2) == pytest.approx(result.fun, rel=1e-4)
    classes = np.tile([0, 1, 2, 0], (10, 1))
    for given in (classes, classes.tolist(), classes * 1.0):
        learned(fit_attention, start, x, given, loss="cross_entropy", max_iter=3)
    lists = [x[0], x[1, :2], x[2, :0]]
    for targets in ([classes[0], classes[1, :2], classes[2, :0]], [[0, 1, 2, 0], [0, 1], []]):
        learned(fit_attention, start, lists, targets, loss="cross_entropy", max_iter=3)
    learned(fit_attention, start, (some for some in x), (some for some in x), max_iter=2)


X = rows(8).reshape(2, 4, 3)
CLASSES = {"targets": np.zeros((2, 4), int), "loss": "cross_entropy"}
WRONG_SEQUENCES = {
    "no layer": {"layer": SoftDict()},
    "None": {"sequences": None}, "a number": {"sequences": 3}, "one sequence": {"sequences": X[0]},
    "text": {"sequences": ["ab", "cd"]}, "too wide": {"sequences": rows(32, 1).reshape(2, 4, 4)},
    "NaN": {"sequences": X * NAN}, "nobody": {"sequences": [], "targets": []},
    "no word": {"sequences": X[:, :0], "targets": X[:, :0]}, "ragged words": {"sequences": [[[1, 2], [3]]]},
    "huge": {"sequences": X * 1e200}, "a mask": {"sequences": np.ma.array(X, mask=X > 0)},
    "no targets": {"targets": None}, "a target": {"targets": 3.0}, "few targets": {"targets": X[:1]},
    "short targets": {"targets": X[:, :3]}, "narrow targets": {"targets": X[:, :, :2]},
    "texts as targets": {"targets": ["abcd"] * 2},
    "ragged targets": {"targets": [[[1], [2, 3], [1], [2]]] * 2},
    "targets of two widths": {"targets": [X[0], X[1, :, :2]]}, "NaN as target": {"targets": X * NAN},
    "masked targets": {"targets": np.ma.array(X, mask=X > 0)}, "bools": {"targets": X > 0},
    "few weights": {"sample_weight": np.ones((2, 3))}, "weights of 0": {"sample_weight": np.zeros((2, 4))},
    "weights of words": {"sample_weight": X}, "a weight": {"sample_weight": 1.0},
    "classes too large": {**CLASSES, "targets": np.full((2, 4), 3)},
    "classes below 0": {**CLASSES, "targets": np.full((2, 4), -1)},
    "classes between": {**CLASSES, "targets": np.full((2, 4), 0.5)},
    "classes of NaN": {**CLASSES, "targets": np.full((2, 4), NAN)},
    "vectors as classes": {**CLASSES, "targets": X},
    "an unknown matrix": {"learn": "b_q"}, "nothing to learn": {"learn": ()},
    "a number to learn": {"learn": 3},
    "no w_o": {"layer": SelfAttention(*[np.eye(3)] * 3), "learn": "w_o"},
    "hard": {"layer": layer_of({"temperature": 0})}, "an average": {"layer": layer_of({"temperature": INF})},
    "a function": {"layer": layer_of({"similarity": lambda q, k: q @ k.T})},
    "a function of logits": {"layer": layer_of({"weighting": lambda z: z})},
    "a loss": {"loss": "mse"}, "a loss of None": {"loss": returning(None)},
    "a loss of NaN": {"loss": returning((NAN, np.zeros((8, 3))))},
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG_SEQUENCES.values(), ids=WRONG_SEQUENCES)
def test_what_a_layer_cannot_learn_is_refused_in_full(change):
    given = {"layer": layer_of({}), "sequences": X[:2], "targets": X[:2], **change}
    refused((TypeError, ValueError), fit_attention, **given, progress=False)


# ---- Mapped --------------------------------------------------------------------------------------


def test_mapped_is_its_similarity_after_a_map():
    x, y, matrix = rows(5), rows(4, seed=1), rows(3, 2)
    for similarity in ("gaussian", "laplacian", "cosine", "dot", InverseDistance(0.5)):
        plain = SoftDict.from_arrays(x @ matrix, np.arange(5.0), similarity=similarity)
        mapped = SoftDict.from_arrays(x, np.arange(5.0), similarity=Mapped(matrix, similarity))
        np.testing.assert_allclose(mapped[y], plain[y @ matrix], rtol=1e-12)


def test_mapped_is_a_value():
    one = Mapped([[0.0, 1.0]])
    for other in (Mapped([[-0.0, 1.0]]), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert one == other and hash(one) == hash(other) and not other.matrix.flags.writeable
    assert one != Mapped([[0.0, 1.0]], "cosine") and one != Mapped([[1.0]]) and one != 3
    for wrong in (None, 3, [1, 2], [[1, 2], [3]], [[NAN]], [[True]], [[1j]], np.zeros((2, 2, 2)), "a"):
        refused_by_type = pytest.raises((TypeError, ValueError), match=r"expected.*\. [A-Z]")
        with refused_by_type:
            Mapped(wrong)
    for wrong in (None, "foo", Bilinear(np.eye(2)), one, lambda q, k: q @ k.T):
        refused((TypeError, ValueError), Mapped, np.eye(2), wrong)
    refused(ValueError, SoftDict({(1, 2, 3): 1.0}, similarity=one).__getitem__, (1, 2, 3))


# ---- how it goes on ------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [2, 11, 19, 30])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, (NAN, np.zeros(20)), (1.0, np.full(20, NAN))], ids=str)
def test_who_is_interrupted_gets_the_best_so_far(stop, calls):
    for function, options in ((fit_temperature, {}), (fit, {}), (fit, {"learn": ALL, "max_iter": 9})):
        if function is fit_temperature and isinstance(stop, tuple) and stop[0] == 1:
            continue  # asks for no slopes
        new, result = learned(function, plane(), loss=returning(stop, calls), **options)
        assert result.fun <= 1
        if not result.success and result.status == 99:
            answers = new.self_attention(exclude_self=True).value
            assert np.mean((answers - plane().value_vectors) ** 2) == pytest.approx(result.fun, rel=1e-6)
            assert "the best" in result.message
    for error in (KeyboardInterrupt, ZeroDivisionError):  # with nothing to return
        with pytest.raises(error):
            fit(plane(), loss=returning(error))


def test_a_layer_that_is_interrupted_comes_back_as_far_as_it_got():
    def loss(after):
        calls = itertools.count()

        def lost(answers, targets):
            if next(calls) >= after:
                raise KeyboardInterrupt
            return quadratic(answers, targets)

        return lost

    first = learned(fit_attention, layer_of({}), X, X, loss=loss(2))[1]
    new, later = learned(fit_attention, layer_of({}), X, X, loss=loss(12))
    assert later.fun < first.fun and not later.success and "interrupted" in later.message
    assert np.mean((new(X) - X) ** 2) == pytest.approx(later.fun)


def test_one_step_is_one_step():
    for options in ({}, {"learn": ALL}):
        _, result = learned(fit, plane(), max_iter=1, **options)
        assert result.nit == 1 == len(result.history["loss"])


class Bar:
    """What tqdm makes."""

    made: list = []  # noqa: RUF012

    def __init__(self, **options):
        self.options, self.steps, self.closed = options, 0, False
        self.made.append(self)

    def set_postfix(self, seen):
        assert "loss" in seen

    def update(self):
        self.steps += 1

    def close(self):
        self.closed = True


def test_progress_is_shown_where_tqdm_is_and_where_it_is_wanted(monkeypatch, capsys):
    tqdm = types.ModuleType("tqdm")
    tqdm.tqdm = Bar
    x = rows(8).reshape(2, 4, 3)
    calls = [
        lambda **how: fit(plane(), max_iter=4, **how),
        lambda **how: fit_temperature(plane(), **how),
        lambda **how: fit_attention(layer_of({}), x, x, max_iter=4, **how),
        lambda **how: fit_temperature(plane(), loss=returning(KeyboardInterrupt, 3), **how),
    ]
    for call in calls:
        Bar.made.clear()
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "tqdm", tqdm)
            call()
            (bar,) = Bar.made
            assert bar.closed and bar.steps and bar.steps <= bar.options["total"]
            assert bar.options["file"] is sys.stderr
            call(progress=False)
            assert len(Bar.made) == 1
            patch.setitem(sys.modules, "tqdm", None)  # as if it were not installed
            call()
            assert len(Bar.made) == 1
    assert capsys.readouterr() == ("", "")


# ---- peers ---------------------------------------------------------------------------------------

CURVES = {
    "sine": lambda x: np.sin(6 * x),
    "step": lambda x: np.sign(x - 0.4),
    "chirp": lambda x: np.sin(20 * x * x),
    "line": lambda x: 2 * x,
}  # fmt: skip


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::RuntimeWarning")  # theirs
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_the_bandwidth_is_no_worse_than_statsmodels(curve):
    regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(size=300))
    y = curve(x) + rng.normal(scale=0.3, size=300)
    sd = SoftDict.from_arrays(x, y)
    new, result = learned(fit_temperature, sd)
    theirs = float(regression.KernelReg(y, x, "c", reg_type="lc", bw="cv_ls").bw[0])

    def left_out(temperature):
        return np.mean((sd.at(temperature=temperature).self_attention(exclude_self=True).value - y) ** 2)

    assert result.fun == pytest.approx(left_out(new.temperature), rel=1e-9)
    assert result.fun <= left_out(theirs**2) * (1 + 1e-6)
    grid = np.linspace(0.02, 0.98, 200)
    ours, other = (
        np.mean((sd.at(temperature=t)[grid] - curve(grid)) ** 2) for t in (new.temperature, theirs**2)
    )
    assert ours <= 1.25 * other + 1e-3


def test_a_layer_without_w_o_learns_with_grouped_heads():
    rng = np.random.default_rng(0)
    w_q, w_k, w_v = (rng.normal(size=(3, columns)) for columns in (8, 4, 2))
    x = rng.normal(size=(6, 5, 3))
    teacher = SelfAttention(w_q, w_k, w_v, heads=2, key_heads=1)
    start = SelfAttention(w_q, w_k, w_v + 1, heads=2, key_heads=1)
    new, result = fit_attention(start, x, teacher(x), learn="w_v", progress=False)
    assert new(x).shape == (6, 5, 4) and result.fun < 1e-9
    np.testing.assert_allclose(new.w_v, w_v, atol=1e-4)
