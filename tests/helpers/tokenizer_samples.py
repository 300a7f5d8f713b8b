"""Tokenizers of several kinds that tests train, the text for it, and the ids that transformers gives."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

CORPUS = [
    "It's the first of many texts, and they're all about 1234 numbers, words & punctuation!\n\nNew paragraph.",
    "Größe, naïveté, déjà vu; Ελληνικά και русский язык.\n\tIndented\n\t\ttwice",
    "中文文本没有空格。日本語のテキスト。ภาษาไทย 한국어 텍스트",
    "def f(x: int) -> int:\n    return x ** 2  # square\n" * 3,
    "\U0001f600 emoji \U0001f468\u200d\U0001f469 and   spaces   in rows",
] * 20  # fmt: skip


def train(kind: str, path: Path) -> Path:
    """Train a tokenizer of another kind than ours on the spot and save it as a tokenizer.json."""
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "unigram":
        trained = Trained(models.Unigram())
        trained.pre_tokenizer, trained.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        specials = ["<unk>", "</s>", "<s>"]
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
    elif kind == "wordpiece":
        trained = Trained(models.WordPiece(unk_token="[UNK]"))
        trained.normalizer = normalizers.BertNormalizer(lowercase=True)
        trained.pre_tokenizer, trained.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece()
        specials = ["[UNK]", "[CLS]", "[SEP]", "[EOS]"]
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    else:
        trained = Trained(models.BPE(byte_fallback=True))
        trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        trained.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    value = json.loads(trained.to_str())
    if kind == "llama":
        value["model"]["unk_token"] = "<unk>"
        value["added_tokens"] = value["added_tokens"][:3]
    path.write_text(json.dumps(value))
    return path


def train_without_unknown(path: Path, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> Path:
    """Train a BPE of letters that has no unknown token: it leaves out every other character."""
    from tokenizers import Tokenizer as Trained
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    trained = Trained(models.BPE())
    trained.normalizer, trained.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Metaspace()
    letters = [*alphabet, "▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=60, special_tokens=["</s>"], initial_alphabet=letters, limit_alphabet=27, show_progress=False
    )
    trained.train_from_iterator([" ".join(alphabet), "the cat and the hat"], trainer)
    path.write_text(trained.to_str())
    return path


def train_sentencepiece(path: Path, kind: str, **settings: object) -> Path:
    """Train a model of SentencePiece, which keeps spaces and characters as they are unless settings say otherwise.

    A BPE has the runs of spaces of Llama 2 and Mistral, which have equal scores.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(path.with_suffix("")),
        model_type=kind,
        vocab_size=600,
        hard_vocab_limit=False,
        minloglevel=2,
        **{**plain, **settings},
    )
    if kind == "bpe":
        model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
        known = {piece.piece for piece in model.pieces}
        for length in (2, 4, 8, 5, 16, 6, 12, 13, 10, 14, 3, 9, 7, 11, 15):
            if (run := "\u2581" * length) not in known:
                model.pieces.add(piece=run, score=-1e9)
        path.write_bytes(model.SerializeToString())
    return path


def tekken_file(path: Path) -> Path:
    """Write a small file of Tekken: the bytes, some tokens of two and more, three special ones."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"the", b" the", b"in", b" a"]
    encoded = [base64.b64encode(token).decode() for token in tokens]
    value = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) + 10,
            "default_num_special_tokens": 10,
            "version": "v7",
        },
        "vocab": [{"rank": rank, "token_bytes": token, "token_str": None} for rank, token in enumerate(encoded)],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True}
            for rank, token in enumerate(("<unk>", "<s>", "</s>"))
        ],
    }
    path.write_text(json.dumps(value))
    return path


def gpt2_folder(definition: str, folder: Path) -> Path:
    """Write the byte-level BPE of a definition as GPT-2 has it: no special token named, one token for every role."""
    model = json.loads(definition)["model"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    return folder


def auto_ids(directory: Path) -> Callable[[str], list[int]]:
    """Return the ids that transformers gives: the definition of what is right."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    return lambda text: tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
