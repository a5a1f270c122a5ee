"""One plain sentence for a decision on a fleet, the same on the page, in the terminal and from the HTTP interface.

`kept 3+3+3: CPU 83 %, nothing waits`. What the policy computed, probabilities and features for example, and what each
rail said stand in the explanation of the decision (`agent.autoscaling.explain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.autoscaling.decide import DecisionInputs
from agent.kernel.text import counted, duration_text, words
from agent.rails.inputs import SCALE_IN_WAITS
from domain.decisions import Decision, Direction, Mode, RailEffect, Reason, Verdict
from domain.errors import FailureClass
from domain.snapshot import QueueSnapshot, Snapshot
from domain.units import MINUTE_S

MOST_NAMED = 3
"""With more groups than these changed, the sentence has the fleet's sum alone."""
MOST_ADDED = 6
"""With more groups than these, kept sizes are summed up."""

_OWN_WORDS = {
    Reason.PAUSED: "paused",
    Reason.PINNED: "pinned",
    Reason.NOT_LEADER: "another agent leads",
    Reason.IN_FLIGHT: "an earlier change is in progress",
}
_EFFECTS = {
    Verdict.VETOED: "held back",
    Verdict.SHRUNK: "held back",
    Verdict.RAISED: "raised",
    Verdict.MOVED: "another type",
}

Change = tuple[str, int, int]
"""A group's key, its size before and after."""


def plain_sentence(decision: Decision, inputs: DecisionInputs, width: int | None = None) -> str:
    """Return what was decided, what was seen and what limited it, in one sentence without its time or id.

    width: the most characters, None for no limit; the least important clauses are left out until the sentence fits.
    """
    snapshot = inputs.snapshot
    if snapshot is None:
        return _fitting([f"kept the sizes: {_unread(inputs)}"], width)
    head = _head(decision, inputs, snapshot)
    seen = list(_seen(snapshot))
    limits = list(_limits(decision))
    oldest = oldest_wait(snapshot.queue)
    whole = [*seen, oldest] if oldest else seen
    shortest_first = [
        (seen[:1], []),
        (seen, []),
        (seen, limits[:1]),
        (seen, limits),
        (whole, limits),
    ]
    return _fitting([_joined(head, facts, causes) for facts, causes in reversed(shortest_first)], width)


def _joined(head: str, facts: Sequence[str], causes: Sequence[str]) -> str:
    return "; ".join([f"{head}: {', '.join(facts)}" if facts else head, *causes])


def _fitting(sentences: Sequence[str], width: int | None) -> str:
    """Return the first of the sentences that fits, else the last one cut off."""
    for sentence in sentences:
        if width is None or len(sentence) <= width:
            return sentence
    return sentences[-1][: max(0, (width or 0) - 3)].rstrip() + "..."


def _unread(inputs: DecisionInputs) -> str:
    failure = inputs.cloud_failure
    if failure is None:
        return "nothing could be read"
    return (
        failure.detail if failure.failure is FailureClass.UNSUPPORTED else f"AWS could not be read ({failure.failure})"
    )


def _head(decision: Decision, inputs: DecisionInputs, snapshot: Snapshot) -> str:
    keys = [group.key for group in inputs.fleet.groups]
    replaced = [
        f"replaced {counted(len(intent.victims), 'VM')} of {intent.group}"
        for intent in decision.intents
        if intent.direction is Direction.REPLACE
    ]
    begun = {intent.group for intent in decision.intents if intent.direction is not Direction.REPLACE}
    moved = [change for change in _changes(keys, snapshot.requested, decision.desired) if change[0] in begun]
    if moved:
        return ", ".join([_moved(moved, ("grew", "shrank", "changed")), *replaced])
    wanted = [] if decision.mode is Mode.ACT else _wanted(decision, keys, snapshot)
    if wanted:
        return _moved(wanted, ("would grow", "would shrink", "would change"))
    return ", ".join(replaced) or f"kept {_sizes(snapshot.requested)}"


def _changes(keys: Sequence[str], before: Sequence[int], after: Sequence[int]) -> list[Change]:
    if not len(keys) == len(before) == len(after):
        return []
    return [(key, old, new) for key, old, new in zip(keys, before, after, strict=True) if old != new]


def _wanted(decision: Decision, keys: Sequence[str], snapshot: Snapshot) -> list[Change]:
    """Return what an agent that acts would have changed: what the rail of the observe mode held."""
    effect = next((effect for effect in decision.effects if effect.reason is Reason.OBSERVE_MODE), None)
    return [] if effect is None else _changes(keys, snapshot.requested, effect.before)


def _moved(moved: Sequence[Change], verbs: tuple[str, str, str]) -> str:
    up, down = any(new > old for _, old, new in moved), any(new < old for _, old, new in moved)
    verb = verbs[2] if up and down else verbs[0] if up else verbs[1]
    if len(moved) <= MOST_NAMED:
        return f"{verb} " + ", ".join(f"{key} {old} -> {new}" for key, old, new in moved)
    old_sum, new_sum = sum(old for _, old, _ in moved), sum(new for *_, new in moved)
    return f"{verb} {old_sum} -> {new_sum} VMs in {len(moved)} groups"


def _sizes(sizes: Sequence[int]) -> str:
    if 1 < len(sizes) <= MOST_ADDED:
        return "+".join(str(size) for size in sizes)
    return counted(sum(sizes), "VM") + (f" in {len(sizes)} groups" if len(sizes) > MOST_ADDED else "")


def _seen(snapshot: Snapshot) -> Iterator[str]:
    """Yield what was measured, or for how long it has been absent."""
    absent_for = duration_text(snapshot.stale_bins * MINUTE_S) if snapshot.stale_bins else ""
    if snapshot.absent and absent_for:
        yield f"{', '.join(snapshot.absent)} absent for {absent_for}"
    if snapshot.without_reports:
        yield SCALE_IN_WAITS
    if snapshot.cpu_mean is not None:
        yield f"CPU {100.0 * snapshot.cpu_mean:.0f} %"
    if (queue := snapshot.queue) is not None:
        yield "nothing waits" if not queue.waiting else counted(queue.waiting, "job waits", "jobs wait")
    if snapshot.cpu_mean is None and snapshot.queue is None and not (snapshot.absent and absent_for):
        yield "nothing was measured"


def oldest_wait(queue: QueueSnapshot | None) -> str:
    """Return for how long the oldest job waits, "" when none waits or it is not known."""
    if queue is None or not queue.waiting or queue.oldest_wait_s is None:
        return ""
    return f"the oldest for {duration_text(queue.oldest_wait_s)}"


def _limits(decision: Decision) -> Iterator[str]:
    """Yield the cause of each change that rails made, each once, and that the policy failed."""
    causes = dict.fromkeys(_cause(effect) for effect in decision.effects if effect.verdict is not Verdict.PASSED)
    yield from (cause for cause in causes if cause)
    if decision.policy_failures:
        yield "the policy failed, another decided"


def _cause(effect: RailEffect) -> str:
    reason = effect.reason
    if reason is Reason.OBSERVE_MODE:
        return ""
    if reason in _OWN_WORDS:
        return _OWN_WORDS[reason]
    return f"{_EFFECTS[effect.verdict]}: {words(effect.rail if reason is None else reason)}"
