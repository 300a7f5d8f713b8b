"""Redaction in place: changed files are written to a waiting folder, and each then replaces the old file by a rename.

A killed redaction continues with the same command: redacting a file again changes nothing. While a redaction runs,
``.redacting.json`` holds the new manifest, by which a stream reads shards that were replaced already.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ...atomic import is_temporary, read_json, write_json
from ...atomic_directory import discard, discard_whole, explain_disk_full_errors, result_directory
from ...builder.counts.attribution import ATTRIBUTION_NAME, attributed, attribution_of, merged
from ...builder.outcome import OF_DEDUP
from ...builder.stages.drop_ids import compared
from ...builder.stages.write import texts_name
from ...errors import ConfigError, CorruptShardError, first_few
from ...notices import warn
from ...objects.request_options import RequestOptions
from ...shards.dataset_folder import REPAIR, DatasetFolder, local_directory
from ...shards.extents.extent_table import ExtentTable
from ...shards.extents.table_file import read_table, write_table
from ...shards.format import COLUMN, KEY_COLUMN
from ...shards.manifest import (
    EXTENTS_NAME,
    MANIFEST_NAME,
    REDACTING_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    TEXTS_NAME,
    TOKENIZER_NAME,
    FileInfo,
    Manifest,
    ShardInfo,
    Split,
)
from ...shards.redacted_shard import write_redacted, write_remaining
from ...shards.shard_access import ShardAccess
from ...text.hashes import text_hash
from ...text.tokens.tokenizer import tokenizer_of_dataset
from ...text.tokens.tokenizer_files import CONFIG_NAME
from .certificate import search, write_certificate
from .cleaned_files import Mentions, Removed, cleaner, dropped_counts, texts_of, without_samples
from .workspace import RedactionWorkspace

_DUPLICATES = tuple(outcome.reason for outcome in OF_DEDUP if outcome.reason)
_GROUPED = "tokens_per_sample"  # the setting of builds
REMOVED_NAME = "removed.json"  # the documents as they were, while a redaction runs


Seen = Callable[[Sequence[str]], list[dict[str, Any]]]


class ListedDocument(NamedTuple):
    """A document to redact: its key, its shard and number there, its number of tokens, and its language."""

    key: str
    shard: str
    number: int
    tokens: int
    language: str = ""


def redact(
    dataset: str | Path,
    names: Sequence[str],
    reason: str,
    *,
    texts: bool = False,
    runs: Mapping[str, Seen] | None = None,
    requests: RequestOptions | None = None,
    lock: bool = True,
) -> dict[str, Any] | None:
    """Overwrite documents of a dataset by end-of-text ids; return the certificate, None if nothing was left to do.

    ``names``: keys or ids of documents. ``texts`` allows emptying their kept texts, too. No other document moves, so orders,
    states and traces stay valid. The certificate is in the dataset, as ``redaction-1.json`` and as a page. ``runs`` are functions
    by the names of states: each takes documents as SHARD:NUMBER and returns their spans that a run had, as `Stream.seen` does.

    Raises ``ConfigError`` if a name is unknown, the dataset keeps texts and ``texts`` is False, or another redaction has not
    finished. Raises ``BuildError`` if a build or another redaction works there.
    """
    listed, reason = _listed(names, reason), " ".join(reason.split())
    folder = DatasetFolder(dataset, requests)
    manifest = folder.manifest()
    if any(info.name.startswith(f"{TEXTS_NAME}/") for info in manifest.files) and not texts:
        raise ConfigError(f"{folder.base}: it keeps the texts of its documents; give --texts to empty these, too")
    request = hashlib.sha256("\n".join([reason, *sorted(listed)]).encode()).hexdigest()
    workspace = RedactionWorkspace(folder)
    with workspace.claimed(request, lock=lock):
        return _Redaction(folder, workspace, listed, request).run(reason, runs or {})


def drop(
    dataset: str | Path,
    names: Sequence[str],
    reason: str,
    output: str | Path,
    *,
    requests: RequestOptions | None = None,
) -> Manifest:
    """Write a copy of a dataset without some documents to an empty or new directory, and return its manifest.

    ``names``: keys or ids of documents. Redacted documents are left out, too. The other documents keep their keys and signatures,
    so keys have gaps. Streams have another order, and refuse states of the old dataset.

    Raises ``ConfigError`` if a name is unknown, no document would be left, or ``output`` is not empty.
    """
    folder, path = DatasetFolder(dataset, requests), local_directory(output)
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path}: it is not empty; choose another --drop, or remove it first")
    folder.manifest()
    for left in filter(is_temporary, path.parent.glob(f".{glob.escape(path.name)}.*.tmp")):
        discard_whole(left)  # of a killed command
    with explain_disk_full_errors(path), result_directory(path) as directory:
        workspace = RedactionWorkspace(folder, directory)
        return _Redaction(folder, workspace, _listed(names, reason)).drop(" ".join(reason.split()))


def _listed(names: Sequence[str], reason: str) -> set[str]:
    listed = {compared(name) for name in names} - {""}
    if not listed or not reason.strip():
        raise ConfigError(
            "a redaction needs a reason and at least one key or id; give --reason, and a line for each in --ids"
        )
    return listed


def _hashed(name: str) -> str:
    """Return what the manifest keeps of a listed name: a list that grows then may repeat it, and nobody reads it there."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Redaction:
    def __init__(
        self, folder: DatasetFolder, workspace: RedactionWorkspace, listed: set[str], request: str = ""
    ) -> None:
        self._folder, self._workspace, self._listed, self._request = folder, workspace, listed, request
        self._name = folder.base if folder.remote else os.path.abspath(folder.base)
        self._manifest = folder.manifest()
        self._access = ShardAccess(requests=folder.requests, use_cache=False)

    def run(self, reason: str, runs: Mapping[str, Seen]) -> dict[str, Any] | None:
        begun = self._begun()
        before: list[str] = []
        if begun is None:
            self._workspace.clear()
            documents, rejected, before = self._find(self._listed)
            entry: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason}
            entry |= {"request": self._request, "documents": [document._asdict() for document in documents]}
            entry |= {"rejected": rejected} if rejected else {}
            entry["names"] = sorted({_hashed(name) for name in self._listed.difference(before)})
        else:
            entry = begun.redactions[-1]
            documents = [ListedDocument(**document) for document in entry["documents"]]
        if not documents and not entry.get("rejected"):
            return None
        seen = [
            {"state": name, "seen": [_span(span) for span in run([f"{one.shard}:{one.number}" for one in documents])]}
            for name, run in runs.items()
        ]
        workspace = self._workspace
        if begun is None or begun.redactions != self._manifest.redactions:
            self._replace_files(self._write_beside(begun or self._manifest, entry, documents))
        name = f"redaction-{len(self._manifest.redactions)}"
        is_certified = workspace.is_there(f"{name}.html")
        if seen or not is_certified:  # states may be given once the documents are gone
            certificate = {"dataset": self._name, **self._manifest.redactions[-1], "runs": seen}
            certificate["search"] = (
                read_json(workspace.source(f"{name}.json"))["search"]
                if is_certified
                else search(workspace, self._manifest, self._removed(documents), self._decoder())
            )
            write_certificate(workspace.waiting, name, certificate)
            workspace.put(f"{name}.json")
            workspace.put(f"{name}.html")
        for number in range(len(self._manifest.redactions)):
            workspace.remove(f"extents{number or ''}.npz")
        workspace.clear()  # before the redaction counts as finished: the folder holds the documents as they were
        workspace.remove(REDACTING_NAME)
        return {**read_json(workspace.source(f"{name}.json")), "before": before, "name": name}

    def drop(self, reason: str) -> Manifest:
        self._begun()
        redacted = {document["key"] for document in self._manifest.redacted_documents}
        documents, *_ = self._find(self._listed | redacted, include_redacted=True)
        new = self._write_beside(self._manifest, {}, documents, drop=True)
        if not new.shards:
            raise ConfigError(f"{self._folder.base}: no document would be left; drop fewer")
        for name in (*_hashes(new.shards, new.files), TOKENIZER_NAME, CONFIG_NAME):
            if not self._workspace.target(name).exists() and self._workspace.is_there(name):
                shutil.copyfile(self._workspace.source(name), self._workspace.target(name))
        now = sorted(document for document in documents if document.key not in redacted)
        made: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason}
        made |= {"keys": [document.key for document in now], "tokens": sum(document.tokens for document in now)}
        made["data"] = self._manifest.data_fingerprints()
        made["names"] = sorted(map(_hashed, self._listed))
        dropped = [{"dataset": self._name} | removal for removal in (*self._manifest.removals, made)]
        new = replace(new, redactions=(), recipe={**new.recipe, "dropped": dropped})
        new.write(self._workspace.waiting)
        discard(self._workspace.waiting / "before")
        return new

    def _begun(self) -> Manifest | None:
        """Return the new manifest if this redaction was begun before. Raises ``ConfigError`` if another one is unfinished."""
        running = self._folder.read(REDACTING_NAME)
        begun = self._manifest if running is None else Manifest.parse(running, REDACTING_NAME)
        if running is not None and self._manifest.fingerprint not in begun.redactions[-1]["fingerprint"].values():
            raise ConfigError(
                f"{self._folder.path(REDACTING_NAME)}: an unfinished redaction of another build wrote this file; remove it"
            )
        if begun.redactions and begun.redactions[-1]["request"] == self._request:
            return begun
        if running is not None:
            entry = begun.redactions[-1]
            raise ConfigError(
                f"{self._folder.path(REDACTING_NAME)}: the redaction of {entry['date']} ({entry['reason']}) has not finished; "
                "run its command again first"
            )
        return None

    def _find(self, listed: set[str], *, include_redacted: bool = False) -> tuple[list[ListedDocument], int, list[str]]:
        """Return the listed documents, how many listed names are of documents that the build dropped, and the names of
        documents that were redacted before.

        Redacted documents are left out unless ``include_redacted``. Raises ``ConfigError`` if a name is unknown, or if the build
        dropped a listed document as a duplicate of one that stays.
        """
        documents, unknown, before = list[ListedDocument](), {*listed}, set[str]()
        dropped = self._dropped(listed)
        duplicates = {id: name for name, ids in dropped.items() for id in ids}
        stay, times = set[str](), Counter[str]()  # documents of each listed id
        of_key, of_id = dict[str, str](), dict[str, str]()  # of listed names: the id of that key, the key of that id
        redacted = {} if include_redacted else self._manifest.redacted
        for info in self._manifest.shards:
            index, table = self._access.index_and_table(self._folder.path(info.name), info)
            keys = table[KEY_COLUMN]
            ids = [compared(str(id or "")) for id in table.get("id", keys)]
            found = [n for n, (key, id) in enumerate(zip(keys, ids, strict=True)) if key in listed or id in listed]
            if duplicates:
                stay |= {ids[number] for number in {*range(len(ids))} - {*found}} & duplicates.keys()
            unknown -= {name for number in found for name in (keys[number], ids[number])}
            before |= {keys[number] for number in {*found} & {*redacted.get(info.name, [])}}
            times.update(ids[number] for number in found if ids[number] in listed and ids[number] != keys[number])
            of_key |= {keys[number]: ids[number] for number in found}
            of_id |= {ids[number]: keys[number] for number in found}
            if new := sorted({*found} - {*redacted.get(info.name, [])}):
                lengths, languages = index.lengths.tolist(), table.get("language", [""] * len(keys))
                documents += [ListedDocument(keys[n], info.name, n, lengths[n], languages[n] or "") for n in new]
        gone = {name for name in unknown - dropped.keys() if self._was_removed(name)}
        if nameless := sorted(unknown - dropped.keys() - gone):
            what = f"{len(nameless):,} of {len(listed):,} names are neither key nor id of a document: {first_few(nameless)}"
            if all("names" in one for one in self._manifest.removals):
                cure = "remove them from the list, or look for their texts by shardwright find"
                raise ConfigError(f"{self._folder.base}: {what}; {cure}")
            warn(
                f"{self._folder.base}: {what}; they may be redacted: an earlier release, which redacted here, kept no names"
            )
            gone |= {*nameless}
        if stay:
            id = min(stay)
            raise ConfigError(
                f"{self._folder.base}: {duplicates[id]!r} was dropped as a duplicate of {id!r}, which has its text; "
                f"list {id!r}, too, or remove {REJECTED_NAME} and leave {duplicates[id]!r} out"
            )
        for name in sorted(listed & of_key.keys() & of_id.keys()):
            if of_key[name] != name:
                raise ConfigError(
                    f"{self._folder.base}: {name!r} is the key of one document, whose id is {of_key[name]!r}, and the id of "
                    f"another, whose key is {of_id[name]!r}; list {of_key[name]!r} or {of_id[name]!r}, or both"
                )
        if several := sorted(id for id, count in times.items() if count > 1):
            warn(
                f"{self._folder.base}: {len(several):,} listed ids belong to several documents each, which are all taken out: "
                f"{first_few(several)}"
            )
        return documents, len(unknown - gone), sorted(before | gone)

    def _was_removed(self, name: str) -> bool:
        """Return whether an earlier redaction or drop took out a document, or a rejected one, of this name."""
        entries = (*self._manifest.redactions, *self._manifest.removals)
        return any(_hashed(name) in one.get("names", ()) or name in one.get("keys", ()) for one in entries)

    def _dropped(self, listed: set[str]) -> dict[str, set[str]]:
        """Return the listed names that the build shows as dropped, each with the ids of documents that it may duplicate."""
        dropped: dict[str, set[str]] = {}
        samples = itertools.chain(*self._manifest.counts.get("samples", {}).values())
        info = next((info for info in self._manifest.files if info.name == REJECTED_NAME), None)
        with ExitStack() as stack:
            lines: Iterable[bytes] = ()
            if info is not None and self._workspace.is_there(REJECTED_NAME):
                lines = stack.enter_context(open(self._source(info, {}), "rb"))
            for record in itertools.chain(samples, map(orjson.loads, lines)):
                if (name := compared(str(record.get("id") or ""))) in listed:
                    keepers = {compared(record["kept_id"])} if record.get("kept_id") else set[str]()
                    dropped.setdefault(name, set()).update(keepers)
                    if "kind" not in record and str(record.get("reason")).startswith(_DUPLICATES):
                        raise ConfigError(
                            f"{self._folder.base}: {name!r} was dropped as {record['reason']}, which has its text; this dataset "
                            f"of an earlier release says so in words only: list the kept one in place of {name!r}"
                        )
        return dropped

    def _removed(self, documents: Sequence[ListedDocument]) -> list[Removed]:
        """Return the documents as they were. Tokens are empty if a killed redaction replaced the shard and left no notes."""
        notes = self._workspace.waiting / REMOVED_NAME
        mine = f"{self._name} {self._request}"  # the folder may belong to another bucket of the same name
        if notes.exists() and (noted := read_json(notes))["of"] == mine:
            return [Removed.of_json(value) for value in noted["documents"]]
        removed, tokenizer = list[Removed](), self._manifest.tokenizer
        eos_id, bos_id = tokenizer["eos_id"], tokenizer.get("bos_id")
        decode, kind = self._decoder(), self._manifest.recipe.get("settings", {}).get("keep_texts")
        for shard, some in itertools.groupby(documents, attrgetter("shard")):
            path = str(self._workspace.source(shard))
            kept = texts_of(self._workspace.source(texts_name(shard, kind))) if kind else []
            index, table = self._access.index_and_table(path)
            data = np.memmap(path, np.uint8, "r")
            for key, _, number, tokens, _ in some:
                start = int(index.starts[number])
                ids = np.array(data[start : start + tokens * index.dtype.itemsize]).view(index.dtype)
                gone = bool((ids == eos_id).all())
                row = {name: str(column[number] or "") for name, column in table.items()}
                id, hash, source, language = (row.get(name, "") for name in ("id", "hash", "source", "language"))
                ids = ids[int((ids[:1] == bos_id).sum()) : len(ids) - int((ids[-1:] == eos_id).sum())]
                text = (kept[number] if kept else "") or decode(ids)
                tokens_then, text = (b"", "") if gone else (ids.tobytes(), text)
                removed.append(Removed(key, id, hash, source, language, tokens_then, text))
        rejected = self._rejected_texts({one.hash for one in removed if one.is_decoded})
        removed = [one._replace(text=rejected.get(one.hash, one.text)) for one in removed]
        if self._request:  # a killed copy without the documents begins again
            write_json(notes, {"of": mine, "documents": [one.to_json() for one in removed]})
        return removed

    def _rejected_texts(self, hashes: Set[str]) -> dict[str, str]:
        """Return the texts with these hashes in ``rejected.jsonl``, where the build lists dropped duplicates."""
        if not hashes or not self._workspace.is_there(REJECTED_NAME):
            return {}
        with open(self._workspace.source(REJECTED_NAME), "rb") as lines:
            texts = (
                str(orjson.loads(line).get("text")) for line in lines
            )  # of a cut, the text is not the one of the hash
            return {hash: text for text in texts if (hash := text_hash(text)) in hashes}

    def _decoder(self) -> Callable[[NDArray[Any]], str]:
        """Return the function that decodes ids to text; it returns '' if the dataset has no tokenizer."""
        if not self._manifest.tokenizer.get("sha256"):
            return lambda ids: ""
        return tokenizer_of_dataset(self._folder, self._manifest).decode

    def _write_beside(
        self, base: Manifest, entry: dict[str, Any], documents: Sequence[ListedDocument], *, drop: bool = False
    ) -> Manifest:
        """Write all files that change to the waiting folder, and return the new manifest.

        ``base`` is the manifest with the counts, perhaps cleaned already. With ``drop``, the files lack the documents, and later
        documents move up.
        """
        manifest, workspace, mentions = (
            self._manifest,
            self._workspace,
            Mentions(self._removed(documents), self._listed),
        )
        numbers: dict[str, list[int]] = {}
        for document in documents:
            numbers.setdefault(document.shard, []).append(document.number)
        old, tables, infos = read_table(self._folder, manifest), list[ExtentTable](), dict[str, ShardInfo]()
        for number, info in enumerate(manifest.shards):
            table = old.select([number])
            if chosen := numbers.get(info.name):
                paths = self._source(info, entry), workspace.target(info.name)
                if drop:
                    grouped = manifest.recipe.get("settings", {}).get(_GROUPED, 0)
                    written = write_remaining(*paths, info, chosen, grouped)
                    if written is None:
                        continue
                    info, table = written
                else:
                    info, table = write_redacted(*paths, info, chosen, manifest.tokenizer["eos_id"])
            infos[info.name] = info
            tables.append(table)
        splits = {
            name: Split(tuple(infos[one.name] for one in split.shards if one.name in infos))
            for name, split in manifest.splits.items()
        }
        new = replace(manifest, splits=splits, counts=without_samples(base, mentions))
        if drop:
            new = replace(new, counts=dropped_counts(new.counts, documents, self._removed(documents)))
        name = EXTENTS_NAME if drop else f"extents{len(manifest.redactions) + 1}.npz"
        new = replace(new, extents=write_table(workspace.waiting, tables, manifest.dtype, name))
        files = []
        for file in manifest.files:
            of_shard = f"{Path(file.name).name.partition('.')[0]}.tar"
            if file.name.startswith(f"{TEXTS_NAME}/") and of_shard not in infos:
                continue
            keys = [document.key for document in documents]
            clean = cleaner(file.name, new, numbers.get(of_shard, []), keys, mentions, drop=drop)
            if file.name == ATTRIBUTION_NAME:
                clean = self._count_again(numbers)
            if clean is not None and self._folder.size(file.name) is not None:
                source = workspace.source(file.name) if file.name == REPORT_NAME else self._source(file, entry)
                clean(source, workspace.target(file.name))
                file = FileInfo.of(workspace.target(file.name), file.name)
            files.append(file)
        before, after = _hashes(manifest.shards, manifest.files), _hashes(new.shards, files)
        hashes = {name: {"before": before[name], "after": now} for name, now in after.items() if before[name] != now}
        prints = {"before": manifest.fingerprint, "after": new.fingerprint}
        entry = {**entry, "fingerprint": prints, "files": hashes}
        return replace(new, files=tuple(files), redactions=(*manifest.redactions, entry))

    def _source(self, info: ShardInfo | FileInfo, entry: Mapping[str, Any]) -> Path:
        """Return the path of a file that is as the manifest names it, or as this redaction replaced it before a kill.

        Raises ``CorruptShardError`` if the file has another hash: a new hash in the manifest would hide the damage.
        """
        path = self._workspace.source(info.name)
        replaced = entry.get("files", {}).get(info.name, {}).get("after")
        if (found := FileInfo.of(path, info.name).sha256) not in (info.sha256, replaced):
            cure = f"{REPAIR}{', or remove it' if info.name == REJECTED_NAME else ''}"
            raise CorruptShardError(
                f"{self._folder.path(info.name)}: sha256 {found}, but the manifest says {info.sha256}; {cure}"
            )
        return path

    def _count_again(self, numbers: Mapping[str, list[int]]) -> Callable[[Path, Path], None]:
        """Return the function that counts domains, dates and licences again, without redacted documents.

        ``numbers`` are the documents to redact now, by shard.
        """
        fields, redacted = attributed(self._manifest.recipe["settings"]["keep_fields"]), self._manifest.redacted

        def counted(info: ShardInfo) -> dict[str, Any]:
            index, table = self._access.index_and_table(self._folder.path(info.name))
            gone = {*redacted.get(info.name, ()), *numbers.get(info.name, ())}
            left = [number for number in range(len(index)) if number not in gone]
            columns = {f"{COLUMN}{name}": [table[f"{COLUMN}{name}"][n] for n in left] for name in fields}
            return attribution_of(columns, index.lengths[left].tolist(), fields, info.source)

        return lambda source, target: write_json(target, merged(map(counted, self._manifest.shards)))

    def _replace_files(self, new: Manifest) -> None:
        """Replace files of the dataset by the waiting ones: first the files beside the shards, then shards, then the manifest."""
        shards = {info.name for info in new.shards}
        write_json(self._workspace.target(REDACTING_NAME), new.to_json())
        changed = sorted(new.redactions[-1]["files"], key=lambda name: (name in shards, name))
        for name in (new.extents.name, REDACTING_NAME, *changed):
            if (self._workspace.waiting / name).exists():
                self._workspace.put(name)
        new.write(self._workspace.waiting)
        self._workspace.put(MANIFEST_NAME)
        self._manifest = new


def _span(span: dict[str, Any]) -> dict[str, Any]:
    return {"key": span["origin"]["key"]} | {
        name: span[name] for name in ("step", "rank", "row", "document_begin", "document_end")
    }


def _hashes(shards: Sequence[ShardInfo], files: Sequence[FileInfo]) -> dict[str, str]:
    return {info.name: info.sha256 for info in shards} | {info.name: info.sha256 for info in files}
