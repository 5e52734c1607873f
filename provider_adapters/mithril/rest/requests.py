"""The bodies and queries of all requests to Mithril, made by pure functions.

Bids have no tags. What flowlite must know of a bid later, on any machine, is in its name and in a comment of its
start-up script, which the listing returns.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flowlite.node.quick_dataclass import dataclass

# The API refuses names of API keys of 60 characters or more; bids get the same names.
LONGEST_NAME = 59
LONGEST_SCRIPT = 10_000
_PREFIX = "flow"
HOME_LETTERS = 8
_NAME = re.compile(r"flow-([0-9a-f]{8})-(?:(t[a-z0-9]{10})-)?[a-z0-9-]*[a-z0-9]")
_MARK = "# flowlite-tags: "
# Longer lives, of some thousand years, cannot be told as times.
_MOST_SECONDS = 1e11

# States of bids, by whether they can still cost money.
OPEN, ALLOCATED, PREEMPTING, TERMINATED, PAUSED = (
    "Open", "Allocated", "Preempting", "Terminated", "Paused",
)  # fmt: skip
# Open comes twice: a bid that changes to the next of these states between the queries is still found.
LIVE_BIDS = (OPEN, ALLOCATED, PREEMPTING, PAUSED, OPEN)
# Instances that are gone for good and no longer charged.
ENDED = frozenset(
    {"STATUS_TERMINATED", "STATUS_PREEMPTED", "STATUS_REPLACED", "STATUS_PAUSED", "STATUS_ERROR"}
)
# Instances that are about to be.
LEAVING = frozenset({"STATUS_PREEMPTING", "STATUS_RELOCATING", "STATUS_STOPPING"})
PAUSED_INSTANCE = "STATUS_PAUSED"
TAKEN_AWAY = {
    "STATUS_PREEMPTED": "preempted: others bid more",
    "STATUS_REPLACED": "moved to another machine by Mithril",
    PAUSED_INSTANCE: "its bid was paused",
}
Query = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Tags:
    """The ownership of a bid.

    Attributes:
        home: Id of the FLOW_HOME it was placed from; only the first 8 letters if just the name is known.
        owner: user@host.
        seconds: Seconds after their start until its machines end themselves; None for no limit.
    """

    task: str
    home: str
    owner: str = ""
    token: str = ""
    seconds: float | None = None

    def comment(self) -> str:
        """The comment line of the start-up script."""
        found = {
            "task": self.task,
            "home": self.home,
            "owner": self.owner,
            "token": self.token,
            "seconds": None
            if self.seconds is None
            else round(min(self.seconds, _MOST_SECONDS - 1)),
        }
        return _MARK + json.dumps(found)


def tags_of(bid: Mapping[str, Any]) -> Tags | None:
    """The ownership of a bid; None if it is not flowlite's."""
    named = _NAME.fullmatch(str(bid.get("name", "")))
    if named is None:
        return None
    script = (bid.get("launch_specification") or {}).get("startup_script") or ""
    for line in str(script).splitlines():
        if line.startswith(_MARK):
            try:
                found = json.loads(line[len(_MARK) :])
                return Tags(
                    str(found["task"]),
                    str(found["home"]),
                    str(found["owner"]),
                    str(found["token"]),
                    _seconds(found["seconds"]),
                )
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return Tags(task=named[2] or "", home=named[1])


def _seconds(found: object) -> float | None:
    """A number of seconds that somebody else has written down. Raises ValueError for what cannot be one."""
    if found is None:
        return None
    if not isinstance(found, int | float) or not 0 <= found < _MOST_SECONDS:
        raise ValueError(found)
    return found


# Names


