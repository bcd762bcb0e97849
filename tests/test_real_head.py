"""The pretrained head that ships with the package looks up what a pronoun stands for, and fails as said."""

import dataclasses
import zipfile
from importlib.resources import files

import numpy as np
import pytest
from oracle import tolerance

from softdict import SelfAttention, SoftDict, real_head

LAYER, SENTENCES = real_head()
NEAR = 0.002  # what float16 may cost a weight


def row(sentence, word, layer=LAYER):
    """Return the weights of one asking word by answering word, and the whole lookup."""
    tokens, x = SENTENCES[sentence]
    found = layer.lookup(x, labels=tokens)[0]
    return dict(zip(tokens, found.weights[tokens.index(word)], strict=True)), found


def swapped():
    b_q, b_k, b_v, _ = LAYER.biases
    return SelfAttention(LAYER.w_k, LAYER.w_q, LAYER.w_v, biases=(b_k, b_q, b_v))


@pytest.mark.parametrize(
    ("sentence", "shares"),
    [
        ("tired", {"animal": 0.677, "[CLS]": 0.102, "it": 0.064, "street": 0.050}),
        ("wide", {"[CLS]": 0.326, "animal": 0.281, "street": 0.121}),
    ],
)
def test_what_it_listens_to(sentence, shares):
    weights, found = row(sentence, "it")
    assert {word: weights[word] for word in shares} == pytest.approx(shares, abs=NEAR)
    best = sorted(weights, key=weights.get, reverse=True)
    assert best[: len(shares)] == list(shares)
    assert found.winner[found.queries.index("it")] == best[0]


def test_a_hard_lookup_finds_the_animal_or_nothing():
    hard = dataclasses.replace(LAYER, temperature=0)
    assert row("tired", "it", hard)[0]["animal"] == 1
    assert row("wide", "it", hard)[0]["[CLS]"] == 1


def test_attention_is_not_symmetric():
    weights, _ = row("tired", "animal")
    assert weights["it"] == pytest.approx(0.030, abs=NEAR)


def test_query_and_key_cannot_be_swapped():
    weights, found = row("tired", "it", swapped())
    assert found.winner[found.queries.index("it")] == "tired" == max(weights, key=weights.get)
    assert weights["tired"] == pytest.approx(0.239, abs=NEAR)


def test_rows_sum_to_one_and_columns_do_not():
    tokens, _ = SENTENCES["tired"]
    _, found = row("tired", "it")
    assert found.weights.sum(axis=1) == pytest.approx(1)
    heard = found.weights.sum(axis=0)
    assert tokens[heard.argmax()] == "[CLS]"
    assert heard.max() == pytest.approx(8.27, abs=0.01)
    assert heard.min() == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ("temperature", "share", "effective"),
    [(0.25, 0.999, "1.01"), (0.5, 0.959, "1.25"), (1, 0.677, "3.5"), (2, 0.318, "10"), (4, 0.159, "14.3")],
)
def test_from_one_entry_to_all(temperature, share, effective):
    weights, found = row("tired", "it", dataclasses.replace(LAYER, temperature=temperature))
    assert weights["animal"] == pytest.approx(share, abs=NEAR)
    digits = len(effective.partition(".")[2])
    assert f"{found.effective[found.queries.index('it')]:.{digits}f}" == effective


def test_the_layer_is_two_lines():
    tokens, x = SENTENCES["tired"]
    q, k, v = (x.astype(float) @ w + b for w, b in zip(
        (LAYER.w_q, LAYER.w_k, LAYER.w_v), LAYER.biases, strict=False))  # fmt: skip
    scores = q @ k.T / np.sqrt(32)
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    near = tolerance(np.float64, abs(scores).max(), abs(v).max())
    names = [f"{i} {token}" for i, token in enumerate(tokens)]  # "the" occurs twice
    sd = SoftDict.from_arrays(k, v, names, similarity="scaled_dot")
    for answer in (LAYER(x.astype(float)), sd[q]):
        assert abs(answer - weights @ v).max() <= near


# ---- the file ------------------------------------------------------------------------------------


def test_the_file_is_small_holds_no_pickle_and_says_whose_it_is():
    folder = files("softdict").joinpath("data")
    asset = folder.joinpath("real_head.npz")
    assert sum(len(path.read_bytes()) for path in (asset, folder.joinpath("LICENSE.md"))) < 120_000
    with asset.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        kinds = {name: arrays[name].dtype.kind for name in arrays}  # an object would raise
    assert set(kinds.values()) == {"f", "U"}
    with asset.open("rb") as stream, zipfile.ZipFile(stream) as members:
        assert {member.date_time for member in members.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    license = folder.joinpath("LICENSE.md").read_text(encoding="utf-8")
    assert "all-MiniLM-L6-v2" in license
    assert "What was changed" in license
    assert "END OF TERMS AND CONDITIONS" in license


def test_what_is_handed_out():
    assert LAYER.heads == 1
    assert [w.shape for w in (LAYER.w_q, LAYER.w_k, LAYER.w_v)] == [(384, 32)] * 3
    assert LAYER.w_q.dtype == np.float32
    for changed, (tokens, x) in SENTENCES.items():
        assert [tokens[0], tokens[-3], tokens[-1]] == ["[CLS]", changed, "[SEP]"]
        assert x.shape == (len(tokens), 384)
        assert x.dtype == np.float32
    SENTENCES["tired"][0].append("again")
    assert real_head()[1]["tired"][0] == SENTENCES["tired"][0][:-1]
    SENTENCES["tired"][0].pop()
