"""What others do in the same case, as far as it was measured or is documented.

torchrun was measured by `python -m tests.attack.torchrun` with torch 2.13: three nodes, c10d, no restarts, and a
program that does not communicate, so that what ends it is torchrun itself.
"""

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
_TORCH_MEMBER = (
    "measured: 20 s are survived; after 90 s the agents that were cut off fail with RendezvousConnectionError, no "
    "node is named, and the others wait for them"
)
_TORCH_LEADER = (
    "measured: 20 s are survived; after 90 s the agents of all other nodes fail with RendezvousConnectionError, no "
    "node is named, and the leader's waits for them"
)
_TORCH_NO_CLIENT = "has no client"

PEERS: dict[str, tuple[str, str, str]] = {
    "client-node": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_NO_CLIENT),
    "client-all": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_NO_CLIENT),
    "leader-member": (_UNKNOWN, _UNKNOWN, _TORCH_MEMBER),
    "member-all": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_MEMBER),
    "leader-all": (_SKY_PROBE, _DSTACK_TIMEOUT, _TORCH_LEADER),
    "all-pairs": (_UNKNOWN, _UNKNOWN, _TORCH_LEADER),
    "pair": (_UNKNOWN, _UNKNOWN, _UNKNOWN),
    "clock": (
        _UNKNOWN,
        _UNKNOWN,
        "measured: clocks 16 s apart make two worlds of one gang (c10d compares wall clocks)",
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
    "kept": (_UNKNOWN, _UNKNOWN, "brings no results"),
    "squatter": (
        _UNKNOWN,
        _UNKNOWN,
        "its store takes anybody's connection (PyTorch's SECURITY.md)",
    ),
}
"""For the first fault of a case: SkyPilot 0.14.1, dstack 0.22.5, torchrun of torch 2.13."""
