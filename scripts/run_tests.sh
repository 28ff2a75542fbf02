#!/usr/bin/env bash
# Installs the package in .venv and runs its tests.
#
#   bash scripts/run_tests.sh          everything but the slowest networks
#   bash scripts/run_tests.sh --full   everything
#   bash scripts/run_tests.sh ARGS     the arguments go to pytest
#
#   WORKERS   processes that share the tests, file by file   (default: 2)
set -euo pipefail
# shellcheck source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment '[test]'
cd "${REPOSITORY}"
RUN=(python -m pytest --numprocesses="${WORKERS:-2}" --dist=loadfile)
if [[ "${1:-}" == --full ]]; then
  shift
  exec "${RUN[@]}" "$@"
fi
exec "${RUN[@]}" -m 'not full' "$@"
