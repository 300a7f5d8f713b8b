"""A dry run: prints the plan, the outcomes of a sample and what the whole build would take, and writes nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..errors import InputError
from ..text.discovery import evenly
from ..text.readers.reader import Document, Reader, Record, Unselected
from ..text.readers.record_blocks import FIRST_BYTES
from ..text.storage.input_file import InputFile
from ..text.tokenizer.tokenizer import Tokenizer
from .build_tokenizer import load_spec
from .counts.stats import Histograms, PartitionCounts
from .engine.signals import reraise_swallowed_signals
from .output_directory import local_directory
from .plan import Plan, make_plan
from .recipe import Recipe
from .references import References, resolve
from .stages.registry import wanted_stages
from .stages.stage import DropsAlone
from .transforms.chain import Chain

SAMPLE_DOCUMENTS = 1_000
SAMPLE_FILES = 64
MEASURED_BYTES = 4 << 20  # read of each file, at least, to learn how many characters its bytes hold
MEASURED_FILES = 16
CHARACTERS_PER_TOKEN = 4.2  # of a tokenizer that is yet to be trained: English with a vocabulary of 32,000
BYTES_PER_DOCUMENT = 600  # of signatures, tables and tar headers
WORK_BYTES_PER_CHARACTER = 1.1  # of the partitions, while the build runs
OTHER_STAGES = 1.5  # the seconds of a whole build for each second of filtering and encoding
START_SECONDS = 5.0  # to load libraries, models and compiled code


@dataclass(slots=True)
class _Sample:
    """What a sample showed. Characters are of documents; ``bytes`` are those of the files that were read for ``characters``."""

    reasons: Counter[str] = field(default_factory=Counter)
    judged: int = 0  # characters
    kept: list[str] = field(default_factory=list)
    characters: int = 0
    documents: int = 0
    bytes: int = 0
    seconds: float = 0.0  # of filtering


@reraise_swallowed_signals()
def preview(
    specs: Sequence[str], recipe: Recipe, output: str | Path | None = None, *, workers: int | None = None
) -> None:
    """Print what a build would read, do with the first documents of each input, write and take.

    Raises the errors that the build itself would raise: everything that the recipe names is loaded.
    """
    output = None if output is None else local_directory(output)
    references = resolve(recipe)
    plan = make_plan(specs, recipe, references.definitions, output)
    size = sum(item.size for item in plan.inputs)
    print(f"{len(plan.inputs)} input files, {size / 1e6:,.1f} MB, {len(plan.units)} units of work")
    chain = Chain(recipe, references)
    chain.judge([Document("To load models and compiled code.", "", "", 1)], _no_counts(references))
    stages = {stage.name: drops for stage in wanted_stages(recipe) if (drops := stage.drops_alone(recipe, references))}
    sample = _Sample()
    files = evenly([item.file(plan.credentials, recipe.format) for item in plan.inputs], SAMPLE_FILES)
    each = -(-SAMPLE_DOCUMENTS // len(files))
    for place, file in enumerate(files):
        _read(
            file,
            recipe,
            references,
            chain,
            stages,
            each,
            sample,
            measured=place < MEASURED_FILES,
        )
    total = sample.reasons.total()
    of = f" from {len(files)} files" if len(files) < len(plan.inputs) else ""
    print(f"of a sample of {total:,} records{of}:")
    for reason, number in sample.reasons.most_common():
        print(f"{number:>8,}  {number / max(1, total):6.1%}  {reason}")
    for line in _expectations(plan, sample, workers or os.cpu_count() or 1):
        print(line)
    left = [stage.name for stage in wanted_stages(recipe) if stage.removes(recipe) and stage.name not in stages]
    print(f"not applied to a sample: {', '.join(left)}; nothing was written" if left else "nothing was written")


def _no_counts(references: References) -> PartitionCounts:
    return PartitionCounts(Histograms(references.rules.rules))


def _read(
    file: InputFile,
    recipe: Recipe,
    references: References,
    chain: Chain,
    stages: Mapping[str, DropsAlone],
    most: int,
    sample: _Sample,
    *,
    measured: bool,
) -> None:
    """Judge the first records of an input; where it is ``measured``, count the characters of those after them too."""
    reader = Reader(
        file,
        text_key=recipe.text_key,
        id_key=recipe.id_key,
        keep=references.fields(recipe),
        where=recipe.condition,
        first_bytes=FIRST_BYTES,
    )
    counts, records = _no_counts(references), iter(reader)
    documents = []
    for record in islice(records, most):
        if isinstance(record, Document):
            documents.append(record)
        elif isinstance(record, Unselected):
            sample.reasons["where"] += record.count
        else:
            sample.reasons[f"unreadable: {record.reason}"] += 1
    read = sum(len(document.text) for document in documents)
    started = time.process_time()
    for judged in chain.judge(list(documents), counts):
        outcome = judged.outcome or next((name for name, drops in stages.items() if drops(judged.document)), "")
        sample.reasons[outcome or "kept"] += 1
        if not outcome:
            sample.kept.append(judged.document.text)
    sample.seconds += time.process_time() - started
    sample.judged += read
    if measured:
        _measure(reader, records, len(documents), read, sample)


def _measure(reader: Reader, records: Iterator[Record], documents: int, characters: int, sample: _Sample) -> None:
    """Count characters, documents and bytes of the beginning of a file, of which some are read already."""
    sample.characters += characters
    sample.documents += documents
    try:
        while reader.bytes_read < MEASURED_BYTES and (record := next(records, None)) is not None:
            if isinstance(record, Document):
                sample.characters += len(record.text)
                sample.documents += 1
    except InputError:
        pass  # the build names the damage
    sample.bytes += reader.bytes_read


def _expectations(plan: Plan, sample: _Sample, workers: int) -> list[str]:
    """Return lines with the tokens, the disk space and the time that the whole build is expected to take."""
    if not sample.judged or not sample.bytes:
        return []
    whole = sum(item.size for item in plan.inputs) / sample.bytes  # times what was measured
    if plan.recipe.limit is not None:
        whole = min(whole, plan.recipe.limit / max(1, sample.documents))
    kept = sum(map(len, sample.kept)) / sample.judged
    characters, documents = sample.characters * whole, sample.documents * whole
    per_token, width, speed, about = _tokenizer_numbers(plan.recipe, sample.kept)
    tokens = characters * kept / per_token
    quota = sum(plan.recipe.quota(source) for source in {item.source for item in plan.inputs})
    if tokens > quota:  # no more is read
        characters, documents, tokens = (value * quota / tokens for value in (characters, documents, tokens))
    result = tokens * width + documents * BYTES_PER_DOCUMENT * len(sample.kept) / max(1, sample.reasons.total())
    work = characters * kept * WORK_BYTES_PER_CHARACTER
    seconds = (
        START_SECONDS
        + OTHER_STAGES * (characters * sample.seconds / sample.judged + characters * kept * speed) / workers
    )
    return [
        "expected of the whole input, from this sample:",
        f"  tokens   about {_short(tokens)}{about}, of {_short(characters)} characters in {_short(documents)} documents",
        f"  disk     about {_short(result)}B for the dataset, and {_short(work)}B more while the build runs",
        f"  time     about {_duration(seconds)} with {workers} worker{'s' * (workers != 1)}, on this machine when idle",
    ]


def _tokenizer_numbers(recipe: Recipe, texts: Sequence[str]) -> tuple[float, int, float, str]:
    """Return characters a token, bytes of a stored token, seconds a character, and a remark on them."""
    if recipe.tokenizer.startswith("train:"):
        width = 2 if int(recipe.tokenizer[6:]) <= 1 << 16 else 4
        return (
            CHARACTERS_PER_TOKEN,
            width,
            1e-8,
            f" (at {CHARACTERS_PER_TOKEN} characters a token: it is not trained yet)",
        )
    tokenizer: Tokenizer = load_spec(recipe.tokenizer, recipe.end_token)
    started = time.process_time()
    tokens = len(tokenizer.encode_flat(texts, eos=recipe.eos != "never")[0]) if texts else 0
    spent, characters = time.process_time() - started, sum(map(len, texts))
    return characters / max(1, tokens) or 1.0, tokenizer.dtype.itemsize, spent / max(1, characters), ""


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
