"""Whether the url of a document is on lists of domains and words, such as those of UT1 (https://dsi.ut-capitole.fr/blacklists)."""

from __future__ import annotations

import functools
import ipaddress
import math
import re
import urllib.parse
from pathlib import Path

from filters.text_view import Page
from pipeline.errors import ConfigError
from pipeline.notices import warn

_WORD = re.compile(r"[^\W_]+")
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_SPELLED = re.compile(rf"(?:\|\||https?://)?(?:\*?\.)?({_DOMAIN.pattern})\.?[/^]?")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_CURES = {
    "domains": "write a domain such as example.org, without a path, options or exceptions",
    "words": "write one word of letters and digits, since only whole words of urls are compared",
}


def url_blocked(page: Page, *, column: str = "url", domains: Path | None = None, words: Path | None = None) -> float:
    """Return how many listed words the url of a document contains; a listed domain counts as infinitely many.

    The count is 0 if there is no url. A domain stands for all below it: ``example.org`` for ``www.example.org``.
    Words are runs of letters and digits; whole words are compared. The lists are UTF-8 files of one entry a line;
    ``#`` begins a comment. Lists of domains may also be hosts files, or write ``*.example.org``, ``||example.org^``
    or ``https://example.org/``. `column` is the field of the url. A rule without limits has ``max = 0``; write
    ``max = 1`` for a list of words that may be harmless.
    """
    url = urllib.parse.unquote(str(page.context.get("metadata", {}).get(column) or "")).lower()
    if domains is not None:
        labels = _host(url).split(".")
        if any(".".join(labels[first:]) in read_url_list(domains, "domains") for first in range(len(labels))):
            return math.inf
    return float(len(read_url_list(words, "words").intersection(_WORD.findall(url)))) if words is not None else 0.0


def _host(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:  # such as http://[x
        return ""


@functools.lru_cache(maxsize=64)
def read_url_list(path: Path, kind: str) -> frozenset[str]:
    """Return the entries of a list of ``"domains"`` or ``"words"``; warns if lines can match nothing.

    Raises ``ConfigError`` if no line can match, or the file is not UTF-8.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").lower().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; convert the list to UTF-8") from None
    entries_of = _domains if kind == "domains" else _words
    entries: set[str] = set()
    wrong: list[int] = []
    for number, line in enumerate(lines):
        found = entries_of(line)
        if found is None:
            wrong.append(number)
        else:
            entries.update(found)
    if wrong:
        matches = "lines match" if len(wrong) > 1 else "line matches"
        first = f"line {wrong[0] + 1}: {lines[wrong[0]]!r}"
        message = f"{path}: {len(wrong):,} {matches} nothing, the first is {first}; {_CURES[kind]}"
        if not entries:
            raise ConfigError(message)
        warn(message)
    return frozenset(entries)


def _domains(line: str) -> list[str] | None:
    """Return the domains in a line of a list, None if it holds something else."""
    if _DOMAIN.fullmatch(line):
        return [line]
    entry = _COMMENT.sub("", line).strip() if "#" in line else line.strip()
    if not entry or entry.startswith("!") or (entry[0], entry[-1]) == ("[", "]"):  # comments and head of Adblock lists
        return []
    first, *others = entry.split()
    names = others if others and _is_address(first) else [first, *others]  # as in a hosts file
    found = [match[1] for name in names if (match := _SPELLED.fullmatch(name))]
    return found if len(found) == len(names) and (len(names) == 1 or names is others) else None


def _words(line: str) -> list[str] | None:
    """Return the word in a line of a list, None if it holds something else."""
    entry = line.partition("#")[0].strip()
    return [entry] if _WORD.fullmatch(entry) else None if entry else []


@functools.lru_cache(maxsize=64)
def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
