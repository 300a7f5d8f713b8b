from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.words import words
from pipeline.builder.dedup.decontaminate import SHORTEST, Decontaminator
from pipeline.errors import ConfigError
from pipeline.shards.manifest import Manifest
from tests.helpers import builds
from tests.helpers.builds import run_plain, write_jsonl

QUESTION = "which of these thirteen words in a row will be found again here"


def test_what_is_and_what_is_no_overlap() -> None:
    words = QUESTION.split()
    found = Decontaminator({"quiz": [QUESTION], "again": [QUESTION], "empty": ["", "..."]})
    cases = {
        QUESTION: (1, "quiz"),  # the first set that holds it is named
        " ".join(words[:12]): (0, None),  # twelve words of a longer question
        " ".join(words[1:]): (0, None),
        "...": (0, None),
    }
    assert found.overlaps(list(cases)) == list(cases.values())
    assert found.overlaps([" ".join(words[:6]), " ".join(words[6:])]) == [(0, None)] * 2  # none reaches over two texts
    assert Decontaminator({}).overlaps([QUESTION]) == [(0, None)]
    for count, overlap in ((SHORTEST - 1, (0, None)), (SHORTEST, (1, "short"))):  # whole, unless it means nothing
        short = " ".join(words[:count])
        assert Decontaminator({"short": [short]}).overlaps([f"and so {short} it went"]) == [overlap]


@given(
    evaluation=st.lists(st.text("abΣ中文คำ่。 あア", max_size=12), max_size=5),
    text=st.text("abΣ中文คำ่。 あア", max_size=40),
    n=st.integers(1, 4),
)
def test_counts_of_overlaps_equal_the_definition(evaluation: list[str], text: str, n: int) -> None:
    def grams(each: str) -> list[tuple[str, ...]]:
        found = [word for word, *_ in words(each)]
        return [tuple(found[k : k + n]) for k in range(len(found) - n + 1)]

    held = {gram for each in evaluation for gram in grams(each)}
    expected = sum(gram in held for gram in grams(text))
    assert Decontaminator({"set": evaluation}, ngram=n).overlaps([text]) == [(expected, "set" if expected else None)]


def decontaminated(folder: Path, texts: Sequence[str], *sets: Path, **settings: Any) -> Manifest:
    source = write_jsonl(folder / "in.jsonl", texts)
    return run_plain(source, folder / "out", decontaminate=list(map(str, sets)), **settings)


def test_a_set_without_the_field_is_refused_naming_the_fields_it_has(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"question": QUESTION, "answer": "here"}])
    with pytest.raises(ConfigError, match=r"quiz\.jsonl: .*'question', 'answer'.*--decontaminate-key"):
        decontaminated(tmp_path, [QUESTION], quiz)
    (tmp_path / "quiz.csv").write_text(f"question,answer\n{QUESTION},here\n")
    with pytest.raises(ConfigError, match=r"quiz\.csv: .*question.*--decontaminate-key"):
        decontaminated(tmp_path, [QUESTION], tmp_path / "quiz.csv")


@pytest.mark.parametrize("records", [[], [{"text": "too short"}]])
def test_a_set_that_yields_no_n_gram_is_refused(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"quiz\.jsonl: this evaluation set has no"):
        decontaminated(tmp_path, [QUESTION], write_jsonl(tmp_path / "quiz.jsonl", records))


def test_texts_of_a_set_that_are_too_short_are_counted(tmp_path: Path) -> None:
    words = QUESTION.split()
    quiz = write_jsonl(
        tmp_path / "quiz.jsonl", [QUESTION, *(" ".join(words[:count]) for count in (SHORTEST - 1, SHORTEST))]
    )
    with pytest.warns(UserWarning, match=r"1 of 3 .* too short \(under 8 words"):
        decontaminated(tmp_path, ["nothing of it"], quiz)


def test_evaluation_sets_have_a_key_of_their_own(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"question": QUESTION, "text": "of another kind"}])
    manifest = decontaminated(tmp_path, [f"So: {QUESTION}!", "nothing of it"], quiz, decontaminate_key="question")
    assert manifest.counts["dropped"] == {"contaminated": 1}


def test_records_of_a_set_that_yield_no_text_are_counted_in_a_warning(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": QUESTION}, {"text": None}, {}])
    with pytest.warns(UserWarning, match=r"quiz\.jsonl: 2 of 3 records .* yield no text, the first, line 2") as caught:
        manifest = decontaminated(tmp_path, [QUESTION], quiz)
    assert caught[0].filename == builds.__file__  # the nearest line outside of the package
    assert manifest.counts["dropped"] == {"contaminated": 1}


@pytest.mark.parametrize(("normalized", "dropped"), [(True, ["composed", "decomposed"]), (False, ["decomposed"])])
def test_evaluation_texts_are_normalized_as_documents_are(tmp_path: Path, normalized: bool, dropped: list[str]) -> None:
    texts = {"composed": QUESTION.replace("a", "\u00e9"), "decomposed": QUESTION.replace("a", "e\u0301")}
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": texts["decomposed"]}])
    for name, text in texts.items():
        manifest = decontaminated(tmp_path / name, [text], quiz, normalize=normalized)
        assert manifest.counts["dropped"] == ({"contaminated": 1} if name in dropped else {})


def test_two_sets_of_one_file_name_are_both_used_and_told_apart(tmp_path: Path) -> None:
    others = "of the many other questions there are this one stands in the second of two files"
    first = write_jsonl(tmp_path / "one" / "test.jsonl", [{"text": QUESTION}])
    second = write_jsonl(tmp_path / "two" / "test.jsonl", [{"text": others}])
    manifest = decontaminated(tmp_path, [QUESTION, others], first, second)
    assert manifest.counts["dropped"] == {"contaminated": 2}
    assert set(manifest.recipe["definitions"]["decontaminate"]) == {"one/test.jsonl", "two/test.jsonl"}


CHINESE = "下列关于光合作用的说法中，哪一项是不正确的？请写出理由。"
THAI = "ข้อใดต่อไปนี้กล่าวถึงการสังเคราะห์ด้วยแสงไม่ถูกต้อง"


@pytest.mark.parametrize("question", [CHINESE, THAI])
def test_a_question_in_a_script_without_spaces_is_found(question: str) -> None:
    others = [question[:8] + "今天天气很好" + question[-8:], "今天天气很好。" * 4]
    found = Decontaminator({"quiz": [question]}).overlaps([f"题目如下：{question}（完）", *others])
    assert [name for _, name in found] == ["quiz", None, None]


def test_evaluation_texts_that_are_too_short_are_counted_aloud(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": "What is it?"}] * 500 + [{"text": QUESTION}])
    said = "quiz.jsonl: 500 of 501 evaluation texts are too short (under 8 words) and were not compared"
    with pytest.warns(UserWarning, match=re.escape(said)):
        manifest = decontaminated(tmp_path, [QUESTION, "What is it? It is this."], quiz)
    assert manifest.counts["dropped"] == {"contaminated": 1}
    assert said in (tmp_path / "out" / "report.html").read_text()
