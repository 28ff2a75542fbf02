#!/usr/bin/env bash
# Downloads PASCAL VOC 2012 (2 GB) and converts it to records in $WORK_DIR/tfrecord.
#
#   bash scripts/download_and_convert_voc2012.sh
#
# Started again, it goes on with a download that broke off, and leaves out what is done. An own copy of the data set, or a link to
# one, may lie in $WORK_DIR/VOCdevkit; nothing is downloaded then.
# Settings: WORK_DIR (./pascal_voc_seg), URL of the archive, PYTHON (python3).
set -euo pipefail

REPOSITORY="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
WORK_DIR="${WORK_DIR:-./pascal_voc_seg}"
URL="${URL:-http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar}"
PYTHON="${PYTHON:-python3}"

ROOT="$WORK_DIR/VOCdevkit/VOC2012"

# shellcheck source=download_archive.sh
source "$REPOSITORY/scripts/download_archive.sh"
download_archive "$URL" "$WORK_DIR" VOCdevkit

# The converter reads labels with colour map as well; the gray ones are for other programs.
"$PYTHON" "$REPOSITORY/datasets/remove_gt_colormap.py" \
  --original_gt_folder="$ROOT/SegmentationClass" \
  --output_dir="$ROOT/SegmentationClassRaw"
"$PYTHON" "$REPOSITORY/datasets/build_voc2012_data.py" \
  --image_folder="$ROOT/JPEGImages" \
  --semantic_segmentation_folder="$ROOT/SegmentationClassRaw" \
  --list_folder="$ROOT/ImageSets/Segmentation" \
  --output_dir="$WORK_DIR/tfrecord"
echo "Records: $WORK_DIR/tfrecord"
