"""The filter unit: spans of input -> documents that stay, each with hash, signature, language and origin.

A unit's result is one directory:

    documents.arrow     kept documents: text, id, span, line, language, score
    hashes.bin          uint8 [kept, 16], the hash of each text
    signatures.bin      uint32 [kept, permutations], its MinHash signature
    rejected.jsonl      what was dropped (with --keep-rejected), and what could not be read, one JSON object each
    counts.json         everything counted; sums over units are the build's counts
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from filters.language import Language, LanguageIdentifier, parse_languages, wanted_threshold

from ..atomic import write_json
from ..errors import BuildError, InputError
from ..text.documents import BadRecord, Document, Reader
from ..text.normalize import normalize
from .decontaminate import Decontaminator
from .minhash import MinHasher, text_hashes
from .plan import Plan, load_plan
from .rules import RuleSet, load_rules
from .work import result_directory

BATCH = 512  # documents that are hashed and written together
HISTOGRAM_BINS = 40
SAMPLES = 3  # rejected documents per rule, and kept ones, shown in the report
SAMPLE_CHARACTERS = 600


@dataclass(slots=True)
class Counts:
    """What a unit counted. All of it is summed over units, so that every stage's counts add up to the input's."""

    read: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    read_by_language: Counter[str] = field(default_factory=Counter)
    read_by_source: Counter[str] = field(default_factory=Counter)
    kept_by_source: Counter[str] = field(default_factory=Counter)
    characters: int = 0
    kept: int = 0
    kept_characters: int = 0
    measures: dict[str, list[float]] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        value = {name: getattr(self, name) for name in self.__slots__ if name != "measures"}
        return {name: dict(item) if isinstance(item, Counter) else item for name, item in value.items()}


class Filter:
    """Everything that judging documents needs, loaded once in each process."""

    def __init__(self, plan: Plan) -> None:
        recipe = plan.recipe
        self.plan = plan
        self.rules: RuleSet = load_rules([*recipe.rules, *(["dedup_lines"] if recipe.dedup_lines else [])])
        self.identifier = LanguageIdentifier(recipe.lid_model)
        self.wanted = parse_languages(recipe.language, recipe.language_threshold)
        self.hasher = MinHasher(ngram=recipe.ngram, bands=recipe.bands, rows=recipe.rows, seed=recipe.seed + 1)
        self.decontaminator = load_decontaminator(recipe.decontaminate, recipe.text_key)

    def judge(self, text: str, counts: Counts) -> tuple[str, Language, str | None, dict[str, float]]:
        """Return the text as it will be kept, its language, why it goes (None: it stays), and what was measured."""
        if self.plan.recipe.normalize:
            text = normalize(text)
        text, cut = self.rules.cut(text)
        counts.cut.update(cut)
        language = self.identifier.identify(text)
        if not text.strip():
            return text, language, "empty text", {}
        if self.wanted:
            threshold = wanted_threshold(self.wanted, language)
            if threshold is None:
                return text, language, f"language {language.code} is none of {','.join(self.wanted)}", {}
            if language.score < threshold:
                return text, language, f"language_score {language.score:.4g} < {threshold:.4g}", {}
        values = self.rules.measure(text, {"language": language.code, "language_score": language.score})
        verdict = self.rules.judge(values)
        if verdict is not None:
            return text, language, verdict.reason, values
        if self.decontaminator is not None:
            overlap, name = self.decontaminator.overlaps([text])[0]
            if overlap:
                return text, language, f"contaminated by {name} ({overlap} shared n-grams)", values
        return text, language, None, values


def load_decontaminator(files: tuple[str, ...], text_key: str) -> Decontaminator | None:
    """Read the evaluation sets that ``--decontaminate`` names."""
    if not files:
        return None
    texts: dict[str, list[str]] = {}
    from ..text.documents import find_inputs, read_documents

    for file in find_inputs(files):
        records = read_documents(file, text_key=text_key)
        texts[file.name] = [normalize(record.text) for record in records if isinstance(record, Document)]
    return Decontaminator(texts)


def load_filter(work: Path) -> Filter:
    """Load the plan of a work directory and what it needs, once in each process."""
    return _load_filter(load_plan(work))


_loaded: list[Filter] = []


def _load_filter(plan: Plan) -> Filter:
    if not _loaded or _loaded[0].plan is not plan:
        _loaded[:] = [Filter(plan)]
    return _loaded[0]


def prepare_filter(work: Path) -> None:
    """Load models and compile kernels, before workers are forked."""
    loaded = load_filter(work)
    loaded.rules.prepare()
    loaded.hasher.warm_up()
    loaded.identifier.identify("to load the model")


def filter_unit(work: Path, number: int, limit: int | None = None) -> int:
    """Filter one unit into ``work/filter/NUMBER`` and return the documents it read; ``limit`` bounds those."""
    loaded = load_filter(work)
    plan, counts = loaded.plan, Counts()
    with result_directory(unit_path(work, number)) as directory, open(directory / "rejected.jsonl", "wb") as rejected:
        spans: list[dict[str, Any]] = []
        with _Writer(directory, loaded) as writer:
            for place, span in enumerate(plan.units[number]):
                item = plan.inputs[span.input]
                reader = Reader(
                    item.path,
                    (span.start, span.stop),
                    text_key=plan.recipe.text_key,
                    id_key=plan.recipe.id_key,
                    file=item.name,
                    source=item.source,
                )
                records = iter(reader)
                whole = _filter_records(loaded, records, place, counts, writer, rejected, limit)
                spans.append({"lines": reader.lines, "sha256": reader.sha256 if whole else None})
        counts_json = {**counts.to_json(), "spans": spans, "histograms": _histograms(loaded, counts.measures)}
        write_json(directory / "counts.json", counts_json)
    return counts.read + counts.bad.total()


def unit_path(work: Path, number: int) -> Path:
    return work / "filter" / f"{number:06d}"


def _filter_records(
    loaded: Filter,
    records: Iterator[Document | BadRecord],
    place: int,
    counts: Counts,
    writer: _Writer,
    rejected: BinaryIO,
    limit: int | None,
) -> bool:
    """Judge the records of one span; return whether it was read to its end."""
    recipe = loaded.plan.recipe
    while True:
        left = BATCH if limit is None else min(BATCH, limit - counts.read - counts.bad.total())
        batch: list[Document | BadRecord] = []
        try:
            for record in islice(records, left):
                batch.append(record)  # noqa: PERF402  what was read before a fault counts
        except InputError as error:
            if recipe.on_error != "skip":
                raise
            counts.bad["file cut short or corrupt"] += 1
            _write_line(rejected, {"reason": str(error)})
            _filter_batch(loaded, batch, place, counts, writer, rejected)
            return False
        _filter_batch(loaded, batch, place, counts, writer, rejected)
        if len(batch) < BATCH:
            return limit is None or counts.read + counts.bad.total() < limit


def _filter_batch(
    loaded: Filter,
    batch: list[Document | BadRecord],
    place: int,
    counts: Counts,
    writer: _Writer,
    rejected: BinaryIO,
) -> None:
    recipe = loaded.plan.recipe
    for record in batch:
        if isinstance(record, BadRecord):
            _reject_bad(record, recipe.on_error, recipe.max_errors, counts, rejected)
            continue
        counts.read += 1
        counts.characters += len(record.text)
        counts.read_by_source[record.source] += 1
        text, language, reason, values = loaded.judge(record.text, counts)
        counts.read_by_language[language.code] += 1
        for name, value in values.items():
            counts.measures.setdefault(name, []).append(value)
        if reason is None:
            counts.kept += 1
            counts.kept_characters += len(text)
            counts.kept_by_source[record.source] += 1
            writer.add(text, record, place, language)
        else:
            rule = reason if reason.startswith(("empty", "language ")) else reason.split()[0]
            rule = "language" if rule.startswith("language ") else rule
            counts.dropped[rule] += 1
            if recipe.keep_rejected:
                _write_line(
                    rejected,
                    {"id": record.id, "file": record.file, "line": record.line, "text": text, "reason": reason},
                )
        _sample(counts, "kept" if reason is None else rule, record, text, reason)


def _sample(counts: Counts, key: str, record: Document, text: str, reason: str | None) -> None:
    samples = counts.samples.setdefault(key, [])
    if len(samples) < SAMPLES:
        samples.append({"id": record.id[:200], "text": text[:SAMPLE_CHARACTERS], "reason": reason})


def _reject_bad(record: BadRecord, on_error: str, most: int, counts: Counts, rejected: BinaryIO) -> None:
    place = f"{record.file}: line {record.line}" + ("" if record.byte is None else f", byte {record.byte}")
    said = f"{place}: {record.reason}{': ' * bool(record.detail)}{record.detail}"
    if on_error == "stop":
        raise InputError(f"{said}; mend it, or count and skip such records with --on-error records")
    counts.bad[record.reason] += 1
    _write_line(rejected, {"file": record.file, "line": record.line, "byte": record.byte, "reason": said})
    if counts.bad.total() > most:
        raise BuildError(f"more than {most} bad records, the last: {said}; mend the input or raise --max-errors")


def _write_line(file: BinaryIO, value: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))


def _histograms(loaded: Filter, measures: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Count each measure in fixed bins around its limits, so that the units' histograms can be summed."""
    histograms = {}
    for rule in loaded.rules.rules:
        values = np.asarray(measures.get(rule.name, []), dtype=np.float64)
        limits = [limit for limit in (rule.min, rule.max) if np.isfinite(limit)]
        top = max([2 * limit for limit in limits if limit > 0], default=1.0)
        if "ratio" in rule.name:
            top = 1.0
        counted, _ = np.histogram(np.clip(values[~np.isnan(values)], 0, top), bins=HISTOGRAM_BINS, range=(0, top))
        histograms[rule.name] = {"top": top, "counts": counted.tolist(), "limits": limits}
    return histograms


