"""The certificate of a redaction, as JSON and as a page: the documents, the changed files, and a search for copies."""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file, write_json
from ...builder.counts.samples import SAMPLE_CHARACTERS
from ...shards.format import KEY_COLUMN
from ...shards.index import ShardIndex
from ...shards.manifest import MANIFEST_NAME, REJECTED_NAME, REPORT_NAME, TEXTS_NAME, Manifest
from ...shards.shard_access import ShardAccess
from .cleaned_files import Removed, texts_of
from .workspace import RedactionWorkspace

_SEARCHED = 1 << 24  # bytes at once
_DECODED = 1 << 22  # bytes of tokens at once
_LEAST = 16  # bytes of a document to look for; fewer bytes are in other documents by chance


def search(
    workspace: RedactionWorkspace,
    manifest: Manifest,
    removed: Sequence[Removed],
    decode: Callable[[NDArray[Any]], str],
) -> dict[str, Any]:
    """Search the files of a dataset for copies of the removed documents. In a bucket, only changed files are searched.

    Whole texts are looked for, without the white space at their ends, or their first 600 characters in samples. ``decode``
    returns the texts of the documents in shards, since the tokens of a copy within a document may differ from those of the
    original. If there is no tokenizer, whose ``decode`` returns '', tokens are looked for. The result has

    - ``files`` and ``bytes`` that were searched, and ``unsearched``, the number and bytes of the other files of a bucket;
    - ``not_searched``, keys of documents of fewer than 16 bytes, or gone when a killed redaction continued elsewhere;
    - ``decoded``, keys of documents that were looked for by a text that was decoded from their tokens and is not their original;
    - ``found``, the file, byte and ``key`` of each copy that is left, and in shards the key of the ``document`` that holds it.
    """
    tokens = {one.key: one.tokens for one in removed}
    if has_text := bool(manifest.tokenizer.get("sha256")):
        ids = ((one, np.frombuffer(one.tokens, manifest.token_dtype)) for one in removed)
        tokens = {one.key: (decode(some) if len(some) else one.text).strip().encode() for one, some in ids}
    texts = {one.key: one.text.strip().encode() for one in removed}
    shown = {one.key: one.text[:SAMPLE_CHARACTERS].strip() for one in removed}
    wanted = {info.name: tokens for info in manifest.shards}
    wanted |= {info.name: texts for info in manifest.files if info.name.startswith(f"{TEXTS_NAME}/")}
    wanted[REJECTED_NAME] = {one.key: _in_json(one.text.strip()) for one in removed}
    wanted[REPORT_NAME] = {key: text.encode() for key, text in shown.items()}
    wanted[MANIFEST_NAME] = {key: _in_json(text) for key, text in shown.items()}
    changed = {MANIFEST_NAME, *manifest.redactions[-1]["files"]}
    names = [name for name in wanted if (not workspace.remote or name in changed) and workspace.is_there(name)]
    sizes = {info.name: info.bytes for info in manifest.shards} | {info.name: info.bytes for info in manifest.files}
    unsearched = [sizes[name] for name in wanted if name in sizes and name not in names]
    size, found = 0, list[dict[str, Any]]()
    for name in names:
        path = workspace.source(name)
        size += path.stat().st_size
        if wanted[name] is not tokens:
            data = _contents(path)
            found += [{"file": name, "byte": at, "key": key} for at, key in occurrences(data, wanted[name])]
            continue
        index, table = ShardAccess(use_cache=False).index_and_table(str(path))
        pieces = _texts(path, index, decode) if has_text else [(_contents(path), index.starts, 0)]
        for data, starts, first in pieces:
            for at, key in occurrences(data, tokens):
                number = first + int(starts.searchsorted(at, side="right")) - 1
                copy = {"byte": int(index.starts[number]), "key": key, "document": table[KEY_COLUMN][number]}
                found.append({"file": name, **copy})
    left_out = [key for key, value in tokens.items() if len(value) < _LEAST]
    searched = {"files": len(names), "bytes": size, "unsearched": {"files": len(unsearched), "bytes": sum(unsearched)}}
    decoded = [one.key for one in removed if one.is_decoded]
    return searched | {"not_searched": left_out, "decoded": decoded, "found": found}


def _in_json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


def _texts(
    path: Path, index: ShardIndex, decode: Callable[[NDArray[Any]], str]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64], int]]:
    """Yield the texts of some documents of a shard as bytes, where the text of each begins, and the number of the first."""
    data, ends = np.memmap(path, np.uint8, "r"), index.starts + index.lengths * index.dtype.itemsize
    pieces = (index.starts - index.starts[:1]) // _DECODED
    for begin, end in itertools.pairwise([*np.flatnonzero(np.diff(pieces, prepend=-1)).tolist(), len(pieces)]):
        spans = zip(index.starts[begin:end].tolist(), ends[begin:end].tolist(), strict=True)
        texts = [decode(np.array(data[start:stop]).view(index.dtype)).encode() for start, stop in spans]
        starts = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
        yield np.frombuffer(b"\xff".join(texts), np.uint8), starts, begin  # a byte that no text has


