"""Rule files of one language, also FineWeb2's profiles, hold for documents of that language alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from filters.rules.ruleset import load_rules
from tests.helpers.rule_samples import rule_file

PROFILE = """\
dup_line_frac: 0.263
dup_n_grams:
- - 5
  - 0.141
- - 10
  - 0.098
language_score: 0.821
line_punct_thr: 0.0
max_avg_word_length: 15
max_non_alpha_words_ratio: 0.774
min_avg_word_length: 0
new_line_ratio: 0.152
stopwords:
- der
- und
- no
- "f\\xFCr"
top_n_grams:
- - 2
  - 0.169
"""


def test_profiles_of_fineweb2_load_unchanged(tmp_path: Path) -> None:
    rules = load_rules(rule_file(tmp_path, PROFILE, "deu_Latn.yml"))
    limits = {rule.name: (rule.min, rule.max) for rule in rules.rules if rule.language == "de"}
    no, inf = -math.inf, math.inf
    assert limits == {
        "deu_Latn.duplicate_line_ratio": (no, 0.263),
        "deu_Latn.duplicate_5_gram_ratio": (no, 0.141),
        "deu_Latn.duplicate_10_gram_ratio": (no, 0.098),
        "deu_Latn.language_score": (0.821, inf),
        "deu_Latn.terminal_line_ratio": (0, inf),
        "deu_Latn.mean_word_length": (0, 15),
        "deu_Latn.alphabetic_ratio": (0.774, inf),
        "deu_Latn.newline_ratio": (no, 0.152),
        "deu_Latn.stop_words": (2, inf),
        "deu_Latn.top_2_gram_ratio": (no, 0.169),
    }
    stop_words = next(rule for rule in rules.rules if rule.name == "deu_Latn.stop_words")
    assert stop_words.parameters["words"] == ["der", "und", "no", "für"]
    general = {rule.name: rule.max for rule in rules.rules if not rule.language}
    assert general["duplicate_line_char_ratio"] == 0.1  # FineWeb2's, for all languages


def test_a_profile_holds_for_its_language_alone(tmp_path: Path) -> None:
    german = rule_file(tmp_path, PROFILE, "deu_Latn.yml")
    french = rule_file(tmp_path, "stopwords: [le, la]\n", "fra_Latn.yml")
    rules = load_rules([german, french])
    text = "Der Hund und die Katze lagen für sich. " * 9 + "Nur eins ist neu."
    values = rules.measure(text, {"language": "de", "language_score": 0.5})
    assert values["deu_Latn.stop_words"] == 3
    assert "fra_Latn.stop_words" not in values
    violation = rules.with_limit("deu_Latn.top_2_gram_ratio", "max", 1).judge(values)
    assert violation is not None
    assert violation.rule.startswith("deu_Latn.") or violation.rule == "duplicate_line_char_ratio"
    assert not [name for name in rules.measure(text, {"language": "en"}) if "_Latn" in name]
    assert rules.measure(text, {"language": "fr"})["fra_Latn.stop_words"] == 0


def test_profiles_of_two_scripts_hold_for_texts_in_their_own(tmp_path: Path) -> None:
    latin = rule_file(tmp_path, "stopwords: [je, na]\n", "srp_Latn.yml")
    cyrillic = rule_file(tmp_path, "stopwords: [је, на]\n", "srp_Cyrl.yml")
    rules = load_rules([latin, cyrillic])
    texts = ["Grad je na reci.", "Град је на реци.", "Grad je na reci.", "Град је на реци."]
    labels = ["sr", "sr", "srp_Cyrl", "srp_Latn"]  # a model's label, where it names a script, is believed
    contexts = [{"language": "sr", "language_label": label} for label in labels]
    held = [
        {name.partition(".")[0]: value for name, value in values.items() if name.endswith("stop_words")}
        for values in rules.named(rules.measure_all(texts, contexts))
    ]
    assert held == [{"srp_Latn": 2}, {"srp_Cyrl": 2}, {"srp_Cyrl": 0}, {"srp_Latn": 0}]
    assert len({json.dumps(each.describe()) for each in map(load_rules, (latin, cyrillic))}) == 2


@pytest.mark.parametrize("label", ["ja", "jpn_Jpan"])
def test_a_profile_of_a_script_that_mixes_others_holds_for_them(tmp_path: Path, label: str) -> None:
    rules = load_rules(rule_file(tmp_path, "new_line_ratio: 0.3\n", "jpn_Jpan.yml"))
    for text in ("東京都庁舎", "ひらがな", "カタカナ"):
        assert "jpn_Jpan.newline_ratio" in rules.measure(text, {"language": "ja", "language_label": label})


@pytest.mark.parametrize("language", ["de", "deu", "deu_Latn"])
def test_the_language_of_a_rule_file_is_a_code_or_a_label(tmp_path: Path, language: str) -> None:
    rules = load_rules(rule_file(tmp_path, f'language = "{language}"\nwords = {{ min = 3 }}'))
    assert rules.measure("ein Wort", {"language": "de", "language_label": "de"}) == {"own.words": 2}
    assert rules.measure("one word", {"language": "en", "language_label": "en"}) == {}
