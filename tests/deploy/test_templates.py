"""CloudFormation, Dockerfile and Graphite's files: right by their own rules, and in step with the rest."""

from __future__ import annotations

import configparser
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from collectors.inventory import TERMINATING
from domain.samples import QueueMetric, QueueSeries, VmMetric, VmSeries
from tests.architecture.product import ROOT
from tests.deploy.policies import Grant, grants, grants_of
from tests.deploy.test_scripts import QUICK_PIP, a_checkout

TEMPLATE = ROOT / "deploy" / "cloudformation" / "fleet.yaml"


class _Loader(yaml.SafeLoader):
    """Reads a template's short functions as {"name": arguments}."""


def _function(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    read = {yaml.ScalarNode: loader.construct_scalar, yaml.SequenceNode: loader.construct_sequence}
    return {suffix: read[type(node)](node)}  # type: ignore[index]


_Loader.add_multi_constructor("!", _function)


def resources(kind: str) -> dict[str, Any]:
    template = yaml.load(TEMPLATE.read_text("utf-8"), _Loader)
    return {name: one["Properties"] for name, one in template["Resources"].items() if one["Type"] == kind}


@pytest.mark.exhaustive
def test_cfn_lint_finds_nothing() -> None:
    command = [Path(sys.executable).with_name("cfn-lint"), "--regions", "us-east-1", "--", str(TEMPLATE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_templates_agent_may_do_what_act_allows_and_no_more() -> None:
    (policy,) = resources("AWS::IAM::RolePolicy").values()
    names = {json.dumps({"Ref": "FleetName"}): ["FLEET"], json.dumps({"Ref": "ClusterNames"}): ["CLUSTER"]}

    def conditions(found: Iterable[Grant]) -> set[tuple[str, str]]:
        read = (
            (
                grant.action,
                {
                    how: {key: names.get(str(value), value) for key, value in of.items()}
                    for how, of in grant.condition.items()
                },
            )
            for grant in found
        )
        return {(action, json.dumps(condition, sort_keys=True)) for action, condition in read}

    in_template = grants_of(_plain(policy["PolicyDocument"]))
    assert conditions(in_template) == conditions(grants("act"))


def _plain(value: Any) -> Any:
    """Functions as text, so that a policy reads as one."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in {"Sub", "GetAtt", "Ref"}:
        return json.dumps(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def test_every_group_is_tagged_and_drains() -> None:
    groups = resources("AWS::AutoScaling::AutoScalingGroup")
    assert len(groups) == 3
    keys = set()
    for group in groups.values():
        tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
        assert tags["trimtab:fleet"] == {"Ref": "FleetName"}
        keys.add(tags["trimtab:group"])
        (hook,) = group["LifecycleHookSpecificationList"]
        assert hook["LifecycleTransition"] == TERMINATING
        assert hook["HeartbeatTimeout"] >= 120
    assert keys == {"workers_s", "workers_m", "workers_l"}


def series() -> list[str]:
    """A path of every kind that VMs and queues report, dotted and tagged."""
    vm = [VmSeries("web", "workers_s", "i-0abc1234", metric) for metric in VmMetric]
    queue = [QueueSeries("web", metric) for metric in QueueMetric]
    dotted = [one.path for one in (*vm, *queue)]
    return [*dotted, *(f"trimtab.{metric.value};fleet=web;group=workers_s;vm=i-0abc1234" for metric in VmMetric)]


def first_match(file: str, path: str) -> dict[str, str]:
    """The section that carbon takes: the first whose pattern is found."""
    sections = configparser.RawConfigParser()
    sections.read(ROOT / "deploy" / "graphite" / file)
    for name in sections.sections():
        if re.search(sections.get(name, "pattern"), path):
            return {"name": name, **dict(sections.items(name))}
    raise AssertionError(f"no section of {file} matches {path}")


@pytest.mark.parametrize("path", series())
def test_carbon_keeps_what_is_reported_at_the_interval_it_is_reported_in(path: str) -> None:
    assert first_match("storage-schemas.conf", path)["retentions"].startswith("10s:")


@pytest.mark.parametrize("path", series())
def test_carbon_keeps_the_last_of_a_total_and_the_mean_of_the_rest(path: str) -> None:
    kept = first_match("storage-aggregation.conf", path)["aggregationmethod"]
    assert kept == ("last" if "_total" in path else "average")


def test_carbon_keeps_the_agents_own_metrics_once_a_minute() -> None:
    path = "trimtab-agent.kernel_total.web.queue_grew"
    assert first_match("storage-schemas.conf", path)["retentions"].startswith("1m:")
    assert first_match("storage-aggregation.conf", path)["aggregationmethod"] == "last"


@pytest.mark.parametrize("file", ["storage-schemas.conf", "storage-aggregation.conf"])
def test_series_of_others_are_not_matched(file: str) -> None:
    with pytest.raises(AssertionError):
        first_match(file, "servers.trimtab.cpu")


def test_retentions_divide_each_other_as_whisper_needs() -> None:
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 31_536_000}
    for path in ("trimtab.web.queue.waiting", "trimtab-agent.ticks_total"):
        steps = []
        for part in first_match("storage-schemas.conf", path)["retentions"].split(","):
            step, span = ((int(text[:-1]) * unit[text[-1]]) for text in part.split(":"))
            steps.append((step, span))
        for (step, span), (next_step, next_span) in itertools.pairwise(steps):
            assert next_step % step == 0
            assert next_step > step
            assert next_span > span
            assert span // step >= next_step // step


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_steps_of_the_dockerfile_make_an_environment_that_works(tmp_path: Path) -> None:
    checkout, source, venv = a_checkout(tmp_path / "checkout"), tmp_path / "source", tmp_path / "venv"
    source.mkdir()
    stages = [place for place, (word, _) in enumerate(instructions()) if word == "FROM"]
    for word, rest in instructions()[: stages[1]]:
        if word == "COPY":
            *froms, to = shlex.split(rest)
            for name in froms:
                place = source / to if to != "./" else source / name
                subprocess.run(["cp", "-r", checkout / name, place], check=True)
        elif word == "RUN":
            command = rest.replace("/opt/trimtab/venv", str(venv)).replace(
                "python -m venv", f"{sys.executable} -m venv"
            )
            quick = os.environ | QUICK_PIP | {"BASE": f"python:3.11-slim@sha256:{'0' * 64}"}
            subprocess.run(["bash", "-c", command], check=True, cwd=source, capture_output=True, env=quick)
    settings = {"PATH": f"{venv}/bin:/usr/bin:/bin", "TRIMTAB_STATE_DIRECTORY": str(tmp_path)}
    done = subprocess.run(["trimtab", "config", "check"], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (health,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    probe = json.loads(health.partition(" CMD ")[2])
    asked = subprocess.run(probe, env=settings, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert "the agent's socket /var/lib/trimtab/trimtab.sock" in asked.stderr


@pytest.mark.parametrize(
    ("base", "taken"),
    [
        (f"python:3.11-slim@sha256:{'0a' * 32}", True),
        ("python:3.11-slim", False),
        ("", False),
        ("python@sha256:0a", False),
        (f"python:3.11-slim@sha256:{'0a' * 32}:latest", False),
    ],
)
def test_the_image_is_built_on_a_base_named_by_its_digest_alone(base: str, taken: bool) -> None:
    assert {rest.removesuffix(" AS build") for word, rest in instructions() if word == "FROM"} == {"${BASE}"}
    assert [rest for word, rest in instructions() if word == "ARG"] == ["BASE", "BASE"]
    first = next(rest for word, rest in instructions() if word == "RUN")
    done = subprocess.run(["sh", "-c", first], env={"BASE": base, "PATH": os.environ["PATH"]}, check=False)
    assert (done.returncode == 0) is taken


def test_the_image_runs_as_an_ordinary_user_and_stops_on_sigterm() -> None:
    found = dict(instructions())
    assert found["USER"] == "trimtab"
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert (json.loads(found["ENTRYPOINT"]), json.loads(found["CMD"])) == (["trimtab"], ["run"])


def test_what_the_dockerfile_copies_is_there() -> None:
    copied = [
        name for word, rest in instructions() if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
