"""Partial answers: any split, merged in any order, is the answer over all entries."""

import itertools
import math
import multiprocessing
import operator
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import reduce

import numpy as np
import oracle
import pytest
from oracle import agree

from softdict import Bilinear, Entmax, InverseDistance, SoftDict, soft_lookup

INF = math.inf
TEMPERATURES = [0, 1e-320, 0.5, 40.0, INF]
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2)]
OPTIONS = [
    {}, {"top_k": 1}, {"top_k": 4}, {"min_score": -1.0}, {"null_score": -0.4}, {"min_score": INF},
    {"top_k": 3, "min_score": -4.0, "null_score": 0.0}, {"min_score": INF, "null_score": -2.0},
]  # fmt: skip
QUERIES = np.random.default_rng(11).normal(size=(4, 3))  # as every process knows them


def labels_of(rows):
    return [f"row {i}" for i in rows]


def entries(rng, n=9, d=2, value_shape=(2,), spread=3):
    """Return keys (n, d) on a lattice, so that many scores tie and some keys are equal, and values."""
    return rng.integers(-spread, spread + 1, size=(n, d)) / 2, rng.normal(size=(n, *value_shape))


def cut(rng, n, count):
    """Return bounds that cut n entries into `count` parts, some of them empty."""
    return list(itertools.pairwise([0, *sorted(rng.integers(0, n + 1, size=count - 1).tolist()), n]))


def parts_of(query, keys, values, bounds, **settings):
    """Return the partial answer over each part, each from a dict of its own."""
    return [
        SoftDict.from_arrays(keys[a:b], values[a:b], labels_of(range(a, b)), **settings).partial(query, a)
        for a, b in bounds
    ]


def merged_at_random(rng, parts):
    """Merge any two, in any order, until one is left."""
    parts = list(parts)
    while len(parts) > 1:
        one = parts.pop(rng.integers(len(parts)))
        other = parts.pop(rng.integers(len(parts)))
        parts.append(one + other)
    return parts[0]


def both(query, keys, values, **settings):
    """Return the dict over all entries, and the oracle's answer."""
    sd = SoftDict.from_arrays(keys, values, labels_of(range(len(keys))), **settings)
    return sd, oracle.Lookup(query, keys, values, **settings)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_any_split_in_any_order_is_the_whole(weighting, temperature):
    rng = np.random.default_rng([WEIGHTINGS.index(weighting), TEMPERATURES.index(temperature)])
    for options in OPTIONS:
        keys, values = entries(rng, n=int(rng.integers(1, 12)))
        query = np.concatenate([keys[:1], rng.normal(size=(1, 2))])
        settings = {"weighting": weighting, "temperature": temperature, **options}
        sd, want = both(query, keys, values, **settings)
        tol = want.tolerance(float)
        if temperature == 1e-320:  # the oracle's tolerance is infinite, but nothing is left to round
            tol = oracle.tolerance(float, 0, np.abs(values).max())
        for count in (1, 2, 4):
            parts = parts_of(query, keys, values, cut(rng, len(keys), count), **settings)
            got = merged_at_random(rng, parts).finish()
            agree(got, want.value, tol, "merged parts", settings)
            agree(sd.get(query, 0.0), want.value, tol, "whole", settings)


@pytest.mark.parametrize(
    "similarity",
    ["laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), Bilinear([[1.0, 2.0], [0.0, -1.0]])],
    ids=str,
)
def test_every_similarity_has_parts(similarity):
    rng = np.random.default_rng(1)
    for weighting, temperature in itertools.product(("softmax", "sparsemax"), (0, 1.0, INF)):
        keys, values = entries(rng)
        query = rng.normal(size=(2, 2))
        settings = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        want = both(query, keys, values, **settings)[1]
        got = merged_at_random(rng, parts_of(query, keys, values, cut(rng, 9, 4), **settings)).finish()
        agree(got, want.value, want.tolerance(float), "merged parts, every similarity", settings)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 1.0, INF])
