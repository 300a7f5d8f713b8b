"""Runs of words that occur earlier in the corpus are found as a plain search of all runs finds them."""

from __future__ import annotations

import functools
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from filters.measures.length import words as count_words
from filters.text_view import Page
from filters.words import words as words_of
from pipeline.builder.dedup import word_runs
from pipeline.builder.dedup.key_tables import KeyTables, count_keys, in_key_set, load_keys, write_key_set, write_table
from pipeline.builder.dedup.word_runs import find_words, picked_runs, remove_spans, whole_spans
from pipeline.builder.limits import Limits
from pipeline.builder.report.funnel import funnel
from pipeline.shards.manifest import Manifest
from pipeline.text.normalize import normalize
from tests.helpers.builds import Built, digests, kept, rejected, run_plain, table, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.interruptions import Units, killed_at

NOTICE = " ".join(f"notice{k}" for k in range(60)).capitalize()
SMALL = Limits(smallest_unit_bytes=20_000, partition_characters=20_000, batch_records=20, bucket_hashes=700)


def always(number: int, mask: list[bool]) -> bool:
    return True


def spans_of(text: str) -> list[tuple[int, int]]:
    return [(begin, end) for _, begin, end in words_of(text)]


def runs_by_words(texts: Sequence[str], length: int) -> list[list[Any]]:
    """The runs of ``length`` words of each text: what is equal for equal runs."""
    every = ([word for word, *_ in words_of(text)] for text in texts)
    return [[tuple(words[at : at + length]) for at in range(len(words) - length + 1)] for words in every]


def runs_by_suffixes(texts: Sequence[str], length: int) -> list[list[Any]]:
    """The same by a suffix array of the numbers of all words, in which another number ends each text."""
    from pydivsufsort import divsufsort, kasai

    numbers: dict[object, int] = {}
    words: list[int] = []
    stops = [0]
    for number, text in enumerate(texts):
        words += [numbers.setdefault(word, len(numbers)) for word in (*(word for word, *_ in words_of(text)), number)]
        stops.append(len(words))
    array = np.array(words, np.uint32)
    suffixes = divsufsort(array).astype(np.int64)
    common = kasai(array, suffixes)[:-1]  # of each suffix and the next one
    runs = np.empty(len(array), np.int64)
    runs[suffixes] = np.cumsum(np.concatenate([[0], common < length]))
    return [runs[begin : max(begin, end - length)].tolist() for begin, end in itertools.pairwise(stops)]


def repeated(
    texts: Sequence[str],
    length: int,
    stays: Callable[[int, list[bool]], bool] = always,
    runs_of: Callable[[Sequence[str], int], list[list[Any]]] = runs_by_words,
) -> list[list[bool]]:
    """Which words of each text are in a run of ``length`` words that begins earlier, in no word of this one.

    Texts that do not stay are no earlier ones; ``stays`` gets the number of a text and which of its words are repeated.
    """
    first: dict[Any, tuple[int, int]] = {}
    found = []
    for number, (text, runs) in enumerate(zip(texts, runs_of(texts, length), strict=True)):
        mask, new = [False] * len(spans_of(text)), dict[Any, tuple[int, int]]()
        for at, run in enumerate(runs):
            earlier = first.get(run) or new.setdefault(run, (number, at))
            if earlier[0] < number or earlier[1] + length <= at:
                mask[at : at + length] = [True] * length
        found.append(mask)
        if stays(number, mask):
            first |= new
    return found


def left_of(text: str, mask: Sequence[bool], words_left: int) -> str | None:
    spans = spans_of(text)
    groups = [list(group) for is_in, group in itertools.groupby(range(len(mask)), mask.__getitem__) if is_in]
    passages = [(group[0], group[-1] + 1) for group in groups]
    left = remove_spans(text, whole_spans(text, np.array(spans).reshape(-1, 2), passages))
    return None if left != text and (not left.strip() or count_words(Page(left)) < words_left) else left


def oracle(texts: Sequence[str], length: int, words_left: int = 50, **options: Any) -> list[str | None]:
    """What is left of each text; None where too little is."""
    found: list[str | None] = []

    def stays(number: int, mask: list[bool]) -> bool:
        found.append(left_of(texts[number], mask, words_left))
        return found[-1] is not None

    repeated(texts, length, stays, **options)
    return found


