"""Files: what is saved is what is loaded, a crash leaves one or the other, and no bytes do harm."""

from __future__ import annotations

import collections
import errno
import io
import itertools
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

import softdict
from softdict import Bilinear, Entmax, InverseDistance, SoftDict, persistence
from softdict.encoders import CharNgrams, OneHot

ROOT = Path(__file__).parents[1]
KINDS = (".npz", ".safetensors")
SETTINGS = ("similarity", "temperature", "weighting", "top_k", "min_score", "null_score")
RNG = np.random.default_rng(0)

#: A process is killed at every so many calls while it saves, and at each of the last 100; a damage is done
#: so many times to each file. With 1 and 200 the same tests are thorough, and take minutes.
KILL_EVERY, ROUNDS = 29, 9


def lengths(words: list[Any]) -> Any:
    """Encode by length: none of the library's own."""
    return [[len(str(word)), 1] for word in words]


class Lengths:
    """An encoder that cannot be called."""

    def transform(self, words: list[Any]) -> Any:
        return lengths(words)


def mixed() -> SoftDict:
    """Return vectors that are their own names, beside a label."""
    sd = SoftDict({(1.0, 2.0): 1.0, (3.0, 4.0): 2.0})
    sd.add("label", [5.0, 6.0], 3.0)
    return sd


def worn() -> SoftDict:
    """Return what has been written to and deleted from."""
    sd = SoftDict({i: float(i) for i in range(50)})
    for i in (0, 7, 49, 30):
        del sd[i]
    sd[0.5] = -0.0
    return sd


def by_columns() -> SoftDict:
    keys = np.asfortranarray(RNG.normal(size=(200, 33)))
    return SoftDict.from_arrays(keys, np.asfortranarray(RNG.normal(size=(200, 5))), copy=False)


def normal(n: int, d: int, *shape: int, dtype: Any = float, **options: Any) -> SoftDict:
    keys, values = (RNG.normal(size=(n, *rest)).astype(dtype) for rest in ((d,), shape))
    return SoftDict.from_arrays(keys, values, **options)


WORDS = ["cat", "dog", "horse"]
DICTS = {
    "numbers": lambda: SoftDict({0: 10.0, 1: 20.0, -2.5: 40.0}, temperature=0.3),
    "vectors": lambda: SoftDict({(1, 0): [1.0, 2.0], (0, 1): [3.0, 4.0]}, similarity="laplacian"),
    "float32": lambda: normal(100, 40, 7, dtype=np.float32, similarity="cosine", temperature=0.05),
    "float64": lambda: normal(100, 40, 7, weighting="sparsemax"),
    "two dtypes": lambda: SoftDict.from_arrays(np.float32([[0.1], [0.2]]), [1.0, 2.0]),
    "explicit dtype": lambda: SoftDict({0.1: 0.1, 0.2: 0.2}, dtype=np.float32),
    "matrices": lambda: normal(5, 2, 3, 4, labels=list("abcde")),
    "by columns": by_columns,
    "mixed": mixed,
    "worn": worn,
    "empty": lambda: SoftDict(top_k=3, dtype=np.float32),
    "empty with encoder": lambda: SoftDict(encoder=CharNgrams(1000, 2)),
    "no width": lambda: SoftDict.from_arrays(np.empty((2, 0)), np.empty((2, 0)), ["a", "b"]),
    "ngrams": lambda: SoftDict({w: float(len(w)) for w in WORDS}, encoder=CharNgrams(64, (2, 3))),
    "one-hot": lambda: SoftDict({"cat": 1, ("dog", 3): 2}, encoder=OneHot(["cat", ("dog", 3), b"c", None])),
    "objects": lambda: SoftDict(
        {0: "text", 1: [1, 2.5, None, {"a": [True], 3: (b"\0", "\ud800")}], 2: {}, 3: 1 << 4000},
        temperature=0,
    ),
    "objects that blend": lambda: SoftDict({0: "a", 1: "bc"}, value_encoder=CharNgrams(8)),
    "labels": lambda: SoftDict.from_arrays(
        np.eye(9), range(9), ["a", b"a", None, True, 7, -7.5, (1, ("b", None)), "\ud83d\ude00", math.inf]
    ),
    "array labels": lambda: SoftDict.from_arrays(np.eye(2), [1, 2], np.array(["a", "b"])),
    "inverse distance": lambda: normal(9, 2, similarity=InverseDistance(0.1), min_score=-math.inf),
    "bilinear": lambda: normal(9, 3, similarity=Bilinear(RNG.normal(size=(2, 3))), null_score=-1.0),
    "entmax": lambda: normal(9, 2, weighting=Entmax(1.3), temperature=math.inf, min_score=-5.0, top_k=4),
}  # fmt: skip


