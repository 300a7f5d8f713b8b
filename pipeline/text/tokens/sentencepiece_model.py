"""Converts a SentencePiece model, ``tokenizer.model``, into a ``tokenizer.json`` with the same ids."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...notices import warn
from .conformance import PROBES

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # kinds of pieces
_UNIGRAM, _BPE = 1, 2  # kinds of models
_SPACE = "\u2581"


def convert_sentencepiece(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text of a ``tokenizer.json`` and the tokens by role.

    Warns if the ids of hostile texts differ from those of the library ``sentencepiece``. Raises ``ConfigError`` if those
    of a quarter of the texts differ, if the file is not such a model, or if the library is missing.
    """
    try:
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    except ImportError:
        raise ConfigError(
            f"{path}: a SentencePiece model cannot be read without its library: `pip install sentencepiece protobuf`"
        ) from None
    data = path.read_bytes()
    model = getattr(sentencepiece_model_pb2, "ModelProto")()  # noqa: B009 - made when it is imported
    try:
        model.ParseFromString(data)
    except Exception:
        raise ConfigError(f"{path}: not a SentencePiece model, for it begins with {data[:16]!r}") from None
    tokenizer = _convert(model, path)
    definition: str = tokenizer.to_str()
    tokenizer.encode_special_tokens = True
    judge = SentencePieceProcessor(model_proto=data)
    probes = [*PROBES, *(f"a{piece.piece}b" for piece in model.pieces if piece.type == _USER_DEFINED)]
    others = [text for text in probes if tokenizer.encode(text, add_special_tokens=False).ids != judge.encode(text)]
    fault = (
        f"{path}: the tokenizer.json made of it gives other ids than sentencepiece for {len(others)} of {len(probes)} "
    )
    if len(others) > len(probes) / 4:
        raise ConfigError(
            f"{fault}texts, such as {others[0][:40]!r}; name a tokenizer.json, or choose another tokenizer"
        )
    if others:
        warn(f"{fault}hostile texts, such as {others[0][:40]!r}; the ids of the tokenizer.json are stored")
    spec = model.trainer_spec
    pieces = {piece.piece for piece in model.pieces}
    roles = {"eos_token": spec.eos_piece, "bos_token": spec.bos_piece, "unk_token": spec.unk_piece}
    return definition, {role: token for role, token in roles.items() if token in pieces}


def _convert(model: Any, path: Path) -> Any:
    """Return the tokenizer of ``tokenizers`` that a model describes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    spec, form = model.trainer_spec, model.normalizer_spec
    made: models.Model
    if spec.model_type == _BPE:
        made = models.BPE(
            *_merges(model.pieces), unk_token=spec.unk_piece, fuse_unk=True, byte_fallback=spec.byte_fallback
        )
    elif spec.model_type == _UNIGRAM:
        # Pieces of other kinds are not text. With this low score, text that spells one becomes other pieces.
        least = min(piece.score for piece in model.pieces) - 100
        scores = [
            (piece.piece, piece.score if piece.type in (_NORMAL, _USER_DEFINED) else least) for piece in model.pieces
        ]
        made = models.Unigram(scores, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
    else:
        raise ConfigError(f"{path}: a model of words or characters; only BPE and Unigram models are read")
    tokenizer = Tokenizer(made)
    steps: list[Any] = []
    if form.precompiled_charsmap:
        steps.append(normalizers.Precompiled(form.precompiled_charsmap))
    if form.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z|(?<= ) +"), ""))
    is_prefix = form.add_dummy_prefix and not spec.treat_whitespace_as_suffix
    if form.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE) if is_prefix else normalizers.Replace(Regex(r"\z"), _SPACE))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if is_prefix else back)
    added = [piece for piece in model.pieces if piece.type in (_UNKNOWN, _CONTROL)]
    symbols = [piece for piece in model.pieces if piece.type == _USER_DEFINED]
    if symbols and (form.add_dummy_prefix or form.remove_extra_whitespaces):
        # Text after an added token begins anew, so it would get a space. A pre-tokenizer splits normalized text.
        longest_first = sorted((re.escape(piece.piece) for piece in symbols), key=len, reverse=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(longest_first)), "isolated")
        if isinstance(made, models.BPE):
            made.ignore_merges = True
    else:
        added += symbols
    tokenizer.add_tokens(
        [AddedToken(piece.piece, normalized=False, special=piece.type != _USER_DEFINED) for piece in added]
    )
    return tokenizer


def _merges(pieces: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the ids of pieces, and the pairs of pieces that merge into one, the best score first."""
    ids = {piece.piece: number for number, piece in enumerate(pieces)}
    merges = []
    for number, piece in enumerate(pieces):
        if piece.type in (_NORMAL, _USER_DEFINED):
            pairs = [(piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece))]
            merges += [(-piece.score, number, ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids]
    return ids, [(first, second) for *_, first, second in sorted(merges)]
