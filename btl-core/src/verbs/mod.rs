//! The engine's traits on real devices: rdma-safe and rdma-cm.
