"""`trimtab train oversubscription`: networks that set rates which save cores while machines stay cool (C2MARL)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.commands import oversubscription as tune_oversubscription
from trainer.commands.options import AlphaOption, Bounds, ScenarioOption, SetOption, StartOption, epilog
from trainer.commands.train import Training

if TYPE_CHECKING:
    from trainer.kit.jobs import Job

VDN = "vdn"
_OPTIONS = ("scenario", "start", "alpha", "seed", "weeks")
"""Fields of the configuration with separate options."""


@dataclass(frozen=True, kw_only=True)
class TrainOversubscription(Training):
    """Learn rates for the subscribers of a cluster from its weeks of requests and its usage profiles.

    The same settings and seed give the same files. Exits with status 1 when no safe policy was found, 130 when stopped
    by Ctrl-C; --resume then goes on.
    """

    EPILOG = epilog(
        """
Method vdn: a network per subscriber, learnt together (C2MARL): --preset paper as
published, robust with the measured risk. Rates that no network sets are found by
`trimtab tune oversubscription`.
""",
        """
Written to --out: per seed checkpoints/, curve.csv, tensorboard/, run.json
and MODEL.onnx, a policy of `trimtab simulate oversubscription`; and summary.json.
""",
        calls=(
            "trimtab train oversubscription --method vdn --preset robust --seeds 0-2",
            "trimtab train oversubscription --method vdn --set gamma=0.95 --resume",
        ),
    )

    scenario: ScenarioOption = "internal_like"
    method: Annotated[str, "NAME", "vdn, see below."] = VDN
    start: StartOption = "cold"
    alpha: AlphaOption = 0.95
    weeks: Annotated[str | None, "s0,s21,...", "Weeks to learn from; else the first."] = None
    preset: Annotated[str, "NAME", "paper or robust."] = "robust"
    episodes: Annotated[int | None, "Episodes; else 800, with paper 1,800 cold and 1,200 warm.", Bounds(min=1)] = None
    setting: SetOption = None

    def folder(self) -> Path:
        """Return the folder of the scenario."""
        return tune_oversubscription.folder_of(self.scenario)

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each seed."""
        if self.method != VDN:
            raise BadInput("--method", self.method, f"give {VDN}; rates are found by `trimtab tune oversubscription`")
        from trainer.kit.progress import announce

        announce("train oversubscription: loading torch and the simulator", self.as_json)
        from trainer.oversubscription.c2marl import Config, preset
        from trainer.oversubscription.runs import jobs_of

        _, weeks = tune_oversubscription.checked_scenario(self.scenario, self.start, self.weeks)
        changes = self.changes(Config, self.setting, _OPTIONS)
        asked: dict[str, Any] = {"start": self.start, "alpha": self.alpha, "episodes": self.episodes, "weeks": weeks}
        changes |= {field: value for field, value in asked.items() if value}
        if self.preset == "paper":
            changes.setdefault("episodes", 1_800 if self.start == "cold" else 1_200)
        config = preset(self.preset, scenario=self.scenario, **changes)
        jobs = jobs_of(config, self.seeds_given(), self.place, resume=self.resume)
        return jobs, {name: value for name, value in config.plain().items() if name not in _OPTIONS}

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the savings over the seeds, and the model of each."""
        figures = summary["figures"]
        first = (
            f"{len(summary['seeds'])} seeds, {duration_text(sum(summary['cpu_s']))} of one core: "
            f"{figures['s_cores']['mean']:.1%} ± {figures['s_cores']['std']:.1%} saved, "
            f"{figures['c_hot_r']['mean']:.1%} ± {figures['c_hot_r']['std']:.1%} hot weeks, "
            f"{figures['peak_machines']['mean']:,.6g} machines at most"
        )
        budgets = zip(summary["models"], summary["shield_budgets"], strict=True)
        return [first] + [
            f"{self.place / model}: {'no shield holds' if budget is None else f'shield budget {budget:g}'}"
            for model, budget in budgets
        ]
