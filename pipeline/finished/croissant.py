"""A dataset as Croissant, the JSON-LD of ML Commons that describes datasets (http://mlcommons.org/croissant/1.0)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..shards.manifest import TEXTS_NAME, Manifest
from ..text.fields import parse_fields

_TERMS = (
    "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes isLiveDataset jsonPath key "
    "md5 parentField path recordSet references regex repeated replace samplingRate separator source subField transform"
)
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_TYPES = {"int": "sc:Integer", "float": "sc:Float", "bool": "sc:Boolean"}


def croissant_of(
    manifest: Manifest, name: str, licenses: Sequence[str], description: str, *, url: str | None, date: str | None
) -> dict[str, Any]:
    """Return the Croissant of a dataset: each shard with its size and hash, and the columns of its texts if they are Parquet.

    ``licenses`` are the licences of its documents, ``date`` is the day of its build, ``url`` its place; None: unknown.
    """
    value: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": re.sub(r"[^A-Za-z0-9_.-]", "-", name),
        "description": description,
        "license": list(licenses),
        "identifier": manifest.fingerprint,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": info.name,
                "name": info.name,
                "contentUrl": info.name,
                "contentSize": f"{info.bytes} B",
                "encodingFormat": "application/x-tar",
                "sha256": info.sha256,
            }
            for info in manifest.shards
        ],
    }
    known = {"datePublished": date, "url": url}
    value |= {key: each for key, each in known.items() if each is not None}
    if any(info.name.startswith(f"{TEXTS_NAME}/") and info.name.endswith(".parquet") for info in manifest.files):
        kept = {field.name: field.kind for field in parse_fields(manifest.recipe["settings"].get("keep_fields", ()))}
        columns = dict.fromkeys(("id", "text", "source", "language", "split"), "") | kept
        texts = {"@id": TEXTS_NAME, "name": TEXTS_NAME, "includes": f"{TEXTS_NAME}/*.parquet"}
        value["distribution"].append({"@type": "cr:FileSet", **texts, "encodingFormat": "application/x-parquet"})
        ids: list[str] = []  # mlcroissant refuses white space in an id, escaped or not
        for column in columns:
            id = re.sub(r"[^\w.-]", "-", column)
            while id in ids:
                id += "-"
            ids.append(id)
        fields = [_field(id, column, kind) for id, (column, kind) in zip(ids, columns.items(), strict=True)]
        value["recordSet"] = [{"@type": "cr:RecordSet", "@id": "documents", "name": "documents", "field": fields}]
    return value


def _field(id: str, column: str, kind: str) -> dict[str, Any]:
    source = {"fileSet": {"@id": TEXTS_NAME}, "extract": {"column": column}}
    named = {"@type": "cr:Field", "@id": f"documents/{id}", "name": column}
    return named | {"dataType": _TYPES.get(kind, "sc:Text"), "source": source}
