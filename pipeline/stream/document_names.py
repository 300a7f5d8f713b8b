"""The names of documents that a user lists: in Python, or in a file of lines or of JSON Lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..integers import as_integer


def document_names(documents: Any) -> list[str]:
    """Return names, each once: keys, ids, or SHARD:NUMBER. They are a list, or in a file, one a line.

    A line that is a JSON object, as in ``rejected.jsonl``, gives its ``key``, else its ``id``. Raises ``ConfigError`` for a file
    that cannot be read, a line without a name, and if nothing is named.
    """
    if isinstance(documents, str | os.PathLike):
        names: Iterable[Any] = _names_in(Path(documents))
    elif isinstance(documents, Iterable) and not isinstance(documents, bytes):
        names = documents.tolist() if hasattr(documents, "tolist") else documents  # of NumPy, PyTorch and pandas
    else:
        raise ConfigError(f"documents must be a list of keys or ids, or a file that lists them, got {documents!r}")
    found: dict[str, None] = {}
    for name in names:
        named = name if isinstance(name, str) else as_integer(name)
        if named is None or named == "":
            raise ConfigError(f"a document is named by its key, its id or SHARD:NUMBER, got {name!r}")
        found[str(named)] = None
    if not found:
        raise ConfigError(f"{documents!r} names no document; name at least one")
    return list(found)


def _names_in(path: Path) -> Iterable[Any]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a list of documents: {error}; give a file of one name a line, or [{str(path)!r}] for a "
            "document of this name"
        ) from None
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith("{"):
            try:
                record = json.loads(line)
            except ValueError:
                record = {}
            name = next((record[field] for field in ("key", "id") if record.get(field) not in (None, "")), None)
            if name is None:
                raise ConfigError(f"{path}, line {number}: no JSON object with a key or an id: {line[:80]}")
            yield name
        elif line:
            yield line
