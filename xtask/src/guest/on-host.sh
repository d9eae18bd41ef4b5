#!/bin/bash
# on-host HOST COMMAND...: runs a shell command as if on HOST (hosta or hostb) of a two-hosts guest.
# Has the calling convention of rsh, so it serves mpirun: --mca plm_rsh_agent on-host
while [ "${1#-}" != "${1-}" ]; do shift; done
case ${1-} in
hosta | 10.9.0.1) ns=A host=hosta ;;
hostb | 10.9.0.2) ns=B host=hostb ;;
*) echo "on-host: no such host: '${1-}' (there are hosta and hostb)" >&2; exit 255 ;;
esac
shift
exec ip netns exec $ns unshare --uts bash -c "hostname $host; $*"
