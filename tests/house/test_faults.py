"""Every seeded fault can still be seeded: ``make test-faults`` seeds them, and sees that tests notice each."""

from __future__ import annotations

from tests.faults import ROOT, load


def is_there(test: str) -> bool:
    """Say whether a file of tests and its function are there; a doctest is named by its module."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file() or not file.startswith("tests/"):
        return (ROOT / file).is_file()
    return not name or f"\ndef {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_the_line_of_a_seeded_fault_occurs_once_and_its_tests_are_there() -> None:
    assert is_there("tests/house/test_faults.py::test_claims_are_told_apart")
    assert not is_there("tests/house/test_faults.py::test_claims")
    stale = {
        fault.claim
        for fault in load()
        if fault.occurrences(ROOT) != 1 or fault.before == fault.after or not all(map(is_there, fault.tests))
    }
    assert stale == set(), "adapt tests/faults/*.toml to the new lines, files and names of these claims"


def test_claims_are_told_apart() -> None:
    claims = [fault.claim for fault in load()]
    assert len(claims) == len(set(claims)) > 30
