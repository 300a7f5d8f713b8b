"""Where every document ends: training, validation, or dropped because its source has its fill.

The result is one directory, with entries in input order:

    split.npy       uint8, for each survivor of dedup: 0 training, 1 validation, 2 its source had its fill
    outcome.npy     uint8, for each document that passed the filters: 0 kept, or why not
    counts.json
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..errors import ConfigError, did_you_mean
from .dedup import EXACT, NEAR
from .parts import all_parts, column_numbers, column_values, part_slice
from .plan import Plan
from .tally import Flow
from .tokenizing import token_lengths
from .work import result_directory

TRAIN, VAL, OVER = 0, 1, 2
SPLITS = ("train", "val")
OVER_QUOTA = NEAR + 1  # an outcome, beside 0, EXACT and NEAR


def settle(work: Path, plan: Plan) -> None:
    """Decide every survivor's place by the hash of its content, and count what became of all that passed the filters."""
    hashes = np.load(work / "dedup" / "hashes.npy", mmap_mode="r")
    kind = np.load(work / "dedup" / "kind.npy", mmap_mode="r")
    rows = np.flatnonzero(kind == 0)
    halves = np.ascontiguousarray(hashes[rows]).view("<u8").reshape(-1, 2)
    parts = range(len(all_parts(work)))
    lengths = np.concatenate([np.zeros(0, np.int64), *(token_lengths(work, part) for part in parts)])
    place = np.where(in_validation(halves[:, 0], plan.recipe.val_fraction), VAL, TRAIN).astype(np.uint8)
    if quotas := plan.recipe.quotas:
        sources = np.concatenate([_sources(work, plan, part) for part in parts])[rows]
        place[~within_quotas(sources, _numbered(plan), quotas, halves[:, 1], lengths)] = OVER
    outcome = kind.copy()
    outcome[rows] = np.where(place == OVER, OVER_QUOTA, 0)
    tokens = np.zeros(len(kind), np.int64)
    tokens[rows[place != OVER]] = lengths[place != OVER]
    with result_directory(work / "settled") as directory:
        np.save(directory / "split.npy", place)
        np.save(directory / "outcome.npy", outcome)
        write_json(directory / "counts.json", _count(work, plan, outcome, tokens, lengths[place != OVER]))


def in_validation(hashes: NDArray[np.uint64], val_fraction: float) -> NDArray[np.bool_]:
    """Return which documents belong to validation: those whose content's hash falls below the fraction.

    The order of the input and what else it holds do not matter.
    """
    return hashes < np.uint64(min(val_fraction * 2.0**64, 2.0**64 - 2048))


def within_quotas(
    sources: NDArray[np.int64],
    names: dict[str, int],
    quotas: dict[str, int],
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which documents stay when each source is cut to its quota of tokens.

    Documents are taken in the order of their hashes, which is no order of theirs: a larger quota holds all that a
    smaller one does. Raises ``ConfigError`` for a quota of a source that is not there.
    """
    for name in quotas:
        if name and name not in names:
            raise ConfigError(f"max_tokens: no source {name!r}{did_you_mean(name, names)}")
    stays = np.ones(len(sources), bool)
    for name, number in names.items():
        quota = quotas.get(name, quotas.get(""))
        if quota is not None:
            mine = np.flatnonzero(sources == number)
            order = mine[np.argsort(hashes[mine], kind="stable")]
            stays[order[np.cumsum(lengths[order]) > quota]] = False
    return stays


def _numbered(plan: Plan) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted({item.source for item in plan.inputs}))}


def _sources(work: Path, plan: Plan, part: int) -> NDArray[np.int64]:
    """Return the number of the source of each document of a part."""
    numbers = _numbered(plan)
    of_span = np.array([numbers[plan.inputs[span.input].source] for span in plan.units[all_parts(work)[part][0]]])
    return of_span[column_numbers(work, part, "span", np.int32)]


def _count(
    work: Path,
    plan: Plan,
    outcome: NDArray[np.uint8],
    tokens: NDArray[np.int64],
    kept_lengths: NDArray[np.int64],
) -> dict[str, object]:
    """Sum documents and characters by (source, language, outcome), and tokens by source and by language."""
    names = {0: "kept", EXACT: "exact", NEAR: "near", OVER_QUOTA: "max_tokens"}
    sources = sorted({item.source for item in plan.inputs})
    flow = Flow()
    by_source: dict[str, int] = {}
    by_language: dict[str, int] = {}
    for part in range(len(all_parts(work))):
        mine = part_slice(work, part)
        languages = column_values(work, part, ["language"])["language"]
        known, codes = np.unique(np.array(languages, dtype=object).astype(str), return_inverse=True)
        characters = column_numbers(work, part, "characters", np.int64)
        keys = (_sources(work, plan, part) * len(known) + codes) * len(names) + outcome[mine]
        for key in np.unique(keys).tolist():
            chosen = keys == key
            rest, what = divmod(key, len(names))
            source, language = sources[rest // len(known)], str(known[rest % len(known)])
            flow.add(source, language, names[what], int(characters[chosen].sum()), documents=int(chosen.sum()))
            held = int(tokens[mine][chosen].sum())
            by_source[source] = by_source.get(source, 0) + held
            by_language[language] = by_language.get(language, 0) + held
    powers, times = np.unique(np.log2(np.maximum(kept_lengths, 1)).astype(int), return_counts=True)
    return {
        "flow": flow.to_json(),
        "tokens_by_source": by_source,
        "tokens_by_language": by_language,
        "token_lengths": {str(2**power): number for power, number in zip(powers.tolist(), times.tolist(), strict=True)},
    }
