#!/usr/bin/env bash
# Prints the backbones and the published checkpoints as Markdown tables.
set -euo pipefail
# shellcheck source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment ''
exec python "${REPOSITORY}/scripts/list_models.py" "$@"
