"""The tests bite: each fault put into a copy of the code makes the test that guards against it fail."""

import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import oracle
import pytest

ROOT = Path(__file__).parents[1]

LAW = "test_law.py::test_a_dict_is_one_end_of_the_dial"
SAME = "test_functions.py::test_the_dict_its_lookup_its_parts_and_its_tiles_say_the_same"
PAIR = "test_functions.py::test_a_score_depends_on_its_pair_alone"
ORACLE = "test_functions.py::test_every_option_is_the_oracle_s"

#: What is done wrong, in which module, and which test has to see it.
FAULTS = {
    "the plain expansion in place of the distance": (
        "scores.py",
        "return _behind_hits(_sum_of_differences(q, k, 2) * -0.5, 0.0, q, k)",
        "return (q * k).sum(-1) - (q * q).sum(-1) / 2 - (k * k).sum(-1) / 2",
        LAW + "[far_from_the_origin-float64]",
    ),
    "a near miss that underflows counts as a hit": (
        "scores.py", "np.where(missed, np.minimum(scores[at], below), hit)", "hit",
        LAW + "[tiny-float64]",
    ),
    "BLAS in place of sums pair by pair": (
        "scores.py", "out = _pairs(q, k)",
        "out = (q @ k.swapaxes(-1, -2))[:, 0] if q.ndim == 3 else _pairs(q, k)", PAIR,
    ),
    "a cosine that is not clean for equal vectors": (
        "scores.py", "np.sqrt(np.where(squares == 0, 1, squares))",
        "np.sqrt(_squares(q))[:, None] / np.sqrt(_squares(k))", PAIR,
    ),
    "divide first, center then": (
        "weights.py",
        "z = scores - _one(best)\n        if temperature != 1:\n            z /= temperature\n",
        "z = scores / temperature - best / temperature\n",
        "test_cases.py::test_center_first_then_divide",
    ),
    "ties to the later entry": (
        "weights.py", "np.lexsort((place,", "np.lexsort((-place,",
        "test_cases.py::test_top_k_keeps_exactly_k",
    ),
    "the silent entry ties with an equal one": (
        "weights.py", "(best >= null_score)", "(best > null_score)",
        "test_functions.py::test_an_entry_wins_against_an_equal_null",
    ),
    "entmax with a power that is a little off": (
        "weights.py", "np.maximum(1 + x, 0) ** (1 / beta)", "np.maximum(1 + x, 0) ** (1.0001 / beta)", ORACLE,
    ),
    "no bias among the logits": ("weights.py", "    z += bias\n", "", ORACLE),
    "zero times NaN": (
        "blend.py", "if not all_finite(out):", "if False:",
        "test_cases.py::test_what_is_masked_cannot_leak",
    ),
    "parts merge without their mass": ("blend.py", "lift + np.log(mass)", "lift + 0 * mass", SAME),
    "tiles that forget their place": ("blend.py", "np.arange(c.start, c.stop)", "np.arange(c.stop - c.start)",
                                     "test_tiles.py::test_the_careful_way"),
    "parts that forget their offset": (
        "blend.py", "place=state.place + offset", "place=state.place", "test_partials.py",
    ),
    "all scores at once": (
        "_backend.py",
        "share, cells = (3, n) if m < FEW_ROWS else (4, CELLS // m)\n"
        "    room = int(budget_mib * 2**20) // share // size",
        "cells = room = 2**40",
        "test_tiles.py::test_memory_is_bounded",
    ),
    "writing into what was handed out": (
        "_store.py", "lowest < self.lent", "False", "test_cases.py::test_arrays_are_not_shared",
    ),
    "rows in a wrong order after a deletion": (
        "_store.py",
        "order = self._names.values() if names is None",
        "order = list(self._names.values())[::-1] if names is None",
        "test_cases.py::test_deleting_and_adding_agrees_with_a_dict",
    ),
    "a salted hash": (
        "encoders.py", "crc32(gram.encode(\"utf-8\", \"surrogatepass\"))", "hash(gram)",
        "test_cases.py::test_character_ngrams_are_the_same_in_every_process",
    ),
    "an update that writes what it has before it fails": (
        "mapping.py",
        "                sd._write(encoders.read_keys(store, sd.encoder, new_keys), new_values)\n",
        "                for key, value in zip(new_keys, new_values):\n"
        "                    sd._write(encoders.read_keys(store, sd.encoder, [key]), [value])\n",
        "test_cases.py::test_an_update_with_a_bad_second_entry_changes_nothing",
    ),
    "a threshold that goes on for the others": (
        "weights.py", "t = np.where(live, t_next, t)", "t = t_next",
        "test_self_attention.py::test_a_later_word_changes_no_earlier_bit",
    ),
    "sums that depend on how long other rows are": (
        "weights.py",
        "np.add.accumulate(w, axis=-1, dtype=np.longdouble)[..., -1:].sum(-1, np.float64, keepdims=True)",
        "w.sum(-1, keepdims=True)",
        "test_attention.py::test_nor_where_a_sparse_weighting_keeps_many",
    ),
    "heads that take every other column": (
        "transformer.py",
        "return rows.reshape(*rows.shape[:-1], h, rows.shape[-1] // h).swapaxes(-3, -2)",
        "return np.moveaxis(rows.reshape(*rows.shape[:-1], rows.shape[-1] // h, h), -1, -3)",
        "test_self_attention.py::test_each_head_is_one_softdict",
    ),
    "key heads that serve in turn": (
        "transformer.py", "own = i * len(k) // h", "own = i % len(k)",
        "test_self_attention.py::test_a_lookup_tells_why_and_never_changes_the_answer",
    ),
    "a lookup that sees later words": (
        "transformer.py",
        "if (span := _span(n, n, self.causal, self.window, None)) is not None:",
        "if (span := None) is not None:",
        "test_self_attention.py::test_a_lookup_tells_why_and_never_changes_the_answer",
    ),
}  # fmt: skip


def run_copy(folder, tests):
    """Run tests of a copy of the repository; return the exit status and what was printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=folder / "tests", env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def copy_to(folder):
    for part in ("softdict", "tests"):
        shutil.copytree(
            ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis")
        )
    return folder


def test_without_a_fault_a_copy_passes(tmp_path):
    tests = sorted({test for *_, test in FAULTS.values() if test not in (ORACLE, PAIR, "test_partials.py")})
    status, text = run_copy(copy_to(tmp_path), tests)
    assert status == 0, text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Begin to run the tests of all faults, as many at once as there are cores."""

    def with_fault(module, right, wrong, test):
        folder = copy_to(tmp_path_factory.mktemp("fault"))
        path = folder / "softdict" / module
        source = path.read_text(encoding="utf-8")
        assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times in {module}"
        path.write_text(source.replace(right, wrong), encoding="utf-8")
        return run_copy(folder, [test])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(with_fault, *fault) for name, fault in FAULTS.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, runs):
    status, text = runs[fault].result()
    assert status == 1, f"no test failed, or none could be run:\n{text}"


def test_agree_sees_what_is_beyond_the_tolerance():
    tol = oracle.tolerance(np.float32, 10, 2)
    oracle.agree([1.0], [1.0 + 0.9 * tol], tol, "teeth")
    for wrong in (1.0 + 1.1 * tol, math.nan, math.inf):
        with pytest.raises(AssertionError, match="times the tolerance"):
            oracle.agree([wrong], [1.0], tol, "teeth")
    with pytest.raises(AssertionError, match="shape"):
        oracle.agree([1.0, 1.0], [1.0], tol, "teeth")
    del oracle.worst["teeth"]
