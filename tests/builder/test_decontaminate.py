from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.words import words as words_of
from pipeline.builder.dedup.decontaminate import SHORTEST, Decontaminator, Evaluation, holdings
from pipeline.errors import ConfigError
from pipeline.shards.manifest import Manifest
from tests.helpers import builds
from tests.helpers.builds import run_plain, write_jsonl
from tests.helpers.corpus import english

QUESTION = "which of these thirteen words in a row will be found again here"


def counts(texts: Sequence[str], documents: Sequence[str], ngram: int = 13) -> list[int]:
    """Return how many n-grams of texts each document has."""
    rows, _ = Decontaminator(texts, ngram).matches(documents)
    return np.bincount(rows, minlength=len(documents)).tolist()


def test_what_is_and_what_is_no_overlap() -> None:
    words = QUESTION.split()
    cases = {QUESTION: 1, " ".join(words[:12]): 0, " ".join(words[1:]): 0, "...": 0}
    assert counts([QUESTION, QUESTION, "", "..."], list(cases)) == list(cases.values())
    assert counts([QUESTION], [" ".join(words[:6]), " ".join(words[6:])]) == [0, 0]  # none reaches over two texts
    assert counts([], [QUESTION]) == [0]
    for count, overlap in ((SHORTEST - 1, 0), (SHORTEST, 1)):  # whole, unless it means nothing
        short = " ".join(words[:count])
        assert counts([short], [f"and so {short} it went"]) == [overlap]


@given(
    evaluation=st.lists(st.text("abΣ中文คำ่。 あア", max_size=12), max_size=5),
    text=st.text("abΣ中文คำ่。 あア", max_size=40),
    n=st.integers(1, 4),
)
def test_counts_of_overlaps_equal_the_definition(evaluation: list[str], text: str, n: int) -> None:
    def grams(each: str) -> list[tuple[str, ...]]:
        found = [word for word, *_ in words_of(each)]
        return [tuple(found[k : k + n]) for k in range(len(found) - n + 1)]

    held = {gram for each in evaluation for gram in grams(each)}
    assert counts(evaluation, [text], n) == [sum(gram in held for gram in grams(text))]


ITEM = (
    "A farmer's office in Kraków has fifteen different well-known machines; which of the three flat files, if any, would "
    "confirm that no machine was sold before the first of January?"
)


def held(items: Sequence[str], documents: Sequence[str], share: float = 0.8) -> list[tuple[int, int]]:
    """Return the documents and items of the items that documents hold, if all n-grams count."""
    evaluation = Evaluation([f"q{k}" for k in range(len(items))], items)
    every = np.ones(len(evaluation.grams.hashes), bool)
    found = holdings(evaluation.grams, evaluation.grams.found(documents), every, share)
    return [(each.row, each.item) for each in found]


@pytest.mark.parametrize(
    "written",
    [
        ITEM,
        "\n".join(ITEM.split()),
        ITEM.upper(),
        ITEM.replace("fi", "\ufb01").replace("fl", "\ufb02").replace(" ", "\u00a0"),
        ITEM.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
        ITEM.replace("farm", "far\u00adm").replace("confirm", "con\u00adfirm").replace("machine", "ma&shy;chine"),
        *(ITEM.replace("e", f"e{mark}") for mark in "\u200b\u200c\u200d\u2060\ufeff"),
        ITEM.replace("different", "diffe-\nrent").replace("confirm", "con-\n  firm"),
        ITEM.replace("well-known", "well-\nknown"),
        ITEM.replace("different", "diffe\u2010\nrent").replace("January", "Janu\u00ad\nary"),
        ITEM.replace("'", "&#39;").replace("ó", "&oacute;").replace(" ", "&nbsp;").replace("o", "&#x6f;"),
        ITEM.replace("'", "&amp;#39;").replace("ó", "&amp;oacute;"),
    ],
)
def test_an_item_is_found_however_it_is_written(written: str) -> None:
    around = "Nothing of the sort. {} And so on, as before."
    assert held([ITEM], [around.format(written), around.format("")]) == [(0, 0)]


