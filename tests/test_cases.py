"""Faults that users met in other systems, each reduced to a small input with its right answer."""

import copy
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from oracle import agree, named, tolerance

from softdict import Bilinear, Entmax, InverseDistance, SoftDict, _backend, lookup_weights, soft_lookup
from softdict.weights import calibrate

INF = math.inf


def weights_of(scores, **options):
    """Return the weights of given scores: a query of 1 asks keys that are the scores, by dot."""
    return lookup_weights(1.0, np.asarray(scores), similarity="dot", **options)


def is_rounded(got, printed, digits):
    """Assert that numbers, rounded, are those that were printed with so many digits."""
    np.testing.assert_array_equal(np.round(np.asarray(got, dtype=float), digits), printed)


# ---- masks and empty rows -----------------------------------------------------------------------


def test_fully_masked_rows_are_zero_and_leave_the_others_alone():
    rng = np.random.default_rng(0)
    query, keys, values = (rng.normal(size=(8, 4)) for _ in range(3))
    where = rng.random((8, 8)) < 0.7
    where[4:] = False
    where[0, 0] = True
    for weighting in ("softmax", "sparsemax", "entmax15"):
        value = soft_lookup(query, keys, values, where=where, weighting=weighting)
        weights = lookup_weights(query, keys, where=where, weighting=weighting)
        assert not value[4:].any()
        assert not weights[4:].any()
        np.testing.assert_array_equal(
            value[:4], soft_lookup(query[:4], keys, values, where=where[:4], weighting=weighting)
        )


@pytest.mark.parametrize("spoiled", ["key", "value"])
@pytest.mark.parametrize("similarity", ["gaussian", "laplacian", "cosine", "dot", "scaled_dot"])
def test_what_is_masked_cannot_leak(spoiled, similarity):
    query, keys, values = (np.arange(8.0).reshape(1, 2, 4) for _ in range(3))
    (keys if spoiled == "key" else values)[0, 1, 0] = np.nan
    mask = [[True, False], [True, False]]
    value = soft_lookup(query, keys, values, where=mask, similarity=similarity)
    np.testing.assert_array_equal(value, [[[0, 1, 2, 3], [0, 1, 2, 3]]])


def test_an_integer_mask_is_refused():
    for mask in ([1, 0], np.array([1, 0]), np.array([1.0, 0.0]), [0, 0]):
        with pytest.raises(TypeError, match="booleans were expected"):
            soft_lookup(1.0, [0.0, 1.0], [0.0, 1.0], where=mask)
        with pytest.raises(TypeError, match="booleans were expected"):
            lookup_weights(1.0, [0.0, 1.0], where=mask)
        with pytest.raises(TypeError, match="booleans were expected"):
            SoftDict({0: 0.0, 1: 1.0}).lookup(1, where=mask)


@pytest.mark.parametrize("similarity", ["dot", "scaled_dot", "gaussian", "cosine"])
def test_width_zero_makes_all_keys_alike(similarity):
    value = soft_lookup(np.zeros((1, 2, 0)), np.zeros((1, 3, 0)), [1, 2, 6], similarity=similarity)
    agree(value, [[3.0, 3.0]], tolerance(float, 0, 6), "width zero")


def test_the_null_takes_its_share():
    sd = SoftDict.from_arrays([[0.0], [0.0]], [1.0, 1.0], ["a", "b"], similarity="dot", null_score=0)
    seen = sd.lookup([1.0])
    agree(seen.weights, [1 / 3, 1 / 3], tolerance(float), "null")
    agree(seen.null_weight, 1 / 3, tolerance(float), "null")
    is_rounded(weights_of([-5.0, -5.0], null_score=0), [0.00664835, 0.00664835], 8)
    np.testing.assert_array_equal(weights_of([1000.0, 1000.0], null_score=0), [0.5, 0.5])
    np.testing.assert_array_equal(weights_of([-1000.0, -1000.0], null_score=0), [0, 0])


