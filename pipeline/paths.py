"""Paths: how names are sorted, and which paths are pipes, sockets or devices."""

from __future__ import annotations

import os
import re
import stat

_NUMBER = re.compile(r"(\d+)")
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def natural_key(name: str) -> tuple[list[list[tuple[int, int, str]]], str]:
    """Return a sort key by which part-2 comes before part-10, and a directory's files stand together.

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


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """Return what a path is that is neither file nor directory (``"a FIFO"``); None for these and where nothing is.

    Opening a FIFO would wait for a writer, possibly for ever.

    >>> special_kind("/dev/null"), special_kind("/"), special_kind("/no/such/file")
    ('a device', None, None)
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:
        return None
