"""How much of the input is read where sources have token quotas: only as much as fills them.

A source is a list of *pieces*: units of small files, the units of a file that is cut, or equal shares of the bytes of a file
that can only be read from its start. Files take turns in an order drawn from their names and the seed; the pieces of one file
follow each other, so that its lines can be counted. The first pieces are read, filtered, deduplicated and tokenized. Where
survivors hold too few tokens, more pieces are read, and the stages after filtering start over with all that was read. How many
pieces are read depends on the counted tokens and the sizes of files alone: neither workers nor interruptions change it. A
tokenizer that a build trains is trained again with them, until one has read ``Limits.tokenizer_characters``: that one stays.

`build` has the loop over the stages.

    reading.json    how many pieces are read of each source with a quota, written once that is more than at first

In the piece in which a quota is reached, documents are chosen by the hash of their content; all documents of the pieces
before it stay. With ``limit`` there are no pieces: all that it allows is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from ..atomic import read_json, write_json
from .build_tokenizer import TRAINED, is_kept
from .counts.progress import Progress
from .draws import draw_file
from .partitions.partition import DEDUPING, FILTER, PARTITIONS, Partition, partitions
from .plan import Plan
from .workspace.atomic_directory import discard_whole
from .workspace.workspace import Workspace

READING = "reading.json"
FIRST_BYTES = 2  # of input read for each token wanted, before tokens are counted
MOST_GROWTH = 16  # times the bytes read so far: the first documents say little about all others
BELOW, AT, BEYOND = -1, 0, 1  # where a piece lies beside the one in which the quota of its source is reached

Piece = tuple[tuple[int, int], ...]  # numbers of units, each with that of the piece of its file


def pieces(plan: Plan) -> dict[str, list[Piece]]:
    """Return the pieces of each source with a quota in the order of reading; nothing where all input is read.

    >>> from pipeline.builder.inputs import Input
    >>> from pipeline.builder.plan import Span
    >>> from pipeline.builder.recipe import Recipe
    >>> inputs = tuple(Input(name, name, "web", 9, 0, "") for name in ("a", "b", "c", "d"))
    >>> units = ((Span(0, 0, 5),), (Span(0, 5, None),), (Span(1), Span(2)), (Span(3, pieces=2),))
    >>> pieces(Plan(inputs, units, Recipe(max_tokens="web=5"), {}, {}))
    {'web': [((2, 0),), ((3, 0),), ((3, 1),), ((0, 0),), ((1, 0),)]}
    """
    recipe, files = plan.recipe, dict[str, list[list[list[tuple[int, int]]]]]()
    if not recipe.reads_by_quota:
        return {}
    for number, unit in enumerate(plan.units):
        first, source = unit[0], plan.inputs[unit[0].input].source
        if recipe.quota(source) == math.inf:
            continue
        held = files.setdefault(source, [])
        own = [[(number, piece)] for piece in range(first.pieces)]
        if first.lane:  # it shares the pieces of the file with the lanes before it
            held[-1] = [[*others, *mine] for others, mine in zip(held[-1], own, strict=True)]
        elif first.start:
            held[-1] += own
        else:
            held.append(own)

    def drawn(file: list[list[tuple[int, int]]]) -> bytes:
        name = plan.inputs[plan.units[file[0][0][0]][0].input].name
        return draw_file(name, recipe.seed)

    return {
        source: [tuple(piece) for file in sorted(held, key=drawn) for piece in file] for source, held in files.items()
    }


def pieces_read(workspace: Workspace) -> dict[int, int]:
    """Return the numbers of the units that are read, in input order, and how many pieces of each."""
    plan = workspace.plan
    counts = _piece_counts(workspace)
    unread = Counter(
        unit for source, held in pieces(plan).items() for piece in held[counts[source] :] for unit, _ in piece
    )
    read = {number: unit[0].pieces - unread[number] for number, unit in enumerate(plan.units)}
    return {number: count for number, count in read.items() if count}


def is_all_read(workspace: Workspace) -> bool:
    """Whether all of every unit is read, so that no more can be read to fill a quota."""
    return list(pieces_read(workspace).values()) == [unit[0].pieces for unit in workspace.plan.units]


def _piece_counts(workspace: Workspace) -> dict[str, int]:
    """Return how many pieces are read of each source with a quota."""
    path, plan = workspace.root / READING, workspace.plan
    if path.exists():
        return dict(read_json(path))
    return {
        source: _pieces_with(_ends(plan, held), FIRST_BYTES * int(plan.recipe.quota(source)))
        for source, held in pieces(plan).items()
    }


def _ends(plan: Plan, held: Sequence[Piece]) -> list[int]:
    """Return the bytes of input that the first piece holds, the first two, and so on."""
    spans = Counter(span.input for unit in plan.units for span in unit)
    sizes = (
        sum(
            plan.inputs[span.input].size // (spans[span.input] * span.pieces)
            for number, _ in piece
            for span in plan.units[number]
        )
        for piece in held
    )
    return list(accumulate(max(1, size) for size in sizes))


def _pieces_with(ends: Sequence[int], size: int) -> int:
    """Return how many pieces hold ``size`` bytes."""
    return 0 if size <= 0 else min(len(ends), 1 + sum(end < size for end in ends))


def read_more(workspace: Workspace, progress: Progress) -> bool:
    """Mark more pieces to be read where the tokens of survivors do not fill a quota; return whether there are any."""
    plan = workspace.plan
    order, counts = pieces(plan), _piece_counts(workspace)
    tokens, more = _tokens(workspace, order), dict(counts)
    for source, held in order.items():
        quota, found, read = int(plan.recipe.quota(source)), sum(tokens[source]), counts[source]
        if found >= quota or read == len(held):
            continue
        ends = _ends(plan, held)
        size = ends[read - 1]
        wanted = min(MOST_GROWTH * size, size * quota * 9 // (8 * found) if found else 2 * size)
        more[source] = max(read + 1, _pieces_with(ends, wanted))
        progress.say(
            f"max_tokens: {read} of {len(held)} pieces of {source or 'the input'} hold {found:,} of {quota:,} tokens; "
            f"{more[source] - read} more are read"
        )
    if more == counts:
        return False
    # After a kill before the last line, the same pieces are read again, and the same follows from them.
    kept = {FILTER, TRAINED} if is_kept(workspace) else {FILTER}
    for name in (*plan.stages, DEDUPING, PARTITIONS):
        if name not in kept:
            discard_whole(workspace.folder(name))
    write_json(workspace.root / READING, more)
    return True


def say_what_is_read(workspace: Workspace, progress: Progress) -> None:
    """Say how many pieces filled the quotas, where there are more."""
    counts = _piece_counts(workspace)
    for source, held in pieces(workspace.plan).items():
        if counts[source] < len(held):
            of = source or "the input"
            progress.say(f"max_tokens: {counts[source]} of {len(held)} pieces of {of} fill its quota; no more is read")


def _tokens(workspace: Workspace, order: dict[str, list[Piece]]) -> dict[str, list[int]]:
    """Return the tokens of the survivors of each piece of each source."""
    place = {
        each: (source, rank) for source, held in order.items() for rank, piece in enumerate(held) for each in piece
    }
    found = {source: [0] * len(held) for source, held in order.items()}
    for partition in partitions(workspace) if order else ():
        if partition.piece in place:
            source, rank = place[partition.piece]
            found[source][rank] += int(partition.token_lengths.sum())
    return found


def quotas_of_pieces(workspace: Workspace, every: Sequence[Partition]) -> tuple[list[int], dict[str, int]]:
    """Return where each partition lies beside the piece in which its source's quota is reached, and the quotas of those pieces.

    A source that fits in its quota as a whole has no such piece.
    """
    plan = workspace.plan
    order, sides, quotas = pieces(plan), dict[tuple[int, int], int](), dict[str, int]()
    if not order:
        return [AT] * len(every), plan.recipe.quotas
    for source, tokens in _tokens(workspace, order).items():
        left = int(plan.recipe.quota(source))
        for piece, held in zip(order[source], tokens, strict=True):
            side = BELOW if left >= held and source not in quotas else BEYOND if source in quotas else AT
            if side == AT:
                quotas[source] = left
            left -= held
            sides.update(dict.fromkeys(piece, side))
    return [sides.get(partition.piece, BELOW) for partition in every], quotas
