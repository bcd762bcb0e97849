"""The functions against the oracle: every similarity, weighting and option, shape and dtype."""

import itertools
import math
import tracemalloc

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import agree

from softdict import Bilinear, Entmax, InverseDistance, SoftDict, _backend, lookup_weights, soft_lookup

INF = math.inf
LARGEST = np.finfo(np.float64).max


def overlap(q, k):
    """Score by a function of the user's own, which BLAS rounds differently from pair to pair."""
    return q @ k.T / 3


def halves(z):
    """Weigh by a function of the user's own: 2 to the power of the logits."""
    w = np.exp2(z - np.max(z, axis=-1, keepdims=True, where=z > -np.inf, initial=-LARGEST))
    return w / np.maximum(w.sum(axis=-1, keepdims=True), 1e-300)


def learned(rng, d):
    """Return a Bilinear whose queries are wider than its keys."""
    return Bilinear(rng.normal(size=(d + 1, d)))


SIMILARITIES = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), InverseDistance(0.0),
    learned, overlap,
]  # fmt: skip
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2), Entmax(1), halves]
TEMPERATURES = [0, 1e-320, 0.3, 1.0, 30.0, INF]
OPTIONS = [
    {}, {"top_k": 3}, {"min_score": -0.7}, {"null_score": -0.4},
    {"top_k": 4, "min_score": -4.0, "null_score": 0.2},
]  # fmt: skip


def named(x):
    return getattr(x, "__name__", str(x))


def each(name, cases):
    return pytest.mark.parametrize(name, cases, ids=named)


def problem(kind, d=3, m=3, n=9, seed=0):
    """Return query (m, d), keys (n, d) and values (n, 2) with one equal pair and one exact hit."""
    rng = np.random.default_rng([seed, d, m, n])
    query, keys = rng.normal(size=(m, d)), rng.normal(size=(n, d))
    values = rng.normal(size=(n, 2))
    if kind == "logits of 30":
        query, keys = query * 5, keys * 5
    elif kind == "logits of 1000":
        query, keys = query * 30, keys * 30
    elif kind == "far from the origin":
        query, keys = query + 1e6, keys + 1e6
    elif kind == "far clusters":
        shift = np.where(np.arange(max(m, n)) % 2, 1e4, -1e4)[:, None]
        query, keys = query + shift[:m], keys + shift[:n]
    elif kind == "blends that cancel":
        values = 1e3 + rng.normal(size=(n, 2)) * 1e-3
        values[::2] *= -1
    else:
        assert kind == "logits of 1"
    if n > 5:
        keys[4] = keys[2]
        query[1:2] = keys[5]
    return query, keys, values


def random_options(rng, m, n):
    """Return any of the options, each as likely as not."""
    options = {
        "where": rng.random((m, n)) < 0.7,
        "bias": np.where(rng.random((m, n)) < 0.8, rng.normal(size=(m, n)), -INF),
        "top_k": int(rng.integers(1, n + 3)),
        "min_score": float(rng.choice([-0.3, -2.0, -50.0])),
        "null_score": float(rng.choice([-3.0, -0.4, 0.3])),
    }
    if rng.random() < 0.3 and n:
        options["where"], options["bias"] = options["where"][:1], rng.normal(size=n)
    return {name: value for name, value in options.items() if rng.random() < 0.35}


def check(query, keys, values, what, **options):
    """Compare soft_lookup and lookup_weights with the oracle."""
    want = oracle.Lookup(query, keys, values, **options)
    context = (what, query, keys, values, options)
    value = soft_lookup(query, keys, values, **options)
    agree(value, want.value, want.tolerance(value.dtype), f"value, {what}", context)
    weights = lookup_weights(query, keys, **options)
    agree(weights, want.weights, want.weights_tolerance(weights.dtype), f"weights, {what}", context)
    np.testing.assert_array_equal(weights != 0, (weights != 0) & want.kept)
    return want, value, weights


