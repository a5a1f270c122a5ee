"""Who may ask what: by the socket's file mode, or over TCP by token and role."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from dataclasses import dataclass
from enum import Enum

from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.api.errors import refuse
from agent.api.paths import is_asked, is_asked_about

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", ""})
READING_METHODS = frozenset({"GET", "HEAD"})
OPEN_PATHS = frozenset({"/healthz"})
"""May be read over TCP without a token."""
# Chromium takes a header line for one challenge, the first: Basic is the one that it can meet.
CHALLENGE = {"www-authenticate": 'Basic realm="trimtab", Bearer realm="trimtab"'}


class Role(Enum):
    """What a caller may do, by the word for it in messages and in the OpenAPI description."""

    NOBODY = "none"
    READER = "read"
    ASKER = "ask"
    OPERATOR = "control"


SETTINGS = {
    Role.READER: "TRIMTAB_HTTP__TOKEN",
    Role.ASKER: "TRIMTAB_HTTP__ASK_TOKEN",
    Role.OPERATOR: "TRIMTAB_HTTP__OPERATOR_TOKEN",
}
"""The setting that holds the token of each role."""


def roles_for(method: str, path: str) -> tuple[Role, ...]:
    """Return the roles that may call `method` on `path` (of a request, or a route's pattern), the narrowest first.

    A new route is the operator's until its decision says that it is asked.
    """
    if method in READING_METHODS:
        asker = (Role.ASKER,) if is_asked_about(path) else ()
        return (*asker, Role.READER, Role.OPERATOR)
    return (Role.ASKER, Role.OPERATOR) if method == "POST" and is_asked(path) else (Role.OPERATOR,)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a TCP port; `open_paths` need none."""

    reading: SecretStr
    operating: SecretStr | None = None
    asking: SecretStr | None = None
    open_paths: frozenset[str] = OPEN_PATHS

    def role(self, headers: list[tuple[bytes, bytes]]) -> Role:
        """Return the role that the request's credentials give, in a time that does not depend on how wrong they are."""
        given = presented(headers)
        if given is None:
            return Role.NOBODY
        is_operator = self.operating is not None and _same(given, self.operating)
        is_asker = self.asking is not None and _same(given, self.asking)
        is_reader = _same(given, self.reading)
        granted = ((is_operator, Role.OPERATOR), (is_asker, Role.ASKER), (is_reader, Role.READER))
        return next((role for is_given, role in granted if is_given), Role.NOBODY)


def presented(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the token in the one Authorization header, None when there is none that can be read.

    Bearer gives the token itself, Basic (what browsers send) gives it as the password of any user.
    """
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, credentials = found[0].partition(b" ")
    credentials = credentials.strip()
    if scheme.lower() == b"bearer":
        return credentials
    if scheme.lower() != b"basic":
        return None
    try:
        _, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return password if colon else None


def _same(given: bytes, token: SecretStr) -> bool:
    return hmac.compare_digest(given, token.get_secret_value().encode())


class SocketGuard:
    """Lets everybody in who could open the socket, but for a browser that was led here under a foreign name.

    Whoever forwards a local port to the socket has a browser that other sites can talk through: a foreign Host gives
    away a rebound name, a foreign Origin another site's page.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 421 to a foreign Host, 403 to a switch from another site's page."""
        if scope["type"] != "http":
            return
        if not all(_name(value) in LOCAL_NAMES for value in _values(scope, b"host")):
            detail = "over the unix socket the Host is localhost: configure your proxy to send it"
            await refuse(send, 421, detail, unread=receive)
            return
        if scope["method"] not in READING_METHODS and is_foreign(scope):
            await refuse(send, 403, "this came from the page of another site", unread=receive)
            return
        await self._app(scope, receive, send)


class TokenGuard:
    """Lets in over TCP whoever shows a token whose role may do what is asked for: `roles_for` says which."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without a valid token, 403 to a role that may not do this, before reading any body."""
        if scope["type"] != "http":
            return
        if not (is_reading(scope) and scope["path"] in self._tokens.open_paths):
            role = self._tokens.role(scope["headers"])
            if role is Role.NOBODY:
                detail = "show a token: Authorization: Bearer <token>, or Basic with the token as password"
                await refuse(send, 401, detail, CHALLENGE, unread=receive)
                return
            allowed = roles_for(scope["method"], scope["path"])
            if role not in allowed:
                needed = " or ".join(f"{one.value} ({SETTINGS[one]})" for one in allowed)
                await refuse(
                    send,
                    403,
                    f"this token has the role {role.value}; this request needs the role {needed}",
                    unread=receive,
                )
                return
            if not is_reading(scope) and is_foreign(scope):
                await refuse(send, 403, "this came from the page of another site", unread=receive)
                return
        await self._app(scope, receive, send)


def is_reading(scope: Scope) -> bool:
    """Return whether the request's method only reads."""
    return scope["method"] in READING_METHODS


def is_foreign(scope: Scope) -> bool:
    """Return whether a browser sent this from a page of another origin."""
    if any(value not in (b"same-origin", b"none") for value in _values(scope, b"sec-fetch-site")):
        return True
    hosts = {value.decode("latin-1").lower() for value in _values(scope, b"host")}
    origins = {value.decode("latin-1").lower() for value in _values(scope, b"origin")}
    return any(re.sub(r"^https?://", "", origin) not in hosts for origin in origins)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _name(host: bytes) -> str:
    return re.sub(r":\d*$", "", host.decode("latin-1").lower())
