"""Documents that are redacted are gone from every file, no other document moves, and streams and states stay valid."""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

import pipeline
from pipeline.builder.work.lock import locked
from pipeline.cli.main import run_command
from pipeline.errors import BuildError, ConfigError, CorruptShardError
from pipeline.finished.redaction.certificate import occurrences
from pipeline.finished.redaction.redact import drop, redact
from pipeline.shards.manifest import FileInfo, Manifest
from pipeline.shards.shard_access import ShardAccess
from pipeline.shards.shard_list import latest, resolve
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import Built, contents_of, run_plain, table, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import english
from tests.helpers.interruptions import run_to_operation
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.tokenizer_samples import train

REASON, EOS = "opt-out", 1


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards that keeps all that a build can keep, with a duplicate of d7."""
    texts = [english(k) for k in range(90)]
    rows = [{"id": f"d{k}", "text": text, "url": f"https://a.example/{k}"} for k, text in enumerate([*texts, texts[7]])]
    options: dict[str, Any] = {"tokens_per_shard": 12_000, "keep_texts": "parquet", "keep_rejected": True}
    options |= {"val_fraction": 0.1, "tokens_per_sample": 700, "keep_fields": ["url"]}
    return Built.of(tmp_path_factory.mktemp("redact"), rows, **options)


@pytest.fixture
def dataset(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "set"))


def ids_of(dataset: Path) -> list[str]:
    return [id for split in ("train", "val") for id in table(dataset, split)["id"]]


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "packed": lambda data: data.shuffle(seed=3).pack(64),
    "boundaries": lambda data: data.shuffle(seed=3).pack(64, boundaries=True),
    "files": lambda data: data.pack(100, stride=40),
    "documents": lambda data: data.shuffle(seed=1).documents(),
    "buckets": lambda data: data.shuffle(seed=1).documents(bucket=2),
    "sample": lambda data: data.shuffle(seed=1).sample(50),
    "best fit": lambda data: data.shuffle(seed=1).pack(200, best_fit=True),
    "filtered": lambda data: data.filter(len, name="all").shuffle(seed=1).pack(64),
    "mapped": lambda data: data.map_documents(
        lambda ids, mask: (ids, np.ones(len(ids), bool)), same_length=True, name="m"
    ).pack(64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_label_counts_in_a_redacted_document_and_all_else_stays_as_it_was(dataset: Path, layout: str) -> None:
    def stream() -> Any:
        return LAYOUTS[layout](pipeline.ShardDataset(dataset, epochs=1)).batch(4)

    before, state = list(islice(stream(), 6)), stream().state_dict()
    keys = {document["key"] for document in chosen(dataset, "07")}
    after = stream()
    after.load_state_dict(state)
    masked = 0
    for step, (old, new) in enumerate(zip(before, after, strict=False)):
        given = (new["input_ids"], new["labels"], old["labels"])
        ids, labels, label = map(np.asarray, given)
        redacted = np.zeros((4, ids.shape[1] + 1), bool)
        for row in stream().trace(step):
            for span in row["documents"]:
                redacted[row["row"], span["row_begin"] : span["row_end"]] = span["origin"]["key"] in keys
        assert np.array_equal(ids, np.where(redacted[:, :-1], EOS, old["input_ids"]))
        expected = np.where(redacted[:, 1:], -100, label)[:, :-1]
        assert np.array_equal(labels[:, :-1], expected)
        assert new["valid_tokens"] == (labels != -100).sum()
        masked += int((labels != label).sum())
    assert masked > 50


def chosen(dataset: Path, digits: str) -> list[dict[str, Any]]:
    """Redact the documents whose ids end with one of some digits; return their entries in the manifest."""
    entry = redact(dataset, [id for id in ids_of(dataset) if id and id[-1] in digits], REASON, texts=True)
    assert entry is not None
    return list(entry["documents"])


def test_a_part_that_a_split_holds_out_masks_them_too(dataset: Path) -> None:
    def parts() -> list[list[int]]:
        streams = [part.documents() for part in pipeline.ShardDataset(dataset, epochs=1).split(val=0.3)]
        return [[(item["labels"] != -100).sum() for item in stream] for stream in streams]

    before, documents = parts(), chosen(dataset, "07")
    after = parts()
    lengths = sorted(one["tokens"] - 1 for one in documents if one["shard"].startswith("train"))
    olds, news = ([length for part in parts for length in part] for parts in (before, after))
    assert sorted(old for old, new in zip(olds, news, strict=True) if new != old) == lengths
    assert sum(sum(part) for part in before) - sum(sum(part) for part in after) == sum(lengths)


def test_a_redacted_dataset_is_sound_and_its_states_stay(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle(seed=0).pack(64).batch(2)
    list(islice(stream, 3))
    state, lengths = stream.state_dict(), table(dataset)["key"]
    assert chosen(dataset, "5")
    assert list(verify_dataset(dataset)) == []
    assert table(dataset)["key"] == lengths
    again = pipeline.ShardDataset(dataset).shuffle(seed=0).pack(64).batch(2)
    again.load_state_dict(state)
    assert chosen(dataset, "6"), "a second redaction"
    assert list(verify_dataset(dataset)) == []
    pipeline.ShardDataset(dataset).shuffle(seed=0).pack(64).batch(2).load_state_dict(state)


def test_no_file_holds_a_redacted_document_or_what_it_had_dropped(dataset: Path) -> None:
    texts = {f"d{k}": english(k) for k in range(90)}
    assert chosen(dataset, "7")
    unlike = [id for id in texts if not id.endswith("7")]
    signatures, hashes = (np.load(dataset / "signatures" / name) for name in ("signatures.npy", "hashes.npy"))
    for split in ("train", "val"):
        columns = table(dataset, split)
        rows = zip(*(columns[name] for name in ("key", "id", "column:url", "language")), strict=True)
        for key, id, url, language in rows:
            assert (id is None) == (url is None) == (not signatures[int(key)].any()) == (not hashes[int(key)].any())
            assert language == "" or id is not None or language
    kept = [row for path in (dataset / "texts").iterdir() for row in pq.read_table(path).to_pylist()]
    assert {row["text"] for row in kept} == {"", *(texts[id] for id in unlike)}
    assert {row["id"] for row in kept} == {None, *unlike}
    assert not (dataset / "rejected.jsonl").read_text().strip(), "the duplicate of d7"
    for name in ("manifest.json", "report.html"):
        text = html.unescape((dataset / name).read_text())
        assert not [id for id, whole in texts.items() if id.endswith("7") and whole[:40] in text]
        assert not re.search(r"\bd\d*7\b", text)


def dropping(folder: Path, *listed: str) -> dict[str, Any]:
    """Return the settings of a build that drops the documents of these ids and keeps what is dropped."""
    (folder / "drop.txt").write_text("\n".join(listed))
    return {"keep_rejected": True, "drop_ids": str(folder / "drop.txt")}


def test_what_was_dropped_for_a_document_goes_whatever_names_are(tmp_path: Path) -> None:
    first = english(1)
    records = [
        {"id": "a\nb (of b) (c", "text": first},
        {"id": "near", "text": first + " more"},
        {"id": "quotes", "text": f"{english(2)} {first[:300].upper()} {english(3)}"},
        {"id": "other", "text": f"{english(4)} {english(2)[:300]} {english(5)}"},
    ]
    source = write_jsonl(tmp_path / "copy of (1)" / "in (2).jsonl", records)
    run_plain(source, out := Built(tmp_path / "out"), keep_rejected=True, dedup_passages=20)
    assert [line["id"] for line in out.rejected] == ["quotes", "other", "near"]
    redact(out, ["000000000000"], REASON)
    assert out.rejected == [], "quotes of other documents go, too, since a record does not say whose they are"


def test_a_listed_document_that_was_dropped_goes_alone(tmp_path: Path, redacts: Says) -> None:
    texts = {"a": english(1), "same (as a)": english(1), "listed": english(2), "other": english(3)}
    more = {f"listed{k}": english(10 + k) for k in range(20)}  # more than the manifest shows
    records = [{"id": id, "text": text} for id, text in (texts | more).items()]
    out = Built.of(tmp_path, records, **dropping(tmp_path, "listed", *more))
    with pytest.raises(ConfigError, match=r"'same \(as a\)' was dropped .*duplicate of 'a'.* list 'a'"):
        redact(out, ["same (as a)", "other"], REASON)
    (tmp_path / "ids.txt").write_text("\n".join(["same (as a)", "000000000000", "listed", *more]))
    redacts(0, out, "--ids", tmp_path / "ids.txt", "--drop", tmp_path / "new")
    said = redacts(0, out, "--ids", tmp_path / "ids.txt", shows="out: 1 documents of 1,0").out
    assert "22 rejected documents removed; 0 copies left" in said
    for folder in (out, tmp_path / "new"):
        assert (folder / "rejected.jsonl").read_text() == ""
        for name in ("manifest.json", "report.html"):
            assert not [id for id in ("a", "same (as a)", "listed") if texts[id][:40] in (folder / name).read_text()]
        assert list(verify_dataset(folder)) == []


def test_a_dropped_document_of_an_equal_text_goes_too(tmp_path: Path) -> None:
    out = Built.of(tmp_path, [english(1), english(1), english(2)], dedup=False, **dropping(tmp_path, "d1", "d2"))
    redact(out, ["d0"], REASON)
    assert [line["text"] for line in out.rejected] == [english(2)]


QUOTES: dict[str, dict[str, Any]] = {
    "lines": {"dedup_lines": True},
    "short lines": {"dedup_lines": True, "shortest_passage": 5, "words_left": 1},
    "drop": {"dedup_passages": 20, "repeated_passages": "drop"},
    "cut": {"dedup_passages": 20, "words_left": 1},
}


@pytest.mark.parametrize("quoted", QUOTES)
def test_all_that_was_cut_or_dropped_for_lines_or_passages_goes_and_what_else_was_dropped_stays(
    tmp_path: Path, quoted: str
) -> None:
    first = "Born on 9 May" if quoted == "short lines" else english(1, 9)
    texts = [f"{first}\n{english(3)}", english(4), f"{first}\nAnd more.", english(5)]
    out = Built.of(tmp_path, texts, dedup=False, **dropping(tmp_path, "d3"), **QUOTES[quoted])
    assert {line["id"] for line in out.rejected} == {"d2", "d3"}
    redact(out, ["d0"], REASON)
    assert [line["text"] for line in out.rejected] == texts[3:]
    assert first[:200] not in out.report + (out / "manifest.json").read_text()


def test_rejected_documents_and_samples_of_an_earlier_release_go_whole(tmp_path: Path) -> None:
    texts = [english(1), english(2), english(1), english(3)]
    out = Built.of(tmp_path, texts, **dropping(tmp_path, "d3"))
    without_kinds(out)
    with pytest.raises(ConfigError, match=r"'d2' was .* exact duplicate of d0 .*: list the kept one"):
        redact(out, ["d1", "d2"], REASON)
    assert redact(out, ["d1", "d3"], REASON) is not None
    assert (out / "rejected.jsonl").read_text() == ""
    shown = out.report + (out / "manifest.json").read_text()
    assert not [text for text in texts if text[:40] in shown]
    assert list(verify_dataset(out)) == []


def without_kinds(dataset: Path) -> None:
    """Take from the records of a dataset what earlier releases did not write."""
    manifest = Manifest.read(dataset)
    path = dataset / "rejected.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in (*records, *itertools.chain(*manifest.counts["samples"].values())):
        for name in ("kind", "hash", "kept_id"):
            record.pop(name, None)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    files = [FileInfo.of(path, path.name) if info.name == path.name else info for info in manifest.files]
    replace(manifest, files=tuple(files)).write(dataset)


def test_the_widest_cluster_that_an_earlier_release_showed_goes_with_any_document(tmp_path: Path) -> None:
    out = Built.of(tmp_path, [english(1), english(2)])
    manifest = out.manifest
    manifest.counts["widest_cluster"] = {"pair": [{"id": "d0", "text": "alpaca"}, {"id": "d9", "text": "alpacas"}]}
    manifest.write(out)
    assert redact(out, ["d0"], REASON) is not None
    assert "alpaca" not in (out / "manifest.json").read_text()


@pytest.fixture
def redacts(says: Says) -> Says:
    """Redact, require an exit status, and return what was printed."""
    return lambda status, *arguments, **shown: says(status, "redact", *arguments, "--reason", REASON, **shown)


def test_keys_and_ids_name_documents_and_a_re_run_changes_nothing(dataset: Path, tmp_path: Path, redacts: Says) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text(f"\ufeffd3\r\n\n{table(dataset)['key'][5]}\n", encoding="utf-8")
    redacts(0, dataset, "--ids", ids, "--texts", shows="2 documents of")
    before = contents_of(dataset)
    redacts(0, dataset, "--ids", ids, "--texts")
    ids.write_text(table(dataset)["key"][5])
    said = redacts(0, dataset, "--ids", ids, "--texts").out
    assert said == f"{dataset}: nothing to do; these documents were redacted before\n"
    assert contents_of(dataset) == before
    assert not (dataset / ".build").exists()
    for names, reason in (([""], REASON), (["d4"], " ")):
        with pytest.raises(ConfigError, match=r"needs a reason and .*one key or id"):
            redact(dataset, names, reason, texts=True)


def test_unknown_names_and_texts_without_the_flag_are_refused(dataset: Path, tmp_path: Path, redacts: Says) -> None:
    ids, latin = tmp_path / "ids.txt", tmp_path / "latin"
    ids.write_text("d3\nd333\n")
    latin.write_bytes(b"d\xe9\n")
    before, unknown = contents_of(dataset), "1 of 2 names are neither key nor id of a document: 'd333'; remove"
    redacts(2, dataset, "--ids", ids, "--texts", shows=unknown)
    redacts(2, dataset, "--ids", ids, shows="give --texts")
    redacts(2, dataset, "--ids", tmp_path / "none", "--texts")
    redacts(2, dataset, "--ids", latin, "--texts", shows=f"--ids {latin}: cannot be read: 'utf-8' codec")
    redacts(2, tmp_path / "nowhere", "--ids", ids)
    assert contents_of(dataset) == before


def test_a_name_that_is_a_key_and_the_id_of_another_is_refused(tmp_path: Path) -> None:
    out = Built.of(tmp_path, [{"id": "000000000001", "text": "one"}, {"id": "b", "text": "two"}])
    with pytest.raises(ConfigError, match=r"'000000000001' is the key of one .* 'b'.* '000000000000'; list"):
        redact(out, ["000000000001"], "asked")
    redacted = redact(out, ["b"], "asked")
    assert redacted is not None
    assert [document["key"] for document in redacted["documents"]] == ["000000000001"]


@pytest.mark.parametrize("name", ["train-000000.tar", "texts/train-000000.parquet", "signatures/hashes.npy"])
def test_damage_is_refused_and_not_hidden_by_a_new_hash(dataset: Path, tmp_path: Path, name: str) -> None:
    data = bytearray((dataset / name).read_bytes())
    data[len(data) // 2] ^= 1
    (dataset / name).write_bytes(data)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    first = table(dataset)["key"][0]
    with pytest.raises(CorruptShardError, match=rf"{name}: sha256 .*, but the manifest says .*; copy"):
        redact(dataset, [first], REASON, texts=True)
    with pytest.raises(CorruptShardError, match=rf"{name}: sha256 .*; copy"):
        drop(dataset, [first], REASON, tmp_path / "new")
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before


def test_an_edited_file_of_rejected_documents_is_refused(dataset: Path) -> None:
    (dataset / "rejected.jsonl").write_text("not JSON\n")
    with pytest.raises(CorruptShardError, match=r"rejected\.jsonl: sha256 .*, or remove it"):
        chosen(dataset, "3")
    (dataset / "rejected.jsonl").unlink()
    assert chosen(dataset, "3")


def test_what_a_killed_redaction_left_is_not_taken_for_one_of_a_new_build(tmp_path: Path) -> None:
    output = Built.of(tmp_path, [english(k) for k in range(4)], "set")
    redact(output, ["d1"], REASON)
    left = (output / "manifest.json").read_bytes()
    source = write_jsonl(tmp_path / "in.jsonl", [english(k) for k in range(4, 8)])
    run_plain(source, output, overwrite=True)
    (output / ".redacting.json").write_bytes(left)
    before = (output / "train-000000.tar").read_bytes()
    with pytest.raises(ConfigError, match=r"an unfinished redaction of another build .*; remove it"):
        redact(output, ["d1"], REASON)
    assert (output / "train-000000.tar").read_bytes() == before
    run_plain(source, output, overwrite=True)
    assert redact(output, ["d1"], REASON)
    assert list(verify_dataset(output)) == []


def test_an_id_of_several_documents_takes_all_of_them_out_and_says_so(tmp_path: Path) -> None:
    inputs = [
        f"{name}={write_jsonl(tmp_path / f'{name}.jsonl', [english(k)])}" for k, name in enumerate(("web", "wiki"))
    ]
    run_plain(inputs, tmp_path / "set")
    with pytest.warns(UserWarning, match=r"set: 1 listed ids .*several documents.* taken out: 'd0'"):
        entry = redact(tmp_path / "set", ["d0"], "line\nfeed")
    assert entry is not None
    assert [document["key"] for document in entry["documents"]] == ["000000000000", "000000000001"]
    assert (entry["reason"], entry["dataset"]) == ("line feed", str(tmp_path / "set"))


def test_a_dataset_that_cannot_be_written_is_refused_with_a_cure(dataset: Path) -> None:
    (dataset / ".build").write_text("")
    with pytest.raises(BuildError, match=r"set: cannot be written: .*; give this user access, or .* --drop"):
        chosen(dataset, "1")


def test_a_dataset_in_which_another_process_works_is_refused(dataset: Path) -> None:
    with locked(dataset / ".build"), pytest.raises(BuildError, match=r"works here .*; wait"):
        chosen(dataset, "1")
    assert chosen(dataset, "1")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than ``tmp_path``."""
    places = (place for place in map(Path, ("/dev/shm", tempfile.gettempdir())) if place.is_dir())
    place = next((place for place in places if place.stat().st_dev != tmp_path.stat().st_dev), None)
    if place is None:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


