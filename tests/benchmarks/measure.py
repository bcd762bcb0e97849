"""Measure softdict against named peers: every figure is a ratio of times, softdict / peer.

Both are timed in turn, in one run, after their answers were checked against a float64 computation that
shares no code with either. softdict and the peers are imported late: `--without-fast` has to come first.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

#: Threads of BLAS and OpenMP spin for a while after a call, waiting for the next one, and take the cores
#: from whatever runs then. So there is a rest, in seconds, before each timed call.
REST = 0.04
THREADS = 2
CHECKED = 8  # queries per head; the first and the last are among them

# ---- the check of the answers --------------------------------------------------------------------


@dataclass
class Case:
    """One problem and the two calls that are timed on it."""

    q: Any  # (..., m, d)
    k: Any  # (..., n, d)
    v: Any  # (..., n, e)
    how: dict[str, Any]  # the settings of the lookup
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    said: Callable[[], Any] | None  # the peer's answer as a blend; None where it cannot be compared
    seen: Callable[[int], int | None] = lambda i: None  # query i sees so many entries, the first; None: all


def blend(q: Any, k: Any, v: Any, eps: float, similarity="gaussian", temperature=1.0, top_k=None) -> Any:
    """Return the answer to one query in float64, and the tolerance: 16 eps (1 + L) max|v|."""
    if similarity == "gaussian":
        scores = ((k - q) ** 2).sum(axis=1) / -2
    else:  # no BLAS, so that equal keys score the same
        scores = (k * q).sum(axis=1) / (math.sqrt(len(q)) if similarity == "scaled_dot" else 1)
    best = np.argsort(-scores, kind="stable")[:top_k]
    scores, v, largest = scores[best], v[best], 0.0
    if 0 < temperature < math.inf:
        w = np.exp((scores - scores[0]) / temperature)
        largest = np.abs(scores[w > eps * w.sum()]).max() / temperature
    else:  # at the ends no score / T counts
        w = np.where(scores == scores[0], 1.0, float(temperature > 0))
    return w @ v / w.sum(), 16 * eps * (1 + largest) * np.abs(v).max()


def error(case: Case, got: Any) -> float:
    """Return the largest error of an answer, on a sample of its rows, as a multiple of the tolerance."""
    eps = float(np.finfo(np.result_type(case.q, case.k, case.v)).eps)
    q, k, v = (np.reshape(x, (-1, *x.shape[-2:])) for x in (case.q, case.k, case.v))
    got, m, found = np.reshape(np.asarray(got), (*q.shape[:2], v.shape[2])), q.shape[1], [0.0]
    for head in range(len(q)):
        keys, values = k[head].astype(np.float64), v[head].astype(np.float64)
        for i in {0, m - 1, *random.Random(1).sample(range(m), min(m, CHECKED - 2))}:
            n, query = case.seen(i), q[head, i].astype(np.float64)
            want, tolerance = blend(query, keys[:n], values[:n], eps, **case.how)
            found.append(np.abs(got[head, i] - want).max() / tolerance)
    return float(np.max(found))  # NaN stays NaN


class Wrong(Exception):
    """An answer is wrong, so its time means nothing."""


def checked(who: str, case: Case, got: Any) -> float:
    """Return the error; raise where it is more than one tolerance."""
    found = error(case, got)
    if not found <= 1:
        raise Wrong(f"{who} errs by {found:.3g} tolerances")
    return found


# ---- the peers' formulas, in place where one would write them so -----------------------------------


def softmax(scores: Any) -> Any:
    """Turn scores into weights, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def scaled_dot_formula(q: Any, k: Any, v: Any) -> Any:
    """Attention as one writes it in NumPy."""
    scores = q @ np.swapaxes(k, -1, -2)
    scores /= math.sqrt(q.shape[-1])
    return softmax(scores) @ v


def gaussian_formula(q: Any, k: Any, v: Any) -> Any:
    """-|q - k|^2 / 2 by expansion."""
    scores = q @ k.T
    scores -= (q * q).sum(axis=1)[:, None] / 2
    scores -= (k * k).sum(axis=1) / 2
    return softmax(scores) @ v


def five_lines(q: Any, k: Any, v: Any, temperature: float = 1.0) -> Any:
    """What one writes instead of a SoftDict."""
    scores = -((q - k) ** 2).sum(-1) / 2 / temperature
    w = np.exp(scores - scores.max())
    w /= w.sum()
    return w @ v


def one_scaled_dot(q: Any, k: Any, v: Any) -> Any:
    """The same in the words of the Transformer."""
    scores = k @ q / math.sqrt(len(q))
    w = np.exp(scores - scores.max())
    w /= w.sum()
    return w @ v


