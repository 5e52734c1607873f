"""Gangs that shrink and grow on a real Slurm: jobs of several sizes, nodes that are lost, and room that comes back."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from flowlite import TaskConfig
from flowlite.api.adapters import adapter
from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.testing.hosts import Host
from flowlite.testing.slurm import SlurmCluster
from provider_adapters.slurm import nodes
from tests.helpers import eventually
from tests.slurm.site import SlurmGang, SlurmSite, shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Says where it is in this attempt, and stays until it may go, or until its attempt is to fail.
SAY = (
    'echo "$FLOW_NODE_RANK of $FLOW_NUM_NODES ($FLOW_NUM_NODES_MIN to $FLOW_NUM_NODES_MAX), '
    'rank $RANK of $WORLD_SIZE, restart $FLOW_RESTART_COUNT on $(hostname)"; '
    "while [ ! -e /mnt/shared/go ]; do [ -e /mnt/shared/fail$FLOW_ATTEMPT ] && exit 3; sleep 0.1; done"
)
_PATIENCE = 300.0
# Stands before the real one, and keeps the answer to one submission back.
_SBATCH = """#!/bin/sh
answer=$(/usr/bin/sbatch "$@"); code=$?
case " $* " in *" --parsable "*)
  echo called >>/mnt/shared/calls
  if [ "$(wc -l </mnt/shared/calls)" = {nth} ]; then
    until [ -e /mnt/shared/answer ]; do sleep 0.1; done
  fi
