"""Plug-ins: what packages bring under the four groups of entry points, ours in the same way, and their own settings.

A plug-in is loaded when it is first used. Its own settings are TRIMTAB_<NAME>__<FIELD>, with `-` in its name written as
`_`, for the fields of its `settings_model`; without one it has none. See docs/operate/plug-ins.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.settings.file import variables_of_file
from agent.settings.location import PREFIX, credentials
from domain.errors import BadInput, ConfigurationError, Mistake

if TYPE_CHECKING:
    from pydantic import BaseModel

COLLECTORS: Final = "trimtab.collectors"
ACTUATORS: Final = "trimtab.actuators"
POLICIES: Final = "trimtab.policies"
DECISIONS: Final = "trimtab.decisions"
GROUPS: Final[Mapping[str, str]] = {
    COLLECTORS: "collector",
    ACTUATORS: "actuator",
    POLICIES: "policy",
    DECISIONS: "decision",
}
"""Each group of entry points, and what one of its plug-ins is called."""

NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*")
RESERVED: Final[Mapping[str, frozenset[str]]] = {POLICIES: frozenset(("constant", "learned", "model"))}
"""Names that mean something else where a plug-in of the group is named."""

M = TypeVar("M", bound="BaseModel")


@lru_cache(maxsize=4)
def _every(path: tuple[str, ...]) -> Any:
    """Return all entry points, of a type that differs between Python's versions; path: where packages are looked for.

    Kept, since it takes about 30 ms.
    """
    return entry_points()


@lru_cache(maxsize=4 * len(GROUPS))
def _of_group(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in sorted(_every(path).select(group=group), key=lambda entry: entry.name):
        if entry.name in found:
            packages = " and ".join(sorted((_package(found[entry.name]), _package(entry))))
            raise refused(group, entry, f"two packages bring this {GROUPS[group]} ({packages}): uninstall one")
        if not NAME.fullmatch(entry.name) or entry.name in RESERVED.get(group, ()):
            remedy = "its package must choose another name: lower-case letters, digits, - and _, and none of "
            raise refused(group, entry, remedy + ", ".join(sorted(RESERVED.get(group, ("two _ in a row",)))))
        found[entry.name] = entry
    return found


def _package(entry: EntryPoint) -> str:
    return "an unnamed package" if entry.dist is None else entry.dist.name


def refused(group: str, entry: EntryPoint, remedy: str) -> ConfigurationError:
    """Return the error about a plug-in that cannot be used, with its package."""
    return ConfigurationError([Mistake(group, f"{entry.name} = {entry.value} of {_package(entry)}", remedy)])


def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return the plug-ins of a group by name; none is loaded.

    ConfigurationError for a name that two packages bring, and for a group without any: Trimtab brings some to each.
    """
    found = _of_group(group, tuple(sys.path))
    if not found:
        remedy = "not even Trimtab's own are registered: install it again, a checkout by pip install -e ."
        raise ConfigurationError([Mistake(group, "(nothing)", remedy)])
    return found


def load(group: str, name: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """Return what an installed plug-in's entry point refers to.

    fits: whether it is of the right kind. wanted: what that is, as the end of a sentence. ConfigurationError when it is
    not installed; it names the package of one that cannot be loaded, is of another kind, or has settings under a name
    that the agent's have.
    """
    entry = installed(group).get(name)
    if entry is None:
        remedy = "no installed package brings it: install its package again, a checkout of Trimtab by pip install -e ."
        raise ConfigurationError([Mistake(group, name, remedy)])
    try:
        loaded = entry.load()
    except Exception as error:
        remedy = f"its package cannot be loaded ({type(error).__name__}: {error}): mend or uninstall it"
        raise refused(group, entry, remedy) from error
    if not fits(loaded):
        raise refused(group, entry, f"it must be {wanted}: mend or uninstall its package")
    if getattr(loaded, "settings_model", None) is not None and _section(name) in _sections_of_the_agent():
        remedy = f"its package must choose another name: {PREFIX}{_section(name).upper()}... are settings of the agent"
        raise refused(group, entry, remedy)
    return loaded


def _section(name: str) -> str:
    return name.replace("-", "_")


def _sections_of_the_agent() -> frozenset[str]:
    from agent.settings.model import described

    return frozenset(described().model_fields)


def own_settings(name: str, model: type[M], environ: Mapping[str, str]) -> M:
    """Return a plug-in's own settings from the environment, else the credentials, else the file of settings.

    An empty variable counts as not set. ConfigurationError lists every unknown name and wrong value.
    """
    from pydantic import ValidationError

    prefix = f"{PREFIX}{_section(name)}__".upper()
    known = {f"{prefix}{field}".upper(): field for field in model.model_fields}
    given: dict[str, str] = {}
    for source in (variables_of_file(environ), credentials(environ), environ):
        given.update({key.upper(): text for key, text in source.items() if text and key.upper().startswith(prefix)})
    there = ", ".join(sorted(known)) or "none"
    mistakes = [
        Mistake(key, "(not shown)", f"there is no such setting; there are {there}") for key in given if key not in known
    ]
    try:
        made = model(**{known[key]: text for key, text in given.items() if key in known})
    except ValidationError as error:
        mistakes += [
            Mistake("".join((prefix, *map(str, one["loc"][:1]))).upper(), "(not shown)", one["msg"])
            for one in error.errors(include_url=False, include_input=False)
        ]
    if mistakes:
        raise ConfigurationError(mistakes)
    return made


def with_section(section: str) -> Iterator[tuple[str, str]]:
    """Yield group and name of every installed plug-in whose own settings would be TRIMTAB_<SECTION>__..."""
    for group in GROUPS:
        yield from ((group, name) for name in installed(group) if _section(name) == section)


def own_mistakes(section: str, environ: Mapping[str, str]) -> list[Mistake] | None:
    """Return what is wrong with the own settings of a section; None when no installed plug-in has settings there.

    The agent's sections are none of a plug-in's. Loads only the plug-ins of this section.
    """
    if section in _sections_of_the_agent():
        return None
    mistakes: dict[Mistake, None] = {}
    models = 0
    for group, name in with_section(section):
        try:
            model = getattr(load(group, name, lambda loaded: True, ""), "settings_model", None)
            if model is not None:
                models += 1
                own_settings(name, model, environ)
        except ConfigurationError as error:
            models += 1
            mistakes.update(dict.fromkeys(error.mistakes))
        except BadInput:
            # A credential that cannot be read is reported with the agent's own settings.
            continue
    return list(mistakes) if models else None
