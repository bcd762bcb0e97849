"""Measure learning: gradients against lookups, bandwidths against statsmodels, pronouns that ask for nouns.

Two calls are timed in turn, in one run, after their answers were compared; a figure is the median ratio.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from measure import machine  # noqa: E402


def ratios(ours, peer, rounds):
    """Return what both returned, and the quartiles of the ratio of their times."""
    answers, found = (ours(), peer()), []
    for turn in range(rounds):
        times = {}
        for call in (ours, peer)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            call()
            times[call] = time.perf_counter() - start
        found.append(times[ours] / times[peer])
    return answers, {
        "median": statistics.median(found),
        "min": min(found),
        "max": max(found),
        "rounds": rounds,
    }


def gradients(rounds):
    """Time `soft_lookup_vjp` against `soft_lookup` at the sizes of benchmark A."""
    from softdict import soft_lookup, soft_lookup_vjp

    rng = np.random.default_rng(0)
    q, k, v, g = rng.normal(size=(4, 8, 2048, 64)).astype(np.float32)
    how = {"similarity": "scaled_dot"}
    _, found = ratios(lambda: soft_lookup_vjp(q, k, v, g, **how), lambda: soft_lookup(q, k, v, **how), rounds)
    return {"what": "time of the gradients / time of the lookup, sizes of A", "target": 3.5, **found}


def memory():
    """Return how much memory the gradients take beside the inputs, m = n = 32 768."""
    from softdict import soft_lookup_vjp

    rng = np.random.default_rng(0)
    n, d = 32768, 64
    soft_lookup_vjp(*rng.normal(size=(4, 64, d)), similarity="scaled_dot")  # what is loaded once
    q, k, v, g = rng.normal(size=(4, n, d)).astype(np.float32)
    start, peak, done = resident(), 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    soft_lookup_vjp(q, k, v, g, similarity="scaled_dot")
    done.set()
    watcher.join()
    inputs = sum(x.nbytes for x in (q, k, v, g))
    return {"what": "peak beside the inputs / inputs, m = n = 32 768, d = e = 64, float32", "target": 8,
            "median": (peak - start) / inputs}  # fmt: skip


def resident():
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


CURVES = {
    "sine": lambda x: np.sin(12 * x),
    "doppler": lambda x: np.sqrt(x * (1 - x)) * np.sin(2.1 * np.pi / (x + 0.05)),
    "step": lambda x: np.where(x > 0.5, 1.0, 0.0),
    "bump": lambda x: 4 * x + np.exp(-100 * (x - 0.5) ** 2),
}


def bandwidths(rounds):
    """Compare `fit_temperature` with a cross-validated KernelReg, in error on the curve and in time."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    from softdict import SoftDict, fit, fit_temperature

    def compare(what, x, y, new, truth, rounds, learn):
        sd = SoftDict.from_arrays(x, y)
        (ours, peer), found = ratios(
            lambda: learn(sd)[0], lambda: KernelReg(y, x, "c" * x.shape[1], "lc", "cv_ls"), rounds
        )
        errors = [np.sqrt(np.mean((got - truth) ** 2)) for got in (ours[new], peer.fit(new)[0])]
        print(
            f"{what:34} error {errors[0]:.5f} / {errors[1]:.5f}, time 1 / {1 / found['median']:.0f}",
            flush=True,
        )
        return {"what": what, "target": 1 / 30, "error": errors[0], "peer's error": errors[1], **found}

    rows = []
    for name, curve in CURVES.items():
        rng = np.random.default_rng(0)
        x, new = rng.uniform(size=(300, 1)), np.linspace(0.02, 0.98, 400)[:, None]
        y = curve(x[:, 0]) + rng.normal(scale=0.2, size=300)
        rows.append(compare(f"{name}, n = 300, d = 1", x, y, new, curve(new[:, 0]), rounds,
                            lambda sd: fit_temperature(sd, progress=False)))  # fmt: skip
    # statsmodels has a bandwidth for each input: so it meets one T, and a learned map.
    surfaces = {
        "alike": lambda x: np.sin(6 * x).sum(axis=1),
        "unlike": lambda x: np.sin(6 * x[:, 0]) + x[:, 1],
    }
    for name, surface in surfaces.items():
        rng = np.random.default_rng(0)
        x, new = rng.uniform(size=(1000, 3)), rng.uniform(0.02, 0.98, size=(1000, 3))
        y = surface(x) + rng.normal(scale=0.2, size=1000)
        for what, learn in {
            "T": lambda sd: fit_temperature(sd, progress=False),
            "T and map": lambda sd: fit(sd, learn=["temperature", "similarity"], progress=False),
        }.items():
            rows.append(compare(f"{name}, n = 1000, d = 3, {what}", x, y, new, surface(new), 1, learn))
    return rows


def pronouns():
    """Return the scores of examples/pronouns.py for ten seeds."""
    spec = importlib.util.spec_from_file_location("pronouns", HERE.parents[1] / "examples" / "pronouns.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rows = []
    for seed in range(10):
        layers, known, new, table = example.learn(seed)
        row = {name: float(example.score(layer, new, table)) for name, layer in layers.items()}
        row["bag of words"] = example.bag_of_words(known, new, table)
        print(f"seed {seed}: " + ", ".join(f"{name} {share:.1%}" for name, share in row.items()), flush=True)
        rows.append({"seed": seed, **row})
    return rows


def main():
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to keep the figures, as JSON")
    parser.add_argument("--rounds", type=int, default=7, help="how often each pair is timed")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # statsmodels divides by zero on its way
    found = {"machine": machine(), "memory": memory(), "gradients": gradients(given.rounds)}
    for name in ("memory", "gradients"):
        print(
            f"{found[name]['what']}: {found[name]['median']:.2f} (target {found[name]['target']})", flush=True
        )
    found["bandwidths"] = bandwidths(given.rounds)
    found["pronouns"] = pronouns()
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
