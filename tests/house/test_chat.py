"""The programs of docs/chat.md run as they stand: the mask is that of the template, and TRL trains by it."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipeline
from tests.helpers.corpus import english
from tests.helpers.documentation import blocks_of, run_block

pytestmark = pytest.mark.stacks

WRITE, MASK, TRL = (block for kind, block in blocks_of("docs/chat.md") if kind == "python")


def run(folder: Path, program: str) -> str:
    texts = [{"text": english(number)} for number in range(50)]
    pipeline.build(texts, folder / "shards", tokenizer="train:400", rules="none", workers=1)
    return run_block("python", program, folder)


def test_the_answers_of_conversations_count_alone_in_rows_and_when_packed(tmp_path: Path) -> None:
    checks = """
for batch in (next(iter(rows)), next(iter(packed))):
    counted = "".join(tokenizer.decode(row[row != -100]) for row in batch["labels"])
    assert "That is" in counted and "What" not in counted and "user" not in counted
"""
    shown = run(tmp_path, WRITE + MASK + checks)
    assert shown.startswith("<|im_start|>⟦user\nWhat is")
    assert "⟧It is" in shown


def test_trl_trains_by_the_mask(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    checks = """
losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
assert float(losses[-1]) < float(losses[0]) - 0.5, losses
"""
    run(tmp_path, WRITE + MASK + TRL + checks)
