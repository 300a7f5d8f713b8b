"""Urls, globs and folders -> input files. Each file is listed once, and its size and version must not change later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import InputError, MissingInputError, MissingObjectError
from ...notices import warn
from ...objects.http import server_of
from ...objects.remote_object import describe
from ...objects.request_options import version_of
from ...objects.request_threads import side_by_side
from ...objects.retries import retrying
from ...objects.store_clients import file_system
from ...objects.urls import expand_braces, is_http, shown
from ...paths import WILDCARD, natural_key
from .input_file import Credentials, InputFile, StoredObject


def list_urls(pattern: str, source: str, credentials: Credentials) -> list[InputFile]:
    """Return the file of a url, the files that its glob or braces match, or those below its folder.

    A glob or a folder needs a store that can list. Raises ``InputError`` if there are no files, and ``StorageError`` if
    the store cannot be reached.
    """
    urls = expand_braces(pattern, InputError)
    if is_http(pattern):
        return _files_of_web_servers(urls, source, credentials)
    return [file for url in urls for file in _files_of_store(url, source, credentials)]


def _files_of_web_servers(urls: Sequence[str], source: str, credentials: Credentials) -> list[InputFile]:
    """Return files for urls after a request for the size and version of each; a web server cannot list."""
    seen: set[str] = set()
    for url in urls:
        clean = shown(url)
        if "*" in clean or clean.endswith("/"):
            raise InputError(
                f"{clean}: web servers cannot list files; name each, or a range of them as in part-{{000..127}}.jsonl.zst"
            )
        if url in seen:
            raise InputError(f"{clean} is named twice; its documents would be read twice")
        seen.add(url)

    def ask(url: str) -> InputFile:
        clean = shown(url)
        known = Credentials({clean: url} if clean != url else {}, credentials.requests)
        return InputFile(
            clean, _last_part(clean), source, StoredObject(clean, *describe(url, credentials.requests)), known
        )

    files = side_by_side(partial(ask, url) for url in urls)
    if whole := [file.path for file in files if server_of(str(file.path)).ranges is False]:
        more = f" and {len(whole) - 1} more" if len(whole) > 1 else ""
        warn(
            f"{whole[0]}{more}: the server answers no requests for ranges, so each process downloads the file whole to a "
            "temporary file before it reads; serve it from a server that knows ranges, or download it first"
        )
    return files


def _files_of_store(url: str, source: str, credentials: Credentials) -> list[InputFile]:
    requests = credentials.requests

    def ask() -> dict[str, Any]:
        files = file_system(url, requests)
        files.invalidate_cache()  # a cached listing may be older than the objects
        if WILDCARD.search(url):
            matches = {name: info for name, info in files.glob(url, detail=True).items() if info["type"] == "file"}
            return matches if matches or not files.isfile(url) else {url.partition("://")[2]: files.info(url)}
        if not url.endswith("/"):
            info = files.info(url)
            if info["type"] == "file":
                return {info["name"]: info}
        return dict(files.find(url, detail=True))

    try:
        infos = retrying(ask, url, "list it", requests)
    except MissingObjectError:
        infos = {}
    if not infos:
        raise MissingInputError(f"{url}: no object is there; check the url")
    scheme = url.partition("://")[0]
    objects = [
        StoredObject(f"{scheme}://{name.lstrip('/')}", int(info["size"]), version_of(info))
        for name, info in infos.items()
        if not name.endswith("/")  # web consoles create such objects as empty folders
    ]
    root = WILDCARD.split(url, maxsplit=1)[0]
    root = root[: root.rindex("/") + 1] if len(root) < len(url) else f"{url.rstrip('/')}/"
    named = [
        InputFile(
            stored.url,
            stored.url.removeprefix(root) if stored.url != url else _last_part(url),
            source,
            stored,
            credentials,
        )
        for stored in objects
    ]
    return sorted(named, key=lambda file: natural_key(file.name))


def _last_part(url: str) -> str:
    return url.rpartition("/")[2]
