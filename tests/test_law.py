"""The law of the hard-lookup limit: at temperature 0 every stored key finds its own value, bit for bit."""

import numpy as np
import pytest

from softdict import SoftDict, _backend

DICTS_PER_KIND = 150


def everywhere(rng, n, d):
    return rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4)


def far_from_the_origin(rng, n, d):
    return 1e6 * rng.normal(size=d) + rng.normal(size=(n, d)) * 10.0 ** rng.integers(-2, 2)


def two_far_clusters(rng, n, d):
    return rng.choice([-1e5, 1e5], size=(n, 1)) + rng.normal(size=(n, d))


def neighbors(rng, n, d):
    """Return keys that differ in the last bits of one component."""
    keys = np.tile(rng.normal(size=d) * 1e3, (n, 1))
    for i in range(1, n):
        keys[i] = keys[i - 1]
        j = rng.integers(d)
        keys[i, j] = np.nextafter(keys[i, j].astype(np.float32), np.float32(np.inf))
    return keys


def neighbors_in_float64(rng, n, d):
    keys = np.tile(rng.normal(size=d) * 1e3, (n, 1))
    for i in range(1, n):
        keys[i] = keys[i - 1]
        keys[i, rng.integers(d)] = np.nextafter(keys[i, rng.integers(d)], np.inf)
    return keys


def tiny(rng, n, d):
    return rng.integers(-50, 50, size=(n, d)) * rng.choice([1e-30, 1e-200])  # squares that underflow


def integers(rng, n, d):
    return rng.integers(-3, 4, size=(n, d)).astype(float)


def twins(rng, n, d):
    return rng.integers(0, 2, size=(n, d)) * rng.normal(size=d)


KINDS = [
    everywhere,
    far_from_the_origin,
    two_far_clusters,
    neighbors,
    neighbors_in_float64,
    tiny,
    integers,
    twins,
]


def random_dict(kind, rng, dtype):
    """Return a SoftDict whose keys are of this kind: labelled where keys repeat."""
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 12))
    keys = kind(rng, n, d).astype(dtype)
    labels = None
    if kind is twins:
        labels = [f"row {i}" for i in range(n)]
    else:
        keys = keys[np.sort(np.unique(keys + 0.0, axis=0, return_index=True)[1])]
    values = rng.normal(size=(len(keys), *rng.integers(1, 4, size=rng.integers(3)))).astype(dtype)
    return SoftDict.from_arrays(keys, values, labels)


def check_law(sd):
    """Assert that each key, asked alone and in a batch, is answered by those that have its vector."""
    hard, keys, values = sd.at(temperature=0), sd.key_vectors, sd.value_vectors
    batch = hard[keys]
    assert batch.dtype == values.dtype
    for i, name in enumerate(sd):
        like = np.flatnonzero((keys == keys[i]).all(axis=1))
        alone = np.asarray(hard[name])
        if len(like) == 1:
            want = values[i].tobytes()
            assert alone.astype(values.dtype).tobytes() == want, f"{name} asked alone"
            assert batch[i].tobytes() == want, f"{name} asked in a batch"
        else:  # entries that share one vector share the answer, and answer alike
            first = np.asarray(hard[list(sd)[like[0]]])
            assert alone.tobytes() == first.tobytes()
            seen = hard.lookup(name).weights
            assert np.flatnonzero(seen).tolist() == like.tolist()
            assert set(seen[like].tolist()) == {1 / len(like)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dict_is_one_end_of_the_dial(kind, dtype):
    rng = np.random.default_rng([KINDS.index(kind), np.dtype(dtype).itemsize])
    for _ in range(DICTS_PER_KIND):
        check_law(random_dict(kind, rng, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_do_not_change_the_law(kind, monkeypatch):
    monkeypatch.setattr(_backend, "budget_mib", 0.0005)
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(10):
        check_law(random_dict(kind, rng, np.float64))
