"""What others do in the same case, as far as it was measured or is documented."""

from __future__ import annotations

_UNKNOWN = "not known"
_SKY_PROBE = (
    "one failed probe set off the recovery of a healthy job (issue 10162); a blip of 60 s cancelled "
    "one (issue 10157)"
)
_DSTACK_TIMEOUT = (
    "the job is given up after 2 min without the node (`JOB_DISCONNECTED_RETRY_TIMEOUT`), and the run "
    "with it; with `retry`, all of it starts again"
)
_TORCH_KEEPALIVE = (
    "a node that says nothing for 15 s (`keep_alive_interval` 5 s, 3 times) is left out of the next "
    "rendezvous; workers notice by their own timeouts"
)
_TORCH_NO_CLIENT = "has no client"

PEERS: dict[str, tuple[str, str, str]] = {
    "client-node": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_NO_CLIENT),
    "client-all": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_NO_CLIENT),
    "leader-member": (_UNKNOWN, _UNKNOWN, _TORCH_KEEPALIVE),
    "member-all": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_KEEPALIVE),
    "leader-all": (_SKY_PROBE, _DSTACK_TIMEOUT, _UNKNOWN),
    "all-pairs": (_UNKNOWN, _UNKNOWN, _TORCH_KEEPALIVE),
    "pair": (_UNKNOWN, _UNKNOWN, _UNKNOWN),
    "clock": (
        _UNKNOWN,
        _UNKNOWN,
        "measured, torch 2.13: clocks 16 s apart make two worlds of one gang (c10d compares wall clocks)",
    ),
    "disk": (_UNKNOWN, _UNKNOWN, _UNKNOWN),
    "client-disk": (_UNKNOWN, _UNKNOWN, _TORCH_NO_CLIENT),
    "sshd": (
        "host keys are not checked (`StrictHostKeyChecking no`), so any host may answer",
        "host keys are not checked, so any host may answer",
        "does not use SSH",
    ),
    "hostile": (
        _UNKNOWN,
        _UNKNOWN,
        "its store is neither encrypted nor protected (PyTorch's SECURITY.md)",
    ),
    "squatter": (
        _UNKNOWN,
        _UNKNOWN,
        "its store takes anybody's connection (PyTorch's SECURITY.md)",
    ),
}
"""For the first fault of a case: SkyPilot 0.14.1, dstack 0.22.5, torchrun of torch 2.13."""
