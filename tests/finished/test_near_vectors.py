"""Semantic dedup by the vectors of the user: equal to brute force for any blocks, and clear about what cannot be compared."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import pipeline
from pipeline.errors import ConfigError, DamagedInputError, InputError, MissingInputError
from pipeline.finished.near_vectors import near_rows
from tests.helpers.builds import contents_of
from tests.helpers.commands import Says
from tests.helpers.documentation import ROOT

Pairs = list[tuple[int, int, float]]
QUIET = pipeline.Progress(quiet=True)


def cosines_of(vectors: NDArray[np.int64]) -> list[list[float]]:
    """Return the cosine of each pair of vectors of whole numbers, from exact sums."""
    dots = (vectors @ vectors.T).tolist()
    return [[dot / math.sqrt(dots[i][i] * dots[j][j]) for j, dot in enumerate(row)] for i, row in enumerate(dots)]


def brute_force(cosines: list[list[float]], threshold: float) -> Pairs:
    """Return each row to drop, the first near row that stays, and their cosine, one pair after another."""
    stays: list[int] = []
    dropped: Pairs = []
    for row, own in enumerate(cosines):
        pairs = ((row, other, own[other]) for other in stays)
        if near := next((pair for pair in pairs if pair[2] >= threshold), None):
            dropped.append(near)
        else:
            stays.append(row)
    return dropped


def found(vectors: NDArray[Any], threshold: float, rows: int) -> Pairs:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return list(near_rows(vectors, lengths, threshold, rows=rows))


@st.composite
def small_vectors(draw: st.DrawFn) -> tuple[NDArray[np.int64], float]:
    """Return vectors of few directions, and a threshold that is often the cosine of two of them."""
    size = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(-3, 3), min_size=size, max_size=size).filter(any)
    vectors = np.array(draw(st.lists(numbers, min_size=1, max_size=24)))
    ends = st.integers(0, len(vectors) - 1)
    cosine = cosines_of(vectors)[draw(ends)][draw(ends)]
    return vectors, cosine if 0 < cosine <= 1 else draw(st.sampled_from([0.3, 0.6, 0.9, 1.0]))


@given(small_vectors(), st.integers(1, 30), st.sampled_from(["f2", "f4", ">f8"]))
def test_the_rows_found_are_those_of_brute_force_for_any_blocks(
    case: tuple[NDArray[np.int64], float], rows: int, dtype: str
) -> None:
    vectors, threshold = case
    assert found(vectors.astype(dtype), threshold, rows) == brute_force(cosines_of(vectors), threshold)


def alike_vectors() -> NDArray[np.int64]:
    """Return 80 vectors of 100 whole numbers that are all near each other."""
    generator = np.random.default_rng(0)
    base = generator.integers(-2000, 2000, 100)
    return base + generator.integers(-40, 41, (80, 100)) * (generator.random((80, 1)) < 0.8)


@pytest.mark.parametrize("rows", [3, 16, 80])
def test_rounding_decides_no_pair_at_the_threshold(rows: int) -> None:
    vectors = alike_vectors()
    cosines = cosines_of(vectors)
    for row in range(1, 80, 13):
        cosine = cosines[row - 1][row]
        for threshold in (cosine, math.nextafter(cosine, 2)):
            if threshold <= 1:
                assert found(vectors.astype(np.float32), threshold, rows) == brute_force(cosines, threshold)


def test_a_document_goes_only_if_it_is_near_one_that_stays() -> None:
    # Each is near its neighbours: 20 degrees apart, where the threshold is 25 degrees.
    angles = np.radians([0, 20, 40, 60, 80])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for threshold in (0.9063, 0.9396):  # that of 20 degrees is 0.93969
        near = pipeline.near_vectors(vectors, list("abcde"), threshold, progress=QUIET)
        assert [(each.key, each.stays, round(each.cosine, 3)) for each in near] == [("b", "a", 0.94), ("d", "c", 0.94)]
    assert pipeline.near_vectors(vectors, list("abcde"), 0.9398, progress=QUIET) == []


@pytest.mark.nightly
def test_the_result_is_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((9_000, 64), dtype=np.float32)
    vectors[4_500:] = vectors[:4_500] + generator.standard_normal((4_500, 64), dtype=np.float32) * 0.3
    np.save(tmp_path / "v.npy", vectors)
    code = "import pipeline; print(pipeline.near_vectors('v.npy', range(9000), 0.958))"
    texts = set()
    for threads in ("1", "2", "3"):
        threads_of = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **threads_of}
        command = [sys.executable, "-c", code]
        texts.add(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout)
    (text,) = texts
    assert 1_000 < text.count(b"key=") < 4_000


# Inputs

VECTORS = np.array([[1, 0, 0], [0, 1, 0], [2, 0.01, 0], [0, 0, 1], [0, 0.5, 0]], np.float32)
KEYS = ["a", "b", "c", "7", "e"]
NEAR = [("c", "a"), ("e", "b")]


def write_tables(folder: Path) -> None:
    rows = [{"id": key, "vector": vector} for key, vector in zip(KEYS, VECTORS.tolist(), strict=True)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "v.jsonl").write_text(lines)
    (folder / "v.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    np.save(folder / "v.npy", VECTORS)
    for name, kind in (("lists", pa.list_(pa.float64())), ("fixed", pa.list_(pa.float32(), 3))):
        columns = {"id": KEYS, "vector": pa.array(VECTORS.tolist(), kind)}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=2)
    (folder / "keys.txt").write_text("\ufeff" + "\r\n".join(KEYS) + "\r\n", encoding="utf-8")


@pytest.mark.parametrize("keys", [None, KEYS, np.array(KEYS), "keys.txt", "lists.parquet", "v.jsonl"])
@pytest.mark.parametrize("vectors", "array list v.npy lists.parquet fixed.parquet v.jsonl v.jsonl.zst".split())
def test_all_forms_of_vectors_and_keys_give_the_same(tmp_path: Path, vectors: str, keys: Any) -> None:
    write_tables(tmp_path)
    given: Any = {"array": VECTORS, "list": VECTORS.tolist()}.get(vectors, tmp_path / vectors)
    keys = tmp_path / keys if isinstance(keys, str) else keys
    if keys is None and vectors in ("array", "list", "v.npy"):
        with pytest.raises(ConfigError, match=r"no keys, .*give the id of each row.*keys= \(--keys\)"):
            pipeline.near_vectors(given, keys, 0.9, progress=QUIET)
        return
    near = pipeline.near_vectors(given, keys, 0.9, progress=QUIET)
    assert [(each.key, each.stays) for each in near] == NEAR


def test_columns_may_have_other_names_and_ids_may_be_numbers(tmp_path: Path) -> None:
    table = pa.table({"number": range(5), "embedding": list(VECTORS)})
    pq.write_table(table, tmp_path / "v.parquet")
    names: dict[str, Any] = {"column": "embedding", "id_key": "number", "progress": QUIET}
    near = pipeline.near_vectors(tmp_path / "v.parquet", None, 0.9, **names)
    assert [(each.key, each.stays) for each in near] == [("2", "0"), ("4", "1")]
    with pytest.raises(ConfigError, match=r"v.parquet: no column 'vektor' .*name it by column= \(--column\)"):
        pipeline.near_vectors(tmp_path / "v.parquet", None, 0.9, **names | {"column": "vektor"})


def test_no_vectors_are_near(tmp_path: Path) -> None:
    assert pipeline.near_vectors(np.zeros((0, 3), np.float32), [], 0.9, progress=QUIET) == []
    empty = {"id": pa.array([], "string"), "vector": pa.array([], pa.list_(pa.float32()))}
    pq.write_table(pa.table(empty), tmp_path / "v.parquet")
    assert pipeline.near_vectors(tmp_path / "v.parquet", None, 0.9, progress=QUIET) == []


# Errors

NAN, ZERO, HUGE = VECTORS.copy(), VECTORS.copy(), VECTORS.astype(np.float64)
NAN[3, 1], ZERO[2], HUGE[1, 1] = np.nan, 0, 1e300


@pytest.mark.parametrize("threshold", [0, -0.5, 1.01, math.nan, True, "0.9", None])
def test_a_threshold_that_is_no_cosine_is_refused(threshold: Any) -> None:
    with pytest.raises(ConfigError, match=f"threshold must be .* above 0 and at most 1, got {threshold!r}"):
        pipeline.near_vectors(VECTORS, KEYS, threshold)


@pytest.mark.parametrize(
    ("vectors", "keys", "said"),
    [
        (NAN, KEYS, r"1 vectors .* row 3 \(key '7'\) holds NaN or infinity; leave"),
        (HUGE, KEYS, r"1 vectors .* row 1 \(key 'b'\) holds NaN or infinity; leave"),
        (ZERO, KEYS, r"1 vectors .* row 2 \(key 'c'\) is all zeros; leave"),
        (VECTORS, KEYS[:4], "4 keys for 5 vectors; give"),
        (VECTORS, ["a", "b", "a", "b", "c"], "2 keys name several vectors: 'a', 'b'; give"),
        (VECTORS, ["a", "b", " ", "d", "e"], "row 2 has the key ' '; give"),
        (VECTORS, ["a", "b\nc", "d", "e", "f"], r"row 1 has the key 'b\\nc'; give .* of one line"),
        (VECTORS[0], KEYS, r"float32 of shape \(3,\), but must be .*numpy.stack"),
        (VECTORS[:, :0], KEYS, r"float32 of shape \(5, 0\), but must be"),
        (VECTORS.astype(np.int8), KEYS, r"int8 of shape \(5, 3\), but must be .*astype"),
        (VECTORS.astype(np.longdouble), KEYS, r"but must be float16, float32 or float64"),
        (np.array([*VECTORS, None], object)[:5], KEYS, r"object of shape \(5,\), but must be .*numpy.stack"),
        ([[1.0, 2.0], [1.0]], ["a", "b"], "vectors have different lengths; embed"),
    ],
)
def test_vectors_and_keys_that_cannot_be_compared_are_refused(vectors: Any, keys: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pipeline.near_vectors(vectors, keys, 0.9, progress=QUIET)


def test_files_that_cannot_be_read_are_named_with_a_cure(tmp_path: Path) -> None:
    write_tables(tmp_path)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "v.npy").read_bytes()[:-4])
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "lists.parquet").read_bytes()[:-4])
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "vector": [1.0, 2.0]}\n{"id": "b", "vector": [1.0]}\n')
    (tmp_path / "null.jsonl").write_text('{"id": "a", "vector": [1.0]}\n{"id": null, "vector": [1.0]}\n')
    (tmp_path / "latin.txt").write_bytes("ü\n".encode("latin-1"))
    pq.write_table(pa.table({"id": KEYS, "vector": KEYS}), tmp_path / "texts.parquet")
    pq.write_table(pa.table({"id": KEYS, "vector": [["1"]] * 5}), tmp_path / "words.parquet")
    for vectors, keys, kind, said in (
        ("none.npy", KEYS, MissingInputError, "none.npy: cannot be read: No such file.*; name a .npy file"),
        ("none.parquet", None, MissingInputError, "none.parquet: cannot be read.*; name a file"),
        ("v.npy", "none.txt", MissingInputError, "none.txt: cannot be read: No such file.*; name a file"),
        ("", KEYS, InputError, "cannot be read: Is a directory; name a .npy file"),
        ("cut.npy", KEYS, DamagedInputError, "cut.npy: not a whole npy file .*; write it"),
        ("keys.txt", KEYS, DamagedInputError, "keys.txt: not a whole npy file .*; write it"),
        ("cut.parquet", None, DamagedInputError, "cut.parquet: cannot be read .*; write it"),
        ("texts.parquet", None, DamagedInputError, "texts.parquet: column 'vector' is string, not lists of .*; name"),
        ("words.parquet", None, DamagedInputError, "words.parquet: column 'vector' is list.*string.*, not lists of"),
        ("v.npy", "latin.txt", DamagedInputError, "latin.txt: not UTF-8 .*; write"),
        ("bad.jsonl", None, ConfigError, "bad.jsonl, row 1: a vector of 1 numbers, but the first has 2; embed"),
        ("null.jsonl", None, ConfigError, "row 1 has the key ''; give"),
    ):
        given = tmp_path / keys if isinstance(keys, str) else keys
        with pytest.raises(kind, match=said):
            pipeline.near_vectors(tmp_path / vectors, given, 0.9, progress=QUIET)


# The command


def test_the_command_writes_ids_and_shows_the_pairs_of_the_lowest_cosines(tmp_path: Path, says: Says) -> None:
    write_tables(tmp_path)
    flags = ["--threshold", "0.9", "--output", str(tmp_path / "near.txt")]
    command = ["near-vectors", tmp_path / "v.npy"]
    shown = says(0, *command, "--keys", tmp_path / "keys.txt", *flags, shows="near.txt: 2 ids of near documents").out
    assert (tmp_path / "near.txt").read_text() == "c\ne\n"
    assert shown.splitlines()[:2] == ["  1.0000  c is near a, which stays", "  1.0000  e is near b, which stays"]
    says(2, *command, *flags, shows="give the id of each row")


def test_an_output_that_cannot_be_written_is_refused_before_vectors_are_read(tmp_path: Path, says: Says) -> None:
    flags = ["--threshold", "0.9", "--output", tmp_path / "none/near.txt"]
    says(2, "near-vectors", tmp_path / "none.npy", *flags, shows="none is not a directory; make it first")


@pytest.mark.parametrize("name", ["v.npy", "keys.txt", "linked"])
def test_an_output_that_is_an_input_is_refused(tmp_path: Path, says: Says, name: str) -> None:
    write_tables(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "keys.txt")
    before = contents_of(tmp_path)
    flags = ["--keys", str(tmp_path / "keys.txt"), "--threshold", "0.9", "--output", str(tmp_path / name)]
    said = f"{name}: it is an input, which would be replaced; choose another name"
    says(2, "near-vectors", tmp_path / "v.npy", *flags, shows=said)
    assert contents_of(tmp_path) == before
