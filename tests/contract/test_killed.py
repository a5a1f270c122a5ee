"""SIGKILL before, within and after each write of a decision: what was answered is kept, and numbered without a gap."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.admission.decision import AdmissionPart
from agent.autoscaling import announcements
from agent.autoscaling.decision import AutoscalingPart
from agent.deferral.decision import DeferralPart
from agent.ledger import codec
from agent.oversubscription.decision import OversubscriptionPart
from agent.oversubscription.records import RateRequest
from agent.placement.decision import PlacementPart
from agent.placement.records import PlaceRequest
from domain.announcements import Announcement
from domain.clock import VirtualClock
from tests.agent.admission.clusters import ask as admission_request
from tests.agent.admission.clusters import event
from tests.agent.deferral.pools import order
from tests.agent.placement.hosts import app, host, inventory
from tests.contract.cases import SETTINGS, START
from tests.contract.running import RunningAgent, running
from tests.killed import Points, said_before_death
from tests.simulator.aws.world import World

BEGIN = START + 60.0
STEP_S = 1800.0
"""Between two steps; a turn of the pools comes in another hour each second step."""
TIMES = {"evaluation_us", "took_ms"}
"""Fields that hold how long something took."""
Step = Callable[[RunningAgent], Any]


def timeless(value: Any) -> Any:
    """The value without the fields that hold how long something took."""
    if isinstance(value, Mapping):
        return {key: timeless(one) for key, one in value.items() if key not in TIMES}
    return [timeless(one) for one in value] if isinstance(value, list | tuple) else value


def part_of(agent: RunningAgent, kind: type[Any]) -> Any:
    """The part of a class."""
    return next(part for part in agent.parts if isinstance(part, kind))


def turn_of(decision: str) -> Step:
    """The turn of one part."""

    def turn(agent: RunningAgent) -> None:
        report = agent.turn(decision)
        assert report.failure is None, report.failure

    return turn


def admission(agent: RunningAgent) -> Any:
    return part_of(agent, AdmissionPart).clusters["main"]


def oversubscription(agent: RunningAgent) -> Any:
    return part_of(agent, OversubscriptionPart).pools["east"]


def placement(agent: RunningAgent) -> Any:
    return part_of(agent, PlacementPart).pools["south"]


def deferral(agent: RunningAgent) -> Any:
    return part_of(agent, DeferralPart).pools["night"]


def announce(agent: RunningAgent) -> Any:
    work = Announcement(START + 7200.0, 20, 120.0, 300.0)
    return announcements.announce(
        part_of(agent, AutoscalingPart).store, "web", announcements.Announced("build", work, "ada", START, None)
    )


def rate_asked(request_id: str, cores: float) -> Step:
    """A request for a rate, right after a turn, as it is answered by the agent that leads alone."""

    def ask(agent: RunningAgent) -> Any:
        agent.turn("oversubscription")
        return oversubscription(agent).request(
            RateRequest(subscriber="ours", cores=cores, memory_gb=16.0, network_gbit=1.0, request_id=request_id)
        )

    return ask


def containers(request_id: str, count: int) -> PlaceRequest:
    return PlaceRequest("south", request_id, "shop", count)


def part_released(agent: RunningAgent) -> None:
    """Release one container."""
    placement(agent).release("r1", [0])


@dataclass(frozen=True)
class Life:
    """The steps of a life, each of which a client repeats until it is answered.

    turns: a turn repeated decides anew.
    """

    decision: str
    subject: str
    steps: Sequence[Step]
    turns: bool = False


LIVES = (
    Life(
        "autoscaling",
        "web",
        (announce, turn_of("autoscaling"), turn_of("autoscaling"), announce, turn_of("autoscaling")),
        turns=True,
    ),
    Life(
        "admission",
        "main",
        (
            lambda agent: admission(agent).answer([admission_request("a", 10, request_id="r1")])[0],
            lambda agent: admission(agent).observe([event("a", "started", 12, START, event_id="e1")])[0],
            lambda agent: admission(agent).answer([admission_request("b", 2000, request_id="r2")])[0],
            lambda agent: admission(agent).observe([event("a", "scaled", 3, START + 60.0, event_id="e2")])[0],
            lambda agent: admission(agent).answer([admission_request("c", 10, request_id="r3")])[0],
            lambda agent: admission(agent).observe([event("a", "shutdown", 0, START + 90.0, event_id="e3")])[0],
        ),
    ),
    Life(
        "oversubscription",
        "east",
        (
            turn_of("oversubscription"),
            rate_asked("r1", 4.0),
            turn_of("oversubscription"),
            rate_asked("r2", 8.0),
            turn_of("oversubscription"),
        ),
    ),
    Life(
        "placement",
        "south",
        (
            lambda agent: placement(agent).adopt(inventory(app("shop")), "digest", agent.epoch),
            lambda agent: placement(agent).request(containers("r1", 3)),
            lambda agent: placement(agent).confirm("r1"),
            lambda agent: placement(agent).request(containers("r2", 30)),
            lambda agent: placement(agent).join(host("extra")),
            lambda agent: placement(agent).fail("large-1"),
            part_released,
            turn_of("placement"),
        ),
    ),
    Life(
        "deferral",
        "night",
        (
            lambda agent: deferral(agent).submit(order("a", cores=8, window=90)),
            lambda agent: deferral(agent).report(10),
            turn_of("deferral"),
            lambda agent: deferral(agent).submit(order("b", cores=2, window=90)),
            turn_of("deferral"),
            lambda agent: deferral(agent).cancel("b"),
            turn_of("deferral"),
        ),
    ),
    Life("tokens", "desk", (turn_of("tokens"), turn_of("tokens"), turn_of("tokens")), turns=True),
)


@dataclass
class Scene:
    """Where lives are lived: a directory with a ledger to begin with, and the endpoint of the cloud."""

    directory: Path
    endpoint: str
    life: Life

    def ledger(self, name: str) -> Path:
        """A ledger with its schema."""
        path = self.directory / f"{name}.db"
        if not path.exists():
            shutil.copy(self.directory / "empty.db", path)
        return path

    @contextlib.contextmanager
    def agent(self, ledger: Path, at: float) -> Iterator[RunningAgent]:
        """An agent as it starts at a time."""
        endpoint = self.endpoint if self.life.decision == "autoscaling" else None
        kinds = {"autoscaling": "fleets", "admission": "clusters", "oversubscription": "pools"}
        kinds |= {"placement": "placements", "deferral": "deferrals", "tokens": ""}
        settings = {key: value for key, value in SETTINGS.items() if key == kinds[self.life.decision]}
        with running(f"sqlite:///{ledger}", VirtualClock(at), endpoint, directory=self.directory, **settings) as made:
            yield made.lead()

    def live(self, ledger: Path, first: int, answered: Callable[[str], object], points: Points) -> None:
        """Take the steps from `first` on, and pass on each answer."""
        with points.watched(), self.agent(ledger, BEGIN + STEP_S * first) as agent:
            for number in range(first, len(self.life.steps)):
                agent.clock.advance(BEGIN + STEP_S * number - agent.clock.now())
                answer = self.life.steps[number](agent)
                answered(getattr(answer, "decision_id", "") or "")

    def die(self, ledger: Path, at: int) -> list[str]:
        """Live in a child that is killed at a point, and return the decision ids that it answered."""
        return said_before_death(lambda answered: self.live(ledger, 0, answered, Points(at)))

    def kept(self, ledger: Path) -> list[tuple[str, Any]]:
        """The decisions of its subject, oldest first: id, and body but for durations."""
        with self.agent(ledger, BEGIN + STEP_S * len(self.life.steps)) as agent:
            found = agent.part(self.life.decision).decisions.newest(self.life.decision, self.life.subject, limit=100)
        return [(record.decision_id, timeless(codec.decode_mapping(record.body))) for record in reversed(found)]


@pytest.fixture
def scene(toy: None, world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    made = Scene(tmp_path, world.running.endpoint, request.param)
    with running(f"sqlite:///{tmp_path}/empty.db", VirtualClock(BEGIN), directory=tmp_path):
        pass
    return made


def check(scene: Scene, every: int) -> None:
    """Kill at every `every`-th point, go on from the first step that was not answered, and compare with no death."""
    whole, points = scene.ledger("whole"), Points(None)
    scene.live(whole, 0, lambda answer: None, points)
    undisturbed = scene.kept(whole)
    assert points.count >= 3 * len(undisturbed) > 0
    for at in range(1 + every // 2, points.count + 1, every):
        ledger = scene.ledger(str(at))
        answered = scene.die(ledger, at)
        before = scene.kept(ledger)
        assert {one for one in answered if one} <= {decision_id for decision_id, _ in before}, at
        scene.live(ledger, len(answered), lambda answer: None, Points(None))
        found = scene.kept(ledger)
        assert found[: len(before)] == before, at
        ids = [int(decision_id.rpartition("-")[2].strip("aopdt")) for decision_id, _ in found]
        assert ids == list(range(1, len(ids) + 1)), at
        if scene.life.turns:
            assert len(found) - len(undisturbed) in (0, 1), at
        else:
            assert found == undisturbed, at


lives = pytest.mark.parametrize("scene", LIVES, ids=lambda life: life.decision, indirect=True)


@lives
def test_a_killed_agent_keeps_what_it_answered_and_numbers_on(scene: Scene) -> None:
    check(scene, every=7)


@lives
@pytest.mark.exhaustive
def test_nor_does_it_at_any_other_point(scene: Scene) -> None:
    check(scene, every=1)
