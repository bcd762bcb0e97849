"""Tensors in, tensors out: the answers of NumPy's arrays, on the tensors' device, with gradients."""

import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from oracle import agree, tolerance

from softdict import (
    Bilinear,
    Entmax,
    InverseDistance,
    SelfAttention,
    SoftDict,
    _tensors,
    attention,
    attention_vjp,
    attention_weights,
    fit_attention,
    lookup_weights,
    soft_lookup,
    soft_lookup_vjp,
)

pytestmark = pytest.mark.peers

INF = math.inf
W = np.random.default_rng(9).normal(size=(3, 3))
SIMILARITIES = ["gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.1), Bilinear(W)]
WEIGHTINGS = ["softmax", "sparsemax", "entmax15", Entmax(1.2), Entmax(2.5)]
OPTIONS = [
    {}, {"where": True}, {"bias": True}, {"top_k": 3}, {"min_score": -1.0}, {"null_score": -0.5},
    {"where": True, "bias": True, "top_k": 2, "null_score": 0.0, "min_score": -2.0},
]  # fmt: skip


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # which is quicker where everything is small
    return torch


@pytest.fixture
def fused(monkeypatch):
    """Tell which way each lookup went: whether the fused kernel answered it."""
    went, original = [], _tensors._fused

    def noted(*args):
        out = original(*args)
        went.append(out is not None)
        return out

    monkeypatch.setattr(_tensors, "_fused", noted)
    return went


def problem(m=6, n=9, d=3, e=2, lead=(), dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(*lead, *shape)).astype(dtype) for shape in ((m, d), (n, d), (n, e))]


def masks(options, m=6, n=9, dtype=np.float64):
    """Put masks in the place of True: one query sees nothing, one entry has no prior."""
    rng, options = np.random.default_rng(1), dict(options)
    if "where" in options:
        options["where"] = rng.random((m, n)) < 0.6
        options["where"][1] = False
    if "bias" in options:
        options["bias"] = rng.normal(size=(m, n)).astype(dtype)
        options["bias"][2, 3] = -INF
    return options


def turned(torch, options):
    return {k: torch.tensor(x) if isinstance(x, np.ndarray) else x for k, x in options.items()}


# ---- the same answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("temperature", [0, 5e-324, 0.7, 1e300, INF])
@pytest.mark.parametrize("similarity", [*SIMILARITIES, InverseDistance(0)], ids=str)
def test_answers_are_those_of_arrays(torch, similarity, temperature, dtype):
    for weighting, options in itertools.product(WEIGHTINGS, OPTIONS):
        lead = (2,) if "where" in options else ()
        q, k, v = problem(lead=lead, dtype=dtype)
        q[..., 0, :], k[..., 5, :] = k[..., 2, :], k[..., 4, :]  # an exact hit, a tie
        how = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        own = masks(options, dtype=dtype)
        theirs, tensors = turned(torch, own), list(map(torch.tensor, (q, k, v)))
        size = 10 if temperature == 0 or temperature > 1 else min(10 / temperature, 1e280)
        tol = min(tolerance(np.float64 if dtype is np.float64 else np.float32, size), 1e300)
        got = soft_lookup(*tensors, **how, **theirs)
        assert got.dtype == tensors[0].dtype
        agree(got, soft_lookup(q, k, v, **how, **own), 3 * tol, "tensors' values", (how, own))
        got = lookup_weights(*tensors[:2], **how, **theirs)
        agree(got, lookup_weights(q, k, **how, **own), tol, "tensors' weights", (how, own))


@pytest.mark.parametrize(
    "heads", [((), ()), ((2,), (2,)), ((3, 6), (3, 2)), ((4,), (1,)), ((2, 2, 2), (2, 2))]
)
@pytest.mark.parametrize(("m", "n"), [(4, 7), (7, 4), (5, 5), (1, 6), (3, 0), (0, 3)])
def test_attention_is_that_of_arrays(torch, m, n, heads):
    rng = np.random.default_rng(0)
    sights = [
        {}, {"causal": True}, {"causal": True, "offset": 0}, {"causal": True, "offset": -2},
        {"window": (1, 1)}, {"window": (0, None), "offset": -3},
    ]  # fmt: skip
    more = [{}, {"temperature": 0}, {"top_k": 2}, {"null_score": 0.1}, {"weighting": "sparsemax"}]
    for sight, options, mask in itertools.product(sights, more, range(4)):
        q = rng.normal(size=(*heads[0], m, 3))
        k, v = (rng.normal(size=(*heads[1], n, width)) for width in (3, 2))
        own = {**sight, **options}
        if mask & 1:
            own["where"] = rng.random((*heads[0][-1:], m, n)) < 0.6
        if mask & 2:
            own["bias"] = np.where(rng.random((*heads[0], m, n)) < 0.2, -INF, rng.normal(size=(m, n)))
        theirs, tensors = turned(torch, own), list(map(torch.tensor, (q, k, v)))
        agree(attention(*tensors, **theirs), attention(q, k, v, **own), 1e-13, "tensors' attention", own)
        got, want = attention_weights(*tensors[:2], **theirs), attention_weights(q, k, **own)
        agree(got, want, 1e-13, "tensors' attention weights", own)