@pytest.mark.parametrize("null_score", [None, -1.0])
def test_an_infinite_score_silences_the_other_parts(weighting, temperature, null_score):
    keys, values = np.array([[0.0], [5.0], [0.0], [7.0]]), np.array([1.0, 20.0, 3.0, 40.0])
    settings = {"similarity": InverseDistance(0.0), "weighting": weighting, "temperature": temperature,
                "null_score": null_score}  # fmt: skip
    want = both(np.zeros((1, 1)), keys, values, **settings)[1]
    for order in itertools.permutations(range(4)):
        parts = parts_of(np.zeros((1, 1)), keys, values, [(i, i + 1) for i in range(4)], **settings)
        got = reduce(operator.add, [parts[i] for i in order]).finish()
        agree(got, want.value, want.tolerance(float), "infinite scores in parts", (order, settings))


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_the_order_of_entries_decides_ties_whatever_the_order_of_merging(weighting):
    # All keys alike: top_k keeps the earliest, by their place among all.
    keys, values = np.zeros((6, 1)), np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    for temperature, top_k in itertools.product((0, 1.0, INF), (1, 2, 5)):
        settings = {"weighting": weighting, "temperature": temperature, "top_k": top_k}
        parts = parts_of([0.0], keys, values, [(0, 1), (1, 3), (3, 6)], **settings)
        for some in itertools.permutations(parts):
            got = reduce(operator.add, some).finish()
            agree(got, values[:top_k].mean(), oracle.tolerance(float, 0, 32), "ties in parts", settings)


def test_the_hard_limit_merges_to_the_last_bit():
    rng = np.random.default_rng(2)
    for _ in range(100):
        n = int(rng.integers(1, 30))
        keys = np.unique(rng.normal(size=(n, 3)) * 10.0 ** rng.integers(-3, 6), axis=0)
        values = rng.normal(size=(len(keys), 2))
        values[0, 0] = -0.0
        parts = parts_of(keys, keys, values, cut(rng, len(keys), 5), temperature=0)
        assert merged_at_random(rng, parts).finish().tobytes() == values.tobytes()


def test_more_parts_than_are_merged_at_once():
    rng = np.random.default_rng(3)
    keys, values = entries(rng, n=50, value_shape=())
    query = rng.normal(size=(4, 2))
    for weighting, options in itertools.product(WEIGHTINGS[:3], OPTIONS):
        settings = {"weighting": weighting, **options}
        want = both(query, keys, values, **settings)[1]
        parts = parts_of(query, keys, values, [(i, i + 1) for i in range(50)], **settings)
        for order in (parts, parts[::-1], [parts[i] for i in rng.permutation(50)]):
            got = reduce(operator.add, order).finish()
            agree(got, want.value, want.tolerance(float), "fifty parts", settings)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value_shape", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("single", [True, False])
def test_the_answer_has_the_kind_that_asking_has(single, value_shape, dtype):
    rng = np.random.default_rng(4)
    keys, values = (x.astype(dtype) for x in entries(rng, value_shape=value_shape))
    query = keys[0] + 1 if single else keys[:3] + 1
    for settings in ({}, {"temperature": 0}, {"top_k": 2}, {"weighting": "sparsemax", "null_score": -9.0}):
        sd = SoftDict.from_arrays(keys, values, labels_of(range(9)), **settings)
        whole, got = sd[query], sd.partial(query).finish()
        assert type(got) is type(whole)
        assert np.shape(got) == np.shape(whole)
        assert np.asarray(got).dtype == np.asarray(whole).dtype
        assert np.asarray(got).astype(dtype).tolist() == np.asarray(got).tolist()  # float32 all along
        flat = values.reshape(9, -1)
        tol = oracle.Lookup(query, keys, flat, **settings).tolerance(dtype).reshape(np.shape(whole))
        agree(got, whole, tol, "one part", settings)
        two = parts_of(query, keys, values, [(0, 4), (4, 9)], **settings)
        got = (two[1] + two[0]).finish()
        assert type(got) is type(whole)
        agree(got, whole, tol, "two parts", settings)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 0.5, INF])
