"""What differs between the plan of a build that was started and that of the command that continues it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..errors import PlanChangedError
from .inputs import moment
from .plan import Plan


def check_unchanged(old: Plan, new: Plan) -> None:
    """Raise ``PlanChangedError``, naming each field that differs with both values, unless both plans are equal.

    The paths of inputs are not compared: a dataset that moved is the same dataset.
    """
    differences = list(_differences(_comparable(old), _comparable(new), ""))
    if differences:
        shown = "\n  ".join(differences[:20])
        more = f"\n  ... and {len(differences) - 20} more" if len(differences) > 20 else ""
        raise PlanChangedError(
            f"input or recipe differ from those of the build in this directory:\n  {shown}{more}\n"
            "Give the same command to continue it, --overwrite to start over, or another --output"
        )


def _comparable(plan: Plan) -> dict[str, object]:
    inputs = {
        item.name: {
            "source": item.source,
            "bytes": item.size,
            "modified": moment(item.mtime_ns),
            "sha256 of its first and last MiB": item.ends,
        }
        | ({"url": item.path, "version": item.version} if item.version else {})
        for item in plan.inputs
    }
    return {
        "recipe": plan.settings,
        "definitions": json.loads(json.dumps(plan.definitions)),
        "inputs": inputs,
        "order of inputs": [item.name for item in plan.inputs] if len(plan.inputs) == len(inputs) else None,
    }


def _differences(old: object, new: object, where: str) -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{where}: {key}" if where else str(key)
            if key not in old:
                yield f"{place}: new ({_brief(new[key])})"
            elif key not in new:
                yield f"{place}: gone (was {_brief(old[key])})"
            else:
                yield from _differences(old[key], new[key], place)
    elif old != new:
        yield f"{where}: was {_brief(old)}, now {_brief(new)}"


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."
