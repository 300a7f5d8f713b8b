"""``shardwright build``: flags and config files, what a user reads, and ends that are not the expected one."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.limits import Limits
from pipeline.cli.main import main, run_command
from pipeline.errors import BuildError
from pipeline.shards.manifest import Manifest
from tests.helpers import interpreters
from tests.helpers.builds import ROOT, digests, kept, run_plain
from tests.helpers.commands import Says
from tests.helpers.corpus import write_inputs
from tests.helpers.text_samples import jsonl, sentences

build_main = partial(run_command, "build")
FLAGS = ["--tokenizer", "bytes", "--rules", "gopher_quality", "--workers", "1", "--quiet"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_inputs(tmp_path_factory.mktemp("inputs"), 100)


@pytest.fixture(scope="module")
def built(inputs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "shards"
    assert build_main([*inputs, "--output", str(output), *FLAGS]) == 0
    return output


def test_a_flag_overrides_the_configuration_file_whose_settings_are_checked(
    inputs: list[str], tmp_path: Path, says: Says
) -> None:
    config = tmp_path / "build.yaml"
    config.write_text(f"inputs: [{', '.join(inputs)}]\ntokenizer: bytes\nrules: none\nval-fraction: 0.5\nworkers: 1\n")
    flags = ["--output", str(tmp_path / "out"), "--val-fraction", "0", "--quiet"]
    assert build_main(["--config", str(config), *flags]) == 0
    settings = Manifest.read(tmp_path / "out").recipe["settings"]
    assert (settings["tokenizer"], settings["rules"], settings["val_fraction"]) == ("bytes", [], 0)
    config.write_text("tokeniser: bytes\n")
    assert "did you mean 'tokenizer'" in says(2, "build", *inputs, "--output", tmp_path / "out", "--config", config).err


def test_a_dry_run_writes_nothing(inputs: list[str], tmp_path: Path, says: Says) -> None:
    said = says(0, "build", *inputs, "--output", tmp_path / "out", *FLAGS, "--dry-run").out
    assert "kept" in said
    assert "words" in said
    assert not (tmp_path / "out").exists()


def test_a_dry_run_does_not_read_the_output_that_is_in_the_input(tmp_path: Path, says: Says) -> None:
    jsonl(tmp_path / "a.jsonl", sentences(3))
    (tmp_path / "out").mkdir()
    jsonl(tmp_path / "out" / "old.jsonl", sentences(3))
    assert "1 input files" in says(0, "build", tmp_path, "--output", tmp_path / "out", *FLAGS, "--dry-run").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "no such file"),
        (["--language", "english"], "english"),
        (["--tokenizer", "train:32k"], "'train:32k': train: needs a vocabulary size in digits, as in train:32"),
        (["--tokenizer", "train:²"], "in digits"),
        (["--tokenizer", "train:32000", "--bos", "always"], "a trained tokenizer has no bos id"),
        (["--tokenizer", "train:258", "--reserve", "2"], "258 is too small: 256 bytes and 3 special tokens need 259"),
        (["--reserve", "2"], "for a tokenizer that is trained, not for bytes, whose ids are fixed; leave them out"),
        (
            ["--tokenizer", "train:300", "--special-tokens", "<|a|>,<|a|>"],
            "'<|a|>' is there already, with id 1; remove",
        ),
        (["--tokenizer", "train:300", "--special-tokens", "~"], "write at least two characters, as in <|~|>"),
        (["--tokenizer", "./nowhere.json"], "nowhere.json: no such file"),
        (["--bos", "always"], "tokenizer bytes has no bos id; use --bos never"),
        (["--max-tokens", "web=5"], "max_tokens: no source 'web'"),
        (["--lid-model", "nowhere.bin"], "nowhere.bin"),
        (["--against", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_work_is_one_clear_line_and_status_2(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = arguments if arguments[0].endswith(".jsonl") else [*inputs, *arguments]
    defaults = [flag for k in range(0, 4, 2) if FLAGS[k] not in arguments for flag in FLAGS[k : k + 2]]
    for dry in ([], ["--dry-run"]):
        status = build_main(["--output", str(tmp_path / "out"), *given, *defaults, *dry, "--quiet"])
        error = capsys.readouterr().err
        assert status == 2
        assert message in error
        assert "Traceback" not in error
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([""], "0 that were read from 1 input file (0 bytes); check the files, --limit and --max-tokens"),
        (
            ["{}"],
            "0 that were read from 1 input file (2 bytes; unreadable (no field 'text'): 1); check the files, --limit and",
        ),
        (
            ['{"text": "dropped"}'],
            "1 that were read from 1 input file: dropped by words: 1; loosen what drops most, and add",
        ),
        (
            ['{"text": "a"}\n{"text": "b"}', '{"text": 3}'],
            "2 that were read from 2 input files: dropped by words: 2; unreadable ('text' is a number, not text): 1; loosen",
        ),
    ],
)
def test_an_empty_dataset_is_status_1(tmp_path: Path, says: Says, files: list[str], said: str) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate(files):
        (tmp_path / "in" / f"{number}.jsonl").write_text(text)
    paths = [str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--on-error", "skip"]
    error = says(1, "build", *paths, "--tokenizer", "bytes", "--workers", "1").err
    assert "warning: no document was kept" in error
    assert f"\nerror: no document was kept of {said}" in error
    assert Manifest.read(tmp_path / "out").counts["kept"] == 0


HOLDS = """
import time
from pathlib import Path


