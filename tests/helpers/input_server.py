"""A web server and a Hugging Face hub on localhost that count what they send and fail as they are told to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .faulty_server import FaultyHandler, FaultyServer
from .local_server import serving

COMMIT = "c0ffee" + "0" * 34
PAGE = 1000


class InputServer(FaultyServer):
    """``files`` are served under ``/files/``, and as the repository ``repository`` of a hub; large ones of it lie elsewhere.

    ``faults`` are those of requests for bytes. Addresses that the hub redirects to are good for ``uses`` requests. ``gated``
    refuses who does not send the token. ``moved_to`` is the commit that the branch main has moved to since; the repository still
    has that of the files. Requests for the files of ``together`` are answered once all of these were asked for. A file can have a
    query in its name.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(_Handler, host)
        self.repository = "org/name"
        self.password = ""
        self.token = ""
        self.gated = False
        self.commit = COMMIT
        self.moved_to = ""
        self.uses = 1 << 30
        self.addresses: dict[str, int] = {}
        self.wrong_hashes = False
        self.together: dict[str, threading.Event] = {}

    def url(self, name: str) -> str:
        return f"{self.root}/files/{name}"


class _Handler(FaultyHandler):
    server: InputServer

    def answer(self, path: str) -> None:
        parts = urllib.parse.urlsplit(path)
        path = self.asked.path = urllib.parse.unquote(parts.path)
        if path.startswith("/files/"):
            self._file(path.removeprefix("/files/"), parts.query)
        elif path.startswith("/cdn/"):
            self._address(path.removeprefix("/cdn/"), parts.query)
        else:
            self._hub(path, parts.query)

    # A web server

    def _file(self, name: str, query: str) -> None:
        server = self.server
        if server.password and self.headers.get("Authorization") is None and server.password not in query:
            self.send(401, b"", {})
        else:
            self.send_object(f"{name}?{query}" if f"{name}?{query}" in server.files else name)

    def send_object(self, name: str, headers: dict[str, str] | None = None) -> None:
        if name in self.server.together:
            self.server.together[name].set()
            for event in self.server.together.values():
                event.wait(50)
        super().send_object(name, headers)

    # A hub

    def _hub(self, path: str, query: str) -> None:
        server = self.server
        allowed = not server.gated or self.headers.get("Authorization") == f"Bearer {server.token}"
        if match := re.fullmatch(rf"/api/datasets/{server.repository}/revision/([^/]+)", path):
            if match[1] not in ("main", "v1", server.commit):
                self._refuse(404, "RevisionNotFound", f"Invalid rev id: {match[1]}")
            else:
                sha = (server.moved_to if match[1] == "main" else "") or server.commit
                self._json({"id": server.repository, "sha": sha, "gated": server.gated and "auto"})
        elif match := re.fullmatch(rf"/api/datasets/{server.repository}/tree/{server.commit}", path):
            self._tree(urllib.parse.parse_qs(query))
        elif match := re.fullmatch(rf"/datasets/{server.repository}/resolve/([^/]+)/(.*)", path):
            if not allowed:
                self._refuse(
                    403, "GatedRepo", "Access to dataset org/name is restricted. Visit its page to ask for it."
                )
            elif match[1] != server.commit or match[2] not in server.files:
                self._refuse(404, "EntryNotFound", "Entry not found")
            else:
                self._resolve(match[2])
        else:
            self._refuse(401, "RepoNotFound", "Repository not found")

    def _tree(self, query: dict[str, list[str]]) -> None:
        server = self.server
        assert query["recursive"] == ["true"]
        first = int(query.get("cursor", ["0"])[0])
        names = sorted(server.files)
        entries = [
            {"type": "directory", "oid": "0" * 40, "path": name}
            for name in sorted({n.rpartition("/")[0] for n in names} - {""})
        ]
        entries += [self._entry(name) for name in names]
        headers = {}
        if first + PAGE < len(entries):
            path = urllib.parse.urlsplit(self.path).path
            headers["Link"] = f'<{server.root}{path}?recursive=true&expand=false&cursor={first + PAGE}>; rel="next"'
        self._json(entries[first : first + PAGE], headers)

    def _entry(self, name: str) -> dict[str, Any]:
        data = self.server.files[name]
        entry = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": name}
        if _is_large(name):
            digest = hashlib.sha256(data + b"?" * self.server.wrong_hashes).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
        return entry

    def _resolve(self, name: str) -> None:
        server = self.server
        data = server.files[name]
        told = {"X-Repo-Commit": server.commit}
        if not _is_large(name):
            self.send_object(name, {**told, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
            return
        with server.lock:
            address = f"a{len(server.addresses)}"
            server.addresses[address] = server.uses
        told |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{self._entry(name)["lfs"]["oid"]}"'}
        told["Location"] = (
            f"{server.root.replace('127.0.0.1', 'localhost')}/cdn/{address}/{name}?X-Amz-Signature=SECRETSIGNATURE"
        )
        self.send(302, b"", told)

    def _address(self, path: str, query: str) -> None:
        address, _, name = path.partition("/")
        with self.server.lock:
            self.server.addresses[address] -= 1
            left = self.server.addresses[address]
        if "SECRETSIGNATURE" not in query or left < 0 or self.headers.get("Authorization"):
            self.send(403, b"Request has expired", {})
        else:
            self.send_object(name)

    def _refuse(self, status: int, code: str, words: str) -> None:
        self._json({"error": words}, {"X-Error-Code": code, "X-Error-Message": words}, status)

    def _json(self, value: Any, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def _is_large(name: str) -> bool:
    return not name.endswith((".md", ".json", ".jsonl"))


@contextmanager
def running_inputs(folder: Path | None = None, host: str = "127.0.0.1") -> Iterator[InputServer]:
    """Run a server, of the files of a folder if one is given."""
    with serving(InputServer(host)) as server:
        if folder is not None:
            server.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        yield server
