"""Written by scripts/type_settings.py from the fields of `Recipe`."""

from collections.abc import Callable, Sequence
from typing import TypedDict

from ..text.document import OnError
from .recipe import Bos, DecontaminateAction, RepeatedPassages

Names = str | Sequence[str]  # joined by commas, or listed

class Settings(TypedDict, total=False):
    format: str
    text_key: str
    id_key: str
    normalize: bool
    keep_fields: Names
    license: Names
    extract: str | None
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
    keep_texts: str | None
    drop_ids: str | None
    dedup_lines: bool
    dedup_paragraphs: bool
    shortest_passage: int
    words_left: int
    dedup_passages: int | None
    repeated_passages: RepeatedPassages
    repeated_share: float
    dedup: bool
    dedup_threshold: float
    dedup_bands: int
    dedup_rows: int
    dedup_num_perm: int | None
    dedup_ngram: int
    dedup_keep: str
    keep_signatures: bool
    against: Names
    decontaminate: Names
    decontaminate_key: str | None
    decontaminate_action: DecontaminateAction
    decontaminate_share: float
    decontaminate_common: float
    tokenizer: str
    special_tokens: Names
    reserve: int
    bos: Bos
    eos: str
    val_fraction: float
    tokens_per_shard: int | None
    tokens_per_sample: int
    max_tokens: int | Names
    seed: int
