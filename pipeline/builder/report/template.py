"""The page that html.py fills: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Build report of dataset {{ fingerprint[:16] }}</title>
<style>
:root { --ink: #16202b; --soft: #5d6a78; --line: #e3e7ec; --page: #f5f6f8; --card: #fff; --kept: #2f74d0;
  --gone: #dd7a4d; --limit: #c9302c; print-color-adjust: exact; color-scheme: light dark }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #98a4b1; --line: #2b343e; --page: #12171d;
  --card: #1a2128; --kept: #5b9bf0; --gone: #e08e66; --limit: #ff6b66 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 80px }
h1 { font-size: 28px; letter-spacing: -.02em; margin: 0 } h2 { font-size: 19px; margin: 44px 0 4px }
.soft, th { color: var(--soft) } .soft { margin: 0 0 14px } code { font-size: 13px }
.panel + .soft { margin-top: 10px }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 24px }
.card, figure, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px }
.card { padding: 14px 16px } .card b { display: block; font-size: 21px; letter-spacing: -.02em }
.panel { padding: 8px 14px; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td, th { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  font-weight: normal } tr:last-child td { border: 0 }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.track { width: 34%; min-width: 160px; vertical-align: middle }
summary:focus-visible, .panel:focus-visible { outline: 2px solid var(--kept); outline-offset: 2px; border-radius: 4px }
svg { display: block; width: 100% } .kept { fill: var(--kept) } .gone { fill: var(--gone) } .rest { fill: var(--line) }
.limit { stroke: var(--limit); stroke-dasharray: 3 2; vector-effect: non-scaling-stroke }
.outside { fill: var(--gone); opacity: .16 }
.plot { max-width: 320px } .plot svg { height: 90px }
.axis { position: relative; height: 17px; font-size: 12px; line-height: 17px; color: var(--soft) }
.axis span { position: absolute; white-space: nowrap } .limits span { color: var(--limit); font-weight: 600 }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(235px, 1fr)); gap: 12px }
figure { margin: 0; min-width: 0; padding: 10px 12px } figure h3 { font-size: 13px; margin: 0 0 6px; font-weight: 600 }
figure:has(details[open]) { grid-column: 1 / -1 } figure details { margin-top: 2px; font-size: 13px }
mark { background: color-mix(in srgb, var(--gone) 40%, transparent); color: inherit; text-decoration: underline }
details { margin-top: 10px } summary { cursor: pointer; padding: 6px 0; font-weight: 600 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: 12px/1.45 ui-monospace, monospace }
.alarm { color: var(--limit); font-weight: 600 }
.why { font-size: 12px; color: var(--soft); margin: 0 0 6px } .why b { color: var(--limit); font-weight: 600 }
td, code, h3, figure p { overflow-wrap: anywhere } td.n { overflow-wrap: normal }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px }
@media (max-width: 700px) { main { padding: 20px 10px 60px } .panel { padding: 6px 8px } body { font-size: 14px }
  .pair { grid-template-columns: minmax(0, 1fr) } .plot { max-width: none } td, th { font-size: 12px; padding-right: 14px }
  td:last-child, th:last-child { padding-right: 0 } th { vertical-align: bottom; line-height: 1.3 }
  th.n { white-space: normal } td:first-child { min-width: 4em }
  .bars tr { display: grid; grid-template-columns: repeat(var(--columns), 1fr); gap: 2px 12px; padding: 5px 0;
    border-bottom: 1px solid var(--line) } .bars tr:last-child { border: 0 }
  .bars td, .bars th { border: 0; padding: 0 } .bars th:first-child, .bars th.track { display: none }
  .bars td:first-child, .bars td.track { grid-column: 1 / -1; width: auto } .bars td:first-child { font-weight: 600 } }
@media print { body { background: none; font-size: 11px } main { max-width: none; padding: 0 } .panel { overflow: visible }
  figure, tr, .card, .sample { break-inside: avoid } h2, summary { break-after: avoid } }
.sample { border-top: 1px solid var(--line); padding: 8px 0 } .sample p { margin: 0 0 4px; font-size: 13px }
</style></head><body><main>
<h1>Build report</h1>
<div class="panel" style="margin-top:12px"><pre>{{ command }}</pre></div>
<p class="soft">INPUT and DATASET stand for paths. A dataset names no paths and no times, so equal builds give equal bytes, also
of this page. <code>run.json</code> says when it was built, by which version and how fast.</p>
<p class="soft">{{ inputs|length }} input file{{ "s" if inputs|length != 1 }}, {{ "{:,.1f}".format(megabytes) }} MB;
tokenizer {{ tokenizer.name }} of {{ tokenizer.vocab_size|whole }} ids{% if fewer_ids %} (no more pairs of tokens
repeat in the text){% endif %}; dataset
<code>{{ fingerprint[:16] }}</code></p>
<div class="cards">{% for value, name in cards %}<div class="card"><b>{{ value }}</b>{{ name }}</div>{% endfor %}</div>

<h2>From input to shards</h2>
<p class="soft">Thick bars show the documents that are left, thin bars their tokens. The orange ends show what a row removed.
Numbers with ≈ are estimates from the characters of dropped text.</p>
<div class="panel"><table class="bars" style="--columns:3">
<tr><th>stage</th><th class="n">documents</th><th class="n">share</th><th class="n">tokens</th>
<th class="track"></th></tr>
{% for row in funnel %}<tr><td>{{ row.what }}</td><td class="n">{{ row.documents|whole }}</td>
<td class="n">{{ row.share|percent }}</td><td class="n">{{ row.tokens }}</td>
<td class="track"><svg viewBox="0 0 100 12" preserveAspectRatio="none" height="14">{% for y, height, left, took in row.bars %}
<rect class="kept" x="0" y="{{ y }}" width="{{ left }}" height="{{ height }}"/>
<rect class="gone" x="{{ left }}" y="{{ y }}" width="{{ took }}" height="{{ height }}"/>{% endfor %}</svg></td></tr>
{% endfor %}</table></div>
{% if bad %}<p class="soft" style="margin-top:10px">Unreadable records, not among these:
{% for reason, number in bad %}{{ number|whole }} {{ reason }}{{ "; " if not loop.last }}{% endfor %}</p>{% endif %}
{% for note in notes %}<p class="alarm">{{ note }}.</p>{% endfor %}
{% if too_short %}<p class="alarm">{{ too_short }}.</p>{% endif %}
{% if damaged %}<p class="alarm">{{ damage }}.</p>
<div class="panel"><table><tr><th>damaged file</th><th class="n">line</th><th>fault</th><th class="n">documents that no
checksum confirms</th></tr>{% for each in damaged %}<tr><td>{{ each.file }}</td>
<td class="n">{{ each.line|whole }}</td><td>{{ each.fault }}</td>
<td class="n">{{ each.unconfirmed|whole }}</td></tr>{% endfor %}</table></div>{% endif %}

<h2>Splits</h2>
<div class="panel"><table><tr><th>split</th><th class="n">documents</th><th class="n">tokens</th><th class="n">tokens a
document</th><th class="n">shards</th></tr>
{% for name, split in splits %}<tr><td>{{ name }}</td><td class="n">{{ split.documents|whole }}</td>
<td class="n">{{ split.tokens|whole }}</td>
<td class="n">{{ "{:,.0f}".format(split.tokens / [split.documents, 1]|max) }}</td>
<td class="n">{{ split.shards|length }}</td></tr>{% endfor %}</table>
{% for each in about_splits %}<p>{{ each }}.</p>{% endfor %}</div>

{% for title, rows in groups %}<h2>{{ title }}</h2>
<div class="panel"><table class="bars" style="--columns:{{ 6 if added else 5 }}">
<tr><th></th><th class="n">read</th>{% if added %}<th class="n">added</th>{% endif %}
<th class="n">dropped</th><th class="n">duplicates</th>
<th class="n">kept</th><th class="n">tokens</th><th class="track"></th></tr>
{% for row in rows %}<tr><td>{{ row.name or "(unnamed)" }}</td><td class="n">{{ row.read|whole }}</td>
{% if added %}<td class="n">{{ row.added|whole }}</td>{% endif %}
<td class="n">{{ row.dropped|whole }}</td><td class="n">{{ row.duplicates|whole }}</td>
<td class="n">{{ row.kept|whole }}</td><td class="n">{{ row.tokens|whole }}</td>
<td class="track"><svg viewBox="0 0 100 8" preserveAspectRatio="none" height="12"><rect class="rest" x="0" y="0"
width="{{ row.width }}" height="8"/><rect class="kept" x="0" y="0" width="{{ row.kept_width }}" height="8"/></svg></td>
</tr>{% endfor %}</table></div>{% endfor %}

<h2>Lengths and clusters</h2><p class="soft">Kept documents.</p><div class="grid">
{% for plot in shapes %}{{ figure(plot) }}{% endfor %}</div>

{% if plots %}<h2>Rules</h2><p class="soft">The rule that drops most is first. A histogram shows how many documents have
which value; heights are square roots of the numbers. Dashed lines are limits, and documents in the orange are dropped.
&ldquo;At the limit&rdquo; shows the texts whose values are nearest to it.</p>
<div class="grid">{% for plot in plots %}{{ figure(plot) }}{% endfor %}</div>{% endif %}

{% if cuts %}<h2>Cut from documents</h2><div class="panel"><table>{% for reason, number in cuts %}<tr><td>{{ reason }}</td>
<td class="n">{{ number|whole }}</td></tr>{% endfor %}</table></div>{% endif %}

{% for each in tables %}<h2>{{ each.title }}</h2><p class="soft">{{ each.about }}</p>
<div class="panel"><table><tr>{% for head in each.heads %}
<th{% if each.rows[0][loop.index0] is number %} class="n"{% endif %}>{{ head }}</th>{% endfor %}</tr>
{% for row in each.rows %}<tr>{% for value in row %}{{ cell(value) }}{% endfor %}</tr>
{% endfor %}</table></div>

{% endfor %}
<h2>Samples</h2><p class="soft">A few documents of each outcome, with up to 600 characters of each. The hash of
a text chooses it. A near duplicate is beside the text that is kept, from their first difference on.</p>
{% for outcome, number, rows in samples %}<details{{ " open" if outcome == "kept" }}><summary>{{ outcome }}{% if number is
not none %} <span class="soft">{{ number|whole }}</span>{% endif %}</summary>
<div class="panel">{% for row in rows %}<div class="sample"><p><code>{{ row.id }}</code> {{ row.file }}, line
{{ row.line|whole }} <span class="soft">{{ row.reason or "" }}</span></p>
{% if row.pair %}<div class="pair">{% for side, parts in row.pair %}<div><p class="soft">{{ side }}</p><pre>
{{ marked(parts) }}</pre></div>
{% endfor %}</div>
{% else %}<pre>{{ row.text }}</pre>{% endif %}</div>
{% endfor %}</div></details>{% endfor %}

<h2>Recipe</h2>
<details><summary>Settings</summary><div class="panel"><table>{% for name, value in recipe %}<tr><td>{{ name }}</td>
<td><pre>{{ value }}</pre></td></tr>{% endfor %}</table></div></details>
<details><summary>Inputs</summary><div class="panel"><table><tr><th>file</th><th>source</th><th class="n">bytes</th>
<th>sha256</th></tr>{% for item in inputs %}<tr><td>{{ item.name }}</td><td>{{ item.source }}</td>
<td class="n">{{ item.bytes|whole }}</td><td>{% if item.sha256 %}<code>{{ item.sha256 }}</code>
{% else %}not read to its end{% endif %}</td></tr>{% endfor %}</table></div>
</details>
</main></body></html>
"""

