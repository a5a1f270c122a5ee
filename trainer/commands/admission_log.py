"""The events of a simulated cluster as a file, one line each: CSV or JSON lines by the file's ending."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from domain.errors import BadInput

if TYPE_CHECKING:
    from simulator.admission import Outcome, Rule, Run

COLUMNS: Final = ("hours", "deployment", "event", "cores", "total")
"""Time since the start, number of the arrival, what happened, to how many cores, and the cluster's cores after it."""
EVENTS: Final = ("turned_away", "admitted", "core_ended", "scaled", "scale_out_refused", "shutdown")
"""Names by the simulator's numbers."""
ENDINGS: Final = (".csv", ".jsonl")
FIRST_ROOM: Final = 200_000
AT_ONCE: Final = 100_000


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
