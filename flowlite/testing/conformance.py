"""The suite that every provider adapter has to pass.

    from flowlite.testing.conformance import ProviderSuite, ProviderUnderTest

    class Mine(ProviderUnderTest):
        name = "mine"
        ...

    class TestMine(ProviderSuite):
        @pytest.fixture
        def subject(self, home):
            yield Mine()

The groups of tests can also be used one by one, each as a base class, while an adapter is not finished.
`docs/providers/writing-an-adapter.md` explains all of them.
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
    """All tests of the connection to one node."""


class ProviderSuite(LaunchTests, ConnectionSuite, TaskTests, FailureTests, VolumeTests):
    """All tests. A class derived from it that overrides the fixture `subject` tests a whole adapter."""
