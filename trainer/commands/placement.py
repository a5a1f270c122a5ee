"""`trimtab VERB placement`: containers on hosts, so that few are opened."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.kernel.text import columns, duration_text
from domain.errors import BadInput, TrimtabError
from domain.units import DAY_S
from trainer.commands.endings import STATUSES_OF_GATE, STATUSES_OF_PROMISE, End
from trainer.commands.learn import PromiseLearning, gate_lines, round_end
from trainer.commands.options import Bounds, ForceOption, PageOption, Rows, Written, epilog, labelled
from trainer.commands.promote import Promotion, one_of_settings
from trainer.commands.train import Training
from trainer.commands.verb import Answer, ParallelVerb, TableVerb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.models.directory import Champion, Probationer
    from agent.placement.advice import PolicyAdvice
    from domain.rules.placement.policies import Policy
    from trainer.kit.jobs import Job
    from trainer.learning.placement import PlacementRound
    from trainer.learning.trial import Inspection, Promise, PromiseReplay
    from trainer.placement.evaluation import Evaluation
    from trainer.placement.pareto import Points
    from trainer.placement.runs import Config
    from trainer.promotion.directory import ModelsWriter
    from trainer.promotion.gate import Gate
    from trainer.promotion.placement import HeldOut


ADVICE_SHARE = 0.25
"""Of the budget of a round, for the replay under every bundled policy."""
HintsOption = Annotated[
    str, "SIGMA|shuffled", "Declared lifetimes of a public trace: true ones times exp(SIGMA z), or permuted."
]


@dataclass(frozen=True, kw_only=True)
class SimulatePlacement(ParallelVerb):
    """Place containers one by one as their requests come: hosts opened, room left, containers without a host.

    The same options give the same figures, for any number of workers. Every packing passes a checker that shares no
    code with the policies.
    """

    EPILOG = epilog(
        """
Policies:
  ff  oldest  bf  bf-cpu     first fit, the host opened first, best fit, best
  dp  wf                     fit by cores, dot product, worst fit
  lifetime                   the host whose last end it delays least, weighed
                             with gap, room and age
  small-pools                bundled, for 10 to 20 hosts that fill repeatedly
  reserve  reserve:X,Q,N     best fit that keeps X hosts with Q free cores for
                             requests of N containers or more
  hand                       weights of an operator's own
  FILE.json                  a learned policy, from `trimtab train placement`
""",
        """
Instances:
  S1  L219  L157             the small and the large ones of the specification
  small-7  large-7  stream-0  balanced2d-7  hetero-7  tight-219  snapshot-7
                             drawn with a seed
  churn-7                    a month in which every container ends
  internal_like-s0           a week of the VM tables of oversubscription
  gaia-azure  gaia-pai  alibaba-openb
                             public traces of jobs and pods that end; FIRST
                             row, ROWS, and SPEED of arrivals by
                             gaia-azure:20000+18000@8
  FILE.json, FILE.json.gz    yours
""",
        """
