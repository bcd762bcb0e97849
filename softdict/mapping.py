"""A dictionary that is asked softly and named exactly: `SoftDict`, its hard view, `Lookup`."""

from __future__ import annotations

import copy as _copy
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from functools import partialmethod, wraps
from typing import Any, NamedTuple

import numpy as np

from softdict import _checks, display, encoders, persistence
from softdict._backend import OWN, fits
from softdict._checks import Array, Masks, Source, brief
from softdict._store import Store
from softdict.blend import Partial, answer, by_parts, checked, explain, partial, shaped
from softdict.encoders import Asked, Keys, key_name
from softdict.gradients import in_kind
from softdict.scores import by_length, widths
from softdict.weights import calibrate, entropy

_NO_MASKS = Masks()


class _Keys(KeysView[Any]):
    _mapping: Any

    def __reversed__(self) -> Iterator[Any]:
        return iter(reversed(self._mapping))


class _Values(ValuesView[Any]):
    _mapping: Any

    def __contains__(self, value: object) -> bool:
        return any(_checks.same(own, value) for own in self)

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))


class _Items(ItemsView[Any, Any]):
    _mapping: Any

    def __contains__(self, item: Any) -> bool:
        pair = isinstance(item, tuple) and len(item) == 2
        return pair and item[0] in self._mapping and _checks.same(self._mapping[item[0]], item[1])

    def __reversed__(self) -> Iterator[Any]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))


