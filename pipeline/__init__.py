"""shardwright: raw text in, training batches out, and nothing lost, doubled or leaked on the way.

    documents -> filters -> dedup -> tokens -> shards      pipeline.build(...), shardwright build   (once)
    shards -> order -> sequences -> batches -> device      pipeline.ShardDataset(...)               (every run)

The rooms in reading order, and what each may import:

    errors.py         every error that is raised on purpose, in one tree
    version.py        the version of this package
    atomic.py         files that appear under their final name only when whole
    atomic_directory.py  directories that do so, and the message for a full disk
    user_cache.py     the user's cache directory
    paths.py          names sorted by the numbers in them; files named twice; pipes and devices
    progress.py       progress of long work on the terminal
    keywords.py       errors of misspelt keywords, which name the nearest one
    notices.py        warnings that name the user's line, and warnings that are logged once
    compiling.py      compiled loops, kept in a cache if it can be written
    daemon_threads.py  threads for jobs that block; a process ends without waiting for them
    signals.py        signals that arrive while a library is imported or called
    integers.py       integers of NumPy as those of Python
    integer_hash.py   hashes of integers, for NumPy and compiled loops
    draws.py          random draws by the hash of a text: validation, quotas and samples
    weak_methods.py   bound methods, and caches of them, that do not keep their objects alive
    objects/          remote objects: http, object stores, a cache. No other room
    shards/           the format: writer, reader, manifest. NumPy, the standard library and objects/
    text/             documents, normalising, tokenizers. Loaded only when text is read
    builder/          raw text -> shards. Never torch, never stream/
    exchange/         ids of other tools -> shards, shards -> formats of other tools. Never torch, never stream/
    finished/         finished datasets: what is in them, what changed; redaction. Never torch, never stream/
    stream/           shards -> batches. Never builder/
    cli/              the commands of `shardwright`. Never torch, never stream/

Names are imported when first used, so that streaming loads nothing that only building needs. Every error class is also
a name of the package: ``pipeline.ConfigError``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Never

from . import errors
from .errors import (
    BuildError,
    ConfigError,
    CorruptShardError,
    DamagedInputError,
    InputError,
    ManifestError,
    MissingDatasetError,
    MissingInputError,
    MissingObjectError,
    PlanChangedError,
    ShardError,
    ShardwrightError,
    StateError,
    StorageError,
    TruncatedShardError,
)
from .keywords import suggesting
from .version import __version__ as __version__

if TYPE_CHECKING:
    from filters.rules.ruleset import RuleSet, load_rules

    from .builder.build import build
    from .builder.limits import Limits
    from .builder.recipe import Recipe
    from .exchange.export import export_tokens
    from .exchange.token_sources import import_tokens
    from .exchange.token_writer import write_shards
    from .finished.find import find
    from .finished.near_vectors import near_vectors
    from .objects.request_options import RequestOptions
    from .progress import Progress
    from .shards.manifest import Manifest
    from .stream.batch.batch_keys import DocumentBatch, PackedBatch
    from .stream.datasets.mix import mix
    from .stream.datasets.open_dataset import open_dataset
    from .stream.datasets.shard_dataset import ShardDataset
    from .stream.datasets.text_dataset import TextDataset
    from .stream.fim import fim
    from .stream.receipts import merge_receipts
    from .stream.schedule import Schedule
    from .stream.state import merge_states
    from .stream.stream import Stream
    from .stream.testing import assert_resumes
    from .text.tokens.tokenizer import load_tokenizer

_HOME = {
    "Limits": "pipeline.builder.limits",
    "Progress": "pipeline.progress",
    "Recipe": "pipeline.builder.recipe",
    "RequestOptions": "pipeline.objects.request_options",
    "RuleSet": "filters.rules.ruleset",
    "Schedule": "pipeline.stream.schedule",
    "ShardDataset": "pipeline.stream.datasets.shard_dataset",
    "TextDataset": "pipeline.stream.datasets.text_dataset",
    "mix": "pipeline.stream.datasets.mix",
    "fim": "pipeline.stream.fim",
    "merge_receipts": "pipeline.stream.receipts",
    "merge_states": "pipeline.stream.state",
    "open_dataset": "pipeline.stream.datasets.open_dataset",
    "assert_resumes": "pipeline.stream.testing",
    "Stream": "pipeline.stream.stream",
    "PackedBatch": "pipeline.stream.batch.batch_keys",
    "DocumentBatch": "pipeline.stream.batch.batch_keys",
    "Manifest": "pipeline.shards.manifest",
    "build": "pipeline.builder.build",
    "export_tokens": "pipeline.exchange.export",
    "find": "pipeline.finished.find",
    "import_tokens": "pipeline.exchange.token_sources",
    "near_vectors": "pipeline.finished.near_vectors",
    "write_shards": "pipeline.exchange.token_writer",
    "load_rules": "filters.rules.ruleset",
    "load_tokenizer": "pipeline.text.tokens.tokenizer",
    "Document": "pipeline.text.document",
    "Drop": "pipeline.text.judging",
    "transform": "pipeline.builder.transforms.user_functions",
}

_ROOMS = ("builder", "shards", "stream", "text")

__all__ = [
    "BuildError",
    "ConfigError",
    "CorruptShardError",
    "DamagedInputError",
    "Document",
    "DocumentBatch",
    "Drop",
    "InputError",
    "Limits",
    "Manifest",
    "ManifestError",
    "MissingDatasetError",
    "MissingInputError",
    "MissingObjectError",
    "PackedBatch",
    "PlanChangedError",
    "Progress",
    "Recipe",
    "RequestOptions",
    "RuleSet",
    "Schedule",
    "ShardDataset",
    "ShardError",
    "ShardwrightError",
    "StateError",
    "StorageError",
    "Stream",
    "TextDataset",
    "TruncatedShardError",
    "assert_resumes",
    "build",
    "errors",
    "export_tokens",
    "fim",
    "find",
    "import_tokens",
    "load_rules",
    "load_tokenizer",
    "merge_receipts",
    "merge_states",
    "mix",
    "near_vectors",
    "open_dataset",
    "transform",
    "write_shards",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _ROOMS:
        near = errors.did_you_mean(name, __all__, else_known=False)
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}{near}")
    try:
        module = importlib.import_module(_HOME.get(name, f"pipeline.{name}"))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("filters"):
            path = getattr(sys.modules.get("filters"), "__file__", None) or "a module"
            raise errors.ConfigError(f"{path} hides the package `filters` of shardwright: rename that file") from error
        if error.name != "torch":
            raise
        raise errors.not_installed(f"pipeline.{name}", "torch") from error
    if name in _ROOMS:
        return module
    value = suggesting(getattr(module, name))
    setattr(module, name, value)  # so that a function pickles: its module has the same one
    return value


class _Package(ModuleType):
    """This package, if it is called: another library has a function of its name."""

    def __call__(self, *arguments: object, **keywords: object) -> Never:
        raise TypeError(
            "`pipeline` is the package of shardwright here, which `import pipeline` named after `from transformers import "
            "pipeline`: write `import pipeline as shardwright`, or import the function by another name"
        )

    def __reduce__(self) -> tuple[Any, tuple[str]]:  # datasets and Ray pickle functions that use this package
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return [*globals(), *_HOME, *_ROOMS]
