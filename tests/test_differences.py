"""Every difference from dict: one test for each row of its page in the docs, none besides.

Each test shows both sides: what a plain dict does, and what a SoftDict does in its place.
"""

from __future__ import annotations

import json
import math
import re
from collections import ChainMap, UserDict
from collections.abc import ItemsView, KeysView, MutableMapping, ValuesView
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softdict import SoftDict

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "differences-from-dict.md"


def rows(text: str) -> list[str]:
    """Return the ids in the first column of all tables of a page, in order."""
    return re.findall(r"^\| `([a-z-]+)` \|", text, re.M)


def lengths(things: list[Any]) -> list[list[float]]:
    """Encode things (m, 2), all but zebras."""
    if unknown := [thing for thing in things if thing == "zebra"]:
        raise KeyError(f"{unknown[0]} is unknown")
    return [[len(str(thing)), ord(str(thing)[0]) % 7] for thing in things]


def numbers() -> SoftDict:
    return SoftDict({0: 10, 1: 20, 2: 40})


def plane() -> SoftDict:
    return SoftDict({(1, 0): [1, 2], (0, 1): [3, 4]})


def words() -> SoftDict:
    return SoftDict({"cat": 1, "horse": 2}, encoder=lengths)


def labels() -> SoftDict:
    return SoftDict.from_arrays(np.eye(2), [10.0, 20.0], labels=["a", "b"])


# ---- the page and the tests are one ------------------------------------------------------------------


def test_page_every_row_has_its_test_and_every_test_its_row() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert len(found) == len(set(found))
    tests = [name for name in globals() if name.startswith("test_") and not name.startswith("test_page_")]
    assert tests == ["test_" + row.replace("-", "_") for row in found]


def test_page_no_row_escapes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    tables = sum(line == "| row | in dict | in SoftDict |" for line in lines)
    assert tables >= 1
    assert len(lines) == len(rows(text)) + 2 * tables  # two lines of a table are its head
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 4, line
    assert rows("| row | x |\n|---|---|\n| `a-b` | 1 |\n| `c` | 2 |\nno | `d` | row") == ["a-b", "c"]


# ---- asking is soft ----------------------------------------------------------------------------------


def test_getitem() -> None:
    assert {0: 10, 1: 20, 2: 40}[1] == 20
    sd = numbers()
    assert sd[1] != 20
    assert sd[1] == sd.lookup(1).value
    assert sd.hard[1] == 20


def test_get() -> None:
    assert {1: 20}.get(1, 5) == 20
    assert {1: 20}.get(2, 5) == 5
    sd = numbers()
    assert sd.get(1, 5) == sd[1] != 20
    assert sd.get(0.5, 5) == sd[0.5]
    assert sd.get("unknown", 5) == 5
    assert sd.at(min_score=-1).get(99, default=5) == 5
    assert sd.hard.get(0.5, 5) == 5
    with pytest.raises(TypeError):
        {1: 20}.get(2, default=5)  # type: ignore[call-overload]


def test_miss() -> None:
    with pytest.raises(KeyError):
        {1: 20}[0.5]  # type: ignore[index]
    assert 10 < numbers()[0.5] < 40
    assert 1 < words()["goat"] < 2
    for sd, unknown in ((numbers(), "goat"), (words(), "zebra"), (labels(), "c"), (SoftDict(), 1)):
        with pytest.raises(KeyError):
            sd[unknown]


def test_batch() -> None:
    with pytest.raises(TypeError):
        {1: 20}[[0.5, 1.5]]  # type: ignore[index]
    sd = numbers()
    assert sd[[0.5, 1.5]].shape == (2,)
    assert labels()[["a", "b", "a"]].shape == (3,)
    assert np.shape(plane()[[1, 0]]) == (2,)  # where keys are vectors, one of them is one query
    assert np.shape(plane()[[[1, 0]]]) == (1, 2)


