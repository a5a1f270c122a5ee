"""The trainer's verbs, added to the program by the entry point `trimtab.commands`.

Every verb takes a decision: `trimtab VERB DECISION`. The command of a pair is the function DECISION of the module
`trainer.commands.VERB_DECISION`, with its end of the help as EPILOG. A command loads what it needs when it runs. What
to do in place of a verb that a decision does not take stands in the decision's own package, as ABSENT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

import typer

from agent.settings.plug_ins import DECISIONS, installed
from domain.errors import BadInput
from trainer.commands import admission, approve, fit_admission, learn_all, trace, train_autoscaling, world
from trainer.commands.verb import add

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


def absent(decision: str) -> Mapping[str, str]:
    """Return what to do in place of the verbs that a decision does not take, by verb."""
    package = f"trainer.{decision}"
    found: Mapping[str, str] = {}
    if find_spec(package) is not None:
        found = getattr(import_module(package), "ABSENT", found)
    return found


def register(app: typer.Typer) -> None:
    """Add every verb with its decisions."""
    for verb, words in VERBS.items():
        group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=words)
        # With a callback a decision stays a word of its own, however few there are.
        group.callback()(lambda: None)
        for decision in installed(DECISIONS):
            name = f"trainer.commands.{verb}_{decision}"
            if find_spec(name) is not None:
                module = import_module(name)
                row = getattr(module, f"{verb}_{decision}".title().replace("_", ""), None)
                if row is not None:
                    add(group, decision, row)
                else:
                    group.command(decision, epilog=module.EPILOG)(getattr(module, decision))
            elif verb in absent(decision):
                group.command(decision, hidden=True)(_absent(verb, decision))
        if verb == "train":
            group.command("export", epilog=train_autoscaling.EXPORT_EPILOG)(train_autoscaling.export)
        if verb == "fit":
            group.command("make-table", epilog=fit_admission.TABLE_EPILOG)(fit_admission.make_table)
        if verb == "learn":
            group.command("all", epilog=learn_all.EPILOG)(learn_all.all_subjects)
        app.add_typer(group, name=verb)
    trace.register(app)
    world.register(app)
    admission.register(app)
    approve.register(app)


def _absent(verb: str, decision: str) -> Callable[[], None]:
    def refuse() -> None:
        raise BadInput("DECISION", decision, f"`trimtab {verb}` does not take it; {absent(decision)[verb]}")

    return refuse
