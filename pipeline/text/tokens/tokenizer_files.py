"""Files, directories and hub names -> the definition of a tokenizer: the text of a ``tokenizer.json``, and its roles."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from ...errors import ConfigError, did_you_mean, first_few, first_line
from ...shards.manifest import TOKENIZER_NAME
from .conformance import PROBES
from .sentencepiece_model import convert_sentencepiece
from .tiktoken_encoding import BYTE_LEVEL, convert_encoding

CONFIG_NAME = "tokenizer_config.json"
_SPECIAL_NAME, _ADDED_NAME = "special_tokens_map.json", "added_tokens.json"  # written by older releases of transformers
MODEL_SUFFIX = ".model"  # files of SentencePiece
MODEL_NAME = f"tokenizer{MODEL_SUFFIX}"
BYTES = "bytes"
ROLES = ("eos_token", "bos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
END_OF_TEXT = "<|endoftext|>"
_ENDS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]")  # the most common end tokens
_PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")  # classes that only load tokenizer.json
_EXTRAS = ("chat_template", "additional_special_tokens", "extra_special_tokens")
_PLAIN_KEYS = {*ROLES, *_EXTRAS, "tokenizer_class", "model_max_length", "clean_up_tokenization_spaces"}

BYT5_ROLES = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
BYT5_IDS = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"<extra_id_{number}>": 259 + number for number in range(125)}}
BYT5 = json.dumps({**BYT5_ROLES, "extra_ids": 125, "tokenizer_class": "ByT5Tokenizer"}, indent=2, sort_keys=True) + "\n"


class LoadedTokenizer(NamedTuple):
    """The text of a ``tokenizer.json``, or ``BYT5``, with its tokens by role.

    ``extras``, the chat template and special tokens without a role, change no id.
    """

    definition: str
    roles: Mapping[str, str]
    extras: Mapping[str, Any] = MappingProxyType({})


BYT5_TOKENIZER = LoadedTokenizer(BYT5, BYT5_ROLES)


def read_definition(spec: str) -> LoadedTokenizer:
    """Return the tokenizer that ``spec`` names."""
    path = Path(spec)
    if path.is_dir():
        return _read_directory(path)
    if path.is_file():
        _refuse_tiktoken(path)
        if any(path.name in files for files, *_ in _FAMILIES):
            raise ConfigError(f"{spec}: a part of a tokenizer; name its folder, {path.parent}")
        if MODEL_SUFFIX in path.suffixes:
            return _read_sentencepiece(path)
        if path.name.startswith("tekken"):
            return _read_tekken(path)
        beside = path.parent if path.name == TOKENIZER_NAME else None
        config = _read_config(beside) if beside else {}
        return LoadedTokenizer(canonical(_read_text(path), spec), _roles(config), _extras(config))
    if spec.endswith((".json", ".model")) or spec.startswith((".", "/", "~")):
        raise ConfigError(
            f"{spec}: no such file{_near(spec)}; give {BYTES!r}, a {TOKENIZER_NAME}, its directory, or a hub name"
        )
    return _read_auto(spec)


def canonical(text: str, where: str) -> str:
    """Return a ``tokenizer.json`` in the spelling of ``tokenizers``, without truncation, padding or dropout."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise ConfigError(f"{where}: not a {TOKENIZER_NAME} that the tokenizers library reads ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None  # ids would be random
    definition: str = tokenizer.to_str()
    return definition


