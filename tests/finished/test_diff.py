"""``diff``: documents of two builds, the settings and rules that differ, and what the rules of one drop of the other."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import filters
import pipeline
from filters.rules.ruleset import load_rules
from pipeline.cli.main import main
from pipeline.errors import ConfigError
from pipeline.finished.diff import DUPLICATE, KINDS, UNKNOWN, diff, stated_rules
from pipeline.finished.redaction.redact import drop, redact
from pipeline.progress import Progress
from pipeline.shards.manifest import FileInfo, Manifest
from tests.helpers.builds import run_plain, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import GERMAN, english


def build(folder: Path, texts: dict[str, str], **options: Any) -> Path:
    """Build a dataset of texts by their ids; those whose ids begin with "w" have the source "web"."""
    records = [{"id": id, "text": text} for id, text in texts.items()]
    some = {name: [one for one in records if (one["id"][0] == "w") == (name == "web")] for name in ("web", "books")}
    inputs = [f"{name}={write_jsonl(folder / f'{name}.jsonl', held)}" for name, held in some.items() if held]
    run_plain(inputs, folder / "set", **options)
    return folder / "set"


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_documents_of_both_are_counted_as_defined(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ids = [f"{source}{number}" for source in "wb" for number in range(4)]
    texts = st.sampled_from([english(number, 6) for number in range(6)])
    one, other = (data.draw(st.dictionaries(st.sampled_from(ids), texts, min_size=1)) for _ in "ab")
    folder = tmp_path_factory.mktemp("diff")
    found = diff(build(folder / "a", one, dedup=False), build(folder / "b", other, dedup=False), judged=1)
    common = Counter(one.values()) & Counter(other.values())
    assert found["documents"]["same"] == common.total()
    assert found["documents"]["same"] + found["documents"]["changed"] + found["documents"]["only_a"] == len(one)
    assert found["documents"]["same"] + found["documents"]["changed"] + found["documents"]["only_b"] == len(other)
    if len({*one.values(), *other.values()}) == len(one) + len(other) - common.total() and common.total() == 0:
        assert found["documents"]["changed"] == len(one.keys() & other.keys())
    for groups in (found["by_source"], found["by_language"]):
        assert {kind: sum(counts[kind] for counts in groups.values()) for kind in KINDS} == found["documents"]


def test_a_changed_rule_is_named_with_the_documents_that_it_dropped(tmp_path: Path) -> None:
    texts = {f"w{number}": english(number, 4 + number) for number in range(30)}
    rules = tmp_path / "mine.toml"
    rules.write_text("words = { min = 40 }\n")
    first = build(tmp_path / "a", texts, rules=str(rules))
    rules.write_text("words = { min = 150, max = 290 }\nmean_word_length = { max = 10 }\n")
    second = build(tmp_path / "b", texts, rules=str(rules), seed=1)
    rules.unlink()
    found = diff(first, second, samples=2)
    counts = found["documents"]
    kept = [pipeline.Manifest.read(each).counts["kept"] for each in (first, second)]
    assert counts == {"same": kept[1], "changed": 0, "only_a": kept[0] - kept[1], "only_b": 0}
    assert found["settings"] == {"seed": [0, 1]}
    dropped = [pipeline.Manifest.read(each).counts["dropped"].get("words", 0) for each in (first, second)]
    assert found["rules"] == {
        "words": {"limits": ["at least 40", "150 to 290"], "dropped": dropped},
        "mean_word_length": {"limits": [None, "at most 10"], "dropped": [0, 0]},
    }
    [(rule, reason)] = found["why"]["only_a"].items()
    assert (rule, reason["documents"], len(reason["samples"])) == ("words", counts["only_a"], 2)
    for sample in reason["samples"]:
        assert texts[sample["id"]].startswith(sample["text"])
        assert sample["reason"] == f"words {len(texts[sample['id']].split())} < 150"
    assert sum(reason["documents"] for reason in diff(first, second, judged=3)["why"]["only_a"].values()) == 3


def test_languages_duplicates_and_other_reasons_are_told_apart(tmp_path: Path) -> None:
    base, near = english(1, 40), english(1, 40) + " And one more."
    first = build(tmp_path / "a", {"w1": GERMAN * 3, "w2": near, "w3": english(3), "w5": english(5)})
    second = build(tmp_path / "b", {"w4": base}, language="en=0.2")
    why = diff(first, second)["why"]
    reasons = [(rule, [sample["id"] for sample in reason["samples"]]) for rule, reason in why["only_a"].items()]
    assert reasons == [(UNKNOWN, ["w3", "w5"]), ("language", ["w1"]), (DUPLICATE, ["w2"])]  # the most frequent first
    third = build(tmp_path / "c", {"w4": base}, language="en", language_threshold=1.0)
    assert [*diff(first, third)["why"]["only_a"]] == ["language_score", "language"]
    assert [*why["only_b"]] == [DUPLICATE]
    [sample] = why["only_b"][DUPLICATE]["samples"]
    assert re.fullmatch(r"a similarity of 0\.9\d to key 000000000001", sample.pop("reason"))
    assert sample == {"key": "000000000000", "id": "w4", "source": "web", "language": "en", "text": base[:300]}


def test_a_changed_text_is_shown_from_its_first_difference(tmp_path: Path) -> None:
    before = {"w1": english(1), "b1": english(2)}
    after = {"w1": english(1), "b1": english(2)[:200] + "!" + english(2)[200:], "b2": english(3, 9)}
    before["b2"] = after["b2"][:-8]
    found = diff(build(tmp_path / "a", before), build(tmp_path / "b", after))
    books, web = ({**dict.fromkeys(KINDS, 0), kind: count} for kind, count in (("changed", 2), ("same", 1)))
    assert [*found["by_source"].items()] == [("books", books), ("web", web)]
    [sample, longer] = found["changed"]
    assert (longer["id"], longer["character"]) == ("b2", len(before["b2"]))
    assert (sample["id"], sample["character"], sample["texts"][1][30]) == ("b1", 200, "!")


def test_a_file_of_the_same_name_and_other_contents_is_a_difference(tmp_path: Path) -> None:
    sets = []
    for name, listed in (("a", "w1\n"), ("b", "w2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ids.txt").write_text(listed)
        texts = {"w1": english(1), "w2": english(2)}
        sets.append(build(tmp_path / name, texts, drop_ids=str(tmp_path / name / "ids.txt")))
    [(name, hashes)] = diff(*sets)["settings"].items()
    assert name == "drop_ids, contents"
    assert hashes == [hashlib.sha256(listed).hexdigest() for listed in (b"w1\n", b"w2\n")]
    assert diff(sets[0], sets[0])["settings"] == {}
    plain = build(tmp_path / "c", texts)
    assert diff(sets[0], plain)["settings"] == {"drop_ids": ["ids.txt", None]}


@pytest.mark.parametrize("name", filters.bundled_rule_sets())
def test_bundled_rules_are_judged_again_as_the_manifest_states_them(name: str) -> None:
    rules = load_rules(name)
    recipe = {"definitions": {"rules": json.loads(json.dumps(rules.describe()))}}
    manifest = Manifest("<u2", {}, {}, FileInfo("extents.npz", 0, ""), recipe)
    expected = [rule.describe() for rule in rules.rules if "column" not in rule.parameters]
    assert [rule.describe() for rule in stated_rules(manifest).rules] == expected


def test_rules_of_other_definitions_are_not_judged_again() -> None:
    described = load_rules("gopher_quality").describe()
    described["rules"][0]["measure"] = "mine:words@0123"
    described["rules"][1]["parameters"] = {"by": "nothing that is known"}
    manifest = Manifest("<u2", {}, {}, FileInfo("extents.npz", 0, ""), {"definitions": {"rules": described}})
    assert [rule.describe() for rule in stated_rules(manifest).rules] == described["rules"][2:]


@pytest.mark.parametrize("kind", [None, "parquet", "jsonl.zst"])
def test_redacted_documents_are_in_no_count_and_in_no_search(
    tmp_path: Path, kind: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {f"w{number}": english(number) for number in range(6)}
    first, second = build(tmp_path / "a", texts), build(tmp_path / "b", texts, keep_texts=kind)
    (tmp_path / "ids").write_text("w2\n")
    kept = tmp_path / "index"
    assert all(pipeline.find(second, list(texts.values()), index=kept, progress=Progress(quiet=True)))
    flags = ["--ids", str(tmp_path / "ids"), "--reason", "opt-out", *(["--texts"] if kind else [])]
    assert main(["redact", str(second), *flags]) == 0
    found = diff(first, second)
    assert found["documents"] == {"same": 5, "changed": 0, "only_a": 1, "only_b": 0}
    kinds: list[dict[str, Any]] = [{"index": kept}, {"index": kept}, {}, {"passages": True}]
    capsys.readouterr()
    for number, options in enumerate(kinds):
        matches = pipeline.find(second, list(texts.values()), progress=Progress(), **options)
        said = f"{kept}: the index is damaged, or the dataset has changed; the index is made again"
        assert (said in capsys.readouterr().err) == (number == 0)
        assert [[match.id for match in some] for some in matches] == [[id] if id != "w2" else [] for id in texts]


def test_redactions_of_a_copy_are_counted_by_date_and_reason(tmp_path: Path) -> None:
    texts = {f"w{number}": english(number) for number in range(8)} | {"b1": english(0)}
    first = build(tmp_path / "a", texts, dedup=False)
    second = Path(shutil.copytree(first, tmp_path / "second"))
    redact(second, ["w0", "w1"], "opt-out")
    drop(second, ["w2"], "order", tmp_path / "third")
    drop(tmp_path / "third", ["w3"], "order", tmp_path / "fourth")
    drop(first, ["w4"], "other", tmp_path / "sibling")
    day = datetime.now(UTC).date()
    optout, order, other = (f"redaction of {day}: {reason}" for reason in ("opt-out", "order", "other"))

    def why(one: Path, two: Path) -> list[dict[str, int]]:
        found = diff(one, two, judged=1, samples=1)
        assert all(len(reason["samples"]) == 1 for some in found["why"].values() for reason in some.values())
        assert found["documents"]["changed"] == 0
        assert [found["documents"][kind] for kind in ("only_a", "only_b")] == [
            sum(reason["documents"] for reason in found["why"][kind].values()) for kind in ("only_a", "only_b")
        ]
        return [{name: reason["documents"] for name, reason in found["why"][kind].items()} for kind in found["why"]]

    assert why(first, second) == [{optout: 2}, {}]
    assert why(second, first) == [{}, {optout: 2}]
    assert why(first, tmp_path / "fourth") == [{optout: 2, order: 2}, {}]
    assert why(second, tmp_path / "fourth") == [{order: 2}, {}]
    assert why(tmp_path / "sibling", tmp_path / "fourth") == [{optout: 2, order: 2}, {other: 1}]
    [sample] = diff(first, second, samples=1)["why"]["only_a"][optout]["samples"]
    assert (sample["id"], texts["w0"].startswith(sample["text"])) == ("w0", True)


def test_documents_of_another_build_are_not_taken_for_redacted_ones(tmp_path: Path) -> None:
    texts = {f"w{number}": english(number) for number in range(4)}
    first = build(tmp_path / "a", {id: text + " More." for id, text in texts.items()})
    second = build(tmp_path / "b", texts, dedup=False)
    redact(second, ["w1"], "opt-out")
    assert [*diff(first, second)["why"]["only_a"]] == [UNKNOWN]


TABLES = """\
documents    same text  changed text  only in A  only in B
all                  1             1          0          1
source web           1             1          0          1
language en          1             1          0          1
setting seed: 40 in A, 70 in B

