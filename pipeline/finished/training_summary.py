"""The parts of the public summary of training content that a dataset answers, as Markdown.

Headings, their numbers and the ranges of sizes come from the European Commission's communication C(2025) 8311 final of 5 December
2025. Its title is "Explanatory Notice and Template for the Public Summary of Training Content for general-purpose AI models
required by Article 53(1)(d) of Regulation (EU) 2024/1689". `FILL_IN` marks the facts that a dataset does not know: the provider
fills them in.

No number counts redacted documents, whose tokens are end-of-text ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from filters.rules.rule import limits_text

from ..builder.counts.attribution import Pairs, add_pair
from ..builder.counts.build_stats import BuildStats
from ..builder.counts.sums import descending
from ..builder.recipe import parse_licenses
from ..builder.report.html import explained
from ..shards.manifest import Manifest

FILL_IN = "*(to be filled in by the provider)*"
UNKNOWN = "unknown"
_MARKS = ((10**9, "Less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))


def licenses_of(manifest: Manifest, attribution: Mapping[str, Any]) -> dict[str, Pairs]:
    """Return the documents and tokens under each licence of each source.

    A document has the licence in its field ``license``, else the licence that the build's ``license`` names for its source, else
    ``unknown``.
    """
    sums: Pairs = {}
    source_of = {info.name: info.source for info in manifest.shards}
    for info in manifest.shards:
        add_pair(sums, info.source, [info.documents, info.tokens])
    for document in manifest.redacted_documents:
        add_pair(sums, source_of[document["shard"]], [-1, -document["tokens"]])
    stated = parse_licenses(manifest.recipe.get("settings", {}).get("license", ()))
    licenses: dict[str, Pairs] = {}
    for source in sums:
        counted = attribution.get("licenses", {source: {"": sums[source]}}).get(source, {})
        for name, pair in counted.items():
            add_pair(licenses.setdefault(source, {}), name or stated.get(source, stated.get("", UNKNOWN)), pair)
    return licenses


def training_summary(manifest: Manifest, name: str, attribution: Mapping[str, Any], built: str | None) -> str:
    """Return the summary of a dataset; ``built`` is the day of its build, None if unknown."""
    stats, licenses = BuildStats.from_json(manifest.counts), licenses_of(manifest, attribution)
    languages = {name: [group["kept"], group["tokens"]] for name, group in stats.by_language.items()}
    for document in manifest.redacted_documents:
        add_pair(languages, document.get("language", ""), [-1, -document["tokens"]])
    documents, tokens = (sum(pair[at] for some in licenses.values() for pair in some.values()) for at in (0, 1))
    size = next((told for most, told in _MARKS if tokens < most), "More than 10 trillion tokens")
    dates = attribution.get("dates", {})
    last = max((last for _, last, _ in dates.values()), default="")
    parts = [
        f"# Public summary of training content: the dataset {name}",
        "The data parts of the European Commission's template (Article 53(1)(d) of the AI Act, C(2025) 8311). "
        f"Provider, model and all that the dataset cannot know: {FILL_IN}.",
        "## 1.3 Modalities, overall training data size and other characteristics",
        _table(("modality", "size", "tokens", "documents"), [("text", size, tokens, documents)]),
        f"Latest date of data acquisition/collection for model training, by the field `date`: {last or FILL_IN}. "
        f"Built: {built or UNKNOWN}.",
        "Linguistic characteristics of the overall training data, by the build's language identification:",
        _table(
            ("language", "documents", "tokens", "share of tokens"),
            [
                (name, number, size, f"{size / max(1, tokens):.2%}")
                for name, (number, size) in sorted(languages.items(), key=lambda item: (-item[1][1], item[0]))
                if number > 0
            ],
        ),
        "## 2. List of data sources",
        "Whether a source is a publicly available dataset (2.1), a private one of third parties (2.2), crawled (2.3), user data "
        f"(2.4), synthetic (2.5) or another (2.6): {FILL_IN}.",
        _table(
            ("source", "files", "bytes read", "documents", "tokens", "licences", "dates"),
            [_source(source, manifest, licenses[source], dates.get(source)) for source in licenses],
        ),
        "## 2.3 Data crawled and scraped from online sources",
        "Summary of the most relevant domain names:",
        *_domains(attribution.get("domains")),
        "## 3. Data processing aspects",
        "## 3.1 Respect of reservation of rights from text and data mining exception or limitation",
        *_removals(manifest),
        "## 3.2 Removal of illegal content",
        FILL_IN,
        "## 3.3 Other information",
        "What was left out, and why: documents by rule, duplicates by kind, records that could not be read.",
        _table(("why", "documents", "measured: kept"), _left_out(stats, manifest.recipe.get("definitions", {}))),
    ]
    return "\n\n".join(parts) + "\n"


def _source(
    source: str, manifest: Manifest, licenses: Mapping[str, Sequence[int]], dates: Sequence[Any] | None
) -> tuple[Any, ...]:
    inputs = [item["bytes"] for item in manifest.inputs if item["source"] == source]
    documents, tokens = (sum(pair[at] for pair in licenses.values()) for at in (0, 1))
    licensed = ", ".join(f"{name} ({pair[1]:,} tokens)" for name, pair in sorted(licenses.items()))
    period = f"{dates[0]} to {dates[1]}" if dates and dates[0] else UNKNOWN
    undated = f", {dates[2]:,} without" if dates and dates[0] and dates[2] else ""
    return source or "unnamed", len(inputs), sum(inputs), documents, tokens, licensed, period + undated


def _domains(domains: Mapping[str, Any] | None) -> list[str]:
    if domains is None:
        return [f"Not counted: the build kept no field `url` (`--keep-fields url`). {FILL_IN}"]
    about = "" if domains["is_exact"] else "about "
    error = "" if domains["is_exact"] else f" A count may lack up to {domains['error_tokens']:,} tokens."
    documents, tokens = domains["without"]
    caption = (
        f"The {len(domains['top']):,} largest of {about}{domains['count']:,} domains, by tokens.{error} Documents without a url: "
        f"{documents:,}, of {tokens:,} tokens."
    )
    return [caption, _table(("domain", "documents", "tokens"), domains["top"])]


def _left_out(stats: BuildStats, definitions: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return why documents were left out, the most frequent reason first, and what its rule measures and keeps."""
    rules = {rule["name"]: rule for rule in definitions.get("rules", {}).get("rules", ())}
    explanations = {
        name: f"{explained(rule)}: {limits_text(rule.get('min'), rule.get('max'))}" for name, rule in rules.items()
    }
    numbers = stats.dropped | {f"{kind} duplicate": number for kind, number in stats.duplicates.items()}
    numbers |= {f"unreadable: {reason}": number for reason, number in stats.bad.items()}
    return [(name, number, explanations.get(name, "")) for name, number in descending(numbers) if number]


def _removals(manifest: Manifest) -> list[str]:
    before = f"Measures before the build, such as robots.txt: {FILL_IN}."
    rows = [(one["date"][:10], one["reason"], len(one["keys"]), one["tokens"]) for one in manifest.removals]
    if not rows:
        return [before, "Documents that were taken out after the build: none."]
    caption = "Documents that were taken out after the build; the documents and tokens above lack them:"
    return [before, caption, _table(("date", "reason", "documents", "tokens"), rows)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown; numbers have commas."""

    def shown(cell: Any) -> str:
        return f"{cell:,}" if isinstance(cell, int) else " ".join(str(cell).split()).replace("|", "\\|")

    lines = [list(map(shown, row)) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])
