"""Starts the agents on all nodes of an attempt. An agent that has run already is never started again."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError
from flowlite.node.config import distributed_modes
from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import trace
from flowlite.supervise.attempt import certificates, distribution, project
from flowlite.supervise.attempt.node_handle import Node, start_agents
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import GivenUp, NodeLost, Reachability
from flowlite.supervise.record.paths import TaskPaths, local_call
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from flowlite.supervise.waiting import wait_for_event

if TYPE_CHECKING:
    from flowlite.connect import uv

SPARE = 0
"""The number that stands for the attempt of a spare machine's agent, which has no rank."""
# For how long a fork server stays between two attempts of a task with spares, on nodes and spares alike.
_WARM_BETWEEN_ATTEMPTS = 120.0
AWAITED = "awaited"
"""The file in a node's directory that is written again and again while other nodes are equipped."""
# The lease of a host lapses when no agent lives there and nothing is written for two minutes.
_LIFE_EVERY = 30.0
# An agent that has not reported after this time has failed to start. On a busy machine it takes seconds.
_START_SECONDS = 30.0
# The pause before the leader is asked again where it listens grows with the time that it has taken already.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _SHARE_OF_PAUSE = 0.003, 0.2, 0.07
_PROBE_EVERY = 1.0


class NotUp(Exception):
    """The gang cannot be brought up. `replace` are the instances that caused it. The text is for people."""

    def __init__(self, text: str, replace: tuple[str, ...] = (), *, in_time: bool = True) -> None:
        super().__init__(text)
        self.replace = replace
        self.in_time = in_time


class LeaderHasLeft(Exception):
    """The leader's agent has ended already. Its report says how."""


