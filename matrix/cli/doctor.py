"""`doctor`: what is wrong in a log, or with an environment; 0 nothing wrong found, 1 something found."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from matrix.cli.front import Front
from matrix.errors import UsageError

if TYPE_CHECKING:
    from packaging.version import Version

    from matrix.doctor.checkup import Check
    from matrix.doctor.environment import Environment

_Given = dict[str, "tuple[Version | None, str]"]


def run(args: argparse.Namespace, front: Front) -> int:
    """Print the diagnosis that the words ask for; 0 nothing wrong found, 1 something is."""
    if args.log is not None and args.inspect is not None:
        raise UsageError(
            "--log and --inspect are two questions.", then="Ask for one; --log names what to --inspect where it helps."
        )
    if args.inspect is not None:
        return _inspect(args)
    if args.log is not None:
        return _log(args)
    return _environment(args)


def _log(args: argparse.Namespace) -> int:
    from matrix.axes import load_axes
    from matrix.doctor.diagnosis import diagnose
    from matrix.doctor.logfile import open_log
    from matrix.doctor.scan import Scanner
    from matrix.doctor.telling import diagnosis_json, diagnosis_text
    from matrix.records import load_failures

    given = _given(args)
    failures = load_failures()
    with open_log(args.log) as log:
        scan = Scanner(failures).scan(log)
    found = diagnose(log.name, scan, failures, load_axes(), given)
    _say(_json(diagnosis_json(found)) if args.json else diagnosis_text(found))
    return 1 if found.troubles else 0


def _given(args: argparse.Namespace) -> _Given:
    """Return the versions that the user vouches for: those of --env, then those of --with."""
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    given: _Given = {}
    if args.env is not None:
        environment = _asked(args.env)
        given |= {package: (version, "--env") for package, version in environment.versions.items()}
    for spec in args.fixed:
        name, _, text = spec.partition("==")
        try:
            given[canonicalize_name(name.strip())] = Version(text.strip()), "--with"
        except InvalidVersion:
            raise UsageError(
                f"--with {spec} is not PACKAGE==VERSION.", then="Write it like --with vllm==0.9.2."
            ) from None
    return given


def _asked(python: str | None) -> Environment:
    from matrix.doctor.environment import ask

    if python == "":
        raise UsageError("--env names no interpreter, but an empty word.", then="Write it like --env venv/bin/python.")
    return ask(python or sys.executable)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _json(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def _inspect(args: argparse.Namespace) -> int:
    """Import one model as vLLM's child does; 0 where it works, 1 where it does not."""
    from matrix.axes import load_axes
    from matrix.doctor.child import inspect_model
    from matrix.doctor.telling import diagnosis_json, diagnosis_text
    from matrix.records import load_failures

    found = inspect_model(_asked(args.env), args.inspect, load_failures(), load_axes())
    if args.json:
        about = {"module": found.module, "works": found.works, "code": found.code, "seconds": round(found.seconds, 1)}
        _say(_json({**diagnosis_json(found.diagnosis), **about}))
    elif found.works:
        _say(f"{found.module} can be imported ({found.seconds:.0f} s): vLLM can inspect it.")
    else:
        ended = "was stopped for its time" if found.code is None else f"ended with code {found.code}"
        _say(f"The child {ended} after {found.seconds:.0f} s.")
        _say(diagnosis_text(found.diagnosis) if found.diagnosis.troubles else found.output.strip()[-2000:])
    return 0 if found.works else 1


def _environment(args: argparse.Namespace) -> int:
    """Check an environment and the machine; 1 where something is bad."""
    from matrix.axes import load_axes
    from matrix.doctor.checkup import checks_json, checks_text, sick
    from matrix.doctor.devices import ask_driver, check_devices
    from matrix.doctor.libraries import check_libraries
    from matrix.doctor.machine import Machine, check_leftovers, check_limits, check_room
    from matrix.doctor.packages import check_installation, check_records, check_requirements
    from matrix.doctor.variables import check_variables
    from matrix.records import load_failures

    if args.fixed:
        raise UsageError("--with belongs to --log.", then="An environment is asked which versions it has.")
    environment, failures, axes = _asked(args.env), load_failures(), load_axes()
    machine = Machine(variables=environment.variables)
    checks = [
        *check_records(environment, failures, axes),
        *_surface(args, environment),
        *check_requirements(environment),
        *check_installation(environment),
        *check_libraries(environment),
        *check_devices(environment, ask_driver()),
        *check_room(machine, environment.folder),
        *check_limits(machine),
        *check_leftovers(machine),
        *check_variables(environment.variables, environment.versions),
    ]
    stack = _stack(environment)
    about: dict[str, object] = {
        "python": str(environment.executable),
        "versions": {name: str(version) for name, version in stack.items()},
        "healthy": not sick(checks),
    }
    spelt = ", ".join(f"{name} {version}" for name, version in stack.items()) or "none of the stack's packages"
    heading = f"{environment.executable}: Python {environment.python}; {spelt}"
    _say(_json(checks_json(about, checks)) if args.json else checks_text(heading, checks, every=args.all))
    return 1 if sick(checks) else 0


def _stack(environment: Environment) -> dict[str, Version]:
    """Return the installed releases of the axes."""
    from matrix.cell import Axis

    versions = environment.versions
    return {axis.value: version for axis in Axis if (version := versions.get(axis.value)) is not None}


def _surface(args: argparse.Namespace, environment: Environment) -> list[Check]:
    """Return what the code of the installed verl makes of the other installed releases, as `check` would."""
    from packaging.version import Version

    from matrix.cell import Axis
    from matrix.cli import wiring
    from matrix.doctor.checkup import unknown
    from matrix.doctor.surfacing import TOPIC, surface_checks
    from matrix.errors import MatrixError
    from matrix.job import Silent
    from matrix.plan import Planned
    from matrix.run import run as run_job
    from matrix.spec import parse_cell

    stack = _stack(environment)
    if Axis.VERL.value not in stack or len(stack) < 2:
        return [unknown(TOPIC, "not tried: verl and another package of the stack must be installed")]
    specs = [f"{name}=={Version(version.public)}" for name, version in stack.items()]
    args.tiers = "surface"
    try:
        asked = parse_cell(specs)
        result = run_job(wiring.open_job(args, (Planned(cell=asked),), Silent()))
    except MatrixError as error:
        return [unknown(TOPIC, f"untested: {error.what}", error.why, error.then)]
    if result.interrupted:
        raise KeyboardInterrupt
    return surface_checks(result)