def torch_attention(q: Any, k: Any, v: Any, causal: bool = False) -> Callable[[], Any]:
    """torch's fused kernel, on four axes: with three it takes a slower path."""
    import torch

    torch.set_num_threads(THREADS)
    tensors = [torch.from_numpy(x).reshape(1, -1, *x.shape[-2:]) for x in (q, k, v)]
    call = torch.nn.functional.scaled_dot_product_attention
    return torch.inference_mode()(lambda: call(*tensors, is_causal=causal))


# ---- the problems: each takes sizes, whether to make it hard, the peer and options ------------------


def inputs(size: dict[str, int], hard: bool, similarity: str, dtype: Any = np.float32) -> Any:
    """Return random q, k, v. Hard ones have ten equal keys more, and stand 1e4 from the origin.

    Under a dot product only the keys move: if the queries did too, scores would be so large that the
    tolerance would let anything pass.
    """
    rng, n, lead = np.random.default_rng(7), size["n"] + 10 * hard, [size["h"]] if "h" in size else []
    shapes = (size["m"], size["d"]), (n, size["d"]), (n, size["e"])
    q, k, v = (rng.standard_normal((*lead, *shape), dtype=dtype) for shape in shapes)
    if hard:
        k[..., :10, :] = k[..., 10:11, :]
        k += 1e4
        q += 1e4 * (similarity == "gaussian")
    return q, k, v


def names(n: int) -> list[str]:
    """Return labels."""
    return [f"row {i}" for i in range(n)]


def batch(size, hard, peer, similarity="scaled_dot", dtype=np.float32, clusters=False) -> Case:
    """soft_lookup of many queries. Two clusters far apart are what the expansion cannot do."""
    from softdict import soft_lookup

    q, k, v = inputs(size, hard, similarity, dtype)
    for x in (q, k) if clusters else ():
        x += np.where(np.arange(len(x)) % 2, 1e4, -1e4)[:, None]
    formula = gaussian_formula if similarity == "gaussian" else scaled_dot_formula
    theirs = torch_attention(q, k, v) if peer == "torch" else lambda: formula(q, k, v)
    how = {"similarity": similarity}
    return Case(q, k, v, how, lambda: soft_lookup(q, k, v, **how), theirs, None if clusters else theirs)


def causal(size, hard, peer) -> Case:
    """Each position asks those up to its own. m = n, where all agree on what causal means."""
    from softdict import attention

    q, k, v = inputs({**size, "m": size["n"] + 10 * hard}, hard, "scaled_dot")
    theirs, how = torch_attention(q, k, v, causal=True), {"similarity": "scaled_dot"}
    return Case(q, k, v, how, lambda: attention(q, k, v, causal=True), theirs, theirs, lambda i: i + 1)


def one_query(size, hard, peer, similarity, dtype=np.float32) -> Case:
    """sd[q]."""
    from softdict import SoftDict

    q, k, v = inputs(size, hard, similarity, dtype)
    sd, row = SoftDict.from_arrays(k, v, labels=names(len(k)), similarity=similarity), q[0]
    formula = five_lines if similarity == "gaussian" else one_scaled_dot
    theirs = lambda: formula(row, k, v)  # noqa: E731
    return Case(q, k, v, {"similarity": similarity}, lambda: sd[row], theirs, theirs)


def ties(size, hard, peer) -> Case:
    """The hard limit where all keys are equal, and none is hit. The peer only reads the keys once."""
    from softdict import SoftDict

    q, k, v = inputs(size, hard, "gaussian")
    k[:], q[:] = k[0], k[0] + np.float32(0.01)
    how, row = {"temperature": 0}, q[0]
    sd = SoftDict.from_arrays(k, v[:, 0], labels=names(len(k)), copy=False, **how)
    return Case(q, k, v, how, lambda: sd[row], lambda: k @ row, None)


def top_ten(size, hard, peer) -> Case:
    """soft_lookup(top_k=10) against an exact search by inner product, its index built beforehand."""
    import faiss

    from softdict import soft_lookup

    faiss.omp_set_num_threads(THREADS)
    q, k, v = inputs(size, hard, "dot")
    index, how = faiss.IndexFlatIP(size["d"]), {"similarity": "dot", "top_k": 10}
    index.add(k)

    def search() -> Any:
        return index.search(q, 10)

    def blended() -> Any:
        scores, ids = search()
        return np.einsum("ms,mse->me", softmax(scores), v[ids])

    # At T = infinity ten values share evenly: the means of their row numbers tell whether they are the ten.
    ids, even = np.arange(len(k), dtype=np.float64)[:, None], {**how, "temperature": math.inf}
    means = Case(q, k, ids, even, lambda: soft_lookup(q, k, ids, **even), search, None)
    checked("softdict, means of ids", means, means.ours())
    if not hard:  # so far from the origin float32 cannot tell which are the ten
        checked("faiss, means of ids", means, search()[1].mean(axis=1))
    return Case(q, k, v, how, lambda: soft_lookup(q, k, v, **how), search, blended)


