# What the scripts that download a data set source.

# download_archive URL WORK_DIR FOLDER: WORK_DIR/FOLDER, which the archive of that URL holds, unless it is there. Started again, it
# goes on with a download that broke off. Needs REPOSITORY and PYTHON.
download_archive() {
  local url="$1" work_dir="$2" folder="$3"
  local archive="${work_dir}/$(basename "${url}")" unpacking="${work_dir}/unpacking" module=zipfile
  [[ -e "${work_dir}/${folder}" ]] && return
  mkdir -p "${work_dir}"
  if [[ ! -e "${archive}" ]]; then
    echo "Downloading ${url}"
    curl --fail --location --retry 3 --continue-at - --output "${archive}.part" "${url}"
    mv "${archive}.part" "${archive}"
  fi
  # Unpacked under another name, so that the folder is there only when it is whole; by Python, as unzip is not everywhere.
  echo "Unpacking ${archive}"
  rm -rf "${unpacking}"
  [[ "${archive}" == *.tar ]] && module=tarfile
  "${PYTHON}" -m "${module}" --extract "${archive}" "${unpacking}"
  mv "${unpacking}/${folder}" "${work_dir}/${folder}"
  rmdir "${unpacking}"
}
