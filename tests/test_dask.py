"""Dask: any chunks, on threads and on processes that are killed, give the answer over one array."""

from __future__ import annotations

import math
import operator
import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import oracle
import pytest
from distributed import Client, LocalCluster, wait

import softdict.dask
from softdict import Bilinear, Entmax, InverseDistance, Partial, SoftDict, soft_lookup

INF = math.inf
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2)]
NEAR = 1e-12  # in float64, of answers of size one


def overlap(q, k):
    return q @ k.T / 3


SIMILARITIES = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), Bilinear(np.eye(3)[::-1]),
    overlap,
]  # fmt: skip


def cut(rng, n, most=5):
    """Return the sizes of chunks that make n, some of them empty."""
    edges = [0, *sorted(rng.integers(0, n + 1, size=rng.integers(0, most)).tolist()), n]
    return tuple(np.diff(edges).tolist())


def chunked(x, *rows):
    """Return a dask array whose first axes are in chunks of `rows`, the others in one."""
    return da.from_array(x, chunks=(*rows, *[-1] * (x.ndim - len(rows))))


def near(got, want, context=""):
    """Assert that a dask array has the shape, dtype and numbers wanted."""
    assert (got.shape, got.dtype) == (np.shape(want), want.dtype), context
    now = np.asarray(got.compute(scheduler="threads"))
    assert (now.shape, now.dtype) == (np.shape(want), want.dtype), context
    assert np.abs(now - want).max(initial=0) < NEAR, context


def masks(rng, full):
    """Return a mask and a bias, or none, of shapes that broadcast to `full`; some rows see nothing."""
    shapes = [full, full[-1:], (), (1,) * len(full), (*full[:-1], 1)]
    found = {}
    if rng.random() < 0.5:
        found["where"] = rng.random(shapes[rng.integers(5)]) < 0.6
    if rng.random() < 0.4:
        shape = shapes[rng.integers(5)]
        found["bias"] = np.where(rng.random(shape) < 0.2, -INF, rng.normal(size=shape))
    return {name: np.asarray(x) for name, x in found.items()}


# ---- one array, whatever the chunks --------------------------------------------------------------


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=oracle.named)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 0.5, INF])
def test_any_chunks_give_the_answer_over_one_array(similarity, weighting, temperature):
    rng = np.random.default_rng(0)
    for _ in range(8):
        n, m = int(rng.integers(0, 12)), int(rng.integers(0, 5))
        width = () if similarity in SIMILARITIES[:2] and rng.random() < 0.3 else (3,)
        lead = () if rng.random() < 0.3 else (m,)
        value_shape = [(), (2,), (2, 2), (0,)][rng.integers(4)]
        keys = rng.integers(-2, 3, size=(n, *width)) / 2  # on a lattice, where many scores tie
        values, query = rng.normal(size=(n, *value_shape)), rng.integers(-2, 3, size=(*lead, *width)) / 2
        settings = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        options = {"top_k": int(rng.integers(1, 5)), "min_score": -1.0, "null_score": -0.5}
        settings |= {name: x for name, x in options.items() if rng.random() < 0.4}
        seen = masks(rng, (*lead, n))
        flat = values.reshape(n, math.prod(value_shape)) if value_shape else values
        want = np.reshape(soft_lookup(query, keys, flat, **settings, **seen), (*lead, *value_shape))
        rows = cut(rng, n)
        if lead and rng.random() < 0.5:
            query = chunked(query, cut(rng, m))
        lazy = {name: da.from_array(x, chunks=2) if rng.random() < 0.5 else x for name, x in seen.items()}
        got = softdict.dask.lookup(chunked(keys, rows), chunked(values, rows), query, **settings, **lazy)
        near(got, want, (rows, settings, seen))


