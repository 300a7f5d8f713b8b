"""Compares two builds: documents, counts, settings and rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

from filters.language.identifier import UNDETERMINED, Language, parse_languages
from filters.rules.rule import Rule, limits_text
from filters.rules.ruleset import RuleSet

from ..errors import ConfigError
from ..objects.request_options import RequestOptions
from ..progress import Progress
from ..shards.format import KEY_COLUMN
from ..shards.manifest import SIGNATURES_NAME, Manifest
from ..text.discovery import evenly
from ..text.document import Document
from ..text.judging import Drop, judge_language, judge_measured, measure
from .documents import DatasetDocuments, DocumentLocation
from .find import search

SAME, CHANGED, ONLY_A, ONLY_B = "same", "changed", "only_a", "only_b"
KINDS = (SAME, CHANGED, ONLY_A, ONLY_B)
DUPLICATE, UNKNOWN = "duplicate", "another reason"
_COLUMNS = ("id", "source", "language", "score", "hash")
_NAMED = {"language_model": "lid_model"}  # definitions whose settings have another name
_UNBUILT = "its shards hold no ids and hashes of texts; compare datasets that shardwright build made"
_EXCERPT = 300  # characters of a sample


class _Entry(NamedTuple):
    """A document: its location, id, source, language with the score, hash of its text, and redaction in the other dataset."""

    location: DocumentLocation
    id: str
    source: str
    language: str
    score: float
    hash: str
    redaction: str


def diff(
    a: str | Path,
    b: str | Path,
    *,
    judged: int = 1000,
    samples: int = 3,
    requests: RequestOptions | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return what differs between two built datasets, as plain JSON.

    ``documents``: how many have the same text in both ("same"), the same source and id but another text ("changed"), or are
    "only_a" or "only_b". ``by_source``, ``by_language``: these numbers by group.
    ``settings``: the values of A and B of each setting that differs; for a file of the same name, the hashes of its contents.
    ``rules``: the limits of each rule in A and B, and the documents that it dropped there, if one of these differs.
    ``why``: for the documents only in A, the reasons of B to drop them, and the other way round. At most ``judged`` documents,
    evenly spread, are judged again by the language and the rules of the other manifest. They are also compared with the other
    documents. If one dataset is a copy of the other, the documents that were redacted or dropped since are all counted, by date
    and reason. Each reason has its number of ``documents``, and up to ``samples``.
    ``changed``: samples of changed texts, from the first difference on.

    Memory grows by about 700 bytes for each document of both. Raises ``MissingDatasetError`` if a dataset is missing, and
    ``ConfigError`` if its shards hold no ids and hashes of texts, like shards of imported tokens.
    """
    sides = [DatasetDocuments(dataset, requests) for dataset in (a, b)]
    progress = progress or Progress(quiet=True)
    redactions = [_redactions(*(side.manifest for side in pair)) for pair in (sides, sides[::-1])]
    entries = (_entries(side, taken_out, progress) for side, taken_out in zip(sides, redactions, strict=True))
    pairs, only_a, only_b = _match(*map(list, entries))
    changed = [pair for pair in pairs if pair[0].hash != pair[1].hash]
    kinds = [(SAME if one.hash == other.hash else CHANGED, other) for one, other in pairs]
    kinds += [(kind, entry) for kind, some in ((ONLY_A, only_a), (ONLY_B, only_b)) for entry in some]
    return {
        "documents": dict.fromkeys(KINDS, 0) | Counter(kind for kind, _ in kinds),
        "by_source": _groups((entry.source, kind) for kind, entry in kinds),
        "by_language": _groups((entry.language, kind) for kind, entry in kinds),
        "settings": _settings(*sides),
        "rules": _rules(sides[0].manifest, sides[1].manifest),
        "why": {
            kind: _why(some, sides[at], sides[1 - at], judged, samples)
            for at, (kind, some) in enumerate(((ONLY_A, only_a), (ONLY_B, only_b)))
        },
        "changed": [_changed(one, other, sides) for one, other in changed[:samples]],
    }


