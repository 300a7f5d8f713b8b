"""A proxy before an S3 server on this machine, which does to each request what a test wants."""

from __future__ import annotations

import http.client
import http.server
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec

from tests.helpers.interpreters import ROOT, Interpreter
from tests.helpers.local_server import LocalServer, serving

Act = Callable[[str, str, int, Callable[[], None]], str]


class FaultyBucket(LocalServer):
    """``act(method, path, number, forward)`` is called for the requests of each method, counted from 0.

    It returns "" to pass a request on, "503" or "500" to refuse it, "drop" to close the connection, and "lost" to apply it
    and close the connection. ``forward`` applies it before ``act`` returns.
    """

    def __init__(self, target: str, act: Act) -> None:
        super().__init__(_Handler)
        self.target = target.removeprefix("http://")
        self.act = act
        self.counts: dict[str, int] = {}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyBucket

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def _serve(self) -> None:
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self._body()
        with self.server.lock:
            number = self.server.counts.get(self.command, 0)
            self.server.counts[self.command] = number + 1
        what = self.server.act(self.command, self.path, number, lambda: self._forward(body) and None)
        if what in ("500", "503"):
            code = "SlowDown" if what == "503" else "InternalError"
            self._answer(int(what), {}, f"<Error><Code>{code}</Code><Message>later</Message></Error>".encode())
        elif what == "":
            self._answer(*self._forward(body))
        else:
            if what == "lost":
                self._forward(body)
            self.close_connection = True

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=120)
        headers = {k: v for k, v in self.headers.items() if k not in ("Expect", "Transfer-Encoding", "Content-Length")}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), data

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length", str(len(body))) if self.command == "HEAD" else str(len(body))
        kept = {k: v for k, v in headers.items() if k not in ("Content-Length", "Connection", "Transfer-Encoding")}
        for name, value in {**kept, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # the names that http.server calls


def credentials(url: str) -> dict[str, str]:
    """Return the variables by which a command reaches an S3 server."""
    given = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1", "ENDPOINT_URL": url}
    return {f"AWS_{name}": value for name, value in given.items()}


def run_through(
    options: dict[str, Any], act: Callable[..., str], *arguments: object, cwd: Path
) -> tuple[int, str, dict[str, int]]:
    """Run a command through a proxy before the server of ``options``; ``act`` gets its process first, then what `Act` gets.

    Returns its exit status, what it said of errors, and how many requests of each method there were.
    """
    begun = threading.Event()
    server = options["client_kwargs"]["endpoint_url"]
    with serving(FaultyBucket(server, lambda *request: begun.wait() and act(process, *request))) as proxy:
        variables = {**credentials(proxy.root), "PYTHONPATH": str(ROOT)}
        with open(cwd / "errors", "w+") as errors:
            process = Interpreter(
                "-m", "pipeline", *arguments, stdout=1, stderr=errors.fileno(), cwd=cwd, variables=variables,
                new_session=True,
            )  # fmt: skip
            begun.set()
            process.wait(280)
    return process.wait(), (cwd / "errors").read_text(), proxy.counts


def kill_at_put(at: int, applied: bool) -> Callable[..., str]:
    """Return what `run_through` takes to kill a command at one of the objects that it puts, before or after it is there."""

    def act(process: Interpreter, method: str, path: str, number: int, forward: Callable[[], None]) -> str:
        if method != "PUT" or number != at:
            return ""
        if applied:
            forward()
        os.killpg(process.pid, signal.SIGKILL)
        return "drop"

    return act


def objects_below(url: str, **options: Any) -> dict[str, bytes]:
    """Return what a bucket holds below a url."""
    files = fsspec.filesystem(url.partition(":")[0], **options)
    files.invalidate_cache()
    root = files._strip_protocol(url) + "/"
    return {name.removeprefix(root): files.cat_file(name) for name in files.find(root)}
