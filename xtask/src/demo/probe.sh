#!/bin/bash
# probe DEVICE INTERVAL COMMAND...: runs COMMAND, and then tells in lines "@KEY VALUE" what the device and the network
# did meanwhile. What can only be seen while it lasts is looked at every INTERVAL seconds; 0: not at all.
#   @rnr          receiver-not-ready errors that all RDMA devices counted ("none" where none counts them)
#   @lo_bytes     bytes that left through the loopback network device
#   @packets      packets that the RDMA device counted as sent (0 where it counts none)
#   @mtu          the largest network packet of the RDMA device's network device
#   @qps          the most queue pairs of user programs that were seen ready to send at one time on the RDMA device
#   @tcp_conns    TCP connections that belong to no program but to the kernel: those of an iWARP device
#   @tcp_bytes    bytes sent on these, as far as seen before they were closed
dev=$1 interval=$2
shift 2
counters=/sys/class/infiniband/$dev/ports/1/hw_counters
value() { cat "$1" 2>/dev/null || echo 0; }
rnr() {
    cat /sys/class/infiniband/*/ports/1/hw_counters/{rcvd_rnr_err,send_rnr_err,retry_rnr_exceeded_err} 2>/dev/null |
        awk '{ sum += $1 } END { print (NR ? sum : "none") }'
}
seen=$(mktemp)
not_ready=$(rnr)
lo=$(value /sys/class/net/lo/statistics/tx_bytes)
packets=$(value "$counters/sent_pkts")
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

netdev=$(rdma link show "$dev/1" | sed -n 's/.* netdev \([^ ]*\).*/\1/p')
if [ "$not_ready" = none ]; then echo "@rnr none"; else echo "@rnr $(($(rnr) - not_ready))"; fi
echo "@lo_bytes $(($(value /sys/class/net/lo/statistics/tx_bytes) - lo))"
echo "@packets $(($(value "$counters/sent_pkts") - packets))"
echo "@mtu $(value "/sys/class/net/$netdev/mtu")"
echo "@qps $qps"
awk '{ if ($2 > max[$1]) max[$1] = $2 }
    END { for (c in max) { n++; sum += max[c] } print "@tcp_conns", n + 0; printf "@tcp_bytes %.0f\n", sum }' "$seen"
rm -f "$seen"
exit $code
