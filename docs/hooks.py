"""Hooks of mkdocs: files of the repository that a page links to, such as examples, become part of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# A link that leaves docs/, as a reader of the repository follows it.
OUTSIDE = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>(?:examples|README|LICENSE|CHANGELOG)[^)#]*)")


def on_files(files: Files, config: Any) -> Files:
    """Adds each file outside docs/ that a page names."""
    named = {
        match["path"]
        for page in files.documentation_pages()
        for match in OUTSIDE.finditer(page.content_string)
    }
    for path in sorted(named):
        file = File.generated(config, path, abs_src_path=str(ROOT / path))
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Has such links lead to where the file is in the site, which is one directory less up."""
    return OUTSIDE.sub(lambda match: f"]({match['up'][3:]}{match['path']}", markdown)
