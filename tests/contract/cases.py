"""What the contract suite knows of each decision: its subject, a first order, the answer, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.contract.running import RunningAgent

START = 1_790_002_800.0
"""2026-09-21 15:00:00 UTC, a Monday: the beginning of an hour."""
HOUR_S = 3600.0
GROUP = {"name": "web-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}
MACHINES = {"machines": 3, "machine_cores": 48, "machine_memory_gb": 512}
SETTINGS: Mapping[str, Any] = {
    "fleets": {"web": {"policy": "hold", "groups": {"workers": GROUP}}},
    "clusters": {"main": {"capacity_cores": 1000, "preset": "K", "kappa": 2.2, "moments": "ab_fast", "tolerance": 0.0}},
    "pools": {
        "east": {
            "machines": 3,
            "machine_cores": 48,
            "machine_memory_gb": 512,
            "start_within_s": 86_400,
            "subscribers": {"ours": {}},
        }
    },
    "placements": {"south": {"policy": "bf", "decide_within_ms": 10_000.0, "confirm_within_s": 86_400.0}},
    "deferrals": {"night": {"policy": "knapsack", "shadow": None}},
}
SIZES = {"cores": 4, "memory_gib": 8, "disk_gb": 40}

Order = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """One decision.

    path: orders are posted here. order: the first one, by its id. answer: fields of its answer. others: changes that
    each make it another order under the same id, which the field `conflict` names. wrong: changes of the order and the
    field that each refusal names. newness: the field of the answer that differs when an order is repeated, "" for none.
    decides_in_turn: whether it decides in a turn, else on each order. asked_by: whether the token of an allocator opens
    `path`. unknown: changes that name a subject that is not there, or a path that does. prepare: what must be there
    before the first order.
    """

    decision: str
    subject: str
    letter: str
    path: str
    order: Callable[[str], Order]
    answer: Mapping[str, Any]
    wrong: tuple[tuple[str, Order], ...]
    unknown: Order | str
    others: tuple[Order, ...] = ()
    conflict: str = ""
    newness: str = ""
    decides_in_turn: bool = False
    asked_by: bool = True
    prepare: Callable[[RunningAgent], None] = lambda agent: None

    def __str__(self) -> str:
        return self.decision

    def decision_id(self, number: int) -> str:
        """The id of its subject's decision of this number."""
        return f"{self.subject}-{self.letter}{number}"

    def count(self, agent: RunningAgent) -> int:
        """The number of its subject's newest decision, 0 before the first."""
        newest = agent.part(self.decision).decisions.newest(self.decision, self.subject, limit=1)
        return int(newest[0].decision_id.rpartition("-")[2].removeprefix(self.letter)) if newest else 0

    def decide(self, agent: RunningAgent) -> None:
        """Let its turn come, where it decides in turns."""
        if self.decides_in_turn:
            agent.clock.advance(HOUR_S)
            report = agent.turn(self.decision)
            assert report.failure is None, report.failure


def _hosts(agent: RunningAgent) -> None:
    """Give the placement pool an application and four hosts."""
    with agent.client("/api/v1/placement/south") as client:
        client.put("/applications/shop", json=SIZES).raise_for_status()
        for n in range(4):
            body = {"host": f"h{n}", "cores": 64, "memory_gib": 256, "disk_gb": 900}
            client.post("/hosts", json=body).raise_for_status()


def _cores(agent: RunningAgent) -> None:
    """Post capacity to the deferral pool, and let it decide its first step."""
    with agent.client("/api/v1/deferral/pools/night") as client:
        client.post("/capacity", json={"cores": 100}).raise_for_status()
    agent.turn("deferral")


def _first_hour(agent: RunningAgent) -> None:
    """Let the oversubscription pool decide its first hour."""
    agent.turn("oversubscription")


