//! A transport over RDMA lanes that keeps the first-send rule and per-QP credits
