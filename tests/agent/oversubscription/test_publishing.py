"""Rates in Parameter Store: written down first, put once, read back when in doubt, and never put in observe mode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from actuators.base import Permit
from actuators.values import Parameters
from agent.oversubscription.pool import Pool
from agent.oversubscription.publisher import Publisher
from agent.oversubscription.records import Step
from agent.oversubscription.state import OversubscriptionStore
from agent.rails.base import RailLimits
from domain.controls import Controls, Pause, PauseScope
from domain.decisions import Mode, Reason
from domain.errors import CloudError, FailureClass, Fenced
from tests.agent.oversubscription.pools import rules
from tests.faults.conftest import make_world
from tests.faults.world import MakeWorld, World

__all__ = ["make_world"]

NAME = "/trimtab/oversubscription/main"
NOBODY = Controls()


@dataclass(slots=True)
class Desk:
    """A pool of a world's agent, and who publishes its rates."""

    world: World
    pool: Pool
    publisher: Publisher
    parameters: Parameters

    def turn(self, controls: Controls = NOBODY) -> list[Reason]:
        """Turn pool and publisher; return what was published, or why not."""
        now, epoch = self.world.agent_clock.now(), self.world.epoch
        self.pool.turn(now, epoch, paused=False)
        return [event.reason for event in self.publisher.turn(now, epoch, controls)]

    def puts(self) -> int:
        """How often the parameter was put."""
        return len(self.world.control.calls(operation="PutParameter"))

    def record(self) -> Any:
        """What the ledger has of it."""
        return OversubscriptionStore(self.world.ledger).publication("main")


@pytest.fixture
def make(make_world: MakeWorld) -> Callable[..., Desk]:
    def made(mode: Mode = Mode.ACT) -> Desk:
        world = make_world(mode=mode)
        pool = Pool(rules(), OversubscriptionStore(world.ledger), world.agent_clock)
        parameters = Parameters(world.session)
        # The look-alike loads its service with the first call, for which the real one has no time to spare.
        with contextlib.suppress(CloudError):
            parameters.get(NAME)
        limits = RailLimits(breaker_failures=3)
        publisher = Publisher(pool, NAME, parameters, world.ledger, mode, limits)
        return Desk(world, pool, publisher, parameters)

    return made


def test_each_hour_is_put_once_with_its_decision(make: Callable[..., Desk]) -> None:
    desk = make()
    assert desk.turn() == [Reason.RATES_PUBLISHED]
    held = json.loads(desk.parameters.get(NAME) or "")
    assert (held["decision"], held["rates"]) == ("main-o1", {"batch": 1.0, "web": 1.0})
    assert desk.turn() == []
    desk.world.clock.advance(3600.0)
    assert desk.turn() == [Reason.RATES_PUBLISHED]
    assert json.loads(desk.parameters.get(NAME) or "")["decision"] == "main-o2"
    assert desk.puts() == 2


def test_observe_mode_puts_nothing_and_says_so_once(make: Callable[..., Desk]) -> None:
    desk = make(Mode.OBSERVE)
    assert [desk.turn(), desk.turn()] == [[Reason.OBSERVE_MODE], []]
    desk.world.clock.advance(3600.0)
    assert desk.turn() == []
    assert desk.puts() == 0
    assert desk.record() is None


def test_a_paused_pool_is_not_published_until_it_is_resumed(make: Callable[..., Desk]) -> None:
    desk = make()
    held = Controls((Pause(PauseScope.ALL, "ada", "a drill", desk.world.agent_clock.now(), None),))
    assert desk.turn(held) == [Reason.PAUSED]
    assert desk.puts() == 0
    assert desk.turn() == [Reason.RATES_PUBLISHED]


def test_why_nothing_is_published_is_said_again_when_it_could_not_be_recorded(make: Callable[..., Desk]) -> None:
    desk = make(Mode.OBSERVE)
    now, epoch = desk.world.agent_clock.now(), desk.world.epoch
    desk.pool.turn(now, epoch, paused=False)
    with pytest.raises(Fenced):
        desk.publisher.turn(now, epoch - 1, NOBODY)
    assert [event.reason for event in desk.publisher.turn(now, epoch, NOBODY)] == [Reason.OBSERVE_MODE]


def test_a_pause_made_after_the_rails_were_asked_stops_the_put(make: Callable[..., Desk]) -> None:
    desk = make()
    now = desk.world.agent_clock.now()
    desk.world.ledger.pause("oversubscription", "main", Pause(PauseScope.ALL, "ada", "a drill", now, None))
    assert desk.turn(NOBODY) == [Reason.PAUSED]
    assert desk.puts() == 0
    desk.world.ledger.resume("oversubscription", "main", PauseScope.ALL, at=now, owner="ada")
    assert desk.turn(NOBODY) == [Reason.RATES_PUBLISHED]
    assert desk.puts() == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("lost", [True, False])
def test_an_answer_that_was_lost_is_read_back_before_anything_is_put_again(
    make: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    desk = make()
    put = desk.parameters.put

    def unanswered(pool: str, name: str, value: str, permit: Permit) -> None:
        if lost:
            put(pool, name, value, permit)
        raise CloudError("PutParameter", FailureClass.UNKNOWN_OUTCOME, "ReadTimeout", "no answer")

    monkeypatch.setattr(desk.publisher, "_parameters", _With(desk.parameters, unanswered))
    assert desk.turn() == [Reason.UNKNOWN_OUTCOME]
    assert desk.record().step is Step.WRITING
    monkeypatch.undo()
    assert desk.turn() == [Reason.RATES_PUBLISHED]
    assert desk.puts() == 1
    assert desk.record().step is Step.SETTLED


class _With:
    """Parameters whose `put` is another."""

    def __init__(self, real: Parameters, put: Callable[[str, str], None]) -> None:
        self.get, self.put = real.get, put


def test_a_refusal_opens_the_breaker_after_three_and_says_why_once(
    make: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make()
    tries = []

    def refused(pool: str, name: str, value: str, permit: Permit) -> None:
        tries.append(name)
        raise CloudError("PutParameter", FailureClass.CREDENTIALS, "AccessDenied", "not allowed")

    monkeypatch.setattr(desk.publisher, "_parameters", _With(desk.parameters, refused))
    told = [desk.turn() for _ in range(6)]
    assert len(tries) == 3
    assert told[0] == [Reason.CREDENTIALS]
    assert [Reason.CIRCUIT_OPEN] in told
    assert desk.puts() == 0


def test_a_process_killed_before_the_call_puts_what_is_newest_then(
    make: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(desk.publisher, "_parameters", _With(desk.parameters, killed))
    with pytest.raises(KeyboardInterrupt):
        desk.turn()
    monkeypatch.undo()
    assert (desk.record().open, desk.puts()) == (True, 0)
    desk.world.clock.advance(3600.0)
    assert desk.turn() == [Reason.RATES_PUBLISHED]
    assert json.loads(desk.parameters.get(NAME) or "")["decision"] == "main-o2"
    assert desk.puts() == 1
