"""What the subject half asks of the target half: the protocol that `matrix.surface.world.World` fulfils."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from matrix.finding import Site
from matrix.surface.answer import Answer, Hierarchy, ImportFailure, Presence, Ref, Signature


class Target(Protocol):
    """The other packages of a cell, as far as they are known; names are absolute dotted names."""

    def covers(self, dotted: str) -> bool:
        """Return whether the package of this name is in the world."""

    def module(self, dotted: str) -> Presence:
        """Return whether the module is there."""

    def lookup(self, module: str, name: str) -> Answer:
        """Return what `from module import name` finds."""

    def import_failure(self, module: str, name: str = "") -> ImportFailure | None:
        """Return what another package lacks, so that `from module import name` (`import module`) raises."""

    def attribute(self, ref: Ref, name: str, *, instance: bool = False) -> Answer:
        """Return what `ref.name` finds, on the class or on an instance of it."""

    def hierarchy(self, ref: Ref) -> Hierarchy:
        """Return the classes that a class derives from."""

    def signature(self, ref: Ref, *, bound: bool = True) -> Signature | None:
        """Return how it may be called, None when that is not known; a method is taken as bound."""

    def returns(self, ref: Ref) -> Answer:
        """Return of what class its return value is an instance."""

    def methods(self, ref: Ref) -> Mapping[str, Ref]:
        """Return the methods of a class, defined in its own body."""

    def is_classmethod(self, ref: Ref) -> bool:
        """Return whether it is a class method."""

    def is_staticmethod(self, ref: Ref) -> bool:
        """Return whether it is a static method."""

    def is_property(self, ref: Ref) -> bool:
        """Return whether it is a property."""

    def moved(self, dotted: str) -> tuple[str, ...]:
        """Return where something of that name is now, best first."""

    def site(self, ref: Ref) -> Site:
        """Return where it is defined."""

    def prefetch(self, dotted: Iterable[str]) -> None:
        """Say which names will be asked for, so that their modules can be read together."""
