"""A SoftDict to one file and back: arrays and a JSON header, never pickle.

Both kinds of file hold the same: `keys`, `values` (where the values are numbers, or were encoded), `W` (of
a `Bilinear`), and `header`, the bytes of a JSON text with everything else. What is read is held against the
size of the file before room is made for it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import secrets
import stat
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from softdict._checks import (
    Array,
    brief,
    check_labels,
    check_rows,
    float_dtype,
    is_label_number,
    refuse_equal_rows,
    row_names,
    store_dtype,
)
from softdict._store import Entries, Store
from softdict.blend import checked
from softdict.encoders import CharNgrams, OneHot
from softdict.scores import Bilinear, InverseDistance
from softdict.weights import Entmax

#: What a file holds beside `header`, and in which types.
_ARRAYS, _TYPES = ("keys", "values", "W"), {"F32": "<f4", "F64": "<f8", "U8": "|u1"}

#: What the library itself brings for a setting, and of which attributes it is made again.
_OWN: dict[str, dict[type, tuple[str, ...]]] = {
    "similarity": {InverseDistance: ("delta",), Bilinear: ()},  # W is an array of the file
    "weighting": {Entmax: ("alpha",)},
    "encoder": {CharNgrams: ("d", "sizes"), OneHot: ("_axes",)},
    "value_encoder": {CharNgrams: ("d", "sizes"), OneHot: ("_axes",)},
}

#: The settings of a lookup.
_LOOKUP = ("similarity", "temperature", "weighting", "top_k", "min_score", "null_score")

_DEEPEST = 50  # levels of tuples, lists and dicts, so that no file is too deep for whoever loads it
_DIRECTORY = 2**16  # bytes; zip and safetensors files tell first what they hold, in some hundred bytes here
_LONGEST = 2**12  # bits of an integer, more than enough: Python refuses to read one of 4300 digits
_PIECE = 2**20
_COLLISIONS = 99  # equal hashes; -1 and -2 are two


class _Header(NamedTuple):
    """What a file holds beside arrays."""

    softdict: int  # the version of this list
    names: list[Any] | None  # None where every vector is its own name
    own: bool  # whether names that are numbers are their own vectors
    objects: list[Any] | None
    dtype: str | None  # an explicit one
    transposed: list[str]  # the arrays that lie by columns, which changes last bits
    settings: dict[str, Any]  # and encoders; (class, ...) or ("given", name) where they are no plain value


# ---- saving ----------------------------------------------------------------------------------------


def save(path: Any, store: Store, settings: dict[str, Any]) -> None:
    """Write entries and settings into a file, or raise before anything is written."""
    target = Path(os.path.realpath(path))
    keys, values = store.arrays()
    arrays = {"keys": keys.reshape(len(keys), *(store.key_shape or ()))}
    if store.value_shape is not None:
        arrays["values"] = values.reshape(len(values), *store.value_shape)
    if type(settings["similarity"]) is Bilinear:
        arrays["W"] = settings["similarity"].W
    names, things = list(store._names), store.objects
    header = _Header(
        softdict=1,
        names=None if all(map(store.is_own, names)) else [_tagged(x, "the name", x) for x in names],
        own=store.own,
        objects=things and [_tagged(x, "the value of", y) for x, y in zip(things, store.names, strict=True)],
        dtype=None if store.dtype is None else store.dtype.name,
        transposed=[name for name, x in arrays.items() if x.ndim == 2 and x.flags.fnc],
        settings={name: _spec(name, x, keys.shape) for name, x in settings.items()},
    )
    text = json.dumps(header._asdict(), ensure_ascii=False)
    for name, array in arrays.items():
        array = array.T if name in header.transposed else array
        arrays[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    arrays["header"] = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    _put(target, _write_safetensors if target.suffix.lower() == ".safetensors" else _write_npz, arrays)


def _tagged(x: Any, what: str, whose: Any, depth: int = 0) -> Any:
    """Return what JSON holds, with all that it would change in a dict of one item that says what it was."""
    x = x.item() if isinstance(x, np.generic) and x.dtype.kind in "biufSU" else x
    if x is None or type(x) in (bool, float, str) or (type(x) is int and x.bit_length() < _LONGEST):
        return x
    if depth < _DEEPEST:
        if type(x) is bytes:
            return {"bytes": x.hex()}
        if type(x) in (list, tuple):
            items = [_tagged(item, what, whose, depth + 1) for item in x]
            return items if type(x) is list else {"tuple": items}
        if type(x) is dict:
            return {"dict": [[_tagged(y, what, whose, depth + 1) for y in item] for item in x.items()]}
    raise TypeError(
        f"{what} {brief(whose)} is or holds {brief(x)} (a {type(x).__name__}), but text, numbers, bytes, "
        f"None, and tuples, lists and dicts of these, at most {_DEEPEST} deep, were expected in "
        "SoftDict.save, which never pickles. Store text or a number in its place, and the thing elsewhere."
    )


def _untagged(x: dict[str, Any]) -> Any:
    """Return what `_tagged` made a dict of one item; the header itself has more."""
    if len(x) > 1:
        return x
    ((kind, inner),) = x.items()
    if kind == "dict":
        _refuse_collisions([key for key, _ in inner])
        return dict(inner)
    return {"bytes": bytes.fromhex, "tuple": tuple}[kind](inner)  # type: ignore[operator]


def _refuse_collisions(names: list[Any]) -> None:
    """Refuse names with equal hashes, as nobody has them by chance: a dict compares each with all others."""
    if names and Counter(map(hash, names)).most_common(1)[0][1] > _COLLISIONS:
        raise ValueError("it holds names that collide")


def _spec(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Return a plain value that stands for a setting; `shape` is that of all keys."""
    parts = _OWN.get(name, {}).get(type(value))
    if parts is not None and (name != "encoder" or _fits(value, shape)):
        return _tagged((type(value).__name__, *(getattr(value, part) for part in parts)), "the", name)
    if name not in _OWN or value is None or isinstance(value, str):
        return value
    return _tagged(("given", getattr(value, "__name__", type(value).__name__)), "the", name)


