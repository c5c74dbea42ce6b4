"""Compare what the extensions of a package want of torch with what the installed torch defines; loads neither.

usage: attention_symbols.py MODULE PATTERN: ends as the loader would, with its first undefined symbol, or measures.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kit.elf import unresolved  # noqa: E402

from transformers_tiny import say  # noqa: E402


def main() -> None:
    module, pattern = sys.argv[1:]
    folder = Path(find_spec(module).origin).parent if find_spec(module) else Path()
    found = sorted(folder.glob(pattern)) or [file for path in sys.path for file in sorted(Path(path).glob(pattern))]
    if not found:
        sys.exit(f"UNTESTED {module} is installed without a compiled extension {pattern}")
    torch = Path(find_spec("torch").origin).parent / "lib"
    libraries = [torch / name for name in ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so")]
    libraries += [torch / "libtorch_python.so", torch / "libtorch.so"]
    libraries = [library for library in libraries if library.is_file()]
    for extension in found:
        missing = sorted(unresolved(extension, libraries))
        if missing:
            sys.exit(f"ImportError: {extension}: undefined symbol: {missing[0]}\n{len(missing)} undefined: {missing[:5]}")
    say(extensions=[extension.name for extension in found], libraries=[library.name for library in libraries])


main()
