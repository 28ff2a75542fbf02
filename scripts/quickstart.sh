#!/usr/bin/env bash
# First success: installs, draws a small data set, trains on it for a few minutes on the CPU, evaluates and draws predictions.
# Run again, it goes on where it stopped.
#
#   WORK    folder of data, checkpoints and results   (default: quickstart in the repository)
#   STEPS   training steps                            (default: 600)
set -euo pipefail
# shellcheck source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
WORK="${WORK:-${REPOSITORY}/quickstart}"
STEPS="${STEPS:-600}"
RECORDS="${WORK}/tfrecord"

prepare_environment ''
prepare_shapes "${WORK}"

python "${REPOSITORY}/train.py" \
  --dataset_dir="${RECORDS}" \
  --train_logdir="${WORK}/train" \
  --training_number_of_steps="${STEPS}" \
  --model_variant=mobilenet_v2 \
  --depth_multiplier=0.5 \
  --output_stride=16 \
  --decoder_output_stride=4 \
  --train_crop_size=129 \
  --train_batch_size=8 \
  --optimizer=adam \
  --adam_learning_rate=0.002 \
  --seed=0 \
  --batch_norm_decay=0.95 \
  --log_steps=50 \
  --save_interval_secs=60 \
  --save_summaries_secs=60

python "${REPOSITORY}/eval.py" \
  --dataset_dir="${RECORDS}" \
  --checkpoint_dir="${WORK}/train" \
  --eval_logdir="${WORK}/eval" \
  --eval_crop_size=auto \
  --max_number_of_evaluations=1

python "${REPOSITORY}/vis.py" \
  --dataset_dir="${RECORDS}" \
  --checkpoint_dir="${WORK}/train" \
  --vis_logdir="${WORK}/vis" \
  --vis_crop_size=auto \
  --max_number_of_iterations=1

echo
python - "${WORK}/eval/metrics.json" <<'PY'
import json, sys
print(f"mIoU:         {json.load(open(sys.argv[1]))['miou']:.3f} on 40 images that training never saw")
PY
echo "Predictions:  ${WORK}/vis/segmentation_results"
echo "Curves:       tensorboard --logdir=${WORK}"
