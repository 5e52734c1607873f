"""What pyxis and apptainer are told, word by word."""

from __future__ import annotations

import re

import pytest

from flowlite.errors import ConfigError
from provider_adapters.slurm.containers import shown, wrap
from provider_adapters.slurm.script import Script, StepWrapper, render

MOUNTS = ["/tmp/flowlite-slurm-1000", "/users/ada/.flowlite-slurm"]


@pytest.mark.parametrize(
    ("image", "written"),
    [
        ("nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io#nvidia/pytorch:24.01-py3"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io#nvidia/pytorch:24.01-py3"),
        ("docker://ghcr.io/ada/clip:1", "ghcr.io#ada/clip:1"),
        ("localhost:5000/clip", "localhost:5000#clip"),
        ("pytorch/pytorch:2.4.0", "pytorch/pytorch:2.4.0"),
        ("ubuntu", "ubuntu"),
        ("/shared/images/clip.sqsh", "/shared/images/clip.sqsh"),
        ("./clip.sqsh", "./clip.sqsh"),
    ],
)
def test_pyxis(image: str, written: str) -> None:
    assert wrap("pyxis", image, MOUNTS) == StepWrapper(
        srun=(
            f"--container-image={written}",
            "--container-mount-home",
            "--container-mounts=/tmp:/tmp,/users/ada:/users/ada",
            "--container-workdir=/",
        )
    )


@pytest.mark.parametrize("kind", ["apptainer", "singularity"])
@pytest.mark.parametrize(
    ("image", "written"),
    [
        ("nvcr.io/nvidia/pytorch:24.01-py3", "docker://nvcr.io/nvidia/pytorch:24.01-py3"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", "docker://nvcr.io/nvidia/pytorch:24.01-py3"),
        ("docker://ubuntu", "docker://ubuntu"),
        ("library://sylabs/alpine", "library://sylabs/alpine"),
        ("oras://ghcr.io/ada/clip:1", "oras://ghcr.io/ada/clip:1"),
        ("/shared/images/clip.sif", "/shared/images/clip.sif"),
    ],
)
def test_apptainer(kind: str, image: str, written: str) -> None:
    assert wrap(kind, image, MOUNTS) == StepWrapper(
        command=(
            *(kind, "--silent", "exec", "--nv", "--bind", "/tmp,/users/ada", "--pwd", "/"),
            written,
        )
    )


def test_directories_are_shown_by_what_is_above_them() -> None:
    assert shown(["/scratch"]) == ["/scratch"]
    assert shown(["/tmp/a", "/tmp/b/c", "/users/ada/.flow/"]) == ["/tmp", "/users/ada"]
    assert shown(["/data/x", "/data-old/y"]) == ["/data", "/data-old"]
    assert shown([]) == []


def test_a_directory_that_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose another node_dir"):
        shown(["/scratch/my files/flow"])


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (
            "pyxis",
            "srun --kill-on-bad-exit=1 --wait=0 --overlap --cpu-bind=none --nodes=2 --ntasks=2 --ntasks-per-node=1 "
            "--container-image=nvcr.io#nvidia/pytorch:24.01-py3 --container-mount-home "
            "--container-mounts=/tmp:/tmp,/users/ada:/users/ada --container-workdir=/ sh -c",
        ),
        (
            "apptainer",
            "srun --kill-on-bad-exit=1 --wait=0 --overlap --cpu-bind=none --nodes=2 --ntasks=2 --ntasks-per-node=1 "
            "apptainer --silent exec --nv --bind /tmp,/users/ada --pwd / "
            "docker://nvcr.io/nvidia/pytorch:24.01-py3 sh -c",
        ),
    ],
)
def test_the_step_of_a_batch_script_is_wrapped(kind: str, step: str) -> None:
    text = render(
        Script(
            name="flow-t1",
            comment="flowlite:h:t1:c",
            nodes=2,
            node_dir="/tmp/flowlite-slurm-1000",
            program="0" * 64,
            lease=300.0,
            wrap=wrap(kind, "nvcr.io/nvidia/pytorch:24.01-py3", MOUNTS),
        )
    )
    (line,) = re.findall(r"^srun .*$", text, re.MULTILINE)
    assert line.replace("'", "").startswith(f'{step} "$node" flowlite')
