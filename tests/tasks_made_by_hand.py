"""Tasks as a supervisor leaves them, without one: rows of the store and files, for tests of those who only read."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Any

from flowlite.api.session import Session, open_session
from flowlite.api.task import Task
from flowlite.node.serialization.result_file import write_exception, write_value
from flowlite.state.store import InstanceRecord, Lease, Store, TaskRecord
from flowlite.supervise.money.cost import END_IS_A_BOUND
from flowlite.supervise.process.launch import new_task_id
from flowlite.supervise.record import process_identity


class HandMade:
    """One task. Its supervisor is this process, as far as anybody can see."""

    def __init__(
        self,
        name: str = "digits",
        *,
        nodes: int = 2,
        per_node: int = 2,
        price: float = 0.0,
        config: Mapping[str, Any] | None = None,
        call: Mapping[str, Any] | None = None,
        created_at: float | None = None,
        planned: Mapping[str, Any] | None = None,
    ) -> None:
        self.session: Session = open_session()
        # A connection of its own, as a supervisor has: readers notice the writes of other connections only.
        self.store = Store(self.session.home / "state.db")
        self.id = new_task_id()
        self.per_node = per_node
        self.paths = self.session.paths(self.id)
        self.paths.make()
        plan = {
            "provider": "local",
            "instance_type": "this machine",
            "num_instances": nodes,
            "processes_per_node": per_node,
            "price_per_hour": price,
            **(planned or {}),
        }
        self.store.create_task(
            TaskRecord(
                id=self.id,
                name=name,
                function="train.main",
                provider="local",
                config=dict(config or {}),
                plan=plan,
                call=dict(call or {"kind": "function"}),
                created_at=created_at or time.time(),
            )
        )
        lease = self.store.acquire_lease(self.id, process_identity.owner(), 600)
        assert lease is not None
        self.lease: Lease = lease
        self.change("running", attempt=1, started_at=time.time())

    @property
    def task(self) -> Task[Any]:
        """As a client sees it."""
        return Task(self.session, self.session.store.get_task(self.id))

    def change(self, state: str, reason: str = "", **changes: Any) -> None:
        """A transition with its event."""
        self.store.transition(
            self.lease, state, reason or state, {}, state=state, reason=reason, **changes
        )

    def end(self, state: str = "completed", reason: str = "") -> None:
        """The final state."""
        self.change(state, reason, finished_at=time.time())

    def instance(
        self,
        rank: int,
        *,
        name: str = "",
        price: float = 0.0,
        hours: float = 0.0,
        ended: bool = False,
        unobserved: bool = False,
    ) -> None:
        """A node, launched some hours ago. With `unobserved`, nobody saw when it ended."""
        now, name = time.time(), name or f"{self.id}-{rank}"
        self.store.put_instances(
            self.lease,
            [
                InstanceRecord(
                    id=name,
                    task_id=self.id,
                    provider="local",
                    state="ended" if ended else "running",
                    price_per_hour=price,
                    launched_at=now - hours * 3600,
                    ended_at=now if ended else None,
                    node_rank=rank,
                    data={
                        "id": name,
                        "task_id": self.id,
                        "address": f"10.0.0.{rank}",
                        **({END_IS_A_BOUND: True} if unobserved else {}),
                    },
                )
            ],
        )

    def write(
        self, rank: int, data: bytes, *, at: float | None = None, stream: str = "out"
    ) -> None:
        """A piece of a worker's output."""
        path = self.paths.stream(1, rank // self.per_node, rank, stream)
        with open(path, "ab") as file, open(f"{path}.idx", "ab") as index:
            index.write(struct.pack("<Qd", file.tell(), time.time() if at is None else at))
            index.flush()
            file.write(data)

    def returns(self, rank: int, value: Any, attempt: int = 1) -> None:
        """A worker's result."""
        write_value(self.paths.result(attempt, rank), value)

    def fails(
        self,
        rank: int,
        failure: Mapping[str, Any] | None = None,
        *,
        first: bool = False,
        **body: Any,
    ) -> None:
        """The report of a worker that failed, as the supervisor notes it."""
        self.store.add_event(
            self.id,
            "first_failure" if first else "worker",
            f"rank {rank} failed",
            {
                "attempt": 1,
                "rank": rank,
                "node": rank // self.per_node,
                "code": None,
                "signal": None,
                "failure": failure,
                "tail": [],
                **body,
            },
        )

    def raises(self, rank: int, error: BaseException, *, first: bool = False) -> None:
        """A worker whose function raised."""
        failure = write_exception(
            self.paths.result(1, rank), error, node=rank // self.per_node, rank=rank
        )
        self.fails(rank, failure, first=first, code=1)