def test_shapes_are_those_of_arrays(torch):
    for shapes in [
        ((), (4,), (4,)), ((3,), (4,), (4,)), ((3,), (4, 3), (4,)), ((3,), (4, 3), (4, 2)),
        ((2, 1, 5, 3), (3, 4, 3), (4, 2)), ((5, 3), (4, 3), (2, 4, 2)), ((0, 3), (4, 3), (4, 2)),
    ]:  # fmt: skip
        arrays = [np.random.default_rng(0).normal(size=shape) for shape in shapes]
        got, want = soft_lookup(*map(torch.tensor, arrays)), soft_lookup(*arrays)
        assert tuple(got.shape) == np.shape(want)
        agree(got, want, 1e-14, "tensors' shapes")
    q, k, v = (torch.tensor(x) for x in problem())
    one = soft_lookup(q[0], k, v, where=torch.arange(9) > 2, bias=torch.ones(9))
    assert (
        one.tolist() == soft_lookup(q[:1], k, v, where=torch.arange(9) > 2, bias=torch.ones(1, 9))[0].tolist()
    )


def test_an_exact_hit_comes_first_whatever_underflows(torch):
    keys, values = (
        torch.tensor([[1e-200], [0.0], [-1e-200]], dtype=torch.float64),
        torch.eye(3, dtype=torch.float64),
    )
    for similarity in ("gaussian", "laplacian", InverseDistance(0), InverseDistance(0.1)):
        for how in ({"temperature": 0}, {"top_k": 1}, {"top_k": 1, "temperature": INF}):
            assert soft_lookup(keys, keys, values, similarity=similarity, **how).tolist() == values.tolist()


def test_infinite_scores_leave_only_each_other(torch):
    q, k = np.array([[1e200], [-1e200], [1.0]]), np.array([[1e200], [1.0], [2e200]])
    for null_score, temperature in itertools.product([None, 0.0], [1, 1e308]):
        rules = {"similarity": "dot", "null_score": null_score, "temperature": temperature}
        got = lookup_weights(torch.tensor(q), torch.tensor(k), **rules)
        agree(got, lookup_weights(q, k, **rules), 1e-14, "infinite scores", rules)


def test_the_order_of_ties_is_that_of_arrays(torch):
    rng = np.random.default_rng(0)
    q, k = (rng.integers(0, 3, size=shape).astype(float) for shape in ((20, 2), (15, 2)))
    bias = rng.integers(0, 2, size=(20, 15)).astype(float)
    for temperature, top_k, prior in itertools.product([0, 1, INF], [1, 2, 5], [None, bias, -0.5 * bias]):
        how = {"temperature": temperature, "top_k": top_k}
        own, theirs = ({} if prior is None else {"bias": f(prior)} for f in (np.asarray, torch.tensor))
        got = lookup_weights(torch.tensor(q), torch.tensor(k), **how, **theirs)
        agree(got, lookup_weights(q, k, **how, **own), 1e-14, "tensors' ties", how)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_dtypes(torch, name):
    dtype = getattr(torch, name)
    q, k, v = (torch.tensor(x, dtype=torch.float32).to(dtype) for x in problem(d=8))
    for how in ({"similarity": "scaled_dot"}, {}, {"weighting": "sparsemax"}):
        got, want = soft_lookup(q, k, v, **how), soft_lookup(q.float(), k.float(), v.float(), **how)
        assert got.dtype == dtype
        assert (got.float() - want).abs().max() < 16 * torch.finfo(dtype).eps * v.abs().max()
    assert soft_lookup(q, k, v.float()).dtype == torch.float32
    assert soft_lookup(q, k, v.long()).dtype == torch.float64


def test_functions_are_handed_tensors(torch):
    q, k, v = (torch.tensor(x) for x in problem(lead=(2,)))
    how = {"similarity": lambda a, b: -torch.cdist(a, b), "weighting": lambda z: torch.softmax(z, -1)}
    want = torch.softmax(-torch.cdist(q, k), -1) @ v
    assert torch.allclose(soft_lookup(q, k, v, **how), want, rtol=0, atol=1e-14)
    for null_score, temperature in itertools.product([None, -0.5], [0, 0.7, INF]):  # logits as they are
        rules = {"weighting": abs, "null_score": null_score, "temperature": temperature}
        want = lookup_weights(*(x.numpy() for x in (q, k)), **rules)
        agree(lookup_weights(q, k, **rules), want, 1e-13, "tensors' logits", rules)
    with pytest.raises(ValueError, match=r"<lambda> returned shape \(6,\), but \(6, 9\) was expected"):
        soft_lookup(q, k, v, similarity=lambda a, b: a[:, 0])


def test_functions_answer_in_any_kind_of_real_numbers(torch):
    q, k, v = (torch.tensor(x) for x in problem())
    for change in (lambda x: x.float(), lambda x: x.bfloat16(), lambda x: x.round().int()):
        for name, function in [
            ("similarity", lambda a, b, change=change: change(a @ b.mT)),
            ("weighting", lambda z, change=change: change(9 * torch.softmax(z, -1))),
        ]:
            for more in ({}, {"top_k": 2}, {"null_score": 0.0}):
                got = soft_lookup(q, k, v, **{name: function}, **more)
                wide = {name: lambda *rows, function=function: function(*rows).double()}
                assert torch.equal(got, soft_lookup(q, k, v, **wide, **more))
    for odd, text in [
        (lambda *x: x[0] > 0, "has dtype bool"), (lambda *x: x[0].mT * 1j, "has dtype complex128"),
        (lambda *x: None, r"is None \(a NoneType\), but a tensor of torch was expected"),
        (lambda *x: x[0].numpy(), "is array"),
    ]:  # fmt: skip
        for name in ("similarity", "weighting"):
            with pytest.raises(TypeError, match=f"^the result of <lambda> {text}"):
                soft_lookup(q, k, v, **{name: odd})


