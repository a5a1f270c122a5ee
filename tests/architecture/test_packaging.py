"""What is installed, from where, and what must not be in it."""

import re
import tomllib

from tests.architecture.product import PACKAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = [
    line
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


def test_neither_readme_command_installs_torch_or_numba() -> None:
    extras = PROJECT["optional-dependencies"]
    installed = names_of(PROJECT["dependencies"] + extras["dry-run"] + extras["dev"])
    assert not installed & {"torch", "numba", "ray", "onnx", "gymnasium"}


def test_every_requirement_stands_in_the_lock() -> None:
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


def test_the_package_list_is_the_house() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]
    assert {name for name in include if not name.endswith(".*")} == set(PACKAGES)