ADMISSION = Case(
    "admission",
    "main",
    "a",
    "/admission/requests",
    lambda name: {"deployment_id": name, "cores": 16, "request_id": name, "requested_by": "ada"},
    {"admit": True, "reason": "admitted", "cluster": "main", "requested_by": "ada"},
    (
        ("cores", {"cores": 0}),
        ("cores", {"cores": True}),
        ("cores", {"cores": "4"}),
        ("cores", {"cores": None}),
        ("deployment_id", {"deployment_id": ""}),
        ("deployment_id", {"deployment_id": "a\x00"}),
        ("colour", {"colour": "red"}),
        ("label", {"label": "a b"}),
        ("label", {"label": "x" * 65}),
        ("observations.0.deaths", {"observations": [{"deaths": -1}]}),
        ("observations.0.deaths", {"observations": [{"deaths": False}]}),
    ),
    {"cluster": "west"},
)
OVERSUBSCRIPTION = Case(
    "oversubscription",
    "east",
    "o",
    "/oversubscription/requests",
    lambda name: {"subscriber": "ours", "cores": 4, "memory_gb": 16, "request_id": name},
    {"rate": 1.0, "pool": "east"},
    (
        ("cores", {"cores": 49}),
        ("cores", {"cores": 0}),
        ("cores", {"cores": True}),
        ("cores", {"cores": "4"}),
        ("memory_gb", {"memory_gb": 600}),
        ("memory_gb", {"memory_gb": None}),
        ("subscriber", {"subscriber": "a b"}),
        ("colour", {"colour": "red"}),
    ),
    {"pool": "west"},
    prepare=_first_hour,
)
PLACEMENT = Case(
    "placement",
    "south",
    "p",
    "/placement/requests",
    lambda name: {"request_id": name, "application": "shop", "count": 2},
    {"reason": "placed", "advice": False, "unplaced": 0, "pool": "south"},
    (
        ("count", {"count": 0}),
        ("count", {"count": "2"}),
        ("count", {"count": True}),
        ("request_id", {"request_id": "a/b"}),
        ("request_id", {"request_id": None}),
        ("colour", {"colour": "red"}),
    ),
    {"pool": "west"},
    others=({"count": 3}, {"partial": True}),
    conflict="request_id",
    prepare=_hosts,
)
DEFERRAL = Case(
    "deferral",
    "night",
    "d",
    "/deferral/jobs",
    lambda name: {"job_id": name, "cores": 4, "duration_steps": 2, "latest_at": START + 900 * HOUR_S},
    {"already": False},
    (
        ("cores", {"cores": 0}),
        ("cores", {"cores": 1.5}),
        ("cores", {"cores": "4"}),
        ("cores", {"cores": True}),
        ("duration_steps", {"duration_steps": 0}),
        ("latest_at", {"latest_at": START - 1.0}),
        ("latest_at", {"earliest_at": START + 990 * HOUR_S}),
        ("earliest_at", {"earliest_at": START - HOUR_S}),
        ("job_id", {"job_id": "a b"}),
        ("version", {"version": 2}),
        ("colour", {"colour": "red"}),
    ),
    {"pool": "west"},
    others=({"cores": 5}, {"duration_steps": 3}),
    conflict="job_id",
    newness="already",
    decides_in_turn=True,
    prepare=_cores,
)
AUTOSCALING = Case(
    "autoscaling",
    "web",
    "",
    "/autoscaling/announcements",
    lambda name: {"id": name, "in_minutes": 90, "jobs": 20, "job_core_s": 120, "over_minutes": 5, "owner": "ada"},
    {"new": True},
    (
        ("jobs", {"jobs": 0}),
        ("jobs", {"jobs": True}),
        ("job_core_s", {"job_core_s": "60"}),
        ("over_minutes", {"over_minutes": 1e9}),
        ("id", {"id": "../etc"}),
        ("id", {"id": ""}),
        ("in_minutes", {"in_minutes": 1e6}),
        ("at", {"at": 2e9}),
        ("at", {"in_minutes": None}),
        ("at", {"in_minutes": None, "at": 1.0}),
        ("at", {"in_minutes": None, "at": 9e10}),
        ("owner", {"owner": "a\nb"}),
        ("colour", {"colour": "red"}),
    ),
    {"fleet": "west"},
    others=({"jobs": 5}, {"in_minutes": 91}),
    conflict="id",
    newness="new",
    decides_in_turn=True,
    asked_by=False,
)
TOKENS = Case(
    "tokens",
    "desk",
    "t",
    "/tokens/desk/requests",
    lambda name: {"names": [name]},
    {"tokens": 1},
    (("names", {"names": "ada"}), ("names", {"names": None}), ("colour", {"colour": "red"})),
    "/tokens/west",
    decides_in_turn=True,
)
CASES = (AUTOSCALING, ADMISSION, OVERSUBSCRIPTION, PLACEMENT, DEFERRAL, TOKENS)
