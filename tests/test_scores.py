"""How alike are query and key: each named similarity, its exact ties, and its canonical scores."""

import math

import numpy as np
import oracle
import pytest
from oracle import agree, tolerance

from softdict import Bilinear, InverseDistance, SoftDict, lookup_weights, soft_lookup

INF = math.inf
DISTANCES = ["gaussian", "laplacian", InverseDistance(0.5), InverseDistance(0.0), InverseDistance(1e-300)]
NAMED = [*DISTANCES, "cosine", "dot", "scaled_dot"]
WIDTHS = [1, 2, 5, 6, 7, 8, 64, 301]  # either side of where the way of summing changes


def overlap(q, k):
    """Score by a function of the user's own, which BLAS rounds differently from pair to pair."""
    return q @ k.T


def bilinear(d):
    return Bilinear(np.random.default_rng(d).normal(size=(d, d)))


def scores_of(query, keys, similarity="gaussian", **options):
    """Return the canonical scores (m, n): labels let keys repeat."""
    labels = [f"row {i}" for i in range(len(keys))]
    sd = SoftDict.from_arrays(np.array(keys), np.zeros(len(keys)), labels, similarity=similarity)
    return sd.lookup(np.asarray(query), **options).scores


def pairs(d, dtype=float, m=5, n=9, scale=1.0, seed=0):
    rng = np.random.default_rng([seed, d])
    return ((rng.normal(size=(rows, d)) * scale).astype(dtype) for rows in (m, n))


each_similarity = pytest.mark.parametrize("similarity", NAMED, ids=str)
each_width = pytest.mark.parametrize("d", WIDTHS)


# ---- right -----------------------------------------------------------------------------------------


