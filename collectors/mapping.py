"""Names of other senders: a file of patterns that says which measurement each foreign Graphite path is.

A rule has a glob (`from = "collectd.{host}.cpu-*.cpu-{state}"`; a part in braces is named, `*` is any text, neither
reaches over a dot, nor over the `;` of a tag) and the measurement it becomes. A path with Graphite tags is taken by a
rule that names them, and by no other. A VM is named by its instance id (part `vm`) or by any name that the inventory
knows it by (part `host`). Several lines may be folded into one reading, such as those of each processor. The same file
holds what Prometheus is asked for.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from collectors.base import Refusal, SampleSink
from collectors.intake import IntakeLimits
from domain.errors import BadInput, ConfigurationError, Mistake, RejectReason
from domain.samples import (
    PREFIX,
    QUEUE_METRICS,
    SIGNAL_SEGMENT,
    VM_METRICS,
    QueueMetric,
    QueueSeries,
    Sample,
    Series,
    SignalSeries,
    VmMetric,
    VmSeries,
)

OWN: Final = f"{PREFIX}.".encode()
MOST_RULES: Final = 500
MOST_KNOWN: Final = 200_000
"""Paths whose place is remembered; beyond that all of them are looked at anew."""
MOST_MEMBERS: Final = 2048
"""Lines that one reading may be folded from: a machine of 512 cores with four states each."""
MOST_FOLDS: Final = 50_000
FOLD_KEPT_S: Final = 3600.0
"""Folds silent for longer are forgotten when VMs come or go."""
WINDOW_S: Final = 60.0
RISES_OF_COUNTERS: Final = 2
LEAST_RISE_PER_S: Final = 0.5
LARGEST_RISE: Final = 0.1
"""Lines of a share that none falls and all together grow by so much a second, but by no more than that part of them in
one round, twice in a row, are counters. A processor counts 1 s or 100 ticks a second; in levels, such as per cent, one
part grows as another falls."""
MOST_QUERIES: Final = 100
KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PARTS: Final = frozenset({"fleet", "group", "vm", "host"})
_FIELDS: Final = {
    *("from", "to", "fleet", "group", "vm", "scale", "offset", "fold", "part", "counted", "not_counted"),
    "window_s",
}
_QUERY_FIELDS: Final = {"query", "to", "fleet", "group", "vm", "host", "scale", "offset"}
_LABEL: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
OF_THE_FLEET: Final = "$fleet"
"""Stands in a query for the key of the fleet that it is asked for."""


@dataclass(frozen=True, slots=True)
class SignalName:
    """The name of a fleet's own signal, as the measurement that a path becomes."""

    name: str

    def __str__(self) -> str:
        return f"{SIGNAL_SEGMENT}.{self.name}"


Measurement = VmMetric | QueueMetric | SignalName


class Fold(StrEnum):
    """How several lines become one reading; share: 100 times the sum of the counted lines by the sum of all."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: which paths it takes, what they become, and reading = offset + scale * value before any fold.

    fleet, group, vm: constants, None where a part of the path says it. part, counted, inverse: of a share, the part
    that tells whether a line counts, its values, and whether they are those that do not. window_s: a line older than
    that beside the newest no longer belongs to a folded reading. Without a `;` in what is
    written, the rule takes no path with tags: they would run into the parts of the name.
    """

    written: str
    pattern: re.Pattern[str]
    to: Measurement
    fleet: str | None = None
    group: str | None = None
    vm: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    fold: Fold | None = None
    part: str = ""
    counted: frozenset[str] = frozenset()
    inverse: bool = False
    window_s: float = WINDOW_S

    def target(self, fleet: str, groups: Sequence[str]) -> str | None:
        """Return the Graphite target that finds the paths of this rule for a fleet with these groups.

        None where it can have none: it is for another fleet or group, or has characters that Graphite reads otherwise.
        """
        if (self.fleet or fleet) != fleet or (self.group is not None and self.group not in groups):
            return None
        known = {"{fleet}": fleet, "{group}": f"{{{','.join(groups)}}}"}
        pieces = _pieces(self.written)
        target = "".join(known.get(piece, "*" if piece[:1] in ("{", "*") else piece) for piece in pieces)
        return target if _PLAIN.fullmatch("".join(pieces[::2])) else None

    def counts(self, parts: Mapping[str, str | None]) -> bool:
        """Return whether a line counts in a share."""
        return self.fold is not Fold.SHARE or (parts.get(self.part) in self.counted) is not self.inverse


