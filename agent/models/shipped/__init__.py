"""The model files that come with the agent: a name, a SHA-256 and what each was trained for, the preferred first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from domain.errors import BadInput

DIRECTORY = Path(__file__).parent
INDEX = "index.json"


@checked(frozen=True)
class _Entry:
    sha256: str
    trained_for: str
    to_compare: bool = False


_INDEX = TypeAdapter(dict[str, _Entry])
"""Made once: the index is read each minute."""


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """One model that comes with the agent: its name, what it was trained for, the SHA-256 and place of its file.

    to_compare: it costs more than the tuned queue rule.
    """

    name: str
    trained_for: str
    sha256: str
    path: Path
    to_compare: bool = False

    @property
    def title(self) -> str:
        """The name for lists, marked where the model is only to compare."""
        return f"{self.name} (to compare)" if self.to_compare else self.name


def shipped_models(directory: Path = DIRECTORY) -> tuple[ShippedModel, ...]:
    """Return the models in the order in which they are preferred; none when the index is empty or there is none.

    The index is a JSON object of `{"name": {"sha256": ..., "trained_for": ..., "to_compare": ...}}`, the last one
    optional; BadInput when it is anything else.
    """
    path = directory / INDEX
    try:
        entries = _INDEX.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise BadInput("index of shipped models", str(path), f"{where}: {first['msg'].lower()}") from None
    return tuple(
        ShippedModel(name, entry.trained_for, entry.sha256, directory / f"{entry.sha256}.onnx", entry.to_compare)
        for name, entry in entries.items()
    )


def with_file(text: str) -> str:
    """Return the text of a policy with the name of a shipped model, before any colon, replaced by its file."""
    name, colon, rest = text.strip().partition(":")
    paths = {model.name: model.path for model in shipped_models()}
    return f"{paths[name]}{colon}{rest}" if name in paths else text
