"""`trimtab VERB oversubscription`: rates that save cores while machines stay cool."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import DAY_S
from trainer.commands.endings import STATUSES_OF_GATE, STATUSES_OF_PROMISE, End
from trainer.commands.learn import PromiseLearning, gate_lines, round_end
from trainer.commands.options import (
    CHECKED_FOLDER,
    AlphaOption,
    Bounds,
    Check,
    ScenarioOption,
    StartOption,
    Written,
    epilog,
    words_of,
)
from trainer.commands.promote import Promotion, one_of_settings
from trainer.commands.verb import Answer, ParallelVerb, Verb

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from domain.rules.oversubscription.pool import PoolRules
    from simulator.oversubscription.scenario import Scenario
    from trainer.learning.pool import PoolInUse, PoolRound
    from trainer.learning.pools import PoolRecord
    from trainer.learning.trial import Inspection, Promise, PromiseReplay
    from trainer.promotion.directory import ModelsWriter
    from trainer.promotion.gate import Gate


@dataclass(frozen=True, kw_only=True)
class SimulateOversubscription(ParallelVerb):
    """Play a policy on a week of VM requests: cores saved, machines used, how often they ran hot.

    The same options and seed give the same figures to the last digit, for any number of workers.
    """

    EPILOG = epilog(
        """
Policies:
  none  grid:0.4  rates:0.4,0.6,...   the same rate always, or by subscriber
  ma  sl                              by the last day's peaks; regression
  static:alpha=0.95                   best constant rates, found in seconds
  static:weeks=s21+s22+s23,cap=0.02   the same, safe in each of these weeks
  shield:base=(rates:...),b=0.003     rate raised where a machine would run hot
  filter:rate=0.2,b=0.003,posterior=true   machines chosen by their risk
  machine:cores                       a bundled rule for each request
""",
        """
Usage (--usage):
  gauss                      each VM and hour drawn by itself
  gauss_corr:rho=0.05        VMs of a subscriber move together
  persistent:psi=0.85        each VM keeps its level
  replay, replay:FILE.csv    one realisation; measured id,hour,usage
  bootstrap:FILE.parquet     measured VM-days, whole days
""",
        calls=(
            "trimtab simulate oversubscription --policy grid:0.5",
            "trimtab simulate oversubscription --scenario azure_like --start warm \\",
            "    --policy static --episodes 2000 --json",
        ),
    )

    scenario: ScenarioOption = "internal_like"
    week: Annotated[str, "WEEK", "Week of requests; unseen0, unseen1, ...: redrawn."] = "s0"
    start: StartOption = "cold"
    policy: Annotated[str, "POLICY", "Policy that sets the rates, see below."] = "grid:0.6"
    alpha: AlphaOption = 0.95
    usage: Annotated[str, "MODEL", "How VMs use their cores, see below."] = "gauss"
    episodes: Annotated[int, "N", "Weeks of usage to draw.", Bounds(min=1)] = 300
    seed: Annotated[int, "Seed of the usage; episode i has seed + i.", Bounds(min=0)] = 0
    steps: Annotated[Path | None, "FILE", "Write a CSV with a line per hour.", Written()] = None
    plot: Annotated[Path | None, "FILE", "Draw the week: .png, .svg or .pdf.", Written((".png", ".svg", ".pdf"))] = None

    def run(self) -> Answer:
        """Play the week."""
        from simulator.oversubscription.scenario import scenario_of
        from trainer.kit.progress import phases
        from trainer.oversubscription.episodes import judge, write_hours
        from trainer.oversubscription.policies import Task, policy_of
        from trainer.oversubscription.report import draw
        from trainer.oversubscription.unseen import week_named

        cluster = scenario_of(self.scenario)
        about = f"playing {self.policy} on week {self.week} of {self.scenario}"
        with phases(self.as_json) as on_phase:
            on_phase(f"{about}; the first run compiles the simulator")
            task = Task(cluster, week_named(cluster, self.week), self.start, self.alpha, on_phase)
            drawn: dict[str, Any] = {"usage": self.usage, "episodes": self.episodes, "seed": self.seed}
            judged = judge(policy_of(self.policy), task, workers=self.crew, **drawn)
        if self.steps is not None:
            write_hours(judged, self.steps)
        if self.plot is not None:
            draw(judged, self.plot)
        data = judged.as_data() | {"seed": self.seed}
        return Answer(data, _lines_played(data, judged.sampled.limit))


def _lines_played(data: dict[str, Any], limit: float) -> list[str]:
    saved, analytic = data["s_cores"], data["c_hot_r_analytic"]
    kept = "kept" if data["keeps_alpha"] else "broken"
    rows = [
        ("cores saved", "nothing was requested" if saved is None else f"{saved:.1%} of {data['requested_cores']:,.0f}"),
        ("machines", f"{data['peak_machines']:,.6g} at most"),
        ("hot weeks", f"{data['c_hot_r']:.1%} of {data['episodes']:,}, at most {data['c_hot_r_upper_95']:.1%} (95 %)"),
        ("assessed", "only sampled: it decides by usage" if analytic is None else f"{analytic:.1%} hot weeks"),
        ("worst machine", f"hot in {data['pm_hot_r']:.1%} of the weeks"),
        ("hot hours", f"{data['mean_hot_hours']:.2f} a week, {data['mean_hot_machine_hours']:.2f} machine-hours"),
        (
            "promise",
            f"{kept}: at least {data['alpha']:.0%} of the weeks with fewer hot hours than {limit}",
        ),
        ("rejected", f"{data['rejects']:,} of {data['requests']:,} requests"),
    ]
    if data["raised"] or data["unsafe"]:
        rows.append(("guard", f"{data['raised']:,} rates raised, {data['unsafe']:,} requests without a safe machine"))
    week = f"{data['scenario']} {data['week']} {data['start']}"
    return [f"{week}, {data['policy']}, usage {data['usage']}, seed {data['seed']}", "", *columns(rows)]


CALIBRATED, STATIC = "calibrated", "static"
EVALUATIONS = 4_000


@dataclass(frozen=True, kw_only=True)
class TuneOversubscription(Verb):
    """Find rates for the subscribers of a cluster from its weeks of requests and its usage profiles.

    The same settings and seed give the same file. Exits with status 1 when no safe rates were found.
    """

    EPILOG = epilog(
        """
