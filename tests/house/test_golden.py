"""Streams and builds give what they gave when their digests were written: no change of the code moves a token unseen.

A change that is meant to move tokens or bytes writes the digests again, with ``python -m tests.golden.streams`` or
``python -m tests.golden.builds``, and says why in
``docs/decisions.md``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import builds as golden_builds
from tests.golden import streams as golden_streams
from tests.golden.builds import BUILDS
from tests.golden.streams import STREAMS

GOLDEN = Path(__file__).parents[1] / "golden"
DIGESTS = json.loads((GOLDEN / "streams.json").read_text())
DIGESTS_OF_BUILDS = json.loads((GOLDEN / "builds.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden")
    golden_streams.write_data(path)
    return path


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_gives_the_golden_batches_however_it_is_run(kind: str, folder: Path) -> None:
    make, expected = STREAMS[kind], DIGESTS[kind]["one rank"]
    assert golden_streams.from_the_start(make, folder) == expected
    assert golden_streams.resumed(make, folder) == expected
    assert golden_streams.on_three_ranks(make, folder) == DIGESTS[kind]["three ranks"]


@pytest.mark.parametrize(
    "kind", [kind if kind in ("mix", "text") else pytest.param(kind, marks=pytest.mark.nightly) for kind in STREAMS]
)
def test_workers_give_the_golden_batches(kind: str, folder: Path) -> None:
    assert golden_streams.with_two_workers(STREAMS[kind], folder) == DIGESTS[kind]["one rank"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "in"
    golden_builds.write_data(path)
    return path


@pytest.mark.parametrize("kind", BUILDS)
def test_a_build_writes_the_shards_that_it_wrote(kind: str, inputs: Path, tmp_path: Path) -> None:
    assert golden_builds.digest(BUILDS[kind], inputs, tmp_path / "out") == DIGESTS_OF_BUILDS[kind]