Best fit leaves room on few hosts. A late request for many containers that
must not share a host then opens new ones: compare bf with reserve on L219, in
the given order and in others (--shuffles 50).
""",
        calls=(
            "trimtab simulate placement --instance S1 --policy bf --plot s1.svg",
            "trimtab simulate placement --instance L219 --policy reserve --shuffles 50",
            "trimtab simulate placement --instance churn-1 --policy wf --warm-up 7 --json",
            "trimtab simulate placement --instance gaia-azure --policy lifetime --hints 0.5",
            "trimtab simulate placement --instance gaia-pai --policy lifetime --hints 0.5 --migrate-every 100",
        ),
    )

    instance: Annotated[str, "NAME|FILE", "Hosts and requests, see below."] = "S1"
    policy: Annotated[str, "NAME|FILE", "Policy that chooses hosts, see below."] = "bf"
    shuffles: Annotated[
        int, "K", "Also play the requests in K other orders, shuffles 0 to K-1.", Bounds(min=0, max=10_000)
    ] = 0
    ahead: Annotated[
        int, "K", "Requests known beyond the next one, of which the largest is placed first.", Bounds(min=0)
    ] = 0
    warm_up: Annotated[float, "DAYS", "Days that host-hours and peak leave out.", Bounds(min=0.0)] = 0.0
    hints: HintsOption = ""
    migrate_every: Annotated[
        int, "N", "Move a container after each N placements, if that spares host-hours; 0: never.", Bounds(min=0)
    ] = 0
    log: Annotated[Path | None, "FILE", "Write every decision, a line of JSON each.", Written()] = None
    plot: Annotated[Path | None, "FILE", "Draw the packing: .svg.", Written((".svg",))] = None
    force: ForceOption = False

    def run(self) -> Answer:
        """Play the orders."""
        from simulator.placement.instances import instance_of
        from trainer.kit.files import replace_file
        from trainer.kit.progress import phases
        from trainer.placement.evaluation import play, policy_of, write_log
        from trainer.placement.report import packing_picture

        with phases(self.as_json) as on_phase:
            on_phase(f"playing {self.policy} on {self.instance}; the first run compiles the simulator")
            instance, policy = instance_of(self.instance, self.hints), policy_of(self.policy)
            counts = {"shuffles": self.shuffles, "ahead": self.ahead, "migrate_every": self.migrate_every}
            played = play(instance, policy, warm_up_days=self.warm_up, workers=self.crew, **counts)
        if self.plot is not None:
            if played.packing is None:
                remedy = "leave it out: containers of this instance end, so no packing stays"
                raise BadInput("--plot", str(self.plot), remedy)
            replace_file(self.plot, packing_picture(played.instance, played.packing))
        if self.log is not None:
            if self.migrate_every:
                raise BadInput("--log", str(self.log), "leave out --migrate-every: the log has no moves")
            write_log(played.instance, played.policy, self.log)
        data = played.as_data()
        return Answer(data, _lines_played(data))


def _lines_played(data: dict[str, Any]) -> list[str]:
    bound, hosts = data["lower_bound"], data["hosts"]
    rows = []
    if "allocated" in data:
        gap = f", {hosts / bound - 1:+.1%}" if bound and not data["rejected"] else ""
        rows.append(("hosts", f"{hosts:,}; no packing has fewer than {bound:,} ({data['bound_by']}){gap}"))
        shares = [f"{share:.2%} of {name.split('_')[0]}" for name, share in data["allocated"].items()]
        rows.append(("allocated", ", ".join(shares)))
    else:
        mean = data["mean_hosts"]
        rows += [
            ("hosts", f"{'?' if mean is None else f'{mean:,.1f}'} on average, {data['peak']:,} at most"),
            ("host-hours", f"{data['host_hours']:,.0f} in {data['measured_hours']:,.0f} hours"),
            ("opened", f"{data['opened']:,} times; an empty host is closed again"),
        ]
        if data["migrated"]:
            rows.append(("migrated", f"{data['migrated']:,} containers"))
    rows.append(("rejected", f"{data['rejected']:,} of {data['containers']:,} containers"))
    if data["obstacles"]:
        reasons = ", ".join(f"{name} {count:,}" for name, count in data["obstacles"].items())
        rows.append(("obstacles", f"{reasons}, each host counted once for each of them"))
    room = ", ".join(f"{count:,} with {q}" for q, count in data["headroom"].items())
    rows.append(("room left", f"open hosts by free cores, or more: {room}"))
    if "shuffles" in data:
        found = data["shuffles"]
        spread = f"5 to 95 %: {found['p5']:.0f} to {found['p95']:.0f}, range {found['range']}"
        rows.append(("other orders", f"{found['mean']:.1f} hosts on average of {found['number']:,}; {spread}"))
    return [f"{data['instance']}, {data['policy']}, {data['requests']:,} requests", "", *columns(rows)]


DEFAULT_INSTANCE = "L219"


@dataclass(frozen=True, kw_only=True)
class TrainPlacement(Training):
    """Learn on which host to place containers, so that few hosts are opened in whatever order requests come.

    The same settings and seed give the same policy, on any number of workers. Exits with status 130 when stopped by
    Ctrl-C; --resume then goes on, bit for bit.
    """

    EPILOG = epilog(
        """
