"""`trimtab simulate autoscaling`: what a policy would have cost on a trace, without a cloud."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.options import BootOption, CooldownOption, PricesOption, epilog

if TYPE_CHECKING:
    from simulator.autoscaling.configuration import SimulationConfig
    from trainer.autoscaling.simulate import Run

CONSTANT = "constant:"
EPILOG = epilog(
    """
Workloads:
  train-text, train-fit      the published batches, read in two ways
  train-rand:7               random batches from seed 7
  coevolution:7              generations that wait for one another
  nasa, hpc2n-2002-day-24    recorded; a wrong name lists them all
  jobs.csv                   columns arrival_s, service_s and at will job_id,
                             width, ram_gb
  log.swf.gz:hours=24        a log; also from_s, time_scale, run_scale, thin,
                             seed, width=split|cap|mold
""",
    """
Policies:
  constant:2,1,1   nothing   fixed-ramp:cores=70   random:seed=1   plan
  queue-rule:horizon_s=700,idle_s=120,multi=true
  threshold:high=0.75,low=0.5,periods=3   target-tracking:target=0.65
  script:FILE   MODEL.onnx
""",
    """
Worlds (--world NAME, or --preset NAME as before):
  exact       the training world: prices-train, no cool-down
  compat      the published simulator with its oddities
  live-like   m5a prices, cool-down 300 s per type and direction, draining,
              CPU read every 10 s
  paper-live  m5a prices, cool-down 300 s per type: the published experiment
  dry-run     live-like with three VMs of each type at most
  FILE.toml   your own, see docs/train/worlds.md
""",
    calls=(
        "trimtab simulate autoscaling --policy constant:1,1,1 --boot const:71",
        "trimtab simulate autoscaling --workload my.swf.gz:hours=24 --world my.toml \\",
        "    --policy queue-rule --compare threshold --plot fleet.png",
    ),
)


def autoscaling(
    workload: Annotated[
        list[str] | None,
        Option(metavar="NAME|FILE", help="Jobs to work off, see below; repeatable. Else train-text."),
    ] = None,
    policy: Annotated[
        str | None, Option(metavar="POLICY", help="Policy, see below; queue-rule where nothing is given.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        Option(metavar="POLICY", help="Another policy on the same jobs, to compare; repeatable."),
    ] = None,
    script: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Actions in place of a policy, one a line: act-7 index, or change per type such as 1,0,-2; or a JSON "
            "list. With --policy constant:... on that initial fleet.",
        ),
    ] = None,
    world: Annotated[
        str, Option("--world", "--preset", metavar="NAME|FILE", help="The world: a name, see below, or a FILE.toml.")
    ] = "exact",
    prices: PricesOption = None,
    boot: BootOption = None,
    cooldown: CooldownOption = None,
    initial: Annotated[str | None, Option(metavar="N,N,...", help="Fleet at the start, else the world's.")] = None,
    limits: Annotated[str | None, Option(metavar="N,N,...", help="Most VMs per type, else the world's.")] = None,
    vm: Annotated[
        list[str] | None,
        Option(metavar="NAME,CORES,GB,PRICE", help="Your VM types in place of the world's; repeatable."),
    ] = None,
    waiting_price: Annotated[
        float | None, Option(metavar="DOLLARS", help="Price of a job waiting for an hour, else the world's.")
    ] = None,
    max_steps: Annotated[int | None, Option(metavar="N", help="Minutes after which to stop.", min=1)] = None,
    setting: Annotated[
        list[str] | None,
        Option(
            "--set", metavar="FIELD=VALUE", help="Any other field of the world, such as removal_mode=drain; repeatable."
        ),
    ] = None,
    seed: Annotated[int, Option(help="Seed of boot times.", min=0)] = 0,
    steps: Annotated[
        Path | None, Option(metavar="FILE", help="Write a CSV with a line per minute (of --policy).")
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw VMs by type with the queue: .png, .svg or .html (of --policy).")
    ] = None,
    engine: Annotated[
        str,
        Option(
            metavar="auto|numba|plain",
            help="Simulator: compiled or plain, the same to the last bit; auto takes the sooner done.",
        ),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Play a policy on a trace of jobs and tell what it would have cost: rent, waiting, run time, work lost.

    Nothing is rented. The same options and seed give the same figures to the last digit.
    """
    from trainer.autoscaling.policies.registry import policy_of
    from trainer.autoscaling.simulate import draw, play, write_steps
    from trainer.autoscaling.worlds import told, traces_of, world_of
    from trainer.kit.drawing import check_plot_file
    from trainer.kit.progress import bars, counter

    if plot is not None:
        check_plot_file(plot)
    workloads = workload or ["train-text"]
    if len(workloads) > 1 and (steps is not None or plot is not None):
        raise BadInput("--workload", workloads, "give one where --steps or --plot is written")
    chosen = world_of(
        world,
        prices=prices,
        boot=boot,
        vm_types=vm or (),
        limits=limits,
        initial=initial,
        changes=setting or (),
        cooldown_s=cooldown,
        waiting_price_per_hour=waiting_price,
        max_steps=max_steps,
    )
    config, text = _start_of(chosen.config, policy, script)
    traces = traces_of(workloads, config)
    policies = {named: policy_of(told(named, chosen)) for named in [text, *(compare or ())]}
    played: list[list[Run]] = []
    with bars(as_json) as shown:
        for trace in traces:
            runs: list[Run] = []
            for named, made in policies.items():
                keep = not runs and (steps is not None or plot is not None)
                counted = counter(shown, named if len(traces) == 1 else f"{named} on {trace.name}")
                options: dict[str, Any] = {"engine": engine, "keep_steps": keep, "on_step": counted}
                runs.append(play(made, named, config, trace, seed, **options))
            played.append(runs)
    if steps is not None:
        write_steps(played[0][0], steps)
    if plot is not None:
        draw(played[0][0], plot)
    if as_json:
        found = [_as_data(runs, chosen.name) for runs in played]
        print_json(found[0] if len(found) == 1 else {"world": chosen.name, "workloads": found})
        return
    for place, runs in enumerate(played):
        if place:
            show([""])
        _show(runs, chosen.name)