@pytest.mark.parametrize("weighting", ["softmax", "sparsemax", "entmax15", Entmax(1.2)], ids=str)
@pytest.mark.parametrize("temperature", [0, 1.0, INF])
@pytest.mark.parametrize("budget", [32, 1e-6])
def test_looking_does_not_change_the_answer(weighting, temperature, budget, monkeypatch):
    monkeypatch.setattr(_backend, "budget_mib", budget)
    rng = np.random.default_rng(1)
    query, keys, values = rng.normal(size=(5, 3)), rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    where = rng.random((5, 9)) < 0.6
    where[2] = False  # a fully masked row
    for options in ({}, {"top_k": 2}, {"min_score": -1.0}, {"null_score": -1.0}):
        settings = {"weighting": weighting, "temperature": temperature, **options}
        sd = SoftDict.from_arrays(keys, values, **settings)
        assert sd.lookup(query).value.tobytes() == sd.get(query, 0.0).tobytes()
        assert sd.lookup(query[0]).value.tobytes() == np.asarray(sd.get(query[0], np.zeros(2))).tobytes()
        masked = soft_lookup(query, keys, values, where=where, **settings)
        seen = sd.lookup(query, where=where)
        str(seen), seen.top(3), seen.weights, seen.entropy
        assert seen.value.tobytes() == masked.tobytes()
        assert not seen.value[2].any()
        assert not seen.weights[2].any()
        # three heads, the second of which is masked as a whole
        asked, heads = np.tile(query, (3, 1, 1)), np.stack([where, np.zeros_like(where), ~where])
        before = soft_lookup(asked, keys, values, where=heads, **settings)
        weights = lookup_weights(asked, keys, where=heads, **settings)
        assert soft_lookup(asked, keys, values, where=heads, **settings).tobytes() == before.tobytes()
        assert before[0].tobytes() == masked.tobytes()
        assert not before[1].any()
        assert not weights[1].any()


# ---- temperature and weightings -----------------------------------------------------------------


def test_the_best_share_at_temperature_zero():
    np.testing.assert_array_equal(weights_of([1, 3, 3], temperature=0), [0, 0.5, 0.5])
    biased = {"temperature": 0, "bias": [0, 0, -2]}
    is_rounded(weights_of([1, 3, 3], **biased), [0, 0.881, 0.119], 3)
    np.testing.assert_array_equal(weights_of([1, 3, 3], weighting="sparsemax", **biased), [0, 1, 0])


@pytest.mark.parametrize("temperature", [-1, -1e-300, math.nan, -INF])
def test_a_negative_temperature_is_refused(temperature):
    sd = SoftDict({1: 1.0})
    for ask in (
        lambda: soft_lookup(0.0, [1.0], [1.0], temperature=temperature),
        lambda: lookup_weights(0.0, [1.0], temperature=temperature),
        lambda: SoftDict(temperature=temperature),
        lambda: sd.at(temperature=temperature),
        lambda: setattr(sd, "temperature", temperature),
    ):
        with pytest.raises(ValueError, match=r"temperature is .* at least 0 was expected"):
            ask()
    assert sd.temperature == 1.0


def test_center_first_then_divide():
    single = np.array([1e38, 2e38], dtype=np.float32)
    np.testing.assert_array_equal(weights_of(single, temperature=0.25), [0, 1])
    for temperature in (2.0**-126, 1e-320):
        np.testing.assert_array_equal(weights_of([2, 4, 3], temperature=temperature), [0, 1, 0])
    agree(weights_of([2, 4, 3], temperature=1e300), [1 / 3] * 3, tolerance(float), "hot")


def test_infinite_scores_leave_only_each_other():
    np.testing.assert_array_equal(weights_of([1, 1, INF]), [0, 0, 1])
    np.testing.assert_array_equal(weights_of([INF, INF]), [0.5, 0.5])


def test_weightings_of_one_row():
    z = [-2, 0, 0.5]
    is_rounded(weights_of(z), [0.0486, 0.3592, 0.5922], 4)
    is_rounded(weights_of(z, weighting="sparsemax"), [0, 0.25, 0.75], 4)
    is_rounded(weights_of(z, weighting="entmax15"), [0, 0.3260, 0.6740], 4)


def test_sparsemax():
    tol = tolerance(float, 1)
    for z, want in (([0.1, 0.2, 0.3, 0.4, 0.5], [0, 0.1, 0.2, 0.3, 0.4]), ([0, 0.5, 1], [0, 0.25, 0.75])):
        agree(weights_of(z, weighting="sparsemax"), want, tol, "sparsemax")
    single = np.array([1.36762051e8, 1.59594639e8], dtype=np.float32)
    np.testing.assert_array_equal(weights_of(single, weighting="sparsemax"), [0, 1])


