"""`trimtab self-tune`: the queue rule of a fleet, tuned by the fleet's own record, and watched."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from agent.commands.options import LedgerOption
from domain.errors import BadInput
from trainer.commands.endings import STATUSES_OF_FAULTS
from trainer.commands.options import AtOption, epilog
from trainer.commands.verb import Answer, ModelsVerb

if TYPE_CHECKING:
    from trainer.learning.self_tuning_turn import Turn

CPU_S, MEMORY_BYTES, NICENESS = 120, 2**30, 19
"""Limits of a call: seconds of a processor, address space, and priority."""
SPARE_S = 10
"""Seconds of a processor after CPU_S, in which the call leaves its status."""


class OutOfTime(BaseException):
    """The time of a processor is used up; no Exception, which a replay would count as a fault of the policy."""


@dataclass(frozen=True, kw_only=True)
class SelfTune(ModelsVerb):
    """Tune the queue rule of a fleet by its record, or watch the setting in use: whichever is due.

    The agent calls it once an hour for each fleet with SELF_TUNE=on or propose. The first tuning needs 24 hours of
    record, 8 of them with jobs, and 100 jobs; then it is done once a day. The record is replayed by the agent's own
    decision and rails under other horizons (up to 4 times as long or short, and a first guess by the length of the
    jobs) and idle times. A setting is proposed, or with SELF_TUNE=on put in use, where it is surely cheaper: by 3 % in
    95 % of the resamples of blocks of six hours, and by 10 % with less than three days of record; in the earlier and
    the latest part of it; and with boots 1.5 times as long. The replay must cost the recorded dollars within 25 %; a
    setting that saves less than 3 % more than the replay is off is proposed only. A setting in use is compared with
    the rule of the settings: after a loss of 1 % of a week's cost that rule decides again, and nothing is tuned for
    seven days.

    Prints one line of JSON: `did` (watched, tuned or nothing), `why`, and `outcome`.
    """

    EPILOG = epilog(
        f"\nExit status:\n  2  bad input\n{STATUSES_OF_FAULTS}",
        calls=("trimtab self-tune web --plan", "trimtab self-tune web", "trimtab approve queue-rule web"),
    )

    name: Annotated[str, Argument(metavar="FLEET", help="The key of the fleet.")]
    ledger: LedgerOption = None
    plan: Annotated[bool, "--plan", "Change nothing: tune now, due or not, and print the setting."] = False
    at: AtOption = None

    @cached_property
    def now_s(self) -> float:
        """Epoch seconds."""
        return time.time() if self.at is None else self.at

    def run(self) -> Answer:
        """Watch or tune, as is due."""
        limit_itself()
        from agent.models.directory import moment_text
        from agent.settings import load_settings
        from agent.settings.fleet import SelfTune as Mode
        from agent.settings.location import ledger_location
        from trainer.kit.files import remove_leftovers
        from trainer.learning.self_tuning_turn import NOTHING, Tuner
        from trainer.learning.self_tuning_turn import Turn as Done
        from trainer.learning.state import locked

        fleets = load_settings(os.environ).fleets
        if self.name not in fleets:
            remedy = (
                f"choose one of {', '.join(fleets)}" if fleets else "the settings have no fleet: set TRIMTAB_CONFIG"
            )
            raise BadInput("FLEET", self.name, remedy)
        fleet, source = fleets[self.name], self.ledger or ledger_location(os.environ)
        why = ""
        if fleet.self_tune is Mode.OFF and not self.plan:
            why = "SELF_TUNE is off"
        elif not fleet.follows:
            why = "the fleet has another policy, or sets HORIZON_S or IDLE_S by hand"
        if why:
            return _answer(Done(NOTHING, why))
        models = self.models
        tuner = Tuner(self.name, source, models, fleet.own_rule, fleet.self_tune is Mode.ON, self.now_s, self.plan)
        with contextlib.ExitStack() as held:
            if not self.plan:
                models.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(models.path, f"queue-rule-{self.name}", moment_text(self.now_s)))
                remove_leftovers(models.path)
            try:
                return _answer(tuner.tuned() if self.plan else tuner.turn())
            except OutOfTime:
                return _answer(tuner.out_of_time(CPU_S))

    def print(self, answer: Answer) -> None:
        """Print one line of JSON."""
        typer.echo(json.dumps(answer.data, allow_nan=False))


def limit_itself() -> None:
    """Lower the priority of this process, and bound its memory and its time of a processor: raises OutOfTime once."""

    def end(*_: object) -> None:
        # The signal comes each second until the process is ended.
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        raise OutOfTime

    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    signal.signal(signal.SIGXCPU, end)
    for limit, value in ((resource.RLIMIT_CPU, CPU_S + SPARE_S), (resource.RLIMIT_AS, MEMORY_BYTES)):
        most = resource.getrlimit(limit)[1]
        most = value if most == resource.RLIM_INFINITY else min(most, value)
        spare = min(SPARE_S, most // 10) if limit == resource.RLIMIT_CPU else 0
        resource.setrlimit(limit, (most - spare, most))


def _answer(turn: Turn) -> Answer:
    return Answer(turn.as_data)
