"""SelfAttention: it is two lines of SoftDict; what is not seen changes no bit; memory between steps."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import oracle
import pytest
from oracle import agree, tolerance

from softdict import Bilinear, SelfAttention, SoftDict, attention, attention_weights

INF = math.inf
TOKENS = "the animal was so tired that the".split()
#: h and key heads, and whether there is a w_o and there are biases.
LAYERS = [
    (1, 1, False, False),
    (1, 1, True, True),
    (4, 4, True, False),
    (4, 2, False, True),
    (4, 1, True, True),
]
SETTINGS = [
    {}, {"causal": True}, {"window": (2, 1)}, {"causal": True, "window": (2, None), "temperature": 0.3},
    {"similarity": "gaussian"}, {"similarity": "cosine", "temperature": 0.1, "top_k": 2},
    {"weighting": "sparsemax", "null_score": 0.1}, {"temperature": 0}, {"temperature": INF},
    {"similarity": Bilinear(np.diag([1.0, 2, 3]))},
]  # fmt: skip


def sequence(*lead, n=7, d_model=6, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(*lead, n, d_model)).astype(dtype)


def make(heads=1, key_heads=1, out=True, biased=False, dtype=np.float64, d_model=6, **settings):
    """Return a layer of width d = 3 and e = 2."""
    rng = np.random.default_rng([heads, key_heads])
    columns = heads * 3, key_heads * 3, key_heads * 2, 5 if out else heads * 2
    rows = d_model, d_model, d_model, heads * 2
    w = [rng.normal(size=size).astype(dtype) / 2 for size in zip(rows, columns, strict=True)]
    b = tuple(rng.normal(size=size).astype(dtype) for size in columns) if biased else None
    return SelfAttention(*(w if out else w[:3]), heads=heads, key_heads=key_heads, biases=b, **settings)


def by_hand(layer, x):
    """Return queries, keys and values of each head (h, n, .), by slices of columns."""
    found = []
    for matrix, bias, h in zip((layer.w_q, layer.w_k, layer.w_v), layer.biases, (0, 1, 1), strict=False):
        h = layer.key_heads if h else layer.heads
        rows = x @ matrix + (0 if bias is None else bias)
        heads = np.split(rows, h, axis=1)
        found.append([heads[i * h // layer.heads] for i in range(layer.heads)])
    return found


def finish(layer, answers):
    """Return what becomes of the heads' answers, a list of (n, e)."""
    out = np.concatenate(answers, axis=1)
    out = out if layer.w_o is None else out @ layer.w_o
    return out if layer.biases[3] is None else out + layer.biases[3]


def seen(n, causal=False, window=None, **_):
    """Return who sees whom (n, n)."""
    ahead = np.arange(n) - np.arange(n)[:, None]
    left, right = window or (None, None)
    return (
        (ahead <= (0 if causal else n))
        & (ahead >= -(n if left is None else left))
        & (ahead <= (n if right is None else right))
    )


def spread(layer):
    """Return how far an error in the heads' answers can grow in what the layer returns."""
    return 1 if layer.w_o is None else max(1, np.abs(layer.w_o).sum(axis=0).max())


# ---- two lines of SoftDict -------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_each_head_is_one_softdict(shape, settings):
    layer, x = make(*shape, **settings), sequence()
    rules = {name: x for name, x in settings.items() if name not in ("causal", "window")}
    sight, answers, largest = seen(len(x), **settings), [], 0.0
    for q, k, v in zip(*by_hand(layer, x), strict=True):
        names = [f"{i} {word}" for i, word in enumerate(TOKENS)]
        sd = SoftDict.from_arrays(k, v, labels=names, **{"similarity": "scaled_dot", **rules})
        if sight.all():
            answers.append(sd[q])
            np.testing.assert_array_equal(sd.lookup(q).value, answers[-1])
        else:
            answers.append(sd.lookup(q, where=sight).value)
        largest = max(largest, oracle_size(q, k, v, sight, {"similarity": "scaled_dot", **rules}))
    agree(layer(x), finish(layer, answers), largest * spread(layer), "a layer and its SoftDicts", settings)


