"""Launches one job for all nodes of an intent: it is submitted once, then checked until it runs or fails.

A launch is called repeatedly with the same token and does not block. Its state is in the ledger:

    frozen      what the job is made from: partition, options, paths
    calls       the jobs; the last one that was not dropped counts. A job requeued after a preemption is taken over
    notes       "given": the nodes that were handed out, "restart": of which run of the job they were,
                "given_up": those that did not answer, "taken_out": those that the job has lost,
                "hosts": a run of the job, and its hosts at its start, "unmet": those of them that never answered,
                "short": the job that was cancelled to ask for less time, "reduced": how often less was asked for

A gang that shrinks and grows may have several launches, and so several jobs. Each is content with fewer nodes than it
asks for (`sbatch --nodes=2-8`), goes on when one of them fails, and excludes the hosts of the others.
"""

from __future__ import annotations

import base64
import gzip
import random
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.agent_program import built_last
from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.state import clock
from provider_adapters.rented.gang_fit import fits
from provider_adapters.rented.ledger import Call, Launch
from provider_adapters.slurm import shared
from provider_adapters.slurm.arrays import limit
from provider_adapters.slurm.context import is_of, job_name
from provider_adapters.slurm.first_contact import FirstContact
from provider_adapters.slurm.kept_jobs import PATIENCE_SECONDS
from provider_adapters.slurm.launch_notes import (
    frozen_of,
    given,
    run_of,
    taken_out,
    unmet,
)
from provider_adapters.slurm.queries import parse, state_words
from provider_adapters.slurm.queries.refusals import TooManySubmitted
from provider_adapters.slurm.script import Script, StepWrapper, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from provider_adapters.rented.kept_gangs import KeptGangs
    from provider_adapters.slurm.arrays import Arrays
    from provider_adapters.slurm.context import SlurmContext
    from provider_adapters.slurm.ending import Ending
    from provider_adapters.slurm.job_submission import JobSubmission
    from provider_adapters.slurm.kept_jobs import JobNodes
    from provider_adapters.slurm.queries.parse import Job

# The step daemons end by themselves this many seconds before Slurm's own limit.
_BEFORE_LIMIT = 20.0
_NOT_SHARED = 104
_RESTART_SECONDS = 2
# How often a job is released that nodes could not start. It may be the job that they cannot start.
_MOST_RELEASES = 3
# A busy cluster tries a new job when it plans again, every 30 s (`bf_interval`) unless configured otherwise.
_UNTRIED_SECONDS = 30.0
# How long a limit of submitted jobs is believed if none of them ends: others may have ended, or it was raised.
_FULL_SECONDS = 120.0
_FULL_PAUSE = 10.0


