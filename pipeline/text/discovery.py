"""Turns paths, patterns and urls into input files, in an order that depends on names alone."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..errors import InputError
from ..notices import warn
from ..objects.locations import folder_of
from ..objects.request_options import RequestOptions
from ..objects.urls import identity, is_http, is_remote, local_name, shown
from ..paths import WILDCARD, has_wildcard, is_hidden, matching, named_twice, real_paths
from .fields import surrogate_in
from .formats import format_named, format_of, text_times
from .storage.folders import in_output_error, readable_files
from .storage.input_file import Credentials, InputFile, as_input, with_distinct_names
from .storage.listing import list_urls
from .storage.local_files import LocalFiles, paths_meant

__all__ = ["InputFile", "find_inputs", "fingerprint"]

T = TypeVar("T")

_SOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)=(.+)", re.DOTALL)
_MIB = 1 << 20
_LONG_TEXT = 10_000_000  # bytes


def find_inputs(
    specs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    outputs: Sequence[str] = (),
    requests: RequestOptions | None = None,
    format: str = "",
    commits: dict[str, str] | None = None,
) -> list[InputFile]:
    """Return the input files that ``specs`` name, in the order of the specs, sorted naturally within each.

    A spec is a file, a directory with everything below it, a glob (``**`` too) or brace pattern, or the url of one of these
    (``https://``, ``s3://``, ``gs://``, ``az://``, ``hf://``). ``NAME=`` in front names the source. If the whole spec is a
    path or matches files, it names no source: ``date=*/x.jsonl`` reads partitions of that name if there are any. ``requests``
    says how urls are requested. ``commits`` maps revisions of the hub to commits; revisions looked up here are added.
    ``outputs`` are the directories and urls that the build writes.

    One warning each names or counts what a directory or pattern leaves out: datasets of shards, ``outputs``, hidden files
    and folders, unknown endings, and links to files that are read anyway. Raises ``InputError`` if a spec finds nothing,
    cannot be read, or is both a path and ``NAME=PATH``. It may not name a dataset, an output, a file with an unknown ending,
    or a file twice.
    """
    if isinstance(specs, str | os.PathLike):
        specs = [specs]
    if format != "":
        format_named(format)  # a wrong name is an error before files are listed
    commits = {} if commits is None else commits
    credentials = Credentials(requests=requests or RequestOptions())
    local = LocalFiles(outputs, any_ending=bool(format))
    files: list[InputFile] = []
    for entry in specs:
        spec = os.fspath(entry)
        source, pattern = _name_and_pattern(spec)
        if is_remote(pattern):
            files += _files_of_url(pattern, source, credentials, commits, outputs, any_ending=bool(format))
        else:
            files += local.find(local_name(pattern), source, spec)
    _check_names(files)
    _refuse_twice(files)
    return [replace(file, forced_format=format) for file in files] if format else files


def join_inputs(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files of several calls of `find_inputs`, with distinct names.

    Raises ``InputError`` if a file is among them twice. A warning names long files that are one document each.
    """
    _refuse_twice(files)
    joined = with_distinct_names(files)
    _warn_of_long_texts(joined)
    return joined


def _refuse_twice(files: Sequence[InputFile]) -> None:
    """Raise ``InputError`` if two of the paths lead to one file. Urls with different queries are two files."""
    local = iter(real_paths(str(file.path) for file in files if file.stored is None))
    identities = [
        next(local) if file.stored is None else identity(file.credentials.url_of(file.stored)) for file in files
    ]
    if (message := named_twice([str(file.path) for file in files], identities)) is not None:
        raise InputError(message)


def _check_names(files: Sequence[InputFile]) -> None:
    """Raise ``InputError`` for a file whose path is not UTF-8: ids and provenance could not name it."""
    for file in files:
        path = str(file.path) if file.stored is not None else os.path.abspath(file.path)
        if surrogate_in(path) is not None:
            escaped = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise InputError(
                f"{escaped}: this path is not UTF-8, so ids and errors cannot name it; rename the file or folder"
            )


def _warn_of_long_texts(files: Iterable[InputFile]) -> None:
    """Warn once if files of one document each are longer than documents usually are: another format splits them."""
    sizes = {str(file.path): file.size * text_times(file) for file in files if format_of(file).one_document}
    long = {path: size for path, size in sizes.items() if size > _LONG_TEXT}
    if long:
        path, size = next(iter(long.items()))
        others = f", and so are {len(long) - 1} more long files" if len(long) > 1 else ""
        warn(
            f"{path}: one document of about {size / 1e6:,.0f} MB{others}; if it holds many, say how they are separated: "
            "--format lines, --format paragraphs or --format separator=STR (format= in Python)"
        )


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` of the items, evenly spread. A sample opens only these, since many remote files take long.

    >>> evenly("abcde", 2)
    ['a', 'c']
    """
    count = min(most, len(items))
    return [items[len(items) * number // count] for number in range(count)]


def fingerprint(spec: str | os.PathLike[str] | InputFile) -> str:
    """Return a quick hash of a file: sha256 over its name, its size and its first and last MiB, in hexadecimal.

    For a remote file, the version replaces the bytes, so no request is made.
    """
    path = as_input(spec)
    size = path.size
    digest = hashlib.sha256(f"{os.path.basename(path)}\0{size}\0".encode("utf-8", "surrogateescape"))
    if path.stored is not None:
        digest.update(path.stored.version.encode())
        return digest.hexdigest()
    with open(path, "rb") as file:
        digest.update(file.read(_MIB))
        file.seek(max(_MIB, size - _MIB))
        digest.update(file.read(_MIB))
    return digest.hexdigest()


def _name_and_pattern(spec: str) -> tuple[str, str]:
    """Split ``NAME=PATTERN``. The name is '' if the whole spec is a path or matches files."""
    match = _SOURCE.fullmatch(spec)
    if match is None:
        return "", spec
    name, pattern = match.groups()
    if "://" in pattern:
        return name, pattern
    if not any(os.path.lexists(one) or (has_wildcard(one) and matching(one)) for one in paths_meant(spec)):
        return name, pattern
    if os.path.lexists(spec) and os.path.lexists(pattern):
        raise InputError(
            f"{spec}: both this and {pattern} are paths; write ./{spec} to read the first, or {name}=./{pattern} to read "
            f"the second as source {name!r}"
        )
    return "", spec


def _files_of_url(
    pattern: str,
    source: str,
    credentials: Credentials,
    commits: dict[str, str],
    outputs: Sequence[str],
    *,
    any_ending: bool,
) -> list[InputFile]:
    """Return the files of a url. From a glob or a folder, only files with a known ending and outside ``outputs``."""
    if pattern.startswith("hf://"):
        from .storage.hub_files import list_dataset

        files = list_dataset(shown(pattern), source, credentials, commits)
    else:
        files = _outside(list_urls(pattern, source, credentials), pattern, outputs)
    if len(files) == 1 and files[0].path == shown(pattern):
        if not any_ending:
            format_of(files[0])
        return files
    wildcard = WILDCARD.search(pattern)
    rest = pattern[pattern.rfind("/", 0, wildcard.start()) + 1 :] if wildcard else ""
    # Web servers list nothing, so the user named each file. Files of the hub were chosen when they were listed.
    named = is_hidden(rest) or is_http(pattern) or pattern.startswith("hf://")
    hidden = [file.name for file in files if is_hidden(file.name) and not named]
    seen = [file for file in files if named or not is_hidden(file.name)]
    return readable_files(shown(pattern), seen, hidden, any_ending=any_ending)


def _outside(files: list[InputFile], pattern: str, outputs: Sequence[str]) -> list[InputFile]:
    """Return the files of a url that are in no output. Raises ``InputError`` if all are in one."""
    written = [url for url in outputs if is_remote(url)]
    places = [folder_of(str(file.path), written) for file in files]
    if output := next(filter(None, places), None):
        if None not in places:
            raise in_output_error(shown(pattern), output)
        warn(f"{shown(pattern)}: the output, {output}, is never read")
    return [file for file, output in zip(files, places, strict=True) if output is None]
