#!/bin/bash
# PID 1 of the User-Mode Linux guest, first half: puts an overlay in memory over the host's files, so that nothing here changes them,
# and goes on inside it. $0 lies in the run's folder on the host.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
work=${0%/*}
root=/mnt/root
. "$work/job"

give_up() {
    echo "$*" >"$work/error" # read-only here: seen only where the mount below has happened
    echo "guest: $*" >&2
    echo o >$root/proc/sysrq-trigger
    sleep 10
}

mount -t tmpfs tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/root || give_up "no tmpfs on /mnt (does the host have a folder /mnt?)"
mount -t overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work overlay $root || give_up "no overlay over the host's files"
cd $root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t debugfs debugfs sys/kernel/debug
mount -t devtmpfs devtmpfs dev
mkdir -p dev/pts dev/shm dev/mqueue
mount -t devpts devpts dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t mqueue mqueue dev/mqueue
mount -t tmpfs tmpfs run
ln -sf /proc/self/fd dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -sf "/proc/self/fd/${n%:*}" "dev/${n#*:}"; done
mkdir run/guest run/lock
mount -t hostfs -o "$work" none run/guest || give_up "the run's folder $work cannot be mounted"
for dir in "${RW[@]}"; do
    mkdir -p ".$dir" && mount -t hostfs -o "$dir" none ".$dir" || give_up "--rw $dir cannot be mounted"
done
exec chroot . /bin/bash /run/guest/start
