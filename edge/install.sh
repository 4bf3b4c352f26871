#!/bin/sh
# Sets up what run.py needs on Raspberry Pi OS, Debian and their relatives, 32 and 64 bit.
#
#   sh install.sh [--venv DIR] [--python PYTHON] [--dry-run]
#   sh install.sh --edgetpu                        is Coral's runtime and device here?
#   sh install.sh --service "watch BUNDLE FOLDER"  starts run.py with the system (systemd)
#
# Exit codes: 0 ok, 1 failure, 2 usage, 4 something is missing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=$PWD/venv
python=python3
dry=
mode=install
command=
sys=${SYS:-/sys}
dev=${DEV:-/dev}

fail() {
  echo "error: $1" >&2
  echo "  $2" >&2
  exit "${3:-4}"
}

# Shows a command, and runs it unless this is a dry run.
run() {
  echo "+ $*"
  [ -n "$dry" ] || "$@"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then run "$@"; else run sudo "$@"; fi
}

# Chooses packages for the Python that will run them: a 64-bit kernel can carry a 32-bit system.
choose() {
  facts=$("$python" -c 'import os, platform, struct, sys
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else "none 0.0"
print(struct.calcsize("P") * 8, platform.machine(), *sys.version_info[:2], *libc.split()[1].split(".")[:2])') ||
    fail "$python does not run" "sudo apt-get install python3 python3-venv"
  # shellcheck disable=SC2086
  set -- $facts
  bits=$1 machine=$2 major=$3 minor=$4 libc=$(($5 * 1000 + $6))
  [ "$major" = 3 ] || fail "Python $major.$minor cannot run this" "Install Python 3.9 or newer."
  echo "found: $bits-bit $machine, Python $major.$minor, glibc $5.$6"
  if [ "$bits" = 64 ]; then
    [ "$minor" -ge 9 ] || fail "Python 3.$minor is too old" "Install Python 3.9 or newer."
    [ "$minor" -le 14 ] || fail "ai-edge-litert has no build for Python 3.$minor" "Give --python."
    [ "$libc" -ge 2027 ] || fail "ai-edge-litert needs glibc 2.27" "Use a newer system."
    packages="ai-edge-litert>=2.0.3 numpy>=1.23 pillow>=9.1"
    debian=
    echo "chosen: ai-edge-litert, with NumPy and Pillow from PyPI"
  else
    # ai-edge-litert has no 32-bit build; the last tflite-runtime needs NumPy 1.
    { [ "$minor" -ge 8 ] && [ "$minor" -le 11 ]; } ||
      fail "32 bit: tflite-runtime 2.14 has no build for Python 3.$minor" \
        "Use the 64-bit system, or a system with Python 3.9 to 3.11 (Debian 12)."
    [ "$libc" -ge 2034 ] ||
      fail "32 bit: tflite-runtime 2.14 needs glibc 2.34" "Use Debian 12 or the 64-bit system."
    packages="tflite-runtime==2.14.0"
    debian="python3-numpy python3-pil"
    echo "chosen: tflite-runtime 2.14, with Debian's NumPy 1 and Pillow"
  fi
}

install() {
  choose
  # Where PyPI has no builds for the processor, Debian's packages spare hours of compiling.
  # shellcheck disable=SC2086
  if [ -n "$debian" ]; then
    as_root apt-get install -y --no-install-recommends python3-venv $debian
    run "$python" -m venv --system-site-packages "$venv"
  else
    run "$python" -m venv "$venv"
  fi
  # shellcheck disable=SC2086
  run "$venv/bin/python" -m pip install --quiet $packages
  echo "next: $venv/bin/python $here/run.py verify BUNDLE"
}

edgetpu() {
  lacking=0
  if [ -n "$(find "${LIBRARIES:-/usr/lib /usr/local/lib}" -name 'libedgetpu.so.1*' 2>/dev/null | head -n 1)" ]; then
    echo "libedgetpu.so.1: found"
  else
    lacking=4
    echo "libedgetpu.so.1: missing. Coral's Debian package is libedgetpu1-std; for systems newer"
    echo "  than Debian 11 take a build for your TensorFlow version (feranick/libedgetpu on GitHub)."
  fi
  usb=
  for id in "$sys"/bus/usb/devices/*/idVendor; do
    [ -r "$id" ] || continue
    case "$(cat "$id"):$(cat "${id%Vendor}Product")" in
      1a6e:089a | 18d1:9302) usb=${id%/idVendor} ;;
    esac
  done
  if [ -n "$usb" ]; then
    node=$(printf '%s/bus/usb/%03d/%03d' "$dev" "$(cat "$usb/busnum")" "$(cat "$usb/devnum")")
    echo "USB Accelerator: found, use --edgetpu usb:0"
    if [ ! -w "$node" ]; then
      lacking=4
      echo "  $node is not writable for you: sudo usermod -aG plugdev $(id -un), then log in again"
    fi
  elif [ -e "$dev/apex_0" ]; then
    echo "PCIe or M.2 Accelerator: found, use --edgetpu pci:0"
    if [ ! -w "$dev/apex_0" ]; then
      lacking=4
      echo "  $dev/apex_0 is not writable for you: sudo usermod -aG apex $(id -un), then log in again"
    fi
  else
    lacking=4
    echo "no Edge TPU: neither on USB (1a6e:089a, 18d1:9302) nor as $dev/apex_0 (driver gasket)"
  fi
  return $lacking
}

service() {
  unit=/etc/systemd/system/packager-edge.service
  text=$(sed -e "s|@PYTHON@|$venv/bin/python|" -e "s|@RUN@|$here/run.py|" \
    -e "s|@COMMAND@|$command|" -e "s|@USER@|$(id -un)|" "$here/packager-edge.service")
  if [ -n "$dry" ]; then
    echo "+ write $unit:"
    echo "$text"
  elif [ "$(id -u)" = 0 ]; then
    echo "$text" >"$unit"
  else
    echo "$text" | sudo tee "$unit" >/dev/null
  fi
  as_root systemctl daemon-reload
  as_root systemctl enable --now packager-edge
}

while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=yes ;;
    --edgetpu) mode=edgetpu ;;
    --venv | --python | --service)
      [ $# -gt 1 ] || fail "$1 needs a value" "sh install.sh --help" 2
      case $1 in
        --venv) venv=$2 ;;
        --python) python=$2 ;;
        --service) mode=service command=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "unknown option $1" "sh install.sh --help" 2 ;;
  esac
  shift
done
$mode
