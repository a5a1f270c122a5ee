"""Who takes part in an evaluation: a label, and the policy's text, the same everywhere or tuned for each group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from domain.errors import BadInput
from trainer.autoscaling.evaluation.suite import GROUPS

ANYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Contender:
    """A label for people, and the policy's text per group; the entry `*` stands for the groups that have none."""

    label: str
    texts: Mapping[str, str]

    def text(self, group: str) -> str | None:
        """Return the policy's text in a group, None where it does not take part."""
        return self.texts.get(group, self.texts.get(ANYWHERE))


def contenders_of(given: Sequence[str]) -> tuple[Contender, ...]:
    """Read contenders: a policy's text, `LABEL=TEXT`, or `@FILE.json`.

    The file holds one object, label to text, or label to an object with T1..T6 and `*` as keys. Raises BadInput; two
    contenders with one label are a mistake.
    """
    found: list[Contender] = []
    for text in given:
        found += _of_file(Path(text[1:])) if text.startswith("@") else [_of_text(text)]
    labels = [contender.label for contender in found]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput("--policies", label, "give each policy a label of its own: LABEL=TEXT")
    return tuple(found)


def _of_text(text: str) -> Contender:
    before, equals, after = text.partition("=")
    # An equals sign behind a colon belongs to the policy's own parameters.
    if equals and before.strip() and ":" not in before:
        return Contender(before.strip(), {ANYWHERE: after.strip()})
    if not text.strip():
        raise BadInput("--policies", text, "give a policy, LABEL=POLICY, or @FILE.json")
    return Contender(text.strip(), {ANYWHERE: text.strip()})


def _of_file(path: Path) -> list[Contender]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise BadInput("--policies", f"@{path}", f"{fault}: give a JSON object of label to policy") from None
    if not isinstance(data, dict):
        raise BadInput("--policies", f"@{path}", "give a JSON object of label to policy")
    made = []
    for label, entry in data.items():
        texts = {ANYWHERE: entry} if isinstance(entry, str) else entry
        wrong = not isinstance(texts, dict) or not texts or any(not isinstance(t, str) for t in texts.values())
        if wrong or any(key not in (*GROUPS, ANYWHERE) for key in texts):
            raise BadInput(f"{path.name}: {label}", entry, f"give a policy, or policies for {', '.join(GROUPS)} and *")
        made.append(Contender(label, texts))
    return made
