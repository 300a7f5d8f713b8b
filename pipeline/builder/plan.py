"""Inputs and recipe -> units of work, fixed before the first unit runs.

Every unit of every stage is a pure function of the plan. So a result that a killed build left is known by its name alone,
and a second run with another plan is refused.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ..atomic import write_json
from ..errors import ConfigError, InputError, PlanChangedError, did_you_mean
from ..shards.manifest import PLAN_NAME
from ..shards.remote.transport import Access, is_remote, local_name
from ..text.storage.input_file import NO_CREDENTIALS, Credentials, InputFile, StoredObject
from .draws import draw_file
from .limits import DEFAULT_LIMITS, Limits
from .outcome import OUTCOMES, Outcome
from .recipe import Recipe

if TYPE_CHECKING:
    from ..text.readers.base import FileSpan

PLAN_VERSION = 5
_REQUESTS_AT_ONCE = 16
_MIB = 1 << 20
_BYTES_OF_RECORD, _BYTES_OF_TOKEN = 1 << 16, 32  # of input, which few need


@dataclass(frozen=True, slots=True)
class Input:
    """One input file: ``name`` is relative to its argument, ``ends`` a sha256 of its first and last MiB.

    Of a remote one, ``path`` is the url without secrets and ``ends`` is ''; ``version`` is the store's mark, and ``sha256``
    that of the contents where the store tells it.
    """

    name: str
    path: str
    source: str
    size: int
    mtime_ns: int
    ends: str
    version: str = ""
    sha256: str = ""

    @property
    def is_remote(self) -> bool:
        return is_remote(self.path)

    def file(self, credentials: Credentials = NO_CREDENTIALS, format: str = "") -> InputFile:
        """Return the file that is read, as being of a format; ``credentials`` open it where it is remote."""
        if not self.is_remote:
            return InputFile(Path(self.path), self.name, self.source, forced_format=format)
        stored = StoredObject(self.path, self.size, self.version, self.sha256)
        return InputFile(self.path, self.name, self.source, stored, credentials, format)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of one input: bytes of a plain file, row groups of a parquet file; ``stop`` None means to its end.

    A large compressed file can only be read from its start. Each of several lanes reads all of it, which is cheap, and
    filters every ``lanes``-th of its parts, which is not.
    """

    input: int
    start: int = 0
    stop: int | None = None
    lane: int = 0
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done. ``units[i]`` are the spans that the i-th filter unit reads, in order."""

    inputs: tuple[Input, ...]
    units: tuple[tuple[Span, ...], ...]
    recipe: Recipe
    definitions: Mapping[str, Any]  # what names in the recipe stood for: rules, models, earlier builds
    settings: Mapping[str, Any]  # the recipe as it is described, with names as seen where the build started
    limits: Limits = DEFAULT_LIMITS
    stages: tuple[str, ...] = ()  # the names of those that the recipe asks for, in order
    editing_stages: tuple[str, ...] = ()  # those of them that write partitions again
    dropping_stages: Mapping[str, Outcome] = field(
        default_factory=dict
    )  # those that drop documents after dedup, in order
    commits: Mapping[str, str] = field(default_factory=dict)  # that "ID@REVISION" of the hub stand for
    credentials: Credentials = field(default=NO_CREDENTIALS, repr=False, compare=False)  # never written

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of documents that passed the filters, by their number in arrays."""
        return *OUTCOMES, *self.dropping_stages.values()

    def number_of_drops(self, stage: str) -> int:
        """Return the number of the outcome of documents that a stage drops."""
        return len(OUTCOMES) + list(self.dropping_stages).index(stage)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": PLAN_VERSION,
            "inputs": [asdict(item) for item in self.inputs],
            "units": [[list(astuple(span)) for span in unit] for unit in self.units],
            "recipe": self.recipe.to_json(),
            "definitions": dict(self.definitions),
            "settings": dict(self.settings),
            "limits": asdict(self.limits),
            "stages": list(self.stages),
            "editing_stages": list(self.editing_stages),
            "dropping_stages": [[name, *astuple(outcome)] for name, outcome in self.dropping_stages.items()],
            "commits": dict(self.commits),
        }

    def write(self, work: Path) -> None:
        write_json(work / PLAN_NAME, self.to_json())

    @classmethod
    def read(cls, work: Path) -> Plan:
        """Read the plan of a work directory; one of another release raises ``PlanChangedError``."""
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
            stages=tuple(value["stages"]),
            editing_stages=tuple(value["editing_stages"]),
            dropping_stages={name: Outcome(*outcome) for name, *outcome in value["dropping_stages"]},
            commits=value["commits"],
        )


