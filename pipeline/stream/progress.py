"""How far an iterator came: the place that rides with each item that it hands out, and what the items cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import StateError
from .cursors import Lanes
from .indexed.core import Core
from .loop import Marked
from .place import Mark
from .plan import Plan


class Progress:
    """How far an iterator came, and what that cost."""

    def __init__(self, mark: Mark, core: Core | Lanes | None) -> None:
        self.mark = mark
        self.items = 0
        self.tokens = 0
        self.waited = 0.0
        self.began: float | None = None
        self.ended: float | None = None
        self._core = core

    def stats(self, plan: Plan) -> dict[str, Any]:
        seconds = ((self.ended or time.perf_counter()) - self.began) if self.began is not None else 0.0
        told: dict[str, Any] = {"i": self.mark.i}
        if plan.by_cursors:
            lanes = self._core if isinstance(self._core, Lanes) else None
            counted = lanes.counts if lanes is not None else Counter[str]()
            told |= {name: counted[name] for name in ("documents", "rejected", "bad_records", "damaged_files")}
            told["bytes_read"] = lanes.bytes_read if lanes is not None else 0
            told["epoch"] = min((cursor[0] for cursor in (self.mark.lanes or {}).values()), default=0)
        else:
            core = self._core if self._core is not None else plan.core()
            assert not isinstance(core, Lanes)
            told |= {"bytes_read": core.bytes_read, "epoch": core.epoch(self.mark.i)}
            if (shares := getattr(core, "shares", None)) is not None:
                told["sources"] = shares(self.mark.i)
        return {
            "items": self.items,
            "tokens": self.tokens,
            "seconds": seconds,
            "tokens_per_second": self.tokens / seconds if seconds else 0.0,
            "waited_seconds": self.waited,
            "waited_share": self.waited / seconds if seconds else 0.0,
            **told,
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
