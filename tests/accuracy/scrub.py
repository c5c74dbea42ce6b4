"""What recorded observations may say: text without places, names and addresses of the machine, fingerprints by a list.

Two ways for two kinds of data. Free text (messages, tracebacks, the end of a log) is scrubbed: whatever names a person,
a machine or a place on it is replaced. A fingerprint is structured, so for it there is a list of what it may hold, and
anything else is refused: a field that somebody adds is looked at before it is published.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matrix.gpus.fingerprint import VARIABLES

_SAME = r"lib/python3\.\d+|site-packages|tests/compat|matrix/compat"
_FOLDER = r"""[^\s/"'()<>:,;]+/"""
_WHERE = re.compile(
    rf"(?<![\w.+-])/(?:(?:{_FOLDER})*?(?=(?:{_SAME})/)|(?:{_FOLDER}){{2,}}?(?=bin/python|lib/libpython))"
)
"""What stands in an absolute path before the part that is the same on every machine."""
_CUT = re.compile(rf"""\A(?!/|(?:{_SAME})/)[^\s"'()<>:,;]*/(?=(?:{_SAME})/)""")
"""The rest of such a path at the beginning of a text of which the end was kept."""
_SYSTEM = "bin|boot|dev|etc|lib|lib32|lib64|libx32|opt/nvidia|proc|run|sbin|sys|tmp|usr|var/lib|var/run"
_PART = r"[^\s/\"'`()<>\[\]{}:,;|=&?*\\]+"
_PATH = re.compile(rf"(?<![\w.+~/:>…-])/(?!(?:{_SYSTEM})(?:/|\b))({_PART}/)*({_PART})/?")
"""An absolute path that begins in no folder of the system's own: somebody's home, a share, a job's folder."""
_UUID = re.compile(r"(?i)(?<![\w-])((?:gpu|mig)-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])")
_MAC = re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])")
_IPV4 = re.compile(r"(?<![\w.=+-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.-])")
_IPV6 = re.compile(r"(?i)(?<![\w:.])(?=[0-9a-f:]*\d)(?=[0-9a-f]*:[0-9a-f]*:)[0-9a-f:]{4,39}(?![\w:.])")
_ID = re.compile(r"(?i)(?<![\w:])[0-9a-f]{40,}(?!\w)")
"""Long names of nodes, jobs and containers; a digest says `sha256:` before it."""
_SECRET = re.compile(r"(?<!\w)(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[bap]-|AKIA)[\w-]{12,}")
_NAMED_SECRET = re.compile(
    r"\b[A-Z][A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD)(?:_ID)?=[^\s,;'\"]{8,}|"
    r"(?i:\b(?:password|passwd|api_key|secret_key|secret_access_key|aws_secret_access_key|access_token)\b"
    r"\s*[=:]\s*[^\s,;'\"<]{6,}|\bbearer\s+[\w.+/=-]{16,})|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""What stands beside a word that says it is one: `HF_TOKEN=…`, `password: …`, `Bearer …`, the head of a private key."""
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w-])")
"""It ends in letters: `torch2.11.0@cu130-tf5.9.0` is a part of a cell's name."""
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+]*://)(?:[^\s/@'\"<>]+@)?(\[[0-9a-f:]+\]|[\w.-]+)")
_PUBLIC = re.compile(
    r"(?i)(?:[\w-]+\.)*(?:pypi\.org|pythonhosted\.org|github\.com|githubusercontent\.com|huggingface\.co|pytorch\.org|"
    r"ray\.io|vllm\.ai|nvidia\.com|python\.org|pydantic\.dev|readthedocs\.io|wandb\.ai|hydra\.cc|apache\.org|localhost)|"
    r"127\.0\.0\.1|0\.0\.0\.0|\[::1?\]"
)
_HOST = re.compile(
    r"(?i)(?<![\w.@/-])(?:"
    r"(?:[a-z0-9_-]+\.)+(?:internal|local|localdomain|lan|corp|intranet|home\.arpa|amazonaws\.com)"  # within a net
    r"|ip-\d{1,3}(?:-\d{1,3}){3}"  # how EC2 names a machine
    r"|[a-z][a-z0-9-]*-[bcdfghjklmnpqrstvwxz2456789]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}"  # a pod of a Deployment
    r"|[a-z][a-z0-9-]*-(?:head|worker|launcher|master)-(?:\d+|[bcdfghjklmnpqrstvwxz2456789]{5})"  # a pod of a job
    r"|nid\d{5,6}|(?:dgx|hgx)[a-z0-9]*-[a-z0-9-]*\d+|(?:gpu|compute|worker|login)-?node-?\d+"  # as clusters name them
    r")(?![\w-])"
)
"""Names of machines by their form, as clouds, Kubernetes and clusters give them."""
_NAMED_HOST = re.compile(
    r"(?i)(\b(?:host ?name|node ?name|nodename|host)(?: is|:| =|=)[ '\"]*|\bon host )"
    r"(?!localhost|<|127\.|0\.0\.0\.0)((?=[\w.-]*\d)[a-z0-9][\w.-]*[\w-])(?![\w(\[])"
)
"""What stands beside a word that says it is one, and holds a digit as names of machines do: `hostname: a1b2c3`."""
_PROMPT = re.compile(r"(?<![\w.@-])[a-z_][a-z0-9_-]*@[a-zA-Z0-9][\w-]*(?=:[~/])")
"""How a shell, ssh and rsync write somebody on a machine: `me@host:~`."""
_LOOPBACK = ("127.", "0.0.0.0", "255.")
_SOCKET = re.compile(r"(?<![\w\[])\[([A-Za-z][\w.-]*)\]:(?=\d{2,5}\b)")
"""How torch's c10d writes a peer: `[host]:29500`."""


