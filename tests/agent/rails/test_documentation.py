"""The rails' page tells the truth: every rail in its place, with its power, its reasons and its limits."""

import re
from dataclasses import fields
from pathlib import Path

import agent.rails
from agent.autoscaling.state import CapacityMark
from agent.rails.base import RailLimits
from agent.rails.order import RAILS, apply_rails
from domain.decisions import Reason, Verdict
from tests.agent.rails.scenes import NOON, proposal, scene

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "rails.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_rail_stands_in_its_place_with_its_power():
    expected = [(str(place), f"`{rail.name}`", rail.power.value) for place, rail in enumerate(RAILS, 1)]
    assert [tuple(row[:3]) for row in ROWS] == expected


def test_every_rail_names_the_reasons_that_its_module_gives():
    for row, rail in zip(ROWS, RAILS, strict=True):
        source = Path(agent.rails.__path__[0], f"{rail.name}.py").read_text(encoding="utf-8")
        given = {Reason[name].value for name in re.findall(r"\bReason\.([A-Z_]+)", source)}
        # These modules also read reasons that outcomes bear, or need one before a limit applies.
        read = {"permanent_failure", "credentials", "overdue", "nothing_to_do"}
        assert quoted(row[4]) == given - read, rail.name


def test_every_limit_is_mentioned():
    assert {field.name for field in fields(RailLimits)} <= quoted(PAGE)


def test_every_module_says_its_place():
    for place, rail in enumerate(RAILS, 1):
        source = Path(agent.rails.__path__[0], f"{rail.name}.py").read_text(encoding="utf-8")
        assert source.startswith(f'"""Rail {place}: '), rail.name


def test_the_example_record_is_what_the_rails_say():
    context = scene(
        groups={"workers_m": {"zones": ("us-east-1b",)}},
        limits={"max_step_out": 2},
        state={"capacity": (CapacityMark("m5a.large", "us-east-1b", NOON + 270.0, 600.0),)},
    )
    _, effects = apply_rails(proposal(30, 4, 4), context)
    said = [f"{e.rail}: {e.reason}: {e.detail}" for e in effects if e.verdict is not Verdict.PASSED]
    assert said == PAGE.split("```")[1].split("\n")[1:-1]
