"""Whole-file hashes of inputs that several units read in pieces.

The hash of a whole file cannot be computed from hashes of its pieces. So after the ingest units, another unit reads each cut
input once more, from end to end. The manifest then has what ``sha256sum`` prints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ...atomic import read_json, write_json
from ...errors import InputError
from ..inputs import check_same
from ..plan import Plan
from ..work.workspace import Workspace
from .partition import partition_table


def divided_inputs(plan: Plan, units: Iterable[int]) -> list[int]:
    """Return the inputs that are cut into pieces and of which ``units`` read every piece; none with ``limit``.

    Remote inputs are not read again: the store's version says that all pieces belong to one object.
    """
    if plan.recipe.limit is not None:
        return []
    cut = {span.input for unit in plan.units for span in unit if (span.start, span.stop) != (0, None)}
    unread = {span.input for number in set(range(len(plan.units))).difference(units) for span in plan.units[number]}
    return sorted(number for number in cut - unread if not plan.inputs[number].is_remote)


def hash_input(workspace: Workspace, number: int) -> None:
    """Write the hash of one input to its file. Raises ``InputError`` if the input cannot be read or has changed."""
    item, path = workspace.plan.inputs[number], hash_path(workspace, number)
    try:
        with open(item.path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise InputError(f"{item.path}: cannot be read: {error.strerror or error}") from error
    check_same(item)
    write_json(path, digest.hexdigest())


def hash_path(workspace: Workspace, number: int) -> Path:
    """Return the file of the hash of an input."""
    return workspace.root / "hashes" / f"{number:06d}.json"


def whole_hashes(workspace: Workspace, units: Iterable[int]) -> list[str | None]:
    """Return the sha256 of each input, after ``units`` were read.

    The hash is None if the input was not read to its end, because of damage, ``limit`` or a quota. A remote input that was read
    in part has the hash that the store names, if any.
    """
    plan = workspace.plan
    read: list[list[str | None]] = [[] for _ in plan.inputs]
    for unit, digests in zip(plan.units, partition_table(workspace)["sha256"], strict=True):
        for span, digest in zip(unit, digests, strict=True):
            if span.lane == 0:
                read[span.input].append(digest)
    whole: list[str | None] = [
        (digests[0] if len(digests) == 1 else None) or item.sha256 or None
        for digests, item in zip(read, plan.inputs, strict=True)
    ]
    for number in divided_inputs(plan, units):
        whole[number] = read_json(hash_path(workspace, number))
    return whole
