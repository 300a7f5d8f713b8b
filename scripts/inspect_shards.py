"""``shardwright inspect`` from a checkout, where nothing is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.cli.main import run_command


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("inspect", argv)


if __name__ == "__main__":
    sys.exit(main())