def plainly(x: Any) -> str:
    """Return a text that tells apart what differs; scalars of NumPy come back as Python's."""
    return repr([y.item() if isinstance(y, np.generic) else y for y in x])


def differences(a: SoftDict, b: SoftDict, ask: bool = True) -> list[str]:
    """Return in what two SoftDicts differ, to the last bit."""
    wrong = [name for name in SETTINGS if repr(getattr(a, name)) != repr(getattr(b, name))]
    if a.similarity != b.similarity:
        wrong.append("matrix")
    wrong += [] if a == b and b == a else ["equality"]
    wrong += [] if plainly(a) == plainly(b) else ["names"]
    wrong += [] if repr(list(a.values())) == repr(list(b.values())) else ["values"]
    for name in ("key_shape", "value_shape", "dtype", "own"):
        if getattr(a._store, name) != getattr(b._store, name):
            wrong.append(name)
    for one, two in zip(a._store.arrays(), b._store.arrays(), strict=True):
        if len(a) and (one.dtype, one.shape, one.tobytes()) != (two.dtype, two.shape, two.tobytes()):
            wrong.append("arrays")
    for name in ("encoder", "value_encoder"):
        one, two = getattr(a, name), getattr(b, name)
        if type(one) is not type(two) or vars(one or Lengths()) != vars(two or Lengths()):
            wrong.append(name)
    b._store._check()
    return wrong + (["answers"] if ask and answers(a) != answers(b) else [])


def answers(sd: SoftDict) -> list[Any]:
    """Return the bytes of some answers, under settings of every kind."""
    if not len(sd) or sd._store.value_shape is None:
        return []
    shape, found = (sd._width(),) if sd._store.key_shape else (), []
    queries = np.random.default_rng(1).normal(size=(20, *shape))
    changes: list[dict[str, Any]] = [{}, {"temperature": 0}, {"temperature": 0.1, "top_k": 3}]
    if not isinstance(sd.similarity, Bilinear):
        changes += [{"similarity": s} for s in ("gaussian", "laplacian", "cosine", "dot", "scaled_dot")]
    for change in changes:
        view = sd.at(**change)
        found += [np.asarray(view.get(queries[:m], 0.0)).tobytes() for m in (1, 7, 20)]
        found.append(np.asarray(view.lookup(queries[0]).weights).tobytes())
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DICTS)
def test_what_is_saved_is_loaded(name, kind, tmp_path):
    sd, path = DICTS[name](), tmp_path / f"a file{kind}"
    before = repr(sd)
    sd.save(path)
    assert os.listdir(tmp_path) == [path.name]
    assert differences(sd, SoftDict.load(path)) == []
    assert repr(sd) == before
    first = path.read_bytes()
    SoftDict.load(path).save(str(path))  # over the very file that it reads
    assert kind == ".safetensors" or path.read_bytes() == first, "the same entries make the same file"
    assert differences(sd, SoftDict.load(str(path))) == []


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.binary()
    | st.text(st.characters())
)
NAMES = st.recursive(PLAIN, lambda x: st.lists(x, max_size=3).map(tuple), max_leaves=5)
OBJECTS = st.recursive(
    PLAIN,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(NAMES, x, max_size=3) | st.tuples(x, x),
    max_leaves=6,
)
WIDTH = st.sampled_from([16, 32, 64]).map(lambda bits: np.dtype(f"f{bits // 8}"))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), temperature=st.floats(0, math.inf))
def test_anything_plain_comes_back(data, kind, temperature):
    names = data.draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    n, finite = len(names), {"min_value": -1000, "max_value": 1000}
    keys = data.draw(WIDTH.flatmap(lambda t: arrays(t, (n, 2), elements=finite)))
    things = data.draw(st.lists(OBJECTS, min_size=n, max_size=n) | arrays("f8", (n, 2), elements=finite))
    if isinstance(things, list):  # else all numbers are no objects
        things[0] = [things[0], "text"]
    sd = SoftDict.from_arrays(keys, things, names, temperature=temperature)
    with tempfile.TemporaryDirectory() as folder:
        sd.save(f"{folder}/x{kind}")
        assert differences(sd, SoftDict.load(f"{folder}/x{kind}")) == []


def test_a_fresh_process_answers_to_the_last_bit(tmp_path):
    dicts = {f"{i}{kind}": make() for i, make in enumerate(DICTS.values()) for kind in KINDS}
    for name, sd in dicts.items():
        sd.save(tmp_path / name)
    code = (
        "import sys, test_persistence as t\n"
        "for name in sys.argv[2:]:\n"
        "    sd = t.SoftDict.load(f'{sys.argv[1]}/{name}')\n"
        "    print(ascii((t.plainly(sd), [x.hex() for x in t.answers(sd)])))"
    )
    done = run(code, tmp_path, *dicts)
    assert done == [ascii((plainly(sd), [x.hex() for x in answers(sd)])) for sd in dicts.values()]


