"""The script of a text, for languages that are written in several scripts.

Codes of scripts are those of ISO 15924, as in the labels of GlotLID, OpenLID and FineWeb2's profiles: ``srp_Cyrl``. Han,
kana and Hangul count as one script here, since texts in Japanese and Korean mix them; labels tell them apart.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter

# The first word of the Unicode names of a script's letters, and the script's code.
_CODES = dict(
    pair.split(":")
    for pair in """
LATIN:Latn CYRILLIC:Cyrl ARABIC:Arab DEVANAGARI:Deva GREEK:Grek HEBREW:Hebr ARMENIAN:Armn GEORGIAN:Geor THAI:Thai
LAO:Laoo TIBETAN:Tibt MYANMAR:Mymr KHMER:Khmr BENGALI:Beng GURMUKHI:Guru GUJARATI:Gujr ORIYA:Orya TAMIL:Taml
TELUGU:Telu KANNADA:Knda MALAYALAM:Mlym SINHALA:Sinh ETHIOPIC:Ethi CHEROKEE:Cher CANADIAN:Cans MONGOLIAN:Mong
TIFINAGH:Tfng SYRIAC:Syrc THAANA:Thaa NKO:Nkoo OL:Olck YI:Yiii VAI:Vaii JAVANESE:Java BALINESE:Bali SUNDANESE:Sund
BUGINESE:Bugi CHAM:Cham MEETEI:Mtei LIMBU:Limb LEPCHA:Lepc CHAKMA:Cakm ADLAM:Adlm BAMUM:Bamu COPTIC:Copt GOTHIC:Goth
RUNIC:Runr OSAGE:Osge NEWA:Newa SYLOTI:Sylo SAURASHTRA:Saur KAYAH:Kali LISU:Lisu MIAO:Plrd HANIFI:Rohg WARANG:Wara
SORA:Sora SAMARITAN:Samr MANDAIC:Mand TAGALOG:Tglg BATAK:Batk REJANG:Rjng CJK:Hani HIRAGANA:Hani KATAKANA:Hani
HANGUL:Hani BOPOMOFO:Hani
""".split()
)
_JOINED = dict.fromkeys(("Hans", "Hant", "Jpan", "Hira", "Kana", "Hrkt", "Kore", "Hang", "Bopo"), "Hani")


def script_of_label(label: str) -> str:
    """Return the script of a label in the style of GlotLID, '' if it names none.

    >>> script_of_label("srp_Cyrl"), script_of_label("sr")
    ('Cyrl', '')
    """
    return label.partition("_")[2]


def script_of_text(text: str) -> str:
    """Return the script of most letters of a text, '' if it has no letter of a known script.

    >>> script_of_text("Dobar dan, Београд!"), script_of_text("Добар дан, London!")
    ('Latn', 'Cyrl')
    """
    letters = Counter(filter(None, map(_script_of_letter, text)))
    return letters.most_common(1)[0][0] if letters else ""


def is_written_in(script: str, main_script: str) -> bool:
    """Return whether a text with letters of the script `main_script` may be written in `script`.

    >>> is_written_in("Jpan", script_of_text("今日は")), is_written_in("Latn", "Cyrl")
    (True, False)
    """
    joined = _JOINED.get(script, script)
    return (joined if joined in _CODES.values() else "") == main_script


@functools.cache
def _script_of_letter(character: str) -> str:
    if not character.isalpha():
        return ""
    return _CODES.get(unicodedata.name(character, "").partition(" ")[0], "")
