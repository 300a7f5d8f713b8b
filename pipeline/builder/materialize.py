"""Inputs in memory are written to files of the work directory before the build is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..text.storage.in_memory import can_be_read_again, is_in_memory, materialize, materialized, split_inputs
from ..text.storage.input_file import InputFile
from .counts.progress import Progress
from .work.atomic_directory import discard
from .work.workspace import MATERIALIZED_NAME, Workspace

Spec = str | InputFile


def materialize_inputs(inputs: Any, workspace: Workspace, progress: Progress, *, anew: bool) -> list[Spec]:
    """Return the inputs as specs and files, those in memory written out.

    What can be read again is written again, so that a change of it is noticed. A generator is written once, unless the
    build starts ``anew``: one that is continued reads what the generator gave when the build began.
    """
    if anew:
        discard(workspace.root / MATERIALIZED_NAME)
    specs: list[Spec] = []
    for number, (source, entry) in enumerate(split_inputs(inputs)):
        if is_in_memory(entry):
            path = _materialize(entry, workspace.root / MATERIALIZED_NAME / f"{number:03d}", progress)
            specs.append(InputFile(path, path.name, source))
        else:
            specs.append(entry)
    return specs


def _materialize(value: Any, folder: Path, progress: Progress) -> Path:
    kind = type(value).__name__
    if can_be_read_again(value):
        return materialize(value, folder)
    if (path := materialized(folder)) is not None:
        progress.say(f"{kind}: continued from the records that it gave before; --overwrite reads it again")
        return path
    progress.say(f"{kind}: cannot be read twice or compared later, so its records are written to {folder} first")
    return materialize(value, folder)
