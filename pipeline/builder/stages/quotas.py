"""Token quotas of sources: how much of the input is read to fill them, and which partitions fit into them.

The files of a source with a quota are read in an order drawn from their names and the seed. The last file is read up to the
partition that reaches the wanted bytes. If the survivors have too few tokens, more is read, and the stages after filtering
start over with everything that was read. Only the counted tokens and the sizes of files decide how much is read: neither
workers nor interruptions change it. With ``limit``, everything that the limit allows is read.

    quotas.json     bytes to read from each source that has a quota; written when the first estimate was too low
    beyond.npy      bool, for each document that passed the filters: it is beyond a quota, and no passage is cut for its sake

Quotas are filled partition by partition in the same order. In the partition that reaches a quota, documents are drawn by the
hash of their content.

If passages are cut, the documents beyond a quota must not be those that have the first copies. So these documents are left out,
and passages and tokens are made again without them. The others then have more tokens, so a few more may be beyond, and so on
until none is. No document that was left out comes back.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file, read_json, write_json
from ...atomic_directory import discard_whole
from ...draws import draw_file, draws
from ...progress import Progress
from ..partitions.partition import Partition, done_path, partitions
from ..plan import Plan
from ..work.workspace import Workspace
from .dedup import positions
from .survivors import DROPS, drop, survives
from .tokenize import TokenizeStage, token_lengths

QUOTAS, BEYOND = "quotas.json", "beyond.npy"
PASSAGES = "passage_dedup"  # the stage that reads `BEYOND`
MAX_TOKENS = "max_tokens"  # the outcome of documents beyond a quota
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
            first, *others = plan.units[number]
            if left <= 0:
                del read[number]
            elif left < sizes[number] and not others and (first.start, first.stop) == (0, None):
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
    if (workspace.root / BEYOND).exists():
        return False
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


def leave_out_more(workspace: Workspace, progress: Progress) -> bool:
    """If passages are cut, leave out the documents beyond a quota; return whether passages and tokens are to be made again."""
    recipe, path = workspace.plan.recipe, workspace.root / BEYOND
    if recipe.dedup_passages is None or recipe.repeated_passages == "count" or not recipe.max_tokens:
        return False
    pairs = zip(partitions(workspace), tokens_allowed(workspace), strict=True)
    found = [np.zeros(0, bool), *(beyond_quota(each, survives(each), allowed) for each, allowed in pairs)]
    beyond = np.concatenate(found)
    if not beyond.any():
        return False
    progress.say(f"max_tokens: passages are found again without {np.count_nonzero(beyond):,} documents beyond it")
    # The newest results go first: what a kill leaves is complete, and is made again from the same documents.
    for stage in (TokenizeStage.name, PASSAGES, f"{DROPS}/{PASSAGES}", f"{DROPS}/{MAX_TOKENS}"):
        discard_whole(workspace.folder(stage))
    with atomic_file(path) as file:
        np.save(file, beyond | np.load(path) if path.exists() else beyond)
    return True


def drop_beyond(partition: Partition) -> None:
    """Drop the documents of a partition that are left out."""
    drop(partition, MAX_TOKENS, np.load(partition.workspace.root / BEYOND, mmap_mode="r")[positions(partition)])


def beyond_quota(partition: Partition, surviving: NDArray[np.bool_], allowed: int | None) -> NDArray[np.bool_]:
    """Return which of the surviving documents of a partition do not fit its quota: of the documents in the order of their draws,
    the first that is too long and all after it.

    So a larger quota holds all documents of a smaller one, and short documents are not preferred.
    """
    beyond, rows = np.zeros(len(surviving), bool), np.flatnonzero(surviving)
    if allowed is not None:
        drawn = draws(partition.hashes[rows], partition.workspace.plan.recipe.seed, MAX_TOKENS)
        beyond[rows] = do_not_fit(drawn, token_lengths(partition)[rows], allowed)
    return beyond


def do_not_fit(drawn: NDArray[np.uint64], tokens: NDArray[np.int64], allowed: int) -> NDArray[np.bool_]:
    """Return which documents, in the order of their draws, are beyond the tokens allowed.

    >>> do_not_fit(np.array([3, 1, 2], np.uint64), np.array([5, 5, 9]), 12).tolist()
    [True, False, True]
    """
    order = np.argsort(drawn, kind="stable")
    beyond = np.empty(len(order), bool)
    beyond[order] = np.cumsum(tokens[order]) > allowed
    return beyond


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
