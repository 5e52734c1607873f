"""The node key: an API key with which machines end their own bid when its time is over and no client does.

Powering a machine off does not end a bid, and so not the bill. Therefore all machines of a bid receive, after first
contact, an API key that expires soon after the run must be over, and a program that ends that one bid with it. The
watchdog runs the program before it powers the machine off. Each machine acts on its own, the leader first, so that the
bid ends even if some machines are dead. The key reaches the machines only through their connections, is stored in one
file of root's (0600), and is revoked with the bid.

Before first contact the machines have no key. `node_key = "script"` puts one into the start-up script instead: then any
machine that the bid ever wins can end it, but everybody with access to the project can read the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from flowlite.errors import ProviderError
from provider_adapters import remote_commands
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import (
    ApiRefused,
    MithrilApi,
    OutcomeUnknown,
    Unreachable,
)
from provider_adapters.rented.watchdog import DIRECTORY

if TYPE_CHECKING:
    from flowlite.connect.base import Connection

PROGRAM = f"{DIRECTORY}/end-bid"
# Without a cap the length of a run is not known.
LONGEST_SECONDS = 30 * 86400.0
# Mithril refuses keys of more than a year. This leaves room for bids that are handed on, and for clocks that differ.
_MOST_SECONDS = 350 * 86400.0
# The watchdog ends the machine at the deadline; the key must still be valid then.
SLACK_SECONDS = 7200.0
TRY_SECONDS = 3600.0
"""How long the machine tries before it gives up and powers off; it costs the same on or off."""
ENDING_SECONDS = 10.0
"""Once their watchdogs have found that the time is over, all machines have tried to end the bid within this time."""
_APART_SECONDS, _MOST_APART_SECONDS = 2.0, 6.0
_INSTALL_SECONDS = 60.0
_BEFORE_END = f"""\
echo {TRY_SECONDS + 60:.0f} >{DIRECTORY}/before-seconds
"""
_INSTALL = f"""\
umask 077
mkdir -p {DIRECTORY} && cd {DIRECTORY} || exit 1
cat >end-bid.new && mv -f end-bid.new end-bid || exit 1
{_BEFORE_END}echo "exec '$0' -I -S {PROGRAM}" >before-end.new && mv -f before-end.new before-end
"""
_IN_SCRIPT = f"""\
cat >{PROGRAM} <<'FLOWLITE'
%sFLOWLITE
{_BEFORE_END}echo "exec python3 -I -S {PROGRAM}" >{DIRECTORY}/before-end
"""
_END_BID = '''\
"""Ends the bid this machine belongs to, as often as it takes. Its other machines do the same, a moment apart."""
import json
import random
import ssl
import time
import urllib.error
import urllib.request
BIDS = {bids!r}
WHICH = {which!r}
KEY = {key!r}
APART = {apart!r}
SECONDS = {seconds!r}
# What the API says when there is nothing more to end. Refusals count as no answer: they may be a fault of the API.
DONE = (200, 202, 204, 404)
MOST_BYTES = 4 << 20
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def trust():
    """The certificates to trust; a Python of its own may not know where the system has them."""
    context = ssl.create_default_context()
    for path in BUNDLES:
        try:
            context.load_verify_locations(path)
        except OSError:
            pass
    return context


def ask(method, path):
    """Returns the status and body of the API's answer, or (0, "") if there is none. Never raises."""
    request = urllib.request.Request(BIDS + path, method=method)
    request.add_header("Authorization", "Bearer " + KEY)
    request.add_header("User-Agent", "flowlite-node")
    context = trust() if BIDS.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            # What is cut off is no JSON, and counts as no answer.
            return answer.status, answer.read(MOST_BYTES).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        try:
            return error.code, error.read(MOST_BYTES).decode("utf-8", "replace")
        except Exception:
            return 0, ""
    except Exception:
        return 0, ""


def is_over(answer):
    """Whether the API says that a bid has ended. A page of a gateway in its place says nothing."""
    status, text = answer
    try:
        if status != 204:
            json.loads(text)
    except (ValueError, RecursionError):
        return False
    return status in DONE


