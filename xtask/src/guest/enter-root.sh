# Read by the scripts that run a job: what it takes to run its command in the folder ROOT, a Linux of its own, instead of this one.

# Settings for Open MPI's launchers, those of 4.1 and of the later ones: root may run them, on fewer processors than ranks, and
# reach the hosts of a two-hosts guest.
export_launcher() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    [ "$TWO_HOSTS" = 1 ] && export OMPI_MCA_plm_rsh_agent=on-host PRTE_MCA_plm_ssh_agent=on-host
    return 0
}

# make_root PLACE: makes the root PLACE/linux, in which nothing changes ROOT itself; this system's devices are there, and the folders
# CWD and SHARED
make_root() {
    local place=$1 dir
    mkdir -p "$place" && mount -t tmpfs tmpfs "$place" && mkdir "$place/up" "$place/work" "$place/linux" &&
        mount -t overlay -o "lowerdir=$ROOT,upperdir=$place/up,workdir=$place/work" overlay "$place/linux" || return
    for dir in /proc /sys /dev /run /tmp "$CWD" "${SHARED[@]}" "$work"; do
        mkdir -p "$place/linux$dir" && mount --rbind "$dir" "$place/linux$dir" || return
    done
    cp /etc/hosts /etc/passwd /etc/group "$place/linux/etc/"
}
