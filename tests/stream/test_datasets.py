"""Where streams begin: what constructors refuse, and what they take, at the call."""

from __future__ import annotations

import re
import shutil
import tarfile
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError, ManifestError, ShardwrightError
from pipeline.text.tokens.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from tests.helpers.faulty_server import running_server
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.text_samples import write_texts

TEXTS = ["To be, or not to be, that is the question.", "", "naïve 中文 \U0001f600\n\ttwice  spaced"] * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("datasets")
    write_dataset(directory / "data", [make_documents(9, seed=n) for n in range(2)])
    write_texts(directory / "a.jsonl", TEXTS)
    train_tokenizer(TEXTS, 400).save(directory / "tokenizer")
    return directory


def test_data_of_any_kind_is_opened_by_its_name(folder: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(folder / "data", tmp_path / "bare", ignore=shutil.ignore_patterns("[em]*"))
    with tarfile.open(tmp_path / "texts.tar", "w") as texts:
        texts.add(folder / "a.jsonl", "0.txt")
    tarfile.open(tmp_path / "empty.tar", "w").close()
    (tmp_path / "cut.tar").write_bytes(b"x" * 600)
    np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint16))
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.ids")
    opened = pipeline.open_dataset
    for given in (
        folder / "data",
        [folder / "data"],
        bare,
        sorted(bare.iterdir()),
        f"{bare}/train-{{000000..000001}}.tar",
    ):
        assert re.match(r"ShardDataset\((.|\n)* 18 documents, ", repr(opened(given)))
    for text in (tmp_path / "texts.tar", [folder / "a.jsonl"], [{"text": "to be"}]):
        assert re.match(r"TextDataset\(.*tokenizer='bytes'", repr(opened(text)))
    for array in (opened(tmp_path / "a.npy"), opened(tmp_path / "a.ids", dtype="uint16")):
        assert repr(array).startswith("ShardDataset.from_tokens(uint16 of shape (9,))")
    with running_server() as server:
        server.files = {"b.tar": (bare / "train-000000.tar").read_bytes(), "t.jsonl": b'{"text": "to be"}'}
        assert opened(f"{server.root}/b.tar", cache_dir=None).pack(4).trace(0)
        assert repr(opened(f"{server.root}/t.jsonl")).startswith("TextDataset(")
        with pytest.raises(ManifestError, match=rf"{server.root}/data: no manifest\.json there"):
            opened(f"{server.root}/data", tries=1)
    for call, words in (
        (lambda: opened(tmp_path / "cut.tar"), r"cut\.tar: .* not a tar"),
        (lambda: opened(tmp_path / "empty.tar"), r"empty\.tar: no samples"),
        (
            lambda: opened([tmp_path / "a.npy"]),
            r"one local file, got \[PosixPath\('.*/a\.npy'\)\]; .* shardwright import$",
        ),
        (lambda: opened(tmp_path / "no.npy"), r"one local file, got PosixPath\('.*/no\.npy'\); .* shardwright import$"),
        (lambda: opened(tmp_path / "a.npy", split="val"), r"a\.npy: an array of tokens has no split 'val'"),
        (lambda: opened([{"text": "to be"}], split="val"), r"^list: text has no split 'val'"),
        (
            lambda: opened(tmp_path / "a.npy", text_key="body"),
            r"a\.npy holds tokens, so text_key='body' has nothing to do",
        ),
        (lambda: opened(bare, tokenizer="bytes"), r"bare holds tokens, so tokenizer='bytes' has nothing to do"),
    ):
        with pytest.raises(ShardwrightError, match=words):
            call()
    with pytest.raises(ShardwrightError, match="no field 'body'"):
        next(iter(opened(folder / "a.jsonl", text_key="body").pack(4)))


