"""The transforms of a build, in order: the built-in ones by name, and those of the user among them.

A new built-in transform is a class, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from filters.language.language import LanguageIdentifier, parse_languages
from filters.rules.named_files import NamedFile
from filters.rules.ruleset import RuleSet

from ...errors import ConfigError, did_you_mean
from ..dedup.decontaminate import Decontaminator
from ..recipe import Recipe
from .built_in import ApplyRules, Clean, Decontaminate, IdentifyLanguage, Normalize
from .scores import JoinScores, Scores
from .transform import Transform
from .user import UserTransform
from .user_functions import UserFunction, find_user_function


@dataclass(frozen=True)
class Parts:
    """What transforms are made of: what the names in a recipe refer to."""

    rules: RuleSet
    user_functions: Mapping[str, UserFunction]
    language_model: NamedFile
    evaluation: Decontaminator | None
    scores: Scores | None


BUILT_IN: Mapping[str, Callable[[Recipe, Parts], Transform | None]] = {
    "normalize": lambda recipe, parts: Normalize() if recipe.normalize else None,
    "clean": lambda recipe, parts: (
        Clean(parts.rules, normalized=_is_normalized(recipe)) if parts.rules.cleaners else None
    ),
    "language": lambda recipe, parts: IdentifyLanguage(
        LanguageIdentifier(parts.language_model.path), parse_languages(recipe.language, recipe.language_threshold)
    ),
    "rules": lambda recipe, parts: ApplyRules(parts.rules),
    "decontaminate": lambda recipe, parts: Decontaminate(parts.evaluation) if parts.evaluation else None,
}
"""Each makes its transform from a recipe and its parts; None where the recipe does not ask for it."""


def _is_normalized(recipe: Recipe) -> bool:
    """Whether texts are normalised before they are cleaned."""
    order = transform_order(recipe)
    return recipe.normalize and "normalize" in order[: order.index("clean")]


def make_transforms(recipe: Recipe, parts: Parts) -> list[Transform]:
    """Return the transforms of a build in order."""
    own = {spec: UserTransform(each.name, each.load()) for spec, each in parts.user_functions.items()}
    made = [own[name] if name in own else BUILT_IN[name](recipe, parts) for name in transform_order(recipe)]
    first = [JoinScores(parts.scores)] if parts.scores else []
    return [*first, *(transform for transform in made if transform is not None)]


def transform_order(recipe: Recipe) -> list[str]:
    """Return the transforms by name; the user's run after normalising, unless the recipe fixes the whole order.

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
    """Find and load the user's transforms that a recipe names. Raises ``ConfigError`` for what cannot be used."""
    functions: dict[str, UserFunction] = {}
    for spec in recipe.transforms:
        if spec in BUILT_IN:
            continue
        if ":" not in spec and "@" not in spec:
            raise ConfigError(
                f"no transform {spec!r}{did_you_mean(spec, BUILT_IN)}; name one of your own as module:function"
            )
        functions[spec] = find_user_function(spec)
    _raise_if_repeated(
        [*(name for name in recipe.transforms if name in BUILT_IN), *(f.name for f in functions.values())]
    )
    for each in functions.values():
        UserTransform(each.name, each.load())  # raises where it cannot be a transform
    return functions


def check_order(recipe: Recipe, rules: RuleSet) -> None:
    """Raise ``ConfigError`` where the order leaves out what the recipe asks for, or measures what is not yet known."""
    order = transform_order(recipe)
    asked = {
        "clean": ("rules with a [cut] table", bool(rules.cleaners)),
        "language": ("language, or rules for languages", bool(recipe.language) or rules.reads_language),
        "rules": (f"rules {','.join(recipe.rules)}", bool(rules.rules)),
        "decontaminate": ("decontaminate", bool(recipe.decontaminate)),
    }
    for name, (what, wanted) in asked.items():
        if wanted and name not in order:
            raise ConfigError(
                f"transforms leaves out {name!r}, which the recipe asks for ({what}): name it, or do not ask for it"
            )
    if rules.reads_language and order.index("language") > order.index("rules"):
        raise ConfigError("transforms: 'rules' comes before 'language', which its rules read; name 'language' first")


def _raise_if_repeated(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"transforms: two are called {name!r}; give one another name with pipeline.transform(name=...)"
            )
