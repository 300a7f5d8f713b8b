"""The ingest stage: spans of input -> documents that pass, each with hash, signature, language and origin."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.language.identifier import UNDETERMINED
from filters.rules.rule_files import made_for

from ...atomic import read_json, write_json
from ...atomic_directory import result_directory
from ...errors import InputError
from ...text.document import location_of
from ...text.hashes import text_hash
from ...text.readers.document_reader import BadRecord, Document, Unselected
from ...text.storage.input_file import Credentials
from ..counts.build_stats import BuildStats, Group
from ..counts.samples import sample_keys
from ..counts.sums import Bins, Counts, descending
from ..dedup.segments import segment_finder
from ..partitions.checksums import divided_inputs, hash_input, hash_path
from ..partitions.partition import (
    INGEST,
    MATCHES,
    PARTITIONS,
    done_path,
    partition_name,
    partition_table,
    unit_folder,
    write_partition_table,
)
from ..partitions.partition_writer import (
    MetadataColumn,
    PartitionWriter,
    PassedDocument,
    make_hasher,
    rejected_line,
    write_line,
)
from ..partitions.unit_records import Batches, UnitRecords
from ..plan import Plan, Span
from ..recipe import Recipe
from ..transforms.chain import Chain, ProcessedDocument
from ..transforms.references import References
from ..work.workspace import Workspace
from .bad_records import BadRecords, check_number
from .quotas import units_read
from .section import Change, Section
from .stage import Run, Stage, Step, once

_LEAST_OF_LANGUAGE = 50  # documents from which on the report names a rule that drops more than half of them
_RECORD_LIMITS = "record_limits.json"


class UnitToRead(NamedTuple):
    """The number of a unit, and the most records and bytes to read of it; None: all."""

    number: int
    most_records: int | None
    most_bytes: int | None


class IngestStage(Stage):
    """Reads, normalises, measures, judges and hashes documents."""

    name = INGEST

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace, plan = run.workspace, run.plan
        limits: list[int | None] = [None] * len(plan.units)
        if plan.recipe.limit is not None:
            path = workspace.root / _RECORD_LIMITS
            yield once(path, _write_record_limits, path, run, plan.recipe.limit)
            limits = read_json(path)
        most_bytes = units_read(workspace)
        bad = BadRecords(workspace, plan, list(most_bytes))

        def count_bad(unit: UnitToRead) -> None:
            done = read_json(_done_path(workspace, unit))
            bad.add(unit.number, done["records"], done["bad"])

        yield Step(
            units=[UnitToRead(number, limits[number], until) for number, until in most_bytes.items()],
            function=functools.partial(filter_unit, workspace, plan.credentials),
            makes=functools.partial(_done_path, workspace),
            prepare=functools.partial(prepare_filter, workspace),
            size=functools.partial(_unit_bytes, plan),
            label=functools.partial(_unit_label, plan),
            done=count_bad,
        )
        bad.check_not_all()
        yield Step(
            name="hash",
            units=divided_inputs(plan, most_bytes),
            function=functools.partial(hash_input, workspace),
            makes=functools.partial(hash_path, workspace),
        )
        yield once(workspace.round / PARTITIONS, write_partition_table, workspace, most_bytes)

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        table = partition_table(workspace)
        stats.damaged = table["damaged"]
        stats.notes += table["left_out"]
        stats.notes += _rules_against_languages(workspace.plan.definitions["rules"]["rules"], stats.by_language)
        return {}

    def section(self, counts: Mapping[str, Any]) -> Section:
        edited = descending(counts.get("edited", {}))
        return Section(
            changes=[Change(f"added by {name}", -number, 0) for name, number in descending(counts.get("added", {}))],
            cuts=descending(counts.get("cut", {})) + [(f"documents edited by {name}", n) for name, n in edited],
        )


def _rules_against_languages(rules: Sequence[Mapping[str, Any]], languages: Mapping[str, Group]) -> list[str]:
    """Return a sentence for each rule that dropped more than half of the documents of a language."""
    sets, found = {rule["name"]: rule["rule_set"] for rule in rules}, list[str]()
    for language, group in languages.items():
        read = group["read"]
        for rule, dropped in group["dropped"].items():
            if rule not in sets or read < _LEAST_OF_LANGUAGE or 2 * dropped <= read:
                continue
            made = made_for(sets[rule])
            cause = "" if made in ("", language) else f"; {sets[rule]} was made for {made}"
            found.append(f"rule {rule} dropped {dropped:,} of {read:,} documents in {language}{cause}")
    return found


def _done_path(workspace: Workspace, unit: UnitToRead) -> Path:
    return done_path(workspace, unit.number, unit.most_bytes)


def _unit_bytes(plan: Plan, unit: UnitToRead) -> int:
    """Return about how many bytes of input a unit reads, for the progress bar."""
    total = 0
    for span in plan.units[unit.number] if unit.most_records != 0 else ():
        size = plan.inputs[span.input].size
        total += min(size, (span.stop or size) - span.start) // span.lanes
    lanes = plan.units[unit.number][0].lanes
    return max(1, total if unit.most_bytes is None else min(total, unit.most_bytes // lanes))


def _unit_label(plan: Plan, unit: UnitToRead) -> str:
    """Return the number of a unit, and what it reads."""
    first, *more = plan.units[unit.number]
    from_byte = f" from {first.start:,}" * (first.start > 0)
    return f"unit {unit.number} ({plan.inputs[first.input].name}{from_byte}{f' and {len(more)} more' * bool(more)})"


def _write_record_limits(path: Path, run: Run, limit: int) -> None:
    """Write the most records that each unit reads: ``limit`` less the records of the units before it.

    Records are counted first, file by file, which is much faster than filtering them. So any number of workers filters
    the same records. The last unit is not counted, since no unit follows it.
    """
    left, units = limit, run.plan.units
    limits = []
    with run.progress.bar("count", left, "records") as bar:
        for number, (span, *_) in enumerate(units):
            limits.append(left)
            if left and span.lane == span.lanes - 1 and number < len(units) - 1:
                counted = _count_records(run, number, left)
                left -= counted
                bar(counted)
    write_json(path, limits)


def _count_records(run: Run, number: int, most: int) -> int:
    """Return how many records a unit has, at most ``most``. Counting stops at an error, which the stage will raise."""
    parts = _load_filter_parts(run.workspace)
    records = UnitRecords(parts.plan, number, parts.fields, parts.extract, run.plan.credentials, most)
    with suppress(InputError):
        for _ in records:
            pass
    return records.selected


BAD_RECORD = "bad_record"  # the kind of lines of rejected.jsonl


class _FilterParts:
    """The parts of a build's recipe that filtering needs, loaded."""

    def __init__(self, workspace: Workspace) -> None:
        plan, references = workspace.plan, References.load(workspace)
        recipe = plan.recipe
        self.plan = plan
        self.bins = Bins(references.rules.rules)
        self.chain = Chain(recipe, references)
        self.evaluation = references.evaluation
        self.hasher = make_hasher(recipe)
        self.find_segments = segment_finder(recipe.segment_kinds, recipe.shortest_passage)
        self.fields = references.fields(recipe)
        self.extract = references.extract.load() if references.extract else recipe.extract
        self.metadata = MetadataColumn(recipe.keep_fields)


