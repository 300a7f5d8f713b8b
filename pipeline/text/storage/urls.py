"""Urls without the secrets in them, for nothing that authorizes is ever written or shown; and the order of names."""

from __future__ import annotations

import base64
import re
import urllib.parse

from ...errors import ConfigError

_NUMBER = re.compile(r"(\d+)")
_KEYS_IN_URL = re.compile(r"([a-z0-9+.-]+)://[^/@]*:[^/@]*@", re.IGNORECASE)


def is_http(url: str) -> bool:
    """Whether a url is one of http or https."""
    return url.lower().startswith(("http://", "https://"))


def without_secrets(url: str) -> str:
    """Return a url without user, password, query and fragment, as it may be written and shown.

    >>> without_secrets("https://me:pw@host/a.jsonl?X-Amz-Signature=0f3a")
    'https://host/a.jsonl'
    >>> without_secrets("hf://datasets/org/name@main/a.parquet")
    'hf://datasets/org/name@main/a.parquet'

    Raises ``ConfigError`` for keys in a url of another kind, where no client looks for them.
    """
    if not is_http(url) and (found := _KEYS_IN_URL.match(url)) is not None:
        raise ConfigError(
            f"{found[1]}://...@...: keys in the url of an object store are not read; set the variables of its client, or "
            "give storage_options"
        )
    if not is_http(url):
        return url
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def with_authorization(url: str) -> tuple[str, dict[str, str]]:
    """Return an http url without user and password, and the headers that say them.

    >>> with_authorization("https://me:pw@host/a.jsonl")
    ('https://host/a.jsonl', {'Authorization': 'Basic bWU6cHc='})
    """
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    given = urllib.parse.unquote(user).encode()
    headers = {"Authorization": f"Basic {base64.b64encode(given).decode()}"}
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), headers


def same_server(one: str, other: str) -> bool:
    """Whether two urls are of one server, to which the same credentials may be sent."""
    first, second = urllib.parse.urlsplit(one), urllib.parse.urlsplit(other)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


def natural(name: str) -> tuple[list[list[tuple[int, int, str]]], str]:
    """Return a sort key by which part-2 comes before part-10, and a directory's files stand together.

    >>> sorted(["a/part-10", "a/part-2", "a-b/1"], key=natural)
    ['a/part-2', 'a/part-10', 'a-b/1']
    """
    parts = [
        [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in _NUMBER.split(part) if piece]
        for part in name.split("/")
    ]
    return parts, name
