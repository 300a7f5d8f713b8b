"""An http server of a directory, with ranges, a latency, and a bandwidth that all requests share.

    python scripts/bench/server.py DIRECTORY SECONDS_OF_LATENCY BYTES_A_SECOND [CERTIFICATE]

Prints its port. ``GET /__counts__`` returns, as JSON, the requests and bytes since the last such request. With a file that
has a certificate and its key, it serves https.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SLICE = 256 << 10


class Server(ThreadingHTTPServer):
    """Counts requests and bytes, and delays responses to share the bandwidth."""

    request_queue_size = 256

    def __init__(self, directory: Path, latency: float, rate: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.latency = directory.resolve(), latency
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()
        self._counts = {"requests": 0, "bytes": 0}

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: clients may disconnect at any time."""

    def count_request(self) -> None:
        with self._lock:
            self._counts["requests"] += 1

    def wait_for(self, size: int) -> None:
        """Wait until the link has sent ``size`` bytes after those of other requests."""
        with self._lock:
            self._counts["bytes"] += size
            self._free = max(self._free, time.monotonic()) + size / self._rate
            due = self._free
        time.sleep(max(0.0, due - time.monotonic()))

    def counts(self) -> bytes:
        with self._lock:
            counts, self._counts = self._counts, {"requests": 0, "bytes": 0}
        return json.dumps(counts).encode()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        time.sleep(self.server.latency)  # the handshake's
        super().setup()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/__counts__":
            counts = self.server.counts()
            self._send_head(200, len(counts))
            self.wfile.write(counts)
            return
        self.server.count_request()
        time.sleep(self.server.latency)
        path = (self.server.directory / self.path.split("?")[0].lstrip("/")).resolve()
        if self.server.directory not in path.parents or not path.is_file():
            self._send_head(404, 0)
            return
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            begin, end = 0, info.st_size
            headers = {"ETag": f'"{info.st_mtime_ns:x}-{end:x}"'}
            if wanted_range := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                begin, end = int(wanted_range[1]), min(end, int(wanted_range[2] or end) + 1)
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{info.st_size}"
            self._send_head(206 if wanted_range else 200, end - begin, headers)
            while begin < end and self.command == "GET":
                size = min(_SLICE, end - begin)
                self.server.wait_for(size)
                self.wfile.write(os.pread(file.fileno(), size, begin))
                begin += size

    def _send_head(self, status: int, length: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()


def main() -> None:
    directory, latency, rate, *certificates = sys.argv[1:]
    server = Server(Path(directory), float(latency), float(rate))
    if certificates:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificates)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
