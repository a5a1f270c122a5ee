"""`trimtab promote placement`: a policy's file decides for a placement pool if it opens fewer hosts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agent.commands.options import JsonOption
from domain.errors import BadInput
from domain.units import DAY_S
from trainer.commands.options import epilog
from trainer.commands.promote import (
    ALL,
    ChallengerArgument,
    DirectoryOption,
    ForceOption,
    KeyOption,
    RollbackOption,
    StatusOption,
    SubjectArgument,
    TryOption,
    Wish,
    carry_out,
)

OF_INSTANCE = 20
"""Orders of an instance that is judged on."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from domain.rules.placement.policies import Policy
    from trainer.promotion.directory import ModelsWriter
    from trainer.promotion.gate import Gate
    from trainer.promotion.placement import HeldOut

EPILOG = epilog(
    """
The gate: windows of the record, or instances, as they came and in other orders.
  fewer open hosts than the policy in use, in 95 % of paired bootstrap resamples;
  no more than best fit; every placement held to the rules by a checker.
  Else the policy in use stays, and the exit status is 1.
""",
    calls=(
        "trimtab promote placement main POLICY.json --recent /var/lib/trimtab/ledger.db",
        "trimtab promote placement main POLICY.json --instance large-42",
        "trimtab promote placement main --rollback",
    ),
)


def placement(
    subject: SubjectArgument,
    challenger: ChallengerArgument = None,
    models_dir: DirectoryOption = None,
    recent: Annotated[str | None, Option(metavar="LEDGER", help="Judge on this ledger's record of the pool.")] = None,
    days: Annotated[float, Option(metavar="DAYS", min=0.1, help="How many of its last days are used.")] = 30.0,
    instance: Annotated[
        list[str] | None, Option(metavar="NAME|FILE", help="Judge on instances, as `simulate` has them; repeatable.")
    ] = None,
    against: Annotated[
        str,
        Option(
            metavar="POLICY", help="Policy in use without a champion, as in the settings; else that of the settings."
        ),
    ] = "",
    key_file: KeyOption = None,
    try_only: TryOption = False,
    force: ForceOption = None,
    rollback: RollbackOption = False,
    status: StatusOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a policy's file decide for a placement pool if it opens fewer hosts than the policy in use.

    The file is what `trimtab train placement` or `learn placement` wrote. It decides where the POLICY, CANARY or SHADOW
    of the pool is `learned`; the agent takes it up with the next turn.
    """
    from agent.placement.choosing import read_policy
    from agent.settings.location import models_location
    from trainer.promotion.directory import ModelsWriter

    name = "" if subject == ALL else subject
    directory = ModelsWriter(models_dir or models_location(os.environ))

    def gate() -> Gate:
        from trainer.promotion.gate import Limits
        from trainer.promotion.placement import digest_of_cases, placement_gate

        windows = _of_record(recent, subject, days) if recent is not None else []
        windows += _of_instances(instance or ())
        if not windows:
            raise BadInput("--recent", recent, "give the ledger of the pool, or at least one --instance")
        facts = {"recent": recent is not None, "instances": list(instance or ()), "sha256": digest_of_cases(windows)}
        return placement_gate(windows, Limits(), now=policy_in_use(subject, directory, against), facts=facts)

    wish = Wish(challenger, key_file, force, rollback, status, try_only, as_json)
    carry_out("placement", name, models_dir, read_policy, gate, wish)


def policy_in_use(pool: str, directory: ModelsWriter, against: str = "") -> Policy:
    """Return what decides for a pool now: as the settings say, with its champion, or `against` where it is given.

    Where the settings have no placement pools, the champion, else the policy that comes with the agent. BadInput.
    """
    from agent.placement.choosing import named_policy
    from agent.placement.settings import LEARNED, SUBJECTS
    from agent.settings import load_settings

    pools = SUBJECTS.of(load_settings(os.environ))
    if pools and pool not in pools:
        there = ", ".join(sorted(pools))
        raise BadInput("pool", pool, f"choose one of the placement pools of the settings: {there}")
    return named_policy(against or (pools[pool].policy if pools else LEARNED), pool, directory)


def _of_record(ledger: str, pool: str, days: float) -> list[HeldOut]:
    from trainer.learning.placements import read_placements, reordered, windows_of
    from trainer.promotion.placement import held_out

    now_s = time.time()
    found = windows_of(read_placements(ledger, pool, now_s - days * DAY_S, now_s))
    return held_out(found.held_out, found.length_s, reordered)


def _of_instances(names: Sequence[str]) -> list[HeldOut]:
    """Return other orders of instances, each a window of its own; those with releases last to their last event."""
    from simulator.placement.instances import instance_of, shuffled
    from trainer.learning.placements import reordered
    from trainer.promotion.placement import FIRST_ORDER, held_out

    found = []
    for name in names:
        one = instance_of(name)
        length_s = max([0.0, *(request.at_s for request in one.requests), *(end.at_s for end in one.releases)])
        reorder = reordered if one.releases else shuffled
        orders = [reorder(one, FIRST_ORDER + k) for k in range(OF_INSTANCE)]
        found += held_out(orders, length_s, reorder, orders=0)
    return found