def scrubbed(text: str, words: Sequence[str] = (), versions: Mapping[str, str] | None = None) -> str:
    """Return the text without places, names and addresses; `words` are names to be taken out besides.

    `versions` are those of packages: one of four numbers that stands after its package is no address. Scrubbing what
    was scrubbed changes nothing.
    """
    text = _CUT.sub("", _WHERE.sub("", text))
    text = _URL.sub(lambda m: m[1] + (m[2] if _PUBLIC.fullmatch(m[2]) else "<host>"), text)
    text = _NAMED_SECRET.sub("<secret>", _SECRET.sub("<secret>", text))
    text = _PROMPT.sub("<name>@<host>", _MAIL.sub("<mail>", text))
    text = _UUID.sub("<uuid>", text)
    text = _MAC.sub("<mac>", text)
    text = _IPV4.sub(lambda m: m[0] if _is_harmless(m, versions or {}) else "<ip>", text)
    text = _IPV6.sub(lambda m: "<ip>" if _is_address(m[0]) else m[0], text)
    text = _SOCKET.sub(lambda m: m[0] if m[1] == "localhost" else "[<host>]:", text)
    text = _NAMED_HOST.sub(r"\1<host>", _HOST.sub("<host>", text))
    text = _ID.sub("<id>", text)
    text = _PATH.sub(lambda m: f"…/{m[2]}" if m[1] else m[0], text)
    text = re.sub(r"(?<![\w.+~/-])/root(?=/|\b)(?!/)", "~", text)
    for word in words:
        text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", "<name>", text)
    return text


def _is_harmless(found: re.Match[str], versions: Mapping[str, str]) -> bool:
    """Return whether four numbers are no address of a machine: this machine's own, none at all, or a version."""
    if found[0].startswith(_LOOPBACK) or not _is_address(found[0]):
        return True
    before = found.string[: found.start()]
    return any(version == found[0] and before.endswith(f"{name} ") for name, version in versions.items())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def portable(
    value: object, words: Sequence[str] = (), name: str = "", versions: Mapping[str, str] | None = None
) -> Any:
    """Return plain JSON data in which all text is scrubbed, names of fields too; `name` is the field it is in.

    Versions of packages stay as they are: some look like addresses (z3-solver 4.15.4.0).
    """
    match value:
        case str():
            return scrubbed(value, words, versions)
        case Mapping() if name in _VERSIONS and not list(_unversioned(value)):
            return dict(value)
        case Mapping():
            return {
                scrubbed(str(key), words, versions): portable(item, words, str(key), versions)
                for key, item in value.items()
            }
        case list() | tuple():
            return [portable(item, words, versions=versions) for item in value]
        case _:
            return value


