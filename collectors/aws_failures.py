"""Failures of AWS calls: errors sorted into the failure classes that decide what may be done next."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from botocore import exceptions as botocore_errors

from domain.errors import CloudError, FailureClass

if TYPE_CHECKING:
    from botocore.model import OperationModel

_READS = re.compile(r"(?:Describe|Get|List|Head)(?=[A-Z])")

CREDENTIAL_CALLS = frozenset(
    {
        ("sts", "AssumeRole"),
        ("sts", "AssumeRoleWithSAML"),
        ("sts", "AssumeRoleWithWebIdentity"),
        ("sso-oidc", "CreateToken"),
        ("signin", "CreateOAuth2Token"),
    }
)
"""Calls by which botocore itself obtains credentials: they change nothing that is managed, and reading needs them."""

JUDGING_CALLS = frozenset({("iam", "SimulatePrincipalPolicy")})
"""Calls that check whether another call would be allowed: nothing is done."""

_CODES: dict[FailureClass, frozenset[str]] = {
    FailureClass.THROTTLE: frozenset(
        {
            "BandwidthLimitExceeded",
            "EC2ThrottledException",
            "OverLimit",
            "PriorRequestNotComplete",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
            "ThrottledException",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
        }
    ),
    FailureClass.CAPACITY: frozenset(
        {
            "InsufficientCapacity",
            "InsufficientFreeAddressesInSubnet",
            "InsufficientHostCapacity",
            "InsufficientInstanceCapacity",
            "InsufficientReservedInstanceCapacity",
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "SpotMaxPriceTooLow",
            "UnfulfillableCapacity",
            "VcpuLimitExceeded",
        }
    ),
    FailureClass.CREDENTIALS: frozenset(
        {
            "AccessDenied",
            "AccessDeniedException",
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "IncompleteSignature",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "NotAuthorized",
            "OptInRequired",
            "RequestExpired",
            "SignatureDoesNotMatch",
            "UnauthorizedAccess",
            "UnauthorizedOperation",
            "UnrecognizedClientException",
        }
    ),
    # Refused because something else is under way: not executed, worth another try at the next tick.
    FailureClass.UNAVAILABLE: frozenset({"ResourceContention", "ResourceInUse", "ScalingActivityInProgress"}),
}
_CLASS_OF_CODE = {code: failure for failure, codes in _CODES.items() for code in codes}

_NO_CREDENTIALS = (
    botocore_errors.NoCredentialsError,
    botocore_errors.PartialCredentialsError,
    botocore_errors.CredentialRetrievalError,
    botocore_errors.TokenRetrievalError,
    botocore_errors.SSOError,
    botocore_errors.NoAuthTokenError,
    botocore_errors.ProfileNotFound,
    botocore_errors.ConfigNotFound,
    botocore_errors.RefreshWithMFAUnsupportedError,
    botocore_errors.InvalidConfigError,
)
_NEVER_SENT = (
    botocore_errors.EndpointConnectionError,
    botocore_errors.ConnectTimeoutError,
    botocore_errors.ProxyConnectionError,
)
# The connection was there: how far the request got is not known.
_CUT_OFF = (
    botocore_errors.HTTPClientError,
    botocore_errors.ResponseStreamingError,
    botocore_errors.IncompleteReadError,
    botocore_errors.SSLError,
    botocore_errors.ChecksumError,
    botocore_errors.FlexibleChecksumError,
)
_LONGEST_MESSAGE = 400
# In XML, where no header carries it.
_BODY_ID = re.compile(rb"<[Rr]equestI[Dd]>[^<]+<")


def is_read(service: str, operation: str) -> bool:
    """Return whether the operation reads only: Describe*, Get*, List*, Head*, or one about credentials or permissions.

    Everything else counts as changing something, ReceiveMessage (it hides messages from other readers) included.
    """
    return _READS.match(operation) is not None or (service, operation) in CREDENTIAL_CALLS | JUDGING_CALLS


def classify(error: Exception, operation: str) -> CloudError:
    """Return the error of a call as a CloudError with its failure class.

    A server error, a connection that broke after the request left and a response that cannot be read, or is not AWS's,
    are UNKNOWN_OUTCOME for an operation that changes something and UNAVAILABLE for one that reads. A connection that
    never came about is UNAVAILABLE for both. PERMANENT is what AWS itself refused, and what botocore refused to send.
    """
    if isinstance(error, CloudError):
        return error
    broken = unconfirmed(operation)
    if isinstance(error, botocore_errors.ClientError):
        return _refused(error, operation, broken)
    if isinstance(error, _NO_CREDENTIALS):
        failure = FailureClass.CREDENTIALS
    elif isinstance(error, _NEVER_SENT):
        failure = FailureClass.UNAVAILABLE
    elif isinstance(error, botocore_errors.BotoCoreError) and not isinstance(error, _CUT_OFF):
        failure = FailureClass.PERMANENT
    else:
        # Anything else comes from reading the response: botocore's parsers raise KeyError and the like.
        failure = broken
    return CloudError(operation, failure, type(error).__name__, str(error)[:_LONGEST_MESSAGE])


def unconfirmed(operation: str) -> FailureClass:
    """Return the class of a call that may have had its effect, and whose response tells nothing."""
    return FailureClass.UNAVAILABLE if _READS.match(operation) else FailureClass.UNKNOWN_OUTCOME


def check_response(model: OperationModel, response: Mapping[str, Any]) -> None:
    """Raise CloudError unless a response of success is AWS's own and complete.

    A gateway's page with status 200 parses as an empty response, so that a change would count as made and a group as
    empty. Every response of AWS carries a request id. `response` holds botocore's status_code, headers and body.
    """
    service = model.service_model.service_id.hyphenize()
    if response["status_code"] >= 300 or (service, model.name) in CREDENTIAL_CALLS:
        return
    body, headers = response["body"], response["headers"]
    flaw = _flaw(model, body if isinstance(body, bytes) else b"", headers)
    if flaw is not None:
        kind = str(headers.get("content-type", "no content type"))[:60]
        detail = f"status {response['status_code']} and {kind}, but {flaw}: something between here and AWS responded"
        raise CloudError(model.name, unconfirmed(model.name), "UnreadableAnswer", detail)


def _flaw(model: OperationModel, body: bytes, headers: Mapping[str, str]) -> str | None:
    length = str(headers.get("content-length", ""))
    if length.isdigit() and int(length) != len(body) and "content-encoding" not in headers:
        return f"{len(body)} of {length} bytes came"
    if not _header_id(headers) and _BODY_ID.search(body) is None:
        return "it has no request id, which AWS always gives"
    if model.service_model.resolved_protocol == "json" and body and not _is_json_object(body):
        return "its body is not a JSON object"
    return None


def _header_id(headers: Mapping[str, str]) -> str:
    return str(headers.get("x-amzn-requestid") or headers.get("x-amz-request-id") or "")


def _is_json_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _refused(error: botocore_errors.ClientError, operation: str, broken: FailureClass) -> CloudError:
    fields = error.response.get("Error", {})
    code, message = str(fields.get("Code", "Unknown")), str(fields.get("Message", ""))[:_LONGEST_MESSAGE]
    metadata = error.response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0))
    # Where the body names no error botocore puts the status in the place of its code.
    has_id = bool(metadata.get("RequestId")) or bool(_header_id(metadata.get("HTTPHeaders", {})))
    foreign = not has_id and (code in ("", "Unknown") or code.isdigit())
    other = FailureClass.THROTTLE if status == 429 else broken if status >= 500 or foreign else FailureClass.PERMANENT
    failure = _CLASS_OF_CODE.get(code, other)
    return CloudError(operation, failure, code, message)
