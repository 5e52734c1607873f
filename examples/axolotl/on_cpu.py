"""Axolotl's training program on a machine without a GPU: `python on_cpu.py CONFIG`, once per rank.

In a gang Axolotl puts the model on the accelerator with the number LOCAL_RANK, also where there is none.
"""

from __future__ import annotations

import sys
from typing import Any

from axolotl.cli.train import do_cli
from axolotl.loaders.model import ModelLoader

_on_gpu = ModelLoader._set_device_map_config


def _on_cpu(self: Any) -> None:
    self.cfg.device_map = {"": "cpu"}
    _on_gpu(self)


if __name__ == "__main__":
    ModelLoader._set_device_map_config = _on_cpu
    do_cli(sys.argv[1])
