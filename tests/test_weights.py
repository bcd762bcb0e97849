"""Scores to shares: what every weighting promises, and the temperature that `calibrate` finds."""

import math
import statistics
from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import agree, tolerance

from softdict import Entmax, SoftDict, lookup_weights
from softdict.weights import calibrate

INF = math.inf
ALPHAS = [1.0, 1.001, 1.2, 1.5, 1.9, 2.0, 2.5]
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", *map(Entmax, ALPHAS)]
SPARSE = ["sparsemax", "entmax15", Entmax(1.2), Entmax(2.5)]


def weights_of(scores, **options):
    """Return the weights of given scores: a query of 1 asks keys that are the scores, by dot."""
    return lookup_weights(1.0, np.asarray(scores, dtype=float), similarity="dot", **options)


def rows(rng, count=60):
    """Return rows of logits of many lengths and sizes, some with ties."""
    for _ in range(count):
        z = rng.normal(size=rng.integers(1, 40)) * 10.0 ** rng.integers(-4, 5)
        if rng.random() < 0.3:
            z[rng.integers(len(z), size=3)] = z.max()
        yield z


each_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)


# ---- shares ----------------------------------------------------------------------------------------


@each_weighting
@pytest.mark.parametrize("temperature", [0, 1e-320, 0.2, 1.0, 1e300, INF])
def test_shares_sum_to_one(weighting, temperature):
    rng = np.random.default_rng(0)
    for z in rows(rng):
        w = weights_of(z, weighting=weighting, temperature=temperature)
        agree(math.fsum(w), 1.0, tolerance(float), "sum of shares", z)
        assert (w >= 0).all()
        assert (w <= 1).all()


@each_weighting
def test_a_silent_entry_takes_the_rest(weighting):
    rng = np.random.default_rng(1)
    for z in rows(rng):
        null_score = float(z.mean())
        beside = weights_of([*z, null_score], weighting=weighting)
        agree(weights_of(z, weighting=weighting, null_score=null_score), beside[:-1],
              tolerance(float, np.abs(z).max()), "shares beside a null", z)  # fmt: skip
        sd = SoftDict.from_arrays(z[:, None], z, [f"row {i}" for i in range(len(z))], similarity="dot")
        seen = sd.at(weighting=weighting, null_score=null_score).lookup([1.0])
        agree(math.fsum([*seen.weights, seen.null_weight]), 1.0, tolerance(float), "sum with the null", z)


@each_weighting
def test_what_is_out_has_no_share_and_the_others_are_as_if_alone(weighting):
    rng = np.random.default_rng(2)
    for z in rows(rng):
        out = rng.random(len(z)) < 0.5
        spread = np.where(out, -INF, z)
        w = weights_of(spread, weighting=weighting)
        assert not w[out].any()
        alone = weights_of(z[~out], weighting=weighting)
        agree(w[~out], alone, tolerance(float, np.abs(z).max()), "as if alone", z)


# ---- the ends of the dial --------------------------------------------------------------------------


@each_weighting
def test_cold_is_the_best_alone(weighting):
    rng = np.random.default_rng(3)
    for z in rows(rng):
        best = z == z.max()
        want = best / best.sum()
        hard = weights_of(z, weighting=weighting, temperature=0)
        np.testing.assert_array_equal(hard != 0, best)
        agree(hard, want, tolerance(float), "hard", z)
        for cold in (5e-324, 1e-300):
            found = weights_of(z, weighting=weighting, temperature=cold)
            np.testing.assert_array_equal(found != 0, best)
            agree(found, want, tolerance(float), "cold", z)


@each_weighting
def test_hot_is_the_plain_mean(weighting):
    rng = np.random.default_rng(4)
    for z in rows(rng):
        mean = weights_of(z, weighting=weighting, temperature=INF)
        agree(mean, np.full(len(z), 1 / len(z)), tolerance(float), "mean")
        assert len(set(mean.tolist())) == 1
        agree(
            weights_of(z, weighting=weighting, temperature=1e300), 1 / len(z) + 0 * z, tolerance(float), "hot"
        )


