"""The proxy that the environment names for one URL.

httpx reads the variables for all hosts at once, and fails altogether if one entry of `NO_PROXY` is not to its taste,
such as `::1/128`, which other programs accept.
"""

from __future__ import annotations

from urllib.parse import urlsplit

_ANY = "all"


def proxy_for(url: str) -> tuple[str, str]:
    """The variable that names the proxy for a URL, and the proxy's URL; two empty texts if it is reached directly."""
    # httpx imports it too, and takes longer; it is not needed before there is something to ask.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return "", ""
    found = getproxies()
    for scheme in (parts.scheme, _ANY):
        if proxy := found.get(scheme):
            return f"{scheme.upper()}_PROXY", proxy if "://" in proxy else f"http://{proxy}"
    return "", ""
