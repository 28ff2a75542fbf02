#!/usr/bin/env bash
# Installs the package in .venv, looks for mistakes in all code (ruff), and for wrong types in the package (mypy).
#
#   bash scripts/lint.sh
set -euo pipefail
# shellcheck source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment '[test,lint]'
cd "${REPOSITORY}"
ruff check .
# mypy knows a package by the name of its folder, and this one may have any name.
NAMED="$(mktemp -d)"
trap 'rm -rf "${NAMED}"' EXIT
ln -s "${REPOSITORY}" "${NAMED}/deeplab"
MYPYPATH="${NAMED}" mypy --config-file pyproject.toml --package deeplab
