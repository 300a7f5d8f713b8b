"""``shardwright redact``: takes documents out of a finished dataset, in place."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ConfigError, first_few
from pipeline.finished.redaction.redact import drop as write_without
from pipeline.finished.redaction.redact import redact
from pipeline.objects.request_options import RequestOptions

from .command import Command
from .trace_command import seen_in_run

DESCRIPTION = """\
Overwrite the tokens of documents in a finished dataset by end-of-text ids, in place.

  %(prog)s shards --ids optout.txt --reason "opt-out of 26 November"
  %(prog)s s3://bucket/shards --ids optout.txt --reason "court order 17" --texts
  %(prog)s shards --ids optout.txt --reason "opt-out 18" --drop shards-2
  %(prog)s shards --ids optout.txt --reason "opt-out 18" --state run-1.json run-2.json --global-batch 256

Each line of --ids is the key or the id of a document. Documents keep their lengths, so the order of streams, their states
and traces stay valid, and no label counts in a redacted document. Signatures, rejected documents and the samples of the
report are cleaned, too, and kept texts with --texts. The disk must have room for a second copy of the shards that change.
If the command is killed, run it again to continue. It writes a certificate into the dataset, redaction-1.json and .html:
the hashes of files before and after, the result of a search for copies, and the steps of --state that saw the documents."""

EPILOG = "exit status: 0 done; 1 an error, or a copy is left; 2 wrong usage, or an unknown key; 130 interrupted"
_SHOWN = 10  # steps

FLAGS = """\
DATASET           directory or url of a dataset
--ids FILE        keys or ids of documents, one a line
--reason TEXT     the reason, which the manifest keeps
--drop OUTPUT     leave DATASET as it is, and write a copy without the documents to a new directory
--texts           empty the kept texts of these documents, too
--no-lock         for file systems without locks: see shardwright build --help
--state FILE...   states of runs, as JSON, to list the steps that saw the documents
--global-batch N  with --state: batch size times number of ranks
--ranks N         with --state: ranks of the run"""


def run(
    dataset: str,
    *,
    ids: Path,
    reason: str,
    drop: str | None = None,
    texts: bool = False,
    lock: bool = True,
    state: list[Path] | None = None,
    global_batch: int | None = None,
    ranks: int = 1,
    requests: RequestOptions,
) -> int:
    try:
        names = ids.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--ids {ids}: cannot be read: {error}; give a text file of one key or id a line") from None
    if drop is not None:
        new = write_without(dataset, names, reason, drop, requests=requests)
        print(f"{drop}: {len(new.removals[-1]['keys']):,} documents are left out; begin new runs with it")
        return 0
    runs = {str(path): seen_in_run(dataset, path, global_batch, ranks, requests, "redact") for path in state or ()}
    certificate = redact(dataset, names, reason, texts=texts, runs=runs, requests=requests, lock=lock)
    if certificate is None:
        print(f"{dataset}: nothing to do; these documents were redacted before")
        return 0
    if earlier := certificate["before"]:
        print(f"{dataset}: {len(earlier):,} of the list were redacted before: {first_few(earlier)}")
    documents, found = certificate["documents"], certificate["search"]["found"]
    tokens = sum(document["tokens"] for document in documents)
    copies = f"{len(found)} cop{'y' if len(found) == 1 else 'ies'}"
    rejected = f", {certificate['rejected']:,} rejected documents removed" if "rejected" in certificate else ""
    searched = f" in {certificate['search']['files']:,} files that changed" if "://" in dataset else ""
    print(f"{dataset}: {len(documents):,} documents of {tokens:,} tokens redacted{rejected}; {copies} left{searched}")
    for copy in found:
        place = f"document {copy['document']}" if "document" in copy else f"byte {copy['byte']}"
        print(f"{copy['file']}, {place}: holds a copy of document {copy['key']}")
    for seen in certificate["runs"]:
        lines = [
            f"step {one['step']}, rank {one['rank']}, row {one['row']}: document {one['key']}" for one in seen["seen"]
        ]
        more = f"; {len(lines) - _SHOWN:,} more are in the certificate" if len(lines) > _SHOWN else ""
        print(f"{seen['state']}: {'; '.join(lines[:_SHOWN]) or 'no step had these documents'}{more}")
    print(f"certificate: {dataset.rstrip('/')}/{certificate['name']}.html, and .json")
    return 1 if found else 0


COMMAND = Command(
    run=run,
    flags=FLAGS,
    brief="DATASET --ids FILE --reason TEXT",
    description=DESCRIPTION,
    epilog=EPILOG,
    hint="the same command continues",
)