def load_plan(work: Path) -> Plan:
    """Read the plan of a work directory, once in each process while its file stays as it is."""
    return _load_plan(work, (work / PLAN_NAME).stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _load_plan(work: Path, mtime_ns: int) -> Plan:
    return Plan.read(work)


def make_plan(
    specs: Sequence[str | InputFile],
    recipe: Recipe,
    definitions: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    access: Access | None = None,
    commits: Mapping[str, str] | None = None,
) -> Plan:
    """List the inputs that ``specs`` name and cut them into units. Raises ``InputError`` where one cannot be used.

    ``output`` is the directory that will be built: nothing in it is read. ``access`` says how remote inputs are reached,
    ``commits`` to which commits revisions of the hub are pinned already.
    """
    pinned = dict(commits or {})
    inputs, credentials = find_and_describe(specs, output, access, recipe.format, pinned)
    sources = {item.source for item in inputs}
    for name in recipe.quotas:
        if name and name not in sources:
            raise ConfigError(f"max_tokens: no source {name!r}{did_you_mean(name, sources)}")
    units = cut_units(inputs, limits, credentials, recipe)
    absolute = tuple(path if is_remote(path) else os.path.abspath(local_name(path)) for path in recipe.against)
    settings = recipe.described()
    recipe = replace(recipe, against=absolute)
    return Plan(inputs, units, recipe, definitions or {}, settings, limits, credentials=credentials, commits=pinned)


def list_inputs(specs: Sequence[str], output: str | Path | None = None) -> tuple[Input, ...]:
    """Return every input file of ``specs``, in their order, sorted within each.

    A spec is a file, directory, glob or brace pattern, or ``NAME=`` and one of these, which names the source. A file
    that two specs reach is an error: its documents would be read twice.
    """
    return find_and_describe(specs, output)[0]


def find_and_describe(
    specs: Sequence[str | InputFile],
    output: str | Path | None,
    access: Access | None = None,
    format: str = "",
    commits: dict[str, str] | None = None,
) -> tuple[tuple[Input, ...], Credentials]:
    """Return what `list_inputs` does, and what opens the remote ones among them."""
    from ..text.readers.reader import find_inputs

    found: list[InputFile] = []
    keys: dict[str, Any] = {"output": output, "access": access, "format": format}
    for spec in specs:
        found += [spec] if isinstance(spec, InputFile) else find_inputs(spec, **keys, commits=commits)
    if not found:
        raise InputError("no inputs were given; name at least one file, directory, pattern or url")
    seen: dict[str, str] = {}
    for file in found:
        real = os.path.realpath(file) if file.stored is None else file.stored.url
        if real in seen:
            raise InputError(f"{file.path} is given twice (also as {seen[real]}); its documents would be read twice")
        seen[real] = str(file.path)
    inputs = tuple(_describe(name, file) for name, file in zip(unique_names(found), found, strict=True))
    urls = {clean: url for file in found for clean, url in file.credentials.urls.items()}
    return inputs, Credentials(urls, access or Access())


def unique_names(files: Sequence[InputFile]) -> list[str]:
    """Name files as briefly as keeps them apart: equal names take on parent directories."""
    parents = 0
    names = [_join(file.source, PurePath(file.name)) for file in files]
    while len(set(names)) < len(names):
        parents += 1
        times = Counter(names)
        names = [
            _join(file.source, PurePath(*file.parts[-len(PurePath(file.name).parts) - parents :]))
            if times[old] > 1
            else old
            for old, file in zip(names, files, strict=True)
        ]
    return names


def _join(source: str, name: PurePath) -> str:
    return "/".join(part for part in (source, name.as_posix()) if part)


def _describe(name: str, file: InputFile) -> Input:
    if (stored := file.stored) is not None:
        return Input(name, stored.url, file.source, stored.size, 0, "", stored.version, stored.sha256)
    path, source = Path(file.path), file.source
    try:
        status = path.stat()
        digest = hashlib.sha256()
        with open(path, "rb") as opened:
            digest.update(opened.read(_MIB))
            if status.st_size > _MIB:
                opened.seek(max(_MIB, status.st_size - _MIB))
                digest.update(opened.read(_MIB))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return Input(name, str(path.absolute()), source, status.st_size, status.st_mtime_ns, digest.hexdigest())


def check_same(item: Input, credentials: Credentials = NO_CREDENTIALS) -> None:
    """Raise ``InputError`` unless an input has the size and the time, or the version, that the plan was made for."""
    if item.is_remote:
        from ..text.storage.ranges import describe_again

        stored = item.file(credentials).stored
        assert stored is not None
        describe_again(stored, credentials)
        return
    try:
        status = os.stat(item.path)
    except OSError as error:
        raise InputError(f"{item.path}: cannot be read any more: {error.strerror}; restore it to continue") from error
    if (status.st_size, status.st_mtime_ns) != (item.size, item.mtime_ns):
        raise InputError(
            f"{item.path}: it changed during the build: {item.size:,} bytes of {moment(item.mtime_ns)} before, now "
            f"{status.st_size:,} bytes of {moment(status.st_mtime_ns)}. Restore it to continue, or start over with "
            "--overwrite once nothing writes to it"
        )


def moment(ns: int) -> str:
    """Return a time as people read it, to the nanosecond.

    >>> moment(1_000_000_000_000_000_001)
    '2001-09-09 01:46:40.000000001 UTC'
    """
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


def cut_units(
    inputs: Sequence[Input],
    limits: Limits = DEFAULT_LIMITS,
    credentials: Credentials = NO_CREDENTIALS,
    recipe: Recipe | None = None,
) -> tuple[tuple[Span, ...], ...]:
    """Cut inputs into units of bounded size: large files into spans or lanes, neighbouring small ones joined.

    The cut depends on names and sizes alone, never on workers, so any number of these gives the same units. Where quotas
    bound what is read, no unit holds files of two sources, nor a piece of a file and another file.
    """
    from ..text.readers.reader import split_file

    wanted = sum(item.size for item in inputs) // limits.units_wanted
    target = min(limits.unit_bytes, max(limits.smallest_unit_bytes, wanted))
    units: list[tuple[Span, ...]] = []
    held: list[Span] = []
    weight = 0
    recipe = recipe or Recipe()
    apart, far = recipe.reads_by_quota, _files_far_beyond(inputs, recipe)
    split = functools.partial(_split, split_file, target, credentials, recipe.format)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="shardwright-plan") as threads:
        near = [number for number in range(len(inputs)) if number not in far]
        each = (threads.map if any(item.is_remote for item in inputs) else map)(split, [inputs[n] for n in near])
        cut = dict(zip(near, each, strict=True))
    for number, item in enumerate(inputs):
        pieces = cut.get(number, [(0, None)])
        other = apart and held and (len(pieces) > 1 or item.source != inputs[held[-1].input].source)
        if other or (apart and held and len(cut.get(held[-1].input, ())) > 1):
            units.append(tuple(held))
            held, weight = [], 0
        count = _lanes(item, len(inputs), limits) if len(pieces) == 1 else 1
        if count > 1:
            units += [tuple(held)] if held else []
            units += [(Span(number, lane=lane, lanes=count),) for lane in range(count)]
            held, weight = [], 0
            continue
        for start, stop in pieces:
            held.append(Span(number, start, stop))
            weight += item.size // len(pieces)
            if weight >= target:
                units.append(tuple(held))
                held, weight = [], 0
    if held:
        units.append(tuple(held))
    return tuple(units)


def _files_far_beyond(inputs: Sequence[Input], recipe: Recipe) -> set[int]:
    """Return the files that will hardly be reached before a limit or a quota is: they stay whole.

    To find where a remote one may be cut takes a request and some bytes, and there may be thousands.
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
            far |= {number} if left <= 0 else set()
            left -= inputs[number].size
    return far


def _split(
    split_file: Callable[..., list[FileSpan]], target: int, credentials: Credentials, format: str, item: Input
) -> list[FileSpan]:
    return split_file(item.file(credentials, format), target)


def _lanes(item: Input, inputs: int, limits: Limits) -> int:
    """Return how many lanes a file that cannot be cut is worth: more where there are few files to keep cores busy."""
    from ..text.readers.byte_stream import is_compressed

    if item.is_remote:
        return 1  # each lane would fetch the whole file
    wanted = min(item.size // limits.lane_bytes, -(-limits.units_wanted // inputs), limits.most_lanes)
    return wanted if wanted > 1 and is_compressed(item.path) else 1