def _fits(encoder: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether an encoder's vectors are as wide as those that are stored, which take room in the file."""
    return not shape[0] or not isinstance(encoder, CharNgrams) or encoder.d == shape[1]


def _put(target: Path, write: Callable[[Path, dict[str, Array]], None], arrays: dict[str, Array]) -> None:
    """Write a file beside and move it into place, so that a crash leaves the old file or the new one."""
    os.stat(target.parent)  # names the folder that is missing
    if target.exists() and not target.is_file():
        raise FileExistsError(
            f"{target} is no regular file, but a new name, or that of a file to be replaced, was expected in "
            "SoftDict.save. Choose another name."
        )
    beside = target.with_name(f".{secrets.token_hex(8)}.softdict")
    new = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less what the umask says
    try:
        os.close(new)
        mode = stat.S_IMODE(os.stat(target if target.exists() else beside).st_mode)
        write(beside, arrays)  # by safetensors: with another mode
        os.chmod(beside, mode)
        with open(beside, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _write_npz(path: Path, arrays: dict[str, Array]) -> None:
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:  # as it is, nothing compressed
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of no date: the same entries make the same file
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)


def _write_safetensors(path: Path, arrays: dict[str, Array]) -> None:
    sums = {name: _checksum(array) for name, array in arrays.items()}
    module, metadata = _safetensors(), {"softdict": json.dumps(sums)}
    try:
        module.save_file(arrays, str(path), metadata=metadata)
    except Exception as error:  # its own SafetensorError, for a full disk
        raise OSError(str(error)) from error


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError:
        raise ImportError(
            "the package safetensors is missing, but it was expected by SoftDict.save and SoftDict.load for "
            'files of that kind. Run pip install "softdict[safetensors]", or save as .npz.'
        ) from None


# ---- loading ---------------------------------------------------------------------------------------


def load(path: Any, given: dict[str, Any]) -> tuple[Store, dict[str, Any]]:
    """Read what `save` wrote: the entries, and the settings with those given in place of the saved ones."""
    if "dtype" in given:
        raise TypeError(
            f"dtype is {brief(given['dtype'])}, but settings and encoders were expected in SoftDict.load: "
            "the entries come as they were saved. Write SoftDict(SoftDict.load(path), dtype=...)."
        )
    with open(path := os.fspath(path), "rb") as file:
        try:
            store, settings = _restored(*_read(file))
        except (ImportError, MemoryError, OSError):
            raise
        except Exception as error:  # whatever a parser raises over bytes that nobody wrote for it
            raise ValueError(
                f"{path!r} is damaged, or no file of softdict ({str(error) or type(error).__name__}), but a "
                "file as SoftDict.save writes it was expected in SoftDict.load. Copy it again from where it "
                "came, or save the SoftDict again."
            ) from error
    for name, value in settings.items():
        if isinstance(value, _Given) and name not in given:
            raise TypeError(
                f"the {name} of this SoftDict was {value.name}, which a file does not keep, so {name}= was "
                f"expected in SoftDict.load({path!r}). Pass it again: load(path, {name}=...)."
            )
    return store, {**settings, **given}


class _Given(NamedTuple):
    """What is not in the file."""

    name: str


def _read(file: BinaryIO) -> tuple[_Header, dict[str, Array], dict[str, int] | None]:
    """Return header, arrays and, where they are in a memory map, their checksums."""
    size, sums = os.fstat(file.fileno()).st_size, None
    if file.read(4) == b"PK\3\4":
        arrays = _read_npz(file, size)
    else:
        arrays, sums = _read_safetensors(file, size)
    text = arrays.pop("header")
    if not {"keys"} <= set(arrays) <= set(_ARRAYS) or text.dtype != np.uint8:
        raise ValueError(f"its arrays are {brief(sorted(arrays))}")
    if sums is not None:
        _check_sums({"header": text} | {name: x for name, x in arrays.items() if name == "W"}, sums)
    header = json.loads(text.tobytes().decode("utf-8", "surrogatepass"), object_hook=_untagged)
    if header["softdict"] != 1:
        raise ValueError(f"its format is {brief(header['softdict'])}, where this version of softdict knows 1")
    return _Header(**header), arrays, sums


def _read_npz(file: BinaryIO, size: int) -> dict[str, Array]:
    """Return the members of a zip archive."""
    import zipfile

    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) < len(names) or not set(names) <= {"header", *_ARRAYS}:
            raise ValueError(f"its members are {brief(names)}")
        if any(x.compress_type != zipfile.ZIP_STORED or x.file_size != x.compress_size for x in members):
            raise ValueError("it is compressed, which SoftDict.save never does")
        places = [(x.header_offset, x.header_offset + x.file_size) for x in members]
        if sum(x.file_size for x in members) > size or any(a < 0 or b > size for a, b in places):
            raise ValueError("its members are larger than the file")
        return {name: _read_npy(archive.open(x), x.file_size) for name, x in zip(names, members, strict=True)}


