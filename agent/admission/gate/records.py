"""What the gate keeps of each Auto Scaling group of a cluster, and the tags by which it is asked and answers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, select

from actuators.values import tag_value
from agent.kernel.effects import EffectStore
from agent.ledger import Ledger, codec, state
from agent.ledger.schema import state as table
from domain.decisions import Direction, Intent, Outcome, Reason
from domain.fleet import Group, VmType

ADMISSION: Final = "trimtab:admission"
"""`pending` asks; the gate answers `admitted` or `refused:<reason>` in its place."""
REQUESTED: Final = "trimtab:requested"
"""The size in VMs that a pending group asks for."""
DECISION: Final = "trimtab:decision"
"""The id of the decision that the answer rests on."""
PENDING: Final = "pending"
ADMITTED: Final = "admitted"
REQUESTED_BY: Final = "gate"
"""Who asks for a group, in the records of decisions."""
LONGEST_GROUP: Final = 150


_GROUP: Final = "gate.group."


class Step(StrEnum):
    """Where a request stands.

    raising: admitted, and the group is being brought to its size. marking: the answer is to be written into the group's
    tags and found there. settled: nothing is left to do.
    """

    RAISING = "raising"
    MARKING = "marking"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The latest deployment of a group: at most one is open, and it is written before anything is done about it.

    number: counts the group's deployments; with its name it makes `deployment_id`. vms: the size it asked for, 0 for
    one that was there without asking. answer: what the tag `trimtab:admission` shall say, "" where it says nothing.
    told: the reason that was last written to the journal.
    """

    cluster: str
    group: str
    number: int
    step: Step
    at: float
    vms: int = 0
    vm_type: str = ""
    vm_cores: int = 0
    before: int = 0
    epoch: int = 0
    deadline_at: float = 0.0
    decision_id: str = ""
    answer: str = ""
    told: str = ""

    @property
    def deployment_id(self) -> str:
        """The deployment's name in its cluster."""
        return deployment_id(self.group, self.number)

    @property
    def open(self) -> bool:
        """Whether something is left to do."""
        return self.step is not Step.SETTLED

    @property
    def tags(self) -> dict[str, str]:
        """The tags that tell the answer."""
        return {ADMISSION: self.answer, DECISION: tag_value(self.decision_id)} if self.answer else {}

    @property
    def intent(self) -> Intent:
        """The intent to bring the group to its size."""
        return Intent(
            intent_id=self.deployment_id,
            decision_id=self.decision_id,
            fleet=self.cluster,
            group=self.group,
            direction=Direction.OUT,
            before=self.before,
            target=self.vms,
            victims=(),
            epoch=self.epoch,
            created_at=self.at,
            deadline_at=self.deadline_at,
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """What came of a step: the record as it is now, why, in words, and how AWS answered an attempt to grow."""

    record: GroupRecord
    reason: Reason | None = None
    detail: str = ""
    outcome: Outcome | None = None


def deployment_id(group: str, number: int) -> str:
    """Return the name of a group's deployment in its cluster; a very long name of a group is cut, and stays unique."""
    if len(group) > LONGEST_GROUP:
        group = f"{group[:LONGEST_GROUP]}~{hashlib.sha256(group.encode()).hexdigest()[:12]}"
    return f"{group}.{number}"


def refused(reason: Reason) -> str:
    """Return what the tag says of a deployment that was not let in, or for which AWS had no VM."""
    return tag_value(f"refused:{reason.value}")


def as_group(name: str, vm_type: str, vm_cores: int, maximum: int) -> Group:
    """Return the group as rails and actuator know groups; its price is of no matter to either here."""
    return Group(name, name, VmType(vm_type, max(1, vm_cores), 0.0, 0.0), 0, maximum)


def group_records(ledger: Ledger) -> EffectStore[GroupRecord]:
    """Return the gate's records in the ledger, by the group's name: a group never has two open requests."""
    return EffectStore(ledger, GroupRecord, _GROUP, ("{}", "gate.memory"))


def number_groups_from(connection: Connection, first: int) -> None:
    """Let the deployments of every group without an open record be counted from `first` on, after a restore."""
    changed = []
    query = select(table.c.owner, table.c.key, table.c.body).where(table.c.key.startswith(_GROUP, autoescape=True))
    for row in connection.execute(query).all():
        record = codec.decode(GroupRecord, codec.unpack(row.body))
        if not record.open:
            changed.append((row.owner, row.key, codec.encode(replace(record, number=first))))
    state.put(connection, changed)
