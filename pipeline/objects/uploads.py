"""What is written to object stores, by their clients: whole files, objects that only one of several writers makes, removals.

The client sends a checksum with each request that its store knows one for (S3: botocore's CRC), and the store refuses a body
that differs. An object appears whole or not at all; what a killed upload left of its parts is removed by `abort_uploads`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ConfigError, MissingObjectError
from ..notices import warn
from .remote_object import describe, read_range
from .request_options import RequestOptions, RetryableError
from .retries import retrying
from .store_clients import file_system
from .urls import is_http, shown


def check_writable(url: str) -> None:
    """Raise ``ConfigError`` for urls that nothing is written to."""
    if is_http(url):
        raise ConfigError(f"{shown(url)}: http servers take no uploads; give the url of a bucket, as s3://bucket/name")
    if url.lower().startswith("hf://"):
        raise ConfigError(
            f"{url}: a dataset is not written to the hub directly; build it in a directory, and upload it by the line that "
            "`shardwright card` prints"
        )


def put_file(path: Path, url: str, requests: RequestOptions) -> None:
    """Write a file to a url, whatever is there; with retries, also where an answer was lost."""
    files, size = file_system(url, requests), path.stat().st_size

    def put() -> None:
        files.put_file(str(path), url)
        files.invalidate_cache()
        if (found := files.info(url)["size"]) != size:
            raise RetryableError(f"{found} bytes are there of {size}")

    retrying(put, url, "write it", requests)


def put_new(data: bytes, url: str, requests: RequestOptions) -> bytes:
    """Write an object unless there is one, and return what is there then, perhaps of another writer who came first.

    Stores that can (``If-None-Match`` of S3 and Azure, generations of GCS) decide which of two writers was first. A warning
    names a store that does not: it takes the same object twice, or its client knows no such request.
    """
    files, decides = file_system(url, requests), True

    def put() -> bool:
        """Return whether the store wrote it."""
        nonlocal decides
        try:
            files.pipe_file(url, data, mode="create")
        except (NotImplementedError, TypeError, ValueError):
            decides = False
            if not files.exists(url):
                files.pipe_file(url, data)
            return False
        except OSError as error:
            if not isinstance(error, FileExistsError) and error.errno not in (errno.EINVAL, errno.EIO):
                raise
            if not files.exists(url):
                raise RetryableError(str(error)) from error
            return False  # it is there, perhaps by this writer, whose answer was lost
        return True

    if retrying(put, url, "write it", requests):
        decides = not retrying(put, url, "write it", requests)
    if not decides:
        warn(f"{shown(url)}: this store lets two builds write there at once; see that no other does")
    return read(url, requests)


def read(url: str, requests: RequestOptions) -> bytes:
    """Return what a small object holds; ``FileNotFoundError`` where there is none."""
    try:
        return read_range(url, 0, describe(url, requests).size, requests)
    except MissingObjectError:
        raise FileNotFoundError(url) from None


def objects_below(url: str, requests: RequestOptions) -> dict[str, int]:
    """Return the sizes of all objects below a url by their names, which begin behind its last slash."""
    files = file_system(url, requests)
    root = files._strip_protocol(url).rstrip("/") + "/"

    def find() -> dict[str, int]:
        files.invalidate_cache()
        found = files.find(root, detail=True)
        return {name.removeprefix(root): int(found[name]["size"]) for name in sorted(found) if name.startswith(root)}

    return retrying(find, url, "list it", requests)


def remove(urls: Iterable[str], requests: RequestOptions) -> None:
    """Remove objects, those that are there."""
    for url in urls:
        files = file_system(url, requests)

        def drop(files: Any = files, url: str = url) -> None:
            with suppress(FileNotFoundError):
                files.rm_file(url)

        retrying(drop, url, "remove it", requests)


def abort_uploads(url: str, requests: RequestOptions) -> None:
    """Remove what uploads below a url left behind that were killed between their parts; other stores than S3 do it themselves."""
    if not url.lower().startswith(("s3://", "s3a://")):
        return
    files = file_system(url, requests)
    bucket, key, _ = files.split_path(url)

    def abort() -> None:
        found = files.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key.rstrip('/')}/")
        for upload in found.get("Uploads", ()):
            files.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    retrying(abort, url, "end the uploads that were cut off", requests)
