"""The page that view.py fills: one file that loads nothing, light and dark.

Steps are deflated JSON in base64, so no text of a document can end a script or become a tag. The script makes text nodes of it.
"""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-$hash'">
<title>$title</title>
<style>
:root { --ink: #16202b; --soft: #5d6a78; --line: #e3e7ec; --page: #f5f6f8; --card: #fff; --kept: #2f74d0; --hit: #ffd84d;
  --light: .74; color-scheme: light dark }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #98a4b1; --line: #2b343e; --page: #12171d;
  --card: #1a2128; --kept: #5b9bf0; --hit: #7a6200; --light: .66 } }
* { box-sizing: border-box } body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 }
header { position: sticky; top: 0; z-index: 1; background: var(--page); border-bottom: 1px solid var(--line) }
nav, main { max-width: 1080px; margin: 0 auto; padding: 10px 24px } main { padding-bottom: 80px }
nav { display: flex; flex-wrap: wrap; gap: 8px; align-items: center }
button, select, input { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 4px 12px; min-height: 34px } input { flex: 1 1 180px; min-width: 0 }
button { cursor: pointer } button:disabled { color: var(--soft); cursor: default }
:focus-visible { outline: 2px solid var(--kept); outline-offset: 1px } output { color: var(--soft); font-size: 13px }
h1 { font-size: 28px; letter-spacing: -.02em; margin: 14px 0 0 } h2 { font-size: 15px; margin: 0 0 8px }
.soft { color: var(--soft); font-weight: normal } p { margin: 0 0 14px } code { font-size: 13px; overflow-wrap: anywhere }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; margin: 12px 0 }
.ribbon { display: flex; height: 14px; border-radius: 4px; overflow: hidden; background: var(--line); margin-bottom: 6px }
.ribbon span { display: flex; background: var(--hue); cursor: pointer } .ribbon .ignored { background: var(--line); opacity: .75 }
.ribbon * + span { border-left: 1px solid var(--card) }
details { border-top: 1px solid var(--line) } details:first-of-type { border: 0 }
summary { display: grid; grid-template-columns: 10px auto minmax(0, 1fr) auto; gap: 10px; align-items: center; padding: 4px 0;
  cursor: pointer; border-radius: 4px; font-size: 13px } summary b { font-weight: 600; overflow-wrap: anywhere }
summary i { width: 10px; height: 10px; border-radius: 3px; background: var(--hue) }
.preview { overflow: hidden; text-overflow: ellipsis; white-space: nowrap } [open] .preview { visibility: hidden }
.origin { font-size: 13px; margin: 0 0 6px 20px; overflow-wrap: anywhere } .origin bdi { margin-right: 14px }
pre { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; margin: 0 0 10px 20px; padding: 8px 12px;
  font: 13px/1.55 ui-monospace, monospace; border-left: 3px solid var(--hue); border-radius: 0 6px 6px 0;
  background: color-mix(in srgb, var(--hue) 10%, var(--card)) } pre .ignored { color: var(--soft) }
.special { font-weight: 600; border: 1px solid; border-radius: 4px; padding: 0 3px; margin: 0 1px; unicode-bidi: isolate }
mark { background: var(--hit); color: inherit }
@media (max-width: 700px) { body { font-size: 14px } nav, main { padding: 10px } input { flex-basis: calc(100% - 110px) }
  summary { grid-template-columns: 10px minmax(0, 1fr) auto } .preview { grid-area: 2 / 2 / 3 / 4; margin-top: -10px }
  [open] .preview { display: none } pre, .origin { margin-left: 0 } }
