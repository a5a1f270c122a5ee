"""The reference page of all settings, written from their definitions."""

from __future__ import annotations

from collections.abc import Iterator

from agent.settings.admission import ClusterSettings
from agent.settings.alarms import AlarmSettings
from agent.settings.effective import plain
from agent.settings.fleet import (
    ClaimsSettings,
    FleetSettings,
    GroupSettings,
    QueueRuleSettings,
    RailsSettings,
    TargetTrackingSettings,
    ThresholdSettings,
)
from agent.settings.http import HttpSettings, SelfMetricsSettings
from agent.settings.inputs import CloudWatchSettings, CollectSettings, RenderSettings
from agent.settings.kinds import expected
from agent.settings.learned import LearnedSettings
from agent.settings.model import AwsSettings, DiscoverySettings, LeaderSettings, LedgerSettings, ListenerSettings
from agent.settings.names import NOT_SETTINGS, Node, SettingPath, name_of, tree
from agent.settings.oversubscription import PoolSettings, SubscriberSettings

PREAMBLE = """\
# Configuration

<!-- Written by `trimtab config docs` from the definitions in agent/settings/; a test fails when it is stale. -->

Every setting is an environment variable. Names begin with `TRIMTAB_`; `__` leads into a section. An empty variable
counts as not set. `trimtab config check` prints the effective values and where each came from, and lists every mistake
at once, unknown names included.

A fleet and each of its groups has a key of your choice, which is part of the variable's name. Keys are read in lower
case: `TRIMTAB_FLEETS__Web__...` and `TRIMTAB_FLEETS__web__...` are the same fleet, `web`, and that is how it stands in
metric paths (`trimtab.web.workers_s.<vm>.cpu_percent`).

```sh
TRIMTAB_MODE=observe
TRIMTAB_FLEETS__web__POLICY=queue-rule
TRIMTAB_FLEETS__web__GROUPS__workers_s__NAME=web-workers-small
TRIMTAB_FLEETS__web__GROUPS__workers_s__VM_TYPE=m5a.large
TRIMTAB_FLEETS__web__GROUPS__workers_s__CORES=2
TRIMTAB_FLEETS__web__GROUPS__workers_s__MEMORY_GB=8
TRIMTAB_FLEETS__web__GROUPS__workers_s__PRICE_PER_HOUR=0.086
TRIMTAB_FLEETS__web__GROUPS__workers_s__MAX=10
```

Secrets do not belong in the environment: any setting can be a file in `$CREDENTIALS_DIRECTORY`, as systemd's
`LoadCredential=` leaves it, named like the variable in lower case, for example `trimtab_ledger__url`. What the
environment sets stands before a credential. Passwords and credentials are never printed.
"""

TITLES = {
    LedgerSettings: "Ledger",
    LeaderSettings: "Leader",
    DiscoverySettings: "Discovery",
    ListenerSettings: "Listener",
    RenderSettings: "Graphite",
    CloudWatchSettings: "CloudWatch",
    CollectSettings: "On each VM",
    AwsSettings: "AWS",
    AlarmSettings: "Alarms",
    LearnedSettings: "Learned policies",
    HttpSettings: "HTTP",
    SelfMetricsSettings: "The agent's own metrics",
    FleetSettings: "A fleet",
    GroupSettings: "A group of a fleet",
    QueueRuleSettings: "Policy `queue-rule`",
    ThresholdSettings: "Policy `threshold`",
    TargetTrackingSettings: "Policy `target-tracking`",
    RailsSettings: "Rails of a fleet",
    ClaimsSettings: "What a fleet's sources may claim",
    ClusterSettings: "A cluster that deployments ask to come into",
    PoolSettings: "A pool whose CPU is oversold",
    SubscriberSettings: "A subscriber of a pool",
}

KEYS = {
    "fleets": "<fleet>",
    "groups": "<group>",
    "clusters": "<cluster>",
    "pools": "<pool>",
    "subscribers": "<subscriber>",
}


def page() -> str:
    """Return the page as Markdown."""
    lines = [PREAMBLE, *_section("The agent", "", tree(), ()), *_others()]
    return "\n".join(lines) + "\n"


def _section(title: str, text: str, node: Node, path: SettingPath) -> Iterator[str]:
    """Write the settings that stand directly in a section as a table, then each section below it."""
    yield f"## {title}\n"
    if text:
        yield f"{text}\n"
    yield "| name | default | give | meaning |"
    yield "|---|---|---|---|"
    sections = []
    for name, child in (node.children or {}).items():
        if child.children is None and child.values is None:
            yield _row(name, child, (*path, name))
        else:
            sections.append((name, child))
    yield ""
    for name, child in sections:
        below, place = child, (*path, name)
        if child.values is not None:
            below, place = child.values, (*place, KEYS[name])
        if below.section is not None:
            yield from _section(TITLES[below.section], _first_line(below.section.__doc__), below, place)


def _row(name: str, node: Node, path: SettingPath) -> str:
    field = node.field
    if field is None:
        raise AssertionError(f"{name_of(path)} is not a setting")
    default = "required" if field.is_required() else "" if field.default is None else f"`{plain(field.default)}`"
    cells = (f"`{name_of(path)}`", default, expected(name, field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().splitlines()[0]


def _others() -> Iterator[str]:
    yield "## Names that are no settings\n"
    yield "| name | meaning |"
    yield "|---|---|"
    for name, meaning in NOT_SETTINGS.items():
        yield f"| `{name}` | {meaning} |"
