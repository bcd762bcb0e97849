"""A random walk through every naming method, hand in hand with a plain dict.

There is a walk for each way of naming (numbers, vectors, an encoder, labels, labels beside vectors);
it draws a kind of value (scalar, vector, matrix, object, object with a value_encoder). After every step
the SoftDict, its view at another temperature and `sd.hard` say what the dict says, and asking softly at
temperature 0 does too.
"""

from __future__ import annotations

import copy
import operator
import pickle
from collections import UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from softdict import SoftDict

# ---- three ways of naming ------------------------------------------------------------------------

THINGS = ["a", "b", 1, True, 1.0, None, ("x", 1), "c", 2, frozenset({"y"})]


def vector(thing: Any) -> list[float]:
    """Return a vector that things share only if they are equal, as dict keys are."""
    place = THINGS.index(thing)
    return [float(place), float(place % 3)]


def encode(things: list[Any]) -> Any:
    """Encode a list of things, (m, 2)."""
    return np.array([vector(thing) for thing in things]).reshape(len(things), 2)


class Naming(NamedTuple):
    """The names of a walk, how else each may be written, and how an unknown one is stored."""

    names: list[Any]
    spellings: Callable[[Any], list[Any]]
    options: dict[str, Any]
    beside: Callable[[Any], Any]  # the vector to give beside the name, None where there is no need


def number_spellings(x: float) -> list[Any]:
    return [x, np.float64(x), np.array(x), int(x) if x == int(x) else x, x or -0.0]


def vector_spellings(x: Any) -> list[Any]:
    if isinstance(x, str):
        return [x]
    return [x, list(x), np.array(x), np.array(x, np.float32), tuple(np.float64(c) or -0.0 for c in x)]


VECTORS = [(0.0, 1.0), (1.0, 0.0), (2.0, 2.0), (-1.0, 0.5), (0.0, 0.0), (1e-30, 0.0)]
VECTORS = [tuple(float(np.float32(c)) for c in v) for v in VECTORS]
BESIDE: dict[Any, Any] = {"p": [5.0, 5.0], "q": [6.0, 5.0], "r": [7.0, -5.0]}

NAMINGS = {
    "numbers": Naming([0.0, 1.0, -2.5, 3.0, 0.1, 1e-30, 7.0], number_spellings, {}, lambda x: None),
    "vectors": Naming(VECTORS, vector_spellings, {}, lambda x: None),
    "encoder": Naming(THINGS, lambda x: [x], {"encoder": encode}, lambda x: None),
    "labels": Naming(THINGS, lambda x: [x], {}, vector),
    "labels beside vectors": Naming([*BESIDE, *VECTORS[:3]], vector_spellings, {}, BESIDE.get),
}

# ---- four kinds of values ------------------------------------------------------------------------

OBJECTS: list[Any] = ["red", "blue", None, True, ["x", 1], {"deep": [1]}, ("t",), frozenset()]


def scalar_value(seed: int) -> tuple[Any, Any]:
    x = seed - 2.5 if seed % 2 else float(seed)
    return [x, np.float64(x), int(x) if x == int(x) else x][seed % 3], x


def vector_value(seed: int) -> tuple[Any, Any]:
    x = [seed / 4, seed - 3.0]
    return [x, tuple(x), np.array(x)][seed % 3], np.array(x)


def matrix_value(seed: int) -> tuple[Any, Any]:
    x = [[seed / 4, 1.0, 0.0], [seed - 3.0, 2.0, -0.5]]
    return [x, np.array(x)][seed % 2], np.array(x)


def object_value(seed: int) -> tuple[Any, Any]:
    return OBJECTS[seed % len(OBJECTS)], OBJECTS[seed % len(OBJECTS)]


def encode_value(things: list[Any]) -> Any:
    """Encode objects that are values, (m, 2)."""
    return np.array([[len(repr(thing)), 1.0] for thing in things]).reshape(len(things), 2)


#: What is handed in, and what is handed out.
VALUES = {
    "scalar": scalar_value,
    "vector": vector_value,
    "matrix": matrix_value,
    "object": object_value,
    "encoded": object_value,
}

# ---- comparing -----------------------------------------------------------------------------------


def same(got: Any, want: Any) -> bool:
    """Tell whether two results are equal, types of keys and values included."""
    if isinstance(want, np.ndarray):
        return isinstance(got, np.ndarray) and got.dtype == want.dtype and np.array_equal(got, want)
    if isinstance(want, (list, tuple)):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    return type(got) is type(want) and bool(got == want)


