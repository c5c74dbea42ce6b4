#!/bin/bash
# One cell a task of a Slurm job array, each with a store of its own; docs/executors.md says how it is used.
#
#   verl-matrix run --list --json --cells group:gpu | python3 names.py > cells.txt
#   sbatch --array=0-$(($(wc -l < cells.txt) - 1))%8 --export=ALL,MATRIX_ROOT="$PWD" slurm.sh
#
#SBATCH --job-name=verl-matrix
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --gres=gpu:2
#SBATCH --time=03:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the limit the run is interrupted: it ends what it started, and what was finished is kept.
#SBATCH --signal=INT@120
set -euo pipefail

: "${MATRIX_ROOT:?the folder with cells.txt, which all nodes share}"
: "${SLURM_ARRAY_TASK_ID:?submit it with --array}"
cell=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$MATRIX_ROOT/cells.txt")
: "${cell:?there are fewer cells than tasks}"

# The record goes to the shared folder, environments and downloads to the disk of the node. A task that is queued again
# finds its record there, and asks nothing twice.
unset VERL_MATRIX_HOME
scratch="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"
export XDG_DATA_HOME="$MATRIX_ROOT/stores/$cell" XDG_CACHE_HOME="$scratch/verl-matrix-$UID"
mkdir -p "$XDG_DATA_HOME" "$XDG_CACHE_HOME"

exec srun --kill-on-bad-exit=1 "${VERL_MATRIX:-verl-matrix}" run --cells "$cell" \
  --tiers "${MATRIX_TIERS:-import,behave,gpu}" --out "$MATRIX_ROOT/out/$cell"
