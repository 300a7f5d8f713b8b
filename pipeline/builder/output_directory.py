"""The output directory before a build: it may be empty, or hold this build, unfinished or complete, or something else.

A continued build must have the plan with which it began: `check_unchanged` names what differs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..atomic import temporary_path, write_json
from ..atomic_directory import discard
from ..errors import BuildError, ConfigError, PlanChangedError
from ..objects.locations import folder_of
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote, local_name
from ..paths import has_wildcard
from ..progress import Progress
from ..shards.dataset_folder import local_directory
from ..shards.manifest import MANIFEST_NAME, PLAN_NAME, TEXTS_NAME, Manifest
from .build_manifest import RESULTS, result_files
from .inputs import Input, moment
from .partitions.partition import INGEST
from .plan import Plan
from .recipe import Recipe
from .setting import setting_of
from .transforms.references import References
from .work.bucket import BUCKET_NAME, Bucket, not_empty
from .work.workspace import MATERIALIZED_NAME, Workspace

_DEFINED_BY = {"lid_model": "language_model", "decontaminate": "too_short"}  # settings, and other names in definitions
_OF_DEFINITIONS = re.compile(r'^definitions: .*was (?:"[0-9a-f]{16,}"|null), now (?:"[0-9a-f]{16,}"|null)$')


def workspace_of(output: str | Path, work: str | Path | None, requests: RequestOptions) -> Workspace:
    """Return the workspace of a build: in its output directory or, if the output is in a bucket, in a local directory."""
    if not is_remote(str(output)):
        if work is not None:
            raise ConfigError(f"work {str(work)!r} is only for an output in a bucket; leave --work out")
        return Workspace(local_directory(output))
    bucket = Bucket(str(output).rstrip("/"), requests)
    directory = local_directory(work or f"{bucket.url.rpartition('/')[2]}.build")
    if (directory / MANIFEST_NAME).exists():
        raise ConfigError(f"{directory}: a dataset, but --work names the directory to build in; choose another")
    return Workspace(directory, bucket)


def check_apart(recipe: Recipe, workspace: Workspace) -> None:
    """Raise ``ConfigError`` if a file or dataset that the recipe names is in the output: starting over would remove it."""
    for item in fields(recipe):
        value = getattr(recipe, item.name) if setting_of(item.metadata).named else None
        for path in (value,) if isinstance(value, str) else value or ():
            is_named = is_remote(path) or os.path.exists(local_name(path)) or has_wildcard(path)
            if is_named and (output := folder_of(path, workspace.outputs)):
                raise ConfigError(
                    f"{item.name} {path!r}: is in the output, {output}, which is never read; choose another --output, or "
                    "copy it elsewhere first"
                )


def clear(workspace: Workspace, plan: Plan) -> None:
    """Remove an earlier result: the manifest first, so that nothing half removed looks complete.

    The new plan is written before, under a temporary name: if that fails, the earlier result stays.
    """
    write_json(temporary_path(workspace.root / PLAN_NAME), plan.to_json())
    for path in result_files(workspace.output):
        discard(path)
    workspace.clear(keep=(MATERIALIZED_NAME,))
    if workspace.bucket is not None:
        workspace.bucket.claim(workspace.root, RESULTS, overwrite=True)


def release_bucket(workspace: Workspace) -> None:
    """Remove the local copies of files that are in the bucket, and let other builds use the bucket."""
    if workspace.bucket is not None:
        for path in result_files(workspace.output):
            discard(path)
        with suppress(OSError):
            (workspace.output / TEXTS_NAME).rmdir()
        workspace.bucket.release(workspace.root)


def finished(workspace: Workspace, plan: Plan) -> Manifest | None:
    """Return the manifest if this build is complete. Raises ``PlanChangedError`` if the output holds another build."""
    if workspace.bucket is not None:
        manifest = workspace.bucket.manifest()
    else:
        manifest = Manifest.read(workspace.output) if (workspace.output / MANIFEST_NAME).exists() else None
    if manifest is None:
        return None
    try:
        check_unchanged(manifest, plan)
    except (KeyError, TypeError) as error:
        raise BuildError(
            f"{workspace}/{MANIFEST_NAME}: not made by this builder ({error!r} is missing); choose another --output, or "
            "discard the dataset there with --overwrite"
        ) from error
    return manifest


def commits_of_started(workspace: Workspace, progress: Progress) -> dict[str, str]:
    """Return the commits of the hub with which the build that was started here continues."""
    if not workspace.is_planned or not anything_done(workspace):
        return {}
    commits = dict(Plan.read(workspace.root).commits)
    for name, commit in commits.items():
        if not name.endswith(f"@{commit}"):
            progress.say(f"hf://datasets/{name}: continued with commit {commit}, which it named when the build began")
    return commits


def start(workspace: Workspace, plan: Plan, references: References, *, overwrite: bool) -> Plan:
    """Write the plan and the references of a build, and return the plan. A build that continues keeps its units and limits.

    Its inputs, and the files that it names, may have moved. Raises ``PlanChangedError`` if another build was started here. Raises
    ``BuildError`` if a new build finds anything in the output, unless it may ``overwrite`` the results of other builds.
    """
    started = Plan.read(workspace.root) if workspace.is_planned else None
    if started is not None and not anything_done(workspace):
        workspace.clear(keep=(MATERIALIZED_NAME, PLAN_NAME, BUCKET_NAME))  # nothing is lost by another plan
        discard(workspace.root / PLAN_NAME)
        started = None
    if started is not None:
        check_unchanged(started, plan)
        plan = replace(plan, units=started.units, limits=started.limits)
    elif not overwrite and (found := workspace.unexpected()):
        raise not_empty(found)
    if workspace.bucket is not None:
        workspace.bucket.claim(workspace.root, RESULTS)
    workspace.sweep()
    references.save(workspace)
    if plan != started:
        plan.write(workspace.root)
    return plan


def anything_done(workspace: Workspace) -> bool:
    """Whether a directory has any result of a build to continue from; the ingest stage writes the first."""
    patterns = (f"{INGEST}/*/[0-9]*", f"{INGEST}/*/done*.json")
    return any(next(workspace.root.glob(pattern), None) for pattern in patterns)


def check_unchanged(old: Plan | Manifest, new: Plan) -> None:
    """Raise ``PlanChangedError``, naming each field that differs with both values, unless the plans are equal.

    ``old`` may be the manifest of a complete build, which has no times of inputs. The paths of inputs are not compared, so a
    dataset may move.
    """
    if isinstance(old, Plan):
        before = _comparable(old.settings, old.definitions, [_with_time(item) for item in old.inputs])
        now = _comparable(new.settings, new.definitions, [_with_time(item) for item in new.inputs])
    else:
        before = _comparable(old.recipe["settings"], old.recipe["definitions"], old.inputs)
        now = _comparable(new.settings, new.definitions, [item.described() for item in new.inputs])
    every = list(_differences(before, now, ""))
    if every:
        # Leave out what a changed setting names, and a changed hash if the message already names what was hashed.
        settings = {one.split(": ")[1] for one in every if one.startswith("recipe: ")}
        named = settings | {_DEFINED_BY.get(setting) for setting in settings}
        told = [one for one in every if not (one.startswith("definitions: ") and one.split(": ")[1] in named)]
        differences = [one for one in told if not _OF_DEFINITIONS.search(one)] or told
        differences.sort(key=lambda one: not one.startswith("recipe: "))
        shown = "\n  ".join(differences[:20])
        more = f"\n  ... and {len(differences) - 20} more" if len(differences) > 20 else ""
        raise PlanChangedError(
            f"input or recipe differ from the build in this directory:\n  {shown}{more}\n"
            "Give the same command to continue it, --overwrite to start over, or another --output"
        )


def _with_time(item: Input) -> dict[str, object]:
    return item.described() | {"modified": moment(item.mtime_ns)}


_COMPARED = {"source": "source", "bytes": "bytes", "ends": "sha256 of its first and last MiB", "url": "url"}
_COMPARED |= {"version": "version", "modified": "modified"}  # properties of an input, and their names in the message


def _comparable(
    settings: Mapping[str, Any], definitions: Mapping[str, Any], inputs: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    named = {item["name"]: {label: item[key] for key, label in _COMPARED.items() if key in item} for item in inputs}
    return {
        "recipe": settings,
        "definitions": json.loads(json.dumps(definitions)),
        "inputs": named,
        "order of inputs": [item["name"] for item in inputs] if len(named) == len(inputs) else None,
    }


def _differences(old: object, new: object, where: str) -> Iterable[str]:
    if (before := _by_name(old)) != (now := _by_name(new)):  # else only the order differs
        old, new = before, now
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            path = f"{where}: {key}" if where else str(key)
            if key not in old:
                yield f"{path}: new ({_brief(new[key])})"
            elif key not in new:
                yield f"{path}: gone (was {_brief(old[key])})"
            else:
                yield from _differences(old[key], new[key], path)
    elif old != new:
        yield f"{where}: was {_brief(old)}, now {_brief(new)}"


def _by_name(value: Any) -> Any:
    """Return a list of named entries, such as rules, as a dict, so that a difference is told by its name; else the value."""
    named = isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value)
    return {one["name"]: one for one in value} if named else value


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."