class HardView(MutableMapping[Any, Any]):
    """The entries of a SoftDict as a plain dict has them: live, writable, `KeyError` on a miss.

    Made by `SoftDict.hard`. Every method means what it means in dict.

    **Equivalent to:** the dict that was stored, under the names that the SoftDict uses.

    Examples
    --------
    >>> from softdict import SoftDict
    >>> sd = SoftDict({"cat": 1.0, "dog": 2.0}, encoder=lambda words: [[len(w), 1] for w in words])
    >>> sd.hard["cat"] += 1
    >>> dict(sd.hard)
    {'cat': 2.0, 'dog': 2.0}
    >>> sd.hard["cow"]
    Traceback (most recent call last):
    ...
    KeyError: 'cow'
    """

    def __init__(self, sd: SoftDict) -> None:
        self._sd, self._store = sd, sd._store

    def _row(self, key: Any) -> tuple[Any, int]:
        """Return the name of a stored key and its row."""
        try:
            name = key_name(self._store, self._sd.encoder, key)
        except ValueError:  # numbers that can be no key are a miss like any other
            raise KeyError(key) from None
        if name not in self._store.names:
            raise KeyError(key)
        return name, self._store.names[name]

    def __getitem__(self, key: Any) -> Any:
        return self._store.value(self._row(key)[1])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update([(key, value)])

    def __delitem__(self, key: Any) -> None:
        self._store.delete(self._row(key)[0])

    def __contains__(self, key: Any) -> bool:
        try:
            return bool(self._row(key))
        except KeyError:
            return False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._store.names)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._store.names)

    def __len__(self) -> int:
        return len(self._store)

    def __copy__(self) -> HardView:
        return self._sd.copy().hard

    def __repr__(self) -> str:
        return f"HardView({self._sd._text()})"

    def __eq__(self, other: object) -> bool:
        other = other.hard if isinstance(other, SoftDict) else other
        if not isinstance(other, Mapping):
            return NotImplemented
        same = (self._row(k)[1] for k, v in other.items() if k in self and _checks.same(self[k], v))
        return len(self) == len(other) == len(set(same))

    def keys(self) -> KeysView[Any]:
        """Return the names, in the order of insertion."""
        return _Keys(self)

    def values(self) -> ValuesView[Any]:
        """Return the stored values."""
        return _Values(self)

    def items(self) -> ItemsView[Any, Any]:
        """Return the names with their stored values."""
        return _Items(self)

    def popitem(self) -> tuple[Any, Any]:
        """Delete the newest entry and return its name and value."""
        if not len(self):
            raise KeyError("popitem(): this SoftDict is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the stored value of `key`, after storing `default` where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Delete everything; kinds, shapes and dtypes are forgotten too."""
        self._store.writable()
        self._store.clear()

    def update(self, entries: Any = (), /, **named: Any) -> None:
        """Overwrite or add entries like dict.update, but all of them or none."""
        sd, store = self._sd, self._store
        given = entries._store if isinstance(entries, (SoftDict, HardView)) else None
        if given is None:
            new_keys, new_values = _checks.pairs(entries, named)
            if new_keys:
                store.writable()
                sd._write(encoders.read_keys(store, sd.encoder, new_keys), new_values)
        elif named:  # both or none
            self.update(sd | entries | named)
        elif len(given):
            (rows, values), names = given.arrays(), list(given.names)
            if store.dtype is not None:  # which may round vectors to other names
                rows = _checks.numbers(rows, "the array of keys", store.dtype)
                own = _checks.row_names(rows, given.key_shape)
                names = [o if given.is_own(name) else name for name, o in zip(names, own, strict=True)]
            things = given.objects or list(values.reshape(len(values), *(given.value_shape or ())))
            sd._write(Keys(names, given.own, rows, given.key_shape), things)


def _handed(name: str) -> Any:
    """Return the method of SoftDict that hands its work to the hard view's method of that name."""
    method = getattr(HardView, name)

    @wraps(method)
    def hand(self: SoftDict, *args: Any, **named: Any) -> Any:
        return method(self.hard, *args, **named)

    return hand


def _setting(name: str, doc: str) -> Any:
    """Return an attribute of SoftDict that is checked when set."""

    def put(self: SoftDict, value: Any) -> None:
        self._settings.update(checked(**{name: value}))

    return property(lambda self: self._settings[name], put, doc=doc)


class SoftDict:
    """A dict that understands "close to": asking is soft, naming is hard.

    ``sd[query]`` blends all values, each in the share that its key's similarity to the query gives it:
    gaussian by default, of bandwidth sqrt(T), since then every distinct key is nearest to itself
    (``similarity="scaled_dot"`` makes it the attention of the Transformer). At temperature 0 the best
    entry answers alone, exactly; at infinity all answer alike. Whatever names an entry (``in``,
    ``sd[k] = v``, ``del``, ``pop``, ``keys``, ``items``, ``==`` ...) means what it means in dict;
    ``sd.hard`` is the plain dict.

    **Equivalent to:** ``w = np.exp(-((query - keys) ** 2).sum(-1) / 2 / T); value = w / w.sum() @ values``

    Parameters
    ----------
    entries : mapping, SoftDict or iterable of pairs
        Keys are numbers or vectors (their own names) or, with an encoder, anything hashable. Values are
        numbers of one fixed shape, which blend, or any other objects.
    encoder, value_encoder : callable, or object with encode or transform, optional
        Turns a list of m keys into vectors (m, d), a list of m values into numbers (m, ...).
    similarity, temperature, weighting, top_k, min_score, null_score
        The settings, as in `soft_lookup`; attributes, checked when set.
    dtype : dtype, optional
        float32 or float64: what every key and value is rounded to before it is named.

    Notes
    -----
    *Where Python asks for you:* ``dict(sd)``, ``{**sd}``, ``plain |= sd``, ``ChainMap``, ``match`` and
    ``sd[k] += 1`` go through ``[]``, so they are soft. The plain things are ``dict(sd.hard)`` and
    ``sd.hard[k] += 1``. ``SoftDict(sd)``, ``sd.update(other)`` and ``|`` take names, vectors and values,
    never blends.

    Asking costs O(n (d + e)) a query, adding an entry O(d + e) and deleting one O(1), both amortized (but
    O(n) for what follows a deletion where labels are partly numbers).
    Ask: ``[]``, get, lookup, self_attention, at, calibrate, partial. Name: everything that dict has, add,
    hard, key_vectors, value_vectors. `save` and `load` keep it in a file.

    Examples
    --------
    >>> from softdict import SoftDict
    >>> sd = SoftDict({0: 10.0, 1: 20.0, 2: 40.0})    # keys and values are numbers
    >>> round(sd[1], 3)                               # asks: all answer, 1 the loudest
    22.741
    >>> sd.at(temperature=0)[0.9], sd.hard[1]         # the nearest; the one of that name
    (20.0, 20.0)
    >>> sd[3] = 80                                    # names
    >>> 0.9 in sd, 3 in sd, list(sd)
    (False, True, [0.0, 1.0, 2.0, 3.0])
    >>> del sd[3]
    >>> sd[[0.5, 1.5]].round(3)                       # a list of numbers is a batch
    array([18.884, 26.893])
    >>> sd.at(temperature=float("inf"))[-99]          # an average is the other end of the dial
    23.333333333333332
    >>> sd["cat"]
    Traceback (most recent call last):
    ...
    KeyError: "'cat' names no entry, and there is no encoder to turn it into a vector; ..."
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, entries: Any = (), /, *, encoder: Any = None, value_encoder: Any = None,
        similarity: Any = "gaussian", temperature: float = 1.0, weighting: Any = "softmax",
        top_k: int | None = None, min_score: float | None = None, null_score: float | None = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        self._settings = checked(
            similarity=similarity, temperature=temperature, weighting=weighting, top_k=top_k,
            min_score=min_score, null_score=null_score,
        )  # fmt: skip
        encoders.check(encoder, value_encoder)
        self.encoder, self.value_encoder = encoder, value_encoder
        self._store = Store(_checks.store_dtype(dtype))
        self.update(entries)

    def __setattr__(self, name: str, value: Any) -> None:
        _checks.check_attribute(self, SoftDict, name, ("encoder", "value_encoder"))
        super().__setattr__(name, value)

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any, **settings: Any) -> SoftDict:
        """Return a new SoftDict in which all keys have one value."""
        return cls(((key, value) for key in keys), **settings)

    @classmethod
    def from_arrays(
        cls, keys: Any, values: Any, labels: Any = None, *, copy: bool | None = None, **settings: Any
    ) -> SoftDict:
        """Return a new SoftDict over arrays.

        Parameters
        ----------
        keys, values : arrays of shape `(n, d)` or `(n,)`, and `(n, *value_shape)`, or a list of n objects
            Without labels each key vector is its own name.
        labels : sequence of n distinct hashable objects, optional
            The names.
        copy : bool, optional
            By default arrays that nobody can write (read-only memory maps, read-only arrays on a
            read-only base) are shared and others are copied; False promises not to write to them.

        Raises
        ------
        ValueError
            For NaN and infinity, unequal lengths, labels given twice, equal vectors without labels. Memory
            maps are not read here: they are checked by blocks when used, and named when a name is needed.

        Examples
        --------
        >>> import numpy as np
        >>> from softdict import SoftDict
        >>> sd = SoftDict.from_arrays(np.eye(2), [1.0, 2.0], labels=["x", "y"])
        >>> sd.hard["y"], "x" in sd
        (2.0, True)
        >>> SoftDict.from_arrays([0, 1, 0], [1, 2, 3])
        Traceback (most recent call last):
        ...
        ValueError: rows 0 and 2 of the keys are equal, but ...
        """
        sd = cls(**settings)
        entries, mapped = encoders.read_arrays(sd._store, sd.value_encoder, keys, values, labels, copy)
        if len(entries.keys):
            sd._store.adopt(entries, mapped)
        return sd

    def save(self, path: Any) -> None:
        """Write everything into one file, which `load` reads in any process, to the last bit.

        Parameters
        ----------
        path : path
            The name of the file, as it is. One that ends in ``.safetensors`` (extra `safetensors`) can be
            memory-mapped; any other is an ``.npz`` whatever its name. Nothing is pickled: names and objects
            are text, numbers, bytes, bools, None, and tuples of them, objects lists and dicts too.

        Raises
        ------
        TypeError
            For names and objects that are anything else, before anything is written.
        OSError
            As `open` does, and for what is there but is no regular file.

        Notes
        -----
        The file is written beside, under a name like ``.0123456789abcdef.softdict``, then moved into place:
        a crash leaves the old file or the new one. O(n (d + e)) time, and memory for the names and objects
        only. Functions and encoders that are not softdict's own are not in the file: `load` asks for them.

        Examples
        --------
        >>> import os, tempfile
        >>> from softdict import SoftDict
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "table.npz")
        >>> SoftDict({0: 10.0, 1: 20.0}, temperature=0.5).save(path)
        >>> SoftDict.load(path)
        SoftDict({0.0: 10.0, 1.0: 20.0}, similarity='gaussian', T=0.5)
        >>> SoftDict({0: {"a set"}}).save(path)
        Traceback (most recent call last):
        ...
        TypeError: the value of 0.0 is or holds {'a set'} (a set), but text, numbers, bytes, ...
        >>> folder.cleanup()
        """
        own = {"encoder": self.encoder, "value_encoder": self.value_encoder}
        persistence.save(path, self._store, {**self._settings, **own})

    @classmethod
    def load(cls, path: Any, **settings: Any) -> SoftDict:
        """Return the SoftDict that `save` wrote: names, order, vectors, dtypes, objects, settings, answers.

        Parameters
        ----------
        path : path
            The file; its first bytes tell of which kind it is.
        **settings
            Encoders and settings in place of the saved ones. Functions and encoders that are not softdict's
            own have to be given; ``encoder=None`` does without.

        Raises
        ------
        ValueError
            For a file that is damaged or is none of softdict's. Nothing in it is run, and no more room is
            made than it takes itself (some fifty times as much for names and objects).
        TypeError
            For a function or an encoder that is to be given.
        OSError, ImportError
            As `open` does; where a ``.safetensors`` needs its extra.

        Notes
        -----
        Checksums find what has changed by accident. A ``.safetensors`` is not read but mapped: all processes
        share its pages, and writing is a TypeError that names `copy`. Up to 256 MiB its checksums are
        compared now, and it answers to the last bit like arrays in memory. A larger one opens at once,
        checks each part when it is first used (for NaN and infinity, not its checksum) and answers to
        rounding; its `copy` is in memory. Replace a mapped file by `save`, never write into it.

        Examples
        --------
        >>> import os, tempfile
        >>> from softdict import SoftDict
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "lengths.npz")
        >>> SoftDict({"cat": 1, "horse": 2}, encoder=lambda words: [[len(w)] for w in words]).save(path)
        >>> SoftDict.load(path)
        Traceback (most recent call last):
        ...
        TypeError: the encoder of this SoftDict was <lambda>, which a file does not keep, so ...
        >>> SoftDict.load(path, encoder=None).hard["horse"]
        2.0
        >>> folder.cleanup()
        """
        store, settings = persistence.load(path, settings)
        sd = cls(**settings)
        sd._store = store
        return sd

    # ---- settings ------------------------------------------------------------------------------

    similarity = _setting("similarity", "How alike query and key are.")
    temperature = _setting("temperature", "From 0, the best entry, to infinity, the plain mean.")
    weighting = _setting("weighting", "How scores become shares.")
    top_k = _setting("top_k", "How many entries share the answer at most; None: all.")
    min_score = _setting("min_score", "What an entry has to score to take part; None: anything.")
    null_score = _setting("null_score", "What the silent entry scores; None: there is none.")

    def at(self, **settings: Any) -> SoftDict:
        """Return a view with other settings: same entries, no copy, writes are seen by both."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _settings={**self._settings, **checked(**settings)})
        return view

    # ---- asking is soft ------------------------------------------------------------------------

    def __getitem__(self, query: Any) -> Any:
        """Return the blend for one query, or for a batch of them."""
        asked = self._read(query)
        value, reached = self._ask(asked)
        if np.count_nonzero(reached) < len(reached):
            raise KeyError(_checks.unreached(query, reached, asked.single))
        return value if type(query) in OWN else in_kind(value, self, query)

    def get(self, query: Any, default: Any = None) -> Any:
        """Return the blend; `default` for a query that has none, or in such rows of a batch.

        Values that are objects do not blend: ``sd.at(temperature=0).get(query, default)`` picks one.
        """
        try:
            asked = self._read(query, lenient=True)
        except KeyError:
            return default
        value, reached = self._ask(asked)
        if asked.missing is not None:
            reached = np.logical_and(reached, ~asked.missing)
        if not all(reached):
            value = default if asked.single else _checks.filled(value, reached, default)
        return value if type(query) in OWN else in_kind(value, self, query)

    def lookup(
        self, query: Any, *, where: Any = None, bias: Any = None, exclude_self: bool = False
    ) -> Lookup:
        """Return the same answer as ``sd[query]``, and why; zeros for a query that reaches no entry.

        `where` and `bias`, (n,) or (m, n), are those of `soft_lookup`; `where` may be a function of key and
        value too, asked once for each entry, as in ``where=lambda key, value: value["year"] > 2000``.
        `exclude_self` leaves out the entry that the query names; ValueError where it names none.
        """
        return Lookup(self, self._read(query), where, bias, exclude_self)

    def self_attention(self, *, where: Any = None, bias: Any = None, exclude_self: bool = False) -> Lookup:
        """Return the `Lookup` in which every entry asks: n queries."""
        return Lookup(self, self._everyone(), where, bias, exclude_self)

    def calibrate(self, effective: float, queries: Any = None) -> float:
        """Return the temperature at which the median query rests on `effective` entries.

        Without queries each stored key asks, itself left out. O(m n) memory. The other settings apply.
        ValueError where no temperature reaches `effective`.
        """
        asked = self._everyone() if queries is None else self._read(queries)
        masks = self._masks(asked, None, None, queries is None)
        scores, *_ = explain(asked.vectors, self._store.arrays()[0], masks, self._settings)
        rules = {name: self._settings[name] for name in ("weighting", "top_k", "min_score")}
        return calibrate(scores, effective, **rules)

    def partial(self, query: Any, offset: int = 0) -> Partial:
        """Return a summary of this dict's answer that merges with those of other dicts.

        ``(sd1.partial(q) + sd2.partial(q, offset=len(sd1))).finish()`` is ``(sd1 | sd2)[q]`` for dicts
        that share no key. `offset` is how many entries come before this part; only `top_k` asks for it.
        TypeError for objects and for callable weightings.
        """
        offset = _checks.check_count("offset", offset, "in partial. Say how many entries come before", 0)
        if not len(self):
            return Partial(None, by_parts(None, self._settings))
        if self._store.value_shape is None:
            raise TypeError(self._cannot_blend())
        return self._partial(self._read(query), _NO_MASKS, offset)

    # ---- asking the engine -----------------------------------------------------------------------

    def _filled(self) -> Store:
        if not self._store.size:
            raise KeyError("this SoftDict is empty; store an entry first, or use get(query, default)")
        return self._store

    def _width(self) -> int:
        """Return how wide queries have to be."""
        d = self._store.keys.shape[1]
        wanted = widths(self._settings["similarity"]) or (d, d)
        _checks.check_width(self.similarity, wanted[1], d)
        return wanted[0]

    def _read(self, query: Any, lenient: bool = False) -> Asked:
        return encoders.read_query(self._filled(), self.encoder, query, self._width(), lenient)

    def _everyone(self) -> Asked:
        keys = self._filled().arrays()[0]
        encoders.keys_may_ask(self._store, "every key", self._width())
        return Asked(list(self), keys, False, np.arange(len(keys)))

    def _masks(self, asked: Asked, where: Any, bias: Any, exclude_self: bool) -> Masks:
        hint = "in lookup. Use where= to leave out entries of your choice"
        _checks.check_flag("exclude_self", exclude_self, hint)
        shape = (len(asked.vectors), len(self)), asked.single
        where = _checks.chosen(where, self.items()) if callable(where) else where
        skip = encoders.own_rows(self._store, asked) if exclude_self else None
        return Masks(_checks.check_where(where, *shape), _checks.check_bias(bias, *shape), skip)

    def _ask(self, asked: Asked, masks: Masks = _NO_MASKS) -> tuple[Any, Any]:
        """Return the answer as the caller gets it, and which queries reached something (m,)."""
        store = self._store
        if store.value_shape is None:
            return self._pick(asked, masks)
        if store.in_parts and not callable(self._settings["weighting"]):
            return self._partial(asked, masks).end()
        keys, values = store.arrays()
        value, reached = answer(self._source(asked, keys, values, masks), self._settings, values.dtype)
        return shaped(value, self._shape(asked), values.dtype), reached

    def _source(self, asked: Asked, keys: Array, values: Array, masks: Masks) -> Source:
        """Return what the engine is asked, with the lengths of the keys where it needs them."""
        query, width = asked.vectors, keys.shape[1] + values.shape[1]
        spared = not by_length(self._settings["similarity"]) or fits(len(query), len(keys), width)
        return Source(query, keys, values, masks, None if spared else self._store.norms())

    def _shape(self, asked: Asked) -> tuple[int, ...]:
        """Return the shape of an answer."""
        return (() if asked.single else (len(asked.vectors),)) + (self._store.value_shape or ())

    def _pick(self, asked: Asked, masks: Masks) -> tuple[Any, Any]:
        """Return the winners' objects, at T = 0; the earliest of a tie."""
        if self._settings["temperature"] != 0:
            raise TypeError(self._cannot_blend())
        keys, objects = self._store.arrays()[0], self._store.objects or []  # in this order: it sweeps
        # in the place of values the row, and a share
        source = self._source(asked, keys, np.column_stack([np.arange(len(keys)), np.ones(len(keys))]), masks)
        picked, reached = answer(source, {**self._settings, "top_k": 1, "weighting": "softmax"})
        reached = reached & (picked[:, 1] > 0)  # else the silent entry won
        things = [objects[int(row)] if hit else None for row, hit in zip(picked[:, 0], reached, strict=True)]
        return things[0] if asked.single else things, reached

    def _cannot_blend(self) -> str:
        return _checks.cannot_blend(next(iter(self.values())))

    def _partial(self, asked: Asked, masks: Masks, offset: int = 0) -> Partial:
        store, query, shape, whole = self._store, asked.vectors, self._shape(asked), Partial(None, {})
        for start, keys, values in store.blocks() if store.mapped else [(0, *store.arrays())]:
            source = Source(query, keys, values, masks.tile(slice(None), slice(start, start + len(keys))))
            whole += partial(source, self._settings, offset + start, (shape, values.dtype))
        return whole

    # ---- naming is hard: the hard view does it ---------------------------------------------------

    @property
    def hard(self) -> HardView:
        """The plain-dict view of the same entries, live and writable."""
        return HardView(self)

    __contains__, __setitem__, __delitem__ = map(_handed, ("__contains__", "__setitem__", "__delitem__"))
    __iter__, __reversed__, __len__ = map(_handed, ("__iter__", "__reversed__", "__len__"))
    keys, values, items = map(_handed, ("keys", "values", "items"))
    pop, popitem, setdefault, clear, update = map(_handed, "pop popitem setdefault clear update".split())

    @property
    def key_vectors(self) -> Array:
        """The key vectors `(n, *key_shape)`, read-only, good until the next write."""
        return self._store.lend()[0].reshape(len(self), *self._store.key_shape)

    @property
    def value_vectors(self) -> Array:
        """The values `(n, *value_shape)`, read-only, good until the next write."""
        if self._store.value_shape is None and len(self):
            raise TypeError(self._cannot_blend())
        return self._store.lend()[1].reshape(len(self), *(self._store.value_shape or ()))

    def add(self, key: Any, key_vector: Any, value: Any) -> None:
        """Store an entry under a label, with its key vector beside it.

        Overwrites vector and value of an entry of that name, and keeps its place. A label that is a
        number, or a tuple of numbers, is refused where keys are plain numbers and beside entries that are
        their own vector.
        """
        self._write(encoders.read_key(self._store, key, key_vector), [value])

    def _write(self, keys: Keys, values: list[Any]) -> None:
        """Decide, then act: all or nothing."""
        self._store.writable()
        self._store.write(encoders.read_entries(self._store, self.value_encoder, keys, values))

    def __eq__(self, other: object) -> bool:
        """Compare names and values, with a SoftDict key vectors too; never settings or order."""
        same = self.hard.__eq__(other)
        if same is not True or not isinstance(other, SoftDict):
            return same
        ours, theirs = self._store.arrays()[0], other._store.arrays()[0]  # both in the order of their names
        return np.array_equal(ours, theirs[[other._store.names[name] for name in self._store.names]])

    def copy(self) -> SoftDict:
        """Return an independent copy with the same settings; a memory map is read into memory."""
        new = self.at()
        new._store = _copy.copy(self._store)
        return new

    __copy__ = copy

    def __or__(self, other: object) -> SoftDict:
        if not isinstance(other, Mapping):
            return NotImplemented
        new = self.copy()
        new.update(other)
        return new

    def __ror__(self, other: object) -> SoftDict:
        if not isinstance(other, Mapping):
            return NotImplemented
        new = self | other  # finds vectors among our own
        named = [(key, key_name(new._store, new.encoder, key)) for key in other]
        new.update(self)
        first = (name if new._store.is_own(name) else key for key, name in named)
        new._store.sweep(list(dict.fromkeys([*first, *self])))
        return new

    def __ior__(self, other: Any) -> SoftDict:  # type: ignore[misc]  # takes pairs, like dict's
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"SoftDict({self._text()}, similarity={self.similarity!r}, T={self.temperature:g})"

    def _repr_html_(self) -> str:
        return display.contents(self._store.first(12), len(self), self.similarity, self.temperature)

    def _text(self) -> str:
        """Return the first entries as a dict shows them."""
        n, some = len(self), [f"{brief(name)}: {brief(value)}" for name, value in self._store.first(4)]
        return "{" + ", ".join(some) + (f", ... {n - 4} more" if n > 4 else "") + "}"


