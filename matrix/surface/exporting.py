"""Which names a file exports by `__all__` and `@requires`, read from its text as transformers reads it.

`create_import_structure_from_path` (transformers 4.46 to 5.24) works on lines of text, so this does too: no tree.
"""

from __future__ import annotations

import re

_ALL = re.compile(rb"^__all__\s*(?:\+?=)\s*[\[(](.*?)[\])]", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(rb"[\"'](\w+)[\"']")
_REQUIRES = re.compile(rb"^@requires\b.*?^(?:class|def|async def)\s+(\w+)", re.MULTILINE | re.DOTALL)


def exported_names(source: bytes) -> list[str]:
    """Return the names that one file exports, in order; the file is not parsed."""
    if b"__all__" not in source and b"@requires" not in source:
        return []
    found = [item.decode() for body in _ALL.findall(source) for item in _ITEM.findall(body)]
    return found + [name.decode() for name in _REQUIRES.findall(source)]
