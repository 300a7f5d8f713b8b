"""A receipt is one hash of a step's data on any topology, and a log of receipts names the first step and row that differ."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.cli.main import main
from pipeline.errors import ConfigError
from pipeline.stream.order import mix64

LENGTHS = [7, 13, 20, 1, 30, 9, 2, 41, 5, 16]
EOS = 3_000
LAYOUTS: dict[str, Any] = {
    "packed": lambda data, multiple: data.pack(24),
    "cut": lambda data, multiple: data.pack(24, boundaries=True),
    "padded": lambda data, multiple: data.pack(24, boundaries=True, pad_to_multiple_of=multiple),
    "strided": lambda data, multiple: data.pack(24, stride=17, shift=2),
    "best fit": lambda data, multiple: data.pack(24, best_fit=True, boundaries=True),
    "samples": lambda data, multiple: data.sample(24),
    "documents": lambda data, multiple: data.documents(pad_to_multiple_of=24),
    "filtered": lambda data, multiple: data.filter(lambda ids: len(ids) > 1, name="long").pack(24),
    "changed": lambda data, multiple: data.pack(24).map(lambda row: row | {"labels": row["labels"] * 2}),
}


def data(epochs: int | None = None, seed: int | None = 1) -> Any:
    tokens = np.arange(8 * sum(LENGTHS), dtype=np.uint16)
    made = pipeline.ShardDataset.from_tokens(tokens, lengths=LENGTHS * 8, eos_id=EOS, epochs=epochs)
    return made if seed is None else made.shuffle(seed=seed)


def by_definition(rows: list[tuple[list[int], list[int]]]) -> list[int]:
    """Return the hash of each row, from its ids and labels."""
    hashes = []
    for ids, labels in rows:
        found = 0
        for column, (token, label) in enumerate(zip(ids, labels, strict=True)):
            number = column * 0x9E3779B97F4A7C15 + token * 0xD6E8FEB86659FD93 + label * 0xA0761D6478BD642F
            if (token, label) != (EOS, -100):
                found += int(mix64(np.array([number % 2**64], np.uint64))[0])
        hashes.append(found % 2**64)
    return hashes


def added(receipts: list[str]) -> str:
    return pipeline.merge_receipts(receipts)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from([*LAYOUTS]),
    mixed=st.booleans(),
    ranks=st.integers(1, 3),
    peers=st.integers(1, 3),
    slices=st.sampled_from(["zigzag", "contiguous", "documents", "rows"]),
    stored=st.booleans(),
    step=st.integers(0, 9),
)
def test_the_parts_of_any_ranks_and_peers_add_up_to_the_receipt_that_the_definition_says(
    name: str, mixed: bool, ranks: int, peers: int, slices: str, stored: bool, step: int
) -> None:
    def make(multiple: int) -> Any:
        source = pipeline.mix({"a": data(seed=None), "b": data(seed=None)}, {"a": 2, "b": 1}).shuffle(seed=2)
        return LAYOUTS[name](source if mixed else data(), multiple)

    if (slices == "documents" and name != "padded") or (slices == "rows" and name != "cut"):
        slices = "contiguous"
    whole = make(1).batch(6)
    [batch] = islice(whole, step, step + 1)
    expected = by_definition(list(zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)))
    cut = {"cut": 24 // (2 * peers)} if name == "cut" else {}
    dtype = "stored" if stored and name not in ("documents", "changed") else "int64"
    parts = make(2 * peers).batch(6 // ranks, dtype=dtype, **cut)
    found = []
    for rank in range(ranks):
        for peer in range(peers):
            own = parts.shard(rank, ranks, context=(peer, peers), slices=slices)
            found.append(own.receipt(next(islice(own, step, None))))
            assert own.receipt(step) == f"{sum(expected) % 2**64:016x}"
    assert added(found) == whole.receipt(step) == f"{sum(expected) % 2**64:016x}"
    low = "".join(f"{number % 2**16:04x}" for number in expected)
    assert whole.receipt(batch, rows=True) == whole.receipt(step, rows=True) == f"{whole.receipt(step)}:{low}"


def test_the_end_of_a_pass_the_next_pass_and_a_text_have_the_receipts_of_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"{list(range(n))}"}) + "\n" for n in range(1, 40)))
    text: Any = pipeline.TextDataset(tmp_path / "a.jsonl", "bytes", epochs=1).shuffle(seed=0, lanes=6).pack(32)
    for stream in (data(1).pack(24).batch(5), data(1).pack(24).batch(5, last="drop"), text.batch(6)):
        found = [stream.receipt(batch) for batch in stream]
        assert found == [stream.receipt(step) for step in range(len(found))]
        assert len({*found}) == len(found) > 3
    with pytest.raises(ConfigError, match="step 99 is after the end"):
        text.batch(6).receipt(99)
    once = data(1).pack(24).batch(5)
    count = len(once)
    once.set_epoch(1)
    assert once.receipt(count) == once.receipt(next(iter(once)))
    unbatched = data().pack(24)
    assert unbatched.shard(0, 2).receipt(3) == added([unbatched.receipt(row) for row in islice(unbatched, 6, 8)])


def test_arrays_of_workers_and_of_numpy_have_the_receipt_of_the_step() -> None:
    stream = data().pack(24, shift="divisors").batch(4)
    for number, batch in zip(range(5), DataLoader(stream, batch_size=None, num_workers=2), strict=False):
        assert stream.receipt(batch) == stream.receipt(number)
    arrays = stream.numpy()
    assert arrays.receipt(next(iter(arrays))) == stream.receipt(0)


@pytest.mark.parametrize("key", ["input_ids", "labels"])
def test_one_token_or_two_that_change_places_change_the_receipt(key: str) -> None:
    stream = data().pack(24).batch(4)
    batch = next(iter(stream))
    other, swapped = batch[key].clone(), batch[key].clone()
    other[2, 5] += 1
    swapped[2, [5, 6]] = swapped[2, [6, 5]]
    assert (
        len({stream.receipt(batch), stream.receipt({**batch, key: other}), stream.receipt({**batch, key: swapped})})
        == 3
    )


def write_log(
    path: Path, stream: Any, steps: range, changed: dict[int, int], first: int = 1, text: str = "", **options: Any
) -> Path:
    """Write the log of a rank; in the steps of ``changed``, a token of a row is another."""
    lines = []
    for step, batch in zip(range(steps.stop), stream, strict=False):
        if step in changed:
            batch["input_ids"][changed[step], 3] += 1
        if step in steps:
            entry = {"step": step + first, "text": text, "receipt": stream.receipt(batch, **options)}
            lines.append(json.dumps(entry, ensure_ascii=False))
    path.write_text("\n".join([*lines[:2], json.dumps({"note": "validation"}), *lines[2:]]) + "\n", "utf-8")
    return path


def test_a_log_names_the_first_step_and_the_rows_that_differ(tmp_path: Path) -> None:
    stream = data().pack(24).batch(4)
    whole = write_log(tmp_path / "whole.jsonl", stream, range(12), {}, rows=True)
    assert stream.check_receipts(whole) == (12, None)
    assert stream.check_receipts(write_log(tmp_path / "zero.jsonl", stream, range(12), {}, first=0)) == (12, None)
    late = write_log(tmp_path / "late.jsonl", stream, range(5, 12), {7: 2, 9: 0}, rows=True)
    count, found = stream.check_receipts(late)
    assert found is not None
    assert (count, found.step, found.step_of_log, found.rows) == (2, 7, 8, [2])
    again = tmp_path / "again.jsonl"
    again.write_text(late.read_text() + whole.read_text() + '{"step": 4, "rec')  # the last whole line counts
    assert stream.check_receipts(again) == (12, None)
    count, found = stream.check_receipts(write_log(tmp_path / "short.jsonl", stream, range(12), {3: 1}))
    assert found is not None
    assert (count, found.step, found.rows, found.expected) == (3, 3, [], stream.receipt(3))
    assert stream.check_receipts(write_log(tmp_path / "u.jsonl", stream, range(2), {}, text="a\u2028b")) == (2, None)
    (tmp_path / "u.jsonl").write_bytes(
        b'{"step": 1, "receipt": "' + b"0" * 16 + b'", "text": "\xc3'
    )  # cut in a character
    with pytest.raises(ConfigError, match="no line of"):
        stream.check_receipts(tmp_path / "u.jsonl")
    with pytest.raises(ConfigError, match="missing: cannot be read as a log"):
        stream.check_receipts(tmp_path / "missing")
    for text, message in (
        ("{}\n", "no line of .* has a receipt"),
        ('{"step": Infinity, "receipt": "12"}\n', "line 1: no step"),
        ('{"receipt": "12"}\n', "line 1: no step"),
        ("x\n", "1: no"),
    ):
        (tmp_path / "bad.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=message):
            stream.check_receipts(tmp_path / "bad.jsonl")


@pytest.mark.parametrize("kind", ["shards", "texts"])
def test_the_command_reads_the_logs_of_ranks_again_and_shows_the_row_that_differs(
    tmp_path: Path, small: Path, texts: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source: Any = pipeline.ShardDataset(small) if kind == "shards" else pipeline.TextDataset(texts, "bytes")
    stream = source.shuffle(seed=1, lanes=6).pack(16, boundaries=True, shift=2)
    ranks = [stream.shard(rank, 3).batch(2) for rank in range(3)]
    (tmp_path / "state.json").write_text(json.dumps(pipeline.merge_states([one.state_dict() for one in ranks])))
    logs = [
        write_log(tmp_path / f"{n}.jsonl", one, range(8), {6: 1} if n == 2 else {}, rows=True)
        for n, one in enumerate(ranks)
    ]
    command = ["trace", str(small if kind == "shards" else texts), "--state", str(tmp_path / "state.json")]
    command += ["--receipts", *map(str, logs), "--global-batch", "6", "--ranks", "3", "--shift", "2"]
    assert main([*command, "--boundaries"]) == 1
    shown = capsys.readouterr().out
    assert "step 6 (7 in the log) differs" in shown
    assert "6 steps before it" in shown
    assert "1 of 6 rows are not in the log; the first is\nrank 2, row 1, " in shown
    assert main(command) == 1
    assert "step 0 (1 in the log) differs" in capsys.readouterr().out
    write_log(logs[2], ranks[2], range(8), {}, rows=True)
    logs[0].write_text("".join(logs[0].read_text().splitlines(keepends=True)[:-2]) + '{"step": 7, "rec')  # a kill
    assert main([*command, "--boundaries"]) == 0
    assert "all 6 steps have the logged receipt" in capsys.readouterr().out
    write_log(logs[0], ranks[0], range(8), {}, rows=True)
    assert main([*command, "--boundaries"]) == 0
    assert "all 8 steps have the logged receipt" in capsys.readouterr().out


def test_streams_and_peers_without_receipts_are_refused() -> None:
    with pytest.raises(ConfigError, match="may drop items"):
        data().pack(24).apply(iter).batch(2).receipt(0)
    peer = data().pack(24).batch(2).shard(0, 1, context=(0, 2))
    with pytest.raises(ConfigError, match="leave rows out"):
        peer.receipt(next(iter(peer)), rows=True)
    assert isinstance(peer.receipt(next(iter(peer)) | {"more": torch.zeros(1)}), str)
