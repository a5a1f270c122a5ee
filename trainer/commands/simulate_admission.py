"""`trimtab simulate admission`: what a rule would have let into a cluster, and which promises it would have broken."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S, HOURS_PER_YEAR
from trainer.commands.options import YearsOption, epilog

if TYPE_CHECKING:
    from simulator.admission import Outcome, Rule, Run

COLUMNS = ("hours", "deployment", "event", "cores", "total")
"""Time since the start, number of the arrival, what happened, to how many cores, and the cluster's cores after it."""
EVENTS = ("turned_away", "admitted", "core_ended", "scaled", "scale_out_refused", "shutdown")
"""Names by the simulator's numbers."""
ENDINGS = (".csv", ".jsonl")
FIRST_ROOM = 200_000
AT_ONCE = 100_000
WEIGHTS = {"posterior": "evidence", "static": "static"}
"""Words for `draw_run`'s."""
EPILOG = epilog(
    """
Presets:
  T   matched to a public trace; failures are rare
  H   heavy-tailed: few deployments grow very large
  K   long-lived deployments keep growing
  cluster.toml or .json, your own: `preset = "K"` and the differences
""",
    """
Policies:
  zeroth:14000   admit below 14,000 cores now
  first:16000    admit while fewer are expected at every time to come
  second:2.5     admit while the mean and 2.5 standard deviations fit
  second:p=0.1   the same by Cantelli's bound on the risk
  gamma:1e-3     admit while a gamma law exceeds the capacity with this chance
  sgamma:1e-4    the same by a shifted gamma law, with the third moment
  budget:3e-4    admit while this share of requests is forecast to fail
  Settings after commas:
  threshold=15000 (cores, for the capacity), marginal=1 (cores),
  a=0.7 (second: factor of kappa beyond a month; its square beyond a year),
  bands=1/1/1/0.7/0.49 (second: factors for a day, week, month, year, all),
  feedback=yes (budget), moments=ab_fast|ab|na|paper, fresh=ab,
  belief=exact|conjugate, grid=log|paper, tol=0.3, dead_band=6 (cores),
  reuse=6 (hours)
""",
    calls=(
        "trimtab simulate admission --preset H --policy zeroth:14000",
        "trimtab simulate admission --preset K --policy second:3,marginal=1 \\",
        "    --observations 1 --json",
        "trimtab simulate admission --policy second:2 --beside second:2,tol=0 --years 1",
        "trimtab simulate admission --policy zeroth:15000 --years 0.1 --log events.csv",
    ),
)


