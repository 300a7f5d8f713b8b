"""The counts of a whole build, as in its manifest: documents read, dropped by each rule, kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NotRequired, TypedDict

from ..outcome import DUPLICATES, KEPT, OF_DEDUP
from .samples import Sample
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


@dataclass(slots=True)
class BuildStats:
    """The counts that every build has, in ``counts`` of its manifest. Documents ``read`` or ``added`` are dropped, duplicates or
    kept. The manifest also has the counts that stages return (`Stage.count`).

    ``bad`` counts records without a document, by reason, ``dropped`` documents by rule, and ``cut`` lines by rule. ``histograms``
    has the bins of each rule.
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
    duplicates: dict[str, int] = field(default_factory=dict)
    duplicate_characters: dict[str, int] = field(default_factory=dict)
    cluster_sizes: dict[str, int] = field(default_factory=dict)
    token_lengths: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    by_source: dict[str, Group] = field(default_factory=dict)
    by_language: dict[str, Group] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Counts) -> BuildStats:
        """Return the statistics that follow from the counts of the partitions and of the split stage.

        Stages and the end of the build fill the other fields.
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
