"""The data of a page, taken out of it and unpacked, as its script does it."""

from __future__ import annotations

import json
import re
from typing import Any

from reports.packing import unpack


def page_data(html: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the page has at once, and each cell in full."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    packed = json.loads(text)
    return unpack(packed), [unpack(packed, place) for place in packed["lazy"]]


def page_text(html: str) -> str:
    """Return all that the page can show, as text: what stands in its HTML, and its data."""
    shown, cells = page_data(html)
    return html + json.dumps([shown, cells], ensure_ascii=False)
