"""SoftDict: what its section of the design promises, sentence by sentence, and small print."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from collections import ChainMap
from collections.abc import MutableMapping
from fractions import Fraction
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from oracle import Lookup as Oracle
from oracle import agree, tolerance

import softdict
from softdict import Bilinear, InverseDistance, SoftDict

SETTINGS = ("similarity", "temperature", "weighting", "top_k", "min_score", "null_score")
LARGEST64 = math.sqrt(np.finfo(np.float64).max)


def lengths(words: list[Any]) -> Any:
    """Encode words (m, 2) by their length and first letter."""
    return [[len(str(w)), ord(str(w)[0]) % 7] for w in words]


def known_lengths(words: list[str]) -> Any:
    """Encode words, but not what holds a z."""
    for word in words:
        if "z" in word:
            raise KeyError(f"{word} is unknown")
    return lengths(words)


def numbered() -> SoftDict:
    return SoftDict({0: 10.0, 1: 20.0, 2: 40.0})


def vectored() -> SoftDict:
    return SoftDict({(1, 0): [1.0, 2.0], (0, 1): [3.0, 4.0], (2, 2): [5.0, -6.0]})


def worded() -> SoftDict:
    return SoftDict({"cat": 1.0, "horse": 2.0, "ox": 4.0}, encoder=lengths)


def labelled() -> SoftDict:
    sd = SoftDict()
    sd.add("a", [1.0, 0.0], 10.0)
    sd.add("b", [0.0, 1.0], 20.0)
    sd.add("c", [3.0, 3.0], 40.0)
    return sd


def number_labelled() -> SoftDict:
    sd = SoftDict()
    sd.add(7, [1.0, 0.0], 10.0)
    sd.add("b", [0.0, 1.0], 20.0)
    sd.add((1, 2), [3.0, 3.0], 40.0)
    return sd


def colored() -> SoftDict:
    return SoftDict({0: "red", 1: "green", 3: "blue"})


EXAMPLES = [numbered, vectored, worded, labelled, number_labelled, colored]


def expect(sd: SoftDict, query: Any, got: Any, **options: Any) -> None:
    """Assert that an answer is the oracle's for query vectors."""
    settings = {s: getattr(sd, s) for s in SETTINGS}
    values = sd.value_vectors.reshape(len(sd), -1)
    oracle = Oracle(query, sd.key_vectors, values, **settings, **options)
    want = oracle.value.reshape(np.shape(got))
    tol = oracle.tolerance(values.dtype).reshape(np.shape(got))
    agree(got, want, tol, "sd[query]", f"{sd!r} asked {query!r}")


# ---- three ways of naming ------------------------------------------------------------------------


@pytest.mark.parametrize("x", [1, 1.0, np.float64(1), np.int64(1), np.float32(1), np.array(1)])
def test_a_plain_number_is_named_by_the_float(x: Any) -> None:
    sd = SoftDict([(x, 5.0)])
    assert list(sd) == [1.0]
    assert type(next(iter(sd))) is float
    assert x in sd
    assert 1 in sd
    assert sd.key_vectors.shape == (1,)


@pytest.mark.parametrize(
    "x", [(1, 0), [1.0, 0.0], np.array([1, 0]), (1, -0.0), np.array([1, -0.0], np.float32)]
)
def test_a_vector_is_named_by_the_tuple_of_its_floats(x: Any) -> None:
    sd = SoftDict([((1, 0), 5.0)])
    sd[x] = 6.0
    assert list(sd) == [(1.0, 0.0)]
    assert [type(c) for c in next(iter(sd))] == [float, float]
    assert str(list(sd)) == "[(1.0, 0.0)]"  # no -0.0, no np.float64(...)
    assert x in sd
    assert sd.hard[x] == 6.0
    assert sd.pop(x) == 6.0


@pytest.mark.parametrize(
    "spellings",
    [
        [(0.0, 1.0), [0, 1], np.array([-0.0, 1])],
        [(2.5, -0.0), [2.5, 0], np.array([2.5, 0.0], np.float32)],
        [0, -0.0, np.float32(-0.0)],
    ],
)
def test_equal_numbers_are_one_key(spellings: list[Any]) -> None:
    for first in spellings:
        sd = SoftDict([(first, 0.0)])
        for i, spelling in enumerate(spellings):
            assert spelling in sd
            sd[spelling] = i
            assert sd.hard[first] == i
        assert len(sd) == 1
        assert "-0.0" not in str(list(sd))


def test_an_encoder_turns_any_object_into_a_vector() -> None:
    sd = worded()
    assert list(sd) == ["cat", "horse", "ox"]
    assert sd.key_vectors.tolist() == [[3, 1], [5, 6], [2, 6]]
    expect(sd, [4.0, ord("g") % 7], sd["goat"])
    assert "goat" not in sd
    expect(sd, [3.0, 1.0], sd["cat"])


def test_the_vector_may_stand_beside_the_name() -> None:
    sd = labelled()
    assert sd.add("d", [0.0, 0.0], 1.0) is None
    assert list(sd) == ["a", "b", "c", "d"]
    expect(sd, [3.0, 3.0], sd["c"])
    same = SoftDict.from_arrays(
        [[1, 0], [0, 1], [3, 3], [0, 0]], [10, 20, 40, 1], labels=["a", "b", "c", "d"]
    )
    assert same == sd
    scalars = SoftDict.from_arrays([1.0, 2.0], [5.0, 6.0], labels=["x", "y"])
    assert scalars.key_vectors.tolist() == [1.0, 2.0]
    expect(scalars, 1.0, scalars["x"])


def test_adding_again_overwrites_in_place() -> None:
    sd = labelled()
    sd.add("a", [9.0, 9.0], -1.0)
    assert list(sd.items()) == [("a", -1.0), ("b", 20.0), ("c", 40.0)]
    assert sd.key_vectors[0].tolist() == [9.0, 9.0]
    sd.update([("b", 1.0), ("c", 2.0), ("b", 3.0)])
    assert list(sd.items()) == [("a", -1.0), ("b", 3.0), ("c", 2.0)]
    pairs = SoftDict([(1, 1.0), (2, 2.0), (1, 3.0)])
    assert list(pairs.items()) == [(1.0, 3.0), (2.0, 2.0)]


def test_assigning_to_a_stored_name_keeps_its_vector() -> None:
    sd = labelled()
    sd["a"] = 11.0
    assert sd.key_vectors[0].tolist() == [1.0, 0.0]
    assert sd.hard["a"] == 11.0
    encoded = worded()
    encoded.add("cat", [9.0, 9.0], 0.0)  # not what the encoder would say
    encoded["cat"] = 3.0
    assert encoded.key_vectors[0].tolist() == [9.0, 9.0]
    expect(encoded, [9.0, 9.0], encoded["cat"])


def test_the_first_key_object_stays() -> None:
    sd = SoftDict()
    sd.add(1, [0.0, 1.0], 5.0)
    sd.add(True, [0.0, 2.0], 6.0)
    assert [type(k) for k in sd] == [int]
    encoded = SoftDict({1.0: 5.0}, encoder=lengths)
    encoded[1] = 6.0
    encoded.update({True: 7.0})
    assert str(list(encoded.items())) == "[(1.0, 7.0)]"


def test_an_encoder_encodes_every_key_numbers_too() -> None:
    sd = SoftDict({1: 10.0, 22: 20.0, (1, 2): 30.0}, encoder=lengths)
    assert list(sd) == [1, 22, (1, 2)]
    assert sd.key_vectors.tolist() == lengths([1, 22, (1, 2)])
    expect(sd, np.array(lengths([1])[0], float), sd[1])  # a label that is a number: it names
    expect(sd, [5.0, 5.0], sd[np.array([5.0, 5.0])])  # an array measures


def test_an_array_as_a_key_beside_an_encoder_is_refused() -> None:
    for key in (np.array([1.0, 2.0]), np.array(1.0)):
        with pytest.raises(TypeError, match="add"):
            worded()[key] = 1.0


def test_an_unknown_name_that_is_no_number_needs_a_vector() -> None:
    for sd in (SoftDict(), numbered(), vectored(), labelled()):
        for name in ("unknown", None, ("a", "b"), True):
            if name not in sd:
                with pytest.raises(TypeError, match="add"):
                    sd[name] = sd.value_vectors[0] if len(sd) else 1.0


def test_labels_that_are_numbers_do_not_stand_where_numbers_measure() -> None:
    for sd, vector, value in ((numbered(), 5.0, 1.0), (vectored(), [5.0, 5.0], [1.0, 1.0])):
        for label in (7, 7.5, np.float64(7), (7, 8)):
            before = list(sd)
            with pytest.raises((TypeError, ValueError), match="label"):
                sd.add(label, vector, value)
            assert list(sd) == before
        sd.add("seven", vector, value)  # text is welcome
        assert list(sd)[-1] == "seven"
    named = number_labelled()
    with pytest.raises((TypeError, ValueError)):
        named[(5.0, 5.0)] = 1.0
    with pytest.raises((TypeError, ValueError)):
        SoftDict.from_arrays([1.0, 2.0], [1, 2], labels=[1, 2])
    assert len(named) == 3


def test_labels_stand_beside_vectors() -> None:
    sd = vectored()
    sd.add("origin", [0.0, 0.0], [7.0, 7.0])
    sd[(9, 9)] = [8.0, 8.0]
    assert list(sd) == [(1, 0), (0, 1), (2, 2), "origin", (9, 9)]
    expect(sd, [0.0, 0.0], sd["origin"])
    expect(sd, [0.0, 0.0], sd[0, 0])
    expect(sd, [[0.0, 0.0], [1.0, 0.0]], sd[["origin", (1, 0)]])


def test_beside_own_vectors_an_encoder_takes_no_numbers() -> None:
    bulk = SoftDict.from_arrays([[1.0, 2.0]], [1.0], encoder=lengths)
    updated = SoftDict(encoder=lengths)
    updated.update(SoftDict({(1, 2): 1.0}))
    late = SoftDict({(1, 2): 1.0})
    late.encoder = lengths
    for sd in (bulk, updated, late):
        for number in ((3, 3), 7, 7.5):
            with pytest.raises(ValueError, match="label"):
                sd[number] = 2.0
            with pytest.raises(ValueError, match="label"):
                sd.update({"cat": 2.0, number: 2.0})
        assert list(sd) == [(1.0, 2.0)]
        sd["cat"] = 2.0  # text is welcome
        sd[1, 2] = 3.0  # and so is what is stored
        assert list(sd.items()) == [((1.0, 2.0), 3.0), ("cat", 2.0)]
        assert sd.key_vectors.tolist() == [[1, 2], lengths(["cat"])[0]]
        sd._store._check()
    encoded = SoftDict({(1, 2): 1.0}, encoder=lengths)  # here (1, 2) is a label
    with pytest.raises(ValueError, match="label"):
        encoded.update(SoftDict({(3, 3): 1.0}))
    assert list(encoded) == [(1, 2)]


