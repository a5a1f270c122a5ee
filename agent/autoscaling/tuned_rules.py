"""Tuned settings of the queue rule: taken up from the models directory before a turn, and shown to people.

A setting is the champion of its fleet under `queue-rule`. It is in force where the settings give neither HORIZON_S nor
IDLE_S. One that is refused leaves the one before it in force, or else the settings' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from agent.autoscaling.fleets import ManagedFleet
from agent.kernel.decision import ModelSummary
from agent.kernel.metrics import Reading
from agent.kernel.text import time_text
from agent.models.directory import ROLLED_BACK, Champion, ModelsDirectory, forced_reason
from agent.models.queue_rule import TunedSetting, load_rule, tuning_in
from agent.models.shelf import Shelf
from domain.decisions import Event, Reason
from domain.errors import TrimtabError
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject, fleet_subject
from domain.units import DAY_S

log = structlog.get_logger(__name__)

NEWS_S: Final = DAY_S
"""A rollback longer ago raises no event when the agent starts; a proposal is mentioned again after so long."""
CLOCK_AHEAD_S: Final = 300.0
"""So far may the clock of the process that took a setting back be ahead of the agent's."""


def setting_summary(path: Path) -> ModelSummary:
    """Return the content of a setting's file; ModelRefused."""
    setting = load_rule(path)
    data = {"fleet": setting.fleet, **asdict(setting.rule)}
    return ModelSummary(data, "queue", "targets", "queue rule", f"fleet {setting.fleet}")


def _numbers(setting: TunedSetting) -> str:
    return f"horizon {setting.rule.horizon_s:g} s, idle {setting.rule.idle_s:g} s"


def _why(champion: Champion, report: Mapping[str, Any]) -> str:
    """Return since when and why a champion is in use, by its report."""
    since = "" if champion.at_s is None else f" since {time_text(champion.at_s)}"
    tuning, forced = tuning_in(report), forced_reason(report)
    why = f"forced: {forced}" if forced else "" if tuning is None else tuning.sentence
    return f"{since}, {why}" if why else since


