"""What the names in a recipe stood for when a build began, so that a rule file or model that changed is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePath
from typing import Any

from filters.language import LanguageIdentifier, parse_languages

from ..errors import ConfigError
from ..shards.manifest import Manifest
from ..text.definitions import END_OF_TEXT
from ..text.tokens import check_size
from .plan import unique_names
from .recipe import Recipe
from .rules import load_rules
from .tokenizing import load_spec


def definitions_of(recipe: Recipe) -> dict[str, Any]:
    """Return the contents behind the names in a recipe as plain JSON: limits, hashes, fingerprints.

    What cannot be found or loaded raises ``ConfigError`` here, before any work is done.
    """
    from ..text.documents import find_inputs

    identifier = LanguageIdentifier(recipe.lid_model)
    identifier.check_known(parse_languages(recipe.language))
    model = identifier.path
    evaluation = find_inputs(recipe.decontaminate) if recipe.decontaminate else []
    names = unique_names([(file.source, PurePath(file.name), file.path) for file in evaluation])
    return {
        "rules": load_rules(recipe.rules).describe(),
        "language_model": {"name": model.name, "sha256": _sha256(model)},
        "against": {Path(path).resolve().name: Manifest.read(path).fingerprint for path in recipe.against},
        "decontaminate": dict(zip(names, (_sha256(file.path) for file in evaluation), strict=True)),
        "tokenizer": _tokenizer_hash(recipe.tokenizer, recipe.end_token),
    }


def _tokenizer_hash(spec: str, eos: str | None) -> str | None:
    """Return the hash of a tokenizer's definition, None for one that is yet to be trained."""
    if spec.startswith("train:"):
        if not spec[6:].isdigit():
            raise ConfigError(f"tokenizer {spec!r}: train: needs a vocabulary size, as in train:32000")
        check_size(int(spec[6:]))
        if eos not in (None, END_OF_TEXT):
            raise ConfigError(f"eos {eos!r}: a trained tokenizer ends documents with {END_OF_TEXT}; leave --eos out")
        return None
    return load_spec(spec, eos).sha256


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
