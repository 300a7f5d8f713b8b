"""Token quotas of sources: how much of the input is read to fill them, and which partitions fit into them.

The files of a source with a quota are read in an order drawn from their names and the seed. The last file is read up to the
partition that reaches the wanted bytes. If the survivors have too few tokens, more is read, and the stages after filtering
start over with everything that was read. Only the counted tokens and the sizes of files decide how much is read: neither
workers nor interruptions change it. With ``limit``, everything that the limit allows is read.

    quotas.json     bytes to read from each source that has a quota; written when the first estimate was too low

Quotas are filled partition by partition in the same order. In the partition that reaches a quota, documents are drawn by the
hash of their content.
"""

from __future__ import annotations

import math
from collections import Counter

from ...atomic import read_json, write_json
from ...atomic_directory import discard_whole
from ...draws import draw_file
from ...progress import Progress
from ..partitions.partition import done_path, partitions
from ..plan import Plan
from ..work.workspace import Workspace
from .tokenize import token_lengths

QUOTAS = "quotas.json"
FIRST_BYTES = 2  # of input read for each token wanted, before tokens are counted
MOST_GROWTH = 16  # of the bytes read so far: the first documents say little about all others
NOTHING = -1  # tokens that a partition may hold after its source has reached its quota


def drawn_units(plan: Plan) -> dict[str, list[int]]:
    """Return the units of each source with a quota, in the order in which they are read.

    The units of one file follow each other, so that its lines can be counted.

    >>> from pipeline.builder.inputs import Input
    >>> from pipeline.builder.plan import Span
    >>> from pipeline.builder.recipe import Recipe
    >>> inputs = tuple(Input(name, name, "web", 9, 0, "") for name in ("a", "b", "c"))
    >>> drawn_units(Plan(inputs, ((Span(0, 0, 5),), (Span(0, 5),), (Span(1), Span(2))), Recipe(max_tokens="web=5"), {}, {}))
    {'web': [2, 0, 1]}
    """
    files: dict[str, list[list[int]]] = {}
    for number, unit in enumerate(plan.units):
        source = plan.inputs[unit[0].input].source
        if plan.recipe.quota(source) == math.inf:
            continue
        of_source = files.setdefault(source, [])
        if unit[0].start or unit[0].lane:
            of_source[-1].append(number)
        else:
            of_source.append([number])

    def drawn(units: list[int]) -> bytes:
        return draw_file(plan.inputs[plan.units[units[0]][0].input].name, plan.recipe.seed)

    return {
        source: [number for units in sorted(of_source, key=drawn) for number in units]
        for source, of_source in files.items()
    }


def units_read(workspace: Workspace) -> dict[int, int | None]:
    """Return the units to read, in input order, each with the most bytes to read of its file; None: all.

    The partition that reaches these bytes is the last one of its unit.
    """
    plan = workspace.plan
    read: dict[int, int | None] = dict.fromkeys(range(len(plan.units)))
    if not plan.recipe.reads_by_quota:
        return read
    sizes, wanted = _unit_sizes(plan), _bytes_wanted(workspace)
    for source, units in drawn_units(plan).items():
        left = wanted[source]
        for number in units:
            first = plan.units[number][0]
            if left <= 0:
                del read[number]
            elif left < sizes[number] and plan.is_whole_file(number):
                read[number] = left
            left -= sizes[number] if first.lane == first.lanes - 1 else 0
    return read


def _bytes_wanted(workspace: Workspace) -> dict[str, int]:
    """Return the bytes to read from each source that has a quota."""
    path, plan = workspace.root / QUOTAS, workspace.plan
    if path.exists():
        return dict(read_json(path))
    return {source: FIRST_BYTES * int(plan.recipe.quota(source)) for source in drawn_units(plan)}


def _unit_sizes(plan: Plan) -> list[int]:
    """Return about how many bytes each unit has, at least one. A lane has all bytes of its file."""
    spans = Counter(span.input for unit in plan.units for span in unit if span.lane == 0)
    return [max(1, sum(plan.inputs[span.input].size // spans[span.input] for span in unit)) for unit in plan.units]


def read_more(workspace: Workspace, progress: Progress) -> bool:
    """Ask for more input if the tokens of survivors do not fill a quota; return whether more is to be read."""
    plan, read, sizes = workspace.plan, units_read(workspace), _unit_sizes(workspace.plan)
    wanted, tokens = _bytes_wanted(workspace), _tokens(workspace)
    more = dict(wanted)
    for source, units in drawn_units(plan).items() if plan.recipe.reads_by_quota else ():
        quota, filled = int(plan.recipe.quota(source)), tokens[source]
        if filled >= quota or all(number in read and read[number] is None for number in units):
            continue
        done = 0
        for number in units:
            if number in read and plan.units[number][0].lane == 0:
                until = read[number]
                path = done_path(workspace, number, until)
                done += sizes[number] if until is None else read_json(path)["bytes"]
        done = max(done, wanted[source])  # some formats do not count the bytes of unselected records
        more[source] = max(done + 1, min(MOST_GROWTH * done, done * quota * 9 // (8 * filled) if filled else 2 * done))
        progress.say(
            f"max_tokens: the first {done:,} bytes of {source or 'the input'} hold {filled:,} of {quota:,} tokens; "
            f"{more[source] - done:,} more are read"
        )
    if more == wanted:
        return False
    # A build that is killed before the last line reads the same input again, and comes to the same result.
    discard_whole(workspace.round)
    write_json(workspace.root / QUOTAS, more)
    return True


def _tokens(workspace: Workspace) -> Counter[str]:
    """Return the tokens of the survivors of each source with a quota."""
    sums = Counter[str]()
    for partition in partitions(workspace) if workspace.plan.recipe.reads_by_quota else ():
        sums[partition.source] += int(token_lengths(partition).sum())
    return sums


def tokens_allowed(workspace: Workspace) -> list[int | None]:
    """Return how many tokens of each partition fit the quota of its source; None if the source has no quota."""
    plan, every = workspace.plan, partitions(workspace)
    drawn = drawn_units(plan)
    ranks = {number: rank for units in drawn.values() for rank, number in enumerate(units)}
    left = {source: int(plan.recipe.quota(source)) for source in drawn}
    ranked = []
    for partition in every:
        unit, number = partition.unit_and_number
        first_lane = unit - plan.units[unit][0].lane  # the lanes of a file take turns at its partitions
        if first_lane in ranks:
            ranked.append((ranks[first_lane], number, partition.number))
    allowed: list[int | None] = [None] * len(every)
    for *_, number in sorted(ranked):
        source, tokens = every[number].source, int(token_lengths(every[number]).sum())
        allowed[number] = left[source]
        left[source] = left[source] - tokens if tokens <= left[source] else NOTHING
    return allowed
