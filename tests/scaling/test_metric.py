"""The number by which runs are compared, found in results and in what trainers print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from flowlite.output.reader import LogLine
from flowlite.scaling.metric import NoMetric, of_lines, of_result

OPEN_CLIP = (
    "2026-01-31,10:30:16 | INFO | Train Epoch: 0 [  64/512 (12%)] Data (t): 0.052 Batch (t): 1.234, "
    "207.300/s, 51.8250/s/gpu LR: 0.000005 Logit Scale: 14.286 Contrastive_loss: 4.8520 (4.8520) Loss: 4.8520"
)
HUGGING_FACE = (
    "{'train_runtime': 12.5, 'train_samples_per_second': 51.2, 'train_steps_per_second': 0.8}"
)


@dataclass
class Rates:
    rate: float


class Pair(NamedTuple):
    first: float
    rate: float


@pytest.mark.parametrize(
    ("value", "metric", "found"),
    [
        ({"samples_per_s": 12.5}, "samples_per_s", 12.5),
        ({"train": {"rate": 3}}, "train.rate", 3.0),
        ({"train.rate": 4, "train": {"rate": 3}}, "train.rate", 4.0),
        ({"epochs": [{"rate": 1}, {"rate": 2}]}, "epochs.-1.rate", 2.0),
        (Rates(7.0), "rate", 7.0),
        ([Pair(1.0, 2.0)], "0.rate", 2.0),
        (99, "whatever", 99.0),
    ],
)
def test_a_result_is_looked_into(value: Any, metric: str, found: float) -> None:
    assert of_result(value, metric) == found


def test_a_tensor_is_a_number() -> None:
    torch = pytest.importorskip("torch")
    assert of_result({"rate": torch.tensor(2.5)}, "rate") == 2.5


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "returned nothing"),
        ({"loss": 1, "lr": 2}, "a mapping with loss, lr"),
        ({"rate": "fast"}, "rate='fast'"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"rate": 0}, "rate=0"),
        ({"rate": True}, "rate=True"),
        ({"rate": None}, "no 'rate'"),
        ({"rate": 10**400}, "rate=1000"),
    ],
)
def test_what_is_no_metric_is_said(value: Any, said: str) -> None:
    with pytest.raises(NoMetric, match=said):
        of_result(value, "rate")


def lines(*texts: str, rank: int = 0) -> list[LogLine]:
    return [LogLine(rank, rank, "out", float(n), text) for n, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("metric", "text", "found"),
    [
        ("samples_per_s", "step 3 samples_per_s=12.5 loss=0.1", 12.5),
        ("samples_per_s", "samples_per_s: 1,234.5", 1234.5),
        ("samples_per_s", "samples_per_s : 1e3", 1000.0),
        ("rate", "val_rate=1 rate=2 rate/gpu=3", 2.0),
        ("train.rate", 'INFO {"train": {"rate": 8, "loss": 1}}', 8.0),
        ("rate", '{"rate": 8.5}', 8.5),
        ("train_samples_per_second", HUGGING_FACE, 51.2),
        ("train_steps_per_second", HUGGING_FACE, 0.8),
        ("samples/s", OPEN_CLIP, 207.3),
        ("samples_per_s", OPEN_CLIP, 207.3),
        ("samples_per_second", OPEN_CLIP, 207.3),
        ("samples/s/gpu", OPEN_CLIP, 51.825),
        ("throughput", OPEN_CLIP, 207.3),
        ("samples/s", "12.5 samples/s, 3.1 samples/s/gpu", 12.5),
        ("tokens/s", "epoch 1: 5000 tokens/s", 5000.0),
        ("steps/min", "at 40 steps/min now", 40.0),
        ("rate", "\x1b[32mrate=\x1b[0m9", 9.0),
    ],
)
def test_what_trainers_print_is_understood(metric: str, text: str, found: float) -> None:
    assert of_lines(lines("starting", text, "bye"), metric) == found


@pytest.mark.parametrize("text", ["100MB/s", "3.2it/s", "207/s/gpu", "v1.2/s", "0.5 tokens/s"])
def test_other_rates_are_not_samples(text: str) -> None:
    with pytest.raises(NoMetric, match="no line of the output has 'samples/s'"):
        of_lines(lines(text), "samples/s")


def test_the_last_line_counts_and_of_the_lowest_rank() -> None:
    mixed = lines("rate=1", "rate=2") + lines("rate=9", rank=1)
    assert of_lines(mixed, "rate") == 2.0
    assert of_lines(lines("nothing") + lines("rate=9", rank=1), "rate") == 9.0


def test_a_number_with_the_name_goes_before_one_with_the_unit() -> None:
    assert of_lines(lines("samples_per_s=5", "downloaded at 70/s"), "samples_per_s") == 5.0


def test_a_number_that_no_float_can_hold_is_none() -> None:
    with pytest.raises(NoMetric, match="rate=inf; a number above 0 is needed"):
        of_lines(lines(f'{{"rate": 1{"0" * 400}}}'), "rate")
