"""The functions and the dict against the oracle: every similarity, weighting and option."""

import itertools
import math
import tracemalloc
import warnings

import numpy as np
import oracle
import pytest
from oracle import agree

from softdict import Bilinear, Entmax, InverseDistance, SoftDict, _backend, lookup_weights, soft_lookup


def overlap(q, k):
    """Score by a function of the user's own, which BLAS rounds differently from pair to pair."""
    return q @ k.T / 3


def halves(z):
    """Weigh by a function of the user's own: 2 to the power of the logits."""
    w = np.exp2(z - np.max(z, axis=-1, keepdims=True, where=z > -np.inf, initial=-1e300))
    return w / np.maximum(w.sum(axis=-1, keepdims=True), 1e-300)


SIMILARITIES = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), InverseDistance(0.0),
    Bilinear([[1.0, 0.5, 0.0], [0.0, -1.0, 0.25], [0.5, 0.0, 1.0]]), overlap,
]  # fmt: skip
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2), halves]
TEMPERATURES = [0, 1e-320, 0.3, 1.0, 30.0, 1e300, math.inf]
PART = np.random.default_rng(1).random((3, 9)) < 0.7
LOG_PRIOR = np.where(PART, np.random.default_rng(2).normal(size=(3, 9)), -np.inf)
OPTIONS = [
    {}, {"where": PART}, {"bias": LOG_PRIOR}, {"top_k": 3}, {"min_score": -0.7}, {"null_score": -0.4},
    {"where": PART, "bias": LOG_PRIOR[0], "top_k": 4, "min_score": -4.0, "null_score": 0.2},
]  # fmt: skip


def problem(kind, d=3, m=3, n=9, seed=0):
    """Return query (m, d), keys (n, d) and values (n, 2) with one equal pair and one exact hit."""
    rng = np.random.default_rng([seed, d])
    query, keys = rng.normal(size=(m, d)), rng.normal(size=(n, d))
    values = rng.normal(size=(n, 2))
    if kind == "logits of 30":
        query, keys = query * 5, keys * 5
    elif kind == "logits of 1000":
        query, keys = query * 30, keys * 30
    elif kind == "far from the origin":
        query, keys = query + 1e6, keys + 1e6
    elif kind == "far clusters":
        shift = np.where(np.arange(n) % 2, 1e4, -1e4)[:, None]
        query, keys = query + shift[:m], keys + shift
    elif kind == "cancel":
        values = 1e3 + rng.normal(size=(n, 2)) * 1e-3
        values[::2] *= -1
    keys[4] = keys[2]
    query[1] = keys[5]
    return query, keys, values


def check(query, keys, values, what, **options):
    """Compare soft_lookup and lookup_weights with the oracle."""
    want = oracle.Lookup(query, keys, values, **options)
    context = (what, options)
    value = soft_lookup(query, keys, values, **options)
    agree(value, want.value, want.tolerance(value.dtype), f"value, {what}", context)
    weights = lookup_weights(query, keys, **options)
    agree(weights, want.weights, want.weights_tolerance(weights.dtype), f"weights, {what}", context)
    return want


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda w: getattr(w, "__name__", str(w)))
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=lambda s: getattr(s, "__name__", str(s)))
def test_every_option_is_the_oracle_s(similarity, weighting):
    query, keys, values = problem("logits of 1")
    for temperature, options in itertools.product(TEMPERATURES, OPTIONS):
        options = {"similarity": similarity, "weighting": weighting, "temperature": temperature, **options}
        check(query, keys, values, "logits of 1", **options)


@pytest.mark.parametrize(
    "kind", ["logits of 30", "logits of 1000", "far from the origin", "far clusters", "cancel"]
)
@pytest.mark.parametrize("d", [1, 3, 6, 7, 20])
def test_hard_inputs_are_the_oracle_s(kind, d):
    query, keys, values = problem(kind, d)
    similarities = ["gaussian", "laplacian", "cosine", InverseDistance(0.5)]
    if kind in ("logits of 30", "logits of 1000", "cancel"):
        similarities += ["dot", "scaled_dot"]
    for similarity, weighting, options in itertools.product(similarities, WEIGHTINGS[:4], OPTIONS):
        if similarity == "cosine" and (d == 1 or kind in ("far from the origin", "far clusters")):
            if "top_k" in options:  # all cosines are 1, or so close to it that rounding ranks them
                continue
        check(query, keys, values, kind, similarity=similarity, weighting=weighting, **options)


