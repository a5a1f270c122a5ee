"""The trainer's verbs, added to the program by the entry point `trimtab.commands`.

Every verb takes a decision: `trimtab VERB DECISION`, by a row with both names (see `trainer.commands.verb.row_of`). A
command loads what it needs when it runs. A verb that a decision does not take is in ABSENT of the decision's package,
with its remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

import typer

from agent.settings.plug_ins import DECISIONS, installed
from domain.errors import BadInput
from domain.subject import QUEUE_RULE
from trainer.commands import (
    admission_population,
    approve,
    learn_all,
    promote_queue_rule,
    self_tune,
    trace,
    train_autoscaling,
)
from trainer.commands.verb import Verb, add, row_of

VERBS: Mapping[str, str] = {
    "simulate": "Play a policy in a simulated world: what would it have cost?",
    "train": "Learn a policy in the simulator, and write it as a model file.",
    "tune": "Search for the best setting of a rule; it is reported on seeds that it was not tuned on.",
    "evaluate": "Measure policies against each other on held-out traces.",
    "fit": "Fit a population of deployments to a table of virtual machines.",
    "promote": "Put a model in charge if it beats the policy in use, or go back to the one before.",
    "learn": "Run a round of learning on the record: fit, judge, report, and the gate.",
    "price": "Show the price of uncertainty.",
}
OTHERS: Mapping[str, str] = {
    "trace": "Write a trace of jobs to a file, check one, or make one of a job log or a ledger.",
    "world": "Write a world file from the record of a ledger.",
    "admission": "Admission control: the expected growth of a new deployment.",
}
"""Groups whose verbs take no decision."""
ROWS: Mapping[str, Mapping[str, type[Verb]]] = {
    "train": {"export": train_autoscaling.TrainExport},
    "fit": {"make-table": admission_population.FitMakeTable},
    "promote": {QUEUE_RULE: promote_queue_rule.PromoteQueueRule},
    "learn": {"all": learn_all.LearnAll},
    "trace": {
        "make": trace.TraceMake,
        "check": trace.TraceCheck,
        "import-swf": trace.TraceImportSwf,
        "import-csv": trace.TraceImportCsv,
        "import-requests": trace.TraceImportRequests,
        "import-usage": trace.TraceImportUsage,
        "from-ledger": trace.TraceFromLedger,
    },
    "world": {"from-ledger": trace.WorldFromLedger},
    "admission": {"moments": admission_population.AdmissionMoments},
}
"""Rows by group and name, in addition to those of the decisions."""


def rows() -> Mapping[str, Mapping[str, type[Verb]]]:
    """Return the rows of every group, by group and name."""
    decisions = installed(DECISIONS)
    found = {
        verb: {decision: row for decision in decisions if (row := row_of(verb, decision)) is not None} for verb in VERBS
    }
    return {group: {**found.get(group, {}), **ROWS.get(group, {})} for group in (*VERBS, *OTHERS)}


def absent(decision: str) -> Mapping[str, str]:
    """Return what to do in place of the verbs that a decision does not take, by verb."""
    package = f"trainer.{decision}"
    found: Mapping[str, str] = {}
    if find_spec(package) is not None:
        found = getattr(import_module(package), "ABSENT", found)
    return found


def register(app: typer.Typer) -> None:
    """Add every row, and the refusals of the verbs that a decision does not take."""
    for name, rows_of_group in rows().items():
        group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help={**VERBS, **OTHERS}[name])
        # With a callback the second word is always needed, however few rows there are.
        group.callback()(lambda: None)
        for second, row in rows_of_group.items():
            add(group, second, row)
        for decision in installed(DECISIONS) if name in VERBS else ():
            if name in absent(decision):
                remedy = f"Not for {decision}: {absent(decision)[name]}."
                group.command(decision, hidden=True, help=remedy)(_absent(name, decision))
        app.add_typer(group, name=name)
    add(app, "approve", approve.Approve)
    add(app, "self-tune", self_tune.SelfTune)


def _absent(verb: str, decision: str) -> Callable[[], None]:
    def refuse() -> None:
        raise BadInput("DECISION", decision, f"`trimtab {verb}` does not take it; {absent(decision)[verb]}")

    return refuse
