"""A web server and a Hugging Face hub on localhost that count what they send and fail as they are told to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from .local_server import LocalServer, serving

COMMIT = "c0ffee" + "0" * 34
PAGE = 1000


@dataclass
class Asked:
    """A request, noted before its answer begins: who has an answer finds its request here."""

    path: str
    range: str | None
    authorization: str | None
    sent: int = 0


class InputServer(LocalServer):
    """``files`` are served under ``/files/``, and as the repository ``org/name`` of a hub; large ones of it lie elsewhere.

    ``faults`` are used up by requests for bytes, in turn: a status with headers behind it ("429;RateLimit=...;...",
    "503"), "cut" (half of the body), "wrong" (other bytes of the same number), "changed" (another version) or "ok".
    Addresses that the hub redirects to are good for ``uses`` requests. ``gated`` refuses who does not send the token.
    ``moved_to`` is the commit that the branch main has moved to since; the repository still has that of the
    files. Requests for the files of ``together`` are answered once all of these were asked for. A file can have a query in its
    name. Without ``etags`` no answer has a version, without ``ranges`` each is of all bytes.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(_Handler, host)
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.password = ""
        self.token = ""
        self.gated = False
        self.commit = COMMIT
        self.moved_to = ""
        self.uses = 1 << 30
        self.asked: list[Asked] = []
        self.addresses: dict[str, int] = {}
        self.wrong_hashes = False
        self.etags = True
        self.ranges = True
        self.together: dict[str, threading.Event] = {}

    def url(self, name: str) -> str:
        return f"{self.root}/files/{name}"

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.asked)

    def count(self, beginning: str) -> int:
        return sum(each.path.startswith(beginning) for each in self.asked)


class _Handler(BaseHTTPRequestHandler):
    server: InputServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent apart, as few servers do

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        parts = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(parts.path)
        self._asked = Asked(path, self.headers.get("Range"), self.headers.get("Authorization"))
        with server.lock:
            server.asked.append(self._asked)
        if path.startswith("/files/"):
            self._file(path.removeprefix("/files/"), parts.query)
        elif path.startswith("/cdn/"):
            self._address(path.removeprefix("/cdn/"), parts.query)
        else:
            self._hub(path, parts.query)

    # A web server

    def _file(self, name: str, query: str) -> None:
        if self.server.password and self.headers.get("Authorization") is None and self.server.password not in query:
            self._answer(401, b"", {})
        else:
            self._bytes(f"{name}?{query}" if f"{name}?{query}" in self.server.files else name)

    def _bytes(self, name: str, headers: dict[str, str] | None = None) -> None:
        server = self.server
        if name in server.together:
            server.together[name].set()
            for event in server.together.values():
                event.wait(30)
        with server.lock:
            fault = server.faults.pop(0) if server.faults else "ok"
        if fault[0].isdigit():
            status, *rest = fault.split("|")
            self._answer(int(status), b"", dict(each.split("=", 1) for each in rest))
            return
        data = server.files.get(name)
        if data is None:
            self._answer(404, b"", {})
            return
        told = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'} if server.etags else {}
        told |= headers or {}
        body, status = data, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if match and server.ranges:
            start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
            if start >= len(data):
                self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            body, status = data[start:stop], 206
        if fault == "changed":
            told["ETag"] = '"another"'
        if fault == "wrong":
            body = bytes(len(body))
        self._answer(status, body, told, cut=fault == "cut")

    # A hub

    def _hub(self, path: str, query: str) -> None:
        server = self.server
        allowed = not server.gated or self.headers.get("Authorization") == f"Bearer {server.token}"
        if match := re.fullmatch(r"/api/datasets/org/name/revision/([^/]+)", path):
            if match[1] not in ("main", "v1", server.commit):
                self._refuse(404, "RevisionNotFound", f"Invalid rev id: {match[1]}")
            else:
                sha = (server.moved_to if match[1] == "main" else "") or server.commit
                self._json({"id": "org/name", "sha": sha, "gated": server.gated and "auto"})
        elif match := re.fullmatch(rf"/api/datasets/org/name/tree/{server.commit}", path):
            self._tree(urllib.parse.parse_qs(query))
        elif match := re.fullmatch(r"/datasets/org/name/resolve/([^/]+)/(.*)", path):
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
            self._bytes(name, {**told, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
            return
        with server.lock:
            address = f"a{len(server.addresses)}"
            server.addresses[address] = server.uses
        told |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{self._entry(name)["lfs"]["oid"]}"'}
        told["Location"] = (
            f"{server.root.replace('127.0.0.1', 'localhost')}/cdn/{address}/{name}?X-Amz-Signature=SECRETSIGNATURE"
        )
        self._answer(302, b"", told)

    def _address(self, path: str, query: str) -> None:
        address, _, name = path.partition("/")
        with self.server.lock:
            self.server.addresses[address] -= 1
            left = self.server.addresses[address]
        if "SECRETSIGNATURE" not in query or left < 0 or self.headers.get("Authorization"):
            self._answer(403, b"Request has expired", {})
        else:
            self._bytes(name)

    def _refuse(self, status: int, code: str, words: str) -> None:
        self._json({"error": words}, {"X-Error-Code": code, "X-Error-Message": words}, status)

    def _json(self, value: Any, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if cut:
            self.close_connection = True
            body = body[: len(body) // 2]
        step = 1 << 18
        for start in range(0, len(body), step):
            self._asked.sent += len(body[start : start + step])
            self.wfile.write(body[start : start + step])


def _is_large(name: str) -> bool:
    return not name.endswith((".md", ".json", ".jsonl"))


@contextmanager
def running_inputs(folder: Path | None = None, host: str = "127.0.0.1") -> Iterator[InputServer]:
    """Run a server, of the files of a folder if one is given."""
    with serving(InputServer(host)) as server:
        if folder is not None:
            server.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        yield server
