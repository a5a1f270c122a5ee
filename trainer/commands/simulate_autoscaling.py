"""`trimtab simulate autoscaling`: what a policy would have cost on a trace, without a cloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.options import BootOption, Bounds, CooldownOption, PricesOption, Written, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from simulator.autoscaling.configuration import SimulationConfig
    from trainer.autoscaling.simulate import Run

CONSTANT = "constant:"


@dataclass(frozen=True, kw_only=True)
class SimulateAutoscaling(Verb):
    """Play a policy on a trace of jobs and tell what it would have cost: rent, waiting, run time, work lost.

    Nothing is rented. The same options and seed give the same figures to the last digit.
    """

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
  script:FILE   scorer   lstm   ppo-lstm-published (to compare)   MODEL.onnx
""",
        """
Worlds:
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

    workload: Annotated[list[str] | None, "NAME|FILE", "Jobs to work off, see below; repeatable. Else train-text."] = (
        None
    )
    policy: Annotated[str | None, "POLICY", "Policy, see below; queue-rule where nothing is given."] = None
    compare: Annotated[list[str] | None, "POLICY", "Another policy on the same jobs, to compare; repeatable."] = None
    script: Annotated[
        Path | None,
        "FILE",
        "Actions in place of a policy, one a line: act-7 index, or change per type such as 1,0,-2; or a JSON "
        "list. With --policy constant:... on that initial fleet.",
    ] = None
    world: Annotated[str, "NAME|FILE", "The world: a name, see below, or a FILE.toml."] = "exact"
    prices: PricesOption = None
    boot: BootOption = None
    cooldown: CooldownOption = None
    initial: Annotated[str | None, "N,N,...", "Fleet at the start, else the world's."] = None
    limits: Annotated[str | None, "N,N,...", "Most VMs per type, else the world's."] = None
    vm: Annotated[list[str] | None, "NAME,CORES,GB,PRICE", "Your VM types in place of the world's; repeatable."] = None
    waiting_price: Annotated[float | None, "DOLLARS", "Price of a job waiting for an hour, else the world's."] = None
    max_steps: Annotated[int | None, "N", "Minutes after which to stop.", Bounds(min=1)] = None
    setting: Annotated[
        list[str] | None,
        "--set",
        "FIELD=VALUE",
        "Any other field of the world, such as removal_mode=drain; repeatable.",
    ] = None
    seed: Annotated[int, "Seed of boot times.", Bounds(min=0)] = 0
    steps: Annotated[Path | None, "FILE", "Write a CSV with a line per minute (of --policy).", Written()] = None
    plot: Annotated[
        Path | None,
        "FILE",
        "Draw VMs by type with the queue: .png, .svg, .pdf or .html (of --policy).",
        Written((".png", ".svg", ".pdf", ".html")),
    ] = None
    engine: Annotated[
        str, "auto|numba|plain", "Simulator: compiled or plain, the same to the last bit; auto takes the sooner done."
    ] = "auto"

    def run(self) -> Answer:
        """Play each policy on each workload."""
        from trainer.autoscaling.policy_names import policy_of
        from trainer.autoscaling.simulate import draw, play, write_steps
        from trainer.autoscaling.worlds import policy_in_world, traces_of, world_of
        from trainer.kit.progress import bars, counter

        workloads, keep = self.workload or ["train-text"], self.steps is not None or self.plot is not None
        if len(workloads) > 1 and keep:
            raise BadInput("--workload", workloads, "give one where --steps or --plot is written")
        world = world_of(
            self.world,
            prices=self.prices,
            boot=self.boot,
            vm_types=self.vm or (),
            limits=self.limits,
            initial=self.initial,
            changes=self.setting or (),
            cooldown_s=self.cooldown,
            waiting_price_per_hour=self.waiting_price,
            max_steps=self.max_steps,
        )
        config, text = _start_of(world.config, self.policy, self.script)
        traces = traces_of(workloads, config)
        policies = {named: policy_of(policy_in_world(named, world)) for named in [text, *(self.compare or ())]}
        played: list[list[Run]] = []
        with bars(self.as_json) as shown:
            for trace in traces:
                runs: list[Run] = []
                for named, made in policies.items():
                    counted = counter(shown, named if len(traces) == 1 else f"{named} on {trace.name}")
                    options: dict[str, Any] = {"engine": self.engine, "keep_steps": keep and not runs}
                    runs.append(play(made, named, config, trace, self.seed, on_step=counted, **options))
                played.append(runs)
        if self.steps is not None:
            write_steps(played[0][0], self.steps)
        if self.plot is not None:
            draw(played[0][0], self.plot)
        found = [_as_data(runs, world.name) for runs in played]
        lines = [line for runs in played for line in ("", *_lines(runs, world.name))]
        return Answer(found[0] if len(found) == 1 else {"world": world.name, "workloads": found}, lines[1:])


def _as_data(runs: Sequence[Run], world: str) -> dict[str, Any]:
    first, *others = (run.as_data() | {"world": world} for run in runs)
    return first | ({"compared": others} if others else {})


def _start_of(config: SimulationConfig, policy: str | None, script: Path | None) -> tuple[SimulationConfig, str]:
    """Return the world and the policy's text; a constant fleet given with a script is where the script starts."""
    from trainer.autoscaling.policy_names import policy_of

    if script is None:
        return config, policy or "queue-rule"
    if policy in (None, "nothing", "script"):
        return config, f"script:{script}"
    if not policy.startswith(CONSTANT):
        raise BadInput("--script", str(script), "leave out --policy, or give the initial fleet as constant:N,N,...")
    return policy_of(policy).world(config), f"script:{script}"


def _lines(runs: Sequence[Run], world: str) -> list[str]:
    first = runs[0]
    lines = [
        f"{first.trace.name}: {first.trace.jobs:,} jobs, {first.trace.work_core_s / HOUR_S:,.1f} core-hours; world "
        f"{world}, seed {first.seed}, engine {first.engine}",
        "",
        *columns(_right_aligned([_HEADER, *(_figures(run, first) for run in runs)])),
    ]
    return lines + [
        f"  {run.policy} was cut off after {run.measures.steps:,} minutes with "
        f"{run.measures.jobs_finished:,} of {run.trace.jobs:,} jobs finished: it is left out of the ratios"
        if run.truncated
        else f"  {run.policy} changed no VM: it is left out of the ratios"
        for run in runs
        if run.stuck
    ]


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
