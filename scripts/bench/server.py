"""An http server of a directory with ranges, a latency and a bandwidth that all requests share; it counts both.

    python scripts/bench/server.py DIRECTORY --latency 0.03 --rate 100e6

Prints its port. ``GET /__counts__?until=T`` returns, as JSON, the requests and bytes since the last such request and before T,
by the clock that all processes of a machine share (``time.monotonic``), and forgets those after it too.

With ``--tls FILE`` it speaks https with that certificate. With ``--hub`` the directory is also the dataset ``org/name`` of a
Hugging Face hub, whose files a redirect leads to.

It shares the processors with what is measured, so it does little: it knows GET and HEAD, and reads one header. Clients of S3
read directories as buckets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import socket
import ssl
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

_SLICE = 256 << 10
_COMMIT = "c0ffee" + "0" * 34
_RANGE = re.compile(rb"(?i)range: *bytes=(\d+)-(\d*)")


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


class Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, directory: Path, latency: float, rate: float, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.directory = directory.resolve()
        self.latency = latency
        self.link = Link(rate)
        self.lock = threading.Lock()
        self.events: list[tuple[float, int, int]] = []

    def encrypt(self, certificate: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away at any time."""

    def count(self, requests: int, size: int) -> None:
        with self.lock:
            self.events.append((time.monotonic(), requests, size))


class Handler(StreamRequestHandler):
    server: Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        time.sleep(self.server.latency)  # of the handshake
        super().setup()

    def handle(self) -> None:
        while request := self.rfile.readline():
            match = None
            while (line := self.rfile.readline().strip()) != b"":
                match = match or _RANGE.fullmatch(line)
            method, target = request.split()[:2]
            self._answer(target.decode(), match, head=method == b"HEAD")

    def _answer(self, target: str, match: re.Match[bytes] | None, *, head: bool) -> None:
        server = self.server
        if target.startswith("/__counts__"):
            until = float(target.partition("=")[2] or "inf")
            with server.lock:
                events, server.events = server.events, []
            counted = [(requests, size) for when, requests, size in events if when <= until]
            body = json.dumps({"requests": sum(r for r, _ in counted), "bytes": sum(b for _, b in counted)}).encode()
            self._send_head("200 OK", len(body))
            self.connection.sendall(body)
            return
        server.count(1, 0)
        time.sleep(server.latency)
        path = (server.directory / target.split("?")[0].lstrip("/")).resolve()
        if server.directory not in path.parents or not path.is_file():
            self._send_head("404 Not Found", 0)
            return
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            size, mark = info.st_size, f'ETag: "{info.st_mtime_ns:x}-{info.st_size:x}"'
            if match is None:
                start, stop = 0, size
                self._send_head("200 OK", size, mark)
            else:
                start, stop = int(match[1]), min(size, int(match[2] or size) + 1)
                content = f"Content-Range: bytes {start}-{stop - 1}/{size}"
                self._send_head("206 Partial Content", stop - start, mark, content)
            while start < stop and not head:
                part = min(_SLICE, stop - start)
                server.link.pass_on(part)
                sent = self._send_part(file.fileno(), start, part)
                server.count(0, sent)
                start += sent

    def _send_part(self, file: int, start: int, size: int) -> int:
        if not isinstance(self.connection, ssl.SSLSocket):
            return os.sendfile(self.connection.fileno(), file, start, size)
        self.connection.sendall(os.pread(file, size, start))
        return size

    def _send_head(self, status: str, length: int, *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}", *headers]
        more = socket.MSG_MORE if length else 0  # one packet with what follows
        flags = [] if isinstance(self.connection, ssl.SSLSocket) else [more]
        self.connection.send("\r\n".join([*lines, "", ""]).encode(), *flags)


class HubHandler(Handler):
    """Answers what a hub is asked: the commit of a revision, the list of files, where a file is."""

    def _answer(self, target: str, match: re.Match[bytes] | None, *, head: bool) -> None:
        path = target.split("?")[0]
        if path.startswith("/api/datasets/org/name/revision/"):
            self._json({"id": "org/name", "sha": _COMMIT})
        elif path.startswith("/api/datasets/org/name/tree/"):
            self._json([self._entry(file) for file in sorted(self.server.directory.rglob("*")) if file.is_file()])
        elif path.startswith("/datasets/org/name/resolve/"):
            name = path.split("/", 6)[6]
            if name == "README.md":  # small files are no redirect
                super()._answer(f"/{name}", match, head=head)
                return
            self.server.count(1, 0)
            time.sleep(self.server.latency)
            port = self.server.server_address[1]
            self._send_head("302 Found", 0, f"Location: http://127.0.0.1:{port}/{name}", f"X-Repo-Commit: {_COMMIT}")
        else:
            super()._answer(target, match, head=head)

    def _entry(self, file: Path) -> dict[str, Any]:
        name = file.relative_to(self.server.directory).as_posix()
        return {
            "type": "file",
            "path": name,
            "size": file.stat().st_size,
            "oid": hashlib.sha1(name.encode()).hexdigest(),
        }

    def _json(self, value: Any) -> None:
        self.server.count(1, 0)
        time.sleep(self.server.latency)
        body = json.dumps(value).encode()
        self._send_head("200 OK", len(body))
        self.connection.sendall(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds before each answer (default: 0.03)")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second, 0 for no limit (default: 100e6)")
    parser.add_argument("--tls", type=Path, metavar="FILE", help="speak https with this certificate and key")
    parser.add_argument("--hub", action="store_true", help="answer as a hub, too")
    options = parser.parse_args()
    handler = HubHandler if options.hub else Handler
    server = Server(options.directory, options.latency, options.rate, handler)
    if options.tls:
        server.encrypt(options.tls)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
