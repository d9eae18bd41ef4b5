#!/bin/bash
# PID 1 of the guest, second half: inside the overlay. Makes the devices, runs the command, hands over its exit status.
here=/run/guest
work=$here
. $here/job
. $here/devices
. $here/enter-root

finish() {
    echo "$1" >$here/status
    sync
    stty -F /dev/tty1 raw # returns when all output has left
    stty -F /dev/tty2 raw
    : >$here/over
    echo o >/proc/sysrq-trigger
    sleep 10
}
give_up() {
    echo "$*" >$here/error
    finish 125
}

hostname guest
ip link set lo up
printf '127.0.0.1 localhost\n::1 localhost\n10.77.0.1 guest\n10.9.0.1 hosta\n10.9.0.2 hostb\n' >/etc/hosts
# Some programs want a clock rate, which this machine does not state.
sed 's/^$/cpu MHz\t\t: 1000.000\n/' /proc/cpuinfo >/run/cpuinfo && mount --bind /run/cpuinfo /proc/cpuinfo
mkdir -p /run/bin && cp $here/on-host /run/bin/on-host && chmod 755 /run/bin/on-host
ulimit -l unlimited
ulimit -n "$(ulimit -H -n)"

if [ "$TWO_HOSTS" = 1 ]; then make=make_two_hosts; else make=make_devices; fi
$make "$DEVICE" 2>/run/make.log || give_up "the devices could not be made: $(tr '\n' ' ' </run/make.log)"

. $here/env
export PATH=/run/bin:$PATH:/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp USER=root LOGNAME=root
export_launcher
mkdir -p /tmp && chmod 1777 /tmp
cd "$CWD" || give_up "the working folder $CWD is not there"
enter=()
if [ -n "$ROOT" ]; then
    make_root /run/other 2>/run/make.log || give_up "the root $ROOT could not be made: $(tr '\n' ' ' </run/make.log)"
    enter=(chroot /run/other/linux env --chdir="$CWD")
fi

if [ "$SHELL_MODE" = 1 ]; then
    [ -n "$SIZE" ] && stty -F /dev/tty1 rows "${SIZE% *}" cols "${SIZE#* }"
    setsid -c "${enter[@]}" bash </dev/tty1 >/dev/tty1 2>&1
    finish $?
fi

run=(bash $here/command)
[ "$TWO_HOSTS" = 1 ] && run=(on-host hosta "exec bash $here/command")
[ -n "$ROOT" ] && run=("${enter[@]}" "${run[@]}")
stty -F /dev/tty1 raw -echo
stty -F /dev/tty2 raw -echo
# Through pipes: the command must not take the consoles for terminals.
mkfifo /run/out /run/err
cat /run/out >/dev/tty1 &
out=$!
cat /run/err >/dev/tty2 &
err=$!
SECONDS=0
timeout -k 10 "$LIMIT" "${run[@]}" </dev/null >/run/out 2>/run/err
code=$?
[ $code = 137 ] && [ $SECONDS -ge "$LIMIT" ] && code=124
# What the command left running may hold the pipes open: no longer than this.
timeout 2 tail --pid=$out -f /dev/null
timeout 2 tail --pid=$err -f /dev/null
finish $code
