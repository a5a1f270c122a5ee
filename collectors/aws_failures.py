"""What a failed AWS call means: errors sorted into the failure classes that decide what may be done next."""

from __future__ import annotations

import re

from botocore import exceptions as botocore_errors

from domain.errors import CloudError, FailureClass

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
"""Calls that ask whether another call would be allowed: nothing is done."""

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
)
_LONGEST_MESSAGE = 400


def is_read(service: str, operation: str) -> bool:
    """Return whether the operation reads only: Describe*, Get*, List*, Head*, or asks for credentials or permissions.

    Everything else counts as changing something, ReceiveMessage (it hides messages from other readers) included.
    """
    return _READS.match(operation) is not None or (service, operation) in CREDENTIAL_CALLS | JUDGING_CALLS


def classify(error: Exception, operation: str) -> CloudError:
    """Return the error of a call as a CloudError with its failure class.

    A server error or a connection that broke after the request left is UNKNOWN_OUTCOME for an operation that changes
    something and UNAVAILABLE for one that reads. A connection that never came about is UNAVAILABLE for both. What
    cannot be placed otherwise is PERMANENT.
    """
    if isinstance(error, CloudError):
        return error
    broken = FailureClass.UNAVAILABLE if _READS.match(operation) else FailureClass.UNKNOWN_OUTCOME
    if isinstance(error, botocore_errors.ClientError):
        return _answered(error, operation, broken)
    if isinstance(error, _NO_CREDENTIALS):
        failure = FailureClass.CREDENTIALS
    elif isinstance(error, _NEVER_SENT):
        failure = FailureClass.UNAVAILABLE
    elif isinstance(error, (*_CUT_OFF, _response_parser_error(), OSError)):
        failure = broken
    else:
        failure = FailureClass.PERMANENT
    return CloudError(operation, failure, type(error).__name__, str(error)[:_LONGEST_MESSAGE])


def _answered(error: botocore_errors.ClientError, operation: str, broken: FailureClass) -> CloudError:
    said = error.response.get("Error", {})
    code, message = str(said.get("Code", "Unknown")), str(said.get("Message", ""))[:_LONGEST_MESSAGE]
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    other = FailureClass.THROTTLE if status == 429 else broken if status >= 500 else FailureClass.PERMANENT
    failure = _CLASS_OF_CODE.get(code, other)
    return CloudError(operation, failure, code, message)


def _response_parser_error() -> type[Exception]:
    # Importing botocore.parsers at the top would load it before any client is wanted.
    from botocore.parsers import ResponseParserError

    return ResponseParserError
