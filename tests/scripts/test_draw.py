"""The pictures of docs/ show what the code and the benchmarks give, and a browser shows all of their words."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import draw
from tests.helpers.browser import CHROMIUM
from tests.helpers.builds import run_plain
from tests.helpers.corpus import write_inputs

PICTURES = ("build.svg", "order.svg", "figures.svg")
LOOK = """
onload = () => { document.title = JSON.stringify([...document.querySelectorAll('svg')].map(picture => {
  const place = node => { const { left, right, top, bottom } = node.getBoundingClientRect(); return [left, right, top, bottom] }
  return { card: place(picture), words: [...picture.querySelectorAll('text')].map(each => [each.textContent, place(each)]),
    bars: [...picture.querySelectorAll('rect')].filter(each => BARS.includes(each.getAttribute('fill')))
      .map(each => ['a bar', place(each)]) }
})) }
""".replace("BARS", json.dumps([draw.KEPT, draw.GONE]))


def words_of(picture: str) -> list[str]:
    return [html.unescape(words) for words in re.findall("<text[^>]*>(.*?)</text>", picture)]


def test_the_order_and_the_figures_are_drawn_as_code_and_benchmarks_say(tmp_path: Path) -> None:
    assert draw.main(["--output", str(tmp_path)]) == 0
    for name in ("order.svg", "figures.svg"):
        assert (draw.DOCS / name).read_text() == (tmp_path / name).read_text(), "python scripts/draw.py draws it again"


def test_the_rows_of_a_build_add_up_in_every_picture(tmp_path: Path) -> None:
    manifest = run_plain(write_inputs(tmp_path / "in", 200), tmp_path / "out", rules="gopher", language="en")
    for picture in (draw.draw_build(manifest), (draw.DOCS / "build.svg").read_text()):
        numbers = [int(n.replace(",", "").replace("−", "-")) for n in words_of(picture) if re.fullmatch("−?[0-9,]+", n)]
        documents, tokens = numbers[::2], numbers[1::2]
        for *rows, kept in (documents, tokens):
            assert sum(rows) == kept < rows[0]
    assert documents[0] > 5_000
    drawn = words_of(draw.draw_build(manifest))
    assert {f"{manifest.counts['read']:,}", f"{manifest.counts['tokens']:,}"} <= {*drawn}


def test_labels_have_14_pixels_where_a_picture_has_400() -> None:
    for name in PICTURES:
        picture = (draw.DOCS / name).read_text()
        (width,) = map(int, re.findall(r'viewBox="0 0 (\d+) ', picture))
        assert min(map(int, re.findall(r'font-size="(\d+)"', picture))) * 400 / width >= 14, name


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_no_words_of_a_picture_are_cut_or_lie_on_others(tmp_path: Path) -> None:
    pictures = "".join((draw.DOCS / name).read_text() for name in PICTURES)
    page = tmp_path / "page.html"
    page.write_text(f"<meta charset=utf-8><script>{LOOK}</script><div style='width:830px'>{pictures}</div>")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--dump-dom", f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, done.stderr
    seen: list[dict[str, Any]] = json.loads(html.unescape(title[1]))
    assert [len(picture["words"]) > 20 for picture in seen] == [True] * 3
    for picture in seen:
        left, right, top, bottom = picture["card"]
        for words, (x1, x2, y1, y2) in picture["words"]:
            assert left + 10 < x1 < x2 < right - 10, words
            assert top + 5 < y1 < y2 < bottom - 5, words
            others = [other for other in [*picture["words"], *picture["bars"]] if other[1][::2] != [x1, y1]]
            on_it = [name for name, (u1, u2, v1, v2) in others if u1 < x2 and x1 < u2 and v1 + 2 < y2 and y1 + 2 < v2]
            assert on_it == [], words
