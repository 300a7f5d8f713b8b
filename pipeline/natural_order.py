"""The order of names: by the values of the numbers in them, folder by folder."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(\d+)")


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
