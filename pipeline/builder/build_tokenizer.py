"""The tokenizer of a build: one that the recipe names, kept among the references, or one that the build trains."""

from __future__ import annotations

import functools
from pathlib import Path

from ..errors import ConfigError
from ..text.tokens.tokenizer import Tokenizer, load_tokenizer, special_tokens_of
from ..text.tokens.tokenizer_files import END_OF_TEXT
from .recipe import Recipe
from .work.workspace import Workspace

TOKENIZER = "tokenizer"  # its folder, among the references
TRAINED = "train_tokenizer"  # the stage that trains a tokenizer, and its folder


def load_build_tokenizer(workspace: Workspace) -> Tokenizer:
    """Load the tokenizer of a build, once in each process."""
    recipe = workspace.plan.recipe
    folder = workspace.references / TOKENIZER if recipe.vocab_size is None else workspace.folder(TRAINED)
    return load_spec(str(folder), recipe.end_token)


def resolve_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """Return the tokenizer that a recipe names; None if the build trains one. Raises ``ConfigError`` if settings do not fit."""
    if recipe.vocab_size is None:
        tokenizer = load_spec(recipe.tokenizer, recipe.end_token)
        bos_and_eos(tokenizer, recipe)
        if recipe.special_tokens or recipe.reserve:
            raise ConfigError(
                f"special_tokens and reserve are for a tokenizer that is trained, not for {recipe.tokenizer}, whose ids are "
                "fixed; leave them out, or use --tokenizer train:32000"
            )
        return tokenizer
    if recipe.bos != "never":
        raise ConfigError(f"bos {recipe.bos!r}: a trained tokenizer has no bos id; leave --bos out")
    special_tokens_of(recipe.vocab_size, recipe.special_tokens, recipe.reserve)
    if recipe.end_token not in (None, END_OF_TEXT):
        raise ConfigError(f"eos {recipe.eos!r}: a trained tokenizer ends documents with {END_OF_TEXT}; leave --eos out")
    return None


def load_spec(spec: str, eos: str | None = None) -> Tokenizer:
    """Return a tokenizer. The one loaded last is kept, and loaded again only if its files have changed."""
    path = Path(spec)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return _load_spec(spec, eos, tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@functools.lru_cache(maxsize=1)
def _load_spec(spec: str, eos: str | None, files: tuple[tuple[int, int], ...]) -> Tokenizer:
    return load_tokenizer(spec, eos=eos)


def bos_and_eos(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, bool]:
    """Return whether documents have a bos and an eos id. Raises ``ConfigError`` if the tokenizer lacks a wanted id."""
    wanted = {}
    for flag, policy, number in (("bos", recipe.bos, tokenizer.bos_id), ("eos", recipe.eos, tokenizer.eos_id)):
        wanted[flag] = policy != "never"
        if wanted[flag] and number is None:
            raise ConfigError(
                f"tokenizer {recipe.tokenizer} has no {flag} id; use --{flag} never, or another tokenizer"
            )
    return wanted
