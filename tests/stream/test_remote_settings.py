"""``tries`` and ``timeout`` hold for all that a dataset asks of a server, whichever face opens it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import ConfigError, StorageError
from pipeline.notices import say_once
from tests.helpers.faulty_server import running_server
from tests.helpers.local_server import new_socket

FACES: list[Callable[..., Any]] = [
    lambda url, **settings: pipeline.ShardDataset(f"{url}/data", **settings),
    lambda url, **settings: pipeline.TextDataset(f"{url}/texts.jsonl", "bytes", **settings),
    lambda url, **settings: pipeline.open_dataset(f"{url}/texts.jsonl", **settings),
]
faces = pytest.mark.parametrize("face", FACES, ids=["shards", "texts", "open_dataset"])


@faces
def test_a_request_is_made_so_many_times(face: Callable[..., Any]) -> None:
    with running_server() as server:
        server.files["texts.jsonl"] = b'{"text": "a"}\n'
        server.faults = ["503"] * 2
        with pytest.raises(StorageError, match=r"gave up after 2 tries .* allow more tries= or a longer timeout="):
            face(server.root, tries=2)
        assert len(server.requests) == 2


@pytest.mark.parametrize("home", [None, "file", "file/home"])
def test_a_user_without_a_home_directory_to_write_in_reads_without_a_cache(
    home: str | None, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "SHARDWRIGHT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pwd", None)  # so nobody knows the user
    if home is not None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("HOME", str(tmp_path / home))
    say_once.cache_clear()
    with running_server() as server:
        server.files = {path.name: path.read_bytes() for path in small.iterdir()}
        found = next(iter(pipeline.ShardDataset(server.root).pack(8)))["input_ids"].tolist()
    assert found == next(iter(pipeline.ShardDataset(small).pack(8)))["input_ids"].tolist()
    assert caplog.text.count("set SHARDWRIGHT_CACHE to a folder") == 1


@faces
def test_a_server_that_never_answers_is_given_up(face: Callable[..., Any]) -> None:
    with new_socket() as silent, pytest.raises(StorageError, match=r"gave up after [1-4] tries"):  # of ten
        face(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=1.0)


@faces
@pytest.mark.parametrize("setting", [{"tries": 0}, {"tries": 2.0}, {"timeout": 0}, {"timeout": "20"}])
def test_a_value_that_cannot_be_is_refused_by_its_name(face: Callable[..., Any], setting: dict[str, Any]) -> None:
    (name, value), *_ = setting.items()
    with pytest.raises(ConfigError, match=f"{name} must be .*, got {value!r}"):
        face("http://127.0.0.1:9", **setting)
