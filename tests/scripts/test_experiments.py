"""The studies of docs/experiments.md run, on little data."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipeline
from scripts import experiments
from tests.helpers.corpus import english

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "shards"
    counts = {"code": 3000, "docstrings": 300, "papers": 300}
    sources = {
        name: [{"id": f"{name}-{n}", "text": english(first * 5000 + n, 2)} for n in range(count)]
        for first, (name, count) in enumerate(counts.items())
    }
    quiet = pipeline.Progress(quiet=True)
    pipeline.build(sources, folder, tokenizer="bytes", rules=(), dedup=False, val_fraction=0.1, progress=quiet)
    return folder


def test_texts_that_come_often_are_known_better_than_those_that_never_came(folder: Path) -> None:
    heads, *lines = list(experiments.memorise(folder, 60))
    losses = {int(repeats): float(loss) for repeats, loss, _ in map(str.split, lines)}
    assert (heads, [*losses]) == ("repeats   loss", [0, 1, 4, 16, 64])
    assert losses[64] < losses[0] - 0.3


def test_a_fork_without_a_source_differs_from_the_plain_one_and_every_loss_is_a_number(folder: Path) -> None:
    heads, plain, *changed = list(experiments.worth(folder, 4, batches=1))
    assert heads.split() == ["code", "docstrings", "papers"]
    assert all(0 < float(loss) < 7 for loss in plain.split()[1:])
    assert [line.rsplit(maxsplit=3)[0] for line in changed] == [
        "without code", "without docstrings", "without papers", "without every tenth document",
    ]  # fmt: skip
    assert all(any(float(number) for number in line.split()[-3:]) for line in changed)


def test_the_mixes_of_a_study_are_compared_at_the_epochs_that_it_shows(folder: Path) -> None:
    lines = list(experiments.mix(folder, 16, batches=1, shares=(0.3, 0.6)))
    shares = [float(share) for share in lines[0].split()[3:-1]]
    for line in lines[1::2]:
        losses = [float(number) for number in line.split()[-len(shares) - 1 : -1]]
        assert float(line.split()[-1]) == shares[losses.index(min(losses))]
    target, whole, _ = ([float(number) for number in line.split()[3:]] for line in lines[2::2])
    assert all(large > 4 * small for large, small in zip(target, whole, strict=True))  # of an eighth of the steps
