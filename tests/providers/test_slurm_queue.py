"""One question for all tasks, not too often, and no end that nobody has seen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.errors import ConfigError, ProviderError
from flowlite.settings.provider_settings import ProviderSettings
from provider_adapters.slurm.login import SlurmLogin, SlurmUnreachable
from provider_adapters.slurm.queries.queue import HURRY, QUIET, USUAL, Queue
from provider_adapters.slurm.settings import CLUSTERS, from_environment, read_settings
from tests.providers.slurm_on_paper import Job, PaperSlurm

COMMENT = "flowlite:0123456789abcdef:tabc:call"


@dataclass
class Watched:
    """A queue with a clock of its own."""

    directory: Path
    slurm: PaperSlurm = field(default_factory=PaperSlurm)
    now: float = 1_000_000.0

    def queue(self) -> Queue:
        """What another process has: the same files."""
        login = SlurmLogin("", self.directory, self.slurm)
        return Queue(login, self.directory, lambda: self.now)

    def asked(self, tool: str = "squeue") -> int:
        return sum(call[0] == tool for call in self.slurm.calls)

    def add(self, state: str = "RUNNING", number: str = "7") -> Job:
        job = Job(number, COMMENT, 1, "", state)
        self.slurm.jobs.append(job)
        return job


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_many_who_look_ask_once(watched: Watched) -> None:
    for number in range(7, 27):
        watched.add(number=str(number))
    queues = [watched.queue() for _ in range(20)]
    threads = [
        threading.Thread(target=lambda q=q, n=n: q.find([str(n)]))  # type: ignore[misc]
        for n, q in enumerate(queues, 7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watched.asked() == 1
    call = next(call for call in watched.slurm.calls if call[0] == "squeue")
    assert "--user" in call
    assert "ada" in call


def test_it_is_asked_no_more_often_than_makes_sense(watched: Watched) -> None:
    watched.add()
    queue = watched.queue()
    for _ in range(100):
        queue.jobs()
        watched.now += 0.1
    assert watched.asked() == pytest.approx(10 / USUAL, abs=1)
    # Nothing has changed for a minute.
    watched.now += 60.0
    queue.jobs()
    before = watched.asked()
    for _ in range(100):
        queue.jobs()
        watched.now += 1.0
    assert watched.asked() - before == pytest.approx(100 / QUIET, abs=1)


def test_just_after_a_submission_it_is_asked_more_often(watched: Watched) -> None:
    watched.add()
    queue = watched.queue()
    queue.jobs()
    queue.hurry()
    before = watched.asked()
    for _ in range(30):
        queue.jobs()
        watched.now += 0.1
    assert watched.asked() - before == pytest.approx(3.0 / HURRY, abs=4)
    assert queue.pause() >= 0.1


def test_when_slurm_is_down_not_everybody_asks(watched: Watched) -> None:
    watched.slurm.down = True
    for _ in range(10):
        with pytest.raises(SlurmUnreachable, match="does not answer"):
            watched.queue().jobs()
    assert watched.asked() == 1
    watched.slurm.down = False
    watched.now += USUAL
    assert watched.queue().jobs() == []


def missing(watched: Watched, looks: int, step: float = USUAL) -> str | None:
    """The state of job 7 after so many looks at an empty answer."""
    found = None
    for _ in range(looks):
        watched.now += step
        found = watched.queue().find(["7"])["7"]
    return found.state if found else None


def test_one_empty_answer_is_no_end(watched: Watched) -> None:
    watched.add()
    assert watched.queue().find(["7"])["7"] is not None
    watched.slurm.listed = False
    assert missing(watched, 2) is None
    # Nobody has looked more closely yet.
    assert watched.asked("scontrol") == 0


def test_after_several_slurm_is_asked_for_the_job_itself(watched: Watched) -> None:
    watched.add()
    watched.slurm.listed = False
    assert missing(watched, 3) == "RUNNING"
    assert watched.asked("scontrol") == 1
    # It is there: whoever doubts it again begins anew.
    assert missing(watched, 2) is None


def test_a_job_that_has_ended_long_ago_does_not_keep_slurm_busy(watched: Watched) -> None:
    """As one that Slurm had removed from its memory when it was looked for, after a night of the laptop."""
    watched.add()
    watched.queue().find(["7"])
    watched.slurm.jobs[0].state = "COMPLETED"
    watched.slurm.listed = watched.slurm.known = False
    assert missing(watched, 3) == "COMPLETED"
    for _ in range(120):
        watched.now += 1.0
        watched.queue().jobs()
    before = watched.asked()
    for _ in range(200):
        watched.now += 0.5
        watched.queue().jobs()
    assert watched.asked() - before == pytest.approx(100 / QUIET, abs=1)
    assert missing(watched, 1) == "COMPLETED"
    watched.now += 8 * 86400.0
    watched.queue().jobs()
    assert watched.queue()._read().missed == {}


def test_answers_that_come_close_together_count_once(watched: Watched) -> None:
    watched.add()
    watched.slurm.listed = False
    queue = watched.queue()
    queue.hurry()
    assert missing(watched, 5, step=0.35) is None
    assert watched.asked("scontrol") == 0


def test_a_job_that_slurm_has_forgotten_is_gone_if_the_accounts_say_so(watched: Watched) -> None:
    job = watched.add()
    watched.slurm.listed = watched.slurm.known = False
    # The accounts still have it as running, as after a crash of slurmctld.
    assert missing(watched, 5) is None
    job.state = "FAILED"
    assert missing(watched, 1) == "FAILED"


def test_without_accounts_slurm_knowing_no_such_job_is_enough(watched: Watched) -> None:
    watched.add()
    watched.slurm.listed = watched.slurm.known = watched.slurm.accounts = False
    assert missing(watched, 2) is None
    assert missing(watched, 1) == "COMPLETED"


def test_a_job_that_the_accounts_never_close_is_given_up(watched: Watched) -> None:
    watched.add()
    watched.slurm.listed = watched.slurm.known = False
    assert missing(watched, 40) == "COMPLETED"


def test_a_job_that_is_named_again_was_never_gone(watched: Watched) -> None:
    watched.add()
    watched.slurm.listed = False
    missing(watched, 2)
    watched.slurm.listed = True
    assert missing(watched, 1) == "RUNNING"
    watched.slurm.listed = False
    assert missing(watched, 2) is None


def test_a_broken_file_is_as_good_as_none(watched: Watched) -> None:
    watched.add()
    watched.queue().jobs()
    (watched.directory / "queue-here.json").write_text('{"at":')
    assert [job.id for job in watched.queue().jobs()] == ["7"]


def test_jobs_of_others_are_passed_over(watched: Watched) -> None:
    watched.add().comment = "somebody's"
    assert watched.queue().jobs() == []


# Where the commands are


def test_what_a_login_script_says_does_no_harm(tmp_path: Path) -> None:
    login = SlurmLogin("", tmp_path, PaperSlurm())
    assert login.facts.sbatch == "/opt/slurm/bin/sbatch"
    assert login.facts.uid == 1000
    argv = login.argv("squeue", "-h")
    assert argv[:2] == ["env", "-i"]
    assert argv[-2:] == ["/opt/slurm/bin/squeue", "-h"]
    assert "SLURM_TIME_FORMAT=%s" in argv
    # What starts processes hands its environment on to them.
    assert not [word for word in login.argv("sbatch") if word.startswith(("SLURM_", "LC_"))]


def _install(directory: Path, *tools: str) -> Path:
    directory.mkdir()
    for tool in tools:
        (directory / tool).write_text(f"#!/bin/sh\necho {tool} of {directory.name}\n")
        (directory / tool).chmod(0o755)
    return directory


def test_thousands_of_other_jobs_of_the_user_hide_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _install(tmp_path / "here", "sbatch", "scontrol")
    (tmp_path / "ours").write_text(f"{Job('7', COMMENT, 1, '', 'RUNNING').line()}\n")
    (tmp_path / "other").write_text(Job("8_1", "(null)", 1, "").line())
    squeue = here / "squeue"
    squeue.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/down ] && {{ echo "squeue: error: $(cat {tmp_path}/down)" >&2; exit 1; }}\n'
        f'yes "$(cat {tmp_path}/other)" | head -n 20000\ncat {tmp_path}/ours\n'
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    queue = Queue(SlurmLogin("", tmp_path, LocalConnection()), tmp_path)
    for _ in range(2):
        assert [job.id for job in queue.fresh()] == ["7"]
    (tmp_path / "ours").write_text("")
    assert queue.fresh() == []
    (tmp_path / "down").write_text("Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        queue.fresh()


def test_an_sbatch_of_the_site_may_be_elsewhere_than_the_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = _install(tmp_path / "site", "sbatch")
    slurm = _install(tmp_path / "slurm", "sbatch", "squeue", "scontrol", "sinfo")
    monkeypatch.setenv("PATH", f"{site}:{slurm}:/usr/bin:/bin")
    login = SlurmLogin("", tmp_path / "home", LocalConnection())
    assert login.ask("sbatch") == "sbatch of site\n"
    assert login.ask("sinfo") == "sinfo of slurm\n"


def test_a_squeue_of_the_users_own_stands_for_no_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _install(tmp_path / "own", "squeue")
    slurm = _install(tmp_path / "slurm", "sbatch", "squeue", "scontrol")
    monkeypatch.setenv("PATH", f"{own}:{slurm}:/usr/bin:/bin")
    login = SlurmLogin("", tmp_path / "home", LocalConnection())
    assert login.ask("scontrol") == "scontrol of slurm\n"
    assert login.ask("squeue") == "squeue of slurm\n"


def test_without_sacct_the_queue_decides_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _install(tmp_path / "here", "sbatch", "squeue", "scontrol")
    (here / "squeue").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    queue = Queue(SlurmLogin("", tmp_path / "home", LocalConnection()), tmp_path / "home")
    assert queue.by_comment(COMMENT, "flow-tabc") == []


def test_what_is_set_in_one_shell_does_not_hold_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _install(tmp_path / "here", "sbatch", "squeue")
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")

    def defaults() -> dict[str, str]:
        return SlurmLogin("", tmp_path / "home", LocalConnection()).defaults

    assert defaults() == {}
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    assert defaults() == {"account": "physics"}
    monkeypatch.setenv("SBATCH_ACCOUNT", "chemistry")
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    assert defaults() == {"account": "chemistry", "partition": "short"}


def test_a_configuration_that_is_fetched_is_fetched_from_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _install(tmp_path / "here", "sbatch", "squeue", "scontrol")
    (here / "squeue").write_text('#!/bin/sh\necho "fetched from $SLURM_CONF_SERVER"\n')
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF_SERVER", "head1:6817,head2")
    login = SlurmLogin("", tmp_path / "home", LocalConnection())
    assert login.ask("squeue") == "fetched from head1:6817,head2\n"


def test_the_cluster_that_the_submitting_shell_has_named_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `module load cluster/beta`. Later shells, and other commands, have to ask the same one."""
    here = _install(tmp_path / "here", "sbatch", "squeue", "scontrol")
    (here / "squeue").write_text('#!/bin/sh\necho "asks $SLURM_CLUSTERS"\n')
    (here / "scontrol").write_text('#!/bin/sh\necho "ClusterName             = alpha"\n')
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CLUSTERS", "gamma")
    settings = ProviderSettings("slurm")

    def asked(variables: dict[str, str], settings: ProviderSettings = settings) -> str:
        place = read_settings(from_environment(settings, variables)).place
        return SlurmLogin(place, tmp_path / "home", LocalConnection()).ask("squeue").strip()

    assert asked({"SLURM_CLUSTERS": "beta"}) == "asks beta"
    assert asked({"SLURM_CLUSTERS": "beta", "SBATCH_CLUSTERS": "delta"}) == "asks delta"
    assert asked({}) == "asks"
    # The one that is asked by default is found without slurmdbd.
    assert asked({"SLURM_CLUSTERS": "alpha"}) == "asks"
    set_there = settings.with_value("cluster", "epsilon", "flow.toml")
    assert asked({"SLURM_CLUSTERS": "beta"}, set_there) == "asks epsilon"
    with pytest.raises(
        ConfigError, match="SLURM_CLUSTERS is 'alpha,beta'; give the name of one cluster"
    ):
        asked({"SLURM_CLUSTERS": "alpha,beta"})
    # It says nothing about the clusters of another machine.
    remote = settings.with_value("login", "ada@login", "flow.toml")
    assert read_settings(from_environment(remote, {"SLURM_CLUSTERS": "beta"})).place == "ada@login"


