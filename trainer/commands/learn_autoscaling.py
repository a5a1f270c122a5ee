"""`trimtab learn autoscaling`: from what a fleet's ledger recorded to what decides for it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from agent.decisions.text import columns
from domain.units import HOUR_S
from trainer.commands.options import WorkersOption, epilog

if TYPE_CHECKING:
    from trainer.learning.fidelity import Fidelity
    from trainer.learning.subject import Learner
    from trainer.learning.windows import Windows

NOT_TRUE, TOO_LITTLE = 3, 4
"""Exit statuses: the world does not describe the fleet; too little is recorded."""
EPILOG = epilog(
    """
Exit status:
  1  the gate refused what was learnt
  2  bad input
  3  the world file does not describe the fleet
  4  too little is recorded
""",
    calls=(
        "trimtab learn autoscaling web --ledger /var/lib/trimtab/ledger.db --check",
        "trimtab learn autoscaling web --world my.toml --check",
    ),
)


def autoscaling(
    fleet: Annotated[str, Argument(metavar="FLEET", help="The key of the fleet.")],
    ledger: LedgerOption = None,
    world: Annotated[
        str | None,
        Option(metavar="NAME|FILE", help="The world of its simulator; else live-like, with the fleet's types."),
    ] = None,
    days: Annotated[float, Option(metavar="DAYS", min=0.1, help="How many of the last days are used.")] = 28.0,
    idle: Annotated[
        float | None,
        Option(metavar="SECONDS", min=0.0, help="The fleet's IDLE_S; else of the settings here, else the default."),
    ] = None,
    models_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of models; else that of the settings.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Cut windows and check the simulator, no more.")] = False,
    workers: WorkersOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Check whether the simulator is true to what a fleet's ledger recorded.

    The recorded minutes are cut into windows. Each is replayed in the simulator under the policy that ran, with the
    fleet's own limits: the replay must cost what was recorded, within 5 %. Where it does not, the quantity that is off
    is named: boots, lengths of jobs, or arrivals.
    """
    from trainer.kit.jobs import Pool
    from trainer.learning.fidelity import called, check_fidelity
    from trainer.learning.windows import TooLittle, windows_of

    learner = _learner(fleet, ledger, world, days, idle, models_dir)
    try:
        windows = windows_of(learner.recorded)
    except TooLittle as end:
        typer.echo(str(end), err=True)
        raise typer.Exit(TOO_LITTLE) from None
    with Pool(called, workers) as pool:
        found = check_fidelity(
            learner.loop,
            learner.config,
            windows.stretches,
            windows.replayed,
            spread=lambda work, items: pool.run([(work, item) for item in items]),
        )
    if as_json:
        print_json(_as_data(learner, windows, found))
    else:
        show(_lines(learner, windows, found))
    if not found.holds:
        raise typer.Exit(NOT_TRUE)


def _learner(
    fleet: str, ledger: str | None, world: str | None, days: float, idle: float | None, models_dir: Path | None
) -> Learner:
    from agent.autoscaling.policies.learned_models import ModelShelf
    from agent.settings.location import ledger_location, models_location
    from trainer.learning.minutes import read_recorded
    from trainer.learning.subject import idle_s_of, learner_of

    source = ledger or ledger_location(os.environ)
    recorded = read_recorded(source, fleet, days)
    shelf = ModelShelf(models_dir or models_location(os.environ))
    return learner_of(recorded, world, shelf, idle_s_of(fleet, idle, os.environ))


def _as_data(learner: Learner, windows: Windows, found: Fidelity) -> dict[str, Any]:
    each = [asdict(one) | {"off": one.off} for one in found.windows]
    return {
        "fleet": learner.fleet,
        "world": learner.world,
        "policies": dict(learner.recorded.policies),
        "left_out": learner.recorded.left_out,
        "window_hours": windows.window_s / HOUR_S,
        "earlier": len(windows.earlier),
        "held_out": len(windows.held_out),
        "fidelity": {**asdict(found), "windows": each, "off": found.off, "holds": found.holds, "named": found.named},
        "sentence": found.sentence,
    }


def _lines(learner: Learner, windows: Windows, found: Fidelity) -> list[str]:
    rows: list[tuple[object, ...]] = [("window", "hours", "recorded", "replayed", "")]
    rows += [
        (w.name, f"{w.hours:.1f}", f"{w.recorded:.4f} $", f"{w.replayed:.4f} $", f"{w.off:+.1%}") for w in found.windows
    ]
    left_out = [f"left out, {why}: {count} minutes" for why, count in learner.recorded.left_out.items()]
    return [
        f"fleet {learner.fleet}: {len(windows.earlier)} windows of {windows.window_s / HOUR_S:.3g} h to learn on, "
        f"{len(windows.held_out)} later ones held out; world {learner.world}",
        *left_out,
        *columns(rows),
        found.sentence,
    ]
