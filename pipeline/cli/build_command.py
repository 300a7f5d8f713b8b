"""``shardwright build``: raw text to verified shards."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pipeline.builder.engines.local import UNIT_TRIES
from pipeline.builder.engines.options import EngineOptions
from pipeline.builder.recipe import RUNNING, Recipe, read_config
from pipeline.builder.setting import GROUPS
from pipeline.builder.transforms.user_functions import with_config_folder, with_folder
from pipeline.errors import ConfigError
from pipeline.objects.request_options import RequestOptions
from pipeline.shards.manifest import Manifest

from .command import Command, Parser
from .flags import REQUEST_FLAGS
from .texts_options import rule_list

DESCRIPTION = """\
Build verified shards from raw text. Run the same command again to continue an interrupted build.

  %(prog)s data/*.jsonl.zst --output shards --tokenizer train:32000 --language en
  %(prog)s web=hf://datasets/org/name wiki=wiki/*.parquet --output shards --tokenizer gpt2 --rules gopher,fineweb"""

FIRST = (
    *("--output", "--config", "--text-key", "--where", "--limit"),
    *("--rules", "--set", "--list-rules", "--language", "--keep-rejected", "--decontaminate"),
    *("--dedup-lines", "--dedup-passages", "--no-dedup"),
    *("--tokenizer", "--val-fraction", "--max-tokens"),
    *("--workers", "--dry-run", "--overwrite"),
)
"""The flags of the first hour, which ``--help`` shows."""

EPILOG = """\
--help-all explains all other flags: of reading, of filters, of duplicates, of shards, of clusters. docs/build.md lists them.

exit status: 0 the dataset is complete; 1 an error, or no document was kept; 2 wrong usage, settings that cannot work,
or a missing input; 130 interrupted: run the same command again"""


GROUP_LINES = "\n".join(f"{group}:" for group in GROUPS)
FLAGS = f"""\
INPUT...              files, directories, globs, braces or urls (s3://, gs://, az://, https://, hf://datasets/ID:CONFIG);
                      name=INPUT names the source, for --max-tokens and pipeline.mix, unless a file has this whole name
--output              directory of the dataset, here or in a bucket (s3://bucket/name, gs://, az://)
--work DIR            directory in which a build into a bucket works (default: NAME.build here)
--config FILE         YAML file of these settings; flags override it
{GROUP_LINES}
SETTINGS
filters:
--set RULE.min=N      change one limit of the rules, as in --set words.min=20 --set words.max=9000
--list-rules          show the rule sets, their limits and all measures, and exit
running:
--workers N           worker processes (default: all cores; with --ray-address all CPUs of the cluster)
--engine              local or ray (default: local)
--ray-address         address of a Ray cluster (default: one started here)
--ray-skip-bad-nodes  leave out nodes that cannot work on the build; without this flag, the build names them and ends
--unit-tries N        most tries of a unit of work if its worker dies (default: {UNIT_TRIES})
--dry-run             load every file that the settings name, filter a sample, estimate tokens, disk and time, and write nothing
--overwrite           start over: replace the dataset or the unfinished build in OUTPUT; other files in it stay
--no-lock             for an output on a file system without locks; then make sure that no other build writes there
--quiet               print errors only
{REQUEST_FLAGS}"""


def run(
    inputs: list[str] | None = None,
    *,
    output: str | None = None,
    work: str | None = None,
    config: Path | None = None,
    set: list[str] | None = None,
    list_rules: Annotated[None, rule_list] = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] | None = None,
    ray_address: str | None = None,
    ray_skip_bad_nodes: bool | None = None,
    unit_tries: int | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    lock: bool = True,
    quiet: bool = False,
    tries: int | None = None,
    timeout: float | None = None,
    settings: dict[str, Any],
    parser: Parser,
) -> int:
    named = (inputs, output, work, workers, engine, ray_address, ray_skip_bad_nodes, unit_tries, tries, timeout)
    flags = settings | {name: value for name, value in zip(RUNNING, named, strict=True) if value not in (None, [])}
    from_file = read_config(config) if config else {}
    if set:
        rules = flags.get("rules") or from_file.get("rules", Recipe().rules)
        flags["rules"] = [*(rules.split(",") if isinstance(rules, str) else rules or ()), *",".join(set).split(",")]
    if config and "transforms" in from_file:
        from_file["transforms"] = with_config_folder(from_file["transforms"], config)
    if config and isinstance(from_file.get("extract"), str):
        from_file["extract"] = with_folder(from_file["extract"], config.absolute().parent)
    try:
        inputs, output, recipe, running = _checked({**from_file, **flags})
    except ConfigError as error:
        try:
            _checked(flags)
        except ConfigError:
            raise error from None
        raise ConfigError(f"{config}: {error}") from error  # the config file is wrong, not the flags
    if not inputs or not (output or dry_run):
        parser.error("name at least one INPUT and --output, as flags or in --config")
    if dry_run:
        from pipeline.builder.dry_run import preview

        requests = RequestOptions(tries=running["tries"], timeout=running["timeout"])
        preview(inputs, recipe, output or None, workers=running["workers"] or os.cpu_count() or 1, requests=requests)
        return 0
    from pipeline.builder.build import build
    from pipeline.progress import Progress

    manifest = build(inputs, output, recipe, overwrite=overwrite, lock=lock, progress=Progress(quiet=quiet), **running)
    if not quiet:
        print("\n".join(_closing_lines(parser.prog, output, manifest)), file=sys.stderr)
    if not manifest.counts["kept"]:
        print(f"error: {_why_nothing_is_kept(manifest)}", file=sys.stderr)
        return 1
    return 0


def _checked(settings: Mapping[str, Any]) -> tuple[list[str], str, Recipe, dict[str, Any]]:
    """Return inputs, output or '', recipe and run options. Raises ``ConfigError`` if a value is wrong."""
    running = {name: settings[name] for name in RUNNING if name in settings}
    if "workers" not in running:
        running["workers"] = None if running.get("ray_address") else os.cpu_count() or 1
    recipe = Recipe.from_json({name: value for name, value in settings.items() if name not in RUNNING})
    inputs, output = running.pop("inputs", []), running.pop("output", "")
    work = running.pop("work", None)
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not (isinstance(inputs, list) and all(isinstance(item, str) for item in inputs)):
        raise ConfigError(f"inputs must be text or a list of texts, got {inputs!r}")
    for name, value in (("output", output), ("work", work or "")):
        if not isinstance(value, str):
            raise ConfigError(f"{name} must be the name of a directory, got {value!r}")
    requests = RequestOptions(**{name: running.pop(name) for name in ("tries", "timeout") if name in running})
    EngineOptions(**running)
    return inputs, output, recipe, {**running, "work": work, "tries": requests.tries, "timeout": requests.timeout}


def _why_nothing_is_kept(manifest: Manifest) -> str:
    """Return how many documents were read, and how many each rule or stage dropped."""
    from pipeline.builder.counts.build_stats import BuildStats
    from pipeline.builder.counts.sums import descending
    from pipeline.builder.stages.registry import sections

    stats = BuildStats.from_json(manifest.counts)
    files = f"{len(manifest.inputs):,} input file{'s' * (len(manifest.inputs) != 1)}"
    read = f"no document was kept of {stats.read:,} that were read from {files}"
    changes = [change for section in sections(manifest.counts) for change in section.changes]
    drops = [f"{change.what}: {change.documents:,}" for change in changes if change.documents > 0]
    bad = [f"unreadable ({reason}): {number:,}" for reason, number in descending(stats.bad)]
    if not stats.read:
        size = sum(item["bytes"] for item in manifest.inputs)
        return f"{read} ({'; '.join([f'{size:,} bytes', *bad])}); check the files, --limit and --max-tokens"
    return f"{read}: {'; '.join([*drops, *bad]) or 'see the report'}; loosen what drops most, and add --overwrite"


def _closing_lines(prog: str, output: str, manifest: Manifest) -> list[str]:
    """Return the lines that end a build: the paths of dataset and report, and the command that verifies the dataset."""
    from pipeline.shards.manifest import REPORT_NAME

    documents, tokens = (
        sum(getattr(split, of) for split in manifest.splits.values()) for of in ("documents", "tokens")
    )
    script = Path(sys.argv[0])
    verify = prog.replace("build", "verify") if prog.endswith("build") else "shardwright verify"
    if script.name == "build_shards.py":
        verify = f"python {script.with_name('verify_shards.py')}"
    return [
        f"dataset: {output} ({documents:,} documents, {tokens:,} tokens)",
        f"report:  {output.rstrip('/')}/{REPORT_NAME}",
        f"next:    {verify} {shlex.quote(str(output))}",
    ]


COMMAND = Command(
    run=run,
    flags=FLAGS,
    description=DESCRIPTION,
    epilog=EPILOG,
    brief="INPUT... --output DIR",
    first=FIRST,
    settings=tuple(item.name for item in fields(Recipe)),
    hint="run the same command again to continue",
)
