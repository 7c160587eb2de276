#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --requeue --open-mode=append
#SBATCH --signal=TERM@120
# One worker for each task of a Slurm job, submitted from the folder that has train.py:
#     sbatch examples/cluster/slurm.sh --recipe=shapes --train_dir=runs/four
# Two minutes before the time is up all workers get SIGTERM and save a checkpoint; the same job,
# submitted again, goes on. Where a worker dies, the others end by themselves, the chief with a
# checkpoint (so there is no --kill-on-bad-exit), and the job is put into the queue again.
set -u
port=${PORT:-$((20000 + SLURM_JOB_ID % 20000))} # another one for each task
per_node=$SLURM_NTASKS_PER_NODE
WORKERS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk -v port="$port" -v n="$per_node" \
  '{for (i = 0; i < n; i++) printf "%s%s:%d", (NR + i > 1 ? "," : ""), $0, port++}')
TOWERS_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') # srun gives both to all tasks
export WORKERS TOWERS_SECRET

# shellcheck disable=SC2016  # the tasks' own variables
srun --distribution=block bash -c 'exec ${PYTHON:-python} train.py \
  --workers="$WORKERS" --worker_index="$SLURM_PROCID" "$@"' worker "$@"
code=$? # the highest of all tasks

# 137 and 138 say that a worker was killed; 130 and 143 that the run was stopped on purpose.
if { [ "$code" = 137 ] || [ "$code" = 138 ]; } && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
