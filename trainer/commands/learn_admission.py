"""`trimtab learn admission`: from what a cluster's ledger recorded to the rule that decides for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from agent.decisions.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR, MINUTE_S
from trainer.commands.endings import OUT, STATUSES_OF_PROMISE, End, end_of_promise, with_status
from trainer.commands.options import epilog
from trainer.commands.promote import KeyOption, TryOption, cluster_of_settings

if TYPE_CHECKING:
    from agent.models.directory import ModelsDirectory
    from trainer.learning.admission_round import AdmissionRound, InUse

EPILOG = epilog(
    STATUSES_OF_PROMISE,
    calls=(
        "trimtab learn admission main --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn admission main --try --cpu-minutes 30 --out runs/learn/main",
    ),
)


def admission(
    cluster: Annotated[str, Argument(metavar="CLUSTER", help="The key of the cluster.")],
    ledger: LedgerOption = None,
    days: Annotated[float, Option(metavar="DAYS", min=0.1, help="How many of the last days are used.")] = 365.0,
    models_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of models; else that of the settings.")
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Folder of the round; else runs/learn/admission-CLUSTER.")
    ] = None,
    cpu_minutes: Annotated[
        float, Option(metavar="MINUTES", min=0.01, help="Time of a processor, over all resumptions.")
    ] = 10.0,
    years: Annotated[float, Option(metavar="YEARS", help="Length of a simulated run.")] = 1.0,
    against: Annotated[
        str | None, Option(metavar="RULE", help="What decides now; else the champion, or as the settings have it.")
    ] = None,
    capacity: Annotated[int | None, Option(metavar="CORES", min=1, help="Its cores; else as the settings.")] = None,
    sla: Annotated[
        float | None, Option(metavar="SHARE", help="Scale-outs that may be refused; else as the settings.")
    ] = None,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn from what a cluster's ledger recorded: fit its population, tune thresholds, judge them, ask the gate.

    The latest two fifths of the time are held out. The population and the threshold of the earlier part are judged in
    the world of the later one, against what decides now and against a threshold of cores alone. What keeps the promise
    there and fills the cluster more goes to the gate; what passes is the cluster's champion, which decides from the
    agent's next start on where the cluster's RULE is `learned`. A round that was stopped goes on with the same command.
    """
    from agent.models.directory import ModelsDirectory, Subject, moment_s, read_key
    from agent.settings.location import models_location, promotion_key_location
    from trainer.learning.admission_round import ADMISSION
    from trainer.learning.state import locked, set_aside

    if sla is not None and not 0.0 < sla < 1.0:
        raise BadInput("--sla", sla, "give a share between 0 and 1, such as 1e-3")
    folder, place = out or OUT / f"admission-{cluster}", models_dir or models_location(os.environ)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    directory = ModelsDirectory(place, read_key(key_file) or promotion_key_location(os.environ))

    def learnt() -> End:
        before = set_aside(folder)
        if before is not None:
            typer.echo(f"the last round is over, it lies in {before}: this is a new one", err=True)
        in_use = _in_use(cluster, directory, against, capacity, sla)
        work = _round(in_use, ledger, folder, directory, now, days, cpu_minutes, years, try_only=try_only)
        return _go_on(work, as_json=as_json)

    with locked(place, f"admission-{cluster}", now):
        with_status(place, Subject(ADMISSION, cluster), moment_s(now), learnt, try_only=try_only)


def _in_use(
    cluster: str, directory: ModelsDirectory, against: str | None, capacity: int | None, sla: float | None
) -> InUse:
    """Return what decides for a cluster: the champion, where the settings let it, else what the settings say."""
    from agent.settings import load_settings
    from agent.settings.admission import LEARNED, champion_of, rules_of
    from domain.rules.admission.population import POPULATIONS
    from trainer.learning.admission_round import ADMISSION, InUse

    rule, promised, cores = cluster_of_settings(cluster)
    known = load_settings(os.environ).clusters.get(cluster)
    population, learned = POPULATIONS["T"], None
    if known is not None:
        population, learned = rules_of(cluster, known).population, known.rule == LEARNED
    if learned is not False and any(s == (ADMISSION, cluster) for s in directory.champions()):
        model = champion_of(directory, cluster)
        rule, population = model.rule, model.population
    if (capacity or cores) is None:
        raise BadInput("--capacity", None, f"no settings describe the cluster {cluster}: give its cores")
    return InUse(cluster, against or rule, population, capacity or cores or 0, sla or promised or 1e-3, learned)


def _round(
    in_use: InUse,
    ledger: str | None,
    folder: Path,
    directory: ModelsDirectory,
    now: str,
    days: float,
    cpu_minutes: float,
    years: float,
    *,
    try_only: bool,
) -> AdmissionRound:
    from importlib.metadata import version

    from agent.settings.location import ledger_location
    from trainer.learning.admission_round import AdmissionRound, ClusterRound, keep_tables
    from trainer.learning.clusters import read_cluster
    from trainer.learning.state import opened

    settings = ClusterRound(cpu_minutes * MINUTE_S, years * HOURS_PER_YEAR)
    read = partial(read_cluster, ledger or ledger_location(os.environ), in_use.cluster)
    digest = keep_tables(folder, read, days, version("trimtab"))
    facts = {"cluster": in_use.cluster, "capacity": in_use.capacity, "sla": in_use.sla}
    state = opened(folder, {**facts, "record": digest, "hours": settings.hours})
    return AdmissionRound(
        in_use, state, settings, directory, now, try_only, tell=lambda line: typer.echo(line, err=True)
    )


def _go_on(work: AdmissionRound, *, as_json: bool) -> End:
    stages = work.go_on()
    if as_json:
        print_json({"directory": str(work.state.folder), "cpu_s": work.state.cpu_s, **stages})
    else:
        show(_lines(work))
    return end_of_promise(work.state, work.in_use.cluster)


def _lines(work: AdmissionRound) -> list[str]:
    stages, name = work.state.stages, work.in_use.cluster
    judged, gate = stages["judge"], stages["gate"]
    rows: list[tuple[object, ...]] = [("in the later world", "rule", "cores taken", "refused", "upper 90 %", "promise")]
    for label, rule in judged["rules"].items():
        if rule is None:
            rows.append((label, "none keeps the promise", "-", "-", "-", "-"))
            continue
        use, refused = judged["utilisation"][label]["value"], judged["refused"][label]["value"]
        kept = "kept" if judged["keeps"][label] else "broken"
        rows.append((label, rule, f"{use:.2%}", f"{refused:.2g}", f"{judged['upper_90'][label]:.2g}", kept))
    lines = [*columns(rows)]
    if gate["promoted"]:
        lines.append(f"the gate: passed, {stages['threshold']['rules']['learnt']} is the champion of {name} now")
        if work.in_use.learned is not True:
            lines.append(f"it decides once TRIMTAB_CLUSTERS__{name}__RULE is `learned`, from the agent's next start on")
    elif gate["passed"]:
        lines.append("the gate: passed; nothing is changed (--try)")
    else:
        lines += ["the gate: what decides now stays", *(f"  {reason}" for reason in gate["reasons"])]
    return [*lines, f"report: {work.state.folder / 'report.html'}"]
