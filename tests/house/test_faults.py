"""Every seeded fault can still be seeded: ``make test-faults`` seeds them, and sees that tests notice each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import ROOT, Fault, load


@pytest.mark.parametrize("fault", load(), ids=lambda fault: fault.claim)
def test_the_line_of_a_seeded_fault_occurs_once_and_its_tests_are_there(fault: Fault) -> None:
    assert fault.occurrences(ROOT) == 1, f"{fault.file}: adapt tests/faults/*.toml to the new line of this claim"
    assert fault.before != fault.after
    assert [name for name in fault.tests if not Path(ROOT, name.partition("::")[0]).is_file()] == []


def test_claims_are_told_apart() -> None:
    claims = [fault.claim for fault in load()]
    assert len(claims) == len(set(claims)) > 30
