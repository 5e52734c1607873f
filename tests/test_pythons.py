"""What `python=` and `dependencies=` ask of a node, and which settings of uv and pip travel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flowlite import python_request
from flowlite.errors import ConfigError
from flowlite.spec import TaskConfig

HERE = python_request.version_here()
COMMAND = {"command": ["true"]}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {"python": HERE, "requirements": None}),
        (COMMAND, None),
        ({**COMMAND, "python": "3.9"}, {"python": "3.9", "requirements": None}),
        ({**COMMAND, "dependencies": ["a"]}, {"python": HERE, "requirements": "a\n"}),
        (
            {"python": HERE, "dependencies": ["a>=2", "b[x]"]},
            {"python": HERE, "requirements": "a>=2\nb[x]\n"},
        ),
        (
            {"dependencies": ["a @ git+https://host/a"]},
            {"python": HERE, "requirements": "a @ git+https://host/a\n"},
        ),
    ],
)
def test_the_order(options: dict[str, Any], wanted: dict[str, Any] | None) -> None:
    assert python_request.order(TaskConfig(**options)) == wanted


def test_a_command_in_an_image_takes_the_python_of_the_image() -> None:
    order = python_request.order(TaskConfig(command=["true"], image="i", dependencies=["a"]))
    assert order == {"python": HERE, "requirements": "a\n", "any": True}
    asked = TaskConfig(command=["true"], image="i", dependencies=["a"], python="3.12")
    assert "any" not in (python_request.order(asked) or {})


def test_a_function_does_not_travel_to_another_minor_version() -> None:
    with pytest.raises(ConfigError, match=r"python: 3.99 was asked for.*Submit from a Python 3.99"):
        python_request.order(TaskConfig(python="3.99"))


@pytest.mark.parametrize(
    ("wanted", "version", "left"),
    [
        (None, "3.11.7", False),
        ({"python": "3.11", "requirements": None}, "3.11.7", False),
        ({"python": "3.11", "requirements": None}, "3.12.1", True),
        ({"python": "3.11.7", "requirements": None}, "3.11.8", True),
        ({"python": "3.11", "requirements": "a\n"}, "3.11.7", True),
        ({"python": "3.1", "requirements": None}, "3.11.7", True),
    ],
)
def test_what_is_left_to_do_on_a_node(
    wanted: dict[str, Any] | None, version: str, left: bool
) -> None:
    assert python_request.for_node(wanted, version) == (wanted if left else None)


class TestRequirementFiles:
    def test_they_are_sent_by_content_with_what_they_include(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "all.txt").write_text(
            "# comment\n--extra-index-url https://host/simple\none>=1  # why\n-r sub/more.txt\n"
            "two==2 \\\n    --hash=sha256:00\n"
        )
        (tmp_path / "sub" / "more.txt").write_text("--requirement=last.txt\n\nthree\n")
        (tmp_path / "sub" / "last.txt").write_text("four\n")
        text = python_request.requirements_text(str(tmp_path / "all.txt"))
        assert text is not None
        assert [" ".join(line.split()) for line in text.splitlines()] == [
            "--extra-index-url https://host/simple",
            "one>=1",
            "four",
            "three",
            "two==2 --hash=sha256:00",
        ]

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("-e .", "lies on this machine only"),
            ("./wheels/a.whl", "lies on this machine only"),
            ("a @ file:///home/me/a", "lies on this machine only"),
            ("-c constraints.txt", "constraints are not sent"),
            ("-e git+https://host/a.git", "without -e"),
            (".", "lies on this machine only"),
            (".[gpu]", "lies on this machine only"),
            ("libs/mine", "lies on this machine only"),
            ("wheels/a-1.0-py3-none-any.whl", "lies on this machine only"),
            ("a-1.0.tar.gz", "lies on this machine only"),
            ("a@file:///home/me/a", "lies on this machine only"),
            ("a @ ../a", "lies on this machine only"),
            ("git+file:///home/me/a", "lies on this machine only"),
            ("--find-links ./wheels", "lies on this machine only"),
            ("-f wheels", "lies on this machine only"),
            ("torch 2.0", "is not a requirement"),
            ("six==", "is not a requirement"),
            ("name: base", "is not a requirement"),
            ("- python=3.11", "is not a requirement"),
            ("-r missing.txt", "missing.txt cannot be read"),
            ("-r all.txt", "includes itself"),
        ],
    )
    def test_what_would_mean_something_else_there_is_refused(
        self, tmp_path: Path, line: str, why: str
    ) -> None:
        (tmp_path / "all.txt").write_text(f"one\n{line}\n")
        with pytest.raises(ConfigError, match=why):
            python_request.requirements_text(str(tmp_path / "all.txt"))

    def test_a_list_is_checked_too(self) -> None:
        with pytest.raises(ConfigError, match="lies on this machine only"):
            python_request.requirements_text(["a @ file:///x"])

    def test_names_with_blanks_and_the_mark_of_windows(self, tmp_path: Path) -> None:
        (tmp_path / "more of it.txt").write_text("\ufeff# said\none\n")
        (tmp_path / "all.txt").write_text('\ufeff-r "more of it.txt"\ntwo\n')
        assert python_request.requirements_text(str(tmp_path / "all.txt")) == "one\ntwo\n"

    def test_a_project_file_is_no_requirements_file(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text("[project]\nname = 'a'\n")
        with pytest.raises(ConfigError, match=r"\[project\].*not a requirement.*uv export"):
            python_request.requirements_text(str(tmp_path / "pyproject.toml"))

    @pytest.mark.parametrize(
        "line",
        [
            "a",
            "a[x,y]>=1,<2 ; python_version < '3.12'",
            "a (>=1)",
            "a==1.*",
            "a==${PROBE_VERSION}",
            "a==1.0 ; python_version >= '3.11' and python_version < '4' --hash=sha256:00",
            "a===1-local",
            "a ~= 2.2  --hash=sha256:00  --hash=sha256:01",
            "a @ git+ssh://git@host/a.git@v1",
            "git+https://host/a.git#subdirectory=b",
            "https://host/a-1.0-py3-none-any.whl",
            "https://${TOKEN}@host/a.zip",
            "--index-url=https://host/simple",
            "--find-links https://host/links",
            "--find-links /nfs/wheels",
            "--no-binary :all:",
        ],
    )
    def test_what_means_the_same_there_is_sent(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "all.txt").write_text(f"{line}\n")
        assert python_request.requirements_text(str(tmp_path / "all.txt")) == f"{line}\n"

    def test_a_variable_that_is_not_set_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = str(tmp_path / "all.txt")
        Path(wanted).write_text("--index-url https://${PROBE_TOKEN}@host/simple\na\n")
        monkeypatch.delenv("PROBE_TOKEN", raising=False)
        with pytest.raises(ConfigError, match=r"\$\{PROBE_TOKEN\} has no value"):
            python_request.order(TaskConfig(dependencies=wanted))
        given = TaskConfig(dependencies=wanted, environment={"PROBE_TOKEN": "x"})
        assert python_request.order(given) is not None
        monkeypatch.setenv("PROBE_TOKEN", "x")
        assert python_request.order(TaskConfig(dependencies=wanted)) is not None


class TestWherePackagesComeFrom:
    def test_uv_first_then_pip(self, tmp_path: Path) -> None:
        conf = tmp_path / "pip.conf"
        conf.write_text(
            "[global]\nindex-url = https://me:pw@conf/simple\nfind-links = /a\n  /b\ntimeout = 3\n"
            "[install]\nno-index = false\n"
        )
        environment = {
            "UV_INDEX": "https://uv/simple",
            "UV_CACHE_DIR": "/not/for/nodes",
            "UV_INDEX_MINE_PASSWORD": "pw",
            "PIP_EXTRA_INDEX_URL": "https://pip/simple",
            "PIP_TRUSTED_HOST": "host",
        }
        assert python_request.index_settings(environment, [conf]) == {
            "UV_DEFAULT_INDEX": "https://me:pw@conf/simple",
            "UV_FIND_LINKS": "/a,/b",
            "UV_INDEX": "https://uv/simple",
            "UV_INDEX_MINE_PASSWORD": "pw",
            "UV_INSECURE_HOST": "host",
        }

    def test_a_variable_of_pip_wins_over_its_file(self, tmp_path: Path) -> None:
        conf = tmp_path / "pip.conf"
        conf.write_text("[global]\nindex-url = https://conf/simple\n")
        found = python_request.index_settings({"PIP_INDEX_URL": "https://var/simple"}, [conf])
        assert found == {"UV_DEFAULT_INDEX": "https://var/simple"}

    def test_more_indexes_are_searched_as_pip_does(self) -> None:
        given = {"PIP_EXTRA_INDEX_URL": "https://more/simple"}
        assert python_request.index_settings(given, []) == {
            "UV_INDEX": "https://more/simple",
            "UV_INDEX_STRATEGY": "unsafe-best-match",
        }
        own = {**given, "UV_INDEX_STRATEGY": "first-index"}
        assert python_request.index_settings(own, [])["UV_INDEX_STRATEGY"] == "first-index"

    def test_files_of_pip_are_those_that_pip_reads(self, tmp_path: Path) -> None:
        (tmp_path / ".config" / "pip").mkdir(parents=True)
        (tmp_path / ".config/pip/pip.conf").write_text(
            "[global]\nindex-url = https://user/simple\n"
        )
        given = tmp_path / "given.conf"
        given.write_text("[global]\nindex-url = https://given/simple\n")
        site = tmp_path / "site/pip/pip.conf"
        site.parent.mkdir(parents=True)
        site.write_text("[global]\nindex-url = https://site/simple\n")
        name = "UV_DEFAULT_INDEX"
        everybodys = {"HOME": "/nowhere", "XDG_CONFIG_DIRS": f"{tmp_path}/none:{tmp_path}/site"}
        assert python_request.index_settings(everybodys)[name] == "https://site/simple"
        environment = {**everybodys, "HOME": str(tmp_path)}
        assert python_request.index_settings(environment)[name] == "https://user/simple"
        environment["PIP_CONFIG_FILE"] = str(given)
        assert python_request.index_settings(environment)[name] == "https://given/simple"
        environment["PIP_CONFIG_FILE"] = os.devnull
        assert name not in python_request.index_settings(environment)

    def test_what_is_broken_is_passed_over(self, tmp_path: Path) -> None:
        conf = tmp_path / "pip.conf"
        conf.write_text("no section\n")
        assert python_request.index_settings({}, [conf, tmp_path / "none"]) == {}