def test_products_that_overflow_on_the_way(torch):
    """Where inf meets -inf in a sum that is finite, or of one sign."""
    q, k = 1e300 * np.array([[1.0, -1.0], [1.0, 1.0]]), 1e300 * np.array([[1.0, 1.0], [1.0, 0.5]])
    for similarity, temperature, weighting in itertools.product(
        ["dot", "scaled_dot", Bilinear(np.eye(2))], [0, 1, 1e308, INF], WEIGHTINGS[:2]
    ):
        for n in (1, 2):
            rules = {"similarity": similarity, "temperature": temperature, "weighting": weighting}
            inputs = [torch.tensor(x, requires_grad=True) for x in (q, k[:n])]
            got = lookup_weights(*inputs, **rules)
            agree(got.detach(), lookup_weights(q, k[:n], **rules), 1e-14, "huge products", rules)
            (got**2).sum().backward()
            assert all(torch.isfinite(x.grad).all() for x in inputs)


# ---- torch's fused kernel --------------------------------------------------------------------------


def test_the_fused_kernel_answers_where_it_means_the_same(torch, fused):
    q, k, v = (torch.tensor(x, dtype=torch.float32) for x in problem(m=5, n=5, lead=(2,)))
    for how in ({}, {"causal": True}, {"window": (1, 1)}, {"similarity": "dot"}, {"weighting": Entmax(1)},
                {"temperature": 3.0}, {"where": torch.eye(5) > 0}, {"bias": torch.eye(5)}):  # fmt: skip
        attention(q, k, v, **how)
        assert fused.pop(), how
    for how in (
        {"temperature": 0}, {"temperature": INF}, {"temperature": 1e-30}, {"weighting": "sparsemax"},
        {"top_k": 2}, {"null_score": 0.0}, {"similarity": "gaussian"}, {"bias": 1e30 * torch.eye(5)},
    ):  # fmt: skip
        attention(q, k, v, **how)
        assert not fused.pop(), how
    assert torch.isfinite(attention(1e25 * q, 1e25 * k, v)).all() and not fused.pop()


def test_is_causal_is_offset_0(torch, monkeypatch):
    asked, kernel = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *a, **k: asked.append(k) or kernel(*a, **k),
    )
    q, k, v = (torch.tensor(x) for x in problem(m=3, n=5))
    attention(q, k, v, causal=True, offset=0)
    attention(q, k, v, causal=True)
    attention(q[2:], k, v, causal=True)
    assert [how["is_causal"] for how in asked] == [True, False, False]
    assert [how["attn_mask"] is None for how in asked] == [True, False, True]  # one word sees all before it


# ---- gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.7, 0, INF])
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_gradcheck(torch, similarity, temperature):
    weightings = WEIGHTINGS if temperature == 0.7 else WEIGHTINGS[:2]
    for weighting, options in itertools.product(weightings, OPTIONS):
        how = turned(torch, masks(options, 4, 6))
        prior = how.pop("bias", None)
        inputs = [torch.tensor(x, requires_grad=True) for x in problem(4, 6)]
        inputs += [] if prior is None else [torch.zeros_like(prior, requires_grad=True)]
        rules = {"similarity": similarity, "weighting": weighting, "temperature": temperature, **how}

        def both(q, k, v, change=None, prior=prior, rules=rules):
            bias = {} if change is None else {"bias": prior + change}
            return soft_lookup(q, k, v, **rules, **bias), lookup_weights(q, k, **rules, **bias)

        assert torch.autograd.gradcheck(both, inputs, rtol=1e-3, fast_mode=True), rules
        soft_lookup(*inputs[:3], **rules).sum().backward()
        assert all(x.grad is not None for x in inputs[:3])  # at the ends too


@pytest.mark.parametrize("heads", [((), ()), ((4,), (2,)), ((2, 4), (2, 2)), ((4,), (1,))])
@pytest.mark.parametrize(
    "sight", [{}, {"causal": True}, {"causal": True, "offset": 0}, {"causal": True, "offset": -2},
              {"window": (1, 1)}, {"window": (2, 0), "top_k": 2}], ids=str,
)  # fmt: skip
def test_gradients_of_attention(torch, sight, heads):
    rng, prior = np.random.default_rng(0), np.zeros((4, 5))
    prior[1], prior[2, 2] = -INF, -INF
    for mask in range(4):
        own = dict(sight)
        if mask & 1:
            own["where"] = rng.random((4, 5)) < 0.6
            own["where"][0] = False
        arrays = [rng.normal(size=(*lead, *shape)) for lead, shape in
                  zip((*heads, heads[1]), ((4, 3), (5, 3), (5, 2)), strict=True)]  # fmt: skip
        bias = prior + rng.normal(size=(*heads[0], 4, 5)) if mask & 2 else None
        tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
        theirs = None if bias is None else torch.tensor(bias, requires_grad=True)
        out = attention(*tensors, bias=theirs, **turned(torch, own))
        g = rng.normal(size=out.shape)
        out.backward(torch.tensor(g))
        want = attention_vjp(*arrays, g, bias=bias, **own)
        for x, y in zip((*tensors, theirs), (*want[:3], want.bias), strict=True):
            if y is not None:
                np.testing.assert_allclose(x.grad.numpy(), y, rtol=0, atol=1e-12)
        rules, change = turned(torch, own), torch.zeros(4, 5, dtype=torch.float64, requires_grad=True)

        def both(q, k, v, change, theirs=theirs, rules=rules):
            how = rules if theirs is None else {**rules, "bias": theirs.detach() + change}
            return attention(q, k, v, **how), attention_weights(q, k, **how)

        tensors = [x.detach().requires_grad_() for x in tensors]
        changed = [change] if theirs is not None else []
        assert torch.autograd.gradcheck(
            lambda q, k, v, change=None, both=both: both(q, k, v, change), (*tensors, *changed), rtol=1e-3,
            fast_mode=True,
        ), own  # fmt: skip


