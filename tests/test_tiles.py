"""However small the budget, tiles give the answer of the plain definition, and keep within the budget."""

import itertools
import math
import tracemalloc

import numpy as np
import oracle
import pytest
from oracle import agree

from softdict import Bilinear, Entmax, InverseDistance, SoftDict, _backend, blend, lookup_weights, soft_lookup

INF = math.inf
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2)]
SIMILARITIES = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), InverseDistance(0.0),
    Bilinear([[1.0, 0.5], [0.0, -1.0]]),
]  # fmt: skip
TEMPERATURES = [0, 1e-320, 0.4, 30.0, INF]
ONE_PAIR, FEW_PAIRS, SOME_PAIRS = 1e-6, 6e-4, 3e-3  # MiB


@pytest.fixture
def budget(monkeypatch):
    """Return a function that sets the budget, in MiB."""
    for dtype in (np.float32, np.float64):
        _backend.exponential(1e9)(
            np.zeros((1, 1), dtype), np.zeros(1)
        )  # what it loads is no part of a lookup
    return lambda mib: monkeypatch.setattr(_backend, "budget_mib", mib)


def problem(rng, m=4, n=23, d=2):
    """Return query and keys on a lattice, so that many scores tie, exactly, and some are hits, and values."""
    keys = rng.integers(-4, 5, size=(n, d)) / 2
    between = rng.integers(-40, 41, size=(m - m // 2, d)) / 16
    query = np.concatenate([keys[rng.integers(n, size=m // 2)], between])
    return query, keys, rng.normal(size=(n, 3))


def random_options(rng, m, n):
    """Return any of the options, each as likely as not."""
    options = {
        "where": rng.random((m, n)) < rng.choice([0.1, 0.7]),
        "bias": np.where(rng.random((m, n)) < 0.8, rng.integers(-3, 4, size=(m, n)) / 2, -INF),
        "top_k": int(rng.integers(1, n + 3)),
        "min_score": float(rng.choice([-0.5, -2.0, -8.0])),
        "null_score": float(rng.choice([-3.0, -0.5, 0.0])),
    }
    return {name: value for name, value in options.items() if rng.random() < 0.4}


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_tiles_are_the_plain_definition(weighting, temperature, budget):
    rng = np.random.default_rng([WEIGHTINGS.index(weighting), TEMPERATURES.index(temperature)])
    for similarity in SIMILARITIES:
        m, n = int(rng.integers(1, 5)), int(rng.integers(1, 24))
        query, keys, values = problem(rng, m, n)
        settings = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        settings |= random_options(rng, m, n)
        if similarity == "cosine" and temperature != INF:  # collinear keys tie only to rounding
            keys = rng.normal(size=(n, 2))
        want = oracle.Lookup(query, keys, values, **settings)
        tol = want.tolerance(float)
        if temperature == 1e-320:  # the oracle's tolerance is infinite, but nothing is left to round
            tol = oracle.tolerance(float, 2 if "bias" in settings else 0, np.abs(values).max())
        for mib in (ONE_PAIR, FEW_PAIRS, SOME_PAIRS):
            budget(mib)
            got = soft_lookup(query, keys, values, **settings)
            agree(got, want.value, tol, "tiles", (mib, query, keys, values, settings))


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 0.4, INF])
def test_the_careful_way(weighting, temperature, budget, monkeypatch):
    monkeypatch.setattr(blend, "_ways", lambda *_: [])
    test_tiles_are_the_plain_definition(weighting, temperature, budget)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize(
    "kind", ["logits of 30", "logits of 1000", "far from the origin", "blends that cancel"]
)
def test_tiles_of_hard_inputs(kind, weighting, budget):
    rng = np.random.default_rng(1)
    for d, dtype in itertools.product((1, 7), (np.float32, np.float64)):
        query, keys, values = rng.normal(size=(2, d)), rng.normal(size=(14, d)), rng.normal(size=(14, 2))
        scale, shift = {"logits of 30": (5, 0), "logits of 1000": (30, 0)}.get(kind, (1, 0))
        if kind == "far from the origin":
            shift = 1e6
        if kind == "blends that cancel":
            values = np.where(np.arange(14)[:, None] % 2, 1e3, -1e3) + values * 1e-3
        query, keys, values = ((x * s + t).astype(dtype) for x, s, t in
                               ((query, scale, shift), (keys, scale, shift), (values, 1, 0)))  # fmt: skip
        for options in ({}, {"top_k": 5}, {"null_score": -2.0}):
            want = oracle.Lookup(query, keys, values, weighting=weighting, **options)
            budget(FEW_PAIRS)
            got = soft_lookup(query, keys, values, weighting=weighting, **options)
            agree(got, want.value, want.tolerance(dtype), f"tiles, {kind}", (options, d))


@pytest.mark.parametrize("mib", [ONE_PAIR, FEW_PAIRS, SOME_PAIRS])
def test_ties_and_top_k_are_identical(mib, budget):
    rng = np.random.default_rng(2)
    for _ in range(20):
        query, keys, _ = problem(rng)
        n, top_k = len(keys), int(rng.integers(1, 9))
        bias = rng.integers(-1, 2, size=(4, n)).astype(float)
        for options in ({"temperature": 0}, {"top_k": top_k, "temperature": INF}, {"top_k": top_k},
                        {"top_k": top_k, "temperature": 0}, {"top_k": top_k, "bias": bias},
                        {"top_k": top_k, "temperature": INF, "bias": bias}):  # fmt: skip
            want = lookup_weights(query, keys, **options)
            budget(mib)
            got = soft_lookup(query, keys, np.eye(n), **options)  # the weights, by tiles
            np.testing.assert_array_equal(got != 0, want != 0, err_msg=str(options))
            agree(got, want, oracle.tolerance(float, 40), "weights by tiles", options)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_the_hard_answer_is_the_same_to_the_last_bit(weighting, budget):
    rng = np.random.default_rng(3)
    for _ in range(30):
        query, keys = rng.normal(size=(4, 3)), rng.normal(size=(23, 3))
        keys[:4] = query[rng.permutation(4)]
        values = rng.normal(size=(23, 2))
        values[0] = -0.0
        settings = {"weighting": weighting, "temperature": 0}
        want = soft_lookup(query, keys, values, **settings)
        for mib in (ONE_PAIR, FEW_PAIRS, SOME_PAIRS):
            budget(mib)
            assert soft_lookup(query, keys, values, **settings).tobytes() == want.tobytes()


def test_a_callable_weighting_sees_whole_rows(budget):
    shapes = []

    def even(z):
        shapes.append(z.shape)
        return (z > -INF) / np.maximum((z > -INF).sum(axis=1, keepdims=True), 1)

    rng = np.random.default_rng(4)
    query, keys, values = problem(rng)
    for options in ({}, {"top_k": 5}, {"null_score": 0.0}, {"where": rng.random((4, 23)) < 0.5}):
        want = oracle.Lookup(query, keys, values, weighting=even, **options)
        shapes.clear()
        budget(ONE_PAIR)
        got = soft_lookup(query, keys, values, weighting=even, **options)
        agree(got, want.value, want.tolerance(float), "tiles of whole rows", options)
        assert {shape[1] for shape in shapes} == {24 if "null_score" in options else 23}
        assert len(shapes) == 4  # a row at a time


def test_a_callable_similarity_sees_a_tile_at_a_time(budget):
    pairs = []

    def overlap(q, k):
        pairs.append(len(q) * len(k))
        return q @ k.T / 3

    rng = np.random.default_rng(5)
    query, keys, values = problem(rng, n=100)
    want = oracle.Lookup(query, keys, values, similarity=overlap)
    pairs.clear()
    budget(FEW_PAIRS)
    got = soft_lookup(query, keys, values, similarity=overlap)
    agree(got, want.value, want.tolerance(float), "tiles of a function")
    assert sum(pairs) == 400
    assert max(pairs) < 40


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_rows_with_nothing_are_zero_and_leave_the_others_alone(temperature, weighting, budget):
    rng = np.random.default_rng(6)
    query, keys, values = problem(rng)
    where = np.ones((4, 23), bool)
    where[[0, 2]] = False
    where[1, :20] = False  # most tiles hold nothing for this row
    for options in ({}, {"top_k": 3}, {"min_score": -9.0}):
        settings = {"weighting": weighting, "temperature": temperature, **options}
        budget(FEW_PAIRS)
        got = soft_lookup(query, keys, values, where=where, **settings)
        assert not got[[0, 2]].any()
        assert not np.signbit(got[[0, 2]]).any()
        alone = soft_lookup(query[[1, 3]], keys, values, where=where[[1, 3]], **settings)
        agree(got[[1, 3]], alone, oracle.tolerance(float, 0, np.abs(values).max()), "other rows", settings)
        assert not soft_lookup(query, keys, values, where=np.zeros((1, 23), bool), **settings).any()


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 1.0, INF])
def test_what_is_masked_cannot_leak_from_tile_to_tile(temperature, weighting, budget):
    rng = np.random.default_rng(7)
    query, keys, values = problem(rng)
    where = rng.random((4, 23)) < 0.6
    where[:, [3, 11, 22]] = False
    want = oracle.Lookup(query, keys, values, where=where, weighting=weighting, temperature=temperature)
    keys[3], keys[11], keys[22] = np.nan, INF, -INF
    values[[3, 11, 22]] = np.nan
    for mib, options in itertools.product((ONE_PAIR, FEW_PAIRS), ({}, {"top_k": 23})):
        budget(mib)
        settings = {"weighting": weighting, "temperature": temperature, **options}
        got = soft_lookup(query, keys, values, where=where, **settings)
        agree(got, want.value, want.tolerance(float), "poison in tiles", settings)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 1.0, INF])