def build(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"dedup": False, "dedup_passages": 50, **options})


def build_of(folder: Path, texts: Sequence[str], **options: Any) -> Built:
    return Built.of(folder, texts, **{"dedup": False, "dedup_passages": 50, **options})


def real_texts(folder: Path, count: int) -> list[str]:
    paths = sorted((folder / "dev").glob("part-*.jsonl.zst"))
    files = (zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read() for path in paths[2:])
    lines = itertools.islice((line for file in files for line in file.splitlines()), count)
    return [text for line in lines if (text := normalize(orjson.loads(line)["text"])).strip()]


def plant(texts: list[str]) -> list[str]:
    """Copies of passages of texts in others: whole, in capitals, in part, across each other, and in a text of their own."""
    texts = [*texts, "".join(chr(0x4E00 + k * 7 % 900) for k in range(400))]
    long = [text for text in texts if len(text) > 2_000]
    for number, source in enumerate(long[:40]):
        begin = number * 13 % 500
        piece = source[begin : begin + 300 + 40 * number]
        texts[(number * 31) % len(texts)] += ["\n\n", " ", "; "][number % 3] + (piece.upper() if number % 4 else piece)
    return [*texts, texts[-1][100:250] + texts[-1][90:180], "ha " * 170, long[0], " ".join(texts[-1][50:200])]