@pytest.mark.parametrize("similarity", ["cosine", "dot", "scaled_dot", Bilinear(W)], ids=str)
def test_second_derivatives(torch, similarity):
    """Where NumPy chose the weights, their derivatives are those of two of Newton's steps."""
    for weighting, options in itertools.product(WEIGHTINGS, [{}, {"top_k": 3}, {"null_score": -0.5}]):
        rules = {"similarity": similarity, "weighting": weighting, **options}
        inputs = [torch.tensor(x, requires_grad=True) for x in problem(3, 5)]
        asked = [lambda q, k, v, rules=rules: soft_lookup(q, k, v, **rules)]
        asked += [lambda q, k, v, rules=rules: lookup_weights(q, k, **rules) ** 2]  # never by the kernel
        for function in asked[fused_is_once(rules) :]:
            assert torch.autograd.gradgradcheck(function, inputs, rtol=1e-3, fast_mode=True), rules


def fused_is_once(rules):
    """Tell whether torch's kernel answers, which has no second derivative on a CPU."""
    plain = rules["weighting"] == "softmax" and not {"top_k", "null_score"} & set(rules)
    return plain and rules["similarity"] in ("dot", "scaled_dot")


def test_distances_say_that_they_have_no_second_derivatives(torch):
    q, k, v = (torch.tensor(x, requires_grad=True) for x in problem())
    (slope,) = torch.autograd.grad(soft_lookup(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="_cdist_backward"):
        slope.sum().backward()


@pytest.mark.parametrize("similarity", [*SIMILARITIES, InverseDistance(0)], ids=str)
def test_a_query_that_sees_nothing_moves_nothing(torch, similarity):
    for weighting, temperature, how in itertools.product(
        WEIGHTINGS, [0, 0.7, INF], ["where", "bias", "causal", "min_score"]
    ):
        inputs = [torch.tensor(x, requires_grad=True) for x in problem(4, 6)]
        bias = torch.full((4, 6), -INF, dtype=torch.float64, requires_grad=True)
        rules = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        if how == "min_score":
            out = soft_lookup(*inputs, min_score=1e9, **rules)
        else:
            mask = {"where": torch.zeros(4, 6) > 0, "bias": bias, "causal": True}[how]
            out = attention(*inputs, **{how: mask}, **({"offset": -9} if how == "causal" else {}), **rules)
        if similarity == InverseDistance(0) and how == "min_score":
            continue  # a hit scores infinity
        assert (out == 0).all(), (how, rules)
        out.sum().backward()
        for x in (*inputs, *[bias] * (how == "bias")):
            assert (x.grad == 0).all(), (how, rules)


def test_no_entries_move_nothing(torch):
    for similarity, temperature in itertools.product([*SIMILARITIES, InverseDistance(0)], [0, 0.7, INF]):
        inputs = [torch.tensor(x, requires_grad=True) for x in problem(n=0)]
        inputs += [torch.zeros(6, 1, dtype=torch.float64, requires_grad=True)]
        with torch.no_grad():
            inputs[0][1, 1], inputs[0][2, 2] = math.nan, INF
        out = soft_lookup(*inputs[:3], bias=inputs[3], similarity=similarity, temperature=temperature)
        assert (out == 0).all()
        out.sum().backward()
        assert all((x.grad == 0).all() for x in inputs)


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_gradients_at_the_least_temperatures_are_no_nan(torch, similarity):
    """Equal keys pull a query both ways, however small what their pull is divided by."""
    keys = [[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.5, -1.0, 0.0]]
    for temperature, weighting in itertools.product([5e-324, 1e-310, 1e-300], WEIGHTINGS):
        inputs = [torch.tensor(x, dtype=torch.float64) for x in ([[2.0, 0.5, 0.0]], keys, [1.0, 2.0, 3.0])]
        inputs = [x.requires_grad_() for x in inputs]
        rules = {"similarity": similarity, "temperature": temperature, "weighting": weighting}
        soft_lookup(*inputs, **rules).sum().backward()
        assert not any(torch.isnan(x.grad).any() for x in inputs), rules


@pytest.mark.parametrize("bad", [math.nan, INF, -INF, 1e300])
@pytest.mark.parametrize("similarity", [*SIMILARITIES, InverseDistance(0)], ids=str)
def test_what_is_masked_leaks_nowhere(torch, similarity, bad):
    for temperature, more, how in itertools.product(
        [0, 0.7, 1e308, INF],
        [{}, {"top_k": 2}, {"weighting": "sparsemax", "null_score": 0.0}],
        ["where", "bias"],
    ):
        q, k, v = (torch.tensor(x) for x in problem(4, 6))
        keys, values = k.clone(), v.clone()
        keys[4], values[5], k[4], v[5] = 0, 0, bad, bad
        seen = torch.ones(4, 6, dtype=torch.bool)
        seen[:, 4:], seen[3] = False, False
        rules = {how: seen if how == "where" else torch.where(seen, 0.0, -INF), **more}
        rules |= {"similarity": similarity, "temperature": temperature}
        clean, dirty = ([x.clone().requires_grad_() for x in some] for some in ((q, keys, values), (q, k, v)))
        got, want = soft_lookup(*dirty, **rules), soft_lookup(*clean, **rules)
        assert torch.allclose(got, want, rtol=0, atol=1e-14), rules
        got.sum().backward()
        want.sum().backward()
        for x, y in zip(dirty, clean, strict=True):
            assert torch.allclose(x.grad, y.grad, rtol=0, atol=1e-12), rules


def test_unmasked_nan_reaches_those_who_see_it(torch):
    q, k, v = problem()
    k[4, 0], v[7, 1] = math.nan, math.nan
    where = np.random.default_rng(0).random((6, 9)) < 0.5
    for how in ({}, {"similarity": "scaled_dot"}, {"temperature": 0}, {"temperature": INF}, {"top_k": 2}):
        want = soft_lookup(q, k, v, where=where, **how)
        got = soft_lookup(*map(torch.tensor, (q, k, v)), where=torch.tensor(where), **how)
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "how", [{}, {"top_k": 2}, {"temperature": 0}, {"weighting": "entmax15"},
            {"similarity": InverseDistance(0)}, {"similarity": "dot"},
            {"similarity": "dot", "top_k": 2, "weighting": "sparsemax"}], ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch, on its way to forward mode
def test_transforms_of_functions(torch, how):
    """Inside torch.func's transforms, NumPy cannot look into a tensor unless torch hands it over."""
    q, k, v = (torch.tensor(x) for x in problem(lead=(3,)))
    q, k, prior = q.movedim(0, 2), k[0], torch.zeros(3, 9, dtype=torch.float64)
    prior[1, 4] = -INF

    def ask(q, v, bias):
        return soft_lookup(q, k, v, bias=bias, **how)

    want = soft_lookup(q.movedim(2, 0), k, v, bias=prior[:, None], **how)
    got = torch.func.vmap(ask, in_dims=(2, 0, 0))(q, v, prior)
    assert torch.allclose(got, want, rtol=0, atol=1e-14)
    rows = torch.func.vmap(lambda q: torch.func.vmap(ask, in_dims=(0, None, None))(q, v[0], prior[0]))
    want = soft_lookup(q.movedim(2, 0), k, v[0], bias=prior[0], **how)
    assert torch.allclose(rows(q.movedim(2, 0)), want, rtol=0, atol=1e-14)
    asked = q[..., 0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(ask(asked, v[0], prior[0]).sum(), asked)
    got = torch.func.grad(lambda q: ask(q, v[0], prior[0]).sum())(asked.detach())
    assert torch.allclose(got, slope, rtol=0, atol=1e-14)
    if how.get("similarity") == "dot":  # torch's cdist has no forward mode
        _, along = torch.func.jvp(lambda q: ask(q, v[0], prior[0]).sum(), (asked.detach(),), (slope,))
        assert torch.allclose(along, (slope * slope).sum(), rtol=1e-12)


def test_views_that_negate(torch):
    """The imaginary part of a conjugate is a view with a minus to be taken, which NumPy has not."""
    q, k, v = (torch.tensor(x) for x in problem())
    view = (1j * q).conj().imag
    assert view.is_neg()
    for how in ({}, {"top_k": 2}, {"temperature": 0}):
        assert torch.equal(soft_lookup(view, k, v, **how), soft_lookup(-q, k, v, **how))
    sd = SoftDict.from_arrays(k, v)
    assert torch.equal(sd[view], sd[-q])


# ---- where it runs, and what is refused ------------------------------------------------------------


def test_answers_stay_on_the_device(torch):
    """The device meta has shapes and no numbers: whatever came from another device would be refused."""
    q, k, v = (torch.empty(*shape, device="meta") for shape in ((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 7)))
    where, bias = torch.ones(5, 6, dtype=torch.bool, device="meta"), torch.ones(4, 5, 6, device="meta")
    rules = {"where": where, "bias": bias, "window": (2, 0)}
    options = [{}, {"temperature": 0}, {"top_k": 2, "null_score": 0.0}]
    pairs = zip([*SIMILARITIES, InverseDistance(0)], itertools.cycle(WEIGHTINGS), strict=False)
    for (similarity, weighting), more in itertools.product(pairs, options):
        out = attention(q, k, v, similarity=similarity, weighting=weighting, **rules, **more)
        assert (out.device.type, out.shape, out.dtype) == ("meta", (2, 4, 5, 7), torch.float32)


@pytest.mark.filterwarnings("ignore")  # of torch, about what it cannot compile
@pytest.mark.parametrize(
    "how", [{}, {"similarity": "scaled_dot"}, {"top_k": 2}, {"weighting": "sparsemax"}, {"temperature": 0}],
    ids=str,
)  # fmt: skip
def test_what_torch_compiles_answers_the_same(torch, how):
    def ask(q, k, v):
        return soft_lookup(q, k, v, **how)

    inputs = [torch.tensor(x, requires_grad=True) for x in problem()]
    compiled = torch.compile(ask, backend="aot_eager")
    for one, other in zip(*(torch.autograd.grad(f(*inputs).sum(), inputs) for f in (ask, compiled)),
                          strict=True):  # fmt: skip
        assert torch.allclose(one, other, rtol=0, atol=1e-14)
    assert torch.allclose(compiled(*inputs), ask(*inputs), rtol=0, atol=1e-14)


def test_odd_layouts_and_modes(torch):
    q, k, v = (torch.tensor(x) for x in problem(lead=(2, 3)))
    for how in ({"similarity": "scaled_dot"}, {}, {"top_k": 2}):
        want = soft_lookup(q, k, v, **how)
        turned_over = [x.mT.contiguous().mT for x in (q, k, v)]
        assert not turned_over[0].is_contiguous()
        assert torch.allclose(soft_lookup(*turned_over, **how), want, rtol=0, atol=1e-14)
        each = torch.func.vmap(lambda q, how=how: soft_lookup(q, k, v, **how))
        if "top_k" not in how:  # which asks NumPy
            assert torch.allclose(each(torch.stack([q, q]))[1], want, rtol=0, atol=1e-14)
        with torch.no_grad():
            assert not soft_lookup(q.clone().requires_grad_(), k, v, **how).requires_grad
        assert soft_lookup(q[:0], k[:0], v[:0], **how).shape == (0, 3, 6, 2)
        assert soft_lookup(q[..., :0, :], k, v, **how).shape == (2, 3, 0, 2)
        assert (soft_lookup(q, k[..., :0, :], v[..., :0, :], **how) == 0).all()
        assert soft_lookup(q[..., :0], k[..., :0], v, **how).isfinite().all()


def test_torch_is_not_imported_by_asking():
    code = (
        "import sys, softdict as s; s.soft_lookup(0.5, [0.0, 1.0], [1.0, 2.0]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_libraries_do_not_mix(torch):
    q, k, v = problem()
    expected = r" is .*, but a tensor of torch was expected, as other arguments are: .* Convert it, or all"
    for function, args, more, name in [
        (soft_lookup, (torch.tensor(q), k, v), {}, "keys"),
        (soft_lookup, (q, k, torch.tensor(v)), {}, "query"),
        (soft_lookup, (q, k, v), {"where": torch.tensor(True)}, "query"),
        (lookup_weights, (torch.tensor(q), torch.tensor(k)), {"bias": np.zeros(9)}, "bias"),
        (attention, (torch.tensor(q), torch.tensor(k), v), {}, "values"),
        (SelfAttention(*map(torch.tensor, (W, W, W))), (q,), {}, "x"),
    ]:
        with pytest.raises(TypeError, match=f"^{name}{expected}"):
            function(*args, **more)


def test_wrong_numbers_are_refused(torch):
    q, k, v = (torch.tensor(x) for x in problem())
    for error, text, args, more in [
        (TypeError, "where has dtype float64, but booleans were expected", (q, k, v), {"where": q}),
        (TypeError, "query has dtype bool, but real numbers were expected", (q > 0, k, v), {}),
        (TypeError, "keys has dtype complex128, but real", (q, k * 1j, v), {}),
        (ValueError, "bias holds NaN or inf, but finite", (q, k, v), {"bias": torch.tensor(math.nan)}),
        (ValueError, "query has width 3 and keys have width 2", (q, v, v), {}),
        (ValueError, "temperature is -1, but", (q, k, v), {"temperature": -1}),
        (
            TypeError,
            r"temperature is tensor\(2.\), but one number of at least 0 was",
            (q, k, v),
            {"temperature": torch.tensor(2.0)},
        ),
        (ValueError, "where has shape", (q, k, v), {"where": torch.ones(5, 5) > 0}),
    ]:
        with pytest.raises(error, match=text):
            soft_lookup(*args, **more)
    T = torch.tensor(2.0, requires_grad=True)
    for ask in (
        lambda: attention(q, k, v, temperature=T), lambda: SoftDict({0: 1.0}, temperature=T),
        lambda: soft_lookup(q.numpy(), k.numpy(), v.numpy(), temperature=T),
        lambda: SelfAttention(q[:3], q[:3], q[:3], temperature=T),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"temperature is tensor.*, but one number of at least 0 was"):
            ask()


# ---- SelfAttention, SoftDict, other libraries --------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{}, {"causal": True}, {"heads": 2, "key_heads": 1, "window": (2, 0)},
            {"heads": 2, "similarity": "gaussian", "top_k": 2}], ids=str,
)  # fmt: skip
def test_a_layer_takes_tensors(torch, how):
    layer = SelfAttention.random(6, rng=0, **how)
    layer = dataclasses.replace(layer, biases=(None, np.ones(layer.w_k.shape[1]), None, np.ones(6)))
    x = np.random.default_rng(1).normal(size=(2, 5, 6))
    words = torch.tensor(x, requires_grad=True)
    agree(layer(words).detach(), layer(x), 1e-13, "a layer's tensors")
    settings = {name: getattr(layer, name) for name in how}
    names = "w_q", "w_k", "w_v", "w_o"
    matrices = [torch.tensor(np.array(getattr(layer, name)), requires_grad=True) for name in names]
    own = SelfAttention(*matrices, **settings)
    assert own.w_q is matrices[0]
    assert "w_q (6, 6)" in repr(own)
    agree(own(words).detach(), dataclasses.replace(layer, biases=None)(x), 1e-13, "a layer of tensors")
    small = words[0].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *w: SelfAttention(*w, **settings)(x), (small, *matrices))
    np.testing.assert_allclose(layer.lookup(small).weights, layer.lookup(x[0]).weights, rtol=0, atol=1e-14)