Instances: S1, L219, large-SEED, small-SEED, stream-SEED, balanced2d-SEED,
hetero-SEED, tight-SEED, snapshot-SEED, public traces as `simulate placement`
has them, or a FILE.json of yours. Where containers end the value is the
host-hours in per cent of those of best fit, in the order given.
Families: tiers17a (for operation), tiers18a (for one filling), tiers17,
potential17, linear14, places1, or two of them joined by +; lifetime (where
containers end). Methods: pso (as published), cmaes, cross-entropy, random.
""",
        """
Every point meets the same orders: shuffles from 10,000 on, redrawn every
five iterations. A value is the mean of the hosts plus --rho times their range.
Shuffles 0 to 99 are left to `trimtab evaluate placement`.
""",
        """
Written to --out: per seed checkpoints/, curve.csv, tensorboard/,
policy.json and run.json; the best seed's policy.json; and summary.json. With
--front, front.json and front.svg: the policies that no other one dominates.
""",
        calls=(
            "trimtab train placement --instance S1 --family potential17 --orders nominal",
            "trimtab train placement --instance L219 --seeds 0-4 --workers 2 --out L219",
            "trimtab train placement --instance L219 --seeds 0-4 --workers 2 --out L219 --resume",
            "trimtab train placement --instance L219 --front --out front",
        ),
    )

    instance: Annotated[list[str] | None, "NAME|FILE", f"Learn on it; repeatable, else {DEFAULT_INSTANCE}."] = None
    family: Annotated[str, "NAME", "Form of the policy, see below."] = "tiers17a"
    method: Annotated[str, "NAME", "How the vector is searched, see below."] = "pso"
    population: Annotated[int, "Points an iteration."] = 24
    iterations: Annotated[int, "Iterations at most."] = 60
    patience: Annotated[int, "Iterations without gain that end it."] = 15
    sequences: Annotated[int, "Orders of each instance that a point is valued on."] = 24
    rho: Annotated[float, "Price of the range over the orders, in hosts."] = 0.3
    orders: Annotated[str, "shuffled|nominal", "Of the requests; nominal: as given, one."] = "shuffled"
    filled: Annotated[float, "Share of the orders that best fit begins."] = 0.0
    hints: Annotated[
        list[str] | None, "SIGMA|shuffled", "Declared lifetimes of public traces; each instance with each of them."
    ] = None
    choose: Annotated[list[str] | None, "NAME|FILE", "Choose the best of the finalists on it; repeatable."] = None
    front: Annotated[bool, "Search the Pareto front of hosts, balance and concentration."] = False
    workers: Annotated[int, "N", "Processes of a run; cores of a local Ray.", Bounds(min=1)] = 1

    def folder(self) -> Path:
        """Return the folder of the instances."""
        return Path(".trimtab/placement") / "-".join(Path(name).stem for name in self.instance or [DEFAULT_INSTANCE])

    def run(self) -> Answer:
        """Search a policy, or the front of several goals."""
        return self._front() if self.front else super().run()

    def configuration(self) -> Config:
        """Return the search."""
        from trainer.placement.runs import Config
        from trainer.placement.swarm import Plan, Samples

        names = tuple(self.instance or [DEFAULT_INSTANCE])
        plan = Plan(self.family, self.method, self.population, self.iterations, patience=self.patience, seed=self.seed)
        samples = Samples(self.sequences, self.rho, self.orders, self.filled)
        config = Config(names, plan, samples, tuple(self.hints or [""]), tuple(self.choose or ()))
        config.taken((*names, *config.choice))
        return config

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each seed."""
        from trainer.kit.jobs import Workers
        from trainer.placement.runs import jobs_of

        created = datetime.now(UTC).isoformat(timespec="seconds")
        seeds, place = self.seeds_given(), self.place
        crew = Workers(self.workers, self.ray)
        jobs = jobs_of(self.configuration(), seeds, place, workers=crew, created=created, resume=self.resume)
        return jobs, {}

    def _front(self) -> Answer:
        from domain.rules.placement.policies import BF, DP, RESERVE, WF
        from simulator.placement.instances import instance_of
        from trainer.kit.files import replace_file, write_json
        from trainer.kit.jobs import Pool, Workers
        from trainer.kit.progress import announce, phases
        from trainer.placement.pareto import Measurement, front_data, front_picture, search_front
        from trainer.placement.swarm import SELECTION

        config, place = self.configuration(), self.place
        if len(config.instances) > 1 or config.plan.method != "pso" or config.samples.filled:
            raise BadInput("--front", "with these options", "give one instance, and neither --method nor --filled")
        announce("compiling the simulator, and searching the front", self.as_json)
        place.mkdir(parents=True, exist_ok=True)
        measurement = Measurement(instance_of(config.instances[0]), config.plan.family, config.samples)
        with phases(self.as_json) as on_phase, Pool(measurement.rows, Workers(self.workers, self.ray)) as pool:

            def on_iteration(k: int, archive: Points) -> None:
                on_phase(f"iteration {k}: {len(archive.points)} policies")

            found = search_front(config.plan, partial(measurement.points, run=pool.run), on_iteration)
        fixed = {policy.name: measurement.policies([policy], SELECTION) for policy in (BF, DP, WF, RESERVE)}
        data = front_data(found, fixed, measurement, config.plan)
        write_json(place / "front.json", data)
        replace_file(place / "front.svg", front_picture(data))
        rows: list[tuple[object, ...]] = [("", *data["objectives"])]
        rows += [(k, *(f"{value:.4g}" for value in one["values"])) for k, one in enumerate(data["front"])]
        rows += [(name, *(f"{value:.4g}" for value in values)) for name, values in data["fixed"].items()]
        volumes = f"hypervolume {data['hypervolume']:.4f}, of the fixed policies {data['hypervolume_fixed']:.4f}"
        return Answer(data, [*columns(rows), "", volumes, f"{place / 'front.json'}"])

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the value of each seed and the best."""
        rows: list[tuple[object, ...]] = [("seed", "value", "instance", "given order", "mean", "range", "of one core")]
        for k, seed in enumerate(summary["seeds"]):
            for name, chosen in summary["chosen_on"][k].items():
                hosts = summary["nominal"][k][name]
                time = duration_text(summary["cpu_s"][k])
                cells = (hosts, f"{chosen['mean']:.2f}", f"{chosen['range']:.0f}", time)
                rows.append((seed, f"{summary['values'][k]:.2f}", name, *cells))
        best = f"best: seed {summary['best']}, {self.place / summary['policy']}"
        return [*columns(rows), "", "mean and range: of the shuffles of the last choice, not a test", best]


@dataclass(frozen=True, kw_only=True)
class EvaluatePlacement(TableVerb, ParallelVerb):
    """Count the hosts that policies open on the same requests, in the given order and in others.

    The same options give the same figures, for any number of workers. With --out a report is written, with the packings
    as pictures.
    """

    EPILOG = epilog(
        """
