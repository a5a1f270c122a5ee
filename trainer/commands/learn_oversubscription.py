"""`trimtab learn oversubscription`: from what a pool's ledger recorded to the rates that decide for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption
from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import DAY_S
from trainer.commands.endings import STATUSES_OF_PROMISE, End
from trainer.commands.learn_options import (
    Asked,
    CpuMinutesOption,
    ExportOption,
    OriginOption,
    ProbationHoursOption,
    PromiseRun,
    RoundFolderOption,
    ThenOption,
    WatchHoursOption,
    check_origin,
    export_parts,
    gate_lines,
    learn_promise,
    promise_run,
    round_end,
)
from trainer.commands.options import AtOption, KeyOption, ModelsDirOption, TryOption, epilog
from trainer.commands.promote_oversubscription import pool_of_settings

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from domain.rules.oversubscription.pool import PoolRules
    from trainer.learning.oversubscription_round import OversubscriptionRound, PoolInUse
    from trainer.learning.pools import RecordedPool
    from trainer.learning.promise import Inspected, Kept, Replay
    from trainer.promotion.directory import Verify

EPILOG = epilog(
    STATUSES_OF_PROMISE,
    calls=(
        "trimtab learn oversubscription main --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn oversubscription main --try --cpu-minutes 30 --out runs/learn/main",
        "trimtab learn oversubscription main --probation-hours 48 --then approve",
        "trimtab learn oversubscription main --export main.tar",
        "trimtab learn oversubscription main --from main.tar --out runs/learn/main",
    ),
)


def oversubscription(
    pool: Annotated[str, Argument(metavar="POOL", help="The key of the pool.")],
    ledger: LedgerOption = None,
    days: Annotated[float, Option(metavar="DAYS", min=1.0, help="How many of the last days are used.")] = 60.0,
    models_dir: ModelsDirOption = None,
    out: RoundFolderOption = None,
    cpu_minutes: CpuMinutesOption = None,
    probation_hours: ProbationHoursOption = None,
    then: ThenOption = None,
    watch_hours: WatchHoursOption = None,
    export: ExportOption = None,
    origin: OriginOption = None,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    at: AtOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from what a pool's ledger recorded: calibrate rates and their shield, judge them, ask the gate.

    The record is cut into weeks of the pool's horizon; the latest two fifths are held out, with the usage that was
    measured in them. What ran, replayed on these, must reserve what was recorded, within 5 %, or the quantity that is
    off is named. Rates and shield of the earlier weeks are judged there against what decides now and against rates
    alone. What keeps the promise and reserves less goes to the gate; what passes is the pool's champion, after its
    probation where there is one, and decides from the next hour on where the pool's POLICY is `learned`. A round that
    was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: the hot hours since a promotion of the last
    days are held to the promise, and it is rolled back where that is surely broken; rates on probation are judged when
    their hours are over.
    """
    from agent.models.directory import moment_text
    from agent.settings.location import ledger_location, models_location
    from domain.subject import Subject
    from trainer.learning.oversubscription_round import OVERSUBSCRIPTION, PARTS, keep_weeks

    rules, own = pool_of_settings(pool)
    check_origin(origin, ledger, export)
    usual, subject = own or models_location(os.environ), Subject(OVERSUBSCRIPTION, pool)
    asked = Asked(cpu_minutes, probation_hours, then, watch_hours)
    run = promise_run(
        subject, asked, models_dir, usual, out, key_file, at, try_only=try_only, as_json=as_json, origin=origin
    )
    source, verify = ledger or ledger_location(os.environ), _verify(rules)
    if export is not None:
        record = _record(source, pool, days)
        about = _about(_in_use(run, rules, record.policy), _opted_out(rules))
        export_parts(run, export, PARTS, lambda folder: keep_weeks(folder, lambda: record), about)
        return

    def round_() -> End:
        work = _round(run, rules, source, days, moment_text(run.now_s), verify)
        work.go_on()
        return round_end(work.state, pool, _lines(work), as_json=as_json)

    learn_promise(run, lambda: _inspected(run, rules, source, verify), round_)


def _record(source: str, pool: str, days: float) -> RecordedPool:
    from trainer.learning.pools import newest_of, read_pool

    return read_pool(source, pool, since=newest_of(source, pool) - days * DAY_S)


def _verify(rules: PoolRules | None) -> Verify:
    from agent.oversubscription.rate_policies import verify_rates
    from agent.oversubscription.settings import read_rates

    return read_rates if rules is None else lambda path: verify_rates(path, rules)


