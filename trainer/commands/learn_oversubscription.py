"""`trimtab learn oversubscription`: from what a pool's ledger recorded to the rates that decide for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from agent.decisions.text import columns
from domain.units import DAY_S, MINUTE_S
from trainer.commands.endings import OUT, STATUSES_OF_PROMISE, End, end_of_promise, with_status
from trainer.commands.options import epilog
from trainer.commands.promote import KeyOption, TryOption, pool_of_settings

if TYPE_CHECKING:
    from agent.models.directory import ModelsDirectory
    from trainer.learning.oversubscription_round import OversubscriptionRound
    from trainer.learning.pools import RecordedPool

EPILOG = epilog(
    STATUSES_OF_PROMISE,
    calls=(
        "trimtab learn oversubscription main --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn oversubscription main --try --cpu-minutes 30 --out runs/learn/main",
    ),
)


def oversubscription(
    pool: Annotated[str, Argument(metavar="POOL", help="The key of the pool.")],
    ledger: LedgerOption = None,
    days: Annotated[float, Option(metavar="DAYS", min=1.0, help="How many of the last days are used.")] = 60.0,
    models_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of models; else that of the settings.")
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Folder of the round; else runs/learn/oversubscription-POOL.")
    ] = None,
    cpu_minutes: Annotated[
        float, Option(metavar="MINUTES", min=0.01, help="Time of a processor, over all resumptions.")
    ] = 10.0,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn from what a pool's ledger recorded: calibrate rates and their shield, judge them, ask the gate.

    The record is cut into weeks of the pool's horizon; the latest two fifths are held out, with the usage that was
    measured in them. Rates and shield of the earlier weeks are judged there against what decides now and against rates
    alone. What keeps the promise and reserves less goes to the gate; what passes is the pool's champion, which decides
    from the next hour on where the pool's POLICY is `learned`. A round that was stopped goes on with the same command.
    """
    from agent.models.directory import ModelsDirectory, Subject, moment_s, read_key
    from agent.settings.location import ledger_location, models_location, promotion_key_location
    from trainer.learning.oversubscription_round import OVERSUBSCRIPTION
    from trainer.learning.state import locked, set_aside

    _, own = pool_of_settings(pool)
    folder, place = out or OUT / f"oversubscription-{pool}", models_dir or own or models_location(os.environ)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    directory = ModelsDirectory(place, read_key(key_file) or promotion_key_location(os.environ))

    def learnt() -> End:
        before = set_aside(folder)
        if before is not None:
            typer.echo(f"the last round is over, it lies in {before}: this is a new one", err=True)
        source = ledger or ledger_location(os.environ)
        work = _round(pool, source, days, folder, directory, now, cpu_minutes, try_only=try_only)
        return _go_on(work, as_json=as_json)

    with locked(place, f"oversubscription-{pool}", now):
        with_status(place, Subject(OVERSUBSCRIPTION, pool), moment_s(now), learnt, try_only=try_only)


def _record(source: str, pool: str, days: float) -> RecordedPool:
    from trainer.learning.pools import newest_of, read_pool

    return read_pool(source, pool, since=newest_of(source, pool) - days * DAY_S)


def _round(
    pool: str,
    source: str,
    days: float,
    folder: Path,
    directory: ModelsDirectory,
    now: str,
    cpu_minutes: float,
    *,
    try_only: bool,
) -> OversubscriptionRound:
    import json

    from agent.models.directory import Subject
    from agent.oversubscription.rate_policies import verify_rates
    from agent.settings.oversubscription import read_rates
    from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET
    from trainer.learning.oversubscription_round import (
        EARLIER,
        OVERSUBSCRIPTION,
        OversubscriptionRound,
        PoolInUse,
        PoolRound,
        in_words,
        keep_weeks,
    )
    from trainer.learning.state import opened

    rules, _ = pool_of_settings(pool)
    digest = keep_weeks(folder, lambda: _record(source, pool, days))
    kept = json.loads((folder / EARLIER / f"{pool}.json").read_bytes())
    champion = directory.champion(Subject(OVERSUBSCRIPTION, pool))
    policy = in_words({"policy": kept["recorded"]["policy"] if rules is None else rules.policy})
    if champion is not None and (rules is None or rules.policy == "learned"):
        policy = str(directory.file_of(champion.model))
    budget, alpha = (USUAL_BUDGET, 0.95) if rules is None else (rules.budget(None), rules.alpha)
    margin = NO_MARGIN if rules is None else rules.margin
    opted_out = frozenset() if rules is None else frozenset(n for n, one in rules.subscribers.items() if one.opted_out)
    settings = PoolRound(cpu_minutes * MINUTE_S)
    facts = {"pool": pool, "alpha": alpha, "budget": budget, "margin": [margin.level, margin.turn_h]}
    facts |= {"opted_out": sorted(opted_out), "record": digest}

    def verify(path: Path) -> object:
        return read_rates(path) if rules is None else verify_rates(path, rules)

    return OversubscriptionRound(
        PoolInUse(pool, policy, budget, alpha, margin.level, margin.turn_h),
        opted_out,
        opened(folder, facts),
        settings,
        directory,
        verify,
        now,
        try_only,
        tell=lambda line: typer.echo(line, err=True),
    )


def _go_on(work: OversubscriptionRound, *, as_json: bool) -> End:
    stages = work.go_on()
    if as_json:
        print_json({"directory": str(work.state.folder), "cpu_s": work.state.cpu_s, **stages})
    else:
        show(_lines(work))
    return end_of_promise(work.state, work.in_use.pool)


def _lines(work: OversubscriptionRound) -> list[str]:
    stages, name = work.state.stages, work.in_use.pool
    judged, gate = stages["judge"], stages["gate"]
    rows: list[tuple[object, ...]] = [("on the later weeks", "reserved", "hot, worst week", "at most, 95 %", "promise")]
    for label, reserved in judged["reserved"].items():
        kept = "kept" if judged["keeps"][label] else "broken"
        mean, worst = sum(reserved) / len(reserved), max(judged["hot"][label])
        rows.append((label, f"{mean:.1%}", f"{worst:.1%}", f"{judged['upper_95'][label]:.1%}", kept))
    lines = [*columns(rows)]
    if gate["promoted"]:
        lines.append(f"the gate: passed, {work.model} is the champion of {name} now")
        lines.append(f"it decides from the next hour on where TRIMTAB_POOLS__{name}__POLICY is `learned`")
    elif gate["passed"]:
        lines.append("the gate: passed; nothing is changed (--try)")
    else:
        lines += ["the gate: what decides now stays", *(f"  {reason}" for reason in gate["reasons"])]
    return [*lines, f"report: {work.state.folder / 'report.html'}"]