Always compared: FF, BF, BF-cpu, DP, WF, RESERVE(100, 8, 10), and HAND: weights
tuned on the given order alone. Others: --policies and --runs. All play the
given order and the shuffles 0, 1, ... of each instance, which no training sees.
""",
        """
Each packing passes an independent checker before a figure of it is shown. In
addition: the lower bound, and the fewest hosts known with full knowledge.
""",
        calls=(
            "trimtab evaluate placement --instance S1",
            "trimtab evaluate placement --instance L219 --instance L157 --workers 8 --out evidence",
            "trimtab evaluate placement --instance L219 --policies mine=policy.json --json",
            "trimtab evaluate placement --instance L157 --runs L219=FOLDER --shuffles 100",
        ),
    )

    instance: Annotated[
        list[str] | None, "NAME|FILE", "S1, L219, stream-0, a FILE.json, ...; repeatable, else L219."
    ] = None
    policies: Annotated[list[str] | None, "LABEL=FILE", "A policy file; repeatable."] = None
    runs: Annotated[list[str] | None, "LABEL=FOLDER", "All seeds of `trimtab train placement`; repeatable."] = None
    shuffles: Annotated[int, "Orders in addition to the given one.", Bounds(min=0, max=100)] = 50
    hand: Annotated[bool, Option("--hand/--no-hand", help="Tune and compare HAND.")] = True
    hints: HintsOption = ""
    out: PageOption = None

    def run(self) -> Answer:
        """Play the orders of each instance."""
        from simulator.placement.instances import instance_of
        from trainer.kit.progress import phases
        from trainer.placement.evaluation import Comparison, evaluate
        from trainer.placement.report import write

        instances = [instance_of(name, self.hints) for name in self.instance or ["L219"]]
        learned = _policies(self.policies or [])
        trained, seeds, about = _runs(self.runs or [])
        shuffles = tuple(range(self.shuffles))
        comparisons = [
            Comparison(one, learned | trained, () if one.releases else shuffles, self.hand) for one in instances
        ]
        with phases(self.as_json) as on_phase:
            found = evaluate(comparisons, self.crew, on_phase)
        spread = [_spread(one, seeds) for one in found]
        files = [] if self.out is None else [str(file) for file in write(self.out, found, about)]
        data = [one.as_data() | {"seeds": own} for one, own in zip(found, spread, strict=True)]
        notes = [
            f"{label}: {mean:.2f} ± {deviation:.2f} hosts over its seeds"
            for own in spread
            for label, (mean, deviation) in own.items()
        ]
        notes += [f"report: {file}" for file in files[:1]]
        return Answer({"evaluations": data, "files": files}, notes, tables=[_table(one) for one in found])


def _policies(given: list[str]) -> dict[str, Policy]:
    example = "LABEL=FILE, each label once, such as mine=policy.json"
    found: dict[str, Policy] = {}
    for label, name in labelled("--policies", given, example):
        if label in found:
            raise BadInput("--policies", f"{label}={name}", f"give {example}")
        found[label] = _read(Path(name), "--policies")
    return found


def _read(path: Path, option: str) -> Policy:
    from domain.rules.placement.policies import parse_policy

    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(option, str(path), f"name a policy file that can be read: {error}") from None
    return parse_policy(document, path.name)


def _runs(given: list[str]) -> tuple[dict[str, Policy], dict[str, list[str]], dict[str, list[str]]]:
    """Return the policies of every seed; by label of the training their labels, and its description."""
    from trainer.kit.runs import SUMMARY_FILE

    policies: dict[str, Policy] = {}
    labels: dict[str, list[str]] = {}
    about: dict[str, list[str]] = {}
    form = "LABEL=FOLDER, the --out of a finished training"
    for label, name in labelled("--runs", given, form):
        try:
            summary = json.loads((Path(name) / SUMMARY_FILE).read_text("utf-8"))
            if not {"seeds", "policies", "steps", "cpu_s", "wall_s", "config"} <= set(summary):
                raise ValueError("it is not the summary of a training of placement")
        except (OSError, ValueError, TypeError) as error:
            raise BadInput("--runs", f"{label}={name}", f"give {form}: {error}") from None
        labels[label] = [f"{label} seed {seed}" for seed in summary["seeds"]]
        for own, file in zip(labels[label], summary["policies"], strict=True):
            policies[own] = _read(Path(name) / file, "--runs")
        about[label] = _training(summary)
    return policies, labels, about


def _training(summary: dict[str, Any]) -> list[str]:
    """Return the instances of a training, its method and its cost."""
    plan, seeds = summary["config"]["plan"], ", ".join(map(str, summary["seeds"]))
    cost = (
        f"{sum(summary['steps']):,} sequences, {duration_text(sum(summary['cpu_s']))} of one core, "
        f"{duration_text(sum(summary['wall_s']))} on the clock"
    )
    return [", ".join(summary["config"]["instances"]), f"{plan['method']}, {plan['family']}, seeds {seeds}", cost]


def _spread(done: Evaluation, seeds: dict[str, list[str]]) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation over seeds of the mean hosts, by label of the training."""
    import numpy as np

    means = {label: [float(done.of(own).hosts.mean()) for own in labels] for label, labels in seeds.items()}
    return {label: (float(np.mean(own)), float(np.std(own))) for label, own in means.items()}


