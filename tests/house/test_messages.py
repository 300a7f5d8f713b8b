"""What a user reads: closing lines, hints for misspelt names, bad records, documents and the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.counts.progress import Progress
from pipeline.builder.limits import Limits
from pipeline.builder.recipe import Recipe
from pipeline.cli.build import make_parser
from pipeline.cli.main import run_command
from pipeline.errors import BuildError, ConfigError
from pipeline.text.tokenizer.tokenizer import load_tokenizer
from tests.text_samples import jsonl, sentences


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


@pytest.mark.parametrize(
    ("spec", "hint"),
    [("bites", "did you mean 'bytes'?"), ("train", "'train:32000'")],
)
def test_a_misspelt_tokenizer_suggests_the_name(spec: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="did you mean") as error:
        load_tokenizer(spec)
    assert hint in str(error.value)


def test_bad_records_may_be_bounded_by_a_share(tmp_path: Path) -> None:
    for value, number in (("0.01", 0.01), ("1%", 0.01), ("5_000", 5000)):
        assert make_parser().parse_args(["--max-errors", value]).max_errors == number
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
    pattern = r"[\d,]+ of the first ([\d,]+) records are bad, a share of 5\d\.\d\d%, but --max-errors allows 50"
    match = re.match(pattern, message)
    assert match
    assert 10_000 <= int(match[1].replace(",", "")) < 15_000


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
        val_fraction=0,
        progress=Progress(quiet=True),
    )
    return folder / "out"


def test_inspect_shows_the_tokens_of_a_document_by_its_id_and_names_what_is_not_there(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 39):
        assert run_command("inspect", [str(dataset), "--id", f"page-{number}", "--tokens"]) == 0
        out = capsys.readouterr().out
        assert f"page-{number}\n" in out
        assert "  't'\n" in out
    assert run_command("inspect", [str(dataset), "--id", "page-999"]) == 2
    assert "no id 'page-999' in split 'train'" in capsys.readouterr().err
    for flags in ([], ["--document", "0"]):
        assert run_command("inspect", [str(dataset), "--split", "trai", *flags]) == 2
        assert "no split 'trai' in this dataset (did you mean 'train'?)" in capsys.readouterr().err


def test_the_report_explains_measures_and_shows_both_texts_of_near_duplicates(dataset: Path) -> None:
    page = (dataset / "report.html").read_text()
    assert "the share of lines that begin with a bullet point or a hyphen; <b>kept: at most 0.9</b>" in page
    assert "<b>kept: 50 to 100,000</b>" in page
    near = page.partition("<summary>near duplicates")[2].partition("</details>")[0]
    pairs = near.split('<div class="pair">')[1:]
    assert pairs
    for pair in pairs:
        dropped, kept = pair.split("kept in its place")
        assert "dropped" in dropped
        assert kept.split("<pre>")[1][:200] == dropped.split("<pre>")[1][:200]


@pytest.mark.parametrize("command", ["build", "try-rules"])
def test_list_rules_names_sets_limits_measures_and_cleaners(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_command(command, ["--list-rules"])
    assert not end.value.code
    out = capsys.readouterr().out
    for line in ("gopher_datatrove", "50 to 100,000", "the share of lines that begin with a bullet", "html_remnants"):
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
