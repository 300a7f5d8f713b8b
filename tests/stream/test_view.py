"""The page of `view`: its rows are those of the batches, and a browser shows them, whatever their texts hold."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from tests.helpers.browser import CHROMIUM, Browser, browser
from tests.helpers.text_samples import make_texts, write_texts

HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"> &amp; <b>",
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd $hash $steps {script}",
    "a word " + "x" * 600,
)


def steps_of(page: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each step in a page."""
    found = re.findall(r'data-step="(\d+)">([^<]*)<', page.read_text())
    return {int(step): json.loads(zlib.decompress(base64.b64decode(data))) for step, data in found}


def decoded(row: dict[str, Any], eos: str = "</s>") -> str:
    """Return a row as `Stream.decode` does: text, with marks around tokens that the loss ignores."""
    parts = [
        *chain.from_iterable(each["parts"] for each in row["documents"]),
        (1, row["padding"], eos * row["padding"]),
    ]
    runs = groupby((part for part in parts if part[1]), key=lambda part: part[0] & 1)
    return "".join(f"⟦{text}⟧" if ignored else text for ignored, run in runs for text in ["".join(p[2] for p in run)])


def no_vowels(ids: Any, mask: Any) -> Any:
    return ids, ~np.isin(ids, [100, 104, 108])


def is_long(record: Any) -> bool:
    return len(record.text) > 9


