"""The sample of seeded mutants: the same for a seed, and made of changes that a program can notice."""

from __future__ import annotations

from tests.mutants.seeded import OPERATORS, PACKAGES, files_of, mutants_of, reasons, sample

SOURCE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Fleet:
    size: int | None = 3

def grown(fleet: Fleet, by: int) -> int | None:
    if by <= 0:
        raise ValueError(by)
    log.debug("grown by %d", by * 2)
    return sum(one + by for one, _ in zip([1], [2], strict=True))
"""


def test_a_file_has_one_mutant_at_each_place_that_behaviour_hangs_on() -> None:
    changed = {SOURCE.splitlines()[mutant.line - 1].strip() for _, mutant in mutants_of("rails", "a.py", SOURCE, 1)}
    assert changed == {
        "size: int | None = 3",
        "if by <= 0:",
        "raise ValueError(by)",
        "return sum(one + by for one, _ in zip([1], [2], strict=True))",
    }
    for _, mutant in mutants_of("rails", "a.py", SOURCE, 1):
        mutated = mutant.source(SOURCE)
        compile(mutated, "a.py", "exec")
        assert mutated != SOURCE
        assert "frozen=True" in mutated
        assert "strict=False" not in mutated
        assert "size: int | None" in mutated


def test_a_seed_gives_the_same_mutants_and_a_change_elsewhere_leaves_them() -> None:
    before = {(one.operator, one.changed) for digest, one in mutants_of("rails", "a.py", SOURCE, 1) if digest < "8"}
    longer = SOURCE.replace("class Fleet", "class First:\n    pass\n\nclass Fleet")
    assert {(one.operator, one.changed) for digest, one in mutants_of("rails", "a.py", longer, 1) if digest < "8"} == (
        before
    )


def test_a_sample_takes_of_each_package_as_many() -> None:
    chosen = sample(["rails", "leader"], 8, 1)
    assert [mutant.package for mutant in chosen] == ["rails"] * 4 + ["leader"] * 4
    assert chosen == sample(["rails", "leader"], 8, 1)
    assert all(files_of(package) for package in PACKAGES)


def test_every_survivor_says_where_it_is_and_why() -> None:
    for one in reasons():
        assert set(one) == {"file", "operator", "line", "why"}
        assert one["operator"] in OPERATORS
        assert one["line"] == one["line"].strip()
        assert one["why"].strip()
    places = [(one["file"], one["operator"], one["line"]) for one in reasons()]
    assert len(set(places)) == len(places)
