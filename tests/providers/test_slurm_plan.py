"""What is asked for becomes one job, or is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import ConfigError
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig
from flowlite.spec.slurm import checked, of_words
from provider_adapters.slurm.provider import SlurmProvider
from provider_adapters.slurm.queries.partitions import is_kind
from tests.providers.slurm_on_paper import Paper


def asked(paper: Paper, **options: Any) -> list[str]:
    """The options of sbatch, as it would be given them."""
    plan = paper.plan(**options)
    return [f"{name}={value}" if value else name for name, value in plan.options["directives"]]


def test_gpus_become_gres_of_the_clusters_own_name(slurm_paper: Paper) -> None:
    assert asked(slurm_paper, gpu="a100:4") == ["gpus-per-node=a100:4"]
    found = asked(slurm_paper, gpu="h100:8", slurm={"partition": "big"})
    assert found == ["partition=big", "gpus-per-node=nvidia_h100_80gb_hbm3:8"]


def test_gpus_that_a_partition_lacks_are_refused_with_what_it_has(slurm_paper: Paper) -> None:
    with pytest.raises(ConfigError, match=r"h100:8 was asked for, and the partition main has a100"):
        slurm_paper.plan(gpu="h100:8")
    with pytest.raises(ConfigError, match="has no GPUs"):
        slurm_paper.plan(gpu="a100", slurm={"partition": "cpu"})


def test_gpus_in_slurms_words_go_through(slurm_paper: Paper) -> None:
    assert asked(slurm_paper, gpu="h100:8", slurm={"gres": "gpu:8"}) == ["gres=gpu:8"]
    found = asked(slurm_paper, gpu="h100:8", slurm={"gpus_per_node": 8})
    assert found == ["gpus-per-node=8"]


def test_gpus_without_a_type_are_taken_with_a_note(slurm_paper: Paper) -> None:
    slurm_paper.slurm.sinfo = "main|main*|up|infinite|n/a|4|8|16000|gpu:2|idle\n"
    plan = slurm_paper.plan(gpu="h100:2")
    assert ["gpus-per-node", "2"] in plan.options["directives"]
    assert any("does not tell which GPUs" in note for note in plan.notes)


def test_the_partition_and_account_of_every_login_are_those_of_the_plan(
    slurm_paper: Paper,
) -> None:
    slurm_paper.slurm.asked = "SBATCH_ACCOUNT=chemistry SBATCH_PARTITION=big SBATCH_DEBUG=1"
    plan = slurm_paper.plan(gpu="h100:8")
    assert plan.region == "big"
    assert ["account", "chemistry"] in plan.options["directives"]
    assert asked(slurm_paper, slurm={"partition": "hour", "account": "physics"}) == [
        *("partition=hour", "account=physics")
    ]


def test_a_cluster_that_does_not_show_its_nodes_is_asked_for_them(slurm_paper: Paper) -> None:
    slurm_paper.slurm.private = True
    plan = slurm_paper.plan(gpu="h100:2", slurm={"partition": "big"}, max_run_time_hours=1)
    assert ["gpus-per-node", "h100:2"] in plan.options["directives"]
    assert any("that it has h100:2 is not checked" in note for note in plan.notes)
    found = slurm_paper.launch(slurm_paper.intend())
    assert [each.address for each in found] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("written", "kind", "same"),
    [
        ("a100", "a100", True),
        ("A100", "a100", True),
        ("nvidia_a100-sxm4-80gb", "a100", True),
        ("nvidia_h100_80gb_hbm3", "h100", True),
        ("l40s", "l40", False),
        ("a100", "a10", False),
        ("tesla_v100-pcie-16gb", "v100", True),
    ],
)
def test_names_of_gpus(written: str, kind: str, same: bool) -> None:
    assert is_kind(written, kind) is same


def test_time_is_asked_for_with_room_around_it(slurm_paper: Paper) -> None:
    plan = slurm_paper.plan(max_run_time_hours=0.5, grace_seconds=10)
    # Half an hour, three minutes around it, ten seconds of grace.
    assert plan.options["minutes"] == 34
    assert plan.max_run_seconds == 1800


def test_where_the_partition_has_no_room_the_nodes_stop_earlier(slurm_paper: Paper) -> None:
    plan = slurm_paper.plan(max_run_time_hours=1.0, grace_seconds=10, region="hour")
    assert plan.options["minutes"] == 60
    assert plan.max_run_seconds == 3600 - 190
    assert any("workers are stopped after 0:56:50" in note for note in plan.notes)


def test_more_time_than_the_partition_gives_is_refused(slurm_paper: Paper) -> None:
    with pytest.raises(ConfigError, match=r"the partition hour ends a job after 1:00:00"):
        slurm_paper.plan(max_run_time_hours=2, region="hour")


def test_without_a_limit_the_partitions_own_is_told(slurm_paper: Paper) -> None:
    assert any("ends a job after 1:00:00" in note for note in slurm_paper.plan().notes)
    assert slurm_paper.plan().options["minutes"] is None


def test_too_many_nodes_or_too_big_ones_are_refused(slurm_paper: Paper) -> None:
    with pytest.raises(ConfigError, match="5 nodes were asked for, and the partition main has 4"):
        slurm_paper.plan(num_instances=5)
    with pytest.raises(ConfigError, match="its biggest have 8 cores and 16 GB"):
        slurm_paper.plan(cpu=9)
    with pytest.raises(ConfigError, match="has 0 such"):
        slurm_paper.plan(memory="64GB")


def test_cores_and_memory(slurm_paper: Paper) -> None:
    assert slurm_paper.plan(cpu=3.5).options["cpus"] == 4
    assert "mem=8000M" in asked(slurm_paper, memory=8)
    assert asked(slurm_paper, memory=8, slurm={"mem": "0"}) == ["mem=0"]
    plan = slurm_paper.plan(cpu=None, processes_per_node=3)
    assert plan.options["cpus"] == 3
    assert any("cpu was not given" in note for note in plan.notes)
    assert slurm_paper.plan(cpu=None, slurm={"exclusive": True}).options["cpus"] is None


def test_unknown_partitions_have_near_ones(slurm_paper: Paper) -> None:
    with pytest.raises(ConfigError, match="did you mean 'short'"):
        slurm_paper.plan(slurm={"partition": "shrt"})
    # A list is Slurm's to choose from.
    assert slurm_paper.plan(slurm={"partition": "main,big"}).region == "main,big"


def test_a_region_is_a_partition(slurm_paper: Paper) -> None:
    assert slurm_paper.plan(region="cpu").region == "cpu"


def test_what_has_no_meaning_here_is_said(slurm_paper: Paper) -> None:
    notes = " ".join(slurm_paper.plan(spot=True, priority="high", max_cost=5.0).notes)
    for word in ("spot", "priority", "cost caps"):
        assert word in notes


def test_volumes_lie_in_the_shared_directory(slurm_paper: Paper) -> None:
    found = slurm_paper.launch(slurm_paper.intend(volumes={"/data": "data"}))
    plan = slurm_paper.plan(volumes={"/data": "data"})
    (volume,) = slurm_paper.provider.node_settings(plan, found[0]).volumes
    assert volume["source"] == "/users/ada/.flowlite-slurm/volumes/data"
    with pytest.raises(ConfigError, match="no block volumes"):
        slurm_paper.plan(volumes={"/data": {"name": "data", "interface": "block"}}, num_instances=1)
    slurm_paper.configure(shared_dir="none")
    with pytest.raises(ConfigError, match="shared_dir"):
        slurm_paper.plan(volumes={"/data": "data"})


def test_an_image_needs_a_way_to_run_it(slurm_paper: Paper) -> None:
    with pytest.raises(ConfigError, match='"pyxis" or "apptainer"'):
        slurm_paper.plan(image="nvcr.io/nvidia/pytorch:24.01-py3")
    slurm_paper.configure(container="apptainer")
    slurm_paper.launch(slurm_paper.intend(image="pytorch.sif"))
    assert "apptainer" in slurm_paper.slurm.job().script
    # A setting of the cluster concerns tasks that have an image.
    assert slurm_paper.plan().options["step_container"] is None


# Options


def test_options_are_checked_when_they_are_given() -> None:
    with pytest.raises(ConfigError, match="did you mean 'partition'"):
        TaskConfig(command="true", slurm={"partion": "gpu"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ConfigError, match="use num_instances"):
        TaskConfig(command="true", slurm={"sbatch": ["#SBATCH --nodes=3"]})
    for option in (
        *("--clusters=other", "-M other", "-Mother"),
        # As sbatch reads a line: options may be abbreviated, and there may be several.
        *("--cluster=other", "--licenses=abaqus:1 --clusters=other", "-L abaqus:1 -M other"),
    ):
        # Its number would be looked up, and cancelled, at the cluster of the login node.
        with pytest.raises(ConfigError, match="use a login node of that cluster"):
            TaskConfig(command="true", slurm={"sbatch": [option]})
    for option in ("--dependency=singleton", "-d singleton", "-dafterok:7,singleton --hold"):
        # Each task's job has a name of its own, so that it would begin beside the others.
        with pytest.raises(ConfigError, match="waits for jobs of the same name"):
            TaskConfig(command="true", slurm={"sbatch": [option]})
    others = [
        "--licenses=abaqus:1 --hold",
        "--time-min=5",
        "--mail-user='a -N b'",
        "-C ib",
        "--dependency=after:7",
    ]
    assert TaskConfig(command="true", slurm={"sbatch": others}).slurm == {"sbatch": tuple(others)}
    config = TaskConfig(command="true", slurm={"nodelist": ["n1", "n2"], "mem": 4000})
    assert config.slurm == {"nodelist": "n1,n2", "mem": "4000M"}
    assert TaskConfig.from_json(config.to_json()).slurm == config.slurm


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "a b"},
        {"partition": "x\n#SBATCH --uid=0"},
        {"account": ""},
        {"gres": 4},
        {"mem": "lots"},
        {"gpus_per_node": 0},
        {"exclusive": "yes"},
        {"nodelist": "n1; rm"},
        {"sbatch": "--x"},
        {"sbatch": ["rm -rf"]},
        {"sbatch": ["--x=1\n#SBATCH --y"]},
        {"sbatch": ["-t 10"]},
        {"container": "docker"},
        {"image": "a b"},
        {"constraint": "\n"},
        {"constraint": 'a100" --export=BASH_ENV=/tmp/theirs "'},
        {"constraint": "a100\\"},
    ],
)
def test_wrong_values_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        checked(options)


def test_options_of_the_command_line() -> None:
    assert of_words(["partition=gpu", "exclusive=true", "sbatch=--a=1", "sbatch=--b"]) == {
        "partition": "gpu",
        "exclusive": True,
        "sbatch": ("--a=1", "--b"),
    }
    with pytest.raises(ValueError, match="NAME=VALUE"):
        of_words(["partition"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"logn": "x"}, "did you mean 'login'"),
        ({"login": "a b"}, "user@cluster"),
        ({"shared_dir": "relative"}, "absolute path"),
        ({"shared_dir": "/a b"}, "without blanks"),
        ({"node_dir": "/" + "x" * 80}, "at most 60"),
        ({"lease": "10s"}, "at least 60"),
        ({"signal_seconds": 0}, "1 to"),
        ({"partition": "a b"}, "without blanks"),
    ],
)
def test_wrong_settings_are_refused_with_where_they_stand(
    slurm_paper: Paper, settings: dict[str, object], words: str
) -> None:
    slurm_paper.configure(**settings)
    with pytest.raises(ConfigError, match=words) as caught:
        slurm_paper.plan()
    assert "config.toml" in str(caught.value)
    assert "[slurm]" in str(caught.value)


# What can be had


def test_offers_are_partitions(slurm_paper: Paper) -> None:
    found = slurm_paper.provider.offers("h100:8", 2)
    assert (found[0].region, found[0].gpu, found[0].fits) == ("big", "nvidia_h100_80gb_hbm3", True)
    assert not found[1].fits
    assert found[0].price_per_hour == 0.0
    assert "64 nodes, 0 idle" in found[0].note
    assert [offer.region for offer in slurm_paper.provider.offers(region="cpu")] == ["cpu"]


def test_check_looks_at_everything_and_submits_nothing(slurm_paper: Paper) -> None:
    found = {each.what: each for each in slurm_paper.provider.check()}
    assert all(each.ok for each in found.values())
    assert {"Slurm's commands", "slurmctld", "a job would be taken", "accounting"} <= set(found)
    assert slurm_paper.slurm.jobs == []
    slurm_paper.slurm.down = True
    assert not slurm_paper.make().check()[-1].ok


def test_elsewhere_it_is_said_that_nothing_comes_of_them(slurm_paper: Paper) -> None:
    from flowlite.api.candidates.capped_plan import with_notes
    from flowlite.provider import Plan

    config = TaskConfig(command="true", slurm={"partition": "main"})
    told = with_notes(config, Plan("local", "this machine", 1, 1))
    assert told.notes == ("slurm={…} has no effect on the provider local",)
    here = slurm_paper.provider.plan(config)
    assert with_notes(config, here).notes == here.notes


def test_it_counts_as_set_up_where_slurm_is_or_somebody_has_said_where(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    slurm_paper.configure()
    assert not slurm_paper.make().configured()
    assert slurm_paper.make().list_instances() == []
    # Which all providers with hosts read.
    here = ProviderSettings("slurm").with_value("ssh_config", "/a/config", "FLOW_SSH_CONFIG")
    assert not SlurmProvider(tmp_path / "home", here).configured()
    slurm_paper.configure(login="ada@cluster")
    assert slurm_paper.make().configured()
    slurm_paper.configure()
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    # The commands alone are no cluster.
    assert not slurm_paper.make().configured()
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    assert slurm_paper.make().configured()
