"""`trimtab simulate admission`: what a rule would have let into a cluster, and which promises it would have broken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agent.kernel.text import columns, duration_text
from domain.units import HOUR_S, HOURS_PER_YEAR
from trainer.commands.options import Bounds, YearsOption, epilog
from trainer.commands.verb import Answer, Verb


@dataclass(frozen=True, kw_only=True)
class SimulateAdmission(Verb):
    """Play a cluster that deployments ask to come into: how full it was, and how many scale-outs it refused.

    The same seed brings the same deployments whatever the policy, and the same figures to the last digit.
    """

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

    preset: Annotated[str, "T|H|K|FILE", "Cluster and population, see below."] = "K"
    policy: Annotated[str, "POLICY", "Rule that admits, see below."] = "second:2.5"
    observations: Annotated[int, "N", "How often each deployment was seen before it comes.", Bounds(min=0)] = 0
    labels: Annotated[str, "labelled|unlabelled", "Whether users name the kind of a deployment, one of two."] = (
        "labelled"
    )
    weights: Annotated[
        str,
        "posterior|static",
        "Of the two kinds of an unlabelled deployment: from its behaviour, or one half each for ever.",
    ] = "posterior"
    scale_outs: Annotated[
        str, "gaps|counts", "How scale-outs were seen before: waits between them, or counts in single hours."
    ] = "gaps"
    years: YearsOption = 3.0
    seed: Annotated[int, "Seed of the deployments and their lives.", Bounds(min=0)] = 0
    beside: Annotated[
        str | None,
        "POLICY",
        "Ask this rule too about each arrival that fits, in the same state of the cluster; without effect.",
    ] = None
    log: Annotated[Path | None, "FILE.csv|FILE.jsonl", "Write each event of the run, a line each."] = None

    def run(self) -> Answer:
        """Play the cluster."""
        from simulator.admission import cluster_of, draw_run, rule_of
        from trainer.admission.playing import WEIGHTS, Played, check_log, play, write_log
        from trainer.kit.progress import phases

        if self.log is not None:
            check_log(self.log)
        rule, other = rule_of(self.policy), None if self.beside is None else rule_of(self.beside)
        about = f"playing {self.years:g} years of {self.preset} by {self.policy}"
        with phases(self.as_json) as on_phase:
            on_phase(f"{about}; the first run compiles the simulator")
            run = draw_run(
                cluster_of(self.preset),
                self.seed,
                observations=self.observations,
                hours=self.years * HOURS_PER_YEAR,
                labels=self.labels,
                weights=WEIGHTS[self.weights],
                scale_outs=self.scale_outs,
            )
            outcome = play(run, rule, other=other, log=self.log is not None)
        if self.log is not None:
            write_log(self.log, outcome)
        data = Played(run, self.policy, rule, outcome, self.beside).as_data()
        return Answer(data, _lines(data))


def _lines(data: dict[str, Any]) -> list[str]:
    cluster, hours = data["cluster"], data["hours"]
    taken = f"{data['utilisation']:.1%} of {cluster['capacity']:,}, at most {data['peak_cores']:,}"
    turned_away = f"{data['rejected_by_rule']:,} by the rule, {data['rejected_no_room']:,} for want of room"
    rows = [
        ("cores taken", taken),
        ("scale-outs refused", f"{data['failures']:,} of {data['requests']:,}, by month {data['sla_metric']:.2g}"),
        ("promised", f"at most {cluster['sla']:g} refused"),
        ("admitted", f"{data['admitted']:,} of {data['arrivals']:,} deployments"),
        ("turned away", turned_away),
        ("above 95 %", duration_text(data["crowded_h"] * HOUR_S)),
        ("inside at the end", f"{data['live_at_end']:,} deployments"),
        ("events", f"{data['events']:,} in {data['wall_s']:.2f} s, {data['refreshes']:,} forecasts recomputed"),
    ]
    if "beside" in data:
        found = data["beside"]
        alike = f"{found['alike_share']:.2%} alike" if found["asked"] else "no arrival to ask about"
        rows += [
            (f"beside {found['policy']}", f"{alike} of {found['asked']:,} asked"),
            ("", f"refused by {data['policy']} alone {found['only_rule_refuses']:,}"),
            ("", f"refused by {found['policy']} alone {found['only_beside_refuses']:,}"),
        ]
    heading = f"preset {data['preset']}, {data['policy']}, {data['observations']} observations, seed {data['seed']}"
    return [f"{heading}, {hours / HOURS_PER_YEAR:.3g} years", "", *columns(rows)]
