"""Masks mail addresses and public IP addresses."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
from collections.abc import Sequence

# Each part has a greatest length, and no match begins inside a run of its characters: so the time is linear in the text.
_MAIL = re.compile(
    r"(?<![\w%+-])\w[\w%+'-]{0,63}(?:\.[\w%+'-]{1,64}){0,8}"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}(?:xn--[A-Za-z0-9-]{1,59}|[A-Za-z]{2,24})(?![\w-])",
    re.ASCII,
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)", re.ASCII)
# Public addresses are in 2000::/3, so `a::b` in a program is no address.
_IPV6 = re.compile(
    r"(?<![\w:.])[23][0-9a-f]{3}:(?:[0-9a-f:]{1,33}(?:[0-9a-f]|::)|:)(?!\w|:[\w:])", re.ASCII | re.IGNORECASE
)


def pii(
    text: str,
    *,
    mail: Sequence[str] = ("email@example.com",),
    ipv4: Sequence[str] = ("192.0.2.1",),
    ipv6: Sequence[str] = ("2001:db8::1",),
) -> tuple[str, dict[str, int]]:
    """Replace mail addresses and public IP addresses (``ipaddress``: `is_global`) by addresses that nobody has.

    A hash of the address chooses among several replacements, so an address gets the same one in every document. Four
    of the numbers in a longer row, as in the version 1.2.3.4.5, are no address. Private and reserved IP addresses stay.

    >>> pii("Ask jo@mail.example.org at 8.8.8.8, not at 192.168.0.1 (version 1.2.3.4.5).")
    ('Ask email@example.com at 192.0.2.1, not at 192.168.0.1 (version 1.2.3.4.5).', {'mail': 1, 'ip': 1})
    """
    counts = {"mail": 0, "ip": 0}

    def replace(match: re.Match[str], kind: str, by: Sequence[str]) -> str:
        address = match[0]
        if kind == "ip" and not _is_public(address):
            return address
        counts[kind] += 1
        digest = hashlib.blake2b(address.lower().encode(), digest_size=8).digest() if len(by) > 1 else b""
        return by[int.from_bytes(digest) % len(by)]

    if "@" in text:
        text = _MAIL.sub(functools.partial(replace, kind="mail", by=mail), text)
    text = _IPV4.sub(functools.partial(replace, kind="ip", by=ipv4), text)
    if ":" in text:
        text = _IPV6.sub(functools.partial(replace, kind="ip", by=ipv6), text)
    return text, counts


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