@functools.lru_cache(maxsize=4)  # parsing takes long
def parsed(definition: str) -> Any:
    """Return the ``tokenizers`` object of a canonical definition. Text never becomes a special token in it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(definition)
    tokenizer.encode_special_tokens = True  # transformers calls it split_special_tokens
    return tokenizer


@dataclass(frozen=True, slots=True)
class DefinedTokens:
    """The tokens of a definition: the ``ids`` of all, those ``added`` to the model's own, and the ``special`` added ones.

    ``is_complete`` says that each byte has a token, so no character is missing. ``unknown`` is the token of missing
    characters; it is None if there is no such token or no character is missing.
    """

    ids: Mapping[str, int]
    added: tuple[str, ...]
    special: tuple[str, ...]
    unknown: str | None
    is_complete: bool


@functools.lru_cache(maxsize=1)
def read_vocabulary(definition: str) -> DefinedTokens:
    """Return the vocabulary of a canonical definition, or of ``BYT5``. The last one is cached."""
    if definition == BYT5:
        return DefinedTokens(BYT5_IDS, tuple(BYT5_IDS), tuple(BYT5_IDS), None, is_complete=True)
    tokenizer = parsed(definition)
    ids, model = tokenizer.get_vocab(), tokenizer.model
    is_complete = _has_all_bytes(model, definition, ids)
    added = [token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    return DefinedTokens(
        ids=ids,
        added=tuple(token.content for token in added),
        special=tuple(token.content for token in added if token.special),
        unknown=None if is_complete else _unknown_token(model, definition),
        is_complete=is_complete,
    )


_UTF8 = {*range(0xC0), *range(0xC2, 0xF5)}  # the bytes that may occur in UTF-8


def _has_all_bytes(model: Any, definition: str, ids: Mapping[str, int]) -> bool:
    """Whether each byte of UTF-8 has a token, so every text has ids."""
    parts = orjson.loads(definition)
    if parts["model"].get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in ids for byte in _UTF8)
    is_byte_level = any(
        step["type"] == "ByteLevel" for name in ("pre_tokenizer", "normalizer") for step in _steps(parts[name])
    )
    return is_byte_level and type(model).__name__ == "BPE" and all(BYTE_LEVEL[byte] in ids for byte in _UTF8)


def _steps(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the steps of a pre-tokenizer or normalizer, including those in nested sequences."""
    if part is None:
        return []
    inner = part.get("pretokenizers") or part.get("normalizers") or []
    return [part, *(step for each in inner for step in _steps(each))]


def _unknown_token(model: Any, definition: str) -> str | None:
    if type(model).__name__ != "Unigram":
        unknown: str | None = model.unk_token
        return unknown
    value = orjson.loads(definition)["model"]  # the library does not return it
    return None if value.get("unk_id") is None else value["vocab"][value["unk_id"]][0]


def end_token(spec: str, ids: Mapping[str, int], roles: Mapping[str, str], wanted: str | None) -> str:
    """Return the token that ends a document: ``wanted``, else the configured one, else the first usual name."""
    if wanted is not None and wanted not in ids:
        raise ConfigError(f"{spec}: no token {wanted!r} in its vocabulary of {len(ids):,}; it cannot end documents")
    named = roles.get("eos_token")
    if wanted is None and named is not None and named not in ids:
        raise ConfigError(
            f"{spec}: its configuration names {named!r} as the end of a text, which its vocabulary of {len(ids):,} lacks; name "
            "the folder that has both, or one of its tokens with --eos, or load_tokenizer(..., eos=...)"
        )
    for token in (wanted, named, *_ENDS):
        if token is not None and token in ids:
            return token
    raise ConfigError(
        f"{spec}: names no token that ends a text, and has none of {', '.join(_ENDS)}; name one of its tokens with --eos, or "
        "load_tokenizer(..., eos=...)"
    )


def _read_directory(path: Path) -> LoadedTokenizer:
    config = _read_config(path)
    if config.get("tokenizer_class") == "ByT5Tokenizer":
        return BYT5_TOKENIZER
    if (path / TOKENIZER_NAME).is_file() and _is_plain(path, config):
        definition = canonical(_read_text(path / TOKENIZER_NAME), str(path))
        plain = LoadedTokenizer(definition, _roles(config), _extras(config))
        tokens = [*plain.roles.values(), *(token for name in _EXTRAS[1:] for token in plain.extras.get(name, ()))]
        if all(token in read_vocabulary(definition).ids for token in tokens):  # the class would add the others
            return plain
    model = path / MODEL_NAME
    if model.is_file() and not (path / TOKENIZER_NAME).exists():
        _refuse_tiktoken(model)  # transformers would use the pattern of Llama 3
        if not config and not (path / _ADDED_NAME).exists():
            return _read_sentencepiece(model)
    parts = _read_auto(str(path))
    return parts._replace(roles={**_roles(config), **parts.roles})


