"""The quick ways of the engine agree with the careful one, at sizes that straddle blocks and tiles."""

import itertools
import math
import threading

import numpy as np
import oracle
import pytest
from oracle import agree

from softdict import Bilinear, InverseDistance, _backend, attention, blend, soft_lookup
from softdict.scores import Block, as_similarity, score_pairs

INF = math.inf
SIMILARITIES = ["gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), "bilinear"]


@pytest.fixture(params=["compiled", "NumPy's exponential"])
def exponential(request, monkeypatch):
    """Run a test twice: compiled, however few the numbers, where numba is there; and without numba."""
    function = _backend.exp_rows if request.param != "compiled" else _backend.exponential(INF)
    monkeypatch.setattr(_backend, "exponential", lambda work: function)
    return function


def problem(m, n, d, dtype, seed=0, e=3, shift=0.0):
    """Return query, keys and values."""
    rng = np.random.default_rng([seed, m, n, d])
    query, keys, values = (rng.normal(size=size) for size in ((m, d), (n, d), (n, e)))
    return (query + shift).astype(dtype), (keys + shift).astype(dtype), values.astype(dtype)


def careful(query, keys, values, **settings):
    """Return the answer of the careful way, in float64, and the tolerance of each row, (m, 1)."""
    dtype = np.result_type(query, keys, values)
    wide = [x.astype(np.float64) for x in (query, keys, values)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blend, "_ways", lambda *_: [])
        patch.setattr(_backend, "SMALL", 0)
        want = soft_lookup(*wide, **settings)
    T, bias = settings.get("temperature", 1.0), settings.get("bias", 0.0)
    scores = score_pairs(as_similarity(settings.get("similarity", "gaussian")), *wide[:2])
    seen = np.broadcast_to(settings.get("where", True), scores.shape)
    logits = np.where(seen, (scores / T if 0 < T < INF else 0) + bias, -INF)
    shares = np.exp(logits - np.fmax(logits.max(axis=1, keepdims=True), -1e300))
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    sizes = np.where(
        shares > np.finfo(dtype).eps, (np.abs(scores) / T if 0 < T < INF else 0) + np.abs(bias), 0
    )
    return want, oracle.tolerance(dtype, sizes.max(axis=1)[:, None], np.abs(wide[2]).max())


def similar(name, d):
    return Bilinear(np.random.default_rng(d).normal(size=(d, d)) / d) if name == "bilinear" else name


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sizes_straddle_every_branch(exponential, similarity, dtype, monkeypatch):
    monkeypatch.setattr(_backend, "SMALL", 0)  # even what is small goes the quick way
    monkeypatch.setattr(_backend, "ROWS", 64)
    monkeypatch.setattr(_backend, "CELLS", 2**12)
    for m, n, d in itertools.product((1, 6, 7, 15, 16, 65), (1, 127, 129, 400), (1, 6, 7, 33)):
        query, keys, values = problem(m, n, d, dtype)
        for options in ({}, {"temperature": 0}, {"top_k": 5}):
            settings = {"similarity": similar(similarity, d), **options}
            want, tol = careful(query, keys, values, **settings)
            got = soft_lookup(query, keys, values, **settings)
            agree(got, want, np.broadcast_to(tol, got.shape), "quick ways", (m, n, d, settings))


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighting", ["softmax", "sparsemax"])
def test_options(similarity, dtype, weighting, monkeypatch):
    monkeypatch.setattr(_backend, "CELLS", 2**13)
    m, n, d = 70, 500, 8
    query, keys, values = problem(m, n, d, dtype)
    rng = np.random.default_rng(1)
    where, bias = rng.random((m, n)) < 0.6, np.where(rng.random((m, n)) < 0.9, rng.normal(size=(m, n)), -INF)
    where[3], where[:, 7] = False, False
    padding = np.broadcast_to(np.arange(n) < 400, (m, n))
    edge = float(
        score_pairs(as_similarity(similar(similarity, d)), *(x.astype(float) for x in (query, keys)))[5, 9]
    )
    for T, options in itertools.product(
        (0.3, 30.0, INF),
        ({"where": where}, {"bias": bias}, {"where": padding},
         {"where": where, "bias": bias, "null_score": -3.0}, {"min_score": edge},
         {"min_score": edge, "where": padding}, {"top_k": 9, "where": where}),
    ):  # fmt: skip
        settings = {"similarity": similar(similarity, d), "weighting": weighting, "temperature": T, **options}
        want, tol = careful(query, keys, values, **settings)
        got = soft_lookup(query, keys, values, **settings)
        agree(got, want, np.broadcast_to(tol, got.shape), "quick ways with options", settings)


def ways_taken(monkeypatch):
    """Return a list that fills with the ways that are taken."""
    taken = []
    for name in ("_stream", "_by_tiles"):
        way = getattr(blend, name)

        def spy(source, *args, way=way, name=name, **named):
            taken.append((name, str(np.dtype(named.get("dtype", float))), len(source.query)))
            return way(source, *args, **named)

        monkeypatch.setattr(blend, name, spy)
    return taken


def test_only_rows_whose_rounding_could_matter_are_asked_again(monkeypatch):
    m, n, d = 300, 2000, 16
    query, keys, values = problem(m, n, d, np.float32)
    taken = ways_taken(monkeypatch)
    soft_lookup(query, keys, values)
    assert {way for way, *_ in taken} == {"_stream"}
    assert {dtype for _, dtype, _ in taken} == {"float32"}
    far = query.copy()
    far[200:210] += 1000
    keys[1985:1995] += 1000  # near those, so that the terms of their distances cancel
    taken.clear()
    got = soft_lookup(far, keys, values)
    again = [m for way, dtype, m in taken if (way, dtype) != ("_stream", "float32")]
    assert 0 < sum(again) <= 2 * _backend.ROWS // 8
    want, tol = careful(far, keys, values)
    agree(got, want, np.broadcast_to(tol, got.shape), "rows far away")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_clusters_and_far_from_the_origin(exponential, dtype):
    for d in (7, 16, 64):
        query, keys, values = problem(40, 600, d, dtype, e=1)
        for shift in (np.where(np.arange(600)[:, None] % 2, 1e4, -1e4), np.full((600, 1), 1e4)):
            far = (keys + shift).astype(dtype)
            asked = (query + shift[:40]).astype(dtype)
            got = soft_lookup(asked, far, np.abs(values))
            want, tol = careful(asked, far, np.abs(values))
            agree(got, want, np.broadcast_to(tol, got.shape), "far clusters", (d, dtype))


def test_float32_stops_where_it_cannot_be_right_in_any_row(exponential, monkeypatch):
    tiles, fill = set(), Block.fill

    def noting(self, tile, out):
        tiles.add((self.dtype.name, tile.start))  # some are done again
        return fill(self, tile, out)

    monkeypatch.setattr(Block, "fill", noting)
    monkeypatch.setattr(_backend, "CELLS", 2**14)
    query, keys, values = problem(64, 2624, 16, np.float32)  # eleven tiles
    clusters = np.where(np.arange(2624)[:, None] % 2, np.float32(1e4), np.float32(-1e4))
    between = np.where(np.arange(2624)[:, None] % 3, clusters, 0)  # a third is near the center
    for name, shift, apart, taken in (
        ("all far", clusters[:64], clusters, (1, 11)),
        ("some far", between[:64], between, (11, 11)),
        ("none far", 0, 0, (11, 0)),
    ):
        asked, far = query + np.float32(shift), keys + np.float32(apart)
        tiles.clear()
        got = soft_lookup(asked, far, values)
        assert tuple(sum(d == dtype for d, _ in tiles) for dtype in ("float32", "float64")) == taken, name
        want, tol = careful(asked, far, values)
        agree(got, want, np.broadcast_to(tol, got.shape), "far clusters, stopped early", name)


@pytest.mark.parametrize("similarity", ["gaussian", "dot"])
def test_later_tiles_that_score_vastly_better(exponential, similarity, monkeypatch):
    monkeypatch.setattr(_backend, "CELLS", 2**12)
    query, keys, values = problem(70, 3000, 8, np.float32)
    keys = (keys + np.linspace(60, 0, 3000)[:, None]).astype(np.float32)  # from far away to the queries
    query = query + np.float32(50 if similarity == "dot" else 0)
    for order in (slice(None), slice(None, None, -1)):
        got = soft_lookup(query, keys[order], values[order], similarity=similarity)
        want, tol = careful(query, keys[order], values[order], similarity=similarity)
        agree(got, want, np.broadcast_to(tol, got.shape), "sorted keys", similarity)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 40])
