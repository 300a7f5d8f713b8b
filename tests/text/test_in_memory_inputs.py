"""Tables, datasets and iterables are inputs like files: built, streamed, continued, and refused with the record at fault."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pipeline
from pipeline.errors import ConfigError, InputError, PlanChangedError
from pipeline.progress import Progress
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document
from pipeline.text.readers.document_reader import DocumentReader
from pipeline.text.storage.in_memory import materialize
from tests.helpers.builds import run_plain
from tests.helpers.interruptions import interrupt_after
from tests.helpers.text_samples import make_texts, spelled, write_texts

build = partial(run_plain, dedup=False)
TEXTS = make_texts(50, 9)
RECORDS = [{"id": f"r{n}", "text": text, "score": n / 7} for n, text in enumerate(TEXTS)]


def streamed(source: Any, **options: Any) -> list[str]:
    """Return the texts of an epoch."""
    stream = pipeline.TextDataset(source, "bytes", epochs=1, eos=False, **options)
    return [spelled(item["input_ids"]) for item in stream.documents()]


def imported(kind: str) -> Any:
    """Return the records as a table or a dataset of a library."""
    library = pytest.importorskip(kind)
    return library.Dataset.from_list(RECORDS) if kind == "datasets" else library.DataFrame(RECORDS)


def arrow_table() -> Any:
    return pa.Table.from_pylist(RECORDS)


HOLDERS = [*(partial(imported, kind) for kind in ("pandas", "polars", "datasets")), arrow_table, lambda: RECORDS]


@pytest.mark.parametrize("make", HOLDERS)
def test_every_input_in_memory_streams_the_documents_of_a_file_in_their_order(make: Any) -> None:
    assert streamed(make()) == TEXTS


@pytest.mark.parametrize("make", [lambda: imported("datasets").to_iterable_dataset(), lambda: iter(RECORDS)])
def test_a_build_of_an_input_in_memory_gives_the_tokens_of_a_file(make: Any, tmp_path: Path) -> None:
    write_texts(tmp_path / "r.jsonl", TEXTS)
    file = build(str(tmp_path / "r.jsonl"), tmp_path / "file")
    held = build({"web": make()}, tmp_path / "held")
    assert held.splits["train"].tokens == file.splits["train"].tokens
    assert held.inputs[0]["source"] == "web"
    assert not (tmp_path / "held" / ".build").exists()


def test_a_build_of_a_table_continues_and_refuses_another_table(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build(arrow_table(), tmp_path / "out", after_stage=interrupt_after("ingest"))
    with pytest.raises(PlanChangedError, match=r"table\.parquet: bytes"):
        build(arrow_table().slice(1), tmp_path / "out")
    done = build(arrow_table(), tmp_path / "out")
    assert build(arrow_table(), tmp_path / "out") == done
    assert build([arrow_table()], tmp_path / "other").fingerprint == done.fingerprint


def test_a_generator_is_read_once_for_all_builds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read: list[Any] = []

    def records() -> Iterator[dict[str, Any]]:
        return (read.append(record) or record for record in RECORDS)  # type: ignore[func-returns-value]

    with pytest.raises(KeyboardInterrupt):
        build(records(), tmp_path / "out", after_stage=interrupt_after("plan"), progress=Progress())
    said = capsys.readouterr()
    assert "cannot be read twice or compared later" in said.out + said.err
    done = build(records(), tmp_path / "out", progress=Progress())
    said = capsys.readouterr()
    assert "continued with the records that it yielded before" in said.out + said.err
    assert len(read) == len(RECORDS)
    assert build(RECORDS, tmp_path / "list").splits == done.splits
    with pytest.raises(KeyboardInterrupt):
        build(records(), tmp_path / "anew", after_stage=interrupt_after("plan"))
    assert build(iter(RECORDS[:2]), tmp_path / "anew", overwrite=True).counts["read"] == 2


def test_inputs_in_memory_and_files_are_mixed_and_named(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl", TEXTS[:5])
    manifest = build([arrow_table(), f"wiki={path}"], tmp_path / "out")
    names = [(item["source"], item["name"]) for item in manifest.inputs]
    assert names == [("", "table.parquet"), ("wiki", "wiki/a.jsonl")]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([{"text": "a"}, "b"], "record 2 of an iterable is of type str; give dicts"),
        (
            [{"text": "a"}, {"text": "b", "who": object()}],
            "record 2 of an iterable, field 'who': .*: object; leave it out",
        ),
        (7, "an input of type int; give paths or urls, an iterable of dicts"),
    ],
)
def test_what_holds_no_records_is_refused_with_number_and_cure(value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        pipeline.TextDataset(value, "bytes")
    with pytest.raises(InputError, match=said):
        build(value, tmp_path / "out")


def test_records_with_lone_surrogates_are_counted_as_bad_ones(tmp_path: Path) -> None:
    manifest = build([{"text": "good"}, {"text": "\ud800", "at": datetime(2024, 1, 2)}], tmp_path / "out")
    assert manifest.counts["kept"] == 1
    assert manifest.counts["bad"] == {"lone surrogate": 1}


@pytest.mark.parametrize("kind", ["records", "pandas", "polars"])
def test_times_durations_and_decimals_are_selected_alike_from_rows_and_tables(kind: str) -> None:
    rows = [
        {"text": f"Day {k}.", "at": datetime(2023, 12, 30 + k), "price": Decimal(k) / 4, "took": timedelta(seconds=k)}
        for k in range(2)
    ]
    source = rows if kind == "records" else pytest.importorskip(kind).DataFrame(rows)
    for where in ('at >= "2023-12-31T00:00:00"', "price == 0.25", "took > 0.5"):
        assert streamed(source, where=where) == ["Day 1."]


def test_a_dataset_gives_the_records_that_its_transform_or_its_format_shows(tmp_path: Path) -> None:
    whole = pytest.importorskip("datasets").Dataset.from_dict({"text": ["a", "b", "c"], "n": [1, 2, 3]})

    def upper(batch: dict[str, Any]) -> dict[str, Any]:
        return {"text": [text.upper() for text in batch["text"]]}

    shown: dict[str, Any] = {
        "transform": whole.with_transform(upper),
        "columns": whole.with_transform(upper, columns=["text"], output_all_columns=True),
        "picked": whole.with_transform(upper).select([2, 0]),
        "numpy": whole.with_format("numpy"),
        "narrow": whole.with_format("torch", columns=["text"]),
        "pandas": whole.with_format("pandas", columns=["n"], output_all_columns=True),
    }
    for name, dataset in shown.items():
        found = list(DocumentReader(materialize(dataset, tmp_path / name)))
        rows = dataset if name != "pandas" else whole
        assert [each.text for each in found if isinstance(each, Document)] == [str(row["text"]) for row in rows]
    with pytest.raises(InputError, match="no column 'text'"):
        list(DocumentReader(materialize(whole.with_format("numpy", columns=["n"]), tmp_path / "without")))


def test_a_dataset_dict_is_asked_for_its_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict(train=imported("datasets"), test=imported("datasets"))
    with pytest.raises(InputError, match=r"DatasetDict with the splits train, test.*give one"):
        pipeline.TextDataset(both, "bytes")
    both.save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match=r"splits test, train.*name one of them.*/saved/test"):
        find_inputs(str(tmp_path / "saved"))
    (file,) = find_inputs(str(tmp_path / "saved" / "train"))
    assert [record.text for record in DocumentReader(file) if isinstance(record, Document)] == TEXTS


def test_a_cut_arrow_file_is_damaged_and_the_file_format_is_read_too(tmp_path: Path) -> None:
    table = arrow_table()
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, 10)
    assert [record.line for record in DocumentReader(tmp_path / "a.arrow")] == list(range(1, 51))
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table, 10)
    data = (tmp_path / "b.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(data[: len(data) // 2])
    records = iter(DocumentReader(tmp_path / "cut.arrow"))
    with pytest.raises(InputError, match=r"cut\.arrow: not a whole Arrow file"):
        list(records)


def test_files_of_any_ending_are_plain_text_if_they_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.py", "b", "c.txt.gz"):
        (tmp_path / "in" / name).write_text(f"text of {name}")
    with pytest.raises(InputError, match=r"a\.py: unknown ending.*--format text reads plain text"):
        find_inputs(str(tmp_path / "in" / "a.py"))
    manifest = build(str(tmp_path / "in"), tmp_path / "out", format="text")
    assert manifest.counts["kept"] == 3
    assert streamed(tmp_path / "in", format="text") == ["text of a.py", "text of b", "text of c.txt.gz"]
    (tmp_path / "big.data").write_bytes(b"".join(b'{"text": "%0600d"}\n' % n for n in range(3_000)))
    manifest = build(str(tmp_path / "big.data"), tmp_path / "cut", format="jsonl", dedup=False)
    assert manifest.counts["kept"] == 3_000
    with pytest.raises(ConfigError, match=r"format must be one of .*text"):
        build(str(tmp_path / "in"), tmp_path / "no", format="txt")


def saved_twice(folder: Path) -> Path:
    """A folder of a dataset that was saved in two files, and again in one after a document was deleted."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["kept", "deleted"]})
    data.save_to_disk(folder, num_shards=2)
    data.select([0]).flatten_indices().save_to_disk(folder, num_shards=1)
    for stale in ("data-00001-of-00002.arrow", "cache-1.arrow"):
        shutil.copy(next(folder.glob("data-*-of-00001.arrow")), folder / stale)
    return folder


