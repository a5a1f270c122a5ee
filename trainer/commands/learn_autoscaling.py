"""`trimtab learn autoscaling`: from what a fleet's ledger recorded to what decides for it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.endings import BUDGET_USED, NOT_TRUE, OUT, REFUSED, STATUSES_OF_FAULTS, TOO_LITTLE, End
from trainer.commands.learn import Learning
from trainer.commands.options import FOLDER, Bounds, epilog
from trainer.commands.verb import Answer

if TYPE_CHECKING:
    from trainer.learning.fidelity import Fidelity
    from trainer.learning.fleet import FleetRound, FleetSettings
    from trainer.learning.subject import Learner
    from trainer.learning.trial import Inspection
    from trainer.learning.windows import Windows


@dataclass(frozen=True, kw_only=True)
class LearnAutoscaling(Learning):
    """Learn from what a fleet's ledger recorded: tune the queue rule, fine-tune a scorer, judge both, ask the gate.

    The recorded minutes are cut into windows; the latest two fifths are held out. First each is replayed under the
    policy that ran, with the fleet's own limits: the replay must cost what was recorded, within 5 %, or the quantity
    that is off is named. What is learnt on the earlier windows is judged on the held-out ones against what decides now.
    A scorer that the gate lets pass is the fleet's champion, after its probation where there is one; a setting of the
    rule is written for you to set. A round that was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: a promotion of the last days is held to what it
    was predicted to cost, and rolled back where it costs more; a model on probation is judged when its hours are over.
    """

    DECISION = "autoscaling"
    EPILOG = epilog(
        f"""