@dataclass(frozen=True, slots=True)
class Query:
    """A question to Prometheus: PromQL, what its series become, and reading = offset + scale * value.

    fleet, group, vm, host: texts with names of labels in braces, None where nothing says it; a port at the end of a
    host is left out.
    """

    promql: str
    to: Measurement
    fleet: str | None = None
    group: str | None = None
    vm: str | None = None
    host: str | None = None
    scale: float = 1.0
    offset: float = 0.0

    def series(self, fleet: str, labels: Mapping[str, str], find: Callable[[str], VmPlace | None]) -> Series | None:
        """Return our series of a series with these labels; None where it is of no VM or fleet that is known."""
        named = fleet if self.fleet is None and OF_THE_FLEET in self.promql else _filled(self.fleet, labels)
        host = _PORT.sub("", _filled(self.host, labels) or "")
        return series_at(self.to, named, _filled(self.group, labels), _filled(self.vm, labels), host, find)


def is_for(named: str | None, key: str) -> bool:
    """Return whether a fleet or group as a rule or query names it can be this one: None and labels can be any."""
    return named is None or _LABEL.search(named) is not None or named == key


_PORT: Final = re.compile(r"(?<=[^:]):[0-9]{1,5}$")


def _filled(template: str | None, labels: Mapping[str, str]) -> str | None:
    """Return a template with the values of its labels; None without one, or where a label is absent."""
    if template is None or any(not labels.get(name) for name in _LABEL.findall(template)):
        return None
    return _LABEL.sub(lambda found: labels[found[1]], template)


@dataclass(frozen=True, slots=True)
class InputMap:
    """The rules in the order of the file, the first that fits holds; hosts: names of VMs that no inventory knows.

    queries: what Prometheus is asked for.
    """

    rules: tuple[Rule, ...]
    hosts: Mapping[str, VmPlace] = field(default_factory=dict)
    queries: tuple[Query, ...] = ()

    @property
    def finds_by_host(self) -> bool:
        """Whether VMs are found by names of hosts anywhere."""
        return any("host" in rule.pattern.groupindex for rule in self.rules) or any(one.host for one in self.queries)

    def match(self, path: str) -> tuple[Rule, Mapping[str, str | None]] | None:
        """Return the first rule that takes this path, and the path's named parts."""
        for rule in self.rules:
            if ";" in path and ";" not in rule.written:
                continue
            found = rule.pattern.fullmatch(path)
            if found is not None:
                return rule, found.groupdict()
        return None

    def fleet_of(self, path: str) -> str:
        """Return the fleet that the rule of a path or the path itself names, "" where only the host determines it."""
        found = self.match(path)
        return "" if found is None else found[0].fleet or found[1].get("fleet") or ""


VmPlace = tuple[str, str, str]
"""Keys of the fleet and of the group, and the instance id."""


