"""Urls: which of them name remote objects, how their braces are expanded, and how they are shown without secrets."""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from importlib.util import find_spec
from itertools import islice

from ..errors import ConfigError, ShardwrightError, did_you_mean
from ..paths import literal_root

MOST_NAMES = 1_000_000  # names of one pattern; a larger range is probably mistyped, and would fill the memory
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?\}")
SCHEMES = {"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "memory"}  # known without fsspec
# The clients of stores among fsspec's own. Its other clients read this machine, or open a url inside the url. Some log
# in with this user's keys, to any host that a url names.
_STORES_OF_FSSPEC = {"hdfs", "webhdfs"}
_PLAIN = ("http://", "https://")  # tested first: a dataset has many such urls
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_IPV6 = re.compile(r"\A(https?://)\[[^\]/]*\]", re.IGNORECASE)  # a host by its address
_COLLAPSED = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/(?!/)")
_USER = re.compile(r"\A([a-z0-9+.-]+://)[^/]*@", re.IGNORECASE)
_KEYS = re.compile(r"\A([a-z0-9+.-]+://)[^/@]*:[^/]*@", re.IGNORECASE)  # keys in the url of an object store


def is_remote(spec: str) -> bool:
    """Whether a spec is the url of a remote object. ``file://`` is local; ``pipe:`` and unknown schemes raise.

    >>> is_remote("s3://bucket/a.tar"), is_remote("data/a.tar"), is_remote("file:///data/a.tar")
    (True, False, False)
    >>> is_remote("http://[::1]:8000/a.tar")
    True
    """
    if spec.startswith(_PLAIN) and "::" not in spec:
        return True
    if spec.startswith("pipe:"):
        raise ConfigError(f"{spec!r}: commands are never run; give the url itself, such as s3://bucket/name.tar")
    if "://" not in spec:
        collapsed = _COLLAPSED.match(spec) if ":/" in spec else None
        if collapsed and _is_store(collapsed[1].lower()):
            raise ConfigError(
                f"{spec!r}: this url has lost a slash, probably in a pathlib.Path; give it as text, {collapsed[1]}://..."
            )
        return False
    if keys := _KEYS.match(spec) if not is_http(spec) else None:
        raise ConfigError(
            f"{keys[1]}...@...: keys in the url of an object store are not read; set the environment variables of its "
            "client, or give storage_options"
        )
    if "::" in _IPV6.sub(r"\1", shown(spec)):
        raise ConfigError(
            f"{shown(spec)!r}: chained urls are not opened; give the last url alone, shards are cached anyway"
        )
    match = _SCHEME.match(spec)
    if match is None or match[1].lower() == "file":
        return False
    if not _is_store(scheme := match[1].lower()):
        raise ConfigError(_unknown(spec, scheme))
    return True


def client_of(scheme: str) -> str:
    """Return the module and class of fsspec's client for a scheme, without loading it; '' if there is none."""
    from fsspec.registry import known_implementations, registry

    if client := registry.get(scheme):
        return f"{client.__module__}.{client.__qualname__}"
    return str(known_implementations.get(scheme, {}).get("class", ""))


def _is_store(scheme: str) -> bool:
    """Whether urls of a scheme are opened: the schemes above, and those that another package registered with fsspec."""
    if scheme in SCHEMES:
        return True
    client = client_of(scheme)
    return bool(client) and (not client.startswith("fsspec.") or scheme in _STORES_OF_FSSPEC)


def _unknown(spec: str, scheme: str) -> str:
    """Return the message for a url whose scheme is not opened."""
    from fsspec.registry import known_implementations, registry

    if client_of(scheme):
        return (
            f"{spec!r}: {scheme}:// is not opened: it reads this machine, opens other urls or logs in to any host; give a path, "
            "or the url of a store"
        )
    packages = {name: client_of(name).partition(".")[0] for name in known_implementations if _is_store(name)}
    known = SCHEMES | {name for name in registry if _is_store(name)}
    known |= {name for name, package in packages.items() if find_spec(package)}  # installed packages
    return (
        f"{spec!r}: unknown kind of url{did_you_mean(scheme, known)}; a store of your own needs a client that is registered "
        "with fsspec, best by an entry point of the group fsspec.specs, which all processes see"
    )


def local_name(spec: str) -> str:
    """Return the path of a local spec, which may be a ``file://`` url."""
    if not spec.lower().startswith("file://"):
        return spec
    parts = urllib.parse.urlsplit(spec)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{spec!r}: a file on host {parts.netloc!r} cannot be read; write file:///path")
    return urllib.parse.unquote(parts.path)


def expand_braces(pattern: str, wrong: type[ShardwrightError] = ConfigError) -> list[str]:
    """Return the names that a path or url with braces stands for; raises ``wrong`` if there are none or too many.

    >>> expand_braces("{a,b}-{09..10}.tar")
    ['a-09.tar', 'a-10.tar', 'b-09.tar', 'b-10.tar']
    """
    root = literal_root(pattern) if "{" in pattern and "://" not in pattern else ""
    pattern = pattern[len(root) :]
    if "{" not in pattern:
        return [root + pattern]
    from braceexpand import braceexpand

    too_many = wrong(f"{shown(pattern)} names more than {MOST_NAMES:,} files; is a range mistyped?")
    for first, last, step in _RANGE.findall(pattern):  # before any range is expanded
        if abs(int(last) - int(first)) // max(1, int(step or 1)) >= MOST_NAMES:
            raise too_many
    try:
        names = [root + name for name in islice(braceexpand(pattern, escape=False), MOST_NAMES + 1)]
    except ValueError as error:
        raise wrong(f"{shown(pattern)}: {error}; write a range as {{000000..000127}}") from error
    if len(names) > MOST_NAMES:
        raise too_many
    return names


def is_http(url: str) -> bool:
    """Whether a url is read over http or https."""
    return url.lower().startswith(_PLAIN)


def shown(url: str) -> str:
    """Return a url as messages and files show it: without user, password, query and fragment, which may hold secrets.

    >>> shown("https://me:secret@host/a.tar?X-Amz-Signature=0f3a")
    'https://host/a.tar'
    >>> shown("abfs://container@account/a.tar"), shown("hf://datasets/org/name@main/a.parquet")
    ('abfs://container@account/a.tar', 'hf://datasets/org/name@main/a.parquet')
    """
    return _USER.sub(r"\1", re.split(r"[?#]", url, maxsplit=1)[0]) if is_http(url) else _KEYS.sub(r"\1", url)


def identity(url: str) -> str:
    """Return a name that no other object has: the url as `shown`, and a hash of its query, which may hold secrets.

    >>> identity("https://me:secret@host/a.tar"), identity("https://host/get.tar?f=1") == identity("https://host/get.tar?f=2")
    ('https://host/a.tar', False)
    """
    query = urllib.parse.urlsplit(url).query if is_http(url) else ""
    return f"{shown(url)}?{hashlib.blake2b(query.encode(), digest_size=16).hexdigest()}" if query else shown(url)


def hide_secrets(text: str, url: str) -> str:
    """Return a library's message, which may repeat the url, without the parts that `shown` removes."""
    parts = urllib.parse.urlsplit(url) if is_http(url) else None
    for secret in (parts.query, parts.netloc.rpartition("@")[0], parts.password) if parts is not None else ():
        if secret:
            text = text.replace(secret, "...")
    return text
