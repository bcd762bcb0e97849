"""Objects to vectors: one-hot, hashed character n-grams, an adapter for what others have made.

And what a SoftDict is given to vectors: a query, the keys and values of new entries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from softdict import _backend
from softdict._checks import (
    Array,
    brief,
    check_count,
    check_labels,
    float_dtype,
    hashable,
    is_array,
    is_label_number,
    is_numeric,
    is_value,
    largest,
    numbers,
    own_array,
    refuse_equal_rows,
    row_names,
    stack,
    within,
)
from softdict._store import Entries, Store

#: What `help` shows; the rest is between modules.
__all__ = ["CharNgrams", "OneHot", "as_encoder"]

#: How many objects an encoder is given at a time.
BATCH = 256

#: What messages name as an encoder, in the words of Python.
SPELLING = "softdict.encoders.CharNgrams()"


class OneHot:
    """Give each known object an axis of its own, so that no two are alike.

    With it and ``temperature=0``, a SoftDict of all these objects is a dict: what is stored is
    found, and what is unknown raises KeyError.

    **Equivalent to:** ``np.eye(d)[[objects.index(x) for x in asked]]``

    Parameters
    ----------
    objects : iterable of d hashable objects
        All that can be encoded; what repeats counts once.

    Raises
    ------
    KeyError
        When asked for any other object.

    Notes
    -----
    O(m d) time and memory for m objects. An object that has an axis but no entry is equally far
    from every entry; ``min_score=0`` turns that into a miss too.

    Examples
    --------
    >>> from softdict import SoftDict
    >>> from softdict.encoders import OneHot
    >>> OneHot(["cat", "dog"])(["dog", "cat"])
    array([[0., 1.],
           [1., 0.]])
    >>> table = SoftDict({"cat": 3, "dog": 5}, encoder=OneHot(["cat", "dog"]), temperature=0)
    >>> table["dog"], table.get("cow", "none")
    (5.0, 'none')
    >>> table["cow"]
    Traceback (most recent call last):
    ...
    KeyError: "'cow' is none of the 2 objects that OneHot knows"
    """

    def __init__(self, objects: Iterable[Hashable]) -> None:
        self._axes = {thing: axis for axis, thing in enumerate(dict.fromkeys(map(hashable, objects)))}

    def __call__(self, objects: Sequence[Any]) -> Array:
        """Return one row of zeros and a one for each object, (m, d)."""
        rows = np.zeros((len(objects), len(self._axes)))
        for row, thing in zip(rows, objects, strict=True):
            if hashable(thing) not in self._axes:
                raise KeyError(f"{brief(thing)} is none of the {len(self._axes)} objects that OneHot knows")
            row[self._axes[thing]] = 1
        return rows


class CharNgrams:
    """Count the character n-grams of texts in d buckets, and scale each text to unit length.

    Texts that share spelling are alike, whatever they mean. The hash is CRC-32, so every process
    gives the same vectors.

    Vectors have length 1 and point to one side, so scores lie close together: ask with
    ``similarity="cosine", temperature=0.05`` or so.

    **Equivalent to:** ``v[crc32(gram) % d] += 1`` for the n-grams of each lower-case word between
    two spaces, then ``v / np.linalg.norm(v)``

    Parameters
    ----------
    d : int
        How many buckets; at least 1. With fewer buckets more n-grams share one.
    sizes : int or sequence of int
        The lengths n. A shorter word counts once, whole.

    Notes
    -----
    Feature hashing: Weinberger et al., "Feature hashing for large scale multitask learning", 2009,
    without its random signs, so that no text cancels to zero. O(length) time, O(m d) memory.
    ``TfidfVectorizer(analyzer="char_wb")`` of scikit-learn is the larger tool, and fits `SoftDict`
    as well.

    Examples
    --------
    >>> from softdict.encoders import CharNgrams
    >>> encode = CharNgrams()
    >>> encode(["cat", "cats", "dog"]).shape
    (3, 2048)
    >>> (encode(["cat"]) @ encode(["Cat", "cats", "dog"]).T).round(3)
    array([[1.   , 0.408, 0.   ]])
    >>> encode([3])
    Traceback (most recent call last):
    ...
    TypeError: item 0 of the texts is 3, but text was expected in CharNgrams. ...
    """

    def __init__(self, d: int = 2048, sizes: int | Sequence[int] = (3, 4, 5)) -> None:
        hint = "in CharNgrams. Leave it out for 2048 buckets and n-grams of 3, 4 and 5"
        self.d = check_count("d", d, hint)
        self.sizes = tuple(check_count("a size", n, hint) for n in np.atleast_1d(sizes).tolist())
        check_count("the number of sizes", len(self.sizes), hint)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return one vector of length 1 for each text, (m, d)."""
        if isinstance(texts, str):  # whose items are texts too
            raise TypeError(
                f"the texts are {brief(texts)}, but a list of texts was expected in CharNgrams. "
                "Put a single text into a list."
            )
        vectors: Array = np.zeros((len(texts), self.d))
        seen: dict[str, Array] = {}  # words repeat
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"item {i} of the texts is {brief(text)}, but text was expected in CharNgrams. "
                    "Turn it into text first: str(item)."
                )
            words = text.lower().split() or [""]
            for word in words:
                if word not in seen:
                    seen[word] = self._buckets(f" {word} ")
            vectors[i] = np.bincount(np.concatenate([seen[word] for word in words]), minlength=self.d)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def _buckets(self, word: str) -> Array:
        grams = [word[i : i + n] for n in self.sizes for i in range(max(1, len(word) - n + 1))]
        return np.array([crc32(gram.encode("utf-8", "surrogatepass")) % self.d for gram in grams])


