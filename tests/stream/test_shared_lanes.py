"""More ranks than lanes: what each reads is what the bench counts, and a warning names the lanes that fit."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.shards.manifest import Manifest
from scripts.bench.ranks import reads
from tests.helpers.faulty_server import FaultyServer
from tests.helpers.shard_samples import index_extents, make_documents, write_dataset


@pytest.mark.parametrize(
    ("ranks", "lanes", "proposed"),
    [(12, 4, 12), (6, 4, 6), (9, 4, 9), (8, 4, None), (4, 4, None), (3, 4, None), (12, 12, None)],
)
def test_one_warning_names_the_lanes_that_fit_where_ranks_share_them(
    caplog: pytest.LogCaptureFixture, ranks: int, lanes: int, proposed: int | None
) -> None:
    data = pipeline.ShardDataset.from_tokens(np.full(ranks << 21, ranks + lanes, np.uint16))
    with caplog.at_level(logging.WARNING):
        for rank in (0, ranks - 1):
            for source in (data, data):
                next(iter(source.shuffle(seed=0, lanes=lanes).pack(2048).batch(1).shard(rank, ranks)))
    said = [record.message for record in caplog.records if "lanes" in record.message]
    assert len(said) == (proposed is not None)
    if proposed:
        readers = 3 if ranks == 12 else 2
        assert said[0].startswith(
            f"{ranks} ranks share {lanes} lanes, so about {readers} of them read each block; with .shuffle(lanes={proposed})"
        )


def test_small_data_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    data = pipeline.ShardDataset.from_tokens(np.zeros(100_000, np.uint16))
    with caplog.at_level(logging.WARNING):
        next(iter(data.shuffle(seed=0, lanes=4).pack(2048).batch(1).shard(0, 1000)))
    assert "lanes" not in caplog.text


@pytest.mark.parametrize(
    ("ranks", "lanes"), [(6, 4), *(pytest.param(12, lanes, marks=pytest.mark.nightly) for lanes in (4, 12))]
)
def test_the_bench_counts_what_ranks_read(tmp_path: Path, server: FaultyServer, ranks: int, lanes: int) -> None:
    batch, seq_len, window = 2, 32, 2
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(600, seed=seed, longest=300) for seed in range(4)])
    index_extents(folder, 4 << 10)
    url = server.serve(folder)
    stream = (
        pipeline.ShardDataset(url, epochs=1, cache_dir=None).shuffle(seed=3, lanes=lanes, window=window).pack(seq_len)
    )
    for rank in range(ranks):
        assert sum(1 for _ in stream.batch(batch).shard(rank, ranks)) > 20
    sent = sum(asked.sent for asked in server.asked if asked.path.endswith(".tar"))
    held = sum(path.stat().st_size for path in folder.glob("*.tar"))
    tokens = Manifest.read(folder).split("train").tokens
    wanted = reads(ranks, lanes, batch, window_rows=tokens // seq_len // 60, some=range(ranks)).rank
    assert sent / held == pytest.approx(wanted, rel=0.2)
