"""A request placed at once on the rules' cluster, as the agent does under its lock."""

from __future__ import annotations

from collections.abc import Sequence

from domain.errors import BadInput
from domain.rules.placement.cluster import Choice, Cluster, choose
from domain.rules.placement.policies import Policy


def place_request(
    cluster: Cluster, policy: Policy, app: int, count: int, *, partial: bool = False, keys: Sequence[int] = ()
) -> list[Choice]:
    """Place the containers of a request one after the other; return a choice for each that was placed.

    keys: under which their lives are followed. Where one finds no host, the others stay with `partial`; else none does,
    and the state is as before. BadInput.
    """
    if count < 1:
        raise BadInput("count", count, "give 1 container or more")
    before = cluster.opened, cluster.largest, cluster.large
    cluster.saw(count)
    made: list[Choice] = []
    for k in range(count):
        choice = choose(cluster, policy, app, count)
        if choice is None:
            break
        cluster.place(choice.host, app, keys[k] if keys else None)
        made.append(choice)
    if len(made) < count and not partial:
        for choice in reversed(made):
            cluster.release(choice.host, app)
        cluster.opened, cluster.largest, cluster.large = before
        return []
    return made