esac
printf '%s\\n' "$answer"; exit $code
"""
# Slurm's other programs are where `sbatch` is.
_BESIDE = ("srun", "squeue", "scontrol", "scancel", "sacct", "sinfo")


def hosts(gang: SlurmGang, attempt: int, nodes: int) -> list[str]:
    """The hosts of an attempt by rank, once all of its ranks run. Checks what each of them knows of its gang."""
    gang.until(lambda: gang.record.attempt >= attempt, _PATIENCE)
    gang.until(lambda: len(gang.words(attempt)) >= len(gang.record.roster) > 0, _PATIENCE)
    assert gang.record.attempt == attempt, gang.story()
    said = sorted(gang.words(attempt))
    found = [line.rpartition(" on ")[2] for line in said]
    assert said == [
        f"{n} of {nodes} (2 to 4), rank {n} of {nodes}, restart {attempt - 1} on {host}"
        for n, host in enumerate(found)
    ]
    assert len(found) == len(set(found)) == len(gang.record.roster) == nodes
    return found


def jobs(gang: SlurmGang) -> list[int]:
    """How many nodes each job of the gang has, in the order of the jobs."""
    found = Counter(int(name.partition(".")[0]) for name in gang.record.roster)
    return [count for _, count in sorted(found.items())]


def named(slurm: SlurmCluster, name: str) -> Host:
    return next(host for host in slurm.nodes if host.name == name)


def test_it_begins_with_what_there_is_shrinks_and_grows(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    slurm.drain(slurm.nodes[3])
    gang = slurm_site.submit(
        shell(SAY), nodes=(2, 4), settle_seconds=2, heal_seconds=2, retries={"max_retries": 1}
    )
    first = hosts(gang, 1, 3)
    assert first == [host.name for host in slurm.nodes[:3]]
    # The job for a fourth node was withdrawn.
    assert slurm.jobs() == [gang.job]

    roster = list(gang.record.roster)
    slurm.kill_node(named(slurm, first[1]))
    second = hosts(gang, 2, 2)
    assert second == [first[0], first[2]]
    # The job goes on with the nodes that are left.
    before = list(gang.record.roster)
    assert before == [roster[0], roster[2]]
    assert gang.record.retries_used == 0, gang.story()
    assert first[1] in gang.story()

    slurm.revive(named(slurm, first[1]))
    slurm.undrain(slurm.nodes[3])
    free = {first[1], slurm.nodes[3].name}
    slurm.wait(lambda: {slurm.states()[name] for name in free} == {"idle"}, "both are free", 120)
    (slurm.shared / "fail2").touch()
    third = hosts(gang, 3, 4)
    assert third[:2] == second
    assert set(third[2:]) == free
    assert gang.record.roster[:2] == before
    assert jobs(gang) == [2, 2]
    slurm_site.go()
    assert gang.end().retries_used == 1
    assert slurm.jobs() == []


def test_the_host_of_the_script_is_lost_and_another_job_takes_what_is_left(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    slurm.drain(slurm.nodes[3])
    gang = slurm_site.submit(shell(SAY), nodes=(2, 4), settle_seconds=2, heal_seconds=2)
    first = hosts(gang, 1, 3)
    job = gang.job
    slurm.kill_node(named(slurm, first[0]))
    assert hosts(gang, 2, 2) == first[1:]
    # Slurm may notice the dead host, and end the jobs that had it, later than the gang goes on.
    eventually(lambda: slurm.jobs() == [gang.job])
    assert gang.job != job
    assert gang.record.retries_used == 0, gang.story()
    slurm_site.go()
    gang.end()
    assert slurm.jobs() == []


def test_a_node_that_comes_while_it_waits_is_taken_and_its_loss_leaves_the_others(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    slurm.drain(slurm.nodes[0])
    gang = slurm_site.submit(shell(SAY), nodes=(2, 4), settle_seconds=900, heal_seconds=2)
    gang.until(lambda: len(slurm.jobs()) == 2, _PATIENCE)
    assert gang.record.state == "provisioning", gang.story()
    slurm.undrain(slurm.nodes[0])
    first = hosts(gang, 1, 4)
    assert jobs(gang) == [3, 1]
    before = dict(zip(first, gang.record.roster, strict=True))
    assert list(before.values()) == sorted(before.values())

    slurm.kill_node(slurm.nodes[0])
    second = hosts(gang, 2, 3)
    del before[slurm.nodes[0].name]
    assert second == list(before)
    assert gang.record.roster == list(before.values())
    assert gang.record.retries_used == 0, gang.story()
    slurm_site.go()
    gang.end()
    assert slurm.jobs() == []


def test_a_node_that_does_not_answer_is_waited_for_until_slurm_notices(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    gang = slurm_site.submit(shell(SAY), nodes=(2, 4), heal_seconds=2)
    first = hosts(gang, 1, 4)
    job, roster = gang.job, list(gang.record.roster)
    slurm.kill_node(named(slurm, first[2]))
    with slurm.enter_laptop():
        provider = adapter("slurm")
        (lost,) = [each for each in provider.list_instances(gang.id) if each.id == roster[2]]
        # As the supervisor gives a node up.
        provider.terminate([replace(lost, state="unreachable")])
        listed = {each.id: each.state for each in provider.list_instances(gang.id)}
    # On a busy machine, Slurm may have noticed already.
    assert listed[roster[2]] in ("ending", "ended")
    assert {listed[name] for name in roster if name != roster[2]} == {"running"}
    second = hosts(gang, 2, 3)
    assert second == [first[0], first[1], first[3]]
    assert gang.record.roster == [roster[0], roster[1], roster[3]]
    assert slurm.job(job)["NumNodes"] == "3"
    slurm_site.go()
    gang.end()
    assert slurm.jobs() == []


def test_a_gang_with_too_few_nodes_waits_and_leaves_nothing(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    for host in slurm.nodes[1:]:
        slurm.drain(host)
    gang = slurm_site.submit(shell(SAY), nodes=(2, 4))
    gang.until(lambda: slurm.jobs("PENDING"), _PATIENCE)
    assert slurm.jobs("RUNNING") == []
    gang.store.request_cancel(gang.id)
    gang.end("cancelled")
    assert slurm.jobs() == []


@pytest.fixture
def late_answer(slurm: SlurmCluster) -> Iterator[Callable[[int], None]]:
    """Keeps the answer to the nth submission back, until there is a file `answer`."""
    programs = slurm.head.root / "usr" / "local" / "bin"

    def keep_back(nth: int) -> None:
        (programs / "sbatch").write_text(_SBATCH.format(nth=nth))
        (programs / "sbatch").chmod(0o755)
        for name in _BESIDE:
            (programs / name).symlink_to(f"/usr/bin/{name}")

    yield keep_back
    (slurm.shared / "answer").touch()
    for name in ("sbatch", *_BESIDE):
        (programs / name).unlink(missing_ok=True)


@pytest.mark.parametrize("nth", [1, 2], ids=["first", "further"])
def test_a_supervisor_killed_before_it_has_the_answer_leaves_one_job(
    slurm_site: SlurmSite,
    slurm: SlurmCluster,
    late_answer: Callable[[int], None],
    nth: int,
) -> None:
    late_answer(nth)
    slurm.drain(slurm.nodes[3])
    gang = slurm_site.submit(shell(SAY), nodes=(2, 4), settle_seconds=900)
    calls = slurm.shared / "calls"
    gang.until(lambda: calls.exists() and calls.read_text().count("called") == nth, _PATIENCE)
    gang.kill_supervisor()
    (slurm.shared / "answer").touch()
    gang.wait("starting", "provisioning")
    gang.until(lambda: calls.read_text().count("called") == 2, _PATIENCE)
    slurm.undrain(slurm.nodes[3])
    gang.wait("running", timeout=_PATIENCE)
    assert hosts(gang, 1, 4) == [host.name for host in slurm.nodes]
    assert jobs(gang) == [3, 1]
    assert len(slurm.jobs()) == calls.read_text().count("called") == 2
    slurm_site.go()
    gang.end()
    assert slurm.jobs() == []


# Each rank says where it begins and where it stops. A file on the shared file system is the checkpoint.
STEPS = """
import os, time
from pathlib import Path
from flowlite import should_stop
shared, rank = Path("/mnt/shared"), os.environ["RANK"]
saved = shared / "step"
step = int(saved.read_text()) if saved.exists() else 0
print(rank, "of", os.environ["WORLD_SIZE"], "from", step, flush=True)
while not (shared / "go").exists():
    step += 1
    if should_stop():
        if rank == "0":
            partial = saved.with_suffix(".part")
            partial.write_text(str(step))
            partial.rename(saved)
        break
    time.sleep(0.05)