def test_a_number_may_be_added_where_it_is_its_own_vector() -> None:
    sd = vectored()
    sd.add((1, 0), [1.0, 0.0], [9.0, 9.0])
    assert sd.hard[1, 0].tolist() == [9, 9]
    for other in ([1.0, 1.0], [0.0, 1.0]):
        with pytest.raises(ValueError, match=r"\(1, 0\)"):
            sd.add((1, 0), other, [8.0, 8.0])
    for no_name in ([1.0, 0.0], np.array([1.0, 0.0])):
        with pytest.raises(TypeError, match="hashable"):
            sd.add(no_name, [1.0, 0.0], [8.0, 8.0])
    assert sd.hard[1, 0].tolist() == [9, 9]
    assert len(sd) == 3


def test_add_may_come_first_and_decides_the_shapes() -> None:
    sd = SoftDict()
    sd.add("a", np.float32([1, 2]), np.float32([[1, 2, 3]]))
    assert (sd.key_vectors.shape, sd.value_vectors.shape) == ((1, 2), (1, 1, 3))
    assert sd.key_vectors.dtype == sd.value_vectors.dtype == np.float32
    for vector, value in (([1.0], [[1, 2, 3]]), (1.0, [[1, 2, 3]]), ([1.0, 2.0], [1, 2, 3]), ([1.0, 2.0], 1)):
        with pytest.raises(ValueError, match="'b'"):
            sd.add("b", vector, value)
    assert list(sd) == ["a"]
    plain = SoftDict()
    plain.add("a", 1.0, "text")
    plain.add("b", 2, None)
    assert plain.key_vectors.tolist() == [1, 2]
    assert plain.at(temperature=0)[[1.2, 9]] == ["text", None]


def test_deleting_and_adding_again_puts_the_entry_last() -> None:
    sd, plain = numbered(), {0.0: 10.0, 1.0: 20.0, 2.0: 40.0}
    for step, key in enumerate([1, 0, 1, 2, 1, 0, 0]):
        del sd[key], plain[key]
        sd[key] = plain[key] = float(step)
        sd[5 + step] = plain[5 + step] = -1.0
        assert list(sd.items()) == list(plain.items())


def test_ids_that_are_neighbors() -> None:
    sd = SoftDict([(np.float32(0), 1.0)])
    assert sd.key_vectors.dtype == np.float32
    sd[16777216], sd[16777217] = 2.0, 3.0
    assert list(sd) == [0.0, 16777216.0, 16777217.0]
    assert sd.at(temperature=0)[[16777216, 16777217]].tolist() == [2.0, 3.0]
    narrow = SoftDict({16777216: 1.0}, dtype=np.float32)
    with pytest.raises(ValueError, match="16777217"):
        narrow[16777217] = 2.0
    assert list(narrow) == [16777216.0]
    wide = SoftDict({2**53: 1.0})
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        wide[2**53 + 1] = 2.0
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        wide[np.int64(2**53 + 1)] = 2.0
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        SoftDict.from_arrays(np.array([1, 2**53 + 1]), [1, 2])
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        wide[2**53 + 1]
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        wide[1] = 2**53 + 1
    assert list(wide.items()) == [(2.0**53, 1.0)]


# ---- what is refused at the door -----------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_naming_the_entry(bad: float) -> None:
    sd = numbered()
    with pytest.raises(ValueError, match=r"nan|inf"):
        sd[bad] = 1.0
    with pytest.raises(ValueError, match=r"8\.0"):
        sd[8] = bad
    with pytest.raises(ValueError, match=r"9\.0"):
        sd.update([(8, 1.0), (9, bad)])
    with pytest.raises(ValueError, match="spot"):
        labelled().add("spot", [1.0, bad], 1.0)
    with pytest.raises(ValueError, match="spot"):
        labelled().add("spot", [1.0, 1.0], bad)
    with pytest.raises(ValueError, match=r"8\.0"):
        vectored()[8, 8] = [1.0, bad]
    with pytest.raises(ValueError, match="1"):
        SoftDict.from_arrays([[1.0, 2.0], [bad, 0.0]], [1.0, 2.0])
    with pytest.raises(ValueError, match="y"):
        SoftDict.from_arrays([1.0, 2.0], [1.0, bad], labels=["x", "y"])
    with pytest.raises(ValueError, match="spot"):
        SoftDict({"spot": 1.0}, encoder=lambda things: [[bad]])
    with pytest.raises(ValueError, match="expected"):
        sd[bad]
    with pytest.raises(ValueError, match="row 1"):
        sd[[0.0, bad]]
    with pytest.raises(ValueError, match="row 2"):
        vectored()[np.array([[0.0, 1.0], [1.0, 1.0], [2.0, bad]])]
    assert sd == numbered()


def test_components_whose_square_could_overflow_are_refused() -> None:
    limit = LARGEST64 / 2
    sd = SoftDict({0: 1.0})
    with pytest.raises(ValueError, match=r"7e\+153"):
        sd[7e153] = 2.0
    sd[limit * (1 - 1e-15)] = 2.0
    sd[-limit * (1 - 1e-15)] = 3.0
    assert sd.at(temperature=0)[-limit * (1 - 1e-15)] == 3.0
    with pytest.raises(ValueError, match="row 1"):
        sd[[1.0, 7e153]]
    four = SoftDict({(0.0, 0.0, 0.0, 0.0): 1.0})
    with pytest.raises(ValueError, match="expected"):
        four[0.0, 0.0, 0.0, limit / 1.99] = 1.0
    four[0.0, 0.0, 0.0, limit / 2.01] = 1.0
    narrow = math.sqrt(float(np.finfo(np.float32).max)) / 2
    for x in (narrow * 1.01, -narrow * 1.01):
        with pytest.raises(ValueError, match="row 1"):
            SoftDict.from_arrays(np.array([0.0, x], np.float32), [1.0, 2.0])
        with pytest.raises(ValueError, match="expected"):
            SoftDict({x: 1.0}, dtype=np.float32)
    assert len(SoftDict.from_arrays(np.array([0, narrow * 0.99], np.float32), [1.0, 2.0])) == 2
    with pytest.raises(ValueError, match="spot"):
        labelled().add("spot", [0.0, 1e200], 1.0)
    assert SoftDict({0: 1.7e308})[0] == 1.7e308  # values may be as large as they like