def regression(size, hard, peer, bandwidth=0.1) -> Case:
    """Kernel regression. The peer works out slopes too, which one cannot turn off."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    from softdict import soft_lookup

    q, k, v = inputs(size, hard, "gaussian", np.float64)
    how, settings = {"temperature": bandwidth**2}, {"var_type": "c", "reg_type": "lc", "bw": [bandwidth]}
    theirs = lambda: KernelReg(v[:, 0], k, **settings).fit(q)[0]  # noqa: E731
    return Case(q, k, v, how, lambda: soft_lookup(q, k, v[:, 0], **how), theirs, theirs)


def growing(size, hard, peer) -> Case:
    """Add entries one by one, and ask after each 1000."""
    from softdict import SoftDict

    q, k, v = inputs({**size, "m": size["n"] // 1000}, hard, "gaussian")
    labels = names(len(k))

    def ours() -> Any:
        sd, out = SoftDict(), []
        for i, name in enumerate(labels):
            sd.add(name, k[i], v[i])
            if i % 1000 == 999:
                out.append(sd[q[i // 1000]])
        return out

    def theirs() -> Any:
        keys, values, out = [], [], []
        for i in range(len(labels)):
            keys.append(k[i])
            values.append(v[i])
            if i % 1000 == 999:
                out.append(five_lines(q[i // 1000], np.stack(keys), np.stack(values)))
        return out

    return Case(q, k, v, {}, ours, theirs, theirs, lambda i: 1000 * (i + 1))


@dataclass
class Figure:
    """A ratio to measure, with its targets without and with the extra `fast`."""

    name: str
    peer: str
    make: Callable[..., Case]
    size: dict[str, int]
    core: float
    fast: float
    options: dict[str, Any] = field(default_factory=dict)
    calls: int = 1  # timed together


HEADS = {"h": 8, "m": 2048, "n": 2048, "d": 64, "e": 64}
MANY = {"m": 1024, "n": 100_000, "d": 128, "e": 128}
ONE = {"m": 1, "n": 100_000, "d": 384, "e": 384}
FEW = {"m": 1, "n": 8, "d": 16, "e": 16}
GAUSSIAN, DOUBLE = {"similarity": "gaussian"}, {"dtype": np.float64}
FIGURES = [
    Figure("A", "numpy", batch, HEADS, 0.55, 0.40),
    Figure("A", "torch", batch, HEADS, 1.5, 1.05),
    Figure("A-causal", "torch", causal, HEADS, 1.7, 1.15),
    Figure("B", "numpy", batch, MANY, 0.75, 0.60),
    Figure("B", "torch", batch, MANY, 1.4, 1.05),
    Figure("B64", "numpy", batch, MANY, 0.75, 0.45, DOUBLE),
    Figure("B2", "numpy", batch, MANY, 1.0, 0.9, GAUSSIAN),
    Figure("B2-careful", "numpy", batch, MANY, 2.5, 2.5, {**GAUSSIAN, "clusters": True}),
    Figure("B3", "K @ q", ties, {"m": 1, "n": 1_000_000, "d": 32, "e": 1}, 15, 15),
    Figure("C", "numpy", one_query, ONE, 1.1, 1.1, {"similarity": "scaled_dot"}),
    Figure("D", "numpy", one_query, FEW, 2.5, 2.5, {**GAUSSIAN, **DOUBLE}, 2000),
    Figure("E", "faiss", top_ten, {"m": 1000, "n": 100_000, "d": 128, "e": 1}, 1.5, 1.1),
    Figure("F", "statsmodels", regression, {"m": 2000, "n": 2000, "d": 1, "e": 1}, 0.20, 0.08),
    Figure("G", "np.stack", growing, {"m": 1, "n": 100_000, "d": 32, "e": 32}, 1.5, 1.5),
]
NAMES = [*dict.fromkeys(figure.name for figure in FIGURES), "H", "I"]

# ---- A to G: ratios ------------------------------------------------------------------------------


def timed(case: Case, rounds: int, calls: int) -> dict[str, Any]:
    """Time both in turn; who goes first changes from round to round."""
    took, both = {"ours": [], "peer": []}, [("ours", case.ours), ("peer", case.peer)]
    gc.collect()
    gc.disable()
    for i in range(rounds):
        for who, call in both if i % 2 == 0 else both[::-1]:
            time.sleep(REST)
            start = time.perf_counter()
            for _ in range(calls):
                call()
            took[who].append((time.perf_counter() - start) / calls)
    gc.enable()
    ratios = [ours / peer for ours, peer in zip(*took.values(), strict=True)]
    middle = {f"{who}_seconds": statistics.median(times) for who, times in took.items()}
    return {"ratio": statistics.median(ratios), "min": min(ratios), "max": max(ratios), **middle}


def measure(figure: Figure, size: dict[str, int], rounds: int) -> dict[str, Any]:
    """Check the answers, which warms up too, then time."""
    case = figure.make(size, False, figure.peer, **figure.options)
    errors = {"softdict": checked("softdict", case, case.ours())}
    if case.said:
        errors[figure.peer] = checked(figure.peer, case, case.said())
    return {"size": size, "errors": errors, **timed(case, rounds, figure.calls)}


def figure_row(figure: Figure, mode: str, rounds: int, quick: bool) -> dict[str, Any]:
    """Measure and print one figure. It counts only if hard inputs are answered rightly too."""
    print(f"{figure.name:<11}{figure.peer:<12}", end="", flush=True)
    row = {"name": figure.name, "peer": figure.peer, "target": getattr(figure, mode)}
    try:
        hard = figure.make(figure.size, True, figure.peer, **figure.options)
        row["error_hard"] = checked("softdict, on shifted inputs,", hard, hard.ours())
        del hard
        row |= measure(figure, figure.size, rounds)
        print(f"{1e3 * row['ours_seconds']:>10.4g}{1e3 * row['peer_seconds']:>10.4g}", end="")
        print(f"{row['ratio']:>8.2f}{row['min']:>8.2f}{row['max']:>7.2f}", end="", flush=True)
        if not quick:  # once more at sizes that no kernel was cut for
            step = {"m": 1, "n": -1, "d": 3, "e": 3}
            beside = {name: x + step.get(name, 0) * (x > 1) for name, x in figure.size.items()}
            row["one_off"] = measure(figure, beside, rounds)
            row["one_off_over_base"] = row["one_off"]["ratio"] / row["ratio"]
        print(f"{row.get('one_off_over_base', math.nan):>7.2f}{row['target']:>7g}")
    except ImportError as missing:
        row["not_there"] = str(missing.msg).partition(" (")[0]  # without the path that follows
        print("not there yet:", row["not_there"])
    except Wrong as wrong:
        row["wrong"] = str(wrong)
        print("does not count:", wrong)
    return row


# ---- H: memory -----------------------------------------------------------------------------------


def resident(what: str) -> float:
    """Return a line of the system's account of this process, in MiB."""
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) / 1024


