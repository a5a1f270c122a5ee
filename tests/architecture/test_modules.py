"""Every module of the product says what it is for, keeps to one idea, and has a name that means something."""

import ast
from pathlib import Path

import pytest

from tests.architecture.product import MODULES, ROOT

EMPTY_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc", "base_utils"}


def module_id(module: Path) -> str:
    return module.as_posix()


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_the_first_line_says_what_the_module_is_for(module: Path) -> None:
    source = (ROOT / module).read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    assert source.startswith(('"""', 'r"""')), f"{module}: the module's docstring comes first"
    assert docstring is not None
    first_line = docstring.splitlines()[0]
    assert len(first_line.split()) >= 3, f"{module}: '{first_line}' does not say what the module is for"


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_no_name_says_nothing(module: Path) -> None:
    said = set(module.with_suffix("").parts)
    assert not said & EMPTY_NAMES, f"{module}: name it after its idea"


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_every_folder_with_code_is_a_package_so_that_it_is_installed(module: Path) -> None:
    assert (ROOT / module.parent / "__init__.py").is_file(), f"{module.parent} lacks __init__.py"
