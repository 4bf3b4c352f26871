#!/bin/sh
# Makes what `make test-device` runs in: Debian 12 for ARM, extracted from its packages, and the
# real ARM wheels. On Debian 12, as root the first time (qemu-user-static is installed).
#
#   make_roots.sh FOLDER PYTHON    PYTHON has pip
set -eu
mkdir -p "$1"
roots=$(cd "$1" && pwd)
python=$2
here=$(cd "$(dirname "$0")/../.." && pwd)

if ! command -v qemu-aarch64-static >/dev/null; then
  [ "$(id -u)" = 0 ] || { echo "sudo apt-get install qemu-user-static" >&2; exit 4; }
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    qemu-user-static >/dev/null
fi
. /etc/os-release
[ "${VERSION_CODENAME:-}" = bookworm ] || { echo "this needs Debian 12" >&2; exit 4; }

# Packages of another architecture, by an apt that knows nothing of this system's packages.
extract() {
  arch=$1
  state=$roots/$arch.apt
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"
  set -- -qq -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" \
    -o "Dir::State::Lists=$state/lists" -o "Dir::State::status=$state/status" \
    -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none
  # Sources for other architectures fail here and are not needed.
  apt-get "$@" update 2>/dev/null || true
  apt-get "$@" -y -d --no-install-recommends install python3-minimal python3-numpy python3-pil \
    >/dev/null
  mkdir -p "$roots/$arch.making"
  for package in "$state"/cache/archives/*.deb; do
    dpkg -x "$package" "$roots/$arch.making"
  done
  rm -rf "$state"
}

make_root() {
  arch=$1
  shift
  [ ! -d "$roots/$arch" ] || return 0
  rm -rf "$roots/$arch.making"
  extract "$arch"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: --python-version 3.11 "$@" --target "$roots/$arch.making/wheels" \
    -r "$here/requirements/device-$arch.txt"
  mv "$roots/$arch.making" "$roots/$arch"
}

make_root arm64 --platform manylinux_2_27_aarch64
make_root armhf --platform manylinux_2_34_armv7l
