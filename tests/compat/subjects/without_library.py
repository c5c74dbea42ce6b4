"""Run a vLLM inspection in which one library is absent: `without_library.py LIBRARY inspect|resolve ARCHITECTURE`.

The library is absent for this process and for the registry's own child, both of which find a `sitecustomize` that lets
Python's import system answer as it does for a package that is not installed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HIDE = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None


sys.meta_path.insert(0, Hidden())
"""

library, *asked = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "sitecustomize.py").write_text(HIDE.format(library=library))
    subject = str(Path(__file__).with_name("inspect_model.py"))
    sys.exit(subprocess.call([sys.executable, subject, *asked], env={**os.environ, "PYTHONPATH": folder}))
