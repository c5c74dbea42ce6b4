"""Checks of compiled extensions: do the symbols and libraries that they ask for exist in what is installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from matrix.doctor.checkup import Check, Grade, ok, unknown
from matrix.doctor.elf import Library, NotElfError, offered, read_library
from matrix.doctor.environment import Environment

TOPIC = "libraries"
PACKAGES = (
    "vllm", "vllm_flash_attn", "flash_attn", "flash_attn_2_cuda*", "flash_attn_3*", "flashinfer", "xformers",
    "torchvision", "torchaudio", "causal_conv1d*", "mamba_ssm", "selective_scan_cuda*", "transformer_engine*",
    "apex", "amp_C*", "deep_gemm", "deep_ep*", "tensordict", "sgl_kernel", "grouped_gemm*", "bitsandbytes",
)  # fmt: skip
"""Packages with extensions that are built against torch, as they lie in site-packages."""
_TORCH = re.compile(r"lib(?:torch\w*|c10\w*)\.so")
_TORCH_SYMBOL = re.compile(r"_ZNK?(?:V|St)?\d*(?:3c10|2at|5torch)|_Z\w*(?:N3c10|N2at|N5torch)|aoti_torch_|torch_")
_CUDA = re.compile(r"lib(?:cudart|cublas\w*|cudnn\w*|nccl|nvrtc|cufft|cusparse\w*|cusolver|nvJitLink|cupti)\.so")
_RAY_BINARIES = ("ray/core/src/ray/raylet/raylet", "ray/core/src/ray/gcs/gcs_server")
_SHOWN = 3


def check_libraries(environment: Environment) -> Iterator[Check]:
    """Yield a check for each extension that asks for what is not there, and one for ray's programs."""
    yield from _ray(environment)
    root = environment.purelib
    torch = root / "torch" / "lib"
    extensions = list(_extensions(_roots(environment)))
    if not extensions:
        yield ok(TOPIC, "no extensions that are built against torch")
        return
    if not torch.is_dir():
        yield unknown(TOPIC, f"{len(extensions)} extensions were not checked", f"There is no torch in {root}.")
        return
    read, broken = _read(extensions)
    yield from broken
    missing = missing_symbols(read, sorted(torch.glob("*.so*")))
    for library, symbols in missing.items():
        yield _misfit(environment, library, symbols)
    absent = _absent(read, _roots(environment))
    for name, users in sorted(absent.items()):
        yield Check(
            topic=TOPIC,
            grade=Grade.BAD,
            what=f"{name} is in no installed package, and {users[0].path.name} needs it",
            why="The extension is built for another CUDA than what is installed.",
            then="Install the build for this torch's CUDA, or the nvidia-* package that holds it; LD_LIBRARY_PATH was "
            "looked at.",
        )
    if not missing and not absent and not broken:
        yield ok(TOPIC, f"{len(read)} extensions built against torch find their symbols and libraries")


def missing_symbols(extensions: Iterable[Library], torch: Sequence[Path]) -> dict[Library, tuple[str, ...]]:
    """Return, for each extension, the symbols of torch that it asks for and none of torch's libraries has."""
    wanted = {
        library: {symbol for symbol in library.undefined if _TORCH_SYMBOL.match(symbol)} for library in extensions
    }
    asked = set().union(*wanted.values())
    had: set[str] = set()
    for path in torch:
        try:
            had |= offered(path, asked)
        except (NotElfError, OSError):
            continue
    # What a library offers to the others of its own package is not torch's to have.
    for library in wanted:
        had |= offered(library.path, asked)
    return {library: tuple(sorted(symbols - had)) for library, symbols in wanted.items() if symbols - had}