</style></head><body><header><nav>
<button id="previous" title="left arrow" aria-label="previous step">&larr;</button><select id="steps" aria-label="step"></select>
<button id="next" title="right arrow" aria-label="next step">&rarr;</button><button id="open" title="o">open all</button>
<input id="query" type="search" placeholder="search all steps ( / )" aria-label="search" autocomplete="off">
<button id="before" title="shift and enter" aria-label="previous match">&uarr;</button>
<button id="after" title="enter" aria-label="next match">&darr;</button><output id="found"></output>
</nav></header><main><h1 id="title">$title</h1><p id="sum" class="soft" aria-live="polite"></p>
<div id="rows"><noscript>This page needs JavaScript, which unpacks the steps in this file.</noscript></div>
<p class="soft">Each colour is a document. The loss ignores grey tokens. Special tokens are framed. Keys: arrows for steps,
<code>/</code> to search, enter for the next match, <code>o</code> to open all.</p><p class="soft"><code>$stream</code></p></main>
$steps
<script>$script</script></body></html>
"""

SCRIPT = r"""
'use strict'
const $ = id => document.getElementById(id), number = value => value.toLocaleString('en')
const blocks = [...document.querySelectorAll('[data-step]')], steps = blocks.map(each => Number(each.dataset.step))
const HUES = [255, 55, 150, 320, 95, 200, 20, 285], loaded = []
let current = 0, pattern = null, searching = null, matches = [], match = -1, all = false

const bytesOf = block => Uint8Array.from(atob(block.textContent), each => each.charCodeAt(0))
const load = at => loaded[at] ??=
  new Response(new Blob([bytesOf(blocks[at])]).stream().pipeThrough(new DecompressionStream('deflate'))).json()
const make = (tag, name, ...inside) => {
  const node = document.createElement(tag); node.className = name; node.append(...inside); return node }
const sized = (node, tokens) => { node.style.flex = `${tokens} 0 0`; return node }
const textOf = each => each.parts.map(part => part[2]).join('')
const factsOf = each => [`tokens ${number(each.first)} to ${number(each.last)} of ${number(each.tokens)}`,
  ...Object.entries(each.origin).map(([name, value]) => `${name} ${value}`)]
const nameOf = ({ file, line, byte, id, key, shard, document }) => file ? `${file}:${line ?? 'byte ' + byte}`
  : id || key || `${shard ?? 'document'}:${document}`
const ranges = text => pattern ? [...text.matchAll(pattern)].map(each => [each.index, each.index + each[0].length]) : []
const holds = each => [textOf(each), ...factsOf(each)].some(text => ranges(text).length)

