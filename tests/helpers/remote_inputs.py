"""Inputs on web servers and on the hub: how several test files list, read and build them."""

from __future__ import annotations

import io
import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.objects.request_options import RequestOptions
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document
from pipeline.text.readers.document_reader import DocumentReader
from pipeline.text.storage.input_file import InputFile
from tests.helpers.builds import run_plain
from tests.helpers.text_samples import make_texts

QUICK = RequestOptions(tries=6, first_delay=0.001, timeout=10)  # on a busy machine, too, a request comes once
TEXTS = make_texts(300, 5)
SECRETS = (b"PASSWORD", b"USER", b"SECRETSIGNATURE", b"VVNFUjpQQVNTV09SRA")  # the last: USER:PASSWORD in base64


def only(url: str) -> InputFile:
    (file,) = find_inputs(url, requests=QUICK)
    return file


def texts_of(file: InputFile, *span: Any) -> list[str]:
    records = list(DocumentReader(file, *span))
    assert all(isinstance(record, Document) for record in records)
    return [record.text for record in records if isinstance(record, Document)]


build = partial(run_plain, dedup=False, keep_signatures=False)


def shards_of(manifest: Any) -> list[str]:
    return [shard.sha256 for shard in manifest.shards]


def columns_file(rows: int, group: int) -> bytes:
    """Return a Parquet file of which the texts are a part; row groups of a MB and more."""
    noise = [os.urandom(700).hex() for _ in range(rows)]
    table = pa.table({"id": [str(n) for n in range(rows)], "junk": noise, "text": noise[::-1], "more": noise})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=group, compression="none", use_dictionary=False)
    return file.getvalue()


def assert_nowhere(folder: Path, said: str) -> None:
    held = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(held) > 3
    for secret in SECRETS:
        assert [path for path, data in held.items() if secret in data] == []
        assert secret.decode() not in said
