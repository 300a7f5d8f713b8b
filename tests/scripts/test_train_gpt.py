"""The training script learns from any source, and goes on with the same losses after a kill, on another number of ranks."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import ConfigError, StateError
from pipeline.cli.main import main
from pipeline.shards.manifest import Manifest
from scripts import train_gpt
from tests.helpers import interpreters
from tests.helpers.faulty_server import running_server
from tests.helpers.shard_samples import EOS, write_dataset, write_documents, write_manifest
from tests.helpers.text_samples import jsonl

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts/train_gpt.py")
STEPS, SAVED, KILLED = 20, 5, 12
SIZES = "--seq-len 16 --global-batch 8 --layers 1 --heads 2 --width 32 --lr 1e-2 --device cpu --val-batches 2".split()
SIZES += ["--steps", str(STEPS), "--save-every", str(SAVED)]
# Ends itself by SIGKILL once the line of a step is written.
KILLS_ITSELF = f"""
import os, signal, sys, torch
sys.path.insert(0, {str(ROOT)!r})
from scripts import train_gpt
torch.set_num_threads(1)
class Output:
    def write(self, text):
        if text.startswith('{{"step": {KILLED},'):
            os.kill(os.getpid(), signal.SIGKILL)
    def flush(self): pass
    def isatty(self): return False
