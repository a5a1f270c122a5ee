"""`trimtab promote`: a model decides for a fleet, pool or cluster if it beats what decides now; and the way back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, print_json, show
from agent.decisions.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
from trainer.commands.options import (
    OwnWorkloadsOption,
    SuiteSeedsOption,
    SuiteWorldOption,
    WorkersOption,
    epilog,
    words_of,
)

if TYPE_CHECKING:
    from agent.models.directory import ModelsDirectory, Subject, Verify
    from domain.rules.oversubscription.pool import PoolRules
    from trainer.promotion.gate import Contest, Gate

REFUSED = 1
SUITE = "T1,T2,T3,T4,T5,T6"
ALL = "all"
"""Names the subjects that have no champion of their own."""

SubjectArgument = Annotated[
    str, Argument(metavar="SUBJECT", help="A fleet, pool or cluster; all: those without a champion of their own.")
]
ChallengerArgument = Annotated[Path | None, Argument(metavar="[FILE]", help="The model to put in use.")]
DirectoryOption = Annotated[
    Path | None,
    Option(
        "--models-dir",
        "--champion-dir",
        metavar="DIR",
        help="Directory of models and champion.json; else that of the settings.",
    ),
]
KeyOption = Annotated[Path | None, Option(metavar="FILE", help="Key that signs the report; else $PROMOTION_KEY.")]
TryOption = Annotated[bool, Option("--try", help="Judge and report, but change nothing.")]
ForceOption = Annotated[
    str | None, Option("--force", metavar="REASON", help="Use it without an evaluation; the reason is recorded.")
]
RollbackOption = Annotated[bool, Option("--rollback", help="Go back to the champion before.")]
StatusOption = Annotated[bool, Option("--status", help="Show the champions, and check their files and reports.")]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the verb was asked to do, the same for every decision."""

    challenger: Path | None
    key_file: Path | None
    force: str | None
    rollback: bool
    status: bool
    try_only: bool
    as_json: bool
    probation_hours: float = 0.0
    then: str = "promote"
    at: float | None = None


def carry_out(
    decision: str, name: str, place: Path | None, verify: Verify, gate: Callable[[], Gate], wish: Wish
) -> None:
    """Do what was asked for in the models directory `place`, else in that of the settings.

    `verify` and `gate` are the decision's. Exits with status 1 when the gate refuses.
    """
    from agent.models.directory import ModelsDirectory, Subject, Then, moment_text, read_key, read_model_file
    from agent.settings.location import models_location, promotion_key_location

    if (wish.challenger is not None) + wish.rollback + wish.status != 1:
        given = "" if wish.challenger is None else str(wish.challenger)
        raise BadInput("promote", given, "give a model, --rollback or --status")
    subject = Subject(decision, name)
    directory = ModelsDirectory(
        place or models_location(os.environ), read_key(wish.key_file) or promotion_key_location(os.environ)
    )
    now_s = time.time() if wish.at is None else wish.at
    now = moment_text(now_s)
    if wish.challenger is None:
        (_status if wish.status else _rollback)(directory, subject, now, verify, wish.as_json)
    elif wish.force is not None:
        verify(wish.challenger)
        champion = directory.force(read_model_file(wish.challenger), subject, wish.force, now, verify)
        if wish.as_json:
            print_json({"subject": name, "model": champion.model, "forced": wish.force, "report": champion.report})
        else:
            typer.echo(f"{champion.model} decides for {subject} now, without an evaluation: {wish.force}")
    else:
        from trainer.promotion.gate import Term, hold

        if wish.then not in [*Then]:
            raise BadInput("--then", wish.then, f"choose one of {', '.join(Then)}")
        hours = wish.probation_hours
        term = Term(now_s, hours, Then(wish.then)) if hours > 0.0 else None
        contest = hold(wish.challenger, directory, subject, verify, gate(), at=now, try_only=wish.try_only, term=term)
        if wish.as_json:
            quiet = {key: value for key, value in contest.report.items() if key not in ("results", "cases")}
            print_json(
                quiet
                | {"promoted": contest.promoted, "on_probation": contest.on_probation, "report": contest.report_name}
            )
        else:
            _show(contest, directory, subject)
        if not contest.judgement.passed:
            raise typer.Exit(REFUSED)


