"""The build report: what was kept, what was dropped and why, as one self-contained page beside the shards.

Text of the corpus is hostile: everything is escaped, nothing is loaded from elsewhere, no script runs. Equal builds give
equal bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filters import measure_functions, share, summary
from filters.rules.rule import limits_text

from ...atomic import atomic_file
from ...shards.manifest import REPORT_NAME, Manifest
from ..counts.build_stats import BuildStats, Group
from ..counts.samples import SAMPLE_CHARACTERS, NearestTexts, Sample
from ..counts.sums import Histogram, descending
from ..dedup.decontaminate import describe_short
from ..recipe import command_line
from ..stages.registry import sections
from .console import damage_text
from .funnel import FunnelRow, funnel

if TYPE_CHECKING:
    from jinja2 import Template

_Parts = list[tuple[str, bool]]  # the parts of a text, and whether each is marked
_HEIGHT = 60  # of a histogram, in units of its drawing; it is 100 wide, so that positions are percents


def write_report(output: Path, manifest: Manifest, nearest: NearestTexts) -> None:
    """Write ``report.html`` into a dataset directory."""
    with atomic_file(output / REPORT_NAME) as file:
        file.write(render(manifest, nearest).encode("utf-8", "replace"))


@cache
def _page() -> Template:
    """Return the page's template, compiled once in a process: compiling takes longer than filling it in."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters |= {"whole": "{:,}".format, "percent": "{:.1%}".format}
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def render(manifest: Manifest, nearest: NearestTexts) -> str:
    """Return the page; ``nearest`` are the texts nearest to the limits."""
    stats, recipe, shown = BuildStats.from_json(manifest.counts), manifest.recipe, sections(manifest.counts)
    rules = {rule["name"]: rule for rule in recipe["definitions"]["rules"]["rules"]}
    groups = [("Languages", group_rows(stats.by_language))]
    if set(stats.by_source) != {""}:
        groups.insert(0, ("Sources", group_rows(stats.by_source)))
    return _page().render(
        inputs=manifest.inputs,
        megabytes=sum(item["bytes"] for item in manifest.inputs) / 1e6,
        tokenizer=manifest.tokenizer,
        fewer_ids=manifest.tokenizer["name"].startswith("train:")
        and manifest.tokenizer["name"] != f"train:{manifest.tokenizer['vocab_size']}",
        fingerprint=manifest.fingerprint,
        cards=_cards(stats),
        funnel=_bars(funnel(manifest.counts)),
        bad=descending(stats.bad),
        notes=stats.notes,
        damaged=stats.damaged,
        damage=damage_text(stats.damaged),
        too_short=describe_short(short) if (short := recipe["definitions"].get("too_short")) else "",
        splits=sorted(manifest.splits.items()),
        groups=groups,
        added=bool(stats.added),
        shapes=[
            _sizes("tokens a document", stats.token_lengths),
            _sizes("documents a duplicate cluster", stats.cluster_sizes),
        ],
        plots=[
            {
                **_measure(rules.get(name, {}), name, stats.histograms[name]),
                "dropped": number,
                "sides": nearest.get(name),
            }
            for name, number in descending({name: stats.dropped.get(name, 0) for name in stats.histograms})
        ],
        about_splits=[each for section in shown for each in section.about_splits],
        cuts=[each for section in shown for each in section.cuts],
        tables=[each for section in shown for each in section.tables],
        samples=_samples(stats),
        command=command_line(recipe["settings"], [item["source"] for item in manifest.inputs]),
        recipe=sorted(recipe["settings"].items()),
    )


def _cards(stats: BuildStats) -> list[tuple[str, str]]:
    duplicates = sum(stats.duplicates.values())
    return [
        (f"{stats.read:,}", "documents read"),
        (f"{stats.kept:,}", f"kept, {share(stats.kept, stats.read + sum(stats.added.values())):.1%}"),
        (f"{stats.tokens:,}", "tokens"),
        (f"{stats.kept_characters:,}", f"characters, {share(stats.kept_characters, stats.characters):.1%}"),
        (f"{duplicates:,}", f"duplicates, {share(duplicates, stats.passed_filters):.1%} of what passed"),
        (f"{sum(stats.bad.values()):,}", "unreadable records"),
    ]


