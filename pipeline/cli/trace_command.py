"""``shardwright trace``: what the batch of a training step was made of, from the state of the run."""

from __future__ import annotations

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.objects.request_options import RequestOptions
from pipeline.shards.dataset_folder import DatasetFolder
from pipeline.text.tokenizer.tokenizer import Tokenizer, tokenizer_of_dataset

from .command import Command, Parser, add_requests, requests_of
from .inspect_command import console

DESCRIPTION = """\
Show the documents in each row of a training step, past or future, by arithmetic.

  %(prog)s shards --state state.json --step 12345 --global-batch 256
  %(prog)s web=shards/web wiki=shards/wiki --state state.json --step 12345 --global-batch 256 --row 7 --text

The state is what stream.state_dict() gave at any step of the run, as JSON, alone or under "data" of a dict. It says how the
stream was shuffled, packed and mixed; of .documents(max_length=), .take(n) and functions it says nothing."""

EPILOG = "exit status: 0 shown; 1 an error; 2 wrong usage, or a value that cannot be used; 130 interrupted"


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(
        prog, brief="DATASET --state FILE --step N --global-batch N", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument(
        "dataset",
        nargs="+",
        metavar="DATASET",
        help="directory or url of the dataset; of a mix name=DIRECTORY, each source",
    )
    parser.add_argument("--state", required=True, metavar="FILE", type=Path, help="state of the run, as JSON")
    parser.add_argument("--step", required=True, type=int, metavar="N", help="step of the run, 0 the first")
    parser.add_argument(
        "--global-batch", required=True, type=int, metavar="N", help="rows of a step: batch size times number of ranks"
    )
    parser.add_argument("--row", type=int, metavar="N", help="show this row of the step alone, from 0")
    parser.add_argument("--text", action="store_true", help="show the text of each document, as much as the row holds")
    parser.add_argument("--json", action="store_true", help="print each row as a line of JSON")
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    requests = requests_of(options)
    state = read_state(options.state)
    shape = json.loads(state["shape"])
    folders = sources_of(options.dataset, shape)
    stream = make_stream(folders, shape, options.global_batch, requests)
    stream.load_state_dict(state)
    rows = stream.trace(options.step, with_ids=options.text)
    if options.row is not None:
        if not 0 <= options.row < len(rows):
            raise ConfigError(f"--row {options.row}: step {options.step} has the rows 0 to {len(rows) - 1}")
        rows = [rows[options.row]]
    tokenizers: dict[str, Tokenizer] = {}
    for row in rows:
        name = row.get("source", "")
        if options.text and name not in tokenizers:
            folder = DatasetFolder(folders[name], requests)
            tokenizers[name] = tokenizer_of_dataset(folder, folder.manifest())
        for span in row["documents"]:
            if options.text:
                span["text"] = tokenizers[name].decode(span.pop("ids"))
        print_row(row, as_json=options.json)
    return 0


def read_state(path: Path) -> dict[str, Any]:
    """Return the state of a file; ``StateError`` where it holds none, or one of a stream that cannot be traced."""
    try:
        state: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: no JSON ({error}); save json.dumps(stream.state_dict()) there") from error
    state = state.get("data", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not isinstance(state.get("shape"), str):
        raise StateError(f"{path}: no state of a stream; save json.dumps(stream.state_dict()) there")
    if "lanes" in state:
        raise ConfigError(
            f"{path}: a state of a sequential stream (texts, filters, best fit), whose steps are known only by reading"
        )
    return state


def sources_of(datasets: list[str], shape: dict[str, Any]) -> dict[str, str]:
    """Return the dataset of each source that a state names; that of a stream of one source is named ''."""
    wanted = sorted(shape["data"])
    if wanted == [""]:
        if len(datasets) != 1:
            raise ConfigError(f"the state is of one dataset, got {len(datasets)}: {', '.join(datasets)}")
        return {"": datasets[0]}
    named = dict(dataset.partition("=")[::2] for dataset in datasets)
    if sorted(named) != wanted:
        raise ConfigError(
            f"the state is of a mix of {', '.join(wanted)}; name the dataset of each: "
            + " ".join(f"{name}=DIRECTORY" for name in wanted)
        )
    return named


def make_stream(folders: dict[str, str], shape: dict[str, Any], global_batch: int, requests: RequestOptions) -> Any:
    """Return the stream that a state describes, as one rank reads it."""
    splits = (
        [part.rpartition(":")[2] for part in shape["split"].split("+")] if shape.get("weights") else [shape["split"]]
    )
    sources = {
        name: pipeline.ShardDataset(
            folder,
            split=None if split == "all splits" else split,
            epochs=shape["epochs"],
            tries=requests.tries,
            timeout=requests.timeout,
        )
        for (name, folder), split in zip(sorted(folders.items()), splits, strict=True)
    }
    stream: Any = sources.get("")
    if stream is None:
        [[_, weights], *_] = shape["weights"]
        exact: dict[str, Any] = {name: Fraction(share) for name, share in weights.items()}
        stream = pipeline.mix(sources, weights=exact)
    if shape["seed"] is not None:
        options: dict[str, Any] = {}
        if "lanes" in shape:
            window = shape["window"]
            stated = {*window.values()} if isinstance(window, dict) else {window}
            options = {"lanes": shape["lanes"], "window": stated.pop() if len(stated) == 1 else None}
        stream = stream.shuffle(seed=shape["seed"], **options)
    if shape["kind"] == "pack":
        stream = stream.pack(shape["seq_len"], stride=shape["stride"])
    elif shape["kind"] == "sample":
        stream = stream.sample(shape["seq_len"])
    else:
        stream = stream.documents(bucket=shape.get("bucket"))
    return stream.shard(0, 1).batch(global_batch)


def print_row(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        console.print(json.dumps(row, ensure_ascii=False), markup=False)
        return
    source = f", source {row['source']}" if "source" in row else ""
    console.print(f"row {row['row']}, sequence {row['sequence_index']:,}{source}", style="bold", markup=False)
    for span in row["documents"]:
        origin = span["origin"]
        begin, end, length = span["document_begin"], span["document_end"], span["document_tokens"]
        part = f"{length:,} tokens" if (begin, end) == (0, length) else f"tokens {begin:,} to {end:,} of {length:,}"
        where = f"{origin.get('shard', 'array')}, document {origin['document']}, {part}"
        told = [f"{name} {origin[name]}" for name in ("key", "id", "source", "url", "language") if origin.get(name)]
        if "file" in origin:
            told.append(f"{origin['file']}:{origin.get('line', '')}")
        console.print(f"  {span['row_begin']:>6}  {where}; {', '.join(told)}", markup=False)
        if "text" in span:
            console.print("\n".join(f"          | {line}" for line in span["text"].splitlines()), markup=False)


COMMAND = Command(make_parser=make_parser, run=run)
