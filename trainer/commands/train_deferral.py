"""`trimtab train deferral`: networks that choose which deferrable jobs start in a step (OSDEC, its rivals, ours)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from trainer.commands.options import ConfigOption, epilog, settings_of, write_config
from trainer.commands.train_autoscaling import resumable

SEEDS_OF_ALL = "0-4"
EPILOG = epilog(
    """
Presets: imitation (learn the worth of starts by the offline optimum's prices,
then PPO that is held near it; minutes), paper (PPO from nothing, as published;
hours: 500 iterations). Methods: full (OSDEC), aux-high, aux-low, attention,
reinforce, mlp, pointer; the last three have no imitation.
""",
    """
A network scores each job. Decoded as published (prefix) jobs start in that
order until one does not fit; skip passes over it; knapsack starts the most
valuable set that fits. Weights are chosen on seeds 1,000,000 to 1,000,039 and
reported on 0 to 99, compared with the per-step knapsack, which needs no training.
""",
    """
Written to --out: per method and seed checkpoints/, curve.csv,
tensorboard/, run.json and, for a set transformer, MODEL.onnx; and summary.json.
With --all every method and seed, and --resume continues with the unfinished ones.
""",
    calls=(
        "trimtab train deferral --seeds 0-4 --out valley",
        "trimtab train deferral --scenario sched_drop --method attention",
        "trimtab train deferral --preset paper --method mlp --set iterations=20",
        "trimtab train deferral --all --cpu-minutes 30 --out all --resume",
    ),
)


def deferral(
    ctx: Context,
    scenario: Annotated[
        str, Option(metavar="NAME[+NAME...]", help="Learn on it; several take turns. See `simulate deferral --help`.")
    ] = "valley",
    method: Annotated[str, Option(metavar="NAME", help="Method, see below.")] = "full",
    preset: Annotated[
        str | None, Option(metavar="NAME", help="imitation or paper; else imitation where there is one.")
    ] = None,
    setting: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="Any other setting; repeatable.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Every method, as published and with imitation.")] = False,
    seed: Annotated[int, Option(min=0, help="Seed of the network and the exploration.")] = 0,
    seeds: Annotated[
        str | None, Option(metavar="LIST", help=f"Several, such as 0-4: a run each; with --all {SEEDS_OF_ALL}.")
    ] = None,
    cpu_minutes: Annotated[
        float | None,
        Option("--cpu-minutes", metavar="N", help="CPU minutes after which a run ends; --resume continues."),
    ] = None,
    report_seeds: Annotated[
        int, Option("--report-seeds", min=2, max=100, help="Seeds of the report, from 0 on.")
    ] = 100,
    resume: Annotated[bool, Option("--resume", help="Continue the runs in --out.")] = False,
    at_once: Annotated[int, Option("--at-once", min=1, help="Runs at once, of one thread each.")] = 1,
    ray: Annotated[str | None, Option(metavar="local|HOST:PORT", help="Spread the runs over a Ray cluster.")] = None,
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where to write; else .trimtab/deferral/SCENARIO.")
    ] = None,
    config_file: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn which deferrable jobs to start in the cores that on-demand work leaves free.

    The same settings and seed give the same weights. Exits with status 130 when stopped by Ctrl-C; --resume then goes
    on, bit for bit.
    """
    from trainer.kit.progress import announce

    announce("train deferral: loading torch and the simulator", as_json)
    from trainer.deferral import configuration
    from trainer.deferral.configuration import IMITATION, PAPER, SETS, Config
    from trainer.deferral.runs import jobs_of, train_all, variants
    from trainer.kit.fields import changes_of, pairs_of
    from trainer.kit.jobs import seeds_of

    if cpu_minutes is not None and not cpu_minutes > 0.0:
        raise BadInput("--cpu-minutes", cpu_minutes, "give a number above 0")
    changes = changes_of("--set", Config, pairs_of("--set", settings_of(ctx, setting)))
    for field in ("scenario", "method", "seed"):
        if field in changes:
            raise BadInput("--set", field, f"it is an option, --{field}")
    if every:
        if changes or preset is not None:
            raise BadInput("--all", "with --set or --preset", "give one or the other: --all takes both presets")
        configs = variants(scenario)
    else:
        usual = IMITATION if method in SETS and method != "reinforce" else PAPER
        configs = [configuration.preset(preset or usual, method=method, scenario=scenario, **changes)]
    place = out or Path(".trimtab/deferral") / scenario
    if place.exists() and not place.is_dir():
        raise BadInput("--out", str(place), "name a folder")
    place.mkdir(parents=True, exist_ok=True)
    given = seeds_of(seeds or SEEDS_OF_ALL) if seeds or every else [seed]
    jobs = jobs_of(configs, given, place, resume=resume, cpu_minutes=cpu_minutes, report_seeds=report_seeds)
    fields = configs[0].plain() if len(configs) == 1 else {}
    write_config(
        ctx, place, {name: value for name, value in fields.items() if name not in ("scenario", "method", "seed")}
    )
    with resumable(place):
        summary = train_all(jobs, place, at_once=at_once, ray=ray, silent=as_json)
    if as_json:
        print_json({"directory": str(place), **summary})
    else:
        _show(summary, place)


def _show(summary: dict[str, Any], place: Path) -> None:
    rows: list[tuple[object, ...]] = [("method", "scenario", "decoding", "mean total", "± seeds", "best - knapsack")]
    notes = []
    for name, found in summary["variants"].items():
        for scenario, kinds in found["reports"].items():
            for kind, one in kinds.items():
                apart = one.get("best_against_knapsack")
                words = "" if apart is None else f"{apart[0]:+.1f} [{apart[1]:+.1f}, {apart[2]:+.1f}]"
                rows.append((name, scenario, kind, f"{one['mean']:.1f}", f"{one['std']:.1f}", words))
        time = f"{len(found['seeds'])} seeds, {duration_text(sum(found['cpu_s']))} of one core"
        cut = "" if all(found["complete"]) else "; ended by --cpu-minutes, --resume continues"
        model = "no model file" if found["model"] is None else str(place / found["model"])
        notes.append(f"{name}: {time}{cut}; best: seed {found['best']}, {model}")
    show([*columns(rows), "", *notes])
