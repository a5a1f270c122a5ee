"""Every module of the product says what it is for, keeps to one idea, and has a name that means something."""

import re

from tests.architecture.product import MODULES, ROOT

DOCSTRING = re.compile(r'r?"""([^"\n]+)')
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc", "base_utils"}


def test_the_first_line_says_what_the_module_is_for() -> None:
    wrong = []
    for module in MODULES:
        source = (ROOT / module).read_text("utf-8")
        quoted = DOCSTRING.match(source)
        if quoted is None or len(quoted[1].split()) < 3:
            wrong.append(f"{module}: its docstring comes first and says what the module is for")
    assert wrong == []


def test_no_name_says_nothing() -> None:
    assert [module for module in MODULES if set(module.with_suffix("").parts) & EMPTY_NAMES] == []


def test_every_folder_with_code_is_a_package_so_that_it_is_installed() -> None:
    assert {module.parent for module in MODULES if not (ROOT / module.parent / "__init__.py").is_file()} == set()
