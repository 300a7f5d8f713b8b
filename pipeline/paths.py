"""Paths: the order of names, the files that a folder or pattern leaves out, and paths of pipes, sockets or devices.

Texts and shards have one rule. A folder or pattern skips hidden files and folders, and reads a file once even if links
point to it; one warning counts the files left out. A file that is named twice is an error.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Sequence

WILDCARD = re.compile(r"[*?\[]")
_NUMBER = re.compile(r"(\d+)")
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def natural_key(name: str) -> tuple[list[list[tuple[int, int, str]]], str]:
    """Return a sort key that puts part-2 before part-10, and the files of a directory next to each other.

    >>> sorted(["a/part-10", "a/part-2", "a-b/1"], key=natural_key)
    ['a/part-2', 'a/part-10', 'a-b/1']
    >>> sorted(["a10", "a9", "a009"], key=natural_key)
    ['a009', 'a9', 'a10']
    """
    parts = [
        [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in _NUMBER.split(part) if piece]
        for part in name.split("/")
    ]
    return parts, name


def is_hidden(name: str) -> bool:
    """Whether a part of a relative path is hidden: it begins with a dot, or is macOS's ``__MACOSX``.

    Programs put hidden files such as ``.ipynb_checkpoints/`` and ``._a.tar`` beside data. Folders and patterns skip them. A
    hidden file or folder is read if the user names it.

    >>> is_hidden("a/.snapshot/b.jsonl"), is_hidden("._a.tar"), is_hidden("__MACOSX/b.txt"), is_hidden("../a/b.c")
    (True, True, True, False)
    """
    return any(part == "__MACOSX" or (part.startswith(".") and part not in (".", "..")) for part in name.split("/"))


def literal_root(pattern: str) -> str:
    """Return the folders at the beginning of a pattern that exist by these very names: their braces and stars are no signs.

    >>> literal_root("/tmp/{a,b}/*.tar"), literal_root("*.tar")
    ('/tmp/', '')
    """
    end = 0
    while (slash := pattern.find("/", end)) >= 0 and os.path.isdir(pattern[: slash + 1]):
        end = slash + 1
    return pattern[:end]


def glob_root(pattern: str) -> str:
    """Return the folders before the first wildcard of a path or url, with the last slash."""
    match = WILDCARD.search(pattern, len(literal_root(pattern)))
    return pattern[: pattern.rfind("/", 0, match.start() if match else len(pattern)) + 1]


def has_wildcard(path: str) -> bool:
    """Whether a local path is a pattern: no file or folder has this very name, and a wildcard is after its existing folders."""
    return not os.path.lexists(path) and WILDCARD.search(path, len(literal_root(path))) is not None


def matching(pattern: str) -> list[str]:
    """Return the local paths that a pattern matches, in natural order."""
    root = literal_root(pattern)
    return sorted(glob.glob(glob.escape(root) + pattern[len(root) :], recursive=True), key=natural_key)


def real_paths(paths: Iterable[str]) -> list[str]:
    """Return absolute paths without links: two spellings of a file have equal paths, and so have a link and its target."""
    folders: dict[str, str] = {}
    resolved = []
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.join(folders[folder], name)
        resolved.append(os.path.realpath(real) if os.path.islink(real) else real)
    return resolved


def read_once(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files of a folder or pattern to read, and the links to these files."""
    real = real_paths(paths)
    if len(set(real)) == len(real):
        return list(paths), []
    first: dict[str, str] = {}
    for path, target in sorted(zip(paths, real, strict=True), key=lambda pair: os.path.islink(pair[0])):
        first.setdefault(target, path)
    chosen = {*first.values()}
    return [path for path in paths if path in chosen], [path for path in paths if path not in chosen]


def named_twice(names: Sequence[str], identities: Sequence[str]) -> str | None:
    """Return a message about the first file that has two of the names (their ``identities`` are equal); None without one.

    >>> named_twice(["a.tar", "./a.tar"], ["/data/a.tar", "/data/a.tar"])
    'a.tar is named twice (also as ./a.tar); its documents would be read twice; name it once'
    """
    first: dict[str, str] = {}
    for name, identity in zip(names, identities, strict=True):
        if identity in first:
            also = f" (also as {name})" if name != first[identity] else ""
            return f"{first[identity]} is named twice{also}; its documents would be read twice; name it once"
        first[identity] = name
    return None


def shortened(names: Sequence[str], most: int = 10) -> str:
    """Return the first ``most`` names and the number of the others as text.

    >>> shortened(["a", "b", "c"], 2), shortened(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """Return ``"a FIFO"``, ``"a socket"`` or ``"a device"``; None for a file, a directory or a missing path.

    Opening a FIFO would wait for a writer, possibly for ever.

    >>> special_kind("/dev/null"), special_kind("/"), special_kind("/no/such/file")
    ('a device', None, None)
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:
        return None