_loaded_parts: list[_FilterParts] = []


def _load_filter_parts(workspace: Workspace) -> _FilterParts:
    """Load the plan of a build and the parts that it names, once in each process."""
    if not _loaded_parts or _loaded_parts[0].plan is not workspace.plan:
        _loaded_parts[:] = [_FilterParts(workspace)]
    return _loaded_parts[0]


def prepare_filter(workspace: Workspace) -> None:
    """Load models, libraries and compiled kernels, before workers are forked."""
    import pyarrow  # noqa: F401  slow to import: once, before workers are forked

    parts = _load_filter_parts(workspace)
    parts.chain.prepare()
    parts.hasher.warm_up()


def filter_unit(workspace: Workspace, credentials: Credentials, to_read: UnitToRead) -> None:
    """Filter one unit into its folder, up to the partition that reaches the most bytes.

    ``credentials`` open remote inputs. The unit skips the partitions of other lanes, and those that exist already because a run
    was killed or read less.
    """
    parts = _load_filter_parts(workspace)
    number, limit, most_bytes = to_read
    folder, spans = unit_folder(workspace, number), parts.plan.units[number]
    written: list[int] = []
    records = bad = 0
    read = UnitRecords(parts.plan, number, parts.fields, parts.extract, credentials, limit, most_bytes)
    for number_in_unit, batches in enumerate(read.partitions(parts.plan.limits)):
        path = folder / partition_name(number_in_unit)
        if number_in_unit % spans[0].lanes == spans[0].lane:
            written.append(number_in_unit)
            if not path.exists():
                with result_directory(path) as directory:
                    counts = _filter_partition(parts, spans, directory, batches, bad)
                    write_json(directory / "counts.json", counts.to_json())
            counts = Counts.read(path / "counts.json")
            records += counts.numbers["records",]
            bad += sum(counts.by("bad").values())
        for _ in batches:
            pass
        if most_bytes is not None and read.bytes_read >= most_bytes:
            break
    done = {"partitions": written, "bytes": read.bytes_read, "spans": read.spans, "records": records, "bad": bad}
    write_json(_done_path(workspace, to_read), done)