@pytest.mark.parametrize("weighting", WEIGHTINGS[:4], ids=str)
@pytest.mark.parametrize("temperature", [0, 0.3, 1.0, math.inf])
def test_the_dict_its_lookup_its_parts_and_its_tiles_say_the_same(weighting, temperature, monkeypatch):
    rng = np.random.default_rng(6)
    for kind in ("logits of 1", "logits of 30", "far clusters", "cancel"):
        query, keys, values = problem(kind, n=9)
        for options in OPTIONS:
            if {"where", "bias"} & options.keys():
                continue
            options = {"weighting": weighting, "temperature": temperature, **options}
            want = oracle.Lookup(query, keys, values, **options)
            tol = want.tolerance(float)
            labels = [f"row {i}" for i in range(9)]
            sd = SoftDict.from_arrays(keys, values, labels, **options)
            got = sd.get(query, 0.0)
            agree(got, want.value, tol, "dict", options)
            assert sd.lookup(query).value.tobytes() == got.tobytes()
            cuts = [0, *sorted(rng.integers(0, 10, size=3)), 9]
            parts = [
                SoftDict.from_arrays(keys[a:b], values[a:b], labels[a:b], **options).partial(query, offset=a)
                for a, b in itertools.pairwise(cuts)
            ]
            while len(parts) > 1:  # merge any two, whichever comes first
                a = parts.pop(rng.integers(len(parts)))
                parts.append(parts.pop(rng.integers(len(parts))) + a)
            agree(parts[0].finish(), want.value, tol, "merged parts", options)
            with monkeypatch.context() as patch:
                patch.setattr(_backend, "budget_mib", 1e-6)
                agree(sd.get(query, 0.0), want.value, tol, "tiles", options)


# ---- shapes, axes, dtypes ------------------------------------------------------------------------


def test_leading_axes_broadcast():
    rng = np.random.default_rng(3)
    query, keys, values = rng.normal(size=(2, 1, 3, 4)), rng.normal(size=(5, 6, 4)), rng.normal(size=(6, 2))
    where = rng.random((5, 1, 6)) < 0.8
    value = soft_lookup(query, keys, values, where=where)
    assert value.shape == (2, 5, 3, 2)
    for a, b in itertools.product(range(2), range(5)):
        one = soft_lookup(query[a, 0], keys[b], values, where=where[b])
        np.testing.assert_array_equal(value[a, b], one)
    assert lookup_weights(query, keys).shape == (2, 5, 3, 6)


@pytest.mark.parametrize(
    ("query", "keys", "values", "want"),
    [
        ((), (6,), (6,), ()), ((), (6,), (6, 2), (2,)), ((3,), (6,), (6,), (3,)),
        ((3,), (6,), (6, 2), (3, 2)),
        ((4,), (6, 4), (6,), ()), ((4,), (6, 4), (6, 2), (2,)), ((3, 4), (6, 4), (6,), (3,)),
        ((3, 4), (6, 4), (6, 2), (3, 2)), ((0, 4), (6, 4), (6, 2), (0, 2)), ((3, 4), (0, 4), (0, 2), (3, 2)),
        ((7, 3, 4), (7, 6, 4), (7, 6, 2), (7, 3, 2)), ((4,), (7, 6, 4), (6, 2), (7, 2)),
    ],
)  # fmt: skip
def test_shapes(query, keys, values, want):
    rng = np.random.default_rng(4)
    query, keys, values = rng.normal(size=query), rng.normal(size=keys), rng.normal(size=values)
    assert np.shape(soft_lookup(query, keys, values)) == want
    if np.ndim(values) == 1:
        assert np.shape(lookup_weights(query, keys))[:-1] == want


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_float_comes_back_as_it_went_in(dtype):
    query, keys, values = (x.astype(dtype) for x in problem("logits of 30"))
    want = oracle.Lookup(query, keys, values)
    value = soft_lookup(query, keys, values)
    assert value.dtype == lookup_weights(query, keys).dtype == dtype
    agree(value, want.value, want.tolerance(dtype), f"value, {np.dtype(dtype)}")
    assert soft_lookup(query, keys, values.astype(int)).dtype == np.float64


# ---- never NaN -------------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=lambda s: getattr(s, "__name__", str(s)))
def test_finite_input_never_gives_nan(similarity):
    rng = np.random.default_rng(7)
    large = 1e150
    for temperature, weighting in itertools.product([*TEMPERATURES, 5e-324, 1e308], WEIGHTINGS):
        for scale in (0.0, 1e-300, 1.0, 1e5, large):
            query, keys = rng.normal(size=(4, 3)) * scale, rng.normal(size=(6, 3)) * scale
            for options in ({}, {"where": np.zeros((4, 6), bool)}, {"null_score": 0.0}, {"top_k": 2}):
                options = {"similarity": similarity, "temperature": temperature, **options}
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    weights = lookup_weights(query, keys, weighting=weighting, **options)
                    value = soft_lookup(query, keys, np.ones(6), weighting=weighting, **options)
                assert np.isfinite(weights).all(), (options, weighting, scale)
                assert np.isfinite(value).all(), (options, weighting, scale)


def test_a_squared_distance_that_overflows_takes_its_entry_out():
    np.testing.assert_array_equal(lookup_weights(0.0, np.array([1e200, 1.0])), [0, 1])
    np.testing.assert_array_equal(lookup_weights(0.0, np.array([1e200, -1e200])), [0, 0])


