"""Which policy chooses a host, and what stands in for one that fails.

A policy is believed in nothing: what it offers is checked against the constraints by other code, and a request whose
policy raises, is late or offers a host that cannot take the container is placed by best fit from its first container.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agent.models.directory import ModelRefused, ModelsDirectory
from agent.models.regular_files import read_file
from agent.placement.advice import PolicyAdvice, read_advice
from agent.placement.records import BEST_FIT, LIFETIME, HostEnd, LifetimeReason, PoolHead
from agent.placement.settings import (
    BUNDLED,
    FILE,
    LEARNED,
    POLICY_WORDS,
    RESERVE,
    SMALL_POOLS,
    PlacementSettings,
)
from agent.settings import Settings
from domain.errors import BadInput, ConfigurationError, Mistake, PolicyFailure, TrimtabError
from domain.rules.placement.cluster import Choice, Cluster, Obstacle, Scored, best_of, explain, scored
from domain.rules.placement.lifetimes import STEP, UNIT, LifetimeRule, rule_of
from domain.rules.placement.policies import BF, NAMED, TIERS, Policy, parse_policy, reserve, scores, tier_price
from domain.subject import Subject

LARGEST_POLICY_BYTES = 2**20
SHIPPED = Path(__file__).with_name("shipped") / "tiers17a.json"
"""The policy that comes with the agent: what `learned` means until a file is put in use."""
SHIPPED_SMALL = SHIPPED.with_name(f"{SMALL_POOLS}.json")
Best = tuple[int, float, Mapping[str, float]]
"""A host by its index, its score, and the terms that the score sums."""
Pick = Callable[[Scored], Choice | None]
"""Chooses a host among those that can take a container."""


@dataclass(frozen=True, slots=True)
class HostChoice:
    """The hosts of a request, by its containers, and the policy that chose; replaced: why not the pool's, "" if so.

    best: for the first container, up to five hosts with score and terms. infeasible: hosts by the reason for which each
    could not take a container: the one that found none, or else the first. lifetime: None for another policy.
    """

    choices: tuple[Choice, ...]
    policy: Policy
    best: tuple[Best, ...]
    infeasible: Mapping[str, int]
    replaced: str = ""
    lifetime: LifetimeReason | None = None


def read_policy(path: Path) -> Policy:
    """Return the policy in a file; BadInput, or ConfigurationError with every wrong field."""
    try:
        return policy_in(read_file(path, LARGEST_POLICY_BYTES, follow_links=True), path)
    except OSError as error:
        raise BadInput("policy file", str(path), f"give a JSON file that can be read: {error}") from None


def policy_in(content: bytes, path: Path) -> Policy:
    """Return the policy in the content of a file; BadInput, or ConfigurationError with every wrong field."""
    try:
        return parse_policy(json.loads(content), str(path))
    except (ValueError, RecursionError) as error:
        raise BadInput("policy file", str(path), f"give a JSON file of a policy: {error}") from None


def operable(policy: Policy) -> Policy:
    """Return a policy that may decide for a pool; ConfigurationError for one that is made for a single filling.

    Requests come to a pool without an end: it would hold no reserve any more once so many large ones had come.
    """
    if policy.for_one_filling:
        remedy = "it counts the large requests of one filling, and a pool has no last one: give a vector of tiers17a"
        raise ConfigurationError([Mistake("policy.family", policy.family, remedy)])
    return policy


def named_policy(text: str, pool: str, models: ModelsDirectory) -> Policy:
    """Return the policy that a setting or an order names; BadInput or ConfigurationError says why it cannot be used."""
    name, _, given = text.partition(":")
    if name == FILE:
        return operable(read_policy(Path(given)))
    if name == LEARNED:
        subject = Subject("placement", pool)
        champion = models.champion(subject)
        if champion is None:
            return read_policy(SHIPPED)
        models.check(subject, champion)
        return operable(policy_in(models.read(champion.model).content, models.file_of(champion.model)))
    if text == SMALL_POOLS:
        return read_policy(SHIPPED_SMALL)
    if name == RESERVE and given:
        hosts, cores, count = (int(number) for number in given.split(","))
        return reserve(hosts, cores, count)
    if text not in BUNDLED:
        raise BadInput("policy", text, f"give {POLICY_WORDS}")
    return NAMED[text]


def check_policies(name: str, pool: PlacementSettings, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each policy that a pool names, and why it cannot be used, "" when it can."""
    models = ModelsDirectory(settings.models_directory, settings.promotion_key)
    for text in dict.fromkeys(filter(None, (pool.policy, pool.canary, pool.shadow))):
        try:
            named_policy(text, name, models)
            yield text, ""
        except TrimtabError as error:
            yield text, str(error)