@pytest.mark.parametrize(("weighting", "alpha"), [("sparsemax", 2), ("entmax15", 1.5), (Entmax(1.2), 1.2)])
def test_a_sparse_weighting_is_hard_from_a_gap_on(weighting, alpha):
    # One entry alone stands at lifted height 1; who is 1 lower, in (alpha - 1) z / T, has no share.
    gap = 1 / (alpha - 1)
    np.testing.assert_array_equal(weights_of([0, -gap * 1.01], weighting=weighting), [1, 0])
    w = weights_of([0, -gap * 0.8], weighting=weighting)
    assert 0 < w[1] < w[0] < 1
    np.testing.assert_array_equal(weights_of([0, -1.0], weighting=weighting, temperature=0.9 / gap), [1, 0])


@each_weighting
def test_temperature_divides_scores(weighting):
    rng = np.random.default_rng(5)
    for z in rows(rng, 30):
        temperature = 2.0 ** rng.integers(-9, 10)  # a power of two divides exactly
        np.testing.assert_array_equal(
            weights_of(z, weighting=weighting, temperature=temperature),
            weights_of(z / temperature, weighting=weighting),
        )


# ---- order -----------------------------------------------------------------------------------------


@each_weighting
def test_a_better_score_never_gets_less(weighting):
    rng = np.random.default_rng(6)
    for z in rows(rng):
        w = weights_of(z, weighting=weighting)
        order = np.argsort(z)
        assert (np.diff(w[order]) >= 0).all()
        assert len(set(w[z == z.max()].tolist())) == 1  # equal scores, equal shares, to the last bit


@each_weighting
def test_who_rises_takes_from_the_others(weighting):
    rng = np.random.default_rng(7)
    for z in rows(rng):
        j = rng.integers(len(z))
        higher = z.copy()
        higher[j] += rng.exponential() * np.ptp(z)
        before, after = weights_of(z, weighting=weighting), weights_of(higher, weighting=weighting)
        tol = tolerance(float, np.abs(higher).max())
        others = np.arange(len(z)) != j
        assert after[j] >= before[j] - tol
        assert (after[others] <= before[others] + tol).all()


@each_weighting
def test_the_place_of_an_entry_does_not_matter(weighting):
    rng = np.random.default_rng(8)
    for z in rows(rng):
        turn = rng.permutation(len(z))
        w = weights_of(z, weighting=weighting)
        agree(weights_of(z[turn], weighting=weighting), w[turn], tolerance(float, np.abs(z).max()), "turned")


@each_weighting
def test_a_common_shift_changes_nothing(weighting):
    rng = np.random.default_rng(9)
    for z in rows(rng, 30):
        z = np.round(z * 256) / 256  # so that the shifted ones are exact
        w = weights_of(z, weighting=weighting)
        np.testing.assert_array_equal(weights_of(z + 1024, weighting=weighting), w)
        np.testing.assert_array_equal(weights_of(z, weighting=weighting, bias=np.full(len(z), 3.0)), w)


@pytest.mark.parametrize("weighting", SPARSE, ids=str)
def test_who_has_left_may_as_well_be_out(weighting):
    rng = np.random.default_rng(10)
    seen = 0
    for z in rows(rng):
        w = weights_of(z, weighting=weighting)
        seen += int((w == 0).sum())
        again = weights_of(np.where(w > 0, z, -INF), weighting=weighting)
        agree(again, w, tolerance(float, np.abs(z).max()), "the support alone", z)
    assert seen > 100


# ---- entmax ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1 + 1e-12, 1 + 1e-6, 1.01, 1.1, 1.2, 1.49, 1.5, 1.51, 1.9, 2.0, 2.1, 3.0])
def test_entmax_is_the_bisection(alpha):
    rng = np.random.default_rng(11)
    for n, scale in ((1, 1), (2, 1), (3, 1e-3), (9, 0.1), (9, 3), (30, 30), (4, 0), (4, 1e-9)):
        z = rng.normal(size=n) * scale
        if n == 9:
            z[3] = z[5]
        want = oracle.entmax([Fraction(x) for x in z.tolist()], alpha)
        tol = tolerance(float, np.abs(z).max())
        agree(weights_of(z, weighting=Entmax(alpha)), want, tol, "entmax", (alpha, z))


