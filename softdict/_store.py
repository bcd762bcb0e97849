"""The rows behind a SoftDict: appended in amortized constant time, named, deleted in order.

A name leads to the row where its numbers stand. Deleting moves no other row: the row is marked dead,
and all dead rows are swept out together when somebody asks, or when they outnumber the living.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend
from softdict._checks import Array, check_rows, equal_rows_text, float_dtype, numbers, row_names

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
        self._names: dict[Hashable, int] = {}  # one object for life, so that iterating over it
        self.clear()  # raises RuntimeError when its size changes

    def clear(self) -> None:
        """Forget everything but an explicit dtype."""
        self._names.clear()
        self.adopt(Entries([], [], np.empty((0, 0)), np.empty((0, 0)), None, (), None))

    def adopt(self, new: Entries, mapped: bool = False) -> None:
        """Become these entries. The arrays are shared until the first write in place."""
        self.keys, self.values, self.objects = new.keys, new.values, new.objects
        self.key_shape, self.value_shape, self.mapped = new.key_shape, new.value_shape, mapped
        self.kinds = np.array(new.kinds, dtype=np.int8)
        self.counts: list[int] = np.bincount(self.kinds, minlength=4).tolist()
        self.size = self.lent = len(new.keys)  # rows in use; rows seen by others, never written again
        self._ready: Any = None  # what `arrays` returned
        self._checked: set[tuple[int, int]] = set()  # the blocks of a map found good
        self._names.update(zip(new.names, range(self.size), strict=False))

    def __len__(self) -> int:
        return self.size - self.counts[DEAD]

    # ---- reading -----------------------------------------------------------------------------

    @property
    def names(self) -> dict[Hashable, int]:
        """The names in order, with their rows; those of `from_arrays` are made when first needed."""
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
            return row_names(self.read(0, count)[0], self.key_shape)
        return list(islice(self._names, count))

    def read(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return some rows of keys and values; those of a map are converted and checked here."""
        keys, values = self.keys[start:stop], self.values[start:stop]
        if self.mapped:
            keys, values = (numbers(array, "the memory map", self.dtype) for array in (keys, values))
            if (start, stop) not in self._checked:
                check_rows(keys, values, lambda row: f"row {start + row}")
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
        if self._ready is None:
            self.sweep()
            keys, values = self.read(0, self.size)
            keys.flags.writeable = values.flags.writeable = False
            self._ready = (keys, values)
        keys, values = self._ready
        return keys, values

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of answers."""
        return self.dtype or float_dtype(self.values)

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
                f"this SoftDict reads its {len(self)} entries from a memory-mapped file, but entries in "
                "memory were expected by whatever writes. Write to sd.copy(), which reads them into memory."
            )

    def write(self, new: Entries) -> None:
        """Overwrite or append. O(1) per entry, amortized."""
        if not len(self):
            self.adopt(new)
            return
        names, first = self.names, self.size
        rows = np.array([names.get(name, -1) for name in new.names])
        fresh = np.nonzero(rows < 0)[0]
        rows[fresh] = np.arange(first, first + len(fresh))
        self._room(first + len(fresh), rows.min(), new)
        self.keys[rows], self.values[rows], self.kinds[rows] = new.keys, new.values, new.kinds
        if self.objects is not None and new.objects is not None:
            self.objects.extend([None] * len(fresh))
            for row, thing in zip(rows.tolist(), new.objects, strict=True):
                self.objects[row] = thing
        for i in fresh.tolist():
            self.counts[new.kinds[i]] += 1
            names[new.names[i]] = int(rows[i])
        self.size, self._ready = first + len(fresh), None

    def _room(self, needed: int, lowest: int, new: Entries) -> None:
        """Make room for that many rows, and the rows from `lowest` on and the dtypes writable."""
        types = [np.result_type(a, b) for a, b in zip((self.keys, self.values), new[2:4], strict=True)]
        grown = 2 * needed if needed > len(self.keys) else len(self.keys)
        if grown > len(self.keys) or lowest < self.lent or types != [self.keys.dtype, self.values.dtype]:
            self.lent = 0
            self.keys = _grown(self.keys, grown, self.size, types[0])
            self.values = _grown(self.values, grown, self.size, types[1])
            self.kinds = _grown(self.kinds, grown, self.size, np.int8)

    def delete(self, name: Hashable) -> None:
        """Delete an entry; KeyError where there is none. O(1), amortized."""
        self.writable()
        row = self.names.pop(name)
        self.counts[self.kinds[row]] -= 1
        self.counts[DEAD] += 1
        self.kinds[row], self._ready = DEAD, None
        if self.objects is not None:
            self.objects[row] = None
        if not self._names:
            self.clear()
        elif self.counts[DEAD] > len(self):
            self.sweep()

    def sweep(self, names: Sequence[Hashable] | None = None) -> None:
        """Take the dead rows out; with all names in another order, bring the rows to that order."""
        if names is not None or self.counts[DEAD]:
            rows = list(self._names.values()) if names is None else [self.names[name] for name in names]
            self._names = self._names if names is None else dict.fromkeys(names, 0)
            self.keys, self.values, self.kinds = self.keys[rows], self.values[rows], self.kinds[rows]
            self.objects = None if self.objects is None else [self.objects[row] for row in rows]
            self._names.update(zip(self._names, range(len(rows)), strict=True))
            self.size, self.counts[DEAD], self.lent, self._ready = len(rows), 0, 0, None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling, read into memory, nothing writable shared."""
        keys, values = map(np.array, self.arrays())
        own = {"keys": keys, "values": values, "_names": dict(self.names), "counts": list(self.counts)}
        own |= {"kinds": self.kinds[: self.size].copy(), "objects": self.objects and list(self.objects)}
        return {**self.__dict__, **own, "mapped": False, "lent": 0, "_ready": None, "_checked": set()}

    def _check(self) -> None:
        """Assert every invariant."""
        n, size, kinds = len(self), self.size, self.kinds[: self.size]
        try:
            # Every living row has a name, or none has one yet; names and rows are in one order.
            assert list(self._names.values()) in ([], np.nonzero(kinds)[0].tolist())
            # The kinds are counted, and dead rows never outnumber the living.
            assert np.bincount(kinds, minlength=4).tolist() == self.counts and self.counts[DEAD] <= n
            # Numbers name or measure, never both.
            assert not (self.counts[OWN] and self.counts[NUMBER])
            # Everything has room for the rows in use, one object to a row.
            assert min(map(len, (self.keys, self.values, self.kinds))) >= size
            assert self.objects is None or len(self.objects) == size
            # Vectors that are their own name bear it.
            for name, row in self._names.items():
                one = self.read(row, row + 1)[0]
                assert kinds[row] != OWN or row_names(one, self.key_shape) == [name]
            # What is empty has forgotten everything.
            assert n or (size, self.value_shape, self.objects) == (0, None, None)
        except AssertionError:
            print({name: value for name, value in vars(self).items() if name != "_ready"})
            raise


def _grown(array: Array, capacity: int, size: int, dtype: Any) -> Array:
    """Return a new array with room for `capacity` rows, the first `size` of which are copied."""
    new = np.empty((capacity, *array.shape[1:]), dtype=dtype)
    new[:size] = array[:size]
    return new
