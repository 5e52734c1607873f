"""What `nvidia-smi` and the kernel's log say of GPUs, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.node.preflight.gpu_health import GpuHealth, parse, usable
from flowlite.node.system import node_facts

WELL = "0, 00000000:41:00.0, 0\n1, 00000000:C1:00.0, 0\n"
BOTH = ("0000:41:00.0", "0000:c1:00.0")
LOG = "[12.5] NVRM: Xid (PCI:0000:{bus}): {xid}, pid='<unknown>', name=<unknown>, some words\n"


def test_sound_gpus() -> None:
    before = parse(WELL, "", BOTH)
    assert before == GpuHealth(errors={"0": 0, "1": 0})
    assert before.troubles(GpuHealth()) == []


def test_a_gpu_that_is_lost() -> None:
    said = "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system\n"
    assert parse(said, "", BOTH).out_of_reach == said.strip()
    known = parse(WELL.splitlines()[0] + "\n", "", BOTH)
    assert "1 GPU has fallen off the bus" in known.out_of_reach
    # On a machine that is shared, the other GPUs are none of ours.
    assert parse(WELL.splitlines()[0] + "\n", "", BOTH, visible="0").out_of_reach == ""


def test_only_new_errors_count() -> None:
    old = parse("0, 00000000:41:00.0, 3\n", LOG.format(bus="41:00", xid=79), BOTH[:1])
    assert old.troubles(old) == []
    now = parse("0, 00000000:41:00.0, 5\n", LOG.format(bus="41:00", xid=79) * 2, BOTH[:1])
    assert now.troubles(old) == [
        "GPU 0 has 2 new uncorrectable memory errors (ECC)",
        "XID 79 of GPU 0 in the kernel's log: fallen off the bus",
    ]


def test_errors_of_programs_and_of_gpus_of_others_do_not_count() -> None:
    log = "".join(LOG.format(bus="41:00", xid=xid) for xid in (13, 31, 43, 45))
    assert parse(WELL, log, BOTH).troubles(GpuHealth()) == []
    other = parse(WELL, LOG.format(bus="C1:00", xid=48), BOTH, visible="0")
    assert other.troubles(GpuHealth()) == []
    ours = parse(WELL, LOG.format(bus="c1:00", xid=48), BOTH, visible="1")
    assert ours.troubles(GpuHealth()) == [
        "XID 48 of GPU 1 in the kernel's log: an uncorrectable memory error"
    ]


def test_nothing_is_claimed_where_nothing_can_be_read() -> None:
    for said in ("", "NVIDIA-SMI has failed because it couldn't communicate with the driver\n"):
        assert parse(said, "", BOTH).troubles(GpuHealth()) == []
    assert parse("0, [N/A], [N/A]\n", "", BOTH[:1]).troubles(GpuHealth()) == []


def test_gpus_that_a_job_may_not_use_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, devices = tmp_path / "gpus", tmp_path / "dev"
    devices.mkdir()
    for minor, bus in enumerate(("0000:41:00.0", "0000:c1:00.0", "0000:e1:00.0")):
        (driver / bus).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        (driver / bus / "information").write_text(text)
        if minor < 2:
            (devices / f"nvidia{minor}").touch()
    monkeypatch.setattr(node_facts, "NVIDIA", driver)
    monkeypatch.setattr(node_facts, "DEVICES", devices)
    known = usable()
    assert sorted(known) == list(BOTH)
    assert node_facts.gpus() == {"count": 2, "kind": "NVIDIA H100"}
    # As `nvidia-smi` lists them within the job: all that it may use, and none of another job.
    found = parse(WELL, LOG.format(bus="e1:00", xid=79), known)
    assert found.out_of_reach == ""
    assert found.troubles(GpuHealth()) == []
    # A GPU of the job itself that is not listed any more is missing, and its errors count.
    lost = parse(WELL.splitlines()[0] + "\n", LOG.format(bus="c1:00", xid=79), known)
    assert "1 GPU has fallen off the bus" in lost.out_of_reach
    assert "XID 79 of the GPU at PCI 0000:c1:00 in the kernel's log: fallen off the bus" in (
        lost.troubles(GpuHealth())
    )


def test_gpus_whose_devices_are_not_there_yet_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bus in BOTH:
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: NVIDIA T4\n")
    monkeypatch.setattr(node_facts, "NVIDIA", tmp_path)
    monkeypatch.setattr(node_facts, "DEVICES", tmp_path / "dev")
    assert node_facts.gpus() == {"count": 2, "kind": "NVIDIA T4"}
    assert usable() == []


def test_gpus_of_amd_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, devices = tmp_path / "nodes", tmp_path / "dev"
    (devices / "dri").mkdir(parents=True)
    # A processor, two GPUs, and one that a job or a container may not use.
    for number, simds, minor in ((0, 0, 0), (1, 304, 128), (2, 304, 129), (3, 304, 130)):
        (nodes / str(number)).mkdir(parents=True)
        facts = (
            f"cpu_cores_count {0 if simds else 64}\nsimd_count {simds}\ndrm_render_minor {minor}\n"
        )
        (nodes / str(number) / "properties").write_text(facts)
        (nodes / str(number) / "name").write_text("aqua_vanjaram\n" if simds else "\n")
        if 128 <= minor < 130:
            (devices / "dri" / f"renderD{minor}").touch()
    monkeypatch.setattr(node_facts, "NVIDIA", tmp_path / "none")
    monkeypatch.setattr(node_facts, "_AMD", nodes)
    monkeypatch.setattr(node_facts, "DEVICES", devices)
    assert node_facts.gpus() == {"count": 2, "kind": "AMD aqua_vanjaram"}
    assert node_facts.wrong_gpus({"count": 2, "kind": "mi300x"}, node_facts.gpus()) is None
    assert not node_facts.only_cpu()
