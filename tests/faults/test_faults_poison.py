"""Poisoned measurements change no decision: the agent does what it does in the same world without them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from domain.decisions import Decision
from domain.errors import RejectReason
from tests.faults.world import Plan, World

MINUTES = 6
METRICS = ("cpu_percent", "ram_percent", "busy_cores", "work_core_seconds")
COUNTS = ("waiting", "running", "submitted_total", "oldest_wait_seconds", "job_core_seconds")
BAD_VALUES = ("nan", "inf", "-inf", "1e308", "-1", "-0.5", "1e16", "five", "0x10", "")
GOOD_VALUES = ("0", "100", "1")
# Beyond what a host's clock may be off by, on either side, and what no clock shows.
BAD_AGES_S = (3600.0, 700.0, -3600.0, -131.0, -1e12, 1e12, float("nan"), float("inf"))

Noise = Callable[[float], bytes]


def run(noise: Noise | None = None, copies: int = 1) -> tuple[list[Decision], list[tuple[str, str]], World]:
    """What is decided, and sent to AWS, in a world that grows and shrinks, with this noise on top."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), Plan(sizes=(2, 1, 0), policy="queue-rule", interruptions=False))
        try:
            world.copies = copies
            world.noise = noise or world.noise
            world.submit(12)
            world.tick(MINUTES // 2)
            world.waiting = 0
            world.tick(MINUTES - MINUTES // 2)
            return [decision for report in world.reports for decision in report.decisions], world.mutations, world
        finally:
            world.close()


@cache
def clean() -> tuple[list[Decision], list[tuple[str, str]], World]:
    return run()


@cache
def names() -> tuple[str, ...]:
    """Paths that the agent believes in: its own VMs' and its queue's."""
    vms = sorted({vm for decision in clean()[0] for intent in decision.intents for vm in intent.victims})
    assert vms, "the world shrinks"
    return (
        *(f"trimtab.web.{key}.{vm}.{metric}" for vm in vms for key in ("small", "medium") for metric in METRICS),
        *(f"trimtab.web.queue.{metric}" for metric in COUNTS),
    )


def is_same(noise: Noise, copies: int = 1) -> World:
    expected, sent, _ = clean()
    decisions, mutations, world = run(noise, copies)
    assert decisions == expected
    assert mutations == sent
    assert len(mutations) > 2
    return world


def everywhere(values: tuple[str, ...], ages: tuple[float, ...]) -> Noise:
    paths = names()

    def noise(at: float) -> bytes:
        return "".join(f"{name} {v} {at - age!r}\n" for name in paths for v in values for age in ages).encode()

    return noise


def test_values_that_cannot_be() -> None:
    world = is_same(everywhere(("nan", "inf", "-inf", "1e308", "-1", "five"), (0.0,)))
    lines = 6 * MINUTES * len(names())
    assert {reason: count for reason, count in world.intake.rejected.items() if count} == {
        RejectReason.NOT_FINITE: 3 * lines,
        RejectReason.OUT_OF_RANGE: 2 * lines,
        RejectReason.BAD_VALUE: lines,
    }


def test_stamps_from_the_future_and_from_long_ago() -> None:
    world = is_same(everywhere(GOOD_VALUES, (-131.0, -3600.0, 700.0, 86_400.0)))
    assert world.intake.rejected[RejectReason.FUTURE] == world.intake.rejected[RejectReason.TOO_OLD] > 0


def test_every_reading_ten_times_over() -> None:
    world = is_same(lambda at: b"", copies=10)
    assert world.intake.rejected_total == 0


def test_lines_of_a_megabyte_and_half_lines_and_no_text() -> None:
    path = names()[0].encode()

    def noise(at: float) -> bytes:
        return b"\n".join(
            [
                b"x" * 1_000_000,
                path + b" " + b"9" * 1_000_000 + b" 1",
                b"trimtab.web.queue.waiting 1e3",
                b"trimtab.web.queue.waiting",
                b"\xff\xfe\x00" + b" 1 2",
                b"",
                b"trimtab.web.queue.waiting 500",  # never finished: the rest of the line does not come
            ]
        )

    world = is_same(noise)
    assert world.intake.rejected[RejectReason.TOO_LONG] >= 2 * 6 * MINUTES
    assert world.stranger.held_bytes <= 1024


def test_vms_and_fleets_that_do_not_exist() -> None:
    def noise(at: float) -> bytes:
        ghosts = [f"trimtab.web.small.i-{n:017x}.cpu_percent 100 {at!r}" for n in range(300)]
        strangers = [f"trimtab.other.queue.waiting 900 {at!r}", f"servers.web.small.i-1.cpu_percent 100 {at!r}"]
        return "\n".join([*ghosts, *strangers, ""]).encode()

    world = is_same(noise)
    assert world.intake.rejected[RejectReason.FOREIGN_PATH] == 2 * 6 * MINUTES
    assert len(world.store) < 1000


@st.composite
def poison(draw: st.DrawFn) -> Noise:
    """Lines each of which is wrong in its value, its time or its form, in any mixture."""
    name = st.sampled_from(names())
    about = st.one_of(
        st.tuples(name, st.sampled_from(BAD_VALUES), st.just(0.0)),
        st.tuples(name, st.sampled_from(GOOD_VALUES + BAD_VALUES), st.sampled_from(BAD_AGES_S)),
    )
    lines = draw(st.lists(about, max_size=40))
    junk = draw(st.lists(st.binary(max_size=60).filter(lambda b: b"trimtab" not in b), max_size=10))

    def noise(at: float) -> bytes:
        readings = [f"{name} {value} {at - age!r}".encode() for name, value, age in lines]
        return b"\n".join([*readings, *junk, b""])

    return noise


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_any_mixture_of_it(part: int) -> None:
    @seed(part)
    @settings(max_examples=9, deadline=None)
    @given(poison())
    def holds(noise: Noise) -> None:
        is_same(noise)

    holds()
