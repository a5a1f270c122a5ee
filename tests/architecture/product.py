"""Where the product's code stands, for the tests that read it as text."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "simulator", "collectors", "actuators", "agent", "trainer")
MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)


def dotted(module: Path) -> str:
    """The import name of a module given by its path from the root."""
    parts = module.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
