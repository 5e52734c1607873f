"""One service of AWS in one region, as all parts of the adapter call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from provider_adapters.aws import pages
from provider_adapters.aws.errors import code_of, explained

if TYPE_CHECKING:
    from provider_adapters.aws.session import Clients

BotoClients = Callable[[str], Any]
"""Returns the boto3 client of a service ("ec2", "efs", "fsx") in the region."""
# The prefix of a service in policies, if it differs from boto3's name.
_PREFIXES = {"efs": "elasticfilesystem", "service-quotas": "servicequotas"}


class Answered(Exception):
    """AWS answered with an error that the caller expects."""

    def __init__(self, code: str, response: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.response = response


class Service:
    """A client of one service in a region that raises flowlite's errors.

    Args:
        name: As boto3 calls it.
        region: For the errors; "" leaves it out.
    """

    def __init__(self, clients: BotoClients, name: str, region: str = "") -> None:
        self._clients = clients
        self._name = name
        self._region = region

    @classmethod
    def of(cls, clients: Clients, name: str, region: str) -> Service:
        """A service in a region, with a client of the account."""
        return cls(lambda name: clients(name, region), name, region)

    def call(self, operation: str, *expected: str, **parameters: Any) -> Any:
        """Makes a call.

        Args:
            expected: Codes of errors that the caller handles.

        Raises:
            Answered: AWS answered with one of these.
            ProviderError: AWS answered with another error.
        """
        from botocore import xform_name

        with self._explained(operation, expected):
            return getattr(self._clients(self._name), xform_name(operation))(**parameters)

    def all(self, operation: str, key: str, **parameters: Any) -> list[dict[str, Any]]:
        """The entries under a key of a listing, over all its pages."""
        from botocore import xform_name

        with self._explained(operation, ()):
            client = self._clients(self._name)
            return pages.entries(client, xform_name(operation), key, **parameters)

    @contextmanager
    def _explained(self, operation: str, expected: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            code = code_of(error)
            if code in expected:
                raise Answered(code, getattr(error, "response", {})) from error
            with explained(f"{_PREFIXES.get(self._name, self._name)}:{operation}", self._region):
                raise
