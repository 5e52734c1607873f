"""The suite that every provider adapter has to pass.

    from flowlite.testing.conformance import ProviderSuite, ProviderUnderTest

    class Mine(ProviderUnderTest):
        name = "mine"
        ...

    class TestMine(ProviderSuite):
        @pytest.fixture
        def subject(self, home):
            yield Mine()

An adapter that is not finished may begin with some of the groups, each a class to derive from in the same way.
`docs/providers/writing-an-adapter.md` explains all of it.
"""

from __future__ import annotations

from flowlite.testing.failing import FailureTests
from flowlite.testing.launching import LaunchTests
from flowlite.testing.reaching import CommandTests, FileTests
from flowlite.testing.running import TaskTests
from flowlite.testing.storing import VolumeTests
from flowlite.testing.streams import StreamTests
from flowlite.testing.subject import ProviderUnderTest

__all__ = [
    "CommandTests",
    "ConnectionSuite",
    "FailureTests",
    "FileTests",
    "LaunchTests",
    "ProviderSuite",
    "ProviderUnderTest",
    "StreamTests",
    "TaskTests",
    "VolumeTests",
]


class ConnectionSuite(CommandTests, FileTests, StreamTests):
    """Everything about reaching one node."""


class ProviderSuite(LaunchTests, ConnectionSuite, TaskTests, FailureTests, VolumeTests):
    """Everything. A class derived from it, with a fixture `subject`, is a whole test of an adapter."""