def test_merging_is_associative(weighting, temperature):
    rng = np.random.default_rng(5)
    for options in OPTIONS:
        settings = {"weighting": weighting, "temperature": temperature, **options}
        keys, values = entries(rng)
        query = rng.normal(size=(2, 2))
        a, b, c = parts_of(query, keys, values, [(0, 2), (2, 6), (6, 9)], **settings)
        left, right, turned = ((a + b) + c).finish(), (a + (b + c)).finish(), (c + b + a).finish()
        tol = both(query, keys, values, **settings)[1].tolerance(float)
        agree(left, right, tol, "associative", settings)
        agree(left, turned, tol, "commutative", settings)


def test_a_merge_leaves_its_parts_as_they_were():
    rng = np.random.default_rng(6)
    keys, values = entries(rng)
    for settings in ({}, {"top_k": 2}, {"weighting": "sparsemax"}, {"temperature": 0}):
        a, b = parts_of(keys[:2], keys, values, [(0, 5), (5, 9)], **settings)
        before = a.finish().tobytes(), b.finish().tobytes()
        merged = (a + b).finish()
        merged[:] = 0
        assert (a.finish().tobytes(), b.finish().tobytes()) == before
        assert (a + b).finish().any()


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 2}, {"weighting": Entmax(1.2)}, {"temperature": 0}], ids=str
)
def test_parts_travel(options):
    rng = np.random.default_rng(7)
    keys, values = entries(rng)
    parts = parts_of(keys[:3], keys, values, [(0, 5), (5, 9)], similarity=InverseDistance(0.5), **options)
    sent = [pickle.loads(pickle.dumps(part)) for part in parts]
    assert (sent[0] + parts[1]).finish().tobytes() == (parts[0] + sent[1]).finish().tobytes()
    again = pickle.loads(pickle.dumps(sent[0] + sent[1]))
    assert again.finish().tobytes() == (parts[0] + parts[1]).finish().tobytes()


def part_of_files(folder, start, stop):
    keys, values = (np.load(f"{folder}/{name}.npy", mmap_mode="r")[start:stop] for name in ("keys", "values"))
    return SoftDict.from_arrays(keys, values, temperature=0.3).partial(QUERIES, offset=start)


def test_parts_of_files_come_from_processes(tmp_path):
    rng, edges = np.random.default_rng(12), [0, 70, 70, 150, 200]
    keys, values = rng.normal(size=(200, 3)), rng.normal(size=(200, 2))
    np.save(tmp_path / "keys.npy", keys)
    np.save(tmp_path / "values.npy", values)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        parts = pool.map(part_of_files, [str(tmp_path)] * 4, edges[:-1], edges[1:])
        merged = sum(parts, start=SoftDict(temperature=0.3).partial(QUERIES))
    want = soft_lookup(QUERIES, keys, values, temperature=0.3)
    np.testing.assert_allclose(merged.finish(), want, rtol=0, atol=1e-12)


def test_a_part_is_small():
    rng = np.random.default_rng(8)
    keys, values = rng.normal(size=(5000, 4)), rng.normal(size=(5000, 2))
    for settings in ({}, {"temperature": 0}, {"temperature": INF}, {"top_k": 5}, {"weighting": "sparsemax"}):
        part = SoftDict.from_arrays(keys, values, **settings).partial(keys[:3])
        assert len(pickle.dumps(part)) < keys.nbytes // 20, settings


# ---- the identity ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_a_part_of_nothing_is_the_identity(weighting, options):
    rng = np.random.default_rng(9)
    keys, values = entries(rng)
    settings = {"weighting": weighting, **options}
    part = SoftDict.from_arrays(keys, values, labels_of(range(9)), **settings).partial(keys[:2])
    nothing = SoftDict(**settings).partial(keys[:2], offset=9)
    want = part.finish().tobytes()
    for same in (part + nothing, nothing + part, nothing + nothing + part + nothing):
        assert same.finish().tobytes() == want
    with pytest.raises(KeyError, match="entry"):
        (nothing + nothing).finish()


