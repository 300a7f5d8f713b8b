"""Rule files that tests write, and a text that every bundled set keeps."""

from __future__ import annotations

from pathlib import Path

PROSE = (
    "We had been walking for most of the day and the light was going when Anna saw the house. It stood apart from the "
    "others, behind a row of poplars, with a lamp in one window. Nobody answered when she knocked, so that we sat down "
    "on the step to wait. An hour later an old man came up the road, nodded, and opened the door without a word."
)


def rule_file(folder: Path, text: str, name: str = "own.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)
