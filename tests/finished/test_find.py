"""``find``: documents equal to a text or like it, passages of texts within documents, and the index beside a dataset."""

from __future__ import annotations

import json
import random
import re
import shutil
import unicodedata
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.builder.dedup.minhash import MinHasher, shingles
from pipeline.errors import ConfigError, CorruptShardError, MissingDatasetError
from pipeline.finished.diff import diff
from pipeline.finished.documents import DatasetDocuments
from pipeline.finished.find import EXACT, NEAR, PASSAGE, Match, find, shared_passage
from pipeline.finished.redaction.redact import drop
from pipeline.finished.signature_index import open_index
from pipeline.progress import Progress
from tests.helpers.builds import Built, run_plain, table, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import WORDS
from tests.helpers.faulty_server import running_server
from tests.helpers.tokenizer_samples import train

QUIET = Progress(quiet=True)


def prose(seed: int, words: int) -> str:
    generator = random.Random(seed)
    return " ".join(generator.choices([word + ending for word in WORDS for ending in ("", "s", "ing", "ed")], k=words))


def edited(text: str, edits: int, seed: int) -> str:
    """Return a text with other words at random positions."""
    words, generator = text.split(), random.Random(seed)
    for at in generator.sample(range(len(words)), edits):
        words[at] = f"word{generator.random()}"
    return " ".join(words)


def jaccard(a: str, b: str) -> float:
    one, other = set(shingles(a)), set(shingles(b))
    return len(one & other) / len(one | other)


TEXTS = [prose(number, 150 + number) for number in range(120)]