def going_on():
    """Paths of the bids that have not ended, or may not have, and whether there are bids."""
    text = ask("GET", WHICH)[1]
    by_id = WHICH.startswith("/")
    try:
        found = json.loads(text)
        found = [found] if by_id else found["data"]
        left = ["/" + bid["fid"] for bid in found if bid["status"] != "Terminated"]
        return left, bool(found)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ([WHICH], True) if by_id else ([], False)


time.sleep(random.uniform(*APART))
until = time.monotonic() + SECONDS
while True:
    paths, there = going_on()
    answers = [ask("DELETE", path) for path in paths]
    if there and all(map(is_over, answers)):
        raise SystemExit(0)
    if time.monotonic() > until:
        raise SystemExit(1)
    time.sleep(min(5.0, SECONDS / 10))
'''


def program(url: str, bid: str, secret: str, rank: int = 0, seconds: float = TRY_SECONDS) -> str:
    """The program that ends a bid, for the machine of a rank. Pure. It needs only Python's standard library."""
    apart = min(rank * _APART_SECONDS, _MOST_APART_SECONDS)
    return _program(url, f"/{bid}", secret, (apart, apart), seconds)


def in_script(url: str, project: str, name: str, secret: str) -> str:
    """The part of the start-up script that installs the program; it ends all bids of that name. Pure."""
    which = "?" + urlencode(requests.bids_of(project, name=name))
    return _IN_SCRIPT % _program(url, which, secret, (0.0, _MOST_APART_SECONDS), TRY_SECONDS)


def _program(url: str, which: str, secret: str, apart: tuple[float, float], seconds: float) -> str:
    bids = f"{url}/v2/spot/bids"
    return _END_BID.format(bids=bids, which=which, key=secret, apart=apart, seconds=seconds)


def expiry(now: float, deadline: float | None) -> float:
    """Unix time until which the key must be valid, as far as Mithril takes it.

    Args:
        deadline: In seconds from now; None for no limit.
    """
    if deadline is None:
        return now + LONGEST_SECONDS
    return now + min(_MOST_SECONDS, deadline + SLACK_SECONDS)


def make(api: MithrilApi, name: str, expires_at: float, *, again: bool) -> dict[str, Any]:
    """Creates a key of that name: {"fid", "secret", …}.

    Args:
        again: Whether it may have been tried before. A key of that try, whose secret is lost, is then revoked.

    Raises:
        Unreachable: Not possible now.
        ProviderError: The API refuses.
    """
    if again:
        revoke_named(api, name)
    try:
        return dict(api.post("/v2/api-keys", requests.api_key(name, expires_at)))
    except OutcomeUnknown as error:
        raise Unreachable(f"the nodes' key is not made yet: {error}") from error


def revoke_named(api: MithrilApi, *names: str) -> None:
    """Revokes all keys of these names that are still valid."""
    for key in api.get("/v2/api-keys"):
        if key["name"] in names and not key.get("deactivated_at"):
            revoke(api, str(key["fid"]))


def revoke(api: MithrilApi, fid: str) -> None:
    """Revokes one key; one that does not exist, or is revoked, is no error. Raises ProviderError."""
    try:
        api.delete(f"/v2/api-keys/{fid}")
    except ApiRefused:
        listed = api.get("/v2/api-keys")
        if any(key["fid"] == fid and not key.get("deactivated_at") for key in listed):
            raise


def bring(connection: Connection, python: str, text: str) -> None:
    """Installs the program on a machine, readable by root only. Raises NodeUnreachable, ProviderError.

    It is sent on standard input, so that the key does not appear in any list of processes.
    """
    script = 'if [ "$(id -u)" = 0 ]; then exec sh -c "$1" "$2"; fi\nexec sudo -n sh -c "$1" "$2"'
    argv = ["sh", "-c", script, "sh", _INSTALL, python]
    done = remote_commands.run(connection, argv, _INSTALL_SECONDS, input=text.encode())
    if done.code != 0:
        why = remote_commands.said(done)
        raise ProviderError(f"the key to end the bid cannot be put there: {why}")
