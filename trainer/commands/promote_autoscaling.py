"""`trimtab promote autoscaling`: a model decides for a fleet if it beats what decides now; and the way back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domain.errors import BadInput
from trainer.commands.endings import STATUSES_OF_GATE
from trainer.commands.options import (
    Bounds,
    OwnWorkloadsOption,
    SuiteSeedsOption,
    SuiteWorldOption,
    epilog,
    words_of,
)
from trainer.commands.promote import ALL, Promotion, one_of_settings
from trainer.commands.verb import ParallelVerb

if TYPE_CHECKING:
    from trainer.promotion.gate import Gate, Term

SUITE = "T1,T2,T3,T4,T5,T6"


@dataclass(frozen=True, kw_only=True)
class PromoteAutoscaling(Promotion, ParallelVerb):
    """Put a learned policy in use if it beats the present one on held-out traces, or go back to the one before.

    It decides for one fleet, or with `all` for every fleet that it fits and that has no champion of its own. The first
    champion has to beat the tuned queue rule; where the jobs are yours (--workload, in any --world) it is tuned for
    them first. Every trial leaves a report in the models directory, with the SHA-256 of models, traces and results,
    signed where there is a key. The agent takes up a new champion within a minute.
    """

    DECISION = "autoscaling"
    EPILOG = epilog(
        """
The gate: same traces, seeds and entry states for both, mid-run states too.
  cheaper in 95 % of paired bootstrap resamples, families counting alike;
  no family of traces more than 5 % dearer; no run beyond the run-time limit.
  Else the champion stays.
""",
        STATUSES_OF_GATE,
        calls=(
            "trimtab promote autoscaling web MODEL.onnx --recent /var/lib/trimtab/ledger.db",
            "trimtab promote autoscaling web MODEL.onnx --world my.toml --workload my.swf.gz:hours=24",
            "trimtab promote autoscaling web --rollback",
        ),
    )

    recent: Annotated[
        list[str] | None, "LEDGER|FILE", "Replay recent production too: a ledger, a CSV or an SWF; repeatable."
    ] = None
    traces: Annotated[str | None, "T1,T2,...", "Groups of the suite to run; else all, or your --workload alone."] = None
    short: Annotated[bool, "Few cases of each kind: a trial, not a release."] = False
    seeds: SuiteSeedsOption = None
    world: SuiteWorldOption = "live-like"
    workload: OwnWorkloadsOption = None
    run_time_limit: Annotated[
        float, "FACTOR", "Longest run time, as a multiple of the champion's.", Bounds(min=1.0)
    ] = 1.5
    probation_hours: Annotated[
        float, "HOURS", "How long it runs as a shadow first; `trimtab learn` judges it.", Bounds(min=0.0)
    ] = 0.0
    then: Annotated[str, "promote|approve|nothing", "Action after a probation that held."] = "promote"

    def check(self) -> None:
        """Raise BadInput for a fleet that the settings do not have, or that the model does not fit."""
        if self.challenger is not None and self.subject != ALL:
            _check_fleet(self.challenger, self.subject)

    def verify(self, path: Path) -> object:
        """Raise ModelRefused for a file without a model of a fleet."""
        from agent.models.file import load_model

        return load_model(path)

    def unused(self) -> Sequence[str]:
        """Return that POLICY of the settings names another policy than the champion."""
        from trainer.learning.subject import unused_by_settings

        found = "" if self.subject == ALL else unused_by_settings(self.models, self.subject, os.environ)
        return [found] if found else []

    def term(self, now_s: float) -> Term | None:
        """Return the probation of --probation-hours."""
        from agent.models.directory import Then
        from trainer.promotion.gate import Term

        return Term(now_s, self.probation_hours, Then(self.then)) if self.probation_hours > 0.0 else None

    def gate(self) -> Gate:
        """Return cases of the suite, of the record and of one's own workloads."""
        from trainer.autoscaling.evaluation.contenders import FEW_SEEDS, SEEDS, own_cases, own_world, tuned_rule
        from trainer.autoscaling.evaluation.suite import World, suite
        from trainer.autoscaling.worlds import policy_in_world
        from trainer.kit.progress import bars
        from trainer.learning.recent import recent_cases
        from trainer.promotion.autoscaling import fleet_gate
        from trainer.promotion.gate import Limits

        own = own_world(self.world, self.workload or (), self.recent or ())
        if own is not None and self.world not in set(World):
            chosen, groups = World.LIVE_LIKE, words_of(self.traces or "")
            if groups:
                raise BadInput("--traces", self.traces, f"leave it out in world {own.name}: its jobs are your own")
        else:
            chosen, groups = (
                World(self.world),
                words_of(SUITE if self.traces is None and own is None else self.traces or ""),
            )
        cases = [*suite(groups, short=self.short, world=chosen, seeds=self.seeds)]
        config = None if own is None else own.config
        cases += recent_cases(self.recent or (), config, note=lambda text: typer.echo(text, err=True))
        rule = None
        facts = {
            "groups": ",".join(groups),
            "short": self.short,
            "world": chosen.value,
            "recent": len(self.recent or ()),
        }
        if own is not None:
            cases += own_cases(own, self.workload or (), self.seeds or (FEW_SEEDS if self.short else SEEDS))
            if self.challenger is not None:
                policy_in_world(str(self.challenger), own)
            if self.workload and not self.plan:
                rule = partial(tuned_rule, own, self.workload, self.crew)
            facts |= {"world": own.name, "world_sha256": own.digest, "workloads": ",".join(self.workload or ())}
        if not cases:
            raise BadInput("--traces", self.traces, "name at least one group, or give --recent or --workload")
        limits = Limits(run_time_factor=self.run_time_limit)
        shown = self.ctx.with_resource(bars(self.as_json))
        task = shown.add_task("cases, from reset and from mid-run", total=len(cases))
        return fleet_gate(
            cases,
            limits,
            facts=facts,
            world=chosen,
            rule=rule,
            workers=self.crew,
            on_progress=lambda n: shown.advance(task, n),
        )


def _check_fleet(challenger: Path, fleet: str) -> None:
    """Raise BadInput when settings describe fleets and the one named is none of them, or the model does not fit it.

    Where the settings describe none, as on a machine that trains, the name is believed.
    """
    from pydantic import TypeAdapter, ValidationError

    from agent.models.card import misfit
    from agent.models.file import load_model
    from agent.settings import load_settings
    from agent.settings.kinds import Key

    try:
        TypeAdapter(Key).validate_python(fleet)
    except ValidationError:
        raise BadInput("fleet", fleet, "give the key of a fleet, as in TRIMTAB_FLEETS__<fleet>__POLICY") from None
    settings = load_settings(os.environ)
    if not one_of_settings("fleet", fleet, [*settings.fleets]):
        return
    unfit = misfit(load_model(challenger).card, settings.fleet(fleet))
    if unfit:
        raise BadInput("CHALLENGER", str(challenger), f"{unfit}: train one for that fleet, or name another")