@pytest.mark.parametrize(
    ("alpha", "z"),
    [
        (4.0, [-0.0101786, 0.00435967, 0.00410509, 0.00410509, 0.0116258, 0.01291322, 0.00343971]),
        (6.0, [0.0, -0.25, -0.0625]),
        (11.0, [0.05158292, -0.02211883, -0.04663604]), (11.0, [0.0, 0.0, 0.0, 0.0, -0.5]),
        (16.0, [0.00033951, -0.00128538, 0.00236916]),
    ],
)  # fmt: skip
def test_entmax_is_the_bisection_for_large_alphas_too(alpha, z):
    want = oracle.entmax([Fraction(x) for x in z], alpha)
    agree(weights_of(z, weighting=Entmax(alpha)), want, tolerance(float, max(map(abs, z))), "large alpha", z)


@pytest.mark.parametrize("n", [1, 2, 33, 3000])
@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.5, 2.0, 3.0, 8.0, 100.0])
def test_equal_logits_share_equally_under_every_alpha(alpha, n):
    w = weights_of(np.full(n, 0.7), weighting=Entmax(alpha))
    agree(w, np.full(n, 1 / n), tolerance(float), "equal logits")
    assert len(set(w.tolist())) == 1


def test_names_are_alphas():
    rng = np.random.default_rng(12)
    for z in rows(rng):
        for name, alpha in (("softmax", 1), ("entmax15", 1.5), ("sparsemax", 2)):
            np.testing.assert_array_equal(
                weights_of(z, weighting=name), weights_of(z, weighting=Entmax(alpha)), err_msg=name
            )


def test_a_larger_alpha_leaves_fewer():
    z = np.random.default_rng(13).normal(size=50) * 2
    counts = [np.count_nonzero(weights_of(z, weighting=Entmax(alpha))) for alpha in (1, 1.2, 1.5, 2, 3)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 50
    assert counts[-1] < counts[2] < 50


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    # A definition of its own: w is nearest to z if no step towards a corner comes nearer.
    rng = np.random.default_rng(14)
    for _ in range(40):
        z = rng.normal(size=rng.integers(2, 12)) * 2
        w = weights_of(z, weighting="sparsemax")
        corners = np.eye(len(z))
        uphill = (corners - w) @ (z - w)  # the slope of -|z - w|^2 / 2 towards each corner
        assert (uphill <= tolerance(float, np.abs(z).max(), 2 * np.abs(z).max())).all()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8),
    st.sampled_from([*WEIGHTINGS, Entmax(8.0)]),
    st.floats(min_value=0.0),
)
def test_any_finite_scores_at_any_temperature_share(scores, weighting, temperature):
    w = weights_of(scores, weighting=weighting, temperature=temperature)
    agree(math.fsum(w), 1.0, tolerance(float), "sum of shares of anything")
    best = max(scores)
    assert w[scores.index(best)] == w.max()


@pytest.mark.parametrize("alpha", [0.99, 0, -1, INF, math.nan])
def test_an_alpha_below_one_is_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha is .*at least 1 was expected in Entmax\. [A-Z]"):
        Entmax(alpha)


@pytest.mark.parametrize("alpha", ["2", None, True, [1.5]])
def test_an_alpha_is_a_number(alpha):
    with pytest.raises(TypeError, match=r"alpha is .*at least 1 was expected in Entmax\. [A-Z]"):
        Entmax(alpha)


# ---- top_k and min_score ---------------------------------------------------------------------------


@each_weighting
def test_top_k_is_the_k_best_alone(weighting):
    rng = np.random.default_rng(15)
    for z in rows(rng):
        k = int(rng.integers(1, 12))
        best = np.argsort(-z, kind="stable")[:k]  # the earlier first among equals
        alone = np.full(len(z), -INF)
        alone[best] = z[best]
        for temperature in (0, 1.0, INF):
            got = weights_of(z, weighting=weighting, top_k=k, temperature=temperature)
            want = weights_of(alone, weighting=weighting, temperature=temperature)
            np.testing.assert_array_equal(got, want)


def test_top_k_ranks_by_logits_where_there_is_a_bias():
    z, bias = [3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 2.5, 4.0]
    kept = {}
    for temperature in (0, 0.5, 1.0, 10.0, INF):
        w = weights_of(z, bias=bias, top_k=2, temperature=temperature)
        kept[temperature] = np.flatnonzero(w).tolist()
    assert kept == {0: [0], 0.5: [0, 2], 1.0: [2, 3], 10.0: [2, 3], INF: [2, 3]}
    # at T = 0 by score, then bias; at T = inf by bias, then score; then the earlier
    assert np.flatnonzero(weights_of([1.0] * 4, bias=bias, top_k=1, temperature=0)).tolist() == [3]
    assert np.flatnonzero(weights_of(z, bias=[1.0] * 4, top_k=1, temperature=INF)).tolist() == [0]
    assert np.flatnonzero(weights_of([1.0] * 4, bias=[1.0] * 4, top_k=1, temperature=INF)).tolist() == [0]