class TunedRules:
    """The tuned settings of one agent's fleets. `take_up` is called by the loop's thread, the others by any.

    key, patience_s: see `ModelsDirectory` and `Shelf`.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None, patience_s: float | None = None) -> None:
        self._directory = ModelsDirectory(directory, key)
        self.shelf: Shelf[TunedSetting] = Shelf(self._directory, QUEUE_RULE, load_rule, (directory,), patience_s)
        self._origins: dict[str, tuple[tuple[str, Champion], str]] = {}
        self._in_force: Mapping[str, tuple[RuleSetting, str]] = {}
        self._fault = ""
        self._shown: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._proposed: dict[str, tuple[str, float]] = {}

    def take_up(self, fleets: Sequence[ManagedFleet]) -> Sequence[ManagedFleet]:
        """Return the fleets, each under its tuned setting where there is one; a refusal changes none.

        It never raises: by a fault here no fleet loses its turn, and the settings of the last turn stay.
        """
        if not any(one.follows for one in fleets):
            return fleets
        try:
            self.shelf.look()
            held = ((one.fleet.name, self.setting(one)) for one in fleets)
            self._in_force = {name: (one.rule, self._origin(one)) for name, one in held if one is not None}
            self._fault = ""
        except Exception as error:
            fault = repr(error)
            if fault != self._fault:
                log.exception("tuned_rules_failed", detail=fault)
            self._fault = fault
        return [self._tuned(one) for one in fleets]

    def reload(self) -> None:
        """Look at the directory at once, also at files that were refused before."""
        self.shelf.look(again=True)

    def setting(self, managed: ManagedFleet) -> TunedSetting | None:
        """Return the setting in force for a fleet, None for the settings' own."""
        found = self.shelf.champions.get(managed.fleet.name) if managed.follows else None
        return found if found is not None and found.fleet == managed.fleet.name else None

    def refusal(self, managed: ManagedFleet) -> str:
        """Return why the setting that the directory names for a fleet is refused, "" where it is not."""
        if not managed.follows:
            return ""
        found = self.shelf.champions.get(managed.fleet.name)
        if found is not None and found.fleet != managed.fleet.name:
            return f"champion of {managed.fleet.name}: {found.name[:12]} is a setting of the fleet {found.fleet}"
        name = managed.fleet.name
        return self.shelf.refusal_of(name) or self.shelf.refusal_on_probation(name)

    def _tuned(self, managed: ManagedFleet) -> ManagedFleet:
        held = self._in_force.get(managed.fleet.name) if managed.follows else None
        return managed if held is None else managed.under(*held)

    def _origin(self, setting: TunedSetting) -> str:
        """Return since when a setting is in force and why, read once from its report for each line of the pointer."""
        champion = self.shelf.lines[setting.fleet]
        known = self._origins.get(setting.fleet)
        if known is not None and known[0] == (setting.name, champion):
            return known[1]
        try:
            report = self._directory.check(Subject(QUEUE_RULE, setting.fleet), champion)
        except TrimtabError:
            # Verified when it was taken up, and gone since: the next call reads it again.
            return _numbers(setting)
        text = f"{_numbers(setting)}{_why(champion, report)}"
        self._origins[setting.fleet] = (setting.name, champion), text
        return text

    def line(self, managed: ManagedFleet) -> str:
        """Return why a fleet's setting is refused, and which one waits for an approval; "" for neither."""
        refusal, proposal = self.refusal(managed), self.proposal(managed)
        said = [refusal and f"refused: {refusal}", proposal and f"proposed: {proposal}"]
        return "; ".join(filter(None, said))

    def proposal(self, managed: ManagedFleet) -> str:
        """Return the setting that waits for a person's approval, and its savings; "" for none."""
        name = managed.fleet.name
        found = self.shelf.probationers.get(name) if managed.follows else None
        if found is None or found.fleet != name:
            return ""
        subject = Subject(QUEUE_RULE, name)
        try:
            held = self._directory.probationers().get(subject)
            tuning = None if held is None else tuning_in(self._directory.check_probationer(subject, held))
        except TrimtabError:
            tuning = None
        saves = f", {tuning.sentence}" if tuning is not None else ""
        return f"{_numbers(found)}{saves}; `trimtab approve {QUEUE_RULE} {name}` puts it in use"

    def decided(self, tuned: Mapping[str, str]) -> None:
        """Take the origins of the settings of each fleet's last decision: only a change since then is an event."""
        self._shown.update(tuned)

    def events(self, now: float, fleets: Sequence[ManagedFleet]) -> Iterator[Event]:
        """Yield the changes since the last call: a setting taken up, taken back, refused or proposed."""
        for managed in fleets:
            if managed.follows:
                yield from self._events(now, managed)

    def _events(self, now: float, managed: ManagedFleet) -> Iterator[Event]:
        name = managed.fleet.name
        subject, setting = fleet_subject(name), self.setting(managed)
        held = "" if setting is None else self._origin(setting)
        before = self._shown.get(name)
        if held != (before or ""):
            text = "the settings' own rule decides" if setting is None else f"it follows {held}"
            yield Event(subject, now, Reason.MODEL_READY, text, QUEUE_RULE)
        if held != before:
            self._shown[name] = held
            if back := self._rolled_back(name, now):
                yield Event(subject, now, Reason.PROMOTION_ROLLED_BACK, back, QUEUE_RULE)
        refusal = self.refusal(managed)
        if refusal and self._refused.get(name) != refusal:
            yield Event(subject, now, Reason.MODEL_REFUSED, refusal, QUEUE_RULE)
        self._refused[name] = refusal
        proposal = self.proposal(managed)
        known, at = self._proposed.get(name, ("", 0.0))
        if proposal and (known != proposal or not 0.0 <= now - at < NEWS_S):
            self._proposed[name] = proposal, now
            yield Event(subject, now, Reason.SETTING_PROPOSED, proposal, QUEUE_RULE)

    def _rolled_back(self, name: str, now: float) -> str:
        """Return why the fleet's last change was a recent rollback, else ""."""
        try:
            history = self._directory.history(Subject(QUEUE_RULE, name))
        except TrimtabError:
            # The change itself is an event without it.
            return ""
        last = history[-1] if history else {}
        at = Champion("", at=last.get("at")).at_s
        if last.get("event") != ROLLED_BACK or at is None or not -CLOCK_AHEAD_S <= now - at < NEWS_S:
            return ""
        why = last.get("reason") or "by hand"
        return f"the setting {str(last.get('left'))[:12]} of the queue rule is rolled back: {why}"

    def readings(self, fleets: Sequence[ManagedFleet]) -> Iterator[Reading]:
        """Yield the values in force of each fleet, whether these are tuned, and whether a setting waits."""
        for managed in fleets:
            name, tuned = managed.fleet.name, self._tuned(managed)
            horizon_s = tuned.horizon_s
            if horizon_s is not None:
                yield "queue_rule_horizon_seconds", (name,), horizon_s
                yield "queue_rule_idle_seconds", (name,), tuned.aggregation.idle_s
            yield "queue_rule_tuned", (name,), self.setting(managed) is not None
            yield "queue_rule_proposed", (name,), bool(managed.follows) and name in self.shelf.probationers
