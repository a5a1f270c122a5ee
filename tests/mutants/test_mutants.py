"""The list of mutants follows the code; its long form applies each and sees the named tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.run import ROOT, Mutant, mutants, run

FEWEST = 41
"""The six that once lived, and the thirty-five that were killed when they were first tried."""


def test_the_list_is_no_shorter_than_it_was_and_names_each_once() -> None:
    listed = mutants()
    assert len(listed) >= FEWEST
    assert len({mutant.name for mutant in listed}) == len(listed)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in listed}) == len(listed)


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_and_names_tests_that_are_there(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    changed = mutant.applied(source)
    assert changed is not None, (
        f"{mutant.file} holds {mutant.old!r} {source.count(mutant.old)} times and not once: let the mutant in "
        "tests/mutants/mutants.toml follow the code, or take it out when what it was about is gone"
    )
    compile(changed, mutant.file, "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text, f"{file} has no test {name}"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs_postgresql
@pytest.mark.timeout(3600)
def test_every_mutant_is_killed_by_its_tests(tmp_path: Path) -> None:
    assert run(mutants(), tmp_path / "results.json") == []
