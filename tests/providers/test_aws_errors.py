"""What AWS refuses, and what the user is told: one row for each code that matters."""

from __future__ import annotations

import pytest
from botocore import exceptions

from flowlite.errors import (
    CapacityUnavailable,
    FlowError,
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
)
from provider_adapters.aws.errors import (
    CredentialsRefused,
    NoAnswer,
    code_of,
    explained,
    missing_action,
    refusal,
    refusals_by_zone,
)

# Code, status, kind, exception, words of the advice.
TABLE = [
    ("InsufficientInstanceCapacity", 500, "capacity", CapacityUnavailable, "InsufficientInstance"),
    ("InsufficientReservedInstanceCapacity", 400, "capacity", CapacityUnavailable, ""),
    ("ReservationCapacityExceeded", 400, "capacity", CapacityUnavailable, ""),
    ("InsufficientVolumeCapacity", 500, "capacity", CapacityUnavailable, ""),
    ("UnfulfillableCapacity", 400, "capacity", CapacityUnavailable, ""),
    ("InsufficientFreeAddressesInSubnet", 400, "capacity", CapacityUnavailable, ""),
    ("SpotMaxPriceTooLow", 400, "capacity", CapacityUnavailable, ""),
    ("Unsupported", 400, "capacity", CapacityUnavailable, ""),
    ("VcpuLimitExceeded", 400, "quota", QuotaExceeded, "vCPUs"),
    ("MaxSpotInstanceCountExceeded", 400, "quota", QuotaExceeded, "still open"),
    ("InstanceLimitExceeded", 400, "quota", QuotaExceeded, "Service Quotas"),
    ("SecurityGroupLimitExceeded", 400, "quota", QuotaExceeded, "flow gc"),
    ("UnauthorizedOperation", 403, "permission", PermissionRefused, "ec2:RunInstances"),
    ("AccessDeniedException", 400, "permission", PermissionRefused, "flow aws policy"),
    ("AuthFailure", 401, "credentials", CredentialsRefused, "flow providers check"),
    ("AuthFailure", 401, "credentials", CredentialsRefused, "not enabled this region"),
    ("InvalidIdentityToken", 400, "credentials", CredentialsRefused, "log in again"),
    ("ExpiredToken", 400, "credentials", CredentialsRefused, "log in again"),
    ("RequestExpired", 400, "credentials", CredentialsRefused, "clock"),
    ("RequestLimitExceeded", 503, "throttled", NoAnswer, "fewer calls"),
    ("Throttling", 400, "throttled", NoAnswer, "fewer calls"),
    ("SomethingNew", 429, "throttled", NoAnswer, "fewer calls"),
    ("InternalError", 500, "uncertain", NoAnswer, "not known"),
    ("Unavailable", 503, "uncertain", NoAnswer, "not known"),
    ("SomethingNew", 502, "uncertain", NoAnswer, "not known"),
    ("OptInRequired", 403, "refused", ProviderError, "opted in"),
    ("PendingVerification", 400, "refused", ProviderError, "verifying"),
    ("InvalidAMIID.NotFound", 400, "refused", ProviderError, "[aws] ami"),
    ("InvalidSubnetID.NotFound", 400, "refused", ProviderError, "[aws] subnet"),
    ("VPCIdNotSpecified", 400, "refused", ProviderError, "create-default-vpc"),
    ("InvalidParameterValue", 400, "refused", ProviderError, "said so"),
]


def answered(code: str, status: int, message: str = "AWS said so") -> exceptions.ClientError:
    return exceptions.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "RunInstances",
    )


