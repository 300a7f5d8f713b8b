"""How streams of raw text read their files: in any place, past damage, and refusing what changed."""

from __future__ import annotations

import ast
import json
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, InputError
from pipeline.stream.lanes import Lanes, TextWindowSize
from pipeline.stream.sequential.text.text_windows import TextWindows
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document
from pipeline.text.formats import FORMATS
from pipeline.text.readers.document_reader import DocumentReader
from tests.helpers.text_samples import make_texts, spelled, write_texts
from tests.helpers.text_streams import TEXTS, ids, joined, make, packed


def test_bad_records_raise_with_file_and_line_or_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    lines = [json.dumps({"text": text, "id": str(n)}) for n, text in enumerate(TEXTS[0])]
    lines[10] = '{"text": '
    lines[11] = '{"body": "no text"}'
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    stream = pipeline.TextDataset(file, "bytes", epochs=1).documents()
    with pytest.raises(InputError, match=r"bad\.jsonl, line 11: .*on_error='records'"):
        list(stream)
    for on_error in ("records", "skip"):
        skipping = pipeline.TextDataset(file, "bytes", epochs=1, on_error=on_error).documents()
        found = [spelled(item["input_ids"]) for item in skipping]
        assert found == [text for n, text in enumerate(TEXTS[0]) if n not in (10, 11)]
        assert skipping.stats()["bad_records"] == 2
    with pytest.raises(ConfigError, match="stop, records, skip, got 'ignore'"):
        pipeline.TextDataset(file, "bytes", on_error="ignore")


def test_every_rank_skips_the_same_records_and_takes_equally_many_steps(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    lines = [json.dumps({"text": text}) if n % 5 else '{"text": ' for n, text in enumerate(TEXTS[3])]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = ids(islice(packed(file, on_error="skip"), 10))
    text = spelled(np.concatenate([row for batch in whole for row in batch]))
    assert not any(bad[:40] in text for bad in TEXTS[3][::5] if len(bad) > 40)
    ranks = [
        ids(DataLoader(packed(file, 2, on_error="skip").shard(rank, 2).take(10), batch_size=None, num_workers=2))
        for rank in range(2)
    ]
    assert joined(ranks) == whole


@pytest.mark.parametrize("kind", ["jsonl.zst", pytest.param("tar", marks=pytest.mark.nightly)])
def test_a_cut_file_raises_or_gives_what_comes_before_the_cut(tmp_path: Path, kind: str) -> None:
    texts = make_texts(1500, 9)
    whole = write_texts(tmp_path / f"b.{kind}", texts)
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    good = write_texts(tmp_path / "a.jsonl", TEXTS[0])
    with pytest.raises(InputError, match=rf"b\.{kind}"):
        list(pipeline.TextDataset([good, whole], "bytes", epochs=1).documents())
    with pytest.raises(InputError, match=rf"b\.{kind}"):
        list(pipeline.TextDataset([good, whole], "bytes", epochs=1, on_error="records").documents())
    skipping = make([good, whole], epochs=1, on_error="skip").documents()
    found = {spelled(item["input_ids"]) for item in skipping}
    before: list[str] = []
    with suppress(InputError):
        for record in DocumentReader(find_inputs(whole)[0]):
            assert isinstance(record, Document)
            before.append(record.text)
    assert 0 < len(before) < len(texts)
    assert found == {*TEXTS[0], *texts[: len(before)]}
    assert skipping.stats()["damaged_files"] == 1
    pipeline.assert_resumes(lambda: make([good, whole], on_error="skip").pack(64).batch(36), items=2)


def test_plain_files_are_read_in_any_place_without_what_comes_before(tmp_path: Path) -> None:
    texts = make_texts(1800, 5)
    file = write_texts(tmp_path / "large.jsonl", texts)

    def make_stream() -> pipeline.Stream:
        return pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1, window=4, lanes=4).documents().batch(4)

    stream = make_stream()
    found = [spelled(row) for batch in stream for row in batch["input_ids"]]
    assert Counter(found) == Counter(texts)
    assert stream.stats()["bytes_read"] < 1.3 * file.stat().st_size
    list(islice(stream, 375))
    resumed = make_stream()
    resumed.load_state_dict(stream.state_dict())
    assert [spelled(row) for batch in resumed for row in batch["input_ids"]] == found[1500:]
    assert resumed.stats()["bytes_read"] < 0.7 * file.stat().st_size


def test_documents_of_plain_files_without_an_id_are_named_by_their_byte(tmp_path: Path) -> None:
    texts = make_texts(500, 5)
    file = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}) for text in texts]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)]).tolist()
    seen: dict[str, str] = {}

    def note(record: Any) -> bool:
        seen[record.text] = record.id
        assert (record.line, record.byte) == (0, int(record.id.rpartition(" ")[2]))
        return True

    shuffled = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1, lanes=4)
    assert len(list(shuffled.filter(note, name="note").documents())) == 500
    assert seen == {text: f"a.jsonl:byte {start}" for text, start in zip(texts, starts, strict=False)}
    rest, held = (
        {spelled(row["input_ids"]) for row in half.shuffle(seed=seed).documents()}
        for seed, half in enumerate(pipeline.TextDataset(file, "bytes", epochs=1).split(val=0.3))
    )
    unshuffled = pipeline.TextDataset(file, "bytes", epochs=1).split(val=0.3)[1].documents()
    assert held == {spelled(row["input_ids"]) for row in unshuffled}
    assert rest | held == set(texts)
    lines[400] = '{"text": '
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"a\.jsonl, byte {starts[400]}: .*on_error='records'"):
        list(pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1, lanes=4).documents())


