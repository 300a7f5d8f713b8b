"""The words that two texts share."""

from __future__ import annotations

from filters.words import words


def shared_passage(text: str, document: str, ngram: int) -> str:
    """Return the longest passage of a document whose runs of ``ngram`` words are all in the text too; '' if there is none.

    A text of fewer words is one run.

    >>> shared_passage("A rose is a rose.", "Once more: a rose IS a thorn.", ngram=3)
    'a rose IS a'
    """
    wanted, found = [word for word, *_ in words(text)], list(words(document))
    ngram = max(1, min(ngram, len(wanted)))
    runs = {tuple(wanted[k : k + ngram]) for k in range(len(wanted) - ngram + 1)}
    best, begin = (0, 0), 0
    for k in range(len(found) - ngram + 2):
        if k > len(found) - ngram or tuple(word for word, *_ in found[k : k + ngram]) not in runs:
            begin = k + 1
        elif k - begin + ngram > best[1] - best[0]:
            best = begin, k + ngram
    return document[found[best[0]][1] : found[best[1] - 1][2]] if best[1] else ""
