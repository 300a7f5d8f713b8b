"""Texts for which an encoder must return the same ids as the definition."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

# In each text, pre-tokenizers, normalizers or merges of two implementations differed, or might differ: white space at
# borders, letter case outside ASCII, marks, digits, new scripts, joined emoji, long runs.
STRINGS = (
    *("", " ", "  ", "\n", "\t", "\r\n", "\0", "\x1f\x7f\x85", "a ", " a", "  a  b   c    ", "a\n b\n\n  c\n \n\n"),
    *("x \n", "x  \n\n  y", "tab\tand\t\ttabs \t mixed", "\r\r\n\n\r", "\u00a0nbsp\u00a0\u00a0x"),
    *("a\u2028b\u2029 c\u200b", "\u3000ideographic\u3000\u3000space", "\u1680\u2003\u205f\u180e\ufeff"),
    *("\ufeffmark", "mid\ufeffword", "I'm you're WE'LL they'D 'tis 'S's'\u017f ''s"),
    *("l\u2019\u00e9t\u00e9 don\u2019t", "it's'the'rest've", "'\u212a'll'LL'Ll"),
    *("0 00 000 0000 1234567890 3.14159 1,000,000 0x1F",),
    *("\u0661\u0662\u0663 \u00b2\u00b3 \u00bd \u2167 \u3280 \u4e00",),
    *("CamelCaseHTTPServer snake_case kebab-case SHOUTING",),
    *("\u0130stanbul \u0131\u015f\u0131k Stra\u00dfe \u1e9e \u01c5 \ufb01",),
    *("!!! ... --- === *** ??? ::: ;;; ((( ))) [[ ]] {{ }}", "!\n!\n\n!\r\n?", "</div><br/>&nbsp;&amp;"),
    *("a.b,c;d:e!f?g", "e\u0301 \u00e9 o\u0308\u0323 q\u0307\u0323", "\u0301start"),
    *("Z\u0351\u036b\u0343\u036a\u0302\u036ba\u0328l\u034cg\u0335o",),
    *("\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00",),
    *("\u4e2d\u6587\u6587\u672c\u3002\u3042\u3044\u30ab\u30ca", "\u0e44\u0e17\u0e22\u0e41\u0e25\u0e49\u0e27"),
    *("\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937",),
    *("\u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629\u200f\u061f",),
    *("\u1019\u103c\u1014\u103a\u1019\u102c",),
    *("\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd\u2764\ufe0f\U0001f1e9\U0001f1ea",),
    *("1\ufe0f\u20e3 #\ufe0f\u20e3", "\uff28\uff45\uff4c\uff4c\uff4f\u3000\uff11\uff12"),
    *("\U0001d573\U0001d58a\U0001d591 \u2460 \u2122 \ufdfa", "\ufffd\ufffe\uffff\U0010ffff"),
    *("\ue000\uf8ff\U000f0000", "\U000e0061\U000e007f"),
    *("\U00020000\U0002a6df\U0002b73a\U0002cea2\U000323b0's\U00033479's",),
    *("def f(x):\n    return x**2  # ok\n\n\nclass A:\n\tpass\n",),
    *("https://a.b/c?d=e&f=%20#g user@host.org /usr/bin C:\\x\\y", "aaaaaaaaaaaaaaaa" * 40, " " * 300, "\n" * 200),
    *("=" * 333, "ab" * 500, "\u4e2d" * 400, "\t \n" * 100, "1" * 250, "\u00e9" * 150, "\U0001f600" * 120),
    *("a" * 64 + " " + "b" * 65, ("word " * 200).strip(), "\u2581\u2581 a\u2581b", "##ing ##"),
    *("<s></s><unk><pad>[CLS][SEP][MASK]", "<|endoftext|><|im_start|><|eot_id|>", "<| endoftext |> <0x0A> <0xFF>"),
    *("\u0120\u010a",),
)  # fmt: skip

# For these, a loaded tokenizer must agree with its serialised definition, and a class with the file that it loads.
PROBES = (
    "Hello, world! It's 12345.",
    "  two  spaces\n\ttab",
    "naïve \u4e2d\u6587 \U0001f600",
    "a",
    "I'M SURE THEY'LL: HTTPServer, iPhone 14",
    "def f(x_1):\n    return x_1 ** 2  # ok\n\n\nprint(f(1000000))\r\n",
    *STRINGS,
)
_SURROGATES = range(0xD800, 0xE000)
_PLANES = 0x20000  # later code points are ideographs of one category; `STRINGS` has their ends


def proof_texts(added_tokens: Iterable[str] = ()) -> list[str]:
    """Return texts that an encoder must encode like the definition before it is used.

    They spell ``added_tokens`` between several neighbours. They also contain every code point at which Unicode's category
    changes, between neighbours that show the category by a split or a merge. So a different version of Unicode is noticed.
    """
    spelled = [
        form.format(token) for token in added_tokens for form in ("{0}", "a{0}b {0}  {0}{0}\n{0}", " {0} ", "{0}'s")
    ]
    points = list(_borders())
    revealed = [
        "".join(f"a  {c}'s 1{c}{c}\n{c}" for c in points[start : start + 200]) for start in range(0, len(points), 200)
    ]
    return [*STRINGS, *spelled, *revealed]


def _borders() -> Iterator[str]:
    """Yield the characters on both sides of each change of category: letters, marks, numbers, symbols, unassigned, ..."""
    kinds = np.frombuffer("".join(map(unicodedata.category, map(chr, range(_PLANES)))).encode(), np.uint8)[::2]
    for point in (np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist():
        yield from (chr(near) for near in (point - 1, point) if near not in _SURROGATES)
