"""A real http server on localhost that serves bytes and fails as it is told to."""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from .local_server import LocalServer, serving


class FaultyServer(LocalServer):
    """``objects``: path -> bytes. ``faults`` are used up by requests in turn.

    A fault is a status ("429", "503;2": with Retry-After), "reset" (connection reset half-way), "short" (half of the
    body, then a clean close), "long" (more bytes than asked for), "shifted" (another range), "flipped" (one bit is wrong),
    "silent" (no answer for 3 s), "slow" (a byte now and then), "limited" (429 with RateLimit), "changed" (the object is
    replaced before the answer) or "ok". Requests for paths in ``busy`` get 503 each time. ``ranges=False`` ignores Range
    headers, and without ``etags`` no answer has a version; ``pause`` (seconds) lies between pieces of 64 KiB.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.objects: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.busy: set[str] = set()
        self.ranges = True
        self.etags = True
        self.pause = 0.0
        self.requests: list[tuple[str, str | None]] = []
        self.sent = 0

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range")
        with server.lock:
            server.requests.append((self.path, wanted))
            fault = server.faults.pop(0) if server.faults else "503" if self.path[1:] in server.busy else "ok"
        if fault[0].isdigit():
            status, _, after = fault.partition(";")
            self.send_response(int(status))
            if after:
                self.send_header("Retry-After", after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "silent":
            time.sleep(3.0)
            self.close_connection = True
            return
        if fault == "limited":
            self.send_response(429)
            self.send_header("RateLimit", '"default";r=0;t=0')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "changed":
            server.objects[self.path[1:]] = server.objects[self.path[1:]][::-1]
        data = server.objects.get(self.path[1:])
        if data is None:
            self.send_error(404)
            return
        body, status = data, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
        if match and server.ranges:
            start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if fault == "shifted":
                start, stop = start + 1, min(stop + 1, len(data))
            if fault == "long":
                stop = min(stop + 1000, len(data))
            body, status = data[start:stop], 206
            if fault == "flipped":
                body = bytes([body[0] ^ 1]) + body[1:]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        if server.etags:
            self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault in ("reset", "short"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if fault == "slow":
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
