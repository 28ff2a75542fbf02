#!/usr/bin/env bash
# Trains the data of quickstart.sh with a cluster on this machine, one parameter server and two workers, then evaluates.
# Run again, it goes on where it stopped.
#
#   WORK    folder of data, checkpoints and results   (default: quickstart in the repository)
#   STEPS   training steps of both workers together   (default: 1000)
#   PORT    the first of three free ports             (default: 22220)
#
# Arguments go to train.py, for example --sync_replicas.
set -euo pipefail
# shellcheck source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
WORK="${WORK:-${REPOSITORY}/quickstart}"
STEPS="${STEPS:-1000}"
PORT="${PORT:-22220}"
RECORDS="${WORK}/tfrecord"
RUN="${WORK}/cluster"

prepare_environment ''
prepare_shapes "${WORK}"

mkdir -p "${RUN}"
# In a file, so that arguments replace its lists.
cat >"${RUN}/flags_of_script.txt" <<FLAGS
--ps_hosts=localhost:${PORT}
--worker_hosts=localhost:$((PORT + 1)),localhost:$((PORT + 2))
--dataset_dir=${RECORDS}
--train_logdir=${RUN}/train
--training_number_of_steps=${STEPS}
--model_variant=mobilenet_v2
--depth_multiplier=0.5
--output_stride=16
--decoder_output_stride=4
--train_crop_size=129
--train_batch_size=8
--base_learning_rate=0.05
--batch_norm_decay=0.95
--log_steps=50
--save_interval_secs=60
--save_summaries_secs=60
FLAGS

# The command of every process; each adds --job_name and --task.
TRAIN=(python "${REPOSITORY}/train.py" --flagfile="${RUN}/flags_of_script.txt" "$@")

# Nothing stays behind when one of them fails, or on Ctrl-C.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"${TRAIN[@]}" --job_name=ps --task=0 2>"${RUN}/ps-0.log" &
"${TRAIN[@]}" --job_name=worker --task=1 2>"${RUN}/worker-1.log" &
echo "Worker 0, the chief; the others write to ${RUN}/*.log"
"${TRAIN[@]}" --job_name=worker --task=0
for process in $(jobs -p); do
  wait "${process}"
done

python "${REPOSITORY}/eval.py" \
  --dataset_dir="${RECORDS}" \
  --checkpoint_dir="${RUN}/train" \
  --eval_logdir="${RUN}/eval" \
  --eval_crop_size=auto \
  --max_number_of_evaluations=1
