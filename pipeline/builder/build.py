"""The story of a build: plan -> filter -> repeats -> dedup -> tokenizer -> tokenize -> settle -> write -> manifest.

Every stage leaves files in ``OUTPUT/.build`` that appear by rename; what is there is done, so the same command goes on
where a killed one stopped. The manifest comes last, and then the work directory goes.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..atomic import write_json
from ..shards.manifest import PLAN_NAME, WORK_NAME, Manifest, ShardInfo, Split
from .engine.base import Engine, engine_session, open_engine
from .engine.signals import heed_interrupts
from .limits import DEFAULT_LIMITS, Limits
from .locking import locked
from .manifest import gather_counts, keep_signatures, make_manifest, write_run
from .output_directory import begin, clear, finished, local_directory
from .plan import Plan, make_plan
from .recipe import Recipe
from .references import resolve
from .report.console import Progress
from .report.html import write_report
from .report.rejected import keep_rejected, refuse_if_all_are_bad
from .stages.checksums import cut_inputs, hash_input, hash_path
from .stages.dedup import dedup, prepare_dedup
from .stages.filter import check_errors, count_unit, filter_unit, prepare_filter
from .stages.line_dedup import bucket_path, count_buckets, cut_unit, find_unit, prepare_cut
from .stages.partition import (
    DONE,
    PARTS,
    all_parts,
    cut_path,
    documents_path,
    filtered_path,
    list_parts,
    part_path,
    read_json,
    unit_path,
)
from .stages.split import SPLITS, settle
from .stages.tokenize import (
    TOKENIZER,
    load_build_tokenizer,
    prepare_tokenizer,
    tokenize_unit,
    tokens_path,
    train_on_survivors,
)
from .stages.write import ShardPlan, SplitLengths, lay_out, shard_written, source_runs, write_unit
from .workspace import naming_a_full_disk, result_directory


def build(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    recipe: Recipe | None = None,
    *,
    workers: int = 1,
    engine: str = "local",
    start_method: str | None = None,
    ray_address: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
    after_stage: Callable[[str], object] | None = None,
    **settings: Any,
) -> Manifest:
    """Build verified shards from raw text and return their manifest; the same call again goes on, or finds it done.

    ``inputs``: files, directories, globs, braces, or ``name=`` and one of these. ``settings`` are fields of ``Recipe``
    (``tokenizer="train:32000"``, ``language="en"``, ...). The result does not depend on ``workers``, ``engine`` or ``limits``.

    ``after_stage`` is called with the name of each step that is complete: "plan", then the stages in their order. What it
    raises ends the build there, and the same call without it continues.

    Raises ``InputError`` for input that cannot be read, ``ConfigError`` for settings that cannot work, ``PlanChangedError``
    where another build was begun in ``output``, ``BuildError`` for what stops a build on its way.

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> line = json.dumps({"id": "a", "text": "Every document of this input is kept, for no rule is asked for."})
    >>> _ = (folder / "in.jsonl").write_text(line)
    >>> manifest = build(folder / "in.jsonl", folder / "out", tokenizer="bytes", rules=(), progress=Progress(quiet=True))
    >>> manifest.splits["train"].documents
    1
    """
    started = time.perf_counter()
    specs = [str(inputs)] if isinstance(inputs, str | Path) else [str(each) for each in inputs]
    recipe = Recipe.from_json({**(recipe or Recipe()).to_json(), **settings})
    output = local_directory(output)
    references = resolve(recipe)
    plan = make_plan(specs, recipe, references.definitions, output, limits)
    work = output / WORK_NAME
    progress = progress or Progress()
    with locked(work, patience=limits.lock_seconds), naming_a_full_disk(output):
        if overwrite:
            clear(output)
        manifest = finished(output, plan)
        if manifest is not None:
            progress.say(f"{output}: already complete, {manifest.counts['kept']:,} documents")
        else:
            resumed = (work / PLAN_NAME).exists()
            plan = begin(output, plan, references)
            open_workers = functools.partial(
                open_engine, engine, workers=workers, start_method=start_method, ray_address=ray_address
            )
            after_stage = after_stage or (lambda name: None)
            after_stage("plan")
            stages = _Stages(plan, output, progress, open_workers, after_stage)
            planned = time.perf_counter()
            stages.seconds["plan"] = planned - started
            with engine_session(engine, workers=workers, ray_address=ray_address):
                stages.seconds["start"] = time.perf_counter() - planned
                manifest = stages.run({"workers": workers, "engine": engine, "resumed": resumed})
        shutil.rmtree(work, ignore_errors=True)
    return manifest


LIMITS_NAME = "limits.json"

_Task = tuple[str, int, int | None]  # "filter" or "hash", a number, and the most records to read


def _read(work: Path, task: _Task) -> int:
    """Do one unit of the filter stage; return how many bad records it found."""
    kind, number, limit = task
    if kind == "filter":
        return filter_unit(work, number, limit)[1]
    hash_input(work, number)
    return 0


class _Stages:
    """One run of the stages over a work directory."""

    def __init__(
        self,
        plan: Plan,
        output: Path,
        progress: Progress,
        open_workers: Callable[..., Engine],
        after_stage: Callable[[str], object],
    ) -> None:
        self.after_stage = after_stage
        self.plan = plan
        self.recipe = plan.recipe
        self.output = output
        self.work = output / WORK_NAME
        self.progress = progress
        self.open_workers = open_workers
        self.seconds: dict[str, float] = {}

    def run(self, facts: dict[str, Any]) -> Manifest:
        for stage in (self.filter, self.repeats, self.dedup, self.tokenizer, self.tokenize, self.settle):
            self.timed(stage.__name__, stage)
        splits = self.timed("write", self.write)
        manifest = make_manifest(self.work, self.output, self.plan, gather_counts(self.work, self.plan), splits)
        self.timed("finish", lambda: self.finish(manifest))
        self.seconds["total"] = sum(self.seconds.values())
        write_run(self.work, self.output, manifest, self.seconds, facts)
        manifest.write(self.output)
        self.progress.table(manifest, self.seconds)
        return manifest

    def timed(self, name: str, action: Callable[[], Any]) -> Any:
        started, before = time.perf_counter(), self.seconds.get("start", 0.0)
        with heed_interrupts():
            result = action()
        self.seconds[name] = time.perf_counter() - started - (self.seconds.get("start", 0.0) - before)
        self.after_stage(name)
        return result

    def filter(self) -> None:
        """Read, normalise, measure, judge, hash."""
        if (self.work / PARTS).exists():
            return
        limits = self._limits()
        todo: list[_Task] = [
            ("hash", number, None) for number in cut_inputs(self.plan) if not hash_path(self.work, number).exists()
        ]
        bad = 0
        for unit in range(len(self.plan.units)):
            done = unit_path(self.work, unit) / DONE
            if done.exists():
                bad += read_json(done)["bad"]
            else:
                todo.append(("filter", unit, limits[unit]))
        function, prepare = functools.partial(_read, self.work), functools.partial(prepare_filter, self.work)
        for _, found in self.each("filter", function, todo, prepare, self.task_bytes):
            bad += found
            check_errors(bad, self.recipe)
        refuse_if_all_are_bad(self.work, self.plan)
        list_parts(self.work, self.plan)

    def _limits(self) -> list[int | None]:
        """Return the most records that each unit reads: what those before it leave of ``limit``.

        Records are counted first, which takes a fraction of the time of filtering them, a few units at a time. So any
        number of workers filters the same ones.
        """
        left, units, path = self.recipe.limit, self.plan.units, self.work / LIMITS_NAME
        if left is None:
            return [None] * len(units)
        if path.exists():
            return list(read_json(path))
        limits: list[int | None] = []
        first = [number for number, unit in enumerate(units) if unit[0].lane == 0]
        at, width = 0, 1
        with self.open_workers() as engine, self.progress.bar("count", left) as bar:
            while left and at < len(first):
                some = first[at : at + width]
                counts = dict(engine.map(functools.partial(count_unit, self.work, left), some))
                for number, unit in enumerate(some):
                    limits += [left] * units[unit][0].lanes
                    read = min(left, counts[number])
                    left -= read
                    bar(read)
                at, width = at + width, 2 * width
        limits += [0] * (len(units) - len(limits))
        write_json(path, limits)
        return limits

    def task_bytes(self, task: _Task) -> int:
        """Return about how many bytes of input a unit filters, for the progress bar; hashing takes next to no time."""
        kind, number, limit = task
        total = 0
        for span in self.plan.units[number] if kind == "filter" and limit != 0 else ():
            size = self.plan.inputs[span.input].size
            whole = span.start == 0 and span.stop is None
            total += size // span.lanes if whole else min(size, (span.stop or size) - span.start)
        return max(1, total)

    def each(
        self,
        name: str,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        prepare: Callable[[], object] | None,
        size: Callable[[Any], int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Run a unit function over units on the engine, with a progress bar; yield results as they come.

        ``size`` tells the bytes of a unit, where units differ much.
        """
        if not units:
            return
        weight = size or (lambda unit: 1)
        total = sum(map(weight, units))
        started = time.perf_counter()
        with self.open_workers(prepare=prepare) as engine:
            self.seconds["start"] = self.seconds.get("start", 0.0) + time.perf_counter() - started
            with self.progress.bar(name, total, bytes=size is not None) as bar:
                for index, result in engine.map(function, units):
                    yield index, result
                    bar(weight(units[index]))

    def repeats(self) -> None:
        """Cut lines and paragraphs that stood before, where that is asked for."""
        if not self.recipe.passage_kinds:
            return
        work, buckets = self.work, count_buckets(self.work, self.plan.limits.bucket_hashes)
        todo = [bucket for bucket in range(buckets) if not bucket_path(work, bucket).exists()]
        for _ in self.each("find repeats", functools.partial(find_unit, work, buckets), todo, None):
            pass
        todo = [part for part in range(len(all_parts(work))) if not cut_path(work, part).exists()]
        function, prepare = functools.partial(cut_unit, work, buckets), functools.partial(prepare_cut, work)
        uncut = {part: documents_path(filtered_path(work, part)) for part in todo}
        sizes = {part: path.stat().st_size for part, path in uncut.items()}
        for index, _ in self.each("cut repeats", function, todo, prepare, sizes.__getitem__):
            uncut[todo[index]].unlink()  # not by the worker: one that outlives a killed build must take nothing away

    def dedup(self) -> None:
        """Find duplicates over the whole input."""
        if not (self.work / "dedup").exists():
            dedup(self.work, self.recipe, self.plan.limits, self._dedup_units)

    def _dedup_units(self, name: str, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterable[Any]:
        return self.each(name, function, units, prepare_dedup)

    def tokenizer(self) -> None:
        """Train the tokenizer where one is to be trained."""
        spec, directory = self.recipe.tokenizer, self.work / TOKENIZER
        if spec.startswith("train:") and not directory.exists():
            with self.progress.bar("train tokenizer", 1):
                trained = train_on_survivors(self.work, int(spec[6:]))
            with result_directory(directory) as path:
                trained.save(path)

    def tokenize(self) -> None:
        """Encode the survivors."""
        todo = [part for part in range(len(all_parts(self.work))) if not tokens_path(self.work, part).exists()]
        function = functools.partial(tokenize_unit, self.work)
        for _ in self.each(
            "tokenize", function, todo, functools.partial(prepare_tokenizer, self.work), self.part_bytes
        ):
            pass

    def part_bytes(self, part: int) -> int:
        return documents_path(part_path(self.work, part)).stat().st_size

    def settle(self) -> None:
        """Decide which split each document belongs to, and which sources have their fill."""
        if not (self.work / "settled").exists():
            settle(self.work, self.plan)

    def write(self) -> dict[str, Split]:
        """Cut each split into shards, now that every token is counted, and write them."""
        layout: list[ShardPlan] = []
        for split in SPLITS:
            layout += lay_out(
                SplitLengths(self.work, split), split, self.recipe.tokens_per_shard, source_runs(self.work, split)
            )
        done = {shard.name: info for shard in layout if (info := shard_written(self.work, self.output, shard))}
        todo = [shard for shard in layout if shard.name not in done]
        function = functools.partial(write_unit, self.work, self.output)
        for index, info in self.each("write", function, todo, functools.partial(prepare_tokenizer, self.work)):
            done[todo[index].name] = info
        splits: dict[str, list[ShardInfo]] = {split: [] for split in SPLITS}
        for shard in layout:
            splits[shard.split].append(done[shard.name])
        return {name: Split(tuple(shards)) for name, shards in splits.items() if shards or name == "train"}

    def finish(self, manifest: Manifest) -> None:
        """Write everything that lies beside the shards, but for the manifest."""
        load_build_tokenizer(self.work).save(self.output)
        if self.recipe.dedup and self.recipe.keep_signatures:
            keep_signatures(self.work, self.output, self.plan)
        keep_rejected(self.work, self.output, self.plan)
        write_report(self.output, manifest)
