"""Checks of what stands in the files of releases: a text, a file, a name, a parameter, a constant; read as syntax."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.claims.checks import Look, Reader

if TYPE_CHECKING:
    from packaging.version import Version

    from matrix.claims.library import Library
    from matrix.datafile import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Whether a regular expression is found in files of releases (`text`)."""

    package: str
    releases: str
    pattern: str
    files: tuple[str, ...]
    sdist: bool

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"`{self.pattern}` stands in {', '.join(self.files)} of {self.package} ({self.releases})"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release: the first place, or how many files hold it nowhere."""
        wanted = re.compile(self.pattern, re.MULTILINE)
        for version in library.within(self.package, self.releases):
            count, place, line = 0, "", ""
            for name, text in library.texts(self.package, version, self.files, sdist=self.sdist):
                count += 1
                if (match := wanted.search(text)) is not None:
                    number = text.count("\n", 0, match.start()) + 1
                    place, line = f"{name}:{number}", text.splitlines()[number - 1].strip()
                    break
            if not count:
                # A release that has none of the files says nothing, neither for a claim nor against it.
                continue
            told = f"`{line[:160]}`" if place else f"not found in {count} file{'' if count == 1 else 's'}"
            subject = f"{self.package} {version}"
            yield Look(subject=subject, supports=bool(place), text=told, place=place, release=str(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class HasFile:
    """Whether releases have a file that matches a glob (`file`)."""

    package: str
    releases: str
    path: str
    sdist: bool

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.package} ({self.releases}) has {self.path}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(self.package, self.releases):
            names = library.files(self.package, version, [self.path], sdist=self.sdist)
            told = names[0] if names else f"no file {self.path}"
            subject = f"{self.package} {version}"
            yield Look(subject=subject, supports=bool(names), text=told, place=self.path, release=str(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """Whether a module binds a name (`name`): a class, a function, an import, an assignment, a method (`A.b`).

    With `parameter` the function (a class's `__init__`) must take it, with `value` the name must be that constant.
    `module` may be several places of one module in its history: the first that is there counts.
    """

    package: str
    releases: str
    module: tuple[str, ...]
    name: str
    parameter: str
    value: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        more = f" with the parameter {self.parameter}" if self.parameter else f" = {self.value}" if self.value else ""
        return f"{self.module[0]} of {self.package} ({self.releases}) binds {self.name}{more}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release; a module that is not there binds nothing."""
        for version in library.within(self.package, self.releases):
            supports, told, place = self._in(library, version)
            subject = f"{self.package} {version}"
            yield Look(subject=subject, supports=supports, text=told, place=place, release=str(version))

    def _in(self, library: Library, version: Version) -> tuple[bool, str, str]:
        found = dict(library.texts(self.package, version, self.module))
        path = next((path for path in self.module if path in found), "")
        if not path:
            return False, f"there is no {self.module[0]}", ""
        try:
            body: Sequence[ast.stmt] = ast.parse(found[path]).body
        except SyntaxError as error:
            return False, f"cannot be read: {error}", path
        node: ast.stmt | None = None
        for part in self.name.split("."):
            node = _bound(body, part)
            if node is None:
                return False, f"does not bind {part}", path
            body = node.body if isinstance(node, ast.ClassDef) else ()
        if node is None:
            return False, f"does not bind {self.name}", path
        place = f"{path}:{node.lineno}"
        line = found[path].splitlines()[node.lineno - 1].strip()[:120]
        if self.parameter:
            parameters = _parameters(node)
            return self.parameter in parameters, f"`{line}` takes {', '.join(parameters) or 'nothing'}"[:200], place
        if self.value:
            value = getattr(node, "value", None)
            return value is not None and ast.unparse(value) == self.value, f"`{line}`", place
        return True, f"`{line}`", place


def _bound(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """Return the statement that binds the name, blocks of `if`, `try` and `with` searched too."""
    for node in body:
        match node:
            case ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own) | ast.ClassDef(name=own) if own == name:
                return node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any((alias.asname or alias.name.partition(".")[0]) == name for alias in names):
                    return node
            case ast.Assign(targets=targets):
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return node
            case ast.AnnAssign(target=ast.Name(id=own)) if own == name:
                return node
            case ast.If() | ast.Try() | ast.With():
                inner = [*node.body, *getattr(node, "orelse", ())]
                for handler in getattr(node, "handlers", ()):
                    inner += handler.body
                if (found := _bound(inner, name)) is not None:
                    return found
            case _:
                continue
    return None


def _parameters(node: ast.stmt) -> tuple[str, ...]:
    """Return the parameters of a function, or of a class: of its `__init__`, else its annotated fields."""
    if isinstance(node, ast.ClassDef):
        init = _bound(node.body, "__init__")
        if init is not None:
            return _parameters(init)
        return tuple(
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        )
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        return tuple(arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """Whether a class or function reads the same in several releases (`same`), comments and layout aside."""

    package: str
    releases: str
    module: tuple[str, ...]
    name: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"{self.name} of {self.package} is the same in {self.releases}"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release after the first, each held against the first."""
        first: tuple[str, str] | None = None
        for version in library.within(self.package, self.releases):
            found = dict(library.texts(self.package, version, self.module))
            path = next((path for path in self.module if path in found), "")
            node = _bound(ast.parse(found[path]).body, self.name) if path else None
            written = ast.unparse(_bare(node)) if node is not None else ""
            place = f"{path}:{node.lineno}" if node is not None else self.module[0]
            if first is None:
                first = (str(version), written)
                continue
            same = bool(written) and written == first[1]
            told = f"{self.name} reads {'as' if same else 'otherwise than'} in {first[0]}"
            subject = f"{self.package} {version}"
            yield Look(subject=subject, supports=same, text=told, place=place, release=str(version))


def _bare(node: ast.stmt) -> ast.stmt:
    """Return a function or class without its docstring."""
    body = getattr(node, "body", None)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """Whether the docstring of a module, or of a name in it, holds a text (`docstring`)."""

    package: str
    releases: str
    module: str
    name: str
    holds: str

    @property
    def about(self) -> str:
        """Return what is checked."""
        return f"the docstring of {self.name or self.module} of {self.package} says `{self.holds}`"

    def look(self, library: Library) -> Iterator[Look]:
        """Yield a look a release."""
        for version in library.within(self.package, self.releases):
            text = dict(library.texts(self.package, version, [self.module])).get(self.module, "")
            tree = ast.parse(text)
            node = _bound(tree.body, self.name) if self.name else tree
            said = ast.get_docstring(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
            told = f"docstring: `{(said or 'none').splitlines()[0][:120]}`"
            subject = f"{self.package} {version}"
            there = bool(said) and self.holds in str(said)
            yield Look(subject=subject, supports=there, text=told, place=self.module, release=str(version))


def _text(table: Table) -> Text:
    pattern = table.text("pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise table.error("pattern", f"is not a regular expression: {error}") from None
    return Text(
        package=table.text("package"),
        releases=table.text("releases"),
        pattern=pattern,
        files=table.texts("files"),
        sdist=table.flag("sdist", False),
    )


def _file(table: Table) -> HasFile:
    return HasFile(
        package=table.text("package"),
        releases=table.text("releases"),
        path=table.text("path"),
        sdist=table.flag("sdist", False),
    )


def _name(table: Table) -> Name:
    return Name(
        package=table.text("package"),
        releases=table.text("releases"),
        module=table.texts("module"),
        name=table.text("name"),
        parameter=table.text("parameter", ""),
        value=table.text("value", ""),
    )


def _same(table: Table) -> Same:
    return Same(
        package=table.text("package"),
        releases=table.text("releases"),
        module=table.texts("module"),
        name=table.text("name"),
    )


def _docstring(table: Table) -> Docstring:
    return Docstring(
        package=table.text("package"),
        releases=table.text("releases"),
        module=table.text("module"),
        name=table.text("name", ""),
        holds=table.text("holds"),
    )


READERS: Mapping[str, Reader] = {
    "text": _text,
    "file": _file,
    "name": _name,
    "same": _same,
    "docstring": _docstring,
}
