#!/bin/sh
# Programs that tests call: an SSH server and rsync (deploy), a C compiler (a delegate), curl.
# Uses the installed ones; as root installs Debian's; else says how and exits 4.
set -eu
PATH=$PATH:/usr/sbin
wanted="openssh-server openssh-client rsync gcc libc6-dev curl"
if command -v sshd >/dev/null && command -v rsync >/dev/null && command -v cc >/dev/null &&
  command -v curl >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing Debian's $wanted"
  # shellcheck disable=SC2086
  apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $wanted >/dev/null &&
    exit 0
fi
echo "sudo apt-get install $wanted" >&2
exit 4
