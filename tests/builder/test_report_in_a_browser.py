"""The report in a real browser, where this machine has Chromium: nothing is cut off, and all text stands out."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from typing import Any

import pytest

from pipeline.builder.report.html import REPORT_NAME
from tests.helpers.builds import run_plain, write_jsonl
from tests.helpers.corpus import english, write_inputs

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

# Looks into frames of several widths with everything open, the last of them dark, and writes what it saw.
LOOK = """
const light = colour => colour.map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, k) => sum + c * [.2126, .7152, .0722][k], 0)
const parts = text => text.match(/[\\d.]+/g).map(Number)
const behind = node => { for (; node; node = node.parentElement) {
  const [r, g, b, a = 1] = parts(getComputedStyle(node).backgroundColor); if (a == 1) return [r, g, b] } }
const isFaint = node => {
  const [one, two] = [parts(getComputedStyle(node).color).slice(0, 3), behind(node)].map(light)
  return (Math.max(one, two) + .05) / (Math.min(one, two) + .05) < 4.5 }
onload = () => { document.title = JSON.stringify([...document.querySelectorAll('iframe')].map(frame => {
  const page = frame.contentDocument, all = query => [...page.querySelectorAll(query)]
  all('details').forEach(each => { each.open = true })
  return { room: page.documentElement.clientWidth, width: page.documentElement.scrollWidth,
    background: getComputedStyle(page.body).backgroundColor,
    faint: all('h1,h2,h3,p,td,th,summary,pre,code,span,b,.card').filter(isFaint).map(each => each.outerHTML.slice(0, 80)),
    marked: all('mark').map(each => each.textContent),
    bars: all('.track svg').map(each => each.getBoundingClientRect().width),
    gaps: all('tr').flatMap(row => { const ends = [...row.querySelectorAll('.n')].map(cell => {
      const words = page.createRange(); words.selectNodeContents(cell); return words.getBoundingClientRect() })
      return ends.slice(1).map((each, k) => each.left - ends[k].right) }),
    filled: all('.plot').map(plot => plot.getBoundingClientRect().width / plot.closest('figure').clientWidth),
    broken: all('.bars td:first-child, h2 + .panel td:first-child').filter(cell => {
      const word = page.createRange(); word.selectNodeContents(cell)
      return !/\\S{40}/.test(cell.textContent) && word.getClientRects().length > cell.textContent.split(' ').length
    }).map(cell => cell.textContent),
    plots: all('.plot').map(plot => { const { left, width } = plot.querySelector('svg').getBoundingClientRect()
      const place = (node, { left: from, right: to } = node.getBoundingClientRect()) =>
        [node.textContent, ...[from, to].map(x => (x - left) / width)]
      return { name: plot.closest('figure').querySelector('h3').firstChild.textContent.trim(),
        ticks: [...plot.querySelectorAll('.axis:not(.limits) span')].map(each => place(each)),
        limits: [...plot.querySelectorAll('.limits span')].map(each => place(each)),
        lines: [...plot.querySelectorAll('.limit')].map(each => place(each)[1]) } }),
    rows: [...page.querySelector('table').rows].slice(1).map(row => Number(row.cells[1].textContent.replaceAll(',', ''))) }
})) }
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a browser shows of a report in frames of 360, 400, 768 and 1400 pixels, the last of them dark."""
    folder = tmp_path_factory.mktemp("browser")
    inputs = write_inputs(folder / "in", 150)
    words = english(5, 120).split()
    texts = [" ".join(words), " ".join([*words[:40], "changed", *words[41:]]), "x" * 5_000]
    long = write_jsonl(folder / "in" / "long.jsonl", ({"id": "i" * 300, "text": text} for text in texts))
    run_plain([f"{'a-long-name-of-a-source' * 3}={long}", *inputs], folder / "out", rules="gopher,fineweb")
    page = (folder / "out" / REPORT_NAME).read_text(encoding="utf-8")
    dark = page.replace("screen and (prefers-color-scheme: dark)", "all")
    frames = [
        f'<iframe width="{width}" srcdoc="{html.escape(each)}"></iframe>'
        for width, each in ((360, page), (400, page), (768, page), (1400, dark))
    ]
    (folder / "frames.html").write_text(f"<script>{LOOK}</script>{''.join(frames)}", encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", f"file://{folder / 'frames.html'}"], capture_output=True, text=True, timeout=120
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, done.stderr
    found: list[dict[str, Any]] = json.loads(html.unescape(title[1]))
    return found


def test_no_width_scrolls_sideways_even_with_everything_open(seen: list[dict[str, Any]]) -> None:
    assert [frame["room"] for frame in seen] == pytest.approx([360, 400, 768, 1400], abs=20)  # less a scroll bar
    assert [frame for frame in seen if frame["width"] > frame["room"]] == []


def test_all_text_stands_out_from_what_it_is_on_in_light_and_in_dark(seen: list[dict[str, Any]]) -> None:
    assert [frame["background"] for frame in seen] == [*["rgb(245, 246, 248)"] * 3, "rgb(18, 23, 29)"]
    assert [frame["faint"] for frame in seen] == [[]] * 4


def test_what_differs_between_duplicates_is_marked_and_the_rows_add_up(seen: list[dict[str, Any]]) -> None:
    *changes, kept = seen[0]["rows"]
    assert "changed" in seen[0]["marked"]
    assert sum(changes) == kept > 0


def test_bars_are_seen_and_names_are_whole_at_every_width(seen: list[dict[str, Any]]) -> None:
    assert [width for frame in seen for width in frame["bars"] if width < 100] == []
    assert [frame["broken"] for frame in seen] == [[]] * 4


def test_on_a_telephone_columns_are_apart_and_histograms_fill_their_cards(seen: list[dict[str, Any]]) -> None:
    for frame in seen[:2]:
        assert min(frame["gaps"]) >= 8
        assert min(frame["filled"]) > 0.9


def test_labels_of_axes_and_limits_are_at_their_values_and_apart(seen: list[dict[str, Any]]) -> None:
    for plot in (plot for frame in seen for plot in frame["plots"][2:]):
        values = [float(label.strip("+").replace(",", "")) for label, _, _ in plot["ticks"]]
        assert len(values) == 3

        def at(value: float, top: float = values[2], is_log: bool = plot["name"] == "words") -> float:
            return math.log1p(value) / math.log1p(top) if is_log else value / top

        for value, (_, left, right) in zip(values, plot["ticks"], strict=True):
            assert left - 0.01 <= at(value) <= right + 0.01, plot
        for line, (label, left, right) in zip(plot["lines"], plot["limits"], strict=True):
            assert line == pytest.approx(at(float(label.replace(",", ""))), abs=0.01), plot
            assert left - 0.01 <= line <= right + 0.01, plot
        ends = [end for _, *both in plot["ticks"] for end in both]
        assert ends == sorted(ends), plot
    plots = [plot for plot in seen[0]["plots"] if plot["name"] == "words"]
    assert [label for label, _, _ in plots[0]["limits"]] == ["50", "100,000"]
