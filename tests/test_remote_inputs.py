"""Inputs on web servers and on the hub are read by ranges, held to what was listed, and never say a secret."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import pipeline
from pipeline.builder.report.console import Progress
from pipeline.cli.main import run_command
from pipeline.errors import InputError, MissingObjectError, PlanChangedError, ShardwrightError, StorageError
from pipeline.shards.remote.transport import Access
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document, RecordKeys, Tally
from pipeline.text.readers.byte_stream import Source
from pipeline.text.readers.parquet import read_parquet
from pipeline.text.readers.reader import Reader, split_file
from pipeline.text.storage.hub import HubFile
from pipeline.text.storage.hub_files import card_configs, default_config, splits_by_name
from pipeline.text.storage.input_file import InputFile
from pipeline.text.storage.opening import open_input
from pipeline.text.storage.remote_file import RemoteFile, in_thread
from tests.input_server import COMMIT, InputServer, running_inputs
from tests.text_samples import KINDS, make_texts, write_texts

QUICK = Access(
    tries=6, first_delay=0.001, timeout=10, least_patience=10
)  # on a busy machine, too, a request comes once
TEXTS = make_texts(300, 5)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


@pytest.fixture
def server() -> Iterator[InputServer]:
    with running_inputs() as running:
        yield running


@pytest.fixture
def hub(server: InputServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InputServer:
    monkeypatch.setenv("HF_ENDPOINT", server.root)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


def only(url: str) -> InputFile:
    (file,) = find_inputs(url, access=QUICK)
    return file


def texts_of(file: InputFile, *span: Any) -> list[str]:
    records = list(Reader(file, *span))
    assert all(isinstance(record, Document) for record in records)
    return [record.text for record in records if isinstance(record, Document)]


def build(inputs: Any, output: Path, **settings: Any) -> Any:
    plain = {"tokenizer": "bytes", "rules": (), "val_fraction": 0, "dedup": False, "keep_signatures": False}
    return pipeline.build(inputs, output, **{"progress": Progress(quiet=True), **plain, **settings})


def shards_of(manifest: Any) -> list[str]:
    return [shard.sha256 for shard in manifest.shards]


# Reading


@pytest.mark.parametrize("kind", [*KINDS, "json", "txt"])
def test_every_format_gives_the_documents_of_a_local_file(tmp_path: Path, server: InputServer, kind: str) -> None:
    if kind == "json":
        (tmp_path / "a.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    elif kind == "txt":
        (tmp_path / "a.txt").write_text(TEXTS[0])
    else:
        write_texts(tmp_path / f"a.{kind}", TEXTS)
    server.files[f"a.{kind}"] = (tmp_path / f"a.{kind}").read_bytes()
    here, there = only(str(tmp_path / f"a.{kind}")), only(server.url(f"a.{kind}"))
    assert list(Reader(there)) == list(Reader(here))
    assert there.stored is not None
    assert there.stored.size == len(server.files[f"a.{kind}"])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_spans_of_a_remote_file_hold_each_record_once(tmp_path: Path, server: InputServer, kind: str) -> None:
    path = write_texts(tmp_path / f"a.{kind}", TEXTS)
    if kind == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=20)
    server.files[path.name] = path.read_bytes()
    file = only(server.url(path.name))
    spans = split_file(file, path.stat().st_size // 7)
    assert len(spans) > 3
    assert [text for span in spans for text in texts_of(file, span)] == TEXTS


def columns_file(rows: int, group: int) -> bytes:
    """Return a Parquet file of which the texts are a part; row groups of a MB and more."""
    noise = [os.urandom(700).hex() for _ in range(rows)]
    table = pa.table({"id": [str(n) for n in range(rows)], "junk": noise, "text": noise[::-1], "more": noise})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=group, compression="none", use_dictionary=False)
    return file.getvalue()


def test_of_a_remote_parquet_file_only_the_chunks_of_wanted_columns_are_asked_for(server: InputServer) -> None:
    data = server.files["a.parquet"] = columns_file(6000, 1000)
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    used = sum(group.column(n).total_compressed_size for group in groups for n in (0, 2)) + metadata.serialized_size
    file = only(server.url("a.parquet"))
    for span in split_file(file, len(data) // 3):
        texts_of(file, span)
    assert used < server.sent <= 1.02 * used
    assert used < len(data) / 2


def test_contiguous_bytes_are_asked_for_in_ranges_of_eight_megabytes_and_each_once(server: InputServer) -> None:
    line = json.dumps({"text": "to be or not to be " * 50}).encode() + b"\n"
    data = server.files["a.jsonl"] = line * (40_000_000 // len(line))
    file = only(server.url("a.jsonl"))
    count = sum(len(texts_of(file, span)) for span in split_file(file, 20_000_000))
    assert count == len(data) // len(line)
    sizes = [each.sent for each in server.asked if each.sent > 1]
    assert server.sent <= 1.02 * len(data)
    assert all(size >= 8_000_000 for size in sizes), sizes


def test_memory_holds_two_ranges_of_a_file_that_is_read_in_order(server: InputServer) -> None:
    server.files["a.bin"] = bytes(50_000_000)
    file = InputFile(server.url("a.bin"), "a.bin", stored=only_bin(server))
    with open_input(file) as opened:
        for _ in range(30):
            opened.read(1_000_000)
            assert isinstance(opened, RemoteFile)
            assert opened.held_bytes <= 20_000_000


def test_memory_holds_pieces_of_the_columns_of_a_long_row_group(server: InputServer) -> None:
    table = pa.table(
        {"id": [f"{n:0500}" for n in range(20_000)], "text": [os.urandom(750).hex() for _ in range(20_000)]}
    )
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=20_000, compression="none", use_dictionary=False)
    server.files["a.parquet"] = data = written.getvalue()
    held, rows = 0, 0
    with open_input(only(server.url("a.parquet")), in_order=False) as opened:
        assert isinstance(opened, RemoteFile)
        for batch in read_parquet(Source(opened), RecordKeys("text", "id", "a.parquet"), Tally()):
            held, rows = max(held, opened.held_bytes), rows + len(batch)
    assert rows == 20_000
    assert held < 36_000_000 < len(data)
    assert server.sent <= 1.02 * len(data)


def only_bin(server: InputServer) -> Any:
    from pipeline.text.storage.input_file import Credentials
    from pipeline.text.storage.ranges import describe_http

    return describe_http(server.url("a.bin"), Credentials(access=QUICK))


def test_bytes_are_right_through_every_kind_of_failure(tmp_path: Path, server: InputServer) -> None:
    path = write_texts(tmp_path / "a.jsonl.zst", TEXTS)
    server.files["a.jsonl.zst"] = path.read_bytes()
    file = only(server.url("a.jsonl.zst"))
    server.faults = ["429|Retry-After=0", "503", "cut", "500"]
    assert texts_of(file) == TEXTS


def test_a_range_that_broke_off_goes_on_where_it_stopped(server: InputServer) -> None:
    data = server.files["a.bin"] = os.urandom(4_000_000)
    file = InputFile(server.url("a.bin"), "a.bin", stored=only_bin(server))
    server.faults = ["cut", "cut"]
    with open_input(file) as opened:
        assert opened.read() == data
    assert server.sent <= len(data) + 100


def test_connections_are_kept_from_one_request_to_the_next(server: InputServer) -> None:
    for number in range(20):
        server.files[f"part-{number:02}.jsonl"] = b'{"text": "x"}\n'
    files = find_inputs(server.url("part-{00..19}.jsonl"), access=QUICK)
    asked = server.connections
    assert [texts_of(file) for file in files] == [["x"]] * 20
    assert server.connections <= asked + 1
    assert server.connections <= 17  # sixteen were asked for at once


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_redirect_takes_the_authorization_to_its_own_server_alone(server: InputServer, elsewhere: bool) -> None:
    server.files["b.jsonl"] = b'{"text": "x"}\n'
    with running_inputs() as other:
        other.files, target = server.files, other if elsewhere else server
        server.password = "PASSWORD"
        server.redirects["a.jsonl"] = target.url("b.jsonl")
        file = only(server.url("a.jsonl").replace("://", "://me:PASSWORD@"))
        assert texts_of(file) == ["x"]
        asked = [each for each in target.asked if each.path.endswith("b.jsonl")]
        assert len(asked) > 1
        assert all((each.authorization is None) == elsewhere for each in asked)


def test_a_server_that_stays_broken_is_named_with_the_last_failure(server: InputServer) -> None:
    server.files["a.jsonl"] = b'{"text": "x"}\n'
    file = only(server.url("a.jsonl"))
    server.faults = ["503"] * 9
    with pytest.raises(StorageError, match=r"a\.jsonl: could not read .* gave up after 6 tries.*503"):
        texts_of(file)


def test_an_object_that_changed_since_it_was_listed_is_refused(server: InputServer) -> None:
    server.files["a.jsonl"] = b'{"text": "x"}\n'
    file = only(server.url("a.jsonl"))
    server.files["a.jsonl"] = b'{"text": "y"}\n'
    with pytest.raises(InputError, match=r"a\.jsonl: it changed since it was listed: 14 bytes of version"):
        texts_of(file)


def test_what_a_web_server_lacks_or_cannot_do_is_said(server: InputServer) -> None:
    with pytest.raises(MissingObjectError, match=r"no\.jsonl: 404"):
        find_inputs(server.url("no.jsonl"), access=QUICK)
    for url in (server.url("*.jsonl"), server.url("folder/")):
        with pytest.raises(InputError, match="web servers cannot list"):
            find_inputs(url, access=QUICK)
    server.files["a.exe"] = b"x"
    with pytest.raises(InputError, match=r"unknown ending \(.exe\)"):
        find_inputs(server.url("a.exe"), access=QUICK)


def test_braces_name_many_objects_of_a_web_server(server: InputServer) -> None:
    for number in range(12):
        server.files[f"part-{number:02}.jsonl"] = b'{"text": "x"}\n'
    files = find_inputs("web=" + server.url("part-{00..11}.jsonl"), access=QUICK)
    assert [(file.source, file.name) for file in files] == [("web", f"part-{n:02}.jsonl") for n in range(12)]


def test_compressed_bytes_under_a_plain_name_are_refused_where_they_were_cut_by_the_name(server: InputServer) -> None:
    server.files["a.jsonl"] = zstandard.compress(os.urandom(20_000))
    file = only(server.url("a.jsonl"))
    spans = split_file(file, 8_000)
    assert len(spans) > 1
    with pytest.raises(InputError, match=r"compressed data under a name without \.gz, \.zst"):
        texts_of(file, spans[0])


# Builds


def test_a_build_of_urls_gives_the_shards_of_local_files_with_any_workers(tmp_path: Path, server: InputServer) -> None:
    (tmp_path / "in").mkdir()
    for kind in ("jsonl", "jsonl.gz", "parquet"):
        path = write_texts(tmp_path / "in" / f"{kind.replace('.', '')}.{kind}", TEXTS)
        server.files[path.name] = path.read_bytes()
    local = build(str(tmp_path / "in"), tmp_path / "local")
    urls = [server.url(name) for name in sorted(server.files)]
    remote = build(urls, tmp_path / "one")
    assert shards_of(remote) == shards_of(local)
    build(urls, tmp_path / "four", workers=4, start_method="fork")  # the server's threads hold nothing that workers use
    first, second = ((tmp_path / name / "manifest.json").read_bytes() for name in ("one", "four"))
    assert first == second
    assert [item["url"] for item in remote.inputs] == urls
    assert all(len(item["version"]) == 64 for item in remote.inputs)


BUILD_TWICE = """\
import shutil, sys, traceback, pipeline

