"""Every block of docs/recipes.md that builds runs as it stands, in order, and does what the page says."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.shards.manifest import Manifest
from tests.filters.fasttext_models import write_model
from tests.helpers.builds import kept, table, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.documentation import blocks_of, run_block
from tests.helpers.format_samples import write_parquet

pytestmark = pytest.mark.stacks

BLOCKS = blocks_of("docs/recipes.md")
(CODE, TEXTS, COLUMN, FASTTEXT, TRANSFORMER, EXPORT, EMBED, NEAR, LOSSES, SCORES, ADD, BOTH, TAKE_OUT, TOKENIZER) = (
    BLOCKS[:-6]
)
PAGES = [{"id": f"page-{n}", "text": english(n, 20)} for n in range(30)]


def test_repositories_become_a_dataset_without_ignored_files(tmp_path: Path) -> None:
    repository = tmp_path / "repositories/one"
    files: dict[str, bytes] = {
        "src/main.py": b"def main():\n\tpass\r\n",
        "README.md": b"# One\n",
        "logo.png": b"\x89PNG\r\n\x1a\n\x00\xff",
        "latin.py": b"# gr\xfc\xdfe\n",
        "built/out.py": b"ignored = True\n",
        ".gitignore": b"built/\n",
    }
    for name, content in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_bytes(content)
    for words in ("init -q", "add ."):
        subprocess.run(["git", *words.split()], cwd=repository, check=True, capture_output=True)
    run_block(*CODE, tmp_path)
    held = table(tmp_path / "shards-code")
    assert {*held["id"]} == {"one/src/main.py", "one/README.md"}
    assert {*held["column:language"]} == {"Python", "Markdown"}
    assert {*held["column:repository"]} == {"one"}
    assert "def main():\n\tpass\r\n" in kept(tmp_path / "shards-code")
    assert Manifest.read(tmp_path / "shards-code").counts["bad"] == {"invalid UTF-8": 1}


def test_a_text_file_is_one_document_unless_it_is_said_what_stands_between(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for name in ("one", "two"):
        (tmp_path / f"books/{name}.txt").write_text(f"Title {name}.\n\n{english(len(name))}\n")
    (tmp_path / "books/two.txt").write_text("Another.\n\nIt has two paragraphs.\n")
    (tmp_path / "stories.txt").write_text("Once.\n<|endoftext|>\nTwice.\n\nThrice.\n<|endoftext|>\nAt last.\n")
    (tmp_path / "sentences.txt").write_text("First one.\nSecond one.\n")
    (tmp_path / "notes.txt").write_text("A note\nof two lines.\n\nAnother note.\n")
    run_block(*TEXTS, tmp_path)
    counts = {name: len(kept(tmp_path / f"shards-{name}")) for name in ("books", "stories", "sentences", "notes")}
    assert counts == {"books": 2, "stories": 3, "sentences": 2, "notes": 2}


def test_scores_that_a_dataset_has_select_documents(tmp_path: Path) -> None:
    (tmp_path / "fineweb-edu").mkdir()
    columns = {name: [page[name] for page in PAGES] for name in ("id", "text")}
    write_parquet(tmp_path / "fineweb-edu/a.parquet", columns | {"int_score": [n % 6 for n in range(30)]})
    run_block(*COLUMN, tmp_path)
    assert {*table(tmp_path / "shards-edu")["column:int_score"]} <= {3, 4, 5}
    assert Manifest.read(tmp_path / "shards-edu").counts["dropped"] == {"where": 15}


def test_a_fasttext_classifier_selects_documents(tmp_path: Path) -> None:
    lines = [("__label__hq", "science light energy water"), ("__label__cc", "buy cheap click now")] * 3
    write_model(tmp_path / "fasttext-oh-eli5.bin", lines)
    texts = ["science light energy water " * 5, "buy cheap click now " * 5]
    write_jsonl(tmp_path / "pages/a.jsonl", texts)
    run_block(*FASTTEXT, tmp_path)
    assert kept(tmp_path / "shards-hq") == [texts[0]]


def test_a_transformer_scores_documents_and_its_score_is_kept(tmp_path: Path) -> None:
    save_classifier(tmp_path / "edu-classifier")
    write_jsonl(tmp_path / "pages/a.jsonl", PAGES)
    run_block(*TRANSFORMER, tmp_path)
    manifest = Manifest.read(tmp_path / "shards-scored")
    assert 0 < manifest.counts["kept"] < 30
    assert min(table(tmp_path / "shards-scored")["column:quality"]) >= 2.5


def small_bert(folder: Path, texts: list[str], **sizes: Any) -> tuple[Any, Any]:
    """Save a tokenizer of the words of texts; return it, and the configuration of a small model with these tokens."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[PAD]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 512}
    return fast, transformers.BertConfig(vocab_size=len(vocabulary), **sizes)


