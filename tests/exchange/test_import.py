"""`shardwright import`: ids of Parquet, Arrow, JSON, Megatron and flat arrays become the same dataset, damage is named."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError, DamagedInputError, InputError
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from pipeline.shards.token_arrays import map_tokens
from tests.exchange.test_write_shards import stored
from tests.helpers.commands import Says
from tests.helpers.format_samples import as_zst
from tests.helpers.interruptions import Units
from tests.helpers.shard_samples import Shard

EOS = 9
DOCUMENTS = [[5, 6, EOS], [7, EOS], [EOS], [300, 65_000, 8, EOS]]
FLAT = [id for ids in DOCUMENTS for id in ids]


def read(sources: Any, output: Path, **options: Any) -> Manifest:
    settings = {"eos_id": EOS, "val_fraction": 0.0, "progress": Progress(quiet=True)} | options
    return pipeline.import_tokens(sources, output, **settings)


def table(kind: str = "int32") -> Any:
    import pyarrow as pa

    lists = pa.array(DOCUMENTS, pa.list_(getattr(pa, kind)()))
    return pa.table({"input_ids": lists, "id": list("abcd"), "score": [1, 2, 3, 4]})


def write_parquet(path: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(table("uint16"), path / "x.parquet", row_group_size=3)
    return path / "x.parquet"


def write_arrow(path: Path) -> Path:
    import pyarrow as pa

    with pa.ipc.new_stream(str(path / "x.arrow"), table("int64").schema) as writer:
        writer.write_table(table("int64"), max_chunksize=3)
    return path / "x.arrow"


def write_jsonl(path: Path) -> Path:
    rows = [json.dumps({"input_ids": ids, "id": name}) for ids, name in zip(DOCUMENTS, "abcd", strict=True)]
    (path / "x.jsonl.zst").write_bytes(as_zst("\n".join(rows).encode()))
    return path / "x.jsonl.zst"


def write_megatron(path: Path, dtype: str = "<i4", code: int = 4) -> Path:
    """Write a pair as Megatron's builder does, of which the last document is two sequences."""
    sequences = [*DOCUMENTS[:-1], DOCUMENTS[-1][:1], DOCUMENTS[-1][1:]]
    lengths = [len(ids) for ids in sequences]
    starts = np.cumsum([0, *lengths])[:-1] * np.dtype(dtype).itemsize
    index = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, len(sequences), len(DOCUMENTS) + 1)
    index += np.array(lengths, "<i4").tobytes() + starts.astype("<i8").tobytes()
    (path / "x.idx").write_bytes(index + np.array([0, 1, 2, 3, 5], "<i8").tobytes())
    np.array(FLAT, dtype).tofile(path / "x.bin")
    return path / "x.bin"


def write_bin(path: Path, name: str = "flat.bin") -> Path:
    np.array(FLAT, "<u2").tofile(path / name)
    return path / name


def write_npy(path: Path) -> Path:
    np.save(path / "flat.npy", np.array(FLAT, np.int64))
    return path / "flat.npy"


WRITERS: list[Callable[[Path], Path]] = [write_parquet, write_arrow, write_jsonl, write_megatron, write_bin, write_npy]


