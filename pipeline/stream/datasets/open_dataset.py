"""Opens any kind of data by its name: a dataset, shards, an array of tokens, raw text."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, ManifestError
from ...objects.request_options import TIMEOUT, TRIES, RequestOptions
from ...objects.urls import expand_braces, is_remote
from ...paths import matching
from ...shards.dataset_folder import size_of
from ...shards.manifest import MANIFEST_NAME
from ...shards.other_data import is_text, other_file, other_folder
from ...shards.shard_names import ENDING, join
from ...shards.token_arrays import map_tokens
from ..arguments import parse_request_options
from ..stream import Stream
from .shard_dataset import ShardDataset
from .sources.shard_data import DEFAULT_CACHE
from .text_dataset import TextDataset

ARRAY_ENDINGS = (".bin", ".npy")


def open_dataset(
    what: Any,
    *,
    split: str = "train",
    tokenizer: Any = None,
    text_key: str | None = None,
    dtype: str | None = None,
    epochs: int | None = None,
    cache_dir: str | os.PathLike[str] | None = DEFAULT_CACHE,
    storage_options: Mapping[str, Any] | None = None,
    tries: int = TRIES,
    timeout: float = TIMEOUT,
) -> Stream:
    """Open data of any kind as a dataset, for ``.shuffle()``, ``.pack()`` and so on.

    - A directory with a manifest, or tars of ``.npy`` members: a `ShardDataset` of ``split``.
    - An array (``.npy``, ``.bin`` with a ``dtype`` such as "uint16", or with the header of llm.c): `ShardDataset.from_tokens`
      of a memmap.
    - Anything else: a `TextDataset` of ``tokenizer`` (default: "bytes") and ``text_key`` (default: "text").

    These classes read paths, globs, braces, lists and urls in the same way. A url without a suffix is a dataset if it has a
    manifest. ``cache_dir`` is passed to `ShardDataset`.

    Raises ``ManifestError`` for a ``split`` other than "train" of an array or of text; ``ConfigError`` for a ``.bin`` without
    ``dtype``, and for a ``tokenizer``, ``text_key`` or ``dtype`` that the data does not need; and the errors of these classes.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"text": "to be"}')
    >>> type(open_dataset(folder / "a.jsonl", tokenizer="bytes")).__name__
    'TextDataset'
    """
    first = _first_name(what)
    remote: dict[str, Any] = {"storage_options": storage_options, "tries": tries, "timeout": timeout}
    if dtype is not None or first.lower().endswith(ARRAY_ENDINGS):
        kind = "an array of tokens"
    elif _holds_shards(first, parse_request_options(**remote)):
        kind = "shards"
    else:
        kind = "text"
        _refuse_other_data(first)
    if split != "train" and kind != "shards":
        raise ManifestError(
            f"{first or type(what).__name__}: {kind} has no split {split!r}; only built datasets have splits"
        )
    for name, value in (("tokenizer", tokenizer), ("text_key", text_key)):
        if value is not None and kind != "text":
            raise ConfigError(f"{first} holds tokens, so {name}={value!r} has nothing to do; leave it out")
    if kind == "shards":
        return ShardDataset(what, split, epochs=epochs, cache_dir=cache_dir, **remote)
    if kind == "text":
        return TextDataset(what, tokenizer or "bytes", text_key=text_key or "text", epochs=epochs, **remote)
    return ShardDataset.from_tokens(_mapped(what, dtype), epochs=epochs)


def _refuse_other_data(path: str) -> None:
    """Raise ``ConfigError`` for a file of another tool, and for a folder that holds such files or datasets and no text."""
    if os.path.isfile(path) and not is_text(path) and (found := other_file(path)):
        raise ConfigError(f"{path}: {found}")
    if os.path.isdir(path) and not any(map(is_text, os.listdir(path))) and (found := other_folder(path, MANIFEST_NAME)):
        raise ConfigError(f"{path}: {found}")


def _mapped(path: Any, dtype: str | None) -> np.ndarray:
    """Return a file of tokens as an array that is mapped into memory."""
    if not isinstance(path, str | os.PathLike) or not os.path.isfile(path):
        raise ConfigError(
            f"an array of tokens is one local file, got {path!r}; several, or a remote one: make shards, by shardwright import"
        )
    return map_tokens(Path(path), dtype)


def _first_name(what: Any) -> str:
    """Return the first path or url that a user names; '' if ``what`` holds records."""
    if isinstance(what, Sequence) and not isinstance(what, str) and what:
        what = what[0]
    return os.fspath(what) if isinstance(what, str | os.PathLike) else ""


def _holds_shards(name: str, requests: RequestOptions) -> bool:
    """Say whether a name is that of shards: a folder with a manifest or with tars of tokens, or a tar of tokens."""
    if is_remote(name):
        path = name.partition("?")[0]
        if name.startswith("hf://") and ":" in name.removeprefix("hf://"):  # a configuration of the hub: texts
            return False
        if Path(path.rstrip("/")).suffix:
            return path.endswith(ENDING)
        # An http server lists no files, so `ShardDataset` has to say what is missing.
        return name.startswith("http") or size_of(join(name, MANIFEST_NAME), requests) is not None
    if os.path.isdir(name):
        if os.path.exists(os.path.join(name, MANIFEST_NAME)):
            return True
        name = os.path.join(name, f"*{ENDING}")
    tars = [path for pattern in expand_braces(name) for path in matching(pattern) if path.endswith(ENDING)]
    return bool(tars) and _begins_with_tokens(tars[0])


def _begins_with_tokens(path: str) -> bool:
    try:
        with tarfile.open(path) as tar:
            member = tar.next()
    except tarfile.TarError:
        return True  # `ShardDataset` says what is wrong with it
    return member is None or member.name.endswith(".npy")
