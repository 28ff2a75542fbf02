#!/usr/bin/env bash
# Downloads ADE20K (1 GB) and converts it to records in $WORK_DIR/tfrecord.
#
#   bash scripts/download_and_convert_ade20k.sh
#
# Started again, it goes on with a download that broke off, and leaves out what is done. An own copy of the data set, or a link to
# one, may lie in $WORK_DIR/ADEChallengeData2016; nothing is downloaded then.
# Settings: WORK_DIR (./ADE20K), URL of the archive, PYTHON (python3).
set -euo pipefail

REPOSITORY="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
WORK_DIR="${WORK_DIR:-./ADE20K}"
URL="${URL:-http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip}"
PYTHON="${PYTHON:-python3}"

ROOT="$WORK_DIR/ADEChallengeData2016"

# shellcheck source=download_archive.sh
source "$REPOSITORY/scripts/download_archive.sh"
download_archive "$URL" "$WORK_DIR" ADEChallengeData2016

"$PYTHON" "$REPOSITORY/datasets/build_ade20k_data.py" \
  --train_image_folder="$ROOT/images/training" \
  --train_image_label_folder="$ROOT/annotations/training" \
  --val_image_folder="$ROOT/images/validation" \
  --val_image_label_folder="$ROOT/annotations/validation" \
  --output_dir="$WORK_DIR/tfrecord"
echo "Records: $WORK_DIR/tfrecord"