def read_map(path: Path) -> InputMap:
    """Read a map from a TOML file; BadInput where it cannot be read, ConfigurationError with every mistake in it."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise BadInput("input map", str(path), f"{fault}: give a readable TOML file in UTF-8") from None
    except tomllib.TOMLDecodeError as fault:
        raise BadInput("input map", f"{path}: {fault}", "give TOML: [[series]] tables with from, to, ...") from None
    return map_of(data)


def map_of(data: Mapping[str, Any]) -> InputMap:
    """Return the map that a parsed file holds; ConfigurationError names every wrong field with its remedy."""
    wrong: list[Mistake] = [
        Mistake(name, "", "remove it: a map has [[series]] and [[prometheus]] tables and one [hosts] table")
        for name in sorted(data.keys() - {"series", "prometheus", "hosts"})
    ]
    found: dict[str, list[_Reading]] = {}
    for kind, most in (("series", MOST_RULES), ("prometheus", MOST_QUERIES)):
        tables = data.get(kind, [])
        is_wanted = kind == "series" and "prometheus" not in data
        if not isinstance(tables, list) or len(tables) > most or (is_wanted and not tables):
            wrong.append(Mistake(kind, "", f"give 1 to {most} [[{kind}]] tables"))
            tables = []
        found[kind] = [
            _Reading(f"{kind}[{number}]", table if isinstance(table, dict) else {}, wrong)
            for number, table in enumerate(tables, 1)
        ]
    rules = [rule for rule in (read.rule() for read in found["series"]) if rule is not None]
    queries = [query for query in (read.query() for read in found["prometheus"]) if query is not None]
    hosts = _hosts(data.get("hosts", {}), wrong)
    if wrong:
        raise ConfigurationError(wrong)
    return InputMap(tuple(rules), hosts, tuple(queries))


def _hosts(table: Any, wrong: list[Mistake]) -> dict[str, VmPlace]:
    found: dict[str, VmPlace] = {}
    for name, place in table.items() if isinstance(table, dict) else ():
        keys = place.split(".") if isinstance(place, str) else []
        if len(keys) == 3 and all(map(KEY.fullmatch, keys)):
            found[name] = keys[0], keys[1], keys[2]
        else:
            remedy = 'give "fleet.group.vm", such as "web.workers.i-0abc"'
            if isinstance(place, dict):
                remedy += ', and a name with dots in quotation marks: "web1.example.com" = "web.workers.i-0abc"'
            wrong.append(Mistake(f"hosts.{name}", repr(place), remedy))
    if not isinstance(table, dict):
        wrong.append(Mistake("hosts", repr(table), 'give a table: [hosts] with NAME = "fleet.group.vm"'))
    return found


class _Reading:
    """Reads one [[series]] or [[prometheus]] table and notes what is wrong with it."""

    def __init__(self, where: str, table: Mapping[str, Any], wrong: list[Mistake]) -> None:
        self._where, self._table, self._wrong, self._found = where, table, wrong, len(wrong)

    def _refuse(self, name: str, remedy: str) -> None:
        self._wrong.append(Mistake(f"{self._where}.{name}", repr(self._table.get(name, "(nothing)")), remedy))

    def rule(self) -> Rule | None:
        """Return the rule; None where something is wrong."""
        table = self._table
        for name in sorted(table.keys() - _FIELDS):
            self._refuse(name, f"remove it: known are {', '.join(sorted(_FIELDS))}")
        pattern = self._pattern()
        metric = self._metric()
        constants = {name: self._key(name) for name in ("fleet", "group", "vm")}
        scale, offset = self._number("scale", 1.0), self._number("offset", 0.0)
        window_s = self._number("window_s", WINDOW_S)
        if not 1.0 <= window_s <= 3600.0:
            self._refuse("window_s", "give seconds from 1 to 3600")
        fold = self._fold()
        parts = frozenset(pattern.groupindex) if pattern is not None else frozenset()
        part, counted, inverse = self._share(fold, parts)
        if pattern is not None and metric is not None:
            self._check_place(metric, parts, {name for name, value in constants.items() if value is not None})
            self._check_fold(fold, pattern)
        if len(self._wrong) > self._found or pattern is None or metric is None:
            return None
        return Rule(
            str(table["from"]), pattern, metric, **constants, scale=scale, offset=offset, fold=fold, part=part,
            counted=counted, inverse=inverse, window_s=window_s,
        )  # fmt: skip

    def query(self) -> Query | None:
        """Return the question to Prometheus; None where something is wrong."""
        table = self._table
        for name in sorted(table.keys() - _QUERY_FIELDS):
            self._refuse(name, f"remove it: known are {', '.join(sorted(_QUERY_FIELDS))}")
        promql = table.get("query")
        if not isinstance(promql, str) or not promql.strip() or len(promql) > 5000:
            self._refuse("query", "give PromQL of 1 to 5000 characters")
            promql = ""
        metric = self._metric()
        templates = {name: self._template(name) for name in ("fleet", "group", "vm", "host")}
        scale, offset = self._number("scale", 1.0), self._number("offset", 0.0)
        if isinstance(metric, QueueMetric | SignalName) and templates["fleet"] is None and OF_THE_FLEET not in promql:
            self._refuse("fleet", f'name the fleet: "{{label}}" or a key here, or {OF_THE_FLEET} in query')
        if isinstance(metric, VmMetric) and (templates["vm"] is None) == (templates["host"] is None):
            self._refuse("vm", 'name the VM: either `vm`, its instance id, or `host`, such as "{instance}"')
        if len(self._wrong) > self._found or metric is None:
            return None
        return Query(promql.strip(), metric, **templates, scale=scale, offset=offset)

    def _template(self, name: str) -> str | None:
        value = self._table.get(name)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", _LABEL.sub("x", value)):
            return value
        self._refuse(name, 'give a text such as "web" or "{label}": letters, digits, _, -, dots, names of labels')
        return None

    def _pattern(self) -> re.Pattern[str] | None:
        text = self._table.get("from")
        if not isinstance(text, str) or not text or len(text) > 500:
            self._refuse("from", "give a path of 1 to 500 characters, with {parts} and *")
            return None
        try:
            return re.compile(_of_glob(text))
        except re.error as fault:
            self._refuse("from", f"{fault}: name each part once, with letters, digits and _")
        return None

    def _metric(self) -> Measurement | None:
        text = self._table.get("to")
        found: Measurement | None = None
        if isinstance(text, str):
            kind, _, name = text.partition(".")
            found = VM_METRICS.get(text) or QUEUE_METRICS.get(text)
            found = SignalName(name) if kind == SIGNAL_SEGMENT and KEY.fullmatch(name) else found
        if found is None:
            self._refuse("to", f"give one of {', '.join((*VmMetric, *QueueMetric))}, or {SIGNAL_SEGMENT}.<name>")
        return found

    def _key(self, name: str) -> str | None:
        value = self._table.get(name)
        if value is None or (isinstance(value, str) and KEY.fullmatch(value)):
            return value
        self._refuse(name, "give a key: letters, digits, _ and -")
        return None

    def _number(self, name: str, default: float) -> float:
        value = self._table.get(name, default)
        try:
            usable = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        except OverflowError:
            usable = False
        if not usable or (name == "scale" and value == 0):
            self._refuse(name, f"give a finite number{' other than 0' if name == 'scale' else ''}")
            return default
        return float(value)

    def _fold(self) -> Fold | None:
        text = self._table.get("fold")
        if text is None:
            return None
        if text not in list(Fold):
            self._refuse("fold", f"give one of {', '.join(Fold)}, or leave it out where one line is one reading")
            return None
        return Fold(text)

    def _share(self, fold: Fold | None, parts: frozenset[str]) -> tuple[str, frozenset[str], bool]:
        given = [name for name in ("counted", "not_counted") if name in self._table]
        if fold is not Fold.SHARE:
            for name in (*given, *(["part"] if "part" in self._table else [])):
                self._refuse(name, 'remove it, or set fold = "share"')
            return "", frozenset(), False
        part = self._table.get("part")
        if part not in parts:
            self._refuse("part", f"name a part of the path: {', '.join(sorted(parts)) or 'it has none'}")
        if len(given) != 1:
            self._refuse("counted", "give either `counted` or `not_counted`, a list of values of the part")
            return "", frozenset(), False
        values = self._table[given[0]]
        if not isinstance(values, list) or not values or not all(isinstance(one, str) for one in values):
            self._refuse(given[0], 'give a list of texts, such as ["idle"]')
            return "", frozenset(), False
        return str(part), frozenset(values), given[0] == "not_counted"

    def _check_place(self, metric: Measurement, parts: frozenset[str], constants: set[str]) -> None:
        for name in sorted(parts & constants):
            self._refuse(name, "remove it here, or do not name this part in the path")
        given = parts | constants
        if not isinstance(metric, VmMetric):
            if "fleet" not in given:
                self._refuse("fleet", "name the fleet of the queue or signal: as a part {fleet} of the path, or here")
        elif not given & {"vm", "host"}:
            self._refuse("vm", "name the VM: as a part {vm} (its instance id) or {host} (its host name) of the path")

    def _check_fold(self, fold: Fold | None, pattern: re.Pattern[str]) -> None:
        text = str(self._table.get("from") or "")
        others = set(pattern.groupindex) - _PARTS
        if fold is None and (others or "*" in text):
            self._refuse("fold", f"give the fold of lines that differ in another part: {', '.join(Fold)}")


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:%@#=+-]*")
"""Characters that mean nothing else in a target of Graphite."""


def _pieces(text: str) -> list[str]:
    """Return a glob in pieces: plain ones in even places, parts in braces and stars in between."""
    return re.split(r"(\{[^{}]*\}|\*)", text)


MOST_PATH_BYTES: Final = 512
"""No file of Graphite has a longer path than some 255; expressions are not tried on what is longer than this."""
MOST_OPEN: Final = 2
"""Parts between two dots that may end in any place: MOST_PATH_BYTES squared are the ways to try one path."""


def _of_glob(text: str) -> str:
    """Return the regular expression of a glob; re.error for a part without a name, or too many between two dots.

    No part reaches over a dot, so a segment of several is tried by itself, not once for each way of the others. In a
    tag, behind a `;`, a part may hold dots: the value of a tag is often a host's whole name.
    """
    for piece in _pieces(text)[1::2]:
        if piece != "*" and not piece[1:-1].isidentifier():
            raise re.error(f"{piece} is not a name of a part")
    name, *tags = text.split(";")
    segments = [(segment, ".;") for segment in name.split(".")] + [(tag, ";") for tag in tags]
    ends = [r"\."] * name.count(".") + [";"] * len(tags) + [r"\Z"]
    found = ""
    for (segment, stops), end in zip(segments, ends, strict=True):
        expression = _of_segment(segment, stops)
        if len(_pieces(segment)) > 3:
            found += f"(?>{expression}{end})"
        else:
            found += expression + ("" if end == r"\Z" else end)
    return found


def _of_segment(text: str, stops: str) -> str:
    found: list[str] = []
    pieces = _pieces(text)
    place = opened = 0
    while place < len(pieces):
        piece, place = pieces[place], place + 1
        if piece == "*" and place + 1 < len(pieces) and pieces[place + 1] == "*":
            # The next star takes what this one leaves, so the first place that fits is as good as any: none is tried
            # again, or a long line would be looked at as many times as its length to the power of the stars.
            found.append(rf"(?>[^{stops}]*?{re.escape(pieces[place])})")
            place += 1
        elif piece == "*" or piece.startswith("{"):
            # At the end of the segment a part ends where that does.
            opened += "".join(pieces[place:]) != ""
            found.append(rf"[^{stops}]*" if piece == "*" else rf"(?P<{piece[1:-1]}>[^{stops}]+)")
        else:
            found.append(re.escape(piece))
    if opened > MOST_OPEN:
        raise re.error(f"{text!r} has more than {MOST_OPEN + 1} parts between two dots")
    return "".join(found)


class Hosts:
    """The names that VMs are known by; read by the listener's thread, replaced as a whole by the loop's.

    A name of two VMs leads to neither. `version` rises with every change.
    """

    def __init__(self, fixed: Mapping[str, VmPlace] | None = None) -> None:
        self._fixed = dict(fixed or {})
        self._known: Mapping[str, VmPlace] = self._fixed
        self.version = 0

    @property
    def known(self) -> Mapping[str, VmPlace]:
        """The VM of each name."""
        return self._known

    def update(self, vms: Iterable[tuple[VmPlace, Sequence[str]]]) -> None:
        """Take the VMs that there are now, each with its names; its instance id is one of them."""
        found: dict[str, VmPlace | None] = {}
        for place, names in vms:
            for spelling in _spellings((place[2], *names)):
                found[spelling] = place if found.get(spelling, place) == place else None
        known = {name: place for name, place in found.items() if place is not None} | self._fixed
        if known != self._known:
            self._known = known
            self.version += 1

    def find(self, name: str) -> VmPlace | None:
        """Return the VM of this name, None where there is none or more than one."""
        return self._known.get(name) or self._known.get(name.lower())


def _spellings(names: Iterable[str]) -> set[str]:
    """Return how senders write these names: whole or its first label, with dots, or with what stands for dots."""
    found = set()
    for name in filter(None, names):
        is_address = name.replace(".", "").isdigit()
        for one in {name} if is_address else {name, name.partition(".")[0]}:
            found |= {one, one.lower(), one.replace(".", "_").lower(), one.replace(".", "-").lower()}
    return found


@dataclass(slots=True)
class _FoldedReading:
    """A reading that is folded from several lines. members: each line's value, time, and whether it counts.

    A round is over when every known line has come once, or when one comes a second time: the first round of a sender
    ends by the second alone, since nobody knows its lines before.
    """

    rule: Rule
    members: dict[bytes, tuple[float, float, bool]] = field(default_factory=dict)
    come: set[bytes] = field(default_factory=set)
    complete: bool = False
    before: tuple[Mapping[bytes, float], float] | None = None
    rises: int = 0
    newest_at: float = -math.inf

    @property
    def counts_up(self) -> bool:
        """Whether the lines of a share are counters: what counted long ago would hide what counts now."""
        return self.rises >= RISES_OF_COUNTERS

    def take(self, path: bytes, value: float, at: float, counts: bool) -> tuple[float, float] | None:
        """Take a line; return the reading (value, time) of a round that it ends, else None."""
        reading = None
        if path in self.come:
            # With the last round's lines all here the reading has been given already.
            reading = self._reading() if len(self.come) < len(self.members) or not self.complete else None
            self.come.clear()
            self.complete = True
        if path not in self.members and len(self.members) >= MOST_MEMBERS:
            return reading
        self.members[path] = value, at, counts
        self.newest_at = max(self.newest_at, at)
        self.come.add(path)
        if self.complete and len(self.come) == len(self.members):
            reading = self._reading()
        return reading

    def _reading(self) -> tuple[float, float] | None:
        newest = max(at for _, at, _ in self.members.values())
        if any(newest - at > self.rule.window_s for _, at, _ in self.members.values()):
            self.members = {p: one for p, one in self.members.items() if newest - one[1] <= self.rule.window_s}
            self.come &= self.members.keys()
        values = [value for value, _, _ in self.members.values()]
        match self.rule.fold:
            case Fold.MEAN:
                folded = sum(values) / len(values)
            case Fold.MAX:
                folded = max(values)
            case Fold.MIN:
                folded = min(values)
            case Fold.SHARE:
                whole = sum(values)
                self._compare(whole, newest)
                if whole <= 0.0:
                    return None
                folded = 100.0 * sum(value for value, _, counts in self.members.values() if counts) / whole
            case _:
                folded = sum(values)
        return folded, newest

    def _compare(self, whole: float, newest: float) -> None:
        """Count the rounds in a row in which every line has grown like a counter: levels share what stays a whole."""
        lines = {path: value for path, (value, _, _) in self.members.items()}
        before, self.before = self.before, (lines, newest)
        if before is None or before[0].keys() != lines.keys() or newest <= before[1]:
            return
        grown = whole - sum(before[0].values())
        steadily = LEAST_RISE_PER_S * (newest - before[1]) <= grown <= LARGEST_RISE * whole
        rises = steadily and all(value >= before[0][path] for path, value in lines.items())
        self.rises = self.rises + 1 if rises else 0


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a path's readings go: the path of our own series, and the fold that they go through, if any."""

    path: bytes
    rule: Rule
    folded: _FoldedReading | None
    counts: bool


