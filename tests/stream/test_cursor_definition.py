"""Sequential streams of text equal their plain definition, for random corpora, ranks, workers and stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.iteration.items import make_items
from pipeline.stream.position import Topology
from pipeline.stream.sequential.text.assignment import WHOLE, EpochAssignment, FilePart
from pipeline.stream.sequential.text.block_scan import BlockScan
from pipeline.stream.state import from_state
from pipeline.stream.stream_plan import StreamPlan
from pipeline.text.storage.input_file import as_input
from tests.helpers.text_samples import write_texts
from tests.stream.sequential_oracle import EOS, Case, Tokens, batches_of, sequences_of


@st.composite
def cases(draw: Any) -> Case:
    text = st.text("ab é", max_size=12)
    kinds = st.sampled_from(["jsonl", "jsonl", "jsonl.gz", "csv", "parquet", "tar"])
    corpus = draw(st.lists(st.tuples(kinds, st.lists(text, max_size=12)), min_size=1, max_size=5))
    if not any(kind in ("jsonl", "jsonl.gz", "csv", "parquet") or texts for kind, texts in corpus):
        corpus.append(("jsonl", ["a"]))
    corpus = [(kind, texts or (["b"] if kind == "tar" else [])) for kind, texts in corpus]
    seq_len = draw(st.integers(1, 12))
    return Case(
        corpus=corpus,
        seed=draw(st.none() | st.integers(0, 3)),
        lanes_a_row=draw(st.sampled_from([1, 2, 3, 4])),
        window=draw(st.none() | st.integers(1, 30)),
        eos=draw(st.booleans()),
        modulus=draw(st.sampled_from([0, 0, 2, 3, 5])),
        kind=draw(st.sampled_from(["pack", "pack", "best_fit", "documents"])),
        seq_len=seq_len,
        stride=draw(st.integers(1, seq_len)),
        shift=draw(st.integers(1, 3)),
        rows=draw(st.sampled_from([1, 2, 3, 4, 6])),
        epochs=draw(st.none() | st.integers(1, 2)),
        take=draw(st.none() | st.integers(0, 40)),
        last=draw(st.sampled_from(["pad", "drop"])),
    )


def test_a_lane_reads_the_blocks_that_are_said_to_be_its_own() -> None:
    parts = [FilePart(number, WHOLE, 1 + number % 5) for number in range(300)]
    for groups, lanes, parts_open in ((50, 3, 2), (7, 20, 18), (1, 4, 4)):
        assignment = EpochAssignment(parts, groups, lanes, rotation=(5 << 32) + 7)
        assert len(assignment.cycle(0, 0)) == parts_open
        for part, block in product(range(300), range(9)):
            lane, cycle, round = assignment.lane_of(part, block)
            assert part in assignment.cycle(lane % groups, cycle)
            assert assignment.block(lane % groups, part, lane // groups, round) == block


def rows(batch: dict[str, Any], documents: bool) -> list[tuple[Tokens, Tokens]]:
    """Return ids and labels of the rows of a batch, without what fills them."""
    found = []
    for number, (ids, labels) in enumerate(zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)):
        if documents:
            ids = ids[: int(batch["attention_mask"][number].sum())]
        found.append((ids, [label for label in labels if label != -100]))
    return found


def check(case: Case, batch: dict[str, Any], expected: list[tuple[Tokens, Tokens]]) -> None:
    documents = case.kind == "documents"
    found = rows(batch, documents)
    assert int(batch["valid_tokens"]) == sum(len(labels) for _, labels in expected)
    for (ids, labels), (true, ahead) in zip(found, expected, strict=False):
        padding = [] if documents else [EOS] * (case.seq_len - len(true))
        assert ids == true + padding
        assert labels == ahead
    for ids, labels in found[len(expected) :]:
        assert set(ids) <= {EOS}
        assert labels == []


def items_of_worker(stream: pipeline.Stream, state: dict[str, Any], topology: Topology) -> Iterator[Any]:
    """Yield what one worker of a loader makes of a stream that goes on from a state."""
    plan = StreamPlan(stream._settings, topology.world_size)
    start = replace(from_state(state, plan, Topology(topology.rank, topology.world_size)), skip=topology.worker)
    return (item for _, item in make_items(plan, start, topology)[1])


def divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


NOTHING = r"no document was kept of|no sequence of .* has a label"


def asks(case: Case) -> bool:
    """Say whether a step is asked for, whatever there is."""
    return case.take is None or case.take >= (1 if case.last == "pad" else case.rows)


def kept_tokens(case: Case) -> int:
    texts = [text for _, texts in case.corpus for text in texts if not case.modulus or len(text) % case.modulus]
    return sum(len(text.encode()) + case.eos for text in texts)


def kept_documents(case: Case) -> int:
    """Return how many documents that hold a token are kept."""
    texts = [text for _, texts in case.corpus for text in texts if text or case.eos]
    return sum(not case.modulus or len(text) % case.modulus != 0 for text in texts)


def is_barren(case: Case, lane: int) -> bool:
    """Say whether a lane has no label in 20 epochs: the filter rejects its files whole, or their documents are too short."""
    return not any(labels for _, labels in sequences_of(replace(case, epochs=20), lane))


@settings(max_examples=25)
@given(cases(), st.data())
def test_any_sequential_stream_is_its_definition_after_any_stop(case: Case, data: Any) -> None:
    with TemporaryDirectory() as folder:
        case.files = [write_texts(Path(folder) / f"{n}.{kind}", held) for n, (kind, held) in enumerate(case.corpus)]
        steps = 2 * case.lanes_a_row + 1
        event(f"{case.kind}, {'endless' if case.epochs is None else 'bounded'}")
        if case.epochs is None and not kept_tokens(case):
            event("nothing kept")
            if case.kind != "documents" and asks(case):
                with pytest.raises(ConfigError, match=NOTHING):
                    next(iter(case.stream()))
            return
        if case.epochs is None and any(is_barren(case, lane) for lane in range(case.lanes)):
            event("few kept")
            return
        if case.epochs is not None and asks(case) and all(not any(sequences_of(case, n)) for n in range(case.lanes)):
            event("no row")
            with pytest.raises(ConfigError, match=NOTHING):
                next(iter(case.stream()))
            return
        whole = list(islice(batches_of(case), steps))
        iterator = iter(case.stream())
        for expected in whole:
            check(case, next(iterator), expected)
        if len(whole) < steps:
            assert next(iterator, None) is None
        resumes(case, whole, steps, data)


def resumes(case: Case, whole: list[Any], steps: int, data: Any) -> None:
    """Stop, on some ranks and workers, merge, and go on with others."""
    # One of several processes may keep nothing of 8 epochs, and give up, if few documents are kept.
    few = case.epochs is None and kept_documents(case) < 4 * case.lanes
    one = case.epochs is not None or case.seed is None or few
    ranks = 1 if one else data.draw(st.sampled_from(divisors(case.rows)), "ranks")
    stop = data.draw(st.integers(0, len(whole)), "steps")
    states = []
    for rank in range(ranks):
        stream = case.stream(ranks).shard(rank, ranks)
        iterator, share = iter(stream), case.rows // ranks
        for expected in whole[:stop]:
            check(case, next(iterator), expected[rank * share : (rank + 1) * share])
        states.append(json.loads(json.dumps(stream.state_dict())))
    merged = pipeline.merge_states(states)
    others = 1 if one else data.draw(st.sampled_from(divisors(case.rows)), "others")
    choices = [1, 2, 3] if case.epochs is not None else [1] if one else divisors(case.lanes_a_row)
    count, share = data.draw(st.sampled_from(choices), "workers"), case.rows // others
    for rank in range(others):
        stream = case.stream(others).shard(rank, others)
        stream.load_state_dict(merged)
        assert stream.state_dict() == merged
        workers = [iter(stream)]
        if count > 1:
            topologies = [Topology(rank, others, number, count) for number in range(count)]
            workers = [items_of_worker(stream, merged, topology) for topology in topologies]
        for step, expected in enumerate(whole[stop:]):
            check(case, next(workers[step % count]), expected[rank * share : (rank + 1) * share])
        if len(whole) < steps:
            assert [next(worker, None) for worker in workers] == [None] * count


def test_a_record_without_bytes_counts_one_more_than_its_characters(tmp_path: Path) -> None:
    texts = ["", None, "", "", "aaa", "bb", "c"]  # None is no text, and a record too
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    blocks = [block for _, block in BlockScan(as_input(tmp_path / "a.parquet"), 4, lambda number: True)]
    assert [(block.size, len(block.records)) for block in blocks] == [(4, 4), (4, 1), (5, 2)]
