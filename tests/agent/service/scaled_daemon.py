"""`trimtab run` on a clock that runs faster: `python -m tests.agent.service.scaled_daemon ORIGIN WALL_ORIGIN SPEED`."""

from __future__ import annotations

import sys

import domain.clock
from agent.commands.main import app

if __name__ == "__main__":
    origin, wall_origin, speed = map(float, sys.argv[1:])
    domain.clock.WallClock = lambda: domain.clock.ScaledClock(origin, wall_origin, speed)  # type: ignore[assignment, misc, return-value]
    app(["run"])
