"""`trimtab train`: learn an autoscaling policy in the simulator, and write it as the file that the agent runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import JsonOption, duration_text, examples, print_json
from trainer.commands import train_oversubscription

if TYPE_CHECKING:
    from trainer.autoscaling.campaign import Campaign
    from trainer.autoscaling.configuration import PPOConfig
    from trainer.kit.sweeps import Job

INTERRUPTED = 130
EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Tasks:",
                "  train-text, train-fit   the published batches, read in two ways",
                "  train-rand              random batches, other ones than are reported",
                "  coevolution             the closed loop of the published experiment",
                "  coevolution-rent        the same for rent against run time, waiting being free",
                "  live-like               random batches, bursts and idle hours, with a",
                "                          cool-down, draining and cloud prices: for use",
                "  curriculum              train-fit, train-text, train-rand, then a cool-down",
                "  release, release-small  many kinds of load, for the policies that ship",
            )
        ),
        "\n".join(
            (
                "\b",
                "What is written to --out, per seed: checkpoints/, curve.csv, tensorboard/,",
                "run.json and MODEL.onnx; for all seeds: summary.json and curves.svg.",
            )
        ),
        examples(
            "trimtab train autoscaling --task train-fit --steps 4e6",
            "trimtab train autoscaling --seeds 0-4 --out runs/fit",
            "trimtab train autoscaling --seeds 0-4 --out runs/fit --resume",
            "trimtab train autoscaling --sweep gamma=0.98,0.99 --seeds 0-2 --ray local",
        ),
    )
)
EXPORT_EPILOG = examples(
    "trimtab train export .trimtab/train/train-fit/seed-0 --out models",
    "trimtab train export runs/fit/seed-3/checkpoints/000000061 --json",
)


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    train = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Learn a policy in the simulator, and write it as a model file.",
    )
    train.command("autoscaling", epilog=EPILOG)(autoscaling)
    train.command("oversubscription", epilog=train_oversubscription.EPILOG)(train_oversubscription.oversubscription)
    train.command("export", epilog=EXPORT_EPILOG)(export)
    app.add_typer(train, name="train")


def autoscaling(
    task: Annotated[str, typer.Option(metavar="NAME", help="What to learn, see below.")] = "train-fit",
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Settings to start from: default, published (as in the paper), fit, text, coevolution."
        ),
    ] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, exploration and worlds.")] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Several seeds instead, such as 0-4: a run each.", show_default=False),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="N", help="Environment steps, such as 4e6.", show_default=False)
    ] = None,
    network: Annotated[str | None, typer.Option(metavar="KIND", help="lstm, gru or mlp.", show_default=False)] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Cells of lstm or gru.", show_default=False)] = None,
    observation: Annotated[
        str | None, typer.Option(metavar="NAME", help="What it sees: obs-7 or obs-v2.", show_default=False)
    ] = None,
    actions: Annotated[
        str | None, typer.Option(metavar="NAME", help="What it does: act-7 or act-multi.", show_default=False)
    ] = None,
    mask: Annotated[
        bool | None,
        typer.Option("--mask/--no-mask", help="Hide actions that would have no effect.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any other setting; repeatable.", show_default=False),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=V,V,...", help="Try each value, with every seed; repeatable.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Where to write; else .trimtab/train/TASK.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the runs in --out, exactly where they stopped.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share one run's environments.")] = 1,
    at_once: Annotated[
        int | None,
        typer.Option("--at-once", min=1, help="Runs at once; else as many as there are cores.", show_default=False),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="local|HOST:PORT", help="Spread the runs over a Ray cluster instead.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda, for the networks.")] = "cpu",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes that the results are reported on.")] = 30,
    as_json: JsonOption = False,
) -> None:
    """Train a recurrent policy by proximal policy optimisation, and export the best checkpoint of each run.

    The best checkpoint is chosen on held-out episodes. Its cost is reported on others, beside that of a threshold, a
    queue rule and a constant fleet. The same settings and seed give the same model (with one worker).

    Exits with status 1 when a run fails, 130 when stopped by Ctrl-C; --resume then goes on.
    """
    from trainer.autoscaling.campaign import campaign_of, check_directories, conclude, jobs_of
    from trainer.kit.sweeps import seeds_of

    texts = {"total_steps": steps, "network": network, "observation": observation, "action_set": actions}
    values = {"task": task, "hidden": hidden, "masked": mask, "workers": workers, "device": device}
    config = _configuration(preset, values, texts, setting or [])
    place = out or Path(".trimtab/train") / task
    campaign = campaign_of(config, seeds_of(seeds) if seeds else [seed], sweep or [], place)
    check_directories(jobs_of(campaign, _no_goals(campaign), episodes), resume=resume)
    jobs = jobs_of(campaign, _goals(campaign, episodes), episodes)
    try:
        results = _train(jobs, ray=ray, at_once=at_once, silent=as_json)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with the same command and --resume (in {place})", err=True)
        raise typer.Exit(INTERRUPTED) from None
    summary = conclude(campaign, results)
    if as_json:
        print_json({"directory": str(place), **summary, "runs": results})
    else:
        _tell(campaign, summary)


def export(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Directory of a checkpoint, or of a run: its best one.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIRECTORY", help="Where to write the model file.")] = Path(),
    episodes: Annotated[int, typer.Option(min=1, help="Episodes that its cost is reported on.")] = 30,
    as_json: JsonOption = False,
) -> None:
    """Write the best policy of a checkpoint as one ONNX file, named after its content.

    The file is written once ONNX Runtime agrees with the trained network over whole episodes.
    """
    from trainer.autoscaling.runs import checkpoint_of, export_checkpoint

    result = export_checkpoint(checkpoint_of(checkpoint), out, episodes)
    if as_json:
        print_json({**result, "directory": str(out)})
        return
    report = result["report"]
    typer.echo(str(out / result["model"]))
    typer.echo(f"cost {report['cost']:.2f} [{report['low']:.2f}, {report['high']:.2f}], {report['episodes']} episodes")


def _configuration(preset: str, values: dict[str, Any], texts: dict[str, str | None], settings: list[str]) -> PPOConfig:
    from trainer.autoscaling.configuration import changes_of, configuration
    from trainer.kit.fields import pairs_of

    changes = changes_of("--set", pairs_of("--set", settings))
    for field, text in texts.items():
        if text is not None:
            changes |= changes_of(_OPTIONS[field], {field: text})
    changes |= {name: value for name, value in values.items() if value is not None}
    return configuration(preset, **changes)


_OPTIONS = {
    "total_steps": "--steps",
    "network": "--network",
    "observation": "--observation",
    "action_set": "--actions",
}


def _no_goals(campaign: Campaign) -> dict[str, dict[str, float]]:
    return {variant.config.task: {} for variant in campaign.variants}


def _goals(campaign: Campaign, episodes: int) -> dict[str, dict[str, float]]:
    """Return what the baselines cost, per task of the campaign, on the episodes that will be reported."""
    from trainer.autoscaling.goals import baseline_costs, reported

    tasks = dict.fromkeys(variant.config.task for variant in campaign.variants)
    return {task: baseline_costs(task, reported(task, episodes)) for task in tasks}


def _train(jobs: list[Job], *, ray: str | None, at_once: int | None, silent: bool) -> list[dict[str, Any]]:
    import sys

    from trainer.autoscaling.runs import HELD_OUT, run
    from trainer.kit.progress import BAR, LINES, SILENT
    from trainer.kit.sweeps import in_processes, on_ray
    from trainer.kit.watch import Watch

    live = sys.stderr.isatty()
    if len(jobs) == 1 and ray is None:
        return [run({**jobs[0].data, "show": SILENT if silent else BAR if live else LINES})]
    marks = jobs[0].data["marks"] if len({job.data["config"]["task"] for job in jobs}) == 1 else {}
    runs = [(job.name, Path(job.data["directory"]), job.data["config"]["total_steps"]) for job in jobs]
    with Watch(runs, marks, HELD_OUT, live=live and not silent, quiet=silent) as watch:
        if ray is not None:
            return on_ray(run, jobs, ray, workers=at_once, watch=watch.look)
        return in_processes(run, jobs, at_once or os.cpu_count() or 1, watch.look)


def _tell(campaign: Campaign, summary: dict[str, Any]) -> None:
    for variant in summary["variants"]:
        name = f"{variant['task']} {variant['variant']}".strip()
        runs = f"{len(campaign.seeds)} seeds" if len(campaign.seeds) > 1 else f"seed {campaign.seeds[0]}"
        cost = f"${variant['mean']:.2f} an episode [{variant['low']:.2f}, {variant['high']:.2f}]"
        typer.echo(f"{name}, {runs}, {duration_text(variant['cpu_s'])} of one core: {cost}")
        for goal, told in variant["goals"].items():
            typer.echo(f"  {told['relative']:+7.1%} against {goal} at ${told['cost']:.2f}")
        best = variant["best"]
        typer.echo(f"  best: seed {best['seed']}, ${best['cost']:.2f}: {campaign.directory / best['model']}")
