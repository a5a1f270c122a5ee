"""`trimtab simulate deferral`: what a policy makes of deferrable jobs and the capacity that on-demand work leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import ForceOption, check_outputs, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from trainer.deferral.evaluation import Subject
    from trainer.deferral.playing import Played


@dataclass(frozen=True, kw_only=True)
class SimulateDeferral(Verb):
    """Start deferrable jobs hour by hour: work done, delay, violations, jobs that expire.

    The same options give the same figures. Every schedule passes a check that shares no code with the policies.
    """

    EPILOG = epilog(
        """
Policies:
  fifo  sjf  tetris  els     by submission, by duration, by alignment, by
                             latest start; fifo and sjf stop at the first job
                             that does not fit
  fifo:skip  sjf:skip        the same, passing over jobs without room
  knapsack  knapsack:alpha=0.3,beta=0
                             the most valuable set of jobs in each step
  rolling  rolling:steps=10,factor=0.7,margin=0.5
                             a plan of the next steps, solved in each step
  optimum                    all jobs and capacities known
  FILE.onnx  FILE.onnx:skip  a learned policy, from `trimtab train deferral`
""",
        """
Scenarios: valley, core2, core3, dur1, dur2, core2_fixed, realtime, bursty,
bursty_long, sched_drop. --world takes parameters of your own, those of valley
where the file names none.
""",
        calls=(
            "trimtab simulate deferral --policy fifo --seeds 0-99",
            "trimtab simulate deferral --policy knapsack --seeds 0 --plot week.svg",
            "trimtab simulate deferral --world mine.toml --policy fifo:skip --steps steps.csv",
            "trimtab simulate deferral --trace azure_like,LOG.swf.gz --policy knapsack --seeds 0-3",
        ),
    )

    scenario: Annotated[
        str | None, Option(metavar="NAME", help="Where jobs and capacity come from, see below.", show_default="valley")
    ] = None
    world: Annotated[Path | None, "FILE", "Parameters of a scenario of your own: a FILE.toml."] = None
    trace: Annotated[str | None, "SCENARIO,LOG", "Load of an oversubscription scenario, jobs of an SWF log."] = None
    policy: Annotated[str, "POLICY", "Policy that starts jobs, see below."] = "knapsack"
    seeds: Annotated[str, "SEEDS", "Episodes, such as 0-99 or 1,3,8-9."] = "0-9"
    steps: Annotated[Path | None, "FILE", "Write every step: .csv or .json."] = None
    plot: Annotated[Path | None, "FILE", "Draw the first episode: .svg or .png."] = None
    force: ForceOption = False

    def run(self) -> Answer:
        """Play the episodes."""
        from trainer.deferral.playing import PICTURES, TABLES, draw, play, write_steps
        from trainer.kit.drawing import check_plot_file
        from trainer.kit.jobs import seeds_of
        from trainer.kit.progress import bars, counter

        check_outputs(self.force, {"--steps": self.steps, "--plot": self.plot})
        if self.plot is not None:
            check_plot_file(self.plot, PICTURES)
        if self.steps is not None and self.steps.suffix.lower() not in TABLES:
            raise BadInput("--steps", str(self.steps), f"end the file's name with one of {', '.join(TABLES)}")
        subject, numbers = _subject(self.scenario, self.world, self.trace), seeds_of(self.seeds)
        with bars(self.as_json) as shown:
            played = play(subject, self.policy, numbers, counter(shown, self.policy))
        if self.steps is not None:
            write_steps(played, self.steps)
        if self.plot is not None:
            draw(played, self.plot)
        return Answer(played.as_data(), _lines(played))


def _subject(scenario: str | None, world: Path | None, trace: str | None) -> Subject:
    from simulator.deferral.scenarios import read_scenario, scenario_of
    from trainer.deferral.evaluation import Subject, scenario_and_log, trace_subject

    given = [str(one) for one in (scenario, world, trace) if one is not None]
    if len(given) > 1:
        raise BadInput("--scenario, --world, --trace", ", ".join(given), "give one of them")
    if world is not None:
        return Subject(world.name, read_scenario(world))
    name = scenario or "valley"
    return Subject(name, scenario_of(name)) if trace is None else trace_subject(*scenario_and_log(trace))


def _lines(played: Played) -> list[str]:
    data = played.as_data()
    error = data["standard_error"]
    spread = "" if error is None else f", standard error {error:.1f}"
    rows = [
        ("total", f"{data['total']:,.1f} core-steps{spread}"),
        (
            "utilisation",
            f"{data['utilisation']:,.1f} of {data['offered']:,.1f} offered, capacity {data['capacity']:,.1f}",
        ),
        ("delay", f"{data['delay']:,.1f} steps, charged {data['delay_charge']:,.1f}"),
        ("violation", f"{data['violation']:,.2f} core-steps above the capacity"),
        ("jobs", f"{data['started']:,.1f} started, {data['expired']:,.1f} expired of {data['jobs']:,.1f}"),
        ("expired work", f"{data['expired_core_steps']:,.1f} core-steps"),
    ]
    if data["fallbacks"]:
        rows.append(("fallback", f"the knapsack decided {data['fallbacks']:,} steps in the place of the policy"))
    number = len(played.seeds)
    episodes = f"seed {played.seeds[0]}" if number == 1 else f"mean of {number} episodes"
    return [f"{played.subject}, {played.policy}, {episodes}", "", *columns(rows)]
