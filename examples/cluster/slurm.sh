#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --requeue --open-mode=append
#SBATCH --signal=TERM@120
# One worker for each task of a Slurm job, submitted from the folder that has train.py:
#     sbatch examples/cluster/slurm.sh --recipe=shapes --train_dir=runs/four
# Two minutes before the time is up all workers get SIGTERM and save a checkpoint; the same job,
# submitted again, goes on. Where a worker dies, the others end by themselves, the chief with a
# checkpoint (so --kill-on-bad-exit=0), and the job is put into the queue again.
set -u
# Another one for each task and job, below those that the system gives to connections.
port=${PORT:-$((10000 + SLURM_JOB_ID * SLURM_NTASKS % 20000))}
per_node=$SLURM_NTASKS_PER_NODE
WORKERS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk -v port="$port" -v n="$per_node" \
  '{for (i = 0; i < n; i++) printf "%s\"%s:%d\"", (NR + i > 1 ? ", " : ""), $0, port++}')
export WORKERS # srun gives it to all tasks

# What each task runs. srun gives the highest of their exit codes alone: so an error that would come
# back becomes 192 and more, the end of a run that was stopped on purpose 192, and a death stays.
# shellcheck disable=SC2016  # the tasks' own variables
task='
  task="{\"type\": \"worker\", \"index\": $SLURM_PROCID}"
  export TF_CONFIG="{\"cluster\": {\"worker\": [$WORKERS]}, \"task\": $task}"
  ${PYTHON:-python} train.py "$@" &
  trap "kill -TERM $!" TERM
  wait $!; code=$?
  while kill -0 $! 2> /dev/null; do wait $!; code=$?; done  # a signal ends the first wait
  case $code in 129 | 130 | 143) exit 192 ;; esac
  [ $code = 0 ] || [ $code -ge 128 ] || exit $((192 + (code < 63 ? code : 63)))
  exit $code'
srun --kill-on-bad-exit=0 --distribution=block bash -c "$task" worker "$@"
code=$?
if [ "$code" -gt 192 ]; then exit $((code - 192)); fi
if [ "$code" = 192 ]; then exit 143; fi
if [ "$code" -ge 128 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
