"""The files and modules that a recipe names. A build resolves them once, when it is planned, and keeps them in its workspace.

Every process of a build loads rules, models, tokenizer and evaluation sets from there. So neither the working directory of the
process nor a later edit of a file matters. Rule files, users' modules, tokenizers, n-grams of evaluation sets and text files that
settings name are copied. Language models and files that rules name may be large: a build keeps their absolute path, size, time
and sha256, and refuses a file that changed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filters.language.identifier import LanguageIdentifier, bundled_model, parse_languages
from filters.rules.named_files import NamedFile
from filters.rules.ruleset import RuleSet, load_rules
from filters.words import DEFINITION as WORDS

from ...atomic import read_json, write_json
from ...atomic_directory import discard, result_directory
from ...errors import ConfigError
from ...objects.request_options import RequestOptions
from ...text.extract import Extractor
from ...text.fields import Field, merge_fields, parse_fields
from ...text.tokens.tokenizer import Tokenizer
from ..build_tokenizer import TOKENIZER, resolve_tokenizer
from ..dedup.decontaminate import Evaluation, read_evaluation_sets
from ..recipe import Recipe
from ..signature_store import check_against
from ..work.workspace import Workspace
from .order import check_order, find_user_functions
from .score_table import Scores
from .user_functions import UserFunction, find_user_function

_INDEX = "references.json"
_EVALUATION = "decontaminate"
_SCORES = "scores"
_DROP_IDS = "drop_ids.txt"


@dataclass(frozen=True)
class References:
    """Everything that a recipe names, loaded. ``definitions`` describes it as plain JSON without paths."""

    rules: RuleSet
    language_model: NamedFile
    user_functions: Mapping[str, UserFunction]
    evaluation: Evaluation | None = None
    scores: Scores | None = None
    extract: UserFunction | None = None  # makes text of HTML
    tokenizer: Tokenizer | None = None  # None: to be trained
    drop_ids: bytes | None = None
    definitions: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, recipe: Recipe, requests: RequestOptions) -> References:
        """Find and read everything that a recipe names. ``requests`` says how to reach remote datasets.

        Raises ``ConfigError`` if something cannot be found or loaded, before any work is done.
        """
        earlier = check_against(recipe, requests)
        rules = load_rules(recipe.rules)
        user_functions = find_user_functions(recipe)
        check_order(recipe, rules)
        identifier = LanguageIdentifier(recipe.lid_model)
        identifier.check_known(parse_languages(recipe.language))
        model = NamedFile.read(identifier.path)
        key = recipe.decontaminate_key or recipe.text_key
        evaluation, hashes, too_short = read_evaluation_sets(
            recipe.decontaminate, key, recipe.id_key, normalized=recipe.normalize
        )
        tokenizer = resolve_tokenizer(recipe)
        definitions: dict[str, Any] = {
            "rules": rules.describe(),
            "words": WORDS,
            "language_model": {"name": identifier.path.name, "sha256": model.sha256},
            "against": earlier,
            "decontaminate": hashes,
            "tokenizer": tokenizer and tokenizer.sha256,
        }
        if too_short:
            definitions["too_short"] = too_short
        scores = extract = drop_ids = None
        if recipe.scores is not None:
            scores, definitions["scores"] = Scores.read(recipe.scores)
        if user_functions:
            definitions["transforms"] = [function.describe() for function in user_functions.values()]
        if recipe.extract is not None and ":" in recipe.extract:
            extract = find_user_function(recipe.extract, "extract")
            definitions["extract"] = extract.describe()
        elif recipe.extract is not None:
            Extractor(recipe.extract)
        if recipe.drop_ids is not None:
            drop_ids = _read_text(recipe.drop_ids, "drop_ids")
            definitions["drop_ids"] = hashlib.sha256(drop_ids).hexdigest()
        sets = evaluation if hashes else None
        read = cls(rules, model, user_functions, sets, scores, extract, tokenizer, drop_ids, definitions)
        merge_fields([read.fields(recipe), recipe.condition.fields if recipe.condition else ()])
        return read

    def save(self, workspace: Workspace) -> None:
        """Write the references to the workspace, and remove those of an earlier run."""
        discard(workspace.references)
        with result_directory(workspace.references) as directory:
            index = {
                "rules": self.rules.to_json(),
                "language_model": self.language_model.to_json(),
                "user_functions": {spec: function.to_json() for spec, function in self.user_functions.items()},
            }
            index |= {"extract": self.extract.to_json()} if self.extract else {}
            write_json(directory / _INDEX, index)
            for name, content in ((_EVALUATION, self.evaluation), (_SCORES, self.scores), (TOKENIZER, self.tokenizer)):
                if content is not None:
                    (directory / name).mkdir()
                    content.save(directory / name)
            if self.drop_ids is not None:
                (directory / _DROP_IDS).write_bytes(self.drop_ids)

    @classmethod
    def load(cls, workspace: Workspace) -> References:
        """Load what `save` wrote, for transforms: without the tokenizer and the ids to drop, which later stages read.

        Raises ``BuildError`` if a file has changed since. The bundled language model is read from this machine's installation.
        """
        directory = workspace.references
        index = read_json(directory / _INDEX)
        model = NamedFile(**index["language_model"])
        if workspace.plan.recipe.lid_model is None:
            model = replace(model, path=str(bundled_model()))
        model.checked()
        return cls(
            rules=RuleSet.from_json(index["rules"]),
            language_model=model,
            user_functions={spec: UserFunction.from_json(value) for spec, value in index["user_functions"].items()},
            evaluation=Evaluation.load(folder) if (folder := directory / _EVALUATION).exists() else None,
            scores=Scores.load(folder) if (folder := directory / _SCORES).exists() else None,
            extract=UserFunction.from_json(index["extract"]) if "extract" in index else None,
            definitions=workspace.plan.definitions,
        )

    def fields(self, recipe: Recipe) -> tuple[Field, ...]:
        """Return the fields of records that rules, transforms and the recipe name, which documents keep.

        Fields that a transform adds, or that the file of scores holds, are not read from records. Raises ``ConfigError`` if a
        field is named with two types.
        """
        functions = [function.load() for function in self.user_functions.values()]
        scored = set(self.scores.names if self.scores else ())
        if recipe.condition and (both := scored.intersection(each.name for each in recipe.condition.fields)):
            raise ConfigError(
                f"where reads {min(both)!r}, which is a score: `where` selects records before scores are joined; use a rule, as "
                f'in "column:{min(both)}" = {{ min = 0.5 }}'
            )
        added = scored | {each.name for function in functions for each in parse_fields(getattr(function, "adds", ()))}
        named = [recipe.keep_fields, self.rules.fields, *(getattr(function, "fields", ()) for function in functions)]
        read = merge_fields(map(parse_fields, named))
        return tuple(each for each in read if each.name not in added)


def load_evaluation(workspace: Workspace) -> Evaluation:
    """Return the items of the evaluation sets, read once in each process."""
    path = workspace.references / _EVALUATION
    return _load_evaluation(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _load_evaluation(path: Path, mtime_ns: int) -> Evaluation:
    return Evaluation.load(path)


def listed_ids_path(workspace: Workspace) -> Path:
    """Return the file of the list of ids to drop, in the work directory."""
    return workspace.references / _DROP_IDS


def _read_text(path: str, setting: str) -> bytes:
    """Return the contents of a file that a setting names. Raises ``ConfigError`` if they cannot be read or are not UTF-8."""
    try:
        content = Path(path).read_bytes()
        content.decode()
    except OSError as error:
        raise ConfigError(f"{setting} {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting} {path}: not UTF-8 text ({error.reason}); write it as UTF-8") from error
    return content
