"""Tokenizers: load one, train one, encode with a fast encoder if tests show that it returns the same ids.

A ``tokenizer.json`` of Hugging Face defines the ids: they are those of ``AutoTokenizer`` with
``add_special_tokens=False, split_special_tokens=True``. Text never becomes a special token. Some definitions would make one
(a Unigram vocabulary that holds ``</s>``, an end of text that is not marked as special). Then the ids of the token's spelling
replace its id.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...atomic import atomic_file
from ...errors import ConfigError, InputError
from ...shards.dataset_folder import DatasetFolder
from ...shards.manifest import TOKENIZER_NAME, Manifest
from .encoders import DEFINITION, ENCODERS, FAST, FIRST_BYTE, ID, THREADS, Load, fault_of_fast, load_definition
from .lost_characters import lost_characters
from .tokenizer_files import (
    BYT5,
    BYT5_IDS,
    BYT5_TOKENIZER,
    BYTES,
    CONFIG_NAME,
    END_OF_TEXT,
    LoadedTokenizer,
    canonical,
    end_token,
    parsed,
    read_definition,
    read_tokenizer_object,
    read_vocabulary,
)

_CHOSEN = os.environ.get(THREADS)  # the user's choice, before this package sets it
Array = np.ndarray[Any, np.dtype[Any]]

# The rule of GPT-4o: letters with their marks after at most one other character, in two parts if small letters come before
# capital ones; up to three digits, punctuation, line ends, spaces. It must be written just like this: for this spelling,
# fastokens has a loop of its own, five times as fast as for any other rule.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTION + "|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTION + "|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
    """Converts text to ids and back. ``load_tokenizer`` and ``train_tokenizer`` make it; it pickles as its definition.

    ``name``: the name or path that the user gave. ``vocab_size``: its greatest id + 1.
    ``dtype``: the stored type, uint16 for up to 65,536 ids, else uint32.
    ``special_ids``: its special tokens by their spelling. ``eos_id``, ``bos_id``: two of them; ``bos_id`` may be None.
    ``sha256``: the hash of the definition as ``save`` writes it. ``encoder``: the encoder in use.
    ``refused``: why the fast one is not used. ``extras``: chat template and special tokens without a role; they change no id.
    """

    def __init__(
        self,
        definition: str,
        name: str,
        roles: Mapping[str, str],
        extras: Mapping[str, Any] | None = None,
        encoder: str = DEFINITION,
        refused: str = "",
        encoders: Mapping[str, Load] = ENCODERS,
    ) -> None:
        self.definition = definition
        self.name = name
        self.roles = dict(roles)
        self.extras = dict(extras or {})
        self.encoder = encoder
        self.refused = refused
        self._encode_text = encoders[encoder](definition)
        self.sha256 = hashlib.sha256(definition.encode()).hexdigest()
        self._vocabulary = read_vocabulary(definition)
        ids, special = self._vocabulary.ids, self._vocabulary.special
        self.special_ids = {token: ids[token] for token in (*special, *self.roles.values()) if token in ids}
        self.vocab_size = max(ids.values()) + 1
        self.dtype = np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")
        self.eos_id = self.special_ids[self.roles["eos_token"]]
        self.bos_id = self.special_ids.get(self.roles.get("bos_token", ""))
        self._spelled = self._spell_special_tokens()
        self._is_guarded = np.zeros(self.vocab_size, bool)
        self._is_guarded[list(self._spelled)] = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.definition, self.name, self.roles, self.extras, self.encoder, self.refused)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size}, encoder={self.encoder!r})"

    def described(self) -> dict[str, Any]:
        """Return the manifest's entry of the tokenizer."""
        names = "name", "sha256", "vocab_size", "eos_id", "bos_id", "special_ids"
        return {name: getattr(self, name) for name in names}

    def encode_flat(self, texts: Sequence[str], *, bos: bool = False, eos: bool = False) -> tuple[Array, Array]:
        """Return the ids of all texts joined, shape ``(tokens,)`` in ``dtype``, and each text's count, int64.

        ``bos`` and ``eos`` put those ids before and after each text; both are counted. Raises ``InputError`` if a text has a
        lone surrogate, and ``ConfigError`` if the tokenizer lacks ``bos``. Time and memory are linear in a text's length:
        for 10 MB without a space, seconds and 25 to 60 times their size (80 to 230 times if the definition encodes). Long
        texts are not split, because any split may change the ids.
        """
        parts = [self._encode(text) for text in texts]
        tokens = self._stored(parts)
        if self._is_guarded[tokens].any():
            parts = [self._without_special(part) for part in parts]
            tokens = self._stored(parts)
        lengths = np.fromiter((len(part) // ID.itemsize for part in parts), np.int64, len(parts))
        first = self._mark("bos_token", self.bos_id) if bos else b""
        last = self._mark("eos_token", self.eos_id) if eos else b""
        if first or last:
            tokens = self._stored([piece for part in parts for piece in (first, part, last)])
            lengths += bos + eos
        return tokens, lengths

    @property
    def can_lose(self) -> bool:
        """Whether the vocabulary may lack characters. It lacks none if each byte has a token."""
        return not self._vocabulary.is_complete

    @property
    def unknown(self) -> str | None:
        """The token of characters that the vocabulary lacks. None if such characters are dropped, or if none is missing."""
        return self._vocabulary.unknown

    def count_lost(self, texts: Sequence[str], tokens: Array) -> tuple[int, int]:
        """Return how many of the ``tokens`` of texts are the unknown token, and how many tokens there are.

        If the tokenizer has no unknown token, return how many characters are dropped, and how many there are.
        """
        if self.unknown is not None:
            return int((tokens == self._vocabulary.ids[self.unknown]).sum()), len(tokens)
        whole = sum(map(len, texts))
        return (lost_characters(self.definition).count(texts) if self.can_lose else 0), whole

    def loss_text(self, lost: int, whole: int) -> str:
        """Return the counts of `count_lost` as a sentence."""
        what, loss = "characters", "have no token and are left out"
        if self.unknown is not None:
            what, loss = "tokens", f"are {self.unknown!r}, for text that the vocabulary lacks"
        return f"{lost:,} of {whole:,} {what} ({lost / max(1, whole):.2%}) {loss}"

    def encode(self, text: str) -> Array:
        """Return the ids of one text, shape ``(tokens,)`` in ``dtype``.

        >>> load_tokenizer("bytes").encode("abc").tolist()
        [100, 101, 102]
        """
        return self.encode_flat([text])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, with the spelling of special tokens. Bytes that are not UTF-8 become U+FFFD.

        >>> load_tokenizer("bytes").decode([100, 101, 102, 1])
        'abc</s>'
        """
        if self.encoder == BYTES:
            names = {id: token.encode() for token, id in BYT5_IDS.items()}
            return b"".join(names.get(int(id)) or bytes([int(id) - FIRST_BYTE]) for id in ids).decode(
                "utf-8", "replace"
            )
        text: str = parsed(self.definition).decode([int(id) for id in ids], skip_special_tokens=False)
        return text

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write files from which ``load_tokenizer`` and ``AutoTokenizer`` load the same tokenizer.

        They are ``tokenizer.json`` (not for ``bytes``) and ``tokenizer_config.json`` with the chat template. Their bytes are
        equal each time.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = self.definition
        if self.encoder != BYTES:
            _write(directory / TOKENIZER_NAME, self.definition)
            value = {**self.extras, **self.roles, "tokenizer_class": "PreTrainedTokenizerFast"}
            config = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        _write(directory / CONFIG_NAME, config)

    def choose_encoder(self, sample: Iterable[str] = ()) -> None:
        """Use the fast encoder if it returns the definition's ids for ``sample`` and for hostile texts."""
        if self.encoder == BYTES:
            return
        added = self._vocabulary.added
        few = added if len(added) <= 200 else added[:100] + added[-100:]
        self.refused = fault_of_fast(self.definition, (*few, *self.roles.values()), tuple(sample))
        self.encoder = DEFINITION if self.refused else FAST
        self._encode_text = ENCODERS[self.encoder](self.definition)

    def _encode(self, text: str) -> bytes:
        try:
            return self._encode_text(text)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust is a BaseException
            try:
                text.encode()
            except UnicodeEncodeError as fault:
                raise InputError(f"a lone surrogate at character {fault.start} cannot be encoded") from None
            if self.encoder != FAST:
                raise ConfigError(
                    f"{self.name}: cannot encode {text[:60]!r} ({error}); give its model an unknown token that is in its "
                    "vocabulary, or choose another tokenizer"
                ) from None
            # The fast encoder failed, for instance at a limit of its regular expressions.
            return load_definition(self.definition)(text)

    def _stored(self, parts: Sequence[bytes]) -> Array:
        tokens = np.frombuffer(b"".join(parts), ID)
        if len(tokens) and int(tokens.max()) >= self.vocab_size:
            raise ConfigError(f"{self.name}: gave id {tokens.max()}, but its vocabulary ends at {self.vocab_size - 1}")
        return tokens.astype(self.dtype)

    def _mark(self, role: str, id: int | None) -> bytes:
        if id is None:
            there = ", ".join(self.special_ids)
            raise ConfigError(f"{self.name} has no {role} token, which was asked for; its special tokens are {there}")
        return np.asarray([id], ID).tobytes()

    def _spell_special_tokens(self) -> dict[int, Array]:
        """Return, for each special id, the ids of its spelling in pieces. They replace the id if text produced it."""
        unknown, end = self._vocabulary.unknown, self.roles["eos_token"]
        if end == unknown:
            raise ConfigError(
                f"{self.name}: characters that its vocabulary lacks become {end!r}, so it cannot end documents; name another "
                "token with --eos, or load_tokenizer(..., eos=...)"
            )
        guarded = {id: token for token, id in self.special_ids.items() if token != unknown and len(token) > 1}
        spelled = {}
        for id, token in guarded.items():
            for pieces in ([token[:1], token[1:]], list(token)):
                ids = np.frombuffer(b"".join(self._encode(piece) for piece in pieces), ID)
                if not np.isin(ids, list(guarded)).any():
                    spelled[id] = ids
                    break
        if self.eos_id not in spelled:
            raise ConfigError(
                f"{self.name}: text can spell {end!r} in no other way, so it cannot end documents; name another token with "
                "--eos, or load_tokenizer(..., eos=...)"
            )
        return spelled

    def _without_special(self, part: bytes) -> bytes:
        ids = np.frombuffer(part, ID)
        first, *others = np.split(ids, np.flatnonzero(self._is_guarded[ids]))
        spelled = (self._spelled[int(piece[0])].tobytes() + piece[1:].tobytes() for piece in others)
        return first.tobytes() + b"".join(spelled)


def load_tokenizer(spec: Any, *, eos: str | None = None, sample: Iterable[str] = ()) -> Tokenizer:
    """Return the tokenizer that ``spec`` names. Datasets, streams and builds accept it instead of the name.

    ``spec`` is ``bytes`` (the bytes of UTF-8 with the ids of ByT5, no files), a ``tokenizer.json``, a directory that
    ``AutoTokenizer`` reads, or a name on the Hugging Face hub. It may also be a loaded tokenizer: a `Tokenizer` is returned
    unchanged; of one from ``tokenizers``, ``transformers`` or ``tiktoken``, the serialised definition is used. ``eos`` names
    the token that ends documents; the default is the configured ``eos_token``, else the first usual name in the vocabulary.
    The fast encoder is used if its ids are correct for the texts ``sample`` and for hostile ones. Raises ``ConfigError`` with
    the cure.

    >>> load_tokenizer("bytes").encode("to be").tolist()
    [119, 114, 35, 101, 104]
    """
    if isinstance(spec, Tokenizer):
        parts = LoadedTokenizer(spec.definition, spec.roles, spec.extras)
        return spec if eos is None else _make_tokenizer(parts, spec.name, spec.name, eos, sample)
    if not isinstance(spec, str | os.PathLike):
        name, parts = read_tokenizer_object(spec)
        return _make_tokenizer(parts, name, name, eos, sample)
    spec = os.fspath(spec)
    if spec.startswith("train:"):
        raise ConfigError(f"{spec} names a tokenizer to train, not one to load: the build trains and saves it")
    parts = BYT5_TOKENIZER if spec == BYTES else read_definition(spec)
    return _make_tokenizer(parts, spec, _name(spec), eos, sample)


def tokenizer_of_dataset(folder: DatasetFolder, manifest: Manifest) -> Tokenizer:
    """Load the tokenizer of a dataset from the files that its manifest names."""
    with tempfile.TemporaryDirectory() as directory:
        for name in (TOKENIZER_NAME, CONFIG_NAME):
            if (data := folder.read_bound(name, manifest)) is not None:
                Path(directory, name).write_bytes(data)
        return load_tokenizer(directory if any(Path(directory).iterdir()) else folder.base)


def _make_tokenizer(parts: LoadedTokenizer, where: str, name: str, eos: str | None, sample: Iterable[str]) -> Tokenizer:
    roles = {**parts.roles, "eos_token": end_token(where, read_vocabulary(parts.definition).ids, parts.roles, eos)}
    if parts.definition == BYT5:
        return Tokenizer(BYT5, BYTES, roles, encoder=BYTES)
    tokenizer = Tokenizer(parts.definition, name, roles, parts.extras)
    tokenizer.choose_encoder(sample)
    return tokenizer


def special_tokens_of(vocab_size: int, named: Sequence[str] = (), reserved: int = 0) -> list[str]:
    """Return the special tokens of a trained tokenizer, by id: the end of text, those named, and those reserved.

    Raises ``ConfigError`` for a token named twice, one of fewer than two characters, or too small a vocabulary.

    >>> special_tokens_of(300, ["<|fim_prefix|>"], 1)
    ['<|endoftext|>', '<|fim_prefix|>', '<|reserved_special_token_0|>']
    """
    tokens = [END_OF_TEXT, *named, *(f"<|reserved_special_token_{number}|>" for number in range(reserved))]
    for at, token in enumerate(tokens):
        if token in tokens[:at]:
            raise ConfigError(f"the special token {token!r} is there already, with id {tokens.index(token)}; remove it")
        if len(token) < 2:
            raise ConfigError(
                f"the special token {token!r} could be text; write at least two characters, as in <|{token}|>"
            )
    if vocab_size < 256 + len(tokens):
        what = f"{len(tokens)} special tokens" if tokens[1:] else END_OF_TEXT
        raise ConfigError(
            f"a vocabulary of {vocab_size} is too small: 256 bytes and {what} need {256 + len(tokens)} ids"
        )
    return tokens


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    reserved: int = 0,
    show_progress: bool = False,
) -> Tokenizer:
    """Train a byte-level BPE of at most ``vocab_size`` ids; ``<|endoftext|>`` has id 0.

    The ids from 1 on are ``special_tokens`` in their order, then ``reserved`` tokens that later work may give a meaning.
    ``show_progress`` shows a bar for each step of the training if stderr is a terminal. The same texts give the same
    tokenizer on any number of threads. A small corpus may have too few pairs of tokens to reach ``vocab_size``; the
    result's ``vocab_size`` is the real one. Raises the errors of `special_tokens_of`.
    """
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trained

    tokens = special_tokens_of(vocab_size, special_tokens, reserved)
    trained = Trained(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.pre_tokenizer = pre_tokenizers.Sequence([words, spelling])
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    with _all_cores():
        trained.train_from_iterator(texts, trainer)
    roles = {"eos_token": END_OF_TEXT}
    tokenizer = Tokenizer(canonical(trained.to_str(), "train"), f"train:{vocab_size}", roles)
    tokenizer.choose_encoder()
    return tokenizer


_threads_of: list[int] = []  # processes that trained; the first one has the threads


@contextmanager
def _all_cores() -> Iterator[None]:
    """Let ``tokenizers`` use threads inside this block only: a worker forked later would wait for them forever.

    The process that trains first has the threads. A process forked from it trains on one core.
    """
    _threads_of.append(os.getpid())
    os.environ[THREADS] = (_CHOSEN or "true") if _threads_of[0] == os.getpid() else "false"
    try:
        yield
    finally:
        os.environ[THREADS] = _CHOSEN or "false"


def _name(spec: str) -> str:
    path = Path(spec)
    return (path.resolve().parent if path.name == TOKENIZER_NAME else path).name if path.exists() else spec


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as file:
        file.write(text.encode())