def run(code: str, *arguments: Any) -> list[str]:
    """Return the lines that a fresh process prints."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# ---- what is given again -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_the_library_s_own_is_given_again(kind, tmp_path):
    def product(q: Any, k: Any) -> Any:
        return q @ k.T

    def even(z: Any) -> Any:
        return np.isfinite(z) / np.isfinite(z).sum(axis=1, keepdims=True)

    own = {"encoder": lengths, "value_encoder": Lengths(), "similarity": product, "weighting": even}
    sd, path = SoftDict({"cat": "x", "horse": "yy"}, **own), tmp_path / f"x{kind}"
    sd.save(path)
    for name, value in own.items():
        others = {other: x for other, x in own.items() if other != name}
        shown = getattr(value, "__name__", "Lengths")
        with pytest.raises(TypeError, match=rf"the {name} .* was {shown}, .*expected .*Pass it again"):
            SoftDict.load(path, **others)
    again = SoftDict.load(path, **own)
    assert [getattr(again, name) for name in own] == list(own.values())
    assert again["bird"].tobytes() == sd["bird"].tobytes()
    plain = SoftDict.load(path, encoder=None, value_encoder=None, similarity="dot", weighting="softmax")
    assert plain.encoder is plain.value_encoder is None
    assert plain["cat"].tobytes() == sd.at(similarity="dot", weighting="softmax")["cat"].tobytes()


def test_an_encoder_of_another_width_is_given_again(tmp_path):
    sd = SoftDict.from_arrays(np.eye(2), [1, 2], ["a", "b"], encoder=CharNgrams())
    sd.save(tmp_path / "x")
    with pytest.raises(TypeError, match="CharNgrams"):
        SoftDict.load(tmp_path / "x")
    assert SoftDict.load(tmp_path / "x", encoder=CharNgrams()) == sd


def test_settings_given_come_before_those_saved(tmp_path):
    SoftDict({0: 1.0, 1: 2.0}, temperature=5).save(tmp_path / "x")
    assert SoftDict.load(tmp_path / "x", temperature=0, top_k=1)[0.9] == 2.0
    with pytest.raises(ValueError, match="temperature is -1"):
        SoftDict.load(tmp_path / "x", temperature=-1)
    with pytest.raises(TypeError, match=r"dtype is .*expected .*Write SoftDict"):
        SoftDict.load(tmp_path / "x", dtype="float32")


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x", "x.npz", "x.softdict", "X.SAFETENSORS", "x.npz.safetensors"])
def test_the_name_is_taken_as_it_is_and_the_bytes_tell_the_kind(name, tmp_path):
    sd = DICTS["matrices"]()
    sd.save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes().startswith(b"PK") == (not name.lower().endswith("safetensors"))
    (tmp_path / name).rename(tmp_path / "another")
    assert differences(sd, SoftDict.load(tmp_path / "another")) == []


def test_other_tools_read_the_arrays(tmp_path):
    from safetensors.numpy import load_file

    sd = DICTS["matrices"]()
    sd.save(tmp_path / "x.npz")
    sd.save(tmp_path / "x.safetensors")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as one:
        for found in (one, load_file(tmp_path / "x.safetensors")):
            np.testing.assert_array_equal(found["keys"], sd.key_vectors)
            np.testing.assert_array_equal(found["values"], sd.value_vectors)
            assert json.loads(found["header"].tobytes())["names"] == list("abcde")


def test_a_link_a_mode_and_a_device_are_left_as_they_are(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    sd = SoftDict({0: 1.0})
    for kind in KINDS:
        sd.save(new := tmp_path / f"new{kind}")
        (tmp_path / "plain").touch()
        assert new.stat().st_mode == (tmp_path / "plain").stat().st_mode
        real.write_text("old")
        real.chmod(0o640)
        link.unlink(missing_ok=True)
        link.symlink_to(real)
        sd.save(link)
        assert link.is_symlink()
        assert SoftDict.load(real) == sd
        assert real.stat().st_mode & 0o777 == 0o640
    for odd in (os.devnull, tmp_path):
        with pytest.raises(OSError, match=r"no regular file, .*expected .*Choose"):
            sd.save(odd)
    assert not Path(os.devnull).is_file()


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        SoftDict.load(tmp_path / "nothing.npz")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SoftDict().save(tmp_path / "nowhere" / "x.npz")
    with pytest.raises(IsADirectoryError):
        SoftDict.load(tmp_path)


def test_the_extra_is_asked_for_by_name(tmp_path, monkeypatch):
    sd, path = SoftDict({0: 1.0}), tmp_path / "x.safetensors"
    sd.save(path)
    before = path.read_bytes()
    for module in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "softdict\[safetensors\]"'):
        SoftDict.load(path)
    with pytest.raises(ImportError, match=r'pip install "softdict\[safetensors\]"'):
        SoftDict({1: 2.0}).save(path)
    assert (os.listdir(tmp_path), path.read_bytes()) == ([path.name], before)
    sd.save(tmp_path / "x.npz")
    assert SoftDict.load(tmp_path / "x.npz") == sd


def deep(levels: int) -> Any:
    nested: Any = ()
    for _ in range(levels - 1):
        nested = (nested,)
    return nested


RING: list[Any] = []
RING.append(RING)


@pytest.mark.parametrize(
    "thing", [{"set"}, 1j, object(), SoftDict, np.ones(2), frozenset(), [1, (2, {"a": {3}})], RING, deep(51),
              1 << 5000, np.datetime64("2020-01-01"), collections.Counter("a"), True.__class__]
)  # fmt: skip
def test_what_json_cannot_hold_is_refused_before_anything_is_written(thing, tmp_path):
    sd = SoftDict({"a": "fine"}, encoder=CharNgrams(4))
    sd.save(path := tmp_path / "x.npz")
    before = path.read_bytes()
    bad = SoftDict({"a": "fine", "b": [thing]}, encoder=CharNgrams(4))
    with pytest.raises(TypeError, match=r"value of 'b' .* holds .*expected in SoftDict.save, .*Store text"):
        bad.save(path)
    try:
        sd.add(thing, [1, 2, 3, 4], "no value")
    except TypeError:
        pass  # no name either
    else:
        with pytest.raises(TypeError, match=r"the name .*expected in SoftDict.save, .*Store text"):
            sd.save(path)
    assert (os.listdir(tmp_path), path.read_bytes()) == ([path.name], before)


def test_as_deep_as_may_be(tmp_path):
    sd = SoftDict.from_arrays(np.eye(2), ["a", "b"], [deep(50), "b"])
    sd.save(tmp_path / "x")
    assert list(SoftDict.load(tmp_path / "x")) == list(sd)


# ---- memory maps ---------------------------------------------------------------------------------


def test_a_map_is_shared_and_read_only(tmp_path):
    sd = normal(20000, 16, 16)
    sd.save(path := tmp_path / "x.safetensors")
    tracemalloc.start()
    try:
        loaded = SoftDict.load(path)
        assert tracemalloc.get_traced_memory()[1] < sd.key_vectors.nbytes / 2
    finally:
        tracemalloc.stop()
    assert loaded[np.zeros(16)].tobytes() == sd[np.zeros(16)].tobytes()
    assert softdict._checks.is_mapped(loaded.key_vectors)
    assert not loaded.key_vectors.flags.writeable
    with pytest.raises(TypeError, match=r"sd\.copy\(\)"):
        loaded[np.zeros(16)] = np.zeros(16)
    copy = loaded.copy()
    copy[np.zeros(16)] = np.zeros(16)
    assert len(SoftDict.load(path)) == len(copy) - 1


def test_a_large_map_is_not_read_when_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("softdict._store.WHOLE", 0)
    sd = normal(50, 2, 2, labels=range(50))
    sd.save(path := tmp_path / "x.safetensors")
    loaded = SoftDict.load(path)
    np.testing.assert_allclose(loaded[[3, 4]], sd[[3, 4]], rtol=1e-12)
    assert loaded.copy()[[3, 4]].tobytes() == sd[[3, 4]].tobytes()
    data = bytearray(path.read_bytes())
    at = data.index(sd.key_vectors[7].tobytes())
    data[at : at + 8] = np.float64(math.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(ValueError, match="row 7"):
        SoftDict.load(path)[3]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="checksum of its keys"):
        SoftDict.load(path)


# ---- crashes -------------------------------------------------------------------------------------

CRASHES = """
import os, random, signal, sys, time
import numpy as np
from softdict import SoftDict
import safetensors.numpy, zipfile  # both are loaded before the counting starts

