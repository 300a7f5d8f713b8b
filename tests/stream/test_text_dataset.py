"""Raw text as a stream: every document as often as it should come, in one order, on any ranks and workers."""

from __future__ import annotations

import json
import os
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.text_samples import KINDS, make_texts, spelled, write_texts
from tests.helpers.text_streams import TEXTS, ids, make, packed
from tests.stream.loaders import assert_raises


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    return [write_texts(folder / f"part{n}.jsonl.zst", texts) for n, texts in enumerate(TEXTS)]


def is_nothing(record: Any) -> bool:
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_streams_its_documents_in_order(tmp_path: Path, kind: str) -> None:
    found = [write_texts(tmp_path / f"part{n}.{kind}", texts) for n, texts in enumerate(TEXTS)]
    stream = pipeline.TextDataset(found, tokenizer="bytes", epochs=1).documents()
    assert [spelled(item["input_ids"]) for item in stream] == [text for texts in TEXTS for text in texts]
    joined = np.concatenate([item["input_ids"] for item in stream])
    rows = list(pipeline.TextDataset(found, tokenizer="bytes", epochs=1).pack(64))
    assert np.array_equal(np.concatenate([row["input_ids"] for row in rows])[: len(joined)], joined)
    assert sum(row["valid_tokens"] for row in rows) == len(joined) - 1


def test_workers_of_a_loader_give_the_order_without_workers(files: list[Path]) -> None:
    expected = ids(islice(packed(files), 12))
    sent = pickle.loads(pickle.dumps(packed(files).take(12)))  # as to workers that are started by spawn
    assert ids(DataLoader(sent, batch_size=None, num_workers=3, multiprocessing_context="fork")) == expected


def is_one_of_few(record: Any) -> bool:
    return record.text.startswith(("3.17 ", "0.5 ", "2.30 "))


@pytest.mark.parametrize("is_live", [False, True])
def test_a_document_must_pass_every_filter(files: list[Path], is_live: bool) -> None:
    records = [{"text": text} for texts in TEXTS for text in texts]
    stream = pipeline.TextDataset((lambda: iter(records)) if is_live else files, "bytes", epochs=1)
    stream = stream.filter(lambda record: "1" in record.text).filter(lambda record: "2" in record.text).documents()
    texts = [text for texts in TEXTS for text in texts if "1" in text and "2" in text]
    assert len(texts) > 1
    assert [spelled(item["input_ids"]) for item in stream] == texts


def test_a_lane_of_which_an_epoch_is_rejected_goes_on_to_the_next(files: list[Path]) -> None:
    stream = pipeline.TextDataset(files, "bytes").shuffle(seed=0, lanes=4).filter(is_one_of_few).documents().batch(2)
    rows = [spelled(row) for batch in islice(stream, 10) for row in batch["input_ids"]]
    assert {row.partition(" ")[0] for row in rows} == {"3.17", "0.5", "2.30"}
    assert stream.stats()["epoch"] > 0


def test_an_epoch_of_which_nothing_is_kept_raises(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"no document was kept .* 36 lanes .* 206 rejected"):
        next(iter(make(files).filter(is_nothing).pack(64).batch(6)))
    with pytest.raises(ConfigError, match=r"0 rejected by filters, \d+ bad.*on_error='stop'"):
        next(iter(make(files, text_key="body", on_error="records").pack(64).batch(6)))


@pytest.mark.parametrize("layout", ["pack", "best fit", "documents"])
def test_a_bounded_stream_without_a_row_is_an_error(files: list[Path], layout: str) -> None:
    def laid_out(stream: Any) -> Any:
        stream = stream.documents() if layout == "documents" else stream.pack(64, best_fit=layout == "best fit")
        return stream.batch(6)

    with pytest.raises(ConfigError, match=r"of the whole stream.* 412 rejected .*\(412 by filter\)"):
        list(laid_out(make(files, epochs=2).filter(is_nothing)))
    with pytest.raises(ConfigError, match=r"\(0 read so far.*loosen the filter or the condition"):
        list(laid_out(make(files, epochs=1, where="n > 3")))
    few = laid_out(make(files, epochs=1).filter(is_one_of_few))
    list(few)
    few.load_state_dict(few.state_dict())
    assert list(few) == []