def test_min_score_comes_before_top_k_and_the_silent_entry():
    z = [3.0, 2.0, 1.0]
    np.testing.assert_array_equal(weights_of(z, min_score=2.5, top_k=3, temperature=INF), [1, 0, 0])
    np.testing.assert_array_equal(weights_of(z, min_score=9, null_score=-5.0), [0, 0, 0])
    half = weights_of(z, min_score=2.5, null_score=3.0)  # the null is below no min_score
    agree(half, [0.5, 0, 0], tolerance(float, 3), "null beside min_score")
    third = weights_of(z, top_k=1, null_score=-9.0, temperature=INF)  # and counts for no top_k
    np.testing.assert_array_equal(third, [0.5, 0, 0])


# ---- calibrate -------------------------------------------------------------------------------------


def test_calibrate_finds_what_was_wanted():
    rng = np.random.default_rng(16)
    for _ in range(15):
        logits = rng.normal(size=(int(rng.integers(1, 6)), 12)) * 10.0 ** rng.integers(-6, 7)
        wanted = float(rng.uniform(1.05, 11.9))
        temperature = calibrate(logits, wanted)
        found = statistics.median(oracle.effective((row / temperature).tolist()) for row in logits)
        agree(found, wanted, tolerance(float, np.abs(logits).max() / temperature, 12), "calibrate", wanted)


def test_calibrate_agrees_with_the_bisection():
    for logits, wanted in (([[3.0, 2.0, 1.0, 0.0]], 2.0), ([[0.0, 1.0, 5.0], [2.0, 2.5, 2.75]], 1.5)):
        want = oracle.calibrate(logits, wanted)
        agree(calibrate(logits, wanted), want, tolerance(float, 5 / want, want), "calibrated temperature")


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_calibrate_heeds_the_weighting(weighting):
    logits = np.random.default_rng(17).normal(size=(5, 30))
    temperature = calibrate(logits, 4.0, weighting=weighting)
    found = []
    for row in logits:
        shares = weights_of(row, weighting=weighting, temperature=temperature)
        found.append(math.exp(-math.fsum(p * math.log(p) for p in shares if p)))
    agree(statistics.median(found), 4.0, tolerance(float, 3 / temperature, 4), "calibrate", weighting)


def test_calibrate_heeds_what_takes_part():
    logits = [4.0, 3.0, 2.0, 1.0, 0.0, -INF]
    for wanted, options in ((3, {"top_k": 3}), (2, {"min_score": 3.0}), (5, {})):  # all that take part
        hot = calibrate(logits, wanted, **options)
        agree(oracle.effective([z / hot for z in logits[:wanted]]), wanted, tolerance(float, 0, 5), "all")
        with pytest.raises(ValueError, match=f"{wanted} take part"):
            calibrate(logits, wanted + 0.01, **options)
    assert calibrate(logits, 1) == 0.0
    few = calibrate(logits, 1.5, top_k=2)
    agree(oracle.effective([0.0, -1 / few]), 1.5, tolerance(float, 4 / few, 2), "calibrate beside top_k")


@pytest.mark.parametrize(
    ("logits", "wanted"),
    [
        ([1.0, 1.0, 0.0, 0.0], 1.5), ([1.0, 0.0], 2.5), ([1.0, 0.0], 0.5), ([1.0, 1.0], 2), ([1.0], 1),
        ([[0.0, -INF], [-INF, 0.0]], 1), ([-INF, -INF], 1), ([1.0, 0.0], math.nan), ([1.0, 0.0], INF),
    ],
)  # fmt: skip
def test_calibrate_says_what_can_be_reached(logits, wanted):
    with pytest.raises(ValueError, match=r"effective is .*expected in calibrate.*\. [A-Z]"):
        calibrate(logits, wanted)


def test_calibrate_wants_scores():
    for nothing in ([], np.zeros((0, 3)), np.zeros((3, 0))):
        with pytest.raises(ValueError, match=r"scores have shape .*expected in calibrate\. [A-Z]"):
            calibrate(nothing, 1)