Exit status:
  1  the gate refused the challenger, or a model on probation did not keep its promise
  2  bad input
  3  the world file does not describe the fleet
  4  too little is recorded
  5  the time of a processor is used up: give more to continue
  6  the fleet cost more than predicted, or than the rule of day 0, under its new champion: it was rolled back
{STATUSES_OF_FAULTS}""",
        calls=(
            "trimtab learn autoscaling web --ledger /var/lib/trimtab/ledger.db",
            "trimtab learn autoscaling web --try --cpu-minutes 30 --out runs/learn/web",
            "trimtab learn autoscaling web --probation-hours 48 --then approve",
            "trimtab learn autoscaling web --ledger /var/lib/trimtab/ledger.db --check",
            "trimtab learn autoscaling web --world my.toml --check",
            "trimtab learn autoscaling web --export web.tar",
            "trimtab learn autoscaling web --from web.tar --out runs/learn/web",
        ),
    )

    name: Annotated[str, Argument(metavar="FLEET", help="The key of the fleet.")]
    world: Annotated[
        str | None, "NAME|FILE", "The world of its simulator; else live-like, types and boots as recorded."
    ] = None
    days: Annotated[float, "DAYS", "How many of the last days are used.", Bounds(min=0.1)] = 28.0
    idle: Annotated[float | None, "SECONDS", "The fleet's IDLE_S in place of the recorded ones.", Bounds(min=0.0)] = (
        None
    )
    check_only: Annotated[bool, "--check", "Cut windows and check the simulator, no more."] = False
    out: Annotated[Path | None, "DIR", "Folder of the round, also to continue it; else runs/learn/FLEET.", FOLDER] = (
        None
    )
    setting: Annotated[list[str] | None, "--set", "FIELD=VALUE", "A field of the scorer's recipe; repeatable."] = None
    start: Annotated[str, "RUN|FILE|scorer", "Scorer to start from where the fleet has none."] = "scorer"
    workers: Annotated[int, "N", "Processes of --check.", Bounds(min=1)] = 1

    @property
    def folder(self) -> Path:
        """Where the round lies."""
        return self.out or OUT / self.name

    @property
    def lock(self) -> str:
        """The name under which no other call learns."""
        return self.name

    @cached_property
    def settings(self) -> FleetSettings:
        """How a round is done."""
        from trainer.autoscaling.scorer import FINE
        from trainer.kit.fields import changes_of, pairs_of
        from trainer.learning.fleet import FleetSettings

        recipe = replace(FINE, **changes_of("--set", type(FINE), pairs_of("--set", self.setting or ())))
        return FleetSettings(recipe, start=self.start)

    def run(self) -> Answer:
        """Export, check the simulator, or learn."""
        self.check()
        if self.check_only and self.export is None:
            return self._checked()
        return super().run()

    def _checked(self) -> Answer:
        from trainer.kit.jobs import Pool, Workers
        from trainer.learning.fidelity import called, check_fidelity
        from trainer.learning.windows import TooLittle, windows_of

        learner = self.learner(None)
        try:
            windows = windows_of(learner.recorded)
        except TooLittle as end:
            typer.echo(str(end), err=True)
            return Answer(None, [], TOO_LITTLE)
        with Pool(called, Workers(self.workers)) as pool:
            found = check_fidelity(
                learner.loop,
                learner.config,
                windows.stretches,
                windows.replayed,
                spread=lambda work, items: pool.run([(work, item) for item in items]),
            )
        data = {**_as_data(learner, windows, found), "replaced": self._replaced(learner)}
        return Answer(data, _lines(learner, windows, found), 0 if found.holds else NOT_TRUE)

    def _replaced(self, learner: Learner) -> list[str]:
        """Return the facts of the world and of the settings that the ledger's replace."""
        from trainer.learning.subject import replaced_facts

        return replaced_facts(learner, None if self.given is not None else os.environ)

    def case(self) -> Inspection:
        """Return the case for a look at the fleet's models."""
        from agent.autoscaling.policies.learned_models import ModelShelf
        from agent.settings import load_settings
        from trainer.learning.fleet_trial import FleetEvidence
        from trainer.learning.round import Budget
        from trainer.learning.subject import usual_idle_s

        own = load_settings(os.environ).fleets.get(self.name)
        evidence = FleetEvidence(
            self.name,
            self.source,
            self.models,
            ModelShelf(self.models.path),
            self.world,
            self.idle,
            self.settings.seeds,
            Budget(self.terms.cpu_s).spread,
            usual_idle_s(self.name, os.environ),
            None if own is None else own.own_rule,
            self.watch_only,
            not self.try_only,
        )
        return evidence.inspection(self.now_s, self.settings.limits)

    def round(self) -> End:
        """Do a new round, or go on with the one that was stopped."""
        from agent.autoscaling.policies.learned_models import ModelShelf
        from agent.models.rounds import Ending
        from trainer.learning.fleet import FleetRound
        from trainer.learning.round import BudgetUsed, GateResult
        from trainer.learning.state import opened, record_digest
        from trainer.learning.subject import can_tune_itself, unused_by_settings
        from trainer.learning.windows import windows_of

        self.set_aside()
        learner = self.learner(self.folder)
        windows = windows_of(learner.recorded)
        state = opened(self.folder, round_facts(learner, record_digest(self.folder), self.settings))
        work = FleetRound(
            learner=learner,
            windows=windows,
            settings=self.settings,
            shelf=ModelShelf(self.models.path),
            state=state,
            can_tune_itself=can_tune_itself(self.name, os.environ),
            **self.round_arguments,
        )
        try:
            stages = work.go_on()
        except BudgetUsed as end:
            sentence = f"{end} ({self.folder})"
            typer.echo(sentence, err=True)
            return End(Ending.BUDGET, sentence, BUDGET_USED, state.cpu_s)
        lines = _round_lines(work)
        data = {"directory": str(self.folder), "cpu_s": state.cpu_s, **stages}

        def ended(outcome: Ending, sentence: str, status: int = 0) -> End:
            return End(outcome, sentence, status, state.cpu_s, data, lines)

        if "gate" not in stages:
            return ended(Ending.NOT_TRUE, lines[0], NOT_TRUE)
        gate, sentence = state.result(GateResult), _gate_sentence(work)
        if gate.promoted:
            unused = unused_by_settings(self.models, self.name, os.environ)
            return ended(Ending.PROMOTED, "; ".join(filter(None, [sentence, unused])))
        whole = "; ".join(filter(None, [work.advice, sentence, *gate.reasons]))
        if gate.passed is False:
            return ended(Ending.REFUSED, whole, REFUSED)
        kept = Ending.ADVISED if work.advice else Ending.KEPT
        return ended(Ending.PROBATION if gate.on_probation else kept, whole)

    def learner(self, folder: Path | None) -> Learner:
        """Return the fleet; folder: of a round, which keeps the record that it began with."""
        from agent.autoscaling.policies.learned_models import ModelShelf
        from trainer.learning.minutes import read_record
        from trainer.learning.state import kept_record
        from trainer.learning.subject import learner_of, usual_idle_s
        from trainer.learning.transfer import record_in

        place = self.models_dir or self.usual_directory() if folder is None else self.models.path
        if self.given is not None:
            exported, usual_s = record_in(self.given, str(self.origin))
            if folder is not None:
                self.place_parts()
            recorded = kept_record(folder, lambda: exported)
        else:
            recorded = kept_record(folder, lambda: read_record(self.source, self.name, self.days))
            usual_s = usual_idle_s(self.name, os.environ)
        if recorded.fleet.name != self.name:
            option, given = ("--from", self.origin) if self.origin is not None else ("--out", folder)
            raise BadInput(option, str(given), f"it is of fleet {recorded.fleet.name}, not of {self.name}")
        found = learner_of(recorded, self.world, ModelShelf(place), self.idle, usual_s)
        for sentence in self._replaced(found):
            typer.echo(sentence, err=True)
        return found

    def write_export(self, path: Path) -> Answer:
        """Write the record with the models that decided."""
        from trainer.learning.minutes import read_record
        from trainer.learning.subject import usual_idle_s
        from trainer.learning.transfer import export_of, write_export

        recorded = read_record(self.source, self.name, self.days)
        idle_s = usual_idle_s(self.name, os.environ) if self.idle is None else self.idle
        found = export_of(recorded, idle_s, self.models)
        write_export(found, path)
        minutes, models = len(recorded.minutes), sum(name.endswith(".onnx") for name in found.models)
        line = f"{path}: {minutes} minutes of fleet {self.name}, {models} models"
        return Answer({"file": str(path), "minutes": minutes, "models": models}, [line])


