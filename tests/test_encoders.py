"""Encoders: one-hot, character n-grams, and whatever others have made."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import tracemalloc
import types
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from oracle import agree, tolerance

from softdict import SoftDict
from softdict.encoders import BATCH, CharNgrams, OneHot, as_encoder

ROOT = Path(__file__).parents[1]
WORDS = ["cat", "cats", "dog", "a", "", "straße", "日本語", "two words"]
EPS = tolerance(np.float64)


def lengths(words: list[Any]) -> list[list[int]]:
    """Encode by length and first letter: a module's function, so that it pickles."""
    return [[len(word), ord(word[0])] for word in words]


class Encodes:
    """An object with `encode`, like a sentence model; calling it would be wrong."""

    def encode(self, texts: list[str]) -> Any:
        assert type(texts) is list
        return np.array(lengths(texts), dtype=np.float32)

    def __call__(self, *_: Any) -> Any:
        raise AssertionError("a model of PyTorch takes tensors, no text")


class Transforms:
    """An object with `transform`, like a fitted vectorizer."""

    def transform(self, texts: list[str]) -> Any:
        return lengths(texts)


# ---- one-hot -------------------------------------------------------------------------------------


def test_one_hot_gives_each_object_an_axis():
    encode = OneHot(["b", 3, None, "b", ("t", 1)])
    assert encode(["b", 3, None, ("t", 1)]).tolist() == np.eye(4).tolist()
    assert encode([]).shape == (0, 4)
    assert OneHot(x for x in "ab")(["b"]).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("unknown", ["cow", 4, None, ("t",), True])
def test_one_hot_raises_for_what_it_has_not_seen(unknown):
    with pytest.raises(KeyError, match="is none of the 2 objects that OneHot knows"):
        OneHot(["cat", "dog"])(["cat", unknown])


def test_one_hot_refuses_what_can_be_no_name():
    for act in (lambda: OneHot([["cat"]]), lambda: OneHot(["cat"])([["cat"]])):
        with pytest.raises(
            TypeError, match=r"\['cat'\] is unhashable \(a list\), but .* expected here\. Use"
        ):
            act()


def test_what_one_hot_has_not_seen_is_a_miss():
    sd = SoftDict({"cat": 3, "dog": 5}, encoder=OneHot(["cat", "dog", "cow"]))
    with pytest.raises(KeyError, match="'owl' is none of"):
        sd["owl"]
    with pytest.raises(KeyError, match="'owl' is none of"):
        sd[["cat", "owl"]]
    with pytest.raises(KeyError, match="'owl' is none of"):
        sd["owl"] = 1
    assert sd.get("owl", "none") == "none"
    assert "owl" not in sd
    assert sd.get(["cat", "owl", "dog"], -1.0).tolist() == [sd["cat"], -1.0, sd["dog"]]
    assert dict(sd.hard) == {"cat": 3, "dog": 5}


def test_one_hot_with_an_axis_but_no_entry_is_a_tie_or_by_min_score_a_miss():
    sd = SoftDict({"cat": 3, "dog": 5}, encoder=OneHot(["cat", "dog", "cow"]), temperature=0)
    assert sd["cow"] == 4
    assert sd.at(min_score=0).get("cow", "none") == "none"
    assert sd.at(min_score=0)["dog"] == 5


@given(
    st.dictionaries(
        st.text() | st.none() | st.tuples(st.text(), st.booleans()), st.floats(-1e9, 1e9), min_size=1
    )
)
def test_one_hot_at_temperature_0_is_a_dict(table):
    sd = SoftDict(table, encoder=OneHot(table), temperature=0)
    assert [sd[key] for key in table] == list(table.values())
    assert sd[list(table)].tolist() == list(table.values())


# ---- character n-grams ---------------------------------------------------------------------------


def counted(text: str, d: int, sizes: tuple[int, ...]) -> list[float]:
    """Return the vector of a text, slowly: each word between two spaces, one gram at a time."""
    counts: Counter[int] = Counter()
    for word in text.lower().split() or [""]:
        padded = f" {word} "
        for n in sizes:
            grams = [padded[i : i + n] for i in range(len(padded) - n + 1)] or [padded]
            counts.update(crc32(gram.encode("utf-8", "surrogatepass")) % d for gram in grams)
    norm = sum(count * count for count in counts.values()) ** 0.5
    return [counts[i] / norm for i in range(d)]


