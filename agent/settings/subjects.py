"""The subjects that decisions describe by settings, each from the module `settings` beside a decision's part.

`SUBJECTS` in that module says how: a decision brings its dictionary of settings and what it asks of them, and no file
of the agent's own settings names it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel

from agent.settings.plug_ins import DECISIONS, installed, refused

if TYPE_CHECKING:
    from agent.settings.model import Settings

SettingPath = tuple[str, ...]
S = TypeVar("S", bound=BaseModel)

MODULE: Final = "settings"
"""The module beside a part that has `SUBJECTS`."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A setting that does not fit others: its path, the paths it depends on, and what to do."""

    path: SettingPath
    depends_on: tuple[SettingPath, ...]
    remedy: str


def _no_conflicts(*about: object) -> Iterable[Conflict]:
    return ()


def _not_on_aws(subject: object) -> bool:
    return False


def needs(path: SettingPath, subject: BaseModel, field: str, other: str) -> Iterator[Conflict]:
    """Yield the conflict of a field of a subject that is set without another one."""
    if getattr(subject, field) is not None and getattr(subject, other) is None:
        yield Conflict((*path, other), (), f"{field} needs it: give both, or leave {field} out")


def refers(path: SettingPath, name: str | None, described: Container[str], words: str) -> Iterator[Conflict]:
    """Yield the conflict of a field with the key of another subject that no setting describes."""
    if name is not None and name not in described:
        yield Conflict(path, (), f"no {words} is called {name}: describe it, or leave it out")


def refers_to_fleet(path: SettingPath, name: str | None, settings: Settings) -> Iterator[Conflict]:
    """Yield the conflict of a field with the key of a fleet that does not exist; discovery may still find one."""
    if not settings.discovery.enabled:
        yield from refers(path, name, settings.fleets, "fleet")


@dataclass(frozen=True, slots=True, eq=False)
class Subjects(Generic[S]):
    """The subjects of a decision in the settings, TRIMTAB_<NAME>__<key>__<FIELD>.

    name: of their dictionary, in lower case. words: what they are called, such as `clusters`. model: of the settings of
    one. keys: what stands for a key in the reference, such as `<cluster>`, by the name of its dictionary: theirs, and
    those below it. conflicts: of one, by its key, its settings, and all settings. on_aws: whether for one something on
    AWS is read or changed that no fleet has.
    """

    name: str
    words: str
    model: type[S]
    keys: Mapping[str, str]
    conflicts: Callable[[str, S, Settings], Iterable[Conflict]] = _no_conflicts
    on_aws: Callable[[S], bool] = _not_on_aws

    def of(self, settings: Settings) -> Mapping[str, S]:
        """Return the subjects that the settings describe, by their key."""
        found: Mapping[str, S] = getattr(settings, self.name)
        return found


def described_subjects() -> tuple[Subjects[Any], ...]:
    """Return what the settings of every installed decision describe, in the order of the decisions' names.

    ConfigurationError for settings that cannot be loaded, or under a name that is taken.
    """
    return _described_subjects(tuple(sys.path))


@lru_cache(maxsize=4)
def _described_subjects(path: tuple[str, ...]) -> tuple[Subjects[Any], ...]:
    found: dict[str, Subjects[Any]] = {}
    for entry in installed(DECISIONS).values():
        package = entry.module.rpartition(".")[0]
        module = f"{package}.{MODULE}"
        try:
            if not package or find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            # Its part cannot be loaded either, which is said where that is.
            continue
        try:
            subjects = getattr(import_module(module), "SUBJECTS", None)
        except Exception as error:
            remedy = f"{module} cannot be loaded ({type(error).__name__}: {error}): mend or uninstall its package"
            raise refused(DECISIONS, entry, remedy) from error
        if isinstance(subjects, Subjects):
            if subjects.name in found:
                raise refused(DECISIONS, entry, f"another decision has settings under {subjects.name}: uninstall one")
            found[subjects.name] = subjects
    return tuple(found.values())
