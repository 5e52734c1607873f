"""When a script runs in a forked process, when it does not, and what else forked scripts get."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.forkserver import registry
from flowlite.node.system import processes, stack_dump
from tests.forked_scripts.both_ways import Seen, Server
from tests.helpers import eventually, kill_processes_of

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="processes are not forked elsewhere")

TASK = f"t-forked-{os.getpid()}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "project"
    directory.mkdir()
    (tmp_path / "modules").mkdir()
    monkeypatch.chdir(directory)
    yield directory
    kill_processes_of(TASK)


def _server(project: Path, source: str, **options: Any) -> Server:
    (project / "train.py").write_text(source)
    path = {"PYTHONPATH": str(project.parent / "modules")}
    return Server(project, ["python", "train.py"], TASK, path | options.pop("more", {}), **options)


def _module(project: Path, name: str, source: str) -> None:
    (project.parent / "modules" / f"{name}.py").write_text(source)


def _ahead(
    *imports: str, late: tuple[str, ...] = (), writes: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"imports": list(imports), "late": list(late), "writes": list(writes)}


def test_what_the_script_imports_was_imported_once(project: Path) -> None:
    counted = project.parent / "counted"
    _module(project, "slow", f"open({str(counted)!r}, 'a').write('x')")
    with _server(
        project, "import slow, os; print(os.environ['RANK'])", call=_ahead("slow")
    ) as server:
        seen = [server.run(forked=True, rank=rank) for rank in range(3)]
    assert [each.told for each in seen] == [(f"{rank}\n", "", 0, None) for rank in range(3)]
    assert counted.read_text() == "x"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("print('hello')", "own prints when it is imported"),
        ("import warnings; warnings.warn('old')", "own prints when it is imported"),
        ("import os; RANK = os.environ.get('RANK')", "own reads RANK when it is imported"),
        ("import os; ALL = dict(os.environ)", "own reads all variables when it is imported"),
        ("import os; HERE = os.getcwd()", "own reads the working directory when it is imported"),
        ("raise ValueError", "own cannot be imported ahead"),
        ("import nothing_of_that_name", "own cannot be imported ahead"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=[60], daemon=True).start()",
            "threads were started by an import (MainThread, Thread-1 (sleep))",
        ),
        (
            "import tempfile; FILES = tempfile.TemporaryDirectory()",
            "own makes a temporary file when it is imported",
        ),
        (
            "import tempfile; FILE = tempfile.NamedTemporaryFile()",
            "own makes a temporary file when it is imported",
        ),
        ("import tempfile; WHERE = tempfile.gettempdir()", ""),
        (
            "import multiprocessing; LOCK = multiprocessing.Lock()",
            "own makes a lock of multiprocessing when it is imported",
        ),
        ("import multiprocessing; multiprocessing.Lock()", ""),
        (
            "import os; FOUND = os.path.isfile('train.py')",
            "own looks for train.py in the working directory when it is imported",
        ),
        (
            "try:\n    TEXT = open('train.py').read()\nexcept OSError:\n    pass",
            "own looks for train.py in the working directory when it is imported",
        ),
        ("import os; FOUND = os.path.isfile('not-here'), os.path.exists('')", ""),
        (
            "import glob; FOUND = glob.glob('*.py')",
            "own reads the working directory when it is imported",
        ),
        ("import sys; FIRST = sys.argv[1:]", "own reads the arguments when it is imported"),
        (
            "from sys import argv",
            "own reads the arguments when it is imported",
        ),
        (
            "import __main__; INTERACTIVE = not hasattr(__main__, '__file__')",
            "own reads the file of the main module when it is imported",
        ),
        (
            "import socket; OPEN = socket.socket()",
            "own opens a socket, pipe or file when it is imported",
        ),
        (
            "import asyncio; LOOP = asyncio.new_event_loop()",
            "own opens a socket, pipe or file when it is imported",
        ),
        ("FILE = open(__file__); import os; NOWHERE = open(os.devnull, 'w')", ""),
        (
            "import sys; sys.path.insert(0, '/nowhere')",
            "own puts something first in sys.path when it is imported",
        ),
        ("import sys; sys.path.append('/nowhere')", ""),
        (
            "import subprocess; CHILD = subprocess.Popen(['sleep', '60'])",
            "own starts a process when it is imported",
        ),
    ],
)
def test_a_module_that_would_show_the_difference_is_imported_by_each_rank(
    project: Path, module: str, why: str
) -> None:
    _module(project, "own", module)
    source = "try:\n    import own\nexcept Exception as error:\n    print(error)\n"
    with _server(project, source, call=_ahead("own")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == why
    assert here.told == fresh.told


@pytest.mark.parametrize(
    ("module", "prefix", "more", "why"),
    [
        ("tqdm/utils", "TQDM_", {}, ""),
        (
            "tqdm/utils",
            "TQDM_",
            {"TQDM_DISABLE": "1"},
            "tqdm.utils reads TQDM_* when it is imported",
        ),
        ("fsspec/config", "FSSPEC", {}, ""),
        (
            "fsspec/config",
            "FSSPEC",
            {"FSSPEC_S3": "{}"},
            "fsspec.config reads FSSPEC* when it is imported",
        ),
    ],
)
def test_a_module_that_looks_for_variables_with_a_prefix_reads_no_others(
    project: Path, module: str, prefix: str, more: dict[str, str], why: str
) -> None:
    package, name = module.split("/")[0], module.replace("/", ".")
    (project.parent / "modules" / package).mkdir()
    _module(project, f"{package}/__init__", "")
    # As fsspec does it: all are copied, and then looked through.
    source = (
        f"import os; FOUND = [v for k, v in dict(os.environ).items() if k.startswith('{prefix}')]"
    )
    _module(project, module, source)
    with _server(project, f"import {name}; print({name}.FOUND)", call=_ahead(name)) as server:
        fresh, here = (server.run(forked=each, environment=more) for each in (False, True))
    assert here.why == why
    assert here.told == fresh.told == (f"{list(more.values())}\n", "", 0, None)


def test_a_path_that_transformers_computes_from_the_directory_is_that_of_the_script(
    project: Path,
) -> None:
    (project.parent / "modules" / "transformers" / "utils").mkdir(parents=True)
    for name in ("transformers/__init__", "transformers/utils/__init__"):
        _module(project, name, "")
    source = "import pathlib; PATH_TO_TRANSFORMERS = pathlib.Path('src').resolve() / 'transformers'"
    _module(project, "transformers/utils/auto_docstring", source)
    name = "transformers.utils.auto_docstring"
    with _server(
        project, f"import {name} as it; print(it.PATH_TO_TRANSFORMERS)", call=_ahead(name)
    ) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert here.told == fresh.told == (f"{project}/src/transformers\n", "", 0, None)


def test_the_directory_that_rich_keeps_is_that_of_the_script(project: Path) -> None:
    """Many import it without naming it (scikit-learn, transformers): their ranks would all start anew."""
    (project.parent / "modules" / "rich").mkdir()
    _module(project, "rich/__init__", "import os; _IMPORT_CWD = os.path.abspath(os.getcwd())")
    with _server(project, "import rich; print(rich._IMPORT_CWD)", call=_ahead("rich")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert here.told == fresh.told == (f"{project}\n", "", 0, None)


# As Lightning 2.6 and torchmetrics 1.9 have it, which tests/stacks/test_imported_once.py imports.
_LIGHTNING = """
import os
def rank_zero_only(function): return function
def _get_rank():
    for key in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        rank = os.environ.get(key)
        if rank is not None:
            return int(rank)
    return None
