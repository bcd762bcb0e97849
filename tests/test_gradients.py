"""Gradients against their twin, finite differences and torch; tiles, ties, hits and empty rows."""

import itertools
import math

import numpy as np
import oracle
import pytest

import softdict.gradients
from softdict import (
    Bilinear,
    Entmax,
    InverseDistance,
    _backend,
    attention,
    attention_vjp,
    check_vjp,
    lookup_weights,
    soft_lookup,
    soft_lookup_vjp,
)

INF = math.inf
SIMILARITIES = [
    "gaussian",
    "laplacian",
    "cosine",
    "dot",
    "scaled_dot",
    InverseDistance(0.5),
    InverseDistance(0.0),
]
OPTIONS = [
    {}, {"temperature": 0.3}, {"temperature": 0}, {"temperature": INF}, {"weighting": "sparsemax"},
    {"weighting": "entmax15"}, {"weighting": Entmax(1.2)}, {"weighting": Entmax(3.0)}, {"top_k": 3},
    {"min_score": -1.2}, {"null_score": -0.4}, {"weighting": "sparsemax", "null_score": -0.4},
    {"top_k": 2, "null_score": 0.1, "temperature": 0.5},
    {"temperature": 0.3, "min_score": -0.7, "null_score": -0.3},
]  # fmt: skip


def problem(m, n, d=3, e=2, lead=(), dtype=np.float64):
    """Return query, keys, values and cotangent."""
    rng = np.random.default_rng([m, n, d])
    return [rng.normal(size=(*lead, *shape)).astype(dtype) for shape in ((m, d), (n, d), (n, e), (m, e))]


def masks(m, n):
    """Return ways to mask: a row that sees nothing among them, and an entry that a bias takes out."""
    rng = np.random.default_rng([m, n])
    where, bias = rng.random((m, n)) < 0.7, rng.normal(size=(m, n))
    where[1], bias[0, 2] = False, -INF
    return [{}, {"where": where}, {"bias": bias}, {"where": where, "bias": bias}]


def compare(query, keys, values, cotangent, tol, **settings):
    """Compare with the twin, in units of the largest gradient, or of a thousandth where that is tiny."""
    got = soft_lookup_vjp(query, keys, values, cotangent, **settings)
    exact = [x.astype(np.float64) for x in (query, keys, values)]
    weights = lookup_weights(*exact[:2], **settings)
    want = oracle.gradients(*exact, cotangent.astype(np.float64), weights, **settings)
    for name, one, other in zip(got._fields, got, want, strict=True):
        if one is not None:
            assert np.shape(one) == np.shape(other)
            error = np.abs(np.asarray(one) - other).max(initial=0) / max(np.abs(other).max(initial=0), 1e-3)
            assert error <= tol, (name, error, settings)
    return got


# ---- every option --------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", [*SIMILARITIES, Bilinear(np.diag([2.0, -1.0, 0.5]) + 0.3)], ids=str)
@pytest.mark.parametrize(("m", "n"), [(3, 5), (7, 9)])
def test_every_option_is_the_twin_s(similarity, m, n):
    for option, mask in itertools.product(OPTIONS, masks(m, n)):
        compare(*problem(m, n), 1e-10, similarity=similarity, **option, **mask)


@pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-9), (np.float32, 3e-4)])
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_tiles_are_the_twin_s(similarity, dtype, tol, monkeypatch):
    monkeypatch.setattr(_backend, "CELLS", 2**13)  # so that there are many tiles, the last one short
    monkeypatch.setattr(_backend, "ROWS", 128)
    options = [{}, {"weighting": "entmax15"}, {"top_k": 3}, {"min_score": -3.0, "null_score": -1.0}]
    for option, mask in itertools.product(options, masks(257, 131)):
        compare(*problem(257, 131, d=9, dtype=dtype), tol, similarity=similarity, **option, **mask)


@pytest.mark.parametrize("weighting", ["softmax", "entmax15"])
@pytest.mark.parametrize("similarity", SIMILARITIES[:-1], ids=str)
def test_finite_differences_agree(similarity, weighting):
    query, keys, values, _ = problem(5, 8, lead=(2,))
    bias = np.random.default_rng(1).normal(size=8)
    for option in ({}, {"null_score": -0.5}, {"bias": bias, "where": bias > -1}, {"temperature": 0.4}):
        errors = check_vjp(query, keys, values, similarity=similarity, weighting=weighting, **option)
        assert max(errors.values()) < 1e-6, (option, errors)


