"""A dataset that is built into a bucket is the one that a directory gets, whatever ends the build or its requests."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import pipeline
from pipeline.cli.main import main
from pipeline.errors import BuildError, ConfigError, InputError, PlanChangedError
from pipeline.shards.manifest import OWNER_NAME
from tests.helpers.builds import contents_of, run_plain, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.faulty_bucket import credentials, kill_at_put, objects_below, run_through
from tests.helpers.interruptions import interrupt_after

SETTINGS: dict[str, Any] = {"tokens_per_shard": 8_000, "keep_texts": "parquet", "keep_signatures": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("source") / "in.jsonl", [english(k) for k in range(60)])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def local(source: Path) -> Path:
    """What a build gives in a directory, which tests leave as it is."""
    run_plain(source, source.parent / "local", **SETTINGS)
    return source.parent / "local"


@pytest.fixture(scope="module")
def expected(local: Path) -> dict[str, bytes]:
    return without_run(contents_of(local))


def without_run(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "run.json"}


@pytest.fixture
def memory() -> Iterator[str]:
    """A url in the memory of this process."""
    files = fsspec.filesystem("memory")
    yield "memory://bucket/set"
    files.rm("/bucket", recursive=True)


def held(url: str, **options: Any) -> dict[str, bytes]:
    """Return what a bucket holds below a url, but for ``run.json``."""
    return without_run(objects_below(url, **options))


def test_a_bucket_gets_what_a_directory_gets_and_nothing_is_left_here(
    source: Path, expected: dict[str, bytes], memory: str, tmp_path: Path
) -> None:
    run_plain(source, memory, **SETTINGS)
    assert held(memory) == expected
    assert os.listdir(tmp_path) == []
    run_plain(source, memory, **SETTINGS)  # complete
    with pytest.raises(PlanChangedError, match="keep_texts: gone"):
        run_plain(source, memory)
    for output, overwrite in ((memory, True), (tmp_path / "here", False)):
        run_plain(source, output, overwrite=overwrite, keep_signatures=False)
    assert held(memory).keys() == without_run(contents_of(tmp_path / "here")).keys()


@pytest.mark.parametrize("stage", ["plan", "ingest", "write"])
def test_a_build_goes_on_with_its_own_directory_and_with_no_other(
    source: Path, expected: dict[str, bytes], memory: str, tmp_path: Path, stage: str
) -> None:
    work = tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        run_plain(source, memory, **SETTINGS, work=work, after_stage=interrupt_after(stage))
    if stage == "write":
        assert not [*work.glob("*.tar"), *work.glob("texts/*")]  # each moved when it was finished
        with pytest.raises(pipeline.ShardwrightError, match="has not finished; run its command again"):
            pipeline.ShardDataset(memory)
    with pytest.raises(BuildError, match=rf"\(process {os.getpid()} on .*/work\); wait"):
        run_plain(source, memory, **SETTINGS)  # a directory of its own
    with pytest.raises(ConfigError, match=r"belongs to memory://bucket/set, not to memory://bucket/other"):
        run_plain(source, "memory://bucket/other", **SETTINGS, work=work)
    run_plain(source, memory, **SETTINGS, work=work)
    assert held(memory) == expected
    assert not work.exists()


def test_what_is_not_of_a_build_is_named_and_left(source: Path, expected: dict[str, bytes], memory: str) -> None:
    files = fsspec.filesystem("memory")
    others = {"notes.txt": b"mine", "train-000000.tar": b"foreign"}
    for name in sorted(others, reverse=True):
        files.pipe_file(f"{memory}/{name}", others[name])
        with pytest.raises(BuildError, match=rf"set/{re.escape(name)}: the output is not empty.*--overwrite"):
            run_plain(source, memory, **SETTINGS)
    assert held(memory) == others
    run_plain(source, memory, **SETTINGS, overwrite=True)
    assert held(memory) == expected | {"notes.txt": b"mine"}


def test_a_build_that_another_one_took_over_does_not_finish(source: Path, memory: str, tmp_path: Path) -> None:
    def taken(stage: str) -> None:
        if stage == "write":
            owner = json.dumps({"id": "x", "by": "me"}).encode()
            fsspec.filesystem("memory").pipe_file(f"{memory}/{OWNER_NAME}", owner)

    with pytest.raises(BuildError, match=r"another build took this output over \(me\)"):
        run_plain(source, memory, after_stage=taken)
    assert "manifest.json" not in held(memory)


def test_a_shard_that_was_removed_meanwhile_is_named(source: Path, memory: str) -> None:
    def lost(stage: str) -> None:
        if stage == "write":
            fsspec.filesystem("memory").rm_file(f"{memory}/train-000000.tar")

    with pytest.raises(BuildError, match=r"set/train-000000\.tar: no bytes, .* uploaded \d+"):
        run_plain(source, memory, after_stage=lost)


@pytest.mark.parametrize(
    ("output", "settings", "message"),
    [
        ("https://host/set", {}, "http servers take no uploads"),
        ("hf://datasets/org/name", {}, "shardwright card"),
        ("here", {"work": "there"}, "work 'there' is only for an output in a bucket"),
        ("memory://bucket/set", {"work": "LOCAL"}, "local: a dataset, but --work names the directory"),
        ("memory://bucket/set", {"against": ["memory://bucket/set"]}, "is in the output, memory://bucket/set"),
    ],
)
def test_wrong_outputs_are_refused(
    source: Path, local: Path, output: str, settings: dict[str, Any], message: str
) -> None:
    given = {name: str(local) if value == "LOCAL" else value for name, value in settings.items()}
    with pytest.raises(ConfigError, match=message):
        run_plain(source, output, **given)


def test_overwrite_removes_no_bucket_of_the_input(source: Path, expected: dict[str, bytes], memory: str) -> None:
    run_plain(source, memory, **SETTINGS)
    for spec in ("set", "set/", "set/texts", "set/texts/*.parquet", "set/texts/train-000000.parquet"):
        with pytest.raises(InputError, match=rf"bucket/{re.escape(spec)}: is in the output, {memory}.*choose another"):
            run_plain(f"memory://bucket/{spec}", memory, overwrite=True)
        assert held(memory) == expected


def test_a_folder_of_a_bucket_is_read_without_the_output_in_it(source: Path, memory: str) -> None:
    run_plain(source, memory, **SETTINGS)
    fsspec.filesystem("memory").pipe_file("memory://bucket/raw/a.jsonl", source.read_bytes())
    with pytest.warns(UserWarning, match=rf"the output, {memory}, is never read"):
        manifest = run_plain("memory://bucket", memory, overwrite=True)
    assert [item["name"] for item in manifest.inputs] == ["raw/a.jsonl"]


# A real server, processes that are killed, and faults of the way there


Bucket = Callable[..., tuple[int, str]]


@pytest.fixture
def bucket(s3: dict[str, Any], source: Path, tmp_path: Path) -> Bucket:
    """Return a function that builds into ``s3://NAME/set`` by the command, through a proxy that ``act`` rules."""

    def run(name: str, act: Callable[..., str] = lambda *_: "", *more: str) -> tuple[int, str]:
        command = f"build {source} --output s3://{name}/set --tokenizer bytes --rules none --keep-texts parquet"
        command += " --tokens-per-shard 8000 --val-fraction 0 --quiet --workers 1"
        return run_through(s3, act, *command.split(), *more, cwd=tmp_path)[:2]

    return run