def test_a_cluster_that_cannot_be_looked_up_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _install(tmp_path / "here", "sbatch", "squeue", "scontrol")
    said = (
        "squeue: error: 'beta' can't be reached now, or it is an invalid entry for SLURM_CLUSTERS."
    )
    (here / "squeue").write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    login = SlurmLogin(f"{CLUSTERS}beta", tmp_path / "home", LocalConnection())
    with pytest.raises(SlurmUnreachable, match="cluster beta"):
        login.ask("squeue")
    unknown = f"squeue: error: No cluster 'beta' known by database.\n{said}"
    (here / "squeue").write_text(f'#!/bin/sh\necho "{unknown}" >&2\nexit 1\n')
    with pytest.raises(ProviderError, match="invalid entry") as raised:
        login.ask("squeue")
    assert not isinstance(raised.value, SlurmUnreachable)


def test_what_holds_in_a_job_is_not_taken_for_the_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job, Slurm sets SLURM_CONF to a file of the node. The home is often shared."""
    here = _install(tmp_path / "here", "sbatch", "squeue")
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")

    def conf() -> str:
        login = SlurmLogin("", tmp_path / "home", LocalConnection())
        (found,) = (each for each in login.argv("squeue") if each.startswith("SLURM_CONF="))
        return found

    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    assert conf() == "SLURM_CONF=/etc/slurm/slurm.conf"
    monkeypatch.setenv("SLURM_CONF", "/run/slurm/conf/slurm.conf")
    assert conf() == "SLURM_CONF=/run/slurm/conf/slurm.conf"
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    assert conf() == "SLURM_CONF=/etc/slurm/slurm.conf"


def test_a_machine_without_slurm_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.providers import slurm_on_paper

    monkeypatch.setattr(slurm_on_paper, "_LOGIN", "flowlite:user:ada\n")
    with pytest.raises(ProviderError, match=r'login = "user@cluster" under \[slurm\]'):
        _ = SlurmLogin("", tmp_path, PaperSlurm()).facts
