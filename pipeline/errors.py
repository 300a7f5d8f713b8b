"""Everything that shardwright raises on purpose.

    ShardwrightError
    ├── ConfigError            a setting that cannot work (also a ValueError)
    ├── InputError             raw input that cannot be read: file, line or byte, reason
    │   ├── DamagedInputError      the file is cut, corrupt, or lacks the wanted column
    │   └── MissingInputError      nothing has this name (also a ConfigError)
    ├── ShardError             a shard that cannot be trusted: file, member, offset
    │   ├── TruncatedShardError    the shard ends before its index says
    │   ├── CorruptShardError      its bytes contradict its own headers, index or hash
    │   └── ManifestError          the manifest is missing or unreadable, or names another shard
    │       └── MissingDatasetError    no dataset has this name (also a ConfigError and a MissingObjectError)
    ├── StateError             a saved state that belongs to another stream: field, both values
    ├── BuildError             a build that cannot continue
    │   └── PlanChangedError       input or recipe differ from the build that was started here
    └── StorageError           a remote object that could not be fetched
        └── MissingObjectError     the server has no object of this name

Every message says what was found, what follows from it, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ShardwrightError(Exception):
    """The base class of every error that this package raises on purpose."""


class ConfigError(ShardwrightError, ValueError):
    """A setting that cannot work."""


class InputError(ShardwrightError):
    """Raw input that cannot be read."""


class DamagedInputError(InputError):
    """A raw input file that is cut, corrupt or of another format than its name says. Reading it again will not help."""


class MissingInputError(InputError, ConfigError):
    """A raw input file that does not exist."""


class ShardError(ShardwrightError):
    """A shard that cannot be trusted."""


class TruncatedShardError(ShardError):
    """A shard that ends before its index, header or manifest says."""


class CorruptShardError(ShardError):
    """A shard whose bytes contradict its own headers, index or hash."""


class ManifestError(ShardError):
    """A manifest that is missing, unreadable, or does not match the shards in its directory."""


class StateError(ShardwrightError):
    """A saved state that belongs to another stream."""


class BuildError(ShardwrightError):
    """A build that cannot continue."""


class PlanChangedError(BuildError):
    """Input or recipe differ from those of the build that was started in this directory."""


class StorageError(ShardwrightError):
    """A remote object that could not be fetched."""


class MissingObjectError(StorageError):
    """A remote object that does not exist."""


class MissingDatasetError(ManifestError, MissingObjectError, ConfigError):
    """A dataset that does not exist: its name is wrong, or its build has not finished."""


def not_installed(what: str, package: str) -> ConfigError:
    """Return the error for a missing package, with the command that installs it.

    >>> not_installed("--engine ray", "ray")
    ConfigError('--engine ray needs ray, which is not installed: pip install ray')
    """
    return ConfigError(f"{what} needs {package}, which is not installed: pip install {package}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the rest is often advice for programmers."""
    return str(error).strip().partition("\n")[0]


def value_text(value: object) -> str:
    """Return a value as errors show it: its ``repr``, shortened to 60 characters, and its type.

    >>> value_text([1, 2]), len(value_text("a" * 58)), len(value_text("a" * 59)), value_text("a" * 59)[54:]
    ('[1, 2] of type list', 72, 72, 'aaa... of type str')
    """
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def first_few(values: Sequence[object], most: int = 5) -> str:
    """Return values as errors list them: the first ``most``, then "..." if there are more.

    >>> first_few(["a", "b", "c"], 2), first_few([1, 2], 2)
    ("'a', 'b', ...", '1, 2')
    """
    return ", ".join([*map(repr, values[:most]), *(["..."] if len(values) > most else [])])


def did_you_mean(name: object, known: Iterable[str], *, else_known: bool = True) -> str:
    """Return `` (did you mean 'x'?)`` if a known name is similar; else the known names, or '' without ``else_known``.

    >>> did_you_mean("gophr", ["gopher", "c4"])
    " (did you mean 'gopher'?)"
    >>> did_you_mean("zzz", ["gopher", "c4"])
    ' (known: c4, gopher)'
    """
    names = sorted(known)
    text = str(name)
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.6 if len(text) > 2 else 0.5)  # 's4' is half 's3'
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (known: {', '.join(names)})" if else_known else ""