def test_bulk_loading_equal_vectors_names_the_rows_and_the_way_out() -> None:
    way_out = r'labels=\[f"row {i}" for i in range\(n\)\]'
    for keys, rows in (([5.0, 1.0, 5.0], "0 and 2"), ([[1, 0], [0, 1], [0, 1]], "1 and 2")):
        with pytest.raises(ValueError, match=way_out) as caught:
            SoftDict.from_arrays(keys, [1.0, 2.0, 6.0])
        assert rows in str(caught.value)
        n = len(keys)
        sd = SoftDict.from_arrays(keys, [1.0, 2.0, 6.0], labels=[f"row {i}" for i in range(n)])
        assert len(sd) == n
        assert sd.at(temperature=math.inf)[np.array(keys[0], float)] == 3.0
    with pytest.raises(ValueError, match="0 and 1"):
        SoftDict.from_arrays(np.array([0.0, -0.0]), [1.0, 2.0])
    with pytest.raises(ValueError, match="0 and 1"):  # equal once rounded
        SoftDict.from_arrays([1.0, 1.0 + 1e-12], [1.0, 2.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("labels", "error"),
    [(["x", "x"], ValueError), (["x"], ValueError), (["x", "y", "z"], ValueError), ([[], []], TypeError)],
)
def test_bad_labels_are_refused(labels: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"expected|hashable"):
        SoftDict.from_arrays([1.0, 2.0], [1.0, 2.0], labels=labels)


def test_an_update_with_a_bad_entry_changes_nothing() -> None:
    sd = numbered()
    for bad in [(8, "text"), (8, math.nan), (math.nan, 1.0), ((1, 2), 1.0), (8, [1.0]), ("x", 1.0)]:
        for entries in ([(0, 99.0), (7, 1.0), bad], [(7, 1.0), bad, (0, 99.0)]):
            with pytest.raises((TypeError, ValueError)):
                sd.update(entries)
            with pytest.raises((TypeError, ValueError)):
                sd |= entries
            assert list(sd.items()) == [(0.0, 10.0), (1.0, 20.0), (2.0, 40.0)]
    words = SoftDict({"a": 1.0}, encoder=known_lengths)
    with pytest.raises(KeyError, match="unknown"):
        words.update({"b": 1.0, "zoo": 2.0})
    assert list(words) == ["a"]


# ---- values --------------------------------------------------------------------------------------


def test_numbers_of_one_shape_blend() -> None:
    for values in ([1, 2, 3], [[1, 2], [3, 4], [5, 6]], np.arange(18.0).reshape(3, 2, 3)):
        sd = SoftDict(zip([0, 1, 2], values, strict=True))
        shape = np.shape(values)[1:]
        assert sd.value_vectors.shape == (3, *shape)
        assert np.shape(sd[0.5]) == shape
        assert sd[[0.5, 1.5]].shape == (2, *shape)
        assert sd[np.zeros(0)].shape == (0, *shape)
        expect(sd, 0.5, sd[0.5])
        expect(sd, [0.5, 1.5], sd[[0.5, 1.5]])


def test_one_query_with_scalar_values_gives_a_python_float() -> None:
    for sd in (numbered(), labelled(), SoftDict({0: np.float32(0.1)}), SoftDict({0: 3})):
        query = next(iter(sd))
        for temperature in (0, 1.0, math.inf):
            view = sd.at(temperature=temperature)
            assert type(view[query]) is float
            assert type(view.get(query)) is float
            assert type(view.lookup(query).value) is float
        assert type(sd.hard[query]) is float
        assert type(next(iter(sd.values()))) is float


def test_the_first_value_decides_the_kind() -> None:
    sd = numbered()
    for value in ("text", None, True, ["a"], {}):
        with pytest.raises(TypeError, match="expected"):
            sd[5] = value
    for wrong in ([1.0], [[1.0]], np.zeros((2, 2)), []):
        with pytest.raises((TypeError, ValueError), match="expected"):
            sd[5] = wrong
    with pytest.raises(ValueError, match=r"\(2,\)"):
        vectored()[5, 5] = [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"\(2,\)"):
        vectored()[5, 5] = 1.0
    with pytest.raises(ValueError, match="ragged"):
        SoftDict({0: [[1.0], [1.0, 2.0]]})
    assert sd == numbered()


@pytest.mark.parametrize("first", ["red", True, None, ["a", "b"], {"k": 1}, object()])
def test_anything_else_is_an_object_stored_as_it_is(first: Any) -> None:
    sd = SoftDict({0: first, 1: "green"})
    assert sd.hard[0] is first
    assert next(iter(sd.values())) is first
    cold = sd.at(temperature=0)
    assert cold[0.1] is first
    assert cold[[0.9, 0.1]][1] is first
    assert isinstance(cold[[0.9, 0.1]], list)
    assert cold[[]] == []
    assert sd.lookup(0.1).winner == 0.0
    assert sd.lookup(0.1).value is None
    with pytest.raises(TypeError) as caught:
        sd[0.1]
    for way_out in ("value_encoder", "temperature=0", "vote"):
        assert way_out in str(caught.value)
    assert sd.pop(0) is first


def test_at_temperature_0_the_earliest_of_a_tie_wins_an_object() -> None:
    sd = SoftDict({0: "left", 2: "right", 9: "far"}, temperature=0)
    assert sd[1] == "left"
    assert sd[[1, 1.5, 1]] == ["left", "right", "left"]


def test_objects_blend_through_a_value_encoder() -> None:
    sd = SoftDict({0: "cat", 1: "horse"}, value_encoder=lengths)
    assert sd.hard[0] == "cat"
    assert sd.value_vectors.tolist() == [[3, 1], [5, 6]]
    assert sd[0.5].tolist() == [4.0, 3.5]
    assert sd.at(temperature=0)[0.2].tolist() == [3, 1]
    numbers = SoftDict({0: 7, 1: 88}, value_encoder=lengths)  # then numbers are objects too
    assert numbers.hard[1] == 88
    assert type(numbers.hard[1]) is int
    assert numbers[0.5].shape == (2,)
    with pytest.raises(ValueError, match="expected"):
        SoftDict({0: "cat"}, value_encoder=lambda values: [[math.nan, 1.0]])


# ---- dtype ---------------------------------------------------------------------------------------


def test_without_dtype_numbers_bring_their_own() -> None:
    def dtypes(sd: SoftDict) -> list[str]:
        return [sd.key_vectors.dtype.name, sd.value_vectors.dtype.name]

    assert dtypes(numbered()) == ["float64", "float64"]
    for given, kept in (("f2", "float32"), ("f4", "float32"), ("f8", "float64"), ("i4", "float64")):
        keys, values = np.arange(3).astype(given), np.arange(3.0)
        assert dtypes(SoftDict.from_arrays(keys, values)) == [kept, "float64"]
        assert dtypes(SoftDict.from_arrays(values, keys)) == ["float64", kept]
        sd = SoftDict({(1.0, 2.0): keys})
        assert dtypes(sd) == ["float64", kept]
        assert sd[0.5, 0.5].dtype == kept  # answers have the values' dtype
        assert sd[np.zeros((2, 2), np.float32)].dtype == kept
        assert sd.get(np.zeros((2, 2))).dtype == kept


def test_wider_numbers_promote_the_store_and_rename_nothing() -> None:
    narrow = np.array([0.1, 0.2], np.float32)
    sd = SoftDict.from_arrays(narrow, narrow)
    names, values = list(sd), list(sd.values())
    assert names == narrow.tolist()
    sd[0.3] = 0.7
    assert [sd.key_vectors.dtype, sd.value_vectors.dtype] == [np.float64, np.float64]
    assert list(sd) == [*names, 0.3]
    assert list(sd.values()) == [*values, 0.7]
    assert names[0] in sd
    assert np.float32(0.1) in sd
    assert 0.1 not in sd
    assert sd.at(temperature=0)[np.float32(0.2)] == values[1]
    sd[np.float32(0.4)] = np.float32(1)  # narrower numbers change nothing
    assert sd.key_vectors.dtype == np.float64


def test_with_dtype_every_key_is_rounded_before_it_is_named() -> None:
    sd = SoftDict({0.1: 0.1}, dtype=np.float32)
    rounded = float(np.float32(0.1))
    assert list(sd.items()) == [(rounded, rounded)]
    assert 0.1 in sd
    assert sd.hard[0.1] == rounded
    sd[0.1 + 1e-12] = 5
    assert len(sd) == 1
    assert sd.key_vectors.dtype == sd.value_vectors.dtype == np.float32
    assert sd.lookup(0.1 + 1e-12, exclude_self=True).winner is None  # names the only entry
    bulk = SoftDict.from_arrays([[0.1, 0.2]], [[0.3]], dtype="float32")
    assert list(bulk) == [(rounded, float(np.float32(0.2)))]
    assert (0.1, 0.2) in bulk
    assert bulk[0.5, 0.5].dtype == np.float32
    wide = SoftDict.from_arrays(np.zeros((1, 2), np.float32), [1.0], dtype=np.float64)
    assert wide.key_vectors.dtype == np.float64


def test_close_keys_find_themselves_although_squares_underflow() -> None:
    for dtype, keys in (
        (np.float32, [1e-30, 2e-30, 3e-30]),
        (np.float64, [1e-200, 2e-200, 3e-200]),
        (np.float64, [5e-324, 1e-323, 0.0]),
    ):
        sd = SoftDict({k: i for i, k in enumerate(keys)}, temperature=0, dtype=dtype)
        assert [sd[k] for k in keys] == [0.0, 1.0, 2.0]
        assert sd[keys].tolist() == [0.0, 1.0, 2.0]
        vectors = SoftDict({(k, 1.0): i for i, k in enumerate(keys)}, temperature=0, dtype=dtype)
        assert [vectors[k, 1.0] for k in keys] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i4", "i8", "u2"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("way", ["memory", "map", "one by one"])
def test_arrays_of_every_kind_and_byte_order(kind: str, order: str, way: str, mapped: Any) -> None:
    dtype = np.dtype(order + kind)
    keys, values = np.array([[1, 0], [0, 1], [3, 2]]).astype(dtype), np.array([1, 2, 4]).astype(dtype)
    if way == "map":
        sd = SoftDict.from_arrays(mapped(keys, "keys"), mapped(values, "values"))
    elif way == "memory":
        sd = SoftDict.from_arrays(keys, values)
    else:
        sd = SoftDict(zip(keys, values, strict=True))
    wanted = np.float32 if kind in ("f2", "f4") else np.float64
    assert sd.key_vectors.dtype == sd.value_vectors.dtype == wanted
    assert sd.key_vectors.dtype.isnative
    assert list(sd.items()) == [((1.0, 0.0), 1.0), ((0.0, 1.0), 2.0), ((3.0, 2.0), 4.0)]
    assert sd.at(temperature=0)[keys].tolist() == [1, 2, 4]
    assert keys[2] in sd
    expect(sd, keys.astype(float), sd[keys])
    one = sd[keys[0]]
    assert type(one) is float
    assert one == float(wanted(one))  # in the values' dtype
    assert one == sd.partial(keys[0]).finish()
    assert sd[keys[:1]].dtype == wanted


def test_one_answer_is_in_the_dtype_of_the_values(mapped: Any) -> None:
    keys, values = np.float32([0, 1, 3]), np.float32([1, 2, 4])
    in_memory = SoftDict.from_arrays(keys, values)
    over_map = SoftDict.from_arrays(mapped(keys, "keys"), mapped(values, "values"))
    for settings in (
        {},
        {"temperature": 0},
        {"temperature": math.inf},
        {"weighting": "sparsemax"},
        {"top_k": 2},
    ):
        for sd in (in_memory.at(**settings), over_map.at(**settings)):
            for answer in (sd[0.3], sd.get(0.3), sd.lookup(0.3).value, sd.partial(0.3).finish()):
                assert type(answer) is float
                assert answer == float(np.float32(answer))


def test_values_and_keys_have_a_dtype_each() -> None:
    sd = SoftDict({np.float32(1): 2.0})
    assert [sd.key_vectors.dtype, sd.value_vectors.dtype] == [np.float32, np.float64]
    sd.update({2.5: np.float32(3)})
    assert [sd.key_vectors.dtype, sd.value_vectors.dtype] == [np.float64, np.float64]
    narrow = SoftDict({np.float32(1): np.float32(2)})
    narrow[np.float32(2)] = 1 / 3
    assert [narrow.key_vectors.dtype, narrow.value_vectors.dtype] == [np.float32, np.float64]
    assert narrow.hard[2] == 1 / 3  # promoted before it is stored
    narrow.update({np.float16(4): np.float32(1), 5.0: 1.0})
    assert narrow.key_vectors.dtype == np.float64
    both = SoftDict({np.float32(0.1): np.float32(1)}) | {0.1: 2.0}  # two keys: 0.1 has two spellings
    assert list(both) == [float(np.float32(0.1)), 0.1]


# ---- reading a query -----------------------------------------------------------------------------


def test_arrays_measure_where_keys_are_plain_numbers() -> None:
    sd = numbered()
    assert type(sd[np.array(0.5)]) is float
    expect(sd, 0.5, sd[np.array(0.5)])
    for m in (0, 1, 2, 5):
        batch = np.linspace(0, 1, m)
        assert sd[batch].shape == (m,)
        assert sd[batch[:, None]].shape == (m,)
        np.testing.assert_array_equal(sd[batch], sd[batch[:, None]])
        if m:
            expect(sd, batch, sd[batch])
    for wrong in (np.zeros((2, 2)), np.zeros((1, 2)), np.zeros((2, 1, 1)), np.zeros((0, 2))):
        with pytest.raises(ValueError, match="expected") as caught:
            sd[wrong]
        assert str(wrong.shape) in str(caught.value)
        assert "()" in str(caught.value)


def test_arrays_measure_where_keys_are_vectors() -> None:
    for sd in (vectored(), labelled(), worded(), number_labelled()):
        expect(sd, [0.5, 0.5], sd[np.array([0.5, 0.5])])
        for m in (0, 1, 2, 3):
            assert sd[np.zeros((m, 2))].shape == (m, *sd.value_vectors.shape[1:])
            assert sd[np.zeros((m, 2), int)].shape == (m, *sd.value_vectors.shape[1:])
        for wrong in (np.zeros(3), np.zeros(1), np.zeros(()), np.zeros((2, 3)), np.zeros((1, 1, 2)),
                      np.zeros(0), np.zeros((0, 3)), np.zeros((2, 1))):  # fmt: skip
            with pytest.raises(ValueError, match="expected") as caught:
                sd[wrong]
            assert str(wrong.shape) in str(caught.value)
            assert "(2,)" in str(caught.value)


def test_the_number_of_dimensions_never_the_length_decides() -> None:
    three = SoftDict({(1, 0, 0): 1.0, (0, 1, 0): 2.0, (0, 0, 1): 3.0})
    assert np.shape(three[np.ones(3)]) == ()
    assert np.shape(three[np.ones((3, 3))]) == (3,)
    assert np.shape(three[[1, 1, 1]]) == ()
    one = SoftDict({(1,): 1.0, (2,): 2.0})  # vectors of width 1 are no plain numbers
    assert list(one) == [(1.0,), (2.0,)]
    assert np.shape(one[np.ones(1)]) == ()
    assert np.shape(one[np.ones((2, 1))]) == (2,)
    with pytest.raises(ValueError, match=r"\(1,\)"):
        one[np.ones(2)]
    with pytest.raises(ValueError, match=r"\(1,\)"):
        one[1.0]


class ArrayLike:
    """An array of another library, as far as NumPy sees it."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.array, dtype=dtype)


def test_arrays_of_another_library_are_arrays() -> None:
    sd = vectored()
    expect(sd, [0.5, 0.5], sd[ArrayLike([0.5, 0.5])])
    expect(sd, [[0.5, 0.5], [1.0, 0.0]], sd[ArrayLike([[0.5, 0.5], [1, 0]])])
    expect(sd, [[0.5, 0.5], [1.0, 0.0]], sd[[ArrayLike([0.5, 0.5]), (1, 0)]])
    sd[ArrayLike([8, 8])] = ArrayLike([1, 2])
    assert list(sd)[-1] == (8.0, 8.0)
    assert ArrayLike([8, 8]) in sd
    assert sd.hard[8, 8].tolist() == [1, 2]
    with pytest.raises(TypeError, match="bool"):
        sd[ArrayLike([True, False])]
    assert ArrayLike([1.0, 0.0]) not in labelled()


@hypothesis.given(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.sampled_from(EXAMPLES))
@hypothesis.settings(deadline=None, max_examples=60)
def test_the_shape_alone_decides(shape: tuple[int, ...], example: Any) -> None:
    sd = example().at(temperature=0)
    one = sd.key_vectors.shape[1:]
    query = np.zeros(shape)
    single, batch = shape == one, shape[1:] == one and len(shape) == len(one) + 1
    if one == () and len(shape) == 2 and shape[1] == 1:
        batch = True
    if not (single or batch):
        with pytest.raises(ValueError, match="expected") as caught:
            sd[query]
        assert str(shape) in str(caught.value)
        return
    answer, seen = sd[query], sd.lookup(query)
    assert seen.weights.shape == ((len(sd),) if single else (shape[0], len(sd)))
    if example is colored:
        assert isinstance(answer, str if single else list)
    else:
        assert np.shape(answer) == (() if single else (shape[0],)) + sd.value_vectors.shape[1:]


@pytest.mark.parametrize("dtype", [bool, complex])
@pytest.mark.parametrize("example", EXAMPLES)
def test_boolean_and_complex_arrays_are_refused(example: Any, dtype: Any) -> None:
    sd = example()
    shape = (2, *sd.key_vectors.shape[1:])
    for array in (np.zeros(shape, dtype), np.zeros(shape[1:], dtype)):
        with pytest.raises(TypeError, match="expected"):
            sd.at(temperature=0)[array]


def test_an_array_is_never_a_name_and_never_encoded() -> None:
    def deaf(things: list[Any]) -> Any:
        assert not any(isinstance(thing, np.ndarray) for thing in things)
        return lengths(things)

    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=deaf)
    expect(sd, [9.0, 9.0], sd[np.array([9.0, 9.0])])
    expect(sd, [[9.0, 9.0], [3.0, 1.0]], sd[[np.array([9.0, 9.0]), "cat"]])
    named = number_labelled()
    expect(named, [1.0, 2.0], named[np.array([1, 2])])  # although (1, 2) is a label
    labels = SoftDict.from_arrays(np.array([5.0, 6.0]), [1.0, 2.0], labels=["x", "y"])
    expect(labels, 5.0, labels[np.array(5.0)])


def test_numbers_and_lists_of_them_are_read_as_arrays() -> None:
    sd = numbered()
    for query in (0.5, np.float64(0.5), np.float32(0.5)):
        assert sd[query] == sd[np.array(0.5)]
    for query in ([0.5, 1.5], (0.5, 1.5), (np.float64(0.5), 1.5), [[0.5], [1.5]], ((0.5,), [1.5])):
        assert sd[query].tolist() == sd[np.array([0.5, 1.5])].tolist()
    assert sd[1] == sd[1.0]
    vectors = vectored()
    for query in ([0.5, 2], (0.5, 2), (np.float32(0.5), np.int8(2))):
        assert vectors[query].tolist() == vectors[np.array([0.5, 2])].tolist()
    for query in ([[0.5, 2], [1, 1]], ((0.5, 2), (1, 1)), [(0.5, 2), [1, 1]]):
        assert vectors[query].tolist() == vectors[np.array([[0.5, 2], [1, 1]])].tolist()
    words = labelled()
    expect(words, [0.5, 2.0], words[[0.5, 2]])  # no label is a number: lists measure
    expect(words, [0.5, 2.0], words[0.5, 2])
    for wrong in (1.0, [1, 2, 3], (1,), [[1, 2, 3]]):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            words[wrong]


@pytest.mark.parametrize("example", [numbered, vectored, labelled, worded])
def test_ragged_lists_are_refused(example: Any) -> None:
    for ragged in ([[1, 0], [1]], ((1, 2, 3), (1, 2)), [[1, 0], 1]):
        with pytest.raises(ValueError, match="ragged"):
            example()[ragged]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_empty_list_is_a_batch_of_none(example: Any) -> None:
    sd = example().at(temperature=0)
    if sd.lookup(sd.key_vectors).value is None or example is colored:
        assert sd[[]] == []
    else:
        assert sd[[]].shape == (0, *sd.value_vectors.shape[1:])
        assert sd.get([]).shape == sd[[]].shape
    assert sd.lookup([]).weights.shape == (0, len(sd))


def test_where_a_label_is_a_number_numbers_are_names() -> None:
    sd = number_labelled()
    expect(sd, [1.0, 0.0], sd[7])
    expect(sd, [1.0, 0.0], sd[7.0])
    expect(sd, [3.0, 3.0], sd[1, 2])
    expect(sd, [[1.0, 0.0], [3.0, 3.0], [0.0, 1.0]], sd[[7, (1, 2), "b"]])
    expect(sd, [[1.0, 0.0], [1.0, 0.0]], sd[[7, 7]])
    for unknown in (8, (1.0, 0.0), (7, 7)):
        with pytest.raises(KeyError):
            sd[unknown]
        with pytest.raises(KeyError):
            sd[[7, unknown]]
        assert sd.get(unknown, -1.0) == -1.0
    del sd[7]
    expect(sd, [3.0, 3.0], sd[1, 2])  # a tuple of numbers is such a label as well
    del sd[1, 2]
    expect(sd, [1.0, 2.0], sd[1, 2])  # now numbers measure again


def test_any_other_list_is_a_batch_and_anything_else_is_a_name() -> None:
    sd = labelled()
    expect(sd, [[1.0, 0.0], [3.0, 3.0]], sd[["a", "c"]])
    expect(sd, [[1.0, 0.0], [0.5, 2.0]], sd[["a", [0.5, 2.0]]])
    expect(sd, [[1.0, 0.0], [0.5, 2.0]], sd[["a", (0.5, 2.0)]])
    expect(sd, [[1.0, 0.0]], sd[np.array(["a"])])
    expect(sd, [[1.0, 0.0], [3.0, 3.0]], sd[np.array(["a", "c"], dtype=object)])
    for unknown in ("d", None, ("a", "c"), True, frozenset()):
        with pytest.raises(KeyError):
            sd[unknown]
        with pytest.raises(KeyError):
            sd[["a", unknown]]
    words = worded()
    expect(words, [[3.0, 1.0], [4.0, 5.0]], words[["cat", "goat"]])
    expect(words, np.array(lengths([("a", "c")])[0], float), words["a", "c"])  # a tuple is one name
    with pytest.raises(KeyError):
        numbered()["cat"]


def test_bools_are_never_numbers() -> None:
    sd = SoftDict({0.5: 10.0, 2: 20.0})
    with pytest.raises(KeyError):
        sd[True]
    with pytest.raises(TypeError):
        sd[True] = 1.0
    with pytest.raises(TypeError):
        SoftDict({(True, False): 1.0})
    with pytest.raises((TypeError, KeyError)):
        sd[[True, False]]


def test_an_encoder_may_raise_key_error() -> None:
    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=known_lengths)
    with pytest.raises(KeyError, match="zoo is unknown"):
        sd["zoo"]
    with pytest.raises(KeyError, match="zoo is unknown"):
        sd[["cat", "zoo"]]
    with pytest.raises(KeyError, match="zoo is unknown"):
        sd["zoo"] = 1.0
    assert sd.get("zoo") is None
    assert sd.get("zoo", 7) == 7
    filled = sd.get(["cat", "zoo", "goat"], -1.0)
    assert filled[1] == -1.0
    assert filled[0] == sd["cat"]
    expect(sd, [[3.0, 1.0], [4.0, 5.0]], filled[[0, 2]])
    assert "zoo" not in sd
    assert sd == {"cat": 1.0, "horse": 2.0}


def test_with_an_exact_encoder_at_temperature_0_it_is_a_dict() -> None:
    words = ["the", "quick", "fox"]

    def strict(things: list[str]) -> Any:
        places = {word: i for i, word in enumerate(words)}
        return np.eye(3)[[places[thing] for thing in things]]

    sd = SoftDict({w: float(len(w)) for w in words}, encoder=strict, temperature=0)
    assert [sd[w] for w in words] == [3.0, 5.0, 3.0]
    with pytest.raises(KeyError):
        sd["dog"]
    assert sd.get("dog", "no") == "no"


# ---- asking --------------------------------------------------------------------------------------


def test_a_query_that_reaches_no_entry_is_a_key_error_in_one_line() -> None:
    sd = SoftDict({0: 10.0, 1: 20.0}, min_score=-1)
    expect(sd, 0.5, sd[0.5])
    for query in (9, 9.5, [9], np.array([0.5, 9])):
        with pytest.raises(KeyError) as caught:
            sd[query]
        assert "\n" not in caught.value.args[0]
        assert "get" in caught.value.args[0]
    batch = [0.5, 9, 0.5, 8, 7, 6, 0.5]
    with pytest.raises(KeyError) as caught:
        sd[batch]
    text = caught.value.args[0]
    assert "4 of 7" in text
    assert "1, 3, 4" in text
    assert "6" not in text.replace("4 of 7", "")  # the first three rows only


def test_get_gives_default_where_there_is_no_answer() -> None:
    sd = SoftDict({0: 10.0, 1: 20.0}, min_score=-1)
    assert sd.get(0.5) == sd[0.5]
    assert sd.get(9) is None
    assert sd.get(9, "anything") == "anything"
    assert sd.get(9, default=3) == 3
    assert sd.get([0.5, 9], -1).tolist() == [sd[0.5], -1.0]
    assert sd.get(np.array([9.0, 9.0]), math.nan).shape == (2,)
    assert sd.get([0.5, 0.5]).tolist() == sd[[0.5, 0.5]].tolist()
    with pytest.raises((TypeError, ValueError), match="default"):
        sd.get([0.5, 9])
    with pytest.raises((TypeError, ValueError), match="default"):
        sd.get([0.5, 9], "text")
    vectors = vectored().at(min_score=-1)
    filled = vectors.get([(1, 0), (99, 99)], [7, 8])
    assert filled[1].tolist() == [7.0, 8.0]
    assert vectors.get([(1, 0), (99, 99)], 5)[1].tolist() == [5.0, 5.0]
    with pytest.raises((TypeError, ValueError), match="default"):
        vectors.get([(1, 0), (99, 99)], [1, 2, 3])
    objects = colored().at(temperature=0, min_score=-1)
    assert objects.get([0, 99], None) == ["red", None]
    assert objects.get(99, "none") == "none"


def test_get_raises_for_what_is_no_query() -> None:
    for bad, error in ((np.zeros((2, 2)), ValueError), (math.nan, ValueError),
                       (np.array([True]), TypeError)):  # fmt: skip
        with pytest.raises(error):
            numbered().get(bad)
    assert numbered().get("cat", 5) == 5  # what [] answers with a KeyError


@pytest.mark.parametrize("size", [1, 1000])
def test_an_empty_dict_answers_every_question_with_key_error(size: int) -> None:
    sd = SoftDict()
    for query in (1.0, "name", [1.0] * size, np.zeros((size, 3)), [], np.zeros((size, 2, 2))):
        with pytest.raises(KeyError):
            sd[query]
        with pytest.raises(KeyError):
            sd.lookup(query)
        with pytest.raises(KeyError):
            sd.calibrate(2, query)
        assert sd.get(query) is None
        assert sd.get(query, 5) == 5
    with pytest.raises(KeyError):
        sd.self_attention()
    with pytest.raises(KeyError):
        sd.calibrate(2)
    with pytest.raises(KeyError):
        sd.hard[1.0]
    assert not sd
    assert list(sd) == []
    assert sd == {}
    assert 1.0 not in sd


def test_a_dict_that_becomes_empty_forgets() -> None:
    for empty in (SoftDict.clear, lambda sd: [sd.popitem() for _ in list(sd)],
                  lambda sd: [sd.pop(k) for k in list(sd)]):  # fmt: skip
        sd = SoftDict.from_arrays(np.zeros((1, 2), np.float32), np.ones(1, np.float32))
        view = sd.at(temperature=0)
        empty(sd)
        sd[0] = "text"
        assert view[0] == "text"
        empty(view)
        sd.add("label", [1.0, 2.0, 3.0], [1.0, 2.0])
        assert sd.key_vectors.shape == (1, 3)
        assert sd.key_vectors.dtype == np.float64
        empty(sd)
        sd.add(7, [1.0], 5.0)
        assert sd[7] == 5.0
        narrow = SoftDict({0.1: 0.1}, dtype=np.float32)
        empty(narrow)
        narrow[0.1, 0.2] = [0.1]
        assert narrow.key_vectors.dtype == narrow.value_vectors.dtype == np.float32
        assert narrow.key_vectors.shape == (1, 2)


def test_a_repr_shows_similarity_and_temperature_and_is_short(mapped: Any) -> None:
    for example in EXAMPLES:
        for temperature in (0, 1.0, 0.25, math.inf):
            sd = example().at(temperature=temperature, similarity="laplacian")
            assert repr(sd).startswith("SoftDict({")
            assert f"similarity='laplacian', T={temperature:g})" in repr(sd)
            assert "(laplacian, T = " in str(sd.at(temperature=0).lookup(next(iter(sd))))
            assert repr(sd.hard).startswith("HardView({")
    assert repr(numbered()) == "SoftDict({0.0: 10.0, 1.0: 20.0, 2.0: 40.0}, similarity='gaussian', T=1)"
    many = SoftDict({i: np.arange(1000.0) for i in range(1000)})
    assert len(repr(many)) < 400
    assert "996 more" in repr(many)
    array = np.arange(5000.0)
    array[4000] = math.nan
    unread = SoftDict.from_arrays(mapped(array, "keys"), np.zeros(5000))
    assert "4996 more" in repr(unread)  # the map has not been read for it


# ---- settings ------------------------------------------------------------------------------------


def test_settings_are_attributes() -> None:
    sd = numbered()
    defaults = ("gaussian", 1.0, "softmax", None, None, None)
    names = ("similarity", "temperature", "weighting", "top_k", "min_score", "null_score")
    assert tuple(getattr(sd, name) for name in names) == defaults
    for name, value in zip(names, ("laplacian", 2.5, "sparsemax", 2, -3.0, -1.0), strict=True):
        setattr(sd, name, value)
        assert getattr(sd, name) == value
        expect(sd, 0.7, sd[0.7])
    assert SoftDict({0: 1.0}, temperature=3, top_k=2).temperature == 3


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("temperature", -1, ValueError), ("temperature", math.nan, ValueError),
        ("temperature", [1.0, 2.0], TypeError), ("temperature", np.array([1.0]), TypeError),
        ("temperature", "warm", TypeError), ("temperature", None, TypeError),
        ("temperature", True, TypeError), ("similarity", "gausian", ValueError),
        ("similarity", 5, TypeError), ("weighting", "hardmax", ValueError),
        ("weighting", None, TypeError), ("top_k", 0, ValueError), ("top_k", -2, ValueError),
        ("top_k", 1.5, ValueError), ("top_k", True, TypeError), ("min_score", math.nan, ValueError),
        ("min_score", "low", TypeError), ("null_score", math.nan, ValueError),
    ],
)  # fmt: skip
def test_settings_are_checked_when_set(name: str, value: Any, error: type[Exception]) -> None:
    sd = numbered()
    before = getattr(sd, name)
    with pytest.raises(error, match=name):
        setattr(sd, name, value)
    with pytest.raises(error, match=name):
        sd.at(**{name: value})
    with pytest.raises(error, match=name):
        SoftDict({0: 1.0}, **{name: value})
    with pytest.raises(error, match=name):
        SoftDict.from_arrays([0.0], [1.0], **{name: value})
    assert getattr(sd, name) == before


def test_settings_are_plain_numbers_of_any_kind() -> None:
    for two in (2, 2.0, np.float32(2), np.int8(2), np.array(2.0), Fraction(2)):
        sd = SoftDict(temperature=two, top_k=two, min_score=two, null_score=two)
        assert (sd.temperature, sd.top_k, sd.min_score, sd.null_score) == (2, 2, 2, 2)
        types = [type(getattr(sd, name)) for name in ("temperature", "top_k", "min_score", "null_score")]
        assert types == [float, int, float, float]
    sd.top_k = sd.min_score = sd.null_score = None
    assert (sd.top_k, sd.min_score, sd.null_score) == (None, None, None)


def test_misspelled_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        numbered().at(temprature=1)
    with pytest.raises(TypeError, match="temprature"):
        SoftDict({0: 1.0}, temprature=1)


def test_min_score_top_k_and_null_score() -> None:
    sd = SoftDict({0: 0.0, 1: 1.0, 2: 3.0, 3: 4.0})
    assert sd.at(top_k=2, temperature=math.inf)[2.6] == 3.5
    assert sd.at(top_k=3, temperature=math.inf)[2.6] == 8 / 3
    assert sd.at(top_k=99)[2.6] == sd[2.6]
    assert sd.at(top_k=1)[1.5] == 1.0  # the earlier among equals
    assert sd.at(min_score=-0.5, temperature=math.inf)[1] == 4 / 3  # at the limit is not below it
    assert sd.at(min_score=-0.4999, temperature=math.inf)[1] == 1.0
    silent = sd.at(null_score=-1e9, temperature=0)
    assert silent[2.1] == 3.0
    nothing = sd.at(null_score=1.0, temperature=0)
    assert nothing[2] == 0.0  # zero is an answer
    expect(sd.at(null_score=-1.0), 0.3, sd.at(null_score=-1.0)[0.3])
    assert sd.at(null_score=-1.0, min_score=-1)[99] == 0.0  # the null alone: no KeyError


def test_a_view_has_other_settings_and_the_same_entries() -> None:
    for example in EXAMPLES:
        sd = example()
        view = sd.at(temperature=0, top_k=1)
        assert (view.temperature, view.top_k) == (0, 1)
        assert (sd.temperature, sd.top_k) == (1.0, None)
        assert isinstance(view, SoftDict)
        assert view == sd
        assert (view.encoder is None) == (sd.encoder is None)
        key, value = sd.popitem()
        assert key not in view
        del view[next(iter(view))]
        assert len(sd) == len(view) == 1
        name = next(iter(sd))
        view.hard[name] = value
        assert np.array_equal(sd.hard[name], value)
        view.clear()
        assert not sd
        sd.add("new", [1.0, 2.0], 5.0)
        assert view["new"] == 5.0
        view.temperature = 3.0
        assert sd.temperature == 1.0
        assert sd.at(top_k=2).at(temperature=2).top_k == 2


# ---- hard ----------------------------------------------------------------------------------------


def test_hard_is_a_live_writable_mutable_mapping() -> None:
    sd = numbered()
    hard = sd.hard
    assert isinstance(hard, MutableMapping)
    assert isinstance(sd, MutableMapping)
    assert not isinstance(sd, dict)
    sd[5] = 50.0
    assert hard[5] == 50.0
    hard[6] = 60.0
    assert 6 in sd
    assert hard.get(0.5) is None
    with pytest.raises(KeyError) as caught:
        hard[0.5]
    assert caught.value.args[0] == 0.5
    hard[1] += 1
    assert hard[1] == 21.0
    assert hard.pop(6) == 60.0
    hard.update({1: 0.0}, **{})
    assert dict(hard) == {0.0: 10.0, 1.0: 0.0, 2.0: 40.0, 5.0: 50.0}
    assert {**hard} == dict(hard)
    assert hard == sd.at(temperature=9).hard
    assert hard == sd
    assert sd == hard


def test_no_inherited_mixin_reaches_the_soft_lookup() -> None:
    names = (
        "pop popitem setdefault update keys values items clear copy "
        "__contains__ __eq__ __reversed__ __or__ __ror__ __ior__"
    )
    for name in names.split():
        assert getattr(SoftDict, name) is not getattr(MutableMapping, name, None)
    sd = numbered()
    assert list(sd.values()) == [10.0, 20.0, 40.0]
    assert list(sd.items()) == [(0.0, 10.0), (1.0, 20.0), (2.0, 40.0)]
    assert sd.setdefault(1, 5.0) == 20.0
    assert sd.pop(1) == 20.0
    assert sd.pop(0.5, "no") == "no"
    assert sd.popitem() == (2.0, 40.0)


def test_key_and_value_vectors_are_read_only() -> None:
    for sd in (numbered(), vectored(), labelled(), worded()):
        for array in (sd.key_vectors, sd.value_vectors):
            assert len(array) == len(sd)
            assert array.flags.writeable is False
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    assert numbered().key_vectors.shape == (3,)
    assert vectored().key_vectors.shape == (3, 2)
    assert vectored().value_vectors.tolist() == [[1, 2], [3, 4], [5, -6]]


def test_what_is_deleted_is_let_go_of() -> None:
    class Thing:
        pass

    sd = SoftDict({i: Thing() for i in range(9)})
    first, second = weakref.ref(sd.hard[1]), weakref.ref(sd.hard[2])
    del sd[1]
    sd[2] = "other"
    gc.collect()
    assert first() is second() is None


def test_deleted_rows_do_not_show() -> None:
    sd = SoftDict({i: float(i) for i in range(50)})
    for i in range(0, 50, 3):
        del sd[i]
    left = [float(i) for i in range(50) if i % 3]
    assert sd.key_vectors.tolist() == sd.value_vectors.tolist() == list(sd) == left
    expect(sd, [3.2, 40.0], sd[[3.2, 40.0]])
    sd[0] = -1.0
    assert sd.key_vectors.tolist() == [*left, 0.0]
    assert sd.at(temperature=0)[left].tolist() == left


# ---- nothing writable is shared ------------------------------------------------------------------


def test_what_was_handed_in_may_change() -> None:
    array, vector = np.array([1.0, 2.0]), np.array([5.0, 5.0])
    sd = SoftDict()
    sd[vector] = array
    sd.add("label", vector, array)
    sd.update({(7, 7): array})
    array[:], vector[:] = -1, -1
    assert list(sd) == [(5.0, 5.0), "label", (7.0, 7.0)]
    assert sd.value_vectors.tolist() == [[1, 2]] * 3
    assert sd.key_vectors.tolist() == [[5, 5], [5, 5], [7, 7]]
    keys, values = np.eye(2), np.ones((2, 3))
    bulk = SoftDict.from_arrays(keys, values)
    keys[:], values[:] = 9, 9
    assert list(bulk) == [(1.0, 0.0), (0.0, 1.0)]
    assert bulk.value_vectors.tolist() == [[1.0] * 3] * 2


def test_what_was_handed_out_does_not_change_and_changes_nothing() -> None:
    for door in (lambda d: d.hard[1, 0], lambda d: d[1, 0], lambda d: next(iter(d.values())),
                 lambda d: next(iter(d.items()))[1], lambda d: d.at(temperature=0)[1, 0],
                 lambda d: d.setdefault((1, 0), [0.0, 0.0]), lambda d: d.get((1, 0)),
                 lambda d: d.lookup((1, 0)).value, lambda d: d[[(1, 0), (0, 1)]]):  # fmt: skip
        sd = vectored()
        kept = door(sd)
        before = kept.copy()
        sd[1, 0] = [99.0, 99.0]
        sd[0, 1] = [98.0, 99.0]
        assert np.array_equal(kept, before)
        sd = vectored()
        handed = door(sd)
        if handed.flags.writeable:
            handed[...] = 7.0
        assert sd == vectored()


def test_a_kept_snapshot_does_not_change() -> None:
    sd = vectored()
    seen = sd.lookup((1, 0))
    before = copy.deepcopy((seen.value, seen.weights, seen.scores, seen.winner, str(seen)))
    sd[1, 0] = [99.0, 99.0]
    sd[5, 5] = [0.0, 0.0]
    sd.temperature = 9.0
    del sd[0, 1]
    after = (seen.value, seen.weights, seen.scores, seen.winner, str(seen))
    for a, b in zip(before, after, strict=True):
        assert np.array_equal(a, b)
    assert [record.value.tolist() for record in seen.top(1)] == [[1.0, 2.0]]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, SoftDict.copy, "pickle"])
@pytest.mark.parametrize("example", [numbered, vectored, worded, labelled, colored])
def test_copies_keep_order_settings_and_equality(example: Any, how: Any) -> None:
    sd = example().at(temperature=0.5, similarity="laplacian", top_k=2)
    twin = pickle.loads(pickle.dumps(sd)) if how == "pickle" else how(sd)
    assert twin == sd
    assert type(twin) is SoftDict
    assert list(twin) == list(sd)
    assert (twin.temperature, twin.similarity, twin.top_k) == (0.5, "laplacian", 2)
    assert not np.shares_memory(twin.key_vectors, sd.key_vectors)
    assert (twin.encoder is None) == (sd.encoder is None)
    size = len(sd)
    twin.popitem()
    twin.temperature = 7.0
    twin.hard[next(iter(twin))] = sd.hard[next(reversed(list(sd)))]
    assert (len(sd), sd.temperature) == (size, 0.5)
    assert sd == example()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_what_belongs_together_stays_together(how: Any) -> None:
    sd = SoftDict({"cat": 1.0}, encoder=lengths)
    one, view, hard = how((sd, sd.at(temperature=0), sd.hard))
    one["dog"] = 2.0
    assert list(one) == list(view) == list(hard) == ["cat", "dog"]
    assert list(sd) == ["cat"]
    assert one.encoder is lengths  # functions are copied by name
    seen = sd.lookup("goat")
    again = how(seen)
    assert (str(again), again.value, again.winner) == (str(seen), seen.value, seen.winner)


def test_a_copy_of_the_hard_view_is_a_copy() -> None:
    sd = worded()
    for how in (copy.copy, copy.deepcopy, lambda hard: pickle.loads(pickle.dumps(hard))):
        twin = how(sd.hard)
        assert twin == sd
        twin["cow"] = 5.0
        assert twin.pop("cat") == 1.0
        assert sd == worded()


def test_what_is_lent_outlives_the_next_write() -> None:
    sd = vectored()
    keys, values = sd.key_vectors, sd.value_vectors
    sd[1, 0] = [99.0, 99.0]
    sd.add("new", [4.0, 4.0], [0.0, 0.0])
    del sd[0, 1]
    assert sd.value_vectors.tolist() == [[99, 99], [5, -6], [0, 0]]
    assert not np.shares_memory(keys, sd.key_vectors) or keys.tolist() == [[1, 0], [0, 1], [2, 2]]
    assert values.flags.writeable is False


def test_deepcopy_copies_objects_and_copy_does_not() -> None:
    sd = SoftDict({0: ["text"]})
    assert copy.copy(sd).hard[0] is sd.hard[0]
    assert copy.deepcopy(sd).hard[0] is not sd.hard[0]
    assert copy.deepcopy(sd) == sd


# ---- equality and union --------------------------------------------------------------------------


def test_equality_is_a_bool() -> None:
    for example in EXAMPLES:
        assert (example() == example()) is True
        assert (example() != example()) is False
        assert (example() == dict(example().hard)) is True
        assert (dict(example().hard) == example()) is True
        assert (example() == {}) is False
        assert (example() != 5) is True
        assert (example() == example().at(temperature=9)) is True  # settings do not count
    assert (vectored() == {(1, 0): [1, 2], (0, 1): [3, 4], (2, 2): [5, -6]}) is True
    assert (vectored() == {(1, 0): [1, 2], (0, 1): [3, 4], (2, 2): [5, 6]}) is False
    assert (vectored() != {(1, 0): [1, 2], (0, 1): [3, 4], (2, 2): [5]}) is True
    assert (SoftDict({1: 1.0, 2: 2.0}) == SoftDict({2: 2.0, 1: 1.0})) is True
    assert (SoftDict() == {}) is True


def test_two_softdicts_are_equal_only_if_their_vectors_are() -> None:
    moved = labelled()
    moved.add("a", [1.5, 0.0], 10.0)
    assert (moved == labelled()) is False
    assert (moved != labelled()) is True
    assert moved == dict(labelled().hard)
    reordered = SoftDict()
    for name in ("c", "a", "b"):
        row = list(labelled()).index(name)
        reordered.add(name, labelled().key_vectors[row], labelled().value_vectors[row])
    assert reordered == labelled()


def test_union_is_that_of_dict() -> None:
    sd = numbered()
    both = sd | {1: 5.0, 9: 6.0}
    assert list(both.items()) == [(0.0, 10.0), (1.0, 5.0), (2.0, 40.0), (9.0, 6.0)]
    reflected = {1: 5.0, 9: 6.0} | sd
    assert list(reflected.items()) == [(1.0, 20.0), (9.0, 6.0), (0.0, 10.0), (2.0, 40.0)]
    assert type(both) is type(reflected) is SoftDict
    sd |= [(1, 7.0)]
    sd |= {8: 8.0}
    assert list(sd.items()) == [(0.0, 10.0), (1.0, 7.0), (2.0, 40.0), (8.0, 8.0)]
    for wrong in (5, None, [(1, 7.0)], "text"):
        with pytest.raises(TypeError):
            sd | wrong
        with pytest.raises(TypeError):
            wrong | sd
    for wrong in (5, None):
        with pytest.raises(TypeError):
            sd |= wrong


def test_softdicts_hand_over_vectors_and_values_never_blends() -> None:
    source = labelled()
    for taken in (SoftDict(source), SoftDict() | source, {} | source, source | SoftDict()):
        assert taken == source
        assert taken.key_vectors.tolist() == source.key_vectors.tolist()
    target = SoftDict({"z": 1.0, "a": 2.0}, encoder=lengths)
    target.update(source)
    assert list(target.items()) == [("z", 1.0), ("a", 10.0), ("b", 20.0), ("c", 40.0)]
    assert target.key_vectors.tolist() == [lengths(["z"])[0], [1, 0], [0, 1], [3, 3]]
    target |= SoftDict.from_arrays([[8, 8]], [8.0], labels=["h"])
    assert target.key_vectors[-1].tolist() == [8, 8]
    assert SoftDict(source.at(temperature=0)) == source
    encoded = SoftDict(worded())
    assert encoded.key_vectors.tolist() == worded().key_vectors.tolist()
    assert ({"a": 0.5} | source).hard["a"] == 10.0  # the label's vector comes from the SoftDict
    assert dict(SoftDict(colored()).hard) == dict(colored().hard)


def test_handed_over_to_a_dtype_keys_are_rounded_before_they_are_named() -> None:
    rounded = float(np.float32(0.1))
    source = SoftDict({5: 1.0, 0.1: 2.0, 0.1 + 1e-12: 3.0})
    for taken in (SoftDict(source, dtype=np.float32), SoftDict(dtype=np.float32) | source):
        assert list(taken.items()) == [(5.0, 1.0), (rounded, 3.0)]  # one name, first place, last value
        assert taken.key_vectors.dtype == taken.value_vectors.dtype == np.float32
        assert 0.1 in taken
        taken._store._check()
    labels = SoftDict.from_arrays([[0.1, 0.2], [0.1, 0.2 + 1e-12]], [0.1, 0.2], labels=["a", "b"])
    taken = SoftDict(labels, dtype=np.float32)
    assert list(taken) == ["a", "b"]  # labels are not rounded
    assert taken.key_vectors.tolist() == [[rounded, float(np.float32(0.2))]] * 2
    with pytest.raises(ValueError, match=r"3\.0"):
        SoftDict(SoftDict({1: 2.0, 3: 1e39}), dtype=np.float32)


def test_which_settings_are_kept() -> None:
    cold, warm = numbered().at(temperature=0.1, top_k=2), numbered().at(temperature=5.0)
    assert (cold | warm).temperature == 0.1
    assert (cold | warm).top_k == 2
    assert (warm | cold).temperature == 5.0
    assert (warm | cold).top_k is None
    assert (cold | {7: 1.0}).temperature == 0.1
    assert ({7: 1.0} | cold).temperature == 0.1
    assert cold.copy().temperature == 0.1
    assert cold.copy().top_k == 2
    assert SoftDict(cold).temperature == 1.0
    assert SoftDict(cold, temperature=3).temperature == 3
    warm.update(cold)
    warm |= cold
    assert (warm.temperature, warm.top_k) == (5.0, None)


def test_fromkeys_takes_settings() -> None:
    sd = SoftDict.fromkeys([3, 1, 3], 5.0, temperature=2.0)
    assert list(sd.items()) == [(3.0, 5.0), (1.0, 5.0)]
    assert sd.temperature == 2.0
    assert SoftDict.fromkeys("ab", 1.0, encoder=lengths) == {"a": 1.0, "b": 1.0}


def test_update_and_constructor_take_what_dict_takes() -> None:
    class Keyed:
        def keys(self) -> list[int]:
            return [1, 2]

        def __getitem__(self, key: int) -> float:
            return key * 10.0

    assert SoftDict(Keyed()) == {1: 10.0, 2: 20.0}
    assert SoftDict((k, k * 2.0) for k in range(3)) == {0: 0.0, 1: 2.0, 2: 4.0}
    assert SoftDict([[1, 2.0], [3, 4.0]]) == {1: 2.0, 3: 4.0}
    sd = SoftDict(encoder=lengths)
    sd.update(cat=1.0, dog=2.0)
    assert sd == {"cat": 1.0, "dog": 2.0}
    sd.update({"cat": 5.0}, ox=3.0)
    assert list(sd.items()) == [("cat", 5.0), ("dog", 2.0), ("ox", 3.0)]
    sd.update()
    for wrong, error in ((5, TypeError), ([1], TypeError), ([(1, 2, 3)], ValueError)):
        with pytest.raises(error):
            sd.update(wrong)
        with pytest.raises(error):
            SoftDict(wrong)


# ---- where Python asks for you -------------------------------------------------------------------


def test_where_python_asks_for_you_it_is_soft() -> None:
    sd = numbered()
    soft = {k: sd[k] for k in sd}
    assert soft[1] != 20.0
    assert dict(sd) == soft
    assert {**sd} == soft
    plain: dict[float, float] = {5.0: 5.0}
    plain |= sd
    assert plain == {5.0: 5.0, **soft}
    assert ChainMap(sd)[0.5] == sd[0.5]  # type: ignore[arg-type]
    match sd:
        case {0.25: answer}:
            assert answer == sd[0.25]
        case _:
            pytest.fail("match goes through get, so every number pattern matches")
    sd[1] += 1
    assert sd.hard[1] == soft[1] + 1


def test_the_plain_thing_goes_through_hard() -> None:
    sd = numbered()
    stored = {0.0: 10.0, 1.0: 20.0, 2.0: 40.0}
    assert dict(sd.hard) == stored
    assert {**sd.hard} == stored
    plain: dict[float, float] = {}
    plain |= sd.hard
    assert plain == stored
    assert ChainMap(sd.hard)[1] == 20.0  # type: ignore[arg-type, index]
    with pytest.raises(KeyError):
        ChainMap(sd.hard)[0.5]  # type: ignore[arg-type, index]
    match sd.hard:
        case {0.25: _}:
            pytest.fail("the hard view knows no 0.25")
        case {1: twenty}:
            assert twenty == 20.0
    sd.hard[1] += 1
    assert sd.hard[1] == 21.0


def test_the_class_docstring_carries_the_list() -> None:
    for word in ("dict(sd)", "{**sd}", "plain |= sd", "ChainMap", "match", "sd[k] += 1",
                 "dict(sd.hard)", "sd.hard[k] += 1"):  # fmt: skip
        assert word in (SoftDict.__doc__ or "")


# ---- exclude_self and self_attention -------------------------------------------------------------


def skipped(sd: SoftDict, row: int) -> Any:
    """Return the answer of `row`'s own vector with the entry left out, by the oracle."""
    return Oracle(sd.key_vectors[row], sd.key_vectors, sd.value_vectors, skip=[row])


def test_exclude_self_leaves_out_the_entry_that_the_query_names() -> None:
    sd = numbered()
    for query in (1, 1.0, np.array(1.0), np.float32(1)):
        oracle = skipped(sd, 1)
        answer = sd.lookup(query, exclude_self=True)
        agree(answer.value, oracle.value, oracle.tolerance(float), "exclude_self")
        assert answer.weights[1] == 0
        assert answer.scores[1] == -math.inf
    batch = sd.lookup([2, 0], exclude_self=True)
    assert (batch.weights == 0).tolist() == [[False, False, True], [True, False, False]]
    words = worded()
    assert words.lookup("ox", exclude_self=True).weights[2] == 0
    vectors = vectored()
    assert vectors.lookup(np.array([0, 1]), exclude_self=True).weights[1] == 0
    assert SoftDict({1: 1.0}).lookup(1, exclude_self=True).winner is None


def test_exclude_self_keeps_others_with_an_equal_vector() -> None:
    sd = SoftDict.from_arrays([[1, 1], [1, 1], [0, 0]], [1.0, 2.0, 4.0], labels=["x", "y", "z"])
    assert sd.lookup("x", exclude_self=True).weights[0] == 0
    assert sd.at(temperature=0).lookup("x", exclude_self=True).value == 2.0
    assert sd.at(temperature=0).lookup(["y", "x"], exclude_self=True).value.tolist() == [1.0, 2.0]
    everyone = sd.at(temperature=0).self_attention(exclude_self=True)
    assert everyone.value.tolist() == [2.0, 1.0, 1.5]


def test_exclude_self_needs_a_name() -> None:
    cases: list[tuple[Any, Any]] = [
        (numbered(), 0.5), (numbered(), [0, 0.5]), (vectored(), (5, 5)), (worded(), "goat"),
        (labelled(), np.array([1.0, 0.0])), (labelled(), (1.0, 0.0)), (labelled(), ["a", (1, 0)]),
        (number_labelled(), np.array([1.0, 0.0])),
    ]  # fmt: skip
    for sd, query in cases:
        with pytest.raises(ValueError, match="exclude_self"):
            sd.lookup(query, exclude_self=True)


def test_in_self_attention_every_entry_asks() -> None:
    equal = SoftDict.from_arrays([[1, 1], [1, 1], [0, 0]], [1.0, 2.0, 4.0], labels=["x", "y", "z"])
    for sd in (numbered(), vectored(), worded(), labelled(), number_labelled(), equal):
        everyone = sd.self_attention()
        n = len(sd)
        oracle = Oracle(sd.key_vectors, sd.key_vectors, sd.value_vectors)
        agree(everyone.value, oracle.value, oracle.tolerance(float), "self_attention")
        for i, (key, value) in enumerate({k: sd[k] for k in sd}.items()):
            tol = oracle.tolerance(float)[i]
            agree(everyone.value[i], value, tol, "self_attention in Python", key)
        assert everyone.weights.shape == (n, n)
        others = sd.self_attention(exclude_self=True)
        assert np.diag(others.weights).tolist() == [0.0] * n
        without = Oracle(sd.key_vectors, sd.key_vectors, sd.value_vectors, skip=list(range(n)))
        agree(others.value, without.value, without.tolerance(float), "self_attention without self")
    causal = numbered().self_attention(where=np.tri(3, dtype=bool))
    assert causal.value[0] == 10.0
    assert (causal.weights == 0).tolist() == [[False, True, True], [False, False, True], [False] * 3]


# ---- arrays and memory ---------------------------------------------------------------------------


def test_from_arrays_shares_only_what_nobody_can_write() -> None:
    keys, values = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    assert not np.shares_memory(SoftDict.from_arrays(keys, values).key_vectors, keys)
    view = keys[:]
    view.flags.writeable = False  # but its base can be written
    assert not np.shares_memory(SoftDict.from_arrays(view, values).key_vectors, keys)
    promised = SoftDict.from_arrays(keys, values, copy=False)
    assert np.shares_memory(promised.key_vectors, keys)
    assert np.shares_memory(promised.value_vectors, values)
    assert keys.flags.writeable  # nothing was done to it
    promised[0, 1] = 77.0
    promised[9, 9] = 78.0
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert promised.hard[0, 1] == 77.0
    frozen = np.arange(6.0).reshape(3, 2).copy()
    frozen.flags.writeable = False
    shared = SoftDict.from_arrays(frozen, values)
    assert np.shares_memory(shared.key_vectors, frozen)
    shared.add("new", [0.5, 0.5], 1.0)
    del shared[0, 1]
    assert frozen.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert not np.shares_memory(SoftDict.from_arrays(frozen, values, copy=True).key_vectors, frozen)


def test_from_arrays_takes_arrays_however_they_lie() -> None:
    wanted = [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)]
    keys = np.array(wanted)
    wide = np.zeros((6, 4))
    wide[::2, ::2] = keys
    for array in (np.asfortranarray(keys), wide[::2, ::2], keys[::-1][::-1], keys.T.copy().T):
        for copy_ in (None, True, False):
            sd = SoftDict.from_arrays(array, array, copy=copy_)
            assert list(sd) == wanted
            assert sd.value_vectors.tolist() == keys.tolist()
            assert sd.at(temperature=0)[array].tolist() == keys.tolist()
    alike = np.broadcast_to([1.0, 2.0], (3, 2))
    sd = SoftDict.from_arrays(alike, [1.0, 2.0, 6.0], labels="abc")
    assert sd["a"] == 3.0
    with pytest.raises(ValueError, match="0 and 1"):
        SoftDict.from_arrays(alike, [1.0, 2.0, 6.0])


