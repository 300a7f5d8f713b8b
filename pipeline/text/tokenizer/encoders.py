"""Text -> token ids, by the definition or by a faster program that gives the same ids.

The definition is Hugging Face's ``tokenizer.json`` as the ``tokenizers`` library runs it, special tokens split. Each
encoder is single-threaded and survives a fork: to use more cores, run more processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from .loading import BYTES, parsed

ID = np.dtype("<u4")
THREADS = "TOKENIZERS_PARALLELISM"


class Encoder(Protocol):
    """``encode`` returns the ids of a text as the bytes of little-endian uint32."""

    def encode(self, text: str) -> bytes: ...


Encoders = Mapping[str, Callable[[str], Encoder]]  # what makes each from a definition, by name


class Definition:
    """``tokenizers``: what the ids mean. About 3 MB/s."""

    def __init__(self, definition: str) -> None:
        # So that tokenizers neither starts threads of its own nor warns of them when a worker is forked.
        os.environ.setdefault(THREADS, "false")
        self.tokenizer = parsed(definition)

    def encode(self, text: str) -> bytes:
        encoded = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.asarray(encoded[0].ids, dtype=ID).tobytes()


class Fastokens:
    """fastokens: about 130 MB/s. One text at a call, which it encodes in this thread."""

    def __init__(self, definition: str) -> None:
        from fastokens import Tokenizer

        self._tokenizer = Tokenizer.from_json_str(definition)

    def encode(self, text: str) -> bytes:
        ids: bytes = self._tokenizer.encode_batch_flat([text], split_special_tokens=True)[0]
        return ids


class Gigatoken:
    """gigatoken: about 170 MB/s. It always honours special tokens, so it is given none."""

    def __init__(self, definition: str) -> None:
        from gigatoken import Tokenizer

        value = json.loads(definition)
        value["added_tokens"] = [token for token in value.get("added_tokens", []) if not token["special"]]
        self._tokenizer = Tokenizer.from_json(json.dumps(value))

    def encode(self, text: str) -> bytes:
        return self._tokenizer.encode(text).astype(ID, copy=False).tobytes()


class Bytes:
    """ByT5: each byte of UTF-8, behind three special ids."""

    FIRST = 3

    def __init__(self, definition: str) -> None:
        del definition  # nothing in it changes an id

    def encode(self, text: str) -> bytes:
        return (np.frombuffer(text.encode(), np.uint8).astype(ID) + self.FIRST).tobytes()


DEFINITION = "tokenizers"
# fastokens goes first: gigatoken is a fifth faster at best, and its 0.10 knows no letters newer than Unicode 16.
FAST: Encoders = {"fastokens": Fastokens, "gigatoken": Gigatoken}
ENCODERS: Encoders = {**FAST, DEFINITION: Definition, BYTES: Bytes}


def fastest_equal(
    definition: str, judge: Encoder, texts: Iterable[str], fast: Encoders = FAST
) -> tuple[str, Encoder, dict[str, str]]:
    """Return name and object of the first ``fast`` encoder whose ids equal the definition's on every text, and why others fail.

    Where none does, that is ``judge``, the definition itself.
    """
    expected = [(text, judge.encode(text)) for text in texts]
    refused: dict[str, str] = {}
    for name, load in fast.items():
        try:
            encoder = load(definition)
            different = next((text for text, ids in expected if encoder.encode(text) != ids), None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Rust's panics among them: whatever it raises, it does not serve
            refused[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            continue
        if different is None:
            return name, encoder, refused
        refused[name] = f"other ids for {_excerpt(different, judge, encoder)}"
    return DEFINITION, judge, refused


def _excerpt(text: str, judge: Encoder, encoder: Encoder) -> str:
    """Return the shortest of a text's halves of halves on which both still differ, printable."""
    while len(text) > 1:
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            if judge.encode(part) != encoder.encode(part):
                text = part
                break
        else:
            break
    return ascii(text)[:80]