def check(*given: Any) -> None:
    """Complain at once about what is no encoder; None is nothing to complain about."""
    for encoder in given:
        if encoder is not None:
            as_encoder(encoder)


def as_encoder(encoder: Any, rows: bool = True) -> Callable[..., Array]:
    """Turn any callable, or object with `encode` or `transform`, into a function of a list.

    Parameters
    ----------
    encoder : callable, or object with encode or transform
        Takes a list of m objects and returns m vectors; a sparse matrix will do. `encode` comes
        before `transform`, and both before calling, since models of PyTorch can be called too, but
        not with text.
    rows : bool
        True where the result has to be (m, d), as for keys; False for (m, ...), as for values.

    Returns
    -------
    callable
        From a list of m objects to a new array of floats; of another dtype, if that is given after it.

    Raises
    ------
    TypeError
        For what is no encoder, and for results that hold no real numbers.
    ValueError
        For results of a wrong shape.

    Notes
    -----
    The encoder sees each object once, 256 at a time, so that it needs no room for all. What takes more than a
    second shows a bar on a terminal, where tqdm is installed; ``TQDM_DISABLE=1`` in the environment hides it.

    Examples
    --------
    >>> from softdict.encoders import as_encoder
    >>> as_encoder(lambda words: [[len(word), 1] for word in words])(["attention", "is"])
    array([[9., 1.],
           [2., 1.]])
    >>> as_encoder(lambda words: [len(word) for word in words])(["attention", "is"])
    Traceback (most recent call last):
    ...
    ValueError: the encoder <lambda> returned shape (2,) for 2 objects, but (2, d) was expected. ...
    >>> as_encoder("cat")
    Traceback (most recent call last):
    ...
    TypeError: the encoder is 'cat', but a function of a list, or an object with encode or ...
    """
    found = [getattr(encoder, name, None) for name in ("encode", "transform")] + [encoder]
    call, kind = next((f for f in found if callable(f)), None), "encoder" if rows else "value_encoder"
    if call is None or isinstance(encoder, (str, type)):
        raise TypeError(
            f"the {kind} is {brief(encoder)}, but a function of a list, or an object with encode or "
            "transform, was expected. Pass an instance: OneHot(objects), CharNgrams(), a fitted "
            "TfidfVectorizer, or your own function."
        )
    name = f"{kind} {getattr(encoder, '__name__', type(encoder).__name__)}"

    def encode(objects: Sequence[Any], dtype: Any = None) -> Array:
        result: Array | None = None
        for at in _shown(range(0, len(objects), BATCH)) if len(objects) > BATCH else [0]:
            part = some(objects[at : at + BATCH], dtype)
            if result is None:
                result = np.empty((len(objects), *part.shape[1:]), part.dtype)
            if part.shape[1:] != result.shape[1:]:
                raise ValueError(
                    f"the {name} returned shape {part.shape} from object {at} on, but "
                    f"({len(part)}, {', '.join(map(str, result.shape[1:]))}) was expected, as for those "
                    "before. Give every object a vector of one width."
                )
            result = result.astype(np.promote_types(result.dtype, part.dtype), copy=False)
            result[at : at + BATCH] = part
        assert result is not None
        return result

    def some(objects: Sequence[Any], dtype: Any) -> Array:
        result = call(list(objects))
        result = result.toarray() if hasattr(result, "toarray") else result  # sparse
        array = numbers(result, f"the result of the {name}", dtype)
        if array.shape[:1] != (len(objects),) or (rows and array.ndim != 2):
            raise ValueError(
                f"the {name} returned shape {array.shape} for {len(objects)} "
                f"objects, but ({len(objects)}, {'d' if rows else '...'}) was expected. "
                "It is given a list and answers with one row for each item."
            )
        return array

    return encode


