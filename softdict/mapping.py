"""A dictionary that is asked softly and named exactly: `SoftDict`, its hard view, `Lookup`."""

from __future__ import annotations

import copy as _copy
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from softdict import display
from softdict._checks import (
    Array,
    check_bias,
    check_where,
    is_number,
    is_numeric,
    largest,
    numbers,
    refuse_equal_rows,
    row_names,
    shape_text,
    within,
)
from softdict._store import LABEL, NUMBER, OWN, Entries, Store, is_mapped, is_shared
from softdict.blend import Explained, Partial, answer, check_settings, explain, partial
from softdict.encoders import as_encoder
from softdict.scores import widths
from softdict.weights import calibrate, entropy, ranking

#: A Lookup holds at most so many weights, m times n.
LARGEST_LOOKUP = 2**26
_MISSING: Any = object()
_NO_MASKS: dict[str, Any] = {"where": None, "bias": None, "skip": None}


class _Asked(NamedTuple):
    """Queries as vectors."""

    what: Any  # as the caller gave them: a name, an array, a list
    vectors: Array  # (m, d)
    single: bool
    rows: Any = None  # (m,) the entries that were asked by name, -1 for others
    missing: Any = None  # (m,) of bool: what the encoder does not know


class _View:
    """What dict's views have beyond those of collections.abc: they go backward too."""

    def __init__(self, hard: HardView) -> None:
        self._mapping = hard

    def __reversed__(self) -> Iterator[Any]:
        return map(self._item, reversed(self._mapping))

    def _item(self, key: Any) -> Any:
        return key


class _Keys(_View, KeysView[Any]):
    pass


class _Values(_View, ValuesView[Any]):
    def _item(self, key: Any) -> Any:
        return self._mapping[key]