def made(n):
    return SoftDict.from_arrays(np.full((n, 1), float(n)), np.arange(float(n)), [f"{i}." for i in range(n)])

path, seed = sys.argv[1], int(sys.argv[2])
old, new = made(3), made(4)
old.save(path)
with open(path, "rb") as file:
    whole = file.read()

def restore():
    with open(path, "wb") as file:
        file.write(whole)

def child(action):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            action()
        finally:
            os._exit(0)
    return pid

def outcome():
    found = SoftDict.load(path)
    assert any(found == sd for sd in (old, new, big)), found
    for name in os.listdir(os.path.dirname(path)):
        if name != os.path.basename(path):
            assert name.startswith("."), name
            os.unlink(os.path.join(os.path.dirname(path), name))
    return "old" if found == old else "new"

left = [10**9]

def count(frame, event, arg):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

def save():
    sys.setprofile(count)
    new.save(path)
    sys.setprofile(None)

save()
left[0] = 10**9  # the first time, more is called
save()
calls, ends = 10**9 - left[0], {"old": 0, "new": 0}  # of Python and C, and their returns
restore()
step, last = int(sys.argv[3]), max(1, calls - 100)  # then the file is moved into place
big = made(4)
for left[0] in [*range(1, last, step), *range(last, calls + 1)]:
    _, status = os.waitpid(child(save), 0)
    assert os.WIFSIGNALED(status)
    end = outcome()
    ends[end] += 1
    if end == "new":
        restore()
