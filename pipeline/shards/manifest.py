"""``manifest.json``, which lists the contents of a dataset directory. It is written last: a directory with it is complete."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from ..atomic import write_json
from ..errors import ManifestError, MissingDatasetError, MissingObjectError, did_you_mean
from ..objects.remote_object import read_parsed
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote, local_name, shown
from ..paths import special_kind
from .format import FORMAT_NAME, TOKEN_DTYPES
from .other_data import other_folder

MANIFEST_NAME = "manifest.json"
EXTENTS_NAME = "extents.npz"  # the table of extents of all shards
MAX_MANIFEST = 1 << 30  # the most bytes of a remote manifest
MANIFEST_VERSION = 3
WORK_NAME = ".build"  # the folder with the results of an unfinished build
PLAN_NAME = "plan.json"  # in that folder: the plan of the build
LOCK_NAME = "lock"  # in that folder: the lock of the process that builds
OWNER_NAME = ".build-owner.json"  # in a bucket: which build writes there
TEXTS_NAME = "texts"  # the folder of the documents' texts, if they are kept
SIGNATURES_NAME = "signatures"  # the folder of signatures, with which later builds compare their documents
TOKENIZER_NAME = "tokenizer.json"
REPORT_NAME, REJECTED_NAME = "report.html", "rejected.jsonl"  # for people: nothing reads them
REDACTING_NAME = ".redacting.json"  # the next manifest, while a redaction replaces shards
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_SAFE_PATH = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*\Z")  # with one folder at most


class ShardInfo(NamedTuple):
    """A shard's entry in the manifest: sizes, the hash of the file, the checksums of its index.

    ``index_crc32`` covers the starts and lengths of documents, ``table_crc32`` their keys and the checksums of their tokens.
    The footer of the shard states both, so a shard of another build is refused when it is opened. ``source`` is the name of
    the input that all its documents come from, '' if the inputs had no names.
    """

    name: str
    documents: int
    tokens: int
    bytes: int
    sha256: str
    index_crc32: int
    table_crc32: int
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        value = dict(zip(self._fields, self, strict=True))
        if not self.source:
            del value["source"]
        return value


class FileInfo(NamedTuple):
    """The manifest's entry for a file beside it: name, size in bytes, and hash."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: str | Path, name: str) -> FileInfo:
        """Return the entry of the file at ``path``, which the manifest calls ``name``."""
        with open(path, "rb") as file:
            return cls(name, os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True)
