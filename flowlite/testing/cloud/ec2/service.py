"""EC2's API in the box: passes each request to moto or to its replacement."""

from __future__ import annotations

import io
import json
import re
import threading
import urllib.parse
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses import EC2Response
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, filter_dict_attribute_mapping, get_prefix
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from flowlite.state import clock
from flowlite.testing.cloud.ec2 import books, catalogue, images, instance, network
from flowlite.testing.cloud.ec2.calls import Ending, Groups, Reservations
from flowlite.testing.cloud.ec2.cloud import REGIONS, Cloud, Reserved
from flowlite.testing.cloud.ec2.firewall import CHANGING
from flowlite.testing.cloud.ec2.launch import Launching
from flowlite.testing.cloud.ec2.life_record import Life
from flowlite.testing.cloud.ec2.names import (
    ACCOUNT,
    MESSAGES,
    OTHER_ACCOUNT,
    STATUS,
    USER_ARN,
    new_id,
    xml_error,
)
from flowlite.testing.cloud.ec2.others import Others, refusal
from flowlite.testing.cloud.ec2.permissions import signature
from flowlite.testing.cloud.ec2.permissions.required_actions import needs_of
from flowlite.testing.cloud.ec2.spot import SpotMarket
from flowlite.testing.cloud.ec2.storage import disks
from flowlite.testing.cloud.ec2.storage.block_store import BlockStore
from flowlite.testing.cloud.fault import Fault
from flowlite.testing.cloud.fault_injection import Habits
from flowlite.testing.cloud.machines import Machines
from flowlite.testing.cloud.orders import Orders
from flowlite.testing.cloud.serving import Environ, Reply
from flowlite.testing.cloud.timers import ThreadTimers, Timers, utc_now

_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/aws4_request")
_REST = re.compile(r"/2015-02-01/([a-z-]+)(/[^/]+)?(/[a-z-]+)?")
_QUERY = ("sts", "iam")
# Services whose name in permissions differs from that in signatures.
_PREFIXES = {"monitoring": "cloudwatch"}
_EFS = "elasticfilesystem:"
# EC2 takes any character in tags, and EFS these ("Tag" in the EFS API reference).
_EFS_TAG = re.compile(r"[\w\s.:/=+\-@]*")
# Seconds without a reply before the connection is dropped.
_SILENCE = 0.3
_HABITS = Habits(
    before=(
        Fault("", code="RequestLimitExceeded"),
        Fault("", code="InternalError", status=500),
        Fault("", code="Unavailable", status=503),
        Fault("", hang=_SILENCE),
    ),
    after=(Fault("", code="InternalError", status=500), Fault("", hang=_SILENCE)),
)


