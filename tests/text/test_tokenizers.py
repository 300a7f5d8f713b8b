"""Tokenizers are trained, saved, loaded and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipeline.errors import ConfigError
from pipeline.text.tokens.conformance import STRINGS
from pipeline.text.tokens.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from tests.helpers.tokenizer_samples import CORPUS, auto_ids, tekken_file, train_sentencepiece

ROOT = Path(__file__).resolve().parents[2]


def test_a_saved_tokenizer_is_the_same(trained: Tokenizer, definitions: dict[str, Path], tmp_path: Path) -> None:
    import hashlib

    for tokenizer in (trained, load_tokenizer("bytes"), *map(load_tokenizer, definitions.values())):
        folder = tmp_path / str(tokenizer.vocab_size)
        tokenizer.save(folder)
        first = {file.name: file.read_bytes() for file in folder.iterdir()}
        again = load_tokenizer(folder)
        for field in ("sha256", "vocab_size", "eos_id", "bos_id", "special_ids", "dtype", "encoder"):
            assert getattr(again, field) == getattr(tokenizer, field), field
        assert again.encode(CORPUS[1]).tolist() == tokenizer.encode(CORPUS[1]).tolist()
        again.save(folder)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == first
        defining = first.get("tokenizer.json", first["tokenizer_config.json"])
        assert hashlib.sha256(defining).hexdigest() == tokenizer.sha256


def test_a_saved_tokenizer_keeps_its_chat_template_and_special_tokens(trained: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained.save(tmp_path / "trained")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "trained")
    loaded.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    loaded.chat_template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    loaded.save_pretrained(tmp_path / "hub")
    for spec in (loaded, str(tmp_path / "hub"), str(tmp_path / "hub" / "tokenizer.json")):
        folder = tmp_path / "saved"
        load_tokenizer(spec).save(folder)
        again = transformers.AutoTokenizer.from_pretrained(folder)
        assert again.chat_template == loaded.chat_template
        assert set(again.all_special_tokens) == set(loaded.all_special_tokens)
        first = (folder / "tokenizer_config.json").read_bytes()
        load_tokenizer(str(folder)).save(tmp_path / "twice")
        assert (tmp_path / "twice" / "tokenizer_config.json").read_bytes() == first


def test_training_twice_gives_the_same_bytes_on_any_number_of_threads(trained: Tokenizer) -> None:
    code = (
        "from tests.helpers.tokenizer_samples import CORPUS; from pipeline.text.tokens.tokenizer import train_tokenizer;"
        "print(train_tokenizer(CORPUS, 500).sha256)"
    )
    for setting in ({"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "1"}, {"RAYON_NUM_THREADS": "3"}):
        command = [sys.executable, "-c", code]
        environment = {**os.environ, **setting}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == trained.sha256


def test_training_reaches_what_the_corpus_holds_and_no_more(trained: Tokenizer) -> None:
    assert trained.vocab_size == 500
    assert trained.special_ids == {END_OF_TEXT: 0}
    small = train_tokenizer(["a few words, a few words"], 65_536)
    assert 257 < small.vocab_size < 300
    assert small.decode(small.encode("anything: \U0001f600")) == "anything: \U0001f600"
    assert train_tokenizer([], 1000).vocab_size == 257
    with pytest.raises(ConfigError, match="256 bytes"):
        train_tokenizer(CORPUS, 256)


def test_a_trained_tokenizer_has_the_special_tokens_asked_for(trained: Tokenizer, tmp_path: Path) -> None:
    names = ["<|fim_prefix|>", "<|fim_suffix|>"]
    made = train_tokenizer(CORPUS, 500, special_tokens=names, reserved=64)
    assert made.vocab_size == 500
    assert made.special_ids == {END_OF_TEXT: 0, **dict(zip(names, (1, 2), strict=True))} | {
        f"<|reserved_special_token_{number}|>": 3 + number for number in range(64)
    }
    made.save(tmp_path)
    for each in (made, load_tokenizer(str(tmp_path))):
        for text in ("a<|fim_prefix|>b", *made.special_ids):
            assert min(each.encode(text)) > 66
            assert each.decode(each.encode(text)) == text
    plain = trained.encode(CORPUS[0])
    parts = [[each.decode([id]) for id in each.encode("they're")] for each in (made, trained)]
    assert parts[0] == parts[1]
    assert len(made.encode(CORPUS[0])) >= len(plain)


def test_the_end_of_a_text_is_found_by_name(definitions: dict[str, Path], tmp_path: Path) -> None:
    assert load_tokenizer(definitions["wordpiece"]).roles["eos_token"] == "[EOS]"
    assert load_tokenizer(definitions["unigram"]).roles["eos_token"] == "</s>"
    assert load_tokenizer(definitions["wordpiece"], eos="[SEP]").eos_id == 2
    with pytest.raises(ConfigError, match=r"no token '\[sep\]'"):
        load_tokenizer(definitions["wordpiece"], eos="[sep]")
    value = json.loads(definitions["wordpiece"].read_text())
    text = json.dumps(value).replace("[EOS]", "[END]")
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ConfigError, match="--eos"):
        load_tokenizer(tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json", eos="[END]").eos_id == 3
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / "tokenizer.json").write_text(text)
        (folder / name).write_text(json.dumps({"eos_token": {"content": "[END]"}}))
        assert load_tokenizer(folder).eos_id == load_tokenizer(folder / "tokenizer.json").eos_id == 3


_END, _START = {"content": "<end>", "special": True}, {"content": "<start>", "special": True}


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({}, {"special_tokens_map.json": {"eos_token": _END, "bos_token": "<start>"}}),
        ({"added_tokens_decoder": {"1": _END}}, {"special_tokens_map.json": {"eos_token": "<end>"}}),
        ({}, {"added_tokens.json": {"<start>": 2, "<end>": 1}}),
        ({"eos_token": "<new>"}, {"added_tokens.json": {"<other>": 507, "<new>": 509}}),
        ({"eos_token": "<new>"}, {}),
        ({"eos_token": "<end>"}, {"added_tokens.json": {"<more>": 505}}),
        ({"eos_token": "<end>", "extra_special_tokens": ["<new>"]}, {}),
        ({"eos_token": "<end>", "extra_special_tokens": {"image_token": "<new>"}}, {}),
        ({"eos_token": "<end>", "image_token": "<new>"}, {}),
    ],
)
def test_the_ids_of_special_tokens_are_those_of_auto_tokenizer(
    config: dict[str, Any], files: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    train_tokenizer(CORPUS, 500, special_tokens=["<end>", "<start>"]).save(tmp_path)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", **config}
    for name, value in {"tokenizer_config.json": settings, **files}.items():
        (tmp_path / name).write_text(json.dumps(value))
    ours, auto = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.eos_id, ours.bos_id, ours.vocab_size) == (auto.eos_token_id, auto.bos_token_id, len(auto))
    file = tmp_path / "tokenizer.json"
    if "<new>" in config.values() and config.get("eos_token") == "<new>":
        with pytest.raises(ConfigError, match=r"'<new>' .*vocabulary of 500 lacks.*--eos"):
            load_tokenizer(file)
        assert load_tokenizer(file, eos="<end>").eos_id == 1
    else:
        assert load_tokenizer(file).eos_id == ours.eos_id


def test_another_versioned_file_than_tokenizer_json_is_an_error(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    train_tokenizer(CORPUS, 400).save(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").rename(tmp_path / "tokenizer.4.0.0.json")
    config = {"fast_tokenizer_files": ["tokenizer.4.0.0.json", "tokenizer.json"], "eos_token": END_OF_TEXT}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"but tokenizer\.json gives"):
        load_tokenizer(tmp_path)


def test_a_letter_cannot_end_documents(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    with pytest.raises(ConfigError, match="cannot end documents"):
        load_tokenizer(tmp_path, eos="a")


def test_what_is_no_tokenizer_is_refused_with_the_cure(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, data in {
        "bad.json": b'{"a": 1}',
        "o200k.tiktoken": b"IQ== 0\nIg== 1\n",
        "x.model": b"\xff\xfe",
        "tekken.json": b"{}",
        "latin.json": b"caf\xe9",
        "config/tokenizer_config.json": b"{",
        "list/special_tokens_map.json": b"[1]",
        "end/special_tokens_map.json": b'{"eos_token": ["</s>"]}',
        "merges.txt": b"#version: 0.2",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "empty").mkdir()

    class Slow:
        special_tokens_map: ClassVar[dict[str, str]] = {}
        name_or_path = "slow"

        def __call__(self, text: str) -> None: ...

    for spec, message in (
        (Slow(), "slow: Slow has no tokenizer.json; convert it, or choose another"),
        (object(), "a name, a path, or a loaded tokenizer of transformers, tokenizers or tiktoken, got object$"),
        (tmp_path / "bad.json", "not a tokenizer.json"),
        (tmp_path / "empty", "no vocabulary in an empty folder"),
        (tmp_path / "gone.json", "no such file"),
        (tmp_path / "o200k.tiktoken", r"tiktoken.Encoding\(NAME, pat_str="),
        (tmp_path / "x.model", "not a SentencePiece model"),
        (tmp_path / "tekken.json", rf"{tmp_path}/tekken.json: "),
        (tmp_path / "latin.json", r"latin.json: cannot be read as a tokenizer.json \('utf-8' codec"),
        (tmp_path / "config", "config/tokenizer_config.json: not JSON .Expecting"),
        (tmp_path / "list", r"list/special_tokens_map.json: must be a JSON object, got \[1\]"),
        (tmp_path / "end", r"end: eos_token must be text, .* got \['</s>'\]"),
        (tmp_path / "merges.txt", rf"a part of a tokenizer; name its folder, {tmp_path}$"),
        ("train:32000", "to train, not one to load"),
        ("train", "'train:32000'"),
        ("bites", "did you mean 'bytes'"),
        ("some-lab/some-model", "hf download"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_tokenizer(spec)


def test_a_directory_that_needs_transformers_gives_its_ids(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    added = {"500": {"content": "<tool>", "special": True}, "501": {"content": "<name>", "special": False}}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    expected = auto_ids(tmp_path)
    text = "a <tool> b <name> c <|endoftext|>"
    assert tokenizer.vocab_size == 502
    assert tokenizer.encode(text).tolist() == expected(text)
    assert 501 in tokenizer.encode(text)
    assert 500 not in tokenizer.encode(text)


@pytest.mark.parametrize("cause", ["tokenizer_config.json", "config.json"])
def test_a_class_that_gives_other_ids_than_its_file_is_refused(cause: str, trained: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    trained.save(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    said = {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}, "config.json": {"model_type": "qwen2"}}
    (folder / cause).write_text(json.dumps(said[cause]))
    with pytest.raises(ConfigError, match=r"Qwen2Tokenizer .*name the file .*tokenizer.json.*save_pretrained"):
        load_tokenizer(folder)
    text = "In 2023, 12345 numbers"
    file = load_tokenizer(folder / "tokenizer.json").encode(text).tolist()
    assert file == trained.encode(text).tolist()
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.save_pretrained(tmp_path / "chosen")
    of_class = load_tokenizer(tmp_path / "chosen").encode(text).tolist()
    assert of_class == load_tokenizer(loaded).encode(text).tolist() == loaded(text)["input_ids"] != file


def test_a_folder_of_which_files_are_missing_is_refused(
    trained: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (name, text) in enumerate(
        {
            "config.json": '{"model_type": "gpt2"}',
            "tokenizer_config.json": '{"tokenizer_class": "GPTNeoXTokenizer", "eos_token": "<|endoftext|>"}',
            "vocab.bpe": "",
        }.items()
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text(text)
        with pytest.raises(ConfigError, match=f"no vocabulary in {name}.*hf download"):
            load_tokenizer(tmp_path / str(number))
    for files, message in (
        (["vocab.json"], "vocab.json is there, but merges.txt is missing; .*hf download"),
        (["merges.txt"], "merges.txt is there, but vocab.json is missing"),
        (
            ["merges.txt", "vocab.json"],
            r"load vocab.json and merges.txt\. .* \{\"tokenizer_class\": \"GPT2Tokenizer\"\}",
        ),
        (["vocab.txt"], r"load vocab.txt\. .*BertTokenizer"),
        (["spm.model"], r"no tokenizer.model, but spm.model; .*name .*/spm.model/spm.model"),
    ):
        folder = tmp_path / "-".join(files)
        folder.mkdir()
        for name in files:
            (folder / name).write_text("{}" if name == "vocab.json" else "")
        with pytest.raises(ConfigError, match=message):
            load_tokenizer(folder)
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "tokenizer.model").write_bytes(b"\xff\xfe")
    (tmp_path / "junk" / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(ConfigError, match=r"no vocabulary in tokenizer.model, tokenizer_config.json; .*hf download"):
        load_tokenizer(tmp_path / "junk")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)  # as where the package is not installed
    with pytest.raises(ConfigError, match=r"tokenizer.model cannot be read without .*sentencepiece: `pip install"):
        load_tokenizer(tmp_path / "junk")
    with pytest.raises(ConfigError, match=r"cannot be read without .*`pip install sentencepiece protobuf`"):
        load_tokenizer(tmp_path / "junk" / "tokenizer.model")
    trained.save(tmp_path / "class")
    (tmp_path / "class" / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    with pytest.raises(ConfigError, match=r"AutoTokenizer cannot load it.*name .*tokenizer.json"):
        load_tokenizer(tmp_path / "class")


# A Unigram model warns of text that spells its pieces.
@pytest.mark.filterwarnings("ignore:.*other ids than sentencepiece")
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_dummy_prefix": False, "remove_extra_whitespaces": True},
        {"treat_whitespace_as_suffix": True},
        {"treat_whitespace_as_suffix": True, "remove_extra_whitespaces": True},
        {"user_defined_symbols": ["[tool]", "\n", "1"]},
        {"user_defined_symbols": ["[tool]"], "add_dummy_prefix": False},
    ],
)
def test_a_sentencepiece_model_gives_its_ids(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = train_sentencepiece(tmp_path / "tokenizer.model", kind, byte_fallback=True, **settings)
    judge = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for spec in (path, tmp_path):
        tokenizer = load_tokenizer(spec)
        assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.can_lose) == (judge.eos_id(), judge.bos_id(), False)
        for text in [*CORPUS[:5], *STRINGS, "a[tool]b", "1 [tool]\n"]:
            if kind == "bpe" or "<" not in text:
                assert tokenizer.encode(text).tolist() == judge.encode(text), text
        assert tokenizer.decode(tokenizer.encode("many  texts")).split() == ["many", "texts"]
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").encode(CORPUS[3]).tolist() == judge.encode(CORPUS[3])


def test_a_sentencepiece_model_whose_normalizer_differs_warns(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    for kind in ("word", "char"):
        with pytest.raises(ConfigError, match=rf"{kind}.model: a model of words or characters; only BPE and Unigram"):
            load_tokenizer(train_sentencepiece(tmp_path / f"{kind}.model", kind))
    folded = train_sentencepiece(tmp_path / "m.model", "unigram", normalization_rule_name="nmt_nfkc")
    with pytest.warns(UserWarning, match=r"m.model: .*other ids than sentencepiece .*\d of \d+"):
        load_tokenizer(folded)
    train_sentencepiece(tmp_path / "tokenizer.model", "bpe", byte_fallback=True)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}')
    with pytest.raises(ConfigError, match=r"class LlamaTokenizer .*name the file .*tokenizer.model"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.model").roles["eos_token"] == "</s>"


def test_a_sentencepiece_model_that_is_read_otherwise_is_refused(tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    path = train_sentencepiece(tmp_path / "m.model", "bpe", byte_fallback=True)
    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    model.normalizer_spec.escape_whitespaces = False
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match=r"sentencepiece for \d+ of \d+ texts, .*choose another"):
        load_tokenizer(path)


# The pattern of tiktoken's cl100k_base.
_CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"""
    r"""|\s+(?!\S)|\s"""
)


