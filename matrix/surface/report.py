"""One check of a subject against a world, and what it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from matrix.finding import Effect, Finding, Kind
from matrix.surface import entrypoints
from matrix.surface.classify import Sketch, classify, finish, in_order
from matrix.surface.execution.explore import explore, load_entries
from matrix.surface.execution.questions import Questions
from matrix.surface.execution.reach import is_absence
from matrix.surface.execution.run import Run
from matrix.surface.execution.target import Target
from matrix.surface.execution.tree import AnswerTree
from matrix.surface.inside import model_failures
from matrix.surface.reading import quiet_collector
from matrix.surface.subject import Subject
from matrix.tier import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceReport:
    """What one check found; `entry_points` maps each entry to `ok`, `breaks` or `absent` (needs a package not held)."""

    findings: tuple[Finding, ...]
    entry_points: Mapping[str, str]
    outcome: Outcome
    reason: str

    @property
    def counts(self) -> dict[str, int]:
        """Return how many findings there are by effect; the uncertain ones count under `uncertain` only."""
        found = Counter(finding.effect.value if finding.certain else "uncertain" for finding in self.findings)
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outline:
    """What holds of every world that gives the same answers: the sketches, and the state of each entry point."""

    sketches: tuple[Sketch, ...]
    states: tuple[tuple[str, str], ...]


def check_surface(subject: Subject, world: Target, versions: Mapping[str, Version]) -> SurfaceReport:
    """Return what `subject` uses of the packages in `world` that is not there or not so.

    `versions` are the cell's pins by import root (`flash_attn`); a gate on a package that it does not name is
    undecided. The subject remembers what came of which answers: a world that answers as an earlier one did costs a few
    hundred questions and no execution.
    """
    profile = entrypoints.load(subject.version)
    questions = Questions(world, versions, profile)
    with quiet_collector():
        memory: AnswerTree[_Outline] = subject.memory.setdefault(frozenset(versions), AnswerTree())
        outline = memory.recall(questions)
        if outline is None:
            outline = _outline(explore(subject, questions, frozenset(versions), profile))
            memory.keep(questions.log, outline)
        findings = tuple(finish(sketch, world, versions) for sketch in outline.sketches)
    states = dict(outline.states)
    core = frozenset(entry.name for entry in profile.entries if entry.core)
    outcome, reason = judge(findings, states, core)
    return SurfaceReport(findings=findings, entry_points=states, outcome=outcome, reason=reason)


def _outline(run: Run) -> _Outline:
    """Return what a finished run comes to, and let go of the run."""
    states = []
    for entry in run.profile.entries:
        if entry.module in run.modules:
            failing = run.failure(entry.module)
            states.append((entry.name, "ok" if failing is None else "absent" if is_absence(failing) else "breaks"))
    sketches = classify(run)
    made = _Outline(sketches=in_order((*sketches, *model_failures(run, sketches))), states=tuple(states))
    run.dispose()
    return made


def failing_imports(
    subject: Subject,
    world: Target,
    versions: Mapping[str, Version],
    modules: Iterable[str],
    *,
    absent: Iterable[str] = (),
    gpu: bool = True,
) -> dict[str, str]:
    """Return, for each of the subject's modules that cannot be imported, why: `absent`, or the misfit's symbol.

    `absent` are import roots known not to be installed, beside those of `verl.toml`; without `gpu` the machine has no
    CUDA device. For measuring the tier against real imports (tests/accuracy/score.py).
    """
    profile = entrypoints.load(subject.version)
    entries = tuple(
        entrypoints.EntryPoint(name=module, module=module, feature="", core=False)
        for module in modules
        if subject.exists(module)
    )
    extra = dict.fromkeys(absent, "not installed")
    calls = {**profile.calls, "torch.cuda.is_available": gpu}
    profile = replace(profile, entries=entries, calls=calls, absent={**profile.absent, **extra})
    with quiet_collector():
        questions = Questions(world, versions, profile)
        run = load_entries(subject, questions, frozenset(versions), profile)
        found = {entry.module: run.failure(entry.module) for entry in entries}
        run.dispose()
    return {
        module: "absent" if is_absence(draft) else draft.symbol for module, draft in found.items() if draft is not None
    }


def judge(findings: tuple[Finding, ...], states: Mapping[str, str], core: frozenset[str]) -> tuple[Outcome, str]:
    """Return the outcome and its one-line reason: only certain findings count, an absent optional package never."""
    counted = [finding for finding in findings if finding.certain and finding.kind is not Kind.PACKAGE_ABSENT]
    for finding in counted:
        hit = core & set(finding.entry_points)
        if finding.effect is Effect.BREAKS_IMPORT and hit:
            failing = sorted(name for name in hit if states.get(name) == "breaks") or sorted(hit)
            return Outcome.BROKEN, f"{', '.join(failing)} cannot be imported: {finding.message}"
    for finding in counted:
        if finding.effect is Effect.BREAKS_FEATURE and finding.default_path:
            return Outcome.BROKEN, f"{finding.feature or 'training'} fails: {finding.message}"
    worst = next((finding for finding in counted if finding.effect is not Effect.GUARDED), None)
    if worst is not None:
        return Outcome.DEGRADED, worst.message
    return Outcome.OK, ""