@pytest.mark.parametrize(("d", "sizes"), [(64, (3, 4, 5)), (7, (1,)), (1, (2, 9)), (2048, (3, 3))])
def test_char_ngrams_are_the_definition(d, sizes):
    texts = [*WORDS, "cat cat dog", "  CAT\tdog\n", "\ud800", "İstanbul", "x" * 300]
    agree(CharNgrams(d, sizes)(texts), [counted(text, d, sizes) for text in texts], EPS, "char n-grams")


@given(st.lists(st.text(st.characters()), max_size=4))  # surrogates too
def test_every_text_has_a_vector_of_unit_length(texts):
    vectors = CharNgrams(32)(texts)
    assert vectors.shape == (len(texts), 32)
    assert np.isfinite(vectors).all()
    agree((vectors * vectors).sum(axis=1), np.ones(len(texts)), EPS, "unit length")


def test_a_text_alone_and_in_company_has_one_vector():
    encode = CharNgrams()
    together = encode(WORDS)
    assert [encode([word])[0].tolist() for word in WORDS] == together.tolist()


def test_the_empty_text_is_a_text():
    encode = CharNgrams()
    assert encode([""]).tolist() == encode([" \n"]).tolist()
    assert encode([]).shape == (0, 2048)
    sd = SoftDict({"": 1.0, "cat": 2.0}, encoder=encode, temperature=0)
    assert sd[""] == 1
    assert sd[" "] == 1  # no stored name, but the same vector


def test_spelling_is_likeness():
    def likeness(a: str, b: str) -> float:
        one, other = CharNgrams()([a, b])
        return float(one @ other)

    assert likeness("color", "colour") > likeness("color", "cool") > likeness("color", "dog") == 0
    agree(likeness("Cat", "cAT"), 1.0, EPS, "case")


def test_two_processes_give_the_same_vectors():
    code = (
        "from softdict.encoders import CharNgrams, OneHot\n"
        f"texts = {WORDS!r}\n"
        "print(hash('cat'), CharNgrams()(texts).tobytes().hex(), OneHot(texts)(texts).tobytes().hex())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert said[0][0] != said[1][0]  # hashes are salted: the seeds do differ
    assert said[0][1:] == said[1][1:]
    assert said[0][1:] == [CharNgrams()(WORDS).tobytes().hex(), OneHot(WORDS)(WORDS).tobytes().hex()]


@given(st.dictionaries(st.text(max_size=12), st.floats(-1e9, 1e9), min_size=1, max_size=8))
def test_the_law_for_texts(table):
    encode = CharNgrams()
    sd = SoftDict(table, encoder=encode, temperature=0)
    vectors = [tuple(vector) for vector in encode(list(table)).tolist()]
    for key, vector in zip(table, vectors, strict=True):
        if vectors.count(vector) == 1:
            assert sd[key] == table[key]
        else:
            shared = [value for value, other in zip(table.values(), vectors, strict=True) if other == vector]
            agree(
                sd[key], sum(shared) / len(shared), tolerance(np.float64, 0, max(map(abs, shared))), "shared"
            )


def test_texts_of_one_vector_share_their_answer():
    sd = SoftDict({"big dog": 1.0, "dog big": 3.0, "cat": 9.0}, encoder=CharNgrams(), temperature=0)
    assert sd["big dog"] == sd["dog big"] == sd["BIG  DOG"] == 2
    assert sd.hard["dog big"] == 3


@pytest.mark.parametrize("texts", [[3], ["cat", None], [b"cat"], [["cat"]], "cat"])
def test_char_ngrams_refuse_what_is_no_list_of_texts(texts):
    with pytest.raises(TypeError, match=r"but .*text.* expected in CharNgrams\. "):
        CharNgrams()(texts)


@pytest.mark.parametrize(
    "settings",
    [(0,), (-1,), (2.5,), ("9",), (8, ()), (8, (0,)), (8, (3, 2.5)), (8, None), (8, "35"), (None,), (True,)],
)
def test_char_ngrams_refuse_impossible_settings(settings):
    with pytest.raises((TypeError, ValueError), match=r"expected in CharNgrams\. "):
        CharNgrams(*settings)


def test_char_ngrams_take_numpy_s_integers():
    sizes = np.array([2, 3])
    assert CharNgrams(16, 3)(["cat"]).tolist() == CharNgrams(16, [3])(["cat"]).tolist()
    assert CharNgrams(np.int64(16), sizes)(["cat"]).tolist() == CharNgrams(16, (2, 3))(["cat"]).tolist()


# ---- what others have made -----------------------------------------------------------------------


@pytest.mark.parametrize("encoder", [lengths, Encodes(), Transforms(), Transforms().transform])
def test_functions_and_objects_with_encode_or_transform(encoder):
    vectors = as_encoder(encoder)(["cat", "horse"])
    assert vectors.tolist() == [[3, 99], [5, 104]]
    assert vectors.dtype == (np.float32 if isinstance(encoder, Encodes) else np.float64)
    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=encoder, temperature=0)
    assert (sd["cat"], sd["cot"], sd["house"]) == (1, 1, 2)
    assert sd.key_vectors.tolist() == vectors.tolist()