class Split:
    """The shards of one split, in order."""

    shards: tuple[ShardInfo, ...] = ()

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete dataset: its tokens, where they came from and how they were made.

    ``dtype`` is ``"<u2"`` or ``"<u4"``. ``tokenizer`` holds ``name``, ``sha256``, ``vocab_size``, ``eos_id``,
    ``bos_id`` and ``special_ids``. ``splits`` maps names to a ``Split``: its ``shards``, and the sums ``documents`` and
    ``tokens``. ``extents`` is the file of the table of extents (`pipeline.shards.extents.table_file`). ``recipe``, ``inputs`` and
    ``counts`` are plain JSON from the build. ``files`` are the other files that a build writes beside the shards: the
    tokenizer, signatures, the report. ``redactions`` are plain JSON, oldest first: ``date``, ``reason``, ``documents`` (``key``,
    ``shard``, number in it, ``tokens``, ``language``) and ``files``, the sha256 of each changed file ``before`` and ``after``.

    >>> extents = FileInfo("extents.npz", 0, "")
    >>> manifest = Manifest("<u2", {"sha256": "", "vocab_size": 257, "eos_id": 256}, {"train": Split()}, extents)
    >>> Manifest.parse(orjson.dumps(manifest.to_json())) == manifest, manifest.split("train").tokens
    (True, 0)
    """

    dtype: str
    tokenizer: dict[str, Any]
    splits: dict[str, Split]
    extents: FileInfo
    recipe: dict[str, Any] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    files: tuple[FileInfo, ...] = ()
    redactions: tuple[dict[str, Any], ...] = ()

    @property
    def fingerprint(self) -> str:
        """The sha256 of all that a stream reads: dtype, tokenizer and the shards of every split."""
        return _digest([self.dtype, self.tokenizer.get("sha256"), self._splits_json()])

    @property
    def shards(self) -> list[ShardInfo]:
        """All shards in the order of the table of extents: splits in the order of their names."""
        return [info for _, split in sorted(self.splits.items()) for info in split.shards]

    def original_sha256(self, info: ShardInfo) -> str:
        """Return the sha256 that a shard had before its first redaction, from which `data_fingerprint` is made."""
        hashes = (entry["files"][info.name]["before"] for entry in self.redactions if info.name in entry["files"])
        return next(hashes, info.sha256)

    def data_fingerprint(self, shards: Sequence[ShardInfo]) -> str:
        """Return a hash of the data of a stream of these shards. States of streams hold it; redactions do not change it."""
        hashes = [self.original_sha256(info) for info in shards]
        return _digest([self.dtype, self.tokenizer.get("sha256"), hashes])

    def data_fingerprints(self) -> dict[str, str]:
        """Return the `data_fingerprint` of each split, and of "all splits"."""
        splits = {name: self.data_fingerprint(split.shards) for name, split in self.splits.items()}
        return splits | {"all splits": self.data_fingerprint(self.shards)}

    @property
    def redacted_documents(self) -> list[dict[str, Any]]:
        """The entries of all redacted documents."""
        return [document for entry in self.redactions for document in entry["documents"]]

    @property
    def redacted(self) -> dict[str, list[int]]:
        """The numbers of the redacted documents of each shard that has any, ascending."""
        numbers: dict[str, set[int]] = {}
        for document in self.redacted_documents:
            numbers.setdefault(document["shard"], set()).add(document["number"])
        return {name: sorted(some) for name, some in numbers.items()}

    @property
    def removals(self) -> list[dict[str, Any]]:
        """The removals of documents since the build, oldest first: ``date``, ``reason``, ``keys``, ``tokens`` and ``data``.

        ``data`` is `data_fingerprints` of the dataset that had the documents. Redactions of this dataset come last.
        """
        data, removals = self.data_fingerprints(), [*self.recipe.get("dropped", [])]
        for entry in (one for one in self.redactions if one["documents"]):
            keys, tokens = ([document[name] for document in entry["documents"]] for name in ("key", "tokens"))
            reason = {name: entry[name] for name in ("date", "reason")}
            names = {"names": entry["names"]} if "names" in entry else {}
            removals.append(reason | names | {"keys": keys, "tokens": sum(tokens), "data": data})
        return removals

    def split(self, name: str) -> Split:
        """Return a split by name; raises ``ManifestError`` with the known names if there is none."""
        if name not in self.splits:
            near = did_you_mean(name, self.splits, else_known=False)
            if re.search(r"[\[+]", name):  # as in "train[:25%]" of Hugging Face's datasets
                near = ": a split is a name; .split(val=0.25) draws a share, and split=None takes all splits"
            raise ManifestError(f"no split {name!r} in this dataset{near}; it has {', '.join(sorted(self.splits))}")
        return self.splits[name]

    @property
    def token_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    def write(self, directory: str | Path) -> None:
        """Write ``manifest.json`` atomically; equal manifests give equal bytes."""
        write_json(Path(directory) / MANIFEST_NAME, self.to_json())

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "format": FORMAT_NAME,
            "version": MANIFEST_VERSION,
            "dtype": self.dtype,
            "tokenizer": self.tokenizer,
            "splits": self._splits_json(),
            "recipe": self.recipe,
            "inputs": self.inputs,
            "counts": self.counts,
            "fingerprint": self.fingerprint,
            "extents": self.extents._asdict(),
        }
        if self.files:
            value["files"] = [info._asdict() for info in self.files]
        if self.redactions:
            value["redactions"] = list(self.redactions)
        return value | {"checksum": _digest(value)}

    def _splits_json(self) -> dict[str, Any]:
        return {
            name: {
                "documents": split.documents,
                "tokens": split.tokens,
                "shards": [shard.to_json() for shard in split.shards],
            }
            for name, split in sorted(self.splits.items())
        }

    @classmethod
    def read(cls, directory: str | PathLike[str], requests: RequestOptions | None = None) -> Manifest:
        """Read ``manifest.json`` of a dataset's directory or url (or the file itself); ``requests`` is for urls.

        Raises ``MissingDatasetError`` if it is missing, and ``ManifestError`` if it is unreadable, of another format version,
        contradicts its own sums or fingerprint, or names a file outside its directory. For a url, raises ``StorageError`` if
        it cannot be fetched.
        """
        spec = os.fspath(directory)
        if is_remote(spec):
            base = spec.rstrip("/").removesuffix(f"/{MANIFEST_NAME}")
            url = f"{base}/{MANIFEST_NAME}"
            try:
                return read_parsed(url, MAX_MANIFEST, lambda raw: cls.parse(raw, shown(url)), requests)
            except MissingObjectError:
                raise MissingDatasetError(f"{shown(url)}: no such object; give the url of a complete dataset") from None
        path = Path(local_name(spec))
        path = path if path.name == MANIFEST_NAME else path / MANIFEST_NAME
        if kind := special_kind(path):
            raise ManifestError(f"{path} is {kind}, but a manifest is a file; copy the dataset again")
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            if path.is_symlink():
                raise ManifestError(
                    f"{path}: a link to {os.readlink(path)}, which is not there; fetch that file, or copy the dataset with its "
                    "files in place of links"
                ) from None
            cure = (
                "Give the --output of a build that has finished; running the same build command again completes an "
                "interrupted one"
            )
            if found := other_folder(str(path.parent), MANIFEST_NAME):
                cure = found[0].upper() + found[1:]
            raise MissingDatasetError(
                f"{path}: not there, so no complete dataset is in this directory. {cure}"
            ) from None
        except OSError as error:
            raise ManifestError(f"{path}: cannot be read: {error}") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str | bytes, name: str = MANIFEST_NAME) -> Manifest:
        """Return the manifest that is in a JSON text; errors call it ``name``."""
        try:
            value = orjson.loads(text)
        except ValueError as error:
            raise ManifestError(f"{name}: not JSON: {error}") from error
        if not isinstance(value, dict) or value.get("format") != FORMAT_NAME:
            actual = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise ManifestError(f"{name}: not a {FORMAT_NAME} manifest (format: {actual!r})")
        version = value.get("version")
        if version != MANIFEST_VERSION:
            raise ManifestError(
                f"{name}: format version {version!r}, but this release reads {MANIFEST_VERSION}; "
                "use the release that built it, or build again"
            )
        try:
            manifest = cls(
                dtype=value["dtype"],
                tokenizer=value["tokenizer"],
                splits={
                    split: Split(tuple(_read_shard(shard, name) for shard in entry["shards"]))
                    for split, entry in value["splits"].items()
                },
                extents=_read_file(value["extents"], name, "extents"),
                recipe=value.get("recipe", {}),
                inputs=value.get("inputs", []),
                counts=value.get("counts", {}),
                files=tuple(_read_file(entry, name, "files") for entry in value.get("files", [])),
                redactions=tuple(value.get("redactions", [])),
            )
            stated = {split: (entry["documents"], entry["tokens"]) for split, entry in value["splits"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"{name}: incomplete or malformed: {type(error).__name__} {error}") from error
        if manifest.dtype not in TOKEN_DTYPES:
            raise ManifestError(f"{name}: dtype {manifest.dtype!r} is none of {', '.join(TOKEN_DTYPES)}")
        if problem := _wrong_tokenizer(manifest):
            raise ManifestError(f"{name}: tokenizer: {problem}; it was edited or damaged after the build")
        for split, sums in stated.items():
            counted = (manifest.splits[split].documents, manifest.splits[split].tokens)
            if sums != counted:
                raise ManifestError(f"{name}: split {split!r} states {sums} documents and tokens, its shards {counted}")
        # Equal to `fingerprint`, but from the entries as read.
        fingerprint = _digest([manifest.dtype, manifest.tokenizer.get("sha256"), value["splits"]])
        if value.get("fingerprint") != fingerprint:
            raise ManifestError(
                f"{name}: its fingerprint {value.get('fingerprint')!r} does not cover its contents "
                f"({fingerprint}): it was edited or damaged after the build"
            )
        # The checksum also covers recipe and counts. Manifests of earlier releases have none.
        stated_checksum = value.pop("checksum", None)
        if stated_checksum is not None and stated_checksum != (checksum := _digest(value)):
            raise ManifestError(
                f"{name}: its checksum {stated_checksum!r} does not cover its contents ({checksum}): it was edited or damaged "
                "after the build"
            )
        return manifest


def _wrong_tokenizer(manifest: Manifest) -> str | None:
    """Return what is wrong with the ids in the tokenizer's entry, or None."""
    if not isinstance(manifest.tokenizer, dict):
        return f"{manifest.tokenizer!r} is not an object with fields"
    size, most = manifest.tokenizer.get("vocab_size"), int(np.iinfo(manifest.dtype).max)
    if size is not None and (type(size) is not int or not 0 < size <= most + 1):
        return f"vocab_size {size!r} is no number from 1 to {most + 1}, as many ids as {manifest.token_dtype} can hold"
    eos_id = manifest.tokenizer.get("eos_id")
    if type(eos_id) is not int or not 0 <= eos_id <= most:
        return f"eos_id {eos_id!r} is no id from 0 to {most}, the greatest of {manifest.token_dtype}"
    return None


