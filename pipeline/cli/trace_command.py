"""``shardwright trace``: the documents of a training step, or the steps of a document, from the state of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from json import dumps, loads
from pathlib import Path
from typing import Any, Literal

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress

from .command import Command
from .inspect_command import console

DESCRIPTION = """\
Show the documents in each row of a training step, or the steps that contain a document, past or future. Or read the steps of a
log again, and name the first step and row whose data is not as logged.

  %(prog)s shards --state state.json --step 12345 --global-batch 256
  %(prog)s web=shards/web wiki=shards/wiki --state state.json --step 12345 --global-batch 256 --row 7 --text
  %(prog)s raw/*.jsonl.zst --tokenizer gpt2 --state state.json --step 12345
  %(prog)s shards --state state.json --document 000000000040 --global-batch 256
  %(prog)s shards --state state.json --receipts log.jsonl --global-batch 256

The state is the result of stream.state_dict() at any step of the run, as JSON, alone or under "data" of a dict. It holds
how the stream was shuffled, packed and mixed, but not .documents(max_length=), .take(n) and functions.

Steps of shards are computed, from any state. Streams of raw text and best fit are read from the state up to the step. So
the state must be of an earlier step and of all ranks (pipeline.merge_states). --document reads them from the beginning.

A line of a log is JSON with "step", how many steps were done then, and "receipt", stream.receipt(batch, rows=True). Several logs
are those of ranks. Labels count, and a state does not hold how they were made: write --shift, --boundaries and so on."""

EPILOG = """\
exit status: 0 shown, or all as logged; 1 an error, a step differs, or no step contains the document; 2 wrong usage, or a value
that cannot be used; 130 interrupted"""

STREAM_FLAGS = """\
DATASET...        directory or url of the dataset, or files of raw text; for a mix, name=DIRECTORY of each source
--state FILE      state of the run, as JSON
--global-batch N  rows of a step: batch size times number of ranks; not needed for raw text and best fit
--ranks N         ranks of the run; rows are numbered in each
--tokenizer NAME  tokenizer of raw text
--text-key FIELD  field of records that holds the text
--without FILE    the list of a run with .without()"""

FLAGS = f"""\
{STREAM_FLAGS}
--step N !        step of the run, from 0
--document ID !   key or id of a document, or SHARD:NUMBER: show every step, row and span that contains it
--receipts LOG... !  logs of receipts, in lines of JSON: read their steps again
--shift N         with --receipts: as .pack(shift=), also "divisors"
--boundaries      with --receipts: as .pack(boundaries=True)
--labels          with --receipts: as .pack(labels=)
--max-length N    with --receipts: as .documents(max_length=)
--steps N         with --document: the first N steps (default: those before the state)
--row N           show only this row of the step, from 0
--text            show the part of each document's text that is in the row
--json            print each row as a line of JSON"""


def run(
    dataset: list[str],
    *,
    state: Path,
    step: int | None = None,
    document: str | None = None,
    receipts: list[str] | None = None,
    steps: int | None = None,
    global_batch: int | None = None,
    ranks: int = 1,
    shift: str = "1",
    boundaries: bool = False,
    labels: Literal["next", "same"] = "next",
    max_length: int | None = None,
    tokenizer: str = "bytes",
    text_key: str = "text",
    without: Path | None = None,
    row: int | None = None,
    text: bool = False,
    json: bool = False,
    requests: RequestOptions,
) -> int:
    how = {"tokenizer": tokenizer, "text_key": text_key}
    of_rows = {"shift": int(shift) if shift.isdecimal() else shift, "boundaries": boundaries, "labels": labels}
    stream = stream_of_run(
        dataset, read_state(state), global_batch, ranks, requests, how, without, max_length=max_length, **of_rows
    )
    progress = Progress(quiet=not sys.stderr.isatty())
    if document is not None:
        spans = stream.seen(document, steps=steps, progress=progress)
        if not spans and not json:
            searched = "before the state" if steps is None else f"of the first {steps:,}"
            console.print(
                f"no step {searched} contains it; --steps N searches the first N steps of the run", markup=False
            )
        return print_seen(spans, as_json=json)
    if receipts is not None:
        return print_difference(stream, receipts, progress)
    rows = stream.trace(step, with_ids=text, progress=progress)
    if row is not None:
        if not 0 <= row < len(rows):
            raise ConfigError(f"--row {row}: step {step} has the rows 0 to {len(rows) - 1}")
        rows = [rows[row]]
    for each in rows:
        for span in each["documents"] if text else ():
            span["text"] = stream.tokenizer.decode(span.pop("ids"))
        print_row(each, as_json=json)
    return 0


def stream_of_run(
    datasets: list[str],
    state: dict[str, Any],
    global_batch: int | None,
    ranks: int,
    requests: RequestOptions,
    text: dict[str, Any],
    without: Path | None = None,
    **rows: Any,
) -> Any:
    """Return the stream of a run at a saved state.

    ``text`` are the options of a `TextDataset`, ``rows`` those of ``pack`` and ``documents`` that no state holds. ``without``
    lists the masked documents.
    """
    shape = loads(state["shape"])
    named = sources_of(datasets, shape)
    global_batch = shape.get("global_batch", global_batch)
    if global_batch is None:
        raise ConfigError("--global-batch is missing: the rows of a step, batch size times number of ranks of the run")
    if ranks < 1 or global_batch % ranks:
        raise ConfigError(f"--ranks {ranks} do not share a global batch of {global_batch} rows equally")
    stream = make_stream(named, shape, global_batch, ranks, requests, text, rows)
    stream = stream if without is None else stream.without(without, reason=f"listed in {without}")
    stream.load_state_dict(state)
    return stream


def seen_in_run(
    dataset: str, path: Path, global_batch: int | None, ranks: int, requests: RequestOptions, what: str
) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
    """Return a function from documents of ``dataset``, as SHARD:NUMBER, to their spans in the run of a saved state.

    A run has no span of a document of a split that it does not read. ``what`` names the work of the caller, for the error: raises
    ``ConfigError`` if the run was a mix, whose sources may share keys.
    """
    state = read_state(path)
    shape = loads(state["shape"])
    names, split = sorted(shape["data"]), shape["split"].partition(",")[0]
    if names != [""]:
        raise ConfigError(
            f"--state {path}: a run of a mix of {', '.join(names)}; {what} without it. Then name the steps of each key: "
            "shardwright trace NAME=DATASET ... --state FILE --document KEY"
        )
    # Where documents are does not depend on what is masked or inserted.
    plain = {field: value for field, value in shape.items() if field not in ("without", "insert")}
    stream = stream_of_run([dataset], state | {"shape": dumps(plain)}, global_batch, ranks, requests, {})

    def seen(documents: Sequence[str]) -> list[dict[str, Any]]:
        read = [each for each in documents if split in ("all splits", each.rpartition("-")[0])]
        return list(stream.seen(read))

    return seen


def read_state(path: Path) -> dict[str, Any]:
    """Return the state in a file. Raises ``StateError`` if it holds none, or if its stream cannot be traced."""
    try:
        state: Any = loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: not JSON ({error}); save json.dumps(stream.state_dict()) there") from error
    state = state.get("data", state) if isinstance(state, dict) else state
    shape: Any = None
    with suppress(TypeError, KeyError, ValueError):
        shape = loads(state["shape"])
    if not isinstance(shape, dict) or not isinstance(shape.get("data"), dict):
        raise StateError(f"{path}: no state of a stream; save json.dumps(stream.state_dict()) there")
    return dict(state)


def sources_of(datasets: list[str], shape: dict[str, Any]) -> dict[str, list[str]]:
    """Return the dataset or files of each source in a state. The name is '' for a stream of one source."""
    wanted = sorted(shape["data"])
    if wanted == [""]:
        if len(datasets) != 1 and shape["split"] != "text":
            raise ConfigError(f"the state belongs to one dataset, got {len(datasets)}: {', '.join(datasets)}")
        return {"": datasets}
    named = {name: [dataset] for name, _, dataset in (dataset.partition("=") for dataset in datasets)}
    if sorted(named) != wanted or len(named) < len(datasets):
        raise ConfigError(
            f"the state belongs to a mix of {', '.join(wanted)}; name the dataset of each source: "
            + " ".join(f"{name}=DIRECTORY" for name in wanted)
        )
    return named


def make_stream(
    named: dict[str, list[str]],
    shape: dict[str, Any],
    global_batch: int,
    ranks: int,
    requests: RequestOptions,
    text: dict[str, Any],
    rows: dict[str, Any],
) -> Any:
    """Return the stream that a state describes, for the first of ``ranks``. ``text`` and ``rows`` are as in `stream_of_run`."""
    if functions := [*shape.get("filters", []), *shape.get("document_maps", [])]:
        raise ConfigError(
            f"the state belongs to a stream with functions ({', '.join(functions)}), which no state holds: make the stream in "
            "Python, and call stream.load_state_dict(state) and stream.trace(step)"
        )
    splits = (
        [part.rpartition(":")[2] for part in shape["split"].split("+")] if shape.get("weights") else [shape["split"]]
    )
    options: dict[str, Any] = {"tries": requests.tries, "timeout": requests.timeout}
    sources: dict[str, Any] = {}
    for (name, paths), split in zip(sorted(named.items()), splits, strict=True):
        what: Any = paths if len(paths) > 1 else paths[0]
        if split == "text":
            sources[name] = pipeline.TextDataset(what, epochs=shape["epochs"], **text, **options)
        else:
            split, _, upsampled = split.partition(", upsampled by ")
            split, *parts = split.split(", ")
            data: Any = pipeline.ShardDataset(
                what, split=None if split == "all splits" else split, epochs=shape["epochs"], **options
            )
            for part in parts:  # as "val=0.1", "without val=0.1" or "subset=1/16"
                kind, _, share = part.partition("=")
                drawn = Fraction(share)
                data = data.subset(drawn) if kind == "subset" else data.split(val=drawn)[int(kind == "val")]
            by, _, times = upsampled.rpartition(" ")
            sources[name] = data.upsample(by, [int(each) for each in times.split(",")]) if upsampled else data
    stream: Any = sources.get("")
    if stream is None:
        weights = shape["weights"]
        exact: Any = pipeline.Schedule.from_json(weights) if isinstance(weights, dict) else changes(weights)
        stream = pipeline.mix(sources, weights=exact)
    if shape["seed"] is not None:
        lanes = {"lanes": shape["lanes"], "window": stated_window(shape["window"])} if "lanes" in shape else {}
        stream = stream.shuffle(seed=shape["seed"], **lanes)
    of_kind = ("max_length", "labels") if shape["kind"] == "documents" else ("shift", "boundaries", "labels")
    rows = {name: rows[name] for name in of_kind if name in rows}
    if shape["kind"] == "pack":
        packed = {"best_fit": True} if shape.get("best_fit") else {"stride": shape["stride"]}
        stream = stream.pack(shape["seq_len"], **packed, **rows)
    elif shape["kind"] == "sample":
        stream = stream.sample(shape["seq_len"], **rows)
    else:
        stream = stream.documents(bucket=shape.get("bucket"), **rows)
    return stream.shard(0, ranks).batch(global_batch // ranks)


def changes(weights: list[Any]) -> list[Any]:
    """Return the weights of a mix in a state, each with the global sequence from which they hold."""
    return [(begin, {name: Fraction(share) for name, share in shares.items()}) for begin, shares in weights]


def stated_window(window: Any) -> int | None:
    """Return the window that the user set, from a state; None if each source's window follows from its data.

    A state of text holds "8 blocks" if the user set it, else null. A state of shards always holds a number.
    """
    windows = {*window.values()} if isinstance(window, dict) else {window}
    of_text = windows - {one for one in windows if isinstance(one, int)}
    found = (of_text or windows).pop() if len(of_text or windows) == 1 else None
    return int(found.removesuffix(" blocks")) if isinstance(found, str) else found


def print_difference(stream: Any, logs: list[str], progress: Progress) -> int:
    """Print the first step and row of logs whose data differs; return the exit status: 0 if none does, else 1."""
    count, found = stream.check_receipts(*logs, progress=progress)
    if found is None:
        console.print(f"all {count:,} steps have the logged receipt", markup=False)
        return 0
    logged, expected = (receipt.partition(":")[0] for receipt in (found.logged, found.expected))
    console.print(
        f"step {found.step:,} ({found.step_of_log:,} in the log) differs: {logged} was logged, the data has {expected}; "
        f"{count:,} steps before it have the logged receipt",
        markup=False,
    )
    rows = sorted(stream.trace(found.step), key=lambda row: row["sequence_index"])
    known = [row for row in found.rows if row < len(rows)]
    console.print(
        f"{len(known):,} of {len(rows):,} rows are not in the log" + "; the first is" * bool(known), markup=False
    )
    for row in known[:1]:
        print_row(rows[row], as_json=False)
    return 1


def print_seen(spans: list[dict[str, Any]], *, as_json: bool) -> int:
    """Print each span of a document; return the exit status: 0, or 1 if there is none."""
    for span in spans:
        if as_json:
            console.print(dumps(span, ensure_ascii=False), markup=False)
            continue
        row = f"step {span['step']:,}, rank {span['rank']}, row {span['row']}"
        part = f"tokens {span['document_begin']:,} to {span['document_end']:,} of {span['document_tokens']:,}"
        key = span["origin"].get("key") or span["origin"].get("id") or span["origin"].get("document")
        source = f"{span['source']}: " if "source" in span else ""
        console.print(
            f"{row}, tokens {span['row_begin']:,} to {span['row_end']:,}: {source}{key}, {part}", markup=False
        )
    return 0 if spans else 1


def print_row(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        console.print(dumps(row, ensure_ascii=False), markup=False)
        return
    source = f", source {row['source']}" if "source" in row else ""
    rank = f"rank {row['rank']}, " if row["rank"] else ""
    console.print(f"{rank}row {row['row']}, sequence {row['sequence_index']:,}{source}", style="bold", markup=False)
    for span in row["documents"]:
        origin = span["origin"]
        begin, end, length = span["document_begin"], span["document_end"], span["document_tokens"]
        part = f"{length:,} tokens" if (begin, end) == (0, length) else f"tokens {begin:,} to {end:,} of {length:,}"
        where = (
            f"{origin.get('shard', 'array')}, document {origin['document']}, {part}" if "document" in origin else part
        )
        details = [f"{name} {origin[name]}" for name in ("key", "id", "source", "url", "language") if origin.get(name)]
        if "file" in origin:
            details.append(
                f"{origin['file']}:{origin['line']}" if "line" in origin else f"{origin['file']}, byte {origin['byte']}"
            )
        console.print(f"  {span['row_begin']:>6}  {where}; {', '.join(details)}", markup=False)
        if "text" in span:
            console.print("\n".join(f"          | {line}" for line in span["text"].splitlines()), markup=False)


COMMAND = Command(
    run=run,
    flags=FLAGS,
    description=DESCRIPTION,
    epilog=EPILOG,
    brief="DATASET --state FILE --step N|--document ID|--receipts LOG --global-batch N",
)
