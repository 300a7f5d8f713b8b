"""The domains, dates and licences of the documents of a dataset, counted from the kept fields url, date and license.

`attribution.json` of a dataset has

    domains     {"count", "error_tokens", "is_exact", "without": [documents, tokens], "top": [[domain, documents, tokens],
                ...]}, the top tenth by tokens; "without" counts documents without a domain
    dates       {source: [first, last, documents without a date]}, days as YYYY-MM-DD
    licenses    {source: {licence: [documents, tokens]}}; '' counts documents without one

The file has a key if its field is kept. A domain is the host of a url in lower case without "www."; subdomains are counted apart.
Memory is bounded: beyond 200,000 domains, the smallest are forgotten. Then each count may lack up to ``error_tokens`` tokens, and
``count`` is an estimate within 2%.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ...shards.format import COLUMN

FIELDS = ("url", "date", "license")
_LICENSE = 100  # characters of a licence: some sources put its whole text into the field
ATTRIBUTION_NAME = "attribution.json"
_MOST_DOMAINS = 100_000  # kept when there are more than twice as many
# The smallest of all domains' hashes estimate how many domains there are, to 2% with a probability of 99%.
_HASHES = 1 << 14
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
Pairs = dict[str, list[int]]  # documents and tokens by name


def attributed(keep_fields: Sequence[str]) -> list[str]:
    """Return the kept fields whose values are counted.

    >>> attributed(["score:float", "url:str"])
    ['url']
    """
    names = {field.partition(":")[0] for field in keep_fields}
    return [name for name in FIELDS if name in names]


def domain_of(url: Any) -> str:
    """Return the domain of a url; '' if it has none.

    >>> domain_of("https://www.Example.org:80/a"), domain_of("no url"), domain_of(None)
    ('example.org', '', '')
    """
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:  # as for [ in a host
        host = None
    return (host or "").rstrip(".").removeprefix("www.")


def attribution_of(
    table: Mapping[str, Sequence[Any]], tokens: Sequence[int], fields: Sequence[str], source: str
) -> dict[str, Any]:
    """Return the counts of one shard. ``tokens`` are the tokens of each document; all documents are of one source."""
    counts: dict[str, Any] = {}
    if "url" in fields:
        counts["domains"] = _sums(map(domain_of, table[f"{COLUMN}url"]), tokens)
    if "date" in fields:
        days = [match[0] if (match := _DAY.match(str(value))) else "" for value in table[f"{COLUMN}date"]]
        known = [day for day in days if day]
        counts["dates"] = {source: [min(known, default=""), max(known, default=""), days.count("")]}
    if "license" in fields:
        every = ("" if value is None else " ".join(str(value).split()) for value in table[f"{COLUMN}license"])
        values = (value if len(value) <= _LICENSE else f"{value[: _LICENSE - 1]}…" for value in every)
        counts["licenses"] = {source: _sums(values, tokens)}
    return counts


def _sums(names: Iterable[str], tokens: Sequence[int]) -> Pairs:
    sums: Pairs = {}
    for name, count in zip(names, tokens, strict=True):
        add_pair(sums, name, [1, count])
    return sums


def add_pair(sums: Pairs, name: str, pair: Sequence[int]) -> None:
    """Add documents and tokens to the sums of a name."""
    before = sums.setdefault(name, [0, 0])
    before[0] += pair[0]
    before[1] += pair[1]


def merged(shards: Iterable[Mapping[str, Any]], most: int = _MOST_DOMAINS) -> dict[str, Any]:
    """Return the counts of a dataset, from the counts of its shards in order. Memory holds about ``2 * most`` domains."""
    total: dict[str, Any] = {}
    domains = _Domains(most)
    for shard in shards:
        domains.add(shard.get("domains", {}))
        for source, (first, last, undated) in shard.get("dates", {}).items():
            known = total.setdefault("dates", {}).setdefault(source, ["", "", 0])
            days = [day for day in (*known[:2], first, last) if day]
            known[:] = [min(days, default=""), max(days, default=""), known[2] + undated]
        for source, licenses in shard.get("licenses", {}).items():
            for name, pair in licenses.items():
                add_pair(total.setdefault("licenses", {}).setdefault(source, {}), name, pair)
        total |= {"domains": {}} if "domains" in shard else {}
    return total | ({"domains": domains.top()} if "domains" in total else {})


class _Domains:
    """The largest domains. ``error`` is how many tokens a count may lack; 0 means that all counts are exact."""

    def __init__(self, most: int) -> None:
        self._most, self._sums, self._without_domain = most, Pairs(), [0, 0]
        self._error, self._hashes = 0, set[int]()

    def add(self, sums: Mapping[str, Sequence[int]]) -> None:
        for name, pair in sums.items():
            if name:
                add_pair(self._sums, name, pair)
            else:
                self._without_domain = [a + b for a, b in zip(self._without_domain, pair, strict=True)]
        if self._error or len(self._sums) > 2 * self._most:
            seen = map(_hash, sums if self._error else self._sums)  # none was forgotten before the first error
            self._hashes = {*sorted(self._hashes.union(seen))[:_HASHES]}
        if len(self._sums) > 2 * self._most:
            ranked = _ranked(self._sums)
            self._error += ranked[self._most][2]
            self._sums = {name: [documents, tokens] for name, documents, tokens in ranked[: self._most]}

    def top(self) -> dict[str, Any]:
        """Return the top tenth, and how many domains there are."""
        count = len(self._sums)
        if len(self._hashes) == _HASHES:
            count = round((_HASHES - 1) * 2.0**64 / max(self._hashes))
        elif self._error:
            count = len(self._hashes)
        return {
            "count": count,
            "is_exact": not self._error,
            "error_tokens": self._error,
            "without": self._without_domain,
            "top": _ranked(self._sums)[: -(-count // 10)],
        }


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _ranked(sums: Pairs) -> list[list[Any]]:
    """Return names with their sums, by falling tokens, then by name."""
    return [[name, *sums[name]] for name in sorted(sums, key=lambda name: (-sums[name][1], name))]