Methods:
  calibrated  one rate per subscriber, safe in every known week with room to
              spare, held to redrawn weeks: the one to use (--shield adds a guard)
  static      one rate per subscriber, the best of one week, no reserve
Written to --out: rates.json, a policy of `trimtab simulate oversubscription`.
""",
        calls=(
            "trimtab tune oversubscription --scenario azure_like",
            "trimtab tune oversubscription --scenario FOLDER --start warm --shield auto",
        ),
    )

    scenario: ScenarioOption = "internal_like"
    method: Annotated[
        str,
        "NAME",
        "How the rates are found, see below.",
        Check(
            (CALIBRATED, STATIC).__contains__,
            f"choose {CALIBRATED} or {STATIC}; learn by `trimtab train oversubscription`",
        ),
    ] = CALIBRATED
    start: StartOption = "cold"
    alpha: AlphaOption = 0.95
    weeks: Annotated[str | None, "s0,s21,...", "Weeks to fit to; else all, with static the first."] = None
    cap: Annotated[float | None, "SHARE", "calibrated: largest risk of a known week."] = None
    shield: Annotated[
        str | None, "HOURS|auto", "calibrated: hot hours a machine and day above which rates are raised."
    ] = None
    evaluations: Annotated[int, "Weeks assessed by a search.", Bounds(min=1)] = EVALUATIONS
    seed: Annotated[int, "Seed of the search.", Bounds(min=0)] = 0
    out: Annotated[
        Path | None, "FOLDER", "Where to write; else .trimtab/oversubscription/SCENARIO.", CHECKED_FOLDER
    ] = None

    def run(self) -> Answer:
        """Search, and write the rates."""
        from trainer.kit.progress import phases
        from trainer.oversubscription.calibration import write_tuned

        cluster, chosen = checked_scenario(self.scenario, self.start, self.weeks)
        place = self.out or folder_of(self.scenario)
        options: dict[str, Any] = {
            "start": self.start,
            "alpha": self.alpha,
            "evaluations": self.evaluations,
            "seed": self.seed,
        }
        place.mkdir(parents=True, exist_ok=True)
        path, reserve = place / "rates.json", {"cap": self.cap, "shield": _shield(self.shield)}
        if self.method == STATIC and (len(chosen) > 1 or any(value is not None for value in reserve.values())):
            raise BadInput("--method", self.method, f"give it one week, and --cap and --shield to {CALIBRATED}")
        with phases(self.as_json) as on_phase:
            options["on_progress"] = on_phase
            data = write_tuned(cluster, self.method, chosen, path, options, None if self.method == STATIC else reserve)
        return Answer(data | {"file": str(path)}, _lines_tuned(data, path), 0 if data["feasible"] else 1)


def folder_of(scenario: str) -> Path:
    """Return where the rates of a scenario are written without --out; BadInput for one that there is not."""
    from simulator.oversubscription.scenario import scenario_of

    return Path(".trimtab/oversubscription") / scenario_of(scenario).name


def checked_scenario(scenario: str, start: str, weeks: str | None) -> tuple[Scenario, tuple[str, ...]]:
    """Return the scenario and the weeks that are named; BadInput names a wrong option."""
    from simulator.oversubscription.scenario import scenario_of
    from simulator.oversubscription.weekly import check_start

    check_start(start)
    cluster = scenario_of(scenario)
    chosen = tuple(words_of(weeks or ""))
    for name in chosen:
        cluster.week(name)
    return cluster, chosen


def _shield(text: str | None) -> float | str | None:
    from trainer.oversubscription.calibration import AUTO

    try:
        return text if text in (None, AUTO) else float(text)
    except ValueError:
        raise BadInput(
            "--shield", text, "give expected hot hours of a machine and day, such as 0.01, or auto"
        ) from None


def _lines_tuned(data: dict[str, Any], path: Path) -> list[str]:
    made = data["calibration"]
    rows: list[tuple[object, ...]] = [("week", "cores saved", "hot weeks, assessed")]
    rows += [(week, f"{made['s_cores'][week]:.1%}", f"{risk:.1%}") for week, risk in made["c_hot_r_assessed"].items()]
    lines = [" ".join(f"{rate:g}" for rate in data["rates"]), "", *columns(rows)]
    if "held_out" in made:
        held = made["held_out"]
        lines.append(
            f"{held['weeks']} redrawn weeks: {max(held['c_hot_r']):.1%} hot in the worst, "
            f"at most {held['c_hot_r_upper_95']:.1%} together (95 %), {made['raised']} rates raised for it"
        )
    return [*lines, str(path) if data["feasible"] else f"not safe: no rates keep the promise here ({path})"]


@dataclass(frozen=True, kw_only=True)
class PromoteOversubscription(Promotion):
    """Let a model, or a file of rates, decide for a pool if it reserves less and keeps the promise on held-out weeks.

    It runs behind the agent's shield, against the policy in use and the best tuned rates, on weeks of the pool's own
    usage (--scenario FOLDER) or of a packaged scenario. The pool's policy must be `learned`; the
    agent takes up a new champion with the next hour.
    """

    DECISION = "oversubscription"
    EPILOG = epilog(
        """