@pytest.mark.parametrize("write", WRITERS)
def test_each_format_gives_the_same_documents_by_any_name(write: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = write(tmp_path / "in")
    for number, source in enumerate((file, tmp_path / "in", tmp_path / "in" / "*[ntwy]")):
        manifest = read(source, tmp_path / f"out{number}")
        assert stored(tmp_path / f"out{number}") == DOCUMENTS
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        entry = {"name": file.name, "source": "", "bytes": file.stat().st_size, "sha256": sha256}
        assert manifest.inputs == [entry]


def test_megatron_files_are_found_without_ending_and_by_their_index(tmp_path: Path) -> None:
    write_megatron(tmp_path)
    for number, name in enumerate(("x", "x.idx", "x.*")):
        read(tmp_path / name, tmp_path / f"out{number}")
        assert stored(tmp_path / f"out{number}") == DOCUMENTS


def test_an_array_of_uint32_is_read_as_such(tmp_path: Path) -> None:
    np.array([70_000, EOS], "<u4").tofile(tmp_path / "wide.bin")
    read(tmp_path / "wide.bin", tmp_path / "out", dtype="uint32")
    assert stored(tmp_path / "out") == [[70_000, EOS]]


def test_fields_are_kept_and_records_selected_where_asked(tmp_path: Path) -> None:
    read(write_parquet(tmp_path), tmp_path / "out", keep_fields=["score:int"], where="score > 2")
    columns = Shard(tmp_path / "out" / "train-000000.tar").table()
    assert (columns["id"], columns["column:score"], columns["line"]) == (["c", "d"], [3, 4], [3, 4])
    read(tmp_path / "x.parquet", tmp_path / "other", id_key="score")
    assert Shard(tmp_path / "other" / "train-000000.tar").table()["id"] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"input_ids": [1, 384]}', "x.jsonl: line 2: an id outside the vocabulary: id 384 at position 1"),
        ('{"input_ids": "text"}', "x.jsonl: line 2: 'input_ids' is text, not a list of token ids"),
        ('{"text": [1]}', "x.jsonl: line 2: no field 'input_ids': there are 'text'; tokens_key (--tokens-key) names"),
        ('{"input_ids": [1', "x.jsonl: line 2: invalid JSON"),
        ('{"input_ids": [2, true]}', "x.jsonl: line 2: not a list of token ids: true at position 1"),
        ('{"input_ids": [1, null]}', "x.jsonl: line 2: not a list of token ids"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line_or_skipped_and_counted(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"input_ids": [5]}}\n{line}\n{{"input_ids": [6]}}\n')
    with pytest.raises(InputError) as raised:
        read(tmp_path / "x.jsonl", tmp_path / "out", tokenizer="bytes", eos_id=None)
    assert said in str(raised.value)
    manifest = read(tmp_path / "x.jsonl", tmp_path / "out", tokenizer="bytes", eos_id=None, on_error="records")
    assert stored(tmp_path / "out") == [[5, 1], [6, 1]]
    assert sum(manifest.counts["bad"].values()) == 1


def damage_index(at: int, value: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        raw = bytearray((path / "x.idx").read_bytes())
        raw[at : at + len(value)] = value
        (path / "x.idx").write_bytes(raw)

    return damage


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:size]) and None  # type: ignore[return-value]


