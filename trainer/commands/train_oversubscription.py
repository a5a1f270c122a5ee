"""`trimtab train oversubscription`: a network per subscriber, or a rule for each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns, counted, duration_text
from domain.errors import BadInput
from trainer.commands.options import AlphaOption, Bounds, ScenarioOption, SetOption, StartOption, epilog
from trainer.commands.oversubscription import checked_scenario, folder_of
from trainer.commands.train import Training

if TYPE_CHECKING:
    from trainer.kit.jobs import Job

VDN, SEARCH = "vdn", "search"
METHODS = {"paper": VDN, "robust": VDN, "machine": SEARCH}
"""Of the presets."""
_OPTIONS = ("scenario", "start", "alpha", "seed", "weeks")
"""Fields of the configuration with separate options."""


@dataclass(frozen=True, kw_only=True)
class TrainOversubscription(Training):
    """Learn rates for the subscribers of a cluster from its weeks of requests and its usage profiles.

    The same settings and seed give the same files. Exits with status 1 when no safe policy was found, 130 when stopped
    by Ctrl-C; --resume then continues.
    """

    EPILOG = epilog(
        """
Presets:
  machine  a rate for each request, by the machine that best fit would take at
           each level: a search over parameters on many weeks (method search)
  robust   a network per subscriber, learnt together (C2MARL), with the measured
           risk (method vdn)
  paper    the same as published
Constant rates are found by `trimtab tune oversubscription`.
""",
        """
