"""kube-scheduler's extender, asked and read by Kubernetes' own Go types: what docs/decide/placement.md promises."""

import json
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.placement.hosts import app, inventory, kind
from tests.real.kubernetes.building import ask_extender
from tests.real.running_agent import Agent
from tests.waiting import until

pytestmark = [pytest.mark.needs_dpkg_source, pytest.mark.timeout(700)]

ASKER = "asker-0123456789abcdef"
HOSTS = [kind("node-0", 16, 1), kind("node-1", 8, 1), kind("node-2", 4, 1), kind("node-gpu", 16, 1, label="gpu")]
APPLICATIONS = [app("shop"), app("single", 8, limit=1), app("train", 4, label="gpu")]
NAMES = ["node-0", "node-1", "node-2", "node-gpu", "other"]


def pod(application: str = "", *, by: str = "labels") -> dict[str, Any]:
    """A pod as an API server has it: with quantities of every form, and parts that the agent does not read."""
    quantities = {"cpu": "1k", "memory": "1Ti", "ephemeral-storage": "1G", "nvidia.com/gpu": "1"}
    container = {"name": "c", "resources": {"requests": quantities, "limits": quantities}}
    init = {"name": "i", "resources": {"requests": {"cpu": "3e1", "memory": "100Gi"}}}
    named = {by: {"trimtab.io/application": application}} if application else {}
    return {
        "metadata": {"name": "a", "namespace": "default", "uid": "u-1", **named},
        "spec": {"containers": [container], "initContainers": [init], "overhead": {"cpu": "250m"}, "priority": 1000},
    }


def node(name: str) -> dict[str, Any]:
    allocatable = {"cpu": "95900m", "memory": "536870912Ki", "pods": "110", "ephemeral-storage": "1.5G"}
    labels = {"kubernetes.io/hostname": name}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def by_names(application: str, names: list[str] = NAMES, **more: Any) -> dict[str, Any]:
    """Arguments of an extender with `nodeCacheCapable: true`."""
    return {"Pod": pod(application, **more), "NodeNames": names}


def by_nodes(application: str, names: list[str] = NAMES) -> dict[str, Any]:
    """Arguments of an extender with `nodeCacheCapable: false`."""
    return {"Pod": pod(application), "Nodes": {"items": [node(name) for name in names]}}


