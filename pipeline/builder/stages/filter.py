"""The filter unit: spans of input -> documents that pass, each with hash, signature, language and origin."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from filters.language.language import Language, LanguageIdentifier, parse_languages, wanted_threshold
from filters.rules.ruleset import RuleSet

from ...atomic import write_json
from ...errors import BuildError, DamagedInputError, InputError
from ...text.document import place_of
from ...text.normalize import normalize
from ...text.readers.reader import BadRecord, Document, Reader, Record
from ..dedup.minhash import MinHasher
from ..dedup.segments import passage_finder
from ..limits import Limits
from ..plan import Plan, Span, check_same, load_plan
from ..recipe import Recipe
from ..references import References
from ..report.samples import sample_keys
from ..report.stats import PASSED, Counts, Histograms
from ..workspace import result_directory
from .partition import DONE, PartWriter, Row, part_folder, read_json, unit_path

UNREADABLE = "file that cannot be read on"


class Judged(NamedTuple):
    """A document as it will be kept. ``rule`` and ``reason`` say why it is not; '' and None: it passes."""

    text: str
    language: Language
    rule: str
    reason: str | None


class Filter:
    """Everything that judging documents needs, loaded once in each process."""

    def __init__(self, plan: Plan, references: References) -> None:
        recipe = plan.recipe
        self.plan = plan
        self.rules: RuleSet = references.rules
        self.identifier = LanguageIdentifier(references.language_model.path)
        self.wanted = parse_languages(recipe.language, recipe.language_threshold)
        self.hasher = make_hasher(recipe)
        self.find_passages = passage_finder(recipe.passage_kinds, recipe.shortest_passage)
        self.decontaminator = references.evaluation

    def judge(self, documents: Sequence[Document], starts: Sequence[int], counts: Counts) -> list[Judged]:
        """Normalise, cut, identify, measure, in this order; the first reason to drop a document ends it.

        ``starts`` are those of the spans that the documents were read from.

        Step by step over the batch: each step has tables of its own, which another between two documents would push
        out of the processor's caches.
        """
        texts = [document.text for document in documents]
        where = [functools.partial(each.where, start) for each, start in zip(documents, starts, strict=True)]
        if self.plan.recipe.normalize:
            texts = [normalize(text) for text in texts]
        if self.rules.cutters:
            texts = [self._cut(text, place, counts) for text, place in zip(texts, where, strict=True)]
        languages = self.identifier.identify_all(texts)
        judged = [Judged(*pair, *self._judge(*pair)) for pair in zip(texts, languages, strict=True)]
        left = [k for k, each in enumerate(judged) if each.reason is None]
        known = [languages[k].context() for k in left]
        measured = self.rules.measure_all([texts[k] for k in left], known, [where[k] for k in left])
        counts.histograms.add(*measured)
        for k, verdict in zip(left, self.rules.judge_all(measured), strict=True):
            if verdict is not None:
                judged[k] = Judged(texts[k], languages[k], verdict.measure, verdict.reason)
        if self.decontaminator is not None:
            passed = [k for k in left if judged[k].reason is None]
            overlaps = self.decontaminator.overlaps([texts[k] for k in passed])
            for k, (overlap, name) in zip(passed, overlaps, strict=True):
                if overlap:
                    reason = f"contaminated by {name} ({overlap} shared n-grams)"
                    judged[k] = Judged(texts[k], languages[k], "contaminated", reason)
        return judged

    def _cut(self, text: str, where: Callable[[], str], counts: Counts) -> str:
        text, cut = self.rules.cut(text, where)
        counts.cut.update(cut)
        return text

    def _judge(self, text: str, language: Language) -> tuple[str, str | None]:
        """Return rule and reason for a document that is dropped before it is measured."""
        if not text or text.isspace():
            return "empty text", "empty text"
        if self.wanted:
            threshold = wanted_threshold(self.wanted, language)
            if threshold is None:
                return "language", f"language {language.code} is none of {','.join(self.wanted)}"
            if language.score < threshold:
                return "language_score", f"language_score {language.score:.4g} < {threshold:.4g}"
        return PASSED, None


def make_hasher(recipe: Recipe) -> MinHasher:
    """Return what signs texts for dedup."""
    # Never from recipe.seed: later builds compare their signatures with these.
    return MinHasher(ngram=recipe.ngram, bands=recipe.bands, rows=recipe.rows, num_perm=recipe.num_perm)


_loaded: list[Filter] = []


def load_filter(work: Path) -> Filter:
    """Load the plan of a work directory and what it needs, once in each process."""
    plan = load_plan(work)
    if not _loaded or _loaded[0].plan is not plan:
        _loaded[:] = [Filter(plan, References.read(work))]
    return _loaded[0]


def prepare_filter(work: Path) -> None:
    """Load models, libraries and compiled kernels, before workers are forked."""
    import pyarrow  # noqa: F401  a quarter of a second in each worker, unless their parent has it

    loaded = load_filter(work)
    loaded.rules.prepare()
    loaded.hasher.warm_up()
    loaded.identifier.identify_all(["to load the model"])


def filter_unit(work: Path, number: int, limit: int | None = None) -> tuple[int, int]:
    """Filter one unit into ``work/filter/NUMBER``; return the records it judged and how many of them were bad.

    ``limit`` bounds the records. Parts that a killed run finished, and those of other lanes, are only read over.
    """
    loaded = load_filter(work)
    folder, unit = unit_path(work, number), loaded.plan.units[number]
    folder.mkdir(exist_ok=True)
    parts: list[int] = []
    records = bad = 0
    spans: list[dict[str, Any]] = []
    limits = loaded.plan.limits
    stream = _batches(itertools.islice(_records(loaded.plan, unit, spans), limit), limits)
    for part, batches in enumerate(_parts(stream, limits.partition_characters)):
        path = part_folder(folder, part)
        if part % unit[0].lanes == unit[0].lane:
            parts.append(part)
            if not path.exists():
                with result_directory(path) as directory:
                    counts = _filter_part(loaded, unit, directory, batches, bad)
                    write_json(directory / "counts.json", counts.to_json())
            counted = read_json(path / "counts.json")
            records += counted["records"]
            bad += sum(counted["bad"].values())
        for _ in batches:
            pass
    write_json(folder / DONE, {"parts": parts, "records": records, "bad": bad, "spans": spans})
    return records, bad


def count_unit(work: Path, most: int, number: int) -> int:
    """Return how many records a unit holds, at most ``most``; with an error, those before it, which the filter meets."""
    plan, count = load_plan(work), 0
    with suppress(InputError):
        for _ in itertools.islice(_records(plan, plan.units[number], []), most):
            count += 1
    return count


def _records(plan: Plan, unit: tuple[Span, ...], spans: list[dict[str, Any]]) -> Iterator[tuple[int, Record]]:
    """Yield the records of a unit, each with the place of its span; note in ``spans`` what reading each found."""
    recipe = plan.recipe
    for place, span in enumerate(unit):
        item = plan.inputs[span.input]
        bounds = (span.start, span.stop)
        keys = {"text_key": recipe.text_key, "id_key": recipe.id_key}
        reader = Reader(item.path, bounds, file=item.name, source=item.source, **keys)
        digest, damage = None, None
        try:
            for record in reader:
                yield place, record
            digest = reader.sha256
        except DamagedInputError as error:
            check_same(item)  # or it may have been read while it was written
            if recipe.on_error != "skip":
                cure = "mend it, or keep what can be read of it and count the fault with --on-error skip"
                raise DamagedInputError(f"{error}; {cure}") from error
            damage = {"line": reader.lines + 1, "fault": reader.fault, "unconfirmed": reader.unconfirmed}
            yield place, BadRecord(item.name, reader.lines + 1, None, UNREADABLE, reader.fault, item.source)
        check_same(item)
        spans.append({"lines": reader.lines, "sha256": digest, "damage": damage})


def _batches(records: Iterator[tuple[int, Record]], limits: Limits) -> Iterator[list[tuple[int, Record]]]:
    """Join records to batches of bounded text."""
    batch: list[tuple[int, Record]] = []
    size = 0
    for pair in records:
        batch.append(pair)
        size += len(pair[1].text) if isinstance(pair[1], Document) else 0
        if len(batch) >= limits.batch_records or size >= limits.batch_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parts(batches: Iterator[list[tuple[int, Record]]], most: int) -> Iterator[Iterator[list[tuple[int, Record]]]]:
    """Cut batches into parts of about ``most`` characters. Each part must be used up before the next is asked for."""

    def part(batch: list[tuple[int, Record]]) -> Iterator[list[tuple[int, Record]]]:
        size = 0
        for each in itertools.chain([batch], batches):
            size += sum(len(record.text) for _, record in each if isinstance(record, Document))
            yield each
            if size >= most:
                return

    return (part(batch) for batch in batches)


def _filter_part(
    loaded: Filter,
    spans: tuple[Span, ...],
    directory: Path,
    batches: Iterator[list[tuple[int, Record]]],
    bad_before: int,
) -> Counts:
    """Judge the documents of a part."""
    recipe = loaded.plan.recipe
    counts = Counts(Histograms(loaded.rules.rules))
    later = bool(recipe.passage_kinds)  # texts that are yet to be cut are signed when they are
    hasher = loaded.hasher if recipe.dedup and not later else None
    with (
        open(directory / "rejected.jsonl", "wb") as rejected,
        PartWriter(directory, hasher, loaded.find_passages) as writer,
    ):
        for batch in batches:
            counts.records += len(batch)
            for place, record in batch:
                if isinstance(record, BadRecord):
                    _reject_bad(record, place, spans[place].start, recipe, counts, bad_before, rejected)
            documents = [(place, record) for place, record in batch if isinstance(record, Document)]
            starts = [spans[place].start for place, _ in documents]
            judged = loaded.judge([record for _, record in documents], starts, counts)
            keys = iter(sample_keys([each.text for each in judged if each.reason is not None], recipe.seed))
            for (place, record), each in zip(documents, judged, strict=True):
                characters = len(each.text)
                counts.read_characters += len(record.text)
                counts.flow.add(record.source, each.language.code, each.rule, characters)
                if each.reason is None:
                    counts.kept += 1
                    code, score, _ = each.language
                    writer.add(Row(each.text, record.id, place, record.line, code, score, characters))
                else:
                    _reject(each, place, record, next(keys), recipe, counts, rejected)
    return counts


def _reject(
    judged: Judged, place: int, record: Document, key: int, recipe: Recipe, counts: Counts, rejected: IO[bytes]
) -> None:
    """Write down a document that is dropped, where it is wanted."""
    if not (recipe.keep_rejected or counts.samples.wants(judged.rule, key)):
        return
    line = {"id": record.id, "file": record.file, "line": record.line, "reason": judged.reason, "text": judged.text}
    line["span"] = place
    counts.samples.add(judged.rule, key, line)
    if recipe.keep_rejected:
        write_line(rejected, line)


def _reject_bad(
    record: BadRecord, place: int, start: int, recipe: Recipe, counts: Counts, bad_before: int, rejected: IO[bytes]
) -> None:
    reason = f"{record.reason}{': ' * bool(record.detail)}{record.detail}"
    byte = "" if record.byte is None else f", byte {record.byte}"
    said = f"{place_of(record.file, record.line, start)}{byte}: {reason}"
    if recipe.on_error == "stop":
        raise InputError(f"{said}; mend it, or count and skip such records with --on-error records")
    counts.bad[record.reason] += 1
    counts.bad_by_source[record.source] += 1
    line = {"file": record.file, "line": record.line, "byte": record.byte, "reason": reason}
    write_line(rejected, {**line, "span": place})
    check_errors(bad_before + counts.bad.total(), recipe, said)


def check_errors(bad: int, recipe: Recipe, last: str = "") -> None:
    """Raise ``BuildError`` when more records were bad than the recipe allows."""
    if bad > recipe.max_errors:
        raise BuildError(
            f"more than {recipe.max_errors} bad records{last and ', the last: '}{last}; mend the input or raise "
            "--max-errors"
        )


def write_line(file: IO[bytes], value: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