rank_zero_only.rank = getattr(rank_zero_only, "rank", _get_rank() or 0)
"""
_TORCHMETRICS = """
import os
def rank_zero_only(function): return function
rank_zero_only.rank = getattr(rank_zero_only, "rank", int(os.environ.get("LOCAL_RANK", 0)))
"""
_READERS = {
    "lightning.fabric.utilities.rank_zero": _LIGHTNING,
    "lightning_fabric.utilities.rank_zero": _LIGHTNING,
    "torchmetrics.utilities.prints": _TORCHMETRICS,
}


def _packages(project: Path, modules: dict[str, str]) -> None:
    """Makes modules, by their names, with the packages that they are in."""
    for name, source in modules.items():
        *packages, own = name.split(".")
        for count in range(1, len(packages) + 1):
            directory = project.parent / "modules" / Path(*packages[:count])
            directory.mkdir(exist_ok=True)
            (directory / "__init__.py").touch()
        _module(project, "/".join([*packages, own]), source)


@pytest.mark.parametrize("name", _READERS)
@pytest.mark.parametrize(
    ("more", "also", "why"),
    [
        ("", "", ""),
        ("it.rank_zero_only.rank = 7\n", "", ""),
        # Whoever reads it besides them decides.
        (
            "",
            "import os; RANK = os.environ.get('LOCAL_RANK')",
            "other reads LOCAL_RANK when it is imported",
        ),
    ],
    ids=["as it is", "set by the script", "and another reads it"],
)
def test_the_rank_that_a_module_reads_is_that_of_the_script(
    project: Path, name: str, more: str, also: str, why: str
) -> None:
    _packages(project, {name: _READERS[name], "other": also})
    program = f"import {name} as it, other\n{more}print(it.rank_zero_only.rank)"
    with _server(project, program, call=_ahead(name, "other")) as server:
        here, fresh = (
            server.run(forked=forked, rank=3, environment={"LOCAL_RANK": "3"})
            for forked in (True, False)
        )
    assert here.why == why
    assert here.told == fresh.told == ("7\n" if more else "3\n", "", 0, None)


@pytest.mark.parametrize("name", _READERS)
def test_a_rank_that_the_fork_server_has_of_slurm_is_not_the_scripts(
    project: Path, name: str
) -> None:
    """As where `srun` has started the agent."""
    _packages(project, {name: _READERS[name]})
    program = f"import {name} as it\nprint(it.rank_zero_only.rank)"
    more = {"SLURM_PROCID": "2"}
    with _server(project, program, call=_ahead(name), more=more) as server:
        here, fresh = (
            server.run(forked=forked, rank=3, environment={"LOCAL_RANK": "3"})
            for forked in (True, False)
        )
    assert here.why == ""
    assert here.told == fresh.told == ("3\n", "", 0, None)


def test_a_script_that_sets_the_rank_before_an_import_has_that_one(project: Path) -> None:
    name = "lightning.fabric.utilities.rank_zero"
    _packages(project, {name: _LIGHTNING})
    program = (
        f"import os\nos.environ['RANK'] = '5'\nimport {name} as it\nprint(it.rank_zero_only.rank)"
    )
    with _server(project, program, call=_ahead(name, late=(name,), writes=("RANK",))) as server:
        fresh, here = server.run(forked=False, rank=3), server.run(forked=True, rank=3)
    assert here.why == f"{name} reads RANK when it is imported, and the script sets it before"
    assert here.told == fresh.told == ("5\n", "", 0, None)


# As in wandb 0.19 to 0.23.
_OLD_CORE = """
import os, wandb
from wandb import env
if os.path.exists(os.path.join(env.get_dir(os.getcwd()), ".wandb")):
    __stage_dir__ = ".wandb" + os.sep
