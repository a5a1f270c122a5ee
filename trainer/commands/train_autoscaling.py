"""`trimtab train autoscaling`: learn a policy in the simulator, and write it as the file that the agent runs."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from agent.commands.options import examples
from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.commands.options import CHECKED_FOLDER, Bounds, DeviceOption, SetOption, epilog, settings_of, write_config
from trainer.commands.train import Training
from trainer.commands.train_scorer import LSTM, PPO, SCORER, refuse_others, train_scorers
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.autoscaling.ppo_lstm import PPOConfig
    from trainer.autoscaling.ppo_runs import Campaign
    from trainer.kit.jobs import Job

LIVE_LIKE = "live-like"
_OPTIONS = ("task", "seed", "workers", "device")
"""Fields of the configuration with separate options."""


@dataclass(frozen=True, kw_only=True)
class TrainAutoscaling(Training):
    """Train a recurrent policy by proximal policy optimisation, and export the best checkpoint of each run.

    With --form scorer: train a scorer of whole-fleet targets, which serves any fleet. See "Scorers" below.

    The best checkpoint is chosen on held-out episodes. Its cost is reported on others, beside that of a threshold, a
    queue rule and a constant fleet. The same settings and seed give the same model (with one worker).

    Exits with status 1 when a run fails, 130 when stopped by Ctrl-C; --resume then goes on.
    """

    EPILOG = epilog(
        """
Tasks:
  train-text, train-fit   the published batches, read in two ways
  train-rand              random batches, other ones than are reported
  coevolution-rent        the closed loop of the published experiment, for rent
                          against run time, waiting being free
  mixture                 many kinds of load, each counted alike
  FILE.toml               your own worlds, loads and shares
With --workload the task is your jobs in --world; it is written to --out.
""",
        """
Written to --out, per seed: checkpoints/, curve.csv, tensorboard/,
run.json and MODEL.onnx; for all seeds: summary.json and curves.svg.
""",
        """
Scorers (--form scorer; settings by --set, such as --set rounds=300+300
--set explore=0.15+0.05, with a share of explore for each round):
  rounds, explore         episodes of each round, and how much is tried out
  most, branch_share      minutes of an episode whose choices are compared
  networks, hidden        how many vote, and their units
  epochs, batch, rate     of the fit
  selection               fleets that the margin is chosen on
  cells                   of each network's LSTM; --preset lstm has one
They learn from exact comparisons in the simulator. Written to --out, per
seed: recipe.json, curve.csv, MODEL.onnx, run.json; a run that was stopped
continues by --resume from the lessons in samples/, with the same result.

