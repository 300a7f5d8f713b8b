from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.words import words
from pipeline.builder.dedup.bands import KeyFiles, write_keys
from pipeline.builder.dedup.kept_texts import LATEST
from pipeline.builder.dedup.lsh import REPRESENTATIVES, star_edges, write_clusters
from pipeline.builder.dedup.minhash import EMPTY, MinHasher, shingle_sets
from pipeline.builder.dedup.row_files import PIECE_ROWS, Piece, Rows, npy_pieces
from pipeline.builder.limits import Limits
from pipeline.builder.outcome import EXACT, KEPT, NEAR
from pipeline.builder.stages.dedup import Job, find_duplicates
from pipeline.builder.stages.stage import Step
from pipeline.errors import BuildError, ConfigError
from pipeline.text.hashes import text_hashes
from scripts.bench.data import read_inputs
from scripts.bench_dedup import true_pairs
from tests.helpers.builds import Built, digests, kept, rejected, run_plain, table, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import english
from tests.stream.order_oracle import mix64


class Found(NamedTuple):
    """What became of each document that is not of an earlier build, documents counted from the first of all."""

    keeper: np.ndarray
    kind: np.ndarray
    cluster_size: np.ndarray


Find = Callable[..., Found]


@pytest.fixture(scope="session")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Return a function that runs the whole stage on hashes and signatures."""

    def run(hashes: np.ndarray, signatures: np.ndarray, pieces: int = 1, lengths: Any = None, **job: Any) -> Found:
        folder = tmp_path_factory.mktemp("dedup")
        before = job.get("before", 0)
        files = [written(folder / name, rows, pieces) for name, rows in (("h", hashes), ("s", signatures))]
        settings = {"num_perm": signatures.shape[1], "bands": 14, "rows": 8, "threshold": 0.8, **job}
        Job(*files, **settings).write(folder)
        ordered = None if lengths is None else [np.asarray(lengths)[before:]]
        roots, exact, best = find_duplicates(folder, serially, ordered)
        write_clusters(folder, roots, exact, before, best)
        found = Found(*(np.load(folder / f"{name}.npy") for name in Found._fields))
        shutil.rmtree(folder)
        return found._replace(keeper=found.keeper + before)

    return run


def written(path: Path, rows: np.ndarray, pieces: int) -> tuple[Piece, ...]:
    """Write rows to files, in so many pieces."""
    found = []
    for number, some in enumerate(np.array_split(rows, pieces)):
        name = path.with_suffix(f".{number}")
        some.tofile(name)
        found.append(Piece(str(name), 0, len(some)))
    return tuple(found)


def serially(step: Step[Any]) -> None:
    for unit in step.units:
        step.function(unit)


@pytest.fixture(scope="session")
def dedup(find: Find) -> Find:
    """Return a function that runs the whole stage on texts."""
    return lambda texts, **options: find(text_hashes(texts), MinHasher().signatures(texts), **options)


def edited(text: str, words: int, seed: int = 0) -> str:
    """Replace ``words`` neighbouring words, which costs ``words + 4`` shingles."""
    parts = text.split()
    at = random.Random(seed).randrange(len(parts) - words)
    parts[at : at + words] = [f"changed{seed}x{k}" for k in range(words)]
    return " ".join(parts)


def test_rows_of_a_long_array_are_read_in_pieces_to_its_end(tmp_path: Path) -> None:
    array = np.arange(2 * (PIECE_ROWS + 1), dtype=np.uint32).reshape(-1, 2)
    np.save(tmp_path / "rows.npy", array)
    rows = Rows([*npy_pieces(tmp_path / "rows.npy")], 2, np.uint32)
    assert [piece.rows for piece in rows.pieces] == [PIECE_ROWS, 1]
    assert np.array_equal(rows.take(np.arange(len(array))), array)


def test_an_edited_copy_is_near_and_the_first_in_input_order_stays(dedup: Find) -> None:
    text = english(1, 40)
    half = " ".join(text.split()[: len(text.split()) // 2])  # below the threshold
    found = dedup([half, edited(text, 2), text, english(2, 40)])
    assert found.keeper.tolist() == [0, 1, 1, 3]
    assert found.kind.tolist() == [KEPT, KEPT, NEAR, KEPT]
    found = dedup([text, text, edited(text, 2), "new text here"], before=2)  # those of earlier builds win
    assert found.keeper.tolist() == [0, 3]
    assert found.kind.tolist() == [NEAR, KEPT]


def chain(count: int) -> list[str]:
    """Return texts of which each lacks the first 80 words of the one before, and has 80 others at its end."""
    parts = english(1, 160).split()
    return [" ".join(parts[80 * k : 80 * k + 900]) for k in range(count)]


def similarities(texts: list[str]) -> np.ndarray:
    signatures = MinHasher().signatures(texts)
    return (signatures[:, None] == signatures).mean(axis=2)


def test_a_text_that_only_a_chain_joins_to_the_kept_text_stays(dedup: Find) -> None:
    texts = chain(5)
    alike = similarities(texts) >= 0.8
    assert alike[range(4), range(1, 5)].all()
    assert not alike[range(3), range(2, 5)].any()
    found = dedup(texts)
    assert found.keeper.tolist() == [0, 0, 2, 2, 4]
    assert found.cluster_size.tolist() == [2, 2, 2, 2, 1]
    found = dedup(texts, lengths=[1, 2, 1, 3, 2])  # the fourth is judged first, and then the second
    assert found.keeper.tolist() == [1, 1, 1, 3, 3]  # the third is nearer to the second
    assert dedup(texts, lengths=[1, 2, 1, 3, 2], before=1).keeper.tolist() == [0, 3, 3, 3]  # the earlier build's wins


def test_a_copy_of_a_dropped_text_of_a_chain_goes_with_it(dedup: Find) -> None:
    a, b, c = chain(3)
    found = dedup([b, a, b, c, a, c], lengths=[2, 3, 2, 1, 3, 1])
    assert found.keeper.tolist() == [1, 1, 1, 3, 1, 3]
    assert found.kind.tolist() == [NEAR, KEPT, NEAR, KEPT, EXACT, EXACT]


@pytest.mark.parametrize("parts", [2, 5, 29])
def test_a_build_in_parts_keeps_what_one_build_keeps(dedup: Find, parts: int) -> None:
    texts = [*chain(9), *(edited(english(2, 60), 6 + k, k) for k in range(17)), english(2, 60), english(3), english(3)]
    texts = [texts[k] for k in np.random.RandomState(0).permutation(len(texts))]
    whole = [texts[k] for k in np.flatnonzero(dedup(texts).kind == KEPT)]
    assert 3 < len(whole) < 20
    kept = list[str]()
    for some in np.array_split(np.arange(len(texts)), parts):
        new = [texts[k] for k in some]
        kept += [new[k] for k in np.flatnonzero(dedup(kept + new, before=len(kept)).kind == KEPT)]
    assert kept == whole


def test_the_report_counts_clusters_of_kept_texts_and_what_each_was_kept_for(tmp_path: Path, says: Says) -> None:
    copies = [english(2, 60) + more for more in ("", " end", " fin")]
    out = Built.of(tmp_path, [*chain(3), *copies], keep_rejected=True)
    assert out.counts["near_cluster_sizes"] == {"2": 1, "3": 1}
    reasons = {line["id"]: line["reason"].partition(" (")[0] for line in out.rejected}
    assert reasons == {f"d{k}": f"near duplicate of d{kept}" for k, kept in ((1, 0), (4, 3), (5, 3))}
    says(0, "inspect", out, shows="2  clusters of near duplicates; by documents: 1 of 2, 1 of 3 to 4\n")


def test_the_earliest_of_many_equal_documents_stays() -> None:
    keys = np.random.default_rng(0).integers(0, 3, 5000).astype(np.uint64)
    first = [int(np.flatnonzero(keys == key)[0]) for key in range(3)]
    (edges,) = star_edges(keys, np.arange(5000, dtype=np.uint32), lambda a, b: np.ones(len(a), bool))
    own = [[first[key], number] for number, key in enumerate(keys.tolist()) if number != first[key]]
    assert sorted(edges.tolist()) == sorted(own)


@pytest.mark.parametrize("keep", [pytest.param("first", marks=pytest.mark.nightly), "longest", "score:quality"])
def test_any_number_of_workers_keeps_the_same_documents_of_clusters(tmp_path: Path, keep: str) -> None:
    texts = [edited(english(k % 4, 40), 1 + k // 4, k) for k in range(24)]
    records = [{"text": text, "quality": (k * 7) % 11} for k, text in enumerate(texts)]
    source = write_jsonl(tmp_path / "in.jsonl", records)
    options: dict[str, Any] = {"dedup_keep": keep, "keep_fields": "quality:float", "keep_rejected": True}
    small = Limits(smallest_unit_bytes=20_000, unit_bytes=20_000)  # three units
    run_plain(source, tmp_path / "one", **options)
    run_plain(source, tmp_path / "two", workers=2, limits=small, **options)
    assert digests(tmp_path / "two") == digests(tmp_path / "one")
    highest = {"first": lambda k: -k, "longest": lambda k: len(texts[k]), "score:quality": lambda k: (k * 7) % 11}[keep]
    best = [max(range(group, 24, 4), key=lambda k: (highest(k), -k)) for group in range(4)]
    assert sorted(kept(tmp_path / "one")) == sorted(texts[k] for k in best)


def test_the_document_of_the_highest_score_stays_and_the_first_of_equal_scores(tmp_path: Path) -> None:
    texts = [english(k, 60) for k in range(5)]
    rows = [(texts[0], -2.5), (edited(texts[0], 2), -1), (texts[0], 0.5), (texts[0], 0.5)]  # the last two are equal
    rows += [(texts[1], None), (texts[1], -9.0), (texts[2], 3), (edited(texts[2], 2), 3.0), (texts[3], None)]
    rows += [(texts[4], 1)]
    records = [{"id": f"d{k}", "text": text, "quality": score} for k, (text, score) in enumerate(rows)]
    for name, limits in (("one", Limits()), ("many", Limits(partition_records=3, batch_records=3))):
        options: dict[str, Any] = {"keep_fields": "quality:float", "dedup_keep": "score:quality", "limits": limits}
        source = write_jsonl(tmp_path / "in.jsonl", records)
        counts = run_plain(source, tmp_path / name, keep_rejected=True, **options).counts
        assert table(tmp_path / name)["id"] == ["d2", "d5", "d6", "d8", "d9"]
        assert counts["duplicates"] == {"exact": 3, "near": 2}
        assert counts["near_cluster_sizes"] == {"2": 1, "4": 1}
        reasons = {line["id"]: line["reason"].partition(" (")[0] for line in rejected(tmp_path / name)}
        assert reasons["d0"] == reasons["d3"] == "exact duplicate of d2"
        assert reasons["d1"] == "near duplicate of d2"
    assert digests(tmp_path / "one") == digests(tmp_path / "many")


def test_the_first_of_the_longest_stays_but_an_earlier_build_wins(dedup: Find) -> None:
    text, longer = english(1, 40), english(1, 40) + " and more"
    texts = [text, longer, longer, english(2, 40)]
    lengths = np.array([len(t) for t in texts])
    assert dedup(texts, lengths=lengths).keeper.tolist() == [1, 1, 1, 3]
    assert dedup(texts, lengths=lengths).kind.tolist() == [NEAR, KEPT, EXACT, KEPT]
    assert dedup(texts, lengths=lengths, before=1).keeper.tolist() == [0, 0, 3]


def with_values(base: np.ndarray, places: list[int], value: int) -> np.ndarray:
    """Return a signature that differs from ``base`` at ``places``."""
    changed = base.copy()
    changed[places] = value
    return changed


def numbered(count: int) -> np.ndarray:
    return np.arange(2 * count, dtype="<u8").reshape(count, 2).view(np.uint8)


@pytest.mark.parametrize(("equal", "keeper"), [(90, [0, 0]), (89, [0, 1])])
def test_candidates_that_agree_on_too_few_values_stay(find: Find, equal: int, keeper: list[int]) -> None:
    base = np.arange(112, dtype=np.uint32)  # 90 of 112 is the first share above 0.8; 8 equal values make a candidate
    signatures = np.stack([base, with_values(base, list(range(equal, 112)), 999)])
    assert find(numbered(2), signatures).keeper.tolist() == keeper


def plainly(signatures: np.ndarray, threshold: float, lengths: list[int], before: int) -> list[int]:
    """Return each document's keeper by the letter of the definition, for documents of different texts."""
    component = list(range(len(signatures)))
    runs: dict[tuple[int, ...], list[int]] = {}
    for document, row in enumerate(signatures):
        for band in range(3):
            values = tuple(row[8 * band : 8 * band + 8].tolist())
            if values != (0xFFFFFFFF,) * 8:
                runs.setdefault((band, *values), []).append(document)
    alike = (signatures[:, None] == signatures).mean(axis=2)
    for run in runs.values():
        rest = run
        for _ in range(REPRESENTATIVES):
            first, others = rest[:1], rest[1:]
            for k in [k for k in others if alike[first[0], k] >= threshold]:
                low, high = sorted((component[first[0]], component[k]))
                component = [low if c == high else c for c in component]
            rest = [k for k in others if alike[first[0], k] < threshold]
    keeper = list(range(len(signatures)))
    judged = list[int]()
    for document in sorted(keeper, key=lambda k: (k >= before, -lengths[k], k)):
        kept = [k for k in judged if keeper[k] == k and component[k] == component[document]]
        candidates = {k for run in runs.values() if document in run for k in [k for k in kept if k in run][-LATEST:]}
        near = [k for k in judged if k in candidates and alike[k, document] >= threshold]
        if near and document >= before:
            keeper[document] = max(near, key=lambda k: alike[k, document])  # the first of equal ones
        judged.append(document)
    return keeper


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pieces=st.integers(1, 7),
    buckets=st.sampled_from([1, 4]),
    group=st.integers(1, 50),
    before=st.sampled_from([0, 0, 9]),
    longest=st.booleans(),
)
def test_however_documents_are_cut_what_stays_is_what_the_definition_says(
    find: Find, seed: int, pieces: int, buckets: int, group: int, before: int, longest: bool
) -> None:
    random = np.random.RandomState(seed)
    models = random.randint(0, 1 << 32, (6, 24), dtype=np.uint32)
    signatures = models[random.randint(0, 6, 60)]
    changed = random.rand(60, 24) < random.rand(60, 1) * 0.4
    signatures[changed] = random.randint(0, 1 << 32, int(changed.sum()), dtype=np.uint32)
    signatures[random.rand(60) < 0.1] = EMPTY
    hashes = random.randint(0, 256, (60, 16)).astype(np.uint8)
    lengths = random.randint(0, 5, 60).tolist() if longest else None
    cut: dict[str, Any] = {"pieces": pieces, "buckets": buckets, "group_rows": group}
    found = find(hashes, signatures, lengths=lengths, bands=3, threshold=0.7, before=before, **cut)
    assert found.keeper.tolist() == plainly(signatures, 0.7, lengths or [0] * 60, before)[before:]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 5), st.sampled_from([1, 4]), st.integers(1, 9)
)
def test_equal_texts_are_found_in_one_group_and_across_groups(
    find: Find, numbers: list[int], pieces: int, buckets: int, group: int
) -> None:
    hashes = text_hashes([str(number) for number in numbers]).copy()
    hashes[:, :8] = hashes[:, :8] % 2  # many share a key, the first half, without being equal
    signatures = np.arange(len(numbers) * 16, dtype=np.uint32).reshape(-1, 16)
    found = find(hashes, signatures, pieces=pieces, buckets=buckets, group_rows=group, bands=2)
    assert found.keeper.tolist() == [numbers.index(number) for number in numbers]
    assert (found.kind != NEAR).all()