print("calls", ends["old"], ends["new"])

big = made(40000)  # and at any time
rng, ends = random.Random(seed), {"old": 0, "new": 0}
begin = time.perf_counter()
os.waitpid(child(lambda: big.save(path)), 0)
span = time.perf_counter() - begin
for _ in range(12):
    restore()
    pid = child(lambda: big.save(path))
    time.sleep(rng.random() * span)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ends[outcome()] += 1
print("times", ends["old"], ends["new"])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_leaves_the_old_file_or_the_new_one(kind, tmp_path):
    lines = run(CRASHES, tmp_path / f"x{kind}", 0, KILL_EVERY)
    calls, times = (line.split() for line in lines)
    print(f"\nkilled while saving {kind}: {calls[1:]} old and new at calls, {times[1:]} at any time")
    assert int(calls[1]) > 50
    assert int(calls[2]) > 0
    assert int(times[1]) + int(times[2]) == 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_whatever_call_fails_the_old_file_is_there_and_nothing_else(kind, error, tmp_path, monkeypatch):
    old, path = SoftDict({0: 1.0}), tmp_path / f"x{kind}"
    old.save(path)
    before, failed = path.read_bytes(), []
    calls = [(os, "open"), (os, "close"), (os, "stat"), (os, "chmod"), (os, "fsync"), (os, "replace"),
             (zipfile.ZipFile, "__init__"), (zipfile.ZipFile, "open"), (zipfile.ZipFile, "close"),
             (zipfile._ZipWriteFile, "write"), (np.lib.format, "write_array"), (persistence, "_checksum"),
             (persistence, "_write_safetensors"), (io, "open")]  # fmt: skip

    def fail(*args: Any, **named: Any) -> Any:
        failed.append(name)
        raise error

    for owner, name in calls:
        done = len(failed)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            try:
                SoftDict({1: 2.0}).save(path)
                saved = True
            except type(error):
                saved = False
        assert saved != (name in failed[done:])  # one kind of file does without some calls
        assert saved == (path.read_bytes() != before), name
        assert [name for name in os.listdir(tmp_path) if name != path.name] == [], name
        old.save(path)
    assert {"open", "close", "stat", "chmod", "fsync", "replace"} <= set(failed)


def test_a_full_disk_is_an_oserror_for_safetensors_too(tmp_path, monkeypatch):
    import safetensors
    import safetensors.numpy

    def full(*args: Any, **named: Any) -> None:
        raise safetensors.SafetensorError("No space left on device")

    path = tmp_path / "x.safetensors"
    SoftDict({1: 2.0}).save(path)
    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        SoftDict({1: 3.0}).save(path)
    assert SoftDict.load(path) == SoftDict({1: 2.0})
    assert os.listdir(tmp_path) == [path.name]


# ---- damage --------------------------------------------------------------------------------------


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at : at + 8] = rng.randbytes(len(data[at : at + 8]))


def truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def append(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.randrange(1, 100))


def cut_out(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 100)]


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 100))


def repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 300)]


def exchange(data: bytearray, rng: random.Random) -> None:
    a, b = sorted(rng.sample(range(0, len(data) - 16, 8), 2))
    data[a : a + 8], data[b : b + 8] = data[b : b + 8], data[a : a + 8]


def blank(data: bytearray, rng: random.Random) -> None:
    at, length = rng.randrange(len(data)), rng.randrange(1, 512)
    data[at : at + length] = bytes(len(data[at : at + length]))


def lie(data: bytearray, rng: random.Random) -> None:
    """Change a digit, as of a shape, an offset or a setting."""
    places = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
    data[rng.choice(places)] = rng.choice(b"0123456789")


