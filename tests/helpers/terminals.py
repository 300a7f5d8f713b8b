"""Commands that run with a terminal as their stderr."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress


def on_terminal(command: Sequence[str]) -> list[str]:
    """Run a command whose stderr is a terminal, and return the lines that were drawn there, without their colours."""
    terminal, end = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env={**os.environ, "TERM": "xterm"}) as running:
        os.close(end)
        drawn = bytearray()
        with suppress(OSError), open(terminal, "rb", buffering=0) as reader:  # Linux ends with EIO
            while part := reader.read(1 << 16):
                drawn += part
        assert running.stdout is not None
        printed = running.stdout.read().decode()
    shown = drawn.decode(errors="replace")
    assert running.returncode == 0, shown + printed
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
