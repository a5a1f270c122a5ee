"""Admission: how long a decision takes with 1,000 and 10,000 deployments inside, and what each of them weighs.

cached_p99_ms: a decision when no future is out of date, the newcomer's size being one that was seen before; up to the
record, without writing it. full_p99_ms: the same with every future computed anew by the moments `ab`. durable_p99_ms:
a cached one with its record on disk, as its client waits for it. cached_10k_p99_ms, full_10k_ms: with 10,000 inside.
`_cpu_ms` beside them is processor time: on a machine that others use, the clock tells how long it made us wait, and
these what the work costs. typical_p99_ms: decisions six minutes apart, with those futures renewed that are due.
bytes_per_deployment: futures and statistics of one; resident_kb_per_deployment: what the process grew by for each,
objects included. restart_ms: reading 1,000 deployments from the ledger.
ratio_vs_one_by_one: processor time of a full renewal by one call of the domain's formulas for each deployment, in the
same run, divided by full_p50_cpu_ms; it is measured on a part of them.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import structlog

from agent.admission.book import Book, seen_of
from agent.admission.cluster import AdmissionService
from agent.admission.deployments import Deployment, Stage
from agent.admission.records import AdmissionRequest
from agent.admission.rule import effective, judge, settle, undecided
from agent.admission.state import AdmissionStore, Change, ClusterCounts
from agent.ledger import Ledger
from benchmarks.report import Figures, Target, arguments, progress, repeat, report
from domain.clock import VirtualClock
from domain.rules.admission.cluster import ClusterRules, Moments, PolicyKind
from domain.rules.admission.moments import moments_of
from domain.rules.admission.population import POPULATIONS, Population, Statistics

START = 1_790_000_000.0
HOUR_S = 3600.0
PRESET = "K"
SIZES = 24
"""Newcomers' sizes come from so many."""
ONE_BY_ONE = 40


def rules(live: int) -> ClusterRules:
    """Return a cluster that is about two thirds full with so many inside."""
    return ClusterRules(
        "main", 40 * live, POPULATIONS[PRESET], PolicyKind.SECOND, kappa=2.2, moments=Moments.AB, tolerance=0.1
    )


def population(law: Population, count: int, seed: int) -> list[Deployment]:
    """Return deployments with a past: each drawn from the population, aged from an hour to two years."""
    dice = np.random.default_rng(seed)
    made: list[Deployment] = []
    while len(made) < count:
        mu = dice.gamma(law.mu_shape, 1.0 / law.mu_rate)
        lam = dice.gamma(law.lam_shape, 1.0 / law.lam_rate)
        sig = dice.gamma(law.sig_shape, 1.0 / law.sig_rate)
        # Those that are inside are those that live long: of short ones only few are met.
        age_h = float(np.exp(dice.uniform(0.0, np.log(17_520.0))))
        if mu * age_h > 30.0:
            continue
        first = 1 + int(dice.poisson(sig))
        scale_outs = int(min(dice.poisson(lam * mu**law.power * age_h), 5000))
        extra = int(dice.poisson(sig * scale_outs)) if scale_outs else 0
        cores = 1 + int(dice.poisson(min(first + extra / 4.0, 60.0)))
        made.append(
            Deployment(
                f"d{len(made):05d}",
                Stage.LIVE,
                cores,
                since=START - age_h * HOUR_S,
                last_at=START,
                deaths=int(dice.poisson(min(mu * cores * age_h, 1e6))),
                core_hours=cores * age_h,
                scale_outs=scale_outs,
                extra_cores=first - 1 + extra,
                size_draws=1 + scale_outs,
            )
        )
    return made


def percentiles(name: str, act: Callable[[int], object], times: int) -> dict[str, float]:
    """Return median and 99th percentile of the milliseconds that `act` takes, by the clock and of the processor."""
    took, worked = [], []
    for n in range(times):
        began, began_cpu = time.perf_counter(), time.thread_time()
        act(n)
        worked.append(1000.0 * (time.thread_time() - began_cpu))
        took.append(1000.0 * (time.perf_counter() - began))
    return {
        f"{name}_p50_ms": statistics.median(took),
        f"{name}_p99_ms": float(np.percentile(took, 99)),
        f"{name}_p50_cpu_ms": statistics.median(worked),
        f"{name}_p99_cpu_ms": float(np.percentile(worked, 99)),
    }


