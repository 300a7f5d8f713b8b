"""What tests of inputs share: a web server, which serves as the hub, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.input_server import InputServer, running_inputs


@pytest.fixture
def server() -> Iterator[InputServer]:
    with running_inputs() as running:
        yield running