def test_a_long_sum_of_equal_terms(exponential, m, dtype):
    query, keys, _ = problem(m, 20_000, 8, dtype)
    for value in (0.1, 0.7, 1 / 3):
        values = np.full(20_000, value, dtype=dtype)
        for keys_too in (keys, np.ones_like(keys)):
            got = soft_lookup(query, keys_too, values, similarity="scaled_dot", temperature=1e6)
            tol = oracle.tolerance(dtype, 0, value)
            agree(got, np.full(m, values[0], dtype=float), np.full(m, tol), "constant values", (m, value))


def test_top_k_scores_few_pairs_canonically(monkeypatch):
    counted = []
    canonical = blend._canonical
    monkeypatch.setattr(
        blend, "_canonical", lambda source, i, *rest: counted.append(len(i)) or canonical(source, i, *rest)
    )
    query, keys, values = problem(200, 20_000, 16, np.float32)
    for options, most in (({"top_k": 10}, 2 * 10 * 200), ({"temperature": 0}, 2 * 200)):
        counted.clear()
        soft_lookup(query, keys, values, **options)
        assert sum(counted) <= most  # of four million pairs


def test_min_score_may_take_out_what_stands_first():
    keys, values, query = (
        np.linspace(0, 10, 1000)[:, None],
        np.arange(1000.0),
        np.linspace(5, 10, 500)[:, None],
    )
    got = soft_lookup(query, keys, values, min_score=-1.0)
    want, tol = careful(query, keys, values, min_score=-1.0)
    agree(got, want, tol[:, 0], "min_score")


