"""Reading of Dockerfiles: the stages and what they are built on, and what the commands of `RUN` install in each.

Scopes are `stage NAME` (its number where it has no name).
"""

from __future__ import annotations

import re
from dataclasses import replace

from matrix.statements.images import read_image
from matrix.statements.installing import INDEX_VARIABLES, read_commands
from matrix.statements.instructions import instructions, scripts, stages
from matrix.statements.statement import Notes, Reading, Source

_NAMES = re.compile(r"^(?:dockerfile|containerfile)(?:$|[._-])|\.(?:dockerfile|containerfile)$", re.IGNORECASE)
_OTHERS = re.compile(r"\.(?:dockerignore|md|rst|txt|png|svg|py|sh|ya?ml|json|patch|diff|swp|j2|html)$", re.IGNORECASE)


def is_dockerfile(name: str) -> bool:
    """Return whether a file of that name is a Dockerfile by convention."""
    base = name.rsplit("/", 1)[-1]
    return bool(_NAMES.search(base)) and not _OTHERS.search(base)


def read_dockerfile(text: str, file: str) -> Reading:
    """Return what a Dockerfile says; variables have the values that it gives them itself.

    What depends on a build argument without a default is a remark.
    """
    notes = Notes(file, Source.DOCKERFILE)
    found = stages(instructions(text))
    parents: dict[str, str] = {}
    for stage in found:
        scope = f"stage {stage.name}"
        if stage.parent is not None:
            parents[scope] = f"stage {stage.parent.name}"
        elif stage.base.unset:
            notes.remark(stage.line, f"the base image `{stage.base}` depends on what is not known here")
        else:
            read_image(notes, stage.base.text, stage.line, scope)
        for run in stage.runs:
            # Which other index it is does not matter.
            indexes = dict.fromkeys(run.unknown.intersection(INDEX_VARIABLES), "unknown")
            for line, script in scripts(run.instruction):
                read_commands(notes, script, line, scope, {**run.known, **indexes})
    if not found:
        notes.remark(1, "no FROM: this is no Dockerfile")
    return replace(notes.reading(), parents=parents)
