"""`pins`: what is safe to install, from what people have and want; `pins explain PKG`, `pins verify FILE`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.cli.front import Front
    from matrix.pins.judge import Judge
    from matrix.pins.policy import Policy
    from matrix.pins.stack import Stack

MORE = """

  verl-matrix pins requirements.txt --to 'vllm>=0.26'
  verl-matrix pins verl==0.9.1 --newest --uses lora,fp8
  verl-matrix pins Dockerfile --fix KNOWN-FAILURE
  pip freeze | verl-matrix pins - --newest
  verl-matrix pins explain transformers requirements.txt
  verl-matrix pins advice
  verl-matrix pins verify pins/newest-proven/evidence.json --max-age 30

The exit code is 0 where a set qualifies (verify: where it still holds) and 1 where none does."""
_WORDS = (
    "requirements.txt, pyproject.toml, uv.lock, pylock.toml, a freeze, a Dockerfile, `-` (a freeze on standard input) "
    "or PACKAGE==VERSION; or first `explain PKG`, `verify FILE` or `advice`"
)
_KINDS = ("requirements", "pyproject", "uv.lock", "pylock", "freeze", "dockerfile")
_USES = "features in use, e.g. lora,fp8,megatron,async; what hurts other features does not count"
_TIER = "a set must have been tried this deep on a named machine; without: such sets are told apart (gpu)"


_LIKE_A_FILE = re.compile(r"^[./~]|^[^<>=!~@]*/|\.(?:txt|toml|lock|in)$|^(?:Docker|Container)file")


def words(parser: argparse.ArgumentParser) -> None:
    """Add the words of the command."""
    parser.add_argument("spec", nargs="*", metavar="FILE|SPEC", help=_WORDS)
    parser.add_argument("--here", nargs="?", const="", metavar="PYTHON", help="what is installed for this interpreter")
    parser.add_argument("--as", dest="kind", choices=_KINDS, help="what kind of file it is, where its name misleads")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help="pyproject: count this extra too")
    parser.add_argument("--group", action="append", default=[], metavar="NAME", help="pyproject: count this group too")
    want = parser.add_argument_group("what is wanted")
    want.add_argument("--to", action="append", default=[], metavar="REQ", help="e.g. 'vllm>=0.26'; may be repeated")
    want.add_argument("--newest", action="store_true", help="verl may go up too")
    want.add_argument("--fix", action="append", default=[], metavar="ID", help="a known failure to be rid of")
    want.add_argument("--override", action="append", default=[], metavar="REQ", help="depart from the metadata so")
    policy = parser.add_argument_group("policy")
    policy.add_argument("--min-tier", metavar="TIER", help=_TIER)
    policy.add_argument("--gpu", default="", metavar="KIND", help="only evidence from this GPU counts, e.g. H200")
    policy.add_argument("--max-slowdown", metavar="SHARE", help="largest loss of throughput, as measured, e.g. 3%%")
    policy.add_argument("--uses", action="append", default=[], metavar="LIST", help=_USES)
    target = parser.add_argument_group("target")
    target.add_argument("--python", metavar="X.Y", help="CPython version (default: what the input says, else 3.12)")
    target.add_argument("--platform", metavar="TAG", help="uv platform (default: x86_64-manylinux_2_35)")
    target.add_argument("--as-of", dest="exclude_newer", metavar="DATE", help="as if it were the end of that day (UTC)")
    asks = parser.add_argument_group("how answers are had")
    asks.add_argument("--index-url", metavar="URL", help="package index (default: UV_DEFAULT_INDEX, else PyPI)")
    asks.add_argument("--offline", action="store_true", help="use only what is already cached")
    asks.add_argument("--again", action="store_true", help="ask again what was already answered")
    asks.add_argument("--evidence", metavar="DIR", help="recorded observations (default: those shipped; `none`)")
    asks.add_argument("--max-age", dest="days", metavar="DAYS", help="verify: evidence older than this does not hold")
    parser.add_argument("--out", default="pins", metavar="DIR", help="where the files go (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what is worth choosing and write its files; 0 where a set qualifies (or still holds), 1 where none does."""
    match args.spec[:1]:
        case ["explain"]:
            return _explain(args, front)
        case ["verify"]:
            return _verify(args)
        case ["advice"]:
            return _advice(args)
        case _:
            return _choose(args, front)


