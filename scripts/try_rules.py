"""``shardwright try-rules`` from a checkout, without an installation."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.cli.main import run_command

main = partial(run_command, "try-rules")

if __name__ == "__main__":
    sys.exit(main())
