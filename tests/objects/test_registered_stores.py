"""A store whose client another package registered with fsspec serves as any other, in every process that sees the package."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.errors import StorageError
from pipeline.objects.request_options import RequestOptions
from pipeline.objects.store_clients import file_system, store_info
from pipeline.objects.uploads import put_file, put_new, read
from pipeline.objects.urls import is_remote
from tests.helpers.builds import ROOT, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.faulty_bucket import FaultyBucket
from tests.helpers.local_server import serving

MODULE = """
import os
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

class House(DirFileSystem):
    protocol = "house"

    def __init__(self, **options):
        super().__init__(path=os.environ["HOUSE"], fs=LocalFileSystem(auto_mkdir=True), **options)
"""
SCRIPT = """
import sys
import torch
import pipeline
from pipeline.progress import Progress
from pipeline.cli.main import main

def run():
    settings = dict(tokenizer="bytes", rules="none", val_fraction=0, tokens_per_shard=8000, keep_signatures=True,
                    progress=Progress(quiet=True))
    pipeline.build(["house://raw/*.jsonl"], "house://sets/one", workers=2, start_method="spawn", **settings)
    stream = pipeline.ShardDataset("house://sets/one", epochs=1).documents()
    loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    print(sum(1 for _ in loader), sum(1 for _ in pipeline.TextDataset("house://raw", "bytes", epochs=1).documents()))
    again = pipeline.build(["house://raw", sys.argv[1]], "second", against=["house://sets/one"], workers=1, **settings)
    print(again.counts["kept"])
    for command in ("inspect house://sets/one", "verify house://sets/one", "export house://sets/one --to nanogpt --output out"):
        if main(command.split()):
            raise SystemExit(command)

if __name__ == "__main__":
    run()
"""


@pytest.fixture
def house(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that see an installed package with a store of its own, in a folder of this machine."""
    site = tmp_path / "site"
    (site / "house_store-1.0.dist-info").mkdir(parents=True)
    information = site / "house_store-1.0.dist-info"
    (site / "house_store.py").write_text(MODULE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: house-store\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[fsspec.specs]\nhouse = house_store:House\n")
    (tmp_path / "store" / "raw").mkdir(parents=True)
    return {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "HOUSE": str(tmp_path / "store")}


@pytest.mark.stacks
def test_workers_and_commands_read_and_write_a_registered_store(house: dict[str, str], tmp_path: Path) -> None:
    write_jsonl(tmp_path / "store" / "raw" / "in.jsonl", [english(k) for k in range(60)])
    more = write_jsonl(tmp_path / "more.jsonl", [english(999)])
    (tmp_path / "script.py").write_text(SCRIPT)
    options: dict[str, Any] = {"text": True, "capture_output": True, "timeout": 300}
    done = subprocess.run([sys.executable, "script.py", str(more)], env=house, cwd=tmp_path, **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["60", "60", "1"]
    manifest = json.loads((tmp_path / "store" / "sets" / "one" / "manifest.json").read_text())
    assert (tmp_path / "out" / "train.bin").stat().st_size == manifest["splits"]["train"]["tokens"] * 2


class Careless(MemoryFileSystem):  # type: ignore[misc]
    """A store that writes over what is there, whatever it is asked."""

    protocol = "careless"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, mode="overwrite")


class Older(Careless):
    """A store that knows no conditional writes."""

    protocol = "older"
    store: ClassVar[dict[str, Any]] = {}

    def pipe_file(self, path: str, value: bytes) -> None:  # type: ignore[override]
        super().pipe_file(path, value)


@pytest.mark.parametrize("client", [Careless, Older])
def test_a_store_that_does_not_decide_who_wrote_first_is_named(client: type[Careless]) -> None:
    name = str(client.protocol)
    fsspec.register_implementation(name, client, clobber=True)
    with pytest.warns(UserWarning, match=rf"{name}://bucket/owner: .* two builds write"):
        assert put_new(b"mine", f"{name}://bucket/owner", RequestOptions()) == b"mine"
    if client is Older:  # which is asked first whether an object is there
        with pytest.warns(UserWarning, match="two builds"):
            assert put_new(b"other", f"{name}://bucket/owner", RequestOptions()) == b"mine"
    assert read(f"{name}://bucket/owner", RequestOptions()) == b"mine"
    assert is_remote(f"{name}://bucket/owner")
    with pytest.raises(FileNotFoundError, match=f"{name}://bucket/none"):
        read(f"{name}://bucket/none", RequestOptions())
    with pytest.raises(StorageError, match=f"{name}://bucket: this is a directory; name an object in it"):
        store_info(f"{name}://bucket", RequestOptions())


class Lossy(Careless):
    """A store that loses the last byte of what it gets, as often as ``losses`` says, and refuses conditional writes at first."""

    protocol = "lossy"
    store: ClassVar[dict[str, Any]] = {}
    losses: ClassVar[list[int]] = []

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        data = Path(lpath).read_bytes()
        MemoryFileSystem.pipe_file(self, rpath, data[: len(data) - self.losses.pop()])

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.losses.pop():
            raise OSError(errno.EIO, "lost")
        MemoryFileSystem.pipe_file(self, path, value, mode=mode)


def test_a_write_of_which_a_part_is_lost_is_made_again(tmp_path: Path) -> None:
    fsspec.register_implementation("lossy", Lossy, clobber=True)
    (tmp_path / "a").write_bytes(b"whole")
    requests = RequestOptions(tries=2, first_delay=0.001)
    Lossy.losses = [0, 1]
    put_file(tmp_path / "a", "lossy://bucket/a", requests)
    assert read("lossy://bucket/a", requests) == b"whole"
    Lossy.losses = [1, 1]
    with pytest.raises(StorageError, match=r"lossy://bucket/a: .*gave up after 2 tries .*the store has 4 of 5 bytes"):
        put_file(tmp_path / "a", "lossy://bucket/a", requests)
    Lossy.losses = [0, 0, 1]
    assert put_new(b"mine", "lossy://bucket/new", requests) == b"mine"
    Lossy.losses = [1, 1]
    with pytest.raises(StorageError, match=r"lossy://bucket/none: .*gave up after 2 tries .*lost"):
        put_new(b"mine", "lossy://bucket/none", requests)


# Clients of fsspec that try again by themselves


OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "s3": lambda url: {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": url}},
    "gs": lambda url: {"token": "anon", "endpoint_url": url},
    "az": lambda url: {
        "connection_string": f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=AAAA;BlobEndpoint={url}/a;"
    },
}


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("az", "adlfs")])
def test_tries_are_counted_once_for_every_client(scheme: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks Google's own servers
    pytest.importorskip(package)
    with serving(FaultyBucket("", lambda *request: "503")) as server:
        requests = RequestOptions(tries=3, first_delay=0.001, options=OPTIONS[scheme](server.root))
        with pytest.raises(StorageError, match="gave up after 3 tries"):
            put_new(b"data", f"{scheme}://bucket/key", requests)
        assert sum(server.counts.values()) == 3
        file_system(f"{scheme}://bucket/key", requests).clear_instance_cache()
