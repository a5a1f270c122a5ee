"""The rails' page tells the truth: every rail in its place, with its power, its reasons and its limits."""

import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

from agent.rails.base import Rail, RailLimits
from agent.rails.order import RAILS, apply_rails
from agent.rails.state import CapacityMark
from domain.decisions import Reason, Verdict
from tests.agent.rails.scenes import NOON, proposal, scene

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "rails.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_rail_is_in_its_place_with_its_power():
    expected = [(str(place), f"`{rail.name}`", rail.power.value) for place, rail in enumerate(RAILS, 1)]
    assert [tuple(row[:3]) for row in ROWS] == expected


def source_of(rail: Rail) -> str:
    """The rail's function and what it calls in its own module."""
    module = vars(sys.modules[rail.apply.__module__])
    unread, read = [inspect.unwrap(rail.apply)], set()
    while unread:
        function = unread.pop()
        if function.__module__ == rail.apply.__module__ and function not in read:
            read.add(function)
            unread += [found for name in function.__code__.co_names if inspect.isfunction(found := module.get(name))]
    return "\n".join(inspect.getsource(function) for function in read)


def test_every_rail_names_the_reasons_that_it_gives():
    for row, rail in zip(ROWS, RAILS, strict=True):
        given = {Reason[name].value for name in re.findall(r"\bReason\.([A-Z_]+)", source_of(rail))}
        # One that is needed before a limit applies.
        assert quoted(row[4]) == given - {"nothing_to_do"}, rail.name


def test_every_limit_is_mentioned():
    assert {field.name for field in fields(RailLimits)} <= quoted(PAGE)


def test_every_rail_says_its_place():
    for place, rail in enumerate(RAILS, 1):
        assert (rail.apply.__doc__ or "").startswith(f"Rail {place}: "), rail.name


def test_the_example_record_is_what_the_rails_say():
    context = scene(
        groups={"workers_m": {"zones": ("us-east-1b",)}},
        limits={"max_step_out": 2},
        state={"capacity": (CapacityMark("m5a.large", "us-east-1b", NOON + 270.0, 600.0),)},
    )
    _, effects = apply_rails(proposal(30, 4, 4), context)
    said = [f"{e.rail}: {e.reason}: {e.detail}" for e in effects if e.verdict is not Verdict.PASSED]
    assert said == PAGE.split("```")[1].split("\n")[1:-1]
