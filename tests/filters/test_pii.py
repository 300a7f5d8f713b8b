"""Addresses of mail and public IP addresses are masked, and what only looks like one is left."""

from __future__ import annotations

import ipaddress
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.cleaners.pii import pii
from filters.measures.url_lists import read_url_list
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError
from tests.helpers.builds import Built
from tests.helpers.rule_samples import rule_file

MAIL, IP, IP6 = "email@example.com", "192.0.2.1", "2001:db8::1"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("jo@mail.test.org", MAIL),
        ("<o'brien.j+tag@a-b.co.uk>,", f"<{MAIL}>,"),
        ("mailto:first_last%x@xn--bcher-kva.example.", f"mailto:{MAIL}."),
        ("me.you@192.168.0.1 lodash@4.17.21 @name a@b x@y.z1", "me.you@192.168.0.1 lodash@4.17.21 @name a@b x@y.z1"),
        ("See 8.8.8.8, (1.1.1.1:53) and 9.9.9.9.", f"See {IP}, ({IP}:53) and {IP}."),
        ("127.0.0.1 10.1.2.3 192.168.1.1 169.254.0.1 240.0.0.1", "127.0.0.1 10.1.2.3 192.168.1.1 169.254.0.1 240.0.0.1"),
        ("1.2.3.4.5 v1.2.3.4 1.2.3.4a 1.2.3 8.8.8.256 08.8.8.8", "1.2.3.4.5 v1.2.3.4 1.2.3.4a 1.2.3 8.8.8.256 08.8.8.8"),
        ("[2606:4700:4700::1111]:443, 2001:4860:4860:0:0:0:0:8888: ok", f"[{IP6}]:443, {IP6}: ok"),
        ("std::vector a::b 12:34:56 fe80::1 ::1 2001:db8::7 2023:10:11", ""),
    ],
)  # fmt: skip
def test_addresses_are_masked_and_what_looks_like_one_is_left(text: str, masked: str) -> None:
    masked = masked or text
    assert pii(text)[0] == masked
    assert pii(masked)[0] == masked