def test_an_item_that_is_written_with_entities_and_ligatures_is_found_in_plain_text() -> None:
    assert held([ITEM.replace("fi", "\ufb01").replace("'", "&#39;").replace(" ", "&nbsp;")], [ITEM]) == [(0, 0)]


def test_a_document_holds_an_item_if_it_has_the_share_of_its_words() -> None:
    words = [f"word{chr(97 + k // 26)}{chr(97 + k % 26)}" for k in range(50)]
    parts = [" ".join(words[:count]) for count in (50, 40, 39, 13, 12)]
    assert held([" ".join(words)], parts) == [(0, 0), (1, 0)]
    assert held([" ".join(words)], parts, share=0) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    edited = " ".join([*words[:20], "another", *words[21:]])
    assert held([" ".join(words)], [edited]) == [(0, 0)]
    assert held(["x", " ".join(words[:13]), " ".join(words)], [" ".join(words)]) == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    "formula",
    [
        " ".join(map(str, range(40))),
        "sin x cos y + cos x sin y = sin(x + y), a^2 + b^2 = c^2, x = 1, y = 2",
        "| a | 1 | 2 |\n| b | 3 | 4 |\n| c | 5 | 6 |\n| d | 7 | 8 |\n| e | 9 | 0 |",
    ],
)
def test_numbers_signs_and_single_letters_are_not_compared(formula: str) -> None:
    assert held([formula, f"{formula} {QUESTION}"], [formula]) == []
    assert held([formula, f"{formula} {QUESTION}"], [f"{formula} {QUESTION}"]) == [(0, 1)]


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
    texts = [QUESTION, *(" ".join(words[:count]) for count in (SHORTEST - 1, SHORTEST))]
    quiz = write_jsonl(tmp_path / "quiz.jsonl", texts)
    with pytest.warns(UserWarning, match=r"1 of 3 .* too short \(under 8 words"):
        decontaminated(tmp_path, ["nothing of it"], quiz)


def test_evaluation_sets_have_a_key_of_their_own(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"question": QUESTION, "text": "of another kind"}])
    manifest = decontaminated(tmp_path, [f"So: {QUESTION}!", "nothing of it"], quiz, decontaminate_key="question")
    assert manifest.counts["dropped"] == {"contaminated": 1}


