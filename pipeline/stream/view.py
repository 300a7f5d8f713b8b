"""The rows of some steps as a page: text, origins, and the tokens that the loss ignores.

`trace` names the documents of each row. Ids and labels are from the reader and the collator of training. The page (view.html)
holds each step as deflated JSON in base64, so no text of a document can end a script or become a tag.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..atomic import atomic_file
from ..errors import ConfigError
from .assemble import make_collator, make_reader
from .decoding import marked, spelled, text_runs
from .order import RankStep
from .position import Position, Topology, WorkerShare
from .stream_plan import StreamPlan
from .trace import trace_steps

if TYPE_CHECKING:
    from ..progress import Progress
    from ..text.tokens.tokenizer import Tokenizer

_IGNORED, _SPECIAL = 1, 2  # kinds of tokens; their sum is both


class ViewPage(NamedTuple):
    """A page of batches in the file ``path``; a notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        page = escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 80vh; border: 0"></iframe>'


def write_view(
    plan: StreamPlan, position: Position, steps: Sequence[int], path: Path, stream: str, progress: Progress | None
) -> ViewPage:
    """Write the page of ``steps``, which ascend. ``stream`` is shown as the stream's description."""
    from jinja2 import Environment

    if not steps:
        raise ConfigError("no step to view; name one, as in stream.view(range(10), path)")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or name a file elsewhere")
    ranks = range(plan.world_size)
    traced = trace_steps(plan, position, steps, ranks, with_ids=False, progress=progress)
    tokenizer: Tokenizer | None = None
    try:
        tokenizer = plan.sources.load_tokenizer()
    except ConfigError as error:
        stream += f"\nids in place of text: {error}"
    for rank in ranks:
        for step, batch in _batches(plan, rank, position, steps):
            ids, _, counted = marked(batch, plan.layout)
            for row in traced[step]:
                if row["rank"] == rank:
                    row |= _row(row["documents"], ids[row["row"]], counted[row["row"]], tokenizer)
    title = f"Step {steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
    blocks = [(step, b64encode(zlib.compress(json.dumps(rows).encode(), 9)).decode()) for step, rows in traced.items()]
    page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    script = page.rpartition("<script>")[2].partition("</script>")[0]  # the page lets no other script run
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = Environment(autoescape=True).from_string(page)
    with atomic_file(path) as file:
        file.write(template.render(title=title, hash=digest, stream=stream, steps=blocks).encode("utf-8", "replace"))
    return ViewPage(path)


def _batches(
    plan: StreamPlan, rank: int, position: Position, steps: Sequence[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the batch of a rank in each step, as the top of this file says."""
    plain: dict[str, Any] = {"cut": None, "peer": None, "sample_stages": (), "batch_stages": (), "device": None}
    settings = replace(plan.settings, layout=replace(plan.layout, pad_to_multiple_of=1), stored=False, **plain)
    collate = make_collator(settings, plan.step_rows)
    reader: Any = make_reader(plan, position, Topology(rank, plan.world_size), WorkerShare(0, 1))
    numbers = range(position.sequence_index // plan.step_size, steps[-1] + 1) if plan.sequential else steps
    try:
        for number in numbers:
            begin, size, start = plan.passes.step(number, position)
            step = RankStep(begin, size, rank, plan.world_size, plan.rank_period, start.sequence_index)
            rows = reader.read(step)
            if number in steps:
                yield number, collate(rows, begin)
    finally:
        reader.close()


def _row(
    spans: list[dict[str, Any]], ids: NDArray[Any], counted: NDArray[np.bool_], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Return the documents of a row, each with its ``parts``: runs of tokens of one kind, as kind, number and text."""
    kinds, spell = _IGNORED * ~counted, _numbers if tokenizer is None else partial(spelled, tokenizer)
    if tokenizer is not None:
        special = np.isin(ids, list(tokenizer.special_ids.values())) | (ids >= tokenizer.vocab_size)
        kinds = kinds + _SPECIAL * special
    documents = []
    for span in spans:
        begin, end = span["row_begin"], span["row_end"]
        parts = [*text_runs(ids[begin:end], kinds[begin:end], spell)]
        place = {"first": span["document_begin"], "last": span["document_end"], "tokens": span["document_tokens"]}
        origin = {name: value for name, value in span["origin"].items() if value not in ("", None)}
        documents.append({**place, "origin": origin, "parts": parts})
    return {"documents": documents, "padding": len(ids) - (spans[-1]["row_end"] if spans else 0)}


def _numbers(ids: list[int]) -> str:
    return "".join(f"{id} " for id in ids)