Fine-tuning (--from with --world and --workload) continues from weights that
exist. Loads are cut into windows, days where they are long enough; the later
ones only judge. The queue rule is tuned for that world first. New weights are
used where they cost less there and that is 90 % sure; else the old ones stay.
""",
        calls=(
            "trimtab train autoscaling --task train-fit --steps 4e6",
            "trimtab train autoscaling --seeds 0-4 --out runs/fit",
            "trimtab train autoscaling --world my.toml --workload jobs.csv --preset train-fit",
            "trimtab train autoscaling --seeds 0-4 --out runs/fit --resume",
            "trimtab train autoscaling --sweep gamma=0.98,0.99 --seeds 0-2 --ray local",
            "trimtab train autoscaling --form scorer --jobs 2 --out runs/scorer",
            "trimtab train autoscaling --preset lstm --jobs 2 --out runs/lstm",
            "trimtab train autoscaling --from scorer --world my.toml --workload my.swf.gz",
        ),
    )

    form: Annotated[
        str | None,
        "ppo|scorer",
        "A recurrent policy, or a scorer for any fleet. Else scorer with --from and --preset lstm, ppo.",
    ] = None
    task: Annotated[str, "NAME|FILE", "What to learn, see below, or a FILE.toml of your own."] = "train-fit"
    preset: Annotated[
        str,
        "NAME",
        "Settings to start from: default, ppo-lstm-published (as in the paper), train-fit, train-text, "
        "coevolution-rent, lstm (a scorer with a memory that is trained).",
    ] = "default"
    steps: Annotated[str | None, "N", "Environment steps, such as 4e6."] = None
    network: Annotated[str | None, "KIND", "lstm or mlp."] = None
    hidden: Annotated[int | None, "Cells of lstm.", Bounds(min=1)] = None
    observation: Annotated[str | None, "NAME", "Observation: obs-7 or obs-v2."] = None
    actions: Annotated[str | None, "NAME", "Actions: act-7 or act-multi."] = None
    mask: Annotated[bool | None, "--mask/--no-mask", "Hide actions that would have no effect."] = None
    setting: SetOption = None
    start: Annotated[
        str | None, "--from", "scorer|lstm|FILE|RUN", "scorer: weights to begin with, for --world and --workload."
    ] = None
    world: Annotated[str | None, "NAME|FILE", "The world to train for with --workload, else live-like."] = None
    workload: Annotated[list[str] | None, "NAME|FILE", "Your jobs in that world, in place of a task; repeatable."] = (
        None
    )
    processes: Annotated[
        int, "--jobs", "N", "scorer: processes; the result does not depend on them.", Bounds(min=1)
    ] = 1
    sweep: Annotated[list[str] | None, "FIELD=V,V,...", "Try each value, with every seed; repeatable."] = None
    workers: Annotated[int, "Processes that share one run's environments.", Bounds(min=1)] = 1
    at_once: Annotated[int | None, "Runs at once; else as many as there are cores.", Bounds(min=1)] = None
    device: DeviceOption = "cpu"
    episodes: Annotated[int, "Episodes that the results are reported on.", Bounds(min=1)] = 30

    def folder(self) -> Path:
        """Return the folder of the task, or of one's own world."""
        own = self.world is not None or bool(self.workload)
        return Path(".trimtab/train") / (f"own-{Path(self.world or LIVE_LIKE).stem}" if own else Path(self.task).stem)

    def run(self) -> Answer:
        """Train in the form that is asked for."""
        from trainer.kit.jobs import Workers
        from trainer.kit.progress import announce

        announce("train autoscaling: loading torch and the simulator", self.as_json)
        from trainer.kit.device import device_of

        form = self.form or (SCORER if self.start is not None or self.preset == LSTM else PPO)
        refuse_others(self.ctx, form)
        device_of(self.device, self.ray)
        if form == PPO:
            return super().run()
        return train_scorers(
            seeds=self.seeds_given(),
            preset=self.preset,
            settings=settings_of(self.ctx, self.setting),
            start=self.start,
            world=self.world,
            workloads=self.workload or [],
            out=self.out or Path(".trimtab/train") / (LSTM if self.preset == LSTM else SCORER),
            resume=self.resume,
            device=self.device,
            workers=Workers(self.processes, self.ray),
            as_json=self.as_json,
            on_checked=lambda place, settings: write_config(self.ctx, place, settings),
        )

    @cached_property
    def campaign(self) -> Campaign:
        """The variants and their seeds; with --workload their task is written to the folder."""
        from trainer.autoscaling.ppo_runs import campaign_of

        config = self.configuration()
        if self.world is not None or self.workload:
            config = replace(config, task=self._own_task())
        _check_sight(config)
        return campaign_of(config, self.seeds_given(), self.sweep or [], self.place)

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each value of the sweep and each seed, with the costs of the baselines."""
        from trainer.autoscaling.ppo_runs import jobs_of
        from trainer.kit.progress import announce
        from trainer.kit.runs import check_directories

        check_directories(jobs_of(self.campaign, {}, self.episodes), resume=self.resume)
        announce(f"measuring the baselines on {self.episodes} episodes", self.as_json)
        jobs = jobs_of(self.campaign, _goals(self.campaign, self.episodes), self.episodes)
        return jobs, {name: value for name, value in self.configuration().plain().items() if name not in _OPTIONS}

    def train(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Learn."""
        from trainer.autoscaling.ppo_runs import HELD_OUT, conclude, run
        from trainer.kit.runs import run_all

        results = run_all(
            *(run, jobs, HELD_OUT, lambda job: job.data["config"]["total_steps"]),
            at_once=self.at_once or os.cpu_count() or 1,
            ray=self.ray,
            silent=self.as_json,
        )
        return {**conclude(self.campaign, results), "runs": results}

    def configuration(self) -> PPOConfig:
        """Return the settings: of the preset, then of --set, then of the options."""
        from trainer.autoscaling.ppo_lstm import PPOConfig
        from trainer.autoscaling.ppo_runs import configuration
        from trainer.kit.fields import changes_of

        changes = self.changes(PPOConfig, self.setting, ())
        texts = {"total_steps": ("--steps", self.steps), "network": ("--network", self.network)}
        texts |= {"observation": ("--observation", self.observation), "action_set": ("--actions", self.actions)}
        for field, (option, text) in texts.items():
            if text is not None:
                changes |= changes_of(option, PPOConfig, {field: text})
        values = {"task": self.task, "hidden": self.hidden, "masked": self.mask}
        values |= {"workers": self.workers, "device": self.device}
        changes |= {name: value for name, value in values.items() if value is not None}
        return configuration(self.preset, **changes)

    def _own_task(self) -> str:
        """Write the task of one's own jobs in a world, and return its file."""
        from trainer.autoscaling.tasks import write_task
        from trainer.autoscaling.worlds import world_of

        source, world = self.ctx.get_parameter_source("task"), self.world or LIVE_LIKE
        if source is not None and source.name == "COMMANDLINE":
            raise BadInput("--task", self.task, "leave it out with --world and --workload, which are a task")
        if not self.workload:
            raise BadInput("--world", world, "give the loads of that world too, by --workload")
        return str(write_task(world_of(world), self.workload, self.place, resume=self.resume))

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the cost of each variant, against the baselines."""
        found = []
        for variant in summary["variants"]:
            name = f"{variant['task']} {variant['variant']}".strip()
            seeds = self.campaign.seeds
            runs = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
            cost = f"${variant['mean']:.2f} an episode [{variant['low']:.2f}, {variant['high']:.2f}]"
            found.append(f"{name}, {runs}, {duration_text(variant['cpu_s'])} of one core: {cost}")
            for goal, own in variant["goals"].items():
                found.append(f"  {own['relative']:+7.1%} against {goal} at ${own['cost']:.2f}")
            best = variant["best"]
            found.append(f"  best: seed {best['seed']}, ${best['cost']:.2f}: {self.place / best['model']}")
        return found


@dataclass(frozen=True, kw_only=True)
class TrainExport(Verb):
    """Write the best policy of a checkpoint as one ONNX file, named after its content.

    The file is written once ONNX Runtime agrees with the trained network over whole episodes.
    """

    EPILOG = examples(
        "trimtab train export .trimtab/train/train-fit/seed-0 --out models",
        "trimtab train export runs/fit/seed-3/checkpoints/000000061 --json",
    )

    checkpoint: Annotated[
        Path, Argument(metavar="CHECKPOINT", help="Directory of a checkpoint, or of a run: its best one.")
    ]
    out: Annotated[Path, "DIRECTORY", "Where to write the model file.", CHECKED_FOLDER] = Path()
    episodes: Annotated[int, "Episodes that its cost is reported on.", Bounds(min=1)] = 30

    def run(self) -> Answer:
        """Export the best checkpoint."""
        from trainer.autoscaling.ppo_runs import checkpoint_of, export_checkpoint

        model, report = export_checkpoint(checkpoint_of(self.checkpoint), self.out, self.episodes)
        cost = f"cost {report.cost:.2f} [{report.low:.2f}, {report.high:.2f}], {report.episodes} episodes"
        data = {"model": model.name, "report": asdict(report), "directory": str(self.out)}
        return Answer(data, [str(model), cost])


def _check_sight(config: PPOConfig) -> None:
    """Raise BadInput for a policy that no agent could run, or that sees what a world of its task keeps back."""
    from trainer.autoscaling.tasks import task_of

    cores = task_of(config.task).world.cores
    if list(cores) != sorted(cores):
        remedy = "give the VM types in the order of their cores, as the agent has its groups; or take --form scorer"
        raise BadInput("vm_types", f"of {', '.join(map(str, cores))} cores", remedy)
    if config.observation != "obs-7" and not task_of(config.task).tells_sizes:
        remedy = "it shows the work of waiting jobs, which a world of this task hides: give obs-7, or --form scorer"
        raise BadInput("--observation", config.observation, remedy)


def _goals(campaign: Campaign, episodes: int) -> dict[str, dict[str, float]]:
    """Return what the baselines cost, per task of the campaign, on the episodes that will be reported."""
    from trainer.autoscaling.ppo_runs import baseline_costs, reported

    tasks = dict.fromkeys(variant.config.task for variant in campaign.variants)

    def on_stuck(name: str, why: str) -> None:
        typer.echo(f"{name}: {why} on the reported episodes, so it is left out of the goals", err=True)

    return {task: baseline_costs(task, reported(task, episodes), on_stuck) for task in tasks}
