"""Commands that run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.cli.main import main

# Runs a command, requires its exit status and, with ``shows``, a text that it prints; returns what it printed:
# ``says(2, "card", tmp_path).err``.
Says = Callable[..., "pytest.CaptureResult[str]"]


def says_by(capsys: pytest.CaptureFixture[str]) -> Says:
    def says(status: int, *arguments: object, shows: str = "") -> pytest.CaptureResult[str]:
        capsys.readouterr()
        try:
            ended = main([*map(str, arguments)])
        except SystemExit as end:  # of the parser
            ended = int(end.code or 0)
        printed = capsys.readouterr()
        assert ended == status, printed
        assert shows in printed.out + printed.err
        return printed

    return says
