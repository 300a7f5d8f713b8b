"""Chooses files of a dataset of the hub: by path or glob, or by the configuration and split that its card declares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InputError, did_you_mean
from ...objects.urls import expand_braces
from ...paths import is_hidden, natural_key, shortened
from ..formats import find_format
from .hub import HubFile, Repository, list_files, pin, read_small, stored_object
from .input_file import Credentials, InputFile

_SPEC = re.compile(
    r"hf://datasets/(?P<id>[\w.-]+/[\w.-]+|[\w.-]+(?=[@:]|$))"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/:]+|[^/:]+))?"
    r"(?:/(?P<path>.*)|:(?P<config>[^:/]*)(?::(?P<split>[^:/]+))?)?"
)
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARDED = re.compile(r"data/([\w.-]+?)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_DEFAULT = "default"

Splits = dict[str, list[HubFile]]


def list_dataset(url: str, source: str, credentials: Credentials, commits: dict[str, str]) -> list[InputFile]:
    """Return the files of ``hf://datasets/ID[@REVISION]``. ``:CONFIG[:SPLIT]``, or ``/`` and a path or glob, may follow.

    ``commits`` maps ``ID@REVISION`` to a commit; a revision that it lacks is looked up and added. The repository is listed
    once. The default split is ``train``, or the only one. Raises ``InputError`` with the known names if a name is unknown.
    """
    match = _SPEC.fullmatch(url)
    if match is None:
        raise InputError(
            f"{url}: write hf://datasets/ID[@REVISION], then :CONFIG[:SPLIT] or /path, as in "
            "hf://datasets/HuggingFaceFW/fineweb-edu:sample-10BT"
        )
    id, revision = match["id"], match["revision"] or "main"
    known = commits.get(f"{id}@{revision}")
    repository = Repository(id, known) if known else pin(id, revision, credentials.requests)
    commits[f"{id}@{revision}"] = repository.commit
    named = _is_hidden(match["path"] or "")
    files = [file for file in list_files(repository, credentials.requests) if named or not _is_hidden(file.path)]
    if match["path"]:
        hub_files = _at_path(url, match["path"], files)
    else:
        hub_files = _files_of_split(
            url, _splits(url, repository, files, match["config"] or "", credentials), match["split"] or ""
        )
    made = [
        InputFile(stored.url, file.path, source, stored, credentials)
        for file in hub_files
        for stored in (stored_object(repository, file),)
    ]
    return sorted(made, key=lambda file: natural_key(file.name))


def _at_path(url: str, path: str, files: Sequence[HubFile]) -> list[HubFile]:
    """Return the file at a path, the files below a folder, or those that match a glob."""
    path = path.rstrip("/")
    matches = [file for file in files if file.path == path or file.path.startswith(f"{path}/")]
    matches = matches or _matching(files, [path])
    if not matches:
        near = did_you_mean(path, [file.path for file in files], else_known=False)
        raise InputError(
            f"{url}: no file matches{near}; the dataset has {shortened([file.path for file in files]) or 'none'}"
        )
    return matches


def _splits(
    url: str, repository: Repository, files: Sequence[HubFile], config: str, credentials: Credentials
) -> Splits:
    card = next((file for file in files if file.path == "README.md"), None)
    configs = (
        card_configs(read_small(repository, card, credentials.requests).decode("utf-8", "replace")) if card else {}
    )
    if not configs:
        if config not in ("", _DEFAULT):
            raise InputError(
                f"{url}: no configuration {config!r}: the dataset's card names none; leave it out, or give a path"
            )
        return splits_by_name([file for file in files if find_format(file.path) is not None])
    chosen = default_config(configs) if config in ("", _DEFAULT) else config
    if chosen not in configs:
        fault = (
            f"no configuration {config!r}{did_you_mean(config, configs, else_known=False)}"
            if config not in ("", _DEFAULT)
            else "it has several configurations, and none is the default"
        )
        raise InputError(
            f"{url}: {fault}; name one of {shortened(list(configs))}, as in hf://datasets/{repository.id}:{next(iter(configs))}"
        )
    entry = configs[chosen]
    folder = str(entry.get("data_dir") or "").strip("/")
    inside = [file for file in files if not folder or file.path.startswith(f"{folder}/")]
    patterns = _patterns(entry.get("data_files"))
    if not patterns:
        return splits_by_name([file for file in inside if find_format(file.path) is not None])
    prefix = f"{folder}/" if folder else ""
    return {
        split: _matching(inside, [prefix + glob.removeprefix("./") for glob in globs])
        for split, globs in patterns.items()
    }


def _files_of_split(url: str, splits: Splits, split: str) -> list[HubFile]:
    known = [name for name, files in splits.items() if files]
    chosen = split or ("train" if "train" in known else known[0] if len(known) == 1 else "")
    if chosen in known:
        return splits[chosen]
    fault = f"no split {split!r}{did_you_mean(split, known, else_known=False)}" if split else "no split 'train'"
    raise InputError(
        f"{url}: {fault}; the splits with files are {shortened(known) or 'none'}: name one, as in ...:CONFIG:SPLIT"
    )


def card_configs(card: str) -> dict[str, Mapping[str, Any]]:
    """Return the configurations that the front matter of a dataset's card declares, by name.

    >>> card_configs("---\\nconfigs:\\n- config_name: a\\n  data_files: a/*\\n---\\n# Card")
    {'a': {'config_name': 'a', 'data_files': 'a/*'}}
    """
    import yaml

    match = re.match(r"\s*---\s*\n(.*?)\n---\s*(?:\n|\Z)", card, re.DOTALL)
    try:
        value = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError:
        return {}
    entries = value.get("configs") if isinstance(value, dict) else None
    entries = entries if isinstance(entries, list) else []
    return {str(entry.get("config_name", _DEFAULT)): entry for entry in entries if isinstance(entry, dict)}


def default_config(configs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the default configuration, or ''."""
    marked = [name for name, entry in configs.items() if entry.get("default") is True]
    if marked:
        return marked[0]
    if _DEFAULT in configs:
        return _DEFAULT
    return next(iter(configs)) if len(configs) == 1 else ""


