"""Lines and paragraphs that occur earlier in the corpus are cut, as plain loops and sets would cut them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.measures.length import words
from filters.text_view import Page
from filters.unicode_classes import SPACES
from pipeline.builder.dedup.segments import KINDS, LINES, PARAGRAPHS, is_blank, remove_segments, segment_lines, split
from pipeline.builder.limits import Limits
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.builder.report.funnel import funnel
from pipeline.shards.manifest import Manifest
from pipeline.text.normalize import normalize
from tests.helpers import interpreters
from tests.helpers.builds import Built, digests, kept, run_plain, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import english
from tests.helpers.interruptions import Units
from tests.stream.order_oracle import mix64

MENU = "Read more about the cookies of this site and of others."


def cut(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"dedup": False, "dedup_lines": True, **options})


def cut_of(folder: Path, texts: Sequence[str], **options: Any) -> Built:
    return Built.of(folder, texts, **{"dedup": False, "dedup_lines": True, **options})


def oracle(texts: Sequence[str], kinds: Sequence[str], shortest: int = 30, words_left: int = 50) -> list[str | None]:
    """What is left of each text by the definition alone; None where too little is."""
    seen: set[tuple[str, str]] = set()
    found: list[str | None] = []
    for text in texts:
        cut = []
        for kind in kinds:
            for passage in passages(text, kind, shortest):
                if (kind, passage.text) in seen:
                    cut.append((passage.first, passage.last))
                seen.add((kind, passage.text))
        left = remove_segments(text, cut)
        gone = cut and (not left.strip() or words(Page(left)) < words_left)
        found.append(None if gone else left)
    return found


def corpus(count: int) -> list[str]:
    """Documents with menus, repeated lines and paragraphs, near and far, in English and Japanese."""
    found = []
    for number in range(count):
        lines = english(number, 12).split(". ")
        if number % 3 == 0:
            lines.insert(number % 5, MENU)
        if number % 4 == 1:
            lines.insert(2, english(number // 9, 12).split(". ")[1].upper())
        if number % 7 == 2:
            lines[3:3] = ["", *english(number - 2, 12).split(". ")[5:8], ""]
        if number % 5 == 4:
            lines += ["", "この文は何度も出てくるので、二度目からは切り取られるはずの長い行である。", "short"]
        found.append("\n".join(lines))
    found[17:17] = ["", "   ", found[3], found[4][: len(found[4]) // 2], MENU]
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    texts = corpus(240)
    for k in range(6):
        write_jsonl(folder / f"{k}.jsonl", texts[k * 41 : (k + 1) * 41])
    return folder


@pytest.mark.parametrize(("kinds", "shortest", "words_left"), [(("paragraphs",), 1, 0), (KINDS, 30, 50)])
def test_a_build_keeps_what_the_definition_keeps(
    many: Path, tmp_path: Path, kinds: tuple[str, ...], shortest: int, words_left: int
) -> None:
    flags = {f"dedup_{kind}": True for kind in kinds}
    manifest = run_plain(many, tmp_path / "out", dedup=False, **flags, shortest_passage=shortest, words_left=words_left)
    texts = [text for text in corpus(240) if text.strip()]
    expected = oracle(texts, kinds, shortest, words_left)
    assert kept(tmp_path / "out") == [text for text in expected if text is not None]
    counts = manifest.counts
    assert counts["dropped"].get("words_left", 0) == expected.count(None) > 0
    cut = [(text, left) for text, left in zip(texts, expected, strict=True) if left is not None and left != text]
    assert counts["repeats"]["documents"] == len(cut) > 20
    assert counts["repeats"]["characters"] == sum(len(text) - len(left) for text, left in cut)
    assert counts["repeats"]["compared"] == sum(map(len, texts))
    assert set(KINDS) & counts["repeats"].keys() == set(kinds)
    assert counts["read"] == sum(counts["dropped"].values()) + counts["kept"]


@pytest.mark.nightly
def test_real_text_is_cut_as_by_the_definition(shared_data: Path, tmp_path: Path) -> None:
    raw = zstandard.ZstdDecompressor().stream_reader((shared_data / "dev/part-02.jsonl.zst").open("rb")).read()
    texts = [normalize(orjson.loads(line)["text"]) for line in raw.splitlines()[:600]]
    out = cut_of(tmp_path, texts, dedup_paragraphs=True)
    left = oracle([text for text in texts if text.strip()], KINDS)
    assert out.kept == [text for text in left if text is not None]
    assert None in left


def test_workers_parts_and_buckets_change_no_byte(many: Path, tmp_path: Path) -> None:
    options = {"dedup": True, "dedup_paragraphs": True, "keep_rejected": True, "rules": "gopher_quality"}
    cut(many, tmp_path / "one", **options)
    progress = Units()
    cut(many, tmp_path / "many", **options, workers=2, progress=progress, limits=Limits(bucket_hashes=150))
    assert progress.totals["find repeats"] > 5
    assert digests(tmp_path / "many") == digests(tmp_path / "one")


def test_documents_are_deduplicated_as_they_are_once_cut(tmp_path: Path) -> None:
    body = english(1, 30)
    texts = [MENU, f"{MENU}\n{body}", f"{body.upper()}\n{MENU}\n{english(2, 30)}", f"{english(3, 30)}\n{MENU}"]
    texts += [f"{MENU}\n{english(4, 30)}", english(4, 30) + " One more."]
    manifest = cut(write_jsonl(tmp_path / "in.jsonl", texts), tmp_path / "out", dedup=True)
    assert kept(tmp_path / "out") == [MENU, body, english(2, 30), english(3, 30), english(4, 30)]
    assert manifest.counts["duplicates"] == {"exact": 0, "near": 1}
    hashes = np.load(tmp_path / "out/signatures/hashes.npy")
    run_plain(write_jsonl(tmp_path / "cut.jsonl", kept(tmp_path / "out")), tmp_path / "plain")
    np.testing.assert_array_equal(hashes, np.load(tmp_path / "plain/signatures/hashes.npy"))


def test_what_is_cut_and_what_goes_with_it_stand_in_rejected(tmp_path: Path) -> None:
    first, second = english(1, 20), english(2, 20)
    texts = [f"{MENU}\n{first}", f"{second}\n{MENU}\n\n{MENU}", f"{first}\nA few words."]
    out = cut_of(tmp_path, texts, keep_rejected=True)
    assert [(r["id"], r["line"], r["reason"], r["text"]) for r in out.rejected] == [
        ("d1", 2, "cut: 2 lines found earlier in the corpus", f"{MENU}\n{MENU}"),
        ("d2", 3, "words_left 3 < 50 without 1 line found earlier in the corpus", texts[2]),
    ]
    assert out.kept == [texts[0], second]


def test_sources_and_languages_add_up_and_every_report_tells_what_was_cut(
    many: Path, tmp_path: Path, says: Says
) -> None:
    specs = [f"a={many}/0.jsonl", f"b={many}/[1-5].jsonl"]
    manifest = cut(specs, tmp_path / "out")
    counts = manifest.counts
    for held in (*counts["by_source"].values(), *counts["by_language"].values()):
        assert held["read"] == sum(held["dropped"].values()) + held["kept"]
    assert counts["by_source"]["a"]["dropped"]["words_left"] > 0
    samples = counts["samples"]
    assert {sample["text"] for sample in samples["kept"]} <= {text[:600] for text in kept(tmp_path / "out")}
    assert "without" in samples["words_left"][0]["reason"]
    assert samples["cut as repeated"][0]["reason"].endswith("found earlier in the corpus")
    page = (tmp_path / "out/report.html").read_text()
    said = next(row.what for row in funnel(counts) if row.what.startswith("cut"))
    lines = f"{counts['repeats']['lines']:,} lines that occur earlier"
    assert said == f"cut from {counts['repeats']['documents']:,} documents: {lines}"
    assert said in page
    assert f"{counts['repeats']['characters']:,}" in page
    assert f"{counts['repeats']['lines']:,}  cut: lines that occur earlier" in says(0, "inspect", tmp_path / "out").out


def test_the_first_in_input_order_stays_though_a_later_lane_reads_it_sooner(tmp_path: Path) -> None:
    texts = [f"{english(k, 30)}\n{MENU} {k // 7}" for k in range(60)]
    raw = write_jsonl(tmp_path / "in.jsonl", texts).read_bytes()
    (tmp_path / "in.jsonl.zst").write_bytes(zstandard.compress(raw))
    limits = Limits(partition_characters=8_000, batch_records=3, lane_bytes=1_000)
    cut(tmp_path / "in.jsonl.zst", tmp_path / "out", workers=2, limits=limits)
    assert kept(tmp_path / "out") == oracle(texts, ["lines"])


def test_ten_thousand_equal_lines_leave_one(tmp_path: Path) -> None:
    texts = ["\n".join([MENU] * 5_000), *[MENU] * 5_000]
    manifest = cut(write_jsonl(tmp_path / "in.jsonl", texts), tmp_path / "out", words_left=0)
    assert kept(tmp_path / "out") == [MENU]
    assert manifest.counts["repeats"]["lines"] == 4_999
    assert manifest.counts["dropped"] == {"words_left": 5_000}


def test_nothing_to_read_and_nothing_to_cut_are_no_trouble(tmp_path: Path) -> None:
    for number, texts in enumerate(([], ["", " \n "], ["a", "a"])):
        path = write_jsonl(tmp_path / f"{number}.jsonl", texts)
        manifest = cut(path, tmp_path / str(number))
        assert manifest.counts.get("repeats", {}).get("lines", 0) == 0
        assert manifest.counts["kept"] == texts.count("a")


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        """Megabytes that sorting all buckets of ``count`` parts takes, a megabyte of hashes each."""
        work = tmp_path / str(count) / ".build"
        for number in range(count):
            folder = work / "ingest" / f"{number:06d}" / "0000"
            folder.mkdir(parents=True)
            drawn = np.frombuffer(np.random.RandomState(number).bytes(1 << 20), np.uint64)
            np.unique(drawn).tofile(folder / "passages.bin")
        (work / "round").mkdir()
        partitions = {"partitions": [[number, 0] for number in range(count)]}
        (work / "round/partitions.json").write_text(json.dumps(partitions))
        (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a"}))
        make_plan([str(tmp_path / "in.jsonl")], Recipe(dedup_lines=True)).write(work)
        code = (
            "import resource, sys; from pathlib import Path; from pipeline.builder.work.workspace import Workspace\n"
            "from pipeline.builder.stages.line_dedup import count_buckets, sort_bucket\n"
            "workspace = Workspace(Path(sys.argv[1]).parent)\n"
            "count = count_buckets(workspace, 1 << 18)\n"
            "for bucket in range(count): sort_bucket(workspace, count, bucket)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
        )
        return int(interpreters.run("-c", code, work).stdout)

    small, large = peak(6), peak(30)
    assert large < small + 20  # 24 more are sorted


M64 = (1 << 64) - 1
TEXTS = st.text("aA ßΣσς雨\n\n\r\t\u2028\u3000\ufeffİ.\x00\U0001f600", max_size=40)


class Passage(NamedTuple):
    """A passage as it is compared, and the lines of its text that it takes: from ``first`` up to ``last``."""

    text: str
    first: int
    last: int


def passages(text: str, kind: str, shortest: int) -> Iterator[Passage]:
    """Yield the lines or paragraphs of a text that have at least ``shortest`` characters, by the definition."""
    lines = text.split("\n")
    taken = [[number] for number in range(len(lines))]
    if kind == PARAGRAPHS:
        taken = [[]]
        for number, line in enumerate(lines):
            if is_blank(line):
                taken.append([])
            else:
                taken[-1].append(number)
    for numbers in taken:
        compared = re.sub(f"[{SPACES}]+", " ", "\n".join(lines[number] for number in numbers).strip(SPACES)).casefold()
        if len(compared) >= max(1, shortest):
            yield Passage(compared, numbers[0], numbers[-1] + 1)


def hashed(text: str) -> int:
    h = 0xCBF29CE484222325
    for character in text:
        h = (h ^ ord(character)) * 0x9E3779B97F4A7C15 & M64
        h ^= h >> 32
    return mix64(h)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, max_size=5), kinds=st.sets(st.sampled_from(KINDS)), shortest=st.integers(1, 6))
def test_compiled_passages_are_those_of_the_definition(texts: list[str], kinds: set[str], shortest: int) -> None:
    found = split(texts, kinds, shortest)
    expected = [
        (hashed(passage.text) ^ (kind == PARAGRAPHS) * 0xD6E8FEB86659FD93, number, passage.first, passage.last)
        for kind in KINDS
        if kind in kinds
        for number, text in enumerate(texts)
        for passage in passages(text, kind, shortest)
    ]
    assert found.lines == (sum(len(list(passages(text, LINES, shortest))) for text in texts) if LINES in kinds else 0)
    assert [(h, *place) for h, place in zip(found.hashes.tolist(), found.locations.tolist(), strict=True)] == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Read more about it", "  read\tMORE  about it \r"),
        ("Straße", "STRASSE"),
        ("ΟΔΟΣ", "οδος"),
        ("これは\u3000雨です", "これは 雨です"),
        ("one\u2028two", "one two"),
    ],
)
def test_case_and_white_space_do_not_tell_lines_apart(a: str, b: str) -> None:
    assert split([a], [LINES], 1).hashes.tolist() == split([b], [LINES], 1).hashes.tolist() != []


@pytest.mark.parametrize(("a", "b"), [("Page 1", "Page 2"), ("a b", "ab"), ("résumé", "resume"), ("雨", "雪")])
def test_digits_marks_and_the_place_of_spaces_do(a: str, b: str) -> None:
    assert split([a], [LINES], 1).hashes.tolist() != split([b], [LINES], 1).hashes.tolist()


@pytest.mark.parametrize(
    ("text", "cut", "left"),
    [
        ("a\nb\nc", [(1, 2)], "a\nc"),
        ("a\n\nb\n\nc", [(2, 3)], "a\n\nc"),
        ("a\n\nb\nc\n\n\nd", [(2, 3)], "a\n\nc\n\n\nd"),
        ("a\n\nb\nc\n\n\nd", [(2, 4)], "a\n\nd"),
        ("menu\n\na\n\nfooter\n", [(0, 1), (4, 5)], "a"),
        ("\n a\nb\n", [(2, 3)], "\n a"),
        ("\r\na\r\nb\r\n", [(1, 2)], "\r\nb\r\n"),
        ("a\n\nb\n\n\n", [], "a\n\nb\n\n\n"),
        ("a", [(0, 1)], ""),
    ],
)
def test_what_is_cut_takes_its_blank_lines_along(text: str, cut: list[tuple[int, int]], left: str) -> None:
    assert remove_segments(text, cut) == left


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, kind=st.sampled_from(KINDS), chosen=st.sets(st.integers(0, 12)))
def test_what_is_not_cut_stays_in_order(text: str, kind: str, chosen: set[int]) -> None:
    found = list(passages(text, kind, 1))
    cut = [found[k][1:] for k in chosen if k < len(found)]
    gone = {number for first, last in cut for number in range(first, last)}
    stays = [line for n, line in enumerate(text.split("\n")) if n not in gone and not is_blank(line)]
    left = remove_segments(text, cut)
    assert [line for line in segment_lines(text, cut).split("\n") if cut] == [
        line for n, line in enumerate(text.split("\n")) if n in gone
    ]
    assert [line for line in left.split("\n") if not is_blank(line)] == stays
    assert left == text or cut
    assert left.count("\n") <= text.count("\n")
