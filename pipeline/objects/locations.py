"""One form for all spellings of a path or url, so that no build reads from a folder that it writes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .store_clients import client_class
from .urls import is_http, is_remote, local_name, shown


def folder_of(spec: str, folders: Sequence[str]) -> str | None:
    """Return the first of ``folders`` (paths or urls) that is ``spec`` or contains it; None if none does.

    Links are resolved. ``s3a://`` equals ``s3://``, as the clients of stores treat them.
    """
    if not folders:
        return None
    inner = location(spec)
    return next((folder for folder in folders if f"{inner}/".startswith(f"{location(folder)}/")), None)


def location(spec: str) -> str:
    """Return one form for all spellings of a path, or of a url of a store."""
    if not is_remote(spec):
        return os.path.realpath(local_name(spec)).rstrip("/")
    if is_http(spec) or spec.lower().startswith("hf://"):
        return shown(spec).rstrip("/")
    client = client_class(spec)
    return f"{client.__name__}://{client._strip_protocol(spec)}".rstrip("/")