@pytest.mark.parametrize("null_score", [None, -1.0])
def test_an_infinite_score_silences_other_tiles(temperature, weighting, null_score, budget):
    keys, values = np.array([5.0, 0.0, 6.0, 0.0, 7.0]), np.array([10.0, 1.0, 20.0, 3.0, 40.0])
    settings = {"similarity": InverseDistance(0.0), "weighting": weighting, "temperature": temperature,
                "null_score": null_score}  # fmt: skip
    want = oracle.Lookup(0.0, keys, values, **settings)
    budget(ONE_PAIR)
    for order in itertools.islice(itertools.permutations(range(5)), 0, None, 7):
        some = list(order)
        got = soft_lookup(0.0, keys[some], values[some], **settings)
        agree(got, want.value, want.tolerance(float), "infinite scores in tiles", (order, settings))


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dict_by_tiles(weighting, dtype, budget):
    rng = np.random.default_rng(8)
    query, keys, values = (x.astype(dtype) for x in problem(rng, n=15))
    labels = [f"row {i}" for i in range(15)]
    for temperature, options in itertools.product((0, 1.0, INF), ({}, {"top_k": 4}, {"null_score": -0.5})):
        settings = {"weighting": weighting, "temperature": temperature, **options}
        sd = SoftDict.from_arrays(keys, values, labels, **settings)
        want = oracle.Lookup(query, keys, values, **settings)
        budget(ONE_PAIR)
        agree(sd.get(query, 0.0), want.value, want.tolerance(dtype), "dict by tiles", settings)
        left_out = oracle.Lookup(keys[:4], keys, values, skip=np.arange(4), **settings)
        seen = sd.lookup(labels[:4], exclude_self=True)
        agree(seen.value, left_out.value, left_out.tolerance(dtype), "exclude_self by tiles", settings)
        where, bias = rng.random((4, 15)) < 0.5, rng.normal(size=15)
        masked = oracle.Lookup(query, keys, values, where=where, bias=bias, **settings)
        seen = sd.lookup(query, where=where, bias=bias)
        agree(seen.value, masked.value, masked.tolerance(dtype), "masks by tiles", settings)


