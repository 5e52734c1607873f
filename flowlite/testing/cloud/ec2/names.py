"""The box's accounts and keys, and AWS's formats of ids, times and errors."""

from __future__ import annotations

import secrets
from datetime import datetime
from xml.sax.saxutils import escape

from werkzeug.exceptions import HTTPException

from flowlite.testing.cloud.timers import utc_now

ACCOUNT = "123456789012"
ACCESS_KEY = "AKIAFLOWLITEINTHEBOX"
SECRET_KEY = "secret/of/the/box+0123456789abcdefghijkl"
USER_ARN = f"arn:aws:iam::{ACCOUNT}:user/box"
OTHER_ACCOUNT = "210987654321"
"""An account with keys of its own, in which there is nothing, and nothing can be launched."""
OTHER_ACCESS_KEY = "AKIAFLOWLITEELSEWHER"
OTHER_SECRET_KEY = "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"
OTHER_USER_ARN = f"arn:aws:iam::{OTHER_ACCOUNT}:user/elsewhere"
REGION = "us-east-1"
# The HTTP status by error code. All other codes have 400.
STATUS = {
    "AuthFailure": 401,
    "InvalidClientTokenId": 403,
    "MissingAuthenticationToken": 403,
    "SignatureDoesNotMatch": 403,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "AccessDeniedException": 400,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
}
MESSAGES = {
    "RequestLimitExceeded": "Request limit exceeded.",
    "InternalError": "An internal error has occurred",
    "ServiceUnavailable": "The service is unavailable. Please try again shortly.",
    "Unavailable": "The server is overloaded and can't handle the request.",
    "RequestExpired": "Request has expired.",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
    "InvalidClientTokenId": "The security token included in the request is invalid.",
    "UnrecognizedClientException": "The security token included in the request is invalid.",
    "MissingAuthenticationToken": "Request is missing Authentication Token",
    "SignatureDoesNotMatch": "The request signature we calculated does not match the signature you provided.",
    "InvalidSignatureException": "The request signature we calculated does not match the signature you provided.",
    "OptInRequired": "You are not subscribed to this service.",
    "PendingVerification": "Your account is currently being verified.",
    "InsufficientInstanceCapacity": (
        "We currently do not have sufficient capacity in the Availability Zone you requested."
    ),
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit allows.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
}


class Refusal(HTTPException):
    """An error of the EC2 API. Raised anywhere in a call, it becomes the reply."""

    def __init__(self, code: str, message: str = "", status: int = 0) -> None:
        self.error = code
        self.said = message or MESSAGES.get(code, code)
        self.code = status or STATUS.get(code, 400)
        super().__init__(xml_error(self.error, self.said))

    def get_headers(self, environ: object = None, scope: object = None) -> list[tuple[str, str]]:
        """The headers of an XML reply."""
        return [("Content-Type", "text/xml;charset=UTF-8")]


def xml_error(code: str, message: str) -> str:
    """An error in EC2's XML format."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        f"</Error></Errors><RequestID>{secrets.token_hex(16)}</RequestID></Response>"
    )


def new_id(kind: str) -> str:
    """A new id, such as `sir-0a1b2c3d`."""
    return f"{kind}-{secrets.token_hex(4 if kind == 'sir' else 8)}{'' if kind == 'sir' else '0'}"


def stamp(when: datetime | None = None) -> str:
    """A time in the format of `StateTransitionReason`."""
    return f"{(when or utc_now()):%Y-%m-%d %H:%M:%S} GMT"


def iso(when: datetime) -> str:
    """A time in the format of the metadata service."""
    return f"{when:%Y-%m-%dT%H:%M:%S}Z"
