"""``shardwright plan``: what a run of a mix will read from each source."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from json import dumps
from pathlib import Path
from typing import Any, Literal

import pipeline
from pipeline.errors import ConfigError
from pipeline.objects.request_options import RequestOptions

from .command import Command

DESCRIPTION = """\
Show what a run of a mix will read: rows, tokens and epochs of each source, and where a source begins its second pass.

  %(prog)s web=shards/web:0.9 wiki=shards/wiki:0.1 --tokens 10e9
  %(prog)s web=shards/web wiki=shards/wiki --schedule run.toml --tokens 10e9
  %(prog)s web=shards/web:0.9 wiki=shards/wiki:0.1 --tokens 10e9 --max-epochs wiki=4

The file of --schedule has the arguments of pipeline.Schedule, in a table [weights] or without one. Without "unit",
positions are shares of --tokens:

  linear = true
  points = [[0, {web = 0.9, wiki = 0.1}], [0.8, {web = 0.9, wiki = 0.1}], [1, {web = 0.5, wiki = 0.5}]]

Only manifests and tables of shards are read, no tokens."""

EPILOG = (
    "exit status: 0 shown; 1 an error; 2 wrong usage, a value that cannot be used, or an exceeded cap; 130 interrupted"
)

FLAGS = """\
NAME=DATASET:WEIGHT...  a source: directory or url of a dataset, and its share
--tokens N              tokens of the run, as 10e9
--schedule FILE         TOML file of weights that change over the run
--split                 split of each dataset
--rows                  what a row is
--seq-len N             tokens of a row
--seed N                seed of the shuffle
--max-epochs NAME=N...  read a source at most N times
--on-cap                if a source exceeds --max-epochs: end and name weights that fit, or plan with these
--json                  print the plan as JSON"""


def run(
    dataset: list[str],
    *,
    tokens: float,
    schedule: Path | None = None,
    split: str = "train",
    rows: Literal["packed", "best-fit", "documents"] = "packed",
    seq_len: int = 2048,
    seed: int = 0,
    max_epochs: list[str] | None = None,
    on_cap: Literal["refuse", "renormalize"] = "refuse",
    json: bool = False,
    requests: RequestOptions,
) -> int:
    form, wanted = r"([^=]+)=(.+):(\d*\.?\d+)", "NAME=DATASET:WEIGHT, as web=shards/web:0.9"
    if schedule:
        form, wanted = r"([^=]+)=(.+)", "NAME=DATASET, as web=shards/web"
    parts = []
    for what in dataset:
        if (match := re.fullmatch(form, what)) is None:
            raise ConfigError(f"{what}: a source is {wanted}")
        parts.append(match.groups())
    if twice := [name for name, times in Counter(name for name, *_ in parts).items() if times > 1]:
        raise ConfigError(f"two sources are named {twice[0]!r}; give each its own name")
    weights: Any = read_schedule(schedule, tokens) if schedule else {name: float(weight) for name, _, weight in parts}
    settings: dict[str, Any] = {"tries": requests.tries, "timeout": requests.timeout}
    sources = {name: pipeline.ShardDataset(what, split, **settings) for name, what, *_ in parts}
    mixed = pipeline.mix(sources, weights).shuffle(seed=seed)
    stream = mixed.documents() if rows == "documents" else mixed.pack(seq_len, best_fit=rows == "best-fit")
    plan = stream.plan(tokens, max_epochs=dict(map(cap, max_epochs or ())), on_cap=on_cap)
    print(dumps(plan.to_json(), ensure_ascii=False) if json else plan)
    return 0


def read_schedule(path: Path, tokens: float) -> pipeline.Schedule:
    """Return the weights in the file of ``--schedule``; without a unit, positions are shares of ``--tokens``."""
    try:
        values = tomllib.loads(path.read_text())
        values = dict(values.get("weights", values))
        if "unit" not in values:
            values |= {"unit": "shares", "tokens": tokens}
        return pipeline.Schedule(values.pop("points", None), **values)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"--schedule {path}: {error}") from error


def cap(text: str) -> tuple[str, float]:
    """Return the source and the number of ``NAME=N``."""
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ConfigError(f"--max-epochs {text}: write NAME=N, as wiki=4") from None


COMMAND = Command(
    run=run, flags=FLAGS, brief="NAME=DATASET:WEIGHT ... --tokens N", description=DESCRIPTION, epilog=EPILOG
)