def test_a_layer_keeps_to_one_library(torch):
    """Wherever in it the one tensor is, what it learns must not be lost."""
    jnp, x = pytest.importorskip("jax.numpy"), np.ones((4, 3), dtype=np.float32)
    plain, none = [np.eye(3, dtype=np.float32)] * 4, [None] * 4
    for i in range(4):
        for part in (torch.eye(3), jnp.eye(3)):
            matrices, biases = ([*some[:i], one, *some[i + 1 :]] for some, one in
                                ((plain, part), (none, part[0])))  # fmt: skip
            for layer in (SelfAttention(*matrices), SelfAttention(*plain, biases=biases)):
                with pytest.raises(
                    TypeError, match=r"^x is .* but a tensor of (torch|jax.numpy) was expected"
                ):
                    layer(x)
                words = torch.tensor(x) if isinstance(part, torch.Tensor) else jnp.asarray(x)
                assert layer(words).shape == x.shape
        with pytest.raises(TypeError, match=f"^w_{'qkvo'[i]} has dtype bool, but real numbers were expected"):
            SelfAttention(*plain[:i], torch.eye(3) > 0, *plain[i + 1 :])
        mixed = SelfAttention(*plain[:i], jnp.eye(3), *plain[i + 1 :], biases=[torch.ones(3)] * 4)
        with pytest.raises(TypeError, match=r"a tensor of jax\.numpy was expected, as other arguments are"):
            mixed(jnp.asarray(x))


