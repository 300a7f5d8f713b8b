"""A text as spaCy's English tokenizer splits it, by which datatrove counts words; written from its published rules.

https://spacy.io/usage/linguistic-features#how-tokenizer-works describes the algorithm: a run between white space loses
punctuation at both ends, mark by mark, until it is a special case, an address or has no more; what remains is split
where an infix matches. The rules below are those of spaCy 3.8 for English, with shorter lists of abbreviations.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator

from filters.unicode_classes import TERMINALS

PUNCTUATION = TERMINALS.union(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, [*range(32), *range(127, 160)]))
)
"""The characters of which datatrove takes no word to consist, except ends of sentences in other scripts."""

_LAST_LETTER = 0x32400  # no letter or symbol lies beyond
_MARKS = "!?,:;¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_QUOTES = "'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_CURRENCIES = r"(?:(?:US|C|A)?\$|[£€¥฿﷼₠-₿])"
_UNITS = (
    "km|km²|km³|m|m²|m³|dm|dm²|dm³|cm|cm²|cm³|mm|mm²|mm³|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|m/s|km/h|kmh|mph|hPa|Pa|"
    "mbar|mb|MB|kb|KB|gb|GB|tb|TB|T|G|M|K|%"
)
_CAN_NOT = "ai are ca could did do does dare had has have is may might must need ought sha should was were wo would"
_ENDINGS = {
    "i": "m ll d ve", "you": "ll d ve re", "he": "ll d s", "she": "ll d s", "it": "ll d s", "we": "ll d ve re",
    "they": "ll d ve re", "these": "ll d ve re", "those": "ll d ve re",
    **dict.fromkeys(("who", "what", "when", "where", "why", "how", "there", "that"), "s ll re ve d"),
    "this": "s ll d", "could": "ve", "might": "ve", "must": "ve", "should": "ve", "would": "ve",
}  # fmt: skip
_WORDS_OF_THEIR_OWN = frozenset("ill its hell shell shed were well whore".split())
_WHOLE = """
Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs.
Ms. p.m. a.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec. Ak.
Ala. Apr. Ariz. Ark. Calif. Colo. Conn. Del. Fla. Ga. Ia. Id. Ill. Ind. Kan. Kans. Ky. La. Mass. Mich. Minn. Miss. N.C.
N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Okla. Ore. Pa. S.C. Tenn. Va. Wash. Wis. Mt. C++ and/or 's 'S 're ma'am o'clock 'd '' '
\\n \\t 'Cause 'cause 'Cos 'cos 'Coz 'coz 'Cuz 'cuz 'bout 'em 'll 'nuff Nothin' nothin' Nuthin' ol' Ol' somethin' Somethin' doin'
Doin' goin' Goin' havin' Havin' lovin' Lovin'
:) :-) :)) :-)) :))) :-))) (: (-: ): )-: :* :-* (*: :> :< >: ;* :] =] (8 (; =) (= :] [: :} 8) 8-) ;) ;-) (; :( :-( :(( ): )-: =(
:/ :-/ :\\ =/ :| :-| :O :o :-O :-o :0 :P :-P
:p :-p :D :-D xD XD =D <3 </3 :* :-* ;D :3 >.< ^_^ -_- o_o O_O o.O T_T :'( :') ;_; \\o/ :X :x =P =3 =| >:( >:o
""".split()


def split_tokens(text: str) -> list[str]:
    """Return the tokens of a text, without white space.

    >>> split_tokens("Don't pay $5... it's at http://x.org/a-b (or 3km)... <br />Well!")[2:]
    ['pay', '$', '5', '...', 'it', "'s", 'at', 'http://x.org/a-b', '(', 'or', '3', 'km', ')', '...', '<', 'br', '/>Well', '!']
    """
    return [token for run in text.split() for token in _split_run(run)]


def is_symbol(token: str) -> bool:
    """Return whether datatrove takes a token for a symbol and not for a word.

    >>> is_symbol("..."), is_symbol("a."), is_symbol("😀")
    (True, False, False)
    """
    return PUNCTUATION.issuperset(token)


@functools.lru_cache(maxsize=1 << 16)
def _split_run(run: str) -> tuple[str, ...]:
    """Split a run of visible characters."""
    if run.isalpha() and run.isascii() and run.lower() not in _lower_specials():
        return (run,)
    special, prefix_end, suffix_start = _specials(), _prefix().match, _suffix().search
    before: list[str] = []
    after: list[str] = []
    while run and run not in special:
        prefix = prefix_end(run)
        start = prefix.end() if prefix else 0
        if start and run[start:] in special:
            before.append(run[:start])
            run = run[start:]
            break
        suffix = suffix_start(run, start)
        end = suffix.start() if suffix else len(run)
        if end < len(run) and run[:end] in special:
            after.append(run[end:])
            run = run[:end]
            break
        if not start and end == len(run):
            break
        if start:
            before.append(run[:start])
        if end < len(run):
            after.append(run[end:])
        run = run[start:end]
    return _merge_specials([*before, *_split_middle(run), *reversed(after)])


def _merge_specials(tokens: list[str]) -> tuple[str, ...]:
    """Join neighbours that together are a special case, such as ``)`` and ``:``."""
    special, at = _specials(), 0
    merged: list[str] = []
    while at < len(tokens):
        for end in range(min(len(tokens), at + 4), at + 1, -1):
            parts = special.get("".join(tokens[at:end]))
            if parts is not None:
                merged += parts
                at = end
                break
        else:
            merged.append(tokens[at])
            at += 1
    return tuple(merged)


def _split_middle(run: str) -> Iterable[str]:
    """Split what is left of a run without punctuation at its ends."""
    if not run:
        return ()
    special = _specials().get(run)
    if special is not None:
        return special
    return (run,) if _address().match(run) else _split_infixes(run)


def _split_infixes(run: str) -> Iterator[str]:
    start = 0
    for match in _infix().finditer(run):
        if match.start() == 0:
            continue
        if match.start() > start:
            yield run[start : match.start()]
        yield match[0]
        start = match.end()
    if start < len(run):
        yield run[start:]


@functools.cache
def _specials() -> dict[str, tuple[str, ...]]:
    """Return runs that are split in a way of their own."""
    found: dict[str, tuple[str, ...]] = {word: (word,) for word in _WHOLE}
    found |= {f"{letter}.": (f"{letter}.",) for letter in "abcdefghijklmnopqrstuvwxyzäöü"}
    found |= {f"{hour}{half}": (str(hour), half) for hour in range(1, 13) for half in ("am", "pm", "a.m.", "p.m.")}
    pairs = [(verb, ending) for verb in _CAN_NOT.split() for ending in ("n't", "nt")]
    pairs += [(word, mark + ending) for word, many in _ENDINGS.items() for ending in many.split() for mark in ("'", "")]
    pairs += [("can", "not"), ("gon", "na"), ("got", "ta"), ("let", "'s"), ("c'm", "on")]
    for word, ending in pairs:
        if word + ending not in _WORDS_OF_THEIR_OWN:
            for spelled in (word, word.capitalize()):
                found[spelled + ending] = (spelled, ending)
                if ending in ("'d", "'ll", "n't"):
                    found[spelled + ending + "'ve"] = (spelled, ending, "'ve")
    curly = {run: parts for run, parts in found.items() if "'" in run}
    return found | {_curl(run): tuple(map(_curl, parts)) for run, parts in curly.items()}


@functools.cache
def _lower_specials() -> frozenset[str]:
    return frozenset(run.lower() for run in _specials() if run.isalpha())


def _curl(text: str) -> str:
    return text.replace("'", "’")


@functools.cache
def _letters() -> tuple[str, str, str]:
    """Return the insides of character classes: letters that are not capital, that are not small, and symbols."""
    small, capital, symbols = [], [], []
    for code in range(_LAST_LETTER):
        category = unicodedata.category(chr(code))
        if category[0] == "L":
            small += [code] * (category != "Lu")
            capital += [code] * (category != "Ll")
        elif category == "So":
            symbols.append(code)
    return _ranges(small), _ranges(capital), _ranges(symbols)


def _ranges(codes: list[int]) -> str:
    """Return ascending code points as the inside of a character class."""
    parts = []
    start = 0
    for at in range(1, len(codes) + 1):
        if at == len(codes) or codes[at] != codes[at - 1] + 1:
            parts.append(f"{re.escape(chr(codes[start]))}-{re.escape(chr(codes[at - 1]))}")
            start = at
    return "".join(parts)


@functools.cache
def _prefix() -> re.Pattern[str]:
    marks, (_, _, symbols) = re.escape(_MARKS + _QUOTES), _letters()
    return re.compile(rf"[§%=—–…{marks}]|\+(?![0-9])|\.\.+|{_CURRENCIES}|[{symbols}]")


@functools.cache
def _suffix() -> re.Pattern[str]:
    marks, (small, capital, symbols) = re.escape(_MARKS + _QUOTES), _letters()
    return re.compile(
        rf"(?:['’][sS]|[…—–{marks}]|\.\.+|[{symbols}]|(?<=[0-9])(?:\+|{_CURRENCIES}|{_UNITS})"
        rf"|(?<=°[FfCcKk])\.|(?<=[0-9{small}%²+\-{marks}])\.|(?<=[{capital}][{capital}])\.)\Z"
    )


@functools.cache
def _infix() -> re.Pattern[str]:
    small, capital, symbols = _letters()
    letter, quotes = r"[^\W\d_]", re.escape(_QUOTES)
    return re.compile(
        rf"\.\.+|…|[{symbols}]|(?<=[0-9])[+\-*^](?=[0-9-])|(?<=[{small}{quotes}])\.(?=[{capital}{quotes}])"
        rf"|(?<={letter}),(?={letter})|(?:(?<={letter})|(?<=[0-9]))(?:---|--|——|[-–—~:<>=/])(?={letter})"
    )


@functools.cache
def _address() -> re.Pattern[str]:
    """Return a pattern of web and mail addresses."""
    part = r"[A-Za-z0-9\u00a1-\uffff]"
    host = rf"(?:(?:{part}[A-Za-z0-9\u00a1-\uffff_-]{{0,62}})?{part}\.)+[{_letters()[0]}]{{2,63}}"
    return re.compile(
        rf"(?:[\w+.-]{{2,}}://)?(?:\S+@)?(?:{host}|\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::\d{{2,5}})?(?:[/?#]\S*)?\Z"
    )
