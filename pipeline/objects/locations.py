"""Where paths and urls lead, whatever their spelling: nothing is read from a folder that is written."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .store_clients import client_class
from .urls import is_http, is_remote, local_name, shown


def folder_of(spec: str, folders: Sequence[str]) -> str | None:
    """Return the first of some folders, paths or urls, that a path or url is or lies in; None for none.

    A link lies where it leads. ``s3a://`` is ``s3://``, as the clients of stores have it.
    """
    if not folders:
        return None
    place = location(spec)
    return next((folder for folder in folders if f"{place}/".startswith(f"{location(folder)}/")), None)


def location(spec: str) -> str:
    """Return what all spellings of a path, or of a url of a store, have in common."""
    if not is_remote(spec):
        return os.path.realpath(local_name(spec)).rstrip("/")
    if is_http(spec) or spec.lower().startswith("hf://"):
        return shown(spec).rstrip("/")
    client = client_class(spec)
    return f"{client.__name__}://{client._strip_protocol(spec)}".rstrip("/")
