"""What a user reads: progress, closing lines, hints for misspelt names, and the texts of the report."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

import pipeline
from pipeline.builder.engine.base import EngineOptions, report_progress
from pipeline.builder.engine.local import open_local
from pipeline.builder.engine.ray import check_address
from pipeline.builder.limits import Limits
from pipeline.builder.recipe import Recipe
from pipeline.builder.report.console import Progress
from pipeline.cli.main import run_command
from pipeline.errors import BuildError, ConfigError
from pipeline.text.tokenizer.tokenizer import load_tokenizer

WORDS = "the of and that with people water through between something never another house began evening light".split()


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(count)]


def jsonl(path: Path, texts: list[str]) -> Path:
    lines = "\n".join(json.dumps({"id": f"page-{k}", "text": text}) for k, text in enumerate(texts))
    path.write_bytes(zstandard.compress(lines.encode()) if path.suffix == ".zst" else lines.encode())
    return path


class Recorder(Progress):
    """Notes what every bar was told."""

    def __init__(self) -> None:
        super().__init__(quiet=False)
        self.bars: dict[str, tuple[int, list[int]]] = {}
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def bar(self, name: str, total: int, *, bytes: bool = False):  # type: ignore[no-untyped-def]
        told = self.bars.setdefault(name, (total, []))[1]
        return _Bar(told)

    def table(self, *arguments: object) -> None:
        pass


class _Bar:
    def __init__(self, told: list[int]) -> None:
        self.told = told

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self.told.append

    def __exit__(self, *exception: object) -> None:
        pass


def test_progress_counts_bytes_inside_a_single_compressed_file(tmp_path: Path) -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices("abcdefghij klmnopqrst", k=4000)) for _ in range(1500)]
    path = jsonl(tmp_path / "one.jsonl.zst", texts)
    assert path.stat().st_size > 3 << 20
    progress = Recorder()
    pipeline.build(path, tmp_path / "out", tokenizer="bytes", rules=(), dedup=False, progress=progress)
    total, told = progress.bars["filter"]
    assert sum(told) == total == path.stat().st_size
    assert sum(amount > 0 for amount in told) >= 3
    assert max(told) < total / 2


def _work(unit: int) -> int:
    for _ in range(4):
        time.sleep(0.15)
        report_progress(10)
    return unit


@pytest.mark.parametrize("workers", [1, 2])
def test_engines_pass_on_the_progress_of_units_while_they_run(workers: int) -> None:
    told: list[tuple[int, int]] = []
    with open_local(EngineOptions(workers, "fork"), None) as engine:
        engine.on_progress = lambda index, amount: told.append((index, amount))
        before_results = [len(told) for _ in engine.map(_work, [0, 1])]
    assert before_results[0] > 0
    assert {index for index, _ in told} == {0, 1}
    assert sum(amount for _, amount in told) <= 80


def test_training_a_tokenizer_tells_the_characters_it_reads_and_when_it_computes(tmp_path: Path) -> None:
    texts = sentences(400)
    progress = Recorder()
    pipeline.build(
        jsonl(tmp_path / "in.jsonl", texts),
        tmp_path / "out",
        tokenizer="train:300",
        rules=(),
        dedup=False,
        progress=progress,
    )
    total, told = progress.bars["train tokenizer"]
    assert sum(told) == total == sum(map(len, texts))
    assert "train tokenizer: all text is read; computing 300 tokens" in progress.said


def test_on_a_terminal_the_merges_of_a_tokenizer_have_a_bar_and_no_other_bar_is_drawn_over_it(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    path = jsonl(tmp_path / "in.jsonl", sentences(400))
    command = [sys.executable, "-m", "pipeline", "build", str(path), "--output", str(tmp_path / "out")]
    command += ["--tokenizer", "train:300", "--rules", "none", "--workers", "1"]
    terminal, end = pty.openpty()
    with open(os.dup(end), "w") as stderr, redirect_stderr(stderr):
        assert Progress().on_terminal
        assert not Progress(quiet=True).on_terminal
    with subprocess.Popen(command, stderr=end, env={**os.environ, "TERM": "xterm"}) as running:
        os.close(end)
        shown = bytearray()
        with suppress(OSError), open(terminal, "rb", buffering=0) as reader:  # Linux ends with EIO
            while part := reader.read(1 << 16):
                shown += part
    assert running.returncode == 0, shown.decode(errors="replace")
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace")))
    assert "train tokenizer: 300 tokens" in lines
    merges = [number for number, line in enumerate(lines) if "Compute merges" in line]
    assert merges
    bars = [number for number, line in enumerate(lines) if re.search(r"[━╸]", line)]
    assert not [number for number in bars if lines.index("train tokenizer: 300 tokens") < number < merges[-1]]


def test_the_last_lines_of_a_build_name_dataset_report_and_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = jsonl(tmp_path / "in.jsonl", sentences(30)), tmp_path / "out put"
    flags = ["--output", str(output), "--tokenizer", "bytes", "--rules", "none", "--workers", "1"]
    assert run_command("build", [str(path), *flags]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-3].startswith(f"dataset: {output} (30 documents, ")
    assert lines[-2] == f"report:  {output / 'report.html'}"
    assert lines[-1] == f"next:    shardwright verify '{output}'"
    assert run_command("build", [str(path), *flags, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_misspelt_setting_of_a_run_suggests_the_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "build.yml").write_text("worker: 2\n")
    assert run_command("build", ["in.jsonl", "--output", "out", "--config", str(tmp_path / "build.yml")]) == 1
    assert "no setting 'worker' (did you mean 'workers'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "hint"),
    [("byte", "did you mean 'bytes'?"), ("bites", "did you mean 'bytes'?"), ("train", "'train:32000'")],
)
def test_a_misspelt_tokenizer_suggests_the_name(spec: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="did you mean") as error:
        load_tokenizer(spec)
    assert hint in str(error.value)


def test_bad_records_may_be_bounded_by_a_share(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "in.jsonl", sentences(96))
    path.write_text(path.read_text() + "\n{}" * 4)
    settings = {"tokenizer": "bytes", "rules": (), "progress": Progress(quiet=True)}
    pipeline.build(path, tmp_path / "four", max_errors=0.04, **settings)
    with pytest.raises(BuildError, match=r"4 of 100 records are bad, a share of 4.00%, but --max-errors allows 3.90%"):
        pipeline.build(path, tmp_path / "fewer", max_errors=0.039, **settings)
    with pytest.raises(ConfigError, match="max_errors must be a whole number of at least 0 or a share between 0 and 1"):
        Recipe(max_errors=1.5)


def test_a_share_of_bad_records_ends_a_build_before_all_is_read_whatever_the_workers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        lines = ['{"text": "to be"}\n'] * 2_000 + ["{}\n"] * (4_000 if number in (1, 2) else 400)
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines))
    settings: dict[str, Any] = {"rules": (), "tokenizer": "bytes", "dedup": False, "max_errors": 0.5}
    settings |= {"limits": Limits(smallest_unit_bytes=20_000, unit_bytes=20_000), "start_method": "fork"}
    said = set()
    for workers in (1, 2):
        with pytest.raises(BuildError) as error:
            pipeline.build(
                tmp_path / "in",
                tmp_path / str(workers),
                workers=workers,
                progress=Progress(quiet=True),
                **settings,
            )
        said.add(str(error.value))
    (message,) = said
    found = re.match(
        r"[\d,]+ of the first ([\d,]+) records are bad, a share of 5\d\.\d\d%, but --max-errors allows 50", message
    )
    assert found
    assert 10_000 <= int(found[1].replace(",", "")) < 15_000


@pytest.mark.parametrize("value", ["0.01", "1%"])
def test_a_share_of_bad_records_is_written_as_a_fraction_or_in_percent(value: str) -> None:
    from pipeline.cli.build import make_parser

    assert make_parser().parse_args(["--max-errors", value]).max_errors == 0.01
    assert make_parser().parse_args(["--max-errors", "5_000"]).max_errors == 5000


def test_a_ray_address_where_nothing_answers_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        started = time.monotonic()
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ConfigError, match=f"--ray-address {address}: nothing answers there"):
                check_address(address)
        assert time.monotonic() - started < 5
    check_address("auto")


@contextmanager
def answering(*parts: bytes | None) -> Iterator[str]:
    """The address of a server that sends each part to whoever connects, waits where one is None, and hangs up."""
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for part in parts:
                if part is None:
                    over.wait()
                else:
                    connection.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([None], "says nothing for 0.3 s or hangs up"),
        ([b"\0", None], r"begins with b'\\x00'"),
        ([], "says nothing for 0.3 s or hangs up"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "begins with b'HTTP/1.1 '"),
    ],
)
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_ray_address_where_something_else_answers_is_refused_in_time(
    scheme: str, parts: list[bytes | None], message: str
) -> None:
    with (
        answering(*parts) as address,
        pytest.raises(ConfigError, match=rf"--ray-address {scheme}{address}: .* {message}, .*`ray start --head"),
    ):
        check_address(scheme + address, seconds=0.3)


def test_a_server_that_begins_as_ray_does_is_left_to_ray() -> None:
    with answering(b"\0\0", b"\6\4\0\0\0\0\0", b"the settings themselves") as address:
        check_address(address)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst"])
def test_a_dry_run_expects_the_tokens_that_the_build_makes(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = jsonl(tmp_path / f"in{ending}", [" ".join(sentences(15, seed)) for seed in range(3000)])
    flags = [str(path), "--output", str(tmp_path / "out"), "--tokenizer", "bytes", "--rules", "gopher_quality"]
    assert run_command("build", [*flags, "--dry-run", "--workers", "2"]) == 0
    out = capsys.readouterr().out
    tokens = float(re.search(r"tokens   about ([\d.]+) M,", out)[1]) * 1e6  # type: ignore[index]
    disk = float(re.search(r"disk     about ([\d.]+) MB for the dataset", out)[1]) * 1e6  # type: ignore[index]
    assert re.search(r"time     about \d+ (s|min) with 2 workers", out)
    assert not (tmp_path / "out").exists()
    manifest = pipeline.build(
        path, tmp_path / "out", tokenizer="bytes", rules="gopher_quality", progress=Progress(quiet=True)
    )
    made = sum(split.tokens for split in manifest.splits.values())
    written = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert tokens == pytest.approx(made, rel=0.1)
    assert disk == pytest.approx(written, rel=0.35)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    texts = [" ".join(sentences(20, seed)) for seed in range(40)]
    texts += [f"{text} And a last sentence <b>more</b>." for text in texts[:8]]
    pipeline.build(
        jsonl(folder / "in.jsonl", texts),
        folder / "out",
        tokenizer="bytes",
        rules=("gopher_quality",),
        progress=Progress(quiet=True),
    )
    return folder / "out"


def test_inspect_finds_a_document_by_its_id_and_shows_tokens_beside_their_text(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((dataset / "manifest.json").read_text())
    shown = 0
    for split in manifest["splits"]:
        for number in range(40):
            if run_command("inspect", [str(dataset), "--split", split, "--id", f"page-{number}", "--tokens"]) == 0:
                shown += 1
                out = capsys.readouterr().out
                assert f"page-{number}\n" in out
                assert "  't'\n" in out
    assert shown == manifest["counts"]["kept"]
    assert run_command("inspect", [str(dataset), "--id", "page-999"]) == 1
    assert "no id 'page-999' in split 'train'" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--document", "0"]])
def test_a_split_that_is_not_there_is_refused(
    dataset: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("inspect", [str(dataset), "--split", "trai", *flags]) == 1
    assert "no split 'trai' in this dataset (did you mean 'train'?)" in capsys.readouterr().err


def test_the_report_explains_measures_and_shows_both_texts_of_near_duplicates(dataset: Path) -> None:
    page = (dataset / "report.html").read_text()
    assert "the share of lines that begin with a bullet point or a hyphen; <b>kept: at most 0.9</b>" in page
    assert "<b>kept: 50 to 100,000</b>" in page
    near = page.partition("near duplicates</summary>")[2].partition("</details>")[0]
    pairs = near.split('<div class="pair">')[1:]
    assert pairs
    for pair in pairs:
        dropped, kept = pair.split("kept in its place")
        assert "dropped" in dropped
        assert kept.split("<pre>")[1][:200] == dropped.split("<pre>")[1][:200]


def test_an_unknown_measure_is_named_by_the_flag_that_gave_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = jsonl(tmp_path / "in.jsonl", sentences(3))
    assert run_command("try-rules", [str(path), "--measure", "word"]) == 2
    assert "unknown measure of --measure: 'word' (did you mean 'words'?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["build", "try-rules"])
def test_list_rules_names_sets_limits_measures_and_cleaners(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_command(command, ["--list-rules"])
    assert not end.value.code
    out = capsys.readouterr().out
    for line in ("gopher_datatrove", "50 to 100000", "the share of lines that begin with a bullet", "html_remnants"):
        assert line in out
    with pytest.raises(SystemExit):
        run_command(command, ["--help"])
    assert "bullet_line_ratio" in capsys.readouterr().out


def test_a_saved_tokenizer_keeps_its_chat_template_and_special_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    load_tokenizer("bytes")
    trained = pipeline.build(
        jsonl(tmp_path / "in.jsonl", sentences(50)),
        tmp_path / "out",
        tokenizer="train:300",
        rules=(),
        progress=Progress(quiet=True),
    )
    assert trained.tokenizer["vocab_size"] <= 300
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    loaded.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    loaded.chat_template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    loaded.save_pretrained(tmp_path / "hub")
    for spec in (loaded, str(tmp_path / "hub"), str(tmp_path / "hub" / "tokenizer.json")):
        folder = tmp_path / "saved"
        load_tokenizer(spec).save(folder)
        again = transformers.AutoTokenizer.from_pretrained(folder)
        assert again.chat_template == loaded.chat_template
        assert set(again.all_special_tokens) == set(loaded.all_special_tokens)
        first = (folder / "tokenizer_config.json").read_bytes()
        load_tokenizer(str(folder)).save(tmp_path / "twice")
        assert (tmp_path / "twice" / "tokenizer_config.json").read_bytes() == first
