"""Odd inputs that once got a wrong answer, each with the right one."""

import math

import numpy as np
import pytest
from oracle import agree, tolerance

from softdict import Bilinear, Entmax, InverseDistance, SoftDict, _backend, lookup_weights, soft_lookup
from softdict.weights import calibrate

TINY_BUDGET = 1e-6


def by_blas(q, k):
    """Score by a function that rounds differently from pair to pair."""
    return q @ k.T


def test_temperature_minus_zero_is_zero():
    np.testing.assert_array_equal(lookup_weights(0.0, [0.0, 1.0, 2.0], temperature=-0.0), [1, 0, 0])


def test_infinite_products_that_cancel_are_no_nan():
    for similarity in ("dot", "scaled_dot"):
        weights = lookup_weights([1e200, 1e200], [[1e200, -1e200], [0, 0]], similarity=similarity)
        np.testing.assert_array_equal(weights, [0.5, 0.5])
    assert np.isnan(lookup_weights([1e200, np.nan], [[1e200, -1e200], [0, 0]], similarity="dot")).all()
    keys = np.array([[0.0, 1.0], [0.0, 2.0]])
    sd = SoftDict.from_arrays(keys, [1.0, 2.0], similarity=Bilinear([[1e308, 0], [0, 1]]))
    assert np.isfinite(sd[np.array([10.0, 1.0])])


def test_an_exact_hit_beats_a_near_miss():
    for delta in np.random.default_rng(0).random(3000) * 1e-10:
        settings = {"similarity": InverseDistance(float(delta)), "temperature": 0}
        assert soft_lookup(0.0, [4e-14, 0.0], [2.0, 1.0], **settings) == 1, delta
        assert soft_lookup(0.0, [4e-14, 0.0], [2.0, 1.0], top_k=1, **settings) == 1, delta


def test_equal_keys_tie_under_a_function_of_one_s_own(monkeypatch):
    rng = np.random.default_rng(0)
    row = rng.normal(size=17)
    keys, values = np.tile(row, (7, 1)), np.arange(7.0)
    labels = list("abcdefg")
    for _ in range(50):
        query = np.abs(rng.normal(size=17))
        for settings, want in (
            ({"temperature": 0}, 3),
            ({"temperature": 0, "top_k": 7}, 3),
            ({"top_k": 1}, 0),
        ):
            sd = SoftDict.from_arrays(keys, values, labels, similarity=by_blas, **settings)
            assert sd[query] == want
            assert (sd.lookup(query).weights @ values) == want
            one, six = (
                SoftDict.from_arrays(keys[c], values[c], labels[c], similarity=by_blas, **settings)
                for c in (slice(0, 1), slice(1, 7))
            )
            merged = six.partial(query, offset=1) + one.partial(query)
            assert merged.finish() == pytest.approx(want, abs=tolerance(float, 0, 6))
            with monkeypatch.context() as patch:
                patch.setattr(_backend, "budget_mib", TINY_BUDGET)
                assert sd[query] == pytest.approx(want, abs=tolerance(float, 0, 6))


def test_nan_passes_through_top_k_in_tiles_too(monkeypatch):
    keys, values = np.array([0.0, np.nan, 2.0]), np.array([1.0, 2.0, 3.0])
    assert np.isnan(soft_lookup(0.0, keys, values, top_k=1))
    monkeypatch.setattr(_backend, "budget_mib", TINY_BUDGET)
    assert np.isnan(soft_lookup(0.0, keys, values, top_k=1))


def test_the_sign_of_a_zero_survives_tiles(monkeypatch):
    monkeypatch.setattr(_backend, "budget_mib", TINY_BUDGET)
    for options in ({}, {"top_k": 1}, {"weighting": "sparsemax"}):
        answer = soft_lookup(0.0, [0.0, 1.0, 2.0], [-0.0, 2.0, 3.0], temperature=0, **options)
        assert np.signbit(answer)


