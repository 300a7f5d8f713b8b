"""Inputs that hold their records in memory are written to files of the work directory before the build is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..text.storage.holders import can_be_read_again, is_holder, split_holders, write_holder, written_holder
from ..text.storage.input_file import InputFile
from .counts.progress import Progress
from .work.atomic_directory import discard
from .work.workspace import SPOOL_NAME, Workspace

Spec = str | InputFile


def spool_holders(inputs: Any, workspace: Workspace, progress: Progress, *, anew: bool) -> list[Spec]:
    """Return the inputs as specs and files, those that hold their records written out.

    What can be read again is written again, so that a change of it is noticed. A generator is written once, unless the
    build starts ``anew``: one that is continued reads what the generator gave when the build began.
    """
    if anew:
        discard(workspace.root / SPOOL_NAME)
    specs: list[Spec] = []
    for number, (source, entry) in enumerate(split_holders(inputs)):
        if is_holder(entry):
            path = _spool(entry, workspace.root / SPOOL_NAME / f"{number:03d}", progress)
            specs.append(InputFile(path, path.name, source))
        else:
            specs.append(entry)
    return specs


def _spool(holder: Any, folder: Path, progress: Progress) -> Path:
    kind = type(holder).__name__
    if can_be_read_again(holder):
        return write_holder(holder, folder)
    if (path := written_holder(folder)) is not None:
        progress.say(f"{kind}: continued from the records that it gave before; --overwrite reads it again")
        return path
    progress.say(f"{kind}: cannot be read twice or compared later, so its records are written to {folder} first")
    return write_holder(holder, folder)
