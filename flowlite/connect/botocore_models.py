"""The models of AWS's services. botocore reads each from its files once in a process, for all sessions."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.loaders import Loader


@functools.cache
def loader(data_path: str | None) -> Loader:
    """The loader of all sessions.

    Reading EC2's model takes 0.1 s, and 0.05 s more go into looking through the directories of 400 other services.

    Args:
        data_path: What `AWS_DATA_PATH` says: directories with further models.
    """
    import botocore.loaders
    from botocore.exceptions import DataNotFoundError, UnknownServiceError

    class Shared(botocore.loaders.Loader):  # type: ignore[misc]
        @property
        def search_paths(self) -> list[str]:
            # Each session of boto3 appends the directory of its models of resources, which nothing here uses.
            return list(super().search_paths)

        def list_available_services(self, type_name: str) -> list[str]:
            # Without a look at what each has; it is the only thing for which botocore asks.
            directories = [Path(path) for path in self.search_paths]
            return sorted(
                {name for each in directories if each.is_dir() for name in os.listdir(each)}
            )

        def load_service_model(
            self, service_name: str, type_name: str, *version: Any, **options: Any
        ) -> Any:
            try:
                return super().load_service_model(service_name, type_name, *version, **options)
            except DataNotFoundError as error:
                raise UnknownServiceError(
                    service_name=service_name,
                    known_service_names=f"none with a {type_name} was found",
                ) from error

    further = data_path.split(os.pathsep) if data_path else []
    return Shared([os.path.expanduser(os.path.expandvars(path)) for path in further])