function marked(text, offset = 0, found = ranges(text)) {  // the text is at an offset of the one in which the ranges are
  const parts = []
  let from = 0
  for (const [begin, end] of found) {
    const first = Math.max(begin - offset, 0), last = Math.min(end - offset, text.length)
    if (first < last) { parts.push(text.slice(from, first), make('mark', '', text.slice(first, last))); from = last }
  }
  return [...parts, text.slice(from)]
}
function bodyOf(each) {
  const found = ranges(textOf(each)), pre = make('pre', '')
  let offset = 0
  pre.dir = 'auto'
  for (const [kind, , text] of each.parts) {
    pre.append(make('span', (kind & 1 ? 'ignored ' : '') + (kind & 2 ? 'special' : ''), ...marked(text, offset, found)))
    offset += text.length
  }
  return [make('div', 'origin soft', ...factsOf(each).map(fact => make('bdi', '', ...marked(fact)))), pre]
}
function documentNode(each) {
  const size = each.last - each.first, of = size < each.tokens ? ` of ${number(each.tokens)}` : ''
  const node = make('details', '', make('summary', '', make('i', ''), make('b', '', nameOf(each.origin)),
    make('bdi', 'preview soft', textOf(each).slice(0, 300).trim()), make('span', 'n soft', `${number(size)}${of} tokens`)))
  node.ontoggle = () => { if (node.open && !node.querySelector('pre')) node.append(...bodyOf(each)) }
  node.open = all || holds(each)
  return node
}
function rowNode(row) {
  const ribbon = make('div', 'ribbon'), nodes = row.documents.map(documentNode)
  row.documents.forEach((each, at) => {
    const hue = `oklch(var(--light) .13 ${HUES[at % HUES.length]})`, part = sized(make('span', ''), each.last - each.first)
    for (const node of [nodes[at], part]) node.style.setProperty('--hue', hue)
    part.append(...each.parts.map(([kind, count]) => sized(make('i', kind & 1 ? 'ignored' : ''), count)))
    part.title = nameOf(each.origin)
    part.onclick = () => { nodes[at].open = true; nodes[at].scrollIntoView({ block: 'center' }) }
    ribbon.append(part)
  })
  if (row.padding) ribbon.append(sized(make('i', ''), row.padding))
  const facts = [`rank ${row.rank}`, `sequence ${number(row.sequence_index)}`, row.source,
    row.padding && `${number(row.padding)} tokens of padding`].filter(Boolean)
  return make('section', '', make('h2', '', `row ${row.row} `, make('span', 'soft', facts.join(', '))), ribbon, ...nodes)
}
async function show(at) {
  current = at
  const step = await load(at), sources = {}
  if (current != at) return
  let tokens = 0, ignored = 0, documents = 0
  for (const row of step) for (const each of row.documents) {
    const size = each.last - each.first, source = row.source ?? each.origin.source ?? ''
    documents += 1; tokens += size; sources[source] = (sources[source] ?? 0) + size
    for (const [kind, count] of each.parts) ignored += kind & 1 && count
  }
  const shares = Object.entries(sources).filter(([name]) => name).sort((one, other) => other[1] - one[1])
  $('rows').replaceChildren(...step.map(rowNode))
  $('title').textContent = `Step ${number(steps[at])}`
  $('sum').textContent = [`${number(step.length)} rows`, `${number(documents)} documents`, `${number(tokens)} tokens`,
    `${number(ignored)} of them grey`, ...shares.map(([name, size]) => `${name} ${(100 * size / tokens).toFixed(1)}%`)].join(', ')
  $('steps').selectedIndex = at
  $('previous').disabled = at == 0; $('next').disabled = at == steps.length - 1
  location.replace(`#${steps[at]}`)
}
async function search() {
  const query = $('query').value
  pattern = query && new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'giu')
  const found = query ? await Promise.all(steps.map((_, at) => load(at))) : []
  if ($('query').value != query) return
  matches = found.flatMap((step, s) => step.flatMap((row, r) =>
    row.documents.flatMap((each, d) => holds(each) ? [[s, r, d]] : [])))
  match = -1
  const inSteps = new Set(matches.map(([s]) => s)).size
  $('found').textContent = query && `${number(matches.length)} documents in ${number(inSteps)} steps`
  await show(current)
}
async function go(by) {
  await searching
  if (!matches.length) return
  const later = by > 0 ? matches.findIndex(([s]) => s >= current) : matches.findLastIndex(([s]) => s <= current)
  match = match < 0 ? Math.max(later, 0) : (match + by + matches.length) % matches.length
  const [s, r, d] = matches[match]
  await show(s)
  $('found').textContent = `document ${number(match + 1)} of ${number(matches.length)}`
  const node = $('rows').children[r].querySelectorAll('details')[d]
  setTimeout(() => (node.querySelector('mark') ?? node).scrollIntoView({ block: 'center' }))  // after its toggle event
}
const move = async by => { if (steps[current + by] !== undefined) { await show(current + by); scrollTo(0, 0) } }
function openAll() {
  all = !all
  document.querySelectorAll('details').forEach(each => { each.open = all })
  $('open').textContent = all ? 'close all' : 'open all'
}
$('steps').append(...steps.map(step => new Option(`step ${number(step)}`)))
$('steps').onchange = () => show($('steps').selectedIndex)
for (const [id, act] of Object.entries({ previous: () => move(-1), next: () => move(1), before: () => go(-1), after: () => go(1),
  open: openAll })) $(id).onclick = act
$('query').oninput = () => { searching = search() }
$('query').onkeydown = event => {
  if (event.key == 'Escape') { $('query').value = ''; $('query').blur(); searching = search() }
  if (event.key == 'Enter') go(event.shiftKey ? -1 : 1)
}
onkeydown = event => {
  if (event.ctrlKey || event.metaKey || event.altKey || ['INPUT', 'SELECT'].includes(event.target.tagName)) return
  const act = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), o: openAll, '/': () => $('query').focus() }[event.key]
  if (act) { act(); event.preventDefault() }
}
show(Math.max(0, steps.indexOf(Number(location.hash.slice(1)))))
"""
