"""The leader's own key: with it the machine itself ends the bid, when its time is over and nobody else is there to.

Powering a machine off does not end a bid, and so not the bill. Therefore one machine of each bid gets, once it is met,
a key of the API that expires soon after the run must be over, and a program that ends that one bid with it. The
watchdog runs the program before it powers the machine off. The key reaches the machine through the connection only,
lies in one file of root's (0600), and is revoked with the bid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowlite.errors import NodeUnreachable, ProviderError
from provider_adapters.mithril import requests
from provider_adapters.mithril.api import ApiRefused, MithrilApi, OutcomeUnknown, Unreachable
from provider_adapters.rented.watchdog import DIRECTORY

if TYPE_CHECKING:
    from flowlite.connect.base import Connection

PROGRAM = f"{DIRECTORY}/end-bid"
# Without any cap nobody can say how long a run takes.
LONGEST_SECONDS = 30 * 86400.0
# The watchdog ends the machine at the deadline; the key must still be good then.
SLACK_SECONDS = 7200.0
TRY_SECONDS = 3600.0
"""How long the machine tries before it gives up and powers off; it costs the same on or off."""
_INSTALL_SECONDS = 60.0
_INSTALL = f"""\
umask 077
mkdir -p {DIRECTORY} && cd {DIRECTORY} || exit 1
cat >end-bid.new && mv -f end-bid.new end-bid || exit 1
echo {TRY_SECONDS + 60:.0f} >before-seconds
echo "exec '$0' -I -S {PROGRAM}" >before-end.new && mv -f before-end.new before-end
"""
_END_BID = '''\
"""Ends the bid this machine belongs to, as often as it takes."""
import json
import ssl
import time
import urllib.error
import urllib.request
ADDRESS = {address!r}
KEY = {key!r}
SECONDS = {seconds!r}
# What the API says when there is nothing more to end, and when this key is good for nothing.
DONE = (200, 202, 204, 404)
VAIN = (401, 403)
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


def ask(method):
    """Status and body of what the API says; (0, "") for nothing."""
    request = urllib.request.Request(ADDRESS, method=method)
    request.add_header("Authorization", "Bearer " + KEY)
    request.add_header("User-Agent", "flowlite-node")
    context = trust() if ADDRESS.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError):
        return 0, ""


def over():
    """Whether the bid has ended, whoever ended it."""
    try:
        return json.loads(ask("GET")[1])["status"] == "Terminated"
    except (ValueError, KeyError, TypeError):
        return False


until = time.monotonic() + SECONDS
while True:
    said = ask("DELETE")[0]
    if said in DONE or said in VAIN or over() or time.monotonic() > until:
        raise SystemExit(0 if said in DONE or over() else 1)
    time.sleep(min(5.0, SECONDS / 10))
'''


def program(url: str, bid: str, secret: str, seconds: float = TRY_SECONDS) -> str:
    """The program that ends a bid. Pure. Python's standard library is all it needs."""
    return _END_BID.format(address=f"{url}/v2/spot/bids/{bid}", key=secret, seconds=seconds)


def expiry(now: float, deadline: float | None) -> float:
    """Unix time until which the key is to be good. `deadline` is in seconds from now, None for no limit."""
    return now + (LONGEST_SECONDS if deadline is None else deadline + SLACK_SECONDS)


def make(api: MithrilApi, name: str, expires_at: float) -> dict[str, Any]:
    """A fresh key of that name: {"fid", "secret", …}. One of an earlier try, whose secret is lost, is revoked.

    Raises:
        Unreachable: Not now.
        ProviderError: The API gives none.
    """
    revoke_named(api, name)
    try:
        return dict(api.post("/v2/api-keys", requests.api_key(name, expires_at)))
    except OutcomeUnknown as error:
        raise Unreachable(f"the leader's key is not made yet: {error}") from error


def revoke_named(api: MithrilApi, *names: str) -> None:
    """Revokes all keys of these names that are not revoked yet."""
    for key in api.get("/v2/api-keys"):
        if key["name"] in names and not key.get("deactivated_at"):
            revoke(api, str(key["fid"]))


def revoke(api: MithrilApi, fid: str) -> None:
    """Revokes one key; one that is not there, or is revoked, is no error. Raises ProviderError."""
    try:
        api.delete(f"/v2/api-keys/{fid}")
    except ApiRefused:
        listed = api.get("/v2/api-keys")
        if any(key["fid"] == fid and not key.get("deactivated_at") for key in listed):
            raise


def bring(connection: Connection, python: str, text: str) -> None:
    """Puts the program on a machine, for root alone. Raises NodeUnreachable, ProviderError.

    It comes on standard input, so that the key is in no list of processes.
    """
    script = 'if [ "$(id -u)" = 0 ]; then exec sh -c "$1" "$2"; fi\nexec sudo -n sh -c "$1" "$2"'
    try:
        done = connection.run(
            ["sh", "-c", script, "sh", _INSTALL, python],
            input=text.encode(),
            timeout=_INSTALL_SECONDS,
        )
    except TimeoutError as error:
        raise NodeUnreachable(f"it runs nothing within {_INSTALL_SECONDS:.0f} s") from error
    if done.code != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise ProviderError(f"the key to end the bid cannot be put there: {said}")
