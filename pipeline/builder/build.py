"""Runs a build: the plan, then the stages in order, then the files beside the shards, and the manifest last.

Every stage writes files to ``OUTPUT/.build`` that appear by rename. A file that exists is complete, so the same command
continues an interrupted build. The work directory is removed after the manifest is written.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..atomic_directory import discard
from ..errors import ConfigError
from ..objects.request_options import TIMEOUT, TRIES, RequestOptions
from ..progress import Progress
from ..shards.manifest import Manifest
from ..signals import reraise_swallowed_signals
from ..text.storage.in_memory import can_be_read_again, is_in_memory, materialize, materialized, split_inputs
from ..text.storage.input_file import InputFile
from .build_manifest import gather_counts, make_manifest, publish, write_beside_shards, write_run
from .engines.local import UNIT_TRIES
from .engines.options import EngineOptions
from .inputs import read_a_byte
from .limits import DEFAULT_LIMITS, Limits
from .output_directory import (
    anything_done,
    check_apart,
    clear,
    commits_of_started,
    finished,
    release_bucket,
    start,
    workspace_of,
)
from .plan import make_plan
from .recipe import Recipe
from .report.console import print_table
from .stages.registry import editing_stages, stages_to_run
from .stages.stage import Run
from .transforms.references import References
from .transforms.user_functions import local_functions, spec_of
from .work.workspace import MATERIALIZED_NAME, Workspace

if TYPE_CHECKING:
    from .settings import Settings  # written by scripts/type_settings.py


def build(
    inputs: object,
    output: str | Path,
    recipe: Recipe | None = None,
    *,
    workers: int | None = None,
    engine: str = "local",
    start_method: str | None = None,
    ray_address: str | None = None,
    ray_skip_bad_nodes: bool = False,
    unit_tries: int = UNIT_TRIES,
    work: str | Path | None = None,
    overwrite: bool = False,
    lock: bool = True,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, object] | None = None,
    tries: int = TRIES,
    timeout: float = TIMEOUT,
    after_stage: Callable[[str], object] = lambda stage: None,
    **settings: Unpack[Settings],
) -> Manifest:
    """Build verified shards from raw text and return their manifest.

    ``inputs`` are files, directories, globs, braces or urls (``hf://datasets/...``, ``s3://``, ``https://``, ...), or hold the
    records: a DataFrame, an Arrow table, a dataset, an iterable of dicts. Give one of these, a list of them, or a dict of them
    by the names of their sources. ``name=`` before a path names its source too. ``storage_options`` are arguments of fsspec. A
    request is made at most ``tries`` times, and is repeated if a server sends nothing for ``timeout`` seconds.

    ``output`` is a directory, or the url of one in a bucket (``s3://bucket/name``, ``gs://``, ``az://``). A build into a bucket
    works in the directory ``work`` of this machine (default: ``NAME.build``), and moves shards to the bucket as they are
    finished.

    ``settings`` are the fields of ``Recipe`` (``tokenizer="train:32000"``, ``language="en"``, ...), and override ``recipe``.
    ``transforms`` are functions of documents, or their names as ``module:function``, which run after normalising. A list that
    also names built-in transforms ("normalize", "clean", "language", "rules") is the whole order.

    The same call again continues an interrupted build, or returns the manifest of a complete one. ``overwrite=True`` starts
    over. ``lock=False`` is for file systems without locks: make sure yourself that no other build works in ``output``.

    ``engine`` is ``"local"`` or ``"ray"``. ``workers`` None means 1, or on Ray as many as the cluster has CPUs. A unit of work
    whose worker dies is tried ``unit_tries`` times. None of these changes a byte of the result, nor do ``start_method``,
    ``ray_address`` and ``ray_skip_bad_nodes``. ``limits`` changes bytes only together with ``max_tokens``.

    ``after_stage`` is called with the name of each complete stage: "plan", then the stages in order. If a token quota needs more
    input, some stages run again. If ``after_stage`` raises, the build ends there, and the same call without it continues.

    Raises ``InputError`` if input cannot be read, and ``ConfigError`` if settings cannot work. Raises ``PlanChangedError`` if
    another build began in ``output``, and ``BuildError`` if something stops the build later.

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "in.jsonl").write_text(json.dumps({"id": "a", "text": "Without rules, every document is kept."}))
    >>> manifest = build(folder / "in.jsonl", folder / "out", tokenizer="bytes", rules=(), progress=Progress(quiet=True))
    >>> manifest.splits["train"].documents
    1
    """
    started = time.perf_counter()
    by_name = "a pipeline.Recipe; give settings by their names, as in build(..., dedup=False)"
    _check_type("recipe", recipe, Recipe | None, by_name)
    _check_type("overwrite", overwrite, bool, "True or False")
    _check_type("lock", lock, bool, "True or False")
    _check_type("progress", progress, Progress | None, "a Progress, as in pipeline.Progress(quiet=True)")
    _check_type("limits", limits, Limits, "pipeline.Limits")
    _check_type("storage_options", storage_options, Mapping | None, "a dict of arguments of fsspec")
    _check_type("after_stage", after_stage, Callable, "a function of the name of a stage")
    requests = RequestOptions(tries=tries, timeout=timeout, options=storage_options or {})
    options = EngineOptions(
        engine=engine,
        workers=workers,
        start_method=start_method,
        ray_address=ray_address,
        ray_skip_bad_nodes=ray_skip_bad_nodes,
        unit_tries=unit_tries,
    )
    if isinstance(transforms := settings.get("transforms"), list | tuple):
        settings["transforms"] = [spec_of(function) for function in transforms]
    recipe = (recipe or Recipe()).updated(settings)
    _check_transforms(recipe, options)
    workspace = workspace_of(output, work, requests)
    check_apart(recipe, workspace)
    progress = progress or Progress()
    with workspace.locked(limits.lock_seconds, lock):
        specs = _materialize_inputs(inputs, workspace, progress, overwrite=overwrite)
        with progress.bar("plan", 2, "steps") as advance:
            references = References.read(recipe, requests)
            advance(1)
            commits = {} if overwrite else commits_of_started(workspace, progress)
            editing = editing_stages(recipe)
            plan = make_plan(
                specs, recipe, references.definitions, workspace.outputs, limits, requests, commits, editing
            )
            advance(1)
        read_input = functools.partial(read_a_byte, plan.inputs[0], plan.credentials)
        open_workers = functools.partial(options.open, shared=workspace.root, read_input=read_input)
        if overwrite:
            with open_workers():  # raises if workers cannot start, before anything is removed
                clear(workspace, plan)
        manifest = finished(workspace, plan)
        if manifest is not None:
            progress.say(f"{workspace}: already complete, {manifest.counts['kept']:,} documents")
        else:
            if workspace.bucket is not None:
                progress.say(f"{workspace}: built in {workspace.output}; shards move there as they are finished")
            resumed = workspace.is_planned
            continued = resumed and anything_done(workspace)
            plan = start(workspace, plan, references, overwrite=overwrite)
            if continued:
                progress.say(f"{workspace}: continues the build that was interrupted here")
            after_stage("plan")
            planned = time.perf_counter()
            run = Run(workspace, plan, progress, open_workers, {"plan": planned - started})
            with open_workers() as opened:  # engines of Ray share its connection
                run.seconds["start"] = time.perf_counter() - planned
                facts = {"workers": opened.workers, "engine": engine, "resumed": resumed}
                manifest = _run_stages(run, after_stage, facts)
        workspace.sweep()
        release_bucket(workspace)
        workspace.clear()  # except for the lock, which another build would otherwise find free
    if workspace.bucket is not None:
        with suppress(OSError):  # a file of the user is in it
            workspace.output.rmdir()
    return manifest


def _materialize_inputs(
    inputs: object, workspace: Workspace, progress: Progress, *, overwrite: bool
) -> list[str | InputFile]:
    """Return the inputs as specs and files. Inputs in memory are written to files.

    An input that can be read again is written again, so that a change is noticed. A generator is written once: a continued build
    reads the records that the generator yielded when the build began. ``overwrite`` discards these records.
    """
    if overwrite:
        discard(workspace.root / MATERIALIZED_NAME)
    specs: list[str | InputFile] = []
    for number, (source, entry) in enumerate(split_inputs(inputs)):
        if is_in_memory(entry):
            path = _materialize(entry, workspace.root / MATERIALIZED_NAME / f"{number:03d}", progress)
            specs.append(InputFile(path, path.name, source))
        else:
            specs.append(entry)
    return specs


def _materialize(value: object, folder: Path, progress: Progress) -> Path:
    kind = type(value).__name__
    if can_be_read_again(value):
        return materialize(value, folder)
    if (path := materialized(folder)) is not None:
        progress.say(f"{kind}: continued with the records that it yielded before; --overwrite reads it again")
        return path
    progress.say(f"{kind}: cannot be read twice or compared later, so its records are written to {folder} first")
    return materialize(value, folder)


def _check_type(name: str, value: object, kind: Any, wanted: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def _check_transforms(recipe: Recipe, options: EngineOptions) -> None:
    """Raise ``ConfigError`` if other processes need functions that only this process knows."""
    local = local_functions(recipe.transforms)
    if local and not options.is_one_process:
        where = f"engine {options.engine!r}" if options.engine != "local" else "worker processes that are not forked"
        raise ConfigError(
            f"transform {local[0].partition('@')[0]!r} is known to this process only, and {where} cannot load it: put it into a "
            "module, or build with workers=1"
        )


def _run_stages(run: Run, after_stage: Callable[[str], object], facts: Mapping[str, object]) -> Manifest:
    """Run the stages that the recipe asks for, and write the files beside the shards; return the manifest."""
    workspace, seconds = run.workspace, run.seconds
    for stage in stages_to_run(run):
        try:
            with _timed(run, stage.name):
                run.complete(stage)
        except KeyboardInterrupt as interrupt:
            interrupt.args = (run.kept(),)
            raise
        after_stage(stage.name)
    with _timed(run, "finish"):
        manifest = make_manifest(workspace, gather_counts(workspace))
        manifest = write_beside_shards(workspace, manifest)
    seconds["total"] = sum(seconds.values())
    write_run(
        workspace, manifest, seconds, {**facts, "retries": run.retries, **({"nodes": run.nodes} if run.nodes else {})}
    )
    publish(workspace, manifest)
    if not run.progress.quiet:
        print_table(manifest, seconds)
    return manifest


@contextmanager
def _timed(run: Run, name: str) -> Iterator[None]:
    """Add the seconds of a block to a stage, less those in which workers started. Raise signals that a library swallowed."""
    seconds = run.seconds
    started, before = time.perf_counter(), seconds.get("start", 0.0)
    with reraise_swallowed_signals():
        yield
    took = time.perf_counter() - started - (seconds.get("start", 0.0) - before)
    seconds[name] = seconds.get(name, 0.0) + took