def _samples(stats: BuildStats) -> list[tuple[str, int | None, list[dict[str, Any]]]]:
    """Return the outcomes with their numbers and samples: first the kept documents, then outcomes by falling number."""
    numbers = {**stats.dropped, **{f"{kind} duplicates": number for kind, number in stats.duplicates.items()}}
    numbers["kept"] = stats.kept
    outcomes = sorted(stats.samples, key=lambda name: (name != "kept", -numbers.get(name, 0), name))
    return [
        (name, numbers.get(name), [{**sample, "pair": _beside_original(sample)} for sample in stats.samples[name]])
        for name in outcomes
    ]


def _beside_original(sample: Sample) -> list[tuple[str, _Parts]]:
    """Return a near duplicate and the text kept in its place, each in `_differences`."""
    if "original" not in sample:
        return []
    dropped, kept = _differences(sample["text"], sample["original"])
    same = "" if any(changed for _, changed in dropped + kept) else "; these words are equal"
    return [("dropped", dropped), (f"kept in its place{same}", kept)]


def _differences(*both: str) -> tuple[_Parts, _Parts]:
    """Return two texts in parts. A part that the other text lacks is marked.

    White space is not compared: the same licence is often wrapped at two widths.
    """
    ends = [-1 if len(text) == SAMPLE_CHARACTERS else None for text in both]  # a word may be cut in two
    words = [re.findall(r"\w+|\s+|[^\w\s]", text)[:end] for text, end in zip(both, ends, strict=True)]
    keys = [[" " if word.isspace() else word for word in some] for some in words]
    edits = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes()
    if -1 in ends and edits[-1][0] in ("delete", "insert"):
        edits[-1] = ("equal", *edits[-1][1:])  # one text ends earlier only because it is cut off
    first = [("".join(words[0][i:j]), tag != "equal") for tag, i, j, _, _ in edits if j > i]
    second = [("".join(words[1][i:j]), tag != "equal") for tag, _, _, i, j in edits if j > i]
    return first, second


def _bars(rows: Sequence[FunnelRow]) -> list[dict[str, object]]:
    """Return the rows of the funnel with their bars: the share left, and the share that the row removed, in percent."""
    left = [*accumulate(row.tokens for row in rows[:-1]), rows[-1].tokens]
    whole = max(1, *left)
    return [
        {
            "what": row.what,
            "documents": row.documents,
            "share": row.share,
            "tokens": f"{'' if row.is_exact else '≈ '}{row.tokens:,}",
            "bars": [
                (
                    0,
                    7,
                    round(100 * row.left_share, 2),
                    round(100 * row.share, 2) * (row.is_change and row.documents < 0),
                ),
                (9, 3, round(100 * tokens / whole, 2), round(max(0, -100 * row.tokens) / whole, 2)),
            ],
        }
        for row, tokens in zip(rows, left, strict=True)
    ]


class _GroupRow(NamedTuple):
    """The documents of a source or language, and the widths of their bars in percent of the widest."""

    name: str
    read: int
    added: int
    dropped: int
    duplicates: int
    kept: int
    tokens: int
    width: float = 0.0
    kept_width: float = 0.0


def group_rows(groups: Mapping[str, Group], most: int = 20) -> list[_GroupRow]:
    """Return a row for each of the largest sources or languages, and one for all others."""
    rows = []
    for name, group in groups.items():
        dropped, duplicates = sum(group["dropped"].values()), sum(group.get("duplicates", {}).values())
        rows.append(
            _GroupRow(name, group["read"], group.get("added", 0), dropped, duplicates, group["kept"], group["tokens"])
        )
    rows.sort(key=lambda row: (-row.read, row.name))
    if rest := rows[most:]:
        sums = (sum(column) for column in zip(*(row[1:7] for row in rest), strict=True))
        rows[most:] = [_GroupRow(f"{len(rest)} others", *sums)]
    widest = max((row.read + row.added for row in rows), default=0)

    def width(documents: int) -> float:
        return round(100 * share(documents, widest), 2)

    return [row._replace(width=width(row.read + row.added), kept_width=width(row.kept)) for row in rows]


