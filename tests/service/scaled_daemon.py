"""`trimtab run` on a clock that runs faster: `python -m tests.service.scaled_daemon ORIGIN WALL_ORIGIN SPEED`."""

from __future__ import annotations

import os
import sys

from agent.commands.run import serve
from domain.clock import ScaledClock

if __name__ == "__main__":
    origin, wall_origin, speed = map(float, sys.argv[1:])
    serve(os.environ, ScaledClock(origin, wall_origin, speed))
