from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.atomic import temporary_path
from pipeline.builder.workspace.atomic_directory import result_directory, sweep


def test_a_result_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> None:
        with result_directory(tmp_path / "result") as directory:
            (directory / "one").write_text("1")
            assert not (tmp_path / "result").exists()
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with result_directory(tmp_path / "result") as directory:
        (directory / "one").write_text("1")
    assert (tmp_path / "result" / "one").read_text() == "1"


def test_a_result_that_is_there_stays(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with result_directory(tmp_path / "result") as directory:
            (directory / "one").write_text(text)
    assert (tmp_path / "result" / "one").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    left = temporary_path(tmp_path / "deep" / "000001")
    left.mkdir(parents=True)
    (left / "half").write_text("")
    temporary_path(tmp_path / "deep" / "file").write_text("")
    (tmp_path / "deep" / "whole").write_text("")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "whole"]
