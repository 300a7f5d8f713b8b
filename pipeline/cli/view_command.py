"""``shardwright view``: the rows of training steps as one HTML file, from the state of the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress

from .command import Command, check_output
from .flags import LocalFile
from .inspect_command import console
from .trace_command import STREAM_FLAGS, read_state, stream_of_run

DESCRIPTION = """\
Write the rows of training steps, as the model reads them, to one HTML file that needs no server and no network: documents,
origins, text with special tokens, the tokens that the loss ignores, and a search.

  %(prog)s shards --state state.json --step 12345 --global-batch 256
  %(prog)s web=shards/web wiki=shards/wiki --state state.json --step 12300 --steps 50 --global-batch 256

The state, and the steps that it reaches, are those of shardwright trace."""

FLAGS = f"""\
{STREAM_FLAGS}
--step N          first step to show, from 0
--steps N         how many steps to show
--boundaries      the run packed with boundaries=True, which no state says
--output FILE     the page"""


def run(
    dataset: list[str],
    *,
    state: Path,
    step: Annotated[int, 0],
    steps: Annotated[int, 1] = 10,
    global_batch: int | None = None,
    ranks: int = 1,
    tokenizer: str = "bytes",
    text_key: str = "text",
    without: Path | None = None,
    boundaries: bool = False,
    output: LocalFile = Path("view.html"),
    requests: RequestOptions,
) -> int:
    check_output(output, [state])
    text = {"tokenizer": tokenizer, "text_key": text_key}
    saved = read_state(state)
    stream = stream_of_run(dataset, saved, global_batch, ranks, requests, text, without, boundaries=boundaries)
    stream.view(range(step, step + steps), output, progress=Progress(quiet=not sys.stderr.isatty()))
    console.print(f"page: {output}, {output.stat().st_size / 1e6:.1f} MB", markup=False)
    return 0


COMMAND = Command(run=run, flags=FLAGS, description=DESCRIPTION, brief="DATASET --state FILE --step N --global-batch N")
