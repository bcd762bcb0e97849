"""Attention: causal, windows and grouped heads against the oracle; what is not seen changes no bit."""

import itertools
import math
import tracemalloc

import numpy as np
import oracle
import pytest
from oracle import agree, tolerance

from softdict import Bilinear, Entmax, _backend, attention, attention_weights, lookup_weights, soft_lookup

INF = math.inf
SIZES = [(4, 7), (7, 4), (5, 5), (1, 6), (6, 1), (3, 0), (0, 3)]
SIGHTS = [
    {},
    {"causal": True},
    {"causal": True, "offset": 0},
    {"causal": True, "offset": -2},
    {"causal": True, "offset": 40},
    {"window": (1, 1)},
    {"window": (None, 0), "offset": 1},
    {"window": (0, None), "offset": -3},
    {"window": (None, None)},
    {"window": (2, 3), "causal": True},
    {"window": (0, 0), "offset": -40},
]
OPTIONS = [
    {}, {"temperature": 0}, {"temperature": 0.2, "top_k": 2}, {"temperature": INF}, {"null_score": 0.1},
    {"weighting": "sparsemax"}, {"similarity": "gaussian", "weighting": "entmax15"},
    {"similarity": "cosine", "top_k": 3, "null_score": -0.2},
]  # fmt: skip


def problem(m, n, d=3, e=2, lead=(), seed=0, dtype=np.float64):
    rng = np.random.default_rng([seed, m, n])
    return [rng.normal(size=(*lead, *shape)).astype(dtype) for shape in ((m, d), (n, d), (n, e))]


def seen(m, n, causal=False, window=None, offset=None):
    """Return who sees whom (m, n), one pair at a time."""
    left, right = window or (None, None)
    offset = n - m if offset is None else offset
    table = np.ones((m, n), dtype=bool)
    for i, j in np.ndindex(m, n):
        table[i, j] = not (
            (causal and j > i + offset)
            or (left is not None and j < i + offset - left)
            or (right is not None and j > i + offset + right)
        )
    return table


def check(query, key, value, sight, where=None, bias=None, **options):
    """Compare attention and its weights with the oracle, which is told who sees whom."""
    table = seen(query.shape[-2], key.shape[-2], **sight)
    table = table if where is None else table & where
    rules = {"similarity": "scaled_dot", **options}
    want = oracle.Lookup(query, key, value, where=table, bias=bias, **rules)
    got = attention(query, key, value, where=where, bias=bias, **sight, **options)
    agree(got, want.value, want.tolerance(got.dtype), "attention", (sight, options))
    weights = attention_weights(query, key, where=where, bias=bias, **sight, **options)
    agree(weights, want.weights, want.weights_tolerance(weights.dtype), "its weights", (sight, options))
    assert not weights[~np.broadcast_to(table, weights.shape)].any()
    assert not got[~np.broadcast_to(table, weights.shape).any(axis=-1)].any()
    return got, weights


# ---- who sees whom ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_attention_is_the_oracle_s(m, n, sight):
    query, key, value = problem(m, n)
    rng = np.random.default_rng(1)
    for options in OPTIONS:
        check(query, key, value, sight, **options)
    where = rng.random((m, n)) < 0.7
    bias = np.where(rng.random((m, n)) < 0.8, rng.normal(size=(m, n)), -INF)
    check(query, key, value, sight, where, bias)
    check(query, key, value, sight, where, bias, top_k=2, null_score=0.3)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_tiles_say_the_same(sight, monkeypatch):
    query, key, value = problem(11, 9)
    monkeypatch.setattr(_backend, "budget_mib", 1e-3)
    for options in OPTIONS:
        check(query, key, value, sight, **options)


def test_the_last_query_meets_the_last_entry():
    query, key, _ = problem(2, 4)
    assert (attention_weights(query, key, causal=True) > 0).tolist() == [[True] * 3 + [False], [True] * 4]
    query, key, _ = problem(4, 2)
    weights = attention_weights(query, key, causal=True)
    assert (weights > 0).tolist() == [[False] * 2, [False] * 2, [True, False], [True, True]]


