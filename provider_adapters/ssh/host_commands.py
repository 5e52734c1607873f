"""The operations behind `flow hosts`: adding, listing, checking, trusting and removing hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, NotFound
from flowlite.settings.settings import HOME_FILE, ensure_home
from flowlite.settings.suggest import did_you_mean
from provider_adapters.ssh import checking, editing, host_requirements, hosts, leases
from provider_adapters.ssh.hosts import Facts, Memory
from provider_adapters.ssh.pools import Host, Pool, choose_pool, config_file, read_pools
from provider_adapters.ssh.unfit_hosts import UnfitHosts

if TYPE_CHECKING:
    from flowlite.connect.ssh.host_keys import HostKey
    from flowlite.connect.ssh.targets import SshTarget
    from flowlite.settings.provider_settings import ProviderSettings

DEFAULT_POOL = "default"
# What a row says only of a host that answers. Programs find the same keys in every row.
_ANSWERED = ("python", "python_path", "cores", "memory_gb", "gpus", "free_gb", "task", "user")


class HostCommands:
    """The pools of this user's configuration."""

    def __init__(
        self,
        memory: Memory,
        unfit: UnfitHosts,
        read: Callable[[], ProviderSettings],
    ) -> None:
        self._memory = memory
        self._unfit = unfit
        self._read = read

    # The configuration

    def add(self, name: str, pool: str | None, **settings: Any) -> tuple[Host, Path]:
        """Adds a host to a pool in FLOW_HOME's file, which is created if missing. No connection is made."""
        own = {key: value for key, value in settings.items() if value is not None}
        entry: Any = {"host": name, **own} if own else name
        chosen = pool or self._usual_pool()
        path = ensure_home() / HOME_FILE

        def append(listed: list[Any]) -> list[Any]:
            if any(_host_of(each) == name for each in listed):
                raise ConfigError(f"{name!r} is in the pool {chosen!r} already")
            return [*listed, entry]

        editing.change_hosts(path, chosen, append, check=lambda: read_pools(self._read()))
        return read_pools(self._read())[chosen].hosts[-1], path

    def remove(self, name: str, pool: str | None) -> tuple[str, Path]:
        """Removes a host from FLOW_HOME's file. Raises NotFound."""
        host = self.find(name, pool)
        path = ensure_home() / HOME_FILE

        def without(listed: list[Any]) -> list[Any]:
            kept = [each for each in listed if _name_of(each) != host.name]
            if len(kept) == len(listed):
                where = self._read().origin_of("pools", host.pool)
                raise ConfigError(f"{name!r} stands in {where}; take it out there")
            return kept

        editing.change_hosts(path, host.pool, without)
        self._memory.forget(host)
        return host.pool, path

    def find(self, name: str, pool: str | None = None) -> Host:
        """The host of that name. Raises NotFound."""
        pools = read_pools(self._read())
        known = [h for p in pools.values() if pool in (None, p.name) for h in p.hosts]
        found = next((host for host in known if host.name == name), None)
        if found is None:
            names = [host.name for host in known]
            guess = did_you_mean(name, names) or f"; known: {', '.join(names) or 'none'}"
            raise NotFound(f"there is no host {name!r} in a pool{guess}")
        return found

    def pools(self, pool: str | None) -> list[Pool]:
        """One pool, or all."""
        settings = self._read()
        return (
            [choose_pool(settings, pool, "--pool")] if pool else list(read_pools(settings).values())
        )

    def _usual_pool(self) -> str:
        settings = self._read()
        pools = read_pools(settings)
        if not pools:
            return str(settings.values.get("pool") or DEFAULT_POOL)
        return next(iter(pools)) if len(pools) == 1 else choose_pool(settings, None, "--pool").name

    # The hosts themselves

    def rows(self, pool: str | None) -> list[dict[str, Any]]:
        """Every host with its facts and the holder of its lease, all asked now."""
        listed = [host for each in self.pools(pool) for host in each.hosts]
        answers = hosts.everywhere(
            listed, lambda host: hosts.ask_now(host, self._memory), *hosts.TROUBLE
        )
        return [
            _row(host, answer, self._unfit.why(host.key))
            for host, answer in zip(listed, answers, strict=True)
        ]

    def check(self, pool: str | None) -> list[dict[str, Any]]:
        """For each pool {"pool", "hosts", "answered", "problems"}."""
        told = []
        for each in self.pools(pool):
            if not each.hosts:
                continue
            found, problems = checking.check(each, self._memory, self._unfit)
            told.append(
                {
                    "pool": each.name,
                    "hosts": [host.name for host in each.hosts],
                    "answered": list(found),
                    "problems": [asdict(problem) for problem in problems],
                }
            )
        return told

    # Keys

    def shown_key(self, name: str) -> tuple[SshTarget, HostKey, str]:
        """The target of a host, the key it presents now, and the fingerprint known so far ("" for none).

        Raises:
            HostKeyError: The key is revoked.
        """
        from flowlite.connect.ssh import host_key_scan, host_keys
        from flowlite.connect.ssh.targets import resolve_target

        try:
            target = hosts.target_of(self.find(name))
        except NotFound:
            # A jump host need not be in a pool.
            target = resolve_target(name, config_file(self._read()))
        found = host_keys.known(target)
        known = [each.key for each in found if not each.revoked]
        key = host_key_scan.fetch(target)
        host_keys.refuse_revoked(target, key, found)
        if key in known:
            return target, key, key.fingerprint
        same_kind = [each for each in known if each.kind == key.kind] or known
        return target, key, same_kind[0].fingerprint if same_kind else ""


def _host_of(entry: Any) -> str:
    return str(entry.get("host")) if isinstance(entry, dict) else str(entry)


def _name_of(entry: Any) -> str:
    if isinstance(entry, dict) and entry.get("name"):
        return str(entry["name"])
    text = _host_of(entry).rpartition("@")[2]
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0] or text


def _row(
    host: Host, answer: tuple[Facts, dict[str, Any] | None] | Exception, unfit: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": host.name,
        "pool": host.pool,
        "address": host.private_ip or None,
        **dict.fromkeys(_ANSWERED),
    }
    if isinstance(answer, Exception):
        return {**row, "state": "unreachable", "why": str(answer) or type(answer).__name__}
    facts, held = answer
    python = host_requirements.choose_python(host, facts, None)
    state = "free" if not held else "warm" if held.get("state") == "warm" else "leased"
    if state == "free" and unfit:
        state = "avoided"
    return {
        **row,
        "address": host.private_ip or facts.address,
        "python": python[1] if python else None,
        "python_path": python[0] if python else None,
        "cores": facts.cores,
        "memory_gb": round(facts.memory_gb, 1),
        "gpus": host_requirements.gpus_in_words(host, facts),
        "free_gb": facts.disk.get("free_gb"),
        "state": state,
        "why": leases.in_words(host.name, held)
        if held
        else unfit or host_requirements.python_problem(host, facts),
        "task": (held or {}).get("task"),
        "user": (held or {}).get("user"),
    }