def test_entmax_near_softmax():
    is_rounded(weights_of([0, 0, 1], weighting=Entmax(1)), [0.21194, 0.21194, 0.57612], 5)
    is_rounded(weights_of([0, 0, 1], weighting=Entmax(1.1)), [0.1985, 0.1985, 0.6031], 4)


def test_top_k_keeps_exactly_k():
    np.testing.assert_array_equal(weights_of([1, 1, 1, 0], top_k=1), [1, 0, 0, 0])
    assert np.count_nonzero(weights_of(np.zeros(30), top_k=32)) == 30


def test_calibrated_logits():
    temperature = calibrate([3, 2, 1, 0], 2)
    is_rounded(temperature, 0.6916302663, 10)
    is_rounded(weights_of([3, 2, 1, 0], temperature=temperature), [0.76682, 0.18062, 0.04254, 0.01002], 5)
    with pytest.raises(ValueError, match=r"2 entries tie for the best.*fewer or more cannot be reached"):
        calibrate([1, 1, 0, 0], 1.5)


# ---- distances and smoothing --------------------------------------------------------------------


@pytest.mark.parametrize(("similarity", "want"), [("gaussian", 10), ("dot", 20), ("cosine", 15)])
def test_nearest_is_not_longest(similarity, want):
    sd = SoftDict({(1, 0): 10, (2, 0): 20, (0, 1): 30}, similarity=similarity, temperature=0)
    assert sd[1, 0] == want


@pytest.mark.parametrize("query", [10, 50])
def test_far_away_the_nearest_answers(query):
    assert soft_lookup(float(query), [0, 1, 2], [1, 2, 3], temperature=0.1**2) == 3.0
    assert SoftDict({0: 1, 1: 2, 2: 3}, temperature=0.1**2)[query] == 3.0


def test_neighbors_far_from_the_origin_find_themselves():
    p = np.array([4765960.395804689, -2726208.244406798, 3236212.738643452])
    sd = SoftDict.from_arrays([p, p + 1e-5], [1.0, 2.0], temperature=0)
    assert [sd[key] for key in sd] == [1.0, 2.0]


def test_two_float32_keys_close_to_each_other():
    keys = np.array(
        [[61.2216377, 71.6066284, -65.7512665], [61.2216377, 71.6089401, -65.7284775]], np.float32
    )
    sd = SoftDict.from_arrays(keys, [1.0, 2.0])
    assert len(sd) == 2
    is_rounded(-2 * sd.lookup(keys[0]).scores[1] * 1e8, 52468, 0)


def test_cosine_is_not_above_one():
    x = np.arange(84, dtype=np.float32)
    sd = SoftDict.from_arrays([x], [1.0], similarity="cosine")
    assert sd.lookup(x).scores == 1


def test_cosine_of_a_zero_vector_is_zero():
    sd = SoftDict.from_arrays([[0.0, 0.0], [1.0, 0.0]], [1.0, 2.0], similarity="cosine")
    np.testing.assert_array_equal(sd.lookup([1.0, 0.0]).scores, [0, 1])
    np.testing.assert_array_equal(sd.lookup([0.0, 0.0]).scores, [0, 0])


def test_two_far_clusters():
    rng = np.random.default_rng(5)
    side = np.repeat([-1e4, 1e4], 50)[:, None]
    keys = (side + rng.normal(size=(100, 16))).astype(np.float32)
    values = rng.random(100)
    query = keys[::7]
    exact = keys.astype(float)
    scores = -((query.astype(float)[:, None] - exact) ** 2).sum(-1) / 2
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights @ values / weights.sum(1)
    got = soft_lookup(query, keys, values.astype(np.float32))
    agree(got, want, tolerance(np.float32, 1, 1), "far clusters")
    single = keys @ keys[::7].T  # what a plain expansion in float32 makes of it
    norms = (keys * keys).sum(1, dtype=np.float32)
    plain = (single - norms[:, None] / 2 - norms[::7] / 2).T
    weights = np.exp(plain - plain.max(1, keepdims=True))
    assert np.abs(weights @ values / weights.sum(1) - want).max() > 0.3


def test_the_mean_of_the_two_nearest():
    assert soft_lookup(2.6, [0, 1, 2, 3], [0, 1, 3, 4], top_k=2, temperature=INF) == 3.5