def test_records_of_a_set_that_yield_no_text_are_counted_in_a_warning(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": QUESTION}, {"text": None}, {}])
    said = r"quiz\.jsonl: 2 of 3 records .* no text, the first, line 2.* lines 2, 3"
    with pytest.warns(UserWarning, match=said) as caught:
        manifest = decontaminated(tmp_path, [QUESTION], quiz)
    assert caught[0].filename == builds.__file__  # the nearest line outside of the package
    assert manifest.counts["dropped"] == {"contaminated": 1}


@pytest.mark.parametrize("normalized", [True, False])
def test_letters_are_compared_composed_whatever_the_build_normalizes(tmp_path: Path, normalized: bool) -> None:
    texts = {"composed": QUESTION.replace("a", "\u00e9"), "decomposed": QUESTION.replace("a", "e\u0301")}
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": texts["decomposed"]}])
    for name, text in texts.items():
        manifest = decontaminated(tmp_path / name, [text], quiz, normalize=normalized)
        assert manifest.counts["dropped"] == {"contaminated": 1}


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
    assert held([question], [f"题目如下：{question}（完）", *others]) == [(0, 0)]


def test_evaluation_texts_that_are_too_short_are_counted_aloud(tmp_path: Path) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": "What is it?"}] * 500 + [{"text": QUESTION}])
    said = "quiz.jsonl: 500 of 501 texts are too short (under 8 words) or only numbers and signs, and were not compared"
    said += ": quiz.jsonl:1, quiz.jsonl:2"
    with pytest.warns(UserWarning, match=re.escape(said)):
        manifest = decontaminated(tmp_path, [QUESTION, "What is it? It is this."], quiz)
    assert manifest.counts["dropped"] == {"contaminated": 1}
    assert said in (tmp_path / "out" / "report.html").read_text()


def notice_and_leaks(folder: Path, **settings: Any) -> Manifest:
    """Build 60 documents with a notice, 30 equal ones that hold an item, and one that holds an item with the notice."""
    notice = " ".join(f"notice{chr(97 + k)}" for k in range(20))
    follows = f"{notice} Which of these is it, and what follows from it then?"
    items = [{"id": "own", "text": QUESTION}, {"id": "with", "text": follows}]
    quiz = write_jsonl(folder / "quiz.jsonl", items)
    texts = [f"{english(k, 30)}\n{notice}\n{english(k + 500, 9)}" for k in range(60)]
    texts += [f"{english(700, 60)}\n{QUESTION}\n{english(701, 60)}"] * 30 + [f"{english(702, 60)} {follows}"]
    settings = {"keep_rejected": True, "dedup": False, **settings}
    return decontaminated(folder, texts, quiz, **settings)


def test_text_that_many_documents_have_is_no_leak_but_copies_of_one_text_are(tmp_path: Path) -> None:
    manifest = notice_and_leaks(tmp_path, decontaminate_share=0)
    assert manifest.counts["dropped"] == {"contaminated": 31}
    found = [(each["item"], each["documents"]) for each in manifest.counts["contaminated_items"]]
    assert found == [("quiz.jsonl: own", 30), ("quiz.jsonl: with", 1)]
    notice = write_jsonl(tmp_path / "notice" / "quiz.jsonl", [" ".join(f"notice{chr(97 + k)}" for k in range(20))])
    known = run_plain(tmp_path / "in.jsonl", tmp_path / "notice" / "out", decontaminate=str(notice))
    assert re.fullmatch(r"decontaminate: 1 item cannot be .*: 'quiz\.jsonl: d0'; .*common.*", known.counts["notes"][0])
    every = notice_and_leaks(tmp_path / "all", decontaminate_share=0, decontaminate_common=1)
    assert every.counts["dropped"] == {"contaminated": 91}


def test_the_item_is_named_in_the_reason_and_in_the_report(tmp_path: Path) -> None:
    notice_and_leaks(tmp_path)
    of_items = (("own", 13), ("with", 23))
    expected = {f"contaminated by quiz.jsonl: {id}: 100% of the item, {count} words in a row" for id, count in of_items}
    assert {line["reason"] for line in builds.rejected(tmp_path / "out")} == expected
    report = (tmp_path / "out" / "report.html").read_text()
    assert re.search(r">30</td><td class=\"n\">13</td>\s*<td class=\"n\">100.0%</td><td><code>quiz.jsonl: own<", report)


def test_what_an_item_shares_is_cut_and_the_document_compared_as_it_is_left(tmp_path: Path) -> None:
    manifest = notice_and_leaks(tmp_path, decontaminate_action="cut", dedup=True)
    assert manifest.counts["contamination"]["cut"] == 31
    texts = builds.kept(tmp_path / "out")
    assert (len(texts), any(QUESTION in text for text in texts)) == (62, False)  # of 30 equal texts, one is left
    assert f"{english(700, 60)}\n{english(701, 60)}" in texts
    short = decontaminated(tmp_path / "short", [QUESTION], tmp_path / "quiz.jsonl", decontaminate_action="cut")
    assert short.counts["dropped"] == {"contaminated": 1}


def test_a_cut_ends_where_the_words_of_a_disguised_item_end(tmp_path: Path) -> None:
    written = ITEM.replace("'", "&#39;").replace("fi", "\ufb01").replace("different", "diffe-\nrent")
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [ITEM])
    text = f"{english(1, 60)}\n\n{written}\n\n{english(2, 60)}"
    decontaminated(tmp_path, [text], quiz, decontaminate_action="cut")
    assert builds.kept(tmp_path / "out") == [f"{english(1, 60)}\n\n{english(2, 60)}"]


def test_a_marked_document_keeps_its_text_and_names_the_item(tmp_path: Path) -> None:
    manifest = notice_and_leaks(tmp_path, decontaminate_action="mark")
    assert (manifest.counts["kept"], manifest.counts["contamination"]["marked"]) == (91, 31)
    marks = builds.table(tmp_path / "out")["column:contaminated"]
    assert [marks.count(mark) for mark in ("quiz.jsonl: own", "quiz.jsonl: with", None)] == [30, 1, 60]
