"""Writes what Axolotl trains with: a Llama of a few thousand weights, its tokenizer, sentences, and llama.yaml.

    python examples/axolotl/prepare.py axolotl-run
    axolotl preprocess axolotl-run/llama.yaml
    flow run -N 2 --processes-per-node 2 -- python examples/axolotl/on_cpu.py axolotl-run/llama.yaml

On GPUs the last line is `flow run … --manual -- axolotl train llama.yaml --launcher accelerate -- …`
(docs/stacks/axolotl.md), and llama.yaml has `fsdp_version: 2`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
CONFIG = """\
base_model: {place}/model
datasets:
  - path: {place}/sentences.jsonl
    ds_type: json
    type: completion
dataset_prepared_path: {place}/prepared
output_dir: {place}/out
sequence_len: 32
micro_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 8
learning_rate: 0.01
lr_scheduler: constant
optimizer: adamw_torch
save_strategy: "no"
logging_steps: 1
dataset_num_proc: 1
bf16: false
fp16: false
tf32: false
flash_attention: false
use_tensorboard: false
"""


def prepare(place: Path) -> None:
    """Fills a directory."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    place.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    written = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    written.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=written,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    ).save_pretrained(place / "model")
    size: dict[str, int] = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
    LlamaForCausalLM(LlamaConfig(**size)).save_pretrained(place / "model")
    counted = [" ".join(WORDS[(i + j) % 10] for j in range(20)) for i in range(256)]
    sentences = "".join(json.dumps({"text": text}) + "\n" for text in counted)
    (place / "sentences.jsonl").write_text(sentences)
    (place / "llama.yaml").write_text(CONFIG.format(place=place))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]).resolve())
