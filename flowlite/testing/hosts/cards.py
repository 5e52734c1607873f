"""Fake GPUs as a driver shows them, in /proc and through `nvidia-smi`. They cannot compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACE = "driver"
_INFORMATION = """\
Model: \t\t {name}
IRQ:   \t\t {irq}
GPU UUID: \t GPU-00000000-0000-0000-0000-{index:012d}
Bus Type: \t PCIe
Device Minor: \t {index}
"""
# Like the real tool, it is queried by field name, with or without units.
_TOOL = """\
#!/bin/sh
fields= unit=' MiB' percent=' %'
for word; do
    case $word in
        --query-gpu=*) fields=${{word#*=}} ;;
        --format=*nounits*) unit= percent= ;;
    esac
done
index=0
while [ $index -lt {count} ]; do
    uuid=$(printf 'GPU-00000000-0000-0000-0000-%012d' $index)
    if [ -z "$fields" ]; then
        echo "GPU $index: {name} (UUID: $uuid)"
    else
        line=
        for field in $(echo "$fields" | tr , ' '); do
            case $field in
                index) value=$index ;;
                uuid|gpu_uuid) value=$uuid ;;
                name|gpu_name) value='{name}' ;;
                memory.total) value="{memory}$unit" ;;
                memory.used) value="0$unit" ;;
                memory.free) value="{memory}$unit" ;;
                utilization.gpu) value="0$percent" ;;
                count) value={count} ;;
                driver_version) value=570.133.20 ;;
                *) value='[N/A]' ;;
            esac
            line="${{line:+$line, }}$value"
        done
        echo "$line"
    fi
    index=$((index + 1))
done
"""


def install(disk: Path, gpus: Mapping[str, Any]) -> None:
    """Writes what a driver would show for `count` GPUs to a host's disk: their `name`, and `memory` MiB each."""
    cards = disk / PLACE / "nvidia" / "gpus"
    for index in range(int(gpus["count"])):
        card = cards / f"0000:{index + 1:02x}:00.0"
        card.mkdir(parents=True)
        text = _INFORMATION.format(name=gpus["name"], irq=100 + index, index=index)
        (card / "information").write_text(text)
    tool = disk / "upper" / "usr" / "bin" / "nvidia-smi"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_text(_TOOL.format(**gpus))
    tool.chmod(0o755)
