"""`trimtab learn placement`: from what a pool's ledger recorded to the policy that places its containers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption
from agent.kernel.text import columns
from domain.units import DAY_S
from trainer.commands.endings import OUT, STATUSES_OF_PROMISE, End
from trainer.commands.learn_options import (
    Asked,
    CpuMinutesOption,
    ProbationHoursOption,
    PromiseRun,
    ThenOption,
    WatchHoursOption,
    gate_lines,
    learn_promise,
    round_end,
    terms_of,
)
from trainer.commands.options import AtOption, KeyOption, ModelsDirOption, TryOption, epilog
from trainer.commands.promote_placement import policy_in_use

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from trainer.learning.placement_round import PlacementLearning
    from trainer.learning.promise import Inspected, Kept, Replay

EPILOG = epilog(
    STATUSES_OF_PROMISE,
    calls=(
        "trimtab learn placement main --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn placement main --try --cpu-minutes 30 --out runs/learn/main",
        "trimtab learn placement main --probation-hours 48 --then approve",
    ),
)


def placement(
    pool: Annotated[str, Argument(metavar="POOL", help="The key of the placement pool.")],
    ledger: LedgerOption = None,
    days: Annotated[float, Option(metavar="DAYS", min=0.1, help="How many of the last days are used.")] = 30.0,
    against: Annotated[
        str,
        Option(
            metavar="POLICY", help="Policy in use without a champion, as in the settings; else that of the settings."
        ),
    ] = "",
    models_dir: ModelsDirOption = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Folder of the round; else runs/learn/placement-POOL.")
    ] = None,
    cpu_minutes: CpuMinutesOption = None,
    probation_hours: ProbationHoursOption = None,
    then: ThenOption = None,
    watch_hours: WatchHoursOption = None,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    at: AtOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from what a pool's ledger recorded: search a policy, judge it beside the known ones, ask the gate.

    The record is cut into windows, of which the latest two fifths are held out. A vector is searched on the earlier
    ones from what decides now; it, first fit, best fit, worst fit, the reserve and the policy that comes with the agent
    are judged on the held-out windows and on other orders of their requests. What opens fewer hosts goes to the gate;
    what passes is the pool's champion, after its probation where there is one, and decides where the pool's POLICY is
    `learned`. A round that was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: the requests since a promotion of the last days
    are placed anew under the policy before, and it is rolled back where that surely opened fewer hosts; a policy on
    probation is judged when its hours are over.
    """
    from agent.models.directory import moment_text, read_key
    from agent.settings.location import ledger_location, models_location, promotion_key_location
    from domain.subject import Subject
    from trainer.learning.placement_round import PLACEMENT
    from trainer.promotion.directory import ModelsWriter

    key = read_key(key_file) or promotion_key_location(os.environ)
    directory = ModelsWriter(models_dir or models_location(os.environ), key)
    terms = terms_of(Asked(cpu_minutes, probation_hours, then, watch_hours))
    folder, now_s = out or OUT / f"placement-{pool}", time.time() if at is None else at
    run = PromiseRun(Subject(PLACEMENT, pool), directory, folder, terms, now_s, try_only, as_json)
    source = ledger or ledger_location(os.environ)

    def round_() -> End:
        work = _round(run, source, days, moment_text(now_s), against)
        work.go_on()
        return round_end(work.state, pool, _lines(work), as_json=as_json)

    learn_promise(run, lambda: _inspected(run, source, against), round_)


def _inspected(run: PromiseRun, source: str, against: str) -> Inspected:
    from agent.placement.choosing import read_policy
    from agent.placement.settings import LEARNED
    from trainer.learning.placement_trial import lived, replay
    from trainer.learning.promise import Inspected

    pool, directory = run.subject.name, run.directory

    def replayed(one: Probationer) -> Replay:
        policies = policy_in_use(pool, directory, against), read_policy(directory.file_of(one.model))
        return replay(source, pool, one, policies, run.now_s)

    def watched(champion: Champion) -> Kept | str:
        before = None if champion.previous is None else read_policy(directory.file_of(champion.previous))
        if before is None:
            text = against or _policy_text(pool)
            if text == LEARNED:
                from agent.placement.choosing import SHIPPED

                before = read_policy(SHIPPED)
            else:
                before = policy_in_use(pool, directory, text)
        policies = before, read_policy(directory.file_of(champion.model))
        return lived(source, pool, champion, policies, run.now_s)

    return Inspected(run.subject, directory, read_policy, run.now_s, "open hosts", watched, replayed)


def _policy_text(pool: str) -> str:
    """Return the policy that the settings name for a pool; `learned` where they have none."""
    from agent.placement.settings import LEARNED, SUBJECTS
    from agent.settings import load_settings

    found = SUBJECTS.of(load_settings(os.environ)).get(pool)
    return LEARNED if found is None else found.policy


def _round(run: PromiseRun, source: str, days: float, at: str, against: str) -> PlacementLearning:
    from agent.placement.choosing import read_policy
    from trainer.learning.placement_round import PlacementLearning, PlacementRound
    from trainer.learning.placements import kept_windows, read_placements
    from trainer.learning.state import opened

    pool = run.subject.name
    since = run.now_s - days * DAY_S
    windows, digest = kept_windows(run.out, lambda: read_placements(source, pool, since, run.now_s))
    facts = {"pool": pool, "record": digest}
    return PlacementLearning(
        pool,
        policy_in_use(pool, run.directory, against),
        windows,
        opened(run.out, facts),
        PlacementRound(run.terms.cpu_s),
        run.directory,
        read_policy,
        at,
        run.try_only,
        tell=lambda line: typer.echo(line, err=True),
        term=run.terms.term(run.now_s),
    )


def _lines(work: PlacementLearning) -> list[str]:
    judged = work.state.stages["judge"]
    rows: list[tuple[object, ...]] = [("on the held-out windows", "hosts", "against now", "95 %")]
    for name, hosts in judged["hosts"].items():
        against = judged["against_now"].get(name)
        shown = ("", "")
        if against is not None:
            one = against["difference"]
            shown = f"{one['mean']:+.2f}", f"{one['low']:+.2f} to {one['high']:+.2f}"
        rows.append((name, f"{hosts:.2f}", *shown))
    rows.append(("bound", f"{judged['bound']:.2f}", "", ""))
    lines = [*columns(rows), *gate_lines(work.state, str(work.model), work.pool)]
    if work.state.stages["gate"]["promoted"]:
        lines.insert(-1, f"it decides with the next turn where TRIMTAB_PLACEMENTS__{work.pool}__POLICY is `learned`")
    return lines
