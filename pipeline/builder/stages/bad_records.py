"""How many bad records a build allows, as a number or as a share of all records. A bad record holds no document."""

from __future__ import annotations

import math
from collections.abc import Sequence

import orjson

from ...atomic_directory import discard
from ...errors import BuildError, InputError
from ...text.document import location_of
from ..partitions.partition import unit_folder
from ..plan import Plan
from ..recipe import Recipe
from ..work.workspace import Workspace

LEAST_RECORDS = 10_000  # a share is checked over this many before all records are read
DEFAULT_SHARE = 0.1  # of bad records, besides their number: a larger one points to a wrong setting, not to damage
_FEW_RECORDS = 100  # a tenth of fewer records says little


class BadRecords:
    """Counts the bad records of ``units`` as these finish, and raises ``BuildError`` if there are too many.

    A share is checked over the first units in input order, up to the first unfinished one, once they have 10,000 records. So the
    order in which units finish does not decide whether the build ends.
    """

    def __init__(self, workspace: Workspace, plan: Plan, units: Sequence[int]) -> None:
        self._recipe = plan.recipe
        self._spans = {unit: plan.units[unit] for unit in units}
        self._folders = {unit: unit_folder(workspace, unit) for unit in units}
        self._bad = 0
        self._waiting = list(reversed(units))
        self._done: dict[int, tuple[int, int]] = {}
        self._in_order = (0, 0)  # records and bad records of the units before the first unfinished one

    def add(self, unit: int, records: int, bad: int) -> None:
        """Count the records of a unit and the bad ones among them."""
        self._bad += bad
        if _are_too_many(self._bad, self._recipe):
            raise _too_many(self._recipe, self._example())
        self._done[unit] = records, bad
        while self._waiting and self._waiting[-1] in self._done:
            more, bad = self._done[self._waiting.pop()]
            self._in_order = self._in_order[0] + more, self._in_order[1] + bad
            if self._in_order[0] >= LEAST_RECORDS or not self._waiting:
                self._check_share(*self._in_order)

    def _check_share(self, records: int, bad: int) -> None:
        allowed, which = self._recipe.max_errors, "the first " if self._waiting else ""
        is_share = 0 < allowed < 1
        if not is_share and (self._recipe.on_error == "skip" or records < _FEW_RECORDS):
            return
        share = allowed if is_share else DEFAULT_SHARE
        if bad > share * records:
            limit = f"--max-errors allows {share:.2%}" if is_share else "a tenth is allowed"
            cure = "a larger share" if is_share else f"--max-errors {min(0.99, math.ceil(10 * bad / records) / 10)}"
            raise BuildError(
                f"{bad:,} of {which}{records:,} records are bad, a share of {bad / records:.2%}, but {limit}{self._example()}; "
                f"mend the input, or start over with {cure} and --overwrite"
            )

    def _example(self) -> str:
        """Return an example of a bad record for a message, or '' if no line of one is kept."""
        for unit, folder in self._folders.items():
            for path in sorted(folder.glob("*/rejected.jsonl")):
                with open(path, "rb") as file:
                    for line in map(orjson.loads, file):
                        if "text" not in line:  # a dropped document has a text
                            start = self._spans[unit][line["span"]].start
                            return f", such as {location_of(line['file'], line['line'], start)}: {line['reason']}"
        return ""

    def check_not_all(self) -> None:
        """Raise ``InputError`` if all units are done and every record was bad: then the settings are wrong.

        With ``on_error="skip"`` an empty dataset is allowed.
        """
        records, bad = self._in_order
        if bad < records or not records or self._recipe.on_error == "skip":
            return
        example = self._example()
        for folder in self._folders.values():
            discard(folder)  # so that a changed recipe is not refused as another build
        raise InputError(f"none of the {records:,} records is a document{example}")


def check_number(bad: int, recipe: Recipe, last: str) -> None:
    """Raise ``BuildError`` if more records were bad than the recipe allows; ``last`` describes one of them."""
    if _are_too_many(bad, recipe):
        raise _too_many(recipe, f", such as {last}")


def _are_too_many(bad: int, recipe: Recipe) -> bool:
    return (recipe.max_errors >= 1 and bad > recipe.max_errors) or (bad > 0 and recipe.max_errors == 0)


def _too_many(recipe: Recipe, example: str) -> BuildError:
    return BuildError(f"more than {recipe.max_errors} bad records{example}; mend the input or raise --max-errors")