def test_relative() -> None:
    sd = numbers()
    before, stored = sd[0], sd.hard[0]
    sd[5] = 99
    assert sd[0] != before
    assert sd.hard[0] == stored


def test_python_asks() -> None:
    sd = numbers()
    soft, stored = {k: sd[k] for k in sd}, {0: 10, 1: 20, 2: 40}
    assert soft != stored
    for made in (dict(sd), {**sd}, dict(ChainMap(sd))):  # type: ignore[arg-type]
        assert made == soft
    for made in (dict(sd.hard), {**sd.hard}, dict(ChainMap(sd.hard))):
        assert made == stored
    plain: dict[float, float] = {}
    plain |= sd
    assert plain == soft
    match sd:
        case {0.5: found}:
            assert found == sd[0.5]
        case _:
            pytest.fail("every number pattern matches")
    sd[1] += 1
    assert sd.hard[1] == soft[1] + 1
    sd.hard[1] += 1
    assert sd.hard[1] == soft[1] + 2


def test_missing() -> None:
    class Counting(dict[Any, Any]):
        def __missing__(self, key: Any) -> Any:
            return 0

    class Soft(SoftDict):
        def __missing__(self, key: Any) -> Any:
            return 0

    assert Counting()["unknown"] == 0
    for door in (Soft({1: 2}), Soft({1: 2}).hard):
        with pytest.raises(KeyError):
            door["unknown"]


def test_key_error() -> None:
    with pytest.raises(KeyError) as caught:
        {}["c"]
    assert caught.value.args == ("c",)
    sd = labels()
    for name in (lambda: sd.hard["c"], lambda: sd.pop("c"), lambda: sd.__delitem__("c")):
        with pytest.raises(KeyError) as caught:
            name()
        assert caught.value.args == ("c",)
    with pytest.raises(KeyError, match=r"'c' names no entry"):
        sd["c"]


# ---- keys --------------------------------------------------------------------------------------------


def test_numbers() -> None:
    assert list(map(repr, {1: 0, -0.0: 0})) == ["1", "-0.0"]
    sd = SoftDict([(1, 0), (-0.0, 0), (np.int64(2), 0), (np.float32(0.5), 0)])
    assert list(map(repr, sd)) == ["1.0", "0.0", "2.0", "0.5"]
    sd[1] = 5
    assert len(sd) == 4
    encoded = SoftDict({1: 0, -0.0: 0}, encoder=lengths)  # under an encoder numbers are labels, as in dict
    assert list(map(repr, encoded)) == ["1", "-0.0"]


def test_vectors() -> None:
    for key in ([1, 0], np.array([1, 0])):
        with pytest.raises(TypeError):
            dict([(key, 0)])
        sd = SoftDict([(key, 0)])
        assert str(list(sd)) == "[(1.0, 0.0)]"
        assert key in sd
        assert (1, 0) in sd
        assert sd.pop(key) == 0
    sd = plane()
    sd[(1, -0.0)] = [5, 6]
    assert len(sd) == 2
    assert [[1, 0], [0, 1]] not in sd  # two vectors are no key
    assert [0.5, 1.5] not in numbers()  # nor is a vector where keys are numbers
    with pytest.raises(TypeError):
        ["a"] in labels()  # noqa: B015


def test_bools() -> None:
    assert list(map(repr, {True: 0, 2: 0})) == ["True", "2"]
    sd = numbers()
    assert True in sd
    sd[True] = 21
    assert list(sd.items()) == [(0, 10), (1, 21), (2, 40)]
    del sd[True]
    assert True not in sd
    with pytest.raises(TypeError, match="True"):
        sd[True] = 21
    with pytest.raises(TypeError, match="True"):
        SoftDict({True: 0})
    assert list(SoftDict({True: 0}, encoder=lengths)) == [True]


