"""Packed data: plain JSON in which every value stands once, small enough to lie in a page, unpacked by `unpack.js`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

LIST = -1
"""Stands before the references of a list, where an object has the number of its shape."""


def pack(root: object, lazy: Sequence[object] = ()) -> dict[str, Any]:
    """Return `root` and the values of `lazy` as one table of values in which each stands once.

    `nodes` are the values: a text, number, truth or null as it is, an object as the number of its shape and the places
    of its values, a list as `LIST` and the places of its items. `shapes` are the keys of objects. `root` is the place
    of `root`, `lazy` the places of those values, which a reader may unpack one by one. What is used most stands first,
    so that its place is a short number.

    Raises:
        TypeError: a value is no JSON data.
    """
    table = _Table()
    first = table.place(root)
    others = [table.place(value) for value in lazy]
    order = sorted(range(len(table.nodes)), key=lambda place: -table.uses[place])
    moved = {old: new for new, old in enumerate(order)}
    nodes = [_moved(table.nodes[old], moved) for old in order]
    return {
        "shapes": [list(shape) for shape in table.shapes],
        "nodes": nodes,
        "root": moved[first],
        "lazy": [moved[place] for place in others],
    }


def unpack(packed: dict[str, Any], place: int | None = None) -> Any:
    """Return the value at `place`, by default the root: what `unpack.js` does, in Python."""
    node = packed["nodes"][packed["root"] if place is None else place]
    if not isinstance(node, list):
        return node
    shape, *places = node
    values = [unpack(packed, item) for item in places]
    return values if shape == LIST else dict(zip(packed["shapes"][shape], values, strict=True))


def script_json(data: object) -> str:
    """Return JSON that may stand in a script element: nothing in it ends the element or a line of the script."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def printable(text: str) -> str:
    """Return text without control characters, which a log may hold and a page cannot show, nor half a character."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


class _Table:
    """The values by what they are, each with its place and how often it is used."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.uses: list[int] = []
        self.shapes: dict[tuple[str, ...], int] = {}
        self._places: dict[object, int] = {}
        # By the text as it came: most texts come often, and are looked at once.
        self._texts: dict[str, int] = {}

    def place(self, value: object) -> int:
        """Return where the value stands, put there if it is new."""
        if isinstance(value, str):
            found = self._texts.get(value)
            if found is None:
                found = self._texts[value] = self._put(str, printable(value))
            self.uses[found] += 1
            return found
        if isinstance(value, dict):
            keys = tuple(value)
            shape = self.shapes.setdefault(keys, len(self.shapes))
            found = self._put(tuple, (shape, *map(self.place, value.values())))
        elif isinstance(value, list | tuple):
            found = self._put(tuple, (LIST, *map(self.place, value)))
        elif value is None or isinstance(value, bool | int | float):
            # 1, 1.0 and True are equal to Python and not the same in JSON.
            found = self._put(type(value), value)
        else:
            raise TypeError(f"{type(value).__name__} is no JSON data")
        self.uses[found] += 1
        return found

    def _put(self, kind: type, node: object) -> int:
        found = self._places.setdefault((kind, node), len(self.nodes))
        if found == len(self.nodes):
            self.nodes.append(node)
            self.uses.append(0)
        return found


def _moved(node: Any, moved: dict[int, int]) -> Any:
    if not isinstance(node, tuple):
        return node
    shape, *places = node
    return [shape, *(moved[place] for place in places)]
