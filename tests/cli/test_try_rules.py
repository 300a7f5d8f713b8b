"""The command try-rules on small inputs."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from filters.rules.ruleset import Rule
from pipeline.builder.build import build
from pipeline.cli.main import run_command
from pipeline.cli.try_rules_command import BARS, EXCERPT, excerpt, histogram
from pipeline.progress import Progress
from tests.helpers.commands import Says

main = partial(run_command, "try-rules")
GOOD = (
    "We had been walking for most of the day and the light was going when Anna saw the house. It stood apart from the "
    "others, behind a row of poplars, with a lamp in one window. Nobody answered when she knocked, so that we sat down "
    "on the step to wait. An hour later an old man came up the road, nodded, and opened the door without a word."
)


@pytest.fixture
def inputs(tmp_path: Path) -> str:
    texts = [GOOD, "Too short to keep.\x1b[31m", "buy now " * 40, GOOD.replace("Anna", "Ida")]
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    path = tmp_path / "sample.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_the_table_says_what_each_rule_drops_with_an_example(inputs: str, says: Says) -> None:
    out = says(0, "try-rules", inputs, "--rules", "gopher").out
    assert "judged 4 of 4 documents read: 2 kept (50.0%), 2 dropped" in out
    assert "words 4 < 50   [en] d1 sample.jsonl:2" in out
    assert "top_2_gram_ratio" in out
    assert "\x1b" not in out


def test_precision_and_recall_of_each_rule_follow_from_labels_of_a_person(
    inputs: str, tmp_path: Path, says: Says
) -> None:
    labels = tmp_path / "labels.tsv"
    labels.write_text("d0\tdrop\nd1,drop\nd2 keep\n\nd3\tkeep\nelsewhere\tkeep\n", encoding="utf-8")
    out = re.sub(
        " +", " ", says(0, "try-rules", inputs, "--rules", "gopher", "--labels", labels, "--examples", "0").out
    )
    assert "4 of 5 labelled documents reach the rules: 2 to drop, 2 to keep" in out
    assert "all rules 2 1 50.0% 50.0%" in out
    assert "words 1 0 100.0% 50.0%" in out
    assert "top_2_gram_ratio 1 1 0.0% 0.0%" in out
    assert "hash_ratio 0 0 - 0.0%" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("d0\tdrop\nd1\tdelete\n", "line 2: 'd1 delete' does not end in keep or drop"),
        ("d0 drop\nd0 keep\n", "line 2: 'd0' has both labels"),
        ("d0 keep\n", "no document is labelled drop"),
    ],
)
def test_labels_that_say_nothing_are_refused(inputs: str, tmp_path: Path, says: Says, text: str, said: str) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text(text, encoding="utf-8")
    assert said in says(2, "try-rules", inputs, "--labels", labels).err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "words.min=3", "--examples", "0"], "kept without --set: 2; with words.min=3: "),
        (["--rules", "none", "--measure", "characters"], "characters of 4 documents"),
        (["--set", "words.min=60", "--measure", "words"], "words of 4 documents, kept: 60 to 100,000\n"),
        (["--limit", "1"], "judged 1 of 1 documents read"),
        (["--language", "en=0"], "judged 4 of 4 documents read: 2 kept"),
        (["--where", "id in ['d0', 'd1']"], "judged 2 of 2 documents read: 1 kept"),
    ],
)
def test_limits_measures_and_languages_are_tried(inputs: str, says: Says, flags: list[str], said: str) -> None:
    assert said in says(0, "try-rules", inputs, *flags).out
    assert "no document was read in fi" in says(1, "try-rules", inputs, "--language", "fi").err


def test_kept_documents_are_shown_where_they_are_asked_for(inputs: str, says: Says) -> None:
    shown = says(0, "try-rules", inputs, "--rules", "gopher", "--show", "kept", "--examples", "5").out.partition(
        "\nkept\n"
    )[2]
    assert (excerpt("a" * EXCERPT), excerpt("a" * EXCERPT + "b")) == ("a" * EXCERPT, "a" * (EXCERPT - 1) + "…")
    assert re.findall(r"^  kept   \[en\] (d\d) sample\.jsonl:\d$", shown, re.MULTILINE) == ["d0", "d3"]
    assert "words 4 < 50" not in shown


TRIED = """\
--set words.min=3

