"""The compiled scan gives what the plain definitions give."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import filters
from filters import Page
from filters.compiled import SCANNED
from filters.compiled.scan import scan
from filters.language.identifier import LanguageIdentifier, bundled_model
from filters.measures.profanity import DEFAULT_LIST
from filters.measures.sentences import sentences
from filters.rules.ruleset import RuleSet, load_rules
from filters.text_view import By
from pipeline.compiling import compiled
from pipeline.text.normalize import normalize
from pipeline.text.readers.document_reader import Document, DocumentReader
from pipeline.text.tokens.conformance import proof_texts
from tests.helpers.rule_samples import rule_file

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
SPLITS: tuple[By, ...] = ("spaces", "pieces")
PLAIN = filters.measure_functions()
ODD_WORDS = ["the", "THE", "a", "don't", "of", "-", "...", "…", "#", ".", "\n", "\n\n", " \n", "汉", "ไท", "ည်"]
REPETITIVE = st.lists(st.sampled_from(ODD_WORDS), max_size=80).map(" ".join)
TIGHT = st.text(st.sampled_from("ab1'’._,:-… \n\u0301#汉ขเ์្្က္်\u200b•"), max_size=60)
ENDS = (
    "It He U.S. J. Mr. Mrs. Prof. xMr. Dr Ds. Dst. PROF. end. end! end? ... .) .' ?! 。 ！ 雨。 ？x a. 7. é. _. A. ะA. "
    "“Oh!” …» \u2029 \ufeff \u200b \x1c ² \n \n\n \u3002\u3002 "
).split(" ")
SENTENCES = st.builds(str.join, st.sampled_from(["", " "]), st.lists(st.sampled_from(ENDS), max_size=20))


def assert_same(text: str) -> None:
    page = Page(text)
    for by in SPLITS:
        for name, value in zip(SCANNED, scan([text], STOP_WORDS, by)[0].tolist(), strict=True):
            accepted = inspect.signature(PLAIN[name]).parameters
            given = {key: it for key, it in {"words": STOP_WORDS, "by": by}.items() if key in accepted}
            assert value == pytest.approx(PLAIN[name](page, **given), abs=1e-12), (name, by, text)


@given(st.one_of(REPETITIVE, TIGHT, SENTENCES, st.text(max_size=200)))
@example("a b c d e f g h i j k " * 9)
@example("U.S. U.S... J.R")
@example("\ud800 lone \udfff")
@example("an. .. ...end.... 汉...字 a汉 .")
@example("\U0010ffff\U000e0100.\U0010ffff")
@example("a. `b a. {c a. /d a. :e a. @f a. zg a. ah a. 0i a. 9j a. Zk")
@example("@. L [. L A. L Z. L 雨A. L a. L é. L")
@example("Dr. L Ds. L Dt. L Dq. L Du. L Mr. L Ms. L Mt. L Sr. L Ss. L St. L Cr. L Er. L Lr. L Nr. L Rr. L Tr. L Dx. L")
@example(
    "Mrs. L Mrt. L Mss. L Nrs. L Prof. L Prog. L Proe. L Prnf. L Pqof. L Qrof. L xProf. L xMrs. L xMr. L xA. L _A. L"
)
@settings(max_examples=150, deadline=None)
def test_scan_equals_the_plain_definitions(text: str) -> None:
    assert_same(text)


@given(st.lists(st.one_of(REPETITIVE, TIGHT), max_size=6))
def test_texts_are_scanned_apart_whatever_stands_beside_them(texts: list[str]) -> None:
    apart = [scan([text], STOP_WORDS)[0].tolist() for text in texts]
    assert scan(texts, STOP_WORDS).tolist() == apart


def test_scan_equals_the_plain_definitions_on_hostile_text() -> None:
    for text in proof_texts():
        assert_same(text)


def test_scan_equals_the_plain_definitions_on_real_text(shared_data: Path) -> None:
    records = DocumentReader(shared_data / "dev-formats" / "sample.jsonl.zst")
    for record in list(records)[::10]:
        assert isinstance(record, Document)
        assert_same(record.text[:5_000])


@pytest.mark.parametrize("text", ["a" * 2_000_000, "汉" * 500_000, "a " * 500_000, "\n" * 1_000_000, ". " * 500_000])
def test_scan_of_a_huge_text_is_linear(text: str) -> None:
    assert scan([text]).shape == (1, len(SCANNED))


def test_a_scan_of_some_measures_gives_these_as_a_scan_of_all() -> None:
    text = "- the cat and the cat\n- the cat and the cat\n\n- the cat and the cat\n- the cat and the cat\n\nthat is it… #1...\nx."
    texts = [text, text * 9]
    whole = scan(texts, STOP_WORDS)
    assert whole.any(axis=0).all()
    for place, name in enumerate(SCANNED):
        assert scan(texts, STOP_WORDS, wanted=[name])[:, place].tolist() == whole[:, place].tolist(), name


@pytest.mark.nightly
def test_compiled_code_works_where_its_cache_cannot_be_written(tmp_path: Path) -> None:
    shutil.copytree(Path(filters.__file__).parent, tmp_path / "filters", ignore=shutil.ignore_patterns("__pycache__"))
    nowhere = tmp_path / "filters" / "__pycache__"
    nowhere.write_text("a file, so that no folder can be made here or below")
    places = {"HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere / "cache")}
    environment = {**os.environ, **places, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    code = "from filters.compiled.repetition_kernels import table_size; print(table_size(9))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "64", done.stderr


CALLEE = "@compiled('int64(int64)')\ndef plus(x):\n    return x + {}\n"
CALLER = "@compiled('int64(int64)')\ndef twice(x):\n    return FACTOR * plus(x)\n"


def machine_code(folder: Path, callee: str, factor: object) -> tuple[int, dict[str, int]]:
    """Write and load a loop that calls one of another file; return what it gives of 1, and the files of its cache."""
    loaded: dict[str, Any] = {"compiled": compiled, "FACTOR": factor, "__name__": "loops"}
    for path, source in ((folder / "callee.py", callee), (folder / "caller.py", CALLER)):
        path.write_text(source)
        os.utime(path, (1, 1))
        exec(compile(source, path, "exec"), loaded)
    files = {path.name: path.stat().st_ino for path in folder.glob("__pycache__/caller.twice*.nb*")}
    return loaded["twice"](1), files


def test_loops_are_cached_until_their_code_values_or_callees_change(tmp_path: Path) -> None:
    first, cached = machine_code(tmp_path, CALLEE.format(1), 2)
    assert (first, len(cached)) == (4, 2)
    assert machine_code(tmp_path, CALLEE.format(1), 2) == (4, cached)
    assert machine_code(tmp_path, CALLEE.format(2), 2)[0] == 6
    assert machine_code(tmp_path, CALLEE.format(2), 3)[0] == 9
    assert machine_code(tmp_path, CALLEE.replace("x + {}", "x - 2").format(), 3)[0] == -3


def test_a_loop_that_reads_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"FACTOR: .*make it a number"):
        machine_code(tmp_path, CALLEE.format(1), {2: 2})


# Every built-in rule judges a long document of any kind within the time limit of a test.


TEXTS = {
    "one character": "a",
    "blanks": " ",
    "one line": "some words of a line that never ends, ",
    "angle brackets": "<",
    "digits": "7",
    "newlines": "\n",
    "full stops": ".",
    "initials": "a.",
    "combining marks": "e\u0301",
    "ideographs": "汉，",
    "syllables": "กเ",
    "opened tags": "<a b='c\" ",
    "comments": "<!-- <",
    "tags and blanks": "<br> \n ",
    "ampersands": "&amp",
    "brackets": "[1",
}
PARAMETERS = {
    "stop_words": "words = ['the', 'of']",
    "top_ngram_ratio": "n = 7",
    "duplicate_ngram_ratio": "n = 7",
    "column_value": "column = 'score'",
    "column_in": "column = 'score', values = [1]",
    "url_blocked": f"words = '{DEFAULT_LIST}'",
    "fasttext_score": f"model = '{bundled_model()}', label = '__label__en'",
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    """Every measure, by each of the ways to count that are built in."""
    lines = []
    for name, function in filters.measure_functions().items():
        entry = ", ".join(["max = 9e9", *([PARAMETERS[name]] if name in PARAMETERS else [])])
        lines.append(f"{name} = {{ {entry} }}")
        if "by" in inspect.signature(function).parameters:
            lines.append(f'by_{name} = {{ measure = "{name}", by = "pieces", {entry} }}')
    return load_rules(rule_file(tmp_path_factory.mktemp("rules"), "\n".join(lines)))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_long_document_of_one_kind_is_judged_within_the_time_limit(kind: str, rules: RuleSet) -> None:
    size = 1 << 18
    text = normalize((TEXTS[kind] * size)[:size] + "z")
    LanguageIdentifier().identify(text)
    for cleaner in filters.cleaner_functions().values():
        cleaner(text)
    rules.measure(text, {"metadata": {"score": 1}, "language_score": 1.0})
    sentences(Page(text))  # the definition of a compiled measure, by an expression