def test_a_softdict_answers_a_tensor_by_a_tensor(torch):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(5, 3)), rng.normal(size=(5, 2, 2))
    sd = SoftDict.from_arrays(keys, values, temperature=0.5, weighting="entmax15")
    q = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    for ask, query in itertools.product((sd.__getitem__, sd.get), (q, q[0])):
        assert np.array_equal(ask(query).detach().numpy(), ask(query.detach().numpy()))
        assert torch.autograd.gradcheck(ask, query)
    answer = sd[q]
    sd.clear()  # what was asked is what gradients go back through
    answer.sum().backward()
    want = soft_lookup_vjp(
        q.detach().numpy(), keys, values.reshape(5, 4), np.ones((4, 4)), temperature=0.5, weighting="entmax15"
    )
    np.testing.assert_allclose(q.grad.numpy(), want.query, rtol=0, atol=1e-14)
    x = torch.tensor(0.3, requires_grad=True)
    (slope,) = torch.autograd.grad(SoftDict({0: 1.0, 1: 2.0})[x] ** 2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.backward()


def test_a_softdict_of_numbers_and_of_objects_asked_by_tensors(torch):
    sd = SoftDict({0: 10.0, 1: 20.0, 2: 40.0}, min_score=-0.5)
    for query in (0.5, [0.5, 1.5], [[0.5], [1.5]]):
        asked = torch.tensor(query, requires_grad=True)
        assert sd[asked].tolist() == np.asarray(sd[np.array(query)]).tolist()
        sd[asked].sum().backward()
        assert asked.grad.shape == asked.shape and (asked.grad > 0).all()
    assert sd[torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)] == sd[0.5]
    assert sd.get(torch.tensor(9.0)) is None
    assert sd.get(torch.tensor([9.0, 0.0]), -1).tolist() == sd.get([9.0, 0.0], -1).tolist()
    assert sd.lookup(torch.tensor(0.4, requires_grad=True)).winner == 0
    with pytest.raises(KeyError, match="reaches no entry"):
        sd[torch.tensor(9.0)]
    assert SoftDict({0: "a", 1: "b"}, temperature=0)[torch.tensor(0.2)] == "a"


