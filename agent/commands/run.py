"""`trimtab run`: the daemon, until SIGTERM or SIGINT."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agent.commands.options import app, examples
from domain.errors import ConfigurationError, Mistake

if TYPE_CHECKING:
    from domain.clock import Clock

PRIVATE = 0o077
"""The umask of the agent: what it writes is for its own user."""
STOPPING = (signal.SIGTERM, signal.SIGINT)
FORCED_AFTER_S = 13.0
"""So long after the first signal the process ends, whatever still hangs; systemd and our users expect 15 s at most."""


@app.command("run", epilog=examples("trimtab run", "TRIMTAB_MODE=act trimtab run"))
def run() -> None:
    """Run the agent in the foreground: measure, decide once a minute, and act in act mode.

    Settings come from the environment (`trimtab config check --all` lists them). SIGTERM and SIGINT end it within 15
    seconds with exit status 0; what it was about to do stays recorded and is followed by the next start. A second
    signal ends it at once. SIGHUP has it look at the models directory at once. With nothing to decide it refuses.
    """
    from domain.clock import WallClock

    serve(os.environ, WallClock())


def serve(environ: Mapping[str, str], clock: Clock) -> None:
    """Run the agent that these settings describe, on this clock, until a signal ends it."""
    import structlog

    from agent.kernel.parts import kinds
    from agent.service import daemon
    from agent.service.logs import Scrubber, configure_logs, secrets_of
    from agent.service.systemd import Notifier
    from agent.settings import load_settings

    # Only this user may read ledger, models and logs, however the process was started. The socket has its own mode.
    os.umask(PRIVATE)
    settings = load_settings(environ)
    if not any(kind.decides(settings) for kind in kinds()):
        remedy = "no fleet, cluster or pool is configured: write a file of settings with `trimtab init`, then load it"
        raise ConfigurationError([Mistake("TRIMTAB_FLEETS", "(not set)", remedy)])
    configure_logs(settings.log_level, Scrubber(secrets_of(settings, environ)))
    if os.geteuid() == 0:
        structlog.get_logger(__name__).warning(
            "running_as_root", remedy="run the agent as a dedicated user, as deploy/systemd does"
        )
    stop = threading.Event()
    hangups: list[Callable[[], None]] = []
    watch_signals(stop, hangups)
    if not daemon.run(settings, clock, stop, notifier=Notifier(environ), hangups=hangups):
        leave(0)


def watch_signals(stop: threading.Event, hangups: Sequence[Callable[[], None]] | None = None) -> None:
    """Set `stop` at SIGTERM or SIGINT; end the process at the second, or when stopping takes too long.

    With `hangups`, SIGHUP calls what is in it then, instead of ending the process. Must be called in the main thread.
    Python's handlers do nothing, because one could meet the main thread inside the very lock that setting an event
    needs; the number of the signal comes through a pipe to a thread of its own.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    for number in (*STOPPING, *([] if hangups is None else [signal.SIGHUP])):
        signal.signal(number, lambda number, frame: None)

    def next_signal() -> int:
        while True:
            (number,) = reading.recv(1)
            if number in STOPPING:
                return number
            if number == signal.SIGHUP and hangups is not None:
                # In a thread of its own: what it reads may hang, and the next signal may say to stop.
                for called in hangups:
                    threading.Thread(target=called, name="hangup", daemon=True).start()

    def wait() -> None:
        # Held by this thread: a collected socket would be closed, and the signals lost.
        with reading, writing:
            next_signal()
            stop.set()
            patience = threading.Timer(FORCED_AFTER_S, leave, [0])
            patience.daemon = True
            patience.start()
            leave(128 + next_signal())

    threading.Thread(target=wait, name="signals", daemon=True).start()


def leave(status: int) -> None:
    """End the process at once, without waiting for threads: the ledger is safe at any instruction."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)