class Launching:
    """The launches of one FLOW_HOME."""

    def __init__(
        self,
        place: SlurmContext,
        submission: JobSubmission,
        ending: Ending,
        arrays: Arrays,
        nodes: JobNodes,
        kept: KeptGangs,
    ) -> None:
        self._place = place
        self._submission = submission
        self._ending = ending
        self._arrays = arrays
        self._nodes = nodes
        self._kept = kept
        self._first_contact = FirstContact(place, ending)
        # How many jobs were submitted when Slurm took no more, since when, and its words.
        self._full: tuple[int, float, TooManySubmitted | None] = (0, 0.0, None)

    def run(self, intent: LaunchIntent) -> list[Instance]:
        """All nodes of an intent, as soon as all of them answer.

        Raises:
            LaunchPending: Not yet; the job is pending or starting.
            ProviderError: The launch failed; nothing of it continues.
        """
        ledger = self._place.ledger
        if ledger.read(intent.token) is None:
            self._arrays.forget_old_daily()
        with ledger.hold(intent.token):
            if ledger.read(intent.token) is None:
                if found := self._taken_over(intent):
                    return found
                self._check_room(intent)
            launch = ledger.begin(
                intent.token, intent.task_id, intent.count, lambda: self._freeze(intent)
            )
            if launch.ended or launch.notes.get("ending"):
                raise ProviderError(f"the launch {intent.token} has been ended before")
            call = self._job(launch)
            return self._look(ledger.read(intent.token) or launch, call)

    # The job of another task

    def _taken_over(self, intent: LaunchIntent) -> list[Instance]:
        """The nodes that another task has kept for one like this, if there are some; else an empty list."""
        kept = self._kept
        if kept.held_by(intent) is None and self._may_have_nodes(intent):
            return []
        jobs = KeptJobs(
            kept,
            self._nodes,
            self._ending,
            Plan.from_json(intent.plan).options["minutes"],
            _program(self._place.home, intent.preload.get("agent")).stem,
        )
        return kept.take_over(intent, fits(intent), jobs, patience=PATIENCE_SECONDS)

    def _may_have_nodes(self, intent: LaunchIntent) -> bool:
        """Whether a job of the task may have nodes, or get some, such as one that Slurm has queued again."""
        return any(
            not (each.ended or each.notes.get("ending"))
            for each in self._place.ledger.launches(intent.task_id)
        )

    # Decided once

    def _freeze(self, intent: LaunchIntent) -> dict[str, Any]:
        plan = Plan.from_json(intent.plan)
        options, settings = plan.options, self._place.settings
        login = self._place.login(options["login"])
        facts = login.facts
        program = _program(self._place.home, intent.preload.get("agent"))
        place = shared.expanded(settings.shared_dir or "~/.flowlite-slurm", facts.home, facts.uid)
        asked = {name.replace("-", "_"): value for name, value in options["directives"]}
        return {
            "login": login.written,
            "directives": options["directives"],
            "extra": options["extra"],
            "requeue": options["requeue"],
            "array": options.get("array"),
            "cpus": options["cpus"],
            "least": intent.least,
            "beside": intent.beside,
            "elastic": plan.fewest_instances < plan.num_instances,
            "minutes": options["minutes"],
            "limit": options.get("limit", options["minutes"]),
            "bare": options.get("bare", options["minutes"]),
            "grace": options.get("grace", 0.0),
            **({"fits": fitting} if (fitting := fits(intent)) else {}),
            "container": options["step_container"],
            "asked": asked,
            "volumes": [each["name"] for each in options["volumes"]],
            "shared": place if settings.shared_dir else "",
            "login_dir": place,
            "node_dir": shared.expanded(settings.node_dir, facts.home, facts.uid),
            "pythons": _pythons(settings.python, options.get("minor")),
            "program": program.stem,
            "agent": str(program),
            "nonce": secrets.token_hex(8),
            "lease": max(settings.lease, float(options.get("waits", 0.0)) + 120.0),
            "signal_seconds": settings.signal_seconds,
        }

    # The job

    def _job(self, launch: Launch) -> Call:
        """The call whose job counts; submits a job if there is none."""
        again = None
        if (call := launch.open_call) is not None:
            if not self._submission.settle(launch, repeat=True):
                again = call
            launch = self._place.ledger.read(launch.token) or launch
            self._submission.confirm(launch)
        if launch.current is not None:
            return launch.current
        if again is None and (adopted := self._adopt(launch)) is not None:
            return adopted
        try:
            return self._element(launch) or self._submit(launch, again)
        except TooManySubmitted as error:
            submitted = self._submitted(launch.frozen["login"])
            if not submitted or launch.notes.get("doubtful"):
                # None of them is ours, or the limit allows none at all.
                raise
            self._full = (submitted, clock.now(), error)
            # It is asked again from the beginning, since another task may keep its job for this one meanwhile.
            self._ending.drop(launch)
            raise _no_room(error) from error

    def _element(self, launch: Launch) -> Call | None:
        """The element of an array that is this launch's; None if it gets a job of its own."""
        if launch.calls:
            return None
        try:
            return self._arrays.bind(launch, self.script)
        except TooManySubmitted:
            # The array has more elements than jobs may be submitted. Its tasks are submitted one after another, unless
            # only Slurm holds them to the number that may run at a time.
            asked = launch.frozen["array"]
            if limit(asked, int(asked["size"])):
                raise
            return None

    def _submitted(self, login: str) -> int:
        """How many jobs of flowlite the user has submitted that have not ended."""
        jobs = self._place.queue(login).jobs()
        return sum(job.state not in state_words.ENDED for job in jobs)

    def _check_room(self, intent: LaunchIntent) -> None:
        """Raises CapacityUnavailable while as many jobs are submitted as when Slurm took no more.

        Otherwise each task of a sweep would ask slurmctld again and again.
        """
        submitted, since, error = self._full
        if error is None or not 0 <= clock.now() - since < _FULL_SECONDS:
            return
        if self._submitted(Plan.from_json(intent.plan).options["login"]) >= submitted:
            raise _no_room(error)

    def _submit(self, launch: Launch, again: Call | None) -> Call:
        frozen, ledger = launch.frozen, self._place.ledger
        login = self._place.login(frozen["login"])
        proved = bool(frozen["shared"]) and self._place.proof(frozen["login"]).of(frozen["shared"])
        program = Path(frozen["agent"])
        shared.bring(login, frozen["login_dir"], program, frozen["program"], frozen["nonce"])
        if frozen["volumes"]:
            shared.make_volumes(login, frozen["shared"], frozen["volumes"])
        where = str(frozen["asked"].get("partition", "")) or "the default partition"
        asked = {"proved": bool(proved), "exclude": sorted(self._hosts_beside(launch))}
        call = again or ledger.intend(launch.token, where, asked)
        # A repeated submission must be identical.
        embedded, exclude = not call.parameters["proved"], call.parameters.get("exclude", ())
        text = self.script(launch, call.name, embedded=embedded, exclude=exclude)
        try:
            return self._submission.submit(launch, call, text)
        except (LaunchPending, TooManySubmitted):
            raise
        except ProviderError as error:
            if not _may_ask_for_less(launch, str(error)):
                raise
            ledger.note(launch.token, reduced=_reduced(launch) + 1)
            raise LaunchPending(f"{error}; it is asked for less time", 0.1) from error

    def script(
        self,
        launch: Launch,
        name: str,
        *,
        embedded: bool,
        array: str = "",
        exclude: Sequence[str] = (),
    ) -> str:
        """The batch script of a call.

        Args:
            exclude: Hosts that the job must not have, besides those that the user excludes.
        """
        frozen = launch.frozen
        least = frozen["minutes"]
        minutes = _times(launch)[_reduced(launch)]
        content = Path(frozen["agent"]).read_bytes() if embedded else b""
        return render(
            Script(
                name=job_name(launch.task),
                comment=self._place.comment(launch.task, name),
                nodes=launch.count,
                fewest=int(frozen.get("least", 0)),
                node_dir=frozen["node_dir"],
                program=frozen["program"],
                lease=frozen["lease"],
                cpus=frozen["cpus"],
                options=_without(exclude, frozen["directives"]),
                extra=tuple(frozen["extra"]),
                minutes=minutes,
                least_minutes=least if minutes and least < minutes else None,
                signal_seconds=frozen["signal_seconds"],
                requeue=frozen["requeue"],
                embedded=packed(content) if embedded else "",
                shared=frozen["shared"],
                nonce=frozen["nonce"],
                python=frozen["pythons"],
                deadline=minutes * 60 - _BEFORE_LIMIT if minutes else 0.0,
                array=array,
                wrap=_wrap(frozen),
            )
        )

    def _adopt(self, launch: Launch) -> Call | None:
        """Takes over a requeued job of the same task, if there is one. Ends one that asks for other nodes."""
        ledger = self._place.ledger
        for other in self._others(launch):
            call = other.current
            if call is None:
                continue
            job = self._find(other, call)
            if job is None or job.state in state_words.ENDING or _is_taken(other, job):
                # It may still be requeued.
                raise self._wait(other, f"it is not certain yet what became of job {call.ids[0]}")
            if job.state in state_words.ENDED or job.restarts <= run_of(other):
                continue
            if launch.frozen.get("beside"):
                # The gang that runs has lost it, and its next attempt decides what becomes of it.
                text = f"job {call.ids[0]} of the gang was queued again"
                raise self._wait(other, text, queued=True)
            if not self._is_alike(launch, other, call):
                # It would bring more nodes than the gang lacks, or wait for more than it needs.
                self._ending.end(other)
                continue
            mine = ledger.intend(launch.token, call.where, {"adopt": call.ids[0]})
            detail = {"frozen": frozen_of(other, call)}
            made = ledger.made(launch.token, mine.name, [call.ids[0]], detail)
            ledger.note(other.token, passed_on=launch.token)
            return made.call(mine.name)
        return None

    def _is_alike(self, launch: Launch, other: Launch, call: Call) -> bool:
        """Whether the job of another launch is what this launch would submit."""
        bounds = [(each.count, each.frozen.get("least", 0)) for each in (launch, other)]
        beside = self._hosts_beside(launch, other.token)
        return bounds[0] == bounds[1] and beside <= set(call.parameters.get("exclude", ()))

    def _hosts_beside(self, launch: Launch, but: str = "") -> set[str]:
        """The hosts of the task's other jobs, without that of the launch `but`: no two nodes of a gang share a host."""
        if not launch.frozen.get("elastic"):
            # Such a task has one job at a time. The job before this one has ended, even if that is not noted yet.
            return set()
        others = [each for each in self._others(launch) if each.token != but]
        theirs = {
            str(node.data["host"])
            for each in others
            for node in given(each)
            if node.id not in taken_out(each)
        }
        return theirs.union(*(unmet(each) for each in others))

    def _others(self, launch: Launch) -> list[Launch]:
        """The task's other launches whose jobs may have nodes."""
        return [
            each
            for each in self._place.ledger.launches(launch.task)
            if each.token != launch.token
            and not (each.ended or each.notes.get("ending") or each.notes.get("passed_on"))
        ]

    def _start_now(self, launch: Launch, job: Job) -> None:
        """Starts a requeued job early: Slurm delays it by two minutes, which is not needed here.

        One that a node could not start, as after a prolog that failed, is held until somebody releases it. Slurm has
        drained that node.
        """
        self._place.ledger.note(launch.token, hurried=job.restarts)
        login = self._place.login(launch.frozen["login"])
        # Not in the very second of its end: nodes would still take it for the run that they were told to kill.
        login.try_("scontrol", "update", f"jobid={job.id}", f"starttime=now+{_RESTART_SECONDS}")
        if state_words.not_launched(job.reason) and job.restarts <= _MOST_RELEASES:
            login.try_("scontrol", "release", job.id)
        self._place.queue(launch.frozen["login"]).hurry()

    # Checking the job

    def _find(self, launch: Launch, call: Call) -> Job | None:
        return self._place.find(launch, [call.ids[0]])[call.ids[0]]

    def _look(self, launch: Launch, call: Call) -> list[Instance]:
        job = self._find(launch, call)
        number = call.ids[0]
        if job is None:
            raise self._wait(launch, f"job {number} was submitted, and is not listed yet")
        if job.state in state_words.ENDED:
            raise self._ended(launch, call, job)
        if state_words.begins(job.state):
            raise self._wait(launch, f"job {number} has its nodes, which boot or are made ready")
        if job.state in state_words.WAITING:
            if state_words.too_long(job.reason) and _may_ask_for_less(launch, job.reason):
                raise self._ask_for_less_time(launch, job)
            if state_words.hopeless(job.reason):
                self._ending.end(launch)
                raise ProviderError(
                    f"job {number} would wait for ever and was cancelled: {state_words.waits(job.reason)}"
                )
            if job.restarts and launch.notes.get("hurried") != job.restarts:
                self._start_now(launch, job)
            text = f"job {number} waits: {state_words.waits(job.reason)}"
            raise self._wait(launch, text, queued=not self._may_start_at_once(launch, call, job))
        if job.state in state_words.RUNNING:
            if given(launch) and job.restarts == run_of(launch):
                return given(launch)
            if job.state in state_words.SUSPENDED:
                raise self._wait(launch, f"job {number} is suspended by Slurm")
            return self._first_contact.run(launch, call, job)
        raise self._wait(launch, f"job {number} is {job.state.lower()}")

    def _ask_for_less_time(self, launch: Launch, job: Job) -> LaunchPending:
        """Cancels a job that waits for ever for its time. Another is submitted once it has ended."""
        login = self._place.login(launch.frozen["login"])
        self._place.ledger.note(launch.token, short=job.id, reduced=_reduced(launch) + 1)
        login.try_("scancel", "--state=PENDING", job.id)
        self._place.queue(launch.frozen["login"]).hurry()
        return self._wait(launch, f"job {job.id} asks for more time than it may have: {job.reason}")

    def _may_start_at_once(self, launch: Launch, call: Call, job: Job) -> bool:
        """Whether a job that a gang does not need may start, although it waits: Slurm has not tried it yet."""
        young = clock.now() - call.at < _UNTRIED_SECONDS
        return bool(launch.frozen.get("elastic")) and young and state_words.untried(job.reason)

    def _ended(self, launch: Launch, call: Call, job: Job) -> ProviderError:
        """The error for a job that has ended, before or after its nodes were handed out."""
        queue, ledger = self._place.queue(launch.frozen["login"]), self._place.ledger
        shown = queue.shown(job.id)
        code, said = parse.refusal(shown[1]) if shown and is_of(launch, shown[0]) else (None, "")
        if launch.notes.get("short") == job.id:
            ledger.made(launch.token, call.name, call.ids, {"dropped": True})
            return LaunchPending(f"job {job.id} was cancelled; another is submitted", 0.1)
        if code == _NOT_SHARED and not given(launch):
            # The directory was shared once; the next job carries the program again.
            self._place.proof(launch.frozen["login"]).forget()
            ledger.made(launch.token, call.name, call.ids, {"dropped": True})
            return LaunchPending(
                f"job {job.id}: {state_words.CODES[code]}; another is submitted", 0.5
            )
        self._ending.end(launch)
        return ProviderError(f"job {job.id}: {state_words.end(job.state, code, job.reason, said)}")

    def _wait(self, launch: Launch, text: str, *, queued: bool = False) -> LaunchPending:
        pause = self._place.queue(launch.frozen["login"]).pause()
        return LaunchPending(text, retry_after=pause, queued=queued)


