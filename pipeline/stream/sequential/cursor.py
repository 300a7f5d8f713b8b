"""Where a lane stands: a window, which can be made again from its start alone, and a unit in it.

Four integers:

    epoch, cycle, round     where the window begins; of shards, cycle is 0 and round counts the lane's windows
    unit                    what the next sequence begins at, of what the window keeps: a token, or where sequences are whole
                            documents or packed best fit, a sequence

A lane of a mix has four such integers for each source, in the order of their names. Of a live source, ``cycle`` counts the
records of the epoch before the window, and ``round`` is the source's own state there as text, 0 at the start of an epoch. All
lanes of a rank stand at one position in it; the first alone holds that state, the others 0.
"""

from __future__ import annotations

from typing import Any

from ...errors import StateError

WindowStart = tuple[int, int, Any]  # epoch, cycle, round
Cursor = list[Any]  # epoch, cycle, round, unit
STATE_OF_SOURCE = 2  # the index of its state in a cursor
NUMBERS = 4  # of a cursor, for each source


def beginning(epoch: int, lanes: int, sources: int = 1) -> dict[str, Cursor]:
    """Return the cursors of all lanes at the start of ``epoch``."""
    return {str(lane): [epoch, 0, 0, 0] * sources for lane in range(lanes)}


def part_of_source(cursor: Cursor, source: int) -> Cursor:
    """Return the numbers of one source."""
    return cursor[NUMBERS * source : NUMBERS * (source + 1)]


def missing_lanes(missing: list[int], count: int) -> StateError:
    """Return the error for a state that lacks lanes."""
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return StateError(
        f"the state lacks lanes {named} ({len(missing)} of {count}): each rank saves its own; join the states of all "
        "ranks with pipeline.merge_states([...]) to go on with other ranks"
    )
