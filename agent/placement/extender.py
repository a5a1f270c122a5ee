"""Kubernetes' scheduler extender: filter and prioritize in the v1 types of k8s.io/kube-scheduler/extender/v1.

A pod names its application by the label or annotation `trimtab.io/application`; a pod without one is none of the
pool's, and every node passes. Nodes are the pool's hosts by name. Nothing is reserved: that a pod was bound is learnt
from the inventory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from domain.errors import BadInput, UnknownName
from domain.rules.placement.cluster import Obstacle
from domain.rules.placement.instance import LONGEST_LIFETIME_S

if TYPE_CHECKING:
    from agent.placement.reserve import PlacementPool

APPLICATION: Final = "trimtab.io/application"
MOST_PRIORITY: Final = 10
"""MaxExtenderPriority of the published types."""
MOST_NODES: Final = 20_000

Names = dict[str, str]
_LONGEST: Final = 63
"""Characters of an application's name that are repeated for each node: as many as a label may have."""
_CURABLE: Final = frozenset(
    obstacle.value
    for obstacle in (
        *(Obstacle.CPU, Obstacle.MEMORY, Obstacle.DISK),
        *(Obstacle.LIMIT, Obstacle.EXCLUSION, Obstacle.RACK),
    )
)
"""What may end when other pods are evicted; a label, a drain, a failure and another pool's node do not."""
_FIELDS: Final = {"pod": "Pod", "nodes": "Nodes", "nodenames": "NodeNames"}


class _Published(BaseModel):
    """A type of Kubernetes: what is not read is ignored, and Go's null stands for an empty value."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, populate_by_name=True)


class ObjectMeta(_Published):
    """What is read of an object's metadata."""

    name: str = ""
    labels: Names | None = None
    annotations: Names | None = None


class PodSpec(_Published):
    """The part of a pod's specification that is read."""

    deadline: Annotated[Any, Field(alias="activeDeadlineSeconds")] = None


class Pod(_Published):
    """What is read of a pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec | None = None


class NodeList(_Published):
    """Nodes as they came; they are answered as they came."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    items: Annotated[list[dict[str, Any]] | None, Field(max_length=MOST_NODES)] = None


class ExtenderArgs(_Published):
    """A pod and the nodes that may take it: names where the extender is nodeCacheCapable, else the nodes themselves."""

    pod: Annotated[Pod, Field(alias="Pod")]
    nodes: Annotated[NodeList | None, Field(alias="Nodes")] = None
    node_names: Annotated[list[str] | None, Field(alias="NodeNames", max_length=MOST_NODES)] = None

    @model_validator(mode="before")
    @classmethod
    def _in_any_case(cls, given: Any) -> Any:
        """Read the names of fields in any case, as Go does."""
        if not isinstance(given, dict):
            return given
        return {_FIELDS.get(key.lower(), key): value for key, value in given.items()}


class ExtenderFilterResult(_Published):
    """The nodes that can take the pod, in the form in which they came, and why each other one cannot.

    failed_for_good: of the others, those that could not take the pod either if other pods were evicted from them.
    """

    nodes: Annotated[NodeList | None, Field(alias="Nodes")] = None
    node_names: Annotated[list[str] | None, Field(alias="NodeNames")] = None
    failed_nodes: Annotated[Names, Field(alias="FailedNodes")] = {}
    failed_for_good: Annotated[Names, Field(alias="FailedAndUnresolvableNodes")] = {}
    error: Annotated[str, Field(alias="Error")] = ""


class HostPriority(_Published):
    """A node and its score, from 0 to 10."""

    host: Annotated[str, Field(alias="Host")]
    score: Annotated[int, Field(alias="Score")]


def application_of(pod: Pod) -> str:
    """Return the application that a pod names, "" for a pod that is none of the pool's."""
    meta = pod.metadata
    return (meta.labels or {}).get(APPLICATION) or (meta.annotations or {}).get(APPLICATION) or ""


def lifetime_of(pod: Pod) -> float | None:
    """Return the deadline of a pod as its expected seconds, None for no deadline, or one that is not possible."""
    found = None if pod.spec is None else pod.spec.deadline
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= LONGEST_LIFETIME_S:
        return None
    return float(found)


def names_of(args: ExtenderArgs) -> list[str]:
    """Return the names of the nodes that were sent."""
    if args.node_names is not None:
        return args.node_names
    nodes = args.nodes.items if args.nodes is not None else None
    return [_name_of(node) for node in nodes or []]


def _name_of(node: dict[str, Any]) -> str:
    """Return a node's name, "" for one whose metadata is none: no host of the pool has that name."""
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def filtered(pool: PlacementPool, args: ExtenderArgs) -> ExtenderFilterResult:
    """Return which nodes can take the pod: none, where the pool does not know its application.

    An error in place of that would let a scheduler to which the extender is `ignorable` take any node.
    """
    application, names = application_of(args.pod), names_of(args)
    failed: Names = {}
    for_good: Names = {}
    if application:
        try:
            failed = pool.judge(application, names)[1]
            for_good = {name: why for name, why in failed.items() if why not in _CURABLE}
        except UnknownName:
            failed = for_good = dict.fromkeys(names, f"no application {application[:_LONGEST]!r} in pool {pool.name}")
    result = ExtenderFilterResult(failed_nodes=failed, failed_for_good=for_good)
    if args.node_names is not None:
        return result.model_copy(update={"node_names": [name for name in names if name not in failed]})
    nodes = args.nodes or NodeList(items=[])
    kept = [node for node, name in zip(nodes.items or [], names, strict=True) if name not in failed]
    return result.model_copy(update={"nodes": nodes.model_copy(update={"items": kept})})


def prioritized(pool: PlacementPool, args: ExtenderArgs) -> list[HostPriority]:
    """Return a score for each node: 10 for the best host, 0 for the worst and for what cannot take the pod."""
    application, names = application_of(args.pod), names_of(args)
    scores: dict[str, float] = {}
    if application:
        try:
            hint = lifetime_of(args.pod) if pool.settings.deadline_as_lifetime else None
            scores = pool.judge(application, names, hint)[0]
        except BadInput:
            scores = {}
    finite = [score for score in scores.values() if math.isfinite(score)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def scaled(name: str) -> int:
        score = scores.get(name, -math.inf)
        if not math.isfinite(score):
            return 0
        # The worst feasible host keeps a point above what is closed or cannot take the pod.
        return MOST_PRIORITY if high == low else 1 + math.floor((MOST_PRIORITY - 1) * (score - low) / (high - low))

    return [HostPriority(host=name, score=scaled(name)) for name in names]