def test_encode_comes_before_transform_and_both_before_calling():
    both = types.SimpleNamespace(encode=lambda x: [[1]] * len(x), transform=lambda x: [[2]] * len(x))
    assert as_encoder(both)(["x"]).tolist() == [[1]]
    called = types.SimpleNamespace(
        encode="utf-8", transform=lambda x: [[2]] * len(x)
    )  # no method: an attribute
    assert as_encoder(called)(["x"]).tolist() == [[2]]


def test_an_encoder_encodes_numbers_too():
    sd = SoftDict({2: 10.0, 3: 20.0}, encoder=lambda xs: [[x, x * x] for x in xs], temperature=0)
    assert sd.key_vectors.tolist() == [[2, 4], [3, 9]]
    assert list(sd) == [2, 3]
    assert sd[2] == sd[2.4] == 10  # names, since labels are numbers; the second is unknown and encoded
    assert sd[np.array([3.0, 8.0])] == 20  # an array is measured as it is
    with pytest.raises(TypeError, match="add"):
        sd[np.array([1.0, 1.0])] = 5
    assert len(sd) == 2


def test_a_known_name_is_not_encoded_again():
    asked: list[str] = []

    def watched(words: list[str]) -> Any:
        asked.extend(words)
        return lengths(words)

    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=watched)
    asked.clear()
    sd["cat"], sd[["cat", "horse"]], sd.self_attention(), "cat" in sd, sd.hard["cat"], sd[[]]
    sd["cat"] = 3.0
    assert asked == []
    sd[["cat", "ox"]], sd.get("emu")
    assert asked == ["ox", "emu"]


def test_a_long_list_is_encoded_in_batches_once_and_in_order():
    asked: list[list[str]] = []

    def watched(words: list[str]) -> Any:
        asked.append(list(words))
        return lengths(words)

    words = [f"{i}" for i in range(2 * BATCH + 1)]
    assert as_encoder(watched)(words).tolist() == lengths(words)
    assert [len(batch) for batch in asked] == [BATCH, BATCH, 1]
    assert [word for batch in asked for word in batch] == words
    values = as_encoder(lambda xs: [int(x) for x in xs], rows=False)(words, np.float32)
    assert (values.dtype, values.tolist()) == (np.float32, list(range(len(words))))
    asked.clear()
    SoftDict(zip(words, words, strict=True), encoder=watched)
    assert [len(batch) for batch in asked] == [BATCH, BATCH, 1]


def test_batches_have_one_width_and_the_wider_dtype():
    def growing(words: list[str]) -> Any:
        return np.ones((len(words), 3 if len(words) == BATCH else 2))

    with pytest.raises(ValueError, match=rf"from object {BATCH} on, but \(9, 3\) was expected"):
        as_encoder(growing)(["x"] * (BATCH + 9))

    def widening(words: list[str]) -> Any:
        return np.full((len(words), 3), 0.1, np.float32 if len(words) == BATCH else np.float64)

    wide = as_encoder(widening)(["x"] * (BATCH + 9))  # as two updates would: promoted, once
    assert wide.dtype == np.float64
    assert (wide[0, 0], wide[-1, 0]) == (np.float32(0.1), 0.1)
    assert as_encoder(widening)(["x"] * (BATCH + 9), np.float32).dtype == np.float32


def test_long_lists_show_how_far_they_are(monkeypatch):
    shown: list[tuple[Any, dict[str, Any]]] = []
    tqdm = types.ModuleType("tqdm")
    tqdm.tqdm = lambda batches, **how: shown.append((batches, how)) or batches  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", tqdm)
    as_encoder(lengths)(["cat"] * BATCH)
    assert shown == []
    assert as_encoder(lengths)(["cat"] * (3 * BATCH)).shape == (3 * BATCH, 2)
    ((batches, how),) = shown
    assert len(batches) == 3
    assert how["disable"] is None  # so that tqdm shows it on a terminal only
    monkeypatch.setitem(sys.modules, "tqdm", None)  # as if it were not installed
    assert as_encoder(lengths)(["cat"] * (3 * BATCH)).shape == (3 * BATCH, 2)