def test_not_finite() -> None:
    nan = math.nan
    assert nan in {nan: 0}
    assert math.inf in {math.inf: 0}
    sd = numbers()
    for key in (nan, math.inf, -math.inf, 1e200):
        with pytest.raises(ValueError, match="expected"):
            sd[key] = 0
        assert key not in sd
        assert sd.pop(key, "none") == "none"
        with pytest.raises(KeyError):
            del sd[key]
    assert sd == numbers()


def test_integers() -> None:
    assert 2**53 + 1 in {2**53 + 1: 0}
    sd = numbers()
    with pytest.raises(ValueError, match=str(2**53 + 1)):
        sd[2**53 + 1] = 0
    sd[2**53] = 0
    assert 2**53 in sd
    assert 2**53 + 1 not in sd


def test_one_key_shape() -> None:
    assert len({1: 0, (1, 0): 0, (1, 0, 0): 0}) == 3
    for sd, key in ((numbers(), (1, 0)), (plane(), 1), (plane(), (1, 0, 0)), (plane(), (1,))):
        before = len(sd)
        with pytest.raises(ValueError, match="shape"):
            sd[key] = next(iter(sd.values()))
        assert key not in sd
        assert len(sd) == before


def test_need_vectors() -> None:
    assert {"text": 0, None: 1, ("a", 1): 2}
    for key in ("text", None, ("a", 1), frozenset(), 1j):
        for sd in (SoftDict(), numbers(), labels()):
            with pytest.raises(TypeError, match="add"):
                sd[key] = 0
            sd.add(key, 9.0 if sd == numbers() else [9.0, 9.0], 5)
            assert sd.hard[key] == 5
            sd[key] = 6  # once it has a vector, the name will do
            assert sd.hard[key] == 6
        assert key in SoftDict({key: 0}, encoder=lengths)
    with pytest.raises(TypeError, match="add"):
        {"text": 0} | labels()


def test_encoder_says_no() -> None:
    plain: dict[str, int] = {}
    plain["zebra"] = 0
    sd = words()
    with pytest.raises(KeyError, match="zebra is unknown"):
        sd["zebra"] = 0
    with pytest.raises(KeyError, match="zebra is unknown"):
        sd.setdefault("zebra", 0)
    assert list(sd) == ["cat", "horse"]


def test_number_labels() -> None:
    assert len({7: 0, (1, 0): 1}) == 2
    for sd, label, vector in ((numbers(), 7, 9.0), (plane(), 7, [9, 9]), (plane(), (7, 8), [9, 9])):
        before = len(sd)
        with pytest.raises(ValueError, match="label"):
            sd.add(label, vector, next(iter(sd.values())))
        assert len(sd) == before
    with pytest.raises(ValueError, match="label"):
        SoftDict.from_arrays([1.0, 2.0], [0, 0], labels=[7, 8])
    ids = SoftDict.from_arrays(np.eye(2), [0, 0], labels=[7, (1, 0)])  # beside vectors of labels they may
    assert 7 in ids
    with pytest.raises(TypeError, match="add"):
        ids[5.0, 5.0] = 0


def test_labels_name() -> None:
    sd = labels()
    assert sd[1, 0] == sd[np.array([1, 0])] == sd["a"]  # measured
    sd.add((1, 2), [5, 5], 30)
    assert sd[1, 2] == sd[np.array([5, 5])]  # a name
    with pytest.raises(KeyError):
        sd[1, 0]


def test_arrays_measure() -> None:
    array = np.array([1.0, 0.0])
    with pytest.raises(TypeError):
        {"a": 10}.pop(array)
    for sd in (labels(), words()):
        assert array not in sd
        assert sd.pop(array, "none") == "none"
        with pytest.raises(KeyError):
            sd.pop(array)
        with pytest.raises(KeyError):
            del sd[array]
        with pytest.raises(KeyError):
            sd.hard[array]
        assert math.isfinite(sd[array])
    with pytest.raises(TypeError, match="add"):
        words()[array] = 0


