"""`trimtab tune autoscaling`: the best setting of a rule for a workload, found on some seeds and reported on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import (
    BootOption,
    Bounds,
    CooldownOption,
    ForceOption,
    PricesOption,
    WorldOption,
    Written,
    command_of,
    epilog,
)
from trainer.commands.verb import Answer, ParallelVerb

if TYPE_CHECKING:
    from domain.workload import Trace
    from simulator.autoscaling.configuration import SimulationConfig
    from simulator.autoscaling.view import Measures
    from trainer.autoscaling.baselines.tuning import TuningResult

CONSTANT, BOUND = "constant", "bound"


@dataclass(frozen=True, kw_only=True)
class TuneAutoscaling(ParallelVerb):
    """Search the grid of a rule for the setting that costs least, and report it on seeds that it was not tuned on.

    Any world and any workloads will do; several workloads count by what they cost together. The setting that is printed
    can be given to `simulate` and `evaluate` as it stands, and --settings writes it as the agent reads it, with the
    command, world, workloads and seeds that it comes from.
    """

    EPILOG = epilog(
        """
Policies:
  queue-rule, queue-rule-single            any number of VMs a minute, or one (act-7)
  threshold, target-tracking               one step per group, a size per group
  fixed-ramp, fixed-ramp-single            to a fixed fleet, which stays
  constant                                 the best constant fleet, by trying all
  bound                                    a lower bound of the cost (traces to 300 minutes)