def test_many_texts_are_stored_without_a_copy():
    texts = [f"text {i}" for i in range(4000)]
    tracemalloc.start()
    try:
        sd = SoftDict(zip(texts, texts, strict=True), encoder=CharNgrams(), similarity="cosine")
        assert sd.lookup("text 77").winner == "text 77"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.6 * sd.key_vectors.nbytes  # two copies would be more


def test_an_encoder_gets_a_list_of_its_own():
    seen: list[Any] = []

    def keep(words: Any) -> Any:
        seen.append(words)
        result = lengths(words)
        words.clear()
        return result

    words = ("cat", "horse")
    assert as_encoder(keep)(words).shape == (2, 2)
    assert seen == [[]]
    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=keep)
    assert sd[["cot", "house"]].shape == (2,)
    assert list(sd) == ["cat", "horse"]


def test_an_encoder_that_reuses_its_array_changes_nothing_that_is_stored():
    buffer = np.zeros((1, 2))

    def reuse(words: list[str]) -> Any:
        buffer[:] = lengths(words)
        return buffer

    sd = SoftDict(encoder=reuse, value_encoder=reuse)
    for word in ("cat", "horse", "ox"):
        sd[word] = word
    buffer[:] = 0
    assert sd.key_vectors.tolist() == sd.value_vectors.tolist() == lengths(["cat", "horse", "ox"])
    whole = np.array(lengths(["cat", "horse"]), dtype=float)
    sd = SoftDict({"cat": "cat", "horse": "horse"}, encoder=lambda _: whole, value_encoder=lambda _: whole)
    whole[:] = 0
    assert sd.key_vectors.tolist() == sd.value_vectors.tolist() == lengths(["cat", "horse"])


def test_a_vectorizer_of_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    topics = ["lambda expressions make anonymous functions", "the with statement", "break leaves a loop"]
    fitted = text.TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4)).fit(topics)
    vectors = as_encoder(fitted)(topics)
    assert type(vectors) is np.ndarray
    assert vectors.tolist() == fitted.transform(topics).toarray().tolist()
    sd = SoftDict(dict(zip(topics, [1.0, 2.0, 3.0], strict=True)), encoder=fitted, temperature=0)
    assert sd.encoder is fitted
    assert [sd[topic] for topic in topics] == [1, 2, 3]
    assert sd["anonymous function"] == 1
    assert pickle.loads(pickle.dumps(sd))["leave the loop"] == 3


def test_a_hashing_vectorizer_of_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    encoder = text.HashingVectorizer(
        n_features=2**10, analyzer="char_wb", ngram_range=(3, 4), dtype=np.float32
    )
    topics = [f"{word} topic {i}" for i, word in enumerate(WORDS * 40)]  # some 300: more than one batch
    sd = SoftDict(zip(topics, topics, strict=True), encoder=encoder, similarity="cosine", temperature=0)
    assert sd.key_vectors.tolist() == encoder.transform(topics).toarray().tolist()
    assert sd.key_vectors.dtype == np.float32
    assert sd["catz topic 0"] == "cat topic 0"


def test_sparse_results():
    sparse = pytest.importorskip("scipy.sparse")
    for kind in (sparse.csr_matrix, sparse.csr_array, sparse.coo_array):
        assert as_encoder(lambda words, kind=kind: kind(lengths(words)))(["cat"]).tolist() == [[3, 99]]


def test_a_value_encoder_may_give_any_shape():
    encode = as_encoder(lambda xs: np.ones((len(xs), 2, 3)), rows=False)
    assert encode(["a", "b"]).shape == (2, 2, 3)
    assert as_encoder(lambda xs: [len(x) for x in xs], rows=False)(["a", "bc"]).tolist() == [1, 2]
    sd = SoftDict({0: "red", 1: "blue"}, value_encoder=lambda words: [len(word) for word in words])
    assert 3 < sd[0.5] < 4
    assert sd.hard[1] == "blue"


@pytest.mark.parametrize("wrong", ["cat", b"cat", 3, None, [1, 2], {"cat": [1, 0]}, OneHot, CharNgrams, str])
def test_what_is_no_encoder_is_refused(wrong):
    makers: list[Any] = [as_encoder]
    if wrong is not None:
        makers += [lambda x: SoftDict(encoder=x), lambda x: SoftDict(value_encoder=x)]
    for make in makers:
        with pytest.raises(
            TypeError, match=r"the (value_)?encoder is .*, but a function of a list.* expected\. Pass"
        ):
            make(wrong)


