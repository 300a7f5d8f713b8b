"""The story of a build, stage by stage: plan -> filter -> dedup -> tokenizer -> tokenize -> write -> manifest.

Every stage leaves files in ``OUTPUT/.build`` that appear by rename; what is there is done, so the same command goes on
where a killed one stopped. The manifest comes last, and then the work directory goes.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from filters.language import LanguageIdentifier

from ..atomic import write_json
from ..errors import BuildError, ConfigError
from ..shards.manifest import MANIFEST_NAME, Manifest, ShardInfo, Split
from .dedup import find_duplicates
from .earlier import load_earlier, save_signatures
from .engine import Engine, open_engine
from .filtering import filter_unit, prepare_filter, unit_path
from .plan import PLAN_NAME, Plan, check_unchanged, make_plan
from .progress import Progress
from .recipe import Recipe
from .report import write_report
from .rules import load_rules
from .tally import sum_counts
from .tokenizing import (
    load_build_tokenizer,
    prepare_tokenizer,
    read_column,
    tokenize_unit,
    tokens_path,
    train_on_survivors,
)
from .work import WORK_NAME, locked, result_directory, sweep
from .writing import ShardPlan, lay_out, shard_written, split_of, write_unit

RUN_NAME = "run.json"


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
    **settings: Any,
) -> Manifest:
    """Build verified shards from raw text and return their manifest; the same call again goes on, or finds it done.

    ``inputs``: files, directories, globs, braces, or ``name=`` and one of these. ``settings`` are fields of ``Recipe``
    (``tokenizer="train:32000"``, ``language="en"``, ...). The result does not depend on ``workers`` or ``engine``.

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
    specs = [str(inputs)] if isinstance(inputs, str | Path) else [str(each) for each in inputs]
    recipe = Recipe.from_json({**(recipe or Recipe()).to_json(), **settings})
    plan = make_plan(specs, recipe, definitions_of(recipe))
    output = Path(output).absolute()  # workers may run elsewhere
    work = output / WORK_NAME
    progress = progress or Progress()
    with locked(work):
        if overwrite:
            _clear(output)
        done = _finished(output, plan)
        if done is not None:
            progress.say(f"{output}: already complete, {sum(s.documents for s in done.splits.values()):,} documents")
            shutil.rmtree(work, ignore_errors=True)
            return done
        _begin(work, plan)
        open_workers = functools.partial(
            open_engine, engine, workers=workers, start_method=start_method, ray_address=ray_address
        )
        manifest = _Build(plan, output, progress, open_workers).run()
    shutil.rmtree(work, ignore_errors=True)
    return manifest


def definitions_of(recipe: Recipe) -> dict[str, Any]:
    """Return what the names in a recipe stand for now, so that a rule file or model that changed is noticed."""
    model = LanguageIdentifier(recipe.lid_model).path
    earlier = {Path(path).name: Manifest.read(path).fingerprint for path in recipe.against}
    if recipe.tokenizer.startswith("train:") and not recipe.tokenizer[6:].isdigit():
        raise ConfigError(f"tokenizer {recipe.tokenizer!r}: train: needs a vocabulary size, as in train:32000")
    return {
        "rules": load_rules([*recipe.rules, *(["dedup_lines"] if recipe.dedup_lines else [])]).describe(),
        "language_model": {"name": model.name, "bytes": model.stat().st_size},
        "against": earlier,
    }


def _clear(output: Path) -> None:
    """Remove an earlier result: the manifest first, so that nothing half removed looks complete."""
    (output / MANIFEST_NAME).unlink(missing_ok=True)
    for path in [*output.glob("*.tar"), *output.glob("*.json"), *output.glob("*.html")]:
        path.unlink()
    for folder in ("signatures", "rejected"):
        shutil.rmtree(output / folder, ignore_errors=True)
    for path in (output / WORK_NAME).iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _finished(output: Path, plan: Plan) -> Manifest | None:
    """Return the manifest where this very build is complete; refuse a directory that holds another one."""
    if not (output / MANIFEST_NAME).exists():
        return None
    manifest = Manifest.read(output)
    held = Plan(
        inputs=tuple(
            new if (old["name"], old["bytes"], old["ends"]) == (new.name, new.size, new.ends) else _stranger(old, new)
            for old, new in itertools.zip_longest(manifest.inputs, plan.inputs)
            if old is not None and new is not None
        )
        if len(manifest.inputs) == len(plan.inputs)
        else (),
        units=plan.units,
        recipe=Recipe.from_json(manifest.recipe["settings"]),
        definitions=manifest.recipe["definitions"],
    )
    check_unchanged(held, plan)
    return manifest