def _explain(args: argparse.Namespace, front: Front) -> int:
    """Print what bounds a package in the first of the sets worth choosing, or in the nearest that resolves."""
    from packaging.utils import canonicalize_name

    from matrix.errors import UsageError
    from matrix.pins.choice import choose
    from matrix.pins.explanation import explain

    if len(args.spec) < 2:
        raise UsageError("`pins explain` names no package.", then="Write it like pins explain numpy requirements.txt.")
    package = str(canonicalize_name(args.spec[1]))
    args.spec = args.spec[2:]
    judge = _judge(args, front, _stack(args))
    choice = choose(judge)
    options = [item.option for item in choice.chosen] or [option for option in choice.options if option.resolves]
    if not options:
        raise UsageError("No set resolves, so there is none to explain.", then="`pins` without `explain` says why.")
    found = explain(package, options[0], judge, judge.index, judge.sdists)
    _say(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if args.json else "\n".join(found.lines))
    return 0


def _advice(args: argparse.Namespace) -> int:
    """Print the best set of each release of verl by what was observed; asks no index. 0 where there is one, else 1."""
    from matrix.axes import load_axes
    from matrix.cell import Axis
    from matrix.errors import UsageError
    from matrix.evidence import shipped
    from matrix.home import Home
    from matrix.pins.advice import advice
    from matrix.pins.telling import advice_text
    from matrix.records import load_failures
    from matrix.store import Store

    if len(args.spec) > 1:
        raise UsageError("`pins advice` takes no words: it is of every release.", then="Name what you have without it.")
    home = Home.find(args.home).store
    seen = [*shipped(args.evidence), *(Store(home) if home.is_dir() else ())]
    releases = load_axes()[Axis.VERL].releases
    data = advice(seen, failures=load_failures(), policy=_policy(args), releases=releases)
    _say(json.dumps(data, indent=2, ensure_ascii=False) if args.json else "\n".join(advice_text(data)))
    rows = data["releases"]
    return 0 if isinstance(rows, list) and any(row["best"] for row in rows) else 1


def _verify(args: argparse.Namespace) -> int:
    """Print in what an old answer no longer holds; 0 where it still does, 1 where it does not."""
    from datetime import timedelta

    from matrix.cli import wiring
    from matrix.errors import UsageError
    from matrix.home import Home
    from matrix.pins.verification import read_answer, verify
    from matrix.records import load_failures

    if len(args.spec) != 2:
        raise UsageError("`pins verify` takes one file.", then="Name a constraints.txt, pylock.toml or evidence.json.")
    if args.days is not None and not (args.days.isdecimal() and 0 < int(args.days) < 100_000):
        raise UsageError(f"--max-age: `{args.days}` is not a number of days.", then="Write it like --max-age 30.")
    answer = read_answer(Path(args.spec[1]))
    index = wiring.open_index(args, Home.find(args.home))
    limit = timedelta(days=int(args.days)) if args.days else None
    faults = verify(answer, index, load_failures(), now=datetime.now(UTC), max_age=limit)
    if args.json:
        data = {"schema": 1, "file": str(answer.path), "packages": len(answer.packages), "holds": not faults,
                "faults": [fault.to_json() for fault in faults]}  # fmt: skip
        _say(json.dumps(data, indent=2, ensure_ascii=False))
        return 1 if faults else 0
    for fault in faults:
        _say(fault.line)
    hashes = f", {len(answer.hashes)} with hashes" if answer.hashes else ", without hashes"
    count = f"{len(answer.packages)} packages{hashes}"
    _say(f"{answer.path}: {'no longer holds' if faults else 'still holds'} ({count}; {len(faults)} faults).")
    return 1 if faults else 0


def _choose(args: argparse.Namespace, front: Front) -> int:
    from matrix.pins.choice import choose
    from matrix.pins.doubts import doubts
    from matrix.pins.output import evidence, write
    from matrix.pins.relaxation import nothing
    from matrix.pins.telling import chosen_text, head, nothing_text, tally

    judge = _judge(args, front, _stack(args))
    stack, want, policy = judge.ground.stack, judge.ground.want, judge.policy
    choice = choose(judge)
    now = datetime.now(UTC)
    out = Path(args.out)
    answer: list[dict[str, object]] = []
    lines = [*head(stack, want, policy, doubts(judge.ground)), ""]
    for item in choice.chosen:
        folder = out / item.folder
        data = evidence(item.option, policy, stack, want, item.labels, now)
        for file in write(folder, item.option, policy, data, now):
            sys.stderr.write(f"wrote {file}\n")
        answer.append(data)
        lines += [*chosen_text(item, policy, folder), ""]
    why: dict[str, object] | None = None
    if not choice.chosen:
        found = nothing(judge, choice)
        why = found.to_json(policy)
        lines += [*nothing_text(found), ""]
    lines.append(tally(choice))
    data = {"schema": 1, "input": stack.to_json(), "want": want.to_json(), "policy": policy.to_json(), "sets": answer,
            "nothing": why}  # fmt: skip
    _say(json.dumps(data, indent=2, ensure_ascii=False) if args.json else "\n".join(lines))
    return 0 if choice.chosen else 1


