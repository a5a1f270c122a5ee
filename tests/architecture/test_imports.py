"""Imports run one way, domain needs numpy alone, and what the daemon loads is light."""

import ast
import json
import os
import subprocess
import sys

from tests.architecture.product import MODULES, ROOT, dotted, imported_anywhere, imported_by, syntax_tree

HEAVY = {"numba", "torch", "moto", "simulator", "gymnasium", "onnx", "matplotlib", "ray"}
DAEMON_PACKAGES = ("domain", "collectors", "actuators", "agent")


def in_subprocess(code: str) -> str:
    """Run code in a fresh interpreter at the root and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(*modules: str) -> set[str]:
    """The top-level names in sys.modules after the given modules were imported."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {list(modules)!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    return set(json.loads(in_subprocess(code).splitlines()[-1]))


def test_domain_imports_the_standard_library_numpy_and_itself() -> None:
    allowed = sys.stdlib_module_names | {"numpy", "domain"}
    assert [module for module in MODULES if module.parts[0] == "domain" and imported_anywhere(module) - allowed] == []


def test_loading_every_module_of_the_daemon_loads_nothing_heavy_and_no_command_line() -> None:
    modules = [
        dotted(module)
        for module in MODULES
        if module.parts[0] in DAEMON_PACKAGES
        and module.parts[:2] not in {("agent", "rehearsal"), ("agent", "commands")}
        and "migrations" not in module.parts
    ]
    assert loaded_by(*modules) & (HEAVY | {"typer"}) == set()


def test_a_verb_that_reads_the_ledger_loads_neither_aws_nor_models_nor_the_service() -> None:
    decisions = [f"agent.{name}.decision" for name in ("autoscaling", "admission", "oversubscription", "placement")]
    service = {"boto3", "onnxruntime", "alembic", "fastapi", "uvicorn", "httpx"}
    assert loaded_by("agent.kernel.rounds", "agent.ledger", *decisions) & service == set()


def test_loading_the_command_line_does_not_load_the_rehearsal() -> None:
    code = "import sys, agent.commands.main; print([n for n in sys.modules if n.startswith('agent.rehearsal')])"
    assert in_subprocess(code).strip() == "[]"
    assert loaded_by("agent.commands.main") & HEAVY == set()


def test_commands_import_the_rehearsal_inside_functions() -> None:
    commands = [module for module in MODULES if module.parts[:2] == ("agent", "commands")]
    at_the_top = {(module, name) for module in commands for name in imported_by(syntax_tree(module).body)}
    assert [found for found in at_the_top if found[1].startswith("agent.rehearsal")] == []


UNFENCED_BY_RAILS = {
    # The one place where a permit is asked, and where the call itself is made.
    "actuators/base.py",
    "collectors/aws.py",
    # Asks a permit right before each start that it sends; else it receives and deletes what was recorded.
    "agent/deferral/queue.py",
    # Neither changes a fleet: a notice that was recorded is deleted, an alarm is delivered.
    "collectors/interruptions.py",
    "agent/alarms/delivery.py",
}


def test_every_call_that_changes_a_fleet_asks_for_a_permit() -> None:
    senders = {
        module.as_posix()
        for module in MODULES
        if "mutate" in (ROOT / module).read_text("utf-8")
        for node in ast.walk(syntax_tree(module))
        if isinstance(node, ast.Attribute) and node.attr == "mutate"
    }
    assert {one for one in senders if not one.startswith("benchmarks/")} <= UNFENCED_BY_RAILS