def bid_name(home: str, call: str) -> str:
    """The unique name of a bid, from the FLOW_HOME's id and its call's name in the ledger: [a-z], digits, dashes."""
    slug = re.sub(r"[^a-z0-9]+", "-", call.lower()).strip("-")
    name = f"{_PREFIX}-{home[:HOME_LETTERS]}-{slug}"
    if len(name) <= LONGEST_NAME and slug == call:
        return name
    digest = hashlib.sha256(call.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9].rstrip('-')}-{digest}"


def ssh_key_name(home: str) -> str:
    """The name our public key is registered under; it is found again by its content."""
    return f"{_PREFIX}-{home[:HOME_LETTERS]}"


def is_ours(name: str, home: str) -> bool:
    """Whether a name was given by this FLOW_HOME."""
    own = ssh_key_name(home)
    return name == own or name.startswith(f"{own}-")


# Money and time


def dollars(amount: float) -> str:
    """`$25.60`, as the API writes money."""
    return f"${amount:.2f}"


def read_dollars(text: object) -> float | None:
    """The amount in `$25.60` or `$1,025.60`; None for any other text."""
    match = re.fullmatch(r"\$?(\d[\d,]*(?:\.\d+)?)", str(text).strip())
    return float(match[1].replace(",", "")) if match else None


def round_down(amount: float) -> float:
    """Rounds down to whole cents."""
    return math.floor(amount * 100 + 1e-6) / 100


def round_up(amount: float) -> float:
    """Rounds up to whole cents."""
    return math.ceil(amount * 100 - 1e-6) / 100


def iso(moment: float) -> str:
    """A Unix time in the API's format."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: object) -> float | None:
    """The Unix time of a time in the API's format; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# Bodies


def bid(
    *,
    project: str,
    region: str,
    instance_type: str,
    count: int,
    limit_price: float,
    ssh_keys: Sequence[str],
    volumes: Sequence[str],
) -> dict[str, Any]:
    """The body of a new bid, all machines or none, without its name and its start-up script."""
    return {
        "project": project,
        "region": region,
        "instance_type": instance_type,
        "limit_price": dollars(limit_price),
        "instance_quantity": count,
        "launch_specification": {"volumes": list(volumes), "ssh_keys": list(ssh_keys)},
    }


def with_script(body: Mapping[str, Any], script: str) -> dict[str, Any]:
    """The body with its start-up script. The script is kept separate, since it contains a throw-away key."""
    return {
        **body,
        "launch_specification": {**body["launch_specification"], "startup_script": script},
    }


def limit(price: float) -> dict[str, Any]:
    """The body that gives a bid another limit."""
    return {"limit_price": dollars(price)}


def ssh_key(project: str, name: str, public_key: str) -> dict[str, Any]:
    """The body that registers a public key."""
    return {"project": project, "name": name, "public_key": public_key, "required": False}


def api_key(name: str, expires_at: float) -> dict[str, Any]:
    """The body of a new API key."""
    return {"name": name, "expires_at": iso(expires_at)}


def volume(project: str, region: str, name: str, size_gb: float, interface: str) -> dict[str, Any]:
    """The body of a new volume; sizes are whole GB."""
    return {
        "name": name,
        "project": project,
        "disk_interface": interface.capitalize(),
        "region": region,
        "size_gb": math.ceil(size_gb),
    }


# Queries


def bids_of(project: str, *, status: str = "", name: str = "") -> Query:
    """Query for the bids of a project, of one status or name."""
    found: Query = {"project": project}
    if status:
        found["status"] = status
    if name:
        found["name"] = name
    return found


def instances_of(project: str, bids: Iterable[str]) -> Query:
    """Query for the instances of some bids."""
    return {"project": project, "bid_fid_in": ",".join(bids)}


def history_of(project: str, bid_fid: str) -> Query:
    """Query for the prices or states of all instances a bid ever had."""
    return {"project": project, "bid_fid": bid_fid}


def price_of(instance_type: str, region: str, count: int) -> Query:
    """Query for the present price of a gang."""
    return {"instance_type": instance_type, "region": region, "instance_quantity": min(count, 256)}
