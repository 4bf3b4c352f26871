#!/bin/sh
# Uses an installed Chromium; as root installs Debian's; else says how and exits 4.
set -eu
# Playwright's Node.js needs libatomic, which a minimal Debian lacks.
has_libatomic() { ! command -v ldconfig >/dev/null || ldconfig -p | grep -q libatomic.so.1; }
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null && has_libatomic; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing Debian's chromium and libatomic1"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends chromium libatomic1 >/dev/null && exit 0
fi
echo "Chromium is missing: sudo apt-get install chromium libatomic1" >&2
exit 4
