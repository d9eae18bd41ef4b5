# A hook of mmdebstrap, $1 is the new root: unpacks packages without what they depend on.
mkdir -p "$RDMA_SAFE_PACKAGES/headers"
cd "$RDMA_SAFE_PACKAGES/headers"
rm -f ./*.deb
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --quiet download $RDMA_SAFE_HEADERS || exit
for deb in ./*.deb; do
    dpkg-deb --extract "$deb" "$1" || exit
done