class _Writer:
    """Writes kept documents to a unit's directory, a batch at a time."""

    def __init__(self, directory: Path, loaded: Filter) -> None:
        import pyarrow as pa

        fields = {"text": pa.large_string(), "id": pa.string(), "span": pa.int32(), "line": pa.int64()}
        self._schema = pa.schema({**fields, "language": pa.string(), "score": pa.float32()})
        self._directory = directory
        self._loaded = loaded
        self._rows: list[tuple[Any, ...]] = []

    def __enter__(self) -> _Writer:
        import pyarrow as pa

        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._arrow = pa.ipc.new_file(str(self._directory / "documents.arrow"), self._schema, options=options)
        self._hashes = open(self._directory / "hashes.bin", "wb")
        self._signatures = open(self._directory / "signatures.bin", "wb")
        return self

    def add(self, text: str, record: Document, place: int, language: Language) -> None:
        self._rows.append((text, record.id, place, record.line, language.code, language.score))
        if len(self._rows) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))
        texts = list(columns[0])
        text_hashes(texts).tofile(self._hashes)
        if self._loaded.plan.recipe.dedup:
            self._loaded.hasher.signatures(texts).tofile(self._signatures)
        arrays = [pa.array(column, type=kind) for column, kind in zip(columns, self._schema.types, strict=True)]
        self._arrow.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._rows = []

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._flush()
        self._arrow.close()
        self._hashes.close()
        self._signatures.close()