def _show(contest: Contest, directory: ModelsDirectory, subject: Subject) -> None:
    judgement = contest.judgement
    against = contest.report["champion"]["sha256"] or contest.report["champion"]["label"]
    rows: list[tuple[object, ...]] = [("family", "runs", "cost", "95 %", "sure")]
    everything = ("all, alike", sum(family.trials for family in judgement.families), judgement.overall)
    for name, count, comparison in [*((f.family, f.trials, f.comparison) for f in judgement.families), everything]:
        r = comparison.relative
        span, sure = f"{100 * r.low:+.1f} to {100 * r.high:+.1f}", f"{comparison.probability_lower:.1%}"
        rows.append((name, count, f"{100 * r.mean:+.1f} %", span, sure))
    lines = [f"{contest.report['challenger']['sha256'][:12]} against {against[: 12 if len(against) == 64 else None]}:"]
    lines += columns(rows)
    if contest.promoted:
        lines.append(f"passed: it is the champion of {subject} now")
    elif contest.on_probation:
        lines.append(f"passed: it is on probation for {subject}")
    elif judgement.passed:
        lines.append("passed; nothing is changed (--try)")
    else:
        lines += ["not promoted, what decides now stays:", *(f"  {reason}" for reason in judgement.reasons)]
    seal = "signed" if directory.key is not None else "not signed: no key was given, its SHA-256 alone holds it"
    lines.append(f"report: {directory.path / contest.report_name} ({seal})")
    show(lines)


def _rollback(directory: ModelsDirectory, subject: Subject, at: str, verify: Verify, as_json: bool) -> None:
    left = directory.champions().get(subject)
    back = directory.rollback(at, subject, verify)
    stands_in = directory.champion(subject)
    gone = left.model if left else ""
    if as_json:
        print_json({"subject": subject.name, "left": gone or None, "model": back.model if back else None})
    elif back is not None:
        typer.echo(f"back to {back.model}, from {gone}, for {subject}")
    elif stands_in is not None:
        typer.echo(f"{gone} is no longer the champion of {subject}; that of all decides: {stands_in.model}")
    else:
        typer.echo(
            f"{gone} is no longer the champion of {subject}; there was none before it: a model that comes with the "
            "agent decides, or the rules of the settings"
        )


def _status(directory: ModelsDirectory, subject: Subject, at: str, verify: Verify, as_json: bool) -> None:
    from agent.commands.models import show_subjects, subject_rows

    found = list(subject_rows(directory, subject.decision))
    history = [line for row in found for line in directory.history(subject._replace(name=row["subject"]))]
    if as_json:
        champions = {row["subject"]: row for row in found}
        data = {"directory": str(directory.path), "champion": champions.get(""), "champions": champions}
        print_json(data | {"history": history})
    elif found:
        show_subjects(found, history)
    else:
        typer.echo(f"no champion in {directory.path}: a model that comes with the agent decides, or the rules")


AUTOSCALING = epilog(
    """
The gate: same traces, seeds and entry states for both, mid-run states too.
  cheaper in 95 % of paired bootstrap resamples, families counting alike;
  no family of traces more than 5 % dearer; no run beyond the run-time limit.
  Else the champion stays, and the exit status is 1.
""",
    calls=(
        "trimtab promote autoscaling web MODEL.onnx --recent /var/lib/trimtab/ledger.db",
        "trimtab promote autoscaling web MODEL.onnx --world my.toml --workload my.swf.gz:hours=24",
        "trimtab promote autoscaling web --rollback",
    ),
)