def test_what_keeps_to_arrays_takes_tensors_as_such(torch):
    """A `Lookup` is to be looked at, a `Partial` to be sent: neither has gradients."""
    keys, values = (x.astype(np.float32) for x in problem(n=5)[1:])
    sd = SoftDict.from_arrays(torch.tensor(keys), torch.tensor(values), labels=np.array(list("abcde")))
    q = torch.tensor(keys[:2], requires_grad=True)
    assert np.array_equal(sd.lookup(q, where=torch.arange(5) > 1, bias=torch.ones(5)).value,
                          sd.lookup(keys[:2], where=np.arange(5) > 1, bias=np.ones(5)).value)  # fmt: skip
    assert np.array_equal(sd.partial(q).finish(), sd.partial(keys[:2]).finish())
    assert np.array_equal(sd.self_attention(bias=torch.ones(5, 5)).value, sd.self_attention().value)
    assert sd.calibrate(2.0, q) == sd.calibrate(2.0, keys[:2])
    assert np.array_equal(sd[[q[0], "b"]], sd[keys[:2]])  # a list asks as a list
    cold = torch.ones(3, dtype=torch.bfloat16)
    said = (
        r" is tensor.*, but what NumPy can read was expected, .* Convert it first, for example with tensor\."
    )
    for ask, what in [
        (lambda: sd.lookup(q, bias=torch.ones(5, requires_grad=True)), "bias"),
        (lambda: sd.add("f", q[0], values[0]), "the key vector of 'f'"),
        (lambda: sd.add("f", cold, values[0]), "the key vector of 'f'"),
        (lambda: soft_lookup_vjp(q, keys, values, np.ones((2, 2))), "query"),
        (lambda: attention_vjp(q, keys, values, np.ones((2, 2))), "query"),
    ]:
        with pytest.raises(TypeError, match=f"^{what}{said}"):
            ask()


