"""A misspelt keyword of any public function or method is answered with the nearest one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline

ROOT = Path(__file__).parents[2]
DATA = pipeline.ShardDataset.from_tokens(range(64))


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: DATA.pack(sequence_length=8), "did you mean 'seq_len'?"),
        (lambda: DATA.shuffle(sed=1), "did you mean 'seed'?"),
        (lambda: DATA.pack(8).batch(size=2), "known: batch_size, cut, dtype, last"),
        (lambda: pipeline.ShardDataset("x", epoch=1), "did you mean 'epochs'?"),
        (lambda: pipeline.ShardDataset.from_tokens([1], length=[1]), "did you mean 'lengths'?"),
        (lambda: pipeline.mix({"a": DATA}, weight={"a": 1}), "did you mean 'weights'?"),
        (lambda: pipeline.TextDataset("x", tokeniser="bytes"), "did you mean 'tokenizer'?"),
        (lambda: pipeline.Recipe(tokeniser="bytes"), "did you mean 'tokenizer'?"),
        (lambda: pipeline.RuleSet(rule=()), "did you mean 'rules'?"),
    ],
)
def test_an_unknown_keyword_is_a_type_error_that_names_the_nearest(call: Callable[[], Any], near: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert near in str(caught.value)


def test_a_type_error_inside_a_method_keeps_its_message() -> None:
    with pytest.raises(TypeError, match=r"^an endless stream"):
        len(DATA.pack(4))


def test_public_functions_pickle() -> None:
    assert pickle.loads(pickle.dumps(pipeline.mix)) is pipeline.mix


def test_a_misspelt_name_of_the_package_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean 'ShardDataset'"):
        _ = pipeline.ShardDatset


def test_the_package_that_is_called_says_which_import_is_meant() -> None:
    with pytest.raises(TypeError, match="import pipeline as shardwright"):
        pipeline("text-generation")


def test_the_package_can_be_pickled_as_datasets_and_ray_do_with_functions_that_use_it() -> None:
    assert pickle.loads(pickle.dumps(pipeline)) is pipeline


def test_a_file_of_the_user_that_hides_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "filters.py").write_text("")
    code = f"import sys; sys.path.insert(1, {str(ROOT)!r}); import pipeline; pipeline.load_rules"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert f"{tmp_path}/filters.py hides the package `filters` of shardwright: rename that file" in run.stderr