def test_all_keys_at_one_point():
    sd = SoftDict.from_arrays(np.ones((3, 2)), [1.0, 2.0, 6.0], ["a", "b", "c"])
    assert sd[[1.0, 1.0]] == sd["a"] == sd[[0.0, 5.0]] == 3.0
    with pytest.raises(ValueError, match="calibrate"):
        sd.calibrate(2)
    flat = SoftDict.from_arrays([[0.0, 7.0], [1.0, 7.0]], [1.0, 3.0])
    assert flat[[0.5, 7.0]] == 2.0


# ---- storing and naming -------------------------------------------------------------------------


def test_an_empty_dict_answers_one_query_and_a_thousand_alike():
    for query in (1.0, np.zeros(1000), np.zeros((1000, 3)), "cat", [], ["cat"] * 1000):
        with pytest.raises(KeyError):
            SoftDict()[query]
        assert SoftDict().get(query, 7) == 7


def test_a_name_twice_is_one_entry():
    sd = SoftDict([(1, 10), (2, 20), (1, 30)])
    sd.update([(3, 1), (2, 5), (3, 2)])
    assert list(sd.items()) == [(1.0, 30.0), (2.0, 5.0), (3.0, 2.0)]


def test_an_update_with_a_bad_second_entry_changes_nothing():
    sd = SoftDict({1: 10.0})
    for bad in (("x", 1), (2, "x"), (math.nan, 1), (2, INF), ((1, 2), 1), (2, [1, 2])):
        with pytest.raises((TypeError, ValueError)):
            sd.update([(5, 50.0), bad])
        assert dict(sd.hard) == {1.0: 10.0}


def test_deleting_and_adding_agrees_with_a_dict():
    thrice = SoftDict({1: 10.0, 2: 20.0})
    for value in (1.0, 2.0, 3.0):
        del thrice[1]
        thrice[1] = value
        assert list(thrice.items()) == [(2.0, 20.0), (1.0, value)]
        assert thrice.at(temperature=0)[1] == value
    rng = np.random.default_rng(8)
    sd, twin = SoftDict(), {}
    for step, name in enumerate(rng.integers(12, size=600).astype(float).tolist()):
        if rng.random() < 0.5:
            sd[name] = twin[name] = float(step)
        elif name in twin:
            del sd[name], twin[name]
        assert list(sd.items()) == list(twin.items())


def test_three_spellings_are_one_key():
    sd = SoftDict([((0.0, 1.0), 1), ([0, 1], 2), (np.array([-0.0, 1]), 3)])
    assert list(sd.items()) == [((0.0, 1.0), 3.0)]
    assert math.copysign(1, next(iter(sd))[0]) == 1


@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_not_finite_is_refused_at_the_door(bad):
    for make in (
        lambda: SoftDict({(0.0, 1.0): 1.0, (bad, 0.0): 2.0}),
        lambda: SoftDict({0.0: 1.0, 1.0: bad}),
        lambda: SoftDict.from_arrays([[0.0], [bad]], [1.0, 2.0]),
        lambda: SoftDict.from_arrays([0.0, 1.0], [1.0, bad], ["first", "second"]),
    ):
        with pytest.raises(ValueError, match=r"(key vector|value) of .* holds .*finite numbers"):
            make()


def test_equality_is_one_bool():
    a = {(0, 1): [1.0, 2.0], (1, 1): [3.0, 4.0]}
    assert (SoftDict(a) == SoftDict(a)) is True
    assert (SoftDict(a) != SoftDict(a)) is False
    assert (SoftDict(a) == {(0.0, 1.0): np.array([1, 2]), (1.0, 1.0): np.array([3, 5])}) is False


def test_popitem_is_last_in_first_out():
    assert SoftDict({1: 10.0, 2: 20.0}).popitem() == (2.0, 20.0)


def test_or_is_that_of_dict():
    sd, plain = SoftDict({1: 10.0, 2: 20.0}), {2.0: 5.0, 3.0: 6.0}
    twin = {1.0: 10.0, 2.0: 20.0}
    assert list((sd | plain).items()) == list((twin | plain).items())
    assert list((plain | sd).items()) == list((plain | twin).items())
    sd |= [(4, 1.0)]
    assert list(sd.items())[-1] == (4.0, 1.0)
    with pytest.raises(TypeError):
        sd | 5