The gate: weeks that no model was trained on, behind the guard of the agent.
  the promise kept for sure; fewer cores reserved than by the policy in use, in 95 %
  of paired bootstrap resamples; at most 5 % more than the best tuned rates.
  Else the policy in use stays.
""",
        STATUSES_OF_GATE,
        calls=(
            "trimtab promote oversubscription main MODEL.onnx --scenario FOLDER",
            "trimtab promote oversubscription main --rollback",
        ),
    )

    scenario: Annotated[str, "NAME|FOLDER", "internal_like, azure_like, or a folder of the pool's own usage."] = (
        "internal_like"
    )
    held_out: Annotated[str, "WEEK,...", "Weeks of the scenario that no model was trained on."] = ""
    weeks: Annotated[int, "Weeks redrawn from the scenario's requests.", Bounds(min=1)] = 8
    episodes: Annotated[int, "Usage drawn for each week.", Bounds(min=1)] = 300
    evaluations: Annotated[int, "Weeks assessed to find the best tuned rule.", Bounds(min=1)] = 1_500
    start: StartOption = "cold"
    against: Annotated[str, "POLICY", "Policy in use without a champion, as `simulate` takes it; else MA."] = "ma"

    def check(self) -> None:
        """Raise BadInput for a pool that the settings do not have."""
        pool_of_settings(self.subject)

    def usual_directory(self) -> Path:
        """Return the directory of the pool's policy where that names one."""
        return pool_of_settings(self.subject)[1] or super().usual_directory()

    def verify(self, path: Path) -> object:
        """Raise BadInput or ModelRefused for a file that the pool cannot decide by."""
        return verified(path, pool_of_settings(self.subject)[0])

    def gate(self) -> Gate:
        """Return weeks of the scenario."""
        from agent.oversubscription.rule_model import CORE_HOURS
        from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET
        from simulator.oversubscription.scenario import scenario_of
        from trainer.promotion.gate import Limits
        from trainer.promotion.oversubscription import pool_gate

        rules, _ = pool_of_settings(self.subject)
        return pool_gate(
            scenario_of(self.scenario),
            Limits(),
            now=self.against,
            budget=USUAL_BUDGET if rules is None else rules.budget(None),
            margin=NO_MARGIN if rules is None else rules.margin,
            alpha=0.95 if rules is None else rules.alpha,
            start=self.start,
            weeks=words_of(self.held_out),
            drawn=self.weeks,
            episodes=self.episodes,
            evaluations=self.evaluations,
            objective=CORE_HOURS if rules is None else rules.objective,
        )


