"""A few steps with a trainer as it is installed: `trainers.py accelerate|lightning|transformers|deepspeed`."""

import os
import sys

import torch

device = os.environ["GPU_CHECK_DEVICE"]


def with_accelerate() -> str:
    """Three steps."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    accelerator = Accelerator(cpu=device == "cpu")
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        accelerator.backward(model(torch.ones(4, 8, device=accelerator.device)).mean())
        optimizer.step()
    return str(accelerator.device)


def with_lightning() -> str:
    """Three steps by Fabric."""
    from lightning.fabric import Fabric  # type: ignore[import-not-found, unused-ignore]

    fabric = Fabric(accelerator="cpu" if device == "cpu" else "cuda", devices=1)
    fabric.launch()
    model = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        fabric.backward(model(torch.ones(4, 8, device=fabric.device)).mean())
        optimizer.step()
    return str(fabric.device)


def with_transformers() -> str:
    """One step of a tiny model."""
    from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found, unused-ignore]

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64)).to(device)
    tokens = torch.randint(64, (2, 8), device=device)
    model(tokens, labels=tokens).loss.backward()
    return str(model.device)


def with_deepspeed() -> str:
    """Three steps with ZeRO 2 and bfloat16, over nccl on a GPU."""
    import deepspeed  # type: ignore[import-not-found, unused-ignore]

    model = torch.nn.Linear(8, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        },
    )
    for _ in range(3):
        engine.backward(engine(torch.ones(4, 8, device=engine.device, dtype=torch.bfloat16)).mean())
        engine.step()
    wanted = "gloo" if device == "cpu" else "nccl"
    assert wanted in torch.distributed.get_backend(), torch.distributed.get_backend()
    return str(engine.device)


trainers = {
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "transformers": with_transformers,
    "deepspeed": with_deepspeed,
}
print("trained on", trainers[sys.argv[1]]())