def _table(done: Evaluation) -> tuple[str, Rows]:
    best, hours = done.optimum, done.bound_hours
    known = (
        "" if best is None else f", {best.hosts} with full knowledge ({'optimal' if best.optimal else 'not proven'})"
    )
    rows: list[tuple[object, ...]] = [
        ("policy", "given", "mean", "s.e.", "p5", "p95", "range", "cores", "rejected", "against BF", "over bound",
         *(() if hours is None else ("host-hours",)))
    ]  # fmt: skip
    for one in done.figures:
        data = one.as_data()
        error, versus = data["standard_error"], data["to_best_fit"]
        rows.append(
            (
                one.policy,
                data["nominal"],
                f"{data['mean']:.2f}",
                "" if error is None else f"{error:.2f}",
                *(f"{data[name]:.0f}" for name in ("p5", "p95", "range")),
                f"{data['rates']['cores']:.2%}" if data["rates"] else "",
                data["rejected"],
                f"{versus['mean']:+.2f} [{versus['low']:+.2f}, {versus['high']:+.2f}]",
                f"{data['gap']:+.2%}",
                *(() if data["host_hours"] is None else (f"{data['host_hours']:,.0f}",)),
            )
        )
    head = f"{done.instance.name}: {len(done.shuffles)} orders, at least {done.bound.hosts} hosts{known}"
    if hours is not None:
        head += f" and {hours:,.0f} host-hours; with releases hosts are those of the peak"
    return head, rows