@dataclass(slots=True)
class PolicySource:
    """What a text of the settings means, read again when its file changes; a refused one leaves the one before it.

    problem: why the text does not decide, "" when it does.
    """

    text: str
    pool: str
    models: ModelsDirectory
    policy: Policy = BF
    problem: str = ""
    _signature: object = field(default=None, repr=False)

    def look(self) -> bool:
        """Read the policy again where it may have changed; return whether another one decides now."""
        signature = self._place()
        if signature is not None and signature == self._signature:
            return False
        self._signature = signature
        before = self.policy
        try:
            self.policy, self.problem = named_policy(self.text, self.pool, self.models), ""
        except (ModelRefused, BadInput, ConfigurationError) as error:
            self.problem = f"policy {self.text} is refused and {before.name} decides: {error}"
        except TrimtabError as error:
            self.problem = f"policy {self.text} cannot be read and {before.name} decides: {error}"
        return self.policy != before

    def _place(self) -> object:
        """Return what changes when the policy's file does; None for one that is looked up each time."""
        name, _, given = self.text.partition(":")
        if name == LEARNED:
            return None
        if name != FILE:
            return name
        try:
            found = Path(given).stat()
        except OSError as error:
            return error.errno
        return found.st_mtime_ns, found.st_size, found.st_ino