@each_similarity
@pytest.mark.parametrize("d", [1, 3, 6, 7, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_are_the_oracle_s(similarity, d, dtype):
    for scale in (1e-3, 1.0, 1e4):
        query, keys = pairs(d, dtype, scale=scale)
        keys[0] = query[0]
        want = oracle.Lookup(query, keys, similarity=similarity).scores
        # What sums of mixed sign lose is measured by the largest of their terms.
        size = 1.0 if similarity == "cosine" else max(np.abs(want[np.isfinite(want)]).max(), d * scale**2)
        agree(scores_of(query, keys, similarity), want, tolerance(float, 0, size), f"scores, {similarity}")


@pytest.mark.parametrize("d", [1, 3, 6, 7, 40])
def test_bilinear_is_the_dot_product_of_what_w_makes_of_the_query(d):
    query, keys = pairs(d)
    w = np.random.default_rng(1).normal(size=(d, d))
    want = oracle.Lookup(query[:2], keys[:3], similarity=Bilinear(w)).scores
    tol = tolerance(float, d * d, np.abs(want).max())
    agree(scores_of(query[:2], keys[:3], Bilinear(w)), want, tol, "scores, Bilinear")
    wide = Bilinear(w[:, :1])  # queries of width d, keys of width 1
    want = oracle.Lookup(query, keys[:, :1], similarity=wide).weights
    got = lookup_weights(query, keys[:, :1], similarity=wide)
    agree(got, want, tolerance(float, d * np.abs(query).max() * 10), "weights, Bilinear")


@pytest.mark.parametrize("d", [1, 3, 6, 7, 64])
def test_distances_survive_cancellation(d):
    for similarity, power in (("gaussian", 2), ("laplacian", 1)):
        query, keys = pairs(d)
        far_query, far_keys = query + 2.0**27, keys + 2.0**27  # rounds, but then exactly so
        back_query, back_keys = far_query - 2.0**27, far_keys - 2.0**27
        np.testing.assert_array_equal(
            scores_of(far_query, far_keys, similarity), scores_of(back_query, back_keys, similarity)
        )
        # Powers of two scale every sum exactly.
        np.testing.assert_array_equal(
            scores_of(query * 2.0**40, keys * 2.0**40, similarity),
            scores_of(query, keys, similarity) * 2.0 ** (40 * power),
        )


def test_scaled_dot_is_dot_over_the_root_of_the_width():
    for d in WIDTHS:
        query, keys = pairs(d)
        got, dot = scores_of(query, keys, "scaled_dot"), scores_of(query, keys, "dot")
        agree(got, dot / math.sqrt(d), tolerance(float, 0, np.abs(dot).max()), "scaled dot")


def test_where_lengths_are_equal_gaussian_and_dot_weigh_alike():
    for d in WIDTHS[1:]:
        query, keys = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in pairs(d))
        dot = lookup_weights(query, keys, similarity="dot", temperature=0.1)
        for similarity, temperature in (
            ("gaussian", 0.1),
            ("scaled_dot", 0.1 / math.sqrt(d)),
            ("cosine", 0.1),
        ):
            got = lookup_weights(query, keys, similarity=similarity, temperature=temperature)
            agree(got, dot, tolerance(float, 2 / 0.1), "equal lengths", similarity)


# ---- canonical -------------------------------------------------------------------------------------


@each_width
@pytest.mark.parametrize(
    "similarity", [*NAMED, bilinear, overlap], ids=lambda s: getattr(s, "__name__", str(s))
)
def test_a_score_does_not_depend_on_its_neighbors(similarity, d):
    similarity = bilinear(d) if similarity is bilinear else similarity
    query, keys = pairs(d, n=37)
    scores = scores_of(query, keys, similarity)
    rng = np.random.default_rng(2)
    for _ in range(5):
        rows, columns = rng.permutation(5)[: rng.integers(1, 6)], rng.integers(37, size=rng.integers(1, 50))
        some = scores_of(query[rows], keys[columns], similarity)  # turned, doubled, left out
        np.testing.assert_array_equal(some, scores[np.ix_(rows, columns)])
    layout = np.asfortranarray(np.repeat(keys, 2, axis=1))[:, ::2]
    np.testing.assert_array_equal(scores_of(query[:, ::1], layout, similarity), scores)


@each_width
@pytest.mark.parametrize(
    "similarity", [*NAMED, bilinear, overlap], ids=lambda s: getattr(s, "__name__", str(s))
)
def test_equal_keys_tie_wherever_they_stand(similarity, d):
    similarity = bilinear(d) if similarity is bilinear else similarity
    query, keys = pairs(d, n=30)
    doubled = np.concatenate([keys, keys[::-1], keys])
    scores = scores_of(query, doubled, similarity)
    np.testing.assert_array_equal(scores[:, :30], scores[:, 59:29:-1])
    np.testing.assert_array_equal(scores[:, :30], scores[:, 60:])
    hard = lookup_weights(query, doubled, similarity=similarity, temperature=0)
    assert (np.count_nonzero(hard, axis=1) % 3 == 0).all()
    first = lookup_weights(query, doubled, similarity=similarity, top_k=1)
    np.testing.assert_array_equal(first.argmax(axis=1), hard.argmax(axis=1))  # the earliest of them


@each_similarity
@each_width
def test_scores_are_symmetric(similarity, d):
    _, keys = pairs(d)
    keys[3] = keys[1]
    scores = scores_of(keys, keys, similarity)
    np.testing.assert_array_equal(scores, scores.T)


@each_width
def test_an_exact_hit_scores_exactly(d):
    for scale in (1e-200, 1e-30, 1.0, 1e30, 1e150):
        _, keys = pairs(d, scale=scale)
        for similarity in NAMED[:6]:
            hit = {"cosine": 1.0, "gaussian": 0.0, "laplacian": 0.0}.get(str(similarity))
            if hit is None:
                hit = -math.log(similarity.delta) if similarity.delta else INF
            assert set(np.diag(scores_of(keys, keys, similarity)).tolist()) == {hit}, (similarity, scale)


@pytest.mark.parametrize("similarity", DISTANCES, ids=str)
@each_width
def test_a_near_miss_is_behind_an_exact_hit(similarity, d):
    for size in (1e-200, 5e-324, 1e-30):
        keys = np.zeros((3, d))
        keys[1, -1], keys[2, 0] = size, -size
        scores = scores_of(keys, keys, similarity)
        assert (np.diag(scores)[:, None] > scores)[~np.eye(3, dtype=bool)].all()
        np.testing.assert_array_equal(
            lookup_weights(keys, keys, similarity=similarity, temperature=0), np.eye(3)
        )
        np.testing.assert_array_equal(lookup_weights(keys, keys, similarity=similarity, top_k=1), np.eye(3))


def test_minus_zero_is_zero():
    for similarity in NAMED:
        scores = scores_of([[0.0, -0.0]], [[-0.0, 0.0], [0.0, 0.0], [1.0, -0.0]], similarity)
        assert scores[0, 0] == scores[0, 1]
        again = scores_of([[-0.0, 0.0]], [[-0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], similarity)
        np.testing.assert_array_equal(again, scores)


# ---- cosine ----------------------------------------------------------------------------------------


@each_width
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_cosine_of_equal_vectors_is_one_and_of_none_above(d, dtype):
    keys = np.concatenate([*pairs(d, dtype, 40, 40), *pairs(d, dtype, 40, 40, 1e-30)])
    keys[-1] = 0
    scores = scores_of(keys, keys, "cosine")
    assert set(np.diag(scores)[:-1].tolist()) == {1.0}
    assert np.abs(scores).max() == 1.0
    assert not scores[-1].any()
    assert not scores[:, -1].any()
    opposite = scores_of(-keys, keys, "cosine")
    assert set(np.diag(opposite)[:-1].tolist()) == {-1.0}


@each_width
def test_the_cosine_knows_no_length(d):
    query, keys = pairs(d)
    scores = scores_of(query, keys, "cosine")
    for power in (-1000, -300, 300, 500, 1000):  # powers of two, so that nothing is rounded
        got = lookup_weights(np.ldexp(query, power), keys, similarity="cosine")
        np.testing.assert_array_equal(got, lookup_weights(query, keys, similarity="cosine"))
        got = lookup_weights(query, np.ldexp(keys, power), similarity="cosine", temperature=0.1)
        np.testing.assert_array_equal(got, lookup_weights(query, keys, similarity="cosine", temperature=0.1))
    np.testing.assert_array_equal(scores_of(query * 2, keys / 4, "cosine"), scores)


def test_the_cosine_of_huge_and_of_tiny_components():
    for size in (1e300, 1.7e308, 1e-300, 5e-324):
        query, keys = np.array([size, size]), np.array([[size, size], [size, 0.0], [-size, size], [0.0, 0.0]])
        want = np.exp([1, math.sqrt(0.5), 0, 0])
        got = lookup_weights(query, keys, similarity="cosine")
        agree(got, want / want.sum(), tolerance(float, 1), "cosine of huge and tiny", size)


# ---- overflow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 3, 6, 7, 64])
@pytest.mark.parametrize("similarity", ["gaussian", InverseDistance(0.5), InverseDistance(0.0)], ids=str)
def test_a_squared_distance_that_overflows_takes_its_entry_out(similarity, d):
    keys = np.zeros((4, d))
    keys[1], keys[2, 0], keys[3] = 1.0, 1e200, -1e300
    query = np.full(d, 0.5)
    for temperature in (0, 1.0, INF):
        w = lookup_weights(query, keys, similarity=similarity, temperature=temperature)
        assert not w[2:].any()
        agree(w[:2], [0.5, 0.5], tolerance(float), "beside an overflow")
        far = lookup_weights(query, keys[2:], similarity=similarity, temperature=temperature)
        assert not far.any()
    assert soft_lookup(query, keys, np.array([1.0, 3.0, np.nan, INF]), similarity=similarity) == 2.0


def test_a_sum_of_differences_that_overflows_takes_its_entry_out():
    keys = np.array([[1e308, 1e308], [1.0, 1.0], [-1e308, 0.0]])
    w = lookup_weights([0.0, 0.0], keys, similarity="laplacian", temperature=INF)
    np.testing.assert_array_equal(w, [0, 0.5, 0.5])


def test_the_largest_components_that_a_dict_takes_do_not_overflow():
    for d in range(1, 130):
        largest = math.sqrt(np.finfo(float).max / d) / 2
        with pytest.raises(ValueError, match=r"key vector of .* holds .*expected.*\. [A-Z]"):
            SoftDict.from_arrays(np.full((1, d), largest * (1 + 1e-12)), [1.0])
        accepted = 0
        for size in (largest * (1 - 1e-12), np.nextafter(largest, 0), largest):
            keys = np.array([[size] * d, [-size] * d])
            try:
                SoftDict.from_arrays(keys, [1.0, 2.0])
            except ValueError:  # so near to the limit that rounding decides
                continue
            accepted += 1
            for similarity in ("gaussian", "laplacian", InverseDistance(0.5), "cosine", "dot", "scaled_dot"):
                scores = scores_of(keys, keys, similarity)
                assert np.isfinite(scores).all(), (similarity, d, size / largest)
        assert accepted


# ---- the records -----------------------------------------------------------------------------------


def test_inverse_distance_weighs_by_the_inverse_square():
    for delta in (0.0, 1e-6, 2.0):
        w = lookup_weights(0.0, [1.0, 2.0, 4.0], similarity=InverseDistance(delta))
        raw = 1 / (np.array([1.0, 4.0, 16.0]) + delta)
        agree(w, raw / raw.sum(), tolerance(float, 3), "inverse distance")


@pytest.mark.parametrize("delta", [-1.0, math.nan, INF, -5e-324])
def test_a_negative_delta_is_refused(delta):
    with pytest.raises(ValueError, match=r"delta is .*expected in InverseDistance\. [A-Z]"):
        InverseDistance(delta)


@pytest.mark.parametrize("w", [[1.0, 2.0], 3.0, [[math.nan]], [[INF]], np.ones((2, 2, 2))])
def test_a_w_that_is_no_finite_matrix_is_refused(w):
    with pytest.raises(ValueError, match=r"W has shape .*expected in Bilinear\. [A-Z]"):
        Bilinear(w)


def test_records_compare_and_cannot_be_written():
    assert InverseDistance(1.0) == InverseDistance(1.0) != InverseDistance(2.0)
    assert Bilinear([[1, 2]]) == Bilinear(np.array([[1.0, 2.0]])) != Bilinear([[1, 3]])
    assert Bilinear([[0.0]]) == Bilinear([[-0.0]])
    mine = np.eye(2)
    rule = Bilinear(mine)
    mine[:] = 7
    assert rule.W.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match="read-only"):
        rule.W[0, 0] = 1
