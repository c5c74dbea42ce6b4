"""What verl loads in each of its processes (`VERL_USE_EXTERNAL_MODULES=ppo.plugin`): the platform, then the patches.

`PPO_WITHOUT` names patches to leave out, which is how each is shown to be needed still.
"""

from __future__ import annotations

import os

import ppo.cpu_platform  # noqa: F401  registers the platform
from ppo.control import install as install_control
from ppo.patches import PATCHES, WITHOUT, install

left_out = {name for name in os.environ.get(WITHOUT, "").split(",") if name}
applied = install([patch for patch in PATCHES if patch.name not in left_out])
install_control()
