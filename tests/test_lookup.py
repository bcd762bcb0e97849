"""Lookup: the same answer as ``sd[query]``, and why."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from oracle import agree

import softdict
from softdict import Bilinear, Entmax, InverseDistance, Lookup, SoftDict

SETTINGS = ("similarity", "temperature", "weighting", "top_k", "min_score", "null_score")
NAMES = ["north", "east", "south", "west", "middle"]
KEYS = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [0.1, 0.2]])
VALUES = np.array([[1.0, 0.0], [2.0, -1.0], [3.0, 1.0], [4.0, 0.5], [5.0, 7.0]])
SCALARS = VALUES[:, 0]
QUERIES = np.array([[0.3, 0.4], [0.0, 1.0], [-5.0, 2.0]])


def compass(values: Any = VALUES, **options: Any) -> SoftDict:
    return SoftDict.from_arrays(KEYS, values, NAMES, **options)


def options_of(sd: SoftDict) -> dict[str, Any]:
    return {s: getattr(sd, s) for s in SETTINGS}


def ask_oracle(sd: SoftDict, query: Any, **options: Any) -> oracle.Lookup:
    return oracle.Lookup(query, sd.key_vectors, sd.value_vectors, **options_of(sd), **options)


SIMILARITIES: list[Any] = [
    "gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5),
    Bilinear(np.array([[1.0, 0.5], [0.0, -1.0]])),
]  # fmt: skip
WEIGHTINGS: list[Any] = ["softmax", "sparsemax", "entmax15", Entmax(1.2)]
TEMPERATURES = [0, 1e-320, 0.3, 1.0, 1e300, math.inf]
RULES: list[dict[str, Any]] = [
    {}, {"top_k": 2}, {"min_score": -0.6}, {"null_score": -0.4},
    {"top_k": 3, "min_score": -2.0, "null_score": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_looking_never_changes_the_answer(similarity: Any, weighting: Any) -> None:
    for i, (temperature, rules) in enumerate(itertools.product(TEMPERATURES, RULES)):
        values = (VALUES, SCALARS)[i % 2]  # with five rules, each meets both
        sd = compass(values, similarity=similarity, weighting=weighting, temperature=temperature, **rules)
        for query in (QUERIES[0], "north", QUERIES, ["east", QUERIES[2]], QUERIES[:0]):
            seen = sd.lookup(query)
            batch = isinstance(query, list) or np.ndim(query) == 2
            want = sd.get(query, 0.0 if batch else np.zeros_like(values[0]))
            assert np.asarray(seen.value).tobytes() == np.asarray(want).tobytes()
            if not batch and len(seen.top(1)):
                assert type(seen.value) is type(sd[query])
            assert np.shape(seen.value) == np.shape(want)


@pytest.mark.parametrize("budget", [1e-5, 1e-2])
@pytest.mark.parametrize("weighting", ["softmax", "sparsemax"])
def test_nor_does_it_where_there_are_many_tiles(budget: float, weighting: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(softdict._backend, "budget_mib", budget)
    rng = np.random.default_rng(7)
    keys, queries = rng.normal(size=(90, 3)), rng.normal(size=(4, 3))
    for temperature, rules in itertools.product((0, 0.1, math.inf), RULES):
        sd = SoftDict.from_arrays(keys, keys, temperature=temperature, weighting=weighting, **rules)
        assert sd.lookup(queries).value.tobytes() == sd.get(queries, 0.0).tobytes()


def test_nor_over_a_memory_map(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(softdict._backend, "budget_mib", 1e-3)
    np.save(tmp_path / "keys.npy", np.random.default_rng(8).normal(size=(200, 3)))
    keys = np.load(tmp_path / "keys.npy", mmap_mode="r")
    for rules in RULES:
        sd = SoftDict.from_arrays(keys, keys, **rules)
        queries = np.array(keys[:4])
        assert sd.lookup(queries).value.tobytes() == sd.get(queries, 0.0).tobytes()
        assert sd.lookup(queries).winner == list(map(tuple, queries.tolist()))


def everything_agrees(seen: Lookup, want: oracle.Lookup, sd: SoftDict, eps_of: Any = float) -> None:
    """Assert that every attribute of a Lookup is what the oracle says."""
    n = len(sd)
    names = list(sd)
    agree(seen.value, want.value, want.tolerance(sd.value_vectors.dtype), "Lookup.value", sd)
    agree(seen.weights, want.weights, want.weights_tolerance(eps_of), "Lookup.weights", sd)
    tol = want.row_tolerance(eps_of)
    agree(seen.null_weight, want.null_weight, tol, "Lookup.null_weight", sd)
    # Beside a heavy null no entry may have a share above eps, and yet this sum is over entries: the best
    # one's logit is as large as its score and its bias.
    winners = [seen.winner] if want.single else seen.winner
    best = [
        0.0 if name is None or sd.temperature in (0, math.inf) else float(answer.sizes[names.index(name)])
        for name, answer in zip(winners, want.answers, strict=True)
    ]
    peak_tol = oracle.tolerance(eps_of, np.array(best[0] if want.single else best))
    agree(seen.logsumexp, want.logsumexp, np.maximum(tol, peak_tol), "Lookup.logsumexp", sd)
    size = 1 + np.abs(np.where(np.isfinite(want.scores), want.scores, 0)).max(initial=0)
    agree(seen.scores, want.scores, oracle.tolerance(eps_of, size), "Lookup.scores", sd)
    spread, rests_on, voted = [], [], []
    for answer in want.answers:
        total = math.fsum(answer.weights)
        shares = [w / total for w in answer.weights if w]
        spread.append(-math.fsum(p * math.log(p) for p in shares))
        rests_on.append(math.exp(spread[-1]) if shares else 0.0)
        votes: dict[Any, float] = {}
        for value, weight in zip(sd.value_vectors.tolist(), answer.weights, strict=True):
            name = tuple(value) if isinstance(value, list) else value
            votes[name] = votes.get(name, 0.0) + weight
        voted.append(votes)
    # Entropy adds up n weights, each with its own rounding, and effective is its exponential.
    agree(seen.entropy, spread[0] if want.single else spread, n * tol, "Lookup.entropy", sd)
    agree(seen.effective, rests_on[0] if want.single else rests_on, n * n * tol, "Lookup.effective", sd)
    tops, votes_seen = seen.top(n + 1), seen.vote()
    if want.single:
        tops, votes_seen = [tops], [votes_seen]
    weights, scores = np.atleast_2d(seen.weights, seen.scores)
    for i, answer in enumerate(want.answers):
        order = [names.index(record.key) for record in tops[i]]
        assert sorted(order) == [j for j in range(n) if answer.kept[j]]
        assert winners[i] == (tops[i][0].key if tops[i] else None)
        for record, j in zip(tops[i], order, strict=True):
            assert (record.weight, record.score) == (weights[i, j], scores[i, j])
            assert np.array_equal(record.value, sd.value_vectors[j])
        assert list(votes_seen[i].values()) == sorted(votes_seen[i].values(), reverse=True)
        assert votes_seen[i].keys() == voted[i].keys()
        for name, weight in voted[i].items():
            row_tol = n * answer.tolerance(eps_of, largest_value=1.0)
            agree(votes_seen[i][name], weight, row_tol, "Lookup.vote", sd)


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_a_lookup_is_the_oracle_s(similarity: Any, weighting: Any) -> None:
    for i, (temperature, rules) in enumerate(itertools.product((0, 0.3, 1.0, math.inf), RULES)):
        values = (VALUES, SCALARS, np.array([2.0, 1.0, 2.0, 1.0, 2.0]))[i % 3]
        sd = compass(values, similarity=similarity, weighting=weighting, temperature=temperature, **rules)
        query = (QUERIES[0], QUERIES)[i // 2 % 2]
        everything_agrees(sd.lookup(query), ask_oracle(sd, query), sd)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("temperature", [0, 0.3, 1.0, math.inf])
def test_so_it_is_with_where_bias_and_without_oneself(weighting: Any, temperature: float) -> None:
    where = np.array([[True, True, False, True, True], [False] * 5, [True] * 5, [True] * 5, [False] * 5])
    bias = np.array([0.5, 0.0, -1.0, -math.inf, 0.25])
    for rules, dtype in itertools.product(RULES, (np.float32, np.float64)):
        sd = compass(SCALARS, weighting=weighting, temperature=temperature, dtype=dtype, **rules)
        keys = sd.key_vectors
        for options in ({"bias": bias}, {"where": where}, {"where": where, "bias": bias}):
            want = ask_oracle(sd, keys, skip=range(5), **options)
            everything_agrees(sd.self_attention(exclude_self=True, **options), want, sd, dtype)
            want = ask_oracle(sd, keys[:3], **{k: v[:3] if v.ndim == 2 else v for k, v in options.items()})
            seen = sd.lookup(NAMES[:3], **{k: v[:3] if v.ndim == 2 else v for k, v in options.items()})
            everything_agrees(seen, want, sd, dtype)
            assert seen.queries == NAMES[:3]
            assert seen.keys == NAMES


@pytest.mark.parametrize("temperature", [0, 0.7, math.inf])
def test_so_it_is_with_functions_of_one_s_own(temperature: float) -> None:
    def product(q: Any, k: Any) -> Any:
        return np.minimum(q[:, None, 0] * k[None, :, 1], 1.0)

    def square(z: Any) -> Any:
        powers = np.where(z == -math.inf, 0.0, 1 / (1 + (z.max(axis=1, keepdims=True) - z) ** 2))
        return powers / powers.sum(axis=1, keepdims=True)

    for rules in RULES:
        sd = compass(temperature=temperature, similarity=product, weighting=square, **rules)
        seen = sd.lookup(QUERIES[:2])
        everything_agrees(seen, ask_oracle(sd, QUERIES[:2]), sd)
        np.testing.assert_array_equal(seen.value, sd.get(QUERIES[:2], 0.0))


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_weights_sum_to_one_less_the_null(weighting: Any) -> None:
    for temperature, rules in itertools.product(TEMPERATURES, RULES):
        seen = compass(weighting=weighting, temperature=temperature, **rules).lookup(QUERIES)
        total = seen.weights.sum(axis=1) + seen.null_weight
        some = np.array([len(top) > 0 for top in seen.top(1)]) | (seen.null_weight > 0)
        agree(total, some.astype(float), oracle.tolerance(float), "sum of weights", rules)
        assert (seen.weights >= 0).all()
        assert np.shape(seen.null_weight) == (3,)
        if "null_score" not in rules:
            assert seen.null_weight.tolist() == [0.0] * 3


# ---- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [0, 1, 3])
def test_a_batch_gains_a_first_axis_and_lists(m: int) -> None:
    sd = compass()
    one, many = sd.lookup(QUERIES[0]), sd.lookup(QUERIES[:m])
    assert isinstance(one, Lookup)
    for name in ("scores", "weights"):
        assert getattr(one, name).shape == (5,)
        assert getattr(many, name).shape == (m, 5)
    for name in ("null_weight", "logsumexp", "entropy", "effective"):
        assert np.shape(getattr(one, name)) == ()
        assert getattr(many, name).shape == (m,)
        assert math.isfinite(getattr(one, name))
    assert one.value.shape == (2,)
    assert many.value.shape == (m, 2)
    assert one.winner == "middle"
    assert isinstance(many.winner, list)
    assert len(many.winner) == len(many.top(2)) == len(many.vote()) == m
    assert list(one.keys) == list(many.keys) == NAMES
    assert isinstance(one.vote(), dict)
    if m:
        assert many.winner[0] == one.winner
        assert many.vote()[0] == one.vote()
        assert [r.key for r in many.top(2)[0]] == [r.key for r in one.top(2)]
        np.testing.assert_array_equal(many.scores[0], one.scores)


def test_queries_and_keys_are_remembered() -> None:
    sd = compass()
    assert sd.lookup("north").queries == "north"
    assert sd.lookup(["north", "west"]).queries == ["north", "west"]
    assert np.array_equal(sd.lookup(QUERIES).queries, QUERIES)
    assert list(SoftDict({(1, 0): 1.0}).lookup((1, 0)).keys) == [(1.0, 0.0)]


# ---- the numbers ---------------------------------------------------------------------------------


def test_entropy_and_effective() -> None:
    sd = compass()
    assert sd.at(temperature=0).lookup("north").effective == 1
    assert sd.at(temperature=0).lookup("north").entropy == 0
    even = sd.at(temperature=math.inf).lookup("north")
    agree(even.entropy, math.log(5), oracle.tolerance(float, 0, 5), "entropy of five alike")
    agree(even.effective, 5, oracle.tolerance(float, 0, 5 * 5), "effective of five alike")
    pair = SoftDict({-1: 0.0, 1: 1.0}, null_score=10.0).lookup(0)  # a heavy null, rescaled away
    assert pair.null_weight > 0.9
    agree(pair.effective, 2, oracle.tolerance(float, 10, 2 * 2), "effective beside a null")


def test_logsumexp_is_over_the_entries_without_the_null() -> None:
    for null_score in (None, 3.0):
        sd = SoftDict({0: 1.0, 1: 2.0}, similarity="dot", null_score=null_score)
        tol = oracle.tolerance(float, 3)
        agree(sd.lookup(2).logsumexp, math.log(1 + math.exp(2)), tol, "logsumexp")
        agree(sd.lookup(2, bias=[1.0, -math.inf]).logsumexp, 1.0, tol, "logsumexp with a bias")
        assert sd.lookup(2, where=[False, False]).logsumexp == -math.inf
    assert SoftDict({0: 1.0, 1: 2.0}, temperature=0).lookup(0).logsumexp == 0.0
    assert SoftDict({0: 1.0, 1: 2.0}, temperature=math.inf).lookup(0).logsumexp == math.log(2)


@pytest.mark.parametrize("null_score", [0.0, -5.0])
def test_null_weight(null_score: float) -> None:
    sd = SoftDict({(1, 0): 1.0, (0, 1): 2.0}, similarity="dot", null_score=null_score)
    seen = sd.lookup((0, 0))  # scores 0 and 0
    z = 2 + math.exp(null_score)
    agree(seen.weights, [1 / z] * 2, oracle.tolerance(float, 5), "weights beside a null")
    agree(seen.null_weight, math.exp(null_score) / z, oracle.tolerance(float, 5), "null weight")
    assert sd.lookup((0, 0), where=[False, False]).null_weight == 1
    hot = sd.at(temperature=math.inf).lookup((0, 0))
    agree(hot.null_weight, 1 / 3, oracle.tolerance(float), "null weight at T = inf")
    cold = sd.at(temperature=0).lookup((0, 0))
    assert cold.null_weight == 0.0  # an entry wins against an equal null


def test_scores_are_canonical() -> None:
    rng = np.random.default_rng(3)
    keys = rng.normal(size=(40, 64)).astype(np.float32) + np.float32(1000)
    keys[20:] = keys[:20]
    labels = [f"row {i}" for i in range(40)]
    for similarity in ("gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(1)):
        sd = SoftDict.from_arrays(keys, np.arange(40.0), labels, similarity=similarity)
        batch = sd.lookup(keys[:7])
        np.testing.assert_array_equal(batch.scores[:, :20], batch.scores[:, 20:])
        for i in range(7):  # nothing depends on what stands beside the pair
            np.testing.assert_array_equal(sd.lookup(keys[i]).scores, batch.scores[i])
        if similarity in ("gaussian", "laplacian"):
            assert np.diag(batch.scores).tolist() == [0.0] * 7
        if similarity == "cosine":
            assert np.diag(batch.scores).tolist() == [1.0] * 7
            assert batch.scores.max() <= 1


# ---- winner, top, vote ---------------------------------------------------------------------------


def test_top_lists_records_best_first() -> None:
    seen = compass().lookup(QUERIES[0])
    top = seen.top(3)
    assert len(top) == 3
    for record in top:
        row = NAMES.index(record.key)
        assert record.weight == seen.weights[row]
        assert record.score == seen.scores[row]
        assert record.value.tolist() == VALUES[row].tolist()
    assert [r.weight for r in top] == sorted(seen.weights, reverse=True)[:3]
    assert top[0].key == seen.winner == "middle"


@given(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, -3.0, 1e-12]), min_size=1, max_size=8),
       st.sampled_from([0, 0.5, math.inf]), st.sampled_from([None, 2]), st.booleans())  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_top_k_is_a_prefix_of_top_k_plus_1(
    keys: list[float], temperature: float, top_k: int | None, biased: bool
) -> None:
    labels = [f"row {i}" for i in range(len(keys))]
    sd = SoftDict.from_arrays(keys, keys, labels, temperature=temperature, top_k=top_k)
    bias = [(-1.0) ** i * i for i in range(len(keys))] if biased else None
    seen = sd.lookup(np.array(1.2), bias=bias)
    everything = [r.key for r in seen.top(99)]
    assert len(everything) == min(len(keys), top_k or 99)
    for k in range(1, len(keys) + 1):
        assert [r.key for r in seen.top(k)] == everything[:k]
    assert seen.winner == everything[0]
    rows = [labels.index(key) for key in everything]
    if not biased:  # by score, the earlier first among equals
        assert rows == sorted(range(len(keys)), key=lambda j: -seen.scores[j])[: len(rows)]
    assert all(seen.weights[j] == 0 for j in range(len(keys)) if j not in rows)


def test_rank_at_the_ends_with_a_bias() -> None:
    sd = SoftDict({0: 1.0, 1: 2.0, 2: 3.0, -1: 4.0})
    bias = [0.0, 5.0, 1.0, 2.0]
    cold = sd.at(temperature=0).lookup(0, bias=bias)  # by score, then bias
    assert [r.key for r in cold.top(4)] == [0.0, 1.0, -1.0, 2.0]
    hot = sd.at(temperature=math.inf).lookup(0, bias=[0.0, 0.0, 1.0, 1.0])  # by bias, then score
    assert [r.key for r in hot.top(4)] == [-1.0, 2.0, 0.0, 1.0]


def test_top_lists_what_weighs_nothing_but_not_what_is_out() -> None:
    sd = SoftDict({0: 1.0, 1: 2.0, 50: 3.0}, weighting="sparsemax")
    seen = sd.lookup(0)
    assert [r.weight for r in seen.top(9)][-1] == 0.0
    assert [r.key for r in seen.top(9)] == [0.0, 1.0, 50.0]
    masked = sd.lookup(0, where=[False, True, True])
    assert [r.key for r in masked.top(9)] == [1.0, 50.0]
    assert masked.scores[0] == -math.inf
    low = sd.at(min_score=-1).lookup(0)
    assert [r.key for r in low.top(9)] == [0.0, 1.0]
    assert low.scores[2] == -1250.0  # step (2) took it out, not step (1)


@pytest.mark.parametrize("k", [0, -1, 1.5, "2", None])
def test_top_wants_a_whole_number(k: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="top"):
        compass().lookup("north").top(k)


def test_the_winner_is_the_best_entry_though_the_null_may_weigh_more() -> None:
    seen = SoftDict({0: 1.0, 1: 2.0}, null_score=50.0, temperature=0).lookup(0.9)
    assert seen.winner == 1.0
    assert seen.null_weight == 1.0
    assert seen.value == 0.0
    tie = SoftDict({0: 1.0, 2: 2.0}).lookup(1)
    assert tie.winner == 0.0  # the earlier


def test_vote_is_the_weight_per_distinct_value() -> None:
    for values in (["yes", "no", "yes", "no", "yes"], [1.0, 0.0, 1.0, 0.0, 1.0]):
        sd = compass(values)
        seen = sd.lookup(QUERIES)
        for votes, w in zip(seen.vote(), seen.weights, strict=True):
            assert list(votes.values()) == sorted(votes.values(), reverse=True)
            want = {values[0]: w[0] + w[2] + w[4], values[1]: w[1] + w[3]}
            assert set(votes) == set(want)
            for value, weight in votes.items():
                agree(weight, want[value], oracle.tolerance(float), "vote")
    arrays = compass(np.repeat([[1.0, 2.0]], 5, axis=0)).lookup("north").vote()
    assert list(arrays) == [(1.0, 2.0)]
    agree(arrays[1.0, 2.0], 1.0, oracle.tolerance(float, 0, 5), "vote of five alike")
    matrices = compass(np.repeat([[[1.0], [2.0]]], 5, axis=0)).lookup("north").vote()
    assert list(matrices) == [((1.0,), (2.0,))]


@pytest.mark.parametrize("thing", [{"a": 1}, {1}, bytearray(b"x"), [{"a": 1}], [["x"], {2}]])
def test_vote_on_what_no_dict_can_hold_is_refused_in_full(thing: Any) -> None:
    seen = SoftDict({0: thing, 1: "text"}).lookup(0)
    assert seen.top(1)[0].value is thing
    with pytest.raises(TypeError, match="vote") as caught:
        seen.vote()
    assert "expected" in str(caught.value)


def test_vote_counts_what_is_equal_once() -> None:
    for values, want in (
        (["x", 1, True], ["x", 1]),
        ([["a"], ["a"], ("a",)], [("a",)]),
        ([[["a"], 1], [["a"], 1], None], [(("a",), 1), None]),
        (["x", np.array([1, 2]), [1, 2]], ["x", (1, 2)]),
    ):
        votes = SoftDict(zip([0, 1, 2], values, strict=True)).lookup(0).vote()
        assert set(votes) == set(want)
        agree(math.fsum(votes.values()), 1.0, oracle.tolerance(float, 2, 3), "vote")


# ---- objects -------------------------------------------------------------------------------------


def test_objects_are_ranked_voted_on_and_picked() -> None:
    colors = ["red", "green", "blue", "red", "white"]
    sd = compass(colors)
    seen = sd.lookup(QUERIES[0])
    assert seen.value is None
    assert sd.lookup(QUERIES).value is None
    assert seen.winner == "middle"
    assert seen.top(5)[0].value == "white"
    assert set(seen.vote()) == set(colors)
    blending = compass(SCALARS).lookup(QUERIES[0])
    np.testing.assert_array_equal(seen.weights, blending.weights)
    cold = sd.at(temperature=0)
    assert cold.lookup(QUERIES[0]).value == cold[QUERIES[0]] == "white"
    assert cold.lookup(QUERIES).value == cold[QUERIES] == ["white", "red", "red"]
    assert "white" in str(seen)


def test_objects_with_a_value_encoder_blend() -> None:
    words = ["a", "bb", "ccc", "dddd", "eeeee"]
    sd = compass(words, value_encoder=lambda values: [[len(v), 1] for v in values])
    seen = sd.lookup(QUERIES)
    assert seen.value.shape == (3, 2)
    np.testing.assert_array_equal(seen.value, sd[QUERIES])
    assert seen.top(1)[0][0].value == "eeeee"


# ---- no match ------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1.0, math.inf])
@pytest.mark.parametrize("weighting", ["softmax", "sparsemax", "entmax15"])
def test_it_never_raises_for_want_of_a_match(temperature: float, weighting: str) -> None:
    for values in (VALUES, SCALARS):
        sd = compass(values, temperature=temperature, weighting=weighting, min_score=-1e-9)
        for seen in (
            sd.lookup(np.array([9.0, 9.0])),
            sd.lookup("north", where=np.zeros(5, bool)),
            sd.lookup("north", bias=np.full(5, -math.inf)),
        ):
            assert np.all(seen.value == 0)
            assert np.shape(seen.value) == values.shape[1:]
            assert seen.weights.tolist() == [0.0] * 5
            assert seen.winner is None
            assert seen.top(3) == []
            assert seen.logsumexp == -math.inf
            assert (seen.entropy, seen.effective, seen.null_weight) == (0, 0, 0)
            assert str(seen)
        batch = sd.lookup(np.array([[9.0, 9.0], [0.0, 1.0]]))
        assert batch.winner == [None, "north"]
        assert np.all(batch.value[0] == 0)
        assert np.array_equal(batch.value[1], values[0])
        assert batch.effective.tolist() == [0, 1]
    assert compass(["x"] * 5, min_score=-1e-9, temperature=0).lookup([9.0, 9.0]).value is None


def test_where_and_bias() -> None:
    sd = compass()
    where = np.array([True, False, True, True, False])
    bias = np.array([0.5, 0.0, -1.0, -math.inf, 2.0])
    want = ask_oracle(sd, QUERIES[0], where=where, bias=bias)
    seen = sd.lookup(QUERIES[0], where=where, bias=bias)
    agree(seen.value, want.value, want.tolerance(float), "where and bias")
    assert (seen.weights > 0).tolist() == [True, False, True, False, False]
    assert (seen.scores == -math.inf).tolist() == [False, True, False, True, True]
    for shape in ((5,), (1, 5), (3, 5), (3, 1)):
        mask = np.resize(where, shape)
        want = ask_oracle(sd, QUERIES, where=np.broadcast_to(mask, (3, 5)))
        agree(sd.lookup(QUERIES, where=mask).value, want.value, want.tolerance(float), "where")
    with pytest.raises(TypeError, match="bool"):
        sd.lookup(QUERIES[0], where=[1, 0, 1, 1, 0])
    with pytest.raises(ValueError, match=r"\(5,\)"):
        sd.lookup(QUERIES[0], where=[True, False])
    with pytest.raises(ValueError, match=r"\(3, 5\)"):
        sd.lookup(QUERIES, where=np.ones((2, 5), bool))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="bias"):
            sd.lookup(QUERIES[0], bias=[0, 0, 0, 0, bad])


# ---- a snapshot, and its size --------------------------------------------------------------------


def test_it_is_a_snapshot() -> None:
    sd = compass()
    seen = sd.lookup(QUERIES[0])
    before = (str(seen), seen.weights.copy(), seen.value.copy(), seen.vote(), seen.winner)
    top = [(r.key, r.value.tolist(), r.weight, r.score) for r in seen.top(9)]
    sd["middle"] = [0.0, 0.0]
    sd.add("north", [9.0, 9.0], [7.0, 7.0])
    del sd["south"]
    sd.temperature, sd.similarity = 77.0, "dot"
    assert str(seen) == before[0]
    np.testing.assert_array_equal(seen.weights, before[1])
    np.testing.assert_array_equal(seen.value, before[2])
    assert (seen.vote(), seen.winner) == before[3:]
    assert [(r.key, r.value.tolist(), r.weight, r.score) for r in seen.top(9)] == top
    assert list(seen.keys) == NAMES
    sd.clear()
    assert str(seen) == before[0]


def test_a_snapshot_of_objects() -> None:
    sd = compass(["a", "b", "c", "d", "e"])
    seen = sd.lookup(QUERIES)
    before = (str(seen), seen.vote(), [[tuple(r) for r in top] for top in seen.top(5)])
    sd["middle"] = "other"
    del sd["north"]
    assert (str(seen), seen.vote(), [[tuple(r) for r in top] for top in seen.top(5)]) == before


def test_what_was_asked_may_change_afterwards() -> None:
    sd = compass(SCALARS)
    for query in (QUERIES.copy(), QUERIES[0].copy(), QUERIES.tolist(), ["north", QUERIES[0].copy()]):
        seen = sd.lookup(query)
        before = str(seen)
        query[0] = query[1]
        if isinstance(query[-1], np.ndarray):
            query[-1][:] = 7.0
        assert str(seen) == before


def test_what_was_handed_out_may_change() -> None:
    sd = compass()
    seen, again = sd.lookup(QUERIES), sd.lookup(QUERIES)
    for name in ("scores", "weights", "value", "null_weight", "logsumexp", "entropy", "effective"):
        array = getattr(seen, name)
        if array.flags.writeable:
            array[...] = 7.0
    for top in seen.top(2):
        for record in top:
            record.value[...] = 7.0
    seen.vote()[0].clear()
    seen.keys.clear()
    assert sd == compass()
    assert str(sd.lookup(QUERIES)) == str(again)
    np.testing.assert_array_equal(sd.lookup(QUERIES).value, again.value)


def test_a_lookup_too_large_for_memory_is_refused_with_size_and_way_out(monkeypatch: Any) -> None:
    monkeypatch.setattr(softdict._checks, "LARGEST_LOOKUP", 10)
    sd = compass()
    assert sd.lookup(QUERIES[:2]).weights.shape == (2, 5)
    for action in (lambda: sd.lookup(QUERIES), sd.self_attention, lambda: sd.calibrate(2)):
        with pytest.raises(ValueError, match="expected") as caught:
            action()
        assert str(5 * (3 if action is not sd.self_attention else 5))[:1] in str(caught.value)
    with pytest.raises(ValueError, match=r"sd\[queries\]"):
        sd.lookup(QUERIES)
    assert sd[QUERIES].shape == (3, 2)  # the way out


def test_the_limit_spares_memory_before_it_is_taken() -> None:
    n = 20000
    sd = SoftDict.from_arrays(np.arange(float(n)), np.zeros(n))
    with pytest.raises(ValueError, match="400000000"):
        sd.self_attention()


# ---- printing ------------------------------------------------------------------------------------


def test_printing_is_the_highlighter() -> None:
    text = str(compass(SCALARS).lookup("north"))
    lines = [line for line in text.splitlines() if any(name in line for name in NAMES)]
    assert len(lines) >= 5
    places = [min(i for i, line in enumerate(text.splitlines()) if n in line) for n in NAMES]
    assert len(set(places)) == 5
    assert "%" in text
    many = SoftDict({i: float(i) for i in range(10)})
    assert "calibrate" in str(many.at(temperature=1e6).lookup(3))
    assert "calibrate" in str(many.at(temperature=1e-6).lookup(3))
    assert "calibrate" not in str(many.at(temperature=0.5).lookup(3))
    few = SoftDict({i: float(i) for i in range(7)})
    assert "calibrate" not in str(few.at(temperature=1e6).lookup(3))
    assert str(compass().lookup(QUERIES))


# ---- calibrate -----------------------------------------------------------------------------------


def logits_as_keys(logits: list[float]) -> SoftDict:
    """Return a SoftDict that, asked 1, scores just these."""
    labels = [f"row {i}" for i in range(len(logits))]
    return SoftDict.from_arrays(np.array(logits, float), logits, labels, similarity="dot")


def rests_on(temperature: float, rows: Any, wanted: float) -> None:
    """Assert that at this temperature the median of rows of scores rests on `wanted` entries."""
    finite = [[s for s in row if s != -math.inf] for row in rows]
    assert 0 < temperature < math.inf
    found = [oracle.effective([Fraction(s) / Fraction(temperature) for s in row]) for row in finite]
    largest = max(abs(s) for row in finite for s in row) / temperature
    tol = oracle.tolerance(float, largest, max(map(len, finite)))
    agree(np.median(found), wanted, tol, "calibrate", temperature)


def test_calibrate_finds_the_temperature() -> None:
    sd = logits_as_keys([3, 2, 1, 0])
    t = sd.calibrate(2, 1.0)
    assert type(t) is float
    assert round(t, 10) == 0.6916302663
    seen = sd.at(temperature=t).lookup(1.0)
    assert seen.weights.round(5).tolist() == [0.76682, 0.18062, 0.04254, 0.01002]
    rests_on(t, [[3, 2, 1, 0]], 2)
    assert sd.temperature == 1.0  # it only tells
    assert sd.at(temperature=7, null_score=3.0).calibrate(2, 1.0) == t  # neither counts
    rests_on(logits_as_keys([5, 1, 1, 0.5]).calibrate(3, 1.0), [[5, 1, 1, 0.5]], 3)
    rests_on(sd.at(top_k=3).calibrate(2, 1.0), [[3, 2, 1]], 2)
    rests_on(sd.at(min_score=0.5).calibrate(2, 1.0), [[3, 2, 1]], 2)


def test_calibrate_looks_at_the_median_query() -> None:
    sd = compass()
    for effective in (1.5, 3.0, 4.9):
        rests_on(sd.calibrate(effective, QUERIES), sd.lookup(QUERIES).scores.tolist(), effective)
    assert sd.calibrate(2, ["north", "east", "south"]) == sd.calibrate(2, KEYS[:3])
    assert sd.calibrate(2, "north") == sd.calibrate(2, KEYS[0])


def test_calibrate_without_queries_leaves_each_entry_out_of_its_own_answer() -> None:
    for sd in (compass(), SoftDict({0: 1.0, 1: 2.0, 3: 4.0, 7: 0.0, 20: 1.0})):
        rows = sd.self_attention(exclude_self=True).scores.tolist()
        for effective in (1.5, 2.5):
            rests_on(sd.calibrate(effective), rows, effective)


def test_calibrate_at_the_ends() -> None:
    sd = logits_as_keys([3, 2, 1, 0])
    assert sd.calibrate(1, 1.0) == 0.0
    assert sd.calibrate(4, 1.0) == math.inf
    assert logits_as_keys([1, 1, 0, 0]).calibrate(2, 1.0) == 0.0
    for effective in (1 + 1e-7, 1.5, 4 - 1e-9):
        rests_on(sd.calibrate(effective, 1.0), [[3, 2, 1, 0]], effective)
    for logits in ([6e153, -6e153], [1e-290, 0], [6e153, 6e153 - 1e140]):
        rests_on(logits_as_keys(logits).calibrate(1.5, 1.0), [logits], 1.5)


def test_calibrate_says_what_cannot_be_reached() -> None:
    with pytest.raises(ValueError, match="2 entries tie"):
        logits_as_keys([1, 1, 0, 0]).calibrate(1.5, 1.0)
    with pytest.raises(ValueError, match="3 entries tie"):
        logits_as_keys([2, 2, 2, 0]).calibrate(2.5, 1.0)
    sd = compass()
    for effective in (0.5, 0, -1, 5.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="effective"):
            sd.calibrate(effective, QUERIES)
    for sd in (
        SoftDict.from_arrays([[1, 1]] * 4, [1.0, 2.0, 3.0, 4.0], labels=list("abcd")),
        SoftDict.from_arrays([7.0] * 3, [1.0, 2.0, 6.0], labels=list("abc")),
    ):
        with pytest.raises(ValueError, match="reached"):
            sd.calibrate(2)
        assert sd["a"] == np.mean(sd.value_vectors)
    line = SoftDict({(i, 5.0): float(i) for i in range(6)})  # one coordinate constant
    assert math.isfinite(line.calibrate(2))


# ---- the story -----------------------------------------------------------------------------------


def test_the_study_group() -> None:
    scores = {"I": 1.0, "have": 1.0, "a": 1.0, "lot": 100.0}
    answers = {"I": 0.0, "have": 0.0, "a": 0.0, "lot": 1.0}  # how loudly each says "full stop"
    group = SoftDict(similarity="dot")
    for word, score in scores.items():
        group.add(word, [score], answers[word])
    alone = group.lookup([1.0])
    assert alone.winner == "lot"
    agree(alone.value, 1.0, oracle.tolerance(float, 100), "the study group")
    assert alone.weights[3] == 1.0
    for word in ("cash", "credit", "card"):
        group.add(word, [1000.0], -1.0)
    together = group.lookup([1.0])
    assert together.scores.tolist() == [1, 1, 1, 100, 1000, 1000, 1000]
    assert together.weights[3] == 0.0  # nothing about "lot" changed, and hardly counts
    assert together.weights[4:].tolist() == [1 / 3] * 3
    assert together.value == -1.0
    assert group.hard["lot"] == 1.0


def test_temperature_0_is_the_nearest_key_by_distance_not_by_dot() -> None:
    keys = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    sd = SoftDict.from_arrays(keys, [0.0, 1.0, 2.0], temperature=0)
    assert sd[1, 0.1] == 0.0
    assert sd.at(similarity="dot")[1, 0.1] == 2.0
    three = SoftDict({(1, 0): 10.0, (2, 0): 20.0, (0, 1): 30.0}, temperature=0)
    assert three[1, 0] == 10.0
    assert three.at(similarity="dot")[1, 0] == 20.0
    assert three.at(similarity="cosine")[1, 0] == 15.0


def test_queries_and_keys_cannot_be_swapped() -> None:
    q, k = np.array([[1.0, 0.0], [2.0, 1.0]]), np.array([[0.5, 1.0], [1.0, -1.0]])
    there = SoftDict.from_arrays(k, [1.0, 2.0], similarity="dot").lookup(q)
    back = SoftDict.from_arrays(q, [1.0, 2.0], similarity="dot").lookup(k)
    np.testing.assert_array_equal(there.scores, back.scores.T)  # they look interchangeable
    assert np.abs(there.weights - back.weights.T).max() > 0.1  # they are not
    assert np.abs(there.value - back.value).max() > 0.1
    agree(there.weights.sum(axis=1), [1.0, 1.0], oracle.tolerance(float), "row sums")
    assert np.abs(there.weights.sum(axis=0) - 1).min() > 0.1  # columns do not sum to 1


def test_adding_an_entry_changes_every_other_answer() -> None:
    sd = SoftDict({0: 1.0, 1: 2.0})
    before = sd[0]
    sd[5] = 2.0
    assert sd[0] != before
    assert sd.hard[0] == 1.0
    far = SoftDict({0: 1.0, 1: 2.0, 2: 3.0}, temperature=0.01)
    assert (far[10], far[50]) == (3.0, 3.0)  # far away, the nearest


def test_where_may_be_a_function_of_key_and_value() -> None:
    books = [{"year": 1960, "text": "sea"}, {"year": 2010, "text": "sky"}, {"year": 2020, "text": "sea"}]
    sd = SoftDict.from_arrays(np.arange(3.0), books, ["a", "b", "c"])
    asked: list[Any] = []

    def recent(key: Any, value: Any) -> bool:
        asked.append((key, value))
        return value["year"] > 2000

    for query in (0.0, [0.0, 2.0, 1.0]):
        got, want = sd.lookup(query, where=recent), sd.lookup(query, where=[False, True, True])
        assert np.array_equal(got.weights, want.weights) and got.winner == want.winner
    assert asked == 2 * list(zip("abc", books, strict=True))  # once for each entry, however many ask
    assert sd.self_attention(where=recent).winner == ["b", "b", "c"]
    assert sd.lookup(0.0, where=lambda key, value: False).winner is None
    with pytest.raises(TypeError, match=r"where\('a', ...\) returned 1960, but True or False was expected"):
        sd.lookup(0.0, where=lambda key, value: value["year"])
    with pytest.raises(KeyError, match="month"):  # what it raises is its own
        sd.lookup(0.0, where=lambda key, value: value["month"])


def test_what_stands_for_a_hard_answer_where_there_is_none():
    sd = SoftDict({i: float(i) for i in range(20)})
    assert "calibrate() finds a sharper" in str(sd.at(temperature=np.inf).lookup(3))
    assert "calibrate() finds a softer" in str(sd.at(temperature=0).lookup(3))
    nothing = str(sd.at(null_score=-9).lookup(99))
    assert "hard: (nothing matches)   soft: 0\nrests on 0 of 20 entries" in nothing
    assert "hard: 19" in str(sd.at(null_score=-9).lookup(19))
    assert "hard: (no entry)   soft: (no entry)" in str(sd.lookup(3, where=[False] * 20))
