"""A pytest plugin: botocore's descriptions of AWS are read once per process, and a class of clients made once for each.

Tests make hundreds of sessions; reading EC2's description, or making its class of 700 methods, takes longer than most.
What botocore and moto compute from a name alone, with each call again, is computed once for each name.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.client import ClientCreator
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

REMEMBERED = ("list_available_services", "determine_latest_version", "load_data_with_path", "load_service_model")


def _share(kind: type[Loader], name: str, remembered: dict[Any, Any]) -> None:
    plain = vars(kind)[name]

    @functools.wraps(plain)
    def shared(self: Loader, *arguments: Any, **named: Any) -> Any:
        key = (kind, type(self), name, tuple(self.search_paths), arguments, tuple(sorted(named.items())))
        if key not in remembered:
            remembered[key] = plain(self, *arguments, **named)
        return remembered[key]

    setattr(kind, name, shared)


def _share_classes(creator: type[ClientCreator]) -> None:
    plain = creator._create_client_class
    made: dict[int, tuple[object, type]] = {}

    def shared(self: ClientCreator, service_name: str, service_model: ServiceModel) -> type:
        description = service_model._service_description
        if id(description) not in made:
            # With the description, whose identity no other gets as long as it is here.
            made[id(description)] = description, plain(self, service_name, service_model)
        return made[id(description)][1]

    creator._create_client_class = shared  # type: ignore[method-assign]


def _share_names() -> None:
    """Remember what functions of a name return, wherever moto and botocore hold them."""
    from botocore import useragent
    from botocore.hooks import EventAliaser

    useragent.sanitize_user_agent_string_component = functools.cache(useragent.sanitize_user_agent_string_component)
    plain, aliases = EventAliaser._alias_event_name, dict[str, str]()

    def alias(self: EventAliaser, event_name: str) -> str:
        if event_name not in aliases:
            aliases[event_name] = plain(self, event_name)
        return aliases[event_name]

    EventAliaser._alias_event_name = alias  # type: ignore[method-assign]
    if "moto.core.responses" not in sys.modules:
        return
    import xmltodict
    from moto import backends
    from moto.core import responses

    xmltodict._validate_name = functools.cache(xmltodict._validate_name)
    modules = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    underscores = responses.camelcase_to_underscores
    for name, module in list(sys.modules.items()):
        if name.startswith("moto.") and vars(module).get("camelcase_to_underscores") is underscores:
            vars(module)["camelcase_to_underscores"] = functools.cache(underscores)
    responses.method_names_from_class = functools.cache(responses.method_names_from_class)


def pytest_collection_finish() -> None:
    # A run of tests that know no AWS shall not load what speaks to it.
    if "collectors.aws_models" not in sys.modules:
        return
    from botocore.client import ClientCreator
    from botocore.loaders import Loader

    from collectors.aws_models import SlimLoader

    remembered: dict[Any, Any] = {}
    for name in REMEMBERED:
        _share(Loader, name, remembered)
    _share(SlimLoader, "load_service_model", remembered)
    _share_classes(ClientCreator)
    _share_names()