def test_arrays_are_not_shared():
    mine, key = np.array([1.0, 2.0]), np.array([0.0, 0.0])
    keys, values = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    sd, made = SoftDict(), SoftDict.from_arrays(keys, values)
    sd[5, 5] = mine
    sd.add("label", key, mine)
    mine[:], key[:], keys[:], values[:] = 9, 9, 9, 9
    assert sd.hard["label"].tolist() == sd.hard[5, 5].tolist() == [1, 2]
    assert sd.key_vectors.tolist() == [[5, 5], [0, 0]]
    assert dict(made.hard) == {0.0: 1.0, 1.0: 2.0}
    out = sd.hard["label"]
    out[:] = 7
    kept, seen = sd.value_vectors, sd.lookup("label")
    assert not kept.flags.writeable
    sd["label"] = [3, 3]
    assert kept.tolist() == [[1, 2], [1, 2]]
    assert seen.top(1)[0].value.tolist() == [1, 2]


def test_the_first_key_object_stays():
    sd = SoftDict(encoder=lambda names: [[float(name)] for name in names])
    sd[1] = "one"
    sd[True] = "true"
    assert [(type(key), value) for key, value in sd.items()] == [(int, "true")]


def test_copies_keep_everything_and_share_nothing():
    sd = SoftDict({(2, 0): [1, 2], (1, 0): [3, 4]}, temperature=0.5, similarity="dot")
    for again in (pickle.loads(pickle.dumps(sd)), copy.copy(sd), copy.deepcopy(sd), sd.copy()):
        assert list(again) == list(sd)
        assert again == sd
        assert (again.temperature, again.similarity) == (0.5, "dot")
        again[1, 0] = [9, 9]
        assert sd.hard[1, 0].tolist() == [3, 4]
        assert not np.shares_memory(again.value_vectors, sd.value_vectors)


def test_integers_that_float32_cannot_hold():
    sd = SoftDict({np.float32(1): 0.0})
    sd.update({16777216: 1.0, 16777217: 2.0})
    assert len(sd) == 3
    assert sd.at(temperature=0)[16777217] == 2.0
    with pytest.raises(ValueError, match=r"16777217.*cannot hold exactly"):
        SoftDict({16777217: 2.0}, dtype=np.float32)


def test_squared_differences_that_underflow():
    keys = np.array([1e-30, 2e-30, 3e-30], dtype=np.float32)
    sd = SoftDict.from_arrays(keys, np.array([1.0, 2.0, 3.0]), temperature=0)
    assert [sd[key] for key in sd] == [1.0, 2.0, 3.0]
    assert sd[keys].tolist() == [1.0, 2.0, 3.0]


def overlap(q, k):
    """Score by a function of the user's own, which BLAS rounds differently from pair to pair."""
    return q @ k.T


@pytest.mark.parametrize(
    "similarity",
    ["gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(), InverseDistance(0.0),
     Bilinear(np.random.default_rng(0).normal(size=(64, 64))), overlap],
    ids=named,
)  # fmt: skip
def test_a_matrix_of_equal_keys_ties_exactly(similarity):
    row = np.random.default_rng(9).normal(size=64).astype(np.float32)
    labels = [f"row {i}" for i in range(1003)]
    sd = SoftDict.from_arrays(np.tile(row, (1003, 1)), np.arange(1003.0), labels, similarity=similarity)
    hard = sd.at(temperature=0).lookup(row)
    assert set(hard.weights.tolist()) == {1 / 1003}
    first = sd.at(top_k=1).lookup(row)
    assert first.winner == "row 0"
    assert np.flatnonzero(first.weights).tolist() == [0]
    agree(sd.at(temperature=0)[row], 501.0, tolerance(float, 0, 1002), "equal keys")
    assert sd.at(top_k=1)[row] == 0.0


def test_what_python_asks_is_soft():
    sd = SoftDict({0: 10.0, 1: 20.0})
    assert dict(sd) != dict(sd.hard) == {0.0: 10.0, 1.0: 20.0}
    soft = sd[0]
    sd.hard[0] += 1
    assert sd.hard[0] == 11.0
    sd[0] = 10.0
    sd[0] += 1
    assert sd.hard[0] == soft + 1


def test_character_ngrams_are_the_same_in_every_process():
    code = (
        "from softdict.encoders import CharNgrams; print(CharNgrams()(['a loyal pet', 'ß']).tobytes().hex())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1
    assert len(made.pop()) > 2
