"""``shardwright card``: the README.md of a dataset for the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import yaml

from pipeline.atomic import atomic_file
from pipeline.builder.build_manifest import RUN_NAME
from pipeline.builder.counts.attribution import ATTRIBUTION_NAME
from pipeline.builder.recipe import command_line
from pipeline.builder.signature_store import dataset_names
from pipeline.finished.croissant import croissant_of
from pipeline.finished.training_summary import UNKNOWN, licenses_of, training_summary
from pipeline.objects.request_options import RequestOptions
from pipeline.shards.dataset_folder import DatasetFolder
from pipeline.shards.manifest import MANIFEST_NAME, Manifest

from .command import Command, check_output
from .flags import LocalFile

DESCRIPTION = """\
Print the card (README.md) of a dataset for the Hugging Face hub: how to load it, its counts, its sources and its build.

  %(prog)s shards                            # show it
  %(prog)s shards --output shards/README.md  # then: hf upload NAME shards --repo-type dataset
  %(prog)s shards --croissant                # JSON-LD of ML Commons: shards with hashes, licences, records of kept texts
  %(prog)s shards --eu-summary               # the data parts of the AI Act's public summary of training content

Nothing is uploaded. Licences come from the build's --license or from a kept field license. Domains and dates come from the
kept fields url and date: shardwright build --keep-fields url,date,license."""

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")  # the hub's size categories

FLAGS = """\
DATASET         directory or url of a dataset
--croissant |   write Croissant (JSON-LD) in place of the card
--eu-summary |  write the data parts of the AI Act's summary in place of the card
--output FILE   file to write (default: print the card)"""


def run(
    dataset: str,
    *,
    croissant: bool = False,
    eu_summary: bool = False,
    output: LocalFile | None = None,
    requests: RequestOptions,
) -> int:
    folder = DatasetFolder(dataset, requests)
    [name] = dataset_names([dataset])
    manifest = folder.manifest()
    attribution = json.loads(folder.read_bound(ATTRIBUTION_NAME, manifest) or "{}")
    built = json.loads(folder.read(RUN_NAME) or "{}").get("date", "")[:10] or None
    licenses = licenses_of(manifest, attribution)
    if eu_summary:
        text = training_summary(manifest, name, attribution, built)
    elif croissant:
        names = sorted({one for some in licenses.values() for one in some})
        description = "Token ids of documents, in plain WebDataset tars with an index, for shardwright."
        if removed := "; ".join(map(taken_out, manifest.removals)):
            description += f" Taken out after the build: {removed}."
        value = croissant_of(manifest, name, names, description, url=folder.base if folder.remote else None, date=built)
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    else:
        text = card_of(manifest, name, licenses)
    if output is None:
        print(text, end="")
        return 0
    names = [MANIFEST_NAME, *(info.name for info in manifest.shards), *(info.name for info in manifest.files)]
    check_output(output, () if folder.remote else map(folder.path, names))
    with atomic_file(output) as file:
        file.write(text.encode())
    if not (croissant or eu_summary):
        print(f"{output}: fill in the licence, then: hf upload {name} {folder.base} --repo-type dataset")
    return 0


def card_of(manifest: Manifest, name: str, licenses: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the card of a dataset: the hub's front matter, then Markdown."""
    documents = sum(split.documents for split in manifest.splits.values())
    removed = [f"- {taken_out(one)}" for one in manifest.removals]
    if manifest.redactions:
        removed.append("\nEnd-of-text ids stand in for redacted documents, which the table of splits counts.")
    front = {
        "license": "unknown",
        "task_categories": ["text-generation"],
        "size_categories": [size_category(documents)],
        "configs": [{"config_name": "default", "data_files": _data_files(manifest)}],
    }
    rows = [f"| {name} | {split.documents:,} | {split.tokens:,} |" for name, split in manifest.splits.items()]
    tokenizer, sources = manifest.tokenizer, _sources(manifest, licenses)
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {name}",
        "Token ids of documents, in plain WebDataset tars with an index. Licence: fill in (`license:` above).",
        "\n".join(["| split | documents | tokens |", "| --- | ---: | ---: |", *rows]),
        f"Tokenizer: {tokenizer['name'] or 'not known'}. End of text: id {tokenizer['eos_id']}. Ids: {manifest.token_dtype}.",
        f'```python\nimport pipeline  # shardwright\n\nstream = pipeline.ShardDataset("{name}").pack(2048).batch(8)\n```',
        "## Sources",
        "\n".join(f"- {source}" for source in sources) or "Not recorded.",
    ]
    if removed:
        parts += ["## Taken out after the build", "\n".join(removed)]
    if settings := manifest.recipe.get("settings"):
        command = command_line(settings, [item["source"] for item in manifest.inputs])
        parts += ["## How it was made", f"```sh\n{command}\n```"]
    return "\n\n".join(parts) + "\n"


def taken_out(removal: Mapping[str, Any]) -> str:
    """Return a line on documents that were redacted or dropped."""
    return f"{removal['date'][:10]}: {len(removal['keys']):,} documents of {removal['tokens']:,} tokens ({removal['reason']})"


def size_category(documents: int) -> str:
    """Return the hub's size category for a number of documents.

    >>> size_category(999), size_category(1_000), size_category(10**13)
    ('n<1K', '1K<n<10K', 'n>1T')
    """
    for power, (least, most) in enumerate(zip(("", *_SIZES), _SIZES, strict=False), start=3):
        if documents < 10**power:
            return f"{least}<n<{most}" if least else f"n<{most}"
    return f"n>{_SIZES[-1]}"


def _data_files(manifest: Manifest) -> list[dict[str, Any]]:
    files = []
    for name, split in manifest.splits.items():
        names, pattern = [info.name for info in split.shards], f"{name}-*.tar"
        path: str | list[str] = pattern if all(fnmatchcase(file, pattern) for file in names) else names
        files.append({"split": name, "path": path})
    return files


def _sources(manifest: Manifest, licenses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each source: its name, files, bytes and licences."""
    sizes: dict[str, tuple[int, int]] = {}
    for item in manifest.inputs:
        files, size = sizes.get(item["source"], (0, 0))
        sizes[item["source"]] = files + 1, size + item["bytes"]
    return [
        f"{name or 'unnamed'}: {files:,} files, {size:,} bytes, licence {' or '.join(sorted(licenses.get(name, {UNKNOWN: 0})))}"
        for name, (files, size) in sizes.items()
    ]


COMMAND = Command(run=run, flags=FLAGS, brief="DATASET", description=DESCRIPTION)
