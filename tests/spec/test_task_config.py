"""`TaskConfig`: what each option takes, errors in sentences, copies and text forms."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import ConfigError, SpecError
from flowlite.spec import BoundCall, Retries, Secret, TaskConfig
from flowlite.spec.launchers import launcher_in

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_instance": 2}, "num_instance: unknown option; did you mean 'num_instances'?"),
        ({"gpus": "h100"}, "gpus: unknown option; did you mean 'gpu'?"),
        ({"maxCost": 2}, "maxCost: unknown option; did you mean 'max_cost'?"),
        ({"colour": "red"}, "colour: unknown option; known: name, num_instances"),
        (
            {"num_instances": 0},
            "num_instances: 0 is not allowed; give a whole number of at least 1",
        ),
        ({"num_instances": -3}, "num_instances: -3 is not allowed"),
        ({"num_instances": (8, 2)}, "num_instances: (8, 2) is not allowed"),
        ({"num_instances": (0, 2)}, "the fewest and the most nodes, as in (2, 8) or '2:8'"),
        ({"num_instances": (1, 2, 3)}, "the fewest and the most nodes"),
        ({"num_instances": "2-8"}, "the fewest and the most nodes"),
        ({"num_instances": "2:"}, "the fewest and the most nodes"),
        ({"heal_seconds": -1}, "heal_seconds: -1 is not allowed"),
        ({"num_instances": "2"}, "num_instances: '2' is not allowed; give a whole number"),
        ({"num_instances": 2.0}, "num_instances: 2.0 is not allowed; give a whole number"),
        ({"num_instances": True}, "num_instances: True is not allowed; give a whole number"),
        ({"num_instances": None}, "num_instances: None is not allowed; give a whole number"),
        ({"retries": None}, "retries: None is not allowed; give a number of new attempts"),
        ({"processes_per_node": 0}, "at least 1, or 'auto' for one per GPU"),
        ({"processes_per_node": "all"}, "processes_per_node: 'all' is not allowed"),
        ({"gpu": "notagpu"}, "gpu: 'notagpu' is not a GPU"),
        ({"gpu": 8}, "gpu: 8 is not allowed; give a text as in 'h100:8'"),
        (
            {"distributed_mode": "manul"},
            "give 'auto', 'manual', 'ray' or 'mpi'; did you mean 'manual'?",
        ),
        ({"priority": "hi"}, "priority: 'hi' is not allowed; give 'low', 'med' or 'high'"),
        ({"priority": 1}, "priority: 1 is not allowed; give 'low', 'med' or 'high'"),
        ({"max_cost": 0}, "max_cost: 0 is not allowed; give a number above 0"),
        ({"max_cost": -1.5}, "max_cost: -1.5 is not allowed; give a number above 0"),
        ({"max_cost": INFINITE}, "max_cost: inf is not allowed; give a finite number"),
        ({"max_run_time_hours": NAN}, "max_run_time_hours: nan is not allowed"),
        ({"max_price_per_hour": "50"}, "max_price_per_hour: '50' is not allowed; give a number"),
        (
            {"environment": {"A": 1}},
            "environment: A is 1; values must be strings; write it in quotes",
        ),
        ({"environment": {"A B": "1"}}, "environment: 'A B' cannot name a variable"),
        ({"environment": {"RANK": "1"}}, "environment: RANK is made by flowlite"),
        ({"environment": {"A": "a\0b"}}, "environment: A has a zero byte in it"),
        ({"environment": {"A": "\ud800"}}, "environment: A is not valid Unicode"),
        ({"command": ["\ud800"]}, "give words of a command as texts"),
        ({"environment": ["A=1"]}, "environment: ['A=1'] is not allowed; give a mapping"),
        ({"environment": {1: "1"}}, "environment: the key 1 is not a text"),
        ({"secrets": "HF_TOKEN"}, "secrets: 'HF_TOKEN' is not allowed; give a list of names"),
        ({"secrets": [3]}, "secrets: 3 is not allowed; give a name"),
        ({"secrets": ["a-b"]}, "secrets: name: 'a-b' cannot name a variable"),
        ({"secrets": [{"name": "A", "path": "x"}]}, "secrets: path: unknown option"),
        ({"secrets": ["A", Secret("A", env="B")]}, "'A' is given twice, with different sources"),
        ({"environment": {"A": ""}, "secrets": ["A"]}, "A is also one of the secrets"),
        ({"image": ""}, "image: '' is not allowed; give one word"),
        ({"image": "a b"}, "image: 'a b' is not allowed; give one word"),
        ({"dependencies": ["numpy", 3]}, "dependencies: 3 is not allowed; give a requirement"),
        ({"dependencies": ["--index-url x"]}, "dependencies: '--index-url x' is not allowed"),
        ({"dependencies": 3}, "dependencies: 3 is not allowed; give a list of requirements"),
        ({"python": 3.1}, "python: 3.1 is not allowed; give a text, in quotes, as in '3.11'"),
        ({"python": "2.7"}, "python: '2.7' is not allowed; give a version as in '3.11'"),
        ({"retries": -1}, "retries.max_retries: -1 is not allowed; give a number of at least 0"),
        ({"retries": True}, "retries: True is not allowed"),
        ({"retries": {"max_retries": 1, "max": 3}}, "retries.max: unknown option"),
        ({"retries": {"max_retries": 1, "backoff": 0.5}}, "retries.backoff: 0.5 is not allowed"),
        ({"internode_interconnect": "infinband"}, "did you mean 'InfiniBand'?"),
        ({"intranode_interconnect": "SXM9"}, "give one of SXM, SXM2"),
        ({"cpu": 0}, "cpu: 0 is not allowed; give a number above 0"),
        ({"memory": "64"}, "memory: '64' is not allowed; give a size in GB, as in 64 or '64GB'"),
        ({"memory": -1}, "memory: -1 is not allowed"),
        ({"memory": "9" * 400 + "GB"}, "is not allowed; give a size in GB"),
        (
            {"start": "forkserver"},
            "start: 'forkserver' is not allowed; give 'auto', 'fork' or 'spawn'",
        ),
        ({"results": "json"}, "results: 'json' is not allowed; give 'any' or 'plain'"),
        ({"stop_signal": "SIGKILL"}, "SIGKILL cannot be caught by a worker"),
        ({"stop_signal": "SIGTREM"}, "did you mean 'SIGTERM'?"),
        ({"stop_signal": 15}, "stop_signal: 15 is not allowed; give one of SIGTERM"),
        ({"grace_seconds": -1}, "grace_seconds: -1 is not allowed; give a number of at least 0"),
        ({"join_timeout_seconds": 0}, "join_timeout_seconds: 0 is not allowed"),
        (
            {"command": []},
            "command: [] is not allowed; give a list of words, or a line for the shell",
        ),
        ({"command": "  "}, "command: '  ' is not allowed"),
        ({"command": ["ls", 3]}, "command: 3 is not allowed; give words of a command as texts"),
        ({"workdir": " "}, "workdir: ' ' is not allowed; give a directory of the project, as in"),
        (
            {"files": {"/x": "y"}},
            "'/x' is not allowed; give where the file is to be, below the working",
        ),
        ({"files": {"x": 3}}, "x: 3 is not allowed; give a path on this machine"),
        (
            {"workdir": "/app", "sync": True},
            "/app is a directory that the nodes have, and sync puts",
        ),
        ({"name": "a b"}, "name: 'a b' is not allowed; give 1 to 63 letters"),
        ({"name": ""}, "name: '' is not allowed"),
        ({"provider": ""}, "provider: '' is not allowed"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        TaskConfig(**options)
    message = str(caught.value)
    assert text in message
    assert "\n" not in message
    assert "pydantic" not in message
    assert "validation error" not in message


def test_every_problem_gets_a_line() -> None:
    with pytest.raises(SpecError) as caught:
        TaskConfig(num_instances=0, gpu="nope", prority="low")  # type: ignore[call-arg]
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "num_instances",
        "gpu",
        "prority",
    ]


def test_an_error_is_a_value_error_and_hides_pydantic() -> None:
    with pytest.raises(ValueError, match="num_instances") as caught:
        TaskConfig(num_instances=0)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_what_right_options_become() -> None:
    config = TaskConfig(
        gpu="H100:8",
        retries=2,
        memory="1.5TB",
        stop_signal="int",
        internode_interconnect="infiniband",
        intranode_interconnect="sxm5",
        secrets=["A", {"name": "B", "env": "C"}],
        command=["python", "train.py"],
        dependencies=["numpy>=2"],
        workdir="/data/",
        max_cost=10,
        volumes=None,
        environment=None,
    )
    assert config.gpu == "h100:8"
    assert config.retries == Retries(2)
    assert config.memory == 1500.0
    assert config.stop_signal == "SIGINT"
    assert config.internode_interconnect == "InfiniBand"
    assert config.intranode_interconnect == "SXM5"
    assert config.secrets == (Secret("A"), Secret("B", env="C"))
    assert config.command == ("python", "train.py")
    assert config.dependencies == ("numpy>=2",)
    assert config.workdir == "/data"
    assert config.volumes == {}
    assert config.environment == {}


@pytest.mark.parametrize(
    ("options", "workers", "total", "gpus"),
    [
        ({}, 1, 1, 0),
        ({"num_instances": 4}, 1, 4, 0),
        ({"num_instances": 4, "gpu": "h100:8"}, 8, 32, 32),
        ({"num_instances": 4, "gpu": "h100:8", "processes_per_node": 2}, 2, 8, 32),
        ({"num_instances": 4, "gpu": "h100:8", "distributed_mode": "manual"}, 1, 4, 32),
        ({"num_instances": 2, "processes_per_node": 3, "distributed_mode": "manual"}, 1, 2, 0),
        ({"num_instances": 2, "processes_per_node": 3}, 3, 6, 0),
    ],
)
def test_sizes_of_the_gang(options: dict[str, Any], workers: int, total: int, gpus: int) -> None:
    config = TaskConfig(**options)
    assert (config.workers_per_node, config.total_processes, config.total_gpus) == (
        workers,
        total,
        gpus,
    )


@pytest.mark.parametrize("option", ["after", "checkpoint", "notify", "outputs", "secrets", "setup"])
def test_none_turns_an_option_off_that_the_app_has(option: str) -> None:
    """`notify` was the only one of them that took no None."""
    off: dict[str, Any] = {option: None}
    assert not getattr(TaskConfig(**off), option)
    given = TaskConfig(notify="true")
    assert given.replace(notify=None).notify == ()


def test_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        TaskConfig().num_instances = 3


def test_replace_checks_and_keeps_the_call() -> None:
    call = BoundCall(print, ("x",), {})
    config = TaskConfig(num_instances=2, gpu="h100").with_call(call)
    changed = config.replace(num_instances=3)
    assert (changed.num_instances, changed.gpu, changed.call) == (3, "h100", call)
    assert changed.model_fields_set == {"num_instances", "gpu", "command"}
    assert config.replace(command="ls").call is None
    with pytest.raises(SpecError, match="num_instances"):
        config.replace(num_instances=0)


def test_defaults_fill_only_what_was_not_given() -> None:
    config = TaskConfig(priority="low", max_cost=None)
    filled = config.with_defaults({"priority": "high", "max_cost": 5.0, "region": "here"})
    assert (filled.priority, filled.max_cost, filled.region) == ("low", None, "here")
    assert TaskConfig().with_defaults({}) == TaskConfig()


def test_text_form_has_everything_but_the_secrets_values_and_sources() -> None:
    config = TaskConfig(
        name="x",
        volumes={"/a": {"name": "v", "size_gb": 3}},
        mounts={"/b": "s3://bucket/x"},
        secrets=[Secret("TOKEN", file="/very/private")],
        retries=Retries(3, delay=2),
        command=["a", "b"],
        dependencies=["numpy"],
    )
    data = json.loads(config.to_json())
    assert data == config.to_dict()
    assert data["secrets"] == ["TOKEN"]
    assert "private" not in config.to_json()
    back = TaskConfig.from_json(config.to_json())
    assert back == config.replace(secrets=["TOKEN"])
    assert TaskConfig.from_json(config.to_dict()) == back
    assert set(data) == set(TaskConfig.model_fields)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"num_instances": 0}'])
def test_wrong_text_forms_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        TaskConfig.from_json(text)


def test_retries_by_position() -> None:
    retries = Retries(5, delay=1, backoff=3, max_delay=10)
    assert (retries.max_retries, retries.delay, retries.backoff, retries.max_delay) == (5, 1, 3, 10)
    with pytest.raises(SpecError, match="dealy: unknown option; did you mean 'delay'"):
        Retries(1, dealy=3)  # type: ignore[call-arg]
    with pytest.raises(SpecError, match="max_retries: is missing"):
        Retries()  # type: ignore[call-arg]
    with pytest.raises(SpecError, match="by name"):
        Retries(1, 2)  # type: ignore[call-arg]


positive = st.floats(min_value=0.001, max_value=1e9)
configs = st.fixed_dictionaries(
    {},
    optional={
        "num_instances": st.integers(1, 10_000),
        "processes_per_node": st.integers(1, 64) | st.just("auto"),
        "gpu": st.sampled_from(["h100", "a100-80gb:4", "h100-80gb.sxm.8x"]),
        "environment": st.dictionaries(
            st.from_regex(r"[A-Z][A-Z0-9_]{3,8}_", fullmatch=True),
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
            max_size=3,
        ),
        "max_cost": positive,
        "max_run_time_hours": positive,
        "retries": st.integers(0, 1000),
        "command": st.lists(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
            min_size=1,
            # A launcher is refused on several nodes. Hypothesis also draws the names that it finds in the code.
        ).filter(lambda command: launcher_in(command) is None),
        "memory": positive,
    },
)


@given(configs)
def test_text_form_is_read_back_to_the_same(options: dict[str, Any]) -> None:
    config = TaskConfig(**options)
    assert TaskConfig.from_json(config.to_json()) == config
    assert TaskConfig.from_json(config.to_json()).to_json() == config.to_json()


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from(sorted(TaskConfig.model_fields)), junk, min_size=1, max_size=4)
)
def test_any_values_are_taken_or_refused_in_words(options: dict[str, Any]) -> None:
    problem, config = "", TaskConfig()
    try:
        config = TaskConfig(**options)
    except SpecError as error:
        problem = str(error)
    assert "pydantic" not in problem
    assert all(len(line) < 900 for line in problem.splitlines())
    assert TaskConfig.from_json(config.to_json()).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("10m", 600.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("45", 45.0),
        (30, 30.0),
        (0, 0.0),
        ("0", 0.0),
        ("1 h", 3600.0),
        (None, None),
    ],
)
def test_keep_warm_is_read_into_seconds(given: float | str | None, seconds: float | None) -> None:
    config = TaskConfig(keep_warm=given)
    assert config.keep_warm == seconds
    assert config.to_dict()["keep_warm"] == seconds
    assert TaskConfig.from_json(config.to_json()).keep_warm == seconds


@pytest.mark.parametrize("given", ["", "soon", "10x", "m", -1, True, "25h", float("nan"), "1m1h"])
def test_a_keep_warm_that_is_none_says_what_is(given: object) -> None:
    with pytest.raises(SpecError, match=r"keep_warm: .* is not allowed; give a time of at most a"):
        TaskConfig(keep_warm=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"gpu": "H100:8, a100-80gb:8"}, {"gpu": ("h100:8", "a100-80gb:8")}),
        ({"gpu": ["h100:8", "h100.8x"]}, {"gpu": "h100:8"}),
        ({"provider": "slurm,aws"}, {"provider": ("slurm", "aws")}),
        ({"provider": ["any"]}, {"provider": "any"}),
        ({"region": ("us-*", "eu-west-1")}, {"region": ("us-*", "eu-west-1")}),
        ({"spot": "prefer", "prefer": "order"}, {"spot": "prefer", "prefer": "order"}),
        ({"max_wait_hours": "90m"}, {"max_wait_hours": 1.5}),
    ],
)
def test_options_that_take_several_values(options: dict[str, Any], found: dict[str, Any]) -> None:
    config = TaskConfig(**options)
    assert {name: getattr(config, name) for name in found} == found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TaskConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gpu": []}, "gpu: [] is not allowed; give one value or several"),
        ({"gpu": "h100:8,"}, "gpu: '' is not a GPU"),
        ({"gpu": ["h100:8", 3]}, "gpu: 3 is not allowed"),
        ({"provider": ["any", "aws"]}, "or 'any' alone for all that are set up"),
        ({"region": ["a b"]}, "region: 'a b' is not allowed"),
        ({"spot": "maybe"}, "spot: 'maybe' is not allowed; give True, False, or 'prefer'"),
        ({"prefer": "speed"}, "prefer: 'speed' is not allowed; give 'price' or 'order'"),
    ],
)
def test_wrong_lists_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        TaskConfig(**options)
    assert text in str(caught.value)