def decisions(live: int, times: int, full: int, seed: int) -> dict[str, float]:
    """Measure decisions on a book of so many: cached, typical, and with everything computed anew."""
    law, dice = rules(live), random.Random(seed)
    inside = population(law.population, live, seed)
    gc.collect()
    before = psutil.Process().memory_info().rss
    book = Book(law, inside)
    book.refresh(START)
    book.add_up()
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    for cores in range(1, SIZES + 1):
        book.newcomer(cores, ())

    force = effective(law)

    def asked(cores: int, now: float) -> None:
        settle(book, law, book.newcomer(cores, ()), now, observed=False)
        blank = undecided(book, force, AdmissionRequest(deployment_id="new", cores=cores), "main-a1", now)
        judge(book, law, blank, book.newcomer(cores, ()), observed=False)

    def cached(n: int) -> None:
        book.refresh(START)
        asked(dice.randint(1, SIZES), START)

    def renewed(n: int) -> None:
        book.refresh(START, all_of_them=True)
        asked(7, START)

    def typical(n: int) -> None:
        book.refresh(START + 360.0 * (n + 1))
        asked(7, START + 360.0 * (n + 1))

    return {
        **percentiles("cached", cached, times),
        **percentiles("full", renewed, full),
        **percentiles("typical", typical, full),
        "bytes_per_deployment": book.bytes_each(),
        "resident_kb_per_deployment": max(grown, 0) / 1024.0 / live,
    }


def one_by_one_ms(live: int, part: int, seed: int) -> float:
    """Return the processor's milliseconds of a full renewal deployment by deployment, measured on `part` of them."""
    law = rules(live)
    book = Book(law)
    inside = population(law.population, live, seed)[:: max(live // part, 1)][:part]
    seen = [seen_of(deployment, START) for deployment in inside]
    began = time.thread_time()
    for s in seen:
        of = Statistics(int(s.cores), s.deaths, s.core_hours, s.scale_outs, s.hours, 0.0, s.extra_cores, s.size_draws)
        moments_of(law.population, of, book.horizons_h, "ab")
    return 1000.0 * (time.thread_time() - began) * live / len(inside)


def durable(directory: Path, live: int, times: int, seed: int) -> dict[str, float]:
    """Measure whole admissions of a service on its ledger, and how long one takes to read what is inside."""
    law, dice = rules(live), random.Random(seed)
    clock = VirtualClock(START)
    with (
        tempfile.TemporaryDirectory(dir=directory) as place,
        Ledger.open(f"sqlite:///{place}/ledger.db") as ledger,
    ):
        AdmissionStore(ledger).write("main", 0, Change(ClusterCounts(), population(law.population, live, seed)))
        service = AdmissionService(law, AdmissionStore(ledger), clock)
        began = time.perf_counter()
        service.deployments()
        restart_ms = 1000.0 * (time.perf_counter() - began)
        service.refresh()
        for cores in range(1, SIZES + 1):
            service.answer([AdmissionRequest(deployment_id=f"warm-{cores}", cores=cores)])

        def ask(n: int) -> None:
            service.answer([AdmissionRequest(deployment_id=f"new-{n}", cores=dice.randint(1, SIZES))])

        return {**percentiles("durable", ask, times), "restart_ms": restart_ms}


def measure(directory: Path, live: int, many: int, times: int, full: int, seed: int) -> Figures:
    """Return every figure once."""
    progress(f"deciding with {live} inside")
    figures = decisions(live, times, full, seed)
    progress(f"deciding with {many} inside")
    large = decisions(many, times, max(full // 5, 1), seed + 1)
    progress("deciding on disk")
    figures |= durable(directory, live, max(times // 2, 1), seed)
    figures |= {
        "cached_10k_p99_ms": large["cached_p99_ms"],
        "cached_10k_p99_cpu_ms": large["cached_p99_cpu_ms"],
        "full_10k_ms": large["full_p50_ms"],
        "full_10k_cpu_ms": large["full_p50_cpu_ms"],
        "resident_kb_per_deployment": large["resident_kb_per_deployment"],
    }
    naive = one_by_one_ms(live, ONE_BY_ONE, seed)
    return figures | {"one_by_one_cpu_ms": naive, "ratio_vs_one_by_one": naive / figures["full_p50_cpu_ms"]}


TARGETS = (
    Target("cached_p99_ms", 2.0),
    Target("full_p99_ms", 250.0),
)


def main() -> int:
    """Measure and report."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--live", type=int, default=1000, help="deployments inside (default 1000)")
    parser.add_argument("--many", type=int, default=10_000, help="deployments inside the large one (default 10000)")
    parser.add_argument("--decisions", type=int, default=2000, help="cached decisions (default 2000)")
    parser.add_argument("--full", type=int, default=100, help="decisions with everything anew (default 100)")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    figures = repeat(
        lambda: measure(given.directory, given.live, given.many, given.decisions, given.full, 1), given.runs
    )
    return report(
        "admission_decision",
        figures,
        as_json=given.json,
        packages=("numpy", "sqlalchemy"),
        targets=TARGETS,
        notes={"preset": PRESET, "live": given.live, "many": given.many, "horizons": 32, "moments": "ab"},
    )


if __name__ == "__main__":
    sys.exit(main())
