"""The fleets that the settings describe, with everything their decisions depend on but the measurements."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from actuators.drift import DriftRule
from agent.autoscaling.policies.ppo_lstm import names_model
from agent.autoscaling.policies.registry import inputs_needed, policy_from_name, with_own_settings
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.autoscaling.snapshot.aggregate import AggregationSettings
from agent.rails.base import RailLimits
from agent.rails.schedule import WindowSetting, policy_at, windows_at
from agent.settings import Settings
from agent.settings.fleet import MeasuredBy, PolicyName
from agent.settings.model import named_policy
from collectors.intake import Claims
from domain.announcements import Recurring
from domain.controls import Window
from domain.fleet import Fleet
from domain.observed import Observed
from domain.rules.queue_rule import RuleSetting


@dataclass(frozen=True, slots=True)
class ManagedFleet:
    """A fleet with everything its decisions depend on but the measurements.

    shadows: policies whose proposals are recorded beside its own. schedule: work that settings announce. planned:
    windows with limits, a pause or a policy of their own. follows: parameters of the queue rule that a tuned setting
    gives. tuned: the origin of the setting in force, "" for the settings' own.
    """

    fleet: Fleet
    limits: RailLimits
    policy: str
    shadows: tuple[str, ...] = ()
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    drift: DriftRule = DriftRule.ADOPT
    schedule: tuple[Recurring, ...] = ()
    planned: tuple[WindowSetting, ...] = ()
    follows: frozenset[str] = frozenset()
    tuned: str = ""

    def under(self, setting: RuleSetting, origin: str) -> ManagedFleet:
        """Return the fleet under a tuned setting: its rule, its idle time, and the terms of learned policies."""
        given = {name: value for name, value in asdict(setting).items() if name in self.follows}
        if not setting.job_core_s:
            given.pop("job_core_s", None)
        fold, of_rule = self.aggregation, {name: value for name, value in given.items() if name != "idle_s"}

        def tuned(text: str) -> str:
            rule = policy_from_name(text) if text.partition(":")[0] == PolicyName.QUEUE_RULE else None
            if not isinstance(rule, QueueRulePolicy):
                return text
            # As settings spell it: a policy's own name rounds its numbers.
            return f"{PolicyName.QUEUE_RULE}:" + ",".join(f"{k}={v}" for k, v in {**asdict(rule), **of_rule}.items())

        folded = {name: value for name, value in given.items() if name != "horizon_s"}
        terms = None if fold.terms is None else replace(fold.terms, **given)
        return replace(
            self,
            policy=tuned(self.policy),
            shadows=tuple(map(tuned, self.shadows)),
            planned=tuple(replace(one, policy=tuned(one.policy)) for one in self.planned),
            aggregation=replace(fold, terms=terms, **folded),
            tuned=origin,
        )

    @property
    def horizon_s(self) -> float | None:
        """The horizon of the queue rule in force, None where neither it decides nor a model that is held to it."""
        rule = policy_from_name(self.policy) if self.policy.partition(":")[0] == PolicyName.QUEUE_RULE else None
        if isinstance(rule, QueueRulePolicy):
            return rule.horizon_s
        terms = self.aggregation.terms
        return terms.horizon_s if terms is not None and names_model(self.policy) else None

    def in_minute(self, now: float) -> tuple[ManagedFleet, tuple[Window, ...]]:
        """Return the fleet with the policy that decides at `now`, and the windows that are open or come."""
        if not self.planned:
            return self, ()
        windows = windows_at(self.planned, now)
        policy = policy_at(windows, now)
        if not policy:
            return self, windows
        aggregation = replace(self.aggregation, needed=inputs_needed(policy, self.aggregation.signals))
        return replace(self, policy=policy, aggregation=aggregation), windows


def managed_fleets(settings: Settings, environ: Mapping[str, str] | None = None) -> tuple[ManagedFleet, ...]:
    """Return the configured fleets, each with the inputs of its decisions.

    environ: where the own settings of other packages' policies are, by default this process's environment. Raises
    ConfigurationError for such a policy that cannot be used.
    """
    environ = os.environ if environ is None else environ
    fleets = []
    for name, fleet in settings.fleets.items():
        limits = settings.limits(name)
        aggregation = AggregationSettings(
            limits=limits,
            sample_interval_s=settings.sample_interval_s,
            grace_s=settings.grace_s,
            idle_s=fleet.idle_s,
            needed=inputs_needed(fleet.policy, fleet.own_signals),
            submitted_late=fleet.submitted_from is MeasuredBy.CLOUDWATCH,
            job_core_s=fleet.queue_rule.job_core_s,
            terms=fleet.terms,
            signals=fleet.own_signals,
        )
        drift = DriftRule(settings.drift.value)
        policy = with_own_settings(named_policy(settings, fleet.policy_text), environ)
        shadows = tuple(with_own_settings(named_policy(settings, text), environ) for text in fleet.shadow_texts)
        planned = tuple(
            replace(one, policy=one.policy and with_own_settings(named_policy(settings, one.policy), environ))
            for one in fleet.planned
        )
        described = settings.fleet(name)
        fleets.append(
            ManagedFleet(
                described, limits, policy, shadows, aggregation, drift, fleet.announced_work, planned, fleet.follows
            )
        )
    return tuple(fleets)


def claims_of(settings: Settings) -> dict[str, Claims]:
    """Return the claim limits of the sources, by fleet."""
    return {name: fleet.claim_limits() for name, fleet in settings.fleets.items()}


def vm_names(fleets: Sequence[Fleet], observed: Observed) -> Iterator[tuple[tuple[str, str, str], Sequence[str]]]:
    """Yield every VM by its fleet's and group's keys and its id, with its names in the network."""
    for fleet in fleets:
        for group in fleet.groups:
            seen = observed.groups.get(group.name)
            for instance in () if seen is None else seen.instances:
                yield (fleet.name, group.key, instance.vm), observed.names.get(instance.vm, ())
