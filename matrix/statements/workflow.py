"""Reading of GitHub workflow files: what the steps of each job install, in which container, for which pythons.

Scopes are `job NAME`. Values of a matrix are taken one after the other; expressions that are neither `env` nor `matrix`
stay unknown. Source: GitHub's documentation, "Workflow syntax for GitHub Actions".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from matrix.statements.images import read_image
from matrix.statements.installing import read_commands
from matrix.statements.statement import PYTHON, Force, Notes, Reading, Source, Statement

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_MOST = 64
"""So many combinations of a matrix are read."""


def is_workflow(name: str) -> bool:
    """Return whether a file of that relative path is a workflow or an action of the repository."""
    return bool(re.search(r"(?:^|/)\.github/(?:workflows/.*|actions/.*/action)\.ya?ml$", name))


def read_workflow(text: str, file: str) -> Reading:
    """Return what a workflow says; a file that is no YAML, or no workflow, is a remark with its line."""
    import yaml

    notes = Notes(file, Source.WORKFLOW)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        notes.remark(mark.line + 1 if mark is not None else 1, "this is no YAML: " + " ".join(str(error).split())[:120])
        return notes.reading()
    top = _items(root)
    known = _strings(top.get("env"))
    if "jobs" in top:
        for name, job in _items(top["jobs"]).items():
            _job(notes, f"job {name}", _items(job), known)
    elif "runs" in top:
        _steps(notes, "action", _items(top["runs"]).get("steps"), known, {})
    else:
        notes.remark(1, "no jobs: this is no workflow")
    return notes.reading()


def _job(notes: Notes, scope: str, job: Mapping[str, Node], outer: Mapping[str, str]) -> None:
    combinations = list(_combinations(job.get("strategy")))
    name = scope
    for combination in combinations:
        # What one combination installs is never beside what another does.
        scope = f"{name} ({', '.join(combination.values())})" if len(combinations) > 1 else name
        known = {**outer}
        known.update({name: _filled(value, known, combination) for name, value in _strings(job.get("env")).items()})
        container = job.get("container")
        image = _items(container).get("image", container) if container is not None else None
        if (text := _text(image)) is not None and image is not None:
            read_image(notes, _filled(text, known, combination), image.start_mark.line + 1, scope)
        _steps(notes, scope, job.get("steps"), known, combination)
        if "container" not in job:
            _image_variable(notes, scope, job, known, outer)
    _unique(notes)


def _image_variable(
    notes: Notes, scope: str, job: Mapping[str, Node], known: Mapping[str, str], outer: Mapping[str, str]
) -> None:
    """Read a variable called IMAGE: runners that are made on demand get their image by it, and not by `container`."""
    image = known.get("IMAGE", "")
    if not image or "runs-on" not in job or "${{" in image:
        return
    runner = _text(job["runs-on"]) or "".join(_text(item) or "" for item in _sequence(job["runs-on"]))
    if "needs" in runner and image == outer.get("IMAGE", image):
        read_image(notes, image, job["runs-on"].start_mark.line + 1, scope)


def _steps(
    notes: Notes, scope: str, steps: Node | None, outer: Mapping[str, str], combination: Mapping[str, str]
) -> None:
    for step in _sequence(steps):
        parts = _items(step)
        known = {**outer, **{k: _filled(v, outer, combination) for k, v in _strings(parts.get("env")).items()}}
        uses = _text(parts.get("uses")) or ""
        if uses.startswith("actions/setup-python"):
            _python(notes, scope, _items(parts.get("with")).get("python-version"), known, combination)
        run, text = parts.get("run"), _text(parts.get("run"))
        if run is not None and text is not None:
            first = run.start_mark.line + (2 if getattr(run, "style", None) in ("|", ">") else 1)
            read_commands(notes, _filled(text, known, combination), first, scope, known)


def _python(
    notes: Notes, scope: str, node: Node | None, known: Mapping[str, str], combination: Mapping[str, str]
) -> None:
    text = _text(node)
    if node is None or text is None:
        return
    version = _filled(text, known, combination).strip()
    if re.fullmatch(r"\d+(?:\.[x*])?|[x*]", version):
        # Whichever is newest.
        return
    match = re.fullmatch(r"(\d+\.\d+)(?:\.(\d+|x))?", version)
    try:
        within = SpecifierSet(f"=={match[1]}.*" if match and match[2] in (None, "x") else f"=={version}")
    except InvalidSpecifier:
        notes.remark(node.start_mark.line + 1, f"the python `{version}` is not known here")
        return
    line = node.start_mark.line + 1
    notes.keep(
        Statement(
            place=notes.place(line),
            package=PYTHON,
            text=f"python-version: {version}",
            source=Source.WORKFLOW,
            force=Force.INSTALLS,
            specifier=within,
            scope=scope,
        )
    )


def _filled(text: str, known: Mapping[str, str], combination: Mapping[str, str]) -> str:
    """Return the text with what is known of its expressions; the others become a variable that nobody sets."""

    def value(found: re.Match[str]) -> str:
        family, _, name = found[1].partition(".")
        if family == "matrix" and name in combination:
            return combination[name]
        if family == "env" and name in known:
            return known[name]
        quoted = re.fullmatch(r"'([^']*)'", found[1])
        return quoted[1] if quoted else "${_EXPRESSION_" + re.sub(r"\W+", "_", found[1])[:40] + "}"

    return _EXPRESSION.sub(value, text)


def _combinations(strategy: Node | None) -> Iterator[Mapping[str, str]]:
    """Yield the combinations of a matrix, one without anything where there is none; `exclude` is not looked at."""
    matrix = _items(_items(strategy).get("matrix"))
    axes = {
        name: [text for item in _sequence(node) if (text := _text(item)) is not None]
        for name, node in matrix.items()
        if name not in ("include", "exclude")
    }
    axes = {name: values for name, values in axes.items() if values}
    base = [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]
    extra = [_strings(item) for item in _sequence(matrix.get("include"))]
    if extra and not axes:
        base = []
    yield from (base + extra or [{}])[:_MOST]


def _unique(notes: Notes) -> None:
    """Drop what several combinations of a matrix say alike."""
    notes.statements[:] = list(dict.fromkeys(notes.statements))
    notes.inclusions[:] = list(dict.fromkeys(notes.inclusions))
    notes.remarks[:] = list(dict.fromkeys(notes.remarks))


def _items(node: Node | None) -> dict[str, Node]:
    from yaml.nodes import MappingNode

    if not isinstance(node, MappingNode):
        return {}
    return dict(_pairs(node))


def _pairs(node: MappingNode) -> Iterator[tuple[str, Node]]:
    for key, value in node.value:
        text = _text(key)
        if text is not None:
            yield text, value


def _sequence(node: Node | None) -> Sequence[Node]:
    from yaml.nodes import SequenceNode

    return node.value if isinstance(node, SequenceNode) else ()


def _text(node: Node | None) -> str | None:
    from yaml.nodes import ScalarNode

    return str(node.value) if isinstance(node, ScalarNode) else None


def _strings(node: Node | None) -> dict[str, str]:
    return {name: text for name, value in _items(node).items() if (text := _text(value)) is not None}