_VERSIONS = ("versions", "installed", "left_out")
"""Fields that map packages to versions."""


def versions_in(detail: Mapping[str, object]) -> dict[str, str]:
    """Return the versions of packages that a detail holds in the fields that are for them."""
    found: dict[str, str] = {}
    for name in _VERSIONS:
        held = detail.get(name)
        if isinstance(held, Mapping) and not list(_unversioned(held)):
            found |= {str(package): str(version) for package, version in held.items()}
    return found


def _unversioned(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in a mapping that are none of packages, or have no version."""
    for name, version in value.items():
        named = re.fullmatch(r"[a-z0-9]+(?:[-._][a-z0-9]+)*", str(name))
        if not named or not re.fullmatch(_VERSION, str(version)):
            yield str(name)


_WORD = r"[\w.,:+()@ /-]{0,120}"
_SETTING = r"[\w.,:=^\-\[\] ]{1,100}"
_VERSION = r"[\w.+!-]{1,60}"
_CLOCKS = {"sm": int, "memory": int}
_GPU = {
    "name": _WORD, "memory_mib": int, "capability": r"\d+\.\d+", "clock_max_mhz": _CLOCKS,
    "clock_application_mhz": _CLOCKS, "power_limit_w": float, "persistence": bool, "ecc": bool, "mig": bool,
    "compute_mode": _WORD, "pcie_generation": int, "pcie_width": int, "nvlinks": int,
}  # fmt: skip
_LINK = {"between": [int], "ancestor": _WORD, "p2p": bool, "nvlink": bool}
_FACTS = {
    "schema": int, "gpus": [_GPU], "count": int, "driver": _VERSION, "cuda_driver": _VERSION, "links": [_LINK],
    "cpu": {"model": _WORD, "cores": int}, "memory_gib": int, "kernel": r"[\d.]+(-\d+)?", "hypervisor": _WORD,
    "python": _VERSION, "cuda_runtime": r"[\d., ]{1,60}", "nccl": r"[\d., ]{1,60}", "cudnn": r"[\d., ]{1,60}",
    "environment": dict.fromkeys(VARIABLES, _SETTING),
}  # fmt: skip
"""What a fingerprint may hold (`matrix.gpus.fingerprint`), and of what kind; any of it may be missing or null."""


def strange(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a fingerprint holds that it may not: the path of the field, and why."""
    known = {name: value for name, value in facts.items() if name != "installed"}
    yield from _strange(known, _FACTS, "")
    installed = facts.get("installed") or {}
    if not isinstance(installed, Mapping):
        yield "installed: is not an object"
        return
    for name in _unversioned(installed):
        yield f"installed.{name}: {installed[name]!r} is no version of a package"


def _strange(value: Any, rule: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    where = path or "the fingerprint"
    if isinstance(rule, dict):
        if not isinstance(value, Mapping):
            yield f"{where}: is not an object"
            return
        for name, item in value.items():
            inner = f"{path}.{name}" if path else str(name)
            if name in rule:
                yield from _strange(item, rule[name], inner)
            else:
                yield f"{inner}: not on the list"
    elif isinstance(rule, list):
        items = value if isinstance(value, list | tuple) else [value]
        for number, item in enumerate(items):
            yield from _strange(item, rule[0], f"{path}[{number}]")
    elif isinstance(rule, str):
        # A version may look like an address (cuDNN 9.15.1.9), so it is held to its own form only.
        named = rule in (_WORD, _SETTING) and isinstance(value, str) and scrubbed(value) != value
        if not isinstance(value, str) or not re.fullmatch(rule, value) or named:
            yield f"{where}: {value!r} is not as it should be"
    elif not isinstance(value, int if rule is bool else (int, float) if rule is float else rule):
        yield f"{where}: {value!r} is no {rule.__name__}"