def test_what_else_was_handed_in_may_change() -> None:
    buffer = np.zeros((1, 2))
    encoded = SoftDict({"a": 1.0}, encoder=lambda things: buffer)
    values = SoftDict({1: "a"}, value_encoder=lambda things: buffer)
    things, names = ["x", "y"], ["p", "q"]
    bulk = SoftDict.from_arrays([1.0, 2.0], things, labels=names)
    blended = SoftDict.from_arrays([1.0, 2.0], things, value_encoder=lambda some: [[1.0]] * len(some))
    buffer[:], things[0], names[0] = 7.0, "changed", "changed"
    assert encoded.key_vectors.tolist() == [[0, 0]]
    assert values.value_vectors.tolist() == [[0, 0]]
    assert list(bulk.items()) == [("p", "x"), ("q", "y")]
    assert list(blended.values()) == ["x", "y"]


def test_an_encoder_may_do_with_its_list_what_it_likes() -> None:
    def greedy(things: list[Any]) -> Any:
        vectors = lengths(things)
        things.clear()
        return vectors

    sd = SoftDict({"cat": 1.0, "horse": 2.0}, encoder=greedy)
    objects = SoftDict({1: "cat", 2: "horse"}, value_encoder=greedy)
    query = ["goat", "ox"]
    assert list(sd) == ["cat", "horse"]
    assert sd[query].shape == (2,)
    assert query == ["goat", "ox"]
    assert list(objects.values()) == ["cat", "horse"]