def test_one_query_asks_from_the_end():
    query, key, value = problem(1, 6)
    for sight in ({}, {"causal": True}, {"window": (2, 0)}, {"causal": True, "offset": 2}):
        batch = attention(query, key, value, **sight)
        one = attention(query[0], key, value, **sight)
        assert one.shape == (2,)
        np.testing.assert_array_equal(one, batch[0])
        weights = attention_weights(query[0], key, where=np.arange(6) != 1, **sight)
        assert (weights > 0).tolist() == (seen(1, 6, **sight)[0] & (np.arange(6) != 1)).tolist()
    assert isinstance(attention(query[0], key, value[:, 0]), float)
    assert attention(query[0], np.stack([key] * 4), value).shape == (4, 2)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attention_is_soft_lookup_in_other_words(options):
    query, key, value = problem(4, 6, lead=(2, 3))
    rules, equal = {"similarity": "scaled_dot", **options}, np.testing.assert_array_equal
    equal(attention(query, key, value, **options), soft_lookup(query, key, value, **rules))
    equal(attention_weights(query, key, **options), lookup_weights(query, key, **rules))
    weights = attention_weights(query, key, causal=True, **options)
    blend = attention(query, key, value, causal=True, **options)
    agree(weights @ value, blend, tolerance(float, 100, np.abs(value).max()), "weights @ value", options)


# ---- what is not seen changes no bit ---------------------------------------------------------------


def changes(key, value, rng):
    """Yield keys and values with other last ones: others, huge ones, NaN, infinity."""
    for what in (rng.normal(size=key.shape[-1]) * 50, 1e30, np.nan, INF, -INF):
        other_key, other_value = key.copy(), value.copy()
        other_key[-1], other_value[-1] = what, np.resize(what, value.shape[-1])
        yield other_key, value
        yield key, other_value
        yield other_key, other_value


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mib", [None, 1e-3])
def test_a_later_entry_changes_no_earlier_bit(options, dtype, mib, monkeypatch):
    if mib is not None:
        monkeypatch.setattr(_backend, "budget_mib", mib)
    query, key, value = problem(9, 9, dtype=dtype)
    before = attention(query, key, value, causal=True, **options)
    weights = attention_weights(query, key, causal=True, **options)
    for key_, value_ in changes(key, value, np.random.default_rng(2)):
        after = attention(query, key_, value_, causal=True, **options)
        assert after[:-1].tobytes() == before[:-1].tobytes()
        assert attention_weights(query, key_, causal=True, **options)[:-1].tobytes() == weights[:-1].tobytes()


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"similarity": "gaussian"}], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_later_entry_changes_no_earlier_bit_where_there_are_many(options, dtype):
    query, key, value = problem(700, 700, d=16, e=8, dtype=dtype)
    before = attention(query, key, value, causal=True, **options)
    assert np.isfinite(before).all()
    rng = np.random.default_rng(3)
    for first, what in itertools.product((1, 350, 699), (None, np.nan, INF, 1e30)):
        key_, value_ = key.copy(), value.copy()
        key_[first:] = rng.normal(size=key_[first:].shape) * 9 if what is None else what
        value_[first:] = rng.normal(size=value_[first:].shape) * 9 if what is None else what
        after = attention(query, key_, value_, causal=True, **options)
        assert after[:first].tobytes() == before[:first].tobytes(), (first, what)


