"""Tokenizers give the ids of their definition, whichever encoder and process makes them, and no text a special token."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, InputError
from pipeline.text.tokens.conformance import STRINGS, proof_texts
from pipeline.text.tokens.encoders import ENCODERS, FAST, Encode, Load, fault_of_fast, load_definition
from pipeline.text.tokens.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer
from tests.helpers.tokenizer_samples import CORPUS, auto_ids, gpt2_folder, train_without_unknown

TEXTS = st.one_of(
    st.text(),
    st.text(st.sampled_from("ab'sStT 1\n\t<|endoftext|></s>[SEP]\u017f\u4e2d\u0301\u00e9\U0001f600")),
    st.lists(st.sampled_from([*STRINGS[:60], END_OF_TEXT, "</s>", "[SEP]", "<extra_id_0>", "<0x0A>"])).map("".join),
)


# The ids.


def test_the_ids_are_those_of_auto_tokenizer(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    expected = auto_ids(tmp_path)
    for text in [*CORPUS[:5], *proof_texts([END_OF_TEXT])]:
        assert trained.encode(text).tolist() == expected(text)


def test_the_bytes_tokenizer_is_byt5(tmp_path: Path) -> None:
    from transformers import ByT5Tokenizer

    ours, theirs = load_tokenizer("bytes"), ByT5Tokenizer()
    assert (ours.vocab_size, ours.eos_id, ours.dtype) == (len(theirs), theirs.eos_token_id, np.dtype("<u2"))
    assert ours.special_ids == {token: theirs.convert_tokens_to_ids(token) for token in theirs.all_special_tokens} | {
        f"<extra_id_{n}>": 259 + n for n in range(125)
    }
    ours.save(tmp_path)
    saved = auto_ids(tmp_path)
    for text in [*CORPUS[:5], *STRINGS, "</s><pad><unk><extra_id_0>"]:
        ids = ours.encode(text).tolist()
        assert ids == theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids == saved(text)
        assert ours.decode([*ids, 1]) == text + "</s>"


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "llama"])
def test_other_kinds_of_definition_give_their_own_ids(kind: str, definitions: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(definitions[kind])
    judge = load_definition(tokenizer.definition)
    for text in [*CORPUS[:5], *STRINGS]:
        if not any(token in text for token in tokenizer.special_ids):
            assert tokenizer.encode(text).tobytes() == np.frombuffer(judge(text), "<u4").astype("<u2").tobytes()
    assert tokenizer.decode(tokenizer.encode("many texts")).strip() == "many texts"


@pytest.mark.parametrize("kind", ["trained", "unigram", "wordpiece", "llama", "bytes"])
def test_no_text_becomes_a_special_token(kind: str, trained: Tokenizer, definitions: dict[str, Path]) -> None:
    tokenizer = trained if kind == "trained" else load_tokenizer(definitions.get(kind, kind))
    unknown = tokenizer.special_ids.get("<unk>", tokenizer.special_ids.get("[UNK]"))
    forbidden = [id for id in tokenizer.special_ids.values() if id != unknown]
    for token in tokenizer.special_ids:
        for text in (token, f"a {token} b", f"{token}{token}\n{token}", token.upper(), f" {token}"):
            ids = tokenizer.encode(text)
            assert not np.isin(ids, forbidden).any(), text
            assert len(ids) or not text


def test_an_end_of_text_that_is_not_marked_as_special_is_still_out_of_reach(trained: Tokenizer, tmp_path: Path) -> None:
    value = json.loads(trained.definition)
    value["added_tokens"][0]["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    tokenizer = load_tokenizer(tmp_path)
    assert load_definition(tokenizer.definition)(END_OF_TEXT) == np.asarray([tokenizer.eos_id], "<u4").tobytes()
    ids = tokenizer.encode(f"a{END_OF_TEXT} b")
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT} b"


def test_gpt2_gives_the_ids_of_tokenizers_in_every_form(trained: Tokenizer, tmp_path: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import AutoTokenizer

    folder = gpt2_folder(trained.definition, tmp_path / "gpt2")
    judge = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))._tokenizer
    loaded = AutoTokenizer.from_pretrained(folder)
    load_tokenizer(folder).save(tmp_path / "saved")
    texts = [*CORPUS[:5], *STRINGS, END_OF_TEXT, f" {END_OF_TEXT}a{END_OF_TEXT}{END_OF_TEXT}\n"]
    expected = [judge.encode(text).ids for text in texts]
    assert not any(trained.eos_id in ids for ids in expected)
    for form in (folder, loaded, loaded.backend_tokenizer, judge, tmp_path / "saved"):
        tokenizer = load_tokenizer(form)
        assert [tokenizer.encode(text).tolist() for text in texts] == expected
        assert tokenizer.eos_id == load_tokenizer(form, eos=END_OF_TEXT).eos_id == trained.eos_id


@pytest.mark.parametrize("roles", [{}, {"unk_token": END_OF_TEXT, "bos_token": END_OF_TEXT}])
def test_an_unknown_token_that_no_character_becomes_ends_documents(
    roles: dict[str, str], trained: Tokenizer, tmp_path: Path
) -> None:
    value = json.loads(trained.definition)
    value["model"]["unk_token"] = END_OF_TEXT
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles))
    tokenizer = load_tokenizer(tmp_path)
    for text in [END_OF_TEXT, *CORPUS[:5], *STRINGS]:
        assert tokenizer.encode(text).tolist() == trained.encode(text).tolist()


def test_bytes_that_no_text_has_and_ids_without_a_token_change_nothing(trained: Tokenizer, tmp_path: Path) -> None:
    value = json.loads(trained.definition)
    model = value["model"]
    model |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}  # as the file of GPT-2 has them
    model["unk_token"] = END_OF_TEXT
    gone = {letter for byte in (0xC0, 0xC1, *range(0xF5, 0x100)) for letter in chr(byte)}  # as in that of GPT-NeoX
    model["vocab"] = {token: id for token, id in model["vocab"].items() if token not in gone}
    (tmp_path / "t.json").write_text(json.dumps(value))
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert (tokenizer.encoder, tokenizer.can_lose) == (FAST, False)
    for text in [*CORPUS[:5], *STRINGS]:
        assert tokenizer.encode(text).tolist() == trained.encode(text).tolist()


def test_a_token_that_characters_become_cannot_end_documents(definitions: dict[str, Path], tmp_path: Path) -> None:
    value = json.loads(definitions["llama"].read_text())
    del value["model"]["vocab"]["<0x41>"]
    (tmp_path / "t.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=r"lacks become '<unk>'.*--eos"):
        load_tokenizer(tmp_path / "t.json", eos="<unk>")


@settings(deadline=None, max_examples=120)
@given(st.lists(TEXTS, max_size=5))
@example([END_OF_TEXT, f"a{END_OF_TEXT}"])
def test_every_encoder_that_serves_gives_the_ids_of_the_definition(trained: Tokenizer, texts: list[str]) -> None:
    judge = load_definition(trained.definition)
    expected = [np.frombuffer(judge(text), "<u4").tolist() for text in texts]
    assert trained.encoder == FAST
    assert [trained.encode(text).tolist() for text in texts] == expected


def test_an_encoder_with_other_ids_is_refused_with_the_text(trained: Tokenizer) -> None:
    judge = load_definition(trained.definition)

    def broken(definition: str) -> Encode:
        raise RuntimeError("cannot load this")

    def fault(sample: tuple[str, ...], load: Load) -> str:
        return fault_of_fast(trained.definition, (), sample, load)

    assert fault(("a\u1680",), lambda _: lambda text: judge(text.replace("\u1680", " "))) == r"other ids for 'a\u1680'"
    assert fault((), broken) == "RuntimeError: cannot load this"
    assert fault((), load_definition) == ""


def encoded_by(trained: Tokenizer, encode: Encode) -> Tokenizer:
    """Return a trained tokenizer, with a function in place of its fast encoder."""
    return Tokenizer(trained.definition, "t", trained.roles, encoder=FAST, encoders={FAST: lambda _: encode})


def test_a_text_that_a_fast_encoder_gives_up_on_goes_to_the_definition(trained: Tokenizer) -> None:
    def give_up(text: str) -> bytes:
        raise RuntimeError("match limit")

    tokenizer = encoded_by(trained, give_up)
    assert tokenizer.encode("many texts").tolist() == trained.encode("many texts").tolist()
    tokenizer = encoded_by(trained, lambda text: np.asarray([70_000], "<u4").tobytes())
    with pytest.raises(ConfigError, match=r"gave id 70000.*vocabulary ends at"):
        tokenizer.encode("x")


def test_characters_without_token_are_counted(trained: Tokenizer, definitions: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(train_without_unknown(tmp_path / "t.json"))
    texts = ["The cat\u2603", "1 \u00e9t\u00e9, \u2603\u2603", "", "hat"]
    tokens, _ = tokenizer.encode_flat(texts)
    lost = sum(character not in "abcdefghijklmnopqrstuvwxyz " for text in texts for character in text.lower())
    for _ in range(2):
        assert tokenizer.count_lost(texts, tokens) == (lost, sum(map(len, texts)))
    assert tokenizer.loss_text(9, 21) == "9 of 21 characters (42.86%) have no token and are left out"
    value = json.loads(trained.definition)
    value["model"]["vocab"] = {t: i for t, i in value["model"]["vocab"].items() if len(t) == 1 and t != "\u0120"}
    value["model"]["merges"], value["model"]["vocab"]["<|endoftext|>"] = [], 0
    (tmp_path / "bytes.json").write_text(json.dumps(value))
    assert load_tokenizer(tmp_path / "bytes.json").count_lost(["a b  c"], tokens)[0] == 3
    for kind, known in (("llama", None), ("wordpiece", "[UNK]")):
        tokenizer = load_tokenizer(definitions[kind])
        tokens, _ = tokenizer.encode_flat(["words \u2603\u2603 of \u2603"])
        assert (tokenizer.can_lose, tokenizer.unknown) == (known is not None, known)
        assert tokenizer.count_lost(["words"], tokens)[0] == (2 if known else 0)


def test_text_that_a_model_without_an_unknown_token_cannot_encode_is_an_error(tmp_path: Path) -> None:
    value = json.loads(wide(10, tmp_path / "w.json").read_text())
    del value["model"]["vocab"]["<unk>"]
    (tmp_path / "w.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=r"w.json: cannot encode '<'.*give its model an unknown token"):
        load_tokenizer(tmp_path / "w.json")


def test_lone_surrogates_are_refused_by_place(trained: Tokenizer) -> None:
    for tokenizer in (trained, load_tokenizer("bytes")):
        with pytest.raises(InputError, match="surrogate at character 2"):
            tokenizer.encode("ab\ud800")


# Shapes, marks, widths.


def test_flat_ids_are_the_texts_joined_with_the_marks_asked_for(
    trained: Tokenizer, definitions: dict[str, Path], tmp_path: Path
) -> None:
    assert trained.bos_id is None
    with pytest.raises(ConfigError, match=r"no bos_token.*endoftext"):
        trained.encode_flat(["x"], bos=True)
    (tmp_path / "tokenizer.json").write_bytes(definitions["llama"].read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}, "bos_token": "<s>"}')
    tokenizer = load_tokenizer(tmp_path)
    texts = ["one two", "", "three"]
    plain = [tokenizer.encode(text).tolist() for text in texts]
    tokens, lengths = tokenizer.encode_flat(texts, bos=True, eos=True)
    marked = [[tokenizer.bos_id, *ids, tokenizer.eos_id] for ids in plain]
    assert (tokens.tolist(), lengths.tolist()) == ([id for ids in marked for id in ids], [len(ids) for ids in marked])
    assert tokens.dtype == np.dtype("<u2")
    tokens, lengths = tokenizer.encode_flat([], eos=True)
    assert (len(tokens), len(lengths)) == (0, 0)
    assert [tokenizer.special_ids[name] for name in ("<s>", "</s>")] == [tokenizer.bos_id, tokenizer.eos_id]


def wide(size: int, path: Path) -> Path:
    words = {"<unk>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, size)}}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    value = {
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": "</s>", **special}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    path.write_text(json.dumps(value))
    return path


def test_the_width_follows_the_vocabulary(tmp_path: Path) -> None:
    for size, width in ((65_536, "<u2"), (65_537, "<u4")):
        tokenizer = load_tokenizer(wide(size, tmp_path / "w.json"))
        assert (tokenizer.vocab_size, tokenizer.dtype) == (size, np.dtype(width))
        assert tokenizer.encode(f"w{size - 1} w2").tolist() == [size - 1, 2]


# Processes and long texts.


def ids_in_worker(tokenizer: Tokenizer, queue: Any) -> None:
    queue.put(tokenizer.encode_flat(CORPUS, eos=True)[0].tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_workers_give_the_same_ids_however_they_are_started(trained: Tokenizer, method: str) -> None:
    expected = trained.encode_flat(CORPUS, eos=True)[0].tolist()  # used here before the fork
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    workers = [context.Process(target=ids_in_worker, args=(trained, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert results == [expected, expected]


@pytest.mark.parametrize("name", ["fastokens", "tokenizers"])
def test_a_long_text_without_spaces_is_encoded_within_the_time_limit(trained: Tokenizer, name: str) -> None:
    encode = ENCODERS[name](trained.definition)
    for piece in ("a", "=", " ", "\u4e2d\u6587\u5b57", "etaoinshrdlu"):
        assert encode(piece * (400_000 // len(piece)))  # work that grows with the square would take an hour


def test_streams_of_text_say_that_characters_are_left_out(tmp_path: Path) -> None:
    import pipeline

    definition = train_without_unknown(tmp_path / "t.json")
    with pytest.warns(UserWarning, match=r"t.json.* 2 of 7 characters \(28.57%\) .*no token"):
        pipeline.ShardDataset.from_texts(["the 4\u2603t"], definition)
    (tmp_path / "a.txt").write_text("the cat")
    with pytest.warns(UserWarning, match=r"t.json.* characters .*vocabulary lacks .*left out"):
        pipeline.TextDataset(tmp_path / "a.txt", tokenizer=definition)
