"""Receipts: 64-bit hashes that say whether a step had the data that its stream gives.

The hash of a token is a mix of its column in the row, its id and its label. It is 0 for an end-of-text id without a label, so
padding adds nothing. The hash of a row is the sum of its tokens, and the receipt of a step is the sum of its rows, each modulo
2**64. So the parts of ranks, context peers and micro-batches add up to the receipt of the step, and a rank logs its part alone.

A receipt is written as 16 hexadecimal digits. With rows, a colon and the last 4 digits of each row follow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from ..notices import say_once
from ..progress import Progress
from .batch.collate import IGNORE
from .batch.transport import widen
from .iteration.items import make_items
from .position import Position, Topology
from .settings import StreamSettings
from .stream_plan import StreamPlan
from .trace import check_traceable, refuse_unreadable

_OF_COLUMN, _OF_ID, _OF_LABEL = (n - (1 << 64) for n in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F))
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))  # as `order.mix64`


class ReceiptDifference(NamedTuple):
    """The first step whose receipt is not the logged one.

    ``step`` counts as in `trace`, ``step_of_log`` as the log does. ``rows`` counts the step's sequences from 0; empty if the log
    has no rows.
    """

    step: int
    step_of_log: int
    logged: str
    expected: str
    rows: list[int]


def row_hashes(batch: Mapping[str, Any], settings: StreamSettings) -> list[int]:
    """Return the hash of each row of a batch that a stream with these settings gave, or of this peer's part of each row."""
    names = ("input_ids", "labels", "ignored", "cu_seqlens", "cu_seqlens_unpadded")
    found: dict[str, Any] = {name: batch[name] for name in names if name in batch}
    made = {
        name: one if isinstance(one, torch.Tensor) else torch.from_numpy(np.array(one)) for name, one in found.items()
    }
    tensors = widen(made)
    ids, labels = (tensors[name] if settings.batch_size else tensors[name][None] for name in ("input_ids", "labels"))
    ids, labels = ids.flatten(1), labels.flatten(1)
    peer = settings.peer
    pieces = range(settings.pieces) if peer is None or settings.sliced else peer.rows(settings.pieces)
    bounds = [np.asarray(tensors[name].cpu(), np.int64) for name in names[3:] if name in tensors]
    columns = torch.from_numpy(_columns(len(ids), ids.shape[1], pieces, bounds, settings)).to(ids.device)
    mixed = columns * _OF_COLUMN + ids * _OF_ID + labels * _OF_LABEL
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> shift & (1 << 64 - shift) - 1)) * factor
    counts = (ids != settings.sources.eos_id) | (labels != IGNORE)
    return [number % (1 << 64) for number in (mixed * counts).view(len(ids) // len(pieces), -1).sum(1).tolist()]


def _columns(
    rows: int, length: int, pieces: range, bounds: list[NDArray[np.int64]], settings: StreamSettings
) -> NDArray[np.int64]:
    """Return the column of each token in the row of the layout, of which a batch has ``pieces``.

    ``bounds`` are ``cu_seqlens`` and, if documents are padded, ``cu_seqlens_unpadded``; padding has no meaningful column.
    """
    peer = settings.peer if settings.sliced else None
    length *= 1 if peer is None else peer.size
    columns = np.arange(length)[None]
    if len(bounds) == 2:
        (begins, before), sizes = bounds, np.diff(bounds[0])
        moved = np.repeat(before[:-1] % (before[-1] // rows) - begins[:-1], sizes)
        columns = (moved + np.arange(rows * length)).reshape(rows, length)
    if peer is not None:
        own = peer.tokens(bounds[0] if peer.slices == "documents" else np.arange(rows + 1) * length)
        columns = np.broadcast_to(columns, (rows, length)).reshape(-1)[own].reshape(rows, -1)
    return columns + (np.arange(rows)[:, None] % len(pieces) + pieces.start) * (settings.cut or 0)


def written(hashes: Iterable[int], *, rows: bool) -> str:
    """Return the receipt of rows."""
    of_rows = [*hashes]
    total = f"{sum(of_rows) % (1 << 64):016x}"
    return f"{total}:{''.join(f'{number & 0xFFFF:04x}' for number in of_rows)}" if rows else total


def read_steps(plan: StreamPlan, position: Position, steps: Iterable[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield ascending ``steps``, each with the hashes of its rows in the order of their sequences. This process reads them all.

    Steps count as in `trace`, and the same streams are refused. A sequential stream is read from ``position`` on.
    """
    check_traceable(plan)
    settings, size = replace(plan.settings, group=None, peer=None, device=None, prefetch=0, numpy=False), plan.step_size
    if plan.sequential:
        refuse_unreadable(plan, position)
        ranks = StreamPlan(settings, plan.world_size).under(position.weights)
        ranks.ranks_agree = False  # here are all of them
        read = [make_items(ranks, position, Topology(rank, plan.world_size))[1] for rank in range(plan.world_size)]
        together: Iterator[Any] = zip(*read, strict=False) if settings.drop_last else zip_longest(*read)
        following = position.sequence_index // size
        for step in steps:
            if step < following:
                raise ConfigError(f"step {step} begins before the stream's position: load a state of an earlier step")
            if (items := next(islice(together, step - following, None), None)) is None:
                raise ConfigError(f"step {step} is after the end of the stream")
            following = step + 1
            yield step, [number for item in items if item is not None for number in row_hashes(item[1], settings)]
        return
    settings = replace(settings, batch_size=size if settings.batch_size or size > 1 else None)
    alone, at, batches = StreamPlan(settings, 1).under(position.weights), position, None
    for step in steps:
        begin, _, of_pass = plan.passes.step(step, position)
        if batches is None or at != replace(of_pass, sequence_index=begin):
            batches = make_items(alone, replace(of_pass, sequence_index=begin), Topology(0, 1))[1]
        at, batch = next(batches)
        yield step, row_hashes(batch, settings)


def first_difference(
    plan: StreamPlan, position: Position, logs: Iterable[str | PathLike[str]], progress: Progress
) -> tuple[int, ReceiptDifference | None]:
    """Return how many steps of logs were read again, and the first one that differs, as `Stream.check_receipts` says."""
    logged = _read_logs([*map(Path, logs)])
    first = min(1, *logged)  # 1 unless a line has step 0
    with progress.bar("read", len(logged), "steps") as advance:
        for count, (step, hashes) in enumerate(read_steps(plan, position, (n - first for n in sorted(logged)))):
            advance(1)
            total, _, rows = (text := logged[step + first]).partition(":")
            if int(total, 16) == sum(hashes) % (1 << 64):
                continue
            found, differ = Counter(rows[at : at + 4] for at in range(0, len(rows), 4)), list[int]()
            for row, number in enumerate(hashes if rows else ()):
                if found[of_row := f"{number & 0xFFFF:04x}"] == 0:
                    differ.append(row)
                found[of_row] -= 1
            return count, ReceiptDifference(step, step + first, text, written(hashes, rows=bool(rows)), differ)
    return len(logged), None


def _read_logs(paths: list[Path]) -> dict[int, str]:
    """Return the receipt of each step in logs of JSON lines: the last one of a file, and the sum of files, one of each rank.

    Steps that a log lacks, as after a kill, are left out, because a sum without the part of a rank says nothing.
    """
    logs = list[dict[int, str]]()
    for path in paths:
        of_file: dict[int, str] = {}
        try:
            lines = path.read_bytes().splitlines(keepends=True)  # at the ends of lines alone, not at U+2028
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read as a log of receipts: {error.strerror}") from None
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if isinstance(entry, dict) and "receipt" in entry:
                    of_file[int(entry["step"])] = merge_receipts([entry["receipt"]])
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                if not line.endswith(b"\n"):
                    continue  # a kill cut the line
                raise ConfigError(
                    f"{path}, line {number}: no step with a receipt ({error!r}); a line is JSON such as "
                    '{"step": 1, "receipt": "89abcdef01234567"}'
                ) from None
        if not of_file:
            raise ConfigError(f"no line of {path} has a receipt; log stream.receipt(batch) at each step")
        logs.append(of_file)
    shared = set[int]().union(*logs).intersection(*logs)
    if not shared:
        raise ConfigError("no step is in all logs: give one log of each rank, of the same steps")
    for path, of_file in zip(paths, logs, strict=True):
        if lost := sorted(of_file.keys() - shared):
            say_once(f"{path}: other logs lack step {lost[0]:,}, so {len(lost):,} steps are not read again")
    return {step: merge_receipts(of_file[step] for of_file in logs) for step in shared}


def merge_receipts(parts: Iterable[str]) -> str:
    """Return the receipt of a step from the parts that ranks, context peers or micro-batches logged.

    >>> merge_receipts(["ffffffffffffffff:ffff", "0000000000000003:0003"])
    '0000000000000002:ffff0003'
    """
    split = [part.partition(":") for part in parts]
    total = sum(int(number, 16) for number, _, _ in split) % (1 << 64)
    return f"{total:016x}" + (":" + "".join(rows for *_, rows in split) if any(rows for *_, rows in split) else "")
