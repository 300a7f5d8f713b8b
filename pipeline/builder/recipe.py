"""The recipe of a build: every setting that decides a byte of the result."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from filters.language.identifier import parse_languages
from filters.rules.rule_files import NO_RULES

from ..errors import ConfigError, did_you_mean
from ..paths import special_kind
from ..text.document import ON_ERROR, OnError
from ..text.fields import parse_fields
from ..text.formats import FORMAT_HELP, format_named
from ..text.where import Where
from .dedup.minhash import signature_values
from .dedup.segments import KINDS, LINES, PARAGRAPHS
from .setting import check_whole, deduplicating, filtering, flag_of, reading, setting_of, sharding, types_of

Bos = Literal["never", "always"]
RepeatedPassages = Literal["cut", "count", "drop"]
DecontaminateAction = Literal["drop", "cut", "mark"]
KEEP_TEXTS = ("parquet", "jsonl.zst")
BOS, REPEATED_PASSAGES, DECONTAMINATE_ACTIONS = (
    get_args(known) for known in (Bos, RepeatedPassages, DecontaminateAction)
)
MARK, CONTAMINATED = "mark", "contaminated"  # the field of marked documents
KEEP = ("first", "longest")
_SPDX = re.compile(r"[(]*[A-Za-z0-9][A-Za-z0-9.+-]*[)]*( (AND|OR|WITH) [(]*[A-Za-z0-9][A-Za-z0-9.+-]*[)]*)*")
# Settings of a build beside its recipe.
RUNNING = tuple("inputs output work workers engine ray_address ray_skip_bad_nodes unit_tries tries timeout".split())


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

    # Sources of the default thresholds: the language score 0.65 is datatrove's and DCLM's. A line of fewer than 30 characters is
    # short to FineWeb; 30 characters are also about the five words of the shortest paragraph that BFF
    # (https://github.com/allenai/bff) cuts. CCNet has no such minimum. 50 words left are datatrove's ``min_doc_words``.

    # reading
    format: str = reading("", FORMAT_HELP)
    text_key: str = reading("text", "field or column of the text; dots lead into nested fields")
    id_key: str = reading("id", "field or column of the document's id")
    normalize: bool = reading(True, "keep texts byte for byte, as for code", flag="--no-normalize")
    keep_fields: tuple[str, ...] = reading(
        (), "fields to keep in the tables of shards, as in url:str,score:float", optional=True
    )
    license: tuple[str, ...] = reading(
        (),
        "licences of sources by their SPDX names, as in wiki=CC-BY-SA-4.0, or of all sources, as in CC-BY-4.0; a document's kept "
        "field license overrides them (default: unknown)",
        optional=True,
    )
    extract: str | None = reading(
        None,
        "extract the text of HTML in WARC files: by resiliparse (default), trafilatura, or a function of yours that takes the "
        "bytes and the url, as in my_module:text_of",
        optional=True,
    )
    scores: str | None = reading(
        None,
        "Parquet file with a column of keys (see shardwright texts) and columns of numbers, for rules such as column:quality",
        named=True,
        optional=True,
    )
    where: str | None = reading(
        None, "read only records that meet this condition, as in 'int_score >= 3 and lang in [\"en\"]'", optional=True
    )
    limit: int | None = reading(None, "read only the first N records in input order; bad records count too", least=1)
    on_error: OnError = reading(
        "records",
        "what to do with bad input. stop: end the build. records (default): skip and count bad records, end the build at a "
        "damaged file. skip: also keep what can be read of damaged files; the report counts what no checksum confirms",
        choices=ON_ERROR,
    )
    max_errors: int | float = reading(
        1000,
        "end the build if more than this number of records are bad, or more than a tenth of 100 or more (default: 1000). A "
        "share, such as 0.3 or 30%%, replaces both limits; it is checked from 10,000 records on",
        least=0,
    )
    transforms: tuple[str, ...] = reading(
        (),
        "functions of yours that edit, drop or split documents, as in my_module:drop_blocked, joined by commas. To set the whole "
        "order, list the built-in steps too: normalize, clean, language, rules, decontaminate",
        optional=True,
    )
    # measuring and judging
    rules: tuple[str, ...] = filtering(
        ("gopher",),
        "rule sets, rule files and limits, joined by commas, as in gopher,words.min=20, or none",
        named=True,
    )
    language: tuple[str, ...] = filtering((), "languages to keep, as in en,de=0.7 (default: all)")
    language_threshold: float = filtering(0.65, "lowest score that keeps a document", share="<=")
    lid_model: str | None = filtering(
        None,
        "fastText model for language identification, or ftlangdetect: the lid.176.bin that fasttext-langdetect keeps (default: "
        "lid.176.ftz, bundled)",
        named=True,
    )
    keep_rejected: bool = filtering(False, "keep rejected documents, with reasons, in rejected.jsonl")
    keep_texts: str | None = sharding(
        None, "keep the texts of the dataset in its folder texts/, in this format", choices=KEEP_TEXTS, optional=True
    )
    drop_ids: str | None = filtering(
        None,
        "file of ids, one a line; documents with one of these ids are dropped after dedup",
        named=True,
        optional=True,
    )
    # duplicates
    dedup_lines: bool = deduplicating(False, "cut each line that occurs earlier in the corpus, in input order")
    dedup_paragraphs: bool = deduplicating(
        False, "cut each paragraph that occurs earlier in the corpus; blank lines separate paragraphs"
    )
    shortest_passage: int = deduplicating(30, "never cut lines and paragraphs of fewer characters", least=1)
    words_left: int = deduplicating(50, "drop documents that have fewer words after a cut", least=0)
    dedup_passages: int | None = deduplicating(
        None,
        "after dedup of documents, cut every passage of at least this many words, such as 50, that occurs earlier in the corpus",
        least=10,
        optional=True,
    )
    repeated_passages: RepeatedPassages = deduplicating(
        "cut",
        "what to do with passages that occur earlier. cut (default): cut them. count: only report them. drop: drop the "
        "documents that they fill, and keep the others whole",
        choices=REPEATED_PASSAGES,
        optional=True,
    )
    repeated_share: float = deduplicating(
        0.5,
        "with --repeated-passages drop, drop a document if more than this share of its words is in such passages",
        share="<=",
        optional=True,
    )
    dedup: bool = deduplicating(True, "keep duplicate documents", flag="--no-dedup")
    dedup_threshold: float = deduplicating(0.8, "lowest estimated Jaccard similarity of near duplicates", share="<=")
    dedup_bands: int = deduplicating(14, "bands of the MinHash index", least=1)
    dedup_rows: int = deduplicating(8, "rows of each band", least=1)
    dedup_num_perm: int | None = deduplicating(
        None, "values of a signature; candidates are compared by all of them (default: bands x rows)", least=1
    )
    dedup_ngram: int = deduplicating(5, "words of a shingle", least=1)
    dedup_keep: str = deduplicating(
        "first",
        "document of a cluster to keep: the first in input order (default), the longest, or the one with the highest number in "
        "a field of --keep-fields, as score:quality",
    )
    keep_signatures: bool = deduplicating(
        True, "keep no signatures for later builds to dedup against (460 bytes a document)", flag="--no-signatures"
    )
    against: tuple[str, ...] = deduplicating(
        (), "earlier datasets, joined by commas; duplicates of their documents are dropped", named=True
    )
    decontaminate: tuple[str, ...] = filtering(
        (),
        "evaluation sets, joined by commas; documents that hold an item of one are dropped",
        named=True,
    )
    decontaminate_key: str | None = filtering(
        None, "field or column of the texts in evaluation sets, such as question (default: as --text-key)"
    )
    decontaminate_action: DecontaminateAction = filtering(
        "drop",
        "what to do with a document that holds an item of an evaluation set. drop it (default), cut the words that it shares "
        "with the item, or mark it: the kept field contaminated then names the item",
        choices=DECONTAMINATE_ACTIONS,
        optional=True,
    )
    decontaminate_share: float = filtering(
        0.8,
        "a document holds an item if its runs of 13 words have this share of the item's words (default: 0.8; 0: any run)",
        share="<=",
        optional=True,
    )
    decontaminate_common: float = filtering(
        0.0005,
        "a run of 13 words does not count if more than this share of the documents has it, and more than 20 (default: 0.0005)",
        share="<=",
        optional=True,
    )
    # tokens and shards
    tokenizer: str = sharding(
        "train:32000", "Hugging Face name, tokenizer.json or .model, directory, bytes, or train:N", named=True
    )
    special_tokens: tuple[str, ...] = sharding(
        (),
        "special tokens of a tokenizer that the build trains, joined by commas, as in '<|fim_prefix|>,<|fim_suffix|>': their "
        "ids are 1, 2, ...",
        optional=True,
    )
    reserve: int = sharding(
        0,
        "ids to keep free after the special tokens, for tokens that later training adds: <|reserved_special_token_0|> and so on",
        least=0,
        optional=True,
    )
    bos: Bos = sharding("never", "begin documents with the begin-of-text id", choices=BOS)
    eos: str = sharding(
        "always", "end documents with the end-of-text id: always (default), never, or TOKEN to name another"
    )
    val_fraction: float = sharding(0.005, "share of documents for validation", share="<")
    tokens_per_shard: int | None = sharding(
        None, "tokens of a shard (default: 64 million, fewer for small datasets)", least=1
    )
    tokens_per_sample: int = sharding(
        0, "group small documents into tar members of this many tokens (default: no)", least=0
    )
    max_tokens: tuple[str, ...] = sharding(
        (),
        "most tokens of each source, as in 1e9, or of named sources, as in web=5e9,wiki=1e9. Files are read in an order drawn by "
        "--seed until the tokens after dedup fill the quota. With --limit, the quota samples the records that were read",
        numbers=True,
    )
    seed: int = sharding(
        0,
        "seed of the draws of documents: for validation, and in a build also for quotas, tokenizer training and the report's "
        "samples; dedup does not depend on it",
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = setting_of(item.metadata).fit(item.name, getattr(self, item.name), setting_types()[item.name])
            object.__setattr__(self, item.name, value)
        object.__setattr__(self, "rules", tuple(name for name in self.rules if name != NO_RULES))
        parse_languages(self.language, self.language_threshold)
        if self.format != "":
            format_named(self.format)
        if self.decontaminate_action == MARK:
            kinds = {item.name: item.kind for item in parse_fields(self.keep_fields)}
            if kinds.get(CONTAMINATED, "str") != "str":
                raise ConfigError(
                    f"decontaminate_action mark sets the field {CONTAMINATED}: keep it as {CONTAMINATED}:str"
                )
            added = () if CONTAMINATED in kinds else (f"{CONTAMINATED}:str",)
            object.__setattr__(self, "keep_fields", (*self.keep_fields, *added))
        _ = self.quotas, self.licenses, self.permutations, self.condition, self.vocab_size, self.kept_by

    @property
    def quotas(self) -> dict[str, int]:
        """The most tokens of each source. Sources without an entry have the quota of ''."""
        quotas: dict[str, int] = {}
        for entry in self.max_tokens:
            source, _, number = entry.rpartition("=")
            try:
                quotas[source] = int(float(number))
            except (ValueError, OverflowError):
                raise ConfigError(f"max_tokens {entry!r}: write SOURCE=NUMBER, or NUMBER for every source") from None
            check_whole(f"max_tokens of {source or 'each source'}", quotas[source], 0)
        return quotas

    @property
    def licenses(self) -> dict[str, str]:
        """The licence of each source. Sources without an entry have the licence of ''."""
        return parse_licenses(self.license)

    def quota(self, source: str) -> float:
        """Return the most tokens of a source; infinity without a quota."""
        quotas = self.quotas
        return quotas.get(source, quotas.get("", math.inf))

    @property
    def reads_by_quota(self) -> bool:
        """Whether reading a source ends when its quota is filled. With a ``limit``, the limit alone decides what is read."""
        return bool(self.max_tokens) and self.limit is None

    @property
    def condition(self) -> Where | None:
        """``where``, parsed; None if it is not given."""
        return None if self.where is None else Where.parse(self.where)

    @property
    def segment_kinds(self) -> tuple[str, ...]:
        """The kinds of segments that are cut if they occur earlier: lines, paragraphs, both or none."""
        wanted = {LINES: self.dedup_lines, PARAGRAPHS: self.dedup_paragraphs}
        return tuple(kind for kind in KINDS if wanted[kind])

    @property
    def kept_by(self) -> str | None:
        """The field by whose highest number a document of a cluster is kept; None if the first or the longest is kept."""
        fields_kept = {item.name: item.kind for item in parse_fields(self.keep_fields)}
        kind, _, name = self.dedup_keep.partition(":")
        if kind != "score" or not name:
            if self.dedup_keep not in KEEP:
                near = did_you_mean(self.dedup_keep, (*KEEP, "score:FIELD"), else_known=False)
                raise ConfigError(f"dedup_keep must be first, longest or score:FIELD, got {self.dedup_keep!r}{near}")
            return None
        if fields_kept.get(name, "str") in ("str", "bool"):
            raise ConfigError(
                f"dedup_keep {self.dedup_keep!r}: keep_fields must have {name} as numbers: add {name}:float to it"
            )
        return name

    @property
    def vocab_size(self) -> int | None:
        """The size of the vocabulary of a tokenizer that is trained; None if the recipe names a tokenizer."""
        name, _, size = self.tokenizer.partition(":")
        if name != "train":
            return None
        if not (size.isascii() and size.isdecimal()):
            raise ConfigError(
                f"tokenizer {self.tokenizer!r}: train: needs a vocabulary size in digits, as in train:32000"
            )
        return int(size)

    @property
    def end_token(self) -> str | None:
        """The token that ends documents; None: the tokenizer's own."""
        return None if self.eos in ("never", "always") else self.eos

    @property
    def permutations(self) -> int:
        return signature_values(self.dedup_bands, self.dedup_rows, self.dedup_num_perm)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, by field name."""
        return {name: list(item) if isinstance(item, tuple) else item for name, item in asdict(self).items()}

    def described(self) -> dict[str, Any]:
        """Return the settings for the manifest. Paths are cut to file names: a folder says nothing about the contents."""
        value = self.to_json() | {"dedup_num_perm": self.permutations}
        value["transforms"] = [spec.rpartition("/")[2] for spec in self.transforms]
        value["extract"] = self.extract and self.extract.rpartition("/")[2]
        for item in fields(self):
            known, current = setting_of(item.metadata), value[item.name]
            if known.named and current:
                value[item.name] = (
                    [_name_of(path) for path in current] if isinstance(current, list) else _name_of(current)
                )
            if known.optional and getattr(self, item.name) == item.default:
                del value[item.name]  # so that builds without this setting keep their manifests
        return value

    def updated(self, settings: Mapping[str, Any]) -> Recipe:
        """Return this recipe with other values of some settings, by name."""
        return Recipe.from_json({**self.to_json(), **settings})

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
        return cls(**settings)


def parse_licenses(entries: Sequence[str]) -> dict[str, str]:
    """Return the licence of each source in the setting ``license``. Sources without an entry have the licence of ''.

    >>> parse_licenses(["wiki=CC-BY-SA-4.0", "MIT"])
    {'wiki': 'CC-BY-SA-4.0', '': 'MIT'}
    """
    licenses: dict[str, str] = {}
    for entry in entries:
        source, _, name = entry.rpartition("=")
        if not _SPDX.fullmatch(name):
            raise ConfigError(
                f"license {entry!r}: write SOURCE=SPDX, or SPDX for every source, as in wiki=CC-BY-SA-4.0"
            )
        licenses[source] = name
    return licenses


@functools.cache
def setting_types() -> Mapping[str, frozenset[type]]:
    return {name: types_of(hint) for name, hint in get_type_hints(Recipe).items()}


def command_line(settings: Mapping[str, Any], sources: Sequence[str]) -> str:
    """Return the command that builds a dataset, from the settings in its manifest and the sources of its inputs.

    >>> command_line(Recipe(language="en", dedup=False).described(), ["web", "web", ""])
    'shardwright build web=INPUT INPUT --output DATASET --language en --no-dedup'
    """
    words = ["shardwright", "build", *(f"{name}=INPUT" if name else "INPUT" for name in dict.fromkeys(sources))]
    words += ["--output", "DATASET"]
    defaults = Recipe().described()
    defaults["dedup_num_perm"] = settings["dedup_bands"] * settings["dedup_rows"]
    for item in fields(Recipe):
        value, flag = settings.get(item.name), flag_of(item)
        if item.name in settings and value != defaults.get(item.name):
            shown = (",".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
            words += [flag] if isinstance(value, bool) else [flag, shown]
    return shlex.join(words)


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the settings in a YAML (or JSON) file. Raises ``ConfigError`` if the file holds no mapping of names."""
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