class Ec2Service:
    """The API, and the operations by which the box controls it."""

    def __init__(self, machines: Machines, orders: Orders, timers: Timers | None = None) -> None:
        self._cloud = Cloud(machines, timers or ThreadTimers())
        self._orders = orders
        self._others = Others(self._cloud.market)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._seen = threading.local()
        self._day = 0
        _install(self._cloud)

    @property
    def habits(self) -> Habits:
        """The faults that EC2 may inject."""
        return _HABITS

    def read(self, environ: Environ, body: bytes) -> tuple[str, dict[str, Any]] | None:
        """The action and its parameters, which always include `Region`."""
        scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
        if scope is None:
            return None
        region, service = scope[1], scope[2]
        self._seen.call = None
        if service == "ec2" or service in _QUERY:
            parameters: dict[str, Any] = dict(
                urllib.parse.parse_qsl(body.decode(), keep_blank_values=True)
            )
            parameters["Region"] = region
            action = str(parameters.get("Action", ""))
            action = action if service == "ec2" else f"{service}:{action}"
        elif target := environ.get("HTTP_X_AMZ_TARGET"):
            parameters = json.loads(body or b"{}")
            parameters["Region"] = region
            action = f"{_PREFIXES.get(service, service)}:{target.rpartition('.')[2]}"
        else:
            parameters = json.loads(body) if body.startswith(b"{") else {}
            parameters |= {"Region": region, "Path": environ["PATH_INFO"]}
            action = f"{service}:{_rest_action(environ)}"
        self._seen.call = (action, parameters)
        self._seen.day = self._day
        return action, parameters

    def answer(self, environ: Environ, body: bytes) -> Reply:
        """Answers a call. Calls are serialised."""
        call = getattr(self._seen, "call", None)
        if call is None:
            return self._error("", "MissingAuthenticationToken", "")
        action, parameters = call
        if code := signature.fault_of(environ, body):
            return self._error(action, code, "")
        with self._cloud.lives.lock:
            if self._seen.day != self._day:
                raise ConnectionAbortedError("the box has been reset since this was asked")
            if signature.is_of_other(environ):
                return self._elsewhere(action, parameters, environ, body)
            if need := self._cloud.policy.refused(needs_of(action, parameters)):
                return self._unauthorized(action, need.action, need.resource)
            region = parameters["Region"]
            if found := self._others.answer(action, region, parameters):
                return found
            if ":" not in action and region not in self._cloud.regions:
                return self._error(action, "AuthFailure", "")
            if ":" not in action:
                images.install(region)
                network.open_default_vpc(region)
            if action.startswith("Describe"):
                with self._cloud.lives.past():
                    return self._by_moto(environ, body)
            if action.startswith(_EFS):
                reply = self._by_efs(action, parameters, environ, body)
            else:
                reply = self._by_moto(environ, body)
            if action in CHANGING:
                self._cloud.firewall.apply()
            return reply

    def _elsewhere(
        self, action: str, parameters: dict[str, Any], environ: Environ, body: bytes
    ) -> Reply:
        """Answers a call in the other account, in which there is nothing of the first one."""
        if found := self._others.answer(action, parameters["Region"], parameters, elsewhere=True):
            return found
        if action == "RunInstances":
            return self._error(action, "PendingVerification", "")
        return self._by_moto({**environ, "HTTP_X_MOTO_ACCOUNT_ID": OTHER_ACCOUNT}, body)

    def refuse(self, action: str, fault: Fault) -> Reply:
        """An error in the format of the service that was called."""
        return self._error(action, fault.code or "InternalError", fault.message, fault.status)

    def _error(self, action: str, code: str, message: str, status: int = 0) -> Reply:
        status = status or STATUS.get(code, 400)
        message = message or MESSAGES.get(code, code)
        if ":" not in action:
            return (
                status,
                [("Content-Type", "text/xml;charset=UTF-8")],
                xml_error(code, message).encode(),
            )
        if action.partition(":")[0] in _QUERY:
            text = f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
            return status, [("Content-Type", "text/xml")], text.encode()
        return refusal(code, message, status)

    def _unauthorized(self, action: str, needed: str, resource: str) -> Reply:
        said = (
            f"User: {USER_ARN} is not authorized to perform: {needed} on resource: {resource} because no "
            f"identity-based policy allows the {needed} action"
        )
        if ":" in action:
            return self._error(action, "AccessDeniedException", said)
        said = f"You are not authorized to perform this operation. {said}."
        return self._error(action, "UnauthorizedOperation", said)

    def _by_efs(
        self, action: str, parameters: dict[str, Any], environ: Environ, body: bytes
    ) -> Reply:
        files = self._cloud.files
        texts = (each[key] for each in parameters.get("Tags", ()) for key in ("Key", "Value"))
        if action == f"{_EFS}CreateFileSystem" and not all(map(_EFS_TAG.fullmatch, texts)):
            said = f"Value at 'tags' failed to satisfy constraint: pattern {_EFS_TAG.pattern}"
            return refusal("ValidationException", said)
        if action == f"{_EFS}CreateMountTarget" and files.is_new(parameters["FileSystemId"]):
            said = f"File system '{parameters['FileSystemId']}' is not available"
            return refusal("IncorrectFileSystemLifeCycleState", said, 409)
        if action == f"{_EFS}DescribeFileSystems":
            files.measure()
        reply = self._by_moto(environ, body)
        files.follow()
        return reply

    def _by_moto(self, environ: Environ, body: bytes) -> Reply:
        reply: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], failure: Any = None) -> Any:
            reply[:] = [int(status.split()[0]), headers]

        inner = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        content = b"".join(self._moto(inner, start))
        return reply[0], reply[1], content

    def do_reset(self) -> None:
        """Restores an empty account: no instances, volumes or groups."""
        from moto.backends import list_of_moto_modules  # noqa: F401
        from moto.efs.models import efs_backends
        from moto.iam.models import iam_backends

        with self._cloud.lives.lock:
            self._day += 1
            self._cloud.reset()
            for backends in (ec2_backends, efs_backends, iam_backends):
                for backend in list(backends.get(ACCOUNT, {}).values()):
                    backend.reset()

    def do_instances(self) -> list[dict[str, Any]]:
        """All listed instances."""
        with self._cloud.lives.lock:
            return [_show(life) for life in self._cloud.lives.all()]

    def do_timing(
        self,
        boot: float | None = None,
        stop: float | None = None,
        unknown: float | None = None,
        counted: float | None = None,
        volume: float | None = None,
        late: float | None = None,
    ) -> None:
        """Sets how many seconds things take; see `AwsBox.timing`."""
        lives, cloud = self._cloud.lives, self._cloud
        for kind in (cloud.disks, cloud.files):
            kind.seconds = kind.seconds if volume is None else volume
        cloud.unknown_seconds = cloud.unknown_seconds if unknown is None else unknown
        cloud.counted_seconds = cloud.counted_seconds if counted is None else counted
        cloud.late_seconds = cloud.late_seconds if late is None else late
        lives.boot_seconds = lives.boot_seconds if boot is None else boot
        lives.stop_seconds = lives.stop_seconds if stop is None else stop

    def do_preempt(self, ids: list[str], seconds: float) -> None:
        """Gives interruption notices."""
        for life in self._find(ids):
            self._cloud.lives.interrupt(life, seconds)

    def do_advise(self, ids: list[str]) -> None:
        """Sends rebalance recommendations."""
        for life in self._find(ids):
            self._cloud.lives.advise(life)

    def do_die(self, id: str, noticed: bool = True) -> None:
        """Cuts the power of machines."""
        with self._cloud.lives.lock:
            for life in self._find([id]):
                self._cloud.lives.break_down(life, noticed)

    def do_lag(self, seconds: float) -> None:
        """Makes listings lag."""
        self._cloud.lives.lag = seconds

    def do_boots(self, outcomes: list[str]) -> None:
        """Sets how the next machines boot. An empty list restores normal boots."""
        if not outcomes:
            self._cloud.boots.clear()
        self._cloud.boots.extend(outcomes)

    def do_regions(self, names: list[str]) -> None:
        """Sets the regions of the account. An empty list restores those of a new one."""
        if strange := sorted(set(names) - set(REGIONS)):
            raise ValueError(f"no region {strange[0]}; there are {list(REGIONS)}")
        self._cloud.regions = tuple(names) or REGIONS

    def do_capacity(self, kind: str, zone: str, count: int | None) -> None:
        """Sets how many more instances a zone has."""
        if count is None:
            self._cloud.market.capacity.pop((kind, zone), None)
        else:
            self._cloud.market.capacity[kind, zone] = count

    def do_quota(self, code: str, vcpus: float) -> None:
        """Sets a quota of the account."""
        if code not in self._cloud.market.quotas:
            raise ValueError(f"no quota {code}; there are {sorted(self._cloud.market.quotas)}")
        self._cloud.market.quotas[code] = vcpus

    def do_spot_price(self, kind: str, zone: str, price: float) -> None:
        """Sets the spot price."""
        changes = self._cloud.market.spot.setdefault((kind, zone), [])
        changes.append((utc_now(), price))

    def do_policy(self, document: dict[str, Any] | None) -> None:
        """Sets the user's permissions."""
        self._cloud.policy.set(document)

    def do_reserve(
        self,
        kind: str,
        zone: str,
        count: int,
        block: bool = False,
        state: str = "active",
        ends_in: float = 86400.0,
    ) -> str:
        """Creates a capacity reservation or a block, and returns its id."""
        reserved = Reserved(new_id("cr"), kind, zone, count, state=state)
        if block:
            reserved.market = "capacity-block"
            reserved.ends = utc_now() + timedelta(seconds=ends_in)
            reserved.begins = reserved.ends - timedelta(days=1)
        self._cloud.reserved[reserved.id] = reserved
        return reserved.id

    def do_image(self, region: str, disks: dict[str, int], platform: str) -> str:
        """Makes an image of the account's own, and returns its id."""
        with self._cloud.lives.lock:
            return images.make(region, disks, platform)

    def do_bill(self) -> list[dict[str, Any]]:
        """The account's bill."""
        return books.bill(self._cloud.lives.ever(), self._cloud.market)

    def do_volume_bill(self) -> list[dict[str, Any]]:
        """The account's bill for volumes."""
        with self._cloud.lives.lock:
            return books.volume_bill(self._cloud.disks.owned, clock.wall())

    def do_forget_ended(self) -> None:
        """Removes terminated instances from listings, as EC2 does after an hour."""
        with self._cloud.lives.lock:
            self._cloud.lives.forget_ended()

    def do_console(self, id: str) -> str:
        """The console output of an instance."""
        return self._cloud.lives.console(self._find([id])[0])

    def do_leftovers(self) -> dict[str, list[str]]:
        """Resources other than instances that cost money or block a cleanup: ids by kind, over all regions."""
        found: dict[str, list[str]] = {}
        with self._cloud.lives.lock:
            for region, backend in ec2_backends.get(ACCOUNT, {}).items():
                amis = {ami.ebs_snapshot.volume.id for ami in backend.amis.values()}
                found.setdefault("volumes", []).extend(set(backend.volumes) - amis)
                found.setdefault("interfaces", []).extend(backend.enis)
                found.setdefault("addresses", []).extend(a.public_ip for a in backend.addresses)
                requests = backend.spot_instance_requests.values()
                found.setdefault("spot requests", []).extend(
                    r.id for r in requests if r.state in ("open", "active")
                )
                found.setdefault("placement groups", []).extend(
                    name for place, name in self._cloud.groups if place == region
                )
        return {kind: sorted(ids) for kind, ids in found.items()}

    def do_tagged(self, key: str, value: str) -> dict[str, list[str]]:
        """All resources with a tag, without terminated instances: ids by kind, over all regions."""
        found: dict[str, list[str]] = {}
        with self._cloud.lives.lock:
            for region, backend in ec2_backends.get(ACCOUNT, {}).items():
                groups = [each for by_id in backend.groups.values() for each in by_id.values()]
                requests = backend.spot_instance_requests.values()
                kinds: dict[str, list[tuple[str, Any]]] = {
                    "security groups": [(each.id, each.get_tags()) for each in groups],
                    "volumes": [(k, v.get_tags()) for k, v in backend.volumes.items()],
                    "interfaces": [(k, v.get_tags()) for k, v in backend.enis.items()],
                    "key pairs": [(k, v.get_tags()) for k, v in backend.key_pairs.items()],
                    "spot requests": [
                        (each.id, each.get_tags())
                        for each in requests
                        if each.state in ("open", "active")
                    ],
                    "instances": [
                        (life.instance.id, life.instance.get_tags())
                        for life in self._cloud.lives.all()
                        if life.region == region and life.state != "terminated"
                    ],
                }
                for kind, there in kinds.items():
                    for id, tags in there:
                        if any(_pair(tag) == (key, value) for tag in tags):
                            found.setdefault(kind, []).append(id)
            for (_, name), group in self._cloud.groups.items():
                if any(_pair(tag) == (key, value) for tag in group["Tags"]):
                    found.setdefault("placement groups", []).append(name)
        return {kind: sorted(ids) for kind, ids in found.items()}

    def _find(self, ids: list[str]) -> list[Life]:
        found = [self._cloud.lives.find(id) for id in ids]
        if missing := [id for id, life in zip(ids, found, strict=True) if life is None]:
            raise ValueError(f"no instance {', '.join(missing)}")
        return [life for life in found if life is not None]