def test_min_score_beside_a_bias_looks_at_scores_alone():
    query, keys, _ = problem(70, 2000, 8, np.float64)
    values, bias = np.arange(2000.0), 3 * np.random.default_rng(0).normal(size=2000)
    scores = score_pairs(as_similarity("gaussian"), query, keys)
    best = np.where(scores >= -6, scores + bias, -INF)
    want = np.where(best.max(axis=1) > -INF, best.argmax(axis=1), 0)
    assert soft_lookup(query, keys, values, bias=bias, min_score=-6.0, top_k=1).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("size", "temperature"), [(1e20, 1e40), (1e-20, 1e-39), (1e18, 1e36), (1e-18, 1e-36)]
)
@pytest.mark.parametrize("similarity", ["gaussian", "dot"])
def test_what_float32_cannot_hold_is_left_to_float64(similarity, size, temperature):
    query, keys, values = problem(70, 700, 8, np.float64)
    query, keys, values = (query * size).astype("f4"), (keys * size).astype("f4"), values.astype("f4")
    settings = {"similarity": similarity, "temperature": temperature}
    got = soft_lookup(query, keys, values, **settings)
    want, tol = careful(query, keys, values, **settings)
    agree(got, want, np.broadcast_to(tol, got.shape), "extreme sizes", settings)


@pytest.mark.parametrize("size", [1e20, 1e19, 1e-19, 1e-22, 1e-25])
def test_cosine_does_not_mind_how_long_keys_are(size):
    query, keys, values = problem(70, 700, 8, np.float32)
    keys[3] = 0
    for far in (
        (keys * np.float32(size)),
        np.where(np.arange(700)[:, None] == 5, query[0] * np.float32(size), keys),
    ):
        for T in (0, 0.1):
            settings = {"similarity": "cosine", "temperature": T}
            got = soft_lookup(query, far, values, **settings)
            want, tol = careful(query, far, values, **settings)
            agree(got, want, np.broadcast_to(tol, got.shape), "long and short keys", (size, T))


@pytest.mark.parametrize("similarity", ["gaussian", "cosine", "dot"])
def test_long_doubles_are_computed_in_float64(similarity):
    query, keys, values = problem(70, 2000, 33, np.float64)
    for settings in ({}, {"top_k": 3}):
        want = soft_lookup(query, keys, values, similarity=similarity, **settings)
        got = soft_lookup(query.astype(np.longdouble), keys, values, similarity=similarity, **settings)
        assert got.dtype == np.longdouble
        assert (got == want).all()


def test_float16_is_computed_in_float32(exponential):
    query, keys, values = problem(70, 2000, 33, np.float16)
    far = np.where(np.arange(2000)[:, None] % 2, 200, 0).astype(np.float16)
    for shift in (np.float16(0), far):
        got = soft_lookup(query + shift[:70] if shift.ndim else query, keys + shift, values)
        asked = query + shift[:70] if shift.ndim else query
        want, tol = careful(asked, keys + shift, values)
        assert got.dtype == np.float16
        agree(got, want, np.broadcast_to(tol, got.shape), "float16")


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"top_k": 3, "temperature": INF}, {"null_score": 0.0}], ids=str
)
def test_unmasked_nan_passes_to_those_who_see_it(options):
    query, keys, values = problem(300, 2000, 8, np.float64)
    query[3] = np.nan
    got = soft_lookup(query, keys, values, **options)
    assert np.isnan(got[3]).all()
    assert np.isfinite(np.delete(got, 3, axis=0)).all()
    query[3], keys[5] = 0, np.nan
    assert np.isnan(soft_lookup(query, keys, values, **options)).all()


