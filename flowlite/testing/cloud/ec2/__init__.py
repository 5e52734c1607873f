"""EC2 in a box: moto's API with real machines, and with features that moto lacks (`docs/cloud-in-a-box.md`).

`service.py` passes each request to moto or to a replacement: `launch.py` (RunInstances), `calls.py`, `others.py` and
`storage/`. `life.py` moves instances from state to state, each with its machine, and `spot.py` takes them away.
`market.py` has prices, capacity and quotas; `permissions/` refuses what a policy does not allow; `firewall.py`
enforces security groups with packets. `metadata.py` answers at 169.254.169.254. `books.py` computes the bill by
itself, so that tests can hold the client's figures against it.

Tests control it through `box.py`: capacity, prices, interruptions, lost answers. Start with `service.py`.
"""