def _stranger(old: dict[str, Any], new: Any) -> Any:
    return replace(new, name=old["name"], size=old["bytes"], ends=old["ends"])


def _begin(work: Path, plan: Plan) -> None:
    """Write the plan of a new build, or check that the one begun here is the same."""
    if (work / PLAN_NAME).exists():
        check_unchanged(Plan.read(work), plan)
    sweep(work)
    sweep_output = [path for path in work.parent.glob(".*.tmp") if path.is_file()]
    for path in sweep_output:
        path.unlink()
    for name in ("filter", "tokens", "shards"):
        (work / name).mkdir(exist_ok=True)
    if not (work / PLAN_NAME).exists():
        plan.write(work)


class _Build:
    """One run of the stages over a work directory."""

    def __init__(self, plan: Plan, output: Path, progress: Progress, open_workers: Callable[..., Engine]) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        self.output = output
        self.work = output / WORK_NAME
        self.progress = progress
        self.open_workers = open_workers
        self.units = list(range(len(plan.units)))
        self.seconds: dict[str, float] = {}

    def run(self) -> Manifest:
        started = time.perf_counter()
        self.stage("filter", self.filter)
        counts = sum_counts(self.work, self.units)
        if not (self.work / "dedup").exists():
            self.stage("dedup", self.dedup)
        counts |= json.loads((self.work / "dedup" / "counts.json").read_text(encoding="utf-8"))
        self.stage("tokenizer", self.tokenizer)
        self.stage("tokenize", self.tokenize)
        layout = self.lay_out()
        splits = self.stage("write", lambda: self.write(layout))
        manifest = self.manifest(counts, splits)
        self.keep(counts)
        write_report(self.output, manifest, self.plan)
        self.seconds["total"] = time.perf_counter() - started
        self.write_run(counts, manifest)
        manifest.write(self.output)
        self.progress.table(manifest, self.seconds)
        return manifest

    def stage(self, name: str, action: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = action()
        self.seconds[name] = time.perf_counter() - started
        return result

    def filter(self) -> None:
        """Read, normalise, measure, judge, hash."""
        todo = [unit for unit in self.units if not unit_path(self.work, unit).exists()]
        if self.recipe.limit is not None:
            self._filter_in_order(self.recipe.limit)
            return
        prepare = functools.partial(prepare_filter, self.work)
        self.each("filter", functools.partial(filter_unit, self.work), todo, prepare, self.unit_bytes)

    def _filter_in_order(self, limit: int) -> None:
        """Filter units one after the other until enough documents were read: the first ones, whatever the workers."""
        left = limit
        for unit in self.progress.track("filter", self.units, lambda unit: 1):
            if not unit_path(self.work, unit).exists():
                filter_unit(self.work, unit, left)
            counts = json.loads((unit_path(self.work, unit) / "counts.json").read_text(encoding="utf-8"))
            left -= counts["read"] + sum(counts["bad"].values())

    def unit_bytes(self, unit: int) -> int:
        """Estimate the bytes of a unit, for the progress bar."""
        total = 0
        for span in self.plan.units[unit]:
            size = self.plan.inputs[span.input].size
            whole = span.start == 0 and span.stop is None
            total += size if whole else min(size, (span.stop or size) - span.start)
        return max(1, total)

    def each(
        self,
        name: str,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        prepare: Callable[[], object] | None,
        weight: Callable[[Any], int] = lambda unit: 1,
    ) -> list[tuple[int, Any]]:
        """Run a unit function over units on the engine, with a progress bar; return its results in order."""
        if not units:
            return []
        results = []
        with self.open_workers(prepare=prepare) as engine, self.progress.bar(name, sum(map(weight, units))) as bar:
            for index, result in engine.map(function, units):
                results.append((index, result))
                bar(weight(units[index]))
        return sorted(results, key=lambda pair: pair[0])

    def dedup(self) -> None:
        """Find duplicates over the whole input; the first in input order stays."""
        counts = [json.loads((unit_path(self.work, u) / "counts.json").read_text()) for u in self.units]
        starts = np.cumsum([0, *(each["kept"] for each in counts)])
        hashes = self._joined("hashes.bin", np.uint8, 16, int(starts[-1]))
        signatures = self._joined("signatures.bin", np.uint32, self.recipe.bands * self.recipe.rows, int(starts[-1]))
        before, old_hashes, old_signatures = load_earlier(self.recipe)
        all_signatures = signatures
        if before:
            hashes_in = np.concatenate([old_hashes, hashes])
            all_signatures = np.concatenate([old_signatures, signatures])
        else:
            hashes_in = np.asarray(hashes)
        with result_directory(self.work / "dedup") as directory:
            n = int(starts[-1])
            if self.recipe.dedup and n:
                with self.progress.bar("dedup", 1):
                    found = find_duplicates(
                        hashes_in,
                        all_signatures,
                        threshold=self.recipe.threshold,
                        before=before,
                        keep=self.recipe.keep,
                        lengths=self._characters(before) if self.recipe.keep == "longest" else None,
                    )
                kind, keeper, size = found.kind[before:], found.keeper[before:] - before, found.cluster_size[before:]
            else:
                kind, keeper, size = np.zeros(n, np.uint8), np.arange(n), np.ones(n, np.int32)
            kept = kind == 0
            np.save(directory / "kept.npy", kept)
            np.save(directory / "keeper.npy", keeper)
            np.save(directory / "cluster_size.npy", size)
            np.save(directory / "starts.npy", starts)
            np.save(directory / "hashes.npy", hashes)
            np.save(directory / "in_val.npy", split_of(np.asarray(hashes), self.recipe.val_fraction))
            np.save(directory / "first_lines.npy", self._first_lines(counts))
            sizes, times = np.unique(size[kept], return_counts=True)
            duplicates = {"exact": int((kind == 1).sum()), "near": int((kind == 2).sum())}
            clusters = dict(zip(map(str, sizes.tolist()), times.tolist(), strict=True))
            write_json(directory / "counts.json", {"duplicates": duplicates, "cluster_sizes": clusters})

    def _characters(self, before: int) -> np.ndarray:
        """Return the length of every document, for the policy that keeps the longest."""
        batches = itertools.chain.from_iterable(read_column(self.work, unit, "text") for unit in self.units)
        lengths = [len(text) for batch in batches for text in batch[0].to_pylist()]
        return np.concatenate([np.zeros(before, np.int64), np.asarray(lengths, np.int64)])

    def _joined(self, name: str, dtype: Any, width: int, count: int) -> np.ndarray:
        """Join the units' files into one, and map it, so that signatures need no memory of their own."""
        path = self.work / name
        if not self.recipe.dedup and name == "signatures.bin":
            return np.zeros((count, width), dtype)
        with open(path, "wb") as out:
            for unit in self.units:
                with open(unit_path(self.work, unit) / name, "rb") as part:
                    shutil.copyfileobj(part, out, 1 << 20)
        if count == 0:
            return np.zeros((0, width), dtype)
        return np.memmap(path, dtype=dtype, mode="r", shape=(count, width))

    def _first_lines(self, counts: list[dict[str, Any]]) -> np.ndarray:
        """Return, for every span of every unit in order, how many lines of its file come before it."""
        lines: dict[int, int] = {}
        before = []
        for unit, each in zip(self.plan.units, counts, strict=True):
            for span, held in itertools.zip_longest(unit, each["spans"]):
                before.append(lines.get(span.input, 0))
                lines[span.input] = before[-1] + (held["lines"] if held else 0)
        return np.asarray(before, dtype=np.int64)

    def tokenizer(self) -> None:
        """Train the tokenizer where one is to be trained."""
        spec, directory = self.recipe.tokenizer, self.work / "tokenizer"
        if spec.startswith("train:") and not directory.exists():
            with self.progress.bar("train tokenizer", 1):
                trained = train_on_survivors(self.work, len(self.units), int(spec[6:]), self.recipe.seed)
            with result_directory(directory) as path:
                trained.save(path)

    def tokenize(self) -> None:
        todo = [unit for unit in self.units if not tokens_path(self.work, unit).exists()]
        prepare = functools.partial(prepare_tokenizer, self.work)
        self.each("tokenize", functools.partial(tokenize_unit, self.work), todo, prepare, self.unit_bytes)

    def lay_out(self) -> list[ShardPlan]:
        """Cut each split into shards, now that every token is counted."""
        lengths = np.concatenate(
            [np.zeros(0, np.int64), *(np.load(tokens_path(self.work, u) / "lengths.npy") for u in self.units)]
        )
        kept = np.load(self.work / "dedup" / "kept.npy")
        in_val = np.load(self.work / "dedup" / "in_val.npy")[kept]
        limit = self.recipe.tokens_per_shard
        return [*lay_out(lengths[~in_val], "train", limit), *lay_out(lengths[in_val], "val", limit)]

    def write(self, layout: list[ShardPlan]) -> dict[str, Split]:
        done = {shard.name: info for shard in layout if (info := shard_written(self.work, self.output, shard))}
        todo = [shard for shard in layout if shard.name not in done]
        function = functools.partial(write_unit, self.work, self.output, len(self.units))
        for index, info in self.each("write", function, todo, functools.partial(prepare_tokenizer, self.work)):
            done[todo[index].name] = info
        splits: dict[str, list[ShardInfo]] = {"train": [], "val": []}
        for shard in layout:
            splits[shard.split].append(done[shard.name])
        return {name: Split(tuple(shards)) for name, shards in splits.items() if shards or name == "train"}

    def manifest(self, counts: dict[str, Any], splits: dict[str, Split]) -> Manifest:
        tokenizer = load_build_tokenizer(self.work)
        tokenizer.save(self.output)
        kept = sum(split.documents for split in splits.values())
        _check_sums(counts, kept)
        counts = {**counts, "kept": kept, "tokens": sum(split.tokens for split in splits.values())}
        return Manifest(
            dtype=np.dtype(tokenizer.dtype).str,
            tokenizer={
                "name": self.recipe.tokenizer
                if not Path(self.recipe.tokenizer).exists()
                else Path(self.recipe.tokenizer).name,
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
                "eos_id": tokenizer.eos_id,
                "bos_id": tokenizer.bos_id,
                "special_ids": dict(tokenizer.special_ids),
            },
            splits=splits,
            recipe={"settings": self.recipe.to_json(), "definitions": json.loads(json.dumps(self.plan.definitions))},
            inputs=self.inputs(counts.pop("hashes")),
            counts=counts,
        )

    def inputs(self, hashes: list[list[str | None]]) -> list[dict[str, Any]]:
        """Describe the inputs with the hashes that reading made: of the file, or of each span of it."""
        found: list[list[str | None]] = [[] for _ in self.plan.inputs]
        for unit, digests in zip(self.plan.units, hashes, strict=True):
            for span, digest in itertools.zip_longest(unit, digests):
                found[span.input].append(digest)
        return [
            {"name": item.name, "source": item.source, "bytes": item.size, "ends": item.ends, "sha256": digests}
            for item, digests in zip(self.plan.inputs, found, strict=True)
        ]

    def keep(self, counts: dict[str, Any]) -> None:
        """Carry over what outlives the work directory: signatures for later builds, rejected and unread records."""
        if self.recipe.dedup and self.recipe.keep_signatures:
            save_signatures(self.work, self.output, self.recipe)
        with result_directory(self.work / "rejected") as directory, open(directory / "rejected.jsonl", "wb") as out:
            for unit in self.units:
                with open(unit_path(self.work, unit) / "rejected.jsonl", "rb") as part:
                    shutil.copyfileobj(part, out, 1 << 20)
        if (self.work / "rejected" / "rejected.jsonl").stat().st_size:
            (self.work / "rejected" / "rejected.jsonl").replace(self.output / "rejected.jsonl")

    def write_run(self, counts: dict[str, Any], manifest: Manifest) -> None:
        """Write what differs from run to run, and is covered by no fingerprint."""
        from importlib.metadata import version

        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        packages = ("numpy", "tokenizers", "pyarrow", "numba", "orjson")
        value = {
            "seconds": seconds,
            "documents_per_second": round(counts["read"] / max(1e-9, seconds["total"]), 1),
            "encoder": load_build_tokenizer(self.work).encoder,
            "versions": {name: version(name) for name in packages},
        }
        write_json(self.output / RUN_NAME, value)


def _check_sums(counts: dict[str, Any], kept: int) -> None:
    """Raise ``BuildError`` unless every stage's counts add up to what came in: nothing may disappear."""
    dropped, duplicates = sum(counts["dropped"].values()), sum(counts["duplicates"].values())
    if counts["read"] != dropped + duplicates + kept:
        raise BuildError(
            f"{counts['read']} documents were read, but {dropped} dropped, {duplicates} duplicates and {kept} kept make "
            f"{dropped + duplicates + kept}: this is a fault of the builder, not of the input; please report it"
        )
