"""uv's derivation ("Because A and B, we can conclude that C …") taken apart into the facts it starts from."""

from __future__ import annotations

import re

# Where a premise begins; " and " in front of anything else joins two items of one list.
_PREMISE = re.compile(
    r"(?:you require |your requirements |there (?:is|are) no |only |all versions of |all of:|any of:|the requested |"
    r"we know from |\S+ (?:depends on |was |were |has |have |cannot |needs |requires |is |are |and \S+ are |"
    r"could not |has not |must ))"
)
_CONCLUDE = re.compile(r",? we can conclude that ")
_DERIVED = re.compile(r"^(?:you require |your requirements |we know from )|(?: are incompatible$)")


def premises(text: str) -> tuple[str, ...]:
    """Return the facts that a derivation starts from, each once, in order: what it concludes on the way is left out.

    Empty when the text has no derivation. What the user required is left out too: that is the cell itself.
    """
    body = " ".join(text.split())
    body = re.sub(r"^.*?\bcause: ", "", body)
    found: list[str] = []
    concluded: set[str] = set()
    for step in re.split(r"(?:^|\s)(?:Because|And because) ", body)[1:]:
        before, *after = _CONCLUDE.split(step, maxsplit=1)
        concluded |= {conclusion.strip(" .") for conclusion in after}
        for premise in _split(before.strip(" ,.")):
            if not _DERIVED.search(premise) and premise not in concluded and premise not in found:
                found.append(premise)
    return tuple(found)


def _split(text: str) -> list[str]:
    """Return the premises that " and " joins, with references like "(1)" taken off and lists written with "or"."""
    parts: list[str] = []
    for part in re.split(r",? and (?=\S)", text):
        if parts and not _PREMISE.match(part):
            parts[-1] += f" and {part}"
        else:
            parts.append(part)
    return [_listed(re.sub(r" \(\d+\)$|^we know from \(\d+\)(?: and \(\d+\))* that ", "", part)) for part in parts]


_BARE_LIST = (
    (re.compile(r"^(.*?) one of: (.+)$"), " or "),
    (re.compile(r"^(.*? available): (.+)$"), " or "),
    (re.compile(r"^()(?:all|any) of: (.+?)(?= (?:have|has|were|was|are|cannot|depend|depends|need|needs) )"), " and "),
)


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
