"""Makes the plots of a report: runs one case per group again for its history, sweeps the front, reads curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from domain.errors import BadInput
from trainer.autoscaling.evaluation import figures
from trainer.autoscaling.evaluation.contenders import Contender
from trainer.autoscaling.evaluation.episode import History, run_episode
from trainer.autoscaling.evaluation.importance import Importance
from trainer.autoscaling.evaluation.pareto import fronts, settings
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.evaluation.summary import Summary
from trainer.autoscaling.policies.registry import policy_of
from trainer.kit.drawing import colours
from trainer.kit.report import Plot

PARETO_GROUPS = ("T1", "T3", "T2")
"""The front is drawn on the first of these that is part of the evaluation."""
PARETO_CASES = 2
MOST_FLEETS = 8
HELD_OUT = ("held_out/greedy", "held_out/sampled")

Told = Callable[[int], None]


def comparison(summary: Summary) -> Plot | None:
    """Return the plot of all policies against the reference, None when there is nobody to compare."""
    if len(summary.policies) < 2:
        return None
    drawing = figures.against_reference(summary, colours(summary.policies))
    return Plot("Each policy against the reference, family by family; the dashed line is the limit of +5 %.", drawing)


def shown_cases(cases: Sequence[Case]) -> dict[str, Case]:
    """Return the case that is drawn per group: the first one; of T6 the burst, where speed shows."""
    shown: dict[str, Case] = {}
    for case in cases:
        if case.group not in shown or (case.family == "T6 burst x10" and shown[case.group].family != case.family):
            shown[case.group] = case
    return shown


def by_group(
    contenders: Sequence[Contender], summary: Summary, cases: Sequence[Case], told: Told = lambda _: None
) -> dict[str, list[Plot]]:
    """Return fleets with queue, and cores, per group; `told` hears of every episode run for that."""
    colour = colours(summary.policies)
    plots: dict[str, list[Plot]] = {}
    for group, case in shown_cases(cases).items():
        histories: dict[str, History] = {}
        for contender in contenders:
            text = contender.text(group)
            if text is None or summary.standing(contender.label, case.family) is None:
                continue
            history = History()
            run_episode(policy_of(text), case, history)
            histories[contender.label] = history
            told(1)
        if not histories:
            continue
        names = [kind.name for kind in case.config.types]
        some = dict(list(histories.items())[:MOST_FLEETS])
        plots[group] = [
            Plot(f"{case.name}: VMs by type, and the jobs that wait.", figures.fleets(some, names, case.config.cores)),
            Plot(f"{case.name}: the same policies in cores.", figures.cores_over_time(histories, colour)),
        ]
    return plots


def pareto_cases(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of the front, none when no suitable group takes part."""
    group = next((g for g in PARETO_GROUPS if any(case.group == g for case in cases)), None)
    return [case for case in cases if case.group == group][:PARETO_CASES]


def pareto_runs(cases: Sequence[Case]) -> int:
    """Return how many settings the front tries."""
    return sum(map(len, settings(cases[0]).values())) if cases else 0


def pareto(contenders: Sequence[Contender], cases: Sequence[Case], summary: Summary, told: Told) -> Plot:
    """Return the plot of cost against delay on these cases."""
    found = fronts(cases, told)
    colour = colours(summary.policies)
    points = {}
    for contender in contenders:
        text = contender.text(cases[0].group)
        if text is None or summary.standing(contender.label, cases[0].family) is None:
            continue
        runs = [run_episode(policy_of(text), case).measures for case in cases]
        points[contender.label] = (
            sum(run.mean_wait_s for run in runs) / len(runs),
            sum(run.rent for run in runs) / len(runs),
        )
    caption = (
        f"Rent against waiting on {', '.join(case.name for case in cases)}. Small dots: every setting tried. Rings: "
        "the setting that is best at that price of waiting, in dollars per job and hour. Stars: the policies compared."
    )
    return Plot(caption, figures.cost_and_delay(found, points, colour))


def learning_curves(paths: Sequence[Path], goals: Mapping[str, float]) -> Plot | None:
    """Return the plot of `curve.csv` files of training runs (or their folders), None when no file is given."""
    from trainer.kit.progress import CURVE_FILE, column, read_curve

    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for path in paths:
        file = path / CURVE_FILE if path.is_dir() else path
        try:
            rows = read_curve(file)
        except (OSError, UnicodeDecodeError) as fault:
            raise BadInput("--curves", str(path), f"{fault}: give the folder of a training run") from None
        found = {name.partition("/")[2]: column(rows, name) for name in HELD_OUT}
        kept = {name: points for name, points in found.items() if points}
        if not kept:
            raise BadInput("--curves", str(file), f"it has no figure {' or '.join(HELD_OUT)} yet")
        curves[file.parent.name] = kept
    if not curves:
        return None
    caption = "Mean cost on held-out seeds while learning; level lines: what others cost on the same task."
    return Plot(caption, figures.learning_curves(curves, goals))


def importance(found: Importance) -> Plot:
    """Return the plot of a model's importances."""
    effects = found.effects
    drawing = figures.importances(
        [e.name for e in effects],
        [e.added.mean for e in effects],
        [e.added.low for e in effects],
        [e.added.high for e in effects],
    )
    return Plot(
        f"{found.cases} cases, {found.repeats} shuffles each; an undisturbed episode costs {found.cost:.2f} $. Grey: "
        "the interval holds 0.",
        drawing,
    )
