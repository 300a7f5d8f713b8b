"""What users give to stages, checked: each error names the argument, its value and what is allowed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..errors import ConfigError


def group_topology(group: Any) -> tuple[int, int]:
    if hasattr(group, "get_local_rank"):  # a DeviceMesh
        if group.ndim != 1:
            raise ConfigError(f"a mesh of {group.ndim} dimensions: give the data-parallel one, as mesh['dp']")
        return group.get_local_rank(), group.size()
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return dist.get_rank(group), dist.get_world_size(group)
    raise ConfigError(f"shard needs a rank and a world size, a mesh or a process group, got {group!r}")


def check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")


def labels_are_inputs(labels: str) -> bool:
    if labels not in ("next", "same"):
        raise ConfigError(f"labels must be 'next' (shifted already) or 'same' (the model shifts), got {labels!r}")
    return labels == "same"


def shift_given(shift: int | str, seq_len: int, same_labels: bool) -> int | None:
    """Return how far ahead labels lie, None for ``"divisors"``, which are drawn for each step."""
    if isinstance(shift, str):
        if shift != "divisors":
            raise ConfigError(f"shift must be an integer of at least 1 or 'divisors', got {shift!r}")
        if seq_len < 2:
            raise ConfigError(
                f"shift='divisors' needs a seq_len that has a divisor below it, at least 2, got {seq_len}"
            )
        if same_labels:
            raise ConfigError(
                "shift='divisors' draws how far ahead labels lie; labels='same' has none ahead, remove it"
            )
        return None
    check_integer("shift", shift, least=1)
    return shift
