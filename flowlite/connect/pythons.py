"""Installs a Python on a node that has none that is new enough, with a copy of `uv` that is sent there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from flowlite.connect import programs, uv
from flowlite.connect.base import Connection
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.python_env.uv import in_short, without_credentials

_SECONDS = 600.0
_SCRIPT = f"""\
{programs.SAFE_IN_SHELL}
uv=$1 place=$2 version=$3
safe "$place" || exit {programs.UNSAFE}
mkdir -p "$place" && chmod 700 "$place" || exit 1
"$uv" python install --install-dir "$place" "$version" >&2 || exit 1
ls -d "$place"/cpython-"$version".*/bin/python3 | tail -n 1
"""


def install(
    connection: Connection,
    root: str,
    platform: str,
    version: str,
    settings: Mapping[str, str],
    home: Path,
) -> str:
    """Installs Python on a node and returns its path. A version that is installed already is not downloaded again.

    Args:
        root: Absolute path of flowlite's directory on the node.
        platform: The node's platform, such as `linux-x86_64-glibc`.
        version: Minor version, such as `3.12`.
        settings: Variables for uv (`flowlite.python_request.index_settings`); sent through standard input.
        home: FLOW_HOME, where uv is stored.

    Raises:
        NodeUnreachable: The node cannot be reached.
        ProviderError: Python cannot be installed; the message says why.
    """
    said = ""
    for program in uv.programs_for(platform, home):
        tool = f"{root}/blobs/{program.sha256}"
        connection.put_cached(program.path, tool, program.sha256, mode=0o700)
        ours = {"UV_NO_PROGRESS": "1", "UV_PYTHON_INSTALL_BIN": "0", **settings}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in ours.items()]
        words = " ".join(shlex.quote(each) for each in (tool, f"{root}/envs/python", version))
        script = f"{''.join(lines)}set -- {words}\n{_SCRIPT}"
        try:
            done = connection.run(["sh", "-s"], input=script.encode(), timeout=_SECONDS)
        except TimeoutError as error:
            raise NodeUnreachable(f"Python was not installed within {_SECONDS:.0f} s") from error
        path = done.stdout.decode(errors="replace").strip()
        if done.code == 0 and path.startswith("/"):
            return path
        text = without_credentials(done.stderr.decode(errors="replace"))
        said = in_short(text) or f"exit code {done.code}"
        if done.code == programs.UNSAFE:
            raise ProviderError(programs.unsafe(text.strip()))
        if "error:" in text:
            break  # uv runs there; another build would fail in the same way
    raise ProviderError(f"Python {version} cannot be installed with uv: {said}")
