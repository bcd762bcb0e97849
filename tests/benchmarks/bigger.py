"""Measure lookups among more entries than memory holds: memory, time per entry, workers, and the merge.

Keys and values are float32 of width 64, made on the fly from a seed a block, all blocks different, or written
to two files first. Each run is a process of its own, and its answer is compared with sums in float64 that
take two passes over the blocks, the first for the largest logit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # this checkout, whatever is installed
from measure import machine, resident  # noqa: E402

WIDTH, ROWS, M, TEMPERATURE = 64, 2**17, 4, 4.0
QUERIES = np.random.default_rng(1).standard_normal((M, WIDTH), dtype=np.float32)


def block(i, which, rows=ROWS):
    """Return keys (0) or values (1) of block i."""
    made = np.random.default_rng([i, which]).standard_normal((rows, WIDTH), dtype=np.float32)
    return made + np.float32(which * (1 + i % 7))


def sizes(n):
    """Return how many rows each block has."""
    return [min(ROWS, n - start) for start in range(0, n, ROWS)]


def arrays(n):
    """Return keys and values as dask arrays, made when needed."""
    import dask.array as da

    rows = sizes(n)
    place = da.from_array(np.column_stack([np.arange(len(rows)), rows]), chunks=(1, 2))

    def make(at, which):
        return block(int(at[0, 0]), which, int(at[0, 1]))

    chunks, like = (tuple(rows), (WIDTH,)), np.empty((0, 0), dtype=np.float32)
    return [place.map_blocks(make, which, dtype="float32", chunks=chunks, meta=like) for which in (0, 1)]


def maps(n, folder):
    """Return keys and values as memory maps of the first n rows."""
    return [np.load(f"{folder}/{name}.npy", mmap_mode="r")[:n] for name in ("keys", "values")]


def write(n, folder):
    """Write the files block by block."""
    for which, name in enumerate(("keys", "values")):
        path = Path(folder, f"{name}.npy")
        file = np.lib.format.open_memmap(path, "w+", np.float32, (n, WIDTH))
        for i, rows in enumerate(sizes(n)):
            file[i * ROWS : i * ROWS + rows] = block(i, which, rows)
            file.flush()
        del file


def forget(folder):
    """Take the files out of the page cache, so that each run reads the disk."""
    for path in Path(folder).glob("*.npy"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(n, folder):
    """Return how long it takes to only read the first n rows of both files, after forgetting them."""
    forget(folder)
    buffer, start = bytearray(2**21), time.perf_counter()
    with open(f"{folder}/keys.npy", "rb", 0) as keys, open(f"{folder}/values.npy", "rb", 0) as values:
        for _ in range(0, n * 4 * WIDTH, len(buffer)):
            keys.readinto(buffer)
            values.readinto(buffer)
    took = time.perf_counter() - start
    forget(folder)
    return took


def right(n):
    """Return the answers (m, e) in float64 by two passes, and the tolerance 16 eps (1 + L) max|v|."""

    def logits(i, rows):
        keys = block(i, 0, rows).astype(np.float64)
        return np.stack([((keys - q) ** 2).sum(axis=1) for q in QUERIES.astype(np.float64)]) / (
            -2 * TEMPERATURE
        )

    peak = np.max([logits(*at).max(axis=1) for at in enumerate(sizes(n))], axis=0)[:, None]
    mass, total, largest = np.zeros((M, 1)), np.zeros((M, WIDTH)), 0.0
    for at in enumerate(sizes(n)):
        weights, values = np.exp(logits(*at) - peak), block(at[0], 1, at[1]).astype(np.float64)
        mass += weights.sum(axis=1, keepdims=True)
        total += weights @ values
        largest = max(largest, np.abs(values).max())
    return total / mass, 16 * float(np.finfo(np.float32).eps) * (1 + np.abs(peak).max()) * largest


def run(n, folder):
    """Look up once, watching memory; this is a process of its own."""
    import softdict.dask
    from softdict import SoftDict

    def ask(n):
        if folder:
            return SoftDict.from_arrays(*maps(n, folder), temperature=TEMPERATURE)[QUERIES]
        answer = softdict.dask.lookup(*arrays(n), QUERIES, temperature=TEMPERATURE)
        return answer.compute(scheduler="threads")

    ask(2 * ROWS)  # loads what loads late
    disk = {"ns to read an entry": 1e9 * read(n, folder) / n} if folder else {}
    kinds = ("RssAnon", "RssFile", "RssShmem")
    peaks, done = [[resident(kind) for kind in kinds]], threading.Event()

    def watch():
        while not done.wait(0.005):
            peaks.append([resident(kind) for kind in kinds])

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    answer = ask(n)
    took = time.perf_counter() - start
    done.set()
    watcher.join()
    want, tolerance = right(n)
    error = float(np.abs(answer - want).max() / tolerance)
    peak = dict(zip((f"{kind} MiB" for kind in kinds), np.max(peaks, axis=0).tolist(), strict=True))
    return {"entries": n, "seconds": took, "ns an entry": 1e9 * took / n, "tolerances": error, **disk, **peak}


def large(n, rounds, folder=None):
    """Return and print runs at a tenth of the size and at the whole, in turn, and the ratio per entry."""
    found = []
    for size in [n // 10, n] * rounds:
        command = [sys.executable, __file__, "--run", str(size), *(["--folder", folder] if folder else [])]
        found.append(json.loads(subprocess.check_output(command)))
        print("  " + ", ".join(f"{name} {x:.4g}" for name, x in found[-1].items()), flush=True)
    ratios = {}
    for figure in [name for name in found[0] if name.startswith("ns ")]:
        each = {size: median(x[figure] for x in found if x["entries"] == size) for size in (n // 10, n)}
        ratios[figure] = each[n] / each[n // 10]
        print(f"  {figure} over that at a tenth of the size: {ratios[figure]:.2f}", flush=True)
    return {"runs": found, "ratios": ratios}


def workers(n, rounds):
    """Return and print times on one, two and four worker processes, in turn, and the share of merges."""
    from distributed import Client, LocalCluster, get_task_stream

    import softdict.dask

    answer = softdict.dask.lookup(*arrays(n), QUERIES, temperature=TEMPERATURE)
    times, spent = {count: [] for count in (1, 2, 4)}, {"merge": 0.0, "all": 0.0}
    for count in [*times] * rounds:
        with (
            LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            softdict.dask.lookup(*arrays(2 * count * ROWS), QUERIES, temperature=TEMPERATURE).compute()
            with get_task_stream(client) as stream:
                start = time.perf_counter()
                answer.compute()
                times[count].append(time.perf_counter() - start)
        for task in stream.data:
            took = sum(x["stop"] - x["start"] for x in task["startstops"] if x["action"] == "compute")
            spent["all"] += took
            spent["merge"] += took * any(word in str(task["key"]) for word in ("merged", "ended"))
    found = {
        count: {"seconds": median(took), "ratio": median(took) / median(times[1])}
        for count, took in times.items()
    }
    for count, figures in found.items():
        print(f"  {count} workers: {figures['seconds']:.3g} seconds, ratio {figures['ratio']:.2f}")
    share = spent["merge"] / spent["all"]
    print(f"  the merge takes {share:.3%} of all work", flush=True)
    return {"workers": found, "merge share": share}


def main():
    """Measure, print, and keep; 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, default=20_000_000, help="how many (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each is timed, in turn; the median counts"
    )
    parser.add_argument("--only", default="dask,maps,workers", help="some of %(default)s")
    parser.add_argument("--out", type=Path, help="where to keep the figures, as JSON")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.run, given.folder)))
        return 0
    found = {"machine": machine()}
    found["machine"]["versions"] |= {name: version(name) for name in ("dask", "distributed")}
    n, only = given.entries, given.only.split(",")
    print("{cpu}, {cores} cores, load {load_before}".format_map(found["machine"]), flush=True)
    if "dask" in only:
        print(f"softdict.dask.lookup on threads, {n} entries made on the fly", flush=True)
        found["dask"] = large(n, given.rounds)
    if "maps" in only:
        print(f"SoftDict.from_arrays over memory maps, {n} entries", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            write(n, folder)
            found["maps"] = large(n, given.rounds, folder)
    if "workers" in only:
        print(f"softdict.dask.lookup on worker processes, {n // 4} entries", flush=True)
        found["workers"] = workers(n // 4, given.rounds)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return any(x["tolerances"] > 1 for way in ("dask", "maps") if way in found for x in found[way]["runs"])


if __name__ == "__main__":
    sys.exit(main())
