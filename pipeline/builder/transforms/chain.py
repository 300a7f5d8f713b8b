"""Applies the transforms of a build to documents, in order: the built-in ones and the user's.

A new built-in transform is a class in transform.py and a line in `BUILT_IN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from filters.language.identifier import UNDETERMINED, Language, LanguageIdentifier, parse_languages
from filters.rules.named_files import NamedFile
from filters.rules.ruleset import RuleSet

from ...errors import ConfigError, did_you_mean
from ...text.document import Document
from ...text.fields import Field, merge_fields, parse_fields
from ...text.judging import EMPTY, Drop, is_empty
from ..counts.sums import PASSED, Counts
from ..dedup.decontaminate import Evaluation
from ..recipe import Recipe
from .score_table import JoinScores, Scores
from .transform import ApplyRules, Clean, IdentifyLanguage, Normalize, Transform
from .user import UserTransform
from .user_functions import UserFunction, find_user_function

_UNKNOWN = Language(UNDETERMINED, 0.0, "")


@dataclass(frozen=True)
class TransformContext:
    """The loaded rules, models, functions and tables that a recipe names: transforms are made from them."""

    rules: RuleSet
    language_model: NamedFile
    user_functions: Mapping[str, UserFunction]
    evaluation: Evaluation | None = None
    scores: Scores | None = None
    extract: UserFunction | None = None  # makes text of HTML

    def fields(self, recipe: Recipe) -> tuple[Field, ...]:
        """Return the fields of records that rules, transforms and the recipe name, which documents keep.

        Fields that a transform adds, or that the file of scores holds, are not read from records. Raises ``ConfigError`` if a
        field is named with two types.
        """
        functions = [function.load() for function in self.user_functions.values()]
        scored = set(self.scores.names if self.scores else ())
        if recipe.condition and (both := scored.intersection(field.name for field in recipe.condition.fields)):
            raise ConfigError(
                f"where reads {min(both)!r}, which is a score: `where` selects records before scores are joined; use a rule, as "
                f'in "column:{min(both)}" = {{ min = 0.5 }}'
            )
        added = scored | {field.name for function in functions for field in parse_fields(getattr(function, "adds", ()))}
        named = [recipe.keep_fields, self.rules.fields, *(getattr(function, "fields", ()) for function in functions)]
        read = merge_fields(map(parse_fields, named))
        return tuple(field for field in read if field.name not in added)


@dataclass(slots=True)
class ProcessedDocument:
    """A document between and after the transforms. ``record`` is the number of its record in the batch.

    If it is dropped, ``outcome`` is the name of a rule or a transform, and ``reason`` says why; else they are '' and None.
    """

    document: Document
    record: int
    outcome: str = PASSED
    reason: str | None = None

    @property
    def language(self) -> Language:
        return self.document.language or _UNKNOWN


class Chain:
    """The transforms of a build, loaded once in each process."""

    def __init__(self, recipe: Recipe, context: TransformContext) -> None:
        self._transforms: list[Transform] = [JoinScores(context.scores)] if context.scores else []
        for name in transform_order(recipe):
            if name in context.user_functions:
                function = context.user_functions[name]
                self._transforms.append(UserTransform(function.name, function.load()))
            elif (built_in := BUILT_IN[name](recipe, context)) is not None:
                self._transforms.append(built_in)

    def prepare(self) -> None:
        """Load models and compiled kernels, before worker processes are forked."""
        for transform in self._transforms:
            transform.prepare()

    def process(self, documents: Sequence[Document], counts: Counts) -> list[ProcessedDocument]:
        """Apply every transform to documents, which are edited in place; return them in order, the dropped ones too.

        Each transform runs over the whole batch, so that its tables stay in the processor's caches. A dropped document
        reaches no later transform.
        """
        every = [ProcessedDocument(document, record) for record, document in enumerate(documents)]
        for transform in self._transforms:
            every = _apply(transform, every, counts)
        for processed in every:
            if processed.reason is None and is_empty(processed.document):
                processed.outcome, processed.reason = EMPTY.rule, EMPTY.reason
        return every


def _apply(transform: Transform, every: list[ProcessedDocument], counts: Counts) -> list[ProcessedDocument]:
    """Apply a transform to the documents not yet dropped; return all. Parts replace a document that became several."""
    left = [processed for processed in every if processed.reason is None]
    if not left:
        return every
    parts: dict[int, list[ProcessedDocument]] = {}
    decisions = transform([processed.document for processed in left], counts)
    for processed, decision in zip(left, decisions, strict=True):
        if type(decision) is Drop:
            processed.outcome, processed.reason = decision.rule or transform.name, decision.reason
        elif type(decision) is list:
            parts[id(processed)] = [ProcessedDocument(document, processed.record) for document in decision]
            counts.add("added", transform.name, number=len(decision) - 1)
    return [part for processed in every for part in parts.get(id(processed), [processed])] if parts else every


BUILT_IN: Mapping[str, Callable[[Recipe, TransformContext], Transform | None]] = {
    "normalize": lambda recipe, context: Normalize() if recipe.normalize else None,
    "clean": lambda recipe, context: (
        Clean(context.rules, normalized=_is_normalized(recipe)) if context.rules.cleaners else None
    ),
    "language": lambda recipe, context: IdentifyLanguage(
        LanguageIdentifier(context.language_model.path), parse_languages(recipe.language, recipe.language_threshold)
    ),
    "rules": lambda recipe, context: ApplyRules(context.rules),
    "decontaminate": lambda recipe, context: None,  # a stage, after all transforms
}
"""Each function returns its transform, or None if the recipe does not ask for it."""


def _is_normalized(recipe: Recipe) -> bool:
    """Whether texts are normalised before they are cleaned."""
    order = transform_order(recipe)
    return recipe.normalize and "normalize" in order[: order.index("clean")]


def transform_order(recipe: Recipe) -> list[str]:
    """Return the names of the transforms. The user's transforms follow normalising, unless the recipe sets the whole order.

    >>> transform_order(Recipe(transforms=["mine:f"]))
    ['normalize', 'mine:f', 'clean', 'language', 'rules', 'decontaminate']
    >>> transform_order(Recipe(transforms=["language", "mine:f"]))
    ['language', 'mine:f']
    """
    if any(name in BUILT_IN for name in recipe.transforms):
        return list(recipe.transforms)
    first, *rest = BUILT_IN
    return [first, *recipe.transforms, *rest]


def find_user_functions(recipe: Recipe) -> dict[str, UserFunction]:
    """Find and load the user's transforms that a recipe names. Raises ``ConfigError`` if one cannot be used."""
    functions: dict[str, UserFunction] = {}
    for spec in recipe.transforms:
        if spec in BUILT_IN:
            continue
        if ":" not in spec and "@" not in spec:
            raise ConfigError(
                f"no transform {spec!r}{did_you_mean(spec, BUILT_IN)}; name one of your own as module:function"
            )
        functions[spec] = find_user_function(spec)
    for function in functions.values():
        UserTransform(function.name, function.load())  # raises if it cannot be a transform
    names = [name for name in recipe.transforms if name in BUILT_IN] + [
        function.name for function in functions.values()
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"transforms: two are called {twice[0]!r}; give one another name with pipeline.transform(name=...)"
        )
    return functions


def check_order(recipe: Recipe, rules: RuleSet) -> None:
    """Raise ``ConfigError`` if the order leaves out a step that the recipe needs, or applies rules before they can measure."""
    order = transform_order(recipe)
    requirements = {
        "clean": ("rules with a [cut] table", bool(rules.cleaners)),
        "language": ("language, or rules for languages", bool(recipe.language) or rules.reads_language),
        "rules": (f"rules {','.join(recipe.rules)}", bool(rules.rules)),
    }
    for name, (what, wanted) in requirements.items():
        if wanted and name not in order:
            raise ConfigError(
                f"transforms leaves out {name!r}, which the recipe needs ({what}): add it to transforms, or remove the setting"
            )
    if rules.reads_language and order.index("language") > order.index("rules"):
        raise ConfigError("transforms: 'rules' comes before 'language', which its rules read; name 'language' first")
