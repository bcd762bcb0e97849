"""The rows behind a SoftDict: appended in amortized constant time, named, deleted in order.

A name leads to the row where its numbers stand. Deleting an entry only takes its name away: rows
without a name are swept out together when somebody asks, or when they outnumber the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from softdict import _backend
from softdict._checks import Array, check_rows, equal_rows_text, float_dtype, is_numeric, numbers, row_names

#: Bytes up to which a memory map of floats answers like arrays in memory, to the last bit. A larger one,
#: which may not fit there, is read part by part, each once.
WHOLE = 2**28


class Entries(NamedTuple):
    """Checked entries on their way into a store; row i of everything belongs to names[i]."""

    names: Sequence[Hashable]  # each once; none at all where vectors are still to be named
    own: bool  # whether names that are numbers are their own vectors
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
        self.adopt(Entries([], False, np.empty((0, 0)), np.empty((0, 0)), None, (), None))

    def adopt(self, new: Entries, mapped: bool = False) -> None:
        """Become these entries. The arrays are shared until the first write in place."""
        self.keys, self.values, self.objects = new.keys, new.values, new.objects
        self.key_shape, self.value_shape, self.mapped = new.key_shape, new.value_shape, mapped
        exact = all(x.flags.forc and x.dtype == (self.dtype or float_dtype(x)) for x in new[2:4])
        self.in_parts = mapped and not (exact and new.keys.nbytes + new.values.nbytes <= WHOLE)
        self._numeric: bool | None = any(map(is_numeric, new.names)) if new.names else len(new.keys) > 0
        self.own = new.own and self._numeric
        self.size = self.lent = len(new.keys)  # rows in use; rows seen by others, never written again
        self._ready: tuple[Array, Array] | None = None  # what `arrays` returned
        self._norms, self.measured = np.empty(self.size), 0  # the lengths of the first so many rows
        self._checked: set[tuple[int, int]] = set()  # the blocks of a map found good
        self._names.update(zip(new.names, range(self.size), strict=False))

    def __len__(self) -> int:
        return len(self._names) or self.size  # names may still be to come

    # ---- reading -----------------------------------------------------------------------------

    @property
    def names(self) -> dict[Hashable, int]:
        """The names in order, with their rows; those of `from_arrays` are made when first needed."""
        if self.size and not self._names:
            names: dict[Hashable, int] = {}
            for start, keys, _ in self.blocks():
                for row, name in enumerate(row_names(keys, self.key_shape), start):
                    if (first := names.setdefault(name, row)) != row:
                        raise ValueError(equal_rows_text(first, row, len(self)))
            self._names.update(names)
        return self._names

    def first(self, count: int) -> list[tuple[Hashable, Any]]:
        """Return the first names and values, without reading a whole map for them."""
        self.sweep()
        unread = self.size and not self._names
        names = row_names(self.read(0, count)[0], self.key_shape) if unread else islice(self._names, count)
        return [(name, self.value(row)) for row, name in enumerate(names)]

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
            self._ready = keys, values = self.read(0, self.size)
            keys.flags.writeable = values.flags.writeable = False
        return self._ready

    def norms(self) -> Any:
        """Return the lengths of all keys (n,), kept for the next time; None where a map is read in parts."""
        if self.in_parts:
            return None
        keys, known = self.arrays()[0], self.measured
        self._norms[known : len(keys)] = _lengths(keys[known:])
        self.measured = len(keys)
        return self._norms[: len(keys)]

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

    def is_own(self, name: Hashable) -> bool:
        """Tell whether a name is, or in this store would be, its own vector."""
        return self.own and self.numeric and is_numeric(name)

    @property
    def numeric(self) -> bool:
        """Whether some names are numbers or tuples of them; looked up anew after a deletion."""
        if self._numeric is None:  # not counted, since a dict deletes 1 when told to delete True
            self._numeric = any(map(is_numeric, self._names))
        return self._numeric

    def numbers_name(self) -> bool:
        """Tell whether some labels are numbers, so that numbers name instead of measuring."""
        return not self.own and self.numeric

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
        names, added, size = self.names, dict[Hashable, int](), self.size
        rows = [names[x] if x in names else added.setdefault(x, size + len(added)) for x in new.names]
        self._room(size + len(added), min(rows), new)
        self.keys[rows], self.values[rows] = new.keys, new.values
        if self.objects is not None and new.objects is not None:
            self.objects.extend([None] * len(added))
            for row, thing in zip(rows, new.objects, strict=True):
                self.objects[row] = thing
        numeric = self.numeric or any(map(is_numeric, added))
        self.own, self._numeric = (self.own if self.numeric else new.own) and numeric, numeric
        names.update(added)
        self.size, self._ready = size + len(added), None

    def _room(self, needed: int, lowest: int, new: Entries) -> None:
        """Make room for that many rows, and the rows from `lowest` on and the dtypes writable."""
        types = [np.result_type(a, b) for a, b in zip((self.keys, self.values), new[2:4], strict=True)]
        grown = 2 * needed if needed > len(self.keys) else len(self.keys)
        if grown > len(self.keys) or lowest < self.lent or types != [self.keys.dtype, self.values.dtype]:
            self.lent = 0
            self.keys = _grown(self.keys, grown, self.size, types[0])
            self.values = _grown(self.values, grown, self.size, types[1])
            self._norms = _grown(self._norms, grown, self.measured, np.float64)
        self.measured = min(self.measured, lowest)

    def delete(self, name: Hashable) -> None:
        """Delete an entry; KeyError where there is none. O(1), amortized."""
        self.writable()
        row = self.names.pop(name)
        self._numeric = None if self._numeric else self._numeric  # no deletion makes a name a number
        self._ready = None
        if row == self.size - 1:  # the newest leaves no gap behind
            self.size, self.measured = row, min(self.measured, row)
        if self.objects is not None:
            self.objects[row : row + 1] = [None] * (row < self.size)
        if not self._names:
            self.clear()
        elif self.size > 2 * len(self):
            self.sweep()

    def sweep(self, names: Sequence[Hashable] | None = None) -> None:
        """Take rows without a name out; with all names in another order, bring the rows to that order."""
        if names is not None or self.size > len(self):
            order = self._names.values() if names is None else map(self.names.__getitem__, names)
            rows = np.fromiter(order, np.intp, len(self))
            self._names = self._names if names is None else dict.fromkeys(names, 0)
            self._names.update(zip(self._names, range(len(rows)), strict=True))
            self.keys, self.values = (x.take(rows, axis=0) for x in (self.keys, self.values))  # not x[rows]:
            self._norms = self._norms.take(rows)  # that takes three times as long
            self.measured = int(np.searchsorted(rows, self.measured)) if names is None else 0
            self.objects = None if self.objects is None else [self.objects[row] for row in rows.tolist()]
            self.size, self.lent, self._ready = len(rows), 0, None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling, read into memory, nothing writable shared."""
        keys, values = map(np.array, self.arrays())
        own = {"keys": keys, "values": values, "_names": dict(self.names), "mapped": False, "lent": 0}
        own |= {"objects": self.objects and list(self.objects), "_ready": None, "_checked": set()}
        own |= {"_norms": np.zeros(len(keys)), "measured": 0, "in_parts": False}
        return {**self.__dict__, **own}

    def _check(self) -> None:
        """Assert every invariant."""
        n, size, rows = len(self), self.size, list(self._names.values())
        # Names and rows are in one order, and rows without a name never outnumber the others.
        assert rows == sorted(rows) and (not rows or rows[-1] < size <= 2 * n)
        # Whether some names are numbers is known.
        assert self.numeric == (any(map(is_numeric, self._names)) if rows else n > 0)
        # Everything has room for the rows in use, one object to a row.
        assert min(len(self.keys), len(self.values)) >= size
        assert self.objects is None or len(self.objects) == size
        # The lengths that are kept are those of the keys.
        measured, keys = self._norms[: self.measured], self.keys[: self.measured]
        assert self.measured <= size and np.allclose(measured, _lengths(keys), rtol=1e-12, atol=0)
        # Vectors that are their own name bear it.
        for name, row in self._names.items():
            one = self.read(row, row + 1)[0]
            assert not self.is_own(name) or row_names(one, self.key_shape) == [name]
        # What is empty has forgotten everything.
        assert n or (size, self.own, self.value_shape, self.objects) == (0, False, None, None)


def _grown(array: Array, capacity: int, size: int, dtype: Any) -> Array:
    """Return a new array with room for `capacity` rows, the first `size` of which are copied."""
    new = np.empty((capacity, *array.shape[1:]), dtype=dtype)
    new[:size] = array[:size]
    return new


def _lengths(keys: Array) -> Any:
    """Return the lengths of keys (m, d) in float64, where squares of float32 neither overflow nor vanish."""
    return np.sqrt(np.einsum("md,md->m", keys, keys, dtype=np.float64))