@pytest.fixture
def store(s3: dict[str, Any]) -> Any:
    return fsspec.filesystem("s3", **s3)


def puts_of(store: Any, bucket: Bucket, name: str) -> list[str]:
    """Build undisturbed, and return the names of what was put, in order."""
    store.mkdir(name)
    seen: list[str] = []

    def note(process: Any, method: str, path: str, number: int, forward: Any) -> str:
        if method == "PUT":
            seen.append(path.partition("?")[0].partition("/set/")[2])
        return ""

    assert bucket(name, note) == (0, "")
    return seen


@pytest.mark.stacks
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.nightly)])
def test_a_kill_at_any_upload_and_a_re_run_give_the_same_bytes(
    bucket: Bucket, store: Any, s3: dict[str, Any], expected: dict[str, bytes], tmp_path: Path, kills: int
) -> None:
    puts = puts_of(store, bucket, f"plain-{kills}")
    assert held(f"s3://plain-{kills}/set", **s3) == expected
    assert (puts[0], puts[-1]) == (OWNER_NAME, "manifest.json")
    # The owner's object is put twice: that the second is refused shows that the store decides who is first.
    assert sorted(puts) == sorted([*expected, OWNER_NAME, OWNER_NAME, "run.json"])
    moments = [(at, applied) for at in range(len(puts)) for applied in (False, True)]
    for at, applied in random.Random(44).sample(moments, kills):
        name = f"killed-{kills}-{at}-{applied}".lower()
        store.mkdir(name)
        assert bucket(name, kill_at_put(at, applied))[0] == -signal.SIGKILL
        store.invalidate_cache()
        assert store.exists(f"{name}/set/manifest.json") == (applied and at == len(puts) - 1)
        assert bucket(name) == (0, "")
        assert held(f"s3://{name}/set", **s3) == expected
        assert not (tmp_path / "set.build").exists()