def _in_use(run: PromiseRun, rules: PoolRules | None, recorded: str) -> PoolInUse:
    """Return what decides for a pool: the champion, where the settings let it, else the settings, else as recorded."""
    from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET
    from trainer.learning.oversubscription_round import PoolInUse, in_words

    champion = run.directory.champion(run.subject)
    policy = in_words({"policy": recorded if rules is None else rules.policy})
    if champion is not None and (rules is None or rules.policy == "learned"):
        policy = str(run.directory.file_of(champion.model))
    budget, alpha = (USUAL_BUDGET, 0.95) if rules is None else (rules.budget(None), rules.alpha)
    margin = NO_MARGIN if rules is None else rules.margin
    return PoolInUse(run.subject.name, policy, budget, alpha, margin)


def _opted_out(rules: PoolRules | None) -> frozenset[str]:
    return frozenset() if rules is None else frozenset(n for n, one in rules.subscribers.items() if one.opted_out)


def _about(in_use: PoolInUse, opted_out: frozenset[str]) -> dict[str, Any]:
    """Return what decides for a pool as data; a policy that is a file goes along."""
    given = {**asdict(in_use), "opted_out": sorted(opted_out)}
    return {**given, "policy": "", "file": in_use.policy} if Path(in_use.policy).is_file() else given


def _in_use_elsewhere(run: PromiseRun, about: Mapping[str, Any]) -> tuple[PoolInUse, frozenset[str]]:
    """Return what decides for a pool, and who is reserved in full, by the file that its record came in."""
    from domain.rules.oversubscription.rates import Margin
    from trainer.learning.oversubscription_round import PoolInUse

    given = dict(about)
    try:
        opted_out, file = frozenset(map(str, given.pop("opted_out"))), given.pop("file", None)
        if file is not None:
            given["policy"] = str(run.directory.file_of(str(file)))
        return PoolInUse(**given | {"margin": Margin(**given["margin"])}), opted_out
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("--from", "export.json", f"it does not name the present policy: {error}") from None


def _inspected(run: PromiseRun, rules: PoolRules | None, source: str, verify: Verify) -> Inspected:
    from trainer.learning.pool_trial import lived, replay
    from trainer.learning.pools import read_pool
    from trainer.learning.promise import Inspected

    pool = run.subject.name

    def replayed(one: Probationer) -> Replay:
        in_use = _in_use(run, rules, read_pool(source, pool).policy)
        texts = (in_use.policy, str(run.directory.file_of(one.model)))
        return replay(source, pool, one, texts, in_use.budget, in_use.margin, in_use.alpha)

    def watched(champion: Champion) -> Kept | str:
        return lived(source, pool, champion)

    return Inspected(run.subject, run.directory, verify, run.now_s, "cores reserved", watched, replayed)


def _round(
    run: PromiseRun, rules: PoolRules | None, source: str, days: float, now: str, verify: Verify
) -> OversubscriptionRound:
    import json

    from trainer.learning.oversubscription_round import EARLIER, OversubscriptionRound, PoolRound, keep_weeks
    from trainer.learning.state import opened

    pool, folder = run.subject.name, run.out
    digest = keep_weeks(folder, lambda: _record(source, pool, days))
    if run.origin is not None:
        in_use, opted_out = _in_use_elsewhere(run, run.origin.about)
    else:
        kept = json.loads((folder / EARLIER / f"{pool}.json").read_bytes())
        in_use, opted_out = _in_use(run, rules, kept["recorded"]["policy"]), _opted_out(rules)
    facts = {"pool": pool, "alpha": in_use.alpha, "budget": in_use.budget, "margin": list(astuple(in_use.margin))}
    facts |= {"opted_out": sorted(opted_out), "record": digest}
    return OversubscriptionRound(
        in_use,
        opted_out,
        opened(folder, facts),
        PoolRound(run.terms.cpu_s),
        run.directory,
        verify,
        now,
        run.try_only,
        tell=lambda line: typer.echo(line, err=True),
        term=run.terms.term(run.now_s),
    )


def _lines(work: OversubscriptionRound) -> list[str]:
    stages, name = work.state.stages, work.in_use.pool
    if not stages["fidelity"]["holds"]:
        return [stages["fidelity"]["sentence"]]
    judged = stages["judge"]
    rows: list[tuple[object, ...]] = [("on the later weeks", "reserved", "hot, worst week", "at most, 95 %", "promise")]
    for label, reserved in judged["reserved"].items():
        kept = "kept" if judged["keeps"][label] else "broken"
        mean, worst = sum(reserved) / len(reserved), max(judged["hot"][label])
        rows.append((label, f"{mean:.1%}", f"{worst:.1%}", f"{judged['upper_95'][label]:.1%}", kept))
    lines = [stages["fidelity"]["sentence"], *columns(rows), *gate_lines(work.state, str(work.model), name)]
    if stages["gate"]["promoted"]:
        lines.insert(-1, f"it decides from the next hour on where TRIMTAB_POOLS__{name}__POLICY is `learned`")
    return lines
