"""One value that cannot be kept costs its record, or ends the build by an error that names file, column, value and cure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import InputError
from tests.helpers.builds import run_plain

BIG = 90071992547409930001


def build(inputs: Any, output: Path, **settings: Any) -> dict[str, Any]:
    return dict(run_plain(inputs, output, dedup=False, **settings).counts)


def streamed(inputs: Any, **settings: Any) -> int:
    return len(list(pipeline.TextDataset(inputs, "bytes", epochs=1, on_error="records", **settings).documents()))


@pytest.mark.parametrize(
    ("kind", "value", "field", "reason"),
    [
        ("jsonl", "a\ud800", "x", "'x' holds a lone surrogate"),
        ("json", "a\ud800", "x:str", "'x' holds a lone surrogate"),
        ("json", BIG, "x", "'x' is a whole number beyond 64 bits; x:float keeps it rounded"),
        ("jsonl", -BIG, "x:int", "'x' is a whole number beyond 64 bits; x:float keeps it rounded"),
        ("jsonl", {"k": ["\ud800"]}, "x", "'x' holds what JSON cannot keep"),
    ],
)
def test_a_field_that_is_unfit_makes_a_bad_record(
    tmp_path: Path, kind: str, value: Any, field: str, reason: str
) -> None:
    rows = [{"text": "bad", "x": value}, {"text": "good", "x": None}]
    path = tmp_path / f"a.{kind}"
    path.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    counts = build(path, tmp_path / "out", keep_fields=[field])
    assert (counts["kept"], counts["bad"]) == (1, {reason: 1})
    if not isinstance(value, dict):  # a stream writes no fields
        assert streamed(path, fields=[field]) == 1
    with pytest.raises(InputError, match=r"a\.jsonl?: line 1.*: 'x' .*mend it, or count and skip"):
        build(path, tmp_path / "stopped", keep_fields=[field], on_error="stop")


def test_a_large_number_is_kept_where_it_is_asked_for_as_a_float(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "x": {BIG}}}\n{{"text": "b", "x": NaN, "y": {BIG}}}\n')
    (tmp_path / "a.csv").write_text(f"text,x\na,{BIG}\n")
    assert build(tmp_path / "a.jsonl", tmp_path / "out", keep_fields=["x:float"])["kept"] == 2
    assert build(tmp_path / "a.csv", tmp_path / "csv", keep_fields=["x:float"])["kept"] == 1
    assert build(tmp_path / "a.csv", tmp_path / "int", keep_fields=["x:int"], on_error="skip")["kept"] == 0


@pytest.mark.parametrize(("depth", "id"), [(900, ""), (900, '"id": 1.5, '), (100_000, '"id": 1.5, ')])
def test_a_record_that_is_nested_too_deeply_costs_itself_or_its_array(tmp_path: Path, depth: int, id: str) -> None:
    deep = f'{{{id}"text": "deep", "x": {"[" * depth}{"]" * depth}}}'
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a"}}\n{deep}\n')
    for number, field in enumerate(("x", "x:str")):
        counts = build(tmp_path / "a.jsonl", tmp_path / f"lines{number}", keep_fields=[field])
        assert (counts["kept"], sum(counts["bad"].values())) == (1, 1)
    (tmp_path / "a.json").write_text(f'[{{"text": "a"}}, {deep}]')
    (tmp_path / "b.jsonl").write_text('{"text": "b"}')
    both = [tmp_path / "a.json", tmp_path / "b.jsonl"]
    if depth > 1000:
        with pytest.raises(InputError, match=r"a\.json: .*nested too deeply.*write it as JSON Lines"):
            build(both, tmp_path / "stopped")
        counts = build(both, tmp_path / "skipped", on_error="skip")
        assert (counts["kept"], counts["bad"]) == (1, {"file that cannot be read further": 1})
    else:
        assert build(both, tmp_path / "whole", keep_fields=["x"], on_error="skip")["kept"] == 2


def test_categories_of_polars_are_read_in_memory_and_from_its_files(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    columns = {"id": ["x", "y", "z"], "text": ["one", "two", "three"], "c": ["u", None, "u"]}
    plain = pl.DataFrame(columns)
    frame = pl.DataFrame(columns, schema_overrides={"text": pl.Categorical, "c": pl.Categorical})
    frame.write_ipc(tmp_path / "a.arrow")
    expected = build(plain, tmp_path / "plain", keep_fields=["c"])
    for number, given in enumerate((frame, frame.lazy(), tmp_path / "a.arrow")):
        counts = build(given, tmp_path / f"out{number}", keep_fields=["c"])
        assert (counts["kept"], counts["tokens"]) == (3, expected["tokens"])
        assert streamed(given, fields=["c"]) == 3


def test_a_column_of_mixed_types_is_named_with_the_cure(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", "b", "c"], "x": ["one", None, 2]})
    said = r"a DataFrame that Parquet cannot hold: .*column x with type object; .*of one type, as with \.astype\(str\)"
    with pytest.raises(InputError, match=said):
        build(frame, tmp_path / "out")
    with pytest.raises(InputError, match=said):
        pipeline.TextDataset(frame, "bytes")


def test_a_path_that_is_not_utf8_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/in/caf\xe9.txt")).write_text("A text.")
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    for read in (lambda: build(tmp_path / "in", tmp_path / "out"), lambda: streamed(tmp_path / "in")):
        with pytest.raises(InputError, match=r"in/caf\\xe9\.txt: this path is not UTF-8, .*; rename"):
            read()
    assert not (tmp_path / "out/manifest.json").exists()