@each("weighting", WEIGHTINGS)
@each("similarity", SIMILARITIES)
def test_every_option_is_the_oracle_s(similarity, weighting):
    rng = np.random.default_rng([SIMILARITIES.index(similarity), WEIGHTINGS.index(weighting)])
    costly = isinstance(weighting, Entmax) and weighting.alpha > 1
    for temperature in TEMPERATURES * 2:
        d, m, n = int(rng.integers(1, 9)), int(rng.choice([0, 1, 5])), int(rng.choice([0, 1, 2, 9, 33]))
        if costly and m * n > 33:
            m = 1
        if similarity == "cosine" and d == 1:  # all cosines are 1 or -1, and rounding ranks them
            d = 2
        query, keys, values = problem(rng.choice(["logits of 1", "logits of 30"]), d, m, n, rng.integers(99))
        rule = similarity
        if similarity is learned:
            rule, query = learned(rng, d), rng.normal(size=(m, d + 1))
        dtype = rng.choice([np.float16, np.float32, np.float64])
        query, keys, values = (x.astype(dtype) for x in (query, keys, values))
        options = {"similarity": rule, "weighting": weighting, **random_options(rng, m, n)}
        _, value, weights = check(query, keys, values, named(similarity), temperature=temperature, **options)
        assert value.dtype == weights.dtype == dtype
        if temperature == 1e-320 and "null_score" not in options:
            # So cold that nothing but a tie can share. The tolerance is infinite here: look at the bits.
            hard = lookup_weights(query, keys, temperature=0, **options)
            np.testing.assert_array_equal(weights, hard)


@each("kind", ["logits of 30", "logits of 1000", "far from the origin", "far clusters", "blends that cancel"])
@pytest.mark.parametrize("d", [1, 3, 6, 7, 20])
def test_hard_inputs_are_the_oracle_s(kind, d):
    query, keys, values = problem(kind, d, m=2)
    similarities = ["gaussian", "laplacian", InverseDistance(0.5)]
    if not kind.startswith("far"):
        similarities += ["dot", "scaled_dot"] + ["cosine"] * (d > 1)
    for i, similarity in enumerate(similarities):
        for j, options in enumerate(OPTIONS):
            for weighting in ("softmax", WEIGHTINGS[(i + j) % 5]):
                check(query, keys, values, kind, similarity=similarity, weighting=weighting, **options)


def test_a_plain_expansion_would_be_seen():
    query, keys, values = problem("far from the origin", 3)
    want = oracle.Lookup(query, keys, values)
    scores = query @ keys.T - (query * query).sum(1)[:, None] / 2 - (keys * keys).sum(1) / 2
    w = np.exp(scores - scores.max(axis=1, keepdims=True))
    with pytest.raises(AssertionError, match="times the tolerance"):
        agree(w @ values / w.sum(1, keepdims=True), want.value, want.tolerance(float), "plain expansion")
    del oracle.worst["plain expansion"]


finite = st.integers(-1000, 1000).map(lambda x: x / 8)  # exact in every sum, so that ties are ties


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_plain_numbers_of_any_kind_are_the_oracle_s(data):
    n = data.draw(st.integers(0, 5))
    keys, values = (np.array(data.draw(st.lists(finite, min_size=n, max_size=n))) for _ in range(2))
    query = data.draw(st.one_of(finite, st.lists(finite, max_size=3).map(np.array)))
    options = data.draw(
        st.fixed_dictionaries(
            {
                "similarity": st.sampled_from(["gaussian", "laplacian", "dot", InverseDistance(0.25)]),
                "weighting": st.sampled_from(["softmax", "sparsemax", "entmax15"]),
                "temperature": st.sampled_from([0, 0.5, 1, 1000, INF]),
            },
            optional={
                "top_k": st.integers(1, 6),
                "min_score": st.sampled_from([-INF, -8.0, -0.5, 0.0, INF]),
                "null_score": st.sampled_from([-8.0, -0.5, 0.0, 1.0]),
            },
        )
    )
    check(np.asarray(query, dtype=float), keys, values, "plain numbers", **options)


def test_the_boundary_of_min_score_takes_part():
    for similarity, low in (("gaussian", -2.0), ("laplacian", -2.0), ("dot", 4.0)):
        options = {"similarity": similarity, "min_score": low, "temperature": INF}
        weights = lookup_weights([2.0, 0.0], [[4.0, 0], [2.0, 2], [2.0, 2.5], [1.0, 9]], **options)
        below = [False, False, similarity != "dot", True]
        assert (weights == 0).tolist() == below, similarity


# ---- the dict, its parts and its tiles -----------------------------------------------------------