def _as_data(runs: Sequence[Run], world: str) -> dict[str, Any]:
    first, *others = (run.as_data() | {"preset": world} for run in runs)
    return first | ({"compared": others} if others else {})


def _start_of(config: SimulationConfig, policy: str | None, script: Path | None) -> tuple[SimulationConfig, str]:
    """Return the world and the policy's text; a constant fleet given with a script is where the script starts."""
    from trainer.autoscaling.policies.registry import policy_of

    if script is None:
        return config, policy or "queue-rule"
    if policy in (None, "nothing", "script"):
        return config, f"script:{script}"
    if not policy.startswith(CONSTANT):
        raise BadInput("--script", str(script), "leave out --policy, or give the initial fleet as constant:N,N,...")
    return policy_of(policy).world(config), f"script:{script}"


def _show(runs: Sequence[Run], world: str) -> None:
    first = runs[0]
    lines = [
        f"{first.trace.name}: {first.trace.jobs:,} jobs, {first.trace.work_core_s / HOUR_S:,.1f} core-hours; world "
        f"{world}, seed {first.seed}, engine {first.engine}",
        "",
        *columns(_right_aligned([_HEADER, *(_figures(run, first) for run in runs)])),
    ]
    lines += [
        f"  {run.policy} was cut off after {run.measures.steps:,} minutes with "
        f"{run.measures.jobs_finished:,} of {run.trace.jobs:,} jobs finished: it is left out of the ratios"
        if run.truncated
        else f"  {run.policy} changed no VM: it is left out of the ratios"
        for run in runs
        if run.stuck
    ]
    show(lines)


def _right_aligned(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Pad all columns but the first on the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [(row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))) for row in rows]


_HEADER = ("policy", "cost", "ratio", "rent", "waiting", "run time", "mean wait", "p95 wait", "busy", "interrupted")


def _figures(run: Run, first: Run) -> tuple[str, ...]:
    figures, base = run.measures, first.measures.cost
    return (
        run.policy,
        f"{figures.cost:,.2f} $",
        f"{figures.cost / base:.3f}" if base > 0 and not (run.stuck or first.stuck) else "-",
        f"{figures.rent:,.2f} $",
        f"{figures.penalty:,.2f} $",
        duration_text(figures.run_time_s),
        duration_text(figures.mean_wait_s),
        duration_text(figures.p95_wait_s),
        f"{figures.utilisation:.1%}",
        f"{figures.interruptions:,}",
    )