def test_links_to_another_file_system_and_permissions_stay(dataset: Path, elsewhere: Path) -> None:
    linked = [dataset / name for name in ("manifest.json", "train-000000.tar", "texts/train-000000.parquet")]
    for path in linked:
        target = Path(shutil.move(path, elsewhere / path.name))
        target.chmod(0o640)
        path.symlink_to(target)
    for path in (dataset / "signatures" / "hashes.npy", dataset / "rejected.jsonl"):
        path.chmod(0o440)
    assert chosen(dataset, "07")
    assert list(verify_dataset(dataset)) == []
    assert all(path.is_symlink() for path in linked)
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(path.name for path in linked)
    modes = {path.name: path.stat().st_mode & 0o777 for path in dataset.rglob("*") if path.is_file()}
    assert {modes[path.name] for path in linked} == {modes["extents1.npz"], modes["redaction-1.json"]} == {0o640}
    assert modes["hashes.npy"] == modes["rejected.jsonl"] == 0o440


def test_a_dataset_without_end_of_text_ids_is_sound_and_is_redacted(tmp_path: Path) -> None:
    out = Built.of(tmp_path, [english(k) for k in range(5)], name="set", eos="never", dedup=False)
    assert list(verify_dataset(out)) == []
    assert run_command("verify", [str(out / "train-000000.tar")]) == 0
    assert redact(out, ["d3"], REASON)
    assert list(verify_dataset(out)) == []
    assert [text.replace("</s>", "") == "" for text in out.kept] == [False, False, False, True, False]


