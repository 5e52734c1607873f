"""Translates AWS's errors into flowlite's, with what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flowlite.connect import botocore_mfa
from flowlite.errors import (
    CapacityUnavailable,
    ConfigError,
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
)
from flowlite.node.quick_dataclass import dataclass

# No capacity in this zone, or not at this price; another zone may have some.
CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientAddressCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientVolumeCapacity",
        "UnfulfillableCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "Unsupported",
        "UnsupportedOperation",
        "Server.InsufficientInstanceCapacity",
    }
)
# The account's quota is exceeded, in any zone of the region.
QUOTA = {
    "VcpuLimitExceeded": "the quota of vCPUs for this family of types",
    "InstanceLimitExceeded": "the quota of instances",
    "MaxSpotInstanceCountExceeded": "the quota of vCPUs on spot; requests that are still open count, too",
    "SpotInstanceCountLimitExceeded": "the quota of spot instances",
    "VolumeLimitExceeded": "the quota of disks",
    "MaxIOPSLimitExceeded": "the quota of IOPS of disks",
    "AddressLimitExceeded": "the quota of public addresses",
    "SecurityGroupLimitExceeded": "the quota of security groups in the VPC; `flow gc` removes unused ones of ours",
    "PlacementGroupLimitExceeded": "the quota of placement groups",
    "NetworkInterfaceLimitExceeded": "the quota of network interfaces",
    "PrivateIpAddressLimitExceeded": "the quota of addresses",
}
# Nothing was done, and the same request may be repeated.
THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "SlowDown",
    }
)
# Something may have been done.
_UNCERTAIN = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "ServerInternal",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
        "RequestTimeout",
        "RequestTimeoutException",
        "IdempotentInstanceTerminated",
        "IdempotentParameterMismatch",
    }
)
_PERMISSION = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedException",
        "Client.UnauthorizedOperation",
    }
)
# AWS says the same of good credentials in a region that the account has not enabled.
_NOT_HERE = ", or the account has not enabled this region"
_CREDENTIALS = {
    "AuthFailure": f"AWS does not accept these credentials{_NOT_HERE}",
    "InvalidClientTokenId": f"AWS does not know this access key{_NOT_HERE}",
    "UnrecognizedClientException": f"AWS does not know this access key{_NOT_HERE}",
    "InvalidIdentityToken": "the token that stands for the credentials is not accepted",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the session has expired",
    "ExpiredTokenException": "the session has expired",
    "RequestExpired": "the session has expired, or the clock of this machine is wrong",
    "InvalidAccessKeyId": "AWS does not know this access key",
    "MissingAuthenticationToken": "there are no credentials",
    "CredentialsNotGiven": "what gives the credentials, such as credential_process, has failed",
}
_ADVICE = {
    "OptInRequired": "the account has not opted in to this region or service; do so in the AWS console",
    "PendingVerification": "AWS is still verifying the account for this region; it says so by mail when that is done",
    "Blocked": "AWS has blocked the account; see the mail it has sent",
    "InvalidAMIID.NotFound": "the image does not exist in this region; correct [aws] ami, or leave it out",
    "InvalidAMIID.Malformed": "the id of the image is none; correct [aws] ami, or leave it out",
    "InvalidAMIID.Unavailable": "the image cannot be used any more; correct [aws] ami, or leave it out",
    "InvalidSubnetID.NotFound": "the subnet does not exist in this region; correct [aws] subnet",
    "InvalidGroup.NotFound": "the security group does not exist in this VPC; correct [aws] security_group",
    "InvalidPlacementGroup.Unknown": "the placement group does not exist; correct [aws] placement_group",
    "InvalidCapacityReservationId.NotFound": "correct [aws] capacity_reservation or capacity_block",
    "InvalidIamInstanceProfileArn.Malformed": "correct [aws] instance_profile",
    "VPCIdNotSpecified": "the region has no default VPC; set [aws] subnet, or make one (`aws ec2 create-default-vpc`)",
    "DefaultVpcDoesNotExist": "the region has no default VPC; set [aws] subnet, or make one "
    "(`aws ec2 create-default-vpc`)",
    "ParameterNotFound": "the region has no image of that name; set [aws] ami or ami_parameter",
}
_LONGEST_SAID = 200
# A refusal may have an encoded text of 3,000 characters, which `aws sts decode-authorization-message` takes.
_LONGEST_CODE, _LONGEST_MESSAGE = 100, 6000
_ZONE = r"[a-z]{2}(?:-[a-z]+)+-\d[a-z]"
_ZONES = re.compile(rf"{_ZONE}(?:,? (?:(?:or|and) )?{_ZONE})*")
_ACTION = re.compile(r"perform:? ([a-zA-Z0-9-]+:[A-Za-z]+)")


class NoAnswer(ProviderError):
    """AWS has not refused: it cannot be reached, throttles, or has a fault of its own. To be tried again.

    Attributes:
        code: AWS's code, or the name of the network error.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class CredentialsRefused(PermissionRefused):
    """AWS does not accept the credentials, or there are none: a session has expired, which may be renewed."""