def test_a_part_that_reaches_nothing_is_the_identity_too():
    rng = np.random.default_rng(10)
    keys, values = entries(rng)
    query = keys[:2]
    for settings in ({}, {"top_k": 2}, {"weighting": "entmax15"}, {"temperature": 0}, {"temperature": INF}):
        rules = {"min_score": -30.0, **settings}
        near = SoftDict.from_arrays(keys, values, labels_of(range(9)), **rules).partial(query)
        far = SoftDict.from_arrays(keys + 99, -values, labels_of(range(9)), **rules).partial(query, 9)
        for same in (near + far, far + near):
            agree(same.finish(), near.finish(), oracle.tolerance(float, 20, np.abs(values).max()), "far part")
        got = (far + far).finish()
        assert not got.any()
        assert not np.signbit(got).any()


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_the_silent_entry_enters_once(weighting):
    keys, values = np.zeros((8, 1)), np.full(8, 9.0)
    settings = {"weighting": weighting, "null_score": 0.0}
    parts = parts_of([0.0], keys, values, [(i, i + 1) for i in range(8)], **settings)
    got = reduce(operator.add, parts).finish()
    agree(got, 8.0, oracle.tolerance(float, 0, 9), "silent entry in parts")  # 8 of 9 shares, not 8 of 16


# ---- what does not merge ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("temperature", 1.0, 2.0), ("temperature", 0, INF), ("weighting", "softmax", "sparsemax"),
        ("weighting", Entmax(1.2), Entmax(1.3)), ("similarity", "dot", "gaussian"),
        ("similarity", InverseDistance(1.0), InverseDistance(2.0)), ("top_k", 1, 2), ("top_k", None, 2),
        ("similarity", Bilinear(np.eye(2)), Bilinear(2 * np.eye(2))), ("min_score", None, -1.0),
        ("null_score", None, 0.0), ("null_score", 1.0, 0.0),
    ],
)  # fmt: skip
def test_other_settings_refuse_to_merge(name, one, other):
    keys, values = entries(np.random.default_rng(11))
    sd = SoftDict.from_arrays(keys, values, labels_of(range(9)), **{name: one})
    a, b = sd.partial(keys[:2]), sd.at(**{name: other}).partial(keys[:2], offset=9)
    for left, right in ((a, b), (b, a), (a, SoftDict(**{name: other}).partial(0))):
        with pytest.raises(ValueError, match=rf"{name} is .* in the other.*expected.*\. [A-Z]"):
            left + right


def test_equal_settings_in_other_words_merge():
    keys, values = entries(np.random.default_rng(12))
    a = SoftDict.from_arrays(
        keys, values, labels_of(range(9)), similarity=InverseDistance(1.0), temperature=1
    )
    b = SoftDict.from_arrays(keys, values, labels_of(range(9)), similarity=InverseDistance(1.0))
    tol = oracle.tolerance(float, 10, np.abs(values).max())
    agree((a.partial(keys) + b.partial(keys, 9)).finish(), a[keys], tol, "twice the same")


@pytest.mark.parametrize(
    ("query", "keys", "values"),
    [
        (np.zeros((2, 3)), np.ones((4, 3)), np.ones((4, 2))), (np.zeros((2, 2)), np.ones((4, 2)), np.ones(4)),
        (np.zeros((2, 2)), np.ones((4, 2)), np.ones((4, 3))), (np.zeros(2), np.ones((4, 2)), np.ones((4, 2))),
        (np.zeros((3, 2)), np.ones((4, 2)), np.ones((4, 2))),
        (np.zeros((2, 2)), np.ones((4, 2)), np.ones((4, 2, 1))),
    ],
)  # fmt: skip
def test_other_widths_refuse_to_merge(query, keys, values):
    a = SoftDict.from_arrays(np.zeros((4, 2)), np.ones((4, 2)), labels_of(range(4))).partial(np.zeros((2, 2)))
    b = SoftDict.from_arrays(keys, values, labels_of(range(4))).partial(query)
    for left, right in ((a, b), (b, a)):
        with pytest.raises(ValueError, match=r"in the other.*expected.*\. [A-Z]"):
            left + right


def test_another_dtype_refuses_to_merge():
    # The union computes in float64 throughout, which a part in float32 has not done.
    a = SoftDict({0: 1.0}, dtype=np.float32).partial(0.0)
    b = SoftDict({1: 1.0}).partial(0.0, offset=1)
    for left, right in ((a, b), (b, a)):
        with pytest.raises(ValueError, match=r"float\d\d.* in the other.*expected.*of one dtype\."):
            left + right


