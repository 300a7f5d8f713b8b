"""The input files of a build: listed, named, and described so that a change is noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote
from ..text.storage.input_file import NO_CREDENTIALS, Credentials, InputFile, StoredObject

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Input:
    """One input file: ``name`` is relative to its argument, ``ends`` a sha256 of its first and last MiB.

    ``ends`` is '' for a file that a limit or token quota probably makes unnecessary: such files are not opened.

    The ``path`` of a remote input is its url without secrets, and its ``ends`` is ''. It has the ``version`` that the store
    names, and the ``sha256`` of its contents, if the store names that too.
    """

    name: str
    path: str
    source: str
    size: int
    mtime_ns: int
    ends: str
    version: str = ""
    sha256: str = ""

    @property
    def is_remote(self) -> bool:
        return is_remote(self.path)

    def described(self) -> dict[str, Any]:
        """Return the entry of the manifest. A remote input has its url, without secrets, and the version that was read."""
        described = {"name": self.name, "source": self.source, "bytes": self.size, "ends": self.ends}
        return described | ({"url": self.path, "version": self.version} if self.is_remote else {})

    def file(self, credentials: Credentials = NO_CREDENTIALS, format: str = "") -> InputFile:
        """Return the file to read, in this format if one is given. ``credentials`` open a remote input."""
        if not self.is_remote:
            return InputFile(Path(self.path), self.name, self.source, forced_format=format)
        stored = StoredObject(self.path, self.size, self.version, self.sha256)
        return InputFile(self.path, self.name, self.source, stored, credentials, format)


def find_and_describe(
    specs: Sequence[str | InputFile],
    outputs: Sequence[str],
    requests: RequestOptions | None,
    format: str,
    commits: dict[str, str],
) -> tuple[tuple[Input, ...], Credentials]:
    """Return the input files of ``specs``, sorted within each spec, and the credentials that open the remote ones.

    A spec is a file, directory, glob or brace pattern; ``NAME=`` before it names the source. A file that two specs reach is an
    error: its documents would be read twice.
    """
    from ..text.discovery import find_inputs, join_inputs

    files: list[InputFile] = []
    keys: dict[str, Any] = {"outputs": outputs, "requests": requests, "format": format}
    for spec in specs:
        files += [spec] if isinstance(spec, InputFile) else find_inputs(spec, **keys, commits=commits)
    if not files:
        raise InputError("no inputs were given; name at least one file, directory, pattern or url")
    files = join_inputs([replace(file, forced_format=format) for file in files])
    inputs = tuple(map(_describe, files))
    urls = {clean: url for file in files for clean, url in file.credentials.urls.items()}
    return inputs, Credentials(urls, requests or RequestOptions())


def _describe(file: InputFile) -> Input:
    if (stored := file.stored) is not None:
        return Input(file.name, stored.url, file.source, stored.size, 0, "", stored.version, stored.sha256)
    path, source = Path(file.path), file.source
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return Input(file.name, str(path.absolute()), source, status.st_size, status.st_mtime_ns, "")


def hash_ends(inputs: Sequence[Input], unread: Collection[int]) -> tuple[Input, ...]:
    """Return inputs with the hashes of their ends. The inputs numbered in ``unread``, perhaps very many, get none."""
    return tuple(
        item if number in unread or item.is_remote else replace(item, ends=_hash_ends(item))
        for number, item in enumerate(inputs)
    )


def _hash_ends(item: Input) -> str:
    digest = hashlib.sha256()
    try:
        with open(item.path, "rb") as opened:
            digest.update(opened.read(_MIB))
            if item.size > _MIB:
                opened.seek(max(_MIB, item.size - _MIB))
                digest.update(opened.read(_MIB))
    except OSError as error:
        raise InputError(f"{item.path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def check_same(item: Input, credentials: Credentials = NO_CREDENTIALS, *, was_read: bool = False) -> None:
    """Raise ``InputError`` unless an input has the size and the time, or the version, that it had for the plan.

    ``was_read``: this process has just read it, so the version may be known without another request.
    """
    if item.is_remote:
        from ..text.storage.open_input import describe_again

        stored = item.file(credentials).stored
        assert stored is not None
        describe_again(stored, credentials, was_read=was_read)
        return
    try:
        status = os.stat(item.path)
    except OSError as error:
        raise InputError(f"{item.path}: cannot be read any more: {error.strerror}; restore it to continue") from error
    if (status.st_size, status.st_mtime_ns) != (item.size, item.mtime_ns):
        raise InputError(
            f"{item.path}: it changed during the build: {item.size:,} bytes of {moment(item.mtime_ns)} before, now "
            f"{status.st_size:,} bytes of {moment(status.st_mtime_ns)}. Restore it to continue, or start over with "
            "--overwrite once nothing writes to it"
        )


def read_a_byte(item: Input, credentials: Credentials) -> None:
    """Raise ``InputError`` if an input cannot be read on this machine, or has changed."""
    from ..text.storage.open_input import open_input

    check_same(item, credentials)
    try:
        with open_input(item.file(credentials), 0, 1) as file:
            file.read(1)
    except OSError as error:
        raise InputError(f"{item.path}: cannot be read: {error.strerror or error}") from error


def moment(ns: int) -> str:
    """Return a time as people read it, to the nanosecond.

    >>> moment(1_000_000_000_000_000_001)
    '2001-09-09 01:46:40.000000001 UTC'
    """
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