@pytest.fixture(scope="module")
def built_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three shards, each of more than a window that stays in memory."""
    folder = tmp_path_factory.mktemp("small")
    records = [{"id": f"d{k}", "text": english(k, 400), "url": f"https://{k}.example"} for k in range(18)]
    options: dict[str, Any] = {"keep_texts": "jsonl.zst", "keep_fields": "url", "dedup": False}
    run_plain(write_jsonl(folder / "in.jsonl", records), folder / "out", tokens_per_shard=130_000, **options)
    return folder / "out"


@pytest.fixture
def small(built_small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built_small, tmp_path / "small"))


def state_of(dataset: Path) -> dict[str, Any]:
    """Return all files of a dataset, and the manifest without the date of its redaction."""
    files: dict[str, Any] = contents_of(dataset)
    manifest = json.loads(files.pop("manifest.json"))
    certificate = json.loads(files.pop("redaction-1.json", "{}"))
    files.pop("redaction-1.html", None)
    for entry in (*manifest.get("redactions", []), certificate):
        entry.pop("date", None)
    certificate.pop("dataset", None)
    certificate.get("search", {}).pop("bytes", None)  # of the date, too
    files |= {"certificate": certificate}
    return files | {name: value for name, value in manifest.items() if name != "checksum"}


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_redaction_killed_at_any_file_operation_goes_on(small: Path, tmp_path: Path, is_whole: bool) -> None:
    ids = ["d1", "d9", "d17"]

    def epoch(dataset: Path) -> np.ndarray[Any, Any]:
        data = pipeline.ShardDataset(dataset, epochs=1, verify=True)
        return np.concatenate([item["input_ids"] for item in data.pack(500)])

    def killed(at: int) -> tuple[Path, int]:
        folder = Path(shutil.copytree(small, tmp_path / f"at-{at}"))
        return folder, run_to_operation(at, lambda: redact(folder, ids, REASON, texts=True))[1]

    done, operations = killed(1_000)
    expected, before, after = state_of(done), epoch(small), epoch(done)
    seen = set()
    last = [0, *range(operations - 23, operations - 18), operations - 7, operations - 1]
    for at in range(operations) if is_whole else last:
        folder, _ = killed(at)
        read = epoch(folder)
        assert ((read == before) | (read == after)).all()
        seen.add(int((read != before).sum()))
        if at % 3 and (folder / ".redacting.json").exists():
            assert next(verify_dataset(folder, quick=True)).message.endswith("run its command again")
            with pytest.raises(ConfigError, match=r"has not finished; run its command"):
                redact(folder, ["d2"], REASON, texts=True)
            with pytest.raises(ConfigError, match=r"has not finished; run its command"):
                drop(folder, ["d2"], REASON, tmp_path / "without")
        assert redact(folder, ids, REASON, texts=True)
        assert state_of(folder) == expected
        shutil.rmtree(folder)
    assert len(seen) == 4, "none, one, two or three of the shards"
    assert list(verify_dataset(done)) == []


def test_the_latest_shards_are_whole_once_each_is_that_of_the_redaction(small: Path, tmp_path: Path) -> None:
    access = ShardAccess(use_cache=False)
    shutil.copytree(small, tmp_path / "running")
    before, running = (resolve(str(folder), "train", access)[0] for folder in (small, tmp_path / "running"))
    assert latest(before, access) == (before, True)
    other = before._replace(directory=str(tmp_path / "other"))  # another dataset is there by now
    write_dataset(tmp_path / "other", [make_documents(3)])
    assert latest(other, access) == (other, True)
    assert redact(small, ["d0", "d2"], REASON, texts=True)
    now, whole = latest(before, access)
    assert (now, whole) == (resolve(str(small), "train", access)[0], True)
    shutil.copy(small / "manifest.json", tmp_path / "running" / ".redacting.json")
    part, whole = latest(running, access)  # no shard is replaced yet
    assert (part.infos, whole) == (running.infos, False)
    assert part.manifest == now.manifest


@pytest.mark.parametrize(
    ("layout", "rows", "options"), [("packed", 32, {"verify": True}), ("documents", 8, {}), ("filtered", 64, {})]
)
def test_a_stream_says_once_that_its_dataset_was_redacted_and_goes_on(
    small: Path, caplog: pytest.LogCaptureFixture, layout: str, rows: int, options: dict[str, Any]
) -> None:
    def stream() -> Any:
        return LAYOUTS[layout](pipeline.ShardDataset(small, epochs=3, **options)).batch(rows)

    whole = list(stream())
    batches = iter(running := stream())
    read = list(islice(batches, 2))
    assert redact(small, [f"d{k}" for k in range(0, 18, 2)], f"{REASON} {layout} {options}", texts=True)
    read += batches
    state = running.state_dict()
    fresh = list(stream())
    assert len(read) == len(whole)
    for one, other in list(zip(read, fresh, strict=True))[-len(whole) // 3 :]:
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[key], other[key]) for key in one)
    assert sum(one["valid_tokens"] for one in read) < sum(one["valid_tokens"] for one in whole)
    [said] = [record.message for record in caplog.records if "redacted" in record.message]
    assert said.startswith(f"{small}: 9 documents were redacted on {datetime.now(UTC).date()} ({REASON} {layout}")
    assert said.endswith("the stream goes on, and their labels do not count")
    stream().load_state_dict(state)


def test_a_certificate_names_hashes_and_documents_and_every_copy_that_is_left(
    dataset: Path, tmp_path: Path, redacts: Says
) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("d3\nd4\n")
    before = Manifest.read(dataset)
    redacts(0, dataset, "--ids", ids, "--texts")
    after = Manifest.read(dataset)
    certificate = json.loads((dataset / "redaction-1.json").read_text())
    assert certificate["fingerprint"] == {"before": before.fingerprint, "after": after.fingerprint}
    assert certificate["search"]["found"] == []
    assert certificate["search"]["bytes"] > sum(info.bytes for info in after.shards)
    for name, hashes in certificate["files"].items():
        assert hashes["after"] == hashlib.sha256((dataset / name).read_bytes()).hexdigest() != hashes["before"]
    page = (dataset / "redaction-1.html").read_text()
    assert "Nothing of them is left" in page
    assert all(document["key"] in page for document in certificate["documents"])
    assert list(verify_dataset(dataset)) == []


def test_a_copy_is_found_in_shards_and_in_texts(tmp_path: Path, redacts: Says) -> None:
    texts = [english(k) for k in range(12)]
    options: dict[str, Any] = {"tokens_per_shard": 9_000, "keep_texts": "jsonl.zst", "dedup": False}
    out = Built.of(tmp_path, [*texts, texts[3], f"{english(40)} {texts[5]}"], **options)
    (tmp_path / "ids.txt").write_text("d3\nd5\n")
    said = redacts(1, out, "--ids", tmp_path / "ids.txt", "--texts").out
    found = json.loads((out / "redaction-1.json").read_text())["search"]["found"]
    keys = table(out)["key"]
    wanted = {(kind, keys[number]) for kind in ("train", "texts/train") for number in (3, 5)}
    assert {(one["file"].partition("-")[0], one["key"]) for one in found} == wanted
    assert [one["document"] for one in found if "document" in one] == [keys[12], keys[13]]
    assert f", document {keys[12]}: holds a copy of document {keys[3]}\n" in said


def test_a_copy_is_found_in_the_page_and_all_that_the_certificate_says(tmp_path: Path) -> None:
    text = 'One <b> & "two" of a text that is shown'
    out = Built.of(tmp_path, [text, f"{text} and more", "short"], "set", dedup=False)
    certificate = redact(out, ["d0", "d2"], "opt-out <of> May")
    assert certificate is not None
    found, documents = certificate["search"]["found"], certificate["documents"]
    assert sorted((one["file"], one["key"], one.get("document", "")) for one in found) == [
        ("manifest.json", "000000000000", ""),
        ("report.html", "000000000000", ""),
        ("train-000000.tar", "000000000000", "000000000001"),
    ]
    page = (out / "redaction-1.html").read_text().split("<h1>")[1].split("<h2>Files")[0]
    assert [said for part in re.split(r"<[^>]*>", page) if (said := " ".join(html.unescape(part).split()))] == [
        f"Redaction of {out}",
        f"{certificate['date']}: 2 documents were overwritten by end-of-text ids. Reason: opt-out <of> May.",
        f"Searched after it: 3 files, {certificate['search']['bytes']:,} bytes.",
        "Left:",
        "3 copies, listed below. Too short, or gone before the search: 000000000002.",
        *("file", "byte", "in document", "copy of"),
        *(str(one[name]) for one in found for name in ("file", "byte", "document", "key") if name in one),
        *("Documents", "key", "shard", "number", "tokens"),
        *(str(one[name]) for one in documents for name in ("key", "shard", "number", "tokens")),
    ]


@pytest.mark.parametrize("kept_by", ["parquet", "jsonl.zst", "rejected.jsonl", None])
def test_a_copy_is_found_by_its_text_if_tokens_lose_it(tmp_path: Path, kept_by: str | None) -> None:
    texts = [english(k, 40) for k in range(6)]
    (tmp_path / "rules.toml").write_text(f"words = {{ max = {2 * len(texts[3].split())} }}")
    options: dict[str, Any] = {"keep_texts": kept_by}
    if kept_by == "rejected.jsonl":
        options = {"keep_rejected": True, "rules": str(tmp_path / "rules.toml")}
    options["tokenizer"] = str(train("wordpiece", tmp_path / "tokenizer.json"))
    out = Built.of(tmp_path, [*texts, texts[3], f"{english(7, 40)} {texts[3]} {english(8, 40)}"], **options)
    key = table(out)["key"][3]
    certificate = redact(out, ["d3"], REASON, texts=True)
    assert certificate is not None
    search = certificate["search"]
    assert search["decoded"] == ([] if kept_by else [key])
    said = f"Searched by the text that the tokens give, which differs from the original text:\n{key}."
    assert kept_by or said in (out / "redaction-1.html").read_text()
    if kept_by == "parquet":
        kept = pq.ParquetFile(out / "texts" / "train-000000.parquet").metadata
        assert kept.row_group(0).column(0).compression == "ZSTD"
    holders = {"parquet": "texts/train-000000.parquet", "jsonl.zst": "texts/train-000000.jsonl.zst"}
    holder = holders.get(kept_by or "", kept_by)
    assert {one["file"] for one in search["found"]} - {"train-000000.tar"} == ({holder} if holder else set())


@pytest.mark.parametrize("kind", ["train:400", "llama", "unigram", "bytes", "bos"])
def test_a_copy_within_a_document_is_found_whatever_its_first_token(tmp_path: Path, kind: str) -> None:
    texts = [english(k, 40) for k in range(4)]
    texts += [f"{english(7, 40)} {texts[3]} {english(9)}", f"{english(8, 40)}\n({texts[3].strip()})"]
    options = {"tokenizer": kind}
    if kind in ("llama", "unigram", "bos"):
        options["tokenizer"] = str(train(kind.replace("bos", "llama"), tmp_path / "tokenizer.json"))
    if kind == "bos":  # ids begin each document, too
        (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
        options = {"tokenizer": str(tmp_path), "bos": "always"}
    certificate = redact(Built.of(tmp_path, texts, **options), ["d3"], REASON)
    assert certificate is not None
    found = [(one["document"], one["key"]) for one in certificate["search"]["found"] if "document" in one]
    assert found == [("000000000004", "000000000003"), ("000000000005", "000000000003")]


def test_the_certificate_names_the_steps_of_runs_that_had_seen_the_documents(
    dataset: Path, tmp_path: Path, redacts: Says
) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle(seed=4).pack(64).batch(6)
    batches = list(islice(stream, 9))
    traced = [(step, row["row"], span) for step in range(9) for row in stream.trace(step) for span in row["documents"]]
    [key, *_] = [span["origin"]["key"] for *_, span in traced]
    state, ids = tmp_path / "run.json", tmp_path / "ids.txt"
    masked = stream.without([key], reason="the run went on without it")
    masked.load_state_dict(stream.state_dict())
    state.write_text(json.dumps(masked.state_dict()))
    ids.write_text(key)
    redacts(2, dataset, "--ids", ids, "--texts", "--state", state)
    mix = pipeline.mix({name: pipeline.ShardDataset(dataset) for name in "ab"}, {"a": 1, "b": 1}).pack(64).batch(6)
    (tmp_path / "mix.json").write_text(json.dumps(mix.state_dict()))
    flags = ["--ids", ids, "--texts", "--global-batch", 6, "--state"]
    said = "mix.json: a run of a mix of a, b; redact without it. Then name"
    redacts(2, dataset, *flags, tmp_path / "mix.json", shows=said)
    redacts(0, dataset, "--ids", ids, "--texts")
    searched = json.loads((dataset / "redaction-1.json").read_text())["search"]
    assert not (dataset / ".build").exists()
    redacts(0, dataset, *flags, state, "--ranks", 2)
    certificate = json.loads((dataset / "redaction-1.json").read_text())
    [told] = certificate["runs"]
    assert certificate["search"] == searched
    assert told["state"] == str(state)
    assert [tuple(one.values()) for one in told["seen"]] == [
        (span["document_begin"], span["document_end"], key, row // 3, row % 3, step)
        for step, row, span in traced
        if span["origin"]["key"] == key
    ]
    assert len(batches) == 9
    assert f"<td>{told['seen'][0]['step']}<td>0<td>" in (dataset / "redaction-1.html").read_text()


def test_a_run_of_training_had_no_document_of_validation(tmp_path: Path, redacts: Says) -> None:
    out = Built.of(tmp_path, [english(k) for k in range(20)], val_fraction=0.3)
    stream = pipeline.ShardDataset(out).pack(64).batch(2)
    next(iter(stream))
    state, ids = tmp_path / "run.json", tmp_path / "ids.txt"
    state.write_text(json.dumps(stream.state_dict()))
    ids.write_text(table(out, split="val")["key"][0])
    redacts(0, out, "--ids", ids, "--state", state, "--global-batch", 2, shows=f"{state}: no step had these documents")


def test_no_repeated_passage_is_shown_after_a_redaction(tmp_path: Path) -> None:
    notice = " ".join(f"notice{k}" for k in range(12))
    out = Built.of(tmp_path, [f"{english(k)}\n{k} {notice}" for k in range(4)], dedup_passages=10)
    assert notice in out.report
    redact(out, ["d3"], REASON)
    assert notice not in out.report + (out / "manifest.json").read_text()


@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst"])
def test_a_kept_field_goes_whatever_its_name(tmp_path: Path, kind: str) -> None:
    names = ["source", "split", "url"]
    rows = [{"id": f"d{k}", "text": english(k), **{name: f"{name} of d{k}" for name in names}} for k in range(3)]
    out = Built.of(tmp_path, rows, keep_texts=kind, keep_fields=names)
    redact(out, ["d1"], REASON, texts=True)
    [path] = (out / "texts").iterdir()
    if kind == "parquet":
        left = pq.read_table(path).to_pylist()
    else:
        data = zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read()
        left = [json.loads(line) for line in data.splitlines()]
    values = [(row["source"], row["split"], row["language"]) for row in left]
    assert values[:2] == [("source of d0", "split of d0", "en"), (None, None, "en")]


def test_nothing_of_a_killed_copy_without_documents_is_left_once_it_is_made(small: Path, tmp_path: Path) -> None:
    names = run_to_operation(1_000, lambda: drop(small, ["d1"], REASON, tmp_path / "counted"))[1]
    for at in (names // 2, names - 5):
        run_to_operation(at, lambda: drop(small, ["d1"], REASON, tmp_path / "new"))
        left = [path for path in tmp_path.rglob("*") if "new" in path.name]
        assert left
        assert not [path for path in left if path.name == "removed.json"]
    drop(small, ["d1"], REASON, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == ["new"]


def test_a_list_that_grows_is_redacted_each_month(small: Path, tmp_path: Path, redacts: Says) -> None:
    ids, keys = tmp_path / "ids.txt", dict(zip(table(small)["id"], table(small)["key"], strict=True))
    longer = ["d1", "d2", keys["d1"], keys["d3"], "d4"]
    for listed, said in (
        (["d1"], []),
        (["d1", "d2"], ["1 of the list were redacted before: 'd1'"]),
        (longer, ["3 of the list were redacted before: '000000000001', 'd1', 'd2'"]),
    ):
        ids.write_text("\n".join(listed))
        lines = redacts(0, small, "--ids", ids, "--texts").out.splitlines()
        assert [line.partition(": ")[2] for line in lines if "redacted before" in line] == said
        assert lines[-1].startswith(f"certificate: {small}/redaction-")
    ids.write_text("d1\nd2\nd5")
    redacts(0, small, "--ids", ids, "--drop", tmp_path / "new")
    ids.write_text("d1\nd5\nd6")
    redacts(0, tmp_path / "new", "--ids", ids, "--texts", shows="2 of the list were redacted before: 'd1', 'd5'")
    ids.write_text("d1\nd500")
    redacts(2, small, "--ids", ids, "--texts", shows="1 of 2 names are neither key nor id of a document: 'd500'")
    assert '"d1"' not in (small / "manifest.json").read_text(), "names are hashed"


def test_a_dataset_without_documents_holds_all_others_and_refuses_old_states(
    dataset: Path, tmp_path: Path, redacts: Says
) -> None:
    old = pipeline.ShardDataset(dataset).shuffle(seed=0).pack(64).batch(2)
    whole = pipeline.ShardDataset(dataset, split=None).pack(64)
    before = contents_of(dataset)
    texts = {id: english(int(id[1:]) if id != "d90" else 7) for id in ids_of(dataset)}
    ids, new = tmp_path / "ids.txt", tmp_path / "new"
    gone = {id for id in texts if id[-1] in "47"}
    ids.write_text("\n".join(gone))
    redacts(0, dataset, "--ids", ids, "--drop", new)
    assert contents_of(dataset) == before
    assert list(verify_dataset(new)) == []
    assert {path.name for path in new.iterdir()} == {path.name for path in dataset.iterdir()} - {"run.json"}
    kept = [row for path in sorted((new / "texts").iterdir()) for row in pq.read_table(path).to_pylist()]
    assert [row["id"] for row in kept] == ids_of(new) == [id for id in texts if id not in gone]
    assert [row["text"] for row in kept] == [texts[row["id"]] for row in kept]
    stream = pipeline.ShardDataset(new, split=None, epochs=1).documents()
    assert [stream.decode(row)[0].removesuffix("</s>").strip("⟦⟧") for row in stream] == [row["text"] for row in kept]
    counts = Manifest.read(new).counts
    assert (counts["dropped"]["drop_ids"], counts["kept"]) == (len(gone), len(kept))
    assert counts["kept_characters"] == sum(len(row["text"]) for row in kept)
    for split, saved in (("train", old), (None, whole)):
        stream = pipeline.ShardDataset(new, split=split).shuffle(seed=0).pack(64).batch(2)
        said = rf"belongs to {dataset}, .* {len(gone)} documents were dropped .*{REASON}.*new run"
        with pytest.raises(pipeline.StateError, match=said):
            stream.load_state_dict(saved.state_dict())
    redacts(2, dataset, "--ids", ids, "--drop", new, shows="is not empty; choose another --drop")


def test_redacted_documents_are_left_out_and_a_shard_may_become_empty(small: Path, tmp_path: Path) -> None:
    redact(small, ["d4"], REASON, texts=True)
    first = [id for id, _ in zip(table(small)["id"], range(6), strict=False) if id]
    new = drop(small, first, REASON, tmp_path / "new")
    assert [info.name for info in new.shards] == [info.name for info in Manifest.read(small).shards][1:]
    assert new.redactions == ()
    assert "d4" not in table(tmp_path / "new")["id"]
    assert None not in table(tmp_path / "new")["id"]
    assert list(verify_dataset(tmp_path / "new")) == []
    with pytest.raises(ConfigError, match="no document would be left; drop fewer"):
        drop(tmp_path / "new", table(tmp_path / "new")["key"], REASON, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    state = pipeline.ShardDataset(small).pack(64).state_dict()
    drop(tmp_path / "new", [table(tmp_path / "new")["key"][0]], "another", tmp_path / "newer")
    with pytest.raises(pipeline.StateError, match=rf"it belongs to {small}, .* {len(first)} documents .*\({REASON}\)"):
        pipeline.ShardDataset(tmp_path / "newer").pack(64).load_state_dict(state)


@pytest.mark.parametrize("piece", [1, 7, 16, 1 << 20])
def test_the_search_finds_every_place_that_a_plain_one_does(piece: int) -> None:
    generator = np.random.default_rng(piece)
    data = generator.integers(0, 2, 600, np.uint8)
    places = zip(range(0, 500, 9), range(10, 90), strict=False)
    wanted = {f"{at}-{size}": data[at : at + size].tobytes() for at, size in places}
    wanted["absent"] = bytes(30)
    long = [(key, value) for key, value in wanted.items() if len(value) >= 16]
    plain = {(at, key) for key, value in long for at in range(600) if data[at:].tobytes().startswith(value)}
    assert sorted(occurrences(data, wanted, piece=piece)) == sorted(plain)
    assert len(plain) > 40


def test_a_dataset_of_token_ids_is_redacted_by_key(tmp_path: Path) -> None:
    documents = [[*range(first, first + 20)] for first in range(10, 100, 10)]
    pipeline.write_shards(documents, tmp_path / "set", eos_id=0, val_fraction=0, progress=pipeline.Progress(quiet=True))
    keys = table(tmp_path / "set")["key"]
    assert redact(tmp_path / "set", [keys[4]], REASON)
    assert list(verify_dataset(tmp_path / "set")) == []
    batches = list(pipeline.ShardDataset(tmp_path / "set", epochs=1).documents())
    wanted = [[*ids, 0] if number != 4 else [0] * 21 for number, ids in enumerate(documents)]
    assert [batch["input_ids"].tolist() for batch in batches] == wanted
    assert [int(batch["valid_tokens"]) for batch in batches] == [0 if number == 4 else 20 for number in range(9)]
    new = drop(tmp_path / "set", [keys[0]], REASON, tmp_path / "new")
    assert new.split("train").documents == 7
    assert list(verify_dataset(tmp_path / "new")) == []