# State of a launch


class KeptJobs:
    """Jobs that other tasks have kept, for one launch: as `GangCloud`."""

    def __init__(
        self, kept: KeptGangs, nodes: JobNodes, ending: Ending, minutes: int | None, program: str
    ) -> None:
        """
        Args:
            minutes: For how long the task runs at most; None if it does not say.
            program: The hash of the node's program.
        """
        self._kept = kept
        self._nodes = nodes
        self._ending = ending
        self._minutes = minutes
        self._program = program

    def is_suitable(self, launch: Launch) -> bool:
        """As `GangCloud.is_suitable`."""
        if launch.frozen["program"] != self._program:
            return False
        left = self._nodes.time_left(launch)
        if not self._nodes.are_wanted(launch):
            return False
        if left is None:
            return True
        # Without a time of its own, a task takes as long as those before it, as far as can be told.
        wanted = left[1] if self._minutes is None else self._minutes * 60
        return left[0] >= wanted > 0

    def running(self, launch: Launch) -> list[Instance]:
        """As `GangCloud.running`."""
        return self._nodes.running(launch)

    def end(self, launch: Launch) -> None:
        """As `GangCloud.end`. A job that Slurm does not end now ends by itself."""
        with suppress(ProviderError):
            if self._kept.to_end(given(launch)):
                self._ending.end(launch)


