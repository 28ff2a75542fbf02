#!/usr/bin/env bash
# Trains on several nodes of a Slurm cluster: a worker on each, and a parameter server beside the first of them.
#
#   sbatch --nodes=4 scripts/slurm_train.sh --dataset_dir=/shared/tfrecord --train_logdir=/shared/run1 [flags of train.py]
#
# The folders must be on a file system that all nodes share. A job that was preempted or ran out of time goes on from its last
# checkpoint when it is submitted again. To evaluate meanwhile, run eval.py --checkpoint_dir=/shared/run1 in a job of its own.
#
#   VENV     folder of the environment with deeplab   (default: .venv in the folder of sbatch)
#SBATCH --job-name=deeplab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=deeplab-%j.log
set -euo pipefail
# Slurm runs a copy of this file, so its own place says nothing.
# shellcheck disable=SC1091
source "${VENV:-${SLURM_SUBMIT_DIR}/.venv}/bin/activate"

mapfile -t NODES < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
# Other jobs on the same nodes have other numbers.
PORT=$((20000 + 2 * (SLURM_JOB_ID % 20000)))
WORKERS="$(printf "%s:$((PORT + 1))," "${NODES[@]}")"
TRAIN=(deeplab-train "$@" --ps_hosts="${NODES[0]}:${PORT}" --worker_hosts="${WORKERS%,}")

# restarting JOB COMMAND...: the command as process SLURM_PROCID of JOB; started anew when a signal killed it (exit code above 128).
# shellcheck disable=SC2016
RESTARTING='job=$1; shift
until "$@" --job_name="${job}" --task="${SLURM_PROCID}"; do
  code=$?
  (( code > 128 )) || exit "${code}"
  sleep 10
done'

srun --overlap --nodes=1 --ntasks=1 --nodelist="${NODES[0]}" bash -c "${RESTARTING}" restarting ps "${TRAIN[@]}" &
srun --overlap --ntasks-per-node=1 --kill-on-bad-exit=0 bash -c "${RESTARTING}" restarting worker "${TRAIN[@]}"
wait