LAYOUTS: dict[str, Any] = {
    "boundaries": lambda data, texts: data.shuffle(seed=1).pack(24, boundaries=True),
    "labels that are inputs": lambda data, texts: data.pack(24, boundaries=True, labels="same"),
    "shift": lambda data, texts: data.pack(24, stride=12, shift="divisors"),
    "documents": lambda data, texts: data.shuffle(seed=1).documents(20),
    "samples": lambda data, texts: data.sample(16),
    "masks": lambda data, texts: data.map_documents(no_vowels, name="vowels", same_length=True).pack(24),
    "mix": lambda data, texts: pipeline.mix({"a": data, "b": data}, weights={"a": 2, "b": 1}).pack(24),
    "text": lambda data, texts: texts.filter(is_long, name="long").shuffle(seed=2).pack(24, boundaries=True),
    "best fit": lambda data, texts: texts.shuffle(seed=2).map_documents(no_vowels, name="v").pack(24, best_fit=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_page_has_the_rows_that_every_rank_trains_on_and_greys_what_the_loss_ignores(
    layout: str, tmp_path: Path
) -> None:
    texts = make_texts(60)
    data = pipeline.ShardDataset.from_texts(texts, "bytes")
    stream = LAYOUTS[layout](data, pipeline.TextDataset(write_texts(tmp_path / "texts.jsonl", texts), "bytes"))
    ranks = [stream.shard(rank, 2).batch(2) for rank in range(2)]
    shown = steps_of(ranks[1].view([5, 1, 2], tmp_path / "page.html").path)
    assert [*shown] == [1, 2, 5]
    batches = [list(islice(rank, 6)) for rank in ranks]
    for step, rows in shown.items():
        expected = [text for rank, own in zip(ranks, batches, strict=True) for text in rank.decode(own[step])]
        assert [decoded(row) for row in rows] == expected
        assert [(row["rank"], row["row"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        spans = [[(each["first"], each["last"], each["tokens"]) for each in row["documents"]] for row in rows]
        names = "document_begin", "document_end", "document_tokens"
        assert spans == [[tuple(map(each.get, names)) for each in row["documents"]] for row in ranks[0].trace(step)]
        assert all(each["origin"] for row in rows for each in row["documents"])


def test_special_tokens_and_ids_that_the_tokenizer_lacks_are_parts_of_their_own(tmp_path: Path) -> None:
    data = pipeline.ShardDataset.from_texts(["to be", "or"], "bytes")
    marks = data.map_documents(lambda ids, mask: [400, *ids], name="mark", vocab_size=401).pack(11).batch(1)
    [[row]] = steps_of(marks.view(0, tmp_path / "page.html").path).values()
    parts = [part for each in row["documents"] for part in each["parts"]]
    assert parts == [[2, 1, "<400>"], [0, 5, "to be"], [2, 1, "</s>"], [2, 1, "<400>"], [0, 2, "or"], [2, 1, "</s>"]]


def test_a_character_is_not_cut_where_the_loss_ignores_its_first_token() -> None:
    stream = pipeline.ShardDataset.from_texts(["to", "שלום"], "bytes").pack(12, boundaries=True).batch(1)
    assert stream.decode(next(iter(stream))) == ["to</s>⟦ש⟧לום</s>"]


def test_a_stream_without_a_tokenizer_shows_ids_and_says_why(tmp_path: Path) -> None:
    stream = pipeline.ShardDataset.from_tokens(range(8)).pack(4).batch(1)
    page = stream.view(1, tmp_path / "page.html").path
    assert [row["documents"][0]["parts"] for row in steps_of(page)[1]] == [[[0, 4, "4 5 6 7 "]]]
    assert "ids in place of text: " in page.read_text()
    empty = pipeline.ShardDataset.from_tokens(range(8), lengths=[0, 8]).documents().batch(2)
    page = empty.view(0, tmp_path / "page.html").path
    assert [row["documents"][0]["parts"] for row in steps_of(page)[0]] == [[], [[0, 8, "0 1 2 3 4 5 6 7 "]]]


@pytest.mark.parametrize(
    ("steps", "told"), [([], "no step"), ([-1], "at least 0"), ("12", "integer"), ([3, 99], "step 99 is after the end")]
)
def test_steps_that_cannot_be_shown_are_refused_before_a_file_is_written(steps: Any, told: str, tmp_path: Path) -> None:
    stream = pipeline.ShardDataset.from_tokens(range(64), epochs=2).pack(4).batch(1)
    with pytest.raises(pipeline.ConfigError, match=told):
        stream.view(steps, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(pipeline.ConfigError, match="there is no folder"):
        stream.view(0, tmp_path / "missing/page.html")


# In a browser


ROOM = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
FAINT = """(() => {
const light = colour => colour.map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, k) => sum + c * [.2126, .7152, .0722][k], 0)
const painted = colour => { const canvas = new OffscreenCanvas(1, 1).getContext('2d')
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data] }
const behind = node => { for (; node; node = node.parentElement) {
  const [r, g, b, a] = painted(getComputedStyle(node).backgroundColor); if (a == 255) return [r, g, b] } }
return [...document.querySelectorAll('h1,h2,p,summary b,summary span,bdi,pre span,code,button,mark')].filter(node => {
  const [one, two] = [painted(getComputedStyle(node).color).slice(0, 3), behind(node)].map(light)
  return node.textContent && !node.disabled && (Math.max(one, two) + .05) / (Math.min(one, two) + .05) < 4.5
}).map(node => node.outerHTML.slice(0, 90)) })()"""
SHOWN = "document.querySelector('#rows section') && document.querySelector('h1').textContent"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 3 to 5 of a stream of hostile and masked documents, the last of which is cut within a character."""
    folder = tmp_path_factory.mktemp("page")
    records = [{"text": text, "id": f"<i>{at}</i>"} for at, text in enumerate((*HOSTILE, "é" * 999, "so morrow"))]
    (folder / "<b>.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = pipeline.TextDataset(folder / "<b>.jsonl", "bytes").map_documents(no_vowels, name="vowels")
    return data.pack(1_601, boundaries=True).batch(4).view(range(3, 6), folder / "page.html").path


@pytest.mark.parametrize(("width", "dark"), [(400, False), (400, True), (1400, False), (1400, True)])
def test_all_text_stands_out_and_no_width_scrolls_sideways(window: Browser, page: Path, width: int, dark: bool) -> None:
    window.open(page, width, dark=dark)
    window.wait(SHOWN)
    window.press("o")
    window.wait("document.querySelectorAll('pre').length == document.querySelectorAll('details').length")
    assert window.run(ROOM)
    assert window.run(FAINT) == []
    assert window.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 23, 29)" if dark else "rgb(245, 246, 248)"
    )


def test_texts_are_shown_as_they_are_and_run_nothing(window: Browser, page: Path) -> None:
    window.open(page, 1400)
    window.wait(SHOWN)
    window.press("o")
    window.wait("document.querySelectorAll('pre').length == document.querySelectorAll('details').length")
    texts = "".join(each[2] for row in steps_of(page)[3] for part in row["documents"] for each in part["parts"])
    assert window.run("[...document.querySelectorAll('pre')].map(each => each.textContent).join('')") == texts
    assert all(text in texts for text in HOSTILE)
    assert "\ufffd" in texts
    assert window.run("[document.title, document.querySelectorAll('img, summary i b, pre b').length]") == [
        "Step 3 to 5",
        0,
    ]


def test_keys_move_between_steps_and_matches(window: Browser, page: Path) -> None:
    window.open(page, 400)
    window.wait(f"{SHOWN} == 'Step 3'")
    window.press("ArrowRight")
    window.wait(f"{SHOWN} == 'Step 4'")
    window.press("ArrowRight", "ArrowRight")
    window.wait(f"{SHOWN} == 'Step 5' && document.getElementById('next').disabled && location.hash == '#5'")
    window.press("ArrowLeft")
    window.wait(f"{SHOWN} == 'Step 4'")
    holding = [
        step for step, rows in steps_of(page).items() for row in rows for each in row["documents"]
        if "morrow" in "".join(part[2] for part in each["parts"])
    ]  # fmt: skip
    assert {3, 5} <= {*holding}
    window.press("/", *"MORROW")
    window.wait(f"document.getElementById('found').textContent == '{len(holding)} documents in 3 steps'")
    window.wait("document.querySelector('[open] mark').textContent == 'morrow'")
    window.press("Enter", shift=True)
    window.wait(f"{SHOWN} == 'Step 4'")
    for _ in holding:
        window.press("Enter")
    window.wait(f"{SHOWN} == 'Step 4' && document.querySelector('[open] mark')")
    window.wait("""[...document.querySelectorAll('[open] mark')].map(each => each.getBoundingClientRect())
        .some(({ top, bottom }) => top >= 0 && bottom <= innerHeight)""")
    window.press("Escape")
    window.wait("!document.querySelector('mark') && document.activeElement == document.body")
    window.press("Tab")
    assert window.run("document.activeElement != document.body")
