#!/usr/bin/env bash
# Converts Cityscapes to records in $CITYSCAPES_ROOT/tfrecord.
#
#   CITYSCAPES_ROOT=/data/cityscapes bash scripts/convert_cityscapes.sh
#
# The folder holds leftImg8bit and gtFine as cityscapes-dataset.com gives them to registered users. The labels *_labelTrainIds.png
# are made by cityscapesscripts, from that folder or as installed (pip install cityscapesscripts), unless they are there.
# Settings: CITYSCAPES_ROOT (./cityscapes), PYTHON (python3).
set -euo pipefail

REPOSITORY="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
CITYSCAPES_ROOT="${CITYSCAPES_ROOT:-./cityscapes}"
PYTHON="${PYTHON:-python3}"

for FOLDER in leftImg8bit gtFine; do
  if [[ ! -d "$CITYSCAPES_ROOT/$FOLDER" ]]; then
    echo "There is no $CITYSCAPES_ROOT/$FOLDER; set CITYSCAPES_ROOT to the folder that holds leftImg8bit and gtFine." >&2
    exit 1
  fi
done

count() {
  find -L "$CITYSCAPES_ROOT/gtFine" -name "*$1" | wc -l
}

if [[ "$(count _gtFine_labelTrainIds.png)" -lt "$(count _gtFine_polygons.json)" ]]; then
  CREATOR="$CITYSCAPES_ROOT/cityscapesscripts/preparation/createTrainIdLabelImgs.py"
  if [[ -e "$CREATOR" ]]; then
    CITYSCAPES_DATASET="$CITYSCAPES_ROOT" PYTHONPATH="$CITYSCAPES_ROOT" "$PYTHON" "$CREATOR"
  elif ! "$PYTHON" -c 'import cityscapesscripts' 2>/dev/null; then
    echo "The labels *_labelTrainIds.png are made by cityscapesscripts, which is not there: pip install cityscapesscripts" >&2
    exit 1
  else
    CITYSCAPES_DATASET="$CITYSCAPES_ROOT" "$PYTHON" -m cityscapesscripts.preparation.createTrainIdLabelImgs
  fi
fi

"$PYTHON" "$REPOSITORY/datasets/build_cityscapes_data.py" \
  --cityscapes_root="$CITYSCAPES_ROOT" \
  --output_dir="$CITYSCAPES_ROOT/tfrecord"
echo "Records: $CITYSCAPES_ROOT/tfrecord"
