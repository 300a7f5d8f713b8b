"""The same documents as a file of each format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Pairs = list[tuple[str, str]]
PAIRS: Pairs = [
    ("a", "plain text"),
    ("b/ü", "two\nlines, and a \"quote\"\r\nand\ttabs"),
    ("c", "separators \u2028 \u2029 \x85 \x1c inside"),
    ("d", "emoji \U0001f600, e\u0301, \ufeff mark, NUL \x00"),
    ("e", " spaces at both ends "),
    ("f", "x" * 200_000),
]  # fmt: skip


def as_jsonl(pairs: Pairs) -> bytes:
    return "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in pairs).encode()


def as_csv(pairs: Pairs, delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("id", "text"), *pairs])
    return file.getvalue().encode()


def as_gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def as_zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def write_parquet(path: Path, columns: dict[str, Any], rows_per_group: int = 2) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def as_parquet(pairs: Pairs, rows_per_group: int = 2) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file, columns = io.BytesIO(), {"id": [i for i, _ in pairs], "text": [t for _, t in pairs]}
    pq.write_table(pa.table(columns), file, row_group_size=rows_per_group)
    return file.getvalue()


def as_arrow(pairs: Pairs) -> bytes:
    import pyarrow as pa

    table, file = pa.table({"id": [i for i, _ in pairs], "text": [t for _, t in pairs]}), io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return file.getvalue()


def warc_record(kind: str, block: bytes, id: str = "a", url: str = "https://example.org/", **headers: str) -> bytes:
    """Return one record of a WARC file; names of ``headers`` have _ for -."""
    of_http = "application/http; msgtype=response" if kind == "response" else "text/plain"
    named = {"WARC-Type": kind, "WARC-Target-URI": url, "WARC-Date": "2024-05-06T07:08:09Z", "WARC-Record-ID": id}
    named |= {"Content-Type": of_http, "Content-Length": str(len(block))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return b"WARC/1.0\r\n" + lines.encode() + b"\r\n" + block + b"\r\n\r\n"


def http_page(body: bytes, kind: str = "text/html; charset=utf-8", status: str = "200 OK", **headers: str) -> bytes:
    """Return the answer of a web server."""
    named = {"Content-Type": kind, **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def warc_pages(pairs: Pairs) -> list[bytes]:
    """Return WARC records of pages, each after its request."""
    records = [warc_record("warcinfo", b"software: a test", "info")]
    for id, text in pairs:
        body = f"<html><body><main><p>{text}</p></main></body></html>".encode()
        records += [warc_record("request", b"GET / HTTP/1.1", f"{id}-request")]
        records += [warc_record("response", http_page(body), id, f"https://example.org/{len(records)}")]
    return records


def as_wet(pairs: Pairs) -> bytes:
    return b"".join(warc_record("conversion", text.encode(), id) for id, text in pairs)


def as_members(records: list[bytes]) -> bytes:
    """Return records as WARC files hold them: each is a gzip member."""
    return b"".join(map(as_gzip, records))


def tar_of(members: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> bytes:
    """Return a tar with these members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, payload in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return file.getvalue()


def as_tar(pairs: Pairs) -> bytes:
    records = (json.dumps({"id": id, "text": text}).encode() for id, text in pairs)
    return tar_of({f"{number}.json": record for number, record in enumerate(records)})


# A file of each format, by its name: a format without one fails a test of tests/text/test_documents.py.
FORMATS: dict[str, Callable[[Pairs], bytes]] = {
    "x.jsonl": as_jsonl,
    "x.ndjson": as_jsonl,
    "x.JSONL.GZ": lambda pairs: as_gzip(as_jsonl(pairs)),
    "x.jsonl.zst": lambda pairs: as_zst(as_jsonl(pairs)),
    "x.json": lambda pairs: json.dumps([{"id": id, "text": text} for id, text in pairs], indent=1).encode(),
    "x.json.gz": lambda pairs: as_gzip(as_jsonl(pairs)),
    "x.csv": as_csv,
    "x.csv.gz": lambda pairs: as_gzip(as_csv(pairs)),
    "x.csv.zst": lambda pairs: as_zst(as_csv(pairs)),
    "x.parquet": as_parquet,
    "x.arrow": as_arrow,
    "x.tar": as_tar,
    "x.tar.gz": lambda pairs: as_gzip(as_tar(pairs)),
    "x.tgz": lambda pairs: as_gzip(as_tar(pairs)),
    "x.tar.zst": lambda pairs: as_zst(as_tar(pairs)),
    "x.warc": as_wet,
    "x.wet": as_wet,
    "x.warc.gz": lambda pairs: as_members([as_wet([pair]) for pair in pairs]),
    "x.warc.wet.gz": lambda pairs: as_gzip(as_wet(pairs)),
}
