"""The want: where people want to go (`--to`, `--newest`) and which known failure they want to be rid of (`--fix`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.axes import axis_named
from matrix.errors import UsageError
from matrix.failure import Applies, Failure
from matrix.nearness import near_names
from matrix.pins.kept import holds
from matrix.spec import WORD_CHARS

_EXAMPLE = "Write it like --to 'vllm>=0.26'."


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a set has to be besides safe.

    Attributes:
        to: package to the versions that are wanted of it.
        newest: whether the release of verl may go up too.
        fix: known failures that must not apply.
    """

    to: Mapping[str, SpecifierSet] = field(default_factory=dict)
    newest: bool = False
    fix: tuple[Failure, ...] = ()

    @property
    def moves(self) -> bool:
        """Return whether versions may go up that nobody named: the newest is wanted, or nothing in particular."""
        return self.newest or not self.to

    def unmet(self, versions: Mapping[str, Version | None]) -> tuple[str, ...]:
        """Return in lines what a set of versions lacks of what is wanted."""
        lines = []
        for package, wanted in self.to.items():
            version = versions.get(package)
            if version is None:
                lines.append(f"{package} is not in it")
            elif not wanted.contains(version, prereleases=True):
                lines.append(f"{package} is {version}, wanted is {package}{wanted}")
        lines += [
            f"known failure {failure.id} still applies"
            for failure in self.fix
            if holds(failure, versions) is not Applies.NO
        ]
        return tuple(lines)

    @property
    def words(self) -> str:
        """Return it as one line for people."""
        parts = [f"{package}{wanted}" for package, wanted in self.to.items()]
        parts += ["the newest"] if self.newest else []
        parts += [f"rid of {failure.id}" for failure in self.fix]
        return ", ".join(parts) or "what is worth choosing"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data (evidence.schema.json: `want`)."""
        return {
            "to": {package: str(wanted) for package, wanted in self.to.items()},
            "newest": self.newest,
            "fix": [failure.id for failure in self.fix],
        }


def parse_want(to: Sequence[str], fix: Sequence[str], failures: Sequence[Failure], *, newest: bool = False) -> Want:
    """Return the want of these words; an axis may have its short name.

    Raises:
        UsageError: a word is no requirement or says no version, or there is no such record (near ones are named).
    """
    wanted: dict[str, SpecifierSet] = {}
    for word in to:
        name, specifier = _target(word)
        wanted[name] = wanted.get(name, SpecifierSet()) & specifier
    known = {failure.id: failure for failure in failures}
    for name in fix:
        if name not in known:
            near = near_names(name, known)
            hint = f"Closest: {', '.join(near)}." if near else ""
            raise UsageError(f"--fix: there is no record `{name}`.", why=hint, then="`failures list` shows their ids.")
    return Want(to=wanted, newest=newest, fix=tuple(known[name] for name in dict.fromkeys(fix)))


def _target(word: str) -> tuple[str, SpecifierSet]:
    shown = word if len(word) <= WORD_CHARS else f"{word[:40]}…"
    try:
        requirement = Requirement(word[:WORD_CHARS])
    except InvalidRequirement as error:
        raise UsageError(f"--to {shown}: {str(error).partition(chr(10))[0]}.", then=_EXAMPLE) from None
    if not requirement.specifier or requirement.marker is not None or requirement.url is not None:
        raise UsageError(f"--to {shown}: it does not say which versions.", then=_EXAMPLE)
    name = str(canonicalize_name(requirement.name))
    with contextlib.suppress(UsageError):
        name = axis_named(name).value
    return name, requirement.specifier
