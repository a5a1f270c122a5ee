"""The settings of placement pools: where their hosts come from, which policy chooses one, and what raises an alarm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from agent.settings.kinds import File, Key, Section, ValueHint
from agent.settings.subjects import Conflict, Subjects, needs, refers, refers_to_fleet

if TYPE_CHECKING:
    from agent.settings.model import Settings

FILE = "file"
LEARNED = "learned"
SMALL_POOLS = "small-pools"
"""The bundled policy for pools of 10 to 20 hosts that fill again and again."""
RESERVE = "reserve"
PLAIN = ("lifetime", "ff", "oldest", "bf", "bf-cpu", "dp", "wf")
BUNDLED = (*PLAIN, RESERVE, LEARNED, SMALL_POOLS)
"""The words of policies that need no file of the operator."""
_POLICY = rf"({'|'.join(PLAIN)}|{RESERVE}(:[0-9]{{1,6}},[0-9]{{1,4}},[0-9]{{1,4}})?|{FILE}:/.+|{LEARNED}|{SMALL_POOLS})"
POLICY_WORDS = (
    f"{', '.join(PLAIN)}, {RESERVE}:X,CORES,COUNT, {FILE}:FILE (an absolute path), {LEARNED}, or {SMALL_POOLS}"
)
"""Policies for the setting, `switch` and `what-if --policy`."""

PlacementPolicyText = Annotated[
    str,
    Field(max_length=300, pattern=rf"^{_POLICY}$"),
    ValueHint(POLICY_WORDS),
]


class PlacementSettings(Section, title="A placement pool"):
    """One pool of hosts on which containers are placed. `<placement>` is its key."""

    inventory_file: File | None = Field(
        None,
        description="JSON file of host types, applications and running containers, as for `trimtab "
        "simulate placement`. Read again when it changes; an invalid file is ignored.",
        examples=["/var/lib/trimtab/pool.json"],
    )
    fleet: Key | None = Field(
        None,
        description="Fleet whose VMs in service are hosts too; their sizes come from EC2. A VM that AWS no longer "
        "lists has failed: its containers are placed again.",
        examples=["web"],
    )
    vm_disk_gb: int = Field(
        100, ge=1, le=1_000_000, description="Disk of a VM of the fleet, which EC2 does not report."
    )
    set_aside_cores: int = Field(0, ge=0, le=1000, description="Cores of each VM of the fleet that are kept free.")
    set_aside_memory_gib: int = Field(
        1, ge=0, le=10_000, description="Memory of each VM of the fleet that is kept free, for its system."
    )
    oversubscription_pool: Key | None = Field(
        None,
        description="Oversubscription pool whose rate in force sets the cores of hosts of the inventory and the fleet: "
        "their cores over the rate. Without a rate in force, their own.",
        examples=["main"],
    )
    oversubscription_subscriber: Key | None = Field(
        None,
        description="Subscriber whose rate that is. Not set: the largest rate of the pool.",
        examples=["batch"],
    )
    policy: PlacementPolicyText | None = Field(
        None,
        description="Policy: `lifetime` the open host whose end a container delays least, `oldest` the one opened "
        "first, `ff` the first that fits, `bf` best fit, `bf-cpu` by cores alone, `dp` and `wf` spread, "
        "`reserve:X,CORES,COUNT` keeps X hosts with CORES free cores for requests of COUNT containers, `file:FILE` "
        "scores by a file of `trimtab train placement`, `learned` uses the promoted file, else the bundled one, "
        "`small-pools` is bundled for pools of 10 to 20 hosts that fill again and again. A file that is refused leaves "
        "the policy before it, at a start `bf`. Not set: `lifetime`; `bf` for a pool that an earlier version began.",
    )
    canary: PlacementPolicyText | None = Field(
        None, description="Policy that decides for a part of the applications. Not set: for none."
    )
    canary_share: float = Field(
        0.1, gt=0, le=1, description="Share of the applications, by their names, that the canary decides for."
    )
    shadow: PlacementPolicyText | None = Field(
        LEARNED,
        description="Shadow policy: decides every request on a copy of the "
        "pool; once a day the open hosts of both are recorded.",
    )
    confirm_within_s: float = Field(
        300.0, ge=1, le=86_400, description="A reservation that is not confirmed by then gives its hosts back."
    )
    decide_within_ms: float = Field(
        50.0,
        ge=1,
        le=10_000,
        description="A policy that takes longer for one container is replaced by best fit for the rest of the request.",
    )
    gap_alarm: float = Field(
        0.06,
        gt=0,
        le=1,
        description="Alarm threshold: open hosts above their lower bound, as a share.",
    )
    gap_alarm_hours: float = Field(24.0, gt=0, le=720, description="The gap must last so long for its alarm.")
    deadline_as_lifetime: bool = Field(
        False,
        description="Read `activeDeadlineSeconds` of a pod as its expected lifetime, in the scheduler's extender. "
        "It is a limit: set it where jobs run about that long, or a fixed share of it.",
    )
    drift_alarm: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Distance between the mix of the last day's requests and that before it that raises an alarm.",
    )


def _conflicts(name: str, pool: PlacementSettings, settings: Settings) -> Iterator[Conflict]:
    path, wanted = (SUBJECTS.name, name), pool.oversubscription_pool
    described = getattr(settings, "pools", {})
    yield from needs(path, pool, "oversubscription_subscriber", "oversubscription_pool")
    yield from refers_to_fleet((*path, "fleet"), pool.fleet, settings)
    yield from refers((*path, "oversubscription_pool"), wanted, described, "oversubscription pool")
    if wanted in described:
        subscribers, words = described[wanted].subscribers, f"subscriber of {wanted}"
        yield from refers((*path, "oversubscription_subscriber"), pool.oversubscription_subscriber, subscribers, words)


SUBJECTS = Subjects("placements", "placement pools", PlacementSettings, {"placements": "<placement>"}, _conflicts)
