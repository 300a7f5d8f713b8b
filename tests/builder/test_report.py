from __future__ import annotations

import html
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
from tests.helpers.builds import Built, rejected, run, run_plain, write_jsonl
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


def told(page: str) -> list[str]:
    """Return what the sections of a page tell, without texts of documents, hashes and styles."""
    text = re.sub(r"<style>.*?</style>|\b[0-9a-f]{16}\b", "", page, flags=re.DOTALL)
    parts = [
        [" ".join(html.unescape(part).split()) for part in re.split("<[^>]*>", each)] for each in text.split("<h2>")
    ]
    sections = [" | ".join(filter(None, each)) for each in parts]
    shown = [re.split(r" \| At the limit \| | \| n0 \| ", each)[0] for each in sections]
    return [each for each in shown if not each.startswith(("Samples", "Recipe"))]


TOLD = """\
Build report of dataset | Build report | shardwright build web=INPUT b=INPUT --output DATASET --on-error skip --rules \
rules.toml --dedup-lines --shortest-passage 5 --words-left 1 --tokenizer bytes --val-fraction 0.2 --seed 2 | INPUT \
and DATASET stand for paths. A dataset names no paths and no times, so equal builds give equal bytes, also of this \
page. | run.json | says when it was built, by which version and how fast. | 2 input files, 0.0 MB; tokenizer bytes of \
384 ids; dataset | 19 | documents read | 14 | kept, 73.7% | 8,136 | tokens | 8,122 | characters, 47.5% | 2 | \
duplicates, 12.5% of what passed | 3 | unreadable records
From input to shards | Thick bars show the documents that are left, thin bars their tokens. The orange ends show what \
a row removed. Numbers with ≈ are estimates from the characters of dropped text. | stage | documents | share | tokens \
| documents read | 19 | 100.0% | ≈ 17,145 | dropped by words | -2 | 10.5% | ≈ -5,010 | cut from 5 documents: 5 lines \
that occur earlier | 0 | 0.0% | ≈ -331 | dropped by words_left | -1 | 5.3% | ≈ -362 | exact duplicates | 0 | 0.0% | ≈ \
0 | near duplicates | -2 | 10.5% | ≈ -3,306 | documents kept | 14 | 73.7% | 8,136 | Unreadable records, not among \
these: 2 invalid JSON; 1 no field 'text'
Splits | split | documents | tokens | tokens a document | shards | train | 13 | 7,985 | 614 | 2 | val | 1 | 151 | 151 \
| 1 | 0.0% of the words of val are in runs of 13 words that train has; 1 of its 1 documents were compared: 0 equal one of train, \
0 have 80% of their words or more there.
Sources | read | dropped | duplicates | kept | tokens | web | 18 | 3 | 2 | 13 | 7,155 | b | 1 | 0 | 0 | 1 | 981
Languages | read | dropped | duplicates | kept | tokens | en | 19 | 3 | 2 | 14 | 8,136
Lengths and clusters | Kept documents. | tokens a document | 1 from 128 to 255 | 6 from 256 to 511 | 6 from 512 to \
1,023 | 1 from 1,024 to 2,047 | 128 | 512 | 2,047 | documents a duplicate cluster | 13 from 1 to 1 | 1 from 2 to 3 | \
1 | 2 | 3
Rules | The rule that drops most is first. A histogram shows how many documents have which value; heights are square \
roots of the numbers. Dashed lines are limits, and documents in the orange are dropped. “At the limit” shows the \
texts whose values are nearest to it. | words | drops 2 | the number of words; | kept: 10 to 400 | 10 | 400 | 1 from \
0 to 20 | 1 from 20 to 40 | 2 from 40 to 60 | 3 from 60 to 80 | 2 from 80 to 100 | 1 from 100 to 120 | 3 from 120 to \
140 | 1 from 140 to 160 | 1 from 180 to 200 | 3 from 300 to 320 | 1 from 780 to 800 | 0 | 400 | 800+
Cut from documents | lines that occur earlier | 5 | characters of these | 330 | documents they were cut from | 5
Clusters of near duplicates | One text of each stays, and the others were dropped for it. | documents in a cluster | \
clusters | documents | 3 to 4 | 1 | 3"""


def test_all_that_the_page_tells_of_counts(tmp_path: Path) -> None:
    notice, words = "A line of more than a few words that every second document holds.", english(5, 30).split()
    rows = [{"id": f"d{k}", "text": english(k, 3 + k) + f"\n{notice}" * (k % 2)} for k in range(12)]
    rows += [
        {"id": "short", "text": "too short"},
        {"id": "copy", "text": english(4, 7)},
        {"id": "long", "text": english(6, 99)},
    ]
    rows += [{"id": f"n{k}", "text": " ".join([*words[:9], f"alpaca{k}", *words[9:]])} for k in range(3)]
    source, other = write_jsonl(tmp_path / "a.jsonl", rows), write_jsonl(tmp_path / "b.jsonl", [english(90)])
    source.write_text(source.read_text() + "{}\n{broken\n{broken\n")
    (tmp_path / "rules.toml").write_text("words = { min = 10, max = 400 }\n")
    settings: dict[str, Any] = {"shortest_passage": 5, "words_left": 1, "val_fraction": 0.2, "seed": 2}
    rules = {"rules": str(tmp_path / "rules.toml"), "dedup_lines": True, "on_error": "skip"}
    run_plain([f"web={source}", f"b={other}"], tmp_path / "out", **settings, **rules)
    page = (tmp_path / "out" / REPORT_NAME).read_text(encoding="utf-8")
    assert "\n".join(told(page)) == TOLD


def test_the_page_tells_of_passages_that_were_cut(tmp_path: Path) -> None:
    shared = " ".join(english(1, 9).split()[:40])
    out = Built.of(
        tmp_path, [f"{english(2)} {shared}", f"{english(3)} {shared} {english(4)}"], dedup_passages=20, words_left=1
    )
    [cut] = [each for each in told(out.report) if each[:3] == "Cut"]
    assert cut == (
        "Cut from documents | passages that occur earlier | 1 | words of these passages | 40 | documents that have them | 1 | "
        "documents they were cut from and that were kept | 1"
    )


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
    out = Built.of(tmp_path, [*rows, *rows[56:62]], rules="gopher_quality", limits=Limits(batch_records=7))
    words = out.report.split("<h3>words")[1].split("</figure>")[0]
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
    out = Built.of(tmp_path, [{"text": text} for text in texts], language=None)
    page = out.report
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