def _is_plain(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder holds nothing by which a class of ``transformers`` changes a ``tokenizer.json``."""
    others = (_ADDED_NAME, _SPECIAL_NAME, "config.json")  # a model's config.json may choose a class
    return (
        config.keys() <= _PLAIN_KEYS
        and config.get("tokenizer_class") in _PLAIN_CLASSES
        and not any((path / name).exists() for name in others)
    )


def _read_tekken(path: Path) -> LoadedTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder, "tekken.json"))  # the only name that transformers recognizes
        try:
            return _read_auto(folder)
        except ConfigError as error:
            raise ConfigError(str(error).replace(folder, str(path))) from None


def _refuse_tiktoken(path: Path) -> None:
    """Raise ``ConfigError`` if a file is a list of tokens in base64, the format of tiktoken."""
    with path.open("rb") as file:
        if not re.fullmatch(rb"[A-Za-z0-9+/]+=* \d+\r?\n?", file.readline(1000)):
            return
    raise ConfigError(
        f"{path}: a file of tiktoken, which lacks the pattern that splits text and the special tokens. Convert it once: "
        f"`ranks = tiktoken.load.load_tiktoken_bpe({str(path)!r})`, then `pipeline.load_tokenizer(tiktoken.Encoding(NAME, "
        "pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: len(ranks)})).save(FOLDER)`, and name that folder"
    )


def _read_sentencepiece(path: Path) -> LoadedTokenizer:
    definition, roles = convert_sentencepiece(path)
    config = _read_config(path.parent) if path.name == MODEL_NAME else {}
    return LoadedTokenizer(canonical(definition, str(path)), {**roles, **_roles(config)}, _extras(config))


def _read_auto(spec: str) -> LoadedTokenizer:
    from transformers import AutoTokenizer

    file = Path(spec, TOKENIZER_NAME)
    try:
        tokenizer = AutoTokenizer.from_pretrained(spec, local_files_only=True)
    except Exception as error:
        if file.is_file():
            raise ConfigError(
                f"{spec}: AutoTokenizer cannot load it ({first_line(error)}); name {file} to use only that file"
            ) from None
        if os.path.isdir(spec):
            raise ConfigError(f"{spec}: {_missing(Path(spec))} ({first_line(error)})") from None
        _check_network(spec)
        try:
            tokenizer = AutoTokenizer.from_pretrained(spec)
        except Exception as fault:
            raise ConfigError(
                f"{spec}: cannot be loaded from the hub ({first_line(fault)}){_near(spec)}; {_CURE}"
            ) from None
    parts = _read_transformers(tokenizer, spec)
    if parts.definition != BYT5:
        vocabulary = read_vocabulary(parts.definition)
        if vocabulary.ids.keys() <= set(vocabulary.added):  # if files are missing, transformers makes an empty one
            raise ConfigError(f"{spec}: {_missing(Path(spec))}")
        if not os.path.isdir(spec):
            file = Path(_cached(spec) or file)
        if not file.is_file():
            file = file.with_name(MODEL_NAME)
        if file.is_file():
            _check_file(file, parts.definition, spec, type(tokenizer).__name__)
    return parts


def _cached(name: str) -> str | None:
    """Return the cached ``tokenizer.json`` of a name on the hub that was just loaded, or None if it has none."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, TOKENIZER_NAME)
    return path if isinstance(path, str) else None


_FAMILIES = ((("vocab.json", "merges.txt"), "GPT-2", "GPT2Tokenizer"), (("vocab.txt",), "BERT", "BertTokenizer"))


def _missing(folder: Path) -> str:
    """Return what is missing to load a folder without a vocabulary: a package, or files."""
    for name, package in (("tokenizer.model", "sentencepiece"), ("tekken.json", "mistral-common")):
        if (folder / name).is_file() and find_spec(package.replace("-", "_")) is None:
            return f"{name} cannot be read without the package {package}: `pip install {package}`"
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    models = [name for name in found if name.endswith(MODEL_SUFFIX)]
    if models and MODEL_NAME not in found:
        return f"no {MODEL_NAME}, but {models[0]}; to read it as a SentencePiece model, name {folder / models[0]}"
    for files, family, class_name in _FAMILIES:
        if set(files) <= set(found):
            return (
                f"AutoTokenizer cannot load {' and '.join(files)}. Vocabularies do not say how text is split. If no other file "
                f"names the tokenizer's class, write it into {folder / CONFIG_NAME}: "
                f'{{"tokenizer_class": "{class_name}"}} is right for the files of {family}'
            )
        if there := set(files) & set(found):
            return f"{', '.join(there)} is there, but {', '.join(set(files) - there)} is missing; {_CURE}"
    return (
        f"no vocabulary in {', '.join(found[:8]) or 'an empty folder'}; {TOKENIZER_NAME}, {MODEL_NAME}, vocab.json with "
        f"merges.txt, or vocab.txt is needed; {_CURE}"
    )


def _check_file(file: Path, definition: str, spec: str, class_name: str) -> None:
    """Raise ``ConfigError`` if a class of ``transformers`` returns other ids than the file that it loads."""
    from tokenizers import Tokenizer

    text = convert_sentencepiece(file)[0] if file.name == MODEL_NAME else _read_text(file)
    by_class, by_file = parsed(definition), Tokenizer.from_str(canonical(text, str(file)))
    by_file.encode_special_tokens = True
    for text in PROBES:
        ids, of_file = _ids(by_class, text), _ids(by_file, text)
        if ids != of_file:
            raise ConfigError(
                f"{spec}: the class {class_name} of transformers gives {_ids_text(ids)} for {text[:60]!r}, but {file.name} "
                f"gives {_ids_text(of_file)}. Choose one: name the file {file}; or, for the class, name a folder that "
                f"`AutoTokenizer.from_pretrained({spec!r}).save_pretrained(FOLDER)` writes"
            )


def _ids(tokenizer: Any, text: str) -> list[int] | None:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except Exception:  # the model has no token for unknown text
        return None
    return ids


def _ids_text(ids: list[int] | None) -> str:
    return "an error" if ids is None else f"{len(ids)} ids ({first_few(ids, 8)})"


def _read_transformers(tokenizer: Any, where: str) -> LoadedTokenizer:
    if type(tokenizer).__name__ == "ByT5Tokenizer":
        return BYT5_TOKENIZER
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"{where}: {type(tokenizer).__name__} has no {TOKENIZER_NAME}; convert it, or choose another")
    roles = _roles(tokenizer.special_tokens_map)
    others = [str(token) for token in tokenizer.all_special_tokens if str(token) not in roles.values()]
    template = getattr(tokenizer, "chat_template", None)
    extras = {"additional_special_tokens": others, "chat_template": template}
    return LoadedTokenizer(canonical(backend.to_str(), where), roles, _extras(extras))


