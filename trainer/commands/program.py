"""The trainer's verbs, added to the program by the entry point `trimtab.commands`.

Every verb takes a decision: `trimtab VERB DECISION`. The command of a pair is the function DECISION of the module
`trainer.commands.VERB_DECISION`, with its end of the help as EPILOG; those of `promote`, which are much alike, are in
one module. A command loads what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from domain.errors import BadInput
from trainer.commands import admission, approve, fit_admission, learn_all, promote, trace, train_autoscaling, world

DECISIONS = ("autoscaling", "admission", "oversubscription", "placement", "deferral")
VERBS: Mapping[str, str] = {
    "simulate": "Play a policy in a simulated world: what would it have cost?",
    "train": "Learn a policy in the simulator, and write it as a model file.",
    "tune": "Search for the best setting of a rule; it is reported on seeds that it was not tuned on.",
    "evaluate": "Measure policies against each other on held-out traces.",
    "fit": "Fit a population of deployments to a table of virtual machines.",
    "promote": "Let a model decide if it beats what decides now, or go back to the one before.",
    "learn": "Do the whole round of learning on what was recorded: fit, judge, report, and the gate.",
    "price": "Show what uncertainty costs.",
}
ABSENT: Mapping[tuple[str, str], str] = {
    ("train", "admission"): "its rules have no network: find their population by `trimtab fit admission`, and the "
    "threshold by `trimtab tune admission`",
    (
        "fit",
        "autoscaling",
    ): "it has no population: make a workload of a job log by `trimtab trace import-swf`, and "
    "find a rule's setting for it by `trimtab tune autoscaling`",
    ("fit", "oversubscription"): "the agent learns the usage of a pool from its readings: find rates for it by "
    "`trimtab tune oversubscription`",
    ("price", "autoscaling"): "rent and waiting are given by `trimtab simulate autoscaling`",
    (
        "price",
        "oversubscription",
    ): "cores saved and hot hours are given by `trimtab simulate oversubscription`",
    ("tune", "placement"): "the vector of a policy is found by `trimtab train placement`",
    ("fit", "placement"): "requests are played as they came: write them as an instance's file for "
    "`trimtab simulate placement`",
    (
        "promote",
        "placement",
    ): "the settings of the pool name its policy: give the file that `trimtab train placement` wrote",
    ("learn", "placement"): "learn from an instance's file by `trimtab train placement`",
    ("price", "placement"): "the hosts that requests cost are given by `trimtab simulate placement`",
    ("tune", "deferral"): "give the numbers of a policy with its name, such as knapsack:alpha=0.2, and compare them by "
    "`trimtab evaluate deferral`",
    ("fit", "deferral"): "`trimtab evaluate deferral` fits a forecast to the training seeds of a scenario",
    ("promote", "deferral"): "the settings of the decision name its model: give the file that `trimtab train deferral` "
    "wrote",
    ("learn", "deferral"): "learn from scenarios by `trimtab train deferral`",
    ("price", "deferral"): "what waiting jobs earn and cost is given by `trimtab simulate deferral`",
}
"""Pairs without a command, and what to do instead."""


class Verb(TyperGroup):
    """A verb; one that began without a decision is still taken for autoscaling, with a line that names the new form."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after the verb."""
        if self.name == "promote" and args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["autoscaling", *_subject_first(args)]
            typer.echo(
                f"`trimtab promote` takes decision and subject first: trimtab promote {' '.join(args)}", err=True
            )
        found: list[str] = super().parse_args(ctx, args)
        return found


def register(app: typer.Typer) -> None:
    """Add every verb with its decisions."""
    for verb, words in VERBS.items():
        group = typer.Typer(cls=Verb, no_args_is_help=True, rich_markup_mode=None, help=words)
        # With a callback a decision stays a word of its own, however few there are.
        group.callback()(lambda: None)
        for decision in DECISIONS:
            name = f"trainer.commands.{verb}_{decision}"
            if verb == "promote" and decision in promote.COMMANDS:
                command, epilog = promote.COMMANDS[decision]
                group.command(decision, epilog=epilog)(command)
            elif find_spec(name) is not None:
                module = import_module(name)
                group.command(decision, epilog=module.EPILOG)(getattr(module, decision))
            elif (verb, decision) in ABSENT:
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


def _subject_first(args: list[str]) -> list[str]:
    """Return arguments of earlier versions with the fleet, which was the option --fleet, in the first place."""
    for k, (name, equals, value) in enumerate(argument.partition("=") for argument in args):
        if name == "--fleet":
            fleet = value if equals else "".join(args[k + 1 : k + 2])
            return [fleet, *args[:k], *args[k + (1 if equals else 2) :]]
    return ["all", *args]


def _absent(verb: str, decision: str) -> Callable[[], None]:
    def refuse() -> None:
        raise BadInput("DECISION", decision, f"`trimtab {verb}` does not take it; {ABSENT[verb, decision]}")

    return refuse
