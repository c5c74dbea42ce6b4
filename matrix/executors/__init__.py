"""Where cells that go deep are visited: on this machine, or spread over the machines of a Ray cluster."""