def memory_of(job: str, folder: Path) -> float:
    """Return the MiB of a job; this runs in a fresh process, after a lookup that loads what loads late."""
    from softdict import SoftDict, soft_lookup

    dot = {"similarity": "scaled_dot"}
    soft_lookup(*inputs({**MANY, "m": 2000, "n": 4000}, False, **dot), **dot)
    if platform.libc_ver()[0] == "glibc":  # what that left to the allocator would hide as much again
        ctypes.CDLL(None).malloc_trim(0)
    q, k, v = inputs(MANY, False, **dot)
    if job == "maps":
        k, v = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "kv")
        sd = SoftDict.from_arrays(k, v, **dot)
        run = partial(sd.__getitem__, np.ones(k.shape[1], dtype=k.dtype))
    else:
        ours = partial(soft_lookup, **dot)
        run = partial(ours if job == "softdict" else scaled_dot_formula, q, k, v)
    peaks, done = [before := resident("RssAnon")], threading.Event()  # without pages of files

    def watch() -> None:
        while not done.wait(0.001):
            peaks.append(resident("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return max(peaks) - before


def memory(mode: str) -> list[dict[str, Any]]:
    """Print and return what lookups take beyond their inputs, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        for name in "kv":  # 2 GiB each
            block = np.random.default_rng().standard_normal((2**16, 256), dtype=np.float32)
            file = np.lib.format.open_memmap(f"{folder}/{name}.npy", "w+", np.float32, (2**21, 256))
            for start in range(0, len(file), len(block)):
                file[start : start + len(block)] = block * (1 + start / len(file))
            del file
        command = [sys.executable, __file__, *(["--without-fast"] if mode == "core" else []), "--job"]
        jobs = ("softdict", "numpy", "maps")
        mib = {x: float(subprocess.check_output([*command, x, "--folder", folder])) for x in jobs}
    rows = []
    for name, taken, target in [
        ("B", mib["softdict"], 64),
        ("B, formula", mib["numpy"], None),
        ("one query over maps of 4 GiB", mib["maps"], 64),
    ]:
        print(f"H          {name:<30}{taken:>10.1f} MiB{target or '':>23}")
        rows.append({"name": name, "mib": taken, "target": target})
    return rows


# ---- I: growing and shrinking --------------------------------------------------------------------


def growth(quick: bool) -> list[dict[str, Any]]:
    """Print and return what an assignment costs as a SoftDict grows, and deleting half of it."""
    from softdict import SoftDict

    vectors = np.random.default_rng(7).standard_normal((1000, 32), dtype=np.float32)
    labels, sd, rows, done = names(10**5 if quick else 10**6), SoftDict(), [], 0
    for stop in (10**3, 10**4, 10**5, 10**6)[: 3 if quick else 4]:
        start = time.perf_counter()
        for i in range(done, stop):
            sd.add(labels[i], vectors[i % 1000], vectors[i % 1000])
        each = (time.perf_counter() - start) / (stop - done)
        rows.append({"name": f"assignment {done} to {stop}, us each", "value": 1e6 * each})
        done = stop
    took = []
    for n in (50_000, 100_000):
        arrays, times = [np.tile(vectors, (n // 1000, 1))] * 2, []
        for _ in range(3):
            sd = SoftDict.from_arrays(*arrays, labels[:n])
            gone = random.Random(1).sample(labels[:n], n // 2)
            start = time.perf_counter()
            for label in gone:
                del sd[label]
            sd[vectors[0]]
            times.append(1e3 * (time.perf_counter() - start))
        took.append(statistics.median(times))
        rows.append({"name": f"deleting half of {n}, then a lookup, ms", "value": took[-1]})
    rows.append({"name": "the last two as a ratio (linear: 2)", "value": took[1] / took[0]})
    for row in rows:
        print(f"I          {row['name']:<42}{row['value']:>12.4g}")
    return rows


# ---- the command ---------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that tells whose machine it is."""
    cpus = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    cpu = [line.partition(":")[2].strip() for line in cpus.splitlines() if line.startswith("model name")]
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    shown = {"numpy", "scipy", "torch", "faiss-cpu", "statsmodels"}
    shown |= set(filter(find_spec, ("numba", "threadpoolctl")))
    return {
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "blas": f"{blas['name']} {blas['version']}",
        "versions": {x.name: x.version for x in distributions() if x.name in shown},
        "date": date.today().isoformat(),
        "load_before": round(os.getloadavg()[0], 1),  # what others were computing at the time
    }


def main() -> int:
    """Measure what is asked for; 1 where an answer was wrong, however fast."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(NAMES), metavar="A,B", help="some of %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 rounds, and no sizes beside")
    parser.add_argument("--out", type=Path, default="results.json", help="%(default)s")
    parser.add_argument("--without-fast", action="store_true", help="without numba and threadpoolctl")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, whatever is installed
    if args.without_fast:
        sys.modules.update(dict.fromkeys(("numba", "threadpoolctl")))  # None: they cannot be imported
    if args.job:
        print(memory_of(args.job, args.folder))
        return 0
    only, rounds = args.only.split(","), 3 if args.quick else args.rounds
    if unknown := set(only) - set(NAMES):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(NAMES)}")
    warnings.simplefilter("ignore", FutureWarning)  # statsmodels, about random numbers
    mode = "fast" if all(map(find_spec, ("numba", "threadpoolctl"))) else "core"
    result = {"mode": mode, "rounds": rounds, "machine": machine(), "figures": []}
    about = "{cpu}, {cores} cores, load {load_before}".format_map(result["machine"])
    print(f"{about}, {mode}; times in ms")
    print(f"{'':<11}{'peer':<12}{'softdict':>10}{'peer':>10}{'ratio':>8}{'min':>8}{'max':>7}"
          f"{'beside':>7}{'target':>7}")  # fmt: skip
    for figure in FIGURES:
        if figure.name in only:
            result["figures"].append(figure_row(figure, mode, rounds, args.quick))
    if "H" in only:
        result["memory"] = memory(mode)
    if "I" in only:
        result["growth"] = growth(args.quick)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return any("wrong" in row for row in result["figures"])


if __name__ == "__main__":
    sys.exit(main())
