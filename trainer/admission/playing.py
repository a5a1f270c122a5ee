"""A rule on a cluster's run: its figures as data, the answers of a second rule, and every event in a file."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from simulator.admission import Outcome, Rule, Run
from simulator.admission import play as play_run

COLUMNS = ("hours", "deployment", "event", "cores", "total")
"""Time since the start, number of the arrival, the event, to how many cores, and the cluster's cores after it."""
EVENTS = ("turned_away", "admitted", "core_ended", "scaled", "scale_out_refused", "shutdown")
"""Names by the simulator's numbers."""
FIRST_ROOM = 200_000
AT_ONCE = 100_000
WEIGHTS = {"posterior": "evidence", "static": "static"}
"""Words for `draw_run`'s."""


@dataclass(frozen=True, slots=True)
class Play:
    """A rule on a run, both with their texts, and a second rule that decided nothing."""

    run: Run
    policy: str
    rule: Rule
    outcome: Outcome
    other: str | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        run, outcome = self.run, self.outcome
        shares = outcome.failed_share_by_month.tolist()
        found = {
            "preset": run.cluster.name,
            "policy": self.policy,
            "seed": run.seed,
            "observations": run.observations,
            "labels": run.labels,
            "weights": next(word for word, drawn in WEIGHTS.items() if drawn == run.weights),
            "scale_outs": run.scale_outs,
            "hours": run.hours,
            "config_hash": outcome.config_hash,
            "utilisation": outcome.utilisation,
            "failures": int(outcome.failures.sum()),
            "requests": int(outcome.requests.sum()),
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
                "failed_share": [None if share != share else share for share in shares],
            },
            "by_size": {"arrivals": outcome.arrivals_by_class.tolist(), "admitted": outcome.admitted_by_class.tolist()},
            "binding": {
                f"{hours:.4g}": count
                for hours, count in zip(outcome.horizons.tolist(), outcome.binding.tolist(), strict=False)
                if count
            },
            "rule": asdict(self.rule),
            "cluster": asdict(run.cluster),
        }
        return found if self.other is None else found | {"beside": {"policy": self.other, **self._answers()}}

    def _answers(self) -> dict[str, Any]:
        refused, other = self.outcome.decisions["rule"] >= 0, self.outcome.decisions["other"] >= 0
        asked = len(refused)
        return {
            "asked": asked,
            "alike": int((refused == other).sum()),
            "alike_share": float((refused == other).mean()) if asked else None,
            "both_admit": int((~refused & ~other).sum()),
            "both_refuse": int((refused & other).sum()),
            "only_rule_refuses": int((refused & ~other).sum()),
            "only_beside_refuses": int((~refused & other).sum()),
        }


def play(run: Run, rule: Rule, *, other: Rule | None = None, log: bool = False) -> Outcome:
    """Return the outcome of a run, with every event in its log if asked; a long run is then played twice."""
    outcome = play_run(run, rule, log=FIRST_ROOM if log else 0, beside=other)
    there = outcome.events + outcome.arrivals
    return outcome if not log or there <= FIRST_ROOM else play_run(run, rule, log=there, beside=other)


def write_log(path: Path, outcome: Outcome) -> None:
    """Write the outcome's log; BadInput when the file cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            if path.suffix == ".csv":
                table.writerow(COLUMNS)
            for start in range(0, len(outcome.log), AT_ONCE):
                some = outcome.log[start : start + AT_ONCE].tolist()
                rows = [(at, number, EVENTS[kind], cores, total) for at, number, kind, cores, total in some]
                if path.suffix == ".csv":
                    table.writerows(rows)
                else:
                    file.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    except OSError as error:
        raise BadInput("--log", str(path), f"give a file that can be written: {error}") from None