def swell(data: bytearray, rng: random.Random) -> None:
    """Change a size to a huge one."""
    at = rng.randrange(len(data) - 8)
    data[at : at + 8] = struct.pack("<Q", 2 ** rng.randrange(24, 64))


def rename(data: bytearray, rng: random.Random) -> None:
    names = [
        b"keys",
        b"values",
        b"header",
        b"F64",
        b"F32",
        b"<f8",
        b"<f4",
        b"npy",
        b"tuple",
        b"names",
        b"cosine",
    ]
    old = rng.choice([name for name in names if name in data])
    at = rng.choice([i for i in range(len(data)) if data.startswith(old, i)])
    data[at : at + len(old)] = rng.choice(names)


DAMAGES = [flip, overwrite, truncate, append, cut_out, insert, repeat, exchange, blank, lie, swell, rename]


@pytest.mark.parametrize("kind", KINDS)
def test_random_damages_give_an_error_or_the_right_content(kind, tmp_path):
    rng, path, count = random.Random(0), tmp_path / f"x{kind}", collections.Counter[tuple[str, str]]()
    wholes = []
    for name in ("numbers", "labels", "objects", "bilinear", "ngrams"):
        sd = DICTS[name]()
        sd.save(path)
        wholes.append((sd, path.read_bytes()))
    slowest = 0.0
    tracemalloc.start()
    try:
        for damage, _, (sd, whole) in itertools.product(DAMAGES, range(ROUNDS), wholes):
            data = bytearray(whole)
            damage(data, rng)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            held, begin = tracemalloc.get_traced_memory()[0], time.perf_counter()
            try:
                found = SoftDict.load(path)
            except ValueError as error:
                result = "error" if "expected in SoftDict.load. Copy it again" in str(error) else "bare error"
            else:
                result = "wrong content" if differences(sd, found, ask=False) else "right content"
            slowest = max(slowest, time.perf_counter() - begin)
            assert tracemalloc.get_traced_memory()[1] - held < 2**20, damage
            count[damage.__name__, result] += 1
    finally:
        tracemalloc.stop()
    table = {name: {r: k for (other, r), k in count.items() if other == name} for name, _ in count}
    print(f"\n{count.total()} damages to {kind} files, the slowest {slowest:.3f} s")
    print(*(f"{name:>10}: {results}" for name, results in table.items()), sep="\n")
    assert count.total() == 60 * ROUNDS
    assert {result for _, result in count} <= {"error", "right content"}
    assert slowest < 5
    assert count["flip", "error"] > 2 * ROUNDS
    assert count["truncate", "error"] == 5 * ROUNDS


# ---- malice --------------------------------------------------------------------------------------

KEYS, VALUES = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 2.0])


def npy(array: Any) -> bytes:
    """Return the bytes of an array, pickled where it holds objects."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), version=(1, 0))
    return stream.getvalue()


def text(**changes: Any) -> bytes:
    """Return a header, with changes."""
    plain = {"similarity": "gaussian", "temperature": 1.0, "weighting": "softmax", "top_k": None,
             "min_score": None, "null_score": None, "encoder": None, "value_encoder": None}  # fmt: skip
    header = {"softdict": 1, "names": None, "own": True, "objects": None, "dtype": None, "transposed": []}
    header["settings"] = plain | changes.pop("settings", {})
    return json.dumps(header | changes).encode()


def npz(path: Path, compression: int = zipfile.ZIP_STORED, **members: Any) -> None:
    """Write a file by hand; arrays are members, bytes are their whole content, and a header is text."""
    parts = {"keys": KEYS, "values": VALUES, "header": text()} | members
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, part in parts.items():
            if name == "header":
                part = np.frombuffer(part, np.uint8)
            if part is not None:
                archive.writestr(f"{name}.npy", part if isinstance(part, bytes) else npy(part))


def lying(shape: str, descr: str = "'<f8'", order: bool = False) -> bytes:
    line = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line.encode() + KEYS.tobytes()


class Bomb:
    """Something that acts when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def tagged_names(count: int) -> Any:
    return [[k * (2**61 - 1), 0] for k in range(count)]