def _pair(tag: Mapping[str, str]) -> tuple[str, str]:
    return tag.get("key", tag.get("Key", "")), tag.get("value", tag.get("Value", ""))


def _show(life: Life) -> dict[str, Any]:
    instance = life.instance
    return {
        "id": instance.id,
        "state": life.state,
        "region": life.region,
        "zone": str(instance.placement.zone),
        "type": instance.instance_type,
        "address": life.machine.address,
        "public_address": instance.public_ip and life.machine.public_address,
        "machine": life.machine.slot,
        "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
        "spot": life.spot and life.spot.id,
        "reason": str(instance.state_reason.code),
        "token": instance.client_token,
    }


def _rest_action(environ: Environ) -> str:
    """A name for an EFS request, which has no action parameter. Covers the usual requests."""
    match = _REST.fullmatch(environ["PATH_INFO"].rstrip("/"))
    if match is None:
        return str(environ["PATH_INFO"])
    verb = {"POST": "Create", "GET": "Describe", "PUT": "Update", "DELETE": "Delete"}
    noun = "".join(word.capitalize() for word in match[1].split("-"))
    if environ["REQUEST_METHOD"] != "GET":
        noun = noun.removesuffix("s")
    return verb.get(environ["REQUEST_METHOD"], "") + noun