STALE = {
    "{": r"saved/state\.json: not what datasets writes \(JSONDecodeError\(.*; save the dataset again",
    "{}": r"state\.json: not what datasets writes \(KeyError\('_data_files'\)\)",
    '{"_data_files": [{"filename": "gone.arrow"}]}': r"saved/gone\.arrow: named by state\.json, but not there; save",
    '{"_data_files": [{"filename": "../saved/state.json"}]}': r"saved/\.\./saved/state\.json: named by .*, but not",
}


@pytest.mark.parametrize("state", STALE)
def test_a_saved_folder_whose_state_is_damaged_is_refused(tmp_path: Path, state: str) -> None:
    folder = saved_twice(tmp_path / "saved")
    (folder / "state.json").write_text(state)
    with pytest.raises(InputError, match=STALE[state]):
        find_inputs(folder)
    (folder / "dataset_dict.json").write_text("{}")
    (folder / "dataset_info.json").unlink()
    with pytest.raises(InputError, match=r"saved: a DatasetDict without splits.*save it again"):
        find_inputs(folder)


def test_a_table_of_any_number_of_rows_is_read_whole(tmp_path: Path) -> None:
    for rows in (4095, 4096, 4097, 8200):
        table = pa.table({"text": [str(number) for number in range(rows)]})
        batches = pa.Table.from_batches(table.to_batches(3000))  # which end amid the groups of the file
        assert streamed(batches) == table["text"].to_pylist()
    empty = pytest.importorskip("datasets").Dataset.from_dict({"text": ["x"]}).filter(lambda row: False)
    with pytest.raises(ConfigError, match="no document was kept"):
        streamed(empty)