def test_row_groups_are_read_apart_and_keep_their_row_numbers(tmp_path: Path) -> None:
    texts = make_texts(400, 6)
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), file, row_group_size=50)
    names: dict[str, str] = {}

    def note(record: Any) -> bool:
        names[record.text] = record.id
        return True

    shuffled = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1, lanes=8)
    stream = shuffled.filter(note, name="note").documents()
    first = [spelled(batch["input_ids"]) for batch in islice(stream, 8)]
    assert len({texts.index(text) // 50 for text in first}) > 4
    assert Counter(spelled(item["input_ids"]) for item in stream) == Counter(texts)
    assert names == {text: f"a.parquet:{n}" for n, text in enumerate(texts, 1)}


def test_a_compressed_file_under_a_plain_name_gives_each_document_once(tmp_path: Path) -> None:
    texts = make_texts(500, 7)
    packed_file = write_texts(tmp_path / "a.jsonl.gz", texts)
    file = packed_file.rename(tmp_path / "b.jsonl")
    stream = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1, lanes=4).documents()
    assert Counter(spelled(item["input_ids"]) for item in stream) == Counter(texts)


def test_the_first_batch_reads_only_what_it_needs_of_many_files(tmp_path: Path) -> None:
    paths = [write_texts(tmp_path / f"{n:03d}.jsonl", make_texts(200, n)) for n in range(60)]
    size = sum(path.stat().st_size for path in paths)
    stream = pipeline.TextDataset(paths, "bytes").shuffle(seed=0, window=96).pack(64).batch(2)
    next(iter(stream))
    assert stream.stats()["bytes_read"] < size // 3


def test_a_lane_far_ahead_of_the_others_makes_nobody_lose_or_repeat(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{n}.jsonl.gz", make_texts(150, n)) for n in range(3)]
    stream = pipeline.TextDataset(files, "bytes", epochs=1).shuffle(seed=0, window=4, lanes=4)
    windows = TextWindows(
        stream._settings.sources.by_name[""],
        lanes=Lanes(rows=1, count=4),
        starts=dict.fromkeys(range(4), (0, 0, 0)),
        seed=0,
        window=TextWindowSize(0),
        filters=(),
        epochs=1,
        kept_bytes=2000,  # what is passed over is hardly ever still there
    )
    found: Counter[str] = Counter()
    for lane in range(4):
        place = (0, 0, 0)
        while (pieces := windows.make(lane, place)) is not None:
            [made] = pieces
            found.update(spelled(ids) for ids in np.split(made.window.tokens, made.window.ends[1:-1]))
            place = made.following
    del found[""]
    assert found == Counter(text for n in range(3) for text in make_texts(150, n))


def test_no_files_are_refused() -> None:
    with pytest.raises(InputError, match="no files were given"):
        pipeline.TextDataset([], "bytes")


def test_a_file_that_changes_before_it_is_read_is_refused(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{n}.jsonl", make_texts(1500, n)) for n in range(2)]
    stream = pipeline.TextDataset(files, "bytes", epochs=1).documents()
    iterator = iter(stream)
    next(iterator)
    stream.state_dict()
    write_texts(files[1], make_texts(1500, 5))
    with pytest.raises(InputError, match=r"1\.jsonl changed since the stream was made"):
        list(iterator)
    gone = pipeline.TextDataset(files, "bytes", epochs=1).documents()
    files[1].unlink()
    with pytest.raises(InputError, match=r"1\.jsonl: cannot be read any more.*No such file"):
        list(gone)
    with pytest.raises(InputError, match="cannot be read any more"):
        gone.state_dict()


def fails_on_questions(record: Any) -> bool:
    if "question" in record.text:
        raise RuntimeError("a question")
    return True


def test_an_error_in_a_filter_names_the_document(tmp_path: Path) -> None:
    file = write_texts(tmp_path / "a.jsonl", ["one", "two", "question", "three"])
    stream = pipeline.TextDataset(file, "bytes").filter(fails_on_questions).pack(64)
    with pytest.raises(RuntimeError, match="a question") as caught:
        next(iter(stream))
    assert caught.value.__notes__[0] == "in a filter, of the document of a.jsonl, line 3, id 'a-2'"


def test_files_of_equal_names_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    for folder, text in (("a", "one"), ("b", "another one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text(json.dumps({"text": text}) + "\n")
    files = [tmp_path / "a/x.jsonl", tmp_path / "b/x.jsonl"]
    seen: list[str] = []
    stream = pipeline.TextDataset(files, "bytes", epochs=1).filter(lambda document: seen.append(document.id) is None)
    lengths = [len(item["input_ids"]) for item in stream.documents()]
    assert lengths == [len("one") + 1, len("another one") + 1]
    assert seen == ["a/x.jsonl:1", "b/x.jsonl:1"]


def test_streams_name_no_format_of_files() -> None:
    named = {form.module for form in FORMATS}
    folder = Path(pipeline.__file__).parent / "stream"
    for path in folder.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert named.isdisjoint(texts), path