def _filter_partition(
    parts: _FilterParts, spans: Sequence[Span], directory: Path, batches: Batches, bad_before: int
) -> Counts:
    """Judge the documents of a partition. Write the kept documents and, if the recipe asks, the rejected ones."""
    recipe = parts.plan.recipe
    counts = Counts(parts.bins.empty())
    matches, passed = list[NDArray[np.int64]](), 0  # documents that passed
    signed = recipe.dedup and not recipe.segment_kinds  # line dedup signs the texts that it has cut
    with (
        open(directory / "rejected.jsonl", "wb") as file,
        PartitionWriter(directory, parts.hasher if signed else None, parts.find_segments) as writer,
    ):
        for batch in batches:
            rejected: list[tuple[int, Mapping[str, object]]] = []  # by the number of a record in its batch
            documents: list[Document] = []
            numbers, span_numbers = [], []  # of their records in the batch, and of their spans in the unit
            for number, (span_number, read) in enumerate(batch):
                record = parts.metadata.checked(read) if isinstance(read, Document) else read
                counts.add("records", number=1 if isinstance(record, Document) else record.count)
                if isinstance(record, Document):
                    documents.append(record)
                    numbers.append(number)
                    span_numbers.append(span_number)
                elif isinstance(record, Unselected):
                    counts.add_outcome("filtered", record.source, UNDETERMINED, record.reason, 0, record.count)
                else:
                    line = _reject_bad(record, span_number, spans[span_number].start, recipe, counts, bad_before)
                    rejected.append((number, line))
            counts.add("read characters", number=sum(len(document.text) for document in documents))
            processed = parts.chain.process(documents, counts)
            for before, result in itertools.pairwise(processed):
                if result.record == before.record:
                    counts.add("added to", result.document.source, result.language.code)
            for result in processed:
                source, size = result.document.source, len(result.document.text)
                counts.add_outcome("filtered", source, result.language.code, result.outcome, size)
            rows = _rows([result for result in processed if result.reason is None], span_numbers, parts.metadata)
            if parts.evaluation is not None:
                matches.append(
                    parts.evaluation.grams.found([row.text for row in rows]) + np.array([passed, 0], np.int64)
                )
            passed += len(rows)
            for row in rows:
                writer.add(row)
            dropped = [result for result in processed if result.reason is not None]
            keys = sample_keys([result.document.text for result in dropped], recipe.seed)
            for result, key in zip(dropped, keys, strict=True):
                if recipe.keep_rejected or counts.samples.wants(result.outcome, key):
                    line = rejected_line(result.document, span_numbers[result.record], result.outcome, result.reason)
                    counts.samples.add(result.outcome, key, line)
                    rejected += [(numbers[result.record], line)] if recipe.keep_rejected else []
            for _, line in sorted(rejected, key=itemgetter(0)):  # by record, however records are batched
                write_line(file, line)
    if parts.evaluation is not None:
        np.save(directory / MATCHES, np.concatenate([np.zeros((0, 2), np.int64), *matches]))
    return counts


def _rows(
    kept: Sequence[ProcessedDocument], span_numbers: Sequence[int], column: MetadataColumn
) -> list[PassedDocument]:
    """Return the rows of the kept documents. ``span_numbers`` are the spans of the batch's records."""
    wholes = {result.document.whole: "" for result in kept}
    for text in wholes:
        wholes[text] = "" if text is None else text_hash(text)
    rows = []
    for result, metadata in zip(kept, column.encode([result.document for result in kept]), strict=True):
        document, (code, score, _) = result.document, result.language
        location = document.id, document.part, document.file, span_numbers[result.record], document.line
        rows.append(
            PassedDocument(document.text, *location, code, score, len(document.text), metadata, wholes[document.whole])
        )
    return rows


def _reject_bad(
    record: BadRecord, span_number: int, start: int, recipe: Recipe, counts: Counts, bad_before: int
) -> Mapping[str, object]:
    """Count a record that gave no document, and return its line in rejected.jsonl; ``InputError`` if there are too many."""
    reason = f"{record.reason}{': ' * bool(record.detail)}{record.detail}"
    byte = "" if record.byte is None else f", byte {record.byte}"
    message = f"{location_of(record.file, record.line, start)}{byte}: {reason}"
    if recipe.on_error == "stop":
        raise InputError(f"{message}; mend it, or count and skip such records with --on-error records")
    counts.add("bad", record.reason, number=record.count)
    counts.add("bad by source", record.source, number=record.count)
    check_number(bad_before + sum(counts.by("bad").values()), recipe, message)
    line = {"file": record.file, "line": record.line, "byte": record.byte}
    return {**line, "kind": BAD_RECORD, "reason": reason, "span": span_number}