def holds(document):
    folder = Path(__file__).parent
    (folder / "begun").touch()
    while (folder / "held").exists():
        time.sleep(0.01)
    return document
"""


def test_ctrl_c_says_how_many_units_are_kept_and_the_same_command_completes_the_build(
    inputs: list[str], built: Path, tmp_path: Path
) -> None:
    (tmp_path / "own_holds.py").write_text(HOLDS)
    (tmp_path / "held").touch()
    command = [str(ROOT / "scripts/build_shards.py"), *inputs, "--output", str(tmp_path / "out")]
    command += [*FLAGS, "--workers", "2", "--transforms", f"{tmp_path}/own_holds:holds"]
    with open(tmp_path / "said", "wb") as said:
        process = interpreters.Interpreter(*command, stdout=1, stderr=said.fileno(), new_session=True)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    error = (tmp_path / "said").read_bytes()
    kept_units = re.search(
        rb"interrupted: ingest: (\d+) of (\d+) units .* run the same command again to continue", error
    )
    assert kept_units
    assert b"Traceback" not in error
    (tmp_path / "held").unlink()
    assert build_main([*command[1:], "--workers", "1"]) == 0
    assert int(kept_units[1]) < int(kept_units[2])
    assert kept(tmp_path / "out") == kept(built)


def test_two_builds_share_no_directory(inputs: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pipeline.builder.work.lock import locked\n"
        "with locked(Path(sys.argv[1])): print('locked', file=open(sys.argv[2], 'w')); time.sleep(60)"
    )
    holder = interpreters.Interpreter("-c", code, tmp_path / "out/.build", tmp_path / "said", stdout=1, stderr=2)
    try:
        while not (tmp_path / "said").exists() and holder.poll() is None:
            time.sleep(0.02)
        assert build_main([*inputs, "--output", str(tmp_path / "out"), *FLAGS]) == 1
        assert f"another build or redaction works here (process {holder.pid} on" in capfd.readouterr().err
    finally:
        holder.kill()


def test_a_full_disk_leaves_no_shard_under_its_final_name(inputs: list[str], built: Path, tmp_path: Path) -> None:
    # A limit on file size stands in for a full disk: writes fail in the same place, with an OSError.
    largest = max(path.stat().st_size for path in built.glob("*.tar"))
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest - 1000}, {largest - 1000}))\n"
        "from scripts.build_shards import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = [*inputs, "--output", str(tmp_path / "out"), *FLAGS]
    failed = interpreters.run("-c", script, *arguments)
    assert failed.returncode == 1
    assert "File too large" in failed.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out" / "train-000000.tar").exists()
    assert build_main(arguments) == 0
    assert digests(tmp_path / "out") == digests(built)


def test_run_json_tells_rates_and_the_manifest_does_not(built: Path) -> None:
    run = json.loads((built / "run.json").read_text())
    assert run["documents_per_second"] > 0
    assert run["shardwright"] == pipeline.__version__
    assert datetime.fromisoformat(run["date"]).tzinfo is not None
    assert "encoder" in run
    manifest = (built / "manifest.json").read_text()
    assert not any(word in manifest for word in ("seconds", "workers", "encoder", str(ROOT)))


def test_counts_may_be_written_as_powers_of_ten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n' * 3)
    common = [str(tmp_path / "in.jsonl"), "--tokenizer", "bytes", "--rules", "none", "--workers", "1", "--quiet"]
    assert build_main([*common, "--output", str(tmp_path / "out"), "--tokens-per-shard", "1e6", "--limit", "2"]) == 0
    settings = Manifest.read(tmp_path / "out").recipe["settings"]
    assert (settings["tokens_per_shard"], settings["limit"]) == (1_000_000, 2)
    for wrong in ("1.5", "many", "inf", "nan"):
        with pytest.raises(SystemExit):
            build_main([*common, "--output", str(tmp_path / "other"), "--limit", wrong])
        said = capsys.readouterr().err
        assert f"argument --limit: invalid whole number value: '{wrong}'" in said
        assert said.count("\n") == 2


def test_the_last_lines_of_a_build_name_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], says: Says
) -> None:
    path, output = jsonl(tmp_path / "in.jsonl", sentences(30)), tmp_path / "out put"
    flags = ["--output", str(output), "--tokenizer", "bytes", "--rules", "none", "--workers", "1"]
    lines = says(0, "build", path, *flags).err.splitlines()
    assert lines[-3].startswith(f"dataset: {output} (30 documents, ")
    assert lines[-2] == f"report:  {output / 'report.html'}"
    assert lines[-1] == f"next:    shardwright verify '{output}'"
    assert main(["build", str(path), *flags]) == 0  # whose name is not that of this program
    assert capsys.readouterr().err.splitlines()[-3:] == lines[-3:]
    assert says(0, "build", path, *flags, "--quiet").err == ""


def test_bad_records_may_be_bounded_by_a_share(tmp_path: Path, says: Says) -> None:
    path = jsonl(tmp_path / "in.jsonl", sentences(96))
    path.write_text(path.read_text() + "\n{}" * 4)
    flags = [str(path), "--tokenizer", "bytes", "--rules", "none", "--workers", "1", "--quiet"]
    for number, allowed in enumerate(("0.04", "4%", "5_000")):
        assert build_main([*flags, "--output", str(tmp_path / str(number)), "--max-errors", allowed]) == 0
    message = "4 of 100 records are bad, a share of 4.00%, but --max-errors allows 3.90%"
    says(1, "build", *flags, "--output", tmp_path / "fewer", "--max-errors", "3.9%", shows=message)
    message = "max_errors must be a whole number of at least 0 or a share"
    says(2, "build", *flags, "--output", tmp_path / "fewer", "--max-errors", "-1", shows=message)


def test_a_share_of_bad_records_ends_a_build_early(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        lines = ['{"text": "to be"}\n'] * 2_000 + ["{}\n"] * (4_000 if number in (1, 2) else 400)
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines))
    limits, said = Limits(smallest_unit_bytes=20_000, unit_bytes=20_000), set()
    for workers in (1, 2):
        settings: dict[str, Any] = {"workers": workers, "limits": limits, "dedup": False, "max_errors": 0.5}
        with pytest.raises(BuildError) as error:
            run_plain(tmp_path / "in", tmp_path / str(workers), **settings)
        said.add(str(error.value))
    (message,) = said
    pattern = r"[\d,]+ of the first ([\d,]+) records are bad, a share of 5\d\.\d\d%, but --max-errors allows 50\.00%"
    pattern += r", such as 0\.jsonl: line \d+( after byte \d+)?: no field 'text'"
    match = re.match(pattern, message)
    assert match
    assert 10_000 <= int(match[1].replace(",", "")) < 15_000


@pytest.mark.parametrize("command", ["build", "try-rules"])
def test_list_rules_names_sets_limits_measures_and_cleaners(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_command(command, ["--list-rules"])
    assert not end.value.code
    out = capsys.readouterr().out
    for line in ("gopher_datatrove", "50 to 100,000", "the share of lines that begin with a bullet", "html_remnants"):
        assert line in out


def test_the_help_shows_the_flags_of_the_first_hour_and_help_all_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(flag: str) -> list[str]:
        with pytest.raises(SystemExit) as end:
            run_command("build", [flag])
        assert not end.value.code
        return re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)

    first, every = shown("--help"), shown("--help-all")
    assert {"--output", "--tokenizer", "--rules", "--set", "--help-all"} < set(first) < set(every)
    assert len(first) == 20 + len(("--help", "--help-all"))
    listed = (ROOT / "docs/build.md").read_text(encoding="utf-8").partition("## All flags")[2]
    assert {*re.findall(r"`(--[a-z-]+)`", listed), "--help"} == {*every}


def test_set_changes_one_limit_of_the_rules_and_a_later_file_does_too(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "The cat sat on the mat, and the dog sat with it."}) + "\n")
    (tmp_path / "mine.toml").write_text("words = { min = 5 }\n")
    (tmp_path / "settings.yml").write_text("rules: [gopher]\n")
    common = ["build", str(tmp_path / "in.jsonl"), *"--tokenizer bytes --val-fraction 0 --quiet --workers 1".split()]
    for number, (flags, documents) in enumerate(
        (
            ([], 0),
            (["--set", "words.min=5", "--set", "words.max=9000"], 1),
            (["--config", str(tmp_path / "settings.yml"), "--set", "words.min=5"], 1),
            (["--rules", f"gopher,{tmp_path}/mine.toml"], 1),
            (["--rules", f"gopher,{tmp_path}/mine.toml", "--set", "words.min=50"], 0),
        )
    ):
        output = tmp_path / str(number)
        assert main([*common, "--output", str(output), *flags]) == (0 if documents else 1)
        assert Manifest.read(output).counts["kept"] == documents