class NotKnownYet(ProviderError):
    """A new object is not known everywhere at AWS yet. To be tried again."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that AWS has answered.

    Attributes:
        code: AWS's code, "" if there was no answer.
        message: AWS's message.
        kind: "capacity", "quota", "throttled", "uncertain" (it may have had an effect), "unreachable" (it was not
            sent), "permission", "credentials" or "refused".
        action: The action, as in a policy: "ec2:RunInstances".
    """

    code: str
    message: str
    kind: str
    action: str

    def error(self, where: str = "", advice: str = "") -> ProviderError:
        """The exception for the user."""
        place = f" in {where}" if where else ""
        said = f"{self.action}{place}: {self.message} ({self.code})"
        if self.kind == "quota":
            told = advice or f"it is {QUOTA[self.code]}; ask for more in the Service Quotas console"
            return QuotaExceeded(f"{said}. {_sentence(told)}")
        if self.kind == "permission":
            missing = missing_action(self.message) or self.action
            return PermissionRefused(
                f"{said}. The credentials lack the permission {missing}; `flow aws policy` prints the least policy, "
                "`flow providers check` what is missing"
            )
        if self.kind == "credentials":
            return CredentialsRefused(
                f"{said}. {_sentence(_CREDENTIALS[self.code])}; log in again, or set another profile ([aws] profile, "
                "AWS_PROFILE); `flow providers check` says which were found"
            )
        if self.kind == "capacity":
            return CapacityUnavailable(said, retry_after=30.0)
        if self.kind == "throttled":
            return NoAnswer(f"{said}; AWS wants fewer calls just now", self.code)
        if self.kind == "unreachable":
            text = f"{self.action}{place}: AWS cannot be reached: {self.message}"
            return NoAnswer(text, self.code)
        if self.kind == "uncertain":
            return NoAnswer(f"{said}. Whether it had an effect is not known yet", self.code)
        told = advice or _ADVICE.get(self.code, "")
        return ProviderError(f"{said}. {_sentence(told)}" if told else said)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def refusals_by_zone(said: Mapping[str, Mapping[str, Any]]) -> str:
    """What several zones have refused, in words. Zones that gave the same answer share one sentence.

    Args:
        said: By zone, the message, and the code of AWS unless it has not answered.
    """
    zones: dict[tuple[str, str], list[str]] = {}
    messages: dict[tuple[str, str], str] = {}
    for zone, detail in said.items():
        code = f" ({detail['code']})" if detail.get("code") else ""
        message = str(detail.get("message", "no machine was made"))
        # AWS names the zone that was asked, and the others.
        without_zones = _ZONES.sub("…", message)
        zones.setdefault((code, without_zones), []).append(zone)
        messages.setdefault((code, without_zones), message)
    return "; ".join(
        f"{', '.join(found)}: {messages[same] if len(found) == 1 else same[1]}{same[0]}"
        for same, found in zones.items()
    )


