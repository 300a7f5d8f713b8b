"""Transforms of the user: what they may return, where they run, what they are known by, and what the report says of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.errors import BuildError, ConfigError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from pipeline.text.document import Document
from tests.corpus import english

ROOT = Path(__file__).resolve().parents[2]
QUIET = Progress(quiet=True)

MODULE = """\
import pipeline
from own_list import BLOCKED


def drop_blocked(document):
    if any(word in document.text for word in BLOCKED):
        return pipeline.Drop("a blocked word")
    return document


def shout(document):
    document.text = document.text.replace("Alpha", "ALPHA")
    return document


def halves(document):
    middle = len(document.text) // 2
    return [
        pipeline.Document(document.text[:middle], "", "", 0),
        pipeline.Document(document.text[middle:], "", "", 0),
    ]


@pipeline.transform(batch=16)
class Count:
    loads = 0

    def load(self):
        self.loads += 1

    def __call__(self, documents):
        assert self.loads == 1 and 1 <= len(documents) <= 16
        return documents
"""


def write_module(folder: Path, blocked: str = "rutabaga") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "own_transforms.py").write_text(MODULE)
    (folder / "own_list.py").write_text(f"BLOCKED = [{blocked!r}]\n")
    return folder


def write_records(path: Path, texts: list[str], **fields: list[Any]) -> Path:
    rows = [{"id": f"d{k}", "text": text, **{n: v[k] for n, v in fields.items()}} for k, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(source: Path, output: Path, **settings: Any) -> Manifest:
    given = {"tokenizer": "bytes", "rules": (), "dedup": False, "val_fraction": 0, "progress": QUIET}
    return build(source, output, **{**given, **settings})


def kept(output: Path) -> list[str]:
    shard = pipeline.shards.reader.Shard(output / "train-000000.tar")
    return [bytes((shard.document(k)[:-1] - 3).astype("u1")).decode() for k in range(len(shard))]


def table(output: Path) -> dict[str, list[Any]]:
    return pipeline.shards.reader.Shard(output / "train-000000.tar").table()


def test_a_transform_keeps_edits_drops_and_multiplies_and_the_counts_add_up(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", ["Alpha is here.", "A rutabaga.", "Nothing to do."])
    home = write_module(tmp_path / "home")
    names = [f"{home}/own_transforms:{name}" for name in ("drop_blocked", "shout", "halves", "Count")]
    manifest = make(source, tmp_path / "out", transforms=names, keep_rejected=True)
    counts = manifest.counts
    assert kept(tmp_path / "out") == ["ALPHA i", "s here.", "Nothing", " to do."]
    assert table(tmp_path / "out")["id"] == ["d0#1", "d0#2", "d2#1", "d2#2"]
    assert (counts["read"], counts["kept"]) == (3, 4)
    assert counts["added"] == {"own_transforms:halves": 2}
    assert counts["edited"] == {"own_transforms:shout": 1}
    assert counts["dropped"] == {"own_transforms:drop_blocked": 1}
    group = counts["by_source"][""]
    assert (group["read"], group["added"], group["kept"]) == (3, 2, 4)
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert [(each["id"], each["reason"]) for each in rejected] == [("d1", "a blocked word")]
    report = (tmp_path / "out/report.html").read_text()
    for said in ("added by own_transforms:halves", "edited by own_transforms:shout", "dropped by own_transforms:drop_"):
        assert said in report
    assert list(verify_dataset(tmp_path / "out")) == []
    replace(manifest, counts={**counts, "added": {"own_transforms:halves": 1}}).write(tmp_path / "out")
    (problem,) = verify_dataset(tmp_path / "out")
    balance = "counts say 3 documents were read and 1 added, but 1 dropped, 0 duplicates and 4 kept make 5"
    assert problem.message == balance


def test_the_module_of_a_transform_and_what_it_imports_are_part_of_the_recipe(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", ["A rutabaga.", "A turnip."])
    home = write_module(tmp_path / "home")
    settings = {"transforms": [f"{home}/own_transforms:drop_blocked"]}
    first = make(source, tmp_path / "out", **settings)
    assert first.counts["dropped"] == {"own_transforms:drop_blocked": 1}
    assert make(source, tmp_path / "out", **settings).fingerprint == first.fingerprint
    write_module(home, blocked="turnip")
    with pytest.raises(PlanChangedError, match="definitions: transforms"):
        make(source, tmp_path / "out", **settings)


def test_a_transform_with_a_version_is_known_by_that_alone(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", ["One.", "Two."])

    def versioned(word: str, version: str) -> Any:
        def drop_word(document: Document) -> Any:
            return pipeline.Drop("the word") if word in document.text else document

        return pipeline.transform(drop_word, version=version)

    first = make(source, tmp_path / "out", transforms=[versioned("One", "1")])
    assert first.counts["dropped"] == {"drop_word": 1}
    assert make(source, tmp_path / "out", transforms=[versioned("Two", "1")]).fingerprint == first.fingerprint
    with pytest.raises(PlanChangedError, match="transforms"):
        make(source, tmp_path / "out", transforms=[versioned("One", "2")])


def test_a_function_without_a_module_needs_a_version_and_processes_that_are_forked(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", ["One."])
    with pytest.raises(ConfigError, match="give it a version"):
        make(source, tmp_path / "out", transforms=[lambda document: document])
    named = pipeline.transform(lambda document: document, version="1")
    for options in ({"workers": 2, "start_method": "spawn"}, {"engine": "ray"}):
        with pytest.raises(ConfigError, match="'lambda' is known to this process only"):
            make(source, tmp_path / "out", transforms=[named], **options)
    assert make(source, tmp_path / "out", transforms=[named], workers=2, start_method="fork").counts["kept"] == 1


def test_a_function_of_a_module_is_found_by_other_processes(tmp_path: Path) -> None:
    home = write_module(tmp_path / "home")
    source = write_records(tmp_path / "in.jsonl", ["A rutabaga.", "A turnip."])
    program = (
        "import own_transforms, pipeline, sys\n"
        "if __name__ == '__main__':\n"
        "    manifest = pipeline.build(sys.argv[1], sys.argv[2], transforms=[own_transforms.drop_blocked], workers=2,\n"
        "        start_method='spawn', tokenizer='bytes', rules=(), dedup=False)\n"
        "    assert manifest.counts['dropped'] == {'own_transforms:drop_blocked': 1}, manifest.counts\n"
    )
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), str(source), str(tmp_path / "out")]
    environment = {"PYTHONPATH": f"{ROOT}:{home}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_config_file_names_transforms_of_modules_beside_it(tmp_path: Path) -> None:
    from pipeline.cli.main import run_command

    home = write_module(tmp_path / "home")
    source = write_records(tmp_path / "in.jsonl", ["A rutabaga.", "Alpha."])
    settings = {"tokenizer": "bytes", "rules": "none", "transforms": ["own_transforms:drop_blocked"], "workers": 1}
    (home / "build.yaml").write_text(json.dumps({**settings, "inputs": [str(source)], "output": str(tmp_path / "out")}))
    assert run_command("build", ["--config", str(home / "build.yaml"), "--quiet"]) == 0
    assert Manifest.read(tmp_path / "out").counts["dropped"] == {"own_transforms:drop_blocked": 1}
    listed = ",".join(["normalize", f"{home}/own_transforms:shout"])
    flags = ["--transforms", listed, "--rules", "none", "--tokenizer", "bytes", "--workers", "1", "--quiet"]
    assert run_command("build", [str(source), "--output", str(tmp_path / "flags"), *flags]) == 0
    assert Manifest.read(tmp_path / "flags").recipe["settings"]["transforms"] == ["normalize", "own_transforms:shout"]


def test_a_list_with_built_in_transforms_is_the_whole_order(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", [english(1, 20), "Too short, but kept by what runs before."])
    seen: list[str] = []

    def look(document: Document) -> Document:
        seen.append(document.language.code if document.language else "unknown")
        document.text += "\r\n"
        return document

    look = pipeline.transform(look, version="1")
    manifest = make(source, tmp_path / "out", transforms=["language", look, "rules"], rules="gopher")
    assert seen == ["en", "en"]
    assert manifest.counts["dropped"] == {"words": 1}
    assert kept(tmp_path / "out")[0].endswith("\r\n")  # "normalize" is not in the list
    first = make(source, tmp_path / "default", transforms=[look], rules="gopher")
    assert seen[2:] == ["unknown", "unknown"]
    assert first.counts["edited"] == {"look": 2}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"transforms": ["languag"]}, "no transform 'languag' .did you mean 'language'"),
        ({"transforms": ["language", "language"]}, "two are called 'language'"),
        ({"transforms": ["normalize"], "rules": "gopher"}, "leaves out 'rules'"),
        ({"transforms": ["normalize"], "language": "en"}, "leaves out 'language'"),
        ({"transforms": ["rules", "language"], "rules": "HOME/score.toml"}, "'rules' comes before 'language'"),
        ({"transforms": ["no_such_module_at_all:f"]}, "no module 'no_such_module_at_all'"),
        ({"transforms": ["HOME/own_transforms:drop_bloked"]}, "no function 'drop_bloked' .did you mean 'drop_bl"),
        ({"transforms": ["gone@1"]}, "given to pipeline.build in Python"),
        ({"transforms": [3]}, "3 is neither a function"),
    ],
)
def test_a_list_that_cannot_work_is_refused_before_any_work(tmp_path: Path, settings: Any, said: str) -> None:
    home = write_module(tmp_path / "home")
    (home / "score.toml").write_text("language_score = { min = 0.5 }\n")
    settings = {**settings, "rules": settings.get("rules", "none").replace("HOME", str(home))}
    given = [each.replace("HOME", str(home)) if isinstance(each, str) else each for each in settings["transforms"]]
    source = write_records(tmp_path / "in.jsonl", ["One."])
    with pytest.raises(ConfigError, match=said):
        make(source, tmp_path / "out", **{**settings, "transforms": given})
    assert not (tmp_path / "out/.build/filter").exists()


def raising(document: Document) -> Document:
    raise KeyError("its own")


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (raising, {}, "in.jsonl: line 1: document 'd0': transform 'f' raised KeyError: 'its own'"),
        (lambda document: None, {}, "transform 'f' returned None of type NoneType; it must return the document"),
        (lambda document: [], {}, "transform 'f' returned \\[\\] of type list; it must return the document"),
        (lambda documents: documents[:1], {"batch": 4}, "returned 1 results for a batch of 2 documents"),
        (lambda documents: None, {"batch": 4}, "returned None of type NoneType for a batch of 2 documents"),
        (lambda document: Document("\ud800", "", "", 0), {}, "lone surrogate at character 0"),
        (lambda document: Document(3, "", "", 0), {}, "made its text 3 of type int"),  # type: ignore[arg-type]
        (
            lambda documents: [each.nothing for each in documents],
            {"batch": 4},
            "document 'd0' to .*document 'd1': transform 'f' raised AttributeError",
        ),
    ],
)
def test_errors_name_the_document_and_the_transform(tmp_path: Path, function: Any, options: Any, said: str) -> None:
    source = write_records(tmp_path / "in.jsonl", ["One.", "Two."])
    given = pipeline.transform(lambda *found: function(*found), name="f", version="1", **options)
    with pytest.raises(BuildError, match=said):
        make(source, tmp_path / "out", transforms=[given])


def test_a_load_that_fails_names_the_transform(tmp_path: Path) -> None:
    class Model:
        version = "1"

        def load(self) -> None:
            raise OSError("no weights")

        def __call__(self, document: Document) -> Document:
            return document

    source = write_records(tmp_path / "in.jsonl", ["One."])
    with pytest.raises(BuildError, match=r"transform 'Model': load\(\) raised OSError: no weights"):
        make(source, tmp_path / "out", transforms=[Model()])


def test_an_object_is_loaded_once_in_each_process_and_not_before_it_is_forked(tmp_path: Path) -> None:
    class Model:
        version = "1"

        def load(self) -> None:
            import os

            with open(tmp_path / "loads", "a") as file:
                file.write(f"{os.getpid()}\n")

        def __call__(self, document: Document) -> Document:
            return document

    (tmp_path / "in").mkdir()
    for number in range(4):
        write_records(tmp_path / f"in/{number}.jsonl", [english(10 * number + k) for k in range(30)])
    small = pipeline.builder.limits.Limits(unit_bytes=10_000, smallest_unit_bytes=1_000)
    make(tmp_path / "in", tmp_path / "out", transforms=[Model()], workers=2, start_method="fork", limits=small)
    loads = (tmp_path / "loads").read_text().split()
    import os

    assert len(set(loads)) == len(loads) <= 2
    assert str(os.getpid()) not in loads


def test_texts_that_a_transform_empties_are_dropped_as_empty(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", ["One.", "Two."])
    emptied = pipeline.transform(lambda document: Document("", "", "", 0), name="emptied", version="1")
    for order in ([emptied], ["language", emptied]):
        counts = make(source, tmp_path / "out", transforms=order, overwrite=True).counts
        assert (counts["dropped"], counts["edited"]) == ({"empty text": 2}, {"emptied": 2})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["a\nb", "é", "é", "x"]),
        ({"normalize": False}, ["a\rb", "e\u0301", "e\u0301", "\ufeffx"]),
        ({"transforms": ["clean", "language", "rules"]}, ["a\rb", "e\u0301", "e\u0301", "\ufeffx"]),
    ],
)
def test_what_a_cleaner_leaves_is_normalised_where_texts_are(
    tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    source = write_records(tmp_path / "in.jsonl", ["a&#13;b", "e&#769;", "e<b></b>\u0301", "&#xFEFF;x"])
    make(source, tmp_path / "out", rules="html_remnants", **settings)
    assert kept(tmp_path / "out") == expected
