"""Builds and streams of URLs give what local files give, go on after a kill, and never say a secret."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.cli.main import run_command
from pipeline.daemon_threads import DaemonThreads
from pipeline.errors import InputError, PlanChangedError, ShardwrightError
from pipeline.objects.request_options import RequestOptions
from pipeline.text.discovery import find_inputs
from tests.helpers import interpreters
from tests.helpers.commands import Says
from tests.helpers.input_server import InputServer, running_inputs
from tests.helpers.interruptions import interrupt_after
from tests.helpers.remote_inputs import QUICK, TEXTS, assert_nowhere, build, shards_of
from tests.helpers.text_samples import make_texts, write_tar, write_texts


@pytest.fixture
def server() -> Iterator[InputServer]:
    with running_inputs() as running:
        yield running


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
    if stage == "ingest":
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
    ended = interpreters.run(tmp_path / "script.py", output, *urls)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("KeyboardInterrupt") >= 2
    for number in range(2):
        assert (output / f"stopped {number}" / ".build" / "ingest").is_dir()
        assert json.loads((output / str(number) / "manifest.json").read_text())["inputs"][0]["url"] == plain
        assert_nowhere(output / str(number), ended.stdout + ended.stderr)
        assert_nowhere(output / f"stopped {number}", "")
    server.faults = ["503"] * 99
    for url in (f"http://USER:PASSWORD@{host}/files/a.jsonl", f"{plain}?sig=PASSWORD"):
        with pytest.raises(ShardwrightError) as raised:
            find_inputs(url, requests=RequestOptions(tries=2, first_delay=0.001))
        assert "PASSWORD" not in str(raised.value)
        assert "USER" not in str(raised.value)
    with pytest.raises(ShardwrightError) as raised:
        find_inputs("s3://USER:PASSWORD@bucket/a.jsonl", requests=QUICK)
    assert "PASSWORD" not in str(raised.value)


def test_dry_runs_and_trials_open_few_of_many_files(server: InputServer, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_small_files_take_two_requests_each_and_are_asked_for_ahead(tmp_path: Path, server: InputServer) -> None:
    texts = [{"text": f"{number} " * 50} for number in range(12)]
    server.files = {f"{number:02}.jsonl": (json.dumps(text) + "\n").encode() for number, text in enumerate(texts)}

    def forget(stage: str) -> None:
        if stage == "plan":  # which looks at all files side by side
            server.most_waiting = 0

    for server.latency in (0.02, 0.2, 2.0):  # a busy machine asks slowly
        server.asked.clear()
        built = build(server.url("{00..11}.jsonl"), tmp_path / str(server.latency), workers=1, after_stage=forget)
        assert built.split("train").documents == len(texts)
        assert sorted(Counter(path for path, _ in server.requests).values()) == [2] * len(texts)
        if server.most_waiting >= 6:
            return
    pytest.fail(f"at most {server.most_waiting} requests wait at once")


def test_an_object_without_a_version_is_looked_at_again_when_it_was_read(tmp_path: Path, server: InputServer) -> None:
    server.files["a.jsonl"] = (json.dumps({"text": "x " * 50}) + "\n").encode()
    server.etags = False
    (item,) = build(server.url("a.jsonl"), tmp_path / "out").inputs
    assert (item["url"], item["version"], len(server.requests)) == (server.url("a.jsonl"), "", 3)


def test_a_build_of_urls_that_was_stopped_reads_nothing_again(tmp_path: Path, server: InputServer) -> None:
    for number in range(4):
        path = write_texts(tmp_path / f"a{number}.jsonl", make_texts(400, number))
        server.files[path.name] = path.read_bytes()
    urls = [server.url(name) for name in sorted(server.files)]
    whole = build(urls, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        build(urls, tmp_path / "out", after_stage=interrupt_after("ingest"))
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

    with pytest.raises(KeyboardInterrupt):
        build(server.url("a.jsonl"), tmp_path / "other", after_stage=interrupt_after("ingest"))
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
    threads = DaemonThreads(1, "test")
    first = threads.submit(lambda: next(iter(data.shuffle(seed=1, lanes=8).pack(64).batch(2))))
    for name, event in server.together.items():
        assert event.wait(50), f"{name} is not asked for while others are waited for"
    assert first.result()["input_ids"].shape == (2, 64)


@pytest.mark.parametrize(
    "kind", ["2000.parquet", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("stream.arrow", "a.tar"))]
)
def test_a_dry_run_reads_a_part_and_expects_the_tokens_of_the_whole(
    tmp_path: Path, server: InputServer, says: Says, kind: str
) -> None:
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, file = np.random.default_rng(1), io.BytesIO()
    texts = [bytes(draw.integers(97, 123, 1_000, np.uint8)).decode() for _ in range(40_000)]
    table = pa.table({"text": texts})
    if kind == "a.tar":
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[:20_000]).encode()
        members = {"part.jsonl": lines} | {f"{n}.txt": text.encode() for n, text in enumerate(texts[20_000:])}
        file.write(write_tar(tmp_path / "a.tar", members).read_bytes())
    elif kind.endswith(".parquet"):
        pq.write_table(table, file, row_group_size=2_000, use_dictionary=False)
    else:
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, 1_000)
    server.files[kind] = file.getvalue()
    flags = ["--dry-run", "--output", "unused", "--tokenizer", "bytes", "--rules", "none"]
    tokens = float(re.search(r"tokens   about ([\d.]+) M,", says(0, "build", server.url(kind), *flags).out)[1]) * 1e6  # type: ignore[index]
    assert tokens == pytest.approx(40_000 * 1_001, rel=0.1)
    assert server.sent < len(server.files[kind]) / 2
