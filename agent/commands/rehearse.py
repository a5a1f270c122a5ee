"""`trimtab rehearse`: the real loop against a simulated cloud in virtual time, days of jobs in seconds.

`trimtab rehearse-learning`: 36 such hours, with `trimtab learn` and `trimtab self-tune` on their ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, ModelsOption, app, examples, models_directory, print_json, show
from domain.errors import BadInput
from domain.units import HOURS_PER_DAY

if TYPE_CHECKING:
    from agent.rehearsal.learning import Results
    from agent.rehearsal.virtual_time import RehearsalResult

LONGEST_HOURS = 366.0 * HOURS_PER_DAY


@app.command(
    "rehearse",
    epilog=examples(
        "trimtab rehearse --workload train-text --policy queue-rule --rails paper",
        "trimtab rehearse --workload jobs.csv --policy model:MODEL.onnx --hours 24 --json",
        "trimtab rehearse --world my.toml --workload my.swf.gz:hours=24 --workload nasa",
    ),
)
def rehearse(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Jobs: train-text, train-fit, train-rand:SEED, nasa..., or CSV or SWF; repeatable. Else train-text.",
        ),
    ] = None,
    world: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="The fleet and its cloud: exact, live-like, ..., or a FILE.toml."),
    ] = "exact",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[:p=v,...]", help="Policy: a rule, learned, a bundled model such as scorer, or model:FILE."
        ),
    ] = "queue-rule",
    rails: Annotated[
        str, typer.Option(metavar="NAME", help="default: the agent's own; paper: bounds, minimum and cool-down only.")
    ] = "default",
    cooldown: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Cool-down per group and direction.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(min=0.1, max=LONGEST_HOURS, help="Hours to live; else until the last job has finished."),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="train ($0.10 per core-hour) or m5a ($0.043), else the world's."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of boot times.")] = 0,
    models: ModelsOption = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the ledger there, for explain and replay.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the loop of `trimtab run` (aggregate, decide, rails, ledger) on a simulated cloud, and tell what it cost.

    Nothing is rented and nothing waits: a minute of the fleet takes some milliseconds. Under `--rails paper` the cost
    of a rule or a network is that of `trimtab simulate autoscaling` on the same jobs and seed; that of the scorer is
    not. The default rails cost what their caution costs.
    """
    from tempfile import TemporaryDirectory

    from agent.rehearsal.virtual_time import play, world_to_rehearse

    chosen, workloads = world_to_rehearse(world, prices), workload or ["train-text"]
    if keep is not None and len(workloads) > 1:
        raise BadInput("--workload", workloads, "give one where --keep names the ledger")
    results = []
    with TemporaryDirectory(prefix="trimtab-rehearse-") as place, _progress(as_json) as on_minute:
        for number, text in enumerate(workloads):
            results.append(
                play(
                    workload=text,
                    policy=policy,
                    rails=rails,
                    cooldown_s=cooldown,
                    hours=hours,
                    world=chosen,
                    seed=seed,
                    models=models_directory(models),
                    ledger_path=keep or Path(place) / f"ledger-{number}.db",
                    on_minute=on_minute,
                )
            )
    if as_json:
        found = [result.as_data() for result in results]
        print_json(found[0] if len(found) == 1 else {"world": chosen.name, "workloads": found})
        return
    for number, result in enumerate(results):
        if number:
            show([""])
        _show(result, keep)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int, int], None]]:
    """Show a bar of finished jobs on standard error while it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        bar = bars.add_task("jobs", total=None)

        def on_minute(minutes: int, finished: int, jobs: int) -> None:
            bars.update(bar, completed=finished, total=jobs, description=f"minute {minutes}")

        yield on_minute


def _show(found: RehearsalResult, keep: Path | None) -> None:
    from agent.kernel.text import columns

    m = found.measures
    rows: list[tuple[object, ...]] = [
        ("cost", f"${m.cost:.3f}", f"rent ${m.rent:.3f}, waiting ${m.penalty:.3f}"),
        ("run time", f"{m.steps} min", f"{m.jobs_finished} jobs done, {m.interruptions} begun again"),
        ("mean wait", f"{m.mean_wait_s:.0f} s", f"95 % within {m.p95_wait_s:.0f} s"),
        ("utilisation", f"{m.utilisation:.0%}", f"at most {m.peak_cores} cores"),
        ("decisions", found.decisions, f"{found.changed} changed the fleet, rails changed {found.held}"),
    ]
    if found.stood_in:
        rows.append(("fell back", found.stood_in, "decisions in which the policy failed and a rule decided"))
    rows += [("", count, reason) for reason, count in found.events.items()]
    show([f"{found.workload} under {found.policy}, {found.rails} rails, seed {found.seed}", *columns(rows)])
    if keep is not None:
        typer.echo(f"trimtab explain last --ledger {keep}")


@app.command("rehearse-learning", epilog=examples("trimtab rehearse-learning", "trimtab rehearse-learning --keep DIR"))
def rehearse_learning(
    seed: Annotated[int, typer.Option(min=0, help="Seed of jobs and boot times.")] = 1,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep ledger, models and reports in this new folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Live 36 hours of a fleet under the default settings, on a recorded log, and learn from its ledger.

    The agent's own loop lives the hours in virtual time; the commands run in separate processes, as an agent, a timer
    or a person starts them. `trimtab learn` compares the simulator with the record. With SELF_TUNE=on `trimtab
    self-tune` puts a cheaper setting of the queue rule in use, which the agent takes up; a setting that a person
    forces is left alone, and taken back by `trimtab promote queue-rule web --rollback`. It needs the extras dry-run
    and train, and the logs of the repository: `make dry-run-learning`.
    """
    from tempfile import TemporaryDirectory

    from agent.rehearsal.learning import LearningRehearsal
    from agent.rehearsal.virtual_time import quiet_logs

    if keep is not None and keep.exists():
        raise BadInput("--keep", str(keep), "name a folder that does not exist yet")
    # Nothing of it has to outlive the process: in memory, where that is, no disk is waited for.
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="trimtab-learning-", dir=memory if memory.is_dir() else None) as place:
        folder = keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        tell = (lambda line: None) if as_json else typer.echo
        with quiet_logs():
            results = LearningRehearsal(folder, tell, seed=seed).run()
    if as_json:
        print_json(asdict(results))
    else:
        show(_closing(results))


def _closing(results: Results) -> list[str]:
    from agent.kernel.text import columns

    head = ("hours", "setting of the queue rule", "cost", "with the settings' own", "difference")
    rows: list[tuple[object, ...]] = [head]
    for part in results.parts:
        costs = (f"${part.cost:.2f}", f"${part.default_cost:.2f}", f"{part.cost / part.default_cost - 1.0:+.1%}")
        rows.append((f"{part.begin_h} to {part.end_h}", part.setting, *costs))
    steps: list[tuple[object, ...]] = [("after hour", "command", "exit status", "seconds", "result")]
    steps += [(one.after, one.name, one.status, f"{one.wall_s:.0f}", one.what) for one in results.steps]
    return [
        *columns(rows),
        *columns(steps),
        "the agent's events:",
        *(f"  {event}" for event in results.events),
        f"{results.wall_s:.0f} s",
    ]
