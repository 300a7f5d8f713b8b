"""Integers of Python and of NumPy, which count the same as arguments."""

from __future__ import annotations

from numbers import Integral
from typing import Any


def as_integer(value: Any) -> int | None:
    """Return an integer as an int; None for a boolean and for any other value.

    >>> import numpy as np
    >>> as_integer(np.int64(7)), as_integer(7.0), as_integer(True)
    (7, None, None)
    """
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