def test_only_parts_merge():
    part = SoftDict({0: 1.0}).partial(0)
    for other in (5, None, 1.0, np.ones(1), "part"):
        with pytest.raises(TypeError):
            part + other
        with pytest.raises(TypeError):
            other + part


def test_a_function_of_whole_rows_has_no_parts():
    sd = SoftDict({0: 1.0}, weighting=lambda z: np.ones_like(z))
    with pytest.raises(TypeError, match=r"weighting .*expected.*\. [A-Z]"):
        sd.partial(0)


def test_objects_have_no_parts():
    with pytest.raises(TypeError, match=r"objects .*expected.*\. [A-Z]"):
        SoftDict({0: "zero", 1: "one"}).partial(0)
    with pytest.raises(TypeError, match=r"objects .*expected.*\. [A-Z]"):
        SoftDict({0: "zero", 1: "one"}, temperature=0).partial(0)


def test_objects_with_a_vector_beside_them_do():
    sd = SoftDict({0: "a", 1: "abc"}, value_encoder=lambda texts: [len(text) for text in texts])
    assert sd.partial(0.5).finish() == sd[0.5] == 2.0


@pytest.mark.parametrize(("offset", "error"), [(-1, ValueError), (1.5, ValueError), ("x", TypeError)])
def test_an_offset_is_a_whole_number(offset, error):
    with pytest.raises(error, match=r"offset is .*expected.*\. [A-Z]"):
        SoftDict({0: 1.0}).partial(0, offset=offset)


def test_a_function_of_pairs_has_parts():
    def overlap(q, k):
        return q @ k.T / 3

    rng = np.random.default_rng(13)
    keys, values = entries(rng, d=8)
    query = rng.normal(size=(3, 8))
    for options in OPTIONS:
        settings = {"similarity": overlap, **options}
        want = both(query, keys, values, **settings)[1]
        got = merged_at_random(rng, parts_of(query, keys, values, cut(rng, 9, 3), **settings)).finish()
        agree(got, want.value, want.tolerance(float), "merged parts of a function", options)


@pytest.mark.parametrize("temperature", [0, 1, math.inf])
def test_what_is_handed_out_can_be_written_to(temperature):
    sd = SoftDict({1: [1.0, 2.0], 2: [3.0, 4.0]}, temperature=temperature)
    one, other = sd.partial(1), SoftDict({5: [1.0, 2.0]}, temperature=temperature).partial(1, offset=2)
    before, merged = one.finish().copy(), (one + other).finish()
    one.finish()[...] = 99
    np.testing.assert_array_equal(one.finish(), before)
    np.testing.assert_array_equal((one + other).finish(), merged)


# ---- the union law -----------------------------------------------------------------------------------

SIMILARITIES = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5), InverseDistance(0.0),
    Bilinear([[1.0, 2.0], [0.0, -1.0]]),
]  # fmt: skip


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 0.7, INF])
def test_parts_of_two_dicts_are_a_part_of_their_union(similarity, weighting, temperature):
    rng = np.random.default_rng(14)
    lattice = np.array(list(itertools.product((-1.0, 0.0, 0.5, 2.0), repeat=2)))  # where many scores tie
    for options in OPTIONS:
        settings = {"similarity": similarity, "weighting": weighting, "temperature": temperature, **options}
        keys, values = rng.permutation(lattice), rng.normal(size=(16, 2))
        cut = int(rng.integers(1, 16))
        left, right = (
            SoftDict(zip(map(tuple, keys[some]), values[some], strict=True), **settings)
            for some in (slice(cut), slice(cut, None))
        )
        queries = np.concatenate([keys[:1], keys[-1:], rng.normal(size=(2, 2))])
        want = oracle.Lookup(queries, keys, values, **settings)
        a, b = left.partial(queries), right.partial(queries, offset=len(left))
        union = (left | right).get(queries, 0.0)
        for merged in (a + b, b + a):
            agree(merged.finish(), union, want.tolerance(float), "union of two dicts", settings)
            agree(merged.finish(), want.value, want.tolerance(float), "union, oracle", settings)