def _patterns(value: Any) -> dict[str, list[str]]:
    """Return the globs of each split from any of the forms that a card may have."""
    if isinstance(value, str):
        return {"train": [value]}
    if isinstance(value, dict):
        return {str(split): _strings(globs) for split, globs in value.items()}
    patterns: dict[str, list[str]] = {}
    for entry in value if isinstance(value, list) else ():
        split, globs = (entry.get("split", "train"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
        patterns.setdefault(str(split), []).extend(_strings(globs))
    return patterns


def _strings(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [item for item in value or () if isinstance(item, str)]


def splits_by_name(files: Sequence[HubFile]) -> Splits:
    """Return the files of each split by the hub's rules for names, for a dataset whose card declares no splits.

    The rules, in order: ``data/SPLIT-00000-of-00001.*``; a split's word in a folder's name; in a file's name; else ``train``.
    """
    sharded: Splits = {}
    for file in files:
        if match := _SHARDED.fullmatch(file.path):
            sharded.setdefault(match[1], []).append(file)
    if sharded:
        return sharded
    for index in (0, 2):  # the folders of a path, then its name
        splits: Splits = {}
        for file in files:
            for split, words in _SPLIT_WORDS.items():
                if any(word in words for word in re.split(r"[/._ \d-]+", file.path.rpartition("/")[index].lower())):
                    splits.setdefault(split, []).append(file)
                    break
        if splits:
            return splits
    return {"train": list(files)}


def _matching(files: Sequence[HubFile], globs: Sequence[str]) -> list[HubFile]:
    """Return each file that a glob matches, once, by the rules of the library ``datasets``."""
    from fsspec.utils import glob_translate

    try:
        patterns = [
            re.compile(glob_translate(pattern)) for glob in globs for pattern in expand_braces(glob, InputError)
        ]
    except ValueError as error:
        raise InputError(f"{', '.join(globs)}: {error}") from None
    return [file for file in files if any(pattern.fullmatch(file.path) for pattern in patterns)]


def _is_hidden(path: str) -> bool:
    return is_hidden(path) or any(part.startswith("__") for part in path.split("/"))  # a rule of ``datasets``
