"""The list of mutants follows the code; the long form applies each one and sees its tests fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.mutants.run import GRACE_S, LIMIT_S, ROOT, Mutant, Trials, mutants, trials

FEWEST = 282
"""A mutant is replaced when the code that it is about goes; the list does not become shorter."""


def test_the_list_is_no_shorter_than_it_was_and_names_each_once() -> None:
    listed = mutants()
    assert len(listed) >= FEWEST
    assert len({mutant.name for mutant in listed}) == len(listed)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in listed}) == len(listed)


def test_each_mutant_applies_and_names_tests_that_exist() -> None:
    wrong = []
    for mutant in mutants():
        source = (ROOT / mutant.file).read_text()
        changed = mutant.applied(source)
        if changed is None:
            wrong.append(f"{mutant.name}: {mutant.file} holds the old text {source.count(mutant.old)} times, not once")
        elif mutant.file.endswith(".py"):
            compile(changed, mutant.file, "exec")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if not (ROOT / file).exists():
                wrong.append(f"{mutant.name}: no file {file}")
            elif name and f"def {name.partition('[')[0]}(" not in (ROOT / file).read_text():
                wrong.append(f"{mutant.name}: no test {name} in {file}")
        if not mutant.tests:
            wrong.append(f"{mutant.name}: no tests")
    assert wrong == [], "let the mutants in tests/mutants/mutants.toml follow the code, or replace them"


def _with_marks(mutant: Mutant) -> object:
    return pytest.param(mutant, id=mutant.name, marks=[getattr(pytest.mark, name) for name in sorted(mutant.needs)])


@pytest.fixture(scope="session")
def tree() -> Iterator[Trials]:
    """A copied tree for the mutants that one worker tries."""
    with trials() as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.timeout(LIMIT_S + GRACE_S)
@pytest.mark.parametrize("mutant", [_with_marks(mutant) for mutant in mutants()])
def test_a_mutant_is_killed_by_its_tests(tree: Trials, mutant: Mutant) -> None:
    result, output = tree.verdict(mutant)
    assert result == "killed", output


def _trials_of(directory: Path, test: str) -> Trials:
    """Return trials of a tree with one function and one test of it."""
    (directory / "rules.py").write_text("def least(a, b):\n    return a if a < b else b\n")
    (directory / "test_rules.py").write_text(f"import rules\n\n\ndef test_it():\n    {test}\n")
    return Trials(directory, directory / "temporary")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("new", "test", "result"),
    [
        ("a > b", "assert rules.least(1, 2) == 1", "killed"),
        ("a <= b", "assert rules.least(1, 2) == 1", "survived"),
        ("a > b", "assert rules.least(1, 2) == 3", "not tried"),
        ("a > b or exit()", "assert rules.least(1, 2) == 1; assert rules.least(3, 2) == 2", "killed"),
    ],
)
def test_the_verdict_is_that_of_its_tests_with_and_without_it(tmp_path: Path, new: str, test: str, result: str) -> None:
    tried = _trials_of(tmp_path, test)
    mutant = Mutant("least", "rules.py", "a < b", new, ("test_rules.py::test_it",))
    assert tried.verdict(mutant, 60.0)[0] == result
    assert "return a if a < b else b" in (tmp_path / "rules.py").read_text()


@pytest.mark.exhaustive
def test_one_whose_tests_take_too_long_is_not_tried_and_leaves_no_process(tmp_path: Path) -> None:
    start = "__import__('subprocess').Popen(['sleep', '600'], start_new_session=True)"
    write = "__import__('pathlib').Path('started').write_text(str(process.pid))"
    tried = _trials_of(tmp_path, f"process = {start}; {write}; process.wait()")
    mutant = Mutant("least", "rules.py", "a < b", "a > b", ("test_rules.py",))
    result, _ = tried.verdict(mutant, 3.0)
    assert result == "not tried"
    assert not psutil.pid_exists(int((tmp_path / "started").read_text()))