def test_from_arrays_of_nothing() -> None:
    sd = SoftDict.from_arrays(np.zeros((0, 3)), np.zeros(0))
    assert len(sd) == 0
    with pytest.raises(KeyError):
        sd[np.zeros(3)]
    sd[1] = "text"
    assert sd.hard[1] == "text"


def test_from_arrays_takes_objects() -> None:
    sd = SoftDict.from_arrays([0.0, 1.0], ["red", "blue"])
    assert dict(sd.hard) == {0.0: "red", 1.0: "blue"}
    sd = SoftDict.from_arrays([0.0, 1.0], ["cat", "horse"], value_encoder=lengths)
    assert sd[0.5].tolist() == [4.0, 3.5]


@pytest.mark.parametrize(
    ("keys", "values"),
    [(np.zeros((2, 2)), np.zeros(3)), (np.zeros((2, 2, 2)), np.zeros(2)), (np.zeros(()), np.zeros(1))],
)
def test_from_arrays_refuses_shapes_that_do_not_fit(keys: Any, values: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        SoftDict.from_arrays(keys, values)


@pytest.fixture
def mapped(tmp_path: Any, monkeypatch: Any) -> Any:
    """Return a function from an array to a read-only memory map, read in parts; blocks are small here."""
    monkeypatch.setattr("softdict._store.WHOLE", 0)
    monkeypatch.setattr(softdict._backend, "budget_mib", 1 / 64)

    def to_map(array: Any, name: str) -> Any:
        np.save(tmp_path / f"{name}.npy", array)
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    return to_map


def test_a_memory_map_is_not_read_at_construction(mapped: Any) -> None:
    n = 20000
    keys, values = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2), np.arange(n, dtype=float)
    for spoiled, what in ((keys, "key"), (values, "value")):
        before = spoiled[n - 5].copy()
        spoiled[n - 5] = np.nan
        sd = SoftDict.from_arrays(mapped(keys, f"k{what}"), mapped(values, f"v{what}"))
        assert len(sd) == n
        with pytest.raises(ValueError, match=f"row {n - 5}"):
            sd[1.0, 2.0]
        spoiled[n - 5] = before
    good = SoftDict.from_arrays(mapped(keys, "k"), mapped(values, "v"), temperature=0)
    assert good[2.0, 3.0] == 1.0
    assert good[[(2.0, 3.0), (2.0 * n - 2, 2.0 * n - 1)]].tolist() == [1.0, n - 1.0]
    assert (4.0, 5.0) in good
    assert good.hard[4.0, 5.0] == 2.0
    assert next(iter(good)) == (0.0, 1.0)
    in_memory = SoftDict.from_arrays(keys, values)
    softly = good.at(temperature=1.0)
    query = np.array([[3.0, 3.0], [777.0, 770.0]])
    agree(softly[query], in_memory[query], tolerance(float, 1, n), "memory maps")