def oracle_size(q, k, v, sight, rules):
    """Return the tolerance of one head's answer, and check the engine's answer within it."""
    want = oracle.Lookup(q, k, v, where=sight, **rules)
    got = attention(q, k, v, where=sight, **rules)
    agree(got, want.value, want.tolerance(np.float64), "a head", rules)
    return want.tolerance(np.float64).max()


def test_the_two_lines_of_the_docstring():
    x, layer = sequence(), make(1, 1, False)
    sd = SoftDict.from_arrays(x @ layer.w_k, x @ layer.w_v, map(str, range(7)), similarity="scaled_dot")
    agree(layer(x), sd[x @ layer.w_q], tolerance(float, 10, np.abs(x @ layer.w_v).max()), "two lines")
    assert not np.allclose(layer(x), sd[x @ layer.w_k])  # asked with the keys, it answers something else


def test_with_identity_matrices_it_is_the_self_attention_of_a_softdict():
    x, one = sequence(d_model=4), np.eye(4)
    sd = SoftDict.from_arrays(x, x, labels=list("0123456"))
    layer = SelfAttention(one, one, one, similarity="gaussian")
    tol = tolerance(float, 20, np.abs(x).max())
    agree(layer(x), sd.self_attention().value, tol, "identity matrices")
    agree(layer.lookup(x).weights[0], sd.self_attention().weights, tolerance(float, 20), "their weights")
    assert not np.allclose(layer(x), x)


def test_leading_axes_are_sequences_by_themselves():
    layer, x = make(4, 2, True, True, causal=True), sequence(3, 2)
    got = layer(x)
    assert got.shape == (3, 2, 7, 5)
    for at in np.ndindex(3, 2):
        np.testing.assert_array_equal(got[at], layer(x[at]))
    assert layer(x[:, :, :0]).shape == (3, 2, 0, 5)
    assert layer(x[:0]).shape == (0, 2, 7, 5)
    q, k, v = layer.project(x)
    assert (q.shape, k.shape, v.shape) == ((3, 2, 4, 7, 3), (3, 2, 2, 7, 3), (3, 2, 2, 7, 2))


def test_masks_meet_the_heads():
    layer, x, rng = make(4, 2), sequence(2), np.random.default_rng(1)
    where, bias = rng.random((2, 4, 7, 7)) < 0.7, rng.normal(size=(4, 1, 7))
    real = np.arange(7) < [[5], [7]]  # (batch, n): the first sequence is two words short
    got = layer(x, where=where, bias=bias)
    padded = layer(x, where=real[:, None, None, :])
    for i in range(2):
        heads = zip(*by_hand(layer, x[i]), where[i], np.broadcast_to(bias, (4, 7, 7)), strict=True)
        answers = [attention(q, k, v, where=w, bias=b) for q, k, v, w, b in heads]
        agree(got[i], finish(layer, answers), spread(layer) * tolerance(float, 20, 5), "masked heads")
    agree(padded[0, :5], layer(x[0, :5]), spread(layer) * tolerance(float, 20, 5), "padding")


def test_a_word_that_sees_nothing_gets_nothing():
    layer, x = make(4, 2, False), sequence()
    blind = np.arange(7)[:, None] != 3
    out = layer(x, where=blind)
    assert out[3].tolist() == [0] * 8
    assert out[blind[:, 0]].all()
    look = layer.lookup(x, TOKENS, where=blind)
    assert not look.weights[:, 3].any()
    assert [head.winner[3] for head in look] == [None] * 4