MutableMapping.register(SoftDict)


class Match(NamedTuple):
    """One entry of `Lookup.top`, and how much of the answer is its.

    **Equivalent to:** ``(keys[j], values[j], weights[j], scores[j])``

    Examples
    --------
    >>> from softdict import SoftDict
    >>> SoftDict({0: 10.0, 5: 20.0}).lookup(5).top(1)
    [Match(key=5.0, value=20.0, weight=0.9999962733607158, score=0.0)]
    """

    key: Any
    value: Any
    weight: float
    score: float


class Lookup:
    """An answer, and why: data first, picture second.

    Made by `SoftDict.lookup` and `SoftDict.self_attention`. It is a snapshot; printing it shows how much
    of the highlighter each entry gets. For a batch every number gains a first axis m, and `winner`, `top`
    and `vote` become lists.

    **Equivalent to:** ``weights = softmax(scores / T + bias); value = weights @ values``

    Attributes
    ----------
    queries, keys, value
        What was asked; the names of the n entries; what ``sd[query]`` returns, None for objects.
    scores, weights : array of shape (n,) or (m, n)
        Scores of every entry, -inf for what a mask took out. Weights sum to 1 less `null_weight`, or to 0
        where no entry could be looked at.
    null_weight, logsumexp, entropy, effective : float or array of shape (m,)
        The silent entry's share; log of the sum of exp(logits); entropy in nats of the entries' shares
        rescaled to sum to 1, and its exponential: on how many entries does this rest?
    winner
        The name of the best entry that takes part; None where none does.

    Examples
    --------
    >>> from softdict import SoftDict
    >>> why = SoftDict({0: 10.0, 1: 20.0, 3: 40.0}).lookup(0.9)
    >>> why.weights.round(3), round(why.value, 3), why.winner, round(float(why.effective), 2)
    (array([0.376, 0.561, 0.062]), 17.481, 1.0, 2.37)
    >>> [match.key for match in why.top(2)]
    [1.0, 0.0]
    """

    def __init__(self, sd: SoftDict, asked: Asked, where: Any, bias: Any, exclude_self: bool) -> None:
        masks, store = sd._masks(asked, where, bias, exclude_self), sd._store
        why = explain(asked.vectors, store.arrays()[0], masks, sd._settings)
        scores, weights, null_weight, logsumexp, order = why
        blends = store.value_shape is not None or sd.temperature == 0
        self.queries, self.keys = _checks.snapshot(asked.what), list(sd)
        self.value = sd._ask(asked, masks)[0] if blends else None
        self._single, self._order = asked.single, order
        self._values = list(store.objects) if store.objects is not None else store.lend()[1]
        self._value_shape = store.value_shape
        self._look = {"similarity": sd.similarity, "temperature": sd.temperature}
        spread = entropy(weights)
        effective = np.where(weights.any(axis=1), np.exp(spread), 0.0)
        winner = [self.keys[row[0]] if len(row) else None for row in order]
        each: list[Any] = [scores, weights, null_weight, logsumexp, spread, effective, winner]
        each = [x[0] for x in each] if asked.single else each
        self.scores, self.weights, self.null_weight, self.logsumexp, *rest = each
        self.entropy, self.effective, self.winner = rest

    def _stored(self, row: int) -> Any:
        value = self._values[row]
        if isinstance(self._values, list):
            return value
        return value.item() if self._value_shape == () else value.reshape(self._value_shape).copy()

    def top(self, k: int) -> Any:
        """Return the k best entries that take part as records (key, value, weight, score).

        A prefix of ``top(k + 1)``; ranked by ``score / T + bias``, the earlier first among equals.
        """
        k = _checks.check_count("k", k, "in top(k). Ask for as many entries as you want to see")
        rows = zip(np.atleast_2d(self.weights), np.atleast_2d(self.scores), self._order, strict=True)
        tops = [
            [Match(self.keys[j], self._stored(j), float(w[j]), float(s[j])) for j in best[:k].tolist()]
            for w, s, best in rows
        ]
        return tops[0] if self._single else tops

    def vote(self) -> Any:
        """Return the weight of each distinct stored value as a dict, heaviest first.

        Arrays and lists stand as tuples. O(n) for each query.
        """
        votes, names = [], [_checks.as_vote(self._stored(j)) for j in range(len(self.keys))]
        for row in np.atleast_2d(self.weights):
            total: Counter[Any] = Counter()
            for name, weight in zip(names, row.tolist(), strict=True):
                total[name] += weight
            votes.append(dict(total.most_common()))
        return votes[0] if self._single else votes

    def __repr__(self, as_html: bool = False) -> str:
        """Return the highlighter, for a batch the matrix of weights."""
        options = {"null_weight": self.null_weight, "as_html": as_html}
        if not self._single:
            asked = what if isinstance(what := self.queries, list) else list(map(_checks.as_name, what))
            return display.matrix(asked, self.keys, self.weights, **options)
        values, order = [self._stored(j) for j in range(len(self.keys))], self._order[0]
        return display.highlighter(
            self.queries, self.keys, self.scores, self.weights, values, order=order, soft=self.value,
            hard=values[order[0]] if len(order) else None, effective=self.effective, **self._look, **options,
        )  # fmt: skip

    _repr_html_ = partialmethod(__repr__, as_html=True)
