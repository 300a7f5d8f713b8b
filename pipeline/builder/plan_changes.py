"""What differs between the plan of a build that was started and that of the command that continues it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import PlanChangedError
from ..shards.manifest import Manifest
from .inputs import Input, moment
from .plan import Plan

_OF_DEFINITIONS = re.compile(r'^definitions: .*was (?:"[0-9a-f]{16,}"|null), now (?:"[0-9a-f]{16,}"|null)$')


def check_unchanged(old: Plan | Manifest, new: Plan) -> None:
    """Raise ``PlanChangedError``, naming each field that differs with both values, unless the plans are equal.

    ``old`` may be the manifest of a complete build, which holds no times of inputs. The paths of inputs are not compared: a
    dataset that moved is the same dataset.
    """
    if isinstance(old, Plan):
        before = _comparable(old.settings, old.definitions, [_with_time(item) for item in old.inputs])
        now = _comparable(new.settings, new.definitions, [_with_time(item) for item in new.inputs])
    else:
        before = _comparable(old.recipe["settings"], old.recipe["definitions"], old.inputs)
        now = _comparable(new.settings, new.definitions, [item.described() for item in new.inputs])
    every = list(_differences(before, now, ""))
    if every:
        # A hash says nothing to a reader where what it is of is named too.
        differences = [said for said in every if not _OF_DEFINITIONS.search(said)] or every
        shown = "\n  ".join(differences[:20])
        more = f"\n  ... and {len(differences) - 20} more" if len(differences) > 20 else ""
        raise PlanChangedError(
            f"input or recipe differ from those of the build in this directory:\n  {shown}{more}\n"
            "Give the same command to continue it, --overwrite to start over, or another --output"
        )


def _with_time(item: Input) -> dict[str, object]:
    return item.described() | {"modified": moment(item.mtime_ns)}


def _comparable(
    settings: Mapping[str, Any], definitions: Mapping[str, Any], inputs: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    ends = "sha256 of its first and last MiB"
    compared = {
        "source": "source",
        "bytes": "bytes",
        "ends": ends,
        "url": "url",
        "version": "version",
        "modified": "modified",
    }
    named = {item["name"]: {label: item[key] for key, label in compared.items() if key in item} for item in inputs}
    return {
        "recipe": settings,
        "definitions": json.loads(json.dumps(definitions)),
        "inputs": named,
        "order of inputs": [item["name"] for item in inputs] if len(named) == len(inputs) else None,
    }


def _differences(old: object, new: object, where: str) -> Iterable[str]:
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


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."