sys.stdout = Output()
train_gpt.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset ``data`` of documents that count up from anywhere, the same ids as an array, and texts that do so, too."""
    directory = tmp_path_factory.mktemp("train")
    starts = np.random.default_rng(0).integers(0, 31, size=(4, 60))
    shards = [[np.append(1 + (s + np.arange(20)) % 31, EOS).astype("<u2") for s in shard] for shard in starts]
    write_dataset(directory / "data", shards, vocab_size=32)
    np.concatenate([document for shard in shards for document in shard]).tofile(directory / "array.bin")
    for name, step in (("up", 1), ("down", -1)):
        texts = ["".join(chr(97 + (s + step * k) % 26) for k in range(40)) for s in starts.ravel().tolist()]
        jsonl(directory / f"{name}.jsonl", [f"{number} {text}" for number, text in enumerate(texts)])
    lines = [f'data = ["one={directory}/data", "two={directory}/data"]', "[weights]", "linear = true"]
    lines += ["points = [[0, {one = 1, two = 0}], [0.5, {one = 1, two = 0}], [0.8, {one = 0, two = 1}]]"]
    (directory / "scheduled.toml").write_text("\n".join(lines))
    (directory / "bodies.jsonl").write_text((directory / "up.jsonl").read_text().replace('"text"', '"body"'))
    return directory


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with running_server() as server:
        for path in (folder / "data").iterdir():
            server.files[f"data/{path.name}"] = path.read_bytes()
        yield server.url("data")


@pytest.fixture(autouse=True)
def as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, so that sums are rounded alike; the handlers of signals as they were."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads, signals = torch.get_num_threads(), (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in signals]
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for number, handler in zip(signals, handlers, strict=True):
        signal.signal(number, handler)


def records_of(output: str, key: str = "loss") -> dict[int, float]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["step"]: line[key] for line in lines if key in line}


def train(capsys: Capture, *arguments: str) -> dict[int, float]:
    assert train_gpt.main([*arguments, *SIZES]) == 0
    return records_of(capsys.readouterr().out)


SOURCES = {
    "shards": ["{0}/data"],
    "text": ["{0}/bodies.jsonl", "--text-key", "body", "--tokenizer", "bytes", "--val-share", "0.2"],
    "mix of shards": ["one={0}/data:0.7", "two={0}/data:0.3"],
    "mix of texts": ["up={0}/up.jsonl:0.7", "down={0}/down.jsonl:0.3", "--tokenizer", "bytes"],
    "scheduled mix": ["--config", "{0}/scheduled.toml"],
    "url": ["{1}"],
    "array": ["{0}/array.bin", "--dtype", "uint16", "--vocab-size", "32", "--val-share", "0"],
}
QUICK = ("shards", "scheduled mix")  # the streams of the others are resumed in tests/stream


@pytest.mark.parametrize(
    "source", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in QUICK)) for name in SOURCES]
)
def test_a_killed_run_goes_on_with_the_same_losses(
    source: str, folder: Path, url: str, tmp_path: Path, capsys: Capture
) -> None:
    what = [argument.format(folder, url) for argument in SOURCES[source]]
    whole = train(capsys, *what)
    assert list(whole) == list(range(1, STEPS + 1))
    assert whole[STEPS] < 0.9 * whole[1]
    checkpoint = ["--checkpoint", str(tmp_path / "run")]
    killed = interpreters.run("-c", KILLS_ITSELF, *what, *SIZES, *checkpoint)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    rest = train(capsys, *what, *checkpoint)
    first = KILLED // SAVED * SAVED + 1
    assert rest == {step: loss for step, loss in whole.items() if step >= first}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step-000000015.pt", "step-000000020.pt"]
    assert train(capsys, *what, *checkpoint) == {}  # a run that is done takes no step more


def wait_for_step(log: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_text().count("\n") < step:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run_ranks(ranks: int, stop_after: int | None, log: Path, *arguments: str) -> None:
    """Train on some ranks; send one of them SIGTERM after so many steps more than the log holds."""
    done = log.read_text().count("\n") if log.exists() else 0
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun does
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    processes = []
    for rank in range(ranks):
        variables = {**group, "WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        processes.append(interpreters.Interpreter(SCRIPT, *arguments, stdout=2, stderr=2, variables=variables))
    if stop_after:
        wait_for_step(log, done + stop_after)
        processes[-1].kill(signal.SIGTERM)  # all ranks end where one is told to
    assert [process.wait() for process in processes] == [0] * ranks


@pytest.mark.nightly
def test_a_run_on_text_goes_on_from_two_ranks_to_one_and_back(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    what, log = [*(argument.format(folder) for argument in SOURCES["text"]), *SIZES, "--steps", "15"], tmp_path / "log"
    assert train_gpt.main(what) == 0
    whole = records_of(capsys.readouterr().out)
    for ranks, stop_after in ((2, 3), (1, 3), (2, None)):
        flags = ["--checkpoint", str(tmp_path / "run"), "--log-file", str(log), "--accumulate", str(3 - ranks)]
        run_ranks(ranks, stop_after, log, *what, *flags)
    losses = records_of(log.read_text())
    assert list(losses) == list(range(1, 16))
    assert losses == pytest.approx(whole, abs=1e-4)


@pytest.mark.stacks  # the ranks of the test above are told by hand what torchrun tells
def test_torchrun_passes_sigterm_on_and_the_same_command_goes_on(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    what, log = [str(folder / "data")], tmp_path / "log"
    flags = ["--checkpoint", str(tmp_path / "run"), "--log-file", str(log)]
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    process = subprocess.Popen([sys.executable, *torchrun, SCRIPT, *what, *SIZES, *flags], stderr=subprocess.DEVNULL)
    wait_for_step(log, 5)
    process.terminate()
    process.wait()
    train(capsys, *what, *flags)
    losses = records_of(log.read_text())
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses == pytest.approx(train(capsys, *what), abs=1e-4)
    state = torch.load(max((tmp_path / "run").glob("*.pt")), weights_only=True)["data"]
    (tmp_path / "state.json").write_text(state)
    command = ["trace", *what, "--state", str(tmp_path / "state.json"), "--receipts", str(log), "--global-batch", "8"]
    assert main(command) == 0
    assert f"all {STEPS} steps have the logged receipt" in capsys.readouterr().out


def test_ctrl_c_ends_a_run_after_its_step_with_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ["--steps", "100000", "--checkpoint", str(tmp_path / "run"), "--log-file", str(log)]
    with (tmp_path / "err").open("w+") as err:
        process = interpreters.Interpreter(SCRIPT, folder / "data", *SIZES, *flags, stdout=2, stderr=err.fileno())
        wait_for_step(log, 3)
        process.kill(signal.SIGINT)
        assert process.wait() == 0
    last = max(records_of(log.read_text()))
    assert (tmp_path / "run" / f"step-{last:09d}.pt").exists()
    assert "the same command goes on from" in (tmp_path / "err").read_text()


def test_validation_is_on_the_split_val_and_training_on_train(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    constant = [np.append(np.full(20, 31), EOS).astype("<u2")] * 3  # which training never shows
    info = write_documents(tmp_path / "data" / "val-000000.tar", constant, 10_000)
    manifest = Manifest.read(tmp_path / "data")
    splits = {"train": manifest.split("train").shards, "val": (info,)}
    write_manifest(tmp_path / "data", splits, tokenizer=manifest.tokenizer)
    outputs = []
    for what, share in ((folder / "data", "0"), (tmp_path / "data", "0.005"), (folder / "data", "0.2")):
        assert train_gpt.main([str(what), *SIZES, "--eval-every", "10", "--val-share", share]) == 0
        outputs.append(capsys.readouterr().out)
    alone, beside, shared = map(records_of, outputs)
    assert alone == beside != shared
    without, on_split, on_share = (records_of(output, "val_loss") for output in outputs)
    assert without == {}
    assert list(on_split) == list(on_share) == [10, 20]
    assert on_split[20] > on_share[20] > 0.5 * shared[20]
    perplexity = records_of(outputs[1], "perplexity")[20]
    assert perplexity == pytest.approx(np.exp(on_split[20]), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}/data", "--global-batch", "8", "--accumulate", "3"], "--global-batch 8 must be a multiple of 3"),
        (["{0}/array.bin"], r"array\.bin: nothing says .* give their --dtype \(dtype=\), uint16"),
        (["a={0}/data", "b={0}/data"], "a mix is NAME=WHAT:WEIGHT of each, .* got a="),
        (["{0}/array.bin", "--dtype", "uint16", "--eval-every", "0"], "give --vocab-size"),
        (["{0}/array.bin", "--dtype", "uint16", "--vocab-size", "9", "--eval-every", "0"], "beyond a vocabulary of 9"),
        (["a={0}/data:1", "{0}/data"], "a mix is NAME=WHAT:WEIGHT"),
        (["{0}/data", "--config", "{0}/scheduled.toml"], r"a mix is NAME=WHAT NAME=WHAT with \[weights\]"),
        (["{0}/data", "--tokenizer", "bytes"], "leave it out"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_an_error_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises((SystemExit, ConfigError), match=message) as caught:
        train_gpt.main([*SIZES, *(argument.format(folder) for argument in arguments)])
    assert "\n" not in str(caught.value)


def test_epochs_of_shards_say_the_steps_and_those_of_text_are_read(folder: Path, capsys: Capture) -> None:
    sizes = ["--epochs", "1", "--eval-every", "0", *SIZES[:-4]]
    assert train_gpt.main([str(folder / "data"), *sizes]) == 0
    tokens = Manifest.read(folder / "data").split("train").tokens
    assert len(records_of(capsys.readouterr().out)) == -(-tokens // (16 * 8))
    assert train_gpt.main([str(folder / "up.jsonl"), *sizes]) == 0
    tokens = sum(len(json.loads(line)["text"]) + 1 for line in (folder / "up.jsonl").read_text().splitlines())
    assert len(records_of(capsys.readouterr().out)) >= tokens // (16 * 8)


def test_flags_of_a_file_are_overridden_and_a_wrong_one_is_named(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "run.toml"
    lines = [f'data = ["{folder / "data"}"]', "steps = 9", "layers = 1", "heads = 2", "width = 32", "seq-len = 16"]
    config.write_text("\n".join([*lines, "global-batch = 8", 'device = "cpu"', "eval-every = 0", ""]))
    assert train_gpt.main(["--config", str(config), "--steps", "3"]) == 0
    assert list(records_of(capsys.readouterr().out)) == [1, 2, 3]
    for line, message in (
        ("sep-len = 3", "unrecognized arguments: --sep-len=3"),
        ("compile = 3", "argument --compile: ignored explicit argument '3'"),
        ("layers = 'two'", "argument --layers: invalid int value: 'two'"),
        ("x", "run.toml"),
    ):
        config.write_text(line)
        with pytest.raises(SystemExit):
            train_gpt.main(["--config", str(config)])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("what", ["data", "up.jsonl"])
def test_a_limit_trains_on_the_first_documents_alone(folder: Path, capsys: Capture, what: str) -> None:
    sizes = [*SIZES[:-4], "--limit", "3", "--epochs", "2", "--eval-every", "0"]
    assert train_gpt.main([str(folder / what), *sizes]) == 0
    texts = [json.loads(line)["text"] for line in (folder / "up.jsonl").read_text().splitlines()[:3]]
    tokens = 3 * 21 if what == "data" else sum(len(text) + 1 for text in texts)
    assert len(records_of(capsys.readouterr().out)) == -(-2 * tokens // (16 * 8))


def test_workers_read_the_same_batches_whatever_their_number(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    data, saved = [str(folder / "data"), "--eval-every", "0"], ["--checkpoint", str(tmp_path / "run")]
    expected = train(capsys, *data)
    assert train(capsys, *data, *saved, "--num-workers", "2") == expected
    max((tmp_path / "run").glob("step-*.pt")).unlink()
    rest = train(capsys, *data, *saved, "--num-workers", "1")
    assert rest == {step: loss for step, loss in expected.items() if step > STEPS - SAVED}
    with pytest.raises(StateError, match="batches of text"):  # at once, not when the first checkpoint is due
        train_gpt.main([str(folder / "up.jsonl"), *SIZES, "--checkpoint", str(tmp_path / "x"), "--num-workers", "1"])


def test_the_log_of_a_mix_has_each_step_once_with_its_sources(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    mix, log = [f"up={folder / 'up.jsonl'}:0.7", f"down={folder / 'down.jsonl'}:0.3"], tmp_path / "log.jsonl"
    for cut in ('{"step": 21, "lo', ""):  # a line that a kill cut
        train(capsys, *mix, "--eval-every", "0", "--log-file", str(log), "--checkpoint", str(tmp_path / "run"))
        max((tmp_path / "run").glob("step-*.pt")).unlink()  # so that the run goes on from the one before
        log.write_text(log.read_text() + cut)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    sequences = [[line[f"data/source/{name}/sequences"] for name in ("up", "down")] for line in lines]
    assert [sum(of_step) for of_step in sequences] == [8 * line["step"] for line in lines]
    served = [line["data/source/up/served"] for line in lines]
    assert [up / (up + down) for up, down in sequences] == pytest.approx(served, abs=1e-4)
    for line, rows in zip(lines, np.diff(sequences, axis=0, prepend=0).tolist(), strict=True):
        own = [line.get(f"loss/{name}") for name in ("up", "down")]  # of a source that gave no row, none
        assert [loss is not None for loss in own] == [count > 0 for count in rows]
        known = sum(count * loss for count, loss in zip(rows, own, strict=True) if count)
        assert known == pytest.approx(8 * line["loss"])


def test_weights_of_a_config_change_at_shares_of_the_run(folder: Path, capsys: Capture) -> None:
    train_gpt.main(["--config", str(folder / "scheduled.toml"), *SIZES, "--eval-every", "0"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    one = [line["data/source/one/sequences"] for line in lines]
    assert one[:10] == [8 * line["step"] for line in lines[:10]]
    assert one[9] < one[15] == one[-1] < 8 * 15  # steps 17 to 20 are of the other source alone


def test_a_dry_run_says_what_a_run_would_be_and_leaves_nothing(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    flags = ["--checkpoint", str(tmp_path / "run"), *"--dry-run --stride 8 --shift 2".split()]
    assert train_gpt.main([str(folder / "data"), *SIZES, *flags]) == 0
    output = capsys.readouterr().out
    assert list(records_of(output)) == [1]
    assert 0 <= json.loads(output.splitlines()[-1])["hours"] < 1
    assert "tokens_per_step 128" in output
    assert "stride=8" in output
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_other_data_or_sizes_is_refused(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    checkpoint = ["--checkpoint", str(tmp_path / "run")]
    train(capsys, str(folder / "data"), *checkpoint)
    with pytest.raises(StateError):
        train(capsys, str(folder / "up.jsonl"), *checkpoint)
    with pytest.raises(SystemExit, match="is of --layers 1, not 2; give"):
        train_gpt.main([str(folder / "data"), *SIZES, *checkpoint, "--layers", "2"])


def test_bf16_parts_of_a_step_and_presets_train_too(folder: Path, capsys: Capture) -> None:
    whole = train(capsys, str(folder / "data"))
    parts = train(capsys, str(folder / "data"), "--accumulate", "4", "--preset", "small")
    for step, loss in whole.items():
        assert parts[step] == pytest.approx(loss, abs=1e-4)
    assert train(capsys, str(folder / "data"), "--precision", "bf16")[STEPS] == pytest.approx(whole[STEPS], abs=0.1)
