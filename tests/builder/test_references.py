"""What a recipe names is resolved once: in whatever directory processes run, whatever is edited meanwhile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from filters.language.identifier import bundled_model
from pipeline.errors import BuildError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.text.tokens.tokenizer import train_tokenizer
from tests.helpers import interpreters
from tests.helpers.builds import ROOT, digests, run_plain, write_jsonl
from tests.helpers.corpus import english

QUESTION = "which of these thirteen words in a row will be found again here"
MEASURE = """\
import os
from pathlib import Path

from own_limit import LIMIT


def beyond_limit(page):
    if "stop here" in page.text and "OWN_STOP" in os.environ:
        raise KeyError("stop here")
    return float(len(page.words) > LIMIT)
"""
NAMES = ("--rules=own.toml", "--tokenizer=tokenizer.json", "--lid-model=lid.ftz", "--decontaminate=quiz.jsonl")


def write_corpus(folder: Path) -> Path:
    """Two files of two units of work each, the last with a document to stop at."""
    folder.mkdir()
    for number in range(2):
        texts = [english(1000 * number + k, 12 + k % 30) for k in range(100)] + ["x" * 1_100_000, QUESTION]
        texts += ["stop here"] * number
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def write_named(folder: Path, limit: int, question: str, seed: int) -> Path:
    """Everything that a recipe can name."""
    folder.mkdir()
    (folder / "own.toml").write_text('"own_measure:beyond_limit" = { max = 0 }\n')
    (folder / "own_measure.py").write_text(MEASURE)
    (folder / "own_limit.py").write_text(f"LIMIT = {limit}\n")
    (folder / "quiz.jsonl").write_text(json.dumps({"text": question}) + "\n")
    (folder / "tokenizer.json").write_text(train_tokenizer([english(seed)], 280).definition)
    shutil.copyfile(bundled_model(), folder / "lid.ftz")
    return folder


def run_script(
    cwd: Path, output: Path, source: Path, *names: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "scripts/build_shards.py", source, "--output", output, "--quiet", "--workers=1", *names]
    return interpreters.run(*command, cwd=cwd, variables=environment)


def elsewhere(names: tuple[str, ...], folder: Path) -> list[str]:
    return [name.replace("=", f"={folder}/") for name in names]


def test_a_build_goes_on_in_another_directory_with_what_it_began_with(tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "in")
    here = write_named(tmp_path / "here", 200, QUESTION, 1)
    other = write_named(tmp_path / "other", 5, "some other question of some more words than eight", 2)
    (other / "lid.ftz").write_bytes(b"no model")
    whole = run_script(here, tmp_path / "whole", source, *NAMES)
    assert whole.returncode == 0, whole.stderr
    stopped = run_script(here, tmp_path / "out", source, *NAMES, OWN_STOP="1")
    assert stopped.returncode == 1
    said = r"error: 1\.jsonl: line 2 after byte \d+: measure 'own_measure:beyond_limit' .* raised KeyError"
    assert re.match(said, stopped.stderr)
    refused = run_script(other, tmp_path / "out", source, *NAMES[:2])
    assert refused.returncode == 1
    assert 'recipe: decontaminate: was ["quiz.jsonl"], now []' in refused.stderr
    went_on = run_script(other, tmp_path / "out", source, *elsewhere(NAMES, here))
    assert went_on.returncode == 0, went_on.stderr
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    counts = Manifest.read(tmp_path / "out").counts
    assert counts["dropped"]["contaminated"] == 2
    assert 0 < counts["dropped"]["own_measure:beyond_limit"] < 200


EDITING = """\
import os
from pathlib import Path


def f(page, *, word_list: Path = None):
    flag = Path({flag!r})
    if not flag.exists():  # the first document: edit what the recipe names, and die as for want of memory
        flag.touch()
        for edited, text in {edits!r}.items():
            Path(edited).write_text(text)
        os._exit(9)
    return 0
"""


def build_while_it_is_edited(folder: Path, edits: dict[str, str]) -> Manifest:
    source = write_jsonl(folder / "in.jsonl", [english(k) for k in range(50)])
    (folder / "own_editing.py").write_text(
        EDITING.format(flag=str(folder / "flag"), edits={str(folder / name): text for name, text in edits.items()})
    )
    (folder / "words.txt").write_text("rutabaga\n")
    (folder / "own.toml").write_text('own = { measure = "own_editing:f", max = 0, word_list = "words.txt" }\n')
    workers: dict[str, Any] = {"workers": 2, "start_method": "forkserver"}
    return run_plain(source, folder / "out", rules=str(folder / "own.toml"), dedup=False, **workers)


@pytest.mark.nightly
def test_what_a_build_began_with_runs_to_its_end_though_it_is_edited(tmp_path: Path) -> None:
    edits = {"own_editing.py": "def f(page, *, word_list):\n    return 1\n", "own.toml": "words = { min = 10_000 }\n"}
    manifest = build_while_it_is_edited(tmp_path, edits)
    assert (manifest.counts["kept"], manifest.counts["dropped"]) == (50, {})
    with pytest.raises(PlanChangedError, match="definitions: rules"):
        run_plain(tmp_path / "in.jsonl", tmp_path / "out", rules=str(tmp_path / "own.toml"), dedup=False)


def test_a_file_that_is_edited_in_mid_build_is_refused_with_both_hashes(tmp_path: Path) -> None:
    said = r"words\.txt: it changed during the build: .* was \w{64}, now it is \w{64}"
    with pytest.raises(BuildError, match=said):
        build_while_it_is_edited(tmp_path, {"words.txt": "turnip\n"})


def test_an_error_of_a_measure_in_a_worker_process_keeps_its_cause(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [english(1)])
    (tmp_path / "own_failing.py").write_text(
        "class Odd(Exception):\n    pass\n\n\ndef f(page):\n    raise Odd('of its own kind')\n"
    )
    (tmp_path / "own.toml").write_text('"own_failing:f" = { max = 0 }\n')
    said = r"in\.jsonl: line 1: document 'd0': measure 'own_failing:f' .*Odd: of its"
    with pytest.raises(BuildError, match=said) as found:
        run_plain(source, tmp_path / "out", rules=str(tmp_path / "own.toml"), workers=2, start_method="forkserver")
    assert type(found.value.__cause__).__name__ == "Odd"