# ---- lookup explains -------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_a_lookup_tells_why_and_never_changes_the_answer(shape, settings):
    layer, x, rng = make(*shape, **settings), sequence(), np.random.default_rng(2)
    wheres = None, rng.random((7, 7)) < 0.8, rng.random((layer.heads, 7, 7)) < 0.8
    biases = None, rng.normal(size=(layer.heads, 1, 1)), np.where(rng.random(7) < 0.8, 0.5, -INF)
    sight = {name: settings[name] for name in ("causal", "window") if name in settings}
    rules = {name: x for name, x in settings.items() if name not in sight}
    q, k, v = layer.project(x)
    for where, bias in zip(wheres, biases, strict=True):
        look = layer.lookup(x, TOKENS, where=where, bias=bias)
        np.testing.assert_array_equal(look.value, layer(x, where=where, bias=bias))
        assert look.weights.shape == (layer.heads, 7, 7)
        assert look.queries == look.keys == TOKENS
        want = attention_weights(q, k, where=where, bias=bias, **sight, **rules)
        agree(look.weights, want, tolerance(float, 40), "weights", settings)
        for i, head in enumerate(look):
            np.testing.assert_array_equal(head.weights, look.weights[i])
            own = v[i * layer.key_heads // layer.heads]
            agree(head.value, head.weights @ own, tolerance(float, 40, 9), "a head's value", settings)
            sums = head.weights.sum(axis=1) + head.null_weight
            agree(sums[sums > 0.5], np.ones((sums > 0.5).sum()), tolerance(float), "row sums")
            for row, (name, best) in enumerate(zip(head.winner, head.top(1), strict=True)):
                assert [name] == ([match.key for match in best] or [None])
                if head.weights[row].any() and layer.temperature < INF and bias is None:
                    assert best[0].weight == head.weights[row].max()
                    assert best[0].key == TOKENS[head.weights[row].argmax()]


def test_a_lookup_is_a_sequence_of_heads():
    layer, x = make(4, 2), sequence()
    look = layer.lookup(x)
    assert len(look) == 4
    assert list(look) == [look[0], look[1], look[2], look[-1]]
    assert len(look[1:]) == 3
    assert look.keys == look[2].queries == list("0123456")
    with pytest.raises(TypeError, match="does not support item assignment"):
        look[0] = look[1]
    for out_of_range in (4, -5):
        with pytest.raises(IndexError):
            look[out_of_range]


def test_printing_a_lookup_names_the_axes_of_every_head(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    layer, x = make(4, 2, causal=True), sequence()
    lines = repr(layer.lookup(x, TOKENS)).splitlines()
    assert [line for line in lines if line.startswith("head")] == [f"head {i} of 4" for i in range(4)]
    assert lines.count("query asks (down), entry answers (across)") == 4
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == [*TOKENS, "sum"]
    assert lines[3].split() == ["the", "1", *["0"] * 6, "1"]
    assert [line.split()[0] for line in lines[3:11]] == [*TOKENS, "sum"]
    for line in repr(layer.lookup(sequence(n=40), ["a long word indeed"] * 40)).splitlines():
        assert len(line) <= 80


# ---- what is not seen changes no bit ---------------------------------------------------------------


def stack(layers, x):
    """Let words through layers, each of which adds to them."""
    for layer in layers:
        x = x + layer(x)
    return x


def others(x, first, rng):
    """Yield the words with other ones from `first` on: others, huge ones, NaN, infinity."""
    for what in (None, 1e18, np.nan, INF, -INF):
        later = x.copy()
        later[first:] = rng.normal(size=later[first:].shape) * 50 if what is None else what
        yield later


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("settings", [s for s in SETTINGS if "window" not in s], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (4, 2)], ids=str)
def test_a_later_word_changes_no_earlier_bit(shape, settings, dtype):
    layers = [SelfAttention.random(6, shape[0], width=3, key_heads=shape[1], rng=seed, dtype=dtype,
                                   **{**settings, "causal": True}) for seed in range(3)]  # fmt: skip
    x, rng = sequence(n=19, dtype=dtype), np.random.default_rng(3)
    before = stack(layers, x)
    assert before.dtype == dtype
    assert np.isfinite(before).all()
    for first in (1, 9, 18):
        for later in others(x, first, rng):
            after = stack(layers, later)
            assert after[:first].tobytes() == before[:first].tobytes()
            assert not np.array_equal(after[first:], before[first:])


def test_a_later_word_changes_no_earlier_bit_where_there_are_many():
    layers = [
        SelfAttention.random(32, 4, rng=seed, causal=True, biases=(np.ones(32),) * 4) for seed in range(2)
    ]
    x, rng = sequence(n=200, d_model=32), np.random.default_rng(4)
    before = stack(layers, x)
    for first in (1, 100, 199):
        for later in others(x, first, rng):
            assert stack(layers, later)[:first].tobytes() == before[:first].tobytes()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_masked_nan_and_infinity_never_leak(shape, settings):
    layer, x, rng = make(*shape, **settings), sequence(2), np.random.default_rng(5)
    layers = [layer, *[SelfAttention.random(layer(x).shape[-1], 1, rng=0, width=3, **settings)] * 2]
    bad = np.array([[False, True, False, False, True, False, False], [True] + [False] * 6])

    def through(x):
        for each in layers:
            x = each(x, where=~bad[:, None, None, :])
        return x

    before = through(x)
    assert np.isfinite(before).all()
    for what in (np.nan, INF, -INF, 1e300, rng.normal()):
        odd = np.where(bad[:, :, None], what, x)
        after = through(odd)
        assert after[~bad].tobytes() == before[~bad].tobytes()


def test_what_is_seen_does_arrive():
    layer, x = make(4, 2), sequence()
    x[2] = np.nan
    assert np.isnan(layer(x)).all()
    assert np.isnan(make(4, 2, causal=True)(x)).any(axis=1).tolist() == [False] * 2 + [True] * 5


# ---- memory between steps --------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [s for s in SETTINGS if "window" not in s], ids=str)
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_a_memory_that_grows_by_one_entry_a_step_gives_the_rows_of_the_whole(shape, settings):
    layer = make(*shape, **{**settings, "causal": True})
    x = sequence(n=40)
    rules = {"similarity": "scaled_dot", **{name: x for name, x in settings.items() if name != "causal"}}
    memory, rows = [SoftDict(**rules) for _ in range(layer.key_heads)], []
    for step in range(len(x)):
        q, k, v = (y[:, 0] for y in layer.project(x[step : step + 1]))  # (h, d), (key heads, d) and e
        for sd, key, value in zip(memory, k, v, strict=True):
            sd.add(f"word {step}", key, value)
        served = np.repeat(range(layer.key_heads), layer.heads // layer.key_heads)
        nothing = np.zeros(2)
        rows.append(
            finish(layer, [memory[i].get(query, nothing)[None] for i, query in zip(served, q, strict=True)])
        )
    assert [len(sd) for sd in memory] == [40] * layer.key_heads
    agree(np.concatenate(rows), layer(x), spread(layer) * tolerance(float, 60, 9), "memory", settings)


# ---- a layer is what it was made of ----------------------------------------------------------------


def test_matrices_are_copied_and_read_only():
    given = [np.ones(size) for size in ((6, 4), (6, 4), (6, 2), (2, 3))]
    biases = tuple(np.ones(size) for size in (4, 4, 2, 3))
    layer = SelfAttention(*given, heads=2, biases=biases)
    before = layer(sequence())
    for array in (*given, *biases):
        array[...] = 7
    np.testing.assert_array_equal(layer(sequence()), before)
    for array in (layer.w_q, layer.w_k, layer.w_v, layer.w_o, *layer.biases):
        assert (array == 1).all()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    for name in ("w_q", "heads", "temperature"):
        with pytest.raises(AttributeError, match=name):
            setattr(layer, name, 1)


def test_the_input_is_left_as_it_was():
    layer, x, where, bias = make(4, 2, True, True), sequence(), np.ones((4, 7, 7), bool), np.zeros((7, 7))
    before = [a.copy() for a in (x, where, bias)]
    for array in (x, where, bias):
        array.flags.writeable = False
    layer.lookup(x, TOKENS, where=where, bias=bias)
    for array, old in zip((x, where, bias), before, strict=True):
        np.testing.assert_array_equal(array, old)
    assert layer(x.tolist()).tobytes() == layer(x).tobytes()


def test_settings_are_attributes():
    layer = make(4, 2, causal=True, window=[2, 1], temperature=2, top_k=3.0, null_score=1)
    assert (layer.heads, layer.key_heads, layer.causal, layer.window) == (4, 2, True, (2, 1))
    assert (layer.temperature, layer.top_k, layer.null_score) == (2.0, 3, 1.0)
    assert (layer.similarity, layer.weighting, layer.biases) == ("scaled_dot", "softmax", (None,) * 4)
    cold = dataclasses.replace(layer, temperature=0)
    assert (cold.temperature, layer.temperature) == (0, 2)
    x = sequence()
    np.testing.assert_array_equal(
        cold(x), make(4, 2, causal=True, window=(2, 1), temperature=0, top_k=3, null_score=1)(x)
    )
    for twin in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(twin(x), layer(x))
        assert not twin.w_q.flags.writeable
    assert dataclasses.replace(SelfAttention.random(6, 2, rng=0), heads=1).key_heads is None


def test_a_layer_shows_its_shapes_heads_similarity_and_temperature():
    assert repr(make(4, 2, causal=True, window=(3, None), temperature=0.5)) == (
        "SelfAttention(w_q (6, 12), w_k (6, 6), w_v (6, 4), w_o (8, 5), heads=4, key_heads=2, causal=True, "
        "window=(3, None), similarity='scaled_dot', T=0.5)"
    )
    assert repr(make(weighting="sparsemax", null_score=3, biased=True)).endswith(
        "w_o (2, 5), b_q (3,), b_k (3,), b_v (2,), b_o (5,), heads=1, weighting='sparsemax', null_score=3.0, "
        "similarity='scaled_dot', T=1)"
    )
    assert repr(make(out=False)) == (
        "SelfAttention(w_q (6, 3), w_k (6, 3), w_v (6, 2), heads=1, similarity='scaled_dot', T=1)"
    )


@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_dtypes(shape):
    for matrices, words, want in (
        (np.float32, np.float32, np.float32), (np.float32, np.float64, np.float64),
        (np.float64, np.float32, np.float64), (np.float16, np.float16, np.float32),
        (np.float32, np.float16, np.float32), (np.float32, np.int64, np.float64),
    ):  # fmt: skip
        layer, x = make(*shape, dtype=matrices, causal=True), (sequence() * 4).astype(words)
        got = layer(x)
        assert got.dtype == layer.lookup(x).value.dtype == want
        w = {name: w.astype(float) for name, w in vars(layer).items() if isinstance(w, np.ndarray)}
        wide = dataclasses.replace(layer, **w)(x.astype(float))
        agree(got, wide, spread(layer) * tolerance(want, 60, 40), "dtypes", (matrices, words))


# ---- random ----------------------------------------------------------------------------------------


def test_random_layers_come_from_their_generator():
    one, two = SelfAttention.random(8, 2, rng=5), SelfAttention.random(8, 2, rng=np.random.default_rng(5))
    other = SelfAttention.random(8, 2, rng=6)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    assert not np.array_equal(one.w_q, one.w_k)
    generator = np.random.default_rng(5)
    first, second = (SelfAttention.random(8, rng=generator) for _ in range(2))
    assert not np.array_equal(first.w_q, second.w_q)
    want = np.random.default_rng(5).normal(size=(8, 8)) / np.sqrt(8)
    np.testing.assert_array_equal(one.w_q, want)
    assert one.w_q.dtype == np.float64
    assert (
        SelfAttention.random(8, rng=5, dtype=np.float32)(sequence(d_model=8, dtype=np.float32)).dtype
        == np.float32
    )


def test_random_layers_have_the_shapes_that_are_asked_for():
    def shapes(*args, **options):
        layer = SelfAttention.random(*args, **options)
        return [w.shape for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o)]

    assert shapes(8) == [(8, 8)] * 4
    assert shapes(8, 2) == [(8, 8)] * 4
    assert shapes(8, 2, width=3) == [(8, 6), (8, 6), (8, 6), (6, 8)]
    assert shapes(8, 3, width=2, value_width=5, d_out=7) == [(8, 6), (8, 6), (8, 15), (15, 7)]
    assert shapes(8, 4, key_heads=2) == [(8, 8), (8, 4), (8, 4), (8, 8)]
    layer = SelfAttention.random(8, 2, causal=True, temperature=0.5, biases=(None, None, np.ones(8)))
    assert (layer.causal, layer.temperature, layer.biases[2].sum()) == (True, 0.5, 8)


def test_random_numbers_keep_their_size():
    layer = SelfAttention.random(256, 8, rng=0, value_width=64)
    x = sequence(n=50, d_model=256)
    for rows in layer.project(x):
        assert 0.9 < rows.std() < 1.1
    assert layer.w_o.std() == pytest.approx(1 / np.sqrt(8 * 64), rel=0.05)


# ---- wrong calls -----------------------------------------------------------------------------------


def layer_of(*shapes, **options):
    return SelfAttention(*(np.ones(shape) for shape in shapes), **options)


NAN, BOOL, COMPLEX = np.full((6, 4), np.nan), np.ones((6, 4), bool), np.ones((6, 4), complex)
FOUR = np.ones((6, 4))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: layer_of((6, 4), (6, 4), (5, 4)), ValueError,
         r"w_v has shape \(5, 4\), but \(6, e\) was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (4, 6), (6, 4)), ValueError, r"w_k has shape \(4, 6\), but \(6, d\) was"),
        (lambda: layer_of((6,), (6, 4), (6, 4)), ValueError, r"w_q has shape \(6,\), but \(d_model, d\) was"),
        (lambda: layer_of((6, 4), (6, 4, 1), (6, 4)), ValueError, r"w_k has shape \(6, 4, 1\), but \(6, d\)"),
        (lambda: layer_of((6, 7), (6, 4), (6, 4), heads=2), ValueError,
         r"w_q has shape \(6, 7\), but \(d_model, 2 \* d\) was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 3), heads=2), ValueError,
         r"w_v has shape \(6, 3\), but \(6, 2 \* e\) was expected in SelfAttention"),
        (lambda: layer_of((6, 11), (6, 1), (6, 10), heads=11), ValueError,
         r"w_k has shape \(6, 1\), but \(6, 11 \* d\) was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), heads=2, key_heads=1), ValueError,
         "w_q makes queries of width 2 and w_k keys of width 4, but widths 4 and 4 were expected in SelfAtt"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), similarity=Bilinear(np.ones((4, 3)))), ValueError,
         "w_q makes queries of width 4 and w_k keys of width 4, but widths 4 and 3 were expected in SelfAtt"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), (6, 4)), ValueError,
         r"w_o has shape \(6, 4\), but \(4, d_out\) was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), heads=3, key_heads=2), ValueError,
         "heads is 3, but a multiple of key_heads = 2 was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), heads=0), ValueError,
         r"heads is 0, but a whole number .* expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), heads=True), TypeError, "heads is True, but a whole"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), key_heads=1.5), ValueError, "key_heads is 1.5, but a "),
        (lambda: SelfAttention(FOUR, NAN, FOUR), ValueError, "w_k holds nan, but finite numbers were"),
        (lambda: SelfAttention(FOUR, FOUR, FOUR * INF), ValueError, "w_v holds inf, but finite numbers were"),
        (lambda: SelfAttention(BOOL, FOUR, FOUR), TypeError, "w_q holds booleans .* real numbers were"),
        (lambda: SelfAttention(FOUR, FOUR, FOUR, COMPLEX), TypeError, "w_o holds complex numbers .*"),
        (lambda: SelfAttention(FOUR, [["a"]], FOUR), TypeError, "w_k holds 'a', but real numbers were"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), biases=(None, None)), ValueError,
         r"biases is \(None, None\), but \(b_q, b_k, b_v\), .* expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), biases=np.ones(4)), TypeError,
         r"biases is array.* \(b_q, b_k, b_v\), .* expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), biases=(None, [1, 2], None)), ValueError,
         r"b_k has shape \(2,\), but \(4,\) was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), (4, 3), biases=[None] * 3 + [np.ones(4)]), ValueError,
         r"b_o has shape \(4,\), but \(3,\) was expected in SelfAttention"),
        (lambda: layer_of((6, 4), (6, 4), (6, 4), biases=(None, None, [1, 2, 3, np.nan])), ValueError,
         "b_v holds nan, but finite numbers were expected in SelfAttention"),
        (lambda: make(causal=1), TypeError, "causal is 1, but True or False was expected in attention"),
        (lambda: make(window=3), TypeError, r"window is 3, but a pair \(left, right\) .* expected"),
        (lambda: make(temperature=-1), ValueError, "temperature is -1, but one number .* expected"),
        (lambda: make(similarity="euclid"), ValueError, ".*euclid.*expected"),
        (lambda: make()(np.ones(6)), ValueError,
         r"x has shape \(6,\), but \(\.\.\., n, 6\) was expected in SelfAttention"),
        (lambda: make()(np.ones((7, 5))), ValueError,
         r"x has shape \(7, 5\), but \(\.\.\., n, 6\) was expected in SelfAttention"),
        (lambda: make()(np.ones((7, 6), bool)), TypeError, "x holds booleans .* real numbers were expected"),
        (lambda: make()(np.ma.ones((7, 6))), TypeError, "x is a masked array, but .* expected"),
        (lambda: make(4)(sequence(), where=np.ones((3, 7, 7), bool)), ValueError,
         r"where has shape \(3, 7, 7\), but .* = \(4, 7, 7\) was expected"),
        (lambda: make(4, 2).lookup(sequence(), bias=np.ones((2, 4, 7, 7))), ValueError,
         r"bias has shape \(2, 4, 7, 7\), but .* = \(4, 7, 7\) was expected"),
        (lambda: make()(sequence(), where=np.ones((7, 7))), TypeError, "where has dtype float64, but"),
        (lambda: make().lookup(sequence(2)), ValueError,
         r"x has shape \(2, 7, 6\), but one sequence \(n, 6\) was expected in lookup"),
        (lambda: make().lookup(sequence(), TOKENS[1:]), ValueError,
         "there are 6 labels for 7 rows of x, but one for each, and at least one, was expected in lookup"),
        (lambda: make().lookup(sequence(), 7), ValueError, "there are 1 labels for 7 rows of x"),
        (lambda: attention(sequence(), sequence(), None), TypeError, "value holds no numbers"),
        (lambda: make().lookup(sequence() * np.nan, TOKENS), ValueError,
         "the key vector of .word 0, '.*'. holds nan"),
        (lambda: SelfAttention.random(8, 3), ValueError,
         "d_model is 8, but a multiple of heads = 3 was expected in SelfAttention.random"),
        (lambda: SelfAttention.random(8.5), ValueError, "d_model is 8.5, but a whole number .* expected"),
        (lambda: SelfAttention.random(8, width=0), ValueError, "width is 0, but a whole number .* expected"),
        (lambda: SelfAttention.random(8, d_out="x"), TypeError, "d_out is 'x', but a whole number"),
        (lambda: SelfAttention.random(8, 4, key_heads=3), ValueError, "heads is 4, but a multiple of"),
        (lambda: SelfAttention.random(8, dtype=int), ValueError, "dtype is .*int.*, but float32, float64 or"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_told_what_was_expected(call, error, text):
    with pytest.raises(error, match=rf"(?s)^{text}") as caught:
        call()
    assert "expected" in str(caught.value)
    assert str(caught.value).count(". ") >= 1, "no advice"


def test_no_words_leave_a_lookup_without_an_entry():
    with pytest.raises(ValueError, match="there are 0 labels for 0 rows of x"):
        make().lookup(sequence(n=0))


# ---- other libraries -------------------------------------------------------------------------------


def theirs_and_ours(torch, d_model, heads, biased, seed):
    """Return torch's layer and ours of the same weights; its matrices are for columns, (out, in)."""
    torch.manual_seed(seed)
    their = torch.nn.MultiheadAttention(d_model, heads, bias=biased, batch_first=True, dtype=torch.float64)
    if biased:  # which starts at zero
        torch.nn.init.normal_(their.in_proj_bias)
        torch.nn.init.normal_(their.out_proj.bias)
    w_q, w_k, w_v = (w.T for w in np.split(their.in_proj_weight.detach().numpy(), 3))
    w_o = their.out_proj.weight.detach().numpy().T
    biases = None
    if biased:
        biases = (*np.split(their.in_proj_bias.detach().numpy(), 3), their.out_proj.bias.detach().numpy())
    return their, SelfAttention(w_q, w_k, w_v, w_o, heads=heads, biases=biases)


@pytest.mark.peers
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("d_model", "heads", "n"), [(8, 1, 5), (12, 3, 1), (24, 4, 17), (64, 8, 33)])
def test_it_is_torch_s_multihead_attention(d_model, heads, n, biased):
    torch = pytest.importorskip("torch")
    their, layer = theirs_and_ours(torch, d_model, heads, biased, seed=n)
    x = sequence(3, n=n, d_model=d_model)
    words, rng = torch.from_numpy(x), np.random.default_rng(6)
    size = tolerance(float, 20, np.abs(layer.project(x)[2]).max()) * spread(layer)
    some = rng.random((n, n)) < 0.7
    some[:, 0] = True  # where nothing is seen torch answers NaN
    real = np.arange(n) < np.array([[n], [max(1, n - 2)], [1]])
    log_prior = rng.normal(size=(n, n))
    for ours, options in (
        ({}, {}),
        ({"where": np.tri(n, dtype=bool)}, {"attn_mask": ~np.tri(n, dtype=bool), "is_causal": True}),
        ({"where": some}, {"attn_mask": ~some}),  # True leaves out, there
        ({"where": real[:, None, None, :]}, {"key_padding_mask": ~real}),
        ({"bias": log_prior}, {"attn_mask": log_prior}),
    ):
        options = {k: v if isinstance(v, bool) else torch.from_numpy(v) for k, v in options.items()}
        with torch.no_grad():
            want, weights = their(words, words, words, average_attn_weights=False, **options)
        agree(layer(x, **ours), want.numpy(), size, "MultiheadAttention", list(options))
        for i in range(3):
            mine = {k: v[i] if v.ndim == 4 else v for k, v in ours.items()}
            look = layer.lookup(x[i], **mine)
            agree(look.weights, weights[i].numpy(), tolerance(float, 20), "its weights", list(options))
    causal = dataclasses.replace(layer, causal=True)
    agree(causal(x), layer(x, where=np.tri(n, dtype=bool)), size, "causal")