OF_INSTANCE = 20
"""Orders of an instance that is judged on."""


@dataclass(frozen=True, kw_only=True)
class PromotePlacement(Promotion):
    """Let a policy's file decide for a placement pool if it opens fewer hosts than the policy in use.

    The file is what `trimtab train placement` or `learn placement` wrote. It decides where the POLICY, CANARY or SHADOW
    of the pool is `learned`; the agent takes it up with the next turn.
    """

    DECISION = "placement"
    EPILOG = epilog(
        """
The gate: windows of the record, or instances, as they came and in other orders.
  fewer open hosts than the policy in use, in 95 % of paired bootstrap resamples;
  no more than best fit; every placement held to the rules by a checker.
  Else the policy in use stays.
""",
        STATUSES_OF_GATE,
        calls=(
            "trimtab promote placement main POLICY.json --recent /var/lib/trimtab/ledger.db",
            "trimtab promote placement main POLICY.json --instance large-42",
            "trimtab promote placement main --rollback",
        ),
    )

    recent: Annotated[str | None, "LEDGER", "Judge on this ledger's record of the pool."] = None
    days: Annotated[float, "DAYS", "How many of its last days are used.", Bounds(min=0.1)] = 30.0
    instance: Annotated[list[str] | None, "NAME|FILE", "Judge on instances, as `simulate` has them; repeatable."] = None
    against: Annotated[
        str, "POLICY", "Policy in use without a champion, as in the settings; else that of the settings."
    ] = ""

    def verify(self, path: Path) -> object:
        """Raise BadInput for a file without a policy."""
        from agent.placement.choosing import read_policy

        return read_policy(path)

    def gate(self) -> Gate:
        """Return windows of the record and orders of instances."""
        from trainer.promotion.gate import Limits
        from trainer.promotion.placement import digest_of_cases, placement_gate

        windows = _of_record(self.recent, self.subject, self.days) if self.recent is not None else []
        windows += _of_instances(self.instance or ())
        if not windows:
            raise BadInput("--recent", self.recent, "give the ledger of the pool, or at least one --instance")
        facts = {
            "recent": self.recent is not None,
            "instances": list(self.instance or ()),
            "sha256": digest_of_cases(windows),
        }
        now = policy_in_use(self.subject, self.models, self.recent, self.against)
        return placement_gate(windows, Limits(), now=now, facts=facts)


def policy_in_use(pool: str, directory: ModelsWriter, ledger: str | None, against: str = "") -> Policy:
    """Return the policy that decides for a pool now, with its champion, or `against` where it is given.

    ledger: see `_policy_text`. BadInput, LedgerUnavailable.
    """
    from agent.placement.choosing import named_policy
    from agent.placement.settings import SUBJECTS
    from agent.settings import load_settings

    one_of_settings("pool", pool, [*SUBJECTS.of(load_settings(os.environ))])
    return named_policy(against or _policy_text(pool, ledger), pool, directory)


def _of_record(ledger: str, pool: str, days: float) -> list[HeldOut]:
    from trainer.learning.placements import read_placements, reordered, windows_of
    from trainer.promotion.placement import held_out

    now_s = time.time()
    found = windows_of(read_placements(ledger, pool, now_s - days * DAY_S, now_s))
    return held_out(found.held_out, found.length_s, reordered)