"""


def test_it_grows_where_the_program_asks_whether_to_stop(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    for host in slurm.nodes[2:]:
        slurm.drain(host)
    gang = slurm_site.submit(
        [sys.executable, "-c", STEPS],
        nodes=(2, 3),
        settle_seconds=0.1,
        heal_seconds=0.1,
        grow="checkpoint",
    )
    gang.until(lambda: len(gang.words(1)) == 2, _PATIENCE)
    before, job = gang.record.roster, gang.job
    slurm.undrain(slurm.nodes[2])
    gang.until(lambda: gang.record.attempt == 2 and len(gang.words(2)) == 3, _PATIENCE)
    step = (slurm.shared / "step").read_text()
    assert sorted(gang.words(2)) == [f"{n} of 3 from {step}" for n in range(3)]
    assert gang.record.roster[:2] == before
    assert jobs(gang) == [2, 1]
    assert job in slurm.jobs()
    slurm_site.go()
    assert gang.end().retries_used == 0
    assert slurm.jobs() == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_node_that_fails_before_it_is_met_is_gone_on_without(
    slurm_site: SlurmSite, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    slurm.drain(slurm.nodes[3])
    lost, meet = slurm.nodes[number], nodes.meet
    begun: list[str] = []

    def meet_others(login: Any, places: Sequence[Any], data: Any) -> list[Any]:
        """One host does not answer, as if it had failed a moment ago."""
        begun.extend(each.host for each in places)
        others = iter(meet(login, [each for each in places if each.host != lost.name], data))
        return ["it is silent" if each.host == lost.name else next(others) for each in places]

    monkeypatch.setattr(nodes, "meet", meet_others)
    with slurm.enter_laptop():
        config = TaskConfig(command="true", num_instances=(2, 4), cpu=1)
        plan = {**adapter("slurm").plan(config).to_json(), "min_instances": 2}
        agent = {"agent": str(build_agent_zip(slurm_site.home).path)}
        intent = LaunchIntent("tlost-launch-1", "tlost", 4, plan, agent, least=2)

        def launched() -> list[Instance] | None:
            with suppress(LaunchPending):
                # Another process each time: it has nothing but the ledger.
                return adapter("slurm").launch(intent)
            return None

        def is_waited_for() -> bool:
            assert launched() is None
            return lost.name in begun

        slurm.wait(is_waited_for, "the job runs, and one node is silent", _PATIENCE)
        slurm.kill_node(lost)
        found = slurm.wait(launched, "the launch goes on without it", _PATIENCE)
        left = [n for n in range(3) if n != number]
        assert [each.data["host"] for each in found] == [slurm.nodes[n].name for n in left]
        assert [each.data["nodeid"] for each in found] == left
        assert f"without {lost.name}" in found[0].note
        provider = adapter("slurm")
        for each in found:
            with provider.connect(each) as connection:
                assert connection.run(["hostname"]).stdout.decode().strip() == each.data["host"]
        assert {each.state for each in provider.list_instances("tlost")} == {"running"}
        provider.terminate(found)
        slurm.wait(lambda: not slurm.jobs(), "the job has ended", _PATIENCE)
