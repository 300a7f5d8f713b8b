"""Files that are none: opening a FIFO waits for a writer, for ever where there is none."""

from __future__ import annotations

import os
import stat

_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """Return what a path is that is neither file nor directory (``"a FIFO"``); None for these and where nothing is.

    >>> special_kind("/dev/null"), special_kind("/"), special_kind("/no/such/file")
    ('a device', None, None)
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:
        return None