@pytest.mark.parametrize("similarity", ["gaussian", "scaled_dot"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0}, {"temperature": INF}, {"top_k": 5}, {"weighting": "sparsemax"},
     {"min_score": -30.0, "null_score": -9.0}],
    ids=str,
)  # fmt: skip
def test_dask_threads_maps_and_one_array_agree(similarity, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("softdict._store.WHOLE", 0)  # maps are read in parts
    rng = np.random.default_rng(1)
    n, settings = 6000, {"similarity": similarity, **settings}
    keys, values, queries = rng.normal(size=(n, 9)), rng.normal(size=(n, 3)), rng.normal(size=(20, 9))
    queries[3] = 90.0  # at which a min_score leaves nothing under a distance
    want = soft_lookup(queries, keys, values, **settings)
    for name, x in (("keys", keys), ("values", values)):
        np.save(tmp_path / f"{name}.npy", x)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("keys", "values")]
    for _ in range(3):
        rows = cut(rng, n, 12)
        lazy = (da.from_array(x, chunks=(rows, -1)) for x in mapped)
        near(softdict.dask.lookup(*lazy, queries, **settings), want, settings)

        def part(start, stop):
            sd = SoftDict.from_arrays(*(x[start:stop] for x in mapped), **settings)
            return sd.partial(queries, offset=start)

        edges = np.cumsum([0, *rows])
        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(part, edges[:-1].tolist(), edges[1:].tolist()))
        merged = reduce(operator.add, [parts[i] for i in rng.permutation(len(parts))])
        assert np.abs(merged.finish() - want).max() < NEAR
    assert np.abs(SoftDict.from_arrays(*mapped, **settings).get(queries, 0.0) - want).max() < NEAR


def test_rows_that_see_nothing_are_zero():
    rng = np.random.default_rng(2)
    keys, values, queries = rng.normal(size=(300, 4)), rng.normal(size=(300, 2)), rng.normal(size=(5, 4))
    where = rng.random((5, 300)) < 0.5
    where[1], where[3, 100:] = False, False  # nothing in any chunk; nothing but in the first
    for settings in ({}, {"temperature": 0}, {"top_k": 3}, {"weighting": "entmax15"}, {"null_score": 0.0}):
        want = soft_lookup(queries, keys, values, where=where, **settings)
        lazy = chunked(keys, (100, 0, 200)), chunked(values, (100, 0, 200))
        got = softdict.dask.lookup(*lazy, queries, where=where, **settings)
        near(got, want, settings)
        assert not got.compute()[1].any()


@pytest.mark.parametrize("lead", [(), (6,)])
@pytest.mark.parametrize("kinds", ["f4 f4 f4", "f2 f2 f2", "f4 f8 f4", "i4 f4 f4", "f8 f4 i8"])
def test_the_dtype_is_that_of_one_array(kinds, lead):
    rng = np.random.default_rng(3)
    shapes = (*lead, 7), (500, 7), (500, 2)
    query, keys, values = (
        (3 * rng.normal(size=s)).astype(kind) for s, kind in zip(shapes, kinds.split(), strict=True)
    )
    want = soft_lookup(query, keys, values, temperature=4.0)
    got = softdict.dask.lookup(chunked(keys, 100), chunked(values, 100), query, temperature=4.0)
    assert got.dtype == want.dtype
    exact = soft_lookup(*(x.astype(float) for x in (query, keys, values)), temperature=4.0)
    tol = oracle.tolerance(want.dtype, 10.0, np.abs(values).max())
    oracle.agree(got.compute(), exact, tol, "dask, dtypes")


def test_one_query_over_plain_numbers_is_one_number():
    keys = da.arange(10.0, chunks=3)
    got = softdict.dask.lookup(keys, 2 * keys, 4, temperature=0)
    assert (got.shape, float(got)) == ((), 8.0)
    for query in ([4, 5.0], np.array([4, 5]), da.from_array([4, 5])):
        assert softdict.dask.lookup(keys, 2 * keys, query, temperature=0).compute().tolist() == [8.0, 10.0]


@pytest.mark.parametrize("n", [0, 9])
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 1)])
def test_masks_of_size_one_may_be_cut_as_they_like(n, axes):
    rng = np.random.default_rng(6)
    keys, values, queries = rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=(4, 2))
    full = tuple(1 if axis in axes else size for axis, size in enumerate((4, n)))
    bias = rng.normal(size=full)
    where, rows = bias[0] < 1, (0, n, 0)
    want = soft_lookup(queries, keys, values, bias=bias, where=where)
    lazy = {"bias": chunked(bias, *((0, size) for size in full)), "where": chunked(where, (0, full[1]))}
    for x in (chunked(queries, (4,)), chunked(queries, (1, 0, 3))):
        near(softdict.dask.lookup(chunked(keys, rows), chunked(values, rows), x, **lazy), want)


