"""`trimtab learn admission`: from what a cluster's ledger recorded to the rule that decides for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
from trainer.commands.endings import STATUSES_OF_PROMISE, End
from trainer.commands.learn import PromiseLearning, gate_lines, round_end
from trainer.commands.options import Bounds, epilog
from trainer.commands.promote_admission import cluster_of_settings
from trainer.commands.verb import Answer

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from trainer.learning.cluster import ClusterInUse, ClusterRound
    from trainer.learning.trial import Inspection, Promise, PromiseReplay


@dataclass(frozen=True, kw_only=True)
class LearnAdmission(PromiseLearning):
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

    DECISION = "admission"
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

    name: Annotated[str, Argument(metavar="CLUSTER", help="The key of the cluster.")]
    days: Annotated[float, "DAYS", "How many of the last days are used.", Bounds(min=0.1)] = 365.0
    years: Annotated[float, "YEARS", "Length of a simulated run."] = 1.0
    against: Annotated[str | None, "RULE", "Policy in use; else the champion, or that of the settings."] = None
    capacity: Annotated[int | None, "CORES", "Its cores; else as the settings.", Bounds(min=1)] = None
    sla: Annotated[float | None, "SHARE", "Scale-outs that may be refused; else as the settings."] = None

    def check(self) -> None:
        """Raise BadInput for an option that is wrong."""
        if self.sla is not None and not 0.0 < self.sla < 1.0:
            raise BadInput("--sla", self.sla, "give a share between 0 and 1, such as 1e-3")
        super().check()

    def write_export(self, path: Path) -> Answer:
        """Write the record and the policy in use."""
        from trainer.learning.cluster import PARTS

        names = tuple(f"{part}.csv.gz{end}" for part in PARTS for end in ("", ".json"))
        return self.export_parts(path, names, self.keep, asdict(self.in_use()))

    def case(self) -> Inspection:
        """Return the case for a look at the cluster's rules."""
        from agent.admission.settings import cluster_model_in
        from trainer.learning.cluster_trial import lived, replay
        from trainer.learning.round import Budget
        from trainer.learning.trial import Inspection

        def watched(champion: Champion) -> Promise | str:
            rule = cluster_model_in(self.models.file_of(champion.model)).rule
            return lived(self.source, self.name, champion, rule, self.in_use().sla)

        def replayed(one: Probationer) -> PromiseReplay:
            with TemporaryDirectory() as place:
                return replay(self.source, one, self.round_in(Path(place)), Budget(self.terms.cpu_s))

        return Inspection(self.subject, self.models, cluster_model_in, self.now_s, watched, replayed)

    def round(self) -> End:
        """Do a round."""
        self.set_aside()
        self.place_parts()
        work = self.round_in(self.folder)
        work.go_on()
        return round_end(work, _lines(work))

    def round_in(self, folder: Path) -> ClusterRound:
        """Return the round in a folder, with the record that it keeps there."""
        from trainer.learning.cluster import ClusterRound, ClusterSettings
        from trainer.learning.state import opened

        in_use, hours, digest = self.in_use(), self.years * HOURS_PER_YEAR, self.keep(folder)
        facts = {"cluster": in_use.cluster, "capacity": in_use.capacity, "sla": in_use.sla}
        return ClusterRound(
            in_use=in_use,
            settings=ClusterSettings(hours),
            state=opened(folder, {**facts, "record": digest, "hours": hours}),
            **self.round_arguments,
        )

    def keep(self, folder: Path) -> str:
        """Keep the record in a folder and return its digest."""
        from importlib.metadata import version

        from trainer.learning.cluster import keep_tables
        from trainer.learning.clusters import read_cluster

        return keep_tables(folder, partial(read_cluster, self.source, self.name), self.days, version("trimtab"))

    def in_use(self) -> ClusterInUse:
        """Return the policy in use: the champion, where the settings permit it, else that of the settings."""
        from agent.admission.settings import LEARNED, SUBJECTS, champion_of, rules_of
        from agent.settings import load_settings
        from domain.rules.admission.population import POPULATIONS
        from trainer.learning.cluster import ClusterInUse

        if self.parts is not None:
            return _in_use_elsewhere(self.parts.about)
        rule, promised, cores = cluster_of_settings(self.name)
        known = SUBJECTS.of(load_settings(os.environ)).get(self.name)
        population, learned = POPULATIONS["T"], None
        if known is not None:
            population, learned = rules_of(self.name, known).population, known.rule == LEARNED
        if learned is not False and any(one == self.subject for one in self.models.champions()):
            model = champion_of(self.models, self.name)
            rule, population = model.rule, model.population
        capacity = self.capacity or cores
        if capacity is None:
            raise BadInput("--capacity", None, f"no settings describe the cluster {self.name}: give its cores")
        return ClusterInUse(
            self.name, self.against or rule, population, capacity, self.sla or promised or 1e-3, learned
        )


def _in_use_elsewhere(about: Mapping[str, Any]) -> ClusterInUse:
    """Return what decides for a cluster by the file that its record came in; BadInput for a damaged one."""
    from domain.rules.admission.population import Population
    from trainer.learning.cluster import ClusterInUse

    try:
        given = dict(about)
        return ClusterInUse(**given | {"population": Population(**given["population"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("--from", "export.json", f"it does not name the present policy: {error}") from None


def _lines(work: ClusterRound) -> list[str]:
    from trainer.learning.cluster import LEARNT, Judged
    from trainer.learning.round import GateResult, Truth

    truth, name = work.state.result(Truth), work.in_use.cluster
    if not truth.holds:
        return [truth.sentence]
    judged = work.state.result(Judged)
    rows: list[tuple[object, ...]] = [("in the later world", "rule", "cores taken", "refused", "upper 90 %", "promise")]
    for label, rule in judged.rules.items():
        if rule is None:
            rows.append((label, "none keeps the promise", "-", "-", "-", "-"))
            continue
        use, refused = judged.utilisation[label].value, judged.refused[label].value
        kept = "kept" if judged.keeps[label] else "broken"
        rows.append((label, rule, f"{use:.2%}", f"{refused:.2g}", f"{judged.upper_90[label]:.2g}", kept))
    lines = [truth.sentence, *columns(rows), *gate_lines(work, str(judged.rules[LEARNT]), name)]
    if work.state.result(GateResult).promoted and work.in_use.learned is not True:
        once = f"it decides once TRIMTAB_CLUSTERS__{name}__RULE is `learned`, from the agent's next start on"
        lines.insert(-1, once)
    return lines
