"""A build checks its settings, inputs and output before any work, is found complete, goes on, or refuses another's output."""

from __future__ import annotations

import errno
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.atomic import move
from pipeline.atomic_directory import result_directory
from pipeline.builder.limits import Limits
from pipeline.builder.recipe import Recipe
from pipeline.builder.setting import setting_of
from pipeline.errors import BuildError, ConfigError, InputError, PlanChangedError
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from pipeline.text.tokens.tokenizer import train_tokenizer
from tests.helpers.builds import digests, run, run_plain, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import documents, english
from tests.helpers.interruptions import Units, interrupt_after
from tests.helpers.text_samples import jsonl, sentences


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", [{"id": f"d{k}", "content": english(k)} for k in range(20)])


def build(inputs: Any, output: str | Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"text_key": "content", **options})  # type: ignore[arg-type]


def test_an_output_that_cannot_be_a_directory_here_is_refused_with_the_cure(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"in\.jsonl is a file, .*; choose"):
        build(source, source)
    with pytest.raises(BuildError, match=r"below: .*Not a directory; choose another"):
        build(source, source / "below")
    with pytest.raises(InputError, match=r"before = .*letters, digits, - and _"):
        build(f"my/web={source}", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    build(source, f"file://{tmp_path}/out")
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_wrong_text_key_is_told_the_fields_that_there_are(source: Path, tmp_path: Path) -> None:
    message = r"none of the 20 records .* line 1: no field 'text': there are 'id', 'content'; text_key \(--text-key\)"
    with pytest.raises(InputError, match=message):
        build(source, tmp_path / "out", text_key="text")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".build"]
    assert not (tmp_path / "out" / ".build" / "lock").exists()
    assert build(source, tmp_path / "out").counts["kept"] == 20
    # An empty dataset is what was asked for.
    skipped = build(source, tmp_path / "skip", text_key="text", on_error="skip")
    assert skipped.counts["bad"] == {"no field 'text'": 20}


CHANGES = [{"val_fraction": 0.2}, {"language": "de"}, {"rules": "gopher"}, {"tokenizer": "bytes"}]


@pytest.mark.parametrize("change", CHANGES)
def test_another_recipe_is_refused_with_the_difference(inputs: list[str], built: Path, change: dict[str, Any]) -> None:
    before = digests(built)
    with pytest.raises(PlanChangedError, match=next(iter(change))):
        run(inputs, built, **change)
    assert run(inputs, built).fingerprint == Manifest.read(built).fingerprint  # the same command finds it done
    assert digests(built) == before


