#!/bin/sh
# boot.sh ROOT CGROUP: runs systemd of a Debian in the folder ROOT as the first process of its own
# namespaces, below CGROUP, a new control group (v2). It shares the network of this machine, and
# needs root.
set -eu
mkdir "$2"
echo $$ >"$2/cgroup.procs"
# The inner shell expands $0, which is ROOT.
# shellcheck disable=SC2016
exec unshare --mount --pid --ipc --uts --cgroup --fork --kill-child sh -euc '
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount -t sysfs sysfs "$0/sys"
mount -t cgroup2 cgroup "$0/sys/fs/cgroup"
mount -t tmpfs tmpfs "$0/run"
mount -t tmpfs -o mode=755 tmpfs "$0/dev"
for name in null zero full random urandom tty; do
    touch "$0/dev/$name"
    mount --bind "/dev/$name" "$0/dev/$name"
done
exec env -i container=chroot PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$0" /lib/systemd/systemd
' "$1"
