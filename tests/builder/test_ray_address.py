"""A ray address is tried before a build begins, so that a wrong one is refused at once and with the cure."""

from __future__ import annotations

import socket
import time

import pytest

from pipeline.builder.engine.ray import check_address
from pipeline.errors import ConfigError


def test_a_ray_address_where_nothing_answers_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        started = time.monotonic()
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ConfigError, match=f"--ray-address {address}: nothing answers there.*`ray start --head"):
                check_address(address)
        assert time.monotonic() - started < 60
        unused.listen()
        check_address(f"127.0.0.1:{port}")
    check_address("auto")
