"""HTML for notebooks. Every text is escaped, so that names, reasons and output cannot become markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowlite import terminal

_CELL = "text-align:left;vertical-align:top"
_LINES = "margin:0;white-space:pre-wrap;max-height:40em;overflow:auto"


def escaped(text: object) -> str:
    """A text as it can stand in an element or in a quoted attribute. Colours and control characters are removed."""
    # Imported here, since only notebooks need it.
    import html

    return html.escape(terminal.plain(str(text)), quote=True)


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a heading."""
    head = "".join(f'<th style="{_CELL}">{escaped(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(title: str, values: Mapping[str, object]) -> str:
    """A title, and names with their values; those that are None or "" are left out."""
    rows = "".join(
        f'<tr><th style="{_CELL}">{escaped(name)}</th>{_cell(value)}</tr>'
        for name, value in values.items()
        if value is not None and value != ""
    )
    return f"<div><b>{escaped(title)}</b><table><tbody>{rows}</tbody></table></div>"


def lines(text: str) -> str:
    """Lines as a terminal shows them."""
    return f'<pre style="{_LINES}">{escaped(text)}</pre>'


def _cell(value: object) -> str:
    return f'<td style="{_CELL}">{escaped(value)}</td>'
