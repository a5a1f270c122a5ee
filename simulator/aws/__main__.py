"""`python -m simulator.aws`: serve the simulated cloud until a signal; prints one line of JSON when it is ready."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from domain.clock import Clock, ScaledClock, VirtualClock, WallClock
from simulator.aws.lifecycle import Delays
from simulator.aws.process import load_parameter_store, start_in_thread
from simulator.paced_clock import FollowedClock

PARENT_CHECK_S = 0.25


def main(arguments: list[str] | None = None) -> int:
    """Run the server; returns when SIGINT or SIGTERM arrives."""
    parser = argparse.ArgumentParser(prog="python -m simulator.aws", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port on loopback; 0 picks a free one")
    parser.add_argument("--origin", type=float, help="simulated time (epoch seconds) at the wall origin; default: now")
    parser.add_argument("--wall-origin", type=float, help="wall time (epoch seconds) of the origin; default: now")
    parser.add_argument("--speed", type=float, default=1.0, help="simulated seconds per wall second")
    parser.add_argument(
        "--virtual", type=float, metavar="NOW", help="a clock that moves only through the control endpoint"
    )
    parser.add_argument(
        "--clock-file", type=Path, metavar="PATH", help="follow the clock that another process paces in this file"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launch-delay", type=_span, default=(45.0, 97.0), metavar="LOW:HIGH", help="seconds, uniform")
    parser.add_argument(
        "--terminate-delay", type=_span, default=(10.0, 20.0), metavar="LOW:HIGH", help="seconds, uniform"
    )
    parser.add_argument(
        "--health-check-delay", type=float, default=60.0, help="seconds until a vanished machine is noticed"
    )
    parser.add_argument("--retry-delay", type=float, default=60.0, help="seconds until a refused launch is tried again")
    parser.add_argument("--zone-rebalance", action="store_true", help="let groups even out their zones by themselves")
    parser.add_argument("--ready-file", type=Path, help="also write the ready line here")
    parser.add_argument("--parent", type=int, metavar="PID", help="stop when this process, which started us, has ended")
    given = parser.parse_args(arguments)
    try:
        clock = _clock(given)
    except (OSError, ValueError) as problem:
        parser.error(str(problem))
    delays = Delays(
        launch_s=given.launch_delay,
        terminate_s=given.terminate_delay,
        health_check_s=given.health_check_delay,
        retry_s=given.retry_delay,
    )
    stopping = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, frame: stopping.set())
    running = start_in_thread(
        clock, seed=given.seed, port=given.port, delays=delays, zone_rebalance=given.zone_rebalance
    )
    load_parameter_store()
    ready = json.dumps({"endpoint": running.endpoint, "pid": os.getpid()})
    if given.ready_file is not None:
        given.ready_file.write_text(ready + "\n", encoding="utf-8")
    sys.stdout.write(ready + "\n")
    sys.stdout.flush()
    while not stopping.wait(PARENT_CHECK_S):
        if given.parent is not None and os.getppid() != given.parent:
            break
    running.stop()
    return 0


def _clock(given: argparse.Namespace) -> Clock:
    scaled = given.origin is not None or given.wall_origin is not None or given.speed != 1.0
    if given.clock_file is not None:
        if scaled or given.virtual is not None:
            raise ValueError("--clock-file gives the time: leave out --origin, --wall-origin, --speed and --virtual")
        return FollowedClock(given.clock_file)
    if given.virtual is not None:
        return VirtualClock(given.virtual)
    if not scaled:
        return WallClock()
    wall_origin = time.time() if given.wall_origin is None else given.wall_origin
    return ScaledClock(wall_origin if given.origin is None else given.origin, wall_origin, given.speed)


def _span(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        span = float(low), float(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not LOW:HIGH in seconds, such as 45:97") from None
    if not 0.0 <= span[0] <= span[1]:
        raise argparse.ArgumentTypeError(f"{text}: the low end must not be negative or above the high end")
    return span


if __name__ == "__main__":
    raise SystemExit(main())
