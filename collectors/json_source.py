"""One HTTP server that is asked for JSON: bounded in time and bytes, with errors that name the place and no secret."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from domain.errors import CollectionFailed


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of TLS: authorities beside the public ones, and the certificate and key that are shown (mTLS)."""

    authorities: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return what connections are made with; OSError (of which ssl.SSLError is one) for an unusable file."""
        made = httpx.create_ssl_context()
        if self.authorities is not None:
            made.load_verify_locations(self.authorities)
        if self.certificate is not None:
            made.load_cert_chain(self.certificate, self.private_key)
        return made


class NotReached(CollectionFailed):
    """The server could not be asked, or had no time left: another question would fare no better."""


class JsonSource:
    """Asks one server. what: its name in errors. timeout_s: of one request and its response as a whole.

    Files of TLS are read again after a failure, so that renewed certificates are taken up.
    """

    def __init__(
        self,
        what: str,
        url: str,
        timeout_s: float,
        max_response_bytes: int,
        authorization: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._what, self._url = what, url.rstrip("/")
        self._timeout_s, self._max_response_bytes = timeout_s, max_response_bytes
        self._authorization, self._tls = authorization, tls or Tls()
        self._client: httpx.Client | None = None

    def post(
        self, path: str, form: Mapping[str, Any], deadline: float | None = None, readable: Collection[int] = ()
    ) -> tuple[int, Any]:
        """Return status and parsed body of the response to a form; CollectionFailed when there is no usable one.

        deadline: on the monotonic clock, where several requests share the time. readable: statuses beside 200 whose
        body says something.
        """
        latest = time.monotonic() + self._timeout_s
        deadline = latest if deadline is None else min(deadline, latest)
        try:
            return self._asked(path, form, deadline, readable)
        except httpx.HTTPError as error:
            self.close()
            raise NotReached(str(self.failed(f"{type(error).__name__}: {error}"))) from None
        except OSError as error:
            raise NotReached(str(self.failed(f"a file of TLS cannot be used: {error}"))) from None
        except UnicodeEncodeError:
            why = "the authorization has characters that no header can hold: give it in ASCII"
            raise NotReached(str(self.failed(why))) from None

    def close(self) -> None:
        """Close the connections; the source may still be used and opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def failed(self, why: str) -> CollectionFailed:
        """Return the error that says why, with the server's place and without what it was sent in confidence."""
        # What answers there may send back what it was sent: an error of the protocol quotes the line.
        secret = (self._authorization or "").rpartition(" ")[2]
        shown = why.replace(secret, "***") if secret else why
        parsed = httpx.URL(self._url)
        place = f"{parsed.scheme}://{parsed.netloc.decode('ascii', 'replace')}"
        return CollectionFailed(f"{self._what} at {place}: {shown}")

    def _asked(self, path: str, form: Mapping[str, Any], deadline: float, readable: Collection[int]) -> tuple[int, Any]:
        if self._client is None:
            # Uncompressed, so that a short response cannot unfold into a long one.
            headers = {"Accept-Encoding": "identity"}
            if self._authorization:
                headers["Authorization"] = self._authorization
            self._client = httpx.Client(headers=headers, verify=self._tls.context())
        left_s = deadline - time.monotonic()
        if left_s <= 0.0:
            raise self._late()
        with self._client.stream("POST", f"{self._url}/{path}", data=dict(form), timeout=left_s) as response:
            if response.status_code != httpx.codes.OK and response.status_code not in readable:
                refused = " (the authorization is not accepted)" if response.status_code in (401, 403) else ""
                raise self.failed(f"status {response.status_code}{refused}")
            body = self._body(response, deadline)
            try:
                return response.status_code, json.loads(body)
            except (ValueError, RecursionError):
                status = "" if response.status_code == httpx.codes.OK else f"status {response.status_code}, and "
                raise self.failed(f"{status}the response is not JSON") from None

    def _body(self, response: httpx.Response, deadline: float) -> bytes:
        """Read the body; httpx bounds the wait for each piece, this method the whole of it."""
        body = bytearray()
        for piece in response.iter_raw():
            body += piece
            if len(body) > self._max_response_bytes:
                raise self.failed(f"the response is longer than {self._max_response_bytes} bytes")
            if time.monotonic() > deadline:
                raise self._late()
        return bytes(body)

    def _late(self) -> NotReached:
        return NotReached(str(self.failed(f"the response is not complete after {self._timeout_s:g} s")))
