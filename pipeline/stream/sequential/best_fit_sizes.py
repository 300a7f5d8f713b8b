"""How much best fit packs at a time: enough documents that little is padded, few enough to stay in memory."""

from __future__ import annotations

from ..layout import Layout, PackLayout

LEAST_SEQUENCES = 16  # of a lane's epoch: with fewer, more than about 5% may be padding
_WINDOW_SEQUENCES = 32  # of a window at least, whatever memory that takes
_MOST_SEQUENCES = 256
_MOST_BYTES = 512 << 20  # of the least windows of all lanes


def best_fit_tokens(seq_len: int, tokens: int) -> int:
    """Return how many tokens are packed at a time, where a lane's window holds ``tokens``.

    >>> best_fit_tokens(2048, 1 << 21) // 2048, best_fit_tokens(131_072, 1 << 20) // 131_072
    (256, 32)
    """
    return seq_len * max(_WINDOW_SEQUENCES, min(_MOST_SEQUENCES, tokens // seq_len))


def most_lanes_a_row(layout: Layout | None, rows: int, tokens: int, item: int) -> int | None:
    """Return how many lanes a row of the global batch may have, so that each packs enough sequences at a time.

    None for a layout that is not best fit. ``tokens`` are those of an epoch, each of ``item`` bytes.
    """
    if not isinstance(layout, PackLayout) or not layout.best_fit:
        return None
    fit = _MOST_BYTES // (_WINDOW_SEQUENCES * layout.seq_len * item)
    return max(1, min(tokens // layout.seq_len // LEAST_SEQUENCES, fit) // rows)
