//! Safe rdma_cm: the connection role in the type, and a loopback capability