FIGURE = """{% macro cell(value) %}
{% if value is float %}
<td class="n">{{ value|percent }}</td>{% elif value is integer %}
<td class="n">{{ value|whole }}</td>{% elif value is mapping %}
<td><p class="soft"><code>{{ value.id }}</code> {{ value.file }}, line {{ value.line|whole }}</p>
<pre>{{ value.text }}</pre></td>{% elif value.is_code %}
<td><code>{{ value }}</code></td>{% else %}
<td>{{ value }}</td>{% endif %}{% endmacro %}

{% macro marked(parts) %}
{% for part, differs in parts %}{% if differs %}<mark>{{ part }}</mark>{% else %}{{ part }}{% endif %}{% endfor %}
{% endmacro %}
{% macro at(x, label) %}<span style="left:{{ x }}%;transform:translateX(-{{ x }}%)">{{ label }}</span>{% endmacro %}
{% macro figure(plot) %}<figure><h3>{{ plot.name }}{% if plot.dropped %} <span class="soft">drops
{{ plot.dropped|whole }}</span>{% endif %}</h3>
{% if plot.text or plot.kept %}<p class="why">{{ plot.text }}{{ "; " if plot.text and plot.kept }}<b>{{ plot.kept }}</b></p>
{% endif %}<div class="plot">{% for x, label in plot.limits %}<div class="axis limits">{{ at(x, label) }}</div>{% endfor %}
<svg viewBox="0 0 100 62" preserveAspectRatio="none" role="img" aria-label="histogram of {{ plot.name }}">
{% for x, width in plot.outside %}<rect class="outside" x="{{ x }}" y="0" width="{{ width }}" height="62"/>{% endfor %}
{% for bar in plot.bars %}<rect class="kept" x="{{ bar.x }}" y="{{ bar.y }}" width="{{ plot.width }}"
height="{{ bar.height }}"><title>{{ bar.title }}</title></rect>{% endfor %}
{% for x, _ in plot.limits %}<line class="limit" x1="{{ x }}" x2="{{ x }}" y1="0" y2="62"/>{% endfor %}
</svg><div class="axis">{% for x, label in plot.ticks %}{{ at(x, label) }}{% endfor %}</div></div>
{% if plot.sides and (plot.sides.kept or plot.sides.dropped) %}<details><summary>At the limit</summary><div class="pair">
{% for side in ("dropped", "kept") %}<div><p class="soft">{{ side }}, nearest first</p>
{% for row in plot.sides[side] %}<div class="sample"><p><b>{{ "{:.6g}".format(row.value) }}</b> <code>{{ row.id }}</code>
{{ row.file }}</p><pre>{{ row.text }}</pre></div>{% else %}<p>none</p>{% endfor %}</div>{% endfor %}</div></details>
{% endif %}
</figure>{% endmacro %}
"""
