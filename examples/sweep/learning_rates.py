"""A sweep over five learning rates, as in the OpenCLIP guide: one task for each, and the best one in the end.

    python examples/sweep/learning_rates.py                       # on this machine, two at a time
    FLOW_PROVIDER=slurm python examples/sweep/learning_rates.py   # one job array, `--array=0-4%2`

`sweep.sbatch` beside it does the same as a batch script: `flow run examples/sweep/sweep.sbatch`.
"""

from __future__ import annotations

from flowlite import FlowApp

app = FlowApp()
LEARNING_RATES = [1e-3, 5e-4, 1e-4, 5e-5, 1e-5]


@app.function(name="sweep", num_instances=1)
def train(lr: float) -> dict[str, float]:
    """Fits a line to points of it, by gradient descent; returns how far off it is. Put your training here."""
    points = [(x / 100, 3 * x / 100 + 1) for x in range(100)]
    weight = bias = 0.0
    for _ in range(400):
        off = [(x, weight * x + bias - y) for x, y in points]
        weight -= lr * sum(x * each for x, each in off)
        bias -= lr * sum(each for _, each in off)
    loss = sum((weight * x + bias - y) ** 2 for x, y in points) / len(points)
    print(f"lr {lr:g} ends at {weight:.2f} x + {bias:.2f}")
    return {"lr": lr, "loss": loss}


if __name__ == "__main__":
    found = []
    for result in train.map(LEARNING_RATES, max_concurrent=2):
        print(f"lr {result['lr']:g}: loss {result['loss']:.4f}", flush=True)
        found.append(result)
    print(f"best: lr {min(found, key=lambda each: each['loss'])['lr']:g}")
