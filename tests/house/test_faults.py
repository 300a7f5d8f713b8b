"""Every seeded fault can still be seeded: ``make test-faults`` seeds them, and sees that tests notice each."""

from __future__ import annotations

from tests.faults import ROOT, load


def test_the_line_of_a_seeded_fault_occurs_once_and_its_tests_are_there() -> None:
    stale = {
        fault.claim
        for fault in load()
        if fault.occurrences(ROOT) != 1
        or fault.before == fault.after
        or not all((ROOT / name.partition("::")[0]).is_file() for name in fault.tests)
    }
    assert stale == set(), "adapt tests/faults/*.toml to the new lines and files of these claims"


def test_claims_are_told_apart() -> None:
    claims = [fault.claim for fault in load()]
    assert len(claims) == len(set(claims)) > 30
