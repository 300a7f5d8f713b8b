"""What the names in a recipe stood for when a build began, so that a rule file or model that changed is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from filters.language import LanguageIdentifier, parse_languages

from ..errors import ConfigError
from ..shards.manifest import Manifest
from ..text.definitions import END_OF_TEXT
from ..text.tokens import check_size
from .earlier import check_against, dataset_name
from .recipe import Recipe
from .rules import load_rules
from .tokenizing import document_marks, load_spec


def definitions_of(recipe: Recipe) -> dict[str, Any]:
    """Return the contents behind the names in a recipe as plain JSON: limits, hashes, fingerprints.

    What cannot be found or loaded raises ``ConfigError`` here, before any work is done.
    """
    from ..text.documents import find_inputs

    check_against(recipe)
    identifier = LanguageIdentifier(recipe.lid_model)
    identifier.check_known(parse_languages(recipe.language))
    model = identifier.path
    evaluation = find_inputs(recipe.decontaminate) if recipe.decontaminate else []
    return {
        "rules": load_rules(recipe.rules).describe(),
        "language_model": {"name": model.name, "sha256": _sha256(model)},
        "against": {dataset_name(path): Manifest.read(path).fingerprint for path in recipe.against},
        "decontaminate": {file.name: _sha256(file.path) for file in evaluation},
        "tokenizer": _tokenizer_hash(recipe),
    }


def _tokenizer_hash(recipe: Recipe) -> str | None:
    """Return the hash of a tokenizer's definition, None for one that is yet to be trained."""
    spec, eos = recipe.tokenizer, recipe.end_token
    if spec.startswith("train:"):
        if not (spec[6:].isascii() and spec[6:].isdecimal()):
            raise ConfigError(f"tokenizer {spec!r}: train: needs a vocabulary size in digits, as in train:32000")
        if recipe.bos != "never":
            raise ConfigError(f"bos {recipe.bos!r}: a trained tokenizer has no bos id; leave --bos out")
        check_size(int(spec[6:]))
        if eos not in (None, END_OF_TEXT):
            raise ConfigError(f"eos {eos!r}: a trained tokenizer ends documents with {END_OF_TEXT}; leave --eos out")
        return None
    tokenizer = load_spec(spec, eos)
    document_marks(tokenizer, recipe)
    return tokenizer.sha256


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
