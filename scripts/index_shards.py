"""Write the table of extents of a dataset that has none, so that streams start without reading every shard's index.

    python scripts/index_shards.py DIRECTORY... [--workers N]

Every shard is read once and held to the manifest. The table is written as extents.bin; then manifest.json is replaced by
version 2, which names it. No shard changes. Exit code: 0 done, 1 a shard or manifest is wrong, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.errors import ConfigError, ShardwrightError
from pipeline.shards.extent_file import EXTENTS_NAME
from pipeline.shards.indexing import index_dataset


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "directories", nargs="+", metavar="DIRECTORY", help="datasets: directories with a manifest.json"
    )
    parser.add_argument(
        "--workers", type=int, default=min(8, os.cpu_count() or 1), help="threads that read (default: cores, to 8)"
    )
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more, got {options.workers}")
    for directory in options.directories:
        began = time.monotonic()
        try:
            manifest = index_dataset(directory, workers=options.workers, progress=_show)
        except (ShardwrightError, OSError) as error:
            _show(0, 0)
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 2 if isinstance(error, ConfigError) else 1
        except KeyboardInterrupt:
            print(f"{parser.prog}: interrupted; the dataset is as it was", file=sys.stderr)
            return 130
        shards = len(manifest.shards)
        print(f"{directory}: {EXTENTS_NAME} describes {shards:,} shards ({time.monotonic() - began:.1f} s)")
    return 0


def _show(done: int, total: int) -> None:
    """Draw a line of progress on a terminal; clear it at the end."""
    if sys.stderr.isatty():
        line = f"\r{done / total:4.0%} of {total / 1e6:,.1f} MB" if done < total else "\r\033[K"
        print(line, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
