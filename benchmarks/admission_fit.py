"""Seconds to read a table of 2 million virtual machines and to fit it, beside a plain reader in the same run.

The table is made on the spot in the format of Azure's of 2017, with ids of 64 characters as there: deployments of
preset T in a window of 30 days, one machine a core, on the trace's clock of 300 s. Processor seconds on one core. The
plain reader goes over the same file with the csv module and gathers the same columns, without checks and without
sorting them by deployment.
"""

from __future__ import annotations

import csv
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.report import Target, arguments, progress, repeat, report
from domain.rules.admission.population import POPULATIONS
from trainer.admission.fitting.fits import fit_marginal, fit_two_step
from trainer.admission.fitting.histories import histories_of, read_vm_table
from trainer.admission.fitting.lives import write_table
from trainer.admission.fitting.report import START

T = TypeVar("T")
ROWS = 2_000_000
PRESET = "T"
ROWS_PER_DEPLOYMENT = 150.0
TARGETS = (Target("read_s", 60.0), Target("fit_s", 60.0))


def plain_reader(path: Path) -> int:
    """Gather the columns with the csv module; return the rows."""
    numbers: dict[str, int] = {}
    deployment, created, deleted, cores = [], [], [], []
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.reader(lines):
            deployment.append(numbers.setdefault(row[2], len(numbers)))
            created.append(int(row[3]))
            deleted.append(int(row[4]))
            cores.append(int(row[9]))
    return len(np.array([deployment, created, deleted, cores]).T)


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Return processor seconds and what the action returns."""
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"machines in the table, about (default {ROWS:,})")
    parser.add_argument("--simulated", type=int, default=50_000, help="deployments a trial is measured on")
    given = parser.parse_args()
    law = POPULATIONS[PRESET]
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        small, path = Path(folder, "small.csv"), Path(folder, "vmtable.csv")
        progress("compiling, unless that has been done before")
        began = time.process_time()
        write_table(small, law, 50)
        warm = histories_of(read_vm_table(small))
        fit_marginal(warm, START)
        compile_s = time.process_time() - began
        progress(f"making a table of about {given.rows:,} machines")
        deployments = max(int(given.rows / ROWS_PER_DEPLOYMENT), 50)
        rows = write_table(path, law, deployments, id_characters=64)

        def one_run() -> dict[str, float]:
            progress("reading")
            parse_s, table = timed(lambda: read_vm_table(path))
            sort_s, histories = timed(lambda: histories_of(table))
            progress("fitting by empirical Bayes")
            bayes_s, fit = timed(lambda: fit_marginal(histories, START))
            progress("fitting in two steps")
            steps_s, _ = timed(lambda: fit_two_step(histories, simulated=given.simulated))
            progress("reading with the csv module")
            plain_s, plain_rows = timed(lambda: plain_reader(path))
            if plain_rows != len(table.cores):
                raise SystemExit(f"the readers differ: {plain_rows} and {len(table.cores)} rows")
            errors = np.abs(np.array(astuple(fit.population)) / np.array(astuple(law)) - 1.0)
            return {
                "read_s": parse_s + sort_s,
                "parse_s": parse_s,
                "sort_s": sort_s,
                "plain_s": plain_s,
                "ratio_vs_plain": plain_s / parse_s,
                "fit_s": parse_s + sort_s + bayes_s + steps_s,
                "empirical_bayes_s": bayes_s,
                "two_step_s": steps_s,
                "largest_error": float(errors.max()),
            }

        figures = repeat(one_run, given.runs)
        figures["rows"] = rows
        figures["table_mb"] = path.stat().st_size / 1e6
    figures["rows_per_s"] = rows / figures["read_s"]
    figures["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    figures["compile_or_load_s"] = compile_s
    notes = {"preset": PRESET, "deployments": deployments, "simulated": given.simulated}
    return report(
        "admission_fit",
        figures,
        as_json=given.json,
        packages=("numpy", "numba", "pyarrow", "scipy"),
        targets=TARGETS,
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
