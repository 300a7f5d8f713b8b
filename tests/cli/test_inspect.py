"""``shardwright inspect``: a dataset on one page of the terminal, and documents with their origin."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.cli.main import run_command
from tests.helpers.builds import run_plain, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import english, write_inputs
from tests.helpers.shard_samples import make_documents, scan_tar, write_dataset

inspect = partial(run_command, "inspect")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    write_inputs(folder / "in", 120)
    odd = folder / "odd.jsonl"
    odd.write_text("".join(json.dumps({"text": english(k, 5)}) + "\n" for k in range(4)) + "{broken\n")
    settings: dict[str, Any] = {"rules": "gopher_quality", "dedup_threshold": 0.7, "val_fraction": 0.1, "seed": 3}
    run_plain([f"odd={odd}", f"rest={folder / 'in'}"], folder / "out", **settings)
    return folder / "out"


def test_a_piped_page_has_100_columns_and_adds_up(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect([str(built)]) == 0
    manifest = pipeline.Manifest.read(built)
    *lines, _ = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines[1:] if not line.startswith("warning: ")) <= 100  # which stay one line

    def row(end: str) -> int:
        return next(k for k, line in enumerate(lines) if line.startswith(f"documents {end}"))

    first, last = row("read"), row("kept")
    numbers = [int(re.split(r"\s{2,}", line)[1].replace(",", "")) for line in lines[first : last + 1]]
    assert sum(numbers[:-1]) == numbers[-1] == manifest.counts["kept"]
    bad = manifest.counts["bad"]["invalid JSON"]
    for row in (
        rf"train +{manifest.splits['train'].documents:,} .*",
        r"odd +4 .*",
        r"dropped by words +-.*",
        rf"unreadable: invalid JSON +{bad} .*% *",
    ):
        assert any(re.fullmatch(row, line) for line in lines), row
    assert "\n\n\n" not in "\n".join(lines)


PAGE = """\
tokenizer bytes, 384 ids, end of text 1, stored as uint16

stage                        documents   share    tokens  left
unreadable: invalid JSON             2    0.3%
unreadable: no field 'text'          1    0.1%
documents read                     738  100.0%  ~773,816  ████████████████████
exact duplicates                   -86   11.7%  ~-89,507  ██████████████████
2 others                            -2    0.3%   ~-1,008  ██████████████████
documents kept                     650   88.1%   683,301  ██████████████████

split  documents   tokens  tokens/document  shards
train        580  609,763            1,051       5
val           70   73,538            1,051       4

1  clusters of near duplicates; by documents: 1 of 2
0.0% of the words of val are in runs of 13 words that train has; 70 of its 70 documents were
compared: 0 equal one of train, 0 have 80% of their words or more there
warning: validation holds 70 documents of 73,538 tokens: below 100 documents or 50,000 tokens its loss says little; \
raise --val-fraction

source    read  kept   tokens
s0         600   600  630,900
s1          22     0        0
s2          18     0        0
s3          17     0        0
s4          16     0        0
s5          15     0        0
s6          14    14   14,334
s7          13    13   13,813
2 others    23    23   24,254

language  read  kept   tokens
en         738   650  683,301

