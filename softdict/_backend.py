"""The memory budget, and the tile sizes that follow from it."""

from __future__ import annotations

import os

#: MiB that one lookup may take beyond its inputs and its answer. Set the environment variable
#: SOFTDICT_BUDGET_MIB before the import, or assign `softdict._backend.budget_mib` at any time. One
#: query against one entry always fits; `top_k` and sparse weightings also hold what they keep of
#: one query.
budget_mib: float = float(os.environ.get("SOFTDICT_BUDGET_MIB", "32"))

#: float64 numbers per pair: score, logit, weight, and what NumPy holds between two steps; ranks too.
MELTED, SORTED = 6, 12


def fits(m: int, n: int, width: int) -> bool:
    """Tell whether m queries and n entries are a small part of the budget, so that one tile will do."""
    return n * (2 * SORTED * m + width) <= budget_mib * 2**17


def tile_columns(m: int, n: int, width: int, pair: int) -> int:
    """Return how many entries of `width` numbers (key and value) one tile of m queries holds."""
    return max(1, min(n, int(budget_mib * 2**17) // max(1, pair * m + width)))


def tile_shape(m: int, n: int, width: int, pair: int, held: int = 0) -> tuple[int, int]:
    """Return how many queries and entries (rows, columns) one tile holds.

    Each query holds `held` numbers from tile to tile. The shape depends on shapes and budget alone,
    never on threads, so that answers do not either.
    """
    columns = tile_columns(min(m, 256), n, width, pair)
    room = int(budget_mib * 2**17) - columns * width
    return max(1, min(m, room // (pair * columns + held))), columns
