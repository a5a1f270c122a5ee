"""Keeps botocore's descriptions of AWS small in memory: without documentation, and of EC2 only what is called.

Whole, EC2's description alone weighs 16 MB; the agent makes a few of its seven hundred calls.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from botocore.loaders import JSONFileLoader, Loader

from domain.errors import BadInput

KEPT: Mapping[str, frozenset[str]] = {
    "ec2": frozenset(
        {"DescribeCapacityReservations", "DescribeInstances", "DescribeInstanceTypes", "DescribeLaunchTemplateVersions"}
    )
}
"""Operations that remain of services whose description is cut down; other services stay complete."""


class TerseFileLoader(JSONFileLoader):
    """Reads botocore's JSON files, plain or compressed, leaving out documentation as they are parsed."""

    def exists(self, file_path: str) -> bool:
        """Return whether there is such a file, its extension left out."""
        return self._find(file_path) is not None

    def load_file(self, file_path: str) -> Any:
        """Return the file's content, None when there is no such file."""
        found = self._find(file_path)
        if found is None:
            return None
        content = found.read_bytes()
        text = gzip.decompress(content) if found.suffix == ".gz" else content
        return json.loads(text, object_pairs_hook=_terse)

    @staticmethod
    def _find(file_path: str) -> Path | None:
        return next(
            (path for path in (Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")) if path.is_file()), None
        )


def _terse(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A shape's member may be called documentation too: that one is an object, not a text.
    return dict(pair for pair in pairs if pair[0] != "documentation" or not isinstance(pair[1], str))


class SlimLoader(Loader):
    """Loads service descriptions as botocore does, and cuts those in `KEPT` down to their operations."""

    FILE_LOADER_CLASS = TerseFileLoader

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return the description, cut down for services in `KEPT`."""
        model = super().load_service_model(service_name, type_name, api_version)
        if service_name not in KEPT or type_name != "service-2":
            return model
        # What the loader remembers is the whole; it goes, the part stays with the client.
        self.__dict__["_cache"] = {}
        return cut_down(model, KEPT[service_name])


def cut_down(model: Mapping[str, Any], operations: Collection[str]) -> dict[str, Any]:
    """Return the description with only these operations and the shapes that they reach."""
    kept = {name: model["operations"][name] for name in sorted(operations)}
    reached: set[str] = set()
    waiting = [shape for operation in kept.values() for shape in _named(operation)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(_named(model["shapes"][name]))
    shapes = {name: shape for name, shape in model["shapes"].items() if name in reached}
    return {**model, "operations": kept, "shapes": shapes}


def _named(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "shape" and isinstance(value, str):
                yield value
            else:
                yield from _named(value)
    elif isinstance(part, list):
        for item in part:
            yield from _named(item)


def check_kept(service: str, operation: str) -> None:
    """Raise BadInput for an operation that was cut away: a mistake in this program, not in the cloud."""
    if service in KEPT and operation not in KEPT[service]:
        raise BadInput(f"{service} operation", operation, "name it in collectors.aws_models.KEPT")