def test_ranks_and_workers_that_cannot_share_lanes_are_refused(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"lanes=36 .*no multiple of .*24 rows .*use lanes=48 or 24"):
        iter(packed(files).shard(0, 4))
    with pytest.raises(ConfigError, match=r"unshuffled stream has one lane.*2 ranks.*add \.shuffle\(\)"):
        iter(pipeline.TextDataset(files, "bytes").pack(64).batch(2).shard(0, 2))
    loader = DataLoader(make(files).pack(64).batch(12), batch_size=None, num_workers=2)
    assert_raises(ConfigError, r"3 lanes, which 2 workers .* one of \[1, 3\], or .*lanes=48\)", loader)
    few = pipeline.TextDataset(files[:2], "bytes").shuffle().pack(8).batch(80)
    assert next(iter(few))["input_ids"].shape == (80, 8)
    with pytest.raises(ConfigError, match="71 records for the 160 rows"):
        iter(few.shard(1, 2))


def test_split_puts_every_document_in_one_half_wherever_it_lies(tmp_path: Path) -> None:
    texts = make_texts(300, 11)
    one = write_texts(tmp_path / "all.jsonl", texts)
    for line, path in ((150, "a.jsonl"), (300, "b.jsonl")):
        lines = one.read_text(encoding="utf-8").splitlines(keepends=True)[line - 150 : line]
        (tmp_path / path).write_text("".join(lines), encoding="utf-8")

    def halves(files: Any, val: float) -> list[list[str]]:
        parts = pipeline.TextDataset(files, "bytes", epochs=1).split(val=val)
        return [sorted(spelled(item["input_ids"]) for item in part.documents()) for part in parts]

    rest, held = halves(one, 0.1)
    assert sorted(rest + held) == sorted(texts)
    assert 15 < len(held) < 45
    assert halves([tmp_path / "b.jsonl", tmp_path / "a.jsonl"], 0.1) == [rest, held]
    assert set(held) < set(halves(one, 0.3)[1])
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, *texts]), encoding="utf-8")
    rest, held = halves(plain, 0.2)
    assert not set(rest) & set(held)  # without ids equal texts go together
    assert len(rest) + len(held) == 600
    stream = pipeline.TextDataset(one, "bytes").split(val=0.5)[1].shuffle(seed=0, lanes=2).pack(32).batch(2)
    next(iter(stream))
    with pytest.raises(StateError, match=r"^data was"):
        pipeline.TextDataset(one, "bytes").shuffle(seed=0, lanes=2).pack(32).batch(2).load_state_dict(
            stream.state_dict()
        )
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        pipeline.TextDataset(one, "bytes").split(val=1)


def test_a_stream_of_many_compressed_files_keeps_few_of_them_open(tmp_path: Path) -> None:
    many = [write_texts(tmp_path / f"{n:02}.jsonl.gz", make_texts(60, seed=n)) for n in range(60)]
    before = len(os.listdir("/proc/self/fd"))
    batches = iter(pipeline.TextDataset(many, "bytes").shuffle(seed=0, lanes=4, window=4).pack(64).batch(4))
    most = max(len(os.listdir("/proc/self/fd")) for _ in islice(batches, 60))
    assert most - before <= 4 + 8 + 2


def test_little_text_is_read_once_for_all_epochs(tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(5)))
    stream = pipeline.TextDataset(file, "bytes").shuffle(seed=0).pack(64).batch(2)
    list(islice(stream, 20))
    assert stream.stats()["epoch"] > 20
    assert stream.stats()["bytes_read"] < 2 * file.stat().st_size
