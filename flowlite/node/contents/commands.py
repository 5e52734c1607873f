"""The subcommand `contents`: one node's part in the distribution."""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    """`contents serve` or `contents fetch`."""
    if arguments[0] == "serve":
        from . import serve

        return serve.main()
    from . import fetch

    return fetch.main()