def test_which_maps_are_read_at_construction(tmp_path: Any) -> None:
    bad = np.array([[0.0, 1.0], [math.nan, 3.0]])
    np.save(tmp_path / "bad.npy", bad)

    def load(mode: Any) -> Any:
        return np.load(tmp_path / "bad.npy", mmap_mode=mode)

    for view in (load("r"), load("r")[::-1], load("r").T, np.asarray(load("r"))):
        assert len(SoftDict.from_arrays(view, [1.0, 2.0])) == 2  # nobody can write, so it is shared
    for mode in ("r+", "c"):
        assert len(SoftDict.from_arrays(load(mode), [1.0, 2.0], copy=False)) == 2  # promised
        with pytest.raises(ValueError, match="row 1"):
            SoftDict.from_arrays(load(mode), [1.0, 2.0])  # somebody could write: copied, so read
    with pytest.raises(ValueError, match="row 1"):
        SoftDict.from_arrays(load("r"), [1.0, 2.0], copy=True)
    assert not np.load(tmp_path / "bad.npy")[0, 0]


def test_a_map_answers_as_its_copy_in_memory_does(mapped: Any) -> None:
    rng = np.random.default_rng(5)
    keys, values = rng.normal(size=(100, 2)), rng.normal(size=(100, 3))
    labels = [f"row {i}" for i in range(100)]
    queries = keys[:3] + 0.01
    for names in (None, labels):
        over_map = SoftDict.from_arrays(mapped(keys, "k"), mapped(values, "v"), names, dtype=None)
        in_memory = over_map.copy()
        assert over_map == in_memory
        assert list(over_map) == list(in_memory) == (names or list(map(tuple, keys.tolist())))
        for settings in ({}, {"temperature": 0}, {"temperature": math.inf}, {"weighting": "sparsemax"},
                         {"top_k": 3}, {"null_score": -0.1}, {"min_score": -0.1}):  # fmt: skip
            one, two = over_map.at(**settings), in_memory.at(**settings)
            options = {s: getattr(one, s) for s in SETTINGS}
            oracle = Oracle(queries, keys, values, **options)
            for sd in (one, two):
                agree(sd.get(queries, 0.0), oracle.value, oracle.tolerance(float), "over a map", sd)
            assert one.lookup(queries).winner == two.lookup(queries).winner
        assert over_map.self_attention().winner == in_memory.self_attention().winner
    objects = SoftDict.from_arrays(mapped(keys[:3], "k"), ["a", "b", "c"], temperature=0)
    assert objects[keys[:3]] == ["a", "b", "c"]
    assert objects.copy().popitem()[1] == "c"
    rounded = SoftDict.from_arrays(mapped(keys, "k"), values, dtype=np.float32)
    assert rounded.key_vectors.dtype == np.float32
    assert tuple(keys[7].tolist()) in rounded
    assert repr(over_map)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_map_answers_like_arrays_in_memory_to_the_last_bit(dtype: Any, tmp_path: Any) -> None:
    rng = np.random.default_rng(7)
    keys, values = rng.normal(size=(900, 40)).astype(dtype), rng.normal(size=(900, 3)).astype(dtype)
    maps = []
    for name, array in (("k", keys), ("v", values)):
        np.save(tmp_path / name, array)
        maps.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    queries = rng.normal(size=(50, 40)).astype(dtype)
    for similarity in ("gaussian", "laplacian", "cosine", "dot", "scaled_dot"):
        for settings in ({}, {"weighting": "entmax15"}, {"top_k": 3}, {"null_score": -1.0}):
            over_map, in_memory = (
                SoftDict.from_arrays(*arrays, similarity=similarity, **settings)
                for arrays in (maps, (keys, values))
            )
            for m in (1, 7, 50):
                assert over_map[queries[:m]].tobytes() == in_memory[queries[:m]].tobytes()


