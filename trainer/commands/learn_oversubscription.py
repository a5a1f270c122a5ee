"""`trimtab learn oversubscription`: from what a pool's ledger recorded to the rates that decide for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import DAY_S
from trainer.commands.endings import STATUSES_OF_PROMISE, End
from trainer.commands.learn import PromiseLearning, gate_lines, round_end
from trainer.commands.options import Bounds, epilog
from trainer.commands.promote_oversubscription import pool_of_settings
from trainer.commands.verb import Answer

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer
    from domain.rules.oversubscription.pool import PoolRules
    from trainer.learning.pool import PoolInUse, PoolRound
    from trainer.learning.pools import RecordedPool
    from trainer.learning.trial import Inspection, Promise, PromiseReplay
    from trainer.promotion.directory import ModelsWriter


@dataclass(frozen=True, kw_only=True)
class LearnOversubscription(PromiseLearning):
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
        """Raise BadInput for rates that the pool cannot decide by."""
        from agent.oversubscription.rate_policies import verify_rates
        from agent.oversubscription.settings import read_rates

        return read_rates(path) if self.rules is None else verify_rates(path, self.rules)

    def in_use(self, recorded: str) -> PoolInUse:
        """Return the policy in use: the champion, where the settings permit it, else the settings, else as recorded."""
        from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET
        from trainer.learning.pool import PoolInUse, in_words

        champion, rules = self.models.champion(self.subject), self.rules
        policy = in_words(recorded if rules is None else rules.policy)
        if champion is not None and (rules is None or rules.policy == "learned"):
            policy = str(self.models.file_of(champion.model))
        budget, alpha = (USUAL_BUDGET, 0.95) if rules is None else (rules.budget(None), rules.alpha)
        margin = NO_MARGIN if rules is None else rules.margin
        return PoolInUse(self.name, policy, budget, alpha, margin)

    def case(self) -> Inspection:
        """Return the case for a look at the pool's rates."""
        from trainer.learning.pool_trial import lived, replay
        from trainer.learning.pools import read_pool
        from trainer.learning.trial import Inspection

        def replayed(one: Probationer) -> PromiseReplay:
            in_use = self.in_use(read_pool(self.source, self.name).policy)
            texts = (in_use.policy, str(self.models.file_of(one.model)))
            return replay(self.source, self.name, one, texts, in_use.budget, in_use.margin, in_use.alpha)

        def watched(champion: Champion) -> Promise | str:
            return lived(self.source, self.name, champion)

        return Inspection(self.subject, self.models, self.verify, self.now_s, watched, replayed)

    def round(self) -> End:
        """Do a round."""
        import json

        from trainer.learning.pool import EARLIER, PoolRound, PoolSettings, keep_weeks
        from trainer.learning.state import opened

        self.set_aside()
        self.place_parts()
        digest = keep_weeks(self.folder, lambda: _record(self.source, self.name, self.days))
        if self.parts is not None:
            in_use, opted_out = _in_use_elsewhere(self.models, self.parts.about)
        else:
            kept = json.loads((self.folder / EARLIER / f"{self.name}.json").read_bytes())
            in_use, opted_out = self.in_use(kept["recorded"]["policy"]), _opted_out(self.rules)
        facts = {"pool": self.name, "alpha": in_use.alpha, "budget": in_use.budget}
        facts |= {"margin": list(astuple(in_use.margin)), "opted_out": sorted(opted_out), "record": digest}
        work = PoolRound(
            in_use=in_use,
            opted_out=opted_out,
            settings=PoolSettings(),
            state=opened(self.folder, facts),
            verify=self.verify,
            **self.round_arguments,
        )
        work.go_on()
        return round_end(work, _lines(work))


def _record(source: str, pool: str, days: float) -> RecordedPool:
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


def _lines(work: PoolRound) -> list[str]:
    from trainer.learning.pool import Judged
    from trainer.learning.round import GateResult, Truth

    truth, name = work.state.result(Truth), work.in_use.pool
    if not truth.holds:
        return [truth.sentence]
    judged = work.state.result(Judged)
    rows: list[tuple[object, ...]] = [("on the later weeks", "reserved", "hot, worst week", "at most, 95 %", "promise")]
    for label, reserved in judged.reserved.items():
        kept = "kept" if judged.keeps[label] else "broken"
        mean, worst = sum(reserved) / len(reserved), max(judged.hot[label])
        rows.append((label, f"{mean:.1%}", f"{worst:.1%}", f"{judged.upper_95[label]:.1%}", kept))
    lines = [truth.sentence, *columns(rows), *gate_lines(work, str(work.model), name)]
    if work.state.result(GateResult).promoted:
        lines.insert(-1, f"it decides from the next hour on where TRIMTAB_POOLS__{name}__POLICY is `learned`")
    return lines
