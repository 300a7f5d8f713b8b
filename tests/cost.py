"""Whether work grows with its size or with its square: told from CPU time, with room for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 5  # other processes only ever make a try slower, so that one good try is enough
GROWTH = 32  # linear work takes 32 times as long, quadratic work 1,024 times: caches and neighbours move neither to 181


def is_linear(run: Callable[[int], object], size: int) -> bool:
    """Tell whether CPU time up to ``size`` grows more nearly with the size than with its square."""

    def seconds(size: int) -> float:
        began = time.process_time()
        run(size)
        return time.process_time() - began

    run(size // GROWTH)  # loads and compiles what is needed once
    return any(seconds(size) < GROWTH**1.5 * seconds(size // GROWTH) + 0.1 for _ in range(TRIES))