def _check_directory(file: BinaryIO, size: int) -> None:
    """Refuse a zip archive whose list of members is long, since `zipfile` reads all of it at once."""
    file.seek(max(0, size - 98))
    end = file.read().rjust(98, b"\0")  # the end, and before it perhaps that of an archive of gigabytes
    where, length = size - 22, struct.unpack_from("<I", end, 76 + 12)[0]
    if end[56:60] == b"PK\6\7":
        where, length = where - 76, max(length, struct.unpack_from("<Q", end, 40)[0])
    if end[76:80] != b"PK\5\6" or end[96:] != b"\0\0" or not 0 <= length <= min(where, _DIRECTORY):
        raise ValueError("its end is missing")


def _read_npy(file: Any, size: int) -> Array:
    """Return the array of a member of that size; at its end `zipfile` compares the checksum."""
    with file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it holds an array of another format")
        try:
            shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        except MemoryError:  # Python's own parser, over a text that is nested too deep
            raise ValueError("it holds an array without a header") from None
        if by_columns or dtype.str not in _TYPES.values() or min(shape, default=0) < 0:
            raise ValueError(f"it holds an array of dtype {dtype} and shape {brief(shape)}")
        if math.prod(shape) * dtype.itemsize != size - file.tell():
            raise ValueError(f"an array of shape {brief(shape)} takes {size} bytes")
        array = np.empty(shape, dtype)
        room: Any = array.reshape(-1).view(np.uint8)
        while len(room):
            count = file.readinto(room[:_PIECE])
            if not count:
                raise ValueError("it ends too early")
            room = room[count:]
        return array.astype(dtype.newbyteorder("="), copy=False)


