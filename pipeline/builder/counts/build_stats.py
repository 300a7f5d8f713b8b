"""The counts of a whole build, as in its manifest, and their funnel: documents read, dropped by each rule, kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, NotRequired, TypedDict

from ...errors import BuildError
from ...shards.verify.balance import imbalances
from ..outcome import DUPLICATES, KEPT, OF_DEDUP
from .samples import ContaminatedItem, RepeatedPassage, Sample
from .sums import PASSED, Counts, Histogram

_IF_ANY = {"manifest": "unless empty"}  # marks fields that the manifest leaves out if they are empty


class Group(TypedDict):
    """The documents of a source or language, by outcome. ``dropped`` counts them by rule, ``duplicates`` by kind."""

    read: int
    characters: int
    dropped: dict[str, int]
    kept: int
    tokens: int
    duplicates: NotRequired[dict[str, int]]
    added: NotRequired[int]  # documents that transforms added; ``read`` leaves them out


class DamagedFile(TypedDict):
    """A file that could be read only up to ``line``. No checksum confirms ``unconfirmed`` of the documents before it."""

    file: str
    line: int
    fault: str
    unconfirmed: int


class Change(NamedTuple):
    """Documents and characters that ``what`` removed. If it added documents, ``documents`` is negative."""

    what: str
    documents: int
    characters: int


@dataclass(slots=True)
class BuildStats:
    """The counts of a build: ``counts`` of its manifest. Documents ``read`` or ``added`` are dropped, duplicates or kept.

    ``bad`` counts records without a document, by reason, ``dropped`` documents by rule, and ``cut`` lines by rule. ``histograms``
    has the bins of each rule.

    If repeated lines or paragraphs were cut, ``repeats`` counts ``passages`` and characters ``compared``; ``lines``,
    ``paragraphs`` and ``characters`` cut; and ``documents`` that were cut and kept.

    If runs of words were compared, ``passages`` counts the ``passages`` that occur earlier, their ``words`` and ``documents``;
    documents that were ``cut`` and kept; and ``characters`` cut from them.

    ``leaks`` compares ``documents`` of validation, ``of`` all, with training. It counts those that are ``equal`` to a training
    document, others of which training has 80% of the words or more (``mostly``), all ``words``, and ``shared_words``: those in
    runs of 13 words that training has.

    If documents hold items of evaluation sets, ``contaminated_items`` lists these items, those in most documents first, and
    ``contamination`` counts documents that were ``cut`` or ``marked`` and kept, and ``characters`` cut from them.
    """

    read: int = 0
    characters: int = 0
    passed_filters: int = 0
    kept: int = 0
    kept_characters: int = 0
    tokens: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    bad_by_source: dict[str, int] = field(default_factory=dict)
    damaged: list[DamagedFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list, metadata=_IF_ANY)  # sentences for the report
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_characters: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    edited: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)  # documents, by the user's transform
    added: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)  # documents, by the user's transform
    repeats: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)
    passages: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)
    repeated_passages: list[RepeatedPassage] = field(default_factory=list, metadata=_IF_ANY)  # that occur most
    contamination: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)
    contaminated_items: list[ContaminatedItem] = field(default_factory=list, metadata=_IF_ANY)
    leaks: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)
    duplicates: dict[str, int] = field(default_factory=dict)
    duplicate_characters: dict[str, int] = field(default_factory=dict)
    cluster_sizes: dict[str, int] = field(default_factory=dict)
    near_cluster_sizes: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)  # of more than one text
    token_lengths: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    by_source: dict[str, Group] = field(default_factory=dict)
    by_language: dict[str, Group] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Counts) -> BuildStats:
        """Return the statistics that follow from the counts of the partitions and of the split stage.

        Stages and the report fill the other fields.
        """
        dropped, sizes = counts.by("filtered", 2), counts.by("characters of filtered", 2)
        final, final_sizes = counts.by("final", 2), counts.by("characters of final", 2)
        passed, added, kept = dropped.pop(PASSED, 0), counts.by("added"), OF_DEDUP[KEPT].key
        for key in sorted(final.keys() - {kept, *DUPLICATES}):
            dropped[key] = dropped.get(key, 0) + final[key]
            sizes[key] = sizes.get(key, 0) + final_sizes[key]
        lengths = {str(2 ** int(power)): number for power, number in counts.by("token lengths").items()}
        return cls(
            read=sum(counts.by("filtered").values()) - sum(added.values()),
            characters=counts.numbers["read characters",],
            passed_filters=passed,
            kept=final.get(kept, 0),
            kept_characters=final_sizes.get(kept, 0),
            tokens=sum(counts.by("tokens").values()),
            bad=counts.by("bad"),
            bad_by_source=counts.by("bad by source"),
            cut=counts.by("cut"),
            edited=counts.by("edited"),
            repeats=counts.by("repeats"),
            passages=counts.by("passages"),
            contamination=counts.by("contamination"),
            dropped=dropped,
            dropped_characters={key: sizes[key] for key in dropped},
            added=added,
            duplicate_characters={key: final_sizes.get(key, 0) for key in DUPLICATES},
            token_lengths=lengths,
            histograms=counts.histograms,
            by_source=_groups(counts, 0),
            by_language=_groups(counts, 1),
        )

    def to_json(self) -> dict[str, Any]:
        values = {item: getattr(self, item.name) for item in fields(self)}
        return {item.name: value for item, value in values.items() if value or item.metadata != _IF_ANY}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildStats:
        known = {item.name for item in fields(cls)}
        return cls(**{name: count for name, count in value.items() if name in known})

    def check(self) -> None:
        """Raise ``BuildError`` if the counts do not add up, in total or for a source or language."""
        for imbalance in imbalances(self.to_json()):
            raise BuildError(f"{imbalance}: this is a fault of the builder, not of the input; please report it")


def _groups(counts: Counts, at: int) -> dict[str, Group]:
    """Return the outcomes of the documents of each source (``at`` 0) or language (1).

    Outcomes add up to the documents ``read`` and ``added``.
    """
    characters, tokens = counts.by("characters of filtered", at), counts.by("tokens", at)
    groups: dict[str, Group] = {
        name: {"read": number, "characters": characters[name], "dropped": {}, "kept": 0, "tokens": tokens.get(name, 0)}
        for name, number in counts.by("filtered", at).items()
    }
    for name, number in counts.by("added to", at).items():
        groups[name]["read"] -= number
        groups[name]["added"] = number
    for (name, outcome), number in counts.groups("filtered", at, 2):
        if outcome != PASSED:
            groups[name]["dropped"][outcome] = number
    for (name, outcome), number in counts.groups("final", at, 2):
        if outcome == OF_DEDUP[KEPT].key:
            groups[name]["kept"] = number
        elif outcome in DUPLICATES:
            groups[name].setdefault("duplicates", {})[outcome] = number
        else:
            groups[name]["dropped"][outcome] = groups[name]["dropped"].get(outcome, 0) + number
    return groups


def size_classes(sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return the sizes 2, 3 to 4, 5 to 8 and so on, each with its number of clusters and of documents in these clusters.

    >>> size_classes({"2": 7, "3": 1, "4": 1, "8": 1})
    [('2', 7, 14), ('3 to 4', 2, 7), ('5 to 8', 1, 8)]
    """
    clusters, documents = Counter[int](), Counter[int]()
    for size, number in sizes.items():
        power = (int(size) - 1).bit_length()
        clusters[power] += number
        documents[power] += number * int(size)
    names = {power: f"{(1 << power - 1) + 1:,} to {1 << power:,}" if power > 1 else "2" for power in sorted(clusters)}
    return [(name, clusters[power], documents[power]) for power, name in names.items()]


