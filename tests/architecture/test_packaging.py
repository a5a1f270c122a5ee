"""What is installed, from where, and what must not be in it."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from agent.commands.options import EXTRAS
from domain.errors import install_command
from tests.architecture.product import MODULES, PACKAGES, ROOT, imported_anywhere

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
INSTALLED = packages_distributions()
LOCK = [
    line
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def normal(name: str) -> str:
    """A distribution's name as the packaging rules compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]) for requirement in requirements}


def test_the_dry_run_installs_neither_torch_nor_numba() -> None:
    extras = PROJECT["optional-dependencies"]
    installed = names_of(PROJECT["dependencies"] + extras["dry-run"])
    assert not installed & {"torch", "numba", "ray", "gymnasium"}


def test_the_simulation_of_the_tutorial_needs_neither_torch_nor_numba() -> None:
    code = "import sys; sys.modules.update(numba=None, torch=None); import trainer.autoscaling.simulate"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_requirement_is_in_the_lock() -> None:
    wanted = names_of(
        PROJECT["dependencies"] + [name for extra in PROJECT["optional-dependencies"].values() for name in extra]
    )
    assert wanted <= names_of(LOCK)


def test_the_lock_is_exact_versions_and_nothing_of_this_machine() -> None:
    odd = [line for line in LOCK if not re.match(r"^[a-z0-9._-]+==[^\s;]+(\s*;[^#]+)?\s*(#.*)?$", line)]
    assert odd == []
    assert not [line for line in LOCK if "://" in line or " @ " in line or "--" in line.partition("#")[0]]


def test_what_must_agree_is_pinned() -> None:
    pinned = {line.split()[0] for line in LOCK}
    assert "torch==2.13.0" in pinned
    assert any(name.startswith("numba==0.68.") for name in pinned)
    assert not [name for name in pinned if name.startswith("nvidia")]


def test_every_hint_installs_an_extra_that_brings_the_package_from_the_checkout() -> None:
    extras = PROJECT["optional-dependencies"]
    assert [name for name, extra in EXTRAS.items() if name not in names_of(extras[extra])] == []
    assert install_command("train") == "pip install '.[train]'"
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    named = {path.name: path.read_text("utf-8") for path in [*pages, *(ROOT / module for module in MODULES)]}
    assert [name for name, text in named.items() if "install 'trimtab[" in text] == [], "the package is on no index"
    assert [name for name, text in named.items() if name.endswith(".py") and "install '.[" in text] == ["errors.py"]


def test_the_package_list_is_the_house() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]
    assert {name for name in include if not name.endswith(".*")} == set(PACKAGES)


def extras_that_may_be_needed(module: Path) -> tuple[str, ...]:
    """The extras beyond the base requirements that a module may import."""
    if module.parts[0] == "trainer":
        return ("dry-run", "train", "distributed", "placement")
    if module.parts[:2] == ("simulator", "aws") or module.parts[:2] == ("agent", "rehearsal"):
        return ("dry-run",)
    if module.parts[0] == "simulator":
        return ("train",)
    return ("postgres", "deferral")


def distributions_imported_by(module: Path) -> dict[str, set[str]]:
    """For each foreign top-level name that a module imports, the distributions that could bring it."""
    foreign = imported_anywhere(module) - sys.stdlib_module_names - set(PACKAGES) - {"_typeshed"}
    return {name: {normal(found) for found in INSTALLED.get(name, [name])} for name in foreign}


def test_a_module_imports_only_what_its_requirements_name() -> None:
    extras, undeclared = PROJECT["optional-dependencies"], []
    for module in MODULES:
        declared = names_of(PROJECT["dependencies"])
        declared |= names_of([name for extra in extras_that_may_be_needed(module) for name in extras[extra]])
        undeclared += [
            (module, one) for one, names in distributions_imported_by(module).items() if not names & declared
        ]
    assert undeclared == []


def test_the_base_requirements_are_what_the_agent_imports() -> None:
    used = {
        distribution
        for module in MODULES
        if module.parts[0] in {"domain", "collectors", "actuators", "agent"}
        for found in distributions_imported_by(module).values()
        for distribution in found
    }
    assert names_of(PROJECT["dependencies"]) - used == set()
