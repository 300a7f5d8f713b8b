"""FineWeb2's profiles as rules: one YAML file for each language, with the keys of FineWeb2's repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, did_you_mean

_LIMITS = {
    "language_score": ("language_score", "min"),
    "dup_line_frac": ("duplicate_line_ratio", "max"),
    "line_punct_thr": ("terminal_line_ratio", "min"),
    "new_line_ratio": ("newline_ratio", "max"),
    "min_avg_word_length": ("mean_word_length", "min"),
    "max_avg_word_length": ("mean_word_length", "max"),
    "max_non_alpha_words_ratio": ("alphabetic_ratio", "min"),  # a minimum, whatever its name says
}
_NGRAMS = {"top_n_grams": "top_{}_gram_ratio", "dup_n_grams": "duplicate_{}_gram_ratio"}
_COUNT_WORDS = ("newline_ratio", "mean_word_length", "alphabetic_ratio")
_PIECES = {"by": "pieces"}  # nearest to the tokenizers with which the profiles were made
_MINIMUM_STOP_WORDS = 2


def profile_rules(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a profile as entries of a rule file."""
    rules: dict[str, dict[str, Any]] = {}
    for key, value in _load(path).items():
        if key in _LIMITS:
            measure, kind = _LIMITS[key]
            rules.setdefault(measure, dict(_PIECES) if measure in _COUNT_WORDS else {})[kind] = value
        elif key in _NGRAMS:
            if not (isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)):
                raise ConfigError(f"profile {path}: {key} must be a list of pairs like [2, 0.2], not {value!r}")
            rules |= {_NGRAMS[key].format(n): {"max": limit, **_PIECES} for n, limit in value}
        elif key == "stopwords":
            if not isinstance(value, list):
                raise ConfigError(f"profile {path}: stopwords must be a list of words, not {value!r}")
            words = [_as_word(word) for word in value]
            rules["stop_words"] = {"min": _MINIMUM_STOP_WORDS, "words": words, **_PIECES}
        else:
            hint = did_you_mean(str(key), [*_LIMITS, *_NGRAMS, "stopwords"])
            raise ConfigError(f"profile {path}: unknown key {key!r}{hint}")
    return rules


def _load(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"profile {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(profile, dict):
        raise ConfigError(f"profile {path} holds no keys; FineWeb2's hold {', '.join(_LIMITS)} and more")
    return profile


def _as_word(value: object) -> str:
    """Return a stop word as it was written: YAML reads the word `no` as false."""
    return {True: "yes", False: "no", None: "null"}[value] if isinstance(value, bool | None) else str(value)
