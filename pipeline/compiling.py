"""Compiled functions that are loaded from numba's cache, and work where none can be kept.

Compile at module level only: a function inside another carries its cells into the cache's key, which differ from
process to process, so that it is compiled again every time and the cache grows.
"""

from __future__ import annotations

import pickle
from typing import Any

import numba

# Neither the package's folder nor the user's cache folder can be written, or what lies there cannot be loaded.
_CACHE_TROUBLE = (RuntimeError, OSError, ImportError, EOFError, pickle.UnpicklingError)


def compiled(signature: Any) -> Any:
    """Return a decorator that compiles at import, from the cache if there is one that can be read or written."""

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(signature, cache=True, nogil=True, error_model="numpy")(function)
        except _CACHE_TROUBLE:
            return numba.njit(signature, nogil=True, error_model="numpy")(function)

    return decorate