def _tags_of(resource: Any) -> list[dict[str, str]]:
    """The tags of a resource. moto compares its id with those of all that have tags."""
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource.id), "") if resource.id else ""
    return [
        {"resource_id": resource.id, "key": key, "value": value, "resource_type": kind}
        for key, value in resource.ec2_backend.tags.get(resource.id, {}).items()
    ]


def _install(cloud: Cloud) -> None:
    """Replaces moto's calls with the box's."""
    disks.install()
    catalogue.install()
    instance.install()
    network.install()
    TaggedEC2Resource.get_tags = _tags_of  # type: ignore[assignment,method-assign]
    EC2Response.cloud = cloud  # type: ignore[attr-defined]
    EC2Response.__bases__ = (
        Launching,
        catalogue.Catalogue,
        Ending,
        Groups,
        Reservations,
        BlockStore,
        SpotMarket,
        *EC2Response.__bases__,
    )
    # A repeated launch returns the current states.
    EC2BaseResponse.RESPONSE_KEY_PATH_TO_TRANSFORMER.pop(
        "RunInstances.Reservation.Instances.Instance.State"
    )
    filter_dict_attribute_mapping.update(
        {
            "client-token": "client_token",
            "instance-lifecycle": "lifecycle",
            "spot-instance-request-id": "spot_instance_request_id",
            "placement-group-name": "placement.group_name",
            "instance-state-code": "state_code",
        }
    )