class Chooser:
    """The policies of one pool. pick: how one chooses; tests give another than `best_of`."""

    def __init__(self, pool: str, settings: PlacementSettings, models: ModelsDirectory, pick: Pick = best_of) -> None:
        self._settings, self._pick, self._models, self._pool = settings, pick, models, pool
        self.main = PolicySource(settings.policy or BEST_FIT, pool, models)
        self.canary = None if settings.canary is None else PolicySource(settings.canary, pool, models)
        self.switched: PolicySource | None = None
        self._preferred = False
        self.look()

    def look(self) -> None:
        """Read policies again whose files changed."""
        for source in (self.main, self.canary, self.switched):
            if source is not None:
                source.look()

    def follow(self, head: PoolHead) -> None:
        """Let the policy decide to which an operator switched, if any, and the pool's default where none is set."""
        if self._preferred:
            return
        if self._settings.policy is None and self.main.text != head.default_policy:
            self.main = PolicySource(head.default_policy, self._pool, self._models)
            self.main.look()
        text = head.switch.policy if head.switch else ""
        if (self.switched.text if self.switched else "") == text:
            return
        if not text:
            self.switched = None
            return
        source = PolicySource(text, self._pool, self._models)
        source.look()
        self.switched = source

    def prefer(self, text: str) -> None:
        """Let another policy decide here alone, whatever the settings and operators say; BadInput."""
        self.check(text)
        self.main, self.canary = PolicySource(text, self._pool, self._models), None
        self.switched, self._preferred = None, True
        self.main.look()

    def check(self, text: str) -> None:
        """Raise BadInput or ConfigurationError for a policy that cannot be used."""
        named_policy(text, self._pool, self._models)

    def problems(self) -> str:
        """Return why a policy of the settings does not decide, "" when all do."""
        sources = (self.main, self.canary, self.switched)
        return "; ".join(source.problem for source in sources if source is not None and source.problem)

    def advice(self) -> tuple[PolicyAdvice | None, str]:
        """Return the advice on the policy in force, None for none, and why it cannot be read, "" where it can."""
        try:
            found = read_advice(self._models.path, self._pool)
        except BadInput as error:
            return None, f"{error.field} is not readable ({error.remedy})"
        except OSError as error:
            return None, f"the advice on the policy is not readable ({error.strerror})"
        return (found, "") if found is not None and found.policy_digest == self.in_force.digest else (None, "")

    def policy_for(self, application: str) -> Policy:
        """Return the policy that decides for an application."""
        if self.switched is not None:
            return self.switched.policy
        if self.canary is not None and not self.canary.problem and share_of(application) < self._settings.canary_share:
            return self.canary.policy
        return self.main.policy

    @property
    def in_force(self) -> Policy:
        """The policy that decides for the applications that no canary has."""
        return (self.switched or self.main).policy

    def targets(self) -> dict[int, float]:
        """Return how many hosts with at least so many free cores the policy that decides keeps, by cores."""
        found: dict[int, float] = {}
        for family, theta in self.in_force.parts:
            if family == "reserve":
                found[int(theta[1])] = theta[0]
            elif family.startswith("tiers"):
                found |= {q: _target(theta, k) for k, q in enumerate(TIERS)}
        return found

    def place(
        self, cluster: Cluster, application: str, keys: Sequence[Hashable], *, partial: bool, spare: Callable[[], None]
    ) -> HostChoice:
        """Place the containers of a request on the cluster: all of them, or those that fit where `partial`, else none.

        keys: of the containers, under which the cluster follows their lives; declare their lifetime before. spare:
        called before each container, to bring closed hosts of types without bound.
        """
        policy = self.policy_for(application)
        try:
            return self._placed(cluster, policy, application, keys, partial, spare)
        except PolicyFailure as error:
            return self._placed(cluster, BF, application, keys, partial, spare, str(error))

    def scores(self, cluster: Cluster, application: str, hosts: Sequence[int]) -> list[float]:
        """Return the scores of hosts that can take a container, the higher the better, in their order.

        One whose policy fails is scored by best fit.
        """
        app = cluster.application(application)
        if not hosts:
            return []
        for policy in (self.policy_for(application), BF):
            view = cluster.view(app, 1, np.array(hosts, dtype=np.int64), policy.reserve_cores)
            found = scores(policy, view)
            if not np.isnan(found).any():
                break
        return [float(score) for score in found]

    def _placed(
        self,
        cluster: Cluster,
        policy: Policy,
        application: str,
        keys: Sequence[Hashable],
        partial: bool,
        spare: Callable[[], None],
        replaced: str = "",
    ) -> HostChoice:
        """Place a request; replaced: why the pool's policy does not decide, so that this one is followed unguarded."""
        app, before = cluster.application(application), (cluster.opened, cluster.largest, cluster.large)
        count = len(keys)
        cluster.saw(count)
        made: list[Choice] = []
        best: tuple[Best, ...] = ()
        infeasible: Mapping[Obstacle, int] = {}
        lifetime: LifetimeReason | None = None
        try:
            for k, key in enumerate(keys):
                spare()
                began = time.perf_counter()
                found = self._scored(cluster, policy, app, count, guarded=not replaced)
                choice = best_of(found) if replaced else self._guarded(found, began)
                if k == 0:
                    best, infeasible = tuple(explain(found)), cluster.reasons(app)
                    lifetime = lifetime_reason(cluster, policy, best)
                if choice is None:
                    infeasible = cluster.reasons(app)
                    break
                cluster.place(choice.host, app, key)
                made.append(choice)
        except BaseException:
            _undo(cluster, made, app, keys, before)
            raise
        if len(made) < count and not partial:
            _undo(cluster, made, app, keys, before)
            made = []
        counted = {reason.value: number for reason, number in sorted(infeasible.items())}
        return HostChoice(tuple(made), policy, best, counted, replaced, lifetime)

    def _scored(self, cluster: Cluster, policy: Policy, app: int, count: int, *, guarded: bool) -> Scored:
        try:
            return scored(cluster, policy, app, count)
        except Exception as error:
            if not guarded:
                raise
            raise PolicyFailure(f"{policy.name} raised {type(error).__name__}: {error}") from error

    def _guarded(self, found: Scored, began: float) -> Choice | None:
        """Return what the policy chooses; PolicyFailure when it raises, is late, or may not be followed."""
        cluster, policy, app = found.cluster, found.policy, found.app
        try:
            choice = self._pick(found)
        except Exception as error:
            raise PolicyFailure(f"{policy.name} raised {type(error).__name__}: {error}") from error
        took_ms = 1000.0 * (time.perf_counter() - began)
        # Nothing stands in for best fit that is faster.
        if took_ms > self._settings.decide_within_ms and policy != BF:
            limit = self._settings.decide_within_ms
            raise PolicyFailure(f"{policy.name} took {took_ms:.1f} ms for a container (at most {limit:g} ms)")
        if choice is None:
            if found.hosts.size:
                raise PolicyFailure(f"{policy.name} offered no host while there are hosts that can take the container")
            return None
        if not 0 <= choice.host < len(cluster.hosts) or not math.isfinite(choice.score):
            raise PolicyFailure(f"{policy.name} offered host {choice.host} at score {choice.score}")
        obstacle = cluster.allows(choice.host, app)
        if obstacle is not None:
            raise PolicyFailure(f"{policy.name} offered {cluster.hosts[choice.host].name}, which cannot: {obstacle}")
        return choice