def autoscaling(
    ctx: typer.Context,
    subject: SubjectArgument,
    challenger: ChallengerArgument = None,
    models_dir: DirectoryOption = None,
    recent: Annotated[
        list[str] | None,
        Option(metavar="LEDGER|FILE", help="Replay recent production too: a ledger, a CSV or an SWF; repeatable."),
    ] = None,
    traces: Annotated[
        str | None,
        Option(metavar="T1,T2,...", help="Groups of the suite to run; else all, or your --workload alone."),
    ] = None,
    short: Annotated[bool, Option("--short", help="Few cases of each kind: a trial, not a release.")] = False,
    seeds: SuiteSeedsOption = None,
    world: SuiteWorldOption = "live-like",
    workload: OwnWorkloadsOption = None,
    run_time_limit: Annotated[
        float, Option(metavar="FACTOR", help="Longest run time, as a multiple of the champion's.", min=1.0)
    ] = 1.5,
    probation_hours: Annotated[
        float, Option(metavar="HOURS", min=0.0, help="How long it runs as a shadow first; `trimtab learn` judges it.")
    ] = 0.0,
    then: Annotated[
        str, Option(metavar="promote|approve|nothing", help="What follows a probation that held.")
    ] = "promote",
    at: Annotated[float | None, Option("--at", hidden=True, help="Now, epoch seconds; for rehearsals.")] = None,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    force: ForceOption = None,
    rollback: RollbackOption = False,
    status: StatusOption = False,
    workers: WorkersOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Put a learned policy in use if it beats the present one on held-out traces, or go back to the one before.

    It decides for one fleet, or with `all` for every fleet that it fits and that has no champion of its own. The first
    champion has to beat the tuned queue rule; where the jobs are yours (--workload, in any --world) it is tuned for
    them first. Every trial leaves a report in the models directory, with the SHA-256 of models, traces and results,
    signed where there is a key. The agent takes up a new champion within a minute.
    """
    from agent.models.file import load_model

    def gate() -> Gate:
        from trainer.autoscaling.evaluation.own import FEW_SEEDS, SEEDS, own_cases, own_world, tuned_rule
        from trainer.autoscaling.evaluation.suite import World, suite
        from trainer.autoscaling.worlds import told
        from trainer.kit.progress import bars
        from trainer.learning.recent import recent_cases
        from trainer.promotion.autoscaling import fleet_gate
        from trainer.promotion.gate import Limits

        own = own_world(world, workload or (), recent or ())
        if own is not None and world not in set(World):
            chosen, groups = World.LIVE_LIKE, words_of(traces or "")
            if groups:
                raise BadInput("--traces", traces, f"leave it out in world {own.name}: its jobs are your own")
        else:
            chosen, groups = World(world), words_of(SUITE if traces is None and own is None else traces or "")
        cases = [*suite(groups, short=short, world=chosen, seeds=seeds)]
        cases += recent_cases(recent or (), None if own is None else own.config)
        rule = None
        facts = {"groups": ",".join(groups), "short": short, "world": chosen.value, "recent": len(recent or ())}
        if own is not None:
            cases += own_cases(own, workload or (), seeds or (FEW_SEEDS if short else SEEDS))
            if challenger is not None:
                told(str(challenger), own)
            if workload:
                rule = partial(tuned_rule, own, workload, workers)
            facts |= {"world": own.name, "world_sha256": own.digest, "workloads": ",".join(workload or ())}
        if not cases:
            raise BadInput("--traces", traces, "name at least one group, or give --recent or --workload")
        limits = Limits(run_time_factor=run_time_limit)
        shown = ctx.with_resource(bars(as_json))
        task = shown.add_task("cases, from reset and from mid-run", total=len(cases))
        return fleet_gate(
            cases,
            limits,
            facts=facts,
            world=chosen,
            rule=rule,
            workers=workers,
            on_progress=lambda n: shown.advance(task, n),
        )

    fleet = "" if subject == ALL else subject
    wish = Wish(challenger, key_file, force, rollback, status, try_only, as_json, probation_hours, then, at)
    if challenger is not None:
        _check_fleet(challenger, fleet)
    carry_out("autoscaling", fleet, models_dir, load_model, gate, wish)


def _check_fleet(challenger: Path, fleet: str) -> None:
    """Raise BadInput when settings describe fleets and the one named is none of them, or the model does not fit it.

    Where the settings describe none, as on a machine that trains, the name is believed.
    """
    from pydantic import TypeAdapter, ValidationError

    from agent.models.card import misfit
    from agent.models.file import load_model
    from agent.settings import load_settings
    from agent.settings.kinds import Key

    if not fleet:
        return
    try:
        TypeAdapter(Key).validate_python(fleet)
    except ValidationError:
        raise BadInput("fleet", fleet, "give the key of a fleet, as in TRIMTAB_FLEETS__<fleet>__POLICY") from None
    settings = load_settings(os.environ)
    if not settings.fleets:
        return
    if fleet not in settings.fleets:
        there = ", ".join(sorted(settings.fleets))
        raise BadInput("fleet", fleet, f"choose one of the fleets of the settings: {there}")
    unfit = misfit(load_model(challenger).card, settings.fleet(fleet))
    if unfit:
        raise BadInput("CHALLENGER", str(challenger), f"{unfit}: train one for that fleet, or name another")


ADMISSION = epilog(
    """
The gate: runs that no rule was tuned on.
  the promise kept for sure; fewer cores idle than by what decides now, in 95 % of
  paired bootstrap resamples; at most 5 % more than by the best tuned rule.
  Else what decides now stays, and the exit status is 1.
""",
    calls=(
        "trimtab promote admission main CLUSTER.json",
        "trimtab promote admission main CLUSTER.json --world K --tuned second:2.8",
    ),
)


def admission(
    subject: SubjectArgument,
    challenger: ChallengerArgument = None,
    models_dir: DirectoryOption = None,
    world: Annotated[
        str, Option(metavar="T|H|K|FILE", help="What deployments are like; else as the file has it.")
    ] = "",
    against: Annotated[str, Option(metavar="RULE", help="What decides without a champion, as `simulate` has it.")] = "",
    tuned: Annotated[str, Option(metavar="RULE", help="The best tuned rule; else it is searched for.")] = "",
    observations: Annotated[int, Option(metavar="N", min=0, help="Prior observations of each arrival.")] = 0,
    runs: Annotated[int, Option(metavar="N", min=2, help="Runs that all are held to.")] = 100,
    years: Annotated[float, Option(metavar="YEARS", min=0.01, max=30.0, help="Length of a run.")] = 3.0,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    force: ForceOption = None,
    rollback: RollbackOption = False,
    status: StatusOption = False,
    workers: WorkersOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Let a file of a rule and a population decide for a cluster if it fills it more and keeps the promise.

    The file is what `trimtab fit admission` writes, with `rule` beside it. It runs against the rule that decides now
    and the best tuned one, on runs that no rule was tuned on. The cluster's RULE must be `learned`; the agent takes up
    a new champion when it starts.
    """
    from agent.settings.admission import cluster_model_in

    now, sla, capacity = cluster_of_settings(subject)

    def gate() -> Gate:
        from trainer.promotion.admission import cluster_gate
        from trainer.promotion.gate import Limits

        return cluster_gate(
            Limits(),
            now=against or now,
            world=world,
            tuned=tuned,
            sla=sla,
            capacity=capacity,
            observations=observations,
            runs=runs,
            hours=years * HOURS_PER_YEAR,
            workers=workers,
        )

    wish = Wish(challenger, key_file, force, rollback, status, try_only, as_json)
    carry_out("admission", subject, models_dir, cluster_model_in, gate, wish)


def cluster_of_settings(name: str) -> tuple[str, float | None, int | None]:
    """Return a cluster's rule, promise and cores by the settings; the default rule where they have no clusters."""
    from agent.settings import load_settings
    from agent.settings.admission import DEFAULT_KAPPA, LEARNED, rules_of

    clusters = load_settings(os.environ).clusters
    if not clusters:
        return f"second:{DEFAULT_KAPPA:g}", None, None
    if name not in clusters:
        raise BadInput("cluster", name, f"choose one of the clusters of the settings: {', '.join(sorted(clusters))}")
    cluster, rules = clusters[name], rules_of(name, clusters[name])
    text = cluster.rule if cluster.rule not in (None, LEARNED) else None
    marginal = "" if rules.text.startswith("zeroth") else f",marginal={rules.marginal_cores:g}"
    return text or rules.text + marginal, rules.sla, rules.capacity_cores


OVERSUBSCRIPTION = epilog(
    """
The gate: weeks that no model was trained on, behind the guard of the agent.
  the promise kept for sure; fewer cores reserved than by what decides now, in 95 %
  of paired bootstrap resamples; at most 5 % more than the best tuned rates.
  Else what decides now stays, and the exit status is 1.
""",
    calls=(
        "trimtab promote oversubscription main MODEL.onnx --scenario FOLDER",
        "trimtab promote oversubscription main --rollback",
    ),
)


def oversubscription(
    subject: SubjectArgument,
    challenger: ChallengerArgument = None,
    models_dir: DirectoryOption = None,
    scenario: Annotated[
        str, Option(metavar="NAME|FOLDER", help="internal_like, azure_like, or a folder of the pool's own usage.")
    ] = "internal_like",
    held_out: Annotated[
        str, Option(metavar="WEEK,...", help="Weeks of the scenario that no model was trained on.")
    ] = "",
    weeks: Annotated[int, Option(min=1, help="Weeks redrawn from the scenario's requests.")] = 8,
    episodes: Annotated[int, Option(min=1, help="Usage drawn for each week.")] = 300,
    evaluations: Annotated[int, Option(min=1, help="Weeks assessed to find the best tuned rule.")] = 1_500,
    start: Annotated[str, Option(metavar="cold|warm", help="Empty, or with the VMs of hour 0.")] = "cold",
    against: Annotated[
        str, Option(metavar="POLICY", help="What decides without a champion, as `simulate` has it; else MA.")
    ] = "ma",
    key_file: KeyOption = None,
    try_only: TryOption = False,
    force: ForceOption = None,
    rollback: RollbackOption = False,
    status: StatusOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a model, or a file of rates, decide for a pool if it reserves less and keeps the promise on held-out weeks.

    It runs behind the agent's shield, against what decides now and the best tuned rates, on weeks of the pool's own
    usage (--scenario FOLDER) or of a packaged scenario. The pool's policy must be `learned` or `model:DIRECTORY`; the
    agent takes up a new champion with the next hour.
    """
    from agent.oversubscription.rate_policies import verify_rates
    from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET

    rules, place = pool_of_settings(subject)

    def verify(path: Path) -> object:
        if rules is not None:
            return verify_rates(path, rules)
        from agent.oversubscription.rate_model import open_rate_model
        from agent.settings.oversubscription import read_rates

        return open_rate_model(path) if path.suffix == ".onnx" else read_rates(path)

    def gate() -> Gate:
        from simulator.oversubscription.scenario import scenario_of
        from trainer.promotion.gate import Limits
        from trainer.promotion.oversubscription import pool_gate

        return pool_gate(
            scenario_of(scenario),
            Limits(),
            now=against,
            budget=USUAL_BUDGET if rules is None else rules.budget(None),
            margin=NO_MARGIN if rules is None else rules.margin,
            alpha=0.95 if rules is None else rules.alpha,
            start=start,
            weeks=words_of(held_out),
            drawn=weeks,
            episodes=episodes,
            evaluations=evaluations,
        )

    wish = Wish(challenger, key_file, force, rollback, status, try_only, as_json)
    carry_out("oversubscription", subject, models_dir or place, verify, gate, wish)


def pool_of_settings(name: str) -> tuple[PoolRules | None, Path | None]:
    """Return the rules of a pool and the directory of its models, None for both where the settings have no pools."""
    from agent.settings import load_settings
    from agent.settings.oversubscription import pool_rules_of

    settings = load_settings(os.environ)
    if not settings.pools:
        return None, None
    if name not in settings.pools:
        raise BadInput("pool", name, f"choose one of the pools of the settings: {', '.join(sorted(settings.pools))}")
    rules = pool_rules_of(name, settings.pools[name])
    kind, _, given = rules.policy.partition(":")
    own = Path(given) if kind == "model" and not given.endswith(".onnx") else settings.models_directory
    return rules, own


COMMANDS: Mapping[str, tuple[Callable[..., None], str]] = {
    "autoscaling": (autoscaling, AUTOSCALING),
    "admission": (admission, ADMISSION),
    "oversubscription": (oversubscription, OVERSUBSCRIPTION),
}
"""The command of each decision, and the end of its help."""