def _stack(args: argparse.Namespace) -> Stack:
    """Return what people have, of the words or of `--here`; raises UsageError, DataError."""
    from matrix.cell import Platform
    from matrix.cli import wiring
    from matrix.errors import UsageError
    from matrix.pins.reading import read_environment, read_file, read_stack, read_words
    from matrix.pins.stack import Kind

    if args.here is not None:
        if args.spec:
            raise UsageError("--here says what is installed, so no file goes with it.", then="Name one or the other.")
        return read_environment(args.here or sys.executable)
    if not args.spec:
        raise UsageError("Nothing says what you have.", then="Name a file, versions like verl==0.9.1, or --here.")
    target = wiring.platform(args) or Platform()
    kind = Kind(args.kind) if args.kind else None
    if args.spec == ["-"]:
        return read_stack(Path("-"), sys.stdin.read(), target, kind=kind or Kind.FREEZE)
    files = [Path(word) for word in args.spec if Path(word).is_file() or _LIKE_A_FILE.search(word)]
    if files and len(args.spec) == 1:
        return read_file(files[0], target, kind=kind, extras=args.extra, groups=args.group)
    if files:
        raise UsageError("One file at a time, and no versions beside it.", then="-r in requirements joins several.")
    return read_words(args.spec)


def _judge(args: argparse.Namespace, front: Front, stack: Stack) -> Judge:
    """Return the judge of what the words ask; raises UsageError, DataError."""
    from matrix.axes import load_axes
    from matrix.cell import Platform
    from matrix.cli import wiring
    from matrix.evidence import shipped
    from matrix.home import Home
    from matrix.job import Silent
    from matrix.pins.candidates import Ground
    from matrix.pins.judge import Judge
    from matrix.pins.want import parse_want
    from matrix.records import load_failures
    from matrix.resolve import Resolver
    from matrix.resolve.lock import LockFolder
    from matrix.resolve.sdists import load_sdists
    from matrix.spec import parse_deviation, parse_platform

    failures = load_failures()
    want = parse_want(args.to, args.fix, failures, newest=args.newest)
    python = args.python or stack.python or None
    platform = parse_platform(python, args.platform) if python or args.platform else Platform()
    args.tiers = "resolve,surface"
    # A line for each of some fifty candidates would bury the answer where nobody watches a bar.
    job = wiring.open_job(args, (), front.progress() if sys.stderr.isatty() else Silent())
    resolver = job.resolver
    assert isinstance(resolver, Resolver)
    deviation = parse_deviation(args.override)
    ground = Ground(
        stack=stack,
        want=want,
        axes=load_axes(),
        platform=platform,
        as_of=wiring.as_of(args),
        overrides=deviation.overrides if deviation is not None else (),
    )
    return Judge(
        ground=ground,
        policy=_policy(args),
        job=job,
        evidence=shipped(args.evidence),
        failures=failures,
        locks=LockFolder.under(Home.find(args.home).cache),
        solve=resolver.solve,
        index=wiring.open_index(args, Home.find(args.home)),
        sdists=load_sdists(),
    )


def _policy(args: argparse.Namespace) -> Policy:
    """Return the policy of the words; raises UsageError."""
    from matrix.errors import UsageError
    from matrix.pins.policy import Policy, parse_share, parse_uses, profile_features
    from matrix.tier import Tier

    known = [tier.value for tier in Tier]
    if args.min_tier is not None and args.min_tier not in known:
        raise UsageError(f"There is no tier `{args.min_tier}`.", then=f"Tiers: {', '.join(known)}.")
    return Policy(
        min_tier=Tier(args.min_tier) if args.min_tier else Policy().min_tier,
        asked=args.min_tier is not None,
        gpu=args.gpu,
        max_slowdown=parse_share(args.max_slowdown) if args.max_slowdown else None,
        uses=parse_uses(args.uses, profile_features()),
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
