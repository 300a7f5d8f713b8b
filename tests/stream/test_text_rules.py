"""Rules and languages filter a stream of text as they filter a build: the same texts, counted by the same reasons."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.builds import run
from tests.helpers.corpus import documents, english
from tests.helpers.rule_samples import rule_file

CUT = "words = { min = 30 }\n[cut]\nduplicate_lines = {}\n"
FIELD = '"column:score" = { min = 3 }\n'


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of a corpus: too short, German, empty, of lines that repeat, and with marks that normalising takes away."""
    path = tmp_path_factory.mktemp("texts") / "in.jsonl"
    found = [record["text"] for record in documents(90)]
    found += ["", " \n", "\ufeff" + english(1).replace(" ", "\r\n", 1), "Cafe\u0301. " + english(2)]
    found += ["\n".join([english(3, 2)] * 9 + [english(4, 6)])]
    path.write_text("".join(json.dumps({"text": text, "score": n % 6}) + "\n" for n, text in enumerate(found)))
    return path


def tokens_of(stream: pipeline.Stream) -> Counter[tuple[int, ...]]:
    return Counter(tuple(item["input_ids"].tolist()) for item in stream.documents())


@pytest.mark.parametrize(
    ("rules", "language", "reasons"),
    [
        ("gopher,fineweb", "en", {"language", "empty text"}),
        ("gopher", None, {"words", "empty text"}),
        (CUT, None, {"words", "empty text"}),
        ("none", "de=0.5", {"language", "empty text"}),
        (FIELD, None, {"column:score"}),
    ],
)
def test_a_stream_keeps_the_ids_that_a_build_keeps(
    rules: str, language: str | None, reasons: set[str], texts: Path, tmp_path: Path
) -> None:
    if "=" in rules:
        rules = rule_file(tmp_path, rules)
    manifest = run(
        [texts], tmp_path / "out", tokenizer="bytes", rules=rules, language=language or (), val_fraction=0, dedup=False,
    )  # fmt: skip
    built = tokens_of(pipeline.ShardDataset(tmp_path / "out", epochs=1))
    data = pipeline.TextDataset(texts, "bytes", normalize=True, epochs=1, fields="score:int")
    stream = data.filter(rules=rules, language=language).documents()
    assert Counter(tuple(item["input_ids"].tolist()) for item in stream) == built
    assert 0 < built.total() == sum(info.documents for info in manifest.split("train").shards)
    stats = stream.stats()
    assert stats["documents"] - stats["rejected"] == built.total()
    assert sum(stats["rejected_by"].values()) == stats["rejected"]
    assert reasons <= stats["rejected_by"].keys()


def test_rules_go_with_functions_shuffles_mixes_workers_and_states(texts: Path) -> None:
    def make(rules: Any = "gopher") -> pipeline.Stream:
        sources = {name: pipeline.TextDataset(texts, "bytes") for name in ("a", "b")}
        mix = pipeline.mix(sources, {"a": 1, "b": 1}).filter(lambda record: len(record.text) < 2000, name="short")
        return mix.filter(rules=rules, language="en").shuffle(lanes=4).pack(64).batch(2)

    stream = make()
    whole = [batch["input_ids"].tolist() for batch in islice(stream, 8)]
    assert {"filter", "language", "empty text"} <= stream.stats()["rejected_by"].keys()
    again = make(pipeline.load_rules("gopher"))
    assert [
        batch["input_ids"].tolist() for batch in islice(DataLoader(again, batch_size=None, num_workers=2), 8)
    ] == whole
    state = stream.state_dict()
    make().load_state_dict(state)
    with pytest.raises(StateError, match="filters was"):
        make("gopher,fineweb").load_state_dict(state)


@pytest.mark.nightly
def test_filters_compile_where_they_are_named() -> None:
    code = (
        "import sys, pipeline; data = pipeline.TextDataset([{'text': 'x'}], 'bytes')\n"
        "assert 'filters.compiled.scan_kernels' not in sys.modules\n"
        "data.filter(rules='gopher'); assert 'filters.compiled.scan_kernels' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rules_that_cannot_judge_are_an_error_that_says_what_to_do(texts: Path, tmp_path: Path) -> None:
    data = pipeline.TextDataset(texts, "bytes")
    shards = pipeline.ShardDataset.from_tokens(range(9), lengths=[9])
    for stream, arguments, message in (
        (shards, {"rules": "gopher"}, "shards hold tokens; filter when they are built"),
        (data, {"rules": "gofer"}, "gopher"),
        (data, {"rules": "none"}, "rules='none' and language=None keep everything"),
        (data, {"language": "xx"}, "not one of the 176 languages"),
        (data, {"predicate": bool, "rules": "gopher"}, "one .filter\\(\\) for each"),
        (data, {"rules": rule_file(tmp_path, FIELD)}, r"give TextDataset fields=\('score:float',\)"),
        (data, {}, "filter needs a function"),
    ):
        with pytest.raises(ConfigError, match=message):
            stream.filter(**arguments)  # type: ignore[arg-type]
