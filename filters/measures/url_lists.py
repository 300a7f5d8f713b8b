"""Whether the url of a document is on lists of domains and words, such as those of UT1 (https://dsi.ut-capitole.fr/blacklists)."""

from __future__ import annotations

import functools
import math
import re
import urllib.parse
from pathlib import Path

from filters.text_view import Page

_WORD = re.compile(r"[^\W_]+")


def url_blocked(page: Page, *, column: str = "url", domains: Path | None = None, words: Path | None = None) -> float:
    """Return how many listed words stand in the url of a document, infinity for one of a listed domain, 0 without a url.

    A domain stands for all below it: ``example.org`` for ``www.example.org``. Words are runs of letters and digits, whole
    ones are compared. The lists are UTF-8 files of one entry a line, ``#`` begins a comment. `column` is the field of the
    url. Without limits, a rule has ``max = 0``: lists of words that may be harmless take ``max = 1``.
    """
    url = urllib.parse.unquote(str(page.context.get("metadata", {}).get(column) or "")).lower()
    if domains is not None:
        labels = _host(url).split(".")
        if any(".".join(labels[first:]) in _entries(domains) for first in range(len(labels))):
            return math.inf
    return float(len(_entries(words).intersection(_WORD.findall(url)))) if words is not None else 0.0


def _host(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:  # as of http://[x
        return ""


@functools.lru_cache(maxsize=64)
def _entries(path: Path) -> frozenset[str]:
    lines = (line.partition("#")[0].strip().lower() for line in path.read_text(encoding="utf-8").splitlines())
    return frozenset(line for line in lines if line)
