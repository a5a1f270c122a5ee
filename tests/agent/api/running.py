"""A running agent for tests: the world of the loop, the board the daemon writes, and the view and app on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, FastAPI

from agent.api.app import create_app
from agent.api.limits import Count
from agent.api.server import HttpServer
from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.state import FleetStore
from agent.autoscaling.view import FleetStatus, fleet_status
from agent.deferral.decision import DeferralPart
from agent.deferral.look import PoolService
from agent.kernel.decision import Check, Host, Services, Turn
from agent.kernel.leads import Leads
from agent.kernel.parts import Parts, parts_of
from agent.kernel.turn import TurnReport
from agent.oversubscription.decision import OversubscriptionPart
from agent.oversubscription.pool import Pool
from agent.placement.decision import PlacementPart
from agent.placement.decision import Pools as PlacementPools
from agent.settings import Settings
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from collectors.base import CollectorHealth
from domain.clock import read_both
from domain.subject import fleet_subject
from tests.faults.world import World

READER = "reading-token-0123456789"
OPERATOR = "operating-token-9876543210"
ASKER = "asking-token-0246813579"
CLUSTERS = {"main": {"capacity_cores": 1000, "preset": "K", "kappa": 2.2}}
POOLS = {
    "east": {
        "machines": 3,
        "machine_cores": 48,
        "machine_memory_gb": 512,
        "subscribers": {"ours": {"internal": True}, "theirs": {}},
    }
}
PLACEMENTS = {"south": {"policy": "reserve:1,8,2"}}
DEFERRALS = {"night": {"policy": "knapsack"}}


def of_fleets(found: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return by subject what the store holds by the name of a fleet."""
    return {(fleet_subject(name), *rest): one for (name, *rest), one in found.items()}


class Running:
    """An agent in a world: turn its loop with `tick`, look at it through `view` or `app`."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.models_dir = world.directory / "models"
        about = {"mode": world.mode, "clusters": CLUSTERS, "pools": POOLS}
        about |= {"placements": PLACEMENTS, "deferrals": DEFERRALS}
        self.settings = Settings(**{**about, "learned": {"models_dir": self.models_dir}, **settings})
        self.board = ServiceBoard(world.agent_clock.now())
        self.collectors = {"queue web": CollectorHealth(successes=3, last_success_at=world.agent_clock.now())}
        self.is_alive = True
        self.parts = AgentParts(
            settings=self.settings,
            board=self.board,
            ledger=world.ledger,
            now=world.agent_clock.now,
            monotonic=world.agent_clock.monotonic,
            parts=self._parts(),
            collectors=lambda: self.collectors,
            claims=lambda: of_fleets(world.store.refused_claims()),
            unknown_vms=lambda: of_fleets(world.store.unknown_vms()),
            intake=lambda: world.intake,
            aws_calls=lambda: world.session.budget.counts,
            alive=lambda: self.is_alive,
        )
        self.view = AgentView(self.parts)
        self._app: FastAPI | None = None

    def _parts(self) -> Parts:
        parts = parts_of(Host(self.world.ledger, self.settings, self.world.agent_clock))
        for part in parts:
            if isinstance(part, AutoscalingPart):
                part.attach(self.world.loop, self.world.store)
        return parts

    @property
    def fleets(self) -> AutoscalingPart:
        """The fleets of its autoscaling."""
        return next(part for part in self.parts.parts if isinstance(part, AutoscalingPart))

    def fleet(self, name: str) -> FleetStatus:
        """A fleet's status."""
        return fleet_status(FleetStore(self.world.ledger), name, self.world.agent_clock.now())

    @property
    def pools(self) -> Services[Pool]:
        """The pools of its oversubscription."""
        return next(part for part in self.parts.parts if isinstance(part, OversubscriptionPart)).pools

    @property
    def placements(self) -> PlacementPools:
        """The pools of its placement."""
        return next(part for part in self.parts.parts if isinstance(part, PlacementPart)).pools

    @property
    def deferrals(self) -> Services[PoolService]:
        """The pools of its deferral."""
        return next(part for part in self.parts.parts if isinstance(part, DeferralPart)).pools

    def app(self, *routers: APIRouter) -> FastAPI:
        """The application, unguarded; without routers the same one each time, as its 80 routes take a while."""
        if routers:
            return create_app(self.view, routers=routers)
        if self._app is None:
            self._app = create_app(self.view)
        return self._app

    def server(self, *routers: APIRouter, count: Count = lambda *_: None, **http: Any) -> HttpServer:
        """Servers of the application on real sockets, not yet started."""
        timeout_s = http.pop("request_timeout_s", 10.0)
        settings = Settings(**{**self.settings.model_dump(), "http": http})
        # Not checked, so that a test need not wait for the shortest time that the settings allow.
        shortened = settings.http.model_copy(update={"request_timeout_s": timeout_s})
        return HttpServer(self.app(*routers), settings.model_copy(update={"http": shortened}), count)

    def lose_ledger(self) -> None:
        """Take the ledger's file away."""
        path = self.world.ledger.database.path
        assert path is not None
        path.rename(path.with_suffix(".away"))

    def with_settings(self, **settings: Any) -> AgentView:
        """A view of the same agent under other settings."""
        return AgentView(replace(self.parts, settings=Settings(**{**self.settings.model_dump(), **settings})))

    def with_checks(self, *checks: Check) -> AgentView:
        """A view of the same agent with further conditions of readiness."""
        return AgentView(replace(self.parts, checks=tuple(lambda c=check: c for check in checks)))

    def turn_pools(self) -> TurnReport:
        """Turn the pools once, as after a turn of the loop."""
        clock = self.world.agent_clock
        part = next(part for part in self.parts.parts if isinstance(part, OversubscriptionPart))
        now = clock.now()
        return part.turn(Turn(now, read_both(clock), Leads(every=self.world.epoch), TurnReport(now)))

    def tick(self, minutes: int = 1) -> TurnReport | None:
        """Let minutes pass and turn the loop after each, telling the board as the daemon does; return the last."""
        report = None
        for _ in range(minutes):
            minute = self.world.tick()
            report = self.fleets.take(TurnReport(minute.at), minute)
            self.board.change(leader=True, epoch=self.world.epoch)
            for listener in self.board.turned(report, duration_s=0.25):
                listener(self.board.read(), report)
        return report
