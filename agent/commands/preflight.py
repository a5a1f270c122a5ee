"""`trimtab preflight`: is everything there in the account and on this host? Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, examples, print_json

if TYPE_CHECKING:
    from agent.preflight.results import Finding


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=examples("trimtab preflight", "TRIMTAB_MODE=act trimtab preflight --json --wait 30"))(preflight)


def preflight(
    wait: Annotated[
        float, typer.Option(help="Seconds to listen for measurements where no agent runs; 0: do not.", min=0, max=600)
    ] = 15.0,
    as_json: JsonOption = False,
) -> None:
    """Check the account and this host against the settings, and say what is missing and what to do; change nothing.

    Exit status 1 when something is missing that the agent needs in its mode. Advice and what could not be found out
    do not count.
    """
    import os
    from dataclasses import asdict

    from agent.preflight.check import check_everything
    from agent.preflight.results import State, passed
    from agent.settings import load_settings
    from domain.clock import WallClock

    findings = []
    for finding in check_everything(load_settings(os.environ), WallClock(), wait_s=wait):
        findings.append(finding)
        if not as_json:
            _show(finding)
    is_passed = passed(findings)
    if as_json:
        print_json({"passed": is_passed, "findings": [asdict(finding) for finding in findings]})
    else:
        counts = {state: sum(finding.state is state for finding in findings) for state in State}
        typer.echo("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if not is_passed:
        raise typer.Exit(1)


def _show(finding: Finding) -> None:
    typer.echo(f"{finding.state:<8} {finding.subject}: {finding.detail}")
    if finding.remedy:
        typer.echo(f"{'':<8} -> {finding.remedy}")