def build_texts(folder: Path, tokens_per_sample: int) -> Path:
    """Build a dataset in two splits and several shards."""
    options = {"val_fraction": 0.2, "tokens_per_shard": 8_000, "tokens_per_sample": tokens_per_sample}
    run_plain([f"books={write_jsonl(folder / 'in.jsonl', TEXTS)}"], folder / "set", **options)
    splits = pipeline.Manifest.read(folder / "set").splits
    assert min(len(split.shards) for split in splits.values()) > 1
    return folder / "set"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose members hold several documents, which tests leave as it is."""
    return build_texts(tmp_path_factory.mktemp("find"), 5_000)


def ask(dataset: Path, texts: Sequence[str], **options: Any) -> list[list[Match]]:
    return find(dataset, texts, progress=QUIET, **options)


@pytest.mark.parametrize("tokens_per_sample", [0, 5_000])
def test_every_document_is_found_exactly_with_its_place_and_source(tmp_path: Path, tokens_per_sample: int) -> None:
    built = build_texts(tmp_path, tokens_per_sample)
    documents = DatasetDocuments(built)
    for number, matches in enumerate(ask(built, TEXTS)):
        assert [match.kind for match in matches] == [EXACT]
        [match] = matches
        columns = table(built, match.split)
        at = columns["key"].index(match.key)
        assert (match.id, columns["id"][at], match.source) == (f"d{number}", f"d{number}", "books")
        assert (match.likeness, match.passage, int(match.key)) == (1.0, TEXTS[number], number)
        info = next(info for info in pipeline.Manifest.read(built).shards if info.name == match.shard)
        assert documents.table(info)["key"][match.document] == match.key


def test_documents_are_found_in_a_dataset_from_which_others_were_dropped(built: Path, tmp_path: Path) -> None:
    drop(built, ["d0", "d50"], "opt-out", tmp_path / "new")
    drop(tmp_path / "new", ["d70"], "opt-out", tmp_path / "newer")
    for dataset, gone in ((tmp_path / "new", {0, 50}), (tmp_path / "newer", {0, 50, 70})):
        found = [[match.id for match in matches] for matches in ask(dataset, TEXTS)]
        assert found == [[f"d{number}"] * (number not in gone) for number in range(len(TEXTS))]


def test_planted_copies_are_found_as_brute_force_finds_them(built: Path) -> None:
    planted = [(edited(TEXTS[k], edits, k), k) for k in range(0, 120, 3) for edits in (1, 2, 4, 8)]
    true = [jaccard(text, TEXTS[k]) for text, k in planted]
    found = ask(built, [text for text, _ in planted])
    for (text, k), likeness, matches in zip(planted, true, found, strict=True):
        assert {match.id for match in matches} <= ({f"d{k}"} if likeness >= 0.8 else set())
        for match in matches:
            assert match.kind == NEAR
            assert match.likeness == pytest.approx(likeness)
            assert abs(match.estimate - likeness) < 0.15  # type: ignore[operator]
            assert match.passage in TEXTS[k]
            assert match.passage in text
    alike = [likeness >= 0.8 for likeness in true]
    assert 50 < sum(alike) < len(alike)
    assert sum(map(bool, found)) > 0.95 * sum(alike)
    assert all(matches for matches, likeness in zip(found, true, strict=True) if likeness >= 0.9)


def test_the_last_of_many_documents_is_found_by_its_likeness(tmp_path: Path) -> None:
    texts = [*(f"text {number}" for number in range(16_400)), prose(0, 80)]  # an index reads 16,384 signatures at once
    (found,) = ask(Built.of(tmp_path, texts), [edited(texts[-1], 1, 0)])
    assert [match.id for match in found] == ["d16400"]


def test_candidates_are_those_of_datasketch_with_the_kept_signatures(built: Path) -> None:
    from datasketch import LeanMinHash, MinHashLSH

    index = open_index(DatasetDocuments(built), None, QUIET)
    reference = MinHashLSH(num_perm=112, params=(14, 8))
    signatures = np.load(built / "signatures" / "signatures.npy")
    for number, signature in enumerate(signatures):
        reference.insert(number, LeanMinHash(seed=1, hashvalues=signature, scheme="affine32"))
    asked = MinHasher().signatures([edited(text, edits, edits) for text in TEXTS[:40] for edits in (3, 15)])
    sizes = set()
    for signature in asked:
        expected = set(reference.query(LeanMinHash(seed=1, hashvalues=signature, scheme="affine32")))
        assert index.alike(signature) == {n: float((signatures[n] == signature).mean()) for n in expected}
        sizes.add(len(expected))
    assert len(sizes) > 1


def test_texts_without_words_and_texts_that_are_nowhere_are_not_found(built: Path) -> None:
    assert ask(built, ["", "...", prose(1_000, 90), "no"]) == [[], [], [], []]


def test_a_text_is_exact_only_as_it_is_after_a_cut_of_passages_and_a_later_build_knows_it_whole(tmp_path: Path) -> None:
    notice = prose(7, 60)
    texts = [f"{prose(k, 200)} {notice}" for k in range(2)]
    source = write_jsonl(tmp_path / "in.jsonl", texts)
    run_plain(source, tmp_path / "whole")
    run_plain(source, tmp_path / "set", dedup_passages=50)
    kinds = [[match.kind for match in found] for found in ask(tmp_path / "set", [*texts, prose(1, 200)], threshold=0.5)]
    assert kinds == [["exact"], ["near"], ["exact"]]
    documents = diff(tmp_path / "whole", tmp_path / "set")["documents"]
    assert documents == {"same": 1, "changed": 1, "only_a": 0, "only_b": 0}
    later = run_plain(source, tmp_path / "later", against=str(tmp_path / "set"))
    assert later.counts["duplicates"] == {"exact": 1, "near": 1}


def test_an_index_is_kept_and_made_again_when_the_dataset_changes(tmp_path: Path) -> None:
    source, kept = write_jsonl(tmp_path / "in.jsonl", TEXTS[:9]), tmp_path / "index"
    run_plain(source, tmp_path / "set")
    asked = [*TEXTS[:12], edited(TEXTS[3], 1, 0)]
    expected = ask(tmp_path / "set", asked)
    assert ask(tmp_path / "set", asked, index=kept) == expected
    written = (kept / "keys.npy").stat().st_mtime_ns
    assert ask(tmp_path / "set", asked, index=kept) == expected
    assert (kept / "keys.npy").stat().st_mtime_ns == written
    write_jsonl(source, TEXTS[5:12])
    run_plain(source, tmp_path / "set", overwrite=True)
    found = ask(tmp_path / "set", asked, index=kept)
    assert [bool(matches) for matches in found] == [k >= 5 for k in range(12)] + [False]


def test_an_index_is_made_again_when_a_build_of_other_dedup_settings_replaces_the_dataset(tmp_path: Path) -> None:
    source, kept = write_jsonl(tmp_path / "in.jsonl", TEXTS[:9]), tmp_path / "index"
    asked = [edited(text, 1, 0) for text in TEXTS[:9]]
    for options in ({}, {"dedup_ngram": 3}, {"dedup_bands": 10, "dedup_rows": 6}):
        run_plain(source, tmp_path / "set", overwrite=True, **options)
        assert [len(found) for found in ask(tmp_path / "set", asked, index=kept)] == [1] * 9


@pytest.mark.parametrize("name", ["index.json", "keys.npy", "numbers.npy"])
def test_a_damaged_index_is_made_again(built: Path, tmp_path: Path, name: str) -> None:
    file, texts = tmp_path / "index" / name, TEXTS[:3]
    expected = ask(built, texts, index=file.parent)
    before = file.read_bytes()
    for damaged in (before[:50], b"", b"\xd2" * len(before)):
        file.write_bytes(damaged)
        assert ask(built, texts, index=file.parent) == expected
        assert file.read_bytes() == before


def test_a_folder_that_is_no_index_of_ours_is_not_replaced(built: Path, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "own").mkdir()
    names = ("index.json", "shard.00000.mds", "part/keys.npy", "own/index.json")
    for name in names:
        (tmp_path / name).write_text('{"version": 2}')
    for folder in (tmp_path, tmp_path / "part", tmp_path / "own", built):
        with pytest.raises(ConfigError, match=rf"{folder.name}: this is no index; name an index"):
            ask(built, TEXTS[:1], index=folder)
    assert all(file.exists() for file in [*map(tmp_path.joinpath, names), built / "manifest.json"])


def test_damaged_signatures_and_those_of_other_documents_are_named(built: Path, tmp_path: Path) -> None:
    signatures = shutil.copytree(built, tmp_path / "set") / "signatures"
    for name, counts in (
        ("hashes", "2 hashes and 120"),
        ("signatures", "2 hashes and 2"),
        ("hashes", "121 hashes and 2"),
    ):
        rows = np.load(built / "signatures" / f"{name}.npy")
        np.save(signatures / f"{name}.npy", np.concatenate([rows, rows[:1]]) if "121" in counts else rows[:2])
        with pytest.raises(CorruptShardError, match=rf"{counts} signatures, .* 120 documents; copy"):
            ask(tmp_path / "set", TEXTS[:1])
    (signatures / "signatures.npy").write_bytes(b"")
    with pytest.raises(CorruptShardError, match=r"signatures: .* damaged .*; copy"):
        ask(tmp_path / "set", TEXTS[:1])


def test_a_dataset_at_a_url_is_asked_with_and_without_an_index(built: Path, tmp_path: Path) -> None:
    texts = [TEXTS[4], edited(TEXTS[5], 2, 0)]
    with running_server() as server:
        url = server.serve(built)
        expected = ask(built, texts)
        for index in (None, tmp_path / "index", tmp_path / "index"):
            assert find(url, texts, index=index, progress=QUIET) == expected
        copied = tmp_path / "index" / "signatures.npy"
        whole = copied.read_bytes()
        copied.write_bytes(whole[:-4])
        assert find(url, texts, index=tmp_path / "index", progress=QUIET) == expected
        assert copied.read_bytes() == whole
        with pytest.raises(MissingDatasetError, match=r"none/manifest\.json: .*; give the url"):
            find(server.url("none"), texts)


@pytest.mark.parametrize("kind", [None, "parquet", "jsonl.zst"])
def test_likeness_is_estimated_if_tokens_lose_the_text_and_no_text_is_kept(tmp_path: Path, kind: str | None) -> None:
    lossy = train("wordpiece", tmp_path / "tokenizer.json")
    out, asked = Built.of(tmp_path, TEXTS[:6], tokenizer=str(lossy), keep_texts=kind), edited(TEXTS[2], 1, 0)
    [[exact], [near]] = ask(out, [TEXTS[1], asked])
    assert (exact.kind, exact.id, near.id) == (EXACT, "d1", "d2")
    assert near.likeness == (near.estimate if kind is None else pytest.approx(jaccard(asked, TEXTS[2])))
    assert near.estimate != pytest.approx(jaccard(asked, TEXTS[2]))


def windows(text: str, length: int = 13) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    length = min(length, len(words))
    return [tuple(words[k : k + length]) for k in range(len(words) - length + 1)] if length >= 8 else []


@pytest.mark.parametrize("kind", [None, "parquet"])
def test_passages_within_documents_are_those_whose_windows_are_there(tmp_path: Path, kind: str | None) -> None:
    quiz = [prose(2_000 + k, 8 + 2 * k) for k in range(12)]
    long = [prose(3_000 + k, 700) for k in range(12)]
    for k in range(0, 12, 2):  # the beginning of a question, within a document
        words = long[k].split()
        words[300:300] = quiz[k].upper().split()[: 9 + k]
        long[k] = " ".join(words)
    found = ask(Built.of(tmp_path, long, keep_texts=kind), quiz, passages=True)
    for question, matches in zip(quiz, found, strict=True):
        asked = set(windows(question))
        sizes = len(next(iter(asked)))
        shares = [len(asked & {*windows(text, sizes)}) / len(asked) for text in long]
        expected = {f"d{k}": pytest.approx(share) for k, share in enumerate(shares) if share}
        assert {match.id: match.likeness for match in matches} == expected
        for match in matches:
            assert (match.kind, match.estimate) == (PASSAGE, None)
            assert match.passage.lower() in question
            assert len(match.passage.split()) >= 8
    assert sum(map(bool, found)) > 3


def test_the_best_documents_of_a_text_come_first_up_to_a_number(tmp_path: Path) -> None:
    text = prose(5, 60)
    documents = [" ".join([*prose(k + 10, 200).split(), *text.split()[: 20 + 10 * k]]) for k in range(4)]
    out = Built.of(tmp_path, documents)
    [matches] = ask(out, [text], passages=True, most=2)
    assert [match.id for match in matches] == ["d3", "d2"]
    [near] = ask(out, [documents[2]], threshold=0.5, most=1)
    assert [match.id for match in near] == ["d2"]


def test_texts_that_share_windows_are_each_found(tmp_path: Path) -> None:
    text = prose(7, 40)
    out = Built.of(tmp_path, [prose(8, 50), f"{prose(9, 90)} {text} {text}"])
    texts = [text, text, f"{text} {prose(10, 28)}", prose(11, 30), prose(8, 7)]
    with pytest.warns(UserWarning, match=r"1 of 5 .* too short \(under 8 words"):
        found = ask(out, texts, passages=True)
    likeness = [{match.id: match.likeness for match in some} for some in found]
    assert likeness == [{"d1": 1.0}, {"d1": 1.0}, {"d1": 0.5}, {}, {}]


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab 中。", max_size=12), document=st.text("abB 中。", max_size=24), ngram=st.integers(1, 3))
def test_the_passage_is_the_longest_whose_runs_of_words_the_text_has(text: str, document: str, ngram: int) -> None:
    wanted, found = ([word.lower() for word in re.findall(r"中|[abB]+", each)] for each in (text, document))
    size = max(1, min(ngram, len(wanted)))
    runs = {tuple(wanted[k : k + size]) for k in range(len(wanted) - size + 1)}
    spans = [(begin, end) for end in range(len(found) + 1) for begin in range(end - size + 1)]
    shared = [b for b in spans if all(tuple(found[k : k + size]) in runs for k in range(b[0], b[1] - size + 1))]
    expected = max((end - begin for begin, end in shared), default=0)
    passage = shared_passage(text, document, ngram)
    assert passage in document
    assert len(re.findall(r"中|[abB]+", passage)) == expected


def test_letters_of_scripts_without_spaces_are_words_of_a_passage(tmp_path: Path) -> None:
    question = "人们为什么在夜里看见那么多的星星"
    accents = "Cafe\u0301\r\nand more words, so that it has some"  # which a build normalizes
    texts = [*(f"没有相同的内容 {k}" for k in range(300)), f"题目：{question}？请回答。", accents]
    out = Built.of(tmp_path, texts)
    [[match]] = ask(out, [question], passages=True)
    assert (match.id, match.likeness, match.passage) == ("d300", 1.0, question)
    [[match]] = ask(out, [accents])
    assert (match.id, match.kind) == ("d301", EXACT)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_passage_is_found_in_the_spellings_in_which_a_build_finds_it(tmp_path: Path, *, normalize: bool) -> None:
    question = "Le caf\u00e9 du th\u00e9\u00e2tre est ferm\u00e9 pour la fin de l'ann\u00e9e, affirme un officier."
    spelled = [
        unicodedata.normalize("NFD", question),
        question.replace("\u00e9", "&eacute;"),
        question.replace("fi", "\ufb01"),
        question.replace("ferm", "fer-\nm"),
        question.replace("th", "t\u200bh"),
    ]
    texts = [f"{prose(k, 40)} {each} {prose(k + 50, 40)}" for k, each in enumerate(spelled)]
    out = Built.of(tmp_path, texts, normalize=normalize)
    for asked in (question, *spelled):
        [matches] = ask(out, [asked], passages=True)
        assert {match.id: match.likeness for match in matches} == {f"d{k}": 1.0 for k in range(len(spelled))}
        assert all(match.passage.startswith("Le caf\u00e9 du th\u00e9\u00e2tre") for match in matches)


def test_what_cannot_be_asked_is_exit_status_2(built: Path, tmp_path: Path, says: Says) -> None:
    unsigned = Built.of(tmp_path, TEXTS[:2], keep_signatures=False)
    run_plain(tmp_path / "in.jsonl", tmp_path / "band", dedup_bands=1)
    pipeline.write_shards([[2]], tmp_path / "ids", eos_id=0, progress=QUIET)
    cases: dict[tuple[object, ...], str] = {
        (tmp_path / "none", "a text"): "manifest.json: not there",
        (unsigned, "a text"): "keeps no signatures of its documents; give",
        (tmp_path / "band", "a text"): "dedup_bands 1, but a search needs 2; build with more",
        (built, "none.jsonl"): "none.jsonl",
        (built, "none/opt-outs"): "none/opt-outs: no such file",
        (built, "none.*"): "none.*",
        (built, " "): "TEXT ' ' has no words; give a text",
        (built, "a text", "--threshold", "1.5"): "threshold must be above 0 and at most 1, got 1.5",
        (built, "too short", "--passages"): "none of 1 texts has 8 words",
        (built, "a", "--passages", "--index", "x"): "--index keeps tables of signatures, which --passages does not",
        (tmp_path / "ids", prose(1, 9), "--passages"): "ids: has no tokenizer, so its ids cannot be read as text",
        (built, "a text", "--most", "0"): "--most must be 1 or more, got 0",
        (built, tmp_path / "in.jsonl", "--text-key", "body"): "--text-key",
    }
    for arguments, message in cases.items():
        assert message in says(2, "find", *arguments).err
    for wrong, said in (([b"a"], "got b'a'"), ([None], "got None")):
        with pytest.raises(ConfigError, match=f"texts must be text or a list of texts, {said}"):
            ask(built, wrong)  # type: ignore[arg-type]
    run_plain(tmp_path / "in.jsonl", tmp_path / "bands", dedup_bands=2)
    assert [match.kind for match in ask(tmp_path / "bands", TEXTS[:1], threshold=1)[0]] == [EXACT]
    for threshold in (0, 1.01):
        with pytest.raises(ConfigError, match=f"at most 1, got {threshold}"):
            ask(built, "a text", threshold=threshold)


def test_texts_of_a_file_give_table_and_share(built: Path, tmp_path: Path, says: Says) -> None:
    near = edited(TEXTS[8], 1, 0)
    records = [{"id": "q1", "text": TEXTS[7]}, {"id": "q2", "text": near}, {"id": "q3", "text": prose(999, 80)}]
    file = write_jsonl(tmp_path / "quiz.jsonl", records)
    [[exact], [match]] = ask(built, [TEXTS[7], near])
    assert says(0, "find", built, file).out == (
        f"q1\n  exact 1.00  {exact.shard}, document {exact.document}, key 000000000007, id d7, source books\n"
        f"    | {TEXTS[7][:75]}…\n"
        f"q2\n  near {match.likeness:.2f} (estimated {match.estimate:.2f})  {match.shard}, document {match.document}, "
        f"key 000000000008, id d8, source books\n    | {match.passage[:75]}…\n"
        f"2 of 3 texts (66.7%) are in {built}: 1 exactly, 1 nearly\n"
    )
    lines = [json.loads(line) for line in says(0, "find", built, file, "--json").out.splitlines()]
    found = {line["id"]: [match["id"] for match in line["found"]] for line in lines}
    assert found == {"q1": ["d7"], "q2": ["d8"], "q3": []}
    passage, compared = " ".join(TEXTS[9].split()[30:60]), "Whole documents were compared; --passages"
    says(1, "find", built, passage, shows=f"0 of 1 texts (0.0%) are in {built}: 0 exactly, 0 nearly. {compared}")
    out = says(0, "find", built, passage, "--passages", shows="passage 100% of its windows").out
    assert out.endswith(f"1 of 1 texts (100.0%) are in {built}\n")


def items_of(says: Says, *arguments: object) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in map(json.loads, says(0, "find", *arguments, "--json").out.splitlines())}


def test_an_item_of_a_benchmark_is_dirty_by_what_all_documents_have_of_it_together(tmp_path: Path, says: Says) -> None:
    asked = prose(20, 60)
    words, filler = asked.split(), [prose(30 + k, 100) for k in range(4)]
    parts = [words[:30], words[20:45], words[20:40]]
    documents = [f"{text} {' '.join(part)}" for text, part in zip(filler, [*parts, []], strict=True)]
    out, quiz = Built.of(tmp_path, documents), [("q", asked), ("whole", filler[3]), ("clean", prose(40, 50))]
    records = [{"id": id, "text": text} for id, text in [*quiz, ("short", "too short")]]
    command = [out, "--items", write_jsonl(tmp_path / "quiz.jsonl", records)]
    lists = ["--clean", tmp_path / "clean.txt", "--dirty", tmp_path / "dirty.txt"]
    with pytest.warns(UserWarning, match="too short"):
        items = items_of(says, *command, *lists, "--most", 1)
    runs = windows(asked)
    own = {run for run in runs if any(run in windows(text) for text in documents)}
    assert {id: (item["item"], item["share"], len(item["documents"])) for id, item in items.items()} == {
        "q": ("dirty", pytest.approx(len(own) / len(runs)), 3),
        "whole": ("dirty", 1.0, 1),
        "clean": ("clean", 0.0, 0),
        "short": ("short", 0.0, 0),
    }
    assert [match["id"] for match in items["q"]["found"]] == ["d0"]
    assert items["q"]["documents"] == [f"train-000000.tar:{k}" for k in range(3)]
    assert (tmp_path / "clean.txt").read_text() == "clean\n"
    assert (tmp_path / "dirty.txt").read_text() == "q\nwhole\n"
    with pytest.warns(UserWarning, match="too short"):
        shown = says(0, "find", *command, *lists, "--threshold", "0.9").out.splitlines()
    assert f"clean q, {len(own) / len(runs):.0%} of its windows in 3 documents" in shown
    assert f"1 of 4 items (25.0%) are dirty, 2 clean, 1 too short to compare: {out}" in shown
    assert (tmp_path / "dirty.txt").read_text() == "whole\n"


@pytest.mark.parametrize("best_fit", [False, True])
def test_a_state_tells_the_first_step_that_read_a_document_of_an_item(
    built: Path, tmp_path: Path, says: Says, best_fit: bool
) -> None:
    stream = pipeline.ShardDataset(built).shuffle(seed=4).pack(256, best_fit=best_fit).batch(4)
    list(islice(stream, 9))
    (tmp_path / "run.json").write_text(json.dumps(stream.state_dict()))
    first: dict[str, int] = {}
    for step in reversed(range(9)):
        first |= {span["origin"]["id"]: step for row in stream.trace(step) for span in row["documents"]}
    records = [{"id": f"d{k}", "text": text} for k, text in enumerate(TEXTS)]
    quiz, run = write_jsonl(tmp_path / "quiz.jsonl", records), ["--state", tmp_path / "run.json", "--global-batch", 4]
    items = items_of(says, built, "--items", quiz, *run)
    assert {id: item["first_step"] for id, item in items.items()} == {id: first.get(id) for id in items}
    assert 0 < len(first) < len(TEXTS)
    out = says(0, "find", built, "--items", quiz, *run, "--most", "1").out
    assert out.count(", first read at step ") == len(first)
    assert out.count(", which the run has not read") == len(TEXTS) - len(first)


def test_what_cannot_be_said_of_items_is_exit_status_2(built: Path, tmp_path: Path, says: Says) -> None:
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"id": "same", "text": prose(1, 30)}] * 2)
    lines = write_jsonl(tmp_path / "lines.jsonl", [{"id": "a\nb", "text": prose(1, 30)}])
    ids, output = tmp_path / "ids.txt", tmp_path / "none" / "ids.txt"
    cases: dict[tuple[object, ...], str] = {
        (quiz, "--clean", ids): "--clean says something of the items of a benchmark; add --items",
        (quiz, "--items", "--index", "x"): "--index keeps tables of signatures, which --items does not use",
        (quiz, "--items", "--clean", ids): "2 items have the id 'same', so --clean and --dirty cannot tell them apart",
        (lines, "--items", "--dirty", ids): r"the id 'a\nb' has several lines",
        (prose(1, 30), "--items", "--dirty", ids): "a text of the command line has no id",
        (quiz, "--items", "--dirty", output): f"--dirty {output}: {output.parent} is not a directory",
        (quiz, "--items", "--dirty", quiz): f"--dirty {quiz}: it is an input",
        (quiz, "--items", "--dirty", ids, "--clean", ids): f"--clean and --dirty are both {ids}; name two files",
        (quiz, "--items", "--threshold", 2): "threshold must be above 0 and at most 1, got 2",
        (quiz, "--items", "--state", tmp_path / "none.json"): "none.json",
    }
    for arguments, message in cases.items():
        assert message in says(2, "find", built, *arguments).err
    assert not ids.exists()