def verified(path: Path, rules: PoolRules | None) -> object:
    """Return the policy of a file for a pool, None where there are no settings; raise BadInput or ModelRefused."""
    from agent.oversubscription.decision import OversubscriptionPart
    from agent.oversubscription.rate_policies import verify_rates

    return OversubscriptionPart.model(path) if rules is None else verify_rates(path, rules)


def pool_of_settings(name: str) -> tuple[PoolRules | None, Path | None]:
    """Return the rules of a pool and the directory of its models, None for both where the settings have no pools."""
    from agent.oversubscription.settings import SUBJECTS, pool_rules_of
    from agent.settings import load_settings

    settings = load_settings(os.environ)
    pools = SUBJECTS.of(settings)
    if not one_of_settings("pool", name, [*pools]):
        return None, None
    rules = pool_rules_of(name, pools[name])
    kind, _, given = rules.policy.partition(":")
    own = Path(given) if kind == "model" and not given.endswith(".onnx") else settings.models_directory
    return rules, own


@dataclass(frozen=True, kw_only=True)
class LearnOversubscription(PromiseLearning):
    """Learn from a pool's record: rates with their shield, and a rule for each request; judge them, ask the gate.

    The record is cut into weeks of the pool's horizon; the latest two fifths are held out, with the usage that was
    measured in them. What ran, replayed on these, must reserve what was recorded, within 5 %, or the quantity that
    is off is named. Rates, and a rule trained on weeks redrawn from the earlier ones, are judged there against the
    policy in use, by the pool's OBJECTIVE. The cheaper that keeps the promise goes to the gate; if it passes it is
    the pool's champion, after its probation where there is one, and decides from the next hour on where the pool's
    POLICY is `learned`. A round that was stopped continues with the same command.

    Before a new round, the command looks after what the last ones left: the hot hours since a promotion of the last
    days are held to the promise, and it is rolled back where that is surely broken; rates on probation are judged when
    their hours are over.
    """

    DECISION = "oversubscription"
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

    name: Annotated[str, Argument(metavar="POOL", help="The key of the pool.")]
    days: Annotated[float, "DAYS", "How many of the last days are used.", Bounds(min=1.0)] = 60.0

    @cached_property
    def rules(self) -> PoolRules | None:
        """The pool by the settings, None where they have none; BadInput for one that is not among them."""
        return pool_of_settings(self.name)[0]

    def usual_directory(self) -> Path:
        """Return the directory of the pool's policy where that names one."""
        return pool_of_settings(self.name)[1] or super().usual_directory()

    def check(self) -> None:
        """Raise BadInput for an option that is wrong, or a pool that the settings do not have."""
        pool_of_settings(self.name)
        super().check()

    def write_export(self, path: Path) -> Answer:
        """Write the record and the policy in use."""
        from trainer.learning.pool import PARTS, keep_weeks

        record = _record(self.source, self.name, self.days)
        about = _about(self.in_use(record.policy), _opted_out(self.rules))
        return self.export_parts(path, PARTS, lambda folder: keep_weeks(folder, lambda: record), about)

    def verify(self, path: Path) -> object:
        """Raise BadInput for rates, or a rule, that the pool cannot decide by."""
        return verified(path, self.rules)

    def in_use(self, recorded: str) -> PoolInUse:
        """Return the policy in use: the champion, where the settings permit it, else the settings, else as recorded."""
        from agent.oversubscription.settings import RULE, rule_path
        from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET
        from trainer.learning.pool import PoolInUse, in_words

        champion, rules = self.models.champion(self.subject), self.rules
        policy = in_words(recorded if rules is None else rules.policy)
        if champion is not None and (rules is None or rules.policy == "learned"):
            policy = str(self.models.file_of(champion.model))
        budget, alpha = (USUAL_BUDGET, 0.95) if rules is None else (rules.budget(None), rules.alpha)
        if rules is None:
            return PoolInUse(self.name, policy, budget, alpha, NO_MARGIN)
        if rules.policy.startswith(f"{RULE}:"):
            policy = str(rule_path(policy, rules))
        return PoolInUse(self.name, policy, budget, alpha, rules.margin, rules.objective)

    def case(self) -> Inspection:
        """Return the case for a look at the pool's rates."""
        from trainer.learning.pool_trial import lived, replay
        from trainer.learning.pools import read_pool
        from trainer.learning.trial import Inspection

        def replayed(one: Probationer) -> PromiseReplay:
            in_use = self.in_use(read_pool(self.source, self.name).policy)
            return replay(self.source, one, in_use, str(self.models.file_of(one.model)))

        def watched(champion: Champion) -> Promise | str:
            return lived(self.source, self.name, champion)

        return Inspection(self.subject, self.models, self.verify, self.now_s, watched, replayed)

    def round(self) -> End:
        """Do a round."""
        from trainer.learning.pool import EARLIER, PoolRound, PoolSettings, keep_weeks
        from trainer.learning.state import opened

        self.set_aside()
        self.place_parts()
        digest = keep_weeks(self.folder, lambda: _record(self.source, self.name, self.days))
        if self.given is not None:
            in_use, opted_out = _in_use_elsewhere(self.models, self.given.about)
        else:
            kept = json.loads((self.folder / EARLIER / f"{self.name}.json").read_bytes())
            in_use, opted_out = self.in_use(kept["recorded"]["policy"]), _opted_out(self.rules)
        facts = {"pool": self.name, "alpha": in_use.alpha, "budget": in_use.budget}
        facts |= {"margin": list(astuple(in_use.margin)), "opted_out": sorted(opted_out), "record": digest}
        facts |= {"objective": in_use.objective}
        work = PoolRound(
            in_use=in_use,
            opted_out=opted_out,
            settings=PoolSettings(),
            state=opened(self.folder, facts),
            verify=self.verify,
            **self.round_arguments,
        )
        work.go_on()
        return round_end(work, _lines_round(work))


