"""Writes to object stores by their clients: whole files, objects that only one of several writers creates, removals.

If a store knows a checksum for a request (S3: botocore's CRC), the client sends it, and the store refuses a body that differs.
An object appears whole or not at all. `abort_uploads` removes the parts that a killed upload left.
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
    """Raise ``ConfigError`` if nothing can be written to a url."""
    if is_http(url):
        raise ConfigError(f"{shown(url)}: http servers take no uploads; give the url of a bucket, as s3://bucket/name")
    if url.lower().startswith("hf://"):
        raise ConfigError(
            f"{url}: a dataset is not written to the hub directly; build it in a directory, and upload it with the command "
            "that `shardwright card` prints"
        )


def put_file(path: Path, url: str, requests: RequestOptions) -> None:
    """Write a file to a url; it replaces an object there. It is written again even if only the answer was lost."""
    files, size = file_system(url, requests), path.stat().st_size

    def put() -> None:
        files.put_file(str(path), url)
        files.invalidate_cache()
        if (found := files.info(url)["size"]) != size:
            raise RetryableError(f"the store has {found} of {size} bytes")

    retrying(put, url, "write it", requests)


def put_new(data: bytes, url: str, requests: RequestOptions) -> bytes:
    """Write an object unless the url has one; return the object's bytes, which an earlier writer may have written.

    S3 and Azure (``If-None-Match``) and GCS (generations) decide which of two writers was first. A warning names a store
    that cannot: it accepts the same object twice, or its client knows no such request.
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
            return False  # this writer may have written it, and the answer was lost
        return True

    if retrying(put, url, "write it", requests):
        decides = not retrying(put, url, "write it", requests)
    if not decides:
        warn(f"{shown(url)}: this store lets two builds write there at once; make sure that no other build does")
    return read(url, requests)


def read(url: str, requests: RequestOptions) -> bytes:
    """Return the contents of a small object; raises ``FileNotFoundError`` if there is none."""
    try:
        return read_range(url, 0, describe(url, requests).size, requests)
    except MissingObjectError:
        raise FileNotFoundError(url) from None


def objects_below(url: str, requests: RequestOptions) -> dict[str, int]:
    """Return the size of each object below a url, by its name relative to the url."""
    files = file_system(url, requests)
    root = files._strip_protocol(url).rstrip("/") + "/"

    def find() -> dict[str, int]:
        files.invalidate_cache()
        found = files.find(root, detail=True)
        return {name.removeprefix(root): int(found[name]["size"]) for name in sorted(found) if name.startswith(root)}

    return retrying(find, url, "list it", requests)


def remove(urls: Iterable[str], requests: RequestOptions) -> None:
    """Remove objects; missing ones are skipped."""
    for url in urls:
        files = file_system(url, requests)

        def drop(files: Any = files, url: str = url) -> None:
            with suppress(FileNotFoundError):
                files.rm_file(url)

        retrying(drop, url, "remove it", requests)


def abort_uploads(url: str, requests: RequestOptions) -> None:
    """Remove the parts of killed uploads below a url of S3. Other stores remove such parts themselves."""
    if not url.lower().startswith(("s3://", "s3a://")):
        return
    files = file_system(url, requests)
    bucket, key, _ = files.split_path(url)

    def abort() -> None:
        found = files.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key.rstrip('/')}/")
        for upload in found.get("Uploads", ()):
            files.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    retrying(abort, url, "end the uploads that were cut off", requests)