def test_tars_without_a_manifest_say_what_they_lack(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "data" / "train-000000.tar", tmp_path / "bare.tar")
    bare = pipeline.ShardDataset(tmp_path / "bare.tar", epochs=1)
    for call, words in (
        (
            lambda: pipeline.ShardDataset(tmp_path / "bare.tar", verify=True),
            r"verify=True needs a manifest\.json .*bare\.tar; ",
        ),
        (
            lambda: bare.upsample("score", [1, 2]),
            r"bare\.tar', split='train'\): tars without a manifest\.json have no fields",
        ),
        (lambda: bare.sources(), "no source of this dataset has a name"),
        (lambda: bare.tokenizer, r"bare\.tar', split='train'\) does not name its tokenizer: load it"),
        (lambda: bare.pack(8).batch(2).seen("000000000003", steps=4), "no document '000000000003' in ShardDataset"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    [span] = bare.documents().batch(1).seen("bare.tar:1", steps=9)
    assert (span["step"], span["origin"]) == (1, {"shard": "bare.tar", "document": 1})


def test_an_eos_id_is_one_of_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    (bare := tmp_path / "bare.tar").write_bytes((folder / "data" / "train-000000.tar").read_bytes())
    assert pipeline.ShardDataset(folder / "data", eos_id=59_999)._data.eos_id == 59_999
    assert pipeline.ShardDataset(bare)._data.eos_id == 0
    with pytest.raises(ConfigError, match=r"from 0 to 59999, .*got 60000"):
        pipeline.ShardDataset(folder / "data", eos_id=60_000)
    with pytest.raises(ConfigError, match=r"from 0 to 65535, .*uint16.*got 65536"):
        pipeline.ShardDataset(bare, eos_id=65_536)


def test_documents_end_after_every_eos_id_and_where_tokens_end() -> None:
    def documents(tokens: list[int], **options: Any) -> list[Any]:
        stream = pipeline.ShardDataset.from_tokens(np.array(tokens, np.uint16), epochs=1, **options).documents()
        return [sample["input_ids"].tolist() for sample in stream]

    assert documents([1, 0, 2, 3, 0], eos_id=0) == [[1, 0], [2, 3, 0]]
    assert documents([0, 0, 2, 3], eos_id=0) == [[0], [0], [2, 3]]
    assert documents([1, 2, 3], lengths=[3]) == [[1, 2, 3]]


def test_tokens_of_another_byte_order_are_the_same_tokens() -> None:
    tokens = np.arange(500, dtype=">u2")
    ours = [
        pipeline.ShardDataset.from_tokens(t).shuffle(lanes=2).pack(8).batch(2) for t in (tokens, tokens.astype("<u2"))
    ]
    assert ours[0].state_dict() == ours[1].state_dict()
    assert next(iter(ours[0]))["input_ids"].tolist() == next(iter(ours[1]))["input_ids"].tolist()


def test_tokens_are_not_copied_to_find_their_documents() -> None:
    tokens = np.zeros(64 << 20, np.uint16)
    tokens[:: 1 << 16] = 1
    tracemalloc.start()
    try:
        pipeline.ShardDataset.from_tokens(tokens, eos_id=1)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def tokenizers_of(folder: Path) -> dict[str, Any]:
    import tokenizers
    import transformers

    path = folder / "tokenizer"
    return {
        "path": path,
        "file": path / "tokenizer.json",
        "name": str(path),
        "ours": load_tokenizer(path),
        "transformers": transformers.AutoTokenizer.from_pretrained(path),
        "tokenizers": tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")),
    }


def test_a_tokenizer_by_name_path_or_loaded_is_the_same_to_a_state(folder: Path) -> None:
    expected = load_tokenizer(folder / "tokenizer")
    state = pipeline.TextDataset(folder / "a.jsonl", folder / "tokenizer").shuffle().pack(8).state_dict()
    for given in tokenizers_of(folder).values():
        texts = pipeline.ShardDataset.from_texts(TEXTS, given, epochs=1)
        found = [sample["input_ids"].tolist() for sample in texts.documents()]
        assert found == [[*expected.encode(text).tolist(), expected.eos_id] for text in TEXTS]
        streamed = pipeline.TextDataset(folder / "a.jsonl", given, epochs=1).documents()
        assert [sample["input_ids"].tolist() for sample in streamed] == found
        pipeline.TextDataset(folder / "a.jsonl", given).shuffle().pack(8).load_state_dict(state)


def test_a_tokenizer_with_truncation_or_padding_set_gives_all_ids(folder: Path) -> None:
    loaded = tokenizers_of(folder)["tokenizers"]
    loaded.enable_truncation(3)
    loaded.enable_padding(length=50)
    found = [
        sample["input_ids"].tolist() for sample in pipeline.ShardDataset.from_texts(TEXTS, loaded, epochs=1).documents()
    ]
    expected = load_tokenizer(folder / "tokenizer")
    assert found == [[*expected.encode(text).tolist(), expected.eos_id] for text in TEXTS]


def test_a_tokenizer_that_loses_nothing_warns_of_nothing(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline.ShardDataset.from_texts(TEXTS, "bytes")
        pipeline.TextDataset(folder / "a.jsonl", folder / "tokenizer")


def test_a_byt5_tokenizer_that_is_loaded_is_ours() -> None:
    import transformers

    assert load_tokenizer(transformers.ByT5Tokenizer()).sha256 == load_tokenizer("bytes").sha256


def test_a_tokenizer_whose_code_changes_the_ids_is_refused(folder: Path) -> None:
    import transformers

    class Shifted(transformers.PreTrainedTokenizerFast):
        def __call__(self, *args: Any, **options: Any) -> Any:
            found = super().__call__(*args, **options)
            return {**found, "input_ids": [id + 1 for id in found["input_ids"]]}

    shifted = Shifted(tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"), eos_token="<|endoftext|>")
    with pytest.raises(ConfigError, match="Shifted gives other ids for"):
        pipeline.ShardDataset.from_texts(TEXTS, shifted)


def test_another_end_of_text_of_a_loaded_tokenizer_is_heeded() -> None:
    loaded = load_tokenizer("bytes", eos="<pad>")
    assert isinstance(loaded, Tokenizer)
    assert load_tokenizer(load_tokenizer("bytes"), eos="<pad>").eos_id == loaded.eos_id == 0


def test_stages_in_a_wrong_order_are_refused_with_the_right_one(folder: Path) -> None:
    source = pipeline.ShardDataset.from_tokens(np.arange(99), lengths=[99])
    write_dataset(folder / "empty", [[]])
    empty = pipeline.ShardDataset(folder / "empty")
    hollow = pipeline.ShardDataset.from_tokens(np.zeros(0, np.uint16), lengths=[0, 0])
    for make, message in (
        (
            lambda: source.pack(8).shuffle(),
            r"\.shuffle\(\) comes before \.pack\(8\); .* \.shuffle\(\.\.\.\)\.pack\(8\)$",
        ),
        (lambda: source.batch(2).pack(8), r"\.pack\(\) comes before \.batch\(2\); .* \.pack\(\.\.\.\)\.batch\(2\)$"),
        (lambda: source.map(dict).batch(2).pack(8), r"as in \.pack\(\.\.\.\)\.map\(dict\)\.batch\(2\)$"),
        (lambda: source.take(3).batch(2).shuffle(), r"as in \.shuffle\(\.\.\.\)\.take\(3\)\.batch\(2\)$"),
        (lambda: source.pack(8).pack(4), r"\.pack\(\) comes once: \.pack\(8\) already says .* remove one of the two"),
        (lambda: source.documents(9).pack(4), r"\.documents\(9\) already says"),
        (lambda: source.sample(9).filter(len), r"\.filter\(\) comes before \.sample\(9\)"),
        (lambda: source.shuffle(seed=1).shuffle(seed=2), r"shuffled once; .* seed=1"),
        (lambda: source.pack(8).batch(2).batch(2), "batched once"),
        (lambda: source.shuffle().pack(8).batch(2).to("cpu").map(dict), r"write it before \.to\(\)"),
        (lambda: source.pack(8).batch(2).to("cpu").numpy(), r"\.numpy\(\).*write it before \.to\(\)"),
        (lambda: source.pack(8, stride=9), "stride 9 > seq_len 8 would skip tokens; use a stride of at most 8"),
        (lambda: iter(source), r"add \.pack\(seq_len\) or \.documents\(\)"),
        (lambda: iter(source.rows(keys="hf")), r"add \.pack\(seq_len\) or \.documents\(\)"),
        (lambda: source.pack(8).batch(2).rows(), r"remove \.batch\(2\), and state the size there"),
        (lambda: source.pack(8).shard(0, 2).rows(), r"remove \.shard\(0, 2\)$"),
        (lambda: iter(empty.pack(8)), "holds no tokens"),
        (lambda: iter(empty.documents()), "holds no documents"),
        (lambda: iter(hollow.filter(len).pack(8)), "split 'memory' holds no tokens: there is nothing to stream"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def test_a_stream_as_text_shows_the_chain_the_data_and_the_lengths(folder: Path) -> None:
    data = pipeline.ShardDataset(folder / "data", epochs=2)
    tokens = sum(data._data.tokens)
    stream = data.shuffle(seed=3, lanes=4).pack(16, boundaries=True).map(dict).batch(2, last="drop").to("cpu")
    first, second = repr(stream).splitlines()
    assert first == (
        f"ShardDataset({str(folder / 'data')!r}, split='train').shuffle(seed=3, lanes=4).pack(16, boundaries=True)"
        ".map(dict).batch(2, last='drop').to('cpu')"
    )
    assert second == f"  2 shards, 18 documents, {tokens:,} tokens; seed=3; epochs=2; sequence_index=0"
    assert repr(data.pack(4).apply(iter)).splitlines()[0].endswith(".pack(4).apply(iter)")
    iterator = iter(stream)
    next(iterator)
    assert repr(stream).endswith("; sequence_index=2")
    resumed = data.shuffle(seed=3, lanes=4).pack(16, boundaries=True)
    resumed.load_state_dict(stream.state_dict())
    assert repr(resumed).endswith("; sequence_index=2")
    other = data.filter(len, name="all").shuffle(seed=1).documents(9).take(7).batch(4).take(2).shard(1, 3).numpy()
    assert (
        repr(other.prefetch(2))
        .splitlines()[0]
        .endswith(".filter(all).shuffle(seed=1).documents(9).take(7).batch(4).take(2).shard(1, 3).numpy().prefetch(2)")
    )


def test_every_kind_of_stream_has_a_text(folder: Path) -> None:
    data, text = pipeline.ShardDataset(folder / "data"), pipeline.TextDataset(folder / "a.jsonl", "bytes", epochs=1)
    mixed = pipeline.mix({"a": data, "b": data}, {"a": 1, "b": 1}).shuffle().pack(8)
    for stream, told in (
        (data, "tokens; not shuffled; endless; sequence_index=0"),
        (data.split(val=0.5)[1].split(val=0.1)[0].documents(), ").split(val=0.5)[1].split(val=0.1)[0].documents()"),
        (text.split(val=0.5)[0].filter(bool).pack(8), "bytes of text; not shuffled; epochs=1; sequence_index=0"),
        (text, f"TextDataset({str(folder / 'a.jsonl')!r}, tokenizer='bytes')"),
        (mixed, "mix({'a': ShardDataset("),
        (mixed, ", 18 documents"),
        (
            pipeline.ShardDataset.from_tokens(np.arange(9), epochs=1).sample(4),
            "from_tokens(int64 of shape (9,)).sample(4)",
        ),
        (pipeline.ShardDataset.from_texts(TEXTS, "bytes"), "from_texts(90 texts, 'bytes')"),
    ):
        assert told in repr(stream)
