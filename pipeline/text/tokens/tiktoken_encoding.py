"""Converts an encoding of tiktoken into a ``tokenizer.json`` with the same ids."""

from __future__ import annotations

import re
from typing import Any

from ...errors import ConfigError, first_line
from .conformance import PROBES, proof_texts

_SHOWN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
BYTE_LEVEL = {byte: chr(byte) for byte in _SHOWN} | {byte: chr(256 + at) for at, byte in enumerate(_HIDDEN)}
"""The visible character as which byte-level tokenizers write a byte."""


def convert_encoding(encoding: Any) -> str:
    """Return the text of a ``tokenizer.json`` with the ids of a ``tiktoken.Encoding``.

    Raises ``ConfigError`` if its pattern splits a hostile text otherwise in ``tokenizers``.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    ranks: dict[bytes, int] = encoding._mergeable_ranks
    spelled = {token: "".join(BYTE_LEVEL[byte] for byte in token) for token in ranks}
    pairs = [(token[:at], token[at:]) for token in ranks for at in range(1, len(token))]
    pairs = [(a, b) for a, b in pairs if a in ranks and b in ranks]
    pairs.sort(key=lambda pair: (ranks[pair[0] + pair[1]], ranks[pair[0]], ranks[pair[1]]))
    vocab = {spelled[token]: rank for token, rank in ranks.items()} | encoding._special_tokens
    made = models.BPE(vocab, [(spelled[a], spelled[b]) for a, b in pairs], ignore_merges=True)
    tokenizer = Tokenizer(made)
    # To `tokenizers`, {1,3}+ is "once or more"; to tiktoken, it is "never less than matched".
    pattern = re.sub(r"(\{\d+(?:,\d*)?\})\+", r"\1", encoding._pat_str)
    try:
        words = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:
        raise ConfigError(f"{encoding.name}: tokenizers cannot read its pattern ({first_line(error)})") from None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = sorted(encoding._special_tokens, key=encoding._special_tokens.__getitem__)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    definition: str = tokenizer.to_str()
    tokenizer.encode_special_tokens = True
    for text in (*PROBES, *proof_texts(specials[:100])):
        if tokenizer.encode(text, add_special_tokens=False).ids != encoding.encode_ordinary(text):
            raise ConfigError(
                f"{encoding.name}: tokenizers splits {text[:60]!r} otherwise than tiktoken by the pattern "
                f"{encoding._pat_str!r}; write the pattern without possessive quantifiers, such as ++"
            )
    return definition
