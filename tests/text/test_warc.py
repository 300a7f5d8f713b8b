"""Web archives: pages become text by their bytes alone, and what gives no text is counted."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.builder.limits import Limits
from pipeline.cli.main import run_command
from pipeline.errors import ConfigError, DamagedInputError
from pipeline.text.extract import MOST_BYTES, MOST_DEPTH, MOST_TAGS, Extract
from pipeline.text.fields import parse_fields
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, FileSpan, split_file
from pipeline.text.where import Where
from tests.helpers import interpreters
from tests.helpers.builds import run_plain, table
from tests.helpers.corpus import english
from tests.helpers.format_samples import as_gzip, as_members, as_wet, http_page, warc_pages, warc_record
from tests.helpers.input_server import running_inputs
from tests.text.test_spans import check_spans

SENTENCE = "The quick brown fox jumps over the lazy dog and runs on into the dark wood."


def html(text: str, head: str = "") -> str:
    main = f"<main><p>{text}</p></main>"
    return f"<!DOCTYPE html><html><head>{head}<title>A title</title></head><body>{main}</body></html>"


def page(body: bytes, **headers: str) -> bytes:
    return warc_record("response", http_page(body, **headers))


def read(path: Path, records: bytes, **options: Any) -> list[Any]:
    """Return the text of each document, and the reason of each record that gives none."""
    path.write_bytes(records)
    found = DocumentReader(path, **options)
    return [record.text if isinstance(record, Document) else record.reason for record in found]  # type: ignore[union-attr]


# Bodies.


@pytest.mark.parametrize(
    ("charset", "declared", "head"),
    [
        ("utf-8", "text/html; charset=utf-8", ""),
        ("utf-8", "text/html", ""),
        ("utf-8-sig", "text/html; charset=iso-8859-1", ""),
        ("iso-8859-1", "text/html; charset=ISO-8859-1", ""),
        ("cp1252", "text/html; charset=utf-8", ""),  # a wrong one
        ("cp1252", "text/html; charset=nonsense", ""),
        ("cp1252", "text/html", '<meta charset="windows-1252">'),
        ("utf-16", "text/html", ""),
    ],
)
def test_a_page_is_read_in_its_charset_declared_or_not(tmp_path: Path, charset: str, declared: str, head: str) -> None:
    text = "Größe und Maß: ein schöner Tag für Übungen, »sehr« früh."
    record = page(html(text, head).encode(charset), kind=declared)
    assert read(tmp_path / "a.warc", record) == [text]


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("cp1251", "Это русский текст, который написан для проверки кодировки этой страницы."),
        ("shift_jis", "これは日本語の文章です。文字コードを調べるために書いています。"),
        ("gb18030", "这是一个中文网页的内容，我们用它来测试编码是否正确。"),
    ],
)
def test_pages_of_other_scripts_are_no_binary_files(tmp_path: Path, charset: str, text: str) -> None:
    records = [page(html(text).encode(charset), kind=f"text/html; charset={charset}")]
    records += [page(html(text, f'<meta charset="{charset}">').encode(charset), kind="text/html")]
    assert read(tmp_path / "a.warc", b"".join(records)) == [text, text]


def chunked(body: bytes, extension: bytes = b"", end: bytes = b"\r\n") -> bytes:
    parts = (body[:50], body[50:], b"")
    return b"".join(b"%x%b%b%b%b" % (len(part), extension, end, part, end) for part in parts)


@pytest.mark.parametrize(
    ("pack", "headers"),
    [
        (chunked, {"Transfer-Encoding": "chunked"}),
        (gzip.compress, {"Content-Encoding": "gzip"}),
        (zlib.compress, {"Content-Encoding": "deflate"}),
        (brotli.compress, {"Content-Encoding": "br"}),
        (lambda body: zlib.compress(body)[2:-4], {"Content-Encoding": "deflate"}),
        (zstandard.compress, {"Content-Encoding": "zstd"}),
        (gzip.compress, {"Content-Encoding": "x-gzip"}),
        (lambda body: gzip.compress(body[:99]) + gzip.compress(body[99:]), {"Content-Encoding": "GZip"}),
        (lambda body: gzip.compress(body) + b"\0\0", {"Content-Encoding": "gzip"}),
        (lambda body: gzip.compress(body)[:-5], {"Content-Encoding": "gzip"}),
        (lambda body: gzip.compress(gzip.compress(body)), {"Content-Encoding": "gzip, gzip"}),
        (lambda body: chunked(gzip.compress(body)), {"Content-Encoding": "gzip", "Transfer-Encoding": "chunked"}),
        (lambda body: chunked(gzip.compress(body)), {"Transfer-Encoding": "gzip, chunked"}),
        (lambda body: chunked(body, extension=b';name="a b"'), {"Transfer-Encoding": "chunked"}),
        (lambda body: chunked(body, extension=b" ; x", end=b"\n"), {"Transfer-Encoding": "Chunked"}),
        (lambda body: chunked(body)[:-5], {"Transfer-Encoding": "chunked"}),
        (bytes, {"Content-Encoding": "gzip"}),  # unpacked by the crawler, which kept the header
        (bytes, {"Content-Encoding": "utf-8"}),
        (gzip.compress, {"Content-Encoding": "utf-8, gzip"}),
        (bytes, {"Transfer-Encoding": "chunked"}),
    ],
)
def test_a_body_is_read_packed_or_not(tmp_path: Path, pack: Any, headers: dict[str, str]) -> None:
    assert read(tmp_path / "a.warc", page(pack(html(SENTENCE).encode()), **headers)) == [SENTENCE]


def test_a_body_that_cannot_be_unpacked_costs_only_itself(tmp_path: Path) -> None:
    broken = page(b"\x1b" + brotli.compress(html(SENTENCE * 40).encode()), Content_Encoding="br")
    unpacked = page(b"%PDF-1.7 ...", kind="application/pdf", Content_Encoding="br")
    found = read(tmp_path / "a.warc", broken + unpacked + page(html(SENTENCE).encode()))
    assert found == ["page that raised OSError", "page of application/pdf", SENTENCE]


PARAGRAPHS = html(f"{SENTENCE}</p>\r\n\r\n<p>{SENTENCE}").encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\r\n", b"\n"),  # all lines of the head, as ClueWeb has them
        (b"\r\n\r\n", b"\r\n\n"),
        (b"\r\n\r\n", b"\n\r\n"),
        (b"HTTP/1.1 200 OK", b"HTTP/2 200"),
        (b"HTTP/1.1 200 OK", b"ICY 200 OK"),
        (b"Content-Type: text/html;", b"content-TYPE:text/html\r\n\t;"),
        (b"Content-Type: text/html; charset=utf-8", b"X: " + b"x" * 99_999),
    ],
)
def test_a_page_is_whole_however_its_head_is_written(tmp_path: Path, before: bytes, after: bytes) -> None:
    head = http_page(b"")
    block = head.replace(before, after) + PARAGRAPHS
    assert block != head + PARAGRAPHS
    assert read(tmp_path / "a.warc", warc_record("response", block)) == [f"{SENTENCE}\n\n{SENTENCE}"]


def test_a_page_without_a_head_is_read_from_responses_and_resources(tmp_path: Path) -> None:
    latin = html("Größe und Maß").encode("latin-1")
    records = [
        warc_record("response", PARAGRAPHS),
        warc_record("resource", PARAGRAPHS, Content_Type="text/html"),
        warc_record("resource", latin, Content_Type='text/html; charset="ISO-8859-1"'),
        warc_record("resource", b"some notes", Content_Type="text/plain"),
        warc_record("resource", b"\x89PNG\r\n\x1a\n...", Content_Type="text/html"),
    ]
    both = f"{SENTENCE}\n\n{SENTENCE}"
    found = [both, both, "Größe und Maß", "page of text/plain", "page of image/png"]
    assert read(tmp_path / "a.warc", b"".join(records)) == found


# What gives no text.


def test_records_that_hold_no_page_are_counted_by_type(tmp_path: Path) -> None:
    good = html(SENTENCE).encode()
    xhtml = good.replace(b"<!DOCTYPE html>", b"<?xml version='1.0'?>")
    zipped = warc_record("response", http_page(good, kind="text/html"), WARC_Identified_Payload_Type="application/zip")
    found = {
        warc_record("warcinfo", b"software: x"): None,
        warc_record("request", b"GET / HTTP/1.1"): None,
        page(good): SENTENCE,
        warc_record("metadata", b"fetchTimeMs: 3"): None,
        warc_record("revisit", http_page(b"")): None,
        page(b"%PDF-1.7 ...", kind="application/pdf"): "page of application/pdf",
        page(b"%PDF-1.7 ...", kind="text/html"): "page of application/pdf",
        page(b"<?xml version='1.0'?><rss>News</rss>", kind="application/rss+xml"): "page of application/rss+xml",
        page(b"plain text", kind="text/plain"): "page of text/plain",
        page(good, kind="nonsense, as servers send it; x"): "page of an unknown type",
        page(good, status="304 Not Modified"): "page of status 304",
        page(good, status="404 Not Found"): "page of status 404",
        page(b"<html><body> </body></html>"): "page without text",
        page(b""): "page without text",
        warc_record("continuation", good): "record of another type",
        page(good, kind=""): SENTENCE,  # no type, but it begins as HTML does
        page(xhtml, kind="application/xhtml+xml"): SENTENCE,
        zipped: "page of application/zip",
        warc_record("conversion", b" as it is \n"): " as it is \n",
        warc_record("conversion", b"not \xff UTF-8"): "invalid UTF-8",
    }
    assert read(tmp_path / "a.warc.gz", as_members([*found])) == [said for said in found.values() if said]
    manifest = run_plain(tmp_path / "a.warc.gz", tmp_path / "out")
    assert manifest.counts["dropped"]["page of application/pdf"] == 2
    assert manifest.counts["bad"] == {"invalid UTF-8": 1}


def test_limits_are_bytes_tags_and_depth(tmp_path: Path) -> None:
    def nested(depth: int) -> bytes:
        return html("<div>" * depth + SENTENCE + "</div>" * depth).encode()

    over = "page over a limit"
    sized = {
        "100 MB": (page(html("x " * (50 << 20)).encode()), over),
        "100 MB packed": (page(gzip.compress(bytes(100 << 20), 1), Content_Encoding="gzip"), over),
        "many tags": (page(html("<b>x</b>" * (MOST_TAGS // 2 + 1)).encode()), over),
        "as many tags": (page(html(SENTENCE + "<br>" * (MOST_TAGS - 100)).encode()), SENTENCE),
        "deep": (page(nested(MOST_DEPTH)), over),
        "never closed": (page(nested(100_000).replace(b"</div>", b"")), over),
        "less deep": (page(nested(MOST_DEPTH - 8)), SENTENCE),
    }
    assert MOST_BYTES < 100 << 20
    assert read(tmp_path / "a.warc", b"".join(each for each, _ in sized.values())) == [end for _, end in sized.values()]


# Records.


def test_headers_are_fields_which_where_reads_before_extraction(tmp_path: Path) -> None:
    records = [
        warc_record("response", http_page(html(f"{SENTENCE} {n}").encode()), f"<urn:uuid:{n}>", f"http://{host}/")
        for n, host in enumerate(["a.example", "b.example", "a.example"])
    ]
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    seen: list[str | None] = []

    def text_of(body: bytes, url: str | None) -> str:
        seen.append(url)
        return body.decode()

    where = Where.parse('url == "http://b.example/"')
    every = DocumentReader(tmp_path / "a.warc", where=where, extract=text_of)
    found = [each for each in every if isinstance(each, Document)]
    assert (seen, [each.id for each in found]) == (["http://b.example/"], ["<urn:uuid:1>"])
    run_plain(tmp_path / "a.warc", tmp_path / "out", keep_fields="url:str,date:str,WARC-Type", dedup=False)
    columns = table(tmp_path / "out")
    assert columns["column:url"] == ["http://a.example/", "http://b.example/", "http://a.example/"]
    assert {*columns["column:date"]} == {"2024-05-06T07:08:09Z"}
    assert {*columns["column:WARC-Type"]} == {"response"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"Content-Length: ", b"content-length: "),
        (b"Content-Length: ", b"Content-Length: 000"),
        (b"Content-Length:", b"Content-Length :  "),
        (b"WARC-Type: response", b"Warc-type:Response"),
        (b"WARC-Target-URI", b"warc-target-uri"),
        (b"\r\n", b"\n"),
    ],
)
def test_the_headers_of_a_record_are_read_in_any_case_and_spacing(tmp_path: Path, before: bytes, after: bytes) -> None:
    head, _, block = page(html(SENTENCE).encode()).partition(b"HTTP/")
    (tmp_path / "a.warc").write_bytes(2 * (head.replace(before, after) + b"HTTP/" + block))
    found = list(DocumentReader(tmp_path / "a.warc", keep=parse_fields(["WARC-Target-URI", "content-TYPE", "other"])))
    fields = {"WARC-Target-URI": "https://example.org/", "content-TYPE": "application/http; msgtype=response"}
    assert [each.metadata for each in found if isinstance(each, Document)] == [fields | {"other": None}] * 2


SIX = [warc_record("conversion", f"Text {n}.\r\n\r\nIts end is here.".encode(), f"id{n}") for n in range(6)]


@pytest.mark.parametrize("stated", [b"26", b"11", b"9", b"7", b"0", b"-1", b"nonsense", None])
def test_a_record_is_whole_where_its_stated_length_is_too_small(tmp_path: Path, stated: bytes | None) -> None:
    length = b"Content-Length: 27\r\n"
    wrong = SIX[2].replace(length, b"" if stated is None else b"Content-Length: %b\r\n" % stated)
    records = [*SIX[:2], wrong, *SIX[3:5], wrong.replace(b"Text 2", b"Text 5")]
    files = {"a.warc": b"".join(records), "a.warc.gz": as_members(records), "b.warc.gz": as_gzip(b"".join(records))}
    for name, data in files.items():
        assert read(tmp_path / name, data) == [f"Text {n}.\r\n\r\nIts end is here." for n in range(6)]


def test_a_record_of_too_large_a_length_costs_itself_in_members(tmp_path: Path) -> None:
    records = [*SIX[:2], SIX[2].replace(b"Content-Length: 27", b"Content-Length: 333"), *SIX[3:]]
    found = read(tmp_path / "a.warc.gz", as_members(records))
    assert [len(each) for each in found] == [27, 27, len("record that is cut"), 27, 27, 27]
    spans = split_file(tmp_path / "a.warc.gz", 100)
    every = [each for span in spans for each in DocumentReader(tmp_path / "a.warc.gz", span)]
    cut = [each for each in every if isinstance(each, BadRecord)]
    said = "https://example.org/: it states 333 bytes, and 31 come before the next record"
    assert [each.detail for each in cut] == [said]
    for name, data in (("a.warc", b"".join(records)), ("b.warc.gz", as_gzip(b"".join(records)))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DamagedInputError, match=r"record of 333 bytes .*followed by b'.*2 documents of it"):
            list(DocumentReader(tmp_path / name))


@pytest.mark.parametrize("stated", [b"9999", b"99999999"])
@pytest.mark.parametrize("kind", [b"conversion", b"request"])
def test_a_record_never_takes_in_those_after_it(tmp_path: Path, stated: bytes, kind: bytes) -> None:
    wrong = SIX[2].replace(b"Content-Length: 27", b"Content-Length: " + stated).replace(b"conversion", kind)
    data = b"".join([*SIX[:2], wrong, *SIX[3:]])
    for name, packed in (("a.warc", data), ("b.warc.gz", as_gzip(data))):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(DamagedInputError, match=rf"a record of {stated.decode()} bytes is cut after \d+; 2 doc"):
            list(DocumentReader(tmp_path / name))


RECORDS = [warc_record("conversion", SENTENCE[:n].encode(), f"id{n}") for n in range(1, 40, 3)]
RECORDS[4] = RECORDS[4].replace(b"Content-Length: 13", b"Content-Length: 12")


@settings(deadline=None, max_examples=30)
@given(data=st.data(), unit=st.integers(8, 3000), padded=st.booleans())
def test_spans_hold_each_record_once_wherever_members_begin(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, unit: int, padded: bool
) -> None:
    """A member holds one record as it should, several, or a part of one."""
    whole = b"".join(RECORDS)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    edges = sorted({0, *(whole.find(record) for record in RECORDS[:: data.draw(st.integers(1, 4))]), *cuts, len(whole)})
    members = [whole[a:b] for a, b in itertools.pairwise(edges)]
    path = tmp_path_factory.getbasetemp() / "spans.warc.gz"
    path.write_bytes(as_members(members) + bytes(20) * padded)
    spans = check_spans(path, unit)
    assert len(spans) == max(1, -(-path.stat().st_size // unit))


def test_a_member_of_few_bytes_before_a_span_costs_no_record(tmp_path: Path) -> None:
    members = [*RECORDS[:4], RECORDS[4][:-4], RECORDS[4][-4:], *RECORDS[5:]]
    (tmp_path / "spans.warc.gz").write_bytes(as_members(members))
    check_spans(tmp_path / "spans.warc.gz", 54)


def test_a_file_without_members_to_cut_at_is_one_span(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"".join(RECORDS))
    assert split_file(tmp_path / "a.warc", 100) == [FileSpan(0, None)]


def test_a_member_that_is_broken_where_a_span_begins_is_not_lost(tmp_path: Path) -> None:
    members = [as_gzip(record) for record in RECORDS]
    at = len(b"".join(members[:4]))
    data = b"".join(members)
    for place in (at, at + 1, at + 10):
        path = tmp_path / "a.warc.gz"
        path.write_bytes(data[:place] + b"\x00\x00" + data[place + 2 :])
        with pytest.raises(DamagedInputError, match=r"corrupt gzip data|not a whole WARC"):
            [list(DocumentReader(path, span)) for span in (FileSpan(0, at), FileSpan(at, None))]


@pytest.mark.parametrize("cut", [1, 30, 200, 5000])
def test_a_record_that_is_cut_is_damage(tmp_path: Path, cut: int) -> None:
    data = as_wet([("a", "x" * 2000), ("b", "y" * 9000)])
    (tmp_path / "a.warc").write_bytes(data[: len(data) - 4 - cut])
    with pytest.raises(DamagedInputError, match=r"a\.warc: .*record of 9000 bytes .*cut after \d+; 1 document"):
        list(DocumentReader(tmp_path / "a.warc"))
    (tmp_path / "b.warc").write_bytes(data[: data.rfind(b"Content-Length")])
    with pytest.raises(DamagedInputError, match=r"not end within 1\d\d bytes.* 1 document"):
        list(DocumentReader(tmp_path / "b.warc"))
    packed = as_members([as_wet([("a", "x")]), data])
    (tmp_path / "c.warc.gz").write_bytes(packed[: -min(cut, 90)])
    seen: list[Any] = []
    with pytest.raises(DamagedInputError, match=r"cut off at byte \d+.*before its end"):
        seen.extend(DocumentReader(tmp_path / "c.warc.gz"))
    assert [each.text for each in seen[:1]] == ["x"]


# Builds and streams.

PAGES = [(f"<urn:uuid:{n}>", english(n, 30)) for n in range(60)]
SMALL = Limits(unit_bytes=3000, smallest_unit_bytes=1, partition_records=16)


def make(path: Path | str, output: Path, **options: Any) -> str:
    manifest = run_plain(path, output, **{"limits": SMALL, "rules": "gopher", **options})
    assert manifest.counts["kept"] > 20
    return hashlib.sha256((output / "manifest.json").read_bytes()).hexdigest()


def test_a_build_is_the_same_for_any_units_and_from_a_server(tmp_path: Path) -> None:
    path = tmp_path / "in" / "crawl.warc.gz"
    path.parent.mkdir()
    path.write_bytes(as_members(warc_pages(PAGES)))
    assert len(split_file(path, SMALL.unit_bytes)) > 4
    assert make(path, tmp_path / "one") == make(path, tmp_path / "whole", limits=Limits())
    with running_inputs(path.parent) as server:
        make(server.url(path.name), tmp_path / "far")
    assert table(tmp_path / "far") == table(tmp_path / "one")


def test_a_stream_of_pages_resumes_exactly_and_ranks_share_them(tmp_path: Path) -> None:
    pairs = [(str(n), hashlib.sha512(str(n).encode()).hexdigest() * 3) for n in range(60)]
    for part in range(12):
        (tmp_path / f"{part}.warc.gz").write_bytes(as_members(warc_pages(pairs[part::12])))

    def stream(rank: int = 0, ranks: int = 1) -> pipeline.Stream:
        data = pipeline.TextDataset(tmp_path, "bytes").shuffle(seed=1).shard(rank, ranks)
        return data.pack(64).batch(4 // ranks).take(8)

    def rows(batches: Any) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in batches]

    running = stream()
    batches = iter(running)
    begun = rows(itertools.islice(batches, 3))
    again = stream()
    again.load_state_dict(running.state_dict())
    rest = rows(batches)
    assert rows(again) == rest
    ranks = [rows(stream(rank, 2)) for rank in range(2)]
    assert begun + rest == [first + second for first, second in zip(*ranks, strict=True)]


# Extractors.


def test_an_extractor_is_named_and_one_of_the_user_is_kept_by_its_source(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_text.py").write_text("def text_of(html, url):\n    return None if b'fox' in html else url\n")
    records = [page(html(SENTENCE).encode()), warc_record("response", http_page(b"<p>x"), "b", "http://b.example/")]
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    manifest = run_plain("a.warc", tmp_path / "own", extract=f"{tmp_path}/own_text:text_of")
    assert manifest.counts["dropped"] == {"page without text": 1}
    assert manifest.recipe["settings"]["extract"] == "own_text:text_of"
    (tmp_path / "own_text.py").write_text("def text_of(html, url):\n    return 'another text'\n")
    for extract in ("own_text:text_of", f"{tmp_path}/own_text:text_of"):
        found = DocumentReader("a.warc", extract=extract)
        assert [each.text for each in found if isinstance(each, Document)] == ["another text"] * 2
        assert len(list(pipeline.TextDataset("a.warc", "bytes", epochs=1, extract=extract).documents())) == 2
    with pytest.raises(ConfigError, match=r"extract must be a name or a function .*HTML and url, got 7"):
        list(DocumentReader("a.warc", extract=7))  # type: ignore[arg-type]
    with pytest.raises(pipeline.PlanChangedError):
        run_plain("a.warc", tmp_path / "own", extract=f"{tmp_path}/own_text:text_of")
    (tmp_path / "config").mkdir()
    (tmp_path / "own_text.py").rename(tmp_path / "config/own_text.py")
    (tmp_path / "config/build.yml").write_text("extract: own_text:text_of\ntokenizer: bytes\nrules: none\n")
    flags = ["--config", "config/build.yml", "a.warc", "--output", "beside", "--workers", "1"]
    assert run_command("build", [*flags, "--quiet"]) == 0
    with pytest.raises(ConfigError, match=r"unknown extractor 'trafilatur' \(did you mean 'trafilatura'\?\)"):
        run_plain("a.warc", tmp_path / "typo", extract="trafilatur")


def test_trafilatura_makes_other_texts_and_a_state_knows_the_extractor(tmp_path: Path) -> None:
    body = html("<p>".join([SENTENCE] * 8) + "</p><footer>Imprint and cookies</footer>").encode()
    (tmp_path / "a.warc").write_bytes(page(body))
    states: list[object] = []
    for extract in ("resiliparse", "trafilatura", lambda body, url: body.decode()):
        stream = pipeline.TextDataset(tmp_path / "a.warc", "bytes", epochs=1, extract=extract)
        assert len(list(stream.documents())) == 1
        states.append(stream.pack(8).batch(1).state_dict())
    assert all(one != other for one, other in itertools.combinations(states, 2))


def test_an_extractor_that_raises_makes_a_bad_record(tmp_path: Path) -> None:
    def fails(body: bytes, url: str | None) -> str:
        raise ValueError("no such tag")

    wrong: Extract = lambda body, url: body  # type: ignore[assignment, return-value]  # noqa: E731
    (tmp_path / "a.warc").write_bytes(page(html(SENTENCE).encode()))
    (bad,) = DocumentReader(tmp_path / "a.warc", extract=fails)
    assert isinstance(bad, BadRecord)
    assert (bad.reason, bad.detail) == ("page that raised ValueError", "https://example.org/: no such tag")
    with pytest.raises(ConfigError, match=r"must return text or None, got b'<!DOCTYPE.* of type bytes"):
        list(DocumentReader(tmp_path / "a.warc", extract=wrong))


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(page(html(SENTENCE).encode()))
    code = """
import sys
from pipeline.cli.main import run_command
for module, extract in (("fastwarc", "resiliparse"), ("resiliparse", "resiliparse"), ("trafilatura", "trafilatura")):
    for name in [name for name in sys.modules if name.startswith(module)]:
        del sys.modules[name]
    sys.modules[module] = None  # as where it is not installed
    assert run_command("build", [sys.argv[1], "--output", sys.argv[2], "--extract", extract]) == 2
    del sys.modules[module]
"""
    done = interpreters.run("-c", code, tmp_path / "a.warc", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "not installed" in line]
    for line, module in zip(lines, ("fastwarc", "resiliparse", "trafilatura"), strict=True):
        assert re.search(rf"pip install .*{module}", line)
    for line, said in zip(lines, ("WARC files", "HTML of WARC files", "extract trafilatura"), strict=True):
        assert said in line
