"""Answers whose format flowlite does not know: a field is missing, or has another type than in the API's document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowlite.errors import FlowError, ProviderError


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Raises ProviderError for such an answer. The provider is asked again, and a running gang is not stopped for it.

    Args:
        what: What is read, for the error.
    """
    try:
        yield
    except FlowError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProviderError(
            f"Mithril gives {what} in a form that this version of flowlite does not know "
            f"({type(error).__name__}: {error})"
        ) from error
