"""Transforms of the user: what they may return, where they run, what they are known by, and what the report says of them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.builder.limits import Limits
from pipeline.builder.transforms.score_table import Scores
from pipeline.builder.transforms.user_functions import with_config_folder
from pipeline.cli.main import run_command
from pipeline.errors import BuildError, ConfigError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from pipeline.text.document import Document
from tests.helpers.builds import ROOT, Built, kept, run_plain, table, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import english

TEXTS = ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]

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
        pipeline.Document(document.text[middle:], "", "", 0)
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
    rows = ({"id": f"d{k}", "text": text, **{n: v[k] for n, v in fields.items()}} for k, text in enumerate(texts))
    return write_jsonl(path, rows)


def make(source: Any, output: Path, **settings: Any) -> Manifest:
    return run_plain(source, output, **{"dedup": False, **settings})


def make_of(folder: Path, records: Any, **settings: Any) -> Built:
    return Built.of(folder, records, **{"dedup": False, **settings})


def test_a_transform_keeps_edits_drops_and_multiplies_and_the_counts_add_up(tmp_path: Path) -> None:
    home = write_module(tmp_path / "home")
    names = [f"{home}/own_transforms:{name}" for name in ("drop_blocked", "shout", "halves", "Count")]
    out = make_of(tmp_path, ["Alpha is here.", "A rutabaga.", "Nothing to do."], transforms=names, keep_rejected=True)
    counts = out.counts
    assert out.kept == ["ALPHA i", "s here.", "Nothing", " to do."]
    assert out.ids == ["d0#1", "d0#2", "d2#1", "d2#2"]
    assert (counts["read"], counts["kept"]) == (3, 4)
    assert counts["added"] == {"own_transforms:halves": 2}
    assert counts["edited"] == {"own_transforms:shout": 1}
    assert counts["dropped"] == {"own_transforms:drop_blocked": 1}
    group = counts["by_source"][""]
    assert (group["read"], group["added"], group["kept"]) == (3, 2, 4)
    assert [(each["id"], each["reason"]) for each in out.rejected] == [("d1", "a blocked word")]
    report = out.report
    for said in ("added by own_transforms:halves", "edited by own_transforms:shout", "dropped by own_transforms:drop_"):
        assert said in report
    assert list(verify_dataset(out)) == []
    replace(out.manifest, counts={**counts, "added": {"own_transforms:halves": 1}}).write(out)
    (problem,) = verify_dataset(out)
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


def test_a_function_without_a_module_needs_a_version_and_forks(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", ["One."])
    with pytest.raises(ConfigError, match="give it a version"):
        make(source, tmp_path / "out", transforms=[lambda document: document])
    named = pipeline.transform(lambda document: document, version="1")
    for options in ({"workers": 2, "start_method": "spawn"}, {"engine": "ray"}):
        with pytest.raises(ConfigError, match="'lambda' is known to this process only"):
            make(source, tmp_path / "out", transforms=[named], **options)
    assert make(source, tmp_path / "out", transforms=[named], workers=2, start_method="fork").counts["kept"] == 1


@pytest.mark.nightly
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
    home = write_module(tmp_path / "home")
    source = write_records(tmp_path / "in.jsonl", ["A rutabaga.", "Alpha."])
    settings = {"tokenizer": "bytes", "rules": "none", "transforms": ["own_transforms:drop_blocked"], "workers": 1}
    (home / "build.yaml").write_text(json.dumps({**settings, "inputs": [str(source)], "output": str(tmp_path / "out")}))
    assert run_command("build", ["--config", str(home / "build.yaml"), "--quiet"]) == 0
    assert Manifest.read(tmp_path / "out").counts["dropped"] == {"own_transforms:drop_blocked": 1}
    (tmp_path / "build.yaml").touch()
    own = "own_transforms:shout"
    specs = [f"home/{own}", f"{home}/{own}", f"home.{own}", "json:dumps", "clean"]
    given = with_config_folder(",".join(specs), tmp_path / "build.yaml")
    assert given == [f"{tmp_path}/{specs[0]}", specs[1], f"{tmp_path}/{specs[2]}", "json:dumps", "clean"]
    assert (with_config_folder(None, tmp_path), with_config_folder([3], tmp_path)) == (None, [3])
    listed = f"normalize,{home}/{own}"
    flags = ["--transforms", listed, "--rules", "none", "--tokenizer", "bytes", "--workers", "1", "--quiet"]
    assert run_command("build", [str(source), "--output", str(tmp_path / "flags"), *flags]) == 0
    assert Manifest.read(tmp_path / "flags").recipe["settings"]["transforms"] == ["normalize", own]


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


def same(name: str, version: Any, **options: Any) -> Any:
    return pipeline.transform(lambda document: document, name=name, version=version, **options)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"transforms": ["languag"]}, "no transform 'languag' .did you mean 'language'"),
        ({"transforms": ["language", "language"]}, "two are called 'language'"),
        ({"transforms": ["normalize"], "rules": "gopher"}, "leaves out 'rules'"),
        ({"transforms": ["rules", "language"], "rules": "HOME/score.toml"}, "'rules' comes before 'language'"),
        ({"transforms": ["no_such_module_at_all:f"]}, "no module 'no_such_module_at_all'"),
        ({"transforms": ["HOME/own_transforms:drop_bloked"]}, "no function 'drop_bloked' .did you mean 'drop_bl"),
        ({"transforms": ["gone@1"]}, "gone@1.*give it again"),
        ({"transforms": [same("f", "1", batch=0)]}, "of at least 1, got 0"),
        ({"transforms": [same("f", "1", batch=1.5)]}, "of at least 1, got 1.5"),
        ({"transforms": [3]}, "3 is neither a function"),
        ({"transforms": [same("a b", "1")]}, "'a b', version '1': write both in"),
        ({"transforms": [same("f", "1@2")]}, "'f', version '1@2': write both in"),
        ({"transforms": [same("f", 2.5)]}, "its version must be text, got 2.5"),
        ({"transforms": [same("f", True)]}, "its version must be text, got True"),
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
    assert not (tmp_path / "out/.build/ingest").exists()


class Unpicklable(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"{first} and {second}")
        self.held = lambda: None


def raises(error: BaseException) -> Any:
    def function(document: Any) -> Any:
        raise error

    return function


def sets(**fields: Any) -> Any:
    def function(document: Document) -> Document:
        for name, value in fields.items():
            document.__setattr__(name, value)
        return document

    return function


def named(function: Any, **options: Any) -> Any:
    return pipeline.transform(lambda *found: function(*found), name="f", version="1", **options)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises(KeyError("its own")), "raised KeyError: 'its own'"),
        (raises(SystemExit(0)), "raised SystemExit: 0"),
        (raises(Unpicklable(1, 2)), "raised Unpicklable: 1 and 2"),
        (lambda document: None, "returned None of type NoneType; it must return the document"),
        (lambda document: Document("\ud800", "", "", 0), "put a lone surrogate at character 0"),
        (lambda document: Document(3, "", "", 0), "made its text 3 of type int"),  # type: ignore[arg-type]
        (lambda document: pipeline.Drop("\udfff"), "returned a Drop with a lone surrogate at character 0"),
        (sets(source="web"), "returned a document whose source is 'web' .* name sources where inputs are named"),
        (sets(id="other"), "returned a document whose id is 'other' .* put it into document.metadata"),
        (sets(metadata=None), "set its metadata to None of type NoneType; it must be a dict"),
        (lambda document: replace(document, id="other"), "returned a document whose id is 'other'"),
        (lambda document: [document, replace(document, source="web")], "returned a document whose source is 'web'"),
    ],
)
def test_each_wrong_end_names_the_function_and_the_document(tmp_path: Path, function: Any, said: str) -> None:
    files = [write_records(tmp_path / f"{name}.jsonl", TEXTS[:1]) for name in ("a", "b")]
    small = Limits(unit_bytes=10, smallest_unit_bytes=1)
    workers = 2 if said.startswith("raised") else 1  # an error is pickled on its way from a worker
    with pytest.raises(BuildError, match=rf"[ab]\.jsonl: line 1: document 'd0': transform 'f' {said}"):
        make(files, tmp_path / "out", transforms=[named(function)], workers=workers, limits=small)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda documents: documents[:1], "returned 1 results for a batch of 6 documents"),
        (lambda documents: [each.nothing for each in documents], "document 'd0' to .*'d5': .* raised AttributeError"),
        (lambda documents: sorted(documents, key=lambda each: each.text), "whose id is 'd.' .* in the order given"),
        (lambda documents: [[each, each] for each in reversed(documents)], "whose id is 'd.' .* in the order given"),
    ],
)
def test_a_batch_comes_back_whole_and_in_order(tmp_path: Path, function: Any, said: str) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    with pytest.raises(BuildError, match=said):
        make(source, tmp_path / "out", transforms=[named(function, batch=16)])
    copied = named(lambda documents: [replace(each, text=each.text.upper()) for each in documents], batch=16)
    make(source, tmp_path / "out", transforms=[copied], overwrite=True)
    assert kept(tmp_path / "out") == [text.upper() for text in TEXTS]


def test_a_worker_that_a_function_ends_is_not_put_down_to_memory(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    said = r"died \(exit status 0\) 3 times .* as os\._exit does in a transform"
    with pytest.raises(BuildError, match=said) as caught:
        make(source, tmp_path / "out", transforms=[named(lambda document: os._exit(0))], workers=2)
    assert "memory" not in str(caught.value)


def test_a_class_or_module_that_ends_the_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own_broken.py").write_text("class Model:\n    def __init__(self):\n        raise SystemExit(0)\n")
    (tmp_path / "own_ending.py").write_text("import sys\nsys.exit(0)\n")
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    with pytest.raises(ConfigError, match="transform 'own_broken:Model': its class raised SystemExit: 0"):
        make(source, tmp_path / "out", transforms=[f"{tmp_path}/own_broken:Model"])
    with pytest.raises(ConfigError, match=r"module 'own_ending' .*cannot be imported: SystemExit: 0"):
        make(source, tmp_path / "out", transforms=[f"{tmp_path}/own_ending:f"])


def windows(document: Document) -> list[Document]:
    words = document.text.split()
    return [Document(" ".join(words[first : first + 20]), "", "", 0) for first in range(0, len(words) - 10, 10)]


@pytest.mark.parametrize("options", [{"dedup": False}, {"dedup": True, "dedup_lines": True}])
def test_all_parts_of_a_document_go_to_the_same_split(tmp_path: Path, options: dict[str, Any]) -> None:
    texts = [" ".join(f"w{number}x{k}" for k in range(60)) for number in range(200)]
    source = write_records(tmp_path / "in.jsonl", [*texts, *(f"whole {k}" for k in range(200)), texts[0]])

    def cut(document: Document) -> Any:
        return document if document.text.startswith("whole") else windows(document)

    again = pipeline.transform(lambda document: windows(document)[:1] or document, name="again", version="1")
    small = Limits(partition_characters=3_000, batch_records=20)
    make(source, tmp_path / "out", transforms=[named(cut), again], val_fraction=0.3, limits=small, **options)
    sides: dict[str, set[str]] = {}
    for split in ("train", "val"):
        for id in table(tmp_path / "out", split)["id"]:
            sides.setdefault(id.partition("#")[0], set()).add(split)
    assert len(sides) == 400 + (not options["dedup"])
    assert all(len(found) == 1 for found in sides.values())
    assert sides["d0"] == sides.get("d400", sides["d0"])  # documents of equal texts go together
    assert 80 < sum(found == {"val"} for found in sides.values()) < 160


@pytest.mark.parametrize(
    ("fields", "value", "said"),
    [
        ("x", object(), "document 'd0': keep_fields: Type is not JSON serializable: object; keep plain JSON values"),
        ("x:int", "a", "document 'd0': field 'x' .*; mend the transform that sets it"),
    ],
)
def test_a_field_that_cannot_be_kept_is_named(tmp_path: Path, fields: str, value: object, said: str) -> None:
    source = write_records(tmp_path / "in.jsonl", ["One."])
    with pytest.raises(BuildError, match=said):
        make(source, tmp_path / "out", transforms=[named(sets(metadata={"x": value}), adds=("x",))], keep_fields=fields)


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
            with open(tmp_path / "loads", "a") as file:
                file.write(f"{os.getpid()}\n")

        def __call__(self, document: Document) -> Document:
            return document

    (tmp_path / "in").mkdir()
    for number in range(4):
        write_records(tmp_path / f"in/{number}.jsonl", [english(10 * number + k) for k in range(30)])
    small = Limits(unit_bytes=10_000, smallest_unit_bytes=1_000)
    make(tmp_path / "in", tmp_path / "out", transforms=[Model()], workers=2, start_method="fork", limits=small)
    loads = (tmp_path / "loads").read_text().split()
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
def test_what_a_cleaner_leaves_is_normalised(tmp_path: Path, settings: dict[str, Any], expected: list[str]) -> None:
    out = make_of(tmp_path, ["a&#13;b", "e&#769;", "e<b></b>\u0301", "&#xFEFF;x"], rules="html_remnants", **settings)
    assert out.kept == expected


# Scores made elsewhere: exported texts, keys, and rules on what comes back.


SCORED = ["One text.\r\n", "Another\u00a0text.", "A third.", "Without a score."]


def key(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_scores(path: Path, columns: dict[str, list[Any]]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def quality_rule(path: Path, least: float) -> str:
    path.write_text(f'"column:quality" = {{ min = {least} }}\n')
    return str(path)


def test_texts_are_exported_with_their_keys_and_ids(tmp_path: Path, says: Says) -> None:
    source = write_records(tmp_path / "in.jsonl", SCORED, n=[1, 2, 3, 4])
    with open(source, "a") as file:
        file.write("no json\n")
    said = says(0, "texts", source, "--output", tmp_path / "texts.parquet")
    held = pq.read_table(tmp_path / "texts.parquet").to_pydict()
    assert held == {"key": [*map(key, SCORED)], "id": ["d0", "d1", "d2", "d3"], "text": SCORED}
    assert said.out == f"{tmp_path}/texts.parquet: 4 texts\n"
    assert "1 bad records; the first" in said.err
    replaced = "in.jsonl: it is an input, which would be replaced; choose another name"
    says(2, "texts", source, "--output", source, shows=replaced)
    says(0, "texts", source, "--output", tmp_path / "some.parquet", "--where", "n > 2")
    assert pq.read_table(tmp_path / "some.parquet")["text"].to_pylist() == SCORED[2:]


def test_scores_are_mapped_so_that_workers_share_them(tmp_path: Path) -> None:
    keys = np.arange(100_000, dtype=">u8").repeat(2).view("S16")
    Scores(["quality"], keys, np.zeros((len(keys), 1))).save(tmp_path)
    tracemalloc.start()
    scores = Scores.load(tmp_path)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < keys.nbytes / 10
    assert scores.look_up(["not there"]) == [None]


@pytest.mark.parametrize("binary", [False, True])
def test_rules_read_the_scores_of_texts_as_they_were_read(tmp_path: Path, binary: bool) -> None:
    source = write_records(tmp_path / "in.jsonl", SCORED)
    keys: list[Any] = [bytes.fromhex(key(text)) if binary else key(text) for text in SCORED[:3]]
    scores = write_scores(tmp_path / "scores.parquet", {"key": [*keys, keys[0]], "quality": [0.9, 0.1, 0.5, 0.9]})
    settings = {"rules": quality_rule(tmp_path / "r.toml", 0.5), "keep_fields": "quality:float"}
    manifest = make(source, tmp_path / "out", scores=scores, **settings)
    assert table(tmp_path / "out")["column:quality"] == [0.9, 0.5]
    assert manifest.counts["dropped"] == {"column:quality": 2}
    assert manifest.counts["cut"] == {"documents without a score": 1}
    assert manifest.recipe["settings"]["scores"] == "scores.parquet"
    assert manifest.recipe["definitions"]["scores"] == hashlib.sha256(Path(scores).read_bytes()).hexdigest()
    write_scores(tmp_path / "scores.parquet", {"key": keys, "quality": [0.9, 0.8, 0.5]})
    with pytest.raises(PlanChangedError, match="definitions: scores"):
        make(source, tmp_path / "out", scores=scores, **settings)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"quality": [1.0]}, "no column 'key'"),
        ({"key": ["0" * 32]}, "no column of numbers"),
        ({"key": ["0" * 31], "quality": [1.0]}, "row 0: key '0{31}' is not 32 hexadecimal digits"),
        ({"key": ["0" * 32], "quality": ["good"]}, "column 'quality' is string, not numbers"),
        ({"key": ["0" * 32, "0" * 32], "quality": [1.0, 2.0]}, "key 0{32} has several rows with different numbers"),
    ],
)
def test_a_file_of_scores_that_cannot_be_used_is_refused(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    source = write_records(tmp_path / "in.jsonl", SCORED)
    with pytest.raises(ConfigError, match=said):
        make(source, tmp_path / "out", scores=write_scores(tmp_path / "scores.parquet", columns))
    (tmp_path / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"scores .*scores\.parquet: not a whole parquet file \("):
        make(source, tmp_path / "out", scores=str(tmp_path / "scores.parquet"))


def test_a_condition_on_a_score_is_refused_with_the_rule_to_use(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", SCORED)
    scores = write_scores(tmp_path / "scores.parquet", {"key": [key(SCORED[0])], "quality": [1.0]})
    with pytest.raises(ConfigError, match="where reads 'quality', which is a score"):
        make(source, tmp_path / "out", scores=scores, where="quality > 0.5")
