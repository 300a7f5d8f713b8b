"""CPU time of what a user adds to a build: a transform, and a score of a fastText model beside the language identification."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pipeline
from filters.language.fasttext import FastText
from filters.language.fasttext_score import FastTextScorer
from filters.language.language import bundled_model
from pipeline.builder.report.stats import Histograms, PartitionCounts
from pipeline.builder.transforms.user import UserTransform
from pipeline.text.document import Document

BATCH = 512
RUNS = 9


def measure(texts: Sequence[str], runs: int = RUNS) -> list[tuple[float, str]]:
    """Return figures and what each is. All take turns, and the least of some runs counts."""
    documents = [Document(text, str(number), "in.jsonl", number) for number, text in enumerate(texts)]
    empty = UserTransform("empty", pipeline.transform(lambda found: found, batch=BATCH))
    counts = PartitionCounts(Histograms([]))
    lines = [" ".join(text.splitlines()) + "\n" for text in texts]
    scorer, identifier = FastTextScorer(bundled_model(), "__label__en"), FastText(bundled_model())

    def transform() -> None:
        for first in range(0, len(documents), BATCH):
            empty(documents[first : first + BATCH], counts)

    least = least_seconds([transform, lambda: scorer.score(texts), lambda: identifier.predict(lines)], runs)
    return [
        (least[0] / len(texts) * 1e6, "microseconds of CPU a document: an empty transform with batch = 512"),
        (least[1] / least[2], "x the CPU of the language identification: fasttext_score with the same model"),
        (least[2] / len(texts) * 1e6, "microseconds of CPU a document: language identification"),
    ]


def least_seconds(functions: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Return the CPU seconds of the fastest of so many runs of each; they take turns, and one more each is not counted."""
    least = [float("inf")] * len(functions)
    for number in range(runs + 1):
        for place, function in enumerate(functions):
            began = time.process_time()
            function()
            if number:
                least[place] = min(least[place], time.process_time() - began)
    return least
