"""Compare what the extensions of a package want of torch with what the installed torch defines; loads neither.

usage: attention_symbols.py MODULE PATTERN: ends as the loader would, with its first undefined symbol, or measures.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kit.elf import unresolved
from transformers_tiny import say


def _folder(module: str) -> Path:
    """Return the folder of a package without importing it; raises SystemExit where it is not there."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"UNTESTED {module} is not there")
    return Path(spec.origin).parent


def main() -> None:
    module, pattern = sys.argv[1:]
    found = sorted(_folder(module).glob(pattern))
    found = found or [file for path in sys.path for file in sorted(Path(path).glob(pattern))]
    if not found:
        sys.exit(f"UNTESTED {module} is installed without a compiled extension {pattern}")
    names = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_python", "torch")
    libraries = [_folder("torch") / "lib" / f"lib{name}.so" for name in names]
    libraries = [library for library in libraries if library.is_file()]
    for extension in found:
        missing = sorted(unresolved(extension, libraries))
        if missing:
            print(f"{len(missing)} undefined: {missing[:5]}")
            sys.exit(f"ImportError: {extension}: undefined symbol: {missing[0]}")
    say(extensions=[extension.name for extension in found], libraries=[library.name for library in libraries])


main()