@given(st.ip_addresses())
def test_exactly_public_ip_addresses_are_masked(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    unicast = address.version == 4 or address in ipaddress.ip_network("2000::/3")
    text, counts = pii(f"at {address} there")
    assert counts["ip"] == (address.is_global and unicast)
    assert (str(address) in text) is not counts["ip"]


def test_a_hash_of_the_address_draws_one_of_several_replacements() -> None:
    mail = ["email@example.com", "firstname.lastname@example.org"]
    texts = [pii(f"u{n}@a.org", mail=mail)[0] for n in range(40)]
    assert {*texts} == {*mail}
    whole = pii(" ".join(f"U{n}@a.org" for n in reversed(range(40))), mail=mail)
    assert whole == (" ".join(reversed(texts)), {"mail": 40, "ip": 0})


@pytest.mark.parametrize("unit", ["a", "a.", "1.", "1.2.3.", "2001:", "a@", "+", "a@a."])
def test_a_long_text_is_searched_within_the_time_limit(unit: str) -> None:
    pii(f"@:{unit * (400_000 // len(unit))}")


def test_a_build_masks_and_counts_addresses(tmp_path: Path) -> None:
    out = Built.of(tmp_path, ["Ask jo@mail.test.org or 8.8.8.8 now.", "Nothing here."], rules="pii")
    assert out.kept == [f"Ask {MAIL} or {IP} now.", "Nothing here."]
    assert out.counts["cut"] == {"pii.mail": 1, "pii.ip": 1}


# Lists of domains and words.


def blocked(tmp_path: Path, entry: str, urls: list[str | None]) -> list[str | None]:
    """Return the urls whose documents a rule keeps."""
    (tmp_path / "domains.txt").write_text("# of UT1\nspam.example\nCo.Example\n")
    (tmp_path / "words.txt").write_text("casino\npoker # and\n")
    rows = [{"text": f"Text {n}.", "id": url or "none", "url": url} for n, url in enumerate(urls)]
    return Built.of(tmp_path, rows, rules=rule_file(tmp_path, f"{entry}\n")).ids


URLS = [
    *("https://www.spam.example/x", "http://SPAM.example:80", "https://notspam.example/", "https://a.org/spam.example"),
    *("http://a.co.example", "https://casino.org/", "https://a.org/play%2Dpoker/casino.html", "https://a.org/casinos"),
    *("http://[x", "b.org", None),
]


def test_a_url_of_a_listed_domain_or_with_a_listed_word_is_blocked(tmp_path: Path) -> None:
    left = blocked(tmp_path, 'url_blocked = { domains = "domains.txt", words = "words.txt" }', URLS)
    assert left == [URLS[2], URLS[3], *URLS[7:10], "none"]


@pytest.mark.parametrize(
    "line",
    [
        *("\ufeffspam.example", "SPAM.example.", "*.spam.example", ".spam.example", "spam.example # bad"),
        *("0.0.0.0 spam.example", "127.0.0.1\tlocalhost spam.example #bad"),
        *("::1 spam.example", "fe80::1%lo0 spam.example"),
        *("||spam.example^", "||spam.example", "https://spam.example/", "http://*.spam.example", "spam.example/"),
        "[Adblock Plus 2.0]\n! Title: a\n||spam.example^",
    ],
)
def test_a_list_of_domains_may_have_any_common_form(tmp_path: Path, line: str) -> None:
    (tmp_path / "domains.txt").write_text(f"{line}\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listed = read_url_list(tmp_path / "domains.txt", "domains")
    assert listed - {"localhost"} == {"spam.example"}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("domains", "spam.example/page"),
        ("domains", "||spam.example^$third-party"),
        ("domains", "@@||spam.example^"),
        ("domains", "spam.example##.ad"),
        ("domains", "spam.example other.example"),
        ("domains", "sp*m.example"),
        ("words", "two words"),
        ("words", "hyphen-ated"),
    ],
)
def test_a_line_that_can_match_nothing_is_named_with_the_cure(tmp_path: Path, kind: str, line: str) -> None:
    (tmp_path / "list.txt").write_text(f"# list\nspam\n{line}\n{line}\n")
    (tmp_path / "r.toml").write_text(f'url_blocked = {{ {kind} = "list.txt" }}\n')
    said = rf"list\.txt: 2 lines match nothing, the first is line 3: '{re.escape(line)}'; write"
    with pytest.warns(UserWarning, match=said):
        load_rules(str(tmp_path / "r.toml"))
    (tmp_path / "only.txt").write_text(f"{line}\n")
    (tmp_path / "r.toml").write_text(f'url_blocked = {{ {kind} = "only.txt" }}\n')
    with pytest.raises(ConfigError, match=r"only\.txt: 1 line matches nothing"):
        load_rules(str(tmp_path / "r.toml"))


def test_words_may_be_allowed_up_to_a_number(tmp_path: Path) -> None:
    soft = 'soft = { measure = "url_blocked", words = "words.txt", max = 1 }'
    left = blocked(tmp_path, f'{soft}\nurl_blocked = {{ domains = "domains.txt" }}', URLS)
    assert [url for url in URLS if url and url not in left] == [URLS[0], URLS[1], URLS[4], URLS[6]]


def test_a_rule_without_a_list_and_a_list_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("url_blocked = { }\n")
    with pytest.raises(ConfigError, match=r"rule 'url_blocked' needs .*domains = FILE"):
        load_rules(str(tmp_path / "r.toml"))
    (tmp_path / "latin.txt").write_bytes(b"spam\ncaf\xe9\n")
    (tmp_path / "r.toml").write_text('url_blocked = { words = "latin.txt" }\n')
    with pytest.raises(ConfigError, match=r"latin\.txt: not UTF-8 at byte 8.*convert .*to UTF-8"):
        load_rules(str(tmp_path / "r.toml"))
    (tmp_path / "r.toml").write_text('url_blocked = { words = "none.txt" }\n')
    with pytest.raises(ConfigError, match=r"words '.*none\.txt' does not exist"):
        load_rules(str(tmp_path / "r.toml"))
