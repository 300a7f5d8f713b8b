"""A dry run: prints the plan and the outcomes of a sample, and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ...shards.remote.transport import Access
from ...text.readers.reader import Document, Reader, Unselected
from ..plan import make_plan
from ..recipe import Recipe
from ..references import resolve
from ..transforms.chain import Chain
from ..workspace.output_directory import local_directory
from .stats import Histograms, PartitionCounts

SAMPLE_DOCUMENTS = 1_000


def preview(
    specs: Sequence[str], recipe: Recipe, output: str | Path | None = None, access: Access | None = None
) -> None:
    """Print what a build would read, and what it would do with the first documents of each input.

    Raises for what cannot work as the build itself does: everything that the recipe names is loaded.
    """
    output = None if output is None else local_directory(output)
    references = resolve(recipe)
    plan = make_plan(specs, recipe, references.definitions, output, access=access)
    size = sum(item.size for item in plan.inputs)
    print(f"{len(plan.inputs)} input files, {size / 1e6:,.1f} MB, {len(plan.units)} units of work")
    chain = Chain(recipe, references)
    counts = PartitionCounts(Histograms(references.rules.rules))
    reasons: Counter[str] = Counter()
    each = -(-SAMPLE_DOCUMENTS // len(plan.inputs))
    for item in plan.inputs:
        wanted: dict[str, Any] = {"keep": references.fields(recipe), "where": recipe.condition}
        wanted |= {"text_key": recipe.text_key, "id_key": recipe.id_key}
        reader = Reader(item.file(plan.credentials, recipe.format), **wanted)
        for record in islice(reader, each):
            if isinstance(record, Document):
                reasons.update(judged.outcome or "kept" for judged in chain.judge([record], counts))
            elif isinstance(record, Unselected):
                reasons["where"] += record.count
            else:
                reasons[f"unreadable: {record.reason}"] += 1
    total = reasons.total()
    print(f"of a sample of {total:,} records:")
    for reason, number in reasons.most_common():
        print(f"{number:>8,}  {number / max(1, total):6.1%}  {reason}")
    print("before dedup; nothing was written")
