"""The state of the output directory before a build: empty, this build unfinished or complete, or something else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..atomic import temporary_path, write_json
from ..errors import BuildError, ConfigError
from ..objects.urls import is_remote, local_name
from ..shards.manifest import MANIFEST_NAME, PLAN_NAME, Manifest
from .counts.progress import Progress
from .manifest import result_files
from .partitions.partition import DONE, FILTER
from .plan import Plan
from .plan_changes import check_unchanged
from .resolve import References
from .work.atomic_directory import discard
from .work.workspace import MATERIALIZED_NAME, Workspace


def local_directory(output: str | Path) -> Path:
    """Return the absolute path of the output, because workers may run elsewhere; refuse what cannot be a directory here."""
    if not isinstance(output, str | os.PathLike) or not str(output):
        raise ConfigError(f"output must be the name of a directory, got {output!r}")
    try:
        os.fspath(output).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"output {str(output)!r}: the name is not UTF-8; choose another") from None
    if is_remote(str(output)):
        raise ConfigError(
            f"{output}: a dataset is written to a directory of this machine; choose one as --output, and copy it to the "
            f"url when it is complete, {MANIFEST_NAME} last"
        )
    path = Path(local_name(str(output))).absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{output}: a file, where --output names a directory; choose another")
    return path


def clear(workspace: Workspace, plan: Plan) -> None:
    """Remove an earlier result: the manifest first, so that nothing half removed looks complete.

    The new plan is written before, beside its name: one that cannot be written leaves the earlier result as it is.
    """
    begun = temporary_path(workspace.root / PLAN_NAME)
    write_json(begun, plan.to_json())
    for path in result_files(workspace.output):
        discard(path)
    workspace.clear(keep=(MATERIALIZED_NAME,))


def finished(output: Path, plan: Plan) -> Manifest | None:
    """Return the manifest if this same build is complete; refuse a directory that holds another one."""
    if not (output / MANIFEST_NAME).exists():
        return None
    manifest = Manifest.read(output)
    try:
        check_unchanged(manifest, plan)
    except (KeyError, TypeError) as error:
        raise BuildError(
            f"{output / MANIFEST_NAME}: not made by this builder ({error!r} is missing); choose another --output, or "
            "discard what is there with --overwrite"
        ) from error
    return manifest


def commits_of_started(workspace: Workspace, progress: Progress) -> dict[str, str]:
    """Return the commits to which the build that was started here pins revisions of the hub: it continues with them."""
    if not workspace.is_planned or not _anything_done(workspace):
        return {}
    commits = dict(Plan.read(workspace.root).commits)
    for name, commit in commits.items():
        if not name.endswith(f"@{commit}"):
            progress.say(
                f"hf://datasets/{name}: continued with commit {commit}, which it stood for when the build began"
            )
    return commits


def start(workspace: Workspace, plan: Plan, references: References) -> Plan:
    """Write the plan of a new build and its references, or return the plan of the one started here, if it is the same.

    Its inputs, and the files that it names, may have moved.
    """
    started = Plan.read(workspace.root) if workspace.is_planned else None
    if started is not None and not _anything_done(workspace):
        workspace.clear(keep=(MATERIALIZED_NAME, PLAN_NAME))  # nothing is lost by another plan
        discard(workspace.root / PLAN_NAME)
        started = None
    if started is not None:
        check_unchanged(started, plan)
        plan = replace(plan, units=started.units, limits=started.limits)
    elif stray := next(result_files(workspace.output), None) or workspace.stray():
        raise BuildError(
            f"{stray} is there, but neither a manifest nor an unfinished build; choose another --output, or discard what "
            "is there with --overwrite"
        )
    workspace.sweep()
    references.write(workspace)
    if plan != started:
        plan.write(workspace.root)
    return plan


def _anything_done(workspace: Workspace) -> bool:
    """Whether a build has any result to continue from; the first are those of the filter stage."""
    patterns = (f"{FILTER}/*/[0-9]*", f"{FILTER}/*/{DONE}")
    return any(next(workspace.root.glob(pattern), None) for pattern in patterns)