elif os.path.exists(os.path.join(env.get_dir(os.getcwd()), "wandb")):
    __stage_dir__ = "wandb" + os.sep
else:
    __stage_dir__ = None
"""
_ENV = "import os\ndef get_dir(default): return os.environ.get('WANDB_DIR', default)\n"


@pytest.mark.parametrize("there", [[], ["wandb"], [".wandb", "wandb"], ["elsewhere/wandb"]])
def test_the_directory_that_wandb_looks_for_is_that_of_the_script(
    project: Path, there: list[str]
) -> None:
    _packages(project, {"wandb.env": _ENV, "wandb.old.core": _OLD_CORE})
    for name in there:
        (project / name).mkdir(parents=True)
    program = "import wandb.old.core as core; print(core.__stage_dir__)"
    more = {"WANDB_DIR": str(project / "elsewhere")} if "elsewhere/wandb" in there else {}
    with _server(project, program, call=_ahead("wandb.old.core"), more=more) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert (
        here.told
        == fresh.told
        == (f"{there[0].rpartition('/')[2]}/\n" if there else "None\n", "", 0, None)
    )


# As wandb makes them since 0.17.
_MEDIA = """
import atexit, tempfile
MEDIA_TMP = tempfile.TemporaryDirectory("wandb-media")
atexit.register(MEDIA_TMP.cleanup)
"""
_ARTIFACT = """
import atexit, tempfile
class Artifact:
    _TMP_DIR = tempfile.TemporaryDirectory("wandb-artifacts")
    atexit.register(_TMP_DIR.cleanup)