def stop(stage):
    if stage == "filter":
        raise KeyboardInterrupt

if __name__ == "__main__":
    settings = {"tokenizer": "bytes", "rules": (), "keep_rejected": True, "workers": 2, "start_method": "fork"}
    for number, url in enumerate(sys.argv[2:]):
        try:
            pipeline.build(url, f"{sys.argv[1]}/{number}", after_stage=stop, **settings)
        except KeyboardInterrupt:
            traceback.print_exc()
        shutil.copytree(f"{sys.argv[1]}/{number}", f"{sys.argv[1]}/stopped {number}")
        pipeline.build(url, f"{sys.argv[1]}/{number}", **settings)
"""


def test_userinfo_queries_and_tokens_are_in_no_output_log_or_report(tmp_path: Path, server: InputServer) -> None:
    write_texts(tmp_path / "a.jsonl", TEXTS)
    server.files["a.jsonl"] = (tmp_path / "a.jsonl").read_bytes() + b"{broken\n"
    server.password = "PASSWORD"
    host = server.root.removeprefix("http://")
    plain, output = f"http://{host}/files/a.jsonl", tmp_path / "out"
    urls = [f"http://USER:PASSWORD@{host}/files/a.jsonl", f"{plain}?X-Amz-Signature=PASSWORD"]
    (tmp_path / "script.py").write_text(BUILD_TWICE)
    command = [sys.executable, str(tmp_path / "script.py"), str(output), *urls]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("KeyboardInterrupt") >= 2
    for number in range(2):
        assert (output / f"stopped {number}" / ".build" / "filter").is_dir()
        assert json.loads((output / str(number) / "manifest.json").read_text())["inputs"][0]["url"] == plain
        assert_nowhere(output / str(number), ended.stdout + ended.stderr)
        assert_nowhere(output / f"stopped {number}", "")
    server.faults = ["503"] * 99
    for url in (f"http://USER:PASSWORD@{host}/files/a.jsonl", f"{plain}?sig=PASSWORD"):
        with pytest.raises(ShardwrightError) as raised:
            find_inputs(url, access=Access(tries=2, first_delay=0.001))
        assert "PASSWORD" not in str(raised.value)
        assert "USER" not in str(raised.value)
    with pytest.raises(ShardwrightError) as raised:
        find_inputs("s3://USER:PASSWORD@bucket/a.jsonl", access=QUICK)
    assert "PASSWORD" not in str(raised.value)


def assert_nowhere(folder: Path, said: str) -> None:
    held = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(held) > 3
    for secret in (
        b"PASSWORD",
        b"USER",
        b"SECRETSIGNATURE",
        b"VVNFUjpQQVNTV09SRA",
    ):  # the last: USER:PASSWORD in base64
        assert [path for path, data in held.items() if secret in data] == []
        assert secret.decode() not in said


def test_a_dry_run_and_a_trial_of_rules_open_few_of_many_files(
    server: InputServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(200):
        server.files[f"{number:03}.jsonl"] = json.dumps({"text": f"{number} to be or not to be"}).encode() + b"\n"
    url = server.url("{000..199}.jsonl")
    for command, flags in (
        ("build", ["--dry-run", "--output", "unused", "--tokenizer", "bytes", "--max-tokens", "600"]),
        ("try-rules", []),
    ):
        server.asked.clear()
        assert run_command(command, [url, "--rules", "gopher_quality", *flags]) == 0
        opened = {each.path for each in server.asked if each.sent > 1}
        assert 10 < len(opened) <= 64
        assert {path[-9] for path in opened} == {"0", "1"}
    said = capsys.readouterr().out
    assert "of a sample of 64 records from 64 files" in said


def test_a_killed_build_of_urls_continues_and_gives_the_same_bytes(tmp_path: Path, server: InputServer) -> None:
    for number in range(4):
        path = write_texts(tmp_path / f"a{number}.jsonl", make_texts(400, number))
        server.files[path.name] = path.read_bytes()
    urls = [server.url(name) for name in sorted(server.files)]
    whole = build(urls, tmp_path / "whole")
    script = "import os, signal, sys, pipeline\n"
    script += "def kill(stage):\n    if stage == 'filter': os.kill(os.getpid(), signal.SIGKILL)\n"
    script += "pipeline.build(sys.argv[2:], sys.argv[1], tokenizer='bytes', rules=(), val_fraction=0, dedup=False, "
    script += "keep_signatures=False, after_stage=kill)\n"
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out"), *urls], capture_output=True, timeout=120, env=ENVIRONMENT
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    server.asked.clear()
    assert shards_of(build(urls, tmp_path / "out")) == shards_of(whole)
    assert all(each.sent <= 1 for each in server.asked)  # listed again, but not read


def test_a_build_goes_on_only_with_the_objects_that_it_began_with(tmp_path: Path, server: InputServer) -> None:
    server.files["a.jsonl"] = (json.dumps({"text": "x " * 100}) + "\n").encode()

    def change(stage: str) -> None:
        if stage == "plan":
            server.files["a.jsonl"] = (json.dumps({"text": "y " * 100}) + "\n").encode()

    with pytest.raises(InputError, match="it changed since it was listed"):
        build(server.url("a.jsonl"), tmp_path / "out", after_stage=change)

    def stop(stage: str) -> None:
        if stage == "filter":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(server.url("a.jsonl"), tmp_path / "other", after_stage=stop)
    server.files["a.jsonl"] = (json.dumps({"text": "z " * 100}) + "\n").encode()
    with pytest.raises(PlanChangedError, match=r"a\.jsonl: version: was "):
        build(server.url("a.jsonl"), tmp_path / "other")


# Streams


def test_a_stream_of_urls_gives_the_batches_of_local_files_and_resumes(tmp_path: Path, server: InputServer) -> None:
    for number in range(3):
        path = write_texts(tmp_path / f"a{number}.jsonl.gz", make_texts(60, number))
        server.files[path.name] = path.read_bytes()

    def stream(files: Any) -> Any:
        return pipeline.TextDataset(files, "bytes", epochs=1).shuffle(seed=1, window=30, lanes=2).pack(64).batch(2)

    names = sorted(server.files)
    local = [batch["input_ids"].tolist() for batch in stream([tmp_path / name for name in names])]
    remote = stream([server.url(name) for name in names])
    batches = iter(remote)
    first = [next(batches)["input_ids"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(remote.state_dict()))
    again = stream([server.url(name) for name in names])
    again.load_state_dict(state)
    assert first + [batch["input_ids"].tolist() for batch in again] == local


def test_a_stream_asks_for_its_first_files_together(server: InputServer, tmp_path: Path) -> None:
    names = [f"part-{number}.jsonl.gz" for number in range(3)]
    for number, name in enumerate(names):
        server.files[name] = write_texts(tmp_path / name, make_texts(60, number)).read_bytes()
    data = pipeline.TextDataset([server.url(name) for name in names], "bytes")
    server.together = {name: threading.Event() for name in names}
    first = in_thread(lambda: next(iter(data.shuffle(seed=1, lanes=8).pack(64).batch(2))), "test")
    for name, event in server.together.items():
        assert event.wait(20), f"{name} is not asked for while others are waited for"
    assert first.result()["input_ids"].shape == (2, 64)


# The hub


CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*.parquet
- config_name: sample
  data_files:
  - split: train
    path: sample/*
  - split: test
    path: held/*.jsonl
---
# A card
"""


