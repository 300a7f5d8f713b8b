"""What was kept, dropped and why, as one self-contained page beside the shards.

Text of the corpus is hostile: everything is escaped, nothing is loaded from elsewhere, no script runs. The page shows
nothing but the manifest: equal manifests give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...atomic import atomic_file
from ...shards.manifest import Manifest
from .console import damage_said
from .template import FIGURE, PAGE

REPORT_NAME = "report.html"
_TOP = 20  # languages and sources shown by name
_HEIGHT = 60  # of a histogram, in units of its drawing; it is 200 wide


def write_report(output: Path, manifest: Manifest) -> None:
    """Write ``report.html`` into a dataset directory."""
    with atomic_file(output / REPORT_NAME) as file:
        file.write(render(manifest).encode("utf-8", "replace"))


def render(manifest: Manifest) -> str:
    """Return the page."""
    from jinja2 import Environment

    counts, recipe = manifest.counts, manifest.recipe
    page = Environment(autoescape=True, trim_blocks=True).from_string(FIGURE + PAGE)
    groups = [("Languages", _groups(counts["by_language"]))]
    if set(counts["by_source"]) != {""}:
        groups.insert(0, ("Sources", _groups(counts["by_source"])))
    return page.render(
        inputs=manifest.inputs,
        megabytes=sum(item["bytes"] for item in manifest.inputs) / 1e6,
        tokenizer=manifest.tokenizer,
        fingerprint=manifest.fingerprint,
        cards=_cards(manifest),
        waterfall=_waterfall(counts),
        bad=_descending(counts["bad"]),
        damaged=counts["damaged"],
        damage=damage_said(counts["damaged"]),
        splits=sorted(manifest.splits.items()),
        groups=groups,
        shapes=[
            _sizes("tokens a document", counts["token_lengths"]),
            _sizes("documents a duplicate cluster", counts["cluster_sizes"]),
        ],
        plots=[_measure(name, histogram) for name, histogram in counts["histograms"].items()],
        cut=_cut(counts),
        samples=sorted(counts["samples"].items(), key=lambda item: (item[0] != "kept", item[0])),
        recipe=sorted(recipe["settings"].items()),
        rules=recipe["definitions"]["rules"]["rules"],
    )


def _cards(manifest: Manifest) -> list[tuple[str, str]]:
    counts = manifest.counts
    duplicates = sum(counts["duplicates"].values())
    return [
        (f"{counts['read']:,}", "documents read"),
        (f"{counts['kept']:,}", f"kept, {_share(counts['kept'], counts['read']):.1%}"),
        (f"{counts['tokens']:,}", "tokens"),
        (
            f"{counts['kept_characters']:,}",
            f"characters, {_share(counts['kept_characters'], counts['characters']):.1%}",
        ),
        (f"{duplicates:,}", f"duplicates, {_share(duplicates, counts['passed_filters']):.1%} of what passed"),
        (f"{sum(counts['bad'].values()):,}", "unreadable records"),
    ]


def _cut(counts: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return what was cut from documents: lines by rule, and what stood before in the corpus."""
    repeats = counts.get("repeats", {})
    named = [(f"{name} that stood before", repeats[name]) for name in ("lines", "paragraphs") if name in repeats]
    if named:
        named += [
            ("characters of these", repeats["characters"]),
            ("documents they were cut from", repeats["documents"]),
        ]
    return _descending(counts["cut"]) + named