"""
_USER_OF_WANDB = """
import os, sys, wandb
for each in (wandb.MEDIA_TMP, wandb.Artifact._TMP_DIR):
    open(os.path.join(each.name, "made"), "x").close()
    print(each.name)
"""


def test_each_rank_has_temporary_directories_of_wandb_of_its_own(project: Path) -> None:
    _packages(
        project,
        {"wandb.sdk.data_types._private": _MEDIA, "wandb.sdk.artifacts.artifact": _ARTIFACT},
    )
    names = "data_types._private import MEDIA_TMP", "artifacts.artifact import Artifact"
    _module(project, "wandb/__init__", "".join(f"from wandb.sdk.{each}\n" for each in names))
    (temporary := project.parent / "temporary").mkdir()
    more = {"TMPDIR": str(temporary)}
    with _server(project, _USER_OF_WANDB, call=_ahead("wandb"), more=more) as server:
        # The fork server keeps none: nobody would remove it.
        ranks = [server.run(forked=True, rank=rank) for rank in range(2)]
        assert [each.why for each in ranks] == ["", ""]
        named = [Path(line) for each in ranks for line in each.told[0].splitlines()]
        assert len(set(named)) == 4
        for path in named:
            assert path.parent == temporary
            assert path.name.endswith(("wandb-media", "wandb-artifacts"))
        # What a rank has made goes with it, and what the import has made went with that.
        assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import os; os.environ['OMP_NUM_THREADS'] = '3'\nimport own",
            "the script sets OMP_NUM_THREADS",
        ),
        ("import os; os.environ['OWN'] = '3'\nimport own; print(own.OWN)", "own reads OWN"),
        ("import os; os.environ['OTHER'] = '3'\nimport own; print(own.OWN)", ""),
    ],
)
def test_a_variable_that_the_script_sets_before_an_import(
    project: Path, source: str, why: str
) -> None:
    _module(project, "own", "import os; OWN = os.environ.get('OWN')")
    name = source.partition("['")[2].partition("']")[0]
    with _server(
        project, source, call=_ahead("os", "own", late=("own",), writes=(name,))
    ) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why[: len(why) or None] == why
    assert here.told == fresh.told


def test_a_module_of_the_project_hides_an_installed_one(project: Path) -> None:
    (project / "json.py").write_text("print('mine')")
    with _server(project, "import json", call=_ahead("json")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert "json.py in the script's directory" in here.why
    assert here.told == fresh.told == ("mine\n", "", 0, None)


def test_variables_that_imports_set_are_there(project: Path) -> None:
    _module(
        project, "own", "import os; os.environ['SET'] = 'by own'; os.environ.pop('TAKEN', None)"
    )
    source = "import own, os; print(os.environ['SET'], os.environ.get('TAKEN')); os.system('echo $SET $TAKEN')"
    with _server(project, source, call=_ahead("own"), more={"TAKEN": "1"}) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.told == fresh.told == ("by own None\nby own\n", "", 0, None)


def test_another_interpreter_runs_its_own(project: Path) -> None:
    (project / "train.py").write_text("import sys; print(sys.executable)")
    other = project.parent / "python"
    other.symlink_to(sys.executable)
    with Server(project, [str(other), "train.py"], TASK) as server:
        here = server.run(forked=True)
    assert str(other) in here.why
    assert (here.code, here.signal) == (0, None)


def test_sitecustomize_and_usercustomize_have_run(project: Path) -> None:
    _module(project, "sitecustomize", "import builtins; builtins.CUSTOM = __name__")
    source = "import sys; print(CUSTOM, sys.modules['sitecustomize'].__file__, sys.path)"
    with _server(project, source, call=_ahead("json")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert here.told == fresh.told


_LOOK = """
import os, random, signal, sys, threading
handled = [line for line in open("/proc/self/status") if line.startswith("SigIgn")]
print(handled, random.random() == random.Random(0).random(), os.getcwd(), sys.getprofile() is None)
print([signal.getitimer(each)[0] > 0 for each in (0, 1, 2)], threading._profile_hook is None)
print("torch" in sys.modules and sys.modules["torch"].initial_seed() == 0)
os.kill(os.getpid(), signal.SIGUSR1)
print("lives")
"""
_COLLECTOR = [
    "import gc; gc.disable()",
    "import gc; gc.set_threshold(1, 2, 3)",
    "import gc; gc.set_threshold(0)",
    "import gc; gc.enable()",
]
_CHANGES = [
    ("import faulthandler, signal; faulthandler.register(signal.SIGUSR1)", "handles SIGUSR1"),
    ("import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "handles SIGUSR1"),
    ("import signal; signal.signal(signal.SIGTERM, lambda *_: None)", "handles SIGTERM"),
    ("import signal; signal.signal(signal.SIGINT, lambda *_: None)", "handles SIGINT"),
    ("import signal; signal.setitimer(signal.ITIMER_PROF, 100)", "sets a timer"),
    ("import os; os.chdir('/tmp')", "changes the working directory"),
]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        *_CHANGES,
        ("import random; random.seed(0)", "seeds random numbers, or takes very many"),
        ("import numpy.random; numpy.random.seed(0)", "seeds random numbers, or takes very many"),
        pytest.param(
            "import torch; torch.manual_seed(0)",
            "seeds random numbers, or takes very many",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("name", ["sitecustomize", "own"])
def test_what_an_import_does_to_its_process_is_there(
    project: Path, name: str, source: str, why: str
) -> None:
    _module(project, name, source)
    script = f"import {name}\n{_LOOK}"
    with _server(project, script, call=_ahead("json", name)) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == f"{name} {why} when it is imported"
    assert _apart(here) == _apart(fresh)


@pytest.mark.parametrize("module", _COLLECTOR)
def test_an_import_that_sets_the_garbage_collector_sets_that_of_the_script(
    project: Path, module: str
) -> None:
    _module(project, "own", module)
    source = "import own, gc; print(gc.isenabled(), gc.get_threshold())"
    with _server(project, source, call=_ahead("own")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert here.told == fresh.told


# A Python inherits ignored signals, so nobody knows who ignores them.
@pytest.mark.parametrize(("source", "why"), [each for each in _CHANGES if "SIG_IGN" not in each[0]])
def test_what_a_pth_file_does_to_its_process_is_there(project: Path, source: str, why: str) -> None:
    with _with_pth_file(project, source, _LOOK) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == f"a .pth file of this Python {why}"
    assert _apart(here) == _apart(fresh)


@pytest.mark.parametrize(
    ("pth", "why"),
    [
        ("import os, sys; sys.rank = os.environ.get('RANK')", "own.pth reads RANK"),
        ("import from_pth, sys; sys.rank = from_pth.RANK", "from_pth reads RANK"),
        ("import os, sys; sys.rank = os.environ.get('OTHER')", ""),
    ],
)
def test_what_a_pth_file_reads_is_that_of_the_rank(project: Path, pth: str, why: str) -> None:
    script = "import os; os.environ['OTHER'] = '1'\nimport sys; print(sys.rank)"
    with _with_pth_file(project, pth, script) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == (f"{why} when it is imported" if why else "")
    assert here.told == fresh.told


def _apart(seen: Seen) -> list[Any]:
    """What is told of a program, without the thread that faulthandler names."""
    return [re.sub("0x[0-9a-f]+", "", str(each)) for each in seen.told]


def _with_pth_file(project: Path, pth: str, script: str) -> Server:
    """The fork server of a Python whose `site-packages` have a .pth file with this line."""
    venv.create(project.parent / "venv", symlinks=True)
    python = project.parent / "venv" / "bin" / "python"
    packages = sysconfig.get_path("purelib", "venv", {"base": str(project.parent / "venv")})
    Path(packages, "own.pth").write_text(f"{pth}\n")
    Path(packages, "from_pth.py").write_text("import os\nRANK = os.environ.get('RANK')\n")
    (project / "train.py").write_text(script)
    return Server(project, ["python", "train.py"], TASK, call=_ahead("json"), python=str(python))


def test_a_module_that_takes_random_numbers_is_imported_once(project: Path) -> None:
    _module(project, "own", "import random; DRAWN = [random.random() for _ in range(3000)]")
    with _server(project, "import own; print(len(own.DRAWN))", call=_ahead("own")) as server:
        here = server.run(forked=True)
    assert (here.out, here.why) == ("3000\n", "")


_WATCHERS = [
    ("import sys; sys.settrace(lambda *_: None)", "traces"),
    ("import sys; sys.setprofile(lambda *_: None)", "profiles"),
    ("import threading; threading.setprofile(lambda *_: None)", "profiles"),
    ("import cProfile; PROFILE = cProfile.Profile(); PROFILE.enable()", "cProfile"),
    ("import tracemalloc; tracemalloc.start()", "tracemalloc traces"),
]


@pytest.mark.parametrize(("source", "why"), _WATCHERS)
def test_who_watches_a_python_from_its_start_sees_the_script_only(
    project: Path, source: str, why: str
) -> None:
    _module(project, "sitecustomize", source)
    with _server(project, _LOOK.partition("os.kill")[0], call=_ahead("json")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert why in here.why
    assert "this Python before its script begins" in here.why
    assert here.told == fresh.told


def test_who_watches_by_a_pth_file_sees_the_script_only(project: Path) -> None:
    watch = "import sys; sys.seen = []; sys.setprofile(lambda f, e, a: sys.seen.append(f.f_code.co_filename))"
    look = "import sys; sys.setprofile(None); print(any('flowlite' in each for each in sys.seen))"
    with _with_pth_file(project, watch, look) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert "profiles this Python before its script begins" in here.why
    assert here.told == fresh.told == ("False\n", "", 0, None)


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONVERBOSE",
        "PYTHONPROFILEIMPORTTIME",
        "PYTHONINSPECT",
        "PYTHONTRACEMALLOC",
        "PYTHONMALLOCSTATS",
    ],
)
def test_a_variable_that_looks_at_the_start_is_as_the_option(project: Path, name: str) -> None:
    with _server(project, "print(1)", more={name: "1"}, call=_ahead("json")) as server:
        here = server.run(forked=True)
    assert here.why == f"{name} looks at the start or the end of the interpreter"
    assert here.out.startswith("1\n")


def test_a_rank_that_died_while_a_child_process_lives_fails_after_a_while(project: Path) -> None:
    source = """