def _no_room(error: TooManySubmitted) -> CapacityUnavailable:
    """The error of a launch that waits for other jobs of the user to end."""
    # Not all tasks of a sweep at the same time.
    pause = _FULL_PAUSE * random.uniform(0.5, 1.5)
    return CapacityUnavailable(f"{error}. It is submitted when others have ended", pause)


def _times(launch: Launch) -> list[int | None]:
    """The minutes that its job may ask for, the most first; None for no time."""
    least = launch.frozen["minutes"]
    wanted = (launch.frozen.get("limit", least), least, launch.frozen.get("bare", least))
    return list(dict.fromkeys(wanted))


def _reduced(launch: Launch) -> int:
    """How many times of `_times` were too long, as far as Slurm has said."""
    return min(int(launch.notes.get("reduced", 0)), len(_times(launch)) - 1)


def _may_ask_for_less(launch: Launch, why: str) -> bool:
    """Whether its job may ask for less time, after Slurm's words on the one that it has asked for.

    More than the task needs, so that another task can take the job over, is given up for any reason. What is around
    the time of the workers is given up only where a limit of time is the reason: without it, a task that takes all of
    its time is ended by Slurm, perhaps before all of its files are fetched.
    """
    times, reduced = _times(launch), _reduced(launch)
    if reduced + 1 >= len(times):
        return False
    return times[reduced] != launch.frozen["minutes"] or state_words.is_about_time(why)


