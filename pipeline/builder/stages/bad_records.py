"""Records that give no document: how many a build allows, as a number or as a share of all records."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from ...errors import BuildError, InputError
from ..partitions.partition import unit_folder
from ..recipe import Recipe
from ..work.atomic_directory import discard
from ..work.workspace import Workspace

LEAST_RECORDS = 10_000  # from which on a share is checked before all records are read


class BadRecords:
    """Counts the bad records of ``units`` as these are done, and raises ``BuildError`` where there are too many.

    A share is checked over the units that are done in input order, once these have 10,000 records. So it does not depend on
    which unit is done first whether the build ends.

    >>> counted = BadRecords(Recipe(max_errors=0.5), [0, 1])
    >>> counted.add(1, 20_000, 20_000)
    >>> counted.add(0, 20_000, 15_000)
    Traceback (most recent call last):
    ...
    pipeline.errors.BuildError: 15,000 of the first 20,000 records are bad, a share of 75.00%, but --max-errors allows 50.00%; \
mend the input, or start over with a larger share and --overwrite
    """

    def __init__(self, recipe: Recipe, units: Sequence[int]) -> None:
        self._recipe = recipe
        self._units = units
        self._bad = 0
        self._waiting = list(reversed(units))
        self._done: dict[int, tuple[int, int]] = {}
        self._in_order = (0, 0)  # records and bad ones of the units before those that are waited for

    def add(self, unit: int, records: int, bad: int) -> None:
        """Count the records of a unit and the bad ones among them."""
        self._bad += bad
        check_number(self._bad, self._recipe)
        self._done[unit] = records, bad
        while self._waiting and self._waiting[-1] in self._done:
            more, bad = self._done[self._waiting.pop()]
            self._in_order = self._in_order[0] + more, self._in_order[1] + bad
            if self._in_order[0] >= LEAST_RECORDS or not self._waiting:
                self._check_share(*self._in_order)

    def _check_share(self, records: int, bad: int) -> None:
        share, which = self._recipe.max_errors, "the first " if self._waiting else ""
        if 0 < share < 1 and bad > share * records:
            raise BuildError(
                f"{bad:,} of {which}{records:,} records are bad, a share of {bad / records:.2%}, but --max-errors allows "
                f"{share:.2%}; mend the input, or start over with a larger share and --overwrite"
            )

    def check_not_all(self, workspace: Workspace) -> None:
        """Raise ``InputError`` where every single record was bad once all units are done: then the settings are wrong.

        With ``on_error="skip"`` an empty dataset is what was asked for.
        """
        records, bad = self._in_order
        if bad < records or not records or self._recipe.on_error == "skip":
            return
        folders = [unit_folder(workspace, unit) for unit in self._units]
        written = (path for folder in folders for path in sorted(folder.glob("*/rejected.jsonl")))
        first = orjson.loads(next(path for path in written if path.stat().st_size).read_bytes().partition(b"\n")[0])
        for folder in folders:
            discard(folder)  # so that a changed recipe is not refused as another build
        raise InputError(
            f"none of the {records:,} records is a document; the first, {first['file']}, line {first['line']}: "
            f"{first['reason']}"
        )


def check_number(bad: int, recipe: Recipe, last: str = "") -> None:
    """Raise ``BuildError`` when more records were bad than the recipe allows."""
    if (recipe.max_errors >= 1 and bad > recipe.max_errors) or (bad and recipe.max_errors == 0):
        raise BuildError(
            f"more than {recipe.max_errors} bad records{last and ', the last: '}{last}; mend the input or raise "
            "--max-errors"
        )