def test_a_layer_of_tensors_is_learned_by_its_own_library(torch):
    x, layer = np.random.default_rng(0).normal(size=(2, 4, 3)), SelfAttention.random(3, rng=0)
    own = SelfAttention(*(torch.tensor(np.array(w)) for w in (layer.w_q, layer.w_k, layer.w_v)))
    some = dataclasses.replace(layer, biases=(None, None, torch.ones(3)))
    for odd in (own, some):
        with pytest.raises(TypeError, match=r"^layer holds tensors of torch, but NumPy's .* an optimizer of"):
            fit_attention(odd, x, x, progress=False)
    new, _ = fit_attention(layer, torch.tensor(x), torch.tensor(x), max_iter=1, progress=False)
    assert isinstance(new.w_q, np.ndarray)
    with pytest.raises(TypeError, match=r"^sequence 0 is tensor.*, but what NumPy can read was expected"):
        fit_attention(layer, torch.tensor(x, requires_grad=True), x, progress=False)


@pytest.mark.parametrize(
    "how", [{}, {"top_k": 2}, {"weighting": "entmax15", "null_score": -1.0}, {"temperature": 0},
            {"similarity": InverseDistance(0)}, {"similarity": "scaled_dot"}], ids=str,
)  # fmt: skip
def test_jax_traces_and_differentiates(how):
    jax = pytest.importorskip("jax")
    arrays = problem(dtype=np.float32)
    tensors = list(map(jax.numpy.asarray, arrays))

    def ask(q, k, v):
        return soft_lookup(q, k, v, **how)

    want, slopes = soft_lookup(*arrays, **how), soft_lookup_vjp(*arrays, np.ones((6, 2)), **how)
    back = jax.grad(lambda *args: ask(*args).sum(), argnums=(0, 1, 2))
    for function in (ask, jax.jit(ask)):
        np.testing.assert_allclose(function(*tensors), want, rtol=0, atol=1e-5)
    several = jax.vmap(ask, in_axes=(0, None, None))(jax.numpy.stack([tensors[0]] * 2), *tensors[1:])
    np.testing.assert_allclose(several, [want] * 2, rtol=0, atol=1e-5)
    for function in (back, jax.jit(back)):
        for one, other in zip(function(*tensors), slopes, strict=False):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-39, 1e-30, 1e30, 1e308])
def test_temperatures_that_float32_has_not(temperature):
    jax = pytest.importorskip("jax")
    q, k, v = problem(dtype=np.float32)
    for similarity, weighting in itertools.product(SIMILARITIES, WEIGHTINGS[:3]):
        rules = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        got = lookup_weights(*map(jax.numpy.asarray, (q, k)), **rules)
        np.testing.assert_allclose(got, lookup_weights(q, k, **rules), rtol=0, atol=1e-5)
        back = jax.grad(lambda *x, rules=rules: soft_lookup(*x, **rules).sum(), argnums=(0, 1, 2))
        assert all(np.isfinite(x).all() for x in back(*map(jax.numpy.asarray, (q, k, v)))), rules


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which that library runs on
def test_any_library_of_the_array_api(torch):
    strict = pytest.importorskip("array_api_strict")
    for similarity, weighting, temperature, options in itertools.product(
        [*SIMILARITIES, InverseDistance(0)], WEIGHTINGS[::2], [0, 0.7, INF], OPTIONS[::2]
    ):
        arrays, own = problem(), masks(options)
        how = {"similarity": similarity, "weighting": weighting, "temperature": temperature}
        theirs = {k: strict.asarray(x) if isinstance(x, np.ndarray) else x for k, x in own.items()}
        got = soft_lookup(*map(strict.asarray, arrays), **how, **theirs)
        assert type(got) is type(strict.asarray(0.0))
        agree(np.asarray(got), soft_lookup(*arrays, **how, **own), 3e-14, "strict arrays", (how, own))
    x = np.random.default_rng(0).normal(size=(5, 6))
    layer = SelfAttention.random(6, heads=2, rng=0)
    agree(np.asarray(layer(strict.asarray(x))), layer(x), 1e-13, "strict words")
    matrices = (layer.w_q, layer.w_k, layer.w_v, layer.w_o)
    own = SelfAttention(*(strict.asarray(np.array(w)) for w in matrices), heads=2)
    agree(np.asarray(own(strict.asarray(x))), layer(x), 1e-13, "strict words")
    got = soft_lookup(*map(strict.asarray, problem()), similarity=lambda a, b: a @ b.T, weighting=strict.exp)
    want = soft_lookup(*problem(), similarity="dot", weighting=np.exp)
    agree(np.asarray(got), want, 1e-12, "strict functions")
    assert float(SoftDict({0: 1.0, 1: 3.0})[strict.asarray(0.5)]) == 2.0


def test_a_zero_vector_has_no_slope_under_cosine(torch):
    K, V = np.array([[0.0, 0], [1, 0], [0, 1]]), np.arange(3.0)
    want = soft_lookup_vjp(K, K, V, np.ones(3), similarity="cosine")
    q, k = (torch.tensor(K, requires_grad=True) for _ in range(2))
    soft_lookup(q, k, torch.tensor(V), similarity="cosine").sum().backward()
    agree(q.grad.numpy(), want.query, 1e-12, "slopes at zero")
    agree(k.grad.numpy(), want.keys, 1e-12, "slopes at zero")