def _misfit(environment: Environment, library: Library, symbols: Sequence[str]) -> Check:
    torch = environment.dist("torch")
    shown = ", ".join(symbols[:_SHOWN]) + (f" and {len(symbols) - _SHOWN} more" if len(symbols) > _SHOWN else "")
    abi = ""
    if any("__cxx11" in symbol for symbol in symbols):
        abi = " It is built with the C++11 ABI; this torch may have the old one."
    elif any(re.search(r"Ss(?:E|$)|ESs", symbol) for symbol in symbols):
        abi = " It is built with the old C++ ABI; this torch may have the C++11 one."
    return Check(
        topic=TOPIC,
        grade=Grade.BAD,
        what=f"{_short(library.path, environment)} asks for symbols that torch "
        f"{torch.version if torch else '?'} does not have: {shown}",
        why=f"It is built for another torch: its import ends with `undefined symbol`.{abi}",
        then="Install a build for this torch, or build it here: pip install --no-build-isolation --no-cache-dir.",
    )


def _short(path: Path, environment: Environment) -> str:
    try:
        return str(path.relative_to(environment.purelib))
    except ValueError:
        return str(path)


def _roots(environment: Environment) -> tuple[Path, ...]:
    """Return the folders with packages, that of torch first; a folder of sources is none."""
    roots = [environment.purelib]
    for text in environment.path:
        path = Path(text or ".")
        if path.name in ("site-packages", "dist-packages") and path.is_dir() and path not in roots:
            roots.append(path)
    return tuple(roots)


def _extensions(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        for pattern in PACKAGES:
            for found in sorted(root.glob(pattern)):
                if found.is_dir():
                    yield from sorted(found.rglob("*.so"))
                elif ".so" in found.name:
                    yield found


def _read(paths: Iterable[Path]) -> tuple[list[Library], list[Check]]:
    read, broken = [], []
    for path in paths:
        try:
            library = read_library(path)
        except NotElfError:
            broken.append(
                Check(
                    topic=TOPIC,
                    grade=Grade.BAD,
                    what=f"{path} is cut short or no library",
                    why="The installation was interrupted, or the disk was full.",
                    then="Install its package again with --force-reinstall.",
                )
            )
            continue
        except OSError:
            continue
        if any(_TORCH.match(name) for name in library.needed) or any(map(_TORCH_SYMBOL.match, library.undefined)):
            read.append(library)
    return read, broken


def _absent(extensions: Iterable[Library], roots: Sequence[Path]) -> Mapping[str, list[Library]]:
    """Return the CUDA libraries that extensions need and that lie nowhere a loader could find them."""
    wanted: dict[str, list[Library]] = {}
    for library in extensions:
        for name in library.needed:
            if _CUDA.match(name):
                wanted.setdefault(name, []).append(library)
    if not wanted:
        return {}
    folders = [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    folders += [Path("/usr/lib64"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu")]
    folders += sorted(Path("/usr/local").glob("cuda*/lib64"))
    for root in roots:
        folders += [root / "torch" / "lib", *root.glob("nvidia/*/lib"), *root.glob("*.libs")]
    return {name: users for name, users in wanted.items() if not any((folder / name).exists() for folder in folders)}


def _ray(environment: Environment) -> Iterator[Check]:
    """Yield a check of the mode of ray's programs: unpacked without it they cannot be started."""
    ray = environment.dist("ray")
    if ray is None:
        return
    for name in _RAY_BINARIES:
        path = ray.where.parent / name
        if not path.exists():
            yield Check(
                topic=TOPIC,
                grade=Grade.BAD,
                what=f"ray's {path.name} is not there",
                why="The installation was interrupted, or it is a client without a node's programs.",
                then="Install ray again with --force-reinstall.",
            )
        elif not os.access(path, os.X_OK):
            yield Check(
                topic=TOPIC,
                grade=Grade.BAD,
                what=f"ray's {path.name} may not be executed (mode {path.stat().st_mode & 0o777:o})",
                why="ray.init waits for it in vain and says that the node timed out during startup.",
                then=f"chmod +x {path}",
            )
        else:
            yield ok(TOPIC, f"ray's {path.name} may be executed")
