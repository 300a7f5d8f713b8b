"""Domains, dates and licences of a dataset equal a recount of its documents; bounded memory has an error that is told."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.builder.counts.attribution import ATTRIBUTION_NAME, domain_of, merged
from pipeline.finished.redaction.redact import drop, redact
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import Built, run_plain, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import english


def records(source: str, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for k in range(60):
        host = f"{draw.choice(['www.', 'blog.', ''])}Site{draw.randrange(25)}.org"
        urls = [f"https://{host}/{k}", f"http://{host}:8080/?q={k}", None if k % 7 == 0 else f"https://{host}"]
        url = draw.choice(urls)
        date = draw.choice([f"20{draw.randrange(18, 26)}-0{draw.randrange(1, 10)}-11T00:00:00Z", None, "some day"])
        held = draw.choice(["CC0-1.0", None, "MIT"]) if source == "web" else None
        text = english(1000 * seed + k)[: draw.randrange(4, 400)]
        rows.append({"id": f"{source}{k}", "text": text, "url": url, "date": date, "license": held})
    return [*rows, {**rows[3], "id": "copy"}]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attribution")
    (folder / "rules.toml").write_text("characters = { min = 30 }\n")
    sources = enumerate(("web", "wiki"))
    inputs = [f"{name}={write_jsonl(folder / f'{name}.jsonl', records(name, k))}" for k, name in sources]
    settings: dict[str, Any] = {"keep_fields": "url,date:str,license", "keep_texts": "parquet"}
    rules = {"rules": str(folder / "rules.toml"), "license": "wiki=CC-BY-SA-4.0", "val_fraction": 0.2}
    run_plain(inputs, folder / "out", tokens_per_shard=6000, **settings, **rules)
    return folder / "out"


def documents_of(dataset: Path) -> list[dict[str, Any]]:
    """Return what is in a dataset, by its kept texts."""
    rows = [row for path in sorted((dataset / "texts").iterdir()) for row in pq.read_table(path).to_pylist()]
    return [row | {"tokens": len(row["text"].encode()) + 1} for row in rows if row["id"] is not None]


@pytest.fixture(scope="module")
def documents(built: Path) -> list[dict[str, Any]]:
    return documents_of(built)


def sums(documents: list[dict[str, Any]], names: list[str]) -> dict[str, list[int]]:
    counted, tokens = Counter(names), Counter[str]()
    for name, document in zip(names, documents, strict=True):
        tokens[name] += document["tokens"]
    return {name: [counted[name], tokens[name]] for name in counted}


def cells(text: str, head: str) -> list[list[str]]:
    """Return the rows of the table that begins with a head."""
    rows = text.split(f"| {head} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().replace(",", "") for cell in row.strip("|").split(" | ")] for row in rows]


def test_counts_of_domains_dates_and_licences_equal_a_naive_recount(
    built: Path, documents: list[dict[str, Any]], says: Says
) -> None:
    manifest = pipeline.Manifest.read(built)
    assert len(manifest.shards) > 4
    assert sum(document["tokens"] for document in documents) == manifest.counts["tokens"]
    said = assert_recount(built, says)
    every = 2 * 61
    left_out = cells(said, "why | documents | measured: kept")
    assert sum(int(row[1]) for row in left_out) == every - len(documents)
    assert [row[0] for row in left_out if int(row[1])].count("exact duplicate") == 1
    assert any(row[0] == "characters" and row[2].endswith("at least 30") for row in left_out)
    assert "| text | Less than 1 billion tokens |" in said
    assert "after the build: none" in said
    assert [line.removeprefix("## ") for line in said.splitlines() if line.startswith("## ")] == [  # of C(2025) 8311
        "1.3 Modalities, overall training data size and other characteristics",
        "2. List of data sources",
        "2.3 Data crawled and scraped from online sources",
        "3. Data processing aspects",
        "3.1 Respect of reservation of rights from text and data mining exception or limitation",
        "3.2 Removal of illegal content",
        "3.3 Other information",
    ]


def assert_recount(dataset: Path, says: Says) -> str:
    """Hold the counts of a dataset, and its summary, to a naive recount of its documents; return the summary."""
    assert list(verify_dataset(dataset)) == []
    documents, counted = documents_of(dataset), json.loads((dataset / ATTRIBUTION_NAME).read_text())
    hosts = [(row["url"] or "").partition("//")[2].partition("/")[0].partition(":")[0].lower() for row in documents]
    domains = sums(documents, [host.removeprefix("www.") for host in hosts])
    without = domains.pop("")
    ranked = sorted(domains.items(), key=lambda item: (-item[1][1], item[0]))
    top = [[name, *pair] for name, pair in ranked[: -(-len(ranked) // 10)]]
    assert len(top) > 2
    expected = {"count": len(ranked), "is_exact": True, "error_tokens": 0, "without": without, "top": top}
    assert counted["domains"] == expected
    for source in ("web", "wiki"):
        own = [row for row in documents if row["source"] == source]
        days = sorted(row["date"][:10] for row in own if (row["date"] or "").startswith("20"))
        assert counted["dates"][source] == [days[0], days[-1], len(own) - len(days)]
        assert counted["licenses"][source] == sums(own, [row["license"] or "" for row in own])

    said = says(0, "card", dataset, "--eu-summary").out
    [[_, _, *whole]] = cells(said, "modality | size | tokens | documents")
    assert [int(each) for each in whole] == [sum(row["tokens"] for row in documents), len(documents)]
    assert cells(said, "domain | documents | tokens") == [[str(cell) for cell in row] for row in top]
    assert f"The {len(top)} largest of {len(ranked)} domains, by tokens. Documents without a url: {without[0]}" in said
    languages = sums(documents, [row["language"] for row in documents])
    told = cells(said, "language | documents | tokens | share of tokens")
    assert {name: [int(count), int(size)] for name, count, size, _ in told} == languages
    rows = cells(said, "source | files | bytes read | documents | tokens | licences | dates")
    sources = {row[0]: row for row in rows}
    own = [row for row in documents if row["source"] == "web"]
    licences = sums(own, [row["license"] or "unknown" for row in own])
    assert sources["web"][5] == " ".join(f"{name} ({pair[1]} tokens)" for name, pair in sorted(licences.items()))
    assert sources["wiki"][5].startswith("CC-BY-SA-4.0 (")
    for name, row in sources.items():
        own = [document for document in documents if document["source"] == name]
        assert [int(cell) for cell in row[3:5]] == [len(own), sum(document["tokens"] for document in own)]
        first, last, undated = counted["dates"][name]
        assert row[6] == f"{first} to {last} {undated} without"
    return said


def test_counts_after_redactions_equal_a_recount_of_the_documents_that_are_left(
    built: Path, tmp_path: Path, says: Says
) -> None:
    dataset = Path(shutil.copytree(built, tmp_path / "set"))
    sizes = {row["id"]: row["tokens"] for row in documents_of(dataset)}
    parts = [[id for number, id in enumerate(sizes) if number % 5 == k] for k in range(3)]
    for ids, reason in zip(parts, ("first", "second"), strict=False):
        redact(dataset, ids, reason, texts=True)
    drop(dataset, parts[2], "third", tmp_path / "without")
    assert {row["id"] for row in documents_of(dataset)} == {*sizes} - {*parts[0], *parts[1]}
    for folder, reasons in ((dataset, ["first", "second"]), (tmp_path / "without", ["first", "second", "third"])):
        said = assert_recount(folder, says)
        rows = [
            [reason, str(len(part)), str(sum(sizes[id] for id in part))]
            for reason, part in zip(reasons, parts, strict=False)
        ]
        assert [row[1:] for row in cells(said, "date | reason | documents | tokens")] == rows
        for flags in ([], ["--croissant"]):
            said = says(0, "card", folder, *flags).out
            for reason, count, tokens in rows:
                assert f": {count} documents of {int(tokens):,} tokens ({reason})" in said


def test_croissant_is_valid_by_mlcroissant_which_reads_the_kept_documents(
    built: Path, documents: list[dict[str, Any]], says: Says
) -> None:
    import mlcroissant

    path = built / "croissant.json"
    assert says(0, "card", built, "--croissant", "--output", path).out == ""
    loaded = mlcroissant.Dataset(jsonld=str(path))
    assert loaded.metadata.ctx.issues.errors == set()
    assert sorted(loaded.metadata.license) == ["CC-BY-SA-4.0", "CC0-1.0", "MIT", "unknown"]
    files = {each.id: each.sha256 for each in loaded.metadata.distribution if each.id.endswith(".tar")}
    assert files == {info.name: info.sha256 for info in pipeline.Manifest.read(built).shards}
    rows = [{key.partition("/")[2]: value for key, value in row.items()} for row in loaded.records("documents")]
    texts = [{key: value and value.decode() for key, value in row.items()} for row in rows]
    assert sorted(row["id"] + row["text"] for row in texts) == sorted(row["id"] + row["text"] for row in documents)
    path.unlink()


def test_croissant_names_fields_of_any_name_by_distinct_ids(tmp_path: Path, says: Says) -> None:
    import mlcroissant

    names = ["a b", "a-b", "a\tb", "meta.lang", "größe", "x/y", "p#q", "100%", 'q"t', "{z}", "back\\slash", "a?b"]
    row = {"text": "some text", "id": "d0", **{name: f"of {name}" for name in names}}
    settings: dict[str, Any] = {"keep_fields": names, "keep_texts": "parquet", "val_fraction": 0}
    out = Built.of(tmp_path, [row], **settings)
    says(0, "card", out, "--croissant", "--output", out / "c.json")
    (found,) = mlcroissant.Dataset(jsonld=str(out / "c.json")).records("documents")
    assert {f"of {name}" for name in names} < {value and value.decode() for value in found.values()}


def test_a_summary_says_what_was_not_counted(tmp_path: Path, says: Says) -> None:
    out = Built.of(tmp_path, ["one text", "another", "a third"], license="MIT")
    assert not (out / ATTRIBUTION_NAME).exists()
    redact(out, ["d1"], reason="opt-out | of May")
    said = says(0, "card", out, "--eu-summary").out
    assert "Not counted: the build kept no field `url` (`--keep-fields url`)" in said
    assert r"| opt-out \| of May | 1 | 8 |" in said
    assert "| unnamed | 1 |" in said
    assert "| MIT (17 tokens) | unknown |" in said
    says(0, "card", out, shows="licence MIT")


def test_a_licence_that_is_a_text_is_shortened_and_breaks_no_table(tmp_path: Path, says: Says) -> None:
    held = ["a |\n\nb", "long " * 900]
    records = [{"id": str(k), "text": english(k), "license": text} for k, text in enumerate(held)]
    out = Built.of(tmp_path, records, keep_fields="license")
    licences = json.loads((out / ATTRIBUTION_NAME).read_text())["licenses"][""]
    assert [*licences] == ["a | b", f"{'long ' * 19}long…"]
    redact(out, ["0"], reason="line\nfeed")
    says(0, "card", out, "--eu-summary", shows="| line feed | 1 |")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_forgotten_domains_lack_no_more_tokens_than_the_error_says(seed: int, most: int) -> None:
    draw = random.Random(seed)
    whole: dict[str, list[int]] = {}
    shards = []
    for _ in range(draw.randrange(1, 9)):
        names = [f"d{min(draw.randrange(60), draw.randrange(60))}" for _ in range(draw.randrange(40))]
        own = {name: [1, draw.randrange(1, 50)] for name in names}
        shards.append({"domains": own})
        for name, (documents, tokens) in own.items():
            before = whole.setdefault(name, [0, 0])
            whole[name] = [before[0] + documents, before[1] + tokens]
    found = merged(iter(shards), most)["domains"]
    assert found["count"] == len(whole)  # few enough to be counted by their hashes
    assert found["is_exact"] == (found["error_tokens"] == 0)
    for name, documents, tokens in found["top"]:
        assert 0 <= whole[name][1] - tokens <= found["error_tokens"]
        assert 1 <= documents <= whole[name][0]
    kept = {name for name, *_ in found["top"]}
    if found["is_exact"]:
        ranked = sorted(whole, key=lambda name: (-whole[name][1], name))
        assert [row[0] for row in found["top"]] == ranked[: -(-len(whole) // 10)]
    elif kept:
        least = min(tokens for _, _, tokens in found["top"])
        assert all(whole[name][1] <= least + found["error_tokens"] for name in whole.keys() - kept)


def test_the_number_of_very_many_domains_is_estimated_to_two_percent() -> None:
    shards = ({"domains": {f"site{k}.org": [1, 1] for k in range(at, at + 8_000)}} for at in range(0, 30_000, 5_000))
    found = merged(shards, 1_000)["domains"]
    assert not found["is_exact"]
    assert abs(found["count"] / 33_000 - 1) < 0.02


def test_hosts_are_the_domains_of_urls_and_what_is_no_url_has_none() -> None:
    urls = {"https://a.b.co.uk.:8/x": "a.b.co.uk", "http://[::1]/": "::1", "ftp://WWW.x.y": "x.y", "http://[/": ""}
    assert {url: domain_of(url) for url in urls} == urls
