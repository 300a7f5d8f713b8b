"""With token quotas no more is read than fills them, and how much that is depends on neither workers nor interruptions."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.limits import Limits
from pipeline.builder.plan import make_plan
from pipeline.builder.reading import pieces
from pipeline.builder.recipe import Recipe
from pipeline.builder.workspace.atomic_directory import discard
from pipeline.errors import InputError
from pipeline.shards.manifest import Manifest
from pipeline.shards.reader import Shard
from pipeline.text.tokenizer.tokenizer import load_tokenizer
from tests.builds import digests
from tests.corpus import english
from tests.input_server import InputServer, running_inputs
from tests.interruptions import interrupt_after

FILES, RECORDS = 8, 12
LIMITS = Limits(smallest_unit_bytes=8_000, unit_bytes=8_000)
SETTINGS: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "val_fraction": 0.0, "dedup": False, "limits": LIMITS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of twelve documents, some 14 kB, each of which is cut in two."""
    folder = tmp_path_factory.mktemp("quota")
    for number in range(FILES):
        lines = (json.dumps({"text": english(number * RECORDS + k)}) + "\n" for k in range(RECORDS))
        (folder / f"{number:02}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[InputServer]:
    with running_inputs(folder) as running:
        yield running


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return build(inputs, output, progress=Progress(quiet=True), **{**SETTINGS, **options})


def rows(output: Path) -> list[tuple[str, int, str]]:
    tables = [Shard(path).table() for path in sorted(output.glob("train-*.tar"))]
    return [row for table in tables for row in zip(table["file"], table["line"], table["id"], strict=True)]


def test_a_build_asks_for_no_more_than_fills_the_quota(server: InputServer, folder: Path, tmp_path: Path) -> None:
    urls = [server.url(name) for name in server.files]
    whole = sum(map(len, server.files.values()))
    cut = run(urls, tmp_path / "remote", max_tokens="6000")
    assert 4_500 < cut.counts["tokens"] <= 6_000
    assert 6_000 < server.sent < 0.4 * whole
    assert cut.counts["read"] < 0.4 * FILES * RECORDS
    run([str(path) for path in sorted(folder.iterdir())], tmp_path / "local", max_tokens="6000")
    assert rows(tmp_path / "local") == rows(tmp_path / "remote")


def test_documents_keep_their_lines_and_come_from_files_drawn_by_the_seed(folder: Path, tmp_path: Path) -> None:
    chosen = []
    for seed in (0, 1):
        run(folder, tmp_path / str(seed), max_tokens="6000", seed=seed)
        found = rows(tmp_path / str(seed))
        assert all(id == f"{file}:{line}" for file, line, id in found)
        lines = {file: (folder / file).read_text().splitlines() for file, _, _ in found}
        texts = [json.loads(lines[file][line - 1])["text"] for file, line, _ in found]
        assert texts_of(tmp_path / str(seed)) == texts
        chosen.append(list(lines))
    assert chosen[0] != chosen[1]
    assert all(files == sorted(files) for files in chosen)
    assert any(files != sorted(lines for lines in os.listdir(folder))[: len(files)] for files in chosen)


def texts_of(output: Path) -> list[str]:
    decode = load_tokenizer("bytes").decode
    shards = [Shard(path) for path in sorted(output.glob("train-*.tar"))]
    return [decode(shard.document(number)[:-1].tolist()) for shard in shards for number in range(len(shard))]


def test_a_larger_quota_holds_all_that_a_smaller_one_does(folder: Path, tmp_path: Path) -> None:
    held = []
    for quota in (3_000, 16_000, 10**9):
        run(folder, tmp_path / str(quota), max_tokens=str(quota))
        held.append(set(rows(tmp_path / str(quota))))
    assert all(small < large for small, large in pairwise(held))
    assert len(held[-1]) == FILES * RECORDS


def test_a_quota_that_the_source_does_not_fill_changes_no_byte_of_the_shards(folder: Path, tmp_path: Path) -> None:
    whole, bounded = run(folder, tmp_path / "whole"), run(folder, tmp_path / "bounded", max_tokens="1e9")
    assert [shard.sha256 for shard in bounded.shards] == [shard.sha256 for shard in whole.shards]
    assert bounded.inputs == whole.inputs


def test_sources_without_a_quota_are_read_whole_and_unread_files_have_no_hash(folder: Path, tmp_path: Path) -> None:
    specs = [f"web={folder}/0[0-5].jsonl", f"wiki={folder}/0[67].jsonl"]
    counts = run(specs, tmp_path / "out", max_tokens="web=6000,wiki=1e9").counts["by_source"]
    assert counts["wiki"]["kept"] == 2 * RECORDS
    assert counts["web"]["read"] <= 3 * RECORDS
    inputs = Manifest.read(tmp_path / "out").inputs
    assert all(item["sha256"] for item in inputs if item["source"] == "wiki")
    assert None in [item["sha256"] for item in inputs if item["source"] == "web"]
    none = run(specs, tmp_path / "none", max_tokens="web=0").counts
    assert none["read"] == none["kept"] == 2 * RECORDS


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of which most documents are the same ones, with a first line that all share."""
    folder, random_ = tmp_path_factory.mktemp("repeating"), random.Random(0)
    for number in range(FILES):
        kinds = [1_000 + random_.randrange(3) if k % 6 else number * RECORDS + k for k in range(RECORDS)]
        lines = [json.dumps({"text": f"The first line of every page.\n{english(kind)}"}) + "\n" for kind in kinds]
        (folder / f"{number:02}.jsonl").write_text("".join(lines))
    return folder


def test_more_is_read_until_what_survives_dedup_fills_the_quota(repeating: Path, tmp_path: Path) -> None:
    settings = {"max_tokens": "15000", "dedup": True, "dedup_lines": True, "shortest_passage": 5, "words_left": 5}
    seen: list[str] = []
    first = run(repeating, tmp_path / "out", after_stage=seen.append, **settings)
    assert seen.count("dedup") > 1
    assert 13_000 < first.counts["tokens"] <= 15_000
    assert first.counts["read"] < FILES * RECORDS
    assert first.counts["repeats"]["lines"] > 0

    class StopError(Exception):
        pass

    again = seen.index("filter", seen.index("tokenize"))
    for steps, workers in ((again, 2), (again + 2, 1)):
        left = list(range(steps))

        def stop(name: str, left: list[int] = left) -> None:
            if not left:
                raise StopError
            left.pop()

        with pytest.raises(StopError):
            run(repeating, tmp_path / "stopped", after_stage=stop, **settings, overwrite=True)
        run(repeating, tmp_path / "stopped", workers=workers, start_method="fork", **settings)
        assert digests(tmp_path / "stopped") == digests(tmp_path / "out")


@pytest.mark.parametrize(("tokens", "kept"), [("15000", True), ("10000000", False)])
def test_texts_are_kept_uncut_only_while_more_may_be_read(
    repeating: Path, tmp_path: Path, tokens: str, kept: bool
) -> None:
    settings = {"max_tokens": tokens, "dedup_lines": True, "shortest_passage": 5, "words_left": 5}
    with pytest.raises(KeyboardInterrupt):
        run(repeating, tmp_path / "out", after_stage=interrupt_after("line_dedup"), **settings)
    assert bool(list(tmp_path.glob("out/.build/filter/**/documents.arrow"))) == kept


class Said(Progress):
    """Keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


TRAINS = {**SETTINGS, "tokenizer": "train:300", "max_tokens": "15000", "dedup": True, "seed": 1}


@pytest.mark.parametrize(("characters", "every_time"), [(1, False), (1 << 40, True)])
def test_a_tokenizer_is_trained_until_one_has_read_enough(
    repeating: Path, tmp_path: Path, characters: int, every_time: bool
) -> None:
    limits = replace(LIMITS, tokenizer_characters=characters)
    seen: list[str] = []
    said = Said()
    build(repeating, tmp_path / "out", progress=said, **{**TRAINS, "limits": limits, "after_stage": seen.append})
    rounds = seen.count("tokenize")
    assert rounds > 1
    assert sum("computing 300 tokens" in line for line in said.lines) == (rounds if every_time else 1)


def test_neither_workers_nor_interruptions_change_which_tokenizer_is_kept(repeating: Path, tmp_path: Path) -> None:
    settings = {**TRAINS, "limits": replace(LIMITS, tokenizer_characters=1)}
    seen: list[str] = []
    run(repeating, tmp_path / "out", **settings, after_stage=seen.append)
    again = seen.index("filter", seen.index("tokenize"))
    for steps, workers, lost in ((again - 1, 2, False), (again, 1, True)):
        left = seen[:steps]

        def stop(name: str, left: list[str] = left) -> None:
            if not left:
                raise InterruptedError
            left.pop()

        with pytest.raises(InterruptedError):
            run(repeating, tmp_path / "stopped", **settings, after_stage=stop, overwrite=True)
        if (
            lost
        ):  # as a kill leaves it between two rounds: what they make again is gone, what is read next not yet written
            for name in ("reading.json", "tokenize", "dedup", "deduping", "partitions.json"):
                discard(tmp_path / "stopped/.build" / name)
        run(repeating, tmp_path / "stopped", **settings, workers=workers, start_method="fork")
        assert digests(tmp_path / "stopped") == digests(tmp_path / "out")


def test_a_limit_says_alone_what_is_read(folder: Path, tmp_path: Path) -> None:
    cut = run(folder, tmp_path / "out", limit=20, max_tokens="4000").counts
    assert cut["read"] == 20
    assert 0 < cut["dropped"]["max_tokens"] == 20 - cut["kept"]
    assert pieces(make_plan([str(folder)], Recipe(limit=20, max_tokens="4000"), limits=LIMITS)) == {}


def test_of_a_limit_that_the_first_unit_fills_nothing_is_read_twice(server: InputServer, tmp_path: Path) -> None:
    urls = [server.url(name) for name in server.files]
    cut = run(urls, tmp_path / "out", limit=5, where="text > 'A'")
    assert cut.counts["read"] - cut.counts["dropped"].get("where", 0) == 5
    assert server.sent < 1.1 * LIMITS.unit_bytes


def test_faults_of_files_that_are_not_reached_are_not_met(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for path in folder.iterdir():
        (tmp_path / "in" / path.name).write_bytes(path.read_bytes())
    order = pieces(make_plan([str(folder)], Recipe(max_tokens="5000"), limits=LIMITS))[""]
    plan = make_plan([str(folder)], Recipe(max_tokens="5000"), limits=LIMITS)
    last = plan.inputs[plan.units[order[-1][0][0]][0].input].name
    (tmp_path / "in" / last).write_text("{broken\n" * 400)
    assert run(tmp_path / "in", tmp_path / "out", max_tokens="5000", on_error="stop").counts["bad"] == {}
    with pytest.raises(InputError, match=rf"{last}: line 1, byte 0"):
        run(tmp_path / "in", tmp_path / "all", on_error="stop")


def test_only_files_that_may_be_reached_are_asked_where_they_can_be_cut(server: InputServer) -> None:
    held = io.BytesIO()
    pq.write_table(pa.table({"text": [os.urandom(2_000).hex() for _ in range(40)]}), held, row_group_size=10)
    recipes = {"all": Recipe(), "quota": Recipe(max_tokens="5000"), "limit": Recipe(limit=2)}
    server.files = {f"{name}/{number:02}.parquet": held.getvalue() for name in recipes for number in range(FILES)}
    asked = {}
    for name, recipe in recipes.items():
        plan = make_plan([server.url(f"{name}/{{00..{FILES - 1:02}}}.parquet")], recipe, limits=LIMITS)
        asked[name] = len({each.path for each in server.asked if each.sent > 1 and f"/{name}/" in each.path})
        assert {span.input for unit in plan.units for span in unit} == set(range(FILES))
    assert asked["all"] == FILES
    assert asked["quota"] in (1, 2)
    assert asked["limit"] in (1, 2)