def test_what_is_read_of_all_buckets_hardly_grows_with_their_number(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    hashes = random.randint(0, 256, (4_000, 16)).astype(np.uint8)
    signatures = random.randint(0, 1 << 32, (4_000, 16), dtype=np.uint32)
    taken = []
    for buckets in (16, 4_096):
        write_keys(tmp_path / "keys", hashes, [signatures], bands=2, rows=8, buckets=buckets)
        files = KeyFiles([tmp_path / "keys"], [0, 4_000], lists=3, buckets=buckets)
        before = bytes_read()
        every = [[files.read(number, bucket) for bucket in range(buckets)] for number in range(3)]
        taken.append(bytes_read() - before)
        for held in every:
            assert sorted(np.concatenate([documents for _, documents in held]).tolist()) == list(range(4_000))
            assert (np.diff(np.concatenate([keys for keys, _ in held]).astype(np.float64)) >= 0).all()
    assert 144_000 < taken[0] < taken[1] < 3 * taken[0]


def bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    pieces = written(tmp_path / "h", numbered(6), 1)
    os.truncate(pieces[0].path, 90)
    with pytest.raises(BuildError, match=r"h\.0: 90 bytes after byte 0.* 6 rows need 96.* --overwrite"):
        Rows(pieces, 16, np.uint8).read(0)


def test_many_candidates_of_one_run_are_judged_within_the_time_limit(find: Find) -> None:
    signatures = np.arange(40_000 * 24, dtype=np.uint32).reshape(40_000, 24)
    signatures[:, :8] = 7  # one run that holds every document, and no two are alike
    assert (find(numbered(40_000), signatures, bands=3).keeper == np.arange(40_000)).all()
    found = find(numbered(20_000), np.repeat(MinHasher().signatures([english(1, 40)]), 20_000, axis=0))
    assert (found.keeper == 0).all()  # pairs would be two hundred million
    assert (found.cluster_size == 20_000).all()


@pytest.mark.nightly
def test_real_duplicates_are_found_as_often_as_theory_says_and_hardly_a_text_is_dropped_wrongly(
    dedup: Find, shared_data: Path
) -> None:
    texts = [document.text for document in read_inputs(map(str, sorted((shared_data / "dev").glob("*.zst"))))]
    found, (a, b, similarity) = dedup(texts), true_pairs(texts)
    kept = found.kind == KEPT
    for least, share in ((0.85, 0.997), (0.8, 0.97)):
        true = similarity >= least
        assert np.mean(~(kept[a] & kept[b])[true]) >= share
    near = {*a[kept[b]].tolist(), *b[kept[a]].tolist()}  # of 0.7 to a text that stays
    assert len({*np.flatnonzero(~kept).tolist()} - near) <= 2


def test_near_copies_are_found_in_scripts_without_spaces(tmp_path: Path) -> None:
    letters = [chr(0x4E00 + 7 * k % 3000) for k in range(1200)]
    copies = ["".join(letters[::-1]), "".join("变" if k % 200 == 100 else letter for k, letter in enumerate(letters))]
    texts = ["，".join("".join(text[k : k + 20]) for k in range(0, 1200, 20)) for text in (letters, *copies)]
    assert Built.of(tmp_path, texts).counts["duplicates"] == {"exact": 0, "near": 1}


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


def reference(text: str, ngram: int = 5, values: int = 112) -> list[int]:
    """datasketch's signature of the same shingle hashes."""
    from datasketch import MinHash

    signature = MinHash(num_perm=values, seed=1, hashfunc=lambda value: value, scheme="affine32")
    for value in long_hashes(text, ngram):
        signature.update(value >> 32)
    return signature.hashvalues.tolist()


@given(text=st.text(max_size=200), ngram=st.integers(1, 7))
def test_signatures_equal_datasketch_on_any_text(text: str, ngram: int) -> None:
    hasher = MinHasher(ngram=ngram, bands=4, rows=8)
    assert hasher.signatures([text])[0].tolist() == reference(text, ngram, 32)


ODD = ["", " .,!\n", "a", "two words", "İstanbul ΟΔΟΣ ς Σ", "ǅ ß STRASSE ﬁ", "one_two 3 ４ 五", "\ud800 x"]


@pytest.mark.parametrize("text", ODD)
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