def _of_instances(names: Sequence[str]) -> list[HeldOut]:
    """Return other orders of instances, each a window of its own; those with releases last to their last event."""
    from simulator.placement.instances import instance_of, shuffled
    from trainer.learning.placements import reordered
    from trainer.promotion.placement import FIRST_ORDER, held_out

    found = []
    for name in names:
        one = instance_of(name)
        length_s = max([0.0, *(request.at_s for request in one.requests), *(end.at_s for end in one.releases)])
        reorder = reordered if one.releases else shuffled
        orders = [reorder(one, FIRST_ORDER + k) for k in range(OF_INSTANCE)]
        found += held_out(orders, length_s, reorder, orders=0)
    return found


@dataclass(frozen=True, kw_only=True)
class LearnPlacement(PromiseLearning):
    """Learn from what a pool's ledger recorded: search a policy, judge it beside the known ones, ask the gate.

    The record is cut into windows, of which the latest two fifths are held out. A vector is searched on the earlier
    ones from what decides now; it, first fit, best fit, worst fit, the reserve and the policy that comes with the agent
    are judged on the held-out windows and on other orders of their requests. What opens fewer hosts goes to the gate;
    what passes is the pool's champion, after its probation where there is one, and decides where the pool's POLICY is
    `learned`. A round that was stopped goes on with the same command.

    Before a round the record is replayed under every bundled policy, and `trimtab status` names a better one: by 2 % of
    the host-hours in each third of three days of record or more, or by 2 % of the hosts of two recorded fillings or
    more. Nothing is switched by it.

    Before a new round, the command looks after what the last ones left: the requests since a promotion of the last days
    are placed anew under the policy before, and it is rolled back where that surely opened fewer hosts; a policy on
    probation is judged when its hours are over.
    """

    DECISION = "placement"
    WITHOUT = ("export", "origin")
    EPILOG = epilog(
        STATUSES_OF_PROMISE,
        calls=(
            "trimtab learn placement main --ledger /var/lib/trimtab/ledger.db",
            "trimtab learn placement main --try --cpu-minutes 30 --out runs/learn/main",
            "trimtab learn placement main --probation-hours 48 --then approve",
        ),
    )

    name: Annotated[str, Argument(metavar="POOL", help="The key of the placement pool.")]
    days: Annotated[float, "DAYS", "How many of the last days are used.", Bounds(min=0.1)] = 30.0
    against: Annotated[
        str, "POLICY", "Policy in use without a champion, as in the settings; else that of the settings."
    ] = ""
    advice: Annotated[bool, "--advice", "Only name a better policy by a replay, and begin no round."] = False

    def run(self) -> Answer:
        """Look after the models of the last rounds; else leave advice, and do a round."""
        if not self.advice:
            return PromiseLearning.run(self)
        self.check()
        advice = self._advise()
        return Answer(asdict(advice), [_advice_line(advice)])

    def _advise(self) -> PolicyAdvice:
        """Return the advice on the pool's policy, and leave it for the agent; BadInput where nothing is recorded."""
        from agent.placement.choosing import named_policy
        from agent.placement.settings import LEARNED
        from trainer.kit.progress import phases
        from trainer.learning.placement_advice import MOST_DAYS, advise, last_advice, leave
        from trainer.learning.placements import read_placements
        from trainer.learning.round import Budget
        from trainer.placement.advice import bundled

        text = self.against or _policy_text(self.name, self.source, switched=True)
        in_use = text, policy_in_use(self.name, self.models, self.source, text)
        since = self.now_s - min(self.days, MOST_DAYS) * DAY_S
        policies = bundled(named_policy(LEARNED, self.name, self.models))
        budget = Budget(ADVICE_SHARE * self.terms.cpu_s)
        before = last_advice(self.models.path, self.name)
        with phases(self.as_json) as on_phase:

            def check(policy: str) -> None:
                on_phase(f"replaying the record under {policy}")
                budget.check()

            on_phase("reading the record")
            recorded = read_placements(self.source, self.name, since, self.now_s)
            found = advise(recorded, policies, in_use, before, self.now_s, check)
        if not self.try_only:
            leave(self.models.path, found)
        return found

    def case(self) -> Inspection:
        """Return the case for a look at the pool's policies."""
        from agent.placement.choosing import read_policy
        from agent.placement.settings import LEARNED
        from trainer.learning.placement_trial import lived, replay
        from trainer.learning.trial import Inspection

        def replayed(one: Probationer) -> PromiseReplay:
            now = policy_in_use(self.name, self.models, self.source, self.against)
            policies = now, read_policy(self.models.file_of(one.model))
            return replay(self.source, self.name, one, policies, self.now_s)

        def watched(champion: Champion) -> Promise | str:
            before = None if champion.previous is None else read_policy(self.models.file_of(champion.previous))
            if before is None:
                text = self.against or _policy_text(self.name, self.source)
                if text == LEARNED:
                    from agent.placement.choosing import SHIPPED

                    before = read_policy(SHIPPED)
                else:
                    before = policy_in_use(self.name, self.models, self.source, text)
            policies = before, read_policy(self.models.file_of(champion.model))
            return lived(self.source, self.name, champion, policies, self.now_s)

        return Inspection(self.subject, self.models, read_policy, self.now_s, watched, replayed)

    def round(self) -> End:
        """Do a round."""
        from agent.placement.choosing import read_policy
        from trainer.learning.placement import PlacementRound, PlacementSettings
        from trainer.learning.placements import kept_windows, read_placements
        from trainer.learning.state import opened

        self.set_aside()
        try:
            typer.echo(_advice_line(self._advise()), err=True)
        except (TrimtabError, OSError) as why:
            # The round needs neither the bundled policies nor a place for the advice.
            typer.echo(f"no advice: {why}", err=True)
        since = self.now_s - self.days * DAY_S
        windows, digest = kept_windows(self.folder, lambda: read_placements(self.source, self.name, since, self.now_s))
        work = PlacementRound(
            pool=self.name,
            in_use=policy_in_use(self.name, self.models, self.source, self.against),
            windows=windows,
            settings=PlacementSettings(),
            state=opened(self.folder, {"pool": self.name, "record": digest}),
            verify=read_policy,
            **self.round_arguments,
        )
        work.go_on()
        return round_end(work, _lines_round(work))


