"""``shardwright plan``: what a run of a mix will read from each source."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pipeline
from pipeline.errors import ConfigError

from .command import Command, Parser, add_requests, requests_of

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


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="NAME=DATASET:WEIGHT ... --tokens N", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "dataset",
        nargs="+",
        metavar="NAME=DATASET:WEIGHT",
        help="a source: directory or url of a dataset, and its share",
    )
    parser.add_argument("--tokens", required=True, type=float, metavar="N", help="tokens of the run, as 10e9")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="TOML file of weights that change over the run")
    parser.add_argument("--split", default="train", help="split of each dataset (default: train)")
    parser.add_argument(
        "--rows", choices=("packed", "best-fit", "documents"), default="packed", help="what a row is (default: packed)"
    )
    parser.add_argument("--seq-len", type=int, default=2048, metavar="N", help="tokens of a row (default: 2048)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the shuffle (default: 0)")
    parser.add_argument("--max-epochs", nargs="+", default=[], metavar="NAME=N", help="read a source at most N times")
    parser.add_argument(
        "--on-cap",
        choices=("refuse", "renormalize"),
        default="refuse",
        help="if a source exceeds --max-epochs: end and name weights that fit, or plan with these (default: refuse)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    requests = requests_of(options)
    form, wanted = r"([^=]+)=(.+):(\d*\.?\d+)", "NAME=DATASET:WEIGHT, as web=shards/web:0.9"
    if options.schedule:
        form, wanted = r"([^=]+)=(.+)", "NAME=DATASET, as web=shards/web"
    parts = []
    for what in options.dataset:
        if (match := re.fullmatch(form, what)) is None:
            raise ConfigError(f"{what}: a source is {wanted}")
        parts.append(match.groups())
    if twice := [name for name, times in Counter(name for name, *_ in parts).items() if times > 1]:
        raise ConfigError(f"two sources are named {twice[0]!r}; give each its own name")
    weights: Any = schedule(options) if options.schedule else {name: float(weight) for name, _, weight in parts}
    settings: dict[str, Any] = {"tries": requests.tries, "timeout": requests.timeout}
    sources = {name: pipeline.ShardDataset(what, options.split, **settings) for name, what, *_ in parts}
    mixed = pipeline.mix(sources, weights).shuffle(seed=options.seed)
    stream = (
        mixed.documents()
        if options.rows == "documents"
        else mixed.pack(options.seq_len, best_fit=options.rows == "best-fit")
    )
    plan = stream.plan(options.tokens, max_epochs=dict(map(cap, options.max_epochs)), on_cap=options.on_cap)
    print(json.dumps(plan.to_json(), ensure_ascii=False) if options.json else plan)
    return 0


def schedule(options: argparse.Namespace) -> pipeline.Schedule:
    """Return the weights in the file of ``--schedule``; without a unit, positions are shares of ``--tokens``."""
    try:
        values = tomllib.loads(options.schedule.read_text())
        values = dict(values.get("weights", values))
        if "unit" not in values:
            values |= {"unit": "shares", "tokens": options.tokens}
        return pipeline.Schedule(values.pop("points", None), **values)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"--schedule {options.schedule}: {error}") from error


def cap(text: str) -> tuple[str, float]:
    """Return the source and the number of ``NAME=N``."""
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ConfigError(f"--max-epochs {text}: write NAME=N, as wiki=4") from None


COMMAND = Command(make_parser=make_parser, run=run)
