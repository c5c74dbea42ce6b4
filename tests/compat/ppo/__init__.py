"""A whole PPO iteration of verl on a machine without a GPU: workload, platform, patches and launch, each on its own.

`workload` says what is trained (any platform), `cpu_platform` and `patches` what a CPU needs of verl and vLLM,
`settings` what verl is told, `launch` starts it, watches it and leaves nothing behind. Imports nothing heavy.
"""
