"""A small, complete resolver over a `FakeIndex`: the place of uv in the tests of tier `resolve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.version import Version

from matrix.errors import MatrixError
from matrix.index.metadata import requirements_on
from matrix.resolve.solver import Answer, NeedsBuild, Problem, Refused, Solved
from tests.unit.fakes import FakeIndex

HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.12"\n'


@dataclass
class FakeSolver:
    """Searches exhaustively, newest version first, and writes locks and derivations in uv's form.

    `errors` are raised for a problem that names the requirement, `builds` answered for a problem of exactly these;
    `blind` hides a version until a problem asks for its package's page anew. `asked` holds every problem.
    """

    index: FakeIndex
    errors: Mapping[str, MatrixError] = field(default_factory=dict)
    builds: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    blind: Mapping[str, str] = field(default_factory=dict)
    logs: bool = True
    asked: list[Problem] = field(default_factory=list)
    stopped: int = 0
    version: str = "uv 0.0.1"

    def stop(self) -> None:
        self.stopped += 1

    def solve(self, problem: Problem) -> Answer:
        self.asked.append(problem)
        for requirement in problem.requirements:
            if requirement in self.errors:
                raise self.errors[requirement]
        if problem.requirements in self.builds:
            package = self.builds[problem.requirements]
            return NeedsBuild(package=package, text="Failed to build", because="it was needed")
        search = _Search(self, problem)
        found = search.extend({}, [self._replaced(Requirement(text), problem) for text in problem.requirements])
        if found is None:
            names = ", ".join(sorted(search.seen))
            cause = f"Because {names} depends on each other and you require {problem.requirements[0]}"
            cause += f", we can conclude that your requirements are unsatisfiable. {search.absent}"
            return Refused(text=f"error: No solution found when resolving dependencies\n  cause: {cause}")
        return Solved(lock=self._lock(found), dependants=search.dependants if self.logs else None)

    def _replaced(self, requirement: Requirement, problem: Problem) -> Requirement:
        for text in problem.overrides:
            if Requirement(text).name == requirement.name:
                return Requirement(text)
        return requirement

    def _lock(self, found: Mapping[str, Version]) -> str:
        blocks = [HEAD.rstrip("\n") + "\n"]
        for name in sorted(found):
            files = self.index.projects[name].releases[found[name]].files
            wheels = ", ".join(f'{{ url = "{file.url}" }}' for file in files if file.is_wheel)
            lines = [f'name = "{name}"', f'version = "{found[name]}"']
            lines += [f"wheels = [{wheels}]"] if wheels else [f'sdist = {{ url = "{files[0].url}" }}']
            blocks.append("\n".join(lines) + "\n")
        return "\n[[packages]]\n".join(blocks)


class _Search:
    def __init__(self, solver: FakeSolver, problem: Problem) -> None:
        self.solver = solver
        self.problem = problem
        self.dependants: dict[str, frozenset[str]] = {}
        self.seen: set[str] = set()
        self.absent = ""

    def extend(self, chosen: dict[str, Version], wanted: list[Requirement]) -> dict[str, Version] | None:
        """Return the first complete choice that meets `wanted` and all it brings, depth first."""
        if not wanted:
            return chosen
        first, *rest = wanted
        self.seen.add(first.name)
        if first.name in chosen:
            ok = first.specifier.contains(chosen[first.name], prereleases=True)
            return self.extend(chosen, rest) if ok else None
        for version in self._candidates(first):
            brought = self._demands(first.name, version)
            result = self.extend({**chosen, first.name: version}, [*rest, *brought])
            if result is not None:
                return result
        return None

    def _candidates(self, wanted: Requirement) -> list[Version]:
        project = self.solver.index.projects.get(wanted.name)
        releases = project.releases if project is not None else {}
        hidden = self.solver.blind.get(wanted.name) if wanted.name not in self.problem.refresh else None
        found = [
            version
            for version, release in releases.items()
            if wanted.specifier.contains(version, prereleases=True)
            and str(version) != hidden
            and (self.problem.as_of is None or release.uploaded < self.problem.as_of)
        ]
        if not found:
            self.absent = f"there is no version of {wanted}"
        return sorted(found, reverse=True)

    def _demands(self, name: str, version: Version) -> list[Requirement]:
        if self.problem.no_deps:
            return []
        metadata = self.solver.index.metadata(self.solver.index.projects[name].releases[version].files[0])
        brought = requirements_on(metadata, self.problem.platform)
        for requirement in brought:
            self.dependants[requirement.name] = self.dependants.get(requirement.name, frozenset()) | {name}
        return [self.solver._replaced(requirement, self.problem) for requirement in brought]
