"""A real http server on localhost that serves bytes, counts them, and fails as it is told to."""

from __future__ import annotations

import gzip
import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from .local_server import LocalServer, serving

# One of them among good answers is survived by all that reads objects: see `FaultyServer`.
PASSING = (
    "429;0 500 503;0 520 reset short long shifted flipped page whole bare 204 403 404 416 unsized weak unmarked packed "
    '429|RateLimit="default";r=0;t=0'
).split()


@dataclass
class Asked:
    """A request, noted before its answer begins: who has an answer finds its request here. ``sent`` counts bytes of bodies."""

    path: str
    range: str | None
    headers: dict[str, str]
    sent: int = 0


class FaultyServer(LocalServer):
    """``files``: path -> bytes. ``faults`` are used up by requests for them, in turn.

    A fault is a status ("429", "503;2": with Retry-After, "429|NAME=VALUE": with a header), "reset" (connection reset half-way),
    "short" (half of the body, then a clean close), "long" (more bytes than asked for), "shifted" (another range), "flipped" (one
    bit is wrong), "wrong" (all bits are 0), "page" (an HTML page), "whole" (the whole object where a range is asked for), "bare"
    (a range without Content-Range), "unsized" (a range of an object whose size is not stated), "weak" (a weak ETag),
    "unmarked" (no ETag), "changed" (another ETag), "packed" (a body in gzip), "silent" (no answer), "stalled" (half of the
    body, then nothing), "slow" (a byte now and then), "dripping" (the same, of a body whose size is not stated) or "ok". Answers
    that stop stay open until the server ends. Those of ``passing`` are used up too, but none of them meets a request a second
    time.

    Requests for paths in ``busy`` get 503 each time, in ``forbidden`` 403, in ``stalled`` half of the body.
    ``ranges=False`` ignores Range headers, and without ``etags`` no answer
    has a version. ``moved`` redirects paths to other urls.
    Answers begin after ``latency`` seconds; ``most_waiting`` requests waited for theirs at once.
    """

    def __init__(self, handler: type[FaultyHandler] | None = None, host: str = "127.0.0.1") -> None:
        super().__init__(handler or FaultyHandler, host)
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.passing: list[str] = []
        self.failed: set[tuple[str, str | None]] = set()
        self.busy: set[str] = set()
        self.forbidden: set[str] = set()
        self.stalled: set[str] = set()
        self.moved: dict[str, str] = {}
        self.ranges = True
        self.etags = True
        self.latency = 0.0
        self.over = threading.Event()
        self.waiting, self.most_waiting = 0, 0
        self.asked: list[Asked] = []

    @property
    def requests(self) -> list[tuple[str, str | None]]:
        """The path and the range of each request."""
        return [(each.path, each.range) for each in self.asked]

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.asked)

    def count(self, beginning: str) -> int:
        return sum(each.path.startswith(beginning) for each in self.asked)

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def serve(self, folder: Path, name: str = "data") -> str:
        """Serve the files of a folder under a name; return its url."""
        for path in (path for path in folder.rglob("*") if path.is_file()):
            self.files[f"{name}/{path.relative_to(folder)}"] = path.read_bytes()
        return self.url(name)

    def shutdown(self) -> None:
        self.over.set()
        super().shutdown()

    def fault_of(self, path: str, wanted: str | None) -> str:
        """Return the fault of a request."""
        if self.faults:
            return self.faults.pop(0)
        if self.passing and (path, wanted) not in self.failed:
            self.failed.add((path, wanted))
            return self.passing.pop(0)
        if path in self.forbidden:
            return "403"
        if path in self.stalled:
            return "stalled"
        return "503" if path in self.busy else "ok"


class FaultyHandler(BaseHTTPRequestHandler):
    server: FaultyServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent apart, as few servers do

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path
        if path.startswith("http://"):  # as a proxy is asked
            path = f"/{path.split('/', 3)[3]}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked = Asked(path, self.headers.get("Range"), headers)
        server = self.server
        with server.lock:
            server.asked.append(self.asked)
            server.waiting += 1
            server.most_waiting = max(server.most_waiting, server.waiting)
        time.sleep(server.latency)
        with server.lock:
            server.waiting -= 1
        self.answer(path)

    def answer(self, path: str) -> None:
        if path[1:] in self.server.moved:
            self.send(302, b"", {"Location": self.server.moved[path[1:]]})
        else:
            self.send_object(path[1:])

    def send_object(self, name: str, headers: dict[str, str] | None = None) -> None:
        """Answer with the bytes of an object that are asked for, or as the next fault says."""
        server, wanted = self.server, self.asked.range
        with server.lock:
            fault = server.fault_of(name, wanted)
        if fault[0].isdigit():
            said, *named = fault.split("|")
            status, _, after = said.partition(";")
            sent = dict(each.split("=", 1) for each in named) | ({"Retry-After": after} if after else {})
            self.send(int(status), b"", sent)
        elif fault == "page":
            self.send(200, b"<html>Log in to go on</html>", {"Content-Type": "text/html"})
        elif fault == "silent":
            server.over.wait()
            self.close_connection = True
        elif (data := server.files.get(name)) is None:
            self.send_error(404)
        else:
            self._send_bytes(data, headers or {}, fault)

    def _send_bytes(self, data: bytes, headers: dict[str, str], fault: str) -> None:
        server = self.server
        body, status = data, 200
        if server.etags and fault != "unmarked":
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', **headers}
        if fault == "weak":
            headers["ETag"] = f"W/{headers['ETag']}"
        if fault == "changed":
            headers["ETag"] = '"another"'
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.asked.range or "")
        if fault == "packed":
            body = gzip.compress(data)
            headers["Content-Encoding"] = "gzip"
        elif match and server.ranges and fault != "whole":
            start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
            if start >= len(data):
                self.send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            if fault == "shifted":
                start, stop = start + 1, min(stop + 1, len(data))
            if fault == "long":
                stop = min(stop + 1000, len(data))
            body, status = data[start:stop], 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{'*' if fault == 'unsized' else len(data)}"
            if fault == "bare":
                del headers["Content-Range"]
        if fault == "flipped" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "wrong":
            body = bytes(len(body))
        self.send(status, body, headers, fault)

    def send(self, status: int, body: bytes, headers: dict[str, str], fault: str = "") -> None:
        server = self.server
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if fault != "dripping":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault in ("reset", "short", "stalled"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            if fault == "stalled":
                server.over.wait()
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if fault in ("slow", "dripping"):
            for at in range(len(body)):
                self.wfile.write(body[at : at + 1])
                self.wfile.flush()
                if server.over.wait(0.1):
                    break
            self.close_connection = True
            return
        for at in range(0, len(body), 1 << 16):
            with server.lock:  # before the bytes: who has them finds them counted
                self.asked.sent += len(body[at : at + (1 << 16)])
            self.wfile.write(body[at : at + (1 << 16)])


@contextmanager
def running_server() -> Iterator[FaultyServer]:
    with serving(FaultyServer()) as server:
        yield server
