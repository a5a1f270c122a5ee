"""Cases of one's own: any workloads in any world, beside the suite; and the policies that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from agent.models.shipped import shipped_models
from domain.errors import BadInput
from simulator.autoscaling.world_file import World
from trainer.autoscaling.baselines.tuning import MOST_FLEETS, TUNING_SEED, best_constant, cases_of, count_fleets, tune
from trainer.autoscaling.evaluation.contenders import ANYWHERE, QUEUE_RULE, Contender, beside
from trainer.autoscaling.evaluation.suite import OWN, Case
from trainer.autoscaling.worlds import policy_in_world, traces_by_seed, world_of

SUITE_WORLDS = {"live-like": "live-like", "training": "exact"}
"""Worlds of the suite, and their names among all worlds."""
TARGET_TRACKING, BEST_CONSTANT = "target tracking, tuned", "best constant fleet"
TUNED = {"queue-rule": QUEUE_RULE, "target-tracking": TARGET_TRACKING}
"""Rules that are tuned for one's own jobs, and their labels."""
OnRun = Callable[[int, int], None] | None
"""Called with what is done and what there is."""
SEEDS, FEW_SEEDS, TUNED_ON = 10, 3, 3
"""Boot seeds for each workload, in the short form too, and those that the queue rule is tuned on."""


def own_world(text: str, workloads: Sequence[str], recent: Sequence[str] = ()) -> World | None:
    """Return the world of one's own cases, None where the suite alone is asked for.

    recent: ledgers and traces of production, which a world of one's own may have for its jobs too. Raises BadInput for
    a world of one's own without jobs, and as `world_of`.
    """
    if not workloads and text in SUITE_WORLDS:
        return None
    if not workloads and not recent:
        names = ", ".join(SUITE_WORLDS)
        raise BadInput(
            "--world", text, f"choose one of {names}, which T1 to T6 are for, or give its jobs by --workload"
        )
    return world_of(SUITE_WORLDS.get(text, text))


def own_cases(world: World, workloads: Sequence[str], seeds: int) -> tuple[Case, ...]:
    """Return `seeds` cases of each workload, from seed 0 on; those that vary by seed are drawn anew for each."""
    drawn = zip(workloads, traces_by_seed(workloads, world.config), strict=True)
    return tuple(
        Case(f"{OWN} {_short(text)} boot {seed}", f"{OWN} {_short(text)}", world.name, world.config, made(seed), seed)
        for text, made in drawn
        for seed in range(seeds)
    )


def _short(text: str) -> str:
    return Path(text).name.replace(" ", "_")


def tuned_rule(
    world: World, workloads: Sequence[str], workers: int = 1, on_run: OnRun = None, name: str = "queue-rule"
) -> Contender:
    """Return the queue rule that costs least on these workloads in this world, tuned on seeds of its own.

    name: another rule of TUNED instead.
    """
    config, traces = world.config, traces_by_seed(workloads, world.config)
    found = tune(
        name,
        cases_of(config, traces, TUNING_SEED, TUNED_ON),
        cases_of(config, traces, 0, 1),
        workers=workers,
        on_run=on_run,
        adapt=lambda text: policy_in_world(text, world),
        widen=True,
    )
    return Contender(TUNED[name], {ANYWHERE: found.policy})


def constant_fleet(world: World, workloads: Sequence[str], on_fleet: OnRun = None) -> tuple[Contender, ...]:
    """Return the constant fleet that costs least on these workloads; none where there are more than MOST_FLEETS."""
    config, traces = world.config, traces_by_seed(workloads, world.config)
    if count_fleets(config) > MOST_FLEETS:
        return ()
    found = best_constant(config, [trace_of(TUNING_SEED) for trace_of in traces], on_fleet)
    return (Contender(BEST_CONSTANT, {ANYWHERE: f"constant:{','.join(map(str, found.sizes))}"}),)


def own_contenders(world: World, rule: Contender, others: Sequence[Contender] = ()) -> tuple[Contender, ...]:
    """Return the tuned rule, `others`, rules as they are without tuning, and the shipped models that may decide here.

    A model for another fleet is reported as absent. A scorer is shown with the tuned rule's setting.
    """
    texts = {"queue rule, not tuned": "queue-rule", "threshold 75 %": "threshold:high=0.75,low=0.75,periods=1"}
    found = [*others, *(Contender(label, {ANYWHERE: policy_in_world(text, world)}) for label, text in texts.items())]
    for model in shipped_models():
        # A network that is told what this world keeps back has nothing to show here.
        with suppress(BadInput):
            found.append(
                Contender(model.title, {ANYWHERE: policy_in_world(beside(model.path, rule).texts[ANYWHERE], world)})
            )
    return (rule, *found)


def contenders_in_world(contenders: Sequence[Contender], world: World) -> tuple[Contender, ...]:
    """Return the contenders as they decide in a world that may keep job sizes back."""
    return tuple(
        Contender(c.label, {group: policy_in_world(text, world) for group, text in c.texts.items()}) for c in contenders
    )