class _Items(_View, ItemsView[Any, Any]):
    def _item(self, key: Any) -> Any:
        return key, self._mapping[key]


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

    def __getitem__(self, key: Any) -> Any:
        return self._store.value(self._row(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._sd.update([(key, value)])

    def __delitem__(self, key: Any) -> None:
        self._row(key)
        self._store.delete(self._sd._name(key))

    def __contains__(self, key: Any) -> bool:
        return self._sd._name(key) in self._store.names

    def __iter__(self) -> Iterator[Any]:
        return iter(self._store.names)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._store.names)

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        return f"HardView({self._sd._text()})"

    def __eq__(self, other: object) -> bool:
        other = other.hard if isinstance(other, SoftDict) else other
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and all(
            key in self and _same(self[key], value) for key, value in other.items()
        )

    def _row(self, key: Any) -> int:
        try:
            return self._store.row(self._sd._name(key))
        except KeyError:
            raise KeyError(key) from None

    def keys(self) -> KeysView[Any]:
        """Return the names, in the order of insertion."""
        return _Keys(self)

    def values(self) -> ValuesView[Any]:
        """Return the stored values."""
        return _Values(self)

    def items(self) -> ItemsView[Any, Any]:
        """Return the names with their stored values."""
        return _Items(self)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Delete an entry and return its value; `default`, if given, where there is none."""
        try:
            value = self[key]
        except KeyError:
            if default is _MISSING:
                raise
            return default
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Delete the newest entry and return its name and value."""
        if not len(self):
            raise KeyError("popitem(): this SoftDict is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        """Delete everything; kinds, shapes and dtypes are forgotten too."""
        self._store.writable()
        self._store.clear()

    def update(self, entries: Any = (), /, **named: Any) -> None:
        """Overwrite or add entries like dict.update, but all of them or none."""
        if isinstance(entries, HardView):
            entries = entries._sd
        sd, given = self._sd, entries._store if isinstance(entries, SoftDict) else None
        if given is not None and len(given):
            rows, kinds = given.arrays()[0], given.kinds[: given.size]
            names = list(given.names)
            if sd._store.dtype is not None:  # which may round them to other names
                rows = numbers(rows, "the keys", sd._store.dtype)
                own = row_names(rows, given.key_shape)
                names = [o if k == OWN else n for n, k, o in zip(names, kinds, own, strict=True)]
            values = [given.value(row) for row in range(len(names))]
            sd._write(values, names, kinds, rows, given.key_shape)
            entries = ()
        keys, values = _pairs(entries)
        if keys or named:
            keys, values = [*keys, *named], [*values, *named.values()]
            self._store.writable()
            sd._write(values, *sd._decide(keys))


class SoftDict:
    """A dict that understands "close to": asking is soft, naming is hard.

    ``sd[query]`` blends all values, each in the share that its key's similarity to the query gives
    it: gaussian by default, of bandwidth sqrt(T), since then every distinct key is nearest to
    itself (``similarity="scaled_dot"`` makes it the attention of the Transformer). At temperature 0
    the best entry answers alone, exactly; at infinity all answer alike. Whatever names an entry
    (``in``, ``sd[k] = v``, ``del``, ``pop``, ``keys``, ``items``, ``==`` ...) means what it means
    in dict; ``sd.hard`` is the plain dict.

    **Equivalent to:** ``w = np.exp(-((query - keys) ** 2).sum(-1) / 2 / T); value = w / w.sum() @
    values``

    Parameters
    ----------
    entries : mapping, SoftDict or iterable of pairs
        Keys are numbers or vectors (their own names) or, with an encoder, anything hashable. Values
        are numbers of one fixed shape, which blend, or any other objects.
    encoder, value_encoder : callable, or object with encode or transform, optional
        Turns a list of m keys into vectors (m, d), a list of m values into numbers (m, ...).
    similarity, temperature, weighting, top_k, min_score, null_score
        The settings, as in `soft_lookup`; attributes, checked when set.
    dtype : dtype, optional
        float32 or float64: what every key and value is rounded to before it is named.

    Notes
    -----
    *Where Python asks for you:* ``dict(sd)``, ``{**sd}``, ``plain |= sd``, ``ChainMap``, ``match``
    and ``sd[k] += 1`` go through ``[]``, so they are soft. The plain things are ``dict(sd.hard)``
    and ``sd.hard[k] += 1``. ``SoftDict(sd)``, ``sd.update(other)`` and ``|`` take names, vectors
    and values, never blends.

    Asking costs O(n (d + e)) a query, adding an entry O(d + e) amortized, deleting one O(log n)
    amortized. Ask: ``[]``, get, lookup, self_attention, at, calibrate, partial. Name: everything
    that dict has, add, hard, key_vectors, value_vectors.

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
    KeyError: "'cat' names no entry, and there is no encoder to turn it into a vector"
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        entries: Any = (),
        /,
        *,
        encoder: Any = None,
        value_encoder: Any = None,
        similarity: Any = "gaussian",
        temperature: float = 1.0,
        weighting: Any = "softmax",
        top_k: int | None = None,
        min_score: float | None = None,
        null_score: float | None = None,
        dtype: Any = None,
    ) -> None:
        self._settings = check_settings(
            similarity=similarity,
            temperature=temperature,
            weighting=weighting,
            top_k=top_k,
            min_score=min_score,
            null_score=null_score,
        )
        self.encoder = None if encoder is None else as_encoder(encoder)
        self.value_encoder = None if value_encoder is None else as_encoder(value_encoder, rows=False)
        self._store = Store(_float_type(dtype))
        self.update(entries)

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any, **settings: Any) -> SoftDict:
        """Return a new SoftDict in which all keys have one value."""
        return cls(((key, value) for key in keys), **settings)

    @classmethod
    def from_arrays(
        cls,
        keys: Any,
        values: Any,
        labels: Any = None,
        *,
        copy: bool | None = None,
        **settings: Any,
    ) -> SoftDict:
        """Return a new SoftDict over arrays.

        Parameters
        ----------
        keys : array of shape (n, d) or (n,)
            The key vectors; without labels each is its own name.
        values : array of shape (n, *value_shape), or a list of n objects
            The values.
        labels : sequence of n distinct hashable objects, optional
            The names.
        copy : bool, optional
            By default arrays that nobody can write (read-only memory maps, read-only arrays on a
            read-only base) are shared and others are copied; False promises not to write to them.
        **settings
            As for `SoftDict`.

        Raises
        ------
        ValueError
            For NaN and infinity, unequal lengths, labels given twice, equal vectors without labels.

        Notes
        -----
        Arrays in memory are checked at once. A memory map is not read here: its blocks are checked
        when they are first used, its names are made when a name is first needed.

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
        sd._adopt_arrays(keys, values, labels, copy)
        return sd

    # ---- settings ------------------------------------------------------------------------------

    def _setting(name: str, doc: str) -> Any:  # type: ignore[misc]
        def get(self: SoftDict) -> Any:
            return self._settings[name]

        def put(self: SoftDict, value: Any) -> None:
            self._settings.update(check_settings(**{name: value}))

        return property(get, put, doc=doc)

    similarity = _setting("similarity", "How alike query and key are.")
    temperature = _setting("temperature", "From 0, the best entry, to infinity, the plain mean.")
    weighting = _setting("weighting", "How scores become shares.")
    top_k = _setting("top_k", "How many entries share the answer at most; None: all.")
    min_score = _setting("min_score", "What an entry has to score to take part; None: anything.")
    null_score = _setting("null_score", "What the silent entry scores; None: there is none.")
    del _setting

    def at(self, **settings: Any) -> SoftDict:
        """Return a view with other settings: same entries, no copy, writes are seen by both."""
        view = _shell(self)
        view._settings.update(check_settings(**settings))
        return view

    # ---- asking is soft ------------------------------------------------------------------------

    def __getitem__(self, query: Any) -> Any:
        """Return the blend for one query, or for a batch of them."""
        asked = self._read(query)
        value, reached = self._ask(asked)
        if not all(reached):
            bad = np.nonzero(~np.asarray(reached))[0]
            raise KeyError(
                f"{query!r} reaches no entry; use get(query, default) for what may be missing"
                if asked.single
                else f"{len(bad)} of {len(reached)} queries reach no entry (rows "
                f"{', '.join(map(str, bad[:3]))}{', ...' if len(bad) > 3 else ''}); use "
                "get(queries, default) to fill them"
            )
        return value

    def get(self, query: Any, default: Any = None) -> Any:
        """Return the blend; `default` for a query that has none, or in such rows of a batch."""
        try:
            asked = self._read(query, lenient=True)
        except KeyError:
            return default
        value, reached = self._ask(asked)
        if asked.missing is not None:
            reached = np.logical_and(reached, ~asked.missing)
        if all(reached):
            return value
        if asked.single:
            return default
        if isinstance(value, list):
            return [v if r else default for v, r in zip(value, reached, strict=True)]
        if not is_numeric(default) and not isinstance(default, np.ndarray):
            raise TypeError(
                f"default is {default!r}, but a value of shape {shape_text(value.shape[1:])} or a "
                f"number was expected in get(batch), to fill row {int(np.argmin(reached))}, which "
                "reaches no entry. Pass one, or ask one query at a time."
            )
        filled = np.where(reached.reshape(-1, *[1] * (value.ndim - 1)), value, default)
        return filled.astype(value.dtype)

    def lookup(
        self, query: Any, *, where: Any = None, bias: Any = None, exclude_self: bool = False
    ) -> Lookup:
        """Return the same answer as ``sd[query]``, and why.

        Parameters
        ----------
        query
            What ``sd[query]`` takes.
        where : array of bool (n,) or (m, n), optional
            True takes part.
        bias : array (n,) or (m, n), optional
            Added to the logits; finite or -inf.
        exclude_self : bool
            Leave out the entry that the query names; ValueError where it names none.

        Returns
        -------
        Lookup
            Zero value, zero weights and no winner for a query that reaches no entry.
        """
        return Lookup(self, self._read(query), where, bias, exclude_self)

    def self_attention(self, *, where: Any = None, bias: Any = None, exclude_self: bool = False) -> Lookup:
        """Return the `Lookup` in which every entry asks: n queries."""
        keys = self._filled().arrays()[0]
        asked = _Asked(list(self), keys, False, np.arange(len(keys)))
        return Lookup(self, asked, where, bias, exclude_self)

    def calibrate(self, effective: float, queries: Any = None) -> float:
        """Return the temperature at which the median query rests on `effective` entries.

        Without queries each stored key asks, itself left out. O(m n) memory. The other settings
        apply. ValueError where no temperature reaches `effective`.
        """
        keys = self._filled().arrays()[0]
        if queries is None:
            asked = _Asked(None, keys, False, np.arange(len(keys)))
        else:
            asked = self._read(queries)
        scores = self._explain(asked, self._masks(asked, None, None, queries is None)).scores
        rules = {name: self._settings[name] for name in ("weighting", "top_k", "min_score")}
        return calibrate(scores, effective, **rules)

    def partial(self, query: Any, offset: int = 0) -> Partial:
        """Return a summary of this dict's answer that merges with those of other dicts.

        ``(sd1.partial(q) + sd2.partial(q, offset=len(sd1))).finish()`` is ``(sd1 | sd2)[q]`` for
        dicts that share no key. `offset` is how many entries come before this part; only `top_k`
        asks for it. TypeError for objects and for callable weightings.
        """
        if not len(self):
            return Partial(None, self._settings, None)
        if self._store.value_shape is None:
            raise TypeError(self._cannot_blend())
        return self._partial(self._read(query), offset)

    # ---- reading a query -----------------------------------------------------------------------

    def _filled(self) -> Store:
        if not len(self._store):
            raise KeyError("this SoftDict is empty: there is no entry to answer")
        return self._store

    def _measures(self, query: Any) -> Any:
        """Return what measures, as an array or a list of numbers; None for what names."""
        if hasattr(type(query), "__array__") and not isinstance(query, np.generic):
            array = np.asarray(query)
            return None if array.dtype.kind in "OSTU" else array
        return query if not self._store.counts[NUMBER] and is_numeric(query) else None

    def _read(self, query: Any, lenient: bool = False) -> _Asked:
        """Read one query or a batch; where lenient, names in a batch may be unknown."""
        self._filled()
        if (given := self._measures(query)) is not None:
            return self._measured(given)
        batch = query.tolist() if isinstance(query, np.ndarray) else query
        if isinstance(batch, list):
            return self._named(query, batch, False, lenient)
        return self._named(query, [batch], True, False)

    def _measured(self, given: Any) -> _Asked:
        store = self._store
        array = numbers(given, "the query", store.dtype)
        plain, ndim = store.key_shape == (), array.ndim
        d = (widths(self._settings["similarity"]) or store.keys.shape[1:])[0]
        if plain and ndim < 2:
            array = array[..., None]
        single = ndim == (0 if plain else 1)
        if array.ndim != 2 - single or array.shape[-1] != d:
            one, many = ("()", "(m,) or (m, 1)") if plain else (f"({d},)", f"(m, {d})")
            raise ValueError(
                f"the query has shape {shape_text(np.shape(given))}, but {one} for one query or "
                f"{many} for a batch was expected, since the keys of this SoftDict have shape {one}. "
                "Check the width; the number of dimensions decides between one and a batch."
            )
        vectors = array[None] if single else array
        if vectors.size and not np.abs(vectors).max() <= (limit := largest(vectors)):
            within(vectors, limit, "the query", lambda row: f"row {row}")
        return _Asked(given, vectors, single)

    def _named(self, query: Any, batch: list[Any], single: bool, lenient: bool) -> _Asked:
        store, keys = self._store, self._store.arrays()[0]
        rows, vectors, unknown = np.full(len(batch), -1), [keys[0]] * len(batch), []
        for i, item in enumerate(batch):
            if (given := self._measures(item)) is not None:
                one = self._measured(given)
                if not one.single:
                    raise ValueError(
                        f"item {i} of the batch is a batch itself, but single queries were expected "
                        "in a list of queries. Ask one batch at a time."
                    )
                vectors[i] = one.vectors[0]
            elif _hashable(item) in store.names:
                rows[i] = store.row(item)
                vectors[i] = keys[rows[i]]
            else:
                unknown.append(i)
        missing = np.zeros(len(batch), dtype=bool)
        if unknown:
            try:
                encoded = self._encode([batch[i] for i in unknown])
                for i, vector in zip(unknown, encoded, strict=True):
                    vectors[i] = vector
            except KeyError:
                if not lenient:
                    raise
                for i in unknown:  # some may be known: ask for each alone
                    try:
                        vectors[i] = self._encode([batch[i]])[0]
                    except KeyError:
                        missing[i] = True
        stacked = np.stack(vectors) if vectors else keys[:0]
        return _Asked(query, stacked, single, rows, missing)

    def _encode(self, names: list[Any]) -> Array:
        """Encode names; KeyError where there is no encoder."""
        if self.encoder is None:
            raise KeyError(f"{names[0]!r} names no entry, and there is no encoder to turn it into a vector")
        array = numbers(self.encoder(names), "the encoder's result", self._store.dtype)
        within(array, largest(array), "the encoded key", lambda row: repr(names[row]))
        if len(self._store) and array.shape[1:] != self._store.key_shape:
            raise ValueError(
                f"the encoder returned vectors of shape {shape_text(array.shape[1:])} for "
                f"{names[0]!r}, but {shape_text(self._store.key_shape)} was expected, as the keys of "
                "this SoftDict have. Use the encoder that they were made with."
            )
        return array

    def _rows(self, asked: _Asked) -> Any:
        """Return the rows that queries name (m,); ValueError for a query that names none."""
        store = self._store
        rows = np.full(len(asked.vectors), -1) if asked.rows is None else asked.rows.copy()
        if store.counts[OWN]:
            for i in np.nonzero(rows < 0)[0].tolist():
                name = row_names(asked.vectors[i : i + 1], store.key_shape)[0]
                rows[i] = store.row(name) if name in store.names else -1
        if (rows < 0).any():
            raise ValueError(
                f"query {int(np.argmax(rows < 0))} names no entry, but exclude_self expected queries "
                "that are stored keys, to leave each out of its own answer. Ask by name, or use where="
            )
        return rows

    # ---- asking the engine -----------------------------------------------------------------------

    def _masks(self, asked: _Asked, where: Any, bias: Any, exclude_self: bool) -> dict[str, Any]:
        full = (len(asked.vectors), len(self))
        return {
            "where": check_where(where, full, asked.single),
            "bias": check_bias(bias, full, asked.single),
            "skip": self._rows(asked) if exclude_self else None,
        }

    def _ask(self, asked: _Asked, masks: Any = _NO_MASKS) -> tuple[Any, Any]:
        """Return the answer as the caller gets it, and which queries reached something (m,)."""
        store = self._store
        if store.value_shape is None:
            return self._pick(asked, masks)
        if store.mapped and not callable(self._settings["weighting"]):
            part = self._partial(asked, 0, masks)
            return part.finish(), part.reached
        keys, values = store.arrays()
        value, reached = answer(asked.vectors, keys, values, **masks, **self._settings)
        if asked.single and not store.value_shape:
            return float(value[0, 0].astype(store.value_dtype)), reached
        shape = store.value_shape if asked.single else (len(value), *store.value_shape)
        return value.reshape(shape).astype(store.value_dtype), reached

    def _pick(self, asked: _Asked, masks: Any) -> tuple[Any, Any]:
        """Return the winners' objects, at T = 0; the earliest of a tie."""
        if self._settings["temperature"] != 0:
            raise TypeError(self._cannot_blend())
        keys, n = self._store.arrays()[0], len(self)
        row_and_share = np.column_stack([np.arange(n), np.ones(n)])
        picked, reached = answer(
            asked.vectors, keys, row_and_share, **masks, **{**self._settings, "top_k": 1}
        )
        reached = reached & (picked[:, 1] > 0)  # else the silent entry won
        assert self._store.objects is not None
        things = [
            self._store.objects[int(row)] if hit else None
            for row, hit in zip(picked[:, 0], reached, strict=True)
        ]
        return things[0] if asked.single else things, reached

    def _cannot_blend(self) -> str:
        return (
            f"the values are objects (the first is {display.short(next(iter(self.values())), 40)}), "
            "but numbers were expected in a blend. Give a value_encoder=, or pick the best with "
            "at(temperature=0), or rank and vote with lookup(query).top(k) and .vote()."
        )

    def _partial(self, asked: _Asked, offset: int, masks: Any = _NO_MASKS) -> Partial:
        store = self._store
        one = store.value_shape or ()
        shape = one if asked.single else (len(asked.vectors), *one)
        parts: list[Partial] = []
        for start, keys, values in store.blocks() if store.mapped else [(0, *store.arrays())]:
            c = slice(start, start + len(keys))
            where, bias, skip = (masks[name] for name in ("where", "bias", "skip"))
            part = partial(
                asked.vectors,
                keys,
                values,
                offset=offset + start,
                where=None if where is None else where[:, c],
                bias=None if bias is None else bias[:, c],
                skip=None if skip is None else skip - start,
                shape=(shape, store.value_dtype),
                **self._settings,
            )
            parts = [reduce(add, parts, part)] if len(parts) < 16 else [part, *parts]
        return reduce(add, parts)

    def _explain(self, asked: _Asked, masks: Any) -> Explained:
        _bounded(len(asked.vectors), len(self))
        return explain(asked.vectors, self._store.arrays()[0], **masks, **self._settings)

    # ---- naming is hard: the hard view does it ---------------------------------------------------

    @property
    def hard(self) -> HardView:
        """The plain-dict view of the same entries, live and writable."""
        return HardView(self)

    @property
    def key_vectors(self) -> Array:
        """The key vectors (n, *key_shape), read-only, good until the next write."""
        keys = self._store.lend()[0]
        return keys.reshape(len(keys), *self._store.key_shape)

    @property
    def value_vectors(self) -> Array:
        """The values (n, *value_shape), read-only, good until the next write."""
        if self._store.value_shape is None and len(self):
            raise TypeError(self._cannot_blend())
        values = self._store.lend()[1]
        return values.reshape(len(values), *(self._store.value_shape or ()))

    def add(self, key: Any, key_vector: Any, value: Any) -> None:
        """Store an entry under a label, with its key vector beside it.

        Overwrites vector and value of an entry of that name, and keeps its place. A label that is a
        number, or a tuple of numbers, is refused where keys are plain numbers and beside entries
        that are their own vector.
        """
        name = _hashable(key)
        vector = numbers(key_vector, f"the key vector of {name!r}", self._store.dtype)
        if vector.ndim > 1:
            raise ValueError(
                f"the key vector of {name!r} has shape {shape_text(vector.shape)}, but () or (d,) was "
                "expected in add. Add one entry at a time, or use from_arrays(..., labels=...)."
            )
        own = name in self._store.names and self._store.kinds[self._store.row(name)] == OWN
        if own and row_names(vector.reshape(1, -1), vector.shape) != [name]:
            raise ValueError(
                f"{name!r} is the name of its own vector, but add came with another one. "
                "Use a text label for a vector that is not its own name."
            )
        kind = OWN if own else NUMBER if _is_label_number(name) else LABEL
        self._write([value], [name], [kind], vector.reshape(1, -1), vector.shape)

    def __contains__(self, key: Any) -> bool:
        return key in self.hard

    def __setitem__(self, key: Any, value: Any) -> None:
        self.hard[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.hard[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._store.names)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._store.names)

    def __len__(self) -> int:
        return len(self._store)

    def keys(self) -> KeysView[Any]:
        """Return the names, in the order of insertion."""
        return self.hard.keys()

    def values(self) -> ValuesView[Any]:
        """Return the stored values."""
        return self.hard.values()

    def items(self) -> ItemsView[Any, Any]:
        """Return the names with their stored values."""
        return self.hard.items()

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Delete an entry and return its stored value; `default`, if given, where there is none."""
        return self.hard.pop(key, default)

    def popitem(self) -> tuple[Any, Any]:
        """Delete the newest entry and return its name and value."""
        return self.hard.popitem()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the stored value of `key`, after storing `default` where there is none."""
        return self.hard.setdefault(key, default)

    def clear(self) -> None:
        """Delete everything; kinds, shapes and dtypes are forgotten too."""
        self.hard.clear()

    def update(self, entries: Any = (), /, **named: Any) -> None:
        """Overwrite or add entries like dict.update, but all of them or none."""
        self.hard.update(entries, **named)

    def __eq__(self, other: object) -> bool:
        """Compare names and values, with a SoftDict key vectors too; never settings or order."""
        if not self.hard == other:
            return False if isinstance(other, Mapping) else NotImplemented
        if not isinstance(other, SoftDict):
            return True
        ours, theirs = self._store, other._store
        a, b = ours.arrays()[0], theirs.arrays()[0]
        return all(np.array_equal(a[ours.row(k)], b[theirs.row(k)]) for k in ours.names)

    def copy(self) -> SoftDict:
        """Return an independent copy with the same settings; a memory map is read into memory."""
        new = _shell(self)
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
        new = self.copy()
        new.update(other)  # finds vectors among our own
        names = list(dict.fromkeys([*map(new._name, other), *self]))
        new.update(self)
        new._store = new._store.ordered(names)
        return new

    def __ior__(self, other: Any) -> SoftDict:  # type: ignore[misc]  # takes pairs, like dict's
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"SoftDict({self._text()}, similarity={self.similarity!r}, T={self.temperature:g})"

    def _text(self) -> str:
        """Return the first entries as a dict shows them."""
        store, n = self._store, len(self)
        some = [
            f"{display.short(name, 24)}: {display.short(store.value(row), 24)}"
            for row, name in enumerate(store.first_names(4))
        ]
        return "{" + ", ".join(some) + (f", ... {n - 4} more" if n > 4 else "") + "}"

    # ---- writing: decide, then act ---------------------------------------------------------------

    def _name(self, key: Any) -> Any:
        """Return the name under which `key` is, or would be, stored; one of no entry if it cannot."""
        labelled = self.encoder is not None or self._store.counts[NUMBER]
        if isinstance(key, np.ndarray) and labelled:
            return _MISSING  # arrays measure
        if isinstance(key, np.ndarray) or (not labelled and is_numeric(key)):
            try:
                array = numbers(key, "the key", self._store.dtype)
            except ValueError:
                return _MISSING
            return row_names(array.reshape(1, -1), array.shape)[0] if array.ndim < 2 else _MISSING
        return _hashable(key)

    def _write(self, values: list[Any], names: list[Any], kinds: Any, rows: Any, shape: Any) -> None:
        """Check what is decided about keys together with the values, then write all or nothing."""
        store = self._store
        store.writable()
        last = {name: i for i, name in enumerate(names)}  # first position, last value
        pick, names = list(last.values()), list(last)
        rows, kinds = rows[pick], np.asarray(kinds)[pick]
        if len(store) and shape != store.key_shape:
            raise ValueError(
                f"the key vector of {names[0]!r} has shape {shape_text(shape)}, but "
                f"{shape_text(store.key_shape)} was expected, as all keys of this SoftDict have. "
                "Keep vectors of another width in a SoftDict of their own."
            )
        own = store.counts[OWN] or (kinds == OWN).any() or shape == ()
        if own and (store.counts[NUMBER] or (kinds == NUMBER).any()):
            raise ValueError(
                f"the label {next(n for n in [*names, *store.names] if is_numeric(n))!r} is a number, "
                "but text was expected as a label beside keys that are numbers or vectors "
                "themselves: numbers either name or measure. Use str(label)."
            )
        within(rows, largest(rows), "the key vector", lambda row: repr(names[row]))
        array, objects, value_shape = self._decide_values([values[i] for i in pick], names)
        store.write(Entries(names, kinds, rows, array, objects, shape, value_shape))

    def _decide(self, keys: list[Any]) -> tuple[list[Any], list[int], Array, tuple[int, ...]]:
        """Return names, kinds, vectors (m, d) and key shape of keys that come without vectors."""
        store, known = self._store, self._store.arrays()[0]
        labelled = self.encoder is not None or store.counts[NUMBER]
        names, kinds, vectors = list(keys), [LABEL] * len(keys), [known[:0]] * len(keys)
        own = [i for i, k in enumerate(keys) if not labelled and (_is_array(k) or is_numeric(k))]
        shape = store.key_shape
        if own:
            array = _stack([keys[i] for i in own], own, "key", [repr(k) for k in keys], store.dtype)
            shape = array.shape[1:]
            if len(shape) > 1:
                raise ValueError(
                    f"key {keys[own[0]]!r} has shape {shape_text(shape)}, but a number or one vector "
                    "was expected as a key. Assign one entry at a time, or use from_arrays."
                )
            rows = array.reshape(len(own), -1)
            for i, row, name in zip(own, rows, row_names(rows, shape), strict=True):
                names[i], kinds[i], vectors[i] = name, OWN, row
        unknown: dict[Any, list[int]] = {}
        for i in sorted({*range(len(keys))} - {*own}):
            if _is_array(keys[i]):
                raise TypeError(
                    f"the key is an array of shape {shape_text(np.shape(keys[i]))}, but a name was "
                    "expected where names are encoded or numbers are labels. Store a vector under "
                    "a name with add(name, key_vector, value)."
                )
            if _hashable(keys[i]) in store.names:
                place = store.row(keys[i])
                vectors[i], kinds[i] = known[place], int(store.kinds[place])
            else:
                unknown.setdefault(keys[i], []).append(i)
        if unknown:
            if self.encoder is None:
                raise TypeError(
                    f"{next(iter(unknown))!r} is neither a stored name nor a number, but without an "
                    "encoder a key has to be one of them. Use add(name, key_vector, value), or "
                    "give SoftDict an encoder=."
                )
            encoded = self._encode(list(unknown))
            shape = encoded.shape[1:]
            for vector, (name, places) in zip(encoded, unknown.items(), strict=True):
                for i in places:
                    vectors[i], kinds[i] = vector, NUMBER if _is_label_number(name) else LABEL
        if len({len(v) for v in vectors}) > 1:
            raise ValueError(
                f"the keys have vectors of unlike widths {sorted({len(v) for v in vectors})}, but "
                "one width was expected in one SoftDict. Keep them in SoftDicts of their own."
            )
        return names, kinds, np.stack(vectors), shape

    def _decide_values(
        self, values: list[Any], names: list[Any]
    ) -> tuple[Array, list[Any] | None, tuple[int, ...] | None]:
        """Return values as numbers (m, e), as objects or None, and their shape or None."""
        store, labels = self._store, [repr(name) for name in names]
        numeric = store.objects is None if len(store) else _is_value(values[0])
        if self.value_encoder is not None:
            array = numbers(self.value_encoder(values), "the encoded value", store.dtype)
            objects = values
        elif not numeric:
            return np.empty((len(values), 0)), values, None
        else:
            for value, label in zip(values, labels, strict=True):
                if not _is_value(value):
                    raise TypeError(
                        f"the value of {label} is {display.short(value, 40)}, but numbers were "
                        "expected, since the first value of this SoftDict was numbers. Objects "
                        "belong in a SoftDict of their own."
                    )
            array = _stack(values, range(len(values)), "value", labels, store.dtype)
            objects = None
        if len(store) and array.shape[1:] != store.value_shape:
            raise ValueError(
                f"the value of {labels[0]} has shape {shape_text(array.shape[1:])}, but "
                f"{shape_text(store.value_shape or ())} was expected, as all values of this SoftDict "
                "have. Reshape it, or use a SoftDict of its own."
            )
        within(array, np.inf, "the value", lambda row: labels[row])
        return array.reshape(len(array), -1), objects, array.shape[1:]

    def _adopt_arrays(self, keys: Any, values: Any, labels: Any, copy: bool | None) -> None:
        """Take the arrays of `from_arrays`: shared or copied, checked unless they are maps."""
        dtype, n = self._store.dtype, len(keys)
        taken = []
        for array, what in ((keys, "keys"), (values, "values")):
            if what == "values" and not (is_numeric(array) or _is_value(array)):
                taken.append((np.empty((n, 0)), False))
                continue
            if copy is True or not isinstance(array, np.ndarray):
                array = np.array(array) if isinstance(array, np.ndarray) else array
                taken.append((numbers(array, f"the {what}", dtype), False))
                continue
            shared, mapped = copy is False or is_shared(array), is_mapped(array)
            if array.dtype.kind not in "fiu" or not (shared and mapped):
                exact = numbers(array, f"the {what}", dtype)
                array = exact.copy() if exact is array and not shared else exact
            taken.append((array, shared and mapped))
        (key_array, _), (value_array, _) = taken
        mapped = any(is_map for _, is_map in taken)
        objects = None if value_array.size or not n or _is_value(values) else list(values)
        if self.value_encoder is not None:
            value_array, objects, _ = self._decide_values(list(values), list(range(n)))
        if key_array.ndim not in (1, 2) or len(values) != n:
            raise ValueError(
                f"keys have shape {shape_text(key_array.shape)} and there are {len(values)} values, "
                "but keys (n, d) or (n,) and n values were expected in from_arrays. "
                "Give one row to each entry."
            )
        kinds, names = [OWN] * n, []
        if labels is not None:
            names = list(map(_hashable, labels))
            kinds = [NUMBER if _is_label_number(name) else LABEL for name in names]
            if len(names) != n or len(set(names)) != n:
                raise ValueError(
                    f"there are {len(names)} labels, {len(set(names))} of them distinct, but {n} "
                    "distinct labels were expected in from_arrays. Number those that repeat."
                )
        owner = (lambda row: repr(names[row])) if names else (lambda row: f"row {row}")
        if not mapped:
            within(key_array, largest(key_array), "the key vector", owner)
            within(value_array, np.inf, "the value", owner)
            if labels is None:
                refuse_equal_rows(key_array.reshape(n, -1))
        shape = None if objects is not None and self.value_encoder is None else value_array.shape[1:]
        if NUMBER in kinds and key_array.ndim == 1:
            self._write([0.0], names[:1], kinds[:1], key_array[:1, None], ())
        self._store.adopt(
            Entries(
                names,
                kinds,
                key_array.reshape(n, -1) if key_array.ndim == 1 else key_array,
                value_array.reshape(n, -1) if n else np.empty((0, 0)),
                objects,
                key_array.shape[1:],
                shape,
            ),
            mapped,
        )


