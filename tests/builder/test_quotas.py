"""With token quotas no more is read than fills them, and how much that is depends on neither workers nor interruptions."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.atomic_directory import discard
from pipeline.builder.limits import Limits
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.builder.stages.quotas import do_not_fit
from pipeline.draws import drawn, draws
from pipeline.errors import ConfigError, InputError
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from tests.helpers.builds import digests, rejected, run_plain, table, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.input_server import InputServer, running_inputs
from tests.helpers.interruptions import Units, killed_at
from tests.stream.order_oracle import mix64

FILES, RECORDS = 8, 12  # of a folder whose files are cut in two
LARGE = 400  # records of one file
SMALLEST = {"smallest_unit_bytes": 8_000, "unit_bytes": 8_000}
LIMITS = Limits(**SMALLEST, partition_characters=15_000, partition_records=20, batch_records=7)


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"dedup": False, "limits": LIMITS, **options})


def rows(output: Path) -> list[tuple[str, int, str]]:
    columns = table(output)
    return list(zip(columns["file"], columns["line"], columns["id"], strict=True))


def as_lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def large_records(repeated: bool = False) -> list[dict[str, Any]]:
    """Documents of some 250 tokens, beside 4 kB that hardly compress; of ``repeated`` ones one in four is new."""
    noise, numbers = random.Random(0), range(LARGE)
    texts = [english(0 if repeated and k % 4 else k, 4) for k in numbers]
    kinds = ["rare" if k % 10 == 9 else "plain" for k in numbers]
    return [{"text": texts[k], "kind": kinds[k], "noise": noise.randbytes(2_000).hex()} for k in numbers]


LARGE_FILES: dict[str, Callable[[], bytes]] = {
    "one.jsonl": lambda: as_lines(large_records()),
    "one.jsonl.zst": lambda: zstandard.compress(as_lines(large_records()), 1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of twelve documents, some 14 kB."""
    folder = tmp_path_factory.mktemp("quota")
    for number in range(FILES):
        records = [{"text": english(number * RECORDS + k)} for k in range(RECORDS)]
        (folder / f"{number:02}.jsonl").write_bytes(as_lines(records))
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    for name, make in LARGE_FILES.items():
        (folder / name).write_bytes(make())
    return folder


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of which most documents are the same ones, with a first line that all share."""
    folder, random_ = tmp_path_factory.mktemp("repeating"), random.Random(0)
    for number in range(FILES):
        kinds = [1_000 + random_.randrange(3) if k % 6 else number * RECORDS + k for k in range(RECORDS)]
        records = [{"text": f"The first line of every page.\n{english(kind)}"} for kind in kinds]
        (folder / f"{number:02}.jsonl").write_bytes(as_lines(records))
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[[Path], InputServer]]:
    with running_inputs() as server:

        def start(folder: Path) -> InputServer:
            server.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
            return server

        yield start


# What is read.


def test_of_many_files_no_more_is_asked_for_than_fills_the_quota(
    serve: Callable[[Path], InputServer], folder: Path, tmp_path: Path
) -> None:
    server = serve(folder)
    cut = run([server.url(name) for name in server.files], tmp_path / "remote", max_tokens="6000")
    assert 4_500 < cut.counts["tokens"] <= 6_000
    assert 6_000 < server.sent < 0.4 * sum(map(len, server.files.values()))
    assert cut.counts["read"] < 0.4 * FILES * RECORDS
    run([str(path) for path in sorted(folder.iterdir())], tmp_path / "local", max_tokens="6000")
    assert rows(tmp_path / "local") == rows(tmp_path / "remote")


@pytest.mark.parametrize("name", LARGE_FILES)
def test_of_one_file_no_more_is_asked_for_than_fills_the_quota(
    serve: Callable[[Path], InputServer], large: Path, tmp_path: Path, name: str
) -> None:
    server = serve(large)
    cut = run(server.url(name), tmp_path / "remote", max_tokens="15000")
    assert 11_000 < cut.counts["tokens"] <= 15_000
    most = 0.4 if name == "one.jsonl" else 0.75  # the blocks of zstd are larger
    assert cut.counts["read"] < most * LARGE
    assert server.sent < most * len(server.files[name])

    run(large / name, tmp_path / "local", max_tokens="15000")
    found = rows(tmp_path / "local")
    assert found == rows(tmp_path / "remote")
    assert [id for _, _, id in found] == [f"{file}:{line}" for file, line, _ in found]
    texts, lines = large_records(), [line - 1 for _, line, _ in found]
    assert lines == sorted(lines)
    assert sum(len(texts[line]["text"].encode()) + 1 for line in lines) == cut.counts["tokens"]
    # All before the partition that fills the quota stay.
    gap = next((k for k, line in enumerate(lines) if line != k), len(lines))
    assert gap >= LIMITS.batch_records
    assert lines[-1] - gap <= LIMITS.partition_records + LIMITS.batch_records


def test_sources_without_a_quota_are_read_whole_and_unread_files_have_no_hash(folder: Path, tmp_path: Path) -> None:
    specs = [f"web={folder}/0[0-5].jsonl", f"wiki={folder}/0[67].jsonl"]
    manifest = run(specs, tmp_path / "out", max_tokens="web=6000,wiki=1e9", keep_rejected=True)
    web, wiki = (manifest.counts["by_source"][name] for name in ("web", "wiki"))
    assert (wiki["kept"], web["read"] <= 3 * RECORDS, 4_500 < web["tokens"] <= 6_000) == (2 * RECORDS, True, True)
    assert web["dropped"] == {"max_tokens": web["read"] - web["kept"]} == manifest.counts["dropped"]
    lost = [line for line in rejected(tmp_path / "out") if line["reason"] == "max_tokens of its source reached"]
    assert len(lost) == web["dropped"]["max_tokens"]
    with pytest.raises(ConfigError, match="did you mean 'web'"):
        run(specs, tmp_path / "other", max_tokens="wep=5")
    assert all(item["sha256"] for item in manifest.inputs if item["source"] == "wiki")
    assert None in [item["sha256"] for item in manifest.inputs if item["source"] == "web"]
    none = run(specs, tmp_path / "none", max_tokens="web=0").counts
    assert none["read"] == none["kept"] == 2 * RECORDS


def test_a_quota_that_ends_early_before_a_long_document_says_so(tmp_path: Path) -> None:
    lengths = (100, 700, 30, 900, 60, 800, 20)
    (tmp_path / "in.jsonl").write_bytes(as_lines([{"text": f"{n} ".ljust(n - 1, "x")} for n in lengths]))
    counts = run(f"wiki={tmp_path / 'in.jsonl'}", tmp_path / "out", max_tokens="wiki=950").counts
    assert 0 < counts["tokens"] < 940
    [note] = counts["notes"]
    assert f"wiki has {counts['tokens']:,} of 950 tokens" in note
    assert f"more than the {950 - counts['tokens']:,} left" in note
    assert "notes" not in run(f"wiki={tmp_path / 'in.jsonl'}", tmp_path / "all", max_tokens="wiki=1e6").counts


def test_a_limit_rules_what_is_read(
    serve: Callable[[Path], InputServer], folder: Path, large: Path, tmp_path: Path
) -> None:
    cut = run(folder, tmp_path / "out", limit=20, max_tokens="4000").counts
    assert cut["read"] == 20
    assert 0 < cut["dropped"]["max_tokens"] == 20 - cut["kept"]
    server = serve(large)
    run(server.url("one.jsonl.zst"), tmp_path / "once", limit=20_000)
    assert server.sent < 1.02 * len(server.files["one.jsonl.zst"])


def test_only_files_that_may_be_reached_are_asked_where_they_can_be_cut(tmp_path: Path) -> None:
    held = io.BytesIO()
    pq.write_table(pa.table({"text": [os.urandom(2_000).hex() for _ in range(40)]}), held, row_group_size=10)
    recipes = {"all": Recipe(), "quota": Recipe(max_tokens="5000"), "limit": Recipe(limit=2)}
    asked = {}
    with running_inputs() as server:
        server.files = {f"{name}/{number:02}.parquet": held.getvalue() for name in recipes for number in range(FILES)}
        for name, recipe in recipes.items():
            plan = make_plan([server.url(f"{name}/{{00..{FILES - 1:02}}}.parquet")], recipe, limits=LIMITS)
            asked[name] = len({each.path for each in server.asked if each.sent > 1 and f"/{name}/" in each.path})
            assert {span.input for unit in plan.units for span in unit} == set(range(FILES))
    assert asked["all"] == FILES
    assert asked["quota"] in (1, 2)
    assert asked["limit"] in (1, 2)


def test_damage_beyond_what_is_read_of_a_file_is_not_met(large: Path, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl.gz").write_bytes(gzip.compress((large / "one.jsonl").read_bytes(), 1)[:-100])
    options = {"max_tokens": "15000", "on_error": "stop"}
    run(tmp_path / "one.jsonl.gz", tmp_path / "cut", **options)
    with pytest.raises(InputError, match="cut off"):
        run(tmp_path / "one.jsonl.gz", tmp_path / "all", max_tokens="1e9")
    skipped = run(tmp_path / "one.jsonl.gz", tmp_path / "skip", max_tokens="1e9", on_error="skip")
    assert sum(skipped.counts["bad"].values()) == 1


# What is kept.


@pytest.mark.parametrize("name", ["", "one.jsonl.zst"])
def test_a_larger_quota_holds_all_of_a_smaller_one(folder: Path, large: Path, tmp_path: Path, name: str) -> None:
    inputs = large / name if name else folder
    held = []
    for quota in ("3000", "16000", "1e9"):
        run(inputs, tmp_path / quota, max_tokens=quota)
        held.append(set(rows(tmp_path / quota)))
    assert all(small < greater for small, greater in pairwise(held))
    whole, bounded = run(inputs, tmp_path / "whole"), Manifest.read(tmp_path / "1e9")
    assert [shard.sha256 for shard in bounded.shards] == [shard.sha256 for shard in whole.shards]
    assert bounded.inputs == whole.inputs
    assert None in [item["sha256"] for item in Manifest.read(tmp_path / "3000").inputs]


# Rounds.


def test_more_is_read_until_what_survives_dedup_fills_the_quota(repeating: Path, tmp_path: Path) -> None:
    settings = {"max_tokens": "9000", "dedup": True, "dedup_lines": True, "shortest_passage": 5, "words_left": 5}
    settings |= {"tokenizer": "train:300", "seed": 1}
    seen: list[str] = []
    told = Told()
    first = run(repeating, tmp_path / "out", after_stage=seen.append, progress=told, **settings)
    assert seen.count("tokenize") > 1
    rounds = [[int(number.replace(",", "")) for number in re.findall(r"\b[\d,]+\b", line)] for line in told.lines]
    assert len(rounds) == seen.count("tokenize") - 1
    for done, filled, quota, more in rounds:  # an eighth more than the tokens of the first bytes promise
        assert (quota, done + more) == (9000, done * quota * 9 // (8 * filled))
    assert 7_000 < first.counts["tokens"] <= 9_000
    assert first.counts["read"] < FILES * RECORDS
    assert first.counts["repeats"]["lines"] > 0
    with pytest.raises(KeyboardInterrupt):
        run(repeating, tmp_path / "stopped", after_stage=Stop(seen.index("ingest", seen.index("tokenize"))), **settings)
    # As a kill leaves it between two rounds: what they make again is gone, what is read next is not yet written.
    for name in ("quotas.json", "round"):
        discard(tmp_path / "stopped/.build" / name)
    run(repeating, tmp_path / "stopped", **settings)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "out")


class Told(Progress):
    """Keeps what is said of quotas."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        if "max_tokens" in line:
            self.lines.append(line)


