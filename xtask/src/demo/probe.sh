#!/bin/bash
# probe DEVICE INTERVAL COMMAND...: runs COMMAND, and then tells in lines "@KEY VALUE" what the device and the network
# did meanwhile. What can only be seen while it lasts is looked at every INTERVAL seconds; 0: not at all.
#   @rnr          receiver-not-ready errors that all RDMA devices counted ("none" where none counts them)
#   @lo_bytes     bytes that left through the loopback network device
#   @packets      packets that the RDMA device counted as sent ("none" where it counts none)
#   @bytes        bytes that the RDMA device counted as sent ("none" where it counts none)
#   @mtu          the largest network packet of the RDMA device's network device
#   @qps          the most queue pairs of user programs that were seen ready to send at one time on the RDMA device
#   @tcp_conns    TCP connections that belong to no program but to the kernel: those of an iWARP device
#   @tcp_bytes    bytes sent on these, as far as seen before they were closed
dev=$1 interval=$2
shift 2

# counted LINK KEY...: the sum of these counters of the RDMA link (DEVICE/PORT; "": of all), or "none"
counted() {
    local link=$1
    shift
    rdma statistic show 2>/dev/null | awk -v link="$link" -v keys="$*" '
        BEGIN { split(keys, list); for (i in list) wanted[list[i]] }
        { # Pairs of words, on one line or on many.
            for (i = 1; i <= NF; i++) {
                if (word == "link") on = link == "" || $i == link
                else if (on && word in wanted) { n++; sum += $i }
                word = $i
            }
        }
        END { if (n) printf "%.0f\n", sum; else print "none" }'
}
# risen KEY BEFORE NOW: the line that tells by how much
risen() {
    if [ "$2" = none ]; then echo "@$1 none"; else echo "@$1 $(($3 - $2))"; fi
}
lo_bytes() { cat /sys/class/net/lo/statistics/tx_bytes; }
not_ready=(rcvd_rnr_err send_rnr_err retry_rnr_exceeded_err)
seen=$(mktemp)
rnr=$(counted "" "${not_ready[@]}") packets=$(counted "$dev/1" sent_pkts) bytes=$(counted "$dev/1" sent_bytes) lo=$(lo_bytes)
qps=0

"$@" &
job=$!
while [ "$interval" != 0 ] && kill -0 $job 2>/dev/null; do
    ss -HtnipO state established 2>/dev/null |
        awk '!/users:/ { for (i = 3; i <= NF; i++) if (sub(/^bytes_sent:/, "", $i)) print $3 "-" $4, $i }' >>"$seen"
    n=$(rdma resource show qp link "$dev" 2>/dev/null | grep -c 'state RTS .*pid [0-9]')
    [ "$n" -gt $qps ] && qps=$n
    sleep "$interval"
done
wait $job
code=$?

risen rnr "$rnr" "$(counted "" "${not_ready[@]}")"
risen packets "$packets" "$(counted "$dev/1" sent_pkts)"
risen bytes "$bytes" "$(counted "$dev/1" sent_bytes)"
risen lo_bytes "$lo" "$(lo_bytes)"
netdev=$(rdma link show "$dev/1" 2>/dev/null | sed -n 's/.* netdev \([^ ]*\).*/\1/p')
echo "@mtu $(cat "/sys/class/net/${netdev:-lo}/mtu")"
echo "@qps $qps"
awk '{ if ($2 > max[$1]) max[$1] = $2 }
    END { for (c in max) { n++; sum += max[c] } print "@tcp_conns", n + 0; printf "@tcp_bytes %.0f\n", sum }' "$seen"
rm -f "$seen"
exit $code
