"""Checks of GPUs: what the driver shows, whether its CUDA is new enough for torch's, and which NCCL is installed."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from matrix.doctor.checkup import Check, Grade, ok, unknown
from matrix.doctor.environment import Environment
from matrix.resolve.process import Children, surroundings

TOPIC = "devices"
TIMEOUT_S = 30.0
_QUERY = "index,name,driver_version,memory.used,memory.total,compute_cap"
_CUDA = re.compile(r"CUDA(?: \w+)? Version:\s*(\d+\.\d+)")
_BUSY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver shows it; memory in MiB."""

    index: int
    name: str
    used: int
    total: int
    capability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver, the newest CUDA that it can run (None where it does not say), and its GPUs."""

    version: str
    cuda: Version | None
    gpus: tuple[Gpu, ...]


def ask_driver() -> Driver | str:
    """Return what nvidia-smi shows, or why it shows nothing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        if Path("/proc/driver/nvidia/version").exists():
            return "the driver is loaded, but there is no nvidia-smi (a container without the NVIDIA runtime's tools)"
        return "there is no NVIDIA driver here"
    with tempfile.TemporaryDirectory(prefix="verl-matrix-") as scratch:
        children, env, folder = Children(), surroundings(), Path(scratch)
        try:
            rows = children.run(
                [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
                folder=folder, env=env, timeout_s=TIMEOUT_S,
            )  # fmt: skip
            banner = children.run([tool], folder=folder, env=env, timeout_s=TIMEOUT_S)
        except OSError as error:
            return f"nvidia-smi cannot be run: {error.strerror or error}"
    if rows.code is None:
        return "nvidia-smi did not answer within 30 s: a GPU or the driver hangs"
    if rows.code != 0:
        told = (rows.stdout + rows.stderr).strip().splitlines()
        return f"nvidia-smi failed: {told[0] if told else f'code {rows.code}'}"
    return read_driver(rows.stdout, banner.stdout)


def read_driver(rows: str, banner: str) -> Driver | str:
    """Return what nvidia-smi's table of GPUs and its banner say, or why they say nothing."""
    gpus, driver = [], ""
    for row in rows.splitlines():
        fields = [field.strip() for field in row.split(",")]
        if len(fields) != len(_QUERY.split(",")) or not fields[0].isdecimal():
            continue
        driver = fields[2]
        used, total = (int(text) if text.isdecimal() else 0 for text in fields[3:5])
        gpus.append(Gpu(index=int(fields[0]), name=fields[1], used=used, total=total, capability=fields[5]))
    if not gpus:
        return "nvidia-smi shows no GPU"
    cuda = _CUDA.search(banner)
    return Driver(version=driver, cuda=Version(cuda[1]) if cuda else None, gpus=tuple(gpus))


def check_devices(environment: Environment, driver: Driver | str) -> Iterator[Check]:
    """Yield checks of the GPUs, of torch's CUDA against the driver's, and of NCCL."""
    cuda = torch_cuda(environment)
    if isinstance(driver, str):
        then = "" if cuda is None else "torch is built for CUDA: training needs a GPU, everything static does not."
        yield unknown(TOPIC, f"no GPU was looked at: {driver}", then=then)
    else:
        yield from _gpus(driver)
        yield from _fit(driver, cuda)
    yield from _nccl(environment)


def torch_cuda(environment: Environment) -> Version | None:
    """Return the CUDA that the installed torch is built for: from its version file, else from what it requires."""
    torch = environment.dist("torch")
    if torch is None:
        return None
    try:
        text = (torch.where.parent / "torch" / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^cuda(?:: [^=]+)? = '(\d+\.\d+)'", text, re.MULTILINE)
    try:
        return Version(found[1]) if found else None
    except InvalidVersion:
        return None


def _gpus(driver: Driver) -> Iterator[Check]:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in driver.gpus))
    yield ok(TOPIC, f"{len(driver.gpus)} GPU(s): {names}; driver {driver.version}, CUDA up to {driver.cuda or '?'}")
    busy = [gpu for gpu in driver.gpus if gpu.total and gpu.used > _BUSY * gpu.total]
    if busy:
        yield Check(
            topic=TOPIC,
            grade=Grade.WARN,
            what="memory in use on GPU " + ", ".join(f"{gpu.index} ({gpu.used} of {gpu.total} MiB)" for gpu in busy),
            why="vLLM sizes its share by the whole GPU: what others hold makes it fail or run out.",
            then="nvidia-smi names the processes.",
        )


def _fit(driver: Driver, cuda: Version | None) -> Iterator[Check]:
    if cuda is None or driver.cuda is None:
        yield unknown(TOPIC, "whether torch's CUDA fits the driver is not known", "torch or the driver tells none.")
        return
    text = f"torch is built for CUDA {cuda}, the driver runs up to {driver.cuda}"
    if cuda.major > driver.cuda.major:
        yield Check(
            topic=TOPIC,
            grade=Grade.BAD,
            what=text,
            why="A driver runs programs of its own CUDA major release and older ones.",
            then="Update the driver, or take a torch for that CUDA (pip's index https://download.pytorch.org/whl/cu…).",
        )
    elif cuda > driver.cuda:
        yield Check(
            topic=TOPIC,
            grade=Grade.WARN,
            what=text,
            why="Within a major release it runs, but kernels that are compiled on the fly (PTX, Triton) may not.",
            then="Update the driver if `unsupported toolchain` shows up.",
        )
    else:
        yield ok(TOPIC, text)


def _nccl(environment: Environment) -> Iterator[Check]:
    installed = [item for item in environment.distributions if re.fullmatch(r"nvidia-nccl(-cu\d+)?", item.name)]
    libraries = _libraries(environment, "nvidia/nccl/lib/libnccl.so*")
    if len(installed) > 1:
        yield Check(
            topic=TOPIC,
            grade=Grade.BAD,
            what="several NCCL packages: " + ", ".join(f"{item.name} {item.version}" for item in installed),
            why="They share one folder: the last one installed overwrote the others' library.",
            then="Keep the one that torch requires; install it again with --force-reinstall.",
        )
    elif installed:
        item = installed[0]
        yield ok(TOPIC, f"{item.name} {item.version} ({len(libraries)} library file(s))")
    elif environment.dist("torch") is not None and torch_cuda(environment) is not None:
        yield unknown(TOPIC, "no NCCL package is installed", "torch may have it built in, or use the system's.")


def _libraries(environment: Environment, pattern: str) -> Sequence[Path]:
    return sorted(environment.purelib.glob(pattern))