import multiprocessing, time
p = multiprocessing.get_context("fork").Process(target=time.sleep, args=[300])
p.start()
raise ValueError("the rank has died")
"""
    with _server(project, source, call=_ahead("multiprocessing")) as server:
        began = time.monotonic()
        here = server.run(forked=True)
    assert here.why == ""
    assert (here.code, here.signal) == (1, None)
    assert "ValueError: the rank has died" in here.err
    assert "Timeout (0:00:10)!" in here.err
    assert time.monotonic() - began >= 10


def test_a_rank_that_has_only_seen_an_exception_may_wait_for_its_threads(project: Path) -> None:
    source = """
import sys, threading, time
def inner():
    try:
        raise ValueError("as a test runner leaves it")
    except ValueError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
inner()
threading.Thread(target=lambda: time.sleep(11) or print("done")).start()
"""
    with _server(project, source, call=_ahead("threading")) as server:
        here = server.run(forked=True)
    assert here.why == ""
    assert here.told == ("done\n", "", 0, None)


def test_no_two_ranks_draw_the_same_random_numbers(project: Path) -> None:
    """Nor do two runs with kept imports: torch takes its seed when it is imported."""
    source = "import random, numpy.random, torch\nprint([random.random(), numpy.random.rand(), torch.rand(1).item()])"
    with _server(project, source, call=_ahead("random", "numpy.random", "torch")) as server:
        seen = [server.run(forked=True, rank=rank) for rank in range(3)]
    assert [each.why for each in seen] == ["", "", ""]
    numbers = [each.value for each in seen]
    assert [len(set(each)) for each in zip(*numbers, strict=True)] == [3, 3, 3]


def test_modules_have_the_functions_themselves_and_not_what_watches_them(project: Path) -> None:
    _module(
        project,
        "own",
        "import os, builtins, shutil\nfrom os import stat, getcwd\nkept, opened = builtins.open, open\n"
        "def patched(*a, **k):\n    return kept(*a, **k)\nbuiltins.open = patched\nFAST = shutil._use_fd_functions\n",
    )
    source = """
