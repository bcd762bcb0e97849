"""The rows behind a SoftDict, and what is kept beside them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from oracle import agree, tolerance

import softdict
from softdict import Bilinear, SoftDict, soft_lookup

BY_LENGTH = ("dot", "scaled_dot", "cosine", Bilinear(np.eye(8)[::-1]))


@pytest.fixture
def measured(monkeypatch):
    """Count the keys that are measured."""
    rows = []
    lengths = softdict._store._lengths

    def counting(keys):
        rows.append(len(keys))
        return lengths(keys)

    monkeypatch.setattr(softdict._store, "_lengths", counting)
    return rows


def filled(n=10_000, d=8, dtype=np.float64, **settings):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=n).astype(dtype)
    return SoftDict.from_arrays(keys, values, [f"row {i}" for i in range(n)], **settings)


@pytest.mark.parametrize("similarity", BY_LENGTH, ids=str)
def test_a_key_is_measured_once(similarity, measured):
    sd = filled(similarity=similarity)
    query = np.ones(8)
    for rules in ({}, {"temperature": 0}, {"top_k": 3}, {"weighting": "sparsemax"}):
        sd.at(**rules)[query]
    assert sum(measured) == 10_000
    del measured[:]
    sd.add("one more", query, 5.0)
    sd[query]
    assert sum(measured) == 1
    del measured[:]
    sd.add("row 9000", 2 * query, 5.0)  # overwrites
    sd.add("newer", query, 5.0)
    del sd["row 5"]
    got = sd[query]
    assert sum(measured) <= 1002
    expected = soft_lookup(query, sd.key_vectors, sd.value_vectors, similarity=similarity)
    agree(got, expected, tolerance(np.float64, 100, np.abs(sd.value_vectors).max()), "lengths kept")


def test_no_key_is_measured_where_no_length_is_asked_for(measured):
    sd = filled()
    sd[np.ones(8)]
    sd.at(similarity="laplacian", top_k=3)[np.ones((40, 8))]
    filled(20, similarity="dot")[np.ones(8)]  # so few that the plain lookup is quicker
    assert sum(measured) == 0


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_lengths_are_kept_in_float64(similarity):
    sd = filled(dtype=np.float32, similarity=similarity)
    sd.add("tiny", np.full(8, 1e-30, dtype=np.float32), np.float32(1))  # its square is 0 in float32
    assert sd.at(temperature=0, top_k=1)[np.ones(8)] == (1.0 if similarity == "cosine" else sd.at(
        temperature=0)[np.ones(8)])  # fmt: skip
    assert sd._store.norms().dtype == np.float64 and sd._store.norms()[-1] > 0


def test_a_large_memory_map_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("softdict._store.WHOLE", 0)
    np.save(tmp_path / "keys.npy", np.ones((5, 2)))
    mapped = np.load(tmp_path / "keys.npy", mmap_mode="r")
    sd = SoftDict.from_arrays(mapped, np.arange(5.0), labels="abcde")
    assert sd._store.norms() is None
    assert sd.copy()._store.norms().tolist() == [np.sqrt(2)] * 5


def test_many_queries_share_one_pass_over_a_map(tmp_path, monkeypatch):
    monkeypatch.setattr("softdict._store.WHOLE", 0)
    monkeypatch.setattr("softdict._backend.budget_mib", 1 / 16)
    np.save(tmp_path / "keys.npy", np.random.default_rng(0).normal(size=(3000, 2)))
    mapped = np.load(tmp_path / "keys.npy", mmap_mode="r")
    sd, read = SoftDict.from_arrays(mapped, mapped[:, 0], temperature=0), []
    own = sd._store.read
    sd._store.read = lambda start, stop: read.append(stop - start) or own(start, stop)
    for queries in (mapped[:1], mapped[:2000]):
        read.clear()
        assert np.array_equal(sd[np.array(queries)], queries[:, 0])
        assert sum(read) == 3000 and max(read) < 1000


def test_lengths_after_a_random_walk():
    rng = np.random.default_rng(1)
    sd = filled(4, d=3, dtype=np.float32)
    store = sd._store
    for step in range(600):
        names = list(sd)
        act = rng.integers(10)
        if act < 4 or not names:
            dtype = np.float64 if step > 300 else np.float32  # promotes
            sd.add(f"new {step}", rng.normal(size=3).astype(dtype), 1.0)
        elif act < 6:
            sd.add(names[rng.integers(len(names))], rng.normal(size=3).astype(np.float32), 2.0)
        elif act < 8:
            del sd[names[rng.integers(len(names))]]
        elif act == 8:
            sd.popitem()
        elif step % 50 == 9:
            sd.clear()
        elif step % 3 == 0:
            store = sd.__dict__["_store"] = (
                copy.copy(store) if step % 2 else pickle.loads(pickle.dumps(store))
            )
        elif len(names) > 1:
            store.sweep(names[::-1])
        store._check()
        if step % 4:
            np.testing.assert_allclose(store.norms(), np.linalg.norm(store.arrays()[0].astype(float), axis=1))
            store._check()
    assert store.keys.dtype == np.float64


def test_the_newest_entry_leaves_without_a_rebuild():
    sd = filled(5, d=3)
    sd.add("newer", np.ones(3), 5.0)
    before = sd._store.arrays()[0]
    sd.popitem()
    assert np.shares_memory(sd._store.arrays()[0], before)
    handed_out = sd.key_vectors
    kept = handed_out.copy()
    for step in range(3):  # what was handed out stays as it was
        sd.popitem()
        sd.add(f"other {step}", np.full(3, 7.0), 1.0)
        sd._store._check()
    assert np.array_equal(handed_out, kept)
    del sd["row 1"], sd["other 2"], sd["row 3"], sd["row 2"]
    sd._store._check()
    assert list(sd) == ["row 0"] and sd.key_vectors.tolist() == kept[:1].tolist()


def test_objects_leave_with_their_entries():
    sd = SoftDict({0: "a", 1: "b", 2: "c", 3: "d"}, temperature=0)
    del sd[2], sd[3]
    sd._store._check()
    sd[4] = "e"
    sd._store._check()
    assert dict(sd.hard) == {0: "a", 1: "b", 4: "e"} and sd[3.9] == "e"
