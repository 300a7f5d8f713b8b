"""What lies in the output directory before a build: nothing, this build begun or complete, or what is in its way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ..errors import BuildError, ConfigError
from ..shards.manifest import MANIFEST_NAME, PLAN_NAME, WORK_NAME, Manifest
from ..shards.remote.transport import is_remote, local_name
from .locking import LEASE_NAME, LOCK_NAME
from .manifest import result_files
from .plan import Input, Plan, check_unchanged
from .recipe import Recipe
from .references import References
from .stages.partition import DONE
from .workspace import discard, sweep


def local_directory(output: str | Path) -> Path:
    """Return the absolute path of the output, for workers may run elsewhere; refuse what cannot be a directory here."""
    if is_remote(str(output)):
        raise ConfigError(
            f"{output}: a dataset is written to a directory of this machine; choose one as --output, and copy it to the "
            f"url when it is complete, {MANIFEST_NAME} last"
        )
    path = Path(local_name(str(output))).absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{output}: a file, where --output names a directory; choose another")
    return path


def clear(output: Path) -> None:
    """Remove an earlier result: the manifest first, so that nothing half removed looks complete."""
    for path in result_files(output):
        path.unlink()
    shutil.rmtree(output / "signatures", ignore_errors=True)
    for path in (output / WORK_NAME).iterdir():
        if path.name not in (LOCK_NAME, LEASE_NAME):
            discard(path)


def finished(output: Path, plan: Plan) -> Manifest | None:
    """Return the manifest where this very build is complete; refuse a directory that holds another one."""
    if not (output / MANIFEST_NAME).exists():
        return None
    manifest = Manifest.read(output)
    times = {item.name: item.mtime_ns for item in plan.inputs}  # which no manifest holds
    try:
        held = Plan(
            inputs=tuple(
                Input(item["name"], "", item["source"], item["bytes"], times.get(item["name"], 0), item["ends"])
                for item in manifest.inputs
            ),
            units=plan.units,
            recipe=Recipe.from_json(manifest.recipe["settings"]),
            definitions=manifest.recipe["definitions"],
            settings={**Recipe().to_json(), **manifest.recipe["settings"]},
        )
    except (KeyError, TypeError) as error:
        raise BuildError(
            f"{output / MANIFEST_NAME}: not made by this builder ({error!r} is missing); choose another --output, or "
            "discard what is there with --overwrite"
        ) from error
    check_unchanged(held, plan)
    return manifest


def begin(output: Path, plan: Plan, references: References) -> Plan:
    """Write the plan of a new build and its references, or return the one begun here, if it is the same.

    Its inputs, and the files that it names, may have moved.
    """
    work = output / WORK_NAME
    held = Plan.read(work) if (work / PLAN_NAME).exists() else None
    if held is not None and not _anything_done(work):
        discard(work / PLAN_NAME)  # nobody loses anything by another plan
        held = None
    if held is not None:
        check_unchanged(held, plan)
        plan = replace(plan, units=held.units, limits=held.limits)
    elif stray := next(result_files(output), None):
        raise BuildError(
            f"{stray} is there, but neither a manifest nor a build begun; choose another --output, or discard what is "
            "there with --overwrite"
        )
    sweep(work)
    for path in output.glob(".*.tmp"):
        discard(path)
    for name in ("filter", "hashes", "tokens", "shards"):
        (work / name).mkdir(exist_ok=True)
    references.write(work)
    if plan != held:
        plan.write(work)
    return plan


def _anything_done(work: Path) -> bool:
    """Whether a build has any result to go on from; the first are those of the filter stage."""
    return any(next(work.glob(pattern), None) for pattern in ("filter/*/[0-9]*", f"filter/*/{DONE}", "hashes/*"))