def _advice_line(advice: PolicyAdvice) -> str:
    return f"advice: {advice.advised or 'none'}, {advice.why}"


def _policy_text(pool: str, ledger: str | None, *, switched: bool = False) -> str:
    """Return the policy that the settings name for a pool; `learned` where they have no pool.

    ledger: has the default of a pool whose settings name no policy; None for that of a new pool. switched: the policy
    to which an operator switched goes before.
    """
    from agent.placement.settings import LEARNED, SUBJECTS
    from agent.settings import load_settings
    from domain.rules.placement.policies import LIFETIME
    from trainer.learning.placements import default_policy, switched_policy

    if switched and ledger is not None and (text := switched_policy(ledger, pool)):
        return text
    found = SUBJECTS.of(load_settings(os.environ)).get(pool)
    if found is None:
        return LEARNED
    return found.policy or (LIFETIME.name if ledger is None else default_policy(ledger, pool))


def _lines_round(work: PlacementRound) -> list[str]:
    from trainer.learning.placement import BOUND, HeldOutResult
    from trainer.learning.round import GateResult

    judged = work.state.result(HeldOutResult)
    rows: list[tuple[object, ...]] = [("on the held-out windows", "hosts", "against now", "95 %")]
    for name, hosts in judged.hosts.items():
        against = judged.against_now.get(name)
        shown = ("", "")
        if against is not None:
            one = against.difference
            shown = f"{one.mean:+.2f}", f"{one.low:+.2f} to {one.high:+.2f}"
        rows.append((name, f"{hosts:.2f}", *shown))
    rows.append((BOUND, f"{judged.bound:.2f}", "", ""))
    lines = [*columns(rows), *gate_lines(work, str(work.model), work.pool)]
    if work.state.result(GateResult).promoted:
        lines.insert(-1, f"it decides with the next turn where TRIMTAB_PLACEMENTS__{work.pool}__POLICY is `learned`")
    return lines
