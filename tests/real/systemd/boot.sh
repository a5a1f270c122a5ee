#!/bin/bash
# Boots systemd as process 1 of its own namespaces on a copy of a root file system that lies in memory.
# usage: unshare --mount --net boot.sh ROOT SCRATCH CGROUP [FROM:TO ...]: SCRATCH is an empty folder; FROM is seen at TO.
# Prints the process id of what waits for each boot. It ends with its standard input, and nothing is left of it then.
set -euo pipefail
root=$1 scratch=$2 cgroup=$3
shift 3

mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$scratch/root"
for pair in "$@"; do
    mkdir -p "$scratch/root${pair#*:}"
    mount --bind "${pair%%:*}" "$scratch/root${pair#*:}"
    mount -o remount,bind,ro "$scratch/root${pair#*:}"
done
mkdir "$cgroup"

# Runs as process 1, and becomes systemd. Without the shared mounts LoadCredential= gives an unreadable folder.
inside='
cd "$0"
mount --rbind . .
cd "$0"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    set -- $device
    mknod -m 666 "dev/$1" c "$2" "$3"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mkdir -p .old
pivot_root . .old
exec chroot . /bin/sh -c "umount -l /.old && mount --make-rshared / && exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal-or-kmsg --show-status=0" < /dev/null
'

empty() { find "$cgroup" -mindepth 1 -depth -type d -exec rmdir {} + 2> /dev/null || true; }

end() {
    trap - EXIT
    [ -z "${machine-}" ] || kill -KILL "$machine" 2> /dev/null || true
    wait
    # What was killed leaves its control groups a moment later.
    for _ in $(seq 200); do
        empty
        if rmdir "$cgroup" 2> /dev/null; then break; fi
        sleep 0.05
    done
}
trap end EXIT

exec 3<&0
cat <&3 > /dev/null &
input=$!
while :; do
    empty
    (
        echo 0 > "$cgroup/cgroup.procs"
        exec setpriv --pdeathsig KILL unshare --fork --kill-child --pid --mount --uts --ipc --cgroup \
            bash -euc "$inside" "$scratch/root" >&2 3<&-
    ) &
    machine=$!
    echo "$machine"
    status=0
    wait -n "$machine" "$input" || status=$?
    # Process 1 that asked for a reboot ends as by SIGHUP, and one that asked for a halt as by SIGINT.
    [ "$status" -eq 129 ] || break
done
