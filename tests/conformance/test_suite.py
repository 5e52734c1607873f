"""The suite itself: a sound adapter passes it (`test_pages` runs the page's own), and flaws are found."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.errors import ConfigError
from flowlite.provider import Instance
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "providers" / "writing-an-adapter.md"
# What is changed in the page's adapter, into what, and the test that must notice.
FLAWS = {
    "a token launches again": (
        "if intent.token not in held:",
        "again = f'{intent.token}-{len(held)}'\n"
        "            intent = type(intent)(again, intent.task_id, intent.count, intent.plan)\n"
        "            if True:",
        # The ids come from the token; a launch that forgets it makes others.
        "test_the_same_token_never_launches_twice",
    ),
    "some nodes instead of none": (
        'raise CapacityUnavailable(f"{there} of {self.most} folders are taken", 0.5)',
        "intent = type(intent)(intent.token, intent.task_id, self.most - there, intent.plan)",
        "test_it_is_all_or_none",
    ),
    "a listing that forgets": (
        "return [each for each in found if task_id in (None, each.task_id)]",
        "return [each for each in found if task_id == each.task_id]",
        "test_the_listing_is_what_there_is",
    ),
    "a listing that mixes tasks up": (
        "return [each for each in found if task_id in (None, each.task_id)]",
        "return found",
        "test_tasks_are_kept_apart",
    ),
    "an end that leaves processes": (
        "processes.send(pid, signal.SIGKILL)",
        "processes.send(pid, signal.SIGCONT)",
        "test_what_runs_on_a_node_ends_with_it",
    ),
    "an end that takes the others along": (
        "[name for name in ids if name != instance.id]",
        "[name for name in ids if not name.startswith(instance.task_id)]",
        "test_the_end_of_one_node_is_not_the_end_of_the_others",
    ),
    "an option that is ignored": (
        "for option in refused:",
        'for option in ("image",):',
        "test_an_option_that_cannot_be_honoured_is_refused_by_its_name",
    ),
    "an option of the workers that is ignored": (
        '{"workdir": wanted.directory_on_node}',
        '{"workdir": None}',
        "test_an_option_of_the_workers_is_not_ignored",
    ),
    "a connection that cuts what it reads": (
        "return LocalConnection()",
        "c = LocalConnection(); c.read = lambda p, o=0: iter([open(p, 'rb').read()[o:-1]]); return c",
        "test_a_file_is_read_from_an_offset",
    ),
}


def files_of_the_page() -> dict[str, str]:
    found = {}
    for block in blocks_of(PAGE):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            found[named[1]] = block.text
    return found


def run(
    directory: Path, test: str, files: dict[str, str], seconds: float = 110
) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (directory / name).write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    # What our own run was told, such as to run again what fails, is none of its business.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_folders.py", "-k", test],
        cwd=directory,
        env={
            **environment,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{directory}",
            # The suite needs no plugin, and Hypothesis alone takes more than the rest of the start.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("right", "wrong", "test"), FLAWS.values(), ids=FLAWS.keys())
def test_a_flaw_is_found(right: str, wrong: str, test: str, tmp_path: Path) -> None:
    files = files_of_the_page()
    assert files["folders.py"].count(right) == 1
    files["folders.py"] = files["folders.py"].replace(right, wrong)
    done = run(tmp_path, test, files)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^FAILED .*{test}", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_adapter_of_the_page_passes_the_whole_suite(tmp_path: Path) -> None:
    """Whole tasks, node failures and all. The page's own run has what needs no registration."""
    assert sum(len(text.splitlines()) for text in files_of_the_page().values()) < 300
    files = files_of_the_page()
    text = files["test_folders.py"]
    text = text.replace("ConnectionSuite, LaunchTests,", "ProviderSuite,")
    files["test_folders.py"] = text.replace("(LaunchTests, ConnectionSuite)", "(ProviderSuite)")
    assert files["test_folders.py"].count("ProviderSuite") == 2
    announced = tmp_path / "folders-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: folders\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text(
        "[flowlite.providers]\nfolders = folders:FoldersProvider\n"
    )
    done = run(tmp_path, "", files, 580)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plan_of_the_page_refuses_or_names_what_it_cannot_do(tmp_path: Path) -> None:
    page = tmp_path / "folders.py"
    page.write_text(files_of_the_page()["folders.py"])
    adapter = runpy.run_path(str(page))["FoldersProvider"]
    provider = adapter(tmp_path, ProviderSettings("folders"))
    with pytest.raises(ConfigError, match="num_instances: 5 folders, of which there are 3 at most"):
        provider.plan(TaskConfig(command="true", num_instances=5))
    plain = provider.plan(TaskConfig(command="true", num_instances=3))
    assert (plain.num_instances, plain.notes) == (3, ())
    odd = {"region": "eu", "spot": True, "keep_warm": "10m", "internode_interconnect": "RoCE"}
    noted = provider.plan(TaskConfig(command="true", **odd)).notes
    assert noted == tuple(f"{each} has no effect on folders" for each in odd)
    for refused in ({"dependencies": ["numpy"]}, {"python": "3.12"}):
        with pytest.raises(ConfigError, match=f"{next(iter(refused))}: a folder has no such thing"):
            provider.plan(TaskConfig(command="true", **refused))
    placed = provider.plan(TaskConfig(command="true", workdir="/var"))
    node = Instance("folder-0", "t0")
    assert provider.node_settings(placed, node).workdir == "/var"
    assert provider.node_settings(plain, node).workdir is None


def test_who_forgets_to_say_what_is_tested_is_told(tmp_path: Path) -> None:
    files = files_of_the_page()
    text = files["test_folders.py"]
    files["test_folders.py"] = text[: text.index("    @pytest.fixture")] + "    pass\n"
    done = run(tmp_path, "test_ranks_stay", files)
    assert "override the fixture `subject`" in done.stdout