def test_what_one_array_takes_is_taken():
    keys, values = chunked(np.eye(3), 2), chunked(np.arange(3.0), 2)
    query = [[2**70, 0, 0]]  # an object for NumPy, but a number
    near(softdict.dask.lookup(keys, values, query), soft_lookup(query, np.eye(3), np.arange(3.0)))
    low = [0, -(2**70), 0]
    near(softdict.dask.lookup(keys, values, 1.0 * np.eye(3), bias=low),
         soft_lookup(np.eye(3), np.eye(3), np.arange(3.0), bias=low))  # fmt: skip
    for where in ([], np.zeros((2, 0))):  # no booleans, but nothing either
        near(softdict.dask.lookup(keys[:0], values[:0], np.ones((2, 3)), where=where), np.zeros(2))


def test_chunks_may_be_what_numpy_reads():
    x = np.random.default_rng(7).normal(size=(6, 3))
    lazy = da.from_delayed(dask.delayed(x.tolist()), x.shape, float)  # or a dataframe
    near(softdict.dask.lookup(lazy, lazy, lazy), soft_lookup(x, x, x))


def test_keys_may_ask_themselves():
    x = np.random.default_rng(4).normal(size=(50, 3))
    lazy = chunked(x, 20)
    near(softdict.dask.lookup(lazy, lazy, lazy), soft_lookup(x, x, x))


# ---- lazily --------------------------------------------------------------------------------------


def refuse(*_, **__):
    raise RuntimeError("a chunk was loaded")


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"temperature": 0}, {"weighting": "sparsemax"}], ids=str
)
def test_building_the_graph_loads_no_chunk(options):
    def lazy(*shape, dtype=float):
        chunks = tuple(min(4, size) for size in shape)
        return da.zeros(shape, chunks=(*chunks[:1], *shape[1:])).map_blocks(
            refuse, dtype=dtype, meta=np.empty(0)
        )

    every = {"where": lazy(8, 20, dtype=bool), "bias": lazy(8, 20), **options}
    answer = softdict.dask.lookup(lazy(20, 3), lazy(20, 2), lazy(8, 3), **every)
    assert answer.shape == (8, 2)
    with pytest.raises(RuntimeError, match="a chunk was loaded"):
        answer.compute(scheduler="sync")


def test_each_chunk_is_loaded_once():
    loaded = []

    def load(x, block_info=None):
        loaded.append(block_info[0]["chunk-location"])
        return x

    keys = da.ones((40, 3), chunks=(10, 3)).map_blocks(load, dtype=float, meta=np.empty((0, 0)))
    for queries in (np.ones((6, 3)), da.ones((6, 3), chunks=(2, 3))):
        loaded.clear()
        softdict.dask.lookup(keys, da.ones(40, chunks=10), queries).compute(scheduler="sync")
        assert sorted(loaded) == [(i, 0) for i in range(4)]


def test_what_travels_is_small():
    keys = da.random.default_rng(0).normal(size=(20_000, 8), chunks=(5000, 8))
    answer = softdict.dask.lookup(keys, keys, np.zeros((2, 8)), top_k=5)
    sizes = []

    class Watch(dask.callbacks.Callback):
        def _posttask(self, key, result, *_):
            sizes.extend([len(pickle.dumps(result))] * isinstance(result, Partial))

    with Watch():
        answer.compute(scheduler="sync")
    assert len(sizes) >= 4
    assert max(sizes) < 5000  # bytes, of chunks of 320 kB


# ---- what is refused -----------------------------------------------------------------------------

KEYS, VALUES = da.zeros((10, 3), chunks=(5, 3)), da.zeros((10, 2), chunks=(5, 2))
UNKNOWN = KEYS[KEYS[:, 0] > 0]