def test_rounded() -> None:
    assert list({0.1: 0}) == [0.1]
    sd = SoftDict({0.1: 0.1}, dtype=np.float32)
    rounded = float(np.float32(0.1))
    assert rounded != 0.1
    assert list(sd.items()) == [(rounded, rounded)]
    assert 0.1 in sd
    assert 0.1 + 1e-12 in sd
    with pytest.raises(ValueError, match="16777217"):
        sd[2**24 + 1] = 0


# ---- values ------------------------------------------------------------------------------------------


def test_one_kind() -> None:
    assert len({0: 1, 1: "text"}) == 2
    sd = numbers()
    for value in ("text", None, True, ["a"]):
        with pytest.raises(TypeError, match="numbers were expected"):
            sd[1] = value
    assert sd == numbers()
    objects = SoftDict({0: "text", 1: 1, 2: None})
    assert list(objects.values()) == ["text", 1, None]
    sd.clear()
    sd.add("seed", [1, 2, 3], "text")
    assert sd.hard["seed"] == "text"


def test_one_value_shape() -> None:
    assert len({0: 1, 1: [1], 2: [1, 2]}) == 3
    for sd, key, value in ((numbers(), 1, [1]), (plane(), (1, 0), 1), (plane(), (1, 0), [1, 2, 3])):
        before = list(map(repr, sd.values()))
        with pytest.raises(ValueError, match="shape"):
            sd[key] = value
        assert list(map(repr, sd.values())) == before


def test_floats() -> None:
    assert repr({0: 7}[0]) == "7"
    sd = SoftDict({0: 7})
    assert repr(sd.hard[0]) == "7.0"
    assert repr(sd.setdefault(1, 8)) == "8.0"
    assert repr(sd.setdefault(1, 9)) == "8.0"
    assert repr(sd.popitem()) == "(1.0, 8.0)"
    assert type(plane().hard[1, 0]) is np.ndarray
    assert plane().hard[1, 0].dtype == np.float64
    assert repr(SoftDict({0: "text", 1: 7}).hard[1]) == "7"  # as an object it stays


def test_finite_values() -> None:
    assert math.isnan({0: math.nan}[0])
    sd = numbers()
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"1\.0"):
            sd[1] = value
    assert sd == numbers()


def test_copies() -> None:
    value, thing = np.array([1.0, 2.0]), ["text"]
    assert {0: value}[0] is value
    sd = SoftDict({0: value})
    assert sd.hard[0] is not value
    value[0] = 99
    sd.hard[0][1] = 99
    next(iter(sd.values()))[1] = 99
    assert sd.hard[0].tolist() == [1, 2]
    assert SoftDict({0: thing}).hard[0] is thing


def test_setdefault_none() -> None:
    plain: dict[int, Any] = {0: 1}
    assert plain.setdefault(5) is None
    assert 5 in plain
    sd = numbers()
    with pytest.raises(TypeError, match="None"):
        sd.setdefault(5)
    assert 5 not in sd
    assert sd.setdefault(1) == 20
    assert SoftDict({0: "text"}).setdefault(5) is None


def test_fromkeys() -> None:
    assert dict.fromkeys([1]) == {1: None}
    with pytest.raises(TypeError):
        SoftDict.fromkeys([1])  # type: ignore[call-arg]
    sd = SoftDict.fromkeys([2, 1, 2], 5, temperature=3)
    assert list(sd.items()) == [(2, 5), (1, 5)]
    assert sd.temperature == 3


# ---- writing -----------------------------------------------------------------------------------------


def test_all_or_nothing() -> None:
    plain, bad = {0: 10}, [(0, 99), (1, 98), ([], 0)]
    with pytest.raises(TypeError):
        plain.update(bad)  # type: ignore[arg-type]
    assert plain == {0: 99, 1: 98}
    sd = numbers()
    for write in (sd.update, sd.__ior__, sd.hard.update):
        for entries in (bad, [(0, 99), (5, "text")], [(0, 99), 7]):
            with pytest.raises(TypeError):
                write(entries)
            assert sd == numbers()
            assert len(sd) == 3


