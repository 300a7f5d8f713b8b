from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.limits import Limits
from pipeline.progress import Progress
from pipeline.shards.manifest import REPORT_NAME, Manifest
from tests.helpers.builds import rejected, run, run_plain, write_jsonl
from tests.helpers.corpus import english, write_inputs

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} \x00 " + english(3) + " # #" * 200


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    inputs = write_inputs(folder / "in", 120)
    odd = folder / "in" / "<u>g.jsonl"
    odd.write_text(json.dumps({"text": HOSTILE, "id": "<b>id</b>"}) + "\n")
    settings: dict[str, Any] = {"tokenizer": "bytes", "rules": "gopher_quality", "language": "en=0.2"}
    run([f"odd={odd}", *inputs], folder / "out", val_fraction=0.005, **settings)
    return folder / "out"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(dataset: Path) -> _Page:
    page = _Page()
    page.feed((dataset / REPORT_NAME).read_text(encoding="utf-8"))
    return page


def test_the_page_runs_and_fetches_nothing_of_hostile_text(dataset: Path) -> None:
    page = parse(dataset)
    assert page.links == []
    assert not {"script", "img", "link", "iframe", "i", "u"} & set(page.tags)
    assert "http" not in (dataset / REPORT_NAME).read_text(encoding="utf-8").replace("http-equiv", "")
    text = "".join(page.text)
    for each in ("<script>alert(1)</script>", "{{ 7*7 }}", "<b>id</b>", "<u>g.jsonl"):
        assert each in text


def test_the_page_tells_the_counts_of_the_manifest(dataset: Path) -> None:
    manifest, text = Manifest.read(dataset), "".join(parse(dataset).text)
    counts = manifest.counts
    assert f"{len(manifest.inputs)} input files, {sum(item['bytes'] for item in manifest.inputs) / 1e6:,.1f} MB" in text
    for name in ("read", "kept", "tokens", "kept_characters"):
        assert f"{counts[name]:,}" in text
    for name in [*counts["dropped"], *counts["histograms"], "exact duplicates", "near duplicates", "Sources", "odd"]:
        assert name in text


def test_bars_of_every_histogram_stand_on_its_lower_edge_where_their_values_are(dataset: Path) -> None:
    histograms = Manifest.read(dataset).counts["histograms"]
    plots = (dataset / REPORT_NAME).read_text(encoding="utf-8").split('aria-label="histogram of ')[1:]
    assert len(plots) > len(histograms) > 2
    for plot in plots:
        bar = r'<rect class="kept" x="(\S+)" y="(\S+)" width="\S+"\s+height="(\S+)">'
        bars = re.findall(bar, plot.split("</svg>")[0])
        assert {round(float(y) + float(height), 2) for _, y, height in bars} == {62}  # of the viewBox
        if histogram := histograms.pop(plot.split('"')[0], None):
            counts = histogram["counts"]
            assert [float(x) for x, *_ in bars] == [round(100 * k / len(counts), 2) for k, n in enumerate(counts) if n]
    assert histograms == {}