@pytest.mark.parametrize(
    ("error", "says", "keys", "values", "query", "options"),
    [
        (ValueError, r"rechunk\(\{0: keys", KEYS, VALUES.rechunk((2, 2)), np.zeros(3), {}),
        (ValueError, r"keys\.rechunk\(\{1: -1\}\)", KEYS.rechunk((5, 1)), VALUES, np.zeros(3), {}),
        (ValueError, r"values\.rechunk\(\{1: -1\}\)", KEYS, VALUES.rechunk((5, 1)), np.zeros(3), {}),
        (ValueError, r"queries\.rechunk\(\{0: -1\}\)", KEYS, VALUES, da.zeros(3, chunks=1), {}),
        (ValueError, r"queries\.rechunk\(\{1: -1\}\)", KEYS, VALUES, da.zeros((4, 3), chunks=1), {}),
        (ValueError, r"keys\.compute_chunk_sizes", UNKNOWN, VALUES, np.zeros(3), {}),
        (ValueError, "as many of one", KEYS, VALUES[:5], np.zeros(3), {}),
        (ValueError, "query has width 4", KEYS, VALUES, np.zeros(4), {}),
        (ValueError, "query has width 3", KEYS, VALUES, np.zeros(3), {"similarity": Bilinear(np.eye(2))}),
        (ValueError, "queries .*leading axes", KEYS, VALUES, np.zeros((2, 2, 3)), {}),
        (ValueError, "queries .*leading axes", KEYS[None], VALUES, np.zeros((2, 3)), {}),
        (ValueError, "queries .*leading axes", KEYS[:, 0], VALUES, np.zeros((2, 1)), {}),
        (ValueError, "values .*leading axes", KEYS, VALUES[0, 0], np.zeros(3), {}),
        (ValueError, "query is ragged", KEYS, VALUES, [[1, 2, 3], [1]], {}),
        (ValueError, "where has shape", KEYS, VALUES, np.zeros(3), {"where": np.ones((1, 10), bool)}),
        (ValueError, "where is ragged", KEYS, VALUES, np.zeros((2, 3)), {"where": [[True], [True, False]]}),
        (ValueError, "bias holds NaN", KEYS, VALUES, np.zeros(3), {"bias": np.full(10, np.nan)}),
        (ValueError, r"where\.compute_chunk", KEYS, VALUES, np.zeros(3), {"where": UNKNOWN[:, 0] > 0}),
        (ValueError, "bias has shape", KEYS, VALUES, np.zeros((4, 3)), {"bias": da.zeros((10, 4))}),
        (ValueError, "temperature is -1", KEYS, VALUES, np.zeros(3), {"temperature": -1}),
        (ValueError, "similarity is 'near'", KEYS, VALUES, np.zeros(3), {"similarity": "near"}),
        (TypeError, r"from_array\(keys", KEYS.compute(), VALUES, np.zeros(3), {}),
        (TypeError, r"from_array\(values", KEYS, [1.0] * 10, np.zeros(3), {}),
        (TypeError, "keys holds booleans", KEYS > 0, VALUES, np.zeros(3), {}),
        (TypeError, "query holds 'a'", KEYS, VALUES, ["a", "b", "c"], {}),
        (TypeError, "where has dtype int64", KEYS, VALUES, np.zeros(3), {"where": np.ones(10, int)}),
        (TypeError, "bias holds booleans", KEYS, VALUES, np.zeros(3), {"bias": da.zeros(10) > 0}),
        (TypeError, "where is a masked", KEYS, VALUES, np.zeros(3), {"where": np.ma.zeros(10, dtype=bool)}),
        (TypeError, "function of whole rows", KEYS, VALUES, np.zeros(3), {"weighting": np.tanh}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_once(error, says, keys, values, query, options):
    with pytest.raises(error, match=rf"(?s){says}") as told:
        softdict.dask.lookup(keys, values, query, **options)
    assert "expected" in str(told.value)


@pytest.mark.parametrize("name", ["queries", "where", "bias"])
def test_what_numpy_would_load_is_refused(name):
    one = dask.delayed(refuse)()
    row = da.from_delayed(one, (3,), float)
    for lazy in (one, [row, row], [[row[0]] * 3]):
        with pytest.raises(TypeError, match=rf"{name}: it is .* but one dask array,.*expected .*da\.stack"):
            softdict.dask.lookup(KEYS, VALUES, **{"queries": np.zeros((2, 3)), name: lazy})
    with pytest.raises(TypeError, match=r"keys are .*expected.*lengths=True.*from_delayed"):
        softdict.dask.lookup(one, VALUES, np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["keys", "values", "queries", "where", "bias"])
def test_masked_chunks_are_refused_at_once(name):
    every = {"keys": KEYS, "values": VALUES, "queries": KEYS[:2], "where": KEYS[:, 0] > 0, "bias": KEYS[:, 0]}
    every[name] = da.ma.masked_array(every[name], mask=every[name] > 0)
    with pytest.raises(TypeError, match=r"is a masked array.*expected"):
        softdict.dask.lookup(**every)


@pytest.mark.parametrize(("rows", "width"), [((7, 7), 2), ((7, 3), 2), ((10, 10), 3)])
def test_chunks_of_other_shapes_than_told_are_refused_when_computed(rows, width):
    shapes = (10, 3), (10, 2)
    loaded = np.zeros((rows[0], 3)), np.zeros((rows[1], width))
    lazy = [da.from_delayed(dask.delayed(x), s, float) for x, s in zip(loaded, shapes, strict=True)]
    with pytest.raises(ValueError, match=r"a chunk holds keys .*expected .*Tell from_delayed"):
        softdict.dask.lookup(*lazy, np.zeros((2, 3)), top_k=1).compute(scheduler="sync")


def test_a_bias_of_nan_is_refused_when_computed():
    answer = softdict.dask.lookup(KEYS, VALUES, np.zeros(3), bias=da.full(10, np.nan))
    with pytest.raises(ValueError, match="bias holds NaN"):
        answer.compute(scheduler="sync")


# ---- worker processes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "5s"}),  # who asks the dead need not wait long
        LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def problem(n=4000):
    rng = np.random.default_rng(5)
    return rng.normal(size=(n, 5)), rng.normal(size=(n, 2)), rng.normal(size=(7, 5))


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0}, {"top_k": 4}, {"weighting": "sparsemax"}, {"similarity": InverseDistance(0.1)},
     {"similarity": lambda q, k: q @ k.T / 7}],
    ids=["softmax", "hard", "top_k", "sparsemax", "inverse distance", "lambda"],
)  # fmt: skip
def test_worker_processes_give_the_same(client, settings):
    keys, values, queries = problem()
    want = soft_lookup(queries, keys, values, **settings)
    answer = softdict.dask.lookup(chunked(keys, 500), chunked(values, 500), chunked(queries, 4), **settings)
    assert np.abs(answer.compute() - want).max() < NEAR


def slow_once(block, note=None, block_info=None):
    """Return a chunk; the third one, the first time, only after it has told who loads it and has slept."""
    if block_info[0]["chunk-location"][0] == 2 and not os.path.exists(note):
        Path(note + ".new").write_text(str(os.getpid()))
        os.rename(note + ".new", note)
        time.sleep(600)
    return block


@pytest.mark.parametrize("settings", [{}, {"top_k": 4}, {"temperature": 0}], ids=str)
def test_a_worker_that_is_killed_at_work_does_no_harm(client, settings, tmp_path):
    client.wait_for_workers(3, timeout=60)
    keys, values, queries = problem()
    want, note = soft_lookup(queries, keys, values, **settings), str(tmp_path / "pid")
    lazy = chunked(keys, 500).map_blocks(slow_once, note=note, dtype=float, meta=np.empty((0, 0)))
    future = client.compute(softdict.dask.lookup(lazy, chunked(values, 500), queries, **settings))
    while not os.path.exists(note):
        time.sleep(0.01)
    worker = int(Path(note).read_text())
    assert worker in client.run(os.getpid).values()
    assert not future.done()
    os.kill(worker, signal.SIGKILL)
    wait(future, timeout=120)
    assert np.abs(future.result() - want).max() < NEAR
