"""Our shards are plain: readers that know nothing of us see every document and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.shard_samples import make_documents, write_documents


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_webdataset_alone_decodes_every_document_in_order(tmp_path: Path, dtype: str) -> None:
    import webdataset

    documents = make_documents(40, dtype=dtype)
    write_documents(tmp_path / "train-000000.tar", documents)
    samples = list(webdataset.WebDataset(str(tmp_path / "train-000000.tar"), shardshuffle=False).decode())
    assert [s["__key__"] for s in samples] == [f"{j:012d}" for j in range(40)]
    for sample, document in zip(samples, documents, strict=True):
        np.testing.assert_array_equal(sample["npy"], document)


def test_hugging_face_datasets_decodes_every_document_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    documents = make_documents(40)
    write_documents(tmp_path / "train-000000.tar", documents)
    rows = list(
        datasets.load_dataset(
            "webdataset",
            data_files={"train": str(tmp_path / "*.tar")},
            split="train",
            cache_dir=str(tmp_path / "cache"),
        )
    )
    assert [row["__key__"] for row in rows] == [f"{j:012d}" for j in range(40)]
    for row, document in zip(rows, documents, strict=True):
        np.testing.assert_array_equal(np.asarray(row["npy"]), document)