def test_the_texts_nearest_to_a_limit_are_shown_on_both_sides(tmp_path: Path) -> None:
    texts = [english(k, 40).split() for k in range(120)]
    rows = [{"id": f"d{k}", "text": " ".join(words[: 20 + k // 2])} for k, words in enumerate(texts)]
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, *rows[56:62]])
    run_plain(source, tmp_path / "out", rules="gopher_quality", limits=Limits(batch_records=7))
    words = (tmp_path / "out" / REPORT_NAME).read_text(encoding="utf-8").split("<h3>words")[1].split("</figure>")[0]
    shown = re.findall(r"<b>(\d+)</b> <code>(d\d+)", words)
    assert sorted(shown) == [("49", "d58"), ("49", "d59"), ("50", "d60"), ("50", "d61")]
    assert [value for value, _ in shown] == ["49", "49", "50", "50"]


def test_the_page_explains_measures_and_shows_both_texts_of_near_duplicates(dataset: Path) -> None:
    page = (dataset / REPORT_NAME).read_text(encoding="utf-8")
    assert "the share of lines that begin with a bullet point or a hyphen; <b>kept: at most 0.9</b>" in page
    assert "<b>kept: 50 to 100,000</b>" in page
    pairs = page.partition("<summary>near duplicates")[2].partition("</details>")[0].split('<div class="pair">')[1:]
    assert pairs
    for pair in pairs:
        heads = [re.split("<mark>|</pre>", text.split("<pre>")[1])[0] for text in pair.split("kept in its place")]
        assert max(heads).startswith(min(heads))
        assert "<mark>" in pair


def test_near_duplicates_are_shown_from_where_they_begin_to_differ(tmp_path: Path) -> None:
    words = english(6, 1_500).split()
    texts = [" ".join(words), "\n".join([*words[:1_200], "different", *words[1_201:]])]
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    run_plain(source, tmp_path / "out", language=None)
    page = (tmp_path / "out" / REPORT_NAME).read_text(encoding="utf-8")
    assert re.findall("<mark>(.*?)</mark>", page) == ["different", words[1_200]]
    assert "\n".join(words[1_188:1_200]) in page


def test_rules_and_samples_are_in_the_order_of_what_they_drop(dataset: Path) -> None:
    page, dropped = (dataset / REPORT_NAME).read_text(encoding="utf-8"), Manifest.read(dataset).counts["dropped"]
    drops = [int(number.replace(",", "")) for number in re.findall(r"drops\n([\d,]+)", page)]
    assert drops == sorted(drops, reverse=True)
    assert set(drops) <= set(dropped.values())
    samples = [int(number) for number in re.findall(r'<summary>[^<]+<span class="soft">(\d+)<', page)]
    assert samples[1:] == sorted(samples[1:], reverse=True)
    command = "shardwright build odd=INPUT INPUT --output DATASET --rules gopher_quality --language en=0.2"
    assert f"{command} --tokenizer bytes" in page.partition("<h2>")[0]  # at the top


def test_added_documents_have_a_column_of_their_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"text": english(k, 200)}) for k in range(2)]
    (tmp_path / "in.jsonl").write_text("\n".join([*rows, *(["{broken"] * 30)]))

    def words(document: Any) -> Any:
        return [replace(document, text=word) for word in document.text.split()]

    own = [pipeline.transform(words, version="1")]
    run_plain(tmp_path / "in.jsonl", tmp_path / "out", transforms=own, on_error="skip", progress=Progress())
    counts = Manifest.read(tmp_path / "out").counts
    assert (counts["read"], counts["bad"]) == (2, {"invalid JSON": 30})
    assert sum(counts["added"].values()) > 300
    text = "".join(parse(tmp_path / "out").text)
    terminal = capfd.readouterr().err
    for shown in (text, terminal):
        shares = [float(each) for each in re.findall(r"(-?[\d.]+)%", shown)]
        assert shares
        assert all(0 <= share <= 100 for share in shares), shares
    assert "added" in text.split("Languages")[1].split("dropped")[0]
    assert re.search(r"unreadable: invalid JSON +30 +93\.8%", terminal)
    assert "added" not in "".join(parse(tmp_path / "out").text).split("Languages")[0].split("share")[0]


def test_rejected_documents_and_page_do_not_tell_how_work_was_cut(tmp_path: Path) -> None:
    repeated = "A line of more than a few words that every second document holds at its end."
    rows = []
    for k in range(60):
        text = english(k // 2, 30) + f"\n{repeated}" * (k % 2)
        rows += [json.dumps({"id": f"d{k}", "text": "short" if k % 5 == 0 else text})] + ["{broken"] * (k % 7 == 0)
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    settings: dict[str, Any] = {"rules": "gopher_quality", "keep_rejected": True, "dedup_lines": True}
    settings["on_error"] = "skip"
    for number, limits in enumerate((Limits(), Limits(batch_records=7, partition_characters=4_000, unit_bytes=10_000))):
        run_plain(tmp_path / "in.jsonl", tmp_path / str(number), limits=limits, **settings)
    for name in ("rejected.jsonl", REPORT_NAME):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
    records = [line["line"] for line in rejected(tmp_path / "0")]
    assert records.index(max(records)) > 20  # those of one step are in input order