def _redactions(mine: Manifest, other: Manifest) -> dict[str, str]:
    """Return the redactions that took documents out of the other dataset, a copy of this one, by the keys of the documents."""
    known = [mine.data_fingerprints(), *(removal["data"] for removal in mine.removals)]
    since = dropwhile(lambda removal: removal["data"] not in known, other.removals)
    return {key: f"redaction of {one['date'][:10]}: {one['reason']}" for one in since for key in one["keys"]}


def _entries(documents: DatasetDocuments, redactions: dict[str, str], progress: Progress) -> Iterator[_Entry]:
    """Yield the documents of a dataset that are not redacted there. ``redactions`` of the other dataset are by key."""
    with progress.each("read tables", [*documents.shards()], lambda item: item[1].documents, "documents") as shards:
        for split, shard in shards:
            table, redacted = documents.table(shard), {*documents.manifest.redacted.get(shard.name, [])}
            if not table.keys() >= {*_COLUMNS}:
                raise ConfigError(f"{documents.folder.base}: {_UNBUILT}")
            columns = zip(*(table[name] for name in _COLUMNS), strict=True)
            for number, (id, source, language, score, hash) in enumerate(columns):
                if number not in redacted:
                    redaction = redactions.get(table[KEY_COLUMN][number], "")
                    yield _Entry(DocumentLocation(split, shard, number), id, source, language, score, hash, redaction)


def _match(
    one: Sequence[_Entry], other: Sequence[_Entry]
) -> tuple[list[tuple[_Entry, _Entry]], list[_Entry], list[_Entry]]:
    """Return the pairs of equal texts, then of equal sources and ids; then the rest of each side.

    A document that was redacted on the other side has no partner, even if that side has its text under another key.
    """
    pairs: list[tuple[_Entry, _Entry]] = []
    redacted = [[entry for entry in entries if entry.redaction] for entries in (one, other)]
    one, other = ([entry for entry in entries if not entry.redaction] for entries in (one, other))
    for identity in (lambda entry: entry.hash, lambda entry: (entry.source, entry.id)):
        waiting, left = defaultdict[Any, list[_Entry]](list), list[_Entry]()
        for entry in reversed(other):
            waiting[identity(entry)].append(entry)
        for entry in one:
            if partners := waiting.get(identity(entry)):
                pairs.append((entry, partners.pop()))
            else:
                left.append(entry)
        one, other = left, [entry for partners in waiting.values() for entry in partners]
    return pairs, [*one, *redacted[0]], sorted([*other, *redacted[1]])


def _groups(found: Iterator[tuple[str, str]]) -> dict[str, dict[str, int]]:
    groups: dict[str, dict[str, int]] = {}
    for name, kind in found:
        groups.setdefault(name, dict.fromkeys(KINDS, 0))[kind] += 1
    return dict(sorted(groups.items()))


def _settings(one: DatasetDocuments, other: DatasetDocuments) -> dict[str, list[Any]]:
    """Return the settings that differ, and the files of equal names whose contents differ, such as tokenizers."""
    differences = _differences(one.settings, other.settings)
    contents = [
        {
            f"{name}, contents": value
            for name, value in side.manifest.recipe.get("definitions", {}).items()
            if name != "rules" and _NAMED.get(name, name) not in differences
        }
        for side in (one, other)
    ]
    return differences | {name: pair for name, pair in _differences(*contents).items() if None not in pair}


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, list[Any]]:
    names = sorted(one.keys() | other.keys())
    return {name: [one.get(name), other.get(name)] for name in names if one.get(name) != other.get(name)}


def _rules(one: Manifest, other: Manifest) -> dict[str, dict[str, list[Any]]]:
    """Return the limits and the drops of each rule, or dropping step, if limits or drops differ."""
    described = [{rule["name"]: rule for rule in _described(manifest)} for manifest in (one, other)]
    dropped = [manifest.counts.get("dropped", {}) | manifest.counts.get("duplicates", {}) for manifest in (one, other)]
    names = dict.fromkeys(name for some in (*described, *dropped) for name in some)
    return {
        name: {
            "limits": [
                limits_text(rules[name]["min"], rules[name]["max"]) if name in rules else None for rules in described
            ],
            "dropped": [counts.get(name, 0) for counts in dropped],
        }
        for name in names
        if described[0].get(name) != described[1].get(name) or dropped[0].get(name, 0) != dropped[1].get(name, 0)
    }


