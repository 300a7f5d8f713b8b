"""Text -> token ids, by the definition or by a faster program that gives the same ids.

The definition is Hugging Face's ``tokenizer.json`` as the ``tokenizers`` library runs it, special tokens split. Each
encoder is single-threaded and survives a fork: to use more cores, run more processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from .conformance import proof_texts
from .loading import BYTES, parsed

ID = np.dtype("<u4")
THREADS = "TOKENIZERS_PARALLELISM"


class Encoder(Protocol):
    """``encode`` returns the ids of a text as the bytes of little-endian uint32."""

    def encode(self, text: str) -> bytes: ...


Load = Callable[[str], Encoder]  # makes an encoder from a definition


class Definition:
    """``tokenizers``: what the ids mean. About 2 MB/s."""

    def __init__(self, definition: str) -> None:
        # So that tokenizers neither starts threads of its own nor warns of them when a worker is forked.
        os.environ.setdefault(THREADS, "false")
        self.tokenizer = parsed(definition)

    def encode(self, text: str) -> bytes:
        encoded = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.asarray(encoded[0].ids, dtype=ID).tobytes()


class Fastokens:
    """fastokens: 180 to 220 MB/s for byte-level BPE. One text at a call, which it encodes in this thread."""

    def __init__(self, definition: str) -> None:
        from fastokens import Tokenizer

        self._tokenizer = Tokenizer.from_json_str(definition)

    def encode(self, text: str) -> bytes:
        ids: bytes = self._tokenizer.encode_batch_flat([text], split_special_tokens=True)[0]
        return ids


class Bytes:
    """ByT5: each byte of UTF-8, behind three special ids."""

    FIRST = 3

    def __init__(self, definition: str) -> None:
        del definition  # nothing in it changes an id

    def encode(self, text: str) -> bytes:
        return (np.frombuffer(text.encode(), np.uint8).astype(ID) + self.FIRST).tobytes()


DEFINITION, FAST = "tokenizers", "fastokens"
ENCODERS: Mapping[str, Load] = {FAST: Fastokens, DEFINITION: Definition, BYTES: Bytes}


class Choice(NamedTuple):
    """The encoder that is used, the name of its program, and why the fast one does not serve, if so."""

    name: str
    encoder: Encoder
    refused: str = ""


_last: dict[tuple[object, ...], Choice] = {}


def choose_encoder(
    definition: str, spelled: Iterable[str], sample: Iterable[str], judge: Encoder, load: Load = Fastokens
) -> Choice:
    """Return the fast encoder where its ids are those of ``judge``, the definition, on every text; else the definition.

    The texts are a sample and those of `proof_texts` with the tokens ``spelled``. The last choice is kept, for a build and
    its stages load the same tokenizer.
    """
    spelled, sample = tuple(dict.fromkeys(spelled)), tuple(sample)
    key = definition, spelled, sample, load
    if key not in _last:
        choice = _choose(definition, [*sample, *proof_texts(spelled)], judge, load)
        _last.clear()
        _last[key] = choice
    return _last[key]


def _choose(definition: str, texts: Iterable[str], judge: Encoder, load: Load) -> Choice:
    try:
        encoder = load(definition)
        different = next((text for text in texts if encoder.encode(text) != judge.encode(text)), None)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Rust's panics among them: whatever it raises, it does not serve
        return Choice(DEFINITION, judge, f"{type(error).__name__}: {error}".partition("\n")[0][:200])
    if different is None:
        return Choice(FAST, encoder)
    return Choice(DEFINITION, judge, f"other ids for {ascii(different)[:80]}")