def refusal(error: BaseException, action: str) -> Refusal | None:
    """The refusal in an exception of boto3; None for any other exception."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        return _of_answer(error.response, action)
    if isinstance(error, ResponseParserError | RecursionError):
        # Its text has the whole answer.
        said = "the answer is not one of AWS: " + " ".join(str(error)[:_LONGEST_SAID].split())
        return Refusal(type(error).__name__, said, "uncertain", action)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return Refusal("MissingAuthenticationToken", str(error), "credentials", action)
    if isinstance(error, exceptions.TokenRetrievalError | exceptions.SSOError):
        return Refusal("ExpiredToken", str(error), "credentials", action)
    if isinstance(error, _failures_of_credentials()):
        said = " ".join(str(error).split())[:_LONGEST_MESSAGE]
        if isinstance(error, exceptions.RefreshWithMFAUnsupportedError):
            said = f"{said} {botocore_mfa.ADVICE}"
        return Refusal("CredentialsNotGiven", said, "credentials", action)
    if isinstance(error, exceptions.PaginationError):
        # Its text has the token, of any length.
        said = "the pages do not end: one leads to itself"
        return Refusal(type(error).__name__, said, "uncertain", action)
    if isinstance(error, exceptions.BotoCoreError):
        return Refusal(type(error).__name__, str(error), _kind_of_failure(error), action)
    return None


def _failures_of_credentials() -> tuple[type[Exception], ...]:
    """The exceptions of botocore for credentials that it cannot get, or cannot renew."""
    from botocore import exceptions

    # `aws login` is known to botocore since 1.41.
    names = ("CredentialRetrievalError", "RefreshWithMFAUnsupportedError", "LoginError")
    return tuple(getattr(exceptions, name) for name in names if hasattr(exceptions, name))


def _kind_of_failure(error: BaseException) -> str:
    """The kind of a failure without an answer of AWS."""
    from botocore import exceptions

    never_sent = (
        exceptions.EndpointConnectionError,
        exceptions.ConnectTimeoutError,
        exceptions.ProxyConnectionError,
    )
    if isinstance(error, never_sent):
        return "unreachable"
    if isinstance(error, exceptions.HTTPClientError):
        return "uncertain"
    # botocore finds invalid parameters, regions or settings before anything is sent.
    return "refused"


def _of_answer(response: Mapping[str, Any], action: str) -> Refusal:
    said = response.get("Error", {})
    code, message = str(said.get("Code", ""))[:_LONGEST_CODE], str(said.get("Message", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return Refusal(code, message[:_LONGEST_MESSAGE], _kind(code, status), action)


def _kind(code: str, status: int) -> str:
    # The code takes precedence over the status: a lack of capacity comes as a 500.
    if code in CAPACITY:
        return "capacity"
    if code in QUOTA:
        return "quota"
    if code in THROTTLED:
        return "throttled"
    if code in _PERMISSION:
        return "permission"
    if code in _CREDENTIALS:
        return "credentials"
    if code in _UNCERTAIN or status >= 500:
        return "uncertain"
    return "throttled" if status == 429 else "refused"


@contextmanager
def explained(action: str, where: str = "") -> Iterator[None]:
    """Translates exceptions of boto3 that are raised inside."""
    try:
        yield
    except (ProviderError, ConfigError):
        raise
    except Exception as error:
        found = refusal(error, action)
        if found is None:
            raise
        raise found.error(where) from error


def code_of(error: BaseException) -> str:
    """AWS's code in an exception of boto3, "" if there is none."""
    found = refusal(error, "")
    return found.code if found else ""


def missing_action(message: str) -> str:
    """The action that a message names as not permitted: "ec2:RunInstances"."""
    found = _ACTION.search(message)
    return found[1] if found else ""