def test_documents_that_a_model_finds_alike_are_dropped_although_they_share_no_runs_of_words(tmp_path: Path) -> None:
    import torch
    import transformers

    # Each page has words of its own; `again` has those of page 3 in another order.
    words = [[f"word{page}-{k % 10}" for k in range(60)] for page in range(20)]
    texts = [" ".join(random.Random(page).sample(own, 60)) for page, own in enumerate(words)]
    again = " ".join(random.Random(99).sample(words[3], 60))
    pages = [{"id": f"page-{n}", "text": text} for n, text in enumerate(texts)] + [{"id": "again", "text": again}]
    write_jsonl(tmp_path / "pages/a.jsonl", pages)
    _, config = small_bert(tmp_path / "embedder", texts, hidden_size=64)
    model = transformers.BertModel(config)
    torch.nn.init.zeros_(model.embeddings.token_type_embeddings.weight)  # it would make all vectors near
    model.save_pretrained(tmp_path / "embedder")
    for block in (EXPORT, EMBED, NEAR):
        run_block(*block, tmp_path)
    assert (tmp_path / "near.txt").read_text() == "again\n"
    manifest = Manifest.read(tmp_path / "shards-by-meaning")
    assert manifest.counts["dropped"] == {"drop_ids": 1}
    assert manifest.counts["duplicates"] == {"exact": 0, "near": 0}
    ids = {*table(tmp_path / "shards-by-meaning")["id"], *table(tmp_path / "shards-by-meaning", "val")["id"]}
    assert ids == {f"page-{n}" for n in range(20)}


def test_losses_by_document_are_those_of_each_alone_and_become_scores_of_a_build(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    import torch

    write_jsonl(tmp_path / "pages/a.jsonl", PAGES)
    pipeline.build(tmp_path / "pages", tmp_path / "shards", tokenizer="bytes", rules=(), val_fraction=0)
    run_block(*LOSSES, tmp_path)
    losses, rows = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("losses", "rows"))
    torch.manual_seed(0)
    data = pipeline.ShardDataset(tmp_path / "shards")
    model = torch.nn.Sequential(torch.nn.Embedding(384, 16), torch.nn.Linear(16, 384))
    assert sorted(found["id"] for found in losses) == sorted(page["id"] for page in PAGES)
    for at, found in enumerate(losses):
        text = next(page["text"] for page in PAGES if page["id"] == found["id"])
        ids = torch.tensor([*data.tokenizer.encode(text).tolist(), data.tokenizer.eos_id])
        alone = torch.nn.functional.cross_entropy(model(ids[:-1]), ids[1:]).item()
        assert found["loss"] == pytest.approx(alone, abs=1e-4)
        held = [i for row in rows for i, d in zip(row["input_ids"], row["doc_ids"], strict=True) if d == at]
        assert held == ids.tolist()
    median = sorted(found["loss"] for found in losses)[15]
    run_block(SCORES[0], SCORES[1].replace("max = 6.0", f"max = {median}"), tmp_path)
    held = {*table(tmp_path / "shards-by-loss")["id"], *table(tmp_path / "shards-by-loss", "val")["id"]}
    assert held == {found["id"] for found in losses if found["loss"] <= median}


def save_classifier(folder: Path) -> None:
    """Save a small regression whose scores are about half above 2.5."""
    import torch
    import transformers

    fast, config = small_bert(
        folder, [page["text"] for page in PAGES], hidden_size=16, num_labels=1, initializer_range=1.0
    )
    model = transformers.BertForSequenceClassification(config)
    batch = fast([page["text"] for page in PAGES], return_tensors="pt", padding=True, truncation=True, max_length=512)
    with torch.inference_mode():
        model.classifier.bias += 2.5 - model.eval()(**batch).logits.median()
    model.save_pretrained(folder)


def test_documents_are_added_and_taken_out_and_a_tokenizer_changes(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "pages/a.jsonl", PAGES)
    write_jsonl(tmp_path / "new-pages/a.jsonl", [*PAGES[:5], {"id": "new", "text": english(99, 20)}])
    for block in (ADD, ("python", f"import pipeline\n{BOTH[1]}"), TAKE_OUT, TOKENIZER):
        run_block(*block, tmp_path)
    ids = {name: table(tmp_path / f"shards-{name}")["id"] for name in ("old", "new", "without", "bpe")}
    held = {name: {*ids[name], *table(tmp_path / f"shards-{name}", "val")["id"]} for name in ids}
    assert held["new"] == {"new"}
    assert held["old"] - held["without"] == {"page-1", "page-7"}
    assert held["bpe"] == held["old"]
    assert pipeline.ShardDataset(tmp_path / "shards-bpe").vocab_size == 300