@given(
    lists=st.lists(st.lists(st.sampled_from("a A! b 東 c3\n ไ _ İ का กำ".split(" ")), max_size=40), max_size=6),
    length=st.integers(2, 8),
    buckets=st.integers(1, 3),
)
@example(lists=[["a"] * 4], length=2, buckets=1)  # the last window alone picks the repeated run
def test_tables_of_any_bucket_give_the_passages_of_the_definition(
    lists: list[list[str]], length: int, buckets: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    texts = [" ".join(words) for words in lists]
    each = [find_words([text]) for text in texts]
    assert [found.spans.tolist() for found in each] == [[list(span) for span in spans_of(text)] for text in texts]
    runs_of, windows_of = (KeyTables(folder / kind, range(len(texts)), buckets) for kind in ("runs", "windows"))

    def sort(tables: KeyTables, keys: Sequence[np.ndarray], *numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
        paths, entries = [tables.path("tables", number) for number in range(len(keys))], []
        for number, (path, *arrays) in enumerate(zip(paths, keys, *numbers, strict=True)):
            path.mkdir(parents=True)
            entries.append(write_table(path, number, *arrays))
        for _, units, make, makes in tables.steps():
            for unit in units:
                makes(unit).parent.mkdir(exist_ok=True, parents=True)
                make(unit)
        assert count_keys(paths) == sum(len(np.unique(some)) for some in keys)
        return entries

    picked = [picked_runs(found, length) for found in each]
    sort(runs_of, picked, [np.arange(len(keys)) for keys in picked])
    runs = []
    for number, found in enumerate(each):
        repeats = runs_of.found(number)[0] > 1
        runs.append(word_runs.candidates(found, length, load_keys(runs_of.path("tables", number))[repeats]))
    windows = [word_runs.window_hashes(some.words, some.runs[:, 2], length) for some in runs]
    entries = sort(windows_of, [hashes for _, hashes in windows], [at for at, _ in windows])
    for number, (found, some, mask) in enumerate(zip(each, runs, repeated(texts, length), strict=True)):
        places, hashes = windows[number]
        assert (load_keys(windows_of.path("tables", number))[entries[number]] == hashes).all()
        firsts = windows_of.found(number)[1][entries[number]]
        earlier = places[firsts + np.uint64(length) <= (np.uint64(number) << np.uint64(32)) + places.astype(np.uint64)]
        ours = np.zeros(len(found.hashes), bool)
        begins = np.cumsum(some.runs[:, 2]) - some.runs[:, 2]
        for place in earlier.tolist():
            run = int(np.searchsorted(begins, place, side="right")) - 1
            first = int(some.runs[run, 1] + place - begins[run])
            ours[first : first + length] = True
        assert ours.tolist() == mask


def test_a_set_of_keys_has_them_all_and_few_others(tmp_path: Path) -> None:
    keys = np.random.default_rng(1).integers(0, 2**64, 30_000, np.uint64)
    for name, some in ("a", keys[:700]), ("b", keys[700:1000]), ("none", keys[:0]):
        np.save(tmp_path / f"{name}.npy", some)
    write_key_set(tmp_path / "keys", [tmp_path / "a.npy", tmp_path / "b.npy"])
    found = in_key_set(tmp_path / "keys", keys)
    assert found[:1000].all()
    assert found[1000:].mean() < 1 / 16
    write_key_set(tmp_path / "no keys", [tmp_path / "none.npy"])
    assert not in_key_set(tmp_path / "no keys", keys).any()


def test_picked_runs_fall_into_all_buckets_alike() -> None:
    keys = picked_runs(find_words([" ".join(f"word{k}" for k in range(20_000))]), 50)
    counts = np.bincount((keys >> np.uint64(61)).astype(np.int64), minlength=8)
    assert counts.min() > 0.7 * len(keys) / 8
    assert counts.max() < 1.3 * len(keys) / 8


@pytest.mark.nightly
@pytest.mark.parametrize("length", [50, 13])
def test_twenty_megabytes_are_cut_as_a_suffix_array_says(shared_data: Path, tmp_path: Path, length: int) -> None:
    texts = plant(real_texts(shared_data, 15_000))
    assert sum(len(text.encode()) for text in texts) > 20_000_000
    limits = Limits(partition_characters=1 << 20, bucket_hashes=1 << 17)
    options: dict[str, Any] = {"workers": 2, "limits": limits, "keep_texts": "parquet"}
    out = build_of(tmp_path, texts, **options, dedup_passages=length)
    files = sorted((out / "texts").iterdir())
    left = [text for path in files for text in pq.read_table(path)["text"].to_pylist()]
    assert left == [text for text in oracle(texts, length, runs_of=runs_by_suffixes) if text is not None]


def test_workers_partitions_and_buckets_change_no_byte_of_cut_texts(tmp_path: Path) -> None:
    texts = plant([english(k, 60) for k in range(60)])
    write_jsonl(tmp_path / "in.jsonl", texts)
    options = {"dedup": True, "keep_rejected": True, "dedup_passages": 20, "keep_texts": "jsonl.zst"}
    build(tmp_path / "in.jsonl", tmp_path / "one", **options)
    build(tmp_path / "in.jsonl", tmp_path / "many", **options, workers=2, limits=SMALL)
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    counts = build(tmp_path / "in.jsonl", tmp_path / "all", dedup_passages=20, limits=SMALL).counts
    expected = oracle(texts, 20)
    assert kept(tmp_path / "all") == [text for text in expected if text is not None]
    cut = [(text, left) for text, left in zip(texts, expected, strict=True) if left is not None and left != text]
    assert counts["dropped"]["passage_dedup"] == expected.count(None) > 0
    assert counts["passages"]["cut"] == len(cut) > 20
    assert counts["passages"]["characters"] == sum(len(text) - len(left) for text, left in cut)
    assert counts["passages"]["words"] == sum(map(sum, repeated(texts, 20)))
    assert len({line["reason"] for line in rejected(tmp_path / "one")}) > 2


def test_near_duplicates_and_listed_documents_are_no_earlier_ones(tmp_path: Path) -> None:
    texts = [f"{english(1, 30)} {NOTICE}", *(f"{english(2, 30)} {NOTICE}{more}" for more in ("", " More."))]
    (tmp_path / "gone.txt").write_text("d0\n")
    options: dict[str, Any] = {"dedup": True, "drop_ids": str(tmp_path / "gone.txt")}
    out = build_of(tmp_path, [*texts, f"{NOTICE} {english(3, 30)}"], **options)
    assert out.kept == [texts[1], english(3, 30)]
    assert out.counts["duplicates"] == {"exact": 0, "near": 1}


LEFT = [("count", [True, True, True]), ("drop", [True, False, True]), ("cut", [True, False, None])]


@pytest.mark.parametrize(("action", "left"), LEFT)
def test_passages_are_counted_or_their_documents_dropped(tmp_path: Path, action: str, left: list[bool | None]) -> None:
    texts = [f"{english(1, 30)} {NOTICE}", f"A few words. {NOTICE}", f"{english(2, 30)} {NOTICE}"]
    out = build_of(tmp_path, texts, repeated_passages=action, keep_rejected=True)
    stays = [(text, each) for text, each in zip(texts, left, strict=True) if each is not False]
    assert out.kept == [text if whole else english(2, 30) for text, whole in stays]
    counts = out.counts["passages"]
    assert (counts["passages"], counts["words"], counts["documents"]) == (2, 120, 2)
    assert (counts["cut"], counts["characters"]) == ((1, len(NOTICE) + 1) if action == "cut" else (0, 0))
    reasons = [] if action == "count" else ["passages that occur earlier are too much of it"]
    reasons[:0] = ["cut: 1 passage found earlier in the corpus"] * (action == "cut")
    lines = out.rejected if reasons else []
    assert [line["reason"] for line in lines] == reasons
    assert lines == [] or lines[-1]["text"] == texts[1]
    what = next(row.what for row in funnel(out.counts) if "passages" in row.what)
    where = "cut from 1 documents: " if action == "cut" else "in 2 documents: "
    assert what == f"{where}2 passages that occur earlier"


@pytest.mark.parametrize(("action", "written"), [("cut", ["000001"]), ("count", []), ("drop", [])])
def test_only_partitions_of_cut_texts_are_written_again(tmp_path: Path, action: str, written: list[str]) -> None:
    for number in range(3):
        text = f"{english(number, 60)} {NOTICE if number < 2 else ''}"
        write_jsonl(tmp_path / f"in/{number}.jsonl", [text])
    found: list[str] = []

    def look(stage: str) -> None:
        if stage == "passage_dedup":
            folder = tmp_path / "out/.build/round/passage_dedup/partitions"
            assert len(list(folder.iterdir())) == 3
            found.extend(path.parent.name for path in folder.glob("*/documents.arrow"))

    options: dict[str, Any] = {"limits": Limits(smallest_unit_bytes=1), "after_stage": look}
    build(tmp_path / "in", tmp_path / "out", repeated_passages=action, **options)
    assert found == written
    assert len(kept(tmp_path / "out")) == 3


def test_a_share_decides_which_documents_are_dropped(tmp_path: Path) -> None:
    texts = [NOTICE, f"{NOTICE} {' '.join(f'own{k}' for k in range(60))}"]
    write_jsonl(tmp_path / "in.jsonl", texts)
    for share, number in ((0.5, 2), (0.49, 1), (0, 1)):
        build(tmp_path / "in.jsonl", tmp_path / str(share), repeated_passages="drop", repeated_share=share)
        assert len(kept(tmp_path / str(share))) == number


SHARED = [" ".join(f"shared{n}w{k}" for k in range(40)) for n in range(41)]
NOTICES = [f"{NOTICE} {english(1, 30)}", f"{NOTICE} {SHARED[0]}"]
DROP: dict[str, Any] = {"repeated_passages": "drop"}


@pytest.mark.parametrize(
    ("texts", "options", "stay"),
    [
        ([*NOTICES, f"{SHARED[0]} {english(2, 30)}"], {}, [0, 2]),
        ([*NOTICES, *(f"{SHARED[0]} {'own ' * k}" for k in (3, 9))], DROP, [0, 2]),
        ([f"{one} {other}" for one, other in itertools.pairwise(SHARED[:9])], {}, range(0, 8, 2)),
        ([f"{SHARED[0]} {SHARED[0]}", f"{SHARED[0]} few"], DROP | {"repeated_share": 0.4}, [1]),
    ],
    ids=["words left", "drop", "chain", "repeats itself"],
)
@pytest.mark.parametrize("limits", [Limits(), Limits(smallest_unit_bytes=1, partition_characters=1)])
def test_the_first_copy_of_a_passage_is_in_a_document_that_stays(
    tmp_path: Path, texts: list[str], options: dict[str, Any], stay: Sequence[int], limits: Limits
) -> None:
    out = build_of(tmp_path, texts, dedup_passages=30, limits=limits, **options)
    assert out.kept == [texts[number] for number in stay]


def test_later_rounds_sort_only_windows_of_undecided_documents(tmp_path: Path) -> None:
    texts = [*NOTICES, f"{SHARED[0]} {english(2, 30)}"]
    texts += [f"{english(k, 30)} {SHARED[1 + k % 5]}" for k in range(3, 30)]
    windows: list[int] = []

    def look(stage: str) -> None:
        if stage == "passage_dedup":
            rounds = sorted((tmp_path / "out/.build/round/passage_dedup").glob("windows-*"))
            windows.extend(count_keys((each / "tables").iterdir()) for each in rounds)

    out = build_of(tmp_path, texts, dedup_passages=30, after_stage=look)
    assert len(out.kept) == len(texts) - 1
    assert windows[1] < windows[0] / 2
    assert windows[2:] == [0] * (len(windows) - 2)


def sources_with_quotas(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """The inputs of three sources whose documents share passages, and settings of which two sources have quotas."""
    for number, source in enumerate("abc"):
        texts = [f"{english(50 * number + k, 15)} {SHARED[k * (number + 1) % 13]}" for k in range(30)]
        write_jsonl(folder / f"{source}.jsonl", [{"id": f"{source}{k}", "text": text} for k, text in enumerate(texts)])
    limits = Limits(partition_records=15, batch_records=5)
    options = {"dedup_passages": 30, "words_left": 20, "max_tokens": "a=9000,b=7000", "limit": 90, "limits": limits}
    return [f"{source}={folder / source}.jsonl" for source in "abc"], options


def test_no_passage_is_cut_for_a_document_beyond_a_quota(tmp_path: Path) -> None:
    inputs, options = sources_with_quotas(tmp_path)
    manifest = build(inputs, tmp_path / "out", keep_texts="jsonl.zst", **options)
    lines = [orjson.loads(line) for source in "abc" for line in (tmp_path / f"{source}.jsonl").read_text().splitlines()]
    texts = {line["id"]: line["text"] for line in lines}
    stay = table(tmp_path / "out")["id"]
    assert kept(tmp_path / "out") == oracle([texts[id] for id in stay], 30, 20)
    assert 20 < manifest.counts["dropped"]["max_tokens"] == 90 - len(stay)
    tokens = {source: group["tokens"] for source, group in manifest.counts["by_source"].items()}
    assert (9_000 >= tokens["a"] > 8_000, 7_000 >= tokens["b"] > 6_000) == (True, True)
    build(inputs, tmp_path / "more", keep_texts="jsonl.zst", **{**options, "workers": 3})
    assert digests(tmp_path / "more") == digests(tmp_path / "out")


@pytest.mark.nightly
def test_a_kill_while_documents_beyond_quotas_are_left_out_changes_no_byte(tmp_path: Path) -> None:
    inputs, options = sources_with_quotas(tmp_path)
    units = Units()
    build(inputs, tmp_path / "out", **options, progress=units)
    every = sum(units.counts.values())
    for count in (every // 2, every * 3 // 4, every - 12):
        assert killed_at(count, functools.partial(build, inputs, tmp_path / f"{count}", **options)) == -signal.SIGKILL
        build(inputs, tmp_path / f"{count}", **options)
        assert digests(tmp_path / f"{count}") == digests(tmp_path / "out")


def test_documents_that_no_round_decides_stay_with_their_passages(tmp_path: Path) -> None:
    texts = [f"{one} {other}" for one, other in itertools.pairwise(SHARED)]
    out = build_of(tmp_path, texts, dedup_passages=30)
    assert out.kept == [*texts[:20:2], *texts[20:]]


def test_the_report_names_the_commonest_passages_and_their_first_place(tmp_path: Path) -> None:
    menu = " ".join(f"menu{k}" for k in range(20))
    notice = f"{NOTICE} <i>last"
    texts = [f"{english(k, 20)}\n{k} {notice if k % 3 else menu}. {k} {english(k + 100, 5)}" for k in range(30)]
    out = build_of(tmp_path, texts, dedup_passages=15)
    found = out.counts["repeated_passages"]
    shown = [(each["count"], each["words"], each["text"], each["id"], each["line"]) for each in found[:2]]
    assert shown == [(20, 62, notice, "d1", 2), (10, 20, menu, "d0", 1)]
    page = out.report
    assert "Repeated passages" in page
    assert f"<pre>{menu}</pre>" in page
    assert f"<pre>{NOTICE} &lt;i&gt;last</pre>" in page
    without = Built.of(tmp_path, texts, "without")
    assert "Repeated passages" not in without.report
    assert not {"passages", "repeated_passages"} & without.counts.keys()
    assert not {"dedup_passages", "repeated_passages", "repeated_share"} & without.manifest.recipe["settings"].keys()


def test_at_most_a_hundred_passages_are_shown_the_most_repeated_first(tmp_path: Path) -> None:
    passages = [" ".join(f"p{number}w{k}" for k in range(12)) for number in range(130)]
    texts = [f"{passages[number]} {number} {copy}" for number in range(130) for copy in range(2 + number % 7)]
    write_jsonl(tmp_path / "in.jsonl", texts)
    found = build(tmp_path / "in.jsonl", tmp_path / "out", dedup_passages=10, words_left=1).counts["repeated_passages"]
    numbers = Counter(2 + number % 7 for number in range(130))
    assert [each["count"] for each in found] == sorted(numbers.elements(), reverse=True)[:100]


def test_words_that_only_share_a_hash_with_earlier_ones_are_not_cut(tmp_path: Path) -> None:
    texts = [f"{english(1, 30)} {NOTICE}", f"{english(2, 30)} {NOTICE}"]
    for number, text in enumerate(texts):
        write_jsonl(tmp_path / f"in/{number}.jsonl", [text])
    limits = Limits(smallest_unit_bytes=1)

    def confuse(name: str, _: int) -> None:
        if name == "sort windows":  # the first partition then has other words with the hashes of the second one's
            path = tmp_path / "out/.build/round/passage_dedup/windows-0/tables/000000/words.npy"
            np.save(path, np.load(path) + np.uint64(1))

    build(tmp_path / "in", tmp_path / "out", limits=limits, progress=Units(confuse))
    assert kept(tmp_path / "out") == texts


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("One. [Two three] four.", "One. four."),
        ("One.\n\nTwo three.\n\nFour", "One.\n\nFour"),
        ("One. Two three.\n\nFour", "One.\n\nFour"),
        ("One\nTwo three.\n\nFour", "One\n\nFour"),
        ("Two three. Four", "Four"),
        ("One.\n\nTwo three!\n", "One.\n"),
        ("“Two three”", ""),
        ("一。Two three。四", "一。四"),
        ("one-Two three-four", "one-four"),
    ],
)
def test_a_cut_takes_the_marks_of_the_passage_and_leaves_the_wider_gap(text: str, left: str) -> None:
    begin = text.index("Two")
    assert remove_spans(text, [(begin, begin + len("Two three"))]) == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("At $3.[99 two three] four.", "At $3.99 four."),
        ("See Python/[Java two three].", "See Python/Java"),
        ("One [two and/]or three.", "One and/or three."),
        ("用Python[和二三]Java。", "用Python Java。"),
        ("Only/[two/three]/four.", "Only/two/three/four."),
        ("हिन्दी [कागज का] टुकड़ा।", "हिन्दी टुकड़ा।"),
        ("Said ⚠️[two three] four.", "Said four."),
    ],
)
def test_no_cut_ends_in_a_word_or_joins_two(text: str, left: str) -> None:
    begin, end = text.index("["), text.index("]") - 1
    text = text.replace("[", "").replace("]", "")
    spans = find_words([text]).spans
    first, last = (int(np.searchsorted(spans[:, 0], at)) for at in (begin, end))
    assert remove_spans(text, whole_spans(text, spans, [(first, last)])) == left


def test_nothing_to_read_and_nothing_to_cut_are_no_trouble(tmp_path: Path) -> None:
    for number, texts in enumerate(([], ["", " \n "], ["a", "a"], [NOTICE])):
        path = write_jsonl(tmp_path / f"{number}.jsonl", texts)
        manifest = build(path, tmp_path / str(number))
        assert manifest.counts.get("passages", {}).get("passages", 0) == 0
        assert manifest.counts["kept"] == len([text for text in texts if text.strip()])