MODES = "x.idx: it holds modes of sequences, so it is multimodal, not text; leave it out"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut("x.bin", 30), "x.bin: 30 bytes, but its index points outside them"),
        (cut("x.idx", 20), "x.idx: byte 0: not a Megatron index"),
        (cut("x.idx", 60), "x.idx: 60 bytes, but its 5 sequences need 134"),
        (damage_index(134, bytes(5)), MODES),
        (damage_index(134, bytes(4)), "x.idx: 138 bytes, but its 5 sequences need 134"),
        (damage_index(9, b"\x02"), "not a Megatron index of version 1"),
        (damage_index(54, b"\x01"), "points outside them or between ids"),
        (damage_index(54, struct.pack("<q", -8)), "points outside them or between ids"),
        (damage_index(94, b"\x01"), "do not cover its 5 sequences"),
        (damage_index(102, b"\x03"), "do not cover its 5 sequences"),
        (damage_index(0, b"X"), "not a Megatron index of version 1"),
        (damage_index(17, b"\x07"), "not a Megatron index of version 1 and whole numbers"),
        (damage_index(34, b"\xff\xff\xff\xff"), "points outside them"),
        (damage_index(126, b"\x04"), "its documents do not cover its 5 sequences"),
    ],
)
def test_damage_of_megatrons_files_is_named(damage: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    write_megatron(tmp_path)
    damage(tmp_path)
    with pytest.raises(DamagedInputError, match=said):
        read(tmp_path / "x.bin", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_document_of_no_sequence_is_empty(tmp_path: Path) -> None:
    write_megatron(tmp_path)
    damage_index(118, b"\x02")(tmp_path)
    read(tmp_path / "x.bin", tmp_path / "out")
    assert stored(tmp_path / "out") == [[5, 6, EOS], [7, EOS], [EOS], [EOS, 300, 65_000, 8, EOS]]


def test_arrays_of_a_folder_are_read_in_natural_order_without_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, ids in (("a10", [6, EOS]), ("a2", [EOS, 5, EOS]), (".hidden", [7, EOS])):
        np.array(ids, "<u2").tofile(tmp_path / "in" / f"{name}.bin")
    for number, source in enumerate((tmp_path / "in", tmp_path / "in" / "a*.bin")):
        read(source, tmp_path / str(number))
        assert stored(tmp_path / str(number)) == [[EOS], [5, EOS], [6, EOS]]
        columns = Shard(tmp_path / str(number) / "train-000000.tar").table()
        assert columns["id"] == ["a2.bin:0", "a2.bin:1", "a10.bin:0"]
        assert columns["file"] == ["a2.bin", "a2.bin", "a10.bin"]


def test_a_damaged_file_is_skipped_where_asked(tmp_path: Path) -> None:
    good, bad = write_parquet(tmp_path), tmp_path / "a.parquet"
    bad.write_bytes(good.read_bytes()[:-7])
    with pytest.raises(DamagedInputError, match=r"a\.parquet: not a whole parquet file"):
        read([bad, good], tmp_path / "out", on_error="records")
    manifest = read([bad, good], tmp_path / "out", on_error="skip")
    assert stored(tmp_path / "out") == DOCUMENTS
    assert manifest.counts["bad"] == {"the rest of a damaged file": 1}


def test_a_flat_array_whose_documents_nothing_ends_is_refused(tmp_path: Path) -> None:
    file = write_bin(tmp_path)
    with pytest.raises(ConfigError, match=r"name the tokenizer \(--tokenizer\), or eos_id"):
        read(file, tmp_path / "out", eos_id=None)
    with pytest.raises(DamagedInputError, match=r"none of its 10 ids is 4, .*\(uint16 was read\)"):
        read(file, tmp_path / "out", eos_id=4)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedInputError, match=r"19 bytes .*no whole number of uint16"):
        read(file, tmp_path / "out")


def test_arrays_longer_than_a_step_are_cut_at_each_end(tmp_path: Path) -> None:
    ids = np.full((1 << 22) + 50, 5, "<u2")
    ends = np.array([(1 << 22) - 1, 1 << 22, (1 << 22) + 20, len(ids) - 1])
    ids[ends] = EOS
    ids.tofile(tmp_path / "long.bin")
    manifest = read(tmp_path / "long.bin", tmp_path / "out")
    assert [len(document) for document in stored(tmp_path / "out")] == np.diff(ends, prepend=-1).tolist()
    assert manifest.counts["notes"] == ["1 documents are empty: they hold only the end-of-text id"]
    pipeline.export_tokens(tmp_path / "out", tmp_path / "flat", "nanogpt", progress=Progress(quiet=True))
    assert (tmp_path / "flat" / "train.bin").read_bytes() == ids.tobytes()
    pipeline.export_tokens(tmp_path / "out", tmp_path / "rows", "parquet", progress=Progress(quiet=True))
    read(tmp_path / "rows" / "data", tmp_path / "again")
    assert stored(tmp_path / "again") == stored(tmp_path / "out")


@pytest.mark.parametrize("to", ["nanogpt", "megatron", "parquet"])
def test_each_bar_counts_to_its_total(to: str, tmp_path: Path) -> None:
    bars, sources = Units(), [write_jsonl(tmp_path), write_bin(tmp_path)]
    manifest = read(sources, tmp_path / "out", progress=bars)
    pipeline.export_tokens(tmp_path / "out", tmp_path / "exported", to, progress=bars)
    size, tokens = sum(path.stat().st_size for path in sources), manifest.splits["train"].tokens
    assert bars.amounts == bars.totals
    assert bars.totals.items() >= {"read": size, "write": tokens, "export": tokens}.items()


def test_sources_and_settings_that_cannot_be_are_named(tmp_path: Path) -> None:
    write_megatron(tmp_path).unlink()
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "no sources were given; name at least one file or directory"),
        (tmp_path / "x.idx", {}, "x.bin: missing, but its .idx exists; copy both files"),
        ("https://127.0.0.1:9/a.npy", {}, "a.npy: arrays of ids are read from this machine; copy it here first"),
        ([], {"dtype": "int32"}, "--dtype (dtype= in Python) must be one of uint16, uint32, got 'int32'"),
    ]
    for sources, options, said in cases:
        with pytest.raises((ConfigError, InputError)) as raised:
            read(sources, tmp_path / "out", **options)
        assert said in str(raised.value)


