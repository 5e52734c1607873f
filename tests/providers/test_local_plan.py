"""Plans of the local provider: rehearsal, refusals, notes, caps. Nothing is launched here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.api.candidates.capped_plan import with_caps, with_notes
from flowlite.errors import CapExceeded, ConfigError
from flowlite.provider import Plan
from flowlite.spec import TaskConfig
from provider_adapters.local import LocalProvider
from provider_adapters.local.gpus import Gpu, parse, visible

EIGHT = "\n".join(f"{i}, GPU-{i}aaa-bbb, NVIDIA H100 80GB HBM3, 81559" for i in range(8))
OTHERS = "0, GPU-0, NVIDIA GeForce RTX 4090, 24564\n1, GPU-1, Tesla T4, 15360"


@pytest.fixture
def provider(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> LocalProvider:
    no_gpus = flow_home / "bin"
    no_gpus.mkdir()
    monkeypatch.setenv("PATH", str(no_gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return adapter("local")


def gpus(home: Path, listing: str) -> None:
    """A machine that has these GPUs, as far as anybody can tell by nvidia-smi."""
    program = home / "bin" / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$*\" in *memory.total*) ;; *) exit 2;; esac\necho '{listing}'\n"
    )
    program.chmod(0o755)


def test_the_provider_is_found_by_name(flow_home: Path) -> None:
    assert adapter("local").name == "local"


def test_a_plan_without_gpu(provider: LocalProvider) -> None:
    plan = provider.plan(TaskConfig(num_instances=2, processes_per_node=4))
    assert (plan.num_instances, plan.processes_per_node, plan.gpus_per_node) == (2, 4, 0)
    assert (plan.gpu, plan.notes, plan.price_per_hour) == ("", (), 0.0)
    assert plan.options["workdir"] == os.getcwd()
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.worst_case_cost == 0.0


def test_a_working_directory_that_is_not_here(provider: LocalProvider) -> None:
    for config in (TaskConfig(workdir="/no/such"), TaskConfig(workdir="missing")):
        with pytest.raises(ConfigError, match="workdir: there is no directory"):
            provider.plan(config)
    on_volume = TaskConfig(workdir="/data/run", volumes={"/data": "corpus"})
    assert provider.plan(on_volume).options["workdir"] == "/data/run"


def test_planning_changes_nothing(provider: LocalProvider, flow_home: Path) -> None:
    before = sorted(flow_home.iterdir())
    provider.plan(TaskConfig(volumes={"/data": "corpus"}))
    assert sorted(flow_home.iterdir()) == before


def test_gpus_that_are_not_here_are_rehearsed_on_cpu(provider: LocalProvider) -> None:
    plan = provider.plan(TaskConfig(gpu="h100:8", num_instances=4))
    assert (plan.gpus_per_node, plan.gpu, plan.processes_per_node) == (0, "", 8)
    (note,) = plan.notes
    assert note == (
        "rehearsal on CPU: 4 × h100:8 was asked for and this machine has no GPU; "
        "32 processes without GPU will run"
    )


def test_gpus_that_are_here_are_used(provider: LocalProvider, flow_home: Path) -> None:
    gpus(flow_home, EIGHT)
    plan = provider.plan(TaskConfig(gpu="h100:4", num_instances=2))
    assert (plan.gpu, plan.gpus_per_node, plan.processes_per_node) == ("h100", 4, 4)
    assert plan.options["gpus"] == list(range(8))
    assert plan.notes == ()


def test_processes_that_share_gpus_are_noted(provider: LocalProvider, flow_home: Path) -> None:
    gpus(flow_home, EIGHT)
    config = TaskConfig(gpu="h100:4", num_instances=2, processes_per_node=8)
    (note,) = with_notes(config, provider.plan(config)).notes
    assert note.startswith("8 processes share 4 GPUs on each node (processes_per_node)")


@pytest.mark.parametrize("asked", ["h100:5", "a100:4", "h100-94gb:4"])
def test_gpus_that_do_not_fit_are_rehearsed(
    provider: LocalProvider, flow_home: Path, asked: str
) -> None:
    gpus(flow_home, EIGHT)
    plan = provider.plan(TaskConfig(gpu=asked, num_instances=2))
    assert plan.gpus_per_node == 0
    assert "8 × NVIDIA H100 80GB HBM3" in plan.notes[0]
    assert plan.options["hide_gpus"]


def test_a_task_without_gpu_does_not_see_those_of_the_machine(
    provider: LocalProvider, flow_home: Path
) -> None:
    gpus(flow_home, EIGHT)
    plan = provider.plan(TaskConfig())
    assert plan.options["hide_gpus"]
    assert "does not see" in plan.notes[0]


def test_manual_mode_starts_one_process(provider: LocalProvider) -> None:
    plan = provider.plan(TaskConfig(gpu="h100:8", distributed_mode="manual"))
    assert plan.processes_per_node == 1


def test_a_broken_driver_counts_as_no_gpu(provider: LocalProvider, flow_home: Path) -> None:
    program = flow_home / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    program.chmod(0o755)
    assert "no GPU" in provider.plan(TaskConfig(gpu="h100")).notes[0]


def test_names_of_the_driver_become_kinds() -> None:
    kinds = {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H200": "h200",
        "NVIDIA A100-SXM4-40GB": "a100",
        "NVIDIA A10G": "a10g",
        "Tesla V100-SXM2-16GB": "v100",
        "NVIDIA GeForce RTX 4090": "rtx4090",
        "NVIDIA L40S": "l40s",
        "NVIDIA RTX 6000 Ada Generation": "rtx6000ada",
        "NVIDIA Something New": "",
    }
    assert {name: Gpu(0, "", name, 1).kind for name in kinds} == kinds


def test_lines_of_nvidia_smi() -> None:
    found = parse(f"{EIGHT}\nno devices\n\n9, GPU-9, odd, [N/A]\n")
    assert [gpu.index for gpu in found] == [*range(8), 9]
    assert found[0].memory_gb == pytest.approx(79.6, abs=0.1)


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [0, 1]),
        ("", []),
        ("GPU-1", [1]),
        ("0,7,1", [0]),
        ("-1", []),
    ],
)
def test_cuda_visible_devices_is_obeyed(mask: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(parse(OTHERS), mask)] == indices


def test_caps(provider: LocalProvider, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 2.5\n")
    priced = adapter("local")
    with pytest.raises(CapExceeded, match=r"max_price_per_hour is \$2\.00.*\$2\.50"):
        priced.plan(TaskConfig(max_price_per_hour=2.0))
    config = TaskConfig(
        num_instances=2,
        max_price_per_hour=2.5,
        max_run_time_hours=3,
        max_cost=5.0,
        grace_seconds=0,
    )
    plan = with_caps(config, priced.plan(config), priced.teardown_seconds)
    assert plan.price_per_hour == 2.5
    assert plan.max_run_seconds == pytest.approx(3600)
    assert plan.worst_case_cost == pytest.approx(5.0)
    assert priced.plan(TaskConfig(max_run_time_hours=0.5)).max_run_seconds == 1800
    assert priced.plan(TaskConfig()).max_run_seconds is None


@pytest.mark.parametrize("price", ["-1", "'much'", "true", "nan"])
def test_a_price_that_is_none_is_refused(
    provider: LocalProvider, flow_home: Path, price: str
) -> None:
    (flow_home / "config.toml").write_text(f"[providers.local]\nprice_per_hour = {price}\n")
    with pytest.raises(ConfigError, match="price_per_hour is"):
        adapter("local").plan(TaskConfig())


def test_a_setting_that_does_not_exist_is_refused(provider: LocalProvider, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice = 1\n")
    with pytest.raises(ConfigError, match="no setting 'price'"):
        adapter("local").plan(TaskConfig())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu": 100_000}, "cpu: 100000 cores were asked for, and this machine has"),
        ({"memory": 10_000_000}, "memory: 1e\\+07 GB were asked for"),
        ({"num_instances": 10**8}, "num_instances: 100000000 × 1 workers do not fit into the"),
        ({"processes_per_node": 10**9}, "num_instances: 1 × 1000000000 workers do not fit"),
        (
            {"dependencies": "/no/such/requirements.txt"},
            "/no/such/requirements.txt cannot be read: No such file or directory$",
        ),
    ],
)
def test_what_cannot_be_had_here_is_refused(
    provider: LocalProvider, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        provider.plan(TaskConfig(**options))  # type: ignore[arg-type]


def test_an_elastic_gang_is_no_larger_than_this_machine(provider: LocalProvider) -> None:
    plan = provider.plan(TaskConfig(num_instances=(2, 10**8)))
    assert 2 < plan.num_instances < 10**8


def test_a_tool_for_buckets_that_is_missing_is_refused(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_S3_TOOL", "nothing")
    with pytest.raises(ConfigError, match=r"mounts: (there is no /dev/fuse|FLOW_S3_TOOL is 'noth)"):
        provider.plan(TaskConfig(mounts={"/data": "s3://bucket/x"}))


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"image": "pytorch/pytorch:2"}, "image pytorch/pytorch:2 is not used"),
        ({"region": "eu-west-1"}, "region eu-west-1 is ignored"),
        ({"spot": True}, "spot is ignored"),
        ({"spot": False}, "spot is ignored"),
        ({"internode_interconnect": "InfiniBand"}, "internode_interconnect InfiniBand"),
        ({"intranode_interconnect": "SXM5"}, "intranode_interconnect SXM5"),
        ({"cpu": 1}, "not reserved"),
    ],
)
def test_what_has_no_meaning_here_is_noted(
    provider: LocalProvider, options: dict[str, object], note: str
) -> None:
    (said,) = provider.plan(TaskConfig(**options)).notes  # type: ignore[arg-type]
    assert note in said


def test_offers(provider: LocalProvider, flow_home: Path) -> None:
    (offer,) = provider.offers()
    assert (offer.instance_type, offer.available, offer.gpu) == ("this machine", True, "")
    (offer,) = provider.offers("h100:8")
    assert offer.note == "rehearsal on CPU"
    gpus(flow_home, EIGHT)
    (offer,) = provider.offers("h100:4", 2)
    assert (offer.gpu, offer.gpus_per_node, offer.note) == ("h100", 4, "")
