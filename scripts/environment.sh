# What the other scripts source: the virtual environment of the repository, and the data of the quickstart.
#
#   VENV     folder of the environment   (default: .venv in the repository)
#   PYTHON   interpreter, 3.10 to 3.13   (default: the first one found)

REPOSITORY="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${VENV:-${REPOSITORY}/.venv}"

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.13 python3.10}; do
    if "${candidate}" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "${candidate}"
      return
    fi
  done
  echo "No Python 3.10 to 3.13 found; install one, or name it: PYTHON=/path/to/python $0" >&2
  return 1
}

# prepare_environment EXTRA: installs the package with the extra (may be empty), once per change of its requirements.
prepare_environment() {
  local extra="$1" python stamp
  python="$(find_python)"
  stamp="${VENV}/.installed$(echo "${extra}" | tr -c 'a-z\n' '-')"
  if [[ ! -f "${stamp}" || "${REPOSITORY}/setup.py" -nt "${stamp}" ]]; then
    echo "Installing into ${VENV} ..."
    [[ -x "${VENV}/bin/python" ]] || "${python}" -m venv "${VENV}"
    "${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --editable "${REPOSITORY}${extra}"
    touch "${stamp}"
  fi
  # shellcheck disable=SC1091
  source "${VENV}/bin/activate"
}

# prepare_shapes WORK: draws the small data set of the quickstart in WORK/VOC and converts it to WORK/tfrecord, unless it is there.
prepare_shapes() {
  local voc="$1/VOC" records="$1/tfrecord"
  if [[ ! -d "${voc}/ImageSets" ]]; then
    python -m deeplab.datasets.build_shapes_data --output_dir="${voc}"
  fi
  if [[ ! -f "${records}/dataset.json" ]]; then
    python -m deeplab.datasets.build_voc2012_data \
      --image_folder="${voc}/JPEGImages" \
      --semantic_segmentation_folder="${voc}/SegmentationClass" \
      --list_folder="${voc}/ImageSets/Segmentation" \
      --description="${voc}/dataset.json" \
      --output_dir="${records}"
  fi
}
