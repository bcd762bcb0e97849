"""The memory budget and the tiles that follow from it, threads, the compiled exponential, array libraries."""

from __future__ import annotations

import importlib
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

#: MiB that one lookup may take beyond its inputs and its answer. Set the environment variable
#: SOFTDICT_BUDGET_MIB before the import, or assign `softdict._backend.budget_mib` at any time. One
#: query against one entry always fits; `top_k` and sparse weightings also hold what they keep of
#: one query.
budget_mib: float = float(os.environ.get("SOFTDICT_BUDGET_MIB", "32"))

# ---- tiles -----------------------------------------------------------------------------------

#: float64 numbers per pair: score, logit, weight, and what NumPy holds between two steps; ranks too.
MELTED, SORTED = 6, 12
#: Multiplications up to which the plain lookup is quicker than the bookkeeping of tiles.
SMALL = 2**17
#: A block has up to so many queries, and a tile so many pairs: few for the cache, many for BLAS.
ROWS, CELLS = 1024, 2**19
#: Sums of exponentials that grow beyond this are taken again, less a larger reference.
HUGE = 1e25
#: Sizes of scores up to which float32 is far from overflow.
SAFE = 1e30
#: Fewer queries than this do not pay for a copy of keys or values.
FEW_ROWS = 16


def fits(m: int, n: int, width: int) -> bool:
    """Tell whether m queries and n entries are so few that a plain lookup is quickest, and within budget."""
    return m * n * (width + 16) <= SMALL and n * (2 * SORTED * m + width) <= budget_mib * 2**17


