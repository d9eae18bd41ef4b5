# Functions for making and removing soft RDMA devices, one per network device. Sourced by the guest's scripts.
# An address is given before a device is made on it: a device takes its GIDs from the addresses it finds.

# await_up NETDEV [IP-OPTIONS]: until its carrier is known to be there, at most 5 s
await_up() {
    local dev=$1 tries=100
    shift
    until ip "$@" -br link show "$dev" | grep -qE '^[^ ]+ +UP '; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo "guest: network device $dev did not come up within 5 s" >&2; return 1; }
        sleep 0.05
    done
}

# An IPv6 address is usable at once: nobody else is on these cables.
no_dad() { echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad; }

# link_pair ONE OTHER PREFIX: a veth pair, PREFIX.1 and PREFIX.2
link_pair() {
    no_dad
    ip link add "$1" type veth peer name "$2" && ip link set "$1" alias rdma-safe-guest &&
        ip addr add "$3.1/24" dev "$1" && ip addr add "$3.2/24" dev "$2" &&
        ip link set "$1" up && ip link set "$2" up && await_up "$1" && await_up "$2"
}

# await_active DEVICE: until its port is up and has its address as a GID, at most 5 s
await_active() {
    local tries=100 port=/sys/class/infiniband/$1/ports/1
    until grep -q ACTIVE "$port/state" 2>/dev/null &&
        grep -qsv '^0000:0000:0000:0000:0000:0000:0000:0000$' "$port"/gids/0; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo "guest: RDMA device $1 did not become active within 5 s" >&2; return 1; }
        sleep 0.05
    done
}

# make_devices siw|rxe|both|none: siw0 on v0 (10.77.0.1), rxe0 on w0 (10.78.0.1)
make_devices() {
    link_pair v0 v1 10.77.0 && link_pair w0 w1 10.78.0 || return
    case $1 in siw | both) rdma link add siw0 type siw netdev v0 && await_active siw0 || return ;; esac
    case $1 in rxe | both) rdma link add rxe0 type rxe netdev w0 && await_active rxe0 || return ;; esac
}

# make_two_hosts siw|rxe|both|none: namespaces A and B as hosts hosta (10.9.0.1) and hostb (10.9.0.2) on one cable va-vb;
# devices siwa and siwb, or rxea and rxeb. For both kinds, rxe gets a cable of its own, wa-wb (10.9.1.1 and 10.9.1.2).
make_two_hosts() {
    local kind=$1 ns
    ip netns add A && ip netns add B || return
    for ns in A B; do
        ip -n $ns link set lo up && ip netns exec $ns bash -c "$(declare -f no_dad); no_dad" || return
    done
    cable va vb 10.9.0 || return
    case $kind in
    siw) two_devices siw v ;;
    rxe) two_devices rxe v ;;
    both) cable wa wb 10.9.1 && two_devices siw v && two_devices rxe w ;;
    esac
}

# cable ONE OTHER PREFIX: ONE in namespace A with PREFIX.1, OTHER in B with PREFIX.2
cable() {
    ip link add "$1" netns A type veth peer name "$2" netns B &&
        ip -n A addr add "$3.1/24" dev "$1" && ip -n B addr add "$3.2/24" dev "$2" &&
        ip -n A link set "$1" up && ip -n B link set "$2" up && await_up "$1" -n A && await_up "$2" -n B
}

# two_devices siw|rxe NETDEV-LETTER
two_devices() {
    ip netns exec A rdma link add "${1}a" type "$1" netdev "${2}a" &&
        ip netns exec B rdma link add "${1}b" type "$1" netdev "${2}b" &&
        await_active "${1}a" && await_active "${1}b"
}

# drop_devices: undoes all of the above, whatever there is of it
drop_devices() {
    local dev
    for dev in siw0 rxe0 siwa siwb rxea rxeb; do rdma link del $dev 2>/dev/null; done
    for dev in v0 w0; do ip link del $dev 2>/dev/null; done
    for dev in A B; do ip netns del $dev 2>/dev/null; done
    return 0
}
