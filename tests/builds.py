"""Builds with the settings that several test files share, and the digests of what they write."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.shards.manifest import Manifest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: dict[str, Any] = {
    "tokenizer": "train:400",
    "language": "en=0.2",
    "rules": "gopher_quality",
    "val_fraction": 0.1,
}


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    """Build; workers are forked, because pytest-xdist runs a thread, with which they would be spawned by default."""
    return build(inputs, output, **{"progress": Progress(quiet=True), "start_method": "fork", **SETTINGS, **options})


def digests(directory: Path) -> dict[str, str]:
    """sha256 of everything that identical builds share."""
    names = [path for path in sorted(directory.iterdir()) if path.is_file() and path.name != "run.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in names}
