"""Signed urls of S3 objects, by which they are read as any http object is.

Where options or variables state keys, region and endpoint, the url is made here, since to load `botocore` takes half the time
of a first batch. All else is left to `botocore`: profiles, roles, buckets and endpoints with rules of their own. ``s3fs``
can sign too, but takes longer still to load.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

# What ``storage_options`` of s3fs may say, and what botocore calls it.
_CREDENTIALS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_UNDERSTOOD = {*_CREDENTIALS, "anon", "profile", "endpoint_url", "client_kwargs", "config_kwargs"}
# What a url that is made here may depend on. Whatever else is given, botocore judges.
_OPTIONS = {*_CREDENTIALS.values(), "endpoint_url", "region_name"}
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "": "~/.aws/models"}
_VARIABLES = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", *_FILES),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    # These change no url.
    *("AWS_ALLOW_HTTP", "AWS_CA_BUNDLE", "AWS_DEFAULT_OUTPUT", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV"),
    *("AWS_MAX_ATTEMPTS", "AWS_PAGER", "AWS_REGION", "AWS_RETRY_MODE"),
    *("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"),
}
_USUAL_REGION = re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-[a-z]+-\d")  # of the partition whose domain is amazonaws.com
_NAMED_REGION = re.compile(r"(?!.*(aws-global|fips))[a-z0-9-]+")
_IN_HOST = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")  # buckets that stand in the name of a host
_IN_PATH = re.compile(r"(?!.*--)[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_ENDPOINT = re.compile(r"(https?://(?!.*amazonaws)[A-Za-z0-9.-]+(:\d+)?)/?")

_clients: dict[str, Any] = {}
_lock = threading.Lock()


def sign_s3(url: str, options: Mapping[str, Any], seconds: int) -> str | None:
    """Return an http url that reads an object for so long; None where only s3fs knows what the options mean.

    Raises what botocore raises where there are no credentials.
    """
    bucket, _, key = url.split("://", 1)[1].partition("/")
    if not key or not _UNDERSTOOD.issuperset(options):
        return None
    return sign_plain(bucket, key, options, seconds) or sign_by_botocore(bucket, key, options, seconds)


class _Settings(NamedTuple):
    """``key`` is '' for public objects, ``endpoint`` for Amazon's own."""

    key: str
    secret: str
    token: str
    region: str
    endpoint: str


def sign_plain(
    bucket: str, key: str, options: Mapping[str, Any], seconds: int, when: datetime | None = None
) -> str | None:
    """Return the url that botocore would make, without it; None where that takes more than is known here."""
    settings = _plain_settings(options)
    base = _base(settings, bucket) if settings else None
    if settings is None or base is None:
        return None
    url = f"{base}/{urllib.parse.quote(key, safe='/~')}"
    return _presigned(url, settings, seconds, when or datetime.now(UTC)) if settings.key else url


def _plain_settings(options: Mapping[str, Any]) -> _Settings | None:
    """Return what options and variables state; None where botocore may know more."""
    variables = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    files = (os.path.expanduser(variables.get(name, usual)) for name, usual in _FILES.items())
    given = _given(options)
    known = _VARIABLES.issuperset(variables) and all(variables.values()) and _OPTIONS.issuperset(given)
    if not known or options.get("profile") or options.get("config_kwargs") or any(map(os.path.exists, files)):
        return None
    key, secret, token = (given.get(name) or "" for name in _CREDENTIALS.values())
    if not key + secret + token:
        key, secret, token = (variables.get(name.upper(), "") for name in _CREDENTIALS.values())
    if options.get("anon"):
        key = secret = token = ""
    elif not (key and secret):
        return None
    region = given.get("region_name") or variables.get("AWS_DEFAULT_REGION", "us-east-1")
    endpoint = (
        given.get("endpoint_url") or variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL", "")
    )
    return _Settings(key, secret, token, region, endpoint)


def _base(settings: _Settings, bucket: str) -> str | None:
    """Return the url of a bucket, without a slash at its end; None where rules of their own hold for it."""
    if settings.endpoint:
        match = _ENDPOINT.fullmatch(settings.endpoint)
        usual = match and _NAMED_REGION.fullmatch(settings.region) and _IN_PATH.fullmatch(bucket)
        return f"{match[1]}/{bucket}" if match and usual else None
    usual = _USUAL_REGION.fullmatch(settings.region) and _IN_HOST.fullmatch(bucket)
    return f"https://{bucket}.s3.amazonaws.com" if usual else None


def _presigned(url: str, settings: _Settings, seconds: int, when: datetime) -> str:
    """Return a url with a signature of version 4 in its query, over the host alone."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}[parts.scheme])
    now = f"{when:%Y%m%dT%H%M%SZ}"
    scope = (now[:8], settings.region, "s3", "aws4_request")
    fields = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": "/".join((settings.key, *scope)),
        "X-Amz-Date": now,
        "X-Amz-Expires": str(seconds),
        "X-Amz-Security-Token": settings.token,
        "X-Amz-SignedHeaders": "host",
    }
    query = "&".join(f"{name}={urllib.parse.quote(value, safe='~')}" for name, value in fields.items() if value)
    request = f"GET\n{parts.path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    text = "\n".join(("AWS4-HMAC-SHA256", now, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()))
    digest = f"AWS4{settings.secret}".encode()
    for part in (*scope, text):
        digest = hmac.digest(digest, part.encode(), "sha256")
    return f"{url}?{query}&X-Amz-Signature={digest.hex()}"


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options say that is an argument of a client."""
    given = {name: options[key] for key, name in _CREDENTIALS.items() if options.get(key)}
    given |= {"endpoint_url": options["endpoint_url"]} if options.get("endpoint_url") else {}
    return given | (options.get("client_kwargs") or {})


def sign_by_botocore(bucket: str, key: str, options: Mapping[str, Any], seconds: int) -> str:
    """Return the url that botocore makes; raise what it raises where there are no credentials."""
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
    return Session(profile=options.get("profile")).create_client("s3", config=Config(**settings), **_given(options))