TAKEN: Final = "taken as it is"
"""Explains a path under our names, which needs no rule."""


class MappedSink:
    """Hands readings of mapped paths on under our names, and all others as they are; one thread at a time.

    What cannot be handed on is refused here: FOREIGN_PATH where no rule takes it, UNKNOWN_VM where its host is unknown.
    A line that only waits for the rest of its round counts as taken.
    """

    def __init__(self, below: SampleSink, rules: InputMap, hosts: Hosts, limits: IntakeLimits | None = None) -> None:
        self._below, self._rules, self._hosts = below, rules, hosts
        self._limits = limits or IntakeLimits()
        self._known: dict[bytes, _Target | RejectReason] = {}
        self._folds: dict[tuple[bytes, int], _FoldedReading] = {}
        self._any = _any_of(rules.rules)
        self._version = hosts.version

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings, see `SampleSink`."""
        if self._version != self._hosts.version:
            self._version = self._hosts.version
            self._known.clear()
            silent_at = now - FOLD_KEPT_S
            self._folds = {key: one for key, one in self._folds.items() if one.newest_at > silent_at}
        refused: list[Refusal] = []
        positions: list[int] = []
        new_paths: list[bytes] = []
        new_values: list[float] = []
        new_times: list[float] = []
        known = self._known.get
        earliest, latest = now - self._limits.max_age_s, now + self._limits.max_ahead_s
        for position, path in enumerate(paths):
            value, at = values[position], times[position]
            target = known(path)
            if target is None:
                if path.startswith(OWN):
                    positions.append(position)
                    new_paths.append(path)
                    new_values.append(value)
                    new_times.append(at)
                    continue
                target = self._place(path)
            if isinstance(target, RejectReason):
                refused.append(Refusal(position, target))
                continue
            value = target.rule.offset + target.rule.scale * value
            if target.folded is not None:
                if not earliest < at <= latest or value - value != 0.0:
                    refused.append(Refusal(position, _why(value, at, latest)))
                    continue
                reading = target.folded.take(path, value, at, target.counts)
                if target.folded.counts_up:
                    refused.append(Refusal(position, RejectReason.COUNTER))
                    continue
                if reading is None:
                    continue
                value, at = reading
            positions.append(position)
            new_paths.append(target.path)
            new_values.append(value)
            new_times.append(at)
        if new_paths:
            below = self._below.append(new_paths, new_values, new_times, now, peer)
            refused += [Refusal(positions[position], reason) for position, reason in below]
        return refused

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take readings that are under our names already."""
        return self._below.append_samples(samples, now)

    def explain(self, path: str) -> str:
        """Return in words what becomes of this path."""
        if path.startswith(OWN.decode()):
            return TAKEN
        if len(path.encode()) > MOST_PATH_BYTES:
            return f"refused: it is longer than {MOST_PATH_BYTES} bytes"
        found = self._rules.match(path)
        if found is None:
            tagged = ': it has tags, which the rule must name, as from = "cpu.{state};host={host}"'
            return f"no rule takes it{tagged if ';' in path else ''}"
        rule, parts = found
        series = series_of(rule, parts, self._hosts.find)
        if series is None:
            name = rule.vm or parts.get("vm") or parts.get("host")
            return f"{rule.to} of a VM named {name}, which is not in the inventory now (rule {rule.written})"
        if rule.fold is None:
            return f"{series.path} (rule {rule.written})"
        share = f", {'counts' if rule.counts(parts) else 'does not count'}" if rule.fold is Fold.SHARE else ""
        return f"part of {series.path}, {rule.fold}{share} (rule {rule.written})"

    def _place(self, path: bytes) -> _Target | RejectReason:
        if len(path) > MOST_PATH_BYTES:
            return RejectReason.TOO_LONG
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[path] = target = self._placed(path)
        return target

    def _placed(self, path: bytes) -> _Target | RejectReason:
        try:
            text = path.decode("utf-8")
        except UnicodeDecodeError:
            return RejectReason.NOT_TEXT
        found = self._rules.match(text) if self._any.fullmatch(text) else None
        if found is None:
            return RejectReason.FOREIGN_PATH
        rule, parts = found
        series = series_of(rule, parts, self._hosts.find)
        if series is None:
            return RejectReason.UNKNOWN_VM
        name = series.path.encode()
        if rule.fold is None:
            return _Target(name, rule, None, True)
        key = name, id(rule)
        if key not in self._folds and len(self._folds) >= MOST_FOLDS:
            self._folds.clear()
            self._known.clear()
        folded = self._folds.setdefault(key, _FoldedReading(rule))
        return _Target(name, rule, folded, rule.counts(parts))