def fill(hub: InputServer, tmp_path: Path) -> None:
    for name in ("data/CC-1/000.parquet", "data/CC-1/001.parquet", "sample/000.parquet", "held/a.jsonl"):
        path = write_texts(tmp_path / f"x.{name.rpartition('.')[2]}", [f"{name} {text}" for text in TEXTS[:20]])
        hub.files[name] = path.read_bytes()
    hub.files["README.md"] = CARD


@pytest.mark.parametrize(
    ("rest", "names"),
    [
        ("", ["data/CC-1/000.parquet", "data/CC-1/001.parquet"]),
        ("@v1", ["data/CC-1/000.parquet", "data/CC-1/001.parquet"]),
        (":sample", ["sample/000.parquet"]),
        (":sample:test", ["held/a.jsonl"]),
        ("/held", ["held/a.jsonl"]),
        ("/**/*0.parquet", ["data/CC-1/000.parquet", "sample/000.parquet"]),
        ("@main/data/CC-1/001.parquet", ["data/CC-1/001.parquet"]),
    ],
)
def test_a_dataset_of_the_hub_is_named_by_config_and_split_or_path(
    hub: InputServer, tmp_path: Path, rest: str, names: list[str]
) -> None:
    fill(hub, tmp_path)
    files = find_inputs(f"hf://datasets/org/name{rest}", access=QUICK)
    assert [file.name for file in files] == names
    for file in files:
        assert file.path == f"hf://datasets/org/name@{COMMIT}/{file.name}"
        assert texts_of(file) == [f"{file.name} {text}" for text in TEXTS[:20]]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("org/name:sampel", r"no configuration 'sampel' \(did you mean 'sample'\?\).*default, sample"),
        ("org/name:sample:tset", r"no split 'tset' \(did you mean 'test'\?\).*train, test"),
        ("org/name/dta", "no file matches"),
        ("org/name@v9", "Invalid rev id: v9; give a branch, a tag or a commit"),
        ("org/nam", "Repository not found; check the name; if the dataset is private, set HF_TOKEN"),
        ("org/name:a:b:c", "write hf://datasets/ID"),
    ],
)
def test_what_the_hub_lacks_is_said_with_its_words_and_the_cure(
    hub: InputServer, tmp_path: Path, spec: str, said: str
) -> None:
    fill(hub, tmp_path)
    with pytest.raises(ShardwrightError, match=said):
        find_inputs(f"hf://datasets/{spec}", access=QUICK)