THOUSANDS = [f"ip-10-{n // 250}-{n % 250}-7.eu-west-1.compute.internal" for n in range(3000)]
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "names": ("filter", by_names("single")),
    "nodes": ("filter", by_nodes("single")),
    "annotated": ("filter", by_names("single", by="annotations")),
    "labelled": ("filter", by_names("train")),
    "scores": ("prioritize", by_names("shop")),
    "scores of nodes": ("prioritize", by_nodes("shop")),
    "no application": ("filter", by_names("")),
    "no application's scores": ("prioritize", by_names("")),
    "unknown application": ("filter", by_names("misspelt")),
    "unknown application's scores": ("prioritize", by_names("misspelt")),
    "no names": ("filter", by_names("shop", [])),
    "neither names nor nodes": ("filter", {"Pod": pod("shop")}),
    "no scores": ("prioritize", by_names("shop", [])),
    "many names": ("filter", by_names("shop", [*THOUSANDS, "node-1"])),
    "many nodes": ("filter", by_nodes("shop", THOUSANDS)),
    "many nodes' scores": ("prioritize", by_nodes("shop", THOUSANDS)),
    "bind": ("bind", {"PodName": "a", "PodNamespace": "default", "PodUID": "u-1", "Node": "node-0"}),
    "preempt": ("preempt", {"Pod": pod("shop"), "NodeNameToMetaVictims": {"node-0": {"Pods": []}}}),
}


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, dict[str, Any]]]:
    """The answers of an agent to all of the questions, each with what Kubernetes' types made of the question."""
    program = ask_extender()
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    held = {"snapshot": [{"host_type": "node-0", "instances": {"single": 1}}]}
    (directory / "pool.json").write_text(json.dumps(inventory(*APPLICATIONS, hosts=HOSTS, **held)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = {
        "TRIMTAB_MODE": "act",
        "TRIMTAB_PLACEMENTS__main__INVENTORY_FILE": str(directory / "pool.json"),
        "TRIMTAB_PLACEMENTS__main__POLICY": "bf",
        "TRIMTAB_TICK_INTERVAL_S": "10",
        "TRIMTAB_GRACE_S": "1",
        "TRIMTAB_HTTP__PORT": str(port),
        "TRIMTAB_HTTP__TOKEN": "reader-0123456789abcdef",
        "TRIMTAB_HTTP__ASK_TOKEN": ASKER,
    }
    agent = Agent(directory, settings)
    agent.start()
    try:
        until(lambda: bool(agent.asked("/placement/main/hosts")))
        asked = json.dumps([{"verb": verb, "args": args} for verb, args in QUESTIONS.values()])
        command = [program, f"http://127.0.0.1:{port}/api/v1/placement/main/extender", ASKER]
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        found = dict(zip(QUESTIONS, json.loads(done.stdout), strict=True))
        found["decisions"] = agent.asked("/placement/main")["head"]
        yield found
    finally:
        agent.end(signal.SIGKILL)
        shutil.rmtree(directory)


Answers = dict[str, dict[str, Any]]


def of(answers: Answers, name: str) -> Any:
    """Return an answer that Kubernetes' type took whole."""
    found = answers[name]
    assert (found["status"], found["error"]) == (200, "")
    return found["answer"]


def test_filters_names_with_the_reason_of_each_other_node_and_reserves_nothing(answers: Answers) -> None:
    found = of(answers, "names")
    assert (found["NodeNames"], found["Nodes"], found["Error"]) == (["node-1", "node-gpu"], None, "")
    assert found["FailedNodes"] == {"node-0": "limit", "node-2": "cpu", "other": "not a host of the pool main"}
    assert found["FailedAndUnresolvableNodes"] == {"other": "not a host of the pool main"}
    assert of(answers, "annotated") == found
    assert answers["decisions"]["decisions"] == 0


def test_a_label_of_the_inventory_holds(answers: Answers) -> None:
    found = of(answers, "labelled")
    assert found["NodeNames"] == ["node-gpu"]
    assert {name: found["FailedNodes"][name] for name in NAMES[:3]} == dict.fromkeys(NAMES[:3], "label")
    assert found["FailedAndUnresolvableNodes"] == found["FailedNodes"]


def test_filters_whole_nodes_and_returns_them_with_equal_quantities(answers: Answers) -> None:
    found, sent = of(answers, "nodes"), answers["nodes"]["sent"]["Nodes"]["items"]
    assert found["Nodes"]["items"] == [sent[1], sent[3]]
    assert found["NodeNames"] is None
    assert sent[1]["status"]["allocatable"] == {
        "cpu": "95900m",
        "memory": "512Gi",
        "pods": "110",
        "ephemeral-storage": "1500M",
    }


@pytest.mark.parametrize("asked", ["scores", "scores of nodes"])
def test_scores_are_10_for_the_best_node_1_or_more_for_others_that_fit_and_0_for_the_rest(
    answers: Answers, asked: str
) -> None:
    scores = {one["Host"]: one["Score"] for one in of(answers, asked)}
    assert list(scores) == NAMES
    # Best fit: the container fills node-2. Nothing of it can go to a host of another label.
    assert (scores["node-2"], scores["other"]) == (10, 0)
    assert all(1 <= scores[name] < 10 for name in ("node-0", "node-1"))


def test_every_node_passes_for_a_pod_without_an_application(answers: Answers) -> None:
    found = of(answers, "no application")
    assert (found["NodeNames"], found["FailedNodes"]) == (NAMES, {})
    assert {one["Score"] for one in of(answers, "no application's scores")} == {0}


def test_no_node_passes_for_an_application_that_the_pool_does_not_know(answers: Answers) -> None:
    found = of(answers, "unknown application")
    assert not found["NodeNames"]
    assert (found["Error"], set(found["FailedNodes"])) == ("", set(NAMES))
    assert found["FailedAndUnresolvableNodes"] == found["FailedNodes"]
    assert {one["Score"] for one in of(answers, "unknown application's scores")} == {0}


def test_a_list_may_be_empty_or_absent(answers: Answers) -> None:
    assert of(answers, "no names")["NodeNames"] == []
    assert of(answers, "neither names nor nodes")["Nodes"]["items"] == []
    assert of(answers, "no scores") == []


def test_thousands_of_names_pass_and_more_than_a_mebibyte_of_nodes_is_refused(answers: Answers) -> None:
    assert of(answers, "many names")["NodeNames"] == ["node-1"]
    for name in ("many nodes", "many nodes' scores"):
        assert answers[name]["bytes"] > 2**20
        assert answers[name]["status"] == 413


@pytest.mark.parametrize("verb", ["bind", "preempt"])
def test_the_scheduler_s_other_verbs_are_refused(answers: Answers, verb: str) -> None:
    assert answers[verb]["status"] == 403