@pytest.mark.parametrize("spec", ["", "/nested", "/nested/saved", "/nested/*/*.arrow", "/**"])
def test_only_files_that_state_json_names_are_read_wherever_the_folder_lies(tmp_path: Path, spec: str) -> None:
    folder = saved_twice(tmp_path / "in/nested/saved")
    (tmp_path / "in/other.txt").write_text("other")
    expected = [folder / "data-00000-of-00001.arrow", *([tmp_path / "in/other.txt"] * (spec in ("", "/**")))]
    given = f"{tmp_path}/in{spec}"
    with pytest.warns(UserWarning, match=r"\d files left out.* earlier save_to_disk"):
        found = find_inputs(given)
    assert [Path(file) for file in found] == expected


def test_deleted_documents_stay_deleted_in_a_saved_folder_of_a_store(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    folder, files = saved_twice(tmp_path / "saved"), MemoryFileSystem()
    for path in folder.iterdir():
        files.pipe(f"/bucket/in/saved/{path.name}", path.read_bytes())
    try:
        with pytest.warns(UserWarning, match="2 files left out|3 files left out"):
            found = find_inputs("memory://bucket/in/")
    finally:
        files.rm("/bucket", recursive=True)
    assert [file.name for file in found] == ["saved/data-00000-of-00001.arrow"]
