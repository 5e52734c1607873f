"""Nodes that answer as they are told to, for tests of what looks at nodes."""

from __future__ import annotations

import threading

from flowlite.provider import Instance, NodeSettings
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer


class FakeNode(Node):
    """A node that answers as it is told to."""

    def __init__(self, rank: int, life: ProbeAnswer, hears: bool = True) -> None:
        settings = NodeSettings(home="/nowhere", python="python")
        super().__init__(None, Instance(f"n{rank}", "t1"), settings, rank, 1)  # type: ignore[arg-type]
        self.life = life
        self.hears = hears
        self.probes = 0
        self.refusal = ""
        self.hangs: threading.Event | None = None
        self.afresh: ProbeAnswer | None = None
        self.last_looks = 0
        self.sends = 0
        self._received = 0

    def probe_afresh(self) -> Finding:
        self.last_looks += 1
        return Finding(self.afresh or self.life, "asked afresh", self.hears)

    def received(self) -> int:
        return self._received

    def probe(self) -> Finding:
        self.probes += 1
        self._received += self.sends
        if self.hangs is not None:
            self.hangs.wait(5)
        if self.refusal:
            return Finding(self.life, self.refusal, refused=True)
        return Finding(self.life, f"as {self.life}", self.hears)
