"""Checks of the arguments of stages: each error names the argument, its value and the values that are allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..errors import ConfigError, first_line
from ..integers import as_integer
from ..objects.request_options import RequestOptions


def group_topology(group: Any) -> tuple[int, int, Any]:
    """Return rank and size of a mesh or a process group, and the process group."""
    if _is_mesh(group):
        if group.ndim != 1:
            raise ConfigError(
                f"a mesh of {group.ndim} dimensions: give the data-parallel dimension, as mesh['dp'], and with context "
                "parallelism mesh['dp', 'cp']"
            )
        group = group.get_group()
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return dist.get_rank(group), dist.get_world_size(group), group
    raise ConfigError(f"shard needs a rank and a world size, a mesh or a process group, got {group!r}")


def mesh_parts(rank: Any, context: Any) -> tuple[Any, Any]:
    """Return the groups of data and context ranks that `shard` was given; a mesh with a dimension ``cp`` has both."""
    names = (rank.mesh_dim_names or ()) if _is_mesh(rank) else ()
    if "cp" not in names:
        return rank, context
    if context is not None or len(names) > 2:
        raise ConfigError(
            f"a mesh of {', '.join(names)}: give .shard(mesh['dp', 'cp']), or .shard(mesh['dp'], context=mesh['cp'])"
        )
    data = [name for name in names if name != "cp"]
    return rank.get_group(data[0]) if data else None, rank.get_group("cp")


def context_part(context: Any) -> tuple[int, int]:
    """Return the rank and size of context parallelism from two integers, a mesh or a process group."""
    rank, size = context if isinstance(context, tuple) and len(context) == 2 else group_topology(context)[:2]
    return check_part("context rank", rank, "context size", size)


def check_part(name: str, rank: Any, size_name: str, size: Any) -> tuple[int, int]:
    """Return rank and size as ints; ``ConfigError`` unless ``rank`` is from 0 to ``size - 1``."""
    size = check_integer(size_name, size, least=1, most=MAX_ROWS)
    rank = check_integer(name, rank, least=0)
    if rank >= size:
        raise ConfigError(f"{name} must be below {size_name}, got {name} {rank} of {size}")
    return rank, size


def _is_mesh(group: Any) -> bool:
    return hasattr(group, "get_local_rank")


MAX_ROWS = (1 << 31) - 1  # the largest number that fits into 32 bits
MAX_STEPS = (1 << 62) - 1


def check_optional(name: str, value: Any, least: int = 1, most: int | None = MAX_ROWS) -> int | None:
    """Return None as it is, and another value as `check_integer` does."""
    return None if value is None else check_integer(name, value, least, most)


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer as an int, also one of NumPy; ``ConfigError`` unless it is from ``least`` to ``most``."""
    number = as_integer(value)
    if number is None or number < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
    if most is not None and number > most:
        raise ConfigError(f"{name} must be at most {most}, got {value!r}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a boolean; raise ``ConfigError`` for another value, since a text such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_choice(name: str, value: Any, *known: str) -> None:
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def check_path(name: str, value: Any) -> None:
    """Raise ``ConfigError`` unless ``value`` can name a file or folder."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ConfigError(f"{name} must be a path (str or os.PathLike), got {value!r}")
    try:
        written = os.fsencode(value)
    except UnicodeEncodeError:
        written = b"\0"
    if b"\0" in written:
        raise ConfigError(f"{name} must be a path, but {os.fspath(value)!r} holds a character that no path can hold")


def check_options(name: str, value: Any) -> None:
    """Raise ``ConfigError`` unless ``value`` is None or a dict of options by their names."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise ConfigError(f"{name} must be a dict of options by name, got {value!r}")


def parse_request_options(storage_options: Any, tries: Any, timeout: Any) -> RequestOptions:
    """Return how remote objects are reached; ``ConfigError`` for settings that cannot work."""
    check_options("storage_options", storage_options)
    return RequestOptions(tries=tries, timeout=timeout, options=storage_options or {})


def labels_are_inputs(labels: Any) -> bool:
    if not isinstance(labels, str) or labels not in ("next", "same"):
        raise ConfigError(f"labels must be 'next' (shifted already) or 'same' (the model shifts), got {labels!r}")
    return labels == "same"


def parse_shift(shift: int | str, seq_len: int, same_labels: bool) -> int | None:
    """Return how many tokens ahead labels are; None for ``"divisors"``, which are drawn for each step."""
    if as_integer(shift) is None:
        if not isinstance(shift, str) or shift != "divisors":
            raise ConfigError(f"shift must be an integer of at least 1 or 'divisors', got {shift!r}")
        if seq_len < 2:
            raise ConfigError(
                f"shift='divisors' needs a seq_len that has a divisor below it, at least 2, got {seq_len}"
            )
        if same_labels:
            raise ConfigError(
                "shift='divisors' draws how far ahead labels are, but with labels='same' they are not ahead; remove shift"
            )
        return None
    return check_integer("shift", shift, least=1, most=MAX_ROWS)


def parse_eos_id(eos_id: Any, dtype: np.dtype[Any], vocabulary: int | None = None) -> int:
    """Return an end-of-text id, 0 for None; ``ConfigError`` for an id outside ``dtype`` or the vocabulary."""
    if eos_id is None:
        return 0
    most = int(np.iinfo(dtype).max)
    limited_by = f"{dtype} tokens"
    if vocabulary is not None and vocabulary <= most:
        most, limited_by = vocabulary - 1, f"a vocabulary of {vocabulary:,}"
    number = as_integer(eos_id)
    if number is None or not 0 <= number <= most:
        raise ConfigError(
            f"eos_id must be an integer from 0 to {most}, the greatest id of {limited_by}, got {eos_id!r}"
        )
    return number


def parse_device(device: Any) -> str:
    """Return the name of a device; ``ConfigError`` for one that this process cannot use."""
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{device!r} is no device of torch ({first_line(error)}); give 'cuda', 'cuda:0' or 'cpu'"
        ) from None
    if parsed.type == "cuda":
        # Unlike torch.cuda.is_available(), this leaves CUDA usable in workers that are forked later.
        count = torch.cuda.device_count()
        if count == 0:
            why = "no CUDA GPU is visible to this process; use .to('cpu')"
            if not torch.backends.cuda.is_built():
                why = "this build of torch has no CUDA; install one that has, or use .to('cpu')"
            raise ConfigError(f".to({str(parsed)!r}): {why}")
        if parsed.index is not None and parsed.index >= count:
            raise ConfigError(f".to({str(parsed)!r}): this process sees {count} GPUs, 'cuda:0' to 'cuda:{count - 1}'")
    elif parsed.type != "cpu":
        try:
            torch.empty(0, device=parsed)
        except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
            raise ConfigError(f".to({str(parsed)!r}): torch cannot use it here ({first_line(error)})") from None
    return str(parsed)
