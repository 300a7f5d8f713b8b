"""What is counted adds up however the work is cut: numbers, histograms and the samples of every outcome."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import bundled_rule_sets
from filters.rules.ruleset import load_rules
from pipeline.builder.counts.build_stats import BuildStats
from pipeline.builder.counts.samples import SAMPLES, Samples
from pipeline.builder.counts.sums import BINS, PASSED, Bins, Counts, Histogram
from pipeline.builder.limits import Limits
from pipeline.builder.report.funnel import funnel
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.balance import imbalances
from tests.helpers.builds import Built, rejected, run_plain, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.tokenizer_samples import train_without_unknown


def counted(values: Sequence[float], holds: Sequence[bool] | None = None) -> Histogram:
    """Return the histogram of the words of documents, which may be 50 to 100,000."""
    rules = load_rules("gopher_quality").rules[:1]
    assert (rules[0].name, rules[0].min, rules[0].max) == ("words", 50, 100_000)
    held = np.ones(len(values), bool) if holds is None else np.array(holds)
    return Bins(rules).count(np.array([values], float).T, held[:, None])["words"]


def test_sums_do_not_depend_on_the_order_of_parts() -> None:
    parts = []
    for number in range(4):
        counts = Counts({"words": counted([10.0 * number])})
        counts.add_outcome("filtered", "web", "en", "words" if number % 2 else PASSED, 10 * number)
        counts.add("bad", "invalid JSON", number=number)
        parts.append(Counts.from_json(json.loads(json.dumps(counts.to_json()))))
    whole, reverse = (BuildStats.of(Counts.sum(some)) for some in (parts, parts[::-1]))
    assert whole.to_json() == reverse.to_json()
    assert (whole.read, whole.dropped, whole.bad) == (4, {"words": 2}, {"invalid JSON": 6})
    assert whole.dropped_characters == {"words": 40}
    assert sum(whole.histograms["words"]["counts"]) == 4


def test_far_limits_make_bins_of_equal_ratios_and_nan_is_in_none() -> None:
    counts = counted([math.nan, -1.0, 0.0, 1e9, math.inf, 3.0], [True] * 5 + [False])["counts"]
    assert (len(counts), sum(counts), counts[0], counts[-1]) == (BINS, 4, 2, 2)
    values = [-5.0, 0.0, 1.0, 49.0, 50.0, 3_000.0, 199_999.0]
    histogram = counted(values)
    bins = [k for k, count in enumerate(histogram["counts"]) for _ in range(count)]
    assert bins == [int(BINS * np.log1p(max(0.0, value)) / np.log1p(200_000)) for value in values]
    assert histogram["log"]


def test_a_histogram_ends_where_its_measure_says_whatever_the_rule_is_called(tmp_path: Path) -> None:
    rules = 'rude = { measure = "profanity_ratio", max = 0.01 }\nscored_words = { measure = "words", max = 20 }\n'
    (tmp_path / "own.toml").write_text(rules + '"column:int_score" = { min = 3 }\n')
    empty = Bins(load_rules(tmp_path / "own.toml").rules).empty()
    assert {name: each["top"] for name, each in empty.items()} == {"rude": 1, "scored_words": 40, "column:int_score": 6}


def test_every_source_and_language_adds_up_whatever_rules_are_called() -> None:
    counts = Counts()
    counts.add_outcome("filtered", "web", "en", PASSED, 20, documents=5)
    counts.add_outcome("filtered", "web", "de", "kept", 2)  # a rule of that name
    counts.add_outcome("filtered", "wiki", "en", PASSED, 3)
    counts.add("added", "halves")
    counts.add("added to", "web", "en")
    for outcome in ("kept", "exact", "near", "max_tokens", "max_tokens"):
        counts.add_outcome("final", "web", "en", outcome, 5)
    counts.add_outcome("final", "wiki", "en", "kept", 3)
    counts.add("tokens", "web", "en", number=9)
    stats = BuildStats.of(counts)
    stats.duplicates = {"exact": 1, "near": 1}
    assert list(imbalances(stats.to_json())) == []
    counts = {"read": 5, "characters": 22, "kept": 1, "tokens": 9, "added": 1}
    lost = {"dropped": {"kept": 1, "max_tokens": 2}, "duplicates": {"exact": 1, "near": 1}}
    assert stats.by_source["web"] == counts | lost
    assert stats.by_source["wiki"]["tokens"] == 0
    assert (stats.read, stats.kept, stats.tokens, stats.dropped) == (6, 2, 9, {"kept": 1, "max_tokens": 2})


@given(st.lists(st.tuples(st.sampled_from(["kept", "words"]), st.integers(0, 30)), max_size=60), st.integers(0, 60))
def test_the_samples_with_the_smallest_keys_stay(added: list[tuple[str, int]], cut: int) -> None:
    samples, parts = Samples(), [Samples(), Samples()]
    for number, (outcome, key) in enumerate(added):
        samples.add(outcome, key, {"id": "", "text": str(key)})
        parts[number >= cut].add(outcome, key, {"id": "", "text": str(key)})
    joined = Samples()
    for part in reversed(parts):
        joined.update(json.loads(json.dumps(part.to_json())))
    wanted = {outcome: sorted({key for name, key in added if name == outcome})[:SAMPLES] for outcome, _ in added}
    assert {name: [int(each["text"]) for each in shown] for name, shown in samples.shown().items()} == wanted
    assert joined.shown() == samples.shown()
    samples.add("long", 0, {"id": "i" * 1_000_000, "text": "t" * 1_000_000})
    assert len(json.dumps(samples.to_json())) < 3_000


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """400 documents: a fifth too short, as many exact copies, and near ones."""
    found = []
    for k in range(400):
        first = english(k - k % 5, 30)
        text = [first, f"{english(k, 1)} Too short.", first, first + " And one more.", english(k, 30)][k % 5]
        found.append(json.dumps({"id": f"d{k}", "text": text}) + "\n")
    return found


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"rules": "gopher_quality", "val_fraction": 0.1, **options})


def test_samples_of_every_outcome_come_from_all_over_the_corpus(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "in.jsonl").write_text("".join(lines))
    samples = run(tmp_path / "in.jsonl", tmp_path / "out").counts["samples"]
    assert set(samples) == {"kept", "words", "exact duplicates", "near duplicates"}
    for name, shown in samples.items():
        assert len(shown) == SAMPLES, name
        assert max(sample["line"] for sample in shown) > 100, name  # all of the first few would be below 40
        for sample in shown:
            record = json.loads(lines[sample["line"] - 1])
            assert sample["id"] == record["id"]
            text = sample["text"].removeprefix("… ")  # near duplicates are shown from where they begin to differ
            assert text in record["text"] if name == "near duplicates" else text == record["text"][:600]
    assert all(sample["reason"] is None for sample in samples["kept"])
    for sample in samples["exact duplicates"]:
        first = sample["line"] - 2
        assert sample["reason"] == f"exact duplicate of d{first - 1} (in.jsonl, line {first})"
    assert {int(sample["id"][1:]) % 5 for sample in samples["near duplicates"]} == {3}


def test_neither_order_nor_files_nor_units_decide_which_samples_are_shown(tmp_path: Path, lines: list[str]) -> None:
    singles = [line for k, line in enumerate(lines) if k % 5 in (1, 4)]
    mixed, shown = random.Random(0).sample(singles, len(singles)), []
    cut = Limits(smallest_unit_bytes=20_000, units_wanted=4)
    for name, files, limits in (("one", [singles], Limits()), ("two", [mixed[::2], mixed[1::2]], cut)):
        (tmp_path / name).mkdir()
        for number, some in enumerate(files):
            (tmp_path / name / f"{number}.jsonl").write_text("".join(some))
        samples = run(tmp_path / name, tmp_path / f"{name}.out", limits=limits).counts["samples"]
        shown.append({outcome: [sample["text"] for sample in some] for outcome, some in samples.items()})
    assert shown[0] == shown[1]


def test_documents_without_an_id_are_shown_by_file_and_line(tmp_path: Path) -> None:
    found = [json.dumps({"text": f"{english(k, 3)} Short." if k % 2 else english(k, 30)}) + "\n" for k in range(60)]
    (tmp_path / "in.jsonl").write_text("".join(found))
    small = Limits(smallest_unit_bytes=2_000)
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", keep_rejected=True, limits=small)
    shown = [sample for held in manifest.counts["samples"].values() for sample in held]
    lost = rejected(tmp_path / "out")
    assert len(lost) == 30
    for each in [*shown, *lost]:
        assert each["id"] == f"in.jsonl:{each['line']}"
        assert json.loads(found[each["line"] - 1])["text"].startswith(each["text"][:600])


@pytest.mark.parametrize(
    "preset",  # gopher_datatrove takes long for its tokenizer
    [pytest.param(name, marks=[pytest.mark.nightly] * (name == "gopher_datatrove")) for name in bundled_rule_sets()],
)
def test_the_rows_of_the_funnel_add_up_to_what_is_kept_with_every_rule_set(tmp_path: Path, preset: str) -> None:
    short = "Read more.\nshort { javascript }\n"
    texts = [english(k, 40) if k < 30 else short + english(k, 9) for k in range(40)]
    counts = Built.of(tmp_path, [*texts, texts[0], "  spaces   and\ttabs  "], rules=preset).counts
    *rows, kept = funnel(counts)
    assert sum(row.documents for row in rows) == kept.documents == counts["kept"]
    assert sum(row.tokens for row in rows) == kept.tokens == counts["tokens"]
    cut = [row.tokens for row in rows if row.what == "texts edited"]
    assert preset != "c4" or cut[0] < 0


def test_unreadable_records_are_in_the_first_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Built.of(tmp_path, [*(english(k) for k in range(40)), {}, {}], progress=Progress())
    said = capsys.readouterr().err
    assert re.search(r"unreadable: no field 'text' +2 +4\.8% *\ndocuments read +40 ", said)
    assert "others" not in said.split("split ")[0]
    assert re.search(r"\d s: ([a-z ]+ \d+\.\d, )+", said)


def test_a_build_says_which_share_of_its_characters_has_no_token(tmp_path: Path) -> None:
    tokenizer = train_without_unknown(tmp_path / "letters.json")
    texts = ["one two", "three 3", "four four \u2603", "one two"]  # the last is a duplicate
    inputs = write_jsonl(tmp_path / "in.jsonl", texts)
    for number, options in enumerate(({}, {"limits": Limits(partition_records=1, batch_records=1)})):
        manifest = run_plain(inputs, tmp_path / str(number), tokenizer=str(tokenizer), **options)
        said = "tokenizer letters.json: 2 of 25 characters (8.00%) have no token and are left out"
        assert manifest.counts["notes"] == [said]
        assert "2 of 25 characters" in (tmp_path / str(number) / "report.html").read_text()
    whole = run_plain(write_jsonl(tmp_path / "letters.jsonl", ["one"]), tmp_path / "whole", tokenizer=str(tokenizer))
    assert "notes" not in whole.counts


def test_a_rule_that_drops_most_of_a_language_is_named_with_the_language_it_was_made_for(tmp_path: Path) -> None:
    russian = "{} пассажиров ждали поезда на маленькой станции, и никто не знал, когда он придёт. "
    rules = tmp_path / "rules.toml"
    rules.write_text('extends = ["gopher_quality"]\nwords = { min = 1 }\n')
    texts = [*(russian.format(n) * 8 for n in range(50)), *map(english, range(50))]
    counts = Built.of(tmp_path, texts, rules=str(rules), language="en,ru", dedup=False).counts
    said = "rule stop_words dropped 50 of 50 documents in ru; gopher_quality was made for en"
    assert [note for note in counts["notes"] if "rule" in note] == [said]