def _read_file(entry: dict[str, Any], name: str, key: str) -> FileInfo:
    info = FileInfo(*(entry[field] for field in FileInfo._fields))
    plain = isinstance(info.name, str) and (_SAFE_NAME if key == "extents" else _SAFE_PATH).match(info.name)
    if not plain or type(info.bytes) is not int or info.bytes < 0 or not isinstance(info.sha256, str):
        raise ManifestError(f"{name}: {key} must name plain files with size and hash, got {tuple(info)}")
    return info


def is_dataset(directory: str | Path) -> bool:
    """Whether a directory holds a dataset, or an unfinished build of one."""
    path = Path(directory, MANIFEST_NAME)
    if not path.is_file():
        return Path(directory, WORK_NAME, PLAN_NAME).is_file()
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("format") == FORMAT_NAME


def _read_shard(entry: dict[str, Any], name: str) -> ShardInfo:
    info = ShardInfo(*[*(entry[field] for field in ShardInfo._fields[:-1]), entry.get("source", "")])
    if not isinstance(info.name, str) or not _SAFE_NAME.match(info.name):
        raise ManifestError(f"{name}: shard name {info.name!r} is not a plain file name")
    numbers = info.documents, info.tokens, info.bytes, info.index_crc32, info.table_crc32
    if not {*map(type, numbers)} <= {int} or min(numbers) < 0:
        raise ManifestError(f"{name}: shard {info.name!r}: counts must be whole numbers of at least 0, got {numbers}")
    if not isinstance(info.source, str):
        raise ManifestError(f"{name}: shard {info.name!r}: source must be text, got {info.source!r}")
    return info


def _digest(value: object) -> str:
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if not raw.isascii() or b"\x7f" in raw:  # fingerprints are hashes of JSON that escapes these
        raw = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(raw).hexdigest()
