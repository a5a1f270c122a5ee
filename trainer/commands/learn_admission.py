"""`trimtab learn admission`: from what a cluster's ledger recorded to the rule that decides for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption
from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
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
from trainer.commands.promote_admission import cluster_of_settings

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from trainer.learning.admission_round import AdmissionRound, ClusterRound, InUse
    from trainer.learning.promise import Inspected, Kept, Replay
    from trainer.promotion.directory import ModelsWriter

EPILOG = epilog(
    STATUSES_OF_PROMISE,
    calls=(
        "trimtab learn admission main --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn admission main --try --cpu-minutes 30 --out runs/learn/main",
        "trimtab learn admission main --probation-hours 168 --then approve",
        "trimtab learn admission main --export main.tar",
        "trimtab learn admission main --from main.tar --out runs/learn/main",
    ),
)


def admission(
    cluster: Annotated[str, Argument(metavar="CLUSTER", help="The key of the cluster.")],
    ledger: LedgerOption = None,
    days: Annotated[float, Option(metavar="DAYS", min=0.1, help="How many of the last days are used.")] = 365.0,
    models_dir: ModelsDirOption = None,
    out: RoundFolderOption = None,
    cpu_minutes: CpuMinutesOption = None,
    years: Annotated[float, Option(metavar="YEARS", help="Length of a simulated run.")] = 1.0,
    against: Annotated[
        str | None, Option(metavar="RULE", help="Policy in use; else the champion, or that of the settings.")
    ] = None,
    capacity: Annotated[int | None, Option(metavar="CORES", min=1, help="Its cores; else as the settings.")] = None,
    sla: Annotated[
        float | None, Option(metavar="SHARE", help="Scale-outs that may be refused; else as the settings.")
    ] = None,
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
    """Learn from what a cluster's ledger recorded: fit its population, tune thresholds, judge them, ask the gate.

    The latest two fifths of the time are held out. The world fitted to them must give the cores that were taken, within
    5 % or what chance makes of it, or the quantity that is off is named. The population and the threshold of the
    earlier part are judged in that world, against what decides now and against a threshold of cores alone. What keeps
    the promise there and fills the cluster more goes to the gate; what passes is the cluster's champion, after its
    probation where there is one, and decides from the agent's next start on where the cluster's RULE is `learned`. A
    round that was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: the refused requests since a promotion of the
    last days are held to the promise, and it is rolled back where that is surely broken; a rule on probation is judged
    when its hours are over.
    """
    from agent.admission.settings import cluster_model_in
    from agent.models.directory import moment_text
    from agent.settings.location import ledger_location, models_location
    from domain.subject import Subject
    from trainer.learning.admission_round import ADMISSION, PARTS, ClusterRound
    from trainer.learning.promise import Inspected
    from trainer.learning.stages import Budget

    if sla is not None and not 0.0 < sla < 1.0:
        raise BadInput("--sla", sla, "give a share between 0 and 1, such as 1e-3")
    check_origin(origin, ledger, export)
    asked, usual = Asked(cpu_minutes, probation_hours, then, watch_hours), models_location(os.environ)
    subject = Subject(ADMISSION, cluster)
    run = promise_run(
        subject, asked, models_dir, usual, out, key_file, at, try_only=try_only, as_json=as_json, origin=origin
    )
    directory, terms = run.directory, run.terms
    source, settings = ledger or ledger_location(os.environ), ClusterRound(terms.cpu_s, years * HOURS_PER_YEAR)
    in_use = partial(_in_use, cluster, directory, against, capacity, sla)
    if run.origin is not None:
        in_use = partial(_in_use_elsewhere, run.origin.about)
    if export is not None:
        names = tuple(f"{part}.csv.gz{end}" for part in PARTS for end in ("", ".json"))
        export_parts(run, export, names, partial(_keep, source, cluster, days), asdict(in_use()))
        return

    def work_in(place: Path) -> AdmissionRound:
        return _round(run, in_use(), source, place, settings, days, moment_text(run.now_s))

    def round_() -> End:
        work = work_in(run.out)
        work.go_on()
        return round_end(work.state, cluster, _lines(work), as_json=as_json)

    def case() -> Inspected:
        from trainer.learning.cluster_trial import lived, replay

        def watched(champion: Champion) -> Kept | str:
            rule = cluster_model_in(directory.file_of(champion.model)).rule
            return lived(source, cluster, champion, rule, in_use().sla)

        def replayed(one: Probationer) -> Replay:
            with TemporaryDirectory() as place:
                return replay(source, one, work_in(Path(place)), Budget(terms.cpu_s))

        return Inspected(run.subject, directory, cluster_model_in, run.now_s, "cores idle", watched, replayed)

    learn_promise(run, case, round_)


def _in_use(
    cluster: str, directory: ModelsWriter, against: str | None, capacity: int | None, sla: float | None
) -> InUse:
    """Return what decides for a cluster: the champion, where the settings let it, else what the settings say."""
    from agent.admission.settings import LEARNED, SUBJECTS, champion_of, rules_of
    from agent.settings import load_settings
    from domain.rules.admission.population import POPULATIONS
    from trainer.learning.admission_round import ADMISSION, InUse

    rule, promised, cores = cluster_of_settings(cluster)
    known = SUBJECTS.of(load_settings(os.environ)).get(cluster)
    population, learned = POPULATIONS["T"], None
    if known is not None:
        population, learned = rules_of(cluster, known).population, known.rule == LEARNED
    if learned is not False and any(s == (ADMISSION, cluster) for s in directory.champions()):
        model = champion_of(directory, cluster)
        rule, population = model.rule, model.population
    if (capacity or cores) is None:
        raise BadInput("--capacity", None, f"no settings describe the cluster {cluster}: give its cores")
    return InUse(cluster, against or rule, population, capacity or cores or 0, sla or promised or 1e-3, learned)


def _in_use_elsewhere(about: Mapping[str, Any]) -> InUse:
    """Return what decides for a cluster by the file that its record came in; BadInput for a damaged one."""
    from domain.rules.admission.population import Population
    from trainer.learning.admission_round import InUse

    try:
        given = dict(about)
        return InUse(**given | {"population": Population(**given["population"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("--from", "export.json", f"it does not name the present policy: {error}") from None


def _keep(source: str, cluster: str, days: float, folder: Path) -> str:
    from importlib.metadata import version

    from trainer.learning.admission_round import keep_tables
    from trainer.learning.clusters import read_cluster

    return keep_tables(folder, partial(read_cluster, source, cluster), days, version("trimtab"))


def _round(
    run: PromiseRun, in_use: InUse, source: str, folder: Path, settings: ClusterRound, days: float, now: str
) -> AdmissionRound:
    from trainer.learning.admission_round import AdmissionRound
    from trainer.learning.state import opened

    digest = _keep(source, in_use.cluster, days, folder)
    facts = {"cluster": in_use.cluster, "capacity": in_use.capacity, "sla": in_use.sla}
    return AdmissionRound(
        in_use,
        opened(folder, {**facts, "record": digest, "hours": settings.hours}),
        settings,
        run.directory,
        now,
        run.try_only,
        tell=lambda line: typer.echo(line, err=True),
        term=run.terms.term(run.now_s),
    )


def _lines(work: AdmissionRound) -> list[str]:
    stages, name = work.state.stages, work.in_use.cluster
    if not stages["fidelity"]["holds"]:
        return [stages["fidelity"]["sentence"]]
    judged = stages["judge"]
    rows: list[tuple[object, ...]] = [("in the later world", "rule", "cores taken", "refused", "upper 90 %", "promise")]
    for label, rule in judged["rules"].items():
        if rule is None:
            rows.append((label, "none keeps the promise", "-", "-", "-", "-"))
            continue
        use, refused = judged["utilisation"][label]["value"], judged["refused"][label]["value"]
        kept = "kept" if judged["keeps"][label] else "broken"
        rows.append((label, rule, f"{use:.2%}", f"{refused:.2g}", f"{judged['upper_90'][label]:.2g}", kept))
    lines = [
        stages["fidelity"]["sentence"],
        *columns(rows),
        *gate_lines(work.state, str(stages["threshold"]["rules"]["learnt"]), name),
    ]
    if stages["gate"]["promoted"] and work.in_use.learned is not True:
        once = f"it decides once TRIMTAB_CLUSTERS__{name}__RULE is `learned`, from the agent's next start on"
        lines.insert(-1, once)
    return lines
