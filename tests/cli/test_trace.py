"""``shardwright trace``: the documents of a step, from the dataset and a state of the run alone."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.cli.main import run_command
from tests.helpers.builds import run_plain
from tests.helpers.commands import Says
from tests.helpers.corpus import write_inputs
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.text_samples import make_texts, write_texts

trace = partial(run_command, "trace")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    write_inputs(folder / "in", 60)
    run_plain([str(folder / "in")], folder / "out", val_fraction=0.1)
    return folder / "out"


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(
    "chain",
    [
        lambda data: data.shuffle(seed=3, window=2).pack(64, stride=32),
        lambda data: data.pack(64),
        lambda data: data.shuffle(seed=1).documents(bucket=2),
        lambda data: data.shuffle(seed=1).sample(50),
    ],
)
def test_rows_are_those_of_the_run_that_saved_the_state(built: Path, tmp_path: Path, says: Says, chain: Any) -> None:
    stream = chain(pipeline.ShardDataset(built)).batch(4)
    batches = list(islice(stream, 6))
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"step": 6, "data": stream.state_dict()}))
    rows = rows_of(says(0, "trace", built, "--state", state, "--step", "5", "--global-batch", "4", "--json").out)
    assert rows == stream.trace(5)
    assert [max(span["row_end"] for span in row["documents"]) for row in rows] == [
        int((ids > -1).sum()) if "attention_mask" not in batches[5] else int(batches[5]["attention_mask"][number].sum())
        for number, ids in enumerate(batches[5]["input_ids"])
    ]


def test_a_row_is_shown_with_its_text_and_the_file_and_line_of_each_document(
    built: Path, tmp_path: Path, says: Says
) -> None:
    stream = pipeline.ShardDataset(built).shuffle(seed=3).documents().batch(4)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(stream.state_dict()))
    arguments = [str(built), "--state", str(state), "--step", "2", "--global-batch", "4", "--row", "1", "--text"]
    shown = says(0, "trace", *arguments).out
    [span] = stream.trace(2)[1]["documents"]
    origin = span["origin"]
    assert f"key {origin['key']}" in shown
    assert f"{origin['file']}:{origin['line']}" in shown
    text = says(0, "inspect", built, "--key", origin["key"]).out.split("\n\n", 1)[1]
    assert [line.partition("| ")[2] for line in shown.splitlines() if "| " in line] == text.splitlines()


def test_a_view_is_the_page_of_the_run_that_saved_the_state(built: Path, tmp_path: Path, says: Says) -> None:
    stream = pipeline.ShardDataset(built).shuffle(seed=3).pack(64, boundaries=True).batch(4)
    expected = stream.view(range(5, 15), tmp_path / "expected.html").path.read_text()
    (state := tmp_path / "state.json").write_text(json.dumps(stream.state_dict()))
    arguments = [str(built), "--state", str(state), "--step", "5", "--global-batch", "4"]
    says(0, "view", *arguments, "--boundaries", "--output", str(page := tmp_path / "page.html"))
    assert re.findall("data-step.*", page.read_text()) == re.findall("data-step.*", expected)
    assert "--steps must be 1 or more, got 0" in says(2, "view", *arguments, "--steps", "0").err
    assert "it is an input" in says(2, "view", *arguments, "--output", str(state)).err


def test_the_state_says_how_documents_were_drawn_and_upsampled_and_a_list_which_were_masked(
    tmp_path: Path, says: Says
) -> None:
    documents, scores = make_documents(40), [number / 40 for number in range(40)]
    write_dataset(tmp_path / "data", [documents], tables=[{"column:how good": scores}])
    plain = pipeline.ShardDataset(tmp_path / "data")
    good = plain.upsample("how good", [0, 1, 2, 4])
    alone, mixed = good.shuffle(seed=0).pack(32), pipeline.mix({"a": good, "b": plain}, {"a": 2, "b": 1})
    proxy = pipeline.mix({"a": plain, "b": plain}, {"a": 2, "b": 1}).proxy(1 / 2)
    parts = plain.split(val=0.3)[0].subset(1 / 3).subset(0.9).pack(32), proxy.pack(32)
    (tmp_path / "list.txt").write_text("train-000000.tar:7\n")
    masked, reason = plain.pack(32), f"listed in {tmp_path}/list.txt"
    masked = masked.without(tmp_path / "list.txt", reason=reason)
    of_mix = [f"a={tmp_path}/data", f"b={tmp_path}/data"]
    for stream, named in (
        (alone, [f"{tmp_path}/data"]),
        (mixed.pack(32), of_mix),
        (parts[0], [f"{tmp_path}/data"]),
        (parts[1], of_mix),
        (masked, [f"{tmp_path}/data", "--without", tmp_path / "list.txt"]),
    ):
        state = tmp_path / "state.json"
        state.write_text(json.dumps(stream.state_dict()))
        assert rows_of(
            says(0, "trace", *named, "--state", state, "--step", "3", "--global-batch", "4", "--json").out
        ) == stream.batch(4).trace(3)


def test_a_mix_is_named_source_by_source(built: Path, tmp_path: Path, says: Says) -> None:
    sources = {"a": pipeline.ShardDataset(built), "b": pipeline.ShardDataset(built, split=None)}
    stream = pipeline.mix(sources, weights={"a": 2, "b": 1}).shuffle(seed=0).pack(32).batch(4)
    stream.set_weights({"a": 0.5, "b": 0.5})
    state = tmp_path / "state.json"
    state.write_text(json.dumps(stream.state_dict()))
    rest = ["--state", str(state), "--step", "9", "--global-batch", "4", "--json"]
    assert rows_of(says(0, "trace", f"b={built}", f"a={built}", *rest).out) == stream.trace(9)
    for weights in (
        [(0, {"a": 2, "b": 1}), (30, {"a": 0, "b": 1})],
        pipeline.Schedule([(0, {"a": 2, "b": 1}), (7, {"a": 0, "b": 1})], unit="steps", linear=True, global_batch=4),
    ):
        scheduled = pipeline.mix(sources, weights).shuffle(seed=0).pack(32).batch(4)
        state.write_text(json.dumps(scheduled.state_dict()))
        assert rows_of(says(0, "trace", f"b={built}", f"a={built}", *rest).out) == scheduled.trace(9) != stream.trace(9)
    assert "a=DIRECTORY b=DIRECTORY" in says(2, "trace", built, *rest).err


def test_the_steps_that_contain_a_document_are_shown_on_the_ranks_of_the_run(
    built: Path, tmp_path: Path, says: Says
) -> None:
    stream = pipeline.ShardDataset(built).shuffle(seed=3).pack(64).shard(0, 2).batch(2)
    list(islice(stream, 9))
    (tmp_path / "state.json").write_text(json.dumps(stream.state_dict()))
    rest = ["--state", str(tmp_path / "state.json"), "--global-batch", "4", "--ranks", "2"]
    [first, *_] = stream.trace(4, 1)[1]["documents"]
    key = first["origin"]["key"]
    spans = rows_of(says(0, "trace", built, *rest, "--document", key, "--json").out)
    assert spans == stream.seen(key)
    assert (4, 1, 1) in [(span["step"], span["rank"], span["row"]) for span in spans]
    shown = says(0, "trace", built, *rest, "--document", key, "--steps", "5000").out.splitlines()
    assert len(shown) == len(stream.seen(key, steps=5000)) > len(spans)
    assert f"step 4, rank 1, row 1, tokens {first['row_begin']} to {first['row_end']}: {key}, tokens" in "\n".join(
        shown
    )
    message = "no step of the first 0 contains it; --steps N searches"
    says(1, "trace", built, *rest, "--document", key, "--steps", "0", shows=message)
    assert "no document 'nowhere' in" in says(2, "trace", built, *rest, "--document", "nowhere").err
    message = "--ranks 3 do not share a global batch of 4 rows equally"
    says(2, "trace", built, *rest[:3], "4", "--ranks", "3", "--document", key, shows=message)


TEXTS = make_texts(80)


@pytest.mark.parametrize(
    "make",
    [
        lambda built, texts: texts.shuffle(seed=3).pack(64),
        lambda built, texts: texts.shuffle(seed=3, window=72, lanes=36).documents(),
        lambda built, texts: texts.pack(64, best_fit=True),
        lambda built, texts: built.shuffle(seed=1).pack(64, best_fit=True),
        lambda built, texts: pipeline.mix({"a": built, "b": texts}, weights={"a": 1, "b": 2}).shuffle(seed=1).pack(64),
    ],
)
def test_rows_of_texts_and_of_best_fit_are_read_from_the_state_on(tmp_path: Path, says: Says, make: Any) -> None:
    write_texts(tmp_path / "in.jsonl", TEXTS)
    run_plain([str(tmp_path / "in.jsonl")], tmp_path / "out", tokenizer="bytes")
    texts = pipeline.TextDataset(tmp_path / "in.jsonl", tokenizer="bytes")
    stream = make(pipeline.ShardDataset(tmp_path / "out"), texts).batch(4)
    iterator = iter(stream)
    list(islice(iterator, 2))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(stream.state_dict()))
    shape = json.loads(stream.state_dict()["shape"])
    named = {"text": tmp_path / "in.jsonl", "train": tmp_path / "out"}
    both = [f"a={named['train']}", f"b={named['text']}"]
    datasets = [str(named[shape["split"]])] if shape["split"] in named else both
    rows = rows_of(says(0, "trace", *datasets, "--state", state, "--step", "5", "--json").out)
    assert rows == stream.trace(5)
    assert [row["row"] for row in rows] == [0, 1, 2, 3]
    shown = says(0, "trace", *datasets, "--state", state, "--step", "5", "--row", "1", "--text").out
    for origin in (span["origin"] for span in rows[1]["documents"]):
        where = f"in.jsonl:{origin['line']}" if "line" in origin else f"in.jsonl, byte {origin['byte']}"
        assert where in shown
    if datasets == [str(named["text"])]:
        files = [str(write_texts(tmp_path / f"{k}.jsonl", TEXTS[40 * k : 40 * k + 40])) for k in range(2)]
        two = make(None, pipeline.TextDataset(files, tokenizer="bytes")).batch(4)
        (tmp_path / "two.json").write_text(json.dumps(two.state_dict()))
        assert rows_of(
            says(0, "trace", *files, "--state", tmp_path / "two.json", "--step", "5", "--json").out
        ) == two.trace(5)
    assert "load a state of an earlier step" in says(2, "trace", *datasets, "--state", state, "--step", "1").err


def test_a_state_with_functions_is_left_to_python(tmp_path: Path, says: Says) -> None:
    path = write_texts(tmp_path / "in.jsonl", TEXTS)
    stream = pipeline.TextDataset(path, tokenizer="bytes").filter(bool, name="any").pack(8).batch(2)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(stream.state_dict()))
    assert "functions (any)" in says(2, "trace", path, "--state", state, "--step", "0").err


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ("{", 1, "not JSON"),
        ("[]", 1, "no state of a stream"),
        ('{"step": 3}', 1, "no state of a stream"),
        ('{"shape": "x"}', 1, "no state of a stream"),
        ('{"shape": "{}"}', 1, "no state of a stream"),
    ],
)
def test_a_file_that_is_no_state_is_named(
    built: Path, tmp_path: Path, says: Says, content: str, status: int, message: str
) -> None:
    state = tmp_path / "state.json"
    state.write_text(content)
    error = says(status, "trace", built, "--state", state, "--step", "0", "--global-batch", "1").err
    assert message in error
    assert str(state) in error


def test_a_state_of_another_dataset_and_a_row_that_is_not_there_are_refused(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], says: Says
) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(pipeline.ShardDataset.from_tokens(range(99)).pack(4).batch(2).state_dict()))
    assert trace([str(built), "--state", str(state), "--step", "0", "--global-batch", "2"]) != 0
    state.write_text(json.dumps(pipeline.ShardDataset(built).pack(4).batch(2).state_dict()))
    capsys.readouterr()
    message = "the state belongs to one dataset, got 2: a, b"
    says(2, "trace", "a", "b", "--state", state, "--step", "0", "--global-batch", "2", shows=message)
    assert "--global-batch is missing" in says(2, "trace", built, "--state", state, "--step", "0").err
    arguments = [str(built), "--state", str(state), "--step", "0", "--global-batch", "2", "--row", "2"]
    assert "--row 2: step 0 has the rows 0 to 1" in says(2, "trace", *arguments).err


# ``shardwright plan``: the plan of a mix of datasets on disk.


plan = partial(run_command, "plan")
POINTS = "linear = true\npoints = [[0, {web = 0.9, wiki = 0.1}], [0.5, {web = 0.9, wiki = 0.1}], [1, {web = 0.5, wiki = 0.5}]]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plan")
    write_dataset(directory / "web", [make_documents(400, seed=1)] * 4)
    write_dataset(directory / "wiki", [make_documents(40, seed=2)])
    return directory


def mixed(folder: Path, weights: object = None) -> pipeline.Stream:
    sources = {name: pipeline.ShardDataset(folder / name) for name in ("web", "wiki")}
    return pipeline.mix(sources, weights or {"web": 0.9, "wiki": 0.1}).shuffle(seed=0)  # type: ignore[arg-type]


def test_it_shows_the_plan_of_the_stream(folder: Path, says: Says) -> None:
    what = [f"web={folder}/web:0.9", f"wiki={folder}/wiki:0.1", "--tokens", "4e4"]
    for flags, stream in (
        (["--seq-len", "16"], mixed(folder).pack(16)),
        (["--rows", "documents"], mixed(folder).documents()),
        (["--rows", "best-fit", "--seq-len", "64"], mixed(folder).pack(64, best_fit=True)),
    ):
        assert says(0, "plan", *what, *flags).out == f"{stream.plan(4e4)}\n"
        assert json.loads(says(0, "plan", *what, *flags, "--json").out) == json.loads(
            json.dumps(stream.plan(4e4).to_json())
        )


def test_a_schedule_is_a_file_or_a_table_of_one(folder: Path, tmp_path: Path, says: Says) -> None:
    first, half = {"web": 0.9, "wiki": 0.1}, {"web": 0.5, "wiki": 0.5}
    schedule = pipeline.Schedule([(0, first), (0.5, first), (1, half)], unit="shares", linear=True, tokens=20_000)
    expected = f"{mixed(folder, schedule).pack(16).plan()}\n"
    flags = ["--schedule", str(tmp_path / "run.toml"), "--tokens", "20000", "--seq-len", "16"]
    for head in ("", "[weights]\n", 'steps = 9\n[weights]\nunit = "shares"\ntokens = 20000\n'):
        (tmp_path / "run.toml").write_text(head + POINTS)
        assert says(0, "plan", f"web={folder}/web", f"wiki={folder}/wiki", *flags).out == expected


def test_a_cap_is_an_error_with_weights_that_fit(folder: Path, capsys: pytest.CaptureFixture[str], says: Says) -> None:
    flags = ["--tokens", "4e4", "--seq-len", "16", "--max-epochs", "wiki=1.5"]
    assert plan([f"web={folder}/web:0.9", f"wiki={folder}/wiki:0.1", *flags]) == 2
    fit = mixed(folder).pack(16).plan(4e4, max_epochs={"wiki": 1.5}, on_cap="renormalize")
    rows = {name: int(share * 4096) for name, share in fit.weights.items()}
    assert f"give the weights that fit, {rows}" in capsys.readouterr().err
    message = f"weights that keep wiki within max_epochs: {rows}"
    says(
        0, "plan", f"web={folder}/web:0.9", f"wiki={folder}/wiki:0.1", *flags, "--on-cap", "renormalize", shows=message
    )
    given = [f"{name}={folder}/{name}:{share}" for name, share in rows.items()]
    assert plan([*given, *flags]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["web={0}/web"], "{0}/web: a source is NAME=DATASET:WEIGHT, as web=shards/web:0.9"),
        (["{0}/web", "--schedule", "{0}/run.toml"], "a source is NAME=DATASET, as web=shards/web"),
        (["web={0}/web:1", "--max-epochs", "web"], "--max-epochs web: write NAME=N, as wiki=4"),
        (["web={0}/web", "--schedule", "{0}/no.toml"], "no.toml: "),
        (["web={0}/web", "--schedule", "{0}/bad.toml"], "unexpected keyword argument 'lienar'"),
        (["web={0}/web:1", "--tokens", "0"], "tokens must be a whole number from 1 to 9e+15, as 10e9, got 0"),
        (["web={0}/web:1", "web={0}/wiki:2"], "two sources are named 'web'; give each its own name"),
    ],
)
def test_what_cannot_be_planned_is_an_error_in_one_line(
    folder: Path, says: Says, arguments: list[str], message: str
) -> None:
    (folder / "bad.toml").write_text("lienar = true\npoints = [[0, {web = 1}]]")
    err = says(2, "plan", "--tokens", "100", *(argument.format(folder) for argument in arguments)).err
    assert message.format(folder) in err
    assert err.count("\n") == 1