def round_facts(learner: Learner, record: str, settings: FleetSettings) -> dict[str, Any]:
    """Return the facts of a round; one that was begun with others is put away. record: its digest."""
    from trainer.learning.fidelity import CHECK_VERSION

    facts = {"fleet": learner.fleet, "world": repr(learner.config), "idle_s": learner.loop.idle_s}
    return {**facts, "record": record, "check": CHECK_VERSION, **settings.facts}


def _gate_sentence(work: FleetRound) -> str:
    from trainer.learning.round import GateResult

    gate, file = work.state.result(GateResult), work.challenger()
    model = file if isinstance(file, str) else file.name
    if gate.promoted:
        return f"the gate: passed, {model} is the champion of {work.learner.fleet} now"
    if gate.on_probation:
        hours = 0.0 if work.term is None else work.term.hours
        return f"the gate: passed, {model} is on probation for {hours:g} h"
    return "the gate: passed; nothing is changed (--try)" if gate.passed else "the gate: the policy in use stays"


def _round_lines(work: FleetRound) -> list[str]:
    from trainer.learning.fidelity import Fidelity
    from trainer.learning.fleet import HeldOutResult
    from trainer.learning.round import GateResult

    truth, folder = work.state.result(Fidelity), work.state.folder
    if not truth.holds:
        return [truth.sentence]
    rows: list[tuple[object, ...]] = [("on the held-out windows", "cost of now", "95 %", "sure")]
    for name, found in work.state.result(HeldOutResult).against_now.items():
        r = found.relative
        rows.append((name, f"{r.mean:+.1%}", f"{r.low:+.1%} to {r.high:+.1%}", f"{found.probability_lower:.1%}"))
    reasons = [f"  {reason}" for reason in work.state.result(GateResult).reasons]
    if work.files():
        rule = f"the rule's setting: {folder / 'rule.env'}"
    else:
        rule = "the tuned rule costs more than the policy in use: no setting is written"
    lines = [truth.sentence, *columns(rows), rule, *filter(None, [work.advice]), _gate_sentence(work)]
    return [*lines, *reasons, f"report: {folder / 'report.html'}"]


FIDELITY = ("off", "apart", "holds", "named")


def _as_data(learner: Learner, windows: Windows, found: Fidelity) -> dict[str, Any]:
    each = [asdict(one) | {"off": one.off} for one in found.windows]
    return {
        "fleet": learner.fleet,
        "world": learner.world,
        "policies": dict(learner.recorded.policies),
        "left_out": learner.recorded.left_out,
        "window_hours": windows.window_s / HOUR_S,
        "earlier": len(windows.earlier),
        "held_out": len(windows.held_out),
        "fidelity": {**asdict(found), "windows": each, **{name: getattr(found, name) for name in FIDELITY}},
        "sentence": found.sentence,
    }


def _lines(learner: Learner, windows: Windows, found: Fidelity) -> list[str]:
    rows: list[tuple[object, ...]] = [("window", "hours", "recorded", "replayed", "")]
    rows += [
        (w.name, f"{w.hours:.1f}", f"{w.recorded:.4f} $", f"{w.replayed:.4f} $", f"{w.off:+.1%}") for w in found.windows
    ]
    left_out = [f"left out, {why}: {count} minutes" for why, count in learner.recorded.left_out.items()]
    return [
        f"fleet {learner.fleet}: {len(windows.earlier)} windows of {windows.window_s / HOUR_S:.3g} h to learn on, "
        f"{len(windows.held_out)} later ones held out; world {learner.world}",
        *left_out,
        *columns(rows),
        found.sentence,
    ]