def test_equal_rows_of_a_map_are_found_when_a_name_is_needed(mapped: Any) -> None:
    keys = np.arange(5000.0)
    keys[4321] = keys[17]
    sd = SoftDict.from_arrays(mapped(keys, "keys"), mapped(np.arange(5000.0), "values"))
    assert len(sd) == 5000
    assert math.isfinite(sd[17.0])  # asking with numbers needs no name
    for use in (list, dict, lambda sd: 3.0 in sd, lambda sd: sd.hard[3.0], SoftDict.items, SoftDict):
        with pytest.raises(ValueError, match="17 and 4321"):
            for _ in use(sd):
                pass


def test_writing_to_a_mapped_dict_names_copy(mapped: Any) -> None:
    sd = SoftDict.from_arrays(mapped(np.arange(9.0), "keys"), mapped(np.ones((9, 2)), "values"))
    actions: list[Any] = [
        lambda: sd.update({1: [5.0, 5.0]}), lambda: sd.__setitem__(77, [5.0, 5.0]),
        lambda: sd.__delitem__(3), lambda: sd.pop(3), lambda: sd.popitem(), lambda: sd.clear(),
        lambda: sd.add("x", 1.0, [5.0, 5.0]), lambda: sd.hard.clear(),
        lambda: sd.setdefault(77, [5.0, 5.0]), lambda: sd.at(temperature=0).popitem(),
    ]  # fmt: skip
    for action in actions:
        with pytest.raises(TypeError, match=r"sd\.copy\(\)"):
            action()
        assert len(sd) == 9
    assert sd.pop(99, "no") == "no"
    for twin in (sd.copy(), pickle.loads(pickle.dumps(sd)), copy.deepcopy(sd), SoftDict(sd)):
        twin[77] = [5.0, 5.0]
        del twin[3]
        assert len(twin) == 9
        assert 77 in twin
    assert sd == SoftDict.from_arrays(np.arange(9.0), np.ones((9, 2)))
    assert len(sd | {77: [5.0, 5.0]}) == 10


