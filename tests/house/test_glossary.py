"""One word for one thing: public names are those listed here, and texts for users avoid terms that they would not know."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

import pipeline
from pipeline.cli import COMMANDS
from pipeline.cli.main import load_command, make_parser
from tests.helpers.documentation import PAGES
from tests.helpers.shard_samples import make_documents, write_named
from tests.house.sources import FILES, PRODUCT, ROOT, nodes, relative

ERRORS = (
    "BuildError ConfigError CorruptShardError DamagedInputError InputError ManifestError MissingDatasetError"
    " MissingInputError MissingObjectError PlanChangedError ShardError ShardwrightError StateError StorageError"
    " TruncatedShardError"
)
NAMES = (
    "Document DocumentBatch Drop Limits Manifest PackedBatch Progress Recipe RequestOptions RuleSet"
    " Schedule ShardDataset Stream TextDataset assert_resumes build export_tokens fim find import_tokens load_rules"
    " load_tokenizer merge_receipts merge_states mix near_vectors open_dataset transform write_shards"
)
STREAM_METHODS = (
    "apply batch check_receipts decode documents filter insert insertions load_state_dict loader map map_documents metrics"
    " numpy pack plan prefetch receipt rows sample seen set_epoch set_weights shard shuffle skip source_names state_dict"
    " stats take to tokenizer trace view vocab_size without"
)
DATASET_METHODS = {
    "ShardDataset": "from_texts from_tokens sources split subset upsample",
    "TextDataset": "split subset",
}
BATCH_KEYS = {
    "input_ids": "int64",
    "labels": "int64",
    "valid_tokens": "int",
    "position_ids": "int64",
    "document_ids": "int64",
    "cu_seqlens": "int32",
    "cu_seqlens_unpadded": "int32",
    "max_seqlen": "int",
    "attention_mask": "int64",
    "source": "int64",
    "source_ids": "int64",
    "shift": "int",
    "ignored": "int64",
}
COMMAND_NAMES = (
    "build card diff doctor export find import inspect near-vectors plan redact texts trace try-rules verify view"
)

# Private dialect, which texts for users do not use.
TERMS_NOT_TO_USE = [
    *"aim alike anew anywhere goods held_out ours story theirs".split(),
    *("cursor stream", "in its hands", "knows ahead", "let go", "nobody knows", "read head", "say nothing"),
    *("stood before", "streams with cursors", "the place", "through with", "without a word"),
]
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(map(re.escape, TERMS_NOT_TO_USE))})\b", re.IGNORECASE)


def public_methods(owner: type) -> dict[str, Any]:
    """Return the methods that this project gives a class, without those of torch."""
    names = [name for name in dir(owner) if not name.startswith("_") and not hasattr(IterableDataset, name)]
    return {name: getattr(owner, name) for name in names}


def test_the_public_names_are_those_listed() -> None:
    assert sorted(pipeline.__all__) == sorted([*ERRORS.split(), *NAMES.split(), "errors"])
    assert sorted(COMMANDS) == COMMAND_NAMES.split()


def test_the_methods_of_streams_are_those_listed() -> None:
    assert sorted(public_methods(pipeline.Stream)) == STREAM_METHODS.split()
    for name, methods in DATASET_METHODS.items():
        own = public_methods(getattr(pipeline, name)).keys() - public_methods(pipeline.Stream).keys()
        assert sorted(own) == methods.split()


def type_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else type(value).__name__


def test_batches_have_the_keys_listed_and_no_others(tmp_path: Path) -> None:
    data = pipeline.ShardDataset.from_tokens(np.arange(1, 4_001, dtype=np.uint16), lengths=[40] * 100, epochs=1)
    streams = (
        data.pack(64, boundaries=True, pad_to_multiple_of=4),
        data.pack(64, shift="divisors", boundaries=True),
        data.pack(64, best_fit=True, boundaries=True),
        data.sample(64, boundaries=True, document_ids=True),
        data.documents(),
        pipeline.mix({"all": data}, {"all": 1}, stopping_strategy="first_exhausted").pack(64, source=True),
        pipeline.ShardDataset(
            write_named(tmp_path / "named", [(name, make_documents(40)) for name in ("a", "b")]), epochs=1
        ).pack(64, boundaries=True, source=True),
    )
    types = {key: type_name(value) for stream in streams for batch in stream.batch(4) for key, value in batch.items()}
    stored = next(iter(data.pack(64, boundaries=True).batch(4, dtype="stored")))
    assert types | {"ignored": type_name(stored["ignored"])} == BATCH_KEYS
    assert stored.keys() <= BATCH_KEYS.keys()


def test_the_docs_have_one_table_of_all_keys_with_their_types() -> None:
    section = PAGES["docs/train.md"].split("## Keys of a batch\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| *(\w+)[^|]*\|", section, re.MULTILINE)
    assert dict(rows) == BATCH_KEYS
    assert len(rows) == len(BATCH_KEYS)


# Texts for users


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield the help of each command, and from the sources of scripts their docstring and the help of each flag."""
    yield "shardwright", make_parser("shardwright").format_help()
    for name in COMMANDS:
        yield f"shardwright {name}", load_command(name).make_parser(name).format_help()
    for path in (path for path in FILES if path.parent == ROOT / "scripts"):
        yield path.name, ast.get_docstring(nodes(path)[0]) or ""  # type: ignore[arg-type]
        for node in nodes(path):
            if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
                yield path.name, str(node.value.value)


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of the package, its public names, and their methods."""
    yield "pipeline", pipeline.__doc__ or ""
    for name in pipeline.__all__:
        value = getattr(pipeline, name)
        yield name, inspect.getdoc(value) or ""
        if name in ("Stream", "ShardDataset", "TextDataset"):
            yield from ((f"{name}.{key}", inspect.getdoc(each) or "") for key, each in public_methods(value).items())


def messages() -> Iterator[tuple[str, str]]:
    """Yield the texts of errors, warnings and what commands say: all strings of the sources but docstrings, by line."""
    for path in FILES:
        unsaid = {id(part) for node in nodes(path) if isinstance(node, ast.JoinedStr) for part in node.values}
        unsaid |= {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        for node in nodes(path):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            strings = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if id(node) not in unsaid and strings and "{" not in (text := "…".join(strings)):  # no style sheet
                yield f"{relative(path)}:{getattr(node, 'lineno', 0)}", text


def terms_in(text: str) -> list[str]:
    """Return the terms not to use that a text holds, across lines and in any case."""
    return [term.lower() for term in FORBIDDEN.findall(re.sub(r"\s+", " ", text))]


@pytest.mark.parametrize(
    "texts", [lambda: PAGES.items(), help_texts, docstrings, messages], ids=["pages", "help", "docstrings", "messages"]
)
def test_texts_for_users_avoid_terms_not_to_use(texts: Any) -> None:
    assert terms_in("Nobody\n  knows what stood before.") == ["nobody knows", "stood before"]
    assert [(name, term) for name, text in texts() for term in terms_in(text)] == []


def test_every_public_docstring_begins_with_a_sentence_and_has_an_example() -> None:
    """Examples run as doctests of their modules."""
    texts = {name: text.partition("\n") for name, text in docstrings() if name not in ERRORS.split()}
    assert [name for name, (first, _, rest) in texts.items() if first[-1:] != "." or rest[:1].strip()] == []
    assert {name for name, (_, _, rest) in texts.items() if ">>> " not in rest} == {"pipeline", "errors"}


@cache
def known_flags() -> frozenset[str]:
    """Return the flags of the commands and scripts, and those of other programs that pages name."""
    known = set("--nproc-per-node --nnodes --rdzv-backend --rdzv-endpoint".split())  # of torchrun; below, of Slurm
    known |= set("--nodes --ntasks-per-node --gpus-per-node --cpus-per-task --requeue --signal --open-mode".split())
    known |= set("--head --address --port --num-cpus --block".split())  # of Ray
    known |= {"--all", "--prefix"}  # of git checkout-index
    known |= set("--input --output-prefix --tokenizer-type --append-eod --data-path".split())  # of Megatron-LM
    known |= {"--train-data-path", "--valid-data-path"}  # of Megatron-LM
    for name in COMMANDS:
        known |= {flag for action in load_command(name).make_parser(name)._actions for flag in action.option_strings}
    for path in (ROOT / "scripts").glob("*.py"):
        known |= set(re.findall(r'"(--[a-z][a-z-]*)"', path.read_text(encoding="utf-8")))
    return frozenset(known)


def test_the_pages_name_only_flags_that_exist() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "".join(PAGES.values())))
    assert len(named) > 20
    assert named - known_flags() == set()


def test_the_readme_is_short_and_every_section_is_under_a_screen() -> None:
    assert PAGES["README.md"].count("\n") <= 200
    prose = re.sub(r"```.*?```", lambda block: re.sub(r"(?m)^#", "", block[0]), PAGES["README.md"], flags=re.DOTALL)
    sections = re.split(r"(?m)^## ", prose)
    assert {section.split("\n")[0]: lines for section in sections if (lines := section.count("\n")) > 46} == {}
    names = [section.split("\n")[0] for section in sections[1:]]
    assert names[:4] == ["Which when", "Promises", "Compared with others", "Install"]
    assert names[4:] == ["Build", "Train", "Architecture", "Acknowledgments"]


def test_every_type_that_a_caller_may_pass_is_a_name_of_the_package() -> None:
    classes = {node.name for path in PRODUCT for node in nodes(path) if isinstance(node, ast.ClassDef)}
    public = [getattr(pipeline, name) for name in NAMES.split()]
    methods = public_methods(pipeline.Stream).values()
    functions = [*filter(inspect.isfunction, [*public, *methods])]
    functions += [pipeline.ShardDataset.__init__, pipeline.TextDataset.__init__]
    given = [(name, str(hint)) for each in functions for name, hint in each.__annotations__.items() if name != "return"]
    named = {word for name, hint in given for word in re.findall(r"\b[A-Z]\w+", hint) if word in classes}
    assert len(named) > 5
    assert named - {*pipeline.__all__} <= {"Settings"}  # which are written by their names