rule   limits in A         in B  dropped by A  by B
words  at least 40  at least 70             1     0
exact            -            -             0     1

only in B, 1: why A lacks 1 of them
  another reason  1
    no rule drops it: another input, step or quota   [en] key 000000000002, id w3
      Too time well great right too another say before. Such great set great any …

changed texts, 1
  key 000000000001, id w2, from character 1
    A With after water three put place. Mean right way man name came such must mu…
    B Want form must want well to say must any another. Thing end name with place…
"""


def test_tables_and_exit_status_say_whether_builds_differ(tmp_path: Path, says: Says) -> None:
    rules, sets = tmp_path / "words.toml", []
    for name, least, texts in (
        ("a", 40, {"w1": english(1), "w2": english(2), "b0": "To be."}),
        ("b", 70, {"w1": english(1), "w2": english(5), "w3": english(3, 20), "w4": english(1)}),
    ):
        rules.write_text(f"words = {{ min = {least} }}\n")
        sets.append(build(tmp_path / name, texts, rules=str(rules), seed=least))
    first, second = sets
    assert main(["diff", str(first), str(first)]) == 0
    assert says(1, "diff", first, second).out == TABLES
    assert json.loads(says(1, "diff", first, second, "--json").out) == diff(first, second)


def test_what_cannot_be_compared_is_exit_status_2(tmp_path: Path, says: Says) -> None:
    first = build(tmp_path / "a", {"w1": english(1)})
    pipeline.write_shards([np.arange(9, dtype=np.uint16)], tmp_path / "ids", eos_id=0)
    none, said = "none/manifest.json: not there", "its shards hold no ids and hashes of texts; compare datasets that"
    says(2, "diff", first, tmp_path / "none", shows=none)
    says(2, "diff", tmp_path / "ids", first, shows=said)
    with pytest.raises(ConfigError, match="no ids and hashes"):
        diff(first, tmp_path / "ids")