def _read_safetensors(file: BinaryIO, size: int) -> tuple[dict[str, Array], dict[str, int]]:
    """Return the arrays, in a memory map, and their checksums."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    text = file.read(min(length, _DIRECTORY)) if 2 <= length <= size - 8 else b""
    if not text.startswith(b"{") or len(text) < length:
        raise ValueError("it starts neither like .npz nor like .safetensors")
    with _safetensors().safe_open(os.fsdecode(file.name), framework="numpy"):
        pass  # types, shapes, offsets and the size of the file fit together
    tensors = json.loads(text, object_pairs_hook=_once)
    sums = json.loads(tensors.pop("__metadata__")["softdict"])
    data, arrays = np.asarray(np.memmap(file, np.uint8, "r"))[8 + length :], {}
    for name, tensor in tensors.items():
        start, stop = tensor["data_offsets"]
        arrays[name] = data[start:stop].view(_TYPES[tensor["dtype"]]).reshape(tensor["shape"])
    return arrays, sums


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"it holds two things of one name: {brief([name for name, _ in pairs])}")
    return dict(pairs)


def _check_sums(arrays: dict[str, Any], sums: dict[str, int]) -> None:
    for name, array in arrays.items():
        if _checksum(array) != sums[name]:
            raise ValueError(f"the checksum of its {name} is another one")


def _checksum(array: Any) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8))


def _restored(
    header: _Header, arrays: dict[str, Array], sums: dict[str, int] | None
) -> tuple[Store, dict[str, Any]]:
    """Return entries and settings that fit together, or raise."""
    settings = {name: _made(name, spec, arrays.get("W")) for name, spec in header.settings.items()}
    if set(settings) != {*_LOOKUP, "encoder", "value_encoder"}:
        raise ValueError(f"its settings are {brief(sorted(settings))}")
    checked(**{name: settings[name] for name in _LOOKUP if not isinstance(settings[name], _Given)})
    store = Store(store_dtype(header.dtype))
    if len(arrays["keys"]):
        entries = _entries(header, arrays, store.dtype)
        store.adopt(entries, sums is not None)
        if sums is None:  # all is in memory
            check_rows(entries.keys, entries.values, lambda row: f"row {row}")
            if header.names is None:
                refuse_equal_rows(entries.keys)
        elif not store.in_parts:
            _check_sums(arrays, sums)
        _check_names(store, entries.names)
        if not _fits(settings["encoder"], entries.keys.shape):
            raise ValueError(f"its keys of width {entries.keys.shape[1]} are not those of its encoder")
    return store, settings


def _entries(header: _Header, arrays: dict[str, Array], dtype: Any) -> Entries:
    """Return what may be entries, by their shapes."""
    sides = {name: arrays[name] for name in ("keys", "values") if name in arrays}
    sides |= {name: x.T for name, x in sides.items() if name in header.transposed}
    keys, names, objects = sides["keys"], header.names, header.objects
    n, shape = len(keys), sides["values"].shape[1:] if "values" in sides else None
    counts = {len(x) for x in (names, objects, sides.get("values")) if x is not None}
    if keys.ndim > 2 or counts - {n} or (shape is None and objects is None):
        raise ValueError(f"its {n} keys, its values and its names do not go together")
    if any(x.dtype != (dtype or float_dtype(x)) for x in sides.values()):
        raise ValueError(f"its arrays hold {', '.join(str(x.dtype) for x in sides.values())}")
    if names is None and (not header.own or (n > 1 and not keys.size)):
        raise ValueError("its entries have no names")
    _refuse_collisions(names or [])
    labels = [] if names is None else check_labels(names, n)
    values = np.empty((n, 0)) if shape is None else sides["values"].reshape(n, -1)
    return Entries(labels, bool(header.own), keys.reshape(n, -1), values, objects, keys.shape[1:], shape)


def _check_names(store: Store, names: Sequence[Any]) -> None:
    """Refuse numbers as names of vectors that are to be their own names, and are others."""
    if any(map(is_label_number, names)):
        own = row_names(store.read(0, store.size)[0], store.key_shape) if store.own else names
        for name, vector in zip(names, own, strict=True):
            if is_label_number(name) and (name != vector or (not store.own and store.key_shape == ())):
                raise ValueError(f"the number {brief(name)} is the name of another one")


def _made(name: str, spec: Any, matrix: Any) -> Any:
    """Return a setting from the plain value that `_spec` made of it."""
    if not isinstance(spec, tuple):
        if spec is None or name in _LOOKUP:
            return spec
        spec = (spec,)
    kind, *parts = spec
    if kind == "given" and name in _OWN:
        return _Given(*parts)
    for cls in _OWN.get(name, {}):
        if cls.__name__ == kind:
            return cls(matrix) if cls is Bilinear else cls(*parts)
    raise ValueError(f"its {name} is {brief(spec)}")
