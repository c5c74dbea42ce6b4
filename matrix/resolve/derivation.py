"""uv's derivation ("Because A and B, we can conclude that C …") taken apart into the facts it starts from."""

from __future__ import annotations

import re
from collections.abc import Collection

# Where a premise begins; " and " in front of anything else joins two items of one list.
_PREMISE = re.compile(
    r"(?:you require |your requirements |there (?:is|are) no |only |all versions of |all of:|any of:|the requested |"
    r"we know from |\S+ (?:depends on |was |were |has |have |cannot |needs |requires |is |are |and \S+ are |"
    r"could not |must ))"
)
_CONCLUDE = re.compile(r",? we can conclude that ")
_RECALL = re.compile(r"we know from \(\d+\) that ")
_NUMBER = re.compile(r"\.?(?: \(\d+\))?\.?$")
_OWN = re.compile(r"^(?:you require |your requirements |we know from )| are incompatible$")
_BARE_LIST = (
    (re.compile(r"^(.*?) one of: (.+)$"), " or "),
    (re.compile(r"^(.*? available): (.+)$"), " or "),
    (re.compile(r"^()(?:all|any) of: (.+?)(?= (?:have|has|were|was|are|cannot|depend|depends|need|needs) )"), " and "),
)


def premises(text: str) -> tuple[str, ...]:
    """Return the facts that a derivation starts from, each once, in order: what it concludes on the way is left out.

    Empty when the text has no derivation. What the user required is left out too: that is the cell itself.
    """
    # A package may carry the marker under which it is asked for: xgrammar{platform_machine == 'x86_64'}>=0.2.1
    body = re.sub(r"\{[^{}]*\}", "", " ".join(text.split()))
    body = re.sub(r"^.*?\bcause: ", "", body)
    steps = [
        _CONCLUDE.split(step, maxsplit=1) for step in re.split(r"(?:^|\s)(?:Because|And because) (?=\S)", body)[1:]
    ]
    concluded = {_NUMBER.sub("", conclusion) for _, *rest in steps for conclusion in rest}
    found: dict[str, None] = {}
    for before, *_ in steps:
        for premise in _split(_without_recalled(before, concluded)):
            if premise and premise not in concluded and not _OWN.search(premise):
                found.setdefault(_listed(premise))
    return tuple(found)


def _without_recalled(text: str, concluded: Collection[str]) -> str:
    """Return the premises of a step without the conclusions of earlier steps that it recalls by number."""
    while match := _RECALL.search(text):
        after = text[match.end() :]
        recalled = max((known for known in concluded if after.startswith(known)), key=len, default="")
        text = f"{text[: match.start()]}{after[len(recalled) :]}"
    return text


def _split(text: str) -> list[str]:
    """Return the premises that " and " joins."""
    parts: list[str] = []
    for part in re.split(r",? and (?=\S)|^and ", text.strip(" ,.")):
        if parts and part and not _PREMISE.match(part):
            parts[-1] += f" and {part}"
        else:
            parts.append(part)
    return [_NUMBER.sub("", part).strip(" ,") for part in parts]


def _listed(premise: str) -> str:
    """Return a premise with uv's bare lists ("one of: a b c") made readable ("a or b or c")."""
    for pattern, word in _BARE_LIST:
        if match := pattern.match(premise):
            before = match[1].replace(" available", " available:")
            return f"{before} {word.join(match[2].split())}{premise[match.end() :]}".strip()
    return premise


def mentioned(text: str) -> frozenset[str]:
    """Return every word of a derivation that could be a package's name, in the index's spelling."""
    return frozenset(re.sub(r"[-_.]+", "-", word).lower() for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", text))
