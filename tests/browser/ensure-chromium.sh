#!/bin/sh
# Uses an installed Chromium; as root installs Debian's; else says how and exits 4.
set -eu
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing Debian's chromium"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends chromium >/dev/null && exit 0
fi
echo "Chromium is missing: sudo apt-get install chromium" >&2
exit 4
