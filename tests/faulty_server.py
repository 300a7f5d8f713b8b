"""A real http server on localhost that serves bytes and fails as it is told to."""

from __future__ import annotations

import gzip
import hashlib
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from .local_server import LocalServer, serving

# One of them among good answers is survived by all that reads objects: see `FaultyServer`.
PASSING = (
    "429;0 500 503;0 520 reset short long shifted flipped page whole bare 204 403 404 416 unsized weak unmarked packed limited"
).split()


class FaultyServer(LocalServer):
    """``objects``: path -> bytes. ``faults`` are used up by requests in turn.

    A fault is a status ("429", "503;2": with Retry-After), "reset" (connection reset half-way), "short" (half of the
    body, then a clean close), "long" (more bytes than asked for), "shifted" (another range), "flipped" (one bit is wrong),
    "page" (an HTML page), "whole" (the whole object where a range is asked for), "bare" (a range without Content-Range),
    "unsized" (a range of an object whose size is not stated), "weak" (a weak ETag), "unmarked" (no ETag), "packed" (a body
    in gzip), "silent" (no answer for 3 s), "stalled" (half of the body, then nothing for 3 s), "slow" (a byte now and then),
    "dripping" (the same, of a body whose size is not stated), "limited" (429 with RateLimit), "changed" (the object is replaced
    before the answer) or "ok". Those of ``passing`` are used up too, but none of them meets a request a second time.

    Requests for paths in ``busy`` get 503 each time. ``ranges=False`` ignores Range headers, and without ``etags`` no answer
    has a version; ``pause`` (seconds) lies between pieces of 64 KiB. ``moved`` redirects paths to other urls.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.objects: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.passing: list[str] = []
        self.failed: set[tuple[str, str | None]] = set()
        self.busy: set[str] = set()
        self.moved: dict[str, str] = {}
        self.ranges = True
        self.etags = True
        self.pause = 0.0
        self.requests: list[tuple[str, str | None]] = []
        self.headers: list[dict[str, str]] = []
        self.sent = 0

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def fault_of(self, path: str, wanted: str | None) -> str:
        """Return the fault of a request."""
        if self.faults:
            return self.faults.pop(0)
        if self.passing and (path, wanted) not in self.failed:
            self.failed.add((path, wanted))
            return self.passing.pop(0)
        return "503" if path[1:] in self.busy else "ok"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        path, wanted = self.path, self.headers.get("Range")
        if path.startswith("http://"):  # as a proxy is asked
            path = f"/{path.split('/', 3)[3]}"
        with server.lock:
            server.requests.append((path, wanted))
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            fault = server.fault_of(path, wanted)
        if path[1:] in server.moved:
            self._send(302, b"", {"Location": server.moved[path[1:]]})
        elif fault[0].isdigit():
            status, _, after = fault.partition(";")
            self._send(int(status), b"", {"Retry-After": after} if after else {})
        elif fault == "limited":
            self._send(429, b"", {"RateLimit": '"default";r=0;t=0'})
        elif fault == "page":
            self._send(200, b"<html>Log in to go on</html>", {"Content-Type": "text/html"})
        elif fault == "silent":
            time.sleep(3.0)
            self.close_connection = True
        else:
            self._object(path[1:], wanted, fault)

    def _object(self, path: str, wanted: str | None, fault: str) -> None:
        server = self.server
        if fault == "changed":
            server.objects[path] = server.objects[path][::-1]
        data = server.objects.get(path)
        if data is None:
            self.send_error(404)
            return
        body, status = data, 200
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if server.etags and fault != "unmarked" else {}
        if fault == "weak":
            headers["ETag"] = f'W/"{hashlib.md5(data).hexdigest()}"'
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
        if fault == "packed":
            body = gzip.compress(data)
            headers["Content-Encoding"] = "gzip"
        elif match and server.ranges and fault != "whole":
            start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
            if start >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
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
        self._send(status, body, headers, fault)

    def _send(self, status: int, body: bytes, headers: dict[str, str], fault: str = "") -> None:
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
                time.sleep(3.0)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if fault in ("slow", "dripping"):
            for at in range(100):
                self.wfile.write(body[at : at + 1])
                self.wfile.flush()
                time.sleep(0.1)
            self.close_connection = True
            return
        for at in range(0, len(body), 1 << 16):
            with server.lock:  # before the bytes: who has them finds them counted
                server.sent += len(body[at : at + (1 << 16)])
            self.wfile.write(body[at : at + (1 << 16)])
            if server.pause:
                time.sleep(server.pause)


@contextmanager
def running_server() -> Iterator[FaultyServer]:
    with serving(FaultyServer()) as server:
        yield server