def _contents(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a file. Kept texts are decompressed, and a page is unescaped."""
    if path.suffix == ".html":
        return np.frombuffer(html.unescape(path.read_text(encoding="utf-8")).encode(), np.uint8)
    if path.parent.name == TEXTS_NAME:
        return np.frombuffer("\n".join(texts_of(path)).encode(), np.uint8)
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def occurrences(
    data: NDArray[np.uint8], wanted: dict[str, bytes], *, piece: int = _SEARCHED
) -> Iterator[tuple[int, str]]:
    """Yield the offset of each occurrence of the ``wanted`` byte strings of 16 bytes or more, and its key.

    >>> list(occurrences(np.frombuffer(b"some text of some more words", np.uint8), {"k": b"text of some more"}))
    [(5, 'k')]
    """
    by_head: dict[bytes, list[str]] = {}
    for key, value in wanted.items():
        if len(value) >= _LEAST:
            by_head.setdefault(value[:_LEAST], []).append(key)
    if not by_head:
        return
    joined = np.frombuffer(b"".join(by_head), np.uint8)
    begins = np.zeros(1 << 16, bool)
    begins[joined[::_LEAST] | joined[1::_LEAST].astype(np.uint16) << 8] = True
    heads = np.sort(_words(joined, np.arange(0, len(joined), _LEAST)))
    for first in range(0, len(data) - _LEAST + 1, piece):
        part = np.asarray(data[first : first + piece + _LEAST - 1])
        pairs = part[:-1] | part[1:].astype(np.uint16) << 8
        at = np.flatnonzero(begins[pairs[: len(part) - _LEAST + 1]])
        words = _words(part, at)
        near = heads[np.minimum(heads.searchsorted(words), len(heads) - 1)]
        for start in (first + at[near == words]).tolist():
            for key in by_head.get(data[start : start + _LEAST].tobytes(), ()):
                if data[start : start + len(wanted[key])].tobytes() == wanted[key]:
                    yield start, key


def _words(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a hash of the first bytes at each offset. Different bytes almost always have different hashes."""
    words = np.zeros(len(at), np.uint64)
    for byte in range(_LEAST):
        words = words * np.uint64(0x9E3779B97F4A7C15) + data[at + byte]
    return words


def write_certificate(folder: Path, name: str, certificate: dict[str, Any]) -> None:
    """Write a certificate as ``NAME.json`` and as ``NAME.html``."""
    from jinja2 import Environment

    write_json(folder / f"{name}.json", certificate)
    with atomic_file(folder / f"{name}.html") as file:
        file.write(Environment(autoescape=True, trim_blocks=True).from_string(_PAGE).render(certificate).encode())


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Redaction of {{ dataset }}</title>
<style>body { font: 15px sans-serif; max-width: 1000px; margin: 2em auto } td, th { text-align: left; padding: 2px 12px 2px 0 }
code { overflow-wrap: anywhere }</style>
<h1>Redaction of {{ dataset }}</h1>
<p>{{ date }}: {{ documents|length }} documents were overwritten by end-of-text ids{% if rejected %}, and
{{ rejected }} that the build had rejected were removed{% endif %}. Reason: {{ reason }}.</p>
<p>Searched after it: {{ search.files }} files, {{ "{:,}".format(search.bytes) }} bytes.
{% if search.found %}<b>Left:</b> {{ search.found|length }} copies, listed below.{% else %}Nothing of them is left.{% endif %}
{% if search.unsearched.files %} Not searched, as the redaction did not change them: {{ search.unsearched.files }} files of the
bucket, {{ "{:,}".format(search.unsearched.bytes) }} bytes.{% endif %}
{% if search.not_searched %} Too short, or gone before the search: {{ search.not_searched|join(", ") }}.{% endif %}
{% if search.decoded %} Searched by the text that the tokens give, which differs from the original text:
{{ search.decoded|join(", ") }}.{% endif %}</p>
{% if search.found %}<table><tr><th>file<th>byte<th>in document<th>copy of
{% for copy in search.found %}<tr><td>{{ copy.file }}<td>{{ copy.byte }}<td>{{ copy.document }}<td>{{ copy.key }}
{% endfor %}</table>{% endif %}
<h2>Documents</h2><table><tr><th>key<th>shard<th>number<th>tokens
{% for one in documents %}<tr><td>{{ one.key }}<td>{{ one.shard }}<td>{{ one.number }}<td>{{ one.tokens }}
{% endfor %}</table>
<h2>Files</h2><table><tr><th>file<th>sha256 before<th>sha256 after
<tr><td>fingerprint<td><code>{{ fingerprint.before }}</code><td><code>{{ fingerprint.after }}</code>
{% for name, hash in files|dictsort %}<tr><td>{{ name }}<td><code>{{ hash.before }}</code><td><code>{{ hash.after }}</code>
{% endfor %}</table>
<h2>Training steps that had the documents</h2>
{% for run in runs %}<h3>{{ run.state }}</h3>{% if run.seen %}<table><tr><th>key<th>step<th>rank<th>row<th>tokens of the document
{% for span in run.seen %}<tr><td>{{ span.key }}<td>{{ span.step }}<td>{{ span.rank }}<td>{{ span.row }}
<td>{{ span.document_begin }} to {{ span.document_end }}
{% endfor %}</table>{% else %}<p>No step.</p>{% endif %}{% else %}<p>No state of a run was given.</p>{% endfor %}
"""
