"""Inputs and recipe -> units of work, fixed before the first unit runs.

Every unit of every stage is a pure function of the plan. So the name of a result that a killed build left says what is in
it, and a second run with another plan is refused.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..atomic import write_json
from ..draws import draw_file
from ..errors import ConfigError, PlanChangedError, did_you_mean
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote, local_name
from ..shards.manifest import PLAN_NAME
from ..text.storage.input_file import NO_CREDENTIALS, Credentials, InputFile
from .inputs import Input, find_and_describe, hash_ends
from .limits import DEFAULT_LIMITS, Limits
from .recipe import Recipe

PLAN_VERSION = 21  # raise it if a stage writes other files, or the plan has other fields
_REQUESTS_AT_ONCE = 16
_BYTES_OF_RECORD, _BYTES_OF_TOKEN = 1 << 16, 32  # bytes of input: few records and tokens take more


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of one input: bytes of a plain file, row groups of a parquet file; ``stop`` None means to its end.

    A large file that is compressed, CSV, Arrow or a tar can only be read from its start. Each of several lanes reads all of
    it, which is cheap, and filters every ``lanes``-th of its partitions, which is not.
    """

    input: int
    start: int = 0
    stop: int | None = None
    lane: int = 0
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a build. ``units[i]`` are the spans that the i-th ingest unit reads, in order."""

    inputs: tuple[Input, ...]
    units: tuple[tuple[Span, ...], ...]
    recipe: Recipe
    definitions: Mapping[str, Any]  # what the names in the recipe refer to: rules, models, earlier builds
    settings: Mapping[str, Any]  # the recipe as the manifest describes it
    limits: Limits = DEFAULT_LIMITS
    commits: Mapping[str, str] = field(default_factory=dict)  # of datasets of the hub, by "ID@REVISION"
    editing: tuple[str, ...] = ()  # the stages that edit texts, in order
    credentials: Credentials = field(default=NO_CREDENTIALS, repr=False, compare=False)  # never written
    # The fields that any input may have, as far as they were looked up (`field_finder`).
    known_fields: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": PLAN_VERSION,
            "inputs": [asdict(item) for item in self.inputs],
            "units": [[list(astuple(span)) for span in unit] for unit in self.units],
            "recipe": self.recipe.to_json(),
            "definitions": dict(self.definitions),
            "settings": dict(self.settings),
            "limits": asdict(self.limits),
            "commits": dict(self.commits),
            "editing": self.editing,
        }

    def write(self, work: Path) -> None:
        write_json(work / PLAN_NAME, self.to_json())

    @classmethod
    def read(cls, work: Path) -> Plan:
        """Return the plan of a work directory. Raises ``PlanChangedError`` if another release wrote it."""
        value = json.loads((work / PLAN_NAME).read_text(encoding="utf-8"))
        if value.get("version") != PLAN_VERSION:
            raise PlanChangedError(
                f"{work / PLAN_NAME}: plan version {value.get('version')}, but this release writes {PLAN_VERSION}; "
                "finish with the release that started it, or start over with --overwrite"
            )
        return cls(
            inputs=tuple(Input(**item) for item in value["inputs"]),
            units=tuple(tuple(Span(*span) for span in unit) for unit in value["units"]),
            recipe=Recipe.from_json(value["recipe"]),
            definitions=value["definitions"],
            settings=value["settings"],
            limits=Limits(**value["limits"]),
            commits=value["commits"],
            editing=tuple(value["editing"]),
        )


def load_plan(work: Path) -> Plan:
    """Return the plan of a work directory. A process reads the file again only if it has changed."""
    return _load_plan(work, (work / PLAN_NAME).stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _load_plan(work: Path, mtime_ns: int) -> Plan:
    return Plan.read(work)


def make_plan(
    specs: Sequence[str | InputFile],
    recipe: Recipe,
    definitions: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
    limits: Limits = DEFAULT_LIMITS,
    requests: RequestOptions | None = None,
    commits: Mapping[str, str] | None = None,
    editing: tuple[str, ...] = (),
) -> Plan:
    """List the inputs that ``specs`` name and cut them into units. Raises ``InputError`` if one cannot be used.

    Files in ``outputs``, the directories and urls to be built, are no inputs. ``requests`` says how to reach remote inputs.
    ``commits`` are the commits to which an earlier plan pinned revisions of the hub. ``editing`` are the names of the stages
    that edit texts, in order.
    """
    pinned = dict(commits or {})
    inputs, credentials = find_and_describe(specs, outputs, requests, recipe.format, pinned)
    inputs = hash_ends(inputs, _files_far_beyond(inputs, recipe))
    sources = {item.source for item in inputs}
    for setting, named in (("max_tokens", recipe.quotas), ("license", recipe.licenses)):
        for name in named:
            if name and name not in sources:
                raise ConfigError(f"{setting}: no source {name!r}{did_you_mean(name, sources)}")
    units = _cut_units(inputs, limits, credentials, recipe)
    absolute = tuple(path if is_remote(path) else os.path.abspath(local_name(path)) for path in recipe.against)
    settings = recipe.described()
    recipe = replace(recipe, against=absolute)
    return Plan(inputs, units, recipe, definitions or {}, settings, limits, pinned, editing, credentials)


def _cut_units(
    inputs: Sequence[Input], limits: Limits, credentials: Credentials, recipe: Recipe
) -> tuple[tuple[Span, ...], ...]:
    """Cut inputs into units of bounded size: large files into spans or lanes, neighbouring small ones joined.

    The cut depends on names and sizes alone, so any number of workers gets the same units. No unit holds files of two sources.
    With token quotas, files are read in a drawn order, so a large file or a piece of one shares its unit with no other file.
    """
    wanted = sum(item.size for item in inputs) // limits.units_wanted
    target = min(limits.unit_bytes, max(limits.smallest_unit_bytes, wanted))
    cut = _cut_files(inputs, target, credentials, recipe)
    units: list[tuple[Span, ...]] = []
    joined: list[Span] = []  # of the unit that is being filled
    joined_bytes = 0

    def end_unit() -> None:
        nonlocal joined, joined_bytes
        if joined:
            units.append(tuple(joined))
        joined, joined_bytes = [], 0

    for number, (item, spans) in enumerate(zip(inputs, cut, strict=True)):
        lanes = _lane_count(item, recipe.format, len(inputs), limits) if len(spans) == 1 else 1
        if lanes > 1:
            end_unit()
            units += [(Span(number, lane=lane, lanes=lanes),) for lane in range(lanes)]
            continue
        is_alone = bool(recipe.max_tokens) and (len(spans) > 1 or item.size >= target)
        is_of_another_source = bool(joined) and inputs[joined[-1].input].source != item.source
        if is_alone or is_of_another_source:
            end_unit()
        for start, stop in spans:
            joined.append(Span(number, start, stop))
            joined_bytes += item.size // len(spans)
            if is_alone or joined_bytes >= target:
                end_unit()
    end_unit()
    return tuple(units)


def _cut_files(
    inputs: Sequence[Input], target: int, credentials: Credentials, recipe: Recipe
) -> list[Sequence[tuple[int, int | None]]]:
    """Return the spans of each file. Finding them takes a request for each remote file; several requests run at once."""
    from ..text.readers.document_reader import split_file
    from ..text.readers.format_reader import WHOLE

    far = _files_far_beyond(inputs, recipe)

    def cut(number: int) -> Sequence[tuple[int, int | None]]:
        return [WHOLE] if number in far else split_file(inputs[number].file(credentials, recipe.format), target)

    if not any(item.is_remote for item in inputs):
        return list(map(cut, range(len(inputs))))
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="shardwright-plan") as threads:
        return list(threads.map(cut, range(len(inputs))))


def _files_far_beyond(inputs: Sequence[Input], recipe: Recipe) -> set[int]:
    """Return the files that a limit or quota probably makes unnecessary. They are not split.

    Splitting a remote file takes a request and some bytes, and there may be thousands of such files.
    """
    far: set[int] = set()
    for source in sorted({item.source for item in inputs}):
        order = [number for number, item in enumerate(inputs) if item.source == source]
        left = recipe.quota(source) * _BYTES_OF_TOKEN
        if recipe.reads_by_quota and left < math.inf:
            order.sort(key=lambda number: draw_file(inputs[number].name, recipe.seed))
        elif recipe.limit is not None:
            left = recipe.limit * _BYTES_OF_RECORD
        for number in order:
            if left <= 0:
                far.add(number)
            left -= inputs[number].size
    return far


def _lane_count(item: Input, format: str, inputs: int, limits: Limits) -> int:
    """Return in how many lanes a file that cannot be cut is read: more if few files would leave cores idle."""
    from ..text.formats import format_of
    from ..text.readers.byte_stream import is_compressed
    from ..text.readers.format_reader import load_reader, no_borders

    if item.is_remote:
        return 1  # each lane would fetch the whole file
    wanted = min(item.size // limits.lane_bytes, -(-limits.units_wanted // inputs), limits.most_lanes)
    if wanted <= 1:
        return 1
    form = format_of(item.file(format=format))
    reader = load_reader(form)
    if reader.divides_compressed:
        return 1  # each lane would extract all texts
    if is_compressed(item.path):
        return 1 if reader.unpacks else wanted  # each lane would fill the disk
    return wanted if reader.borders is no_borders and not form.one_document else 1