@pytest.mark.parametrize("weighting", ["sparsemax", "entmax15", Entmax(3.0)], ids=str)
@pytest.mark.parametrize(("n", "e"), [(64, 1), (64, 2), (200, 1)])
def test_nor_where_a_sparse_weighting_keeps_many(weighting, n, e):
    first, options = n * 2 // 3, {"causal": True, "weighting": weighting, "temperature": 20}
    query, key, value = problem(n, n, d=16, e=e)
    before = attention(query, key, value, **options)
    for changed in ((query,), (key,), (value,), (query, key, value)):
        other = [x.copy() for x in (query, key, value)]
        for x, y in zip(other, (query, key, value), strict=True):
            x[first:] *= 30 if any(y is z for z in changed) else 1
        assert attention(*other, **options)[:first].tobytes() == before[:first].tobytes()


@pytest.mark.parametrize(("n", "e"), [(64, 1), (600, 2)])
def test_nor_where_many_entries_tie(n, e):
    first, value = n * 2 // 3, np.random.default_rng(0).normal(size=(n, e))
    query, key = np.ones((n, 16)), np.ones((n, 16))
    key[::3] *= -1
    before = attention(query, key, value, causal=True, temperature=0)
    for last in (-1, 1, 2):
        key[first:] = last
        after = attention(query, key, value, causal=True, temperature=0)
        assert after[:first].tobytes() == before[:first].tobytes()


def test_what_lies_outside_the_window_changes_no_bit():
    query, key, value = problem(30, 30)
    before = attention(query, key, value, window=(4, 2))
    key[10], value[10] = np.nan, INF
    after = attention(query, key, value, window=(4, 2))
    sees = seen(30, 30, window=(4, 2))[:, 10]
    assert after[~sees].tobytes() == before[~sees].tobytes()
    assert np.isnan(after[sees]).all()


