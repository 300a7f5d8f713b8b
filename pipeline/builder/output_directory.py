"""The state of the output directory before a build: empty, this build unfinished or complete, or something else."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..atomic import temporary_path, write_json
from ..errors import BuildError, ConfigError
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote, local_name
from ..shards.manifest import MANIFEST_NAME, PLAN_NAME, TEXTS_NAME, Manifest
from .build_manifest import RESULTS, result_files
from .counts.progress import Progress
from .partitions.partition import DONE, INGEST
from .plan import Plan
from .plan_changes import check_unchanged
from .references import References
from .work.atomic_directory import discard
from .work.bucket import BUCKET_NAME, Bucket
from .work.workspace import MATERIALIZED_NAME, Workspace


def place(output: str | Path, work: str | Path | None, requests: RequestOptions) -> Workspace:
    """Return where a build works: in the directory of its output or, where that is a bucket, in one of this machine."""
    if not is_remote(str(output)):
        if work is not None:
            raise ConfigError(f"work {str(work)!r} is for an output in a bucket; one in a directory is built there")
        return Workspace(local_directory(output))
    bucket = Bucket(str(output).rstrip("/"), requests)
    directory = local_directory(work or f"{bucket.url.rpartition('/')[2]}.build")
    if (directory / MANIFEST_NAME).exists():
        raise ConfigError(f"{directory}: a dataset, where --work names the directory to build in; choose another")
    return Workspace(directory, bucket)


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
            f"{output}: a directory of this machine is needed here; copy it to the url when it is complete, {MANIFEST_NAME} last"
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
    if workspace.bucket is not None:
        workspace.bucket.claim(workspace.root, RESULTS, overwrite=True)


def leave(workspace: Workspace) -> None:
    """Remove here what has been put into the bucket of the output, and give the bucket up."""
    if workspace.bucket is not None:
        for path in result_files(workspace.output):
            discard(path)
        with suppress(OSError):
            (workspace.output / TEXTS_NAME).rmdir()
        workspace.bucket.release(workspace.root)


def finished(workspace: Workspace, plan: Plan) -> Manifest | None:
    """Return the manifest if this same build is complete; refuse an output that holds another one."""
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
        workspace.clear(keep=(MATERIALIZED_NAME, PLAN_NAME, BUCKET_NAME))  # nothing is lost by another plan
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
    if workspace.bucket is not None:
        workspace.bucket.claim(workspace.root, RESULTS)
    workspace.sweep()
    references.write(workspace)
    if plan != started:
        plan.write(workspace.root)
    return plan


def _anything_done(workspace: Workspace) -> bool:
    """Whether a build has any result to continue from; the first are those of the ingest stage."""
    patterns = (f"{INGEST}/*/[0-9]*", f"{INGEST}/*/{DONE}")
    return any(next(workspace.root.glob(pattern), None) for pattern in patterns)
