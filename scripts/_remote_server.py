"""An http server of a directory with ranges, a latency and a bandwidth that all requests share; it counts both.

    python scripts/_remote_server.py DIRECTORY --latency 0.03 --rate 100e6

Prints its port. ``GET /__counts__?until=T`` returns, as JSON, the requests and bytes since the last such request and before T,
by the clock that all processes of a machine share (``time.monotonic``), and forgets those after it too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SLICE = 64 << 10


class Link:
    """A bandwidth in bytes a second (0: no limit) that senders share slice by slice."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0
        self._lock = threading.Lock()

    def pass_on(self, size: int) -> None:
        """Wait until ``size`` bytes have gone through."""
        if not self._rate:
            return
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            due = self._free
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, directory: Path, latency: float, rate: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory.resolve()
        self.latency = latency
        self.link = Link(rate)
        self.lock = threading.Lock()
        self.events: list[tuple[float, int, int]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away at any time."""

    def count(self, requests: int, size: int) -> None:
        with self.lock:
            self.events.append((time.monotonic(), requests, size))


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def setup(self) -> None:
        time.sleep(self.server.latency)  # of the handshake
        super().setup()

    def do_GET(self) -> None:
        server = self.server
        if self.path.startswith("/__counts__"):
            until = float(self.path.partition("=")[2] or "inf")
            with server.lock:
                events, server.events = server.events, []
            counted = [(requests, size) for when, requests, size in events if when <= until]
            body = json.dumps({"requests": sum(r for r, _ in counted), "bytes": sum(b for _, b in counted)}).encode()
            self._head(200, len(body))
            self.wfile.write(body)
            return
        server.count(1, 0)
        time.sleep(server.latency)
        path = (server.directory / self.path.split("?")[0].lstrip("/")).resolve()
        if server.directory not in path.parents or not path.is_file():
            self._head(404, 0)
            return
        size = path.stat().st_size
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = (int(match[1]), min(size, int(match[2] or size) + 1)) if match else (0, size)
        mark = f'"{path.stat().st_mtime_ns:x}-{size:x}"'
        self._head(206 if match else 200, stop - start, mark, f"bytes {start}-{stop - 1}/{size}" if match else None)
        with path.open("rb") as file:
            self.wfile.flush()
            while start < stop:
                part = min(_SLICE, stop - start)
                server.link.pass_on(part)
                sent = os.sendfile(self.connection.fileno(), file.fileno(), start, part)
                server.count(0, sent)
                start += sent

    def _head(self, status: int, length: int, mark: str | None = None, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if mark:
            self.send_header("ETag", mark)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds before each answer (default: 0.03)")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second, 0 for no limit (default: 100e6)")
    options = parser.parse_args()
    server = Server(options.directory, options.latency, options.rate)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
