"""An input file, local or remote."""

from __future__ import annotations

import os
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from ...errors import InputError
from ...objects.request_options import RequestOptions, is_version
from ...objects.urls import is_http

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A remote object as it was listed.

    ``url`` holds no secret. ``version`` (ETag, generation, or hash) changes with the contents. ``version`` and ``sha256``
    are '' if the store does not tell them.
    """

    url: str
    size: int
    version: str
    sha256: str = ""

    def difference(self, size: int, version: str) -> InputError | None:
        """Return the error if the object has another size or version than the listing, else None."""
        if size == self.size and is_version(version, self.version):
            return None
        was, now = self.version or "none", version or "none"
        return InputError(
            f"{self.url}: it changed since it was listed: {self.size:,} bytes of version {was} before, now {size:,} bytes "
            f"of version {now}. Restore it to continue, or start over with --overwrite once nothing writes to it"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The urls and options that open remote objects. They are never written to disk.

    ``urls`` maps urls without secrets to the user's urls if they differ. ``requests`` says how stores are reached.
    """

    urls: Mapping[str, str] = field(default_factory=dict)
    requests: RequestOptions = field(default_factory=RequestOptions)

    def url_of(self, stored: StoredObject) -> str:
        return self.urls.get(stored.url, stored.url)


NO_CREDENTIALS = Credentials()


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file. ``name`` is relative to the argument that named it; ``source`` is its source's name, or ''.

    ``path`` is the path on this machine, or the url of the remote file that ``stored`` describes. ``forced_format`` is the
    format that the user named; if it is '', the ending of the name decides.
    """

    path: Path | str
    name: str
    source: str = ""
    stored: StoredObject | None = None
    credentials: Credentials = field(default=NO_CREDENTIALS, repr=False, compare=False)
    forced_format: str = ""

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """The size in bytes. For a local file, it is looked up at each call."""
        return os.path.getsize(self.path) if self.stored is None else self.stored.size

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path or url, beginning with the outermost directory or the host."""
        if self.stored is None:
            return Path(self.path).absolute().parts
        return tuple(self.stored.url.partition("://")[2].split("/"))


def as_input(path: StrPath | InputFile) -> InputFile:
    """Return an ``InputFile`` unchanged, and a path as a local one."""
    return path if isinstance(path, InputFile) else InputFile(Path(path), os.fspath(path))


def with_distinct_names(files: Sequence[InputFile]) -> list[InputFile]:
    """Return files with names such as ``SOURCE/NAME``, short but distinct: equal names get parent folders in front."""
    files = _number_queries(files)
    parents = 0
    names = [_join(file.source, PurePath(file.name)) for file in files]
    deepest = max((len(file.parts) for file in files), default=0)
    while len(set(names)) < len(names) and parents < deepest:
        parents += 1
        times = Counter(names)
        names = [
            _join(file.source, PurePath(*file.parts[-len(PurePath(file.name).parts) - parents :]))
            if times[old] > 1
            else old
            for old, file in zip(names, files, strict=True)
        ]
    return [replace(file, name=name) for file, name in zip(files, names, strict=True)]


def _number_queries(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files, numbered if their urls differ only in the query: a name shows no query, which may hold secrets.

    The second ``https://host/get.jsonl`` becomes ``https://host/get.jsonl?2.jsonl``. So a renewed signature in a query
    changes no name.
    """
    known: dict[str, dict[str, int]] = {}
    numbered = []
    for file in files:
        stored, url = file.stored, "" if file.stored is None else file.credentials.url_of(file.stored)
        if stored is not None and is_http(url):
            queries = known.setdefault(stored.url, {})
            number = queries.setdefault(urllib.parse.urlsplit(url).query, len(queries) + 1)
            if number > 1:
                mark = f"?{number}{''.join(PurePath(stored.url).suffixes)}"  # with the ending that tells the format
                stored = replace(stored, url=stored.url + mark)
                credentials = Credentials({stored.url: url}, file.credentials.requests)
                file = replace(file, path=stored.url, name=file.name + mark, stored=stored, credentials=credentials)
        numbered.append(file)
    return numbered


def _join(source: str, name: PurePath) -> str:
    return "/".join(part for part in (source, name.as_posix()) if part)
