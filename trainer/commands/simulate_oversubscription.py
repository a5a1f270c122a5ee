"""`trimtab simulate oversubscription`: how many cores a policy saves in a week, and how hot the machines run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agent.kernel.text import columns
from trainer.commands.options import AlphaOption, Bounds, ScenarioOption, StartOption, epilog
from trainer.commands.verb import Answer, Verb


@dataclass(frozen=True, kw_only=True)
class SimulateOversubscription(Verb):
    """Play a policy on a week of VM requests: cores saved, machines used, how often they ran hot.

    The same options and seed give the same figures to the last digit.
    """

    EPILOG = epilog(
        """
Policies:
  none  grid:0.4  rates:0.4,0.6,...   the same rate always, or by subscriber
  ma  sl                              by the last day's peaks; regression
  static:alpha=0.95                   best constant rates, found in seconds
  static:weeks=s21+s22+s23,cap=0.02   the same, safe in each of these weeks
  shield:base=(rates:...),b=0.003     rate raised where a machine would run hot
  filter:rate=0.2,b=0.003,posterior=true   machines chosen by their risk
""",
        """
Usage (--usage):
  gauss                      each VM and hour drawn by itself
  gauss_corr:rho=0.05        VMs of a subscriber move together
  persistent:psi=0.85        each VM keeps its level
  replay, replay:FILE.csv    one realisation; measured id,hour,usage
  bootstrap:FILE.parquet     measured VM-days, whole days
""",
        calls=(
            "trimtab simulate oversubscription --policy grid:0.5",
            "trimtab simulate oversubscription --scenario azure_like --start warm \\",
            "    --policy static --episodes 2000 --json",
        ),
    )

    scenario: ScenarioOption = "internal_like"
    week: Annotated[str, "WEEK", "Week of requests; unseen0, unseen1, ...: redrawn."] = "s0"
    start: StartOption = "cold"
    policy: Annotated[str, "POLICY", "Policy that sets the rates, see below."] = "grid:0.6"
    alpha: AlphaOption = 0.95
    usage: Annotated[str, "MODEL", "How VMs use their cores, see below."] = "gauss"
    episodes: Annotated[int, "N", "Weeks of usage to draw.", Bounds(min=1)] = 300
    seed: Annotated[int, "Seed of the usage; episode i has seed + i.", Bounds(min=0)] = 0
    steps: Annotated[Path | None, "FILE", "Write a CSV with a line per hour."] = None
    plot: Annotated[Path | None, "FILE", "Draw the week: .png or .svg."] = None

    def run(self) -> Answer:
        """Play the week."""
        from simulator.oversubscription.scenario import scenario_of
        from trainer.kit.drawing import check_plot_file
        from trainer.kit.progress import phases
        from trainer.oversubscription.drawings import SUFFIXES, draw
        from trainer.oversubscription.episodes import judge, write_hours
        from trainer.oversubscription.policies import Task, policy_of
        from trainer.oversubscription.unseen import week_named

        if self.plot is not None:
            check_plot_file(self.plot, SUFFIXES)
        cluster = scenario_of(self.scenario)
        about = f"playing {self.policy} on week {self.week} of {self.scenario}"
        with phases(self.as_json) as on_phase:
            on_phase(f"{about}; the first run compiles the simulator")
            task = Task(cluster, week_named(cluster, self.week), self.start, self.alpha, on_phase)
            judged = judge(policy_of(self.policy), task, usage=self.usage, episodes=self.episodes, seed=self.seed)
        if self.steps is not None:
            write_hours(judged, self.steps)
        if self.plot is not None:
            draw(judged, self.plot)
        data = judged.as_data() | {"seed": self.seed}
        return Answer(data, _lines(data, judged.sampled.limit))


def _lines(data: dict[str, Any], limit: float) -> list[str]:
    saved, analytic = data["s_cores"], data["c_hot_r_analytic"]
    kept = "kept" if data["keeps_alpha"] else "broken"
    rows = [
        ("cores saved", "nothing was requested" if saved is None else f"{saved:.1%} of {data['requested_cores']:,.0f}"),
        ("machines", f"{data['peak_machines']:,.6g} at most"),
        ("hot weeks", f"{data['c_hot_r']:.1%} of {data['episodes']:,}, at most {data['c_hot_r_upper_95']:.1%} (95 %)"),
        ("assessed", "only sampled: it decides by usage" if analytic is None else f"{analytic:.1%} hot weeks"),
        ("worst machine", f"hot in {data['pm_hot_r']:.1%} of the weeks"),
        ("hot hours", f"{data['mean_hot_hours']:.2f} a week, {data['mean_hot_machine_hours']:.2f} machine-hours"),
        (
            "promise",
            f"{kept}: at least {data['alpha']:.0%} of the weeks with fewer hot hours than {limit}",
        ),
        ("rejected", f"{data['rejects']:,} of {data['requests']:,} requests"),
    ]
    if data["raised"] or data["unsafe"]:
        rows.append(("guard", f"{data['raised']:,} rates raised, {data['unsafe']:,} requests without a safe machine"))
    week = f"{data['scenario']} {data['week']} {data['start']}"
    return [f"{week}, {data['policy']}, usage {data['usage']}, seed {data['seed']}", "", *columns(rows)]
