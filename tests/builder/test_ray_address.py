"""A ray address is checked before a build begins, so that a wrong one is refused at once and with the cure."""

from __future__ import annotations

import socket
import time

import pytest

from pipeline.builder.engine.ray import check_address
from pipeline.errors import ConfigError
from tests.local_server import answering


def test_a_ray_address_where_nothing_answers_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        started = time.monotonic()
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ConfigError, match=f"--ray-address {address}: nothing answers there"):
                check_address(address)
        assert time.monotonic() - started < 5
    check_address("auto")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([None], "says nothing for 0.3 s or hangs up"),
        ([b"\0", None], r"begins with b'\\x00'"),
        ([], "says nothing for 0.3 s or hangs up"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "begins with b'HTTP/1.1 '"),
    ],
)
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_ray_address_where_something_else_answers_is_refused_in_time(
    scheme: str, parts: list[bytes | None], message: str
) -> None:
    with (
        answering(*parts) as address,
        pytest.raises(ConfigError, match=rf"--ray-address {scheme}{address}: .* {message}, .*`ray start --head"),
    ):
        check_address(scheme + address, seconds=0.3)


def test_a_server_that_begins_as_ray_does_is_left_to_ray() -> None:
    with answering(b"\0\0", b"\6\4\0\0\0\0\0", b"the settings themselves") as address:
        check_address(address)
