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
from pipeline.cli.try_rules_command import BARS, histogram
from pipeline.progress import Progress

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


def test_the_table_says_what_each_rule_drops_with_an_example(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([inputs, "--rules", "gopher"]) == 0
    out = capsys.readouterr().out
    assert "judged 4 of 4 documents read: 2 kept (50.0%), 2 dropped" in out
    assert "words 4 < 50   [en] d1 sample.jsonl:2" in out
    assert "top_2_gram_ratio" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "words.min=3", "--examples", "0"], "kept without --set: 2; with words.min=3: "),
        (["--rules", "none", "--measure", "characters"], "characters of 4 documents"),
        (["--limit", "1"], "judged 1 of 1 documents read"),
        (["--language", "en=0"], "judged 4 of 4 documents read: 2 kept"),
        (["--where", "id in ['d0', 'd1']"], "judged 2 of 2 documents read: 1 kept"),
    ],
)
def test_limits_measures_and_languages_are_tried(
    inputs: str, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main([inputs, *flags]) == 0
    assert said in capsys.readouterr().out
    assert main([inputs, "--language", "fi"]) == 1
    assert "no document was read in fi" in capsys.readouterr().err


def test_kept_documents_are_shown_where_they_are_asked_for(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([inputs, "--rules", "gopher", "--show", "kept", "--examples", "5"]) == 0
    shown = capsys.readouterr().out.partition("\nkept\n")[2]
    assert re.findall(r"^  kept   \[en\] (d\d) sample\.jsonl:\d$", shown, re.MULTILINE) == ["d0", "d3"]
    assert "words 4 < 50" not in shown


def test_each_set_is_judged_apart(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    def judged(*settings: str) -> list[tuple[str, str]]:
        assert main([inputs, "--rules", "gopher", *(word for each in settings for word in ("--set", each))]) == 0
        return re.findall(r"kept without --set: 2; with (\S+): (\d+)", capsys.readouterr().out)

    limits = ["words.min=100", "words.min=60", "words.min=60,words.max=62"]
    assert judged(*limits) == [judged(each)[0] for each in limits] == list(zip(limits, "020", strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "gophr"], "did you mean 'gopher'"),
        (["--measure", "word"], "did you mean 'words'"),
        (["--set", "words=3"], "write RULE.min=NUMBER"),
        (["--set", "word.min=3"], "did you mean 'words'"),
    ],
)
def test_mistakes_are_named(
    inputs: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([inputs, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_histogram_counts_every_value_and_marks_the_limits() -> None:
    text = histogram("x", [0.0, 0.5, 0.5, 1.0, float("nan")], Rule("x", "x", "s", min=0.25, max=0.75))
    counts = [int(line.split()[1]) for line in text.splitlines()[1:-1]]
    assert sum(counts) == 4
    assert "<- min 0.25" in text
    assert "<- max 0.75" in text
    assert histogram("x", []) == "x: no values"


def test_bars_of_a_histogram_tile_the_values_and_far_ones_are_in_the_last() -> None:
    lines = histogram("x", [*range(8), 8.0]).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [f"{bar * 8 / BARS:.4g}" for bar in range(BARS)]
    far = histogram("x", [*map(float, range(1000)), 1e9]).splitlines()
    last, step = far[-2], 990 / BARS
    assert last.split()[0] == f"{(BARS - 1) * step:.4g}+"
    assert int(last.split()[1]) == sum(value >= (BARS - 1) * step for value in range(1000)) + 1


def test_a_histogram_of_one_value_has_one_bar() -> None:
    assert histogram("x", [5.0, 5.0]).splitlines()[1].split()[:2] == ["5", "2"]


def test_documents_that_cuts_leave_empty_are_counted_as_a_build_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [GOOD, "<br>", "<p>\n</p>", "&nbsp;", GOOD.replace("Anna", "Caf&eacute;"), "Guten Tag, wie geht es?"]
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for flags, kept in (([], 3), (["--language", "en"], 2)):
        settings = {"language": flags[1:], "tokenizer": "bytes", "dedup": False, "progress": Progress(quiet=True)}
        manifest = build(source, tmp_path / f"out{kept}", rules="html_remnants", **settings)
        assert manifest.counts["kept"] == kept
        assert manifest.counts["dropped"]["empty text"] == 3
        assert main([str(source), "--rules", "html_remnants", *flags]) == 0
        out = capsys.readouterr().out
        assert f"judged {kept + 3} of 6 documents read: {kept} kept" in out
        assert "3 dropped" in out
        assert re.search(r"^empty text +before rules +3 ", out, re.MULTILINE)
    assert main([str(source), "--rules", "html_remnants", "--measure", "words"]) == 0
    assert "words of 3 documents" in capsys.readouterr().out