HEADERS: dict[str, dict[str, Any]] = {
    "another version": {"softdict": 2},
    "no version": {"softdict": None},
    "something more": {"more": 1},
    "names that are no list": {"names": 5},
    "too few names": {"names": ["a"]},
    "a name twice": {"names": ["a", "a"]},
    "one number twice": {"names": [True, 1.0], "own": False},
    "a list as a name": {"names": [["a"], "b"]},
    "no names": {"own": False},
    "names of other vectors": {"names": [{"tuple": [1.0, 2.0]}, {"tuple": [1.0, 4.0]}]},
    "an unknown tag": {"names": [{"eval": "1"}, "b"]},
    "a wrong tag": {"names": [{"tuple": 5}, "b"]},
    "bytes that are none": {"names": [{"bytes": "xyz"}, "b"]},
    "too many objects": {"objects": ["a", "b", "c"]},
    "an unknown dtype": {"dtype": "object"},
    "another dtype": {"dtype": "float32"},
    "nothing transposed": {"transposed": None},
    "wrongly transposed": {"transposed": ["keys", "values"], "names": ["a"]},
    "no settings": {"settings": {"temperature": -1}},
    "an unknown setting": {"settings": {"more": 1}},
    "text as a temperature": {"settings": {"temperature": "1"}},
    "a similarity of no name": {"settings": {"similarity": "nothing"}},
    "a similarity from elsewhere": {"settings": {"similarity": {"tuple": ["os.system", "true"]}}},
    "a similarity that is an encoder": {"settings": {"similarity": {"tuple": ["OneHot", ["a"]]}}},
    "a matrix that is not there": {"settings": {"similarity": {"tuple": ["Bilinear"]}}},
    "a class of wrong parts": {"settings": {"weighting": {"tuple": ["Entmax", 0.5]}}},
    "text as an encoder": {"settings": {"encoder": "CharNgrams"}},
    "a number as an encoder": {"settings": {"value_encoder": 7}},
    "an encoder of gigabytes": {"settings": {"encoder": {"tuple": ["CharNgrams", 2**40, [3]]}}},
    "a temperature given again": {"settings": {"temperature": {"tuple": ["given", "f"]}}},
    "names that collide": {"names": [x for x, _ in tagged_names(20_000)]},
    "keys that collide": {"names": ["a", "b"], "objects": ["a", {"dict": tagged_names(20_000)}]},
}
NPZ: dict[str, dict[str, Any]] = {name: {"header": text(**changes)} for name, changes in HEADERS.items()} | {
    "no header": {"header": b""},
    "no text": {"header": b"\xff\xfe"},
    "no JSON": {"header": b"{"},
    "another JSON": {"header": b"[1]"},
    "nested JSON": {"header": b"[" * 100_000},
    "long numbers": {"header": text(names=["a", "b"]).replace(b'"a"', b"9" * 100_000)},
    "no keys": {"keys": None},
    "a foreign member": {"more": KEYS},
    "no values": {"values": None},
    "too few values": {"values": np.ones(3)},
    "keys of three axes": {"keys": np.ones((2, 2, 2))},
    "one key": {"keys": np.float64(1)},
    "NaN in a key": {"keys": np.array([[1.0, math.nan], [3.0, 4.0]])},
    "a key too large": {"keys": np.array([[1.0, 1e300], [3.0, 4.0]])},
    "infinity in a value": {"values": np.array([1.0, math.inf])},
    "equal rows": {"keys": np.ones((2, 2))},
    "integers": {"keys": np.ones((2, 2), int)},
    "other bytes in order": {"keys": KEYS.astype(">f8")},
    "float16": {"keys": KEYS.astype("f2")},
    "pickled keys": {"keys": np.array([[Bomb()], [1]], dtype=object)},
    "pickled values": {"values": np.array([Bomb(), Bomb()], dtype=object)},
    "a pickle instead of an array": {"keys": b"cposix\nmkdir\n(S'exploded'\ntR."},
    "records": {"keys": np.zeros(2, dtype=[("a", "f8"), ("b", "O")])},
    "a huge shape": {"keys": lying("(1000000000000, 2)")},
    "a shape over 64 bits": {"keys": lying("(4611686018427387904, 4)")},
    "a small shape": {"keys": lying("(1, 2)")},
    "a negative shape": {"keys": lying("(-2, -2)")},
    "no shape": {"keys": lying("None")},
    "rows of no width": {"keys": lying("(10**15, 0)".replace("10**15", str(10**15)))[:-32]},
    "columns first": {"keys": lying("(2, 2)", order=True)},
    "an object dtype": {"keys": lying("(2, 2)", "'|O'")},
    "a nested header": {"keys": lying("(" * 90 + ")" * 90)},
    "another version of npy": {"keys": npy(KEYS).replace(b"\x01\x00v", b"\x02\x00v")},
    "compressed": {"compression": zipfile.ZIP_DEFLATED},
    "compressed a thousandfold": {"compression": zipfile.ZIP_DEFLATED, "keys": np.zeros((2**20, 8))},
}  # fmt: skip


def refused(path: Path) -> ValueError:
    """Return the error that a file gets, in no time and no room."""
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        with pytest.raises(ValueError, match=r"no file of softdict \(.*expected in .*load\. Copy") as caught:
            SoftDict.load(path)
        assert time.perf_counter() - begin < 3
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 40 * path.stat().st_size
    finally:
        tracemalloc.stop()
    return caught.value