def admission(
    preset: Annotated[str, Option(metavar="T|H|K|FILE", help="Cluster and population, see below.")] = "K",
    policy: Annotated[str, Option(metavar="POLICY", help="Rule that admits, see below.")] = "second:2.5",
    observations: Annotated[
        int, Option(metavar="N", help="How often each deployment was seen before it comes.", min=0)
    ] = 0,
    labels: Annotated[
        str, Option(metavar="labelled|unlabelled", help="Whether users name the kind of a deployment, one of two.")
    ] = "labelled",
    weights: Annotated[
        str,
        Option(
            metavar="posterior|static",
            help="Of the two kinds of an unlabelled deployment: from its behaviour, or one half each for ever.",
        ),
    ] = "posterior",
    scale_outs: Annotated[
        str,
        Option(
            metavar="gaps|counts",
            help="How scale-outs were seen before: waits between them, or counts in single hours.",
        ),
    ] = "gaps",
    years: YearsOption = 3.0,
    seed: Annotated[int, Option(help="Seed of the deployments and their lives.", min=0)] = 0,
    beside: Annotated[
        str | None,
        Option(
            metavar="POLICY",
            help="Ask this rule too about each arrival that fits, in the same state of the cluster; without effect.",
        ),
    ] = None,
    log: Annotated[
        Path | None, Option(metavar="FILE.csv|FILE.jsonl", help="Write each event of the run, a line each.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play a cluster that deployments ask to come into: how full it was, and how many scale-outs it refused.

    The same seed brings the same deployments whatever the policy, and the same figures to the last digit.
    """
    from simulator.admission import cluster_of, draw_run, play, rule_of
    from trainer.kit.progress import phases

    if not 0.0 < years <= 30.0:
        raise BadInput("--years", years, "give a number above 0 and up to 30")
    if weights not in WEIGHTS:
        raise BadInput("--weights", weights, f"give one of {', '.join(WEIGHTS)}")
    if log is not None:
        check_log(log)
    rule, other = rule_of(policy), None if beside is None else rule_of(beside)
    with phases(as_json) as on_phase:
        on_phase(f"playing {years:g} years of {preset} by {policy}; the first run compiles the simulator")
        run = draw_run(
            cluster_of(preset),
            seed,
            observations=observations,
            hours=years * HOURS_PER_YEAR,
            labels=labels,
            weights=WEIGHTS[weights],
            scale_outs=scale_outs,
        )
        outcome = play(run, rule, beside=other) if log is None else played_with_log(run, rule, other)
    if log is not None:
        write_log(log, outcome)
    if as_json:
        print_json(_as_data(run, policy, rule, outcome) | _beside(beside, outcome))
    else:
        _show(run, policy, outcome, beside)


def _beside(policy: str | None, outcome: Outcome) -> dict[str, Any]:
    """Return how the second rule answered, nothing when there was none."""
    if policy is None:
        return {}
    refused, other = outcome.decisions["rule"] >= 0, outcome.decisions["other"] >= 0
    asked = len(refused)
    return {
        "beside": {
            "policy": policy,
            "asked": asked,
            "alike": int((refused == other).sum()),
            "alike_share": float((refused == other).mean()) if asked else None,
            "both_admit": int((~refused & ~other).sum()),
            "both_refuse": int((refused & other).sum()),
            "only_rule_refuses": int((refused & ~other).sum()),
            "only_beside_refuses": int((~refused & other).sum()),
        }
    }


def _as_data(run: Run, policy: str, rule: Rule, outcome: Outcome) -> dict[str, Any]:
    from dataclasses import asdict

    failures, requests = int(outcome.failures.sum()), int(outcome.requests.sum())
    shares = outcome.failed_share_by_month
    return {
        "preset": run.cluster.name,
        "policy": policy,
        "seed": run.seed,
        "observations": run.observations,
        "labels": run.labels,
        "weights": next(word for word, drawn in WEIGHTS.items() if drawn == run.weights),
        "scale_outs": run.scale_outs,
        "hours": run.hours,
        "config_hash": outcome.config_hash,
        "utilisation": outcome.utilisation,
        "failures": failures,
        "requests": requests,
        "failed_share": outcome.pooled_failed_share,
        "pooled_failed_share": outcome.pooled_failed_share,
        "sla_metric": outcome.sla_metric,
        "arrivals": outcome.arrivals,
        "admitted": outcome.admitted,
        "rejected_no_room": outcome.unfit,
        "rejected_by_rule": int(outcome.binding.sum()),
        "peak_cores": outcome.peak_cores,
        "crowded_h": outcome.crowded_h,
        "live_at_end": outcome.live,
        "events": outcome.events,
        "cores_ended": outcome.deaths,
        "shutdowns": outcome.shutdowns,
        "refreshes": outcome.refreshes,
        "wall_s": outcome.wall_s,
        "by_month": {
            "utilisation": outcome.utilisation_by_month.tolist(),
            "requests": outcome.requests.tolist(),
            "failures": outcome.failures.tolist(),
            "failed_share": [None if share != share else share for share in shares.tolist()],
        },
        "by_size": {"arrivals": outcome.arrivals_by_class.tolist(), "admitted": outcome.admitted_by_class.tolist()},
        "binding": {
            f"{hours:.4g}": count
            for hours, count in zip(outcome.horizons.tolist(), outcome.binding.tolist(), strict=False)
            if count
        },
        "rule": asdict(rule),
        "cluster": asdict(run.cluster),
    }


def _show(run: Run, policy: str, outcome: Outcome, beside: str | None) -> None:
    failures, requests = int(outcome.failures.sum()), int(outcome.requests.sum())
    rows = [
        ("cores taken", f"{outcome.utilisation:.1%} of {run.cluster.capacity:,}, at most {outcome.peak_cores:,}"),
        ("scale-outs refused", f"{failures:,} of {requests:,}, by month {outcome.sla_metric:.2g}"),
        ("promised", f"at most {run.cluster.sla:g} refused"),
        ("admitted", f"{outcome.admitted:,} of {outcome.arrivals:,} deployments"),
        ("turned away", f"{int(outcome.binding.sum()):,} by the rule, {outcome.unfit:,} for want of room"),
        ("above 95 %", duration_text(outcome.crowded_h * HOUR_S)),
        ("inside at the end", f"{outcome.live:,} deployments"),
        ("events", f"{outcome.events:,} in {outcome.wall_s:.2f} s, {outcome.refreshes:,} forecasts recomputed"),
    ]
    if beside is not None:
        found = _beside(beside, outcome)["beside"]
        alike = f"{found['alike_share']:.2%} alike" if found["asked"] else "no arrival to ask about"
        rows += [
            (f"beside {beside}", f"{alike} of {found['asked']:,} asked"),
            ("", f"refused by {policy} alone {found['only_rule_refuses']:,}"),
            ("", f"refused by {beside} alone {found['only_beside_refuses']:,}"),
        ]
    heading = f"preset {run.cluster.name}, {policy}, {run.observations} observations, seed {run.seed}"
    show([f"{heading}, {run.hours / HOURS_PER_YEAR:.3g} years", "", *columns(rows)])


def check_log(path: Path) -> None:
    """Raise BadInput unless a file of events can be written there."""
    if path.suffix not in ENDINGS:
        raise BadInput("--log", str(path), f"give a file that ends in {' or '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise BadInput("--log", str(path), "give a file in a directory that exists")


def played_with_log(run: Run, rule: Rule, beside: Rule | None) -> Outcome:
    """Return the outcome of a run with every event in its log; a long run is played twice, to know how many."""
    from simulator.admission import play

    outcome = play(run, rule, log=FIRST_ROOM, beside=beside)
    there = outcome.events + outcome.arrivals
    return outcome if there <= FIRST_ROOM else play(run, rule, log=there, beside=beside)


def write_log(path: Path, outcome: Outcome) -> None:
    """Write the outcome's log; BadInput when the file cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            if path.suffix == ".csv":
                table.writerow(COLUMNS)
            for start in range(0, len(outcome.log), AT_ONCE):
                some = outcome.log[start : start + AT_ONCE]
                rows = [(at, number, EVENTS[kind], cores, total) for at, number, kind, cores, total in some.tolist()]
                if path.suffix == ".csv":
                    table.writerows(rows)
                else:
                    file.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    except OSError as error:
        raise BadInput("--log", str(path), f"give a file that can be written: {error}") from None
