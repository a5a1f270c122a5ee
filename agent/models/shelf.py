"""Finds the models of learned policies: the champion of a directory, a file, or one that comes with the agent.

`learned` is the champion that `champion.json` in the models directory names for the fleet, else the one that it names
for every fleet where that fits, else the first shipped model that fits. `model:FILE` is that file. Both become
`learned:<sha256>`, the name under which a decision is recorded. A new champion is taken up at the next tick, whole or
not at all: one that is refused leaves the one before it in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from agent.autoscaling.policies.ppo_lstm import LEARNED, MODEL, LearnedPolicy, names_model, sha_of
from agent.models.background import Background
from agent.models.card import misfit
from agent.models.champions import CHAMPION, EVERY_FLEET, NO_CHAMPIONS, check_promotion, read_champions
from agent.models.shipped.index import DIRECTORY, shipped_models
from agent.settings import Settings
from domain.errors import BadInput, Mistake, TrimtabError
from domain.fleet import Fleet

if TYPE_CHECKING:
    from agent.models.file import Model

log = structlog.get_logger(__name__)

Signature = tuple[int, int, int] | None


class ModelMissing(BadInput):
    """A model that a recorded decision names is in none of the places where models are looked for."""


class ModelPending(BadInput):
    """A model is still being read and tried; ask again in a minute."""


class ModelUnfit(BadInput):
    """There are sound models, and none of them can decide for the fleet."""


class ModelShelf:
    """Keeps every model it has verified; safe to use from several threads. `directory` may not exist yet.

    key: with it the report of a champion must be signed with that key. patience_s: files are read and models tried in
    threads of their own, and a caller waits so long for one of them, in all and not each time; None waits for its end.
    """

    def __init__(
        self,
        directory: Path | None = None,
        shipped: Path = DIRECTORY,
        *,
        key: bytes | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._directory, self._shipped = directory, shipped
        self._key, self.patience_s = key, patience_s
        self._lock, self._looking = threading.RLock(), threading.Lock()
        self._verified: dict[str, Model] = {}
        self._refused: dict[Path, tuple[Signature, str]] = {}
        self._files: dict[Path, tuple[Signature, str]] = {}
        self._under_way: dict[str, Background[Model | None]] = {}
        self._seen: Mapping[Path, Signature] | None = None
        self._again = False
        self._in_use: Mapping[str, Model] = MappingProxyType({})
        self._refusals: Mapping[str, str] = MappingProxyType({})

    @property
    def champions(self) -> Mapping[str, Model]:
        """The champions in use by fleet, that of every other fleet under ""; empty before the first."""
        return self._in_use

    @property
    def champion(self) -> Model | None:
        """The champion in use of the fleets that have none of their own, None before the first."""
        return self._in_use.get(EVERY_FLEET)

    @property
    def refusals(self) -> tuple[str, ...]:
        """What is wrong with what `champion.json` names, one sentence each, until all of it has been taken up."""
        return tuple(dict.fromkeys(self._refusals.values()))

    @property
    def refusal(self) -> str:
        """The refusals as one text, "" for none."""
        return "; ".join(self.refusals)

    def resolve(self, text: str, fleet: Fleet) -> str:
        """Return `learned:<sha256>` for any name of a model; BadInput says why there is none."""
        if sha_of(text):
            return text
        name, _, rest = text.partition(":")
        if name == MODEL:
            return LearnedPolicy(self._load(Path(rest))).name
        if rest:
            raise BadInput("policy", text, f"give {LEARNED}, {LEARNED}:<sha256> or {MODEL}:FILE")
        self.look()
        return LearnedPolicy(self._for(fleet)).name

    def policy(self, text: str, fleet: Fleet) -> LearnedPolicy:
        """Return the policy of that name; BadInput says why it cannot be had."""
        return LearnedPolicy(self.model(sha_of(self.resolve(text, fleet))))

    def check(self, text: str, fleet: Fleet) -> None:
        """Raise BadInput when the name leads to no model, ModelUnfit when none that it leads to fits the fleet."""
        unfit = misfit(self.policy(text, fleet).model.card, fleet)
        if unfit:
            raise ModelUnfit("learned policy", text, f"{unfit}: name a model trained for the fleet, or another policy")

    def fits(self, text: str, fleet: Fleet) -> bool:
        """Return whether the name leads to a model that can decide for the fleet."""
        try:
            self.check(text, fleet)
        except BadInput:
            return False
        return True

    def model(self, sha: str) -> Model:
        """Return the model with that SHA-256; ModelMissing names the places that were looked at."""
        with self._lock:
            known = self._verified.get(sha)
        if known is not None:
            return known
        places = [place for place in (self._directory, self._shipped) if place is not None]
        path = next((p / f"{sha}.onnx" for p in places if (p / f"{sha}.onnx").is_file()), None)
        if path is None:
            where = " and ".join(str(place) for place in places)
            raise ModelMissing("model", sha, f"put {sha}.onnx into the models directory; looked in {where}")
        return self._load(path)

    def look(self, *, again: bool = False) -> bool:
        """Take up what `champion.json` names, if that has changed; return whether other models are in use now.

        again: also when nothing has changed, as after SIGHUP. What is wrong with a new one stands in `refusal` until
        one is taken up. A look that takes longer than the patience goes on by itself.
        """
        directory = self._directory
        if directory is None:
            return False
        before = self._in_use
        with self._lock:
            self._again |= again
        try:
            self._await(str(directory), lambda: self._look(directory))
        except ModelPending as pending:
            log.warning("models_pending", detail=str(pending))
        return self._in_use is not before

    def _look(self, directory: Path) -> None:
        with self._looking:
            with self._lock:
                again, self._again = self._again, False
            if again or self._seen is None or self._seen != {path: _signature(path) for path in self._seen}:
                self._take_up(directory, again)

    def _take_up(self, directory: Path, again: bool) -> None:
        index = directory / CHAMPION
        seen = {index: _signature(index)}
        in_use: dict[str, Model] = {}
        refusals: dict[str, str] = {}
        named = NO_CHAMPIONS
        # Whoever takes the file away wants no champion.
        if seen[index] is not None:
            try:
                named = read_champions(index)
            except TrimtabError as refusal:
                in_use, refusals = dict(self._in_use), {EVERY_FLEET: str(refusal)}
        for fleet, champion in named.by_fleet.items():
            paths = [directory / champion.model, *([directory / Path(champion.report).name] if champion.report else [])]
            seen |= {path: _signature(path) for path in paths}
            try:
                check_promotion(directory, champion, self._key)
                in_use[fleet] = self._verify(directory / champion.model, again=again)
            except TrimtabError as refusal:
                refusals[fleet] = f"champion of {fleet}: {refusal}" if fleet else str(refusal)
                before = self._in_use.get(fleet)
                if before is not None:
                    in_use[fleet] = before
        for detail in dict.fromkeys(refusals.values()):
            log.error("model_refused", detail=detail)
        with self._lock:
            if {fleet: model.name for fleet, model in in_use.items()} != {
                fleet: model.name for fleet, model in self._in_use.items()
            }:
                self._in_use = MappingProxyType(in_use)
            self._refusals, self._seen = MappingProxyType(refusals), seen

    def _for(self, fleet: Fleet) -> Model:
        own, every = self._in_use.get(fleet.name), self._in_use.get(EVERY_FLEET)
        if own is not None:
            return own
        refusal = self._refusals.get(fleet.name) or self._refusals.get(EVERY_FLEET)
        if fleet.name in self._refusals or (every is None and refusal):
            raise BadInput("champion", str(self._directory), refusal or "")
        if self._directory is not None and self._seen is None:
            raise ModelPending("champion", str(self._directory), "it is still being read and tried: wait for it")
        unfit = "" if every is None else misfit(every.card, fleet)
        if every is not None and not unfit:
            return every
        return self._first_shipped(fleet, f"the champion: {unfit}" if unfit else "")

    def _first_shipped(self, fleet: Fleet, of_champion: str) -> Model:
        why = [of_champion] if of_champion else []
        for shipped in shipped_models(self._shipped):
            model = self._load(shipped.path)
            unfit = misfit(model.card, fleet)
            if not unfit:
                return model
            why.append(f"{shipped.name}: {unfit}")
        told = "; ".join(why) or "no model comes with this version"
        remedy = f"promote a model trained for the fleet, or name a file by {MODEL}:FILE ({told})"
        raise ModelUnfit("learned policy", "a champion that does not fit" if of_champion else "no champion", remedy)

    def _load(self, path: Path) -> Model:
        """Return the verified model of a file; ModelPending when it is not ready yet."""
        model = self._await(str(path), lambda: self._verify(path))
        assert model is not None, "verified or refused"
        return model

    def _await(self, task: str, call: Callable[[], Model | None]) -> Model | None:
        """Return what the call returns, run in a thread of its own; ModelPending when that outlasts the patience."""
        if self.patience_s is None:
            return call()
        with self._lock:
            begun = self._under_way.get(task)
            # What ended unseen is kept with the shelf; asked anew it answers at once.
            if begun is None or begun.over():
                begun = self._under_way[task] = Background(f"model {task}", call)
        if not begun.over(self.patience_s):
            why = f"it is still being read and tried, for {begun.age_s:.0f} s now: wait for it"
            raise ModelPending("model", task, why)
        with self._lock:
            if self._under_way.get(task) is begun:
                del self._under_way[task]
        return begun.answer()

    def _verify(self, path: Path, *, again: bool = False) -> Model:
        """Return the verified model of a file; one that was refused is read again only when it has changed."""
        # ONNX Runtime costs a third of a second and 30 MB: only who has a model pays for it.
        from agent.models.file import ModelRefused, load_model

        signature = _signature(path)
        with self._lock:
            known, refused = self._files.get(path), self._refused.get(path)
            if known is not None and known[0] == signature and signature is not None:
                return self._verified[known[1]]
        if refused is not None and refused[0] == signature and signature is not None and not again:
            raise ModelRefused("model file", str(path), refused[1])
        try:
            model = load_model(path)
        except ModelRefused as refusal:
            with self._lock:
                self._refused[path] = (signature, refusal.remedy)
            raise
        with self._lock:
            self._refused.pop(path, None)
            self._files[path] = (signature, model.name)
            return self._verified.setdefault(model.name, model)


def _signature(path: Path) -> Signature:
    """Return what changes when a file is replaced or rewritten, None while there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def named_policy(settings: Settings, text: str) -> str:
    """Return the policy's name; a learned one is that of the model file in the settings, where one is set."""
    path = settings.learned.model_file
    return f"{MODEL}:{path}" if text == LEARNED and path is not None else text


def unfit_models(settings: Settings, shelf: ModelShelf) -> list[Mistake]:
    """Return a mistake for every fleet with a learned policy that none of the models at hand can decide for.

    A model that is damaged, or that is not ready in time, is no mistake of the settings: it may come, and the rules
    stand in until then.
    """
    mistakes = []
    for name, fleet in settings.fleets.items():
        for role, text in (("POLICY", fleet.policy_text), ("SHADOW", fleet.shadow_text)):
            if text is None or not names_model(text):
                continue
            try:
                shelf.check(named_policy(settings, text), settings.fleet(name))
            except ModelUnfit as unfit:
                mistakes.append(Mistake(f"TRIMTAB_FLEETS__{name}__{role}", text, unfit.remedy))
            except BadInput as error:
                log.warning("model_refused", fleet=name, detail=str(error))
    return mistakes