# ---- ties ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "similarity",
    ["gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(0.5),
     Bilinear(np.eye(64) * 0.3), lambda q, k: q @ k.T],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_many_equal_keys_share_equally(similarity: Any, seed: int) -> None:
    n = 1003
    vector = np.random.default_rng(seed).normal(size=64).astype(np.float32)
    keys = np.repeat(vector[None], n, axis=0)
    labels = [f"row {i}" for i in range(n)]
    sd = SoftDict.from_arrays(keys, np.arange(n), labels, similarity=similarity, temperature=0)
    query = np.random.default_rng(seed + 10).normal(size=(2, 64)).astype(np.float32)
    seen = sd.lookup(np.vstack([query, vector[None]]))
    assert np.unique(seen.weights).tolist() == [1 / n]
    assert seen.winner == ["row 0"] * 3
    for temperature in (0, 1.0, math.inf):
        first = sd.at(top_k=1, temperature=temperature)
        assert first[query].tolist() == [0.0, 0.0]
        assert [len(t) for t in first.lookup(query).top(5)] == [1, 1]


# ---- partial answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0}, {"temperature": math.inf}, {"weighting": "sparsemax"},
     {"weighting": "entmax15"}, {"top_k": 2}, {"null_score": -1.0}, {"min_score": -2.0}],
)  # fmt: skip
def test_partial_answers_merge_to_the_whole(settings: Any) -> None:
    whole = SoftDict({i: [float(i * i), 1.0] for i in range(7)}, **settings)
    query = [0.4, 3.1, 6.2]
    slices = [(0, 2), (2, 3), (3, 7)]
    parts = []
    for start, stop in slices:
        part = SoftDict({i: [float(i * i), 1.0] for i in range(start, stop)}, **settings)
        parts.append(pickle.loads(pickle.dumps(part.partial(query, offset=start))))
    empty = SoftDict(**settings).partial(query)
    options = {s: getattr(whole, s) for s in SETTINGS}
    oracle = Oracle(query, whole.key_vectors, whole.value_vectors, **options)
    for merged in (
        parts[0] + parts[1] + parts[2],
        parts[2] + (parts[0] + parts[1]),
        empty + parts[1] + parts[2] + empty + parts[0],
        whole.partial(query),
        whole.partial(query) + empty,
    ):
        agree(merged.finish(), oracle.value, oracle.tolerance(float), "sd.partial", settings)
    one = SoftDict({0: 1.0, 1: 2.0}, **settings)
    assert type(one.partial(0.3).finish()) is float
    assert one.partial(0.3).finish() == one[0.3]


@pytest.mark.parametrize("temperature", [0, 1.0, math.inf])
@pytest.mark.parametrize("null_score", [None, 0.5])
def test_infinite_scores_leave_only_each_other_in_a_merge(
    temperature: float, null_score: Any, mapped: Any, monkeypatch: Any
) -> None:
    keys = np.array([0.0, 1.0, 5.0, 1.0, 7.0])
    values, labels = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), list("abcde")
    rules: dict[str, Any] = {
        "similarity": InverseDistance(0.0), "temperature": temperature, "null_score": null_score,
    }  # fmt: skip
    whole = SoftDict.from_arrays(keys, values, labels, **rules)
    query = [1.0, 0.0, 3.0]
    oracle = Oracle(query, keys, values, **rules)
    cuts = [(0, 1), (1, 2), (2, 4), (4, 5)]
    parts = [
        SoftDict.from_arrays(keys[a:b], values[a:b], labels[a:b], **rules).partial(query, offset=a)
        for a, b in cuts
    ]
    over_map = SoftDict.from_arrays(mapped(keys, "k"), mapped(values, "v"), labels, **rules)
    monkeypatch.setattr(softdict._backend, "budget_mib", 2**-14)  # two entries to a block
    for got in (
        whole[query],
        whole.partial(query).finish(),
        (parts[0] + parts[1] + parts[2] + parts[3]).finish(),
        (parts[3] + (parts[2] + parts[0]) + parts[1]).finish(),
        over_map[query],
    ):
        agree(got, oracle.value, oracle.tolerance(float), "infinite scores", rules)


def test_partial_refuses_what_cannot_merge() -> None:
    sd = numbered()
    with pytest.raises(ValueError, match="temperature"):
        sd.partial(1.0) + sd.at(temperature=2).partial(1.0)
    with pytest.raises(ValueError, match="expected"):
        sd.partial(1.0) + vectored().partial((1.0, 0.0))
    with pytest.raises(TypeError, match="value_encoder"):
        colored().partial(1.0)
    with pytest.raises(TypeError, match="weighting"):
        sd.at(weighting=lambda z: np.full_like(z, 1 / z.shape[1])).partial(1.0)
    with pytest.raises(TypeError):
        sd.partial(1.0) + 5
