"""`#SBATCH` lines, cut into options as sbatch(1) cuts them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import SpecError
from flowlite.node.sbatch.getopt import Option, OptionError, read
from flowlite.spec.batch import BatchScript, looks_like_batch
from flowlite.spec.batch.script import Directive, words_of
from flowlite.spec.batch.table import TABLE

HERE = Path("job.sbatch")


def options(text: str) -> list[tuple[str, str | None]]:
    """Name and value of each directive."""
    return [(each.name, each.value) for each in BatchScript.parse(text, HERE).directives]


def lines(*directives: str) -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {each}" for each in directives), "true", ""])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--nodes=4", [("nodes", "4")]),
        ("--nodes 4", [("nodes", "4")]),
        ("-N 4", [("nodes", "4")]),
        ("-N4", [("nodes", "4")]),
        ("-N 2 -n 8 -c4", [("nodes", "2"), ("ntasks", "8"), ("cpus-per-task", "4")]),
        ("--ntasks-per=4", None),
        ("--ntasks-per-n=4", [("ntasks-per-node", "4")]),
        ("--ntasks=8  # as many as there are", [("ntasks", "8")]),
        ('--job-name="two words" -p gpu', [("job-name", "two words"), ("partition", "gpu")]),
        ("--job-name='it''s'", [("job-name", "its")]),
        (r"--job-name=two\ words", [("job-name", "two words")]),
        ("--exclusive", [("exclusive", None)]),
        ("--exclusive=user", [("exclusive", "user")]),
        (
            "--container-image=nvcr.io#nvidia/pytorch",
            [("container-image", "nvcr.io#nvidia/pytorch")],
        ),
        ("-vQ", [("verbose", None), ("quiet", None)]),
        ("--cpu_freq=high", [("cpu-freq", "high")]),
    ],
)
def test_forms(line: str, found: list[tuple[str, str | None]] | None) -> None:
    if found is None:
        with pytest.raises(SpecError, match="could be"):
            options(lines(line))
    else:
        assert options(lines(line)) == found


def test_blanks_after_the_mark_are_not_needed() -> None:
    assert options("#!/bin/sh\n#SBATCH--nodes=2\n") == [("nodes", "2")]
    assert options("#!/bin/sh\n#SBATCH\t -N\t2\n") == [("nodes", "2")]


def test_it_stops_at_the_first_command() -> None:
    script = BatchScript.parse(
        "#!/bin/bash -x\n\n# a remark\n#SBATCH -N2\n   \n#\n#SBATCH -n4\nmodule load cuda\n#SBATCH --time=5\n",
        HERE,
    )
    assert [each.name for each in script.directives] == ["nodes", "ntasks"]
    assert script.passed_over == ((9, "it stands behind the first command, in line 8"),)


def test_what_is_commented_out_or_indented_is_not_read() -> None:
    script = BatchScript.parse("#!/bin/sh\n##SBATCH -N2\n #SBATCH -N3\n# SBATCH -N4\n", HERE)
    assert script.directives == ()
    assert script.passed_over == ((3, "there are blanks in front of it"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hi\n", "job.sbatch:1: a batch script begins with #!"),
        (lines("--nodse=2"), "job.sbatch:2: sbatch has no option --nodse; did you mean 'nodes'"),
        (lines("-N2", "-Y"), "job.sbatch:3: sbatch has no option -Y"),
        (lines("--nodes"), "job.sbatch:2: --nodes has no value"),
        (lines("--hold=3"), "--hold takes no value, and has '3'"),
        (lines("nodes=2"), "'nodes=2' is no option; did you mean '--nodes=2'"),
        (lines('--job-name="open'), 'a quote " is not closed'),
        (lines("hetjob"), "a job of several parts"),
        ("#!/bin/sh\r\n#SBATCH -N2\r\n", "end as on Windows"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        BatchScript.parse(text, HERE)
    assert message in str(raised.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        BatchScript.load("nowhere.sbatch")


def test_which_files_are_batch_scripts(tmp_path: Path) -> None:
    for name, text, expected in [
        ("a.sh", "#!/bin/sh\n# hello\n#SBATCH -N2\n", True),
        ("b.sh", "#!/bin/sh\necho\n#SBATCH -N2\n", False),
        ("c.py", "#!/usr/bin/python\n#SBATCH -N2\n", False),
        ("d", "#SBATCH -N2\n", False),
        ("e.sbatch", "", True),
    ]:
        (tmp_path / name).write_text(text)
        assert looks_like_batch(str(tmp_path / name)) is expected, name
    assert not looks_like_batch(str(tmp_path / "nothing"))
    assert not looks_like_batch(str(tmp_path))


# Against the shell, and against itself


words = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\0\r"), min_size=1))


@given(words)
def test_words_that_a_shell_quotes_come_back(given_words: list[str]) -> None:
    assert words_of(" " + shlex.join(given_words), "here") == given_words


@given(st.text(st.characters(codec="utf-8")))
def test_whatever_a_script_holds_it_is_read_or_refused(text: str) -> None:
    said = ""
    found: tuple[Directive, ...] = ()
    try:
        found = BatchScript.parse(f"#!/bin/sh\n{text}", HERE).directives
    except SpecError as error:
        said = str(error)
    assert said.startswith("job.sbatch") or not said
    assert all(each.name in TABLE for each in found)


values = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)
with_values = sorted(name for name, option in TABLE.items() if option.value == "needed")


@given(st.lists(st.tuples(st.sampled_from(with_values), values, st.sampled_from("= sS"))))
def test_every_option_is_read_in_all_its_forms(chosen: list[tuple[str, str, str]]) -> None:
    written, expected = [], []
    for name, value, form in chosen:
        short = TABLE[name].short
        if form in "sS" and short:
            written.append(f"-{short}{value}" if form == "S" else f"-{short} {value}")
        else:
            written.append(f"--{name}={value}" if form == "=" else f"--{name} {value}")
        expected.append((name, value))
    assert options(lines(" ".join(written))) == expected
    assert options(lines(*written)) == expected


@given(st.sampled_from(sorted(TABLE)), st.integers(1, 30))
def test_a_beginning_means_the_one_option_that_has_it(name: str, length: int) -> None:
    beginning = name[:length]
    fitting = [each for each in TABLE if each.startswith(beginning)]
    value = "none" if TABLE[name].value == "none" else "1"
    word = f"--{beginning}" if value == "none" else f"--{beginning}=1"
    if beginning in TABLE or len(fitting) == 1:
        meant = beginning if beginning in TABLE else fitting[0]
        if TABLE[meant].value != "none" or value == "none":
            given_options, _, unknown = read([word, "x"], TABLE)
            assert given_options[0].name == meant
            assert not unknown
    else:
        with pytest.raises(OptionError, match="could be"):
            read([word], TABLE)


def test_options_end_where_the_command_begins() -> None:
    table = {"nodes": Option("N"), "label": Option("l", "none")}
    given_options, rest, _ = read(["-lN2", "python", "-N", "3"], table)
    assert [each.name for each in given_options] == ["label", "nodes"]
    assert rest == ["python", "-N", "3"]
    assert read(["-l", "--", "-x"], table)[1] == ["-x"]
    assert read(["-"], table)[1] == ["-"]