@pytest.mark.stacks
@pytest.mark.parametrize(
    ("fault", "each", "workers"),  # each so many requests fail
    [
        ("503", 4, 1),
        ("lost", 1, 1),
        *(pytest.param(fault, 1, 2, marks=pytest.mark.nightly) for fault in ("500", "drop")),
    ],
)
def test_a_fault_of_the_store_at_any_request_is_tried_again(
    bucket: Bucket, store: Any, s3: dict[str, Any], expected: dict[str, bytes], fault: str, each: int, workers: int
) -> None:
    name = f"faulty-{fault}"
    store.mkdir(name)
    faults: set[tuple[str, str]] = set()

    def once(process: Any, method: str, path: str, number: int, forward: Any) -> str:
        if number % each or (method == "GET" and number % 3):  # what reads is tested elsewhere
            return ""
        key = method, path.partition("?")[0]
        first = key not in faults
        faults.add(key)
        return fault if first else ""

    assert bucket(name, once, "--workers", str(workers)) == (0, "")
    assert held(f"s3://{name}/set", **s3) == expected
    assert len([path for method, path in faults if method == "PUT"]) > len(expected) // each


@pytest.mark.stacks
def test_a_store_that_refuses_is_an_error_that_names_the_url(bucket: Bucket, tmp_path: Path) -> None:
    code, errors = bucket("nowhere")
    assert code == 1
    assert "s3://nowhere/set" in errors
    assert "Traceback" not in errors


@pytest.mark.stacks
def test_uploads_that_were_cut_in_parts_are_ended(bucket: Bucket, store: Any, expected: dict[str, bytes]) -> None:
    store.mkdir("parts")
    for key in ("set/train-000000.tar", "elsewhere"):
        store.call_s3("create_multipart_upload", Bucket="parts", Key=key)
    assert bucket("parts") == (0, "")
    left = store.call_s3("list_multipart_uploads", Bucket="parts").get("Uploads", [])
    assert [upload["Key"] for upload in left] == ["elsewhere"]


@pytest.mark.stacks
@pytest.mark.parametrize("url", ["s3a://{}/set/texts/", "s3://{}/set/texts/train-000000.parquet", "s3a://{}/set/*/*"])
def test_a_bucket_is_the_same_by_each_of_its_schemes(
    source: Path, expected: dict[str, bytes], s3: dict[str, Any], store: Any, url: str
) -> None:
    name = f"same-{len(url)}"
    store.mkdir(name)
    run_plain(source, f"s3://{name}/set", **SETTINGS, storage_options=s3)
    with pytest.raises(InputError, match="is in the output"):
        run_plain(url.format(name), f"s3://{name}/set", overwrite=True, storage_options=s3)
    assert held(f"s3://{name}/set", **s3) == expected


@pytest.mark.stacks
def test_a_dataset_in_a_bucket_is_streamed_and_built_against(
    source: Path, expected: dict[str, bytes], s3: dict[str, Any], store: Any, tmp_path: Path
) -> None:
    store.mkdir("used")
    manifest = run_plain(source, "s3://used/set", **SETTINGS, storage_options=s3, workers=2)
    stream = pipeline.ShardDataset("s3://used/set", storage_options=s3, epochs=1).documents()
    assert sum(1 for _ in stream) == manifest.splits["train"].documents == 60
    more = write_jsonl(tmp_path / "more.jsonl", [*(english(k) for k in range(50, 60)), english(999)])
    second = run_plain(more, tmp_path / "second", against=["s3://used/set"], storage_options=s3)
    assert second.counts["kept"] == 1


@pytest.mark.stacks
def test_commands_say_of_a_dataset_in_a_bucket_what_they_say_of_it_here(
    source: Path, local: Path, s3: dict[str, Any], store: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    for name, value in credentials(s3["client_kwargs"]["endpoint_url"]).items():
        monkeypatch.setenv(name, value)
    type(store).clear_instance_cache()  # clients of earlier servers, which these variables named then
    store.mkdir("asked")
    run_plain(source, "s3://asked/set", **SETTINGS)

    def said(command: str, dataset: object, *more: object) -> tuple[int, str]:
        code = main([command, str(dataset), *map(str, more)])
        return code, re.sub(r"[\d.]+ s\b", "", capsys.readouterr().out.replace(str(dataset), "SET"))

    for command in (["inspect"], ["inspect", "--document", "3"], ["verify", "--quick"], ["verify"]):
        here, there = (said(command[0], dataset, *command[1:]) for dataset in (local, "s3://asked/set"))
        assert there == here
        assert here[0] == 0
    for to in ("megatron", "parquet"):
        for number, dataset in enumerate((local, "s3://asked/set")):
            assert said("export", dataset, "--to", to, "--output", tmp_path / f"{to}-{number}")[0] == 0
        assert contents_of(tmp_path / f"{to}-1") == contents_of(tmp_path / f"{to}-0")

    store.pipe_file("asked/set/train-000001.tar", b"x" * store.size("asked/set/train-000001.tar"))
    store.rm_file("asked/set/train-000002.tar")
    code, found = said("verify", "s3://asked/set")
    assert code == 1
    assert "train-000001.tar" in found
    assert "SET/train-000002.tar: the manifest names this shard, but it is not there" in found
    with pytest.raises(pipeline.ShardwrightError, match=r"s3://asked/set/train-00000[12]\.tar"):
        pipeline.export_tokens("s3://asked/set", tmp_path / "none", "megatron")
    assert not (tmp_path / "none").exists()
