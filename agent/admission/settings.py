"""The settings of clusters that deployments ask to come into: capacity, population, rule and promise."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agent.models.directory import ModelsDirectory, forced_reason, read_model_file, refused
from agent.models.regular_files import read_file
from agent.settings.kinds import File, Key, QuotaCode, ReservationId, Section, ValueHint
from agent.settings.subjects import Conflict, Subjects, needs, refers
from domain.errors import BadInput
from domain.rules.admission.cluster import ClusterRules, Moments, PolicyKind, terms_of
from domain.rules.admission.names import HALF_LIFE_DAYS
from domain.rules.admission.population import POPULATIONS, Population
from domain.rules.admission.rule import KINDS, rule_of
from domain.subject import Subject

if TYPE_CHECKING:
    from agent.settings.model import Settings

DEFAULT_KAPPA = 2.8
LEARNED = "learned"
"""In place of a rule: that of the file which was promoted for the cluster."""
LARGEST_POPULATION_BYTES = 1024 * 1024
SAID_BY_RULE = frozenset(
    (
        *("policy", "threshold_cores", "kappa", "risk", "band_factor", "moments", "marginal_cores"),
        *("tolerance", "dead_band_cores"),
    )
)
"""Settings in whose place a rule stands."""


RuleText = Annotated[
    str,
    Field(max_length=300, pattern=rf"^(({'|'.join(KINDS)}):|{LEARNED}$)"),
    ValueHint(f"a rule such as second:2.8 (one of {', '.join(KINDS)}, a colon and its threshold), or {LEARNED}"),
]


_KEY = r"[a-z][a-z0-9_-]{0,62}"
DeferralPools = Annotated[
    str,
    Field(max_length=1000, pattern=rf"^({_KEY}(,{_KEY})*)?$"),
    ValueHint("names of deferral pools, separated by commas, such as night,weekend"),
]


ApplicationName = Annotated[
    str,
    Field(max_length=128, pattern=r"^[A-Za-z0-9._:/@+-]+$"),
    ValueHint("the id of an application, of letters, digits and . _ : / @ + -"),
]


class Preset(StrEnum):
    """Populations that come with the agent: T fits a public trace, H has heavier tails, K grows for longer."""

    T = "T"
    H = "H"
    K = "K"


class Labels(StrEnum):
    """Whether the names in a request decide. They are gathered either way."""

    OFF = "off"
    ON = "on"


class ClusterSettings(Section, title="A cluster"):
    """One cluster that deployments ask to come into. `<cluster>` is its key."""

    capacity_cores: int = Field(
        ge=1, le=10_000_000, description="Cores that it has, such as a vCPU quota.", examples=[20_000]
    )
    preset: Preset = Field(
        Preset.T, description="Population of deployments: `T` as in a public trace, `H` heavy-tailed, `K` growing long."
    )
    population_file: File | None = Field(
        None,
        description="JSON or TOML file of a population, written by `trimtab fit admission`; overrides the preset.",
        examples=["/etc/trimtab/population.json"],
    )
    rule: RuleText | None = Field(
        None,
        description="Rule in the words of `trimtab simulate admission --policy`, with its defaults; replaces "
        "the policy "
        "and its settings. `learned`: rule and population of the file that `trimtab promote admission` "
        "put in use, from the next start on; without one, the other settings decide.",
        examples=["second:2.2,a=0.7,marginal=1"],
    )
    policy: PolicyKind = Field(
        PolicyKind.SECOND,
        description="`zeroth` admits while cores taken stay below the threshold, `first` while expected cores do, "
        "`second` while expected cores and kappa standard deviations fit, `sgamma` and `gamma` while the chance to "
        "exceed stays below the risk, `budget` while that share of requests is forecast to fail.",
    )
    threshold_cores: float | None = Field(
        None, gt=0, description="Limit of `zeroth` and `first`. With the others: replaces the capacity."
    )
    kappa: float | None = Field(
        None,
        ge=0,
        le=100,
        description=f"Standard deviations that `second` leaves free. Not set, and no risk: {DEFAULT_KAPPA:g}.",
    )
    risk: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Chance to exceed the capacity that `sgamma` and `gamma` allow, or `second` by Cantelli's bound; "
        "share of requests that `budget` lets fail.",
    )
    band_factor: float = Field(
        1.0, ge=0, le=10, description="Multiplies kappa for times more than a month ahead, twice beyond a year."
    )
    moments: Moments = Field(
        Moments.AB,
        description="How futures are computed: `ab`, `ab_fast` (cheaper, low for small new ones), `na` (never too "
        "low) or `paper` (as published).",
    )
    marginal_cores: float = Field(
        1.0,
        ge=0,
        description="A deployment with prior observations is not refused for times at which its expected size is "
        "below this.",
    )
    labels: Labels = Field(
        Labels.OFF,
        description="`on`: a newcomer without prior observations is estimated from earlier deployments "
        "of its `label` and `owner`. Both are gathered either way.",
    )
    label_half_life_days: float = Field(
        HALF_LIFE_DAYS,
        gt=0,
        le=3650,
        description="Age in days at which an ended deployment counts half for its label and owner.",
    )
    sla: float = Field(1e-3, gt=0, lt=1, description="Share of requests for more cores that may be refused.")
    tolerance: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Change of a deployment's size or age, as a share, after which its future is computed again; "
        "0: for every decision.",
    )
    dead_band_cores: float = Field(1.0, ge=0, description="Change in cores after which its future is computed again.")
    start_within_s: float = Field(
        3600.0,
        ge=1,
        le=2_592_000,
        description="An admitted deployment that has not started after this time gives its cores back.",
    )
    tagged_groups: bool = Field(
        False,
        description="Count the Auto Scaling groups tagged `trimtab:cluster=<cluster>` and admit or refuse those tagged "
        "`trimtab:admission=pending`.",
    )
    quota_code: QuotaCode | None = Field(
        None,
        description="Quota of EC2 in vCPUs that is the capacity, read every five minutes, in place of the fixed one.",
        examples=["L-1216C47A"],
    )
    reservation_id: ReservationId | None = Field(
        None,
        description="Capacity reservation that is the capacity, read every five minutes, in place of the fixed one.",
        examples=["cr-0123456789abcdef0"],
    )
    set_aside_cores: int = Field(
        0, ge=0, description="Cores of the quota or reservation kept for use outside the cluster's groups."
    )
    deferral_pools: DeferralPools = Field(
        "",
        description="Deferral pools whose jobs run on the cluster's cores, separated by commas: the cores of their "
        "jobs reduce the capacity.",
        examples=["night"],
    )
    placement_pool: Key | None = Field(
        None,
        description="Placement pool whose hosts run the deployments: one whose containers would find no host is "
        "refused. Give `placement_application` too.",
        examples=["main"],
    )
    placement_application: ApplicationName | None = Field(
        None,
        description="Application of that pool of which a deployment is made; its cores are the size of a container.",
        examples=["shop"],
    )
    boot_deadline_s: float = Field(
        600.0,
        ge=60,
        le=86_400,
        description="Time limit of an admitted group for its launches; then the cores not launched are released.",
    )

    @property
    def deferrals(self) -> tuple[str, ...]:
        """The deferral pools whose jobs run on its cores."""
        return tuple(filter(None, self.deferral_pools.split(",")))

    @property
    def fixed(self) -> bool:
        """Whether the capacity is that of the settings, so that there is none to read."""
        return not (self.quota_code or self.reservation_id)


_PROMISED = ("capacity_cores", "sla", "start_within_s", "label_half_life_days")


def rules_of(name: str, settings: ClusterSettings, model: ClusterModel | None = None) -> ClusterRules:
    """Return a cluster's rules; BadInput names the setting that does not fit the others, or the file's wrong field.

    model: what the rule `learned` means; without it, the other settings stand in for that rule.
    """
    population = POPULATIONS[settings.preset.value]
    if settings.population_file is not None:
        population = population_in(settings.population_file)
    promise: dict[str, Any] = {
        "name": name,
        "population": population,
        "labels": settings.labels is Labels.ON,
        **{key: getattr(settings, key) for key in _PROMISED},
    }
    if settings.rule == LEARNED and model is not None:
        return ClusterRules(**promise | {"population": model.population}, **terms_of(rule_of(model.rule)))
    if settings.rule not in (None, LEARNED):
        return _by_rule(settings, settings.rule, promise)
    terms = {key: getattr(settings, key) for key in SAID_BY_RULE}
    if settings.policy is PolicyKind.SECOND and settings.kappa is None and settings.risk is None:
        terms["kappa"] = DEFAULT_KAPPA
    return ClusterRules(**promise, **terms)


def _by_rule(settings: ClusterSettings, text: str, promise: dict[str, Any]) -> ClusterRules:
    also = sorted(settings.model_fields_set & SAID_BY_RULE)
    if also:
        raise BadInput("rule", text, f"leave out {', '.join(also)}: the rule sets all of these")
    try:
        return ClusterRules(**promise, **terms_of(rule_of(text)))
    except BadInput as error:
        raise BadInput("rule", text, f"{error.field} {error.value!r}: {error.remedy}") from None


def population_in(path: Path) -> Population:
    """Return the population that a JSON or TOML file holds, with or without more of a cluster beside it.

    `preset` in it names one that its fields change. BadInput, `population_file`, says what is wrong with it.
    """
    try:
        return _population(_fields_in(read_file(path, LARGEST_POPULATION_BYTES, follow_links=True), path), path)
    except OSError as error:
        raise BadInput("population_file", str(path), f"give a JSON or TOML file that can be read: {error}") from None


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """A file that decides for a cluster: its rule, the population that it believes in, and all that it holds.

    forced: why it decides without having passed an evaluation, "" when it has.
    """

    rule: str
    population: Population
    held: Mapping[str, Any]
    forced: str = ""


def cluster_model_in(path: Path, content: bytes | None = None) -> ClusterModel:
    """Return the rule and the population in a file, or in its content where that is given; ModelRefused or BadInput."""
    held = _fields_in(read_model_file(path).content if content is None else content, path)
    rule = held.get("rule")
    if not isinstance(rule, str):
        raise refused(path, 'it names no rule: add one, such as "rule": "second:2.8"')
    try:
        terms_of(rule_of(rule))
        return ClusterModel(rule, _population(held, path), held)
    except BadInput as error:
        raise refused(path, f"{error}") from None


def champion_of(directory: ModelsDirectory, name: str) -> ClusterModel:
    """Return what was promoted or forced for a cluster, checked; BadInput when nothing was, or it is refused."""
    subject = Subject("admission", name)
    champion = directory.champion(subject)
    if champion is None:
        remedy = f"promote one: trimtab promote {subject} FILE"
        raise BadInput("champion", str(directory.path), f"no file was promoted for the cluster {name}: {remedy}")
    forced = forced_reason(directory.check(subject, champion))
    model = cluster_model_in(directory.file_of(champion.model), directory.read(champion.model).content)
    return replace(model, forced=forced)


def _fields_in(content: bytes, path: Path) -> Mapping[str, Any]:
    try:
        text = content.decode("utf-8")
        held: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput("population_file", str(path), f"give a JSON or TOML file that can be read: {error}") from None
    return held if isinstance(held, dict) else {}


def _population(given: Mapping[str, Any], path: Path) -> Population:
    names = [field.name for field in fields(Population)]
    base = POPULATIONS.get(given.get("preset", ""))
    missing = [name for name in names if name not in given] if base is None else []
    if missing:
        raise BadInput("population_file", str(path), f"it lacks {', '.join(missing)}")
    numbers: dict[str, float] = {}
    for name in names:
        value: Any = given.get(name, getattr(base, name, None))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput("population_file", str(path), f"its {name} is {value!r}: give a number")
        numbers[name] = float(value)
    try:
        return Population(**numbers)
    except BadInput as error:
        raise BadInput("population_file", str(path), f"its {error}") from None


def _conflicts(name: str, cluster: ClusterSettings, settings: Settings) -> Iterator[Conflict]:
    path = (SUBJECTS.name, name)
    try:
        rules_of(name, cluster)
    except BadInput as error:
        others = ("policy", "threshold_cores", "kappa", "risk", "moments", "population_file")
        depends_on = tuple((*path, other) for other in others if other != error.field)
        yield Conflict((*path, error.field), depends_on, error.remedy)
    for pool in cluster.deferrals:
        yield from refers((*path, "deferral_pools"), pool, getattr(settings, "deferrals", {}), "deferral pool")
    yield from needs(path, cluster, "placement_pool", "placement_application")
    yield from needs(path, cluster, "placement_application", "placement_pool")
    placements = getattr(settings, "placements", {})
    yield from refers((*path, "placement_pool"), cluster.placement_pool, placements, "placement pool")
    if cluster.quota_code and cluster.reservation_id:
        remedy = "give the quota or the reservation: a cluster has one capacity"
        yield Conflict((*path, "reservation_id"), ((*path, "quota_code"),), remedy)
    if (cluster.quota_code or cluster.reservation_id) and not cluster.tagged_groups:
        measured = "quota_code" if cluster.quota_code else "reservation_id"
        remedy = f"set it to true: {measured} is read for a cluster of tagged groups"
        yield Conflict((*path, "tagged_groups"), ((*path, measured),), remedy)


SUBJECTS = Subjects(
    "clusters", "clusters", ClusterSettings, {"clusters": "<cluster>"}, _conflicts, lambda one: one.tagged_groups
)
