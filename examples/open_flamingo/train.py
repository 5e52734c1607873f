"""Trains a tiny OpenFlamingo with its own code, from the package index: 2 nodes, 2 processes on each.

    flow run examples/open_flamingo/train.py::train              # run it again with --epochs 2, and it goes on

The process group, the model, the training loop and the checkpoints are OpenFlamingo's. Its program `train.py` needs
GPUs and its data sets, so what stands between them is here.
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from flowlite import Checkpoint, FlowApp

app = FlowApp()
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/flowlite-checkpoints") + "/flamingo"
STEPS, BATCH, IMAGE = 2, 2, 32
TEXT = "<image> a handwritten seven <|endofchunk|>"


@app.function(
    name="flamingo",
    num_instances=2,
    processes_per_node=2,
    checkpoint=Checkpoint("/flowlite-flamingo", CHECKPOINTS, every=2),
)
def train(epochs: int = 1) -> dict[str, Any]:
    """Trains with synthetic images; gives who was there, and the sum of the weights that each rank has at the end."""
    import torch
    import torch.distributed as dist
    from open_flamingo.train.distributed import init_distributed_device
    from open_flamingo.train.train_utils import save_checkpoint, train_one_epoch
    from torch.nn.parallel import DistributedDataParallel

    gpu = torch.cuda.is_available()
    args = Namespace(
        horovod=False,
        dist_backend="nccl" if gpu else "gloo",
        dist_url="env://",
        no_set_device_rank=False,
        precision="fp32",
        fsdp=False,
        run_name=os.environ["FLOW_CHECKPOINT_DIR"],
        delete_previous_checkpoint=False,
        num_epochs=epochs,
        batch_size_laion=BATCH,
        batch_size_mmc4=BATCH,
        gradient_accumulation_steps=1,
        loss_multiplier_laion=1.0,
        loss_multiplier_mmc4=1.0,
        freeze_lm_embeddings=False,
        report_to_wandb=False,
        logging_steps=1,
    )
    with tempfile.TemporaryDirectory() as place:
        # Before there is a process group: in one, transformers writes on rank 0 only.
        tiny_language_model(Path(place))
        device = init_distributed_device(args)
        torch.manual_seed(0)
        model, tokenizer = tiny_flamingo(Path(place))
    ddp = DistributedDataParallel(model.to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.AdamW((p for p in ddp.parameters() if p.requires_grad), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    began = resume(ddp, optimizer, args.run_name)
    for epoch in range(began, epochs):
        train_one_epoch(
            args=args,
            model=ddp,
            epoch=epoch,
            laion_loader=Batches(tokenizer, args.rank, packed=False),
            mmc4_loader=Batches(tokenizer, args.rank, packed=True),
            tokenizer=tokenizer,
            optimizer=optimizer,
            lr_scheduler=scheduler,
            device_id=device,
            wandb=None,
        )
        save_checkpoint(ddp, optimizer, scheduler, epoch, args)
    weights = sum(p.double().sum().item() for p in ddp.parameters() if p.requires_grad)
    everybody: list[Any] = [None] * args.world_size
    dist.all_gather_object(everybody, (args.rank, args.local_rank, weights))
    return {"world": args.world_size, "began": began, "ranks": everybody}


def resume(model: Any, optimizer: Any, run: str) -> int:
    """Takes the newest checkpoint, as OpenFlamingo's program does; the epoch to begin with."""
    import torch

    there = sorted(Path(run).glob("checkpoint_*.pt"), key=lambda path: int(path.stem[11:]))
    if not there:
        return 0
    saved = torch.load(there[-1], map_location="cpu")
    model.load_state_dict(saved["model_state_dict"], strict=False)
    optimizer.load_state_dict(saved["optimizer_state_dict"])
    return int(saved["epoch"]) + 1


class Batches:
    """Synthetic pairs of an image and its caption, in the forms that OpenFlamingo's two data sets have."""

    num_batches = STEPS

    def __init__(self, tokenizer: Any, rank: int, *, packed: bool) -> None:
        import torch

        self._random = torch.Generator().manual_seed(rank)
        said = tokenizer([TEXT] * BATCH, return_tensors="pt")
        self._text = (said["input_ids"], said["attention_mask"])
        self._packed = packed

    def __iter__(self) -> Any:
        import torch

        for _ in range(STEPS):
            images = torch.randn(BATCH, 3, IMAGE, IMAGE, generator=self._random)
            if self._packed:
                ids, mask = self._text
                yield images[:, None], [(ids[i : i + 1], mask[i : i + 1]) for i in range(BATCH)]
            else:
                yield images, self._text


def tiny_flamingo(place: Path) -> tuple[Any, Any]:
    """A model of OpenFlamingo's, around a tiny vision encoder and the language model in that directory."""
    import open_clip
    from open_flamingo import create_model_and_transforms

    (place / "tiny-clip.json").write_text(json.dumps(CLIP))
    open_clip.add_model_config(place / "tiny-clip.json")
    model, _, tokenizer = create_model_and_transforms(
        clip_vision_encoder_path="tiny-clip",
        clip_vision_encoder_pretrained=None,
        lang_encoder_path=str(place),
        tokenizer_path=str(place),
        use_local_files=True,
    )
    return model, tokenizer


CLIP = {
    "embed_dim": 32,
    "vision_cfg": {
        "image_size": IMAGE,
        "patch_size": 8,
        "layers": 1,
        "width": 32,
        "head_width": 16,
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "layers": 1, "width": 16, "heads": 2},
}


def tiny_language_model(place: Path) -> None:
    """An OPT with random weights, and a tokenizer that knows the words of the caption."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<unk>", "</s>", *sorted(set(TEXT.split()))])}
    written = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    written.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=written, unk_token="<unk>", eos_token="</s>"
    )
    tokenizer.save_pretrained(place)
    size: dict[str, int] = {
        "vocab_size": len(words),
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    OPTForCausalLM(OPTConfig(**size)).save_pretrained(place)
