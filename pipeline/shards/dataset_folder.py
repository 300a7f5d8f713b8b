"""A dataset's directory, local or at a url, by one interface: its files, their sizes, and local copies."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, ManifestError, MissingObjectError
from ..objects.remote_object import describe, download, list_objects, read_range, read_whole
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote, local_name, shown
from ..paths import is_hidden
from .manifest import MANIFEST_NAME, FileInfo, Manifest
from .shard_names import ENDING, join

REPAIR = "copy the dataset again or rebuild it"


class DatasetFolder:
    """The files of a directory by name. ``base`` is a path or url; each call reads a remote file again."""

    def __init__(self, base: str | Path, requests: RequestOptions | None = None) -> None:
        self.remote = is_remote(os.fspath(base))
        self.base = os.fspath(base) if self.remote else local_name(os.fspath(base))
        self.requests = requests or RequestOptions()

    def path(self, name: str) -> str:
        """Return the path or url of a file; ``name`` may include one folder."""
        folder, _, plain = name.rpartition("/")
        path = join(join(self.base, folder) if folder else self.base, plain)
        return path if self.remote else os.path.normpath(path)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, None if it is missing."""
        return size_of(self.path(name), self.requests)

    def read(self, name: str) -> bytes | None:
        """Return the contents of a small file, None if it is missing."""
        path, size = self.path(name), self.size(name)
        if size is None:
            return None
        return read_range(path, 0, size, self.requests) if self.remote else Path(path).read_bytes()

    def read_named(self, info: FileInfo) -> bytes:
        """Return the contents of a file of the manifest; raises ``ManifestError`` if it is missing or a different file."""
        path = self.path(info.name)
        try:
            remote = read_whole(path, info.bytes, self.requests, info.sha256) if self.remote else None
            data = Path(path).read_bytes() if remote is None else bytes(remote)
        except (FileNotFoundError, MissingObjectError) as error:
            raise ManifestError(f"{shown(path)}: not there, but the manifest names it; {REPAIR}") from error
        except OSError as error:
            raise ManifestError(f"{shown(path)}: cannot be read: {error}") from error
        if (sha256 := hashlib.sha256(data).hexdigest()) != info.sha256:
            raise ManifestError(f"{shown(path)}: sha256 {sha256}, but the manifest says {info.sha256}; {REPAIR}")
        return data

    def describe(self, name: str, sha256: str = "") -> FileInfo:
        """Return size and hash of a file that exists. A remote file is read once more if its hash is not ``sha256``."""
        if not self.remote:
            return FileInfo.of(self.path(name), name)
        with local_copy(self.path(name), self.requests, sha256) as path:
            return FileInfo.of(path, name)

    def read_bound(self, name: str, manifest: Manifest) -> bytes | None:
        """Return the contents of a file as `read_named` does, None if the manifest does not name it.

        If the manifest names no files at all, as that of a dataset that was not built here, the file is read without a check.
        """
        if not manifest.files:
            return self.read(name)
        info = next((info for info in manifest.files if info.name == name), None)
        return None if info is None else self.read_named(info)

    def tars(self) -> list[str]:
        """Return the names of the tar files; none if the server cannot list files, as http servers cannot."""
        if not self.remote:
            return sorted(path.name for path in Path(self.base).glob(f"*{ENDING}") if not is_hidden(path.name))
        try:
            urls = list_objects(f"{self.base.rstrip('/')}/*{ENDING}", self.requests)
        except ConfigError:
            return []
        return sorted(name for name in (url.rsplit("/", 1)[1] for url in urls) if not is_hidden(name))

    def manifest(self) -> Manifest:
        """Read ``manifest.json``. Raises ``ManifestError`` as `Manifest.read` does, ``ConfigError`` if ``base`` is a file."""
        if not self.remote and os.path.isfile(self.base):
            raise ConfigError(f"{self.base} is a file; give the directory of a dataset, which holds {MANIFEST_NAME}")
        return Manifest.read(self.base, self.requests)


def size_of(path: str, requests: RequestOptions | None = None) -> int | None:
    """Return the size of a file or remote object in bytes, None if it is missing."""
    if not is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    try:
        return describe(path, requests).size
    except MissingObjectError:
        return None


@contextmanager
def local_copy(url: str, requests: RequestOptions | None = None, sha256: str = "") -> Iterator[Path]:
    """Yield a temporary copy of a remote object. If its hash is not ``sha256``, the object is downloaded once more.

    A second copy with a wrong hash is yielded, too: the caller compares hashes.
    """
    size = describe(url, requests).size
    with tempfile.TemporaryDirectory(prefix="shardwright-") as directory:
        path = Path(directory, "copy")
        download(url, path, size, requests, sha256)
        yield path


def local_directory(output: str | Path) -> Path:
    """Return the absolute path of an output, since workers may run in other directories.

    Raises ``ConfigError`` if it is no directory of this machine.
    """
    if not isinstance(output, str | os.PathLike) or not str(output):
        raise ConfigError(f"output must be the name of a directory, got {output!r}")
    try:
        os.fspath(output).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"output {str(output)!r}: the name is not UTF-8; choose another") from None
    if is_remote(str(output)):
        raise ConfigError(
            f"{output}: output must be a directory of this machine; when complete, copy it to the url, {MANIFEST_NAME} last"
        )
    path = Path(local_name(str(output))).absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{output} is a file, but the output must be a directory; choose another")
    return path