"""


def test_all_that_a_page_says(tmp_path: Path, says: Says) -> None:
    texts = [
        [english(n, 20) for n in range(600)],
        *([english(100 * k + n, 20) for n in range(20 - k)] for k in range(1, 10)),
    ]
    texts[1] += [english(3, 20), f"{english(4, 20)} more", "of two words"]
    inputs = [f"s{k}={write_jsonl(tmp_path / f'{k}.jsonl', some)}" for k, some in enumerate(texts)]
    with open(tmp_path / "1.jsonl", "a") as file:
        file.write("{}\n{broken\n{broken\n")
    (tmp_path / "rules.toml").write_text("words = { min = 5 }\n")
    run_plain(inputs, tmp_path / "set", rules=str(tmp_path / "rules.toml"), val_fraction=0.1, seed=1)
    name, dataset, *lines, _ = says(0, "inspect", tmp_path / "set").out.splitlines()
    size = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) / 1e6
    fingerprint = pipeline.Manifest.read(tmp_path / "set").fingerprint
    assert (name, dataset) == (f"{tmp_path}/set", f"dataset {fingerprint[:16]}; 10 input files, {size:,.1f} MB")
    assert [line.rstrip() for line in lines] == PAGE.splitlines()


def test_a_batch_is_shown_as_the_text_of_its_rows(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect([str(built), "--batch", "3", "--rows", "2", "--seq-len", "32"]) == 0
    stream = pipeline.ShardDataset(built).shuffle(seed=0).pack(32, boundaries=True).batch(2)
    stream.skip(3)
    first, second = stream.decode(next(iter(stream)))
    assert capsys.readouterr().out == f"row 0\n{first}\n\nrow 1\n{second}\n\n"


def test_the_command_that_it_shows_makes_the_same_dataset(built: Path, says: Says) -> None:
    command = shlex.split(says(0, "inspect", built).out.splitlines()[-1])
    paths = {"odd=INPUT": f"odd={built.parent}/odd.jsonl", "rest=INPUT": f"rest={built.parent}/in"}
    words = [{**paths, "DATASET": str(built.parent / "again")}.get(word, word) for word in command]
    assert run_command("build", [*words[2:], "--workers", "1", "--quiet"]) == 0
    assert pipeline.Manifest.read(built.parent / "again").fingerprint == pipeline.Manifest.read(built).fingerprint


def test_a_document_is_shown_by_number_key_or_id(built: Path, says: Says) -> None:
    assert english(0, 12)[:60] in says(0, "inspect", built, "--id", "doc-0").out.replace("\n", " ")
    shown = says(0, "inspect", built, "--document", "0").out
    for name in ("key", "id"):
        (value,) = re.findall(rf"(?m)^ +{name}: (.*)$", shown)
        assert says(0, "inspect", built, f"--{name}", value).out == shown
    assert "  't'\n" in says(0, "inspect", built, "--id", "doc-0", "--tokens").out


def test_the_text_of_a_document_is_shown_as_it_is(tmp_path: Path, says: Says) -> None:
    record = {"text": "A :smile: is [bold]no[/bold] emoji :date:", "date": ":100:"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    run_plain(tmp_path / "a.jsonl", tmp_path / "out", keep_fields="date")
    shown = says(0, "inspect", tmp_path / "out", "--document", "0").out
    assert "A :smile: is [bold]no[/bold] emoji :date:" in shown
    assert " column:date: :100:\n" in shown
    assert record["text"] in says(0, "inspect", tmp_path / "out", "--batch", "0", "--rows", "1", "--seq-len", "80").out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--key", "nothing"], "documents; keys look like 000000000040; it may be in --split val\n"),
        (["--document", "-1"], "no document -1 in split 'train' of"),
        (["--document", "999"], "no document 999 in split 'train' of"),
        (["--id", "page-999"], "documents; it may be in --split val, or have been dropped\n"),
        (["--split", "trai", "--document", "0"], "no split 'trai' in this dataset (did you mean 'train'?)"),
        (["--split", "trai"], "no split 'trai' in this dataset (did you mean 'train'?)"),
    ],
)
def test_what_is_not_there_is_named(built: Path, says: Says, flags: list[str], said: str) -> None:
    assert said in says(2, "inspect", built, *flags).err


# ``shardwright verify``: one line a problem, a summary, and exit codes that a pipeline can act on.


main = partial(run_command, "verify")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(20, seed=seed) for seed in range(3)])
    return tmp_path / "data"


def test_a_sound_dataset_ends_with_0_and_a_summary(dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--workers", "2"]) == 0
    whole = capfd.readouterr()
    assert whole.out.startswith("no problem in 0.")
    assert whole.err == ""
    assert main([str(dataset), "--quick", "--workers", "1"]) == 0
    assert "(quick)" in capfd.readouterr().out


def test_damage_ends_with_1_and_names_shard_member_and_byte(dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = dataset / "train-000001.tar"
    member = scan_tar(path)[5]
    raw = bytearray(path.read_bytes())
    raw[member.data + 128] ^= 1
    path.write_bytes(raw)
    assert main([str(dataset), "--workers", "1"]) == 1
    said = capfd.readouterr().out
    assert f"{path}, member {member.name}, byte {member.data + 128}: " in said
    assert "2 problems in" in said.splitlines()[-1]


def test_json_gives_one_object_a_problem_and_nothing_else(dataset: Path, says: Says) -> None:
    (dataset / "train-000002.tar").unlink()
    (line,) = says(1, "verify", dataset, "--json", "--workers", "1").out.splitlines()
    problem = json.loads(line)
    assert problem["shard"].endswith("train-000002.tar")
    assert set(problem) == {"shard", "member", "offset", "message"}


def test_single_shards_are_held_to_a_manifest_beside(dataset: Path, says: Says) -> None:
    first, second = dataset / "train-000000.tar", dataset / "train-000001.tar"
    assert main([f"{dataset}/train-{{000000..000002}}.tar"]) == 0
    first.write_bytes(second.read_bytes())
    assert "the manifest says" in says(1, "verify", first).out
    second.rename(dataset / "other.tar")
    assert "does not name this shard" in says(1, "verify", dataset / "other.tar").out
    (dataset / "manifest.json").write_text("{")
    said = says(1, "verify", first).out
    assert said.startswith(f"{dataset}/manifest.json: ")
    assert said.splitlines()[-1].startswith("1 problem in 0.0 MB")
    (dataset / "manifest.json").unlink()
    assert main([str(first)]) == 0
    first.write_bytes(first.read_bytes()[:-1])
    assert main([str(first)]) == 1


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Datasets of one input with and without rejected texts."""
    folder = tmp_path_factory.mktemp("why")
    texts = [english(k, 80) for k in range(3)]
    records = [{"id": name, "text": text} for name, text in zip("abc", texts, strict=True)]
    records += [
        {"id": "copy", "text": texts[0]},
        *({"id": f"short{k}", "text": english(k, 80)[: 60 + k]} for k in range(9)),
    ]
    source = write_jsonl(folder / "in.jsonl", records)
    with open(source, "a") as file:
        file.write("{broken\n")
    for name, keeps in (("all", True), ("few", False)):
        run_plain([str(source)], folder / name, rules="gopher_quality", keep_rejected=keeps)
    return {name: folder / name for name in ("all", "few")}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "a",
            r"kept: split train, train-000000.tar, document 0, key 0+, id a\ndocuments that were dropped as its duplicates: 1",
        ),
        ("000000000001", "kept: .*, id b$"),
        ("copy", r"dropped: exact duplicate of a \(.*line 1\); in.jsonl:4\n.*shardwright inspect .* --id a$"),
        ("short8", "dropped: .* < .*; in.jsonl:13$"),
        ("in.jsonl:14", "dropped: .*; in.jsonl:14$"),
    ],
)
def test_why_says_what_became_of_a_document(explained: dict[str, Path], says: Says, name: str, told: str) -> None:
    assert re.search(told, says(0, "inspect", explained["all"], "--why", name).out.strip(), re.MULTILINE)


def test_why_says_what_is_known_if_dropped_texts_were_not_kept(explained: dict[str, Path], says: Says) -> None:
    dropped = [name for name in (f"short{k}" for k in range(9)) if inspect([str(explained["few"]), "--why", name]) == 1]
    assert len(dropped) == 9 - 5  # of each rule, five samples are known
    out = says(1, "inspect", explained["few"], "--why", dropped[0]).out
    assert "the build dropped 10 documents, most of them: 9 by words, 1 by exact" in out
    assert "--keep-rejected" in out
    assert "no input had this id" in says(1, "inspect", explained["all"], "--why", "unknown").out