def outcome(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action returns, or the type of what it raises."""
    try:
        return "returned", action(*arguments)
    except Exception as error:
        return "raised", type(error)


PLACES = st.integers(0, 9)
SEEDS = st.integers(0, 8)
DOORS = st.sampled_from(["sd", "view", "hard"])
ENTRIES = st.lists(st.tuples(PLACES, SEEDS), max_size=4)


class Walk(RuleBasedStateMachine):
    """Take every step twice: with a SoftDict and with a dict."""

    naming: Naming

    @initialize(values=st.sampled_from(sorted(VALUES)))
    def start(self, values: str) -> None:
        self.make, self.kind = VALUES[values], values
        self.options = dict(self.naming.options)
        if values == "encoded":
            self.options["value_encoder"] = encode_value
        self.model: dict[Any, Any] = {}
        self.take(SoftDict(**self.options, temperature=2.0))

    def take(self, sd: SoftDict) -> None:
        """Go on with this SoftDict, its doors and its views, which live as long as it does."""
        self.sd, self.view, self.hard = sd, sd.at(temperature=0), sd.hard
        self.kept = [(d.keys(), d.values(), d.items()) for d in (self.sd, self.view, self.hard)]

    # ---- helpers

    def name(self, place: int) -> Any:
        return self.naming.names[place % len(self.naming.names)]

    def spelled(self, place: int, seed: int = 0) -> Any:
        spellings = self.naming.spellings(self.name(place))
        return spellings[seed % len(spellings)]

    def door(self, door: str) -> Any:
        return {"sd": self.sd, "view": self.view, "hard": self.hard}[door]

    def agree(self, action: Callable[..., Any], door: str, spelled: Any, name: Any) -> None:
        got, want = outcome(action, self.door(door), spelled), outcome(action, self.model, name)
        assert same(got, want), f"{got} in place of {want}"

    def can_assign(self, place: int) -> bool:
        """Tell whether a name can be assigned to: a label has to be stored before, beside its vector."""
        return self.naming.beside(self.name(place)) is None or self.name(place) in self.model

    def put(self, target: SoftDict, place: int, seed: int) -> None:
        """Store an entry, new or old."""
        beside = self.naming.beside(self.name(place))
        if beside is not None and self.name(place) not in target:
            target.add(self.spelled(place, seed), beside, self.make(seed)[0])
        else:
            target[self.spelled(place, seed)] = self.make(seed)[0]

    def pairs(self, entries: Any) -> tuple[list[Any], list[Any]]:
        """Return entries as handed in and as handed out; without vectors, so known labels only."""
        known = [(place, seed) for place, seed in entries if self.can_assign(place)]
        given = [(self.spelled(place, seed), self.make(seed)[0]) for place, seed in known]
        return given, [(self.name(place), self.make(seed)[1]) for place, seed in known]

    def as_dict(self, pairs: list[Any]) -> dict[Any, Any]:
        """Make a dict; a key that cannot be hashed is written as its name."""
        return {
            tuple(np.asarray(k).tolist()) if isinstance(k, (list, np.ndarray)) and np.ndim(k)
            else float(k) if isinstance(k, np.ndarray) else k: v
            for k, v in pairs
        }  # fmt: skip

    def softdict(self, entries: Any) -> tuple[SoftDict, dict[Any, Any]]:
        """Make another SoftDict of the same naming, and its dict."""
        other, model = SoftDict(**self.options), {}
        for place, seed in entries:
            self.put(other, place, seed)
            model[self.name(place)] = self.make(seed)[1]
        return other, model

    def says(self, sd: Any, model: dict[Any, Any]) -> None:
        """Assert that a mapping says what a dict says, in its order and with its key objects."""
        assert same(list(sd), list(model))
        assert same(list(sd.items()), list(model.items()))
        assert len(sd) == len(model)

    # ---- writing one entry

    @rule(place=PLACES, seed=SEEDS, view=st.booleans())
    def assign(self, place: int, seed: int, view: bool) -> None:
        self.put(self.view if view else self.sd, place, seed)
        self.model[self.name(place)] = self.make(seed)[1]

    @rule(place=PLACES, seed=SEEDS, door=DOORS)
    def assign_by_name(self, place: int, seed: int, door: str) -> None:
        if self.can_assign(place):
            self.door(door)[self.spelled(place, seed)] = self.make(seed)[0]
            self.model[self.name(place)] = self.make(seed)[1]

    @rule(place=PLACES, seed=SEEDS, door=DOORS)
    def delete(self, place: int, seed: int, door: str) -> None:
        self.agree(operator.delitem, door, self.spelled(place, seed), self.name(place))

    @rule(place=PLACES, seed=SEEDS, door=DOORS)
    def pop(self, place: int, seed: int, door: str) -> None:
        self.agree(lambda d, k: d.pop(k), door, self.spelled(place, seed), self.name(place))

    @rule(place=PLACES, seed=SEEDS, door=DOORS)
    def pop_with_default(self, place: int, seed: int, door: str) -> None:
        self.agree(lambda d, k: d.pop(k, "no"), door, self.spelled(place, seed), self.name(place))

    @rule(door=DOORS)
    def popitem(self, door: str) -> None:
        self.agree(lambda d, _: d.popitem(), door, None, None)

    @rule(place=PLACES, seed=SEEDS, door=DOORS)
    def setdefault(self, place: int, seed: int, door: str) -> None:
        if self.can_assign(place):
            given, out = self.make(seed)
            got = self.door(door).setdefault(self.spelled(place, seed), given)
            want = self.model.setdefault(self.name(place), out)
            assert same(got, self.model[self.name(place)])
            assert same(got, want)

    @precondition(lambda self: self.model)  # an empty dict may not even hash
    @rule(door=DOORS, key=st.sampled_from([{}, [{}], set(), ["a", {}]]))
    def unhashable_is_what_dict_says(self, door: str, key: Any) -> None:
        for action in (
            lambda d, k: k in d, operator.delitem, lambda d, k: d.pop(k), lambda d, k: d.setdefault(k, 1),
            lambda d, k: operator.setitem(d, k, 1), lambda d, k: d.update([(k, 1)]),
        ):  # fmt: skip
            self.agree(action, door, key, key)
        self.agree(operator.getitem, "hard", key, key)
        self.agree(lambda d, k: d.get(k), "hard", key, key)

    # ---- writing many

    @rule(entries=ENTRIES, door=DOORS, form=st.sampled_from(["pairs", "dict", "iterator"]))
    def update(self, entries: Any, door: str, form: str) -> None:
        given, out = self.pairs(entries)
        forms: dict[str, Any] = {"pairs": list, "dict": self.as_dict, "iterator": iter}
        assert self.door(door).update(forms[form](given)) is None
        self.model.update(out)

    @rule(entries=ENTRIES, door=DOORS)
    def update_with_keywords(self, entries: Any, door: str) -> None:
        """Names that are text may stand before `=`, after a mapping and stronger than it."""
        given, out = self.pairs(entries)
        text = {
            self.name(place): self.make(seed)
            for place, seed in reversed(entries)
            if isinstance(self.name(place), str) and self.can_assign(place)
        }
        self.door(door).update(given, **{name: value[0] for name, value in text.items()})
        self.model.update(out, **{name: value[1] for name, value in text.items()})

    @rule(entries=ENTRIES, source=st.sampled_from(["sd", "view", "hard"]), door=DOORS)
    def update_from_softdict(self, entries: Any, source: str, door: str) -> None:
        other, model = self.softdict(entries)
        self.door(door).update({"sd": other, "view": other.at(temperature=0), "hard": other.hard}[source])
        self.model.update(model)

    @rule(door=DOORS, source=DOORS)
    def update_from_itself(self, door: str, source: str) -> None:
        self.door(door).update(self.door(source))

    @precondition(lambda self: self.model)
    @rule(entries=ENTRIES, door=DOORS, form=st.sampled_from(["pairs", "iterator", "broken", "or", "ior"]))
    def failing_update_changes_nothing(self, entries: Any, door: str, form: str) -> None:
        given, _ = self.pairs(entries)
        bad = (self.name(0), [[1.0, np.nan], "ragged"])
        if "value_encoder" in self.options or self.kind == "object":
            bad = ({}, "unhashable")  # type: ignore[assignment]  # nothing is a bad object, but names can be

        def broken() -> Any:
            yield from given
            raise ZeroDivisionError

        actions: dict[str, Any] = {
            "pairs": lambda: self.door(door).update([*given, bad]),
            "iterator": lambda: self.door(door).update(iter([*given, bad])),
            "broken": lambda: self.door(door).update(broken()),
            "or": lambda: self.sd | UserDict({**self.as_dict(given), self.name(0): bad[1]}),
            "ior": lambda: operator.ior(self.view, [*given, bad]),
        }
        with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
            actions["pairs" if form == "or" and bad[0] == {} else form]()

    @rule(entries=ENTRIES, plain=st.booleans(), view=st.booleans())
    def union_in_place(self, entries: Any, plain: bool, view: bool) -> None:
        given, out = self.pairs(entries)
        target = before = self.view if view else self.sd
        target |= self.as_dict(given) if plain else given
        assert target is before
        self.model |= out

    @rule(entries=ENTRIES)
    def union(self, entries: Any) -> None:
        given, out = self.pairs(entries)
        result = self.sd | self.as_dict(given)
        assert isinstance(result, SoftDict)
        assert result.temperature == self.sd.temperature
        self.says(result, self.model | dict(out))
        result.clear()

    @rule(entries=ENTRIES)
    def reflected_union(self, entries: Any) -> None:
        given, out = self.pairs(entries)
        left = self.as_dict(given)
        result = left | self.sd
        assert isinstance(result, SoftDict)
        self.says(result, dict(out) | self.model)
        assert len(left) == len(dict(out))

    @rule(entries=ENTRIES)
    def union_of_two(self, entries: Any) -> None:
        other, model = self.softdict(entries)
        self.says(self.sd | other, self.model | model)
        self.says(other | self.sd, model | self.model)
        self.says(other, model)

    @rule(door=DOORS)
    def clear(self, door: str) -> None:
        assert self.door(door).clear() is None
        self.model.clear()

    @rule(entries=ENTRIES)
    def fromkeys(self, entries: Any) -> None:
        keys = [p for p, _ in entries if self.naming.beside(self.name(p)) is None]
        given, out = self.make(len(keys))
        result = SoftDict.fromkeys(map(self.spelled, keys), given, **self.options)
        self.says(result, dict.fromkeys(map(self.name, keys), out))
        assert (result.encoder is None) == ("encoder" not in self.options)

    # ---- copies

    @rule(how=st.sampled_from([copy.copy, copy.deepcopy, SoftDict.copy, "pickle", SoftDict]))
    def copies(self, how: Any) -> None:
        twin = pickle.loads(pickle.dumps(self.sd)) if how == "pickle" else how(self.sd)
        self.says(twin, self.model)
        assert twin == self.sd
        assert twin.temperature == (1.0 if how is SoftDict else self.sd.temperature)
        twin._store._check()
        twin.clear()  # the walk goes on unharmed, or `says_the_same` will tell

    @rule(how=st.sampled_from([copy.copy, copy.deepcopy, SoftDict.copy]), seed=SEEDS)
    def go_on_with_a_copy(self, how: Any, seed: int) -> None:
        left = self.sd
        self.take(how(left))
        for name in list(left):
            left[name] = self.make(seed)[0]  # what is left behind may change

    # ---- reading

    @rule(place=PLACES, seed=SEEDS, door=DOORS)
    def contains(self, place: int, seed: int, door: str) -> None:
        self.agree(lambda d, k: k in d, door, self.spelled(place, seed), self.name(place))
        self.agree(lambda d, k: k not in d, door, self.spelled(place, seed), self.name(place))

    @rule(place=PLACES, seed=SEEDS)
    def hard_getitem_and_get(self, place: int, seed: int) -> None:
        spelled, name = self.spelled(place, seed), self.name(place)
        self.agree(operator.getitem, "hard", spelled, name)
        self.agree(lambda d, k: d.get(k), "hard", spelled, name)
        self.agree(lambda d, k: d.get(k, "no"), "hard", spelled, name)

    @rule(places=st.lists(PLACES, max_size=5), door=DOORS)
    def keys_are_a_set(self, places: list[int], door: str) -> None:
        got, want, other = self.door(door).keys(), self.model.keys(), set(map(self.name, places))
        for operation in (
            operator.and_, operator.or_, operator.sub, operator.xor, operator.le, operator.lt,
            operator.ge, operator.gt, operator.eq, operator.ne,
        ):  # fmt: skip
            assert operation(got, other) == operation(want, other)
            assert operation(other, got) == operation(other, want)
        assert got.isdisjoint(other) == want.isdisjoint(other)
        assert len(got) == len(want)
        assert all((name in got) == (name in want) for name in self.naming.names)

    @rule(entries=ENTRIES, door=DOORS)
    def items_are_a_set(self, entries: Any, door: str) -> None:
        got, want = self.door(door).items(), self.model.items()
        assert len(got) == len(want)
        for place, seed in entries:
            name, value = self.name(place), self.make(seed)[1]
            expected = name in self.model and same(self.model[name], value)
            assert ((name, value) in got) is expected
        if self.kind == "scalar":
            other = {(self.name(place), self.make(seed)[1]) for place, seed in entries}
            for operation in (operator.and_, operator.or_, operator.sub, operator.xor):
                assert operation(got, other) == operation(want, other)
            assert got.isdisjoint(other) == want.isdisjoint(other)
            assert (got == other) == (want == other)

    @rule(door=DOORS)
    def equality(self, door: str) -> None:
        d = self.door(door)
        assert (d == self.model) is True
        assert (self.model == d) is True
        assert (d != self.model) is False
        assert (d == dict(reversed(list(self.model.items())))) is True  # order does not matter
        assert (d == list(self.model)) is False
        assert (d != 5) is True
        if self.model:
            less = dict(list(self.model.items())[1:])
            assert (d == less) is False
            assert (less != d) is True
        with pytest.raises(TypeError):
            hash(d)

    @precondition(lambda self: self.model)
    @rule(place=PLACES, seed=SEEDS)
    def inequality_of_values(self, place: int, seed: int) -> None:
        name = list(self.model)[place % len(self.model)]
        other = {**self.model, name: self.make(seed)[1]}
        equal = same(self.model[name], other[name])
        if equal or not bool(np.all(self.model[name] == other[name])):
            assert (self.sd == other) is equal
            assert (self.sd != other) is not equal

    # ---- iterating

    @precondition(lambda self: len(self.model) > 1)
    @rule(
        over=st.sampled_from(
            [iter, reversed, lambda d: iter(d.keys()), lambda d: iter(d.values()),
             lambda d: iter(d.items()), lambda d: reversed(d.keys()),
             lambda d: reversed(d.values()), lambda d: reversed(d.items())]
        ),
        change=st.sampled_from(["delete", "popitem", "clear", "insert"]),
        reader=DOORS,
        writer=DOORS,
    )  # fmt: skip
    def changing_size_while_iterating(self, over: Any, change: str, reader: str, writer: str) -> None:
        iterator = over(self.door(reader))
        next(iterator)
        writing = self.door(writer)
        if change == "delete":
            name = list(self.model)[-1]
            del writing[name], self.model[name]
        elif change == "popitem":
            writing.popitem()
            self.model.popitem()
        elif change == "clear":
            writing.clear()
            self.model.clear()
        else:
            missing = [i for i, n in enumerate(self.naming.names) if n not in self.model]
            if not missing:
                return
            self.put(self.sd, missing[0], 1)
            self.model[self.name(missing[0])] = self.make(1)[1]
        with pytest.raises(RuntimeError, match="chang"):
            next(iterator)

    @rule(seed=SEEDS, door=DOORS)
    def overwriting_while_iterating_is_fine(self, seed: int, door: str) -> None:
        for name in self.door(door):
            self.door(door)[name] = self.make(seed)[0]
        for name in self.model:
            self.model[name] = self.make(seed)[1]

    @rule(reader=DOORS, writer=DOORS)
    def an_iterator_that_is_through_stays_through(self, reader: str, writer: str) -> None:
        iterator = iter(self.door(reader))
        assert sum(1 for _ in iterator) == len(self.model)
        self.door(writer).clear()
        self.model.clear()
        with pytest.raises(StopIteration):
            next(iterator)

    # ---- after every step

    @invariant()
    def invariants_hold(self) -> None:
        self.sd._store._check()

    @invariant()
    def says_the_same(self) -> None:
        for d in (self.sd, self.view, self.hard):
            self.says(d, self.model)
            assert same(list(d.keys()), list(self.model))
            assert same(list(d.values()), list(self.model.values()))
            assert same(list(reversed(d)), list(reversed(self.model)))
            assert same(list(reversed(d.keys())), list(reversed(self.model.keys())))
            assert same(list(reversed(d.values())), list(reversed(self.model.values())))
            assert same(list(reversed(d.items())), list(reversed(self.model.items())))
            assert bool(d) is bool(self.model)
        for keys, values, items in self.kept:  # live, as those of a dict
            assert same(list(keys), list(self.model))
            assert same(list(values), list(self.model.values()))
            assert len(keys) == len(values) == len(items) == len(self.model)

    @invariant()
    def at_temperature_0_it_is_a_dict(self) -> None:
        want = list(self.model.values())
        if self.kind == "encoded":  # asking blends what the value_encoder makes of the objects
            want = list(encode_value(want))
        for name, value in zip(self.model, want, strict=True):
            assert same(self.view[name], value)
            assert same(self.view.get(name), value)
        if self.model:
            batch = self.view[list(self.model)]
            assert same(batch, want if self.kind == "object" else np.array(want))
        else:
            with pytest.raises(KeyError):
                self.view[self.name(0)]


def walk(naming: str) -> Any:
    """Return the test that walks under one way of naming."""
    machine = type(f"Walk with {naming}", (Walk,), {"naming": NAMINGS[naming]})
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
    return machine.TestCase


TestNumbers = walk("numbers")
TestVectors = walk("vectors")
TestEncoder = walk("encoder")
TestLabels = walk("labels")
TestLabelsBesideVectors = walk("labels beside vectors")