def test_a_large_thing_that_is_no_encoder_is_not_printed_whole():
    with pytest.raises(TypeError) as caught:
        as_encoder({word: [1.0] * 99 for word in WORDS * 9})
    assert len(str(caught.value)) < 400
    long = "word " * 999
    for call, error in [(lambda: OneHot([])([long]), KeyError), (lambda: CharNgrams()([[long]]), TypeError)]:
        with pytest.raises(error) as told:
            call()
        assert len(str(told.value)) < 400


@pytest.mark.parametrize(
    ("result", "error", "match"),
    [
        (
            [1, 2],
            ValueError,
            r"the encoder wrong returned shape \(2,\) for 2 objects, but \(2, d\) was expected",
        ),
        (np.ones((3, 2)), ValueError, r"returned shape \(3, 2\) for 2 objects, but \(2, d\)"),
        (np.ones((2, 2, 2)), ValueError, r"returned shape \(2, 2, 2\) for 2 objects, but \(2, d\)"),
        (5, ValueError, r"returned shape \(\) for 2 objects, but \(2, d\)"),
        ([[1], [1, 2]], ValueError, "the encoder wrong"),
        (None, TypeError, "the encoder wrong"),
        ([["a"], ["b"]], TypeError, "the encoder wrong"),
        (np.ones((2, 2), dtype=bool), TypeError, "the encoder wrong holds booleans"),
        (np.ones((2, 2), dtype=complex), TypeError, "the encoder wrong holds complex"),
    ],
)
def test_wrong_results_are_refused(result, error, match):
    def wrong(_: list[Any]) -> Any:
        return result

    with pytest.raises(error, match=match):
        as_encoder(wrong)(["a", "b"])
    sd = SoftDict(encoder=wrong)
    with pytest.raises(error, match=match):
        sd.update({"a": 1, "b": 2})
    assert len(sd) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_vectors_that_no_entry_may_have_are_refused_by_name(bad):
    sd = SoftDict(
        {"cat": 1.0}, encoder=lambda words: [[bad if word == "bad" else len(word)] for word in words]
    )
    for act in (lambda: sd["bad"], lambda: sd.update({"dog": 1, "bad": 2}), lambda: sd[["cow", "bad"]]):
        with pytest.raises(ValueError, match="'bad'"):
            act()
    assert dict(sd.hard) == {"cat": 1.0}


def test_whole_numbers_that_the_dtype_cannot_hold_are_refused():
    def large(words: list[str]) -> Any:
        return [[2**24 + len(word)] for word in words]

    with pytest.raises(
        ValueError, match="the encoder large holds the integer 16777217, which float32 cannot"
    ):
        SoftDict({"a": 1.0}, encoder=large, dtype=np.float32)
    with pytest.raises(
        ValueError, match="the value_encoder large holds the integer 16777217, which float32 cannot"
    ):
        SoftDict({0: "a"}, value_encoder=large, dtype=np.float32)
    assert SoftDict({"a": 1.0}, encoder=large).key_vectors.tolist() == [[16777217]]
    assert SoftDict({"ab": 1.0}, encoder=large, dtype=np.float32).key_vectors.dtype == np.float32


def test_vectors_of_another_width_are_refused():
    sd = SoftDict({"a": 1.0}, encoder=lambda words: np.ones((len(words), len(words[0]))))
    with pytest.raises(ValueError, match="'bb'"):
        sd["bb"] = 2
    with pytest.raises(ValueError, match="'bb'"):
        sd["bb"]
    assert dict(sd.hard) == {"a": 1.0}


# ---- pickles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoder",
    [OneHot(["cat", "horse", "cow"]), CharNgrams(64, (2, 3)), lengths, Encodes(), Transforms()],
    ids=lambda encoder: getattr(encoder, "__name__", type(encoder).__name__),
)
def test_a_soft_dict_pickles_with_its_encoder(encoder):
    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=encoder, temperature=0.5, similarity="cosine")
    assert sd.encoder is encoder
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        new = pickle.loads(pickle.dumps(sd, protocol))
        assert new == sd
        assert (new["cow"], new.temperature, new.similarity) == (sd["cow"], 0.5, "cosine")
        new["cow"] = 3.0
        assert new["cow"] != sd["cow"]
    assert copy.deepcopy(sd)["cow"] == sd.copy()["cow"] == sd["cow"]


def test_a_value_encoder_pickles_too():
    sd = SoftDict({0: "cat", 1: "horse"}, value_encoder=CharNgrams(8))
    new = pickle.loads(pickle.dumps(sd))
    assert new[0.5].tolist() == sd[0.5].tolist()
    new[2] = "ox"
    assert list(new.hard.values()) == ["cat", "horse", "ox"]
