"""Where things are kept between runs: observations in the store, downloads in the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The two folders that outlive a run. The cache may be deleted at any time; the store is the record."""

    store: Path
    cache: Path

    @classmethod
    def find(cls, given: str | None) -> Home:
        """Return the folders under `given`, else under `VERL_MATRIX_HOME`, else where the user's data and cache lie."""
        root = given or os.environ.get("VERL_MATRIX_HOME")
        if root:
            home = Path(root).expanduser().absolute()
            return cls(store=home / "store", cache=home / "cache")
        import platformdirs

        return cls(
            store=platformdirs.user_data_path("verl-matrix") / "store",
            cache=platformdirs.user_cache_path("verl-matrix"),
        )
