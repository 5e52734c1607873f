"""Answers whose form flowlite does not know: a field is missing, or is of another type than the API's document says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowlite.errors import FlowError, ProviderError


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Reports such an answer as an error of the provider, which is asked again; a gang that runs goes on meanwhile.

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