def _measure(rule: Mapping[str, Any], name: str, histogram: Histogram) -> dict[str, object]:
    """Return the histogram of a measure as a plot, with the limits of its rule and what the measure counts."""
    top, counts = histogram["top"], histogram["counts"]

    def value(x: float) -> float:
        return float((1 + top) ** x - 1 if histogram["log"] else top * x)

    def position(value: float) -> float:
        return math.log1p(value) / math.log1p(top) if histogram["log"] else value / top

    def percent(value: float) -> float:
        return round(100 * min(1.0, max(0.0, position(value))), 2)

    edges = [value(k / len(counts)) for k in range(len(counts) + 1)]
    titles = [f"{n:,} from {low:.4g} to {high:.4g}" for n, (low, high) in zip(counts, pairwise(edges), strict=True)]
    middle = 10.0 ** round(math.log10(value(0.5))) if histogram["log"] else top / 2
    ticks = [(0.0, "0"), (position(middle), f"{middle:,.15g}"), (1.0, f"{top:,.15g}+")]
    limits = [(percent(limit), f"{limit:,.15g}") for limit in histogram["limits"]]
    low, high = percent(rule.get("min") or 0), percent(top if rule.get("max") is None else rule["max"])
    return {
        **_plot(name, counts, titles, ticks),
        "limits": limits,
        "outside": [(0, low), (high, 100 - high)],
        "text": explained(rule),
        "kept": f"kept: {limits_text(rule.get('min'), rule.get('max'))}" if rule else "",
    }


def explained(rule: Mapping[str, Any]) -> str:
    """Return what a rule of a recipe measures; '' if this release lacks the measure."""
    function = measure_functions().get(str(rule.get("measure", "")).rpartition(".")[2])
    return "" if function is None else summary(function)


def _sizes(name: str, sizes: Mapping[str, int]) -> dict[str, object]:
    """Return the histogram of sizes as a plot, by powers of two."""
    powers: dict[int, int] = {}
    for size, number in sizes.items():
        power = max(1, int(size)).bit_length() - 1
        powers[power] = powers.get(power, 0) + number
    low, high = min(powers, default=0), max(powers, default=0)
    counts = [powers.get(power, 0) for power in range(low, high + 1)]
    titles = [f"{n:,} from {2**p:,} to {2 ** (p + 1) - 1:,}" for p, n in enumerate(counts, low)]
    middle = len(counts) // 2
    ticks = [
        (0.0, f"{2**low:,}"),
        (middle / len(counts), f"{2 ** (low + middle):,}"),
        (1.0, f"{2 ** (high + 1) - 1:,}"),
    ]
    return _plot(name, counts, titles, ticks if middle else ticks[::2])


def _plot(
    name: str, counts: Sequence[int], titles: Sequence[str], ticks: Sequence[tuple[float, str]]
) -> dict[str, object]:
    """Return a plot: bars with heights by square roots, so that rare values are seen, and labels at shares of its width."""
    highest = max(1, *counts) ** 0.5
    width = 100 / len(counts)
    heights = [round(_HEIGHT * count**0.5 / highest, 2) for count in counts]
    bars = [
        {"x": round(k * width, 2), "y": round(_HEIGHT + 2 - height, 2), "height": height, "title": title}
        for k, (height, title) in enumerate(zip(heights, titles, strict=True))
        if height
    ]
    labels = [(round(100 * at, 2), label) for at, label in ticks]
    return {"name": name, "bars": bars, "width": round(width * 0.9, 2), "ticks": labels}