def test_files_by_hand_are_good_but_for_one_thing(tmp_path):
    npz(tmp_path / "x")
    assert SoftDict.load(tmp_path / "x") == SoftDict({(1, 2): 1.0, (3, 4): 2.0})
    tensors(tmp_path / "y")
    assert SoftDict.load(tmp_path / "y") == SoftDict({(1, 2): 1.0, (3, 4): 2.0})


@pytest.mark.parametrize("name", NPZ)
def test_a_hostile_npz_does_no_harm(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "x.npz", **NPZ[name])
    refused(tmp_path / "x.npz")
    assert os.listdir(tmp_path) == ["x.npz"], "something was run"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_archive_does_no_harm(tmp_path):
    path = tmp_path / "x.npz"
    npz(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("keys.npy", npy(KEYS + 1))
    assert "'keys'" in str(refused(path))
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(2000):
            archive.writestr(str(i), b"")
    begin = time.perf_counter()
    refused(path)
    assert time.perf_counter() - begin < 0.1
    directory = whole.index(b"PK\1\2")
    for at, size in ((20, 4), (24, 4), (42, 4), (8, 2), (10, 2)):  # sizes, offset, flags, method of a member
        for value in (0xFF, 0x7F, 0x01):
            data = bytearray(whole)
            data[directory + at : directory + at + size] = bytes([value] * size)
            path.write_bytes(data)
            refused(path)
    for content in (b"", b"PK", b"PK\3\4", b"PK\5\6" + bytes(18), whole[:-1], whole + b"\0", b"text\n" * 99):
        path.write_bytes(content)
        refused(path)


def tensors(path: Path, sums: Any = None, **changes: Any) -> None:
    """Write a file by hand, with another tensor in place of one, or another text of the head."""
    head: dict[str, Any] = {}
    data = b""
    for name, array in (("keys", KEYS), ("values", VALUES), ("header", np.frombuffer(text(), np.uint8))):
        kind = "U8" if name == "header" else "F64"
        head[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
        changes.setdefault("crc", {})[name] = persistence._checksum(array)
    crc = changes.pop("crc")
    head["__metadata__"] = {"softdict": json.dumps(crc if sums is None else sums)}
    raw = changes.pop("raw", None) or json.dumps(head | changes)
    raw = raw(json.dumps(head)) if callable(raw) else raw
    path.write_bytes(struct.pack("<Q", len(raw)) + raw.encode() + data)


def tensor(dtype: str, shape: list[int], *offsets: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


TWIN = tensor("F64", [2, 2], 0, 32)
TENSORS: dict[str, dict[str, Any]] = {
    "a huge shape": {"keys": tensor("F64", [10**12, 2], 0, 32)},
    "a shape over 64 bits": {"keys": tensor("F64", [2**62, 4], 0, 32)},
    "another dtype": {"keys": tensor("I64", [2, 2], 0, 32)},
    "an unknown dtype": {"keys": tensor("O", [2, 2], 0, 32)},
    "offsets beyond the end": {"keys": tensor("F64", [2, 2], 10**6, 10**6 + 32)},
    "offsets backwards": {"keys": tensor("F64", [2, 2], 32, 0)},
    "offsets into another": {"values": tensor("F64", [2], 16, 32)},
    "negative offsets": {"keys": tensor("F64", [2, 2], -32, 0)},
    "another shape": {"keys": tensor("F64", [4, 1], 0, 32)},
    "a foreign tensor": {"more": tensor("F64", [0], 48, 48)},
    "no checksums": {"__metadata__": {}},
    "no metadata": {"__metadata__": None},
    "other checksums": {"sums": {"header": 1, "keys": 1, "values": 1}},
    "checksums of nothing": {"sums": {}},
    "checksums that are none": {"sums": 5},
    "an empty head": {"raw": "{}"},
    "a nested head": {"raw": "{" + "[" * 60_000},
    "a long head": {"raw": "{" + " " * 100_000 + "}"},
    "two of one name": {"raw": lambda head: head.replace("{", f'{{"keys": {json.dumps(TWIN)}, ', 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_a_hostile_safetensors_does_no_harm(name, tmp_path):
    tensors(path := tmp_path / "x.safetensors", **TENSORS[name])
    refused(path)


def test_lengths_that_lie(tmp_path):
    tensors(path := tmp_path / "x.safetensors")
    whole = path.read_bytes()
    for length in (0, 1, 7, 10**6, 2**32, 2**63, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + whole[8:])
        refused(path)
    for content in (b"\0" * 8, b"\2" + b"\0" * 7 + b"{}", whole[:-1], whole + b"\0"):
        path.write_bytes(content)
        refused(path)
