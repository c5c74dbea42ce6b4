"""Copies what was observed of cells into an evidence store: ``python tests/accuracy/evidence.py TO [--home DIR]``.

Of each question the latest answer is taken: what was imported and done in the cells (tiers `import`, `behave` and
`gpu`, with the thresholds and their trials; `bench`, with every launch of every series), and what was said of the same
cells without installing them (`resolve`, `surface`). What was not tried (`untested`) says nothing and stays behind, but
for the tier `gpu`, where it is named.
A store called `gpu` takes what was observed on machines with a GPU, one called `cpu` the rest.

Nothing that names a machine, a person or a place leaves (scrub.py): text is scrubbed, and a fingerprint that holds what
is not on its list is refused. What the store holds already is kept, lines are sorted, and the same observations give
the same files, so the command may be repeated. The format is that of every store (matrix/store.py).

``--raw NAME=FILE`` takes a file of text along, scrubbed, as ``raw/NAME``: what was recorded in a form of its own, as
the forced failures are (`verl-matrix gpus forced --out`) and the result of a launch by hand.

``--check`` copies nothing and says whether the stores hold anything that they may not.
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from matrix.errors import MatrixError  # noqa: E402
from matrix.home import Home  # noqa: E402
from matrix.observe import LAUNCH, Observation  # noqa: E402
from matrix.store import Store  # noqa: E402
from matrix.tier import Outcome, Tier  # noqa: E402
from tests.accuracy.launches import strange_launch  # noqa: E402
from tests.accuracy.scrub import portable, scrubbed, strange, versions_in  # noqa: E402

DEEP = frozenset({Tier.IMPORT, Tier.BEHAVE, Tier.GPU, Tier.BENCH})
STATIC = frozenset({Tier.RESOLVE, Tier.SURFACE})
_GPUS = re.compile(r"\b\d+ x ")
"""What the class of a machine says that has some (`matrix.probing.machine`)."""
RAW = "raw"
"""The folder of a store in which files lie that are no observations."""
_SAMPLE = ("fingerprint", "fresh", "number", "spec", "series")
"""Inputs by which answers of one probe are different samples and not newer ones."""


def latest(store: Iterable[Observation]) -> list[Observation]:
    """Return the latest observation of each probe on each cell and class of machine, oldest first.

    A question whose inputs have changed since (another lock, a mended probe) is the same question here: of an evidence
    one wants to know how it is, not how it was. Repeats of a trial are samples, and all of them are kept.
    """
    found: dict[tuple[str, ...], Observation] = {}
    for item in sorted(store, key=lambda item: item.at):
        reads = item.question.reads
        sample = [reads.get(name, "") for name in _SAMPLE]
        key = (item.question.cell, item.question.tier.value, item.question.probe, reads.get("machine", ""), *sample)
        found.pop(key, None)
        found[key] = item
    return list(found.values())


def evidence(store: Iterable[Observation], cells: Iterable[str] = ("*",), gpu: bool | None = None) -> list[Observation]:
    """Return what is worth keeping of a store: deep answers on those cells, and the static ones of the same cells.

    With `gpu` only what was observed on a machine with a GPU, or on one without.
    """
    patterns = tuple(cells)
    newest = [item for item in latest(store) if any(fnmatchcase(item.question.cell, pattern) for pattern in patterns)]
    deep = [item for item in newest if item.question.tier in DEEP and _says_something(item) and _fits(item, gpu)]
    named = {item.detail.get("fingerprint") for item in deep if item.question.probe != "machine"}
    deep = [item for item in deep if item.question.probe != "machine" or item.detail.get("fingerprint") in named]
    names = {item.question.cell for item in deep}
    static = [item for item in newest if item.question.tier in STATIC and item.question.cell in names]
    return sorted([*static, *deep], key=_place)


def _says_something(item: Observation) -> bool:
    """Return whether it is an answer, or names what a machine with GPUs could not try."""
    return item.outcome is not Outcome.UNTESTED or (item.question.tier is Tier.GPU and _had_gpus(item))


def _fits(item: Observation, gpu: bool | None) -> bool:
    return gpu is None or _had_gpus(item) is gpu


def _had_gpus(item: Observation) -> bool:
    return bool(_GPUS.search(item.question.reads.get("machine", item.machine)))


def _place(item: Observation) -> tuple[object, ...]:
    """Return where an observation stands among the others, whatever the order in which they were made."""
    return item.question.cell, item.question.tier.depth, item.question.probe, item.at, item.question.key


def kept(item: Observation, words: Sequence[str] = ()) -> Observation:
    """Return an observation as it may be published.

    Raises ValueError where its fingerprint, or what it says of a launch, holds what it may not.
    """
    detail = dict(item.detail)
    facts = detail.pop("facts", None) if item.question.probe == "machine" else None
    wrong = list(strange_launch(detail)) if item.question.probe.startswith(LAUNCH) else []
    if wrong:
        raise ValueError(f"{item.question.probe} is refused: {'; '.join(wrong)}")
    versions = versions_in(detail)
    clean = dict(portable(detail, words, versions=versions))
    if facts is not None:
        wrong = list(strange(facts)) if isinstance(facts, Mapping) else ["facts: is not an object"]
        if wrong:
            raise ValueError(f"the fingerprint of {item.question.cell} is refused: {'; '.join(wrong)}")
        clean["facts"] = facts
    return replace(item, reason=scrubbed(item.reason, words, versions), detail=clean)


_FILES = r"observations\.jsonl|observations\.lock|details/[0-9a-f]{2}/[0-9a-f]{64}\.json\.gz|raw/[\w.-]+"
"""The files of a store of evidence."""
_NAMES_SOMEBODY = frozenset({"host", "hostname", "node", "user", "username", "login", "uuid", "serial"})
"""Fields that no observation has, because what they hold names a machine or a person."""


def faults(store: Store) -> Iterator[str]:
    """Yield what is wrong with a store of evidence: lines that are none, and what may not be published."""
    yield from (f"{store.path.name}:{damage.line}: {damage.what}" for damage in store.damage)
    before: tuple[object, ...] = ()
    for item in store:
        where = f"{store.folder.name}: {item.question.cell} {item.question.probe}"
        place = _place(item)
        if place < before:
            yield f"{where}: not in its place; write the store again"
        before = place
        try:
            clean = kept(item)
            if (clean.reason, dict(clean.detail)) != (item.reason, dict(item.detail)):
                yield f"{where}: {_difference(item, clean)}"
        except (ValueError, MatrixError) as error:
            yield f"{where}: {error}"
        reads = item.question.reads
        told = [item.machine, item.question.cell, item.question.probe, item.question.tool, *reads, *reads.values()]
        yield from (f"{where}: has a field `{name}`" for name in item.detail if name.lower() in _NAMES_SOMEBODY)
        yield from (f"{where}: `{text}` names a place or an address" for text in told if scrubbed(text) != text)
    for path in sorted(store.folder.rglob("*")):
        inside = path.relative_to(store.folder).as_posix()
        if path.is_file() and not re.fullmatch(_FILES, inside):
            yield f"{store.folder.name}: {inside}: no file of a store"
    for path in sorted(path for path in (store.folder / RAW).glob("*") if path.is_file()):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            yield f"{store.folder.name}: {RAW}/{path.name}: is no text, so nobody can say what it holds"
            continue
        if scrubbed(text) != text:
            line = next(n for n, line in enumerate(text.splitlines(), 1) if scrubbed(line) != line)
            yield f"{store.folder.name}: {RAW}/{path.name}:{line}: names a place, an address or a person"


def _difference(item: Observation, clean: Observation) -> str:
    """Return the first text that scrubbing would change, cut to where it does."""
    pairs: list[tuple[str, object, object]] = [("reason", item.reason, clean.reason)]
    pairs += [(name, item.detail[name], clean.detail.get(name)) for name in item.detail]
    name, old, new = next(pair for pair in pairs if pair[1] != pair[2])
    was, now = json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False)
    at = next((n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), 0)
    return f"{name} says …{was[max(at - 20, 0) : at + 40]}…"


def write(folder: Path, items: Iterable[Observation], raw: Mapping[str, str] | None = None) -> None:
    """Leave a store of exactly these observations at `folder`, sorted; what was there goes once they are written.

    Raw files stay, but for those that `raw` names anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((folder / RAW).glob("*"))} | dict(raw or {})
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".evidence-") as made:
        new = Path(made) / "new"
        Store(new).add(*sorted(items, key=_place))
        (new / "observations.lock").unlink(missing_ok=True)
        for name, text in texts.items():
            (new / RAW).mkdir(exist_ok=True)
            (new / RAW / name).write_text(text, encoding="utf-8")
        old = Path(made) / "old"
        folder.rename(old)
        new.rename(folder)