import own, os, builtins, io, sys, __main__
print(own.stat is os.stat, own.getcwd is os.getcwd, type(os.stat), type(sys.argv), type(__main__), own.FAST)
print(builtins.open is own.patched, own.opened is io.open, io.open, own.shutil.os.open in os.supports_dir_fd)
"""
    with _server(project, source, call=_ahead("own")) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert here.told == fresh.told


def test_a_directory_of_multiprocess_is_that_of_the_script(project: Path) -> None:
    """`datasets` imports this copy of multiprocessing: its ranks would all start anew."""
    (project.parent / "modules" / "multiprocess").mkdir()
    _module(project, "multiprocess/__init__", "")
    _module(
        project,
        "multiprocess/process",
        "from multiprocessing.process import AuthenticationString, current_process\n"
        "import os; ORIGINAL_DIR = os.path.abspath(os.getcwd())",
    )
    name = "multiprocess.process"
    with _server(
        project, f"import {name} as it; print(it.ORIGINAL_DIR)", call=_ahead(name)
    ) as server:
        fresh, here = server.run(forked=False), server.run(forked=True)
    assert here.why == ""
    assert here.told == fresh.told == (f"{project}\n", "", 0, None)


def test_the_stack_of_a_script_can_be_read(project: Path) -> None:
    source = "import time\ndef waits():\n    time.sleep(120)\nwaits()\n"
    with _server(project, source, call=_ahead("time")) as server:
        server.start(forked=True)
        notes = eventually(
            lambda: [n for n in stack_dump.living_workers(str(project.parent)) if n["signal"]]
        )
        note = notes[0]
        wanted = ["waits", "<module>"]
        eventually(lambda: [each["function"] for each in stack_dump.with_signal(note)] == wanted)


def test_processes_are_found_by_their_task_and_profilers_see_the_script(project: Path) -> None:
    with _server(project, "import time; time.sleep(120)", call=_ahead("time")) as server:
        pid = server.start(forked=True)
        eventually(lambda: processes.environment_of(pid).get("RANK") == "0")
        assert pid in processes.marked({"FLOW_TASK_ID": TASK})
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"python\0train.py\0"
        assert Path(f"/proc/{pid}/comm").read_text() == "python\n"


def test_the_next_run_is_forked_from_what_the_first_left(project: Path) -> None:
    _module(project, "kept", "VALUE = 1")
    source = "import sys, kept; print(sys.argv, kept.VALUE)"
    with _server(project, source, call=_ahead("kept"), kept=60.0) as server:
        first, seen = server.state["fork_server"], server.run(forked=True)
    assert (seen.out, seen.why) == ("['train.py'] 1\n", "")
    argv = ["python", "train.py", "--lr", "1"]
    path = {"PYTHONPATH": str(project.parent / "modules")}
    with Server(project, argv, TASK, path, _ahead("kept"), kept=60.0) as server:
        assert server.state["fork_server"] == first
        assert server.run(forked=True).out == "['train.py', '--lr', '1'] 1\n"
    _module(project, "kept", "VALUE = 22")
    with Server(project, argv, TASK, path, _ahead("kept"), kept=0.1) as server:
        assert server.state["fork_server"] != first
        assert server.run(forked=True).out == "['train.py', '--lr', '1'] 22\n"
    with Server(
        project, ["python", "-O", "train.py"], TASK, path, _ahead("kept"), kept=0.1
    ) as server:
        other = server.state["fork_server"]
        assert server.run(forked=True).why == ""
    assert other != first
    registry.end([each for each in [registry.look(server.spec["socket"])] if each is not None])