def test_an_encoding_of_tiktoken_gives_its_ids(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    longer = (b"12", b"123", b"34", b"45", b"th", b"the", b" the", b" \n", b"\n\n", b"  ", b"1234", b"\xc3\xa9")
    ranks = {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *longer])}
    special = {END_OF_TEXT: 270, "<|fim|>": 275}
    encoding = tiktoken.Encoding("small", pat_str=_CL100K, mergeable_ranks=ranks, special_tokens=special)
    tokenizer = load_tokenizer(encoding)
    assert (tokenizer.name, tokenizer.eos_id, tokenizer.vocab_size) == ("small", 270, 276)
    tokenizer.save(tmp_path)
    for each in (tokenizer, load_tokenizer(tmp_path)):
        for text in ("1234567890123 1234 12345", "the end \n\n  ", "\u00e9 <|fim|>", *CORPUS[:5], *STRINGS):
            assert each.encode(text).tolist() == encoding.encode_ordinary(text), text
    lines = tiktoken.Encoding("lines", pat_str=r" +$|[\s\S]", mergeable_ranks=ranks, special_tokens=special)
    with pytest.raises(ConfigError, match=r"tokenizers splits .* otherwise than tiktoken by the pattern"):
        load_tokenizer(lines)  # $ is the end of a line in tokenizers