def test_leading_axes_by_tiles(budget):
    rng = np.random.default_rng(9)
    query, keys, values = rng.normal(size=(2, 1, 3, 2)), rng.normal(size=(5, 9, 2)), rng.normal(size=(9, 2))
    where = rng.random((5, 3, 9)) < 0.7
    want = oracle.Lookup(query, keys, values, where=where)
    budget(FEW_PAIRS)
    got = soft_lookup(query, keys, values, where=where)
    agree(got, want.value, want.tolerance(float), "leading axes by tiles")


def test_no_entry_and_no_query(budget):
    budget(ONE_PAIR)
    for m, n in ((0, 5), (3, 0), (0, 0)):
        got = soft_lookup(np.zeros((m, 2)), np.zeros((n, 2)), np.zeros((n, 4)))
        assert got.shape == (m, 4)
        assert not got.any()


# ---- memory ----------------------------------------------------------------------------------------

M, N, D = 200, 20_000, 8
MEMORY = {
    "softmax": {},
    "hard": {"temperature": 0},
    "mean": {"temperature": INF},
    "top_k": {"top_k": 5},
    "min_score and null": {"min_score": -9.0, "null_score": -7.0},
    "sparsemax": {"weighting": "sparsemax"},
    "entmax15": {"weighting": "entmax15"},
    "laplacian": {"similarity": "laplacian"},
    "cosine": {"similarity": "cosine"},
    "masked": {"where": True, "bias": True},
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_bounded(name, budget):
    rng = np.random.default_rng(10)
    options = dict(MEMORY[name])
    m = M // 8 if "weighting" in options else M  # tracing many small tiles is slow
    query, keys, values = rng.normal(size=(m, D)), rng.normal(size=(N, D)), rng.normal(size=(N, 4))
    if name == "masked":
        options = {"where": rng.random((M, 1)) < 0.9, "bias": rng.normal(size=N)}  # they broadcast
    mib = 2.0 if m < M else 4.0  # all scores at once take 3.8 and 30 MiB
    budget(mib)
    tracemalloc.start()
    try:
        got = soft_lookup(query, keys, values, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got.shape == (m, 4)
    assert peak <= mib * 2**20 + 8 * (got.nbytes + query.nbytes), f"{peak / 2**20:.2f} MiB"
    some = slice(0, 20)
    small = {k: v[some] if k == "where" else v for k, v in options.items()}
    budget(64.0)
    plain = soft_lookup(query[some], keys, values, **small)
    agree(got[some], plain, oracle.tolerance(float, 60, np.abs(values).max()), f"tiles, {name}", name)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 5}, {"min_score": 0.0}], ids=str)
