"""Warnings that name the line of the user's code, and warnings that are logged once."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from functools import lru_cache
from types import FrameType

_ROOT = os.path.dirname(os.path.dirname(__file__))
_OWN = tuple(os.path.join(_ROOT, package, "") for package in ("pipeline", "filters"))


def warn(message: str) -> None:
    """Issue a ``UserWarning`` that names the nearest calling line outside this package."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


@lru_cache(maxsize=1024)
def say_once(message: str) -> None:
    """Log a warning once in this process."""
    logging.getLogger("pipeline").warning(message)
