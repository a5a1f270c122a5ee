"""A fleet with models of its own: a ledger of hours under one and then another, with the proposals of a shadow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.autoscaling.decide import DecisionInputs, DecisionResult, decide
from agent.autoscaling.policies.fallback import Proposer, evaluate_directly
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import Champion, Probationer, Then, moment_text, read_model_file
from agent.models.file import load_model
from agent.rehearsal.virtual_time import START
from domain.subject import AUTOSCALING, Subject
from domain.units import HOUR_S
from simulator.autoscaling.configuration import SimulationConfig
from tests.agent.models.making import reported, scorer
from tests.trainer.learning.recording import FLEET, WORLD, batches, loop_of, recorded_in
from trainer.learning.fleet_trial import FleetEvidence
from trainer.learning.replay import play
from trainer.learning.trial import Inspection
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Limits

SUBJECT = Subject(AUTOSCALING, FLEET)
HOURS = 8.5
"""Of a probation, and after a promotion: as many windows as are needed."""


class Site:
    """A models directory with three scorers, and a ledger.

    thrifty: chooses as the queue rule does. lavish: adds whatever it may. wary: as thrifty, another file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = ModelsWriter(folder / "models")
        self.directory.path.mkdir(parents=True)
        self.thrifty = scorer(folder, {"is_rule": 1.0})
        self.wary = scorer(folder, {"is_rule": 2.0})
        self.lavish = scorer(folder, {"added_log": 1.0})
        for model in (self.thrifty, self.wary, self.lavish):
            self.directory.store(model.read_bytes(), model.name)
        self.ledger = folder / "ledger.db"

    def shelf(self) -> ModelShelf:
        return ModelShelf(self.directory.path)

    def live(
        self,
        parts: Sequence[tuple[Path | str, float]],
        shadow: Path | None = None,
        world: SimulationConfig = WORLD,
        kept: Callable[[int], bool] = lambda minute: True,
    ) -> None:
        """Record hours under each of these policies in turn; kept: which minutes the ledger has."""
        hours = sum(part for _, part in parts)
        loop = loop_of(world, self.shelf())
        found: list[tuple[DecisionInputs, DecisionResult]] = []
        policies = [name_of(policy) for policy, part in parts for _ in range(round(part * 60))]
        trace = batches(hours, every_min=20.0, jobs=30)
        config = replace(world, initial=world.minimum)
        play(loop, config, trace, policies, 0, START, seen=lambda *pair: found.append(pair))
        proposer = Proposer(evaluate_directly, models=self.shelf())
        if shadow is not None:
            found = [watched_by(shadow, inputs, proposer) for inputs, _ in found]
        recorded_in(self.ledger, [pair for minute, pair in enumerate(found) if kept(minute)])

    def promoted(self, model: Path, hour: float) -> Champion:
        """The model promoted by its own report so many hours after the begin."""
        report = reported(self.directory.path, model.name, None, SUBJECT)
        at = moment_text(START + hour * HOUR_S)
        return self.directory.promote(read_model_file(model), SUBJECT, report, at, load_model)

    def tried(self, model: Path, hours: float = HOURS, then: Then = Then.PROMOTE) -> Probationer:
        """The model on probation from the begin of the ledger on, against the champion."""
        now = self.directory.champion(SUBJECT)
        against = {"sha256": None if now is None else Path(now.model).stem}
        overall = {"relative": {"mean": -0.05}}
        report = reported(self.directory.path, model.name, None, SUBJECT, champion=against, overall=overall)
        beaten, file = None if now is None else now.model, read_model_file(model)
        return self.directory.put_on_probation(file, SUBJECT, report, START, hours, then, load_model, beaten=beaten)

    def look(self, hour: float, world: Path | None = None) -> Inspection:
        """A look at it so many hours after the begin."""
        return self.evidence(world).inspection(START + hour * HOUR_S, Limits())

    def evidence(self, world: Path | None = None) -> FleetEvidence:
        """Its ledger, replayed with one boot seed."""
        source = None if world is None else str(world)
        return FleetEvidence(FLEET, str(self.ledger), self.directory, self.shelf(), source, 120.0, seeds=1)

    def events(self) -> list[tuple[str, str]]:
        """The changes of the pointer: event, and the first letters of the reason."""
        return [(line["event"], line.get("reason", "")) for line in self.directory.history(SUBJECT)]


def name_of(policy: Path | str) -> str:
    return policy if isinstance(policy, str) else f"learned:{policy.stem}"


def watched_by(shadow: Path, inputs: DecisionInputs, proposer: Proposer) -> tuple[DecisionInputs, DecisionResult]:
    """The same minute with this model as a shadow."""
    beside = replace(inputs, shadows=(name_of(shadow),))
    return beside, decide(beside, proposer)
