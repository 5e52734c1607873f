"""What an adapter may do besides the contract in `contract.py`. Each method has a default that does without."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flowlite.errors import NotFound
from flowlite.provider.findings import Finding, Offer, VolumeInfo, VolumePlace
from flowlite.provider.instance import Instance
from flowlite.provider.plan import Plan
from flowlite.settings.provider_settings import ProviderSettings


class OptionalMethods:
    """The methods of a provider that have a default."""

    name: str

    def price_to_launch(self, plan: Plan) -> float:
        """US dollars per instance and hour that a launch of this plan would be charged now, with the present settings.

        Called by the supervisor before it launches a plan whose price is zero. Raises ProviderError.
        """
        return plan.price_per_hour

    def prepare_to_launch(self) -> None:
        """Does what a launch needs and can be done before, such as slow imports. Must make no network call.

        Called while the task waits for its turn, so that free hosts do not wait for it. Not called before each launch.
        """

    @classmethod
    def start_ahead(cls, home: Path) -> None:
        """Starts what nodes of this provider will probably need, and returns at once. Must make no network call.

        Called first of all in the process of a supervisor, whose task is not known yet, so that it starts while this
        process imports. The provider may turn out to be another one.
        """

    @classmethod
    def remembered(cls, home: Path) -> list[ProviderSettings]:
        """Returns the settings needed to end what was launched from this FLOW_HOME, from the adapter's own records.

        Called by the cleanup, for launches of tasks that the store does not know any more.
        """
        return []

    def avoid(self, instances: Sequence[Instance]) -> None:
        """Keeps machines from being used again whose instances were lost, or are broken (`Instance.sick`).

        Called before they are terminated, and again after a crash. An adapter decides for how long, and how often a
        machine may be lost. The default does nothing: a cloud hands out other machines, or does not say which.
        """

    def has_left(self) -> bool:
        """Whether instances on which something may still run were given up because they did not answer.

        Reads only files. Makes no network call.
        """
        return False

    def revisit(self) -> None:
        """Ends those of the instances given up that answer now."""

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        """Marks instances from which not all files of the ranks were fetched.

        After that, `terminate` and every other way to give these instances back leave the files in place until
        `forget`, or until files that were unused for a long time are removed there. `connect` and `node_settings`
        still work for them. The mark is durable before the method returns, also for instances that do not answer.

        Returns:
            The instances for which this is possible, which are those where it costs nothing.
        """
        return []

    def forget(self, instances: Sequence[Instance]) -> None:
        """Removes the files retained on these instances, which were given back."""

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        """Keeps instances for the owner's next task, for the given time at most, without anything the last task left.

        They end by themselves after that time, even if no process of flowlite runs. `launch` uses fitting ones first,
        and names them in `Instance.continues`. `terminate` ends them at once. `list_instances` lists them as "warm"
        until then.

        Nobody looks at kept instances. Where their price may change, or their end may come early or late, they are
        `cost_at_most`, here and in listings: what they have really cost is taken from a later listing.

        Returns:
            The instances that are kept, in state "warm". The others are unchanged, and have to be terminated.
        """
        return []

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        """Returns those of some warm instances that are known to exist still.

        Must answer at once, so an instance may be gone without that being known yet.
        """
        return list(instances)

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        """Returns the name of something else, not these instances, that answers from here now; "" if nothing does.

        Called when none of a task's nodes can be reached. If another host or the provider's own service answers, the
        nodes are gone; if nothing does, our own network may be down. Called often, in a thread. Takes some seconds at
        most.
        """
        return ""

    def is_suspended(self, instances: Sequence[Instance]) -> bool:
        """Whether the provider has stopped what runs on some of these instances, and may let it go on later.

        Called when none of a task's nodes can be reached: such nodes cannot answer, and are not gone. Called often, in
        a thread, as `answers_beside`.
        """
        return False

    def others(self) -> list[Instance]:
        """Returns instances with flowlite's tag that were launched from other FLOW_HOMEs, on this or another machine.

        Their `data` has {"home", "owner", "deadline"}: whose they are, and the Unix time by which they should have
        ended (None for no limit). If their end may leave something that is charged on, "stays" names it in words.
        """
        return []

    def tidy_up(self, instances: Sequence[Instance]) -> None:
        """Removes what instances that ended by themselves have left on their machines, which may be launched again.

        The supervisor calls it while the task continues, for instances that are no longer listed and whose files it
        does not need any more. It may fail.
        """

    def clear(self, task_id: str) -> None:
        """Removes what was created beside instances for a task that launches nothing more here, such as groups.

        Called when none of the task's instances is there any more, other than kept ones: at its end, and before it goes
        on at another place. May fail; `sweep` removes what is left.
        """

    def sweep(self, live: Collection[str], *, dry_run: bool = False) -> list[str]:
        """Removes what was created beside instances and serves none of the `live` tasks: groups, requests, keys.

        Never removes a volume. Called by `flow gc`.

        Returns:
            What was removed or, with `dry_run`, would be removed, in words.
        """
        return []

    def sweep_others(self, *, dry_run: bool = False) -> list[str]:
        """Does what `sweep` does for all other FLOW_HOMEs, for tasks that have no instance. For `flow gc --all-homes`.

        Returns:
            As `sweep`.
        """
        return []

    def not_looked_at(self) -> list[str]:
        """Returns what listings and `sweep` left out, such as an inaccessible region; a line each."""
        return []

    def configured(self) -> bool:
        """Whether the user has set up the provider, with settings or credentials. Looks at this machine only."""
        return True

    def check(self) -> list[Finding]:
        """Checks whether credentials and permissions exist and suffice, without launching anything."""
        return []

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        """Returns possible gangs, cheapest first. If nothing fits, returns the nearest, with the reasons."""
        return []

    def regions(self, pattern: str | None = None) -> list[str] | None:
        """Returns the regions that a task may be in.

        Args:
            pattern: Only regions that fit, as in "us-*", of all that the provider has. None for the regions of a task
                that names none, from the settings alone; an empty list leaves the choice to `plan`.

        Returns:
            Their names; None if the provider has no regions, such as own hosts.

        Raises:
            ConfigError: No region is set, and the provider needs one.
            ProviderError: The provider does not answer.
        """
        return None

    @classmethod
    def has_regions(cls) -> bool:
        """Whether the provider has regions, that is, the adapter has `regions` of its own."""
        return cls.regions is not OptionalMethods.regions

    @classmethod
    def has_volumes(cls) -> bool:
        """Whether the adapter manages volumes, that is, has a `create_volume` of its own."""
        return cls.create_volume is not OptionalMethods.create_volume

    @classmethod
    def has_offers(cls) -> bool:
        """Whether the adapter lists what it has, that is, has `offers` of its own."""
        return cls.offers is not OptionalMethods.offers

    def create_volume(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        """Creates a volume, or returns the existing one of that name.

        Args:
            region: Where, as `region=` of a task; None for the region of the settings. Only for a provider that has
                regions.
        """
        raise NotFound(f"the provider {self.name!r} has no volumes")

    def list_volumes(self) -> list[VolumeInfo]:
        """Returns all volumes created through this provider."""
        return []

    @contextmanager
    def volume_place(self, name: str) -> Iterator[VolumePlace | None]:
        """Yields where a volume's files can be reached; None if only a machine of a task can reach them.

        Raises:
            NotFound: There is no such volume.
            ProviderError: No machine that has it answers.
        """
        yield None

    def delete_volume(self, name: str) -> None:
        """Deletes a volume with its contents. Raises NotFound."""
        raise NotFound(f"no volume {name!r} at the provider {self.name!r}")
