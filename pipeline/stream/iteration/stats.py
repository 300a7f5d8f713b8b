"""What an iteration counted, as a dict that prints as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Stats(dict[str, Any]):
    """Counts and times by name: plain numbers, and dicts of them, so that they are JSON.

    >>> Stats(tokens=8192, waited_share=0.012345, sources={"web": {"asked": 0.75, "epoch": 3}})
    tokens        8,192
    waited_share  0.01235
    sources
      web         asked 0.75, epoch 3
    """

    def __repr__(self) -> str:
        rows = list(_rows(self))
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in rows)


def _rows(stats: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in stats.items():
        yield name, "" if isinstance(value, dict) else _written(value)
        if isinstance(value, dict):
            yield from (("  " + inner, _written(each)) for inner, each in value.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_written(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
