"""What the servers of the tests share: a free port of localhost, a thread that serves, connections counted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

_used_ports: set[int] = set()  # a process keeps what it knows of a server by host and port


def new_socket(*, listens: bool = True) -> socket.socket:
    """Return a socket with a port of localhost that no other server of this process had."""
    while True:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        if (port := bound.getsockname()[1]) not in _used_ports:
            _used_ports.add(port)
            if listens:
                bound.listen()
            return bound
        bound.close()


class LocalServer(ThreadingHTTPServer):
    """``lock`` guards what the handlers of several connections count; ``host`` is an address of this machine."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host = f"[{host}]" if ":" in host else host
        self._clients: list[socket.socket] = []
        super().__init__((host, 0), handler)
        while self.server_address[1] in _used_ports:
            self.server_close()
            super().__init__((host, 0), handler)
        _used_ports.add(self.server_address[1])
        self.connections = 0
        self.lock = threading.Lock()

    @property
    def root(self) -> str:
        return f"http://{self._host}:{self.server_address[1]}"

    def get_request(self) -> Any:
        self.connections += 1
        request = super().get_request()
        self._clients.append(request[0])
        return request

    def server_close(self) -> None:
        """End the connections too: a thread waits at each for the next request."""
        super().server_close()
        for client in self._clients:
            with suppress(OSError):  # it has ended
                client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are part of the tests."""


Server = TypeVar("Server", bound=LocalServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def answering(*parts: bytes | None) -> Iterator[str]:
    """The address of a server that sends each part to whoever connects, waits where one is None, and hangs up."""
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for part in parts:
                if part is None:
                    over.wait()
                else:
                    connection.sendall(part)

    with new_socket() as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        thread.join()
