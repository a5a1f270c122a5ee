"""`trimtab train deferral`: networks that choose which deferrable jobs start in a step (OSDEC, its rivals, ours)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from trainer.commands.options import Bounds, SetOption, epilog
from trainer.commands.train import Training

if TYPE_CHECKING:
    from trainer.kit.jobs import Job

SEEDS_OF_ALL = "0-4"
_OPTIONS = ("scenario", "method", "seed")
"""Fields of the configuration with separate options."""


@dataclass(frozen=True, kw_only=True)
class TrainDeferral(Training):
    """Learn which deferrable jobs to start in the cores that on-demand work leaves free.

    The same settings and seed give the same weights. Exits with status 130 when stopped by Ctrl-C; --resume then goes
    on, bit for bit.
    """

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

    scenario: Annotated[str, "NAME[+NAME...]", "Learn on it; several take turns. See `simulate deferral --help`."] = (
        "valley"
    )
    method: Annotated[str, "NAME", "Method, see below."] = "full"
    preset: Annotated[str | None, "NAME", "imitation or paper; else imitation where there is one."] = None
    setting: SetOption = None
    every: Annotated[bool, "--all", f"Every method, as published and with imitation, seeds {SEEDS_OF_ALL}."] = False
    cpu_minutes: Annotated[float | None, "N", "CPU minutes after which a run ends; --resume continues."] = None
    report_seeds: Annotated[int, "Seeds of the report, from 0 on.", Bounds(min=2, max=100)] = 100

    def folder(self) -> Path:
        """Return the folder of the scenario."""
        return Path(".trimtab/deferral") / self.scenario

    def seeds_given(self) -> list[int]:
        """Return the seeds of --seeds, by default one, with --all SEEDS_OF_ALL."""
        from trainer.kit.jobs import seeds_of

        return seeds_of(SEEDS_OF_ALL) if self.every and not self.seeds else super().seeds_given()

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each method and seed."""
        from trainer.kit.progress import announce

        announce("train deferral: loading torch and the simulator", self.as_json)
        from trainer.deferral import configuration
        from trainer.deferral.configuration import IMITATION, PAPER, SETS, Config
        from trainer.deferral.runs import jobs_of, variants

        if self.cpu_minutes is not None and not self.cpu_minutes > 0.0:
            raise BadInput("--cpu-minutes", self.cpu_minutes, "give a number above 0")
        changes = self.changes(Config, self.setting, _OPTIONS)
        if self.every:
            if changes or self.preset is not None:
                raise BadInput("--all", "with --set or --preset", "give one or the other: --all takes both presets")
            configs = variants(self.scenario)
        else:
            usual = IMITATION if self.method in SETS and self.method != "reinforce" else PAPER
            preset = self.preset or usual
            configs = [configuration.preset(preset, method=self.method, scenario=self.scenario, **changes)]
        jobs = jobs_of(
            configs,
            self.seeds_given(),
            self.place,
            resume=self.resume,
            cpu_minutes=self.cpu_minutes,
            report_seeds=self.report_seeds,
        )
        fields = configs[0].plain() if len(configs) == 1 else {}
        return jobs, {name: value for name, value in fields.items() if name not in _OPTIONS}

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the totals of each method, and the best seed."""
        rows: list[tuple[object, ...]] = [
            ("method", "scenario", "decoding", "mean total", "± seeds", "best - knapsack")
        ]
        notes = []
        for name, found in summary["variants"].items():
            for scenario, kinds in found["reports"].items():
                for kind, one in kinds.items():
                    apart = one.get("best_against_knapsack")
                    words = "" if apart is None else f"{apart[0]:+.1f} [{apart[1]:+.1f}, {apart[2]:+.1f}]"
                    rows.append((name, scenario, kind, f"{one['mean']:.1f}", f"{one['std']:.1f}", words))
            time = f"{len(found['seeds'])} seeds, {duration_text(sum(found['cpu_s']))} of one core"
            cut = "" if all(found["complete"]) else "; ended by --cpu-minutes, --resume continues"
            model = "no model file" if found["model"] is None else str(self.place / found["model"])
            notes.append(f"{name}: {time}{cut}; best: seed {found['best']}, {model}")
        return [*columns(rows), "", *notes]
