"""How far an iterator came: the place that rides with each item that it hands out, and what the items cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import StateError
from .loop import Marked
from .place import Mark
from .plan import Plan
from .sequences import Core


class Progress:
    """How far an iterator came, and what that cost."""

    def __init__(self, mark: Mark, core: Core | None) -> None:
        self.mark = mark
        self.items = 0
        self.tokens = 0
        self.waited = 0.0
        self.began: float | None = None
        self.ended: float | None = None
        self._core = core

    def stats(self, plan: Plan) -> dict[str, Any]:
        seconds = ((self.ended or time.perf_counter()) - self.began) if self.began is not None else 0.0
        core = self._core or plan.core(dense=False)
        shares = getattr(core, "shares", None)
        return {
            **({"sources": shares(self.mark.i)} if shares else {}),
            "items": self.items,
            "tokens": self.tokens,
            "seconds": seconds,
            "tokens_per_second": self.tokens / seconds if seconds else 0.0,
            "waited_seconds": self.waited,
            "waited_share": self.waited / seconds if seconds else 0.0,
            "bytes_read": core.bytes_read,
            "i": self.mark.i,
            "epoch": core.epoch(self.mark.i),
        }


class StreamIterator:
    """Hands out items, having noted the place that rides with each."""

    def __init__(self, items: Iterator[Marked], progress: Progress, workers: int) -> None:
        self.progress = progress
        self.overtaken_by: str | None = None
        self._items = items
        self._skip = workers - 1

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        progress = self.progress
        begin = time.perf_counter()
        if progress.began is None:
            if self.overtaken_by is not None:
                raise StateError(f"this iterator was made before {self.overtaken_by}; call iter() again")
            progress.began = begin
        try:
            mark, item = next(self._items)
        except BaseException:
            progress.ended = time.perf_counter()
            raise
        progress.mark = replace(mark, skip=self._skip) if self._skip else mark
        progress.items += 1
        if isinstance(item, dict):
            progress.tokens += item.get("valid_tokens", 0)
        progress.waited += time.perf_counter() - begin
        return item
