"""Records that hold ids in place of text: streamed as they are, checked, and as exactly as text."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.errors import ConfigError, InputError

EOS = 1


def documents() -> list[list[int]]:
    return [[3 + (n * 7 + k) % 250 for k in range(n % 9)] + [EOS] * (n % 2) for n in range(300)]


def written(folder: Path, kind: str) -> Path:
    path = folder / f"ids.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"input_ids": documents(), "number": range(300)}), path, row_group_size=64)
    elif kind == "arrow":
        table = pa.table({"input_ids": documents(), "number": range(300)})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text(
            "".join(json.dumps({"input_ids": ids, "number": n}) + "\n" for n, ids in enumerate(documents()))
        )
    return path


def closed(ids: list[int]) -> list[int]:
    return ids if ids[-1:] == [EOS] else [*ids, EOS]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_ids_of_files_stream_as_they_are_each_document_closed(tmp_path: Path, kind: str) -> None:
    data = pipeline.TextDataset(written(tmp_path, kind), "bytes", tokens_key="input_ids", epochs=1)
    found = [item["input_ids"].tolist() for item in data.documents()]
    assert found == [closed(ids) for ids in documents()]
    shuffled = [item["input_ids"].tolist() for item in data.shuffle(seed=1).documents()]
    assert sorted(shuffled) == sorted(found) != shuffled


def test_ids_in_memory_and_of_a_live_source_stream_too() -> None:
    records = [{"input_ids": ids} for ids in documents()]
    for source in (records, lambda: iter(records)):
        data = pipeline.TextDataset(source, "bytes", tokens_key="input_ids", epochs=1, eos=False)
        assert [item["input_ids"].tolist() for item in data.documents()] == [ids or [EOS] for ids in documents()]


def test_ids_split_filter_resume_and_mix_with_texts(tmp_path: Path) -> None:
    file = written(tmp_path, "parquet")

    def make(**options: Any) -> Any:
        return pipeline.TextDataset(file, "bytes", tokens_key="input_ids", fields="number:int", **options)

    train, val = make(epochs=1).split(val=0.2)
    counts = [len(list(half.documents())) for half in (train, val)]
    assert sum(counts) == 300
    assert 0 < counts[1] < 100
    even = make(epochs=1).filter(
        lambda record: record.metadata["number"] % 2 == 0 and len(record.tokens) > 2, name="even"
    )
    assert len(list(even.documents())) == sum(len(ids) > 2 for ids in documents()[::2])
    pipeline.assert_resumes(lambda: make().shuffle(seed=2).pack(16).batch(4), steps=(2, 5))
    mixed = pipeline.mix(
        {"ids": make(), "text": pipeline.TextDataset([{"text": "to be"}], "bytes")}, {"ids": 1, "text": 1}
    )
    assert len(list(islice(mixed.pack(8).batch(2), 5))) == 5


def test_ids_outside_the_vocabulary_are_bad_records_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text(
        '{"input_ids": [5]}\n{"input_ids": [5, 999]}\n{"input_ids": "x"}\n{"input_ids": [[1]]}\n{"input_ids": [6]}\n'
    )
    with pytest.raises(InputError, match=r"ids\.jsonl, line 2: .*id 999 at position 1"):
        list(pipeline.TextDataset(path, "bytes", tokens_key="input_ids", epochs=1).documents())
    data = pipeline.TextDataset(path, "bytes", tokens_key="input_ids", epochs=1, on_error="records").documents()
    assert [item["input_ids"].tolist() for item in data] == [[5, EOS], [6, EOS]]
    assert data.stats()["bad_records"] == 3
    with pytest.raises(ConfigError, match=r"tokens_key='input_ids' .*remove text_key"):
        pipeline.TextDataset(path, "bytes", tokens_key="input_ids", text_key="body")
    with pytest.raises(ConfigError, match="these records hold ids"):
        pipeline.TextDataset(path, "bytes", tokens_key="input_ids").filter(language="en")
    text = tmp_path / "a.txt"
    text.write_text("to be")
    stream = pipeline.TextDataset(text, "bytes", tokens_key="input_ids").documents()
    with pytest.raises(InputError, match="write it as Parquet or JSON Lines"):
        next(iter(stream))


def test_a_state_of_ids_belongs_to_ids(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    path.write_text('{"input_ids": [5, 6, 7], "text": "abc"}\n' * 9)
    ids = pipeline.TextDataset(path, "bytes", tokens_key="input_ids").pack(4)
    with pytest.raises(pipeline.StateError, match="data was"):
        pipeline.TextDataset(path, "bytes").pack(4).load_state_dict(ids.state_dict())
    assert next(iter(ids))["input_ids"].tolist() == [5, 6, 7, EOS]
