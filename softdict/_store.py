"""Rows under names: amortized append, overwriting in place, deletion that keeps the order.

Every entry has a *serial*, which only grows, and a *row*, where its numbers stand. As long as
nothing was deleted the two are equal; later a binary search among the serials finds the row. So
deleting an entry moves no other one: its row is marked dead, and all dead rows are swept out
together when somebody asks, or when they outnumber the living.
"""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Iterator, Sequence
from itertools import compress, islice
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend
from softdict._checks import Array, equal_rows_text, largest, numbers, row_names, within

#: What a row is: its own vector's name, a label that is a number (or a tuple of them), other labels.
DEAD, OWN, NUMBER, LABEL = range(4)


class Entries(NamedTuple):
    """Checked entries on their way into a store; row i of everything belongs to names[i]."""

    names: Sequence[Hashable]  # each once; none at all where vectors are still to be named
    kinds: Any  # (m,)
    keys: Array  # (m, d)
    values: Array  # (m, e); e = 0 where the values cannot blend
    objects: list[Any] | None  # None where the values are numbers
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...] | None  # None where the values cannot blend


class Store:
    """The entries of a SoftDict and of all its views."""

    def __init__(self, dtype: np.dtype[Any] | None = None) -> None:
        self.dtype = dtype  # None: what the numbers bring along
        self._names: dict[Hashable, int] = {}  # the serials; one object for life, so that iterating
        self.clear()  # over it raises RuntimeError when its size changes

    def clear(self) -> None:
        """Forget everything but an explicit dtype."""
        self._names.clear()
        nothing = np.empty((0, 0))
        self.adopt(Entries([], [], nothing, nothing, None, (), None))

    def adopt(self, new: Entries, mapped: bool = False) -> None:
        """Become these entries. The arrays are shared until the first write in place."""
        n = len(new.keys)
        self.keys, self.values, self.objects = new.keys, new.values, new.objects
        self.key_shape, self.value_shape, self.mapped = new.key_shape, new.value_shape, mapped
        self.kinds, self.serials = np.array(new.kinds, dtype=np.int8), np.arange(n)
        self.counts: list[int] = np.bincount(self.kinds, minlength=4).tolist()
        self.size = self.next = n  # rows in use; the next serial
        self.lent = n  # rows that somebody else may see, so that they are never written again
        self._ready: tuple[Array, Array] | None = None
        self._checked: set[tuple[int, int]] = set()  # the blocks of a map found good
        self._names.update(zip(new.names, range(n), strict=False))

    def __len__(self) -> int:
        return self.size - self.counts[DEAD]

    # ---- reading -----------------------------------------------------------------------------

    @property
    def names(self) -> dict[Hashable, int]:
        """The names in order; here the rows of `from_arrays` get theirs, when first needed."""
        if len(self._names) < len(self):
            names: dict[Hashable, int] = {}
            for start, keys, _ in self.blocks():
                for row, name in enumerate(row_names(keys, self.key_shape), start):
                    if (first := names.setdefault(name, row)) != row:
                        raise ValueError(equal_rows_text(first, row, len(self)))
            self._names.update(names)
        return self._names

    def first_names(self, count: int) -> list[Hashable]:
        """Return the first names, without reading a whole map for them."""
        if len(self._names) < len(self):
            return list(row_names(self.read(0, count)[0], self.key_shape))
        return list(islice(self._names, count))

    def row(self, name: Hashable) -> int:
        """Return where the entry stands; KeyError where there is none. O(log n) at most."""
        serial = self.names[name]
        if self.next == self.size:
            return serial
        return int(np.searchsorted(self.serials[: self.size], serial))

    def read(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return some rows of keys and values; those of a map are converted and checked here."""
        keys, values = self.keys[start:stop], self.values[start:stop]
        if self.mapped:
            keys = numbers(keys, "the keys", self.dtype)
            values = numbers(values, "the values", self.dtype)
            if (start, stop) not in self._checked:
                for array, what in ((keys, "key"), (values, "value")):
                    limit = largest(keys) if what == "key" else np.inf
                    within(array, limit, f"the {what} vector", lambda row: f"row {start + row}")
                self._checked.add((start, stop))
        return keys, values

    def blocks(self) -> Iterator[tuple[int, Array, Array]]:
        """Go through the rows block by block: (first row, keys, values)."""
        width = max(1, self.keys.shape[1] + self.values.shape[1])
        step = max(1, int(_backend.budget_mib * 2**15) // width)  # a quarter of the budget
        for start in range(0, self.size, step):
            yield start, *self.read(start, min(start + step, self.size))

    def arrays(self) -> tuple[Array, Array]:
        """Return all keys (n, d) and values (n, e), read-only, in order."""
        if self._ready is None or self.mapped:
            self._sweep()
            keys, values = self.keys[: self.size], self.values[: self.size]
            if self.mapped:
                for _ in self.blocks():
                    pass
                if self.dtype is not None:  # rounding needs memory, where the map is wider
                    keys, values = self.read(0, self.size)
            keys.flags.writeable = values.flags.writeable = False
            self._ready = keys, values
        return self._ready

    def ordered(self, names: list[Hashable]) -> Store:
        """Return a copy of this store with its entries in another order."""
        keys, values = self.arrays()
        rows = [self.row(name) for name in names]
        things = None if self.objects is None else [self.objects[row] for row in rows]
        first = [*self.names]
        new = Store(self.dtype)
        new.adopt(
            Entries(
                [first[row] for row in rows],
                self.kinds[rows],
                keys[rows],
                values[rows],
                things,
                self.key_shape,
                self.value_shape,
            )
        )
        return new

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of answers."""
        return self.dtype or (
            np.dtype(np.float64)
            if self.values.dtype.kind != "f"
            else min(
                np.result_type(self.values, np.float32),
                np.dtype(np.float64),
                key=lambda t: t.itemsize,
            )
        )

    def lend(self) -> tuple[Array, Array]:
        """Return `arrays` for somebody to keep: from now on, writing in place copies first."""
        keys, values = self.arrays()
        self.lent = self.size
        return keys, values

    def value(self, row: int) -> Any:
        """Return a single value: a float, a copy of the array, or the object itself."""
        if self.objects is not None:
            return self.objects[row]
        value = self.read(row, row + 1)[1]
        return value.item() if self.value_shape == () else value.reshape(self.value_shape).copy()

    # ---- writing -----------------------------------------------------------------------------

    def writable(self) -> None:
        """Refuse to write to a map."""
        if self.mapped:
            raise TypeError(
                f"this SoftDict reads its {len(self)} entries from a memory-mapped file, but "
                "entries in memory were expected by whatever writes. Write to sd.copy() instead, "
                "which reads the file into memory."
            )

    def write(self, new: Entries) -> None:
        """Overwrite or append. O(1) per entry, amortized."""
        self.writable()
        if not len(self):
            self.adopt(new)
            return
        names, first = self.names, self.size
        rows = np.array([self.row(name) if name in names else -1 for name in new.names])
        fresh = rows < 0
        rows[fresh] = np.arange(first, first + fresh.sum())
        self._room(first + int(fresh.sum()), rows.min(), new)
        self.keys[rows], self.values[rows] = new.keys, new.values
        if self.objects is not None and new.objects is not None:
            self.objects.extend([None] * int(fresh.sum()))
            for row, thing in zip(rows.tolist(), new.objects, strict=True):
                self.objects[row] = thing
        for i in np.nonzero(fresh)[0].tolist():
            self.kinds[self.size], self.serials[self.size] = new.kinds[i], self.next
            self.counts[new.kinds[i]] += 1
            names[new.names[i]] = self.next
            self.size, self.next = self.size + 1, self.next + 1
        self._ready = None

    def _room(self, needed: int, lowest: int, new: Entries) -> None:
        """Make room for that many rows, and the rows from `lowest` on and the dtypes writable."""
        types = [np.result_type(a, b) for a, b in zip((self.keys, self.values), new[2:4], strict=True)]
        grown = 2 * needed if needed > len(self.keys) else len(self.keys)
        if grown > len(self.keys) or lowest < self.lent or types != [self.keys.dtype, self.values.dtype]:
            self.lent = 0
            self.keys = _grown(self.keys, grown, self.size, types[0])
            self.values = _grown(self.values, grown, self.size, types[1])
            self.kinds = _grown(self.kinds, grown, self.size, np.int8)
            self.serials = _grown(self.serials, grown, self.size, np.int64)

    def delete(self, name: Hashable) -> None:
        """Delete an entry; KeyError where there is none. O(log n), amortized."""
        self.writable()
        row = self.row(name)
        del self._names[name]
        self.counts[self.kinds[row]] -= 1
        self.counts[DEAD] += 1
        self.kinds[row] = DEAD
        self._ready = None
        if self.objects is not None:
            self.objects[row] = None
        if not self._names:
            self.clear()
            return
        while self.kinds[self.size - 1] == DEAD:
            self.size, self.counts[DEAD] = self.size - 1, self.counts[DEAD] - 1
        self.next = int(self.serials[self.size - 1]) + 1
        if self.objects is not None:
            del self.objects[self.size :]
        if self.counts[DEAD] > len(self):
            self._sweep()

    def _sweep(self) -> None:
        """Take the dead rows out."""
        if self.counts[DEAD]:
            alive = self.kinds[: self.size] != DEAD
            self.keys, self.values = self.keys[: self.size][alive], self.values[: self.size][alive]
            self.kinds, self.serials = (
                self.kinds[: self.size][alive],
                self.serials[: self.size][alive],
            )
            if self.objects is not None:
                self.objects = list(compress(self.objects, alive))
            self.size, self.counts[DEAD], self.lent = len(self.keys), 0, 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling, read into memory, nothing writable shared."""
        keys, values = (np.array(numbers(a, "", self.dtype)) for a in self.arrays())
        if self.mapped:
            assert len(self.names) == len(self)  # equal rows are refused before they are read
        own: dict[str, Any] = {"keys": keys, "values": values, "_names": dict(self._names)}
        own |= {
            "kinds": self.kinds[: self.size].copy(),
            "serials": self.serials[: self.size].copy(),
        }
        own["objects"] = None if self.objects is None else list(self.objects)
        own["counts"] = list(self.counts)
        return {
            **self.__dict__,
            **own,
            "mapped": False,
            "lent": 0,
            "_ready": None,
            "_checked": set(),
        }

    def _check(self) -> None:
        """Assert every invariant."""
        n, size, kinds = len(self), self.size, self.kinds[: self.size]
        try:
            # Every living row has a name, or none has one yet.
            assert len(self._names) in (n, 0)
            # The rows' serials grow, and the next is beyond them.
            assert (np.diff(self.serials[:size]) > 0).all() and self.next >= size
            # Names and living rows are in the same order.
            if self._names:
                assert list(self._names.values()) == self.serials[:size][kinds != DEAD].tolist()
            # The kinds are counted; dead rows never outnumber the living, and the last row lives.
            assert np.bincount(kinds, minlength=4).tolist() == self.counts
            assert self.counts[DEAD] <= n and (size == 0 or kinds[-1] != DEAD)
            # Numbers name or measure, never both.
            assert not (self.counts[OWN] and self.counts[NUMBER])
            # Everything has room for the rows in use, one object to a row.
            assert min(map(len, (self.keys, self.values, self.kinds, self.serials))) >= size
            assert self.objects is None or len(self.objects) == size
            # Vectors that are their own name bear it.
            rows = {row: name for name, row in zip(self._names, np.nonzero(kinds)[0], strict=False)}
            for row in np.nonzero(kinds == OWN)[0] if rows else []:
                one = self.read(int(row), int(row) + 1)[0]
                assert row_names(one, self.key_shape) == [rows[row]]
            # What is empty has forgotten everything.
            assert n or (size, self.next, self.value_shape, self.objects) == (0, 0, None, None)
        except AssertionError:
            print({name: value for name, value in vars(self).items() if name != "_ready"})
            raise


def _grown(array: Array, capacity: int, size: int, dtype: Any) -> Array:
    """Return a new array with room for `capacity` rows, the first `size` of which are copied."""
    new = np.empty((capacity, *array.shape[1:]), dtype=dtype)
    new[:size] = array[:size]
    return new


def is_mapped(array: Any) -> bool:
    """Tell whether an array reads from a memory-mapped file."""
    while array is not None:
        if isinstance(array, (np.memmap, mmap.mmap)):
            return True
        array = getattr(array, "base", None)
    return False


def is_shared(array: Any) -> bool:
    """Tell whether nobody can write to an array: neither it nor anything below it is writable."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or memoryview(array).readonly