def test_files_that_settings_name_are_held_to_what_they_held(tmp_path: Path, built: Path) -> None:
    rules, tokenizer, questions = tmp_path / "mine.toml", tmp_path / "tokenizer.json", tmp_path / "questions.txt"
    rules.write_text("words = { min = 5 }\n")
    tokenizer.write_bytes((built / "tokenizer.json").read_bytes())
    questions.write_text(english(900))
    write_jsonl(tmp_path / "in.jsonl", documents(30))

    def again(**options: Any) -> Manifest:
        settings = {"rules": str(rules), "tokenizer": str(tokenizer), "decontaminate": str(questions)}
        return run_plain(tmp_path / "in.jsonl", tmp_path / "out", **settings, **options)

    with pytest.raises(KeyboardInterrupt):
        again(after_stage=interrupt_after("tokenize"))
    (tmp_path / "out" / ".signatures.0123456789abcdef.tmp").mkdir()  # as a kill in that moment leaves it
    for path, text, said in (
        (rules, rules.read_text().replace("5", "6"), "words"),
        (tokenizer, train_tokenizer([english(1)], 300).definition, "tokenizer"),
        (questions, english(901), r"decontaminate: questions\.txt"),
    ):
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(PlanChangedError, match=said):
            again()
        path.write_text(before)
    assert again().counts["kept"] > 0
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_changed_input_is_refused_and_overwrite_begins_anew(source: Path, tmp_path: Path) -> None:
    first = build(source, tmp_path / "out")
    write_jsonl(source, [{"content": english(k)} for k in range(40)])
    with pytest.raises(PlanChangedError, match=r"in\.jsonl"):
        build(source, tmp_path / "out")
    second = build(source, tmp_path / "out", overwrite=True)
    assert second.counts["read"] == 40 > first.counts["read"]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_changed_settings_come_first_and_what_they_name_is_left_out(source: Path, tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text("words = { min = 1 }")
    build(source, tmp_path / "out", rules=str(rules))
    rules.write_text("words = { min = 2 }")
    for settings, differences in (
        ({"rules": str(rules)}, ["definitions: rules: rules: words: min: was 1.0, now 2.0"]),
        ({"rules": (), "seed": 7}, ["recipe: rules: was", "recipe: seed: was 0, now 7"]),
        ({"rules": str(rules), "seed": 7}, ["recipe: seed: was 0", "definitions: rules: rules: words: min: was 1.0"]),
    ):
        with pytest.raises(PlanChangedError) as raised:
            build(source, tmp_path / "out", **settings)
        lines = str(raised.value).split("\n")[1:-1]
        assert len(lines) == len(differences)
        assert all(line.strip().startswith(said) for line, said in zip(lines, differences, strict=True))


def test_differences_are_listed_up_to_twenty_and_cut(source: Path, tmp_path: Path) -> None:
    inputs = [str(write_jsonl(tmp_path / f"{k:02}.jsonl", [{"content": english(k)}])) for k in range(21)]
    build(inputs[:1], tmp_path / "out")
    with pytest.raises(PlanChangedError) as raised:
        build([*inputs[1:], str(source)], tmp_path / "out")
    lines = str(raised.value).split("\n")
    assert len(lines) == 1 + 20 + 1 + 1
    gone, new = lines[1:3]
    assert gone.startswith('  inputs: 00.jsonl: gone (was {"source": "", "bytes": ')
    assert new.startswith('  inputs: 01.jsonl: new ({"source": "", "bytes": ')
    assert (new[-4:], len(new)) == ("...)", len("  inputs: 01.jsonl: new ()") + 100)
    assert lines[-2] == "  ... and 3 more"
    pipeline.write_shards([[5]], tmp_path / "ids", eos_id=0, progress=Progress(quiet=True))
    with pytest.raises(BuildError, match=r"ids/manifest\.json: not made by this builder .* is missing\)"):
        build(source, tmp_path / "ids")


def test_what_others_left_is_not_mixed_with_ones_own_and_stays(source: Path, tmp_path: Path) -> None:
    for name in ("train-000007.tar", "notes"):
        (tmp_path / "out" / name).mkdir(parents=True)
        with pytest.raises(BuildError, match=rf"out/{name}: the output is not empty.*--overwrite, which removes"):
            build(source, tmp_path / "out")
    build(source, tmp_path / "out", overwrite=True)
    assert build(source, tmp_path / "out").counts["kept"] == 20
    assert not (tmp_path / "out" / "train-000007.tar").exists()
    assert (tmp_path / "out" / "notes").is_dir()


def test_a_result_that_was_discarded_in_part_is_no_dataset(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out", seed=1)
    (tmp_path / "out" / "manifest.json").unlink()  # as a kill leaves it: the manifest goes first
    with pytest.raises(BuildError, match=r"neither a dataset nor .*build to continue"):
        build(source, tmp_path / "out")
    assert build(source, tmp_path / "out", overwrite=True).split("train").documents == 20
    assert list(verify_dataset(tmp_path / "out")) == []


@pytest.mark.filterwarnings("ignore:.*the output, .* is never read")
def test_a_build_into_the_folder_of_its_input_reads_no_shard_and_goes_on(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, tmp_path / "out", after_stage=interrupt_after("write"))
    assert list(tmp_path.glob("out/*.tar"))
    manifest = build(tmp_path, tmp_path / "out")
    assert manifest.counts["read"] == 20
    with pytest.warns(UserWarning, match=r"the output, .*/out, is never read"):
        assert build(tmp_path, tmp_path / "out") == manifest
    with pytest.warns(UserWarning, match=r"1 dataset of shards left out: .*/out"):
        assert build(tmp_path, tmp_path / "two").fingerprint == manifest.fingerprint
    with pytest.raises(InputError, match="belongs to a dataset of shards"):
        build(tmp_path / "out", tmp_path / "three")


@pytest.mark.parametrize("stage", ["plan", "ingest"])
def test_another_recipe_takes_over_only_where_nothing_was_done(source: Path, tmp_path: Path, stage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(source, tmp_path / "out", after_stage=interrupt_after(stage))
    if stage == "ingest":
        with pytest.raises(PlanChangedError, match="seed: was 0, now 1"):
            build(source, tmp_path / "out", seed=1)
    else:
        manifest = build(source, tmp_path / "out", seed=1)
        assert manifest.fingerprint == build(source, tmp_path / "anew", seed=1).fingerprint


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "shard.tar"),
        OSError("1085914 requested and 188033 written"),
        OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"),
    ],
    ids=["python", "numpy", "pyarrow"],
)
def test_a_full_disk_is_named_and_the_command_goes_on(source: Path, tmp_path: Path, error: OSError) -> None:
    with pytest.raises(BuildError, match=r"out: the disk is full, .* MB are free now.* the same command: it continues"):
        build(source, tmp_path / "out", after_stage=interrupt_after("tokenize", error))
    assert build(source, tmp_path / "out").counts["kept"] == 20


