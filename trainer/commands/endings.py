"""How a call of `trimtab learn` ends: an exit status for scripts, and a status beside the models for the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agent.commands.options import print_error
from domain.errors import LedgerError

if TYPE_CHECKING:
    from agent.models.rounds import Ending
    from domain.subject import Subject
    from trainer.learning.round import Round

OUT = Path("runs/learn")
"""Where the folders of rounds lie."""
REFUSED, NOT_TRUE, TOO_LITTLE, BUDGET_USED, ROLLED_BACK = 1, 3, 4, 5, 6
"""Exit statuses: of the gate, or of a probation; of a world that does not describe the fleet; of too short a record; of
the budget; of a promotion that was taken back."""
LEDGER_UNUSABLE, NOT_WRITTEN = 7, 8
"""Exit statuses of faults: of the ledger; of a file or a folder that cannot be read or written."""

STATUSES_OF_FAULTS = """\
  7  the ledger cannot be read: it is missing, damaged, or of another version
  8  a file or a folder cannot be read or written, or the disk is full
"""
"""For the help of every verb that changes which model decides."""
STATUSES_OF_GATE = f"""
Exit status:
  0  the model is the champion now (with --try: would be)
  1  the policy in use stays
  2  something given is wrong
{STATUSES_OF_FAULTS}"""
"""For the help of `trimtab promote` of every decision."""
STATUSES_OF_PROMISE = f"""
Exit status:
  1  the gate refused the challenger, or a model on probation did not keep its promise
  2  bad input
  3  the simulator does not describe the pool or the cluster
  4  too little is recorded
  5  the time of a processor is used up: give more to continue
  6  the promise was surely broken under a new champion: it was rolled back
{STATUSES_OF_FAULTS}"""
"""For the help of the rounds of pools and clusters."""


@contextmanager
def statuses_of_faults() -> Iterator[None]:
    """Turn a fault of the ledger or of the disk into its message and its exit status."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (LedgerError, OSError) as error:
        print_error(error)
        raise typer.Exit(LEDGER_UNUSABLE if isinstance(error, LedgerError) else NOT_WRITTEN) from None


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended: the outcome for the agent, a sentence, the exit status, and seconds of a processor.

    data, lines: the output, empty without data.
    """

    outcome: Ending
    sentence: str
    status: int = 0
    cpu_s: float = 0.0
    data: dict[str, Any] | None = None
    lines: Sequence[str] = ()


def with_status(
    directory: Path, subject: Subject, at_s: float, work: Callable[[], End | None], *, try_only: bool
) -> End | None:
    """Do the work, leave its end in the models directory for the agent, and return it.

    A budget that is used up, and a record from which too little can be learnt, are ends too. Work that changed nothing
    returns None, and the status of the last round stays. at_s: epoch seconds. With --try nothing is changed, the status
    of the last round neither.
    """
    from agent.models.rounds import Ending
    from trainer.learning.ledgers import NoRecord
    from trainer.learning.round import BudgetUsed, cpu_s
    from trainer.learning.windows import TooLittle
    from trainer.promotion.directory import write_round

    def left(end: End) -> None:
        if not try_only:
            # The rest of the call is short: what it took is that of its end.
            write_round(directory, subject, end.outcome, end.sentence, max(at_s, 0.0), end.cpu_s or cpu_s())

    try:
        end = work()
    except (BudgetUsed, TooLittle, NoRecord) as early:
        typer.echo(str(early), err=True)
        used = isinstance(early, BudgetUsed)
        end = End(Ending.BUDGET if used else Ending.TOO_LITTLE, str(early), BUDGET_USED if used else TOO_LITTLE)
    except BaseException as error:
        left(End(Ending.FAILED, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__))
        raise
    if end is not None:
        left(end)
    return end


def end_of_promise(work: Round, name: str) -> End:
    """Return the end of a round for a pool or a cluster, whose stages are done."""
    from agent.models.rounds import Ending
    from trainer.learning.round import GateResult, Truth

    cpu_s = work.state.cpu_s
    if "gate" not in work.state.stages:
        return End(Ending.NOT_TRUE, work.state.result(Truth).sentence, NOT_TRUE, cpu_s)
    gate = work.state.result(GateResult)
    if gate.promoted:
        return End(Ending.PROMOTED, f"the gate passed a new champion of {name}", cpu_s=cpu_s)
    if gate.on_probation:
        return End(Ending.PROBATION, f"the gate passed a model of {name}, it is on probation", cpu_s=cpu_s)
    if gate.passed is False:
        return End(Ending.REFUSED, f"the gate: {'; '.join(gate.reasons)}", REFUSED, cpu_s)
    return End(Ending.KEPT, f"the policy of {name} stays: {'; '.join(gate.reasons)}", cpu_s=cpu_s)