def tile_columns(m: int, n: int, width: int, pair: int = MELTED) -> int:
    """Return how many entries of `width` numbers (key and value) one tile of m queries holds."""
    return max(1, min(n, int(budget_mib * 2**17) // max(1, pair * m + width)))


# All these shapes depend on shapes and budget alone, never on threads, so that answers do not either.


def blocks(m: int, n: int, width: int, whole: bool) -> list[slice]:
    """Return the blocks of queries that are worked on each by itself, as even as can be.

    `whole` tells whether a tile has to hold whole rows.
    """
    if whole:
        most, least = int(budget_mib * 2**17) // (2 * SORTED * n + width), 1
    else:  # at least two, for two threads, unless they would be short
        most, least = min(ROWS, int(budget_mib * 2**17) // (4 * (64 + 4 * width))), min(m // 256, 2)
    count = max(1, least, math.ceil(m / max(1, most)))
    edges = [m * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def stream_columns(m: int, n: int, width: int, size: int) -> int:
    """Return how many entries one tile of m queries holds, in numbers of `size` bytes."""
    share, cells = (3, n) if m < FEW_ROWS else (4, CELLS // m)
    room = int(budget_mib * 2**20) // share // size
    return max(1, min(n, cells, (room - 2 * m * width) // (3 * m + width + 1)))


def sift_shape(m: int, n: int, width: int, k: int, size: int) -> tuple[int, int]:
    """Return how many entries one tile holds, and in how many groups they are, at least k."""
    columns = stream_columns(m, n, width, size)
    groups = max(2 ** math.ceil(math.log2(k)), min(128, columns // 2))
    return max(2, columns // groups) * groups, groups


def most_kept(m: int, n: int, width: int, size: int) -> int:
    """Return up to which k the k best are worth sifting for."""
    return max(4, stream_columns(m, n, width, size) // 4)


def pairs_at_once(width: int) -> int:
    """Return how many single pairs of `width` numbers to work on together."""
    return max(1, min(CELLS // 4, int(budget_mib * 2**17) // (8 * (width + 2))))


# ---- threads ---------------------------------------------------------------------------------

_threading = threading.Lock()  # held by the one call that uses threads


@cache
def _blas() -> Any:
    """Return the one controller of BLAS threads, of the extra `fast`; None without it."""
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None


def run(tasks: Sequence[Callable[[], None]], work: float) -> None:
    """Run tasks, on threads where there are many multiplications to do, and the budget allows for it.

    BLAS is held to one thread each while they run, in the whole process: other threads that use BLAS
    at that time notice. A second call in the meantime stays on the thread that it came from.
    """
    workers = min(os.cpu_count() or 1, len(tasks), int(budget_mib * 2**18) // (3 * CELLS))  # 1.5 each
    if work < 2**26 or workers < 2 or _blas() is None or not _threading.acquire(blocking=False):
        for task in tasks:
            task()
        return
    try:
        with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(task) for task in tasks]:
                done.result()
    finally:
        _threading.release()


# ---- products and exponentials ---------------------------------------------------------------


def _single(m: int, right: Any) -> bool:
    """Tell whether one query meets long rows: einsum reads them once, where BLAS makes copies of them."""
    return m == 1 and right[:1].nbytes > 256


def inner_products(left: Any, right: Any, out: Any) -> None:
    """Put the inner products of left (m, d) and right (b, d) into `out` (m, b)."""
    if _single(len(left), right):
        np.einsum("bd,d->b", right, left[0], out=out[0])
    else:
        np.matmul(left, right.T, out=out)


def product(z: Any, right: Any, out: Any, few: bool) -> Any:
    """Return z (m, b) times right (b, e); for few queries, whose values are not centered, by 64 entries."""
    if not few:
        return np.matmul(z, right, out=out)
    (m, b), e = z.shape, right.shape[1]
    count, rest = b // 64, b - b % 64
    left, some = z[:, :rest].reshape(m, count, 64), right[:rest].reshape(count, 64, e)
    single = _single(m, right)
    parts = np.einsum("mcb,cbe->cme", left, some) if single else left.swapaxes(0, 1) @ some
    wider = np.longdouble if z.dtype == np.float64 else np.float64
    return np.asarray(parts.sum(axis=0, dtype=wider) + z[:, rest:] @ right[rest:])


def exp_rows(z: Any, shift: Any) -> Any:
    """Put ``exp(z - shift)`` in the place of z (m, b), shift (m,); return the sums of its rows (m,)."""
    if shift.any():
        z -= shift[:, None]
    np.exp(z, out=z)
    return z.sum(axis=1)


def exponential(work: float) -> Callable[[Any, Any], Any]:
    """Return `exp_rows`, compiled where numba is there and there are many numbers: the import takes time."""
    return (_compiled() if work >= 2**20 else None) or exp_rows


@cache
def _compiled() -> Any:
    """Return `exp_rows` in one pass over memory; None without numba.

    exp(x) is 2**n * 2**r, with n the whole number nearest to x log2(e) and r in [-1/2, 1/2]: the second
    factor by its Taylor series, correct to half a unit in the last place of float32 (7 terms) and of
    float64 (13), the first by adding n to the exponent's bits. What is below the smallest normal number
    becomes 0.
    """
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return None

    def kernel(real: Any, integer: Any, terms: int, bits: int, lowest: int) -> Any:
        log2e, low, high, zero, one = (real(x) for x in (math.log2(math.e), lowest, 2 - lowest, 0, 1))
        series = tuple(real(math.log(2) ** i / math.factorial(i)) for i in range(terms, 0, -1))
        place = integer(bits)

        # Sums may be reordered, and thereby run in parallel; there is nothing here that this could spoil.
        @numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})  # type: ignore[untyped-decorator]
        def rows(z: Any, shift: Any, sums: Any) -> None:
            for i in range(z.shape[0]):
                sums[i], less = 0.0, shift[i]
                for start in range(0, z.shape[1], 1024):  # long sums would round in one direction
                    row, part = z[i, start : start + 1024], zero
                    for j in range(row.shape[0]):
                        x = min((row[j] - less) * log2e, high)
                        n = np.rint(x)
                        r = x - n
                        p = series[0]
                        for c in series[1:]:
                            p = p * r + c
                        p = real(p * r + one)
                        y = integer(p.view(integer) + integer(integer(n) << place)).view(real)
                        y = zero if x < low else y  # in this order, so that NaN stays NaN
                        row[j] = y
                        part += y
                    sums[i] += part

        return rows

    kernels = {
        np.dtype(np.float32): kernel(np.float32, np.int32, 7, 23, -126),
        np.dtype(np.float64): kernel(np.float64, np.int64, 13, 52, -1022),
    }

    def exp_rows(z: Any, shift: Any) -> Any:
        sums = np.empty(len(z))
        kernels[z.dtype](z, shift.astype(z.dtype, copy=False), sums)
        return sums

    return exp_rows


# ---- whose array library this is -----------------------------------------------------------------

#: Types of arguments that are no tensors: most are of these.
OWN = frozenset({np.ndarray, list, tuple, float, int, bool, str, type(None), np.float64, np.float32})


def library(*arrays: Any) -> Any:
    """Return the library of the first tensor, an array that is not NumPy's: a module; None without any.

    Nothing is imported: who has a tensor has its library.
    """
    if OWN.issuperset(map(type, arrays)):
        return None
    torch = sys.modules.get("torch")
    for x in arrays:
        if torch is not None and isinstance(x, torch.Tensor):
            return torch
        if not isinstance(x, (np.ndarray, np.generic, type)) and hasattr(x, "__array_namespace__"):
            return x.__array_namespace__()
    return None


def like(array: Any, x: Any, dtype: Any = None) -> Any:
    """Return a NumPy array as a tensor of the library and on the device of the tensor x."""
    xp, device = library(x), getattr(x, "device", None)  # what jax traces has none
    if hasattr(xp, "Tensor"):  # torch
        if x.device.type == "mps" and array.dtype == np.float64:  # which it has not
            array = array.astype(np.float32)
        return xp.tensor(array, device=device, dtype=dtype)
    return xp.asarray(array, dtype=dtype, **({} if device is None else {"device": device}))


def host(x: Any) -> Any:
    """Return a tensor as a NumPy array, without its gradient; anything else as NumPy takes it."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().resolve_neg()  # a minus that is yet to be taken
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x  # which NumPy has not
    return np.asarray(x)
