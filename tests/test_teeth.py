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
SLOPE = "test_gradients.py::test_finite_differences_agree"
SLOPE_BY_TILES = "test_gradients.py::test_tiles_are_the_twin_s"
SLOPES = "test_learning.py::test_slopes_of_every_part_are_those_of_finite_differences[gaussian-softmax]"

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
    "a file whose checksums nobody compares": (
        "persistence.py", "if _checksum(array) != sums[name]:", "if False:",
        "test_persistence.py::test_random_damages_give_an_error_or_the_right_content",
    ),
    "a file whose sizes are believed": (
        "persistence.py", "if math.prod(shape) * dtype.itemsize != size - file.tell():", "if False:",
        "test_persistence.py::test_a_hostile_npz_does_no_harm",
    ),
    "a file that is written where the old one is": (
        "persistence.py", "os.replace(beside, target)", "target.write_bytes(beside.read_bytes())",
        "test_persistence.py::test_a_killed_process_leaves_the_old_file_or_the_new_one",
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
        "return rows.reshape(shape).swapaxes(-3, -2)",
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
    # Derivatives that are off by a thousandth, and what else could go wrong on the way back.
    "a steeper gaussian": (
        "scores.py", "ds * (rule(steps) if rule else steps)",
        "ds * (rule(steps) if rule else 1.001 * steps)", SLOPE + "[gaussian-softmax]",
    ),
    "a steeper gaussian, by products": (
        "scores.py", "to_q[:, :-1] - to_q[:, -1:] * q", "to_q[:, :-1] - 1.001 * to_q[:, -1:] * q",
        SLOPE_BY_TILES + "[gaussian-float64-1e-09]",
    ),
    "a steeper laplacian": (
        "scores.py", "rule=np.sign", "rule=lambda x: 1.001 * np.sign(x)", SLOPE + "[laplacian-softmax]",
    ),
    "a steeper cosine": (
        "scores.py", "turn = gradient - (", "turn = gradient - 0.999 * (", SLOPE + "[cosine-softmax]",
    ),
    "a steeper dot": (
        "scores.py", "return _product(np.matmul, ds, k), _product(_crossed, ds, q)",
        "return _product(np.matmul, ds, k), 1.001 * _product(_crossed, ds, q)", SLOPE + "[dot-softmax]",
    ),
    "a steeper scaled dot": (
        "scores.py", "to_k / _root_width(q)", "to_k / (0.999 * _root_width(q))",
        SLOPE + "[scaled_dot-softmax]",
    ),
    "a steeper inverse distance": (
        "scores.py", "2 * steps / squares", "2.002 * steps / squares",
        SLOPE + "[InverseDistance(delta=0.5)-softmax]",
    ),
    "a steeper bilinear form": (
        "scores.py", "_product(np.matmul, dk, self.W)", "1.001 * _product(np.matmul, dk, self.W)",
        "test_gradients.py::test_every_option_is_the_twin_s[3-5-Bilinear(W of shape (3, 3))]",
    ),
    "a softmax that moves too much": (
        "gradients.py", "w * (dw - mean[:, None])", "w * (dw - 0.999 * mean[:, None])",
        SLOPE + "[gaussian-softmax]",
    ),
    "a softmax that moves too much, by products": (
        "gradients.py", "np.column_stack([g, g @ middle - mean])",
        "np.column_stack([g, g @ middle - 0.999 * mean])", SLOPE_BY_TILES + "[gaussian-float64-1e-09]",
    ),
    "an entmax that moves too much": (
        "weights.py", "w ** (2 - alpha)", "w ** (1.999 - alpha)", SLOPE + "[gaussian-entmax15]",
    ),
    "a sparse mean that is off": (
        "weights.py", "moves * (dw - mean[:, None])", "moves * (dw - 0.999 * mean[:, None])",
        SLOPE + "[gaussian-entmax15]",
    ),
    "values that get too much": (
        "gradients.py", "self.values[c] += w.T @ g", "self.values[c] += 1.001 * w.T @ g",
        SLOPE + "[gaussian-softmax]",
    ),
    "a temperature that is off": (
        "gradients.py", 'self.heat -= np.einsum("mb,mb->m", dz, z).sum(dtype=np.float64)',
        'self.heat -= 1.001 * np.einsum("mb,mb->m", dz, z).sum(dtype=np.float64)',
        SLOPE + "[gaussian-softmax]",
    ),
    "a temperature that is off, by products": (
        "gradients.py", "self.heat -= heat / len(parts)", "self.heat -= 1.001 * heat / len(parts)",
        SLOPE_BY_TILES + "[gaussian-float64-1e-09]",
    ),
    "a bias that gets too much": (
        "gradients.py", "self.bias[tuple(places)] += piece", "self.bias[tuple(places)] += 1.001 * piece",
        SLOPE + "[gaussian-softmax]",
    ),
    "a silent entry that is off": (
        "gradients.py", "np.where(dz == 0, 0, dz * z).sum()", "0.999 * np.where(dz == 0, 0, dz * z).sum()",
        SLOPE + "[gaussian-softmax]",
    ),
    "a silent entry that takes too little": (
        "weights.py", "-silent * mean", "-0.999 * silent * mean", SLOPE + "[gaussian-entmax15]",
    ),
    "values that get too much, by products": (
        "gradients.py", "(left[r, :e].T @ w).T", "1.001 * (left[r, :e].T @ w).T",
        SLOPE_BY_TILES + "[gaussian-float64-1e-09]",
    ),
    "products of cotangents and values that overflow": (
        "gradients.py", "return power if abs(power) > 25 else 0", "return 0",
        "test_gradients.py::test_huge_numbers_do_not_make_nan",
    ),
    "gradients of what is masked": (
        "gradients.py", "return (x if good.all() else np.where(good, x, 0))", "return x",
        "test_gradients.py::test_what_is_masked_is_never_touched",
    ),
    "gradients in float32 for far clusters": (
        "gradients.py", "again := use[c] & ~good[c]", "again := use[c] & (good[c] < 0)",
        "test_gradients.py::test_far_clusters_keep_their_gradient_in_float32",
    ),
    "no entry is left out of its own answer": (
        "learning.py", "rows if leave else None", "None",
        "test_learning.py::test_the_hardest_bandwidth_of_three_points_is_not_free",
    ),
    "the slope of T in place of that of log T": (
        "learning.py", 'dt * min(settings["temperature"], 1e308)', "dt", SLOPES,
    ),
    "keys that ask forget it": ("learning.py", "dk + (dq if self.tied else 0)", "dk", SLOPES),
    "a slope that is off by a thousandth": ("learning.py", "2 * share * off", "2.002 * share * off", SLOPES),
    "a silent entry without a slope": ("gradients.py", "np.where(dz == 0, 0, dz * z).sum()", "0", SLOPES),
    "names of equal vectors read by place": (
        "learning.py", "asked.rows is None and ", "",
        "test_learning.py::test_names_lead_to_their_own_rows_where_all_keys_are_at_one_point",
    ),
    "shares that rounding leads out of 0 to 1": (
        "estimators.py", "np.clip(self._ask(X), 0, 1)", "self._ask(X)",
        "test_estimators.py::test_shares_are_what_log_loss_takes",
    ),
    "chunks that forget their place": (
        "dask.py", "int(places[:1].sum())", "0",
        "test_dask.py::test_any_chunks_give_the_answer_over_one_array[0.5-softmax-gaussian]",
    ),
    "chunks that are merged as if of one size": (
        "dask.py", "if keys.chunks[0] != values.chunks[0]:", "if False:",
        "test_dask.py::test_what_does_not_fit_is_refused_at_once",
    ),
    "a mask in other chunks than the entries": (
        "dask.py", "mask.rechunk(cuts) if", "mask if",
        "test_dask.py::test_any_chunks_give_the_answer_over_one_array",
    ),
    "a function that is not itself after a journey": (
        "dask.py", "Partial(part._state, settings) for part", "part for part",
        "test_dask.py::test_worker_processes_give_the_same",
    ),
    "a name that becomes markup": (
        "display.py", "{html.escape(text)}", "{text}",
        "test_display.py::test_no_name_or_value_becomes_markup",
    ),
    "sums of columns where rows are": (
        "plot.py", "weights.sum(axis=1).round(6), weights.sum(axis=0)",
        "weights.sum(axis=0).round(6), weights.sum(axis=1)",
        "test_plot.py::test_the_real_head_has_its_names_numbers_and_sums",
    ),
    # Tensors.
    "one of Newton's steps": (
        "_tensors.py", "for _ in range(2):", "for _ in range(1):",
        "test_torch.py::test_second_derivatives[cosine]",
    ),
    "NaN that a mask does not hold back": (
        "_tensors.py", "a, b = (xp.where(good, x, 0.0) for", "a, b = (x for",
        "test_torch.py::test_what_is_masked_leaks_nowhere[dot-nan]",
    ),
    "every causal sight is is_causal": (
        "_tensors.py", "span[:, 1] == np.arange(1, m + 1)", "span[:, 1] >= np.arange(1, m + 1)",
        "test_torch.py::test_is_causal_is_offset_0",
    ),
    "a tensor's query that sees nothing is answered": (
        "_tensors.py", "return out if empty is None else torch.where(empty, 0.0, out)", "return out",
        "test_torch.py::test_a_query_that_sees_nothing_moves_nothing[dot]",
    ),
    "torch's kernel where scores overflow": (
        "_tensors.py", "(a * b * scale < limit) & (a < limit) & (b < limit)", "(a * b * scale <= math.inf)",
        "test_torch.py::test_the_fused_kernel_answers_where_it_means_the_same",
    ),
    "NumPy as torch compiles it": (
        "_tensors.py", "torch.compiler.disable(Choice.apply)", "Choice.apply",
        "test_torch.py::test_what_torch_compiles_answers_the_same[{'top_k': 2}]",
    ),
    "an infinite score among tensors that leaves others": (
        "_tensors.py", "seen & (infinite | none), none]", "seen, none]",
        "test_torch.py::test_infinite_scores_leave_only_each_other",
    ),
    "logits without their largest": (
        "_tensors.py", "z = z + (xp.clip(peak / rest, -most, most) + lift)", "z = z + 0.0",
        "test_torch.py::test_functions_are_handed_tensors",
    ),
    "tensors' values of weight 0 that are touched": (
        "_tensors.py", "touched = (_stop(w) != 0)", "touched = (_stop(w) == w)",
        "test_torch.py::test_unmasked_nan_reaches_those_who_see_it",
    ),
    "tensors' ties by matrix product": (
        "_tensors.py", "scores[at] if callable(similarity) else", "scores[at] if True else",
        "test_torch.py::test_an_exact_hit_comes_first_whatever_underflows",
    ),
    "a silent entry that wins a tie among tensors": (
        "_tensors.py", "np.column_stack([found.weights, found.null_weight])",
        "np.column_stack([found.weights, found.null_weight * 0 + 1])",
        "test_torch.py::test_answers_are_those_of_arrays[gaussian-0-float64]",
    ),
    "a gradient to nobody at the ends": (
        "_tensors.py", "xp.clip(scores, -most, most) * 0.0", "xp.clip(_stop(scores), -most, most) * 0.0",
        "test_torch.py::test_gradcheck[gaussian-0]",
    ),
    "a list beside tensors": (
        "_tensors.py", "if library(x) is not xp:", "if False:", "test_torch.py::test_libraries_do_not_mix",
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


@pytest.mark.teeth
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


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, runs):
    if FAULTS[fault][0] == "_tensors.py":
        pytest.importorskip("torch")
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
