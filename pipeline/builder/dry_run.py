"""A dry run: builds a sample in a temporary folder, and estimates what the whole build would take. It writes nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..atomic import read_json
from ..errors import InputError
from ..objects.request_options import RequestOptions
from ..progress import Progress
from ..shards.manifest import Manifest
from ..text.discovery import evenly
from ..text.readers.document_reader import Document, DocumentReader, field_finder
from ..text.storage.input_file import InputFile
from ..text.storage.remote_file import FIRST_BYTES
from .build import build
from .build_manifest import RUN_NAME
from .build_tokenizer import resolve_tokenizer
from .counts.build_stats import BuildStats
from .counts.sums import descending
from .limits import Limits
from .output_directory import workspace_of
from .plan import Plan, make_plan
from .recipe import Recipe

SAMPLE_DOCUMENTS = 1_000
SAMPLE_FILES = 64
MEASURED_BYTES = 4 << 20  # read of each file, at least, to learn how many characters its bytes hold
MEASURED_FILES = 16
CHARACTERS_PER_TOKEN = 4.2  # of a tokenizer that is yet to be trained: English with a vocabulary of 32,000
BYTES_PER_DOCUMENT = 600  # of signatures, tables and tar headers
WORK_BYTES_PER_CHARACTER = 1.1  # of the partitions, while the build runs
OTHER_STAGES = 1.5  # the seconds of a whole build for each second of filtering and encoding
START_SECONDS = 5.0  # to load libraries, models and compiled code


def preview(
    specs: Sequence[str],
    recipe: Recipe,
    output: str | Path | None = None,
    *,
    workers: int | None = None,
    requests: RequestOptions | None = None,
) -> None:
    """Print what a build would read, the outcomes of the first records of its files, and the tokens, disk and time of the whole.

    Everything that the recipe names is loaded, so the errors of the build are raised here.
    """
    outputs = () if output is None else workspace_of(output, None, requests or RequestOptions()).outputs
    plan = make_plan(specs, recipe, outputs=outputs, requests=requests)
    size = sum(item.size for item in plan.inputs)
    print(f"{len(plan.inputs)} input files, {size / 1e6:,.1f} MB, {len(plan.units)} units of work")
    files = evenly([item.file(plan.credentials, recipe.format) for item in plan.inputs], SAMPLE_FILES)
    manifest, seconds = _build_sample(files, recipe, plan.credentials.requests)
    counts = BuildStats.from_json(manifest.counts)
    outcomes = {
        "kept": counts.kept,
        **counts.dropped,
        **{f"{kind} duplicate": n for kind, n in counts.duplicates.items()},
    }
    outcomes |= {f"unreadable: {reason}": number for reason, number in counts.bad.items()}
    total = sum(outcomes.values())
    of = f" from {len(files)} files" if len(files) < len(plan.inputs) else ""
    print(f"of a sample of {total:,} records{of}:")
    for reason, number in descending(outcomes):
        if number:
            print(f"{number:>8,}  {number / max(1, total):6.1%}  {reason}")
    if counts.characters:
        _print_expectations(plan, files, counts, seconds, workers or os.cpu_count() or 1)
    if recipe.dedup or recipe.segment_kinds:
        print("not foreseen: further duplicates, which only the whole input shows")
    print("nothing was written")


def _build_sample(files: Sequence[InputFile], recipe: Recipe, requests: RequestOptions) -> tuple[Manifest, float]:
    """Build the first records of some files; return the manifest, and the seconds of filtering and encoding."""
    resolve_tokenizer(recipe)
    sample = replace(
        recipe, limit=None, max_tokens=(), license=(), on_error="skip", max_errors=1 << 60, keep_rejected=False
    )
    if recipe.vocab_size is not None:  # a sample is too small to train a tokenizer on
        sample = replace(sample, tokenizer="bytes", eos="always", special_tokens=(), reserve=0)
    limits = Limits(
        file_records=-(-SAMPLE_DOCUMENTS // len(files)), smallest_unit_bytes=1 << 60, unit_bytes=1 << 60, most_lanes=1
    )
    with TemporaryDirectory(prefix="shardwright-") as folder:
        output, quiet, tries, timeout = Path(folder, "sample"), Progress(quiet=True), requests.tries, requests.timeout
        manifest = build(files, output, sample, limits=limits, progress=quiet, tries=tries, timeout=timeout)
        seconds = read_json(output / RUN_NAME)["seconds"]
    return manifest, seconds["ingest"] + seconds["tokenize"]


def _measure(files: Sequence[InputFile], recipe: Recipe) -> tuple[int, int, int]:
    """Return the characters, documents and bytes that were read at the beginnings of some files."""
    characters = documents = size = 0
    for file in evenly(files, MEASURED_FILES):
        reader = DocumentReader(
            file,
            text_key=recipe.text_key,
            where=recipe.condition,
            first_bytes=FIRST_BYTES,
            until=MEASURED_BYTES,
            warns=False,
            elsewhere=field_finder(partial(iter, files), {}),
        )
        records = iter(reader)
        with suppress(InputError):  # the build names the damage
            while reader.bytes_read < MEASURED_BYTES and (record := next(records, None)) is not None:
                if isinstance(record, Document):
                    characters += len(record.text)
                    documents += 1
        size += reader.bytes_read
    return characters, documents, size


def _print_expectations(
    plan: Plan, files: Sequence[InputFile], sample: BuildStats, seconds: float, workers: int
) -> None:
    """Print the tokens, the disk space and the time that the whole build is expected to take."""
    recipe = plan.recipe
    characters, documents, size = _measure(files, recipe)
    if not size or not documents:
        return
    whole = sum(item.size for item in plan.inputs) / size  # in multiples of the measured bytes
    if recipe.limit is not None:
        whole = min(whole, recipe.limit / documents)
    read, number = characters * whole, documents * whole
    trained = recipe.vocab_size is not None
    width = 2 if (recipe.vocab_size or 0) <= 1 << 16 else 4
    kept = sample.kept_characters / CHARACTERS_PER_TOKEN if trained else sample.tokens
    tokens = read * kept / sample.characters
    quota = sum(recipe.quota(source) for source in {item.source for item in plan.inputs})
    if tokens > quota:  # no more is read
        read, number, tokens = (value * quota / tokens for value in (read, number, tokens))
    result = tokens * width + number * BYTES_PER_DOCUMENT * sample.kept / max(1, sample.read)
    work = read * sample.kept_characters / sample.characters * WORK_BYTES_PER_CHARACTER
    work *= 2 if recipe.segment_kinds else 1  # the texts before and after lines are cut
    work += tokens * width  # encoded before the shards are written
    spent = START_SECONDS + OTHER_STAGES * seconds * read / sample.characters / workers
    about = f" (at {CHARACTERS_PER_TOKEN} characters a token: it is not trained yet)" if trained else ""
    print("expected of the whole input, from this sample:")
    print(f"  tokens   about {_short(tokens)}{about}, of {_short(read)} characters in {_short(number)} documents")
    print(f"  disk     about {_short(result)}B for the dataset, and {_short(work)}B more while the build runs")
    print(f"  time     about {_duration(spent)} with {workers} worker{'s' * (workers != 1)}, on this machine when idle")


def _short(number: float) -> str:
    """Return a number in three digits with a unit.

    >>> _short(1234567), _short(980), _short(5.2e9)
    ('1.23 M', '980 ', '5.2 G')
    """
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} "


def _duration(seconds: float) -> str:
    """Return a time in its largest unit.

    >>> _duration(3), _duration(200), _duration(9000)
    ('3 s', '3 min', '2.5 h')
    """
    if seconds < 120:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