class FunnelRow(NamedTuple):
    """A row of the funnel. ``documents`` is negative if it counts removed documents."""

    what: str
    documents: int
    share: float  # of these documents in the documents read or added
    left_share: float  # of the documents left after this row in the documents read or added
    tokens: int
    is_change: bool = True
    is_exact: bool = False  # whether the tokens are counted, not estimated from characters


def funnel(stats: BuildStats, changes: Iterable[Change]) -> list[FunnelRow]:
    """Return a row for the input, a row for each change of documents or text, and a row for the kept documents.

    The documents and tokens of the last row are the sums of all earlier rows.
    """
    left, every = stats.read, max(1, stats.read + sum(stats.added.values()))
    characters = stats.characters
    listed = [*changes]
    # Nothing counts the characters that normalising, cleaners and the user's transforms cut or added: they are the rest.
    if edited := characters - sum(change.characters for change in listed) - stats.kept_characters:
        listed.append(Change("texts edited", 0, edited))

    def tokens_of(characters: int) -> int:
        return round(characters * stats.tokens / max(1, stats.kept_characters))

    rows = [FunnelRow("documents read", left, left / every, left / every, tokens_of(characters), is_change=False)]
    for what, documents, removed in listed:
        left, before, characters = left - documents, tokens_of(characters), characters - removed
        rows.append(FunnelRow(what, -documents, abs(documents) / every, left / every, tokens_of(characters) - before))
    kept = FunnelRow(
        "documents kept", stats.kept, stats.kept / every, left / every, stats.tokens, is_change=False, is_exact=True
    )
    return [*rows, kept]
