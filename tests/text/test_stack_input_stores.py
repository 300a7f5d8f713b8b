"""Inputs on a real S3 protocol: files, globs and folders, each read by ranges of one version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress
from pipeline.text.discovery import find_inputs
from pipeline.text.readers.document_reader import split_file
from tests.helpers import interpreters
from tests.helpers.remote_inputs import texts_of
from tests.helpers.text_samples import make_texts, write_texts

pytestmark = pytest.mark.stacks

TEXTS = make_texts(200, 3)
NAMES = ("raw/a/part-2.jsonl", "raw/a/part-10.jsonl.zst", "raw/b/x.parquet")


@pytest.fixture
def bucket(s3: dict[str, Any], tmp_path: Path) -> Any:
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    if not files.exists("texts"):
        files.mkdir("texts")
    for name in NAMES:
        path = write_texts(tmp_path / name.rpartition("/")[2], [f"{name} {text}" for text in TEXTS])
        files.pipe(f"texts/{name}", path.read_bytes())
    files.pipe("texts/raw/notes.bin", b"x")
    return files


def find(spec: str, s3: dict[str, Any]) -> Any:
    return find_inputs(spec, requests=RequestOptions(tries=3, first_delay=0.001, options=s3))


def test_names_of_a_store_are_listed_with_size_and_version(bucket: Any, s3: Any) -> None:
    with pytest.warns(UserWarning, match=r"1 of 4 files left out.*notes\.bin"):
        files = find("s3://texts/raw", s3)
    assert [file.name for file in files] == ["a/part-2.jsonl", "a/part-10.jsonl.zst", "b/x.parquet"]
    assert [file.path for file in find("s3://texts/raw/**/*.jsonl*", s3)] == [
        f"s3://texts/{name}" for name in NAMES[:2]
    ]
    assert [file.name for file in find("s3://texts/raw/{a/part-2.jsonl,b/x.parquet}", s3)] == [
        "part-2.jsonl",
        "x.parquet",
    ]
    for file, name in zip(files, NAMES, strict=True):
        assert file.stored.size == bucket.size(f"texts/{name}")
        assert len(file.stored.version) == 32
        assert texts_of(file) == [f"{name} {text}" for text in TEXTS]
        spans = split_file(file, 3000)
        assert [text for span in spans for text in texts_of(file, span)] == texts_of(file)


def test_listed_objects_of_s3_are_read_without_loading_its_client(bucket: Any, s3: Any) -> None:
    (file,) = find("s3://texts/raw/a/part-2.jsonl", s3)
    code = (
        "import json, sys\n"
        "from pipeline.objects.request_options import RequestOptions\n"
        "from pipeline.text.storage.input_file import Credentials, StoredObject\n"
        "from pipeline.text.storage.open_input import open_object\n"
        "stored, options = json.loads(sys.argv[1])\n"
        "print(len(open_object(StoredObject(*stored), Credentials(requests=RequestOptions(options=options))).fetch(10, 100)))\n"
        "print([name for name in ('s3fs', 'aiobotocore') if name in sys.modules])"
    )
    stored = [file.stored.url, file.stored.size, file.stored.version]
    assert interpreters.run("-c", code, json.dumps([stored, s3])).stdout.split() == ["90", "[]"]


def test_a_build_of_a_store_gives_the_shards_of_local_files(bucket: Any, s3: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "val_fraction": 0, "progress": Progress(quiet=True)}
    local = pipeline.build([str(tmp_path / Path(name).name) for name in NAMES], tmp_path / "local", **settings)
    urls = [f"s3://texts/{name}" for name in NAMES]
    remote = pipeline.build(urls, tmp_path / "remote", storage_options=s3, workers=2, **settings)
    assert [shard.sha256 for shard in remote.shards] == [shard.sha256 for shard in local.shards]
    stream = pipeline.TextDataset(urls, "bytes", epochs=1, storage_options=s3)
    assert len(list(stream.documents())) == 3 * len(TEXTS)
