#!/bin/sh
# Installs the Open MPI component `verbs`, or removes it again. See `./install --help` and README.
set -eu
series=@SERIES@
arch=@ARCH@
file=mca_btl_verbs.so
params=mca-btl-verbs-device-params.ini

usage() {
    cat <<END
./install [--user | --prefix DIR] [--uninstall]

Puts $file where Open MPI $series looks for its components.

  --prefix DIR   the Open MPI below DIR (DIR/bin/ompi_info) [default: the one in the PATH]
  --user         only for this user: into ~/.openmpi/components
  --uninstall    remove what an earlier run with the same options has put there
END
}
fail() {
    echo "install: $*" >&2
    exit 1
}

user=no prefix= remove=no
while [ $# -gt 0 ]; do
    case $1 in
    --user) user=yes ;;
    --prefix) [ $# -gt 1 ] || fail "--prefix needs a folder"; prefix=$2; shift ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --uninstall) remove=yes ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

# Which Open MPI is it, and is this file for it?
if [ -n "$prefix" ]; then
    info=$prefix/bin/ompi_info
    [ -x "$info" ] || fail "there is no $info: --prefix names the folder that Open MPI was installed into"
else
    info=$(command -v ompi_info) || fail "no ompi_info in the PATH: put Open MPI's folder there (module load ...), or use --prefix DIR"
fi
version=$("$info" --version | sed -n 's/^Open MPI v//p')
[ -n "$version" ] || fail "$info tells no version of Open MPI"
case $version in
"$series".*) ;;
*) fail "this component is for Open MPI $series, and $info is Open MPI $version: take the archive for ${version%.*}" ;;
esac
[ "$(uname -m)" = "$arch" ] || fail "this component is for $arch, and this machine is $(uname -m)"
if "$info" --all --parsable 2>/dev/null | grep -q '^mca:mpi:base:param:mpi_built_with_cuda_support:value:true'; then
    fail "Open MPI $version at $info is built with CUDA, whose components have another layout: this one cannot be used there"
fi
path_of() {
    "$info" --path "$1" --parsable | sed -n "s/^path:$1://p"
}
if [ $user = yes ]; then
    [ -n "${HOME:-}" ] || fail "HOME is not set"
    folder=$HOME/.openmpi/components data=$HOME/.openmpi
else
    folder=$(path_of pkglibdir) data=$(path_of pkgdatadir)
    [ -n "$folder" ] && [ -n "$data" ] || fail "$info does not tell where its components are: use --user"
fi

if [ $remove = yes ]; then
    found=no
    for old in "$folder/$file" "$data/$params"; do
        [ -e "$old" ] || continue
        rm -f "$old" || fail "cannot remove $old"
        echo "removed $old"
        found=yes
    done
    [ $found = yes ] || echo "nothing is installed in $folder"
    exit 0
fi

put() { # put FILE FOLDER: at no time is there half a file
    mkdir -p "$2" && cp "$here/$1" "$2/.$1.new" && chmod 644 "$2/.$1.new" && mv -f "$2/.$1.new" "$2/$1" ||
        fail "cannot write $2/$1 (run it as root, or with --user)"
}
put $file "$folder"
put $params "$data"
told=$(OMPI_MCA_mca_base_component_show_load_errors=@SHOW@ "$info" --param btl verbs --level 9 --parsable 2>&1) || true
case $told in
*mca:btl:verbs:*) ;;
*)
    rm -f "$folder/$file" "$data/$params"
    fail "Open MPI $version does not load the component, so it was removed again:
$told"
    ;;
esac
echo "installed $folder/$file for Open MPI $version"
echo "(device parameters, for a site's own values: $data/$params)"
echo "Every node needs it. Run programs with"
echo "    mpirun @ELSEWHERE@--mca pml ob1 @OSC@--mca btl self,@SM@,verbs ..."
