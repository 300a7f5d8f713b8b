"""Stores that only fsspec knows (``gs://``, ``az://``) are listed, sized, pinned and read by exact ranges."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractBufferedFile

from pipeline.errors import ConfigError, InputError, StorageError
from pipeline.objects.remote_object import RemoteObject, describe, read_range
from pipeline.objects.request_options import RequestOptions
from pipeline.objects.store_clients import signed
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document
from pipeline.text.readers.document_reader import DocumentReader, split_file
from pipeline.text.storage.input_file import Credentials, InputFile, StoredObject
from pipeline.text.storage.open_input import open_object
from tests.helpers.faulty_server import running_server

SCHEME = "gs"


class Held:
    """What a store holds, and how many bytes were asked of it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.sent = 0

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data
        self.versions[name] = self.versions.get(name, 0) + 1


class Opened(AbstractBufferedFile):
    """A file that asks its store for ranges, as those of gcsfs and adlfs do."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.held.objects[self.path][start:end]
        self.fs.held.sent += len(data)
        return data


class Bucket(AbstractFileSystem):
    """A store in memory; fsspec makes one for each thread, so ``held`` is given to all of them."""

    protocol = SCHEME

    def __init__(self, held: Held, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.held, self.token = held, token

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        if self.token != "secret":
            raise PermissionError("403: give a token")
        path = self._strip_protocol(path)
        found: dict[str, dict[str, Any]] = {}
        for name, data in self.held.objects.items():
            if name == path or name.startswith(f"{path}/"):
                inner = name if name == path else f"{path}/{name.removeprefix(f'{path}/').partition('/')[0]}"
                kind = "file" if inner == name else "directory"
                found[inner] = {"name": inner, "type": kind, "size": len(data) if kind == "file" else 0}
                if kind == "file":
                    found[inner]["generation"] = str(self.held.versions[name])
        if not found:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else list(found)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Opened:
        return Opened(self, path, mode, **options)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    fsspec.register_implementation(SCHEME, Bucket, clobber=True)
    yield
    _registry.pop(SCHEME)
    Bucket.clear_instance_cache()


def store_of(token: str = "secret") -> tuple[Held, RequestOptions]:
    held = Held()
    return held, RequestOptions(tries=2, first_delay=0.001, options={"held": held, "token": token})


def texts_of(file: InputFile, *span: Any) -> list[str]:
    return [record.text for record in DocumentReader(file, *span) if isinstance(record, Document)]


def test_files_globs_and_folders_are_listed_pinned_and_read() -> None:
    held, requests = store_of()
    for number in (10, 9):
        lines = "".join(f'{{"text": "{number}.{k} {"x" * 2_000}"}}\n' for k in range(50))
        held.put(f"texts/raw/part-{number}.jsonl", lines.encode())
    held.put("texts/raw/b/c.jsonl", b'{"text": "c"}\n')
    names = {"raw/*.jsonl": ["part-9.jsonl", "part-10.jsonl"], "raw": ["b/c.jsonl", "part-9.jsonl", "part-10.jsonl"]}
    for spec, wanted in names.items():
        files = find_inputs(f"web=gs://texts/{spec}", requests=requests)
        assert [(file.source, file.name) for file in files] == [("web", name) for name in wanted]
        assert all(file.stored and file.stored.version == "1" for file in files)
    (file,) = find_inputs("gs://texts/raw/part-9.jsonl", requests=requests)
    spans = split_file(file, 30_000)
    assert len(spans) > 3
    before = held.sent
    assert [text.partition(" ")[0] for span in spans for text in texts_of(file, span)] == [f"9.{k}" for k in range(50)]
    assert held.sent - before <= 1.05 * file.size + 2_100 * len(spans)


def test_an_object_that_was_replaced_is_refused_by_its_version() -> None:
    held, requests = store_of()
    held.put("texts/a.jsonl", b'{"text": "x"}\n')
    (file,) = find_inputs("gs://texts/a.jsonl", requests=requests)
    assert texts_of(file) == ["x"]
    held.put("texts/a.jsonl", b'{"text": "y"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: it changed .*14 bytes of version 1"):
        texts_of(file)


def test_of_parquet_only_the_columns_that_are_used_are_read() -> None:
    held, requests = store_of()
    noise = [os.urandom(1_000).hex() for _ in range(200)]
    data = io.BytesIO()
    pq.write_table(pa.table({"junk": noise, "text": noise[::-1]}), data, compression="none", use_dictionary=False)
    held.put("texts/a.parquet", data.getvalue())
    (file,) = find_inputs("gs://texts/a.parquet", requests=requests)
    assert texts_of(file) == noise[::-1]
    assert held.sent < 0.6 * file.size


def test_what_a_store_refuses_or_lacks_is_named() -> None:
    held, requests = store_of()
    held.put("texts/a.jsonl", b"{}")
    with pytest.raises(InputError, match=r"gs://texts/none\.jsonl: no object is there"):
        find_inputs("gs://texts/none.jsonl", requests=requests)
    with pytest.raises(StorageError, match=r"gs://texts/a\.jsonl.*403: give a token"):
        find_inputs("gs://texts/a.jsonl", requests=store_of(token="")[1])
    held.put("texts/raw/b.jsonl", b"{}")
    with pytest.raises(StorageError, match=r"gs://texts/raw: .*directory.*name an object"):
        describe("gs://texts/raw", requests)
    with pytest.raises(StorageError, match=r"gs://texts/a\.jsonl: 2 bytes.* 3 or more"):
        read_range("gs://texts/a.jsonl", 1, 2, requests)


def test_a_range_of_an_object_is_asked_for_without_what_lies_behind_it() -> None:
    """Shards are read so. The files of fsspec would read 5 MiB ahead."""
    held, requests = store_of()
    held.put("shards/train-000000.tar", os.urandom(8 << 20))
    found = read_range("gs://shards/train-000000.tar", 1_000, 1 << 20, requests)
    assert found == held.objects["shards/train-000000.tar"][1_000 : 1_000 + (1 << 20)]
    assert held.sent == len(found)


class Signing(Bucket):
    """A store that signs urls of a server."""

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(**options)
        self.root = root

    def sign(self, path: str, expiration: int = 100, **options: Any) -> str:
        return f"{self.root}/{self._strip_protocol(path)}"


def read_pinned(url: str, requests: RequestOptions) -> bytes:
    return RemoteObject(url, requests).read(10, 90)


def read_any(url: str, requests: RequestOptions) -> bytes:
    return read_range(url, 10, 90, requests)


def read_text(url: str, requests: RequestOptions) -> bytes:
    return open_object(StoredObject(url, 100, ""), Credentials(requests=requests)).fetch(10, 100)


@pytest.mark.parametrize("read", [read_any, read_pinned, read_text])
def test_signed_urls_are_tried_again_where_the_store_refuses_too(read: Callable[[str, RequestOptions], bytes]) -> None:
    fsspec.register_implementation(SCHEME, Signing, clobber=True)
    place, data = f"{read.__name__}/a.tar", os.urandom(100)
    held, refused = store_of(token="")
    held.put(place, data)
    with running_server() as server:
        server.files[place], server.faults = data, ["403"]
        requests = RequestOptions(tries=1, options={**refused.options, "root": server.root})
        with pytest.raises((StorageError, PermissionError), match="give a token"):
            read(f"gs://{place}", requests)
        assert read(f"gs://{place}", requests) == data[10:]
        del server.files[place]
        with pytest.raises(StorageError, match="404"):  # the store is not asked for what its own url lacks
            read(f"gs://{place}", requests)


@pytest.mark.parametrize("read", [read_any, read_text])
def test_a_failing_server_of_signed_urls_is_given_up_after_tries(read: Callable[[str, RequestOptions], bytes]) -> None:
    fsspec.register_implementation(SCHEME, Signing, clobber=True)
    place = f"failing-{read.__name__}/a.tar"
    held, options = store_of()
    held.put(place, os.urandom(100))
    with running_server() as server:
        server.files[place], server.faults = held.objects[place], ["503"] * 9
        requests = RequestOptions(tries=3, first_delay=0.001, options={**options.options, "root": server.root})
        with pytest.raises(StorageError, match="gave up after 3 tries"):
            read(f"gs://{place}", requests)
        assert (len(server.faults), held.sent) == (6, 0)


@pytest.mark.stacks
@pytest.mark.parametrize("key", ["a//b.tar", "a?b.tar", "a[1].tar", "a/../b.tar", "a/./é+%25 b#c.tar"])
def test_keys_of_s3_with_any_signs_are_read_by_urls_that_are_signed(key: str, s3: dict[str, Any]) -> None:
    from botocore.session import Session

    client = Session().create_client(
        "s3", aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1", **s3["client_kwargs"]
    )
    client.create_bucket(Bucket="odd")
    client.put_object(Bucket="odd", Key=key, Body=(data := os.urandom(1000)))
    assert read_range(f"s3://odd/{key}", 10, 900, RequestOptions(tries=2, options=s3)) == data[10:910]


@pytest.mark.stacks
def test_public_objects_of_s3_are_read_by_plain_urls() -> None:
    requests = RequestOptions(options={"anon": True, "client_kwargs": {"region_name": "us-east-1"}})
    assert signed("s3://bucket/a b.tar", requests, 60) == "https://bucket.s3.amazonaws.com/a%20b.tar"


@pytest.mark.stacks
def test_an_s3_server_that_is_not_there_is_named_by_its_address() -> None:
    options = {"key": "name", "secret": "5ecret", "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        describe("s3://nowhere/data", RequestOptions(timeout=1, options=options))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)  # as where the package is not installed
    with pytest.raises(ConfigError, match="pip install adlfs"):
        describe("az://bucket/a.tar")