def test_a_masked_nan_does_not_move_the_last_bit():
    rng = np.random.default_rng(3)
    query, keys, values = rng.normal(size=(4, 8)), rng.normal(size=(64, 8)), rng.normal(size=(64, 3))
    where = np.ones((4, 64), bool)
    where[:3, 63] = False
    spoiled = [values.copy() for _ in range(3)]
    for array, odd in zip(spoiled, (7.0, np.nan, np.inf), strict=True):
        array[63] = odd
    answers = [soft_lookup(query, keys, array, where=where)[:3] for array in spoiled]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_ties_of_infinite_scores_are_weighed_by_bias_in_a_function_of_one_s_own():
    def softmax(z):
        e = np.exp(z - z.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    options = {"similarity": InverseDistance(0.0), "bias": [0.0, 1.0, 0.0]}
    mine = lookup_weights(0.0, [0.0, 0.0, 1.0], weighting=softmax, **options)
    np.testing.assert_array_equal(mine, lookup_weights(0.0, [0.0, 0.0, 1.0], **options))
    assert soft_lookup(np.zeros((1, 2)), np.zeros((0, 2)), np.zeros((0, 1)), weighting=softmax) == 0


@pytest.mark.parametrize("alpha", [3.0, 15.0, 1e3, 1e12, 1e300])
def test_entmax_of_large_alpha_still_sums_to_one_and_favors_the_best(alpha):
    weights = lookup_weights(1.0, [0.0, -0.5 / (alpha - 1)], similarity="dot", weighting=Entmax(alpha))
    assert abs(weights.sum() - 1) <= tolerance(float)
    assert weights[0] >= 0.75


def test_an_array_with_a_mask_of_its_own_is_no_where():
    with pytest.raises(TypeError, match="masked array"):
        soft_lookup(0.0, [0.0, 1.0], [1.0, 2.0], where=np.ma.array([True, True], mask=[1, 0]))


@pytest.mark.parametrize(
    ("scores", "settings"),
    [([3, 1, 2], {"min_score": "a"}), ([3, 1, 2], {"top_k": -1}), ([np.nan, 1, 2], {}),
     ([[[1, 2, 3]]], {}), ([np.inf, 1, 2], {}), ([3, 1, 2], {"foo": 1})],
)  # fmt: skip
def test_calibrate_refuses_in_full_what_it_cannot_use(scores, settings):
    with pytest.raises((TypeError, ValueError), match=r"expected.*\. [A-Z]"):
        calibrate(scores, 1.5, **settings)


def test_calibrate_takes_the_largest_scores():
    temperature = calibrate([1e308, -1e308, 0], 1.5)
    assert 1e307 < temperature < 1e308


def test_width_zero_and_no_queries_have_a_partial_answer():
    sd = SoftDict.from_arrays(np.zeros((2, 0)), np.zeros((2, 0)), labels=["a", "b"])
    assert sd.partial(np.zeros((0, 0))).finish().shape == (0, 0)


def test_calibrate_finds_a_temperature_far_below_the_spread_of_the_scores():
    keys = [(0.0, y) for y in (0.0, 5e-324, 1e-30, 1.0, 3.8e153, 0.0625)]
    sd = SoftDict({key: 1.0 for key in keys})
    for effective in (2.0, 3.5, 4.2):
        sd.temperature = sd.calibrate(effective)
        reached = np.median(sd.self_attention(exclude_self=True).effective)
        assert reached == pytest.approx(effective, abs=tolerance(float, 10, effective))


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0}, {"weighting": "sparsemax"}, {"weighting": "sparsemax", "temperature": 0},
     {"top_k": 7, "temperature": math.inf}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("m", "n"), [(9, 3), (400, 1000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shares_of_the_largest_number_do_not_round_over_it(options, m, n, dtype):
    largest = np.finfo(dtype).max
    query, keys = np.linspace(0, 2, m, dtype=dtype), np.linspace(0, 2, n, dtype=dtype)
    got = soft_lookup(query, keys, np.full(n, largest), **options)
    agree(got / largest, np.ones(m), tolerance(dtype, 100, 1), "largest", options)
    values = np.full(n, largest)
    values[0] = math.inf  # what is infinite stays so, for those who share it
    got = soft_lookup(keys[:1], keys, values, **options)
    assert (got == math.inf).all()
