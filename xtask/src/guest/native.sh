#!/bin/bash
# native.sh WORK: the run on this machine itself, as root, in a mount and UTS namespace of its own and, where the kernel's soft
# devices can live there (NET=1), in a network namespace of its own. The devices go when it ends, however it ends.
work=$1
. "$work/job"
. "$work/devices"
. "$work/enter-root"
inner=

finish() {
    trap - EXIT
    trap '' PIPE # whoever read our output may be gone
    exec >/dev/null 2>&1
    [ -n "$inner" ] && kill -KILL "$inner" 2>/dev/null
    drop_devices
    dmesg 2>/dev/null | sed -n "/$MARK/,\$p" >"$work/log"
    echo "$1" >"$work/status"
    exit 0
}
give_up() {
    echo "$*" >"$work/error"
    finish 125
}
trap 'finish 125' EXIT
trap 'finish 143' TERM INT HUP

echo "$MARK" >/dev/kmsg 2>/dev/null
for dev in v0 w0; do
    if ip link show $dev >/dev/null 2>&1 && ! ip link show $dev | grep -q 'alias rdma-safe-guest'; then
        trap - EXIT # nothing of this is ours
        echo "this machine has a network device $dev already; use --guest uml" >"$work/error"
        exit 1
    fi
done
drop_devices # what a killed run may have left
modprobe -a ib_uverbs rdma_ucm 2>/dev/null
ip link set lo up
hostname guest
printf '127.0.0.1 localhost\n::1 localhost\n10.77.0.1 guest\n10.9.0.1 hosta\n10.9.0.2 hostb\n' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
mkdir -p "$work/bin" && cp "$work/on-host" "$work/bin/on-host" && chmod 755 "$work/bin/on-host"
ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -H -l)"

if [ "$TWO_HOSTS" = 1 ]; then make=make_two_hosts; else make=make_devices; fi
said=$($make "$DEVICE" 2>&1) || give_up "the devices could not be made on this machine: ${said//$'\n'/ }; try --guest uml"

. "$work/env"
export PATH=$work/bin:$PATH:/usr/sbin:/usr/bin:/sbin:/bin
export_launcher
cd "$CWD" || give_up "the working folder $CWD is not there"
enter=()
if [ -n "$ROOT" ]; then
    said=$(make_root "$work/other" 2>&1) || give_up "the root $ROOT could not be made: ${said//$'\n'/ }"
    enter=(chroot "$work/other/linux" env --chdir="$CWD")
fi
if [ "$SHELL_MODE" = 1 ]; then
    "${enter[@]}" bash
    finish $?
fi
run=(bash "$work/command")
[ "$TWO_HOSTS" = 1 ] && run=(on-host hosta "exec bash '$work/command'")
[ -n "$ROOT" ] && run=("${enter[@]}" "${run[@]}")
SECONDS=0
unshare --pid --fork --kill-child --mount-proc timeout -k 10 "$LIMIT" "${run[@]}" </dev/null &
inner=$!
wait $inner
code=$?
inner=
[ $code = 137 ] && [ $SECONDS -ge "$LIMIT" ] && code=124
finish $code
