#!/bin/sh
# Uses installed wrk and h2load; as root installs Debian's; else says how and exits 4.
set -eu
if command -v wrk >/dev/null && command -v h2load >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing Debian's wrk and nghttp2-client"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends wrk nghttp2-client >/dev/null && exit 0
fi
echo "sudo apt-get install wrk nghttp2-client" >&2
exit 4