def _record(source: str, pool: str, days: float) -> PoolRecord:
    from trainer.learning.pools import newest_of, read_pool

    return read_pool(source, pool, since=newest_of(source, pool) - days * DAY_S)


def _opted_out(rules: PoolRules | None) -> frozenset[str]:
    return frozenset() if rules is None else frozenset(n for n, one in rules.subscribers.items() if one.opted_out)


def _about(in_use: PoolInUse, opted_out: frozenset[str]) -> dict[str, Any]:
    """Return what decides for a pool as data; a policy that is a file goes along."""
    given = {**asdict(in_use), "opted_out": sorted(opted_out)}
    return {**given, "policy": "", "file": in_use.policy} if Path(in_use.policy).is_file() else given


def _in_use_elsewhere(models: ModelsWriter, about: Mapping[str, Any]) -> tuple[PoolInUse, frozenset[str]]:
    """Return what decides for a pool, and who is reserved in full, by the file that its record came in."""
    from domain.rules.oversubscription.rates import Margin
    from trainer.learning.pool import PoolInUse

    given = dict(about)
    try:
        opted_out, file = frozenset(map(str, given.pop("opted_out"))), given.pop("file", None)
        if file is not None:
            given["policy"] = str(models.file_of(str(file)))
        return PoolInUse(**given | {"margin": Margin(**given["margin"])}), opted_out
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("--from", "export.json", f"it does not name the present policy: {error}") from None


def _lines_round(work: PoolRound) -> list[str]:
    from trainer.learning.pool import OF_OBJECTIVE, HeldOutResult
    from trainer.learning.round import GateResult, Truth

    truth, name = work.state.result(Truth), work.in_use.pool
    if not truth.holds:
        return [truth.sentence]
    judged = work.state.result(HeldOutResult)
    cost = OF_OBJECTIVE[work.in_use.objective]
    rows: list[tuple[object, ...]] = [("on the later weeks", cost, "hot, worst week", "at most, 95 %", "promise")]
    for label, reserved in judged.reserved.items():
        kept = "kept" if judged.keeps[label] else "broken"
        mean, worst = sum(reserved) / len(reserved), max(judged.hot[label])
        rows.append((label, f"{mean:.1%}", f"{worst:.1%}", f"{judged.upper_95[label]:.1%}", kept))
    challenger = work.challenger()
    model = work.model if isinstance(challenger, str) else challenger
    lines = [truth.sentence, *columns(rows), *gate_lines(work, str(model), name)]
    if work.state.result(GateResult).promoted:
        lines.insert(-1, f"it decides from the next hour on where TRIMTAB_POOLS__{name}__POLICY is `learned`")
    return lines
