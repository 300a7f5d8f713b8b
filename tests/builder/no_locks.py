"""Runs a Python program in a process whose kernel refuses record locks, as file systems without locks do.

python -m tests.builder.no_locks ENOSYS PROGRAM [ARGUMENT...]

A seccomp filter answers ``fcntl(F_SETLK)`` with the error, so the program meets what it meets on Lustre or NFS.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import runpy
import struct
import sys

_FCNTL = {"x86_64": 72, "aarch64": 25}  # the number of the system call
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_F_SETLK, _F_SETLKW = 6, 7
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def possible() -> bool:
    """Whether this machine has such filters."""
    return sys.platform == "linux" and platform.machine() in _FCNTL


def refuse_locks(error: int) -> None:
    """Let every record lock that this process asks for from now on fail with ``error``."""
    program = [
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_EQUAL, 0, 4, _FCNTL[platform.machine()]),
        (_LOAD, 0, 0, 24),  # its second argument
        (_JUMP_IF_EQUAL, 1, 0, _F_SETLK),
        (_JUMP_IF_EQUAL, 0, 1, _F_SETLKW),
        (_RETURN, 0, 0, _ERRNO | error),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    given = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _MODE_FILTER, given):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    refuse_locks(getattr(errno, sys.argv[1]))
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
