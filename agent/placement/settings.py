"""The settings of placement pools: where their hosts come from, which policy chooses one, and what raises an alarm."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agent.settings.kinds import Expected, File, Key, Section
from agent.settings.subjects import Subjects

BEST_FIT = "bf"
"""The policy that stands in for one that failed."""
FILE = "file"
LEARNED = "learned"
_POLICY = r"(ff|bf|bf-cpu|dp|wf|reserve(:[0-9]{1,6},[0-9]{1,4},[0-9]{1,4})?|file:/.+|learned)"

PlacementPolicyText = Annotated[
    str,
    Field(max_length=300, pattern=rf"^{_POLICY}$"),
    Expected("ff, bf, bf-cpu, dp, wf, reserve:X,CORES,COUNT, file:FILE with an absolute path, or learned"),
]


class PlacementSettings(Section, title="A placement pool"):
    """One pool of hosts on which containers are placed. `<placement>` is its key."""

    inventory_file: File | None = Field(
        None,
        description="JSON file of host types, applications and what runs already, as `trimtab simulate placement` "
        "reads it. Read when it changes; one that cannot be used leaves the last one in force.",
        examples=["/var/lib/trimtab/pool.json"],
    )
    fleet: Key | None = Field(
        None,
        description="Fleet whose VMs in service are hosts too; their sizes come from EC2. A VM that AWS no longer "
        "lists has failed: its containers are placed anew.",
        examples=["web"],
    )
    vm_disk_gb: int = Field(100, ge=1, le=1_000_000, description="Disk of a VM of the fleet, which EC2 does not tell.")
    set_aside_cores: int = Field(0, ge=0, le=1000, description="Cores of each VM of the fleet that are kept free.")
    set_aside_memory_gib: int = Field(
        1, ge=0, le=10_000, description="Memory of each VM of the fleet that is kept free, for its system."
    )
    policy: PlacementPolicyText = Field(
        BEST_FIT,
        description="What chooses a host: `ff` the first that fits, `bf` best fit, `bf-cpu` by cores alone, `dp` and "
        "`wf` spread, `reserve:X,CORES,COUNT` keeps X hosts with so many free cores for requests of so many "
        "containers, `file:FILE` scores as `trimtab train placement` found, `learned` takes the file in use in the "
        "models directory, else the one that comes with the agent. A file that is refused leaves the policy before it, "
        "at a start `bf`.",
    )
    canary: PlacementPolicyText | None = Field(
        None, description="Policy that decides for a part of the applications. Not set: for none."
    )
    canary_share: float = Field(
        0.1, gt=0, le=1, description="Share of the applications, by their names, that the canary decides for."
    )
    shadow: PlacementPolicyText | None = Field(
        LEARNED,
        description="Policy that follows every request beside the one that decides, on a copy; once a day the hosts "
        "that either has open are recorded.",
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
        description="Share of open hosts above the lower bound of what runs from which an alarm is raised.",
    )
    gap_alarm_hours: float = Field(24.0, gt=0, le=720, description="The gap must last so long for its alarm.")
    drift_alarm: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Distance between the mix of the last day's requests and that before it that raises an alarm.",
    )


SUBJECTS = Subjects("placements", "placement pools", PlacementSettings, {"placements": "<placement>"})