judged 4 of 4 documents read: 3 kept (75.0%), 1 dropped

rule                        limits    drops            fails
words                   at least 3        0    0.0%        0
top_2_gram_ratio       at most 0.2        1   25.0%        1

(drops: documents that fail this rule before any other; fails: all documents that fail this rule)

top_2_gram_ratio
  top_2_gram_ratio 0.875 > 0.2   [en] d2 sample.jsonl:3
    buy now buy now buy now buy now buy now buy now buy now buy now buy now buy…

kept without --set: 2; with words.min=3: 3 (+1)

--set words.min=60,words.max=62

judged 4 of 4 documents read: 0 kept (0.0%), 4 dropped

rule                        limits    drops            fails
words                     60 to 62        4  100.0%        4
top_2_gram_ratio       at most 0.2        0    0.0%        1

(drops: documents that fail this rule before any other; fails: all documents that fail this rule)

words
  words 69 > 62   [en] d0 sample.jsonl:1
    We had been walking for most of the day and the light was going when Anna s…
  words 4 < 60   [en] d1 sample.jsonl:2
    Too short to keep.[31m

kept without --set: 2; with words.min=60,words.max=62: 0 (-2)


words of 4 documents, kept: at least 50
"""


def test_all_that_is_printed_of_two_sets_and_a_measure(inputs: str, tmp_path: Path, says: Says) -> None:
    (tmp_path / "mine.toml").write_text("words = { min = 50 }\ntop_2_gram_ratio = { max = 0.2 }\n")
    flags = ["--rules", f"{tmp_path}/mine.toml", "--set", "words.min=3", "--set", "words.min=60,words.max=62"]
    assert says(0, "try-rules", inputs, *flags, "--examples", "2", "--measure", "words").out.startswith(TRIED)


def test_each_set_is_judged_apart(inputs: str, says: Says) -> None:
    def judged(*settings: str) -> list[tuple[str, str]]:
        return re.findall(
            r"kept without --set: 2; with (\S+): (\d+)",
            says(
                0, "try-rules", inputs, "--rules", "gopher", *(word for each in settings for word in ("--set", each))
            ).out,
        )

    limits = ["words.min=100", "words.min=60", "words.min=60,words.max=62"]
    assert judged(*limits) == [judged(each)[0] for each in limits] == list(zip(limits, "020", strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "gophr"], "did you mean 'gopher'"),
        (["--measure", "word"], "did you mean 'words'"),
        (["--set", "words=3"], "write RULE.min=NUMBER"),
        (["--set", "words.min=x"], "limit 'words.min=x': write RULE.min=NUMBER or RULE.max=NUMBER, as in words.min=20"),
        (["--set", "words.mean=3"], "write RULE.min=NUMBER"),
        (["--set", "word.min=3"], "did you mean 'words'"),
        (["--language", "xx"], "'xx'"),
    ],
)
def test_mistakes_are_named(inputs: str, says: Says, arguments: list[str], message: str) -> None:
    assert message in says(2, "try-rules", inputs, *arguments).err


def test_every_file_gives_its_share_of_the_sample_and_bad_records_are_named(tmp_path: Path, says: Says) -> None:
    for name, lines in (("a", [0]), ("b", [{}, *range(9)]), ("c", range(9))):
        records = [{"text": GOOD, "n": line} if isinstance(line, int) else line for line in lines]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "mine.toml").write_text('"column:n" = { max = 2 }\n')
    (tmp_path / "german.toml").write_text('language = "de"\nwords = { min = 99 }\n')
    (tmp_path / "own_measure.py").write_text("def letters(page):\n    return len(page.text)\n")
    flags = ["--rules", f"{tmp_path}/mine.toml,{tmp_path}/german.toml", "--measure", f"{tmp_path}/own_measure:letters"]
    out, error = says(0, "try-rules", f"{tmp_path}/*.jsonl", *flags, "--limit", "9")
    assert "judged 9 of 9 documents read: 7 kept (77.8%), 2 dropped" in out
    assert re.search(r"^german\.words +at least 99 +0 +0\.0% +0$", out, re.MULTILINE)
    assert f"own_measure:letters of 9 documents\n{len(GOOD):>10}  " in out
    bad = "1 bad records; the first, b.jsonl, line 1: no field 'text'"
    assert error.startswith(bad)
    (tmp_path / "b.jsonl").write_text("{}\n")
    assert says(1, "try-rules", f"{tmp_path}/b.jsonl").err.startswith(f"no document was read\n{bad}")


def test_histogram_counts_every_value_and_marks_the_limits() -> None:
    text = histogram("x", [0.0, *[0.5] * 5, 1.0, float("nan")], Rule("x", "x", "s", min=0.25, max=0.75))
    title, *bars, quantiles = text.splitlines()
    assert (title, len(bars)) == ("x of 7 documents, kept: 0.25 to 0.75", BARS)
    assert [line for line in bars if " 0 " not in line[10:] or "<" in line] == [
        f"         0        1 {'█' * 10}",
        "      0.25        0  <- min 0.25",
        f"       0.5        5 {'█' * 48}",
        "      0.75        0  <- max 0.75",
        f"    0.9583        1 {'█' * 10}",
    ]
    assert quantiles == "p0 0  p1 0  p10 0  p25 0.5  p50 0.5  p75 0.5  p90 1  p99 1  p100 1"
    assert histogram("x", []) == "x: no values"


def test_bars_of_a_histogram_tile_the_values_and_far_ones_are_in_the_last() -> None:
    lines = histogram("x", [*range(8), 8.0]).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [f"{bar * 8 / BARS:.4g}" for bar in range(BARS)]
    far = histogram("x", [*map(float, range(1000)), 1e9]).splitlines()
    last, step = far[-2], 990 / BARS
    twice, more = (histogram("x", [*range(200), high]).splitlines()[-2] for high in (396, 397))
    assert (twice.split()[0], more.split()[0]) == ("379.5", "189.8+")
    limited = histogram("x", [*range(200), 999], Rule("x", "x", "s", max=999)).splitlines()
    assert re.fullmatch(r" +957\.4 +1 ██ <- max 999", limited[-2])
    assert last.split()[0] == f"{(BARS - 1) * step:.4g}+"
    assert all(line[10] == " " for line in far[1:-2])
    assert int(last.split()[1]) == sum(value >= (BARS - 1) * step for value in range(1000)) + 1


def test_a_histogram_of_one_value_has_one_bar() -> None:
    assert [line.split()[:2] for line in histogram("x", [5.0, 5.0]).splitlines()[1:-1]] == [["5", "2"]]


def test_documents_that_cuts_leave_empty_are_counted_as_a_build_counts_them(tmp_path: Path, says: Says) -> None:
    texts = [GOOD, "<br>", "<p>\n</p>", "&nbsp;", GOOD.replace("Anna", "Caf&eacute;"), "Guten Tag, wie geht es?"]
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for flags, kept in (([], 3), (["--language", "en"], 2)):
        settings = {"language": flags[1:], "tokenizer": "bytes", "dedup": False, "progress": Progress(quiet=True)}
        manifest = build(source, tmp_path / f"out{kept}", rules="html_remnants", **settings)
        assert manifest.counts["kept"] == kept
        assert manifest.counts["dropped"]["empty text"] == 3
        out = says(0, "try-rules", source, "--rules", "html_remnants", *flags).out
        assert f"judged {kept + 3} of 6 documents read: {kept} kept" in out
        assert "3 dropped" in out
        assert re.search(r"^empty text +before rules +3 ", out, re.MULTILINE)
    assert "words of 3 documents" in says(0, "try-rules", source, "--rules", "html_remnants", "--measure", "words").out