def test_a_gated_dataset_says_so_and_opens_with_a_token_that_no_other_server_gets(
    hub: InputServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(hub, tmp_path)
    hub.gated, hub.token = True, "hf_SECRET"
    with pytest.raises(
        StorageError, match=r"Access to dataset org/name is restricted.*ask for access at .*set HF_TOKEN"
    ):
        find_inputs("hf://datasets/org/name", access=QUICK)
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    assert texts_of(find_inputs("hf://datasets/org/name", access=QUICK)[0])
    assert all(each.authorization is None for each in hub.asked if each.path.startswith("/cdn/"))
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_SECRET\n")
    assert len(find_inputs("hf://datasets/org/name", access=QUICK)) == 2
    (tmp_path / "home" / "token").write_text("hf_OTHER\n")
    (tmp_path / "elsewhere").write_text("hf_SECRET\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert len(find_inputs("hf://datasets/org/name", access=QUICK)) == 2
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match="HF_TOKEN is not set"):
        find_inputs("hf://datasets/org/name", access=QUICK)


def test_each_file_is_resolved_once_until_its_address_expires(hub: InputServer) -> None:
    hub.files["data/train-00000-of-00001.parquet"] = columns_file(6000, 500)
    file = only("hf://datasets/org/name")
    for span in split_file(file, 4_000_000):
        texts_of(file, span)
    assert hub.count("/datasets/org/name/resolve/") == 1
    assert hub.count("/cdn/") > 4
    hub.asked.clear()
    hub.files, hub.commit = {"data/train-00000-of-00001.b.parquet": columns_file(6000, 400)}, "beef" * 10
    hub.uses = 8
    file = only("hf://datasets/org/name")
    assert len(texts_of(file)) == 6000
    assert hub.count("/datasets/org/name/resolve/") > 1


def test_a_first_batch_asks_for_a_small_file_of_the_hub_twice_and_over_few_connections(
    hub: InputServer, tmp_path: Path
) -> None:
    for number in range(12):
        name = f"data/train-{number:05}-of-00012.parquet"
        hub.files[name] = write_texts(tmp_path / "x.parquet", make_texts(100, number)).read_bytes()
    data = pipeline.TextDataset("hf://datasets/org/name", "bytes")
    next(iter(data.shuffle(seed=1).pack(64).batch(2)))
    assert hub.count("/api/") == 2
    assert 0 < hub.count("/cdn/") <= 12  # all of each by one request
    assert hub.count("/datasets/") <= 12  # where it is, by another
    assert hub.connections <= 8


@pytest.mark.parametrize("kind", ["jsonl.zst", "parquet"])
def test_a_first_batch_of_many_files_asks_for_the_beginning_of_each(
    hub: InputServer, tmp_path: Path, kind: str
) -> None:
    for number in range(8):
        random = Random(number)
        texts = [random.randbytes(1_000).hex() for _ in range(3_000)]  # half a byte in each of their characters
        name = f"data/train-{number:05}-of-00008.{kind}"
        path = write_texts(tmp_path / f"x.{kind}", texts)
        if kind == "parquet":
            pq.write_table(pq.read_table(path), path, use_dictionary=False)  # in three pages
        hub.files[name] = path.read_bytes()
    data = pipeline.TextDataset("hf://datasets/org/name", "bytes")
    next(iter(data.shuffle(seed=1, lanes=16).pack(64).batch(2)))
    assert hub.count("/datasets/org/name/resolve/") == 8
    assert sum(each.sent for each in hub.asked) < 0.6 * sum(map(len, hub.files.values()))


def test_ten_thousand_files_cost_at_most_twelve_calls_of_the_api(hub: InputServer) -> None:
    for number in range(10_000):
        hub.files[f"data/{number % 7}/part-{number:05}.jsonl"] = b'{"text": "x"}\n'
    files = find_inputs("hf://datasets/org/name", access=QUICK)
    assert len(files) == 10_000
    assert hub.count("/api/") <= 12
    assert len(hub.asked) <= 12


def test_the_ranks_of_a_machine_ask_once_for_the_files_of_a_commit(hub: InputServer, tmp_path: Path) -> None:
    for number in range(2_500):
        hub.files[f"data/part-{number:05}.jsonl"] = b'{"text": "x"}\n'
    found = [find_inputs("hf://datasets/org/name", access=QUICK) for _ in range(8)]
    assert [len(files) for files in found] == [2_500] * 8
    assert hub.count("/api/") == 8 + 3
    (kept,) = (tmp_path / "kept" / "listings").glob("*.json")
    assert kept.parent.stat().st_mode & 0o077 == 0
    kept.write_bytes(kept.read_bytes()[:-9])  # as a disk that was full may leave it
    assert find_inputs("hf://datasets/org/name", access=QUICK) == found[0]
    assert hub.count("/api/") == 9 + 6


def test_the_hub_is_waited_for_as_it_asks(hub: InputServer, tmp_path: Path) -> None:
    import time

    fill(hub, tmp_path)
    file = find_inputs("hf://datasets/org/name:sample:test", access=QUICK)[0]
    hub.faults = ['429|RateLimit="resolvers";r=0;t=1']
    began = time.monotonic()
    assert len(texts_of(file)) == 20
    assert time.monotonic() - began >= 1.5


def test_a_hash_of_the_listing_is_in_the_plan_and_held_against_the_bytes(hub: InputServer, tmp_path: Path) -> None:
    hub.files["data/train.jsonl.zst"] = write_texts(tmp_path / "x.jsonl.zst", TEXTS).read_bytes()
    manifest = build("hf://datasets/org/name", tmp_path / "out")
    assert manifest.inputs[0]["sha256"] == manifest.inputs[0]["version"]
    hub.wrong_hashes, hub.commit = True, "beef" * 10
    with pytest.raises(InputError, match=r"its bytes have sha256 \w+, but the listing says"):
        build("hf://datasets/org/name", tmp_path / "wrong")


def test_another_commit_than_the_pinned_one_is_refused(hub: InputServer, tmp_path: Path) -> None:
    fill(hub, tmp_path)
    hub.files["data/CC-1/000.parquet"] = write_texts(tmp_path / "x.parquet", ["of one commit alone"]).read_bytes()
    file = find_inputs("hf://datasets/org/name", access=QUICK)[0]
    hub.files[file.name] = hub.files["sample/000.parquet"]
    with pytest.raises(InputError, match="it changed since it was listed"):
        texts_of(file)


def test_a_build_goes_on_with_its_commit_where_the_branch_has_moved_since(
    hub: InputServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files["data/train.jsonl.zst"] = write_texts(tmp_path / "x.jsonl.zst", TEXTS).read_bytes()
    whole = build("hf://datasets/org/name", tmp_path / "whole")

    def stop(stage: str) -> None:
        if stage == "filter":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build("hf://datasets/org/name", tmp_path / "out", after_stage=stop)
    hub.moved_to = "d00d" + "0" * 36
    said = f"hf://datasets/org/name@main: continued with commit {COMMIT}"
    assert shards_of(build("hf://datasets/org/name", tmp_path / "out", progress=Progress())) == shards_of(whole)
    assert said in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        build("hf://datasets/org/name@v1", tmp_path / "tag", after_stage=stop)
    for settings in ({"overwrite": True}, {}):  # started over, and another revision than at first
        hub.asked.clear()
        with pytest.raises(ShardwrightError):
            build("hf://datasets/org/name", tmp_path / "tag", **settings)
        assert hub.count(f"/api/datasets/org/name/tree/{hub.moved_to}") == 1


def test_a_build_of_the_hub_writes_no_token_and_no_signature(
    hub: InputServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(hub, tmp_path)
    hub.gated, hub.token = True, "USERPASSWORD"
    monkeypatch.setenv("HF_TOKEN", "USERPASSWORD")
    build("hf://datasets/org/name", tmp_path / "out")
    assert_nowhere(tmp_path / "out", "")


def test_without_a_card_the_names_of_files_tell_the_splits() -> None:
    def splits(*names: str) -> dict[str, list[str]]:
        files = [HubFile(name, 1, "0", "") for name in names]
        return {split: [file.path for file in found] for split, found in splits_by_name(files).items()}

    sharded = (
        "data/train-00000-of-00002-ab.parquet",
        "data/train-00001-of-00002-cd.parquet",
        "data/dev-00000-of-00001.parquet",
    )
    assert splits(*sharded, "other.jsonl") == {"train": [*sharded[:2]], "dev": [sharded[2]]}
    assert splits("a/train/x.jsonl", "a/test/x.jsonl") == {"train": ["a/train/x.jsonl"], "test": ["a/test/x.jsonl"]}
    assert splits("my_valid_0.jsonl", "my-train.jsonl") == {
        "validation": ["my_valid_0.jsonl"],
        "train": ["my-train.jsonl"],
    }
    assert splits("x.jsonl", "y/z.jsonl", "contest.jsonl") == {"train": ["x.jsonl", "y/z.jsonl", "contest.jsonl"]}


def test_a_card_names_its_default_configuration_in_three_ways() -> None:
    assert (
        default_config(card_configs("---\nconfigs:\n- config_name: a\n- config_name: b\n  default: true\n---\n")) == "b"
    )
    assert default_config(card_configs("---\nconfigs:\n- config_name: a\n- config_name: default\n---\n")) == "default"
    assert default_config(card_configs("---\nconfigs:\n- config_name: a\n---\n")) == "a"
    assert default_config(card_configs("---\nconfigs:\n- config_name: a\n- config_name: b\n---\n")) == ""
    assert card_configs("---\n: : [\n---\n") == {}
    assert card_configs("# no front matter") == {}
