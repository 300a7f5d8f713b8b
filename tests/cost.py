"""Whether work grows with its size or with its square: told from CPU time, with room for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 5  # other processes only ever make a try slower, so that one good try is enough


def is_linear(run: Callable[[int], object], small: int, large: int) -> bool:
    """Tell whether CPU time stays nearer to linear growth than to quadratic growth from ``small`` to ``large``."""

    def seconds(size: int) -> float:
        began = time.process_time()
        run(size)
        return time.process_time() - began

    run(small)  # loads and compiles what is needed once
    return any(seconds(large) < (large / small) ** 1.5 * seconds(small) + 0.1 for _ in range(TRIES))