def _shown(batches: range) -> Iterable[int]:
    """Go through batches behind a bar, where tqdm is installed and somebody looks at a terminal."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return batches
    bar: Iterable[int] = tqdm(batches, desc="encode", leave=False, file=sys.stderr, disable=None, delay=1)
    return bar


# ---- a query to vectors ----------------------------------------------------------------------------


class Asked(NamedTuple):
    """Queries as vectors."""

    what: Any  # as the caller gave them: a name, an array, a list
    vectors: Array  # (m, d)
    single: bool
    rows: Any = None  # (m,) the entries that were asked by name, -1 for others
    missing: Any = None  # (m,) of bool: what the encoder does not know


def read_query(store: Store, encoder: Any, query: Any, width: int, lenient: bool = False) -> Asked:
    """Read one query or a batch, for a store that is not empty.

    `width` is that of queries; where lenient, names in a batch may be unknown.
    """
    if (given := _measuring(store, query)) is not None:
        return _measured(store, given, width)
    if is_array(query):  # of strings or objects: a list, which may be of numbers
        return read_query(store, encoder, np.asarray(query).tolist(), width, lenient)
    if isinstance(query, list):
        return _named(store, encoder, query, query, width, lenient)
    return _named(store, encoder, query, [query], width, False)._replace(single=True)


def _measuring(store: Store, query: Any) -> Any:
    """Return what measures, as an array or as numbers; None for what names."""
    if is_array(query):
        array = query if isinstance(query, np.ndarray) else _backend.host(query)
        return None if array.dtype.kind in "OSTU" else array
    return query if not store.numbers_name() and is_numeric(query) else None


def _measured(store: Store, given: Any, width: int, place: int = 0) -> Asked:
    array = numbers(given, "the query", store.dtype)
    plain, ndim = store.key_shape == (), array.ndim
    if plain and ndim < 2:
        array = array[..., None]
    single = ndim == (0 if plain else 1)
    if array.ndim != 2 - single or array.shape[-1] != width:
        one, many = ("()", "(m,) or (m, 1)") if plain else (f"({width},)", f"(m, {width})")
        raise ValueError(
            f"the query has shape {np.shape(given)}, but {one} for one query or {many} for a "
            f"batch was expected, since the keys of this SoftDict have shape {store.key_shape}. "
            "Check the width; the number of dimensions decides between one and a batch."
        )
    vectors = array[None] if single else array
    limit = largest(vectors)
    if not np.vdot(vectors, vectors) <= limit * limit:  # one number for all: most are far below
        within(vectors, limit, "the query", lambda row: f"row {place + row}")
    return Asked(given, vectors, single)


def _named(store: Store, encoder: Any, query: Any, batch: list[Any], width: int, lenient: bool) -> Asked:
    store.sweep()  # so that rows are places
    names, nothing = store.names, np.zeros(width, dtype=store.read(0, 1)[0].dtype)
    rows, vectors, unknown = np.full(len(batch), -1), [nothing] * len(batch), []
    for i, item in enumerate(batch):
        if (given := _measuring(store, item)) is not None:
            one = _measured(store, given, width, i)
            if not one.single:
                raise ValueError(
                    f"item {i} of the batch is a batch itself, but single queries were expected in a list "
                    "of queries. Ask one batch at a time."
                )
            vectors[i] = one.vectors[0]
        else:
            keys_may_ask(store, brief(item), width)
            if hashable(item) in names:
                rows[i] = names[item]
                vectors[i] = store.read(names[item], names[item] + 1)[0][0]
            else:
                unknown.append(i)
    missing = np.zeros(len(batch), dtype=bool)
    try:
        for i, vector in zip(unknown, _encode(store, encoder, [batch[i] for i in unknown]), strict=True):
            vectors[i] = vector
    except KeyError:
        if not lenient:
            raise
        for i in unknown:  # some may be known: ask for each alone
            try:
                vectors[i] = _encode(store, encoder, [batch[i]])[0]
            except KeyError:
                missing[i] = True
    return Asked(query, np.stack([nothing, *vectors])[1:], False, rows, missing)


def keys_may_ask(store: Store, who: str, width: int) -> None:
    """Refuse to ask with vectors that are made like keys, where queries have another width."""
    if store.keys.shape[1] != width:
        raise ValueError(
            f"{who} asks with a vector of width {store.keys.shape[1]}, as keys have, but width {width} was "
            "expected by this Bilinear similarity. Ask with arrays of that width."
        )


def _encode(store: Store, encoder: Any, names: list[Any]) -> Array:
    """Encode names; KeyError where there is no encoder."""
    if not names:
        return store.keys[:0]
    if encoder is None:
        raise KeyError(
            f"{brief(names[0])} names no entry, and there is no encoder to turn it into a vector; pass "
            f"encoder=, for texts {SPELLING}"
        )
    array = as_encoder(encoder)(names, store.dtype)
    within(array, largest(array), "the encoded key", lambda row: brief(names[row]))
    check_key_shape(store, names[0], array.shape[1:])
    return array


def check_key_shape(store: Store, name: Any, shape: tuple[int, ...]) -> None:
    """Refuse a key vector of another shape than those that are stored."""
    if len(store) and shape != store.key_shape:
        raise ValueError(
            f"the key vector of {brief(name)} has shape {shape}, but "
            f"{store.key_shape} was expected, as all keys of this SoftDict have. Use the encoder "
            "that they were made with, or keep vectors of another width in a SoftDict of their own."
        )


def own_rows(store: Store, asked: Asked, strict: bool = True) -> Any:
    """Return the rows that queries name (m,); a query that names none is a ValueError, or else has row -1."""
    rows = np.full(len(asked.vectors), -1) if asked.rows is None else asked.rows.copy()
    if store.own:
        for i in np.nonzero(rows < 0)[0].tolist():
            rows[i] = store.names.get(row_names(asked.vectors[i : i + 1], store.key_shape)[0], -1)
    if strict and (rows < 0).any():
        raise ValueError(
            f"query {int(np.argmax(rows < 0))} names no entry, but exclude_self expected queries that are "
            "stored keys, to leave each out of its own answer. Ask by name, or use where=."
        )
    return rows


# ---- new entries to vectors --------------------------------------------------------------------------

#: What an array is called where arrays are no names; nothing else equals it.
NO_NAME: Any = object()


def key_name(store: Store, encoder: Any, key: Any) -> Any:
    """Return the name under which `key` is, or would be, stored; NO_NAME where arrays are no names."""
    labeled = encoder is not None or store.numbers_name()
    if is_array(key) and labeled:
        return NO_NAME
    if labeled or not (is_array(key) or is_numeric(key)):
        return hashable(key)
    array = numbers(key, f"the key {brief(key)}", store.dtype)
    if array.ndim > 1:
        raise ValueError(
            f"the key has shape {array.shape}, but a number or one vector was expected as a key. "
            "Assign one entry at a time, or use from_arrays."
        )
    return row_names(array.reshape(1, -1), array.shape)[0]


class Keys(NamedTuple):
    """Keys as vectors."""

    names: list[Any]
    own: bool  # whether names that are numbers are their own vectors
    vectors: Array  # (m, d)
    shape: tuple[int, ...]


def read_keys(store: Store, encoder: Any, keys: list[Any]) -> Keys:
    """Return keys that come without vectors."""
    own = encoder is None and not store.numbers_name()
    names, known = [key_name(store, encoder, key) for key in keys], store.names
    fresh = list(dict.fromkeys(name for name in names if name not in known))
    bad = [name for name in fresh if name is NO_NAME or (encoder is None and not (own and is_numeric(name)))]
    if bad:
        wrong = keys[names.index(bad[0])]
        raise TypeError(
            f"the key is {brief(wrong)}, but a number, a vector, a name that is stored, or one that an "
            f"encoder turns into a vector was expected. Pass encoder=, for texts {SPELLING}, or give "
            "the vector beside the name: add(name, key_vector, value)."
        )
    if not own:
        rows = _encode(store, encoder, fresh)
    else:
        dtypes = [float_dtype(np.asarray(key)) if hasattr(key, "dtype") else np.float64 for key in keys]
        rows = _own_vectors(fresh, store.dtype or np.result_type(*dtypes))
    shape = rows.shape[1:] if fresh else store.key_shape
    vectors = rows[:, None] if rows.ndim == 1 else rows
    if fresh:
        check_key_shape(store, fresh[0], shape)
    if len(fresh) < len(names):
        new = dict(zip(fresh, vectors, strict=True))
        vectors = np.stack([new[name] if name in new else store.keys[known[name]] for name in names])
    return Keys(names, own if fresh else store.own, vectors, shape)


def read_key(store: Store, key: Any, key_vector: Any) -> Keys:
    """Return a label with the vector that stands beside it."""
    name = hashable(key)
    vector = numbers(key_vector, f"the key vector of {brief(name)}", store.dtype)
    if vector.ndim > 1:
        raise ValueError(
            f"the key vector of {brief(name)} has shape {vector.shape}, but () or (d,) was "
            "expected in add. Add one entry at a time, or use from_arrays(..., labels=...)."
        )
    return Keys([name], False, vector.reshape(1, -1).copy(), vector.shape)  # whose it was may still write


def read_entries(store: Store, value_encoder: Any, keys: Keys, values: list[Any]) -> Entries:
    """Return checked entries: each name once, in its first position, with its last value."""
    last = {name: i for i, name in enumerate(keys.names)}
    pick, names = list(last.values()), list(last)
    rows = keys.vectors if len(pick) == len(keys.names) else keys.vectors[pick]
    check_key_shape(store, names[0], keys.shape)
    _refuse_number_labels(store, names, keys.own, keys.shape)
    _refuse_moved(store, names, rows)

    def owner(row: int) -> str:
        return brief(names[row])

    within(rows, largest(rows), "the key vector", owner)
    array, objects, shape = read_values(store, value_encoder, [values[i] for i in pick], owner)
    return Entries(names, keys.own, rows, array, objects, keys.shape, shape)


def _refuse_moved(store: Store, names: list[Any], rows: Array) -> None:
    """Refuse to part a name that is its own vector from that vector."""
    for name, vector in zip(names, rows, strict=True):
        row = store.names.get(name, -1) if store.own else -1
        if row >= 0 and (vector != store.keys[row]).any():
            if row_names(store.keys[row : row + 1], store.key_shape) == [name]:
                raise ValueError(
                    f"{brief(name)} is the name of its own vector, but comes with another one, where the "
                    "same was expected. Use a text label for a vector that is not its own name."
                )


def _refuse_number_labels(store: Store, names: list[Any], own: bool, shape: tuple[int, ...]) -> None:
    """Refuse labels that are numbers beside keys that are: numbers either name or measure."""
    fresh = (name for name in names if is_label_number(name) and name not in store.names)
    label = None if own else next(fresh, None)
    if own and store.numbers_name() and any(map(is_numeric, names)):
        label = next(filter(is_numeric, store.names))
    if label is not None and (own or shape == () or (store.own and store.numeric)):
        raise ValueError(
            f"the label {label!r} is a number, but text was expected as a label beside keys that are numbers "
            "or vectors themselves: numbers either name or measure. Use str(label)."
        )


def read_arrays(
    store: Store, value_encoder: Any, keys: Any, values: Any, labels: Any, copy: bool | None
) -> tuple[Entries, bool]:
    """Return the entries of `from_arrays`, and whether some are in a memory map, not yet checked."""
    keys, keys_mapped = own_array(keys, "the array of keys", store.dtype, copy)
    n = len(keys) if keys.ndim in (1, 2) else -1
    listed = hasattr(values, "__len__") and getattr(values, "shape", None) != ()
    count = len(values) if listed else "no list of"
    if count != n:
        raise ValueError(
            f"keys have shape {keys.shape} and there are {count} values, but keys (n, d) or (n,) "
            "and n values were expected in from_arrays. Give one row to each entry."
        )
    key_shape = keys.shape[1:]
    keys = keys[:, None] if keys.ndim == 1 else keys
    names = [] if labels is None else check_labels(labels, n)
    _refuse_number_labels(store, names, False, key_shape)
    owner = (lambda row: brief(names[row])) if names else (lambda row: f"row {row}")
    objects, shape, values_mapped = None, None, False
    if n and (value_encoder is not None or not is_value(values)):
        values, objects, shape = read_values(store, value_encoder, list(values), owner)
    elif n:
        values, values_mapped = own_array(values, "the array of values", store.dtype, copy)
        shape, values = values.shape[1:], values.reshape(n, -1)
    if n and not keys_mapped:
        within(keys, largest(keys), "the key vector", owner)
        if labels is None:
            refuse_equal_rows(keys)
    if n and not values_mapped:
        within(values, np.inf, "the value", owner)
    mapped = keys_mapped or values_mapped
    return Entries(names, labels is None, keys, values, objects, key_shape, shape), mapped


def _own_vectors(names: list[Any], dtype: Any) -> Array:
    """Return the vectors (m, d) or (m,) of names that are their own vectors."""
    shapes = {(len(name),) if isinstance(name, tuple) else (): name for name in reversed(names)}
    if len(shapes) > 1:
        (shape, first), (other, second) = list(shapes.items())[:2]
        raise ValueError(
            f"key {brief(second)} has shape {other} and key {brief(first)} has shape "
            f"{shape}, but one shape was expected in one SoftDict. Give all of them the same "
            "number of components."
        )
    return np.array(names, dtype=dtype)


def read_values(
    store: Store, encoder: Any, values: list[Any], owner: Callable[[int], str]
) -> tuple[Array, list[Any] | None, tuple[int, ...] | None]:
    """Return values as numbers (m, e), as objects or None, and their shape or None."""
    objects: list[Any] | None = None
    if encoder is not None:
        array = as_encoder(encoder, rows=False)(values, store.dtype)
        objects = values
    elif not (store.objects is None if len(store) else is_value(values[0])):
        return np.empty((len(values), 0)), values, None
    else:
        for row, value in enumerate(values):
            if not is_value(value):
                raise TypeError(
                    f"the value of {owner(row)} is {brief(value)}, but numbers were expected, since the "
                    "first value of this SoftDict was numbers. Keep objects in a SoftDict of their own."
                )
        array = stack(values, owner, store.dtype)
    if len(store) and array.shape[1:] != store.value_shape:
        raise ValueError(
            f"the value of {owner(0)} has shape {array.shape[1:]}, but "
            f"{store.value_shape or ()} was expected, as all values of this SoftDict have. "
            "Reshape it, or use a SoftDict of its own."
        )
    within(array, np.inf, "the value", owner)
    return array.reshape(len(array), -1), objects, array.shape[1:]
