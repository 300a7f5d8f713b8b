"""Object stores: their clients, which fsspec loads, and signed urls, by which their objects are read over http.

S3 urls are signed by ``botocore``, which takes a tenth of the time that ``s3fs`` takes to load.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, TypeVar

from ..errors import ConfigError, MissingObjectError, StorageError, not_installed
from .http import server_of
from .range_answers import too_short
from .request_options import ObjectInfo, RequestOptions, RetryableError, UnconfirmedError, version_of
from .urls import client_of, is_http, shown

SIGNED_SECONDS = 3600
_BLOCK_BYTES = 16 << 20  # of one request through fsspec, which has no streams that can be resumed
# What ``storage_options`` of s3fs may say, and what botocore calls it.
_CREDENTIALS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_UNDERSTOOD = {*_CREDENTIALS, "anon", "profile", "endpoint_url", "client_kwargs", "config_kwargs"}

_VARIABLES = ("ENDPOINT_URL", "ENDPOINT_URL_S3", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE")

_lock = threading.Lock()

T = TypeVar("T")


def client_class(url: str) -> Any:
    """Return the class of the clients of a url's store."""
    import fsspec

    scheme = url.split("://", 1)[0].lower()
    try:
        return fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        package = client_of(scheme).partition(".")[0] or "adlfs"  # which alone registers abfss://
        raise not_installed(f"{shown(url)}: {scheme}://", package) from error


def file_system(url: str, requests: RequestOptions) -> Any:
    """Return the client of a url's store."""
    client = client_class(url)
    kinds = {base.__module__.partition(".")[0] for base in client.__mro__}
    files = client(**{**client._get_kwargs_from_urls(url), **_settings(kinds, requests), **requests.options})
    _leave_tries(files, kinds)
    return files


def _settings(kinds: set[str], requests: RequestOptions) -> dict[str, Any]:
    """Return the settings of a client, of these packages, with which `retrying` alone counts tries and time.

    They make a client of our own, beside that of other code in the process, for which fsspec would give the same one.
    """
    if "s3fs" in kinds:
        seconds = {"connect_timeout": requests.timeout / 4, "read_timeout": requests.timeout}
        return {"config_kwargs": {**seconds, "retries": {"total_max_attempts": 1}, "signature_version": "s3v4"}}
    return {"use_listings_cache": False} if kinds & {"gcsfs", "adlfs"} else {}


def _leave_tries(files: Any, kinds: set[str]) -> None:
    """Have a client make each request once: its tries would multiply with those of `retrying`.

    Neither gcsfs nor adlfs has a setting for it. Clients of other packages are taken as they are.
    """
    if "s3fs" in kinds:
        files.retries = 1
    elif "gcsfs" in kinds and (once := getattr(type(files)._request, "__wrapped__", None)):
        files._request = MethodType(once, files)
    elif "adlfs" in kinds and (policy := getattr(files.service_client._config, "retry_policy", None)):
        policy.total_retries = 0


def store_info(url: str, requests: RequestOptions) -> ObjectInfo:
    """Return size and version of an object, as its store's client says."""
    files = file_system(url, requests)
    files.invalidate_cache()  # an object replaced since the last listing must not pass for the old one
    info = files.info(url)
    if info.get("type") == "directory" or info.get("size") is None:
        raise StorageError(f"{shown(url)}: no object but a directory; name an object in it")
    return ObjectInfo(int(info["size"]), version_of(info))


def store_pieces(url: str, start: int, stop: int, requests: RequestOptions) -> Iterator[bytes]:
    """Yield bytes ``start`` to ``stop`` of an object by its store's client, in pieces."""
    from fsspec.spec import AbstractFileSystem

    files = file_system(url, requests)
    # Where fsspec reads a range through a file, as of hf://, the file would read ahead more than is wanted.
    exact = {"cache_type": "none"} if type(files).cat_file is AbstractFileSystem.cat_file else {}
    while start < stop:
        end = min(stop, start + _BLOCK_BYTES)
        piece = files.cat_file(url, start=start, end=end, **exact)
        if len(piece) != end - start:
            size = store_info(url, requests).size
            if size < stop:
                raise too_short(url, size, stop)
            raise RetryableError(f"{len(piece)} bytes came where {end - start} were asked for, from byte {start}")
        yield piece
        start = end


def by_http_or_store(url: str, requests: RequestOptions, by_http: Callable[[str], T], by_store: Callable[[], T]) -> T:
    """Return what is at a url, or at a signed one of its object, or what its store's client gives where this signs none.

    If the client serves what a signed url refuses, the process stops signing urls of this store.
    """
    if is_http(url):
        return by_http(url)
    store = server_of(url)
    target = signed(url, requests, SIGNED_SECONDS) if store.signs else None
    if target is not None:
        try:
            return by_http(target)
        except RetryableError as error:
            raise RetryableError(f"{target.split('/')[2]}: {error}") from error
        except UnconfirmedError as doubt:
            if isinstance(doubt.error, MissingObjectError) or server_of(target).ranges:
                raise
    result = by_store()
    store.signs = False
    return result


def signed(url: str, requests: RequestOptions, seconds: int) -> str | None:
    """Return an http url that reads an object without further credentials for so long; None where none can be made."""
    try:
        target = _sign_s3(url, requests.options, seconds) if url.lower().startswith(("s3://", "s3a://")) else None
        if target is None:
            target = file_system(url, requests).sign(url, expiration=seconds)
    except ConfigError:
        raise
    except Exception:  # most file systems sign nothing, and some only with some kinds of credentials
        return None
    return target if isinstance(target, str) and is_http(target) else None


def _sign_s3(url: str, options: Mapping[str, Any], seconds: int) -> str | None:
    """Return the url that botocore makes; None where only s3fs knows what the options mean."""
    bucket, _, key = url.split("://", 1)[1].partition("/")
    if not key or not _UNDERSTOOD.issuperset(options):
        return None
    quarter = int(time.time() / seconds * 4)
    target: str = _presigned(json.dumps(options, sort_keys=True), _environment(), bucket, key, seconds, quarter)
    return target


def _environment() -> tuple[str | None, ...]:
    """Return the variables that say which server and which account; a program may set them anew."""
    return tuple(os.environ.get(f"AWS_{name}") for name in _VARIABLES)


@functools.lru_cache(4096)
def _presigned(
    options: str, environment: tuple[str | None, ...], bucket: str, key: str, seconds: int, quarter: int
) -> str:
    """Return a signed url, made anew in each quarter of the time for which it is good."""
    with _lock:
        client = _s3_client(options, environment)
    url: str = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=seconds)
    return url


@functools.lru_cache(16)
def _s3_client(options_json: str, environment: tuple[str | None, ...]) -> Any:
    """Return a client of botocore, which threads share, for options as JSON and the variables that it reads."""
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import Session

    options = json.loads(options_json)
    connection = {name: options[key] for key, name in _CREDENTIALS.items() if options.get(key)}
    connection |= {"endpoint_url": options["endpoint_url"]} if options.get("endpoint_url") else {}
    settings = {"signature_version": "s3v4", **(options.get("config_kwargs") or {})}
    if options.get("anon"):
        settings["signature_version"] = UNSIGNED
    arguments = connection | (options.get("client_kwargs") or {})
    return Session(profile=options.get("profile")).create_client("s3", config=Config(**settings), **arguments)