@pytest.mark.parametrize(("code", "status", "kind", "error", "words"), TABLE)
def test_a_code_becomes_an_error_with_advice(
    code: str, status: int, kind: str, error: type[FlowError], words: str
) -> None:
    found = refusal(answered(code, status), "ec2:RunInstances")
    assert found is not None
    assert found.kind == kind
    raised = found.error("us-east-1a")
    assert type(raised) is error
    said = str(raised)
    assert words in said
    # What was called, where, and AWS's own words and code, to look them up.
    for part in ("ec2:RunInstances", "us-east-1a", "AWS said so", code):
        assert part in said


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.EndpointConnectionError(endpoint_url="https://ec2"), "unreachable"),
        (exceptions.ConnectTimeoutError(endpoint_url="https://ec2"), "unreachable"),
        (exceptions.ProxyConnectionError(proxy_url="http://proxy"), "unreachable"),
        (exceptions.ReadTimeoutError(endpoint_url="https://ec2"), "uncertain"),
        (exceptions.ConnectionClosedError(endpoint_url="https://ec2"), "uncertain"),
        (exceptions.HTTPClientError(error="broken"), "uncertain"),
        (exceptions.NoCredentialsError(), "credentials"),
        (exceptions.UnauthorizedSSOTokenError(), "credentials"),
        (exceptions.CredentialRetrievalError(provider="process", error_msg="1"), "credentials"),
        (exceptions.RefreshWithMFAUnsupportedError(), "credentials"),
        (exceptions.ParamValidationError(report="wrong"), "refused"),
        (exceptions.NoRegionError(), "refused"),
    ],
)
def test_what_never_came_back_is_told_from_what_was_never_sent(error: Exception, kind: str) -> None:
    found = refusal(error, "ec2:RunInstances")
    assert found is not None
    assert found.kind == kind
    assert isinstance(found.error(), ProviderError)


def test_the_missing_action_is_named() -> None:
    message = (
        "You are not authorized to perform this operation. User: arn:aws:iam::1:user/a is not authorized to perform: "
        "iam:PassRole on resource: arn:aws:iam::1:role/r because no identity-based policy allows it"
    )
    assert missing_action(message) == "iam:PassRole"
    found = refusal(answered("UnauthorizedOperation", 403, message), "ec2:RunInstances")
    assert found is not None
    assert "lack the permission iam:PassRole" in str(found.error())


def test_zones_that_refuse_alike_share_one_sentence() -> None:
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
    said = {
        zone: {
            "code": "InsufficientInstanceCapacity",
            "message": f"There is not enough p5.48xlarge in the Availability Zone you requested ({zone}). Choose "
            f"{' or '.join(each for each in zones if each != zone)}.",
        }
        for zone in zones
    }
    assert refusals_by_zone(said) == (
        "us-east-1a, us-east-1b, us-east-1c: There is not enough p5.48xlarge in the Availability Zone you requested "
        "(…). Choose …. (InsufficientInstanceCapacity)"
    )
    # What differs but for zones is kept, and a zone of its own answer keeps its names.
    said["us-east-1b"] = {"code": "SpotMaxPriceTooLow", "message": "0.10 is lower than 0.20"}
    said["us-east-1c"] = {"code": "SpotMaxPriceTooLow", "message": "0.10 is lower than 0.30"}
    assert refusals_by_zone(said).split("; ") == [
        "us-east-1a: There is not enough p5.48xlarge in the Availability Zone you requested (us-east-1a). Choose "
        "us-east-1b or us-east-1c. (InsufficientInstanceCapacity)",
        "us-east-1b: 0.10 is lower than 0.20 (SpotMaxPriceTooLow)",
        "us-east-1c: 0.10 is lower than 0.30 (SpotMaxPriceTooLow)",
    ]


def test_a_zone_that_was_not_asked_has_no_code() -> None:
    said = {"us-east-1a": {"message": "it was never listed"}}
    assert refusals_by_zone(said) == "us-east-1a: it was never listed"


def test_other_exceptions_are_left_alone() -> None:
    assert refusal(KeyError("x"), "ec2:RunInstances") is None
    with pytest.raises(KeyError), explained("ec2:RunInstances"):
        raise KeyError("x")


def test_explained_raises_ours_with_the_cause() -> None:
    with pytest.raises(QuotaExceeded) as raised, explained("ec2:RunInstances", "us-east-1"):
        raise answered("VcpuLimitExceeded", 400)
    assert code_of(raised.value.__cause__ or KeyError()) == "VcpuLimitExceeded"
