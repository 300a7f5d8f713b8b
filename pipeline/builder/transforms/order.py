"""The order of the transforms of a build, and the transforms of the user that it names."""

from __future__ import annotations

from filters.rules.ruleset import RuleSet

from ...errors import ConfigError, did_you_mean
from ..recipe import Recipe
from .user import UserTransform
from .user_functions import UserFunction, find_user_function

STEPS = ("normalize", "clean", "language", "rules", "decontaminate")  # the built-in ones


def transform_order(recipe: Recipe) -> list[str]:
    """Return the names of the transforms. The user's transforms follow normalising, unless the recipe sets the whole order.

    >>> transform_order(Recipe(transforms=["mine:f"]))
    ['normalize', 'mine:f', 'clean', 'language', 'rules', 'decontaminate']
    >>> transform_order(Recipe(transforms=["language", "mine:f"]))
    ['language', 'mine:f']
    """
    if any(name in STEPS for name in recipe.transforms):
        return list(recipe.transforms)
    first, *rest = STEPS
    return [first, *recipe.transforms, *rest]


def find_user_functions(recipe: Recipe) -> dict[str, UserFunction]:
    """Find and load the user's transforms that a recipe names. Raises ``ConfigError`` if one cannot be used."""
    functions: dict[str, UserFunction] = {}
    for spec in recipe.transforms:
        if spec in STEPS:
            continue
        if ":" not in spec and "@" not in spec:
            raise ConfigError(
                f"no transform {spec!r}{did_you_mean(spec, STEPS)}; name one of your own as module:function"
            )
        functions[spec] = find_user_function(spec)
    for function in functions.values():
        UserTransform(function.name, function.load())  # raises if it cannot be a transform
    names = [name for name in recipe.transforms if name in STEPS] + [function.name for function in functions.values()]
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
