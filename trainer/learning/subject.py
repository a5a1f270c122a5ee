"""The fleet that is learnt for: what its ledger recorded, its world, and how the agent decides for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import LearnedPolicy, names_model
from agent.models.directory import ModelsDirectory
from agent.models.unused_champion import readable_champions, unused_champion
from agent.settings import load_settings
from agent.settings.fleet import FleetSettings
from domain.errors import BadInput
from domain.fleet import Fleet
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import JobSizes
from trainer.autoscaling.worlds import world_of
from trainer.learning.minutes import Record
from trainer.learning.recorded import LEDGER_COUNTS, FleetFacts, fitted_world
from trainer.learning.replay import Loop

LIVE_LIKE = "live-like"


@dataclass(frozen=True, slots=True)
class Learner:
    """A fleet as a round sees it.

    config: its world. world: the name of it. typical_core_s: core-seconds of a job that policies expect where the job
    source tells none; 0 where it tells them. loop: how the agent decides. unlike: facts of a given world that differ
    from those of the ledger, which replace them; "" for none.
    """

    recorded: Record
    config: SimulationConfig
    world: str
    typical_core_s: float
    loop: Loop
    unlike: str = ""

    @property
    def fleet(self) -> str:
        """The key of the fleet."""
        return self.recorded.fleet.name


def learner_of(
    recorded: Record,
    world: str | None,
    shelf: ModelShelf,
    idle_s: float | None = None,
    usual_s: float = 0.0,
    *,
    only_rules: bool = False,
) -> Learner:
    """Return the fleet with its world: types, limits and prices as recorded, the rest as `world` has it.

    world: a name or a file; where it is None `live-like`, with the recorded boot times. shelf: finds the models that
    decided. idle_s: in place of the recorded idle times. usual_s: where neither is known, in older ledgers. only_rules:
    rules alone are replayed, and models that decided need not be there. Raises BadInput for a world that does not go
    with the fleet, and for a model that decided and is not there.
    """
    if idle_s is not None:
        recorded = recorded.without_idle
    elif recorded.terms is not None:
        idle_s = recorded.terms.idle_s
    home = world_of(world or LIVE_LIKE)
    config = fitted_world(home.config, recorded.fleet, recorded.limits, recorded.terms)
    unlike = "" if world is None else FleetFacts.of_world(home.config).unlike(_facts_of(recorded))
    if world is None and recorded.boots:
        config = replace(config, boot_lows_s=(), boot_highs_s=(), boot_quantiles_s=recorded.boots)
    known = recorded.sizes_known and home.job_sizes is not JobSizes.UNKNOWN
    loop = Loop(
        recorded.fleet,
        recorded.limits,
        recorded.terms,
        idle_s=usual_s if idle_s is None else idle_s,
        lag_s=recorded.lag_s,
        sizes_known=known,
        models=shelf,
    )
    for policy in () if only_rules else recorded.policies:
        check_policy(policy, loop.fleet, shelf)
    return Learner(recorded, config, home.name, 0.0 if known else recorded.job_core_s or 0.0, loop, unlike)


def _facts_of(recorded: Record) -> FleetFacts:
    return FleetFacts.of_fleet(recorded.fleet, recorded.limits, recorded.terms)


def replaced_facts(learner: Learner, environ: Mapping[str, str] | None) -> list[str]:
    """Return for people which facts of the world, and of the settings, are replaced by those of the ledger.

    environ: None where the settings are not those of the fleet.
    """
    found = []
    if learner.unlike:
        remedy = "correct the file if the ledger is right"
        found.append(f"world {learner.world}: {learner.unlike}: {LEDGER_COUNTS}; {remedy}")
    own = None if environ is None else load_settings(environ).fleets.get(learner.fleet)
    if own is not None:
        facts = FleetFacts.of_fleet(own.fleet(learner.fleet), own.limits(), own.terms)
        unlike = facts.unlike(_facts_of(learner.recorded))
        if unlike:
            remedy = "they are of the newest decision: restart the agent if the settings are right, else correct these"
            found.append(f"settings of {learner.fleet}: {unlike}: {LEDGER_COUNTS}; {remedy}")
    return found


def check_policy(policy: str, fleet: Fleet, shelf: ModelShelf) -> None:
    """Raise BadInput for a learned policy that cannot be replayed: its file is not there, or it is a network."""
    if names_model(policy) and isinstance(shelf.policy(policy, fleet), LearnedPolicy):
        remedy = (
            "a recurrent network decided, whose inputs a replay does not have: learn on minutes of rules or scorers"
        )
        raise BadInput("policy", policy, remedy)


def unused_by_settings(directory: ModelsDirectory, fleet: str, environ: Mapping[str, str]) -> str:
    """Return why a fleet's champion decides nothing, by the settings of this machine; "" where they lack the fleet."""
    fleets = load_settings(environ).fleets
    return unused_champion(readable_champions(directory), fleet, str(fleets[fleet].policy)) if fleet in fleets else ""


def can_tune_itself(fleet: str, environ: Mapping[str, str]) -> bool:
    """Return whether SELF_TUNE has an effect: the settings have the fleet, without HORIZON_S or IDLE_S by hand."""
    fleets = load_settings(environ).fleets
    return fleet in fleets and bool(fleets[fleet].follows)


def usual_idle_s(fleet: str, environ: Mapping[str, str]) -> float:
    """Return the seconds after which a VM of the fleet counts as idle, by the settings, else the default."""
    settings = load_settings(environ).fleets
    if fleet in settings:
        return settings[fleet].idle_s
    default: float = FleetSettings.model_fields["idle_s"].default
    return default