def test_ties_that_only_the_expansion_can_tell_apart_are_ties():
    keys, values, query = (
        np.random.default_rng(0).normal(size=(2000, 8)) * 1e-20,
        np.arange(2000.0),
        np.ones((70, 8)),
    )
    assert set(soft_lookup(query, keys, values, temperature=0).tolist()) == {999.5}
    assert set(soft_lookup(query, keys, values, top_k=1).tolist()) == {0.0}


def test_what_no_query_sees_is_not_scored(monkeypatch):
    pairs = []
    fill = Block.fill

    def counting(self, tile, out):
        pairs.append(out.size)
        return fill(self, tile, out)

    monkeypatch.setattr(Block, "fill", counting)
    query, keys, values = problem(2048, 2048, 8, np.float32)
    for options, share in (({"causal": True}, 0.6), ({"window": (100, 100)}, 0.3), ({}, 1.0)):
        pairs.clear()
        attention(query, keys, values, **options)
        assert sum(pairs) <= share * 2048**2
    pairs.clear()
    soft_lookup(query, keys, values, similarity="dot", where=np.arange(2048) < 200)
    assert sum(pairs) == 2048 * 200


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential(exponential, dtype):
    info = np.finfo(dtype)
    z = np.concatenate([np.linspace(-80, 80, 4001), [-INF, -1e30, 0.0], np.linspace(-1e-6, 1e-6, 20)]).astype(
        dtype
    )
    rows = np.stack([z, z])
    sums = exponential(rows, np.array([0.0, 3.0], dtype=dtype))
    for row, shift in zip(rows, (0, 3), strict=True):
        want = np.exp(z.astype(np.longdouble) - shift)
        assert (
            np.abs(row - want) <= 2 * info.eps * (1 + np.where(want > 0, np.abs(z - shift), 0)) * want
        ).all()
    assert (np.abs(sums - rows.sum(axis=1, dtype=float)) <= 1e-5 * sums).all()
    odd = np.array([[1.0, 2.0], [np.nan, 0.0], [1000.0, 0.0], [-INF, -1000.0]], dtype=dtype)
    with np.errstate(over="ignore"):
        sums = exponential(odd, np.zeros(4, dtype=dtype))
    assert math.isfinite(sums[0])
    assert np.isnan(sums[1])
    assert np.isnan(odd[1, 0])
    assert sums[2] == INF
    assert sums[3] == 0


def test_threads_change_no_more_than_the_last_bits(monkeypatch):
    query, keys, values = problem(1500, 3000, 64, np.float32, e=64)
    monkeypatch.setattr(_backend.os, "cpu_count", lambda: 1)
    alone = soft_lookup(query, keys, values, similarity="scaled_dot")
    monkeypatch.setattr(_backend.os, "cpu_count", lambda: 3)
    together = soft_lookup(query, keys, values, similarity="scaled_dot")
    tol = oracle.tolerance(np.float32, 3, np.abs(values).max())
    agree(together, alone, np.full(alone.shape, tol), "threads")


def test_calls_from_several_threads_leave_blas_as_it_was():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    query, keys, values = problem(1100, 2000, 64, np.float32, e=64)
    soft_lookup(query, keys, values)  # loads what it needs, which may be one more BLAS
    before = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    want = soft_lookup(query, keys, values)
    answers = {}

    def ask(i):
        answers[i] = soft_lookup(query, keys, values)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tol = oracle.tolerance(np.float32, 100, np.abs(values).max())
    for got in answers.values():
        agree(got, want, np.full(want.shape, tol), "calls from threads")
    assert len(answers) == 4
    assert [pool["num_threads"] for pool in threadpoolctl.threadpool_info()] == before


def test_an_error_in_one_block_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        _backend.run([lambda: None, lambda: 1 / 0], 1e12)
    ran = []
    _backend.run([lambda: ran.append(1), lambda: ran.append(2)], 1e12)  # and the next call runs
    assert sorted(ran) == [1, 2]