class Stop:
    """Ends a build after so many stages."""

    def __init__(self, stages: int) -> None:
        self._left = stages

    def __call__(self, name: str) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1


@pytest.mark.nightly
def test_workers_lanes_and_kills_in_any_round_change_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(as_lines(large_records(repeated=True)), 1))
    options: dict[str, Any] = {"max_tokens": "12000", "dedup": True}
    seen: list[str] = []
    units = Units()
    first = run(path, tmp_path / "whole", **options, after_stage=seen.append, progress=units)
    assert seen.count("dedup") > 1
    assert 11_000 < first.counts["tokens"] <= 12_000
    assert first.counts["read"] < LARGE
    lanes = replace(LIMITS, lane_bytes=100_000)
    run(path, tmp_path / "lanes", **options, workers=3, limits=lanes)
    assert digests(tmp_path / "lanes") == digests(tmp_path / "whole")
    done = sum(units.counts.values())
    for count in (1, done // 4, done // 4, done // 4):  # each goes on where the one before was killed
        assert killed_at(count, functools.partial(run, path, tmp_path / "out", **options)) == -signal.SIGKILL
    run(path, tmp_path / "out", **options)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


# A seed draws what is chosen of a corpus, and nothing else; what is drawn for a text depends on it, seed and purpose.


PURPOSES = ("val", "max_tokens", "samples", "tokenizer")
MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents: a quarter too short, and of every tenth a near duplicate."""
    near = {k: english(k - k % 10 if k % 10 == 1 else k, 3 if k % 4 == 2 else 20) for k in range(400)}
    texts = [text + " End." * (k % 10) for k, text in near.items()]
    return write_jsonl(tmp_path_factory.mktemp("draws") / "in.jsonl", texts)


def draw(source: Path, output: Path, **options: Any) -> Manifest:
    return run_plain(source, output, **{"rules": "gopher_quality", "val_fraction": 0.2, **options})


def ids_of(output: Path, *splits: str) -> set[str]:
    return {name for split in splits for name in table(output, split)["id"]}


@given(st.binary(min_size=16, max_size=16), st.integers(), st.sampled_from(PURPOSES))
def test_what_is_drawn_is_what_the_definition_says(digest: bytes, seed: int, purpose: str) -> None:
    key = blake2b(f"{purpose}\0{seed}".encode(), digest_size=16).digest()
    h0, h1, k0, k1 = (int.from_bytes(part[at : at + 8], "little") for part in (digest, key) for at in (0, 8))
    hashes = np.frombuffer(digest, np.uint8).reshape(1, 16)
    assert draws(hashes, seed, purpose).tolist() == [mix64(mix64(h0 ^ k0) + (h1 ^ k1) & MASK)]


def test_draws_are_uniform_and_those_of_seeds_and_purposes_independent() -> None:
    hashes = np.zeros((40_000, 16), np.uint8)
    hashes[:, :4] = np.arange(40_000, dtype="<u4").view(np.uint8).reshape(-1, 4)
    drawn = {(seed, name): draws(hashes, seed, name) < np.uint64(1 << 62) for seed in (0, 1, -1) for name in PURPOSES}
    for one, chosen in drawn.items():
        assert 0.24 < chosen.mean() < 0.26, one
        for other, held in drawn.items():
            assert one == other or 0.055 < (chosen & held).mean() < 0.07, (one, other)  # a sixteenth


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_share_draws_all_that_a_smaller_one_does(texts: list[bytes], one: float, other: float) -> None:
    hashes = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, 16)
    shares = (0.0, min(one, other), max(one, other), 1.0)
    nothing, less, more, every = (drawn(hashes, 0, "val", share) for share in shares)
    assert not nothing.any()
    assert every.all()
    assert not (less & ~more).any()
    assert less.tolist() == [int(draw) < int(min(one, other) * 2.0**64) for draw in draws(hashes, 0, "val")]


@given(
    documents=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40),
    quota=st.integers(0, 200),
)
def test_documents_fill_a_quota_in_the_order_of_their_draws(documents: list[tuple[int, int]], quota: int) -> None:
    kinds, lengths = np.array(documents, np.int64).T
    drawn = np.array([5, 6, 1 << 48, 3 << 62], np.uint64)[kinds]  # many alike
    beyond = do_not_fit(drawn, lengths, quota)
    left = quota
    for at in sorted(range(len(documents)), key=lambda k: (int(drawn[k]), k)):
        left -= int(lengths[at])
        assert beyond[at] == (left < 0)


def test_another_seed_draws_other_documents_but_the_same_duplicates(source: Path, tmp_path: Path) -> None:
    first, second = (draw(source, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    validation = [ids_of(tmp_path / name, "val") for name in "01"]
    assert validation[0] != validation[1]
    assert 20 < len(validation[0]) < 90
    for outcome in ("kept", "words"):
        assert first.counts["samples"][outcome] != second.counts["samples"][outcome]
    assert first.counts["duplicates"] == second.counts["duplicates"] != {"exact": 0, "near": 0}
    assert ids_of(tmp_path / "0", "train", "val") == ids_of(tmp_path / "1", "train", "val")
    for name in ("hashes", "signatures"):
        files = [tmp_path / seed / "signatures" / f"{name}.npy" for seed in "01"]
        assert files[0].read_bytes() == files[1].read_bytes()
    for seed in (0, 1):
        quota = str(first.counts["tokens"] // 2)
        draw(source, tmp_path / f"cut {seed}", seed=seed, max_tokens=quota, val_fraction=0)
    chosen = [ids_of(tmp_path / f"cut {seed}", "train") for seed in (0, 1)]
    assert chosen[0] != chosen[1]
    assert all(chosen)


def test_validation_depends_on_texts_alone_and_grows_with_its_share(source: Path, tmp_path: Path) -> None:
    draw(source, tmp_path / "whole", seed=5)
    draw(source, tmp_path / "shards", seed=5, tokens_per_shard=3_000, val_fraction=0.4)
    (tmp_path / "half.jsonl").write_text("".join(source.read_text().splitlines(keepends=True)[200:]))
    draw(tmp_path / "half.jsonl", tmp_path / "half", seed=5)
    assert ids_of(tmp_path / "shards", "val") > ids_of(tmp_path / "whole", "val")
    of_half = ids_of(tmp_path / "half", "train", "val")
    assert ids_of(tmp_path / "half", "val") == ids_of(tmp_path / "whole", "val") & of_half