# ---- shapes --------------------------------------------------------------------------------------


def test_leading_axes_that_broadcast_are_summed():
    query, keys, values, _ = problem(4, 6)
    queries = np.stack([query, 2 * query, -query])[:, None]  # (3, 1, m, d) against (2, n, d) and (n, e)
    stacked = np.stack([keys, keys + 1])
    bias = np.random.default_rng(2).normal(size=(2, 1, 6))
    cotangent = np.random.default_rng(3).normal(size=(3, 2, 4, 2))
    got = soft_lookup_vjp(queries, stacked, values, cotangent, bias=bias)
    assert [x.shape for x in got[:3]] == [queries.shape, stacked.shape, values.shape]
    assert got.bias.shape == bias.shape
    parts = {
        (i, j): soft_lookup_vjp(queries[i, 0], stacked[j], values, cotangent[i, j], bias=bias[j])
        for i, j in np.ndindex(3, 2)
    }
    np.testing.assert_allclose(got.query[1, 0], parts[1, 0].query + parts[1, 1].query, rtol=1e-12)
    np.testing.assert_allclose(got.keys[1], sum(parts[i, 1].keys for i in range(3)), rtol=1e-12)
    np.testing.assert_allclose(got.values, sum(p.values for p in parts.values()), rtol=1e-12)
    np.testing.assert_allclose(got.bias[0], sum(parts[i, 0].bias for i in range(3)), rtol=1e-9, atol=1e-12)
    assert got.temperature == pytest.approx(sum(p.temperature for p in parts.values()), rel=1e-12)


def test_one_query_and_plain_numbers_keep_their_shapes():
    keys, values = np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, 8.0])
    one = soft_lookup_vjp(0.5, keys, values, 1.0, bias=np.zeros(3))
    many = soft_lookup_vjp([0.5], keys, values, [1.0], bias=np.zeros(3))
    assert np.shape(one.query) == () and many.query.shape == (1,)
    assert one.query == many.query[0] != 0
    assert one.bias.shape == (3,) and one.bias.any()
    for name in ("keys", "values", "bias"):
        assert np.array_equal(getattr(one, name), getattr(many, name))
    assert type(one.temperature) is float and one.temperature == many.temperature


def test_no_queries_and_no_entries_give_zeros():
    query, keys, values, cotangent = problem(3, 5)
    none = soft_lookup_vjp(query[:0], keys, values, cotangent[:0])
    assert none.query.shape == (0, 3) and not none.keys.any() and not none.values.any()
    none = soft_lookup_vjp(query, keys[:0], values[:0], cotangent)
    assert not none.query.any() and none.keys.shape == (0, 3) and none.temperature == 0


# ---- attention -----------------------------------------------------------------------------------

SIGHTS = [
    {}, {"causal": True}, {"window": (2, 1)}, {"window": (3, None), "offset": -1},
    {"causal": True, "offset": 2}, {"causal": True, "offset": -3},  # whose first rows see nothing
]  # fmt: skip


def heads(h, groups, m, n, d=3, e=2, dtype=np.float64):
    """Return query, key, value and cotangent of grouped heads, in a batch of two."""
    rng = np.random.default_rng([h, m, n])
    shapes = (2, h, m, d), (2, groups, n, d), (2, groups, n, e), (2, h, m, e)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("option", [{}, {"weighting": "entmax15", "null_score": -0.4}, {"top_k": 2}], ids=str)
def test_attention_s_finite_differences_agree(sight, option):
    query, key, value, cotangent = heads(4, 2, 5, 7)
    bias = np.random.default_rng(1).normal(size=(4, 1, 7))
    where = np.random.default_rng(2).random((4, 5, 7)) < 0.8
    settings = {"where": where, "temperature": 0.7, **sight, **option}
    inputs = {"query": query, "key": key, "value": value, "temperature": 0.7, "bias": bias}
    got = attention_vjp(**{**settings, **inputs}, cotangent=cotangent)
    assert [np.shape(x) for x in got] == [np.shape(x) for x in inputs.values()]
    rng = np.random.default_rng(3)
    for gradient, (name, x) in zip(got, inputs.items(), strict=True):
        u = 1e-6 * rng.normal(size=np.shape(x))
        up, down = (attention(**{**settings, **inputs, name: x + way * u}) for way in (1, -1))
        want = ((up - down) * cotangent).sum() / 2
        assert np.sum(gradient * u) == pytest.approx(want, rel=1e-6, abs=1e-12), name


@pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-9), (np.float32, 1e-4)])
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_attention_s_gradients_are_those_of_each_head(sight, dtype, tol, monkeypatch):
    monkeypatch.setattr(_backend, "CELLS", 2**12)  # so that there are many tiles
    m, n = 150, 131
    query, key, value, cotangent = heads(4, 2, m, n, d=8, e=3, dtype=dtype)
    got = attention_vjp(query, key, value, cotangent, **sight)
    left, right = sight.get("window", (None, None))
    place, j = np.arange(m)[:, None] + sight.get("offset", n - m), np.arange(n)
    seen = (j <= place + (0 if "causal" in sight else n + m if right is None else right)) & (
        j >= place - (n + m if left is None else left)
    )
    want = [np.zeros(x.shape) for x in (query, key, value)]
    for b, h in np.ndindex(2, 4):
        arrays = (x[b, i].astype(np.float64) for x, i in ((query, h), (key, h // 2), (value, h // 2)))
        one = soft_lookup_vjp(
            *arrays, cotangent[b, h].astype(np.float64), similarity="scaled_dot", where=seen
        )
        for total, i, piece in zip(want, (h, h // 2, h // 2), one[:3], strict=True):
            total[b, i] += piece
    for one, other in zip(got[:3], want, strict=True):
        assert one.dtype == dtype
        assert np.abs(one - other).max() <= tol * np.abs(other).max()


def test_attention_s_masks_and_biases_keep_their_shapes():
    query, key, value, cotangent = heads(4, 2, 5, 7)
    for shape in ((7,), (5, 1), (4, 1, 7), (1, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7)):
        bias = np.random.default_rng(0).normal(size=shape)
        full = np.broadcast_to(bias, (2, 4, 5, 7))
        got, whole = (attention_vjp(query, key, value, cotangent, bias=b, causal=True) for b in (bias, full))
        summed = tuple(i for i, size in enumerate((1,) * (4 - len(shape)) + shape) if size == 1)
        want = whole.bias.sum(axis=summed, keepdims=True).reshape(shape)
        np.testing.assert_allclose(got.bias, want, rtol=1e-10, atol=1e-12)
    one = attention_vjp(query[0, 0, 0], key[0, 0], value[0, 0], cotangent[0, 0, 0], bias=np.zeros(7))
    assert one.query.shape == (3,) and one.bias.shape == (7,) and one.bias.any()


def test_what_attention_does_not_see_has_no_gradient():
    query, key, value, cotangent = heads(2, 1, 6, 6)
    key[:, :, 5], value[:, :, 5] = np.nan, np.inf
    got = attention_vjp(query[:, :, :5], key, value, cotangent[:, :, :5], causal=True, offset=0)
    assert all(np.isfinite(x).all() for x in got[:4])
    assert not got.keys[:, :, 5].any() and not got.values[:, :, 5].any()
    none = attention_vjp(query, key, value, cotangent, causal=True, offset=-6)
    assert not any(np.any(x) for x in none[:4])


# ---- ties, hits, ends ----------------------------------------------------------------------------


def test_at_zero_the_values_share_and_nothing_else_moves():
    keys, values = np.array([[0.0], [0.0], [2.0]]), np.array([1.0, 5.0, 9.0])
    got = soft_lookup_vjp([[0.5], [1.9]], keys, values, [1.0, 3.0], temperature=0, bias=np.zeros(3))
    assert got.values.tolist() == [0.5, 0.5, 3.0]
    assert not got.query.any() and not got.keys.any() and not got.bias.any() and got.temperature == 0


@pytest.mark.parametrize(
    "similarity", ["gaussian", "laplacian", "cosine", InverseDistance(1e-300), InverseDistance(0.0)], ids=str
)
def test_a_hit_has_a_finite_gradient(similarity):
    keys = np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [3.0, 1.0]])
    for temperature in (1.0, 1e-3, 1e300, 5e-324):
        got = soft_lookup_vjp(
            keys, keys, np.eye(4), np.eye(4)[::-1], similarity=similarity, temperature=temperature
        )
        assert not any(np.isnan(x).any() for x in got[:4]), temperature
        if temperature == 1:
            assert all(np.isfinite(x).all() for x in got[:4])


def test_a_zero_vector_does_not_turn():
    query = np.array([[0.0, 0.0], [1.0, 2.0]])
    keys = np.array([[0.0, 0.0], [2.0, 1.0], [1.0, 0.0]])
    got = soft_lookup_vjp(query, keys, [1.0, 2.0, 4.0], [1.0, 1.0], similarity="cosine")
    assert got.query[0].tolist() == got.keys[0].tolist() == [0.0, 0.0]
    assert np.isfinite(got.keys).all() and got.query[1].any()


@pytest.mark.parametrize("size", [(4, 5), (300, 200)])
def test_what_is_masked_is_never_touched(size):
    query, keys, values, cotangent = problem(*size, d=8)
    where = np.random.default_rng(0).random(size) < 0.8
    where[:, 2], where[1] = False, False
    clean = soft_lookup_vjp(query, keys, values, cotangent, where=where)
    query[1], keys[2], values[2] = np.nan, np.inf, np.nan
    got = soft_lookup_vjp(query, keys, values, cotangent, where=where)
    for one, other in zip(got[:3], clean[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert not got.query[1].any() and not got.keys[2].any() and not got.values[2].any()


def test_huge_numbers_do_not_make_nan():
    query, keys, values, cotangent = problem(3, 4)
    for huge in (1e200, 1e300):
        got = soft_lookup_vjp(query, keys, values * huge, cotangent * huge)
        assert not any(np.isnan(x).any() for x in got[:4])
        got = soft_lookup_vjp(
            query * huge, keys * huge, values, cotangent, similarity="dot", temperature=1e300
        )
        assert not any(np.isnan(x).any() for x in got[:4])


def test_far_clusters_keep_their_gradient_in_float32():
    rng = np.random.default_rng(0)
    far = np.where(np.arange(300) % 2, 1e4, -1e4)[:, None]
    keys = (far + rng.normal(size=(300, 16))).astype(np.float32)
    query = (far + rng.normal(size=(300, 16))).astype(np.float32)
    values, cotangent = rng.random((300, 2)).astype(np.float32), rng.random((300, 2)).astype(np.float32)
    compare(query, keys, values, cotangent, 1e-4, temperature=8.0)


def test_answers_do_not_depend_on_threads(monkeypatch):
    given = problem(1500, 1500, d=16, e=16, dtype=np.float32)
    many = soft_lookup_vjp(*given)
    monkeypatch.setattr(_backend.os, "cpu_count", lambda: 1)
    if _backend._blas() is not None:
        with _backend._blas().limit(limits=1, user_api="blas"):
            one = soft_lookup_vjp(*given)
        assert all(np.array_equal(a, b) for a, b in zip(many[:4], one[:4], strict=True))


# ---- refusals, and the check itself ----------------------------------------------------------------


def test_functions_without_a_derivative_are_refused():
    query, keys, values, cotangent = problem(3, 4)
    for name, function in (("similarity", lambda q, k: q @ k.T), ("weighting", lambda z: np.exp(z))):
        with pytest.raises(TypeError, match=f"{name} is .* is not known, but one of .*or .*Use these"):
            soft_lookup_vjp(query, keys, values, cotangent, **{name: function})


def test_a_cotangent_has_the_shape_of_the_answer():
    query, keys, values, cotangent = problem(3, 4)
    with pytest.raises(ValueError, match=r"cotangent has shape \(2, 3\).*\(3, 2\), was expected"):
        soft_lookup_vjp(query, keys, values, cotangent.T)


@pytest.mark.parametrize("name", ["query", "keys", "values", "temperature", "bias"])
def test_the_check_notices_an_error_of_a_thousandth(name, monkeypatch):
    query, keys, values, _ = problem(4, 6)
    right = soft_lookup_vjp

    def wrong(*args, **settings):
        found = right(*args, **settings)
        return found._replace(**{name: getattr(found, name) * 1.001})

    bias = np.random.default_rng(0).normal(size=(4, 6))
    assert check_vjp(query, keys, values, bias=bias)[name] < 1e-7
    monkeypatch.setattr(softdict.gradients, "soft_lookup_vjp", wrong)
    errors = check_vjp(query, keys, values, bias=bias)
    assert 5e-4 < errors.pop(name) < 2e-3
    assert max(errors.values()) < 1e-7


# ---- peers -----------------------------------------------------------------------------------------


@pytest.mark.peers
@pytest.mark.parametrize(
    "similarity", ["gaussian", "dot", "scaled_dot", "cosine", InverseDistance(0.5)], ids=str
)
def test_torch_s_autograd_agrees(similarity):
    torch = pytest.importorskip("torch")
    arrays = problem(9, 13, d=5)
    bias = np.random.default_rng(1).normal(size=(9, 13))
    where = np.random.default_rng(2).random((9, 13)) < 0.7
    where[:, 0] = True
    q, k, v, b = (torch.tensor(x, requires_grad=True) for x in (*arrays[:3], bias))
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    squares = ((q[:, None] - k[None]) ** 2).sum(-1)
    scores = {
        "gaussian": lambda: -squares / 2,
        "dot": lambda: q @ k.T,
        "scaled_dot": lambda: q @ k.T / math.sqrt(5),
        "cosine": lambda: torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1),
    }.get(similarity, lambda: -torch.log(squares + 0.5))()
    z = (scores / t + b).masked_fill(~torch.tensor(where), -INF)
    (torch.softmax(z, -1) @ v * torch.tensor(arrays[3])).sum().backward()
    got = soft_lookup_vjp(*arrays, similarity=similarity, temperature=0.7, bias=bias, where=where)
    for name, one, other in zip(got._fields, got, (q, k, v, t, b), strict=True):
        np.testing.assert_allclose(one, other.grad.numpy(), rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.peers
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("size", "sight"), [((24, 24), {}), ((24, 24), {"causal": True}), ((9, 31), {})])
def test_torch_s_scaled_dot_product_attention_agrees(size, sight, masked):
    torch = pytest.importorskip("torch")
    arrays = heads(4, 2, *size, d=8, e=5)
    bias = np.random.default_rng(1).normal(size=(4, *size))
    q, k, v, b = (torch.tensor(x, requires_grad=True) for x in (*arrays[:3], bias))
    whole = [x.repeat_interleave(2, dim=1) for x in (k, v)]
    mask = b.masked_fill(~torch.tensor(np.tri(*size, dtype=bool)), -INF) if masked and sight else b
    out = torch.nn.functional.scaled_dot_product_attention(
        q, *whole, attn_mask=mask if masked else None, is_causal=bool(sight) and not masked
    )
    (out * torch.tensor(arrays[3])).sum().backward()
    got = attention_vjp(*arrays, bias=bias if masked else None, **sight)
    for one, other in zip((*got[:3], got.bias), (q, k, v, b), strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_the_answer_is_what_the_gradient_says_to_first_order():
    query, keys, values, _ = problem(1, 5)
    gradient = soft_lookup_vjp(query, keys, values[:, 0], [1.0]).query
    step = 1e-6 * gradient
    rise = (soft_lookup(query + step, keys, values[:, 0]) - soft_lookup(query - step, keys, values[:, 0]))[0]
    assert rise == pytest.approx(2e-6 * (gradient**2).sum(), rel=1e-6) and rise > 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.filterwarnings("error")
def test_what_a_narrow_dtype_cannot_hold_is_infinity_without_a_warning(dtype):
    keys, values = np.array([0, 1, 2], dtype), np.array([1, 2, 4], dtype)
    for options in ({"cotangent": 1e60}, {"cotangent": 1.0, "temperature": 1e-300}):
        got = soft_lookup_vjp(dtype(0.5), keys, values, **options)
        assert np.isinf(got.query) and got.query.dtype == dtype
        assert not any(np.isnan(x).any() for x in got[:4])


@pytest.mark.parametrize("rng", ["a", -1, 1.5])
def test_the_check_refuses_what_gives_no_chance(rng):
    with pytest.raises(TypeError, match=r"rng is .*, but a Generator, .* was expected in check_vjp. Dir"):
        check_vjp(0.5, [0.0, 1.0], [1.0, 2.0], rng=rng)


@pytest.mark.parametrize("temperature", ["a", 1j, None, True, [1, 2]])
def test_the_check_refuses_a_temperature_as_the_lookup_does(temperature):
    with pytest.raises(TypeError, match=r"temperature is .*, but one number of at least 0 was expected"):
        check_vjp(0.5, [0.0, 1.0], [1.0, 2.0], temperature=temperature)
