"""Small rounds of learning: a few hours, one boot seed, and a scorer that is trained from a handful of lessons."""

from __future__ import annotations

from pathlib import Path

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import Then, moment_s
from tests.trainer.learning.recording import FLEET, batches, made
from trainer.autoscaling.scorer import Recipe
from trainer.learning.fleet import FleetRound, FleetSettings
from trainer.learning.minutes import Record, record_of
from trainer.learning.state import opened
from trainer.learning.subject import learner_of
from trainer.learning.windows import windows_of
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Term

AT = "2026-11-23T00:00:00Z"
TINY = Recipe(rounds=(2, 2), explore=(0.1, 0.05), epochs=0.05, batch=64, most=4)


def recorded_hours(hours: float) -> Record:
    """So many hours of a fleet, a window an hour."""
    trace = batches(hours, every_min=30.0, jobs=25)
    return record_of(FLEET, [inputs for inputs, _ in made(hours, trace=trace)])


def round_of(
    folder: Path,
    recorded: Record,
    *,
    world: str | None = None,
    cpu_s: float = 600.0,
    key: bytes | None = None,
    try_only: bool = False,
    probation_hours: float = 0.0,
) -> FleetRound:
    """A round in `folder/round` with the models directory `folder/models`."""
    models = folder / "models"
    shelf = ModelShelf(models)
    settings = FleetSettings(TINY, seeds=1, suite=(), bounds=0)
    learner = learner_of(recorded, world, shelf, 120.0)
    facts = {"fleet": FLEET, "world": repr(learner.config), **settings.facts}
    state = opened(folder / "round", facts)
    directory = ModelsWriter(models, key)
    return FleetRound(
        learner=learner,
        windows=windows_of(recorded),
        settings=settings,
        shelf=shelf,
        state=state,
        cpu_s=cpu_s,
        directory=directory,
        at=AT,
        try_only=try_only,
        term=Term(moment_s(AT), probation_hours, Then.PROMOTE) if probation_hours else None,
    )