def test_a_tekken_file_gives_the_ids_of_its_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tekken_file(tmp_path / "tekken_small.json"))
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.can_lose) == (271, 2, False)
    assert tokenizer.encode("the in a\n").tolist() == [267, 42, 269, 270, 20]
    assert not set(tokenizer.encode("<s></s>").tolist()) & {0, 1, 2}
    text = CORPUS[2] + CORPUS[3]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_dropout_and_truncation_of_a_definition_do_not_touch_the_ids(trained: Tokenizer, tmp_path: Path) -> None:
    value = json.loads(trained.definition)
    value["model"]["dropout"] = 0.5
    value["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "t.json").write_text(json.dumps(value))
    assert load_tokenizer(tmp_path / "t.json").encode(CORPUS[0]).tolist() == trained.encode(CORPUS[0]).tolist()


def test_loading_and_the_bytes_tokenizer_stay_light() -> None:
    heavy = ("tokenizers", "torch", "transformers", "pyarrow")
    code = "import sys; from pipeline.text.tokens.tokenizer import load_tokenizer; load_tokenizer('bytes').encode('x');"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_trained_tokenizer_keeps_marks_with_their_letters() -> None:
    text = "हिन्दी का कागज। தமிழ் மொழி שָׁלוֹם مُحَمَّدٌ ที่นี่"
    trained = train_tokenizer([text] * 4, 500)
    assert len(trained.encode(text)) <= len(text.split()) + 2  # a token a word; marks apart would split each word
    assert trained.decode(trained.encode(text)) == text
    assert trained.encoder == "fastokens"
