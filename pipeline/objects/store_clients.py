"""Object stores: clients, which fsspec loads, and signed urls, with which objects are read over http.

``botocore`` signs the urls of S3. It loads in a tenth of the time that ``s3fs`` takes.
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
_BLOCK_BYTES = 16 << 20  # bytes of one request through fsspec, which cannot continue a broken answer
# Names in the ``storage_options`` of s3fs, and botocore's names for them.
_CREDENTIALS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_UNDERSTOOD = {*_CREDENTIALS, "anon", "profile", "endpoint_url", "client_kwargs", "config_kwargs"}

_VARIABLES = ("ENDPOINT_URL", "ENDPOINT_URL_S3", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE")

_lock = threading.Lock()

T = TypeVar("T")


def client_class(url: str) -> Any:
    """Return the class of client for a url's store."""
    import fsspec

    scheme = url.split("://", 1)[0].lower()
    try:
        return fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        package = client_of(scheme).partition(".")[0] or "adlfs"  # only adlfs registers abfss://
        raise not_installed(f"{shown(url)}: {scheme}://", package) from error


def file_system(url: str, requests: RequestOptions) -> Any:
    """Return fsspec's client for a url's store, which sends each request once."""
    client = client_class(url)
    kinds = {base.__module__.partition(".")[0] for base in client.__mro__}
    files = client(**{**client._get_kwargs_from_urls(url), **_settings(kinds, requests), **requests.options})
    _disable_retries(files, kinds)
    return files


def _settings(kinds: set[str], requests: RequestOptions) -> dict[str, Any]:
    """Return settings that stop the retries and delays of a client of these packages: `retrying` counts tries and time.

    fsspec shares a client among all code of a process that asks with equal settings. No other code uses these.
    """
    if "s3fs" in kinds:
        seconds = {"connect_timeout": requests.timeout / 4, "read_timeout": requests.timeout}
        return {"config_kwargs": {**seconds, "retries": {"total_max_attempts": 1}, "signature_version": "s3v4"}}
    return {"use_listings_cache": False} if kinds & {"gcsfs", "adlfs"} else {}


def _disable_retries(files: Any, kinds: set[str]) -> None:
    """Make a client send each request once: its retries would multiply those of `retrying`.

    Neither gcsfs nor adlfs has a setting for this. Clients of other packages stay as they are.
    """
    if "s3fs" in kinds:
        files.retries = 1
    elif "gcsfs" in kinds and (once := getattr(type(files)._request, "__wrapped__", None)):
        files._request = MethodType(once, files)
    elif "adlfs" in kinds and (policy := getattr(files.service_client._config, "retry_policy", None)):
        policy.total_retries = 0


def store_info(url: str, requests: RequestOptions) -> ObjectInfo:
    """Return the size and version of an object, from its store's client."""
    files = file_system(url, requests)
    files.invalidate_cache()  # a cached listing may describe an object that was replaced since
    info = files.info(url)
    if info.get("type") == "directory" or info.get("size") is None:
        raise StorageError(f"{shown(url)}: this is a directory; name an object in it")
    return ObjectInfo(int(info["size"]), version_of(info))


def store_pieces(url: str, start: int, stop: int, requests: RequestOptions) -> Iterator[bytes]:
    """Yield bytes ``start`` to ``stop`` of an object in pieces, from its store's client."""
    from fsspec.spec import AbstractFileSystem

    files = file_system(url, requests)
    # For hf:// and others, fsspec reads a range through a file, which by default reads ahead more than is wanted.
    exact = {"cache_type": "none"} if type(files).cat_file is AbstractFileSystem.cat_file else {}
    while start < stop:
        end = min(stop, start + _BLOCK_BYTES)
        piece = files.cat_file(url, start=start, end=end, **exact)
        if len(piece) != end - start:
            size = store_info(url, requests).size
            if size < stop:
                raise too_short(url, size, stop)
            raise RetryableError(f"asked for {end - start} bytes from byte {start}, the store sent {len(piece)}")
        yield piece
        start = end


def by_http_or_store(url: str, requests: RequestOptions, by_http: Callable[[str], T], by_store: Callable[[], T]) -> T:
    """Return ``by_http`` of an http url or of a signed url of the object, or ``by_store()`` if no url can be signed.

    If the client reads an object after its signed url failed, the process signs no more urls of this store.
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
    """Return an http url that reads an object without credentials for ``seconds``; None if none can be made."""
    try:
        target = _sign_s3(url, requests.options, seconds) if url.lower().startswith(("s3://", "s3a://")) else None
        if target is None:
            target = file_system(url, requests).sign(url, expiration=seconds)
    except ConfigError:
        raise
    except Exception:  # most clients cannot sign, and some only with certain credentials
        return None
    return target if isinstance(target, str) and is_http(target) else None


def _sign_s3(url: str, options: Mapping[str, Any], seconds: int) -> str | None:
    """Return the url that botocore signs; None if only s3fs knows the meaning of the options."""
    bucket, _, key = url.split("://", 1)[1].partition("/")
    if not key or not _UNDERSTOOD.issuperset(options):
        return None
    quarter = int(time.time() / seconds * 4)
    environment = tuple(os.environ.get(f"AWS_{name}") for name in _VARIABLES)  # which a program may change
    target: str = _presigned(json.dumps(options, sort_keys=True), environment, bucket, key, seconds, quarter)
    return target


@functools.lru_cache(4096)
def _presigned(
    options: str, environment: tuple[str | None, ...], bucket: str, key: str, seconds: int, quarter: int
) -> str:
    """Return a signed url. A new one is made in each quarter of the time for which it is valid."""
    with _lock:
        client = _s3_client(options, environment)
    url: str = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=seconds)
    return url


@functools.lru_cache(16)
def _s3_client(options_json: str, environment: tuple[str | None, ...]) -> Any:
    """Return botocore's client, which threads share, for options (JSON) and the variables that botocore reads."""
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