""",
        calls=(
            "trimtab tune autoscaling --workload train-fit --policy queue-rule",
            "trimtab tune autoscaling --workload coevolution --world paper-live --minute-price 0.03",
            "trimtab tune autoscaling --world my.toml --workload my.swf.gz:hours=24 --policy queue-rule \\",
            "    --settings tuned.env --fleet web",
        ),
    )

    workload: Annotated[
        list[str] | None,
        "NAME|FILE",
        "Jobs, as for `simulate`; repeatable. Else train-text. train-rand and coevolution vary by seed.",
    ] = None
    policy: Annotated[list[str] | None, "NAME", "Rule to tune, see below; repeatable. Else all rules."] = None
    seeds: Annotated[int, "N", "Seeds to tune on, from 500000 on.", Bounds(min=1)] = 8
    report_seeds: Annotated[int, "N", "Seeds to report, from 0 on.", Bounds(min=1, max=1000)] = 8
    minute_price: Annotated[
        float, "DOLLARS", "Tune rent + DOLLARS per minute of run time, not rent + waiting.", Bounds(min=0.0)
    ] = 0.0
    world: WorldOption = "exact"
    prices: PricesOption = None
    boot: BootOption = None
    cooldown: CooldownOption = None
    setting: Annotated[list[str] | None, "--set", "FIELD=VALUE", "Any other field of the world; repeatable."] = None
    settings: Annotated[
        Path | None,
        "FILE",
        "Write the best rule as settings of the agent; only the agent's parameters are tried.",
        Written(),
    ] = None
    fleet: Annotated[str, "KEY", "The fleet in the settings."] = "web"
    force: ForceOption = False
    time_limit: Annotated[float, "SECONDS", "For each bound.", Bounds(min=1.0)] = 60.0

    def run(self) -> Answer:
        """Search the grids."""
        from trainer.autoscaling.baselines.tuning import (
            TUNING_SEED,
            Objective,
            agent_grid,
            cases_of,
            settings_text,
            tune,
        )
        from trainer.autoscaling.worlds import policy_in_world, traces_by_seed, world_of
        from trainer.kit.jobs import in_turn
        from trainer.kit.progress import bars, counter

        changes = self.setting or ()
        chosen = world_of(self.world, prices=self.prices, boot=self.boot, changes=changes, cooldown_s=self.cooldown)
        config, workloads = chosen.config, self.workload or ["train-text"]
        names = _names(self.policy, config, self.settings is not None)
        traces = traces_by_seed(workloads, config)
        tuning = cases_of(config, traces, TUNING_SEED, self.seeds)
        reporting = cases_of(config, traces, 0, self.report_seeds)

        def adapted(text: str) -> str | None:
            return policy_in_world(text, chosen) if self.settings is None or agent_grid(text) else None

        def of(name: str) -> list[dict[str, Any]]:
            if name in (CONSTANT, BOUND) and self.plan:
                return []
            if name == CONSTANT:
                return [_constant(config, tuning.traces, reporting.traces, counter(shown, name))]
            if name == BOUND:
                each = reporting.traces[: len(workloads)]
                return [_bound(config, trace, single, self.time_limit) for trace in each for single in (False, True)]
            tuned = tune(
                name,
                tuning,
                reporting,
                objective=Objective(self.minute_price),
                workers=self.crew,
                on_run=counter(shown, name),
                adapt=adapted,
                widen=True,
            )
            return [_as_data(name, tuned)]

        with bars(self.as_json) as shown:
            found = [one for part in in_turn(of, names) for one in part]
        loads = zip(workloads, reporting.traces, strict=False)
        made_by = {
            "command": command_of(self.ctx, ("json", "workers", "ray", "resume", "force")),
            "world": {"name": chosen.name, "sha256": chosen.digest},
            "workloads": [{"workload": text, "sha256": trace.digest} for text, trace in loads],
            "tuning_seeds": [TUNING_SEED, TUNING_SEED + self.seeds - 1],
            "reporting_seeds": [0, self.report_seeds - 1],
        }
        lines = _lines(found)
        if self.settings is not None:
            best = min(found, key=lambda one: float(one["tuned_objective"]))
            text = settings_text(best["policy"], self.fleet, made_by, best)
            self.settings.write_text(text, encoding="utf-8", newline="\n")
            lines.append(f"written to {self.settings}: {best['policy']}")
        about: dict[str, Any] = {"workload": ",".join(workloads), "world": chosen.name}
        about |= {"minute_price": self.minute_price, "policies": found, "made_by": made_by}
        return Answer(about, lines)


def _names(policy: list[str] | None, config: SimulationConfig, for_settings: bool) -> list[str]:
    """Return the rules to tune; BadInput for one that there is not, or that has too many fleets to try."""
    from trainer.autoscaling.baselines.tuning import AGENT_RULES, GRIDS, MOST_FLEETS, count_fleets

    there = [*AGENT_RULES] if for_settings else [*GRIDS, CONSTANT, BOUND]
    fleets = count_fleets(config)
    of_fleets = [name for name in there if name == CONSTANT or name.startswith("fixed-ramp")]
    for name in policy or ():
        if name not in there:
            raise BadInput("--policy", name, f"choose from: {', '.join(there)}")
        if name in of_fleets and fleets > MOST_FLEETS:
            remedy = f"this world has {fleets:,} fixed fleets, more than {MOST_FLEETS:,}: choose another rule"
            raise BadInput("--policy", name, remedy)
    usual = [name for name in there if name not in (CONSTANT, BOUND)]
    return policy or [name for name in usual if not (name in of_fleets and fleets > MOST_FLEETS)]


def _constant(
    config: SimulationConfig,
    tuning: tuple[Trace, ...],
    reporting: tuple[Trace, ...],
    on_fleet: Callable[[int, int], None],
) -> dict[str, Any]:
    from trainer.autoscaling.baselines.tuning import best_constant
    from trainer.autoscaling.policy_names import run_many

    distinct = list({trace.digest: trace for trace in tuning}.values())
    best = best_constant(config, distinct, on_fleet)
    text = f"constant:{','.join(map(str, best.sizes))}"
    runs = run_many(text, config, reporting, range(len(reporting)))
    return {"name": CONSTANT, "policy": text, "settings": best.fleets, "tuned_objective": best.cost, **_figures(runs)}


def _bound(config: SimulationConfig, trace: Trace, single: bool, time_limit_s: float) -> dict[str, Any]:
    from trainer.autoscaling.baselines.clairvoyant import Unavailable, solve

    name = f"{BOUND}{'-single' if single else ''}"
    try:
        return {"name": name, "cost": solve(config, trace, single=single, time_limit_s=time_limit_s).bound}
    except Unavailable as reason:
        return {"name": name, "unavailable": reason.remedy}


def _as_data(name: str, tuned: TuningResult) -> dict[str, Any]:
    return {
        "name": name,
        "policy": tuned.policy,
        "settings": tuned.settings,
        "tuned_objective": tuned.objective,
        **_figures(tuned.runs),
        "finalists": [asdict(tried) for tried in tuned.finalists],
    }


def _figures(runs: tuple[Measures, ...] | list[Measures]) -> dict[str, float]:
    names = ("cost", "rent", "penalty", "run_time_s", "mean_wait_s", "utilisation", "interruptions")
    return {name: fmean(float(getattr(run, name)) for run in runs) for name in names}


def _lines(found: list[dict[str, Any]]) -> list[str]:
    rows: list[tuple[object, ...]] = [("cost", "rent", "waiting", "run time", "busy", "settings", "policy")]
    for one in found:
        if "unavailable" in one:
            rows.append(("-", "-", "-", "-", "-", "-", f"{one['name']}: {one['unavailable']}"))
        elif "policy" not in one:
            rows.append((f"{one['cost']:,.3f} $", "-", "-", "-", "-", "-", f"{one['name']}: no policy costs less"))
        else:
            money = (f"{one[key]:,.3f} $" for key in ("cost", "rent", "penalty"))
            minutes, busy = f"{one['run_time_s'] / 60:,.1f} min", f"{one['utilisation']:.1%}"
            rows.append((*money, minutes, busy, one["settings"], one["policy"]))
    return columns(rows)