def series_of(rule: Rule, parts: Mapping[str, str | None], find: Callable[[str], VmPlace | None]) -> Series | None:
    """Return the series of ours that a path becomes; None where its VM, or a part of its place, is unknown."""
    fleet, group = rule.fleet or parts.get("fleet"), rule.group or parts.get("group")
    return series_at(rule.to, fleet, group, rule.vm or parts.get("vm"), parts.get("host"), find)


def series_at(
    to: Measurement,
    fleet: str | None,
    group: str | None,
    vm: str | None,
    host: str | None,
    find: Callable[[str], VmPlace | None],
) -> Series | None:
    """Return the series of a measurement at a place, of which a part may be unknown; None where no VM is found."""
    if not isinstance(to, VmMetric):
        if not fleet or not KEY.fullmatch(fleet):
            return None
        return QueueSeries(fleet, to) if isinstance(to, QueueMetric) else SignalSeries(fleet, to.name)
    if fleet and group and vm:
        return VmSeries(fleet, group, vm, to) if all(map(KEY.fullmatch, (fleet, group, vm))) else None
    place = find(vm or host or "")
    if place is None or (fleet or place[0]) != place[0] or (group or place[1]) != place[1]:
        return None
    return VmSeries(*place, to)


def _any_of(rules: Sequence[Rule]) -> re.Pattern[str]:
    """Return an expression that takes what any rule takes, to tell foreign paths at once; parts have no names in it."""
    bare = (re.sub(r"\(\?P<[^>]*>", "(?:", rule.pattern.pattern) for rule in rules)
    return re.compile("|".join(f"(?:{one})" for one in bare))


def _why(value: float, at: float, latest: float) -> RejectReason:
    if value - value != 0.0 or not math.isfinite(at):
        return RejectReason.NOT_FINITE
    return RejectReason.FUTURE if at > latest else RejectReason.TOO_OLD
