"""Objects to vectors: one-hot, hashed character n-grams, and an adapter for what others have made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from softdict._checks import Array, numbers, shape_text


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
        self._axes = {thing: axis for axis, thing in enumerate(dict.fromkeys(objects))}

    def __call__(self, objects: Sequence[Any]) -> Array:
        """Return one row of zeros and a one for each object, (m, d)."""
        rows = np.zeros((len(objects), len(self._axes)))
        for row, thing in zip(rows, objects, strict=True):
            if thing not in self._axes:
                raise KeyError(f"{thing!r} is none of the {len(self._axes)} objects that OneHot knows")
            row[self._axes[thing]] = 1
        return rows


class CharNgrams:
    """Count the character n-grams of texts in d buckets, and scale each text to unit length.

    Texts that share spelling are alike, whatever they mean. The hash is CRC-32, so every process
    gives the same vectors.

    **Equivalent to:** ``v[crc32(gram) % d] += 1`` for the n-grams of each lower-case word between
    two spaces, then ``v / np.linalg.norm(v)``

    Parameters
    ----------
    d : int
        How many buckets; at least 1. With fewer buckets more n-grams share one.
    sizes : sequence of int
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

    def __init__(self, d: int = 2048, sizes: Sequence[int] = (3, 4, 5)) -> None:
        self.d, self.sizes = d, tuple(sizes)
        if not self.sizes or any(not isinstance(n, int) or n < 1 for n in (d, *self.sizes)):
            raise ValueError(
                f"d is {d!r} and sizes are {sizes!r}, but whole numbers of at least 1 were expected "
                "in CharNgrams. Leave them out for 2048 buckets and n-grams of 3, 4 and 5."
            )

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return one vector of length 1 for each text, (m, d)."""
        vectors: Array = np.zeros((len(texts), self.d))
        seen: dict[str, Array] = {}  # words repeat
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"item {i} of the texts is {text!r}, but text was expected in CharNgrams. "
                    "Turn it into text first: str(item)."
                )
            words = text.lower().split() or [""]
            for word in words:
                if word not in seen:
                    seen[word] = self._buckets(f" {word} ")
            np.add.at(vectors[i], np.concatenate([seen[word] for word in words]), 1)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def _buckets(self, word: str) -> Array:
        grams = [word[i : i + n] for n in self.sizes for i in range(max(1, len(word) - n + 1))]
        return np.array([crc32(gram.encode("utf-8", "surrogatepass")) % self.d for gram in grams])


def as_encoder(encoder: Any, rows: bool = True) -> Callable[[Sequence[Any]], Array]:
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
        From a list of m objects to an array of floats.

    Raises
    ------
    TypeError
        For what is no encoder, and for results that hold no real numbers.
    ValueError
        For results of a wrong shape.

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
    call = next((f for f in found if callable(f)), None)
    if call is None or isinstance(encoder, (str, type)):
        raise TypeError(
            f"the encoder is {encoder!r}, but a function of a list, or an object with encode or "
            "transform, was expected. Pass an instance: OneHot(objects), CharNgrams(), a fitted "
            "TfidfVectorizer, or your own function."
        )
    name = getattr(encoder, "__name__", type(encoder).__name__)

    def encode(objects: Sequence[Any]) -> Array:
        result = call(list(objects))
        result = result.toarray() if hasattr(result, "toarray") else result  # sparse
        array = numbers(result, f"the result of the encoder {name}")
        if array.shape[:1] != (len(objects),) or (rows and array.ndim != 2):
            raise ValueError(
                f"the encoder {name} returned shape {shape_text(array.shape)} for {len(objects)} "
                f"objects, but ({len(objects)}, {'d' if rows else '...'}) was expected. "
                "It is given a list and answers with one row for each item."
            )
        return array

    return encode
