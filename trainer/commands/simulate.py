"""`trimtab simulate autoscaling`: what a policy would have cost on a trace, without a cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, duration_text, examples, print_json
from domain.errors import BadInput
from trainer.commands import simulate_admission, simulate_oversubscription

if TYPE_CHECKING:
    from simulator.autoscaling.reference import SimulationConfig
    from trainer.autoscaling.simulate import Run

CONSTANT = "constant:"
EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Workloads:",
                "  train-text, train-fit      the published batches, read in two ways",
                "  train-rand:7               random batches from seed 7",
                "  coevolution:7              generations that wait for one another",
                "  nasa, hpc2n-2002-day-24    recorded; a wrong name lists them all",
                "  jobs.csv                   columns arrival_s, service_s and at will job_id,",
                "                             width, ram_gb",
                "  log.swf.gz:hours=24        a log; also from_s, time_scale, run_scale, thin,",
                "                             seed, width=split|cap|mold",
            )
        ),
        "\n".join(
            (
                "\b",
                "Policies:",
                "  constant:2,1,1   nothing   fixed-ramp:cores=70   random:seed=1   plan",
                "  queue-rule:horizon_s=700,idle_s=120,multi=true",
                "  threshold:high=0.75,low=0.5,periods=3   target-tracking:target=0.65",
                "  script:FILE   MODEL.onnx",
            )
        ),
        "\n".join(
            (
                "\b",
                "Worlds (--preset):",
                "  exact       the training world: prices-train, no cool-down",
                "  compat      the published simulator with its oddities",
                "  live-like   m5a prices, cool-down 300 s per type and direction, draining,",
                "              CPU read every 10 s",
                "  paper-live  m5a prices, cool-down 300 s per type: the published experiment",
            )
        ),
        examples(
            "trimtab simulate autoscaling --policy constant:1,1,1 --boot const:71",
            "trimtab simulate autoscaling --workload my.swf.gz:hours=24 --preset live-like \\",
            "    --policy queue-rule --compare threshold --plot fleet.png",
        ),
    )
)


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    simulate = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Play a policy in a simulated world: what would it have cost?",
    )
    # With a callback `autoscaling` stays a word of its own, however few worlds there are.
    simulate.callback()(lambda: None)
    simulate.command("autoscaling", epilog=EPILOG)(autoscaling)
    simulate.command("admission", epilog=simulate_admission.EPILOG)(simulate_admission.admission)
    simulate.command("oversubscription", epilog=simulate_oversubscription.EPILOG)(
        simulate_oversubscription.oversubscription
    )
    app.add_typer(simulate, name="simulate")


def autoscaling(
    workload: Annotated[str, typer.Option(metavar="NAME|FILE", help="Jobs to work off, see below.")] = "train-text",
    policy: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Who decides, see below; queue-rule where nothing is given.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="POLICY", help="Another policy on the same jobs, to set beside it; repeatable."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Actions in place of a policy, one a line: act-7 index, or change per type such as 1,0,-2; or a JSON "
            "list. With --policy constant:... on that initial fleet.",
        ),
    ] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="The world, see below.")] = "exact",
    prices: Annotated[str | None, typer.Option(metavar="train|m5a", help="Price table, else the preset's.")] = None,
    boot: Annotated[
        str | None, typer.Option(metavar="const:S|uniform:LOW,HIGH", help="Boot time, else uniform:45,97 seconds.")
    ] = None,
    cooldown: Annotated[float | None, typer.Option(metavar="SECONDS", help="Cool-down, else the preset's.")] = None,
    initial: Annotated[str | None, typer.Option(metavar="N,N,...", help="Fleet at the start, else 1,1,1.")] = None,
    limits: Annotated[str | None, typer.Option(metavar="N,N,...", help="Most VMs per type, else 10,10,10.")] = None,
    vm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,CORES,GB,PRICE", help="Your VM types in place of the preset's; repeatable."),
    ] = None,
    waiting_price: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="Price of a job waiting for an hour, else 0.036.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many minutes.", min=1)] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Any other field of the world, such as removal_mode=drain; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of boot times.", min=0)] = 0,
    steps: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a CSV with a line per minute (of --policy).")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw VMs by type with the queue: .png, .svg or .html (of --policy)."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numba|plain",
            help="Simulator: compiled or plain, the same to the last bit; auto takes the sooner done.",
        ),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Play a policy on a trace of jobs and tell what it would have cost: rent, waiting, run time, work lost.

    Nothing is rented. The same options and seed give the same figures to the last digit.
    """
    from simulator.workloads.named import workload_of
    from trainer.autoscaling.plots import draw
    from trainer.autoscaling.policies.registry import policy_of
    from trainer.autoscaling.simulate import play, write_steps
    from trainer.autoscaling.worlds import world_of
    from trainer.kit.drawing import check_plot_file

    if plot is not None:
        check_plot_file(plot)
    config = world_of(
        preset,
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
    config, text = _start_of(config, policy, script)
    trace = workload_of(workload, max(config.cores))
    policies = {named: policy_of(named) for named in [text, *(compare or ())]}
    runs: list[Run] = []
    with _progress(as_json) as told_of:
        for named, made in policies.items():
            keep = not runs and (steps is not None or plot is not None)
            runs.append(
                play(made, named, config, trace, seed, engine=engine, keep_steps=keep, told=told_of(named, trace.jobs))
            )
    if steps is not None:
        write_steps(runs[0], steps)
    if plot is not None:
        draw(runs[0], plot)
    if as_json:
        first, *others = (run.as_data() | {"preset": preset} for run in runs)
        print_json(first | ({"compared": others} if others else {}))
    else:
        _show(runs, preset)


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


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int], Callable[[int, int], None]]]:
    """Show bars of finished jobs on standard error while it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:

        def told_of(named: str, jobs: int) -> Callable[[int, int], None]:
            bar = bars.add_task(named, total=jobs)

            def told(step: int, finished: int) -> None:
                bars.update(bar, completed=finished)

            return told

        yield told_of


def _show(runs: Sequence[Run], preset: str) -> None:
    from agent.commands.output import columns, show

    first = runs[0]
    lines = [
        f"{first.trace.name}: {first.trace.jobs:,} jobs, {first.trace.work_core_s / 3600:,.1f} core-hours; world "
        f"{preset}, seed {first.seed}, engine {first.engine}",
        "",
        *columns(_right_aligned([_HEADER, *(_figures(run, first) for run in runs)])),
    ]
    lines += [
        f"  {run.policy} was cut off after {run.measures.steps:,} minutes with "
        f"{run.measures.jobs_finished:,} of {run.trace.jobs:,} jobs finished"
        for run in runs
        if run.truncated
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
        f"{figures.cost / base:.3f}" if base > 0 else "-",
        f"{figures.rent:,.2f} $",
        f"{figures.penalty:,.2f} $",
        duration_text(figures.run_time_s),
        duration_text(figures.mean_wait_s),
        duration_text(figures.p95_wait_s),
        f"{figures.utilisation:.1%}",
        f"{figures.interruptions:,}",
    )