@pytest.mark.parametrize("name", ["x.jsonl", "x.bin", "x.json"])
def test_an_empty_source_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match="no document was read"):
        read(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def write_llmc(path: Path, ids: list[int], magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids)
    path.write_bytes(header.tobytes() + np.array(ids, dtype).tobytes())
    return path


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_a_header_of_llmc_says_the_dtype_and_is_no_token(magic: int, version: int, dtype: str, tmp_path: Path) -> None:
    ids = [EOS, 5, 6, EOS, 7, EOS, 8, 3] * 70  # llm.c writes the id before each document
    file = write_llmc(tmp_path / "x.bin", ids, magic, version, dtype)
    read(file, tmp_path / "out")
    assert stored(tmp_path / "out") == [[5, 6, EOS], [7, EOS], [8, 3, EOS]] * 70
    batch = next(iter(pipeline.open_dataset(file).pack(8).batch(1)))
    assert batch["input_ids"].tolist() == [ids[:8]]


def test_a_header_of_llmc_that_does_not_fit_is_named(tmp_path: Path) -> None:
    whole = write_llmc(tmp_path / "x.bin", [5, EOS])
    cases = {
        "1026 bytes, but 1028 for the 2 ids": whole.read_bytes()[:-2],
        "version 7, but version 1 is read": write_llmc(tmp_path / "v.bin", [5, EOS], version=7).read_bytes(),
        "questions of an evaluation": write_llmc(tmp_path / "q.bin", [5, EOS], magic=20240522).read_bytes(),
    }
    for said, data in cases.items():
        (tmp_path / "x.bin").write_bytes(data)
        with pytest.raises(DamagedInputError, match=said):
            read(tmp_path / "x.bin", tmp_path / "out")


def test_an_array_under_a_wrong_name_or_dtype_is_refused_with_the_cure(tmp_path: Path) -> None:
    raw = write_bin(tmp_path).rename(tmp_path / "raw.npy")
    with pytest.raises(DamagedInputError, match=r"raw\.npy: no header .*name it \.bin and give their --dtype"):
        read(raw, tmp_path / "out")
    with pytest.raises(DamagedInputError, match=r"raw\.npy: no header of NumPy"):
        pipeline.open_dataset(raw)
    np.array(FLAT * 20, "<u4").tofile(tmp_path / "wide.bin")
    np.array([300, EOS] * 40, "<u2").tofile(tmp_path / "short.bin")
    with pytest.raises(DamagedInputError, match=r"ids of 32 bits.*name --dtype uint32"):
        read(tmp_path / "wide.bin", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"wide\.bin: cannot be read .*'uint17': data type"):
        map_tokens(tmp_path / "wide.bin", "uint17")
    for array, said in (
        (np.ones(3), "float64 of shape .3,.; ids must be"),
        (np.ones((2, 2), "<u2"), r"uint16 of shape \(2, 2\)"),
    ):
        np.save(tmp_path / "wrong.npy", array)
        with pytest.raises(DamagedInputError, match=rf"wrong\.npy: {said}"):
            read(tmp_path / "wrong.npy", tmp_path / "out")
    (tmp_path / "wrong.npy").write_bytes((tmp_path / "wrong.npy").read_bytes()[:-1])
    with pytest.raises(DamagedInputError, match=r"wrong\.npy: not a whole npy file \(.*\); copy it again"):
        read(tmp_path / "wrong.npy", tmp_path / "out")
    np.save(tmp_path / "flat.npy", np.array(FLAT))
    read((tmp_path / "flat.npy").rename(tmp_path / "flat.bin"), tmp_path / "out")
    assert stored(tmp_path / "out") == DOCUMENTS


def test_text_in_place_of_ids_is_refused_by_name(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"input_ids": ["text"]}), tmp_path / "x.parquet")
    with pytest.raises(DamagedInputError, match="column 'input_ids' is string, not a list"):
        read(tmp_path / "x.parquet", tmp_path / "out")
    (tmp_path / "x.csv").write_text("input_ids\n1\n")
    with pytest.raises(InputError, match=r"holds text.* lists of token ids"):
        read(tmp_path / "x.csv", tmp_path / "out")


def test_the_command_imports_and_the_result_is_sound(tmp_path: Path, says: Says) -> None:
    file, output = write_parquet(tmp_path), tmp_path / "out"
    (tmp_path / "bad.jsonl").write_text('{"input_ids": [-1]}\n{"input_ids": [7]}\n{"input_ids": [7]}\n')
    bad = [f"{tmp_path}/bad.jsonl", "--eos-id", str(EOS), "--on-error", "records"]
    assert says(0, "import", *bad, "--output", f"{tmp_path}/bad").out == (
        f"{tmp_path}/bad: 2 documents, 4 tokens, verified\n1 skipped: an id outside the vocabulary\n"
        "1 documents are exact copies of others, and are kept\n"
        "2 documents lacked the end-of-text id 9 at their end: it was added\n"
    )
    flags = ["--output", str(output), "--eos-id", str(EOS), "--val-fraction", "0", "--keep-fields", "score:int"]
    empty = "1 documents are empty: they hold only the end-of-text id\n"
    assert says(0, "import", file, *flags).out == f"{output}: 4 documents, 10 tokens, verified\n{empty}"
    says(0, "verify", output)
    says(0, "inspect", output, "--id", "b", shows="[7, 9]")  # without a tokenizer, ids have no text
    says(0, "inspect", output, shows="no tokenizer, end of text 9, stored as uint16")
    says(2, "import", file, *flags, shows="holds a dataset already")
