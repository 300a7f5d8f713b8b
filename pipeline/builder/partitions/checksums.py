"""Whole-file hashes of inputs that several units read in pieces, and the proof that the pieces were of that file.

A hash of a whole file cannot be put together from hashes of its pieces. So each input that is cut is read once more,
from end to end, by a unit of its own beside the filter units: the manifest has what ``sha256sum`` prints. The
same pass hashes each piece, and `whole_hashes` compares these hashes with those of the filter units: a file that
changed between the two is noticed, even if its size and time did not change. It costs about a second for each GB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ...atomic import read_json, write_json
from ...errors import InputError
from ...text.formats import format_of
from ..inputs import check_same
from ..plan import Plan
from ..workspace.workspace import Workspace
from .partition import partition_table

_BLOCK = 1 << 20


def cut_inputs(plan: Plan, units: Iterable[int]) -> list[int]:
    """Return the inputs that are cut in pieces, all of them among the ``units`` that are read; none with ``limit``.

    Remote ones are not read again: the store's version says that all pieces are of one object.
    """
    if plan.recipe.limit is not None:
        return []
    cut = {span.input for unit in plan.units for span in unit if (span.start, span.stop) != (0, None)}
    unread = {span.input for number in set(range(len(plan.units))).difference(units) for span in plan.units[number]}
    return sorted(number for number in cut - unread if not plan.inputs[number].is_remote)


def hash_path(workspace: Workspace, number: int) -> Path:
    return workspace.folder("hashes") / f"{number:06d}.json"


def hash_input(workspace: Workspace, number: int) -> None:
    """Hash one input, whole and by pieces, into the folder ``hashes``; ``InputError`` where it cannot be read or changed."""
    plan = workspace.plan
    item = plan.inputs[number]
    spans = [(span.start, span.stop) for unit in plan.units for span in unit if span.input == number]
    if format_of(item.file(format=plan.recipe.format)).span_unit != "byte":
        spans = [(0, None)]  # row groups are not hashed when they are read
    whole, pieces = hashlib.sha256(), []
    try:
        with open(item.path, "rb") as file:
            for start, stop in spans:
                piece, at = hashlib.sha256(), start
                while block := file.read(_BLOCK if stop is None else min(_BLOCK, stop - at)):
                    whole.update(block)
                    piece.update(block)
                    at += len(block)
                pieces.append(piece.hexdigest())
    except OSError as error:
        raise InputError(f"{item.path}: cannot be read: {error.strerror or error}") from error
    check_same(item)
    write_json(hash_path(workspace, number), {"sha256": whole.hexdigest(), "pieces": pieces})


def whole_hashes(workspace: Workspace, plan: Plan, units: Iterable[int]) -> list[str | None]:
    """Return the sha256 of each input, after ``units`` were read.

    It is None for one that was not read to its end: damaged, or beyond ``limit`` or a quota.

    For a remote one that was read in part, it is the hash that the store has, if any.
    Raises ``InputError`` for an input of which a piece differed when it was read.
    """
    read: list[list[str | None]] = [[] for _ in plan.inputs]
    for unit, digests in zip(plan.units, partition_table(workspace)["sha256"], strict=True):
        for span, digest in zip(unit, digests, strict=True):
            if span.lane == 0:
                read[span.input].append(digest)
    whole: list[str | None] = [
        (digests[0] if len(digests) == 1 else None) or item.sha256 or None
        for digests, item in zip(read, plan.inputs, strict=True)
    ]
    for number in cut_inputs(plan, units):
        stored = read_json(hash_path(workspace, number))
        wrong = [k for k, digest in enumerate(read[number]) if digest and digest != stored["pieces"][k]]
        if wrong:
            raise InputError(
                f"{plan.inputs[number].path}: piece {wrong[0] + 1} of {len(read[number])} had sha256 "
                f"{read[number][wrong[0]]} when it was read and {stored['pieces'][wrong[0]]} when the file was hashed: it "
                "changed meanwhile. Leave it unchanged, and start over with --overwrite"
            )
        whole[number] = stored["sha256"]
    return whole
