"""Chooses which files of a folder or a pattern are read: by their endings, and by the ``state.json`` of ``save_to_disk``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import InputError
from ...notices import warn
from ...objects.urls import is_remote
from ...paths import natural_key, shortened
from ..formats import ENDINGS, READABLE, find_format
from .input_file import InputFile
from .open_input import open_input

_NEARLY_ALL = 0.95  # if this share of the files is unreadable, the spec is probably a mistake
_SAVED = ("state.json", "dataset_info.json")  # `save_to_disk` writes these next to its data


def in_output_error(path: str, output: str) -> InputError:
    """Return the error for an input that the build would delete or overwrite."""
    return InputError(
        f"{path}: is in the output, {output}, which is never read; choose another --output, or move the text out of it"
    )


def readable_files(
    spec: str, candidates: list[InputFile], others: list[str], left_out: str = "", *, any_ending: bool
) -> list[InputFile]:
    """Return the candidates whose names have a readable ending. Raises ``InputError`` if there is none.

    One warning names the other candidates and ``others``: hidden files, and links to files that are read.
    """
    candidates, stale = _saved_only(candidates)
    if stale:
        names = shortened([file.name for file in stale])
        warn(f"{spec}: {len(stale)} files left out, from an earlier save_to_disk and not in state.json: {names}")
    files = [file for file in candidates if any_ending or find_format(file.name) is not None]
    unread = [file.name for file in candidates if not any_ending and find_format(file.name) is None] + others
    if not files:
        content = f"only {shortened(unread)}" if unread else "no file"
        content += f" ({left_out})" if left_out else ""
        raise InputError(f"{spec}: nothing to read, {content}; readable are {READABLE}")
    if unread:
        unknown = len(unread) - len(others)
        reasons = "hidden, links to files that are read, or with an unknown ending"
        message = (
            f"{spec}: {len(unread)} of {len(candidates) + len(others)} files left out ({reasons}): "
            f"{shortened(sorted(unread, key=natural_key))}"
        )
        if unknown:
            message += "; --format text (format='text' in Python) reads files of any ending, each as one document"
        if unknown > _NEARLY_ALL * len(candidates):
            raise InputError(
                f"{message}; to read only the others, name them by a pattern, as in '{_pattern_of(spec, files)}'"
            )
        warn(message)
    return files


def _pattern_of(spec: str, files: Sequence[InputFile]) -> str:
    """Return a pattern for files with the ending of the first one, below the folder in ``spec``."""
    folder = spec if os.path.isdir(spec) else re.split(r"[^/]*[*?\[{]", spec, maxsplit=1)[0].rstrip("/")
    ending = next(ending for ending in ENDINGS if files[0].name.lower().endswith(ending))
    return f"{folder}/**/*{ending}"


def _saved_only(files: Sequence[InputFile]) -> tuple[list[InputFile], list[InputFile]]:
    """Return the files to read, and the stale files of an earlier ``save_to_disk``.

    ``state.json`` in a folder that ``save_to_disk`` wrote names its data files. Other files there hold documents that were
    deleted since. Raises ``InputError`` for the folder of a ``DatasetDict``.
    """
    listed = {str(file.path): file for file in files}
    named = {folder: _saved_names(folder, listed) for folder in {os.path.dirname(path) for path in listed}}
    read, stale = [], []
    for file in files:  # not in `listed`: urls with different queries have equal paths
        folder, name = os.path.split(str(file.path))
        if (names := named[folder]) is None or name in names:
            read.append(file)
        elif name not in _SAVED:
            stale.append(file)
    return read, stale


def _saved_names(folder: str, listed: Mapping[str, InputFile]) -> set[str] | None:
    """Return the names of a folder's data files if ``save_to_disk`` wrote the folder, else None."""
    state, info = (os.path.join(folder, name) for name in _SAVED)
    if is_remote(folder):
        if not {state, info} <= listed.keys():
            return None
    elif os.path.exists(os.path.join(folder, "dataset_dict.json")):
        splits = sorted(path.parent.name for path in Path(folder).glob("*/dataset_info.json"))
        raise InputError(
            f"{folder}: a DatasetDict with the splits {', '.join(splits)}; name one of them, as in {folder}/{splits[0]}"
            if splits
            else f"{folder}: a DatasetDict without splits; save it again"
        )
    elif not (os.path.exists(state) and os.path.exists(info)):
        return None
    with open_input(listed.get(state, state)) as opened:
        try:
            names = {str(entry["filename"]) for entry in json.loads(opened.read())["_data_files"]}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{state}: not what datasets writes ({error!r}); save the dataset again") from None
    for name in () if is_remote(folder) else names:
        if os.path.basename(name) != name or not os.path.isfile(os.path.join(folder, name)):
            raise InputError(f"{folder}/{name}: named by state.json, but not there; save the dataset again")
    return names
