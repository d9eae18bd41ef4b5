#!/bin/bash
# dist.sh SERIES RING: in the folder of an unpacked archive, whether its script installs, refuses and removes as it says.
# Every case ends with a line "ok CASE" or "FAILED CASE: ...". RING is an MPI program.
series=$1 ring=$2
HOME=$(mktemp -d) && export HOME
component=$HOME/.openmpi/components/mca_btl_verbs.so
real=$(command -v ompi_info)

# settle CASE: the end of a case, whose output is in $said; what was wrong is in $wrong
settle() {
    if [ -z "$wrong" ]; then echo "ok $1"; else echo "FAILED $1: $wrong; it said: ${said//$'\n'/ | }"; fi
    wrong=
}
wrong=
# run STATUS COMMAND...: must end with this status
run() {
    local expected=$1
    shift
    said=$("$@" 2>&1)
    local code=$?
    [ $code = "$expected" ] || wrong="status $code instead of $expected"
}
says() { [[ $said == *"$1"* ]] || wrong="${wrong:+$wrong, }no word of '$1'"; }
found() { ompi_info --param btl verbs --level 9 --parsable 2>/dev/null | grep -q '^mca:btl:verbs:version'; }
# pretend FOLDER: an ompi_info in FOLDER/bin, which answers from stdin (a case statement's branches) or as the real one
pretend() {
    mkdir -p "$1/bin"
    { echo '#!/bin/sh'; echo 'case "$*" in'; cat; echo 'esac'; echo "exec $real \"\$@\""; } >"$1/bin/ompi_info"
    chmod 755 "$1/bin/ompi_info"
}

found && wrong="it is installed already"
run 0 ./install --user
says "installed $component"
[ -f "$component" ] || wrong="there is no file"
found || wrong="ompi_info does not find it"
settle "for a user"

line=$(sed -n 's/^ *\(mpirun .*\) \.\.\.$/\1/p' <<<"$said")
line=$(sed 's/self,[a-z]*,verbs/self,verbs/' <<<"$line")
read -ra words <<<"$line"
[ ${#words[@]} -gt 4 ] || wrong="it printed no command line"
run 0 "${words[@]}" -np 2 "$ring"
says "OK ring"
settle "the command line that was printed"

run 0 ./install --user --uninstall
says "removed $component"
[ -z "$(find "$HOME/.openmpi" -type f)" ] || wrong="files are left"
found && wrong="ompi_info still finds it"
run 0 ./install --user --uninstall
says "nothing is installed"
settle "taken away again"

pretend "$HOME/other" <<<'--version) echo "Open MPI v9.9.1"; exit ;;'
PATH=$HOME/other/bin:$PATH run 1 ./install --user
says "for Open MPI $series,"
says "is Open MPI 9.9.1"
[ ! -e "$component" ] || wrong="it was installed"
settle "another version is refused by name"

pretend "$HOME/cuda" <<<'"--all --parsable") echo mca:mpi:base:param:mpi_built_with_cuda_support:value:true; exit ;;'
run 1 ./install --user --prefix "$HOME/cuda"
says "built with CUDA"
[ ! -e "$component" ] || wrong="it was installed"
settle "a build with CUDA is refused"

pretend "$HOME/site" <<END
"--path pkglibdir --parsable") echo "path:pkglibdir:$HOME/site/lib/openmpi"; exit ;;
"--path pkgdatadir --parsable") echo "path:pkgdatadir:$HOME/site/share"; exit ;;
"--param "*) export OMPI_MCA_mca_base_component_path=$HOME/site/lib/openmpi ;;
END
run 0 ./install --prefix "$HOME/site"
says "installed $HOME/site/lib/openmpi/mca_btl_verbs.so"
[ -f "$HOME/site/share/mca-btl-verbs-device-params.ini" ] || wrong="no device parameters"
run 0 ./install --prefix="$HOME/site" --uninstall
[ -z "$(find "$HOME/site/lib" "$HOME/site/share" -type f)" ] || wrong="files are left"
settle "for all users, and taken away"

run 1 ./install --prefix "$HOME/nowhere"
says "there is no $HOME/nowhere/bin/ompi_info"
settle "a prefix without Open MPI"

run 2 ./install --sytem
says "--uninstall"
settle "an unknown option"

cp -r . "$HOME/broken" && echo nonsense >"$HOME/broken/mca_btl_verbs.so"
run 1 "$HOME/broken/install" --user
says "does not load the component"
[ ! -e "$component" ] || wrong="it was left there"
settle "a component that does not load"