Written to --out: per seed checkpoints/, curve.csv, tensorboard/, run.json;
summary.json; with machine rule.json, with the others MODEL.onnx per seed: a
policy of `trimtab simulate oversubscription`.
""",
        calls=(
            "trimtab train oversubscription --preset machine --seeds 0-2",
            "trimtab train oversubscription --preset machine --objective core-hours --seeds 0-2",
            "trimtab train oversubscription --preset robust --set gamma=0.95 --resume",
        ),
    )

    scenario: ScenarioOption = "internal_like"
    method: Annotated[str | None, "NAME", "vdn or search; else that of the preset."] = None
    start: StartOption = "cold"
    alpha: AlphaOption = 0.95
    weeks: Annotated[str | None, "s0,s21,...", "Weeks to learn from; else the first, with machine all."] = None
    preset: Annotated[str, "NAME", "machine, robust or paper, see below."] = "robust"
    objective: Annotated[
        str | None, "cores|core-hours|machines", "machine: the saving to learn for; else requested cores."
    ] = None
    episodes: Annotated[int | None, "vdn: episodes; else 800, with paper 1,800 cold and 1,200 warm.", Bounds(min=1)] = (
        None
    )
    setting: SetOption = None

    def folder(self) -> Path:
        """Return the folder of the scenario."""
        return folder_of(self.scenario)

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each seed."""
        if self.preset not in METHODS:
            raise BadInput("--preset", self.preset, f"choose one of {', '.join(METHODS)}")
        method = METHODS[self.preset]
        if self.method not in (None, method):
            of_method = ", ".join(name for name, one in METHODS.items() if one == self.method)
            remedy = f"give --preset {of_method}" if of_method else "rates are found by `trimtab tune oversubscription`"
            raise BadInput("--method", self.method, remedy)
        if method == SEARCH and self.episodes is not None:
            raise BadInput("--episodes", self.episodes, "give --set generations=18+40 to --preset machine")
        if method != SEARCH and self.objective is not None:
            raise BadInput("--objective", self.objective, "give it to --preset machine")
        seeds = self.seeds_given()
        from trainer.kit.progress import announce

        announce("train oversubscription: loading torch and the simulator", self.as_json)
        _, weeks = checked_scenario(self.scenario, self.start, self.weeks)
        asked: dict[str, Any] = {"start": self.start, "alpha": self.alpha, "episodes": self.episodes, "weeks": weeks}
        asked = {field: value for field, value in asked.items() if value}
        if method == SEARCH:
            return self._search(asked, seeds)
        from trainer.oversubscription.c2marl import Config, preset
        from trainer.oversubscription.runs import jobs_of

        changes = self.changes(Config, self.setting, _OPTIONS) | asked
        if self.preset == "paper":
            changes.setdefault("episodes", 1_800 if self.start == "cold" else 1_200)
        config = preset(self.preset, scenario=self.scenario, **changes)
        jobs = jobs_of(config, seeds, self.place, resume=self.resume)
        return jobs, {name: value for name, value in config.plain().items() if name not in _OPTIONS}

    def _search(self, asked: dict[str, Any], seeds: Sequence[int]) -> tuple[list[Job], dict[str, Any]]:
        from trainer.oversubscription.rule_runs import jobs_of
        from trainer.oversubscription.rule_training import Config

        changes = self.changes(Config, self.setting, (*_OPTIONS, "objective")) | asked
        if self.objective is not None:
            changes["objective"] = self.objective
        config = Config(scenario=self.scenario, **changes)
        jobs = jobs_of(config, seeds, self.place, resume=self.resume)
        return jobs, {name: value for name, value in config.plain().items() if name not in (*_OPTIONS, "objective")}

    def train(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Do the runs by the method of the preset."""
        if METHODS[self.preset] != SEARCH:
            return super().train(jobs)
        from trainer.oversubscription.rule_runs import train_all

        return train_all(jobs, self.place, at_once=self.at_once or 1, ray=self.ray, silent=self.as_json)

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the savings over the seeds, and the model of each; of a search the chosen rule."""
        if METHODS[self.preset] == SEARCH:
            return _lines_searched(summary, self.place / summary["rule"])
        figures = summary["figures"]
        first = (
            f"{counted(len(summary['seeds']), 'seed')}, {duration_text(sum(summary['cpu_s']))} of one core: "
            f"{figures['s_cores']['mean']:.1%} ± {figures['s_cores']['std']:.1%} saved, "
            f"{figures['c_hot_r']['mean']:.1%} ± {figures['c_hot_r']['std']:.1%} hot weeks, "
            f"{figures['peak_machines']['mean']:,.6g} machines at most"
        )
        budgets = zip(summary["models"], summary["shield_budgets"], strict=True)
        return [first] + [
            f"{self.place / model}: {'no shield holds' if budget is None else f'shield budget {budget:g}'}"
            for model, budget in budgets
        ]


def _lines_searched(summary: dict[str, Any], path: Path) -> list[str]:
    chosen, weeks = summary["choice"], summary["release"]
    titles = ("", "cores saved", "core-hours", "machines", "in the mean", "broken, mean", "broken, worst", "raised by")
    rows: list[tuple[object, ...]] = [titles]
    figures = [(f"seed {seed}", one) for seed, one in zip(summary["seeds"], chosen["by_seed"], strict=True)]
    rows += [
        (
            label,
            *(f"{one[name]:.1%}" for name in ("mean_cores", "mean_core_hours")),
            *(f"{one[name]:.1f}" for name in ("mean_machines", "mean_machines_in_use")),
            *(f"{one[name]:.1%}" for name in ("mean_risk", "worst_risk")),
            f"{one['offset']:g}",
        )
        for label, one in figures
    ]
    hot = max(max(week["c_hot_r"], week["c_hot_r_analytic"]) for week in weeks)
    rejecting = sum(bool(week["rejects"]) for week in weeks)
    why = f"{rejecting} of them reject requests, for want of machines" if rejecting else "one breaks the promise"
    verdict = "released" if all(summary["feasible"]) else f"not released: {why}"
    return [
        f"{counted(len(summary['seeds']), 'seed')}, {duration_text(sum(summary['cpu_s']))} of one core, "
        f"on {chosen['weeks']} validation weeks:",
        *columns(rows),
        f"seed {summary['chosen']} is chosen; on {len(weeks)} further weeks {hot:.1%} hot in the worst",
        f"{verdict} ({path})",
    ]
