"""Text -> token ids, by the definition or by a faster encoder that returns the same ids.

The definition is a ``tokenizer.json`` as Hugging Face's library ``tokenizers`` runs it, with special tokens split. Each
encoder uses one thread and survives a fork; to use more cores, run more processes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

import numpy as np
import orjson

from .conformance import proof_texts
from .tokenizer_files import BYTES, parsed

ID = np.dtype("<u4")
THREADS = "TOKENIZERS_PARALLELISM"
DEFINITION, FAST = "tokenizers", "fastokens"
FIRST_BYTE = 3  # the id of byte 0 in ByT5, after three special ids

Encode = Callable[[str], bytes]
"""Returns the ids of a text as the bytes of little-endian uint32."""
Load = Callable[[str], Encode]
"""Makes an encoder of a definition."""


def load_definition(definition: str) -> Encode:
    """Return the encoder of ``tokenizers``, which defines the ids. It encodes about 2 MB/s."""
    # If tokenizers had threads of its own, it would warn of them when a worker is forked.
    os.environ.setdefault(THREADS, "false")
    tokenizer = parsed(definition)
    return lambda text: _packed(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


@functools.lru_cache(maxsize=1)  # the encoder that was compared also encodes: to read a definition takes 0.2 s
def load_fastokens(definition: str) -> Encode:
    """Return the encoder of ``fastokens``: 180 to 220 MB/s for byte-level BPE, in the caller's thread."""
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_json_str(_without_holes(definition))
    return lambda text: tokenizer.encode_batch_flat([text], split_special_tokens=True)[0]


def _without_holes(definition: str) -> str:
    """Return a definition in which each id has a token, as fastokens requires. No text contains the added tokens."""
    value = orjson.loads(definition)
    vocab = value["model"]["vocab"]
    holes = set(range(max(vocab.values()) + 1)).difference(vocab.values()) if isinstance(vocab, dict) else ()
    if not 0 < len(holes) <= len(vocab):
        return definition
    vocab |= {f"\0{id}": id for id in holes}
    return orjson.dumps(value).decode()


def load_bytes(definition: str) -> Encode:
    """Return the encoder of ByT5: the bytes of UTF-8, after three special ids. The definition changes no id."""
    return lambda text: _packed(np.frombuffer(text.encode(), np.uint8) + np.uint32(FIRST_BYTE))


def _packed(ids: object) -> bytes:
    return np.asarray(ids, ID).tobytes()


ENCODERS: Mapping[str, Load] = {FAST: load_fastokens, DEFINITION: load_definition, BYTES: load_bytes}


@functools.lru_cache(maxsize=1)  # a build and its stages load the same tokenizer
def fault_of_fast(
    definition: str, spelled: tuple[str, ...], sample: tuple[str, ...], load: Load = load_fastokens
) -> str:
    """Return why the fast encoder cannot be used, or '' if it returns the definition's ids for every text.

    The texts are ``sample`` and those of `proof_texts` with the added tokens ``spelled``.
    """
    judge = load_definition(definition)
    try:
        encode = load(definition)
        for text in (*sample, *proof_texts(spelled)):
            if encode(text) != judge(text):
                return f"other ids for {ascii(text)[:80]}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Rust is a BaseException
        return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    return ""