def test_takes_vectors() -> None:
    source = SoftDict.from_arrays([[1, 0], [5, 5]], [1.0, 2.0], labels=["a", "b"])
    plain: dict[str, float] = {}
    plain.update(source)
    assert plain == {k: source[k] for k in source} != dict(source.hard)
    for taken in (SoftDict(source), SoftDict() | source, source.copy()):
        assert dict(taken.hard) == {"a": 1.0, "b": 2.0}
        assert taken.key_vectors.tolist() == [[1, 0], [5, 5]]
    target = words()
    target.update(source)  # the encoder is not asked
    assert target.key_vectors.tolist()[2:] == [[1, 0], [5, 5]]
    assert target.temperature == 1.0


def test_keywords() -> None:
    assert dict(temperature=2) == {"temperature": 2}
    assert len(SoftDict(temperature=2)) == 0
    assert SoftDict(temperature=2).temperature == 2
    with pytest.raises(TypeError):
        SoftDict(a=1)  # type: ignore[call-arg]
    sd = words()
    sd.update({"cat": 7}, ox=3)
    assert sd == {"cat": 7, "horse": 2, "ox": 3}
    known = labels()
    known.update(a=5)
    assert known.hard["a"] == 5
    for other in (labels(), numbers()):
        with pytest.raises(TypeError, match="add"):
            other.update(c=1)


def test_union() -> None:
    class Least(UserDict[Any, Any]):
        __ror__ = None  # type: ignore[assignment]

    with pytest.raises(TypeError):
        {0: 1} | Least({1: 2})  # type: ignore[operator]
    sd = numbers()
    for other in ({1: 5, 9: 6}, ChainMap({1: 5, 9: 6}), Least({1: 5, 9: 6}), SoftDict({1: 5, 9: 6}).hard):
        right = sd | other  # type: ignore[operator]
        assert type(right) is SoftDict
        assert list(right.items()) == [(0, 10), (1, 5), (2, 40), (9, 6)]
    left = {1: 5, 9: 6} | sd
    assert type(left) is SoftDict
    assert list(left.items()) == [(1, 20), (9, 6), (0, 10), (2, 40)]
    for wrong in (5, [(1, 5)]):  # these are refused, as in dict
        with pytest.raises(TypeError):
            sd | wrong
    sd |= [(1, 5)]  # and this is not, as in dict
    assert sd.hard[1] == 5


def test_subclass() -> None:
    class Plain(dict[Any, Any]):
        pass

    class Soft(SoftDict):
        pass

    assert type(Plain() | {}) is type(Plain().copy()) is dict
    sd = Soft({0: 1})
    for made in (sd | {1: 2}, {1: 2} | sd, sd.copy(), sd.at(temperature=0), Soft.fromkeys([1], 2)):
        assert type(made) is Soft


def test_deep_enough() -> None:
    array, thing = np.ones(2), ["text"]
    assert {0: array}.copy()[0] is array
    sd = SoftDict({(0, 1): array}, temperature=3, top_k=1)
    twin = sd.copy()
    assert not np.shares_memory(twin.value_vectors, sd.value_vectors)
    assert not np.shares_memory(twin.key_vectors, sd.key_vectors)
    assert (twin.temperature, twin.top_k) == (3, 1)
    assert SoftDict({0: thing}).copy().hard[0] is thing


def test_read_only(tmp_path: Any) -> None:
    np.save(tmp_path / "keys.npy", np.arange(3.0))
    sd = SoftDict.from_arrays(np.load(tmp_path / "keys.npy", mmap_mode="r"), [10, 20, 40])
    for write in (sd.popitem, sd.clear, lambda: sd.update({1: 5}), lambda: sd.__delitem__(1)):
        with pytest.raises(TypeError, match=r"sd\.copy\(\)"):
            write()
    assert sd == numbers()
    twin = sd.copy()
    twin[1] = 5
    assert twin.hard[1] == 5


