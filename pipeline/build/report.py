"""What was kept, dropped and why, as one self-contained page beside the shards.

Text of the corpus is hostile: everything is escaped, nothing is loaded from elsewhere, no script runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..atomic import atomic_file
from ..shards.manifest import Manifest
from .progress import waterfall

REPORT_NAME = "report.html"
_TOP = 20  # languages and sources shown by name

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Build report</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; background: #f6f7f9; margin: 0 }
main { max-width: 1060px; margin: 0 auto; padding: 32px 24px }
h1 { font-size: 26px; margin: 0 0 4px } h2 { font-size: 18px; margin: 36px 0 12px }
.sub { color: #64707d } .cards { display: flex; gap: 12px; flex-wrap: wrap; margin-top: 20px }
.card { background: #fff; border-radius: 10px; padding: 14px 18px; min-width: 130px; box-shadow: 0 1px 3px #0002 }
.card b { display: block; font-size: 22px } table { border-collapse: collapse; width: 100%; background: #fff }
td, th { padding: 5px 10px; border-bottom: 1px solid #e6e9ed; text-align: left; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.bar { height: 14px; border-radius: 3px; background: #3b7dd8 } .bar.gone { background: #d8663b }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 14px }
.plot { background: #fff; border-radius: 10px; padding: 10px 12px; box-shadow: 0 1px 3px #0002 }
.plot h3 { font-size: 13px; margin: 0 0 6px } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: 12px }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 20px }
</style></head><body><main>
<h1>Build report</h1><div class="sub">{{ inputs|length }} input files, tokenizer {{ tokenizer.name }},
fingerprint {{ fingerprint[:16] }}</div>
<div class="cards">{% for value, name in cards %}<div class="card"><b>{{ value }}</b>{{ name }}</div>{% endfor %}</div>
<h2>From input to shards</h2><table>
{% for number, share, what in waterfall %}<tr><td class="n">{{ "{:,}".format(number) }}</td>
<td class="n">{{ "{:.1%}".format(share) }}</td>
<td style="width:45%"><div class="bar{{ ' gone' if number < 0 }}" style="width:{{ "%.2f"|format(100 * share) }}%"></div></td>
<td>{{ what }}</td></tr>{% endfor %}</table>
<h2>Splits</h2><table><tr><th>split</th><th>documents</th><th>tokens</th><th>shards</th></tr>
{% for name, split in splits %}<tr><td>{{ name }}</td><td class="n">{{ "{:,}".format(split.documents) }}</td>
<td class="n">{{ "{:,}".format(split.tokens) }}</td><td class="n">{{ split.shards|length }}</td></tr>{% endfor %}</table>
<div class="two">{% for title, rows in tables %}<div><h2>{{ title }}</h2><table>
{% for name, number in rows %}<tr><td>{{ name or "(none)" }}</td><td class="n">{{ "{:,}".format(number) }}</td></tr>
{% endfor %}</table></div>{% endfor %}</div>
<h2>Measures</h2><div class="sub">documents per value; red lines are the limits</div><div class="grid">
{% for plot in plots %}<div class="plot"><h3>{{ plot.name }}</h3>
<svg viewBox="0 0 200 60" width="100%" role="img" aria-label="histogram of {{ plot.name }}">
{% for x, y, height in plot.bars %}<rect x="{{ x }}" y="{{ y }}" width="4.6" height="{{ height }}" fill="#3b7dd8"/>
{% endfor %}{% for x in plot.limits %}<line x1="{{ x }}" x2="{{ x }}" y1="0" y2="60" stroke="#d83b3b"/>{% endfor %}
</svg><div class="sub">0 to {{ plot.top }}</div></div>{% endfor %}</div>
<h2>Samples</h2><table><tr><th>verdict</th><th>document</th><th>text</th></tr>
{% for verdict, rows in samples %}{% for row in rows %}<tr><td>{{ row.reason or "kept" }}</td><td>{{ row.id }}</td>
<td><pre>{{ row.text }}</pre></td></tr>{% endfor %}{% endfor %}</table>
<h2>Recipe</h2><table>{% for name, value in recipe %}<tr><td>{{ name }}</td><td><pre>{{ value }}</pre></td></tr>{% endfor %}
</table></main></body></html>
"""


def write_report(output: Path, manifest: Manifest) -> None:
    """Write ``report.html``: equal manifests give equal bytes."""
    with atomic_file(output / REPORT_NAME) as file:
        file.write(render(manifest).encode("utf-8", "replace"))


def render(manifest: Manifest) -> str:
    """Return the page."""
    from jinja2 import Environment

    counts = manifest.counts
    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    return page.render(
        inputs=manifest.inputs,
        tokenizer=manifest.tokenizer,
        fingerprint=manifest.fingerprint,
        cards=_cards(manifest),
        waterfall=waterfall(counts),
        splits=sorted(manifest.splits.items()),
        tables=[
            ("Languages read", _top(_documents(counts["by_language"], "read"))),
            ("Sources kept", _top(_documents(counts["by_source"], "kept"))),
            ("Lines cut", _top(counts["cut"])),
            (
                "Sizes of duplicate clusters",
                sorted(counts["cluster_sizes"].items(), key=lambda item: int(item[0]))[:_TOP],
            ),
        ],
        plots=[_plot(name, histogram) for name, histogram in counts["histograms"].items()],
        samples=sorted(counts["samples"].items()),
        recipe=sorted(manifest.recipe["settings"].items()),
    )


def _cards(manifest: Manifest) -> list[tuple[str, str]]:
    counts = manifest.counts
    return [
        (f"{counts['read']:,}", "documents read"),
        (f"{counts['kept']:,}", "documents kept"),
        (f"{counts['tokens']:,}", "tokens"),
        (f"{counts['kept_characters'] / max(1, counts['characters']):.1%}", "characters past the filters"),
        (f"{sum(counts['bad'].values()):,}", "unreadable records"),
    ]


def _documents(groups: dict[str, dict[str, Any]], name: str) -> dict[str, int]:
    return {group: held[name] for group, held in groups.items()}


def _top(counter: dict[str, int]) -> list[tuple[str, int]]:
    rows = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(number for _, number in rows[_TOP:])
    return rows[:_TOP] + ([("others", rest)] if rest else [])


def _plot(name: str, histogram: dict[str, Any]) -> dict[str, Any]:
    """Place the bars of a histogram on a field of 200 by 60, by the square root, so that rare values are seen."""
    counts, top = histogram["counts"], histogram["top"]
    highest = max(1, *counts) ** 0.5
    width = 200 / len(counts)
    heights = [round(58 * count**0.5 / highest, 2) for count in counts]
    bars = [(round(k * width, 2), round(60 - height, 2), height) for k, height in enumerate(heights) if height]
    limits = [round(200 * min(1.0, limit / top), 2) for limit in histogram["limits"]]
    return {"name": name, "top": f"{top:g}", "bars": bars, "limits": limits}
