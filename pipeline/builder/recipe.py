"""What a build is asked to do: every setting that decides a byte of the result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from filters.language.language import parse_languages
from filters.rules.loader import NO_RULES

from ..errors import ConfigError, did_you_mean
from ..paths import special_kind
from ..text.document import ON_ERROR, OnError
from ..text.fields import parse_fields
from ..text.formats import format_named
from ..text.where import Where
from .dedup.minhash import signature_values
from .dedup.segments import KINDS, LINES, PARAGRAPHS

Keep = Literal["first", "longest"]
Verify = Literal["signatures", "exact"]
Bos = Literal["never", "always"]
KEEP, VERIFY, BOS = (get_args(known) for known in (Keep, Verify, Bos))
RUNNING = ("inputs", "output", "workers", "engine", "ray_address")  # settings of a build beside its recipe

# Metadata of the fields of `Recipe`: what else follows from them.
_NAMED: Mapping[str, object] = {"named": True}  # names of files or datasets: the manifest has them without folders
_OPTIONAL: Mapping[str, object] = {"optional": True}  # the manifest leaves it out where it is not given


def kept_file(group: str, help: str) -> Mapping[str, object]:
    """Return the metadata of a setting that names a file of UTF-8 text, with its flag in a group of the command line.

    A build keeps the contents in its work directory, where `references.kept_file_path` finds them, and the manifest has
    their sha256.
    """
    return {"file": True, **_NAMED, **_OPTIONAL, **flag(group, help)}


def flag(group: str, help: str) -> Mapping[str, object]:
    """Return the metadata of a setting whose flag takes text as it is: the command line has it last in a group."""
    return {"group": group, "help": help}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The settings of a build. Two builds of equal inputs and recipes give equal bytes.

    Workers, engine and everything else that only changes how fast the result appears are no part of it.

    >>> Recipe(language="en, de=0.7").language
    ('en', 'de=0.7')
    >>> Recipe(val_fraction=2)
    Traceback (most recent call last):
    ...
    pipeline.errors.ConfigError: val_fraction must be 0 <= value < 1, got 2
    """

    # reading
    format: str = ""  # what files of any ending are taken as; '': what their endings say
    text_key: str = "text"
    id_key: str = "id"
    normalize: bool = True
    keep_fields: tuple[str, ...] = field(default=(), metadata=_OPTIONAL)  # "url:str": fields that shards keep
    scores: str | None = field(default=None, metadata={**_NAMED, **_OPTIONAL})  # numbers by keys of texts, as Parquet
    where: str | None = field(default=None, metadata=_OPTIONAL)  # which records are read, as in "int_score >= 3"
    limit: int | None = None  # records read, in input order, unreadable ones included
    on_error: OnError = "records"
    max_errors: int | float = 1000  # a share of all records, if it is below 1
    transforms: tuple[str, ...] = field(default=(), metadata=_OPTIONAL)  # "module:function", or the whole order
    # measuring and judging
    rules: tuple[str, ...] = field(default=("gopher",), metadata=_NAMED)
    language: tuple[str, ...] = ()  # "en" or "en=0.7"; none: identify, keep all
    language_threshold: float = 0.65  # datatrove's and DCLM's
    lid_model: str | None = field(default=None, metadata=_NAMED)
    keep_rejected: bool = False
    drop_ids: str | None = field(
        default=None,
        metadata=kept_file(
            "filters", "file of ids, one a line: after dedup, documents that have one of them are dropped"
        ),
    )
    # duplicates
    dedup_lines: bool = False  # cut those that occur earlier in the corpus
    dedup_paragraphs: bool = False
    # What is shorter is not cut: 30 characters are FineWeb's short line, and about the five words below which BFF
    # (https://github.com/allenai/bff) leaves paragraphs alone. CCNet has no such minimum.
    shortest_passage: int = 30
    words_left: int = 50  # that a text must keep when it was cut, else it is dropped: datatrove's ``min_doc_words``
    dedup: bool = True
    dedup_threshold: float = 0.8
    dedup_bands: int = 14
    dedup_rows: int = 8
    dedup_num_perm: int | None = None  # values of a signature; none: as many as the bands use
    dedup_ngram: int = 5
    dedup_keep: Keep = "first"
    dedup_verify: Verify = "signatures"
    keep_signatures: bool = True
    against: tuple[str, ...] = field(default=(), metadata=_NAMED)
    decontaminate: tuple[str, ...] = field(default=(), metadata=_NAMED)
    decontaminate_key: str | None = None  # field of the evaluation sets' texts; none: text_key
    # tokens and shards
    tokenizer: str = field(default="train:32000", metadata=_NAMED)
    bos: Bos = "never"
    eos: str = "always"  # or "never", or the token that ends documents, where the tokenizer's own is another
    val_fraction: float = 0.005
    tokens_per_shard: int | None = None
    tokens_per_sample: int = 0
    max_tokens: tuple[str, ...] = ()  # "web=5000000", or "5000000" for each source
    seed: int = 0  # of what is drawn: validation, quotas, samples, the texts of a trained tokenizer

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _fitting(item.name, getattr(self, item.name), str(item.type)))
        object.__setattr__(self, "rules", tuple(name for name in self.rules if name != NO_RULES))
        _between("val_fraction", self.val_fraction, 0, 1, open_end=True)
        _between("dedup_threshold", self.dedup_threshold, 0, 1)
        _between("language_threshold", self.language_threshold, 0, 1)
        parse_languages(self.language, self.language_threshold)
        optional = ("dedup_num_perm", "limit", "tokens_per_shard")
        for name in ("dedup_bands", "dedup_rows", "dedup_ngram", "shortest_passage", *optional):
            if name not in optional or getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        if isinstance(self.max_errors, float) and 0 < self.max_errors < 1:
            pass  # a share
        else:
            _whole("max_errors", self.max_errors, 0, " or a share between 0 and 1")
        for name in ("tokens_per_sample", "words_left"):
            _whole(name, getattr(self, name), 0)
        _whole("seed", self.seed, None)
        if self.format != "":
            format_named(self.format)
        _one_of("on_error", self.on_error, ON_ERROR)
        _one_of("dedup_keep", self.dedup_keep, KEEP)
        _one_of("dedup_verify", self.dedup_verify, VERIFY)
        _one_of("bos", self.bos, BOS)
        _ = self.quotas, self.permutations, self.condition, parse_fields(self.keep_fields)

    @property
    def quotas(self) -> dict[str, int]:
        """The most tokens of each source; that of '' holds for every source without one of its own."""
        found: dict[str, int] = {}
        for entry in self.max_tokens:
            source, _, number = entry.rpartition("=")
            try:
                found[source] = int(float(number))
            except (ValueError, OverflowError):
                raise ConfigError(f"max_tokens {entry!r}: write SOURCE=NUMBER, or NUMBER for every source") from None
            _whole(f"max_tokens of {source or 'each source'}", found[source], 0)
        return found

    def quota(self, source: str) -> float:
        """Return the most tokens of a source; infinity without a quota."""
        quotas = self.quotas
        return quotas.get(source, quotas.get("", math.inf))

    @property
    def reads_by_quota(self) -> bool:
        """Whether reading a source ends when its quota is filled; a ``limit`` says by itself what is read."""
        return bool(self.max_tokens) and self.limit is None

    @property
    def condition(self) -> Where | None:
        """What ``where`` says; None where it is not given."""
        return None if self.where is None else Where.parse(self.where)

    @property
    def passage_kinds(self) -> tuple[str, ...]:
        """What is cut where it occurs earlier: lines, paragraphs, both or nothing."""
        wanted = {LINES: self.dedup_lines, PARAGRAPHS: self.dedup_paragraphs}
        return tuple(kind for kind in KINDS if wanted[kind])

    @property
    def end_token(self) -> str | None:
        """The token that ends documents; None: the tokenizer's own."""
        return None if self.eos in ("never", "always") else self.eos

    @property
    def permutations(self) -> int:
        """The values of a signature."""
        return signature_values(self.dedup_bands, self.dedup_rows, self.dedup_num_perm)

    @property
    def kept_files(self) -> dict[str, str]:
        """The files whose contents a build keeps, by the settings that name them."""
        named = {item.name: getattr(self, item.name) for item in fields(self) if "file" in item.metadata}
        return {name: path for name, path in named.items() if path is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, by field name."""
        return {name: list(item) if isinstance(item, tuple) else item for name, item in asdict(self).items()}

    def described(self) -> dict[str, Any]:
        """Return the settings with files by their names alone: a path says nothing about the contents."""
        value = self.to_json() | {"dedup_num_perm": self.permutations}
        value["transforms"] = [spec.rpartition("/")[2] for spec in self.transforms]
        for item in fields(self):
            held = value[item.name]
            if "named" in item.metadata and held:
                value[item.name] = [_name_of(each) for each in held] if isinstance(held, list) else _name_of(held)
            if "optional" in item.metadata and not held:
                del value[item.name]  # so that the manifests of builds without it stay as they are
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Recipe:
        """Build a recipe from settings by name; an unknown name raises ``ConfigError`` offering the nearest.

        Dashes count as underscores, so that a configuration file may spell settings as the flags do.
        """
        known = {item.name for item in fields(cls)}
        settings = {str(name).replace("-", "_"): item for name, item in value.items()}
        for name in settings:
            if name not in known:
                raise ConfigError(f"no setting {name!r}{did_you_mean(name, {*known, *RUNNING})}")
        try:
            return cls(**settings)
        except TypeError as error:
            raise ConfigError(f"a setting has the wrong type: {error}") from error


Names = str | Sequence[str]  # joined by commas, or listed


class Settings(TypedDict, total=False):
    """The settings of `Recipe` as `pipeline.build` takes them: lists may be text that joins their entries by commas."""

    format: str
    text_key: str
    id_key: str
    normalize: bool
    keep_fields: Names
    scores: str | None
    where: str | None
    limit: int | None
    on_error: OnError
    max_errors: int | float
    transforms: str | Sequence[str | Callable[..., object]] | None
    rules: Names
    language: Names
    language_threshold: float
    lid_model: str | None
    keep_rejected: bool
    drop_ids: str | None
    dedup_lines: bool
    dedup_paragraphs: bool
    shortest_passage: int
    words_left: int
    dedup: bool
    dedup_threshold: float
    dedup_bands: int
    dedup_rows: int
    dedup_num_perm: int | None
    dedup_ngram: int
    dedup_keep: Keep
    dedup_verify: Verify
    keep_signatures: bool
    against: Names
    decontaminate: Names
    decontaminate_key: str | None
    tokenizer: str
    bos: Bos
    eos: str
    val_fraction: float
    tokens_per_shard: int | None
    tokens_per_sample: int
    max_tokens: int | Names
    seed: int


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a YAML (or JSON) file of settings; what is not a mapping of names raises ``ConfigError``."""
    import yaml

    if kind := special_kind(path):
        raise ConfigError(f"{path}: {kind}; write the settings to a file")
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must map setting names to values, got {type(value).__name__}")
    return {str(name).replace("-", "_"): item for name, item in value.items()}


def _name_of(entry: str) -> str:
    if "://" in entry:
        return entry.rstrip("/").rpartition("/")[2]
    return Path(entry).resolve().name if Path(entry).exists() else entry


def _fitting(name: str, value: Any, kind: str) -> Any:
    """Return a setting as its annotation says: a path as text, the entries of a list as a tuple of texts.

    Raises ``ConfigError`` for a truth value, text or list of another type. Numbers and choices are checked by their ranges.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind == "tuple[str, ...]":
        return _entries(name, value)
    if kind == "bool" and not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    if kind == "str | None" and value is None:
        return None
    if kind in ("str", "str | None") and not (isinstance(value, str) and (value or name == "format")):
        raise ConfigError(f"{name} must be text{_EXAMPLES.get(name, '')}, got {value!r}")
    return value


def _entries(name: str, value: Any) -> tuple[str, ...]:
    """Return the entries of a setting that is a list, or text that joins them by commas."""
    if isinstance(value, str):
        value = value.split(",")
    elif value is None and name != "rules":  # none of them; but no rules at all are () or "none"
        value = ()
    elif isinstance(value, int) and not isinstance(value, bool) and name == "max_tokens":
        value = [value]
    whole = (int,) if name == "max_tokens" else ()
    if not isinstance(value, list | tuple):
        raise ConfigError(
            f"{name} must be a list, or text that joins its entries by commas{_EXAMPLES[name]}, got {value!r}"
        )
    for each in value:
        if isinstance(each, bool) or not isinstance(each, (str, os.PathLike, *whole)):
            quoted = "; YAML reads some words as other values: quote them" if isinstance(each, bool) else ""
            raise ConfigError(f"{name} must be a list of texts{_EXAMPLES[name]}, got {each!r} among them{quoted}")
    return tuple(text for text in (str(each).strip() for each in value) if text)


_EXAMPLES = {
    "rules": ", as in gopher,own.toml",
    "language": ", as in en,de=0.7",
    "against": " that name datasets",
    "decontaminate": " that name evaluation sets",
    "max_tokens": ", as in web=5e9,wiki=1e9",
    "transforms": ", as in my_module:function",
    "keep_fields": ", as in url:str,score:float",
    "tokenizer": ", as in bytes, train:32000 or the name of one",
    "eos": ": never, always or a token of the vocabulary",
    "text_key": " that names a field",
    "id_key": " that names a field",
    "decontaminate_key": " that names a field",
    "where": ", as in 'int_score >= 3'",
}


def _between(name: str, value: object, low: float, high: float, *, open_end: bool = False) -> None:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (low <= value < high if open_end else low <= value <= high)
    ):
        raise ConfigError(f"{name} must be {low} <= value {'<' if open_end else '<='} {high}, got {value!r}")


def _whole(name: str, value: object, low: int | None, other: str = "") -> None:
    """Check a whole number of at least ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or (low is not None and value < low):
        floor = "" if low is None else f" of at least {low}"
        raise ConfigError(f"{name} must be a whole number{floor}{other}, got {value!r}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        near = did_you_mean(str(value), known, else_known=False)
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}{near}")
