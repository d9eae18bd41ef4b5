# A hook of mmdebstrap, $1 is the new root: what is downloaded goes to a folder that outlives an interruption.
mkdir -p "$1/var/cache/apt"
rm -rf "$1/var/cache/apt/archives"
ln -s "$RDMA_SAFE_PACKAGES" "$1/var/cache/apt/archives"
