from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.words import words
from pipeline.builder.dedup.minhash import MinHasher, shingle_sets
from pipeline.errors import ConfigError
from tests.stream.order_oracle import mix64

MASK = (1 << 64) - 1


def long_hashes(text: str, ngram: int) -> list[int]:
    """The definition, word by word."""
    found_words = [word for word, *_ in words(text)]
    hashes = []
    for word in found_words:
        h = 0xCBF29CE484222325
        for character in word:
            h = ((h ^ ord(character)) * 0x100000001B3) & MASK
        hashes.append(mix64(h))
    found = []
    for k in range(max(1, len(found_words) - ngram + 1) if found_words else 0):
        s = 0
        for h in hashes[k : k + ngram]:
            s = mix64((s * 0x9E3779B97F4A7C15 + h) & MASK)
        found.append(s)
    return found


def shingle_hashes(text: str, ngram: int) -> list[int]:
    return [value >> 32 for value in long_hashes(text, ngram)]


def reference(text: str, ngram: int = 5, values: int = 112) -> list[int]:
    """datasketch's signature of the same shingle hashes."""
    from datasketch import MinHash

    signature = MinHash(num_perm=values, seed=1, hashfunc=lambda value: value, scheme="affine32")
    for value in shingle_hashes(text, ngram):
        signature.update(value)
    return signature.hashvalues.tolist()


@given(text=st.text(max_size=200), ngram=st.integers(1, 7))
def test_signatures_equal_datasketch_on_any_text(text: str, ngram: int) -> None:
    hasher = MinHasher(ngram=ngram, bands=4, rows=8)
    assert hasher.signatures([text])[0].tolist() == reference(text, ngram, 32)


@pytest.mark.parametrize(
    "text", ["", " .,!\n", "a", "two words", "İstanbul ΟΔΟΣ ς Σ", "ǅ ß STRASSE ﬁ", "one_two 3 ４ 五", "\ud800 x"]
)
def test_odd_texts_equal_the_definition(text: str) -> None:
    assert MinHasher().signatures([text])[0].tolist() == reference(text)


@given(texts=st.lists(st.text(st.sampled_from("ab .ß"), max_size=60), max_size=5), ngram=st.integers(1, 6))
def test_sets_of_shingles_equal_the_definition(texts: list[str], ngram: int) -> None:
    found = list(shingle_sets(texts, ngram))
    sets = [set(long_hashes(text, ngram)) for text in texts]
    assert [values.tolist() for values in found] == [sorted(values) for values in sets]


def test_values_beyond_the_bands_do_not_change_those_of_the_bands() -> None:
    texts = ["a rose is a rose is a rose", "another text"]
    wide = MinHasher(num_perm=128)
    assert wide.signatures(texts).shape == (2, 128)
    assert (wide.signatures(texts) == MinHasher(bands=16, rows=8).signatures(texts)).all()
    with pytest.raises(ConfigError, match="num_perm=64"):
        MinHasher(num_perm=64)