def _undo(
    cluster: Cluster, made: Sequence[Choice], app: int, keys: Sequence[Hashable], before: tuple[int, float, int]
) -> None:
    take_back(cluster, made, app, keys)
    cluster.opened, cluster.largest, cluster.large = before


def take_back(cluster: Cluster, made: Sequence[Choice], app: int, keys: Sequence[Hashable]) -> None:
    """Take containers of an application off the cluster that were placed last, under the first of these keys."""
    for choice, key in reversed(list(zip(made, keys, strict=False))):
        cluster.release(choice.host, app)
        cluster.lives.forget(key, cluster.now)


def lifetime_reason(cluster: Cluster, policy: Policy, best: Sequence[Best]) -> LifetimeReason | None:
    """Return the reason of `lifetime` for the next container, whose best hosts these are; None for another policy."""
    if policy.family != LIFETIME:
        return None
    fit, hinted = cluster.lives.fit, not math.isnan(cluster.hint)
    rule = rule_of(fit, hinted=hinted)
    by_weights = rule is LifetimeRule.WEIGHTS
    left = cluster.lives.left_s(np.array([host for host, _, _ in best], dtype=np.int64), cluster.now)
    hosts = tuple(
        HostEnd(
            cluster.hosts[host].name,
            left_s if cluster.lives.is_known(host) else None,
            0.0 - terms["extension"] / (STEP * UNIT),
            0.0 - terms["gap"] / (STEP * UNIT if by_weights else STEP),
            round(-terms["opening"]),
            *(0.0 - terms[name] / (STEP * UNIT) for name in ("residual", "cores", "age")),
        )
        for (host, _, terms), left_s in zip(best[:2], left.tolist(), strict=False)
    )
    life_s = cluster.lives.life_s(cluster.hint, cluster.now - cluster.began) if hinted else None
    return LifetimeReason(rule, fit.r2, life_s, hosts)


def _target(theta: Sequence[float], tier: int) -> float:
    """Return the hosts that a policy with tiers keeps at one of them: where the price of taking one falls to nothing.

    The price falls in a straight line with the number of hosts, so that two points of it tell.
    """
    plain = [*theta[:6], *([0.0] * (len(theta) - 6))]
    whole, half = (tier_price(plain, tier, False, hosts, 1.0) for hosts in (0.0, 0.5))
    return float(0.5 * whole / (whole - half))


def share_of(application: str) -> float:
    """Return a number from 0 to 1 that is an application's own, the same everywhere."""
    return int.from_bytes(hashlib.sha256(application.encode()).digest()[:8], "big") / 2.0**64