def read_tokenizer_object(tokenizer: Any) -> tuple[str, LoadedTokenizer]:
    """Return the name and the definition of a loaded tokenizer of ``tokenizers``, ``transformers`` or ``tiktoken``.

    Raises ``ConfigError`` if it is something else, or if its Python code changes the ids of its serialised definition.
    """
    kind = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}".removeprefix("builtins.")
    if kind.startswith("tokenizers."):
        return kind, LoadedTokenizer(canonical(tokenizer.to_str(), kind), {})
    if kind == "tiktoken.core.Encoding":
        return tokenizer.name, LoadedTokenizer(canonical(convert_encoding(tokenizer), tokenizer.name), {})
    if not hasattr(tokenizer, "special_tokens_map") or not callable(tokenizer):
        raise ConfigError(
            "tokenizer must be a name, a path, or a loaded tokenizer of transformers, tokenizers or tiktoken, "
            f"got {kind}"
        )
    name = str(getattr(tokenizer, "name_or_path", "")) or kind
    parts = _read_transformers(tokenizer, name)
    definition = parts.definition
    if definition != BYT5:
        from tokenizers import Tokenizer

        rebuilt = Tokenizer.from_str(definition)
        for text in PROBES:
            ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
            if ids != rebuilt.encode(text, add_special_tokens=False).ids:
                raise ConfigError(
                    f"{name}: {type(tokenizer).__name__} gives other ids for {text!r} than its {TOKENIZER_NAME}, so its Python "
                    "code changes them; save it as a tokenizer that needs no code, or choose another"
                )
        definition = _without_empty_template(definition)
    return name, parts._replace(definition=definition)