# ---- comparing and looking ---------------------------------------------------------------------------


def test_equality() -> None:
    with pytest.raises(ValueError, match="ambiguous"):
        {0: np.ones(2)} == {0: np.ones(2)}  # noqa: B015
    assert {0: [1, 2]} != {0: (1, 2)}
    sd = plane()
    for values in ([1, 2], (1, 2), np.array([1.0, 2.0])):
        assert (sd == {(1, 0): values, (0, 1): [3, 4]}) is True
        assert ({(1, 0): values, (0, 1): [3, 4]} == sd) is True
    for values in ([1, 3], [1, 2, 3], 1, "text", None, [[1, 2]]):
        assert (sd == {(1, 0): values, (0, 1): [3, 4]}) is False
        assert (sd != {(1, 0): values, (0, 1): [3, 4]}) is True
    assert (sd == plane()) is True
    assert (sd == 5) is False


def test_vectors_count() -> None:
    a = SoftDict.from_arrays([[1, 0]], [5], labels=["x"])
    b = SoftDict.from_arrays([[0, 1]], [5], labels=["x"])
    assert dict(a.hard) == dict(b.hard)
    assert (a == b) is False
    assert (a == b.hard) is True  # a plain dict has no vectors
    assert (a == dict(b.hard)) is True
    assert (a == a.at(temperature=9, similarity="dot", top_k=1)) is True


def test_values_contain() -> None:
    value = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match="ambiguous"):
        value in {0: np.ones(2)}.values()  # noqa: B015
    sd = plane()
    assert value in sd.values()
    assert [3, 4] in sd.values()
    assert [1, 3] not in sd.values()
    assert ((1, 0), value) in sd.items()
    assert ((0, 1), value) not in sd.items()


def test_views() -> None:
    assert {0: 1}.keys().mapping[0] == 1
    sd = numbers()
    keys, values, items = sd.keys(), sd.values(), sd.items()
    for view, kind in ((keys, KeysView), (values, ValuesView), (items, ItemsView)):
        assert isinstance(view, kind)
        assert not hasattr(view, "mapping")
        assert not isinstance(view, type({}.keys()))
    sd[5] = 50
    assert (list(keys)[-1], list(values)[-1], list(items)[-1]) == (5, 50, (5, 50))
    assert (next(reversed(keys)), next(reversed(values)), next(reversed(items))) == (5, 50, (5, 50))
    assert keys & {1, 5, 7} == {1, 5}
    assert keys == {0, 1, 2, 5}
    assert items - {(1, 20)} == {(0, 10), (2, 40), (5, 50)}


def test_no_dict() -> None:
    assert json.dumps({0: 10}) == '{"0": 10}'
    sd = SoftDict({0: 10})
    assert not isinstance(sd, dict)
    assert isinstance(sd, MutableMapping)
    with pytest.raises(TypeError):
        json.dumps(sd)
    assert json.dumps(dict(sd.hard)) == '{"0.0": 10.0}'
    for unhashable in ({}, sd, sd.hard):  # none of them is a key, in dict or here
        with pytest.raises(TypeError):
            hash(unhashable)


def test_hard() -> None:
    hard = numbers().hard
    assert isinstance(hard, MutableMapping)
    for name in ("copy", "fromkeys", "__or__", "__ior__", "__ror__"):
        assert hasattr(dict, name)
        assert not hasattr(hard, name)
    assert type(dict(hard) | {5: 5}) is dict
    assert set(dir(MutableMapping)) - {"__abstractmethods__"} <= set(dir(hard))


def test_generic() -> None:
    assert dict[str, float]
    with pytest.raises(TypeError):
        SoftDict[str, float]  # type: ignore[misc]
