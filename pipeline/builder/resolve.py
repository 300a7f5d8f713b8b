"""What the names in a recipe refer to: resolved once, when a build is planned, and kept in its work directory.

Every process of a build loads rules, models, tokenizer and evaluation sets from there and not by name, so that neither
its working directory nor a later edit of a file matters. Rule files, users' modules, tokenizers, n-grams of
evaluation sets and text files that settings name are kept by content; language models and files that rules name, which may
be large, by absolute path, size, time and sha256, and one that changed is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filters.language.language import LanguageIdentifier, bundled_model, parse_languages
from filters.rules.named_files import NamedFile
from filters.rules.ruleset import RuleSet, load_rules

from ..atomic import read_json, write_json
from ..errors import ConfigError
from ..text.fields import Field, merge_fields, parse_fields
from ..text.tokenizer.loading import END_OF_TEXT
from ..text.tokenizer.tokenizer import Tokenizer, check_size
from .build_tokenizer import TOKENIZER, document_marks, load_spec
from .dedup.decontaminate import Decontaminator, read_evaluation_sets
from .recipe import Recipe
from .signature_store import check_against
from .transforms.registry import Parts, check_order, find_user_functions
from .transforms.scores import Scores
from .transforms.user_functions import UserFunction
from .work.atomic_directory import discard, result_directory
from .work.workspace import Workspace

_INDEX = "references.json"
_EVALUATION = "decontaminate"
_SCORES = "scores"
_DROP_IDS = "drop_ids.txt"


@dataclass(frozen=True)
class References(Parts):
    """What a build loads by reference; ``definitions`` describes all of it as plain JSON without any path."""

    drop_ids: NamedFile | None
    tokenizer: Tokenizer | None  # None: to be trained
    definitions: Mapping[str, Any]

    def write(self, workspace: Workspace) -> None:
        """Write everything that `read` needs to the workspace, in place of what an earlier run left."""
        discard(workspace.references)
        with result_directory(workspace.references) as directory:
            index = {
                "rules": self.rules.to_json(),
                "user_functions": {spec: each.to_json() for spec, each in self.user_functions.items()},
                "language_model": self.language_model.to_json(),
                "definitions": self.definitions,
            }
            write_json(directory / _INDEX, index)
            if self.evaluation is not None:
                (directory / _EVALUATION).mkdir()
                self.evaluation.save(directory / _EVALUATION)
            if self.scores is not None:
                (directory / _SCORES).mkdir()
                self.scores.save(directory / _SCORES)
            if self.drop_ids is not None:
                shutil.copyfile(self.drop_ids.checked(), directory / _DROP_IDS)
            if self.tokenizer is not None:
                self.tokenizer.save(directory / TOKENIZER)

    def fields(self, recipe: Recipe) -> tuple[Field, ...]:
        """Return the fields of records that documents keep: those that rules, transforms and the recipe name.

        What a transform adds itself, and what the file of scores holds, is not read. Raises ``ConfigError`` for a field that
        two name with different types.
        """
        own = [each.load() for each in self.user_functions.values()]
        scored = set(self.scores.names if self.scores else ())
        if recipe.condition and (both := scored.intersection(field.name for field in recipe.condition.fields)):
            raise ConfigError(
                f"where reads {min(both)!r}, which is a score: records are selected before they have one; use a rule, as in "
                f'"column:{min(both)}" = {{ min = 0.5 }}'
            )
        added = scored | {field.name for each in own for field in parse_fields(getattr(each, "adds", ()))}
        named = [recipe.keep_fields, self.rules.fields, *(getattr(each, "fields", ()) for each in own)]
        read = merge_fields(map(parse_fields, named))
        return tuple(field for field in read if field.name not in added)

    @classmethod
    def read(cls, workspace: Workspace) -> References:
        """Read what `write` wrote, without the listed ids and the tokenizer, which their stages load.

        Raises ``BuildError`` for a file that changed since. The bundled language model is that of this machine.
        """
        directory = workspace.references
        index = read_json(directory / _INDEX)
        model = NamedFile(**index["language_model"])
        if workspace.plan.recipe.lid_model is None:
            model = replace(model, path=str(bundled_model()))
        model.checked()
        return cls(
            rules=RuleSet.from_json(index["rules"]),
            user_functions={spec: UserFunction.from_json(each) for spec, each in index["user_functions"].items()},
            language_model=model,
            evaluation=Decontaminator.load(folder) if (folder := directory / _EVALUATION).exists() else None,
            scores=Scores.load(folder) if (folder := directory / _SCORES).exists() else None,
            drop_ids=None,
            tokenizer=None,
            definitions=index["definitions"],
        )


def resolve(recipe: Recipe) -> References:
    """Find and read everything that a recipe names.

    What cannot be found or loaded raises ``ConfigError`` here, before any work is done.
    """
    earlier = check_against(recipe)
    rules = load_rules(recipe.rules)
    user_functions = find_user_functions(recipe)
    check_order(recipe, rules)
    identifier = LanguageIdentifier(recipe.lid_model)
    identifier.check_known(parse_languages(recipe.language))
    model = NamedFile.read(identifier.path)
    key = recipe.decontaminate_key or recipe.text_key
    evaluation, hashes, too_short = read_evaluation_sets(recipe.decontaminate, key, normalized=recipe.normalize)
    tokenizer = resolve_tokenizer(recipe)
    definitions: dict[str, Any] = {
        "rules": rules.describe(),
        "language_model": {"name": identifier.path.name, "sha256": model.sha256},
        "against": earlier,
        "decontaminate": hashes,
        "tokenizer": tokenizer and tokenizer.sha256,
    }
    if too_short:
        definitions["too_short"] = too_short
    scores = None
    if recipe.scores is not None:
        scores, definitions["scores"] = Scores.read(recipe.scores)
    if user_functions:
        definitions["transforms"] = [each.describe() for each in user_functions.values()]
    drop_ids = None
    if recipe.drop_ids is not None:
        drop_ids = _text_file("drop_ids", recipe.drop_ids)
        definitions["drop_ids"] = drop_ids.sha256
    references = References(
        rules=rules,
        user_functions=user_functions,
        language_model=model,
        evaluation=evaluation if hashes else None,
        scores=scores,
        drop_ids=drop_ids,
        tokenizer=tokenizer,
        definitions=definitions,
    )
    merge_fields([references.fields(recipe), recipe.condition.fields if recipe.condition else ()])
    return references


def listed_ids_path(workspace: Workspace) -> Path:
    """Return where the work directory holds the list of ids that are dropped."""
    return workspace.references / _DROP_IDS


def _text_file(setting: str, path: str) -> NamedFile:
    """Hash a file that a setting names. Raises ``ConfigError`` where it cannot be read or is not UTF-8 text."""
    try:
        named = NamedFile.read(path)
        with open(path, encoding="utf-8") as file:
            while file.read(1 << 20):
                pass
    except ConfigError as error:
        raise ConfigError(f"{setting} {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting} {path}: not UTF-8 text ({error.reason}); write it as UTF-8") from error
    return named


def resolve_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """Load the tokenizer that a recipe names; None for one that is yet to be trained."""
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
    return tokenizer