MutableMapping.register(SoftDict)


class Match(NamedTuple):
    """One entry of `Lookup.top`."""

    key: Any
    value: Any
    weight: float
    score: float


class Lookup:
    """An answer, and why: data first, picture second.

    Made by `SoftDict.lookup` and `SoftDict.self_attention`. It is a snapshot; printing it shows how
    much of the highlighter each entry gets. For a batch every number gains a first axis m, and
    `winner`, `top` and `vote` become lists.

    **Equivalent to:** ``weights = softmax(scores / T + bias); value = weights @ values``

    Attributes
    ----------
    queries, keys
        What was asked, and the names of the n entries.
    scores : array of shape (n,) or (m, n)
        Of every entry; -inf for what a mask took out.
    weights : array of shape (n,) or (m, n)
        They sum to 1 less `null_weight`, or to 0 where no entry could be looked at.
    value
        What ``sd[query]`` returns; None where the values are objects that cannot blend.
    null_weight, logsumexp, entropy, effective : float or array of shape (m,)
        The silent entry's share; log of the sum of exp(logits); entropy in nats of the entries'
        shares rescaled to sum to 1, and its exponential: on how many entries does this rest?
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

    def __init__(self, sd: SoftDict, asked: _Asked, where: Any, bias: Any, alone: bool) -> None:
        masks = sd._masks(asked, where, bias, alone)
        why = sd._explain(asked, masks)
        value = None
        if sd._store.value_shape is not None or sd.temperature == 0:
            value = sd._ask(asked, masks)[0]
        order = ranking(np.where(why.kept, why.scores, -np.inf), masks["bias"], sd.temperature)
        self._single, self._order, self._counts = asked.single, order, why.kept.sum(axis=1)
        self._values = list(sd._store.objects or []) or sd._store.lend()[1]
        self._value_shape = sd._store.value_shape
        self._look = {"similarity": sd.similarity, "temperature": sd.temperature}
        self.queries, self.keys, self.value = asked.what, list(sd), value

        def first(x: Any) -> Any:
            return x[0] if asked.single else x

        spread = entropy(why.weights)
        self.scores, self.weights = first(why.scores), first(why.weights)
        self.null_weight, self.logsumexp = first(why.null_weight), first(why.logsumexp)
        self.entropy = first(spread)
        self.effective = first(np.where(why.weights.any(axis=1), np.exp(spread), 0.0))
        self.winner = first([top[0].key if top else None for top in self._top(1)])

    def _top(self, k: int) -> list[list[Match]]:
        weights, scores = np.atleast_2d(self.weights), np.atleast_2d(self.scores)
        return [
            [
                Match(self.keys[j], self._stored(j), float(weights[i, j]), float(scores[i, j]))
                for j in self._order[i, : min(k, count)].tolist()
            ]
            for i, count in enumerate(self._counts.tolist())
        ]

    def _stored(self, row: int) -> Any:
        value = self._values[row]
        if isinstance(self._values, list):
            return value
        return value.item() if self._value_shape == () else value.reshape(self._value_shape).copy()

    def top(self, k: int) -> Any:
        """Return the k best entries that take part as records (key, value, weight, score).

        A prefix of ``top(k + 1)``; ranked by ``score / T + bias``, the earlier first among equals.
        """
        if not is_number(k) or k != int(k) or k < 1:
            raise ValueError(
                f"k is {k!r}, but a whole number of at least 1 was expected in top(k). "
                "Ask for as many entries as you want to see."
            )
        tops = self._top(int(k))
        return tops[0] if self._single else tops

    def vote(self) -> Any:
        """Return the weight of each distinct stored value as a dict, heaviest first.

        Arrays and lists stand as tuples. O(n) for each query.
        """
        votes = []
        names = [_as_name(self._stored(j)) for j in range(len(self.keys))]
        for row in np.atleast_2d(self.weights):
            total: dict[Any, float] = {}
            for name, weight in zip(names, row.tolist(), strict=True):
                total[name] = total.get(name, 0.0) + weight
            votes.append(dict(sorted(total.items(), key=lambda item: -item[1])))
        return votes[0] if self._single else votes

    def __str__(self) -> str:
        """Return the highlighter, for a batch the matrix of weights."""
        if not self._single:
            asked = self.queries if isinstance(self.queries, list) else list(map(_as_name, self.queries))
            return display.matrix(asked, self.keys, self.weights, null_weight=self.null_weight)
        top = self._top(1)[0]
        return display.highlighter(
            self.queries,
            self.keys,
            self.scores,
            self.weights,
            [self._stored(j) for j in range(len(self.keys))],
            order=self._order[0, : self._counts[0]],
            hard=top[0].value if top else None,
            soft=self.value,
            effective=float(self.effective),
            null_weight=float(self.null_weight),
            **self._look,
        )

    def __repr__(self) -> str:
        return str(self)


# ---- small helpers -------------------------------------------------------------------------------


def _shell(sd: SoftDict) -> SoftDict:
    """Return a new SoftDict over the same store, with settings of its own."""
    new = object.__new__(type(sd))
    new.__dict__.update(sd.__dict__, _settings=dict(sd._settings))
    return new


def _pairs(entries: Any) -> tuple[list[Any], list[Any]]:
    """Return the keys and the values of a mapping, or of pairs, as dict.update reads them."""
    if isinstance(entries, Mapping):
        entries = entries.items()
    elif hasattr(entries, "keys"):
        entries = [(key, entries[key]) for key in entries.keys()]
    if not isinstance(entries, Iterable):
        raise TypeError(
            f"the entries are {entries!r}, but a mapping or pairs (key, value) were expected. "
            "Write SoftDict({key: value}) or SoftDict([(key, value)])."
        )
    keys, values = [], []
    for i, pair in enumerate(entries):
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"item {i} of the entries is {display.short(pair, 40)}, but a pair (key, value) was "
                "expected. Write SoftDict({key: value}) or SoftDict([(key, value)])."
            ) from None
        keys.append(key)
        values.append(value)
    return keys, values


def _stack(items: list[Any], places: Any, what: str, labels: list[str], dtype: Any) -> Array:
    """Return items of one shape as an array; where they are not, say which one differs."""
    try:
        return numbers(items, f"the {what}s", dtype)
    except (TypeError, ValueError):
        shapes: dict[Any, str] = {}
        for item, place in zip(items, places, strict=True):
            owner = f"key {labels[place]}" if what == "key" else f"the value of {labels[place]}"
            shapes.setdefault(numbers(item, owner, dtype).shape, owner)
        if len(shapes) < 2:
            raise
        (shape, first), (other, second) = list(shapes.items())[:2]
        raise ValueError(
            f"{second} has shape {shape_text(other)} and {first} has shape {shape_text(shape)}, but "
            "one shape was expected in one SoftDict. Give all of them the same number of components."
        ) from None


def _float_type(dtype: Any) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(
            f"dtype is {dtype!r}, but float32, float64 or None was expected in SoftDict. "
            "float16 is stored as float32."
        )
    kind: np.dtype[Any] = np.dtype(dtype)
    return kind


def _bounded(m: int, n: int) -> None:
    if m * n > LARGEST_LOOKUP:
        raise ValueError(
            f"{m} queries to {n} entries give {m * n} weights, but at most {LARGEST_LOOKUP} were "
            "expected in one Lookup or calibration. Ask in smaller batches, or for the value "
            "alone with sd[queries]."
        )


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"{display.short(key, 40)} is unhashable (a {type(key).__name__}), but a name is "
            "hashable, and what is no name is a number or an array of numbers. Use a tuple or text."
        ) from None
    return key


def _is_array(x: Any) -> bool:
    return hasattr(type(x), "__array__") and not isinstance(x, np.generic)


def _is_label_number(name: Any) -> bool:
    return is_number(name) or (isinstance(name, tuple) and is_numeric(name))


def _is_value(x: Any) -> bool:
    """Tell whether a value is numbers, which blend."""
    return np.asarray(x).dtype.kind in "fiu" if _is_array(x) else is_numeric(x)


def _same(a: Any, b: Any) -> bool:
    if _is_array(a) or _is_array(b) or (isinstance(a, float) and isinstance(b, (list, tuple))):
        return bool(np.array_equal(a, b))
    return bool(a is b or a == b)


def _as_name(value: Any) -> Any:
    """Return arrays and lists as tuples, which a dict can hold."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(map(_as_name, value)) if isinstance(value, list) else value
