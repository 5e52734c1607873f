"""How the API is reached: directly, or through the proxy that the environment names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError
from flowlite.settings.http_proxy import proxy_for

if TYPE_CHECKING:
    import httpx

# Variables that name files which an encrypted connection needs.
_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def transport_for(url: str, module: Any) -> httpx.BaseTransport:
    """The transport for the API at this URL. Raises ProviderError if what the environment says cannot be used.

    Args:
        module: httpx.
    """
    # Without encryption the API is on this machine (`settings.py`), and the key must not leave it.
    variable, proxy = ("", "") if url.startswith("http:") else proxy_for(url)
    try:
        through = module.Proxy(proxy) if proxy else None
        made: httpx.BaseTransport = module.HTTPTransport(proxy=through)
    except ImportError as error:
        raise ProviderError(f"{variable} names a proxy that cannot be used: {error}") from None
    except OSError as error:
        named = [each for each in _FILES if os.environ.get(each)]
        where = f" (look at {' and '.join(named)})" if named else ""
        raise ProviderError(
            f"no encrypted connection to Mithril's API can be made: {error.strerror or error}{where}"
        ) from None
    except Exception as error:
        # Neither the text of the error nor the URL is shown: there may be a password in them.
        raise ProviderError(
            f"{variable} does not name a proxy that can be used ({type(error).__name__}): give its URL, as in "
            "http://proxy.example:3128, or unset it"
        ) from None
    return made