def _described(manifest: Manifest) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = manifest.recipe.get("definitions", {}).get("rules", {}).get("rules", [])
    return rules


def stated_rules(manifest: Manifest) -> RuleSet:
    """Return the rules of a manifest that can be judged again.

    Rules of a user's module and rules of fields of records are left out, and rules that this release measures in another way.
    """
    rules = []
    for stated in _described(manifest):
        limits = {kind: stated[kind] for kind in ("min", "max") if stated[kind] is not None}
        parameters = {name: value for name, value in stated["parameters"].items() if not isinstance(value, dict)}
        texts = {name: stated.get(name, "") for name in ("name", "rule_set", "language", "script")}
        with suppress(ConfigError):
            rule = Rule(measure=stated["measure"].rpartition(".")[2], parameters=parameters, **texts, **limits)
            rule.bound()
            if rule.describe() == stated and "column" not in parameters:
                rules.append(rule)
    return RuleSet(rules)


def _why(
    entries: Sequence[_Entry], mine: DatasetDocuments, other: DatasetDocuments, judged: int, samples: int
) -> dict[str, Any]:
    """Return why the other dataset lacks documents of this one, the most frequent reason first."""
    chosen = evenly([entry for entry in entries if not entry.redaction], judged)
    drops = _judge([_document(mine, entry) for entry in chosen], other)
    redacted = [entry for entry in entries if entry.redaction]
    drops += [Drop("taken out after the build", entry.redaction) for entry in redacted]
    reasons: dict[str, dict[str, Any]] = {}
    for entry, drop in zip([*chosen, *redacted], drops, strict=True):
        reason = reasons.setdefault(drop.rule, {"documents": 0, "samples": []})
        reason["documents"] += 1
        if len(reason["samples"]) < samples:
            text = mine.text(entry.location)[:_EXCERPT]
            sample = _sample(mine, entry) | {"reason": drop.reason, "text": text}
            reason["samples"].append(sample)
    return dict(sorted(reasons.items(), key=lambda item: -item[1]["documents"]))


def _document(dataset: DatasetDocuments, entry: _Entry) -> Document:
    language = Language(entry.language or UNDETERMINED, entry.score or 0.0, "")
    return Document(dataset.text(entry.location), entry.id, "", 0, language=language)


def _judge(documents: Sequence[Document], other: DatasetDocuments) -> list[Drop]:
    """Return why a build with the settings of ``other`` drops each document, as far as its manifest tells."""
    settings, rules = other.settings, stated_rules(other.manifest)
    wanted = parse_languages(settings.get("language", []), settings.get("language_threshold", 0.0))
    drops = judge_measured(rules, measure(rules, documents))
    for number, document in enumerate(documents):
        assert document.language is not None
        drops[number] = judge_language(document, document.language, wanted) or drops[number]
    left = [number for number, drop in enumerate(drops) if drop is None]
    if left and any(info.name.startswith(SIGNATURES_NAME) for info in other.manifest.files):
        texts = [documents[number].text for number in left]
        found = search(other, texts, settings["dedup_threshold"], 1, Progress(quiet=True))
        for number, matches in zip(left, found, strict=True):
            for match in matches:
                drops[number] = Drop(f"a similarity of {match.likeness:.2f} to key {match.key}", DUPLICATE)
    return [drop or Drop("no rule drops it: another input, step or quota", UNKNOWN) for drop in drops]


def _sample(dataset: DatasetDocuments, entry: _Entry) -> dict[str, Any]:
    key = dataset.table(entry.location.shard)["key"][entry.location.document]
    return {"key": key, "id": entry.id, "source": entry.source, "language": entry.language}


def _changed(one: _Entry, other: _Entry, sides: Sequence[DatasetDocuments]) -> dict[str, Any]:
    texts = [side.text(entry.location) for side, entry in zip(sides, (one, other), strict=True)]
    first = next((k for k, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
    begin = max(0, first - _EXCERPT // 10)
    return _sample(sides[1], other) | {"character": first, "texts": [text[begin : begin + _EXCERPT] for text in texts]}