def _words(given: Sequence[str]) -> list[str]:
    """Return the names to take out: those given, this machine's and this user's, longest first."""
    own = [socket.gethostname(), socket.gethostname().partition(".")[0], getpass.getuser()]
    # A name as short or as common as these stands in text for other things, and says nothing of anybody.
    common = {"root", "user", "ubuntu", "localhost", "main", "host", "node"}
    return sorted({word for word in (*own, *given) if len(word) > 3 and word not in common}, key=len, reverse=True)


def main(argv: list[str] | None = None) -> int:
    """Copy, and print how many of each tier were added; 1 where there is nothing to copy or something may not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("to", type=Path, nargs="*", help="folder of the evidence store, reports/evidence/gpu for one")
    parser.add_argument("--home", help="where the observations are (VERL_MATRIX_HOME)")
    parser.add_argument("--cells", action="append", metavar="GLOB", help="only cells of that name; may be repeated")
    parser.add_argument("--forbid", action="append", default=[], metavar="WORD", help="a name to take out of all text")
    parser.add_argument("--raw", action="append", default=[], metavar="NAME=FILE", help="a file to take along")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the stores, and copy nothing")
    options = parser.parse_args(argv)
    if options.check:
        return _check(options.to or sorted(path.parent for path in _shipped().glob("*/observations.jsonl")))
    if len(options.to) != 1:
        parser.error("name one folder of evidence")
    return _copy(options.to[0], options)


def _raw(word: str) -> tuple[str, str]:
    """Return name and text of a file that is to be taken along; raises ValueError, OSError."""
    name, _, file = word.partition("=")
    if not re.fullmatch(r"[\w.-]+", name) or not file:
        raise ValueError(f"`{word}` is not written NAME=FILE, with a name that is that of a file")
    return name, Path(file).read_text(encoding="utf-8", errors="replace")


def _shipped() -> Path:
    return ROOT / "reports" / "evidence"


def _check(folders: Sequence[Path]) -> int:
    wrong = [line for folder in folders for line in faults(Store(folder))]
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    total = sum(len(Store(folder)) for folder in folders)
    sys.stdout.write(f"{total} observations in {len(folders)} stores, {len(wrong)} faults\n")
    return 1 if wrong or not total else 0


def _copy(to: Path, options: argparse.Namespace) -> int:
    gpu = {"gpu": True, "cpu": False}.get(to.name)
    chosen = evidence(Store(Home.find(options.home).store), options.cells or ("*",), gpu)
    if not chosen:
        sys.stdout.write("evidence: no such cell was installed and probed yet; `nox -s compat -- CELL` does that\n")
        return 1
    held = list(Store(to))
    words = _words(options.forbid)
    try:
        whole = evidence([kept(item, words) for item in (*held, *chosen)], gpu=gpu)
        raw = {name: scrubbed(text, words) for name, text in map(_raw, options.raw)}
    except (ValueError, OSError) as error:
        sys.stdout.write(f"evidence: {error}\n")
        return 1
    before = {(item.question.key, item.at) for item in held}
    write(to, whole, raw)
    new = [item for item in whole if (item.question.key, item.at) not in before]
    counts = Counter(item.question.tier.value for item in new)
    told = ", ".join(f"{tier} {counts[tier]}" for tier in (tier.value for tier in Tier) if counts[tier]) or "nothing"
    cells = len({item.question.cell for item in chosen})
    sys.stdout.write(f"{len(chosen)} observations of {cells} cells, of them new in {to}: {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
