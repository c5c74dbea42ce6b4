"""The agent loop: verl's single-turn one, with a seed for each sample, so that no order of requests changes a draw.

verl's own `full_determinism` gives every request one and the same seed, and with it all samples of a prompt the same
response; an agent loop named in `agent_loop_config_path` is verl's way of saying it differently.
"""

from __future__ import annotations

import zlib
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc]
    """Gives each sample a seed made of the step, the row and the number of the sample."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Return what verl's single-turn loop gives with that seed."""
        named = f"{int(kwargs['global_steps'])}/{int(kwargs['index'])}/{int(kwargs['session_id'])}"
        return await super().run({**sampling_params, "seed": zlib.crc32(named.encode())}, **kwargs)
