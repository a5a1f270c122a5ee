"""`trimtab simulate deferral`: what a policy makes of deferrable jobs and the capacity that on-demand work leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import ForceOption, check_output, epilog

if TYPE_CHECKING:
    from trainer.deferral.evaluation import Subject
    from trainer.deferral.playing import Played

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


def deferral(
    scenario: Annotated[
        str | None, Option(metavar="NAME", help="Where jobs and capacity come from, see below.", show_default="valley")
    ] = None,
    world: Annotated[
        Path | None, Option(metavar="FILE", help="Parameters of a scenario of your own: a FILE.toml.")
    ] = None,
    trace: Annotated[
        str | None, Option(metavar="SCENARIO,LOG", help="Load of an oversubscription scenario, jobs of an SWF log.")
    ] = None,
    policy: Annotated[str, Option(metavar="POLICY", help="Policy that starts jobs, see below.")] = "knapsack",
    seeds: Annotated[str, Option(metavar="SEEDS", help="Episodes, such as 0-99 or 1,3,8-9.")] = "0-9",
    steps: Annotated[Path | None, Option(metavar="FILE", help="Write every step: .csv or .json.")] = None,
    plot: Annotated[Path | None, Option(metavar="FILE", help="Draw the first episode: .svg or .png.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start deferrable jobs hour by hour: work done, delay, violations, jobs that expire.

    The same options give the same figures. Every schedule passes a check that shares no code with the policies.
    """
    from trainer.deferral.playing import PICTURES, TABLES, draw, play, write_steps
    from trainer.kit.drawing import check_plot_file
    from trainer.kit.jobs import seeds_of
    from trainer.kit.progress import bars, counter

    for option, path in (("--steps", steps), ("--plot", plot)):
        if path is not None:
            check_output(path, force, option)
    if plot is not None:
        check_plot_file(plot, PICTURES)
    if steps is not None and steps.suffix.lower() not in TABLES:
        raise BadInput("--steps", str(steps), f"end the file's name with one of {', '.join(TABLES)}")
    subject, numbers = _subject(scenario, world, trace), seeds_of(seeds)
    with bars(as_json) as shown:
        played = play(subject, policy, numbers, counter(shown, policy))
    if steps is not None:
        write_steps(played, steps)
    if plot is not None:
        draw(played, plot)
    if as_json:
        print_json(played.as_data())
    else:
        _show(played)


def _subject(scenario: str | None, world: Path | None, trace: str | None) -> Subject:
    from simulator.deferral.scenarios import read_scenario, scenario_of
    from trainer.deferral.evaluation import Subject

    if sum(given is not None for given in (scenario, world, trace)) > 1:
        given = ", ".join(str(one) for one in (scenario, world, trace) if one is not None)
        raise BadInput("--scenario, --world, --trace", given, "give one of them")
    if world is not None:
        return Subject(world.name, read_scenario(world))
    if trace is not None:
        load, comma, log = trace.partition(",")
        if not (load and comma and log):
            raise BadInput("--trace", trace, "give SCENARIO,LOG such as azure_like,LOG.swf.gz")
        from trainer.deferral.evaluation import trace_subject

        return trace_subject(load, Path(log))
    name = scenario or "valley"
    return Subject(name, scenario_of(name))


def _show(played: Played) -> None:
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
    show([f"{played.subject}, {played.policy}, {episodes}", "", *columns(rows)])
