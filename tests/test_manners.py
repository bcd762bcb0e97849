"""Manners: bad input gets a full answer and changes nothing; good input never gives NaN.

A full answer has four beats: what is wrong, with the value; what was expected; where; what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import oracle
import pytest
from hypothesis import assume, given, settings
from oracle import agree

from softdict import Bilinear, InverseDistance, SoftDict

NAN, INF = math.nan, math.inf
WIDE = Bilinear(np.ones((3, 2)))
MASKED = np.ma.array([1.0, 0.0], mask=[False, True])


def encode(words: list[Any]) -> Any:
    """Encode words, (m, 2)."""
    return [[len(str(w)), ord(str(w)[0]) % 7] for w in words]


def numbers() -> SoftDict:
    return SoftDict({0: 10.0, 1: 20.0, 2: 40.0}, temperature=2.0)


def vectors() -> SoftDict:
    return SoftDict({(1, 0): [1.0, 2.0], (0, 1): [3.0, 4.0]}, similarity="laplacian")


def plane() -> SoftDict:
    return vectors().at(similarity="gaussian", temperature=2.0)


def words() -> SoftDict:
    return SoftDict({"cat": 1.0, "horse": 2.0}, encoder=encode)


def labels() -> SoftDict:
    return SoftDict.from_arrays(np.eye(2), [10.0, 20.0], labels=["a", "b"])


def ids() -> SoftDict:
    return SoftDict.from_arrays(np.eye(2), [10.0, 20.0], labels=[7, 8])


def mixed() -> SoftDict:
    """Return an own vector beside an encoder."""
    return SoftDict.from_arrays([[1.0, 2.0]], [1.0], encoder=encode)


def objects() -> SoftDict:
    return SoftDict({0: "red", 1: "blue"})


def narrow() -> SoftDict:
    return SoftDict({0: 1.0}, dtype=np.float32)


def empty() -> SoftDict:
    return SoftDict()


def put(key: Any, value: Any) -> Callable[[SoftDict], Any]:
    return lambda sd: sd.__setitem__(key, value)


def ask(query: Any) -> Callable[[SoftDict], Any]:
    return lambda sd: sd[query]


def setting(name: str, value: Any) -> Callable[[SoftDict], Any]:
    return lambda sd: setattr(sd, name, value)


def load(*arrays: Any, **options: Any) -> Callable[[SoftDict], Any]:
    return lambda sd: SoftDict.from_arrays(*arrays, **options)


def make(entries: Any, **options: Any) -> Callable[[SoftDict], Any]:
    return lambda sd: SoftDict(entries, **options)


def encoding(encoder: Any) -> Callable[[SoftDict], Any]:
    """Ask for what is not stored, with another encoder."""

    def action(sd: SoftDict) -> Any:
        there = sd.at()
        there.encoder = encoder
        return there["goat"]

    return action


def raising(error: type[Exception]) -> Callable[[Any], Any]:
    def encoder(things: Any) -> Any:
        raise error("the encoder's own words")

    return encoder


#: A SoftDict, what is done to it, what that raises, and words that the text must hold.
Row = tuple[Callable[[], SoftDict], Callable[[SoftDict], Any], type[Exception], list[str]]

KEYS: list[Row] = [
    (numbers, put(NAN, 1.0), ValueError, ["nan", "finite"]),
    (numbers, put(-INF, 1.0), ValueError, ["-inf", "finite"]),
    (numbers, put(1e160, 1.0), ValueError, ["1e+160"]),
    (narrow, put(2.0**64, 1.0), ValueError, ["1.8446744073709552e+19"]),
    (numbers, put(2**53 + 1, 1.0), ValueError, ["9007199254740993", "text"]),
    (narrow, put(2**24 + 1, 1.0), ValueError, ["16777217", "float32", "text"]),
    (numbers, put(10**400, 1.0), ValueError, ["integer", "text"]),
    (numbers, put(10**5000, 1.0), ValueError, ["integer", "text"]),  # too long for Python to print
    (numbers, put(Fraction(10**400), 1.0), ValueError, ["key"]),
    (numbers, put([0, 1], 1.0), ValueError, ["(2,)", "()"]),
    (numbers, put([[0], [1]], 1.0), ValueError, ["(2, 1)"]),
    (numbers, put([], 1.0), TypeError, ["[]", "hashable"]),
    (numbers, put(None, 1.0), TypeError, ["None", "add"]),
    (vectors, put(True, [1.0, 1.0]), TypeError, ["True", "add"]),
    (vectors, put((True, True), [1.0, 1.0]), TypeError, ["True", "add"]),
    (numbers, put(np.array(["x"]), 1.0), TypeError, ["key"]),
    (vectors, put(MASKED, [1.0, 1.0]), TypeError, ["masked", "filled"]),
    (ids, put(9, 1.0), TypeError, ["9", "add"]),
    (ids, put(np.zeros(2), 1.0), TypeError, ["array", "add"]),
    (mixed, put((3, 3), 2.0), ValueError, ["(3, 3)", "label"]),
    (mixed, put(1, 2.0), ValueError, ["1", "label"]),
    (numbers, put((1, 2), 1.0), ValueError, ["(2,)", "()"]),
    (vectors, put(5.0, [1.0, 1.0]), ValueError, ["(2,)", "()"]),
    (vectors, put((1, 2, 3), [1.0, 1.0]), ValueError, ["(3,)", "(2,)"]),
    (vectors, put(np.zeros((2, 2)), [1.0, 1.0]), ValueError, ["(2, 2)"]),
    (vectors, put([[1, 2], [3]], [1.0, 1.0]), ValueError, ["ragged"]),
    (vectors, put(np.array([True, False]), [1.0, 1.0]), TypeError, ["bool"]),
    (vectors, put(np.array([1j, 0]), [1.0, 1.0]), TypeError, ["complex"]),
    (numbers, put("name", 1.0), TypeError, ["'name'", "add", "encoder"]),
    (empty, put("name", 1.0), TypeError, ["'name'", "add", "encoder"]),
    (labels, put("c", 1.0), TypeError, ["'c'", "add"]),
    (numbers, put(1j, 1.0), TypeError, ["1j", "add"]),
    (words, put(np.zeros(2), 1.0), TypeError, ["array", "add"]),
    (words, put(["list"], 1.0), TypeError, ["list", "hashable"]),
    (labels, put({}, 1.0), TypeError, ["{}", "hashable"]),
    (labels, lambda sd: sd.add("c", [1.0], 1.0), ValueError, ["'c'", "(1,)", "(2,)"]),
    (labels, lambda sd: sd.add("c", 1.0, 1.0), ValueError, ["'c'", "()", "(2,)"]),
    (labels, lambda sd: sd.add("c", [[1.0, 2.0]], 1.0), ValueError, ["'c'", "(1, 2)"]),
    (labels, lambda sd: sd.add("c", "text", 1.0), TypeError, ["'c'", "numbers"]),
    (labels, lambda sd: sd.add("c", None, 1.0), TypeError, ["'c'", "numbers"]),
    (labels, lambda sd: sd.add("c", [True, False], 1.0), TypeError, ["'c'", "True"]),
    (labels, lambda sd: sd.add("c", [NAN, 0.0], 1.0), ValueError, ["'c'", "nan"]),
    (labels, lambda sd: sd.add("a", [NAN, 0.0], 1.0), ValueError, ["'a'", "nan"]),
    (labels, lambda sd: sd.add(["c"], [0.0, 0.0], 1.0), TypeError, ["['c']", "hashable"]),
    (numbers, lambda sd: sd.add(7, 3.0, 1.0), ValueError, ["7", "label"]),
    (vectors, lambda sd: sd.add((7, 8), [3.0, 3.0], [1.0, 1.0]), ValueError, ["(7, 8)", "label"]),
    (ids, put((5.0, 5.0), 1.0), TypeError, ["(5.0, 5.0)", "add"]),
]

VALUES: list[Row] = [
    (numbers, put(5, NAN), ValueError, ["5.0", "nan"]),
    (numbers, put(1, INF), ValueError, ["1.0", "inf"]),
    (numbers, put(5, "text"), TypeError, ["5.0", "'text'"]),
    (numbers, put(5, None), TypeError, ["5.0", "None"]),
    (numbers, put(5, True), TypeError, ["5.0", "True"]),
    (numbers, put(5, [1.0]), ValueError, ["5.0", "(1,)", "()"]),
    (vectors, put((5, 5), 1.0), ValueError, ["(5.0, 5.0)", "()", "(2,)"]),
    (vectors, put((5, 5), [1.0, 2.0, 3.0]), ValueError, ["(5.0, 5.0)", "(3,)", "(2,)"]),
    (vectors, put((5, 5), [[1.0], [1.0, 2.0]]), ValueError, ["ragged"]),
    (vectors, put((5, 5), [1.0, NAN]), ValueError, ["(5.0, 5.0)", "nan"]),
    (numbers, put(5, 2**53 + 1), ValueError, ["9007199254740993"]),
    (narrow, put(5, 1e39), ValueError, ["5.0"]),
    (numbers, put(5, 10**400), ValueError, ["5.0", "integer"]),
    (numbers, put(5, Fraction(10**400)), ValueError, ["5.0"]),
    (numbers, put(5, 1j), TypeError, ["5.0", "1j"]),
    (numbers, put(5, np.array([1j])), TypeError, ["5.0"]),
    (numbers, put(5, []), TypeError, ["5.0", "[]"]),
    (vectors, put((5, 5), MASKED), TypeError, ["(5.0, 5.0)", "masked", "filled"]),
    (vectors, put((5, 5), [1.0, "text"]), TypeError, ["(5.0, 5.0)", "'text'"]),
    (vectors, put((5, 5), [1.0, True]), TypeError, ["(5.0, 5.0)", "True"]),
    (vectors, put((5, 5), np.zeros((0, 2))), ValueError, ["(5.0, 5.0)", "(0, 2)", "(2,)"]),
    (words, put("ox", INF), ValueError, ["'ox'", "inf"]),
    (labels, lambda sd: sd.add("a", [0.0, 0.0], "text"), TypeError, ["'a'", "'text'"]),
    (numbers, lambda sd: sd.setdefault(5), TypeError, ["5.0", "None"]),
    (numbers, lambda sd: sd.hard.__setitem__(5, "text"), TypeError, ["5.0", "'text'"]),
]

MANY: list[Row] = [
    (numbers, lambda sd: sd.update({0: 1.0, 5: "text"}), TypeError, ["5.0", "'text'"]),
    (numbers, lambda sd: sd.update([(0, 1.0), (NAN, 1.0)]), ValueError, ["nan"]),
    (numbers, lambda sd: sd.update([(0, 1.0), ((1, 2), 1.0)]), ValueError, ["(1.0, 2.0)", "(2,)"]),
    (numbers, lambda sd: sd.update(5), TypeError, ["5", "pairs"]),
    (numbers, lambda sd: sd.update(None), TypeError, ["None", "pairs"]),
    (numbers, lambda sd: sd.update([(0, 1.0), (1, 2, 3)]), ValueError, ["(1, 2, 3)", "pair"]),
    (numbers, lambda sd: sd.update([(0, 1.0), 7]), TypeError, ["7", "pair"]),
    (numbers, lambda sd: sd.update(vectors()), ValueError, ["(2,)", "()"]),
    (numbers, lambda sd: sd.update(objects()), TypeError, ["'red'"]),
    (vectors, lambda sd: sd.update(labels()), ValueError, ["'a'", "()", "(2,)"]),
    (numbers, lambda sd: sd.hard.update({0: 1.0, 5: "text"}), TypeError, ["5.0", "'text'"]),
    (numbers, lambda sd: sd | {5: "text"}, TypeError, ["5.0", "'text'"]),
    (numbers, lambda sd: {5: "text"} | sd, TypeError, ["5.0", "'text'"]),
    (empty, make({0: 1.0, 1: "text"}), TypeError, ["1.0", "'text'"]),
    (empty, make({0: 1.0, 1: [1.0]}), ValueError, ["()", "(1,)"]),
    (empty, make({0: 1.0, (1, 2): 1.0}), ValueError, ["()", "(2,)"]),
    (empty, make({(0,): 1.0, (1, 2): 1.0}), ValueError, ["(1,)", "(2,)"]),
    (empty, make(5), TypeError, ["5", "pairs"]),
    (empty, lambda sd: SoftDict.fromkeys([1, "x"], 5.0), TypeError, ["'x'", "add"]),
]

ARRAYS: list[Row] = [
    (empty, load([1.0, 2.0, 1.0], [1, 2, 3]), ValueError, ["0 and 2", "labels=["]),
    (empty, load([[1, 2], [1, 2]], [1, 2]), ValueError, ["0 and 1", "labels=["]),
    (empty, load([1.0, 2.0], [1.0]), ValueError, ["2", "1"]),
    (empty, load([1.0, 2.0], 5.0), (TypeError, ValueError), ["values"]),  # type: ignore[list-item]
    (empty, load([1.0, 2.0], None), (TypeError, ValueError), ["values"]),  # type: ignore[list-item]
    (empty, load(5.0, [1.0]), ValueError, ["()"]),
    (empty, load(np.zeros((1, 2, 3)), [1.0]), ValueError, ["(1, 2, 3)"]),
    (empty, load("ab", [1.0, 2.0]), TypeError, ["numbers"]),
    (empty, load(None, [1.0, 2.0]), TypeError, ["numbers"]),
    (empty, load([True, False], [1.0, 2.0]), TypeError, ["True"]),
    (empty, load(np.array([1j, 2]), [1.0, 2.0]), TypeError, ["complex"]),
    (empty, load([[1, 2], [1]], [1.0, 2.0]), ValueError, ["ragged"]),
    (empty, load([1.0, NAN], [1.0, 2.0]), ValueError, ["row 1", "nan"]),
    (empty, load([1.0, 2.0], [1.0, INF]), ValueError, ["inf"]),
    (empty, load([1.0, 1e200], [1.0, 2.0]), ValueError, ["row 1", "1e+200"]),
    (empty, load([1.0, 2.0], [1.0, 2.0], ["x", "x"]), ValueError, ["'x'"]),
    (empty, load([1.0, 2.0], [1.0, 2.0], ["x"]), ValueError, ["labels", "2", "1"]),
    (empty, load([1.0, 2.0], [1.0, 2.0], [{}, "x"]), TypeError, ["{}", "hashable"]),
    (empty, load([1.0, 2.0], [1.0, 2.0], [1, 2]), ValueError, ["label", "1"]),
    (empty, load([1.0, 2.0], [1.0, 2.0], 5), TypeError, ["labels", "5"]),
    (empty, load(np.array([1, 2**53 + 1]), [1.0, 2.0]), ValueError, ["9007199254740993"]),
    (empty, load([1.0, 2.0], [1.0, "text"]), TypeError, ["row 1", "'text'"]),
    (empty, load([1.0, 2.0], [[1.0], [1.0, 2.0]]), ValueError, ["values", "ragged"]),
    (empty, load([1.0, 2.0], [[1.0], [NAN]], ["x", "y"]), ValueError, ["'y'", "nan"]),
    (empty, load([10**400, 2.0], [1.0, 2.0]), ValueError, ["keys", "integer"]),
]

ENCODERS: list[Row] = [
    (empty, make({}, encoder=5), TypeError, ["5", "encoder"]),
    (empty, make({"a": 1.0, "b": 2.0}, encoder=lambda x: [[1.0]]), ValueError, ["encoder", "2"]),
    (empty, make({"a": 1.0, "b": 2.0}, encoder=lambda x: [1.0, 2.0]), ValueError, ["encoder", "(2,)"]),
    (empty, make({"a": 1.0}, encoder=lambda x: 5.0), ValueError, ["encoder", "()"]),
    (empty, make({"a": 1.0}, encoder=lambda x: [[[1.0]]]), ValueError, ["encoder", "(1, 1, 1)"]),
    (empty, make({"a": 1.0}, encoder=lambda x: x), TypeError, ["encoder", "'a'"]),
    (empty, make({"a": 1.0}, encoder=lambda x: None), TypeError, ["encoder", "numbers"]),
    (empty, make({"a": 1.0}, encoder=lambda x: [[NAN]]), ValueError, ["encode", "'a'", "nan"]),
    (empty, make({"a": 1.0}, encoder=lambda x: [[True]]), TypeError, ["encoder", "True"]),
    (words, lambda sd: sd.at().__class__({"a": 1.0}, encoder=lambda x: [[1, 2], [3]]), ValueError,
     ["ragged"]),
    (empty, make({1: "a", 2: "b"}, value_encoder=lambda x: [[1.0]]), ValueError, ["value_encoder", "2"]),
    (empty, make({1: "a"}, value_encoder=lambda x: x), TypeError, ["value_encoder", "'a'"]),
    (empty, make({1: "a"}, value_encoder=lambda x: [[NAN]]), ValueError, ["value", "nan"]),
    (empty, make({1: "a"}, value_encoder=5), TypeError, ["5", "encoder"]),
    (empty, make({1: "a"}, value_encoder=lambda x: 5.0), ValueError, ["value_encoder", "()"]),
    (empty, make({1: "a"}, value_encoder=lambda x: None), TypeError, ["value_encoder", "numbers"]),
    (words, encoding(lambda x: [[1.0, 2.0, 3.0]]), ValueError, ["'goat'", "(3,)", "(2,)"]),
    (words, encoding(lambda x: [1.0, 2.0]), ValueError, ["encoder", "(2,)", "(1, d)"]),
    (words, encoding(lambda x: [[1.0, 2.0]] * 2), ValueError, ["encoder", "(2, 2)", "(1, d)"]),
    (words, encoding(lambda x: None), TypeError, ["encoder", "numbers"]),
    (words, encoding(lambda x: {}), TypeError, ["encoder", "numbers"]),
    (words, encoding(lambda x: x), TypeError, ["encoder", "'goat'"]),
    (words, encoding(lambda x: [["1", "2"]]), TypeError, ["encoder", "'1'"]),
    (words, encoding(lambda x: np.array([[1j, 2]])), TypeError, ["encoder", "complex"]),
    (words, encoding(lambda x: [[NAN, 1.0]]), ValueError, ["'goat'", "nan"]),
    (words, encoding(lambda x: [[1e300, 1.0]]), ValueError, ["'goat'", "1e+300"]),
    (words, encoding(lambda x: [[10**400, 1.0]]), ValueError, ["encoder", "integer"]),
    (words, encoding(5), TypeError, ["5", "encoder"]),
    (empty, make({}, dtype="foo"), ValueError, ["foo", "float32"]),
    (empty, make({}, dtype={}), ValueError, ["{}", "float32"]),
    (empty, make({}, dtype=int), ValueError, ["int", "float32"]),
]  # fmt: skip

QUERIES: list[Row] = [
    (numbers, ask(NAN), ValueError, ["nan", "query"]),
    (numbers, ask([0.0, INF]), ValueError, ["inf", "row 1"]),
    (numbers, ask(1e200), ValueError, ["1e+200", "query"]),
    (numbers, ask(2**53 + 1), ValueError, ["9007199254740993", "query"]),
    (numbers, ask(np.zeros((2, 2))), ValueError, ["(2, 2)", "(m,)"]),
    (numbers, ask([[1, 2], [3]]), ValueError, ["ragged", "query"]),
    (vectors, ask(1.0), ValueError, ["()", "(2,)"]),
    (vectors, ask(np.zeros(3)), ValueError, ["(3,)", "(2,)"]),
    (vectors, ask(np.zeros((2, 3))), ValueError, ["(2, 3)", "(m, 2)"]),
    (vectors, ask(np.zeros((1, 2, 2))), ValueError, ["(1, 2, 2)", "(m, 2)"]),
    (numbers, ask(np.array([True])), TypeError, ["bool", "query"]),
    (numbers, ask(np.array([1j])), TypeError, ["complex", "query"]),
    (numbers, ask(np.array(["2020-01-01"], "M8[D]")), TypeError, ["datetime", "query"]),
    (labels, ask(["a", [[1.0, 0.0]]]), ValueError, ["batch"]),
    (labels, ask(["a", [1.0, 0.0, 0.0]]), ValueError, ["(3,)", "(2,)"]),
    (labels, ask({}), TypeError, ["{}", "hashable"]),
    (objects, ask(0), TypeError, ["'red'", "value_encoder", "temperature=0", "vote"]),
    (objects, lambda sd: sd.get(0), TypeError, ["'red'", "value_encoder"]),
    (objects, lambda sd: sd.partial(0), TypeError, ["'red'", "value_encoder"]),
    (objects, lambda sd: sd.value_vectors, TypeError, ["'red'", "value_encoder"]),
    (numbers, lambda sd: sd.at(min_score=-1).get([0, 99]), TypeError, ["default", "None"]),
    (numbers, lambda sd: sd.at(min_score=-1).get([0, 99], [1, 2, 3]), ValueError,
     ["default", "[1, 2, 3]", "()"]),
    (vectors, lambda sd: sd.at(min_score=-1).get([(0, 1), (9, 9)], [[7, 8]]), ValueError,
     ["default", "[[7, 8]]", "(2,)"]),
    (vectors, lambda sd: sd.at(min_score=-1).get([(0, 1), (9, 9)], "no"), TypeError, ["default", "'no'"]),
    (numbers, ask(10**400), ValueError, ["query", "integer"]),
    (numbers, ask(Fraction(10**400)), ValueError, ["query"]),
    (numbers, ask([0, 10**400]), ValueError, ["query", "integer"]),
    (vectors, ask(MASKED), TypeError, ["query", "masked", "filled"]),
    (numbers, ask(memoryview(bytearray(b"x"))), TypeError, ["memory", "hashable"]),
    (numbers, ask({1, 2}), TypeError, ["{1, 2}", "hashable"]),
    (numbers, ask([{}]), TypeError, ["{}", "hashable"]),
    (ids, ask(np.zeros(3)), ValueError, ["(3,)", "(2,)"]),
    (words, ask(np.zeros((2, 2, 2))), ValueError, ["(2, 2, 2)", "(m, 2)"]),
    (words, ask([3, 1, 2]), ValueError, ["(3,)", "(2,)"]),
    (numbers, lambda sd: sd.lookup(0.5, exclude_self=True), ValueError, ["exclude_self"]),
    (labels, lambda sd: sd.lookup(np.zeros(2), exclude_self=True), ValueError, ["exclude_self"]),
    (numbers, lambda sd: sd.lookup(0, where=[1, 0, 1]), TypeError, ["where", "bool"]),
    (numbers, lambda sd: sd.lookup(0, where=[True] * 2), ValueError, ["where", "(2,)", "(3,)"]),
    (numbers, lambda sd: sd.lookup(0, where=[]), ValueError, ["where", "(0,)", "(3,)"]),
    (numbers, lambda sd: sd.lookup(0, where=[[True], [True, False]]), ValueError, ["where", "ragged"]),
    (numbers, lambda sd: sd.lookup(0, where="x"), TypeError, ["where", "bool"]),
    (numbers, lambda sd: sd.lookup(0, where=np.array([None] * 3)), TypeError, ["where", "bool"]),
    (numbers, lambda sd: sd.lookup([0, 1], where=np.ones((3, 2), bool)), ValueError,
     ["where", "(3, 2)", "(2, 3)"]),
    (numbers, lambda sd: sd.self_attention(where=[True, False]), ValueError, ["where", "(2,)", "(3, 3)"]),
    (numbers, lambda sd: sd.lookup(0, bias=[[0.0], [1.0, 0.0]]), ValueError, ["bias", "ragged"]),
    (numbers, lambda sd: sd.lookup(0, bias=[True] * 3), TypeError, ["bias", "True"]),
    (numbers, lambda sd: sd.lookup(0, bias=[10**400, 0, 0]), ValueError, ["bias", "integer"]),
    (numbers, lambda sd: sd.lookup(0, exclude_self="no"), TypeError, ["exclude_self", "'no'"]),
    (numbers, lambda sd: sd.lookup(0, bias=[0.0, NAN, 0.0]), ValueError, ["bias", "NaN"]),
    (numbers, lambda sd: sd.lookup(0, bias=[0.0, INF, 0.0]), ValueError, ["bias", "inf"]),
    (numbers, lambda sd: sd.lookup(0, bias="text"), TypeError, ["bias", "numbers"]),
    (numbers, lambda sd: sd.lookup(0, bias=np.zeros((2, 3))), ValueError, ["bias", "(2, 3)", "(3,)"]),
    (numbers, lambda sd: sd.lookup(0).top(0), ValueError, ["0", "top"]),
    (numbers, lambda sd: sd.lookup(0).top("two"), TypeError, ["'two'", "top"]),
    (numbers, lambda sd: sd.lookup(0).top(True), TypeError, ["True", "top"]),
    (numbers, lambda sd: sd.lookup(0).top(None), TypeError, ["None", "top"]),
    (numbers, lambda sd: sd.lookup(0).top(1.5), ValueError, ["1.5", "top"]),
    (numbers, lambda sd: sd.lookup(0).top(INF), ValueError, ["inf", "top"]),
    (numbers, lambda sd: sd.lookup([0, 1]).top(-1), ValueError, ["-1", "top"]),
    (numbers, lambda sd: sd.calibrate(0.5), ValueError, ["0.5", "effective"]),
    (numbers, lambda sd: sd.calibrate(3.5, 1), ValueError, ["3.5", "effective"]),
    (numbers, lambda sd: sd.calibrate(NAN, 1), ValueError, ["nan", "effective"]),
    (numbers, lambda sd: sd.calibrate("two", 1), TypeError, ["'two'", "effective"]),
    (numbers, lambda sd: sd.calibrate(None, 1), TypeError, ["None", "effective"]),
    (numbers, lambda sd: sd.calibrate([2, 3], 1), TypeError, ["[2, 3]", "effective"]),
    (numbers, lambda sd: sd.calibrate(2, []), ValueError, ["quer"]),
    (numbers, lambda sd: sd.calibrate(2, [[1, 2], [3]]), ValueError, ["ragged", "query"]),
    (numbers, lambda sd: sd.calibrate(2, NAN), ValueError, ["nan", "query"]),
    (numbers, lambda sd: sd.calibrate(10**400, 1), ValueError, ["effective"]),
    (numbers, lambda sd: sd.at(top_k=2).calibrate(3, 1), ValueError, ["3", "effective", "1 to 2"]),
    (numbers, lambda sd: sd.at(min_score=-1).calibrate(1, 99), ValueError, ["1", "effective"]),
    (narrow, lambda sd: sd.calibrate(1), ValueError, ["1", "effective"]),
    (numbers, lambda sd: sd.partial(0, offset="x"), TypeError, ["'x'", "offset"]),
    (numbers, lambda sd: sd.partial(0, offset=None), TypeError, ["None", "offset"]),
    (numbers, lambda sd: sd.partial(0, offset=True), TypeError, ["True", "offset"]),
    (numbers, lambda sd: sd.partial(0, offset=-1), ValueError, ["-1", "offset"]),
    (numbers, lambda sd: sd.partial(0, offset=1.5), ValueError, ["1.5", "offset"]),
    (numbers, lambda sd: sd.partial(0) + sd.at(top_k=1).partial(0), ValueError, ["top_k"]),
    (numbers, lambda sd: sd.partial(0) + sd.partial([0, 1]), ValueError, ["m = 1", "m = 2"]),
    (numbers, lambda sd: sd.partial(0) + plane().partial((1, 0)), ValueError, ["d = 1", "d = 2"]),
    (numbers, lambda sd: sd.at(weighting=lambda z: z).partial(0), TypeError, ["weighting"]),
]  # type: ignore[list-item]  # fmt: skip

SETTINGS: list[Row] = [
    (numbers, setting("temperature", -1), ValueError, ["-1", "temperature"]),
    (numbers, setting("temperature", NAN), ValueError, ["nan", "temperature"]),
    (numbers, setting("temperature", "warm"), TypeError, ["'warm'", "temperature"]),
    (numbers, setting("temperature", [1, 2]), TypeError, ["[1, 2]", "temperature"]),
    (numbers, setting("temperature", np.ones(2)), TypeError, ["temperature"]),
    (numbers, setting("top_k", 0), ValueError, ["0", "top_k"]),
    (numbers, setting("top_k", 2.5), ValueError, ["2.5", "top_k"]),
    (numbers, setting("top_k", True), TypeError, ["True", "top_k"]),
    (numbers, setting("temperature", 10**400), ValueError, ["temperature"]),
    (numbers, setting("min_score", 10**400), ValueError, ["min_score"]),
    (numbers, setting("null_score", 10**400), ValueError, ["null_score"]),
    (numbers, setting("temperature", None), TypeError, ["None", "temperature"]),
    (numbers, setting("temperature", 1j), TypeError, ["1j", "temperature"]),
    (numbers, setting("top_k", "two"), TypeError, ["'two'", "top_k"]),
    (numbers, setting("top_k", INF), ValueError, ["inf", "top_k"]),
    (numbers, setting("top_k", NAN), ValueError, ["nan", "top_k"]),
    (numbers, setting("min_score", NAN), ValueError, ["nan", "min_score"]),
    (numbers, setting("min_score", "low"), TypeError, ["'low'", "min_score"]),
    (numbers, setting("null_score", NAN), ValueError, ["nan", "null_score"]),
    (numbers, setting("null_score", [0]), TypeError, ["[0]", "null_score"]),
    (numbers, setting("similarity", "cosin"), ValueError, ["'cosin'", "cosine"]),
    (numbers, setting("similarity", int), TypeError, ["int", "similarity"]),
    (numbers, setting("weighting", []), TypeError, ["[]", "weighting"]),
    (numbers, lambda sd: sd.at(encoder=encode), TypeError, ["'encoder'", "setting"]),
    (numbers, setting("null_score", INF), ValueError, ["inf", "null_score"]),
    (numbers, setting("similarity", None), TypeError, ["None", "similarity"]),
    (numbers, setting("weighting", "max"), ValueError, ["'max'", "softmax"]),
    (numbers, setting("weighting", 2), TypeError, ["2", "weighting"]),
    (numbers, lambda sd: sd.at(temprature=2), TypeError, ["temprature", "temperature"]),
    (numbers, lambda sd: sd.at(temperature=-2), ValueError, ["-2", "temperature"]),
    (numbers, make({}, temperature=-2), ValueError, ["-2", "temperature"]),
    (numbers, lambda sd: sd.at(similarity=lambda q, k: q)[0], ValueError, ["similarity", "(1, 3)"]),
    (numbers, lambda sd: sd.at(similarity=lambda q, k: None)[0], TypeError, ["similarity"]),
    (numbers, lambda sd: sd.at(weighting=lambda z: z[:, :1])[0], ValueError, ["weighting", "(1, 3)"]),
    (numbers, lambda sd: sd.at(weighting=lambda z: "x")[0], TypeError, ["weighting"]),
    (numbers, lambda sd: sd.at(similarity=Bilinear(np.eye(2)))[0], ValueError, ["Bilinear", "(2, 2)"]),
    (vectors, lambda sd: sd.at(similarity=WIDE)[1, 0], ValueError, ["(2,)", "(3,)"]),
    (vectors, lambda sd: sd.at(similarity=WIDE).self_attention(), ValueError, ["2", "3"]),
    (vectors, lambda sd: sd.at(similarity=WIDE).calibrate(1.5), ValueError, ["2", "3"]),
    (labels, lambda sd: sd.at(similarity=WIDE)["a"], ValueError, ["'a'", "2", "3"]),
    (numbers, lambda sd: sd.at(similarity=lambda q, k: "x")[0], TypeError, ["similarity"]),
    (numbers, lambda sd: sd.at(similarity=lambda q, k: (q @ k.T) > 0)[0], TypeError, ["similarity"]),
    (numbers, lambda sd: sd.at(weighting=lambda z: None)[0], TypeError, ["weighting"]),
    (numbers, lambda sd: sd.at(weighting=lambda z: z == z)[0], TypeError, ["weighting"]),
]  # fmt: skip

TABLE = [
    pytest.param(*row, id=f"{name}-{i}")
    for name, rows in (("key", KEYS), ("value", VALUES), ("many", MANY), ("arrays", ARRAYS),
                       ("encoder", ENCODERS), ("query", QUERIES), ("setting", SETTINGS))
    for i, row in enumerate(rows)
]  # fmt: skip

NUMPY_S_OWN = ["broadcast together", "inhomogeneous", "ambiguous", "could not convert", "reshape",
               "unsized", "has no len", "is not iterable", "ufunc", "zip()", "not supported between",
               "argument must be", "not understood", "concatenate", "Exceeds the limit", "too large",
               "not iterable", "is longer than", "positional argument"]  # fmt: skip


def state(sd: SoftDict) -> Any:
    """Return everything that a failure must leave alone."""
    names = ("similarity", "temperature", "weighting", "top_k", "min_score", "null_score")
    return (
        [getattr(sd, name) for name in names],
        [(type(key), key) for key in sd],
        [np.asarray(value, dtype=object).tolist() for value in sd.values()],
        sd.key_vectors.tolist(),
        sd.key_vectors.dtype,
        len(sd),
    )


@pytest.mark.parametrize(("make_sd", "action", "error", "needed"), TABLE)
def test_bad_input_gets_four_beats_and_changes_nothing(
    make_sd: Any, action: Any, error: Any, needed: list[str]
) -> None:
    sd = make_sd()
    view, before = sd.at(temperature=0), state(sd)
    with pytest.raises(error) as caught:
        action(sd)
    text = str(caught.value)
    for word in needed:
        assert word in text, text
    assert not any(phrase in text for phrase in NUMPY_S_OWN), text
    assert ", but " in text, text  # what is wrong, but what was expected
    assert "expected" in text, text
    beats = [beat for beat in text.replace("...", "").rstrip(".").split(". ") if beat]
    assert len(beats) >= 2, text  # and what to do, in a sentence of its own
    assert text.endswith((".", "]", ")")), text
    assert len(text) < 500, text  # a giant argument is not repeated in full
    sd._store._check()
    assert state(sd) == before
    assert view == sd


ONE_LINE: list[tuple[Callable[[], SoftDict], Callable[[SoftDict], Any], list[str]]] = [
    (empty, ask(1.0), ["empty"]),
    (empty, lambda sd: sd.lookup("x"), ["empty"]),
    (empty, lambda sd: sd.self_attention(), ["empty"]),
    (empty, lambda sd: sd.calibrate(2), ["empty"]),
    (empty, lambda sd: sd.popitem(), ["empty"]),
    (numbers, ask("name"), ["'name'", "encoder"]),
    (labels, ask("name"), ["'name'", "encoder"]),
    (ids, ask(9), ["9"]),
    (numbers, lambda sd: sd.at(min_score=-1)[99], ["99", "get"]),
    (numbers, lambda sd: sd.at(min_score=-1)[[99, 0, 98]], ["2 of 3", "0, 2", "get"]),
    (numbers, lambda sd: sd.at(min_score=-1)[np.full(5000, 99.0)], ["5000", "0, 1, 2", "get"]),
    (numbers, lambda sd: sd.at(min_score=-1)[np.array(99.0)], ["get"]),
    (labels, lambda sd: sd.at(min_score=-1)[np.full((2, 2), 99.0)], ["2 of 2", "get"]),
    (numbers, lambda sd: sd.hard[99], ["99"]),
    (numbers, lambda sd: sd.pop(99), ["99"]),
    (numbers, lambda sd: sd.__delitem__(99), ["99"]),
]


@pytest.mark.parametrize(("make_sd", "action", "needed"), ONE_LINE)
def test_a_key_error_says_it_in_one_line(make_sd: Any, action: Any, needed: list[str]) -> None:
    sd = make_sd()
    before = state(sd)
    with pytest.raises(KeyError) as caught:
        action(sd)
    (said,) = caught.value.args
    assert "\n" not in str(said)
    assert len(str(said)) < 300
    for word in needed:
        assert word in str(said)
    assert state(sd) == before


def test_what_an_encoder_raises_passes_through_and_changes_nothing() -> None:
    for error in (KeyError, RuntimeError, ZeroDivisionError):
        sd = words()
        before = state(sd)
        sd.encoder = raising(error)
        for action in (ask("goat"), put("goat", 1.0), lambda sd: sd.update({"cat": 5.0, "x": 1.0})):
            with pytest.raises(error, match="own words"):
                action(sd)
            assert state(sd) == before
        sd["cat"] = 1.0  # a stored name needs no encoder


def test_an_iterator_that_fails_in_the_middle_changes_nothing() -> None:
    def pairs() -> Any:
        yield 0, 99.0
        yield 9, 99.0
        raise RuntimeError("the pipe broke")

    sd = numbers()
    before = state(sd)
    for action in (sd.update, sd.__ior__, sd.hard.update):
        with pytest.raises(RuntimeError, match="pipe"):
            action(pairs())
        assert state(sd) == before


# ---- never NaN -----------------------------------------------------------------------------------

TINY, HUGE = 5e-324, 1.7976931348623157e308
TEMPERATURES = st.one_of(
    st.sampled_from([0, TINY, 1e-320, 1e-300, 1e-10, 1.0, 1e10, 1e300, 1e308, INF]), st.floats(1e-320, 1e308)
)
COMPONENTS = st.one_of(
    st.sampled_from([0.0, TINY, 1e-320, 1e-162, 1e-30, 1.0, 1 + 2**-52, 1e30, 1e100, 3.8e153]),
    st.floats(0, 3.8e153),
    st.floats(0, 3),
).flatmap(lambda x: st.sampled_from([x, -x]))
NARROW = st.one_of(
    st.sampled_from([0.0, 1e-45, 1e-38, 1e-30, 1.0, 1 + 2**-23, 1e10, 5.2e18]), st.floats(0, 3)
).flatmap(lambda x: st.sampled_from([x, -x]))
CONTENTS = st.one_of(
    st.sampled_from([0.0, -0.0, TINY, 1.0, -1.0, HUGE, -HUGE, 1e300]),
    st.floats(allow_nan=False, allow_infinity=False),
)
SCORES = st.one_of(
    st.none(), st.sampled_from([0.0, -TINY, 1.0, -1.0, HUGE, -HUGE, -1e300]),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
BIASES = st.one_of(st.sampled_from([0.0, -INF, HUGE, -HUGE, 1e300, TINY]), st.floats(-1e3, 1e3))
SIMILARITIES = st.sampled_from(
    ["gaussian", "laplacian", "cosine", "dot", "scaled_dot", InverseDistance(1e-300),
     InverseDistance(0.0), InverseDistance(1.0), Bilinear(np.array([[1.0, -1.0, 1.0]] * 3))]
)  # fmt: skip
WEIGHTINGS = st.sampled_from(["softmax", "sparsemax", "entmax15"])


@given(st.data(), TEMPERATURES, SIMILARITIES, WEIGHTINGS, st.booleans())
@settings(max_examples=120, deadline=None)
def test_finite_input_never_gives_nan(
    data: Any, temperature: float, similarity: Any, weighting: str, single_precision: bool
) -> None:
    component = NARROW if single_precision else COMPONENTS
    vector = st.lists(component, min_size=3, max_size=3)
    keys = data.draw(st.lists(vector, min_size=1, max_size=6))
    values = data.draw(st.lists(CONTENTS, min_size=len(keys), max_size=len(keys)))
    queries = data.draw(st.lists(st.one_of(vector, st.sampled_from(keys)), min_size=1, max_size=3))
    bias = data.draw(st.one_of(st.none(), st.lists(BIASES, min_size=len(keys), max_size=len(keys))))
    sd = SoftDict.from_arrays(
        np.array(keys, np.float32 if single_precision else np.float64),
        values,
        [f"row {i}" for i in range(len(keys))],
        similarity=similarity,
        temperature=temperature,
        weighting=weighting,
        top_k=data.draw(st.sampled_from([None, 1, 2, 9])),
        min_score=data.draw(SCORES),
        null_score=data.draw(SCORES),
    )
    batch = np.array(queries)
    answers = sd.get(batch, 0.0)
    assert np.isfinite(answers).all()
    low, high = min(0.0, *values), max(0.0, *values)
    slack = oracle.tolerance(np.float64, 0, max(-low, high))
    assert (answers >= low - slack).all()  # a blend lies between the values, and zero
    assert (answers <= high + slack).all()
    assert math.isfinite(sd.get(batch[0], 0.0))
    for seen in (sd.lookup(batch), sd.lookup(batch, bias=bias), sd.self_attention(exclude_self=True)):
        for name in ("value", "weights", "null_weight", "entropy", "effective"):
            assert np.isfinite(getattr(seen, name)).all(), name
        for name in ("scores", "logsumexp"):
            assert not np.isnan(getattr(seen, name)).any(), name
        total = seen.weights.sum(axis=1) + seen.null_weight
        reached = (seen.weights > 0).any(axis=1) | (seen.null_weight > 0)
        agree(total, reached.astype(float), oracle.tolerance(np.float64), "sum of weights")
    assert np.isfinite(sd.partial(batch).finish()).all()


@given(st.lists(COMPONENTS, min_size=1, max_size=6, unique_by=lambda x: x + 0.0), TEMPERATURES)
@settings(max_examples=80, deadline=None)
def test_plain_numbers_never_give_nan_and_find_themselves(keys: list[float], temperature: float) -> None:
    sd = SoftDict({k: i for i, k in enumerate(keys)}, temperature=temperature)
    assert np.isfinite(sd[keys]).all()
    assert all(math.isfinite(sd[k]) for k in keys)
    assert sd.at(temperature=0)[keys].tolist() == list(range(len(keys)))
    mean = sd.at(temperature=INF)[keys[0]]
    agree(mean, (len(keys) - 1) / 2, oracle.tolerance(np.float64, 0, len(keys)), "plain mean")
    assert str(sd.lookup(keys[0]))
    assert repr(sd)


@pytest.mark.parametrize("name", ["temprature", "topk", "T", "min_scor"])
def test_a_misspelt_setting_is_refused_wherever_it_stands(name):
    sd = SoftDict({0: 1.0, 1: 2.0})
    with pytest.raises(AttributeError, match=rf"'{name}' .*temperature.* was expected.* Check the spelling"):
        setattr(sd, name, 0)
    with pytest.raises(TypeError, match=name):
        sd.at(**{name: 0})
    with pytest.raises(TypeError, match=name):
        SoftDict(**{name: 0})
    assert name not in vars(sd)


def test_a_subclass_may_have_attributes_of_its_own_and_views_keep_them():
    class Named(SoftDict):
        pass

    sd = Named({0: 1.0})
    sd.source = "a file"
    assert sd.at(temperature=2).source == sd.copy().source == "a file"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_handed_to_add_may_be_written_to_afterwards(dtype):
    vector, value = np.array([1, 0], dtype), np.array([2, 3], dtype)
    sd = SoftDict()
    for name in ("first", "second"):
        sd.add(name, vector, value)
        vector[0], value[:] = math.nan, math.nan
        assert sd.hard[name].tolist() == [2, 3]
        assert sd.key_vectors.tolist() == [[1, 0]] * len(sd)
        vector[:], value[:] = [1, 0], [2, 3]


def test_texts_without_an_encoder_are_told_of_one():
    with pytest.raises(TypeError, match=r"'cat'.*encoder=, for texts softdict.encoders.CharNgrams\(\)"):
        SoftDict({"cat": 1.0})
    with pytest.raises(KeyError, match=r"'cat'.*encoder=, for texts softdict.encoders.CharNgrams\(\)"):
        SoftDict({0: 1.0})["cat"]
    with pytest.raises(KeyError, match=r"store an entry first, or use get"):
        SoftDict()["cat"]


@given(st.lists(st.tuples(COMPONENTS, COMPONENTS), min_size=3, max_size=6), st.floats(1, 6))
@settings(max_examples=80, deadline=None)
def test_calibrate_gives_a_temperature_or_says_why_not(keys: Any, effective: float) -> None:
    assume(len({(a + 0.0, b + 0.0) for a, b in keys}) == len(keys))
    sd = SoftDict({k: 1.0 for k in keys})
    reachable = sd.at(temperature=INF).self_attention(exclude_self=True).effective
    ties = sd.at(temperature=0).self_attention(exclude_self=True).effective
    low, high = np.median(ties), np.median(reachable)
    near = min(abs(effective - low), abs(effective - high))
    assume(effective == low or near > oracle.tolerance(np.float64, 0, high))  # else rounding decides
    if not (low < high and low <= effective <= high):
        with pytest.raises(ValueError, match="effective"):
            sd.calibrate(effective)
        return
    t = sd.calibrate(effective)
    assert t >= 0
    assert math.isfinite(t)
    assert math.isfinite(sd.at(temperature=t)[keys[0]])
