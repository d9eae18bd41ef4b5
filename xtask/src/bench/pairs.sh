#!/bin/bash
# In the guest: runs our program and perftest's in turns, and prints what each says of itself.
#   pairs.sh DEVICE ADDRESS OURS TEST SIZE COUNT DEPTH RECEIVES times PAIRS
#   pairs.sh DEVICE ADDRESS OURS TEST SIZE COUNT DEPTH RECEIVES calls
# Lines: `ours WORDS` and `theirs WORDS`. For `calls`: `ours|theirs COUNT SYSCALLS DOORBELLS`, of both sides together.
set -u
device=$1 address=$2 ours=$3 test=$4 size=$5 depth=$7 receives=$8 mode=$9 pairs=${10:-1}
port=18600
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# A command line for one side: `ours server COUNT`, `theirs client COUNT` …
line() {
	local who=$1 side=$2 count=$3 to=
	if [ "$who" = ours ]; then
		echo "$ours $test $side $address:$port $size $count $depth $receives"
		return
	fi
	[ "$side" = client ] && to=$address
	# -F: nothing about the governor. -C: cycles, which need no guess at the processor's frequency.
	local flags="-F -R -d $device -p $port -s $size -n $count"
	case $test in
	*_lat) echo "ib_$test $flags -C -I 32 -r $receives $to" ;;
	send_bw) echo "ib_$test $flags -Q 1 -t $depth -r $receives $to" ;;
	*_bw) echo "ib_$test $flags -Q 1 -t $depth $to" ;;
	esac
}

# Waits until the server listens.
listening() {
	local i
	for i in $(seq 500); do
		rdma resource show cm_id 2>/dev/null | grep -q LISTEN && return 0
		kill -0 "$1" 2>/dev/null || return 1
	done
	return 1
}

# Runs both sides to their end; what the client said is in $dir/client.
both() {
	local who=$1 count=$2 trace=${3:-} server
	port=$((port + 1))
	# shellcheck disable=SC2046,SC2086  # words on purpose
	timeout 60 ${trace:+$trace $dir/trace.server} $(line "$who" server "$count") >"$dir/server" 2>&1 &
	server=$!
	if listening $server; then
		# shellcheck disable=SC2046,SC2086
		timeout 60 ${trace:+$trace $dir/trace.client} $(line "$who" client "$count") >"$dir/client" 2>&1
		local client=$?
		[ $client != 0 ] && kill $server 2>/dev/null
		wait $server && [ $client = 0 ] && return 0
	else
		kill $server 2>/dev/null
		wait $server
	fi
	return 1
}

# What the client of a run said, in one line: ours as it is, theirs without its frame.
said() {
	if [ "$1" = ours ]; then
		echo "ours $(tr '\n' ' ' <"$dir/client")"
	else
		echo "theirs $(awk -v size="$size" '$1 == size { $1 = $1; print }' "$dir/client" | tail -n 1)"
	fi
}

failed() {
	echo "failed $1 $(cat "$dir/server" "$dir/client" 2>/dev/null | grep -v '^[-* ]*$' | tail -n 3 | tr '\n' ' ')"
}

# perftest asks /proc/cpuinfo for the frequency and gives up without; User-Mode Linux's has none. It is the counter's.
if ! grep -q '^cpu MHz' /proc/cpuinfo; then
	frequency=
	for attempt in 1 2 3; do
		# Ours measures it on the way, with any test.
		if timeout 60 "$ours" clock >"$dir/client" 2>&1; then
			frequency=$(awk '{ print $2 }' "$dir/client") && break
		fi
	done
	{ cat /proc/cpuinfo; echo "cpu MHz : ${frequency:-1000}"; } >"$dir/cpuinfo"
	mount --bind "$dir/cpuinfo" /proc/cpuinfo
	trap 'umount /proc/cpuinfo; rm -rf "$dir"' EXIT
fi

if [ "$mode" = calls ]; then
	# Three times: libsiw rings only when the device is not at work on the queue already, so a run can have fewer than its due.
	for count in "$6" $((2 * $6)) "$6" $((2 * $6)) "$6" $((2 * $6)); do
		for who in ours theirs; do
			rm -f "$dir"/trace.*
			if ! both $who "$count" "strace -f -qq -y -o"; then
				failed $who
				continue
			fi
			# Asking for the time is left out: perftest does so to guess the processor's frequency, as often as it takes. So
			# is giving way, which nobody does while messages go: the transport does until it is connected, and at its end.
			echo "$who $count $(cat "$dir"/trace.* | awk '
				/^[0-9]+ +[a-z_0-9]+\(/ && !/ (gettimeofday|clock_gettime|time|sched_yield|clock_nanosleep)\(/ { calls++ }
				/ write\([0-9]+<\/dev\/infiniband\/uverbs/ { bells++ }
				END { print calls + 0, bells + 0 }')"
		done
	done
	exit 0
fi

for pair in $(seq "$pairs"); do
	for who in ours theirs; do
		if both $who "$6"; then said $who; else failed $who; fi
	done
done