@pytest.mark.peers
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes_are_torch_s_scaled_dot_product_attention(seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    m, n, d, e = rng.integers(1, 20, size=4).tolist()
    lead, groups, group = (
        tuple(rng.integers(1, 4, size=seed % 3).tolist()),
        *rng.integers(1, 4, size=2).tolist(),
    )
    query, key, value = (
        rng.normal(size=(*lead, *shape)) for shape in ((groups * group, m, d), (groups, n, d), (groups, n, e))
    )
    where, bias = rng.random((groups * group, m, n)) < 0.7, rng.normal(size=(m, n))
    where[..., 0] = True  # where nothing is seen torch answers NaN
    tensors = list(map(torch.from_numpy, (query, key, value)))
    if len(lead) == 0:  # torch wants a batch
        tensors = [tensor[None] for tensor in tensors]
    for ours, options in (
        ({}, {}),
        ({"causal": True, "offset": 0}, {"is_causal": True}),
        ({"where": where}, {"attn_mask": torch.from_numpy(where)}),
        ({"bias": bias}, {"attn_mask": torch.from_numpy(bias)}),
        ({"temperature": 0.5}, {"scale": 2 / math.sqrt(d)}),
    ):
        theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=group > 1, **options)
        got = attention(query, key, value, **ours)
        largest = np.abs(query @ np.repeat(key, group, axis=-3).swapaxes(-1, -2)).max() / math.sqrt(d) * 2 + 3
        want = theirs.numpy().reshape(got.shape)
        agree(got, want, tolerance(float, largest, np.abs(value).max()), "torch", list(options))


def test_a_random_layer_refuses_what_gives_no_chance():
    for rng in ("a", -1, 1.5):
        with pytest.raises(TypeError, match=r"rng is .*, but a Generator, .* in SelfAttention.random. Matr"):
            SelfAttention.random(3, rng=rng)
