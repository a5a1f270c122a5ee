"""Finds the models of learned policies: the champion of a directory, a file, or one that comes with the agent.

`learned` is the champion that `champion.json` in the models directory names, else the first shipped model that fits the
fleet. `model:FILE` is that file. Both become `learned:<sha256>`, the name under which a decision is recorded. A new
champion is taken up at the next tick, whole or not at all: one that is refused leaves the one before it in place.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.model_card import misfit
from agent.policies.ppo_lstm import LEARNED, MODEL, LearnedPolicy, sha_of
from agent.shipped.index import DIRECTORY, shipped_models
from domain.errors import BadInput, TrimtabError
from domain.fleet import Fleet

if TYPE_CHECKING:
    from agent.models import Model

log = structlog.get_logger(__name__)

CHAMPION = "champion.json"

Signature = tuple[int, int, int] | None


@checked(frozen=True)
class Champion:
    """What `trimtab promote` writes: the file in use, the one before it, the report that speaks for it, and when."""

    model: str
    previous: str | None = None
    report: str | None = None
    at: float | str | None = None


class ModelMissing(BadInput):
    """A model that a recorded decision names is in none of the places where models are looked for."""


class ModelShelf:
    """Keeps every model it has verified; safe to use from several threads. `directory` may not exist yet."""

    def __init__(self, directory: Path | None = None, shipped: Path = DIRECTORY) -> None:
        self._directory, self._shipped = directory, shipped
        self._lock = threading.RLock()
        self._verified: dict[str, Model] = {}
        self._refused: dict[Path, tuple[Signature, str]] = {}
        self._files: dict[Path, tuple[Signature, str]] = {}
        self._looked: tuple[Signature, Signature] = (None, None)
        self._named: Path | None = None
        self._champion: Model | None = None
        self.refusal = ""

    @property
    def champion(self) -> Model | None:
        """The champion in use, None before the first."""
        return self._champion

    def resolve(self, text: str, fleet: Fleet) -> str:
        """Return `learned:<sha256>` for any name of a model; BadInput says why there is none."""
        with self._lock:
            if sha_of(text):
                return text
            name, _, rest = text.partition(":")
            if name == MODEL:
                return LearnedPolicy(self._load(Path(rest))).name
            if rest:
                raise BadInput("policy", text, f"give {LEARNED}, {LEARNED}:<sha256> or {MODEL}:FILE")
            self.look()
            return LearnedPolicy(self._champion or self._first_shipped(fleet)).name

    def policy(self, text: str, fleet: Fleet) -> LearnedPolicy:
        """Return the policy of that name; BadInput says why it cannot be had."""
        with self._lock:
            return LearnedPolicy(self.model(sha_of(self.resolve(text, fleet))))

    def fits(self, text: str, fleet: Fleet) -> bool:
        """Return whether the name leads to a model that can decide for the fleet."""
        try:
            return not misfit(self.policy(text, fleet).model.card, fleet)
        except BadInput:
            return False

    def model(self, sha: str) -> Model:
        """Return the model with that SHA-256; ModelMissing names the places that were looked at."""
        with self._lock:
            if sha not in self._verified:
                places = [place for place in (self._directory, self._shipped) if place is not None]
                path = next((p / f"{sha}.onnx" for p in places if (p / f"{sha}.onnx").is_file()), None)
                if path is None:
                    where = " and ".join(str(place) for place in places)
                    raise ModelMissing("model", sha, f"put {sha}.onnx into the models directory; looked in {where}")
                self._load(path)
            return self._verified[sha]

    def look(self, *, again: bool = False) -> bool:
        """Take up the champion that `champion.json` names, if that has changed; return whether another is in use now.

        again: also when nothing has changed, as after SIGHUP. What is wrong with a new one stands in `refusal` until
        one is taken up.
        """
        if self._directory is None:
            return False
        with self._lock:
            index = self._directory / CHAMPION
            seen = (_signature(index), _signature(self._named))
            if seen == self._looked and not again:
                return False
            before = self._champion
            self._named, self.refusal = None, ""
            if seen[0] is None:
                # Whoever takes the file away wants no champion.
                self._champion = None
            else:
                try:
                    self._named = self._directory / read_champion(index).model
                    self._champion = self._load(self._named, again=again)
                except TrimtabError as refusal:
                    self.refusal = str(refusal)
                    log.error("model_refused", detail=self.refusal, stays=before.name if before else None)
            self._looked = (seen[0], _signature(self._named))
            return self._champion is not before

    def _first_shipped(self, fleet: Fleet) -> Model:
        if self.refusal:
            raise BadInput("champion", str(self._directory), self.refusal)
        why = []
        for shipped in shipped_models(self._shipped):
            model = self._load(shipped.path)
            unfit = misfit(model.card, fleet)
            if not unfit:
                return model
            why.append(f"{shipped.name}: {unfit}")
        told = "; ".join(why) or "no model comes with this version"
        remedy = f"promote a model trained for the fleet, or name a file by {MODEL}:FILE ({told})"
        raise BadInput("learned policy", "no champion", remedy)

    def _load(self, path: Path, *, again: bool = False) -> Model:
        """Return the verified model of a file; one that was refused is read again only when it has changed."""
        # ONNX Runtime costs a third of a second and 30 MB: only who has a model pays for it.
        from agent.models import ModelRefused, load_model

        signature = _signature(path)
        known = self._files.get(path)
        if known is not None and known[0] == signature and signature is not None:
            return self._verified[known[1]]
        refused = self._refused.get(path)
        if refused is not None and refused[0] == signature and signature is not None and not again:
            raise ModelRefused("model file", str(path), refused[1])
        try:
            model = load_model(path)
        except ModelRefused as refusal:
            self._refused[path] = (signature, refusal.remedy)
            raise
        self._refused.pop(path, None)
        self._files[path] = (signature, model.name)
        self._verified.setdefault(model.name, model)
        return self._verified[model.name]


def read_champion(path: Path) -> Champion:
    """Return which model of a directory is in use; BadInput says what is wrong with the file that names it."""
    try:
        champion = TypeAdapter(Champion).validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput("champion", str(path), f"{error.strerror}: promote a model") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise BadInput("champion", str(path), f"{where}: {first['msg'].lower()}; promote a model again") from None
    if Path(champion.model).name != champion.model or not champion.model.endswith(".onnx"):
        raise BadInput("champion", champion.model, f"{path} must name a file beside it, <sha256>.onnx")
    return champion


def _signature(path: Path | None) -> Signature:
    """Return what changes when a file is replaced or rewritten, None while there is none."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
