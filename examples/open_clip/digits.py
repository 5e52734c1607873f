"""A model small enough for a laptop, and handwritten digits with captions as a webdataset."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHARDS = 8
IMAGES = 512
MODEL = {
    "embed_dim": 32,
    "vision_cfg": {
        "image_size": 32,
        "patch_size": 8,
        "layers": 1,
        "width": 32,
        "head_width": 16,
        "mlp_ratio": 2.0,
    },
    "text_cfg": {
        "context_length": 16,
        "vocab_size": 49408,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "mlp_ratio": 2.0,
    },
}


def model() -> Path:
    """A directory that OpenCLIP takes as `--model local-dir:…`."""

    def write(directory: Path) -> None:
        config = {"model_cfg": MODEL, "preprocess_cfg": {}}
        (directory / "open_clip_config.json").write_text(json.dumps(config))

    return _once("model", write)


def shards() -> str:
    """The tar files of the data set, as OpenCLIP's `--train-data` names them."""

    def write(directory: Path) -> None:
        from PIL import Image
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        for shard in range(SHARDS):
            with tarfile.open(directory / f"{shard:03d}.tar", "w") as archive:
                for i in range(shard, IMAGES, SHARDS):
                    pixels = (images[i].reshape(8, 8) * 15.9).astype("uint8")
                    png = io.BytesIO()
                    Image.fromarray(pixels).resize((32, 32)).convert("RGB").save(png, "PNG")
                    _add(archive, f"{i:05d}.png", png.getvalue())
                    caption = f"a handwritten {WORDS[digits[i]]}"
                    _add(archive, f"{i:05d}.txt", caption.encode())

    return f"{_once('shards', write)}/{{000..{SHARDS - 1:03d}}}.tar"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _once(name: str, write: Callable[[Path], None]) -> Path:
    """Makes a directory on this node. All processes of the node may try: the first that is done gives it its name."""
    made = Path(tempfile.gettempdir()) / f"flowlite-clip-{os.getuid()}" / name
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=made.parent))
        write(draft)
        try:
            draft.rename(made)
        except OSError:  # somebody else's is there
            shutil.rmtree(draft)
    return made
