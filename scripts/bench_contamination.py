"""Measure decontamination: which leaked items a build finds, and which innocent documents it drops.

    python scripts/bench_contamination.py corpus/*.jsonl.zst

300 passages of the corpus become the items of an evaluation set, and the documents that share words with them leave the corpus.
Each item is then put into nine other documents: alone, as a paragraph, over lines of eight words, within a sentence, and in
five disguises. 120 further items quote common text: licences and boilerplate, formulas and tables, famous quotations and
idioms. A document that has the same common text, and nothing else of the item, must stay.

``--share 0 --common 1`` drop a document for any run of 13 words, as GPT-3 did.
"""

from __future__ import annotations

import argparse
import html
import random
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.builder.dedup.decontaminate import Decontaminator
from pipeline.builder.dedup.word_runs import find_words
from scripts.bench.data import read_inputs
from scripts.bench.report import table

ITEMS, HARD = 300, 40
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u4e00-\u9fff]")
FORMULAS = (
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P",
    "2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765",
    "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536",
    "3.14159 26535 89793 23846 26433 83279 50288 41971 69399 37510 58209 74944 59230 78164",
    "(a + b)^2 = a^2 + 2 a b + b^2, (a - b)^2 = a^2 - 2 a b + b^2, a^2 - b^2 = (a + b)(a - b)",
    "x = (-b + sqrt(b^2 - 4 a c)) / (2 a) or x = (-b - sqrt(b^2 - 4 a c)) / (2 a)",
    "sin(x + y) = sin x cos y + cos x sin y, cos(x + y) = cos x cos y - sin x sin y",
    "| 1 | 2 | 3 | 4 | 5 |\n| 2 | 4 | 6 | 8 | 10 |\n| 3 | 6 | 9 | 12 | 15 |\n| 4 | 8 | 12 | 16 | 20 |",
    "January February March April May June July August September October November December 2023 2024",
    "00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10 11 12 13 14 15 16 17 18 19 1A 1B 1C 1D 1E 1F",
    r"\int_0^1 x^2 dx = \frac{1}{3}, \int_0^1 x^3 dx = \frac{1}{4}, \int_0^1 x^n dx = \frac{1}{n+1}",
    r"\sum_{k=1}^{n} k = \frac{n(n+1)}{2}, \sum_{k=1}^{n} k^2 = \frac{n(n+1)(2n+1)}{6}",
    "1900 1910 1920 1930 1940 1950 1960 1970 1980 1990 2000 2010 2020 2030 2040 2050",
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn",
    "Mon Tue Wed Thu Fri Sat Sun 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21",
    "x1 + x2 + x3 = 6, x1 - x2 + 2 x3 = 5, 2 x1 + x2 - x3 = 1, x1, x2, x3 >= 0",
    "0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1.0 1.1 1.2 1.3 1.4 1.5",
    "f(x + h) = f(x) + h f'(x) + h^2 f''(x) / 2 + h^3 f'''(x) / 6 + O(h^4)",
)
QUOTATIONS = (
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness",
    "Four score and seven years ago our fathers brought forth on this continent a new nation, conceived in liberty",
    "We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator",
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do",
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: rough winds do shake",
    "Ask not what your country can do for you, ask what you can do for your country, and for the freedom of man",
    "The only thing we have to fear is fear itself: nameless, unreasoning, unjustified terror which paralyzes needed efforts",
    "Give me liberty, or give me death! I know not what course others may take, but as for me",
    "Our Father which art in heaven, hallowed be thy name. Thy kingdom come. Thy will be done in earth, as it is in heaven",
    "The Lord is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me",
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse",
    "Friends, Romans, countrymen, lend me your ears; I come to bury Caesar, not to praise him. The evil that men do",
    "Two roads diverged in a yellow wood, and sorry I could not travel both and be one traveler, long I stood",
    "Water, water, every where, and all the boards did shrink; water, water, every where, nor any drop to drink",
    "If I have seen further than others, it is by standing on the shoulders of giants, as the saying has it",
    "A bird in the hand is worth two in the bush, but a stitch in time saves nine, as they say",
    "You can fool all the people some of the time, and some of the people all the time, but not all",
    "Early to bed and early to rise makes a man healthy, wealthy and wise, and the early bird catches the worm",
    "Do unto others as you would have them do unto you, for an eye for an eye makes the whole world blind",
    "Twinkle, twinkle, little star, how I wonder what you are! Up above the world so high, like a diamond in the sky",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--share", type=float, help="as --decontaminate-share (default: that of a build)")
    parser.add_argument("--common", type=float, help="as --decontaminate-common (default: that of a build)")
    parser.add_argument("--items", type=int, default=ITEMS, help="items that leak (default: 300)")
    options = parser.parse_args(arguments)
    draw = random.Random(0)
    texts = {document.id: document.text for document in read_inputs(options.inputs)}
    with tempfile.TemporaryDirectory() as folder:
        corpus, items, ways, families = make(texts, draw, options.items)
        chosen = {"decontaminate_share": options.share, "decontaminate_common": options.common}
        settings = {name: value for name, value in chosen.items() if value is not None}
        dropped = build(Path(folder), corpus, items, **settings)
        report(dropped, ways, families)
    return 0


def make(texts: dict[str, str], draw: random.Random, count: int) -> Any:
    """Return the documents of the corpus, the items, and which documents have a leak or only common text."""
    leaks = passages(list(texts.values()), draw, count)
    grams = Decontaminator(leaks)
    corpus = {id: text for id, text in texts.items() if not len(grams.matches([text])[0])}
    items = {f"leak{number}": leak for number, leak in enumerate(leaks)}
    hosts = [id for id, text in corpus.items() if 300 < len(text) < 5_000 and "licen" not in text.lower()]
    draw.shuffle(hosts)
    ways: dict[str, list[str]] = {}
    for way, put in WAYS.items():
        for leak in leaks:
            host = hosts.pop()
            corpus[host] = put(corpus[host], leak, draw)
            ways.setdefault(way, []).append(host)
    families: dict[str, list[str]] = {}
    common = {
        "licences and boilerplate": boilerplate(list(corpus.values()), draw),
        "formulas and tables": [FORMULAS[k % len(FORMULAS)] for k in range(HARD)],
        "quotations and idioms": [QUOTATIONS[k % len(QUOTATIONS)] for k in range(HARD)],
    }
    asked = passages([corpus[host] for host in hosts[:4_000]], draw, 3 * HARD, of=12, to=30)
    for family, quoted in common.items():
        for number, quote in enumerate(quoted):
            # An item's own words are a passage of no document here: its words are shuffled.
            question = asked.pop().split()
            draw.shuffle(question)
            items[f"{family}{number}"] = f"{quote}\n{' '.join(question)}"
            host = hosts.pop()
            corpus[host] = own_paragraph(corpus[host], quote, draw)
            families.setdefault(family, []).append(host)
    return corpus, items, ways, families


def passages(texts: list[str], draw: random.Random, count: int, of: int = 20, to: int = 60) -> list[str]:
    """Return ``count`` runs of words, of different texts."""
    found = []
    for text in draw.sample(texts, len(texts)):
        length, spans = draw.randint(of, to), find_words([text]).spans
        if len(spans) > length + 2:
            first = draw.randrange(len(spans) - length)
            passage = text[spans[first, 0] : spans[first + length - 1, 1]]
            # Signs and numbers are no test of leaks; see the second family.
            if sum(map(str.isalpha, passage)) > 0.7 * len(passage):
                found.append(" ".join(passage.split()))
        if len(found) == count:
            break
    return found


def boilerplate(texts: list[str], draw: random.Random) -> list[str]:
    """Return passages of licences and notices: every run of 13 words in them is in three documents or more."""
    counts: dict[int, int] = {}
    hashes = []
    for text in texts:
        words = find_words([text]).hashes
        runs = np.lib.stride_tricks.sliding_window_view(words, 13) if len(words) >= 13 else np.zeros((0, 13), np.uint64)
        keys = (runs * np.arange(1, 26, 2, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        hashes.append(keys)
        for key in np.unique(keys).tolist():
            counts[key] = counts.get(key, 0) + 1
    found: list[str] = []
    taken: set[int] = set()
    for number in draw.sample(range(len(texts)), len(texts)):
        keys, text = hashes[number], texts[number]
        often = np.array([counts[key] >= 3 for key in keys.tolist()], bool)
        length = draw.randint(14, 40)
        for first in range(0, len(often) - length, 7):
            window = keys[first : first + length - 12].tolist()
            if often[first : first + length - 12].all() and not taken.intersection(window):
                spans = find_words([text]).spans
                found.append(" ".join(text[spans[first, 0] : spans[first + length - 1, 1]].split()))
                taken.update(keys.tolist())
                break
        if len(found) == HARD:
            break
    return found


def alone(host: str, item: str, draw: random.Random) -> str:
    return item


def own_paragraph(host: str, item: str, draw: random.Random) -> str:
    paragraphs = host.split("\n\n")
    paragraphs.insert(draw.randint(0, len(paragraphs)), item)
    return "\n\n".join(paragraphs)


def in_lines(host: str, item: str, draw: random.Random) -> str:
    return own_paragraph(host, lines(item, 8), draw)


def embedded(host: str, item: str, draw: random.Random) -> str:
    words = host.split(" ")
    at = draw.randint(0, len(words))
    return " ".join([*words[:at], item, *words[at:]])


def lines(item: str, words: int) -> str:
    every = item.split() if not UNSPACED.search(item) else re.findall(rf"\S{{1,{words}}}", item)
    return "\n".join(" ".join(every[first : first + words]) for first in range(0, len(every), words))


def disguised(disguise: Callable[[str, random.Random], str]) -> Callable[[str, str, random.Random], str]:
    return lambda host, item, draw: own_paragraph(host, disguise(item, draw), draw)


def each_word(item: str, every: int, change: Callable[[str], str]) -> str:
    """Change one in ``every`` of the words of letters."""
    number = 0

    def changed(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return match[0] if number % every else change(match[0])

    return re.sub(r"[^\W\d_]{4,}", changed, item)


def compatible(item: str, draw: random.Random) -> str:
    """Write letters as others that look alike: full width, ligatures, bold of mathematics; spaces that do not break."""
    wide = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
    item = each_word(item.replace("fi", "\ufb01").replace("fl", "\ufb02"), 2, lambda word: word.translate(wide))
    return item.replace(" ", "\u00a0").replace("...", "\u2026")


def soft_hyphens(item: str, draw: random.Random) -> str:
    return each_word(item, 1, lambda word: f"{word[:2]}\u00ad{word[2:]}")


def zero_width(item: str, draw: random.Random) -> str:
    marks = "\u200b\u200c\u200d\u2060\ufeff"
    return each_word(item, 2, lambda word: f"{word[:2]}{draw.choice(marks)}{word[2:]}").replace(" ", " \u200b")


def parted(item: str, draw: random.Random) -> str:
    """Part a word at the end of each line."""
    return each_word(item, 6, lambda word: f"{word[:2]}-\n{word[2:]}")


def entities(item: str, draw: random.Random) -> str:
    item = html.escape(each_word(item, 3, lambda word: f"{word[0]}\0{ord(word[1])}\0{word[2:]}"))
    item = re.sub("\0(\\d+)\0", r"&#\1;", item).replace("\u2014", "&mdash;").replace(" ", " &nbsp;", 1)
    return re.sub(r"[^\x00-\x7f]", lambda match: f"&#x{ord(match[0]):x};", item)


WAYS: dict[str, Callable[[str, str, random.Random], str]] = {
    "alone": alone,
    "a paragraph": own_paragraph,
    "over lines of 8 words": in_lines,
    "in a sentence": embedded,
    "compatibility characters": disguised(compatible),
    "soft hyphens": disguised(soft_hyphens),
    "zero-width characters": disguised(zero_width),
    "words parted at line ends": disguised(parted),
    "HTML entities": disguised(entities),
}


def build(folder: Path, corpus: dict[str, str], items: dict[str, str], **settings: Any) -> set[str]:
    """Return the ids of the documents that a build drops as contaminated."""
    source = write(folder / "corpus.jsonl", corpus)
    evaluation = write(folder / "items.jsonl", items)
    pipeline.build(
        source,
        folder / "out",
        tokenizer="bytes",
        rules="none",
        dedup=False,
        decontaminate=str(evaluation),
        keep_rejected=True,
        progress=pipeline.Progress(quiet=True),
        **settings,
    )
    rejected = map(orjson.loads, (folder / "out/rejected.jsonl").read_bytes().splitlines())
    return {line["id"] for line in rejected if line["reason"].startswith("contaminated")}


def write(path: Path, texts: dict[str, str]) -> Path:
    path.write_bytes(b"".join(orjson.dumps({"id": id, "text": text}) + b"\n" for id, text in texts.items()))
    return path


def report(dropped: set[str], ways: dict[str, list[str]], families: dict[str, list[str]]) -> None:
    table("Leaked items", ["way", "found"], [[way, share(dropped, ids)] for way, ids in ways.items()])
    table("Innocent documents", ["family", "dropped"], [[name, share(dropped, ids)] for name, ids in families.items()])
    others = dropped.difference(*ways.values(), *families.values())
    print(f"\n{len(others):,} other documents were dropped")


def share(dropped: set[str], ids: Sequence[str]) -> str:
    found = len(dropped.intersection(ids))
    return f"{found:,} of {len(ids):,} ({found / max(1, len(ids)):.1%})"


if __name__ == "__main__":
    sys.exit(main())