def _waterfall(counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for the input, for everything that took documents away, and for what was left."""
    each = _share(counts["tokens"], counts["kept_characters"])  # tokens a character, as kept
    left = counts["read"]
    rows = [_row("documents read", left, left, 0, counts["read"], f"≈ {counts['characters'] * each:,.0f}")]
    losses = [
        (f"dropped by {name}", number, counts["dropped_characters"].get(name, 0))
        for name, number in _descending(counts["dropped"])
    ]
    if repeats := counts.get("repeats"):
        losses.append((f"cut from {repeats['documents']:,} documents, for it stood before", 0, repeats["characters"]))
    losses += [
        (f"{kind} duplicates", counts["duplicates"][kind], counts["duplicate_characters"][kind])
        for kind in ("exact", "near")
    ]
    for what, number, characters in losses:
        left -= number
        rows.append(_row(what, -number, left, number, counts["read"], f"≈ {-characters * each:,.0f}"))
    return [*rows, _row("documents kept", counts["kept"], left, 0, counts["read"], f"{counts['tokens']:,}")]


def _row(what: str, documents: int, left: int, took: int, read: int, tokens: str) -> dict[str, Any]:
    return {
        "what": what,
        "documents": documents,
        "share": _share(abs(documents), read),
        "tokens": tokens,
        "left": round(100 * _share(left, read), 2),
        "took": round(100 * _share(took, read), 2),
    }


def _groups(groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each of the largest groups, and one for all others."""
    rows = []
    for name, held in groups.items():
        dropped, duplicates = sum(held["dropped"].values()), sum(held.get("duplicates", {}).values())
        numbers = {"read": held["read"], "dropped": dropped, "duplicates": duplicates}
        rows.append({"name": name, **numbers, "kept": held["kept"], "tokens": held["tokens"]})
    rows.sort(key=lambda row: (-row["read"], row["name"]))
    if len(rows) > _TOP:
        rest = rows[_TOP:]
        names = ("read", "dropped", "duplicates", "kept", "tokens")
        rows = [*rows[:_TOP], {"name": f"{len(rest)} others", **{n: sum(row[n] for row in rest) for n in names}}]
    widest = max((row["read"] for row in rows), default=0)
    for row in rows:
        row |= {"width": round(100 * _share(row["read"], widest), 2)}
        row |= {"kept_width": round(100 * _share(row["kept"], widest), 2)}
    return rows


def _measure(name: str, histogram: Mapping[str, Any]) -> dict[str, Any]:
    """Draw how many documents had which value of a measure, and its limits."""
    top, counts = histogram["top"], histogram["counts"]

    def value(share: float) -> float:
        return float((1 + top) ** share - 1 if histogram["log"] else top * share)

    def share(value: float) -> float:
        return math.log1p(value) / math.log1p(top) if histogram["log"] else value / top

    edges = [value(k / len(counts)) for k in range(len(counts) + 1)]
    titles = [f"{n:,} from {low:.4g} to {high:.4g}" for n, (low, high) in zip(counts, pairwise(edges), strict=True)]
    limits = [round(200 * min(1.0, max(0.0, share(limit))), 2) for limit in histogram["limits"]]
    return _plot(name, counts, titles, limits, ["0", f"{value(0.5):.4g}", f"{top:,.6g} and more"])


def _sizes(name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Draw how many documents or clusters had which size, by powers of two."""
    powers: dict[int, int] = {}
    for size, number in sizes.items():
        power = max(1, int(size)).bit_length() - 1
        powers[power] = powers.get(power, 0) + number
    low, high = min(powers, default=0), max(powers, default=0)
    counts = [powers.get(power, 0) for power in range(low, high + 1)]
    titles = [f"{n:,} from {2**p:,} to {2 ** (p + 1) - 1:,}" for p, n in enumerate(counts, low)]
    return _plot(name, counts, titles, [], [f"{2**low:,}", "", f"{2 ** (high + 1) - 1:,}"])


def _plot(
    name: str, counts: Sequence[int], titles: Sequence[str], limits: list[float], marks: list[str]
) -> dict[str, Any]:
    """Place bars on the drawing, by the square root, so that rare values are seen."""
    highest = max(1, *counts) ** 0.5
    width = 200 / len(counts)
    heights = [round(_HEIGHT * count**0.5 / highest, 2) for count in counts]
    bars = [
        {"x": round(k * width, 2), "y": round(_HEIGHT + 2 - height, 2), "height": height, "title": title}
        for k, (height, title) in enumerate(zip(heights, titles, strict=True))
        if height
    ]
    low, middle, high = marks
    places = {"low": low, "middle": middle, "high": high}
    return {"name": name, "bars": bars, "width": round(width * 0.9, 2), "limits": limits, **places}


def _descending(counter: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