# ---- heads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*OPTIONS, {"similarity": Bilinear(np.eye(3) + 0.5)}], ids=str)
@pytest.mark.parametrize(
    "heads", [(6, 3, 3), (6, 2, 2), (6, 1, 1), (6, 6, 6), (6, 2, 1), (6, 1, 2), (6, 6, 1)]
)
def test_each_head_of_the_key_serves_consecutive_heads_of_the_query(heads, options):
    h, h_key, h_value = heads
    query, key, value = (problem(4, 5, lead=(2, x))[i] for i, x in enumerate(heads))
    rng = np.random.default_rng(4)
    many_keys, many_values = np.repeat(key, h // h_key, axis=-3), np.repeat(value, h // h_value, axis=-3)
    wheres = [None, rng.random((4, 5)) < 0.7, rng.random((h, 1, 5)) < 0.7, rng.random((2, 1, 4, 5)) < 0.7]
    biases = [None, rng.normal(size=(2, h, 4, 5)), rng.normal(size=(h, 1, 1)), rng.normal(size=5)]
    for where, bias in itertools.product(wheres, biases):
        common = {"where": where, "bias": bias, "causal": True, **options}
        got = attention(query, key, value, **common)
        assert got.shape == (2, h, 4, 2)
        np.testing.assert_array_equal(got, attention(query, many_keys, many_values, **common))
        weights = attention_weights(query, key, **common)
        np.testing.assert_array_equal(weights, attention_weights(query, many_keys, **common))


def test_grouped_heads_are_the_oracle_s_head_by_head():
    query, key, value = problem(3, 5, lead=(4,))
    key, value = key[:2], value[:2]
    where = np.random.default_rng(5).random((4, 3, 5)) < 0.7
    got = attention(query, key, value, where=where, causal=True)
    for head in range(4):
        want, _ = check(query[head], key[head // 2], value[head // 2], {"causal": True}, where[head])
        np.testing.assert_array_equal(got[head], want)


def test_grouped_heads_and_other_axes_broadcast():
    query, key, value = problem(3, 5, lead=(7, 1, 4))[0], problem(3, 5, lead=(6, 2))[1], problem(3, 5)[2]
    got = attention(query, key, value, bias=np.zeros((4, 1, 5)))
    assert got.shape == (7, 6, 4, 3, 2)
    np.testing.assert_array_equal(got[5, 4, 3], attention(query[5, 0, 3], key[4, 1], value))
    assert attention_weights(query, key).shape == (7, 6, 4, 3, 5)
    assert attention(query, key, value[:, 0]).shape == (7, 6, 4, 3)
    assert attention(query[0, 0], key[0].tolist(), value.tolist()).shape == (4, 3, 2)
    assert attention(query[:, :, :0], key, value).shape == (7, 6, 0, 3, 2)
    assert attention(query[:0], key, value).shape == (0, 6, 4, 3, 2)
    assert attention(query[0, 0, 0], key[0], value).shape == (2, 3, 2)  # a query without heads
    for dtype in (np.float16, np.float32):
        assert attention(*(x.astype(dtype) for x in (query[0, 0], key[0], value))).dtype == dtype


def test_grouped_heads_are_not_copied():
    rng = np.random.default_rng(6)
    query = rng.normal(size=(64, 1, 8))
    key, value = rng.normal(size=(2, 20000, 8)), rng.normal(size=(2, 20000, 8))
    attention(query, key[:, :9], value[:, :9])  # what is loaded once
    tracemalloc.start()
    try:
        attention(query, key, value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * key.nbytes  # all heads repeated would take 32 times as much


def test_the_input_is_left_as_it_was():
    query, key, value = problem(3, 5, lead=(4,))
    inputs = [query, key[:2], value[:2], np.ones((4, 3, 5), bool), np.zeros((4, 3, 5))]
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    attention(*inputs[:3], where=inputs[3], bias=inputs[4], causal=True, window=(1, None))
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y)


# ---- never NaN -------------------------------------------------------------------------------------


def test_rows_that_see_nothing_are_zeros():
    query, key, value = problem(5, 3)
    for options in OPTIONS:
        got, weights = check(query, key, value, {"causal": True}, **options)
        assert not np.signbit(got[:2]).any() and not got[:2].any() and not weights[:2].any()
    key[:], value[:] = np.nan, np.nan
    assert attention(query, key, value, causal=True, offset=-5).tolist() == [[0, 0]] * 5
    assert attention(query, key, value, window=(0, 0), offset=3).tolist() == [[0, 0]] * 5
    assert attention(query, key, value, causal=True, offset=-(2**53)).tolist() == [[0, 0]] * 5
    assert attention(query, key, value, window=(2**53, 0), offset=-(2**53)).tolist() == [[0, 0]] * 5


# ---- wrong calls -----------------------------------------------------------------------------------


def arrays(heads, key_heads, value_heads):
    return [np.ones((h, 3, 2)) for h in (heads, key_heads, value_heads)]


@pytest.mark.parametrize(
    ("shapes", "options", "error", "text"),
    [
        ((6, 4, 4), {}, ValueError, "query has 6 heads, but a multiple of the 4 heads .* on axis -3, .*"),
        ((2, 4, 4), {}, ValueError, "query has 2 heads, but a multiple of the 4 heads .* on axis -3, .*"),
        ((6, 1, 4), {}, ValueError, "query has 6 heads, but a multiple of the 4 heads .* on axis -3, .*"),
        ((6, 2, 3), {}, ValueError, "key has 2 heads and value has 3, but equal .* on axis -3"),
        ((6, 2, 6), {}, ValueError, "key has 2 heads and value has 6, but equal .* on axis -3"),
        ((4, 2, 2), {"causal": 1}, TypeError, "causal is 1, but True or False .* in attention"),
        ((4, 2, 2), {"causal": None}, TypeError, "causal is None, but True or False .* in attention"),
        ((4, 2, 2), {"window": 3}, TypeError, r"window is 3, but a pair \(left, right\) .* in attention"),
        ((4, 2, 2), {"window": "ab"}, TypeError, r"window is 'ab', but a pair .* in attention"),
        ((4, 2, 2), {"window": ()}, ValueError, r"window is \(\), but a pair .* in attention"),
        ((4, 2, 2), {"window": (1, 2, 3)}, ValueError, r"window is \(1, 2, 3\), but a pair .* in attention"),
        ((4, 2, 2), {"window": (-1, 0)}, ValueError, r"window\[0\] is -1, but a whole .* in attention"),
        ((4, 2, 2), {"window": (0, 1.5)}, ValueError, r"window\[1\] is 1.5, but a whole .* in attention"),
        ((4, 2, 2), {"window": (0, True)}, TypeError, r"window\[1\] is True, but a whole .* in attention"),
        ((4, 2, 2), {"window": (INF, 0)}, ValueError, r"window\[0\] is inf, but a whole .* in attention"),
        ((4, 2, 2), {"offset": 0.5}, ValueError, "offset is 0.5, but one whole number .* in attention"),
        ((4, 2, 2), {"offset": 2**60}, ValueError, "offset is 115.*, but one whole number .* in attention"),
        ((4, 2, 2), {"offset": math.nan}, ValueError, "offset is nan, but one whole .* in attention"),
        ((4, 2, 2), {"offset": True}, TypeError, "offset is True, but one whole number .* in attention"),
        ((4, 2, 2), {"offset": [1, 2]}, TypeError, r"offset is \[1, 2\], but one whole .* in attention"),
        ((4, 2, 2), {"where": np.ones((2, 3, 3), bool)}, ValueError, r"where .* \(4, 3, 3\) was expected"),
        ((4, 2, 2), {"where": np.ones((3, 3))}, TypeError, "where has dtype float64, but booleans .*"),
        ((4, 2, 2), {"bias": np.ones((2, 2, 3, 3))}, ValueError, r"bias has .* \(4, 3, 3\) was expected"),
        ((4, 2, 2), {"temperature": -1}, ValueError, "temperature is -1, but one number .*"),
        ((4, 2, 2), {"top_k": 0}, ValueError, "top_k is 0, but a whole number .*"),
        ((4, 2, 2), {"similarity": "euclid"}, ValueError, ".*euclid.*expected.*"),
        ((4, 2, 2), {"weighting": "argmax"}, ValueError, ".*argmax.*expected.*"),
        ((4, 2, 2), {"similarity": Bilinear(np.eye(3))}, ValueError, "query has width 2 .* expected.*"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_told_what_was_expected(shapes, options, error, text):
    query, key, value = arrays(*shapes)
    with pytest.raises(error, match=rf"(?s)^{text}\.? .*"):
        attention(query, key, value, **options)
    with pytest.raises(error, match=r"expected.*\. [A-Z]"):
        attention(query, key, value, **options)
    if options:
        with pytest.raises(error, match=r"expected.*\. [A-Z]"):
            attention_weights(query, key, **options)


def test_ragged_and_masked_arrays_are_refused_by_name():
    query, key, value = arrays(4, 2, 2)
    with pytest.raises(TypeError, match="key is a masked array"):
        attention(query, np.ma.array(key), value)
    with pytest.raises(ValueError, match="query is ragged"):
        attention([[1.0, 2.0], [3.0]], key, value)


# ---- another library -------------------------------------------------------------------------------


@pytest.mark.peers
def test_attention_is_torch_s_scaled_dot_product_attention():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.scaled_dot_product_attention
    query, key, value = problem(40, 70, d=16, e=5, lead=(2, 6))
    tol = tolerance(np.float64, 10, np.abs(value).max())
    for heads in (6, 3, 2, 1):
        some = query, key[:, :heads], value[:, :heads]
        grouped = {"enable_gqa": True} if heads < 6 else {}
        for causal in (False, True):
            want = theirs(*map(torch.from_numpy, some), is_causal=causal, **grouped).numpy()
            assert np.abs(attention(*some, causal=causal, offset=0) - want).max() <= tol
        mask = seen(40, 70, causal=True, window=(5, None))
        want = theirs(*map(torch.from_numpy, some), attn_mask=torch.from_numpy(mask), **grouped).numpy()
        assert np.abs(attention(*some, causal=True, window=(5, None)) - want).max() <= tol
