"""The page of an agent with 200 fleets: the overview after a turn, one fleet's page, and a day of one fleet in charts.

overview_ms: median over --turns of gathering and rendering the overview right after a turn, when nothing of it is kept;
overview_cpu_ms: its processor time. again_ms: the same page once more before the next turn. fleet_ms: the page of one
fleet after each turn. history_ms: the charts of all turns. overview_kb: the overview before compression;
overview_wire_kb: as a browser gets it; gzip_cpu_ms: the processor time of the compression.
The ledger is a real SQLite file; the cloud is in memory. Everything is measured in this process, in wall time but for
overview_cpu_ms, to which a target applies: beside other work on the same processors wall time says little.
"""

from __future__ import annotations

import gzip
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from agent.api.app import GZIP_LEVEL
from agent.autoscaling.history import FleetHistory, cost_chart, queue_chart, size_charts
from agent.autoscaling.report import with_fleets
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.autoscaling.view import fleet_status
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger
from agent.settings import Settings
from agent.web.page import Pages
from benchmarks.agent_host import agent_view
from benchmarks.loaded_cloud import LoadedCloud, make_fleets
from benchmarks.report import Figures, Target, arguments, repeat, report
from benchmarks.tick import make_loop
from collectors.intake import IntakeCounters
from domain.subject import Subject, fleet_subject
from domain.units import DAY_S

TARGET_MS = 100.0
TARGET_WIRE_KB = 60.0
LEVEL = 0.95
SEED = 11
POLICY = "queue-rule:job_core_s=120"


def measured(fleets: int, vms: int, turns: int, directory: Path) -> Figures:
    """Return the figures of one run."""
    made = make_fleets(fleets, vms)
    cloud, store = LoadedCloud(made, vms // fleets, [LEVEL] * fleets, SEED), SeriesStore(watched=made)
    took: dict[str, list[float]] = {"overview": [], "again": [], "fleet": []}
    cpu: list[float] = []
    with Ledger.open(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        loop = make_loop(made, [POLICY] * fleets, cloud, store, ledger)
        pages = Pages(agent_view(ledger, loop, store, cloud.clock, Settings(mode="act"), IntakeCounters(), dict))
        for turn in range(turns + 1):
            cloud.pass_minute(store)
            now = cloud.clock.now()
            pages.view.parts.board.turned(with_fleets(TurnReport(now), loop.turn(now)), 0.1)
            name = fleet_subject(made[turn % fleets].name)
            for figure, subject in (("overview", None), ("again", None), ("fleet", name)):
                begin = time.process_time()
                took[figure].append(_timed(lambda of=subject: _rendered(pages, of)))  # type: ignore[misc]
                if figure == "overview":
                    cpu.append(1000.0 * (time.process_time() - begin))
        history_ms = _timed(lambda: _history(ledger, made[0].name, cloud.clock.now()))
        page = _rendered(pages, None).encode()
    begin = time.process_time()
    packed = gzip.compress(page, GZIP_LEVEL)
    gzip_ms = 1000.0 * (time.process_time() - begin)
    # The first compiles the templates.
    rest = {figure: values[1:] for figure, values in took.items()}
    return {
        **{f"{figure}_ms": statistics.median(values) for figure, values in rest.items()},
        "overview_cpu_ms": statistics.median(cpu[1:]),
        "history_ms": history_ms,
        "overview_kb": len(page) / 1024.0,
        "overview_wire_kb": len(packed) / 1024.0,
        "gzip_cpu_ms": gzip_ms,
    }


def _rendered(pages: Pages, subject: Subject | None) -> str:
    seen = pages.moment(subject)
    return pages.draw("live", seen=seen, subject=subject, parts=pages.parts(seen))


def _history(ledger: Ledger, fleet: str, now: float) -> None:
    status = fleet_status(FleetStore(ledger), fleet, now)
    points = FleetHistory(FleetStore(ledger)).over(status, now, DAY_S)
    assert points
    begin = now - DAY_S
    _ = [queue_chart(points, now, begin), *size_charts(status, points, now, begin), cost_chart(points, now, begin)]


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return 1000.0 * (time.perf_counter() - begin)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when the target is missed."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--fleets", type=int, default=200, help="fleets of three groups each (default 200)")
    parser.add_argument("--vms", type=int, default=2000, help="VMs in all (default 2000)")
    parser.add_argument("--turns", type=int, default=10, help="turns measured per run (default 10)")
    asked = parser.parse_args(given)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    def once() -> Figures:
        with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
            return measured(asked.fleets, asked.vms, asked.turns, Path(directory))

    return report(
        "page",
        repeat(once, asked.runs),
        as_json=asked.json,
        packages=("jinja2", "sqlalchemy"),
        targets=[Target("overview_cpu_ms", TARGET_MS), Target("overview_wire_kb", TARGET_WIRE_KB)],
        notes={"fleets": asked.fleets, "vms": asked.vms, "turns": asked.turns},
    )


if __name__ == "__main__":
    raise SystemExit(main())