def test_memory_is_bounded_where_all_tie(options, budget):
    query = keys = np.tile(np.float32([1, 2, 3, 4, 5, 6, 7, 8]), (2000, 1))
    values = np.arange(2000, dtype=np.float32)
    budget(8.0)
    tracemalloc.start()
    try:
        got = soft_lookup(query[:500], keys, values, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert set(got.tolist()) == {2.0 if "top_k" in options else 999.5}
    assert peak <= 1.2 * 8 * 2**20, f"{peak / 2**20:.2f} MiB"


@pytest.mark.parametrize("name", ["softmax", "top_k", "sparsemax"])
def test_float32_is_not_widened_as_a_whole(name, budget):
    rng = np.random.default_rng(11)
    keys, values = (rng.normal(size=(100_000, D)).astype(np.float32) for _ in range(2))
    budget(1.0)
    tracemalloc.start()
    try:
        soft_lookup(keys[:3], keys, values, **MEMORY[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.5 * 2**20, f"{peak / 2**20:.2f} MiB"  # keys and values in float64: 12 MiB


def test_masks_are_not_copied_as_a_whole(budget):
    rng = np.random.default_rng(12)
    query, keys, values = rng.normal(size=(M, D)), rng.normal(size=(N, D)), rng.normal(size=N)
    where, bias = np.ones((M, N), bool), np.zeros((M, N))
    budget(2.0)
    tracemalloc.start()
    try:
        got = soft_lookup(query, keys, values, where=where)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        soft_lookup(query, keys, values, bias=bias)
        peak_of_bias = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got.shape == (M,)
    assert peak <= 2.5 * 2**20, f"{peak / 2**20:.2f} MiB"  # a copy of where: 4 MiB
    assert peak_of_bias <= 2.5 * 2**20, f"{peak_of_bias / 2**20:.2f} MiB"  # a copy of bias: 30 MiB