@each("weighting", WEIGHTINGS[:4])
@pytest.mark.parametrize("temperature", [0, 1.0, INF])
def test_the_dict_its_lookup_its_parts_and_its_tiles_say_the_same(weighting, temperature, monkeypatch):
    rng = np.random.default_rng(6)
    for kind in ("logits of 1", "logits of 30", "far clusters", "blends that cancel"):
        query, keys, values = problem(kind, m=2)
        for options in OPTIONS:
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
    where, bias = rng.random((5, 1, 6)) < 0.8, rng.normal(size=(2, 1, 3, 1))
    value = soft_lookup(query, keys, values, where=where, bias=bias)
    weights = lookup_weights(query, keys, where=where, bias=bias)
    assert value.shape == (2, 5, 3, 2)
    assert weights.shape == (2, 5, 3, 6)
    want = oracle.Lookup(query, keys, values, where=where, bias=bias)
    agree(value, want.value, want.tolerance(float), "leading axes")
    for a, b in itertools.product(range(2), range(5)):
        options = {"where": where[b], "bias": bias[a, 0]}
        np.testing.assert_array_equal(value[a, b], soft_lookup(query[a, 0], keys[b], values, **options))
        np.testing.assert_array_equal(weights[a, b], lookup_weights(query[a, 0], keys[b], **options))


@pytest.mark.parametrize(
    ("query", "keys", "values", "want"),
    [
        ((), (6,), (6,), ()), ((), (6,), (6, 2), (2,)), ((3,), (6,), (6,), (3,)),
        ((3,), (6,), (6, 2), (3, 2)), ((0,), (6,), (6,), (0,)), ((), (0,), (0,), ()),
        ((), (0,), (0, 2), (2,)),
        ((4,), (6, 4), (6,), ()), ((4,), (6, 4), (6, 2), (2,)), ((3, 4), (6, 4), (6,), (3,)),
        ((3, 4), (6, 4), (6, 2), (3, 2)), ((0, 4), (6, 4), (6, 2), (0, 2)), ((3, 4), (0, 4), (0, 2), (3, 2)),
        ((4,), (1, 4), (1,), ()), ((1, 4), (1, 4), (1,), (1,)), ((3, 4), (6, 4), (6, 0), (3, 0)),
        ((7, 3, 4), (7, 6, 4), (7, 6, 2), (7, 3, 2)), ((4,), (7, 6, 4), (6, 2), (7, 2)),
        ((3, 4), (6, 4), (7, 6, 2), (7, 3, 2)), ((0, 3, 4), (6, 4), (6, 2), (0, 3, 2)),
        ((3, 4), (7, 6, 4), (6,), (7, 3)),
    ],
)  # fmt: skip
def test_shapes(query, keys, values, want):
    rng = np.random.default_rng(4)
    query, keys, values = rng.normal(size=query), rng.normal(size=keys), rng.normal(size=values)
    value = soft_lookup(query, keys, values)
    assert np.shape(value) == want
    right = oracle.Lookup(query, keys, values)
    agree(value, right.value, right.tolerance(float), "shapes")
    if values.ndim == 1:
        assert np.shape(lookup_weights(query, keys)) == (*want, len(values))


def test_one_query_is_a_row_of_a_batch():
    rng = np.random.default_rng(5)
    query, keys, values = rng.normal(size=(3, 4)), rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
    where, bias = rng.random((3, 6)) < 0.7, rng.normal(size=(3, 6))
    batch = soft_lookup(query, keys, values, where=where, bias=bias)
    for i in range(3):
        one = soft_lookup(query[i], keys, values, where=where[i], bias=bias[i])
        agree(one, batch[i], oracle.tolerance(float, 10, np.abs(values).max()), "one query")
        assert one.shape == (2,)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_float_comes_back_as_it_went_in(dtype):
    query, keys, values = (x.astype(dtype) for x in problem("logits of 30"))
    value = check(query, keys, values, f"{np.dtype(dtype)}")[1]
    weights = lookup_weights(query, keys)
    assert value.dtype == weights.dtype == dtype
    assert soft_lookup(query, keys, values.astype(int)).dtype == np.float64
    assert soft_lookup(query.astype(int), keys, values).dtype == np.float64
    assert soft_lookup(query, keys.astype(np.float64), values).dtype == np.float64
    assert soft_lookup(query[0], keys, values[:, 0]).dtype == dtype
    assert lookup_weights(query.astype(np.float16), keys).dtype == dtype
    assert soft_lookup(query.tolist(), keys.tolist(), values.tolist()).dtype == np.float64


def test_the_input_is_left_as_it_was():
    query, keys, values = problem("logits of 1")
    where, bias = np.ones((3, 9), bool), np.zeros((3, 9))
    inputs = [query, keys, values, where, bias]
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    for similarity in ("gaussian", "cosine", "dot", InverseDistance(0.0), overlap):
        soft_lookup(query, keys, values, similarity=similarity, where=where, bias=bias, top_k=2, min_score=-9)
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y)


# ---- never NaN -------------------------------------------------------------------------------------