def test_a_report_that_cannot_be_written_leaves_no_manifest(source: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.html"

    def stand_in_its_way(stage: str) -> None:
        if stage == "write":
            report.mkdir()

    with pytest.raises(ConfigError, match=r"report\.html is a directory, .*choose another name"):
        build(source, tmp_path / "out", after_stage=stand_in_its_way)
    assert len(list((tmp_path / "out").glob("train-*.tar"))) > 0
    assert not (tmp_path / "out" / "manifest.json").exists()
    report.rmdir()
    assert build(source, tmp_path / "out").counts["kept"] == 20
    assert list(verify_dataset(tmp_path / "out")) == []


def test_what_a_plan_counted_that_came_to_nothing_is_not_used_by_the_next(tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {k}" for k in range(600)]) for name in "ab"]
    limits = Limits(unit_bytes=20_000, smallest_unit_bytes=20_000, units_wanted=1)
    settings: dict[str, Any] = {"dedup": False, "limits": limits}

    class Stop(Units):
        def bar(self, name: str, total: int, unit: str = "units") -> Any:
            if name == "ingest":  # records are counted by now
                raise KeyboardInterrupt
            return super().bar(name, total, unit)

    with pytest.raises(KeyboardInterrupt):
        run_plain(files, tmp_path / "out", limit=1_100, progress=Stop(), **settings)
    assert run_plain(files, tmp_path / "out", limit=1_050, **settings).counts["read"] == 1_050


@pytest.mark.parametrize("given", ["in.jsonl", ".", "link.jsonl"])
@pytest.mark.parametrize("output", ["in.jsonl", "link.jsonl"])
@pytest.mark.filterwarnings("ignore:.*left out")
def test_texts_replaces_none_of_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says, given: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = jsonl(tmp_path / "in.jsonl", sentences(3)).read_bytes()
    os.symlink("in.jsonl", "link.jsonl")
    said = "it is an input, which would be replaced; choose another name"
    says(2, "texts", given, "--output", output, shows=said)
    assert sorted(os.listdir()) == ["in.jsonl", "link.jsonl"]
    assert Path("in.jsonl").read_bytes() == before


def test_texts_writes_to_links_and_regular_files(tmp_path: Path, says: Says) -> None:
    texts = str(jsonl(tmp_path / "in.jsonl", sentences(3)))
    (tmp_path / "folder").mkdir()
    link = tmp_path / "texts.parquet"
    link.symlink_to(tmp_path / "folder" / "real.parquet")
    for _ in range(2):  # the file is not there yet, then it is
        says(0, "texts", texts, "--output", link)
        assert link.is_symlink()
        assert pq.read_table(tmp_path / "folder" / "real.parquet").num_rows == 3
    os.mkfifo(tmp_path / "pipe")
    for name, kind in (("pipe", "a FIFO"), ("folder", "a directory"), ("none/x", "is not a directory; make it")):
        assert kind in says(2, "texts", texts, "--output", tmp_path / name).err
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_build_does_not_discard_the_earlier_dataset_that_it_compares_with(
    tmp_path: Path, says: Says, flags: list[str]
) -> None:
    source, output = jsonl(tmp_path / "in.jsonl", sentences(9)), tmp_path / "out"
    command = [source, "--output", output, "--tokenizer", "bytes", "--rules", "none", "--workers", "1"]
    says(0, "build", *command)
    before = digests(output)
    (tmp_path / "link").symlink_to(output)
    says(2, "build", *command, "--against", tmp_path / "link", *flags, shows="link': is in the output, ")
    assert digests(output) == before


def test_overwrite_discards_nothing_that_a_setting_names(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out")
    before = digests(tmp_path / "out")
    named = [item.name for item in fields(Recipe) if setting_of(item.metadata).named]
    assert {"against", "decontaminate", "drop_ids", "lid_model", "rules", "scores", "tokenizer"} <= set(named)
    for name in named:
        with pytest.raises(ConfigError, match=rf"{name} .*/report.html': is in the output, .*copy it elsewhere"):
            build(source, tmp_path / "out", overwrite=True, **{name: str(tmp_path / "out/report.html")})
    assert digests(tmp_path / "out") == before


def test_a_wrong_limit_is_refused_before_overwrite_discards(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out")
    before = digests(tmp_path / "out")
    rules = tmp_path / "mine.toml"
    for limit in ("inf", "-inf", "nan", "1e300", "9007199254740993.0e3", "true", '"3"'):
        rules.write_text(f"words = {{ min = {limit} }}\n")
        with pytest.raises(ConfigError, match=r"mine\.toml: rule 'words': min must be .*from -2\*\*53 to 2"):
            build(source, tmp_path / "out", overwrite=True, rules=str(rules))
    assert digests(tmp_path / "out") == before
    assert build(source, tmp_path / "out").counts["kept"] == 20


def test_a_plan_that_cannot_be_written_leaves_what_is_there(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out")
    before = digests(tmp_path / "out")
    odd = source.with_name("\udcff.jsonl")
    odd.write_bytes(source.read_bytes())
    with pytest.raises((ConfigError, InputError, UnicodeEncodeError)):
        build(odd, tmp_path / "out", overwrite=True)
    assert digests(tmp_path / "out") == before


def test_a_result_that_cannot_get_its_name_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(NotADirectoryError), result_directory(tmp_path / "file") as folder:
        (folder / "a").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        move(tmp_path / "file", tmp_path / "folder")
    assert caught.value.filename == str(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
