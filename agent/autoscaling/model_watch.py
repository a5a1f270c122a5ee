"""Records which model decides for which fleet, and why one is refused: on the board, in the log and in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.models.card import misfit, other_prices
from domain.decisions import Reason
from domain.errors import TrimtabError
from domain.subject import AGENT, Subject, fleet_subject

log = structlog.get_logger(__name__)

PROBLEM = "model"
DECIDES, SHADOW, PROBATION = "decides", "is a shadow", "is on probation: its proposals are recorded and not done"

Note = Callable[[Reason, str, Subject], None]
"""Records an event: its reason, a sentence, and its subject."""


@dataclass(slots=True)
class ModelWatch:
    """Looks at the models in use; `fleets` returns the fleets managed now, `ready` a model held for none of them.

    decided: the policy of each fleet's last decision before the start; a model that decided then raises no event.
    """

    shelf: ModelShelf
    problem: Callable[[str, str], None]
    note: Note
    fleets: Callable[[], tuple[ManagedFleet, ...]]
    ready: str | None = None
    decided: dict[str, str] = field(default_factory=dict)
    model: str = ""
    """The SHA-256 of the learned model held ready, "" for none."""
    refusal: str = ""
    """Why a model is refused, "" when none is."""
    _noted: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reload(self) -> None:
        """Look at the models directory at once, also at files that were refused before, as SIGHUP asks."""
        self.shelf.look(again=True)
        self.look()

    def look(self) -> None:
        """Record what has changed since the last look; without a learned policy and a model held ready, do nothing."""
        with self._lock:
            names: list[str] = []
            problems: list[str] = []
            for managed in self.fleets():
                names.extend(self._of_fleet(managed, text, role, problems) for text, role in self._roles(managed))
            if not names and self.ready is not None and self.fleets():
                names.append(self._resolved(self.ready, self.fleets()[0], problems))
            refusals = self.shelf.refusals
            others = [text for text in problems if not any(refusal in text for refusal in refusals)]
            sentence = "; ".join(dict.fromkeys([*refusals, *others]))
            model = next(filter(None, (sha_of(name) for name in names)), "")
            if self.model != model:
                self.model = model
                log.info("model_ready", model=model)
            if self.refusal != sentence:
                self.refusal = sentence
                self.problem(PROBLEM, sentence)
                if sentence:
                    self.note(Reason.MODEL_REFUSED, sentence, AGENT)

    def _roles(self, managed: ManagedFleet) -> list[tuple[str, str]]:
        """Return the names of the fleet's models in use, each with what it does."""
        deciding = dict.fromkeys((managed.policy, *(one.policy for one in managed.planned)))
        roles = [*((text, DECIDES) for text in deciding), *((text, SHADOW) for text in managed.shadows)]
        probationer = self.shelf.probationer(managed.fleet.name)
        found = [(text, role) for text, role in roles if names_model(text)]
        return found if probationer is None else [*found, (probationer, PROBATION)]

    def _of_fleet(self, managed: ManagedFleet, text: str, role: str, problems: list[str]) -> str:
        name, fleet = self._resolved(text, managed, problems), managed.fleet
        # There is one model that decides and one on probation; a shadow, and that of a window, is known by its setting.
        key = f"{fleet.name} {role} {text if role == SHADOW or text != managed.policy else ''}"
        if not sha_of(name):
            return name
        card = self.shelf.model(sha_of(name)).card
        unfit = misfit(card, fleet)
        if unfit:
            problems.append(f"{name} cannot decide for {fleet.name}: {unfit}")
        elif self._noted.get(key) != name:
            self._noted[key] = name
            is_champion = role == DECIDES and text == managed.policy
            before = self.decided.get(fleet.name, "") if is_champion else ""
            if is_champion:
                self.decided[fleet.name] = name
            if before == name:
                return name
            prices = other_prices(card, fleet)
            detail = f"{name} {role}" if role == PROBATION else f"{name} {role}, {self.shelf.origin(text, fleet)}"
            if before:
                why = self._why(fleet.name)
                detail += f", in place of {before}" + (f", {why}" if why else "")
            detail += f"; prices are not those of its training: {prices}" if prices else ""
            self.note(Reason.MODEL_READY, detail, fleet_subject(fleet.name))
        return name

    def _why(self, fleet: str) -> str:
        """Return the reason of the fleet's last change of champion, its own or that of every fleet."""
        directory = self.shelf.directory
        try:
            own = directory is not None and fleet_subject(fleet) in directory.champions()
            return "" if directory is None else directory.why_in_use(fleet_subject(fleet if own else ""))
        except TrimtabError:
            # Another process has changed the pointer since: the sentence has the names alone.
            return ""

    def _resolved(self, text: str, managed: ManagedFleet, problems: list[str]) -> str:
        try:
            return self.shelf.resolve(text, managed.fleet)
        except TrimtabError as error:
            problems.append(str(error))
            return ""
