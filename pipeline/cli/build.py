"""``shardwright build``: raw text to verified shards."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipeline.builder.engine.registry import ENGINES, check_engine
from pipeline.builder.recipe import KEEP, RUNNING, VERIFY, Recipe, read_config
from pipeline.builder.transforms.user_functions import with_config_folder
from pipeline.errors import ConfigError
from pipeline.shards.manifest import Manifest
from pipeline.text.document import ON_ERROR
from pipeline.text.formats import FORMAT_HELP

from .command import Command, Parser
from .rule_list import ListRules, measure_names

DESCRIPTION = """\
Build verified shards from raw text. Run the same command again to continue an interrupted build.

  %(prog)s data/*.jsonl.zst --output shards --tokenizer train:32000 --language en"""

EPILOG = """\
exit status: 0 the dataset is complete; 1 an error, or no document was kept; 2 wrong usage, or a setting that cannot
work; 130 interrupted: run the same command again"""


def _count(value: str) -> int:
    """Return a whole number that may be written as 64_000_000 or 64e6."""
    try:
        return int(value)
    except ValueError:
        if not float(value).is_integer():
            raise
        return int(float(value))


_count.__name__ = "whole number"  # argparse's name for it in errors


def _count_or_share(value: str) -> int | float:
    """Return a whole number, or a share between 0 and 1 written as 0.01 or 1%."""
    share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    return share if 0 < share < 1 else _count(value)


_count_or_share.__name__ = "whole number or share"


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(
        prog, brief="INPUT... --output DIR", description=DESCRIPTION, epilog=f"{measure_names()}\n\n{EPILOG}"
    )
    add = parser.add_argument
    add(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="files, directories, globs, braces or urls (s3://, gs://, az://, https://, hf://datasets/ID:CONFIG); "
        "name=INPUT, where that is no path, names the source, for --max-tokens and "
        "pipeline.mix",
    )
    add("--output", help="directory of the dataset")
    add("--config", type=Path, help="YAML file of these settings; flags override it")

    reading = parser.add_argument_group("reading")
    add = reading.add_argument
    add("--format", help=FORMAT_HELP)
    add("--text-key", help="field or column of the text; dots lead into nested fields (default: text)")
    add("--id-key", help="field or column of the document's id (default: id)")
    add(
        "--no-normalize",
        dest="normalize",
        action="store_false",
        default=None,
        help="keep texts byte for byte, as for code",
    )
    add("--where", help="read only the records of which this holds, as in 'int_score >= 3 and lang in [\"en\"]'")
    add(
        "--scores",
        help="Parquet file of keys of texts (see shardwright texts) and numbers, for rules such as column:quality",
    )
    add("--keep-fields", help="fields to keep in the tables of shards, as in url:str,score:float")
    add("--limit", type=_count, help="read only the first N records, unreadable ones included")
    add(
        "--on-error",
        choices=ON_ERROR,
        help="bad records: stop; records: skip and count (default); skip: also damaged files: what can be read of them is "
        "kept, and what no checksum confirms is counted in the report",
    )
    add(
        "--max-errors",
        type=_count_or_share,
        help="give up when more records than this are bad (default: 1000), or a larger share of them, as 0.01 or 1%%: of "
        "the first 10,000 in input order, and of any more",
    )

    add(
        "--transforms",
        help="functions of your own that edit, drop or multiply documents, as in my_module:drop_blocked, joined by commas; with "
        "names of built-in ones (normalize, clean, language, rules, decontaminate) the whole order",
    )

    judging = parser.add_argument_group("filters")
    add = judging.add_argument
    add("--rules", help="rule sets and rule files, joined by commas; none for none (default: gopher)")
    add("--list-rules", action=ListRules, help="show the rule sets, their limits and all measures, and exit")
    add("--language", help="languages to keep, as in en,de=0.7 (default: all)")
    add("--language-threshold", type=float, help="lowest score that keeps a document (default: 0.65)")
    add("--lid-model", help="fastText model for language identification (default: lid.176.ftz, bundled)")
    add("--decontaminate", help="evaluation sets, joined by commas: documents that share 13 words with one are dropped")
    add(
        "--decontaminate-key",
        help="field or column of the evaluation sets' texts, such as question (default: that of --text-key)",
    )
    add(
        "--keep-rejected",
        action="store_true",
        default=None,
        help="keep rejected documents, with reasons, in rejected.jsonl",
    )

    duplicates = parser.add_argument_group("duplicates")
    add = duplicates.add_argument
    add(
        "--dedup-lines",
        action="store_true",
        default=None,
        help="cut every line that occurs earlier in the corpus: the first one in input order is kept",
    )
    add(
        "--dedup-paragraphs",
        action="store_true",
        default=None,
        help="the same for paragraphs (separated by blank lines)",
    )
    add("--shortest-passage", type=int, help="lines and paragraphs of fewer characters are never cut (default: 30)")
    add("--words-left", type=int, help="documents that were cut to fewer words are dropped (default: 50)")
    add("--no-dedup", dest="dedup", action="store_false", default=None, help="keep duplicate documents")
    add(
        "--dedup-threshold",
        type=float,
        help="estimated Jaccard similarity from which documents are duplicates (default: 0.8)",
    )
    add("--dedup-bands", type=int, help="bands of the MinHash index (default: 14)")
    add("--dedup-rows", type=int, help="rows of each band (default: 8)")
    add("--dedup-num-perm", type=int, help="values of a signature, all of which verify (default: bands x rows)")
    add("--dedup-ngram", type=int, help="words of a shingle (default: 5)")
    add(
        "--dedup-verify",
        choices=VERIFY,
        help="how near duplicates are compared with the threshold: by the estimate of their signatures (default), or exact: "
        "by the shingles of their texts, which are read again",
    )
    add("--dedup-keep", choices=KEEP, help="which of a cluster is kept (default: the first in input order)")
    add(
        "--no-signatures",
        dest="keep_signatures",
        action="store_false",
        default=None,
        help="keep no signatures for later builds to dedup against (460 bytes a document)",
    )
    add("--against", help="earlier datasets, joined by commas: documents that are in one of them are dropped")

    shards = parser.add_argument_group("tokens and shards")
    add = shards.add_argument
    add("--tokenizer", help="Hugging Face name, tokenizer.json, directory, bytes, or train:N (default: train:32000)")
    add("--bos", choices=("never", "always"), help="begin documents with the begin-of-text id (default: never)")
    add("--eos", help="end documents with the end-of-text id: always (default), never, or TOKEN to name another")
    add("--val-fraction", type=float, help="share of documents for validation (default: 0.005)")
    add("--tokens-per-shard", type=_count, help="tokens of a shard (default: 64 million, fewer for small datasets)")
    add(
        "--tokens-per-sample",
        type=_count,
        help="group small documents into tar members of this many tokens (default: no)",
    )
    add(
        "--max-tokens",
        help="most tokens of a source, as in web=5e9,wiki=1e9, or of each: its files are read in an order drawn by --seed, until "
        "what dedup leaves fills the quota; with --limit, a sample of what that reads",
    )
    add(
        "--seed",
        type=int,
        help="another seed draws other documents for validation, --max-tokens, tokenizer training and the report's samples; "
        "duplicates are found without it (default: 0)",
    )

    _add_flags({group.title: group for group in (reading, judging, duplicates, shards)})
    running = parser.add_argument_group("running")
    add = running.add_argument
    add("--workers", type=int, help="worker processes (default: all cores)")
    add("--engine", choices=ENGINES, help="local or ray (default: local)")
    add("--ray-address", help="address of a Ray cluster (default: one started here)")
    add(
        "--dry-run",
        action="store_true",
        help="load every file named, filter a sample, tell expected tokens, disk and time, write nothing",
    )
    add("--overwrite", action="store_true", help="discard what OUTPUT holds and start over")
    add(
        "--no-lock",
        dest="lock",
        action="store_false",
        help="for an output on a file system without locks: make sure yourself that no other build works there",
    )
    add("--quiet", action="store_true", help="print errors only")
    return parser


def _add_flags(groups: Mapping[str | None, argparse._ArgumentGroup]) -> None:
    """Add the flags of the settings that describe theirs themselves (`recipe.flag`)."""
    for setting in fields(Recipe):
        if "help" in setting.metadata:
            group = groups[setting.metadata["group"]]
            group.add_argument(f"--{setting.name.replace('_', '-')}", help=setting.metadata["help"])


def run(options: argparse.Namespace, parser: Parser) -> int:
    flags = vars(options).copy()
    dry_run, overwrite, lock, quiet = (flags.pop(name) for name in ("dry_run", "overwrite", "lock", "quiet"))
    path = flags.pop("config")
    config = read_config(path) if path else {}
    if "transforms" in config:
        config["transforms"] = with_config_folder(config["transforms"], path)
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    try:
        inputs, output, recipe, running = _checked({**config, **given})
    except ConfigError as error:
        try:
            _checked(given)
        except ConfigError:
            raise error from None
        raise ConfigError(f"{path}: {error}") from error  # not the flags, but the file is wrong
    if not inputs or not (output or dry_run):
        parser.error("name at least one INPUT and --output, as flags or in --config")
    if dry_run:
        from pipeline.builder.dry_run import preview

        preview(inputs, recipe, output or None, workers=running["workers"])
        return 0
    from pipeline.builder.build import build
    from pipeline.builder.counts.progress import Progress

    manifest = build(inputs, output, recipe, overwrite=overwrite, lock=lock, progress=Progress(quiet=quiet), **running)
    if not quiet:
        print("\n".join(_closing_lines(parser.prog, output, manifest)), file=sys.stderr)
    if not manifest.counts["kept"]:
        print(f"error: {_why_nothing_is_kept(manifest)}", file=sys.stderr)
        return 1
    return 0


def _checked(settings: Mapping[str, Any]) -> tuple[list[str], str, Recipe, dict[str, Any]]:
    """Return the inputs, the output or '', the recipe and how it runs. Raises ``ConfigError`` for a value that cannot be."""
    running = {"workers": os.cpu_count() or 1, **{name: settings[name] for name in RUNNING if name in settings}}
    recipe = Recipe.from_json({name: value for name, value in settings.items() if name not in RUNNING})
    inputs, output = running.pop("inputs", []), running.pop("output", "")
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not (isinstance(inputs, list) and all(isinstance(each, str) for each in inputs)):
        raise ConfigError(f"inputs must be text or a list of texts, got {inputs!r}")
    if not isinstance(output, str):
        raise ConfigError(f"output must be the name of a directory, got {output!r}")
    check_engine(**running)
    return inputs, output, recipe, running


def _why_nothing_is_kept(manifest: Manifest) -> str:
    """Say how many documents were read, and what dropped how many of them."""
    from pipeline.builder.counts.stats import BuildStats, descending
    from pipeline.builder.stages.registry import changes

    stats = BuildStats.from_json(manifest.counts)
    files = f"{len(manifest.inputs):,} input file{'s' * (len(manifest.inputs) != 1)}"
    read = f"no document was kept of {stats.read:,} that were read from {files}"
    steps = [f"{change.what}: {change.documents:,}" for change in changes(stats) if change.documents > 0]
    bad = [f"unreadable ({reason}): {number:,}" for reason, number in descending(stats.bad)]
    if not stats.read:
        size = sum(item["bytes"] for item in manifest.inputs)
        return f"{read} ({'; '.join([f'{size:,} bytes', *bad])}); check what is there, --limit and --max-tokens"
    return (
        f"{read}: {'; '.join([*steps, *bad]) or 'see the report'}; loosen the step that drops most, and add --overwrite"
    )


def _closing_lines(prog: str, output: str, manifest: Manifest) -> list[str]:
    """Return what a user needs next: where the dataset and the report are, and the command that checks it."""
    from pipeline.builder.report.html import REPORT_NAME  # which imports all stages: --help needs none

    documents, tokens = (
        sum(getattr(split, of) for split in manifest.splits.values()) for of in ("documents", "tokens")
    )
    script = Path(sys.argv[0])
    verify = prog.replace("build", "verify") if prog.endswith("build") else "shardwright verify"
    if script.name == "build_shards.py":
        verify = f"python {script.with_name('verify_shards.py')}"
    return [
        f"dataset: {output} ({documents:,} documents, {tokens:,} tokens)",
        f"report:  {Path(output, REPORT_NAME)}",
        f"next:    {verify} {shlex.quote(str(output))}",
    ]


COMMAND = Command(
    make_parser=make_parser, run=run, hint="finished units are kept; run the same command again to continue"
)