def _is_taken(launch: Launch, job: Job) -> bool:
    """Whether Slurm is about to preempt the run whose nodes were handed out."""
    return (
        bool(job.taken_at) and job.state in state_words.RUNNING and job.restarts == run_of(launch)
    )


def _without(
    hosts: Sequence[str], directives: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Options of `sbatch` that exclude these hosts, too."""
    options = dict(directives)
    if hosts:
        options["exclude"] = ",".join(filter(None, (options.get("exclude", ""), *hosts)))
    return tuple(options.items())


def packed(program: bytes) -> str:
    """A program encoded for the batch script; the same program gives the same text."""
    # Level 9 takes six times as long, half a second for each job, and gives one percent less.
    text = base64.b64encode(gzip.compress(program, 6, mtime=0)).decode()
    return "\n".join(text[begin : begin + 76] for begin in range(0, len(text), 76))


def _wrap(frozen: dict[str, Any]) -> StepWrapper:
    if not frozen["container"]:
        return StepWrapper()
    from provider_adapters.slurm import containers

    mounts = [each for each in (frozen["node_dir"], frozen["shared"]) if each]
    return containers.wrap(frozen["container"]["kind"], frozen["container"]["image"], mounts)


def _pythons(setting: str, minor: str | None) -> str:
    """Pythons to try first, separated by spaces."""
    import sys

    here = sys.executable
    found = [setting] if setting else ([here] if here and not set(here) & set(" '\"$*?[") else [])
    return " ".join([*found, *([f"python{minor}"] if minor else [])])


def _program(home: Path, given_path: str | None) -> Path:
    """The node's program of a launch, else the one that was built last."""
    if given_path and Path(given_path).exists():
        return Path(given_path)
    return built_last(home)
