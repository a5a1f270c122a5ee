"""The agent's page over 20 fleets and 10,000 VMs: how long one rendering takes and how large it is.

All times are processor time. first_ms: the first request after the start, which reads the last hour of every queue and
compiles the templates; fresh_ms: a request after a turn, with everything that changed read from the ledger and every
part rendered; again_ms: a request while nothing has happened. parts_ms: what the live stream renders after a turn, for
all its readers together. *_kb: what is sent, before any compression: the page, and the parts of one turn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.tick import run_tick
from agent.ledger import Ledger
from agent.settings import Settings
from agent.view.board import StandingBoard
from agent.view.parts import AgentParts
from agent.view.view import AgentView
from agent.web.page import Pages
from benchmarks.loaded_cloud import LoadedCloud, make_fleets
from benchmarks.report import Target, arguments, repeat, report
from benchmarks.tick import POLICIES, SEED, _ports
from collectors.intake import IntakeCounters

WARM_UP_TURNS = 12
TURNS = 8
T = TypeVar("T")


def measured(vms: int, fleets: int, directory: Path | None = None) -> dict[str, float]:
    """Return the figures of one run."""
    made = make_fleets(fleets, vms)
    chosen = [POLICIES[n % len(POLICIES)] for n in range(fleets)]
    cloud = LoadedCloud(made, vms // fleets, [level for _, level in chosen], SEED)
    store = SeriesStore(watched=made)
    with (
        tempfile.TemporaryDirectory(dir=directory) as place,
        Ledger.open(f"sqlite:///{Path(place) / 'ledger.db'}") as ledger,
    ):
        ports = _ports(made, [policy for policy, _ in chosen], cloud, store, ledger)
        board = StandingBoard(cloud.clock.now())

        def turn() -> None:
            cloud.pass_minute(store)
            board.turned(run_tick(cloud.clock.now(), ports), 0.0)

        for _ in range(WARM_UP_TURNS):
            turn()
        view = AgentView(
            AgentParts(
                settings=Settings(),
                board=board,
                ledger=ledger,
                now=cloud.clock.now,
                monotonic=cloud.clock.monotonic,
                fleets=lambda: made,
                vms=ports.aggregator.vms,
                newest_sample=store.newest_sample,
                series=lambda: len(store),
                collectors=dict,
                intake=IntakeCounters,
                aws_calls=dict,
            )
        )
        return _looked_at(view, turn)


def _looked_at(view: AgentView, turn: Callable[[], None]) -> dict[str, float]:
    pages = Pages(view)

    def overview() -> str:
        seen = pages.moment(None)
        return pages.page("live", seen=seen, fleet=None, parts=pages.parts(seen, None))

    page, first_ms = _timed(overview)
    fresh, again, streamed = [], [], []
    parts: dict[str, str] = {}
    stream = Pages(view)
    stream.parts(stream.moment(None), None)
    for _ in range(TURNS):
        turn()
        # Otherwise the version looked up a moment ago would still do.
        pages.version(within_s=0.0)
        stream.version(within_s=0.0)
        page, fresh_ms = _timed(overview)
        fresh.append(fresh_ms)
        again.append(_timed(overview)[1])
        parts, parts_ms = _timed(lambda: stream.parts(stream.moment(None), None))
        streamed.append(parts_ms)
    return {
        "first_ms": first_ms,
        "fresh_ms": sorted(fresh)[TURNS // 2],
        "again_ms": sorted(again)[TURNS // 2],
        "parts_ms": sorted(streamed)[TURNS // 2],
        "page_kb": len(page.encode()) / 1024,
        "parts_kb": sum(len(html.encode()) for html in parts.values()) / 1024,
    }


def _timed(act: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    made = act()
    return made, 1000.0 * (time.process_time() - began)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--vms", type=int, default=10_000, help="VMs in all (default 10000)")
    parser.add_argument("--fleets", type=int, default=20, help="fleets of three groups each (default 20)")
    parser.add_argument("--directory", type=Path, help="where to keep the ledger (default: the temporary directory)")
    asked = parser.parse_args(given)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    figures = repeat(lambda: measured(asked.vms, asked.fleets, asked.directory), asked.runs)
    return report(
        "page",
        figures,
        as_json=asked.json,
        packages=("jinja2", "fastapi", "sqlalchemy"),
        targets=[Target("fresh_ms", 50.0), Target("page_kb", 500.0)],
        notes={"vms": asked.vms, "fleets": asked.fleets, "decisions_in_the_ledger": WARM_UP_TURNS * asked.fleets},
    )


if __name__ == "__main__":
    sys.exit(main())
