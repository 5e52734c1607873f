"""Secret and certificate of one distribution, as files for as long as they are read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.agent_config import AttemptPaths
from ..system.atomic_files import write_atomically


class Gang:
    """What a listener has to know of the gang (`protocol.listener.GangFacts`)."""

    tls = True

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.task = str(facts["task"])
        self.attempt = int(facts["attempt"])
        self.roster = [str(each) for each in facts.get("roster", ())]
        self.bind = str(facts.get("bind", ""))


@contextmanager
def written_out(home: str, facts: Mapping[str, Any]) -> Iterator[AttemptPaths]:
    """Writes secret, certificate and key where the code of an attempt looks for them, and removes them afterwards.

    They came over a connection of the supervisor's, and are on a disk only while `ssl` reads them.
    """
    os.makedirs(home, mode=0o700, exist_ok=True)
    directory = tempfile.mkdtemp(prefix=".contents-", dir=home)
    try:
        paths = AttemptPaths(Path(directory))
        for path, text in (
            (paths.secret, bytes.fromhex(facts["secret"])),
            (paths.certificate, str(facts["certificate"]).encode()),
            (paths.certificate_key, str(facts.get("key", "")).encode()),
        ):
            write_atomically(path, text)
        yield paths
    finally:
        shutil.rmtree(directory, ignore_errors=True)