@dataclass(eq=False, repr=False)
class BringUp:
    """Brings up one attempt.

    Attributes:
        began: Whether the workers have started already. Then only the leader is asked, for the address of its
            rendezvous.
        sending: How much of the project has been sent.
    """

    asked: TaskView
    paths: TaskPaths
    name: str
    attempt: int
    nodes: list[Node]
    max_run_seconds: float | None
    agent: tuple[Path, str]
    threads: Threads
    reach: Reachability
    paid_seconds: float | None = None
    began: bool = False
    sending: project.ProjectProgress = field(default_factory=project.ProjectProgress)

    @property
    def encrypted(self) -> bool:
        """Whether the rendezvous is encrypted, which it is unless all nodes have loopback addresses."""
        return self.attempt != SPARE and certificates.needed(
            node.instance.address for node in self.nodes
        )

    async def start(self, given_up: asyncio.Event) -> None:
        """Equips every node and starts its agent, unless the attempt is given up first. Raises NotUp."""
        if self.encrypted:
            # Before the nodes are equipped concurrently.
            certificates.of_attempt(self.paths, self.attempt)
        nodes = self.nodes[:1] if self.began else self.nodes
        with trace.span("equip nodes"):
            await self._equip_all(nodes, given_up)
        machines: dict[str, list[Node]] = {}
        for node in nodes:
            if not node.has_run:
                machines.setdefault(node.settings.warm_socket or node.instance.id, []).append(node)
        groups = {group[0].rank: group for group in machines.values()}
        if not given_up.is_set():
            first = [group[0] for group in groups.values()]
            with trace.span("start agents"):

                async def start(node: Node) -> None:
                    await self.reach.persist(
                        node, lambda it: start_agents(groups[it.rank]), given_up
                    )

                await self._everywhere(first, start)
        if self.attempt != SPARE:
            project.forget_packs(self.paths)

    async def find_leader(self, given_up: asyncio.Event) -> dict[str, Any] | None:
        """Waits for the address of the leader's rendezvous. None if the attempt was given up first.

        Raises:
            NotUp: The leader's agent does not start.
            LeaderHasLeft: The leader's agent started and has ended.
        """
        leader, began = self.nodes[0], time.monotonic()
        probe_at = began + _PROBE_EVERY
        while not given_up.is_set():
            if leader.report_seen is not None:
                raise LeaderHasLeft
            try:
                found = await self.reach.persist(leader, _place_of, given_up, changes=False)
                if found is not None:
                    certificates.forget_key(self.paths, self.attempt)
                    return found
                if time.monotonic() > probe_at:
                    waited = time.monotonic() - began
                    look = functools.partial(self._look_after_leader, waited=waited)
                    await self.reach.persist(leader, look, given_up, changes=False)
                    probe_at = time.monotonic() + _PROBE_EVERY
            except GivenUp:
                return None
            except NodeLost as error:
                why = f"{leader.name} cannot be reached: {error}"
                raise NotUp(why, (leader.instance.id,)) from error
            pause = _SHARE_OF_PAUSE * (time.monotonic() - began)
            await wait_for_event(given_up, min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        return None

    async def tell_leader(self, leader: Mapping[str, Any]) -> None:
        """Sends the leader's address to the other nodes.

        A node that cannot be reached does not join, and is named by the leader.
        """
        others = [node for node in self.nodes[1:] if node.report_seen is None and not self.began]

        async def tell(node: Node) -> None:
            with suppress(ProviderError, OSError, NodeLost):
                await self.reach.persist(node, lambda it: it.put_leader(leader), asyncio.Event())

        await asyncio.gather(*(tell(node) for node in others))

    async def _everywhere(
        self, nodes: Sequence[Node], do: Callable[[Node], Awaitable[None]]
    ) -> None:
        """Does something for all these nodes concurrently. Raises NotUp, which names every node where it failed."""

        async def here(node: Node) -> str:
            try:
                await do(node)
            except GivenUp:
                return ""
            except (ProviderError, OSError, NodeLost) as error:
                return str(error) or type(error).__name__
            return ""

        self._check(nodes, await asyncio.gather(*(here(node) for node in nodes)))

    async def _equip_all(self, nodes: Sequence[Node], given_up: asyncio.Event) -> None:
        """Equips all these nodes, and shows each that its task lives until the last one is equipped. Raises NotUp."""
        alive = [asyncio.ensure_future(self._show_life(node)) for node in nodes]
        try:
            if any(node.settings.python_spec for node in nodes) and self._are_many(nodes):
                await self._bring_uv(nodes, given_up)
            await self._equip_each(nodes, given_up)
        finally:
            for each in alive:
                each.cancel()

    async def _show_life(self, node: Node) -> None:
        """Shows a node that its task lives, until an agent does or this is cancelled."""
        while not node.has_run:
            await asyncio.sleep(_LIFE_EVERY)
            await self.threads.look(_write_awaited, node)

    async def _equip_each(self, nodes: Sequence[Node], given_up: asyncio.Event) -> None:
        """Equips all these nodes. Many of them get large contents from one another. Raises NotUp."""
        among = self._distribution(nodes, given_up)
        if among is None:

            async def one(node: Node) -> None:
                await self.reach.persist(node, self._equip, given_up)

            await self._everywhere(nodes, one)
            return

        async def one_of_many(node: Node) -> None:
            asking = functools.partial(self._equip, among=among)
            if not await self.reach.persist(node, asking, given_up):
                await among.bring(node)
                equipped = False
                try:
                    equipped = await self.reach.persist(node, self._equip, given_up)
                finally:
                    among.sent_to(node, everything=equipped and not node.has_run)
            elif not node.has_run:
                among.add(node)

        try:
            await self._everywhere(nodes, one_of_many)
        finally:
            await among.close()
            self.sending.among_nodes("")

    def _distribution(
        self, nodes: Sequence[Node], given_up: asyncio.Event
    ) -> distribution.Distribution | None:
        """Returns how contents travel between nodes; None where they are few, or have nothing that could."""
        if not self._are_many(nodes):
            return None
        travels = {
            bool(self.asked.call.get("project")) and node.settings.workdir is None for node in nodes
        }
        cached = all(node.settings.cache for node in nodes)
        sizes = {sha256: path.stat().st_size for path, _, sha256 in local_call(self.asked.call)}
        files = {
            each: size for each, size in sizes.items() if size >= distribution.WORTH and cached
        }
        if len(travels) > 1 or not (files or True in travels):
            return None
        changed = self.sending.among_nodes if True in travels else lambda _: None
        return self._make_distribution(given_up, files, project=True in travels, changed=changed)

    def _are_many(self, nodes: Sequence[Node]) -> bool:
        """Whether the nodes may get contents from one another."""
        machines = {node.instance.address for node in nodes}
        return len(machines) >= distribution.FROM_NODES and self.encrypted

    def _make_distribution(
        self,
        given_up: asyncio.Event,
        files: Mapping[str, int],
        *,
        project: bool = False,
        changed: Callable[[str], None] = lambda _: None,
    ) -> distribution.Distribution:
        return distribution.Distribution(
            self.paths.task_id,
            self.attempt,
            [node.instance.id for node in self.nodes],
            self.paths.secret.read_bytes(),
            self.threads,
            given_up,
            project=project,
            files=files,
            changed=changed,
        )

    async def _bring_uv(self, nodes: Sequence[Node], given_up: asyncio.Event) -> None:
        """Has nodes that need uv for the Python environment get it from one another. Raises NotUp."""
        # Nodes of different platforms need different programs.
        all_of_them: dict[str, distribution.Distribution] = {}

        async def one(node: Node) -> None:
            program = await self.reach.persist(node, self._uv_for, given_up)
            if program is None:
                return
            if program.sha256 not in all_of_them:
                files = {program.sha256: program.path.stat().st_size}
                all_of_them[program.sha256] = self._make_distribution(given_up, files)
            among = all_of_them[program.sha256]
            if await self.reach.persist(node, lambda it: among.lacks(it, self.agent), given_up):
                await among.bring(node)
                has_it = False
                try:
                    await self.reach.persist(node, lambda it: put_uv(it, program), given_up)
                    has_it = True
                finally:
                    among.sent_to(node, everything=has_it)
            else:
                among.add(node)

        # Imported here because few tasks need it.
        from flowlite.supervise.attempt.bring_python import put_uv

        try:
            await self._everywhere(nodes, one)
        finally:
            for each in all_of_them.values():
                await each.close()

    def _uv_for(self, node: Node) -> uv.Program | None:
        """Returns the uv that a node needs for the Python environment; None if it needs none, or there is none."""
        from flowlite.connect import uv
        from flowlite.supervise.attempt import bring_python

        spec = self._python_spec(node)
        node.look_for_agent()
        if spec is None or node.has_run or not (node.listed and node.settings.cache):
            return None
        platform = bring_python.platform_without_uv(node, spec, self.agent)
        if platform is not None:
            # Without it the node is equipped all the same, and its agent says what is missing.
            with suppress(ProviderError, OSError):
                return next(uv.programs_for(platform, self.paths.home))
        return None

    def _python_spec(self, node: Node) -> dict[str, Any] | None:
        """Returns the Python environment of a node. One with `setup=` is its own for each list of commands."""
        spec = node.settings.python_spec
        if spec is None or not self.asked.setup:
            return spec
        commands = json.dumps(list(self.asked.setup)).encode()
        return {**spec, "setup": hashlib.sha256(commands).hexdigest()[:32]}

    def _equip(self, node: Node, among: distribution.Distribution | None = None) -> bool:
        """Puts the files of the agent on a node, unless the agent has run already.

        Returns False if it should first get large contents from other nodes.
        """
        node.look_for_agent()
        if node.has_run:
            return True
        if not node.listed:
            raise ProviderError("the provider does not list it any more")
        config = self._config(node)
        if config.python_spec is not None:
            # Imported here because few tasks need it.
            from flowlite.supervise.attempt import bring_python

            config.python_spec = bring_python.bring(
                node, config.python_spec, self.agent, self.paths.packages, self.paths.home
            )
        travels = self.asked.call.get("project")
        # A place that has the directory itself gets no copy of what other places of the task would get.
        if travels and node.settings.workdir is None:
            elsewhere = among.worth if among is not None else lambda _: False
            if not project.bring(node, travels, self.agent, self.paths, self.sending, elsewhere):
                return False
        if among is not None and among.lacks(node, self.agent):
            return False
        node.equip(
            config,
            local_call(self.asked.call),
            self.agent,
            self.paths.secret.read_bytes(),
            self.paths.secrets.read_bytes(),
            self.paths.storage.read_bytes(),
            self._certificate_for(node),
        )
        return True

    def _certificate_for(self, node: Node) -> dict[str, bytes]:
        """Returns the files that encrypt the rendezvous, for one node. Only the leader gets the key."""
        if not self.encrypted:
            return {}
        certificate = certificates.of_attempt(self.paths, self.attempt)
        files = {"rendezvous.crt": certificate.certificate}
        if node.rank == 0 and certificate.key is not None:
            files["rendezvous.key"] = certificate.key
        return files

    def _config(self, node: Node) -> AgentConfig:
        asked, settings = self.asked, node.settings
        gpus = {"count": asked.plan.gpus_per_node, "kind": asked.plan.gpu}
        return AgentConfig(
            task=self.paths.task_id,
            name=self.name,
            attempt=self.attempt,
            instance=node.instance.id,
            roster=[each.instance.id for each in self.nodes],
            processes_per_node=asked.processes_per_node,
            mode=asked.mode,
            call=node_call(asked.call),
            environment=asked.environment,
            workdir=settings.workdir or project.working_directory(settings.home, asked.call),
            python=settings.python,
            gpus=gpus if asked.plan.gpus_per_node else None,
            visible_gpus=settings.visible_gpus,
            volumes=[dict(volume) for volume in settings.volumes],
            stop_signal=asked.stop_signal,
            grace=asked.grace,
            join_timeout=asked.join_timeout,
            max_run_seconds=self.max_run_seconds,
            paid_seconds=self.paid_seconds,
            warm_socket=settings.warm_socket,
            bind=settings.bind or node.instance.address,
            tls=self.encrypted,
            leader_address=self.nodes[0].instance.address,
            ports_dir=settings.ports_dir,
            master_port=settings.master_port,
            cache=settings.cache,
            python_spec=self._python_spec(node),
            container=settings.container,
            mounts=[dict(mount) for mount in asked.mounts],
            checkpoint=asked.checkpoint,
            warm_seconds=max(
                asked.warm_seconds, _WARM_BETWEEN_ATTEMPTS if asked.plan.spares else 0.0
            ),
            spare=self.attempt == SPARE,
            preflight=asked.preflight,
            trace=trace.recording(),
            lease=settings.lease,
            preemption=settings.preemption,
            gang={"cpus": asked.cpus} if asked.mode in distributed_modes.LED else None,
            outputs=list(asked.outputs),
            setup=list(asked.setup),
            setup_seconds=asked.setup_seconds,
            provider=asked.plan.provider,
            size=[asked.plan.fewest_instances, asked.plan.num_instances],
            tells_stoppable=asked.grows_at_checkpoints,
        )

    def _check(self, nodes: Sequence[Node], problems: Sequence[str]) -> None:
        failed = {node: problem for node, problem in zip(nodes, problems, strict=True) if problem}
        if failed:
            told = "; ".join(f"{node.name}: {problem}" for node, problem in failed.items())
            ids = tuple(node.instance.id for node in failed)
            what = "its leader is lost" if self.began else "the agent could not be started"
            raise NotUp(f"{what}: {told}", ids)

    def _look_after_leader(self, leader: Node, waited: float) -> None:
        finding = leader.probe()
        leader.report_seen = leader.report()
        late = waited > _START_SECONDS
        if leader.report_seen is None and (
            finding.life in (ProbeAnswer.DEAD, ProbeAnswer.GONE)
            or (finding.life is ProbeAnswer.ABSENT and late)
        ):
            raise NotUp(f"{leader.name}: {finding.why}")
        if waited > self.asked.join_timeout:
            why = f"did not say within {self.asked.join_timeout:.0f} s where it listens"
            raise NotUp(f"{leader.name}, the leader, {why}", in_time=False)


def _write_awaited(node: Node) -> None:
    # Whether a node can be reached is found out by those who equip it.
    with suppress(ProviderError, OSError):
        node.connection.put(b"", f"{node.settings.home}/{AWAITED}")


def _place_of(leader: Node) -> dict[str, Any] | None:
    return leader.read_json("leader.json")


def node_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the call with its paths on a node, relative to the node's directory."""
    project = call.get("project", {})
    call = {name: value for name, value in call.items() if name != "project"}
    if call.get("kind") != "function":
        return call
    if "main" in project:
        call["main_in_project"] = project["main"]
    source = [{**each, "zip": f"source-{each['sha256']}.zip"} for each in call.get("source", ())]
    return {**call, "bundle": "call.bin", "source": source}