def test_unmasked_nan_passes_through():
    assert np.isnan(soft_lookup(0.0, [0.0, np.nan], [1.0, 2.0]))
    assert np.isnan(soft_lookup(0.0, [0.0, 1.0], [1.0, np.nan]))
    assert soft_lookup(0.0, [0.0, 9.0], [1.0, np.nan], weighting="sparsemax") == 1.0


# ---- exact scores ----------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=lambda s: getattr(s, "__name__", str(s)))
@pytest.mark.parametrize("d", [1, 3, 6, 7, 64])
def test_a_score_depends_on_its_pair_alone(similarity, d):
    if isinstance(similarity, Bilinear) and d != 3:
        similarity = Bilinear(np.random.default_rng(d).normal(size=(d, d)))
    rng = np.random.default_rng(8)
    keys = rng.normal(size=(37, d))
    sd = SoftDict.from_arrays(keys, np.zeros(37), [f"row {i}" for i in range(37)], similarity=similarity)
    query = rng.normal(size=(11, d))
    scores = sd.lookup(query).scores
    for i, j in ((0, 0), (3, 36), (10, 17)):
        one = SoftDict.from_arrays(keys[j : j + 1], np.zeros(1), similarity=similarity)
        assert one.lookup(query[i]).scores[0] == scores[i, j]
    if similarity in ("gaussian", "laplacian", "cosine"):
        seen = sd.lookup(keys).scores
        assert set(np.diag(seen).tolist()) == {1.0 if similarity == "cosine" else 0.0}
        np.testing.assert_array_equal(seen, seen.T)


# ---- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5}, {"weighting": "sparsemax"}, {"temperature": 0}], ids=str
)
def test_memory_stays_within_the_budget(options, monkeypatch):
    rng = np.random.default_rng(9)
    query, keys, values = rng.normal(size=(99, 8)), rng.normal(size=(8000, 8)), rng.normal(size=(8000, 4))
    sd = SoftDict.from_arrays(keys, values, **options)
    whole = sd[query]
    monkeypatch.setattr(_backend, "budget_mib", 2.0)
    tracemalloc.start()
    try:
        tiled = sd[query]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20 + 4 * whole.nbytes  # all scores at once would take 6 MiB
    agree(tiled, whole, oracle.tolerance(float, 100, np.abs(values).max()), f"tiles, {options}")


# ---- wrong calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (([1.0], np.eye(2), np.ones(2)), {}, ValueError),
        (([1.0, 2.0], np.eye(2), np.ones(3)), {}, ValueError),
        (([1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, "x"]), {}, TypeError),
        (([[1.0], [2.0, 3.0]], np.eye(2), np.ones(2)), {}, ValueError),
        ((True, np.ones(2), np.ones(2)), {}, TypeError),
        ((1j, np.ones(2), np.ones(2)), {}, TypeError),
        (([1.0, 2.0], 1.0, np.ones(2)), {}, ValueError),
        ((np.ones((2, 3, 2)), np.ones((3, 4, 2)), np.ones((4, 1))), {}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"where": np.ones(3, bool)}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"where": np.ones((5, 1, 2), bool)}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"bias": np.ones(3)}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"bias": [math.nan, 0]}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"bias": [math.inf, 0]}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"top_k": 0}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"top_k": 1.5}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"temperature": [1.0, 2.0]}, TypeError),
        ((0.0, np.ones(2), np.ones(2)), {"temperature": "hot"}, TypeError),
        ((0.0, np.ones(2), np.ones(2)), {"min_score": math.nan}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"null_score": math.inf}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"similarity": "euclid"}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"similarity": 3}, TypeError),
        ((0.0, np.ones(2), np.ones(2)), {"similarity": lambda q, k: np.zeros(3)}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"similarity": Bilinear(np.eye(2))}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"weighting": "argmax"}, ValueError),
        ((0.0, np.ones(2), np.ones(2)), {"weighting": lambda z: z[:, :1]}, ValueError),
    ],
)
def test_a_wrong_call_is_told_what_was_expected(arguments, options, error):
    with pytest.raises(error, match=r"expected.*\. [A-Z]"):
        soft_lookup(*arguments, **options)
    if options:
        with pytest.raises(error, match=r"expected.*\. [A-Z]"):
            lookup_weights(*arguments[:2], **options)


# ---- the silent entry ------------------------------------------------------------------------------


def test_an_entry_wins_against_an_equal_null():
    scores = {"similarity": "dot", "temperature": 0, "null_score": 3.0}
    np.testing.assert_array_equal(lookup_weights(1.0, [1.0, 3.0, 3.0], **scores), [0, 0.5, 0.5])
    np.testing.assert_array_equal(lookup_weights(1.0, [1.0, 2.0], **scores), [0, 0])
    seen = SoftDict.from_arrays([[1.0], [2.0]], [5.0, 6.0], **scores).lookup([1.0])
    assert (seen.null_weight, seen.value, seen.winner) == (1, 0, (2.0,))
