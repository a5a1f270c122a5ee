"""`trimtab learn placement`: from what a pool's ledger recorded to the policy that places its containers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from agent.kernel.text import columns
from domain.units import DAY_S
from trainer.commands.endings import STATUSES_OF_PROMISE, End
from trainer.commands.learn import PromiseLearning, gate_lines, round_end
from trainer.commands.options import Bounds, epilog
from trainer.commands.promote_placement import policy_in_use

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from trainer.learning.placement import PlacementRound
    from trainer.learning.trial import Inspection, Promise, PromiseReplay


@dataclass(frozen=True, kw_only=True)
class LearnPlacement(PromiseLearning):
    """Learn from what a pool's ledger recorded: search a policy, judge it beside the known ones, ask the gate.

    The record is cut into windows, of which the latest two fifths are held out. A vector is searched on the earlier
    ones from what decides now; it, first fit, best fit, worst fit, the reserve and the policy that comes with the agent
    are judged on the held-out windows and on other orders of their requests. What opens fewer hosts goes to the gate;
    what passes is the pool's champion, after its probation where there is one, and decides where the pool's POLICY is
    `learned`. A round that was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: the requests since a promotion of the last days
    are placed anew under the policy before, and it is rolled back where that surely opened fewer hosts; a policy on
    probation is judged when its hours are over.
    """

    DECISION = "placement"
    WITHOUT = ("export", "origin")
    EPILOG = epilog(
        STATUSES_OF_PROMISE,
        calls=(
            "trimtab learn placement main --ledger /var/lib/trimtab/ledger.db",
            "trimtab learn placement main --try --cpu-minutes 30 --out runs/learn/main",
            "trimtab learn placement main --probation-hours 48 --then approve",
        ),
    )

    name: Annotated[str, Argument(metavar="POOL", help="The key of the placement pool.")]
    days: Annotated[float, "DAYS", "How many of the last days are used.", Bounds(min=0.1)] = 30.0
    against: Annotated[
        str, "POLICY", "Policy in use without a champion, as in the settings; else that of the settings."
    ] = ""

    def case(self) -> Inspection:
        """Return the case for a look at the pool's policies."""
        from agent.placement.choosing import read_policy
        from agent.placement.settings import LEARNED
        from trainer.learning.placement_trial import lived, replay
        from trainer.learning.trial import Inspection

        def replayed(one: Probationer) -> PromiseReplay:
            now = policy_in_use(self.name, self.models, self.against)
            policies = now, read_policy(self.models.file_of(one.model))
            return replay(self.source, self.name, one, policies, self.now_s)

        def watched(champion: Champion) -> Promise | str:
            before = None if champion.previous is None else read_policy(self.models.file_of(champion.previous))
            if before is None:
                text = self.against or _policy_text(self.name)
                if text == LEARNED:
                    from agent.placement.choosing import SHIPPED

                    before = read_policy(SHIPPED)
                else:
                    before = policy_in_use(self.name, self.models, text)
            policies = before, read_policy(self.models.file_of(champion.model))
            return lived(self.source, self.name, champion, policies, self.now_s)

        return Inspection(self.subject, self.models, read_policy, self.now_s, watched, replayed)

    def round(self) -> End:
        """Do a round."""
        from agent.placement.choosing import read_policy
        from trainer.learning.placement import PlacementRound, PlacementSettings
        from trainer.learning.placements import kept_windows, read_placements
        from trainer.learning.state import opened

        self.set_aside()
        since = self.now_s - self.days * DAY_S
        windows, digest = kept_windows(self.folder, lambda: read_placements(self.source, self.name, since, self.now_s))
        work = PlacementRound(
            pool=self.name,
            in_use=policy_in_use(self.name, self.models, self.against),
            windows=windows,
            settings=PlacementSettings(),
            state=opened(self.folder, {"pool": self.name, "record": digest}),
            verify=read_policy,
            **self.round_arguments,
        )
        work.go_on()
        return round_end(work, _lines(work))


def _policy_text(pool: str) -> str:
    """Return the policy that the settings name for a pool; `learned` where they have none."""
    from agent.placement.settings import LEARNED, SUBJECTS
    from agent.settings import load_settings

    found = SUBJECTS.of(load_settings(os.environ)).get(pool)
    return LEARNED if found is None else found.policy


def _lines(work: PlacementRound) -> list[str]:
    from trainer.learning.placement import BOUND, Judged
    from trainer.learning.round import GateResult

    judged = work.state.result(Judged)
    rows: list[tuple[object, ...]] = [("on the held-out windows", "hosts", "against now", "95 %")]
    for name, hosts in judged.hosts.items():
        against = judged.against_now.get(name)
        shown = ("", "")
        if against is not None:
            one = against.difference
            shown = f"{one.mean:+.2f}", f"{one.low:+.2f} to {one.high:+.2f}"
        rows.append((name, f"{hosts:.2f}", *shown))
    rows.append((BOUND, f"{judged.bound:.2f}", "", ""))
    lines = [*columns(rows), *gate_lines(work, str(work.model), work.pool)]
    if work.state.result(GateResult).promoted:
        lines.insert(-1, f"it decides with the next turn where TRIMTAB_PLACEMENTS__{work.pool}__POLICY is `learned`")
    return lines