@each("similarity", [s for s in SIMILARITIES if s is not learned] + [Bilinear(np.eye(3) - 0.5)])
def test_finite_input_never_gives_nan(similarity):
    rng = np.random.default_rng(7)
    temperatures = [*TEMPERATURES, 5e-324, 1e300, 1e308]
    for temperature, weighting in itertools.product(temperatures, WEIGHTINGS):
        for scale in (0.0, 1e-300, 1.0, 1e5, 1e150):
            query, keys = rng.normal(size=(2, 3)) * scale, rng.normal(size=(6, 3)) * scale
            more = [{}, {"where": np.zeros((2, 6), bool)}, {"null_score": 0.0}, {"top_k": 2}]
            options = {"similarity": similarity, "temperature": temperature, **more[rng.integers(4)]}
            weights = lookup_weights(query, keys, weighting=weighting, **options)
            value = soft_lookup(query, keys, np.ones(6), weighting=weighting, **options)
            assert np.isfinite(weights).all(), (options, weighting, scale)
            assert np.isfinite(value).all(), (options, weighting, scale)


@each("weighting", WEIGHTINGS)
@each("similarity", [s for s in SIMILARITIES if s is not learned])
def test_what_is_taken_out_is_never_touched(similarity, weighting):
    rng = np.random.default_rng(8)
    query, keys, values = problem("logits of 1")
    where = rng.random((3, 9)) < 0.6
    where[:, [1, 6]] = False
    for temperature, poison in itertools.product((0, 1.0, INF), (np.nan, INF, -INF)):
        options = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        want = oracle.Lookup(query, keys, values, where=where, **options)
        bad_keys, bad_values = keys.copy(), values.copy()
        bad_keys[[1, 6], [0, 2]] = bad_values[[1, 6], [1, 0]] = poison
        for mask in ({"where": where}, {"bias": np.where(where, 0.0, -INF)}):
            got = soft_lookup(query, bad_keys, bad_values, **mask, **options)
            agree(got, want.value, want.tolerance(float), "poison in what is out", (options, poison))
        if poison is not np.nan:
            continue
        # what one row may see spoils that row, and no other
        bad_values = values.copy()
        bad_values[4, 0] = np.nan
        got = soft_lookup(query, keys, bad_values, where=where, **options)
        touched = want.weights[:, 4] > 0
        assert np.isnan(got[touched, 0]).all()
        agree(got[~touched], want.value[~touched], want.tolerance(float)[~touched], "NaN in another row")
        agree(got[:, 1], want.value[:, 1], want.tolerance(float)[:, 1], "NaN in another column")


def test_a_row_with_nothing_is_zero_and_not_minus_zero():
    values = -np.ones((4, 2))
    for options in ({"where": np.zeros((2, 4), bool)}, {"bias": np.full(4, -INF)}, {"min_score": INF}):
        for temperature, weighting in itertools.product((0, 1.0, INF), WEIGHTINGS):
            rules = {"temperature": temperature, "weighting": weighting, **options}
            query, keys = np.ones((2, 3)), np.ones((4, 3))
            for got in (soft_lookup(query, keys, values, **rules), lookup_weights(query, keys, **rules)):
                assert not got.any()
                assert not np.signbit(got).any(), rules


def test_a_squared_distance_that_overflows_takes_its_entry_out():
    np.testing.assert_array_equal(lookup_weights(0.0, np.array([1e200, 1.0])), [0, 1])
    np.testing.assert_array_equal(lookup_weights(0.0, np.array([1e200, -1e200])), [0, 0])


def test_unmasked_nan_passes_through():
    assert np.isnan(soft_lookup(0.0, [0.0, np.nan], [1.0, 2.0]))
    assert np.isnan(soft_lookup(0.0, [0.0, 1.0], [1.0, np.nan]))
    assert np.isnan(soft_lookup(np.nan, [0.0, 1.0], [1.0, 2.0]))
    assert soft_lookup(0.0, [0.0, 9.0], [1.0, np.nan], weighting="sparsemax") == 1.0


def test_infinite_values_blend_as_numpy_says():
    assert soft_lookup(0.0, [0.0, 1.0], [1.0, INF]) == INF
    assert soft_lookup(0.0, [0.0, 1.0], [-INF, 1.0]) == -INF
    assert np.isnan(soft_lookup(0.0, [0.0, 1.0], [-INF, INF]))


# ---- exact scores ----------------------------------------------------------------------------------


@each("similarity", [s for s in SIMILARITIES if s is not learned] + [Bilinear(np.eye(3) - 0.5)])
@pytest.mark.parametrize("d", [1, 3, 6, 7, 64])
def test_a_score_depends_on_its_pair_alone(similarity, d):
    if isinstance(similarity, Bilinear):
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
