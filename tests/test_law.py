"""The law of the hard-lookup limit: at temperature 0 every stored key finds its own value, bit for bit."""

import numpy as np
import pytest
from oracle import agree, tolerance

from softdict import Entmax, InverseDistance, SoftDict, _backend

DICTS_PER_KIND = 100


def everywhere(rng, n, d):
    return rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4)


def far_from_the_origin(rng, n, d):
    return 1e6 * rng.normal(size=d) + rng.normal(size=(n, d)) * 10.0 ** rng.integers(-2, 2)


def two_far_clusters(rng, n, d):
    return rng.choice([-1e5, 1e5], size=(n, 1)) + rng.normal(size=(n, d))


def neighbors(rng, n, d):
    """Return keys that differ in the last bits of one component, as float32 has them."""
    return walk(rng, n, d, lambda x: np.nextafter(np.float32(x), np.float32(np.inf)))


def neighbors_in_float64(rng, n, d):
    return walk(rng, n, d, lambda x: np.nextafter(x, np.inf))


def walk(rng, n, d, step):
    """Return keys each of which is one step away from the one before, in one component."""
    keys = np.tile(rng.normal(size=d) * 1e3, (n, 1)).astype(np.float32).astype(float)
    for i in range(1, n):
        keys[i] = keys[i - 1]
        j = rng.integers(d)
        keys[i, j] = step(keys[i, j])
    return keys


def tiny(rng, n, d):
    return rng.integers(-50, 50, size=(n, d)) * rng.choice([1e-30, 1e-200])  # squares that underflow


def smallest(rng, n, d):
    """Return small multiples of the smallest number of either dtype, among them -0.0."""
    return rng.integers(-3, 4, size=(n, d)) * rng.choice(
        [5e-324, float(np.finfo(np.float32).smallest_subnormal)]
    )


def largest(rng, n, d):
    """Return keys near the largest that a SoftDict takes."""
    return rng.uniform(-1, 1, size=(n, d)) * 0.49 * np.sqrt(float(np.finfo(np.float32).max) / d)


def integers(rng, n, d):
    return rng.integers(-3, 4, size=(n, d)).astype(float)


def large_and_small(rng, n, d):
    """Return keys whose components differ by what a sum of squares cannot hold."""
    return rng.choice([1e-20, 1.0, 1e8], size=(n, d)) * rng.integers(-2, 3, size=(n, d))


def twins(rng, n, d):
    return rng.integers(0, 2, size=(n, d)) * rng.normal(size=d)


KINDS = [
    everywhere, far_from_the_origin, two_far_clusters, neighbors, neighbors_in_float64, tiny, smallest,
    largest, integers, large_and_small, twins,
]  # fmt: skip


def random_dict(kind, rng, dtype):
    """Return a SoftDict whose keys are of this kind: labelled where keys repeat, and sometimes elsewhere."""
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 12))
    keys = kind(rng, n, d).astype(dtype)
    if kind is not twins:
        keys = keys[np.sort(np.unique(keys + 0.0, axis=0, return_index=True)[1])]
    labels = [f"row {i}" for i in range(len(keys))] if kind is twins or rng.random() < 0.3 else None
    values = rng.normal(size=(len(keys), *rng.integers(1, 4, size=rng.integers(3)))).astype(dtype)
    values[rng.random(len(keys)) < 0.1] = -0.0  # the sign of a zero is a bit too
    if d == 1 and rng.random() < 0.5:
        keys = keys[:, 0]  # plain numbers
    return SoftDict.from_arrays(keys, values, labels)


def check_law(sd):
    """Assert that each key, asked alone and in a batch, is answered by those that have its vector."""
    hard, keys, values = sd.at(temperature=0), sd.key_vectors, sd.value_vectors
    batch, names = hard[keys], list(sd)
    assert batch.dtype == values.dtype
    assert batch.shape == values.shape
    largest_value = np.abs(values).max()
    for i, name in enumerate(names):
        like = np.flatnonzero((keys == keys[i]).reshape(len(keys), -1).all(axis=1))
        alone = np.asarray(hard[name])
        assert alone.shape == values.shape[1:]
        if len(like) == 1:
            want = values[i].tobytes()
            assert alone.astype(values.dtype).tobytes() == want, f"{name} asked alone"
            assert batch[i].tobytes() == want, f"{name} asked in a batch"
        else:  # entries that share one vector share the answer, and answer alike
            mean = values[like].mean(axis=0, dtype=float)
            tol = tolerance(values.dtype, 0, largest_value)
            agree(alone, mean, tol, "shared answer", name)
            agree(batch[i], mean, tol, "shared answer in a batch", name)
            if i == like[-1]:
                first = np.asarray(hard[names[like[0]]])
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


@pytest.mark.parametrize("mib", [1e-6, 0.0005, 0.005])
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_do_not_change_the_law(kind, mib, monkeypatch):
    monkeypatch.setattr(_backend, "budget_mib", mib)
    rng = np.random.default_rng(KINDS.index(kind))
    for dtype in (np.float32, np.float64):
        check_law(random_dict(kind, rng, dtype))


@pytest.mark.parametrize("weighting", ["sparsemax", "entmax15", Entmax(1.2), Entmax(1)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_no_weighting_changes_the_law(kind, weighting):
    rng = np.random.default_rng(KINDS.index(kind))
    for dtype in (np.float32, np.float64):
        for _ in range(3):
            check_law(random_dict(kind, rng, dtype).at(weighting=weighting))


@pytest.mark.parametrize("similarity", ["laplacian", InverseDistance(0.5), InverseDistance(0.0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_no_distance_changes_the_law(kind, similarity):
    rng = np.random.default_rng(KINDS.index(kind))
    for dtype in (np.float32, np.float64):
        for _ in range(5):
            check_law(random_dict(kind, rng, dtype).at(similarity=similarity))


def test_a_dot_product_does_not_keep_the_law():
    sd = SoftDict({(1, 0): 10.0, (2, 0): 20.0})
    check_law(sd)
    with pytest.raises(AssertionError, match="asked alone"):
        check_law(sd.at(similarity="dot"))


def test_the_check_sees_a_wrong_bit():
    class Blurred(SoftDict):
        def __getitem__(self, query):
            return super().__getitem__(query) * (1 + np.finfo(float).eps)

    with pytest.raises(AssertionError, match="asked alone"):
        check_law(Blurred({0: 1.0, 1: 2.0}))


def test_the_law_holds_for_thousands_of_entries():
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 40, size=(4000, 3)) * 1.0 + 1e6, axis=0)
    values = rng.normal(size=len(keys))
    hard = SoftDict.from_arrays(keys, values, temperature=0)
    assert hard[keys].tobytes() == values.tobytes()
    assert dict(hard) == dict(hard.hard)
