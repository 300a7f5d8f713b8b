"""Files that a recipe or a rule names: the path of each, and the hash of its contents when the build was planned."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.errors import BuildError, ConfigError


@dataclass(frozen=True, slots=True)
class NamedFile:
    """An absolute path, and the size, time and sha256 of the file when it was first read."""

    path: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def read(cls, path: str | Path) -> NamedFile:
        """Return the entry of a file, which is hashed. Raises ``ConfigError`` if it cannot be read or changes meanwhile."""
        try:
            before, digest, after = os.stat(path), hash_file(path), os.stat(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise ConfigError(f"{path}: it changed while it was read; run the build once nothing writes to it")
        return cls(str(Path(path).absolute()), after.st_size, after.st_mtime_ns, digest)

    @property
    def name(self) -> str:
        """The name without the folder."""
        return Path(self.path).name

    def checked(self) -> Path:
        """Return the path. Raises ``BuildError`` with both hashes if the file has changed."""
        try:
            status = os.stat(self.path)
            same = (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)
            now = self.sha256 if same else hash_file(self.path)
        except OSError as error:
            raise BuildError(f"{self.path}: cannot be read: {error.strerror}; restore it to go on") from error
        if now != self.sha256:
            raise BuildError(
                f"{self.path}: it changed during the build: its sha256 was {self.sha256}, now it is {now}. Restore it "
                "to go on, or start over with --overwrite"
            )
        return Path(self.path)

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)


def hash_file(path: str | Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