def _without_empty_template(definition: str) -> str:
    """Return a definition without the template that ``transformers`` adds if there is none. It adds no token."""
    from tokenizers import Tokenizer

    value = json.loads(definition)
    processor = value.get("post_processor") or {}
    if processor.get("type") != "TemplateProcessing" or processor.get("special_tokens"):
        return definition
    return Tokenizer.from_str(json.dumps({**value, "post_processor": None})).to_str()


_TEMPLATE_NAME = "chat_template.jinja"
_CURE = (
    "check the name; on a machine with a network, run "
    "`hf download NAME --include '*.json' --include '*.txt' --include '*.model' --include '*.jinja' --local-dir DIR`, then "
    "name DIR"
)


def _check_network(spec: str) -> None:
    """Raise ``ConfigError`` if the hub cannot be reached, at once: its client would try for most of a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        raise ConfigError(
            f"{spec}: neither a file nor in the local cache{_near(spec)}, and HF_HUB_OFFLINE is set; {_CURE}"
        )
    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    if proxied or os.environ.get("HF_ENDPOINT"):
        return
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        raise ConfigError(
            f"{spec}: neither a file nor in the local cache{_near(spec)}, and huggingface.co cannot be reached; {_CURE}"
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a {TOKENIZER_NAME} ({error})") from None


def _read_config(directory: Path) -> dict[str, Any]:
    """Return what ``tokenizer_config.json`` and ``special_tokens_map.json`` say. A missing file counts as empty.

    If both name a token, the second is right, unless the first has ``added_tokens_decoder``: so says ``transformers``.
    """
    read: dict[str, dict[str, Any]] = {CONFIG_NAME: {}, _SPECIAL_NAME: {}}
    for name in read:
        if (directory / name).is_file():
            try:
                read[name] = json.loads(_read_text(directory / name))
            except ValueError as error:
                raise ConfigError(f"{directory / name}: not JSON ({error})") from None
            if not isinstance(read[name], dict):
                raise ConfigError(f"{directory / name}: must be a JSON object, got {read[name]!r:.60}")
    config, special = read.values()
    merged = {**special, **config} if "added_tokens_decoder" in config else {**config, **special}
    if (directory / _TEMPLATE_NAME).is_file():
        merged["chat_template"] = _read_text(directory / _TEMPLATE_NAME)
    for role in ROLES:
        token = merged.get(role)
        if token and not isinstance(token["content"] if isinstance(token, dict) and "content" in token else token, str):
            raise ConfigError(f'{directory}: {role} must be text, or an object with "content", got {token!r:.60}')
    return merged


def _roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Return tokens by role. In a configuration, a token is text or an object with ``content``."""
    tokens = {role: config[role] for role in ROLES if config.get(role)}
    return {role: token["content"] if isinstance(token, Mapping) else str(token) for role, token in tokens.items()}


def _extras(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a configuration that are kept in addition to the roles. Tokens as objects become text."""
    extras = {name: config[name] for name in _EXTRAS if config.get(name)}
    for name, value in extras.items():
        if isinstance(value, list) and name != "chat_template":
            extras[name] = [token["content"] if isinstance(token, Mapping) else str(token) for token in value]
    return extras


def _near(spec: str) -> str:
    """Return the known name that is similar to a misspelt one."""
    if spec.partition(":")[0] in ("train", "trian"):
        return " (did you mean 'train:32000'?)"
    return did_you_mean(spec, (BYTES,), else_known=False) if len(spec) < 2 * len(BYTES) else ""
