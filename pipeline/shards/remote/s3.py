"""Signed urls of S3 objects, by which they are read as any http object is.

`botocore` signs them. ``s3fs`` can sign too, but to load it takes longer than to make a first batch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

# What ``storage_options`` of s3fs may say, and what botocore calls it.
_CREDENTIALS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_UNDERSTOOD = {*_CREDENTIALS, "anon", "profile", "endpoint_url", "client_kwargs", "config_kwargs"}

_clients: dict[str, Any] = {}
_lock = threading.Lock()


def sign_s3(url: str, options: Mapping[str, Any], seconds: int) -> str | None:
    """Return an http url that reads an object for so long; None where only s3fs knows what the options mean.

    Raises what botocore raises where there are no credentials.
    """
    bucket, _, key = url.split("://", 1)[1].partition("/")
    if not key or not _UNDERSTOOD.issuperset(options):
        return None
    signed: str = _client(options).generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=seconds
    )
    return signed


def _client(options: Mapping[str, Any]) -> Any:
    """Return a client, which threads share, made once for the same options."""
    known = json.dumps(options, sort_keys=True, default=repr)
    with _lock:
        if known not in _clients:
            _clients[known] = _made(options)
        return _clients[known]


def _made(options: Mapping[str, Any]) -> Any:
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import Session

    settings = {"signature_version": "s3v4", **(options.get("config_kwargs") or {})}
    if options.get("anon"):
        settings["signature_version"] = UNSIGNED
    given = {name: options[key] for key, name in _CREDENTIALS.items() if options.get(key)}
    given |= {"endpoint_url": options["endpoint_url"]} if options.get("endpoint_url") else {}
    given |= options.get("client_kwargs") or {}
    return Session(profile=options.get("profile")).create_client("s3", config=Config(**settings), **given)
